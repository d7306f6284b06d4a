"""The one training loop and what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.training.callbacks import Callback as Callback
    from gapgnn.training.callbacks import History as History
    from gapgnn.training.callbacks import JsonlLogger as JsonlLogger
    from gapgnn.training.callbacks import ProgressBars as ProgressBars
    from gapgnn.training.callbacks import Several as Several
    from gapgnn.training.callbacks import Silent as Silent
    from gapgnn.training.callbacks import TensorBoardLogger as TensorBoardLogger
    from gapgnn.training.callbacks import announce as announce
    from gapgnn.training.callbacks import duration as duration
    from gapgnn.training.callbacks import quote as quote
    from gapgnn.training.callbacks import watched as watched
    from gapgnn.training.criterion import Criterion as Criterion
    from gapgnn.training.crossfit import FEATURE_DECAY as FEATURE_DECAY
    from gapgnn.training.crossfit import FEATURE_WIDTH as FEATURE_WIDTH
    from gapgnn.training.crossfit import CrossFit as CrossFit
    from gapgnn.training.crossfit import FeatureNetworks as FeatureNetworks
    from gapgnn.training.crossfit import Voices as Voices
    from gapgnn.training.crossfit import resolve_folds as resolve_folds
    from gapgnn.training.crossfit import shallow_networks as shallow_networks
    from gapgnn.training.inputs import ExampleInputs as ExampleInputs
    from gapgnn.training.inputs import FeatureInputs as FeatureInputs
    from gapgnn.training.inputs import GraphInputs as GraphInputs
    from gapgnn.training.inputs import HopInputs as HopInputs
    from gapgnn.training.inputs import Inputs as Inputs
    from gapgnn.training.inputs import row_by_row as row_by_row
    from gapgnn.training.metrics import CURVE_RECALLS as CURVE_RECALLS
    from gapgnn.training.metrics import METRICS as METRICS
    from gapgnn.training.metrics import RARE as RARE
    from gapgnn.training.metrics import TOP_SHARES as TOP_SHARES
    from gapgnn.training.metrics import Metrics as Metrics
    from gapgnn.training.metrics import Ranking as Ranking
    from gapgnn.training.metrics import best_threshold as best_threshold
    from gapgnn.training.metrics import mean_metrics as mean_metrics
    from gapgnn.training.metrics import measure as measure
    from gapgnn.training.metrics import rarest_class as rarest_class
    from gapgnn.training.metrics import share_threshold as share_threshold
    from gapgnn.training.metrics import shortcomings as shortcomings
    from gapgnn.training.recipe import Recipe as Recipe
    from gapgnn.training.recipe import class_weights as class_weights
    from gapgnn.training.recipe import node_learning_rate as node_learning_rate
    from gapgnn.training.recipe import node_recipe as node_recipe
    from gapgnn.training.recipe import some_nodes_recipe as some_nodes_recipe
    from gapgnn.training.row_scale import RowScale as RowScale
    from gapgnn.training.row_scale import features_read as features_read
    from gapgnn.training.splits import Splits as Splits
    from gapgnn.training.splits import is_dealt as is_dealt
    from gapgnn.training.splits import public_training as public_training
    from gapgnn.training.splits import repeat_splits as repeat_splits
    from gapgnn.training.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = front(__name__)
