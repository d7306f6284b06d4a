"""The estimator contract that every method keeps, and the order in which a release happens.

``fit`` always goes: check the input, resolve the guarantee, calibrate, charge the ledger, and only
then touch private data (privacy page, sections 3 and 6). Subclasses fill in what is trained.
"""

from __future__ import annotations

import math
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from gapgnn.errors import (
    DataError,
    InputError,
    PrivacyError,
    UnavailableError,
    check_all,
    check_choice,
    check_integer,
    check_number,
)
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
from gapgnn.methods.edgefacts import EdgeFacts, check_plain
from gapgnn.methods.folder import add_releases, changing, load_folder, save_folder
from gapgnn.methods.journal import Journal, NoJournal
from gapgnn.methods.releases import ReleasedHops, Releases
from gapgnn.methods.unused import Unused, given_unused, refuse_unused
from gapgnn.nn import (
    build_network,
    count_replicas,
    describe_network,
    replica_state,
    reset_replicas,
)
from gapgnn.privacy import (
    LEVELS,
    Guarantee,
    OutDegreeNormalized,
    active_witness,
    check_delta,
    check_finite_budget,
    parse_relation,
    public_count,
    resolve_relation,
)
from gapgnn.privacy.accounting import (
    Event,
    Gaussian,
    MixtureOfGaussians,
    PoissonGaussian,
    account,
)
from gapgnn.privacy.card import (
    ChargedRelease,
    PrivacyCard,
    ReleaseFacts,
    make_card,
    noise_source,
    public_facts,
    rounded_up,
)
from gapgnn.privacy.dpsgd import check_size
from gapgnn.privacy.ledger import Charge, Ledger, People
from gapgnn.privacy.mechanisms import (
    PrivateAggregation,
    SafeOrFast,
    check_scale,
    kind_aggregations,
)
from gapgnn.rng import NoiseKey, experiment_torch
from gapgnn.training import (
    METRICS,
    Callback,
    Criterion,
    History,
    Metrics,
    PrivateTraining,
    Recipe,
    RowScale,
    Splits,
    Trainer,
    announce,
    best_threshold,
    class_weights,
    features_read,
    measure,
    node_learning_rate,
    quote,
    rarest_class,
    repeat_splits,
    share_threshold,
    watched,
)

if TYPE_CHECKING:
    import pandas

Self = TypeVar("Self", bound="NodeClassifier")

# Parameters of the machine and of the run that trained: a folder that was received decides neither
# which ledger is charged nor what the noise is (privacy page, section 7).
_NEVER_LOADED = ("ledger", "device", "reason", "insecure_noise_seed")


@dataclass
class Run:
    """Everything one ``fit`` needs to know beside the estimator's own parameters."""

    graph: Graph
    splits: Splits
    guarantee: Guarantee
    keys: list[NoiseKey]
    device: torch.device
    callback: Callback
    journal: NoJournal = field(default_factory=NoJournal)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def repeats(self) -> int:
        """Number of repeats trained together."""
        return len(self.keys)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of a block to ``seconds[phase]``."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


class Learned:
    """What ``fit`` leaves behind and ``load`` brings back; none of it is a parameter."""

    classes_: NDArray[np.int64]
    num_features_: int
    num_classes_: int
    label_names_: tuple[str, ...] | None
    feature_names_: tuple[str, ...] | None
    schema_: Schema | None
    preparation_: Preparation | None
    edges_: EdgeFacts
    noise_multiplier_: float | None
    row_scale_: RowScale | None
    threshold_: float | None
    modules_: dict[str, nn.Module]
    releases_: Releases
    card_: PrivacyCard
    repeat_scores_: list[float]
    history_: History
    seconds_: dict[str, float]
    device_: str
    # What a node of each class counts in answers; None where it counts in the loss, or alike.
    _answer_weights: Sequence[float] | None = None
    # What `auto` had been resolved to when a loaded model was saved; None in one fitted here.
    _resolved_at_save: Mapping[str, Any] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class NodeClassifier(Learned, BaseEstimator, ABC):  # type: ignore[misc]
    """Base of all methods: scikit-learn's estimator contract over graphs.

    ``fit(graph)`` never changes the graph, may be called again, and sets attributes that end in an
    underscore: ``card_`` (the privacy card), ``repeat_scores_`` (test accuracy of every repeat),
    ``history_``, ``seconds_``, ``classes_``. With ``repeats`` above 1 the first repeat is the
    model; it is never exchanged for a better one (privacy page, section 2).

    ``history_["classifier"]["loss"]`` and ``["accuracy"]`` are the training loss and the validation
    accuracy of each epoch of a phase, as far as they were reported (the latter every few steps
    where these read some nodes): at node level neither is,
    because both would be computed from private labels without noise, and on a GPU only to a run
    that is watched, as they take time there. Like ``repeat_scores_``, it is for the curator and
    never saved.

    Parameters are fields: stored as they are given, checked in ``fit``, which refuses those that
    are given and do nothing with the others as they are. Those that all methods
    share are declared here; a method adds its own and says where it differs.

    Args:
        level: what is protected: ``none``, ``edge`` (who is connected to whom) or ``node`` (a whole
            person).
        epsilon: privacy budget; smaller is more private. Left out where nothing is charged.
        delta: failure probability, 0 only where no Gaussian noise is; auto is the largest power of
            ten that is at most 1 / (10 times the protected entities).
        relation: which graphs are neighbours: at edge level undirected (one edge), directed (one
            arc), or up to so many links of one person: 5-edges, 5-arcs; at node level add-remove or
            replace. auto is undirected for a symmetric graph, directed otherwise, and add-remove at
            node level.
        batch_norm: batch normalisation; auto is on except at node level, where it is not allowed.
        epochs: passes over the training nodes; auto is 100, at node level 10.
        batch_size: nodes per step; auto is all of them, at node level 256 to 4096 by graph size.
        learning_rate: step size of the optimiser; auto is 0.01, at node level less where training
            people are few and the budget is ample.
        weight_decay: L2 penalty.
        optimizer: optimiser.
        clip: largest gradient norm of one node at node level.
        class_weight: balanced, or what a node of each class counts, by name or in
            order: high=10,low=1. Cross-fitted networks (GAP and MLP below node level) train
            without weights, and their answers are shifted by the logarithms of the weights; other
            networks weigh the loss. At node level weights scale clipped gradients, and balanced
            needs the rates of the classes declared in the schema.
        threshold: of two classes, the probability from which the second is answered. prior is its
            rate, declared in the schema or below node level counted among training nodes: whoever
            is above the average. Not at node level: auto is the best balanced accuracy, or the
            named metric, on validation nodes, and rate the probability that as many nodes exceed
            as are of the second class. Left out: the more probable class.
        metric: figure that decisions on validation labels follow: epoch, mixing weight and
            automatic threshold. auto is weighted accuracy for the epoch, log loss for the mixing
            weight and balanced accuracy for the threshold. Not at node level, where nothing is
            chosen by labels.
        positive: name of the class whose nodes are looked for, for average precision and the
            figures of the top 1 % and 5 %; left out: the rarest, by rates declared in the schema
            or else among training nodes.
        train_size: number of training people that is made public at node level, where the rate and
            the number of steps of DP-SGD follow from it; auto is their number rounded to two
            digits.
        noise: safe is exact on a fixed grid, for releases; fast is single precision, for
            experiments.
        insecure_noise_seed: makes the noise predictable, for tests and tables; the result is then
            not private and its card says so.
        repeats: independent models trained together; each is charged. The first is the model.
        split: whether repeats after the first draw fresh splits or keep the graph's own.
        seed: of splits, initial weights and shuffling; never of noise.
        device: where to compute.
        ledger: file of the privacy ledger; left out: the user's own.
        reason: why this is released, for the ledger.
    """

    level: Literal["none", "edge", "node"] = "edge"
    epsilon: float = 1.0
    delta: float | Literal["auto"] = "auto"
    relation: str = "auto"
    batch_norm: bool | Literal["auto"] = "auto"
    epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: float | Literal["auto"] = "auto"
    weight_decay: float = 0.0
    optimizer: Literal["adam", "sgd"] = "adam"
    clip: float = 1.0
    class_weight: str | Sequence[float] | Mapping[str, float] | None = None
    threshold: float | Literal["auto", "rate", "prior"] | None = None
    metric: Literal[
        "auto",
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "auc",
        "average_precision",
        "recall_at_top_1_percent",
        "recall_at_top_5_percent",
    ] = "auto"
    positive: str | None = None
    train_size: int | Literal["auto"] = "auto"
    noise: SafeOrFast = "safe"
    insecure_noise_seed: int | None = None
    repeats: int = 1
    split: Literal["fresh", "fixed"] = "fresh"
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ledger: str | Path | None = None
    reason: str = ""

    method: ClassVar[str]
    # What a parameter that version 0.1 did not have meant there.
    _as_in_0_1: ClassVar[Mapping[str, Any]] = {}
    # Whether every release goes through a journal, so that a killed run can be resumed.
    _keeps_releases: ClassVar[bool] = False
    # For attacks on one's own models: keep the class scores and the split of every repeat. Set on
    # an instance, and without an annotation, so that it is no parameter.
    _keeps_repeats = False
    # Whether the graph came to `fit` without masks, so that `score` has to split it alike.
    _made_split = False

    if TYPE_CHECKING:
        # Which parameters there are is known by the method, not by who holds some method's class.
        def __init__(self, **parameters: Any) -> None: ...

    def _check_edges(self, graph: Graph) -> None:
        """Raise if the method cannot read such edges; without edges any will do."""

    def _check_notion(self, graph: Graph) -> None:
        """Raise if a stricter notion is asked for than can be promised; without lists any can."""

    def _check_parameters(self) -> None:
        """Raise if one of the method's own parameters cannot work."""

    def _unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing with the others as they are.

        ``check`` refuses those that are given. A method adds its own to those of its base.
        """
        at = f"at level {self.level}"
        if not self._draws_noise():
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

    def _unused_on(self, graph: Graph) -> Iterator[Unused]:
        """Yield the parameters that do nothing on this graph, by what is public about it."""
        return iter(())

    def _draws_noise(self) -> bool:
        """Whether a fit releases something of private data, with noise and at a price."""
        return self.level != "none"

    def unused_parameters(self, graph: Any = None) -> dict[str, str]:
        """Return the parameters that are given and do nothing, each with its refusal.

        ``fit`` refuses them. Whoever makes several models from one set of parameters leaves them
        out where they do nothing.

        Args:
            graph: to train on; left out: those that do nothing on any graph.
        """
        found = [*self._unused()]
        if graph is not None:
            found += self._unused_on(as_graph(graph))
        return {name: str(error) for name, error in given_unused(self, found)}

    @abstractmethod
    def _template(self, graph: Graph) -> Sequence[Event]:
        """Return the releases of one fit, their noise multipliers being ratios of the free one."""

    @abstractmethod
    def _build(self, repeats: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        """Return the networks, untrained: of each, one replica or more for every repeat."""

    @abstractmethod
    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        """Train all repeats and return their class scores, shape (repeats, nodes, classes)."""

    @abstractmethod
    def _class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores of the fitted model, (nodes, classes); None is the training graph."""

    def _resolved_values(self) -> dict[str, Any]:
        """Return what ``auto`` is resolved to where predictions depend on it, as JSON holds it.

        It is saved with the model. A loaded model reads it from ``_resolved_at_save`` and resolves
        nothing again, so that no later change of a default can reach it.
        """
        return {}

    @abstractmethod
    def _card_facts(self) -> ReleaseFacts:
        """Return what the privacy card says about this method alone."""

    def fit(
        self: Self,
        graph: Any,
        y: None = None,
        *,
        callback: Callback | None = None,
        progress: bool | None = None,
        journal: Journal | None = None,
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
            callback: told about progress.
            progress: show bars; left out: in a notebook, unless there is a callback.
            journal: keeps finished steps, for a run that can be killed and resumed.
            curator_only: at level none, why the curator looks at people with a budget without
                spending it; written to the ledger. Without it they are refused.
        """
        start = time.perf_counter()
        self._resolved_at_save = None
        self.check()
        is_node = self.level == "node"
        graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        if y is not None:
            raise InputError("`y` must be left out: labels are part of the graph. Got some.")
        if is_node:
            check_declared(graph)
        has_split = graph.has_split
        if not has_split and (graph.labels >= 0).any():
            self._say_split(graph)
            graph = random_split(graph, seed=self.seed)
        with watched(callback, progress, on=choose_device(self.device).type) as watcher:
            self._fit(graph, watcher, journal, curator_only, start)
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
        journal: Journal | None,
        curator_only: str | None,
        start: float,
    ) -> None:
        """Check, resolve, calibrate, charge, and only then train (privacy page, section 6)."""
        check_trainable(graph, level=self.level)
        self._check_classes(graph)
        self._check_edges(graph)
        refuse_unused(self, self._unused_on(graph))
        self._check_notion(graph)
        guarantee = self._resolve(graph)
        run = Run(
            graph=graph,
            splits=repeat_splits(
                graph, level=self.level, repeats=self.repeats, split=self.split, seed=self.seed
            ),
            guarantee=guarantee,
            keys=self._noise_keys(),
            device=choose_device(self.device),
            callback=callback,
            journal=self._checked_journal(journal),
            seconds={"calibrate": time.perf_counter() - start},
        )
        # What cannot be built, trained or held must fail here, before the charge.
        self._check_memory(graph, run.device)
        modules = self._build(1, graph.num_features, graph.num_classes)
        self._recipe(self._num_train(graph))
        self._check_noise(graph, guarantee, modules)
        people = People.of(graph)
        self._check_free(guarantee, people, purpose="fit", curator_only=curator_only)
        charge = run.journal.charged(
            self._about_run(graph, guarantee),
            lambda: self._charge(guarantee, people, purpose="fit", callback=callback),
        )
        if (witness := active_witness()) is not None:
            relation = guarantee.relation
            ids = self._people_of(graph)
            witness.begin("fit", ids=ids, level=guarantee.level, relation=relation)
        self._begin(run)
        scores = self._weighed(self._train(run, charge))
        self._evaluate(scores, run.splits, graph)
        if self._keeps_repeats:
            self._repeats = scores.detach().cpu(), run.splits
        self._keep_first_repeat()
        if charge is not None:
            Ledger(self.ledger).complete(charge.id)
        self._people = graph.ids, _masks(graph)
        # Which of several options was released may have been decided on the way.
        self.card_ = self._make_card(graph, run.guarantee, charge)
        run.seconds["total"] = time.perf_counter() - start
        self.seconds_ = run.seconds

    def _begin(self, run: Run) -> None:
        """Forget an earlier fit, and learn what follows from the graph and the guarantee alone."""
        graph, guarantee = run.graph, run.guarantee
        # Unfitted until the end: an interrupted fit must not keep an earlier fit's card.
        self.__dict__.pop("card_", None)
        self.releases_ = Releases()
        self.num_features_ = graph.num_features
        self.num_classes_ = graph.num_classes
        self.classes_ = np.arange(graph.num_classes)
        self.label_names_ = graph.label_names
        self.feature_names_ = graph.feature_names
        self.schema_ = graph.schema
        self.preparation_ = graph.preparation
        self.edges_ = EdgeFacts.of(graph)
        self.device_ = str(run.device)
        self.noise_multiplier_ = guarantee.noise_multiplier
        self.row_scale_ = self._row_scale(self._num_train(graph), self._worth(guarantee.relation))
        self._answer_weights = self._class_weights(graph) if self._weighs_answers() else None

    def guarantee(self, graph: Any) -> Guarantee:
        """Return what one fit on a graph would promise and cost; nothing is charged or trained.

        With ``repeats`` above 1 that is the price of each.
        """
        self.check()
        is_node = self.level == "node"
        graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        graph = self._split_as_fitted(graph, is_made=True)
        if is_node:
            check_declared(graph)
        check_trainable(graph, level=self.level)
        self._check_classes(graph)
        self._check_edges(graph)
        refuse_unused(self, self._unused_on(graph))
        return self._resolve(graph)

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
            own: what a prediction reads of its own person, where that is chosen at prediction: GAP
                at edge level. With ``record`` it also reads the person's exact list, free of
                charge, and is for that person alone (privacy page, section 1).
            new_people: answer for the people of ``graph`` alone who were not in the graph of
                training, in their order, from their edges to each other and to people who were:
                GAP below node level. Their rows are released and charged to everybody these edges
                name; with ``own="record"`` nothing is.
        """
        self._check_fitted()
        graph = None if graph is None else self._as_trained(graph)
        with torch.no_grad():
            if new_people:
                scores = self._scores_of_new(graph, own)
            else:
                scores = self._class_scores(graph) if own is None else self._scores_with(graph, own)
            probabilities = torch.softmax(self._weighed(scores).double(), dim=-1)
        result: NDArray[np.float32] = probabilities.float().cpu().numpy()
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
    ) -> NDArray[np.int64]:
        """Return the most probable class of every node of ``graph``; see :meth:`predict_proba`."""
        return self.decide(self.predict_proba(graph, own=own, new_people=new_people))

    def _scores_of_new(self, graph: Graph | None, own: str | None) -> Tensor:
        """Return class scores of the people of a graph who were not in the graph of training."""
        raise InputError(
            f"`new_people` must be left out for {self.method}: only gap below node level keeps "
            "rows that new people's neighbours send from. Give the whole graph to predict on."
        )

    def _scores_with(self, graph: Graph | None, own: str) -> Tensor:
        """Return class scores that read of their own person what is asked for at prediction."""
        reason = (
            "it is chosen when training" if self.level == "node" else "it keeps nothing to read"
        )
        raise InputError(
            f"`own` must be left out for {self.method} at level {self.level}: {reason}. "
            f"Got {own!r}."
        )

    def decide(self, probabilities: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class that is answered for probabilities ``(nodes, classes)``.

        The most probable one, or with a threshold the second class from that probability on.
        """
        return _decide(probabilities, self.threshold_)

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
        chances = self.predict_proba(graph)[mask]
        answers, positive = self.decide(chances), self._positive(graph)
        return measure(chances, answers, graph.labels[mask], graph.label_names, positive)

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
        probabilities = self.predict_proba(graph)
        names: Sequence[Any] = self.label_names_ or range(self.num_classes_)
        if graph is None:
            ids, masks = getattr(self, "_people", (self.releases_.training().ids, None))
        else:
            split = self._split_as_fitted(graph, is_made=self._made_split)
            ids, masks = graph.ids, _masks(split)
        columns: dict[str, Any] = {
            "id": ids.tolist(),
            "prediction": [names[k] for k in self.decide(probabilities).tolist()],
        }
        columns |= {f"probability of {name}": probabilities[:, k] for k, name in enumerate(names)}
        if masks is not None:
            # No node is in two of them.
            places = sum(place * mask for place, mask in enumerate(masks, start=1))
            columns["role"] = np.array(["none", "training", "validation", "test"])[places]
        return pandas.DataFrame(columns)

    @property
    def repeat_metrics_(self) -> list[Metrics]:
        """All figures of every repeat on its own test nodes; as private as :meth:`score`."""
        self._check_fitted()
        if not hasattr(self, "_tested"):
            raise NotFittedError("A loaded model has no test figures; call `metrics` with a graph.")
        return [tested.metrics(self.label_names_) for tested in self._tested]

    def save(self, folder: str | Path) -> None:
        """Write the model to a new folder: weights, configuration, card, released hops."""
        self._check_fitted()
        save_folder(
            Path(folder),
            config={
                "method": self.method,
                "params": self._saved_params(),
                "resolved": self._resolved_values(),
                "networks": self._specifications(),
                "num_features": self.num_features_,
                "num_classes": self.num_classes_,
                "label_names": self.label_names_,
                "feature_names": self.feature_names_,
                "schema": None if self.schema_ is None else self.schema_.to_dict(),
                "preparation": None if self.preparation_ is None else self.preparation_.to_dict(),
                "edges": self.edges_.to_dict(),
                "noise_multiplier": self.noise_multiplier_,
                "row_scale": None if self.row_scale_ is None else asdict(self.row_scale_),
                "threshold": self.threshold_,
                "releases": list(self.releases_.hops),
            },
            weights={
                f"{name}.{key}": value
                for name, module in self.modules_.items()
                for key, value in module.state_dict().items()
            },
            card=self.card_,
            hops=self.releases_.hops,
        )

    def _specifications(self) -> dict[str, Any] | None:
        """Return the networks as data; None where a method's own class does not keep it."""
        known = {name: describe_network(module) for name, module in self.modules_.items()}
        return None if None in known.values() else known

    def save_releases(self, folder: str | Path) -> None:
        """Add what was released since saving to the model's folder: it is never drawn again.

        The folder's card then lists it too, and what all releases come to. At level none nothing
        was paid for, so nothing needs to be kept.
        """
        if self.level == "none":
            return
        place = Path(folder)
        with changing(place):
            saved = load_folder(place)
            card = saved.card
            for release in self.card_.releases:
                card = card.with_release(release)
            hops = self.releases_.hops.items()
            new = [released for release, released in hops if release not in saved.hops]
            if new or card != saved.card:
                add_releases(place, new, card)
        self.card_ = card

    @classmethod
    def load(cls: type[Self], folder: str | Path, **overrides: Any) -> Self:
        """Read a model saved by :meth:`save`; it predicts exactly as the saved one did.

        Args:
            folder: the model's folder.
            overrides: ``device`` or ``ledger`` of this machine.
        """
        saved = load_folder(Path(folder))
        config = saved.config
        if config.get("method") != cls.method:
            raise InputError(
                f"the model folder {str(folder)!r} must hold a {cls.method} model. "
                f"Got {config.get('method')!r}."
            )
        try:
            params: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in config["params"].items()
            }
            params["epsilon"] = float(params["epsilon"])
            # What belongs to the machine or run that saved is not taken from a folder.
            was_seeded = params.get("insecure_noise_seed") is not None
            for name in _NEVER_LOADED:
                params.pop(name, None)
            model = cls(**{**cls._as_in_0_1, **params}, **overrides)
            model._resolved_at_save = config.get("resolved")
            model.num_features_ = int(config["num_features"])
            model.num_classes_ = int(config["num_classes"])
            model._check_resolved(model._resolved_at_save or {})
            names = config["label_names"]
            model.label_names_ = None if names is None else tuple(names)
            names = config["feature_names"]
            model.feature_names_ = None if names is None else tuple(names)
            # Version 0.1 knew no schemas.
            declared = config.get("schema")
            model.schema_ = None if declared is None else Schema.from_dict(declared)
            model.preparation_ = Preparation.from_dict(config.get("preparation"))
            model.edges_ = EdgeFacts.from_dict(config.get("edges"))
            model.noise_multiplier_ = config["noise_multiplier"]
            # Until it was saved it was that of many training people.
            model.row_scale_ = model._row_scale(sys.maxsize)
            if "row_scale" in config:
                scale = config["row_scale"]
                model.row_scale_ = None if scale is None else RowScale(**scale)
            threshold = config.get("threshold")
            model.threshold_ = None if threshold is None else float(threshold)
            model.releases_, model.card_ = Releases(saved.hops), saved.card
            networks = config.get("networks")
            if networks is None:
                model.modules_ = model._build(1, model.num_features_, model.num_classes_)
            else:
                model.modules_ = {name: build_network(one) for name, one in networks.items()}
                model._check_widths(networks)
            for name, module in model.modules_.items():
                start = f"{name}."
                state = {
                    k[len(start) :]: v for k, v in saved.weights.items() if k.startswith(start)
                }
                module.load_state_dict(state)
                module.eval()
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the model folder {str(folder)!r} is damaged: {str(error).splitlines()[0]}"
            ) from None
        model._check_card(Path(folder), was_seeded=was_seeded)
        model._list_releases(Path(folder))
        model.classes_ = np.arange(model.num_classes_)
        return model

    def _check_resolved(self, values: Mapping[str, Any]) -> None:
        """Read saved values that need reading; raise ValueError if they cannot be."""
        weights = values.get("class_weights")
        if weights is not None:
            weights = [float(weight) for weight in weights]
            if len(weights) != self.num_classes_ or not 0 < sum(weights) < math.inf:
                raise ValueError(f"class weights must be one per class. Got {weights}.")
            if min(weights) < 0:
                raise ValueError(f"class weights must be at least 0. Got {weights}.")
        self._answer_weights = weights

    def _check_widths(self, networks: Mapping[str, Any]) -> None:
        """Raise if networks do not read the model's features or score its classes."""
        width = features_read(self.num_features_, self.row_scale_)
        expected = {"num_features": width, "num_classes": self.num_classes_}
        for name, network in networks.items():
            for argument, number in expected.items():
                found = network["arguments"].get(argument, number)
                if found != number:
                    raise ValueError(f"{name} must have {argument} {number}. Got {found}.")

    def _check_card(self, folder: Path, *, was_seeded: bool) -> None:
        """Refuse a folder whose configuration and card disagree (privacy page, section 7).

        The card is what people read: a model must not release with less noise, or under another
        level or relation, than its card says.
        """
        card = self.card_
        relation = card.relation if self.relation == "auto" else self.relation
        source = noise_source(card.level, card.epsilon, self.noise, is_insecure=was_seeded)
        pairs = [
            ("level", self.level, card.level),
            ("relation", relation, card.relation),
            ("noise multiplier", self.noise_multiplier_, card.noise_multiplier),
            ("noise source", source, card.noise_source),
            *self._stated_again(),
        ]
        if card.delta and card.events:
            stated = "auto" if card.delta_is_auto else card.delta
            pairs.append(("delta", self.delta, stated))
        own = self.get_params().get("own", "")
        if card.own and self.level == "node" and own:
            pairs.append(("own", own, card.own))
        if card.events and card.epsilon is not None:
            # Calibration ends below the budget, by at most half a percent.
            is_near = card.epsilon * (1 - 1e-9) <= self.epsilon <= card.epsilon * 1.01
            pairs.append(("epsilon", card.epsilon if is_near else self.epsilon, card.epsilon))
        for name, configured, stated in pairs:
            if configured != stated:
                raise DataError(
                    f"the model folder {str(folder)!r} is damaged: its configuration says {name} "
                    f"{configured}, its card {stated}."
                )

    def _list_releases(self, folder: Path) -> None:
        """Put on the card what a folder of an older version released after the training.

        Cards of today list every release; one that does not was changed.
        """
        if not self.card_.releases:
            return
        listed = {release.charge_id for release in self.card_.releases}
        for release in self.releases_.hops:
            if release in listed:
                continue
            if any(one.when for one in self.card_.releases):
                raise DataError(
                    f"the model folder {str(folder)!r} is damaged: its card does not list the "
                    f"release {release}."
                )
            self.card_ = self.card_.with_release(self._listed_anew(release))

    def _listed_anew(self, release: str) -> ChargedRelease:
        """Return what an older version charged for a prediction and did not put on the card."""
        return replace(self.card_.releases[0], purpose="prediction", charge_id=release)

    def _stated_again(self) -> list[tuple[str, Any, Any]]:
        """Return further (name, configured value, value on the card) that must be equal."""
        return []

    def check(self) -> None:
        """Raise if parameters cannot work, about all of them at once, before any data is read."""
        check_choice("level", self.level, LEVELS)  # which the others depend on
        check_all(
            self._check_run,
            self._check_budget,
            self._check_parameters,
            lambda: refuse_unused(self, self._unused()),
            # As in a graph that is large enough for any batch.
            lambda: self._recipe(sys.maxsize),
            self._check_batches,
        )

    def _check_run(self) -> None:
        check_choice("noise", self.noise, ("safe", "fast"))
        check_choice("split", self.split, ("fresh", "fixed"))
        check_integer("repeats", self.repeats, at_least=1)
        check_integer("seed", self.seed, at_least=0)
        if self.insecure_noise_seed is not None:
            check_integer("insecure_noise_seed", self.insecure_noise_seed, at_least=0)
        if self.train_size != "auto":
            check_integer("train_size", self.train_size, at_least=1)
        check_choice("metric", self.metric, ("auto", *METRICS))
        if self.metric != "auto" and self.level == "node":
            raise PrivacyError(
                "`metric` must be auto at level node: decisions would follow the labels of the "
                f"validation nodes, which are private. Got {self.metric}."
            )
        if self.threshold == "auto" and self.level == "node":
            raise PrivacyError(
                "`threshold` must be a number at level node: choosing it reads the labels of the "
                "validation nodes, which are private. Got auto."
            )
        if self.threshold == "rate" and self.level == "node":
            raise PrivacyError(
                "`threshold` must be prior or a number at level node: who is among the highest "
                "depends on everybody's records, so that the answer about one person would tell "
                "of others. Got rate."
            )
        if self.threshold == "prior" and self.class_weight is not None:
            raise InputError(
                "`threshold` prior must not come with `class_weight`: probabilities that were "
                "trained with weights are not compared with rates. Got both; choose one."
            )
        if self.threshold not in (None, "auto", "rate", "prior"):
            check_number("threshold", self.threshold, above=0, below=1)
        choose_device(self.device)

    def _check_budget(self) -> None:
        resolve_relation(self.level, self.relation, is_directed=False)
        if self.level != "none":
            check_finite_budget(self.level, self.epsilon)
            check_delta(self.delta)

    def _check_batches(self) -> None:
        if self.level == "node" and self.get_params().get("dropout", 0) not in ("auto", 0):
            raise PrivacyError(
                "`dropout` must be 0 at level node: masks that are drawn row after row change for "
                "everybody behind a person who joins a batch, so one record would move more than "
                f"its clip. Got {self.get_params()['dropout']}. Set dropout to 0."
            )
        if self.level == "node" and self._uses_batch_norm():
            raise PrivacyError(
                "`batch_norm` mixes the nodes of a batch, so one person's gradient cannot be "
                "clipped at level node. Set batch_norm to auto or false."
            )
        if self.batch_size == 1 and self._uses_batch_norm():
            raise InputError(
                "`batch_size` must be at least 2 with batch norm. Got 1. Set batch_norm to false."
            )

    def space_needed(self, graph: Graph) -> int:
        """Return how many bytes a fit holds at the least, in memory and in the model's folder."""
        return 4 * self.repeats * graph.num_nodes * max(1, graph.num_classes)

    def _check_memory(self, graph: Graph, device: torch.device) -> None:
        """Refuse a fit that cannot end well, rather than charge it first."""
        free = _free_memory(device)
        needed = self.space_needed(graph), self._space_of_networks(graph)
        if free is not None and max(needed) > free:
            fewer = "fewer repeats" if needed[0] >= needed[1] else "a smaller `hidden`"
            raise UnavailableError(
                f"training must hold at least {max(needed) / 2**30:.3g} GiB. Got "
                f"{free / 2**30:.3g} GiB of free memory; nothing was charged. Use {fewer} or "
                "a machine with more."
            )

    def _space_of_networks(self, graph: Graph) -> int:
        """Return how many bytes training holds at the least: weights and a layer of some nodes.

        Each weight is there four times: itself, its gradient and the two moments of Adam.
        """
        with torch.device("meta"):
            modules = self._build(1, graph.num_features, graph.num_classes)
        weights = sum(one.numel() for module in modules.values() for one in module.parameters())
        hidden = getattr(self, "hidden", 0)
        layer = min(graph.num_nodes, 4096) * hidden if isinstance(hidden, int) else 0
        return 4 * self.repeats * (4 * weights + layer)

    def _checked_journal(self, journal: Journal | None) -> NoJournal:
        """Refuse a journal where releases would not be kept and so be drawn again."""
        if journal is not None and not self._keeps_releases:
            raise InputError(f"`journal` must be None for {self.method}: it keeps no releases.")
        return NoJournal() if journal is None else journal

    def _about_run(self, graph: Graph, guarantee: Guarantee) -> dict[str, Any]:
        """Return what must not change when a run is resumed: options, and what is released."""
        return {
            "method": self.method,
            "params": self._saved_params(),
            "num_nodes": graph.num_nodes,
            "level": guarantee.level,
            "relation": guarantee.relation,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "count": self.repeats,
            "events": [event.to_dict() for event in guarantee.events],
            "fingerprint": graph.fingerprint,
        }

    def _saved_params(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them, without those of this machine."""
        return {
            # JSON has no infinity, which epsilon may be at level none.
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in self.get_params().items()
            if k not in ("ledger", "device", "reason")
        }

    def _resolve(self, graph: Graph) -> Guarantee:
        """Return what is promised for this graph, calibrated: no private data is released yet."""
        return Guarantee.resolve(
            graph,
            self._template(graph),
            level=self.level,
            relation=self.relation,
            epsilon=self.epsilon,
            delta=self.delta,
            fixed=lambda relation, delta: self._fixed(graph, relation, delta),
        )

    def _fixed(self, graph: Graph, relation: str, delta: float) -> Sequence[Event]:
        """Return what is released beside the template, with noise that the budget alone decides."""
        return ()

    def _uses_batch_norm(self) -> bool:
        return self.level != "node" if self.batch_norm == "auto" else bool(self.batch_norm)

    def _num_train(self, graph: Graph) -> int:
        """Return how many training nodes there are, at node level as far as that is public."""
        if self.level != "node":
            return int(graph.train_mask.sum())
        if self.train_size != "auto":
            return int(self.train_size)
        return public_count(int(graph.train_mask.sum()))

    def _row_scale(self, num_train: int, worth: float = 0.0) -> RowScale | None:
        """Return how rows of features are scaled; None leaves them as they are.

        Args:
            num_train: number of training nodes, as far as that is public.
            worth: what :meth:`_worth` returns, where nothing is read beside features.
        """
        return None

    def _check_classes(self, graph: Graph) -> None:
        """Refuse weights, names or a threshold that do not fit, before the charge."""
        self._class_weights(graph)
        self._positive(graph)
        if self.threshold in ("rate", "prior"):
            self._rates(graph)
        if self.threshold is not None and graph.num_classes != 2:
            raise InputError(
                "`threshold` must be left out unless there are two classes. Got "
                f"{graph.num_classes} classes."
            )

    def _class_weights(self, graph: Graph) -> list[float] | None:
        """Return what a node of each class counts in the loss.

        The rates of the classes are counted among the training nodes; at node level, where counts
        are private, they are declared or not known (privacy page, section 2).
        """
        if self.class_weight is None:
            return None
        rates = _declared_rates(graph) if self.level == "node" else _counted_rates(graph)
        return class_weights(self.class_weight, names=_class_names(graph), rates=rates)

    def _rates(self, graph: Graph) -> Sequence[float]:
        """Return the share of each class: declared, or below node level counted in training.

        At node level counts are private, and only what is declared may decide (privacy page,
        section 2).
        """
        declared = _declared_rates(graph)
        if declared is not None:
            return declared
        if self.level == "node":
            raise InputError(
                f"`threshold` {self.threshold} must have declared rates of the classes at level "
                "node: their counts are private. Got none; declare `rates` beside the classes in "
                "the schema, or give a number."
            )
        return _counted_rates(graph)

    def _positive(self, graph: Graph) -> int:
        """Return the class that is looked for; it decides figures for the curator.

        Below node level a metric about it may decide an epoch, with labels that are public.
        """
        names = _class_names(graph)
        if self.positive is not None:
            return names.index(check_choice("positive", str(self.positive), names))
        declared = _declared_rates(graph)
        if declared is not None:
            # Of equal ones the last.
            return len(declared) - 1 - int(np.argmin(declared[::-1]))
        trained = graph.labels[graph.train_mask]
        return rarest_class(trained if (trained >= 0).any() else graph.labels, graph.num_classes)

    def _weighs_answers(self) -> bool:
        """Whether class weights shift the scores of finished networks instead of their loss.

        In the limit of many nodes that is the same answer. Networks that train without weights say
        probabilities, which is what they may send, and rank nodes alike under any weights.
        """
        return False

    def _weighed(self, scores: Tensor) -> Tensor:
        """Return class scores as they are where a node of each class counts its weight."""
        if self._answer_weights is None:
            return scores
        weights = torch.tensor(self._answer_weights, dtype=torch.float64, device=scores.device)
        return (scores.double() + weights.log()).to(scores.dtype)

    def _evaluate(self, scores: Tensor, splits: Splits, graph: Graph) -> None:
        """Set the threshold, and keep what is needed to say how good every repeat is."""
        thresholds = self._thresholds(scores, splits, graph)
        self.threshold_ = thresholds[0]
        positive = self._positive(graph)
        # By position: a mask would be gone through again for each of them.
        tested = [np.flatnonzero(test) for test in splits.test]
        self._tested = [
            _Tested(
                one[torch.from_numpy(nodes).to(one.device)].detach(),
                graph.labels[nodes],
                line,
                positive,
            )
            for one, nodes, line in zip(scores, tested, thresholds, strict=True)
        ]
        if self.threshold is None:
            self.repeat_scores_ = splits.test_accuracies(scores, graph.labels)
        else:
            names = graph.label_names
            self.repeat_scores_ = [tested.metrics(names).accuracy for tested in self._tested]

    def _thresholds(self, scores: Tensor, splits: Splits, graph: Graph) -> Sequence[float | None]:
        """Return the threshold of every repeat.

        What is chosen from predictions is post-processing at edge level, where labels are public.
        At node level a threshold is a number or a declared rate (privacy page, section 2).
        """
        if self.threshold == "auto":
            metric = "balanced_accuracy" if self.metric == "auto" else self.metric
            return [
                best_threshold(_chances(one, val)[:, 1], graph.labels[val] == 1, metric)
                for one, val in zip(scores, splits.val, strict=True)
            ]
        if self.threshold == "rate":
            # Training nodes are known, and better than others.
            rate = self._rates(graph)[1]
            return [
                share_threshold(_chances(one, ~train)[:, 1], rate)
                for one, train in zip(scores, splits.train, strict=True)
            ]
        number = self._rates(graph)[1] if self.threshold == "prior" else self.threshold
        return [number] * len(scores)

    def _trainer(self, run: Run) -> Trainer:
        """Return the one training loop, set up for this run."""
        num_train = self._num_train(run.graph)
        weights = None if self._weighs_answers() else self._class_weights(run.graph)
        recipe = self._recipe(num_train)
        if self.learning_rate == "auto" and self._learns_features():
            worth = self._worth(run.guarantee.relation)
            recipe = replace(recipe, learning_rate=node_learning_rate(num_train, worth))
        return Trainer(
            labels=torch.tensor(run.graph.labels, device=run.device),
            splits=run.splits,
            num_train=num_train,
            recipe=recipe,
            seed=self.seed,
            callback=run.callback,
            class_weights=None if weights is None else torch.tensor(weights, device=run.device),
            criterion=self._criterion(run.graph),
        )

    def _criterion(self, graph: Graph) -> Criterion | None:
        """Return what is chosen by on validation nodes; None where no metric is named."""
        if self.metric == "auto" or self.level == "node":
            return None
        return Criterion(self.metric, self._positive(graph))

    def _learns_features(self) -> bool:
        """Whether DP-SGD takes the steps of networks that learn from features first of all."""
        return False

    def _worth(self, relation: str) -> float:
        """Return the budget under ``add-remove`` that buys as little noise; 0 at other levels."""
        if self.level != "node":
            return 0.0
        return self.epsilon / OutDegreeNormalized.bound(parse_relation(relation))

    def _recipe(self, num_train: int) -> Recipe:
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

    def _private(
        self, run: Run, ratio: float = 1.0, *, sensitivity: float = 1.0
    ) -> PrivateTraining | None:
        """Return DP-SGD settings at node level; elsewhere training is free."""
        if self.level != "node":
            return None
        return PrivateTraining(
            noise_multiplier=run.guarantee.free_multiplier * ratio,
            keys=run.keys,
            noise=self.noise,
            sensitivity=sensitivity,
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "card_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call `fit` or `load` first."
            )
        if self.level != self.card_.level:
            raise PrivacyError(
                f"`level` must be {self.card_.level}, at which the model was fitted. "
                f"Got {self.level!r}. Fit again at the new level."
            )

    def _noise_keys(self) -> list[NoiseKey]:
        """Return one key per repeat: secret unless seeded, which the card reports."""
        if self.insecure_noise_seed is None:
            return [NoiseKey.fresh() for _ in range(self.repeats)]
        key = NoiseKey.insecure(self.insecure_noise_seed)
        return [key.derive("repeat", repeat) for repeat in range(self.repeats)]

    def _check_noise(
        self, graph: Graph, guarantee: Guarantee, modules: Mapping[str, nn.Module] | None = None
    ) -> None:
        """Refuse noise that the safe grid cannot carry, before it is charged (section 6)."""
        for name, scale in self._noise_to_draw(graph, guarantee):
            check_scale(name, scale, self.noise)
        if modules is not None and guarantee.level == "node" and self.noise == "safe":
            for module in modules.values():
                check_size(sum(value.numel() for value in module.parameters()))

    def _noise_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[tuple[str, float]]:
        """Return name and scale of all noise that releases draw: of every event, in any option."""
        return [
            (event.label or "training", event.noise_multiplier)
            for event in guarantee.events
            if isinstance(event, (PoissonGaussian, MixtureOfGaussians))
        ]

    def _check_free(
        self,
        guarantee: Guarantee,
        people: People,
        *,
        purpose: str,
        curator_only: str | None = None,
    ) -> None:
        """Refuse what has no price where it would walk around a budget (section 6)."""
        if not guarantee.events:
            Ledger(self.ledger).check_free(
                people,
                level=guarantee.level,
                purpose=f"{self.method} {purpose}",
                curator_only=curator_only,
            )

    def _charge(
        self,
        guarantee: Guarantee,
        people: People,
        *,
        purpose: str,
        callback: Callback | None = None,
    ) -> Charge | None:
        """Record the price durably before the release is computed (privacy page, section 6).

        The watcher is told the price before that, where the budget can pay it.
        """
        if not guarantee.events:
            return None
        if guarantee.epsilon is None or not math.isfinite(guarantee.epsilon):
            raise PrivacyError(f"A release must have a finite price. Got {guarantee.epsilon}.")
        ledger = Ledger(self.ledger)
        level, relation = guarantee.level, guarantee.relation
        epsilon, delta = guarantee.epsilon, guarantee.delta
        events = [event.to_dict() for event in guarantee.events]
        count = self.repeats if purpose == "fit" else 1
        if callback is not None:
            asked = [(epsilon, delta, events)] * count
            ledger.check_affordable(people, level=level, relation=relation, releases=asked)
            times = f"{count} times " if count > 1 else ""
            quote(
                callback,
                f"training {self.method} is charged {times}epsilon {rounded_up(epsilon)}, delta "
                f"{delta:.3g} ({relation}).",
            )
        return ledger.charge(
            people,
            level=level,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            events=events,
            purpose=f"{self.method} {purpose}",
            count=count,
            reason=self.reason,
        )

    def _start_modules(self, run: Run) -> dict[str, nn.Module]:
        """Build the networks of all repeats, each initialised from its own seed."""
        graph = run.graph
        self.modules_ = self._build(run.repeats, graph.num_features, graph.num_classes)
        # What is solved has no steps to watch. A method's own network is its classifier.
        trained = (name for name, part in self.modules_.items() if _is_trained(part))
        phases = ["classifier" if name == self.method else name for name in trained]
        announce(run.callback, phases)
        for name, module in self.modules_.items():
            # A repeat may have several networks of a kind.
            members = count_replicas(module) // run.repeats
            generators = [
                experiment_torch(self.seed, "initial", name, repeat, *([member] if member else []))
                for repeat in range(run.repeats)
                for member in range(members)
            ]
            reset_replicas(module, generators)
            module.to(run.device)
        return self.modules_

    def _keep_first_repeat(self) -> None:
        """Drop the networks of the repeats after the first."""
        first = self._build(1, self.num_features_, self.num_classes_)
        for name, module in first.items():
            state = replica_state(self.modules_[name], 0, count_replicas(module))
            module.load_state_dict(state)
            module.eval()
        self.modules_ = first

    def _make_card(self, graph: Graph, guarantee: Guarantee, charge: Charge | None) -> PrivacyCard:
        """Put the facts of this fit on a privacy card."""
        max_degree = self._list_bound() if guarantee.level == "node" else None
        own = self._card_facts()
        chosen = f"{self.threshold} threshold"
        facts = replace(
            own,
            steps=(*own.steps, chosen) if isinstance(self.threshold, str) else own.steps,
            dataset=graph.name,
            noise=self.noise,
            is_insecure=self.insecure_noise_seed is not None,
            is_symmetric=not graph.is_directed,
            max_degree=max_degree,
            native_degree_bounded=max_degree is not None
            and max(int(kind.out_degrees.max()) for kind in graph.kinds) <= max_degree,
            charge=charge,
            public=self._public_facts(graph, guarantee),
            wording=graph.wording,
        )
        return make_card(guarantee, facts)

    def _people_of(self, graph: Graph) -> NDArray[Any]:
        """Return whose the rows of a release are, in their order."""
        return graph.ids

    def _list_bound(self) -> int | None:
        """Return how many entries each list is cut to at node level; None: none are."""
        return None

    def _public_facts(self, graph: Graph, guarantee: Guarantee) -> tuple[tuple[str, str], ...]:
        """Return every fact of the data that this release takes to be public."""
        return public_facts(
            guarantee.level,
            num_train=self._num_train(graph),
            train_size_is_declared=self.train_size != "auto",
            delta_is_auto=guarantee.delta_is_auto,
            is_delta_compared=bool(guarantee.delta),
            inferred=graph.inferred,
            has_schema=graph.schema is not None,
            max_degree=self._list_bound(),
            kinds=self.edges_.kinds,
            weight_bounds=self.edges_.bounds,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class EdgeReader(NodeClassifier):
    """Predicts from what was released on a graph, and releases it once for a graph it never read.

    A graph that was released, the training graph first of all, is answered without reading an edge.
    Another one (the inductive setting) is charged before it is read, and so is every earlier graph
    that it shares nodes with (privacy page, section 2).

    Args:
        max_degree: entries D that each out-list is cut to at node level.
        notion: of a withdrawn person at node level: ``own`` (the own record goes, other people's
            lists stay theirs), or ``strict`` (every mention goes too), which is refused where it
            cannot be promised.
    """

    max_degree: int | Literal["auto"] = 100
    notion: Literal["own", "strict"] = "own"

    # The charge of a prediction that was interrupted before its release was made.
    _unfinished = None

    def _unused(self) -> Iterator[Unused]:
        yield from super()._unused()
        if self.level != "node":
            at = f"at level {self.level}"
            yield Unused(("max_degree",), f"{at}: adjacency lists are cut at level node only")
            yield Unused(("notion",), f"{at}: it says who withdraws at level node")

    def _check_notion(self, graph: Graph) -> None:
        """Refuse the strict notion where others would change with a person's every mention.

        Whether some list is longer than D is public, and stands on the card.
        """
        check_choice("notion", self.notion, ("own", "strict"))
        if self.notion == "own":
            return
        bound = self._list_bound()
        if bound is None:
            raise PrivacyError(
                "`notion` must be own where messages are divided by the root of their list: when a "
                "person vanishes from all lists, everybody who listed that person speaks louder, "
                "and nothing bounds that. Got 'strict'. Set max_degree, at least as long as the "
                "longest list."
            )
        if max(int(kind.out_degrees.max()) for kind in graph.kinds) > bound:
            raise PrivacyError(
                f"`notion` must be own where lists are cut: some are longer than {bound}, and "
                "which entries are kept changes with every mention that goes. Got 'strict'. Set "
                "max_degree at least as long as the longest list."
            )

    def _list_bound(self) -> int | None:
        assert self.max_degree != "auto"
        return self.max_degree

    def _check_edges(self, graph: Graph) -> None:
        # Unless a method says otherwise: randomised bits, say, carry no weight and know no kinds.
        check_plain(graph, self.method)

    @abstractmethod
    def _num_hops(self) -> int:
        """Return how many noisy aggregations one reading of a graph takes."""

    def space_needed(self, graph: Graph) -> int:
        """Return how many bytes a fit holds at the least: scores, and hops of as many columns."""
        num_kinds = len(graph.kinds)
        hops = self._num_hops() * (num_kinds + self.releases_total(num_kinds))
        return (1 + hops) * super().space_needed(graph)

    def predict_cached(self, ids: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Return the class probabilities of the training graph's people, from what was released.

        Nothing else is read, so the answer is for the graph of training, whatever has happened to
        these people since. At node level it cannot be given: it needs the asker's features.

        Args:
            ids: of whom; everybody if left out.
        """
        self._check_fitted()
        known = self.releases_.training() if ids is None else self.releases_.cached(ids)
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        with torch.no_grad():
            scores = self._scores_from(known, None, device)
        result: NDArray[np.float32] = torch.softmax(scores.double(), dim=-1).float().cpu().numpy()
        return result

    def _events_per_hop(self, num_kinds: int) -> int:
        """Return how many Gaussian events a hop along all kinds of edges is."""
        return 1

    def releases_total(self, num_kinds: int) -> bool:
        """Return whether a hop releases the total over all kinds of edges beside each of them."""
        return False

    def _hop_ratio(self, relation: str) -> float:
        """Return the noise multiplier of a hop relative to the free one."""
        return 1.0

    def goes_both_ways(self, *, is_directed: bool) -> bool:
        """Return whether messages travel along arcs and against them, if there are directions."""
        return False

    @abstractmethod
    def _read(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
        charge: Charge | None,
    ) -> ReleasedHops:
        """Read the edges of a graph that was paid for, and keep what is released."""

    @abstractmethod
    def _scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores (nodes, classes) from a release; ``graph`` None: features unknown."""

    def _aggregation(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
    ) -> PrivateAggregation:
        """Return the noisy aggregation of a graph with one kind of edges that was paid for."""
        (only,) = self._aggregations(graph, guarantee, keys, device)
        return only

    def _aggregations(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
    ) -> list[PrivateAggregation]:
        """Return the noisy aggregations of a graph that was paid for, one per kind of edges.

        And one of their total, where that is released.

        Sensitivity of one hop by the guarantee's relation, at node level with out-lists cut to
        ``max_degree`` (privacy page, section 1).
        """
        multiplier = 0.0 if guarantee.level == "none" else guarantee.free_multiplier
        return kind_aggregations(
            graph,
            level=guarantee.level,
            relation=guarantee.relation,
            noise_multiplier=multiplier * self._hop_ratio(guarantee.relation),
            max_degree=self._list_bound() if guarantee.level == "node" else None,
            symmetrised=self.goes_both_ways(is_directed=graph.is_directed),
            with_total=self.releases_total(len(graph.kinds)),
            keys=[key.derive("aggregation") for key in keys],
            noise=self.noise,
            device=device,
        )

    def _noise_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[tuple[str, float]]:
        hops = [event.label for event in guarantee.events if isinstance(event, Gaussian)]
        scales = [one.std for one in self._hops_to_draw(graph, guarantee)] if hops else []
        drawn = [(hops[0] or "aggregation", scale) for scale in scales]
        return [*super()._noise_to_draw(graph, guarantee), *drawn]

    def _hops_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[PrivateAggregation]:
        """Return the hops as they will be released; no noise is drawn with the key they have."""
        key = NoiseKey.insecure(0)
        return self._aggregations(graph, guarantee, [key], torch.device("cpu"))

    def _prediction_guarantee(self, graph: Graph) -> Guarantee:
        """Return what reading an unread graph for prediction releases, and its price."""
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        return Guarantee.of_events(
            graph,
            self._prediction_events(relation, len(graph.kinds)),
            level=self.level,
            relation=self.relation,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier_,
        )

    def _prediction_events(self, relation: str, num_kinds: int) -> tuple[Event, ...]:
        """Return what a prediction on an unread graph releases: as many hops as the training."""
        if self.noise_multiplier_ is None:
            return ()
        multiplier = self.noise_multiplier_ * self._hop_ratio(relation)
        count = self._num_hops() * self._events_per_hop(num_kinds)
        return (Gaussian(multiplier, count=count, label="aggregation for prediction"),)

    def _listed_anew(self, release: str) -> ChargedRelease:
        listed = super()._listed_anew(release)
        events = self._prediction_events(listed.relation, len(self.edges_.kinds) or 1)
        spend = account(events, listed.delta, relation=listed.relation)
        plain = tuple(event.to_dict() for event in events)
        return replace(listed, epsilon=spend.epsilon, events=plain)

    def composed_epsilon(self, guarantee: Guarantee) -> float:
        """Return what all releases of this model would come to with one more.

        That is for an edge or a person in all of them, at the delta of ``card_``.

        Args:
            guarantee: what :meth:`prediction_guarantee` returned.
        """
        self._check_fitted()
        epsilon = self.card_.with_release(_charged_release(guarantee, None)).composed_epsilon
        assert epsilon is not None
        return epsilon

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return what predicting on a graph would release and charge; None: it is free of charge.

        Nothing is charged or released here. Answers from an earlier release are free, and so are
        those of a model that reads no edges.

        Args:
            graph: to predict on.
            own: as for :meth:`predict_proba`.
            new_people: likewise.
        """
        self._check_fitted()
        graph = self._as_trained(graph)
        if new_people:
            return self._guarantee_of_new(graph, own)
        known = self.releases_.find(graph, Ledger(self.ledger), is_paid=self.level != "none")
        if known is not None or self.level == "none":
            return None
        self.edges_.check(graph)
        if self.level == "node":
            check_declared(graph)
        self._check_edges(graph)
        return self._prediction_guarantee(graph)

    def _guarantee_of_new(self, graph: Graph, own: str | None) -> Guarantee | None:
        """Return what answering for new people would release; None: it is free of charge."""
        self._scores_of_new(graph, own)
        return None

    def _stated_again(self) -> list[tuple[str, Any, Any]]:
        """The noise of a prediction's hops is that of the fit's, as its card lists them."""
        stated = [
            event["noise_multiplier"]
            for event in self.card_.events
            if event["event"] == "Gaussian" and event["label"] == "aggregation"
        ]
        if not stated or self.noise_multiplier_ is None:
            return []
        multiplier = self.noise_multiplier_ * self._hop_ratio(self.card_.relation)
        is_same = math.isclose(multiplier, stated[0], rel_tol=1e-9)
        return [("noise of a hop", stated[0] if is_same else multiplier, stated[0])]

    def _list_releases(self, folder: Path) -> None:
        super()._list_releases(folder)
        listed = self.card_.releases
        if listed and listed[0].charge_id not in {"", *self.releases_.hops}:
            raise DataError(
                f"the model folder {str(folder)!r} is damaged: it does not hold the release of its "
                f"training, {listed[0].charge_id}."
            )

    def _class_scores(self, graph: Graph | None) -> Tensor:
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        if graph is None:
            return self._scores_from(self.releases_.training(), None, device)
        return self._scores_from(self._released_on(graph, device), graph, device)

    def _released_on(self, graph: Graph, device: torch.device) -> ReleasedHops:
        """Return what was released on a graph; another one is paid for and read first."""
        self.edges_.check(graph)
        released = self.releases_.find(graph, Ledger(self.ledger), is_paid=self.level != "none")
        return self._release_for_prediction(graph, device) if released is None else released

    def _release_for_prediction(self, graph: Graph, device: torch.device) -> ReleasedHops:
        """Pay for a graph the model has not read, then read it."""
        if self.level == "node":
            check_declared(graph)
        self._check_edges(graph)
        return self._release_once(
            self._prediction_guarantee(graph),
            graph,
            People.of(graph),
            lambda guarantee, key, charge: self._read(graph, guarantee, [key], device, charge),
        )

    def _release_once(
        self,
        guarantee: Guarantee,
        graph: Graph,
        people: People,
        read: Callable[[Guarantee, NoiseKey, Charge | None], ReleasedHops],
        *,
        purpose: str = "prediction",
    ) -> ReleasedHops:
        """Charge a release for prediction, list it on the card, and only then make it."""
        ledger = Ledger(self.ledger)
        self._check_noise(graph, guarantee)
        self._check_free(guarantee, people, purpose="predict")
        if guarantee.events:
            # What cannot be put on the card is refused before it is charged.
            self.composed_epsilon(guarantee)
        self._unfinished = charge = self._charge(guarantee, people, purpose="predict")
        if charge is not None:
            # Before anything is drawn: no release is ever kept that the card does not list.
            listed = _charged_release(guarantee, charge, purpose)
            self.card_ = self.card_.with_release(listed)
        if (witness := active_witness()) is not None:
            relation = guarantee.relation
            ids = self._people_of(graph)
            witness.begin("predict", ids=ids, level=guarantee.level, relation=relation)
        key = self._noise_keys()[0].derive("predict", people.fingerprint)
        released = read(guarantee, key, charge)
        if charge is not None:
            ledger.complete(charge.id)
        self._unfinished = None
        return released


def _charged_release(
    guarantee: Guarantee, charge: Charge | None, purpose: str = "prediction"
) -> ChargedRelease:
    """Return a release as the card lists it; without a charge, as it would."""
    assert guarantee.epsilon is not None
    return ChargedRelease(
        purpose=purpose,
        charge_id="not charged" if charge is None else charge.id,
        when="" if charge is None else charge.charged_at[:10],
        relation=guarantee.relation,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        events=tuple(event.to_dict() for event in guarantee.events),
    )


@dataclass(frozen=True)
class _Tested:
    """What one repeat said about its test nodes: class scores, labels, threshold; who is sought."""

    scores: Tensor
    labels: NDArray[np.int64]
    threshold: float | None
    positive: int

    def metrics(self, names: Sequence[str] | None) -> Metrics:
        known = self.labels >= 0
        chances = _chances(self.scores, known)
        answers = _decide(chances, self.threshold)
        return measure(chances, answers, self.labels[known], names, self.positive)


def _class_names(graph: Graph) -> list[str]:
    return list(graph.label_names or map(str, range(graph.num_classes)))


def _declared_rates(graph: Graph) -> Sequence[float] | None:
    """Return the share of each class as the schema declares it."""
    label = None if graph.schema is None else graph.schema.label
    return None if label is None else label.rates


def _counted_rates(graph: Graph) -> Sequence[float]:
    """Return the share of each class among training nodes: private at node level."""
    labels = graph.labels[graph.train_mask]
    found: list[float] = (np.bincount(labels, minlength=graph.num_classes) / len(labels)).tolist()
    return found


def _is_trained(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _masks(graph: Graph) -> tuple[NDArray[np.bool_], ...]:
    return graph.train_mask, graph.val_mask, graph.test_mask


def _chances(scores: Tensor, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the class probabilities of some nodes, as predictions have them."""
    chosen = scores.detach()[torch.from_numpy(mask).to(scores.device)]
    found: NDArray[np.float32] = torch.softmax(chosen.double(), dim=-1).float().cpu().numpy()
    return found


def _decide(probabilities: NDArray[Any], threshold: float | None) -> NDArray[np.int64]:
    if threshold is not None:
        return (probabilities[:, 1] >= threshold).astype(np.int64)
    answers: NDArray[np.int64] = probabilities.argmax(axis=1)
    return answers


def _free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def choose_device(device: str) -> torch.device:
    """Resolve ``auto|cpu|cuda``; asking for a GPU that is not there is an error.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    check_choice("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device` is cuda, but no CUDA device is available. Use cpu or auto.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
