"""Subsets of the nodes that a network scores, with the moments of all nodes for batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The covariance of wider inputs costs more than reading all rows.
WIDEST = 64
BLOCK_ROWS = 1 << 13


@dataclass(frozen=True)
class RowsWithMoments:
    """Rows of some nodes, with the moments of the rows of all nodes.

    Batch statistics of a first layer follow from the moments, so that it need not read all rows.

    Attributes:
        rows: ``(R, n, in)``.
        moments: mean ``(R, 1, in)`` and covariance ``(R, in, in)`` over all nodes.
    """

    rows: Tensor
    moments: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls, values: Tensor, nodes: Tensor, moments: tuple[Tensor, Tensor] | None = None
    ) -> RowsWithMoments:
        """Take nodes ``(R, n)`` out of the rows of all nodes, ``(R, N, in)``.

        >>> RowsWithMoments.of(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[1]])).rows.tolist()
        [[[3.0]]]
        """
        replicas = torch.arange(len(values)).unsqueeze(1)
        return cls(values[replicas, nodes], moments or input_moments(values))


@dataclass(frozen=True)
class RowSubset:
    """Inputs that a network reads as a whole, and the rows of its output that are used.

    Attributes:
        inputs: of all nodes.
        rows: of each replica's output, ``(R, n)``; a row may occur several times.
    """

    inputs: Any
    rows: Tensor

    def of(self, outputs: Tensor) -> Tensor:
        """Return the rows of the outputs: ``(R, N, C)`` to ``(R, n, C)``.

        >>> RowSubset(None, torch.tensor([[1, 1]])).of(torch.tensor([[[1.0], [3.0]]])).tolist()
        [[[3.0], [3.0]]]
        """
        pairs = zip(outputs, self.rows, strict=True)
        return torch.stack([own.index_select(0, rows) for own, rows in pairs])


def has_cheap_moments(inputs: Tensor) -> bool:
    """Return whether the covariance of inputs ``(R, N, in)`` costs less than reading their rows.

    >>> has_cheap_moments(torch.zeros(2, 100, 16)), has_cheap_moments(torch.zeros(2, 100, 602))
    (True, False)
    """
    return not inputs.is_cuda and inputs.shape[2] <= min(WIDEST, inputs.shape[1])


def input_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the rows.

    The mean is computed in float64. Centred rows have the magnitude of their spread, so float32 is
    precise enough for their products; blocks of these are summed in float64.
    """
    replicas, count, width = inputs.shape
    mean = inputs.mean(1, keepdim=True, dtype=torch.float64).float()
    total = inputs.new_zeros(replicas, width, width, dtype=torch.float64)
    for start in range(0, count, BLOCK_ROWS):
        part = inputs[:, start : start + BLOCK_ROWS] - mean
        total += torch.bmm(part.transpose(1, 2), part)
    return mean, (total / count).float()
