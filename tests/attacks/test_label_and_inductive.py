"""Label inference and inductive link stealing: where models leak, and guessing elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from gapgnn import GAP, MLP, LabelGAP, Ledger, NodeLabelGAP
from gapgnn.attacks import inductive_link_attack, label_inference_attack
from gapgnn.attacks.attacker import AttackNetwork, rank
from gapgnn.attacks.label_inference import drawn_labels, label_rows
from gapgnn.errors import DataError, InputError
from gapgnn.graph.datasets.synthetic import social_graph

gate = pytest.mark.gate


@pytest.fixture(scope="module")
def graph():
    return social_graph(num_nodes=500, mean_degree=10)


@gate
def test_labels_that_a_model_remembers_are_inferred(graph):
    found = label_inference_attack(MLP(level="none", epochs=150), graph, runs=2, share=0.3)
    values = found.to_dict()
    assert values["auc"] > 0.8
    assert len(values["runs"]) == 2
    assert values["guessing"]["auc"] == 0.5


@gate
def test_labels_behind_noise_are_not(graph):
    # At so small a budget the predictions are noise. About 60 coins are judged in each run.
    target = MLP(level="node", epsilon=0.05, epochs=1, noise="fast")
    found = label_inference_attack(target, graph, runs=3, share=0.3)
    assert abs(found.to_dict()["auc"] - 0.5) < 0.15


def test_candidates_do_not_depend_on_features_or_true_labels(graph):
    rng = np.random.default_rng(0)
    drawn = [drawn_labels(graph, 0.5, rng) for _ in range(40)]
    first = np.concatenate([candidates[:, 0] for _, candidates, _ in drawn])
    truth = np.concatenate([graph.labels[targets] for targets, _, _ in drawn])
    # By chance a candidate is the true label as often as there are classes, within six errors.
    share, classes = (first == truth).mean(), graph.num_classes
    assert abs(share - 1 / classes) < 6 * (1 / classes / len(first)) ** 0.5
    assert all(graph.train_mask[targets].all() for targets, _, _ in drawn)
    assert all(abs(int(coins.sum()) - len(coins) / 2) <= 0.5 for _, _, coins in drawn)


def test_a_label_that_travelled_is_seen_at_the_neighbours(graph):
    """Of neighbours alone: their answers hold the label where the target's own row says nothing."""
    rng = np.random.default_rng(1)
    targets, candidates, coins = drawn_labels(graph, 0.5, rng)
    posteriors = np.full((graph.num_nodes, graph.num_classes), 1 / graph.num_classes)
    known = np.where(coins, candidates[:, 0], candidates[:, 1])
    for target, label in zip(targets, known, strict=True):
        ends = graph.indices[graph.indptr[target] : graph.indptr[target + 1]]
        posteriors[ends, label] += 0.5
    posteriors /= posteriors.sum(axis=1, keepdims=True)
    posteriors[targets] = 1 / graph.num_classes
    rows = label_rows(posteriors, graph, targets, candidates)
    known = rng.random(len(targets)) < 0.5
    network = AttackNetwork(seed=0).fit(rows[known], coins[known])
    assert rank(network.score(rows[~known]), coins[~known]).auc > 0.8


@gate
def test_links_of_a_new_graph_are_stolen_from_a_model_that_reads_them_without_noise(graph):
    found = inductive_link_attack(
        GAP(level="none", epochs=60), graph, runs=2, pairs=400, others="degree"
    ).to_dict()
    assert found["auc"] > 0.6
    assert found["gain_auc"] == pytest.approx(found["auc"] - found["control"]["auc"])
    gains = [run["gain_auc"] for run in found["runs"]]
    assert found["gain_auc"] == pytest.approx(np.mean(gains))


@gate
def test_a_model_that_reads_no_edge_gains_nothing_on_held_out_links(graph):
    found = inductive_link_attack(MLP(level="none", epochs=20), graph, runs=3, pairs=200).to_dict()
    # About 60 pairs are judged in each run.
    assert abs(found["auc"] - 0.5) < 0.15
    assert found["others"] == "held-out"


@gate
@pytest.mark.parametrize("method", [LabelGAP, NodeLabelGAP])
def test_private_methods_are_attacked_without_a_charge_to_the_user(
    graph, method, tmp_path, monkeypatch
):
    ledger = Ledger.init(tmp_path / "own.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    for attack in (label_inference_attack, inductive_link_attack):
        options = {"share": 0.3} if attack is label_inference_attack else {"pairs": 40}
        found = attack(method(epochs=1, noise="fast"), graph, runs=1, **options).to_dict()
        assert 0 <= found["auc"] <= 1
        assert found["epsilon"] is not None
    assert ledger.entries() == []


def test_too_few_targets_and_bad_options_are_one_line(graph):
    with pytest.raises(DataError, match="At least 20 training nodes must be targets"):
        label_inference_attack(MLP(level="none"), graph, share=0.01)
    with pytest.raises(InputError, match="`share` must be above 0"):
        label_inference_attack(MLP(level="none"), graph, share=0.7)
    with pytest.raises(InputError, match="`pairs` must be at least 20"):
        inductive_link_attack(MLP(level="none"), graph, pairs=2)
