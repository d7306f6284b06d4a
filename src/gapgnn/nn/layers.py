"""Layers with a leading replica axis: R independent networks trained as one.

Activations have shape ``(R, N, C)``. A replica's parameters, batch statistics and dropout masks are
its own, initialised from its own generator, so its result does not depend on how many others train
beside it (up to the rounding of batched products). The same modules train by plain autograd and,
through the tape of :mod:`gapgnn.privacy.dpsgd.ghost`, by DP-SGD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer
from gapgnn.nn.batch_norm import batch_norm_on_one_thread
from gapgnn.nn.dropout import ReplicaDropout
from gapgnn.nn.fast import (
    LONG,
    NARROW,
    Chosen,
    Moments,
    Sample,
    can_norm,
    elu,
    narrow_product,
    normed_layer,
    one_thread,
    selu,
    shifted,
)
from gapgnn.nn.fast import gpu as fused
from gapgnn.nn.sparse_rows import BatchRows, SparseRows
from gapgnn.privacy.dpsgd import active_tape

Inputs = Tensor | SparseRows | BatchRows
# Numbers in a vector register, at most.
LANES = 16
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "selu": selu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "elu": elu,
    "gelu": F.gelu,
}


class ReplicaLinear(nn.Module):
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
        _check_generators(generators, self.replicas)
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
            return self._product(inputs, weight, bias)
        # The tape makes the gradients of the parameters itself and needs those of outputs alone.
        if isinstance(inputs, Tensor) and inputs.requires_grad:
            apart = weight.detach(), None if bias is None else bias.detach()
            outputs = self._product(inputs, *apart)
        else:
            with torch.no_grad():
                outputs = self._product(inputs, weight, bias)
            outputs.requires_grad_()
        tape.record(inputs, outputs, weight, bias)
        return outputs

    def of_blocks(self, blocks: Sequence[Tensor]) -> Tensor:
        """As :meth:`forward`, for inputs in blocks of columns, each ``(R, N, some of in)``."""
        if active_tape() is None:
            if self._is_long(blocks[0]):
                return fused.long_product(blocks, self.weight, self.bias)
            if self._is_narrow(blocks[0]):
                return narrow_product(blocks, self.weight, self.bias)
        scores: Tensor = self(torch.cat(list(blocks), dim=-1))
        return scores

    def _is_long(self, inputs: Tensor) -> bool:
        return inputs.is_cuda and inputs.shape[-2] >= 4 * fused.PART

    def _is_narrow(self, inputs: Tensor) -> bool:
        is_long = inputs.shape[1] >= LONG
        return is_long and self.out_features < NARROW and not inputs.is_cuda

    def _product(self, inputs: Inputs, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not isinstance(inputs, Tensor):
            keep = torch.is_grad_enabled()
            product = inputs.matmul(weight) if keep else inputs.product(weight)
            if bias is None:
                return product
            return shifted(product, bias) if isinstance(inputs, SparseRows) else product + bias
        if inputs.ndim == 2:
            product = self._shared_product(inputs, weight)
            return product if bias is None else shifted(product, bias)
        if inputs.ndim == 4:
            rows = inputs.flatten(1, 2)
            return self._product(rows, weight, bias).view(*inputs.shape[:-1], -1)
        if self._is_long(inputs):
            return fused.long_product([inputs], weight, bias)
        if self.out_features == 1 and not inputs.is_cuda:
            # A batch of products with vectors rounds otherwise than a single one.
            column = (inputs * weight.transpose(1, 2)).sum(-1, keepdim=True)
            return column if bias is None else column + bias
        if self._is_narrow(inputs):
            return narrow_product([inputs], weight, bias)
        return torch.bmm(inputs, weight) if bias is None else torch.baddbmm(bias, inputs, weight)

    def _shared_product(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Multiply inputs that all replicas share by the weights of all, side by side."""
        if self.out_features % LANES and not inputs.is_cuda:
            # Columns of several replicas in one register are rounded otherwise than those of one.
            return torch.stack([inputs @ own for own in weight])
        beside = weight.permute(1, 0, 2).reshape(self.in_features, -1)
        if self._is_long(inputs):
            product = fused.long_product([inputs.unsqueeze(0)], beside.unsqueeze(0), None)[0]
        else:
            product = inputs @ beside
        return product.view(len(inputs), self.replicas, -1).permute(1, 0, 2)


class ReplicaBatchNorm(nn.Module):
    """Batch normalisation of each replica's channels, as ``torch.nn.BatchNorm1d`` does for one.

    One native call over ``R * C`` channels. Mixes the examples of a batch, so DP-SGD refuses it.
    """

    mixes_examples = "Set batch_norm=False at node level."

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, replicas: int, channels: int, *, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self._moments = Moments()
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

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise ``(R, N, C)`` over N: by the batch in training, by running statistics after."""
        replicas, count, channels = inputs.shape
        beside = inputs.permute(1, 0, 2).reshape(count, replicas * channels)
        running = self.running_mean.view(-1), self.running_var.view(-1)
        own = self.weight.reshape(-1), self.bias.reshape(-1)
        if self.training and not inputs.is_cuda:
            normal = batch_norm_on_one_thread(beside, *own, *running, self.momentum, self.epsilon)
        else:
            normal = F.batch_norm(
                beside, *running, *own, self.training, self.momentum, self.epsilon
            )
        # One copy here; strided rows would make each operation after it several times slower.
        return normal.view(count, replicas, channels).permute(1, 0, 2).contiguous()

    def after(
        self,
        linear: ReplicaLinear,
        inputs: Inputs,
        activation: str,
        *,
        counts: Tensor | None = None,
        moments: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | None:
        """Return product, norm and activation as one, in training on a CPU; elsewhere None.

        ``counts`` says how often each row counts, if not once; ``moments`` are those of the inputs,
        if not of these rows.
        """
        if not self.training or linear.bias is not None or isinstance(inputs, BatchRows):
            return None
        if counts is None and moments is None and not can_norm(inputs):
            return None
        is_exponential = activation in fused.EXPONENTIAL
        out, mean, variance = normed_layer(
            inputs,
            linear.weight,
            self.weight,
            self.bias,
            self._moments.of(inputs, counts) if moments is None else moments,
            epsilon=self.epsilon,
            activation=activation if is_exponential else None,
            counts=counts,
        )
        count = inputs.shape[-2] if counts is None else int(counts.sum())
        with torch.no_grad():
            self.running_mean.lerp_(mean.squeeze(1), self.momentum)
            self.running_var.lerp_(variance.squeeze(1) * (count / max(1, count - 1)), self.momentum)
        return out if is_exponential else ACTIVATIONS[activation](out)

    def activated(self, inputs: Tensor, activation: str) -> Tensor | None:
        """Normalise and activate in one go, in training on a GPU; elsewhere None."""
        if not (self.training and activation in fused.EXPONENTIAL and fused.can_fuse(inputs)):
            return None
        return fused.norm_and_activation(
            inputs,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            momentum=self.momentum,
            epsilon=self.epsilon,
            activation=activation,
        )


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
        self.replicas = replicas
        self._activation = ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
        self._activation_name = activation
        dressed = sizes[1:-1] if plain_last else sizes[1:]
        # Batch norm takes any bias away again. Its gradient would be rounding alone, which Adam
        # blows up to full steps, so that replicas would differ with their neighbours.
        self.linears = nn.ModuleList(
            ReplicaLinear(replicas, *pair, bias=not (batch_norm and place < len(dressed)))
            for place, pair in enumerate(pairwise(sizes))
        )
        self.norms = nn.ModuleList(
            ReplicaBatchNorm(replicas, width) for width in dressed if batch_norm
        )
        self.dropouts = nn.ModuleList(ReplicaDropout(replicas, dropout) for _ in dressed if dropout)
        # Looking modules up by name on every pass costs as much as a small product.
        self._plan = list(
            zip_longest(self.linears, self.norms, self.dropouts, [True] * len(dressed))
        )

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Initialise every layer, each replica from its own generator."""
        reset_replicas(self, generators)

    @property
    def takes_samples(self) -> bool:
        """Whether a node's output follows from its own row and the moments of the inputs."""
        return len(self.norms) <= 1

    def forward(self, inputs: Inputs | Sample | Chosen) -> Tensor:
        """Return the last layer's output, ``(R, N, out)``."""
        if isinstance(inputs, Chosen):
            return inputs.places.take(self(inputs.inputs))
        counts = inputs.counts() if isinstance(inputs, SparseRows) else None
        moments = inputs.moments if isinstance(inputs, Sample) else None
        hidden = inputs.rows if isinstance(inputs, Sample) else inputs
        for linear, norm, dropout, is_dressed in self._plan:
            if isinstance(norm, ReplicaBatchNorm) and isinstance(linear, ReplicaLinear):
                name = self._activation_name
                whole = norm.after(linear, hidden, name, counts=counts, moments=moments)
                moments = None
                if whole is not None:
                    hidden = whole if dropout is None else dropout(whole)
                    continue
            hidden = linear(hidden)
            done = None
            if isinstance(norm, ReplicaBatchNorm):
                done = norm.activated(hidden, self._activation_name)
                hidden = norm(hidden) if done is None else done
            if is_dressed and done is None:
                hidden = self._activation(hidden)
            if dropout is not None:
                hidden = dropout(hidden)
        if not isinstance(hidden, Tensor):
            raise InputError("`inputs` must be dense for an MLP without layers. Got sparse rows.")
        return hidden


def reset_replicas(module: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Initialise all layers of a module in order, each replica from its own generator."""
    for part in module.modules():
        if isinstance(part, (ReplicaLinear, ReplicaBatchNorm, ReplicaDropout)):
            part.reset(generators)


def replica_state(module: nn.Module, replica: int) -> dict[str, Tensor]:
    """Return a copy of one replica's state, which loads into the same module with one replica.

    >>> state = replica_state(ReplicaMLP(4, [3, 2]), 1)
    >>> ReplicaMLP(1, [3, 2]).load_state_dict(state)
    <All keys matched successfully>
    """
    state = module.state_dict()
    replicas = next((len(value) for value in state.values()), 1)
    check_integer("replica", replica, at_least=0, at_most=replicas - 1)
    return {
        key: value[replica : replica + 1].detach().clone(memory_format=torch.contiguous_format)
        for key, value in state.items()
    }


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return one loss per replica and example, ``(R, N)``, for labels ``(N,)`` or ``(R, N)``.

    >>> cross_entropy(torch.zeros(2, 3, 4), torch.tensor([0, 1, 3])).shape
    torch.Size([2, 3])
    """
    if fused.can_fuse(scores):
        return fused.cross_entropy(scores, labels)
    # With the classes in the middle, torch's softmax runs along the examples: 3.5 times faster.
    targets = labels.expand(scores.shape[:2])
    return F.cross_entropy(scores.transpose(1, 2), targets, reduction="none")


def cross_entropy_slopes(scores: Tensor, targets: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivative of the losses by the scores, and the class probabilities.

    The loss is ``-sum targets log(probabilities)``. Half the work of :func:`cross_entropy` and its
    gradient, and rows may stand for several nodes.

    Args:
        scores: ``(R, N, classes)``.
        targets: weight of each class in each row's loss, ``(R, classes, N)``.
        totals: the weights of all classes together, ``(R, 1, N)``.

    >>> targets = torch.tensor([[[1.0], [0.0]]])
    >>> slopes, _ = cross_entropy_slopes(torch.zeros(1, 1, 2), targets, targets.sum(1, True))
    >>> slopes.tolist()
    [[[-0.5, 0.5]]]
    """
    # The softmax rounds otherwise at the end of each thread's share.
    with one_thread():
        chances = torch.softmax(scores.detach().transpose(1, 2), dim=1)
    return (chances * totals).sub_(targets).transpose(1, 2), chances


def _check_generators(generators: Sequence[torch.Generator], replicas: int) -> None:
    if len(generators) != replicas:
        raise InputError(
            f"`generators` must have one entry per replica ({replicas}). Got {len(generators)}."
        )
