"""A plan is a pure function of what was asked and of public facts, and says everything once."""

from __future__ import annotations

import dataclasses
import json

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
    random_split,
)
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import Guarantee, parse_relation
from gapgnn.privacy.guarantee import EntityCounts
from gapgnn.privacy.plan import Plan, PublicFacts

MODELS = [
    GAP(epsilon=4.0),
    GAP(level="none"),
    GAP(level="node", epsilon=8.0),
    ProGAP(epsilon=4.0),
    ProGAP(level="node", epsilon=8.0),
    LabelGAP(epsilon=4.0),
    LabelGAP(level="none"),
    NodeLabelGAP(epsilon=8.0, hop_share=0.5),
    NodeLabelGAP(epsilon=8.0, own="record"),
    MLP(level="edge"),
    MLP(level="node"),
    GraphSAGE(epsilon=4.0),
    GraphSAGE(level="node"),
    NeighborVote(level="node"),
]


def named(model):
    return f"{type(model).__name__}-{model.level}"


@pytest.fixture(scope="module")
def graph():
    return random_split(social_graph(num_nodes=317, mean_degree=8), seed=0)


def moved(graph):
    """Return the graph with other edges, as many of them."""
    shuffled = np.random.default_rng(1).permutation(graph.num_nodes)
    adjacency = graph.adjacency().tocoo()
    made = Graph.from_arcs(
        shuffled[adjacency.row],
        shuffled[adjacency.col],
        num_nodes=graph.num_nodes,
        features=graph.features,
        labels=graph.labels,
        label_names=graph.label_names,
        directed=False,
    )
    return random_split(made, seed=0)


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_plan_follows_from_public_facts_alone(graph, model):
    first, second = (model.plan_for(one).to_dict() for one in (graph, moved(graph)))
    assert first == second


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_nothing_is_left_to_auto(graph, model):
    text = json.dumps(model.plan_for(graph).to_dict())
    assert '"auto"' not in text


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_plan_is_read_back_from_json_as_it_was(graph, model):
    plan = model.plan_for(graph)
    values = json.loads(json.dumps(plan.to_dict()))
    settings = type(model).settings_class.from_dict(values["settings"])
    read = Plan.from_dict(values, settings)
    assert read.settings == plan.settings
    assert read.promise.events == plan.promise.events
    assert read.promise.epsilon == plan.promise.epsilon
    assert read.hops == dict(plan.hops)


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_calibrated_plan_costs_at_most_what_was_asked_and_nearly_that(graph, model):
    promise = model.plan_for(graph).promise
    if model.level == "none":
        assert promise.epsilon is None
    elif not promise.events:
        assert promise.epsilon == 0
    else:
        assert 0.99 * model.epsilon <= promise.epsilon <= model.epsilon


def test_the_price_of_a_plan_is_unknown_until_it_is_calibrated(graph):
    model = GAP(epsilon=4.0)
    plan = model.plan(PublicFacts.of(graph, level="edge"))
    with pytest.raises(PrivacyError, match="calibrated"):
        plan.promise  # noqa: B018


def test_making_a_plan_charges_nothing(graph, tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    NodeLabelGAP(epsilon=4.0, ledger=ledger.path).plan_for(graph)
    assert ledger.entries() == []


def test_at_node_level_a_plan_holds_no_exact_count_of_people_or_edges(graph):
    plan = NodeLabelGAP(epsilon=8.0).plan_for(graph)
    numbers = set(_numbers(plan.to_dict()))
    exact = int(graph.train_mask.sum())
    assert plan.facts.num_train != exact
    assert not numbers & {exact, graph.num_nodes, graph.num_edges, graph.num_arcs}


@pytest.mark.parametrize("num_types", [1, 2, 3])
@pytest.mark.parametrize("relation", ["undirected", "3-edges", "directed", "3-arcs"])
@pytest.mark.parametrize("protected", ["any", "each"])
@pytest.mark.parametrize("method_class", [GAP, ProGAP, LabelGAP])
def test_a_hop_is_charged_for_every_sum_that_one_change_can_move(
    graph, method_class, protected, relation, num_types
):
    types = tuple(f"type {number}" for number in range(num_types)) if num_types > 1 else ()
    facts = dataclasses.replace(PublicFacts.of(graph, level="edge"), edge_types=types)
    plan = method_class(epsilon=4.0, relation=relation, edge_types=protected, delta=1e-5).plan(
        facts
    )
    hops = plan.hops["aggregation"]
    (event,) = plan.template
    # The joint bounds that are proved and tested for operators: every type's sum under `each`;
    # under `any` that of one type, and as much again where their union is released beside them.
    moved = num_types if protected == "each" else 1 + hops.with_union
    assert event.count == hops.count * moved
    # Arcs of several types may end in one row of the union.
    assert not (hops.with_union and relation == "3-arcs")
    assert not (hops.with_union and (protected == "each" or num_types == 1))


def test_a_plan_is_printed_with_every_release_and_its_price(graph):
    text = str(NodeLabelGAP(epsilon=8.0, hop_share=0.5).plan_for(graph))
    assert "price: epsilon" in text
    assert "release: classifier: PoissonGaussian" in text
    assert "divided by the root of the sender's out-degree" in text


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_at_node_level_no_rate_of_a_class_is_counted(graph):
    assert PublicFacts.of(graph, level="edge").rates is not None
    facts = PublicFacts.of(graph, level="node")
    assert (facts.counted_rates, facts.rates, facts.num_nodes) == (None, None, 0)
    two = graph._replace(labels=graph.labels % 2, label_names=("a", "b"))
    with pytest.raises(InputError, match="declared rates"):
        MLP(level="node", threshold="prior").plan_for(two)


@pytest.mark.parametrize("is_directed", [False, True])
def test_an_automatic_delta_counts_what_its_relation_protects(is_directed):
    """On a symmetric graph each edge is two arcs, each an entity where arcs are protected."""
    counts = EntityCounts(num_nodes=99, num_edges=600, num_arcs=1200, is_directed=is_directed)
    wanted = {"add-remove": 1e-3, "replace": 1e-3, "undirected": 1e-4, "3-edges": 1e-4}
    wanted |= {"directed": 1e-5, "3-arcs": 1e-5}
    found = {
        name: Guarantee.unpriced(counts, relation=parse_relation(name), delta="auto").delta
        for name in wanted
    }
    assert found == wanted
