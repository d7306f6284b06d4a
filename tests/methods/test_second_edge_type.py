"""What is true of the second edge type alone counts: people, notion, delta, refusals, rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from methodgraphs import with_arcs
from typedgraphs import MANY, NUM_NODES, STRANGERS, unlike_types

from gapgnn import GAP, GraphSAGE, LabelGAP, NodeLabelGAP
from gapgnn.cli.main import main
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import join_edge_types
from gapgnn.graph.transforms import with_absent
from gapgnn.methods import NeighborVote
from gapgnn.methods.label_gap.codes import class_scores, mean_codes
from gapgnn.methods.label_gap.node_votes import SHARPNESS, Votes
from gapgnn.privacy import PrivateSession, SessionOptions, auto_delta, observed_by
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.ledger import People
from gapgnn.rng import NoiseKey

NODE = {"epochs": 1, "batch_size": 60, "epsilon": 8.0}


class Observer:
    """Lists the releases of a run."""

    def __init__(self) -> None:
        self.seen = []

    def begin(self, *args, **options):
        pass

    def release(self, release, output):
        self.seen.append(release)
        return torch.full_like(output, 1e4) if release.name == "mean out-degree" else output

    def batch(self, phase, batch, members):
        return batch


def observed(model, graph):
    observer = Observer()
    with observed_by(observer):
        model.fit(graph)
    return {release.name: release for release in observer.seen}


class TestPeople:
    @pytest.mark.parametrize("stranger", STRANGERS)
    def test_whoever_is_named_in_the_second_type_alone_is_charged(self, ledger, stranger):
        graph = unlike_types(directed=True, strangers=True)
        assert stranger in People.of(graph).ids
        terms = {"level": "node", "relation": "add-remove", "epsilon": 0.5, "delta": 1e-3}
        ledger.grant("strangers", People.listed(np.array([stranger])), **terms)
        with pytest.raises(PrivacyError, match="strangers"):
            NodeLabelGAP(**NODE, ledger=ledger.path).fit(graph)
        assert not ledger.entries()

    def test_a_look_at_tables_asks_for_those_that_the_second_one_names(
        self, ledger, tmp_path, monkeypatch
    ):
        (tmp_path / "people.csv").write_text(
            "id,age,team\n" + "".join(f"{k},{k % 7},{'ab'[k % 2]}\n" for k in range(40))
        )
        for name, last in (("calls", "5"), ("visits", "777")):
            lines = [f"{k},{(k + 1) % 40}" for k in range(40)] + [f"3,{last}"]
            (tmp_path / f"{name}.csv").write_text("\n".join(["a,b", *lines]) + "\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
        terms = {"level": "edge", "relation": "undirected", "epsilon": 0.5, "delta": 1e-3}
        ledger.grant("strangers", People.listed(np.array([777])), **terms)
        tables = "--edges calls.csv --edges visits.csv --nodes people.csv --label team --undirected"
        command = f"audit pipeline --neighbours hub train gap {tables} --epochs 1"
        with pytest.raises(PrivacyError, match="strangers"):
            main(command.split())


class TestNotion:
    def test_strict_is_refused_where_only_lists_of_the_second_type_are_cut(self, ledger):
        graph = unlike_types(directed=True)
        options = {**NODE, "level": "node", "hops": 1, "ledger": ledger.path}
        with pytest.raises(PrivacyError, match="some are longer than 5"):
            GAP(**options, max_degree=5, notion="strict").fit(graph)
        assert not ledger.entries()
        long_enough = GAP(**options, max_degree=MANY, notion="strict").fit(graph)
        assert long_enough.card_.node_notion == "strict"

    def test_the_card_claims_no_strict_notion_where_they_are_cut(self, ledger):
        graph = unlike_types(directed=True)
        options = {**NODE, "level": "node", "hops": 1, "ledger": ledger.path}
        assert GAP(**options, max_degree=5).fit(graph).card_.node_notion == "own record"


class TestDelta:
    @pytest.mark.parametrize("directed", [False, True])
    def test_auto_counts_the_edges_of_all_types(self, ledger, directed):
        graph = unlike_types(directed=directed)
        first = graph.num_arcs if directed else graph.num_edges
        every = NUM_NODES * (1 + MANY)
        assert auto_delta(first) > auto_delta(every)
        card = LabelGAP(epochs=1, hops=1, ledger=ledger.path).fit(graph).card_
        assert card.delta == auto_delta(every)

    def test_a_stated_delta_is_compared_with_all_types(self, ledger):
        # Small enough for the first type alone.
        options = {"epochs": 1, "hops": 1, "delta": 5e-4, "ledger": ledger.path}
        first, every = (
            LabelGAP(**options).fit(graph).card_
            for graph in (unlike_types()._replace(more_edge_types=()), unlike_types())
        )
        assert not any("delta" in line for line in first.warnings)
        assert any("delta" in line for line in every.warnings)


class TestAmounts:
    def test_the_card_covers_and_names_amounts_of_the_second_type_alone(self, ledger):
        graph = unlike_types(weighted=True)
        card = GAP(epochs=1, hops=1, ledger=ledger.path).fit(graph).card_
        assert any("The amount of an edge" in line for line in card.covered)
        assert [what for what, _ in card.public if "amounts" in what] == [
            "bounds of the amounts of visits"
        ]
        plain = GAP(epochs=1, hops=1, ledger=ledger.path).fit(unlike_types()).card_
        assert not any("amount" in line for line in plain.covered)


class TestRefusals:
    @pytest.mark.parametrize("own", ["record"])
    def test_a_list_of_the_second_type_that_names_somebody_without_a_row(self, ledger, own):
        graph = unlike_types(directed=True, strangers=True)
        with pytest.raises(PrivacyError, match="Got 4 entries"):
            NodeLabelGAP(**NODE, own=own, hop_share=0.5, ledger=ledger.path).fit(graph)
        assert not ledger.entries()

    def test_amounts_of_the_second_type(self, ledger):
        graph = unlike_types(directed=True, weighted=True)
        with pytest.raises(PrivacyError, match="no amounts"):
            NodeLabelGAP(**NODE, hop_share=0.5, ledger=ledger.path).fit(graph)
        assert not ledger.entries()

    @pytest.mark.parametrize("method", [GraphSAGE, NeighborVote])
    def test_methods_of_one_type(self, ledger, method):
        for graph in (unlike_types(), unlike_types(weighted=True)):
            with pytest.raises(InputError, match=r"calls, visits|weights"):
                method(epochs=1, ledger=ledger.path).fit(graph)
        assert not ledger.entries()

    def test_bounds_of_the_second_type_must_be_those_of_training(self, ledger):
        model = LabelGAP(epochs=1, hops=1, ledger=ledger.path).fit(unlike_types())
        with pytest.raises(InputError, match=r"bounds of training, none\. Got 1 to 9"):
            model.predict(unlike_types(weighted=True))


class TestPrice:
    @pytest.mark.parametrize(
        "model",
        [
            GAP(level="node", hops=2, max_degree=4, batch_size=60),
            LabelGAP(level="edge", hops=2, edge_types="each"),
            LabelGAP(level="edge", hops=2),
        ],
        ids=["node level", "an edge of each type", "the union beside the types"],
    )
    def test_a_session_refuses_hops_of_which_one_type_alone_is_paid_for(self, model, ledger):
        graph = unlike_types()
        plan = model.plan_for(graph)
        events = [
            replace(event, count=2) if isinstance(event, Gaussian) else event
            for event in plan.promise.events
        ]
        assert events != list(plan.promise.events)
        less = replace(plan, guarantee=replace(plan.promise, events=tuple(events)))
        options = SessionOptions([NoiseKey.fresh()], ledger=ledger.path)
        with pytest.raises(PrivacyError, match="must be paid for"):
            PrivateSession(less, graph, options).open()
        assert not ledger.entries()


class TestRows:
    def test_whoever_stands_in_lists_of_the_second_type_alone_has_a_released_row(self, ledger):
        graph = unlike_types(directed=True, strangers=True)
        assert set(STRANGERS) <= set(with_absent(graph).ids.tolist())
        model = NodeLabelGAP(**NODE, own="features", hop_share=0.5, ledger=ledger.path)
        found = observed(model, graph)
        sums = [release for name, release in found.items() if name.startswith("hop ")]
        assert {len(release.value) for release in sums} == {NUM_NODES + len(STRANGERS)}
        along = {release.name.rpartition(" along ")[2] for release in sums}
        assert along == {"calls", "visits"}

    def test_no_row_is_kept_of_whoever_has_no_record(self, ledger):
        """Which other ids occur in lists is not public: neither of the training, nor later."""
        options = {**NODE, "hop_share": 0.5, "ledger": ledger.path}
        first, second = (unlike_types(directed=True, strangers=some) for some in (True, False))
        for trained, asked in ((first, second), (second, first)):
            model = NodeLabelGAP(**options).fit(trained)
            model.predict_proba(asked)
            releases = list(model.releases_.hops.values())
            assert len(releases) == 2
            assert {len(hop) for one in releases for hop in one.hops} == {NUM_NODES}
            # Each hop has the noise that the networks were trained on, and is charged with it.
            noise = {
                event.label: event.noise_multiplier
                for event in model.plan_.promise.events
                if isinstance(event, Gaussian)
            }
            charged = [event["noise_multiplier"] for event in model.card_.releases[1].events]
            assert charged == list(noise.values())
            assert charged[0] > charged[1]

    def test_the_mean_out_degree_counts_lists_of_all_types(self, ledger):
        graph = unlike_types(directed=True, strangers=True)
        model = NodeLabelGAP(**NODE, ledger=ledger.path)
        (value,) = observed(model, graph)["mean out-degree"].value
        lengths = np.full(NUM_NODES, 1 + MANY)
        lengths[[3, 8]] += 2
        exact = np.log2(1 + lengths[graph.train_mask]).sum()
        assert float(value) == pytest.approx(exact, abs=1e-2)
        assert not math.isclose(exact, np.log2(2) * graph.train_mask.sum())

    def test_whoever_has_lists_of_the_second_type_alone_sends_in_the_second_hop(self, ledger):
        graph = unlike_types(directed=True)
        nothing = with_arcs(graph, np.zeros(graph.num_arcs, dtype=bool), directed=True)
        alone = join_edge_types({"calls": nothing, "visits": graph.more_edge_types[0]})
        found = observed(NodeLabelGAP(**NODE, own="features", ledger=ledger.path), alone)
        (second,) = (one for name, one in found.items() if name.startswith("hop 4"))
        assert np.abs(second.value).sum() > 1

    def test_the_second_hop_reads_of_each_type_the_lists_of_that_type(self):
        graph = unlike_types(directed=True)
        sends = torch.tensor(graph.train_mask).unsqueeze(0)
        votes = Votes(graph, NUM_NODES, 3, "features", sends, 1.0)
        rows = torch.randn(1, NUM_NODES, 4, generator=torch.Generator().manual_seed(0))
        codes, sums = votes._codes, []
        for one_type, own in zip(graph.edge_types, rows[0].double().chunk(2, dim=-1), strict=True):
            listed = torch.from_numpy(one_type.adjacency() @ own.numpy())
            sums.append(listed / torch.tensor(one_type.out_degrees).sqrt().unsqueeze(-1))
        both = (sums[0] + sums[1]).float() / math.sqrt(2)
        wanted = mean_codes(SHARPNESS * class_scores(both, codes), codes)
        others = ~graph.train_mask
        for found in votes._guesses(rows):
            torch.testing.assert_close(found[0][others], wanted[others], atol=1e-4, rtol=0)


class TestFingerprint:
    """By it the ledger, a checkpoint and a folder know which graph a charge was for."""

    def test_another_edge_weight_or_name_of_any_type_is_another_graph(self):
        weighted = unlike_types(directed=True, weighted=True, strangers=True)
        calls, visits = weighted._replace(more_edge_types=()), weighted.more_edge_types[0]
        types = {"calls": calls, "mails": calls, "visits": visits}
        first = join_edge_types(types)
        plain = unlike_types(directed=True, strangers=True).more_edge_types[0]
        fewer = unlike_types(directed=True, weighted=True).more_edge_types[0]
        for name in types:
            less = with_arcs(calls, np.arange(calls.num_arcs) > 0, directed=True)
            others = [less] if name != "visits" else [plain, fewer]
            for other in others:
                changed = join_edge_types({**types, name: other})
                assert changed.fingerprint != first.fingerprint
        renamed = join_edge_types({"calls": calls, "notes": calls, "visits": visits})
        assert renamed.fingerprint != first.fingerprint
        assert join_edge_types(types).fingerprint == first.fingerprint
