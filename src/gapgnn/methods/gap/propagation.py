"""Hop after hop: what is sent, what is released, what the next network reads.

One path for all variants. ``features`` without stages is the paper's GAP: a hop is computed from
the hop before. With stages a network is trained after every hop, and what it says about a node is
what the node sends next: its embedding (``features``, which is ProGAP), its class (``labels``), or
both.

Every message has norm at most 1 and is computed from the sender's own record and from what was
released before, so one hop has the sensitivity of the stated relation whatever is sent (privacy
page, section 1).

Where there are several kinds of edges, a hop goes along each of them: the same message, or in the
paper's way each kind's own chain of hops. What was released along the kinds stands side by side in
a row, in the order of their names, and behind them their total where it is released too. Networks
also read the sum of all kinds, which says what the edges say together. Where there is a total, the
sums of the kinds are made to agree with it, which leaves less noise in them and in their sum
(:func:`reconciled`).

A node's own label does not come back to it: in a stage the labels of its neighbours arrive, and
its own label is in none of them. From the second stage on, a neighbour without a training label
sends its class posterior, which may have been moved by the node's label through the noisy sum of
the stage before; that echo is one of many messages in that sum, under noise.

With ``labels`` at edge level, features are read through cross-fitted networks of two shapes
(:mod:`gapgnn.training.crossfit`), up to 4,000 training nodes with linear ones beside them: what
these say is hop 0, and what a node without a training label sends in hop 1. A stage then reads hop
0 and the *pool* of all hops so far: their sum, over the root of their number so that its noise is
as large as that of one. Its networks add to what features say: where edges tell nothing, nothing
has to be learned. What a stage says is the mean of the posteriors of several networks that differ
in their initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from gapgnn.methods import Hops
from gapgnn.methods.gap.codes import class_codes, direction_and_size, in_noise_units, mean_codes
from gapgnn.methods.gap.variant import Variant
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training import (
    Criterion,
    CrossFit,
    FeatureInputs,
    HopInputs,
    Inputs,
    Voices,
    row_by_row,
)

First = Tensor | FeatureInputs
# Networks of a stage whose posteriors are averaged, where features are read through others.
MEMBERS = 2
# How far a stage may be believed; finer shares follow the luck of the validation nodes.
TRUST = (1.0, 0.5, 0.0)
# By how much log-probabilities are multiplied in hop 1 where a class is rare.
LEAN = 1.15


@dataclass(frozen=True)
class Propagation:
    """How a model reads the edges of a graph.

    Attributes:
        variant: what is sent and which networks there are.
        num_classes: C.
        modules: the networks by phase.
        num_kinds: of edges, whose releases stand side by side.
        has_total: whether the released total over all kinds stands behind them.
        crossfit: who learns from whom in the networks that read features, where there are several.
        known: rows that were released before, of those who stand last among the nodes, hop 0
            first; they are taken as they are.
        prior: of the classes, around which their codes lie, (repeats, C); None is uniform. The one
            that the networks were trained with, on whichever graph they predict.
    """

    variant: Variant
    num_classes: int
    modules: Mapping[str, Any]
    num_kinds: int = 1
    has_total: bool = False
    crossfit: CrossFit | None = None
    known: tuple[Tensor, ...] = ()
    prior: Tensor | None = None

    @cached_property
    def _codes_sent(self) -> Tensor:
        """The code of each class, (repeats, C, C - 1), where labels are sent."""
        return class_codes(self.num_classes, prior=self.prior)

    def codes(self, device: torch.device) -> Tensor:
        """Return the code of each class, (repeats, C, C - 1) or (C, C - 1)."""
        return self._codes_sent.to(device)

    def hop_zero(self, features: FeatureInputs, sends_label: Tensor) -> First:
        """Return what classifiers read as hop 0.

        Log-probabilities of cross-fitted networks, unit rows of codes, or the features.
        """
        if self.variant.is_cross_fitted:
            assert self.crossfit is not None
            voices = Voices.of(self.modules, "encoder")
            return self._with_known(
                0, self.crossfit.log_probabilities(voices, features, sends_label)
            )
        if self.variant.reads_codes:
            return self._codes(features, len(sends_label))
        return features

    def _codes(self, features: FeatureInputs, repeats: int) -> Tensor:
        """Return unit rows of the encoder's codes; without an encoder, of the features."""
        if "encoder" in self.modules:
            with torch.no_grad():
                return self._of_features(
                    lambda rows: row_normalise(self.modules["encoder"].embed(rows)), features
                )
        rows = row_normalise(features.dense())
        return rows.expand(repeats, *rows.shape)

    def inputs(self, first: First, released: Sequence[Tensor]) -> HopInputs:
        """Return what a classifier reads of hop 0 and of what was released."""
        if self.variant.is_cross_fitted:
            assert isinstance(first, Tensor)
            # One for each network of a stage.
            pool = torch.stack(list(released)).sum(dim=0) / math.sqrt(len(released))
            first, released = of_members(first), [of_members(pool)]
        blocks = [self.of_kinds(hop) for hop in released]
        if not self.variant.is_papers:
            blocks = [[direction_and_size(sums) for sums in hop] for hop in blocks]
        return HopInputs(first, [hop[0] if len(hop) == 1 else torch.cat(hop, -1) for hop in blocks])

    def of_kinds(self, hop: Tensor) -> list[Tensor]:
        """Return what a released row says of each kind of edges and, of several, of their sum.

        All in units of their noise, where the row is: kinds and their total each have noise 1.
        """
        blocks = list(hop.chunk(self.num_kinds + self.has_total, dim=-1))
        if self.num_kinds == 1:
            return blocks
        if not self.has_total:
            return [*blocks, torch.stack(blocks).sum(dim=0) / math.sqrt(self.num_kinds)]
        kinds, total = reconciled(blocks[:-1], blocks[-1])
        noise = math.sqrt(self.num_kinds / (self.num_kinds + 1))
        return [block / noise for block in (*kinds, total)]

    def scores(self, phase: str, first: First, released: Sequence[Tensor]) -> Tensor:
        """Return what a stage says about every node, (repeats, nodes, classes)."""
        found = self.applied(self.modules[phase], first, released)
        if not self.variant.is_cross_fitted:
            return found
        assert isinstance(first, Tensor)
        trust = self.modules[phase].trust.view(-1, MEMBERS)[:, :1, None]
        return torch.log(believed(found, first, trust))

    def weigh(
        self,
        phase: str,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        validates: Tensor,
        criterion: Criterion | None = None,
    ) -> None:
        """Decide how far a stage is believed and how far what features say alone.

        The share with the least validation loss, or the best of the named metric; validation
        labels are public at edge level, and nothing is asked of the edges again (privacy page,
        section 10). Where the graph only distracts, a stage says what features say.
        """
        assert isinstance(first, Tensor)
        found, network = self.applied(self.modules[phase], first, released), self.modules[phase]
        shares = torch.tensor(TRUST, device=found.device)
        known = labels.clamp(min=0).expand(len(first), -1).unsqueeze(-1)
        losses = torch.stack(
            [
                -(believed(found, first, share).gather(-1, known)[..., 0].log() * validates).sum(1)
                for share in shares
            ]
        )
        if criterion is not None:
            said = [torch.log(believed(found, first, share)) for share in shares]
            own = labels.expand(len(first), -1)
            losses = -torch.stack([criterion.of(one, own, validates) for one in said])
        best = shares[losses.argmin(dim=0)]
        network.trust.copy_(of_members(best))

    def applied(
        self, network: Callable[[Any], Tensor], first: First, released: Sequence[Tensor]
    ) -> Tensor:
        """Return what a network makes of every node's hop 0 and released rows.

        At node level nodes are read in batches of one size, so that nobody's last bits tell how
        many others there are.
        """
        if self.variant.level != "node":
            return network(self.inputs(first, released).all())

        def of_batch(rows: Sequence[Any]) -> Tensor:
            return network(self.inputs(rows[0], rows[1:]).all())

        return row_by_row(of_batch, HopInputs(first, released))

    def _of_features(self, network: Callable[[Any], Tensor], features: FeatureInputs) -> Tensor:
        """Return what a network makes of every node's features; at node level in batches too."""
        if self.variant.level != "node":
            return network(features.all())
        return row_by_row(network, features)

    def run(
        self,
        aggregations: Sequence[Hops],
        features: FeatureInputs,
        labels: Tensor,
        sends_label: Tensor,
        *,
        fit: Callable[[str, Inputs], None] | None = None,
        validates: Tensor | None = None,
        criterion: Criterion | None = None,
        on_hop: Callable[[], None] | None = None,
    ) -> tuple[First, list[Tensor]]:
        """Release all hops of a graph: the only reading of its edges.

        Args:
            aggregations: the mechanism of each kind of edges, which knows graph, noise and price,
                and of their total, where it is released.
            features: of every node.
            labels: class of every node.
            sends_label: which nodes send their own label, (repeats, nodes).
            fit: trains the network of each phase; without it the networks are as they are.
            validates: who validates in each repeat, which decides how far stages are believed.
            criterion: by which figure it is decided; None: log loss.
            on_hop: called after every hop.

        Returns:
            Hop 0, and the noisy rows of each hop, kinds side by side and their total behind them,
            where it is released: of norm 1 in the paper's way, otherwise noisy sums in units of
            their noise, so that a classifier need not know its level.
        """
        first = self.hop_zero(features, sends_label)
        released: list[Tensor] = []
        for hop in range(1, self.variant.hops + 1):
            with torch.no_grad():
                rows = self._rows(hop, features, first, released, labels, sends_label)
                sent = [rows] * len(aggregations)
                if self.variant.is_papers and released:
                    sent = list(rows.chunk(len(aggregations), dim=-1))
                blocks = [
                    self._released(one, sent[kind], (hop - 1) * len(aggregations) + kind + 1)
                    for kind, one in enumerate(aggregations)
                ]
            block = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)
            released.append(self._with_known(hop, block))
            if on_hop is not None:
                on_hop()
            if fit is not None and self.variant.phase(hop) in self.modules:
                phase = self.variant.phase(hop)
                fit(phase, self.inputs(first, released))
                if self.variant.is_cross_fitted and validates is not None:
                    with torch.no_grad():
                        self.weigh(phase, first, released, labels, validates, criterion)
        return first, released

    def sent(
        self,
        features: FeatureInputs,
        labels: Tensor,
        sends_label: Tensor,
        released: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return what every node sent in each hop, recomputed from what was released since.

        At edge level all of it is public: features, labels and released rows.
        """
        first = self.hop_zero(features, sends_label)
        return [
            self._rows(hop, features, first, released[: hop - 1], labels, sends_label)
            for hop in range(1, self.variant.hops + 1)
        ]

    def leaning(self, first: Tensor) -> Tensor:
        """Return what nodes without a training label say of themselves in hop 1.

        What features say; where a regression stands beside networks, as a class is rare, a little
        surer than that, which leans to the common class. Calibrated posteriors cancel in a sum:
        only with the lean does it tell how many neighbours there are, and a network can tell many
        neighbours from many of the rare class.
        """
        shrunk = Voices.of(self.modules, "encoder").shrunk
        return first * LEAN if shrunk is not None and shrunk.is_solved else first

    def _with_known(self, hop: int, rows: Tensor) -> Tensor:
        """Return the rows of a hop with those that were released before in their place."""
        if not self.known:
            return rows
        kept = self.known[hop].expand(len(rows), *self.known[hop].shape).to(rows.dtype)
        return torch.cat([rows[:, : -kept.shape[1]], kept], dim=1)

    def _released(self, aggregation: Hops, rows: Tensor, number: int) -> Tensor:
        """Release one hop along one kind of edges; its number is used for no other kind."""
        noisy = aggregation.hop(rows, number, normalise=self.variant.is_papers)
        if self.variant.is_papers or not aggregation.std:
            return noisy
        return in_noise_units(noisy, aggregation.std)

    def _rows(
        self,
        hop: int,
        features: FeatureInputs,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        sends_label: Tensor,
    ) -> Tensor:
        """Return what every node sends in one hop: rows of norm at most 1."""
        if self.variant.is_papers and released:
            return released[-1]
        codes = self.codes(labels.device)
        if self.variant.is_cross_fitted:
            assert isinstance(first, Tensor)
            said = (
                self.scores(f"stage{hop - 1}", first, released) if released else self.leaning(first)
            )
            return label_messages(labels, sends_label, codes, mean_codes(said, codes))
        network: Any = None
        apply: Callable[[Callable[[Any], Tensor]], Tensor]
        if hop > 1:
            network = self.modules[f"stage{hop - 1}"]
            apply = partial(self.applied, first=first, released=released)
        elif "encoder" in self.modules:
            network = self.modules["encoder"]
            apply = partial(self._of_features, features=features)
        sent = []
        if self.variant.messages != "features":
            guesses = None
            if network is not None:
                guesses = apply(lambda rows: mean_codes(network(rows), codes))
            sent.append(label_messages(labels, sends_label, codes, guesses))
        if self.variant.messages != "labels":
            repeats = len(sends_label)
            codes = self._codes(features, repeats) if network is None else apply(network.embed)
            sent.append(row_normalise(codes))
        return sent[0] if len(sent) == 1 else joint_messages(sent[0], sent[1])


def believed(scores: Tensor, alone: Tensor, trust: Tensor) -> Tensor:
    """Return the mean posterior of a stage's networks, mixed with what features say alone.

    Args:
        scores: of the networks, (repeats times members, nodes, classes).
        alone: log-probabilities, (repeats, nodes, classes).
        trust: the share of the networks.
    """
    said = torch.softmax(scores, dim=-1).view(-1, MEMBERS, *scores.shape[1:]).mean(dim=1)
    tiny = torch.finfo(said.dtype).tiny
    return (trust * said + (1 - trust) * alone.exp()).clamp(min=tiny)


def of_members(values: Tensor) -> Tensor:
    """Return what every network of a stage reads, one after the other: (repeats times members)."""
    return values.repeat_interleave(MEMBERS, dim=0)


def reconciled(kinds: Sequence[Tensor], total: Tensor) -> tuple[list[Tensor], Tensor]:
    """Make noisy sums of several kinds agree with their noisy total: the least squares.

    By how much the total is above the sum of M kinds is noise of variance M + 1; a share of
    1 / (M + 1) of it belongs to each kind and to the total. Kinds and sum then have a variance of
    M / (M + 1), which no other unbiased mean of these releases is below.

    >>> kinds, total = reconciled([torch.tensor([2.0]), torch.tensor([3.0])], torch.tensor([8.0]))
    >>> [kind.tolist() for kind in kinds], total.tolist()
    ([[3.0], [4.0]], [7.0])
    """
    missing = (total - torch.stack(list(kinds)).sum(dim=0)) / (len(kinds) + 1)
    return [kind + missing for kind in kinds], total - missing


def blocks_read(num_kinds: int) -> int:
    """Return how many blocks of columns a network reads of a hop: each kind, and their sum.

    >>> blocks_read(1), blocks_read(3)
    (1, 4)
    """
    return num_kinds + 1 if num_kinds > 1 else 1


def label_messages(
    labels: Tensor, sends_label: Tensor, codes: Tensor, guesses: Tensor | None
) -> Tensor:
    """Return what nodes send of their class, shape (repeats, nodes, classes - 1).

    Args:
        labels: class of every node.
        sends_label: which nodes send their own label, (repeats, nodes): the training nodes.
        codes: of the classes, what :func:`class_codes` returned.
        guesses: what the others send, (repeats, nodes, C - 1), see :func:`mean_codes`; None: they
            send nothing.
    """
    own = codes[..., labels.clamp(min=0), :]
    if guesses is None:
        return own * sends_label.unsqueeze(-1)
    return torch.where(sends_label.unsqueeze(-1), own, guesses)


def joint_messages(first: Tensor, second: Tensor) -> Tensor:
    """Put two messages side by side, scaled so that the norm stays at most 1."""
    return torch.cat([first, second], dim=-1) / math.sqrt(2)
