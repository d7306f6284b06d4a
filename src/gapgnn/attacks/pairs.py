"""Pairs of nodes, and what an attacker computes about a pair from two rows of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError, check_choice
from gapgnn.graph import Graph, csr

Rows = NDArray[np.float64]
Nodes = NDArray[np.int64]
_TINY = 1e-12
# Posteriors below this count as this in logarithms: single precision says no more about them.
_LEAST = 1e-6
OTHERS = ("held-out", "degree", "uniform")
# No more of the edges are held out: the model must still be one of nearly the same graph.
_MOST_HELD_OUT = 0.1


@dataclass(frozen=True)
class Pairs:
    """Some pairs of nodes, and which of them are connected (in either direction)."""

    first: Nodes
    second: Nodes
    linked: NDArray[np.bool_]

    def part(self, chosen: NDArray[np.bool_]) -> Pairs:
        """Return some of the pairs."""
        return Pairs(self.first[chosen], self.second[chosen], self.linked[chosen])


def sample_pairs(
    graph: Graph, count: int, rng: np.random.Generator, *, others: str = "degree"
) -> Pairs:
    """Draw equally many connected and unconnected pairs at random, ``count`` of each at most.

    Args:
        graph: the private graph.
        count: of either kind.
        rng: of the experiment.
        others: how the ends of unconnected pairs are drawn: ``degree``, as often as they are ends
            of edges, so that knowing who has many friends tells nothing; ``uniform``, all alike.

    >>> graph = Graph.from_arcs(range(9), range(1, 10), num_nodes=10, features=np.eye(10))
    >>> int(sample_pairs(graph, 5, np.random.default_rng(0)).linked.sum())
    5
    """
    matrix = _either_way(graph)
    lower, upper = sp.triu(matrix, k=1).nonzero()
    count = min(count, len(lower))
    if count < 2:
        raise DataError(f"The graph must have at least 2 edges to be attacked. Got {len(lower)}.")
    chosen = rng.choice(len(lower), size=count, replace=False)
    is_degree = check_choice("others", others, OTHERS[1:]) == "degree"
    ends = np.concatenate([lower, upper]) if is_degree else np.arange(graph.num_nodes)
    found: set[tuple[int, int]] = set()
    for _ in range(100):
        drawn = np.sort(ends[rng.integers(len(ends), size=(2 * count, 2))], axis=1)
        free = (drawn[:, 0] < drawn[:, 1]) & (_are_linked(matrix, drawn) == 0)
        found.update(map(tuple, drawn[free].tolist()))
        if len(found) >= count:
            break
    if len(found) < count:
        raise DataError("The graph must have as many unconnected pairs as edges. Got fewer.")
    # A set has an order of its own; the draw must depend on the generator alone.
    absent = np.array(sorted(found))
    absent = absent[rng.permutation(len(absent))[:count]]
    first = np.concatenate([lower[chosen], absent[:, 0]]).astype(np.int64)
    second = np.concatenate([upper[chosen], absent[:, 1]]).astype(np.int64)
    return Pairs(first, second, np.arange(2 * count) < count)


def hold_out(graph: Graph, pairs: Pairs, rng: np.random.Generator) -> tuple[Graph, Pairs]:
    """Remove a random half of the edges among some pairs; tell the kept ones from the removed.

    Both kinds are friends, chosen alike by a coin: what friends have in common, how many of them
    somebody has and what a class is like tell nothing about the coin. Only a model that gives away
    the single edges it read does.

    Returns:
        The graph without the removed edges, and the pairs that were connected; ``linked`` says
        which still are.

    >>> graph = Graph.from_arcs(range(9), range(1, 10), num_nodes=10, features=np.eye(10))
    >>> left, pairs = hold_out(graph, all_pairs(graph, np.arange(10)), np.random.default_rng(0))
    >>> left.num_arcs, int(pairs.linked.sum()), len(pairs.linked)
    (10, 5, 9)
    """
    edges = pairs.part(pairs.linked)
    count = len(edges.linked)
    if count < 2:
        raise DataError(f"At least 2 pairs must be connected to hold out an edge. Got {count}.")
    stays = np.zeros(count, dtype=np.bool_)
    stays[rng.permutation(count)[: (count + 1) // 2]] = True

    def names(first: NDArray[Any], second: NDArray[Any]) -> Nodes:
        low, high = np.minimum(first, second), np.maximum(first, second)
        both: Nodes = low.astype(np.int64) * graph.num_nodes + high
        return both

    sources = csr.sources(graph.indptr, np.int64)
    removed = names(edges.first[~stays], edges.second[~stays])
    kept = ~np.isin(names(sources, graph.indices), removed)
    counts = np.bincount(sources[kept], minlength=graph.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    left = graph._replace(indptr=indptr, indices=graph.indices[kept])
    return left, Pairs(edges.first, edges.second, stays)


def held_out_pairs(graph: Graph, count: int, rng: np.random.Generator) -> tuple[Graph, Pairs]:
    """Draw edges at random, ``count`` to keep and ``count`` to remove, a tenth of all at most.

    >>> graph = Graph.from_arcs(range(99), range(1, 100), num_nodes=100, features=np.eye(100))
    >>> left, pairs = held_out_pairs(graph, 5, np.random.default_rng(0))
    >>> left.num_arcs // 2, len(pairs.linked)
    (94, 10)
    """
    lower, upper = sp.triu(_either_way(graph), k=1).nonzero()
    count = min(count, int(_MOST_HELD_OUT * len(lower)))
    if count < 2:
        least = math.ceil(2 / _MOST_HELD_OUT)
        raise DataError(
            f"The graph must have at least {least} edges to hold some out. Got {len(lower)}."
        )
    chosen = rng.choice(len(lower), size=2 * count, replace=False)
    ends = lower[chosen].astype(np.int64), upper[chosen].astype(np.int64)
    return hold_out(graph, Pairs(*ends, np.ones(2 * count, dtype=np.bool_)), rng)


def all_pairs(graph: Graph, nodes: Nodes) -> Pairs:
    """Return every unordered pair of some nodes.

    >>> graph = Graph.from_arcs([0], [2], num_nodes=3, features=np.eye(3))
    >>> all_pairs(graph, np.arange(3)).linked.tolist()
    [False, True, False]
    """
    left, right = np.triu_indices(len(nodes), k=1)
    first, second = nodes[left], nodes[right]
    ends = np.stack([first, second], axis=1)
    return Pairs(first, second, _are_linked(_either_way(graph), ends) > 0)


def _either_way(graph: Graph) -> sp.csr_array:
    matrix = csr.matrix(graph.indptr, graph.indices)
    return matrix if not graph.is_directed else (matrix + matrix.T).tocsr()


def _are_linked(matrix: sp.csr_array, ends: NDArray[np.int64]) -> NDArray[Any]:
    return np.asarray(matrix[ends[:, 0], ends[:, 1]]).reshape(-1).astype(np.int64)


def distances(rows: Rows, pairs: Pairs) -> dict[str, Rows]:
    """Return the eight distances of He et al. (2021) between the rows of every pair.

    >>> pairs = Pairs(np.array([0]), np.array([1]), np.array([True]))
    >>> float(distances(np.array([[1.0, 0.0], [0.0, 1.0]]), pairs)["manhattan"][0])
    2.0
    """
    a, b = rows[pairs.first], rows[pairs.second]
    gap, total = np.abs(a - b), np.abs(a) + np.abs(b)
    return {
        "cosine": 1 - _cosine(a, b),
        "euclidean": np.sqrt((gap**2).sum(axis=1)),
        "correlation": 1 - _cosine(a - a.mean(axis=1)[:, None], b - b.mean(axis=1)[:, None]),
        "chebyshev": gap.max(axis=1),
        "braycurtis": gap.sum(axis=1) / (np.abs(a + b).sum(axis=1) + _TINY),
        "manhattan": gap.sum(axis=1),
        "canberra": (gap / (total + _TINY)).sum(axis=1),
        "squared euclidean": (gap**2).sum(axis=1),
    }


def pair_features(posteriors: Rows, pairs: Pairs) -> Rows:
    """Return what the supervised attacker reads: pairwise operators, distances and entropies.

    Of posteriors and of their logarithms, in which those near 0 and 1 differ too.
    """
    a, b = posteriors[pairs.first], posteriors[pairs.second]
    logs = np.log(np.clip(posteriors, _LEAST, None))
    logs -= logs.mean(axis=1, keepdims=True)
    log_a, log_b = logs[pairs.first], logs[pairs.second]
    entropy = -(posteriors * np.log(posteriors + _TINY)).sum(axis=1)
    left, right = entropy[pairs.first], entropy[pairs.second]
    columns = [(a + b) / 2, a * b, np.abs(a - b), (a - b) ** 2]
    columns += [log_a * log_b, np.abs(log_a - log_b)]
    for rows in (posteriors, logs):
        columns += [column[:, None] for column in distances(rows, pairs).values()]
    entropies = ((left + right) / 2, left * right, np.abs(left - right))
    columns += [column[:, None] for column in entropies]
    return np.concatenate(columns, axis=1)


def _cosine(a: Rows, b: Rows) -> Rows:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine: Rows = (a * b).sum(axis=1) / (norms + _TINY)
    return cosine
