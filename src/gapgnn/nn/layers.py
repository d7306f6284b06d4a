"""Layers with a leading replica axis: R independent networks trained as one.

Activations have shape ``(R, N, C)``. A replica's parameters, batch statistics and dropout masks are
its own, initialised from its own generator, so its result does not depend on how many others train
beside it (up to the rounding of batched products). The same modules train by plain autograd and,
through the tape of :mod:`gapgnn.privacy.dpsgd.ghost`, by DP-SGD.

The layers compute their formulas by torch's own operations and are complete without anything else.
Optional kernels (:mod:`gapgnn.nn.kernels`) replace some operations and are tested against them.

On a CPU with one thread a replica's bits do not depend on the other replicas. Where a batched
operation rounds differently from a single one, replicas are therefore computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.nn.kernels import lookup
from gapgnn.nn.row_subsets import RowSubset, RowsWithMoments
from gapgnn.nn.sparse_rows import BatchRows, SparseRows
from gapgnn.nn.specification import specified
from gapgnn.privacy.dpsgd import active_tape
from gapgnn.rng import experiment_seed

Inputs = Tensor | SparseRows | BatchRows
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "selu": F.selu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "elu": F.elu,
    "gelu": F.gelu,
}
# Those of which torch rounds the last values of a tensor differently from the others.
IN_PLACE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "selu": torch.selu_,
    "elu": F.elu_,
    "tanh": torch.tanh_,
}
# A value is blanked where its byte is below a threshold, so rates are whole 256ths.
LEVELS = 256


class StartsReplicas(nn.Module):
    """A part of a network that initialises its replicas itself, each from its own generator."""

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Initialise every replica."""
        raise NotImplementedError


class ReplicaDropout(StartsReplicas):
    """Dropout whose masks come from each replica's own seed, never from the global generator.

    The mask of a row depends on the replica, the number of the call and the row's place only. The
    rate is rounded to 256ths, and what is left is scaled by the rounded one: a byte per value is
    twelve times faster to draw than a uniform number.

    >>> dropout = ReplicaDropout(2, 0.5)
    >>> dropout.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    >>> sorted(dropout(torch.ones(2, 50, 3)).unique().tolist())
    [0.0, 2.0]
    """

    def __init__(self, replicas: int, probability: float) -> None:
        super().__init__()
        self.replicas = replicas
        self.set_rate(probability)
        self._seeds: list[int] | None = None
        self._calls = 0
        # The masks of a kernel, if one draws them on the device.
        self._masks: Any = None

    def set_rate(self, probability: float) -> None:
        """Change how much is blanked; what is known of the graph may come after the network."""
        self.probability = check_number("dropout", probability, at_least=0, below=1)
        self._threshold = min(LEVELS - 1, round(LEVELS * self.probability))

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Draw each replica's seed."""
        high = 2**63 - 1
        self._seeds = [
            int(torch.randint(high, (), generator=generator, device=generator.device))
            for generator in generators
        ]
        self._calls = 0
        self._masks = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Blank some channels of ``(R, N, C)`` in training and scale up the others."""
        if not self.training or self._threshold == 0:
            return inputs
        if self._seeds is None:
            raise InputError("`reset` must be called before training with dropout. Got no seeds.")
        masks = lookup("dropout", inputs.device, self._seeds, inputs.device)
        if masks is not None:
            if self._masks is None or self._masks.device != inputs.device:
                self._masks = masks(self._seeds, inputs.device)
            dropped: Tensor = self._masks.dropped(inputs, self._threshold, LEVELS)
            return dropped
        seeds = [experiment_seed(seed, "dropout", self._calls) for seed in self._seeds]
        self._calls += 1
        draws = torch.stack([_bytes(inputs[0], seed) for seed in seeds])
        dropped = _Dropout.apply(inputs, draws, self._threshold)  # type: ignore[no-untyped-call]
        return dropped


def can_record_dropout(device: torch.device) -> bool:
    """Return whether a recorded CUDA graph drops other values every time it is replayed.

    >>> can_record_dropout(torch.device("cpu"))
    False
    """
    return lookup("dropout", device, (), device) is not None


def _bytes(like: Tensor, seed: int) -> Tensor:
    """Return one random byte per value, row after row."""
    if like.is_cuda:
        generator = torch.Generator(device=like.device).manual_seed(seed)
        drawn = torch.empty(like.shape, dtype=torch.uint8, device=like.device)
        return drawn.random_(0, LEVELS, generator=generator)
    words = np.random.SFC64(seed).random_raw(-(-like.numel() // 8))
    return torch.from_numpy(words.view(np.uint8)[: like.numel()]).view(like.shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, draws: Tensor, threshold: int) -> Tensor:
        ctx.save_for_backward(draws)
        ctx.threshold = threshold
        return _kept(inputs, draws, threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        return _kept(gradients, ctx.saved_tensors[0], ctx.threshold), None, None


def _kept(values: Tensor, draws: Tensor, threshold: int) -> Tensor:
    """Blank the values whose draw is below the threshold, and scale up the others."""
    scale = LEVELS / (LEVELS - threshold)
    if values.is_cuda:
        return values * ((draws >= threshold) * scale)
    out = torch.empty(values.shape)
    keep, nothing = torch.empty(values.shape[1:]), torch.zeros(())
    # One replica after the other, which stays in cache. A comparison that writes numbers is ten
    # times faster than one that writes truth values.
    for mine, own, drawn in zip(out, values, draws, strict=True):
        torch.ge(drawn, threshold, out=keep)
        torch.addcmul(nothing, own, keep, value=scale, out=mine)
    return out


def linear(inputs: Inputs, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs @ weight + bias`` for every replica, for inputs as :class:`ReplicaLinear`'s.

    >>> linear(torch.ones(1, 3), torch.ones(2, 3, 1), None).flatten().tolist()
    [3.0, 3.0]
    """
    if isinstance(inputs, BatchRows):
        product = inputs.matmul(weight)
        return product if bias is None else product + bias
    if isinstance(inputs, SparseRows):
        return _with_bias(inputs.matmul(weight), bias)
    if inputs.ndim == 4:
        return linear(inputs.flatten(1, 2), weight, bias).view(*inputs.shape[:-1], weight.shape[2])
    kernel = lookup("linear", inputs.device, [inputs], weight, bias)
    if kernel is not None:
        found: Tensor = kernel([inputs], weight, bias)
        return found
    if inputs.ndim == 2:
        return _with_bias(torch.stack([inputs @ own for own in weight]), bias)
    if weight.shape[2] == 1 and not inputs.is_cuda:
        # A batch of products with vectors rounds differently from a single one.
        column = (inputs * weight.transpose(1, 2)).sum(-1, keepdim=True)
        return column if bias is None else column + bias
    return torch.bmm(inputs, weight) if bias is None else torch.baddbmm(bias, inputs, weight)


def _with_bias(values: Tensor, bias: Tensor | None) -> Tensor:
    """Add each replica's bias by itself, so that its gradient is also summed by itself."""
    if bias is None:
        return values
    return torch.stack([own + shift for own, shift in zip(values, bias, strict=True)])


def activate(values: Tensor, name: str) -> Tensor:
    """Return one of ``ACTIVATIONS`` of the values, ``(R, ...)``.

    >>> activate(torch.tensor([[-1.0, 2.0]]), "relu").tolist()
    [[0.0, 2.0]]
    """
    if values.is_cuda or name not in IN_PLACE:
        return ACTIVATIONS[name](values)
    # In place of a copy: autograd then keeps the result instead of the values.
    function = IN_PLACE[name]
    # DP-SGD fills batches up to the widest of all replicas, which changes the rounding anyway.
    if len(values) == 1 or active_tape() is not None:
        return function(values.clone(memory_format=torch.contiguous_format))
    return torch.stack(
        [function(own.clone(memory_format=torch.contiguous_format)) for own in values]
    )


class ReplicaLinear(StartsReplicas):
    """R linear layers side by side: weight ``(R, in, out)``, bias ``(R, 1, out)``.

    Takes ``(R, N, in)``; ``(R, N, T, in)``, T parts per example; ``(N, in)``, shared by all
    replicas; or sparse rows. Parameters are zero until :meth:`reset`.

    >>> layer = ReplicaLinear(3, 5, 2)
    >>> layer.reset([torch.Generator().manual_seed(seed) for seed in range(3)])
    >>> layer(torch.ones(4, 5)).shape
    torch.Size([3, 4, 2])
    """

    reports_to_tape = True

    def __init__(
        self, replicas: int, in_features: int, out_features: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.replicas = check_integer("replicas", replicas, at_least=1)
        self.in_features = check_integer("in_features", in_features, at_least=1)
        self.out_features = check_integer("out_features", out_features, at_least=1)
        self.weight = nn.Parameter(torch.zeros(replicas, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, out_features)) if bias else None

    @torch.no_grad()
    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Draw each replica's parameters as ``torch.nn.Linear`` does: uniform, up to 1/sqrt(in)."""
        if len(generators) != self.replicas:
            raise InputError(
                f"`generators` must have one entry per replica ({self.replicas}). "
                f"Got {len(generators)}."
            )
        bound = 1 / math.sqrt(self.in_features)
        for replica, generator in enumerate(generators):
            for parameter in (self.weight, self.bias):
                if parameter is not None:
                    drawn = torch.empty(parameter.shape[1:], device=generator.device)
                    parameter[replica] = drawn.uniform_(-bound, bound, generator=generator)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return ``inputs @ weight + bias`` for every replica."""
        width = inputs.shape[-1]
        if width != self.in_features:
            raise InputError(f"`inputs` must have {self.in_features} features. Got {width}.")
        weight, bias = self.weight, self.bias
        tape = active_tape() if weight.requires_grad else None
        if tape is None:
            return linear(inputs, weight, bias)
        # The tape makes the gradients of the parameters itself and needs those of outputs alone.
        if isinstance(inputs, Tensor) and inputs.requires_grad:
            detached = weight.detach(), None if bias is None else bias.detach()
            outputs = linear(inputs, *detached)
        else:
            with torch.no_grad():
                outputs = linear(inputs, weight, bias)
            outputs.requires_grad_()
        tape.record(inputs, outputs, weight, bias)
        return outputs

    def of_blocks(self, blocks: Sequence[Tensor]) -> Tensor:
        """As :meth:`forward`, for inputs in blocks of columns, each ``(R, N, some of in)``."""
        scores: Tensor
        if active_tape() is None:
            kernel = lookup("linear", self.weight.device, blocks, self.weight, self.bias)
            if kernel is not None:
                scores = kernel(blocks, self.weight, self.bias)
                return scores
        scores = self(torch.cat(list(blocks), dim=-1))
        return scores


class ReplicaBatchNorm(StartsReplicas):
    """Batch normalisation of each replica's channels, as ``torch.nn.BatchNorm1d`` does for one.

    Mixes the examples of a batch, so DP-SGD refuses it.
    """

    mixes_examples = "Set batch_norm=False at node level."

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, replicas: int, channels: int, *, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.weight = nn.Parameter(torch.ones(replicas, channels))
        self.bias = nn.Parameter(torch.zeros(replicas, channels))
        self.register_buffer("running_mean", torch.zeros(replicas, channels))
        self.register_buffer("running_var", torch.ones(replicas, channels))

    @torch.no_grad()
    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Return to scale one, shift zero and no statistics; nothing is drawn."""
        for parameter, value in ((self.weight, 1), (self.bias, 0)):
            parameter.fill_(value)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(
        self,
        inputs: Tensor,
        *,
        counts: Tensor | None = None,
    ) -> Tensor:
        """Normalise ``(R, N, C)`` over N: by the batch in training, by running statistics after.

        Args:
            inputs: ``(R, N, C)``.
            counts: how often each of the N rows counts in training, ``(N,)``, if not once.
        """
        if self.training and counts is not None:
            return self._by_counts(inputs, counts)
        if not inputs.is_cuda:
            # Channels of several replicas in one register round differently from those of one, and
            # so do rows apart in memory.
            own = [self._native(rows.contiguous(), place) for place, rows in enumerate(inputs)]
            return torch.stack(own)
        replicas, count, channels = inputs.shape
        beside = inputs.permute(1, 0, 2).reshape(count, replicas * channels)
        normal = self._native(beside, slice(None))
        # One copy here; strided rows would make each operation after it several times slower.
        return normal.view(count, replicas, channels).permute(1, 0, 2).contiguous()

    def _native(self, inputs: Tensor, replicas: int | slice) -> Tensor:
        """Return torch's own batch norm of ``(N, C)``, with the channels of some replicas."""
        return F.batch_norm(
            inputs,
            self.running_mean[replicas].view(-1),
            self.running_var[replicas].view(-1),
            self.weight[replicas].reshape(-1),
            self.bias[replicas].reshape(-1),
            self.training,
            self.momentum,
            self.epsilon,
        )

    def _by_counts(self, inputs: Tensor, counts: Tensor) -> Tensor:
        """Normalise by the batch statistics of rows that count several times."""
        total = int(counts.sum())
        shares = counts.to(inputs.dtype).unsqueeze(1) / total
        mean = (inputs * shares).sum(1, keepdim=True)
        centred = inputs - mean
        variance = (centred.square() * shares).sum(1, keepdim=True)
        self.move_statistics(mean, variance, total)
        return centred * self.scale(variance) + self.bias.unsqueeze(1)

    def scale(self, variance: Tensor) -> Tensor:
        """Return what channels of this variance are multiplied by, ``(R, 1, C)``."""
        return self.weight.unsqueeze(1) * (variance + self.epsilon).rsqrt()

    @torch.no_grad()
    def move_statistics(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics towards those of ``count`` rows, each ``(R, 1, C)``."""
        self.running_mean.lerp_(mean.squeeze(1), self.momentum)
        self.running_var.lerp_(variance.squeeze(1) * (count / max(1, count - 1)), self.momentum)


class Layer(NamedTuple):
    """One layer of a :class:`ReplicaMLP`; a part that it does not have is None."""

    linear: ReplicaLinear
    norm: ReplicaBatchNorm | None
    activation: str | None
    dropout: ReplicaDropout | None

    def __call__(
        self,
        inputs: Inputs,
        *,
        counts: Tensor | None = None,
        moments: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return linear, batch norm, activation and dropout, one after the other.

        Args:
            inputs: what a linear layer takes.
            counts: how often each row counts in the batch statistics, if not once.
            moments: mean ``(R, 1, in)`` and covariance ``(R, in, in)`` of the inputs of all nodes,
                if batch statistics are theirs and not those of these rows.
        """
        norm = self.norm
        if norm is None:
            return self.drop(self.activate(self.linear(inputs)))
        if norm.training:
            wanted = (inputs, self, counts, moments)
            kernel = lookup("normed_layer", self.linear.weight.device, *wanted)
            if kernel is not None:
                return self.drop(kernel(*wanted))
            if moments is not None:
                return self.drop(self.activate(self._by_moments(inputs, *moments)))
        product: Tensor = self.linear(inputs)
        if norm.training and counts is None:
            kernel = lookup("norm_activation", product.device, product, norm, self.activation)
            if kernel is not None:
                return self.drop(kernel(product, norm, self.activation))
        return self.drop(self.activate(norm(product, counts=counts)))

    def _by_moments(self, inputs: Inputs, mean: Tensor, covariance: Tensor) -> Tensor:
        """Return the product with batch norm, given the moments of the inputs.

        With mean ``m`` and covariance ``S`` of the inputs, channel ``c`` of their product with
        ``W`` has mean ``m W_c`` and variance ``W_c^T S W_c``: batch norm only changes the weights.
        """
        norm, weight = self.norm, self.linear.weight
        assert norm is not None
        assert self.linear.bias is None
        centre = torch.matmul(mean, weight)
        variance = (weight * torch.matmul(covariance, weight)).sum(1, keepdim=True).clamp(min=0)
        norm.move_statistics(centre, variance, inputs.shape[-2])
        factor = norm.scale(variance)
        return linear(inputs, weight * factor, norm.bias.unsqueeze(1) - centre * factor)

    def activate(self, values: Tensor) -> Tensor:
        """Return the activation of the values."""
        return values if self.activation is None else activate(values, self.activation)

    def drop(self, values: Tensor) -> Tensor:
        """Blank some of the values in training."""
        return values if self.dropout is None else self.dropout(values)


@specified
class ReplicaMLP(nn.Module):
    """R multilayer perceptrons: linear, batch norm, activation, dropout for every layer.

    Args:
        replicas: R.
        sizes: width of the input and of each layer; a single width makes the identity.
        activation: one of ``ACTIVATIONS``.
        batch_norm: normalise before the activation.
        dropout: probability to blank a channel after the activation.
        plain_last: leave the last layer linear, for class scores.

    >>> mlp = ReplicaMLP(2, [8, 16, 3])
    >>> mlp.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    >>> mlp(torch.ones(2, 5, 8)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        replicas: int,
        sizes: Sequence[int],
        *,
        activation: str = "selu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        plain_last: bool = True,
    ) -> None:
        super().__init__()
        if not sizes:
            raise InputError("`sizes` must name at least the input width. Got none.")
        check_choice("activation", activation, ACTIVATIONS)
        self.replicas = replicas
        dressed = sizes[1:-1] if plain_last else sizes[1:]
        # Looking modules up by name on every pass costs as much as a small product.
        self.layers: list[Layer] = []
        for place, (width, out) in enumerate(pairwise(sizes)):
            is_dressed = place < len(dressed)
            # Batch norm takes any bias away again. Its gradient would be rounding alone, which Adam
            # blows up to full steps, so that replicas would differ with their neighbours.
            linear = ReplicaLinear(replicas, width, out, bias=not (batch_norm and is_dressed))
            norm = ReplicaBatchNorm(replicas, out) if batch_norm and is_dressed else None
            blank = ReplicaDropout(replicas, dropout) if dropout and is_dressed else None
            self.layers.append(Layer(linear, norm, activation if is_dressed else None, blank))
        self.linears = nn.ModuleList(layer.linear for layer in self.layers)
        self.norms = nn.ModuleList(layer.norm for layer in self.layers if layer.norm)
        self.dropouts = nn.ModuleList(layer.dropout for layer in self.layers if layer.dropout)

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Initialise every layer, each replica from its own generator."""
        reset_replicas(self, generators)

    @property
    def takes_samples(self) -> bool:
        """Whether a node's output follows from its own row and the moments of the inputs."""
        return len(self.norms) <= 1

    def forward(self, inputs: Inputs | RowsWithMoments | RowSubset) -> Tensor:
        """Return the last layer's output, ``(R, N, out)``."""
        if isinstance(inputs, RowSubset):
            outputs: Tensor = self(inputs.inputs)
            return inputs.of(outputs)
        hidden: Any = inputs
        counts = moments = None
        if isinstance(inputs, RowsWithMoments):
            hidden, moments = inputs.rows, inputs.moments
        elif isinstance(inputs, SparseRows):
            counts = inputs.counts()
        for layer in self.layers:
            hidden = layer(hidden, counts=counts, moments=moments)
            moments = None
        if not isinstance(hidden, Tensor):
            raise InputError("`inputs` must be dense for an MLP without layers. Got sparse rows.")
        return hidden


def reset_replicas(module: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Initialise all layers of a module in order, each replica from its own generator."""
    for part in module.modules():
        if isinstance(part, StartsReplicas):
            part.reset(generators)


def count_replicas(module: nn.Module) -> int:
    """Return how many networks a module holds.

    >>> count_replicas(ReplicaMLP(4, [3, 2]))
    4
    """
    return next((len(value) for value in module.state_dict().values()), 1)


def replica_state(module: nn.Module, replica: int, count: int = 1) -> dict[str, Tensor]:
    """Return a copy of some replicas' state, which loads into the same module with so many.

    >>> state = replica_state(ReplicaMLP(4, [3, 2]), 1)
    >>> ReplicaMLP(1, [3, 2]).load_state_dict(state)
    <All keys matched successfully>
    """
    check_integer("replica", replica, at_least=0, at_most=count_replicas(module) - count)
    return {
        key: value[replica : replica + count].detach().clone(memory_format=torch.contiguous_format)
        for key, value in module.state_dict().items()
    }


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return one loss per replica and example, ``(R, N)``, for labels ``(N,)`` or ``(R, N)``.

    >>> cross_entropy(torch.zeros(2, 3, 4), torch.tensor([0, 1, 3])).shape
    torch.Size([2, 3])
    """
    kernel = lookup("cross_entropy", scores.device, scores, labels)
    if kernel is not None:
        losses: Tensor = kernel(scores, labels)
        return losses
    # With the classes in the middle, torch's softmax runs along the examples: 3.5 times faster.
    targets = labels.expand(scores.shape[:2])
    return F.cross_entropy(scores.transpose(1, 2), targets, reduction="none")


def cross_entropy_gradients(
    scores: Tensor, targets: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivative of the losses by the scores, and the class probabilities.

    The loss is ``-sum targets log(probabilities)``. Half the work of :func:`cross_entropy` and its
    gradient, and rows may stand for several nodes.

    Args:
        scores: ``(R, N, classes)``.
        targets: weight of each class in each row's loss, ``(R, classes, N)``.
        totals: the weights of all classes together, ``(R, 1, N)``.

    >>> targets = torch.tensor([[[1.0], [0.0]]])
    >>> gradients, _ = cross_entropy_gradients(torch.zeros(1, 1, 2), targets, targets.sum(1, True))
    >>> gradients.tolist()
    [[[-0.5, 0.5]]]
    """
    probabilities = torch.softmax(scores.detach().transpose(1, 2), dim=1)
    return (probabilities * totals).sub_(targets).transpose(1, 2), probabilities


def best_class(scores: Tensor) -> Tensor:
    """Return the index of every row's largest score.

    >>> best_class(torch.tensor([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """
    kernel = lookup("best_class", scores.device, scores)
    found: Tensor = scores.argmax(dim=-1) if kernel is None else kernel(scores)
    return found
