"""A linear classifier with weights that depend on the size of a row, in closed form.

A sparse feature row has a *direction*, which features a node has, and a *size*, how many. The
scores of a node are linear in the direction, with weights that are interpolated between a few
sizes. This is ridge regression on class labels, so the weights have a closed form, without learning
rates or early stopping, and scores are less overconfident than those of a network. A node's scores
depend on its own row and on the training nodes, so the classifier is only for levels where these
are public.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.nn.specification import specified

# Sizes, as log(1 + squared norm), between which weights are interpolated.
SIZES = (0.0, 2.0, 4.0, 6.0)
# Penalty on the squared norm of the weights, relative to one training node's squared error, and the
# regression target of a node's class, as a log-probability (docs/explanation/research-notes.md).
PENALTY, SHARPNESS = 1.0, 6.0


@specified
class LinearBySize(nn.Module):
    """Replicas of the classifier, without effect until one is solved.

    Args:
        replicas: R.
        num_features: width of a row.
        num_classes: C.

    >>> linear = LinearBySize(1, 2, 2)
    >>> linear.solve(0, torch.eye(2), torch.tensor([0, 1]), torch.ones(2))
    >>> linear(torch.eye(2)).argmax(dim=-1).tolist()
    [[0, 1]]
    """

    weight: Tensor

    def __init__(self, replicas: int, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self._whole = (replicas, num_features + 1, len(SIZES) * num_classes)
        # Empty until solved, because it is not solved on most graphs.
        self.register_buffer("weight", torch.empty(replicas, 0, self._whole[2]))

    @property
    def is_solved(self) -> bool:
        """Whether there are weights."""
        return self.weight.shape[1] > 0

    @torch.no_grad()
    def solve(
        self, replica: int, rows: Tensor | SparseRows, labels: Tensor, sample_weights: Tensor
    ) -> None:
        """Set one replica's weights to the minimum of squared error and penalty.

        The problem is solved in its dual form, with one unknown per training row and class: the
        weights are linear combinations of training rows.

        Args:
            replica: index of the replica.
            rows: features of the training nodes, (n, features).
            labels: their classes.
            sample_weights: of the training nodes.
        """
        if not self.is_solved:
            self.weight = self.weight.new_zeros(self._whole)
        sizes, inverse = _sizes_and_norms(rows)
        products = rows.gram() if isinstance(rows, SparseRows) else rows @ rows.T
        gram = (1 + products * inverse * inverse.T) * (sizes @ sizes.T)
        gram.diagonal().add_(PENALTY / sample_weights)
        targets = SHARPNESS * F.one_hot(labels, self.num_classes).float()
        dual = torch.cholesky_solve(targets, torch.linalg.cholesky(gram))
        dual = (sizes.unsqueeze(-1) * dual.unsqueeze(1)).flatten(1)
        scaled = dual * inverse
        self.weight[replica, :-1] = (
            rows.transposed_times(scaled) if isinstance(rows, SparseRows) else rows.T @ scaled
        )
        self.weight[replica, -1] = dual.sum(dim=0)

    def forward(self, rows: Tensor | SparseRows) -> Tensor:
        """Return class scores of rows that all replicas read, (R, nodes, C)."""
        sizes, inverse = _sizes_and_norms(rows)
        weight, constant = self.weight[:, :-1], self.weight[:, -1:]
        along = rows.product(weight) if isinstance(rows, SparseRows) else rows @ weight
        by_size = (along * inverse + constant).view(*along.shape[:2], len(SIZES), -1)
        return (by_size * sizes.unsqueeze(-1)).sum(dim=-2)

    def beside(self, scores: Tensor, rows: Tensor | SparseRows) -> Tensor:
        """Return the mean of these log-probabilities and those of other networks' scores."""
        if not self.is_solved:
            return scores
        return (torch.log_softmax(scores, dim=-1) + torch.log_softmax(self(rows), dim=-1)) / 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # A module that is not solved loads one that is, and the other way round.
        found = state_dict.get(f"{prefix}weight")
        if found is not None and (found.shape[1] == 0 or found.shape == self._whole):
            self.weight = torch.empty_like(found, device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _sizes_and_norms(rows: Tensor | SparseRows) -> tuple[Tensor, Tensor]:
    """Return interpolation weights of each row over SIZES, (n, sizes), and its inverse norm."""
    if isinstance(rows, SparseRows):
        squares = rows.squared_norms()
    else:
        squares = rows.double().square().sum(dim=-1)
    squares = squares.unsqueeze(-1)
    # A softmax, so that weights do not vanish far beyond the last size.
    centres = torch.tensor(SIZES, dtype=squares.dtype, device=squares.device)
    near = torch.softmax(-((torch.log1p(squares) - centres) ** 2) / 2, dim=-1)
    inverse = torch.where(squares > 0, squares, torch.inf).rsqrt()
    return F.normalize(near, dim=-1).float(), inverse.float()
