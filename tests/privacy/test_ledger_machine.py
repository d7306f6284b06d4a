"""The ledger through anything that may happen to it, beside a plain list of who was read how often.

The model knows nothing of populations found, joined or inherited: it keeps, for every person and
level, the releases that read them. Whoever belongs to a population with a budget must have all of
their releases counted there, and no budget may count more than was granted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gapgnn.errors import GapgnnError, PrivacyError
from gapgnn.privacy.accounting import Gaussian, account
from gapgnn.privacy.ledger import Charge, Ledger, People, copy_ledger
from gapgnn.privacy.ledger.rules import LedgerTransaction
from gapgnn.privacy.ledger.store import transaction
from postgres_server import Server

PERSONS = range(7)
RELATION = {"edge": "undirected", "node": "add-remove"}
DELTA = 1e-6
# Noise, and its price alone; the price is what `sum` adds up.
PRICES = {
    noise: float(f"{account([Gaussian(noise)], DELTA, relation='directed').epsilon:.3f}") + 0.001
    for noise in (5.0, 10.0, 20.0)
}

levels = st.sampled_from(["edge", "edge", "edge", "node"])
noises = st.sampled_from(sorted(PRICES))
tables = st.sets(st.sampled_from(PERSONS), min_size=1, max_size=3).map(sorted)


@dataclass
class Copy:
    """One copy of a ledger, and what was truly done under it."""

    ledger: Ledger
    # Releases by person and level: how often each noise was used.
    read: dict[tuple[int, str], Counter[float]] = field(default_factory=dict)
    # Who was named when each population was granted a budget.
    promised: dict[str, set[int]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    charges: dict[str, str | None] = field(default_factory=dict)


class LedgerMachine(RuleBasedStateMachine):
    """Grants, releases, refusals, kills and copies in any order."""

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.tables = 0
        self.copies = [Copy(Ledger.init(self.place()))]
        self.grant(0, "customers", [0, 1], "edge", 4, "gaussian")
        self.grant(0, "staff", [2], "edge", 8, "sum")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def place(self) -> Path | str:
        """Return a place where no ledger is."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "ledger.sqlite"

    def people(self, ids: list[int], as_text: bool) -> People:
        """Return a table that nobody has seen before."""
        self.tables += 1
        order = ids if self.tables % 2 else ids[::-1]
        found = np.array([str(i) for i in order]) if as_text else np.array(order)
        return People(found, f"{self.tables:064x}")

    def copy(self, which: int) -> Copy:
        return self.copies[which % len(self.copies)]

    @rule(
        which=st.integers(0, 9),
        name=st.sampled_from(["customers", "staff", "suppliers", "others"]),
        ids=tables | st.none(),
        level=levels,
        epsilon=st.sampled_from([8, 16, 4, 2]),
        composition=st.sampled_from(["sum", "gaussian", "auto", "renyi"]),
    )
    def grant(
        self,
        which: int,
        name: str,
        ids: list[int] | None,
        level: str,
        epsilon: float,
        composition: str,
    ) -> None:
        copy = self.copy(which)
        people = None if ids is None else self.people(ids, as_text=False)
        stated = {"level": level, "relation": RELATION[level], "composition": composition}
        try:
            copy.ledger.grant(name, people, **stated, epsilon=epsilon, delta=DELTA * 100)  # type: ignore[arg-type]
        except GapgnnError:
            return
        copy.promised.setdefault(name, set()).update(ids or [])

    def spend(self, copy: Copy, ids: list[int], level: str, noise: float, count: int) -> Charge:
        """Charge as a method does."""
        return copy.ledger.charge(
            self.people(ids, as_text=count == 2),
            level=level,
            relation=RELATION[level],
            epsilon=PRICES[noise],
            delta=DELTA,
            events=[Gaussian(noise).to_dict()],
            purpose="machine",
            count=count,
        )

    @rule(
        which=st.integers(0, 9),
        ids=tables,
        level=levels,
        noise=noises,
        count=st.sampled_from([1, 2]),
        is_released=st.booleans(),
    )
    def charge_and_release(
        self, which: int, ids: list[int], level: str, noise: float, count: int, is_released: bool
    ) -> None:
        """Read people and release, or die between the charge and the release."""
        copy = self.copy(which)
        before = copy.ledger.summary()
        try:
            made = self.spend(copy, ids, level, noise, count)
        except PrivacyError:
            assert copy.ledger.summary() == before
            return
        copy.charges[made.id] = None
        if is_released:
            copy.released.add(made.id)
            copy.ledger.complete(made.id)
        for person in ids:
            copy.read.setdefault((person, level), Counter())[noise] += count

    @rule(which=st.integers(0, 9), ids=tables, level=levels, noise=noises)
    def killed_in_the_middle(self, which: int, ids: list[int], level: str, noise: float) -> None:
        """Die inside the transaction: nothing was released, and nothing may be recorded."""
        copy = self.copy(which)
        before = (copy.ledger.summary(), copy.ledger.entries())
        child = os.fork()
        if child == 0:
            # The process is gone at the moment when everything is written and nothing committed.
            from gapgnn.privacy.ledger import chain

            chain.seal_transaction = lambda db, sign: os._exit(0)  # type: ignore[assignment]
            try:
                self.spend(copy, ids, level, noise, 1)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        assert (copy.ledger.summary(), copy.ledger.entries()) == before

    @precondition(lambda self: len(self.copies) < 3)
    @rule(which=st.integers(0, 9))
    def copy_the_ledger(self, which: int) -> None:
        """Both go on by themselves; neither knows of what is then charged to the other."""
        copy = self.copy(which)
        twin = Ledger.init(self.place())
        copy_ledger(copy.ledger.store, twin.store)
        self.copies.append(
            Copy(
                twin,
                {key: Counter(times) for key, times in copy.read.items()},
                {name: set(ids) for name, ids in copy.promised.items()},
                set(copy.released),
                dict(copy.charges),
            )
        )

    @rule(which=st.integers(0, 9), is_stale=st.booleans())
    def claim(self, which: int, is_stale: bool) -> None:
        """Of all copies of a run only the one that knows the last claim goes on."""
        copy = self.copy(which)
        if not copy.charges:
            return
        charge = sorted(copy.charges)[which % len(copy.charges)]
        token = f"{self.tables} {len(copy.charges)} {copy.charges[charge]}"
        if is_stale:
            with pytest.raises(PrivacyError, match="`previous`"):
                copy.ledger.claim(charge, "stale", token)
        else:
            copy.ledger.claim(charge, copy.charges[charge], token)
            copy.charges[charge] = token
        assert copy.ledger.claimed(charge) == copy.charges[charge]

    @rule(ids=tables, level=levels, noise=noises)
    def two_handles_for_the_rest_of_a_budget(
        self, ids: list[int], level: str, noise: float
    ) -> None:
        """Somebody else spends between a reading of the budget and the charge."""
        copy = self.copies[0]
        for _ in range(2):
            handle = Copy(Ledger(copy.ledger.path))
            try:
                made = self.spend(handle, ids, level, noise, 1)
            except PrivacyError:
                continue
            copy.charges[made.id] = None
            for person in ids:
                copy.read.setdefault((person, level), Counter())[noise] += 1

    @rule(which=st.integers(0, 9), ids=tables)
    def until_nothing_is_left(self, which: int, ids: list[int]) -> None:
        """Spend the budget of these people to the end."""
        copy = self.copy(which)
        if not copy.ledger.budgets_of(self.people(ids, as_text=True)):
            return
        for _ in range(8):
            try:
                made = self.spend(copy, ids, "edge", 5.0, 2)
            except PrivacyError:
                return
            copy.charges[made.id] = None
            for person in ids:
                copy.read.setdefault((person, "edge"), Counter())[5.0] += 2

    @invariant()
    def every_promise_is_kept(self) -> None:
        for copy in getattr(self, "copies", []):
            check(copy)


def check(copy: Copy) -> None:
    """Compare a ledger with what was truly done."""
    assert copy.ledger.problems() == []
    entries = copy.ledger.entries()
    assert {entry.id for entry in entries} == set(copy.charges)
    assert copy.released <= {entry.id for entry in entries if entry.completed_at}
    with transaction(copy.ledger.store, writing=False) as db:
        tx = LedgerTransaction(db)
        for population, name in db.execute("SELECT id, name FROM populations").fetchall():
            members = [
                person
                for person in PERSONS
                if tx.members.known(population, tx.hashes(People(np.array([person]), ""))).any()
            ]
            assert copy.promised.get(name, set()) <= set(members)
            for level in RELATION:
                granted = tx.granted(population, level)
                if granted is None:
                    continue
                spends = tx.spends(population, level)
                assert granted[0].allows(spends)
                counted = Counter[Fraction]()
                for spend in spends:
                    counted[spend.amount.epsilon] += spend.count
                for person in members:
                    for noise, times in copy.read.get((person, level), Counter()).items():
                        assert times <= counted[Fraction(repr(PRICES[noise]))], (person, name)
                if granted[0].composition == "gaussian":
                    check_exposure(copy, members, level, float(granted[0].amount.epsilon))


def check_exposure(copy: Copy, members: list[int], level: str, epsilon: float) -> None:
    """Nobody's releases together are more than was granted, by the accountant itself."""
    for person in members:
        times = copy.read.get((person, level))
        if times:
            events = [Gaussian(noise, count=count) for noise, count in times.items()]
            spent = account(events, DELTA * 100, relation=RELATION[level]).epsilon
            assert spent <= epsilon * (1 + 1e-9)


common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=5, stateful_step_count=15, **common)  # type: ignore[arg-type]


@pytest.mark.slow
class TestLedgerAtLength(LedgerMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=150, stateful_step_count=30, **common)  # type: ignore[arg-type]


class ServerMachine(LedgerMachine):
    """The same on a server; every copy is a database."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def place(self) -> str:
        return self.server.fresh()


@pytest.mark.gate
def test_the_same_holds_on_a_server(postgres: Server) -> None:
    run_state_machine_as_test(
        lambda: ServerMachine(postgres),
        settings=settings(max_examples=2, stateful_step_count=12, **common),  # type: ignore[arg-type]
    )


@pytest.mark.slow
def test_the_same_holds_on_a_server_at_length(postgres: Server) -> None:
    run_state_machine_as_test(
        lambda: ServerMachine(postgres),
        settings=settings(max_examples=60, stateful_step_count=30, **common),  # type: ignore[arg-type]
    )
