"""The grid of an experiment: plans, tasks, records that survive a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.evaluation.grid.executors import Executor as Executor
    from gapgnn.evaluation.grid.executors import local_executor as local_executor
    from gapgnn.evaluation.grid.plans import EXPERIMENTS as EXPERIMENTS
    from gapgnn.evaluation.grid.plans import LEVELS as LEVELS
    from gapgnn.evaluation.grid.plans import METHODS as METHODS
    from gapgnn.evaluation.grid.plans import Configuration as Configuration
    from gapgnn.evaluation.grid.plans import plan as plan
    from gapgnn.evaluation.grid.plans import title_of as title_of
    from gapgnn.evaluation.grid.records import FIGURES as FIGURES
    from gapgnn.evaluation.grid.records import Record as Record
    from gapgnn.evaluation.grid.records import Store as Store
    from gapgnn.evaluation.grid.records import load as load
    from gapgnn.evaluation.grid.runner import Failure as Failure
    from gapgnn.evaluation.grid.runner import Row as Row
    from gapgnn.evaluation.grid.runner import Summary as Summary
    from gapgnn.evaluation.grid.runner import estimate as estimate
    from gapgnn.evaluation.grid.runner import missing_tasks as missing_tasks
    from gapgnn.evaluation.grid.runner import run_grid as run_grid
    from gapgnn.evaluation.grid.tasks import Source as Source
    from gapgnn.evaluation.grid.tasks import Task as Task
    from gapgnn.evaluation.grid.tasks import code_version as code_version
    from gapgnn.evaluation.grid.tasks import open_graph as open_graph

__getattr__, __dir__, __all__ = front(__name__)
