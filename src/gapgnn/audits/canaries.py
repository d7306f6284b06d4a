"""Canaries of one fit: edges, or records at node level, in or out by a secret coin.

**Edge level.** A canary is an edge between two training nodes that the graph does not have. They
are drawn as random perfect matchings of the training nodes, so that each canary has rows of its own
as long as there are enough nodes; beyond that, rows are shared. Training nodes send the code of
their label, which is long and known. Where the graph has no direction, or messages are
symmetrised, an edge moves two rows, and both are read.

**Node level.** A canary is the record of a person of its own: features and label of a training
person drawn at random, and an adjacency list of a few people. No two lists meet. Whether a record
trains is a public hash of its id; ids are drawn until it does.

The pairs or lists that are left over are *references*: drawn by the same rule, never inserted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.audits.scores import Moves
from gapgnn.errors import DataError, InputError
from gapgnn.graph import MASKS, Graph, csr, roles

# References for each canary, where the graph has room for them.
_REFERENCES = 4
_MOST_ROUNDS = 60
FEWEST = 40


@dataclass(frozen=True)
class EdgeCanaries:
    """Canary edges of one graph.

    Attributes:
        graph: with the canaries that are in.
        base: the graph without any.
        ends: of each canary and then of each reference, ``(count, 2)``.
        inside: which of them are in.
        count: of the canaries; the rest are references.
    """

    graph: Graph
    base: Graph
    ends: NDArray[np.int64]
    inside: NDArray[np.bool_]
    count: int

    def moves(self, *, symmetrised: bool) -> Moves:
        """Return which row each canary writes to."""
        source, target = self.ends.T
        number = np.arange(len(source))
        if self.base.is_directed and not symmetrised:
            return Moves(number, target, source)
        return Moves(
            np.concatenate([number, number]),
            np.concatenate([target, source]),
            np.concatenate([source, target]),
        )


def edge_canaries(
    graph: Graph, coins: NDArray[np.bool_], rng: np.random.Generator, *, shared_rows: bool = True
) -> EdgeCanaries:
    """Return canary edges between training nodes, in the graph where a coin says so.

    Args:
        graph: with its split.
        coins: one for each canary.
        rng: draws pairs.
        shared_rows: whether canaries may share rows where there are not enough.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = social_graph(num_nodes=300, mean_degree=4)
    >>> drawn = edge_canaries(graph, np.ones(50, dtype=bool), np.random.default_rng(0))
    >>> drawn.graph.num_edges - graph.num_edges, len(np.unique(drawn.ends[:50]))
    (50, 100)
    """
    if graph.more_edge_types or graph.is_weighted:
        raise InputError(
            "`graph` must have one edge type without weights for an audit of a fit. Got others."
        )
    pool = np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    count = len(coins)
    matrix = csr.matrix(graph.indptr, graph.indices)
    found: list[NDArray[np.int64]] = []
    known: set[tuple[int, int]] = set()
    drawn = 0
    for number in range(_MOST_ROUNDS):
        if drawn >= (count if number == 0 else count * (1 + _REFERENCES)):
            break
        if number and not shared_rows:
            break
        pairs = rng.permutation(pool)[: len(pool) // 2 * 2].reshape(-1, 2)
        free = np.asarray(matrix[pairs[:, 0], pairs[:, 1]]).reshape(-1) == 0
        names = [(min(a, b), max(a, b)) for a, b in pairs.tolist()]
        free &= np.array([name not in known for name in names], dtype=np.bool_)
        known.update(names)
        found.append(pairs[free])
        drawn += len(found[-1])
        if number == 0 and drawn >= 2 * count:
            # Every canary and every reference has rows of its own.
            break
    if drawn < count:
        raise DataError(
            f"`canaries` must be at most {drawn} on this graph, which has {len(pool)} training "
            f"people. Got {count}."
        )
    ends = np.concatenate(found)
    inside = np.zeros(len(ends), dtype=np.bool_)
    inside[:count] = coins
    return EdgeCanaries(_with_edges(graph, ends[inside]), graph, ends, inside, count)


def _with_edges(graph: Graph, ends: NDArray[np.int64]) -> Graph:
    """Return a graph with further edges; everything else stays."""
    sources = np.concatenate([csr.sources(graph.indptr, np.int64), ends[:, 0]])
    targets = np.concatenate([graph.indices.astype(np.int64), ends[:, 1]])
    indptr, indices = csr.build(
        sources,
        targets,
        graph.num_nodes,
        symmetric=not graph.is_directed,
        keep_loops=graph.num_self_loops > 0,
    )
    return graph._replace(indptr=indptr, indices=indices.astype(graph.indices.dtype))


@dataclass(frozen=True)
class RecordCanaries:
    """Canary records of one graph.

    Attributes:
        graph: with the records that are in, which come last.
        people: number of people of the graph without canaries; their rows come first.
        lists: adjacency list of each canary and then of each reference, ``(count, length)``.
        labels: of each.
        donors: whose features each of them has.
        inside: which of them are in.
        count: of the canaries; the rest are references.
    """

    graph: Graph
    people: int
    lists: NDArray[np.int64]
    labels: NDArray[np.int64]
    donors: NDArray[np.int64]
    inside: NDArray[np.bool_]
    count: int

    def moves(self) -> Moves:
        """Return which row each canary writes to; its vector is a row of a table of canaries."""
        number = np.repeat(np.arange(len(self.lists)), self.lists.shape[1])
        return Moves(number, self.lists.ravel(), number)


def record_canaries(
    graph: Graph,
    coins: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    seed: int,
    length: int = 4,
) -> RecordCanaries:
    """Return canary records with lists that do not meet, in the graph where a coin says so.

    Args:
        graph: with its split.
        coins: one for each canary.
        rng: draws lists, features and labels.
        seed: of the split, from which roles follow.
        length: of each list; shorter if the graph has too few people.

    >>> from gapgnn.graph import random_split
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=4), seed=0)
    >>> drawn = record_canaries(graph, np.ones(50, bool), np.random.default_rng(0), seed=0)
    >>> drawn.graph.num_nodes, int(drawn.graph.out_degrees[300:].sum()), len(drawn.lists)
    (350, 150, 100)
    """
    if graph.more_edge_types or graph.is_weighted:
        raise InputError(
            "`graph` must have one edge type without weights for an audit of a fit. Got others."
        )
    count, people = len(coins), graph.num_nodes
    # At least as many references as canaries that are out.
    length = max(1, min(length, people // (2 * count)))
    if people < count:
        raise DataError(f"`canaries` must be at most {people} on this graph. Got {count}.")
    places = rng.permutation(people)
    lists = places[: people // length * length].reshape(-1, length)
    training = np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    donors = training[rng.integers(len(training), size=len(lists))]
    inside = np.zeros(len(lists), dtype=np.bool_)
    inside[:count] = coins
    labels = graph.labels[donors]
    added = np.flatnonzero(inside)
    whole = _with_records(graph, lists[added], donors[added], _new_ids(graph, len(added), seed))
    return RecordCanaries(whole, people, lists, labels, donors, inside, count)


def _new_ids(graph: Graph, count: int, seed: int) -> NDArray[Any]:
    """Return names of new training people: the public hash of (seed, name) says who trains."""
    is_number = graph.ids.dtype.kind in "iu"
    start = int(graph.ids.max()) + 1 if is_number else 0
    numbers = np.arange(start, start + 4 * count + 200)
    names: NDArray[Any] = numbers if is_number else np.array([f"canary {one}" for one in numbers])
    chosen: NDArray[Any] = names[roles(names, seed=seed, train=0.75, val=0.1) == 0][:count]
    if len(chosen) < count:
        raise DataError(f"`seed` must leave {count} new names in training. Got {len(chosen)}.")
    return chosen


def _with_records(
    graph: Graph, lists: NDArray[np.int64], donors: NDArray[np.int64], names: NDArray[Any]
) -> Graph:
    """Return a graph with further training people, each with an adjacency list of its own."""
    added, people = len(lists), graph.num_nodes
    sources = np.repeat(people + np.arange(added), lists.shape[1])
    indptr, indices = csr.build(
        np.concatenate([csr.sources(graph.indptr, np.int64), sources]),
        np.concatenate([graph.indices.astype(np.int64), lists.ravel()]),
        people + added,
        symmetric=False,
        keep_loops=graph.num_self_loops > 0,
    )
    features = graph.features
    more = features[donors]
    masks = {
        mask: np.concatenate([getattr(graph, mask), np.full(added, mask == "train_mask")])
        for mask in MASKS
    }
    dangling: dict[str, Any] = {}
    if graph.dangling_indptr is not None:
        last = graph.dangling_indptr[-1]
        dangling["dangling_indptr"] = np.append(graph.dangling_indptr, np.full(added, last))
    return graph._replace(
        indptr=indptr,
        indices=indices.astype(graph.indices.dtype),
        features=sp.vstack([features, more], format="csr")
        if sp.issparse(features)
        else np.concatenate([features, more]),
        labels=np.concatenate([graph.labels, graph.labels[donors]]),
        ids=np.concatenate([graph.ids, names]),
        is_directed=True,
        **masks,
        **dangling,
    )
