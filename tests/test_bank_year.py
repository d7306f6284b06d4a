"""The bank's tutorial as it stands: its commands run, its warnings appear, its page is true."""

from __future__ import annotations

import csv
import importlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from gapgnn import Ledger, load_model

PAGE = Path(__file__).parents[1] / "docs" / "bank.md"


def commands() -> list[list[str]]:
    """Return the lines of the page's shell blocks, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Run every command of the page; return the folder and what each of them printed."""
    folder = tmp_path_factory.mktemp("bank")
    printed: dict[str, tuple[int, str]] = {}
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    run = importlib.import_module("gapgnn.cli.main").run
    try:
        for words in commands():
            if words[0] == "cd":
                patch.chdir(Path.cwd() / words[1])
            elif words[0] == "export":
                name, _, value = words[1].partition("=")
                patch.setenv(name, value.replace("$PWD", os.getcwd()))
            else:
                assert words[0] == "gapgnn"
                patch.setattr(sys, "argv", words)
                # To files, not to pytest, so that one command's words are told from another's.
                with (
                    open("out.txt", "w+", encoding="utf-8") as out,
                    pytest.MonkeyPatch.context() as streams,
                ):
                    streams.setattr(sys, "stdout", out)
                    streams.setattr(sys, "stderr", out)
                    with pytest.raises(SystemExit) as done:
                        run()
                    out.seek(0)
                    said = " ".join(out.read().split())
                os.unlink("out.txt")
                printed[" ".join(words[1:3]) + (" november" if "november" in words else "")] = (
                    int(done.value.code),
                    said,
                )
        yield Path.cwd(), printed
    finally:
        patch.undo()


def test_every_command_does_what_the_page_says(story):
    _, printed = story
    failed = [words for words, (code, _) in printed.items() if code]
    assert failed == ["describe --edges"]
    assert "3 things must be changed" in printed["describe --edges"][1]


def test_the_naive_run_is_told_that_it_is_of_no_use(story):
    said = story[1]["train gap"][1]
    assert "Warning: Not better than always answering 'low'" in said
    assert "Not better than" not in story[1]["train gap november"][1]


def test_the_unlabelled_of_high_risk_stand_in_front(story):
    folder, _ = story
    with (folder / "truth.csv").open() as file:
        truth = {row["id"]: row["risk"] == "high" for row in csv.DictReader(file)}
    with (folder / "to-check.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (folder / "customers.csv").open() as file:
        unknown = {row["id"] for row in csv.DictReader(file) if not row["risk"]}
    assert {row["id"] for row in rows} == unknown
    chances = [float(row["probability of high"]) for row in rows]
    assert roc_auc_score([truth[row["id"]] for row in rows], chances) >= 0.80


def test_the_officers_page_speaks_of_payments_and_shows_no_accuracy(story):
    folder, _ = story
    text = re.sub(r"<[^>]+>", " ", (folder / "november.report.html").read_text())
    assert "payment" in text
    assert "friendship" not in text
    assert not re.search(r"accuracy|AUC|84\.\d ?%", text)
    # What it states is what the card and the ledger say.
    card = load_model(folder / "november").card_
    (charge,) = Ledger(folder / "bank.sqlite").entries("scored")
    assert card.ledger.charge_id == charge.id
    for stated in (charge.id, "scored", "scores of November", f"{card.epsilon:.2f}"):
        assert stated in text
    assert text.count("holds") >= 3


def test_the_ledger_holds_one_fit_of_these_customers(story):
    folder, _ = story
    ledger = Ledger(folder / "bank.sqlite")
    (charge,) = ledger.entries("scored")
    assert (charge.reason, charge.purpose) == ("scores of November", "gap fit")
    assert 3.9 < charge.epsilon <= 4
    assert ledger.problems() == []
