import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from gapgnn.errors import InputError
from gapgnn.graph import csr
from gapgnn.graph.datasets import synthetic
from gapgnn.graph.datasets.synthetic import FIELDS, BlockModel, generate, social_graph
from gapgnn.graph.graph import Graph


@pytest.fixture(scope="module")
def social():
    return social_graph()


def accuracy(graph, inputs):
    model = LogisticRegression(max_iter=200)
    model.fit(inputs[graph.train_mask], graph.labels[graph.train_mask])
    return model.score(inputs[graph.test_mask], graph.labels[graph.test_mask])


def unit_rows(matrix):
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.maximum(norms, 1e-9)


def test_social_has_the_promised_size(social):
    assert social.name == "social"
    assert social.num_nodes == 10_000
    assert 57 < social.num_arcs / social.num_nodes < 63
    assert social.num_classes == 6
    assert not social.is_directed
    assert csr.is_symmetric(social.indptr, social.indices)
    assert np.bincount(social.labels).min() >= 1_000
    assert sp.issparse(social.features)
    sizes = [int(mask.sum()) for mask in (social.train_mask, social.val_mask, social.test_mask)]
    assert sum(sizes) == 10_000
    # Roles are coins: within six standard deviations of 75, 10 and 15 percent.
    assert np.allclose(sizes, [7_500, 1_000, 1_500], atol=6 * 50)


def test_social_degrees_have_a_heavy_tail(social):
    degrees = np.sort(social.out_degrees)
    assert degrees[-1] > 8 * degrees.mean()
    assert degrees[:1_000].mean() < degrees.mean() / 5
    assert degrees[-1_000:].sum() > 0.3 * degrees.sum()


def test_social_friends_tend_to_share_a_class(social):
    sources = csr.sources(social.indptr, np.int64)
    same = (social.labels[sources] == social.labels[social.indices]).mean()
    shares = np.bincount(social.labels) / social.num_nodes
    assert same > 2 * (shares**2).sum()


def test_social_profiles_are_one_hot_with_gaps(social):
    model = BlockModel(
        num_nodes=10_000, mean_degree=60, num_classes=6, num_features=349, features="profile"
    )
    assert sum(model.field_sizes) == social.num_features
    assert (social.features.data == 1).all()
    ends = np.cumsum(model.field_sizes)
    for field, size, end in zip(FIELDS, model.field_sizes, ends, strict=True):
        filled = social.features[:, end - size : end].sum(axis=1)
        assert filled.max() == 1
        assert abs((filled == 0).mean() - field.missing) < 0.02


def test_features_alone_reach_about_half_and_the_graph_lifts_that_above_80_percent(social):
    alone = accuracy(social, social.features)
    assert 0.45 < alone < 0.56
    encoder = LogisticRegression(max_iter=200)
    encoder.fit(social.features[social.train_mask], social.labels[social.train_mask])
    hops = [unit_rows(encoder.decision_function(social.features))]
    for _ in range(2):
        hops.append(unit_rows(social.adjacency().T @ hops[-1]))
    assert accuracy(social, 3 * np.hstack(hops[:2])) > 0.80
    assert accuracy(social, 3 * np.hstack(hops)) > 0.85


def test_neighbours_classes_tell_the_class(social):
    known = np.zeros((social.num_nodes, social.num_classes))
    train = np.flatnonzero(social.train_mask)
    known[train, social.labels[train]] = 1
    counts = social.adjacency() @ known
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    assert accuracy(social, 5 * shares) > 0.80


def test_a_shuffled_graph_lifts_nothing(social):
    strangers = np.random.default_rng(0).permutation(social.num_nodes)
    known = np.eye(social.num_classes)[social.labels] * social.train_mask[:, None]
    counts = social.adjacency() @ known[strangers]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    assert accuracy(social, 5 * shares) < 0.35


def test_equal_seeds_give_equal_graphs_and_other_seeds_do_not():
    first, again, other = (social_graph(num_nodes=500, mean_degree=9, seed=s) for s in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert (first.train_mask == again.train_mask).all()


@pytest.mark.parametrize("features_model", ["gaussian", "profile"])
def test_pieces_fit_together_whatever_the_number_of_blocks(features_model, monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK_NODES", 128)
    graph = generate(
        num_nodes=1_000, num_arcs=20_000, num_features=50, features=features_model, seed=4
    )
    assert graph.num_nodes == 1_000
    assert 0.9 < graph.num_arcs / 20_000 < 1.1
    assert graph.features.shape == (1_000, 50)
    assert sp.issparse(graph.features) == (features_model == "profile")
    halves = graph.adjacency()[:500].sum(axis=1).mean(), graph.adjacency()[500:].sum(axis=1).mean()
    assert 0.7 < halves[0] / halves[1] < 1.4


def test_edges_between_blocks_are_as_frequent_as_within(monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK_NODES", 500)
    model = BlockModel(num_nodes=1_000, mean_degree=40, num_classes=3, num_features=4)
    within = len(model.edges(0, 0)[0]) + len(model.edges(1, 1)[0])
    between = len(model.edges(0, 1)[0])
    assert 0.85 < between / within < 1.15


@pytest.mark.parametrize("degree", [4, 60, 150])
def test_the_mean_degree_is_met_although_repeated_edges_are_merged(degree):
    graph = generate(num_nodes=3_000, mean_degree=degree, num_features=1, num_classes=4)
    assert abs(graph.num_arcs / graph.num_nodes / degree - 1) < 0.06


@pytest.mark.parametrize("features_model", ["gaussian", "profile"])
def test_pieces_are_the_same_drawn_alone_and_in_any_order(monkeypatch, features_model):
    monkeypatch.setattr(synthetic, "BLOCK_NODES", 64)
    size = {
        "num_nodes": 300,
        "mean_degree": 7,
        "num_features": 50,
        "features": features_model,
        "seed": 5,
    }
    model = BlockModel(**size, num_classes=10)
    blocks = range(model.num_blocks)
    pairs = [(first, second) for first in blocks for second in blocks if first <= second]
    edges = [model.edges(*pair) for pair in reversed(pairs)]
    nodes = {block: model.nodes(block) for block in reversed(blocks)}
    labels = [nodes[block].labels for block in blocks]
    features = [model.features_of(block, labels[block]) for block in reversed(blocks)][::-1]
    graph = Graph.from_arcs(
        *np.hstack(edges),
        num_nodes=300,
        features=sp.vstack(features) if features_model == "profile" else np.vstack(features),
        labels=np.concatenate(labels),
    )
    assert graph.fingerprint == generate(**size).fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes": 1}, "`num_nodes` must be at least 2. Got 1."),
        ({"mean_degree": -1}, "`mean_degree` must be at least 0 and at most 99. Got -1."),
        ({"mean_degree": 100}, "`mean_degree` must be at least 0 and at most 99. Got 100."),
        ({"num_classes": 0}, "`num_classes` must be at least 1 and at most 100. Got 0."),
        ({"num_features": 0}, "`num_features` must be at least 1. Got 0."),
        (
            {"features": "profile", "num_features": 8},
            "`num_features` must be at least 20. Got 8.",
        ),
        (
            {"num_arcs": 7},
            "`mean_degree` or `num_arcs` must be given, one of them. Got both or none.",
        ),
    ],
)
def test_sizes_that_make_no_sense_are_one_line(changes, message):
    with pytest.raises(InputError) as caught:
        generate(**{"num_nodes": 100, "mean_degree": 5, **changes})
    assert str(caught.value) == message
