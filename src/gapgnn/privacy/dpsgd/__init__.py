"""Clipped, noised gradient steps on secret batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.dpsgd.flat import FlatAdam as FlatAdam
    from gapgnn.privacy.dpsgd.flat import FlatParameters as FlatParameters
    from gapgnn.privacy.dpsgd.flat import Optimiser as Optimiser
    from gapgnn.privacy.dpsgd.flat import make_optimiser as make_optimiser
    from gapgnn.privacy.dpsgd.ghost import active_tape as active_tape
    from gapgnn.privacy.dpsgd.ghost import record_linears as record_linears
    from gapgnn.privacy.dpsgd.poisson import DPSchedule as DPSchedule
    from gapgnn.privacy.dpsgd.poisson import PoissonBatch as PoissonBatch
    from gapgnn.privacy.dpsgd.poisson import PoissonBatches as PoissonBatches
    from gapgnn.privacy.dpsgd.poisson import plan_steps as plan_steps
    from gapgnn.privacy.dpsgd.shared_nodes import SHORTEST as SHORTEST
    from gapgnn.privacy.dpsgd.shared_nodes import Members as Members
    from gapgnn.privacy.dpsgd.shared_nodes import SharedLayer as SharedLayer
    from gapgnn.privacy.dpsgd.shared_nodes import SharedParts as SharedParts
    from gapgnn.privacy.dpsgd.step import PrivateStep as PrivateStep
    from gapgnn.privacy.dpsgd.step import PrivateTraining as PrivateTraining
    from gapgnn.privacy.dpsgd.step import check_size as check_size
    from gapgnn.privacy.dpsgd.subgraphs import NOT_PROVEN as NOT_PROVEN
    from gapgnn.privacy.dpsgd.subgraphs import neighbourhood_event as neighbourhood_event
    from gapgnn.privacy.dpsgd.subgraphs import (
        neighbourhood_sensitivity as neighbourhood_sensitivity,
    )
    from gapgnn.privacy.dpsgd.subgraphs import original_epsilon as original_epsilon

__getattr__, __dir__, __all__ = front(__name__)
