"""The one training loop: all replicas together, with or without privacy.

Without privacy a step is the plain gradient over all training nodes, or over shuffled batches. With
privacy it is DP-SGD on Poisson batches (privacy page, sections 2 to 4): the caller has charged it,
batches and noise come from the secret keys, and the last iterate is used, because choosing an epoch
by validation accuracy would be another query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.errors import InputError
from gapgnn.nn.fused import best_class
from gapgnn.nn.layers import (
    ReplicaBatchNorm,
    ReplicaDropout,
    cross_entropy,
    cross_entropy_slopes,
)
from gapgnn.privacy.dpsgd import PrivateStep
from gapgnn.privacy.flat import FlatParameters, Optimiser, make_optimiser
from gapgnn.privacy.ghost import record_linears
from gapgnn.privacy.noise import NoiseSource
from gapgnn.privacy.poisson import PoissonBatches
from gapgnn.rng import experiment_rng
from gapgnn.training.callbacks import Callback, Silent
from gapgnn.training.cuda_graph import RecordedEpochs, RecordedSteps
from gapgnn.training.inputs import Inputs
from gapgnn.training.recipe import PrivateTraining, Recipe
from gapgnn.training.splits import Splits


@dataclass(frozen=True)
class Trainer:
    """Trains the networks of one run.

    Attributes:
        labels: class of every node, -1 where unknown; on the device of the run.
        splits: each replica's training and validation nodes.
        recipe: epochs, batches, optimiser.
        seed: of the experiment; decides shuffling and nothing that privacy rests on.
        callback: told about every epoch, or every DP-SGD step.
    """

    labels: Tensor
    splits: Splits
    recipe: Recipe
    seed: int
    callback: Callback

    def fit(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        phase: str,
        private: PrivateTraining | None = None,
    ) -> None:
        """Train every replica of ``model`` in place and leave it in evaluation mode.

        Args:
            model: gives class scores (replicas, rows, classes).
            inputs: what the model reads.
            phase: names this training for progress, shuffling and noise.
            private: DP-SGD settings; None trains without privacy.
        """
        model.train()
        flat = FlatParameters(model)
        if private is not None:
            self._fit_privately(model, flat, inputs, phase, private)
        elif self.recipe.batch_size is None:
            self._fit_full(model, flat, inputs, phase)
        else:
            self._fit_batches(model, flat, inputs, phase, self.recipe.batch_size)
        _settle_statistics(model, inputs)
        model.eval()

    def _optimiser(self, flat: FlatParameters) -> Optimiser:
        recipe = self.recipe
        return make_optimiser(
            recipe.optimizer,
            flat.values,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
        )

    def _best_epoch(self, flat: FlatParameters) -> _BestEpoch:
        val = torch.from_numpy(self.splits.val).to(self.labels.device)
        return _BestEpoch(flat, self.labels, val)

    def _fit_full(self, model: nn.Module, flat: FlatParameters, inputs: Inputs, phase: str) -> None:
        """One step per epoch over all nodes; the loss counts each replica's training nodes.

        The forward pass covers every node, so batch statistics are those of the whole graph and the
        same scores give the validation accuracy.
        """
        optimiser, best = self._optimiser(flat), self._best_epoch(flat)
        mask = torch.from_numpy(self.splits.train).to(self.labels.device)
        weights = mask / mask.sum(dim=1, keepdim=True)
        known = self.labels.clamp(min=0)
        self.callback.start(phase, self.recipe.epochs)
        has_dropout = bool(_dropouts(model))

        def epoch() -> tuple[Tensor, Tensor | None]:
            scores = model(inputs.all())
            judged = _clean_scores(model, inputs) if has_dropout else scores.detach()
            accuracy = best.consider(judged)
            if scores.is_cuda:
                loss = (cross_entropy(scores, known) * weights).sum()
                gradient = flat.gradient(loss)
            else:
                loss, slopes = cross_entropy_slopes(scores, known, weights)
                gradient = flat.gradient(scores, slopes)
            optimiser.step(gradient)
            return loss.detach().sum() / flat.replicas, accuracy

        work: Callable[[], tuple[Tensor, Tensor | None]] = epoch
        if self.labels.is_cuda and getattr(inputs, "is_recordable", False) and not has_dropout:
            work = RecordedEpochs(epoch)
        is_watched = not isinstance(self.callback, Silent)
        for _ in range(self.recipe.epochs):
            loss, accuracy = work()
            if is_watched:
                self.callback.advance(phase, loss=float(loss), accuracy=_number(accuracy))
        best.consider(_clean_scores(model, inputs))
        best.restore()

    def _fit_batches(
        self, model: nn.Module, flat: FlatParameters, inputs: Inputs, phase: str, size: int
    ) -> None:
        """Shuffled batches, each replica in its own order; validated after every epoch."""
        optimiser, best = self._optimiser(flat), self._best_epoch(flat)
        members = self.splits.train_positions(self.labels.device)
        shuffles = [
            experiment_rng(self.seed, phase, "shuffle", replica) for replica in range(flat.replicas)
        ]
        self.callback.start(phase, self.recipe.epochs)
        for _ in range(self.recipe.epochs):
            order = np.stack([rng.permutation(members.shape[1]) for rng in shuffles])
            shuffled = members.gather(1, torch.from_numpy(order).to(members.device))
            total = 0.0
            for positions in _batches(shuffled, size):
                losses = cross_entropy(model(inputs.rows(positions)), self.labels[positions])
                optimiser.step(flat.gradient(losses / positions.shape[1]))
                total += float(losses.detach().sum())
            accuracy = best.consider(_clean_scores(model, inputs))
            self.callback.advance(phase, loss=total / members.numel(), accuracy=_number(accuracy))
        best.restore()

    def _fit_privately(
        self,
        model: nn.Module,
        flat: FlatParameters,
        inputs: Inputs,
        phase: str,
        private: PrivateTraining,
    ) -> None:
        """DP-SGD: Poisson batches, clipped and noised sums, the last iterate."""
        members = self.splits.train_positions(self.labels.device)
        schedule = self.recipe.schedule(members.shape[1])
        step = PrivateStep(
            flat,
            self._optimiser(flat),
            clip=self.recipe.clip,
            noise_multiplier=private.noise_multiplier,
            expected_batch=schedule.expected_batch,
            noise=[NoiseSource(key, construction=private.construction) for key in private.keys],
            phase=phase,
            sensitivity=private.sensitivity,
        )
        batches = PoissonBatches(
            schedule,
            private.keys,
            phase=phase,
            members=members,
            construction=private.construction,
            device=self.labels.device,
        )

        def take(positions: Tensor, valid: Tensor) -> None:
            with record_linears() as tape:
                scores = model(inputs.rows(positions, valid))
                losses = cross_entropy(scores, self.labels[positions])
            step.step(tape, losses, valid)

        work: Callable[[Tensor, Tensor], None] = take
        if step.can_record and getattr(inputs, "is_recordable", False) and not _dropouts(model):
            work = RecordedSteps(
                take,
                step,
                replicas=flat.replicas,
                expected_batch=schedule.expected_batch,
                device=self.labels.device,
            )
        self.callback.start(phase, schedule.steps)
        for batch in batches:
            work(batch.positions, batch.valid)
            self.callback.advance(phase)


def _batches(shuffled: Tensor, size: int) -> list[Tensor]:
    """Cut shuffled positions into batches; a last one of a single node joins the one before.

    Batch norm has no statistics of one row.
    """
    batches = list(torch.split(shuffled, size, dim=1))
    if len(batches) > 1 and batches[-1].shape[1] == 1:
        batches[-2:] = [torch.cat(batches[-2:], dim=1)]
    return batches


class _BestEpoch:
    """Remembers each replica's parameters at its best validation accuracy (free at edge level)."""

    def __init__(self, flat: FlatParameters, labels: Tensor, val: Tensor) -> None:
        self._flat = flat
        counts = val.sum(dim=1)
        self._can_choose = bool(counts.all()) and bool((counts == counts[0]).all())
        if not self._can_choose and bool(counts.any()):
            raise InputError("`val` must have equally many nodes for every repeat, or none.")
        self._positions = val.nonzero()[:, 1].view(len(val), -1)
        self._labels = labels[self._positions]
        self._replicas = torch.arange(len(val), device=labels.device).unsqueeze(1)
        self._best = torch.full((flat.replicas,), -1.0, device=labels.device)
        self._values = flat.values.clone()

    def consider(self, scores: Tensor) -> Tensor | None:
        """Look at scores made with the current parameters; return the mean validation accuracy."""
        if not self._can_choose:
            return None
        right = best_class(scores[self._replicas, self._positions]) == self._labels
        accuracy = right.float().mean(dim=1)
        better = accuracy > self._best
        self._best.copy_(torch.where(better, accuracy, self._best))
        self._values.copy_(torch.where(better.unsqueeze(1), self._flat.values, self._values))
        return accuracy.mean()

    def restore(self) -> None:
        """Go back to the best parameters; without validation nodes the last ones stay."""
        if self._can_choose:
            self._flat.values.copy_(self._values)


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)


def _dropouts(model: nn.Module) -> list[ReplicaDropout]:
    """Return the layers that blank channels at random in training."""
    return [
        part for part in model.modules() if isinstance(part, ReplicaDropout) and part.probability
    ]


@torch.no_grad()
def _clean_scores(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the scores of all nodes with batch statistics and without dropout."""
    dropouts = _dropouts(model)
    for part in dropouts:
        part.eval()
    scores: Tensor = model(inputs.all())
    for part in dropouts:
        part.train()
    return scores


@torch.no_grad()
def _settle_statistics(model: nn.Module, inputs: Inputs) -> None:
    """Set the running statistics of batch norm to those of all nodes under the final parameters.

    Scores in evaluation mode are then those by which the epoch was chosen.
    """
    norms = [part for part in model.modules() if isinstance(part, ReplicaBatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    _clean_scores(model, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
