"""`gapgnn release`, `verify` and `compare` as people run them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from methodgraphs import write_tables

from releasecases import make_keys

ABOUT = """\
name = "Contagion"
curator = "A bank"
curator_type = "Industry"
intended_use = "Research"
region = "Europe"
authors = ["A. Curator"]
"""


@pytest.fixture
def model(tmp_path: Path, gapgnn) -> Path:
    tables = write_tables(tmp_path / "tables", count=120)
    words = ("--epochs", "1", "--hidden", "4", "--no-compare", "--json", "--out", "model")
    assert gapgnn("train", "gap", *tables, *words)[0] == 0
    (tmp_path / "about.toml").write_text(ABOUT)
    return tmp_path / "model"


def test_a_release_is_written_verified_and_compared(model: Path, tmp_path: Path, gapgnn) -> None:
    make_keys(tmp_path)
    words = ("--about", "about.toml", "--key", "key.pem")
    code, out, err = gapgnn("release", "model", "--out", "release", *words)
    assert (code, err) == (0, "")
    assert "gapgnn verify release" in out
    code, out, err = gapgnn("verify", "release", "--public-key", "key.pub")
    assert (code, err) == (0, "")
    assert "what could be checked is in order" in out
    assert "Not shown:" in out
    shutil.copytree("release", "copy")
    found = json.loads(gapgnn("compare", "release", "copy", "model", "--json")[1])
    (group,) = found["groups"]
    assert found["comparable"]
    assert len({row["mu"] for row in group["models"]}) == 1
    assert group["models"][0]["mu"] == pytest.approx(group["models"][0]["mu_of_guess"], rel=1e-6)
    code, out, _ = gapgnn("compare", "release", "model")
    assert code == 0
    assert "mu" in out


def test_what_was_changed_is_one_line_and_exit_code_4(model: Path, gapgnn) -> None:
    assert gapgnn("release", "model", "--out", "release")[0] == 0
    Path("release/model/card.md").write_text("epsilon 0.1")
    code, out, err = gapgnn("verify", "release")
    assert code == 4
    assert "Do not rely on it" in out
    assert "gapgnn: release: model/card.md was changed.\n" in err
    code, out, _ = gapgnn("verify", "release", "--json")
    found = json.loads(out)
    assert (code, found["holds"]) == (4, False)
    assert "model/card.md was changed" in found["problems"]


def test_without_the_package_a_signature_is_never_taken_for_checked(
    model: Path, tmp_path: Path, gapgnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path)
    assert gapgnn("release", "model", "--out", "release", "--key", "key.pem")[0] == 0
    monkeypatch.setitem(sys.modules, "model_signing", None)
    code, out, err = gapgnn("verify", "release")
    assert (code, out) == (2, "")
    assert 'pip install "gapgnn[release]"' in err
    code, out, _ = gapgnn("verify", "release", "--without-signature", "--json")
    found = {one["name"]: one["outcome"] for one in json.loads(out)["checks"]}
    assert (code, found["signature"]) == (0, "not checked")
    assert gapgnn("release", "model", "--out", "other", "--key", "key.pem")[0] == 2
    assert not Path("other").exists()


def test_the_owner_of_the_ledger_checks_a_release(model: Path, ledger, gapgnn, tmp_path) -> None:
    assert gapgnn("release", "model", "--out", "release")[0] == 0
    assert gapgnn("ledger", "verify", "--against", "release")[0] == 0
    assert gapgnn("ledger", "init", "other.sqlite")[0] == 0
    code, _, err = gapgnn(
        "ledger", "verify", "--against", "release", "--ledger", tmp_path / "other.sqlite"
    )
    assert code == 4
    assert "is not in the chain" in err


def test_releases_that_hide_different_things_are_in_tables_of_their_own(
    model: Path, tmp_path: Path, gapgnn
) -> None:
    tables = write_tables(tmp_path / "more", count=120)
    words = ("--level", "edge", "--relation", "directed", "--epochs", "1", "--json", "--no-compare")
    assert gapgnn("train", "gap", *tables, *words, "--out", "other")[0] == 0
    code, out, _ = gapgnn("compare", "model", "other", "--json")
    found = json.loads(out)
    assert code == 0
    assert not found["comparable"]
    assert {group["relation"] for group in found["groups"]} == {"undirected", "directed"}
    assert "2 different things" in gapgnn("compare", "model", "other")[1]


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [
        (["release", "nowhere", "--out", "out"], "does not exist", 2),
        (["release", "model", "--out", "model"], "`--out` must be a new or empty folder", 2),
        (["release", "model", "--out", "out", "--date", "tomorrow"], "must be a day", 2),
        (["release", "model", "--out", "out", "--about", "no.toml"], "cannot be read", 2),
        (["release", "model", "--out", "out", "--key", "no.pem"], "cannot be read", 2),
        (["release", "model", "--out", "out", "--certificate", "c"], "come with `--key`", 2),
        (["release", "model", "--out", "out", "--ledger", "no.sqlite"], "no.sqlite", 2),
        (["verify", "nowhere"], "does not exist", 2),
        (["verify", "model"], "SHA256SUMS is missing", 4),
        (["verify", "model", "--public-key", "a", "--chain", "b"], "not allowed with", 2),
        (["compare", "model", "model"], "2 saved models or releases", 2),
        (["compare", "model", "tables"], "a saved model or a release must be given", 2),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], complaint: str, code: int, model: Path, gapgnn
) -> None:
    found, _, err = gapgnn(*words)
    assert found == code
    assert complaint in err
    if code == 2:
        assert len(err.splitlines()) == 1
    assert not Path("out").exists()
