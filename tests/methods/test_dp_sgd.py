"""``dp_sgd``: what it refuses, what it returns, and what leaves a run on neighbouring graphs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from rootcases import CLASSES, WIDTH, OwnLayer, Two, people, ring_of_lists
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GraphNorm,
    MessagePassing,
    SAGEConv,
    TAGConv,
    global_mean_pool,
)

from gapgnn import InputError, PrivacyError, dp_sgd
from gapgnn.audits.replay import Interrupted, Recording, Replaying
from gapgnn.methods import dp_sgd as dp_sgd_module
from gapgnn.privacy import Checkpoint, observed_by
from gapgnn.privacy.ledger import Ledger, scratch_ledger
from gapgnn.training.roots import RootGradients

QUICK = {"epochs": 2, "batch_size": 4, "max_degree": 2, "delta": 1e-3, "train_size": 12}


def graph_of(num_nodes=12, degree=3, **options):
    return people(num_nodes, ring_of_lists(num_nodes, degree), **options)


def trained(module, graph, **options):
    """Train with a ledger of its own; return module, card and what was announced."""
    said = []
    with scratch_ledger() as ledger:
        given = {**QUICK, "ledger": ledger, "announce": said.append, **options}
        module, card = dp_sgd(module, graph, **given)
        charges = len(list(Ledger(ledger).entries()))
    return module, card, said, charges


class Smuggled(nn.Module):
    """A module whose forward pass is given."""

    def __init__(self, forward, conv=True):
        super().__init__()
        self.conv = SAGEConv(WIDTH, CLASSES) if conv else nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(CLASSES))
        self.inside = forward

    def forward(self, x, edge_index):
        return self.inside(self, x, edge_index)


def batch_normed(self, x, edge_index):
    return F.batch_norm(self.conv(x, edge_index), None, None, training=True, eps=1.0)


def remembered(self, x, edge_index):
    found = self.conv(x, edge_index)
    self.seen += found.detach().mean(0)
    return found


def pooled(self, x, edge_index):
    found = self.conv(x, edge_index)
    return found + global_mean_pool(found, None)


def first_ever(self, x, edge_index):
    if not hasattr(self, "kept"):
        self.kept = x.detach().sum()
    return self.conv(x, edge_index) + self.kept


def noisy(self, x, edge_index):
    return self.conv(x + torch.randn_like(x), edge_index)


class TestRefusals:
    @pytest.mark.parametrize(
        ("module", "reason"),
        [
            (nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.BatchNorm1d(CLASSES)), "GroupNorm"),
            (nn.Sequential(nn.Linear(WIDTH, 3), nn.InstanceNorm1d(3, track_running_stats=True)),
             "running statistics"),
            (GCNConv(WIDTH, CLASSES, cached=True), "cached=False"),
            (Smuggled(batch_normed), "unconnected nodes"),
            (Smuggled(pooled), "unconnected nodes"),
            (Smuggled(remembered), "'seen'"),
            (Smuggled(first_ever), "keeps state"),
            (Smuggled(noisy), "nn.Dropout"),
        ],
    )  # fmt: skip
    def test_what_breaks_the_independence_of_roots_is_refused_with_a_fix(self, module, reason):
        with pytest.raises(PrivacyError, match=reason):
            dp_sgd(module, graph_of(), plan_only=True, **QUICK)

    def test_a_norm_of_the_whole_graph_is_refused(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = SAGEConv(WIDTH, CLASSES), GraphNorm(CLASSES)

            def forward(self, x, edge_index):
                return self.norm(self.conv(x, edge_index))

        with pytest.raises(PrivacyError, match="unconnected nodes"):
            dp_sgd(Net(), graph_of(), plan_only=True, **QUICK)

    @pytest.mark.parametrize(
        ("module", "options", "reason"),
        [
            (SAGEConv(-1, CLASSES), {}, "lazy"),
            (SAGEConv(WIDTH, CLASSES + 1), {}, "a row of 3 scores"),
            (SAGEConv(WIDTH + 1, CLASSES), {}, "columns"),
            (TAGConv(WIDTH, CLASSES, K=3), {}, "`layers` must be given"),
            (nn.Linear(WIDTH, CLASSES), {"level": "edge"}, "train it plainly"),
            (nn.Linear(WIDTH, CLASSES), {"keep": 0.5}, "`keep`"),
            (OwnLayer(), {"level": "none"}, "`level`"),
            (OwnLayer(), {"epsilon": float("inf")}, "finite"),
            (OwnLayer(), {"keep": 0.0}, "`keep`"),
            (OwnLayer(), {"loss": lambda rows, labels: rows}, "`loss`"),
        ],
    )
    def test_what_cannot_be_trained_is_refused_before_the_charge(self, module, options, reason):
        with scratch_ledger() as ledger:
            with pytest.raises(InputError, match=reason):
                dp_sgd(module, graph_of(), ledger=ledger, **{**QUICK, **options})
            assert not list(Ledger(ledger).entries())

    def test_a_graph_without_a_split_or_with_weights_is_refused(self):
        graph = graph_of()
        nobody = np.zeros(12, dtype=bool)
        with pytest.raises(InputError, match="split"):
            dp_sgd(OwnLayer(), graph.with_masks(nobody, nobody, nobody), plan_only=True, **QUICK)
        arcs = ring_of_lists(12, 2)
        weighed = people(12, arcs, weights=np.ones(len(arcs)), weight_bounds=(0.0, 1.0))
        with pytest.raises(InputError, match="without weights"):
            dp_sgd(OwnLayer(), weighed, plan_only=True, **QUICK)


class TestResult:
    @pytest.mark.parametrize("level", ["node", "edge"])
    def test_it_is_a_module_of_the_same_class_with_other_weights_and_a_card(self, level):
        module = GATConv(WIDTH, CLASSES, dropout=0.5)
        before = copy.deepcopy(module.state_dict())
        found, card, said, charges = trained(module, graph_of(), level=level)
        assert type(found) is GATConv
        assert not found.training
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
        assert not torch.equal(found.lin.weight, module.lin.weight)
        assert charges == 1
        assert card.epsilon <= 8
        assert card.level == level
        assert card.product == "weights"
        assert any("exact" in text for text in card.not_covered)
        assert "Plan of dp-sgd" in said[0]
        assert "is charged" in said[1]

    def test_the_plan_charges_nothing_and_says_what_will_be_released(self):
        with scratch_ledger() as ledger:
            plan = dp_sgd(Two(), graph_of(), plan_only=True, ledger=ledger, **QUICK)
            assert not list(Ledger(ledger).entries())
        (event,) = plan.promise.events
        assert (event.reach, event.own, plan.settings.layers) == ((2, 4), 1, 2)

    def test_what_is_charged_is_what_training_draws(self, monkeypatch):
        drawn = []
        real = dp_sgd_module.RootTrainer.fit

        def watched(self, model, inputs, **options):
            subgraphs, schedule = inputs.subgraphs, self.schedule
            rates = subgraphs.keep, schedule.sampling_rate, schedule.steps
            private = options["private"]
            noise = private.noise_multiplier * private.sensitivity
            drawn.append((*rates, subgraphs.layers, noise))
            return real(self, model, inputs, **options)

        monkeypatch.setattr(dp_sgd_module.RootTrainer, "fit", watched)
        _, card, *_ = trained(Two(), graph_of(), keep=0.5, epochs=1)
        ((keep, rate, steps, layers, noise),) = drawn
        (event,) = card.events
        assert (event["keep"], event["sampling_rate"], event["steps"]) == (keep, rate, steps)
        assert (keep, event["reach"]) == (0.5, [2, 4])
        assert layers == len(event["reach"])
        assert noise == pytest.approx(event["noise_multiplier"], rel=1e-9)

    @pytest.mark.parametrize(
        ("degree", "keep"), [(3, 1.0), (2, 0.5)], ids=["cut lists", "coins of arcs"]
    )
    def test_which_arcs_an_example_has_is_a_secret_of_each_run(self, degree, keep, monkeypatch):
        drawn, roots, real = [], np.arange(12), dp_sgd_module.RootTrainer.fit

        def watched(self, model, inputs, **more):
            drawn.append([one.edges.tolist() for one in inputs.subgraphs.of(roots, step=0)])
            return real(self, model, inputs, **more)

        monkeypatch.setattr(dp_sgd_module.RootTrainer, "fit", watched)
        for _ in range(2):
            trained(OwnLayer(), graph_of(degree=degree), keep=keep)
        assert drawn[0] != drawn[1]

    @pytest.mark.parametrize(
        ("train_size", "origin"),
        [(12, "12: declared"), ("auto", "12: counted, and exact: rounding to two digits")],
    )
    def test_the_card_says_whether_the_number_that_trains_is_declared(self, train_size, origin):
        _, card, *_ = trained(OwnLayer(), graph_of(), train_size=train_size)
        assert dict(card.public)["number of training people"].startswith(origin)

    def test_the_card_warns_of_predictions_where_they_read_exact_neighbours(self):
        assert dp_sgd_module.WEIGHTS_ONLY in trained(OwnLayer(), graph_of())[1].warnings

    def test_rows_may_be_classified_without_neighbours(self):
        found, card, *_ = trained(nn.Linear(WIDTH, CLASSES), graph_of())
        assert dp_sgd_module.WEIGHTS_ONLY not in card.warnings
        assert found(torch.zeros(1, WIDTH)).shape == (1, CLASSES)
        assert card.events[0]["reach"] == []

    def test_a_killed_run_goes_on_with_its_charge(self, tmp_path):
        graph = graph_of()
        with scratch_ledger() as ledger:
            options = {**QUICK, "ledger": ledger, "announce": lambda text: None}
            start = Checkpoint(tmp_path / "run", ledger=ledger)
            with observed_by(Recording(None, 3)), pytest.raises(Interrupted):
                dp_sgd(OwnLayer(), graph, checkpoint=start, **options)
            start.close()
            again = Checkpoint(tmp_path / "run", ledger=ledger, resume=True)
            dp_sgd(OwnLayer(), graph, checkpoint=again, **options)
            assert len(list(Ledger(ledger).entries())) == 1

    def test_two_runs_with_one_seed_agree(self):
        module = OwnLayer()
        runs = [trained(module, graph_of(), insecure_noise_seed=3)[0] for _ in range(2)]
        for one, other in zip(*(run.parameters() for run in runs), strict=True):
            assert torch.equal(one, other)
        assert not trained(module, graph_of(), insecure_noise_seed=0)[1].is_private_release


def replayed(module, first, second, person, **options):
    """Replay a run on a neighbour; return what differs, and what was compared."""
    seen = Recording(person, None)
    runs = []
    for graph in (first, second):
        watcher = seen if graph is first else Replaying(seen, 1)
        with observed_by(watcher):
            runs.append(
                trained(
                    module,
                    graph,
                    insecure_noise_seed=5,
                    **{"clip": 0.1, **options},
                )
            )
    watcher.finish()
    findings = list(watcher.findings)
    states = [run[0].state_dict() for run in runs]
    findings += [f"{n} differs" for n in states[0] if not torch.equal(states[0][n], states[1][n])]
    cards = [run[1] for run in runs]
    for name in ("epsilon", "events", "public", "covered", "not_covered", "warnings", "messages"):
        if getattr(cards[0], name) != getattr(cards[1], name):
            findings.append(f"card: {name} differs")
    if runs[0][2] != runs[1][2]:
        findings.append("what was announced differs")
    return findings, watcher.compared


class Sum(MessagePassing):
    """Adds up the features of an example: its gradient is that very sum, whatever the weights."""

    def __init__(self, columns):
        super().__init__(aggr="add")
        self.weight = nn.Parameter(torch.zeros(columns, 1))

    def forward(self, x, edge_index):
        total = (x + self.propagate(edge_index, x=x)) @ self.weight
        return torch.cat([total, -total, 0 * total], dim=1)


def opposed(degree):
    """A record that turns around the gradients of as many others as it lists."""
    size = degree + 4
    arcs = [(0, v) for v in range(1, degree + 1)]
    graphs = [people(size, arcs), people(size, arcs, left_out=0)]
    features = np.zeros((size, WIDTH), dtype=np.float32)
    features[: degree + 1, 0] = [20.0, *[-10.0] * degree]
    changed = []
    for graph in graphs:
        rows = features[[int(one) for one in graph.ids]]
        labels = np.zeros(len(rows), dtype=np.int64)
        labels[-2:] = [1, 2]
        masks = graph.train_mask, graph.val_mask, graph.test_mask
        changed.append(graph._replace(features=rows, labels=labels).with_masks(*masks))
    return changed


class TestReplay:
    @pytest.mark.parametrize("make", [GCNConv, GATConv, lambda *_: Two()])
    @pytest.mark.parametrize("keep", [1.0, 0.5])
    def test_a_record_shows_in_nothing_but_what_is_accounted_for(self, make, keep):
        module, arcs = make(WIDTH, CLASSES), ring_of_lists(12, 3)
        for person in (0, 7):
            graphs = people(12, arcs), people(12, arcs, left_out=person)
            findings, compared = replayed(module, *graphs, str(person), keep=keep)
            assert findings == []
            assert compared
            assert max(one.observed for one in compared) > 0

    def test_an_exchanged_record_too(self):
        arcs = ring_of_lists(12, 3)
        graphs = people(12, arcs), people(12, arcs, other=(4, [1, 9, 10]))
        findings, compared = replayed(SAGEConv(WIDTH, CLASSES), *graphs, "4", relation="replace")
        assert findings == []
        assert compared

    def test_an_edge_too(self):
        arcs = set(ring_of_lists(12, 3)) | {(v, u) for u, v in ring_of_lists(12, 3)}
        fewer = arcs - {(0, 1), (1, 0)}
        graphs = people(12, sorted(arcs)), people(12, sorted(fewer))
        findings, compared = replayed(
            Two(), *graphs, None, level="edge", relation="undirected", delta=1e-4
        )
        assert findings == []
        assert compared

    def test_the_worst_record_moves_a_step_by_all_that_is_accounted(self):
        findings, compared = replayed(Sum(WIDTH), *opposed(2), "0", batch_size=12, epochs=1)
        assert findings == []
        assert max(one.observed for one in compared) == pytest.approx(5, rel=1e-3)


class TestPlantedFaults:
    def test_a_root_counted_once_too_few(self, monkeypatch):
        real = dp_sgd_module.rooted_event

        def forgetful(relation, *, max_degree, **options):
            return real(relation, max_degree=max_degree - 1, **options)

        monkeypatch.setattr(dp_sgd_module, "rooted_event", forgetful)
        findings, _ = replayed(Sum(WIDTH), *opposed(2), "0", batch_size=12, epochs=1)
        assert any("moved by 4.99" in text and "accounted 3" in text for text in findings), findings

    def test_lists_that_are_not_cut(self, monkeypatch):
        real = dp_sgd_module.bound_out_degrees
        monkeypatch.setattr(
            dp_sgd_module, "bound_out_degrees", lambda graph, limit, key: real(graph, 100, key)
        )
        findings, _ = replayed(Sum(WIDTH), *opposed(4), "0", batch_size=12, epochs=1)
        assert any("moved by" in text for text in findings)

    def test_gradients_that_are_not_clipped(self, monkeypatch):
        def unclipped(self, roots, step, clip, share):
            subgraphs = self._inputs.subgraphs.of(roots.numpy(), step)
            return sum(self.gradient(one).double() for one in subgraphs)

        monkeypatch.setattr(RootGradients, "clipped_sum", unclipped)
        findings, _ = replayed(Sum(WIDTH), *opposed(2), "0", batch_size=12, epochs=1)
        assert any("moved by" in text for text in findings)
