"""What the privacy page promises of GAP, checked on the running estimator."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from gapcases import LEVELS, PRIVATE, forbid, hops, quick, weights
from methodgraphs import cut_in_two, shuffled, small_graph
from sklearn.exceptions import NotFittedError
from suited import seeded

from gapgnn import Graph, Ledger
from gapgnn.errors import BudgetExceededError, InputError, PrivacyError
from gapgnn.graph.transforms import induced
from gapgnn.privacy import observed_by
from gapgnn.privacy import session as session_module
from gapgnn.privacy.ledger.people import People
from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation
from gapgnn.training.trainer import Trainer


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph(num_nodes=200)


class Values:
    """Notes what noise was added to, by the name of the release."""

    def __init__(self) -> None:
        self.seen: dict[str, np.ndarray] = {}

    def begin(self, *args, **about):
        pass

    def batch(self, phase, batch, members):
        return batch

    def release(self, release, output):
        self.seen[release.name] = np.asarray(release.value)
        return output


class TestPrediction:
    @pytest.mark.parametrize("level", LEVELS)
    def test_asking_twice_gives_identical_labels_and_one_ledger_entry(self, level, graph, ledger):
        model = quick(level, ledger=ledger.path).fit(graph)
        once, twice = model.predict_proba(graph), model.predict_proba(graph)
        np.testing.assert_array_equal(once, twice)
        assert len(ledger.entries()) == (level != "none")

    @pytest.mark.parametrize("level", LEVELS)
    def test_no_edge_is_read_after_fit(self, level, monkeypatch):
        graph = small_graph(num_nodes=200)
        model = quick(level).fit(graph)
        wanted = model.predict_proba(graph)
        for name in ("indptr", "indices"):
            poison = np.full(len(getattr(graph, name)), np.nan)
            object.__setattr__(graph, name, poison)
        forbid(monkeypatch, Graph, "adjacency", "out_neighbours", "out_degrees")
        forbid(monkeypatch, session_module, "hop_mechanisms")
        np.testing.assert_array_equal(model.predict_proba(graph), wanted)
        if level != "node":
            np.testing.assert_array_equal(model.predict_proba(), wanted)

    @pytest.mark.parametrize("level", ["none", "edge"])
    def test_each_hop_sums_the_released_rows_of_the_hop_before(self, level, graph):
        """Neither hop 0 again, nor the sums before noise, which nobody paid for."""
        observer = Values()
        with observed_by(observer):
            model = quick(level, hops=3).fit(graph)
        _, *released = hops(model)
        lists = graph.adjacency().T
        for number, (before, after) in enumerate(pairwise(released), start=2):
            sums = lists @ before
            if level == "none":
                wanted = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
                np.testing.assert_allclose(after, wanted, atol=1e-4)
            else:
                value = observer.seen[f"hop {number}"].reshape(sums.shape)
                np.testing.assert_allclose(value, sums, atol=0.01)

    def test_the_order_of_nodes_does_not_change_whose_label_is_whose(self, graph, ledger):
        for level in LEVELS:
            model = quick(level, ledger=ledger.path).fit(graph)
            order = np.random.default_rng(0).permutation(graph.num_nodes)
            other = shuffled(graph, order)
            charges = len(ledger.entries())
            np.testing.assert_allclose(
                model.predict_proba(other), model.predict_proba(graph)[order], atol=1e-6
            )
            assert len(ledger.entries()) == charges

    def test_at_node_level_the_features_must_be_given(self, graph):
        with pytest.raises(InputError, match="keeps no features"):
            quick("node").fit(graph).predict()


class TestAnotherGraph:
    @pytest.mark.parametrize("level", PRIVATE)
    def test_a_disjoint_graph_is_charged_once_and_then_answered_from_its_hops(self, level, ledger):
        first, second = cut_in_two(small_graph(num_nodes=300), seed=0)
        model = quick(level, ledger=ledger.path).fit(first)
        once, twice = model.predict_proba(second), model.predict_proba(second)
        np.testing.assert_array_equal(once, twice)
        fit, charge = ledger.entries()
        assert (fit.fingerprint, charge.fingerprint) == (first.fingerprint, second.fingerprint)
        # Nobody is in both, so what the one has left is nothing to the other.
        assert charge.population != fit.population
        assert charge.others == ()
        assert charge.completed_at is not None
        assert charge.events[0]["count"] == model.hops
        assert once.shape[0] == second.num_nodes

    def test_it_gets_the_noise_that_it_is_charged_for(self, ledger, spied):
        first, second = cut_in_two(small_graph(num_nodes=300), seed=0)
        model = quick("edge", ledger=ledger.path).fit(first)
        spied.clear()
        model.predict(second)
        charge = ledger.entries()[-1]
        assert charge.fingerprint == second.fingerprint
        assert charge.events[0]["noise_multiplier"] == model.noise_multiplier_
        assert {std for std, _ in spied} == {model.noise_multiplier_ * math.sqrt(2)}
        assert charge.epsilon <= 4.0 * 1.001

    def test_one_that_shares_people_with_the_training_graph_is_charged_to_them(self, ledger):
        whole = small_graph(num_nodes=300)
        first, second = induced(whole, np.arange(200)), induced(whole, np.arange(150, 300))
        model = quick("edge", ledger=ledger.path).fit(first)
        model.predict(second)
        fit, prediction = ledger.entries()
        assert prediction.population == fit.population
        # Those whom only the second graph knows joined: whoever reads them pays, too.
        (budget,) = ledger.summary()
        assert budget.people == 300

    def test_changed_edges_of_the_same_people_are_another_graph(self, graph, ledger):
        model = quick("edge", ledger=ledger.path).fit(graph)
        arcs = graph.adjacency().tocoo()
        fewer = graph._replace(
            **dict(zip(("indptr", "indices"), without_one_edge(graph), strict=True))
        )
        assert fewer.num_arcs == len(arcs.row) - 2
        model.predict(fewer)
        fit, prediction = ledger.entries()
        assert (fit.fingerprint, prediction.fingerprint) == (graph.fingerprint, fewer.fingerprint)
        assert prediction.population == fit.population

    def test_without_privacy_it_is_read_without_a_charge(self, ledger):
        first, second = cut_in_two(small_graph(num_nodes=300), seed=0)
        model = quick("none", ledger=ledger.path).fit(first)
        assert model.predict(second).shape == (second.num_nodes,)
        assert ledger.entries() == []


def without_one_edge(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    arcs = graph.adjacency().tolil()
    target = int(graph.out_neighbours(0)[0])
    arcs[0, target] = arcs[target, 0] = 0
    kept = arcs.tocsr()
    kept.eliminate_zeros()
    return kept.indptr.astype(np.int64), kept.indices


def grant(ledger: Ledger, graph: Graph, *, epsilon: float) -> None:
    """Give everybody of a graph a budget whose epsilons add up."""
    budget = {"level": "edge", "relation": "undirected", "epsilon": epsilon, "delta": 1e-3}
    ledger.grant("everybody", People.of(graph), **budget, composition="sum")


class TestBudget:
    def test_over_budget_is_refused_before_anything_is_computed(self, graph, ledger, monkeypatch):
        grant(ledger, graph, epsilon=3)
        forbid(monkeypatch, Trainer, "fit")
        forbid(monkeypatch, PrivateAggregation, "hop")
        model = quick("edge", ledger=ledger.path)
        with pytest.raises(
            BudgetExceededError, match=r"everybody at edge level .* has epsilon 3 .* left"
        ):
            model.fit(graph)
        assert ledger.entries() == []
        with pytest.raises(NotFittedError):
            model.predict(graph)

    def test_repeats_are_charged_each_and_the_first_is_the_model(self, graph, ledger):
        grant(ledger, graph, epsilon=9)
        shared = {"ledger": ledger.path, "insecure_noise_seed": 3}
        model = quick("edge", repeats=2, **shared).fit(graph)
        (charge,) = ledger.entries()
        assert charge.count == 2
        assert ledger.summary()[0].spent_epsilon == pytest.approx(2 * charge.epsilon)
        with pytest.raises(BudgetExceededError):
            quick("edge", repeats=2, **shared).fit(graph)
        alone = quick("edge", insecure_noise_seed=3).fit(graph)
        np.testing.assert_allclose(hops(model)[1], hops(alone)[1], atol=1e-3)

    @pytest.mark.parametrize("phase", ["encoder", "classifier"])
    @pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
    def test_a_fit_that_stops_leaves_a_charge_without_completion(
        self, phase, stop, graph, ledger, monkeypatch
    ):
        original = Trainer.fit

        def stopping(self, *args, **kwargs):
            if kwargs["phase"] == phase:
                raise stop
            original(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, "fit", stopping)
        with pytest.raises(stop):
            quick("edge", ledger=ledger.path).fit(graph)
        (charge,) = ledger.entries()
        assert charge.completed_at is None

    def test_a_second_fit_that_stops_does_not_keep_the_first_ones_card(self, graph, monkeypatch):
        model = quick("edge").fit(graph)
        model.set_params(level="none", epsilon=1.0)
        forbid(monkeypatch, session_module, "hop_mechanisms")
        with pytest.raises(AssertionError):
            model.fit(graph)
        with pytest.raises(NotFittedError):
            model.save("never")

    def test_another_level_needs_another_fit(self, graph):
        model = quick("edge").fit(graph).set_params(level="none")
        with pytest.raises(PrivacyError, match="Fit again"):
            model.predict(small_graph(num_nodes=200, seed=1))


class TestLabels:
    @pytest.mark.parametrize(
        ("level", "unused"), [("edge", ["test"]), ("node", ["val", "test"]), ("none", ["test"])]
    )
    def test_labels_that_are_not_for_training_never_change_the_model(self, level, unused, graph):
        labels = graph.labels.copy()
        for name in unused:
            mask = getattr(graph, f"{name}_mask")
            labels[mask] = (labels[mask] + 1) % graph.num_classes
        same = [
            quick(level, **seeded(level, 4), epochs=4).fit(each)
            for each in (graph, graph._replace(labels=labels))
        ]
        first, second = map(weights, same)
        assert (labels != graph.labels).sum() >= 20
        for key in first:
            np.testing.assert_array_equal(first[key], second[key], err_msg=key)
        for mine, theirs in zip(*map(hops, same), strict=True):
            np.testing.assert_array_equal(mine, theirs)

    def test_training_labels_do_change_it(self, graph):
        labels = np.where(graph.train_mask, (graph.labels + 1) % graph.num_classes, graph.labels)
        first = weights(quick("node", insecure_noise_seed=4).fit(graph))
        second = weights(quick("node", insecure_noise_seed=4).fit(graph._replace(labels=labels)))
        assert any((first[key] != second[key]).any() for key in first)
