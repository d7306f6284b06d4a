"""GAP at node level: training people send their class along their lists, and the others pass on.

One person's whole contribution to a hop has norm 1: a message is divided by the root of the
sender's own list, nothing is cut, and the sensitivity is 1, or 2 where records are replaced
(privacy page, section 1).

In the first hop training people send the codes of their classes. What v then reads is the noisy sum
of its own row, and under ``own="record"`` also what the rows of those on v's own list say, which is
a function of v's record and of the release. There the list votes too, by fixed odds: a network of a
small budget starts from that friends tend to be alike and need not learn it. Without the own list
there is a second hop: people without a training label send what the released rows of *their* lists
say about their class. Roles pay apart: nobody is in both hops, so neither makes the other dearer.

Everybody who stands in a list has a row, there or not (:func:`gapgnn.graph.with_absent`): what one
person reads or sends does not change when another one leaves.
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

# Hops by who sends in them; a person is in one of the two.
OF_TRAINING, OF_OTHERS = "aggregation", "aggregation by the others"
# How much surer a person without a label is of the own class than the noise alone would say.
SHARPNESS = 2.0


def vote_width(num_classes: int, num_types: int, own: str) -> int:
    """Return how many numbers a classifier reads of what was released, without votes.

    >>> vote_width(6, 1, "features"), vote_width(6, 1, "record"), vote_width(6, 2, "record")
    (18, 12, 30)
    """
    blocks = num_types + 1 if num_types > 1 else 1
    return num_classes * (blocks + num_types if own == "record" else 2 * blocks + 1)


@dataclass(frozen=True)
class Votes:
    """How one graph's lists are read.

    Attributes:
        graph: with a row for everybody.
        num_present: how many of its nodes have a record; they come first.
        num_classes: C.
        own: what a prediction reads of its own person.
        sends_label: who sends the own label, (repeats, nodes): the training people.
        std: standard deviation of the noise of the first hop, the same for every edge type.
        prior: of the classes, around which codes lie, (repeats, C), the same for all repeats: it is
            declared; None is uniform.
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
        """The log-probabilities around which codes lie, (C)."""
        device = self.sends_label.device
        if self.prior is None:
            return torch.zeros(self.num_classes, device=device)
        return self.prior[0].clamp(min=1e-9).log().float().to(device)

    def run(
        self,
        session: PrivateSession,
        *,
        keep: bool = True,
        on_hop: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """Release the hops of a graph: the only reading of other people's adjacency lists.

        Args:
            session: which releases them.
            keep: write each hop to the session's checkpoint.
            on_hop: called after every hop.

        Returns:
            Noisy sums in units of their noise, edge types side by side.
        """
        released = [self._hop(session, OF_TRAINING, [self._labels] * self._num_types, keep)]
        on_hop()
        if self.own != "record":
            released.append(self._hop(session, OF_OTHERS, self._guesses(released[0]), keep))
            on_hop()
        return released

    @property
    def _num_types(self) -> int:
        return len(self.graph.edge_types)

    def _hop(
        self, session: PrivateSession, name: str, rows: Sequence[Tensor], keep: bool
    ) -> Tensor:
        sums = session.release(name, rows, keep=keep)
        blocks = [
            in_noise_units(one, std) for one, std in zip(sums, session.std(name), strict=True)
        ]
        return torch.cat(blocks, dim=-1)

    @property
    def _labels(self) -> Tensor:
        """What training people send: the code of their class; the others nothing."""
        device = self.sends_label.device
        labels = torch.tensor(self.graph.labels, device=device).clamp(min=0)
        return self._codes[labels] * self.sends_label.unsqueeze(-1)

    def _guesses(self, released: Tensor) -> list[Tensor]:
        """What people without a training label send: what the released rows of their lists say."""
        sums = [
            sums_listed(kind, rows)
            for kind, rows in zip(self.graph.edge_types, self._by_kind(released), strict=True)
        ]
        codes, log_prior = self._codes, self._log_prior
        # Around a prior codes are nearer to each other, by what counts are longer.
        sharpness = SHARPNESS * code_scale(self.num_classes, self.prior)

        def guess(rows: Tensor) -> Tensor:
            return mean_codes(sharpness * class_scores(rows, codes) + log_prior, codes)

        guesses = row_by_row(guess, _Rows(_together(sums)))
        # Rounding aside, whoever lists nobody has nothing to say.
        lists = sum(
            torch.tensor(kind.out_degrees, device=guesses.device) for kind in self.graph.edge_types
        )
        sends = ~self.sends_label & (lists > 0)
        return [guesses * sends.unsqueeze(-1)] * len(sums)

    def _by_kind(self, released: Tensor) -> Sequence[Tensor]:
        return released.chunk(len(self.graph.edge_types), dim=-1)

    @cached_property
    def _written(self) -> list[Tensor]:
        """What each node wrote to every row of its list, kind by kind, in units of the noise."""
        to_self = int(self.own == "record")
        found = []
        for kind in self.graph.edge_types:
            degrees = torch.from_numpy(kind.out_degrees + to_self).to(self.sends_label.device)
            roots = degrees.clamp(min=1).double().sqrt().unsqueeze(-1)
            scale = self.std or 1.0
            found.append((self._labels / roots / scale).float())
        return found

    def read(self, released: Sequence[Tensor]) -> Tensor:
        """Return what everybody with a record reads of what was released, (repeats, nodes, width).

        A function of the release and of each reader's own record: of the own label, which is taken
        out of the own row, and under ``own="record"`` of the own list. There the last columns, one
        for each class, are what the list votes.
        """
        if self.own == "record":
            sums = list(zip(self._by_kind(released[0]), self._written, strict=True))
            listed = [
                posteriors_listed(kind, rows, own, self._codes, self._log_prior)
                for kind, (rows, own) in zip(self.graph.edge_types, sums, strict=True)
            ]
            blocks = [*_with_sum([rows - own for rows, own in sums]), *listed]
            votes = [self._votes_listed(listed)[:, : self.num_present]]
        else:
            first, second = (self._by_kind(hop) for hop in released)
            blocks = [*_with_sum(first), *_with_sum(second), _together([*first, *second])]
            votes = []
        shown = _number_and_size if self._is_uneven_pair else direction_and_size
        read = [shown(block[:, : self.num_present]) for block in blocks]
        return torch.cat([*read, *votes], dim=-1)

    @property
    def _is_uneven_pair(self) -> bool:
        """Whether there are two classes, with declared rates that move their codes."""
        if self.prior is None or self.num_classes != 2:
            return False
        return bool(self.prior[0, 0] != self.prior[0, 1])

    def _votes_listed(self, listed: Sequence[Tensor]) -> Tensor:
        """Return what own lists vote, as class scores: each friend for the class its row says.

        Args:
            listed: of each edge type, what :func:`posteriors_listed` returns.
        """
        device = listed[0].device
        lengths = [
            torch.tensor(kind.out_degrees, dtype=torch.float64, device=device).unsqueeze(-1)
            for kind in self.graph.edge_types
        ]
        parts = [said * length.sqrt() for said, length in zip(listed, lengths, strict=True)]
        sums = torch.stack(parts).sum(dim=0)
        prior = None if self.prior is None else self.prior[0]
        votes = row_by_row(partial(class_counts, prior=prior), _Rows(sums.float()))
        return (vote_weights(torch.stack(lengths).sum(dim=0)) * votes).float()

    def inputs(self, features: FeatureInputs, released: Sequence[Tensor]) -> Inputs:
        """Return what a classifier reads of every node: features alone if nothing was released."""
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
    """Return what a classifier reads of a noisy sum of the codes of two classes.

    Their direction is a sign, which says the same of a row of noise as of a sure one. Where one
    class is rarer what counts is by how much a sum is on its side: the number itself.
    """
    return torch.cat([sums, torch.log1p(sums.abs()) / 2], dim=-1)


def _with_sum(sums: Sequence[Tensor]) -> list[Tensor]:
    """Return what was released along each edge type and, of several, what they say together."""
    return [*sums, _together(sums)] if len(sums) > 1 else list(sums)


def _together(sums: Sequence[Tensor]) -> Tensor:
    """Return a sum of noisy sums, as noisy as each: divided by the root of their number."""
    return torch.stack(list(sums)).sum(dim=0) / math.sqrt(len(sums))


def padded(values: Tensor, count: int) -> Tensor:
    """Return a mask of people with a record, with False for those who only stand in lists.

    >>> padded(torch.tensor([[True, False]]), 3).tolist()
    [[True, False, False]]
    """
    return F.pad(values, (0, count - values.shape[-1]))
