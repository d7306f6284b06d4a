"""A parameter that is given does something, or is refused; none switches the algorithm silently."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest

from gapgnn import (
    GAP,
    MLP,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
)
from gapgnn.errors import InputError, PrivacyError
from gapgnn.evaluation.grid import EXPERIMENTS, Source, Task, plan
from gapgnn.evaluation.grid.plans import candidates
from gapgnn.graph import Graph, random_split
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import join_edge_types
from gapgnn.methods import NodeClassifier
from gapgnn.methods.label_gap.budget import MOST_SHARE, learnability, record_share
from gapgnn.training import FeatureNetworks

ALGORITHMS: dict[str, tuple[type[NodeClassifier], dict[str, Any]]] = {
    **{
        f"{kind.__name__} {level}": (kind, {"level": level})
        for kind in (GAP, ProGAP, MLP, GraphSAGE, NeighborVote)
        for level in kind.levels
    },
    "GAP node, no encoder": (GAP, {"level": "node", "encoder_layers": 0}),
    "LabelGAP none": (LabelGAP, {"level": "none"}),
    "LabelGAP edge": (LabelGAP, {"level": "edge", "hops": 2}),
    "LabelGAP edge, no folds": (LabelGAP, {"level": "edge", "folds": 0}),
    "LabelGAP edge, no encoder": (LabelGAP, {"level": "edge", "encoder_layers": 0}),
    # A budget of which the first hop is released.
    "NodeLabelGAP": (NodeLabelGAP, {"level": "node", "epsilon": 30.0}),
    "NodeLabelGAP, own nothing": (NodeLabelGAP, {"level": "node", "own": "nothing"}),
    "NodeLabelGAP, own record": (NodeLabelGAP, {"level": "node", "own": "record"}),
    "MLP edge, no folds": (MLP, {"level": "edge", "folds": 0}),
    "NeighborVote edge, no folds": (NeighborVote, {"level": "edge", "folds": 0}),
}
# For every parameter a value that differs from its default and from what `auto` is anywhere.
VALUES: dict[str, Any] = {
    "level": None,  # part of the algorithm
    "own": "record",
    "epsilon": 3.0,
    "delta": 1e-6,
    "relation": {"none": "directed", "edge": "3-edges", "node": "replace"},
    "batch_norm": {"none": False, "edge": False, "node": True},
    "epochs": 5,
    "batch_size": 60,
    "learning_rate": 0.05,
    "weight_decay": 0.1,
    "optimizer": "sgd",
    "clip": 0.3,
    "class_weight": [1.0, 4.0],
    "threshold": 0.3,
    "metric": "macro_f1",
    "positive": "0",
    "train_size": 120,
    "noise": "fast",
    "insecure_noise_seed": 2,
    "repeats": 2,
    "split": "fixed",
    "seed": 3,
    "device": "cpu",
    "ledger": "other.sqlite",
    "reason": "a test",
    "max_degree": 7,
    "notion": "strict",
    "hops": 3,
    "encoder_layers": 1,
    "folds": 3,
    "directions": "both",
    "base_layers": 3,
    "head_layers": 2,
    "hidden": 8,
    "edge_types": {"none": "each", "edge": "each", "node": "any"},
    "combine": "sum",
    "activation": "relu",
    "dropout": 0.3,
    "hop_share": 0.5,
    "noise_ratios": {
        "GAP": (1.0, 2.0, 3.0),
        "ProGAP": (1.0, 2.0, 3.0),
        "GraphSAGE": (1.0, 2.0),
    },
    "layers": 4,
    "feature_norm": 3.0,
    "odds": 9.0,
    "perturbation": "lapgraph",
    "pre_layers": 3,
    "post_layers": 2,
    "memory_limit": 1.0,
}
# Of the machine: they decide where it is computed and written down.
OF_THE_MACHINE = ("device", "ledger")
# These say what is released, so other events are what they ask for, and the card says so.
NAMES_ALGORITHMS = ("own", "hop_share", "perturbation")
# A demand changes nothing where it is met, and refuses where it is not.
DEMANDS = ("notion",)


@cache
def graph(*, is_hash_split: bool = False) -> Graph:
    made = generate(num_nodes=240, mean_degree=10, num_features=6, num_classes=2, seed=1)
    if is_hash_split:
        return random_split(made, seed=0)
    # Nobody validates: the last iterate is used, which every parameter of training moves.
    return random_split(made, seed=0, train=0.8, val=0.0)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def quick(algorithm: str, **more: Any) -> NodeClassifier:
    kind, base = ALGORITHMS[algorithm]
    shared: dict[str, Any] = {"epochs": 2}
    if kind is NeighborVote and base["level"] == "node":
        shared = {}
    if kind(**base).draws_noise():
        shared["insecure_noise_seed"] = 1
    return kind(**{**shared, **base, **more})


def value_of(name: str, algorithm: str) -> Any:
    kind, base = ALGORITHMS[algorithm]
    value = VALUES[name]
    if isinstance(value, dict):
        value = value.get(base["level"], value.get(kind.__name__))
    return value


def graph_for(algorithm: str) -> Graph:
    # Of a vote at node level the seed decides whose roles are public, and who answers.
    return graph(is_hash_split=algorithm == "NeighborVote node")


def outcome(model: NodeClassifier, graph: Graph) -> dict[str, Any]:
    """Return everything that a parameter may change."""
    card = model.card_
    charged = Ledger(model.ledger).entries()
    return {
        "probabilities": model.predict_proba(graph),
        "predictions": model.predict(graph),
        "threshold": model.threshold_,
        "figures": {"score": model.score(graph), **model.metrics(graph).to_dict()},
        "events": card.events,
        "promise": (card.relation, card.epsilon, card.delta, card.node_notion),
        "repeats": len(model.repeat_scores_),
        "reason": charged[-1].reason if charged and card.events else "",
    }


def algorithm_of(model: NodeClassifier) -> tuple[set[str], set[str]]:
    """Return which kinds of networks there are and what was released, without how many.

    A network is trained after each hop; the one after the last hop classifies.
    """

    def kinds(names: Iterable[str]) -> set[str]:
        stages = ("stage" if name == "classifier" else name for name in names)
        return {name.rstrip("0123456789") for name in stages}

    return kinds(model.modules_), kinds(event["label"] for event in model.card_.events)


def said(model: NodeClassifier) -> tuple[Any, ...]:
    """Return what the card says was done."""
    card = model.card_
    labels = [event["label"] for event in card.events]
    return card.messages, card.own, card.max_degree, card.not_charged, labels


def is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        np.array_equal(one[key], other[key])
        if isinstance(one[key], np.ndarray)
        else one[key] == other[key]
        for key in one
    )


def parameters(algorithm: str) -> list[str]:
    return [field.name for field in dataclasses.fields(ALGORITHMS[algorithm][0])]


@cache
def reference(algorithm: str, ledger: str) -> tuple[NodeClassifier, dict[str, Any]]:
    model = quick(algorithm, ledger=ledger).fit(graph_for(algorithm))
    return model, outcome(model, graph_for(algorithm))


def verdict(algorithm: str, name: str, ledger: Ledger) -> str:
    """Tell what becomes of a parameter that is given."""
    first, expected = reference(algorithm, ledger.path)
    value, charges = value_of(name, algorithm), len(ledger.entries())
    refusal, model = None, quick(algorithm, ledger=ledger.path, **{name: value})
    try:
        model.fit(graph_for(algorithm))
    except (InputError, PrivacyError) as error:
        refusal = str(error)
    if refusal is not None:
        assert "\n" not in refusal
        assert any(f"`{given}`" in refusal for given in (name, *ALGORITHMS[algorithm][1])), refusal
        assert len(ledger.entries()) == charges, "a refusal was charged"
        return "refused"
    if algorithm_of(model) != algorithm_of(first):
        is_told = name in NAMES_ALGORITHMS and said(model) != said(first)
        return "used" if is_told else "OTHER ALGORITHM"
    if name in DEMANDS:
        return "used"
    return "ignored" if is_same(outcome(model, graph_for(algorithm)), expected) else "used"


def matrix(algorithm: str, ledger: Ledger) -> dict[str, str]:
    """Return what becomes of each parameter that is no part of the algorithm's definition."""
    _, base = ALGORITHMS[algorithm]
    skipped = {*OF_THE_MACHINE, *base} - {"epsilon"}
    names = [name for name in parameters(algorithm) if name not in skipped]
    return {name: verdict(algorithm, name, ledger) for name in names}


def test_every_parameter_of_every_method_has_a_value_here():
    fields = {name for algorithm in ALGORITHMS for name in parameters(algorithm)}
    assert fields == set(VALUES)


# The others take longer; between them these have every branch that refuses.
QUICKLY = (
    "GAP node",
    "LabelGAP edge",
    "NodeLabelGAP, own nothing",
    "MLP node",
    "GraphSAGE node",
    "NeighborVote node",
)


SOME = [
    name if name in QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS
]


@pytest.mark.parametrize("algorithm", SOME)
def test_a_given_parameter_is_used_or_refused_and_never_switches_the_algorithm(algorithm, ledger):
    found = matrix(algorithm, ledger)
    wrong = {name: said for name, said in found.items() if said not in ("used", "refused")}
    assert not wrong


STEPS = "a number of steps, which is no number of passes"
# `auto` without a value that could be written down.
NO_VALUE = {
    **{(one, "metric"): "another figure for each decision" for one in ALGORITHMS},
    ("NodeLabelGAP", "hop_share"): "chosen by a noisy mean out-degree, which is released first",
    ("MLP node", "feature_norm"): "rows of few numbers are made shorter where people are few",
    **{(one, "relation"): "there is none" for one in ALGORITHMS if one.endswith(" none")},
    **{(one, "epochs"): STEPS for one in ALGORITHMS if one.startswith("NodeLabelGAP")},
    ("MLP node", "epochs"): STEPS,
}


def resolved(algorithm: str, model: NodeClassifier) -> dict[str, Any]:
    """Return what `auto` is on the graph of these tests, parameter by parameter."""
    plan, settings = model.plan_, model.plan_.settings
    assert plan.facts is not None
    count, recipe = plan.facts.num_train, settings.recipe
    learned = learnability(
        model.add_remove_epsilon(plan.relation),
        num_train=count,
        num_features=plan.facts.num_features,
    )
    reads_record = model.get_params().get("own") == "record"
    found: dict[str, Any] = {
        "delta": model.card_.delta,
        "relation": plan.relation,
        "epochs": recipe.epochs,
        "batch_size": min(recipe.batch_size or recipe.nodes or count, count),
        "learning_rate": recipe.learning_rate,
        "train_size": count,
        "device": "cpu",
        "directions": "along",
        "feature_norm": 0.0,
        "hop_share": record_share(learned) if reads_record else MOST_SHARE,
        "noise_ratios": (1.0, model.epsilon ** (-1 / 3) if type(model) is ProGAP else 1.0, 1.0),
    }
    found |= {part.name: getattr(settings, part.name) for part in dataclasses.fields(settings)}
    if isinstance(model, MLP) and settings.folds:
        suited = FeatureNetworks.suited(count, model.num_features_)
        found |= {"epochs": suited.steps, "dropout": suited.dropout}
    return found


def left_to_auto(algorithm: str) -> list[str]:
    kind, base = ALGORITHMS[algorithm]
    names = [field.name for field in dataclasses.fields(kind) if field.default == "auto"]
    names += ["noise_ratios"] if kind in (GAP, ProGAP) else []
    return [name for name in names if name not in base and (algorithm, name) not in NO_VALUE]


def written_out(algorithm: str, ledger: Ledger) -> tuple[NodeClassifier, dict[str, Any]]:
    """Return a fitted model of an algorithm, and what `auto` was in it.

    Parameters that do nothing there are refused whatever their value, and left out.
    """
    options = {"epochs": "auto"} if "epochs" in parameters(algorithm) else {}
    model = quick(algorithm, ledger=ledger.path, **options).fit(graph_for(algorithm))
    values = resolved(algorithm, model)
    named = {name: values[name] for name in left_to_auto(algorithm)}
    unused = quick(algorithm, **{**options, **named}).unused_parameters(graph_for(algorithm))
    return model, {name: value for name, value in named.items() if name not in unused}


def check_alike(algorithm: str, ledger: Ledger, first: NodeClassifier, **values: Any) -> None:
    options = {"epochs": "auto", **values} if "epochs" in parameters(algorithm) else values
    data = graph_for(algorithm)
    model = quick(algorithm, ledger=ledger.path, **options).fit(data)
    assert is_same(outcome(model, data), outcome(first, data)), values


@pytest.mark.parametrize("algorithm", SOME)
def test_values_of_auto_written_out_give_what_auto_gives(algorithm, ledger):
    first, values = written_out(algorithm, ledger)
    check_alike(algorithm, ledger, first, **values)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_value_of_auto_written_out_gives_what_auto_gives(algorithm, ledger):
    first, values = written_out(algorithm, ledger)
    for name, value in values.items():
        check_alike(algorithm, ledger, first, **{name: value})


def with_arcs(keep: Callable[[Any], Any], *, directed: bool) -> Graph:
    arcs = graph().adjacency().tocoo()
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    shared = {key: getattr(graph(), key) for key in rows}
    ends = arcs.row[keep(arcs)], arcs.col[keep(arcs)]
    return Graph.from_arcs(*ends, num_nodes=graph().num_nodes, directed=directed, **shared)


def test_where_edges_have_directions_they_are_used(ledger):
    data = with_arcs(lambda arcs: arcs.row < arcs.col, directed=True)
    shared = {"epochs": 2, "insecure_noise_seed": 1, "ledger": ledger.path}
    first, second = (LabelGAP(**shared, directions=way).fit(data) for way in ("along", "both"))
    assert not is_same(outcome(first, data), outcome(second, data))


def test_where_there_are_edge_types_what_is_hidden_of_them_is_used(ledger):
    types = {
        name: with_arcs(lambda arcs, odd=odd: (arcs.row + arcs.col) % 2 == odd, directed=False)
        for odd, name in enumerate(("calls", "visits"))
    }
    data = join_edge_types(types)
    shared = {"epochs": 2, "insecure_noise_seed": 1, "ledger": ledger.path}
    for method in (GAP, ProGAP, LabelGAP):
        first, second = (
            method(**shared, hops=1, edge_types=which).fit(data) for which in ("any", "each")
        )
        assert not is_same(outcome(first, data), outcome(second, data))


def test_progap_without_an_encoder_is_refused(ledger):
    """Stages send embeddings of one width, which raw features do not have."""
    with pytest.raises(InputError, match="`encoder_layers` must be at least 1"):
        ProGAP(encoder_layers=0, ledger=ledger.path).fit(graph())
    assert ledger.entries() == []


EXPERIMENTS_OPTIONS = {"noise": "safe", "insecure_noise_seed": 5}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_rows_of_experiments_have_only_parameters_that_they_use(experiment):
    source = Source("any", (), lambda seed: graph())
    rows = plan(experiment, deltas={"edge": 1e-6, "node": 1e-5})
    for row in itertools.chain(rows, *map(candidates, rows)):
        task = Task(row, source, "fingerprint", 1, "version", **EXPERIMENTS_OPTIONS)
        assert task.estimator().unused_parameters() == {}
        task.estimator().check()
        assert task.estimator().insecure_noise_seed == (5 if row.epsilon else None)
