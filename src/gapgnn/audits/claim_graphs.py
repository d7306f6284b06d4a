"""Graphs for auditing a program of somebody else: a simple format, canaries, and neighbours.

A graph folder holds (docs/how-to/audit-programs.md):

- ``graph.json``: ``nodes``, ``features``, ``classes``, ``directed``, ``seed`` (public);
- ``edges.csv``: ``source,target``, positions from 0; an undirected edge is listed once;
- ``features.npy``: float32, nodes x features;
- ``labels.npy``: int64, -1 where unknown;
- ``train.npy``: bool, who trains.

A withdrawn record keeps its position: its features are zero, its label is -1, it does not train and
its own adjacency list is empty. The number of nodes is public.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Nodes = NDArray[np.int64]
CLASSES = 3
# Columns: one of each class, one that all canaries share, and one of each canary.
SHARED, OWN = CLASSES, CLASSES + 1
_BACKGROUND = 90
_SMALL, _FEATURES, _LONG = 40, 6, 10


@dataclass(frozen=True)
class ClaimGraph:
    """A graph as a program under audit reads it.

    >>> graph = small_graph(directed=False)
    >>> graph.features.shape, len(graph.edges)
    ((40, 6), 0)
    """

    edges: Nodes
    features: NDArray[np.float32]
    labels: Nodes
    train: NDArray[np.bool_]
    directed: bool

    def write(self, folder: Path, *, seed: int) -> None:
        """Write the graph folder."""
        folder.mkdir(parents=True)
        about = {
            "nodes": len(self.labels),
            "features": int(self.features.shape[1]),
            "classes": CLASSES,
            "directed": self.directed,
            "seed": seed,
        }
        (folder / "graph.json").write_text(json.dumps(about), encoding="utf-8")
        lines = ["source,target", *(f"{source},{target}" for source, target in self.edges.tolist())]
        (folder / "edges.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        np.save(folder / "features.npy", self.features.astype(np.float32))
        np.save(folder / "labels.npy", self.labels.astype(np.int64))
        np.save(folder / "train.npy", self.train)

    def without_record(self, node: int) -> ClaimGraph:
        """Return the graph after a record was withdrawn."""
        features, labels, train = self.features.copy(), self.labels.copy(), self.train.copy()
        features[node], labels[node], train[node] = 0, -1, False
        kept = self.edges[self.edges[:, 0] != node]
        return replace(self, edges=kept, features=features, labels=labels, train=train)


@dataclass(frozen=True)
class CanaryGraph:
    """A graph with canaries, and where to look for each of them.

    Attributes:
        graph: to run on.
        nodes: positions of sender and receiver of each canary, ``(count, 2)``.
        columns: the feature column of each canary's own.
        labels: of the senders, also of those that are out.
    """

    graph: ClaimGraph
    nodes: Nodes
    columns: Nodes
    labels: Nodes


def canary_graph(
    inside: NDArray[np.bool_], rng: np.random.Generator, *, level: str, directed: bool
) -> CanaryGraph:
    """Return a graph with one canary for each coin, beside people of three classes.

    A canary is a sender and a receiver that know nobody else. At edge level the coin decides
    whether they are connected; at node level whether the sender has a record, which lists the
    receiver. Each sender has a feature that all senders share and one of its own.

    >>> coins = np.array([True, False])
    >>> drawn = canary_graph(coins, np.random.default_rng(0), level="edge", directed=False)
    >>> drawn.graph.features.shape, drawn.nodes.tolist()
    ((94, 6), [[90, 92], [91, 93]])
    """
    count = len(inside)
    people = _BACKGROUND + 2 * count
    labels = rng.integers(CLASSES, size=people)
    features = np.zeros((people, OWN + count), dtype=np.float32)
    features[np.arange(people), labels] = 1
    senders = _BACKGROUND + np.arange(count)
    receivers = senders + count
    columns = OWN + np.arange(count)
    features[senders] = 0
    features[senders, SHARED] = features[senders, columns] = 1
    background = rng.integers(_BACKGROUND, size=(4 * _BACKGROUND, 2))
    alike = labels[background[:, 0]] == labels[background[:, 1]]
    proper = background[:, 0] != background[:, 1]
    background = np.unique(np.sort(background[proper & alike], axis=1), axis=0)
    graph = ClaimGraph(
        background,
        features,
        labels,
        rng.random(people) < 0.75,
        directed,
    )
    graph.train[senders] = graph.train[receivers] = True
    chosen = senders if level == "node" else senders[inside]
    links = np.stack([chosen, chosen + count], axis=1)
    graph = replace(graph, edges=np.concatenate([background, links]))
    known = labels[senders]
    if level == "node":
        absent = senders[~inside]
        graph.features[absent], graph.labels[absent], graph.train[absent] = 0, -1, False
        graph = replace(graph, edges=graph.edges[~np.isin(graph.edges[:, 0], absent)])
    return CanaryGraph(graph, np.stack([senders, receivers], axis=1), columns, known)


def small_graph(*, directed: bool) -> ClaimGraph:
    """Return a small graph without edges."""
    labels = np.arange(_SMALL) % CLASSES
    features = np.zeros((_SMALL, _FEATURES), dtype=np.float32)
    features[np.arange(_SMALL), np.arange(_SMALL) % _FEATURES] = 1
    train = np.arange(_SMALL) % 4 != 3
    return ClaimGraph(np.zeros((0, 2), dtype=np.int64), features, labels, train, directed)


def neighbours(level: str, *, directed: bool) -> Iterator[tuple[str, ClaimGraph, ClaimGraph]]:
    """Yield pairs of neighbouring graphs in which a statistic of degrees changes at once.

    The first of each pair has the edge or the record in question.

    >>> [name for name, _, _ in neighbours("edge", directed=False)]
    ['first edge', 'largest degree', 'median degree', 'upper tenth', 'upper twentieth']
    >>> [name for name, _, _ in neighbours("node", directed=True)]
    ['only record', 'largest degree', 'median degree', 'upper tenth', 'upper twentieth', 'label']
    """
    empty = small_graph(directed=directed)
    if level == "edge":
        one = np.array([[0, 1]])
        yield "first edge", replace(empty, edges=one), empty
        for name, share in _QUANTILES:
            edges, more = _edges_at(share)
            with_it = np.concatenate([edges, more])
            yield name, replace(empty, edges=with_it), replace(empty, edges=edges)
        return
    whole = replace(empty, edges=_lists([0], 1))
    yield "only record", whole, whole.without_record(0)
    for name, share in _QUANTILES:
        # So many long lists that the quantile is long with the record and short without it.
        few = 1 if share == 1.0 else 2 + sum(share < place / _SMALL for place in range(_SMALL))
        rest = _lists(range(few, _SMALL), 1)
        whole = replace(empty, edges=np.concatenate([_lists(range(few), _LONG), rest]))
        yield name, whole, whole.without_record(0)
    whole = replace(empty, edges=_lists(range(_SMALL), 1))
    whole.labels[:] = np.where(np.arange(_SMALL) == 0, 2, np.arange(_SMALL) % 2)
    yield "label", whole, whole.without_record(0)


_QUANTILES = (
    ("largest degree", 1.0),
    ("median degree", 0.5),
    ("upper tenth", 0.9),
    ("upper twentieth", 0.95),
)


def _lists(owners: range | list[int], length: int) -> Nodes:
    """Return adjacency lists of so many entries."""
    rows = [[owner, (owner + 1 + step) % _SMALL] for owner in owners for step in range(length)]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _edges_at(share: float) -> tuple[Nodes, Nodes]:
    """Return edges by which most people have degree 1 and the others 2, and one edge more.

    With it two more people have degree 2, and the quantile of degrees moves.
    """
    many = max(0, round((1 - share) * _SMALL))
    many -= many % 2
    # Paths of four people have two of degree 2; all others are in pairs.
    paths = many // 2
    rows = [[4 * place + step, 4 * place + step + 1] for place in range(paths) for step in range(3)]
    rows += [[place, place + 1] for place in range(4 * paths, _SMALL - 1, 2)]
    # Where everybody is in a path, the ends of one are joined.
    more = [[_SMALL - 3, _SMALL - 2]] if _SMALL - 4 * paths >= 4 else [[0, 3]]
    return np.array(rows, dtype=np.int64).reshape(-1, 2), np.array(more, dtype=np.int64)
