"""NodeLabelGAP: degree-normalised class codes and one DP-SGD classifier, at node level."""

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
    parse_relation,
    resolve_relation,
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

# Groups of people: who trains is in hop 1 and in DP-SGD, everybody else in hop 2 alone.
TRAINING, OTHERS = "training", "others"
MEAN_DEGREE = "mean out-degree"
OWN = ("nothing", "features", "record")
HASHED_ROLES = ("where roles come from", "a public hash of (seed, id)")
GIVEN_ROLES = ("where roles come from", "given with the records")


@dataclass(frozen=True, kw_only=True)
class NodeLabelGAPSettings(Settings):
    """NodeLabelGAP with nothing left to ``auto``.

    Attributes:
        own: what a prediction reads of its own person.
        reads_hops: whether hops are released.
        vote_weight: what the votes of the node's own neighbours count.
        prior: of the classes, around which their codes lie.
        prior_source: where the prior came from.
        mean_degree_epsilon: price of the noisy mean out-degree; 0 where it is not asked.
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
        """The prior as codes are centred at it."""
        return ClassPrior.of([self.prior], self.prior_source)


class NodeLabelGAP(NodeLabelGAPConfig, EdgeReader[NodeLabelGAPSettings]):
    """Node classifier at node level: class codes travel degree-normalised, one network is trained.

    A message is divided by the root of its sender's out-degree, so that all that one person sends
    has norm at most 1, however many neighbours there are: sensitivity 1 under ``add-remove`` and 2
    under ``replace``. In the first hop training people send the codes of their classes; in the
    second all other people send the mean code of what the released rows of their neighbours say.
    People of the two groups compose in parallel. One classifier is trained by DP-SGD on features
    and hops (privacy page, sections 1 to 3).

    With ``own="features"`` a noisy mean out-degree decides how much of the budget hop 1 gets, and
    whether hops are released at all: the plan has an option for each, and the price is that of the
    dearest. With ``own="record"`` a prediction also reads the node's own neighbours, who vote, and
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

    # Whether training people were chosen by the public hash, or given with the records.
    split_by_hash_: bool

    def check_parameters(self) -> None:
        """Refuse parameters that cannot work."""
        check_choice("own", self.own, OWN)
        for name in ("base_layers", "head_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        if self.hop_share != "auto":
            check_number("hop_share", self.hop_share, above=0, below=1)

    def check_edge_types(self, graph: Graph) -> None:
        """Refuse weights, and with ``own="record"`` neighbours without a row.

        What v reads of its own neighbours must not change when one of them leaves, and for as long
        as the model is used: so whoever withdraws keeps a row, without a record (privacy page,
        section 1).
        """
        if any(kind.is_weighted for kind in graph.edge_types):
            raise PrivacyError(
                "edges must have no amounts where messages are degree-normalised: how heavy an "
                "entry was that names somebody without a row is not kept, and it must not change "
                "when that person leaves. Train gap, which cuts adjacency lists instead, or leave "
                "out the amounts."
            )
        missing = sum(kind.num_dangling for kind in graph.edge_types)
        if self.own == "record" and missing:
            raise PrivacyError(
                f"own=record needs a row for everybody on a list. Got {missing} entries that name "
                "somebody without one. Keep a row with empty cells for people who withdrew; leave "
                "out entries that name nobody of yours."
            )

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing with the others as they are."""
        yield from super().unused()
        if self.own == "nothing":
            yield Unused(("combine",), "with `own=nothing`: there is one block to read")

    def released_graph(self, graph: Graph) -> Graph:
        """Return the graph with a row for everybody who stands in an adjacency list."""
        return with_absent(graph)

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[NodeLabelGAPSettings]:
        """Return hops and DP-SGD; an option for each share, if a noisy mean out-degree decides."""
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
        """Whether a noisy mean out-degree decides what the hop gets."""
        return self.own == "features" and self.hop_share == "auto"

    def _plan_with(
        self, facts: PublicFacts, share: float, epsilon: float, learned: float
    ) -> Plan[NodeLabelGAPSettings]:
        """Return the plan in which hop 1 gets a share of a budget."""
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
        # With the node's own neighbours, or hops, to read, features need not be spared their noise.
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
        """Return the hop of the training people, at a share of a budget, and that of the others.

        Groups compose in parallel (privacy page, section 1): the hop of the others may cost the
        whole of it.
        """
        if not share:
            return ()
        # A little less than the budget, so that rounding cannot end above it.
        least = math.sqrt(num_types) / gaussian_shift(epsilon * (1 - 1e-6), delta)
        return self._hop_events(least / math.sqrt(share), least, num_types)

    def _hop_events(self, training: float, others: float, count: int) -> tuple[Event, ...]:
        hops = (Gaussian(training, count=count, label=OF_TRAINING, group=TRAINING),)
        if self.own == "record":
            return hops
        return (*hops, Gaussian(others, count=count, label=OF_OTHERS, group=OTHERS))

    def recipe(self, num_train: int) -> Recipe:
        """Return as many steps of DP-SGD on any graph; what is given stays."""
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
            classifier.trust.fill_(settings.vote_weight)
        fit.train("classifier", classifier, inputs)
        with torch.no_grad():
            scores: Tensor = classifier(inputs.all())
        self.keep(graph, session, *self._kept(released, graph))
        return scores

    def _release(self, fit: Fit[NodeLabelGAPSettings], votes: Votes, on_hop: Any) -> list[Tensor]:
        """Release the hops; whoever only stands in adjacency lists has a row that is not kept."""
        count = fit.graph.num_nodes
        if votes.graph.num_nodes == count:
            return votes.run(fit.session, on_hop=on_hop)

        # Who else stands in lists is not public, so their rows are not written. The second hop
        # reads them: all hops are one step, drawn together or not at all.
        def run() -> dict[str, Tensor]:
            hops = votes.run(fit.session, keep=False, on_hop=on_hop)
            return {f"hop-{k}": hop[:, :count] for k, hop in enumerate(hops)}

        kept = fit.session.draw("hops", run, events=tuple(fit.plan.hops))
        return [kept[f"hop-{k}"].to(fit.device) for k in range(len(kept))]

    def _chosen_option(self, fit: Fit[NodeLabelGAPSettings]) -> int:
        """Release a noisy mean out-degree, and return the option that follows from it.

        One number for all repeats, that of the first.
        """
        graph, plan = fit.graph, fit.plan
        facts = plan.facts
        assert facts is not None

        def run() -> dict[str, Tensor]:
            degrees = sum(kind.out_degrees for kind in graph.edge_types)
            found = noisy_mean_degree(
                np.asarray(degrees)[fit.splits.train[0]],
                num_people=facts.num_train,
                epsilon=plan.settings.mean_degree_epsilon,
                key=fit.session.options.keys[0].derive(NOISE_PATH),
                noise=self.noise,
            )
            return {"length": torch.tensor(found, dtype=torch.float64)}

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
        """Return how the adjacency lists of a graph are read."""
        settings, everybody = self.plan_.settings, with_absent(graph)
        std = self._hop_std(graph) if settings.reads_hops else 0.0
        return Votes(
            everybody,
            graph.num_nodes,
            self.num_classes_,
            settings.own,
            padded(sends, everybody.num_nodes),
            std,
            settings.class_prior.tensor(),
        )

    def _hop_std(self, graph: Graph) -> float:
        """Return the noise of the first hop, in which the own messages are counted."""
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        sensitivity = OutDegreeNormalized.bound(parse_relation(relation))
        return self.plan_.multiplier_of(OF_TRAINING) * sensitivity

    # Released rows ------------------------------------------------------------------------------

    def _kept(self, released: Sequence[Tensor], graph: Graph) -> tuple[list[Tensor], bool]:
        """Keep the rows of whoever has a record: who else stands in lists is not public."""
        return [hop[:, : graph.num_nodes] for hop in released], False

    def read(self, session: PrivateSession, graph: Graph) -> tuple[list[Tensor], bool]:
        """Release the hops of another graph."""
        sends = torch.tensor(graph.train_mask, device=session.options.device).unsqueeze(0)
        return self._kept(self._votes(graph, sends).run(session), graph)

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores from released hops and from what each person's own record says."""
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
        """Return whose label was sent on a graph, and is to be taken out of what they read.

        That is a fact of the release and not of the split that is asked about. On the training
        graph it follows from ids where roles did; roles that were given are part of the records,
        and are taken as they are given again.
        """
        is_known = self.own == "record" and self.releases_.is_training(graph)
        if is_known and self.split_by_hash_:
            dealt: NDArray[np.bool_] = public_training(
                graph, repeats=1, split=self.split, seed=self.seed
            )[0]
            return dealt & (graph.labels >= 0)
        return graph.train_mask

    def prediction_plan(self, graph: Graph) -> Plan[NodeLabelGAPSettings]:
        """Return what reading an unread graph for prediction releases, and its price."""
        if not graph.train_mask.any():
            raise InputError(
                "`graph` must have training labels, which are what this model sends along edges. "
                "Got none. Train GAP to predict on graphs without labels."
            )
        return super().prediction_plan(graph)

    def prediction_events(self, num_types: int) -> tuple[Event, ...]:
        """Return the hops of a prediction: those of the training, at the noise they had."""
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
        # Whether other edges are refused must not depend on what the noise said of these.
        self.edges_.check(graph)
        device = choose_device(self.device)
        self.networks_on(device)
        return self._scores((), graph, device)

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return what predicting on a graph would release and charge; None: it is free of charge.

        A model that released no hop reads no edges of another graph.
        """
        self.check_fitted()
        if self.edges_unread() and not new_people:
            return None
        return super().prediction_guarantee(graph, own, new_people=new_people)

    def scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        """Refuse: a new person's record also writes to the rows of known people."""
        raise PrivacyError(
            "`new_people` must be left out at level node: a new person's record also writes to "
            "the rows of known people, which would have to be released again. Give the whole "
            "graph to predict on, which is charged."
        )

    # Card and folder ----------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """Return where roles came from."""
        return {"split_by_hash": self.split_by_hash_}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Take it back."""
        self.split_by_hash_ = bool(learned["split_by_hash"])

    def public_facts(self, *args: Any) -> tuple[tuple[str, str], ...]:
        """Return what is taken to be public: the class prior, and where roles came from."""
        found = (*super().public_facts(*args), self.plan_.settings.class_prior.fact())
        if self.own != "record":
            return found
        return (*found, HASHED_ROLES if self.split_by_hash_ else GIVEN_ROLES)

    def card_facts(self) -> ReleaseFacts:
        """Return what the card says of NodeLabelGAP."""
        steps = ["preparation", "training", "hop0", "classifier", "selection", "prediction"]
        unread = self.edges_unread()
        if unread:
            steps[steps.index("prediction")] = "features"
            steps.remove("hop0")
        facts = ReleaseFacts(
            method="Features only" if unread else "NodeLabelGAP",
            messages="votes",
            edges_unread=unread,
            steps=steps,
            own=self.own,
        )
        return replace(self.facts_of_edges(facts), is_divided=True)
