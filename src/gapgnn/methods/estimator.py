"""The estimator that every method is: scikit-learn's contract over graphs.

``fit`` checks the input, makes the plan, opens a session, which charges it, and only then trains
(privacy page, sections 3 and 6). A method says what is planned, builds its networks, trains them
through the session, and answers.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from typing_extensions import TypeVar

from gapgnn.errors import InputError, PrivacyError, UnavailableError, check_all
from gapgnn.graph import (
    Graph,
    align_features,
    as_graph,
    check_declared,
    check_trainable,
    has_only_positions,
    random_split,
)
from gapgnn.graph.datasets import default_metric
from gapgnn.graph.tables import Preparation, Schema
from gapgnn.methods.checks import (
    check_batches,
    check_budget,
    check_level,
    check_run,
    check_sizes,
    choose_device,
    free_memory,
)
from gapgnn.methods.configs import MethodConfig, own_pieces
from gapgnn.methods.decisions import (
    RepeatAnswers,
    answers_of_repeats,
    check_classes,
    criterion_of,
    decide,
    positive_class,
    thresholds_of,
    weights_of,
)
from gapgnn.methods.edgefacts import EdgeFacts
from gapgnn.methods.importance import Importance, column_groups, permutation_importance
from gapgnn.methods.own_networks import check_pieces, describe_piece
from gapgnn.methods.releases import ReleasedHops, Releases
from gapgnn.methods.settings import Settings
from gapgnn.methods.unused import Unused, described, given_unused, refuse_unused
from gapgnn.nn import count_replicas, replica_state, reset_replicas
from gapgnn.privacy import (
    Checkpoint,
    Guarantee,
    NoCheckpoint,
    OutDegreeNormalized,
    Plan,
    PlannedHops,
    PlannedTraining,
    PrivateSession,
    PublicFacts,
    Relation,
    SessionOptions,
    resolve_relation,
)
from gapgnn.privacy.accounting import Event
from gapgnn.privacy.card import PrivacyCard, ReleaseFacts, public_facts
from gapgnn.privacy.ledger import People
from gapgnn.rng import NoiseKey, experiment_torch
from gapgnn.training import (
    Callback,
    History,
    Inputs,
    Metrics,
    Recipe,
    Splits,
    Trainer,
    announce,
    measure,
    quote,
    repeat_splits,
    row_by_row,
    watched,
)

if TYPE_CHECKING:
    import pandas

Self = TypeVar("Self", bound="NodeClassifier[Any]")
S = TypeVar("S", bound=Settings, default=Any)


@dataclass(frozen=True)
class Shape:
    """How large networks are: replicas, features and classes, and the number of edge types."""

    replicas: int
    features: int
    classes: int
    edge_types: int = 1


@dataclass
class Fit(Generic[S]):
    """One training run: the graph, its split, the open session, and the progress callback."""

    graph: Graph
    splits: Splits
    session: PrivateSession
    trainer: Trainer
    callback: Callback
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def plan(self) -> Plan[S]:
        """The plan that is carried out."""
        return self.session.plan

    @property
    def settings(self) -> S:
        """Every hyperparameter of the run."""
        return self.plan.settings

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.session.options.device

    @property
    def repeats(self) -> int:
        """Number of repeats trained together."""
        return len(self.session.options.keys)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of a block to ``seconds[phase]``."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def train(
        self, name: str, network: nn.Module, inputs: Inputs, *, trainer: Trainer | None = None
    ) -> None:
        """Train one network through the session; its time counts as encoder or classifier."""
        phase = "encoder" if name in ("encoder", "shallow") else "classifier"
        with self.timed(phase):
            self.session.train(name, network, trainer or self.trainer, inputs)

    def on_hop(self, hops: int) -> Callable[[], None]:
        """Announce the aggregation, and return what to call after each of its hops."""
        self.callback.start("aggregation", hops)
        return lambda: self.callback.advance("aggregation")


class Learned(Generic[S]):
    """What ``fit`` leaves behind and ``load`` brings back; none of it is a parameter."""

    plan_: Plan[S]
    num_features_: int
    num_classes_: int
    label_names_: tuple[str, ...] | None
    feature_names_: tuple[str, ...] | None
    schema_: Schema | None
    preparation_: Preparation | None
    edges_: EdgeFacts
    threshold_: float | None
    modules_: dict[str, nn.Module]
    releases_: Releases
    card_: PrivacyCard
    repeat_scores_: list[float]
    history_: History
    seconds_: dict[str, float]
    device_: str

    @property
    def noise_multiplier_(self) -> float | None:
        """The free noise multiplier of the fit; None where nothing is charged."""
        return self.plan_.promise.noise_multiplier

    @property
    def num_types_(self) -> int:
        """Number of edge types of the training graph."""
        return len(self.edges_.edge_types) or 1

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes as predictions name them: the user's labels, or numbers without them."""
        return np.array(self.label_names_ or range(self.num_classes_))

    @property
    def n_features_in_(self) -> int:
        """Number of feature columns."""
        return self.num_features_

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the feature columns; as in scikit-learn, not there if they have none."""
        if self.feature_names_ is None:
            raise AttributeError("The features of the training graph have no names.")
        return np.array(self.feature_names_, dtype=object)


class NodeClassifier(MethodConfig, Learned[S], BaseEstimator, ABC):  # type: ignore[misc]
    """Base of all methods: scikit-learn's estimator contract over graphs.

    ``fit(graph)`` never changes the graph, may be called again, and sets attributes that end in an
    underscore: ``card_`` (the privacy card), ``plan_`` (what was planned and carried out),
    ``repeat_scores_`` (test accuracy of every repeat), ``history_``, ``seconds_``, ``classes_``.
    With ``repeats`` above 1 the first repeat is the model; it is never exchanged for a better one
    (privacy page, section 2).

    ``history_["classifier"]["loss"]`` and ``["accuracy"]`` are the training loss and the validation
    accuracy of a phase, as far as they were reported: at node level neither is, because both would
    be computed from private labels without noise. Like ``repeat_scores_``, it is for the curator
    and never saved.

    Parameters are the fields of a configuration (:mod:`gapgnn.methods.configs`): stored as they are
    given, checked in ``fit``, which refuses those that are given and do nothing. A method of
    another package defines :meth:`plan`, :meth:`networks`, :meth:`train`, :meth:`class_scores` and
    :meth:`card_facts` (docs/how-to/extending.md).
    """

    method: ClassVar[str]
    settings_class: ClassVar[type[Settings]] = Settings
    levels: ClassVar[tuple[str, ...]] = ("none", "edge", "node")
    # Whether every release goes through the session's checkpoint, so that a run can be resumed.
    keeps_releases: ClassVar[bool] = False
    # Whether exact adjacency lists are read at edge level, which is put on the ledger's record.
    reads_lists: ClassVar[bool] = False
    # For attacks on one's own models: keep the class scores and the split of every repeat. Set on
    # an instance, and without an annotation, so that it is no parameter.
    _keeps_repeats = False
    # For a selection that has been charged: opens the session of a candidate. No parameter either.
    _opens: ClassVar[Callable[..., PrivateSession] | None] = None
    # Whether the graph came to `fit` without masks, so that `score` has to split it alike.
    _made_split = False

    if TYPE_CHECKING:
        # Which parameters there are is known by the method, not by who holds some method's class.
        def __init__(self, **parameters: Any) -> None: ...

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # the parameter is scikit-learn's
        """Level and epsilon, and every other parameter that differs from its default."""
        return described(self, N_CHAR_MAX)

    # What a method defines ----------------------------------------------------------------------

    @abstractmethod
    def plan(self, facts: PublicFacts) -> Plan[S]:
        """Return everything that a fit will release and every hyperparameter, from public facts.

        Noise is a ratio to one free multiplier, which :meth:`Plan.calibrated` finds.
        """

    @abstractmethod
    def networks(self, settings: S, shape: Shape) -> dict[str, nn.Module]:
        """Return the networks, untrained: of each, one replica or more for every repeat."""

    @abstractmethod
    def train(self, fit: Fit[S]) -> Tensor:
        """Train all repeats and return their class scores, shape (repeats, nodes, classes)."""

    @abstractmethod
    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores of the fitted model, (nodes, classes); None is the training graph."""

    @abstractmethod
    def card_facts(self) -> ReleaseFacts:
        """Return the privacy card's facts about this method."""

    def check_parameters(self) -> None:
        """Raise if one of the method's own parameters is invalid."""

    def check_edges(self, graph: Graph) -> None:
        """Raise if the method does not support such edges; by default all are accepted."""

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters without an effect, given the others.

        ``check`` refuses those that are given. A method adds its own to those of its base.
        """
        at = f"at level {self.level}"
        if not self.draws_noise():
            free = "nothing is protected" if self.level == "none" else "nothing private is released"
            why = f"{at}: {free}, so no noise is drawn and nothing is charged"
            # What the card says.
            yield Unused(("epsilon",), why, (math.inf,) if self.level == "none" else ())
            yield Unused(("delta",), why, () if self.level == "none" else (0.0,))
            yield Unused(("noise", "insecure_noise_seed", "reason"), why)
        if self.level != "node":
            yield Unused(("clip",), f"{at}: gradients are clipped at level node only")
            yield Unused(
                ("train_size",),
                f"{at}: the number of training people is rounded or declared at level node only",
            )
        if self.repeats == 1:
            yield Unused(
                ("split",), "with one repeat: it says how repeats after the first are split"
            )

    def unused_on(self, graph: Graph) -> Iterator[Unused]:
        """Yield the parameters without an effect on this graph, from its public facts."""
        return iter(())

    def draws_noise(self) -> bool:
        """Whether a fit makes a noisy release of private data, which is charged."""
        return self.level != "none"

    def weighs_answers(self) -> bool:
        """Whether class weights shift the scores of trained networks instead of their loss.

        In the limit of many nodes both are equivalent. Networks trained without weights give
        calibrated posteriors, which messages need, and their ranking does not depend on the
        weights.
        """
        return False

    def recipe(self, num_train: int) -> Recipe:
        """Return the training settings with ``auto`` filled in."""
        return Recipe.resolve(
            level=self.level,
            num_train=num_train,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            clip=self.clip,
        )

    def learned(self) -> dict[str, Any]:
        """Return what ``fit`` learned beside weights and releases, as JSON holds it."""
        return {}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Take back what :meth:`learned` returned; raise ValueError where it cannot be."""

    # The parts of a plan ------------------------------------------------------------------------

    def relation_on(self, facts: PublicFacts | Graph) -> Relation:
        """Return the relation that holds on a graph."""
        return resolve_relation(self.level, self.relation, is_directed=facts.is_directed)

    def settings(
        self, settings_class: type[S], facts: PublicFacts, recipe: Recipe, **own: Any
    ) -> S:
        """Return settings of a class, with the fields that all methods share filled in."""
        weights = weights_of(self, facts)
        shifts = self.weighs_answers()
        return settings_class(
            recipe=recipe,
            batch_norm=self.uses_batch_norm(),
            loss_weights=None if shifts else weights,
            answer_weights=weights if shifts else None,
            **own,
        )

    def make_plan(
        self,
        facts: PublicFacts,
        settings: S,
        *,
        template: Sequence[Event] = (),
        fixed: Sequence[Event] = (),
        hops: Mapping[str, PlannedHops] | None = None,
        training: Mapping[str, PlannedTraining] | None = None,
        **more: Any,
    ) -> Plan[S]:
        """Return a plan of this method with what all plans share filled in."""
        unpriced = Guarantee.unpriced(
            facts.counts, relation=self.relation_on(facts), delta=self.delta
        )
        return Plan(
            **{
                "method": self.method,
                "relation": unpriced.relation,
                "budget": self.epsilon,
                "delta": unpriced.delta,
                "settings": settings,
                "facts": facts,
                "template": tuple(template),
                "fixed": tuple(fixed),
                "hops": dict(hops or {}),
                "training": dict(training or {}),
                **more,
            }
        )

    def after_release(self) -> frozenset[str]:
        """Return the parameters that act after the last release alone, below node level.

        Models that differ in nothing else share their releases: to compare them is post-processing
        (privacy page, section 10). What a method does not name counts as asking the graph again.
        """
        return frozenset({"threshold"})

    def uses_batch_norm(self) -> bool:
        """Whether networks normalise batches."""
        return self.level != "node" if self.batch_norm == "auto" else bool(self.batch_norm)

    def add_remove_epsilon(self, relation: Relation) -> float:
        """Return the budget under ``add-remove`` that buys as little noise; 0 at other levels."""
        if self.level != "node":
            return 0.0
        return self.epsilon / OutDegreeNormalized.bound(relation)

    # Fitting ------------------------------------------------------------------------------------

    def fit(
        self: Self,
        graph: Any,
        y: None = None,
        *,
        callback: Callback | None = None,
        progress: bool | None = None,
        checkpoint: Checkpoint | None = None,
        curator_only: str | None = None,
    ) -> Self:
        """Train on a graph and return the estimator itself.

        The data set's ledger is charged before anything private is computed; if it has too little
        left, nothing is computed and :class:`~gapgnn.errors.BudgetExceededError` is raised.

        Args:
            graph: in memory or in a store, or whatever :func:`~gapgnn.graph.as_graph` takes: a PyG
                ``Data``, a NetworkX graph, what ``read_tables`` returned. One without any mask gets
                the standard split, :func:`~gapgnn.graph.random_split` by ``seed``, and a warning
                says so.
            y: for scikit-learn's sake; labels are part of the graph.
            callback: receives the progress.
            progress: show bars; left out: on a terminal and in a notebook, unless there is a
                callback.
            checkpoint: keeps finished steps, for a run that can be killed and resumed.
            curator_only: at level none, why the curator looks at people with a budget without
                spending it; written to the ledger. Without it they are refused.
        """
        start = time.perf_counter()
        self.check()
        graph = as_graph(graph, not_finite="zero" if self.level == "node" else "refuse")
        if y is not None:
            raise InputError("`y` must be left out: labels are part of the graph. Got some.")
        if self.level == "node":
            check_declared(graph)
        has_split = graph.has_split
        if not has_split and (graph.labels >= 0).any():
            self._say_split(graph)
            graph = random_split(graph, seed=self.seed)
        with watched(callback, progress, on=choose_device(self.device).type) as watcher:
            self._fit(graph, watcher, checkpoint, curator_only, start)
            self.history_ = watcher.history
        self._made_split = not has_split
        return self

    def _say_split(self, graph: Graph) -> None:
        """Tell that the graph is split here, and how: in shares, as counts may be private."""
        positions = ""
        if self.level == "node" and graph.preparation is None and has_only_positions(graph.ids):
            positions = (
                " Ids are positions here, so nobody's may change when somebody leaves: better give "
                "`ids`."
            )
        warnings.warn(
            f"the graph has no masks, so it was split by a public hash of (seed {self.seed}, id): "
            "about 75% to train, 10% to validate, 15% to test. `score` takes the same split; "
            f"`random_split` makes another.{positions}",
            stacklevel=3,
        )

    def _fit(
        self,
        graph: Graph,
        callback: Callback,
        checkpoint: Checkpoint | None,
        curator_only: str | None,
        start: float,
    ) -> None:
        """Check, plan, calibrate, charge, and only then train (privacy page, section 6)."""
        plan = self._checked_plan(graph)
        if checkpoint is not None and not self.keeps_releases:
            raise InputError(f"`checkpoint` must be None for {self.method}: it keeps no releases.")
        session = self._session(plan, graph, callback, checkpoint, curator_only)
        # What cannot be built, trained or held must fail here, before the charge.
        self._check_memory(graph, session.options.device, plan)
        shape = Shape(1, graph.num_features, graph.num_classes, len(graph.edge_types))
        for option in plan.options or (plan,):
            session.check_noise(list(self.networks(option.settings, shape).values()))
        splits = repeat_splits(
            graph, level=self.level, repeats=self.repeats, split=self.split, seed=self.seed
        )
        seconds = {"calibrate": time.perf_counter() - start}
        session.open()
        trainer = self._trainer(graph, splits, plan, callback, session.options.device)
        fit: Fit[S] = Fit(graph, splits, session, trainer, callback, seconds)
        self._begin(fit)
        scores = self._weighed(self.train(fit))
        self.plan_ = fit.plan
        self._evaluate(scores, splits, graph, plan.facts)
        if self._keeps_repeats:
            self._repeats = scores.detach().cpu(), splits
        self._keep_first_repeat()
        session.close()
        self._people = graph.ids, _masks(graph)
        self.card_ = session.card(self._release_facts(graph, fit.plan, plan.facts))
        seconds["total"] = time.perf_counter() - start
        self.seconds_ = seconds

    def _session(
        self,
        plan: Plan[S],
        graph: Graph,
        callback: Callback,
        checkpoint: Checkpoint | None,
        curator_only: str | None,
    ) -> PrivateSession:
        """Return the session of a fit, not yet opened."""
        if self._opens is not None:
            return self._opens(self, self.released_graph(graph))
        return PrivateSession(
            plan,
            self.released_graph(graph),
            self._session_options(self._noise_keys(), curator_only),
            purpose="fit",
            people=People.of(graph),
            checkpoint=checkpoint or NoCheckpoint(),
            about={"params": self.saved_parameters()},
            announce=lambda text: quote(callback, text),
            reads_lists=self.reads_lists,
        )

    def _checked_plan(self, graph: Graph) -> Plan[S]:
        """Return the calibrated plan for a graph that can be trained on."""
        check_trainable(graph, level=self.level)
        facts = PublicFacts.of(graph, level=self.level, train_size=self.train_size)
        check_classes(self, graph, facts)
        self.check_edges(graph)
        refuse_unused(self, self.unused_on(graph))
        return self.plan(facts).calibrated(self.delta)

    def _begin(self, fit: Fit[S]) -> None:
        """Forget an earlier fit, and learn what follows from the graph and the plan alone."""
        graph = fit.graph
        # Unfitted until the end: an interrupted fit must not keep an earlier fit's card.
        self.__dict__.pop("card_", None)
        self.plan_ = fit.plan
        self.releases_ = Releases()
        self.num_features_ = graph.num_features
        self.num_classes_ = graph.num_classes
        self.label_names_ = graph.label_names
        self.feature_names_ = graph.feature_names
        self.schema_ = graph.schema
        self.preparation_ = graph.preparation
        self.edges_ = EdgeFacts.of(graph)
        self.device_ = str(fit.device)
        if not fit.plan.options:
            self.start_networks(fit)

    def start_networks(self, fit: Fit[S]) -> dict[str, nn.Module]:
        """Build the networks of all repeats, each initialised from its own seed."""
        graph = fit.graph
        shape = Shape(fit.repeats, graph.num_features, graph.num_classes, self.num_types_)
        self.modules_ = self.networks(fit.settings, shape)
        # What is solved has no steps to watch. A method's own network is its classifier.
        trained = (name for name, part in self.modules_.items() if _is_trained(part))
        phases = ["classifier" if name == self.method else name for name in trained]
        announce(fit.callback, phases)
        for name, module in self.modules_.items():
            # A repeat may have several networks under one name.
            members = count_replicas(module) // fit.repeats
            generators = [
                experiment_torch(self.seed, "initial", name, repeat, *([member] if member else []))
                for repeat in range(fit.repeats)
                for member in range(members)
            ]
            reset_replicas(module, generators)
            module.to(fit.device)
        return self.modules_

    def _trainer(
        self,
        graph: Graph,
        splits: Splits,
        plan: Plan[S],
        callback: Callback,
        device: torch.device,
    ) -> Trainer:
        """Return the one training loop, set up for this run."""
        assert plan.facts is not None
        weights = plan.settings.loss_weights
        return Trainer(
            labels=torch.tensor(graph.labels, device=device),
            splits=splits,
            num_train=plan.facts.num_train,
            recipe=plan.settings.recipe,
            seed=self.seed,
            callback=callback,
            class_weights=None if weights is None else torch.tensor(weights, device=device),
            criterion=criterion_of(self, graph),
        )

    def _weighed(self, scores: Tensor) -> Tensor:
        """Return class scores as they are where a node of each class counts its weight."""
        if self.plan_.settings.answer_weights is None:
            return scores
        weights = self.plan_.settings.answer_weights
        shift = torch.tensor(weights, dtype=torch.float64, device=scores.device).log()
        return (scores.double() + shift).to(scores.dtype)

    def _evaluate(
        self, scores: Tensor, splits: Splits, graph: Graph, facts: PublicFacts | None
    ) -> None:
        """Set the threshold, and keep what is needed to say how good every repeat is."""
        assert facts is not None
        thresholds = thresholds_of(self, facts, scores, splits, graph)
        self.threshold_ = thresholds[0]
        positive = positive_class(self, graph)
        self._tested: list[RepeatAnswers] = answers_of_repeats(
            scores, splits, graph, thresholds, positive
        )
        self._metrics: list[Metrics] | None = None  # computed when they are asked for
        if self.threshold is None:
            self.repeat_scores_ = splits.test_accuracies(scores, graph.labels)
        else:
            names = graph.label_names
            self.repeat_scores_ = [tested.metrics(names).accuracy for tested in self._tested]

    def _keep_first_repeat(self) -> None:
        """Drop the networks of the repeats after the first."""
        shape = Shape(1, self.num_features_, self.num_classes_, self.num_types_)
        first = self.networks(self.plan_.settings, shape)
        for name, module in first.items():
            state = replica_state(self.modules_[name], 0, count_replicas(module))
            module.load_state_dict(state)
            module.eval()
        self.modules_ = first

    # Plans and prices ---------------------------------------------------------------------------

    def plan_for(self, graph: Any) -> Plan[S]:
        """Return what one fit on a graph would release and cost; nothing is charged or trained.

        With ``repeats`` above 1 the price is that of each.
        """
        self.check()
        is_node = self.level == "node"
        graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        graph = self._split_as_fitted(graph, is_made=True)
        if is_node:
            check_declared(graph)
        return self._checked_plan(graph)

    def guarantee(self, graph: Any) -> Guarantee:
        """Return what one fit on a graph would promise and cost; see :meth:`plan_for`."""
        return self.plan_for(graph).promise

    def unused_parameters(self, graph: Any = None) -> dict[str, str]:
        """Return the parameters that are given and do nothing, each with its refusal.

        ``fit`` refuses them. Whoever makes several models from one set of parameters leaves them
        out where they do nothing.

        Args:
            graph: to train on; left out: those that do nothing on any graph.
        """
        found = [*self.unused()]
        if graph is not None:
            found += self.unused_on(as_graph(graph))
        return {name: str(error) for name, error in given_unused(self, found)}

    def check(self) -> None:
        """Raise if parameters cannot work, about all of them at once, before any data is read."""
        check_level(self)
        check_all(
            lambda: check_run(self),
            lambda: check_sizes(self),
            lambda: check_budget(self),
            lambda: check_pieces(self),
            self.check_parameters,
            lambda: refuse_unused(self, self.unused()),
            # As in a graph that is large enough for any batch.
            lambda: self.recipe(sys.maxsize),
            lambda: check_batches(self, uses_batch_norm=self.uses_batch_norm()),
        )

    def space_needed(self, graph: Graph) -> int:
        """Return how many bytes a fit holds at the least, in memory and in the model's folder."""
        return 4 * self.repeats * graph.num_nodes * max(1, graph.num_classes)

    def _check_memory(self, graph: Graph, device: torch.device, plan: Plan[S]) -> None:
        """Refuse a fit that cannot end well, rather than charge it first."""
        free = free_memory(device)
        needed = self.space_needed(graph), self._space_of_networks(graph, plan)
        if free is not None and max(needed) > free:
            fewer = "fewer repeats" if needed[0] >= needed[1] else "a smaller `hidden`"
            raise UnavailableError(
                f"training must hold at least {max(needed) / 2**30:.3g} GiB. Got "
                f"{free / 2**30:.3g} GiB of free memory; nothing was charged. Use {fewer} or "
                "a machine with more."
            )

    def _space_of_networks(self, graph: Graph, plan: Plan[S]) -> int:
        """Return how many bytes training holds at the least: weights and a layer of some nodes.

        Each weight is there four times: itself, its gradient and the two moments of Adam.
        """
        shape = Shape(1, graph.num_features, graph.num_classes, len(graph.edge_types))
        settings = (plan.options or (plan,))[0].settings
        with torch.device("meta"):
            modules = self.networks(settings, shape)
        weights = sum(one.numel() for module in modules.values() for one in module.parameters())
        hidden = getattr(self, "hidden", 0)
        layer = min(graph.num_nodes, 4096) * hidden if isinstance(hidden, int) else 0
        return 4 * self.repeats * (4 * weights + layer)

    def saved_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them, without those of this machine.

        Functions of the user's own are named alone: a folder holds no code.
        """
        own = {name: describe_piece(getattr(self, name)) for name in own_pieces(type(self))}
        return {
            # JSON has no infinity, which epsilon may be at level none.
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in {**self.get_params(), **own}.items()
            if k not in ("ledger", "device", "reason")
        }

    def _noise_keys(self) -> list[NoiseKey]:
        """Return one key per repeat: secret unless seeded, which the card reports."""
        if self.insecure_noise_seed is None:
            return [NoiseKey.fresh() for _ in range(self.repeats)]
        key = NoiseKey.insecure(self.insecure_noise_seed)
        return [key.derive("repeat", repeat) for repeat in range(self.repeats)]

    def _session_options(
        self, keys: Sequence[NoiseKey], curator_only: str | None = None
    ) -> SessionOptions:
        return SessionOptions(
            keys=keys,
            noise=self.noise,
            is_seeded=self.insecure_noise_seed is not None,
            device=choose_device(self.device),
            ledger=self.ledger,
            reason=self.reason,
            curator_only=curator_only,
        )

    # The card -----------------------------------------------------------------------------------

    def released_graph(self, graph: Graph) -> Graph:
        """Return the graph whose nodes a release has rows for, in their order."""
        return graph

    def _release_facts(
        self, graph: Graph, plan: Plan[S], facts: PublicFacts | None
    ) -> ReleaseFacts:
        """Return what the card says beside the transcript."""
        assert facts is not None
        bounds = [hops.max_degree for hops in plan.hops.values() if hops.max_degree is not None]
        max_degree = bounds[0] if bounds and self.level == "node" else None
        own = self.card_facts()
        steps = [*own.steps]
        if isinstance(self.threshold, str):
            steps.append(f"{self.threshold} threshold")
        public = self.public_facts(graph, plan, facts, max_degree)
        return replace(own, steps=steps, public=public)

    def steps_taken(self, *steps: str) -> list[str]:
        """Return steps of the card, with batch statistics and own pieces if there are any."""
        given = any(getattr(self, name) is not None for name in own_pieces(type(self)))
        more = {"statistics": self.plan_.settings.batch_norm, "own pieces": given}
        return [*steps, *(step for step, is_taken in more.items() if is_taken)]

    def public_facts(
        self, graph: Graph, plan: Plan[S], facts: PublicFacts, max_degree: int | None
    ) -> tuple[tuple[str, str], ...]:
        """Return every fact of the data that this release takes to be public."""
        promise = plan.promise
        return public_facts(
            self.level,
            num_train=facts.num_train,
            train_size_is_declared=self.train_size != "auto",
            delta_is_auto=promise.delta_is_auto,
            is_delta_compared=bool(promise.delta),
            inferred=graph.inferred,
            has_schema=graph.schema is not None,
            max_degree=max_degree,
            edge_types=self.edges_.edge_types,
            weight_bounds=self.edges_.bounds,
        )

    # Answers ------------------------------------------------------------------------------------

    def _split_as_fitted(self, graph: Graph, *, is_made: bool) -> Graph:
        """Return a graph without roles with those that ``fit`` gives, where it makes the split."""
        if not is_made or graph.has_split or not (graph.labels >= 0).any():
            return graph
        return random_split(graph, seed=self.seed)

    def predict_proba(
        self,
        graph: Any = None,
        *,
        own: Literal["features", "record"] | None = None,
        new_people: bool = False,
    ) -> NDArray[np.float32]:
        """Return class probabilities, one row per node of ``graph``.

        For the training graph the cached noisy hops answer and no budget is spent; it may be left
        out except at node level. For another graph (the inductive setting) see the method's own
        notes: it has its own price. Where both the model and the graph know the names of their
        features, columns are matched by name: those the model does not know are left out and those
        the graph lacks are 0.

        Args:
            graph: whose nodes to predict.
            own: what a prediction reads of its own person, where that is chosen at prediction:
                LabelGAP at edge level. With ``record`` it also reads the node's own neighbours,
                free of charge, and is for that person alone (privacy page, section 1).
            new_people: answer for the people of ``graph`` alone who were not in the graph of
                training, in their order, from their edges to each other and to people who were:
                LabelGAP. Their rows are released and charged to everybody these edges name; with
                ``own="record"`` nothing is.
        """
        self.check_fitted()
        graph = None if graph is None else self._as_trained(graph)
        with torch.no_grad():
            if new_people:
                scores = self.scores_of_new(graph, own)
            else:
                scores = self.class_scores(graph) if own is None else self.scores_with(graph, own)
            found = torch.softmax(self._weighed(scores).double(), dim=-1)
        result: NDArray[np.float32] = found.float().cpu().numpy()
        return result

    def _as_trained(self, graph: Any) -> Graph:
        """Return a graph with the feature columns of the training, in their order."""
        found: Graph = as_graph(graph)
        names = self.feature_names_
        if names is not None and found.feature_names is not None:
            found = align_features(found, names)
        if found.num_features != self.num_features_:
            raise InputError(
                f"The graph must have the {self.num_features_} features the model was trained on. "
                f"Got {found.num_features}."
            )
        return found

    def predict(
        self,
        graph: Any = None,
        *,
        own: Literal["features", "record"] | None = None,
        new_people: bool = False,
    ) -> NDArray[Any]:
        """Return the predicted class of every node of ``graph``, one of ``classes_``.

        With a threshold it is that of :meth:`decide`, without one the most probable class. What is
        read, charged and may be handed out is what :meth:`predict_proba` says.
        """
        found = self.predict_proba(graph, own=own, new_people=new_people)
        classes: NDArray[Any] = self.classes_[self.decide(found)]
        return classes

    def scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        """Return class scores of the people of a graph who were not in the graph of training."""
        raise InputError(
            f"`new_people` must be left out for {self.method}: only label-gap keeps rows that new "
            "people's neighbours send from. Give the whole graph to predict on."
        )

    def scores_with(self, graph: Graph | None, own: str) -> Tensor:
        """Return class scores that read of their own person what is asked for at prediction."""
        reason = (
            "it is chosen when training" if self.level == "node" else "it keeps nothing to read"
        )
        raise InputError(
            f"`own` must be left out for {self.method} at level {self.level}: {reason}. "
            f"Got {own!r}."
        )

    def decide(self, found: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the class that is answered for probabilities ``(nodes, classes)``.

        The most probable one, or with a threshold the second class from that probability on.
        """
        return decide(found, self.threshold_)

    def score(self, graph: Any, metric: str | None = None) -> float:
        """Return one figure on the nodes of the graph's test mask.

        Computed from the test labels without noise: at node level a figure for the curator.

        Args:
            graph: with a test mask.
            metric: ``accuracy``, ``balanced_accuracy``, ``macro_f1``, ``auc``,
                ``average_precision``, ``recall_at_top_1_percent`` or ``recall_at_top_5_percent``;
                left out: the model's own, and where that is auto what publications give for a
                registered data set, accuracy for others.
        """
        graph = as_graph(graph)
        chosen = default_metric(graph) if self.metric == "auto" else self.metric
        return self.metrics(graph).get(metric or chosen)

    def metrics(self, graph: Any) -> Metrics:
        """Return all figures on the nodes of the graph's test mask; as private as :meth:`score`."""
        graph = self._split_as_fitted(as_graph(graph), is_made=self._made_split)
        if not graph.test_mask.any():
            raise InputError(
                "`graph` must have a test mask to be scored. Got no test node; use `random_split`."
            )
        mask = graph.test_mask & (graph.labels >= 0)
        found = self.predict_proba(graph)[mask]
        answers, positive = self.decide(found), positive_class(self, graph)
        return measure(found, answers, graph.labels[mask], graph.label_names, positive)

    def importance(
        self, graph: Any, *, metric: str | None = None, repeats: int = 5, seed: int = 0
    ) -> list[Importance]:
        """Return what the nodes' own features and what their neighbours contribute.

        Each input is exchanged among the test nodes: all features, each named feature, all hops,
        and each hop. Released rows are read again and nothing is charged. Computed from the test
        labels without noise: at node level for the curator.

        Args:
            graph: that the model was trained on, or has released hops of, with a test mask.
            metric: as for :meth:`score`.
            repeats: number of permutations of each input.
            seed: of the permutations.

        Returns:
            How much the metric falls without each input, the largest fall first.
        """
        self.check_fitted()
        graph = self._split_as_fitted(self._as_trained(graph), is_made=self._made_split)
        chosen = default_metric(graph) if self.metric == "auto" else self.metric
        released, scores = self.importance_inputs(graph)
        return permutation_importance(
            self,
            graph,
            released=released,
            score=lambda given, rows: self._weighed(scores(given, rows)),
            metric=metric or chosen,
            repeats=repeats,
            seed=seed,
            columns=column_groups(graph.feature_names or ()),
        )

    def importance_inputs(
        self, graph: Graph
    ) -> tuple[ReleasedHops | None, Callable[[Graph, ReleasedHops | None], Tensor]]:
        """Return released rows of a graph, and class scores from its features and such rows."""
        raise InputError(
            f"`importance` must be asked of a method that reads features and released hops apart. "
            f"Got {self.method}."
        )

    def to_frame(self, graph: Any = None) -> pandas.DataFrame:
        """Return the predictions as a pandas ``DataFrame``, one row per node.

        Columns: ``id``, ``prediction`` (the name of the class, where classes have names),
        ``probability of CLASS`` for each class, and ``role``: what the node was for in training
        (``training``, ``validation``, ``test``, or ``none``). Roles come from the masks of the
        graph, or from the split that ``fit`` made; a loaded model without a graph knows none and
        leaves the column out. What may be handed out is what :meth:`predict_proba` says.

        Args:
            graph: as :meth:`predict_proba` takes it.
        """
        try:
            import pandas
        except ImportError:
            raise UnavailableError(
                "`to_frame` needs the package pandas. Install gapgnn[frames]."
            ) from None
        graph = None if graph is None else as_graph(graph)
        found = self.predict_proba(graph)
        names = self.classes_
        if graph is None:
            ids, masks = getattr(self, "_people", (self.releases_.training().ids, None))
        else:
            split = self._split_as_fitted(graph, is_made=self._made_split)
            ids, masks = graph.ids, _masks(split)
        columns: dict[str, Any] = {
            "id": ids.tolist(),
            "prediction": names[self.decide(found)],
        }
        columns |= {f"probability of {name}": found[:, k] for k, name in enumerate(names)}
        if masks is not None:
            # No node is in two of them.
            places = sum(place * mask for place, mask in enumerate(masks, start=1))
            columns["role"] = np.array(["none", "training", "validation", "test"])[places]
        return pandas.DataFrame(columns)

    @property
    def repeat_metrics_(self) -> list[Metrics]:
        """All figures of every repeat on its own test nodes; as private as :meth:`score`."""
        self.check_fitted()
        if not hasattr(self, "_tested"):
            raise NotFittedError("A loaded model has no test figures; call `metrics` with a graph.")
        if self._metrics is None:
            self._metrics = [tested.metrics(self.label_names_) for tested in self._tested]
        return self._metrics

    def check_fitted(self) -> None:
        """Raise unless the model was fitted, at the level that it has now."""
        if not hasattr(self, "card_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call `fit` or `load` first."
            )
        if self.level != self.card_.level:
            raise PrivacyError(
                f"`level` must be {self.card_.level}, at which the model was fitted. "
                f"Got {self.level!r}. Fit again at the new level."
            )

    def networks_on(self, device: torch.device) -> dict[str, nn.Module]:
        """Return the networks, moved to a device."""
        for module in self.modules_.values():
            module.to(device)
        return self.modules_

    def of_features(self, network: Callable[[Any], Tensor], features: Any) -> Tensor:
        """Return what a network makes of every node's features, (replicas, nodes, width).

        At node level nodes are read in batches of one size, so that nobody's last bits tell how
        many others there are.
        """
        return row_by_row(network, features) if self.level == "node" else network(features.all())

    def of_rows(self, network: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        """Return the class scores that a network gives to every node, as :meth:`of_features`."""
        with torch.no_grad():
            return self.of_features(network, inputs)

    # Folders ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the model to a new folder: weights, plan, card, released hops."""
        from gapgnn.methods.persistence import save

        self.check_fitted()
        save(self, Path(folder))

    def save_releases(self, folder: str | Path) -> None:
        """Add what was released since saving to the model's folder: it is never drawn again.

        The folder's card then lists it too, and what all releases come to. At level none nothing
        was paid for, so nothing needs to be kept.
        """
        from gapgnn.methods.persistence import save_releases

        if self.level != "none":
            save_releases(self, Path(folder))

    @classmethod
    def load(cls: type[Self], folder: str | Path, **overrides: Any) -> Self:
        """Read a model saved by :meth:`save`; it predicts exactly as the saved one did.

        Args:
            folder: the model's folder.
            overrides: ``device`` or ``ledger`` of this machine; and functions of your own that the
                model was trained with, which no folder holds.
        """
        from gapgnn.methods.persistence import load

        return load(cls, Path(folder), overrides)

    def check_loaded(self) -> None:
        """Raise ValueError if what a folder says of the method does not agree with itself."""


def _is_trained(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _masks(graph: Graph) -> tuple[NDArray[np.bool_], ...]:
    return graph.train_mask, graph.val_mask, graph.test_mask
