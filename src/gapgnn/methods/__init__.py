"""What a user fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.methods.checks import choose_device as choose_device
    from gapgnn.methods.configs.base import DegreeBoundConfig as DegreeBoundConfig
    from gapgnn.methods.configs.base import option as option
    from gapgnn.methods.edge_reader import EdgeReader as EdgeReader
    from gapgnn.methods.edgefacts import EdgeFacts as EdgeFacts
    from gapgnn.methods.estimator import Fit as Fit
    from gapgnn.methods.estimator import NodeClassifier as NodeClassifier
    from gapgnn.methods.estimator import Shape as Shape
    from gapgnn.methods.folder import Saved as Saved
    from gapgnn.methods.folder import check_new_folder as check_new_folder
    from gapgnn.methods.folder import keep_audit as keep_audit
    from gapgnn.methods.folder import load_folder as load_folder
    from gapgnn.methods.gap import GAP as GAP
    from gapgnn.methods.graphsage import EVENT as EVENT
    from gapgnn.methods.graphsage import HOP as HOP
    from gapgnn.methods.graphsage import NETWORK as NETWORK
    from gapgnn.methods.graphsage import GraphSAGE as GraphSAGE
    from gapgnn.methods.graphsage import GraphSAGESettings as GraphSAGESettings
    from gapgnn.methods.hops import blocks_of as blocks_of
    from gapgnn.methods.hops import direction_and_size as direction_and_size
    from gapgnn.methods.hops import events_per_hop as events_per_hop
    from gapgnn.methods.hops import in_noise_units as in_noise_units
    from gapgnn.methods.hops import num_blocks as num_blocks
    from gapgnn.methods.hops import releases_union as releases_union
    from gapgnn.methods.hops import resolve_edge_types as resolve_edge_types
    from gapgnn.methods.label_gap.budget import SHARES as SHARES
    from gapgnn.methods.label_gap.codes import class_codes as class_codes
    from gapgnn.methods.label_gap.edge_level import LabelGAP as LabelGAP
    from gapgnn.methods.label_gap.node_level import NodeLabelGAP as NodeLabelGAP
    from gapgnn.methods.lists import exact_sums as exact_sums
    from gapgnn.methods.lists import sums_of_rows as sums_of_rows
    from gapgnn.methods.lists import sums_over_lists as sums_over_lists
    from gapgnn.methods.mlp import MLP as MLP
    from gapgnn.methods.neighbor_vote import NeighborVote as NeighborVote
    from gapgnn.methods.progap import ProGAP as ProGAP
    from gapgnn.methods.registry import load_model as load_model
    from gapgnn.methods.registry import method_class as method_class
    from gapgnn.methods.registry import method_config as method_config
    from gapgnn.methods.registry import methods as methods
    from gapgnn.methods.registry import methods_left_out as methods_left_out
    from gapgnn.methods.registry import recommended_method as recommended_method
    from gapgnn.methods.registry import register_method as register_method
    from gapgnn.methods.releases import ReleasedHops as ReleasedHops
    from gapgnn.methods.releases import Releases as Releases
    from gapgnn.methods.releases import alike as alike
    from gapgnn.methods.releases import check_trained_on as check_trained_on
    from gapgnn.methods.releases import new_among as new_among
    from gapgnn.methods.settings import Settings as Settings
    from gapgnn.methods.unused import Unused as Unused

__getattr__, __dir__, __all__ = front(__name__)
