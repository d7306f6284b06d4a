"""Budgets through fits, predictions, kills, resumes and copies, in any order.

The machine looks at what anybody could see, models and unfinished folders, and adds up for every
person how much of the noisy hops that read them are there. Two draws of one hop are two releases,
whoever made them. A ledger must have charged at least that to the person's population, and never
more than was granted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journalcases import KillError
from safetensors.torch import load_file

from gapgnn import GAP, Graph, Ledger
from gapgnn.errors import GapgnnError
from gapgnn.graph.transforms import random_split
from gapgnn.privacy import Undirected, parse_relation
from gapgnn.privacy.checkpoint import Checkpoint
from gapgnn.privacy.ledger import People
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.privacy.ledger.rules import Amount
from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation

SIZE, DELTA = 30, 1e-4
OPTIONS = {"level": "edge", "epochs": 1, "delta": DELTA}

months = st.integers(0, 3)
kills = st.sampled_from([None, None, 0, 1])


def table(month: int) -> Graph:
    """Return one month's graph: some people go, some come, everybody's edges change."""
    rng = np.random.default_rng(month)
    ids = np.arange(SIZE) + 7 * month
    graph = Graph.from_arcs(
        *rng.integers(0, SIZE, size=(2, 80)),
        num_nodes=SIZE,
        features=np.eye(3, dtype=np.float32)[ids % 3],
        labels=ids % 3,
        ids=ids.astype(str) if month % 2 else ids,
        label_names=("a", "b", "c"),
    )
    return random_split(graph, seed=0)


TABLES = [table(month) for month in range(4)]


class BudgetMachine(RuleBasedStateMachine):
    """What a team does with one ledger in a year, careless and killed."""

    @initialize(epsilon=st.sampled_from([1.5, 2.5, 4.0]))
    def begin(self, epsilon: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.ledger = Ledger.init(self.folder / "0.sqlite")
        self.stale = self._copied()
        self.models: list[GAP] = []
        self.unfinished: list[tuple[Path, int]] = []
        self.made = 0
        self.ledger.grant(
            "customers",
            People.of(TABLES[0]),
            level="edge",
            relation="undirected",
            epsilon=epsilon,
            delta=DELTA,
        )

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def _copied(self) -> Ledger:
        return Ledger(shutil.copy(self.ledger.path, f"{self.ledger.path}.copy"))

    def _new_folder(self) -> Path:
        self.made += 1
        return self.folder / f"{self.made}.unfinished"

    def _fit(self, month: int, folder: Path, *, resume: bool, kill: int | None) -> None:
        """Fit; killed before one of the hops, the folder stays behind."""
        real = PrivateAggregation.hop

        def hop(mechanism, rows, index, **options):
            if kill is not None and index > kill:
                raise KillError
            return real(mechanism, rows, index, **options)

        checkpoint = Checkpoint(folder, ledger=self.ledger.path, resume=resume)
        try:
            with mock.patch.object(PrivateAggregation, "hop", hop):
                model = GAP(**OPTIONS, epsilon=1.0, ledger=self.ledger.path)
                model.fit(TABLES[month], checkpoint=checkpoint)
        except KillError:
            if not resume:
                self.unfinished.append((folder, month))
        except GapgnnError:
            pass
        else:
            self.models.append(model)
            checkpoint.remove()
            self.unfinished = [pair for pair in self.unfinished if pair[0] != folder]
        finally:
            checkpoint.close()

    @rule(month=months, kill=kills)
    def fit(self, month: int, kill: int | None) -> None:
        self._fit(month, self._new_folder(), resume=False, kill=kill)

    @precondition(lambda self: self.unfinished)
    @rule(which=st.integers(0, 9), kill=kills)
    def resume(self, which: int, kill: int | None) -> None:
        folder, month = self.unfinished[which % len(self.unfinished)]
        self._fit(month, folder, resume=True, kill=kill)

    @precondition(lambda self: self.unfinished)
    @rule(which=st.integers(0, 9))
    def copy_folder(self, which: int) -> None:
        folder, month = self.unfinished[which % len(self.unfinished)]
        copy = self._new_folder()
        shutil.copytree(folder, copy)
        self.unfinished.append((copy, month))

    @rule(month=months)
    def resume_a_run_and_its_copy(self, month: int) -> None:
        folder, copy = self._new_folder(), self._new_folder()
        self._fit(month, folder, resume=False, kill=0)
        if folder.exists():
            shutil.copytree(folder, copy)
            self.unfinished.append((copy, month))
            # Neither is finished, so nothing but the claim on the charge keeps them apart.
            self._fit(month, folder, resume=True, kill=1)
            self._fit(month, copy, resume=True, kill=1)

    @precondition(lambda self: self.models)
    @rule(which=st.integers(0, 9), month=months)
    def predict(self, which: int, month: int) -> None:
        model = self.models[which % len(self.models)]
        model.set_params(ledger=self.ledger.path)
        with suppress(GapgnnError):
            model.predict(TABLES[month])

    @precondition(lambda self: self.models)
    @rule(which=st.integers(0, 9))
    def predict_from_the_folder_with_a_stale_ledger(self, which: int) -> None:
        """What an old copy does not know it must not answer for, and nothing may be drawn."""
        model = self.models[which % len(self.models)]
        folder = self.folder / f"saved {self.made}"
        shutil.rmtree(folder, ignore_errors=True)
        model.save(folder)
        loaded = GAP.load(folder, ledger=self.stale.path)
        before = set(loaded.releases_.hops)
        if any(self.stale.graph_of(release) is None for release in before):
            with pytest.raises(GapgnnError):
                loaded.predict(TABLES[0])
            assert set(loaded.releases_.hops) == before

    @rule()
    def move_the_ledger(self) -> None:
        """Go on with a copy of the ledger, as after a restore, and keep the old one as stale."""
        self.made += 1
        moved = self.folder / f"{self.made}.sqlite"
        self.stale = Ledger(shutil.copy(self.ledger.path, f"{moved}.stale"))
        self.ledger = Ledger(shutil.copy(self.ledger.path, moved))

    def _visible(self) -> dict[bytes, tuple[str, np.ndarray]]:
        """Return every noisy hop that is anywhere, with its charge and whom it read."""
        found: dict[bytes, tuple[str, np.ndarray]] = {}
        for model in self.models:
            for release, hops in model.releases_.hops.items():
                for hop in hops.hops[1:]:
                    key = hashlib.sha256(hop.numpy().tobytes()).digest()
                    found[key] = release, hops.ids
        for folder, month in self.unfinished:
            if not folder.exists():
                continue
            charge = json.loads((folder / "journal.json").read_text())["states"][-1]["charge"]
            for path in folder.glob("hop-*.safetensors"):
                hop = load_file(path)["hop"][0]
                key = hashlib.sha256(hop.numpy().tobytes()).digest()
                found[key] = charge, TABLES[month].ids
        return found

    @invariant()
    def every_release_is_charged_and_no_budget_is_exceeded(self) -> None:
        charges = {}
        for entry in self.ledger.entries():
            charges[entry.id] = entry
        exposure: defaultdict[int, float] = defaultdict(float)
        visible = self._visible().values()
        drawn = Counter(charge for charge, _ in visible)
        for charge, ids in visible:
            # A release whose charge is in no ledger that goes on would be free.
            (event,) = charges[charge].events
            assert drawn[charge] <= event["count"]
            for person in ids.astype(int).tolist():
                exposure[person] += 1 / event["noise_multiplier"] ** 2
        (budget,) = [row for row in self.ledger.summary() if row.granted_epsilon is not None]
        granted = Amount.of(budget.granted_epsilon, DELTA)
        rule = Filter.granted("gaussian", "edge", Undirected(), granted)
        spends = [
            Spend(
                parse_relation(c.relation),
                Amount.of(c.epsilon, c.delta),
                c.count,
                json.dumps(list(c.events)),
            )
            for c in charges.values()
            if c.population == "customers"
        ]
        used = rule._used(spends)
        assert used <= rule.room
        assert max(exposure.values(), default=0.0) <= used * (1 + 1e-9)


quick = settings(
    max_examples=8,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestBudgets(BudgetMachine.TestCase):
    settings = quick


@pytest.mark.slow
class TestBudgetsForLong(BudgetMachine.TestCase):
    settings = settings(quick, max_examples=100, stateful_step_count=25)
