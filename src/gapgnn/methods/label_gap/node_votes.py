"""Hops of NodeLabelGAP: degree-normalised class codes at node level.

Relation ``add-remove`` or ``replace`` on records. Messages are degree-normalised: each is divided
by the square root of the sender's out-degree, so all messages of one record together have norm at
most 1. Nothing is truncated. The sensitivity of a hop is 1 under ``add-remove`` and 2 under
``replace`` (privacy page, section 1).

In the first hop training nodes send the codes of their classes. Node v then reads its own noisy
row and, under ``own="record"``, the released rows of its own neighbours, which is a function of v's
record and of the release. In that case the neighbours also vote with fixed odds: under a small
budget the network need not learn that neighbours tend to share a class. Otherwise there is a second
hop, in which nodes without a training label send the mean code of an estimate from the released
rows of *their* neighbours. Every record is in one of the two groups, so the hops compose in
parallel and cost the maximum of the two.

Every id in an adjacency list has a row, with or without a record
(:func:`gapgnn.graph.with_absent`), so the inputs and messages of one record do not change when
another record is removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods import direction_and_size, in_noise_units
from gapgnn.methods.label_gap.codes import (
    class_codes,
    class_counts,
    class_scores,
    code_scale,
    mean_codes,
)
from gapgnn.methods.label_gap.own_neighbours import posteriors_listed, sums_listed, vote_weights
from gapgnn.privacy import PrivateSession
from gapgnn.training import FeatureInputs, HopInputs, Inputs, row_by_row

# Hops by the group that sends in them; a record is in one of the two groups.
OF_TRAINING, OF_OTHERS = "aggregation", "aggregation by the others"
# Factor on the scores of nodes without a label, relative to those that the noise alone justifies.
SHARPNESS = 2.0


def vote_width(num_classes: int, num_types: int, own: str) -> int:
    """Return the number of released columns that a classifier reads, without votes.

    >>> vote_width(6, 1, "features"), vote_width(6, 1, "record"), vote_width(6, 2, "record")
    (18, 12, 30)
    """
    blocks = num_types + 1 if num_types > 1 else 1
    return num_classes * (blocks + num_types if own == "record" else 2 * blocks + 1)


@dataclass(frozen=True)
class Votes:
    """Messages over one graph's adjacency lists, and the inputs that follow from their release.

    Attributes:
        graph: with a row for every id in an adjacency list.
        num_present: number of nodes with a record; they come first.
        num_classes: C.
        own: what a prediction reads of the node's own record.
        sends_label: mask of the nodes that send their own label, (repeats, nodes): training nodes.
        std: standard deviation of the noise of the first hop, the same for every edge type.
        prior: declared class probabilities at which codes are centred, (repeats, C), the same for
            all repeats; None is uniform.
    """

    graph: Graph
    num_present: int
    num_classes: int
    own: str
    sends_label: Tensor
    std: float
    prior: Tensor | None = None

    @cached_property
    def _codes(self) -> Tensor:
        """The codes of the classes, (C, C - 1)."""
        prior = None if self.prior is None else self.prior[0]
        return class_codes(self.num_classes, self.sends_label.device, prior)

    @cached_property
    def _log_prior(self) -> Tensor:
        """The logarithm of the class prior, (C)."""
        device = self.sends_label.device
        if self.prior is None:
            return torch.zeros(self.num_classes, device=device)
        return self.prior[0].clamp(min=1e-9).log().float().to(device)

    def run(
        self,
        session: PrivateSession,
        *,
        on_hop: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """Release the hops of a graph; other nodes' adjacency lists are read nowhere else.

        Args:
            session: releases the hops.
            on_hop: called after every hop.

        Returns:
            Noisy sums in units of their noise, edge types side by side.
        """
        released = [self._hop(session, OF_TRAINING, [self._labels] * self._num_types)]
        on_hop()
        if self.own != "record":
            released.append(self._hop(session, OF_OTHERS, self._guesses(released[0])))
            on_hop()
        return released

    @property
    def _num_types(self) -> int:
        return len(self.graph.edge_types)

    def _hop(self, session: PrivateSession, name: str, rows: Sequence[Tensor]) -> Tensor:
        # The checkpoint keeps both hops together, and not the rows of everybody.
        sums = session.release(name, rows, keep=False)
        blocks = [
            in_noise_units(one, std) for one, std in zip(sums, session.std(name), strict=True)
        ]
        return torch.cat(blocks, dim=-1)

    @property
    def _labels(self) -> Tensor:
        """Messages of the first hop: the code of a training node's class, zero for others."""
        device = self.sends_label.device
        labels = torch.tensor(self.graph.labels, device=device).clamp(min=0)
        return self._codes[labels] * self.sends_label.unsqueeze(-1)

    def _guesses(self, released: Tensor) -> list[Tensor]:
        """Messages of the second hop: mean codes estimated from the rows of own neighbours."""
        sums = [
            sums_listed(edges, rows)
            for edges, rows in zip(self.graph.edge_types, self._by_type(released), strict=True)
        ]
        codes, log_prior = self._codes, self._log_prior
        # Centring at a prior shortens the codes by this factor.
        sharpness = SHARPNESS * code_scale(self.num_classes, self.prior)

        def guess(rows: Tensor) -> Tensor:
            return mean_codes(sharpness * class_scores(rows, codes) + log_prior, codes)

        guesses = row_by_row(guess, _Rows(_together(sums)))
        # Without neighbours the estimate is the prior, whose mean code is zero up to rounding.
        degrees = sum(
            torch.tensor(edges.out_degrees, device=guesses.device)
            for edges in self.graph.edge_types
        )
        sends = ~self.sends_label & (degrees > 0)
        return [guesses * sends.unsqueeze(-1)] * len(sums)

    def _by_type(self, released: Tensor) -> Sequence[Tensor]:
        return released.chunk(len(self.graph.edge_types), dim=-1)

    @cached_property
    def _written(self) -> list[Tensor]:
        """Each node's contribution to its neighbours' rows, by edge type, in units of the noise."""
        to_self = int(self.own == "record")
        written = []
        for edges in self.graph.edge_types:
            degrees = torch.from_numpy(edges.out_degrees + to_self).to(self.sends_label.device)
            roots = degrees.clamp(min=1).double().sqrt().unsqueeze(-1)
            scale = self.std or 1.0
            written.append((self._labels / roots / scale).float())
        return written

    def read(self, released: Sequence[Tensor]) -> Tensor:
        """Return the classifier's inputs from the release, (repeats, nodes, width).

        One row for each node with a record. It is a function of the release and of the node's own
        record: of its label, whose message is subtracted from its own row, and under
        ``own="record"`` of its adjacency list. In that case the last columns, one per class, are
        the votes of its neighbours.
        """
        if self.own == "record":
            sums = list(zip(self._by_type(released[0]), self._written, strict=True))
            listed = [
                posteriors_listed(edges, rows, own, self._codes, self._log_prior)
                for edges, (rows, own) in zip(self.graph.edge_types, sums, strict=True)
            ]
            blocks = [*_with_sum([rows - own for rows, own in sums]), *listed]
            votes = [self._votes_listed(listed)[:, : self.num_present]]
        else:
            first, second = (self._by_type(hop) for hop in released)
            blocks = [*_with_sum(first), *_with_sum(second), _together([*first, *second])]
            votes = []
        columns = _number_and_size if self._is_uneven_pair else direction_and_size
        read = [columns(block[:, : self.num_present]) for block in blocks]
        return torch.cat([*read, *votes], dim=-1)

    @property
    def _is_uneven_pair(self) -> bool:
        """Whether there are two classes, with declared rates that move their codes."""
        if self.prior is None or self.num_classes != 2:
            return False
        return bool(self.prior[0, 0] != self.prior[0, 1])

    def _votes_listed(self, listed: Sequence[Tensor]) -> Tensor:
        """Return the votes of every node's own neighbours as class scores.

        Args:
            listed: of each edge type, from :func:`posteriors_listed`.
        """
        device = listed[0].device
        degrees = [
            torch.tensor(edges.out_degrees, dtype=torch.float64, device=device).unsqueeze(-1)
            for edges in self.graph.edge_types
        ]
        parts = [mean * degree.sqrt() for mean, degree in zip(listed, degrees, strict=True)]
        sums = torch.stack(parts).sum(dim=0)
        prior = None if self.prior is None else self.prior[0]
        votes = row_by_row(partial(class_counts, prior=prior), _Rows(sums.float()))
        return (vote_weights(torch.stack(degrees).sum(dim=0)) * votes).float()

    def inputs(self, features: FeatureInputs, released: Sequence[Tensor]) -> Inputs:
        """Return a classifier's inputs for every node: features alone if nothing was released."""
        if not released:
            return HopInputs(features, [])
        read = self.read(released)
        if self.own == "record":
            width = read.shape[-1] - self.num_classes
            return HopInputs(features, [read[..., :width], read[..., width:]])
        return HopInputs(read, []) if self.own == "nothing" else HopInputs(features, [read])


class _Rows:
    """Rows of one tensor, to be taken in batches."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def everybody(self) -> Tensor:
        return torch.arange(self._rows.shape[1], device=self._rows.device)

    def block(self, nodes: Tensor) -> Any:
        return self._rows[:, nodes]


def _number_and_size(sums: Tensor) -> Tensor:
    """Return a classifier's columns from a noisy sum of the codes of two classes.

    With two classes the direction of a sum is a sign, which carries no information about its
    signal-to-noise ratio. With uneven rates the magnitude matters, so the number itself is given.
    """
    return torch.cat([sums, torch.log1p(sums.abs()) / 2], dim=-1)


def _with_sum(sums: Sequence[Tensor]) -> list[Tensor]:
    """Return the sums of each edge type and, if there are several, their combined sum."""
    return [*sums, _together(sums)] if len(sums) > 1 else list(sums)


def _together(sums: Sequence[Tensor]) -> Tensor:
    """Return the sum over the square root of their number, which keeps the noise of one sum."""
    return torch.stack(list(sums)).sum(dim=0) / math.sqrt(len(sums))


def padded(values: Tensor, count: int) -> Tensor:
    """Return a mask of nodes with a record, extended by False for ids without one.

    >>> padded(torch.tensor([[True, False]]), 3).tolist()
    [[True, False, False]]
    """
    return F.pad(values, (0, count - values.shape[-1]))
