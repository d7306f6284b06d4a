"""What a person's own list says: released rows, summed over the people the person lists.

Given what was released, such a sum is a function of one record: of the list, and of what the person
wrote to the rows on it, which is taken out again. Nothing of anybody else is read, so no noise and
no charge belong to it (privacy page, section 1). It is for messages that are charged when they are
sent, and for the person's own example and prediction under ``own="record"``; it is never stored.

Every summand is cut to the grid of the noise and added up in float64, where sums of grid points are
exact: the order of a list, the partition of a store and the device change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods import arcs_of
from gapgnn.methods.gap.codes import class_scores, mean_codes
from gapgnn.privacy.mechanisms import GRID

# Arcs that are read at a time. One number for all graphs: how many rows a product of matrices has
# decides the last bits of each.
ARCS = 1 << 16


def posteriors_listed(graph: Graph, released: Tensor, own: Tensor) -> Tensor:
    """Return for every node what the neighbourhoods of those on its list say about their class.

    The sum of the mean class codes under softmax(codes S), over the root of the list's length.

    Args:
        graph: whose out-lists are read.
        released: noisy sums of class codes in units of their noise, (replicas, nodes, C - 1).
        own: what each node wrote to every row of its list, likewise; taken out of those rows.
    """
    return _over_lists(graph, released, own, lambda sums: mean_codes(class_scores(sums)))


def sums_listed(graph: Graph, released: Tensor, own: Tensor) -> Tensor:
    """Return for every node the sum of the released rows of its list, over the root of its length.

    Args:
        graph: whose out-lists are read.
        released: noisy sums in units of their noise, (replicas, nodes, width).
        own: what each node wrote to every row of its list, likewise; taken out of those rows.
    """
    return _over_lists(graph, released, own, lambda sums: sums)


def _over_lists(
    graph: Graph, released: Tensor, own: Tensor, summand: Callable[[Tensor], Tensor]
) -> Tensor:
    device = released.device
    total = torch.zeros(released.shape, dtype=torch.float64, device=device)
    for arcs in arcs_of(graph):
        for start in range(0, len(arcs.sources), ARCS):
            part = slice(start, start + ARCS)
            sources, targets = (_filled(ends[part], device) for ends in arcs[:2])
            weights = 1.0 if arcs.weights is None else _filled(arcs.weights[part], device)[:, None]
            count = min(ARCS, len(arcs.sources) - start)
            for sums, sent, rows in zip(total, own, released, strict=True):
                found = summand(rows[targets] - weights * sent[sources])[:count]
                sums.index_add_(0, sources[:count], torch.trunc(found.double() / GRID))
    lengths = torch.tensor(graph.out_degrees, device=device).clamp(min=1)
    return (total * GRID / lengths.double().sqrt().unsqueeze(-1)).float()


def _filled(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values of some arcs, filled up to the one number that is read at a time."""
    kind = np.float32 if values.dtype.kind == "f" else np.int64
    filled = np.zeros(ARCS, dtype=kind)
    filled[: len(values)] = values
    return torch.from_numpy(filled).to(device)
