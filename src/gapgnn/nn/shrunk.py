"""Penalised softmax regression on features, for rare classes.

With a few dozen nodes of a class and many irrelevant columns, networks overfit and their scores are
worse than the class prior. A penalty on the weights keeps the columns that separate the classes and
shrinks the others. The loss is convex, so the weights need no learning rate or early stopping. As
with :class:`~gapgnn.nn.LinearBySize` this is only for levels where features and training labels are
public.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.nn.specification import specified

ITERATIONS = 60


@specified
class ShrunkRegression(nn.Module):
    """Replicas of the regression, without effect until one is solved.

    Args:
        replicas: R.
        num_features: width of a row.
        num_classes: C.

    >>> shrunk = ShrunkRegression(1, 2, 2)
    >>> shrunk.keep(shrunk.solved(torch.eye(2), torch.tensor([0, 1]), penalty=1.0)[None], 1.0)
    >>> shrunk.beside(torch.zeros(1, 2, 2), torch.eye(2)).argmax(dim=-1).tolist()
    [[0, 1]]
    """

    weight: Tensor
    share: Tensor

    def __init__(self, replicas: int, num_features: int, num_classes: int) -> None:
        super().__init__()
        self._whole = (replicas, num_features + 1, num_classes)
        # Empty until solved, because it is not solved if classes are even.
        self.register_buffer("weight", torch.empty(replicas, 0, num_classes))
        self.register_buffer("share", torch.zeros(replicas))

    @property
    def is_solved(self) -> bool:
        """Whether there are weights."""
        return self.weight.shape[1] > 0

    def solved(self, rows: Tensor | SparseRows, labels: Tensor, *, penalty: float) -> Tensor:
        """Return the weights of least log loss and penalty, the constant last, (features + 1, C).

        Args:
            rows: features of the training nodes, (n, features).
            labels: their classes.
            penalty: factor on half the squared norm of the weights, relative to one node's loss.
                The intercept has none, so the mean posterior equals the class frequencies.
        """
        _, width, classes = self._whole
        targets = F.one_hot(labels, classes).float()
        weights = torch.zeros(width, classes, device=labels.device, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weights], max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            with torch.no_grad():
                logs = torch.log_softmax(scores_of(rows, weights), dim=-1)
                residuals = (logs.exp() - targets) / len(labels)
                gradients = (
                    rows.transposed_times(residuals)
                    if isinstance(rows, SparseRows)
                    else rows.T @ residuals
                )
                own = penalty / len(labels) * weights[:-1]
                weights.grad = torch.cat([gradients + own, residuals.sum(dim=0, keepdim=True)])
                return -(logs * targets).sum() / len(labels) + (own * weights[:-1]).sum() / 2

        solver.step(loss)  # type: ignore[no-untyped-call]
        return weights.detach()

    def keep(self, weights: Tensor, share: float | Tensor) -> None:
        """Set the weights, (R, features + 1, C), and their share in the log-probabilities."""
        self.weight = weights
        self.share = torch.as_tensor(share, dtype=weights.dtype).expand(len(weights)).clone()
        self.share = self.share.to(weights.device)

    def beside(self, scores: Tensor, rows: Tensor | SparseRows) -> Tensor:
        """Return the mean of these log-probabilities, at their share, and those of other scores.

        Args:
            scores: of the others, (R, n, C).
            rows: that all replicas share, (n, features), or of each, (R, n, features).
        """
        if not self.is_solved:
            return scores
        return mixed(scores, self.own_scores(rows), self.share.view(-1, 1, 1))

    def own_scores(self, rows: Tensor | SparseRows) -> Tensor:
        """Return the scores of the regression alone, (R, n, C); rows as in :meth:`beside`."""
        if isinstance(rows, Tensor) and rows.dim() == 3:
            return rows @ self.weight[:, :-1] + self.weight[:, -1:]
        return torch.stack([scores_of(rows, one) for one in self.weight])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # A module that is not solved loads one that is, and the other way round.
        found = state_dict.get(f"{prefix}weight")
        if found is not None and (found.shape[1] == 0 or found.shape == self._whole):
            self.weight = torch.empty_like(found, device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def scores_of(rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
    """Return the scores of rows under one replica's weights, (n, C)."""
    along = rows.times(weights[:-1]) if isinstance(rows, SparseRows) else rows @ weights[:-1]
    return along + weights[-1]


def mixed(scores: Tensor, others: Tensor, share: float | Tensor) -> Tensor:
    """Return the weighted mean of two log-probabilities, ``others`` with weight ``share``.

    >>> mixed(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), 0.0).exp().tolist()
    [[0.5, 0.5]]
    """
    logs, beside = torch.log_softmax(scores, dim=-1), torch.log_softmax(others, dim=-1)
    return (1 - share) * logs + share * beside
