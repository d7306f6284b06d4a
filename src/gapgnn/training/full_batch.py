"""Full-batch training: what one epoch computes.

Nothing is computed twice or for nobody. Nodes with equal features have equal scores: where many are
alike and nothing tells them apart, one row stands for all of them, and what the loss wants of it is
added up beforehand. Where a node's scores follow from its own rows and the moments of the inputs,
only training and validation nodes are scored; with dropout the training nodes in one pass, and the
validation nodes in another one without it, every few epochs. Where most nodes train, they also
stand for all in the batch statistics of an epoch with dropout; nodes validate by those of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gapgnn.nn import (
    MultiHopClassifier,
    ReplicaDropout,
    best_class,
    cross_entropy,
    cross_entropy_gradients,
)
from gapgnn.nn.kernels import lookup
from gapgnn.privacy.dpsgd import FlatParameters
from gapgnn.training.criterion import Criterion
from gapgnn.training.inputs import FeatureInputs, HopInputs, Inputs

# Where it takes a pass of its own, validation nodes are looked at after so many steps.
EVERY = 4


class FullBatch:
    """One training set in one piece, for all replicas.

    Args:
        model: gives class scores.
        inputs: what it reads.
        flat: its parameters.
        labels: class of every node, -1 where unknown.
        train: each replica's training nodes, ``(R, nodes)``.
        val: each replica's validation nodes.
        class_weights: what a node of each class counts, ``(classes,)``; None counts all alike.
        criterion: what the best epoch is chosen by; None: weighted accuracy.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        flat: FlatParameters,
        *,
        labels: Tensor,
        train: Tensor,
        val: Tensor,
        class_weights: Tensor | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        self._model, self._flat = model, flat
        self.has_dropout = bool(dropouts(model))
        replicas, self._known = len(train), labels.clamp(min=0)
        shares = train if class_weights is None else train * class_weights[self._known]
        self._weights = shares / shares.sum(dim=1, keepdim=True)
        view = clean = None
        if not labels.is_cuda:
            # Dropout tells nodes apart that are alike, and is off where nodes validate.
            used = train if self.has_dropout else train | val
            alike = None if self.has_dropout else _distinct(inputs, replicas)
            is_most = self.has_dropout and bool((2 * train.sum(dim=1) >= train.shape[1]).all())
            view = alike or _sampled(
                model, inputs, used, alike=not self.has_dropout, is_most=is_most
            )
            if self.has_dropout:
                clean = _distinct(inputs, replicas) or _sampled(model, inputs, val, alike=True)
        nodes = torch.arange(len(labels), device=labels.device).expand(replicas, -1)
        everybody = View(inputs.all, nodes, nodes)
        view = view or everybody
        # With dropout the training view may lack the validation nodes.
        clean = clean or (everybody if self.has_dropout else view)
        self._argument, self._clean_argument = view.argument, clean.argument
        self._targets = None
        if not labels.is_cuda:
            weights = self._weights.gather(1, view.nodes)
            self._targets = Targets(self._known[view.nodes], view.rows, weights)
        is_val = val.gather(1, clean.nodes)
        self.best = BestEpoch(
            flat.values,
            labels[clean.nodes],
            clean.rows,
            is_val,
            class_weights=class_weights,
            criterion=criterion,
        )

    def gradient(self, *, is_watched: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return gradient ``(R, P)``, summed loss (zero if nobody watches), validation accuracy.

        With dropout nobody validates here: see :meth:`look`.
        """
        scores = self._model(self._argument())
        accuracy = None if self.has_dropout else self.best.consider(scores.detach())
        if self._targets is None:
            wanted = (scores, self._known, self._weights)
            kernel = lookup("cross_entropy_gradient", scores.device, *wanted)
            if kernel is not None and not is_watched:
                gradient = self._flat.gradient(scores, kernel(*wanted))
                return gradient, scores.new_zeros(()), accuracy
            loss = (cross_entropy(scores, self._known) * self._weights).sum()
            return self._flat.gradient(loss), loss.detach(), accuracy
        gradients, probabilities = cross_entropy_gradients(scores, *self._targets.of(scores))
        loss = self._targets.loss(probabilities) if is_watched else scores.new_zeros(())
        return self._flat.gradient(scores, gradients), loss, accuracy

    def look(self) -> Tensor | None:
        """Remember the parameters if they are the best so far; return the mean accuracy."""
        return self.best.consider(self.clean_scores())

    def clean_scores(self) -> Tensor:
        """Return the scores with batch statistics and without dropout."""
        return clean_scores(self._model, self._clean_argument())


@dataclass(frozen=True)
class View:
    """What a network reads in training.

    Attributes:
        argument: returns it.
        nodes: which nodes it covers, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
    """

    argument: Callable[[], Any]
    nodes: Tensor
    rows: Tensor


def _distinct(inputs: Inputs, replicas: int) -> View | None:
    """Return one row for all nodes that are alike, if there are many."""
    found = inputs.distinct() if isinstance(inputs, FeatureInputs) else None
    if found is None:
        return None
    rows = found.index.expand(replicas, -1)
    nodes = torch.arange(rows.shape[1]).expand(replicas, -1)
    return View(found.all, nodes, rows)


def _sampled(
    model: nn.Module, inputs: Inputs, used: Tensor, *, alike: bool, is_most: bool = False
) -> View | None:
    """Return the nodes that are used for something, if the network can do without the others.

    ``alike``: nodes with the same features share what is computed from them. ``is_most``: they are
    so many that batch statistics of theirs will do.
    """
    counts = used.sum(dim=1)
    if not isinstance(inputs, HopInputs) or not counts[0] or bool((counts != counts[0]).any()):
        return None
    if not isinstance(model, MultiHopClassifier) or model.corrects_first:
        return None
    if not model.takes_samples and not is_most:
        return None
    nodes = used.nonzero()[:, 1].view(len(used), -1)
    sample = inputs.sampled(nodes, first_whole=model.reads_first_whole, alike=alike)
    if sample is None:
        return None
    return View(lambda: sample, nodes, torch.arange(nodes.shape[1]).expand_as(nodes))


class BestEpoch:
    """Remembers each replica's parameters at its best validation accuracy (free at edge level).

    Args:
        values: the parameters, ``(R, P)``, which training changes in place.
        labels: class of some nodes, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
        val: which of these nodes are for validation, ``(R, n)``.
        class_weights: what a node of each class counts; None counts all alike.
        loss_share: how much of the validation loss is taken off the accuracy. Where validation
            nodes are few, many epochs have the same accuracy, and the best of them is luck.
        criterion: what the best epoch is chosen by instead; None: weighted accuracy.
    """

    def __init__(
        self,
        values: Tensor,
        labels: Tensor,
        rows: Tensor,
        val: Tensor,
        *,
        class_weights: Tensor | None = None,
        loss_share: float = 0.0,
        criterion: Criterion | None = None,
    ) -> None:
        self._current, self._loss_share = values, loss_share
        self._criterion = criterion
        counts = val.sum(dim=1)
        self._can_choose = bool(counts.all())
        # Each replica's validation nodes first, then others to fill up.
        order = val.int().argsort(dim=1, descending=True, stable=True)
        first = order[:, : int(counts.max())]
        self._worth, self._labels = val.gather(1, first), labels.gather(1, first)
        self._known = self._worth.bool()
        if class_weights is not None:
            self._worth = self._worth * class_weights[self._labels.clamp(min=0)]
        self._total = self._worth.sum(dim=1)
        self._rows = rows.gather(1, first)
        self._replicas = torch.arange(len(val), device=labels.device).unsqueeze(1)
        self._best = torch.full((len(values),), -math.inf, device=labels.device)
        self._values = values.clone()
        self._has_chosen = False

    def consider(self, scores: Tensor) -> Tensor | None:
        """Look at scores made with the current parameters; return the mean validation accuracy."""
        if not self._can_choose:
            return None
        self._has_chosen = True
        scores = scores[self._replicas, self._rows]
        right = best_class(scores) == self._labels
        accuracy = (right * self._worth).sum(dim=1) / self._total
        worth = accuracy
        if self._loss_share:
            losses = cross_entropy(scores, self._labels.clamp(min=0)) * self._worth
            worth = accuracy - self._loss_share * losses.sum(dim=1) / self._total
        if self._criterion is not None:
            worth = self._criterion.of(scores, self._labels, self._known).to(worth.dtype)
        better = worth > self._best
        self._best.copy_(torch.where(better, worth, self._best))
        self._values.copy_(torch.where(better.unsqueeze(1), self._current, self._values))
        return accuracy.mean()

    def restore(self) -> None:
        """Go back to the best parameters; if none were considered the last ones stay."""
        if self._has_chosen:
            self._current.copy_(self._values)


class Targets:
    """What the scores should say: each class's weight in the loss of each row.

    Args:
        labels: class of some nodes, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
        weights: the weight of each of these nodes in the loss, ``(R, n)``.
    """

    def __init__(self, labels: Tensor, rows: Tensor, weights: Tensor) -> None:
        self._labels, self._rows, self._weights = labels, rows, weights
        self._found: tuple[Tensor, Tensor] | None = None

    def of(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights by class, ``(R, classes, rows)``, and their sums, ``(R, 1, rows)``."""
        if self._found is None:
            replicas, rows, classes = scores.shape
            total = scores.new_zeros(replicas, classes * rows)
            self._places = self._labels * rows + self._rows
            total.scatter_add_(1, self._places, self._weights)
            targets = total.view(replicas, classes, rows)
            self._found = targets, targets.sum(1, keepdim=True)
        return self._found

    def loss(self, probabilities: Tensor) -> Tensor:
        """Return the summed loss, for progress, from probabilities ``(R, classes, rows)``."""
        own = probabilities.flatten(1).gather(1, self._places)
        logs = own.clamp_(min=torch.finfo(own.dtype).tiny).log_()
        return -logs.mul_(self._weights).sum()


def dropouts(model: nn.Module) -> list[ReplicaDropout]:
    """Return the layers that blank channels at random in training."""
    return [
        part for part in model.modules() if isinstance(part, ReplicaDropout) and part.probability
    ]


@torch.no_grad()
def clean_scores(model: nn.Module, argument: Any) -> Tensor:
    """Return a model's scores with batch statistics and without dropout."""
    layers = dropouts(model)
    for part in layers:
        part.eval()
    scores: Tensor = model(argument)
    for part in layers:
        part.train()
    return scores
