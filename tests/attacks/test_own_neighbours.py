"""Inference of one edge from predictions, by what they read of the node's own record."""

from __future__ import annotations

import numpy as np
import pytest

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    NeighborVote,
    NodeLabelGAP,
    load_model,
)
from gapgnn.attacks.links import link_stealing_attack
from gapgnn.attacks.own_neighbours import disjoint_pairs, own_neighbours_attack, toggled
from gapgnn.errors import InputError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import random_split

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("own_ledger")]
QUICK = {"epochs": 2, "epsilon": 4.0}
NODE = {"level": "node", "batch_size": 50, **QUICK}
WITH_HOPS = {"hop_share": 0.5, **NODE}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_split(social_graph(num_nodes=600, mean_degree=12, num_classes=3), seed=0)


WITHOUT_NEIGHBOURS = {
    "node nothing": (NodeLabelGAP, {**WITH_HOPS, "own": "nothing"}, None),
    "node features": (NodeLabelGAP, {**WITH_HOPS, "own": "features"}, None),
    "node paper": (GAP, NODE, None),
    "edge paper": (GAP, {"level": "edge", **QUICK}, None),
    "edge features": (LabelGAP, {"level": "edge", **QUICK}, "features"),
    "sage": (GraphSAGE, {"level": "edge", **QUICK}, None),
    "mlp": (MLP, {"level": "edge", "epochs": 2}, None),
}
WITH_NEIGHBOURS = {
    "node record": (NodeLabelGAP, {**WITH_HOPS, "own": "record"}, None),
    "edge record": (LabelGAP, {"level": "edge", **QUICK}, "record"),
    "edge vote": (NeighborVote, {"level": "edge", "epochs": 2}, None),
    "node vote": (NeighborVote, {"level": "node", "epsilon": 4.0}, None),
}


@pytest.mark.parametrize("published", ["labels", "probabilities"])
@pytest.mark.parametrize("name", WITHOUT_NEIGHBOURS)
def test_given_the_release_predictions_without_own_neighbours_leak_nothing(
    name, published, graph, own_ledger
):
    method, options, own = WITHOUT_NEIGHBOURS[name]
    found = own_neighbours_attack(method(**options), graph, pairs=60, published=published, own=own)
    assert (found.details["moved"], found.ranking.auc, found.gain_auc) == (0.0, 0.5, 0.0)
    assert own_ledger.entries() == []


@pytest.mark.parametrize("name", WITH_NEIGHBOURS)
def test_probabilities_that_read_own_neighbours_leak_edges_and_labels_hardly(name, graph):
    method, options, own = WITH_NEIGHBOURS[name]
    probabilities, labels = (
        own_neighbours_attack(method(**options), graph, pairs=200, published=published, own=own)
        for published in ("probabilities", "labels")
    )
    assert probabilities.ranking.auc > 0.9
    assert labels.ranking.auc < 0.7
    assert probabilities.details["own"] == "record"
    # Pairs whose predictions move are inferred, the others are guessed.
    for found in (probabilities, labels):
        assert found.ranking.auc == pytest.approx(
            1 - (1 - found.details["moved"]) ** 2 / 2, abs=0.02
        )


def test_a_prediction_that_reads_own_neighbours_unannounced_is_found(graph, monkeypatch):
    """Planted: the prediction is to read features only, and also pools its own neighbours."""
    plain = LabelGAP.scores_with
    monkeypatch.setattr(
        LabelGAP, "scores_with", lambda self, graph, own: plain(self, graph, "record")
    )
    model = LabelGAP(level="edge", **QUICK)
    assert own_neighbours_attack(model, graph, pairs=60, own="features").details["moved"] == 1.0


def test_pairs_are_disjoint_and_toggling_them_twice_restores_the_graph(graph):
    pairs = disjoint_pairs(graph, 150, np.random.default_rng(0))
    ends = np.concatenate([pairs.first, pairs.second])
    assert len(np.unique(ends)) == len(ends) > 100
    assert pairs.linked.sum() * 2 == len(pairs.linked)
    turned = toggled(graph, pairs)
    matrix = turned.adjacency().toarray() > 0
    assert (matrix[pairs.first, pairs.second] == ~pairs.linked).all()
    assert (matrix == matrix.T).all()
    again = toggled(turned, type(pairs)(pairs.first, pairs.second, ~pairs.linked))
    assert again.fingerprint == graph.fingerprint != turned.fingerprint


def test_a_directed_pair_is_one_arc():
    arcs = (range(0, 60, 2), range(1, 60, 2))
    graph = Graph.from_arcs(*arcs, num_nodes=60, features=np.eye(60), directed=True)
    pairs = disjoint_pairs(graph, 10, np.random.default_rng(1))
    turned = toggled(graph, pairs)
    assert turned.num_arcs == graph.num_arcs
    for u, v in zip(pairs.first[~pairs.linked], pairs.second[~pairs.linked], strict=True):
        assert turned.adjacency()[[u], [v]] == 1


def test_a_saved_model_is_attacked_itself(graph, own_ledger, tmp_path):
    NodeLabelGAP(**WITH_HOPS, own="record").fit(graph).save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    found = own_neighbours_attack(model, graph, pairs=60, itself=True).to_dict()
    assert found["itself"]
    assert found["moved"] == 1.0
    assert len(own_ledger.entries()) == 1
    assert len(model.releases_.hops) == 1


def test_link_stealing_reads_what_is_published(graph):
    model = LabelGAP(level="edge", **QUICK)
    options = {"pairs": 200, "own": "record"}
    labels = link_stealing_attack(model, graph, published="labels", **options).details
    probabilities = link_stealing_attack(model, graph, **options).details
    assert (labels["published"], probabilities["published"]) == ("labels", "probabilities")
    assert labels["own"] == "record"
    assert labels["unsupervised"] != probabilities["unsupervised"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (LabelGAP(level="none"), {}, "`level` must be edge or node"),
        (LabelGAP(level="edge", **QUICK), {"published": "scores"}, "`published` must be one of"),
        (LabelGAP(level="edge", **QUICK), {"own": "nothing"}, "`own` must be one of"),
        (NodeLabelGAP(**WITH_HOPS), {"own": "record"}, "chosen when training"),
        (LabelGAP(level="edge"), {"pairs": 1}, "`pairs` must be at least"),
    ],
    ids=["none", "scores", "nothing", "node", "pairs"],
)
def test_unusable_options_are_refused(model, options, message, graph):
    with pytest.raises(InputError, match=message):
        own_neighbours_attack(model, graph, **{"pairs": 60, **options})
