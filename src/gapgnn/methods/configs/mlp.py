"""The parameters of the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gapgnn.methods.configs.base import Activation, MethodConfig, option


@dataclass(kw_only=True, eq=False, repr=False)
class MLPConfig(MethodConfig):
    """What may be asked of the MLP."""

    epsilon: float = option(8.0, "privacy budget at node level")
    layers: int | Literal["auto"] = option(
        "auto", "number of layers, the output layer included; auto is 3, at node level 2"
    )
    hidden: int | Literal["auto"] = option(
        "auto", "width of every hidden layer; auto is 64, and 16 for a single network"
    )
    folds: int | Literal["auto"] = option(
        "auto",
        "number of networks, each trained on all cross-fitting folds but one, with a shallow "
        "network of one hidden layer beside it; 0 is a single network, as in the paper. auto is "
        "4, at node level 0",
    )
    feature_norm: float | Literal["auto"] = option(
        "auto",
        "scale every row of features to this norm and add a column with 0.3 times the logarithm "
        "of 1 + its squared norm, both functions of the row alone; 0 leaves features as they are. "
        "auto is 6 at node level, less for sparse rows where training people are few or the "
        "budget is large, and 0 elsewhere",
    )
    activation: Activation = option("selu", "activation after every hidden layer")
    dropout: float | Literal["auto"] = option(
        "auto",
        "dropout rate after every hidden layer; auto is 0.4, 0.7 where features are many, and 0 "
        "for a single network",
    )
    epochs: int | Literal["auto"] = option(
        "auto",
        "minibatch steps where there are folds, passes over the training nodes otherwise; auto is "
        "80 steps, 60 where features are many, 100 passes for a single network, and at node level "
        "225 steps of DP-SGD",
    )
    batch_size: int | Literal["auto"] = option(
        "auto",
        "training nodes per step; auto is 1,024 where there are folds, all of them for a single "
        "network, and at node level 1,024, at least 6 % and at most half of them",
    )
    weight_decay: float = option(0.0, "L2 penalty; 0 is 0.0005 where there are folds")
