"""Stages of LabelGAP: the messages of a hop, its release, and the inputs of the next classifier.

A classifier is trained after every hop, and a node's next message is the mean code under its class
posterior. Training nodes send the code of their own class. Every message has norm at most 1 and is
computed from the sender's own record and from earlier releases, so one hop has the sensitivity of
the stated relation whatever the messages are (privacy page, section 1).

A node's own label is not part of its own row of hop 1, which sums the messages of its neighbours.
From the second hop on, a neighbour without a training label sends its class posterior, which may
depend on the node's label through the noisy sum of the previous hop. That label is one of many
messages in that sum, under noise.

With cross-fitting, features are read through cross-fitted feature models
(:mod:`gapgnn.training.crossfit`). Their log-probabilities are hop 0, and determine the messages of
nodes without a training label in hop 1. A stage then reads hop 0 and the *pool* of all hops so far:
their sum over the square root of their number, which has the noise of one hop. Its networks add a
correction to the feature model, which stays zero where edges are uninformative. A stage's posterior
is the mean over ensemble members that differ in their initial weights. Where a class is rare, a
regression (:mod:`gapgnn.methods.label_gap.regression`) may replace them or be averaged with them.
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
from gapgnn.methods.label_gap.own_messages import Messages, rows_of_repeats
from gapgnn.methods.label_gap.regression import StageRegression, columns_of, regression_of
from gapgnn.privacy import PrivateSession
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training import Criterion, CrossFit, FeatureInputs, FeatureModels, HopInputs, Inputs

First = Tensor | FeatureInputs
HOPS = "aggregation"
# Ensemble members of a stage, with cross-fitting.
MEMBERS = 2
# Candidate mixing weights of a stage, and shares of its regression where a class is rare; finer
# grids overfit the validation nodes.
MIXING_WEIGHTS = (1.0, 0.5, 0.0)
REGRESSION_SHARES = (0.5, 1.0)
# Factor on the log-probabilities of feature models in hop 1 where a class is rare, and the largest
# noise multiplier of a hop at which it is applied. Chosen on generated graphs with a rare class
# (docs/explanation/research-notes.md).
SHARPENING, LITTLE_NOISE = 1.4, 1.25


def stage_names(hops: int) -> tuple[str, ...]:
    """Return the names of the classifiers, one after each hop; the last one gives the predictions.

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
        prior: class probabilities at which codes are centred, (repeats, C); None is uniform. That
            of the training, on any graph to predict on.
        num_types: edge types, whose releases stand side by side.
        with_union: whether the released sum over the union of edge types follows them.
        crossfit: folds of the feature models, if they are cross-fitted.
        known: rows released earlier for the last nodes of the graph, hop 0 first; they replace the
            computed ones.
        noise_multiplier: of each hop; 0: no noise.
        own: messages of the user's own; None: class codes and class posteriors.
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
    own: Messages | None = None

    @cached_property
    def codes(self) -> Tensor:
        """The code of each class, (repeats, C, C - 1) or (C, C - 1)."""
        return class_codes(self.num_classes, prior=self.prior)

    def hop_zero(self, features: FeatureInputs, sends_label: Tensor) -> First:
        """Return hop 0 of the classifiers.

        Log-probabilities of the cross-fitted feature models, unit rows of the encoder's
        embeddings, or the features.
        """
        if self.crossfit is None:
            if "encoder" not in self.modules:
                return features
            with torch.no_grad():
                return row_normalise(self.modules["encoder"].embed(features.all()))
        models = FeatureModels.of(self.modules, "encoder")
        logs = self.crossfit.log_probabilities(models, features, sends_label)
        return self._with_known(0, logs)

    def inputs(self, first: First, released: Sequence[Tensor]) -> HopInputs:
        """Return a classifier's inputs, from hop 0 and the released hops."""
        if self.crossfit is not None:
            assert isinstance(first, Tensor)
            # One copy for each ensemble member.
            first, released = of_members(first), [of_members(pool_of(released))]
        read = []
        for hop in released:
            blocks = blocks_of(hop, self.num_types, with_union=self.with_union)
            columns = [direction_and_size(sums) for sums in blocks]
            read.append(columns[0] if len(columns) == 1 else torch.cat(columns, -1))
        return HopInputs(first, read)

    def scores(self, name: str, first: Any, released: Sequence[Tensor]) -> Tensor:
        """Return the class scores of a stage for every node, (repeats, nodes, classes)."""
        if self.crossfit is None:
            return self._applied(name, first, released)
        weight = self.modules[name].mixing_weight.view(-1, MEMBERS)[:, :1, None]
        posterior, regression = self._ensemble(name, first, released), self._regression(name)
        if regression.is_solved:
            posterior = regression.posterior_beside(posterior, columns_of(first, pool_of(released)))
        return mixed(posterior, first, weight).log()

    def weigh(
        self,
        name: str,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        validates: Tensor,
        criterion: Criterion | None = None,
        solved: Tensor | None = None,
    ) -> None:
        """Choose the mixing weight of a stage in its mixture with the feature model.

        The weight with the least validation loss, or with the best value of the criterion; with a
        solved regression also its share. Validation labels are public at edge level and no edge is
        read, so the choice is post-processing (privacy page, section 10). At weight 0, where the
        graph does not help, a stage gives the scores of the feature model.
        """
        assert isinstance(first, Tensor)
        posterior = self._ensemble(name, first, released)
        posteriors = {0.0: posterior}
        if solved is not None:
            regression, columns = self._regression(name), columns_of(first, pool_of(released))
            for share in REGRESSION_SHARES:
                regression.keep(solved, share)
                posteriors[share] = regression.posterior_beside(posterior, columns)
        pairs = [(share, weight) for share in posteriors for weight in MIXING_WEIGHTS]
        losses = []
        for share, weight in pairs:
            logs = mixed(posteriors[share], first, weight).log()
            if criterion is None:
                known = labels.clamp(min=0).expand(len(first), -1).unsqueeze(-1)
                losses.append(-(logs.gather(-1, known)[..., 0] * validates).sum(dim=1))
            else:
                losses.append(-criterion.of(logs, labels.expand(len(first), -1), validates))
        best = torch.tensor(pairs)[torch.stack(losses).argmin(dim=0).cpu()]
        self.modules[name].mixing_weight.copy_(of_members(best[:, 1]))
        if solved is not None:
            self._regression(name).keep(solved, best[:, 0])

    def _ensemble(self, name: str, first: First, released: Sequence[Tensor]) -> Tensor:
        """Return the mean posterior of the ensemble members, (repeats, nodes, classes)."""
        posteriors = torch.softmax(self._applied(name, first, released), dim=-1)
        return posteriors.view(-1, MEMBERS, *posteriors.shape[1:]).mean(dim=1)

    def _regression(self, name: str) -> StageRegression:
        regression = self.modules[regression_of(name)]
        assert isinstance(regression, StageRegression)
        return regression

    def _applied(self, name: str, first: First, released: Sequence[Tensor]) -> Tensor:
        scores: Tensor = self.modules[name](self.inputs(first, released).all())
        return scores

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
        has_rare_class: bool = False,
        on_hop: Callable[[], None] = lambda: None,
    ) -> tuple[First, list[Tensor]]:
        """Release all hops of a graph; its edges are read nowhere else.

        Args:
            session: releases the hops.
            features: of every node.
            labels: class of every node.
            sends_label: mask of the nodes that send their own label, (repeats, nodes).
            fit: trains a classifier after each hop; None: the networks are used as they are.
            validates: mask of the validation nodes of each repeat, for the mixing weights.
            criterion: metric that chooses the mixing weights; None: log loss.
            has_rare_class: whether to solve a regression after each hop.
            on_hop: called after every hop.

        Returns:
            Hop 0, and the noisy sums of each hop in units of their noise, so that classifiers do
            not depend on its level: edge types side by side, then their union.
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
                solved = None
                if has_rare_class:
                    assert isinstance(first, Tensor)
                    columns = columns_of(first, pool_of(released))
                    solved = self._regression(name).solved_on(columns, labels, sends_label)
                with torch.no_grad():
                    self.weigh(name, first, released, labels, validates, criterion, solved)
        return first, released

    def messages(
        self,
        features: FeatureInputs,
        labels: Tensor,
        sends_label: Tensor,
        released: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return every node's message in each hop, recomputed from the released rows.

        At edge level all inputs are public: features, labels and released rows.
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
        """Return every node's message in one hop: rows of norm at most 1."""
        codes, name = self.codes.to(labels.device), f"stage{hop - 1}"
        posteriors: Tensor | None = None
        if self.crossfit is not None:
            assert isinstance(first, Tensor)
            posteriors = self.scores(name, first, released) if released else self._sharpened(first)
        elif hop > 1:
            posteriors = self._applied(name, first, released)
        elif "encoder" in self.modules:
            posteriors = self.modules["encoder"](features.all())
        if self.own is not None:
            return rows_of_repeats(
                self.own,
                hop,
                features=features,
                labels=labels,
                sends_label=sends_label,
                codes=codes,
                scores=posteriors,
                released=released,
            )
        guesses = None if posteriors is None else mean_codes(posteriors, codes)
        return label_messages(labels, sends_label, codes, guesses)

    def _sharpened(self, first: Tensor) -> Tensor:
        """Return the scores behind the messages of nodes without a training label in hop 1.

        They are those of the feature models. If a class is rare, which is when the regression is
        solved, and the noise is small, they are sharpened, which biases them towards the common
        class. The codes of calibrated posteriors cancel in a sum; with the bias the sum also grows
        with the number of neighbours, so that a classifier can distinguish many neighbours from
        many neighbours of the rare class. Under more noise that signal is lost and the bias only
        reduces accuracy.
        """
        is_rare = FeatureModels.of(self.modules, "encoder").shrunk.is_solved
        is_sharpened = is_rare and self.noise_multiplier <= LITTLE_NOISE
        return first * SHARPENING if is_sharpened else first

    def _with_known(self, hop: int, rows: Tensor) -> Tensor:
        """Return the rows of a hop, with the rows released earlier in place of the last ones."""
        if not self.known:
            return rows
        kept = self.known[hop].expand(len(rows), *self.known[hop].shape).to(rows.dtype)
        return torch.cat([rows[:, : -kept.shape[1]], kept], dim=1)


def pool_of(released: Sequence[Tensor]) -> Tensor:
    """Return the sum of released hops over the root of their number: it has the noise of one."""
    return torch.stack(list(released)).sum(dim=0) / math.sqrt(len(released))


def mixed(posterior: Tensor, alone: Tensor, weight: float | Tensor) -> Tensor:
    """Return the posterior of a stage, mixed with that of the feature model.

    Args:
        posterior: of the stage, (repeats, nodes, classes).
        alone: log-probabilities of the feature model, (repeats, nodes, classes).
        weight: mixing weight of the stage.
    """
    mixture = weight * posterior + (1 - weight) * alone.exp()
    return mixture.clamp(min=torch.finfo(mixture.dtype).tiny)


def of_members(values: Tensor) -> Tensor:
    """Return one copy of the values per ensemble member, consecutively: (repeats times members)."""
    return values.repeat_interleave(MEMBERS, dim=0)


def label_messages(
    labels: Tensor, sends_label: Tensor, codes: Tensor, guesses: Tensor | None
) -> Tensor:
    """Return the messages of all nodes, shape (repeats, nodes, classes - 1).

    Args:
        labels: class of every node.
        sends_label: mask of the nodes that send their own label, (repeats, nodes): training nodes.
        codes: of the classes, from :func:`class_codes`.
        guesses: messages of the other nodes, (repeats, nodes, C - 1), see :func:`mean_codes`; None:
            zero.
    """
    own = codes[..., labels.clamp(min=0), :]
    if guesses is None:
        return own * sends_label.unsqueeze(-1)
    return torch.where(sends_label.unsqueeze(-1), own, guesses)
