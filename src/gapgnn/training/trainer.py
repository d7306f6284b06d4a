"""The one training loop: all replicas together, with or without privacy.

Without privacy a step is the plain gradient over all training nodes, or over shuffled batches. With
privacy it is DP-SGD on Poisson batches (privacy page, sections 2 to 4): the caller has charged it,
batches and noise come from the secret keys, and the last iterate is used, because choosing an epoch
by validation accuracy would be another query.

On a GPU, steps and epochs are recorded once as a CUDA graph and replayed: a DP-SGD step is about
ninety small kernels, whose launches from Python take several times as long as their execution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.nn import ReplicaBatchNorm, cross_entropy
from gapgnn.privacy import active_observer
from gapgnn.privacy.dpsgd import (
    FlatParameters,
    Optimiser,
    PoissonBatches,
    PrivateStep,
    PrivateTraining,
    make_optimiser,
    record_linears,
)
from gapgnn.privacy.mechanisms import NoiseSource
from gapgnn.rng import experiment_rng
from gapgnn.training.callbacks import Callback, Silent
from gapgnn.training.criterion import Criterion
from gapgnn.training.full_batch import (
    EVERY,
    BestEpoch,
    FullBatch,
    can_record,
    clean_scores,
    dropouts,
)
from gapgnn.training.inputs import Inputs, Taken
from gapgnn.training.minibatches import Minibatches
from gapgnn.training.recipe import Recipe
from gapgnn.training.splits import Splits

# Steps before recording, which load libraries and compile kernels.
WARM_STEPS = 3


@dataclass(frozen=True)
class Trainer:
    """Trains the networks of one run.

    Attributes:
        labels: class of every node, -1 where unknown; on the device of the run.
        splits: each replica's training and validation nodes.
        num_train: public number of training nodes: with privacy it decides the sampling rate and
            the number of steps.
        recipe: epochs, batches, optimiser.
        seed: of the experiment; decides shuffling, and no randomness of a privacy mechanism.
        callback: notified of every epoch, or every DP-SGD step.
        class_weights: weight of a node of each class in the loss, ``(classes,)``; None: all 1. With
            privacy they scale a node's clipped gradient, the largest weight by 1, so one record
            still changes the sum of a step by at most the clipping norm (privacy page, section 2).
        criterion: chooses the epoch; None: validation accuracy, weighted like the loss.
    """

    labels: Tensor
    splits: Splits
    num_train: int
    recipe: Recipe
    seed: int
    callback: Callback
    class_weights: Tensor | None = None
    criterion: Criterion | None = None

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
        elif self.recipe.batch_size is not None:
            self._fit_batches(model, flat, inputs, phase, self.recipe.batch_size)
        elif self.recipe.nodes is not None:
            self._fit_minibatches(model, flat, inputs, phase, self.recipe.nodes)
        else:
            self._fit_full(model, flat, inputs, phase)
        model.eval()

    def _optimiser(self, flat: FlatParameters) -> Optimiser:
        recipe = self.recipe
        return make_optimiser(
            recipe.optimizer,
            flat.values,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
        )

    def _fit_full(self, model: nn.Module, flat: FlatParameters, inputs: Inputs, phase: str) -> None:
        """One step per epoch over all nodes; the loss counts each replica's training nodes.

        Batch statistics are those of the whole graph, whichever nodes are scored
        (:mod:`gapgnn.training.full_batch`).
        """
        optimiser, device = self._optimiser(flat), self.labels.device
        train, val = (
            torch.from_numpy(mask).to(device) for mask in (self.splits.train, self.splits.val)
        )
        batch = FullBatch(
            model,
            inputs,
            flat,
            labels=self.labels,
            train=train,
            val=val,
            class_weights=self.class_weights,
            criterion=self.criterion,
        )
        self.callback.start(phase, self.recipe.epochs)
        is_watched = not isinstance(self.callback, Silent)

        def epoch() -> tuple[Tensor, Tensor | None]:
            gradient, loss, accuracy = batch.gradient(is_watched=is_watched)
            optimiser.step(gradient)
            return loss / flat.replicas, accuracy

        def validate() -> tuple[Tensor, Tensor | None]:
            return flat.values.new_zeros(()), batch.validate()

        work: Callable[[], tuple[Tensor, Tensor | None]] = epoch
        validated: Callable[[], tuple[Tensor, Tensor | None]] = validate
        is_same = getattr(inputs, "is_recordable", False) and can_record(model, device)
        if self.labels.is_cuda and is_same:
            work, validated = RecordedEpochs(epoch), RecordedEpochs(validate)
        for step in range(1, self.recipe.epochs + 1):
            loss, accuracy = work()
            if step == self.recipe.epochs or (batch.has_dropout and step % EVERY == 0):
                _, accuracy = validated()
            if is_watched:
                self.callback.advance(phase, loss=float(loss), accuracy=_number(accuracy))
        batch.best.restore()
        _settle_statistics(model, inputs.all())

    def _fit_minibatches(
        self, model: nn.Module, flat: FlatParameters, inputs: Inputs, phase: str, most: int
    ) -> None:
        """One minibatch step per epoch (:mod:`gapgnn.training.minibatches`)."""
        optimiser, epochs = self._optimiser(flat), self.recipe.epochs
        steps = Minibatches(
            model,
            cast(Taken, inputs),
            flat,
            labels=self.labels,
            splits=self.splits,
            most=most,
            rng=experiment_rng(self.seed, phase, "nodes"),
            class_weights=self.class_weights,
            criterion=self.criterion,
        )
        self.callback.start(phase, epochs)
        is_watched = not isinstance(self.callback, Silent)

        def take() -> tuple[Tensor, Tensor | None]:
            gradient, loss = steps.gradient()
            optimiser.step(gradient)
            return loss / flat.replicas, None

        def validate() -> tuple[Tensor, Tensor | None]:
            return flat.values.new_zeros(()), steps.validate()

        work, validated = take, validate
        if steps.can_record:
            work, validated = RecordedEpochs(take), RecordedEpochs(validate)
        for step in range(1, epochs + 1):
            steps.next_batch()
            loss, accuracy = work()
            if steps.is_validated(step, is_last=step == epochs):
                _, accuracy = validated()
            if is_watched:
                self.callback.advance(phase, loss=float(loss), accuracy=_number(accuracy))
        steps.best.restore()
        _settle_statistics(model, steps.statistics())

    def _fit_batches(
        self, model: nn.Module, flat: FlatParameters, inputs: Inputs, phase: str, size: int
    ) -> None:
        """Shuffled batches, each replica in its own order; validated after every epoch."""
        optimiser = self._optimiser(flat)
        val = torch.from_numpy(self.splits.val).to(self.labels.device)
        nodes = torch.arange(len(self.labels), device=self.labels.device).expand_as(val)
        best = BestEpoch(
            flat.values,
            self.labels.expand_as(val),
            nodes,
            val,
            class_weights=self.class_weights,
            criterion=self.criterion,
        )
        members = self.splits.train_positions(self.labels.device)
        longest = max(map(len, members))
        shuffles = [
            experiment_rng(self.seed, phase, "shuffle", replica) for replica in range(flat.replicas)
        ]
        self.callback.start(phase, self.recipe.epochs)
        for _ in range(self.recipe.epochs):
            # Replicas with fewer training nodes than others repeat some within an epoch.
            orders = [
                np.resize(rng.permutation(len(own)), longest)
                for rng, own in zip(shuffles, members, strict=True)
            ]
            shuffled = torch.stack(
                [own[torch.from_numpy(order)] for own, order in zip(members, orders, strict=True)]
            )
            total = 0.0
            for positions in _batches(shuffled, size):
                losses = self._losses(model(inputs.rows(positions)), self.labels[positions])
                optimiser.step(flat.gradient(losses / positions.shape[1]))
                total += float(losses.detach().sum())
            accuracy = best.consider(clean_scores(model, inputs.all()))
            self.callback.advance(phase, loss=total / shuffled.numel(), accuracy=_number(accuracy))
        best.restore()
        _settle_statistics(model, inputs.all())

    def _losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each node, times the weight of its class."""
        losses = cross_entropy(scores, labels)
        if self.class_weights is None:
            return losses
        return losses * self.class_weights[labels.clamp(min=0)]

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
        schedule = self.recipe.schedule(self.num_train)
        step = PrivateStep(
            flat,
            self._optimiser(flat),
            clip=self.recipe.clip,
            noise_multiplier=private.noise_multiplier,
            expected_batch=schedule.expected_batch,
            sources=[NoiseSource(key, noise=private.noise) for key in private.keys],
            phase=phase,
            sensitivity=private.sensitivity,
        )
        batches = PoissonBatches(
            schedule,
            private.keys,
            phase=phase,
            members=members,
            noise=private.noise,
            device=self.labels.device,
        )

        shares = None
        if self.class_weights is not None:
            shares = self.class_weights / self.class_weights.max()

        def take(positions: Tensor, valid: Tensor) -> None:
            with record_linears() as tape:
                scores = model(inputs.rows(positions, valid))
                labels = self.labels.take(positions)
                losses = cross_entropy(scores, labels)
            step.step(tape, losses, valid, None if shares is None else shares[labels.clamp(min=0)])

        work: Callable[[Tensor, Tensor], None] = take
        if step.can_record and getattr(inputs, "is_recordable", False) and not dropouts(model):
            work = RecordedSteps(
                take,
                step,
                replicas=flat.replicas,
                mean_batch=schedule.sampling_rate * max(len(mine) for mine in members),
                device=self.labels.device,
            )
        observer = active_observer()
        self.callback.start(phase, schedule.steps)
        for batch in batches:
            if observer is not None:
                batch = observer.batch(phase, batch, members)
            work(batch.positions, batch.valid)
            self.callback.advance(phase)


def _batches(shuffled: Tensor, size: int) -> list[Tensor]:
    """Split shuffled positions into batches; a last batch of one node joins the one before.

    Batch norm needs more than one row.
    """
    batches = list(torch.split(shuffled, size, dim=1))
    if len(batches) > 1 and batches[-1].shape[1] == 1:
        batches[-2:] = [torch.cat(batches[-2:], dim=1)]
    return batches


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)


@torch.no_grad()
def _settle_statistics(model: nn.Module, argument: Any) -> None:
    """Set the running statistics of batch norm to those of nodes under the final parameters.

    Scores in evaluation mode then equal those that the epoch was chosen by.
    """
    norms = [part for part in model.modules() if isinstance(part, ReplicaBatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    clean_scores(model, argument)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


class RecordedEpochs:
    """Repeats an epoch that reads and writes the same tensors, by a recorded CUDA graph.

    Args:
        work: one epoch; returns its loss and, if there is one, the validation accuracy. The next
            call overwrites the returned tensors.
    """

    def __init__(self, work: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: tuple[Tensor, Tensor | None]
        self._taken = 0

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """Do the work once more."""
        self._taken += 1
        if self._taken <= WARM_STEPS:
            return self._work()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self._work()
        self._graph.replay()
        return self._result


class RecordedSteps:
    """Takes DP-SGD steps by a recorded CUDA graph.

    Recording needs fixed shapes, so batches are padded to one width. No batch is truncated: a rare
    wider one is computed without the graph, so sampling stays exactly Poisson (privacy page,
    section 4).

    Args:
        take: takes one step for positions ``(R, B)`` and the mask of those that are not padding.
        step: called by ``take``; provides each step's noise.
        replicas: R.
        mean_batch: mean size of a batch from the actual number of training nodes; the public number
            may be smaller, and most batches would then be wider.
        device: a CUDA device.
    """

    def __init__(
        self,
        take: Callable[[Tensor, Tensor], None],
        step: PrivateStep,
        *,
        replicas: int,
        mean_batch: float,
        device: torch.device,
    ) -> None:
        self._take = take
        self._step = step
        width = math.ceil((mean_batch + 6 * math.sqrt(mean_batch) + 16) / 64) * 64
        self._positions = torch.zeros(replicas, width, dtype=torch.int64, device=device)
        self._valid = torch.zeros(replicas, width, dtype=torch.bool, device=device)
        self._replay: Callable[[], None] | None = None
        self._taken = 0

    def __call__(self, positions: Tensor, valid: Tensor) -> None:
        """Take one step."""
        width = positions.shape[1]
        self._taken += 1
        if self._taken <= WARM_STEPS or width > self._positions.shape[1]:
            self._take(positions, valid)
            return
        if self._replay is None:
            self._replay = self._step.record(lambda: self._take(self._positions, self._valid))
        self._positions[:, :width] = positions
        self._valid[:, :width] = valid
        self._valid[:, width:] = False
        self._replay()
