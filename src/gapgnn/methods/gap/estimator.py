"""GAP: graph neural networks with aggregation perturbation, at three levels of privacy."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, induced, with_absent
from gapgnn.methods import EdgeReader, ReleasedHops, Run, Unused, choose_device
from gapgnn.methods.gap.codes import ClassPrior
from gapgnn.methods.gap.new_people import NewPeople
from gapgnn.methods.gap.propagation import MEMBERS, First, Propagation, blocks_read
from gapgnn.methods.gap.record import OwnLists
from gapgnn.methods.gap.variant import (
    MOST_SHARE,
    SHARES,
    Defaults,
    Variant,
    chosen,
    length_epsilon,
    lesson,
    record_share,
    vote_share,
    vote_trust,
)
from gapgnn.methods.gap.votes import Votes, padded, vote_width
from gapgnn.nn import COMBINATIONS, Encoded, Encoder, LinearBySize, MultiHopClassifier
from gapgnn.privacy import (
    Guarantee,
    Neighbors,
    OutDegreeNormalized,
    Symmetrized,
    aggregation_ratio,
    links_of,
    parse_relation,
    resolve_kinds,
    resolve_relation,
)
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, gaussian_shift
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.privacy.mechanisms import PrivateAggregation, kind_aggregations, noisy_list_length
from gapgnn.rng import NoiseKey
from gapgnn.training import (
    FEATURE_WIDTH,
    CrossFit,
    FeatureInputs,
    FeatureNetworks,
    HopInputs,
    Inputs,
    Recipe,
    RowScale,
    Splits,
    Trainer,
    Voices,
    features_read,
    is_dealt,
    node_recipe,
    public_training,
    row_by_row,
    shallow_networks,
    some_nodes_recipe,
)

# Who is in a release at node level, and the one that training people are not in.
TRAINING = "training"
OF_OTHERS = "aggregation by the others"
HOPS = ("aggregation", OF_OTHERS)
LENGTH = "length of lists"
# Networks that read features.
OF_FEATURES = ("encoder", "shallow")
# Where own lists are read: who sent a label is taken out of what that person reads.
_HASHED_ROLES = ("where roles come from", "a public hash of (seed, id)")
_GIVEN_ROLES = ("where roles come from", "given with the records")


@dataclass(kw_only=True, eq=False, repr=False)
class GAP(EdgeReader):
    """Node classifier that reads the edges only through K noisy aggregations.

    In the paper's method (``messages="features"``) an encoder is trained on features and labels;
    its unit-normalised codes are summed over the neighbours, perturbed and normalised K times; a
    classifier is trained on hops 0 to K. By default nodes send class labels instead, in stages:
    at the same epsilon this is far more accurate wherever neighbours are alike. At edge level only
    the aggregations are charged. At node level every network is trained by DP-SGD, every out-list
    is cut to ``max_degree`` entries, and all of it is charged together
    (privacy page, sections 1 to 3). Predictions on the training graph are free: the cached hops
    answer. Predicting on another graph releases its hops once and charges that graph, and every
    earlier graph it shares nodes with.

    Parameters that all methods share are those of :class:`~gapgnn.methods.NodeClassifier`.

    Args:
        messages: what nodes send along the edges: labels (class codes of the training labels, and
            class posteriors of the other nodes), features (the encoder's codes, as in the paper) or
            both.
        max_degree: entries D that each list is cut to at node level, as in the paper; auto: for
            labels none, what a person sends is divided by the root of the list's length instead, so
            that all of it has norm 1; otherwise 100.
        own: what a prediction reads of its own person at node level without noise: nothing,
            features, or record (features and own list, which also votes). Beyond nothing, a
            prediction is for its own person (docs/privacy.md, section 1). At edge level it is
            chosen at prediction.
        progressive: train a classifier after every hop and send what it says in the next one; auto
            is on for labels and both, off for features (on is ProGAP).
        hops: number K of noisy aggregations; auto is 2 for features, 5 for progressive features (4
            at node level), 4 for labels and both (for labels at edge level 6 from epsilon 8 on),
            and 1 for them at node level or without stages. Where labels are sent in the default way
            at node level it is 2, or 1 where own is record, and no other number is possible.
        encoder_layers: layers of the encoder; 0 sends the raw features, normalised. Not where
            labels are sent in the default way at node level, which takes no encoder.
        folds: of the networks that features are read through where labels are sent, below node
            level: a training node is told by the network that has not seen it, everybody else by
            all. Beside each stands a shallow one, and up to 4,000 training nodes a linear one. auto
            is 4; 0 lets every stage read the features itself.
        directions: whether messages travel along arcs only (along) or also against them (both), at
            edge level on a graph with directions: one arc then moves two rows, and the noise is
            larger by a factor of sqrt(2). auto is both for labels where one arc is protected.
        base_layers: layers of the network applied to each hop; auto is 1, 2 for progressive
            features.
        head_layers: layers of the network applied to the combined hops.
        hidden: width of every hidden layer and of the codes; auto is 16, 32 for labels and both
            except at node level. The cross-fitted networks that read features are twice as wide.
        kinds: what is hidden where there are several kinds of edges (calls and payments, say): any
            hides one edge of one kind, whichever, as with one table, and a hop is charged for that
            kind's sum and for the total of all kinds, which it also releases except in the paper's
            method; each hides one edge of every kind at once, and every kind's sum is charged. auto
            is any, at node level each: a record holds its lists of all kinds.
        combine: how the hops are combined.
        activation: activation after every hidden layer; auto is selu, tanh for progressive
            features.
        dropout: dropout rate after every hidden layer; auto is 0 for the paper's method and at node
            level, where no other rate is allowed, otherwise 0.2 for features, 0.4 for both and 0.5
            for labels. The cross-fitted networks that read features have 0.4, or 0.7 where these
            are many, whatever is chosen.
        epochs: passes over the training nodes per phase; auto is 100, at node level 10, there 40
            for labels and both, and 225 steps where labels are sent in the default way. Where
            labels are sent below node level, steps over some of them, and auto is 240, 60 where
            training nodes are few; the networks that read features take 80, or 60 where features
            are many, and as many in proportion where epochs are chosen.
        batch_size: training nodes per step; auto is all of them, below node level 1,024 where
            labels are sent, 4,096 for both and 2,048 for progressive features; at node level 256 to
            4096 by graph size, there twice that for progressive features and eight times for labels
            and both; where labels are sent in the default way 1,024, at least 6 % and at most half
            of them.
        optimizer: optimiser of both phases.
        hop_share: how much of the budget the hop of the training people gets at node level where
            labels are sent in the default way, as a share of 1 / noise squared; auto follows from
            public numbers and, where own lists are not read, from a noisy length of lists.
        noise_ratios: noise multipliers of encoder, aggregation and classifiers relative to each
            other, at node level; left out: equal for the paper's method; the other variants
            give the aggregation more of the budget the larger it is.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> model = GAP(level="edge", epsilon=4.0, epochs=5).fit(graph)
    >>> model.predict(graph).shape
    (300,)
    """

    method: ClassVar[str] = "gap"
    _keeps_releases: ClassVar[bool] = True
    _as_in_0_1: ClassVar[Mapping[str, Any]] = {"folds": 0, "directions": "along"}
    # Decided on the way, at node level; without an annotation, so that it is no parameter.
    _has_hops = True
    # Whether training nodes were chosen by the public hash, or given with the records; None: this
    # model was neither fitted here nor loaded from a folder that says so.
    _split_by_hash = cast("bool | None", None)

    # What class codes are centred at; None: nothing was fitted, or no class is sent.
    _prior = cast("ClassPrior | None", None)

    messages: Literal["labels", "features", "both"] = "labels"
    max_degree: int | Literal["auto"] = "auto"
    own: Literal["nothing", "features", "record"] = "features"
    progressive: bool | Literal["auto"] = "auto"
    hops: int | Literal["auto"] = "auto"
    encoder_layers: int = 2
    folds: int | Literal["auto"] = "auto"
    directions: Literal["auto", "along", "both"] = "auto"
    base_layers: int | Literal["auto"] = "auto"
    head_layers: int = 1
    hidden: int | Literal["auto"] = "auto"
    kinds: Literal["auto", "each", "any"] = "auto"
    combine: Literal["concat", "sum", "max", "mean", "attention"] = "concat"
    activation: Literal["auto", "selu", "relu", "elu", "gelu", "tanh"] = "auto"
    dropout: float | Literal["auto"] = "auto"
    hop_share: float | Literal["auto"] = "auto"
    noise_ratios: tuple[float, float, float] | None = None

    def _check_parameters(self) -> None:
        defaults = Defaults.of(self._variant())
        check_integer("base_layers", chosen(self.base_layers, defaults.base_layers), at_least=1)
        check_integer("head_layers", self.head_layers, at_least=1)
        check_integer("hidden", chosen(self.hidden, defaults.hidden), at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        resolve_kinds(self.level, self.kinds)
        if self.hop_share != "auto":
            check_number("hop_share", self.hop_share, above=0, below=1)
        check_choice("directions", self.directions, ("auto", "along", "both"))
        if self.directions == "both" and self.level == "node":
            raise InputError(
                "`directions` must be auto or along at level node: a list is its owner's, and what "
                "others write about a person is theirs. Got 'both'."
            )
        if self.noise_ratios is not None and len(self.noise_ratios) != 3:
            raise InputError(f"`noise_ratios` must be three numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios or ():
            check_number("noise_ratios", ratio, above=0)
        variant = self._variant()
        has_spare = self.level == "node" and not variant.is_vote and not variant.has_encoder
        if has_spare and self.noise_ratios is not None and self.noise_ratios[0] != 1:
            raise InputError(
                "`noise_ratios` must start with 1 where no encoder is trained: it is the encoder's "
                f"noise. Got {self.noise_ratios!r}."
            )

    def _unused(self) -> Iterator[Unused]:
        yield from super()._unused()
        variant, at = self._variant(), f"at level {self.level}"
        if variant.is_vote:
            normalised = "for degree-normalised label messages at level node"
            yield Unused(("encoder_layers",), f"{normalised}: there is no encoder")
            yield Unused(("noise_ratios",), f"{normalised}: use `hop_share`")
            if self.own == "nothing":
                yield Unused(("combine",), "with `own=nothing`: there is one block to read")
        else:
            unless = (
                "unless labels are sent at level node and `max_degree` and `progressive` are auto"
            )
            later = "; at level edge it is chosen at prediction" if self.level == "edge" else ""
            yield Unused(("own",), unless + later)
            yield Unused(("hop_share",), unless)
            base = chosen(self.base_layers, Defaults.of(variant).base_layers)
            is_hidden = base >= max(self.encoder_layers, type(self).encoder_layers)
            if self.level == "node" and not variant.has_encoder and is_hidden:
                yield Unused(("encoder_layers",), "where no encoder is trained: use `base_layers`")
        if self.level != "node":
            yield Unused(("noise_ratios",), f"{at}: networks are trained with noise at level node")
        if self.level == "none":
            yield Unused(("kinds",), f"{at}: nothing is protected", ("any",))

    def _unused_on(self, graph: Graph) -> Iterator[Unused]:
        yield from super()._unused_on(graph)
        if not graph.is_directed:
            yield Unused(("directions",), "on a graph without directions", ("along",))
        if len(graph.kinds) == 1:
            yield Unused(("kinds",), "with one edge type", (resolve_kinds(self.level),))

    def _check_edges(self, graph: Graph) -> None:
        """Any edges will do, with weights and of several kinds; own lists name people with a row.

        What v reads of its own list must not change when somebody on it leaves, and for as long as
        the model is used: so whoever withdraws keeps a row, without a record (privacy page,
        section 1).
        """
        if self._variant().is_vote and any(kind.is_weighted for kind in graph.kinds):
            raise PrivacyError(
                "edges must have no amounts where messages are divided by the root of their list: "
                "how heavy an entry was that names somebody without a row is not kept, and it must "
                "not change when that person leaves. Set max_degree to cut lists instead, or leave "
                "out the amounts."
            )
        reads_lists = self.own == "record" and self.level == "node"
        if reads_lists and (missing := sum(kind.num_dangling for kind in graph.kinds)):
            raise PrivacyError(
                f"own=record needs a row for everybody on a list. Got {missing} entries that name "
                "somebody without one. Keep a row with empty cells for people who withdrew; leave "
                "out entries that name nobody of yours."
            )

    def _resolved_values(self) -> dict[str, Any]:
        return {
            "variant": asdict(self._variant()),
            "noise_ratios": list(self._ratios()),
            "edge_types": self._protected_types(),
            "symmetrised": self.goes_both_ways(is_directed=True),
            "split_by_hash": self._was_split_by_hash(),
            "class_weights": self._answer_weights,
            "class_prior": None if (prior := self._class_prior()) is None else prior.to_dict(),
        }

    def _weighs_answers(self) -> bool:
        # What is sent of a class is a posterior, which a weighted loss would move.
        return self.level != "node" and self.messages != "features"

    def _stated_again(self) -> list[tuple[str, Any, Any]]:
        # Degree-normalised hops take their noise from the card itself.
        return [] if self._variant().is_vote else super()._stated_again()

    def _variant(self) -> Variant:
        if self._resolved_at_save is not None:
            return Variant(**self._resolved_at_save["variant"])
        return Variant.resolve(
            level=self.level,
            messages=self.messages,
            progressive=self.progressive,
            hops=self.hops,
            encoder_layers=self.encoder_layers,
            max_degree=self.max_degree,
            own=self.own,
            folds=self.folds,
            epsilon=self.epsilon,
        )

    def _list_bound(self) -> int | None:
        return self._variant().max_degree

    def _people_of(self, graph: Graph) -> NDArray[Any]:
        # Everybody who stands in a list has a row.
        return with_absent(graph).ids if self._variant().is_vote else graph.ids

    def _ratios(self) -> tuple[float, float, float]:
        """Return the relative noise multipliers of encoder, aggregation and classifiers."""
        if self._resolved_at_save is not None:
            encoder, aggregation, classifiers = self._resolved_at_save["noise_ratios"]
            return encoder, aggregation, classifiers
        if self.noise_ratios is not None:
            return self.noise_ratios
        return (1.0, Defaults.of(self._variant()).aggregation_ratio(self.epsilon), 1.0)

    def _row_scale(self, num_train: int, worth: float = 0.0) -> RowScale | None:
        if not self._variant().is_vote:
            return None
        # Whose own list says more than the own features need not be spared their noise.
        return RowScale.suited(sys.maxsize if self.own == "record" else num_train, worth)

    def _learns_features(self) -> bool:
        return self._variant().is_vote and self.own == "features"

    def _recipe(self, num_train: int) -> Recipe:
        if self._variant().is_vote:
            papers, given = super()._recipe(num_train), (self.epochs, self.batch_size)
            return node_recipe(papers, num_train, epochs=given[0], batch_size=given[1])
        papers = super()._recipe(num_train)
        if self._variant().is_cross_fitted:
            return some_nodes_recipe(
                papers, num_train, epochs=self.epochs, batch_size=self.batch_size
            )
        return Defaults.of(self._variant()).recipe(
            papers, num_train, epochs=self.epochs, batch_size=self.batch_size
        )

    def _num_hops(self) -> int:
        return self._variant().hops

    def _protected_types(self) -> str:
        """Return whether neighbours differ in one edge type (``any``) or in all (``each``)."""
        if self._resolved_at_save is not None:
            return str(self._resolved_at_save["edge_types"])
        return resolve_kinds(self.level, self.kinds)

    def _events_per_hop(self, num_kinds: int) -> int:
        """Return the events of one hop along all kinds of edges (privacy page, section 2).

        Under ``each``, and at node level, neighbours differ in every kind. Under ``any`` they
        differ in one kind, and the sums of the others are the same: one event, and one more where
        the total over all kinds is released.
        """
        if self._protected_types() == "each":
            return num_kinds
        return 1 + self.releases_total(num_kinds)

    def releases_total(self, num_kinds: int) -> bool:
        """Return whether a hop releases the total over all kinds of edges beside each of them.

        Where the same message travels along all of them, and one edge of one kind is hidden: it
        costs as much as that kind's sum, however many kinds there are. Not under ``k-arcs``: arcs
        of several kinds may end in one row of a total, which would need so much more noise that
        the kinds' sums, with a budget to themselves, say as much.
        """
        is_any = self._protected_types() == "any"
        if num_kinds <= 1 or not is_any or self.level != "edge" or self._variant().is_papers:
            return False
        links = None if self.relation == "auto" else links_of(self.relation)
        return links is None or links.count == 1 or not links.are_arcs

    def _hop_ratio(self, relation: str) -> float:
        return self._ratios()[1] * aggregation_ratio(relation) if self.level == "node" else 1.0

    def goes_both_ways(self, *, is_directed: bool) -> bool:
        """Return whether messages travel along arcs and against them, if there are directions."""
        if self.level == "node" or not is_directed:
            return False
        if self._resolved_at_save is not None:
            return bool(self._resolved_at_save["symmetrised"])
        if self.directions != "auto":
            return self.directions == "both"
        # For more than one arc the noise would have to grow by more than a factor of sqrt(2).
        protects_one_arc = self.relation in ("auto", "directed")
        return self._variant().is_cross_fitted and protects_one_arc

    def _training_ratio(self, phase: str) -> float:
        """Return the noise multiplier of a phase of DP-SGD relative to the free one."""
        return self._ratios()[0 if phase == "encoder" else 2]

    def _template(self, graph: Graph) -> Sequence[Event]:
        """At edge level K hops; at node level also the DP-SGD steps of every network."""
        if self.level == "none":
            return ()
        variant = self._variant()
        if variant.is_vote:
            num_train = self._num_train(graph)
            training = self._recipe(num_train).event(num_train, ratio=1.0, label="classifier")
            return (replace(training, group=TRAINING),)
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        count = variant.hops * self._events_per_hop(len(graph.kinds))
        hops = Gaussian(self._hop_ratio(relation), count=count, label="aggregation")
        if self.level == "edge":
            return (hops,)
        num_train = self._num_train(graph)
        recipe = self._recipe(num_train)
        return (
            hops,
            *(
                recipe.event(num_train, ratio=self._training_ratio(phase), label=phase)
                for phase in variant.phases
            ),
        )

    def _resolve(self, graph: Graph) -> Guarantee:
        if not self._asks_length():
            return super()._resolve(graph)
        return Guarantee.one_of(self._length_event(graph), self._options(graph))

    def _begin(self, run: Run) -> None:
        super()._begin(run)
        self._split_by_hash = is_dealt(run.graph, seed=self.seed)
        self._prior = None if self.messages == "features" else self._prior_of(run)

    def _prior_of(self, run: Run) -> ClassPrior:
        """Return the class prior of a fit: at node level no label decides it (section 2)."""
        if self.level != "node":
            return ClassPrior.counted(run.graph.labels, run.splits.train, self.num_classes_)
        label = None if run.graph.schema is None else run.graph.schema.label
        rates = None if label is None else label.rates
        return ClassPrior.declared(rates, classes=self.num_classes_, repeats=run.repeats)

    def _class_prior(self) -> ClassPrior | None:
        """Return the prior of the fit, on whichever graph the model predicts."""
        return self._prior

    def _check_resolved(self, values: Mapping[str, Any]) -> None:
        super()._check_resolved(values)
        self._prior = ClassPrior.from_dict(values.get("class_prior"), self.num_classes_)

    def _keep_first_repeat(self) -> None:
        super()._keep_first_repeat()
        self._prior = None if self._prior is None else self._prior.first()

    def _asks_length(self) -> bool:
        """Whether a noisy length of lists decides what the hop gets."""
        is_open = self.own == "features" and self.hop_share == "auto"
        return is_open and self._variant().is_vote

    def _length_event(self, graph: Graph) -> Laplace:
        """Return what it costs to learn how long lists are, by which the rest is shared out."""
        return Laplace(1 / self._length_epsilon(graph), label=LENGTH)

    def _length_epsilon(self, graph: Graph) -> float:
        return length_epsilon(self.epsilon, self._num_train(graph))

    def _options(self, graph: Graph) -> list[Guarantee]:
        """Return what may be released once the length of lists is known, one for each share."""
        epsilon = self.epsilon - self._length_epsilon(graph)
        return [
            Guarantee.resolve(
                graph,
                self._template(graph),
                level=self.level,
                relation=self.relation,
                epsilon=epsilon,
                delta=self.delta,
                fixed=partial(self._hops_within, graph, epsilon, share),
            )
            for share in SHARES
        ]

    def _noise_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[tuple[str, float]]:
        if not any(event.label == LENGTH for event in guarantee.events):
            return super()._noise_to_draw(graph, guarantee)
        drawn = super()._noise_to_draw
        return [noise for option in self._options(graph) for noise in drawn(graph, option)]

    def _hops_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[PrivateAggregation]:
        if not self._variant().is_vote:
            return super()._hops_to_draw(graph, guarantee)
        key, cpu = NoiseKey.insecure(0), torch.device("cpu")
        training, others = self._vote_hops(graph, guarantee, [key], cpu)
        return [*training, *others]

    def _fixed(self, graph: Graph, relation: str, delta: float) -> Sequence[Event]:
        """With divided messages, the hops."""
        if not self._variant().is_vote:
            return ()
        share = MOST_SHARE
        if self.hop_share != "auto":
            share = self.hop_share
        elif self.own == "record":
            share = record_share(self._lesson(graph, relation))
        return self._hops_within(graph, self.epsilon, share, relation, delta)

    def _lesson(self, graph: Graph, relation: str) -> float:
        num_train, num_features = self._num_train(graph), graph.num_features
        return lesson(self._worth(relation), num_train=num_train, num_features=num_features)

    def _hops_within(
        self, graph: Graph, epsilon: float, share: float, relation: str, delta: float
    ) -> Sequence[Event]:
        """Return the hops of the training people, at a share of a budget, and of the others.

        Groups compose in parallel (privacy page, section 1): the hop of the others may cost the
        whole of it.
        """
        if not share:
            return ()
        # A little less than the budget, so that rounding cannot end above it.
        least = math.sqrt(len(graph.kinds)) / gaussian_shift(epsilon * (1 - 1e-6), delta)
        return self._hop_events(least / math.sqrt(share), least, len(graph.kinds))

    def _hop_events(self, training: float, others: float, count: int) -> tuple[Event, ...]:
        hops = (Gaussian(training, count=count, label="aggregation", group=TRAINING),)
        if self._variant().hops == 1:
            return hops
        return (*hops, Gaussian(others, count=count, label=OF_OTHERS, group="others"))

    def _build(self, repeats: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        variant = self._variant()
        if variant.is_vote:
            return self._build_vote(variant, repeats, num_features, num_classes)
        defaults, reads_codes = Defaults.of(variant), variant.reads_codes
        hidden = chosen(self.hidden, defaults.hidden)
        base_layers = chosen(self.base_layers, defaults.base_layers)
        shared: dict[str, Any] = {
            "hidden": hidden,
            "activation": chosen(self.activation, defaults.activation),
            "batch_norm": self._uses_batch_norm(),
            "dropout": chosen(self.dropout, defaults.dropout),
        }
        is_cross_fitted = variant.is_cross_fitted
        first = hidden if reads_codes and variant.has_encoder else num_features
        if is_cross_fitted:
            first = num_classes
        is_encoded = reads_codes or is_cross_fitted
        sent = {"labels": num_classes - 1, "features": hidden}
        sent["both"] = sent["labels"] + sent["features"]
        width = sent[self.messages] + 1
        if variant.is_papers:
            width = first
        # Fitted models know the kinds; before the first fit only whether it can be built counts.
        width *= blocks_read(len(self.edges_.kinds) or 1) if hasattr(self, "edges_") else 1
        modules: dict[str, nn.Module] = {}
        for phase in variant.phases:
            if phase == "encoder":
                modules |= self._build_readers(variant, repeats, num_features, num_classes, shared)
                continue
            hops = variant.hops if phase == "classifier" else int(phase.removeprefix("stage"))
            if is_cross_fitted:
                hops = 1
            modules[phase] = MultiHopClassifier(
                repeats * MEMBERS if is_cross_fitted else repeats,
                [first, *[width] * hops],
                num_classes,
                first_layers=base_layers if is_encoded else max(self.encoder_layers, base_layers),
                base_layers=base_layers,
                head_layers=self.head_layers,
                combine=self.combine,
                has_embedding=variant.is_progressive and self.messages != "labels",
                corrects_first=is_cross_fitted,
                **shared,
            )
        return modules

    def _build_readers(
        self,
        variant: Variant,
        repeats: int,
        num_features: int,
        num_classes: int,
        shared: Mapping[str, Any],
    ) -> dict[str, nn.Module]:
        """Build the networks that read features: an encoder, or several kinds that cross-fit."""
        count, layers, own = repeats * max(1, variant.folds), self.encoder_layers, dict(shared)
        if not variant.is_cross_fitted:
            return {"encoder": Encoder(count, num_features, num_classes, layers=layers, **own)}
        # As wide in proportion, and with a dropout of their own.
        own["hidden"] = round(FEATURE_WIDTH * own["hidden"] / Defaults.of(variant).hidden)
        own["dropout"] = FeatureNetworks.suited(0, num_features).dropout
        readers: dict[str, nn.Module] = {
            "encoder": Encoder(count, num_features, num_classes, layers=layers, **own)
        }
        readers["shallow"] = shallow_networks(
            count,
            num_features,
            num_classes,
            hidden=own["hidden"],
            batch_norm=own["batch_norm"],
            dropout=own["dropout"],
        )
        readers["linear"] = LinearBySize(count, num_features, num_classes)
        return readers

    def _build_vote(
        self, variant: Variant, repeats: int, num_features: int, num_classes: int
    ) -> dict[str, nn.Module]:
        kinds = len(self.edges_.kinds) or 1 if hasattr(self, "edges_") else 1
        # As wide for any number of training nodes.
        own = features_read(num_features, self._row_scale(0))
        widths = [] if variant.own == "nothing" else [own]
        if self._reads_hops():
            widths.append(vote_width(num_classes, kinds, variant.own))
        defaults = Defaults.of(variant)
        classifier = MultiHopClassifier(
            repeats,
            widths,
            num_classes,
            first_layers=chosen(self.base_layers, defaults.base_layers),
            base_layers=chosen(self.base_layers, defaults.base_layers),
            head_layers=self.head_layers,
            hidden=chosen(self.hidden, defaults.hidden),
            combine=self.combine,
            has_embedding=False,
            activation=chosen(self.activation, defaults.activation),
            batch_norm=False,
            dropout=0.0,
            corrects_votes=variant.own == "record",
        )
        return {"classifier": classifier}

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        if self._variant().is_vote:
            return self._train_vote(run, charge)
        graph, device = run.graph, run.device
        modules = self._start_modules(run)
        features = FeatureInputs(graph, device)
        trainer = self._trainer(run)
        propagation = self._propagation(graph)

        def fit(phase: str, inputs: Inputs) -> None:
            name = "encoder" if phase in OF_FEATURES else "classifier"
            with run.timed(name):
                network, private = modules[phase], self._private(run, self._training_ratio(phase))
                fitting = self._trainer_of(phase, trainer, propagation)
                train = partial(fitting.fit, network, inputs, phase=phase, private=private)
                run.journal.trained(phase, network, train)

        for phase in OF_FEATURES:
            if phase in modules:
                fit(phase, features)
        if propagation.crossfit is not None:
            with run.timed("encoder"):
                linear = Voices.of(modules, "encoder").linear
                propagation.crossfit.solve(linear, trainer, features)
        run.callback.start("aggregation", propagation.variant.hops)
        start, trained = time.perf_counter(), run.seconds.get("classifier", 0.0)
        first, released = propagation.run(
            [
                run.journal.hops(one)
                for one in self._aggregations(graph, run.guarantee, run.keys, device)
            ],
            features,
            trainer.labels,
            torch.from_numpy(run.splits.train).to(device),
            fit=fit,
            validates=torch.from_numpy(run.splits.val).to(device),
            criterion=self._criterion(run.graph),
            on_hop=lambda: run.callback.advance("aggregation"),
        )
        trained = run.seconds["classifier"] - trained
        run.seconds["aggregate"] = time.perf_counter() - start - trained
        with torch.no_grad():
            scores = propagation.scores("classifier", first, released)
        self._remember(graph, charge, first, released)
        return scores

    def _trainer_of(self, phase: str, trainer: Trainer, propagation: Propagation) -> Trainer:
        """Return the trainer of a phase: a repeat has several networks where they cross-fit."""
        if propagation.crossfit is None:
            return trainer
        if phase in OF_FEATURES:
            return propagation.crossfit.trainer(
                trainer,
                self.modules_[phase],
                self.num_features_,
                dropout="auto",
                epochs=self._feature_steps(trainer),
            )
        splits = (trainer.splits.train, trainer.splits.val, trainer.splits.test)
        return replace(trainer, splits=Splits(*(mask.repeat(MEMBERS, axis=0) for mask in splits)))

    def _feature_steps(self, trainer: Trainer) -> int | Literal["auto"]:
        """Return the steps of the networks that read features, in proportion to the stages'."""
        if self.epochs == "auto":
            return "auto"
        usual = some_nodes_recipe(
            trainer.recipe, trainer.num_train, epochs="auto", batch_size="auto"
        )
        suited = FeatureNetworks.suited(trainer.num_train, self.num_features_)
        return max(1, round(suited.steps * self.epochs / usual.epochs))

    def _reads_hops(self) -> bool:
        """Whether hops are released: with lists too short for the budget none are."""
        if "card_" in self.__dict__:
            return any(event["label"] == HOPS[0] for event in self.card_.events)
        return self._has_hops

    def _train_vote(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        everybody = with_absent(graph)
        if self._asks_length():
            run.guarantee = self._chosen_option(run)
            self.noise_multiplier_ = run.guarantee.noise_multiplier
        self._has_hops = any(event.label == HOPS[0] for event in run.guarantee.events)
        if self._has_hops:
            self.row_scale_ = self._row_scale(self._num_train(graph))
        modules = self._start_modules(run)
        features = FeatureInputs(graph, device, scale=self.row_scale_)
        trainer = self._trainer(run)
        training, others = self._vote_hops(everybody, run.guarantee, run.keys, device)
        mask = torch.from_numpy(run.splits.train).to(device)
        votes = self._votes(everybody, graph.num_nodes, mask, training[0].std if training else 0.0)
        run.callback.start("aggregation", self._variant().hops)
        on_hop = partial(run.callback.advance, "aggregation")
        with run.timed("aggregate"), torch.no_grad():
            if training and everybody.num_nodes > graph.num_nodes:
                # Who else stands in lists is not public, so their rows are not written. The second
                # hop reads them: all hops are one step, drawn together or not at all.
                def draw() -> dict[str, Tensor]:
                    hops = votes.run(training, others, on_hop=on_hop)
                    return {f"hop-{k}": hop[:, : graph.num_nodes] for k, hop in enumerate(hops)}

                kept = run.journal.drawn("hops", draw)
                released = [kept[f"hop-{k}"].to(device) for k in range(len(kept))]
            else:
                released = votes.run(
                    [run.journal.hops(one) for one in training],
                    [run.journal.hops(one) for one in others],
                    on_hop=on_hop,
                )
            inputs = votes.inputs(features, released)
        classifier, private = modules["classifier"], self._private(run)
        if self.own == "record":
            assert isinstance(classifier, MultiHopClassifier)
            classifier.trust.fill_(vote_trust(self._lesson(graph, run.guarantee.relation)))
        with run.timed("classifier"):
            train = partial(trainer.fit, classifier, inputs, phase="classifier", private=private)
            run.journal.trained("classifier", classifier, train)
            with torch.no_grad():
                scores: Tensor = classifier(inputs.all())
        self._keep(graph, charge, released)
        return scores

    def _chosen_option(self, run: Run) -> Guarantee:
        """Release how long lists are, and return the option that follows from it.

        One number for all repeats, that of the first.
        """
        graph, first = run.graph, self._length_event(run.graph)
        num_train = self._num_train(graph)

        def draw() -> dict[str, Tensor]:
            lengths = sum(kind.out_degrees for kind in graph.kinds)
            length = noisy_list_length(
                np.asarray(lengths)[run.splits.train[0]],
                num_people=num_train,
                epsilon=self._length_epsilon(graph),
                key=run.keys[0].derive("length of lists"),
                noise=self.noise,
            )
            return {"length": torch.tensor(length, dtype=torch.float64)}

        length = float(run.journal.drawn("length", draw)["length"])
        worth = self._worth(run.guarantee.relation)
        share = vote_share(
            worth,
            length,
            num_train=num_train,
            num_features=graph.num_features,
            num_classes=self.num_classes_,
        )
        return self._options(graph)[SHARES.index(share)].after(first, run.guarantee)

    def _keep(
        self, graph: Graph, charge: Charge | None, released: Sequence[Tensor]
    ) -> ReleasedHops:
        """Keep the rows of whoever has a record: who else stands in lists is not public."""
        kept = tuple(hop[0, : graph.num_nodes].detach().clone() for hop in released)
        return self.releases_.add(graph, charge, kept, has_hop_zero=False)

    def _votes(self, everybody: Graph, present: int, sends: Tensor, std: float) -> Votes:
        sends = padded(sends, everybody.num_nodes)
        prior = None if (found := self._class_prior()) is None else found.tensor()
        return Votes(everybody, present, self.num_classes_, self.own, sends, std, prior)

    def _vote_hops(
        self,
        everybody: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
    ) -> tuple[list[PrivateAggregation], list[PrivateAggregation]]:
        """Return the noisy hops of the training people and of the others, for each kind of edges.

        Messages are divided, so that all that one person sends has norm at most 1: sensitivity 1,
        or 2 under ``replace`` (privacy page, section 1).
        """

        def of(label: str) -> list[PrivateAggregation]:
            return kind_aggregations(
                everybody,
                level=guarantee.level,
                relation=guarantee.relation,
                noise_multiplier=guarantee.multiplier_of(label),
                normalised=True,
                to_self=self.own == "record",
                keys=[key.derive(label) for key in keys],
                noise=self.noise,
                device=device,
            )

        released = {event.label for event in guarantee.events}
        if HOPS[0] in released and self._variant().hops == 2 and OF_OTHERS not in released:
            raise PrivacyError(
                "the second hop must be charged before it is released. Got no event."
            )
        return tuple(of(label) if label in released else [] for label in HOPS)  # type: ignore[return-value]

    def _propagation(self, graph: Graph | None) -> Propagation:
        num_kinds, variant = len(self.edges_.kinds) or 1, self._variant()
        crossfit = None
        if graph is not None and variant.is_cross_fitted:
            crossfit = CrossFit.of(graph, seed=self.seed, folds=variant.folds)
        return Propagation(
            variant,
            self.num_classes_,
            self.modules_,
            num_kinds,
            has_total=self.releases_total(num_kinds),
            crossfit=crossfit,
            prior=None if (prior := self._class_prior()) is None else prior.tensor(),
        )

    def _remember(
        self, graph: Graph, charge: Charge | None, first: First, released: Sequence[Tensor]
    ) -> ReleasedHops:
        """Keep one graph's hops of the first repeat; at node level hop 0 stays out."""
        kept = self._kept(first, released)
        return self.releases_.add(graph, charge, kept, has_hop_zero=self.level != "node")

    def _kept(self, first: First, released: Sequence[Tensor]) -> tuple[Tensor, ...]:
        hops = list(released)
        if self._variant().is_cross_fitted:
            assert isinstance(first, Tensor)
            hops.insert(0, first)
        elif self.level != "node":
            with torch.no_grad():
                classifier = self.modules_["classifier"]
                assert isinstance(classifier, MultiHopClassifier)
                hops.insert(0, classifier.encode_first(HopInputs(first, []).all()[0]).codes)
        return tuple(hop[0].detach().clone() for hop in hops)

    def _scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops]
        if self._variant().is_vote:
            return self._vote_scores(hops, graph, device)
        propagation = self._propagation(graph)
        first: Any
        if released.has_hop_zero:
            first, hops = hops[0], hops[1:]
            if not propagation.variant.is_cross_fitted:
                first = Encoded(first)
        elif graph is None:
            raise InputError("The model keeps no features: give the graph to predict.")
        else:
            nobody = torch.zeros(1, graph.num_nodes, dtype=torch.bool, device=device)
            first = propagation.hop_zero(FeatureInputs(graph, device), nobody)
        return propagation.scores("classifier", first, hops)[0]

    def _scores_with(self, graph: Graph | None, own: str) -> Tensor:
        if self.level != "edge":
            return super()._scores_with(graph, own)
        if check_choice("own", own, ("features", "record")) == "features":
            return self._class_scores(graph)
        if graph is None:
            raise InputError(
                "Give the graph to predict: own='record' reads lists, which no model keeps."
            )
        if self.messages != "labels":
            raise InputError(
                "`own` must be features unless labels are sent: it is from what they say that a "
                f"list votes. Got {own!r} for messages {self.messages!r}."
            )
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        if not graph.train_mask.any():
            raise InputError("`graph` must have training labels, which own lists read. Got none.")
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        released = self._released_on(graph, device)
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops[1:]]
        return self._own_lists(self._propagation(graph), graph, hops).scores()

    def _own_lists(
        self, propagation: Propagation, graph: Graph, hops: Sequence[Tensor]
    ) -> OwnLists:
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        assert self.noise_multiplier_ is not None
        both_ways = self.goes_both_ways(is_directed=graph.is_directed)
        operator = Symmetrized if both_ways else Neighbors
        sensitivity = operator.bound(parse_relation(relation))
        std = self.noise_multiplier_ * sensitivity
        return OwnLists(propagation, graph, hops, std, both_ways)

    def _beside_training(self, graph: Graph | None) -> NewPeople:
        """Put the new people of a graph beside those of the training."""
        if self.level == "node":
            raise PrivacyError(
                "`new_people` must be left out at level node: a new person's record also writes to "
                "the rows of known people, which would have to be released again. Give the whole "
                "graph to predict on, which is charged."
            )
        if graph is None:
            raise InputError("Give the graph with the new people.")
        self.edges_.check(graph)
        if graph.is_directed != self.edges_.is_directed:
            raise InputError(
                "new people's edges must have a direction if those of training had one, and none "
                "otherwise. Got the other."
            )
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        # Codes of features are computed anew; what cross-fitted networks say was released.
        needs_rows = not self._variant().is_cross_fitted
        return NewPeople.beside(graph, self.releases_.training(), needs_rows=needs_rows)

    def _propagation_of(self, new: NewPeople, device: torch.device) -> Propagation:
        return replace(self._propagation(new.graph), known=new.rows_of_known(device))

    def _scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        new, device = self._beside_training(graph), choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        if own == "record":
            self._check_own_record()
            propagation, hops = self._propagation_of(new, device), new.with_nothing_released(device)
            return self._own_lists(propagation, new.graph, hops).scores()[: new.count]
        if own not in (None, "features"):
            check_choice("own", own, ("features", "record"))
        if self._edges_unread():
            return self._class_scores(induced(new.graph, np.arange(new.count)))
        ledger, is_paid = Ledger(self.ledger), self.level != "none"
        people = new.people
        released = self.releases_.find_for(new.ids, people.fingerprint, ledger, is_paid=is_paid)
        if released is None:
            released = self._release_once(
                self._guarantee_of_release(new),
                new.graph,
                people,
                lambda guarantee, key, charge: self._read_new(new, guarantee, key, device, charge),
                purpose="prediction for new people",
            )
        return self._scores_from(released, None, device)

    def _check_own_record(self) -> None:
        """Refuse to read lists where nothing votes from them."""
        if self.level != "edge" or self.messages != "labels":
            raise InputError(
                "`own` must be features unless labels are sent at level edge: it is from what they "
                f"say that a list votes. Got 'record' for messages {self.messages!r} at level "
                f"{self.level}."
            )

    def _guarantee_of_new(self, graph: Graph, own: str | None) -> Guarantee | None:
        new = self._beside_training(graph)
        if own == "record" or self.level == "none" or self._edges_unread():
            return None
        ledger, fingerprint = Ledger(self.ledger), new.people.fingerprint
        if self.releases_.find_for(new.ids, fingerprint, ledger) is not None:
            return None
        return self._guarantee_of_release(new)

    def _guarantee_of_release(self, new: NewPeople) -> Guarantee:
        """Return the price of new people's rows, at the delta of the training.

        Few new edges would make an automatic delta large.
        """
        graph = new.graph
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        return Guarantee.of_events(
            graph,
            self._prediction_events(relation, len(graph.kinds)),
            level=self.level,
            relation=self.relation,
            delta=self.delta if self.card_.delta is None else self.card_.delta,
            noise_multiplier=self.noise_multiplier_,
        )

    def _read_new(
        self,
        new: NewPeople,
        guarantee: Guarantee,
        key: NoiseKey,
        device: torch.device,
        charge: Charge | None,
    ) -> ReleasedHops:
        """Read the new edges of a graph that was paid for, and keep the rows of new people."""
        graph = new.graph
        first, released = self._propagation_of(new, device).run(
            self._aggregations(graph, guarantee, [key], device),
            FeatureInputs(graph, device),
            torch.tensor(graph.labels, device=device),
            torch.tensor(graph.train_mask, device=device).unsqueeze(0),
        )
        kept = tuple(hop[: new.count] for hop in self._kept(first, released))
        fingerprint = new.people.fingerprint
        return self.releases_.add_for(new.ids, fingerprint, charge, kept, has_hop_zero=True)

    def _vote_scores(
        self, hops: Sequence[Tensor], graph: Graph | None, device: torch.device
    ) -> Tensor:
        classifier = self.modules_["classifier"]
        if graph is None:
            if self.own != "nothing":
                raise InputError("The model keeps no features: give the graph to predict.")
            raise InputError("Give the graph to predict.")
        mask = torch.tensor(self._senders(graph), device=device).unsqueeze(0)
        std = self._hop_std(graph) if hops else 0.0
        votes = self._votes(graph, graph.num_nodes, mask, std)
        inputs = votes.inputs(FeatureInputs(graph, device, scale=self.row_scale_), hops)
        assert isinstance(inputs, HopInputs)
        return row_by_row(classifier, inputs)[0]

    def _senders(self, graph: Graph) -> NDArray[np.bool_]:
        """Return whose label was sent on a graph, and is to be taken out of what they read.

        That is a fact of the release and not of the split that is asked about. On the training
        graph it follows from ids where roles did; roles that were given are part of the records,
        and are taken as they are given again.
        """
        is_known = self.own == "record" and self.releases_.is_training(graph)
        if is_known and self._was_split_by_hash():
            return self._training_by_hash(graph) & (graph.labels >= 0)
        return graph.train_mask

    def _was_split_by_hash(self) -> bool:
        if self._resolved_at_save is not None:
            return bool(self._resolved_at_save["split_by_hash"])
        if self._split_by_hash is None:
            # Folders of 0.2 and before hold it on their card only, in the words of then.
            return ("where roles come from", "a public hash of (seed, id)") in self.card_.public
        return self._split_by_hash

    def _training_by_hash(self, graph: Graph) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = public_training(
            graph, repeats=1, split=self.split, seed=self.seed
        )[0]
        return found

    def _public_facts(self, graph: Graph, guarantee: Guarantee) -> tuple[tuple[str, str], ...]:
        facts = super()._public_facts(graph, guarantee)
        if (prior := self._class_prior()) is not None:
            facts = (*facts, prior.fact())
        if self.own != "record" or self.level != "node":
            return facts
        return (*facts, _HASHED_ROLES if self._split_by_hash else _GIVEN_ROLES)

    def _hop_std(self, graph: Graph) -> float:
        """Return the noise of the first hop, in which the own messages are counted."""
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        sensitivity = OutDegreeNormalized.bound(parse_relation(relation))
        return self._fitted_multiplier("aggregation") * sensitivity

    def _fitted_multiplier(self, label: str) -> float:
        """Return the noise multiplier of a release of the fit, as the card lists it."""
        (event,) = (event for event in self.card_.events if event["label"] == label)
        return float(event["noise_multiplier"])

    def _edges_unread(self) -> str:
        """Return why predictions read no edges; empty where they do.

        A function of what was released: of the list of events, or of the mixing weight that was
        chosen from the released hops and public labels.
        """
        if self._variant().is_vote:
            return "" if self._reads_hops() else "no hop"
        if not self._variant().is_cross_fitted:
            return ""
        classifier = self.modules_["classifier"]
        assert isinstance(classifier, MultiHopClassifier)
        return "" if bool((classifier.trust > 0).any()) else "weight 0"

    def _class_scores(self, graph: Graph | None) -> Tensor:
        if graph is None or not self._edges_unread():
            return super()._class_scores(graph)
        # Whether other edges are refused must not depend on what the noise said of these.
        self.edges_.check(graph)
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        if self._variant().is_vote:
            return self._vote_scores((), graph, device)
        # The graph of training is answered as before, by hop 0 of its release.
        released = self.releases_.known(graph, Ledger(self.ledger))
        if released is not None:
            return self._scores_from(released, graph, device)
        training = torch.tensor(graph.train_mask, device=device).unsqueeze(0)
        first = self._propagation(graph).hop_zero(FeatureInputs(graph, device), training)
        assert isinstance(first, Tensor)
        return first[0]

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return what predicting on a graph would release and charge; None: it is free of charge.

        A model that reads no edges releases nothing of another graph.
        """
        self._check_fitted()
        # At edge level the node's own neighbours are read beside released hops, whatever these say.
        reads_own = own == "record" and self.level == "edge"
        if self._edges_unread() and not reads_own and not new_people:
            return None
        return super().prediction_guarantee(graph, own, new_people=new_people)

    def _prediction_guarantee(self, graph: Graph) -> Guarantee:
        variant = self._variant()
        only_labels = variant.is_vote or (self.messages == "labels" and not variant.has_encoder)
        if only_labels and not graph.train_mask.any():
            raise InputError(
                "`graph` must have training labels, which are what this model sends along edges. "
                "Got none. Train with messages=features to predict on graphs without labels."
            )
        return super()._prediction_guarantee(graph)

    def _prediction_events(self, relation: str, num_kinds: int) -> tuple[Event, ...]:
        if not self._variant().is_vote:
            return super()._prediction_events(relation, num_kinds)
        labels = {str(event["label"]) for event in self.card_.events}
        training, others = (
            self._fitted_multiplier(label) if label in labels else 1.0 for label in HOPS
        )
        return self._hop_events(training, others, num_kinds)

    def _read(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
        charge: Charge | None,
    ) -> ReleasedHops:
        if self._variant().is_vote:
            everybody = with_absent(graph)
            training, others = self._vote_hops(everybody, guarantee, keys, device)
            mask = torch.tensor(graph.train_mask, device=device).unsqueeze(0)
            votes = self._votes(everybody, graph.num_nodes, mask, training[0].std)
            return self._keep(graph, charge, votes.run(training, others))
        first, released = self._propagation(graph).run(
            self._aggregations(graph, guarantee, keys, device),
            FeatureInputs(graph, device),
            torch.tensor(graph.labels, device=device),
            torch.tensor(graph.train_mask, device=device).unsqueeze(0),
        )
        return self._remember(graph, charge, first, released)

    def _card_facts(self) -> ReleaseFacts:
        steps = ["preparation", "training", "hop0", "classifier", "selection", "prediction"]
        if self._uses_batch_norm():
            steps.append("statistics")
        variant = self._variant()
        messages: str = "votes" if variant.is_vote else self.messages
        if variant.is_cross_fitted:
            messages = "posteriors"
            if self.goes_both_ways(is_directed=self.edges_.is_directed):
                messages = "posteriors both ways"
        unread = self._edges_unread()
        if unread:
            steps[steps.index("prediction")] = "features"
        if unread == "no hop":
            steps.remove("hop0")
            messages = "none released"
        return ReleaseFacts(
            method="Features only" if unread else "GAP",
            messages=messages,
            edges_unread=unread,
            steps=steps,
            kinds=self.edges_.kinds,
            protects=self._protected_types() if self.edges_.kinds else "",
            has_total=self.releases_total(len(self.edges_.kinds)),
            is_weighted=any(bounds is not None for bounds in self.edges_.bounds),
            own=variant.own,
            is_divided=variant.is_vote,
        )
