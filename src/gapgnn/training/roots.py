"""DP-SGD over roots with their sub-graphs, for any module.

Each root's loss is computed on its own: the module is called with the sub-graph of one root and
sees no other. So whatever the module does inside a sub-graph, a root's gradient depends on the
records of that sub-graph alone, and clipping it as one bounds what any of them can change. That is
slower than one pass over a batch, by about a millisecond for each root, and it is why any layer of
torch and PyG will do.

Randomness inside the module (dropout) is seeded for every root and step by a secret word of the
root's id: the masks of one root do not change when somebody else leaves the batch.

Privacy page, sections 2 to 4; proofs page, Theorem 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.errors import PrivacyError
from gapgnn.graph import RootedSubgraphs, Subgraph
from gapgnn.privacy import active_observer
from gapgnn.privacy.dpsgd import (
    DPSchedule,
    NoisyStep,
    PlainParameters,
    PoissonBatch,
    PoissonBatches,
    PrivateTraining,
    make_optimiser,
)
from gapgnn.privacy.mechanisms import NoiseSource
from gapgnn.training.callbacks import Callback
from gapgnn.training.recipe import Recipe

# Loss of the root's row (1, classes) and its label (1,).
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RootInputs:
    """What examples are made of.

    Attributes:
        features: row of every node, ``(nodes, columns)``.
        labels: class of every node.
        roots: positions of the training nodes.
        subgraphs: of all roots.
    """

    features: Tensor
    labels: Tensor
    roots: Tensor
    subgraphs: RootedSubgraphs


@dataclass(frozen=True, kw_only=True)
class RootTrainer:
    """Trains one module by DP-SGD over roots.

    Attributes:
        recipe: optimiser, learning rate and clip.
        schedule: sampling rate and number of steps.
        loss: of one root.
        callback: notified of every step.
    """

    recipe: Recipe
    schedule: DPSchedule
    loss: Loss
    callback: Callback

    def fit(
        self,
        model: nn.Module,
        inputs: RootInputs,
        *,
        phase: str,
        private: PrivateTraining | None = None,
    ) -> None:
        """Train a module in place and leave it in evaluation mode.

        Args:
            model: called with the rows of a sub-graph and its arcs, or with the root's row alone
                where there are no layers; row 0 of what it returns is the root's.
            inputs: of the graph.
            phase: names this training for noise and batches.
            private: how DP-SGD clips and adds noise; there is no training without.
        """
        if private is None:
            raise PrivacyError("training on sub-graphs must add noise. Got no private training.")
        (key,) = private.keys
        flat = PlainParameters(model.train())
        recipe, schedule = self.recipe, self.schedule
        step = NoisyStep(
            flat,
            make_optimiser(
                recipe.optimizer,
                flat.values,
                learning_rate=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
            ),
            clip=recipe.clip,
            noise_multiplier=private.noise_multiplier,
            expected_batch=schedule.expected_batch,
            sources=[NoiseSource(key, noise=private.noise)],
            phase=phase,
            sensitivity=private.sensitivity,
        )
        members = [inputs.roots]
        batches = PoissonBatches(schedule, [key], phase=phase, members=members, noise=private.noise)
        gradients = RootGradients(flat, inputs, self.loss)
        share = step.effective_clip / step.clip
        observer = active_observer()
        self.callback.start(phase, schedule.steps)
        with torch.random.fork_rng(devices=[]):
            for batch in batches:
                seen = batch if observer is None else observer.batch(phase, batch, members)
                step.release(gradients.clipped_sum(_roots_of(seen), batch.step, recipe.clip, share))
                self.callback.advance(phase)
        model.eval()


class RootGradients:
    """The gradients of single roots.

    Args:
        flat: the parameters of the module.
        inputs: of the graph.
        loss: of one root.
    """

    def __init__(self, flat: PlainParameters, inputs: RootInputs, loss: Loss) -> None:
        self._flat, self._inputs, self._loss = flat, inputs, loss

    def clipped_sum(self, roots: Tensor, step: int, clip: float, share: float) -> Tensor:
        """Return the sum of clipped gradients *without noise*, in clips, ``(1, P)`` in float64.

        A gradient that is not finite counts as none: one record must not be able to stop a run.

        Args:
            roots: positions of the roots in the batch.
            step: number of the batch.
            clip: the largest norm of one root's gradient.
            share: what of it is left for rounding, at most 1.
        """
        total = torch.zeros(1, self._flat.size, dtype=torch.float64)
        positions = roots.numpy().astype(np.int64)
        subgraphs = self._inputs.subgraphs.of(positions, step)
        words = self._inputs.subgraphs.words(positions, step)
        for subgraph, word in zip(subgraphs, words.tolist(), strict=True):
            torch.default_generator.manual_seed(word >> 1)
            gradient = self.gradient(subgraph)
            norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
            if np.isfinite(norm) and norm > 0:
                total.add_(gradient, alpha=min(1.0 / clip, share / norm))
        return total

    def gradient(self, subgraph: Subgraph) -> Tensor:
        """Return the gradient of one root's loss, ``(1, P)``."""
        nodes = torch.from_numpy(subgraph.nodes)
        row = root_row(self._flat.module, self._inputs.features[nodes], subgraph, self._layers)
        loss = self._loss(row, self._inputs.labels[nodes[:1]])
        return self._flat.gradient(loss)

    @property
    def _layers(self) -> int:
        return self._inputs.subgraphs.layers


def root_row(module: nn.Module, rows: Tensor, subgraph: Subgraph, layers: int) -> Tensor:
    """Return what a module says of the root of a sub-graph, ``(1, classes)``.

    Args:
        module: called with rows and arcs, or with the root's row alone if there are no layers.
        rows: of the nodes of the sub-graph, the root first.
        subgraph: of one root.
        layers: of message passing.
    """
    if not layers:
        found: Tensor = module(rows)
    else:
        found = module(rows, torch.from_numpy(subgraph.edges))
    return found[:1]


def _roots_of(batch: PoissonBatch) -> Tensor:
    return batch.positions[0][batch.valid[0]]


def rows_of(module: nn.Module, inputs: RootInputs, roots: Sequence[int]) -> Tensor:
    """Return what a module says of some roots, each from its own exact sub-graph: NOT private."""
    positions = np.asarray(roots, dtype=np.int64)
    subgraphs = inputs.subgraphs.of(positions, 0)
    with torch.no_grad():
        found = [
            root_row(
                module,
                inputs.features[torch.from_numpy(one.nodes)],
                one,
                inputs.subgraphs.layers,
            )
            for one in subgraphs
        ]
    return torch.cat(found)
