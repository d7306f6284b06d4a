"""A model whose predictions depend on no edge says so, everywhere, and charges no further graph."""

from __future__ import annotations

import numpy as np
import pytest
from methodgraphs import with_arcs

from gapgnn import Graph, LabelGAP, Ledger, NodeLabelGAP, load_model
from gapgnn.errors import InputError
from gapgnn.evaluation.report.model import render_model
from gapgnn.graph import join_edge_types
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import random_split
from gapgnn.privacy.card import PrivacyCard

SAID = "This model reads no edges"


def separable(seed: int) -> Graph:
    """Classes that features tell, and edges that say nothing."""
    rng = np.random.default_rng(seed)
    labels = np.arange(300) % 3
    features = np.eye(3, dtype=np.float32)[labels] + 0.4 * rng.normal(size=(300, 3))
    graph = Graph.from_arcs(
        rng.integers(300, size=1200),
        rng.integers(300, size=1200),
        num_nodes=300,
        features=features.astype(np.float32),
        labels=labels,
        name="separable",
    )
    return random_split(graph, seed=0)


def without_hops(ledger: Ledger) -> tuple[NodeLabelGAP, Graph]:
    """Short adjacency lists and a small budget: the option without hops."""
    graph = social_graph(num_nodes=300, mean_degree=4)
    model = NodeLabelGAP(epsilon=1.0, epochs=2, batch_size=50, ledger=ledger.path)
    return model.fit(graph), graph


def with_weight_zero(ledger: Ledger) -> tuple[LabelGAP, Graph]:
    """Hops that validation labels give no weight."""
    graph = separable(0)
    model = LabelGAP(epsilon=0.1, epochs=40, ledger=ledger.path, insecure_noise_seed=0)
    return model.fit(graph), graph


CASES = {"no hop": without_hops, "weight 0": with_weight_zero}


@pytest.fixture(params=CASES)
def case(request, ledger) -> tuple[str, LabelGAP | NodeLabelGAP, Graph]:
    return (request.param, *CASES[request.param](ledger))


def test_a_model_that_reads_no_edges_says_so_on_card_and_page(case, tmp_path, ledger):
    why, model, _ = case
    card = model.card_
    assert card.edges_unread == why
    assert card.method == "Features only"
    assert any(SAID in line for line in card.warnings)
    assert SAID in card.to_markdown()
    assert "released hops are kept and used again" not in card.to_markdown()
    assert PrivacyCard.from_json(card.to_json()) == card
    model.save(tmp_path / "model")
    page = render_model(tmp_path / "model", ledger=ledger.path)
    assert "Features only" in page
    assert "This model reads no" in page


def test_without_a_released_hop_nothing_is_said_to_have_travelled(ledger):
    model, _ = without_hops(ledger)
    assert "aggregation" not in {event["label"] for event in model.card_.events}
    assert model.card_.messages.startswith("Nothing")
    assert "Class codes" not in model.card_.to_markdown()


def test_its_predictions_depend_on_no_edge_and_further_graphs_are_free(case, tmp_path, ledger):
    _, model, graph = case
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model", ledger=ledger.path)
    charges = len(ledger.entries())
    expected = loaded.predict_proba(graph)
    bare = with_arcs(graph, np.zeros(graph.num_arcs, dtype=np.bool_))
    assert loaded.prediction_guarantee(bare) is None
    np.testing.assert_allclose(loaded.predict_proba(bare), expected, atol=1e-6)
    assert len(ledger.entries()) == charges
    assert len(loaded.releases_.hops) == 1
    # What is refused elsewhere is refused here, so that nobody meets it with the next model.
    with pytest.raises(InputError, match="must have the edge types of training"):
        loaded.predict_proba(join_edge_types({"calls": graph, "visits": graph}))


def test_a_model_that_reads_edges_has_its_own_name_and_charges(ledger):
    graph = social_graph(num_nodes=300, mean_degree=20)
    model = LabelGAP(epsilon=8.0, epochs=5, ledger=ledger.path, insecure_noise_seed=0).fit(graph)
    assert (model.card_.method, model.card_.edges_unread) == ("LabelGAP", "")
    other = social_graph(num_nodes=300, mean_degree=20, seed=1)
    price = model.prediction_guarantee(other)
    assert price is not None
    assert price.epsilon == pytest.approx(8.0, rel=1e-3)
    assert model.prediction_guarantee(graph) is None
