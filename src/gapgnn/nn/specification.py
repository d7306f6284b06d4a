"""Networks as data: which class, built with which arguments.

A saved model stores the specification of its networks with every number resolved, so that loading
it depends on no default of the version that loads it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

ModuleType = TypeVar("ModuleType", bound=nn.Module)

_CLASSES: dict[str, type[nn.Module]] = {}


def specified(cls: type[ModuleType]) -> type[ModuleType]:
    """Let a network class remember the arguments that it was built with.

    Arguments are numbers, texts, booleans, and sequences of them: what JSON can hold.

    >>> @specified
    ... class Scale(nn.Module):
    ...     def __init__(self, width: int, *, bias: bool = True) -> None:
    ...         super().__init__()
    >>> describe_network(Scale(3))
    {'class': 'Scale', 'arguments': {'width': 3, 'bias': True}}
    """
    build = cls.__init__
    signature = inspect.signature(build)

    @functools.wraps(build)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *given = bound.arguments.items()
        self.__dict__["_arguments"] = {
            name: list(value) if isinstance(value, list | tuple) else value for name, value in given
        }

    cls.__init__ = init  # type: ignore[method-assign]
    _CLASSES[cls.__name__] = cls
    return cls


def describe_network(module: nn.Module) -> dict[str, Any] | None:
    """Return a network's class and arguments; None for a class that does not keep them."""
    arguments = module.__dict__.get("_arguments")
    if arguments is None:
        return None
    return {"class": type(module).__name__, "arguments": dict(arguments)}


def build_network(specified: Mapping[str, Any]) -> nn.Module:
    """Build a network, with initial weights, from its :func:`describe_network`.

    >>> from gapgnn.nn import ReplicaMLP
    >>> build_network(describe_network(ReplicaMLP(1, [4, 2]))).layers[0].linear.weight.shape
    torch.Size([1, 4, 2])
    """
    return _CLASSES[specified["class"]](**specified["arguments"])
