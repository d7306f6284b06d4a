"""GAP's noise, levels and combination: what runs is what the card says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gapcases import LEVELS, PRIVATE, RAW, forbid, hops, quick, small_classifier, weights
from methodgraphs import small_graph

from gapgnn import Graph
from gapgnn.errors import InputError, PrivacyError
from gapgnn.nn import MultiHopClassifier
from gapgnn.nn.layers import reset_replicas
from gapgnn.privacy import guarantee as guarantee_module
from gapgnn.privacy import session as session_module
from gapgnn.privacy.accounting.calibration import Calibrated
from gapgnn.privacy.mechanisms import PrivateAggregation, row_normalise
from gapgnn.privacy.relations import public_count
from gapgnn.training import trainer as trainer_module
from gapgnn.training.trainer import Trainer


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph(num_nodes=200)


class TestNoise:
    def test_an_edge_has_sqrt_two_times_the_noise_of_an_arc(self, graph, spied):
        stds = {}
        for relation in ("directed", "undirected"):
            spied.clear()
            model = quick("edge", relation=relation, delta=1e-6).fit(graph)
            (stds[relation],) = {std for std, _ in spied}
            assert sorted(path for _, path in spied) == [("hop", 1), ("hop", 2)]
            multiplier = model.card_.events[0]["noise_multiplier"]
            wanted = multiplier * (math.sqrt(2) if relation == "undirected" else 1)
            assert stds[relation] == pytest.approx(wanted)
        assert stds["undirected"] == pytest.approx(math.sqrt(2) * stds["directed"])

    @pytest.mark.parametrize(("relation", "factor"), [("add-remove", 1), ("replace", 2)])
    def test_a_person_has_noise_of_the_degree_bound(self, relation, factor, graph, spied, steps):
        model = quick("node", relation=relation, max_degree=9).fit(graph)
        (std,) = {std for std, _ in spied}
        (hops,) = [event for event in model.card_.events if event["event"] == "Gaussian"]
        assert std == pytest.approx(hops["noise_multiplier"] * factor * 3)
        # One multiple of one record's contribution in every phase, also under `replace`.
        assert std == pytest.approx(model.noise_multiplier_ * 3)
        for phase in ("encoder", "classifier"):
            assert set(steps[phase]) == {model.noise_multiplier_}

    def test_ratios_reach_each_phase(self, graph, spied, steps):
        model = quick("node", noise_ratios=(2.0, 0.5, 1.5), max_degree=4).fit(graph)
        multiplier = model.noise_multiplier_
        assert {std for std, _ in spied} == {multiplier * 0.5 * 2}
        assert set(steps["encoder"]) == {multiplier * 2.0}
        assert set(steps["classifier"]) == {multiplier * 1.5}

    @pytest.mark.parametrize("level", PRIVATE)
    def test_the_cards_events_are_what_ran(self, level, graph, spied, steps):
        model = quick(level, hops=3).fit(graph)
        by_label = {event["label"]: event for event in model.card_.events}
        assert by_label["aggregation"]["count"] == len({path for _, path in spied}) == 3
        trained = {label: e["steps"] for label, e in by_label.items() if label != "aggregation"}
        assert trained == {phase: len(calls) for phase, calls in steps.items()}
        assert set(trained) == (set() if level == "edge" else {"encoder", "classifier"})

    def test_the_cards_sampling_rate_is_the_one_that_samples(self, graph, monkeypatch):
        rates = []
        original = trainer_module.PoissonBatches

        def spy(schedule, *args, **options):
            rates.append(schedule.sampling_rate)
            return original(schedule, *args, **options)

        monkeypatch.setattr(trainer_module, "PoissonBatches", spy)
        model = quick("node").fit(graph)
        stated = [e["sampling_rate"] for e in model.card_.events if "sampling_rate" in e]
        assert stated == rates == [50 / public_count(int(graph.train_mask.sum()))] * 2

    def test_less_budget_makes_the_hops_less_like_the_truth(self, graph):
        true = hops(quick("none", **RAW).fit(graph))[1]
        likeness = [
            (hops(quick("edge", epsilon=epsilon, **RAW).fit(graph))[1] * true).sum(axis=1).mean()
            for epsilon in (0.1, 1000.0)
        ]
        assert likeness[0] < 0.2
        assert likeness[1] > 0.9

    @pytest.mark.parametrize("level", PRIVATE)
    def test_every_fit_draws_fresh_noise(self, level, graph):
        model = quick(level, **RAW)
        first = hops(model.fit(graph))[-1]
        second = hops(model.fit(graph))[-1]
        assert np.abs(first - second).max() > 1e-3

    def test_repeats_draw_different_noise(self, graph, monkeypatch):
        released = []
        original = PrivateAggregation.hop

        def spy(self, *args, **options):
            released.append(original(self, *args, **options))
            return released[-1]

        monkeypatch.setattr(PrivateAggregation, "hop", spy)
        quick("edge", repeats=2, split="fixed", **RAW).fit(graph)
        one, other = released[0]
        assert float((one - other).abs().max()) > 1e-3

    @pytest.mark.parametrize("seed", [0, 1])
    def test_seeded_noise_is_marked_on_the_card(self, graph, seed):
        card = quick("edge", insecure_noise_seed=seed).fit(graph).card_
        assert not card.is_private_release
        assert "Not a private release" in str(card)
        assert quick("edge").fit(graph).card_.is_private_release

    @pytest.mark.parametrize("level", PRIVATE)
    @pytest.mark.parametrize("multiplier", [0.0, math.nan, math.inf])
    def test_a_finite_epsilon_without_noise_stops_the_program(
        self, level, multiplier, graph, ledger, monkeypatch
    ):
        def broken(template, *, epsilon, delta, relation, fixed):
            events = tuple(event.scaled(1.0) for event in template)
            return Calibrated(multiplier, epsilon, delta, "broken", events)

        monkeypatch.setattr(guarantee_module, "calibrate", broken)
        forbid(monkeypatch, Trainer, "fit")
        forbid(monkeypatch, session_module, "hop_mechanisms")
        with pytest.raises(PrivacyError, match="must have noise"):
            quick(level, ledger=ledger.path).fit(graph)
        assert ledger.entries() == []


class TestLevels:
    def test_without_privacy_the_hops_are_exact(self):
        graph = star_to_the_last_node()
        model = quick("none", **RAW).fit(graph)
        rows = row_normalise(torch.tensor(graph.features))
        for hop in hops(model)[1:]:
            rows = row_normalise(torch.from_numpy(graph.adjacency().T @ rows.numpy()))
            np.testing.assert_allclose(hop, rows.numpy(), atol=1e-6)
        assert np.abs(hops(model)[1][-1]).sum() > 0
        card = model.card_
        assert (card.epsilon, card.delta, card.events) == (None, None, ())
        assert model.noise_multiplier_ is None

    @pytest.mark.parametrize("level", PRIVATE)
    def test_the_last_nodes_edges_count(self, level):
        graph = star_to_the_last_node()
        bound = {"max_degree": graph.num_nodes} if level == "node" else {}
        model = quick(level, epsilon=100_000.0, hops=1, batch_size=16, **bound, **RAW).fit(graph)
        rows = row_normalise(torch.tensor(graph.features)).numpy()
        wanted = row_normalise(torch.from_numpy(graph.adjacency().T @ rows)).numpy()
        assert (hops(model)[-1][-1] * wanted[-1]).sum() > 0.99

    @pytest.mark.parametrize("bound", [199, 10_000])
    def test_a_degree_bound_above_every_degree_still_has_its_noise(self, bound, graph, spied):
        model = quick("node", max_degree=bound).fit(graph)
        assert {std for std, _ in spied} == {model.noise_multiplier_ * math.sqrt(bound)}
        assert model.card_.node_notion == "strict"
        assert quick("node", max_degree=3).fit(graph).card_.node_notion == "own record"

    @pytest.mark.parametrize("level", PRIVATE)
    def test_an_explicit_delta_is_the_one_promised(self, level, graph, ledger):
        card = quick(level, delta=3e-6, ledger=ledger.path).fit(graph).card_
        assert card.delta == ledger.entries()[0].delta == 3e-6
        assert card.epsilon <= 4.0

    def test_a_delta_without_privacy_is_refused(self, graph):
        with pytest.raises(InputError, match="`delta` must be left out at level none"):
            quick("none", delta=3e-6).fit(graph)

    @pytest.mark.parametrize("level", LEVELS)
    def test_a_batch_larger_than_the_training_set_is_refused(self, level, graph, ledger):
        count = int(graph.train_mask.sum())
        known = public_count(count) if level == "node" else count
        with pytest.raises(
            InputError, match=rf"at most {known}, the number of training nodes\. Got {known + 1}"
        ):
            quick(level, batch_size=known + 1, ledger=ledger.path).fit(graph)
        assert ledger.entries() == []

    @pytest.mark.parametrize("size", [149, 150, 37])
    def test_any_other_batch_size_trains(self, size, graph):
        start = quick("edge", batch_size=size, insecure_noise_seed=0, epochs=1).fit(graph)
        more = quick("edge", batch_size=size, insecure_noise_seed=0, epochs=3).fit(graph)
        assert any((weights(start)[key] != weights(more)[key]).any() for key in weights(start))

    def test_batch_norm_of_one_node_is_refused_before_the_charge(self, graph, ledger):
        with pytest.raises(InputError, match="at least 2 with batch norm"):
            quick("edge", batch_size=1, ledger=ledger.path).fit(graph)
        assert ledger.entries() == []

    @pytest.mark.parametrize("level", LEVELS)
    def test_hop_zero_is_kept_except_at_node_level(self, level, graph):
        released = quick(level).fit(graph).releases_.training()
        assert released.has_hop_zero == (level != "node")
        assert len(released.hops) == (3 if level != "node" else 2)


def star_to_the_last_node() -> Graph:
    """Everybody lists the last node, and nobody else is listed."""
    count = 40
    masks = np.eye(3, dtype=bool)[np.arange(count) % 3]
    return Graph.from_arcs(
        np.arange(count - 1),
        np.full(count - 1, count - 1),
        num_nodes=count,
        features=np.random.default_rng(0).normal(size=(count, 5)) + 2,
        labels=np.arange(count) // 3 % 2,
        train_mask=masks[:, 0] | masks[:, 1],
        test_mask=masks[:, 2],
        directed=True,
    )


class TestAttention:
    @pytest.fixture
    def attention(self) -> MultiHopClassifier:
        model = small_classifier(1, [4, 4, 4], 3, combine="attention")
        reset_replicas(model, [torch.Generator().manual_seed(0)])
        return model.eval()

    def test_a_nodes_score_depends_on_its_own_hops_alone(self, attention):
        inputs = list(torch.randn(3, 1, 50, 4, generator=torch.Generator().manual_seed(1)))
        with torch.no_grad():
            whole = attention(inputs)
            alone = attention([hop[:, 7:8] for hop in inputs])
            order = torch.arange(49, -1, -1)
            turned = attention([hop[:, order] for hop in inputs])
        torch.testing.assert_close(whole[:, 7:8], alone)
        torch.testing.assert_close(whole[:, order], turned)

    def test_the_weights_of_a_nodes_hops_add_up_to_one(self, attention):
        equal = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(1))[0]
        torch.testing.assert_close(attention._combined([equal, equal, equal]), equal)
