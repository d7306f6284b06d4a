"""The methods by name, this package's and other packages', loaded when they are asked for."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gapgnn.errors import InputError, check_choice
from gapgnn.registration import load_registered

if TYPE_CHECKING:
    from gapgnn.methods.estimator import NodeClassifier

MethodClass = TypeVar("MethodClass", bound="type[NodeClassifier[Any]]")

# Of each method of this package its class in ``gapgnn.methods`` and one line about it. Its
# configuration is the class of that name and ``Config`` in ``gapgnn.methods.configs``. Both are
# loaded when they are asked for: a page of help waits for the second alone.
METHODS = {
    "gap": (
        "GAP",
        "GAP, the paper's method: K noisy hops of encoded features; level none, edge or node",
    ),
    "progap": ("ProGAP", "ProGAP: a classifier after every noisy hop; level none, edge or node"),
    "label-gap": (
        "LabelGAP",
        "LabelGAP: class codes of public labels travel in stages; level none or edge",
    ),
    "node-label-gap": (
        "NodeLabelGAP",
        "NodeLabelGAP: degree-normalised class codes and DP-SGD; level node",
    ),
    "vote": (
        "NeighborVote",
        "NeighborVote: a node's own neighbours vote, for that node alone; epsilon 0 at edge level, "
        "randomised labels at node level",
    ),
    "sage": (
        "GraphSAGE",
        "GraphSAGE: at edge level on randomised edges, at node level by DP-SGD",
    ),
    "mlp": ("MLP", "MLP: features only; epsilon 0 at edge level, DP-SGD at node level"),
}
_RECOMMENDED = {"none": "label-gap", "edge": "label-gap", "node": "node-label-gap"}
_ADDED: dict[str, type[NodeClassifier[Any]]] = {}


def register_method(method: MethodClass) -> MethodClass:
    """Add a method under its ``method`` name, for this process; use it as a class decorator.

    An installed package is found by itself under the entry point group ``gapgnn.methods``
    (docs/how-to/extending.md).
    """
    from gapgnn.methods.estimator import NodeClassifier

    name = getattr(method, "method", None)
    if not (
        inspect.isclass(method) and issubclass(method, NodeClassifier) and isinstance(name, str)
    ):
        raise InputError(
            f"a method must be a subclass of NodeClassifier with a `method` name. Got {method!r}."
        )
    if inspect.isabstract(method):
        missing = ", ".join(sorted(method.__abstractmethods__))
        raise InputError(f"the method {name!r} must define {missing}.")
    known = _ADDED.get(name)
    if name in METHODS or (known is not None and known.__module__ != method.__module__):
        raise InputError(f"a method must have a name of its own. Got {name!r} a second time.")
    _ADDED[name] = method
    return method


def methods() -> dict[str, str]:
    """Return every method's name with one line about it, this package's own first.

    >>> list(methods())[:3]
    ['gap', 'progap', 'label-gap']
    """
    found = _added()
    return {name: text for name, (_, text) in METHODS.items()} | {
        name: (method.__doc__ or name).strip().splitlines()[0] for name, method in found.items()
    }


def methods_left_out() -> dict[str, str]:
    """Return the installed methods that cannot be used, each with the reason."""
    _added()
    return load_registered("gapgnn.methods").failed


def recommended_method(level: str) -> str:
    """Return the name of the method that is recommended at a level.

    It is the most accurate one on the development graphs, and what ``gapgnn train`` runs.

    >>> recommended_method("edge"), recommended_method("node")
    ('label-gap', 'node-label-gap')
    """
    return _RECOMMENDED[check_choice("level", level, _RECOMMENDED)]


def method_config(name: str) -> type:
    """Return the configuration of a method, without loading the method if it is of this package.

    >>> method_config("mlp").__name__
    'MLPConfig'
    """
    if name not in METHODS:
        return method_class(name)
    configs = importlib.import_module("gapgnn.methods.configs")
    found: type = getattr(configs, f"{METHODS[name][0]}Config")
    return found


def method_class(name: str) -> type[NodeClassifier[Any]]:
    """Return the estimator class of a method.

    >>> method_class("mlp").__name__
    'MLP'
    """
    if name in METHODS:
        package = importlib.import_module("gapgnn.methods")
        found: type[NodeClassifier[Any]] = getattr(package, METHODS[name][0])
        return found
    added = _added()
    if name in (failed := methods_left_out()):
        raise InputError(f"`method` {name!r} is installed, but {failed[name]}.")
    return added[check_choice("method", name, [*METHODS, *added])]


def _added() -> dict[str, type[NodeClassifier[Any]]]:
    """Return the methods of other packages, registered here or by their entry points."""
    registered = load_registered("gapgnn.methods")
    for name, method in list(registered.found.items()):
        if name in _ADDED or name in registered.failed:
            continue
        try:
            register_method(method)
            if method.method != name:
                raise InputError(f"its entry point must be called {method.method!r}")
        except InputError as error:
            registered.failed[name] = str(error)
    return _ADDED


def load_model(folder: str | Path, **overrides: Any) -> NodeClassifier[Any]:
    """Load a saved model of any method; the folder says which.

    Args:
        folder: what ``save`` wrote.
        overrides: ``device`` or ``ledger`` of this machine; and functions of your own that the
            model was trained with, such as ``encoder``.
    """
    from gapgnn.methods.folder import load_folder

    method = load_folder(Path(folder)).config.get("method")
    if method == "private-hops":
        raise InputError(
            f"the folder {str(folder)!r} must hold a model. Got released rows: use "
            "`gapgnn.PrivateHops.load`."
        )
    return method_class(str(method)).load(folder, **overrides)
