"""Kernels of full batches on a CPU."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from gapgnn.nn import SparseRows, has_cheap_moments, input_moments
from gapgnn.nn.kernels.cuda import EXPONENTIAL
from gapgnn.nn.kernels.registry import register

if TYPE_CHECKING:
    from gapgnn.nn import Inputs, Layer

# A product of fewer columns than a vector register holds is faster the other way round: for 15,374
# rows of 48 and 6 columns 0.2 instead of 1.0 ms, and 0.4 instead of 1.8 ms for its gradients.
NARROW = 16
# With fewer rows the detour costs more than it saves.
LONG = 2048
# The covariance of wider sparse inputs would cost more than the passes that it saves.
WIDEST_SPARSE = 1024
# Activations that are computed together with the product.
FUSED = (*EXPONENTIAL, "tanh")
# Moments of dense inputs by input, each with the version of the tensor that they belong to.
_moments: MutableMapping[Tensor, tuple[int, tuple[Tensor, Tensor]]] = WeakTensorKeyDictionary()


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


def has_moments(
    inputs: Inputs, layer: Layer, counts: Tensor | None, moments: tuple[Tensor, Tensor] | None
) -> bool:
    """Return whether inputs are data whose moments are given or worth their computation.

    >>> from gapgnn.nn.layers import Layer, ReplicaBatchNorm, ReplicaLinear
    >>> linear = ReplicaLinear(1, 3, 2, bias=False)
    >>> layer = Layer(linear, ReplicaBatchNorm(1, 2), "selu", None)
    >>> has_moments(torch.zeros(1, 4, 3), layer, None, None)
    True
    >>> has_moments(torch.zeros(1, 4, 3, requires_grad=True), layer, None, None)
    False
    """
    if layer.linear.bias is not None:
        return False
    if isinstance(inputs, SparseRows):
        rows, width = inputs.shape
        return not inputs.is_minibatch and width <= min(WIDEST_SPARSE, rows)
    if not isinstance(inputs, Tensor) or inputs.ndim != 3 or inputs.requires_grad:
        return False
    if moments is not None:
        return True
    # Without gradients, activations look like data, whose moments are used again.
    is_data = torch.is_grad_enabled() or inputs in _moments
    return counts is None and is_data and has_cheap_moments(inputs)


@register("normed_layer", device="cpu", condition=has_moments)
def normed_product(
    inputs: Tensor | SparseRows,
    layer: Layer,
    counts: Tensor | None,
    moments: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return linear, batch norm in training and activation of data as one product.

    With mean ``m`` and covariance ``S`` of the inputs, channel ``c`` of their product with ``W``
    has mean ``m W_c`` and variance ``W_c^T S W_c``. So batch norm only changes the weights, and its
    gradient follows from small matrices: five passes over the activations are saved. One replica
    is computed after the other, so that its activations stay in cache.

    Args:
        inputs: ``(R, N, in)``, or sparse rows that all replicas share; without a gradient.
        layer: with batch norm and without a bias.
        counts: how often each row counts in the batch statistics, if not once.
        moments: mean and covariance of the inputs of all nodes, if they are not those of the rows.
    """
    norm = layer.norm
    assert norm is not None
    if moments is None:
        moments = inputs.moments() if isinstance(inputs, SparseRows) else _moments_of(inputs)
    activation = layer.activation if layer.activation in FUSED else None
    out: Tensor
    out, mean, variance = _NormedProduct.apply(  # type: ignore[no-untyped-call]
        layer.linear.weight, norm.weight, norm.bias, inputs, moments, norm.epsilon, activation
    )
    norm.move_statistics(mean, variance, inputs.shape[-2] if counts is None else int(counts.sum()))
    return layer.activate(out) if activation is None else out


def _moments_of(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of inputs, kept for the next epoch while they stay unchanged."""
    version, moments = _moments.get(inputs, (-1, None))
    if moments is None or version != inputs._version:
        moments = input_moments(inputs)
        _moments[inputs] = inputs._version, moments
    return moments


class _NormedProduct(torch.autograd.Function):
    """Values of shape ``(R, ..., out)`` without N are small and computed for all replicas."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        inputs: Tensor | SparseRows,
        moments: tuple[Tensor, Tensor],
        epsilon: float,
        activation: str | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, covariance = moments
        spread, centre = torch.matmul(covariance, weight), torch.matmul(mean, weight)
        variance = (weight * spread).sum(1, keepdim=True).clamp_(min=0)
        inverse = (variance + epsilon).rsqrt_()
        factor = scale.unsqueeze(1) * inverse
        scaled = weight * factor
        start = torch.addcmul(shift.unsqueeze(1), centre, factor, value=-1)
        out = weight.new_empty(len(weight), inputs.shape[-2], weight.shape[2])
        for replica, own in enumerate(out):
            if isinstance(inputs, Tensor):
                torch.addmm(start[replica, 0], inputs[replica], scaled[replica], out=own)
            else:
                torch.add(inputs.times(scaled[replica]), start[replica], out=own)
            if activation is not None:
                _activate(own, activation)
        ctx.save_for_backward(weight, mean, spread, inverse, factor, out)
        ctx.inputs, ctx.activation = inputs, activation
        ctx.mark_non_differentiable(centre, variance)
        ctx.set_materialize_grads(False)
        return out, centre, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        weight, mean, spread, inverse, factor, out = ctx.saved_tensors
        inputs = ctx.inputs
        crossed, total = torch.empty_like(weight), torch.empty_like(inverse)
        for replica, own in enumerate(gradients):
            if ctx.activation is not None:
                own = _gradient_before(own, out[replica], ctx.activation)
            torch.sum(own, 0, out=total[replica, 0])
            if isinstance(inputs, Tensor):
                torch.mm(inputs[replica].T, own, out=crossed[replica])
            else:
                crossed[replica] = inputs.transposed_times(own)
        crossed -= mean.transpose(1, 2) * total
        along = (weight * crossed).sum(1, keepdim=True).mul_(inverse)
        for_weight = crossed.addcmul_(spread, inverse * along, value=-1).mul_(factor)
        return for_weight, along.squeeze(1), total.squeeze(1), None, None, None, None


def _activate(values: Tensor, name: str) -> None:
    """Replace the values by one of ``FUSED`` of them.

    Exponentials are powers of two, which torch computes four times faster.

    >>> values = torch.tensor([-100.0, 0.0, 100.0])
    >>> _activate(values, "tanh")
    >>> values.tolist()
    [-1.0, 0.0, 1.0]
    """
    if name == "tanh":
        # 1 - 2 / (1 + exp(2 x))
        values.mul_(2 * math.log2(math.e)).exp2_().add_(1).reciprocal_()
        torch.add(values.new_ones(()), values, alpha=-2, out=values)
        return
    scale, alpha = EXPONENTIAL[name]
    negative = values.clamp(max=0).mul_(math.log2(math.e)).exp2_() if alpha else None
    values.clamp_(min=0).mul_(scale)
    if negative is not None:
        values.add_(negative, alpha=scale * alpha).sub_(scale * alpha)


def _gradient_before(gradients: Tensor, result: Tensor, name: str) -> Tensor:
    """Return the gradient before an activation, from the one after it and the result.

    >>> _gradient_before(torch.ones(2), torch.tensor([-0.5, 3.0]), "elu").tolist()
    [0.5, 1.0]
    """
    if name == "tanh":
        return torch.ops.aten.tanh_backward(gradients, result)  # type: ignore[no-any-return]
    scale, alpha = EXPONENTIAL[name]
    found: Tensor = torch.ops.aten.elu_backward(gradients, alpha, scale, 1.0, True, result)
    return found
