"""A model finds its feature columns by name, whatever the other table calls its first one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from methodgraphs import small_graph
from suited import suited

from gapgnn import MLP, LabelGAP, load_model
from gapgnn.errors import InputError

METHODS = [LabelGAP, MLP]


@pytest.fixture(scope="module")
def graph():
    plain = small_graph(num_nodes=200)
    return plain._replace(feature_names=tuple(f"f{i}" for i in range(plain.num_features)))


def other_columns(graph):
    """Return the same graph with its columns turned round, one lost and one more."""
    kept = np.arange(graph.num_features)[:0:-1]
    features = np.hstack([graph.features.toarray()[:, kept], np.ones((graph.num_nodes, 1))])
    return graph._replace(
        features=features, feature_names=(*(graph.feature_names[i] for i in kept), "new")
    )


def without_first(graph):
    features = graph.features.toarray().copy()
    features[:, 0] = 0
    return graph._replace(features=features)


@pytest.mark.parametrize("method", METHODS)
def test_columns_are_matched_by_name(method, graph, ledger, tmp_path):
    shared = {"epochs": 2, "epsilon": 4.0, "insecure_noise_seed": 0, "ledger": ledger.path}
    model = suited(method, shared, level="edge").fit(graph)
    other = other_columns(graph)
    model.save(tmp_path / "model")
    for each in (model, load_model(tmp_path / "model", ledger=ledger.path)):
        got = each.predict_proba(other)
        if method is MLP:
            np.testing.assert_allclose(got, each.predict_proba(without_first(graph)), atol=1e-6)
    if method is LabelGAP:
        # What is charged is the graph as it was given, to the same people.
        fit, *predictions = ledger.entries()
        assert {charge.fingerprint for charge in predictions} == {other.fingerprint}
        assert {charge.population for charge in predictions} == {fit.population}


def test_the_same_aligned_graph_is_charged_once(graph, ledger):
    model = LabelGAP(epochs=2, epsilon=4.0, folds=0, ledger=ledger.path).fit(graph)
    other = other_columns(graph)
    np.testing.assert_array_equal(model.predict_proba(other), model.predict_proba(other))
    read = [charge.fingerprint for charge in ledger.entries()]
    assert read == [graph.fingerprint, other.fingerprint]


def test_names_that_share_nothing_are_refused_before_the_charge(graph, ledger):
    model = LabelGAP(epochs=2, epsilon=4.0, ledger=ledger.path).fit(graph)
    stranger = graph._replace(feature_names=tuple(f"g{i}" for i in range(graph.num_features)))
    with pytest.raises(InputError, match="must share a feature"):
        model.predict(stranger)
    assert len(ledger.entries()) == 1


def test_without_names_on_one_side_the_number_of_columns_decides(graph):
    model = MLP(level="edge", epochs=2).fit(graph)
    nameless = graph._replace(feature_names=None)
    np.testing.assert_array_equal(model.predict(nameless), model.predict(graph))
    with pytest.raises(InputError, match="features the model was trained on"):
        model.predict(nameless._replace(features=np.ones((graph.num_nodes, 3))))


def test_the_names_are_saved(graph, tmp_path):
    for number, each in enumerate((graph, graph._replace(feature_names=None))):
        MLP(level="edge", epochs=2).fit(each).save(tmp_path / str(number))
        config = json.loads((tmp_path / str(number) / "config.json").read_text())
        names = each.feature_names
        assert config["feature_names"] == (None if names is None else list(names))
        assert load_model(tmp_path / str(number)).feature_names_ == names
