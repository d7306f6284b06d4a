"""A bias whose gradient does not depend on how replicas lie in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def shifted(values: Tensor, bias: Tensor) -> Tensor:
    """Return ``values + bias``, the gradient of the bias added up replica by replica.

    In memory the replicas may lie side by side, and torch adds up in the order of memory.

    Args:
        values: ``(R, N, out)``.
        bias: ``(R, 1, out)``.

    >>> shifted(torch.zeros(2, 3, 1), torch.ones(2, 1, 1)).flatten().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    total: Tensor = _Shifted.apply(values, bias)  # type: ignore[no-untyped-call]
    return total


class _Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, bias: Tensor) -> Tensor:
        return values + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor]:
        return slopes, torch.stack([own.contiguous().sum(0, keepdim=True) for own in slopes])
