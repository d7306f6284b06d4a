"""A year in a bank: twelve monthly tables of the same people, one budget, the real commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from gapgnn.cli.main import main
from gapgnn.errors import BudgetExceededError
from gapgnn.privacy.ledger import Ledger

pytestmark = pytest.mark.gate

PEOPLE, CHURN, MONTHS = 400, 8, 12
TEXT_IDS, FEWER_COLUMNS, RENAMED = 2, 4, 5


class Bank:
    """Customers and who pays whom; every month 2 % leave and as many come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(7)

    def month(self, number: int) -> list[str]:
        """Write one month's tables and return the options that name them."""
        ids = np.arange(PEOPLE) + CHURN * number
        years = ids % 3
        payments = self.rng.integers(0, PEOPLE, size=(1200, 2))
        payments = payments[payments[:, 0] != payments[:, 1]]
        alike = years[payments[:, 0]] == years[payments[:, 1]]
        payments = payments[alike | (self.rng.random(len(alike)) < 0.3)]
        columns = {"id": ids, "year": [f"y{year}" for year in years], "age": ids % 60 + 20}
        if number != FEWER_COLUMNS:
            columns["rent"] = ids % 7
        name = "clients" if number == RENAMED else "customers"
        if number == TEXT_IDS:
            columns["id"] = ids.astype(str)
            nodes = self.folder / f"{name}.parquet"
            parquet.write_table(pa.table(columns), nodes)
        else:
            nodes = self.folder / f"{name}.csv"
            csv.write_csv(pa.table(columns), nodes)
        edges = self.folder / "payments.csv"
        csv.write_csv(pa.table({"from": ids[payments[:, 0]], "to": ids[payments[:, 1]]}), edges)
        return ["--edges", str(edges), "--nodes", str(nodes), "--label", "year"]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    path = tmp_path / "bank.sqlite"
    assert main(["ledger", "init", str(path)]) == 0
    monkeypatch.setenv("GAPGNN_LEDGER", str(path))
    monkeypatch.chdir(tmp_path)
    return Ledger(path)


def grant(bank: Bank, *options: str) -> None:
    bank.month(0)
    words = ["ledger", "grant", "customers", "--nodes", str(bank.folder / "customers.csv")]
    assert main([*words, "--level", "edge", "--epsilon", "6", "--delta", "1e-3", *options]) == 0


def months_until_refused(bank: Bank, ledger: Ledger, tmp_path: Path) -> int:
    """Train and predict month after month; return how many months the budget lasts."""
    train = ["train", "label-gap", "--epsilon", "1", "--delta", "1e-4", "--epochs", "1"]
    # A mixing weight that noise may set to 0 would leave later months unread, and free.
    train += ["--folds", "0", "--no-compare"]
    for number in range(MONTHS):
        tables, model = bank.month(number), str(tmp_path / f"model-{number}")
        charged = len(ledger.entries())
        try:
            assert main([*train, *tables, "--out", model, "--reason", f"month {number}"]) == 0
        except BudgetExceededError:
            assert not Path(model).exists()
            assert len(ledger.entries()) == charged
            return number
        assert len(ledger.entries()) == charged + 1
        labels = str(tmp_path / f"labels-{number}.csv")
        assert main(["predict", "--model", model, *tables, "--out", labels]) == 0
        assert len(ledger.entries()) == charged + 1, "the graph of training is free"
        assert set(csv.read_csv(labels)["graph"].to_pylist()) == {"training"}
    return MONTHS


def test_a_budget_for_six_fits_is_spent_by_six_months_and_the_seventh_is_refused(
    ledger, tmp_path, capsys
):
    bank = Bank(tmp_path)
    grant(bank, "--composition", "sum")
    assert months_until_refused(bank, ledger, tmp_path) == 6
    (budget,) = ledger.summary()
    assert budget.population == "customers"
    assert budget.charges == 6
    assert 5.9 < budget.spent_epsilon <= budget.granted_epsilon == 6.0
    # Everybody who ever came is a member: nobody was read outside the budget.
    assert budget.people == PEOPLE + 5 * CHURN
    assert main(["ledger", "verify"]) == 0
    assert [charge.reason for charge in ledger.entries()] == [f"month {k}" for k in range(6)]
    # Last month's model cannot look at this month's payments either.
    tables = bank.month(6)
    with pytest.raises(BudgetExceededError):
        main(["predict", "--model", str(tmp_path / "model-5"), *tables, "--out", "labels.csv"])


def test_gaussian_releases_counted_together_last_longer(ledger, tmp_path, capsys):
    bank = Bank(tmp_path)
    grant(bank, "--composition", "gaussian")
    months = months_until_refused(bank, ledger, tmp_path)
    capsys.readouterr()
    assert main(["ledger", "--json"]) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    print(f"sum: 6 months; gaussian: {months}, epsilon {budget['spent_epsilon']:.3f} together")
    assert months > 6
    assert budget["spent_epsilon"] <= 6.0
    assert main(["ledger", "verify"]) == 0
