"""One person has one budget however the id is spelled, in new ledgers and in older ones."""

from __future__ import annotations

import shutil
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn import GAP, random_split, read_tables
from gapgnn.errors import BudgetExceededError, DataError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy.ledger import Ledger, LedgerNotice, People
from gapgnn.privacy.ledger.people import hash_ids

VERSION_3 = Path(__file__).parent.parent / "fixtures" / "version_3" / "ledger.sqlite"
KEY = b"k" * 32
TERMS = {"level": "edge", "relation": "undirected"}


def people(*ids: str) -> People:
    return People.listed(np.array(ids), name="a table")


def hashed(*ids: str) -> list[list[int]]:
    found: list[list[int]] = hash_ids(np.array(ids), KEY).tolist()
    return found


@pytest.mark.parametrize(
    ("spelled", "same"),
    [
        ("Zo\u00eb", "Zoe\u0308"),
        ("ann", "ANN"),
        ("stra\u00dfe", "STRASSE"),
        ("ann b", "ann \t\u00a0 b"),
        ("ann", "a\u200bn\ufeffn\u00ad"),
        ("e\u0301va", "e\u200d\u0301va"),
        ("\uff21\uff4e\uff4e", "ann"),
        ("12", "\u0661\u0662"),
        ("a1", "a\u0967"),
        ("1,000", "1000"),
        ("-1,234,567.0", "-1234567"),
        ("\u22127", "-7"),
        ("\uff11\uff0c\uff10\uff10\uff10", "1000"),
        ("+0012345678901234567890123", "12345678901234567890123"),
        ("12,345,678,901,234,567,890,123", "12345678901234567890123"),
    ],
)
def test_an_id_has_one_hash_however_it_is_spelled(spelled: str, same: str) -> None:
    assert hashed(spelled) == hashed(same) == hashed(same, spelled)


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("ann", "anne"),
        ("1,00", "100"),
        ("1,000x", "1000x"),
        ("-7", "7"),
        ("a b", "ab"),
        ("\u00e9", "e"),
    ],
)
def test_other_ids_stay_other_people(one: str, another: str) -> None:
    assert len(hashed(one, another)) == 2


@settings(max_examples=200)
@given(name=st.text(max_size=12), beside=st.text(max_size=30))
def test_a_hash_depends_on_nobody_elses_spelling(name: str, beside: str) -> None:
    name, beside = name.rstrip("\0"), beside.rstrip("\0")
    both = hashed(name, beside)
    assert hashed(name)[0] in both
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert hashed(unicodedata.normalize(form, name)) == hashed(name)


def test_a_budget_is_not_renewed_by_another_spelling(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    budget = ledger.grant(
        "customers", people("Ann", "1000"), **TERMS, epsilon=1, delta=0.0, composition="sum"
    )
    assert budget.people == 2
    for spelling in ("ANN", "a\u200bnn", "1,000", "\uff11\uff10\uff10\uff10"):
        with pytest.raises(BudgetExceededError):
            ledger.charge(people(spelling), **TERMS, epsilon=2, delta=0.0, events=[], purpose="fit")


@pytest.fixture
def older(tmp_path: Path) -> Ledger:
    """Return a ledger of Ann, Bob, 7 and Zoe that was written before ids were normalised."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(VERSION_3, path)
    return Ledger(path)


def test_people_of_an_older_ledger_are_found_as_they_were_spelled(older: Ledger) -> None:
    with pytest.warns(LedgerNotice, match=r"version 5, which .*; the .*\.version-3"):
        (budget,) = older.budgets_of(people("Ann"))
    assert (budget.population, budget.people, budget.spent_epsilon) == ("customers", 4, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for spelling in ("Bob", "7", "Zo\u00eb"):
            assert len(older.budgets_of(people(spelling))) == 1
    assert older.problems() == []


def test_once_read_again_people_of_an_older_ledger_are_found_in_any_spelling(
    older: Ledger,
) -> None:
    with pytest.warns(LedgerNotice):
        charge = older.charge(
            people("Ann", "Bob", "7", "Zo\u00eb", "Dan"),
            **TERMS,
            epsilon=1,
            delta=0.0,
            events=[],
            purpose="fit",
        )
    assert charge.budget is not None
    assert (charge.population, charge.budget.people) == ("customers", 5)
    for spelling in ("ANN", "bob", "007", "ZOE\u0308", "dan"):
        again = older.charge(
            people(spelling), **TERMS, epsilon=0.1, delta=0.0, events=[], purpose="fit"
        )
        assert again.budget is not None
        assert (again.population, again.budget.people) == ("customers", 5)
    assert older.problems() == []


def test_a_graph_with_one_person_under_two_spellings_is_refused_before_the_charge(tmp_path):
    """A budget would count that person once, and each of the two nodes has the whole promise."""
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    graph = random_split(social_graph(num_nodes=60, mean_degree=6), seed=0)
    names = np.array([f"p{number:03d}" for number in range(60)])
    names[41] = "P007"
    model = GAP(level="edge", epsilon=1.0, epochs=2, ledger=ledger.path)
    with pytest.raises(DataError, match="Got 'p007' and 'P007', which are one person"):
        model.fit(graph._replace(ids=names))
    assert ledger.entries() == []


@pytest.mark.parametrize(
    ("one", "other"), [("ann", "Ann"), ("007", "7"), ("Zo\u00eb", "Zoe\u0308")]
)
def test_two_rows_of_one_person_are_refused_with_their_numbers(tmp_path, one, other):
    nodes, edges = tmp_path / "people.csv", tmp_path / "friends.csv"
    nodes.write_text(f"id,age,team\nbob,3,a\n{one},4,b\ncid,5,a\n{other},6,b\n", encoding="utf-8")
    edges.write_text(f"from,to\nbob,{one}\ncid,{other}\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"Got '{one}' in row 2 and '{other}' in row 4, which are"):
        read_tables(edges=edges, nodes=nodes, label="team")
