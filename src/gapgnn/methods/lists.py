"""Own lists, read exactly: for the person whose list it is, and for nobody else.

What a sum over one list says is not noisy and has no price, so it may only enter what is computed
for that person (privacy page, section 1), and is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.graph.store import StoredGraph
from gapgnn.privacy.mechanisms import GRID, add_up, copy_on, csr_tensor

# Arcs that are read at a time, on a CPU and elsewhere. One number for all graphs: how many rows a
# product of matrices has decides the last bits of each.
ARCS = 1 << 16
DEVICE_ARCS = 1 << 20
# What is added up for some entries: of which repeat, whose list, who is on it, and how heavy the
# entries are.
Summand = Callable[[int, Tensor, Tensor, Tensor | float], Tensor]


class _Arcs(NamedTuple):
    """Some arcs: who lists, who is listed, and how heavy the entry is (None: 1)."""

    sources: Tensor
    targets: Tensor
    weights: Tensor | None


def _arcs_of(graph: Graph, device: torch.device) -> Iterator[_Arcs]:
    """Yield all arcs of one edge type; those of a store part after part."""
    if not isinstance(graph, StoredGraph):
        indices = copy_on(graph, "indices", device)
        sources = _repeated(0, copy_on(graph, "indptr", device), len(indices))
        weights = copy_on(graph, "weights", device) if graph.is_weighted else None
        yield _Arcs(sources, indices, weights)
        return
    for part in range(graph.num_parts):
        for rows in graph.in_part(part).blocks():
            pointers = torch.from_numpy(rows.pointers).to(device)
            entries = torch.tensor(rows.entries, device=device)
            weights = None if rows.weights is None else torch.tensor(rows.weights, device=device)
            yield _Arcs(entries, _repeated(rows.first, pointers, len(entries)), weights)


def _repeated(first: int, pointers: Tensor, count: int) -> Tensor:
    """Return the number of every entry's list, counted from ``first``."""
    numbers = torch.arange(first, first + len(pointers) - 1, device=pointers.device)
    return torch.repeat_interleave(numbers, pointers.diff(), output_size=count)


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
        graph: one edge type.
        shape: repeats, nodes, width.
        summand: what is added up, one row for each of a fixed number of entries; those that only
            fill up are not added.
        device: where it is computed.
        arriving: read the arcs that end at a node, as a hop does, and not the list that starts
            there; without directions they are the same.
        with_self: whether an entry that names its own owner counts.
    """
    total = torch.zeros(shape, dtype=torch.float64, device=device)
    size = ARCS if device.type == "cpu" else DEVICE_ARCS
    for arcs in _arcs_of(graph, device):
        readers, read, weights = arcs
        if not with_self:
            is_between = readers != read
            readers, read = readers[is_between], read[is_between]
            weights = None if weights is None else weights[is_between]
        if arriving:
            readers, read = read, readers
        for start in range(0, len(readers), size):
            part = slice(start, start + size)
            count = len(readers[part])
            ends = _filled(readers[part].long(), size), _filled(read[part].long(), size)
            heavy = 1.0 if weights is None else _filled(weights[part], size)[:, None]
            for repeat, sums in enumerate(total):
                found = summand(repeat, *ends, heavy)[:count]
                sums.index_add_(0, ends[0][:count], _in_steps(found))
    return total * GRID


def sums_of_rows(graph: Graph, rows: Tensor) -> Tensor:
    """Return for every node the sum of the rows of those on its own list, as one product.

    What :func:`sums_over_lists` returns where what an entry says does not depend on whose list it
    is on, to the bit: both add up multiples of the grid.

    Args:
        graph: one edge type.
        rows: what those on a list say, (repeats, nodes, width).

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0, 0], [1, 2], num_nodes=3, features=np.eye(3), directed=True)
    >>> sums_of_rows(graph, torch.tensor([[[1.0], [2.0], [4.0]]])).squeeze().tolist()
    [6.0, 0.0, 0.0]
    """
    steps, device = _in_steps(rows), rows.device
    if isinstance(graph, StoredGraph):
        total = torch.zeros_like(steps)
        for part in graph.out_parts():
            for block in part.blocks():
                for one, sums in zip(steps.cpu(), total, strict=True):
                    sums[block.first : block.last] = add_up(one, block.pointers, block.entries)
    elif device.type == "cpu":
        total = torch.stack([add_up(one, graph.indptr, graph.indices) for one in steps])
    else:
        indices = copy_on(graph, "indices", device)
        pointers = copy_on(graph, "indptr", device).to(indices.dtype)
        ones = torch.ones(len(indices), dtype=torch.float64, device=device)
        lists = csr_tensor(pointers, indices, ones, (graph.num_nodes,) * 2)
        total = torch.stack([lists @ one for one in steps])
    return total * GRID


def exact_sums(
    graph: Graph, sent: Tensor, *, arriving: bool = False, both_ways: bool = False
) -> Tensor:
    """Return for every node the sum of what those on its own list say, without noise.

    An entry that names its own owner is left out: nobody's own label is among what that person
    reads.

    Args:
        graph: one edge type.
        sent: one row per node.
        arriving: read what is sent along the arcs that end at a node, as a hop does, and not the
            list that starts there; without directions they are the same.
        both_ways: read both, as a hop does that goes along arcs and against them.

    >>> import numpy as np
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


def _in_steps(values: Tensor) -> Tensor:
    """Return values in whole steps of the noise's grid, cut towards zero, in float64."""
    return torch.trunc(values.double() / GRID)


def _filled(values: Tensor, size: int) -> Tensor:
    """Return the values of some arcs, filled up to the one number that is read at a time."""
    return values if len(values) == size else torch.cat([values, values.new_zeros(size)])[:size]
