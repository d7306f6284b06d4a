"""The parameters of NeighborVote."""

from __future__ import annotations

from dataclasses import dataclass

from gapgnn.methods.configs.base import option
from gapgnn.methods.configs.mlp import MLPConfig


@dataclass(kw_only=True, eq=False, repr=False)
class NeighborVoteConfig(MLPConfig):
    """What may be asked of NeighborVote; the parameters of the MLP are for levels none and edge."""

    epsilon: float = option(1.0, "privacy budget at node level")
    odds: float = option(
        6.0, "how much more often a neighbour has the node's own class than any other class"
    )
