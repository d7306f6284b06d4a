"""Kernels of full batches on an NVIDIA GPU: the layers in fewer passes over the data.

Networks here are narrow (16 channels), so on a GPU an epoch over millions of nodes takes as long as
its activations need to travel. Batch norm and activation together read and write them 8 times here,
in torch's own operations about 20 times; the class scores likewise. Everything falls back to torch
where Triton is not present.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn.kernels.registry import register
from gapgnn.privacy.mechanisms import can_use_triton

if TYPE_CHECKING:
    from gapgnn.nn import ReplicaBatchNorm

MOST_CHANNELS = 128
TILE = 2048
# Rows of one part of a long product; the parts run side by side and are then added up.
PART = 4096
# Up to so many columns on both sides kernels of their own multiply: a program takes so many rows of
# a product, and so many steps of so many rows of a weight's gradient.
NARROW = 32
PRODUCT_ROWS = 128
GRADIENT_ROWS, GRADIENT_STEPS = 128, 8
# Values that one program of dropout takes.
DROPPED = 1024
# Of y: scale * y above zero, scale * alpha * (exp(y) - 1) below.
EXPONENTIAL = {
    "selu": (1.0507009873554805, 1.6732632423543772),
    "elu": (1.0, 1.0),
    "relu": (1.0, 0.0),
}


def can_fuse(values: Tensor) -> bool:
    """Return whether the kernels can take these values.

    >>> can_fuse(torch.zeros(2, 3, 4))
    False
    """
    return (
        values.is_cuda
        and values.dtype == torch.float32
        and 0 < values.shape[-1] <= MOST_CHANNELS
        and values.stride(-1) == 1
        and values.numel() > 0
        and can_use_triton(values.device)
    )


@register(
    "norm_activation",
    device="cuda",
    condition=lambda values, norm, activation: activation in EXPONENTIAL and can_fuse(values),
)
def normed_and_activated(values: Tensor, norm: ReplicaBatchNorm, activation: str) -> Tensor:
    """Return :func:`norm_and_activation` with the parameters and statistics of a layer."""
    return norm_and_activation(
        values,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        momentum=norm.momentum,
        epsilon=norm.epsilon,
        activation=activation,
    )


def norm_and_activation(
    values: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    momentum: float,
    epsilon: float,
    activation: str,
) -> Tensor:
    """Return the activation of the batch-normalised ``(R, N, C)``, each replica by itself.

    Mean and variance over N come from the batch, and move the running ones by ``momentum``.
    """
    out: Tensor
    out, mean, variance = _NormActivation.apply(  # type: ignore[no-untyped-call]
        values, weight, bias, epsilon, EXPONENTIAL[activation]
    )
    count = values.shape[1]
    with torch.no_grad():
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * (count / max(1, count - 1)), momentum)
    return out


class _NormActivation(torch.autograd.Function):
    """Batch norm by the batch's own statistics, then an exponential activation."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        shape: tuple[float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        from gapgnn.nn.kernels.triton import activate_kernel, statistics_kernel

        replicas, count, channels = values.shape
        weight, bias = weight.contiguous(), bias.contiguous()
        rows, sizes = _rows_of(channels)
        grid = (-(-count // rows), replicas)
        partial = values.new_empty(replicas, grid[0], 2, channels)
        strides = values.stride()[:2]
        statistics_kernel[grid](values, partial, count, *strides, **sizes)
        mean, variance = _combined(partial, count, rows)
        inverse = (variance + epsilon).rsqrt()
        means, inverses = mean.float(), inverse.float()
        out = torch.empty(values.shape, device=values.device)
        activate_kernel[grid](
            values,
            means,
            (inverse * weight).float(),
            bias,
            out,
            count,
            *strides,
            **sizes,
            SCALE=shape[0],
            ALPHA=shape[1],
        )
        ctx.save_for_backward(values, means, inverses, weight, bias)
        ctx.shape = shape
        means, variances = means.clone(), variance.float()
        ctx.mark_non_differentiable(means, variances)
        return out, means, variances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        from gapgnn.nn.kernels.triton import gradient_kernel

        values, mean, inverse, weight, bias = ctx.saved_tensors
        replicas, count, channels = values.shape
        if gradients.stride(-1) != 1:
            gradients = gradients.contiguous()
        out = torch.empty_like(values)
        if out.stride() != values.stride():
            values = values.contiguous()
        rows, sizes = _rows_of(channels)
        grid = (-(-count // rows), replicas)
        sizes |= {"SCALE": ctx.shape[0], "ALPHA": ctx.shape[1]}
        strides = (*values.stride()[:2], *gradients.stride()[:2])
        partial = values.new_empty(replicas, grid[0], 2, channels)
        both = (values, gradients, mean, inverse, weight, bias)
        gradient_kernel[grid](*both, mean, partial, count, *strides, **sizes, IS_SUM=True)
        sums = partial.sum(dim=1, dtype=torch.float64)
        means = sums.div(count).float()
        gradient_kernel[grid](*both, means, out, count, *strides, **sizes, IS_SUM=False)
        sums = sums.float()
        return out, sums[:, 1], sums[:, 0], None, None


def _rows_of(channels: int) -> tuple[int, dict[str, Any]]:
    """Return the rows of one program, and the sizes that the kernels are compiled for."""
    columns = max(4, 1 << (channels - 1).bit_length())
    rows = TILE // columns
    return rows, {"CHANNELS": channels, "COLUMNS": columns, "ROWS": rows, "num_warps": 4}


def _combined(partial: Tensor, count: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance ``(R, C)`` in float64 from those of blocks of ``rows`` rows.

    >>> blocks = torch.tensor([[[[1.0], [2.0]], [[4.0], [0.0]]]])
    >>> [float(value) for value in _combined(blocks, 3, 2)]
    [2.0, 2.6666666666666665]
    """
    exact = partial.double()
    blocks = partial.shape[1]
    sizes = torch.full((blocks, 1), float(rows), dtype=torch.float64, device=partial.device)
    sizes[-1] = count - rows * (blocks - 1)
    mean = (exact[:, :, 0] * sizes).sum(dim=1) / count
    between = (exact[:, :, 0] - mean.unsqueeze(1)).square() * sizes
    return mean, (exact[:, :, 1] + between).sum(dim=1) / count


@register("dropout", device="cuda", condition=lambda seeds, device: can_use_triton(device))
class Masks:
    """What a layer blanks on a device: a function of each replica's seed, the call and the place.

    The number of the call is kept on the device, so that a recorded graph blanks other values every
    time it is taken.

    Args:
        seeds: of the replicas, below 2**63.
        device: where values are blanked.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._seeds = torch.tensor(list(seeds), dtype=torch.int64, device=device)
        self._calls = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def device(self) -> torch.device:
        """Where values are blanked."""
        return self._seeds.device

    def dropped(self, values: Tensor, threshold: int, levels: int) -> Tensor:
        """Blank ``(R, N, C)`` where a random byte is below the threshold, and scale up the rest."""
        call = self._calls.clone()
        self._calls.add_(1)
        out: Tensor = _Dropped.apply(values, self._seeds, call, threshold, levels)  # type: ignore[no-untyped-call]
        return out


class _Dropped(torch.autograd.Function):
    """Values times a mask that is drawn a second time for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, seeds: Tensor, call: Tensor, threshold: int, levels: int
    ) -> Tensor:
        ctx.save_for_backward(seeds, call)
        ctx.sizes = threshold, levels
        return _dropped(values, seeds, call, threshold, levels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(gradients, *ctx.saved_tensors, *ctx.sizes), None, None, None, None


def _dropped(values: Tensor, seeds: Tensor, call: Tensor, threshold: int, levels: int) -> Tensor:
    from gapgnn.nn.kernels.triton import dropout_kernel

    values = values.contiguous()
    out = torch.empty_like(values)
    count = values[0].numel()
    if count:
        scale = levels / (levels - threshold)
        grid = (-(-count // DROPPED), len(values))
        sizes = {"LEVELS": levels, "SIZE": DROPPED}
        dropout_kernel[grid](values, seeds, call, out, count, threshold, scale, **sizes)
    return out


class _CrossEntropy(torch.autograd.Function):
    """One loss per row of class scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(scores, labels)
        return _classes(scores, labels, None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None]:
        scores, labels = ctx.saved_tensors
        return _classes(scores, labels, weights.contiguous()), None


def _classes(scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return losses ``(R, N)``, or with weights their gradient ``(R, N, C)``."""
    from gapgnn.nn.kernels.triton import cross_entropy_kernel

    rows, sizes = _rows_of(scores.shape[-1])
    count = scores.numel() // scores.shape[-1]
    out = scores.new_empty(scores.shape[:-1] if weights is None else scores.shape)
    cross_entropy_kernel[(-(-count // rows),)](
        scores,
        labels,
        scores if weights is None else weights,
        out,
        count,
        labels.numel(),
        **sizes,
        IS_GRADIENT=weights is not None,
    )
    return out


@register("cross_entropy", device="cuda", condition=lambda scores, labels: can_fuse(scores))
def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return one loss per replica and example, ``(R, N)``, for labels ``(N,)`` or ``(R, N)``."""
    losses: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        scores.contiguous(), labels.contiguous()
    )
    return losses


@register(
    "cross_entropy_gradient",
    device="cuda",
    condition=lambda scores, labels, weights: can_fuse(scores),
)
def cross_entropy_gradients(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of the losses by the scores, each loss with its weight, ``(R, N)``."""
    return _classes(scores.detach().contiguous(), labels.contiguous(), weights.contiguous())


@register("best_class", device="cuda", condition=can_fuse)
def best_class(scores: Tensor) -> Tensor:
    """Return the index of every row's largest score."""
    from gapgnn.nn.kernels.triton import best_class_kernel

    rows, sizes = _rows_of(scores.shape[-1])
    scores = scores.contiguous()
    out = torch.empty(scores.shape[:-1], dtype=torch.int64, device=scores.device)
    best_class_kernel[(-(-out.numel() // rows),)](scores, out, out.numel(), **sizes)
    return out


def is_long(inputs: Tensor) -> bool:
    """Return whether the weight gradient of these rows is cut into parts."""
    return inputs.is_cuda and inputs.shape[-2] >= 4 * PART


@register(
    "linear",
    device="cuda",
    condition=lambda blocks, weight, bias: blocks[0].ndim == 2,
)
def shared_product(blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs @ weight + bias`` for inputs ``(N, in)`` that all replicas share.

    The weights of all replicas lie side by side, so that the inputs are read once.

    >>> shared_product([torch.ones(1, 3)], torch.ones(2, 3, 1), None).flatten().tolist()
    [3.0, 3.0]
    """
    (inputs,), (replicas, width, out) = blocks, weight.shape
    beside = weight.permute(1, 0, 2).reshape(width, -1)
    if is_long(inputs):
        product = long_product([inputs.unsqueeze(0)], beside.unsqueeze(0), None)[0]
    else:
        product = inputs @ beside
    product = product.view(len(inputs), replicas, out).permute(1, 0, 2)
    return product if bias is None else product + bias


@register(
    "linear",
    device="cuda",
    condition=lambda blocks, weight, bias: blocks[0].ndim == 3 and is_long(blocks[0]),
)
def long_product(blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs @ weight + bias`` for a large N and inputs given as blocks of columns.

    Narrow products have a kernel of their own, where torch's take twice as long. The gradient of
    the weight is a product along N: it has few outputs to share among many processors, so it is cut
    into parts that run side by side. Blocks need not be joined; shapes are those of
    ``(R, N, some of in)``, ``(R, in, out)`` and ``(R, 1, out)``.

    >>> long_product([torch.ones(2, 3, 4)], torch.ones(2, 4, 1), None).flatten().tolist()
    [4.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    """
    product: Tensor = _LongProduct.apply(weight, bias, *blocks)  # type: ignore[no-untyped-call]
    return product


class _LongProduct(torch.autograd.Function):
    """A batched product whose weight gradient is taken in parts."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, *blocks: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *blocks)
        parts = torch.split(weight, [block.shape[2] for block in blocks], dim=1)
        total = _product(blocks[0], parts[0], bias)
        for block, part in zip(blocks[1:], parts[1:], strict=True):
            _product(block, part, out=total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, *blocks = ctx.saved_tensors
        gradients = gradients.contiguous()
        parts = torch.split(weight, [block.shape[2] for block in blocks], dim=1)
        to_bias, to_blocks = ctx.needs_input_grad[1], ctx.needs_input_grad[2:]
        return (
            torch.cat([weight_gradient(block, gradients) for block in blocks], dim=1),
            gradients.sum(dim=1, keepdim=True) if to_bias else None,
            *(
                _product(gradients, part.transpose(1, 2)) if needed else None
                for part, needed in zip(parts, to_blocks, strict=True)
            ),
        )


def _product(
    inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return ``inputs @ weight + bias``, or add ``inputs @ weight`` to ``out``."""
    (replicas, count, width), columns = inputs.shape, weight.shape[2]
    if not (can_fuse(inputs) and max(width, columns) <= NARROW):
        if out is not None:
            return out.baddbmm_(inputs, weight)
        return torch.bmm(inputs, weight) if bias is None else torch.baddbmm(bias, inputs, weight)
    from gapgnn.nn.kernels.triton import product_kernel

    total = inputs.new_empty(replicas, count, columns) if out is None else out
    product_kernel[(-(-count // PRODUCT_ROWS), replicas)](
        inputs,
        weight,
        total if bias is None else bias,
        total,
        count,
        *inputs.stride()[:2],
        *weight.stride(),
        0 if bias is None else bias.stride(0),
        **_narrow_sizes(width, columns),
        ROWS=PRODUCT_ROWS,
        HAS_BIAS=bias is not None,
        IS_MORE=out is not None,
        num_warps=2,
    )
    return total


def _narrow_sizes(width: int, columns: int) -> dict[str, Any]:
    """Return what the kernels of narrow products are compiled for."""
    return {
        "IN": width,
        "OUT": columns,
        "IN_COLUMNS": max(16, 1 << (width - 1).bit_length()),
        "OUT_COLUMNS": max(16, 1 << (columns - 1).bit_length()),
    }


def weight_gradient(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Return ``inputs^T gradients`` of each replica: ``(R, N, in)`` and ``(R, N, out)``.

    >>> weight_gradient(torch.ones(1, 5, 2), torch.ones(1, 5, 1)).tolist()
    [[[5.0], [5.0]]]
    """
    if (
        can_fuse(inputs)
        and can_fuse(gradients)
        and max(inputs.shape[2], gradients.shape[2]) <= NARROW
    ):
        return _narrow_gradient(inputs, gradients)
    parts = inputs.shape[1] // PART
    whole = parts * PART
    total = torch.bmm(inputs[:, whole:].transpose(1, 2), gradients[:, whole:])
    if parts:
        # One replica at a time: its rows lie in one piece and need no copy to be cut into parts.
        for replica, (left, right) in enumerate(zip(inputs, gradients, strict=True)):
            left, right = (values[:whole].unflatten(0, (parts, PART)) for values in (left, right))
            total[replica] += torch.bmm(left.transpose(1, 2), right).sum(dim=0)
    return total


def _narrow_gradient(inputs: Tensor, gradients: Tensor) -> Tensor:
    """As :func:`weight_gradient`, for few columns on either side, in one pass over both."""
    from gapgnn.nn.kernels.triton import weight_gradient_kernel

    (replicas, count, width), out = inputs.shape, gradients.shape[2]
    programs = -(-count // (GRADIENT_ROWS * GRADIENT_STEPS))
    partial = inputs.new_empty(replicas, programs, width, out)
    weight_gradient_kernel[(programs, replicas)](
        inputs,
        gradients,
        partial,
        count,
        *inputs.stride()[:2],
        *gradients.stride()[:2],
        **_narrow_sizes(width, out),
        ROWS=GRADIENT_ROWS,
        STEPS=GRADIENT_STEPS,
        num_warps=4,
    )
    return partial.sum(dim=1)
