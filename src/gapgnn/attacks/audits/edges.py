"""Audit of the randomised edges: ARR, EdgeRand and LapGraph, bit by bit.

Two views. In the first, one release of a graph with the density of real ones gives many trials:
canary bits, which are fair coins, are counted among a hundred times as many that are zero. Given
the released number of edges, bits are independent. In the second, the graph is a single bit, so the
released number of edges and the released bit together tell as much about one edge as the mechanism
ever does; each trial is a release of its own.

One thing needs no trials: the two probabilities by which the shipped code answers must be within
the budget of each other, at any density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks.audits.aggregation import bare_graph
from gapgnn.attacks.audits.bounds import LEAST_TRIALS, Scores
from gapgnn.attacks.audits.report import Attempt, AuditReport, Check, Options, confirmed
from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy.mechanisms import (
    COUNT_SHARE,
    PERTURBATIONS,
    Cells,
    PerturbedEdges,
    SafeOrFast,
    perturb_edges,
    response_probabilities,
)
from gapgnn.rng import NoiseKey

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Canary bits of one release; and the trials that are releases of a single bit, of which each takes
# as long as thousands of the others.
_MOST_CANARIES = 1_000_000
_SINGLE_SHARE = 10
_MOST_SINGLE = 2_000
_SINGLE_AT_ONCE = 1_000
# In place of the infinite odds of an answer that only one of the two bits can give.
_SURE = 1e3
# Densities, as shares, at which the probabilities of the response are compared.
_DENSITIES = (1e-6, 1e-4, 0.005, 0.05, 0.5, 1.0)


def audit_edges(
    *,
    perturbation: str = "arr",
    relation: str = "undirected",
    epsilon: float = 1.0,
    density: float = 0.005,
    trials: int = 1_000_000,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the randomised adjacency and bound its epsilon, at delta 0, from below.

    Relation ``undirected`` or ``directed``: one bit differs (privacy page, sections 5 and 8).

    Args:
        perturbation: ``arr``, ``edgerand`` or ``lapgraph``.
        relation: whose bit: of an unordered or an ordered pair.
        epsilon: claimed budget.
        density: share of the bits that are 1, up to a half; EdgeRand does not look at it.
        trials: bits that are guessed.
        noise: ``safe`` or ``fast`` coins.
        options: of every audit.

    >>> audit_edges(epsilon=2.0, trials=2_000).holds
    True
    """
    check_choice("perturbation", perturbation, PERTURBATIONS)
    check_choice("relation", relation, ("undirected", "directed"))
    check_number("epsilon", epsilon, above=0)
    check_number("density", density, above=0, at_most=0.5)
    check_integer("trials", trials, at_least=2 * LEAST_TRIALS)
    # Coins that do not depend on the density need no zeros around them, and there are many.
    around = 0.5 if perturbation == "edgerand" else density
    attack = _Attack(perturbation, relation, epsilon, around, noise)
    checks = attack.checks()
    single = min(_MOST_SINGLE, max(LEAST_TRIALS, trials // _SINGLE_SHARE))

    def attempt(run: Attempt) -> AuditReport:
        scattered = partial(attack.many, run.rng)
        many = run.run(scattered, count=trials - single, at_once=_MOST_CANARIES)
        one = run.run(attack.one_by_one, count=single, at_once=_SINGLE_AT_ONCE)
        views = {"bits of large releases": many, "single bit with its count": one}
        details = {
            "perturbation": perturbation,
            "relation": relation,
            "density": density,
            "noise": noise,
        }
        return run.conclude(views, epsilon=epsilon, delta=0.0, details=details, checks=checks)

    try:
        return confirmed("edges", attempt, trials, **options)
    except InputError:
        # Probabilities that are far off are refused by the coins: the check has the last word.
        if all(check.holds for check in checks):
            raise
        confidence = options.get("confidence", 0.95)
        return AuditReport("edges", epsilon, 0.0, 0.0, confidence, 0, {"bounds": {}}, tuple(checks))


@dataclass(frozen=True)
class _Attack:
    """Releases graphs with known bits and scores what comes out."""

    perturbation: str
    relation: str
    epsilon: float
    density: float
    noise: SafeOrFast

    @property
    def on_count(self) -> float:
        """What the number of edges costs."""
        return self.epsilon * COUNT_SHARE[self.perturbation]

    @property
    def on_bits(self) -> float:
        """What one bit costs."""
        return self.epsilon - self.on_count

    def checks(self) -> list[Check]:
        """Compare the log odds of what one bit comes out as with the budget of the bits."""
        if self.perturbation == "lapgraph":
            return []
        densities = (None,) if self.perturbation == "edgerand" else (*_DENSITIES, self.density)
        worst = 0.0
        for density in densities:
            keep, add = response_probabilities(self.on_bits, density)
            worst = max(worst, abs(_log_odds(keep, add)), abs(_log_odds(1 - keep, 1 - add)))
        return [Check("log odds of a released bit", worst, self.on_bits)]

    def many(self, rng: np.random.Generator, worlds: NDArray[np.bool_]) -> Scores:
        """Release one graph in which canary bits lie scattered among zeros."""
        per_pair = 2 if self.relation == "undirected" else 1
        wanted = len(worlds) * 0.5 / self.density
        num_nodes = 1 + math.ceil(math.sqrt(per_pair * wanted))
        cells = self._cells(num_nodes)
        canaries = rng.choice(cells.count, size=len(worlds), replace=False, shuffle=False)
        sources, targets = cells.ends(canaries[worlds])
        released = self._release(sources, targets, num_nodes)
        ends = np.repeat(np.arange(num_nodes), np.diff(released.indptr)), released.indices
        out = np.isin(canaries, cells.number(*ends)).astype(np.float64)
        # Either answer may be the telling one.
        return np.stack([out, -out])

    def one_by_one(self, worlds: NDArray[np.bool_]) -> Scores:
        """Release a graph of one pair per trial; score its count and its bit together."""
        scores = np.empty((3, len(worlds)))
        for trial, world in enumerate(worlds.tolist()):
            sources = np.zeros(int(world), dtype=np.int64)
            released = self._release(sources, sources + 1, 2)
            bit = bool(released.indptr[1] > released.indptr[0])
            told = self._likelihood(released.noisy_edges, bit)
            scores[:, trial] = told, released.noisy_edges or 0.0, bit
        return scores

    def _cells(self, num_nodes: int) -> Cells:
        is_directed = self.relation == "directed"
        return Cells.of(self.relation, num_nodes=num_nodes, is_directed=is_directed)

    def _release(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_nodes: int
    ) -> PerturbedEdges:
        return perturb_edges(
            bare_graph(sources, targets, num_nodes, directed=self.relation == "directed"),
            perturbation=self.perturbation,
            epsilon=self.epsilon,
            relation=self.relation,
            key=NoiseKey.fresh(),
            noise=self.noise,
        )

    def _likelihood(self, noisy_edges: float | None, bit: bool) -> float:
        """Return the log likelihood ratio of "there is an edge" on the graph of one cell."""
        ratio = 0.0
        density = None
        if noisy_edges is not None:
            ratio = (abs(noisy_edges) - abs(noisy_edges - 1)) * self.on_count
            cells = self._cells(2).count
            density = min(1.0, max(0.0, noisy_edges / cells))
        if self.perturbation == "lapgraph":
            # The bit of a single cell follows from the count.
            return ratio
        keep, add = response_probabilities(self.on_bits, density)
        return ratio + (_log_odds(keep, add) if bit else _log_odds(1 - keep, 1 - add))


def _log_odds(one: float, other: float) -> float:
    """Return the logarithm of how much more probable an answer is for one bit than the other."""
    if one == other:
        return 0.0
    if min(one, other) <= 0:
        return math.copysign(_SURE, one - other)
    return math.log(one / other)
