"""The parameters of NodeLabelGAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gapgnn.methods.configs.base import Activation, Combination, MethodConfig, option


@dataclass(kw_only=True, eq=False, repr=False)
class NodeLabelGAPConfig(MethodConfig):
    """What may be asked of NodeLabelGAP."""

    level: Literal["node"] = option("node", "what is protected: node (a whole person)")
    own: Literal["nothing", "features", "record"] = option(
        "features",
        "what a prediction reads of its own person without noise: nothing, features, or record "
        "(features and the node's own neighbours, which also vote). Beyond nothing a prediction is "
        "for its own person (joint differential privacy)",
    )
    hop_share: float | Literal["auto"] = option(
        "auto",
        "share of the budget, as 1 / noise squared, of the hop of the training people; auto "
        "follows from public numbers and, unless own is record, from a noisy mean out-degree",
    )
    base_layers: int = option(1, "layers of the network applied to features and to each hop")
    head_layers: int = option(1, "layers of the network applied to the combined blocks")
    hidden: int = option(16, "width of every hidden layer")
    combine: Combination = option("concat", "how features and hops are combined")
    activation: Activation = option("selu", "activation after every hidden layer")
    epochs: int | Literal["auto"] = option(
        "auto", "passes over the training people; auto is 225 steps of DP-SGD"
    )
    batch_size: int | Literal["auto"] = option(
        "auto",
        "expected number of training people per step; auto is 1,024, at least 6 % and at most half "
        "of them",
    )
