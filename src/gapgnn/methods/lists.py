"""Own lists, read exactly: for the person whose list it is, and for nobody else.

What a sum over one list says is not noisy and has no price, so it may only enter what is computed
for that person (privacy page, section 1), and is never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.graph.store import StoredGraph
from gapgnn.privacy.mechanisms import GRID

# Arcs that are read at a time.
_ARCS = 1 << 20


class Arcs(NamedTuple):
    """Some arcs: who lists, who is listed, and how heavy the entry is (None: 1)."""

    sources: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float32] | None


def arcs_of(graph: Graph) -> Iterator[Arcs]:
    """Yield all arcs of one kind of edges; those of a store part after part."""
    if not isinstance(graph, StoredGraph):
        sources = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        yield Arcs(sources, graph.indices, graph.weights)
        return
    for part in range(graph.num_parts):
        for rows in graph.in_part(part).blocks():
            listed = np.repeat(np.arange(rows.first, rows.last), np.diff(rows.pointers))
            yield Arcs(rows.entries, listed, rows.weights)


def exact_sums(
    graph: Graph, sent: Tensor, *, arriving: bool = False, both_ways: bool = False
) -> Tensor:
    """Return for every node the sum of what those on its own list say, without noise.

    An entry that names its own owner is left out: nobody's own label is among what that person
    reads. What is sent is cut to the grid of the noise, where sums are exact, so that the order of
    a list and the partition of a store change no bit.

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
    device = sent.device
    total = torch.zeros(graph.num_nodes, sent.shape[-1], dtype=torch.float64, device=device)
    for arcs in arcs_of(graph):
        is_between = arcs.sources != arcs.targets
        readers, read = arcs.sources[is_between], arcs.targets[is_between]
        if arriving:
            readers, read = read, readers
        weights = None if arcs.weights is None else arcs.weights[is_between]
        if both_ways:
            readers, read = np.concatenate([readers, read]), np.concatenate([read, readers])
            weights = None if weights is None else np.concatenate([weights, weights])
        for start in range(0, len(readers), _ARCS):
            part = slice(start, start + _ARCS)
            rows = sent[_places(read[part], device)].double()
            if weights is not None:
                rows = rows * torch.from_numpy(weights[part]).to(device).unsqueeze(-1)
            total.index_add_(0, _places(readers[part], device), torch.trunc(rows / GRID))
    return (total * GRID).to(sent.dtype)


def _places(ends: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(ends.astype(np.int64)).to(device)
