"""Exponential activations by powers of two, which torch computes four times faster on a CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn.fast.gpu import EXPONENTIAL


def exponential(values: Tensor, name: str) -> Tensor:
    """Return the activation called so of the values, ``(R, ...)``.

    One replica after the other, which stays in cache: torch rounds the end of a tensor otherwise,
    and a replica's end must not depend on how many others there are. The result differs from
    torch's by rounding: a few units of 1e-7 below zero, nothing above.

    >>> exponential(torch.tensor([[-1.0, 0.0, 2.0]]), "elu").mul(1e4).round().tolist()
    [[-6321.0, 0.0, 20000.0]]
    """
    result: Tensor = _Exponential.apply(values, EXPONENTIAL[name])  # type: ignore[no-untyped-call]
    return result


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shape: tuple[float, float]) -> Tensor:
        result = values.clone(memory_format=torch.contiguous_format)
        for own in result:
            activate_(own, shape)
        ctx.save_for_backward(result)
        ctx.shape = shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
        return slopes_before(slopes, ctx.saved_tensors[0], ctx.shape), None


def activate_(values: Tensor, shape: tuple[float, float]) -> None:
    """Put ``scale * (max(x, 0) + alpha * (exp(min(x, 0)) - 1))`` in place of the values."""
    scale, alpha = shape
    below = values.clamp(max=0).mul_(math.log2(math.e)).exp2_() if alpha else None
    values.clamp_(min=0).mul_(scale)
    if below is not None:
        values.add_(below, alpha=scale * alpha).sub_(scale * alpha)


def slopes_before(slopes: Tensor, result: Tensor, shape: tuple[float, float]) -> Tensor:
    """Return the slopes before an activation from those after it and its result.

    >>> slopes_before(torch.ones(2), torch.tensor([-0.5, 3.0]), (1.0, 1.0)).tolist()
    [0.5, 1.0]
    """
    scale, alpha = shape
    found: Tensor = torch.ops.aten.elu_backward(slopes, alpha, scale, 1.0, True, result)
    return found
