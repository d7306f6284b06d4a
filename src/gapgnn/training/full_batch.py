"""Full-batch training: the computation of one epoch.

Redundant rows are not computed. Nodes with equal features and no other inputs have equal scores: if
there are many, one row represents all of them, and their targets are summed beforehand. If a node's
scores follow from its own rows and the moments of the inputs, only training and validation nodes
are scored. With dropout these are separate passes: one for the training nodes, and one without
dropout for the validation nodes, every few epochs. If most nodes train, batch statistics of an
epoch with dropout are those of the training nodes; validation always uses those of all nodes.
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
    OwnNetwork,
    ReplicaDropout,
    best_class,
    can_record_dropout,
    cross_entropy,
    cross_entropy_gradients,
)
from gapgnn.nn.kernels import lookup
from gapgnn.privacy.dpsgd import FlatParameters
from gapgnn.training.criterion import Criterion
from gapgnn.training.inputs import FeatureInputs, HopInputs, Inputs

# Number of steps between validations, where validation needs a separate pass.
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
        class_weights: weight of a node of each class, ``(classes,)``; None: all 1.
        criterion: chooses the best epoch; None: weighted accuracy.
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
            # Under dropout nodes with equal features differ; validation has no dropout.
            used = train if self.has_dropout else train | val
            alike = None if self.has_dropout else _distinct(inputs, replicas)
            is_most = self.has_dropout and bool((2 * train.sum(dim=1) >= train.shape[1]).all())
            view = alike or _sampled(
                model, inputs, used, alike=not self.has_dropout, is_most=is_most
            )
            if self.has_dropout:
                clean = _distinct(inputs, replicas) or _sampled(model, inputs, val, alike=True)
        nodes = torch.arange(len(labels), device=labels.device).expand(replicas, -1)
        complete = View(inputs.all, nodes, nodes)
        view = view or complete
        # With dropout the training view may lack the validation nodes.
        clean = clean or (complete if self.has_dropout else view)
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
        """Return gradient ``(R, P)``, summed loss (zero unless watched), and validation accuracy.

        With dropout validation is a separate pass, :meth:`validate`.
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

    def validate(self) -> Tensor | None:
        """Keep the parameters if they are the best so far; return the mean accuracy."""
        return self.best.consider(self.clean_scores())

    def clean_scores(self) -> Tensor:
        """Return the scores with batch statistics and without dropout."""
        return clean_scores(self._model, self._clean_argument())


@dataclass(frozen=True)
class View:
    """A network's input in training.

    Attributes:
        argument: returns the input.
        nodes: the nodes it covers, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
    """

    argument: Callable[[], Any]
    nodes: Tensor
    rows: Tensor


def _distinct(inputs: Inputs, replicas: int) -> View | None:
    """Return a view with one row per distinct feature row, if many nodes share one."""
    distinct = inputs.distinct() if isinstance(inputs, FeatureInputs) else None
    if distinct is None:
        return None
    rows = distinct.index.expand(replicas, -1)
    nodes = torch.arange(rows.shape[1]).expand(replicas, -1)
    return View(distinct.all, nodes, rows)


def _sampled(
    model: nn.Module, inputs: Inputs, used: Tensor, *, alike: bool, is_most: bool = False
) -> View | None:
    """Return a view of the used nodes, if the network does not need the others.

    ``alike``: nodes with equal features share the computation. ``is_most``: the used nodes are a
    majority, so that their batch statistics may replace those of all nodes.
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
    """Keeps each replica's parameters at its best validation accuracy.

    At edge level validation labels are public, so the choice is post-processing.

    Args:
        values: the parameters, ``(R, P)``, which training changes in place.
        labels: class of some nodes, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
        val: which of these nodes are for validation, ``(R, n)``.
        class_weights: weight of a node of each class; None: all 1.
        loss_share: share of the validation loss subtracted from the accuracy, which breaks ties
            between epochs if validation nodes are few.
        criterion: chooses the best epoch; None: weighted accuracy.
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
        # Each replica's validation nodes first, then padding.
        order = val.int().argsort(dim=1, descending=True, stable=True)
        first = order[:, : int(counts.max())]
        self._weights, self._labels = val.gather(1, first), labels.gather(1, first)
        self._known = self._weights.bool()
        if class_weights is not None:
            self._weights = self._weights * class_weights[self._labels.clamp(min=0)]
        self._total = self._weights.sum(dim=1)
        self._rows = rows.gather(1, first)
        self._replicas = torch.arange(len(val), device=labels.device).unsqueeze(1)
        self._best = torch.full((len(values),), -math.inf, device=labels.device)
        self._values = values.clone()
        self._has_chosen = False

    def consider(self, scores: Tensor) -> Tensor | None:
        """Validate scores of the current parameters; return the mean validation accuracy."""
        if not self._can_choose:
            return None
        self._has_chosen = True
        scores = scores[self._replicas, self._rows]
        right = best_class(scores) == self._labels
        accuracy = (right * self._weights).sum(dim=1) / self._total
        value = accuracy
        if self._loss_share:
            losses = cross_entropy(scores, self._labels.clamp(min=0)) * self._weights
            value = accuracy - self._loss_share * losses.sum(dim=1) / self._total
        if self._criterion is not None:
            value = self._criterion.of(scores, self._labels, self._known).to(value.dtype)
        better = value > self._best
        self._best.copy_(torch.where(better, value, self._best))
        self._values.copy_(torch.where(better.unsqueeze(1), self._current, self._values))
        return accuracy.mean()

    def restore(self) -> None:
        """Go back to the best parameters; if none were considered the last ones stay."""
        if self._has_chosen:
            self._current.copy_(self._values)


class Targets:
    """Targets of the scores: the weight of each class in the loss of each row.

    Args:
        labels: class of some nodes, ``(R, n)``.
        rows: the row of each of these nodes in the scores, ``(R, n)``.
        weights: the weight of each of these nodes in the loss, ``(R, n)``.
    """

    def __init__(self, labels: Tensor, rows: Tensor, weights: Tensor) -> None:
        self._labels, self._rows, self._weights = labels, rows, weights
        self._targets: tuple[Tensor, Tensor] | None = None

    def of(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights by class, ``(R, classes, rows)``, and their sums, ``(R, 1, rows)``."""
        if self._targets is None:
            replicas, rows, classes = scores.shape
            total = scores.new_zeros(replicas, classes * rows)
            self._places = self._labels * rows + self._rows
            total.scatter_add_(1, self._places, self._weights)
            targets = total.view(replicas, classes, rows)
            self._targets = targets, targets.sum(1, keepdim=True)
        return self._targets

    def loss(self, probabilities: Tensor) -> Tensor:
        """Return the summed loss, for progress, from probabilities ``(R, classes, rows)``."""
        own = probabilities.flatten(1).gather(1, self._places)
        logs = own.clamp_(min=torch.finfo(own.dtype).tiny).log_()
        return -logs.mul_(self._weights).sum()


def dropouts(model: nn.Module) -> list[nn.Module]:
    """Return the parts that may draw in training: dropout layers, and networks of users' own."""
    return [
        part
        for part in model.modules()
        if isinstance(part, OwnNetwork) or (isinstance(part, ReplicaDropout) and part.probability)
    ]


def can_record(model: nn.Module, device: torch.device) -> bool:
    """Return whether a recorded CUDA graph of a training step does the same as the step again."""
    drawing = dropouts(model)
    if any(isinstance(part, OwnNetwork) for part in drawing):
        return False
    return not drawing or can_record_dropout(device)


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
