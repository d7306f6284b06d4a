"""Networks with a leading replica axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.nn.by_size import LinearBySize as LinearBySize
    from gapgnn.nn.gap import COMBINATIONS as COMBINATIONS
    from gapgnn.nn.gap import Encoded as Encoded
    from gapgnn.nn.gap import Encoder as Encoder
    from gapgnn.nn.gap import MultiHopClassifier as MultiHopClassifier
    from gapgnn.nn.layers import ReplicaBatchNorm as ReplicaBatchNorm
    from gapgnn.nn.layers import ReplicaDropout as ReplicaDropout
    from gapgnn.nn.layers import ReplicaLinear as ReplicaLinear
    from gapgnn.nn.layers import ReplicaMLP as ReplicaMLP
    from gapgnn.nn.layers import best_class as best_class
    from gapgnn.nn.layers import can_record_dropout as can_record_dropout
    from gapgnn.nn.layers import count_replicas as count_replicas
    from gapgnn.nn.layers import cross_entropy as cross_entropy
    from gapgnn.nn.layers import cross_entropy_slopes as cross_entropy_slopes
    from gapgnn.nn.layers import replica_state as replica_state
    from gapgnn.nn.layers import reset_replicas as reset_replicas
    from gapgnn.nn.row_subsets import RowSubset as RowSubset
    from gapgnn.nn.row_subsets import RowsWithMoments as RowsWithMoments
    from gapgnn.nn.row_subsets import has_cheap_moments as has_cheap_moments
    from gapgnn.nn.row_subsets import input_moments as input_moments
    from gapgnn.nn.sage import Arcs as Arcs
    from gapgnn.nn.sage import Examples as Examples
    from gapgnn.nn.sage import InLists as InLists
    from gapgnn.nn.sage import Sage as Sage
    from gapgnn.nn.sage import WholeGraph as WholeGraph
    from gapgnn.nn.shrunk import ShrunkRegression as ShrunkRegression
    from gapgnn.nn.shrunk import mixed as mixed
    from gapgnn.nn.shrunk import scores_of as scores_of
    from gapgnn.nn.sparse_rows import BatchRows as BatchRows
    from gapgnn.nn.sparse_rows import SparseRows as SparseRows
    from gapgnn.nn.specification import build_network as build_network
    from gapgnn.nn.specification import describe_network as describe_network
    from gapgnn.nn.specification import specified as specified

__getattr__, __dir__, __all__ = front(__name__)
