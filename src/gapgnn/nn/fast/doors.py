"""The doors to everything faster: what a layer asks before it computes its formula.

Each returns the layer's result, or None where no faster way is known. All conditions stand here, so
that :mod:`gapgnn.nn.layers` reads as the formulas. Some ways on a CPU are not faster but round a
replica alike with and without others beside it; they say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.nn import BatchRows, SparseRows
from gapgnn.nn.fast import gpu
from gapgnn.nn.fast.cpu import (
    LONG,
    NARROW,
    Chosen,
    Sample,
    can_norm,
    exponential,
    narrow_product,
    normed_layer,
    normed_product,
)
from gapgnn.privacy.dpsgd import active_tape
from gapgnn.privacy.mechanisms import can_use_triton

if TYPE_CHECKING:
    from gapgnn.nn import ReplicaMLP, layers

# Numbers in a vector register, at most.
LANES = 16
# Activations that :mod:`gapgnn.nn.fast.cpu` is faster with; torch's own ReLU is.
EXPONENTIAL = ("selu", "elu", "tanh")
# Those that it computes along with batch norm.
FUSED = (*EXPONENTIAL, "relu")


def linear(
    inputs: Tensor | SparseRows | BatchRows, weight: Tensor, bias: Tensor | None
) -> Tensor | None:
    """Return ``inputs @ weight + bias`` for every replica, for anything that a layer takes.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3, 1), torch.ones(2, 1, 1)).flatten().tolist()
    [4.0, 4.0]
    >>> linear(torch.ones(2, 1, 3), torch.ones(2, 3, 4), None)
    """
    if isinstance(inputs, BatchRows):
        return None
    if isinstance(inputs, SparseRows):
        return _shifted(inputs.matmul(weight), bias)
    if inputs.ndim == 2:
        return _shifted(_shared_product(inputs, weight), bias)
    if inputs.ndim == 4:
        found = linear(inputs.flatten(1, 2), weight, bias)
        return None if found is None else found.view(*inputs.shape[:-1], weight.shape[2])
    if weight.shape[2] == 1 and not inputs.is_cuda:
        # A batch of products with vectors rounds otherwise than a single one.
        column = (inputs * weight.transpose(1, 2)).sum(-1, keepdim=True)
        return column if bias is None else column + bias
    return linear_of_blocks([inputs], weight, bias)


def linear_of_blocks(
    blocks: Sequence[Tensor], weight: Tensor, bias: Tensor | None
) -> Tensor | None:
    """As :func:`linear`, for inputs in blocks of columns, each ``(R, N, some of in)``.

    >>> linear_of_blocks([torch.ones(2, 1, 3)], torch.ones(2, 3, 4), None)
    """
    if _is_long(blocks[0]):
        return gpu.long_product(blocks, weight, bias)
    if not weight.is_cuda and blocks[0].shape[1] >= LONG and weight.shape[2] < NARROW:
        return narrow_product(blocks, weight, bias)
    return None


def _is_long(inputs: Tensor) -> bool:
    return inputs.is_cuda and inputs.shape[-2] >= 4 * gpu.PART


def _shared_product(inputs: Tensor, weight: Tensor) -> Tensor:
    """Multiply inputs that all replicas share by the weights of all, side by side."""
    replicas, width, out = weight.shape
    if out % LANES and not inputs.is_cuda:
        # Columns of several replicas in one register are rounded otherwise than those of one.
        return torch.stack([inputs @ own for own in weight])
    beside = weight.permute(1, 0, 2).reshape(width, -1)
    if _is_long(inputs):
        product = gpu.long_product([inputs.unsqueeze(0)], beside.unsqueeze(0), None)[0]
    else:
        product = inputs @ beside
    return product.view(len(inputs), replicas, out).permute(1, 0, 2)


def _shifted(values: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``values + bias``, the gradient of the bias added up replica by replica.

    In memory the replicas lie side by side, and torch adds up in the order of memory.
    """
    if bias is None:
        return values
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


def activation(values: Tensor, name: str) -> Tensor | None:
    """Return the activation called so, for an exponential one of ``(R, ...)`` on a CPU.

    A step of DP-SGD is short, and its batches are filled up to the widest of all replicas, which
    moves the rounding anyway.

    >>> activation(torch.ones(1, 1), "gelu")
    """
    if name not in EXPONENTIAL or values.is_cuda:
        return None
    return exponential(values, name, is_short=active_tape() is not None)


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """Join blocks of columns, of which each gets its gradient in one piece on a CPU.

    As columns of a wider gradient an activation would take ten times as long over it.

    >>> joined([torch.ones(1, 2, 1), torch.zeros(1, 2, 1)]).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    for block in blocks:
        if block.requires_grad and not block.is_cuda:
            block.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return torch.cat(list(blocks), dim=-1)


def mlp(network: ReplicaMLP, inputs: Any) -> Tensor | None:
    """Return the network's output: in training with batch norm, or for some nodes of many.

    A layer with batch norm is one product on a CPU; on a GPU norm and activation are one pass.

    Args:
        network: whose layers to apply, each the fast way where there is one.
        inputs: what a linear layer takes, some nodes of it (:class:`Chosen`), or rows with the
            moments of others (:class:`Sample`).
    """
    if isinstance(inputs, Chosen):
        return inputs.places.take(network(inputs.inputs))
    moments = None
    if isinstance(inputs, Sample):
        inputs, moments = inputs.rows, inputs.moments
    elif not any(layer.norm is not None and layer.norm.training for layer in network.layers):
        return None
    counts = inputs.counts() if isinstance(inputs, SparseRows) else None
    hidden: Any = inputs
    for layer in network.layers:
        done = _normed(layer, hidden, counts, moments)
        hidden = layer(hidden) if done is None else layer.drop(done)
        moments = None
    found: Tensor = hidden
    return found


def layer_of_blocks(layer: layers.Layer, blocks: Sequence[Tensor]) -> Tensor | None:
    """Return a layer of activations in blocks of columns, each ``(R, N, some of in)``.

    In training with batch norm on a CPU: blocks need not be joined, nor their gradients taken
    apart.
    """
    is_training = layer.norm is not None and layer.norm.training
    if layer.linear.weight.is_cuda or layer.linear.bias is not None or not is_training:
        return None
    return layer.drop(_normed_product(layer, blocks, None))


def _normed(
    layer: layers.Layer,
    inputs: Tensor | SparseRows | BatchRows,
    counts: Tensor | None,
    moments: tuple[Tensor, Tensor] | None,
) -> Tensor | None:
    """Return a layer up to its activation.

    ``counts`` says how often each row counts, if not once; ``moments`` are those of the inputs, if
    not of these rows.
    """
    linear, norm = layer.linear, layer.norm
    if norm is None or not norm.training:
        return None
    known = gpu.EXPONENTIAL if linear.weight.is_cuda else FUSED
    activation = layer.activation if layer.activation in known else None
    if linear.weight.is_cuda:
        if activation is None or not gpu.can_fuse(linear.weight) or not inputs.shape[-2]:
            return None
        return gpu.norm_and_activation(
            linear(inputs),
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            momentum=norm.momentum,
            epsilon=norm.epsilon,
            activation=activation,
        )
    if linear.bias is not None or isinstance(inputs, BatchRows):
        return None
    if moments is None and can_norm(inputs):
        moments = norm.moments.of(inputs)
    if moments is None:
        if not isinstance(inputs, Tensor) or inputs.ndim != 3:
            return None
        return _normed_product(layer, [inputs], counts)
    count = inputs.shape[-2] if counts is None else int(counts.sum())
    found = normed_layer(
        inputs,
        linear.weight,
        norm.weight,
        norm.bias,
        moments,
        epsilon=norm.epsilon,
        activation=activation,
    )
    _note(norm, count, *found[1:])
    return layer.activate(found[0]) if activation is None else found[0]


def _normed_product(layer: layers.Layer, blocks: Sequence[Tensor], counts: Tensor | None) -> Tensor:
    """Return a layer of activations up to its own activation."""
    norm = layer.norm
    assert norm is not None
    activation = layer.activation if layer.activation in FUSED else None
    found = normed_product(
        blocks,
        layer.linear.weight,
        norm.weight,
        norm.bias,
        epsilon=norm.epsilon,
        activation=activation,
        counts=counts,
    )
    count = blocks[0].shape[1] if counts is None else int(counts.sum())
    _note(norm, count, *found[1:])
    return layer.activate(found[0]) if activation is None else found[0]


@torch.no_grad()
def _note(norm: layers.ReplicaBatchNorm, count: int, mean: Tensor, variance: Tensor) -> None:
    """Move running statistics."""
    norm.running_mean.lerp_(mean.squeeze(1), norm.momentum)
    norm.running_var.lerp_(variance.squeeze(1) * (count / max(1, count - 1)), norm.momentum)


def masks(seeds: Sequence[int], device: torch.device) -> gpu.Masks | None:
    """Return what dropout blanks on a GPU, which a recorded graph can draw."""
    return gpu.Masks(seeds, device) if can_use_triton(device) else None


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor | None:
    """Return one loss per replica and example, ``(R, N)``, for labels ``(N,)`` or ``(R, N)``."""
    return gpu.cross_entropy(scores, labels) if gpu.can_fuse(scores) else None


def cross_entropy_slopes(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor | None:
    """Return the derivative of the losses by the scores, each loss with its weight, ``(R, N)``."""
    return gpu.cross_entropy_slopes(scores, labels, weights) if gpu.can_fuse(scores) else None
