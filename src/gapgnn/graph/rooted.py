"""The sub-graph of a root: everybody who reaches it along at most r arcs of cut adjacency lists.

An arc u -> v means that u sends to v. A root's sub-graph of r layers holds the root, and layer by
layer whoever sends to somebody in it: exactly the records that r layers of message passing carry to
the root. Arcs lead to nodes within r - 1 arcs of the root; those between the farthest nodes have no
influence on the root's row and are left out.

Node level. Adjacency lists are cut by a keyed hash (:mod:`gapgnn.graph.degree`), so what is kept of
a list is a function of that list. A sub-graph changes with a record only if the record is in it,
and the nodes of a sub-graph are numbered in the order of the graph, the root first: who is not in
it has no influence on its numbers either.

With ``keep`` below 1 every arc stays in a root's sub-graph with that probability, by a coin of its
own for every step, root and arc. The coins are SipHash-2-4 of (root, source, target) under a secret
of the step. That is a pseudorandom function, and the amplification rests on it as Poisson batches
rest on their coins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_integer, check_number
from gapgnn.graph import csr
from gapgnn.graph.degree import BoundedAdjacency, split_key
from gapgnn.graph.people import Words, encode_ids, siphash_128
from gapgnn.rng import NoiseKey


class Subgraph(NamedTuple):
    """What one root's example reads.

    Attributes:
        nodes: positions in the graph; the root comes first.
        edges: sources and targets of the arcs as positions in ``nodes``, ``(2, arcs)``.
    """

    nodes: NDArray[np.int64]
    edges: NDArray[np.int64]


class RootedSubgraphs:
    """The sub-graphs of all roots of a graph.

    Args:
        lists: adjacency lists, cut where a record must have a bounded reach.
        ids: of the nodes.
        layers: r; 0 leaves the root alone.
        keep: probability of an arc to stay.
        key: the secret of the coins, used for nothing else.

    >>> lists = BoundedAdjacency(np.array([0, 1, 2, 2]), np.array([1, 2]))
    >>> rooted = RootedSubgraphs(lists, np.arange(3), layers=2, keep=1.0, key=NoiseKey.insecure(0))
    >>> (found,) = rooted.of(np.array([2]), step=0)
    >>> found.nodes.tolist(), found.edges.tolist()
    ([2, 0, 1], [[2, 1], [0, 2]])
    """

    def __init__(
        self,
        lists: BoundedAdjacency,
        ids: NDArray[Any],
        *,
        layers: int,
        keep: float,
        key: NoiseKey,
    ) -> None:
        self.layers = check_integer("layers", layers, at_least=0)
        self.keep = check_number("keep", keep, above=0, at_most=1)
        columns = csr.matrix(lists.indptr, lists.indices).tocsc()
        self._pointers = columns.indptr.astype(np.int64)
        self._senders = columns.indices.astype(np.int64)
        self._key = key
        self._codes = encode_ids(ids, split_key(key)[1])

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return len(self._pointers) - 1

    def of(self, roots: NDArray[np.int64], step: int) -> list[Subgraph]:
        """Return the sub-graph of each root at a step.

        Args:
            roots: positions, in any order.
            step: number of the batch, which decides the coins.
        """
        size = self.num_nodes
        # A node of an example, as one number: the example above the node.
        frontier = np.arange(len(roots)) * size + roots
        reached = np.sort(frontier)
        arcs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for _ in range(self.layers):
            owners, targets = np.divmod(frontier, size)
            places, rank = _places(self._pointers, targets)
            sources = self._senders[places]
            if self.keep < 1.0:
                stays = self._coins(roots[owners[rank]], sources, targets[rank], step)
                sources, rank = sources[stays], rank[stays]
            senders = owners[rank] * size + sources
            arcs.append((senders, frontier[rank]))
            frontier = np.setdiff1d(senders, reached)
            reached = np.union1d(reached, frontier)
        return list(_split(np.arange(len(roots)) * size + roots, reached, arcs, size))

    def words(self, roots: NDArray[np.int64], step: int) -> Words:
        """Return a secret word for each root at a step, for what its example draws at random."""
        codes, secret = self._codes[roots], split_key(self._key.derive("root", step))[0]
        return siphash_128([codes, np.zeros_like(codes)], 8, secret)[:, 0]

    def _coins(
        self,
        roots: NDArray[np.int64],
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
        step: int,
    ) -> NDArray[np.bool_]:
        """Return which arcs stay."""
        names = [self._codes[nodes] for nodes in (roots, sources, targets)]
        secret, _ = split_key(self._key.derive("arcs", step))
        words = siphash_128([*names, np.zeros_like(names[0])], 24, secret)[:, 0]
        # Rounded down, so that no arc is kept more often than is accounted for.
        return words < np.uint64(int(self.keep * 2**53)) << np.uint64(11)


def _split(
    roots: NDArray[np.int64],
    reached: NDArray[np.int64],
    arcs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    size: int,
) -> Iterator[Subgraph]:
    """Number the nodes of every example, the root first, and yield one example after the other."""
    starts = np.searchsorted(reached, np.arange(len(roots) + 1) * size)
    before = np.searchsorted(reached, roots)

    def numbered(keys: NDArray[np.int64]) -> NDArray[np.int64]:
        owners = keys // size
        places = np.searchsorted(reached, keys)
        numbers: NDArray[np.int64] = places - starts[owners] + (places < before[owners])
        numbers[keys == roots[owners]] = 0
        return numbers

    sources, targets = (
        np.concatenate([pair[side] for pair in arcs]) if arcs else np.zeros(0, dtype=np.int64)
        for side in (0, 1)
    )
    owners = targets // size
    order = np.argsort(owners, kind="stable")
    edges = np.stack([numbered(sources[order]), numbered(targets[order])])
    ends = np.searchsorted(owners[order], np.arange(len(roots) + 1))
    for example, root in enumerate(roots):
        own = reached[starts[example] : starts[example + 1]]
        nodes = np.concatenate([[root], own[own != root]]) % size
        yield Subgraph(nodes, edges[:, ends[example] : ends[example + 1]])


def _places(
    pointers: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the entries of some rows, and for each entry the rank of its row."""
    counts = pointers[rows + 1] - pointers[rows]
    rank = np.repeat(np.arange(len(rows)), counts)
    shift = pointers[rows] - (np.cumsum(counts) - counts)
    return np.arange(len(rank)) + shift[rank], rank
