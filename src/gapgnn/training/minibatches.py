"""Training in minibatch steps, with the same minibatch for all replicas.

Minibatches are drawn from all nodes with a role, and the loss of each replica covers its own
training nodes among them. So features are read once for all replicas, the time of a step does not
depend on the size of the graph, and the minibatches of a replica do not depend on the splits of the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.nn import cross_entropy_gradients
from gapgnn.privacy.dpsgd import FlatParameters
from gapgnn.training.criterion import Criterion
from gapgnn.training.full_batch import EVERY, BestEpoch, Targets, can_record
from gapgnn.training.inputs import Taken
from gapgnn.training.splits import Splits

# The first step that is validated, when running statistics have settled, and the largest number of
# validation nodes of a replica.
FIRST, LOOKED = 20, 2048
# Weight of the validation loss against the accuracy, which breaks ties between steps with the same
# accuracy on few validation nodes.
LOSS_SHARE = 0.1
# The largest number of nodes for the batch statistics of the trained network.
STATISTICS = 1 << 15


class Minibatches:
    """The steps of one training.

    Args:
        model: gives class scores.
        inputs: what it reads.
        flat: its parameters.
        labels: class of every node, -1 where unknown.
        splits: each replica's training and validation nodes.
        most: training nodes of the first replica in a minibatch; other nodes are drawn at the same
            rate.
        rng: draws the minibatches.
        class_weights: weight of a node of each class, ``(classes,)``; None: all 1.
        criterion: chooses the best step; None: weighted accuracy less a share of the loss.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Taken,
        flat: FlatParameters,
        *,
        labels: Tensor,
        splits: Splits,
        most: int,
        rng: np.random.Generator,
        class_weights: Tensor | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        self._model, self._inputs, self._flat = model, inputs, flat
        self._known = labels.clamp(min=0)
        train = torch.from_numpy(splits.train).to(labels.device)
        self._weights = train if class_weights is None else train * class_weights[self._known]
        # Drawn before anything that depends on the splits of other replicas.
        order = rng.permutation(len(labels))
        self._statistics = self._placed(np.sort(order[:STATISTICS]))
        have_role = (splits.train | splits.val | splits.test).any(axis=0)
        parts = max(1, round(int(splits.train[0].sum()) / most))
        self._batches = node_batches(np.flatnonzero(have_role), parts, rng)
        self._nodes: NDArray[np.int64] | None = None
        val = _first_of(splits.val, LOOKED, order)
        self._can_validate = bool(val.any())
        self._validated, scored = self._validation(val)
        self.best = BestEpoch(
            flat.values,
            labels[scored],
            torch.arange(scored.shape[1], device=labels.device).expand_as(scored),
            torch.from_numpy(val).to(labels.device).gather(1, scored),
            class_weights=class_weights,
            loss_share=LOSS_SHARE,
            criterion=criterion,
        )

    @property
    def can_record(self) -> bool:
        """Whether every step is the same operations on the same tensors."""
        device = self._known.device
        is_same = self._inputs.is_recordable and can_record(self._model, device)
        return device.type == "cuda" and is_same

    def next_batch(self) -> None:
        """Choose the nodes of the next step."""
        nodes = next(self._batches)
        if nodes is self._nodes:
            return
        if self._nodes is None:
            self._places = self._placed(nodes)
        else:
            self._places.copy_(torch.from_numpy(nodes))
        self._nodes = nodes
        if not self._places.is_cuda:
            self._read = self._reading()

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of a step, ``(R, P)``, and its loss summed over replicas."""
        # On a GPU read in every step: a recorded step reads new nodes from the same memory.
        argument, targets = self._reading() if self._places.is_cuda else self._read
        scores = self._model(argument)
        gradients, probabilities = cross_entropy_gradients(scores, *targets.of(scores))
        return self._flat.gradient(scores, gradients), targets.loss(probabilities)

    def _validation(self, val: NDArray[np.bool_]) -> tuple[Any, Tensor]:
        """Return the inputs of the validation nodes, and their positions, ``(R, n)``."""
        if self._known.is_cuda:
            # Separate dense rows for every replica may not fit into GPU memory.
            nodes = self._placed(np.flatnonzero(val.any(axis=0)))
            return self._inputs.taken(nodes), nodes.expand(len(val), -1)
        # Each replica's own nodes first, then padding.
        own = np.argsort(~val, axis=1, kind="stable")[:, : val.sum(axis=1).max()]
        return self._inputs.rows(self._placed(own)), self._placed(own)

    def _reading(self) -> tuple[Any, Targets]:
        return self._inputs.taken(self._places), self._wanted(self._places)

    def _placed(self, nodes: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(nodes).to(self._known.device)

    def _wanted(self, places: Tensor) -> Targets:
        weights = self._weights[:, places].float()
        # The gradient of a replica without training nodes in the minibatch is zero.
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
        rows = torch.arange(len(places), device=places.device).expand_as(weights)
        return Targets(self._known[places].expand_as(weights), rows, weights)

    def is_validated(self, step: int, *, is_last: bool) -> bool:
        """Return whether a step, counted from 1, is followed by validation."""
        is_due = is_last or (step >= FIRST and step % EVERY == 0)
        return self._can_validate and is_due

    @torch.no_grad()
    def validate(self) -> Tensor | None:
        """Keep the parameters if they are the best so far; return the mean accuracy."""
        # With running statistics a node's scores do not depend on the other validation nodes.
        self._model.eval()
        accuracy = self.best.consider(self._model(self._validated))
        self._model.train()
        return accuracy

    def statistics(self) -> Any:
        """Return the network's inputs for the nodes behind its final batch statistics."""
        return self._inputs.taken(self._statistics)


def node_batches(
    nodes: NDArray[np.int64], parts: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield minibatches without end: a new permutation after every ``parts`` minibatches.

    All have the same size. The remainder of a permutation is left out.

    >>> steps = node_batches(np.arange(11), 2, np.random.default_rng(0))
    >>> len({*next(steps).tolist(), *next(steps).tolist()})
    10
    """
    while parts == 1:
        yield nodes
    size = len(nodes) // parts
    while True:
        for part in rng.permutation(nodes)[: parts * size].reshape(parts, size):
            yield np.sort(part)


def _first_of(masks: NDArray[np.bool_], most: int, order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return masks of at most ``most`` nodes of each replica, the first in a given order."""
    first = np.zeros_like(masks)
    for kept, mask in zip(first, masks, strict=True):
        kept[order[mask[order]][:most]] = True
    return first
