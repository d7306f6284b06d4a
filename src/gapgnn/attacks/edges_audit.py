"""Audit of the randomised edges: ARR, EdgeRand and LapGraph, bit by bit.

Two views. In the first, one release of a graph whose cells are all fair coins gives one trial per
cell: given the released number of edges, cells are independent. In the second, the graph is a
single cell, so the released number of edges and the released bit together tell as much about one
edge as the mechanism ever does; each trial is a release of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks.bounds import LEAST_TRIALS, Trials, coins
from gapgnn.attacks.report import AuditReport, View, conclude, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.graph.graph import Graph
from gapgnn.privacy.cells import Cells
from gapgnn.privacy.edges import (
    COUNT_SHARE,
    PERTURBATIONS,
    PerturbedEdges,
    perturb_edges,
    response_probabilities,
)
from gapgnn.privacy.noise import Construction
from gapgnn.rng import NoiseKey, experiment_rng

Progress = Callable[[int, int], None]
# Cells of one release, and the share of the trials that are releases of a single cell.
_MOST_CELLS = 100_000
_SINGLE_SHARE = 10


def audit_edges(
    *,
    perturbation: str = "arr",
    relation: str = "undirected",
    epsilon: float = 1.0,
    trials: int = 100_000,
    confidence: float = 0.95,
    construction: Construction = "safe",
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the randomised adjacency and bound its epsilon, at delta 0, from below.

    Relation ``undirected`` or ``directed``: one bit differs (privacy page, sections 5 and 8).

    Args:
        perturbation: ``arr``, ``edgerand`` or ``lapgraph``.
        relation: whose bit: of an unordered or an ordered pair.
        epsilon: claimed budget.
        trials: bits that are guessed.
        confidence: of the lower bound.
        construction: ``safe`` or ``fast`` coins.
        seed: of the bits; the mechanism's own coins are always secret.
        progress: called with finished and all trials.

    >>> audit_edges(epsilon=2.0, trials=2_000).holds
    True
    """
    check_choice("perturbation", perturbation, PERTURBATIONS)
    check_choice("relation", relation, ("undirected", "directed"))
    check_number("epsilon", epsilon, above=0)
    check_integer("trials", trials, at_least=2 * LEAST_TRIALS)
    attack = _Attack(perturbation, relation, epsilon, construction)

    def attempt(number: int) -> AuditReport:
        rng = experiment_rng(seed, "audit edges", number)
        single = max(LEAST_TRIALS, trials // _SINGLE_SHARE)
        parts, done = [], 0
        while done < trials - single:
            parts.append(attack.many(rng, min(_MOST_CELLS, trials - single - done)))
            done += len(parts[-1].worlds)
        if progress is not None:
            progress(done, trials)
        views = [
            View("bits of large releases", Trials.joined(parts)),
            View("single bit with its count", attack.one_by_one(coins(rng, single), progress)),
        ]
        details = {"perturbation": perturbation, "relation": relation, "noise": construction}
        return conclude(
            "edges",
            views,
            epsilon=epsilon,
            delta=0.0,
            confidence=confidence,
            details=details,
        )

    return confirmed(attempt)


class _Attack:
    """Releases graphs with known bits and scores what comes out."""

    def __init__(
        self, perturbation: str, relation: str, epsilon: float, construction: Construction
    ) -> None:
        self.perturbation = perturbation
        self.relation = relation
        self.epsilon = epsilon
        self.construction = construction
        self.on_count = epsilon * COUNT_SHARE[perturbation]
        self.on_bits = epsilon - self.on_count

    def many(self, rng: np.random.Generator, wanted: int) -> Trials:
        """Release one graph of about ``wanted`` cells, all of them fair coins."""
        per_pair = 2 if self.relation == "undirected" else 1
        num_nodes = max(12, math.ceil(math.sqrt(per_pair * wanted)))
        cells = self._cells(num_nodes)
        worlds = coins(rng, cells.count)
        sources, targets = cells.ends(np.flatnonzero(worlds))
        released = self._release(sources, targets, num_nodes)
        out = np.zeros(cells.count)
        ends = np.repeat(np.arange(num_nodes), np.diff(released.indptr)), released.indices
        out[cells.number(*ends)] = 1
        return Trials(out[None], worlds)

    def one_by_one(self, worlds: NDArray[np.bool_], progress: Progress | None) -> Trials:
        """Release a graph of one pair per trial; score its count and its bit together."""
        scores = np.empty((2, len(worlds)))
        for trial, world in enumerate(worlds.tolist()):
            sources = np.zeros(int(world), dtype=np.int64)
            released = self._release(sources, sources + 1, 2)
            bit = bool(released.indptr[1] > released.indptr[0])
            scores[:, trial] = self._likelihood(released.noisy_edges, bit), self._count(released)
            if progress is not None and trial % 1000 == 999:
                progress(trial + 1, len(worlds))
        return Trials(scores, worlds)

    def _cells(self, num_nodes: int) -> Cells:
        is_directed = self.relation == "directed"
        return Cells.of(self.relation, num_nodes=num_nodes, is_directed=is_directed)

    def _release(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64], num_nodes: int
    ) -> PerturbedEdges:
        graph = Graph.from_arcs(
            sources,
            targets,
            num_nodes=num_nodes,
            features=np.zeros((num_nodes, 1), dtype=np.float32),
            directed=self.relation == "directed",
        )
        return perturb_edges(
            graph,
            perturbation=self.perturbation,
            epsilon=self.epsilon,
            relation=self.relation,
            key=NoiseKey.fresh(),
            construction=self.construction,
        )

    def _count(self, released: PerturbedEdges) -> float:
        return 0.0 if released.noisy_edges is None else released.noisy_edges

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
        if keep == 0:
            return ratio
        return ratio + (math.log(keep / add) if bit else math.log((1 - keep) / (1 - add)))
