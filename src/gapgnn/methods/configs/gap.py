"""The parameters of GAP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gapgnn.methods.configs.base import (
    EDGE_TYPES,
    Activation,
    Combination,
    DegreeBoundConfig,
    option,
    own_piece,
)


@dataclass(kw_only=True, eq=False, repr=False)
class GAPConfig(DegreeBoundConfig):
    """What may be asked of GAP; the defaults are those of the paper."""

    hops: int = option(2, "number K of noisy aggregations")
    encoder_layers: int = option(
        2, "layers of the encoder; 0 aggregates the raw features, normalised"
    )
    base_layers: int = option(1, "layers of the network applied to each hop")
    head_layers: int = option(1, "layers of the network applied to the combined hops")
    hidden: int = option(16, "width of every hidden layer and of the encoder's embeddings")
    combine: Combination = option("concat", "how the hops are combined")
    activation: Activation = option("selu", "activation after every hidden layer")
    dropout: float = option(
        0.0, "dropout rate after every hidden layer; 0 at node level, where no other is allowed"
    )
    edge_types: Literal["auto", "each", "any"] = option(
        "auto",
        EDGE_TYPES.format(union="GAP does not release") + ", at node level each: a record holds "
        "its adjacency lists of all types",
    )
    encoder: Callable[..., Any] | None = own_piece(
        "builds an encoder of your own: given the number of features and `hidden`, a torch module "
        "for rows (nodes, features); left out: an MLP"
    )
    classifier: Callable[..., Any] | None = own_piece(
        "builds a classifier of your own: given the widths of hops 0 to K and the number of "
        "classes, a torch module for a list of hops; left out: the paper's"
    )
    noise_ratios: tuple[float, float, float] | None = option(
        None,
        "noise multipliers of encoder, aggregation and classifier relative to each other, at node "
        "level; left out: equal",
    )
