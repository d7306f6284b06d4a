"""What a person's own list says: released rows, summed over the people the person lists.

Given what was released, such a sum is a function of one record: of the list, and of what the person
wrote to the rows on it, which is taken out again. Nothing of anybody else is read, so no noise and
no charge belong to it (privacy page, section 1). It is for messages that are charged when they are
sent, and for the person's own example and prediction under ``own="record"``; it is never stored.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods import sums_of_rows, sums_over_lists
from gapgnn.methods.label_gap.codes import class_scores, mean_codes

# Chosen on public graphs (docs/research-notes.md). A friend has the own class so much more often
# than any other, and from so many friends on each counts less, by this power of their number.
ODDS = 6.0
FEW_FRIENDS = 6.0
EXPONENT = 0.6


def vote_weights(friends: Tensor) -> Tensor:
    """Return what the class of one friend counts for somebody with so many, as a log-odds.

    Friends of one person are not independent evidence: each of many says less.

    >>> [round(odds, 2) for odds in vote_weights(torch.tensor([1.0, 6.0, 60.0])).exp().tolist()]
    [6.0, 6.0, 1.57]
    """
    return math.log(ODDS) * (FEW_FRIENDS / friends.clamp(min=FEW_FRIENDS)) ** EXPONENT


def posteriors_listed(
    graph: Graph, released: Tensor, own: Tensor, codes: Tensor, log_prior: Tensor
) -> Tensor:
    """Return for every node what the neighbourhoods of those on its list say about their class.

    The sum of the mean class codes under softmax(codes S + log prior), over the root of the list's
    length.

    Args:
        graph: whose out-lists are read.
        released: noisy sums of class codes in units of their noise, (repeats, nodes, C - 1).
        own: what each node wrote to every row of its list, likewise; taken out of those rows.
        codes: of the classes, (C, C - 1).
        log_prior: of the classes, (C): what a row of noise says.
    """

    def said(repeat: int, readers: Tensor, read: Tensor, weights: Tensor | float) -> Tensor:
        sums = released[repeat][read] - weights * own[repeat][readers]
        return mean_codes(class_scores(sums, codes) + log_prior, codes)

    repeats, nodes, width = released.shape
    total = sums_over_lists(graph, (repeats, nodes, width), said, released.device)
    return _over_root_of_length(graph, total)


def sums_listed(graph: Graph, released: Tensor) -> Tensor:
    """Return for every node the sum of the released rows of its list, over the root of its length.

    Args:
        graph: whose out-lists are read.
        released: noisy sums in units of their noise, (repeats, nodes, width).
    """
    return _over_root_of_length(graph, sums_of_rows(graph, released))


def _over_root_of_length(graph: Graph, total: Tensor) -> Tensor:
    lengths = torch.tensor(graph.out_degrees, device=total.device).clamp(min=1)
    return (total / lengths.double().sqrt().unsqueeze(-1)).float()
