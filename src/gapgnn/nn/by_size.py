"""A linear network for each size of a row, solved instead of trained.

Sparse features say two things: which ones a node has, the *direction* of its row, and how many, its
*size*. A network that reads the row has to take them apart; here the scores of a node are linear in
the direction, by weights that go over into others as the size grows. That is ridge regression on
class labels, so the weights are known in closed form, without steps, rates or early stopping, and
what it says is smooth where a network is too sure. What it says about a node follows from the
node's own row and the training nodes, so it is for levels where these are public.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.nn.specification import specified

# Sizes, as log(1 + squared norm), around which there are weights of their own.
SIZES = (0.0, 2.0, 4.0, 6.0)
# Weight of the squared norm of all weights against one training node's squared error, and what a
# whole class is worth as a difference of log-probabilities (docs/research-notes.md).
PENALTY, SHARPNESS = 1.0, 6.0


@specified
class LinearBySize(nn.Module):
    """Replicas of the network; before one is solved they say nothing.

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
        # Without rows until solved: most graphs are too large for that.
        self.register_buffer("weight", torch.empty(replicas, 0, self._whole[2]))

    @property
    def is_solved(self) -> bool:
        """Whether there are weights."""
        return self.weight.shape[1] > 0

    @torch.no_grad()
    def solve(self, replica: int, rows: Tensor | SparseRows, labels: Tensor, worth: Tensor) -> None:
        """Give one replica the weights of least squared error and norm.

        As many equations as there are rows: the weights are a sum over training rows, so their
        number is that of the features only in the end.

        Args:
            replica: which.
            rows: features of the training nodes, (n, features).
            labels: their classes.
            worth: what each of them counts.
        """
        if not self.is_solved:
            self.weight = self.weight.new_zeros(self._whole)
        sizes, inverse = _taken_apart(rows)
        products = rows.gram() if isinstance(rows, SparseRows) else rows @ rows.T
        alike = (1 + products * inverse * inverse.T) * (sizes @ sizes.T)
        alike.diagonal().add_(PENALTY / worth)
        wanted = SHARPNESS * F.one_hot(labels, self.num_classes).float()
        pulls = torch.cholesky_solve(wanted, torch.linalg.cholesky(alike))
        pulls = (sizes.unsqueeze(-1) * pulls.unsqueeze(1)).flatten(1)
        scaled = pulls * inverse
        self.weight[replica, :-1] = (
            rows.transposed_times(scaled) if isinstance(rows, SparseRows) else rows.T @ scaled
        )
        self.weight[replica, -1] = pulls.sum(dim=0)

    def forward(self, rows: Tensor | SparseRows) -> Tensor:
        """Return class scores of rows that all replicas read, (R, nodes, C)."""
        sizes, inverse = _taken_apart(rows)
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
        # Models of earlier versions have none.
        found = state_dict.setdefault(f"{prefix}weight", self.weight[:, :0])
        if found.shape[1] == 0 or found.shape == self._whole:
            self.weight = torch.empty_like(found, device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _taken_apart(rows: Tensor | SparseRows) -> tuple[Tensor, Tensor]:
    """Return how near each row's size is to each of SIZES, (n, sizes), and one over its norm."""
    if isinstance(rows, SparseRows):
        squares = rows.squared_norms()
    else:
        squares = rows.double().square().sum(dim=-1)
    squares = squares.unsqueeze(-1)
    # A softmax, as all of them are small far beyond the last.
    centres = torch.tensor(SIZES, dtype=squares.dtype, device=squares.device)
    near = torch.softmax(-((torch.log1p(squares) - centres) ** 2) / 2, dim=-1)
    inverse = torch.where(squares > 0, squares, torch.inf).rsqrt()
    return F.normalize(near, dim=-1).float(), inverse.float()
