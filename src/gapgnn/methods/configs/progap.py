"""The parameters of ProGAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gapgnn.methods.configs.base import (
    EDGE_TYPES,
    Activation,
    Combination,
    DegreeBoundConfig,
    option,
)


@dataclass(kw_only=True, eq=False, repr=False)
class ProGAPConfig(DegreeBoundConfig):
    """What may be asked of ProGAP."""

    hops: int | Literal["auto"] = option(
        "auto",
        "number K of noisy aggregations, with a classifier after each; auto is 5, at node level 4",
    )
    encoder_layers: int = option(2, "layers of the encoder")
    base_layers: int = option(2, "layers of the network applied to each hop")
    head_layers: int = option(1, "layers of the network applied to the combined hops")
    hidden: int = option(16, "width of every hidden layer and of the embeddings")
    combine: Combination = option("concat", "how the hops are combined")
    activation: Activation = option("tanh", "activation after every hidden layer")
    dropout: float | Literal["auto"] = option(
        "auto",
        "dropout rate after every hidden layer; auto is 0.2, and 0 at node level, where no other "
        "is allowed",
    )
    edge_types: Literal["auto", "each", "any"] = option(
        "auto",
        EDGE_TYPES.format(union="is released beside it") + ", at node level each: a record holds "
        "its adjacency lists of all types",
    )
    noise_ratios: tuple[float, float, float] | None = option(
        None,
        "noise multipliers of encoder, aggregation and classifiers relative to each other, at "
        "node level; left out: 1, epsilon^(-1/3), 1, so that a larger budget favours the hops",
    )
    epochs: int | Literal["auto"] = option(
        "auto",
        "passes over the training nodes per network; auto is 150 steps below node level (100 on "
        "small graphs), at node level 10 passes",
    )
    batch_size: int | Literal["auto"] = option(
        "auto",
        "training nodes per step; auto is 2,048 below node level, at node level 512 to 8,192 by "
        "graph size",
    )
