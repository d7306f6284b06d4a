"""Programs see by exit code and error object what went wrong, and whether to try again."""

from __future__ import annotations

import errno
import json
import sqlite3

import pytest

from gapgnn import LabelGAP, load_dataset
from gapgnn.errors import (
    BudgetExceededError,
    BusyError,
    CalibrationError,
    DataError,
    GapgnnError,
    InputError,
    IntegrityError,
    NotAgreedError,
    NotGrantedError,
    PrivacyError,
    UnavailableError,
    check_all,
    outcome_of,
)
from gapgnn.privacy.ledger import sqlite as ledger_file

TRAIN = [
    *("train", "label-gap", "--hops", 1, "--folds", 0, "--epochs", 1),
    *("--no-save", "--no-compare"),
]


@pytest.fixture
def model(tmp_path, ledger):
    """Return the folder of a saved model."""
    fitted = LabelGAP(epsilon=1.0, hops=1, epochs=1, folds=0).fit(load_dataset("social"))
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def error_of(out: str) -> dict[str, str]:
    """Return the error object; a command that may charge adds what it has charged."""
    found = json.loads(out)
    error, *receipt = found
    assert error == "error"
    assert receipt in ([], ["charges", "budgets", "ledger", "folder", "seconds"])
    assert not found.get("charges")
    assert sorted(found["error"]) == ["code", "message"]
    return found["error"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (GapgnnError, (2, "error")),
        (InputError, (2, "bad-input")),
        (DataError, (2, "bad-data")),
        (PrivacyError, (2, "refused")),
        (CalibrationError, (2, "no-noise-level")),
        (UnavailableError, (2, "unavailable")),
        (BudgetExceededError, (3, "budget-exhausted")),
        (NotGrantedError, (3, "not-granted")),
        (NotAgreedError, (3, "not-agreed")),
        (IntegrityError, (4, "damaged")),
        (BusyError, (5, "try-again")),
    ],
)
def test_every_error_has_its_exit_code(error, outcome):
    assert outcome_of(error("why")) == outcome


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_to_be_tried_again_whoever_reports_it(number):
    def write() -> None:
        try:
            raise OSError(number, "no room")
        except OSError:
            raise InputError("`out` must be writable.") from None

    with pytest.raises(InputError) as caught:
        write()
    assert outcome_of(caught.value) == (5, "try-again")


def test_of_several_complaints_the_one_beyond_the_caller_decides():
    def damaged() -> None:
        raise IntegrityError("the store is damaged.")

    def misspelt() -> None:
        raise InputError("`epsilon` must be positive. Got -1.")

    with pytest.raises(InputError) as caught:
        check_all(damaged, misspelt)
    assert outcome_of(caught.value) == (4, "damaged")


def test_success_is_0_and_has_no_error_object(gapgnn):
    code, out, _ = gapgnn("noise", "--level", "edge", "--epsilon", 1, "--delta", 1e-7, "--json")
    assert code == 0
    assert "error" not in json.loads(out)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "label-gap", "--plan"],
        ["tune", "gap", "--try", "hops=1,2", "--plan"],
        ["embed", "--plan"],
        ["experiment", "accuracy", "--methods", "mlp", "--out", "results", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_a_plan_has_the_keys_of_a_run_and_no_charge(gapgnn, ledger, words):
    code, out, err = gapgnn(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["charges"] == []
    assert found.keys() >= {"budgets", "folder", "ledger"}
    assert found["seconds"].keys() == {"total"}
    assert ledger.chain() == []


def test_bad_input_is_2_with_the_same_line_on_both_streams(gapgnn):
    code, out, err = gapgnn("train", "gap", "--epsilon", -1, "--json")
    assert code == 2
    error = error_of(out)
    assert error["code"] == "bad-input"
    assert err == f"gapgnn: {error['message']}\n"


def test_without_json_nothing_stands_on_stdout(gapgnn):
    code, out, err = gapgnn("train", "gap", "--epsilon", -1)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_an_unknown_option_is_an_error_object_as_well(gapgnn):
    code, out, _ = gapgnn("describe", "--dataset", "social", "--jsno", "--json")
    assert code == 2
    assert "--jsno" in error_of(out)["message"]


def test_a_budget_that_does_not_suffice_is_3_and_nothing_is_charged(gapgnn, ledger):
    words = ["--level", "edge", "--epsilon", 1, "--delta", 1e-6]
    assert gapgnn("ledger", "grant", "social", *words)[0] == 0
    code, out, _ = gapgnn(*TRAIN, "--epsilon", 3, "--json")
    assert (code, error_of(out)["code"]) == (3, "budget-exhausted")
    assert not ledger.entries()


def test_a_missing_budget_is_3_where_the_ledger_requires_one(gapgnn, ledger):
    assert gapgnn("ledger", "settings", "require-grant", "on")[0] == 0
    code, out, _ = gapgnn(*TRAIN, "--epsilon", 1, "--json")
    assert (code, error_of(out)["code"]) == (3, "not-granted")
    assert not ledger.entries()


def test_a_changed_ledger_is_4(gapgnn, ledger):
    assert gapgnn(*TRAIN, "--epsilon", 1)[0] == 0
    with sqlite3.connect(ledger.path) as db:
        db.execute("UPDATE charges SET epsilon = 0.5")
    for words in (["ledger", "verify"], [*TRAIN, "--epsilon", 1]):
        assert gapgnn(*words)[0] == 4


def test_a_changed_model_folder_is_4(gapgnn, model, tmp_path):
    weights = model / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, out, _ = gapgnn("predict", "--model", model, "--out", "labels.csv", "--json")
    assert (code, error_of(out)["code"]) == (4, "damaged")
    assert gapgnn("report", model, "--check")[0] == 4
    assert not (tmp_path / "labels.csv").exists()


def test_a_ledger_that_another_process_holds_is_5(gapgnn, ledger, monkeypatch):
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        code, out, _ = gapgnn(*TRAIN, "--epsilon", 1, "--json")
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert (code, error_of(out)["code"]) == (5, "try-again")
    assert not ledger.entries()
