"""The methods by name, loaded when they are asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.errors import check_choice

if TYPE_CHECKING:
    from gapgnn.methods.base import NodeClassifier

METHODS = {
    "gap": "GAP: noisy multi-hop aggregation, at level none, edge or node",
    "sage": "SAGE: GraphSAGE, at edge level on randomised edges, at node level by DP-SGD",
    "mlp": "MLP: features only; epsilon 0 at edge level, DP-SGD at node level",
}
_CLASSES = {
    "gap": ("gapgnn.methods.gap.estimator", "GAP"),
    "sage": ("gapgnn.methods.sage", "SAGE"),
    "mlp": ("gapgnn.methods.mlp", "MLP"),
}


def method_class(name: str) -> type[NodeClassifier]:
    """Return the estimator class of a method.

    >>> method_class("mlp").__name__
    'MLP'
    """
    module, attribute = _CLASSES[check_choice("method", name, METHODS)]
    found: type[NodeClassifier] = getattr(importlib.import_module(module), attribute)
    return found


def load_model(folder: str | Path, **overrides: Any) -> NodeClassifier:
    """Load a saved model of any method; the folder says which.

    Args:
        folder: what ``save`` wrote.
        overrides: ``device`` or ``ledger`` of this machine.
    """
    from gapgnn.methods.folder import load_folder

    method = load_folder(Path(folder)).config.get("method")
    return method_class(str(method)).load(folder, **overrides)
