"""The parameters of LabelGAP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gapgnn.methods.configs.base import (
    EDGE_TYPES,
    Activation,
    Combination,
    MethodConfig,
    option,
    own_piece,
)


@dataclass(kw_only=True, eq=False, repr=False)
class LabelGAPConfig(MethodConfig):
    """What may be asked of LabelGAP, which needs public labels: not at node level."""

    level: Literal["none", "edge"] = option(
        "edge", "what is protected: none, or edge (who is connected to whom)"
    )
    hops: int = option(4, "number K of noisy aggregations, with a classifier after each")
    encoder_layers: int = option(
        2, "layers of the feature models; 0 takes none, and every stage reads the features itself"
    )
    folds: int | Literal["auto"] = option(
        "auto",
        "number of cross-fitting folds of the feature models. Training nodes are scored out of "
        "fold, all other nodes by the ensemble. 0 disables cross-fitting; auto is 4",
    )
    directions: Literal["auto", "along", "both"] = option(
        "auto",
        "whether messages travel along arcs only (along) or also against them (both), on a graph "
        "with directions: one arc then moves two rows, and the noise is larger by a factor of "
        "sqrt(2). auto is both where one arc is protected",
    )
    base_layers: int = option(1, "layers of the network applied to each hop")
    head_layers: int = option(1, "layers of the network applied to the combined hops")
    hidden: int = option(
        32, "width of every hidden layer; the cross-fitted feature models are twice as wide"
    )
    combine: Combination = option("concat", "how the hops are combined")
    activation: Activation = option("selu", "activation after every hidden layer")
    dropout: float | Literal["auto"] = option(
        "auto",
        "dropout rate of the classifiers; auto is 0.5, and 0.4 without cross-fitting. The feature "
        "models have 0.4, or 0.7 where features are many",
    )
    messages: Callable[..., Any] | None = own_piece(
        "messages of your own: a function that declares `norm_bound` and returns a row per node "
        "from public features and labels and released rows; left out: class codes and posteriors"
    )
    edge_types: Literal["auto", "each", "any"] = option(
        "auto", EDGE_TYPES.format(union="is released beside it")
    )
    epochs: int | Literal["auto"] = option(
        "auto",
        "minibatch steps of every classifier; auto is 240, and 60 where training nodes are few. "
        "Feature models take 80, or 60 where features are many, and proportionally more or fewer "
        "where epochs are given",
    )
    batch_size: int | Literal["auto"] = option(
        "auto", "training nodes per minibatch; auto is 1,024, and 4,096 without cross-fitting"
    )
