"""`gapgnn train`: one command, one result, and nothing half-written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from methodgraphs import small_graph, write_tables
from schemacases import declared

from gapgnn import load_model
from gapgnn.graph.datasets import load as datasets
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
MORE_KEYS = {"is_private_release", "noise", "split", "curator_only"}
QUICK = ["--epochs", "2", "--epsilon", "4", "--hidden", "8"]
NODE = ["--level", "node", "--batch-size", "30"]


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
    return {k: v for k, v in result.items() if k not in ("seconds", "peak_memory_mb")}


class TestResult:
    @pytest.mark.parametrize("method", ["gap", "mlp"])
    @pytest.mark.parametrize("level", [["--level", "none"], ["--level", "edge"], NODE])
    def test_json_is_one_object_with_the_contracts_keys(self, method, level, gapgnn, tables):
        own = declared(tables) if level is NODE else tables
        code, out, err = gapgnn("train", method, *own, *QUICK, *level, "--json")
        assert (code, err) == (0, "")
        assert len(out.splitlines()) == 1
        result = json.loads(out)
        assert result.keys() == KEYS | MORE_KEYS
        assert result["test_accuracy"].keys() == {"mean", "ci95", "runs"}
        phases = {"total", "calibrate", "encoder", "aggregate", "classifier"}
        assert result["seconds"].keys() == phases
        assert all(0 <= accuracy <= 1 for accuracy in result["test_accuracy"]["runs"])
        assert (result["method"], result["level"]) == (method, level[1])
        assert result["dataset"] == "people"
        if level[1] == "none":
            assert result["epsilon"] is result["delta"] is result["noise_multiplier"] is None
        elif method == "gap" or level[1] == "node":
            assert 0 < result["epsilon"] <= 4
            assert result["noise_multiplier"] > 0
        else:
            assert result["epsilon"] == 0

    def test_repeats_are_listed_with_their_interval(self, gapgnn, tables, ledger):
        _, out, _ = gapgnn("train", "gap", *tables, *QUICK, "--repeats", "3", "--json")
        accuracy = json.loads(out)["test_accuracy"]
        assert len(accuracy["runs"]) == 3
        low, high = accuracy["ci95"]
        assert low <= accuracy["mean"] <= high
        assert ledger.entries()[0].count == 3

    def test_a_bare_train_is_gap_on_the_built_in_graph(self, gapgnn, builtin, ledger):
        code, out, _ = gapgnn("train")
        assert code == 0
        assert builtin == ["social"]
        for words in ("GAP, level edge", "features only (MLP)", "without privacy", "epsilon"):
            assert words in out
        (charge,) = ledger.entries()
        assert (charge.level, charge.purpose) == ("edge", "gap fit")
        assert 0.99 < charge.epsilon <= 1

    def test_people_get_a_table_and_the_promise_in_a_sentence(self, gapgnn, tables):
        code, out, _ = gapgnn("train", "gap", *tables, *QUICK)
        assert code == 0
        assert "people: 120 nodes" in out
        assert "without privacy" not in out
        assert "edge" in out.lower()

    def test_references_that_cannot_be_paid_do_not_hide_the_result(
        self, gapgnn, builtin, ledger, tmp_path
    ):
        graph = small_graph(num_nodes=150)
        budget = {"level": "node", "relation": "add-remove", "epsilon": 4, "delta": 1e-2}
        ledger.grant(graph.fingerprint, **budget)
        code, out, err = gapgnn("train", *QUICK, *NODE, "--out", str(tmp_path / "model"))
        assert code == 0
        assert "No features-only reference" in err
        assert "GAP, level node" in out
        assert len(ledger.entries()) == 1

    def test_the_saved_model_is_the_one_reported(self, gapgnn, tables, tmp_path):
        folder = tmp_path / "model"
        _, out, _ = gapgnn("train", "gap", *tables, *QUICK, "--out", str(folder), "--json")
        card = load_model(folder).card_
        assert card.epsilon == json.loads(out)["epsilon"]
        assert load_model(folder).label_names_ == ("2004", "2005", "2006")


class TestConfig:
    def test_a_file_gives_what_the_options_give(self, gapgnn, tables, tmp_path):
        options = ["--level", "edge", "--epsilon", "4", "--epochs", "2", "--hidden", "8"]
        options += ["--combine", "mean", "--insecure-noise-seed", "3", "--batch-norm", "false"]
        config = tmp_path / "run.toml"
        config.write_text(
            f'edges = "{tables[1]}"\nnodes = "{tables[3]}"\nlabel = "year"\n'
            'level = "edge"\nepsilon = 4\nepochs = 2\nhidden = 8\ncombine = "mean"\n'
            "insecure_noise_seed = 3\nbatch-norm = false\njson = true\n"
        )
        _, from_options, _ = gapgnn("train", "gap", *tables, *options, "--json")
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
            _, out, _ = gapgnn("train", "gap", *words, *tables, "--json")
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
            ("hops = 2.5", "must be one of auto, a whole number. Got '2.5'"),
            ('level = "egde"', "Did you mean 'edge'?"),
            ("noise_ratios = [1.0, 2.0]", "expected 3 arguments"),
            ("epsilon = ", "cannot be read"),
        ],
    )
    def test_a_mistake_in_the_file_is_one_line(self, content, complaint, gapgnn, tables, tmp_path):
        config = tmp_path / "run.toml"
        config.write_text(content)
        code, out, err = gapgnn("train", "gap", *tables, "--config", str(config))
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
            (["--epsilon", "-1"], "`epsilon` must be positive. Got -1.0."),
            (["--epsilon", "nan"], "`epsilon`"),
            (["--epsilon", "many"], "--epsilon: must be a number. Got 'many'."),
            (["--level", "egde"], "Did you mean 'edge'?"),
            (["--delta", "2"], "`delta` must be above 0 and below 1. Got 2.0."),
            (["--delta", "small"], "auto, a number. Got 'small'"),
            (["--hops", "0"], "`hops` must be at least 1. Got 0."),
            (["--hops", "1.5"], "auto, a whole number"),
            (["--relation", "add-remove"], "`relation`"),
            (["--device", "tpu"], "cpu, cuda. Got 'tpu'"),
            (["--noise-ratios", "1", "2"], "expected 3 arguments"),
            (["--batch-norm", "maybe"], "true, false, auto"),
            (["--seed", "-1"], "`seed` must be at least 0. Got -1."),
            (["--epsilom", "1"], "Did you mean '--epsilon'?"),
            (["--level", "node", "--batch-size", "5000"], "at most 87, the number of training"),
            (["--level", "node", "--batch-norm", "true"], "`batch_norm` mixes the nodes"),
        ],
    )
    def test_bad_values_are_one_line_and_nothing_is_charged(
        self, words, complaint, gapgnn, tables, ledger
    ):
        own = declared(tables) if "node" in words else tables
        code, out, err = gapgnn("train", "gap", *own, *words)
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
        code, _, err = gapgnn("train", "gap", *tables, "--out", str(folder))
        assert code == 2
        assert "`out` must be a new or empty folder" in err
        assert ledger.entries() == []
        assert [path.name for path in folder.iterdir()] == ["mine.txt"]

    def test_over_budget_is_one_line(self, gapgnn, tables, ledger, tmp_path):
        assert gapgnn("train", "gap", *tables, *QUICK, "--json")[0] == 0
        data = ledger.entries()[0].fingerprint
        ledger.grant(data, level="edge", relation="undirected", epsilon=5, delta=0.5)
        folder = tmp_path / "model"
        code, out, err = gapgnn("train", "gap", *tables, *QUICK, "--out", str(folder))
        assert (code, out) == (2, "")
        assert "has epsilon 1" in err
        assert "left" in err
        assert not folder.exists()


class TestInterruption:
    @pytest.mark.parametrize("phase", ["encoder", "classifier"])
    def test_ctrl_c_leaves_nothing_half_written(
        self, phase, gapgnn, tables, ledger, tmp_path, monkeypatch
    ):
        original = Trainer.fit

        def interrupted(self, *args, **options):
            if options["phase"] == phase:
                raise KeyboardInterrupt
            original(self, *args, **options)

        monkeypatch.setattr(Trainer, "fit", interrupted)
        folder = tmp_path / "results" / "model"
        code, out, err = gapgnn("train", "gap", *tables, *QUICK, "--out", str(folder))
        assert (code, out) == (130, "")
        assert err.splitlines() == ["gapgnn: interrupted; nothing is left half-written"]
        assert not folder.exists()
        assert leftovers(tmp_path) == []
        assert [charge.completed_at for charge in ledger.entries()] == [None]

    def test_ctrl_c_while_saving_leaves_no_folder(self, gapgnn, tables, tmp_path, monkeypatch):
        from gapgnn.methods import folder as folder_module

        def interrupted(path, content):
            if path.name == "card.json":
                raise KeyboardInterrupt
            path.write_bytes(content)

        monkeypatch.setattr(folder_module, "_write", interrupted)
        code, _, _ = gapgnn("train", "gap", *tables, *QUICK, "--out", str(tmp_path / "model"))
        assert code == 130
        assert leftovers(tmp_path) == []


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
        paper = ("--messages", "features", "--hops", "2")
        gapgnn("train", "gap", *tables, *QUICK, *paper, "--json")
        assert [entry for entry in shown if len(entry) == 2] == [
            ("encoder", 2),
            ("aggregation", 2),
            ("classifier", 2),
        ]
        trained = [entry for entry in shown if len(entry) == 3 and entry[0] != "aggregation"]
        assert len(trained) == 4
        assert all(loss > 0 and 0 <= accuracy <= 1 for _, loss, accuracy in trained)

    @pytest.mark.parametrize("method", ["gap", "mlp"])
    def test_node_level_shows_neither(self, method, gapgnn, tables, shown):
        gapgnn("train", method, *declared(tables), *QUICK, *NODE, "--json")
        advanced = [entry[1:] for entry in shown if len(entry) == 3]
        assert len(advanced) >= 5
        assert set(advanced) == {(None, None)}

    def test_bars_go_to_stderr_even_on_a_terminal(self, gapgnn, tables, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        code, out, err = gapgnn("train", "gap", *tables, *QUICK, "--json")
        assert code == 0
        json.loads(out)
        assert "\x1b" not in out
        assert "encoder" in err


PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.slow
def test_the_tutorial_tells_the_truth(gapgnn, ledger, tmp_path, monkeypatch):
    """Every command of the page runs, in order, and answers as the page says but for noise."""
    page = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    blocks = re.findall(r"```bash\ngapgnn (.*?)\n```\n(.*?)```\w*\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 6
    for number, (command, _, shown) in enumerate(blocks):
        code, out, err = gapgnn(*shlex.split(command))
        assert code == 0, err
        wanted, got = (re.sub(r"[\d.,:%\s]+", " ", text) for text in (shown, out + err))
        if "--json" not in command:
            assert wanted.strip() == got.strip(), command
        else:
            assert json.loads(shown).keys() == json.loads(out).keys()
        if number == 0:
            exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], {})
    code, _, err = gapgnn("train")
    assert code == 2
    assert err.strip() in page
