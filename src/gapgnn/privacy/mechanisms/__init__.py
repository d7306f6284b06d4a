"""What releases: noise, noisy hops in memory, on disk and on a device, randomised response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation as PrivateAggregation
    from gapgnn.privacy.mechanisms.aggregation import kind_aggregations as kind_aggregations
    from gapgnn.privacy.mechanisms.backends import row_normalise as row_normalise
    from gapgnn.privacy.mechanisms.device import can_use_triton as can_use_triton
    from gapgnn.privacy.mechanisms.device import copy_on as copy_on
    from gapgnn.privacy.mechanisms.device import csr_tensor as csr_tensor
    from gapgnn.privacy.mechanisms.draws import Coins as Coins
    from gapgnn.privacy.mechanisms.draws import device_heads as device_heads
    from gapgnn.privacy.mechanisms.edges import COUNT_SHARE as COUNT_SHARE
    from gapgnn.privacy.mechanisms.edges import PERTURBATIONS as PERTURBATIONS
    from gapgnn.privacy.mechanisms.edges import Cells as Cells
    from gapgnn.privacy.mechanisms.edges import PerturbedEdges as PerturbedEdges
    from gapgnn.privacy.mechanisms.edges import check_output_fits as check_output_fits
    from gapgnn.privacy.mechanisms.edges import count_scale as count_scale
    from gapgnn.privacy.mechanisms.edges import perturb_edges as perturb_edges
    from gapgnn.privacy.mechanisms.edges import perturbation_events as perturbation_events
    from gapgnn.privacy.mechanisms.edges import response_probabilities as response_probabilities
    from gapgnn.privacy.mechanisms.labels import randomised_labels as randomised_labels
    from gapgnn.privacy.mechanisms.lengths import noisy_list_length as noisy_list_length
    from gapgnn.privacy.mechanisms.noise import GRID as GRID
    from gapgnn.privacy.mechanisms.noise import NoiseSource as NoiseSource
    from gapgnn.privacy.mechanisms.noise import SafeOrFast as SafeOrFast
    from gapgnn.privacy.mechanisms.noise import check_scale as check_scale
    from gapgnn.privacy.mechanisms.noise import grid_slack as grid_slack
    from gapgnn.privacy.mechanisms.noise import on_grid as on_grid
    from gapgnn.privacy.mechanisms.sums import ROW_GRID as ROW_GRID
    from gapgnn.privacy.mechanisms.sums import WEIGHTED_GRID as WEIGHTED_GRID
    from gapgnn.privacy.mechanisms.sums import add_up as add_up
    from gapgnn.privacy.mechanisms.sums import divide_rows as divide_rows
    from gapgnn.privacy.mechanisms.sums import quantise_rows as quantise_rows
    from gapgnn.privacy.mechanisms.triton_jit import constexpr as constexpr
    from gapgnn.privacy.mechanisms.triton_jit import jit as jit
    from gapgnn.privacy.mechanisms.triton_jit import tl as tl

__getattr__, __dir__, __all__ = front(__name__)
