"""Sums of released rows over a node's own neighbours.

Given the released rows, such a sum is a function of one record: of the node's adjacency list, and
of the node's own contribution to its neighbours' rows, which is subtracted. No other record is
read, so the sum needs no noise and is not charged (privacy page, section 1). It is used for
messages, which are charged when they are sent, and for the node's own example and prediction under
``own="record"``. It is never stored.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods import sums_of_rows, sums_over_lists
from gapgnn.methods.label_gap.codes import class_scores, mean_codes

# Chosen on public graphs (docs: research notes): the odds that a neighbour has the node's class
# rather than any other given one; the number of neighbours above which each vote is discounted; and
# the exponent of the discount.
ODDS = 6.0
FEW_NEIGHBOURS = 6.0
EXPONENT = 0.6


def vote_weights(counts: Tensor) -> Tensor:
    """Return the weight of one neighbour's vote, as log-odds, given the number of neighbours.

    Neighbours of one node are not independent evidence, so each of many votes weighs less.

    >>> [round(odds, 2) for odds in vote_weights(torch.tensor([1.0, 6.0, 60.0])).exp().tolist()]
    [6.0, 6.0, 1.57]
    """
    return math.log(ODDS) * (FEW_NEIGHBOURS / counts.clamp(min=FEW_NEIGHBOURS)) ** EXPONENT


def posteriors_listed(
    graph: Graph, released: Tensor, own: Tensor, codes: Tensor, log_prior: Tensor
) -> Tensor:
    """Return for every node the degree-normalised sum of its neighbours' mean class codes.

    The mean code of a neighbour with released row S is taken under softmax(codes S + log prior).
    The sum is divided by the square root of the node's out-degree.

    Args:
        graph: whose out-neighbours are read.
        released: noisy sums of class codes in units of their noise, (repeats, nodes, C - 1).
        own: each node's contribution to the row of every neighbour, likewise; it is subtracted from
            those rows.
        codes: of the classes, (C, C - 1).
        log_prior: of the classes, (C): the posterior of a row without information.
    """

    def neighbour_codes(
        repeat: int, readers: Tensor, read: Tensor, weights: Tensor | float
    ) -> Tensor:
        sums = released[repeat][read] - weights * own[repeat][readers]
        return mean_codes(class_scores(sums, codes) + log_prior, codes)

    repeats, nodes, width = released.shape
    total = sums_over_lists(graph, (repeats, nodes, width), neighbour_codes, released.device)
    return _degree_normalised(graph, total)


def sums_listed(graph: Graph, released: Tensor) -> Tensor:
    """Return for every node the degree-normalised sum of its neighbours' released rows.

    Args:
        graph: whose out-neighbours are read.
        released: noisy sums in units of their noise, (repeats, nodes, width).
    """
    return _degree_normalised(graph, sums_of_rows(graph, released))


def _degree_normalised(graph: Graph, total: Tensor) -> Tensor:
    """Return sums over the square root of each node's out-degree."""
    degrees = torch.tensor(graph.out_degrees, device=total.device).clamp(min=1)
    return (total / degrees.double().sqrt().unsqueeze(-1)).float()
