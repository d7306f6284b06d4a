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

_TEXTS = {
    "gap": "GAP, the paper's method: K noisy hops of encoded features; level none, edge or node",
    "progap": "ProGAP: a classifier after every noisy hop; level none, edge or node",
    "label-gap": "LabelGAP: class codes of public labels travel in stages; level none or edge",
    "node-label-gap": "NodeLabelGAP: degree-normalised class codes and DP-SGD; level node",
    "vote": "NeighborVote: a node's own neighbours vote, for that node alone; epsilon 0 at edge "
    "level, randomised labels at node level",
    "sage": "GraphSAGE: at edge level on randomised edges, at node level by DP-SGD",
    "mlp": "MLP: features only; epsilon 0 at edge level, DP-SGD at node level",
}
_CLASSES = {
    "gap": ("gapgnn.methods.gap", "GAP"),
    "progap": ("gapgnn.methods.progap", "ProGAP"),
    "label-gap": ("gapgnn.methods.label_gap.edge_level", "LabelGAP"),
    "node-label-gap": ("gapgnn.methods.label_gap.node_level", "NodeLabelGAP"),
    "vote": ("gapgnn.methods.neighbor_vote", "NeighborVote"),
    "sage": ("gapgnn.methods.graphsage", "GraphSAGE"),
    "mlp": ("gapgnn.methods.mlp", "MLP"),
}
_CONFIGS = {
    "gap": ("gapgnn.methods.configs.gap", "GAPConfig"),
    "progap": ("gapgnn.methods.configs.progap", "ProGAPConfig"),
    "label-gap": ("gapgnn.methods.configs.label_gap", "LabelGAPConfig"),
    "node-label-gap": ("gapgnn.methods.configs.node_label_gap", "NodeLabelGAPConfig"),
    "vote": ("gapgnn.methods.configs.neighbor_vote", "NeighborVoteConfig"),
    "sage": ("gapgnn.methods.configs.graphsage", "GraphSAGEConfig"),
    "mlp": ("gapgnn.methods.configs.mlp", "MLPConfig"),
}
_RECOMMENDED = {"none": "label-gap", "edge": "label-gap", "node": "node-label-gap"}
_ADDED: dict[str, type[NodeClassifier[Any]]] = {}


def register_method(kind: MethodClass) -> MethodClass:
    """Add a method under its ``method`` name, for this process; use it as a class decorator.

    An installed package is found by itself under the entry point group ``gapgnn.methods``
    (docs/extending.md).
    """
    from gapgnn.methods.estimator import NodeClassifier

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
    ['gap', 'progap', 'label-gap']
    """
    found = _added()
    return _TEXTS | {
        name: (kind.__doc__ or name).strip().splitlines()[0] for name, kind in found.items()
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
    if name not in _CONFIGS:
        return method_class(name)
    module, attribute = _CONFIGS[name]
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def method_class(name: str) -> type[NodeClassifier[Any]]:
    """Return the estimator class of a method.

    >>> method_class("mlp").__name__
    'MLP'
    """
    if name in _CLASSES:
        module, attribute = _CLASSES[name]
        found: type[NodeClassifier[Any]] = getattr(importlib.import_module(module), attribute)
        return found
    added = _added()
    if name in (failed := methods_left_out()):
        raise InputError(f"`method` {name!r} is installed, but {failed[name]}.")
    return added[check_choice("method", name, [*_CLASSES, *added])]


def _added() -> dict[str, type[NodeClassifier[Any]]]:
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


def load_model(folder: str | Path, **overrides: Any) -> NodeClassifier[Any]:
    """Load a saved model of any method; the folder says which.

    Args:
        folder: what ``save`` wrote.
        overrides: ``device`` or ``ledger`` of this machine.
    """
    from gapgnn.methods.folder import load_folder

    method = load_folder(Path(folder)).config.get("method")
    return method_class(str(method)).load(folder, **overrides)
