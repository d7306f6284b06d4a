"""`gapgnn simulate` says what an epsilon buys before anybody reads private data."""

from __future__ import annotations

import io
import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pcsv
import pytest
from scipy.stats import norm

from gapgnn.cli.main import main, parser_of
from gapgnn.cli.predict import DATA_OPTIONS
from gapgnn.errors import InputError
from gapgnn.evaluation import FEATURES_ONLY, NOT_PRIVATE, declared_delta, simulate
from gapgnn.graph.datasets import DeclaredGraph
from gapgnn.graph.tables import Schema

pytestmark = pytest.mark.gate

SCHEMA = """\
[label]
column = "risk"
classes = ["low", "high"]
rates = [0.8, 0.2]

[columns.age]
type = "number"
low = 18
high = 90

[columns.opened]
type = "date"
format = "%d.%m.%Y"
low = "2000-01-01"
high = "2026-12-31"

[columns.segment]
type = "category"
values = ["business", "private", "retail"]

[columns.note]
type = "ignore"
"""
SMALL = ("--num-nodes", 240, "--mean-degree", 12)
OPENED: list[str] | None = None


def _note_opened(event: str, arguments: tuple) -> None:
    if OPENED is not None and event in ("open", "sqlite3.connect", "socket.connect"):
        OPENED.append(str(arguments[0]))


# An audit hook stays for good; without a list it does nothing.
sys.addaudithook(_note_opened)


@pytest.fixture
def schema(tmp_path) -> Path:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path / "schema.toml"


def assortativity(graph) -> float:
    """Return Newman's coefficient of the classes."""
    start = np.repeat(graph.labels, np.diff(graph.indptr))
    ends = np.bincount(start) / len(start)
    by_chance = (ends**2).sum()
    return float(((start == graph.labels[graph.indices]).mean() - by_chance) / (1 - by_chance))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Simulate once where a schema and a private table lie: what came out, and what was opened."""
    global OPENED
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "edges.csv").write_text("private\n")
    words = ["simulate", "--like", "schema.toml", *map(str, SMALL), "--epsilon", "8", "--json"]
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.chdir(folder)
        patch.setenv("GAPGNN_LEDGER", str(folder / "ledger.sqlite"))
        OPENED = []
        try:
            assert main([*words, "--no-compare", "--out", "made"]) == 0
            opened = list(OPENED)
        finally:
            OPENED = None
    return folder, json.loads(out.getvalue()), opened


class TestNoPrivateDataIsRead:
    def test_there_is_no_option_for_a_table(self):
        known = set(parser_of("simulate").option_names())
        assert not {f"--{name.replace('_', '-')}" for name in DATA_OPTIONS} & known
        assert "--ledger" not in known

    def test_nothing_but_the_schema_is_opened_and_no_ledger_is_made(self, run):
        folder, found, opened = run
        here = [one for one in opened if one.startswith(str(folder)) or "/" not in one]
        read = {Path(one).name for one in here} - {"people.csv", "edges.csv"}
        assert read == {"schema.toml"}
        # The edges of the folder itself are not those that were written.
        assert not [one for one in here if Path(one) in (Path("edges.csv"), folder / "edges.csv")]
        assert not (folder / "ledger.sqlite").exists()
        assert found["rows"][0]["epsilon"] == 8

    def test_written_tables_are_those_that_were_trained_on(self, run, gapgnn):
        folder, found, _ = run
        assert [Path(name).name for name in found["files"]] == [
            *("people.csv", "edges.csv", "schema.toml")
        ]
        declared = DeclaredGraph(
            num_nodes=240, mean_degree=12, schema=Schema.read(folder / "schema.toml")
        )
        tables = declared.tables()
        again = tables.write(folder / "again")
        for path in again:
            assert path.read_bytes() == (folder / "made" / path.name).read_bytes()
        assert pcsv.read_csv(folder / "made" / "people.csv").num_rows == 240
        words = ["--edges", folder / "made/edges.csv", "--nodes", folder / "made/people.csv"]
        schema = folder / "made" / "schema.toml"
        code, out, err = gapgnn("describe", *words, "--schema", schema, "--json")
        assert code == 0, err
        assert json.loads(out)["arcs"] == tables.graph().num_arcs

    def test_a_folder_with_files_is_not_written_to(self, run, gapgnn):
        folder, _, _ = run
        code, _, err = gapgnn("simulate", "--epsilon", 8, "--out", folder / "made")
        assert (code, err.count("\n")) == (2, 1)
        assert "new or empty folder" in err


class TestDeclarations:
    @pytest.mark.parametrize(
        ("homophily", "noise", "degree"), [(0.5, 0.1, 20), (0.9, 0.0, 30), (0.0, 0.2, 12)]
    )
    def test_are_met_by_what_is_drawn(self, homophily, noise, degree):
        declared = DeclaredGraph(
            num_nodes=4000,
            mean_degree=degree,
            homophily=homophily,
            label_noise=noise,
            labelled=1.0,
            num_classes=3,
        )
        graph = declared.tables().graph()
        assert graph.num_nodes == 4000
        assert graph.num_arcs / 4000 == pytest.approx(degree, rel=0.05)
        assert assortativity(graph) == pytest.approx(homophily, abs=0.03)
        start = np.repeat(graph.labels, np.diff(graph.indptr))
        same = (start == graph.labels[graph.indices]).mean()
        assert same == pytest.approx(declared.edge_homophily, abs=0.03)

    def test_of_a_schema_decide_columns_classes_and_rates(self, schema):
        declared = DeclaredGraph(num_nodes=3000, labelled=0.5, schema=Schema.read(schema))
        tables = declared.tables()
        assert list(tables.nodes) == ["id", "age", "opened", "segment", "risk"]
        assert set(tables.nodes["segment"]) == {"business", "private", "retail"}
        assert tables.nodes["age"].min() >= 18
        assert tables.nodes["age"].max() <= 90
        graph = tables.graph()
        assert graph.feature_names == Schema.read(schema).feature_names
        # Every cell is readable and declared.
        other = [graph.feature_names.index(n) for n in ("segment=other", "opened=missing")]
        features = graph.features
        dense = features if isinstance(features, np.ndarray) else features.toarray()
        assert not dense[:, other].any()
        known = graph.labels[graph.labels >= 0]
        assert len(known) / 3000 == pytest.approx(0.5, abs=0.04)
        assert (known == 1).mean() == pytest.approx(0.2, abs=0.04)

    def test_a_rare_class_keeps_its_edges_inside(self, schema):
        rare = Schema.read(schema)
        rare = replace(rare, label=replace(rare.label, rates=(0.97, 0.03)))
        declared = DeclaredGraph(num_nodes=8000, homophily=0.6, label_noise=0, schema=rare)
        graph = declared.tables().graph()
        start = np.repeat(graph.labels, np.diff(graph.indptr))
        inside = (graph.labels[graph.indices][start == 1] == 1).mean()
        assert inside == pytest.approx(0.6 + 0.4 * 0.03, abs=0.05)

    def test_signal_decides_how_much_columns_say(self):
        gaps = []
        for signal in (0.0, 1.0):
            tables = DeclaredGraph(num_nodes=4000, num_classes=2, signal=signal, seed=3).tables()
            first = tables.nodes["class"] == "class 0"
            column = tables.nodes["x2"]
            gaps.append(abs(column[first].mean() - column[~first].mean()))
        assert gaps[0] < 0.04 < gaps[1]

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--homophily", "0.9"], "`--homophily` must be at most 0.81"),
            (["--homophily", "-0.1"], "`--homophily` must be at least 0"),
            (["--label-noise", "1"], "`--label-noise` must be at least 0 and below 1"),
            (["--num-nodes", "3"], "`--num-nodes` must be at least 10"),
            (["--mean-degree", "nan"], "`--mean-degree` must be a number"),
            (["--mean-degree", "99999"], "`--mean-degree` must be above 0 and at most 9999"),
            (["--labelled", "0"], "`--labelled` must be above 0"),
            (["--classes", "1"], "must be at least 2"),
            (["--epsilon", "0"], "`--epsilon` must be positive"),
            (["--epsilon", "1", "nan"], "`--epsilon` must be a number"),
            (["--delta", "2"], "`--delta`"),
            (["--level", "none"], "`--level` must be one of edge, node"),
            (["--relation", "replace"], "`--relation`"),
            (["--repeats", "0"], "`--repeats` must be at least 1"),
            (["--like", "none.toml"], "`--like` must be a schema file"),
            (["--like", "schema.toml", "--classes", "3"], "the schema declares it"),
            (["--edges", "edges.csv"], "--edges"),
        ],
    )
    def test_that_are_wrong_are_one_line(self, words, complaint, gapgnn, schema):
        code, out, err = gapgnn("simulate", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert complaint in err

    def test_a_schema_without_classes_or_columns_is_refused(self, gapgnn, schema):
        for name, text in (
            ("a", SCHEMA[SCHEMA.index("[columns.age]") :]),
            ("b", SCHEMA[: SCHEMA.index("[columns.age]")]),
        ):
            Path(f"{name}.toml").write_text(text)
            code, _, err = gapgnn("simulate", "--like", f"{name}.toml")
            assert (code, err.count("\n")) == (2, 1)
            assert "must declare" in err


@pytest.mark.slow
def test_accuracy_grows_with_epsilon_and_stands_beside_references():
    declared = DeclaredGraph(num_nodes=1200, mean_degree=30, num_classes=2, num_features=4)
    found = simulate(declared, epsilons=[0.1, 8.0])
    low, high = found.rows
    assert high.figures["accuracy"] > low.figures["accuracy"] + 0.05
    features, free = found.references
    assert (features.name, features.epsilon) == (FEATURES_ONLY, 0.0)
    assert (free.name, free.epsilon) == (NOT_PRIVATE, None)
    assert free.figures["accuracy"] >= high.figures["accuracy"] - 0.03
    assert high.figures["accuracy"] > features.figures["accuracy"]
    assert 0.4 < found.majority < 0.6


@pytest.mark.slow
def test_at_node_level_the_model_without_edges_has_the_price_of_the_others(gapgnn, schema):
    words = ["simulate", "--like", schema, *SMALL, "--level", "node", "--epsilon", 8, "--json"]
    code, out, err = gapgnn(*words)
    assert code == 0, err
    found = json.loads(out)
    assert found["method"] == "node-label-gap"
    assert [one["epsilon"] for one in found["references"]] == [8.0, None]
    assert found["delta"] == 1e-4


@pytest.mark.slow
def test_people_see_a_table_and_that_nothing_was_read(gapgnn, schema):
    code, out, err = gapgnn("simulate", "--like", schema, *SMALL, "--epsilon", 1, "--no-compare")
    assert code == 0, err
    assert "label-gap" in out
    assert "always 'low'" in out
    assert "No private data was read and nothing was charged" in " ".join(out.split())
    assert "Price" not in err


class TestNoise:
    def test_several_budgets_are_rows_of_one_table(self, gapgnn):
        code, out, err = gapgnn("noise", "--epsilon", 1, 2, 4, 8)
        assert code == 0, err
        assert "Delta 1e-06 is that of 10,000 people with 20 neighbours each" in err
        rows = {row[0]: row for row in (line.split() for line in out.splitlines()) if row}
        for epsilon in ("1", "2", "4", "8"):
            assert len(rows[epsilon]) == 8
            odds = float(rows[epsilon][5].removeprefix("x").replace(",", ""))
            assert odds == pytest.approx(math.exp(float(epsilon)), rel=0.005)
        multipliers = [float(rows[epsilon][1]) for epsilon in ("1", "2", "4", "8")]
        assert multipliers == sorted(multipliers, reverse=True)

    def test_programs_get_what_each_budget_allows_an_attacker(self, gapgnn):
        _, out, _ = gapgnn("noise", "--epsilon", 1, 8, "--delta", "1e-7", "--json")
        for answer in json.loads(out)["answers"]:
            mu = 2**0.5 / answer["noise_multiplier"]
            assert answer["mu"] == pytest.approx(mu)
            assert answer["guess"] == pytest.approx(norm.cdf(mu / 2))
            assert answer["odds"] == pytest.approx(math.exp(answer["epsilon"]))

    @pytest.mark.parametrize(("level", "delta"), [("edge", 1e-5), ("node", 1e-4)])
    def test_delta_follows_the_declared_size(self, level, delta, gapgnn):
        words = ["noise", "--level", level, "--epsilon", 1, *SMALL, "--json"]
        _, out, _ = gapgnn(*words)
        assert json.loads(out)["delta"] == delta
        declared = DeclaredGraph(num_nodes=240, mean_degree=12)
        assert declared_delta(declared, level) == delta

    @pytest.mark.slow
    def test_accuracy_of_a_simulated_graph_stands_beside_the_noise(self, gapgnn, schema):
        code, out, err = gapgnn("noise", "--epsilon", 1, 8, "--like", schema, *SMALL)
        assert code == 0, err
        assert "accuracy" in out
        text = " ".join(out.split())
        assert "Accuracy is that of label-gap with its own hops; beside it: features only" in text

    def test_programs_get_the_simulated_row_of_each_budget(self, gapgnn, schema):
        words = ["noise", "--epsilon", 8, "--like", schema, *SMALL, "--json"]
        code, out, err = gapgnn(*words)
        assert code == 0, err
        found = json.loads(out)
        assert [one["simulated"]["epsilon"] for one in found["answers"]] == [8.0]
        assert found["simulation"]["method"] == "label-gap"


def test_epsilons_are_checked_before_anything_is_drawn():
    with pytest.raises(InputError, match="at least one budget"):
        simulate(DeclaredGraph(), epsilons=[])
