"""The parameters of GraphSAGE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gapgnn.methods.configs.base import Activation, DegreeBoundConfig, option


@dataclass(kw_only=True, eq=False, repr=False)
class GraphSAGEConfig(DegreeBoundConfig):
    """What may be asked of GraphSAGE."""

    epsilon: float = option(4.0, "privacy budget")
    delta: float | Literal["auto"] = option(
        "auto",
        "failure probability at node level; auto is the largest power of ten that is at most 1 / "
        "(10 times the number of protected entities). At edge level none is needed",
    )
    relation: str = option(
        "auto",
        "which graphs are neighbours; auto is undirected for a symmetric graph, directed "
        "otherwise, and add-remove at node level (replace has no accounting here)",
    )
    max_degree: int = option(
        1,
        "neighbours D that each adjacency list is cut to at node level: the more neighbours, the "
        "more a record weighs, which no usual budget can pay",
    )
    layers: int | Literal["auto"] = option(
        "auto",
        "message-passing layers, 1 to 5; auto is 2, at node level 1, where no other number can be "
        "accounted",
    )
    perturbation: Literal["arr", "edgerand", "lapgraph"] = option(
        "arr", "how the edges are randomised at edge level"
    )
    pre_layers: int = option(2, "layers of the network before message passing")
    post_layers: int = option(1, "layers of the network after it, the output layer included")
    hidden: int = option(16, "width of every hidden layer")
    activation: Activation = option("selu", "activation after every hidden layer")
    dropout: float = option(
        0.0,
        "dropout rate after every hidden layer of the networks before and after; 0 at node level",
    )
    noise_ratios: tuple[float, float] = option(
        (1.0, 1.0),
        "noise multipliers of training and aggregation relative to each other, at node level",
    )
    memory_limit: float = option(16.0, "GiB that the output of edgerand may take")
