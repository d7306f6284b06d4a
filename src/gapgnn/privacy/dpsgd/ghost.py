"""Per-example gradient norms and clipped sums of linear layers, without per-example gradients.

For a linear layer ``z = x W + b`` that is applied once to every example, the gradient of example
``i`` with respect to ``W`` is the outer product of its input ``x_i`` and the gradient ``d_i`` of
its loss with respect to ``z_i``. Hence, over all layers of a stack::

    norm_i^2  = sum over layers of (|x_i|^2 + 1[bias]) |d_i|^2
    clipped W = sum_i c_i x_i d_i^T = X^T (c * D)
    clipped b = sum_i c_i d_i

One backward pass to the layers' outputs gives every ``d_i``; the clip factors ``c_i`` come in
afterwards, so there is no second backward pass. A layer applied to ``T`` parts of one example
(input ``(R, B, T, in)``) has the gradient ``sum_t x_it d_it^T``, whose norm is a sum over Gram
matrices. Where examples share parts and have very different numbers of them, their gradients are
added up instead (:mod:`gapgnn.privacy.dpsgd.shared_nodes`).

Norms are computed in float64, in which neither the square of a finite float32 number nor the
product of two such squares overflows or underflows: a row of 1e19 with a gradient of 1e-23 counts
for 1e-4, where the squares of the gradient would be zero in float32.

All this holds only if examples do not interact: :func:`check_clippable` and
:func:`check_examples_apart` refuse what breaks it. Relation ``add-remove`` (one example),
sensitivity of the clipped sum: the clip. Privacy page, sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.errors import PrivacyError

# Float64 products and sums over a few thousand features and parts err by less than this.
PARTS_ROUNDING = 1e-12


class Rows(Protocol):
    """Inputs that are not a dense tensor, such as sparse feature rows."""

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(R, B)`` or ``(B,)``."""

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` per replica: ``(R, B, out)`` to ``(R, in, out)``."""


class Record(Protocol):
    """One part of a forward pass whose parameters get a clipped gradient."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The parameters concerned."""

    @property
    def outputs(self) -> Tensor:
        """What the losses depend on, examples along dimension 1."""

    def squared_norms(self, delta: Tensor) -> Tensor:
        """Return each example's squared gradient norm, ``(R, B)``, from the outputs' gradient."""

    def clipped_sums(
        self, delta: Tensor, factors: Tensor, *, masked: bool, exact: bool
    ) -> dict[int, Tensor]:
        """Return, per parameter (by ``id``), the sum over examples of factor times gradient."""


@dataclass(frozen=True)
class LinearRecord:
    """One application of a linear layer.

    ``inputs`` is ``(R, B, in)``, ``(R, B, T, in)``, a shared ``(B, in)``, or :class:`Rows`.
    """

    inputs: Tensor | Rows
    outputs: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def parameters(self) -> list[Tensor]:
        """Weight and bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @cached_property
    def _wide_inputs(self) -> Tensor | Rows:
        """The inputs in float64: for the norms, and again for exact sums."""
        return self.inputs.double() if isinstance(self.inputs, Tensor) else self.inputs

    def squared_norms(self, delta: Tensor) -> Tensor:
        """Return ``(|x_i|^2 + 1[bias]) |d_i|^2``, or what several parts give, in float64."""
        inputs, with_bias = self._wide_inputs, self.bias is not None
        if delta.ndim == 4:
            if not isinstance(inputs, Tensor):
                raise PrivacyError(
                    "sparse rows cannot have several parts per example. Use a dense input of shape "
                    "(replicas, batch, parts, features)."
                )
            return _squared_norm_of_parts(inputs, delta.double(), with_bias)
        if isinstance(inputs, Tensor):
            squares = inputs.square().sum(-1)
        else:
            squares = inputs.squared_norms().double()
        gradients = delta.to(torch.float64, copy=True).square_().sum(-1)
        return torch.addcmul(gradients, squares, gradients) if with_bias else squares * gradients

    def clipped_sums(
        self, delta: Tensor, factors: Tensor, *, masked: bool, exact: bool
    ) -> dict[int, Tensor]:
        """Return ``X^T (c * D)`` and its like for the bias."""
        by_part = factors.unsqueeze(-1)
        if delta.ndim == 4:
            by_part = by_part.unsqueeze(-1)
        # Without a bias a gradient may be huge and its norm small: in float32 this may overflow.
        exact, dtype = exact or self.bias is None, by_part.dtype
        inputs = self._wide_inputs if exact else self.inputs
        scaled = (delta.double() if exact else delta) * by_part
        if masked:
            dead = by_part == 0
            scaled = scaled.masked_fill(dead, 0)
            if isinstance(inputs, Tensor):
                inputs = inputs.masked_fill(dead, 0)
        if scaled.ndim == 4:
            scaled = scaled.flatten(1, 2)
        if isinstance(inputs, Tensor):
            if inputs.ndim == 4:
                inputs = inputs.flatten(1, 2)
            elif inputs.ndim == 2:
                inputs = inputs.expand(len(factors), *inputs.shape)
            total = _products(scaled, inputs).transpose(1, 2)
        else:
            total = inputs.transposed_matmul(scaled)
        sums = {id(self.weight): total.to(dtype)}
        if self.bias is not None:
            sums[id(self.bias)] = scaled.sum(1, keepdim=True)
        return sums


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Return ``first^T second`` per replica.

    This way round a product of few columns is several times faster on a CPU; and in float64, by the
    library of NumPy, more than three times as fast again as by that of torch on some processors.
    """
    turned = first.transpose(1, 2)
    if first.is_cpu and first.dtype == torch.float64:
        return torch.from_numpy(np.matmul(turned.detach().numpy(), second.detach().numpy()))
    return torch.bmm(turned, second)


class Tape:
    """What ran in one forward pass, in order."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._seen: set[int] = set()

    def record(
        self, inputs: Tensor | Rows, outputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> None:
        """Note one application of a linear layer; a second one of the same is refused."""
        self.add(LinearRecord(inputs, outputs, weight, bias))

    def add(self, record: Record) -> None:
        """Note something that ran; parameters that ran already are refused."""
        mine = {id(value) for value in record.parameters}
        if not self._seen.isdisjoint(mine):
            raise PrivacyError(
                "a linear layer ran twice in one forward pass, so the norm of one example's "
                "gradient cannot be taken apart by layer. Apply it once to an input of shape "
                "(replicas, batch, parts, features)."
            )
        self._seen |= mine
        self.records.append(record)


_ACTIVE: ContextVar[Tape | None] = ContextVar("gapgnn_tape", default=None)


def active_tape() -> Tape | None:
    """Return the tape that linear layers must report to, if one is recording."""
    return _ACTIVE.get()


@contextmanager
def record_linears() -> Iterator[Tape]:
    """Record every linear layer that runs inside the block.

    >>> with record_linears() as tape:
    ...     active_tape() is tape
    True
    >>> active_tape() is None
    True
    """
    tape = Tape()
    token = _ACTIVE.set(tape)
    try:
        yield tape
    finally:
        _ACTIVE.reset(token)


def check_clippable(module: nn.Module) -> None:
    """Refuse a module whose per-example gradients cannot be clipped, before any training.

    A module says that it mixes the examples of a batch by an attribute ``mixes_examples`` with the
    fix as text, and that it reports to the tape by ``reports_to_tape = True``. Every parameter must
    belong to a module that reports. Modules of torch and PyG do not: the refusal names what trains
    them.

    >>> check_clippable(nn.BatchNorm1d(4))
    Traceback (most recent call last):
    ...
    gapgnn.errors.PrivacyError: `BatchNorm1d` mixes the examples of a batch, so one person's ...
    """
    for name, part in module.named_modules():
        called = type(part).__name__
        fix = getattr(part, "mixes_examples", None)
        if fix is None and isinstance(part, nn.modules.batchnorm._BatchNorm):
            fix = "Set batch_norm=False at node level; in a module of your own, use nn.LayerNorm."
        if fix is not None:
            raise PrivacyError(
                f"`{called}` mixes the examples of a batch, so one person's gradient cannot be "
                f"clipped. {fix}"
            )
        if is_message_passing(part):
            raise PrivacyError(
                f"`{called}` reads neighbours, so one person is part of several examples and "
                "cannot be clipped as one. Use `gapgnn.dp_sgd(model, graph)`, which cuts adjacency "
                "lists and clips sub-graph by sub-graph; or aggregate by `gapgnn.PrivateHops`, and "
                "train a network without edges on the released rows."
            )
        own = [key for key, value in part.named_parameters(recurse=False) if value.requires_grad]
        if own and not getattr(part, "reports_to_tape", False):
            where = f"{name}.{own[0]}" if name else own[0]
            raise PrivacyError(
                f"`{where}` belongs to `{called}`, which does not report its inputs and outputs, "
                "so one person's gradient cannot be clipped. Use `gapgnn.dp_sgd(model, graph)`, "
                "which trains any torch or PyG module; in a method, ReplicaLinear layers and "
                "activations; or freeze the parameter."
            )


def is_message_passing(part: nn.Module) -> bool:
    """Return whether a module is a graph convolution of PyG, which need not be installed.

    >>> is_message_passing(nn.Linear(2, 2))
    False
    """
    return any(base.__name__ == "MessagePassing" for base in type(part).__mro__)


def output_gradients(tape: Tape, losses: Tensor) -> list[Tensor]:
    """Return the gradient of each example's loss with respect to every recorded output."""
    if not tape.records:
        raise PrivacyError(
            "no linear layer was recorded, so nothing can be clipped. Run the forward pass inside "
            "`record_linears()`."
        )
    outputs = [record.outputs for record in tape.records]
    found = torch.autograd.grad(losses, outputs, torch.ones_like(losses), allow_unused=True)
    return [
        torch.zeros_like(output) if delta is None else delta
        for output, delta in zip(outputs, found, strict=True)
    ]


def check_examples_apart(tape: Tape, losses: Tensor) -> None:
    """Refuse a forward pass in which the loss of one example depends on another example.

    Looks at the gradients of one example's loss: those of all other rows must be exactly zero.
    Needs two examples or more; costs one backward pass and keeps the graph alive.
    """
    outputs = [record.outputs for record in tape.records]
    middle = losses.shape[1] // 2
    found: Sequence[Tensor | None] = torch.autograd.grad(
        losses[:, middle].sum(), outputs, retain_graph=True, allow_unused=True
    )
    for delta in found:
        if delta is None:
            continue
        # Zero times an overflow is NaN and proves nothing; a dependence shows as a number.
        others = delta.detach().nan_to_num(0.0, 0.0, 0.0)
        others[:, middle] = 0
        if bool(others.any()):
            raise PrivacyError(
                "the loss of one example depends on other examples of its batch, so one person's "
                "gradient cannot be clipped. Remove what mixes the batch (normalisation or "
                "attention over the batch) at node level."
            )


def squared_norms(tape: Tape, deltas: Sequence[Tensor]) -> Tensor:
    """Return the squared gradient norm of every example, ``(R, B)``, in float64."""
    total = tape.records[0].squared_norms(deltas[0]).double()
    for record, delta in zip(tape.records[1:], deltas[1:], strict=True):
        total = total + record.squared_norms(delta)
    return total


def _squared_norm_of_parts(inputs: Tensor, delta: Tensor, with_bias: bool) -> Tensor:
    """Return ``|sum_t x_t d_t^T|^2`` per example, never below the truth.

    The terms of different parts may cancel, and what rounding leaves of them is relative to their
    size and not to the sum's: in float32 a norm far over the clip can come out as zero. Hence
    float64, and the rounding is bounded and added, so that doubt clips more and never less.
    """
    gram = inputs @ inputs.transpose(-1, -2)
    if with_bias:
        gram = gram + 1
    gradients = delta @ delta.transpose(-1, -2)
    sizes = gram.diagonal(dim1=-2, dim2=-1) * gradients.diagonal(dim1=-2, dim2=-1)
    guard = PARTS_ROUNDING * sizes.sqrt().sum(-1).square()
    return (gram * gradients).sum((-1, -2)).clamp_(min=0) + guard


def clip_factors(
    squared: Tensor, clip: float, valid: Tensor | None = None, *, all_finite: bool = False
) -> Tensor:
    """Return ``min(1, clip / norm)`` per example: zero where padded, and where no norm exists.

    An example whose squared norm is not finite is left out, which is within any clip. Say
    ``all_finite`` only if that was checked.

    >>> clip_factors(torch.tensor([[0.0, 16.0, torch.inf]]), 2.0).tolist()
    [[1.0, 0.5, 0.0]]
    """
    # The root comes first, since the square of a tiny clip is zero.
    factors = clip / squared.sqrt().clamp_(min=clip)
    if not all_finite:
        # An infinite norm gave zero already; NaN passes through all arithmetic and fails here.
        factors = torch.where(factors > 0, factors, 0.0)
    return factors if valid is None else factors.mul_(valid)


def clipped_sums(
    tape: Tape,
    deltas: Sequence[Tensor],
    factors: Tensor,
    *,
    masked: bool = True,
    exact: bool = False,
) -> dict[int, Tensor]:
    """Return, per parameter (by ``id``), the sum over examples of factor times gradient.

    Args:
        tape: the recorded forward pass.
        deltas: its :func:`output_gradients`.
        factors: the clip factors, ``(R, B)``.
        masked: blank the rows of factor zero first, since zero times infinity is not zero. Needless
            only if all squared norms are finite.
        exact: sum in float64, so that rounding cannot move the sum of a large batch noticeably.
    """
    sums: dict[int, Tensor] = {}
    if exact:
        factors = factors.double()
    else:
        factors = factors.to(deltas[0].dtype)
        # Below the normal numbers a factor may round up to twice itself: such rows are left out.
        factors = torch.threshold(factors, torch.finfo(factors.dtype).tiny, 0.0)
    for record, delta in zip(tape.records, deltas, strict=True):
        sums.update(record.clipped_sums(delta, factors, masked=masked, exact=exact))
    return sums
