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

from gapgnn.nn import cross_entropy_slopes
from gapgnn.privacy.dpsgd import FlatParameters
from gapgnn.training.full_batch import BestEpoch, Targets
from gapgnn.training.inputs import Taken
from gapgnn.training.splits import Splits

# Validation nodes are looked at after so many steps, the first time when running statistics have
# settled, and so many of them in each replica.
EVERY, FIRST, LOOKED = 4, 20, 2048
# What the validation loss counts beside the accuracy: of a few hundred nodes, many steps get the
# same number right.
LOSS_SHARE = 0.1
# Batch statistics of a finished network are those of so many nodes at the most.
STATISTICS = 1 << 15


class SomeNodes:
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
    ) -> None:
        self._model, self._inputs, self._flat = model, inputs, flat
        self._known = labels.clamp(min=0)
        train = torch.from_numpy(splits.train).to(labels.device)
        self._worth = train if class_weights is None else train * class_weights[self._known]
        order = rng.permutation(len(labels))
        self._statistics = np.sort(order[:STATISTICS])
        have_role = (splits.train | splits.val | splits.test).any(axis=0)
        parts = max(1, round(int(splits.train[0].sum()) / most))
        self._batches = node_batches(np.flatnonzero(have_role), parts, rng)
        self._nodes: NDArray[np.int64] | None = None
        val = splits.val[:, order]
        val = (val & (val.cumsum(axis=1, dtype=np.int32) <= LOOKED))[:, order.argsort()]
        seen = np.flatnonzero(val.any(axis=0))
        self._looked = inputs.taken(seen) if len(seen) else None
        places = torch.from_numpy(seen).to(labels.device)
        self.best = BestEpoch(
            flat.values,
            labels[places].expand(len(train), -1),
            torch.arange(len(seen), device=labels.device).expand(len(train), -1),
            torch.from_numpy(val).to(labels.device)[:, places],
            class_weights=class_weights,
            loss_share=LOSS_SHARE,
        )

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of the next step, ``(R, P)``, and its loss summed over replicas."""
        nodes = next(self._batches)
        if nodes is not self._nodes:
            self._nodes, self._argument = nodes, self._inputs.taken(nodes)
            self._targets = self._wanted(nodes)
        scores = self._model(self._argument)
        slopes, chances = cross_entropy_slopes(scores, *self._targets.of(scores))
        return self._flat.gradient(scores, slopes), self._targets.loss(chances)

    def _wanted(self, nodes: NDArray[np.int64]) -> Targets:
        places = torch.from_numpy(nodes).to(self._known.device)
        weights = self._worth[:, places].float()
        # A replica that trains on none of them stands still.
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
        rows = torch.arange(len(nodes), device=places.device).expand_as(weights)
        return Targets(self._known[places].expand_as(weights), rows, weights)

    @torch.no_grad()
    def look(self, step: int, *, is_last: bool) -> Tensor | None:
        """Remember the parameters if they are the best so far; return the mean accuracy.

        None where it is not time to look.
        """
        is_time = is_last or (step >= FIRST and step % EVERY == 0)
        if self._looked is None or not is_time:
            return None
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
    """Yield nodes for ever, in so many parts that together are all of them, dealt anew each time.

    >>> steps = node_batches(np.arange(10), 2, np.random.default_rng(0))
    >>> np.sort([*next(steps), *next(steps)]).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    while parts == 1:
        yield nodes
    while True:
        for part in np.array_split(rng.permutation(nodes), parts):
            yield np.sort(part)
