"""Audit of the randomised edges: ARR, EdgeRand and LapGraph, bit by bit.

Two views. In the first, one release of a graph with the density of real ones gives many trials:
canary bits, which are fair coins, are counted among a hundred times as many that are zero. Given
the released number of edges, bits are independent. In the second, the graph is a single bit, so the
released number of edges and the released bit together are the whole output of the mechanism about
this edge; each trial is one release.

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

from gapgnn.audits.aggregation import bare_graph
from gapgnn.audits.bounds import LEAST_TRIALS, Scores
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, confirmed
from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy import Directed, Relation, Undirected, parse_relation
from gapgnn.privacy.mechanisms import (
    COUNT_SHARE,
    PERTURBATIONS,
    Cells,
    PerturbedEdges,
    SafeOrFast,
    perturb_edges,
    perturbation_events,
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
    directed: bool | None = None,
    epsilon: float = 1.0,
    density: float = 0.005,
    trials: int = 1_000_000,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the randomised adjacency and bound its epsilon, at delta 0, from below.

    Relation ``undirected`` or ``directed``: one bit differs, or both arcs of a pair where
    ``undirected`` is promised on a graph with directions (privacy page, sections 5 and 8).

    Args:
        perturbation: ``arr``, ``edgerand`` or ``lapgraph``.
        relation: whose bit: of an unordered or an ordered pair.
        directed: whether the graph has directions; left out: where one arc is protected.
        epsilon: claimed budget.
        density: share of the bits that are 1, up to a half; EdgeRand does not look at it.
        trials: bits that are guessed.
        noise: ``safe`` or ``fast`` coins.
        options: of every audit.

    >>> audit_edges(epsilon=2.0, trials=2_000).holds
    True
    """
    check_choice("perturbation", perturbation, PERTURBATIONS)
    neighbours = parse_relation(check_choice("relation", relation, ("undirected", "directed")))
    if relation == "directed" and directed is False:
        raise InputError(
            "`directed` must be True or left out for relation directed: neighbours differ in one "
            "arc. Got False."
        )
    check_number("epsilon", epsilon, above=0)
    check_number("density", density, above=0, at_most=0.5)
    check_integer("trials", trials, at_least=2 * LEAST_TRIALS)
    # Coins that do not depend on the density need no zeros around them, and there are many.
    around = 0.5 if perturbation == "edgerand" else density
    is_directed = relation == "directed" if directed is None else directed
    attack = _Attack(perturbation, neighbours, epsilon, around, noise, is_directed)
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
            "directed": is_directed,
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
    relation: Relation
    epsilon: float
    density: float
    noise: SafeOrFast
    is_directed: bool

    @property
    def is_pair(self) -> bool:
        """Whether neighbours differ in two bits: both arcs of a pair."""
        return self.is_directed and self.relation == Undirected()

    @property
    def bits(self) -> int:
        """How many bits neighbours differ in."""
        return 1 + self.is_pair

    @property
    def on_count(self) -> float:
        """What the number of edges costs."""
        return self.epsilon * COUNT_SHARE[self.perturbation]

    @property
    def on_bits(self) -> float:
        """What all bits of one edge cost together."""
        return self.epsilon - self.on_count

    @property
    def per_bit(self) -> float:
        """What one bit costs."""
        return self.on_bits / self.bits

    def checks(self) -> list[Check]:
        """Compare what one edge's bits tell with their budget, and their number with the events."""
        accounted = Cells.of(self.relation, num_nodes=2, is_directed=self.is_directed)
        events = perturbation_events(
            self.perturbation, self.epsilon, bits_per_edge=accounted.bits_per_edge
        )
        price = sum(event.times * event.pair(self.relation).pure_epsilon for event in events)
        counted = [
            Check("bits that one edge changes", self.bits, accounted.bits_per_edge),
            Check("epsilon of all events", price, self.epsilon),
        ]
        if self.perturbation == "lapgraph":
            return counted
        densities = (None,) if self.perturbation == "edgerand" else (*_DENSITIES, self.density)
        worst = 0.0
        for density in densities:
            keep, add = response_probabilities(self.per_bit, density)
            worst = max(worst, abs(_log_odds(keep, add)), abs(_log_odds(1 - keep, 1 - add)))
        return [Check("log odds of a released bit", worst, self.per_bit), *counted]

    def many(self, rng: np.random.Generator, worlds: NDArray[np.bool_]) -> Scores:
        """Release one graph in which canary bits lie scattered among zeros."""
        per_pair = 2 if self.relation == Undirected() else 1
        wanted = len(worlds) * 0.5 / self.density
        num_nodes = 1 + math.ceil(math.sqrt(per_pair * wanted))
        cells = Cells(num_nodes, is_paired=self.relation == Undirected())
        canaries = rng.choice(cells.count, size=len(worlds), replace=False, shuffle=False)
        released = self._release(*cells.ends(canaries[worlds]), num_nodes)
        ends = np.repeat(np.arange(num_nodes), np.diff(released.indptr)), released.indices
        # Of a pair of arcs both bits are read, which come out under the same number.
        numbers, counts = np.unique(cells.number(*ends), return_counts=True)
        if released.is_symmetric:
            counts = counts // 2
        place = np.minimum(np.searchsorted(numbers, canaries), len(numbers) - 1)
        out = np.zeros(len(canaries))
        if len(numbers):
            out = np.where(numbers[place] == canaries, counts[place], 0).astype(np.float64)
        # Either bit may indicate the edge.
        return np.stack([out, -out])

    def one_by_one(self, worlds: NDArray[np.bool_]) -> Scores:
        """Release a graph of one pair per trial; score its count and its bit together."""
        scores = np.empty((3, len(worlds)))
        for trial, world in enumerate(worlds.tolist()):
            sources = np.zeros(int(world), dtype=np.int64)
            released = self._release(sources, sources + 1, 2)
            # On a graph without directions an edge is in both lists.
            bits = len(released.indices) // (1 + released.is_symmetric)
            if self.relation == Directed():
                bits = int(released.indptr[1] - released.indptr[0])
            likelihood = self._likelihood(released.noisy_edges, bits)
            scores[:, trial] = likelihood, released.noisy_edges or 0.0, bits
        return scores

    def _cells(self, num_nodes: int) -> Cells:
        return Cells.of(self.relation, num_nodes=num_nodes, is_directed=self.is_directed)

    def _release(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_nodes: int
    ) -> PerturbedEdges:
        if self.is_pair:
            sources, targets = np.append(sources, targets), np.append(targets, sources)
        return perturb_edges(
            bare_graph(sources, targets, num_nodes, directed=self.is_directed),
            perturbation=self.perturbation,
            epsilon=self.epsilon,
            relation=self.relation,
            key=NoiseKey.fresh(),
            noise=self.noise,
        )

    def _likelihood(self, noisy_edges: float | None, bits: int) -> float:
        """Return the log likelihood ratio of "there is an edge" on the graph of one edge."""
        ratio = 0.0
        density = None
        if noisy_edges is not None:
            ratio = (abs(noisy_edges) - abs(noisy_edges - self.bits)) * self.on_count / self.bits
            cells = self._cells(2).count
            density = min(1.0, max(0.0, noisy_edges / cells))
        if self.perturbation == "lapgraph":
            # The bits of an edge alone follow from the count, but for which of two.
            return ratio
        keep, add = response_probabilities(self.per_bit, density)
        missing = self.bits - bits
        return ratio + bits * _log_odds(keep, add) + missing * _log_odds(1 - keep, 1 - add)


def _log_odds(one: float, other: float) -> float:
    """Return the logarithm of how much more probable an answer is for one bit than the other."""
    if one == other:
        return 0.0
    if min(one, other) <= 0:
        return math.copysign(_SURE, one - other)
    return math.log(one / other)
