"""Importance of inputs: what is exchanged is what is measured, and nothing is charged."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from methodgraphs import small_graph

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, ProGAP
from gapgnn.errors import InputError
from gapgnn.methods.importance import permuted_columns

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def graph():
    """A graph with two telling columns of one category, an idle one, and edges inside classes."""
    plain = small_graph(num_nodes=300)
    rng = np.random.default_rng(0)
    shown = np.eye(plain.num_classes)[plain.labels]
    shown[rng.random(300) < 0.4] = 0
    features = np.hstack([shown, rng.normal(size=(300, 1))]).astype(np.float32)
    names = (*(f"ward={k}" for k in range(plain.num_classes)), "idle")
    return plain._replace(features=features, feature_names=names)


def by_name(found):
    return {one.name: one.mean for one in found}


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


def test_a_method_without_edges_has_features_alone(graph):
    found = by_name(MLP(epochs=20).fit(graph).importance(graph, repeats=2))
    assert found.keys() == {"features", "ward", "idle"}
    assert found["ward"] > found["idle"]


def test_at_node_level_features_come_from_the_graph_and_hops_from_the_release(graph):
    model = GAP(level="node", epsilon=1000.0, epochs=40, max_degree=10).fit(graph)
    found = by_name(model.importance(graph, metric="auc"))
    assert found["ward"] > found["idle"] + 0.02
    assert "neighbours" in found
    assert NodeLabelGAP(epsilon=40.0, level="node").fit(graph).importance(graph, repeats=1)


def test_the_same_seed_gives_the_same_figures(graph):
    model = MLP(epochs=5).fit(graph)
    assert model.importance(graph, seed=3) == model.importance(graph, seed=3)


def test_a_graph_that_was_not_read_is_refused(graph):
    model = GAP(epsilon=8.0, epochs=2).fit(graph)
    other = small_graph(num_nodes=300, seed=9)._replace(
        features=graph.features, feature_names=graph.feature_names
    )
    before = len(Ledger().entries())
    with pytest.raises(InputError, match="whose hops the model has released"):
        model.importance(other)
    assert len(Ledger().entries()) == before


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
