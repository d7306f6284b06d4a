"""Own lists, read exactly: for the person whose list it is, and for nobody else.

What a sum over one list says is not noisy and has no price, so it may only enter what is computed
for that person (privacy page, section 1), and is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.graph.store import StoredGraph
from gapgnn.privacy.mechanisms import GRID

# Arcs that are read at a time. One number for all graphs: how many rows a product of matrices has
# decides the last bits of each.
ARCS = 1 << 16
# What is added up for some entries: of which repeat, whose list, who is on it, and how heavy the
# entries are.
Summand = Callable[[int, Tensor, Tensor, Tensor | float], Tensor]


class _Arcs(NamedTuple):
    """Some arcs: who lists, who is listed, and how heavy the entry is (None: 1)."""

    sources: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float32] | None


def _arcs_of(graph: Graph) -> Iterator[_Arcs]:
    """Yield all arcs of one kind of edges; those of a store part after part."""
    if not isinstance(graph, StoredGraph):
        sources = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        yield _Arcs(sources, graph.indices, graph.weights)
        return
    for part in range(graph.num_parts):
        for rows in graph.in_part(part).blocks():
            listed = np.repeat(np.arange(rows.first, rows.last), np.diff(rows.pointers))
            yield _Arcs(rows.entries, listed, rows.weights)


def sums_over_lists(
    graph: Graph,
    shape: tuple[int, int, int],
    summand: Summand,
    device: torch.device,
    *,
    arriving: bool = False,
    with_self: bool = True,
) -> Tensor:
    """Return for every node the sum of something over the entries of its own list, in float64.

    Every summand is cut to the grid of the noise, where sums are exact: the order of a list, the
    partition of a store and the device change no bit.

    Args:
        graph: one kind of edges.
        shape: repeats, nodes, width.
        summand: what is added up, one row for each of ``ARCS`` entries; those that only fill up are
            not added.
        device: where it is computed.
        arriving: read the arcs that end at a node, as a hop does, and not the list that starts
            there; without directions they are the same.
        with_self: whether an entry that names its own owner counts.
    """
    total = torch.zeros(shape, dtype=torch.float64, device=device)
    for arcs in _arcs_of(graph):
        readers, read, weights = arcs
        if not with_self:
            is_between = readers != read
            readers, read = readers[is_between], read[is_between]
            weights = None if weights is None else weights[is_between]
        if arriving:
            readers, read = read, readers
        for start in range(0, len(readers), ARCS):
            part = slice(start, start + ARCS)
            count = len(readers[part])
            ends = _filled(readers[part], device), _filled(read[part], device)
            heavy = 1.0 if weights is None else _filled(weights[part], device)[:, None]
            for repeat, sums in enumerate(total):
                found = summand(repeat, *ends, heavy)[:count]
                sums.index_add_(0, ends[0][:count], torch.trunc(found.double() / GRID))
    return total * GRID


def exact_sums(
    graph: Graph, sent: Tensor, *, arriving: bool = False, both_ways: bool = False
) -> Tensor:
    """Return for every node the sum of what those on its own list say, without noise.

    An entry that names its own owner is left out: nobody's own label is among what that person
    reads.

    Args:
        graph: one kind of edges.
        sent: one row per node.
        arriving: read what is sent along the arcs that end at a node, as a hop does, and not the
            list that starts there; without directions they are the same.
        both_ways: read both, as a hop does that goes along arcs and against them.

    >>> graph = Graph.from_arcs([0, 0, 2], [1, 2, 2], num_nodes=3, features=np.eye(3),
    ...                         directed=True, self_loops="keep")
    >>> exact_sums(graph, torch.tensor([[1.0], [2.0], [4.0]])).squeeze().tolist()
    [6.0, 0.0, 0.0]
    >>> exact_sums(graph, torch.tensor([[1.0], [2.0], [4.0]]), arriving=True).squeeze().tolist()
    [0.0, 1.0, 1.0]
    """

    def said(_: int, readers: Tensor, read: Tensor, weights: Tensor | float) -> Tensor:
        return sent[read].double() * weights

    shape = (1, graph.num_nodes, sent.shape[-1])
    ways = (False, True) if both_ways else (arriving,)
    sums = [
        sums_over_lists(graph, shape, said, sent.device, arriving=way, with_self=False)
        for way in ways
    ]
    return sum(sums[1:], sums[0])[0].to(sent.dtype)


def _filled(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values of some arcs, filled up to the one number that is read at a time."""
    kind = np.float32 if values.dtype.kind == "f" else np.int64
    filled = np.zeros(ARCS, dtype=kind)
    filled[: len(values)] = values
    return torch.from_numpy(filled).to(device)
