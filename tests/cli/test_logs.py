"""Programs read what a command charged and what it says: `--json` and `--log-format json`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import write_tables

from gapgnn import LabelGAP
from gapgnn.cli.output import console, log_format, say

QUICK = ["--epochs", "2", "--epsilon", "4", "--folds", "0", "--hidden", "8", "--no-compare"]
RECEIPT = ["charges", "budgets", "ledger", "folder", "seconds"]
LOG = ("--log-format", "json")


@pytest.fixture
def tables(tmp_path, ledger) -> list[str]:
    return write_tables(tmp_path / "data")


def events(err: str) -> list[dict]:
    """Return the objects of a log, each on a line of its own."""
    found = [json.loads(line) for line in err.splitlines()]
    for one in found:
        assert list(one)[:4] == ["time", "severity", "event", "message"]
        assert one["severity"] in ("info", "warning", "error")
    return found


class TestReceipts:
    """Every JSON object of a command that may charge says what it charged, and what is left."""

    def granted(self, gapgnn, tables, epsilon: float = 10) -> None:
        words = ["ledger", "grant", "people", "--nodes", tables[3], "--delta", "1e-3"]
        assert gapgnn(*words, "--epsilon", epsilon, "--composition", "sum")[0] == 0

    @pytest.mark.parametrize(
        "words",
        [["train", "label-gap", *QUICK], ["embed", "--epsilon", "4", "--features", "codes.npy"]],
    )
    def test_of_a_success(self, words, gapgnn, tables, ledger, tmp_path):
        np.save("codes.npy", np.eye(120, 3))
        self.granted(gapgnn, tables)
        code, out, err = gapgnn(*words, *tables, "--out", "made", "--json")
        assert code == 0, err
        found, (charge,) = json.loads(out), ledger.entries()
        assert [one["id"] for one in found["charges"]] == [charge.id]
        assert found["charges"][0]["populations"] == ["people"]
        assert found["charges"][0]["epsilon"] == charge.epsilon
        (budget,) = found["budgets"]
        assert (budget["population"], budget["granted_epsilon"]) == ("people", 10)
        assert budget["spent_epsilon"] == pytest.approx(4, rel=1e-3)
        assert budget["left_epsilon"] == pytest.approx(6, rel=1e-3)
        assert (found["ledger"], found["folder"]) == (str(ledger.path), "made")
        assert found["seconds"]["total"] > 0

    def test_of_a_failure_before_the_charge(self, gapgnn, tables, ledger):
        self.granted(gapgnn, tables, epsilon=3)
        words = ["train", "label-gap", *QUICK, *tables, "--out", "made", "--json"]
        code, out, _ = gapgnn(*words)
        found = json.loads(out)
        assert (code, found["error"]["code"]) == (3, "budget-exhausted")
        assert list(found) == ["error", *RECEIPT]
        assert (found["charges"], found["folder"]) == ([], "made")
        assert [one["left_epsilon"] for one in found["budgets"]] == [3]

    def test_of_a_failure_after_the_charge(self, gapgnn, tables, ledger, monkeypatch):
        """What was charged stands in the error: nobody has to look for it."""

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(LabelGAP, "train", stop)
        code, out, _ = gapgnn("train", "label-gap", *QUICK, *tables, "--no-save", "--json")
        found, (charge,) = json.loads(out), ledger.entries()
        assert (code, found["error"]["code"]) == (130, "interrupted")
        assert [one["id"] for one in found["charges"]] == [charge.id]
        assert found["budgets"][0]["spent_epsilon"] == pytest.approx(charge.epsilon)

    def test_of_a_run_that_goes_on_names_the_charge_of_its_first_start(
        self, gapgnn, tables, ledger, monkeypatch
    ):
        train = LabelGAP.train

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        words = ["train", "label-gap", *QUICK, *tables, "--out", "made", "--json"]
        monkeypatch.setattr(LabelGAP, "train", stop)
        assert gapgnn(*words)[0] == 130
        monkeypatch.setattr(LabelGAP, "train", train)
        code, out, err = gapgnn(*words, "--resume")
        assert code == 0, err
        (charge,) = ledger.entries()
        assert [one["id"] for one in json.loads(out)["charges"]] == [charge.id]

    def test_of_options_that_cannot_be_read(self, gapgnn, ledger):
        for words in (["train", "--epsilom", "1"], ["predict", "--modle", "m"], ["embed", "-x"]):
            code, out, _ = gapgnn(*words, "--json")
            found = json.loads(out)
            assert (code, list(found)) == (2, ["error", *RECEIPT])
            assert (found["charges"], found["budgets"], found["ledger"]) == ([], [], None)

    def test_json_that_a_file_asks_for_is_also_the_answer_to_a_mistake(self, gapgnn, ledger):
        Path("run.toml").write_text("json = true\nepsilon = -1\nno-save = true\n")
        code, out, _ = gapgnn("train", "label-gap", "--config", "run.toml")
        assert (code, json.loads(out)["error"]["code"]) == (2, "bad-input")

    def test_of_an_experiment(self, gapgnn, tables, ledger):
        grid = ["--methods", "mlp", "--levels", "edge", "--repeats", "1", "--out", "results"]
        code, out, err = gapgnn("experiment", "accuracy", *tables, *grid, "--json")
        assert code == 0, err
        found = json.loads(out)
        assert set(RECEIPT) <= set(found)
        assert (found["charges"], found["folder"]) == ([], "results")


class TestLogsOfJson:
    def test_hold_everything_for_people_and_nothing_else(self, gapgnn, tables, ledger):
        words = ["train", "label-gap", *QUICK, *tables, "--out", "made"]
        code, out, err = gapgnn(*words, *LOG)
        found = events(err)
        assert code == 0
        assert [one["event"] for one in found if one["event"] == "price"] == ["price"]
        (price,) = [one for one in found if one["event"] == "price"]
        assert price["message"].startswith("Price: training label-gap is charged epsilon 4.00")
        ends = [one for one in found if one["event"] == "progress" and "seconds" in one]
        assert {"phase", "done", "total"} <= set(ends[-1])
        # The result itself stays what it is, and no note is below it.
        assert "LabelGAP, level edge" in out
        assert "Ledger: " not in out
        assert any(one["message"].startswith("Ledger: ") for one in found)
        assert any(one["message"].startswith("Note: No budget is set") for one in found)

    @pytest.mark.parametrize("place", ["before", "after"])
    def test_of_prices_and_charges_have_their_numbers(self, place, gapgnn, tables, tmp_path):
        assert gapgnn("train", "label-gap", *QUICK, *tables, "--out", "made")[0] == 0
        month = write_tables(tmp_path / "month", seed=1)
        words = ["predict", "--model", "made", *month, "--charge", "--out", "p.csv", "--json"]
        words = [*LOG, *words] if place == "before" else [*words, *LOG]
        code, out, err = gapgnn(*words)
        found = {one["event"]: one for one in reversed(events(err))}
        assert code == 0
        (charge,) = json.loads(out)["charges"]
        assert found["charge"]["id"] == charge["id"]
        assert found["price"]["epsilon"] == charge["epsilon"]
        assert found["ledger"]["message"].startswith("Ledger: ")

    @pytest.mark.parametrize("said", [LOG, ("--log-format=json",)])
    def test_an_error_is_one_object_with_its_code(self, said, gapgnn, ledger):
        for words in (
            ["train", "--epsilom", "1"],
            ["predict", "--model", "none", "--out", "x.csv"],
        ):
            code, out, err = gapgnn(*words, *said)
            (error,) = events(err)
            assert (code, out) == (2, "")
            assert (error["severity"], error["event"]) == ("error", "error")
            assert error["code"] in ("bad-input", "unavailable")

    def test_a_file_of_options_can_ask_for_them(self, gapgnn, ledger):
        Path("run.toml").write_text('log-format = "json"\nepsilon = -1\nno-save = true\n')
        code, _, err = gapgnn("train", "label-gap", "--config", "run.toml")
        assert code == 2
        assert "epsilon" in events(err)[-1]["message"]

    def test_details_are_one_object_as_well(self, gapgnn, ledger):
        words = ["train", "label-gap", "--epsilon", "-1", "--no-save", *LOG, "--verbose"]
        _, _, err = gapgnn(*words)
        assert [one["event"] for one in events(err)][-2:] == ["traceback", "error"]

    @pytest.mark.filterwarnings("default")
    def test_warnings_of_python_and_the_ledger_are_objects(self, gapgnn, tables, ledger):
        words = ["ledger", "grant", "others", "--nodes", tables[3], "--population", "else"]
        assert gapgnn(*words, "--epsilon", "4", "--delta", "1e-4")[0] == 0
        code, _, err = gapgnn("train", "label-gap", *QUICK, *tables, "--no-save", *LOG)
        assert code == 0
        warned = [one for one in events(err) if one["severity"] == "warning"]
        assert any("others" in one["message"] for one in warned)

    def test_quiet_leaves_prices_and_errors(self, gapgnn, tables):
        words = ["train", "label-gap", *QUICK, *tables, "--no-save", "--quiet"]
        code, _, err = gapgnn(*words, *LOG)
        assert code == 0
        assert {one["event"] for one in events(err)} == {"price"}

    def test_an_unknown_format_is_refused(self, gapgnn):
        code, out, err = gapgnn("datasets", "--log-format", "yaml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "'yaml'" in err

    def test_what_a_terminal_acts_on_is_escaped_and_a_line_stays_one(self, capsys):
        with log_format("json"):
            say("red\x1b[31m\nand more", to_stderr=True)
            console(to_stderr=True).print("a line of rich\nand another")
        found = events(capsys.readouterr().err)
        assert "\x1b" not in found[0]["message"]
        assert [one["message"] for one in found[1:]] == ["a line of rich", "and another"]

    def test_the_format_ends_with_its_command(self, gapgnn, tables):
        gapgnn("train", "--epsilon", "-1", *LOG)
        _, _, err = gapgnn("train", "--epsilon", "-1")
        assert err.startswith("gapgnn: ")


def test_a_monitor_reads_budgets_that_are_nearly_used_up(gapgnn, tables, ledger):
    words = ["ledger", "grant", "people", "--nodes", tables[3], "--delta", "1e-3"]
    assert gapgnn(*words, "--epsilon", 5, "--composition", "sum")[0] == 0
    code, out, _ = gapgnn("ledger", "watch", "--warn-at", "0.8", "--json")
    assert (code, [one["warns"] for one in json.loads(out)["budgets"]]) == (0, [False])
    assert gapgnn("train", "label-gap", *QUICK, *tables, "--no-save")[0] == 0
    code, out, _ = gapgnn("ledger", "watch", "--warn-at", "0.79", "--json")
    (budget,) = json.loads(out)["budgets"]
    assert (code, budget["warns"], budget["population"]) == (1, True, "people")
    assert budget["share"] == pytest.approx(0.8, rel=1e-3)
    assert gapgnn("ledger", "watch", "--warn-at", "0.81")[0] == 0
    assert gapgnn("ledger", "watch", "--warn-at", "0.79")[1] == "people at edge level: 80% used.\n"
