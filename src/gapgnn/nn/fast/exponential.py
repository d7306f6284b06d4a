"""Exponential activations by powers of two, which torch computes four times faster on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn.fast.gpu import EXPONENTIAL
from gapgnn.nn.fast.threads import one_thread
from gapgnn.privacy.dpsgd import active_tape

# For fewer values of one replica torch's own operation is faster, since nothing of it is in Python.
# What is done must not depend on how many replicas there are, for it is rounded otherwise.
MANY = 1 << 15
# One megabyte.
PIECE = 1 << 18


def selu(values: Tensor) -> Tensor:
    """Return the scaled exponential linear unit of the values, ``(R, ...)``.

    >>> selu(torch.zeros(2)).tolist()
    [0.0, 0.0]
    """
    return _many(values, "selu") if _is_many(values) else _own(torch.selu, values)


def elu(values: Tensor) -> Tensor:
    """Return the exponential linear unit of the values, ``(R, ...)``.

    >>> elu(torch.ones(1)).tolist()
    [1.0]
    """
    return _many(values, "elu") if _is_many(values) else _own(torch.nn.functional.elu, values)


def _is_many(values: Tensor) -> bool:
    return not values.is_cuda and values.numel() >= MANY * len(values)


def _own(activation: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return torch's own activation, which rounds the end of a tensor or thread's share otherwise.

    So replicas go one by one. Those of a DP-SGD step go together: it is short, and its batches are
    filled up to the widest of all, which moves the rounding anyway.
    """
    if values.is_cuda:
        return activation(values)
    with one_thread():
        if active_tape() is not None or len(values) == 1:
            return activation(values.contiguous())
        return torch.cat([activation(own.contiguous().unsqueeze(0)) for own in values])


def _many(values: Tensor, name: str) -> Tensor:
    result: Tensor = _Exponential.apply(values, EXPONENTIAL[name])  # type: ignore[no-untyped-call]
    return result


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shape: tuple[float, float]) -> Tensor:
        values = values.contiguous()
        result = torch.empty_like(values)
        for mine, own in zip(result, values, strict=True):
            activate_(mine, shape, own)
        ctx.save_for_backward(result)
        ctx.shape = shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
        return slopes_(slopes, ctx.saved_tensors[0], ctx.shape), None


def activate_(values: Tensor, shape: tuple[float, float], source: Tensor | None = None) -> Tensor:
    """Put ``scale * (max(x, 0) + alpha * (exp(min(x, 0)) - 1))`` in place of the values.

    ``exp(x) = 2**(x log2(e))``. The result differs from torch's by rounding: a few units of 1e-7
    below zero, nothing above. A piece at a time, so that it stays in cache from step to step.

    Args:
        values: contiguous, of any shape.
        shape: scale and alpha.
        source: contiguous; x, if that is not what is in the values.

    >>> activate_(torch.tensor([-1.0, 0.0, 2.0]), (1.0, 1.0)).mul(1e4).round().tolist()
    [-6321.0, 0.0, 20000.0]
    """
    scale, alpha = shape
    height = scale * alpha
    pieces = _pieces(values)
    sources = pieces if source is None else _pieces(source)
    for piece, given in zip(pieces, sources, strict=True):
        if not height:
            torch.clamp(given, min=0, out=piece).mul_(scale)
            continue
        below = given.clamp(max=0)
        # height * exp(x) = 2**(x log2(e) + log2(height))
        torch.add(torch.tensor(math.log2(height)), below, alpha=math.log2(math.e), out=below)
        # What is left over at the end of a thread's share is rounded otherwise.
        with one_thread():
            below.exp2_()
        torch.clamp(given, min=0, out=piece)
        torch.add(below, piece, alpha=scale, out=piece)
        piece.sub_(height)
    return values


def _pieces(values: Tensor) -> Sequence[Tensor]:
    if values.numel() <= PIECE:
        return (values,)
    pieces: Sequence[Tensor] = values.view(-1).split(PIECE)  # type: ignore[no-untyped-call]
    return pieces


def slopes_(slopes: Tensor, result: Tensor, shape: tuple[float, float]) -> Tensor:
    """Return the slopes before an activation from those after it and its result.

    >>> slopes_(torch.ones(2), torch.tensor([-0.5, 3.0]), (1.0, 1.0)).tolist()
    [0.5, 1.0]
    """
    scale, alpha = shape
    found: Tensor = torch.ops.aten.elu_backward(slopes, alpha, scale, 1.0, True, result)
    return found
