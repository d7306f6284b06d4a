"""Training in steps that read some nodes each, the same ones for all replicas.

They are drawn among all nodes that have a role, and the loss counts each replica's own training
nodes. So features are read once for all replicas, a step takes no longer the larger the graph is,
and which nodes a replica meets does not depend on the splits of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.nn import can_record_dropout, cross_entropy_gradients
from gapgnn.privacy.dpsgd import FlatParameters
from gapgnn.training.criterion import Criterion
from gapgnn.training.full_batch import EVERY, BestEpoch, Targets, dropouts
from gapgnn.training.inputs import Taken
from gapgnn.training.splits import Splits

# Validation nodes are looked at for the first time when running statistics have settled, and so
# many of them in each replica.
FIRST, LOOKED = 20, 2048
# What the validation loss counts beside the accuracy: of a few hundred nodes, many steps get the
# same number right.
LOSS_SHARE = 0.1
# Batch statistics of a finished network are those of so many nodes at the most.
STATISTICS = 1 << 15


class Minibatches:
    """The steps of one training.

    Args:
        model: gives class scores.
        inputs: what it reads.
        flat: its parameters.
        labels: class of every node, -1 where unknown.
        splits: each replica's training and validation nodes.
        most: training nodes that a step counts in the first replica; it reads the share of the
            other nodes that goes with them.
        rng: draws them.
        class_weights: what a node of each class counts, ``(classes,)``; None counts all alike.
        criterion: what the best step is chosen by; None: weighted accuracy, less some of the loss.
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
        self._worth = train if class_weights is None else train * class_weights[self._known]
        # Drawn before anything that depends on the splits of other replicas.
        order = rng.permutation(len(labels))
        self._statistics = self._placed(np.sort(order[:STATISTICS]))
        have_role = (splits.train | splits.val | splits.test).any(axis=0)
        parts = max(1, round(int(splits.train[0].sum()) / most))
        self._batches = node_batches(np.flatnonzero(have_role), parts, rng)
        self._nodes: NDArray[np.int64] | None = None
        val = _first_of(splits.val, LOOKED, order)
        self._can_look = bool(val.any())
        self._looked, seen = self._looking(val)
        self.best = BestEpoch(
            flat.values,
            labels[seen],
            torch.arange(seen.shape[1], device=labels.device).expand_as(seen),
            torch.from_numpy(val).to(labels.device).gather(1, seen),
            class_weights=class_weights,
            loss_share=LOSS_SHARE,
            criterion=criterion,
        )

    @property
    def can_record(self) -> bool:
        """Whether a step is the same operations on the same tensors every time."""
        device = self._known.device
        is_counted = not dropouts(self._model) or can_record_dropout(device)
        return device.type == "cuda" and self._inputs.is_recordable and is_counted

    def deal(self) -> None:
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
        # On a GPU read anew each time: a recorded step finds other nodes in the same place.
        argument, targets = self._reading() if self._places.is_cuda else self._read
        scores = self._model(argument)
        gradients, probabilities = cross_entropy_gradients(scores, *targets.of(scores))
        return self._flat.gradient(scores, gradients), targets.loss(probabilities)

    def _looking(self, val: NDArray[np.bool_]) -> tuple[Any, Tensor]:
        """Return what is read of validation nodes, and who they are, ``(R, n)``."""
        if self._known.is_cuda:
            # Dense rows of everybody's own nodes may not fit there.
            seen = self._placed(np.flatnonzero(val.any(axis=0)))
            return self._inputs.taken(seen), seen.expand(len(val), -1)
        # Each replica's own first, then others to fill up.
        own = np.argsort(~val, axis=1, kind="stable")[:, : val.sum(axis=1).max()]
        return self._inputs.rows(self._placed(own)), self._placed(own)

    def _reading(self) -> tuple[Any, Targets]:
        return self._inputs.taken(self._places), self._wanted(self._places)

    def _placed(self, nodes: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(nodes).to(self._known.device)

    def _wanted(self, places: Tensor) -> Targets:
        weights = self._worth[:, places].float()
        # A replica that trains on none of them stands still.
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
        rows = torch.arange(len(places), device=places.device).expand_as(weights)
        return Targets(self._known[places].expand_as(weights), rows, weights)

    def is_time(self, step: int, *, is_last: bool) -> bool:
        """Tell whether validation nodes are looked at after a step, the first being 1."""
        is_due = is_last or (step >= FIRST and step % EVERY == 0)
        return self._can_look and is_due

    @torch.no_grad()
    def look(self) -> Tensor | None:
        """Remember the parameters if they are the best so far; return the mean accuracy."""
        # With running statistics nobody's scores depend on who else is looked at.
        self._model.eval()
        accuracy = self.best.consider(self._model(self._looked))
        self._model.train()
        return accuracy

    def statistics(self) -> Any:
        """Return what the network reads of the nodes that its batch statistics are of."""
        return self._inputs.taken(self._statistics)


def node_batches(
    nodes: NDArray[np.int64], parts: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield nodes for ever, in so many parts of one size, dealt anew each time.

    The few that are left over when they are dealt have another chance the next time.

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
    """Keep at most so many of each replica's nodes, those that come first in an order."""
    found = np.zeros_like(masks)
    for kept, mask in zip(found, masks, strict=True):
        kept[order[mask[order]][:most]] = True
    return found
