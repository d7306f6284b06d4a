"""Whose budget it is: people, whatever the table looks like; and a ledger that shows what was done.

Every test takes numbers from one plain table of ten customers and what may become of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn import Graph
from gapgnn.errors import (
    BudgetExceededError,
    InputError,
    NotGrantedError,
    PrivacyError,
    UnavailableError,
)
from gapgnn.graph import encode_ids, siphash_128
from gapgnn.graph.spelling import normalize_id
from gapgnn.privacy.accounting import Gaussian, Laplace
from gapgnn.privacy.ledger import Budget, Charge, Ledger, LedgerNotice, People
from gapgnn.privacy.ledger.chain import DamageError
from gapgnn.privacy.ledger.people import Members, Remembered, among, distinct, hash_ids
from gapgnn.privacy.ledger.sqlite import SQLiteConnection
from postgres_server import on_a_file

OLD = Path(__file__).parent.parent / "fixtures" / "version_3" / "ledger.sqlite"
CUSTOMERS = People(np.arange(10), "5f" * 32, name="customers.csv")
KEY = b"k" * 32


def people(*ids: object, fingerprint: str = "", namespace: str = "default") -> People:
    """Return some people, in a graph that nobody has seen before unless it is named."""
    found = np.array(ids)
    fingerprint = fingerprint or hashlib.sha256(repr((ids, namespace)).encode()).hexdigest()
    return People(found, fingerprint, namespace, "a table")


def grant(
    ledger: Ledger,
    name: str = "customers",
    who: People | None = CUSTOMERS,
    *,
    epsilon: float = 4.0,
    delta: float = 1e-3,
    level: str = "edge",
    composition: str = "sum",
    until: str | None = None,
) -> Budget:
    relation = "undirected" if level == "edge" else "add-remove"
    stated = {"level": level, "relation": relation, "composition": composition, "until": until}
    return ledger.grant(name, who, **stated, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]


def charge(
    ledger: Ledger,
    who: People = CUSTOMERS,
    *,
    epsilon: float = 1.0,
    delta: float = 0.0,
    level: str = "edge",
    events: tuple[Gaussian | Laplace, ...] = (),
) -> Charge:
    return ledger.charge(
        who,
        level=level,
        relation="undirected" if level == "edge" else "add-remove",
        epsilon=epsilon,
        delta=delta,
        events=[event.to_dict() for event in events],
        purpose="test",
    )


def budget(ledger: Ledger, name: str = "customers", level: str = "edge") -> Budget:
    (found,) = (b for b in ledger.summary() if (b.population, b.level) == (name, level))
    return found


@pytest.mark.parametrize(
    "table",
    [
        People(np.arange(10).astype(str), "01" * 32),
        People(np.arange(10).astype(object), "02" * 32),
        People(np.arange(10)[::-1], "03" * 32),
        People(np.array([9]), "04" * 32),
        People(np.array(["ann", "9"]), "05" * 32, name="renamed.parquet"),
        People(np.arange(9, 10_000), "06" * 32),
        People(np.arange(10, dtype=np.uint8), "5f" * 32),
        People(np.array([-1, 3], dtype=np.int32), "07" * 32),
    ],
    ids=["text", "objects", "reordered", "one", "mixed", "larger", "bytes", "small ints"],
)
def test_one_common_person_is_enough_whatever_the_table_looks_like(
    ledger: Ledger, table: People
) -> None:
    grant(ledger, epsilon=2)
    made = charge(ledger, table)
    assert (made.population, made.others) == ("customers", ())
    assert budget(ledger).spent_epsilon == 1.0
    charge(ledger)
    with pytest.raises(BudgetExceededError):
        charge(ledger, table)


@pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice")
def test_people_in_another_namespace_are_other_people(ledger: Ledger) -> None:
    grant(ledger, epsilon=1)
    charge(ledger)
    elsewhere = people(*range(10), namespace="suppliers")
    made = charge(ledger, elsewhere, epsilon=100)
    assert made.population != "customers"
    assert made.budget is not None
    assert made.budget.namespace == "suppliers"
    assert budget(ledger).spent_epsilon == 1.0
    with pytest.raises(InputError, match="choose another name"):
        grant(ledger, "customers", elsewhere, epsilon=1000)
    # The very same graph, declared to be other people.
    same = People(CUSTOMERS.ids, CUSTOMERS.fingerprint, "third")
    assert charge(ledger, same).population not in ("customers", made.population)
    assert charge(ledger, people(5, namespace="third")).others == ()


def test_a_graph_names_everybody_who_has_a_record_or_is_only_listed() -> None:
    graph = Graph.from_arcs(
        [0, 1],
        [1, 0],
        num_nodes=2,
        features=np.eye(2),
        ids=np.array([7, 8]),
        dangling={0: [99]},
        directed=True,
        population="branch",
    )
    found = People.of(graph)
    assert sorted(found.ids.tolist()) == [7, 8, 99]
    assert (found.namespace, found.fingerprint) == ("branch", graph.fingerprint)


def test_newcomers_join_the_charged_population_that_has_a_budget(ledger: Ledger) -> None:
    charge(ledger, people(*range(20, 30)))
    grant(ledger, epsilon=3)
    # More of them are of the other one, but the budget decides where the new ones go.
    made = charge(ledger, people(0, *range(20, 30), 99))
    assert (made.population, made.others) == ("customers", ("a table",))
    assert made.budget is not None
    assert (made.budget.people, made.budget.left_epsilon) == (11, 2.0)
    assert charge(ledger, people(99)).population == "customers"
    assert budget(ledger).spent_epsilon == 2.0
    assert budget(ledger, "a table").spent_epsilon == 2.0


def test_months_of_churn_are_one_population(ledger: Ledger) -> None:
    grant(ledger, epsilon=6)
    for month in range(6):
        charge(ledger, people(*range(month * 9, month * 9 + 10)))
    assert budget(ledger).people == 55
    with pytest.raises(BudgetExceededError):
        charge(ledger, people(*range(54, 64)))
    # Nobody of the first month is left in the last one, and nothing was forgotten.
    with pytest.raises(BudgetExceededError):
        charge(ledger, people(0))
    assert budget(ledger).people == 55


def test_a_refused_charge_leaves_every_population_as_it_was(ledger: Ledger) -> None:
    grant(ledger, "north", people(1, 2), epsilon=5)
    grant(ledger, "south", people(3, 4), epsilon=1)
    before = ledger.summary()
    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="budget of south"):
            charge(ledger, people(1, 3, 77), epsilon=2)
    assert (ledger.summary(), ledger.entries()) == (before, [])
    assert charge(ledger, people(77)).population not in ("north", "south")


def test_a_new_budget_counts_what_was_charged_to_anybody_in_it(ledger: Ledger) -> None:
    charge(ledger, people(1, 2), epsilon=1)
    charge(ledger, people(3, 4), epsilon=2)
    charge(ledger, people(50, 51), epsilon=40)
    found = grant(ledger, "customers", people(2, 3, 10), epsilon=4)
    assert (found.spent_epsilon, found.left_epsilon) == (3.0, 1.0)
    with pytest.raises(BudgetExceededError):
        charge(ledger, people(10), epsilon=1.5)
    with pytest.raises(PrivacyError, match="below what is spent: epsilon 43"):
        grant(ledger, "everybody", people(1, 3, 50), epsilon=42)
    # Counted once, however often it is granted.
    assert grant(ledger, "customers", people(2, 3, 10), epsilon=5).spent_epsilon == 3.0


def test_a_budget_counts_what_those_who_join_by_a_later_grant_bring_with_them(
    ledger: Ledger,
) -> None:
    grant(ledger, "customers", people(1), epsilon=3)
    charge(ledger, people(1), epsilon=1)
    charge(ledger, people(2), epsilon=2.5)
    with pytest.raises(PrivacyError, match=r"edge level cannot be below .* epsilon 3\.5"):
        grant(ledger, "customers", people(2), epsilon=3)
    # Neither by way of the other level.
    with pytest.raises(PrivacyError, match=r"edge level cannot be below .* epsilon 3\.5"):
        grant(ledger, "customers", people(2), epsilon=100, level="node")
    assert budget(ledger).spent_epsilon == 1.0
    assert grant(ledger, "customers", people(2), epsilon=3.5).left_epsilon == 0.0


def test_those_who_were_charged_before_there_was_a_budget_get_its_name(ledger: Ledger) -> None:
    charge(ledger)
    assert [row.population for row in ledger.summary()] == ["customers.csv"]
    found = grant(ledger, "customers", people(*range(12)))
    assert [row.population for row in ledger.summary()] == ["customers"]
    assert (found.people, found.spent_epsilon) == (12, 1.0)


def test_a_name_without_people_must_be_known(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="must be a known population"):
        grant(ledger, "customers", None)
    grant(ledger)
    assert grant(ledger, "customers", None, epsilon=9).granted_epsilon == 9.0
    for name in ("", "-x", "a\nb", "x" * 101):
        with pytest.raises(InputError, match="must have a name of letters"):
            grant(ledger, name)


def test_a_ledger_can_require_a_grant(ledger: Ledger) -> None:
    ledger.set("require-grant", "on")
    with pytest.raises(PrivacyError, match="this ledger requires one"):
        charge(ledger)
    assert (ledger.entries(), ledger.summary()) == ([], [])
    grant(ledger)
    charge(ledger)
    with pytest.raises(PrivacyError, match="this ledger requires one"):
        charge(ledger, people(50))
    ledger.set("require-grant", "off")
    charge(ledger, people(50))
    with pytest.raises(InputError, match="`require-grant` must be one of off, on"):
        ledger.set("require-grant", "maybe")
    with pytest.raises(InputError, match="`setting` must be one of require-grant"):
        ledger.set("key", "00")


@pytest.mark.parametrize("order", [1, -1])
def test_a_price_is_asked_of_every_population_before_it_is_charged(
    ledger: Ledger, order: int
) -> None:
    for name, who, epsilon in (("rich", 1, 9.0), ("poor", 2, 1.0))[::order]:
        grant(ledger, name, people(who), epsilon=epsilon)
    asked: dict[str, Any] = {"level": "edge", "relation": "undirected"}
    found = ledger.budgets_after(people(1, 2), **asked, releases=[(0.6, 0.0, [])])
    assert {(now.population, after.left_epsilon) for now, after in found} == {
        ("rich", 8.4),
        ("poor", 0.4),
    }
    with pytest.raises(BudgetExceededError, match="The budget of poor"):
        ledger.check_affordable(people(1, 2), **asked, releases=[(0.6, 0.0, [])] * 2)
    assert ledger.entries() == []


@pytest.mark.parametrize("order", [1, -1])
def test_an_access_without_a_charge_asks_the_budget_of_everybody_it_reads(
    ledger: Ledger, order: int
) -> None:
    for name, who, level in (("links", 1, "edge"), ("records", 2, "node"))[::order]:
        grant(ledger, name, people(who), level=level)
    both = people(1, 2)
    looks: dict[str, Any] = {"purpose": "features", "curator_only": None}
    ledger.check_free(people(1), level="edge", **looks)
    with pytest.raises(NotGrantedError, match="records has a budget at node level"):
        ledger.check_free(both, level="edge", **looks)
    with pytest.raises(PrivacyError, match="have a privacy budget"):
        ledger.check_free(both, level="none", **looks)
    assert ledger.entries() == []
    ledger.check_free(both, level="none", **{**looks, "curator_only": "a look"})
    logged = {(one.population, one.level, one.reason) for one in ledger.entries()}
    assert logged >= {("links", "edge", "a look"), ("records", "node", "a look")}


@on_a_file
def test_a_budget_ends_with_its_last_day(ledger: Ledger) -> None:
    now = datetime.now(timezone.utc)
    if (now + timedelta(minutes=1)).date() != now.date():
        time.sleep(60)  # the day would end in the middle
    today = datetime.now(timezone.utc).date()
    grant(ledger, until=today.isoformat())
    charge(ledger)
    yesterday = (today - timedelta(days=1)).isoformat()
    grant(ledger, until=yesterday)
    with pytest.raises(BudgetExceededError, match=f"ended on {yesterday}; nothing was charged"):
        charge(ledger)
    grant(ledger, until=None)
    charge(ledger)
    for wrong in ("tomorrow", "20271115", "2027-W46-1", "2027-13-01"):
        with pytest.raises(InputError, match="`until` must be a day"):
            grant(ledger, until=wrong)


FIT = (Gaussian(6.617, count=2),)


def test_ten_fits_of_epsilon_one_fit_a_gaussian_budget_of_three_and_a_half(ledger: Ledger) -> None:
    grant(ledger, epsilon=3.47, delta=1e-7, composition="gaussian")
    for month in range(10):
        charge(ledger, people(month), epsilon=1.0, delta=1e-7, events=FIT)
    found = budget(ledger)
    assert found.spent_epsilon == pytest.approx(3.46, abs=5e-3)
    assert (found.spent_delta, found.charges) == (1e-7, 10)
    assert [round(entry.together or 0, 2) for entry in ledger.entries()][::9] == [1.0, 3.46]
    with pytest.raises(BudgetExceededError, match="undirected, gaussian"):
        charge(ledger, epsilon=1.0, delta=1e-7, events=FIT)


def test_ten_fits_of_epsilon_one_need_ten_by_sum(ledger: Ledger) -> None:
    grant(ledger, epsilon=10, delta=1e-6, composition="sum")
    for _ in range(10):
        charge(ledger, epsilon=1.0, delta=1e-7, events=FIT)
    assert (budget(ledger).spent_epsilon, budget(ledger).left_epsilon) == (10.0, 0.0)


def test_other_noise_on_a_gaussian_budget_is_refused_and_not_recorded(ledger: Ledger) -> None:
    grant(ledger, composition="gaussian")
    with pytest.raises(PrivacyError, match="Gaussian noise alone"):
        charge(ledger, events=(Laplace(5.0),))
    assert ledger.entries() == []


def test_a_later_grant_keeps_the_rule_unless_it_says_otherwise(ledger: Ledger) -> None:
    assert grant(ledger, composition="auto").composition == "gaussian"
    assert grant(ledger, level="node", composition="auto").composition == "renyi"
    assert grant(ledger, composition="sum").composition == "sum"
    assert grant(ledger, epsilon=9, composition="auto").composition == "sum"


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_the_rule_of_a_budget_stays_once_something_was_charged_under_it(
    ledger: Ledger, rule: str
) -> None:
    grant(ledger, epsilon=2, delta=1e-6, composition=rule)
    charge(ledger, epsilon=1.0, delta=1e-7, events=FIT)
    for other in {"gaussian", "renyi", "sum"} - {rule}:
        with pytest.raises(PrivacyError, match=f"must stay {rule}"):
            grant(ledger, epsilon=9, delta=1e-6, composition=other)
    (before,) = ledger.grants()
    grant(ledger, epsilon=9, delta=1e-6, composition=rule)
    assert ledger.grants()[-1].renyi_order == before.renyi_order


def test_hashes_are_siphash_with_128_bits() -> None:
    """Values of OpenSSL for messages 00 01 02 ... under the key 00 01 ... 0f."""
    known = {
        4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
        8: "3b62a9ba6258f5610f83e264f31497b4",
        12: "d626b266905ef35882634df68532c125",
        16: "6ee2a4ca67b054bbfd3315bf85230577",
    }
    for length, expected in known.items():
        message = bytes(range(length)) + bytes(8 - length % 8)
        words = [np.frombuffer(message[at : at + 8], "<u8") for at in range(0, len(message), 8)]
        hashes = siphash_128(words, length, bytes(range(16)))
        assert hashes.astype("<u8").tobytes().hex() == expected


numerals = st.text("0123456789-", min_size=1, max_size=21)


@given(ids=st.lists(st.one_of(st.text(max_size=4), numerals, st.integers().map(str)), max_size=9))
def test_numbers_stand_for_themselves_and_names_for_their_keyed_hash(ids: list[str]) -> None:
    ids = [name.rstrip("\0") for name in ids]
    expected = []
    for name in ids:
        is_number = re.fullmatch("0|-?[1-9][0-9]*", name) is not None
        if is_number and -(2**63) <= int(name) < 2**63:
            expected.append(int(name) % 2**64)
        else:
            raw = name.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(raw, digest_size=8, key=KEY).digest()
            expected.append(int.from_bytes(digest, "little"))
    assert encode_ids(np.array(ids, dtype=str), KEY).tolist() == expected


names = st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.text(max_size=9))


@settings(max_examples=50)
@given(some=st.lists(names, max_size=20), others=st.lists(names, max_size=20))
def test_hashes_are_equal_where_the_ids_are(some: list[str], others: list[str]) -> None:
    # NumPy cannot tell zeros at the end of a text from its end.
    some, others = ([name.rstrip("\0") for name in ids] for ids in (some, others))
    here, there = (hash_ids(np.array(ids, dtype=str), KEY) for ids in (some, others))
    persons = [{normalize_id(name).rstrip("\0") for name in ids} for ids in (some, others)]
    assert len(here) == len(persons[0])
    assert among(here, there).sum() == len(persons[0] & persons[1])
    assert np.array_equal(here, hash_ids(np.array(some[::-1] + some, dtype="U40"), KEY))


def test_numbers_have_one_hash_however_they_are_written_and_each_ledger_its_own() -> None:
    numbers = np.array([0, 7, -3, 2**63 - 1, -(2**63)])
    hashes = hash_ids(numbers, KEY)
    assert np.array_equal(hashes, hash_ids(numbers.astype(str), KEY))
    assert np.array_equal(hashes, hash_ids(numbers.astype(object), KEY))
    assert not among(hashes, hash_ids(numbers, b"x" * 32)).any()
    large = np.array([2**63, 2**64 - 1], dtype=np.uint64)
    assert np.array_equal(hash_ids(large, KEY), hash_ids(large.astype(str), KEY))


@pytest.mark.parametrize("case", [np.int64, np.uint32, object, str])
def test_remembered_people_are_the_ones_that_are_asked_for(case):
    """Ids changed in place, others of the same length, another key: never those of before."""
    hashes, people = Remembered(), np.arange(1000).astype(case)
    first = hashes.of(people, KEY)
    assert hashes.of(people.copy(), KEY) is first
    changed = people.copy()
    changed[500] = people[7]
    for others, key in ((people, b"x" * 32), (changed, KEY), (people[:999], KEY), (people, KEY)):
        found = hash_ids(others, key)
        assert np.array_equal(hashes.of(others, key), found)
        assert hashes.digest(hashes.of(others, key)) == hashes.digest(found)
    assert hashes.digest(first) != hashes.digest(hashes.of(changed, KEY))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    people[500] = people[7]
    assert len(hashes.of(people, KEY)) == 999


def test_threads_that_ask_for_different_people_get_their_own():
    hashes, groups = Remembered(), [np.arange(50) + 100 * start for start in range(8)]
    wanted = [hash_ids(group, KEY) for group in groups]

    def ask(number: int) -> bool:
        found = hashes.of(groups[number], KEY)
        fits = np.array_equal(found, wanted[number])
        return fits and hashes.digest(found) == Remembered().digest(wanted[number])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, list(range(8)) * 100))


@settings(max_examples=200)
@given(
    number=st.integers(-(2**63), 2**63 - 1),
    zeros=st.integers(0, 25),
    behind=st.sampled_from(["", ".", ".0", ".000"]),
    space=st.sampled_from(["", " ", "\t"]),
    plus=st.booleans(),
)
def test_a_number_has_one_hash_in_every_spelling(number, zeros, behind, space, plus) -> None:
    sign = "-" if number < 0 else "+" if plus else ""
    spelled = f"{space}{sign}{'0' * zeros}{abs(number)}{behind}{space}"
    mixed = np.array([spelled, "a name", "7x", "1.5", ".0", "+", "-", "1.0.0", "1 2"])
    hashes = hash_ids(np.array([number]), KEY)
    assert among(hashes, hash_ids(mixed, KEY)).all()
    assert not among(hashes, hash_ids(mixed[1:], KEY)).any()
    assert len(hash_ids(mixed, KEY)) == len(mixed)


def test_spaces_around_a_name_make_nobody_else() -> None:
    plain, spaced = np.array(["ann", "bo b", "käthe"]), np.array([" ann", "bo b ", "\tkäthe\u00a0"])
    assert np.array_equal(hash_ids(plain, KEY), hash_ids(spaced, KEY))


def test_hashes_are_sorted_and_compared_by_both_halves() -> None:
    rows = [[5, 2], [1, 9], [5, 1], [5, 2], [1, 9], [0, 0]]
    found = distinct(np.array(rows, dtype=np.uint64))
    assert found.tolist() == [[0, 0], [1, 9], [5, 1], [5, 2]]
    some = np.array([[0, 1], [1, 9], [5, 2], [5, 3], [9, 9]], dtype=np.uint64)
    assert among(some, found).tolist() == [False, True, True, False, False]
    assert among(some, found[:0]).tolist() == [False] * 5
    assert among(found[:0], some).tolist() == []


@given(sizes=st.lists(st.integers(0, 40), max_size=12))
@settings(max_examples=20)
def test_members_who_come_in_any_pieces_are_found_again(sizes: list[int]) -> None:
    db = sqlite3.connect(":memory:", factory=SQLiteConnection)
    db.execute("CREATE TABLE members (population, part, digest, hashes)")
    members, total = Members(db), sum(sizes)
    everybody = hash_ids(np.arange(total + 5), KEY)
    order = np.random.default_rng(0).permutation(total)
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        members.join(3, everybody[np.sort(order[end - size : end])])
    assert members.count(3) == total
    assert members.known(3, everybody)[:total].all()
    assert not members.known(3, everybody)[total:].any()
    assert not members.known(4, everybody).any()
    for size, end in zip(sizes, np.cumsum(sizes), strict=True):
        assert members.known(3, everybody[np.sort(order[end - size : end])]).all()
    (pieces,) = db.execute("SELECT count(*) FROM members").fetchone()
    assert pieces <= 2 + np.log2(total + 1)


@pytest.mark.parametrize("place", [0, 2**18 - 1, 2**18, 2**19 + 5, 16 * 40_000 - 1])
def test_a_flipped_byte_is_found_wherever_it_is_in_a_long_list(place: int) -> None:
    db = sqlite3.connect(":memory:", factory=SQLiteConnection)
    db.execute("CREATE TABLE members (population, part, digest, hashes)")
    members, everybody = Members(db), hash_ids(np.arange(40_000), KEY)
    members.join(3, everybody)
    assert members.known(3, everybody).all()
    (blob,) = db.execute("SELECT hashes FROM members").fetchone()
    changed = bytearray(blob)
    changed[place] ^= 1
    db.execute("UPDATE members SET hashes = ?", (bytes(changed),))
    with pytest.raises(DamageError, match="members was changed"):
        members.known(3, everybody)


def tamper(ledger: Ledger, *statements: str) -> None:
    with sqlite3.connect(ledger.path) as db:
        for statement in statements:
            assert db.execute(statement).rowcount
    db.close()


ADDED = (
    "INSERT INTO {0} SELECT seq + 10, {1} FROM {0} WHERE seq = 2",
    "id || 'x', population, fingerprint, level, relation, epsilon, delta, count, purpose, events, "
    "charged_at, completed_at, who, host, command, reason, chain",
    "population, level, relation, epsilon, delta, composition, renyi_order, until, granted_at, "
    "who, host, reason, chain",
)
TAMPERING = {
    "an amount changed": "UPDATE charges SET epsilon = '0.25' WHERE seq = 2",
    "a count changed": "UPDATE charges SET count = 0 WHERE seq = 1",
    "a cell of another type": "UPDATE charges SET reason = x'00ff' WHERE seq = 1",
    "events changed": "UPDATE charges SET events = '[{}]' WHERE seq = 3",
    "a charge moved to others": "UPDATE charges SET population = 9 WHERE seq = 3",
    "a grant changed": "UPDATE grants SET epsilon = '400' WHERE seq = 1",
    "a rule changed": "UPDATE grants SET composition = 'gaussian' WHERE seq = 2",
    "a link removed": "UPDATE charges SET chain = NULL WHERE seq = 3",
    "first row removed": "DELETE FROM charges WHERE seq = 1",
    "middle row removed": "DELETE FROM charges WHERE seq = 2",
    "last row removed": "DELETE FROM charges WHERE seq = 3",
    "all rows removed": "DELETE FROM charges",
    "last grant removed": "DELETE FROM grants WHERE seq = 2",
    "a charge added": ADDED[0].format("charges", ADDED[1]),
    "a grant added": ADDED[0].format("grants", ADDED[2]),
    "a byte of the members flipped": "UPDATE members SET hashes = "
    "CAST(substr(hashes, 1, 7) || x'5a' || substr(hashes, 9) AS BLOB) WHERE population = 1",
    "members removed": "DELETE FROM members WHERE population = 1",
    "members replaced": "UPDATE members SET hashes = zeroblob(16), digest = "
    f"x'{hashlib.blake2b(bytes(16), digest_size=16).hexdigest()}' WHERE population = 1",
    "a population moved": "UPDATE populations SET namespace = 'nobody' WHERE id = 1",
    "a population removed": "DELETE FROM populations WHERE id = 1",
    "a claim removed": "DELETE FROM claims",
    "a setting changed": "UPDATE settings SET value = 'off' WHERE key = 'require-grant'",
    "the key changed": f"UPDATE settings SET value = '{'00' * 32}' WHERE key = 'key'",
    "the key damaged": "UPDATE settings SET value = 'no key' WHERE key = 'key'",
    "the key removed": "DELETE FROM settings WHERE key = 'key'",
    "the seal removed": "DELETE FROM settings WHERE key = 'seal'",
}


@on_a_file
@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
def test_a_row_that_was_changed_removed_or_added_is_found_and_stops_every_charge(
    ledger: Ledger, statement: str
) -> None:
    grant(ledger, epsilon=40)
    grant(ledger, epsilon=50)
    made = [charge(ledger), charge(ledger), charge(ledger)]
    ledger.claim(made[0].id, None, "token")
    ledger.set("require-grant", "on")
    assert ledger.problems() == []
    tamper(ledger, statement)
    before = ledger.path.read_bytes()
    assert found_by(ledger)
    with pytest.raises(PrivacyError) as refusal:
        charge(ledger)
    assert "damaged" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert ledger.path.read_bytes() == before


def found_by(ledger: Ledger) -> bool:
    """Tell whether a look at the ledger finds something, as a list or as a refusal."""
    try:
        problems = ledger.problems()
    except PrivacyError:
        return True
    assert all("\n" not in problem for problem in problems)
    return bool(problems)


@on_a_file
def test_any_flipped_byte_of_the_file_is_found_or_changes_nothing(ledger: Ledger) -> None:
    """One byte in every hundred: what is not found must be where SQLite keeps no content."""
    grant(ledger, epsilon=40)
    charge(ledger)
    whole = ledger.path.read_bytes()
    state = (ledger.summary(), ledger.entries())
    found = 0
    for place in range(50, len(whole), 211):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        ledger.path.write_bytes(flipped)
        try:
            if ledger.problems():
                found += 1
            else:
                assert (ledger.summary(), ledger.entries()) == state
        except (PrivacyError, UnavailableError):
            found += 1
    assert found > 10


def test_the_chain_holds_through_every_operation(ledger: Ledger) -> None:
    grant(ledger, epsilon=40)
    made = charge(ledger)
    ledger.claim(made.id, None, "one")
    ledger.claim(made.id, "one", "two")
    ledger.complete(made.id)
    ledger.set("require-grant", "on")
    grant(ledger, "more", people(1, 2, 50), epsilon=30)
    charge(ledger, people(3, 60))
    assert ledger.problems() == []
    assert len(ledger.entries()) == 3


@pytest.fixture
def old(tmp_path: Path) -> Ledger:
    shutil.copy(OLD, tmp_path / "ledger.sqlite")
    return Ledger(tmp_path / "ledger.sqlite")


def rows(path: Path) -> list[object]:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT id, epsilon, delta, events FROM charges ORDER BY seq").fetchall()
        found += db.execute("SELECT seq, level, epsilon, delta FROM grants ORDER BY seq").fetchall()
    db.close()
    return found


def test_a_ledger_of_version_three_is_brought_up_once_with_a_backup_and_a_notice(
    old: Ledger,
) -> None:
    before, kept = old.path.read_bytes(), rows(old.path)
    with pytest.warns(LedgerNotice, match=r"version 5, which .*; the .*\.version-3"):
        entries = old.entries()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert old.entries() == entries
        assert old.problems() == []
    backup = old.path.with_name("ledger.sqlite.version-3")
    assert rows(backup) == rows(old.path) == kept
    assert backup.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(old.path.parent)) == ["ledger.sqlite", backup.name]
    assert len(before) == backup.stat().st_size
    assert budget(old).people == 4


def test_the_backup_is_a_ledger_and_no_earlier_backup_is_written_over(old: Ledger) -> None:
    backup = old.path.with_name("ledger.sqlite.version-3")
    backup.write_text("something else")
    with pytest.warns(LedgerNotice):
        old.summary()
    assert backup.read_text() == "something else"
    second = old.path.with_name("ledger.sqlite.version-3.2")
    with pytest.warns(LedgerNotice):
        assert Ledger(second).summary() == old.summary()


@on_a_file
@pytest.mark.parametrize("version", [1, 2])
def test_a_ledger_that_counts_graphs_is_refused_and_stays(ledger: Ledger, version: int) -> None:
    charge(ledger)
    with sqlite3.connect(ledger.path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = ledger.path.read_bytes()
    for ask in (lambda: charge(ledger), ledger.summary, ledger.problems):
        with pytest.raises(PrivacyError, match=rf"Got version {version}, .* once with gapgnn 0\.2"):
            ask()
    assert ledger.path.read_bytes() == before
    assert os.listdir(ledger.path.parent) == ["ledger.sqlite"]


def test_a_budget_of_people_whom_nobody_knows_is_not_circumvented(old: Ledger) -> None:
    """The upgrade of version 0.1 made populations that only a graph's fingerprint identified."""
    with sqlite3.connect(old.path) as db:
        db.execute("UPDATE populations SET namespace = ''")
        db.execute("DELETE FROM members")
    db.close()
    before = old.path.read_bytes()
    for ask in (lambda: charge(old), old.summary):
        with pytest.raises(PrivacyError, match=r"whose people are not known.* with gapgnn 0\.2"):
            ask()
    assert old.path.read_bytes() == before
    assert os.listdir(old.path.parent) == ["ledger.sqlite"]


@pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice")
def test_an_empty_namespace_is_a_namespace(ledger: Ledger) -> None:
    grant(ledger, "nameless", people(1, 2, namespace=""), epsilon=2)
    assert charge(ledger, people(2, 3, namespace="")).population == "nameless"
    assert charge(ledger, people(2, 3)).population != "nameless"
    with pytest.raises(BudgetExceededError):
        charge(ledger, people(3, namespace=""), epsilon=2)


MIGRANT = """
import os, sys, warnings
from gapgnn.privacy.ledger import Ledger, LedgerNotice

ledger = Ledger(sys.argv[1])
number = 0
while number < 5 and os.fork():
    number += 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    charges = len(ledger.entries())
notices = sum(issubclass(one.category, LedgerNotice) for one in caught)
os.write(1, f"{charges} {notices}\\n".encode())
"""


def test_of_processes_that_bring_a_ledger_up_at_once_one_does(old: Ledger) -> None:
    command = [sys.executable, "-c", MIGRANT, str(old.path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["1 0"] * 5 + ["1 1"]
    assert sorted(os.listdir(old.path.parent)) == ["ledger.sqlite", "ledger.sqlite.version-3"]
    assert old.problems() == []


def test_an_upgrade_that_fails_changes_nothing(
    old: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gapgnn.privacy.ledger.sqlite.os.link", fail)
        with pytest.raises(UnavailableError, match="No space left on device"):
            old.summary()
    assert old.path.read_bytes() == before
    assert os.listdir(old.path.parent) == ["ledger.sqlite"]
    with pytest.warns(LedgerNotice):
        assert len(old.entries()) == 1


@on_a_file
def test_a_program_of_version_two_refuses_a_ledger_of_people(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(ledger)
    monkeypatch.setattr("gapgnn.privacy.ledger.sqlite.SCHEMA_VERSION", 2)
    with pytest.raises(PrivacyError, match="newer gapgnn"):
        charge(ledger)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that somebody else may look into."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o700)


def without_rights(action: Callable[[], object]) -> str:
    """Return what an action says when it is done by somebody who may only read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            said = f"{action()}"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_a_ledger_that_is_read_only_is_read_and_nothing_is_charged(open_folder: Path) -> None:
    ledger = Ledger.init(open_folder / "ledger.sqlite")
    grant(ledger)
    charge(ledger)
    ledger.path.chmod(0o444)
    open_folder.chmod(0o555)
    before = ledger.path.read_bytes()
    assert without_rights(lambda: [len(ledger.entries()), ledger.problems()]) == "[1, []]"
    assert without_rights(lambda: ledger.summary()[0].spent_epsilon) == "1.0"
    for action in (lambda: charge(ledger), lambda: grant(ledger, epsilon=9)):
        said = without_rights(action)
        assert said.startswith("UnavailableError: Ledger")
        assert "readonly" in said
        assert "Nothing was released" in said
        assert "\n" not in said
    assert ledger.path.read_bytes() == before


def test_an_old_ledger_that_is_read_only_says_so_and_stays(open_folder: Path) -> None:
    ledger = Ledger(open_folder / "ledger.sqlite")
    shutil.copy(OLD, ledger.path)
    ledger.path.chmod(0o444)
    open_folder.chmod(0o555)
    before = ledger.path.read_bytes()
    said = without_rights(ledger.summary)
    assert said.startswith("UnavailableError: Ledger")
    assert "\n" not in said
    assert (ledger.path.read_bytes(), os.listdir(open_folder)) == (before, ["ledger.sqlite"])
