"""What version 0.1 wrote: stores, ledgers and results are read, models are refused.

The files (tests/fixtures/v0_1) were made by that version's own commands on the two tables beside
them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gapgnn import Ledger, load_model, read_tables
from gapgnn.cli.main import main
from gapgnn.errors import BudgetExceededError, InputError
from gapgnn.privacy.ledger import LedgerNotice, People

FIXTURE = Path(__file__).parent / "fixtures" / "v0_1"
MODELS = ("gap-edge", "gap-node", "sage-edge", "sage-node", "mlp-node")
TABLES = ("--edges", "friends.csv", "--nodes", "people.csv", "--label", "team")


@pytest.fixture
def before(tmp_path, monkeypatch):
    """Return a copy of the files, in which the test then runs."""
    folder = tmp_path / "v0_1"
    shutil.copytree(FIXTURE, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GAPGNN_LEDGER", str(folder / "ledger.sqlite"))
    with pytest.warns(LedgerNotice, match="brought to version 4"):
        assert Ledger().problems() == []
    return folder


def test_the_fixture_is_small():
    assert sum(path.stat().st_size for path in FIXTURE.rglob("*") if path.is_file()) < 200_000


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_refused_in_one_line_and_nothing_is_charged(name, before, capsys):
    charges = len(Ledger().entries())
    was = {path: path.read_bytes() for path in (before / name).rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"was written by gapgnn 0\.1") as refused:
        main(["predict", "--model", name, *TABLES, "--out", "now.csv"])
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="before models had a plan"):
        load_model(name)
    assert not Path("now.csv").exists()
    assert {path: path.read_bytes() for path in was} == was
    assert len(Ledger().entries()) == charges


def test_a_store_opens_and_is_the_graph_of_its_tables(before, capsys):
    graph = read_tables(edges="friends.csv", nodes="people.csv", label="team").graph
    look = ["describe", "--store", "store", "--curator-only", "is it the same graph", "--json"]
    assert main(look) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == graph.fingerprint
    training = ["train", "--store", "store", "--epochs", "2", "--no-save", "--json"]
    assert main(training) == 0


def test_a_ledger_keeps_its_grants_and_charges(before):
    ledger = Ledger()
    edge, node = (
        next(one for one in ledger.summary() if one.level == level) for level in ("edge", "node")
    )
    assert (edge.granted_epsilon, edge.charges) == (20.0, 2)
    assert edge.spent_epsilon == pytest.approx(8.0)
    assert (node.granted_epsilon, node.charges) == (None, 3)
    spend = {"level": "edge", "relation": "undirected", "epsilon": 11.0, "delta": 1e-6}
    graph = read_tables(edges="friends.csv", nodes="people.csv", label="team").graph
    charge = ledger.charge(People.of(graph), **spend, events=[], purpose="test")
    assert charge.budget is not None
    assert charge.budget.left_epsilon == pytest.approx(1.0)
    assert len(ledger.entries()) == 6
    # The budget was that of a file; now it is that of the people in it.
    next_month = People(graph.ids[:1].astype(str), "00" * 32)
    with pytest.raises(BudgetExceededError, match="budget of people"):
        ledger.charge(next_month, **spend, events=[], purpose="test")
    assert ledger.problems() == []


def test_results_become_a_page(before):
    assert main(["report", "results"]) == 0
    page = (before / "results" / "report.html").read_text()
    assert "GAP-EDP" in page
