"""Importance of inputs: what is exchanged is what is measured, and nothing is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from methodgraphs import small_graph
from sklearn.metrics import f1_score

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, ProGAP
from gapgnn.errors import InputError
from gapgnn.methods.importance import permuted_columns
from gapgnn.rng import experiment_rng

gate = pytest.mark.gate


@pytest.fixture(scope="module")
def graph():
    """A graph with two telling columns of one category, an idle one, and edges inside classes."""
    plain = small_graph(num_nodes=600)
    rng = np.random.default_rng(0)
    shown = np.eye(plain.num_classes)[plain.labels]
    shown[rng.random(600) < 0.3] = 0
    features = np.hstack([shown, rng.normal(size=(600, 1))]).astype(np.float32)
    names = (*(f"ward={k}" for k in range(plain.num_classes)), "idle")
    return plain._replace(features=features, feature_names=names)


def by_name(found):
    return {one.name: one.mean for one in found}


def test_an_importance_is_the_fall_of_the_metric_when_test_nodes_exchange_that_input(graph):
    """Every figure is computed again: which rows are exchanged, of what, and what is measured."""
    model = GAP(epsilon=16.0, epochs=3, hops=2, hidden=8).fit(graph)
    charged = len(Ledger().entries())
    found = by_name(model.importance(graph, metric="macro_f1", repeats=1, seed=3))
    released, nodes = model.releases_.training(), np.flatnonzero(graph.test_mask)
    device = torch.device("cpu")

    def figure(features, hops):
        first = model.hop_zero(graph._replace(features=features), device)[0]
        rows = replace(released, hops=(first, *hops))
        answers = model.scores_from(rows, graph, device).argmax(dim=-1).numpy()
        return f1_score(graph.labels[nodes], answers[nodes], average="macro")

    inputs = {
        "features": ([0, 1, 2, 3], []),
        "neighbours": ([], [1, 2]),
        "hop 1": ([], [1]),
        "hop 2": ([], [2]),
        "ward": ([0, 1, 2], []),
        "idle": ([3], []),
    }
    assert list(inputs) == sorted(found, key=list(inputs).index)
    rng, whole = experiment_rng(3, "importance"), figure(graph.features, released.hops[1:])
    for name, (columns, hops) in inputs.items():
        order = np.arange(graph.num_nodes)
        order[nodes] = rng.permutation(nodes)
        features = graph.features.copy()
        features[:, columns] = graph.features[order][:, columns]
        rows = [released.hops[k][order] if k in hops else released.hops[k] for k in (1, 2)]
        assert found[name] == pytest.approx(whole - figure(features, rows), abs=1e-9)
    assert len(set(found.values())) > 3
    assert len(Ledger().entries()) == charged


@gate
@pytest.mark.parametrize(
    "model",
    [
        GAP(epsilon=16.0, epochs=20),
        ProGAP(epsilon=16.0, epochs=10, hops=2),
        LabelGAP(epsilon=16.0, epochs=20, hops=2),
        LabelGAP(epsilon=16.0, epochs=20, hops=2, folds=0),
    ],
    ids=["GAP", "ProGAP", "LabelGAP", "LabelGAP without folds"],
)
def test_features_and_neighbours_are_distinguished_and_nothing_is_charged(model, graph):
    model.fit(graph)
    before = len(Ledger().entries())
    found = by_name(model.importance(graph, repeats=3))
    assert {"features", "neighbours", "hop 1", "hop 2", "ward", "idle"} == found.keys()
    assert found["neighbours"] > 0.05
    assert found["ward"] > 0.02
    assert found["ward"] > found["idle"] + 0.02
    assert len(Ledger().entries()) == before


@gate
def test_a_method_without_edges_has_features_alone(graph):
    found = by_name(MLP(epochs=20).fit(graph).importance(graph, repeats=2))
    assert found.keys() == {"features", "ward", "idle"}
    assert found["ward"] > found["idle"]


@gate
def test_at_node_level_features_come_from_the_graph_and_hops_from_the_release(graph):
    model = GAP(level="node", epsilon=1000.0, epochs=40, max_degree=10).fit(graph)
    found = by_name(model.importance(graph, metric="auc"))
    assert found["ward"] > found["idle"] + 0.02
    assert "neighbours" in found
    assert NodeLabelGAP(epsilon=40.0, level="node").fit(graph).importance(graph, repeats=1)


@gate
def test_the_same_seed_gives_the_same_figures(graph):
    model = MLP(epochs=5).fit(graph)
    assert model.importance(graph, seed=3) == model.importance(graph, seed=3)


def test_a_graph_that_was_not_read_is_refused(graph):
    model = GAP(epsilon=8.0, epochs=2).fit(graph)
    other = small_graph(num_nodes=600, seed=9)._replace(
        features=graph.features, feature_names=graph.feature_names
    )
    before = len(Ledger().entries())
    with pytest.raises(InputError, match="whose hops the model has released"):
        model.importance(other)
    assert len(Ledger().entries()) == before


@gate
@pytest.mark.parametrize("method", [GraphSAGE, NeighborVote])
def test_methods_whose_inputs_are_not_apart_refuse(method, graph):
    model = method(level="none", epochs=1) if method is GraphSAGE else method(epochs=1)
    with pytest.raises(InputError, match="`importance` must be asked of a method"):
        model.fit(graph).importance(graph)


def test_columns_of_a_sparse_matrix_are_exchanged_like_dense_ones():
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 2, size=(6, 4)).astype(np.float32)
    order = rng.permutation(6)
    found = permuted_columns(sp.csr_matrix(dense), [1, 3], order).toarray()
    np.testing.assert_array_equal(found, permuted_columns(dense, [1, 3], order))
    np.testing.assert_array_equal(found[:, [0, 2]], dense[:, [0, 2]])
    np.testing.assert_array_equal(found[:, [1, 3]], dense[order][:, [1, 3]])
