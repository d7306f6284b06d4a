"""From table to released rows: nothing that `embed` writes distinguishes neighbouring files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pipelinecases import audit, findings, split_by_type, tables, weighed

from gapgnn import PrivateHops
from gapgnn.methods import private_hops
from gapgnn.privacy import session as session_module
from gapgnn.privacy.session import PrivateSession

EMBED = "embed --epsilon 4"
FEW = ["first", "huge", "lists-everybody", "dangling"]


def some_or_all(pairs):
    """Some neighbours by default, all of them in the slow tests."""
    every = pytest.param(None, marks=pytest.mark.slow)
    return pytest.mark.parametrize("pairs", [pairs, every], ids=["few", "all"])


def holds(*args, **options):
    outcomes = audit(*args, **options)
    assert findings(outcomes) == []
    assert any(outcome.releases for outcome in outcomes)


class TestEmbed:
    @some_or_all(["hub", "added"])
    @pytest.mark.parametrize(
        ("relation", "directed"),
        [
            ("undirected", False),
            ("5-arcs", True),
            pytest.param("directed", True, marks=pytest.mark.slow),
            pytest.param("5-edges", False, marks=pytest.mark.slow),
        ],
    )
    def test_edge_level(self, relation, directed, pairs):
        given = tables(directed=directed, schema=None)
        holds(f"{EMBED} --format parquet", "edge", relation, given, pairs)

    @some_or_all(FEW)
    @pytest.mark.parametrize(
        "relation", ["add-remove", pytest.param("replace", marks=pytest.mark.slow)]
    )
    def test_node_level(self, relation, pairs):
        holds(f"{EMBED} --format parquet", "node", relation, None, pairs)

    @some_or_all(["hub", "other-type"])
    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_weighted_edges_of_several_types(self, level, pairs):
        if level == "node":
            pairs = pairs and ["hub"]
        relation = "undirected" if level == "edge" else "add-remove"
        given = split_by_type(weighed(tables(schema=None) if level == "edge" else tables()))
        holds(EMBED, level, relation, given, pairs)

    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_a_store_and_a_resumed_run(self, level):
        relation = "undirected" if level == "edge" else "add-remove"
        given = tables(schema=None) if level == "edge" else tables()
        holds(EMBED, level, relation, given, ["hub"], parts=3, interrupt_after=1)


class TestPlantedLeaks:
    """What a careless change could let out: found, and named."""

    def test_rows_that_follow_the_order_of_the_table(self, monkeypatch):
        real = PrivateHops._read

        def ranked(self, data, x):
            graph, rows = real(self, data, x)
            # Signs by place: everybody behind a person who leaves has another one.
            signs = 1 - 2 * (torch.arange(len(rows)) % 2)
            return graph, rows * signs.unsqueeze(1)

        monkeypatch.setattr(PrivateHops, "_read", ranked)
        found = findings(audit(EMBED, "node", "add-remove", None, ["first"]))
        assert any("hop 1: moved by" in text for text in found)

    def test_rows_centred_by_the_table(self, monkeypatch):
        class Centred(private_hops.FeatureInputs):
            def dense(self):
                rows = super().dense()
                return rows - rows.max(0).values

        monkeypatch.setattr(private_hops, "FeatureInputs", Centred)
        pairs = ["unseen", "huge", "rare-class"]
        found = findings(audit(EMBED, "node", "replace", tables(matrix=True), pairs))
        assert any("hop 1: moved by" in text for text in found)

    def test_hop_zero_in_the_folder_at_node_level(self, monkeypatch):
        real = PrivateHops._released

        def leaking(self, session, graph, rows):
            hops = real(self, session, graph, rows)
            ((release, known),) = self.releases_.hops.items()
            sums = torch.tensor(graph.adjacency().T @ rows.double().numpy()).float()
            self.releases_.hops[release] = replace(known, hops=(sums, *known.hops))
            return hops

        monkeypatch.setattr(PrivateHops, "_released", leaking)
        found = findings(audit(f"{EMBED} --format parquet", "node", "add-remove", None, ["hub"]))
        assert any("hop0: the rows of others differ" in text for text in found)
        assert any(".parquet: the rows of others differ" in text for text in found)

    def test_a_hop_more_than_was_charged(self, monkeypatch):
        real = PrivateHops._released

        def greedy(self, session, graph, rows):
            session._made.clear()
            session.release(private_hops.HOPS, rows)
            session._made.clear()
            return real(self, session, graph, rows)

        monkeypatch.setattr(PrivateHops, "_released", greedy)
        given = tables(schema=None)
        found = findings(audit(f"{EMBED} --hops 1", "edge", "undirected", given, ["hub"]))
        assert any("charged for 1" in text for text in found)

    def test_half_the_noise(self, monkeypatch):
        real = session_module.hop_mechanisms

        def quieter(graph, *, noise_multiplier, **options):
            return real(graph, noise_multiplier=noise_multiplier / 2, **options)

        monkeypatch.setattr(session_module, "hop_mechanisms", quieter)
        given = tables(schema=None)
        found = findings(audit(EMBED, "edge", "undirected", given, ["hub"]))
        assert any("is of no charged event" in text for text in found)

    def test_a_hop_that_forgets_to_cut_lists(self, monkeypatch):
        real = PrivateSession._aggregations

        def whole(self, plan, name, *rest):
            hops = replace(plan.hops[name], max_degree=10**6)
            found = real(self, replace(plan, hops={name: hops}), name, *rest)
            for one in found:
                one.sensitivity = 3**0.5
            return found

        monkeypatch.setattr(PrivateSession, "_aggregations", whole)
        found = findings(audit(EMBED, "node", "add-remove", None, ["lists-everybody"]))
        assert any("hop 1: moved by" in text for text in found)
