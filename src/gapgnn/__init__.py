"""Graph neural networks on private graphs, with differential privacy.

>>> from gapgnn import LabelGAP, load_dataset
>>> graph = load_dataset("social")
>>> model = LabelGAP(level="edge", epsilon=1.0)

What is public is listed in docs/api.md: the names of this package, ``gapgnn.accounting``,
``gapgnn.attacks`` and ``gapgnn.audits``. Everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.errors import BudgetExceededError as BudgetExceededError
    from gapgnn.errors import CalibrationError as CalibrationError
    from gapgnn.errors import DataError as DataError
    from gapgnn.errors import GapgnnError as GapgnnError
    from gapgnn.errors import InputError as InputError
    from gapgnn.errors import PrivacyError as PrivacyError
    from gapgnn.errors import UnavailableError as UnavailableError
    from gapgnn.evaluation.folds import CrossValidation as CrossValidation
    from gapgnn.evaluation.folds import cross_validate as cross_validate
    from gapgnn.graph.convert import as_graph as as_graph
    from gapgnn.graph.convert import from_networkx as from_networkx
    from gapgnn.graph.convert import from_pyg as from_pyg
    from gapgnn.graph.convert import from_scipy as from_scipy
    from gapgnn.graph.datasets.load import dataset_names as dataset_names
    from gapgnn.graph.datasets.load import load_dataset as load_dataset
    from gapgnn.graph.datasets.registry import register_dataset as register_dataset
    from gapgnn.graph.graph import Graph as Graph
    from gapgnn.graph.tables.read import read_tables as read_tables
    from gapgnn.graph.transforms import random_split as random_split
    from gapgnn.methods.configs.base import option as option
    from gapgnn.methods.edge_reader import EdgeReader as EdgeReader
    from gapgnn.methods.estimator import Fit as Fit
    from gapgnn.methods.estimator import NodeClassifier as NodeClassifier
    from gapgnn.methods.estimator import Shape as Shape
    from gapgnn.methods.gap import GAP as GAP
    from gapgnn.methods.graphsage import GraphSAGE as GraphSAGE
    from gapgnn.methods.label_gap.edge_level import LabelGAP as LabelGAP
    from gapgnn.methods.label_gap.node_level import NodeLabelGAP as NodeLabelGAP
    from gapgnn.methods.mlp import MLP as MLP
    from gapgnn.methods.neighbor_vote import NeighborVote as NeighborVote
    from gapgnn.methods.progap import ProGAP as ProGAP
    from gapgnn.methods.registry import load_model as load_model
    from gapgnn.methods.registry import recommended_method as recommended_method
    from gapgnn.methods.registry import register_method as register_method
    from gapgnn.methods.settings import Settings as Settings
    from gapgnn.privacy.card.card import PrivacyCard as PrivacyCard
    from gapgnn.privacy.card.card import ReleaseFacts as ReleaseFacts
    from gapgnn.privacy.checkpoint import Checkpoint as Checkpoint
    from gapgnn.privacy.ledger.ledger import Ledger as Ledger
    from gapgnn.privacy.plan import Plan as Plan
    from gapgnn.privacy.plan import PlannedHops as PlannedHops
    from gapgnn.privacy.plan import PlannedTraining as PlannedTraining
    from gapgnn.privacy.plan import PublicFacts as PublicFacts
    from gapgnn.privacy.session import PrivateSession as PrivateSession
    from gapgnn.privacy.session import SessionOptions as SessionOptions

__version__ = "0.2.0.dev0"

__getattr__, __dir__, __all__ = front(__name__)
__all__ += ["__version__"]
