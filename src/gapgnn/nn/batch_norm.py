"""torch's own batch norm with the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn.fast import one_thread


def batch_norm_on_one_thread(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    epsilon: float,
) -> Tensor:
    """Normalise ``(N, C)`` over N by the batch, and move the running statistics.

    On several threads torch adds up what each has found, so that its rounding depends on their
    number.

    >>> statistics = torch.zeros(1), torch.ones(1)
    >>> own = torch.ones(1), torch.zeros(1)
    >>> batch_norm_on_one_thread(torch.tensor([[1.0], [3.0]]), *own, *statistics, 1.0, 0.0).tolist()
    [[-1.0], [1.0]]
    """
    normal: Tensor = _BatchNorm.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, running_mean, running_var, momentum, epsilon
    )
    return normal


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        epsilon: float,
    ) -> Tensor:
        running = running_mean, running_var
        with one_thread():
            out, mean, inverse = torch.native_batch_norm(
                inputs, weight, bias, *running, True, momentum, epsilon
            )
        ctx.save_for_backward(inputs, weight, *running, mean, inverse)
        ctx.epsilon = epsilon
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:3]
        with one_thread():
            found = torch.ops.aten.native_batch_norm_backward(
                slopes.contiguous(), *ctx.saved_tensors, True, ctx.epsilon, wanted
            )
        return *found, None, None, None, None
