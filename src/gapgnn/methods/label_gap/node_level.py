"""NodeLabelGAP: degree-normalised messages of class codes and DP-SGD, at node level."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, with_absent
from gapgnn.methods import EdgeReader, Fit, ReleasedHops, Settings, Shape, Unused, choose_device
from gapgnn.methods.configs import NodeLabelGAPConfig
from gapgnn.methods.label_gap.budget import (
    MOST_SHARE,
    SHARES,
    hop_share,
    learnability,
    mean_degree_epsilon,
    record_share,
    vote_weight,
)
from gapgnn.methods.label_gap.codes import ClassPrior
from gapgnn.methods.label_gap.node_votes import (
    OF_OTHERS,
    OF_TRAINING,
    Votes,
    padded,
    vote_width,
)
from gapgnn.nn import COMBINATIONS, MultiHopClassifier
from gapgnn.privacy import (
    Guarantee,
    OutDegreeNormalized,
    Plan,
    PlannedHops,
    PlannedTraining,
    PrivateSession,
    PublicFacts,
)
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, gaussian_shift
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.mechanisms import NOISE_PATH, noisy_mean_degree
from gapgnn.training import (
    FeatureInputs,
    HopInputs,
    Recipe,
    RowScale,
    features_read,
    is_hash_split,
    node_learning_rate,
    node_recipe,
    public_training,
    row_by_row,
)

# Groups of records: training nodes send in hop 1 and enter DP-SGD, the others send in hop 2 only.
TRAINING, OTHERS = "training", "others"
MEAN_DEGREE = "mean out-degree"
OWN = ("nothing", "features", "record")
HASHED_ROLES = ("where roles come from", "a public hash of (seed, id)")
GIVEN_ROLES = ("where roles come from", "given with the records")


@dataclass(frozen=True, kw_only=True)
class NodeLabelGAPSettings(Settings):
    """NodeLabelGAP with nothing left to ``auto``.

    Attributes:
        own: what a prediction reads of the node's own record.
        reads_hops: whether hops are released.
        vote_weight: weight of the votes of the node's own neighbours.
        prior: class probabilities at which codes are centred.
        prior_source: where the prior came from.
        mean_degree_epsilon: price of the noisy mean out-degree; 0 if it is not released.
        edge_types: ``each``: a record holds its adjacency lists of all types.
    """

    own: str
    reads_hops: bool
    vote_weight: float
    prior: tuple[float, ...]
    prior_source: str
    mean_degree_epsilon: float = 0.0
    edge_types: str = "each"

    @property
    def class_prior(self) -> ClassPrior:
        """The class prior at which codes are centred."""
        return ClassPrior.of([self.prior], self.prior_source)


class NodeLabelGAP(NodeLabelGAPConfig, EdgeReader[NodeLabelGAPSettings]):
    """Node classifier at node level: degree-normalised class codes and one DP-SGD classifier.

    A message is divided by the square root of its sender's out-degree, so all messages of one
    record together have norm at most 1: sensitivity 1 under ``add-remove`` and 2 under ``replace``.
    In the first hop training nodes send the codes of their classes. In the second all other nodes
    send the mean code of an estimate from the released rows of their neighbours. The two groups
    compose in parallel. One classifier is trained by DP-SGD on features and hops (privacy page,
    sections 1 to 3).

    With ``own="features"`` a noisy mean out-degree decides the budget share of hop 1, and whether
    hops are released at all. The plan has one option per share, and the charge is the largest of
    them. With ``own="record"`` a prediction also reads the node's own neighbours, which vote, and
    there is no second hop (joint differential privacy).

    Its parameters are those of :class:`~gapgnn.methods.configs.node_label_gap.NodeLabelGAPConfig`.

    >>> from gapgnn import load_dataset
    >>> graph = load_dataset("social")
    >>> model = NodeLabelGAP(epsilon=8.0, epochs=1).fit(graph)
    >>> model.card_.level, model.predict(graph).shape
    ('node', (10000,))
    """

    method: ClassVar[str] = "node-label-gap"
    settings_class: ClassVar[type[Settings]] = NodeLabelGAPSettings
    levels: ClassVar[tuple[str, ...]] = ("node",)
    keeps_releases: ClassVar[bool] = True

    # Whether training nodes were chosen by the public hash, or given with the records.
    split_by_hash_: bool

    def check_parameters(self) -> None:
        """Refuse invalid parameters."""
        check_choice("own", self.own, OWN)
        for name in ("base_layers", "head_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        if self.hop_share != "auto":
            check_number("hop_share", self.hop_share, above=0, below=1)

    def check_edge_types(self, graph: Graph) -> None:
        """Refuse weights, and with ``own="record"`` neighbours without a row.

        The inputs that v reads from its own neighbours must not change when one of them is removed,
        as long as the model is used. A person who withdraws therefore keeps a row without a record
        (privacy page, section 1).
        """
        if any(edges.is_weighted for edges in graph.edge_types):
            raise PrivacyError(
                "edges must have no amounts where messages are degree-normalised: how heavy an "
                "entry was that names somebody without a row is not kept, and it must not change "
                "when that person leaves. Train gap, which cuts adjacency lists instead, or leave "
                "out the amounts."
            )
        missing = sum(edges.num_dangling for edges in graph.edge_types)
        if self.own == "record" and missing:
            raise PrivacyError(
                f"own=record needs a row for everybody on a list. Got {missing} entries that name "
                "somebody without one. Keep a row with empty cells for people who withdrew; leave "
                "out entries that name nobody of yours."
            )

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters without an effect, given the others."""
        yield from super().unused()
        if self.own == "nothing":
            yield Unused(("combine",), "with `own=nothing`: there is one block to read")

    def released_graph(self, graph: Graph) -> Graph:
        """Return the graph with a row for every id in an adjacency list."""
        return with_absent(graph)

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[NodeLabelGAPSettings]:
        """Return hops and DP-SGD; with a noisy mean out-degree, one option per budget share."""
        relation = self.relation_on(facts)
        learned = learnability(
            self.add_remove_epsilon(relation),
            num_train=facts.num_train,
            num_features=facts.num_features,
        )
        if not self._asks_mean_degree():
            share = MOST_SHARE if self.own == "nothing" else record_share(learned)
            if self.hop_share != "auto":
                share = self.hop_share
            return self._plan_with(facts, share, self.epsilon, learned)
        price = mean_degree_epsilon(self.epsilon, facts.num_train)
        options = tuple(
            replace(
                self._plan_with(facts, share, self.epsilon - price, learned),
                budget=self.epsilon - price,
            )
            for share in SHARES
        )
        asked = replace(options[0].settings, mean_degree_epsilon=price)
        first = Laplace(1 / price, label=MEAN_DEGREE)
        return self.make_plan(facts, asked, hops=options[-1].hops, first=first, options=options)

    def _asks_mean_degree(self) -> bool:
        """Whether a noisy mean out-degree decides the budget share of hop 1."""
        return self.own == "features" and self.hop_share == "auto"

    def _plan_with(
        self, facts: PublicFacts, share: float, epsilon: float, learned: float
    ) -> Plan[NodeLabelGAPSettings]:
        """Return the plan with a given budget share of hop 1."""
        reads_hops = share > 0
        recipe, settings = self.recipe(facts.num_train), self._settings(facts, reads_hops, learned)
        training = recipe.event(facts.num_train, ratio=1.0, label="classifier")
        delta = self.make_plan(facts, settings).delta
        planned = {}
        if reads_hops:
            shared: dict[str, Any] = {"is_normalised": True, "to_self": self.own == "record"}
            planned[OF_TRAINING] = PlannedHops(event=OF_TRAINING, count=1, **shared)
            if self.own != "record":
                planned[OF_OTHERS] = PlannedHops(event=OF_OTHERS, count=1, **shared)
        return self.make_plan(
            facts,
            settings,
            template=[replace(training, group=TRAINING)],
            fixed=self._hops_within(facts.num_types, epsilon, share, delta),
            hops=planned,
            training={"classifier": PlannedTraining(event="classifier")},
        )

    def _settings(
        self, facts: PublicFacts, reads_hops: bool, learned: float
    ) -> NodeLabelGAPSettings:
        budget = self.add_remove_epsilon(self.relation_on(facts))
        recipe = self.recipe(facts.num_train)
        if self.learning_rate == "auto" and self.own == "features":
            rate = node_learning_rate(facts.num_train, budget)
            recipe = replace(recipe, learning_rate=rate)
        # With hops or own neighbours as inputs, features need not carry the signal alone.
        num_train = sys.maxsize if self.own == "record" else facts.num_train
        rates = facts.declared_rates
        prior = ClassPrior.declared(rates, classes=facts.num_classes, repeats=1)
        return self.settings(
            NodeLabelGAPSettings,
            facts,
            recipe,
            row_scale=RowScale.suited(num_train, 0.0 if reads_hops else budget),
            own=self.own,
            reads_hops=reads_hops,
            vote_weight=vote_weight(learned) if self.own == "record" else 1.0,
            prior=prior.shares[0],
            prior_source=prior.source,
        )

    def _hops_within(
        self, num_types: int, epsilon: float, share: float, delta: float
    ) -> tuple[Event, ...]:
        """Return the hop of the training nodes, at a share of the budget, and that of the others.

        The groups compose in parallel (privacy page, section 1), so the hop of the others may cost
        the whole budget.
        """
        if not share:
            return ()
        # Slightly less than the budget, so that rounding cannot exceed it.
        least = math.sqrt(num_types) / gaussian_shift(epsilon * (1 - 1e-6), delta)
        return self._hop_events(least / math.sqrt(share), least, num_types)

    def _hop_events(self, training: float, others: float, count: int) -> tuple[Event, ...]:
        hops = (Gaussian(training, count=count, label=OF_TRAINING, group=TRAINING),)
        if self.own == "record":
            return hops
        return (*hops, Gaussian(others, count=count, label=OF_OTHERS, group=OTHERS))

    def recipe(self, num_train: int) -> Recipe:
        """Return the recipe with a fixed number of DP-SGD steps; given parameters are kept."""
        paper_recipe = super().recipe(num_train)
        return node_recipe(paper_recipe, num_train, epochs=self.epochs, batch_size=self.batch_size)

    # The network --------------------------------------------------------------------------------

    def networks(self, settings: NodeLabelGAPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the classifier, untrained."""
        widths = []
        if settings.own != "nothing":
            widths.append(features_read(shape.features, settings.row_scale))
        if settings.reads_hops:
            widths.append(vote_width(shape.classes, shape.edge_types, settings.own))
        classifier = MultiHopClassifier(
            shape.replicas,
            widths,
            shape.classes,
            first_layers=self.base_layers,
            base_layers=self.base_layers,
            head_layers=self.head_layers,
            hidden=self.hidden,
            combine=self.combine,
            has_embedding=False,
            activation=self.activation,
            batch_norm=False,
            dropout=0.0,
            corrects_votes=settings.own == "record",
        )
        return {"classifier": classifier}

    # Training -----------------------------------------------------------------------------------

    def train(self, fit: Fit[NodeLabelGAPSettings]) -> Tensor:
        """Release the hops, train one classifier by DP-SGD; return class scores."""
        graph, session = fit.graph, fit.session
        self.split_by_hash_ = is_hash_split(graph, seed=self.seed)
        if fit.plan.options:
            session.choose(self._chosen_option(fit))
            self.plan_ = fit.plan
            self.start_networks(fit)
        settings = fit.settings
        features = FeatureInputs(graph, fit.device, scale=settings.row_scale)
        votes = self._votes(graph, torch.from_numpy(fit.splits.train).to(fit.device))
        on_hop = fit.on_hop(1 if settings.own == "record" else 2)
        with fit.timed("aggregate"), torch.no_grad():
            released = self._release(fit, votes, on_hop) if settings.reads_hops else []
            inputs = votes.inputs(features, released)
        classifier = self.modules_["classifier"]
        if settings.own == "record":
            assert isinstance(classifier, MultiHopClassifier)
            classifier.mixing_weight.fill_(settings.vote_weight)
        fit.train("classifier", classifier, inputs)
        with torch.no_grad():
            scores: Tensor = classifier(inputs.all())
        self.keep(graph, session, *self._kept(released, graph))
        return scores

    def _release(self, fit: Fit[NodeLabelGAPSettings], votes: Votes, on_hop: Any) -> list[Tensor]:
        """Release the hops as one step of the checkpoint; rows of ids without a record are dropped.

        Which other ids occur in adjacency lists is not public, so their rows are not written. The
        second hop reads them, so it cannot go on from what was written of the first. It does not
        where there are none either: what is drawn again after a kill must not tell.
        """
        count = fit.graph.num_nodes

        def run() -> dict[str, Tensor]:
            hops = votes.run(fit.session, on_hop=on_hop)
            return {f"hop-{k}": hop[:, :count] for k, hop in enumerate(hops)}

        kept = fit.session.draw("hops", run, events=tuple(fit.plan.hops))
        return [kept[f"hop-{k}"].to(fit.device) for k in range(len(kept))]

    def _chosen_option(self, fit: Fit[NodeLabelGAPSettings]) -> int:
        """Release a noisy mean out-degree, and return the option that it selects.

        The first repeat's release is used for all repeats.
        """
        graph, plan = fit.graph, fit.plan
        facts = plan.facts
        assert facts is not None

        def run() -> dict[str, Tensor]:
            degrees = sum(edges.out_degrees for edges in graph.edge_types)
            mean_degree = noisy_mean_degree(
                np.asarray(degrees)[fit.splits.train[0]],
                num_people=facts.num_train,
                epsilon=plan.settings.mean_degree_epsilon,
                key=fit.session.options.keys[0].derive(NOISE_PATH),
                noise=self.noise,
            )
            return {"length": torch.tensor(mean_degree, dtype=torch.float64)}

        released = fit.session.draw("length", run, events=(MEAN_DEGREE,))
        share = hop_share(
            self.add_remove_epsilon(plan.relation),
            float(released["length"]),
            num_train=facts.num_train,
            num_features=facts.num_features,
            num_classes=facts.num_classes,
        )
        return SHARES.index(share)

    def _votes(self, graph: Graph, sends: Tensor) -> Votes:
        """Return the messages over a graph's adjacency lists."""
        settings, complete = self.plan_.settings, with_absent(graph)
        std = self._hop_std(graph) if settings.reads_hops else 0.0
        return Votes(
            complete,
            graph.num_nodes,
            self.num_classes_,
            settings.own,
            padded(sends, complete.num_nodes),
            std,
            settings.class_prior.tensor(),
        )

    def _hop_std(self, graph: Graph) -> float:
        """Return the standard deviation of the first hop's noise."""
        sensitivity = OutDegreeNormalized.bound(self.relation_on(graph))
        return self.plan_.multiplier_of(OF_TRAINING) * sensitivity

    # Released rows ------------------------------------------------------------------------------

    def _kept(self, released: Sequence[Tensor], graph: Graph) -> tuple[list[Tensor], bool]:
        """Keep the rows of nodes with a record; which other ids have rows is not public."""
        return [hop[:, : graph.num_nodes] for hop in released], False

    def read(self, session: PrivateSession, graph: Graph) -> tuple[list[Tensor], bool]:
        """Release the hops of another graph."""
        sends = torch.tensor(graph.train_mask, device=session.options.device).unsqueeze(0)
        return self._kept(self._votes(graph, sends).run(session), graph)

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores from released hops and each node's own record."""
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops]
        return self._scores(hops, graph, device)

    def _scores(self, hops: Sequence[Tensor], graph: Graph | None, device: torch.device) -> Tensor:
        if graph is None:
            if self.own != "nothing":
                raise InputError("The model keeps no features: give the graph to predict.")
            raise InputError("Give the graph to predict.")
        sends = torch.tensor(self._senders(graph), device=device).unsqueeze(0)
        votes = self._votes(graph, sends)
        features = FeatureInputs(graph, device, scale=self.plan_.settings.row_scale)
        inputs = votes.inputs(features, hops)
        assert isinstance(inputs, HopInputs)
        return row_by_row(self.modules_["classifier"], inputs)[0]

    def _senders(self, graph: Graph) -> NDArray[np.bool_]:
        """Return the nodes whose label was sent on a graph, to be subtracted from their inputs.

        This is a property of the release, not of the given split. On the training graph it follows
        from the ids if roles did. Roles given with the records are part of them, and are read from
        the given graph.
        """
        is_known = self.own == "record" and self.releases_.is_training(graph)
        if is_known and self.split_by_hash_:
            training: NDArray[np.bool_] = public_training(
                graph, repeats=1, split=self.split, seed=self.seed
            )[0]
            return training & (graph.labels >= 0)
        return graph.train_mask

    def prediction_plan(self, graph: Graph) -> Plan[NodeLabelGAPSettings]:
        """Return the release and the price of a prediction on a graph that was not read before."""
        if not graph.train_mask.any():
            raise InputError(
                "`graph` must have training labels, which are what this model sends along edges. "
                "Got none. Train GAP to predict on graphs without labels."
            )
        return super().prediction_plan(graph)

    def prediction_events(self, num_types: int) -> tuple[Event, ...]:
        """Return the hops of a prediction: those of the training, with the same noise."""
        promise: Guarantee = self.plan_.promise
        labels = {event.label for event in promise.events}
        training, others = (
            promise.multiplier_of(name) if name in labels else 1.0
            for name in (OF_TRAINING, OF_OTHERS)
        )
        return self._hop_events(training, others, num_types)

    # Models whose predictions read no edge ------------------------------------------------------

    def edges_unread(self) -> str:
        """Return why predictions read no edges; empty where they do."""
        return "" if self.plan_.settings.reads_hops else "no hop"

    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores; where no hop was released, from features alone."""
        if graph is None or not self.edges_unread():
            return super().class_scores(graph)
        # Whether other edges are refused must not depend on the released mean out-degree.
        self.edges_.check(graph)
        device = choose_device(self.device)
        self.networks_on(device)
        return self._scores((), graph, device)

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return the guarantee that predicting on a graph would be charged for; None if it is free.

        A model without hops reads no edges of another graph.
        """
        self.check_fitted()
        if self.edges_unread() and not new_people:
            return None
        return super().prediction_guarantee(graph, own, new_people=new_people)

    def scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        """Refuse: a new record also contributes to the rows of known nodes."""
        raise PrivacyError(
            "`new_people` must be left out at level node: a new person's record also writes to "
            "the rows of known people, which would have to be released again. Give the whole "
            "graph to predict on, which is charged."
        )

    # Card and folder ----------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """Return the source of the roles."""
        return {"split_by_hash": self.split_by_hash_}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Restore what :meth:`learned` returned."""
        self.split_by_hash_ = bool(learned["split_by_hash"])

    def public_facts(self, *args: Any) -> tuple[tuple[str, str], ...]:
        """Return the facts assumed public: also the class prior, and the source of the roles."""
        facts = (*super().public_facts(*args), self.plan_.settings.class_prior.fact())
        if self.own != "record":
            return facts
        return (*facts, HASHED_ROLES if self.split_by_hash_ else GIVEN_ROLES)

    def card_facts(self) -> ReleaseFacts:
        """Return the card's facts about NodeLabelGAP."""
        steps = self.steps_taken(
            "preparation", "training", "hop0", "classifier", "selection", "prediction"
        )
        unread = self.edges_unread()
        if unread:
            steps[steps.index("prediction")] = "features"
            steps.remove("hop0")
        return ReleaseFacts(
            method="Features only" if unread else "NodeLabelGAP",
            messages="votes" if self.own == "record" else "votes and answers",
            edges_unread=unread,
            steps=steps,
            own=self.own,
        )
