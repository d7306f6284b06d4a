"""From table to folder: everything that leaves is equal on neighbouring files."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
import torch
from pipelinecases import (
    LABEL_ONLY,
    audit,
    findings,
    split_by_type,
    tables,
    weighed,
    with_dates,
    with_strangers,
)

from gapgnn import GAP, Ledger, NodeLabelGAP
from gapgnn.audits import pipeline
from gapgnn.audits.neighbours import (
    EDGE_PAIRS,
    NODE_PAIRS,
    edge_neighbours,
    node_neighbours,
)
from gapgnn.cli.main import main
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import WeightBounds, csr, transforms
from gapgnn.graph.degree import BoundedAdjacency
from gapgnn.graph.tables import columns
from gapgnn.graph.tables import read as read_module
from gapgnn.methods import estimator as estimator_module
from gapgnn.methods.label_gap import edge_level, node_level
from gapgnn.methods.label_gap.node_votes import Votes
from gapgnn.methods.mlp import MLP
from gapgnn.privacy import (
    AddRemove,
    Directed,
    Neighbors,
    OutDegreeNormalized,
    Symmetrized,
    Undirected,
    UnionOfTypes,
    parse_relation,
)
from gapgnn.privacy import guarantee as guarantee_module
from gapgnn.privacy import plan as plan_module
from gapgnn.privacy import session as session_module
from gapgnn.privacy.checkpoint import Checkpoint
from gapgnn.privacy.mechanisms import PrivateAggregation, backends
from gapgnn.privacy.plan import PlannedHops
from gapgnn.privacy.session import PrivateSession
from gapgnn.training import trainer as trainer_module

FAST = "--epochs 2 --batch-size 30"
# On tables this small lists are too short for the budget, and no hop would be released.
WITH_HOPS = f"train node-label-gap {FAST} --hop-share 0.5"
# The slow tests run every pair type; these find most faults.
STRANGERS = ("dangling",)  # A record with links to people without a row.
WITH_ROWS = [pair_type for pair_type in NODE_PAIRS if pair_type not in STRANGERS]
FEW = ["first", "rare-class", "huge", "not-a-number", "lists-everybody"]


def at_edge_level(pairs):
    """Two hops, of which each further one is a repetition, or in the slow tests the default."""
    return "--epochs 2" if pairs is None else "--epochs 2 --hops 2"


def some_or_all(pairs):
    """Some pairs of neighbours by default, all of them in the slow tests."""
    every = pytest.param(None, marks=pytest.mark.slow)
    return pytest.mark.parametrize("pairs", [pairs, every], ids=["few", "all"])


def crossed(name, other, values, others):
    """Every value with every other; by default each only once, the rest in the slow tests."""
    rows = [
        pytest.param(value, one, marks=[pytest.mark.slow] * (place != k))
        for place, value in enumerate(values)
        for k, one in enumerate(others)
    ]
    return pytest.mark.parametrize((name, other), rows)


def store_or_resumed(interrupt_after):
    """A run from a store that is resumed by default; one that goes through is part of it."""
    resumed, store = {"parts": 3, "interrupt_after": interrupt_after}, {"parts": 3}
    cases = [resumed, pytest.param(store, marks=pytest.mark.slow)]
    return pytest.mark.parametrize("more", cases, ids=["resumed", "store"])


BOTH = (False, True)
PERTURBED = [
    ("arr", "undirected", False),
    ("edgerand", "directed", True),
    ("lapgraph", "undirected", False),
]


def holds(*args, **options):
    outcomes = audit(*args, **options)
    assert findings(outcomes) == []
    assert any(outcome.releases for outcome in outcomes)
    return outcomes


class TestEdgeLevel:
    @some_or_all(["hub", "added"])
    @crossed("relation", "directed", ["undirected", "directed"], BOTH)
    def test_labels(self, relation, directed, pairs):
        given = tables(directed=directed, schema=None)
        outcomes = holds("train label-gap --epochs 3", "edge", relation, given, pairs)
        most = max(outcome.worst.observed / outcome.worst.accounted for outcome in outcomes)
        # An undirected edge is one arc in these directed tables.
        assert most > (0.7 if directed and relation == "undirected" else 0.99)

    @some_or_all(["hub", "added"])
    @pytest.mark.parametrize(
        ("relation", "directed"),
        [
            ("5-edges", False),
            pytest.param("5-edges", True, marks=pytest.mark.slow),
            pytest.param("5-arcs", False, marks=pytest.mark.slow),
            pytest.param("5-arcs", True, marks=pytest.mark.slow),
        ],
    )
    def test_several_links_of_one_person(self, relation, directed, pairs):
        given = tables(directed=directed, schema=None)
        outcomes = holds("train label-gap --epochs 3", "edge", relation, given, pairs)
        assert any("links of" in outcome.who for outcome in outcomes)
        # More than by one link, and less than by five in the worst case.
        most = max(outcome.worst.observed / outcome.worst.accounted for outcome in outcomes)
        assert 0.3 < most <= 1

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["gap", "progap"])
    @pytest.mark.parametrize("relation", ["undirected", "directed"])
    @pytest.mark.parametrize("directed", [False, True])
    def test_gap_and_progap(self, method, relation, directed):
        given = tables(directed=directed, schema=None)
        holds(f"train {method} --epochs 3", "edge", relation, given)

    @some_or_all(["hub", "added"])
    @pytest.mark.parametrize(
        ("perturbation", "relation", "directed"),
        [
            pytest.param(*row, marks=[pytest.mark.slow] * (row not in PERTURBED))
            for row in itertools.product(
                ["arr", "edgerand", "lapgraph"], ["undirected", "directed"], BOTH
            )
        ],
    )
    def test_sage(self, perturbation, relation, directed, pairs):
        words = f"train sage --epochs 2 --perturbation {perturbation}"
        holds(words, "edge", relation, tables(schema=None, directed=directed), pairs)

    @pytest.mark.gate
    @some_or_all(["hub"])
    def test_weights_of_classes(self, pairs):
        words = f"train label-gap {at_edge_level(pairs)} --class-weight balanced"
        given = tables(schema=None)
        # With the features-only model for comparison, as by default on the user's tables.
        holds(words, "edge", "undirected", given, pairs, reference=True)

    @some_or_all(["hub", "added"])
    def test_mlp_releases_nothing(self, pairs):
        outcomes = audit("train mlp --epochs 2", "edge", "undirected", tables(schema=None), pairs)
        assert findings(outcomes) == []
        assert not any(outcome.releases for outcome in outcomes)

    @pytest.mark.gate
    @some_or_all(["hub", "added"])
    @pytest.mark.parametrize("matrix", BOTH, ids=["columns", "labels of a matrix"])
    def test_with_a_schema(self, matrix, pairs):
        words = f"train label-gap {at_edge_level(pairs)}"
        holds(words, "edge", "undirected", tables(matrix=matrix), pairs)

    @pytest.mark.gate
    @some_or_all(["hub", "added"])
    def test_dates_of_a_schema(self, pairs):
        given = with_dates(tables())
        holds("train gap --epochs 2", "edge", "undirected", given, pairs)

    @pytest.mark.gate
    @some_or_all(["first", "last", "added"])
    @crossed("dangling", "directed", ["drop", "keep"], BOTH)
    def test_links_that_name_somebody_without_a_row(self, dangling, directed, pairs):
        """The first and the last link have an end without a row; removing one changes nothing."""
        given = with_strangers(tables(schema=None, directed=directed))
        words = f"train label-gap {at_edge_level(pairs)} --dangling {dangling}"
        holds(words, "edge", "directed" if directed else "undirected", given, pairs)

    @pytest.mark.slow
    @pytest.mark.parametrize("dangling", ["drop", "keep"])
    def test_strangers_in_sage_and_dates_in_a_store(self, dangling):
        given = with_strangers(with_dates(tables()))
        words = f"--epochs 2 --dangling {dangling}"
        holds(f"train sage {words}", "edge", "undirected", given)
        # `--dangling` belongs to the command that reads the tables, which is `partition`.
        given = with_dates(tables())
        holds("train label-gap --epochs 2", "edge", "undirected", given, parts=3)

    @pytest.mark.gate
    @some_or_all(["hub", "added"])
    def test_repeats(self, pairs):
        given = tables(schema=None)
        words = f"train label-gap {at_edge_level(pairs)} --repeats 2"
        holds(words, "edge", "undirected", given, pairs)

    @store_or_resumed(2)
    def test_a_store_and_a_resumed_run(self, more):
        given = tables(schema=None)
        holds("train label-gap --epochs 2", "edge", "undirected", given, ["hub", "added"], **more)


class TestNodeLevel:
    @some_or_all(FEW)
    @crossed("relation", "directed", ["add-remove", "replace"], BOTH)
    def test_gap(self, relation, directed, pairs):
        given = tables(directed=directed)
        outcomes = holds(f"train gap {FAST} --epsilon 4", "node", relation, given, pairs)
        assert {outcome.pair_type for outcome in outcomes} >= set(pairs or NODE_PAIRS)

    @pytest.mark.slow
    @pytest.mark.parametrize("relation", ["add-remove", "replace"])
    @pytest.mark.parametrize("directed", [False, True])
    def test_progap(self, relation, directed):
        holds(f"train progap {FAST}", "node", relation, tables(directed=directed))

    @pytest.mark.gate
    @some_or_all(["first", "huge", "not-a-number"])
    @pytest.mark.parametrize("matrix", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_features_from_columns_or_a_matrix(self, matrix, pairs):
        given = tables(matrix=matrix, directed=True)
        holds(f"train gap {FAST}", "node", "add-remove", given, pairs)

    @pytest.mark.gate
    @some_or_all(["first", "huge", "unseen"])
    @crossed("relation", "directed", ["add-remove", "replace"], BOTH)
    def test_dates(self, relation, directed, pairs):
        """A record with any date, or none, is one record; links to missing rows count for D."""
        given = with_strangers(with_dates(tables(directed=directed)))
        holds(f"train gap {FAST}", "node", relation, given, pairs)

    @some_or_all(["first", "rare-class", "huge"])
    @pytest.mark.parametrize(
        ("relation", "matrix"),
        [
            ("add-remove", False),
            *(
                pytest.param(*row, marks=pytest.mark.slow)
                for row in (("add-remove", True), ("replace", False), ("replace", True))
            ),
        ],
    )
    def test_mlp(self, relation, matrix, pairs):
        outcomes = holds(f"train mlp {FAST}", "node", relation, tables(matrix=matrix), pairs)
        # A record of norm above the clip is in every batch: a step moves by a whole clip.
        assert max(one.observed for outcome in outcomes for one in outcome.releases) > 0.9

    @some_or_all(["first", "not-a-number", "lists-everybody"])
    @pytest.mark.parametrize(
        ("matrix", "directed"),
        [
            (True, True),
            *(
                pytest.param(*row, marks=pytest.mark.slow)
                for row in ((False, False), (False, True), (True, False))
            ),
        ],
    )
    def test_sage(self, matrix, directed, pairs):
        given = tables(matrix=matrix, directed=directed)
        holds(f"train sage {FAST}", "node", "add-remove", given, pairs)

    @pytest.mark.gate
    def test_weights_of_classes(self):
        pairs = ["first", "rare-class", "huge"]
        holds(f"train mlp {FAST} --class-weight 1,20,1,1", "node", "add-remove", pairs=pairs)

    @pytest.mark.gate
    @pytest.mark.parametrize(
        ("repeats", "pairs"),
        [
            (2, ["hub", "huge"]),
            pytest.param(3, ["first", "hub", "huge"], marks=pytest.mark.slow),
        ],
    )
    def test_repeats(self, repeats, pairs):
        holds(f"train gap {FAST} --repeats {repeats}", "node", "add-remove", pairs=pairs)

    @some_or_all(["hub", "dangling"])
    @store_or_resumed(2)
    def test_a_store_and_a_resumed_run(self, more, pairs):
        holds(f"train gap {FAST}", "node", "add-remove", pairs=pairs, **more)

    @pytest.mark.gate
    def test_the_edge_between_two_roundings_is_a_public_fact_that_is_reported(self, monkeypatch):
        # Without rounding every count is at such an edge.
        monkeypatch.setattr(plan_module, "public_count", lambda count: count)
        monkeypatch.setattr(pipeline, "public_count", lambda count: count)
        outcomes = holds(f"train mlp {FAST}", "node", "add-remove", pairs=["first", "huge"])
        noted = [text for outcome in outcomes for text in outcome.public]
        assert any("number of training people" in text for text in noted)


class TestOwn:
    """Degree-normalised messages, and predictions that read the node's own record."""

    @some_or_all(FEW)
    @crossed("own", "relation", ["record", "nothing", "features"], ["add-remove", "replace"])
    def test_labels(self, own, relation, pairs):
        words = f"{WITH_HOPS} --epsilon 4 --own {own}"
        outcomes = holds(words, "node", relation, tables(), pairs or WITH_ROWS)
        # Training nodes move the hops of their role, other nodes those of theirs.
        names = {one.name for outcome in outcomes for one in outcome.releases}
        assert ("hop 2" in names) == (own != "record")
        most = max(
            one.observed for outcome in outcomes for one in outcome.releases if one.name == "hop 1"
        )
        assert most > (0.99 if relation == "add-remove" else 1.5)

    @pytest.mark.slow
    @pytest.mark.parametrize("own", ["record", "nothing", "features"])
    @pytest.mark.parametrize("relation", ["add-remove", "replace"])
    def test_directed(self, own, relation):
        words = f"{WITH_HOPS} --own {own}"
        holds(words, "node", relation, tables(directed=True), WITH_ROWS)

    @pytest.mark.parametrize(
        ("own", "pair_type"),
        [
            ("features", "not-training"),
            pytest.param("nothing", "not-training", marks=pytest.mark.slow),
            pytest.param("record", "not-training", marks=pytest.mark.slow),
        ],
    )
    def test_a_node_outside_the_training_set_moves_the_second_hop_only(self, own, pair_type):
        outcomes = holds(f"{WITH_HOPS} --own {own}", "node", "add-remove", pairs=[pair_type])
        moved = {one.name for one in outcomes[0].releases if one.observed > 0}
        assert moved == ({"hop 2"} if own != "record" else set())

    @pytest.mark.gate
    @pytest.mark.parametrize("own", ["record", pytest.param("nothing", marks=pytest.mark.slow)])
    def test_several_edge_types(self, own):
        given = split_by_type(tables())
        pairs = ["hub", "lists-everybody"]
        holds(f"{WITH_HOPS} --own {own}", "node", "add-remove", given, pairs)

    @pytest.mark.slow
    def test_repeats(self):
        words = f"{WITH_HOPS} --own features --repeats 2"
        holds(words, "node", "add-remove", pairs=["hub", "huge", "not-training"])

    @some_or_all(FEW)
    @pytest.mark.parametrize("relation", ["add-remove", "replace"])
    def test_vote(self, relation, pairs):
        """Labels are released by randomised response; a vote reads the node's own neighbours."""
        outcomes = holds(
            "train vote --epsilon 2", "node", relation, pairs=pairs or WITH_ROWS, keeps_rows=True
        )
        names = {one.name for outcome in outcomes for one in outcome.releases}
        assert names == {"labels of repeat 1"}

    @some_or_all(["hub", "added"])
    def test_vote_at_edge_level_releases_nothing(self, pairs):
        outcomes = audit("train vote --epochs 2", "edge", "undirected", tables(schema=None), pairs)
        assert findings(outcomes) == []
        assert not any(outcome.releases for outcome in outcomes)

    @pytest.mark.gate
    # Both hops are one step of the checkpoint: killed inside it, it begins anew.
    @store_or_resumed(3)
    @pytest.mark.parametrize("own", ["record", pytest.param("nothing", marks=pytest.mark.slow)])
    def test_a_store_and_a_resumed_run(self, own, more):
        holds(f"{WITH_HOPS} --own {own}", "node", "add-remove", pairs=["hub"], **more)

    @pytest.mark.gate
    @pytest.mark.parametrize("own", ["features", pytest.param("nothing", marks=pytest.mark.slow)])
    def test_links_to_people_without_a_row(self, own):
        """Their ids in the output would reveal this person's links."""
        holds(f"{WITH_HOPS} --own {own}", "node", "add-remove", pairs=["dangling"])

    @some_or_all(["first", "not-training", "huge"])
    def test_a_noisy_mean_out_degree_decides(self, pairs):
        words = f"train node-label-gap {FAST}"
        outcomes = holds(words, "node", "add-remove", pairs=pairs)
        names = {one.name for outcome in outcomes for one in outcome.releases}
        assert "mean out-degree" in names

    def test_amounts_are_refused_on_all_inputs(self):
        """Otherwise the refusal itself would reveal that a record was removed."""
        words = f"{WITH_HOPS} --own features"
        with pytest.raises(InputError, match="edges must have no amounts"):
            audit(words, "node", "add-remove", weighed(tables()), pairs=["hub"])


OWN = "node-label-gap --hop-share 0.5 --own {}"


@pytest.mark.gate
class TestPrediction:
    @pytest.mark.parametrize(
        ("level", "relation", "pairs", "method"),
        [
            # A mixing weight that noise may set to 0 would leave nothing to release.
            ("edge", "undirected", ["hub", "added"], "label-gap --folds 0"),
            ("edge", "undirected", ["hub"], "gap"),
            ("node", "add-remove", ["rare-class", "lists-everybody"], OWN.format("features")),
            ("node", "add-remove", ["first"], OWN.format("record")),
            ("node", "add-remove", ["first"], "gap"),
            *(
                pytest.param("edge", "undirected", None, method, marks=pytest.mark.slow)
                for method in ("label-gap --folds 0", "gap", "progap")
            ),
            *(
                pytest.param("node", "add-remove", WITH_ROWS, method, marks=pytest.mark.slow)
                for method in (
                    *(OWN.format(own) for own in ("features", "record", "nothing")),
                    *("gap", "progap"),
                )
            ),
        ],
    )
    def test_on_another_graph(self, level, relation, pairs, method, tmp_path, monkeypatch):
        # The model is trained on other people than those predicted.
        given = tables(size=120)
        (tmp_path / "train").mkdir()
        words = given.write(tmp_path / "train")
        monkeypatch.chdir(tmp_path / "train")
        ledger = Ledger.init(tmp_path / "ledger.sqlite").path
        monkeypatch.setenv("GAPGNN_LEDGER", str(ledger))
        out = ["--out", str(tmp_path / "model"), "--level", level]
        assert main(["train", *method.split(), *words, *FAST.split(), *out]) == 0
        other = tables(size=130)
        rename = {name: f"other-{name}" for name in other.ids}
        other = replace(
            other,
            nodes=tuple((rename[row[0]], *row[1:]) for row in other.nodes),
            edges=tuple((rename[a], rename[b]) for a, b in other.edges),
        )
        case = pipeline.Case(
            ("predict", "--device", "cpu"),
            other,
            parse_relation(relation, level),
            max_degree=100,
            model=tmp_path / "model",
            ledger=ledger,
            keeps_rows="record" in method,
        )
        outcomes = pipeline.audit_pipeline(case, main, pair_types=pairs)
        assert findings(outcomes) == []
        assert any(outcome.releases for outcome in outcomes)


@pytest.mark.gate
class TestWeightsAndEdgeTypes:
    """Amounts and several edge tables, from table to folder."""

    @some_or_all(["leaf", "amount-huge", "amount-not-a-number"])
    @crossed("relation", "directed", ["undirected", "directed"], BOTH)
    def test_weights(self, relation, directed, pairs):
        given = weighed(tables(directed=directed, schema=None))
        outcomes = holds(f"train label-gap {at_edge_level(pairs)}", "edge", relation, given, pairs)
        most = max(outcome.worst.observed / outcome.worst.accounted for outcome in outcomes)
        assert 0.3 < most <= 1

    @some_or_all(["leaf", "other-type", "each-type"])
    @pytest.mark.parametrize("method", ["label-gap", pytest.param("gap", marks=pytest.mark.slow)])
    def test_one_edge_of_each_type(self, method, pairs):
        words = f"train {method} {at_edge_level(pairs)} --edge-types each"
        given = split_by_type(tables(schema=None))
        outcomes = holds(words, "edge", "undirected", given, pairs, protects="each")
        moved = {
            outcome.pair_type: sum(one.observed > 0 for one in outcome.releases)
            for outcome in outcomes
        }
        count = len(outcomes[0].releases)
        assert moved["each-type"] == count
        assert moved["other-type"] == moved["leaf"] == count // 2

    @pytest.mark.slow
    @pytest.mark.parametrize("protects", ["each", "any"])
    def test_several_links_of_one_person(self, protects):
        given = split_by_type(weighed(tables(schema=None)))
        words = f"train label-gap --epochs 2 --edge-types {protects}"
        holds(words, "edge", "3-edges", given, protects=protects)

    @pytest.mark.parametrize("method", ["label-gap", "gap"])
    def test_one_edge_of_one_type(self, method):
        """It moves the sum of its edge type and, where one is released, the sum of the union."""
        given = split_by_type(tables(schema=None))
        words = f"train {method} --epochs 2"
        outcomes = holds(words, "edge", "undirected", given, pairs=["leaf", "other-type"])
        for outcome, edge_type in zip(outcomes, ("calls", "visits"), strict=True):
            moved = {one.name.partition(" along ")[2] for one in outcome.releases if one.observed}
            union = {"all edge types"} if method == "label-gap" else set()
            assert moved == {edge_type} | union
        with pytest.raises(InputError, match="neighbours"):
            audit(words, "edge", "undirected", given, pairs=["each-type"])

    @some_or_all(["hub", "huge", "lists-everybody"])
    @crossed("relation", "directed", ["add-remove", "replace"], BOTH)
    def test_node_level(self, relation, directed, pairs):
        given = split_by_type(weighed(tables(directed=directed)))
        holds(f"train gap {FAST}", "node", relation, given, pairs)

    def test_a_store_and_a_resumed_run(self):
        given = split_by_type(weighed(tables(schema=None)))
        options = {"parts": 3, "interrupt_after": 3}
        words = "train label-gap --epochs 2"
        holds(words, "edge", "undirected", given, ["other-type"], **options)
        words, options["protects"] = f"{words} --edge-types each", "each"
        holds(words, "edge", "undirected", given, ["each-type"], **options)

    @some_or_all(["hub", "first"])
    def test_a_window_of_time(self, pairs):
        given = tables(schema=None)
        days = (f"2024-{1 + k % 12:02d}-15" for k in range(len(given.edges)))
        given = replace(
            given,
            edge_columns=(*given.edge_columns, "day"),
            edges=tuple((*row, day) for row, day in zip(given.edges, days, strict=True)),
            edge_words=("--time", "day", "--since", "2024-03-01", "--until", "2024-11-01"),
        )
        holds(f"train label-gap {at_edge_level(pairs)}", "edge", "undirected", given, pairs)

    @some_or_all(["first", "amount-missing", "other-type"])
    @pytest.mark.parametrize(
        ("dangling", "directed"),
        [
            ("drop", False),
            *(
                pytest.param(*row, marks=pytest.mark.slow)
                for row in (("drop", True), ("keep", False), ("keep", True))
            ),
        ],
    )
    def test_links_without_a_row_among_weighted_edge_types(self, dangling, directed, pairs):
        given = split_by_type(with_strangers(weighed(tables(schema=None, directed=directed))))
        words = f"train label-gap {at_edge_level(pairs)} --dangling {dangling}"
        holds(words, "edge", "directed" if directed else "undirected", given, pairs)

    def test_the_command_line_of_an_audit(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        words = split_by_type(weighed(tables(schema=None))).write(tmp_path)
        pairs = ["--neighbours", "each-type,amount-huge"]
        command = ["train", "--epochs", "2", "--device", "cpu", "--no-compare", *words]
        assert main(["audit", "pipeline", *pairs, *command, "--edge-types", "each"]) == 0
        assert "holds" in capsys.readouterr().out
        with pytest.raises(InputError, match="neighbours"):
            main(["audit", "pipeline", "--neighbours", "each-type", *command])

    @pytest.mark.parametrize(("leaks", "said"), [(1, "1 finding "), (2, "2 findings ")])
    def test_a_finding_is_exit_1_and_said_in_one_line(
        self, leaks, said, tmp_path, monkeypatch, capsys
    ):
        real = PrivateSession.card

        def telling(self, facts=None):
            made, count = real(self, facts), f"{self.graph.num_edges} edges"
            public = (*made.public, (count, "counted")) if leaks == 2 else made.public
            return replace(made, warnings=(*made.warnings, count), public=public)

        monkeypatch.setattr(PrivateSession, "card", telling)
        monkeypatch.chdir(tmp_path)
        words = tables(schema=None).write(tmp_path)
        command = ["train", "mlp", "--level", "edge", "--epochs", "1", "--no-compare", *words]
        assert main(["audit", "pipeline", "--neighbours", "hub", *command]) == 1
        out, err = capsys.readouterr()
        assert said in " ".join(out.split())
        assert f"violated: {said}distinguish{'es' * (leaks == 1)} neighbouring inputs." in err

    def test_options_of_tables_are_passed_to_the_store(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        words = with_strangers(tables(schema=None)).write(tmp_path)
        audited = ["audit", "pipeline", "--parts", "3", "--neighbours", "first"]
        command = ["train", "--epochs", "2", "--device", "cpu", "--no-compare", *words]
        assert main([*audited, *command, "--dangling", "drop", "--drop=city"]) == 0
        assert "holds" in capsys.readouterr().out
        with pytest.raises(InputError, match="unknown ids"):
            main([*audited, *command])


@pytest.mark.gate
class TestPlantedLeaks:
    """The leaks of the first release, and similar ones, are found and named."""

    def test_dropout_masks_by_place_in_the_batch(self, monkeypatch):
        real = MLP.networks
        monkeypatch.setattr(
            MLP,
            "networks",
            lambda self, settings, shape: real(self, replace(settings, dropout=0.3), shape),
        )
        found = findings(
            audit(f"train mlp {FAST}", "node", "add-remove", pairs=["first", "middle"])
        )
        assert any("classifier step" in text and "moved by" in text for text in found)

    def test_dropout_in_gap(self, monkeypatch):
        real = GAP.networks

        def networks(self, settings, shape):
            masked = copy.copy(self)
            masked.dropout = 0.3
            return real(masked, settings, shape)

        monkeypatch.setattr(GAP, "networks", networks)
        found = findings(audit(f"train gap {FAST}", "node", "add-remove", pairs=["first"]))
        assert any("classifier step" in text and "moved by" in text for text in found)

    def test_roles_by_permutation_of_positions(self, monkeypatch):
        def by_position(ids, *, seed, train, val, purpose="split"):
            order = np.random.default_rng(seed).permutation(len(ids)) / len(ids)
            return np.where(order < train, 0, np.where(order < train + val, 1, 2)).astype(np.int8)

        monkeypatch.setattr(transforms, "roles", by_position)
        found = findings(audit(WITH_HOPS, "node", "add-remove", pairs=["first", "random"]))
        assert any("hop 1: moved by" in text for text in found)
        assert any("train on one of the two inputs only" in text for text in found)

    def test_one_record_that_stops_the_run(self, monkeypatch):
        real = PrivateAggregation._checked_batch

        def strict(self, rows):
            if not bool(torch.isfinite(rows).all()):
                raise PrivacyError("`rows` must be finite. Got NaN or infinity.")
            return real(self, rows)

        monkeypatch.setattr(PrivateAggregation, "_checked_batch", strict)
        words = f"train gap {FAST}"
        found = findings(audit(words, "node", "add-remove", tables(matrix=True), pairs=["huge"]))
        assert any("exit status: 2 and 0; `rows` must be finite" in text for text in found)

    def test_a_vocabulary_learned_from_the_table(self, monkeypatch):
        monkeypatch.setattr(estimator_module, "check_declared", lambda graph: None)
        monkeypatch.setattr(session_module, "check_declared", lambda graph: None)
        monkeypatch.setattr("gapgnn.cli.data._check_node_level", lambda *args: None)
        words = f"train mlp {FAST} --drop age"
        found = findings(audit(words, "node", "add-remove", tables(schema=None), pairs=["unseen"]))
        assert any("config.json" in text and "num_features" in text for text in found)
        assert any("HIV clinic" in text for text in found)

    def test_bounds_of_dates_that_follow_the_table(self, monkeypatch):
        real = columns.days_of

        def from_the_first(cells, format):
            days = real(cells, format)
            return days - np.nanmin(days) + date(2010, 1, 1).toordinal()

        monkeypatch.setattr(columns, "days_of", from_the_first)
        given = with_dates(tables())
        # The first training person has the earliest date.
        days = ["01.01.1990" if k < 2 else f"01.01.{2012 + k % 10}" for k in range(150)]
        rows = tuple((*row[:-1], day) for row, day in zip(given.nodes, days, strict=True))
        given = replace(given, nodes=rows[1:])
        words = f"train gap {FAST}"
        outcomes = audit(words, "node", "add-remove", given, pairs=["first"])
        assert rows[1][0] in outcomes[0].who
        assert any("moved by" in text for text in findings(outcomes))

    def test_links_to_strangers_that_are_dropped_at_node_level(self, monkeypatch):
        """Removing a person would then also change the links of others."""
        monkeypatch.setattr(estimator_module, "check_declared", lambda graph: None)
        monkeypatch.setattr(session_module, "check_declared", lambda graph: None)
        monkeypatch.setattr("gapgnn.cli.data._check_node_level", lambda *args: None)
        given = tables(directed=True)
        # Everybody is linked to the first training person.
        known = tuple((one, given.ids[1]) for one in given.ids if one != given.ids[1])
        given = replace(given, edges=(*given.edges, *known))
        words = f"train gap {FAST} --dangling drop"
        outcomes = audit(words, "node", "add-remove", given, pairs=["first"])
        assert given.ids[1] in outcomes[0].who
        assert any("moved by" in text for text in findings(outcomes))

    def test_direction_inferred_from_the_links(self, monkeypatch):
        given = tables(schema=None, directed=True)
        both = given.edges + tuple((b, a) for a, b in given.edges)
        given = replace(given, edges=tuple(dict.fromkeys(both)))
        real = estimator_module.as_graph

        def inferring(graph, **options):
            graph = real(graph, **options)
            seen = not csr.is_symmetric(graph.indptr, graph.indices)
            return graph._replace(is_directed=seen)

        monkeypatch.setattr(estimator_module, "as_graph", inferring)
        # Symmetrised, one arc would need as much noise as an undirected edge.
        words = "train label-gap --epochs 2 --directions along --level edge --no-compare"
        case = pipeline.Case((*words.split(), "--device", "cpu"), given, Directed())
        found = findings(pipeline.audit_pipeline(case, main, pair_types=["first"]))
        assert any("hop 1: its scale is" in text for text in found)
        assert any("card.json: relation is" in text for text in found)

    def test_symmetrised_messages_charged_as_directed_ones(self, monkeypatch):
        given = tables(schema=None, directed=True)
        words = "train label-gap --epochs 2", "edge", "directed", given, ["hub", "first"]
        assert findings(audit(*words)) == []
        monkeypatch.setattr(Symmetrized, "bound", staticmethod(Neighbors.bound))
        found = findings(audit(*words))
        assert any("hop 1" in text and "moved by" in text for text in found)

    def test_messages_scaled_by_in_degrees(self, monkeypatch):
        real = PrivateAggregation.hop

        def by_popularity(self, rows, index, **options):
            counts = np.bincount(self.graph.indices, minlength=self.graph.num_nodes)
            return real(self, rows / torch.tensor(1.0 + counts).float().unsqueeze(-1), index)

        monkeypatch.setattr(PrivateAggregation, "hop", by_popularity)
        found = findings(
            audit(
                f"train gap {FAST}",
                "node",
                "add-remove",
                tables(directed=True),
                pairs=["lists-everybody"],
            )
        )
        assert any("hop 1: moved by" in text for text in found)

    @pytest.mark.parametrize("own", ["record", pytest.param("nothing", marks=pytest.mark.slow)])
    def test_messages_normalised_by_in_degrees(self, monkeypatch, own):
        def listed(self):
            counts = np.bincount(self.graph.indices, minlength=self.graph.num_nodes)
            return counts + int(self.to_self)

        stopped = f"{WITH_HOPS} --own {own}", "node", "add-remove", tables(directed=True)
        monkeypatch.setattr(OutDegreeNormalized, "copies", property(listed))
        found = findings(audit(*stopped, pairs=["lists-everybody"]))
        assert any("hop 1: moved by" in text for text in found)

    def test_removed_records_without_a_row(self, monkeypatch):
        """In-neighbours of that person would read one row fewer, and send another message."""
        monkeypatch.setattr(node_level, "with_absent", lambda graph: graph)
        words = f"{WITH_HOPS} --epsilon 4"
        found = findings(audit(words, "node", "add-remove", pairs=["hub"]))
        assert any("hop 2: moved by" in text for text in found)

    def test_own_neighbours_that_were_removed_without_a_row(self, monkeypatch):
        """Predictions read the node's own neighbours, and one of them has no row."""
        monkeypatch.setattr(NodeLabelGAP, "check_edges", lambda self, graph: None)
        monkeypatch.setattr(node_level, "with_absent", lambda graph: graph)
        words = f"{WITH_HOPS} --epsilon 4 --own record"
        found = findings(audit(words, "node", "add-remove", pairs=["hub"], keeps_rows=False))
        assert any("classifier step" in text and "moved by" in text for text in found)

    def test_votes_that_depend_on_in_degrees(self, monkeypatch):
        """A person's vote may depend on their own neighbours, not on the links of others."""
        real = Votes._votes_listed

        def by_popularity(self, listed):
            counts = np.bincount(self.graph.indices, minlength=self.graph.num_nodes)
            sign = torch.from_numpy(1.0 - 2.0 * (counts % 2)).float()
            return real(self, listed) * sign.unsqueeze(-1)

        monkeypatch.setattr(Votes, "_votes_listed", by_popularity)
        words = f"{WITH_HOPS} --epsilon 4 --own record"
        given = tables(directed=True)
        found = findings(audit(words, "node", "add-remove", given, pairs=["lists-everybody"]))
        assert any("classifier step" in text and "moved by" in text for text in found)

    @pytest.mark.parametrize("own", ["features", pytest.param("nothing", marks=pytest.mark.slow)])
    def test_a_second_hop_that_includes_training_nodes(self, monkeypatch, own):
        """Each hop moves by at most its sensitivity; together by more than one role was charged."""
        real = Votes._guesses

        def by_everybody(self, released):
            nobody = replace(self, sends_label=torch.zeros_like(self.sends_label))
            return real(nobody, released)

        monkeypatch.setattr(Votes, "_guesses", by_everybody)
        words = f"{WITH_HOPS} --epsilon 4 --own {own}"
        found = findings(audit(words, "node", "add-remove", pairs=["first"]))
        assert len(found) == 1
        assert "all hops: moved by" in found[0]
        assert found[0].endswith("charged for 1")

    def test_amounts_scaled_by_the_largest_one(self, monkeypatch):
        real = read_module.read_edges

        def by_largest(table, index, *, columns, **options):
            arcs = real(table, index, columns=columns, **options)
            high = float(np.nanmax(arcs.amounts))
            object.__setattr__(columns, "bounds", WeightBounds(0.0, high))
            return arcs

        monkeypatch.setattr(read_module, "read_edges", by_largest)
        given = weighed(tables(schema=None))
        found = findings(
            audit(
                "train label-gap --epochs 2 --hops 2",
                "edge",
                "undirected",
                given,
                pairs=["amount-huge"],
            )
        )
        assert any("hop 1: moved by" in text for text in found)
        assert any("card.json: public" in text for text in found)

    def test_weights_above_1(self, monkeypatch):
        real = backends.in_lists

        def heavy(arcs):
            indptr, indices, weights = real(arcs)
            return indptr, indices, 4 * weights

        monkeypatch.setattr(backends, "in_lists", heavy)
        given = weighed(tables(schema=None))
        words = "train label-gap --epochs 2 --hops 2"
        stopped = words, "edge", "undirected", given, ["leaf"]
        with pytest.raises(InputError, match="`weights` must be between 0 and 1"):
            audit(*stopped)
        monkeypatch.setattr("gapgnn.privacy.mechanisms.sums.check_weights", lambda weights: None)
        assert any("hop 1: moved by" in text for text in findings(audit(*stopped)))

    def test_one_edge_of_each_type_charged_as_one_of_any(self, monkeypatch):
        real = GAP.plan

        def of_any(self, facts):
            plan = real(self, facts)
            (hops,) = plan.template
            return replace(plan, template=(replace(hops, count=self.hops),))

        monkeypatch.setattr(GAP, "plan", of_any)
        monkeypatch.setattr(PrivateSession, "_check_paid", lambda self: None)
        given = split_by_type(tables(schema=None))
        words = "train gap --epochs 2 --edge-types each"
        options = {"given": given, "protects": "each"}
        found = findings(audit(words, "edge", "undirected", pairs=["each-type"], **options))
        assert len(found) == 2
        assert "all hops: moved by" in found[0]
        assert found[0].endswith("charged for 2")
        assert "all releases: cost epsilon" in found[1]
        assert findings(audit(words, "edge", "undirected", pairs=["other-type"], **options)) == []

    def test_arcs_of_several_types_that_meet_in_one_row_of_the_union(self, monkeypatch):
        """The union moves by sqrt(k min(k, M)) under `k-arcs`, and its event covers sqrt(k)."""
        given = split_by_type(tables(schema=None, directed=True))
        words = "train label-gap --epochs 2 --hops 2"
        case = (words, "edge", "5-arcs", given, ["shared-ends"])
        (outcome,) = audit(*case)
        assert outcome.findings == ()
        assert {one.name.partition(" along ")[2] for one in outcome.releases} == {"calls", "visits"}
        monkeypatch.setattr(edge_level, "releases_union", lambda num_types, **_: num_types > 1)
        monkeypatch.setattr(
            UnionOfTypes, "sensitivity", lambda self, relation: self.types[0].sensitivity(relation)
        )
        found = findings(audit(*case))
        assert any("along all edge types: moved by" in text for text in found), found
        assert any("all releases: cost epsilon" in text for text in found), found

    def test_a_hop_that_is_drawn_again_after_a_kill(self, monkeypatch):
        """The run is charged for one draw, and the first one was kept."""
        options = {"parts": 3, "interrupt_after": 2, "pairs": ["hub"]}
        words = "train label-gap --epochs 2 --hops 2"
        given = tables(schema=None)
        assert findings(audit(words, "edge", "undirected", given, **options)) == []
        monkeypatch.setattr(Checkpoint, "_load", lambda self, name: None)
        found = findings(audit(words, "edge", "undirected", given, **options))
        assert "hub: hop 1: drawn twice under one charge" in found

    def test_a_union_that_is_not_charged(self, monkeypatch):
        monkeypatch.setattr(edge_level, "events_per_hop", lambda *_, **options: 1)
        monkeypatch.setattr(PrivateSession, "_check_paid", lambda self: None)
        given = split_by_type(tables(schema=None))
        words = "train label-gap --epochs 2 --hops 2"
        for pair_type in ("hub", "other-type"):
            found = findings(audit(words, "edge", "undirected", given, pairs=[pair_type]))
            assert len(found) == 2
            assert "all hops: moved by" in found[0]
            assert found[0].endswith("charged for 2")
            assert "all releases: cost epsilon" in found[1]

    def test_a_union_that_adds_one_edge_type_twice(self, monkeypatch):
        real = session_module.hop_mechanisms

        def twice(graph, **options):
            *types, union = real(graph, **options)
            (messages,) = union._messages
            union._messages = [replace(messages, arcs=(*messages.arcs, messages.arcs[-1]))]
            return [*types, union]

        monkeypatch.setattr(session_module, "hop_mechanisms", twice)
        given = split_by_type(tables(schema=None))
        words = "train label-gap --epochs 2 --hops 2"
        found = findings(audit(words, "edge", "undirected", given, pairs=["other-type"]))
        assert any("along all edge types: moved by" in text for text in found)
        assert not any("along visits" in text for text in found)

    def test_adjacency_lists_of_one_edge_type_that_are_not_cut(self, monkeypatch):
        real = backends.bound_out_degrees

        def forgetful(graph, max_degree, key):
            if graph.edge_type == "visits":
                return BoundedAdjacency(graph.indptr, graph.indices, graph.weights)
            return real(graph, max_degree, key)

        monkeypatch.setattr(backends, "bound_out_degrees", forgetful)
        given = split_by_type(tables(directed=True))
        found = findings(
            audit(f"train gap {FAST}", "node", "add-remove", given, pairs=["lists-everybody"])
        )
        assert any("along visits: moved by" in text for text in found)
        assert not any("along calls" in text for text in found)

    def test_a_warning_that_depends_on_one_edge(self, monkeypatch):
        def card(self, facts):
            made = real_card(self, facts)
            warning = f"There are {self.graph.num_edges} links."
            return replace(made, warnings=(*made.warnings, warning))

        real_card = PrivateSession.card
        monkeypatch.setattr(PrivateSession, "card", card)
        given = tables(schema=None)
        found = findings(audit("train mlp --epochs 2", "edge", "undirected", given, pairs=["hub"]))
        assert any("model/card.json: warnings" in text for text in found)

    def test_a_card_that_states_a_hop_where_none_was_released(self, monkeypatch):
        words = f"train node-label-gap {FAST}"
        assert findings(audit(words, "node", "add-remove", pairs=["first"])) == []
        monkeypatch.setattr(NodeLabelGAP, "edges_unread", lambda self: "")
        # The card is made from the transcript, not from the method.
        assert findings(audit(words, "node", "add-remove", pairs=["first"])) == []
        real = session_module.make_card
        hops = PlannedHops(event="hop 1", count=1, is_normalised=True)
        monkeypatch.setattr(
            session_module, "make_card", lambda run, facts: real(replace(run, hops=(hops,)), facts)
        )
        found = findings(audit(words, "node", "add-remove", pairs=["first"]))
        assert any("no hop was released" in text for text in found)

    def test_an_exact_number_of_training_people(self, monkeypatch):
        monkeypatch.setattr(plan_module, "public_count", lambda count: count)
        found = findings(audit(f"train mlp {FAST}", "node", "add-remove", pairs=["first", "last"]))
        assert any("its scale is" in text or "public" in text for text in found)

    def test_a_delta_that_counts_edges_exactly(self, monkeypatch):
        """Delta may follow from the order of magnitude of their number, and from no more."""
        monkeypatch.setattr(guarantee_module, "auto_delta", lambda entities: 0.1 / entities)
        words = "train gap --epochs 1 --hops 1"
        found = findings(audit(words, "edge", "undirected", tables(schema=None), pairs=["hub"]))
        assert any("delta" in text for text in found), found

    @pytest.mark.parametrize("method", ["gap", "sage", "mlp"])
    def test_steps_with_less_noise_than_was_charged(self, monkeypatch, method):
        real = trainer_module.PrivateStep

        def quieter(*args, noise_multiplier, **options):
            return real(*args, noise_multiplier=noise_multiplier / 2, **options)

        monkeypatch.setattr(trainer_module, "PrivateStep", quieter)
        found = findings(audit(f"train {method} {FAST}", "node", "add-remove", pairs=["first"]))
        assert any("is of no charged event" in text for text in found), found


class TestNeighbours:
    @pytest.mark.parametrize("pair_type", EDGE_PAIRS)
    @pytest.mark.parametrize("directed", [False, True])
    def test_two_inputs_of_edge_level_differ_in_one_link(self, pair_type, directed):
        given = tables(directed=directed)
        pair = edge_neighbours(given, pair_type, relation=Undirected())
        assert pair.first.nodes == pair.second.nodes
        links = [{frozenset(row) for row in side.edges} for side in (pair.first, pair.second)]
        assert len(links[0] ^ links[1]) == 1

    @pytest.mark.parametrize("pair_type", NODE_PAIRS)
    @pytest.mark.parametrize("directed", [False, True])
    def test_removing_a_record_leaves_the_links_of_others_unchanged(self, pair_type, directed):
        pair = node_neighbours(tables(directed=directed), pair_type, relation=AddRemove())
        person = pair.person
        assert [row for row in pair.first.nodes if row[0] != person] == list(pair.second.nodes)
        gone = [row for row in pair.first.edges if row not in set(pair.second.edges)]
        assert all(row[0] == person for row in gone) if directed else not gone
        assert any(row[1] == person for row in pair.second.edges) or not any(
            row[1] == person for row in pair.first.edges
        )

    def test_a_removed_record_includes_its_row_of_features(self):
        given = tables(matrix=True)
        pair = node_neighbours(given, "middle", relation=AddRemove())
        place = given.ids.index(pair.person)
        assert (pair.second.features == np.delete(given.features, place, axis=0)).all()


def test_the_report_is_plain_values():
    given = tables(schema=None)
    outcomes = audit("train label-gap --epochs 2", "edge", "undirected", given, pairs=["hub"])
    text = json.loads(json.dumps([outcome.to_dict() for outcome in outcomes]))
    assert [one["name"] for one in text[0]["releases"]] == ["hop 1", "hop 2", "hop 3", "hop 4"]
    assert LABEL_ONLY.startswith("[label]")
