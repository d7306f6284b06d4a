"""Stages of LabelGAP: what is sent in a hop, what is released, what the next classifier reads.

A classifier is trained after every hop, and the class posterior that it gives to a node is what the
node sends next. Training nodes send the code of their own class. Every message has norm at most 1
and is computed from the sender's own record and from earlier releases, so one hop has the
sensitivity of the stated relation whatever is sent (privacy page, section 1).

A node's own label does not come back to it: in a hop the labels of its neighbours arrive, and its
own label is in none of them. From the second hop on, a neighbour without a training label sends its
class posterior, which may have been moved by the node's label through the noisy sum of the hop
before; that echo is one of many messages in that sum, under noise.

With cross-fitting, features are read through cross-fitted feature models
(:mod:`gapgnn.training.crossfit`): their log-probabilities are hop 0, and what a node without a
training label sends in hop 1. A stage then reads hop 0 and the *pool* of all hops so far: their
sum, over the root of their number so that its noise is as large as that of one. Its networks add to
the feature model: where edges tell nothing, nothing has to be learned. A stage's posterior is the
mean over an ensemble of networks that differ in their initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gapgnn.methods import blocks_of, direction_and_size, in_noise_units
from gapgnn.methods.label_gap.codes import class_codes, mean_codes
from gapgnn.privacy import PrivateSession
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training import Criterion, CrossFit, FeatureInputs, FeatureModels, HopInputs, Inputs

First = Tensor | FeatureInputs
HOPS = "aggregation"
# Ensemble members of a stage, where features are read through others.
MEMBERS = 2
# Mixing weights of a stage; finer ones follow the luck of the validation nodes.
MIXING_WEIGHTS = (1.0, 0.5, 0.0)
# By how much log-probabilities of feature models are sharpened in hop 1 where a class is rare, and
# the noise multiplier of a hop up to which they are. Chosen on generated graphs with a rare class
# (docs/research-notes.md).
SHARPENING, LITTLE_NOISE = 1.4, 1.25


def stage_names(hops: int) -> tuple[str, ...]:
    """Return the names of the classifiers, the one after each hop; the last one classifies.

    >>> stage_names(3)
    ('stage1', 'stage2', 'classifier')
    """
    return (*(f"stage{hop}" for hop in range(1, hops)), "classifier")


@dataclass(frozen=True)
class Stages:
    """How a model reads the edges of a graph.

    Attributes:
        hops: number K of noisy aggregations.
        modules: the networks by name.
        num_classes: C.
        prior: of the classes, around which their codes lie, (repeats, C); None is uniform. The one
            that the networks were trained with, on whichever graph they predict.
        num_types: edge types, whose releases stand side by side.
        with_union: whether the released sum over their union stands behind them.
        crossfit: who learns from whom in the feature models, where they are cross-fitted.
        known: rows that were released before, of those who stand last among the nodes, hop 0
            first; they are taken as they are.
        noise_multiplier: of each hop; 0: no noise.
    """

    hops: int
    modules: Mapping[str, Any]
    num_classes: int
    prior: Tensor | None = None
    num_types: int = 1
    with_union: bool = False
    crossfit: CrossFit | None = None
    known: tuple[Tensor, ...] = ()
    noise_multiplier: float = 0.0

    @cached_property
    def codes(self) -> Tensor:
        """The code of each class, (repeats, C, C - 1) or (C, C - 1)."""
        return class_codes(self.num_classes, prior=self.prior)

    def hop_zero(self, features: FeatureInputs, sends_label: Tensor) -> First:
        """Return what classifiers read as hop 0.

        Log-probabilities of the cross-fitted feature models, unit rows of the encoder's
        embeddings, or the features.
        """
        if self.crossfit is None:
            if "encoder" not in self.modules:
                return features
            with torch.no_grad():
                return row_normalise(self.modules["encoder"].embed(features.all()))
        models = FeatureModels.of(self.modules, "encoder")
        found = self.crossfit.log_probabilities(models, features, sends_label)
        return self._with_known(0, found)

    def inputs(self, first: First, released: Sequence[Tensor]) -> HopInputs:
        """Return what a classifier reads of hop 0 and of what was released."""
        if self.crossfit is not None:
            assert isinstance(first, Tensor)
            # One for each member of a stage.
            pool = torch.stack(list(released)).sum(dim=0) / math.sqrt(len(released))
            first, released = of_members(first), [of_members(pool)]
        read = []
        for hop in released:
            blocks = blocks_of(hop, self.num_types, with_union=self.with_union)
            shown = [direction_and_size(sums) for sums in blocks]
            read.append(shown[0] if len(shown) == 1 else torch.cat(shown, -1))
        return HopInputs(first, read)

    def scores(self, name: str, first: Any, released: Sequence[Tensor]) -> Tensor:
        """Return the class scores of a stage for every node, (repeats, nodes, classes)."""
        found = self._applied(name, first, released)
        if self.crossfit is None:
            return found
        weight = self.modules[name].trust.view(-1, MEMBERS)[:, :1, None]
        return torch.log(mixed(found, first, weight))

    def weigh(
        self,
        name: str,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        validates: Tensor,
        criterion: Criterion | None = None,
    ) -> None:
        """Choose the mixing weight of a stage beside the feature model alone.

        The one with the least validation loss, or the best of the named metric; validation labels
        are public at edge level, and edges are not read again (privacy page, section 10). Where the
        graph only distracts, a stage gives the scores of the feature model.
        """
        assert isinstance(first, Tensor)
        found, network = self._applied(name, first, released), self.modules[name]
        weights = torch.tensor(MIXING_WEIGHTS, device=found.device)
        known = labels.clamp(min=0).expand(len(first), -1).unsqueeze(-1)
        losses = torch.stack(
            [
                -(mixed(found, first, weight).gather(-1, known)[..., 0].log() * validates).sum(1)
                for weight in weights
            ]
        )
        if criterion is not None:
            candidates = [torch.log(mixed(found, first, weight)) for weight in weights]
            own = labels.expand(len(first), -1)
            losses = -torch.stack([criterion.of(one, own, validates) for one in candidates])
        best = weights[losses.argmin(dim=0)]
        network.trust.copy_(of_members(best))

    def _applied(self, name: str, first: First, released: Sequence[Tensor]) -> Tensor:
        found: Tensor = self.modules[name](self.inputs(first, released).all())
        return found

    def run(
        self,
        session: PrivateSession,
        features: FeatureInputs,
        labels: Tensor,
        sends_label: Tensor,
        *,
        fit: Callable[[str, Inputs], None] | None = None,
        validates: Tensor | None = None,
        criterion: Criterion | None = None,
        on_hop: Callable[[], None] = lambda: None,
    ) -> tuple[First, list[Tensor]]:
        """Release all hops of a graph: the only reading of its edges.

        Args:
            session: which releases them.
            features: of every node.
            labels: class of every node.
            sends_label: which nodes send their own label, (repeats, nodes).
            fit: trains a classifier after each hop; without it the networks are as they are.
            validates: who validates in each repeat, which decides the mixing weights.
            criterion: by which figure they are decided; None: log loss.
            on_hop: called after every hop.

        Returns:
            Hop 0, and the noisy sums of each hop in units of their noise, so that a classifier need
            not know its level: edge types side by side and their union behind them.
        """
        first = self.hop_zero(features, sends_label)
        released: list[Tensor] = []
        for hop, name in enumerate(stage_names(self.hops), start=1):
            with torch.no_grad():
                rows = self._messages(hop, features, first, released, labels, sends_label)
                blocks = [
                    in_noise_units(one, std) if std else one
                    for one, std in zip(session.release(HOPS, rows), session.std(HOPS), strict=True)
                ]
            block = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)
            released.append(self._with_known(hop, block))
            on_hop()
            if fit is None:
                continue
            fit(name, self.inputs(first, released))
            if self.crossfit is not None and validates is not None:
                with torch.no_grad():
                    self.weigh(name, first, released, labels, validates, criterion)
        return first, released

    def messages(
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
            self._messages(hop, features, first, released[: hop - 1], labels, sends_label)
            for hop in range(1, self.hops + 1)
        ]

    def _messages(
        self,
        hop: int,
        features: FeatureInputs,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        sends_label: Tensor,
    ) -> Tensor:
        """Return what every node sends in one hop: rows of norm at most 1."""
        codes, name = self.codes.to(labels.device), f"stage{hop - 1}"
        posteriors: Tensor | None = None
        if self.crossfit is not None:
            assert isinstance(first, Tensor)
            posteriors = self.scores(name, first, released) if released else self._sharpened(first)
        elif hop > 1:
            posteriors = self._applied(name, first, released)
        elif "encoder" in self.modules:
            posteriors = self.modules["encoder"](features.all())
        guesses = None if posteriors is None else mean_codes(posteriors, codes)
        return label_messages(labels, sends_label, codes, guesses)

    def _sharpened(self, first: Tensor) -> Tensor:
        """Return the scores that nodes without a training label send in hop 1.

        Those of the feature models. With little noise, and where a regression stands beside the
        networks as a class is rare, a little surer than that, which leans towards the common class.
        Calibrated posteriors cancel in a sum: only with the lean does it say how many neighbours
        there are, so that a classifier can tell many neighbours from many neighbours of the rare
        class. More noise hides what does not cancel, and under it the lean only loses.
        """
        shrunk = FeatureModels.of(self.modules, "encoder").shrunk
        is_rare = shrunk is not None and shrunk.is_solved
        leans = is_rare and self.noise_multiplier <= LITTLE_NOISE
        return first * SHARPENING if leans else first

    def _with_known(self, hop: int, rows: Tensor) -> Tensor:
        """Return the rows of a hop with those that were released before in their place."""
        if not self.known:
            return rows
        kept = self.known[hop].expand(len(rows), *self.known[hop].shape).to(rows.dtype)
        return torch.cat([rows[:, : -kept.shape[1]], kept], dim=1)


def mixed(scores: Tensor, alone: Tensor, weight: Tensor) -> Tensor:
    """Return the mean posterior of a stage's members, mixed with that of the feature model.

    Args:
        scores: of the members, (repeats times members, nodes, classes).
        alone: log-probabilities of the feature model, (repeats, nodes, classes).
        weight: of the members.
    """
    posterior = torch.softmax(scores, dim=-1).view(-1, MEMBERS, *scores.shape[1:]).mean(dim=1)
    tiny = torch.finfo(posterior.dtype).tiny
    return (weight * posterior + (1 - weight) * alone.exp()).clamp(min=tiny)


def of_members(values: Tensor) -> Tensor:
    """Return what every member of a stage reads, one after the other: (repeats times members)."""
    return values.repeat_interleave(MEMBERS, dim=0)


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
