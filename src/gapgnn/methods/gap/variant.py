"""Which GAP: what is sent, in how many hops, which networks that takes, and their settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from gapgnn.errors import InputError, check_choice, check_integer
from gapgnn.training import Recipe, resolve_folds

T = TypeVar("T")
OWN = ("nothing", "features", "record")
DEFAULT_DEGREE = 100
# From this budget on, so many hops where labels are sent at edge level: what a rare class says
# travels from its few labelled nodes (docs/research-notes.md).
AMPLE, AMPLE_HOPS = 8.0, 6


@dataclass(frozen=True)
class Variant:
    """The options of GAP that decide its shape, with ``auto`` filled in.

    Attributes:
        level: ``none``, ``edge`` or ``node``.
        messages: ``labels``, ``features`` or ``both``.
        is_progressive: whether a network is trained after every hop.
        hops: number of noisy aggregations.
        has_encoder: whether an encoder is trained on features and labels first.
        max_degree: entries that each list is cut to at node level; None: messages are divided.
        own: what a prediction reads of its own person at node level.
        folds: of the cross-fitted networks that features are read through; 0: stages read features.
    """

    level: str
    messages: str
    is_progressive: bool
    hops: int
    has_encoder: bool
    max_degree: int | None = None
    own: str = "features"
    folds: int = 0

    @classmethod
    def resolve(
        cls,
        *,
        level: str,
        messages: str,
        progressive: bool | str,
        hops: int | str,
        encoder_layers: int,
        max_degree: int | str = "auto",
        own: str = "features",
        folds: int | str = "auto",
        epsilon: float = 0.0,
    ) -> Variant:
        """Fill in ``auto``, and refuse what would send a node its own label.

        At edge level an ample ``epsilon`` pays for more hops.

        >>> Variant.resolve(level="edge", messages="labels", progressive="auto", hops="auto",
        ...                 encoder_layers=2).hops
        4
        """
        check_choice("messages", messages, ("labels", "features", "both"))
        check_choice("own", own, OWN)
        if max_degree != "auto":
            check_integer("max_degree", max_degree, at_least=1)
        check_integer("encoder_layers", encoder_layers, at_least=0)
        is_uncut = level == "node" and messages == "labels" and max_degree == "auto"
        if is_uncut and (progressive == "auto" or not progressive):
            return cls._vote(hops, own, folds)
        is_progressive = messages != "features" if progressive == "auto" else bool(progressive)
        if hops == "auto":
            if messages == "features":
                hops = (4 if level == "node" else 5) if is_progressive else 2
            else:
                hops = 4 if is_progressive and level != "node" else 1
                if hops == 4 and level == "edge" and messages == "labels" and epsilon >= AMPLE:
                    hops = AMPLE_HOPS
        number = check_integer("hops", hops, at_least=1)
        if messages != "features" and not is_progressive and number > 1:
            raise InputError(
                "`hops` must be 1 for label messages without stages: a second hop would bring a "
                f"node's own label back to it. Got {number}. Use progressive=True."
            )
        if encoder_layers == 0 and messages != "labels" and (is_progressive or messages == "both"):
            raise InputError(
                "`encoder_layers` must be at least 1 where codes are sent beside labels or in "
                "stages: stages send codes of another width than raw features. Got 0."
            )
        # Labels need no codes, so at node level the encoder's budget is saved for them.
        has_encoder = encoder_layers > 0 and (messages != "labels" or level != "node")
        can_cross_fit = has_encoder and messages == "labels"
        number_of_folds = resolve_folds(folds, can_cross_fit=can_cross_fit)
        cut = DEFAULT_DEGREE if max_degree == "auto" else int(max_degree)
        return cls(level, messages, is_progressive, number, has_encoder, cut, own, number_of_folds)

    @classmethod
    def _vote(cls, hops: int | str, own: str, folds: int | str) -> Variant:
        """Return the default at node level: degree-normalised label messages, without stages."""
        number, who = 2, "those of the training people, then those of the others"
        if own == "record":
            number, who = 1, "those of the training people, as own lists are read beside it"
        if hops not in ("auto", number):
            raise InputError(
                f"`hops` must be auto or {number} for degree-normalised label messages at level "
                f"node: {who}. Got {hops!r}. Set `max_degree` to cut adjacency lists and train a "
                "network after every hop instead."
            )
        resolve_folds(folds, can_cross_fit=False)
        return cls("node", "labels", False, number, False, None, own)

    @property
    def is_vote(self) -> bool:
        """Whether a person's whole contribution has norm 1, at node level."""
        return self.level == "node" and self.max_degree is None

    @property
    def is_cross_fitted(self) -> bool:
        """Whether stages read features through networks that have not seen the node's label."""
        return self.folds > 0

    @property
    def is_papers(self) -> bool:
        """Whether hops are computed from hops, as in the paper: features, no stages."""
        return self.messages == "features" and not self.is_progressive

    @property
    def reads_codes(self) -> bool:
        """Whether classifiers read hop 0 through the encoder, as in the paper.

        Progressive features at edge level read the features again, where that is free: measured, it
        is worth a point there and nothing elsewhere.
        """
        if self.messages != "features" or self.level == "node":
            return self.has_encoder
        return self.is_papers

    @property
    def phases(self) -> tuple[str, ...]:
        """The trained networks in order; the last one classifies."""
        encoder = ("encoder",) if self.has_encoder else ()
        stages = range(1, self.hops) if self.is_progressive else ()
        return (*encoder, *(f"stage{stage}" for stage in stages), "classifier")

    def phase(self, hop: int) -> str:
        """Return the network that can be trained once a hop is there."""
        return "classifier" if hop == self.hops else f"stage{hop}"


def chosen(value: T | str, default: T) -> T:
    """Return an option with ``auto`` filled in.

    >>> chosen("auto", 16), chosen(64, 16)
    (16, 64)
    """
    return default if value == "auto" else value  # type: ignore[return-value]


# Training nodes that a step reads where labels are sent, and where features are: there it takes
# more steps, which are better smaller (docs/research-notes.md).
STAGE_NODES, FEATURE_STAGE_NODES = 4096, 2048


@dataclass(frozen=True)
class Defaults:
    """What ``auto`` means for one variant.

    The paper's method keeps the paper's settings. Those of the other variants were chosen once, on
    public graphs; nothing is searched on private data at fit time. ``docs/research-notes.md`` has
    the search.

    Attributes:
        hidden: width of hidden layers.
        base_layers: layers of the network applied to each hop.
        activation: after every hidden layer.
        dropout: rate after every hidden layer.
        batches: size of a DP-SGD batch relative to the paper's.
        epochs: relative to the paper's.
        nodes: training nodes that a step reads where training is free; None: all of them.
        ratio: noise multiplier of the aggregation over that of DP-SGD, at epsilon 1.
        exponent: how that ratio changes with epsilon: the aggregation of a large budget gains more
            from a larger share.
    """

    hidden: int = 16
    base_layers: int = 1
    activation: str = "selu"
    dropout: float = 0.0
    batches: int = 1
    epochs: float = 1.0
    nodes: int | None = None
    ratio: float = 1.0
    exponent: float = 0.0

    @classmethod
    def of(cls, variant: Variant) -> Defaults:
        """Return the settings of a variant.

        >>> labels = Variant.resolve(level="edge", messages="labels", progressive="auto",
        ...                          hops="auto", encoder_layers=2)
        >>> Defaults.of(labels).hidden
        32
        """
        is_free = variant.level != "node"
        if variant.is_papers or variant.is_vote:
            return cls()
        if variant.messages == "features":
            return cls(
                base_layers=2,
                activation="tanh",
                dropout=0.2 if is_free else 0.0,
                batches=2,
                epochs=1.5 if is_free else 1.0,
                nodes=FEATURE_STAGE_NODES if is_free else None,
                exponent=-1 / 3,
            )
        if is_free:
            return cls(
                hidden=32, dropout=0.5 if variant.is_cross_fitted else 0.4, nodes=STAGE_NODES
            )
        return cls(batches=8, epochs=4, ratio=0.55, exponent=-1 / 2)

    def aggregation_ratio(self, epsilon: float) -> float:
        """Return the noise multiplier of the aggregation relative to that of DP-SGD.

        >>> Defaults(ratio=0.5, exponent=-0.5).aggregation_ratio(4.0)
        0.25
        """
        return float(self.ratio * epsilon**self.exponent)

    def recipe(
        self, papers: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
    ) -> Recipe:
        """Return the paper's training settings with this variant's batches and epochs.

        What the caller chose stays. A batch is at most a quarter of the training nodes, so that
        small graphs are given enough steps. Where training is free a chosen batch is how many
        training nodes a step reads.
        """
        longer = papers
        if epochs == "auto":
            longer = replace(papers, epochs=round(self.epochs * papers.epochs))
        if self.nodes is not None:
            # More and smaller steps are for graphs of which one reads a part.
            is_small = self.epochs > 1 and num_train <= self.nodes
            whole = papers if is_small else longer
            nodes: int | None = self.nodes
            if batch_size != "auto":
                nodes = papers.batch_size or num_train
            if is_small and (nodes is None or nodes >= num_train):
                nodes = None
            return replace(whole, batch_size=None, nodes=nodes)
        if papers.batch_size is None:
            return longer
        if batch_size == "auto" and self.batches > 1:
            size = min(self.batches * papers.batch_size, max(num_train // 4, papers.batch_size))
            return replace(longer, batch_size=size)
        return longer


# Of the budget: what the first hop may get at most where the lists' length is not asked for.
MOST_SHARE = 0.8


# And at least where own lists are read.
LEAST_SHARE = 0.25


def lesson(epsilon: float, *, num_train: int, num_features: int) -> float:
    """Return how much a network learns from a budget; from 1 on, what own lists say too.

    The more people train and the fewer features there are, the more; all of it is public.

    >>> round(lesson(1.0, num_train=12000, num_features=349), 2)
    1.28
    """
    return num_train * epsilon / (500.0 * math.sqrt(max(1, num_features)))


def record_share(learned: float) -> float:
    """Return the first hop's share of the budget, of 1 / sigma squared, where own lists are read.

    The more a network learns, the less of it that takes. Chosen on the development graphs
    (docs/research-notes.md).

    Args:
        learned: what :func:`lesson` returns.

    >>> record_share(0.01), record_share(0.25), record_share(4.0)
    (0.25, 0.5, 0.8)
    """
    return max(LEAST_SHARE, min(MOST_SHARE, math.sqrt(learned)))


def vote_trust(learned: float) -> float:
    """Return what the votes of own lists count in the scores that a network starts from.

    All where it learns little. Where it learns more it knows better: not all friends are alike, and
    some classes' friends are not. Chosen on the development graphs (docs/research-notes.md).

    Args:
        learned: what :func:`lesson` returns.

    >>> vote_trust(0.1), vote_trust(4.0)
    (1.0, 0.25)
    """
    return min(1.0, 1.0 / learned)


# Of the budget: what the first hop may get, and from how much wanted on. With less of it a hop is
# noise that a network has to read.
SHARES = (0.0, 0.75, 0.9)
WANTED = (0.45, 1.1)
# What it may cost to learn how long lists are: of the budget, and times the number of people. With
# the latter the length is known to 0.07 of a doubling.
LENGTH_SHARE, LENGTH_COST = 0.01, 143.0
# And at least, so that it is never too little to be taken off the budget.
LENGTH_LEAST = 1e-6


def length_epsilon(epsilon: float, num_train: int) -> float:
    """Return what of a budget is spent on how long lists are; less, the more people are counted.

    >>> length_epsilon(1.0, 2000), length_epsilon(1.0, 28600)
    (0.01, 0.005)
    """
    return max(min(LENGTH_SHARE * epsilon, LENGTH_COST / num_train), LENGTH_LEAST * epsilon)


def vote_share(
    epsilon: float, length: float, *, num_train: int, num_features: int, num_classes: int
) -> float:
    """Return the first hop's share of the budget where own lists are not read.

    A sum over a short list says little that its noise does not hide, the more so the more classes
    there are to tell apart, and then the network needs the budget more: what is wanted grows with
    the length of lists too. Chosen on the development graphs (docs/research-notes.md).

    Args:
        epsilon: the budget, in terms of ``add-remove``.
        length: of a list, as released.
        num_train: number of training people, as far as that is public.
        num_features: likewise.
        num_classes: C.

    >>> vote_share(1.0, 57.0, num_train=12000, num_features=349, num_classes=6)
    0.75
    >>> vote_share(1.0, 2.7, num_train=15000, num_features=500, num_classes=3)
    0.0
    """
    told_apart = num_classes * math.sqrt(max(1, num_features))
    wanted = num_train * epsilon * length / (7_500.0 * told_apart)
    return SHARES[sum(wanted >= least for least in WANTED)]
