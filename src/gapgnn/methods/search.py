"""PrivateSearchCV: hyperparameters chosen inside the budget (privacy page, section 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterGrid

from gapgnn.errors import InputError, check_choice, check_number
from gapgnn.graph import Graph, as_graph, check_declared, random_split
from gapgnn.graph.datasets import default_metric
from gapgnn.methods.estimator import NodeClassifier, Shape
from gapgnn.methods.search_plan import SCORED_AT_NODE, Planner, Search, Setting, model_of
from gapgnn.methods.search_run import Winner, run_search
from gapgnn.privacy import Checkpoint, NoCheckpoint, SelectionSession
from gapgnn.privacy.accounting import CandidateNumber
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.ledger import People
from gapgnn.training import METRICS, Callback, quote, watched

STRATEGIES = ("auto", "pilots", "selection")
NUMBERS = ("geometric", "logarithmic", "negative-binomial", "poisson", "binomial")
# The automatic mean: two candidates for each setting that asks again, in this range.
LEAST_MEAN, MOST_MEAN = 4, 32


class PrivateSearchCV(BaseEstimator):  # type: ignore[misc]
    """Choose hyperparameters by validation nodes, at a price that covers the choice.

    What acts after the last release alone is compared on the same releases, without a further
    charge. What asks the graph again is compared by one of two strategies. ``epsilon`` of the
    estimator is the total of either, and is charged once, before anything is read.

    - ``pilots``, the default below node level: every setting is fitted at a small part of the
      budget, and the best one is fitted with the rest. All of it composes, so all scores are shown.
    - ``selection``, the default at node level: a random and secret number of candidates, each with
      a setting drawn at random and fresh noise, of which the best is released (Papernot and Steinke
      2022; Theorem 21 of the proofs page). A score at node level is a noisy count, and part of the
      candidate's price. The other candidates, their scores and their number are not covered:
      nothing of them is kept, printed or logged, but whoever watches the process sees how long it
      takes.

    Args:
        estimator: of any method, with the total budget.
        param_grid: names of parameters and their values, or a list of such grids. The name
            ``method`` takes the names of methods.
        strategy: ``pilots``, ``selection`` or ``auto``.
        pilot_share: of the budget, as 1 / noise squared, for all pilots together.
        scoring: a metric; ``auto`` is that of the estimator. At node level accuracy alone.
        number: distribution of a selection's number of candidates: ``geometric``,
            ``logarithmic``, ``negative-binomial``, ``poisson`` or ``binomial``.
        mean: of it; ``auto`` is twice the number of settings that ask again, from 4 to 32.
        shape: of the negative binomial distribution, or the trials of the binomial one.
        score_share: of a candidate's epsilon, for its noisy score at node level.

    Attributes:
        best_estimator_: the winner, fitted, with its privacy card.
        best_params_: its setting.
        best_score_: of the winner on validation nodes; noisy at node level.
        best_index_: its place in the grid.
        cv_results_: ``params`` of all settings, the number of the ``release`` that each reads, and
            the ``score``: of the pilots, or of a selection's settings that read the winner's
            release. None for all others, which are secret.
        search_: what was compared, and the price.

    >>> from gapgnn import GAP, load_dataset
    >>> graph = load_dataset("social")
    >>> search = PrivateSearchCV(GAP(epochs=3), {"combine": ["concat", "sum"]}).fit(graph)
    >>> search.card_.epsilon <= 1.0, len(search.cv_results_["score"])
    (True, 2)
    """

    def __init__(
        self,
        estimator: NodeClassifier[Any],
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        strategy: Literal["auto", "pilots", "selection"] = "auto",
        pilot_share: float = 0.04,
        scoring: str = "auto",
        number: Literal[
            "geometric", "logarithmic", "negative-binomial", "poisson", "binomial"
        ] = "geometric",
        mean: float | Literal["auto"] = "auto",
        shape: float | None = None,
        score_share: float = 0.1,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.strategy = strategy
        self.pilot_share = pilot_share
        self.scoring = scoring
        self.number = number
        self.mean = mean
        self.shape = shape
        self.score_share = score_share

    # What is compared, and at which price ---------------------------------------------------------

    def check(self) -> None:
        """Raise if the search cannot work on any graph, before any data is read."""
        self._settings()

    def plan_for(self, graph: Any) -> Search:
        """Return what a fit on a graph would compare and cost; nothing is charged or trained."""
        return self._search(self._prepared(graph))

    def _settings(self) -> tuple[Setting, ...]:
        """Return the combinations of the grid, each checked on its own."""
        base = self.estimator
        if not isinstance(base, NodeClassifier):
            raise InputError(f"`estimator` must be a method of gapgnn. Got {base!r}.")
        if base.level == "none":
            raise InputError(
                "`level` must be edge or node for a private search. Got 'none'. Without privacy "
                "compare models on validation nodes yourself."
            )
        if base.repeats != 1:
            raise InputError(f"`repeats` must be 1 for a private search. Got {base.repeats}.")
        check_choice("strategy", self.strategy, STRATEGIES)
        if self.strategy == "pilots" and base.level == "node":
            raise InputError(
                "`strategy` must be selection at level node: pilots there have too little budget "
                "to train by. Got 'pilots'."
            )
        check_number("pilot_share", self.pilot_share, above=0, below=1)
        check_choice("number", self.number, NUMBERS)
        check_choice("scoring", self.scoring, ("auto", *METRICS))
        check_number("score_share", self.score_share, above=0, below=1)
        try:
            grid = list(ParameterGrid(self.param_grid))
        except (TypeError, ValueError) as error:
            raise InputError(f"`param_grid` cannot be read: {error}") from None
        if len(grid) < 2:
            raise InputError(f"`param_grid` must have two settings or more. Got {len(grid)}.")
        settings = tuple(Setting(dict(params), model_of(base, params)) for params in grid)
        for one in settings:
            one.model.check()
        return settings

    def _prepared(self, graph: Any) -> Graph:
        """Return a graph with roles, that of the estimator's split where it has none."""
        is_node = self.estimator.level == "node"
        found: Graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        if is_node:
            check_declared(found)
        if not found.has_split and (found.labels >= 0).any():
            found = random_split(found, seed=self.estimator.seed)
        if not (found.val_mask & (found.labels >= 0)).any():
            raise InputError("`graph` must have validation nodes with labels to choose by.")
        return found

    def _search(self, graph: Graph) -> Search:
        settings, model = self._settings(), self.estimator
        metric = self._metric(settings, graph)
        planner = Planner(settings, graph, model.epsilon, model.delta, metric)
        count = len(planner.releases)
        if count == 1:
            return planner.together()
        planner.check_charged()
        is_node = model.level == "node"
        if self.strategy == "pilots" or (self.strategy == "auto" and not is_node):
            return planner.pilots(self.pilot_share)
        return planner.selection(self._number(count), self.score_share if is_node else 0.0)

    def _number(self, releases: int) -> CandidateNumber:
        """Return the distribution of the number of candidates."""
        mean = min(max(LEAST_MEAN, 2 * releases), MOST_MEAN) if self.mean == "auto" else self.mean
        shapes = {"geometric": 1.0, "logarithmic": 0.0, "poisson": 0.0}
        if self.number in shapes:
            if self.shape is not None:
                raise InputError(f"`shape` must be left out for {self.number}. Got {self.shape!r}.")
            shape = shapes[self.number]
        elif self.shape is None:
            raise InputError(f"`shape` must be given for {self.number}.")
        else:
            shape = self.shape
        known = self.number in ("poisson", "binomial")
        name = self.number if known else "truncated-negative-binomial"
        return CandidateNumber(name, float(mean), shape)

    def _metric(self, settings: Sequence[Setting], graph: Graph) -> str:
        """Return the metric by which models are compared."""
        if self.estimator.level == "node":
            if self.scoring not in ("auto", "accuracy"):
                raise InputError(
                    "`scoring` must be accuracy at level node, where a score is a noisy count. "
                    f"Got {self.scoring!r}."
                )
            others = {one.model.method for one in settings} - set(SCORED_AT_NODE)
            if others:
                raise InputError(
                    f"`param_grid` must hold {', '.join(SCORED_AT_NODE)} at level node, whose "
                    f"answers about a person read no other record. Got {sorted(others)[0]}."
                )
            return "accuracy"
        if self.scoring != "auto":
            return self.scoring
        metric = self.estimator.metric
        return default_metric(graph) if metric == "auto" else str(metric)

    # Searching ------------------------------------------------------------------------------------

    def fit(
        self,
        graph: Any,
        y: None = None,
        *,
        callback: Callback | None = None,
        progress: bool | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> PrivateSearchCV:
        """Charge the search, run its candidates, and keep the winner.

        Args:
            graph: as :meth:`~gapgnn.NodeClassifier.fit` takes it.
            y: for scikit-learn's sake; labels are part of the graph.
            callback: receives the price, and nothing of the candidates.
            progress: show the price; left out: on a terminal and in a notebook.
            checkpoint: keeps finished steps, for a run that can be killed and resumed.
        """
        if y is not None:
            raise InputError("`y` must be left out: labels are part of the graph. Got some.")
        known = self._prepared(graph)
        search = self._search(known)
        if checkpoint is not None and not all(s.model.keeps_releases for s in search.settings):
            raise InputError("`checkpoint` must be None for methods that keep no releases.")
        with watched(callback, progress, on="cpu") as watcher:
            session = self._session(search, known, watcher, checkpoint)
            self.__dict__.pop("best_estimator_", None)
            session.open()
            winner = run_search(search, known, session)
            session.close()
        self._keep(search, winner)
        return self

    def _session(
        self, search: Search, graph: Graph, callback: Callback, checkpoint: Checkpoint | None
    ) -> SelectionSession:
        """Return the session of the search; what cannot be run fails here, before the charge."""
        model = self.estimator
        session = SelectionSession(
            search.plan,
            graph,
            model._session_options(model._noise_keys()),
            purpose="fit",
            people=People.of(graph),
            checkpoint=checkpoint or NoCheckpoint(),
            about={
                "strategy": type(search.plan.settings).__name__,
                "grid": [repr(sorted(one.params.items())) for one in search.settings],
            },
            announce=lambda text: quote(callback, text),
            reads_lists=any(one.model.reads_lists for one in search.settings),
        )
        shape = Shape(1, graph.num_features, graph.num_classes, len(graph.edge_types))
        final = len(search.releases) if search.pilots else 0
        for one, plan in zip(search.settings, search.plans, strict=True):
            one.model._check_memory(graph, session.options.device, plan)
            candidate = session.candidate(final, plan, one.model.released_graph(graph))
            for option in plan.options or (plan,):
                networks = one.model.networks(option.settings, shape)
                candidate.check_noise(list(networks.values()))
        for number, group in enumerate(search.releases if search.pilots else ()):
            released = search.settings[group[0]].model.released_graph(graph)
            session.candidate(number, search.pilots[group[0]], released).check_noise()
        return session

    def _keep(self, search: Search, winner: Winner) -> None:
        releases = {number: k for k, group in enumerate(search.releases) for number in group}
        self.search_ = search
        self.best_estimator_ = winner.model
        self.best_index_ = winner.index
        self.best_params_ = dict(search.settings[winner.index].params)
        self.best_score_ = winner.score
        numbers = range(len(search.settings))
        self.cv_results_: dict[str, list[Any]] = {
            "params": [dict(one.params) for one in search.settings],
            "release": [releases[number] for number in numbers],
            "score": [winner.shown.get(number) for number in numbers],
        }

    # The winner -----------------------------------------------------------------------------------

    def _winner(self) -> NodeClassifier[Any]:
        if not hasattr(self, "best_estimator_"):
            raise NotFittedError("This PrivateSearchCV is not fitted yet. Call `fit` first.")
        return self.best_estimator_

    @property
    def card_(self) -> PrivacyCard:
        """The winner's privacy card, at the price of the whole search."""
        return self._winner().card_

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes as predictions name them."""
        return self._winner().classes_

    def predict(self, graph: Any = None) -> NDArray[Any]:
        """Return the winner's predictions."""
        return self._winner().predict(graph)

    def predict_proba(self, graph: Any = None) -> NDArray[np.float32]:
        """Return the winner's class probabilities."""
        return self._winner().predict_proba(graph)

    def score(self, graph: Any, y: None = None) -> float:
        """Return the winner's figure on test nodes, for the curator at node level."""
        return self._winner().score(self._prepared(graph))
