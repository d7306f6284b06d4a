"""Kernels of full batches on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn.kernels.registry import register

# A product of fewer columns than a vector register holds is faster the other way round: for 15,374
# rows of 48 and 6 columns 0.2 instead of 1.0 ms, and 0.4 instead of 1.8 ms for its gradients.
NARROW = 16
# With fewer rows the detour costs more than it saves.
LONG = 2048


def is_narrow(blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether there are many rows and few, but several, columns of results."""
    is_long = blocks[0].ndim == 3 and blocks[0].shape[1] >= LONG
    return is_long and 1 < weight.shape[2] < NARROW


@register("linear", device="cpu", condition=is_narrow)
def narrow_product(blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs @ weight + bias`` for inputs given as blocks of columns.

    In memory the columns of the result lie one after the other, which is also what the softmax over
    them is fastest with. Blocks need not be joined, nor their gradients taken apart.

    Args:
        blocks: ``(R, N, in_1)``, ``(R, N, in_2)`` and so on.
        weight: ``(R, in_1 + in_2 + ..., out)``.
        bias: ``(R, 1, out)`` or None.

    >>> narrow_product([torch.ones(2, 5, 3), torch.ones(2, 5, 1)], torch.ones(2, 4, 1), None).shape
    torch.Size([2, 5, 1])
    """
    product: Tensor = _NarrowProduct.apply(weight, bias, *blocks)  # type: ignore[no-untyped-call]
    return product


class _NarrowProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, *blocks: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *blocks)
        parts = torch.split(weight.transpose(1, 2), [block.shape[2] for block in blocks], dim=2)
        if bias is None:
            total = torch.bmm(parts[0], blocks[0].transpose(1, 2))
        else:
            total = torch.baddbmm(bias.transpose(1, 2), parts[0], blocks[0].transpose(1, 2))
        for part, block in zip(parts[1:], blocks[1:], strict=True):
            total.baddbmm_(part, block.transpose(1, 2))
        return total.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, *blocks = ctx.saved_tensors
        turned = gradients.transpose(1, 2).contiguous()
        gradients = turned.transpose(1, 2)
        parts = torch.split(weight.transpose(1, 2), [block.shape[2] for block in blocks], dim=2)
        for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            # One replica at a time: a batch of several may be rounded otherwise than a single one.
            found = [
                torch.stack([torch.mm(*both) for both in zip(turned, block, strict=True)])
                for block in blocks
            ]
            for_weight = torch.cat(found, dim=2).transpose(1, 2)
        if ctx.needs_input_grad[1]:
            for_bias = turned.sum(2).unsqueeze(1)
        # A transposed right side, small as it is, makes this product four times slower.
        for_blocks = [
            torch.bmm(gradients, part.contiguous()) if needed else None
            for part, needed in zip(parts, ctx.needs_input_grad[2:], strict=True)
        ]
        return for_weight, for_bias, *for_blocks
