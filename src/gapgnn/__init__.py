"""Graph neural networks on private graphs, with differential privacy.

>>> from gapgnn import GAP, load_dataset
>>> graph = load_dataset("social")
>>> model = GAP(level="edge", epsilon=1.0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapgnn.errors import GapgnnError as GapgnnError
    from gapgnn.graph.convert import as_graph as as_graph
    from gapgnn.graph.datasets.load import dataset_names as dataset_names
    from gapgnn.graph.datasets.load import load_dataset as load_dataset
    from gapgnn.graph.graph import Graph as Graph
    from gapgnn.graph.tables.read import read_tables as read_tables
    from gapgnn.methods.gap.estimator import GAP as GAP
    from gapgnn.methods.mlp import MLP as MLP
    from gapgnn.methods.registry import load_model as load_model
    from gapgnn.methods.sage import SAGE as SAGE
    from gapgnn.privacy.card.card import PrivacyCard as PrivacyCard
    from gapgnn.privacy.ledger.ledger import Ledger as Ledger

__version__ = "0.2.0.dev0"

# Loaded on first use: importing the package must not wait for torch.
_HOMES = {
    "GAP": "gapgnn.methods.gap.estimator",
    "GapgnnError": "gapgnn.errors",
    "Graph": "gapgnn.graph.graph",
    "Ledger": "gapgnn.privacy.ledger.ledger",
    "MLP": "gapgnn.methods.mlp",
    "PrivacyCard": "gapgnn.privacy.card.card",
    "SAGE": "gapgnn.methods.sage",
    "as_graph": "gapgnn.graph.convert",
    "dataset_names": "gapgnn.graph.datasets.load",
    "load_dataset": "gapgnn.graph.datasets.load",
    "load_model": "gapgnn.methods.registry",
    "read_tables": "gapgnn.graph.tables.read",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gapgnn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
