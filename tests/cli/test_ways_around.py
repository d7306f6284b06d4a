"""A budget cannot be walked around: not without noise, not by spelling, not by a damaged ledger."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from methodgraphs import write_tables

from gapgnn import LabelGAP, Ledger
from gapgnn.methods import recommended_method

FREE = ("--epochs", "2", "--hidden", "8", "--no-compare")
QUICK = (*FREE, "--epsilon", "1", "--delta", "1e-5")


@pytest.fixture
def tables(tmp_path, ledger) -> list[str]:
    return write_tables(tmp_path / "data")


def grant(gapgnn, tables, *words: str) -> None:
    grants = ("ledger", "grant", "everybody", "--nodes", tables[3], "--delta", "1e-4")
    assert gapgnn(*grants, *words)[0] == 0


def refused(gapgnn, *words: object, code: int = 2) -> str:
    ended, out, err = gapgnn(*words)
    assert ended == code
    assert not out or (json.loads(out).keys() == {"error"} and "--json" in words)
    assert err.count("\n") == 1
    return err


class TestWithoutNoise:
    """A model without a promise is no release that a budget could pay."""

    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_people_with_a_budget_are_not_read_at_level_none(
        self, level, gapgnn, tables, ledger, tmp_path
    ):
        grant(gapgnn, tables, "--level", level, "--epsilon", "4")
        words = ("train", "label-gap", *tables, *FREE, "--level", "none", "--out", "model")
        assert "'everybody' have a privacy budget" in refused(gapgnn, *words)
        assert not (tmp_path / "model").exists()
        assert ledger.entries() == []

    def test_their_curator_may_look_and_it_is_on_record(self, gapgnn, tables, ledger):
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        words = ("train", "label-gap", *tables, *FREE, "--level", "none", "--no-save")
        assert gapgnn(*words, "--curator-only", "how good could it be")[0] == 0
        (access,) = ledger.entries()
        assert (access.epsilon, access.count, access.reason) == (0.0, 0, "how good could it be")
        assert access.purpose == "access: label-gap fit"

    def test_a_ledger_that_requires_a_grant_requires_it_here_too(self, gapgnn, tables):
        gapgnn("ledger", "settings", "require-grant", "on")
        words = ("train", "label-gap", *tables, *FREE, "--level", "none", "--no-save")
        assert "this ledger requires a privacy budget" in refused(gapgnn, *words)

    def test_without_any_budget_nothing_is_in_the_way(self, gapgnn, tables, ledger):
        words = ("train", "label-gap", *tables, *FREE, "--level", "none", "--no-save")
        assert gapgnn(*words)[0] == 0
        assert ledger.entries() == []

    @pytest.mark.gate
    def test_the_reference_without_privacy_is_left_out_under_a_budget(self, gapgnn, tables, ledger):
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        words = ("train", "label-gap", *tables, *QUICK, "--no-save", "--compare")
        code, out, err = gapgnn(*words)
        assert code == 0
        assert "without privacy" not in out
        assert err.startswith("Price: training label-gap is charged")
        assert "\nNo reference 'without privacy': the people of 'everybody'" in err
        code, out, _ = gapgnn(*words, "--curator-only", "to compare")
        assert "without privacy" in out
        assert [entry.purpose for entry in ledger.entries()][-1] == "access: label-gap fit"

    def test_features_are_not_public_where_only_node_level_has_a_budget(self, gapgnn, tables):
        grant(gapgnn, tables, "--level", "node", "--epsilon", "4")
        words = ("train", "mlp", *tables, *FREE, "--no-save")
        assert "so edge level is closed" in refused(gapgnn, *words, code=3)
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "1")
        assert gapgnn(*words)[0] == 0


@pytest.mark.parametrize("spelling", ["{}.0", " {}", "{} ", "+{}", "0{}", "{}.00"])
def test_ids_in_another_spelling_are_the_same_people(spelling, gapgnn, tables, ledger, tmp_path):
    renamed = []
    for path in (tables[1], tables[3]):
        text = Path(path).read_text().replace("p", "1")
        Path(path).write_text(text)
        header, *rows = text.splitlines()
        ends = 2 if path == tables[1] else 1
        spelled = [
            ",".join([spelling.format(part) if k < ends else part for k, part in enumerate(cells)])
            for cells in (row.split(",") for row in rows)
        ]
        renamed.append(tmp_path / f"again-{Path(path).name}")
        renamed[-1].write_text("\n".join([header, *spelled]) + "\n")
    grant(gapgnn, tables, "--level", "edge", "--epsilon", "1", "--composition", "sum")
    assert gapgnn("train", "label-gap", *tables, *QUICK, "--no-save")[0] == 0
    again = [tables[0], str(renamed[0]), tables[2], str(renamed[1]), *tables[4:]]
    words = ("train", "label-gap", *again, *QUICK, "--no-save")
    assert "has nothing left" in refused(gapgnn, *words, code=3)
    assert len(ledger.summary()) == 1


TAMPERING = (
    "DELETE FROM grants",
    "DELETE FROM members",
    "DELETE FROM charges",
    "DELETE FROM populations",
    "UPDATE populations SET name = X'00'",
    "UPDATE charges SET epsilon = '0.1'",
    "UPDATE settings SET value = 'off' WHERE key = 'seal'",
)
COMMANDS = (
    ("ledger",),
    ("ledger", "show", "everybody"),
    ("ledger", "forecast", "everybody", "--epsilon", "1"),
    ("ledger", "export", "--out", "all.json"),
    ("experiment", "accuracy", "--methods", "MLP", "--repeats", "1", "--out", "results"),
    ("attack", "membership", "--runs", "1"),
    ("train", "label-gap", *QUICK, "--no-save"),
    ("train", "mlp", *QUICK, "--no-save"),
)


@pytest.mark.parametrize("tampering", TAMPERING)
def test_a_damaged_ledger_is_one_line_whatever_is_asked(
    tampering, gapgnn, tables, ledger, tmp_path
):
    grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
    assert gapgnn("train", "label-gap", *tables, *QUICK, "--no-save")[0] == 0
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute(tampering)
    for command in COMMANDS:
        own = () if command[0] == "ledger" else tables
        assert "is damaged or not a ledger" in refused(gapgnn, *command, *own, code=4)
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "all.json").exists()


def test_an_interrupted_prediction_says_what_it_has_cost(gapgnn, tables, tmp_path, monkeypatch):
    words = ("train", "label-gap", *tables, *QUICK, "--folds", "0", "--out", "model")
    assert gapgnn(*words)[0] == 0
    edges = Path(tables[1])
    edges.write_text("\n".join(edges.read_text().splitlines()[:-3]) + "\n")
    predict = ("predict", "--model", "model", *tables, "--charge", "--out", "labels.csv")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LabelGAP, "read", stop)
    code, _, err = gapgnn(*predict)
    assert code == 130
    assert "the new graph was charged (" in err
    assert "predicting on it again is charged again" in err
    monkeypatch.setattr(LabelGAP, "predict_proba", stop)
    assert "nothing was charged for a new graph" in gapgnn(*predict)[2]


@pytest.mark.parametrize("out", [".", "/", ""])
def test_a_folder_without_a_name_is_refused_before_the_charge(out, gapgnn, tables, ledger):
    words = ("train", "label-gap", *tables, *QUICK, "--out", out)
    assert "`--out` must name a folder of its own" in refused(gapgnn, *words)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "words",
    [
        ["train", "label-gap", "--reason", "caf\udce9"],
        ["train", "label-gap", "--nodes", "caf\udce9.csv", "--edges", "e.csv"],
        ["ledger", "grant", "customers", "--reason", "caf\udce9"],
    ],
)
def test_bytes_that_are_no_text_are_refused(words, gapgnn, ledger):
    assert "must be UTF-8 text" in refused(gapgnn, *words)
    assert ledger.entries() == Ledger(ledger.path).grants() == []


def test_a_day_is_asked_for_as_a_day(gapgnn, tables):
    words = ("ledger", "grant", "everybody", "--nodes", tables[3], "--epsilon", "1")
    words += ("--delta", "1e-4")
    assert "must be a day such as" in refused(gapgnn, *words, "--until", "15.11.2027")


class TestAuditOfThePipeline:
    """How far releases move without noise is shown to the curator, and on record."""

    AUDIT = ("audit", "pipeline", "--neighbours", "hub", "--json")

    def test_people_with_a_budget_are_looked_at_by_their_curator_on_record(
        self, gapgnn, tables, ledger
    ):
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        words = ("train", "label-gap", *tables, *QUICK)
        assert "`audit pipeline` shows figures" in refused(gapgnn, *self.AUDIT, *words)
        assert ledger.entries() == []
        code, _, err = gapgnn(*self.AUDIT, "--curator-only", "before the release", *words)
        assert code == 0, err
        (access,) = ledger.entries()
        assert (access.population, access.purpose) == ("everybody", "access: audit pipeline")
        assert (access.epsilon, access.reason) == (0.0, "before the release")

    def test_without_a_budget_nothing_is_in_the_way_or_written(self, gapgnn, tables, ledger):
        assert gapgnn(*self.AUDIT, "train", "label-gap", *tables, *QUICK)[0] == 0
        assert ledger.entries() == []

    def test_other_people_with_the_same_ids_are_audited_on_record(self, gapgnn, tables, ledger):
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        words = ("train", "label-gap", *tables, *QUICK, "--population", "suppliers")
        with warnings.catch_warnings():
            # As a user runs it: shown, and no error.
            warnings.simplefilter("default")
            code, _, err = gapgnn(*self.AUDIT, *words)
        assert code == 0, err
        assert "'suppliers' shares most ids" in err
        assert [note.kind for note in ledger.notes()] == ["overlap"]


def test_a_training_says_whose_budget_paid(gapgnn, tables):
    words = ("train", "label-gap", *tables, *QUICK, "--no-save")
    said = " ".join(gapgnn(*words)[1].split())
    text = "No budget is set for these people: the charge is recorded but not limited"
    assert said.count(text) == said.count("not limited") == 1
    assert "(`gapgnn ledger grant`)" in said
    grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
    said = " ".join(gapgnn(*words)[1].split())
    assert "Charged to everybody: charge " in said
    assert f"Ledger: {Ledger().path}" in said
    assert "granted epsilon 4, delta 0.0001; left epsilon " in said
    (row,) = Ledger().summary()
    spent, composed = re.findall(r"epsilon ([0-9.]+) (?:counted by gaussian|composed),", said)
    assert 0 <= float(spent) - row.spent_epsilon < 1e-3
    assert float(composed) == float(spent)  # of Gaussian noise both are the exact curve
    assert "which is proved if none was chosen by what another one showed" in said
    assert "Charged to" not in gapgnn("-q", *words)[1]


LOOKS = {
    "describe": ["describe"],
    "describe the node table": ["describe", "--nodes"],
    "vote": ["train", "vote", *FREE, "--device", "cpu", "--out", "model"],
}


class TestLooks:
    """Exact figures of people with a budget are their curator's, on record."""

    @pytest.mark.parametrize("name", LOOKS)
    def test_people_with_a_budget_are_looked_at_on_record_only(
        self, name, gapgnn, tables, ledger, tmp_path
    ):
        words = LOOKS[name]
        words = [*words, tables[3]] if words[-1] == "--nodes" else [*words, *tables]
        assert gapgnn(*words)[0] == 0
        assert ledger.entries() == []
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        assert "'everybody' have a privacy budget" in refused(gapgnn, *words)
        assert not (tmp_path / "model").exists()
        assert gapgnn(*words, "--curator-only", "to clean it up")[0] == 0
        (access,) = ledger.entries()
        assert (access.epsilon, access.count, access.reason) == (0.0, 0, "to clean it up")
        assert access.purpose.startswith("access: ")

    def test_predictions_of_a_vote_are_on_record(self, gapgnn, tables, ledger):
        assert gapgnn("train", "vote", *tables, *FREE, "--device", "cpu", "--out", "m")[0] == 0
        grant(gapgnn, tables, "--level", "edge", "--epsilon", "4")
        words = ("predict", "--model", "m", *tables, "--out", "p.csv")
        assert gapgnn(*words, "--reason", "letters of May")[0] == 0
        (access,) = ledger.entries()
        assert (access.purpose, access.reason) == ("access: vote predict", "letters of May")


@pytest.mark.parametrize("option", [(), ("--quiet",)], ids=["normal", "quiet"])
def test_the_same_ids_in_another_population_warn_and_are_recorded(option, gapgnn, tables, ledger):
    grant(gapgnn, tables, "--level", "edge", "--epsilon", "1", "--composition", "sum")
    words = (
        "train",
        "label-gap",
        *tables,
        *QUICK,
        "--no-save",
        "--population",
        "other",
        *option,
    )
    with warnings.catch_warnings():
        # As a user runs it: shown, and no error.
        warnings.simplefilter("default")
        code, _, err = gapgnn(*words)
    assert code == 0, err
    assert "'other' shares most ids with population 'everybody' of namespace 'default'" in err
    assert "leave out `--population`" in err
    (note,) = ledger.notes()
    assert (note.kind, "'other' shares most ids" in note.about) == ("overlap", True)


@pytest.mark.parametrize(
    "words",
    [("describe",), ("train", "vote", *FREE, "--device", "cpu", "--no-save")],
    ids=["describe", "train vote"],
)
def test_reading_the_same_people_under_another_name_is_recorded(words, gapgnn, tables, ledger):
    grant(gapgnn, tables, "--level", "edge", "--epsilon", "1")
    with warnings.catch_warnings():
        # As a user runs it: shown, and no error.
        warnings.simplefilter("default")
        runs = [gapgnn(*words, *tables, "--population", "other") for _ in range(2)]
    assert [code for code, _, _ in runs] == [0, 0], runs
    assert "'other' shares most ids with population 'everybody'" in runs[0][2]
    assert "shares most ids" not in runs[1][2]
    assert [note.kind for note in ledger.notes()] == ["overlap"]
    assert ledger.problems() == []


@pytest.mark.parametrize("level", ["edge", "node"])
def test_train_says_the_price_before_it_is_charged(level, gapgnn, tables, capsys, monkeypatch):
    said, charge = [], Ledger.charge

    def charged(self, *args, **options):
        said.append((capsys.readouterr().err, options["epsilon"]))
        return charge(self, *args, **options)

    monkeypatch.setattr(Ledger, "charge", charged)
    method = recommended_method(level)
    words = ["train", method, *tables, *QUICK, "--level", level, "--out", "model"]
    if level == "node":
        schema = ["schema", "--nodes", tables[3], "--label", "year", "--out", "s.toml"]
        assert gapgnn(*schema)[0] == 0
        words += ["--schema", "s.toml"]
    code, _, err = gapgnn(*words)
    assert code == 0, err
    ((before, epsilon),) = said
    assert 0.99 < epsilon <= 1
    assert f"Price: training {method} is charged epsilon 1.00, delta 1e-05 (" in before
    # What reads no edge releases nothing and has no price.
    assert "Price" not in gapgnn("train", "mlp", *tables, *QUICK, "--no-save")[2]
