"""A parameter that is given does something, or is refused; none switches the algorithm silently."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

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
from gapgnn.methods.configs import own_parameters
from gapgnn.methods.label_gap.budget import MOST_SHARE, learnability, record_share
from gapgnn.privacy import Plan
from gapgnn.training import FeatureNetworks, Recipe


def own_encoder(num_features: int, width: int) -> nn.Module:
    return nn.Linear(num_features, width)


def own_classifier(widths: list[int], num_classes: int) -> nn.Module:
    class Last(nn.Linear):
        def forward(self, hops: list[Tensor]) -> Tensor:
            return super().forward(hops[-1])

    return Last(widths[-1], num_classes)


def own_messages(senders: Any) -> Tensor:
    return 0.5 * senders.codes[senders.labels.clamp(min=0)]


own_messages.norm_bound = 1.0

ALGORITHMS: dict[str, tuple[type[NodeClassifier], dict[str, Any]]] = {
    **{
        f"{method_class.__name__} {level}": (method_class, {"level": level})
        for method_class in (GAP, ProGAP, MLP, GraphSAGE, NeighborVote)
        for level in method_class.levels
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
    "encoder": own_encoder,
    "classifier": own_classifier,
    "messages": own_messages,
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
    method_class, base = ALGORITHMS[algorithm]
    shared: dict[str, Any] = {"epochs": 2}
    if method_class is NeighborVote and base["level"] == "node":
        shared = {}
    if method_class(**base).draws_noise():
        shared["insecure_noise_seed"] = 1
    return method_class(**{**shared, **base, **more})


def value_of(name: str, algorithm: str) -> Any:
    method_class, base = ALGORITHMS[algorithm]
    value = VALUES[name]
    if isinstance(value, dict):
        value = value.get(base["level"], value.get(method_class.__name__))
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
        "promise": (str(card.relation), card.epsilon, card.delta, card.node_notion),
        "repeats": len(model.repeat_scores_),
        "reason": charged[-1].reason if charged and card.events else "",
    }


def algorithm_of(model: NodeClassifier) -> tuple[set[str], set[str]]:
    """Return which sorts of networks there are and what was released, without how many.

    A network is trained after each hop; the one after the last hop classifies.
    """

    def method_classes(names: Iterable[str]) -> set[str]:
        stages = ("stage" if name == "classifier" else name for name in names)
        return {name.rstrip("0123456789") for name in stages}

    return method_classes(model.modules_), method_classes(
        event["label"] for event in model.card_.events
    )


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
        is_stated = name in NAMES_ALGORITHMS and said(model) != said(first)
        return "used" if is_stated else "OTHER ALGORITHM"
    if name in DEMANDS:
        return "used"
    return "ignored" if is_same(outcome(model, graph_for(algorithm)), expected) else "used"


def matrix(algorithm: str, ledger: Ledger) -> dict[str, str]:
    """Return what becomes of each parameter."""
    return {name: verdict(algorithm, name, ledger) for name in tried(algorithm)}


def tried(algorithm: str) -> list[str]:
    """Return the parameters that are no part of the algorithm's definition."""
    skipped = {*OF_THE_MACHINE, *ALGORITHMS[algorithm][1]} - {"epsilon"}
    return [name for name in parameters(algorithm) if name not in skipped]


def test_every_parameter_of_every_method_has_a_value_here():
    fields = {name for algorithm in ALGORITHMS for name in parameters(algorithm)}
    assert fields == set(VALUES)


# What each algorithm refuses of these values, before it reads anything. Whether what it does not
# refuse is used is seen below, with every parameter in the slow tests.
AT_EDGE = "clip split train_size"
FREE = f"delta epsilon insecure_noise_seed noise reason {AT_EDGE}"
CUTS_NOTHING = "max_degree noise_ratios notion"
AT_NODE = "batch_norm metric split"
REFUSED = {
    "GAP none": f"edge_types relation {CUTS_NOTHING} {FREE}",
    "GAP edge": f"edge_types {CUTS_NOTHING} {AT_EDGE}",
    "GAP node": f"dropout edge_types {AT_NODE}",
    "GAP node, no encoder": f"dropout edge_types encoder {AT_NODE}",
    "ProGAP none": f"edge_types relation {CUTS_NOTHING} {FREE}",
    "ProGAP edge": f"edge_types {CUTS_NOTHING} {AT_EDGE}",
    "ProGAP node": f"dropout edge_types {AT_NODE}",
    "MLP none": f"relation {FREE}",
    "MLP edge": FREE,
    "MLP edge, no folds": FREE,
    "MLP node": f"dropout folds {AT_NODE}",
    "GraphSAGE none": f"memory_limit perturbation relation {CUTS_NOTHING} {FREE}",
    "GraphSAGE edge": f"delta memory_limit {CUTS_NOTHING} {AT_EDGE}",
    "GraphSAGE node": f"dropout layers memory_limit perturbation relation {AT_NODE}",
    "NeighborVote none": f"relation {FREE}",
    "NeighborVote edge": FREE,
    "NeighborVote edge, no folds": FREE,
    "NeighborVote node": (
        "activation batch_size class_weight clip delta dropout epochs feature_norm folds hidden "
        f"layers learning_rate optimizer train_size weight_decay {AT_NODE}"
    ),
    "LabelGAP none": f"directions edge_types relation {FREE}",
    "LabelGAP edge": f"directions edge_types {AT_EDGE}",
    "LabelGAP edge, no folds": f"directions edge_types {AT_EDGE}",
    "LabelGAP edge, no encoder": f"directions edge_types folds {AT_EDGE}",
    "NodeLabelGAP": AT_NODE,
    "NodeLabelGAP, own nothing": f"combine {AT_NODE}",
    "NodeLabelGAP, own record": AT_NODE,
}


def is_refused(algorithm: str, name: str) -> bool:
    model = quick(algorithm, **{name: value_of(name, algorithm)})
    try:
        model.check()
    except (InputError, PrivacyError):
        return True
    return name in model.unused_parameters(graph_for(algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_does_nothing_is_refused_by_every_algorithm(algorithm):
    found = {name for name in tried(algorithm) if is_refused(algorithm, name)}
    assert found == set(REFUSED[algorithm].split())


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


# Of methods that take longest only the parameters that not all methods have.
OWN_QUICKLY = ("ProGAP edge",)


@pytest.mark.parametrize("algorithm", OWN_QUICKLY)
def test_a_parameter_of_one_method_is_used_or_refused(algorithm, ledger):
    names = set(own_parameters(ALGORITHMS[algorithm][0])) & set(tried(algorithm))
    found = {name: verdict(algorithm, name, ledger) for name in names}
    assert set(found.values()) <= {"used", "refused"}, found


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


def resolved(algorithm: str, model: NodeClassifier, plan: Plan[Any]) -> dict[str, Any]:
    """Return what `auto` is on the graph of these tests, parameter by parameter."""
    settings = plan.settings
    assert plan.facts is not None
    count, recipe = plan.facts.num_train, settings.recipe
    learned = learnability(
        model.add_remove_epsilon(plan.relation),
        num_train=count,
        num_features=plan.facts.num_features,
    )
    reads_record = model.get_params().get("own") == "record"
    found: dict[str, Any] = {
        "delta": plan.promise.delta,
        "relation": str(plan.relation),
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
        suited = FeatureNetworks.suited(count, plan.facts.num_features)
        found |= {"epochs": suited.steps, "dropout": suited.dropout}
    return found


def left_to_auto(algorithm: str) -> list[str]:
    method_class, base = ALGORITHMS[algorithm]
    names = [field.name for field in dataclasses.fields(method_class) if field.default == "auto"]
    names += ["noise_ratios"] if method_class in (GAP, ProGAP) else []
    return [name for name in names if name not in base and (algorithm, name) not in NO_VALUE]


def written_out(algorithm: str, ledger: Ledger) -> tuple[NodeClassifier, dict[str, Any]]:
    """Return a fitted model of an algorithm, and what `auto` was in it.

    Parameters that do nothing there are refused whatever their value, and left out.
    """
    options = {"epochs": "auto"} if "epochs" in parameters(algorithm) else {}
    model = quick(algorithm, ledger=ledger.path, **options).fit(graph_for(algorithm))
    return model, values_of_auto(algorithm, model, model.plan_, **options)


def values_of_auto(
    algorithm: str, model: NodeClassifier, plan: Plan[Any], **options: Any
) -> dict[str, Any]:
    values = resolved(algorithm, model, plan)
    named = {name: values[name] for name in left_to_auto(algorithm)}
    unused = quick(algorithm, **{**options, **named}).unused_parameters(graph_for(algorithm))
    return {name: value for name, value in named.items() if name not in unused}


def used_settings(plan: Plan[Any]) -> dict[str, Any]:
    """Return the settings of a plan as far as they do something on the graph of these tests."""
    assert plan.facts is not None
    count, settings = plan.facts.num_train, plan.settings
    found = {part.name: getattr(settings, part.name) for part in dataclasses.fields(settings)}
    # No edge has a direction here.
    found.pop("symmetrises", None)
    for name, recipe in found.items():
        if isinstance(recipe, Recipe):
            # A batch of more than all training nodes is one of all.
            nodes, size = (min(one or count, count) for one in (recipe.nodes, recipe.batch_size))
            found[name] = dataclasses.replace(recipe, nodes=nodes, batch_size=size)
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_of_auto_written_out_make_the_same_plan(algorithm):
    data = graph_for(algorithm)
    options = {"epochs": "auto"} if "epochs" in parameters(algorithm) else {}
    model = quick(algorithm, **options)
    plan = model.plan_for(data)
    chosen = (plan.options or (plan,))[-1]
    values = values_of_auto(algorithm, model, chosen, **options)
    other = quick(algorithm, **{**options, **values}).plan_for(data)
    assert len(values) > 1
    assert other.promise.events == plan.promise.events
    pairs = zip(other.options or (other,), plan.options or (plan,), strict=True)
    for written, left in pairs:
        assert used_settings(written) == used_settings(left)
        assert (written.hops, written.training) == (left.hops, left.training)


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
