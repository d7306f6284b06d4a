"""Cross-validation over masks: the graph stays whole, and every fold is a release with its price.

Whoever tests a setting on five folds trains five models on the same people, and each of them has
read everybody's edges: a person who is only tested in a fold still sends messages in it. So folds
are charged like five fits, one after the other, and no fold is cheaper for anybody (privacy page,
section 2, choosing hyperparameters).

Who is tested in which fold is a public hash of (seed, id), a function of that person alone, at
every level: nobody else's fold changes when somebody leaves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from gapgnn.errors import (
    InputError,
    UnavailableError,
    check_choice,
    check_integer,
    check_number,
)
from gapgnn.graph import Graph, as_graph, check_trainable, folds_of, roles
from gapgnn.methods import NodeClassifier
from gapgnn.privacy import Guarantee
from gapgnn.privacy.ledger import Ledger, LedgerNotice, People
from gapgnn.rng import experiment_seed
from gapgnn.training import METRICS, Callback, Metrics, Silent

if TYPE_CHECKING:
    import pandas

CURATOR_NOTE = "Computed from private labels without noise: for the curator only."


@dataclass(frozen=True)
class Fold:
    """One fold.

    Attributes:
        number: from 1 on.
        metrics: all figures on those it tests; None if it tests nobody.
        charge: the ledger's number of what its training cost; None if it was free.
    """

    number: int
    metrics: Metrics | None
    charge: str | None


@dataclass(frozen=True)
class CrossValidation:
    """What :func:`cross_validate` found.

    Attributes:
        folds: one by one.
        names: the metrics that were asked for.
        level: at which the models were trained.
        epsilon: what all folds cost together, at ``delta``; None at level none.
        delta: likewise.
        note: who may see the figures, where that is not everybody.
    """

    folds: tuple[Fold, ...]
    names: tuple[str, ...]
    level: str
    epsilon: float | None
    delta: float
    note: str = ""

    def figures(self, metric: str) -> list[float | None]:
        """Return one metric of every fold; None where it has none."""
        check_choice("metric", metric, METRICS)
        return [None if fold.metrics is None else fold.metrics.find(metric) for fold in self.folds]

    def mean(self, metric: str) -> float:
        """Return the mean of one metric over the folds that have it."""
        known = [figure for figure in self.figures(metric) if figure is not None]
        if not known:
            raise InputError(f"`metric` {metric} must be known of a fold. Got none.")
        return sum(known) / len(known)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas ``DataFrame`` with a row per fold and a column per metric."""
        try:
            import pandas
        except ImportError:
            raise UnavailableError(
                "`to_frame` needs the package pandas. Install gapgnn[frames]."
            ) from None
        numbers = pandas.Index([fold.number for fold in self.folds], name="fold")
        return pandas.DataFrame({name: self.figures(name) for name in self.names}, index=numbers)

    def __str__(self) -> str:
        lines = [f"{len(self.folds)} folds, {_cost(self.epsilon, self.delta)}"]
        for name in self.names:
            known = [figure for figure in self.figures(name) if figure is not None]
            if known:
                spread = f"{min(known):.3f} to {max(known):.3f}"
                lines.append(f"{name}: {self.mean(name):.3f} ({spread})")
        return "\n".join([*lines, self.note] if self.note else lines)


def cross_validate(
    model: NodeClassifier,
    graph: Any,
    *,
    folds: int = 5,
    metrics: str | Sequence[str] = METRICS,
    val: float = 0.1,
    callback: Callback | None = None,
    curator_only: str | None = None,
) -> CrossValidation:
    """Train a model per fold on everybody outside it, and score it on those inside.

    Every fold is charged to the ledger as a fit of its own. Before the first one a
    :class:`~gapgnn.privacy.ledger.LedgerNotice` says what all of them cost, and if the budget has
    too little for all, :class:`~gapgnn.errors.BudgetExceededError` is raised and nothing is charged
    or trained. A model that is released afterwards is charged on top.

    Args:
        model: any method; it is not changed, and what its folds train is not kept.
        graph: whatever ``fit`` takes. All its labelled nodes take part; its own split does not.
        folds: how many.
        metrics: which figures to list; each fold knows all of them.
        val: share of those outside a fold that validate.
        callback: watches the progress of every fold.
        curator_only: as in ``fit``, at level none.

    >>> from gapgnn import MLP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = social_graph(num_nodes=300, mean_degree=10)
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     found = cross_validate(MLP(epochs=5), graph, folds=3, metrics="accuracy")
    >>> print(said[0].message)
    3 folds of mlp are 3 trainings that read no edge: nothing is charged.
    >>> len(found.figures("accuracy")), found.epsilon
    (3, 0.0)
    """
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    _check_asked(model, names, folds=folds, val=val)
    graph = as_graph(graph, not_finite="zero" if model.level == "node" else "refuse")
    parts = fold_graphs(graph, folds=folds, seed=model.seed, val=val)
    for part in parts:
        check_trainable(part, level=model.level)
    candidates = [_candidate(model, number) for number in range(folds)]
    prices = [one.guarantee(part) for one, part in zip(candidates, parts, strict=True)]
    together = _together(graph, prices)
    _check_budget(model, graph, prices)
    warnings.warn(_said(model, prices, together), LedgerNotice, stacklevel=2)
    found = []
    for number, (one, part) in enumerate(zip(candidates, parts, strict=True), start=1):
        one.fit(part, callback=callback or Silent(), curator_only=curator_only)
        found.append(_scored(one, part, number))
    return CrossValidation(
        folds=tuple(found),
        names=names,
        level=model.level,
        epsilon=together.epsilon,
        delta=together.delta,
        note=CURATOR_NOTE if model.level == "node" else "",
    )


def fold_graphs(graph: Graph, *, folds: int, seed: int, val: float) -> list[Graph]:
    """Return the graph once per fold, with masks that test those inside it.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> parts = fold_graphs(social_graph(num_nodes=300, mean_degree=10), folds=3, seed=0, val=0.1)
    >>> sum(part.test_mask.astype(int) for part in parts).tolist() == [1] * 300
    True
    """
    is_labelled = graph.labels >= 0
    fold_of = folds_of(graph.ids, seed=seed, folds=folds)
    parts = []
    for number in range(folds):
        is_outside = is_labelled & (fold_of != number)
        # Others validate in every fold, or a tenth would never train.
        own = experiment_seed(seed, "fold", number)
        validates = roles(graph.ids, seed=own, train=1 - val, val=val) == 1
        masks = is_outside & ~validates, is_outside & validates, is_labelled & ~is_outside
        parts.append(graph.with_masks(*masks))
    return parts


def _check_asked(model: NodeClassifier, names: Sequence[str], *, folds: int, val: float) -> None:
    for name in names:
        check_choice("metrics", name, METRICS)
    check_integer("folds", folds, at_least=2, at_most=1000)
    check_number("val", val, at_least=0, below=1)
    model.check()
    if model.repeats != 1:
        raise InputError(f"`repeats` must be 1: each fold is trained once. Got {model.repeats}.")


def _candidate(model: NodeClassifier, number: int) -> NodeClassifier:
    """Return an unfitted copy; noise that is predictable differs from fold to fold all the same."""
    copy: NodeClassifier = clone(model)
    if model.insecure_noise_seed is not None:
        copy.insecure_noise_seed = experiment_seed(model.insecure_noise_seed, "fold", number)
    return copy


def _scored(model: NodeClassifier, part: Graph, number: int) -> Fold:
    """Return how a model does on the fold it was trained without, and its charge."""
    tested = model.repeat_metrics_[0] if part.test_mask.any() else None
    entry = model.card_.ledger
    return Fold(number, tested, None if entry is None else entry.charge_id)


def _together(graph: Graph, prices: Sequence[Guarantee]) -> Guarantee:
    """Return what all folds release, with the price of all of it."""
    if not any(price.events for price in prices):
        return prices[0]
    return Guarantee.of_events(
        graph,
        [event for price in prices for event in price.events],
        relation=prices[0].relation,
        delta=prices[0].delta,
        noise_multiplier=None,
    )


def _check_budget(model: NodeClassifier, graph: Graph, prices: Sequence[Guarantee]) -> None:
    """Refuse what does not fit the budget as a whole, before the first fold (section 6)."""
    releases = [
        (price.epsilon or 0.0, price.delta, [event.to_dict() for event in price.events])
        for price in prices
        if price.events
    ]
    if releases:
        Ledger(model.ledger).check_affordable(
            People.of(graph),
            level=prices[0].level,
            relation=prices[0].relation,
            releases=releases,
        )


def _said(model: NodeClassifier, prices: Sequence[Guarantee], together: Guarantee) -> str:
    """Return what the folds will cost, in words."""
    count = len(prices)
    start = f"{count} folds of {model.method} are {count}"
    if not together.events:
        if model.level == "none":
            return f"{start} trainings without privacy: no budget can pay for them."
        return f"{start} trainings that read no edge: nothing is charged."
    each = max(price.epsilon or 0.0 for price in prices)
    return (
        f"{start} releases, each charged: {count} x epsilon {each:.3g}, together "
        f"{_cost(together.epsilon, together.delta)}. A model that is fitted later comes on top."
    )


def _cost(epsilon: float | None, delta: float) -> str:
    if epsilon is None:
        return "without privacy"
    return f"epsilon {epsilon:.3g}" + (f" at delta {delta:.0e}" if epsilon else "")
