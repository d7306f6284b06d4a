"""The parameters that all methods share, and how a parameter is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Activation = Literal["selu", "relu", "elu", "gelu", "tanh"]
Combination = Literal["concat", "sum", "max", "mean", "attention"]
Metric = Literal[
    "auto",
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "auc",
    "average_precision",
    "recall_at_top_1_percent",
    "recall_at_top_5_percent",
]

_OWN = "own piece"


def option(default: Any, text: str) -> Any:
    """Declare a parameter with its default and its help text.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     depth: int = option(2, "number of layers")
    >>> Config().depth, help_texts(Config)
    (2, {'depth': 'number of layers'})
    """
    return field(default=default, metadata={"help": text})


def own_piece(text: str) -> Any:
    """Declare a parameter that takes a function of the user's own; the command line has no option.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     encoder: object = own_piece("builds the encoder")
    >>> own_pieces(Config), Config().encoder is None
    (('encoder',), True)
    """
    return field(default=None, metadata={"help": text, _OWN: True})


def own_pieces(config: type) -> tuple[str, ...]:
    """Return the parameters that take a function of the user's own."""
    return tuple(part.name for part in fields(config) if part.metadata.get(_OWN))


def help_texts(config: type) -> dict[str, str]:
    """Return the help text of every parameter of a configuration, by name."""
    return {part.name: part.metadata.get("help", "") for part in fields(config)}


def own_parameters(config: type) -> Iterator[str]:
    """Yield the parameters of a method that not all methods have.

    >>> from gapgnn.methods.configs.gap import GAPConfig
    >>> "combine" in own_parameters(GAPConfig), "epsilon" in own_parameters(GAPConfig)
    (True, False)
    """
    shared = {part.name for part in fields(MethodConfig)}
    return (part.name for part in fields(config) if part.name not in shared)


@dataclass(kw_only=True, eq=False, repr=False)
class ReleaseConfig:
    """The parameters of everything that releases."""

    level: Literal["none", "edge", "node"] = option(
        "edge",
        "what is protected: none, edge (who is connected to whom) or node (a whole person)",
    )
    epsilon: float = option(
        1.0,
        "privacy budget; smaller is more private. Left out where nothing is charged",
    )
    delta: float | Literal["auto"] = option(
        "auto",
        "failure probability, 0 only without Gaussian noise; auto is the largest power of ten that "
        "is at most 1 / (10 times the number of protected entities)",
    )
    relation: str = option(
        "auto",
        "which graphs are neighbours: at edge level undirected (one edge), directed (one arc), or "
        "up to k links of one person: 5-edges, 5-arcs; at node level add-remove or replace. auto "
        "is undirected for a symmetric graph, directed otherwise, and add-remove at node level",
    )
    noise: Literal["safe", "fast"] = option(
        "safe",
        "safe is exact on a fixed grid, for releases; fast is single precision, for experiments",
    )
    insecure_noise_seed: int | None = option(
        None,
        "makes the noise predictable, for tests and tables; the result is then not private and its "
        "card says so",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where to compute")
    ledger: str | Path | None = option(
        None, "the privacy ledger, a file or postgresql://HOST/DATABASE; left out: the user's own"
    )
    reason: str = option("", "why this is released, for the ledger")


@dataclass(kw_only=True, eq=False, repr=False)
class MethodConfig(ReleaseConfig):
    """The parameters of every method."""

    batch_norm: bool | Literal["auto"] = option(
        "auto", "batch normalisation; auto is on except at node level, where it is refused"
    )
    epochs: int | Literal["auto"] = option(
        "auto", "passes over the training nodes; auto is 100, at node level 10"
    )
    batch_size: int | Literal["auto"] = option(
        "auto",
        "training nodes per step; auto is all of them, at node level 256 to 4,096 by graph size",
    )
    learning_rate: float | Literal["auto"] = option(
        "auto",
        "step size of the optimiser; auto is 0.01, at node level less where training people are "
        "few and the budget is large",
    )
    weight_decay: float = option(0.0, "L2 penalty")
    optimizer: Literal["adam", "sgd"] = option("adam", "optimiser")
    clip: float = option(1.0, "largest gradient norm of one example in DP-SGD, at node level")
    class_weight: str | Sequence[float] | Mapping[str, float] | None = option(
        None,
        "balanced, or the weight of each class, by name or in order: high=10,low=1. Methods that "
        "send class posteriors, and cross-fitted networks, train without weights, and their "
        "answers are shifted by the logarithms of the weights; other networks weigh the loss. At "
        "node level weights scale clipped gradients, and balanced needs the rates of the classes "
        "declared in the schema",
    )
    threshold: float | Literal["auto", "rate", "prior"] | None = option(
        None,
        "of two classes, the probability from which the second is answered. prior is its rate, "
        "declared in the schema or below node level counted among training nodes. Not at node "
        "level: auto is the best balanced accuracy, or the named metric, on validation nodes, and "
        "rate the probability that as many nodes exceed as are of the second class. Left out: the "
        "more probable class",
    )
    metric: Metric = option(
        "auto",
        "figure that decisions on validation labels follow: epoch, mixing weight and automatic "
        "threshold. auto is weighted accuracy for the epoch, log loss for the mixing weight and "
        "balanced accuracy for the threshold. Not at node level, where nothing is chosen by labels",
    )
    positive: str | None = option(
        None,
        "name of the class that is looked for, for average precision and the figures of the top "
        "1 % and 5 %; left out: the rarest, by rates declared in the schema or among training "
        "nodes",
    )
    train_size: int | Literal["auto"] = option(
        "auto",
        "number of training people that is made public at node level, where the sampling rate and "
        "the number of steps of DP-SGD follow from it; auto is their number rounded to two digits",
    )
    repeats: int = option(
        1,
        "independent models trained together; each is charged. The first is the model",
    )
    split: Literal["fresh", "fixed"] = option(
        "fresh", "whether repeats after the first draw fresh splits or keep the graph's own"
    )
    seed: int = option(0, "of splits, initial weights and shuffling; never of noise")


# How networks are trained, of the parameters that all methods share.
TRAINING = (
    "batch_norm",
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "optimizer",
    "class_weight",
    "metric",
)
EDGE_TYPES = (
    "what is hidden where there are several edge types (calls and payments, say): any hides one "
    "edge of one type, as with one table, and a hop is charged for that type's sum and for the "
    "sum over the union of the types, which {union}; each hides one edge of every type at once, "
    "and every type's sum is charged. auto is any"
)


@dataclass(kw_only=True, eq=False, repr=False)
class DegreeBoundConfig(MethodConfig):
    """The parameters of methods that cut adjacency lists at node level."""

    max_degree: int = option(
        100, "neighbours D that each adjacency list is cut to at node level, by a keyed hash"
    )
    notion: Literal["own", "strict"] = option(
        "own",
        "of a withdrawn person at node level: own (the person's record goes, the adjacency lists "
        "of others stay) or strict (every mention goes too), which is refused where it cannot be "
        "promised",
    )
