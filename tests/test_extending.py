"""A second package, really installed, brings methods, an event and a data set.

The package is tests/fixtures/gapgnn_vote; docs/how-to/extending.md shows the same files.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gapgnn import MLP, Ledger
from gapgnn.cli.main import run as command_line
from gapgnn.errors import InputError
from gapgnn.graph.datasets import DatasetInfo, register_dataset
from gapgnn.graph.datasets import registry as dataset_registry
from gapgnn.methods import method_class, methods, register_method
from gapgnn.methods import registry as method_registry
from gapgnn.privacy.accounting import Event, LaplacePair, account, events
from gapgnn.registration import load_registered

pytestmark = pytest.mark.gate

PACKAGE = Path(__file__).parent / "fixtures" / "gapgnn_vote"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the package, beside one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "gapgnn_vote"
    shutil.copytree(PACKAGE, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(source)]
    subprocess.run(pip, check=True)
    broken = folder / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[gapgnn.methods]\nlost = nowhere_at_all:Lost\ngap = gapgnn_vote.poll:Poll\n"
    (broken / "entry_points.txt").write_text(points)
    return folder


@pytest.fixture
def gapgnn(site: Path, tmp_path: Path, monkeypatch, capsys):
    """Run the command line with the package installed, in a folder and with a ledger of its own."""
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(events, "_EVENT_CLASSES", dict(events._EVENT_CLASSES))
    monkeypatch.setattr(method_registry, "_ADDED", {})
    monkeypatch.setattr(dataset_registry, "DATASETS", dict(dataset_registry.DATASETS))
    load_registered.cache_clear()

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gapgnn", *words])
        with pytest.raises(SystemExit) as ended:
            command_line()
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out + printed.err

    yield run
    load_registered.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "gapgnn_vote"]:
        del sys.modules[name]


def test_installed_methods_and_data_sets_are_listed(gapgnn):
    listed = gapgnn("train", "--help")
    assert "poll" in listed
    assert "every training neighbour votes for its class" in listed
    assert "ring" in gapgnn("datasets")
    assert "--max-degree" in gapgnn("train", "poll", "--help")


def test_a_package_that_cannot_be_loaded_is_named_and_stops_nobody(gapgnn):
    listed = re.sub(r"\s+", " ", gapgnn("train", "--help"))
    assert "left out: 'lost', broken cannot be loaded: ModuleNotFoundError" in listed
    assert "left out: 'gap'" in listed
    assert "GAP, the paper's method" in listed


def test_an_outside_method_is_charged_saved_and_predicts_like_any_other(gapgnn, tmp_path):
    output = gapgnn(
        "train", "poll", "--dataset", "ring", "--epsilon", "8", "--out", "model", "--json"
    )
    answer, _ = json.JSONDecoder().raw_decode(output)
    assert answer["test_accuracy"]["mean"] > 0.6
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert (card["method"], card["epsilon"]) == ("Poll", pytest.approx(8.0))
    assert card["messages"] == "One vote of each training node, for its own class."
    assert "poll fit" in gapgnn("ledger", "show", "ring")
    again = gapgnn("predict", "--model", "model", "--dataset", "ring", "--out", "labels.csv")
    assert "no budget was spent" in again


def test_an_outside_event_is_calibrated_charged_and_read_back(gapgnn, tmp_path):
    options = ["--dataset", "ring", "--level", "node", "--epsilon", "1", "--relation", "replace"]
    gapgnn("train", "favourite", *options, "--out", "model")
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert [event["event"] for event in card["events"]] == ["NoisyCounts"]
    assert 0.99 < card["epsilon"] <= 1.0
    assert card["events"][0]["noise_multiplier"] == pytest.approx(1.0, rel=0.01)
    # `noise` and `audit` read the card's events in a process that never named the package.
    assert "NoisyCounts" in gapgnn("ledger", "show", "ring", "--json")


def test_an_outside_method_is_a_row_of_the_experiments(gapgnn, monkeypatch):
    from gapgnn.evaluation.grid.tasks import code_version

    def refused(self):
        raise InputError("not today")

    words = ["--dataset", "ring", "--methods", "poll", "mlp", "--levels", "edge", "--repeats", "2"]
    output = gapgnn("experiment", "accuracy", *words, "--out", "results")
    assert re.search(r"poll .* 4 ", output)
    assert (
        "Poll" in gapgnn("report", "results") or "Poll" in Path("results/report.html").read_text()
    )
    # A row of a package that cannot work stops a grid only where it was named.
    monkeypatch.setattr(method_class("poll"), "check", refused)
    words = ["--dataset", "ring", "--levels", "edge", "--dry-run"]
    assert "poll, level edge is left out: not today" in gapgnn("experiment", "accuracy", *words)
    # Other code of the package is another version of its results, and of no others.
    assert code_version("test_accuracy", "poll") != code_version("test_accuracy", "gap")
    assert code_version("test_accuracy", "gap") == code_version("test_accuracy")


@pytest.mark.usefixtures("gapgnn")
def test_an_event_is_known_to_a_process_that_never_named_its_package():
    assert "NoisyCounts" not in events._EVENT_CLASSES
    assert "gapgnn_vote" not in sys.modules
    event = Event.from_dict({"event": "NoisyCounts", "noise_multiplier": 2.0})
    assert str(event) == "NoisyCounts(noise_multiplier=2.0, times=1, label='')"
    assert account([event], 0.0, relation="replace").epsilon == 0.5


@pytest.mark.parametrize(
    "relation", ["add-remove", pytest.param("replace", marks=pytest.mark.slow)]
)
def test_the_pipeline_audit_replays_an_outside_method(gapgnn, relation):
    options = ["--dataset", "ring", "--level", "node", "--relation", relation]
    output = gapgnn("audit", "pipeline", "--neighbours", "first", "train", "favourite", *options)
    assert "class counts of repeat 1" in output


def test_a_method_registered_in_the_process_has_its_own_name(monkeypatch):
    monkeypatch.setattr(method_registry, "_ADDED", {})

    @register_method
    @dataclass(kw_only=True, eq=False, repr=False)
    class Copy(MLP):
        """Copy: an MLP under another name."""

        method = "copy"

    assert methods()["copy"] == "Copy: an MLP under another name."
    assert method_class("copy") is Copy
    with pytest.raises(InputError, match="name of its own"):
        register_method(type("Copy", (MLP,), {"method": "mlp"}))
    with pytest.raises(InputError, match="subclass of NodeClassifier"):
        register_method(object)


def test_a_data_set_and_an_event_cannot_take_a_name_that_is_taken():
    with pytest.raises(InputError, match="name of its own"):
        register_dataset(DatasetInfo("pubmed", "another", lambda paths: None))
    with pytest.raises(InputError, match="name of its own"):

        @dataclass(frozen=True)
        class Gaussian(Event):
            times: int = 1

            def pair(self, relation):
                return LaplacePair(1.0)


def test_the_page_shows_the_files_of_the_package():
    page = (PACKAGE.parents[2] / "docs" / "how-to" / "extending.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"`(\S+)`:\n\n```\w+\n(.*?)```", page, re.DOTALL))
    for name in ("pyproject.toml", "gapgnn_vote/poll.py", "gapgnn_vote/favourite.py"):
        assert shown[name] == (PACKAGE / name).read_text(encoding="utf-8")
    assert len(shown["gapgnn_vote/poll.py"].splitlines()) <= 40
    for name in ("gapgnn_vote/poll.py", "gapgnn_vote/favourite.py"):
        methods_of = re.findall(r"^    def (\w+)|\.(_\w+)\(", shown[name], re.MULTILINE)
        private = [name for pair in methods_of for name in pair if name.startswith("_")]
        assert set(private) <= {"__init__"}, "a method is written on public names"
