"""Layers in fewer passes on a CPU.

Exponential activations are made of powers of two, which torch computes four times faster. In full
batches a linear layer and the batch norm after it are one product.

Mean and variance of ``z = x W`` follow from those of ``x``: with mean ``m`` and covariance ``S`` of
the inputs, channel ``c`` of ``z`` has mean ``m W_c`` and variance ``W_c^T S W_c``. So batch norm is
a change of the weights, ``y = x (W a) + b``, and its gradient is one of small matrices too. What is
left to do per node is the product itself: five passes over the activations fall away.

That is for inputs, which have no gradient: ``S`` is that of rows without their mean, since a
variance far below the squared mean would come out coarse. The covariance of activations, anew in
every step, would cost as much as their product or more: there mean and variance are those of the
product, one replica after the other, which stays in cache.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn import SparseRows
from gapgnn.nn.fast.gpu import EXPONENTIAL

# The covariance of wider inputs would cost more than the passes it saves.
WIDEST, WIDEST_SPARSE = 64, 1024
BLOCK_ROWS = 1 << 13
# A product of fewer columns than a vector register holds is faster the other way round: for 15,374
# rows of 48 and 6 columns 0.2 instead of 1.0 ms, and 0.4 instead of 1.8 ms for its gradients.
NARROW = 16
# With fewer rows the detour costs more than it saves.
LONG = 2048
# As many values as torch activates faster: 4,096 and their gradients take 29 us instead of 85,
# 163,840 take 357 us instead of 302.
MANY_VALUES = 1 << 16
IN_PLACE = {"selu": torch.selu_, "elu": F.elu_, "tanh": torch.tanh_}


def exponential(values: Tensor, name: str, *, is_short: bool = False) -> Tensor:
    """Return the activation called so of the values, ``(R, ...)``.

    One replica after the other, which stays in cache: torch rounds the end of a tensor otherwise,
    and a replica's end must not depend on how many others there are. The result differs from
    torch's by rounding: a few units of 1e-7 below zero, nothing above. A replica of few values is
    activated by torch itself. What is short is taken for all replicas at once.

    >>> exponential(torch.tensor([[-1.0, 0.0, 2.0]]), "elu").mul(1e4).round().tolist()
    [[-6321.0, 0.0, 20000.0]]
    """
    parts = 1 if is_short else len(values)
    if parts == 1 and values.numel() < MANY_VALUES:
        # In its place torch keeps the result instead of the values, as _Exponential does: the same
        # bits for one replica as for one of many.
        result: Tensor = IN_PLACE[name](values.clone(memory_format=torch.contiguous_format))
        return result
    result = _Exponential.apply(values, name, parts)  # type: ignore[no-untyped-call]
    return result


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, name: str, parts: int) -> Tensor:
        result = values.clone(memory_format=torch.contiguous_format)
        for own in result if parts > 1 else (result,):
            if own.numel() < MANY_VALUES:
                IN_PLACE[name](own)
            else:
                activate_(own, name)
        ctx.save_for_backward(result)
        ctx.name = name
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None]:
        return slopes_before(slopes.contiguous(), ctx.saved_tensors[0], ctx.name), None, None


def activate_(values: Tensor, name: str) -> None:
    """Put an activation in the place of the values.

    ``scale * (max(x, 0) + alpha * (exp(min(x, 0)) - 1))``, or ``1 - 2 / (1 + exp(2 x))``.

    >>> values = torch.tensor([-100.0, 0.0, 100.0])
    >>> activate_(values, "tanh")
    >>> values.tolist()
    [-1.0, 0.0, 1.0]
    """
    if name == "tanh":
        values.mul_(2 * math.log2(math.e)).exp2_().add_(1).reciprocal_()
        torch.add(values.new_ones(()), values, alpha=-2, out=values)
        return
    scale, alpha = EXPONENTIAL[name]
    below = values.clamp(max=0).mul_(math.log2(math.e)).exp2_() if alpha else None
    values.clamp_(min=0).mul_(scale)
    if below is not None:
        values.add_(below, alpha=scale * alpha).sub_(scale * alpha)


def slopes_before(slopes: Tensor, result: Tensor, name: str) -> Tensor:
    """Return the slopes before an activation from those after it and its result.

    >>> slopes_before(torch.ones(2), torch.tensor([-0.5, 3.0]), "elu").tolist()
    [0.5, 1.0]
    """
    if name == "tanh":
        return torch.ops.aten.tanh_backward(slopes, result)  # type: ignore[no-any-return]
    scale, alpha = EXPONENTIAL[name]
    found: Tensor = torch.ops.aten.elu_backward(slopes, alpha, scale, 1.0, True, result)
    return found


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
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        weight, *blocks = ctx.saved_tensors
        turned = slopes.transpose(1, 2).contiguous()
        slopes = turned.transpose(1, 2)
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
            torch.bmm(slopes, part.contiguous()) if needed else None
            for part, needed in zip(parts, ctx.needs_input_grad[2:], strict=True)
        ]
        return for_weight, for_bias, *for_blocks


@dataclass(frozen=True)
class Sample:
    """Some nodes' rows, with the moments of all nodes' rows.

    Attributes:
        rows: ``(R, n, in)``.
        moments: mean and covariance over all nodes.
    """

    rows: Tensor
    moments: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls, values: Tensor, nodes: Tensor, moments: tuple[Tensor, Tensor] | None = None
    ) -> Sample:
        """Take nodes ``(R, n)`` out of the rows of all nodes, ``(R, N, in)``.

        >>> Sample.of(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[1]])).rows.tolist()
        [[[3.0]]]
        """
        replicas = torch.arange(len(values)).unsqueeze(1)
        return cls(values[replicas, nodes], moments or input_moments(values))


@dataclass(frozen=True)
class Chosen:
    """Some nodes of an input that a network must read as a whole.

    Attributes:
        inputs: of all nodes.
        places: which rows of the network's output are wanted.
    """

    inputs: Any
    places: Places


class Places:
    """Which of ``count`` rows each replica takes: ``rows`` of shape ``(R, n)``, on a CPU.

    >>> places = Places(torch.tensor([[1, 1]]), 3)
    >>> values = torch.tensor([[[1.0], [3.0], [5.0]]], requires_grad=True)
    >>> taken = places.take(values)
    >>> taken.tolist(), torch.autograd.grad(taken.sum(), values)[0].tolist()
    ([[[3.0], [3.0]]], [[[0.0], [2.0], [0.0]]])
    """

    def __init__(self, rows: Tensor, count: int) -> None:
        self.rows = rows
        ordered, order = rows.sort(dim=1, stable=True)
        bounds = torch.arange(count + 1).expand(len(rows), -1).contiguous()
        # The takers of each row, in the order of rows: what the gradient adds up.
        self.takers = order.int()
        self.starts = torch.searchsorted(ordered, bounds).int()

    def take(self, values: Tensor) -> Tensor:
        """Return each replica's rows: ``(R, count, C)`` to ``(R, n, C)``."""
        taken: Tensor = _TakeRows.apply(values, self)  # type: ignore[no-untyped-call]
        return taken


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Places) -> Tensor:
        ctx.places = places
        taken = values.new_empty(*places.rows.shape, values.shape[2])
        for own, rows, out in zip(values, places.rows, taken, strict=True):
            torch.index_select(own, 0, rows, out=out)
        return taken

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
        places = ctx.places
        lists = zip(slopes, places.takers, places.starts, strict=True)
        back = [
            F.embedding_bag(takers, own, starts, mode="sum", include_last_offset=True)
            for own, takers, starts in lists
        ]
        return torch.stack(back), None


class Moments:
    """Mean ``(R, 1, in)`` and covariance ``(R, in, in)`` of the rows of a layer's input.

    Those of inputs that do not change are kept for the next epoch.
    """

    def __init__(self) -> None:
        self._inputs: weakref.ref[Tensor] | None = None
        self._version = 0
        self._found: tuple[Tensor, Tensor] | None = None

    def of(self, inputs: Tensor | SparseRows) -> tuple[Tensor, Tensor] | None:
        """Return mean and covariance of inputs that stay, and None of activations.

        Those of sparse rows, which replicas share, are computed once for all.

        >>> mean, covariance = Moments().of(torch.tensor([[[1.0], [3.0]]]))
        >>> float(mean), float(covariance)
        (2.0, 1.0)
        """
        if isinstance(inputs, SparseRows):
            return inputs.moments()
        known = None if self._inputs is None else self._inputs()
        if inputs is known and inputs._version == self._version:
            return self._found
        # Without gradients activations look like inputs that stay.
        if inputs.requires_grad or not torch.is_grad_enabled():
            return None
        self._inputs, self._version = weakref.ref(inputs), inputs._version
        self._found = input_moments(inputs)
        return self._found


def can_norm(inputs: Any) -> bool:
    """Return whether a layer with these inputs, over all nodes, can take its norm along.

    >>> can_norm(torch.zeros(2, 100, 16)), can_norm(torch.zeros(100, 602))
    (True, False)
    """
    if isinstance(inputs, SparseRows):
        rows, width = inputs.shape
        if inputs.counts() is not None:
            # Batch norm knows nothing of rows that count several times.
            return True
        is_lasting = inputs.device.type == "cpu" and not inputs.is_passing
        return is_lasting and width <= min(WIDEST_SPARSE, rows)
    if not isinstance(inputs, Tensor) or inputs.is_cuda or inputs.ndim != 3:
        return False
    return inputs.shape[2] <= min(WIDEST, inputs.shape[1])


def normed_layer(
    inputs: Tensor | SparseRows,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    moments: tuple[Tensor, Tensor],
    *,
    epsilon: float,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``activation(norm(inputs @ weight) * scale + shift)``, and the product's moments.

    One replica after the other: what one step of the computation has written is still in cache when
    the next one reads it.

    Args:
        inputs: ``(R, N, in)``, or sparse rows that all replicas share; data, without a gradient.
        weight: ``(R, in, out)``.
        scale: ``(R, out)``.
        shift: ``(R, out)``.
        moments: of the inputs.
        epsilon: added to the variance.
        activation: an exponential one, ReLU, or None.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormedLayer.apply(  # type: ignore[no-untyped-call]
        weight, scale, shift, inputs, moments, epsilon, activation
    )
    return found


class _NormedLayer(torch.autograd.Function):
    """See the module's notes. What has R in front but no N is small and done for all replicas."""

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
        for replica, mine in enumerate(out):
            if isinstance(inputs, Tensor):
                torch.addmm(start[replica, 0], inputs[replica], scaled[replica], out=mine)
            else:
                torch.add(inputs.times(scaled[replica]), start[replica], out=mine)
            if activation is not None:
                activate_(mine, activation)
        ctx.save_for_backward(weight, mean, spread, inverse, factor, out)
        ctx.inputs, ctx.activation = inputs, activation
        ctx.mark_non_differentiable(centre, variance)
        ctx.set_materialize_grads(False)
        return out, centre, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        weight, mean, spread, inverse, factor, out = ctx.saved_tensors
        inputs = ctx.inputs
        crossed, total = torch.empty_like(weight), torch.empty_like(inverse)
        for replica, mine in enumerate(slopes):
            if ctx.activation is not None:
                mine = slopes_before(mine, out[replica], ctx.activation)
            torch.sum(mine, 0, out=total[replica, 0])
            if isinstance(inputs, Tensor):
                torch.mm(inputs[replica].T, mine, out=crossed[replica])
            else:
                crossed[replica] = inputs.transposed_times(mine)
        crossed -= mean.transpose(1, 2) * total
        along = (weight * crossed).sum(1, keepdim=True).mul_(inverse)
        for_weight = crossed.addcmul_(spread, inverse * along, value=-1).mul_(factor)
        return for_weight, along.squeeze(1), total.squeeze(1), None, None, None, None


def normed_product(
    blocks: Sequence[Tensor],
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    activation: str | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`normed_layer`, for activations, whose moments nobody knows yet.

    Args:
        blocks: the inputs in blocks of columns, ``(R, N, in_1)``, ``(R, N, in_2)`` and so on.
        weight: ``(R, in_1 + in_2 + ..., out)``.
        scale: ``(R, out)``.
        shift: ``(R, out)``.
        epsilon: added to the variance.
        activation: an exponential one, ReLU, or None.
        counts: how often each row counts in the moments, if not once.
    """
    found: tuple[Tensor, Tensor, Tensor] = _NormedProduct.apply(  # type: ignore[no-untyped-call]
        weight, scale, shift, epsilon, activation, counts, *blocks
    )
    return found


class _NormedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        epsilon: float,
        activation: str | None,
        counts: Tensor | None,
        *blocks: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        replicas, count, _ = blocks[0].shape
        parts = torch.split(weight, [block.shape[2] for block in blocks], dim=1)
        # The product, from which each channel's mean is taken off.
        centred, out = (weight.new_empty(replicas, count, weight.shape[2]) for _ in range(2))
        mean, variance = (weight.new_empty(replicas, 1, weight.shape[2]) for _ in range(2))
        inverse, factor = torch.empty_like(mean), torch.empty_like(mean)
        repeated = None if counts is None else counts.to(weight.dtype).unsqueeze(1)
        total = count if repeated is None else float(repeated.sum())
        for replica, (mine, normal) in enumerate(zip(centred, out, strict=True)):
            torch.mm(blocks[0][replica], parts[0][replica], out=mine)
            for block, part in zip(blocks[1:], parts[1:], strict=True):
                mine.addmm_(block[replica], part[replica])
            own = mean[replica, 0]
            torch.sum(mine if repeated is None else mine * repeated, 0, out=own)
            mine.sub_(own.div_(total))
            torch.mul(mine, mine, out=normal)
            if repeated is not None:
                normal.mul_(repeated)
            torch.sum(normal, 0, out=variance[replica, 0]).div_(total)
            torch.rsqrt(variance[replica] + epsilon, out=inverse[replica])
            torch.mul(scale[replica], inverse[replica], out=factor[replica])
            torch.addcmul(shift[replica], mine, factor[replica], out=normal)
            if activation is not None:
                activate_(normal, activation)
        ctx.save_for_backward(weight, inverse, factor, centred, out, *blocks)
        ctx.activation, ctx.repeated, ctx.total = activation, repeated, total
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return out, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        weight, inverse, factor, centred, out, *blocks = ctx.saved_tensors
        widths = [block.shape[2] for block in blocks]
        parts = torch.split(weight, widths, dim=1)
        along, total = torch.empty_like(inverse), torch.empty_like(inverse)
        for_weight = torch.empty_like(weight)
        needed = ctx.needs_input_grad[6:]
        for_blocks = [
            torch.empty_like(block) if is_needed else None
            for block, is_needed in zip(blocks, needed, strict=True)
        ]
        for replica, mine in enumerate(slopes):
            if ctx.activation is not None:
                mine = slopes_before(mine, out[replica], ctx.activation)
            normal, own, scaled = centred[replica], inverse[replica], factor[replica]
            torch.sum(mine, 0, out=total[replica, 0])
            torch.sum(mine * normal, 0, out=along[replica, 0])
            along[replica] *= own
            # What a row changes of mean and variance comes back to all rows, as often as it counts.
            share = scaled / -ctx.total
            back = torch.addcmul(share * total[replica], normal, share * own * along[replica])
            if ctx.repeated is not None:
                back.mul_(ctx.repeated)
            back.addcmul_(mine, scaled)
            found = torch.split(for_weight[replica], widths)
            for block, part, mine_of, for_block in zip(
                blocks, parts, found, for_blocks, strict=True
            ):
                torch.mm(block[replica].T, back, out=mine_of)
                if for_block is not None:
                    torch.mm(back, part[replica].T, out=for_block[replica])
        small = (for_weight, along.squeeze(1), total.squeeze(1))
        return *small, None, None, None, *for_blocks


def input_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the rows.

    The mean is made in float64. Rows without it are of the size of their spread, so float32 loses
    nothing that counts in their products; blocks of these are added up in float64.
    """
    replicas, count, width = inputs.shape
    mean = inputs.mean(1, keepdim=True, dtype=torch.float64).float()
    total = inputs.new_zeros(replicas, width, width, dtype=torch.float64)
    for start in range(0, count, BLOCK_ROWS):
        part = inputs[:, start : start + BLOCK_ROWS] - mean
        total += torch.bmm(part.transpose(1, 2), part)
    return mean, (total / count).float()
