"""One flat vector of parameters per replica, and the optimisers that move it.

All parameters of a module with a leading replica axis R become views of one ``(R, P)`` tensor, so
that noise, the optimiser and its state are a handful of tensor operations whatever the number of
layers or replicas. Everything here works alike for private and non-private training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_number

# Adam's, as torch has them.
BETAS, EPSILON = (0.9, 0.999), 1e-8


class FlatParameters:
    """The trainable parameters of a module as one tensor ``values`` of shape ``(R, P)``.

    The module keeps working: its parameters are views, and changing ``values`` in place changes
    them.

    >>> layer = nn.Module()
    >>> layer.weight = nn.Parameter(torch.ones(2, 3, 4))
    >>> flat = FlatParameters(layer)
    >>> flat.values.zero_().shape, float(layer.weight.detach().sum())
    (torch.Size([2, 12]), 0.0)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [value for value in module.parameters() if value.requires_grad]
        if not self.parameters:
            raise InputError("`module` must have parameters to train. Got none.")
        self.replicas = self.parameters[0].shape[0] if self.parameters[0].ndim else 0
        for name, value in module.named_parameters():
            if value.requires_grad and (value.ndim < 2 or value.shape[0] != self.replicas):
                raise InputError(
                    f"`{name}` must have the replica axis ({self.replicas}) first. "
                    f"Got shape {tuple(value.shape)}."
                )
        self.values = torch.cat([self._row(value.detach()) for value in self.parameters], dim=1)
        self._view()

    def _view(self) -> None:
        """Make the parameters views of ``values``."""
        start = 0
        for value in self.parameters:
            width = value.numel() // self.replicas
            value.data = self.values[:, start : start + width].view(value.shape)
            start += width

    @property
    def size(self) -> int:
        """The number P of parameters of one replica."""
        return self.values.shape[1]

    def _row(self, value: Tensor) -> Tensor:
        return value.reshape(self.replicas, -1)

    def collect(self, gradients: Mapping[int, Tensor]) -> Tensor:
        """Lay gradients, given by ``id`` of their parameter, side by side: ``(R, P)``.

        A parameter without a gradient gets zeros.
        """
        rows = []
        for value in self.parameters:
            found = gradients.get(id(value))
            rows.append(self._row(torch.zeros_like(value) if found is None else found))
        return torch.cat(rows, dim=1)

    def gradient(self, result: Tensor, gradients: Tensor | None = None) -> Tensor:
        """Return the plain gradient of a result, ``(R, P)``: for non-private training.

        Each replica's loss reads its own parameters only, so one sum serves all replicas.

        Args:
            result: losses, which are summed; or anything else, with
            gradients: the derivative of the loss by the result.
        """
        result = result.sum() if gradients is None else result
        found = torch.autograd.grad(result, self.parameters, gradients, allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        return self.collect({id(value): grad for value, grad in pairs if grad is not None})


class PlainParameters(FlatParameters):
    """The trainable parameters of an ordinary module, which has no replica axis, as ``(1, P)``.

    >>> layer = nn.Linear(3, 4)
    >>> flat = PlainParameters(layer)
    >>> flat.values.zero_().shape, float(layer.weight.detach().sum())
    (torch.Size([1, 16]), 0.0)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.replicas = 1
        self.parameters = [value for value in module.parameters() if value.requires_grad]
        if not self.parameters:
            raise InputError("`module` must have parameters to train. Got none.")
        self.values = torch.cat([self._row(value.detach()) for value in self.parameters], dim=1)
        self._view()


class Optimiser(Protocol):
    """What moves the parameters, given a gradient of the same shape."""

    def step(self, gradient: Tensor) -> None:
        """Move the parameters one step, in place."""


class _Flat:
    """Settings of an optimiser; ``weight_decay`` is added to the gradient (L2)."""

    def __init__(
        self, values: Tensor, *, learning_rate: float = 0.01, weight_decay: float = 0.0
    ) -> None:
        self.values = values
        self.learning_rate = check_number("learning_rate", learning_rate, above=0)
        self.weight_decay = check_number("weight_decay", weight_decay, at_least=0)


class FlatAdam(_Flat):
    """Adam on a flat tensor, step for step that of ``torch.optim.Adam``.

    >>> values = torch.zeros(1, 2)
    >>> FlatAdam(values, learning_rate=0.1).step(torch.tensor([[3.0, -5.0]]))
    >>> values.mul(10).round().tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, values: Tensor, **options: float) -> None:
        super().__init__(values, **options)
        self._mean = torch.zeros_like(values)
        self._square = torch.zeros_like(values)
        # A tensor: on a GPU a recorded step moves it, on a CPU the fused kernel reads it.
        dtype = torch.float64 if values.is_cuda else torch.float32
        self._steps = torch.zeros((), dtype=dtype, device=values.device)
        # The kernel rounds otherwise at the end of a tensor, and a replica's end must not depend on
        # how many replicas there are: it is given row by row.
        self._rows = [part.unbind() for part in (values, self._mean, self._square)]

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Move the values one step."""
        self._steps += 1
        if self.values.is_cuda:
            self._step_on_device(gradient)
            return
        values, means, squares = self._rows
        move: Any = torch._fused_adam_
        move(
            values,
            gradient.unbind(),
            means,
            squares,
            [],
            [self._steps] * len(values),
            lr=self.learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _step_on_device(self, gradient: Tensor) -> None:
        first, second = BETAS
        if self.weight_decay:
            gradient = gradient.add(self.values, alpha=self.weight_decay)
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # torch's form is -size * mean / (sqrt(square) / root + epsilon); this saves a division.
        root = (1 - second**self._steps) ** 0.5
        size = self.learning_rate * root / (1 - first**self._steps)
        self.values.sub_(self._mean / (self._square.sqrt() + EPSILON * root) * size)


class FlatSGD(_Flat):
    """Stochastic gradient descent on a flat tensor, step for step that of ``torch.optim.SGD``.

    >>> values = torch.zeros(1, 2)
    >>> FlatSGD(values, learning_rate=0.5).step(torch.tensor([[2.0, -4.0]]))
    >>> values.tolist()
    [[-1.0, 2.0]]
    """

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Move the values one step."""
        if self.weight_decay:
            gradient = gradient.add(self.values, alpha=self.weight_decay)
        self.values.add_(gradient, alpha=-self.learning_rate)


def make_optimiser(
    name: str, values: Tensor, *, learning_rate: float, weight_decay: float = 0.0
) -> Optimiser:
    """Return the optimiser called ``adam`` or ``sgd``.

    >>> type(make_optimiser("adam", torch.zeros(1, 2), learning_rate=0.01)).__name__
    'FlatAdam'
    """
    optimisers: dict[str, type[FlatAdam] | type[FlatSGD]] = {"adam": FlatAdam, "sgd": FlatSGD}
    optimiser = optimisers[check_choice("optimiser", name, optimisers)]
    return optimiser(values, learning_rate=learning_rate, weight_decay=weight_decay)
