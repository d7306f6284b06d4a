"""Optional kernels: faster implementations of operations of the layers.

The layers of :mod:`gapgnn.nn.layers` are complete without any kernel: they compute their formulas
by torch's own operations. A kernel replaces one operation on one type of device, where its
condition holds. It must return the layer's values and gradients up to rounding, and a test must
compare the two.

To add a kernel, decorate a function of a module in ``MODULES`` with :func:`register`. To train
without kernels, use :func:`kernels_off`, or start Python with ``GAPGNN_KERNELS=off``.

A kernel for a CPU is kept only where it shortens a whole run that users start by a fifth or more
(docs/explanation/performance.md has the benchmark).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import torch

from gapgnn.errors import check_choice

Function = TypeVar("Function", bound=Callable[..., Any])

# What a kernel can replace: the arguments that it gets, and what it returns.
OPERATIONS = {
    "linear": "(blocks, weight, bias): the blocks joined along columns, times weight, plus bias",
    "normed_layer": "(inputs, layer, counts, moments): a layer in training, up to its activation",
    "norm_activation": "(values, norm, activation): batch norm in training, then the activation",
    "dropout": "(seeds, device): an object that drops values as `ReplicaDropout` does",
    "cross_entropy": "(scores, labels): one loss per replica and example",
    "cross_entropy_gradient": "(scores, labels, weights): derivative of the weighted losses",
    "best_class": "(scores,): the index of the largest score of every row",
}


# Modules that register the kernels of a type of device; imported at the first lookup for it.
MODULES = {"cpu": "gapgnn.nn.kernels.cpu", "cuda": "gapgnn.nn.kernels.cuda"}


@dataclass(frozen=True)
class Kernel:
    """One registered kernel.

    Attributes:
        operation: which of ``OPERATIONS`` it replaces.
        device: the type of device that it runs on, such as ``cuda``.
        condition: takes the operation's arguments and tells whether the kernel can be used.
        function: the kernel, which takes the same arguments.
    """

    operation: str
    device: str
    condition: Callable[..., bool]
    function: Callable[..., Any]


_kernels: dict[tuple[str, str], list[Kernel]] = {}
_is_on = os.environ.get("GAPGNN_KERNELS") != "off"


def register(
    operation: str, *, device: str, condition: Callable[..., bool]
) -> Callable[[Function], Function]:
    """Register a kernel for an operation; where several apply, the first one is used.

    Args:
        operation: which of ``OPERATIONS`` it replaces.
        device: the type of device that it runs on.
        condition: takes the operation's arguments and tells whether the kernel can be used.
    """
    check_choice("operation", operation, OPERATIONS)

    def add(function: Function) -> Function:
        found = _kernels.setdefault((operation, device), [])
        found.append(Kernel(operation, device, condition, function))
        return function

    return add


def lookup(operation: str, device: torch.device, *arguments: Any) -> Callable[..., Any] | None:
    """Return the kernel for an operation on these arguments; None means: compute the formula.

    >>> scores = torch.zeros(2, 3, 4)
    >>> lookup("best_class", scores.device, scores) is None
    True
    """
    if not _is_on:
        return None
    _load(device.type)
    for kernel in _kernels.get((operation, device.type), ()):
        if kernel.condition(*arguments):
            return kernel.function
    return None


@cache
def _load(device: str) -> None:
    if device in MODULES:
        import_module(MODULES[device])


def registered() -> list[Kernel]:
    """Return all kernels.

    >>> sorted({kernel.device for kernel in registered()})
    ['cpu', 'cuda']
    """
    for device in MODULES:
        _load(device)
    return [kernel for kernels in _kernels.values() for kernel in kernels]


@contextmanager
def kernels_off() -> Iterator[None]:
    """Compute the formulas alone.

    >>> with kernels_off():
    ...     lookup("linear", torch.device("cuda"), [torch.zeros(3, 4)], None, None) is None
    True
    """
    global _is_on
    before, _is_on = _is_on, False
    try:
        yield
    finally:
        _is_on = before
