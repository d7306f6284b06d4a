"""Exact sums over a node's own neighbours, for use under joint differential privacy.

Such a sum has no noise and is not charged, so it may only enter results for the node's own person
(privacy page, section 1). It is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.graph.store import StoredGraph
from gapgnn.privacy.mechanisms import GRID, add_up, copy_on, csr_tensor

# Arcs in a batch, on a CPU and on other devices. The size is the same for all graphs, because the
# number of rows of a matrix product determines how each row is rounded.
ARCS = 1 << 16
DEVICE_ARCS = 1 << 20
# Returns the summands of some arcs, given the repeat, the owners of the lists, the neighbours, and
# the weights of the arcs.
Summand = Callable[[int, Tensor, Tensor, Tensor | float], Tensor]


class _Arcs(NamedTuple):
    """Some arcs: owner of the list, neighbour, and weight (None: 1)."""

    sources: Tensor
    targets: Tensor
    weights: Tensor | None


def _arcs_of(graph: Graph, device: torch.device) -> Iterator[_Arcs]:
    """Yield all arcs of one edge type; those of a store one partition at a time."""
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
    """Return the owner of every entry, counted from ``first``."""
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
    """Return for every node the sum of ``summand`` over its neighbours, in float64.

    Every summand is truncated to the grid of the noise, on which sums are exact. The result does
    not depend on the order of a list, the partitions of a store or the device.

    Args:
        graph: one edge type.
        shape: repeats, nodes, width.
        summand: returns one row per arc for batches of a fixed size; rows of padding are ignored.
        device: where it is computed.
        arriving: sum over the arcs that end at a node, as a hop does, instead of those that start
            there; without directions they are the same.
        with_self: include self-loops.
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
                added = summand(repeat, *ends, heavy)[:count]
                sums.index_add_(0, ends[0][:count], _in_steps(added))
    return total * GRID


def sums_of_rows(graph: Graph, rows: Tensor) -> Tensor:
    """Return for every node the sum of its neighbours' rows, as one matrix product.

    The same bits as :func:`sums_over_lists` with a summand that does not depend on the owner of the
    list: both sum multiples of the grid.

    Args:
        graph: one edge type.
        rows: of every node, (repeats, nodes, width).

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
    graph: Graph, sent: Tensor, *, arriving: bool = False, symmetrised: bool = False
) -> Tensor:
    """Return for every node the sum of its neighbours' messages, without noise.

    Self-loops are left out, so that a node's own label is not among its inputs.

    Args:
        graph: one edge type.
        sent: messages, one row per node.
        arriving: sum over the arcs that end at a node, as a hop does, instead of those that start
            there; without directions they are the same.
        symmetrised: sum over both directions, as a symmetrised hop does.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0, 0, 2], [1, 2, 2], num_nodes=3, features=np.eye(3),
    ...                         directed=True, self_loops="keep")
    >>> exact_sums(graph, torch.tensor([[1.0], [2.0], [4.0]])).squeeze().tolist()
    [6.0, 0.0, 0.0]
    >>> exact_sums(graph, torch.tensor([[1.0], [2.0], [4.0]]), arriving=True).squeeze().tolist()
    [0.0, 1.0, 1.0]
    """

    def message(_: int, readers: Tensor, read: Tensor, weights: Tensor | float) -> Tensor:
        return sent[read].double() * weights

    shape = (1, graph.num_nodes, sent.shape[-1])
    directions = (False, True) if symmetrised else (arriving,)
    sums = [
        sums_over_lists(graph, shape, message, sent.device, arriving=one, with_self=False)
        for one in directions
    ]
    return sum(sums[1:], sums[0])[0].to(sent.dtype)


def _in_steps(values: Tensor) -> Tensor:
    """Return values as multiples of the noise's grid, truncated towards zero, in float64."""
    return torch.trunc(values.double() / GRID)


def _filled(values: Tensor, size: int) -> Tensor:
    """Return the values of some arcs, padded to the batch size."""
    return values if len(values) == size else torch.cat([values, values.new_zeros(size)])[:size]
