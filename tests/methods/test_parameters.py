"""A parameter that is given does something, or is refused; none switches the algorithm silently."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from gapgnn.methods.gap.variant import Defaults, record_share

from gapgnn import GAP, MLP, SAGE, Ledger
from gapgnn.errors import InputError, PrivacyError
from gapgnn.evaluation.grid import EXPERIMENTS, Source, Task, plan
from gapgnn.evaluation.grid.plans import candidates
from gapgnn.graph import Graph, random_split
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import join_kinds
from gapgnn.methods import NodeClassifier, Vote
from gapgnn.privacy import resolve_kinds, resolve_relation
from gapgnn.training import FEATURE_WIDTH, FeatureNetworks, node_learning_rate

FEATURES = {"messages": "features"}
ALGORITHMS: dict[str, tuple[type[NodeClassifier], dict[str, Any]]] = {
    "GAP none": (GAP, {"level": "none", **FEATURES}),
    "GAP edge": (GAP, {"level": "edge", **FEATURES}),
    "GAP node": (GAP, {"level": "node", **FEATURES}),
    "GAP node, no encoder": (GAP, {"level": "node", "encoder_layers": 0, **FEATURES}),
    "ProGAP none": (GAP, {"level": "none", "progressive": True, **FEATURES}),
    "ProGAP edge": (GAP, {"level": "edge", "progressive": True, **FEATURES}),
    "ProGAP node": (GAP, {"level": "node", "progressive": True, **FEATURES}),
    "labels none": (GAP, {"level": "none"}),
    "labels edge": (GAP, {"level": "edge", "hops": 2}),
    "labels edge, no stages": (GAP, {"level": "edge", "progressive": False}),
    "labels edge, no folds": (GAP, {"level": "edge", "folds": 0}),
    # A budget of which the first hop is released.
    "labels node": (GAP, {"level": "node", "epsilon": 30.0}),
    "labels node, own nothing": (GAP, {"level": "node", "own": "nothing"}),
    "labels node, own record": (GAP, {"level": "node", "own": "record"}),
    "labels node, cut": (GAP, {"level": "node", "max_degree": 20, "hops": 2}),
    "labels node, stages": (GAP, {"level": "node", "progressive": True}),
    "both edge": (GAP, {"level": "edge", "messages": "both"}),
    "both node": (GAP, {"level": "node", "messages": "both"}),
    "MLP none": (MLP, {"level": "none"}),
    "MLP edge": (MLP, {"level": "edge"}),
    "MLP edge, no folds": (MLP, {"level": "edge", "folds": 0}),
    "MLP node": (MLP, {"level": "node"}),
    "SAGE none": (SAGE, {"level": "none"}),
    "SAGE edge": (SAGE, {"level": "edge"}),
    "SAGE node": (SAGE, {"level": "node"}),
    "Vote none": (Vote, {"level": "none"}),
    "Vote edge": (Vote, {"level": "edge"}),
    "Vote node": (Vote, {"level": "node"}),
}
DEGREE_NORMALISED = ("labels node", "labels node, own nothing", "labels node, own record")
# For every parameter a value that differs from its default and from what `auto` is anywhere.
VALUES: dict[str, Any] = {
    "level": None,  # part of the algorithm
    "messages": "both",
    "progressive": False,
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
    "kinds": {"none": "each", "edge": "each", "node": "any"},
    "combine": "sum",
    "activation": "relu",
    "dropout": 0.3,
    "hop_share": 0.5,
    "noise_ratios": {"GAP": (1.0, 2.0, 3.0), "SAGE": (1.0, 2.0)},
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
# What names an algorithm may change it, and then the card says another thing.
NAMES_ALGORITHMS = ("messages", "progressive", "own", "max_degree", "hop_share", "perturbation")
# A demand changes nothing where it is met, and refuses where it is not.
DEMANDS = ("notion",)


@cache
def graph(*, is_dealt: bool = False) -> Graph:
    made = generate(num_nodes=240, mean_degree=10, num_features=6, num_classes=2, seed=1)
    if is_dealt:
        return random_split(made, seed=0)
    # Nobody validates: the last iterate is used, which every parameter of training moves.
    return random_split(made, seed=0, train=0.8, val=0.0)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def quick(algorithm: str, **more: Any) -> NodeClassifier:
    kind, base = ALGORITHMS[algorithm]
    shared: dict[str, Any] = {"epochs": 2}
    if kind is Vote and base["level"] == "node":
        shared = {}
    if base["level"] == "node" or (base["level"] == "edge" and kind in (GAP, SAGE)):
        shared["insecure_noise_seed"] = 1
    return kind(**{**shared, **base, **more})


def value_of(name: str, algorithm: str) -> Any:
    kind, base = ALGORITHMS[algorithm]
    value = VALUES[name]
    if (
        name == "progressive"
        and algorithm.startswith(("GAP", "labels node"))
        and "cut" not in algorithm
    ):
        value = True
    if isinstance(value, dict):
        value = value.get(base["level"], value.get(kind.__name__))
    return value


def graph_for(algorithm: str) -> Graph:
    # Of a vote at node level the seed decides whose roles are public, and who answers.
    return graph(is_dealt=algorithm == "Vote node")


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
    "labels edge",
    "labels node, own nothing",
    "MLP node",
    "SAGE node",
    "Vote node",
)


SOME = [
    name if name in QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS
]


@pytest.mark.parametrize("algorithm", SOME)
def test_a_given_parameter_is_used_or_refused_and_never_switches_the_algorithm(algorithm, ledger):
    found = matrix(algorithm, ledger)
    wrong = {name: said for name, said in found.items() if said not in ("used", "refused")}
    assert not wrong


# `auto` without a value that could be written down.
NO_VALUE = {
    **{(one, "metric"): "another figure for each decision" for one in ALGORITHMS},
    ("labels node", "hop_share"): "chosen by a noisy mean out-degree, which is released first",
    ("MLP node", "feature_norm"): "rows of few numbers are made shorter where people are few",
    **{(one, "max_degree"): "nothing is cut" for one in DEGREE_NORMALISED},
    **{(one, "relation"): "there is none" for one in ALGORITHMS if one.endswith(" none")},
    **{
        (one, "epochs"): "a number of steps, which is no number of passes"
        for one in (*DEGREE_NORMALISED, "MLP node")
    },
}


def resolved(algorithm: str, model: NodeClassifier) -> dict[str, Any]:
    """Return what `auto` is on the graph of these tests, parameter by parameter."""
    data, level = graph_for(algorithm), model.level
    count = model._num_train(data)
    recipe = model._recipe(count)
    found: dict[str, Any] = {
        "delta": model.card_.delta,
        "relation": resolve_relation(level, "auto", is_directed=False),
        "batch_norm": level != "node",
        "epochs": recipe.epochs,
        "batch_size": min(recipe.batch_size or recipe.nodes or count, count),
        "learning_rate": recipe.learning_rate,
        "train_size": count,
        "device": "cpu",
    }
    if level == "node" and model._learns_features():
        worth = model._worth(model.card_.relation)
        found["learning_rate"] = node_learning_rate(count, worth)
    if isinstance(model, SAGE):
        return {**found, "layers": 1 if level == "node" else 2, "max_degree": 1}
    if isinstance(model, MLP):
        return {**found, **resolved_mlp(model, count, recipe.epochs)}
    assert isinstance(model, GAP)
    variant, defaults = model._variant(), Defaults.of(model._variant())
    share = 0.8
    if model.own == "record":
        share = record_share(model._lesson(data, model.card_.relation))
    return {
        **found,
        "progressive": variant.is_progressive,
        "hops": variant.hops,
        "folds": variant.folds,
        "max_degree": variant.max_degree,
        "directions": "along",
        "kinds": resolve_kinds(level),
        "base_layers": defaults.base_layers,
        "hidden": defaults.hidden,
        "activation": defaults.activation,
        "dropout": defaults.dropout,
        "hop_share": share,
        "noise_ratios": model._ratios(),
    }


def resolved_mlp(model: MLP, count: int, epochs: int) -> dict[str, Any]:
    is_alone = model.level == "node" or model.folds == 0
    rate, steps = FeatureNetworks.suited(count, model.num_features_)
    return {
        "epochs": epochs if is_alone else steps,
        "layers": 2 if model.level == "node" else 3,
        "hidden": 16 if is_alone else FEATURE_WIDTH,
        "folds": 0 if is_alone else 4,
        "dropout": 0.0 if is_alone else rate,
        "feature_norm": 0.0,
    }


def left_to_auto(algorithm: str) -> list[str]:
    kind, base = ALGORITHMS[algorithm]
    names = [field.name for field in dataclasses.fields(kind) if field.default == "auto"]
    names += ["noise_ratios"] if kind is GAP else []
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


@pytest.mark.parametrize(("own", "hops"), [("features", 2), ("nothing", 2), ("record", 1)])
def test_the_number_of_hops_of_the_default_written_out_gives_the_default(own, hops, ledger):
    options = {"level": "node", "own": own, "epochs": 3, "epsilon": 30.0, "hop_share": 0.5}
    options |= {"insecure_noise_seed": 1, "ledger": ledger.path}
    first, same = (GAP(**options, **more).fit(graph()) for more in ({}, {"hops": hops}))
    assert is_same(outcome(first, graph()), outcome(same, graph()))


@pytest.mark.parametrize("hops", [1, 3])
def test_another_number_of_hops_never_leads_to_cut_lists_at_node_level(hops, ledger):
    with pytest.raises(InputError, match=r"`hops` must be auto or 2 .*Set `max_degree` to cut"):
        GAP(level="node", hops=hops, ledger=ledger.path).fit(graph())
    assert ledger.entries() == []
    assert GAP(level="node", hops=hops, max_degree=9)._variant().max_degree == 9


def with_arcs(keep: Callable[[Any], Any], *, directed: bool) -> Graph:
    arcs = graph().adjacency().tocoo()
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    shared = {key: getattr(graph(), key) for key in rows}
    ends = arcs.row[keep(arcs)], arcs.col[keep(arcs)]
    return Graph.from_arcs(*ends, num_nodes=graph().num_nodes, directed=directed, **shared)


def test_where_edges_have_directions_they_are_used(ledger):
    data = with_arcs(lambda arcs: arcs.row < arcs.col, directed=True)
    shared = {"epochs": 2, "insecure_noise_seed": 1, "ledger": ledger.path}
    first, second = (GAP(**shared, directions=way).fit(data) for way in ("along", "both"))
    assert not is_same(outcome(first, data), outcome(second, data))


def test_where_there_are_edge_types_what_is_hidden_of_them_is_used(ledger):
    types = {
        name: with_arcs(lambda arcs, odd=odd: (arcs.row + arcs.col) % 2 == odd, directed=False)
        for odd, name in enumerate(("calls", "visits"))
    }
    data = join_kinds(types)
    shared = {"epochs": 2, "insecure_noise_seed": 1, "ledger": ledger.path}
    first, second = (GAP(**shared, kinds=which).fit(data) for which in ("any", "each"))
    assert not is_same(outcome(first, data), outcome(second, data))


def test_codes_of_raw_features_are_refused_where_another_width_is_sent(ledger):
    """Seen to be charged first and to end in an error about the shape of the inputs."""
    for more in ({"progressive": True, "messages": "features"}, {"messages": "both"}):
        with pytest.raises(InputError, match="`encoder_layers` must be at least 1"):
            GAP(encoder_layers=0, ledger=ledger.path, **more).fit(graph())
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
