"""What reaches the terminal and the process: signals, misplaced options, escapes, formulas."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.table import Table

from gapgnn.cli.output import console, plain_cell, verbosity
from gapgnn.training.trainer import Trainer

ESCAPE = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e"
COUNT = 40


def write_people(folder, ids, teams, column="age"):
    table = pa.table(
        {
            "id": [ids[k] if k < len(ids) else f"p{k}" for k in range(COUNT)],
            column: [k % 7 for k in range(COUNT)],
            "team": [teams[k % len(teams)] for k in range(COUNT)],
        }
    )
    pq.write_table(table, folder / "people.parquet")
    names = table.column("id").to_pylist()
    pairs = [(names[k], names[(k + step) % COUNT]) for k in range(COUNT) for step in (1, 3, 7)]
    sources, targets = zip(*pairs, strict=True)
    pq.write_table(pa.table({"a": sources, "b": targets}), folder / "paid.parquet")
    return ["--edges", "paid.parquet", "--nodes", "people.parquet", "--label", "team"]


TRAIN = ["--level", "edge", "--epsilon", "1", "--epochs", "2", "--device", "cpu"]


def is_harmless(text: str) -> bool:
    return not any(mark in text for mark in "\x1b\x07\x9b\u202e\r")


def test_no_name_in_the_data_reaches_the_terminal_as_a_control_character(gapgnn, tmp_path):
    tables = write_people(
        tmp_path, [f"a{ESCAPE}"], [f"red{ESCAPE}", f"blue{ESCAPE}"], f"age{ESCAPE}"
    )
    commands = [
        ["describe", *tables],
        ["describe", "--nodes", "people.parquet"],
        ["describe", *tables, "--drop", f"agee{ESCAPE}"],
        ["schema", "--nodes", "people.parquet", "--label", "team", "--out", "s.toml"],
        ["train", "label-gap", *tables, *TRAIN, "--out", "m"],
        ["predict", "--model", "m", *tables[:4], "--out", "p.csv"],
        ["train", "label-gap", *tables[:4], "--label", "a\x1b[31m", *TRAIN, "--no-save", "-v"],
        ["ledger", "show", "default"],
    ]
    said = ""
    for words in commands:
        _, out, err = gapgnn(*words)
        assert is_harmless(out + err), words
        said += out + err
    assert "red\\x1b[31m" in said
    assert "age\\x1b[31m" in said


def test_tables_errors_and_progress_escape_what_they_are_given(capsys):
    with verbosity("normal"):
        table = Table("head", title=f"title{ESCAPE}")
        table.add_row(f"[bold]cell[/bold]{ESCAPE}")
        for to_stderr in (False, True):
            console(to_stderr=to_stderr).print(table, f"text{ESCAPE}")
    out, err = capsys.readouterr()
    assert is_harmless(out + err)
    # A frame that fits: the escapes were there before the columns were measured.
    assert len({len(line) for line in out.splitlines() if "│" in line or "┃" in line}) == 1


def test_a_formula_in_an_id_or_a_class_is_text_in_csv_and_a_number_stays_one(gapgnn, tmp_path):
    ids = ["=1+1", "+49 30", "-5+1", "@sum", "\tx", "'=1", "-5", "+49", "O'Hara"]
    tables = write_people(tmp_path, ids, ["=red", "blue"])
    why = ["--reason", "=cmd|'/C calc'!A0"]
    code, _, err = gapgnn("train", "label-gap", *tables, *TRAIN, *why, "--out", "m")
    assert code == 0, err
    words = ["predict", "--model", "m", *tables, "--with", "truth", "--with", "probabilities"]
    for out in ("p.csv", "p.parquet"):
        code, _, err = gapgnn(*words, "--out", out)
        assert code == 0, err
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    written = [row["id"] for row in rows[: len(ids)]]
    assert written == ["'=1+1", "'+49 30", "'-5+1", "'@sum", "'\tx", "''=1", "-5", "+49", "O'Hara"]
    assert {row["truth"] for row in rows} == {"'=red", "blue"}
    # Other formats are for programs and hold what the table holds.
    assert pq.read_table(tmp_path / "p.parquet").column("id").to_pylist()[: len(ids)] == ids
    code, _, err = gapgnn("ledger", "export", "--out", "l.csv")
    assert code == 0, err
    with (tmp_path / "l.csv").open(newline="", encoding="utf-8") as file:
        assert {row["reason"] for row in csv.DictReader(file)} == {f"'{why[1]}"}


@pytest.mark.parametrize("cell", ["=1", "-5", "-a", "+", "''@x", "x=1", "", "'", "-1,5e3", "\r=1"])
def test_taking_the_apostrophe_away_gives_every_cell_back(cell):
    written = plain_cell(cell)
    assert written == cell or written[1:] == cell
    # A changed cell is recognisable: escaping it again changes nothing more.
    assert (written != cell) == (plain_cell(written) != written)


def test_an_option_of_another_subcommand_is_named_with_its_owner(gapgnn):
    code, _, err = gapgnn("audit", "aggregation", "--model", "m")
    assert code == 2
    assert "`--model` is not an option of `gapgnn audit aggregation`, but of `gapgnn audit`" in err
    assert "Did you mean" not in err
    code, _, err = gapgnn("audit", "dpsgd", "--perturbation", "arr")
    assert "not an option of `gapgnn audit dpsgd`, but of `gapgnn audit edges`" in err
    code, _, err = gapgnn("audit", "dpsgd", "--epsilom", "1")
    assert "unknown option '--epsilom'. Did you mean '--epsilon'?" in err


def test_noise_answers_for_several_budgets(gapgnn):
    words = ["noise", "--level", "edge", "--delta", "1e-7", "--hops", "2", "--epsilon"]
    code, out, err = gapgnn(*words, "1", "2", "4")
    assert code == 0, err
    rows = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {"1", "2", "4"} <= rows
    code, out, _ = gapgnn(*words, "1", "2", "--json")
    several = json.loads(out)["answers"]
    alone = [json.loads(gapgnn(*words, budget, "--json")[1]) for budget in ("1", "2")]
    assert several == alone
    code, out, err = gapgnn(*words, "1", "-2")
    assert (code, "`--epsilon` must" in err) == (2, True)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_print_the_command_that_resumes_and_lose_nothing(
    gapgnn, tmp_path, ledger, name, monkeypatch
):
    number, fit = getattr(signal, name), Trainer.fit

    def killed(self, *args, phase, **options):
        if phase == "classifier":
            os.kill(os.getpid(), number)
        return fit(self, *args, phase=phase, **options)

    words = ["train", "gap", *write_people(tmp_path, [], ["red", "blue"]), *TRAIN, "--no-compare"]
    words += ["--out", "m"]
    # Under nohup, or in the background, a process inherits that a signal is ignored.
    usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    before = signal.signal(number, usual)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "fit", killed)
            code, _, err = gapgnn(*words)
    finally:
        signal.signal(number, before)
    assert code == 128 + number, err
    assert f"gapgnn {shlex.join(words)} --resume" in err
    (charge,) = ledger.entries()
    assert charge.completed_at is None
    code, _, err = gapgnn(*words, "--resume")
    assert code == 0, err
    (charge,) = ledger.entries()
    assert charge.completed_at is not None


def test_signals_that_are_ignored_stay_ignored(tmp_path):
    """As `nohup` has it: the terminal may close."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "import gapgnn.cli.main as cli\n"
        "cli.main = lambda words: os.kill(os.getpid(), signal.SIGHUP) or 0\n"
        "cli.run()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_wait_for_the_charge_and_its_record(name):
    from gapgnn.privacy.checkpoint import _interrupts_held_back

    number, came = getattr(signal, name), []
    before = signal.signal(number, lambda number, frame: came.append(number))
    try:
        with _interrupts_held_back():
            os.kill(os.getpid(), number)
            time.sleep(0)
            assert not came
        assert came == [number]
    finally:
        signal.signal(number, before)
