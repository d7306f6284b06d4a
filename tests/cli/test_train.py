"""`gapgnn train`: one command, one result, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from methodgraphs import small_graph, write_risks, write_tables
from schemacases import SCHEMA, declared

from gapgnn import NodeLabelGAP, load_model
from gapgnn.cli.train import FEATURES_ONLY, NOT_PRIVATE, PAPER, _untrained
from gapgnn.graph.datasets import load as datasets
from gapgnn.graph.tables.schema import Label
from gapgnn.methods import estimator as estimator_module
from gapgnn.methods import folder as folder_module
from gapgnn.privacy.ledger.people import People
from gapgnn.training.callbacks import ProgressBars
from gapgnn.training.trainer import Trainer

KEYS = {
    "method",
    "level",
    "relation",
    "dataset",
    "epsilon",
    "delta",
    "noise_multiplier",
    "test_accuracy",
    "seconds",
    "device",
    "peak_memory_mb",
}
MORE_KEYS = {
    *("is_private_release", "edges_unread", "noise", "split", "curator_only"),
    *("metrics", "threshold", "references", "shortcomings", "graph_contribution"),
}
# What was charged, to whom, and what is left.
RECEIPT = {"charges", "budgets", "ledger", "folder", "seconds"}
QUICK = ["--epochs", "2", "--epsilon", "4", "--hidden", "8", "--no-compare"]
# Where nothing is charged, no budget is taken.
FREE = ["--epochs", "2", "--hidden", "8", "--no-compare"]
NODE = ["--level", "node", "--batch-size", "30"]
LEVELS = [["--level", "none"], ["--level", "edge"], NODE]


@pytest.fixture
def tables(tmp_path, ledger) -> list[str]:
    return write_tables(tmp_path / "data")


@pytest.fixture
def builtin(monkeypatch, ledger) -> list[str]:
    """Make every known data set a small graph, and collect the names asked for."""
    asked: list[str] = []

    def load(name, **options):
        asked.append(name)
        return small_graph(num_nodes=150)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def stable(result: dict) -> dict:
    return {k: v for k, v in result.items() if k not in RECEIPT | {"peak_memory_mb"}}


@pytest.mark.parametrize(
    ("method", "words", "option"),
    [
        ("gap", ["--clip", "0.5"], "--clip"),
        ("gap", ["--max-degree", "7"], "--max-degree"),
        ("gap", ["--edge-types", "each"], "--edge-types"),
        ("gap", ["--level", "none", "--epsilon", "2"], "--epsilon"),
        ("mlp", ["--insecure-noise-seed", "3"], "--insecure-noise-seed"),
        ("sage", ["--train-size", "50"], "--train-size"),
        ("label-gap", ["--split", "fixed"], "--split"),
    ],
)
def test_an_option_that_does_nothing_is_refused_by_its_name_before_the_charge(
    method, words, option, gapgnn, tables, ledger
):
    code, out, err = gapgnn("train", method, *tables, *words, "--no-save")
    assert (code, out, err.count("\n")) == (2, "", 1)
    # Notes about the tables may be printed before it.
    assert f"`{option}` must be left out" in err
    assert ledger.entries() == []


def test_references_take_of_the_options_what_they_use(gapgnn, builtin):
    """A parameter of node level only once stopped the run after the charge."""
    words = ["--level", "node", "--own", "record", "--hop-share", "0.5", "--epochs", "1"]
    words += [
        "--epsilon",
        "4",
        "--clip",
        "0.5",
        "--train-size",
        "120",
        "--insecure-noise-seed",
        "1",
    ]
    code, out, err = gapgnn("train", *words, "--compare", "--no-save", "--json")
    assert code == 0, err
    references = {"GAP (paper)", "features only (MLP)", "without privacy"}
    assert set(json.loads(out)["references"]) == references


class TestResult:
    @pytest.mark.parametrize(
        ("method", "level"),
        [
            *(("gap", level) for level in LEVELS),
            *(("progap", level) for level in LEVELS),
            *(("mlp", level) for level in LEVELS),
            *(("label-gap", level) for level in LEVELS[:2]),
            ("node-label-gap", NODE),
        ],
    )
    def test_json_is_one_object_with_the_contracts_keys(self, method, level, gapgnn, tables):
        own = declared(tables) if level is NODE else tables
        is_free = level[1] == "none" or (method, level[1]) == ("mlp", "edge")
        quick = FREE if is_free else QUICK
        code, out, err = gapgnn("train", method, *own, *quick, *level, "--no-save", "--json")
        assert code == 0
        assert [line.startswith("Price: ") for line in err.splitlines()] in ([], [True])
        assert len(out.splitlines()) == 1
        result = json.loads(out)
        assert result.keys() == KEYS | MORE_KEYS | RECEIPT
        assert result["test_accuracy"].keys() == {"mean", "ci95", "runs"}
        phases = {"total", "calibrate", "encoder", "aggregate", "classifier"}
        assert result["seconds"].keys() == phases
        assert all(0 <= accuracy <= 1 for accuracy in result["test_accuracy"]["runs"])
        assert (result["method"], result["level"]) == (method, level[1])
        assert result["dataset"] == "people"
        if level[1] == "none":
            assert result["epsilon"] is result["delta"] is result["noise_multiplier"] is None
        elif method != "mlp" or level[1] == "node":
            assert 0 < result["epsilon"] <= 4
            assert result["noise_multiplier"] > 0
        else:
            assert result["epsilon"] == 0

    def test_repeats_are_listed_with_their_interval(self, gapgnn, tables, ledger):
        _, out, _ = gapgnn("train", *tables, *QUICK, "--repeats", "5", "--no-save", "--json")
        accuracy = json.loads(out)["test_accuracy"]
        assert len(accuracy["runs"]) == 5
        low, high = accuracy["ci95"]
        assert low <= accuracy["mean"] <= high
        assert ledger.entries()[0].count == 5

    @pytest.mark.parametrize(
        "words",
        [["--epochs", "5"], pytest.param([], marks=pytest.mark.slow)],
        ids=["short", "bare"],
    )
    def test_a_bare_train_is_the_recommended_method_on_the_built_in_graph(
        self, words, gapgnn, builtin, ledger
    ):
        code, out, _ = gapgnn("train", *words)
        assert code == 0
        assert builtin == ["social"]
        rows = ("LabelGAP, level edge", "GAP (paper)", "features only (MLP)", "without privacy")
        assert [row for row in (*rows, "epsilon") if row not in out] == []
        # The paper's method is charged, too.
        charges = ledger.entries()
        assert [(one.level, one.purpose) for one in charges] == [
            ("edge", "label-gap fit"),
            ("edge", "gap fit"),
        ]
        assert all(0.99 < charge.epsilon <= 1 for charge in charges)

    def test_people_get_a_table_and_the_promise_in_a_sentence(self, gapgnn, tables):
        code, out, _ = gapgnn("train", "label-gap", *tables, *QUICK, "--no-save")
        assert code == 0
        assert "people: 120 nodes" in out
        assert "without privacy" not in out
        assert "edge" in out.lower()

    def test_references_that_cannot_be_paid_do_not_hide_the_result(
        self, gapgnn, builtin, ledger, tmp_path
    ):
        graph = small_graph(num_nodes=150)
        budget = {"level": "node", "relation": "add-remove", "epsilon": 4, "delta": 1e-2}
        ledger.grant("everybody", People.of(graph), **budget, composition="sum")
        code, out, err = gapgnn("train", *QUICK, "--compare", *NODE, "--out", "model")
        assert code == 0
        for name in ("GAP (paper)", "features only (MLP)", "without privacy"):
            assert f"No reference {name!r}: " in err
        # By the noisy mean out-degree a hop is released or not.
        assert "Features only" in out or "NodeLabelGAP, level" in out
        assert len(ledger.entries()) == 1

    def test_the_table_does_not_call_a_model_gap_that_reads_no_edges(self, gapgnn, builtin):
        # The noise of the mean out-degree, and with it the decision, is the same every time.
        noise = ["--insecure-noise-seed", "0"]
        code, out, _ = gapgnn("train", "node-label-gap", *QUICK, *NODE, *noise, "--no-save")
        assert code == 0
        assert "Features only" in out
        assert "GAP" not in out
        assert "This model reads no edges" in out

    def test_the_saved_model_is_the_one_reported(self, gapgnn, tables, tmp_path):
        folder = tmp_path / "model"
        _, out, _ = gapgnn("train", "label-gap", *tables, *QUICK, "--out", str(folder), "--json")
        card = load_model(folder).card_
        assert card.epsilon == json.loads(out)["epsilon"]
        assert load_model(folder).label_names_ == ("2004", "2005", "2006")


@pytest.fixture
def risks(tables) -> list[str]:
    """The words that choose tables of two classes, one of them rare."""
    return write_risks(tables)


class TestRareClass:
    def test_train_prints_what_a_risk_desk_reads_and_what_the_graph_adds(self, gapgnn, risks):
        words = ["--epochs", "2", "--epsilon", "4", "--no-save"]
        code, out, _ = gapgnn("train", "label-gap", *risks, *words)
        assert code == 0
        said = " ".join(out.split())
        for expected in ("Nodes of class 'high'", "recall in", "lift in", "guessing"):
            assert expected in said
        added = re.search(
            r"The graph adds ([+-][\d.]+) to the average precision of features alone: ([\d.]+) "
            r"without it, ([\d.]+) with it",
            said,
        )
        # The figures are those of the two rows.
        rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in out.splitlines()]
        listed = [float(row[1]) for row in rows if len(row) == 6 and re.match(r"0\.\d{3}$", row[1])]
        with_graph, alone, guessing = listed
        assert (float(added[3]), float(added[2])) == (with_graph, alone)
        assert float(added[1]) == pytest.approx(with_graph - alone, abs=2e-3)

        _, out, _ = gapgnn("train", "label-gap", *risks, *words, "--metric", "auc", "--json")
        result = json.loads(out)
        own = result["metrics"]
        (alone,) = result["references"].values()
        assert own["ranking"]["positive"] == "high"
        assert own["ranking"]["top"].keys() == {"top_1_percent", "top_5_percent", "own_share"}
        assert guessing == pytest.approx(own["ranking"]["share"], abs=1e-3)
        assert result["graph_contribution"]["auc"] == pytest.approx(own["auc"] - alone["auc"])

    def test_a_threshold_is_compared_with_guessing_as_many_nodes(self, gapgnn, risks):
        """Not with the largest class, which nobody who sets one asks for."""
        words = [*risks, "--level", "none", "--epochs", "1", "--no-save", "--json"]
        # Untrained, the answer is always the largest class.
        plain, rate = (
            json.loads(gapgnn("train", "mlp", *words, *more)[1])
            for more in ([], ["--threshold", "rate"])
        )
        assert plain["shortcomings"][0].startswith("Not better than always answering 'low'")
        of_class = rate["metrics"]["per_class"]["high"]
        assert of_class["precision"] is not None
        is_better = of_class["precision"] > 2 * rate["metrics"]["ranking"]["share"]
        assert [line.split(":")[0] for line in rate["shortcomings"]] == (
            [] if is_better else ["Not better than guessing by more than chance"]
        )

    def test_another_class_is_looked_for_where_it_is_named(self, gapgnn, tables):
        words = [*tables, *QUICK, "--no-save"]
        _, out, _ = gapgnn("train", "label-gap", *words)
        assert "Nodes of class" not in out
        _, out, _ = gapgnn("train", "label-gap", *words, "--positive", "2005")
        assert "Nodes of class '2005'" in out
        code, _, err = gapgnn("train", "label-gap", *words, "--positive", "2020")
        assert code == 2
        assert "`--positive` must be one of 2004, 2005, 2006. Got '2020'" in err

    def test_at_node_level_its_figures_are_the_curators_and_in_no_folder(
        self, gapgnn, risks, tmp_path
    ):
        folder = tmp_path / "model"
        words = ["--level", "node", "--epsilon", "4", "--batch-size", "30", "--threshold", "prior"]
        path = tmp_path / "risk.toml"
        tables = [*risks, "--schema", str(path)]
        path.write_text(replace(SCHEMA, label=Label("risk", ("high", "low"))).to_toml())
        code, out, err = gapgnn("train", *tables, *words, "--out", str(folder))
        assert code == 2
        assert "`--threshold` prior must have declared rates" in err
        label = Label("risk", ("high", "low"), rates=(0.2, 0.8))
        path.write_text(replace(SCHEMA, label=label).to_toml())
        code, out, err = gapgnn("train", *tables, *words, "--out", str(folder), "--json")
        assert code == 0, err
        result = json.loads(out)
        assert {"metrics", "graph_contribution"} <= set(result["curator_only"])
        assert result["threshold"] == pytest.approx(0.8)
        assert result["metrics"]["ranking"]["positive"] == "high"
        files = [path for path in folder.rglob("*") if path.is_file()]
        saved = "".join(path.read_text(errors="ignore") for path in files)
        for figure in ("average_precision", "recall", "ranking", "lift"):
            assert figure not in saved


class TestConfig:
    def test_a_file_gives_what_the_options_give(self, gapgnn, tables, tmp_path):
        options = ["--level", "edge", "--epsilon", "4", "--epochs", "2", "--hidden", "8"]
        options += ["--combine", "mean", "--insecure-noise-seed", "3", "--batch-norm", "false"]
        config = tmp_path / "run.toml"
        config.write_text(
            f'edges = "{tables[1]}"\nnodes = "{tables[3]}"\nlabel = "year"\n'
            'level = "edge"\nepsilon = 4\nepochs = 2\nhidden = 8\ncombine = "mean"\n'
            "insecure_noise_seed = 3\nbatch-norm = false\njson = true\nno-save = true\n"
        )
        _, from_options, _ = gapgnn("train", "label-gap", *tables, *options, "--no-save", "--json")
        code, from_file, err = gapgnn("train", "--config", str(config))
        assert code == 0, err
        assert stable(json.loads(from_file)) == stable(json.loads(from_options))

    def test_the_command_line_wins(self, gapgnn, tables, tmp_path):
        config = tmp_path / "run.toml"
        config.write_text('epsilon = 8.0\nlevel = "edge"\nepochs = 2\n')
        for words in (
            ["--config", str(config), "--epsilon", "2"],
            ["--epsilon", "2", f"--config={config}"],
        ):
            _, out, _ = gapgnn("train", "label-gap", *words, *tables, "--no-save", "--json")
            assert 1.9 < json.loads(out)["epsilon"] <= 2

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            ("epsilom = 1", "unknown key 'epsilom' in"),
            ("epsilom = 1", "Did you mean 'epsilon'?"),
            ('config = "other.toml"', "unknown key 'config'"),
            ("[model]\nepsilon = 1", "unknown key 'model'"),
            ("[epsilon]\nvalue = 1", "must be a value. Got a table"),
            ("epsilon = [1, 2]", "must be one value. Got a list"),
            ("epsilon = true", "must not be true or false"),
            ("hops = 2.5", "must be a whole number. Got '2.5'"),
            ('level = "egde"', "Did you mean 'edge'?"),
            ("noise_ratios = [1.0, 2.0]", "expected 3 arguments"),
            ("epsilon = ", "cannot be read"),
        ],
    )
    def test_a_mistake_in_the_file_is_one_line(self, content, complaint, gapgnn, tables, tmp_path):
        config = tmp_path / "run.toml"
        config.write_text(content)
        method = "gap" if content.startswith("noise_ratios") else "label-gap"
        code, out, err = gapgnn("train", method, *tables, "--config", str(config))
        assert (code, out) == (2, "")
        assert complaint in err
        assert len(err.splitlines()) == 1

    def test_a_missing_file_or_name(self, gapgnn, tables):
        code, _, err = gapgnn("train", *tables, "--config", "nowhere.toml")
        assert code == 2
        assert "'nowhere.toml' does not exist" in err
        assert gapgnn("train", *tables, "--config")[0] == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--epsilon", "-1"], "`--epsilon` must be positive. Got -1.0."),
            (["--epsilon", "nan"], "`--epsilon`"),
            (["--epsilon", "many"], "--epsilon: must be a number. Got 'many'."),
            (["--level", "egde"], "Did you mean 'edge'?"),
            (["--delta", "2"], "`--delta` must be at least 0 and below 1. Got 2.0."),
            (["--delta", "0"], "`--delta` must be above 0 for Gaussian noise"),
            (["--delta", "small"], "auto, a number. Got 'small'"),
            (["--hops", "0"], "`--hops` must be at least 1. Got 0."),
            (["--hops", "1.5"], "must be a whole number. Got '1.5'"),
            (["--epochs", "1.5"], "auto, a whole number"),
            (["--relation", "add-remove"], "`--relation`"),
            (["--device", "tpu"], "cpu, cuda. Got 'tpu'"),
            (["--noise-ratios", "1", "2"], "expected 3 arguments"),
            (["--batch-norm", "maybe"], "true, false, auto"),
            (["--seed", "-1"], "`--seed` must be at least 0. Got -1."),
            (["--epsilom", "1"], "Did you mean '--epsilon'?"),
            (["--level", "node", "--batch-size", "5000"], "at most 87, the number of training"),
            (["--level", "node", "--batch-norm", "true"], "`--batch-norm` mixes the nodes"),
        ],
    )
    def test_bad_values_are_one_line_and_nothing_is_charged(
        self, words, complaint, gapgnn, tables, ledger
    ):
        own = declared(tables) if "node" in words else tables
        method = "node-label-gap" if "node" in words else "label-gap"
        method = "gap" if "--noise-ratios" in words else method
        code, out, err = gapgnn("train", method, *own, *words, "--out", "model")
        assert (code, out) == (2, "")
        assert complaint in err
        assert len(err.splitlines()) == 1
        assert ledger.entries() == []

    def test_an_unknown_method_names_the_nearest(self, gapgnn):
        code, _, err = gapgnn("train", "gpa")
        assert code == 2
        assert "gap" in err

    def test_a_folder_with_files_is_refused_before_anything_is_read(
        self, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("gapgnn.cli.train.load_graph", lambda *a, **k: 1 / 0)
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "mine.txt").write_text("keep")
        code, _, err = gapgnn("train", "label-gap", *tables, "--out", str(folder))
        assert code == 2
        assert "`--out` must be a new or empty folder" in err
        assert ledger.entries() == []
        assert [path.name for path in folder.iterdir()] == ["mine.txt"]

    def test_over_budget_is_one_line(self, gapgnn, tables, ledger, tmp_path):
        assert gapgnn("train", "label-gap", *tables, *QUICK, "--no-save", "--json")[0] == 0
        spent = ledger.entries()[0].population
        budget = {"level": "edge", "relation": "undirected", "epsilon": 5, "delta": 0.5}
        ledger.grant(spent, **budget, composition="sum")
        folder = tmp_path / "model"
        code, out, err = gapgnn("train", "label-gap", *tables, *QUICK, "--out", str(folder))
        assert (code, out) == (3, "")
        assert "has epsilon 1" in err
        assert "left" in err
        assert not folder.exists()


def doomed(monkeypatch, cause: str, tmp_path: Path) -> tuple[list[str], str]:
    """Bring about something that makes training fail; return its options and its complaint."""
    if cause == "under a file":
        (tmp_path / "afile").write_text("mine")
        return ["--out", "afile/deep/model"], "`--out` must be in a folder"
    if cause == "read-only folder":
        # Permissions do not stop the superuser, under whom tests may run.
        access = os.access
        closed = tmp_path / "closed"
        closed.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
        return ["--out", "closed/model"], "`--out` must be writable"
    if cause == "too little disk":
        real = shutil.disk_usage

        def full(path):
            return real(path)._replace(free=1000)

        monkeypatch.setattr(shutil, "disk_usage", full)
        return ["--out", "model"], "`--out` must have room for"
    if cause == "too little memory":
        monkeypatch.setattr(estimator_module, "free_memory", lambda device: 1000)
        return ["--out", "model"], "of free memory; nothing was charged"
    if cause == "mistyped ledger":
        return ["--out", "model", "--ledger", "legder.sqlite"], "gapgnn ledger init legder.sqlite"
    if cause == "nowhere to go":
        return [], "`--out` must say where the model goes"
    if cause == "saved and not saved":
        return ["--out", "model", "--no-save"], "`--no-save` must not come with `--out`"
    raise AssertionError(cause)


class TestBeforeTheCharge:
    @pytest.mark.parametrize(
        "cause",
        [
            *("under a file", "read-only folder", "too little disk", "too little memory"),
            *("mistyped ledger", "nowhere to go", "saved and not saved"),
        ],
    )
    @pytest.mark.parametrize("method", ["label-gap", "node-label-gap", "sage", "mlp"])
    def test_what_is_bound_to_fail_fails_without_a_charge(
        self, cause, method, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        is_node = method in ("node-label-gap", "mlp")
        own = [*declared(tables), *NODE] if is_node else tables
        options, complaint = doomed(monkeypatch, cause, tmp_path)
        before = sorted(tmp_path.rglob("*"))
        code, out, err = gapgnn("train", method, *own, "--epochs", "1", *options)
        assert (code, out) == (2, "")
        assert complaint in err
        assert len(err.splitlines()) == 1
        assert ledger.entries() == []
        assert sorted(tmp_path.rglob("*")) == before

    def test_everything_that_is_wrong_is_said_at_once(self, gapgnn, tables, ledger):
        wrong = ["--epsilon", "-1", "--hops", "0", "--seed", "-1", "--ledger", "none.sqlite"]
        code, _, err = gapgnn("train", "label-gap", *tables[:4], *wrong)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "6 things must be changed: (1)" in err
        for name in ("`--epsilon`", "`--hops`", "`--seed`", "`--out`", "'none.sqlite'", "--label"):
            assert name in err

    def test_one_mistake_is_no_list(self, gapgnn, tables):
        _, _, err = gapgnn("train", "label-gap", *tables, "--out", "model", "--hops", "0")
        assert err == "gapgnn: `--hops` must be at least 1. Got 0.\n"

    def test_without_privacy_nothing_is_lost_without_a_folder(self, gapgnn, tables, ledger):
        code, _, _ = gapgnn("train", "label-gap", *tables, *FREE, "--level", "none")
        assert code == 0
        assert ledger.entries() == []

    def test_why_it_was_trained_is_in_the_ledger_and_not_in_the_model(
        self, gapgnn, tables, ledger, tmp_path
    ):
        words = [*QUICK, "--reason", "monthly fraud model", "--out", "model"]
        assert gapgnn("train", "label-gap", *tables, *words)[0] == 0
        (charge,) = ledger.entries()
        assert charge.reason == "monthly fraud model"
        assert charge.command.startswith("gapgnn train label-gap --edges")
        texts = [path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()]
        assert b"monthly fraud" not in b"".join(texts)

    @pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice")
    def test_people_of_another_population_have_another_budget(self, gapgnn, tables, ledger):
        for name in ("clients", "suppliers", "clients"):
            words = ["--no-save", "--population", name]
            assert gapgnn("train", "label-gap", *tables, *QUICK, *words)[0] == 0
        budgets = {budget.namespace: budget.charges for budget in ledger.summary()}
        assert budgets == {"clients": 2, "suppliers": 1}


PHASES = {
    "gap": ["encoder", "classifier"],
    "sage": ["classifier"],
    "mlp": ["classifier"],
}


# By method and moment: what presses Ctrl-C then.
INTERRUPTED = {
    ("label-gap", "right after the charge"): """
from gapgnn.privacy.ledger.ledger import Ledger
real = Ledger.charge
def charge(*args, **options):
    paid = real(*args, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return paid
Ledger.charge = charge
""",
    ("sage", "while training"): """
from gapgnn.training.trainer import Trainer
Trainer.fit = lambda *args, **options: os.kill(os.getpid(), signal.SIGINT)
""",
}


class TestWhatWasLeftOut:
    """Counts of edges are exact: said to the curator, never beside the promise."""

    def test_it_is_said_on_stderr_and_stands_nowhere(self, gapgnn, tables):
        with Path(tables[1]).open("a") as friends:
            friends.write("p1,elsewhere\n" * 7919)
        words = [*tables, "--dangling", "drop", "--dropped-at-most", "1", *QUICK]
        code, out, err = gapgnn("train", "label-gap", *words, "--out", "model")
        assert code == 0, err
        line = err.splitlines()[-1]
        assert line.startswith("For the curator only: left out ")
        assert "7,919 edges that name an id without a row" in line
        code, printed, err = gapgnn("train", "label-gap", *words, "--no-save", "--json")
        assert code == 0, err
        assert "7,919" not in err
        written = [path.read_bytes() for path in Path("model").rglob("*.json")]
        assert len(written) >= 3
        for text in (out.encode(), printed.encode(), *written):
            assert b"left out" not in text
            assert b"7,919" not in text

    def test_a_store_of_dropped_edges_is_not_for_node_level(self, gapgnn, tables, ledger):
        words = [*declared(tables), "--dangling", "drop", "--out", "store"]
        assert gapgnn("partition", *words)[0] == 0
        words = ["--store", "store", *NODE, *QUICK, "--out", "model"]
        code, out, err = gapgnn("train", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "Got tables read with `--dangling drop`" in err
        assert ledger.entries() == []


class TestInterruption:
    @pytest.mark.parametrize(
        ("method", "phase"), [(method, phase) for method in PHASES for phase in PHASES[method]]
    )
    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_ctrl_c_says_what_was_charged_and_the_command_that_goes_on(
        self, method, phase, level, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        own = [*declared(tables), *NODE] if level == "node" else tables
        words = ["train", method, *own, "--epochs", "2", "--no-compare"]
        words += [] if (method, level) == ("mlp", "edge") else ["--epsilon", "4"]
        words += ["--max-degree", "3"] if (method, level) == ("sage", "node") else []
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "fit", interrupting(Trainer.fit, phase))
            code, out, err = gapgnn(*words, "--out", "results/my model")
        assert (code, out) == (130, "")
        # The price stands before the charge, and nothing else.
        assert [line.startswith("Price: ") for line in err.splitlines()[:-1]] in ([], [True])
        assert not Path("results/my model").exists()
        charges = ledger.entries()
        if method == "mlp" and level == "edge":
            assert charges == []
            assert "nothing was charged" in err
        else:
            assert [charge.completed_at for charge in charges] == [None]
            assert f"the budget was charged ({charges[0].id})" in err
        (command,) = re.findall(r"`(gapgnn .*?)`", err)
        code, _, err = gapgnn(*shlex.split(command)[1:])
        assert code == 0
        assert err.startswith("For the curator only: left out ")
        assert load_model(Path("results/my model")).method == method
        assert [charge.id for charge in ledger.entries()] == [charge.id for charge in charges]
        assert not Path("results/my model.unfinished").exists()

    def test_without_a_folder_it_says_that_the_charge_stays(
        self, gapgnn, tables, ledger, monkeypatch
    ):
        monkeypatch.setattr(Trainer, "fit", interrupting(Trainer.fit, "classifier"))
        code, _, err = gapgnn("train", "label-gap", *tables, *QUICK, "--no-save")
        assert code == 130
        assert "What was charged stays charged" in err
        assert len(ledger.entries()) == 1

    def test_before_the_charge_nothing_is_left(self, gapgnn, tables, ledger, tmp_path, monkeypatch):
        def stop(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr("gapgnn.cli.train.load_graph", stop)
        code, out, err = gapgnn("train", "label-gap", *tables, *QUICK, "--out", "model")
        assert (code, out) == (130, "")
        assert err.splitlines() == ["gapgnn: interrupted; nothing is left half-written"]
        assert leftovers(tmp_path) == []
        assert ledger.entries() == []

    def test_ctrl_c_while_saving_leaves_no_folder_and_goes_on(
        self, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        words = ["train", "label-gap", *tables, *QUICK, "--out", "model"]
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "_write", interrupting_at("card.json"))
            code, _, err = gapgnn(*words)
        assert code == 130
        assert f"the budget was charged ({ledger.entries()[0].id})" in err
        assert not Path("model").exists()
        assert not list(tmp_path.glob(".model*"))
        assert gapgnn(*words, "--resume")[0] == 0
        assert len(ledger.entries()) == 1
        assert not Path("model.unfinished").exists()

    def test_an_unfinished_run_is_not_forgotten(self, gapgnn, tables, ledger, monkeypatch):
        words = ["train", "sage", *tables, "--epochs", "2", "--no-compare", "--out", "model"]
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "fit", interrupting(Trainer.fit, "classifier"))
            gapgnn(*words)
        code, _, err = gapgnn(*words)
        assert code == 2
        assert "has an unfinished run beside it, which was charged" in err
        assert len(ledger.entries()) == 1

    @pytest.mark.parametrize(
        ("method", "moment"),
        [
            pytest.param(
                *row, marks=pytest.mark.gate if row[0] == "label-gap" else pytest.mark.slow
            )
            for row in INTERRUPTED
        ],
    )
    def test_a_real_signal_and_the_very_command_it_names(
        self, method, moment, gapgnn, tables, ledger, tmp_path
    ):
        """As at a terminal: SIGINT once the charge is there, then the command as it is printed."""
        words = ["train", method, *tables, "--epochs", "2", "--no-compare", "--out", "my model"]
        program = [sys.executable, "-c", RUN.format(before=INTERRUPTED[method, moment])]
        stopped = subprocess.run([*program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert (stopped.returncode, stopped.stdout) == (130, ""), stopped.stderr
        (charge,) = ledger.entries()
        assert f"the budget was charged ({charge.id})" in stopped.stderr
        assert charge.completed_at is None
        (command,) = re.findall(r"`(gapgnn .*?)`", stopped.stderr)
        assert command == shlex.join(["gapgnn", *words, "--resume"])
        code, _, err = gapgnn(*shlex.split(command)[1:])
        assert code == 0, err
        assert [entry.id for entry in ledger.entries()] == [charge.id]
        assert load_model(tmp_path / "my model").method == method
        assert not (tmp_path / "my model.unfinished").exists()


# The program, in which Ctrl-C is pressed at one moment.
RUN = """
import os, signal
# A shell starts what runs behind it with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gapgnn.cli.main import run
{before}
run()
"""


def interrupting(original, phase: str):
    """Return a training loop in which Ctrl-C is pressed in a phase."""

    def fit(self, *args, **options):
        if options["phase"] == phase:
            raise KeyboardInterrupt
        original(self, *args, **options)

    return fit


def interrupting_at(name: str):
    """Return how files are written when Ctrl-C is pressed at one of them."""

    def write(path, content):
        if path.name == name:
            raise KeyboardInterrupt
        path.write_bytes(content)

    return write


def leftovers(folder: Path) -> list[str]:
    """Return the files below a folder that are neither the tables nor the ledger."""
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".csv" and not path.name.startswith("ledger.sqlite")
    ]


class TestProgress:
    @pytest.fixture
    def shown(self, monkeypatch) -> list[tuple]:
        seen: list[tuple] = []

        def start(self, phase, total):
            seen.append((phase, total))

        def advance(self, phase, *, loss=None, accuracy=None):
            seen.append((phase, loss, accuracy))

        monkeypatch.setattr(ProgressBars, "start", start)
        monkeypatch.setattr(ProgressBars, "advance", advance)
        return seen

    def test_edge_level_shows_loss_and_validation_accuracy(self, gapgnn, tables, shown):
        gapgnn("train", "gap", *tables, *QUICK, "--no-save", "--json")
        assert [entry for entry in shown if len(entry) == 2] == [
            ("encoder", 2),
            ("aggregation", 2),
            ("classifier", 2),
        ]
        trained = [entry for entry in shown if len(entry) == 3 and entry[0] != "aggregation"]
        assert len(trained) == 4
        assert all(loss > 0 and 0 <= accuracy <= 1 for _, loss, accuracy in trained)

    @pytest.mark.parametrize("method", ["gap", "node-label-gap", "mlp"])
    def test_node_level_shows_neither(self, method, gapgnn, tables, shown):
        gapgnn("train", method, *declared(tables), *QUICK, *NODE, "--no-save", "--json")
        advanced = [entry[1:] for entry in shown if len(entry) == 3]
        assert len(advanced) >= 5
        assert set(advanced) == {(None, None)}

    def test_bars_go_to_stderr_even_on_a_terminal(self, gapgnn, tables, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        code, out, err = gapgnn("train", "label-gap", *tables, *QUICK, "--no-save", "--json")
        assert code == 0
        json.loads(out)
        assert "\x1b" not in out
        assert "encoder" in err


def rows_of(path: Path) -> list[str]:
    """Return everything that a ledger's file says."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


class TestPlan:
    """What would be released and its price, before anything is charged, trained or written."""

    @pytest.mark.parametrize(
        ("method", "level"),
        [
            *(("gap", level) for level in LEVELS),
            *(("progap", level) for level in LEVELS),
            *(("label-gap", level) for level in LEVELS[:2]),
            ("node-label-gap", NODE),
            *(("vote", level) for level in LEVELS),
            *(("sage", level) for level in LEVELS),
            *(("mlp", level) for level in LEVELS),
        ],
    )
    def test_nothing_is_charged_or_written_and_own_tables_need_no_folder(
        self, method, level, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        def fail(*args, **options):
            raise AssertionError("a plan trains nothing")

        monkeypatch.setattr(Trainer, "fit", fail)
        own = declared(tables) if level is NODE else tables
        charged = rows_of(ledger.path)
        before = sorted(tmp_path.rglob("*"))
        words = level[:2] if method == "vote" else level
        code, out, err = gapgnn("train", method, *own, *words, "--plan")
        assert (code, err.replace(err[err.find("For the curator only") :], "")) == (0, "")
        assert out.startswith(f"Plan of {method}: level {level[1]}, relation ")
        assert "\nrecipe: epochs " in out
        is_free = level[1] == "none" or (level[1] == "edge" and method in ("vote", "mlp"))
        assert ("\nrelease: " in out) == ("\nprice: epsilon " in out) == (not is_free)
        assert ledger.entries() == []
        assert rows_of(ledger.path) == charged
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("method", ["label-gap", "gap"])
    def test_training_charges_what_the_plan_says(self, method, gapgnn, tables, ledger, tmp_path):
        words = ["train", method, *tables, *QUICK, "--out", "model", "--json"]
        code, out, err = gapgnn(*words, "--plan")
        assert (code, len(out.splitlines())) == (0, 1), err
        assert not (tmp_path / "model").exists()
        assert not (tmp_path / "model.unfinished").exists()
        found = json.loads(out)
        own = {"plan", "repeats", "compared", "left", "after", "refused"}
        assert found.keys() == own | RECEIPT
        assert found["charges"] == []
        plan = found["plan"]
        assert (plan["method"], plan["budget"], found["repeats"]) == (method, 4.0, 1)
        assert plan["guarantee"]["level"] == "edge"
        assert gapgnn(*words)[0] == 0
        (charge,) = ledger.entries()
        assert charge.epsilon == plan["guarantee"]["epsilon"]
        assert charge.delta == plan["guarantee"]["delta"]
        card = json.loads((tmp_path / "model" / "card.json").read_text())
        assert card["events"] == plan["guarantee"]["events"]

    def test_at_node_level_every_option_is_listed_and_no_count_is_exact(
        self, gapgnn, tables, ledger
    ):
        words = ["train", *declared(tables), *NODE, "--epsilon", "8", "--plan", "--json"]
        code, out, err = gapgnn(*words)
        assert code == 0, err
        plan = json.loads(out)["plan"]
        # The noisy mean out-degree decides between them; the price is that of the dearest.
        assert len(plan["options"]) > 1
        prices = [option["guarantee"]["epsilon"] for option in plan["options"]]
        assert max(prices) <= plan["guarantee"]["epsilon"] <= 8
        assert plan["facts"]["num_nodes"] == 0
        assert plan["facts"]["counted_rates"] is None
        assert "counts" not in plan["facts"]
        assert ledger.entries() == []

    def test_the_price_is_that_of_each_repeat(self, gapgnn, tables, ledger):
        words = ["train", *tables, "--epsilon", "1", "--repeats", "3", "--plan", "--json"]
        found = json.loads(gapgnn(*words)[1])
        assert found["repeats"] == 3
        assert 0.99 < found["plan"]["guarantee"]["epsilon"] <= 1

    def test_it_says_what_would_be_left_and_training_leaves_that(self, gapgnn, tables, ledger):
        words = ["--nodes", tables[3], "--epsilon", "8", "--delta", "1e-4"]
        assert gapgnn("ledger", "grant", "everybody", *words)[0] == 0
        words = ["train", *tables, *QUICK, "--repeats", "2", "--no-save"]
        left = gapgnn(*words, "--plan")[1].splitlines()[-1]
        assert left.startswith("left: everybody has epsilon 8 of 8 left, delta 0.0001; after this,")
        code, _, err = gapgnn(*words)
        assert code == 0
        # The price names what it is for, and the same line says what is left of whose budget.
        said = "for all edges between any two people together (one undirected edge)."
        assert f"{said} {left.removeprefix('left: ')}.\n" in err
        (budget,) = ledger.summary()
        assert float(left.rpartition(" ")[2]) == pytest.approx(budget.left_epsilon, abs=1e-4)
        # What no longer fits is said too, and is then refused in the same words.
        words[-1:] = ["--epsilon", "9", "--no-save"]
        refused = gapgnn(*words, "--plan")[1].splitlines()[-1]
        code, _, err = gapgnn(*words)
        assert (code, refused) == (
            3,
            f"it would be refused: {err.removeprefix('gapgnn: ').strip()}",
        )

    def test_models_for_comparison_are_priced_too_where_they_are_charged(self, gapgnn, tables):
        words = ["train", *tables, "--epsilon", "1", "--plan"]
        assert "for comparison" not in gapgnn(*words)[1]
        compared = [
            line for line in gapgnn(*words, "--compare")[1].splitlines() if "compar" in line
        ]
        assert compared == [
            "for comparison: GAP (paper), charged epsilon 1, delta 0.0001 too; left out with "
            "--no-compare"
        ]

    def test_at_node_level_nothing_is_charged_for_comparison_on_own_data_unasked(
        self, gapgnn, tables
    ):
        words = ["train", *declared(tables), *NODE, "--epsilon", "1", "--plan"]
        assert "for comparison" not in gapgnn(*words)[1]
        assert "for comparison: features only (MLP), charged" in gapgnn(*words, "--compare")[1]

    def test_models_for_comparison_are_charged_to_the_ledger_of_the_command(self, tmp_path):
        model = NodeLabelGAP(epsilon=3.0, ledger=tmp_path / "own.sqlite", seed=7)
        found = _untrained(model, (PAPER, FEATURES_ONLY, NOT_PRIVATE))
        assert len(found) == 3
        assert {one.ledger for one in found.values()} == {tmp_path / "own.sqlite"}
        assert {one.seed for one in found.values()} == {7}
        private = [one for name, one in found.items() if name != NOT_PRIVATE]
        assert {(one.level, one.epsilon) for one in private} == {("node", 3.0)}

    def test_without_privacy_there_is_no_price(self, gapgnn, tables):
        code, out, _ = gapgnn("train", *tables, "--level", "none", "--plan")
        assert code == 0
        assert "nothing is protected, charged or noisy" in out

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--epsilon", "-1"], "`--epsilon` must be positive"),
            (["--clip", "0.5"], "`--clip` must be left out"),
            (["--out", "model", "--no-save"], "`--no-save` must not come with `--out`"),
            (["--ledger", "legder.sqlite"], "gapgnn ledger init legder.sqlite"),
        ],
    )
    def test_what_training_refuses_its_plan_refuses(self, words, complaint, gapgnn, tables, ledger):
        code, out, err = gapgnn("train", *tables, *words, "--plan")
        assert (code, out) == (2, "")
        assert complaint in err
        assert ledger.entries() == []

    def test_it_is_the_plan_of_a_budget_that_is_too_small_too(self, gapgnn, tables, ledger):
        """A plan asks the ledger for nothing: what is left is for the charge to compare."""
        grant = ["--nodes", tables[3], "--epsilon", "0.5", "--delta", "1e-4"]
        assert gapgnn("ledger", "grant", "everybody", *grant)[0] == 0
        code, out, _ = gapgnn("train", *tables, "--epsilon", "1", "--plan")
        assert code == 0
        assert "price: epsilon 1, delta 0.0001 (auto)" in out or "price: epsilon 0.99" in out
        assert ledger.entries() == []


PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-model.md"


@pytest.mark.slow  # the gate runs it by name
def test_the_tutorial_tells_the_truth(gapgnn, ledger, tmp_path, monkeypatch):
    """Every command of the page runs, in order, and answers as the page says but for noise."""
    page = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    blocks = re.findall(r"```bash\ngapgnn ([^\n]*)\n```\n(.*?)```\w*\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    for number, (command, _, shown) in enumerate(blocks):
        code, out, err = gapgnn(*shlex.split(command))
        assert code == 0, err
        out = out.replace(str(ledger.path), "~/.local/share/gapgnn/ledger.sqlite")
        # On a terminal the words for people stand between those of the result. Numbers and the
        # name of a charge, of 24 digits and letters, are others every time.
        # How long a training takes is said where that is long, as on a busy machine.
        said = re.sub(r"^This takes about .*\n", "", out + err, flags=re.MULTILINE)
        without = (re.sub(r"\b[0-9a-f]{24}\b", "", text) for text in (shown, said))
        wanted, got = (sorted(re.sub(r"[\d.,:%\s]+", " ", text).split()) for text in without)
        if "--json" not in command:
            assert wanted == got, command
        else:
            assert json.loads(shown).keys() == json.loads(out).keys()
        if number == 0:
            exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})
    code, _, err = gapgnn("train")
    assert code == 3
    assert err.strip() in page


def test_a_training_names_recall_precision_and_support(gapgnn, tables):
    code, out, _ = gapgnn("train", "label-gap", *tables, *QUICK, "--no-save")
    assert code == 0
    assert re.search(
        r"^  \S+: recall [\d.]+%, precision (-|[\d.]+%), support \d+$", out, re.MULTILINE
    )
    assert "called" not in out
