"""What all commands share: help, completion, how much is said, whose files are written."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from methodgraphs import write_tables

from gapgnn.cli.main import COMMANDS, Parser, main, parser_of
from gapgnn.errors import InputError


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    return write_tables(tmp_path / "tables", count=160)


@pytest.fixture
def model(tmp_path: Path, tables: list[str], gapgnn) -> Path:
    words = ("--epochs", "2", "--no-compare", "--json", "--out", "model")
    assert gapgnn("train", "label-gap", *tables, *words)[0] == 0
    return tmp_path / "model"


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "gapgnn", "--version"]
    assert subprocess.run(words, capture_output=True, text=True).stdout.startswith("gapgnn ")


@pytest.mark.parametrize("words", [[], ["train"], ["train", "gap"], ["ledger", "grant"], ["help"]])
def test_help_is_that_of_the_option(words: list[str], gapgnn) -> None:
    code, out, _ = gapgnn("help", *words)
    assert code == 0
    assert out == gapgnn(*words, "--help")[1]
    assert "usage: gapgnn" in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["gpa"], "Did you mean 'train gap'?"),
        (["train", "gpa"], "Did you mean 'gap'?"),
        (["help", "trian"], "Did you mean 'train'?"),
        (["audit", "agregation"], "Did you mean 'aggregation'?"),
        (["attack", "membershp"], "Did you mean 'membership'?"),
        (["train", "--lvel", "edge"], "Did you mean '--level'?"),
    ],
)
def test_a_mistyped_word_names_the_nearest(words: list[str], hint: str) -> None:
    with pytest.raises(InputError) as complaint:
        main(words)
    assert hint in str(complaint.value)


def completed(script: str, *words: str, cwd: Path) -> list[str]:
    """Return what bash offers after these words, the last of which is being typed."""
    listed = " ".join(f"'{word}'" for word in words)
    code = (
        f"source '{script}'; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _shtab_gapgnn; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=cwd)
    assert found.stderr == ""
    return found.stdout.split()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shell") / "gapgnn.sh"
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        assert main(["completion", "bash"]) == 0
    return str(path)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["gapgnn", "tr"], ["train"]),
        (["gapgnn", "train", "s"], ["sage"]),
        (["gapgnn", "train", "gap", "--level", ""], ["none", "edge", "node"]),
        (["gapgnn", "train", "label-gap", "--level", ""], ["none", "edge"]),
        (["gapgnn", "train", "node-label-gap", "--level", ""], ["node"]),
        (["gapgnn", "train", "gap", "--epsi"], ["--epsilon"]),
        (["gapgnn", "train", "gap", "--epsilon", ""], []),
        (["gapgnn", "attack", "link-stealing", "gap", "--others", "h"], ["held-out"]),
        (["gapgnn", "ledger", "gr"], ["grant"]),
        (["gapgnn", "completion", ""], ["bash", "zsh", "fish"]),
        (["gapgnn", "help", "des"], ["describe"]),
        (["gapgnn", "predict", "--model", "my"], ["my-model"]),
        (["gapgnn", "train", "gap", "--ledger", "my"], ["my-model"]),
        (["gapgnn", "report", "my"], ["my-model"]),
    ],
)
def test_bash_completes_what_the_parsers_know(
    script: str, words: list[str], offered: list[str], tmp_path: Path
) -> None:
    (tmp_path / "my-model").mkdir()
    found = completed(script, *words, cwd=tmp_path)
    assert [word for word in found if not word.startswith("-") or offered[:1] == [word]] == offered


def test_every_command_is_in_every_script(gapgnn) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = gapgnn("completion", shell)
        assert code == 0
        assert all(name in out for name in COMMANDS)
        assert "epsilon" in out
    assert out.count("complete -c gapgnn") > 100


@pytest.mark.parametrize("name", COMMANDS)
def test_how_much_is_said_means_the_same_for_every_command(name: str) -> None:
    def check(parser: Parser) -> None:
        parser.declare()
        levels = [action for action in parser._actions if action.dest == "verbosity"]
        assert [(v.option_strings, v.const) for v in levels] == [
            (["-v", "--verbose"], "verbose"),
            (["-q", "--quiet"], "quiet"),
        ]
        for action in parser._actions:
            for child in action.choices.values() if isinstance(action.choices, dict) else ():
                check(child)

    check(parser_of(name))


@pytest.mark.parametrize("place", ["first", "last"])
def test_quiet_is_results_and_nothing_else(tables: list[str], gapgnn, place: str) -> None:
    words = ["train", "label-gap", *tables, "--epochs", "2", "--no-save", "--no-compare"]
    code, loud, _ = gapgnn(*words)
    assert "Note: " in loud
    code, out, err = gapgnn(*(["-q", *words] if place == "first" else [*words, "--quiet"]))
    assert (code, err) == (0, "")
    assert "accuracy" in out
    assert "Note: " not in out


def test_quiet_keeps_errors(gapgnn) -> None:
    code, out, err = gapgnn("-q", "train", "gap", "--epsilon", "-1")
    assert (code, out) == (2, "")
    assert err == "gapgnn: `--epsilon` must be positive. Got -1.0.\n"


def test_quiet_leaves_remarks_of_the_ledger_out(gapgnn, ledger) -> None:
    assert "Nothing was granted" in gapgnn("ledger")[2]
    assert gapgnn("ledger", "--quiet") == (0, "", "")


def test_verbose_tells_phases_seconds_and_where_an_error_is(tables: list[str], gapgnn) -> None:
    words = ["train", "label-gap", *tables, "--epochs", "2", "--no-save", "--no-compare", "--json"]
    code, out, err = gapgnn("-v", *words)
    assert code == 0
    json.loads(out)
    assert "classifier: 2 steps in " in err
    assert "gapgnn train took " in err
    code, _, err = gapgnn("train", "gap", "--epsilon", "-1", "-v")
    assert code == 2
    assert "Traceback" in err
    assert err.endswith("gapgnn: `--epsilon` must be positive. Got -1.0.\n")


def test_predict_takes_a_file_of_options(model: Path, tmp_path: Path, gapgnn) -> None:
    (tmp_path / "predict.toml").write_text('model = "model"\nout = "labels.csv"\n')
    code, out, _ = gapgnn("predict", "--config", "predict.toml")
    assert code == 0
    assert "written to labels.csv" in out
    # The command line wins.
    assert gapgnn("predict", "--config", "predict.toml", "--out", "other.csv")[0] == 0
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "labels.csv").read_bytes()
    (tmp_path / "predict.toml").write_text('modle = "model"\n')
    assert "Did you mean 'model'?" in gapgnn("predict", "--config", "predict.toml")[2]


@pytest.mark.parametrize(
    ("method", "level"), [("sage", "edge"), ("mlp", "edge")], ids=["randomised edges", "no edges"]
)
def test_delta_0_is_taken_where_no_gaussian_noise_is(
    method: str, level: str, tables: list[str], gapgnn
) -> None:
    words = [*tables, "--level", level, "--delta", "0", "--epochs", "2", "--no-compare"]
    words += ["--no-save", "--json"]
    code, out, err = gapgnn("train", method, *words)
    assert code == 0, err
    assert json.loads(out)["delta"] == 0


@pytest.mark.parametrize(
    "words", [["train", "label-gap"], ["train", "gap"], ["train", "progap"], ["noise"]]
)
def test_delta_0_for_gaussian_noise_is_one_line_that_says_why(
    words: list[str], tables: list[str], gapgnn, ledger
) -> None:
    more = ["--epsilon", "1"] if words == ["noise"] else [*tables, "--no-save"]
    code, out, err = gapgnn(*words, *more, "--delta", "0")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "`--delta` must be above 0 for Gaussian noise" in err
    assert "Got 0" in err
    assert ledger.entries() == []


def modes(path: Path) -> set[int]:
    """Return the permissions of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    assert files
    return {stat.S_IMODE(one.stat().st_mode) for one in files}


def test_what_is_written_is_its_owner_s(
    model: Path, tables: list[str], tmp_path: Path, gapgnn
) -> None:
    assert stat.S_IMODE(model.stat().st_mode) == 0o700
    assert stat.S_IMODE((model / "hops").stat().st_mode) == 0o700
    assert modes(model) == {0o600}
    nodes = tables[tables.index("--nodes") + 1]
    for words, made in (
        (["predict", "--model", "model", "--out", "labels.csv"], "labels.csv"),
        (["predict", "--model", "model", "--out", "labels.parquet"], "labels.parquet"),
        (["report", "model"], "model.report.html"),
        (["ledger", "export", "--out", "ledger.csv"], "ledger.csv"),
        (["schema", "--nodes", nodes, "--label", "year", "--out", "schema.toml"], "schema.toml"),
        (["partition", *tables, "--out", "store"], "store"),
    ):
        code, _, err = gapgnn(*words)
        assert code == 0, err
        assert modes(tmp_path / made) == {0o600}, made


def test_the_user_s_own_mask_is_back_after_a_command(gapgnn) -> None:
    before = os.umask(0o022)
    try:
        gapgnn("noise", "--epsilon", "1", "--delta", "1e-6")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
