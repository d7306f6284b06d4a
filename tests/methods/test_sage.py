"""GraphSAGE promises what GAP does, at every level, and pays for each reading of the edges once."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from methodgraphs import small_graph, with_arcs
from suited import seeded, suited

from gapgnn import GraphSAGE, load_model
from gapgnn.errors import InputError, PrivacyError
from gapgnn.methods import graphsage as sage_module
from gapgnn.privacy import AddRemove, Directed, Undirected, observed_by
from gapgnn.privacy.accounting.events import Gaussian, RandomisedResponse
from gapgnn.privacy.guarantee import Guarantee
from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation
from gapgnn.privacy.mechanisms.edges import PERTURBATIONS, perturbation_events

LEVELS = ["none", "edge", "node"]
PRIVATE = ["edge", "node"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors are slower on two busy threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def graph():
    return small_graph()


def quick(level, **more):
    batch = {"batch_size": 50} if level == "node" else {}
    shared = {"epochs": 3, "epsilon": 4.0, "max_degree": 5, "hidden": 8, **batch}
    return suited(GraphSAGE, shared, level=level, **more)


@pytest.fixture
def no_more_releases(monkeypatch):
    """Return a switch after which randomising or aggregating edges fails."""

    def refuse(*args, **options):
        raise AssertionError("the edges were read again")

    def switch():
        monkeypatch.setattr(sage_module, "perturb_edges", refuse)
        monkeypatch.setattr(PrivateAggregation, "hop", refuse)

    return switch


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_fit_works_and_forgets_the_first(level, graph):
    estimator = quick(level, **seeded(level, 5))
    once = estimator.fit(graph).predict_proba(graph)
    twice = estimator.fit(graph).predict_proba(graph)
    np.testing.assert_array_equal(once, twice)
    assert len(estimator.releases_.hops) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_repeat_does_not_depend_on_the_others(level, graph):
    alone = quick(level, **seeded(level, 5)).fit(graph)
    among = quick(level, **seeded(level, 5), repeats=3).fit(graph)
    np.testing.assert_allclose(
        alone.predict_proba(graph), among.predict_proba(graph), atol=2e-3, rtol=0
    )
    assert len(among.repeat_scores_) == 3


@pytest.mark.parametrize("level", PRIVATE)
def test_repeats_have_noise_of_their_own(level, graph, monkeypatch):
    kept = []
    original = GraphSAGE.keep
    monkeypatch.setattr(
        GraphSAGE,
        "keep",
        lambda self, g, s, rows, first: kept.append(rows[0]) or original(self, g, s, rows, first),
    )
    quick(level, repeats=2, split="fixed").fit(graph)
    assert not np.allclose(kept[0][0].numpy(), kept[0][1].numpy())


class Places:
    """Notes which cells every release of edges names."""

    def __init__(self):
        self.seen = []

    def begin(self, *args, **about):
        pass

    def release(self, release, output):
        assert release.name == "edges"
        self.seen.append(output[0])
        return output


def test_every_repeat_randomises_the_edges_for_itself():
    """Initial weights differ too, so that scores would not tell."""
    places = Places()
    with observed_by(places):
        quick("edge", epochs=1, repeats=2, split="fixed").fit(small_graph(num_nodes=120))
    first, second = places.seen
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("is_directed", [False, True])
def test_a_further_graph_is_randomised_and_charged_by_its_own_direction(is_directed, graph, ledger):
    """Whatever the first graph was: an edge without direction is one bit, and an arc is one."""
    arcs = graph.adjacency().tocoo()
    directed = with_arcs(graph, arcs.row < arcs.col, directed=True)
    first, second = (graph, directed) if is_directed else (directed, graph)
    model = quick("edge", epochs=1, ledger=ledger.path).fit(first)
    asked = model.prediction_guarantee(second)
    model.predict(second)
    trained, charged = ledger.entries()
    relations = ["undirected", "directed"] if is_directed else ["directed", "undirected"]
    assert [trained.relation, charged.relation] == relations
    assert str(asked.relation) == relations[1]
    assert charged.epsilon == asked.epsilon == pytest.approx(4.0)


@pytest.mark.parametrize("level", LEVELS)
def test_a_saved_model_predicts_the_same_and_never_reads_the_edges_again(
    level, graph, ledger, tmp_path, no_more_releases
):
    model = quick(level, ledger=ledger.path).fit(graph)
    before = model.predict_proba(graph)
    charges = len(ledger.entries())
    model.save(tmp_path / "model")
    no_more_releases()
    np.testing.assert_array_equal(model.predict_proba(graph), before)
    loaded = load_model(tmp_path / "model", ledger=ledger.path)
    if level == "none":
        np.testing.assert_allclose(loaded.predict_proba(), before, atol=1e-6)
    else:
        np.testing.assert_allclose(loaded.predict_proba(graph), before, atol=1e-6)
    assert len(ledger.entries()) == charges
    assert loaded.card_ == model.card_


@pytest.mark.parametrize("level", PRIVATE)
def test_another_graph_is_charged_once(level, graph, ledger, no_more_releases):
    model = quick(level, ledger=ledger.path).fit(graph)
    other = small_graph(num_nodes=300, seed=1)
    other = other._replace(ids=other.ids + 10_000)
    assert other.num_features == graph.num_features
    first = model.predict_proba(other)
    charges = ledger.entries()
    assert [charge.fingerprint for charge in charges] == [graph.fingerprint, other.fingerprint]
    assert charges[1].epsilon <= 4.0
    no_more_releases()
    np.testing.assert_array_equal(model.predict_proba(other), first)
    assert len(ledger.entries()) == 2


@pytest.mark.parametrize("level", PRIVATE)
def test_another_graph_of_the_same_people_is_charged_to_them(level, graph, ledger):
    model = quick(level, ledger=ledger.path).fit(graph)
    other = small_graph(seed=1)
    model.predict(other)
    fit, prediction = ledger.entries()
    assert (fit.fingerprint, prediction.fingerprint) == (graph.fingerprint, other.fingerprint)
    assert prediction.population == fit.population


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_randomised_edges_are_a_pure_release(perturbation, graph, ledger):
    model = quick("edge", perturbation=perturbation, ledger=ledger.path).fit(graph)
    card = model.card_
    assert (card.epsilon, card.delta, str(card.relation)) == (4.0, 0.0, "undirected")
    assert card.accountant == "pure"
    assert "randomised" in card.messages
    (charge,) = ledger.entries()
    assert (charge.epsilon, charge.delta) == (4.0, 0.0)
    assert len(card.events) == (1 if perturbation == "edgerand" else 2)


def test_under_directed_an_edge_costs_twice_and_the_card_says_so(graph):
    card = quick("edge", relation="directed").fit(graph).card_
    assert card.relation == Directed()
    assert any("under undirected, is 8.00" in warning for warning in card.warnings)


def test_node_level_charges_training_and_aggregation_together(graph):
    card = quick("node").fit(graph).card_
    training, aggregation = card.events
    assert (training["event"], aggregation["event"]) == ("MixtureOfGaussians", "Gaussian")
    assert training["steps"] == 3 * 300 // 50
    assert max(training["sensitivities"]) == 11
    assert training["noise_multiplier"] == pytest.approx(11 * card.noise_multiplier)
    assert aggregation["noise_multiplier"] == pytest.approx(card.noise_multiplier)
    assert 0.99 * 4.0 <= card.epsilon <= 4.0
    assert (card.max_degree, card.relation) == (5, AddRemove())


def test_node_level_noise_is_what_was_charged(graph, spied, steps):
    model = quick("node").fit(graph)
    multiplier = model.noise_multiplier_
    assert steps["classifier"] == pytest.approx([11 * multiplier] * (3 * 300 // 50))
    assert [std for std, _ in spied] == pytest.approx([multiplier * 5**0.5])


def test_noise_ratios_shift_the_budget(graph):
    even = quick("node").fit(graph)
    quiet = quick("node", noise_ratios=(0.5, 1.0)).fit(graph)
    assert even.noise_multiplier_ < quiet.noise_multiplier_ < 2 * even.noise_multiplier_
    assert quiet.card_.epsilon <= 4.0


def test_no_features_are_saved_at_node_level(graph, tmp_path):
    model = quick("node").fit(graph)
    (rows,) = model.releases_.training().hops
    assert rows.shape == (graph.num_nodes, 8)
    with pytest.raises(InputError, match="keeps no features"):
        model.predict()


@pytest.mark.parametrize("layers", [1, 3, 5])
@pytest.mark.parametrize("level", ["none", "edge"])
def test_up_to_five_layers_train(level, layers, graph):
    model = quick(level, layers=layers).fit(graph)
    assert len(model.modules_["sage"].layers) == layers
    assert np.isfinite(model.predict_proba()).all()


def test_the_graph_helps_where_it_is_not_hidden(graph):
    from gapgnn import MLP

    features = MLP(level="none").fit(graph).score(graph)
    assert GraphSAGE(level="none").fit(graph).score(graph) > features


def test_batches_train_too(graph):
    assert np.isfinite(quick("edge", batch_size=100).fit(graph).predict_proba(graph)).all()


def test_a_directed_graph_is_read_along_its_arcs(graph):
    arcs = graph.adjacency().tocoo()
    directed = with_arcs(graph, arcs.row < arcs.col, directed=True)
    for level in PRIVATE:
        assert np.isfinite(quick(level).fit(directed).predict_proba(directed)).all()
    model = quick("none", layers=1).fit(directed)
    arcs = directed.adjacency().tocoo()
    fewer = with_arcs(directed, np.arange(len(arcs.row)) != 40, directed=True)
    moved = np.abs(model.predict_proba(directed) - model.predict_proba(fewer)).max(axis=1)
    assert np.flatnonzero(moved > 1e-6).tolist() == [arcs.col[40]]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"layers": 0}, InputError, "`layers`"),
        ({"layers": 6}, InputError, "`layers`"),
        ({"level": "node", "layers": 2, "batch_size": 50}, InputError, "`layers` must be 1"),
        ({"level": "node", "relation": "replace", "batch_size": 50}, InputError, "add-remove"),
        ({"level": "node", "batch_norm": True, "batch_size": 50}, PrivacyError, "batch_norm"),
        ({"level": "node", "max_degree": 0, "batch_size": 50}, InputError, "`max_degree`"),
        ({"perturbation": "edgerandom"}, InputError, "Did you mean 'edgerand'"),
        ({"perturbation": "edgerand", "memory_limit": 1e-6}, InputError, "GiB"),
        ({"epsilon": 0.0}, InputError, "`epsilon` must be positive"),
        ({"epsilon": float("inf")}, InputError, "level none"),
        ({"delta": 1.0}, InputError, "`delta`"),
        ({"noise_ratios": (1.0,)}, InputError, "`noise_ratios`"),
        ({"hidden": 0}, InputError, "`hidden`"),
        ({"activation": "swish"}, InputError, "`activation`"),
    ],
)
def test_bad_parameters_say_why_and_charge_nothing(changes, error, words, graph, ledger):
    with pytest.raises(error, match=words):
        GraphSAGE(**{"epochs": 3, "ledger": ledger.path, **changes}).fit(graph)
    assert ledger.entries() == []


@pytest.mark.gate
def test_the_command_line_trains_sage(capsys, ledger, tmp_path):
    from gapgnn.cli.main import main

    words = ["train", "sage", "--level", "edge", "--epsilon", "2", "--perturbation", "lapgraph"]
    words += ["--layers", "1", "--epochs", "2", "--noise", "fast", "--json"]
    words += ["--ledger", str(ledger.path), "--out", str(tmp_path / "model")]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["method"], result["epsilon"], result["delta"]) == ("sage", 2.0, 0.0)
    assert len(ledger.entries()) == 1


def pure(graph, events, epsilon):
    return Guarantee.pure(graph, events, epsilon=epsilon, relation=Undirected(), delta="auto")


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_randomised_edges_are_priced_and_cost_what_was_asked(perturbation, bits, graph):
    for epsilon in (1e-6, 1e-3, 0.1, 1.0, 4.0, 37.0, 600.0):
        events = perturbation_events(perturbation, epsilon, bits_per_edge=bits)
        promise = pure(graph, events, epsilon)
        assert (promise.epsilon, promise.delta, promise.accountant) == (epsilon, 0.0, "pure")


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_randomised_edges_that_cost_more_than_was_asked_are_refused(perturbation, graph):
    events = perturbation_events(perturbation, 2.0)
    with pytest.raises(PrivacyError, match=r"at most epsilon 1\.999 in all\. Got 2"):
        pure(graph, events, 1.999)
    assert pure(graph, events, 3.0).epsilon == pytest.approx(2.0)
    again = (*events, RandomisedResponse.symmetric(1.0, count=2))
    assert pure(graph, again, 4.0).epsilon == 4.0


def test_noise_that_needs_a_delta_makes_no_pure_promise(graph):
    with pytest.raises(PrivacyError, match=r"pure events\. Got Gaussian"):
        pure(graph, [Gaussian(100.0)], 8.0)


def test_edges_randomised_for_another_budget_are_never_read(graph, ledger, monkeypatch):
    def generous(perturbation, epsilon, **options):
        return perturbation_events(perturbation, 2 * epsilon, **options)

    monkeypatch.setattr(sage_module, "perturbation_events", generous)
    with pytest.raises(PrivacyError, match=r"at most epsilon 4 in all\. Got 8"):
        quick("edge", ledger=ledger.path).fit(graph)
    assert ledger.entries() == []
