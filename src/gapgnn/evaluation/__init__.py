"""Experiments, and what people read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.evaluation.folds import CrossValidation as CrossValidation
    from gapgnn.evaluation.folds import Fold as Fold
    from gapgnn.evaluation.folds import cross_validate as cross_validate
    from gapgnn.evaluation.metrics import bootstrap_interval as bootstrap_interval
    from gapgnn.evaluation.metrics import paired_test as paired_test

__getattr__, __dir__, __all__ = front(__name__)
