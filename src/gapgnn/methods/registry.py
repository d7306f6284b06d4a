"""The methods by name, this package's and other packages', loaded when they are asked for."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gapgnn.errors import InputError, check_choice
from gapgnn.registration import load_registered

if TYPE_CHECKING:
    from gapgnn.methods.base import NodeClassifier

MethodClass = TypeVar("MethodClass", bound="type[NodeClassifier]")

_TEXTS = {
    "gap": "GAP: noisy multi-hop aggregation, at level none, edge or node",
    "sage": "SAGE: GraphSAGE, at edge level on randomised edges, at node level by DP-SGD",
    "mlp": "MLP: features only; epsilon 0 at edge level, DP-SGD at node level",
    "vote": "Vote: each own list votes, for its owner alone; epsilon 0 at edge level, "
    "randomised labels at node level",
}
_CLASSES = {
    "gap": ("gapgnn.methods.gap.estimator", "GAP"),
    "sage": ("gapgnn.methods.sage", "SAGE"),
    "mlp": ("gapgnn.methods.mlp", "MLP"),
    "vote": ("gapgnn.methods.vote", "Vote"),
}
_ADDED: dict[str, type[NodeClassifier]] = {}


def register_method(kind: MethodClass) -> MethodClass:
    """Add a method under its ``method`` name, for this process; use it as a class decorator.

    An installed package is found by itself under the entry point group ``gapgnn.methods``
    (docs/extending.md).
    """
    from gapgnn.methods.base import NodeClassifier

    name = getattr(kind, "method", None)
    if not (inspect.isclass(kind) and issubclass(kind, NodeClassifier) and isinstance(name, str)):
        raise InputError(
            f"a method must be a subclass of NodeClassifier with a `method` name. Got {kind!r}."
        )
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise InputError(f"the method {name!r} must define {missing}.")
    known = _ADDED.get(name)
    if name in _CLASSES or (known is not None and known.__module__ != kind.__module__):
        raise InputError(f"a method must have a name of its own. Got {name!r} a second time.")
    _ADDED[name] = kind
    return kind


def methods() -> dict[str, str]:
    """Return every method's name with one line about it, this package's own first.

    >>> list(methods())[:3]
    ['gap', 'sage', 'mlp']
    """
    found = _added()
    return _TEXTS | {
        name: (kind.__doc__ or name).strip().splitlines()[0] for name, kind in found.items()
    }


def methods_left_out() -> dict[str, str]:
    """Return the installed methods that cannot be used, each with the reason."""
    _added()
    return load_registered("gapgnn.methods").failed


def method_home(name: str) -> tuple[str, str] | None:
    """Return the module and the name of a method's class if it is one of this package.

    >>> method_home("mlp")
    ('gapgnn.methods.mlp', 'MLP')
    """
    return _CLASSES.get(name)


def method_class(name: str) -> type[NodeClassifier]:
    """Return the estimator class of a method.

    >>> method_class("mlp").__name__
    'MLP'
    """
    if name in _CLASSES:
        module, attribute = _CLASSES[name]
        found: type[NodeClassifier] = getattr(importlib.import_module(module), attribute)
        return found
    added = _added()
    if name in (failed := methods_left_out()):
        raise InputError(f"`method` {name!r} is installed, but {failed[name]}.")
    return added[check_choice("method", name, [*_CLASSES, *added])]


def _added() -> dict[str, type[NodeClassifier]]:
    """Return the methods of other packages, registered here or by their entry points."""
    registered = load_registered("gapgnn.methods")
    for name, kind in list(registered.found.items()):
        if name in _ADDED or name in registered.failed:
            continue
        try:
            register_method(kind)
            if kind.method != name:
                raise InputError(f"its entry point must be called {kind.method!r}")
        except InputError as error:
            registered.failed[name] = str(error)
    return _ADDED


def load_model(folder: str | Path, **overrides: Any) -> NodeClassifier:
    """Load a saved model of any method; the folder says which.

    Args:
        folder: what ``save`` wrote.
        overrides: ``device`` or ``ledger`` of this machine.
    """
    from gapgnn.methods.folder import load_folder

    method = load_folder(Path(folder)).config.get("method")
    return method_class(str(method)).load(folder, **overrides)
