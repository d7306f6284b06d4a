"""What a user may ask of each method: one dataclass per method, each field with its help text.

A configuration is the constructor of the method's estimator, the options of its command and the
keys of a configuration file. These modules import neither torch nor NumPy, so that a misspelt
option or a page of help does not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.methods.configs.base import DegreeBoundConfig as DegreeBoundConfig
    from gapgnn.methods.configs.base import MethodConfig as MethodConfig
    from gapgnn.methods.configs.base import help_texts as help_texts
    from gapgnn.methods.configs.base import own_parameters as own_parameters
    from gapgnn.methods.configs.gap import GAPConfig as GAPConfig
    from gapgnn.methods.configs.graphsage import GraphSAGEConfig as GraphSAGEConfig
    from gapgnn.methods.configs.label_gap import LabelGAPConfig as LabelGAPConfig
    from gapgnn.methods.configs.mlp import MLPConfig as MLPConfig
    from gapgnn.methods.configs.neighbor_vote import NeighborVoteConfig as NeighborVoteConfig
    from gapgnn.methods.configs.node_label_gap import NodeLabelGAPConfig as NodeLabelGAPConfig
    from gapgnn.methods.configs.progap import ProGAPConfig as ProGAPConfig

__getattr__, __dir__, __all__ = front(__name__)
