"""LabelGAP: aggregation of class codes and class posteriors, in stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer
from gapgnn.graph import Graph, induced
from gapgnn.methods import (
    EdgeReader,
    Fit,
    ReleasedHops,
    Settings,
    Shape,
    Unused,
    choose_device,
    events_per_hop,
    layer_options,
    num_blocks,
    releases_union,
    resolve_edge_types,
)
from gapgnn.methods.configs import LabelGAPConfig
from gapgnn.methods.label_gap.codes import ClassPrior
from gapgnn.methods.label_gap.new_people import NewPeople
from gapgnn.methods.label_gap.own_messages import (
    Messages,
    check_messages,
    declared_bound,
    declared_columns,
)
from gapgnn.methods.label_gap.own_record import OwnNeighbours
from gapgnn.methods.label_gap.regression import StageRegression, regression_of
from gapgnn.methods.label_gap.stages import HOPS, MEMBERS, First, Stages, stage_names
from gapgnn.nn import (
    COMBINATIONS,
    Encoded,
    Encoder,
    LinearBySize,
    MultiHopClassifier,
    ShrunkRegression,
)
from gapgnn.privacy import (
    Guarantee,
    Neighbors,
    Plan,
    PlannedHops,
    PrivateSession,
    PublicFacts,
    Symmetrized,
)
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.ledger import Ledger, People
from gapgnn.training import (
    FEATURE_DECAY,
    FEATURE_WIDTH,
    CrossFit,
    FeatureInputs,
    FeatureModels,
    FeatureNetworks,
    HopInputs,
    Inputs,
    Recipe,
    Splits,
    Trainer,
    has_rare_class,
    minibatch_recipe,
    resolve_folds,
    shallow_networks,
)

# Training nodes in a step without cross-fitting, and the value of ``hidden`` at which feature
# models have width FEATURE_WIDTH; chosen on the development graphs (docs: research notes).
STEP_NODES, HIDDEN = 4096, 32
# Feature models that are trained, not solved.
OF_FEATURES = ("encoder", "shallow")


@dataclass(frozen=True, kw_only=True)
class LabelGAPSettings(Settings):
    """LabelGAP with nothing left to ``auto``.

    Attributes:
        hops: number K of noisy aggregations.
        folds: of the cross-fitted feature models; 0: none.
        feature_recipe: how the feature models are trained.
        feature_dropout: of the feature models.
        symmetrises: whether messages are symmetrised, if edges have a direction.
        dropout: of the classifiers.
        edge_types: ``any`` or ``each``.
        with_union: whether hops release the sum over the union of the edge types.
    """

    hops: int
    folds: int
    feature_recipe: Recipe
    feature_dropout: float
    symmetrises: bool
    dropout: float
    edge_types: str
    with_union: bool


class LabelGAP(LabelGAPConfig, EdgeReader[LabelGAPSettings]):
    """Node classifier that aggregates class codes of public labels, in stages.

    At edge level features and labels are public, so messages may carry labels. Training nodes send
    the code of their class, a vector of norm at most 1. All other nodes send the mean code under
    their class posterior: in hop 1 that of cross-fitted *feature models*, and in hop k + 1 that of
    the classifier trained after hop k. Each hop is one Gaussian mechanism. Codes are centred at the
    class prior, so that the code of a rare class is long and that of a common class short (privacy
    page, sections 1 to 3).

    Training is post-processing. Predictions on the training graph are free, and so are those that
    read the node's own neighbours (``own="record"``). Predicting on another graph releases and
    charges its hops once. For nodes added after training only their own edges are read
    (``new_people=True``).

    Its parameters are those of :class:`~gapgnn.methods.configs.label_gap.LabelGAPConfig`.

    >>> from gapgnn import load_dataset
    >>> graph = load_dataset("social")
    >>> model = LabelGAP(epsilon=4.0, hops=2, epochs=5).fit(graph)
    >>> model.predict(graph).shape
    (10000,)
    """

    method: ClassVar[str] = "label-gap"
    settings_class: ClassVar[type[Settings]] = LabelGAPSettings
    levels: ClassVar[tuple[str, ...]] = ("none", "edge")
    keeps_releases: ClassVar[bool] = True

    # The prior at which class codes are centred; set at fit, and saved with the model.
    class_prior_: ClassPrior

    def check_parameters(self) -> None:
        """Refuse invalid parameters."""
        check_integer("encoder_layers", self.encoder_layers, at_least=0)
        self._folds()
        for name in ("base_layers", "head_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("hops", self.hops, at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        check_choice("directions", self.directions, ("auto", "along", "both"))
        resolve_edge_types(self.level, self.edge_types)
        if self.messages is not None:
            declared_bound(self.messages)

    def _checked_plan(self, graph: Graph) -> Plan[LabelGAPSettings]:
        """Return the calibrated plan; messages of the user's own are tried before any charge."""
        plan = super()._checked_plan(graph)
        if self.messages is not None:
            check_messages(
                cast(Messages, self.messages),
                graph,
                hops=plan.settings.hops,
                blocks=len(graph.edge_types) + plan.settings.with_union,
                has_features=self.encoder_layers > 0,
            )
        return plan

    def check_edge_types(self, graph: Graph) -> None:
        """Accept any edges, also with weights and of several types."""

    def unused_on(self, graph: Graph) -> Iterator[Unused]:
        """Yield the parameters without an effect on this graph."""
        yield from super().unused_on(graph)
        if not graph.is_directed:
            yield Unused(("directions",), "on a graph without directions", ("along",))

    def after_release(self) -> frozenset[str]:
        """Class weights shift the answers alone; all else shapes the messages of some hop."""
        return super().after_release() | {"class_weight"}

    def weighs_answers(self) -> bool:
        """Weigh scores, not the loss: messages are posteriors, which a weighted loss would bias."""
        return True

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[LabelGAPSettings]:
        """Return K Gaussian hops; training is post-processing of them."""
        protected = resolve_edge_types(self.level, self.edge_types)
        with_union = releases_union(
            facts.num_types, protected=protected, relation=self.relation_on(facts)
        )
        folds, recipe = self._folds(), self.recipe(facts.num_train)
        settings = self.settings(
            LabelGAPSettings,
            facts,
            recipe,
            hops=self.hops,
            folds=folds,
            **self._of_features(facts, recipe),
            symmetrises=self._symmetrises(),
            dropout=self._dropout(),
            edge_types=protected,
            with_union=with_union,
        )
        hops = {
            HOPS: PlannedHops(
                event=HOPS,
                count=settings.hops,
                is_symmetrised=settings.symmetrises and facts.is_directed,
                with_union=with_union,
                protects=protected,
            )
        }
        if self.level == "none":
            return self.make_plan(facts, settings, hops=hops)
        count = settings.hops * events_per_hop(
            facts.num_types, protected=protected, with_union=with_union
        )
        released = Gaussian(1.0, count=count, label=HOPS)
        return self.make_plan(facts, settings, template=[released], hops=hops)

    def _of_features(self, facts: PublicFacts, recipe: Recipe) -> dict[str, Any]:
        """Return the feature models' recipe; given epochs scale their number of steps."""
        suited = FeatureNetworks.suited(facts.num_train, facts.num_features)
        dropout = suited.dropout if self._folds() else self._dropout()
        if not self._folds():
            return {"feature_recipe": recipe, "feature_dropout": dropout}
        steps = suited.steps
        if self.epochs != "auto":
            usual = minibatch_recipe(recipe, facts.num_train, epochs="auto", batch_size="auto")
            steps = max(1, round(suited.steps * self.epochs / usual.epochs))
        decay = recipe.weight_decay or FEATURE_DECAY
        own = replace(recipe, epochs=steps, weight_decay=decay)
        return {"feature_recipe": own, "feature_dropout": dropout}

    def _dropout(self) -> float:
        if self.dropout != "auto":
            return self.dropout
        return 0.5 if self._folds() else 0.4

    def _folds(self) -> int:
        return resolve_folds(self.folds, can_cross_fit=self.encoder_layers > 0)

    def _symmetrises(self) -> bool:
        """Return whether messages are symmetrised, if edges have a direction."""
        if self.directions != "auto":
            return self.directions == "both"
        # For more than one arc symmetrising multiplies the noise by more than sqrt(2).
        return self._folds() > 0 and self.relation in ("auto", "directed")

    def recipe(self, num_train: int) -> Recipe:
        """Return the recipe of minibatch steps; given parameters are kept."""
        paper_recipe = super().recipe(num_train)
        if self._folds():
            return minibatch_recipe(
                paper_recipe, num_train, epochs=self.epochs, batch_size=self.batch_size
            )
        nodes = STEP_NODES if self.batch_size == "auto" else paper_recipe.batch_size or num_train
        return replace(paper_recipe, batch_size=None, nodes=nodes)

    # The networks -------------------------------------------------------------------------------

    def networks(self, settings: LabelGAPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the feature models and one ensemble of classifiers for each hop, untrained."""
        shared = layer_options(self, settings, dropout=settings.dropout)
        is_cross_fitted = settings.folds > 0
        modules = self._feature_models(settings, shape, shared)
        first = shape.classes if is_cross_fitted else shape.features
        if modules and not is_cross_fitted:
            first = self.hidden
        depth = self.base_layers if modules else max(self.encoder_layers, self.base_layers)
        sent = declared_columns(self.messages, shape.classes)
        # The direction of a sum, and its size.
        width = (sent + 1) * num_blocks(shape.edge_types)
        for hop, name in enumerate(stage_names(settings.hops), start=1):
            modules[name] = MultiHopClassifier(
                shape.replicas * MEMBERS if is_cross_fitted else shape.replicas,
                [first, *[width] * (1 if is_cross_fitted else hop)],
                shape.classes,
                first_layers=depth,
                base_layers=self.base_layers,
                head_layers=self.head_layers,
                combine=self.combine,
                has_embedding=False,
                corrects_first=is_cross_fitted,
                **shared,
            )
            if is_cross_fitted:
                pool = (shape.edge_types + settings.with_union) * sent
                regression = StageRegression.of_pool(shape.replicas, pool, shape.classes)
                modules[regression_of(name)] = regression
        return modules

    def _feature_models(
        self, settings: LabelGAPSettings, shape: Shape, shared: Mapping[str, Any]
    ) -> dict[str, nn.Module]:
        """Return the feature models: an ensemble of architectures if they are cross-fitted."""
        if not self.encoder_layers:
            return {}
        layers, features, classes = self.encoder_layers, shape.features, shape.classes
        if not settings.folds:
            encoder = Encoder(shape.replicas, features, classes, layers=layers, **shared)
            return {"encoder": encoder}
        count = shape.replicas * settings.folds
        # A width in proportion to ``hidden``, and a dropout of their own.
        own: dict[str, Any] = {
            "hidden": round(FEATURE_WIDTH * self.hidden / HIDDEN),
            "batch_norm": settings.batch_norm,
            "dropout": settings.feature_dropout,
        }
        return {
            "encoder": Encoder(
                count, features, classes, layers=layers, activation=self.activation, **own
            ),
            "shallow": shallow_networks(count, features, classes, **own),
            "linear": LinearBySize(count, features, classes),
            "shrunk": ShrunkRegression(count, features, classes),
        }

    # Training -----------------------------------------------------------------------------------

    def train(self, fit: Fit[LabelGAPSettings]) -> Tensor:
        """Train the feature models, then a classifier after every hop; return class scores."""
        graph, modules = fit.graph, self.modules_
        features = FeatureInputs(graph, fit.device)
        self.class_prior_ = ClassPrior.counted(graph.labels, fit.splits.train, self.num_classes_)
        stages = self._stages(graph)
        for name in OF_FEATURES:
            if name in modules:
                fit.train(
                    name, modules[name], features, trainer=self._trainer_of(name, fit, stages)
                )
        if stages.crossfit is not None:
            with fit.timed("encoder"):
                stages.crossfit.solve(FeatureModels.of(modules, "encoder"), fit.trainer, features)

        def train_stage(name: str, inputs: Inputs) -> None:
            fit.train(name, modules[name], inputs, trainer=self._trainer_of(name, fit, stages))

        first, released = stages.run(
            fit.session,
            features,
            fit.trainer.labels,
            torch.from_numpy(fit.splits.train).to(fit.device),
            fit=train_stage,
            validates=torch.from_numpy(fit.splits.val).to(fit.device),
            criterion=fit.trainer.criterion,
            has_rare_class=has_rare_class(fit.trainer),
            on_hop=fit.on_hop(fit.settings.hops),
        )
        with torch.no_grad():
            scores = stages.scores("classifier", first, released)
        self.keep(fit.graph, fit.session, *self._kept(first, released))
        return scores

    def _trainer_of(self, name: str, fit: Fit[LabelGAPSettings], stages: Stages) -> Trainer:
        """Return the trainer of a network; with cross-fitting it has several per repeat."""
        trainer = fit.trainer
        if stages.crossfit is None:
            return trainer
        if name in OF_FEATURES:
            return stages.crossfit.trainer(trainer, fit.settings.feature_recipe)
        splits = (trainer.splits.train, trainer.splits.val, trainer.splits.test)
        return replace(trainer, splits=Splits(*(mask.repeat(MEMBERS, axis=0) for mask in splits)))

    def _keep_first_repeat(self) -> None:
        super()._keep_first_repeat()
        self.class_prior_ = self.class_prior_.first()

    def _stages(self, graph: Graph | None) -> Stages:
        settings, crossfit = self.plan_.settings, None
        if graph is not None and settings.folds:
            crossfit = CrossFit.of(graph, seed=self.seed, folds=settings.folds)
        elif settings.folds:
            # Scores follow from released rows; no feature model is evaluated.
            crossfit = CrossFit(np.zeros(0, dtype=np.int64), settings.folds)
        return Stages(
            hops=settings.hops,
            modules=self.modules_,
            num_classes=self.num_classes_,
            prior=self.class_prior_.tensor(),
            num_types=self.num_types_,
            with_union=settings.with_union,
            crossfit=crossfit,
            noise_multiplier=self.plan_.multiplier_of(HOPS),
            own=cast(Messages | None, self.messages),
        )

    # Released rows ------------------------------------------------------------------------------

    def _kept(self, first: First, released: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        """Return hop 0, as an input of the classifiers, and all noisy rows."""
        if self.plan_.settings.folds:
            assert isinstance(first, Tensor)
            return [first, *released], True
        classifier = self.modules_["classifier"]
        assert isinstance(classifier, MultiHopClassifier)
        with torch.no_grad():
            return [classifier.encode_first(HopInputs(first, []).all()[0]).codes, *released], True

    def hop_zero(self, graph: Graph, device: torch.device) -> Tensor:
        """Return hop 0 as a release keeps it."""
        sends_label = torch.tensor(graph.train_mask, device=device).unsqueeze(0)
        first = self._stages(graph).hop_zero(FeatureInputs(graph, device), sends_label)
        return self._kept(first, [])[0][0]

    def read(self, session: PrivateSession, graph: Graph) -> tuple[list[Tensor], bool]:
        """Release the hops of another graph, with the trained networks."""
        return self._kept(*self._run(session, graph, self._stages(graph)))

    def _run(
        self, session: PrivateSession, graph: Graph, stages: Stages
    ) -> tuple[First, list[Tensor]]:
        device = session.options.device
        return stages.run(
            session,
            FeatureInputs(graph, device),
            torch.tensor(graph.labels, device=device),
            torch.tensor(graph.train_mask, device=device).unsqueeze(0),
        )

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores from released hops."""
        first, *hops = (hop.to(device).unsqueeze(0) for hop in released.hops)
        stages = self._stages(graph)
        start: Any = first if self.plan_.settings.folds else Encoded(first)
        return stages.scores("classifier", start, hops)[0]

    def prediction_plan(self, graph: Graph) -> Plan[LabelGAPSettings]:
        """Return the release and the price of a prediction on a graph that was not read before."""
        if not self.encoder_layers and not graph.train_mask.any():
            raise InputError(
                "`graph` must have training labels, which are what this model sends along edges. "
                "Got none. Train GAP to predict on graphs without labels."
            )
        return super().prediction_plan(graph)

    def priced(
        self, graph: Graph, events: Sequence[Event], *, delta: Any
    ) -> Plan[LabelGAPSettings]:
        """Return the plan of a prediction, whose graph may be directed or not."""
        plan = super().priced(graph, events, delta=delta)
        is_symmetrised = plan.settings.symmetrises and graph.is_directed
        hops = {
            name: replace(one, is_symmetrised=is_symmetrised) for name, one in plan.hops.items()
        }
        return replace(plan, hops=hops)

    # Models whose predictions read no edge ------------------------------------------------------

    def edges_unread(self) -> str:
        """Return why predictions read no edges; empty where they do.

        It follows from the release: from the mixing weight, which is chosen from released hops and
        public labels.
        """
        if not self.plan_.settings.folds:
            return ""
        classifier = self.modules_["classifier"]
        assert isinstance(classifier, MultiHopClassifier)
        return "" if bool((classifier.mixing_weight > 0).any()) else "weight 0"

    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores; where the mixing weight is 0, those of the feature models."""
        if graph is None or not self.edges_unread():
            return super().class_scores(graph)
        # Whether other edges are refused must not depend on the mixing weight.
        self.edges_.check(graph)
        device = choose_device(self.device)
        self.networks_on(device)
        # Predictions on the training graph use hop 0 of its release.
        released = self.releases_.known(graph, Ledger(self.ledger))
        if released is not None:
            return self.scores_from(released, graph, device)
        training = torch.tensor(graph.train_mask, device=device).unsqueeze(0)
        first = self._stages(graph).hop_zero(FeatureInputs(graph, device), training)
        assert isinstance(first, Tensor)
        return first[0]

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return the guarantee that predicting on a graph would be charged for; None if it is free.

        A model that reads no edges releases nothing of another graph.
        """
        self.check_fitted()
        # own="record" needs released hops, whatever the mixing weight.
        reads_own = own == "record" and self.level == "edge"
        if self.edges_unread() and not reads_own and not new_people:
            return None
        return super().prediction_guarantee(graph, own, new_people=new_people)

    # The node's own neighbours ------------------------------------------------------------------

    def scores_with(self, graph: Graph | None, own: str) -> Tensor:
        """Return class scores; with ``record`` they also read the node's own neighbours."""
        if self.level != "edge":
            return super().scores_with(graph, own)
        if check_choice("own", own, ("features", "record")) == "features":
            return self.class_scores(graph)
        self._check_class_codes("own='record'")
        if graph is None:
            raise InputError(
                "Give the graph to predict: own='record' reads adjacency lists, which no model "
                "keeps."
            )
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        if not graph.train_mask.any():
            raise InputError(
                "`graph` must have training labels, which own='record' reads. Got none."
            )
        device = choose_device(self.device)
        self.networks_on(device)
        hops = [hop.to(device).unsqueeze(0) for hop in self.released_on(graph).hops[1:]]
        return self._own_neighbours(self._stages(graph), graph, hops).scores()

    def _check_class_codes(self, what: str) -> None:
        """Refuse what reads messages as class codes where they are the user's own."""
        if self.messages is not None:
            raise InputError(
                f"`messages` must be left out for {what}, which reads sums as class codes. "
                f"Got {self.messages!r}."
            )

    def _own_neighbours(
        self, stages: Stages, graph: Graph, hops: Sequence[Tensor]
    ) -> OwnNeighbours:
        settings = self.plan_.settings
        return OwnNeighbours(
            stages, graph, hops, self._hop_std(graph), settings.symmetrises and graph.is_directed
        )

    def _hop_std(self, graph: Graph) -> float:
        """Return the standard deviation of the hops' noise along one edge type."""
        is_symmetrised = self.plan_.settings.symmetrises and graph.is_directed
        operator = Symmetrized if is_symmetrised else Neighbors
        sensitivity = operator.bound(self.relation_on(graph))
        assert self.noise_multiplier_ is not None
        return self.noise_multiplier_ * sensitivity

    # Nodes added after training -----------------------------------------------------------------

    def _beside_training(self, graph: Graph | None) -> NewPeople:
        """Return the new nodes of a graph together with those of the training graph."""
        if graph is None:
            raise InputError("Give the graph with the new people.")
        self.edges_.check(graph)
        if graph.is_directed != self.edges_.is_directed:
            raise InputError(
                "new people's edges must have a direction if those of training had one, and none "
                "otherwise. Got the other."
            )
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        # Without folds hop 0 is recomputed from features; with folds its rows were released.
        needs_rows = not self.plan_.settings.folds
        return NewPeople.beside(graph, self.releases_.training(), needs_rows=needs_rows)

    def _stages_of(self, new: NewPeople, device: torch.device) -> Stages:
        return replace(self._stages(new.graph), known=new.rows_of_known(device))

    def scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        """Return class scores of the nodes of a graph that were not in the training graph."""
        self._check_class_codes("new_people")
        new, device = self._beside_training(graph), choose_device(self.device)
        self.networks_on(device)
        if own == "record":
            self._check_own_record()
            stages, hops = self._stages_of(new, device), new.with_nothing_released(device)
            return self._own_neighbours(stages, new.graph, hops).scores()[: new.count]
        if own not in (None, "features"):
            check_choice("own", own, ("features", "record"))
        if self.edges_unread():
            return self.class_scores(induced(new.graph, np.arange(new.count)))
        ledger, is_paid, people = Ledger(self.ledger), self.level != "none", new.people
        released = self.releases_.find_for(new.ids, people.fingerprint, ledger, is_paid=is_paid)
        if released is None:
            released = self.release_once(
                self._plan_of_new(new),
                new.graph,
                people,
                lambda session: self._read_new(new, session),
                purpose="prediction for new people",
            )
        return self.scores_from(released, None, device)

    def _check_own_record(self) -> None:
        """Refuse to read the node's own neighbours unless the level is edge."""
        if self.level != "edge":
            raise InputError(
                "`own` must be features unless the level is edge: it is from what neighbours send "
                f"that they vote. Got 'record' at level {self.level}."
            )

    def guarantee_of_new(self, graph: Graph, own: str | None) -> Guarantee | None:
        """Return the guarantee of predictions for new nodes; None if they are free."""
        new = self._beside_training(graph)
        if own == "record" or self.level == "none" or self.edges_unread():
            return None
        ledger, fingerprint = Ledger(self.ledger), new.people.fingerprint
        if self.releases_.find_for(new.ids, fingerprint, ledger) is not None:
            return None
        return self._plan_of_new(new).promise

    def people_charged(self, graph: Any, *, new_people: bool = False) -> People:
        """Return whom a prediction on a graph is charged to: of new nodes, all that edges name."""
        graph = self._as_trained(graph)
        return self._beside_training(graph).people if new_people else People.of(graph)

    def _plan_of_new(self, new: NewPeople) -> Plan[LabelGAPSettings]:
        """Return the release of new nodes' rows, at the delta of the training.

        An automatic delta would be large for few new edges.
        """
        delta = self.delta if self.card_.delta is None else self.card_.delta
        return self.priced(
            new.graph, self.prediction_events(len(new.graph.edge_types)), delta=delta
        )

    def _read_new(self, new: NewPeople, session: PrivateSession) -> ReleasedHops:
        """Read the new edges of a charged graph, and keep the rows of the new nodes."""
        stages = self._stages_of(new, session.options.device)
        rows, _ = self._kept(*self._run(session, new.graph, stages))
        kept = tuple(hop[0].detach().clone()[: new.count] for hop in rows)
        fingerprint = new.people.fingerprint
        return self.releases_.add_for(new.ids, fingerprint, session.charge, kept, has_hop_zero=True)

    # Card and folder ----------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """Return the class prior at which codes are centred."""
        return {"class_prior": self.class_prior_.to_dict()}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Restore the class prior."""
        prior = ClassPrior.from_dict(learned["class_prior"], self.num_classes_)
        if prior is None:
            raise ValueError("a class prior must be given. Got none.")
        self.class_prior_ = prior

    def public_facts(self, *args: Any) -> tuple[tuple[str, str], ...]:
        """Return the facts assumed public, including the class prior."""
        return (*super().public_facts(*args), self.class_prior_.fact())

    def card_facts(self) -> ReleaseFacts:
        """Return the card's facts about LabelGAP."""
        steps = self.steps_taken(
            "preparation", "training", "hop0", "classifier", "selection", "prediction"
        )
        settings, unread = self.plan_.settings, self.edges_unread()
        if unread:
            steps[steps.index("prediction")] = "features"
        messages = "posteriors" if settings.folds else "labels"
        return ReleaseFacts(
            method="Features only" if unread else "LabelGAP",
            messages=messages if self.messages is None else "own messages",
            edges_unread=unread,
            steps=steps,
        )
