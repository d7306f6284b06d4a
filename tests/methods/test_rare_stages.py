"""Where a class is rare, a regression reads the hops: solved, chosen, saved and used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from gapgnn import LabelGAP, Ledger, load_model
from gapgnn.graph.datasets.synthetic import rare_graph, social_graph
from gapgnn.graph.transforms import random_split
from gapgnn.methods.label_gap.regression import StageRegression, columns_of, regression_of

HOPS = 2


@pytest.fixture(scope="module")
def graph():
    return rare_graph(num_nodes=3_000, num_edges=36_000, rate=0.05, noise_columns=12, labelled=0.5)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return Ledger.init(tmp_path_factory.mktemp("rare") / "ledger.sqlite")


@pytest.fixture(scope="module")
def model(graph, ledger):
    return LabelGAP(epsilon=30.0, hops=HOPS, epochs=20, seed=1, ledger=ledger.path).fit(graph)


def regressions(model):
    names = [regression_of(name) for name in ("stage1", "classifier")]
    return [model.modules_[name] for name in names]


def test_weights_are_those_of_standardised_columns_under_the_penalty():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(1, 300, 4, generator=generator) * torch.tensor([1.0, 9.0, 0.1, 3.0]) + 2
    labels = (columns[0, :, 1] + 9 * torch.randn(300, generator=generator) > 10).long()
    training = torch.arange(300).unsqueeze(0) < 200
    (weights,) = StageRegression(1, 4, 2).solved_on(columns, labels, training)
    known = columns[0, :200]
    standard = ((known - known.mean(0)) / known.std(0)).double()
    expected = LogisticRegression(C=1.0, max_iter=1000, tol=1e-9).fit(standard, labels[:200])
    logits = known @ (weights[:-1, 1] - weights[:-1, 0]) + weights[-1, 1] - weights[-1, 0]
    np.testing.assert_allclose(logits, expected.decision_function(standard), atol=2e-2)


def test_every_stage_has_a_solved_regression_and_the_graph_is_ranked_by_it(graph, model):
    assert all(one.is_solved for one in regressions(model))
    assert any(float(one.share) > 0 for one in regressions(model))
    test = graph.test_mask
    scores = model.predict_proba(graph)[test, 1]
    exact = graph.adjacency().T @ (graph.train_mask & (graph.labels == 1)).astype(float)
    truth = graph.labels[test] == 1
    assert roc_auc_score(truth, scores) > roc_auc_score(truth, exact[test])


def test_a_regression_reads_no_label_but_those_of_training_nodes():
    columns, labels = torch.randn(1, 50, 3), torch.arange(50) % 2
    training = torch.arange(50).unsqueeze(0) < 30
    changed = torch.where(training[0], labels, 1 - labels)
    regression = StageRegression(1, 3, 2)
    first = regression.solved_on(columns, labels, training)
    assert torch.equal(first, regression.solved_on(columns, changed, training))


def test_a_loaded_model_answers_with_the_same_regression(graph, ledger, model, tmp_path):
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model", ledger=ledger.path)
    for one, other in zip(regressions(model), regressions(loaded), strict=True):
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.share, other.share)
    np.testing.assert_array_equal(loaded.predict_proba(graph), model.predict_proba(graph))


def test_even_classes_are_left_to_the_networks(ledger):
    graph = random_split(social_graph(num_nodes=400), seed=0)
    model = LabelGAP(epsilon=8.0, hops=HOPS, epochs=2, ledger=ledger.path).fit(graph)
    assert not any(one.is_solved for one in regressions(model))


def test_large_sums_do_not_outweigh_all_others():
    pool = torch.tensor([[[3.0], [1e6]]])
    assert columns_of(torch.zeros(1, 2, 2), pool)[0, :, -1].tolist() == [9.0, 900.0]
