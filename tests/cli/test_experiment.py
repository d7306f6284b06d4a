"""`gapgnn experiment`: plans, runs, resumes; bad input is one line and writes nothing."""

from __future__ import annotations

import functools
import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from methodgraphs import write_risks, write_tables
from rich.console import Console

from gapgnn import Ledger
from gapgnn.cli.experiment import GridProgress, Pace
from gapgnn.cli.main import COMMANDS
from gapgnn.errors import DataError
from gapgnn.evaluation.grid import runner
from gapgnn.evaluation.grid.plans import METHODS, plan
from gapgnn.evaluation.grid.records import FILE, Record, load
from gapgnn.evaluation.grid.runner import Failure
from gapgnn.evaluation.grid.tasks import Source, Task
from gapgnn.evaluation.report import write_report

pytestmark = pytest.mark.gate

FEW = ("--methods", "mlp", "gap", "--levels", "edge", "--repeats", "2")

MLP = ("--methods", "mlp", "--levels", "edge")


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    return write_tables(tmp_path / "tables", count=120)


@pytest.fixture
def gapgnn(gapgnn):
    """Return a function that runs the command: exit code, stdout, stderr."""
    return functools.partial(gapgnn, "experiment")


class TestRun:
    def test_a_grid_on_your_own_tables_is_kept_and_not_run_twice(self, gapgnn, tables, tmp_path):
        words = ("accuracy", *tables, *FEW, "--out", "results", "--json")
        code, out, err = gapgnn(*words)
        assert (code, err, out.count("\n")) == (0, "", 1)
        first = json.loads(out)
        assert (first["planned"], first["found"], first["ran"]) == (2, 0, 2)
        before = Path("results", FILE).read_bytes()
        code, out, _ = gapgnn(*words)
        again = json.loads(out)
        assert (code, again["found"], again["ran"]) == (0, 2, 0)
        assert Path("results", FILE).read_bytes() == before
        records = load("results")
        assert {record.dataset for record in records} == {"people"}
        assert [len(record.runs) for record in records] == [2, 2]
        assert all("--edges" in record.command for record in records)
        assert len(list(Path("results", "logs").glob("*.jsonl"))) == 2
        assert Ledger(tmp_path / "ledger.sqlite").entries() == []

    def test_the_report_of_two_classes_has_precision_and_recall_of_the_runs(self, gapgnn, tables):
        words = ("accuracy", *write_risks(tables), *MLP, "--repeats", "2")
        assert gapgnn(*words, "--out", "results")[0] == 0
        (record,) = load("results")
        page = write_report("results").page.read_text()
        assert "people, class high, edge level" in page
        (row,) = (
            line
            for line in Path("results/tables/precision-recall.csv").read_text().splitlines()
            if line.split(",")[-8:-6] == ["0", "average precision"]
        )
        mean = sum(one.average_precision for one in record.rankings) / 2
        assert float(row.split(",")[-6]) == pytest.approx(mean, abs=1e-6)
        assert Path("results/figures/precision-recall.svg").exists()

    def test_people_see_each_run_and_a_table(self, gapgnn, tables):
        code, out, err = gapgnn("accuracy", *tables, *FEW, "--out", "results")
        assert code == 0
        assert [line.split()[0] for line in err.splitlines()] == ["1/2", "2/2"]
        assert all(
            re.search(r"accuracy \S+ \(largest class \S+, AUC \S+\)", line)
            for line in err.splitlines()
        )
        assert all(head in out for head in ("largest", "balanced", "F1", "AUC"))
        assert "2 rows: 0 were there, 2 runs" in out
        assert "for the curator only" in out

    def test_a_selection_says_that_epsilon_does_not_cover_it(self, gapgnn, tables):
        words = (*MLP, "--repeats", "1", "--select", "validation")
        code, out, _ = gapgnn("accuracy", *tables, *words, "--out", "results")
        assert code == 0
        assert "epsilon does not cover it" in " ".join(out.split())
        (record,) = load("results")
        assert (record.select, len(record.extra["candidates"])) == ("validation", 1)

    @pytest.mark.slow
    def test_two_processes_do_the_same(self, gapgnn, tables):
        free = ("--methods", "mlp", "vote", "--levels", "edge")
        words = ("tradeoff", *tables, *free, "--repeats", "2", "--json")
        gapgnn(*words, "--out", "one")
        code, out, _ = gapgnn(*words, "--out", "two", "--jobs", "2")
        assert (code, json.loads(out)["ran"]) == (0, 2)
        figures = [{r.key: r.runs for r in load(folder)} for folder in ("one", "two")]
        assert figures[0] == figures[1]

    def test_membership_is_run_through_the_attack(self, gapgnn, tables, monkeypatch):
        from gapgnn.attacks import membership

        class Found:
            def to_dict(self):
                return {"runs": [{"auc": 0.5}]}

        monkeypatch.setattr(membership, "membership_attack", lambda *args, **options: Found())
        words = (
            "--methods",
            "mlp",
            "--levels",
            "none",
            "--repeats",
            "1",
            "--on",
            "target",
            "shadow",
        )
        code, _, _ = gapgnn("membership", *tables, *words, "--out", "results", "--json")
        assert code == 0
        assert [record.extra["attack"] for record in load("results")] == [
            {"on": "target"},
            {"on": "shadow"},
        ]

    def test_a_row_that_fails_is_named_and_the_exit_code_is_1(self, gapgnn, tables, monkeypatch):
        from gapgnn.errors import DataError

        original = runner.perform

        def fail(task, **options):
            if task.configuration.method == "mlp":
                raise DataError("too small.")
            return original(task, **options)

        monkeypatch.setattr(runner, "perform", fail)
        code, out, err = gapgnn("accuracy", *tables, *FEW, "--out", "results", "--json")
        assert code == 1
        assert err == "gapgnn: people, mlp, level edge: too small.\n"
        assert [row["method"] for row in json.loads(out)["failed"]] == ["mlp"]

    def test_a_config_file_can_say_it_all_but_the_experiment(self, gapgnn, tmp_path):
        (tmp_path / "run.toml").write_text('repeats = 3\nselect = "fixed"\n')
        _, out, _ = gapgnn("hops", "--config", "run.toml", "--dry-run")
        assert "20 runs of 3 repeats" in out


class TestDryRun:
    def test_it_prints_the_grid_and_an_estimate_and_writes_nothing(self, gapgnn, tmp_path):
        code, out, _ = gapgnn("accuracy", "degree", "--dry-run", "--out", "results")
        text = " ".join(out.split())
        assert code == 0
        # GAP at D = 100 is shared by neither: accuracy has epsilon 8, degree 4 and 16.
        assert "32 rows, 32 runs of 10 repeats" in text
        assert "an estimate from runs on another machine, not a promise" in text
        assert not (tmp_path / "results").exists()

    def test_no_name_of_a_method_and_no_figure_is_cut(self, gapgnn, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        _, out, _ = gapgnn("accuracy", "encoder", "--dry-run")
        lines = [line.split("│") for line in out.splitlines() if line.startswith("│")]
        # The data set is the same everywhere: it stands above the table.
        assert {len(line) for line in lines} == {9}
        names = {line[2].strip() for line in lines}
        assert {*METHODS, "own record", "own nothing"} >= names - {""} >= {"node-label-gap", "sage"}
        assert {line[7].strip()[-1:] for line in lines} <= {"s", "n", ""}

    def test_what_all_rows_have_in_common_stands_above_them_once(self, gapgnn, monkeypatch):
        monkeypatch.setenv("COLUMNS", "160")
        _, out, _ = gapgnn("accuracy", "--methods", "gap", "sage", "--levels", "edge", "--dry-run")
        assert "All rows: data set social, experiment accuracy, level edge, epsilon 4." in out
        head = next(line for line in out.splitlines() if "method" in line)
        assert not any(word in head for word in ("data set", "experiment", "level", "epsilon"))
        # A single row keeps its columns: nothing is in common with another one.
        _, out, _ = gapgnn("accuracy", "--methods", "gap", "--levels", "edge", "--dry-run")
        assert any("data set" in line and "method" in line for line in out.splitlines())


class TestAsThePaper:
    def test_relation_delta_and_selection_are_the_paper_s(self, gapgnn, tables):
        words = ("accuracy", *tables, "--as-paper", "--methods", "gap", "mlp", "--repeats", "1")
        code, out, _ = gapgnn(*words, "--levels", "edge", "node", "--epsilons", "4", "--dry-run")
        assert code == 0, out
        # Candidates of the selection: five numbers of hops, and with them four degree bounds.
        assert "4 rows, 27 runs" in " ".join(out.split())

    def test_a_record_states_the_published_delta(self, gapgnn, tables):
        words = ("accuracy", *tables, "--as-paper", "--methods", "gap", "--levels", "edge")
        assert gapgnn(*words, "--repeats", "1", "--out", "results", "--json")[0] == 0
        (record,) = load("results")
        assert (record.relation, record.select) == ("directed", "validation")
        # Of some thousand arcs: the power of ten below 1 / arcs.
        assert record.delta == 1e-4

    def test_the_data_sets_are_the_papers_unless_others_are_named(self, gapgnn, monkeypatch):
        asked = []

        def no_file(args, **options):
            asked.append(args.dataset)
            raise DataError("the file is not here.")

        monkeypatch.setattr("gapgnn.cli.experiment.load_graph", no_file)
        gapgnn("accuracy", "--as-paper", "--dry-run")
        gapgnn("accuracy", "--as-paper", "--datasets", "social", "--dry-run")
        assert asked == ["facebook100/UIllinois20", "social"]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--relation", "undirected"), "`--as-paper` must not come with another relation"),
            (("--edge-delta", "1e-6"), "`--as-paper` must not come with `--edge-delta`"),
        ],
    )
    def test_an_option_against_it_is_one_line(self, gapgnn, words, message):
        code, _, err = gapgnn("accuracy", "--as-paper", *words, "--dry-run")
        assert code == 2
        assert message in err
        assert err.count("\n") == 1

    def test_rows_that_are_there_are_not_counted(self, gapgnn, tables):
        gapgnn("accuracy", *tables, *FEW, "--out", "results", "--json")
        words = ("accuracy", "tradeoff", *tables, *FEW, "--out", "results", "--dry-run", "--json")
        plan = json.loads(gapgnn(*words)[1])
        assert len(plan["rows"]) == 2 + 8
        # Of the trade-off, epsilon 4 and the MLP are there under another name.
        assert plan["runs"] == 6
        assert plan["estimated_seconds"] > 0


BAD = {
    "an unknown data set": (
        ("accuracy", "--datasets", "facebook100/Cornel5", "--out", "results"),
        "Did you mean 'facebook100/Cornell5'",
    ),
    "an unknown method": (
        ("accuracy", "--methods", "lable-gap", "--out", "results"),
        "Did you mean 'label-gap'?",
    ),
    "an unknown experiment": (("acuracy", "--out", "results"), "Did you mean 'accuracy'?"),
    "an unknown option": (("accuracy", "--dataset", "social", "--metods"), "'--methods'"),
    "no folder": (("accuracy",), "`--out` must name the folder of the results. Got none."),
    "an unwritable folder": (
        ("accuracy", "--methods", "mlp", "--out", "file/results"),
        "`file/results` must be a folder that can be written. Got Not a directory.",
    ),
    "a newer store": (
        ("accuracy", "--methods", "mlp", "--out", "newer"),
        "`newer/results.jsonl`, line 1: A result must have format 2. Got 9; use a newer gapgnn",
    ),
    "a damaged store": (
        ("accuracy", "--methods", "mlp", "--out", "damaged"),
        "`damaged/results.jsonl`, line 1: A result must be one line of JSON.",
    ),
    "no jobs": (("accuracy", "--out", "results", "--jobs", "0"), "`--jobs` must be at least 1"),
    "no repeats": (("accuracy", "--out", "results", "--repeats", "0"), "`--repeats` must be at"),
    "a bad epsilon": (
        ("accuracy", "--out", "results", "--epsilons", "0"),
        "`--epsilons` must be positive. Got 0.0.",
    ),
    "a bad selection": (
        ("accuracy", "--out", "results", "--select", "validaton"),
        "Did you mean 'validation'?",
    ),
    "a selection for an attack": (
        ("membership", "--out", "results", "--select", "validation"),
        "`--select` must be fixed for the experiment membership",
    ),
    "a relation a row cannot have": (
        ("accuracy", "--out", "results", "--relation", "replace"),
        "sage, level node: `--relation` must be add-remove",
    ),
    "tables and names": (
        ("accuracy", "--datasets", "social", "--edges", "e.csv", "--out", "results"),
        "`--datasets` must not come with `--edges`",
    ),
    "half the tables": (
        ("accuracy", "--nodes", "n.csv", "--out", "results"),
        "`--nodes` must come with `--edges`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(case, gapgnn, tmp_path):
    (tmp_path / "file").write_text("")
    for folder, text in (("newer", '{"format": 9}\n'), ("damaged", "garbage\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / FILE).write_text(text)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    words, complaint = BAD[case]
    code, out, err = gapgnn(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("gapgnn: ")
    assert complaint in err
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_a_half_written_last_line_is_reported_and_put_right(gapgnn, tables):
    words = ("accuracy", *tables, *FEW, "--out", "results", "--json")
    gapgnn(*words)
    path = Path("results", FILE)
    whole = path.read_bytes()
    first = whole[: whole.index(b"\n") + 1]
    path.write_bytes(whole[:-30])
    code, out, err = gapgnn(*words)
    assert (code, err.count("\n")) == (0, 1)
    assert "ends in a half-written line" in err
    assert "all others are safe" in err
    assert (json.loads(out)["found"], json.loads(out)["ran"]) == (1, 1)
    assert path.read_bytes().startswith(first)
    assert len(load("results")) == 2


def test_without_its_package_ray_is_one_line(gapgnn, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = gapgnn("accuracy", "--ray", "auto", "--out", "results")
    assert (code, err.count("\n")) == (2, 1)
    assert "install `gapgnn[ray]`" in err
    assert not (tmp_path / "results").exists()


def test_ray_is_asked_for_an_executor_by_address_and_jobs(gapgnn, monkeypatch, tables):
    from gapgnn.evaluation.grid.executors import local_executor

    asked = []

    def ray_executor(address, jobs):
        asked.append((address, jobs))
        return local_executor(1)

    monkeypatch.setitem(
        sys.modules, "gapgnn.cluster", types.SimpleNamespace(ray_executor=ray_executor)
    )
    words = ("accuracy", *tables, *MLP, "--repeats", "1", "--out", "results")
    code, _, _ = gapgnn(*words, "--ray", "local", "--jobs", "3", "--json")
    assert (code, asked) == (0, [("local", 3)])
    # Another machine may not have this folder.
    assert not Path("results", "logs").exists()


class TestProgress:
    def task(self, **changes) -> Task:
        (configuration,) = plan("accuracy", methods=["mlp"], levels=["edge"])
        source = Source("[tiny]", ("tiny",), len)
        values = {"fingerprint": "f", "arcs": 1, "version": "v", **changes}
        return Task(configuration=configuration, source=source, **values)

    def record(self, task: Task) -> Record:
        return Record(
            key=task.key,
            experiment="accuracy",
            dataset="tiny",
            fingerprint="f",
            method="mlp",
            level="edge",
            relation="none",
            epsilon=0.0,
            delta=None,
            parameters={},
            metric="test_accuracy",
            runs=(0.5,),
            seconds=75.0,
            noise_multiplier=None,
            events=(),
            guarantee="",
            command="",
            version="v",
            created="2026",
            machine="m",
        )

    def test_a_terminal_shows_one_bar_with_count_and_time_left(self):
        text = io.StringIO()
        screen = Console(file=text, force_terminal=True, width=120)
        first, second = self.task(), self.task(seed=1)
        progress = GridProgress(screen, [], jobs=1)
        with progress.bars:
            progress.start([first, second])
            progress.done(first, self.record(first))
            progress.bars.refresh()
            progress.done(second, Failure("too [small]."))
            progress.bars.refresh()
        shown = text.getvalue()
        assert "1/2" in shown
        assert "2/2" in shown
        assert "left" in shown
        assert "[tiny], mlp, level edge, epsilon 0: accuracy 50.0% in 1 min 15 s" in shown
        assert "failed: too [small]." in shown

    def test_the_time_left_follows_what_runs_really_took(self, monkeypatch):
        now = [0.0]
        clock = types.SimpleNamespace(monotonic=lambda: now[0])
        monkeypatch.setattr("gapgnn.cli.experiment.time", clock)
        pace = Pace([10.0, 10.0, 10.0], jobs=1)
        assert pace.seconds_left() == 30
        now[0] = 4.0
        assert pace.seconds_left() == 26
        pace.done(10.0, 20.0)
        assert pace.seconds_left() == 40
        pace.done(10.0, 20.0)
        pace.done(10.0, 20.0)
        assert pace.seconds_left() == 0
        assert Pace([30.0], jobs=2).seconds_left() == 15


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from gapgnn.cli.main import main\n"
        "try: main(['experiment', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.endswith("False\n")
    assert {"experiment", "report"} <= set(COMMANDS)
