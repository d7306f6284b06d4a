"""What an epsilon gives on a graph like somebody's own, before any private data is read.

Models are trained on tables that were drawn from declarations
(:mod:`gapgnn.graph.datasets.simulated`), with a throw-away ledger: nobody is in them, so nothing is
charged. The figures say how the recommended method does on a graph of that size, and not how it
will do on the real one, whose columns and edges hold more or less than what was declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gapgnn.errors import InputError
from gapgnn.privacy import EntityCounts, auto_delta, resolve_relation

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.graph.datasets import DeclaredGraph
    from gapgnn.training import Callback

FEATURES_ONLY, NOT_PRIVATE = "features only (MLP)", "without privacy"
# Shown in this order, in percent but for the last two.
FIGURES = ("accuracy", "balanced_accuracy", "auc", "average_precision")


@dataclass(frozen=True)
class SimulatedRow:
    """One model on a simulated graph.

    Attributes:
        name: of the method, or what it is a reference for.
        epsilon: of the model; 0 where no private data is read, None without a promise.
        delta: with it.
        figures: mean of each figure over the repeats; None where it has no value.
        runs: accuracy of each repeat.
    """

    name: str
    epsilon: float | None
    delta: float | None
    figures: Mapping[str, float | None]
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Simulation:
    """Accuracies on a simulated graph at several budgets, and references.

    Attributes:
        declared: what was simulated.
        method: the recommended one of the level.
        delta: of all rows with an epsilon.
        rows: the method at each epsilon, in their order.
        references: features alone, and the method without privacy.
        majority: share of the largest class, which answering it alone is right for.
    """

    declared: DeclaredGraph
    method: str
    delta: float
    rows: tuple[SimulatedRow, ...]
    references: tuple[SimulatedRow, ...]
    majority: float


def declared_delta(declared: DeclaredGraph, level: str, relation: str = "auto") -> float:
    """Return the automatic delta of a graph with the declared numbers of people and edges.

    >>> from gapgnn.graph.datasets import DeclaredGraph
    >>> declared = DeclaredGraph(num_nodes=10_000, mean_degree=60)
    >>> declared_delta(declared, "edge"), declared_delta(declared, "node")
    (1e-07, 1e-05)
    """
    edges = declared.num_edges
    counts = EntityCounts(
        num_nodes=declared.num_nodes, num_edges=edges, num_arcs=2 * edges, is_directed=False
    )
    return auto_delta(counts.protected(resolve_relation(level, relation, is_directed=False)))


def simulate(
    declared: DeclaredGraph,
    *,
    epsilons: Sequence[float],
    level: str = "edge",
    relation: str = "auto",
    delta: float | None = None,
    repeats: int = 1,
    references: bool = True,
    device: str = "auto",
    callback: Callback | None = None,
) -> Simulation:
    """Train the recommended method of a level on a simulated graph, at several budgets.

    Args:
        declared: what is simulated; no table is read.
        epsilons: the budgets.
        level: ``edge`` or ``node``.
        relation: the neighbouring relation.
        delta: of each; None: the automatic one of the declared size.
        repeats: with other splits, initial weights and noise; figures are their means.
        references: also train on features alone, and without privacy.
        device: where to compute.
        callback: is notified of steps.

    >>> from gapgnn.graph.datasets import DeclaredGraph
    >>> small = DeclaredGraph(num_nodes=400, mean_degree=10, num_classes=2, num_features=3)
    >>> found = simulate(small, epsilons=[8.0], references=False)
    >>> found.method, found.delta, [row.epsilon for row in found.rows]
    ('label-gap', 1e-05, [8.0])
    """
    from gapgnn.methods import recommended_method

    if not epsilons:
        raise InputError("`epsilon` must be at least one budget. Got none.")
    chosen = declared_delta(declared, level, relation) if delta is None else delta
    shared = {"repeats": repeats, "device": device, "seed": declared.seed}
    private = {**shared, "level": level, "relation": relation, "delta": chosen, "noise": "fast"}
    method = recommended_method(level)
    # Everything is checked before the first training.
    wanted = [(method, e, _model(method, {**private, "epsilon": e})) for e in epsilons]
    others: list[tuple[str, float | None, Any]] = []
    if references:
        alone = _model("mlp", {**private, "epsilon": epsilons[-1]})
        others.append((FEATURES_ONLY, epsilons[-1] if level == "node" else 0.0, alone))
        free = recommended_method("none")
        others.append((NOT_PRIVATE, None, _model(free, {**shared, "level": "none"})))
    for _, _, model in (*wanted, *others):
        model.check()
    graph = declared.tables().graph(seed=declared.seed)
    rows = [_row(name, epsilon, model, graph, callback) for name, epsilon, model in wanted]
    beside = [_row(name, epsilon, model, graph, callback) for name, epsilon, model in others]
    majority = rows[0].figures["majority"]
    assert majority is not None
    return Simulation(declared, method, chosen, tuple(rows), tuple(beside), majority)


def _model(method: str, wanted: Mapping[str, Any]) -> Any:
    """Return an estimator with those parameters that it uses at its level."""
    from gapgnn.methods import method_class

    kept = {part.name for part in fields(method_class(method))} & wanted.keys()
    own = {name: wanted[name] for name in kept}
    unused = method_class(method)(**own).unused_parameters()
    return method_class(method)(**{k: v for k, v in own.items() if k not in unused})


def _row(
    name: str, epsilon: float | None, model: Any, graph: Graph, callback: Callback | None
) -> SimulatedRow:
    """Train one model with a throw-away ledger, and return its figures."""
    from gapgnn.privacy.ledger import scratch_ledger
    from gapgnn.training import Silent, mean_metrics

    with scratch_ledger() as ledger:
        model.set_params(ledger=ledger)
        model.fit(graph, callback=callback or Silent())
    mean = mean_metrics(model.repeat_metrics_)
    ranking = mean["ranking"] or {}
    figures = {key: mean[key] for key in ("accuracy", "balanced_accuracy", "auc", "majority")}
    figures["average_precision"] = ranking.get("average_precision")
    runs = tuple(float(run) for run in model.repeat_scores_)
    delta = model.card_.delta if epsilon else None
    return SimulatedRow(name, epsilon, delta, figures, runs)
