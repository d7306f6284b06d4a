"""What no machine can hold or read is one line and exit code 2, before any charge."""

from __future__ import annotations

import json

import pytest
from methodgraphs import write_tables

DEEP = "[" * 100_000
# As deep as Python reads it at all, which what comes after need not.
NESTED = {
    "too deep to read": DEEP,
    "read and not written": json.dumps({"format": 1}).replace("1", "[" * 980 + "]" * 980),
}


@pytest.mark.parametrize(
    ("method", "level"),
    [
        *(("gap", "edge"), ("label-gap", "edge"), ("mlp", "edge"), ("sage", "edge")),
        *(("node-label-gap", "node"), ("mlp", "node")),
    ],
)
def test_networks_that_no_memory_holds_are_refused_before_the_charge(
    gapgnn, ledger, tmp_path, method, level
):
    words = ["--hidden", 100_000_000, "--level", level, "--device", "cpu"]
    words += write_tables(tmp_path / "data") if level == "edge" else []
    code, _, err = gapgnn("train", method, *words, "--out", "m")
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert "GiB of free memory; nothing was charged. Use a smaller `--hidden`" in err
    assert not ledger.entries()
    assert not list(tmp_path.glob("m*"))


def test_files_that_are_nested_too_deeply_are_one_line(gapgnn, ledger, tmp_path):
    tables = write_tables(tmp_path)
    files = {
        "run.toml": "epsilon = " + DEEP,
        "schema.toml": "columns = " + DEEP,
        "features.json": '{"p0": ' + DEEP,
        "findings.jsonl": DEEP + "\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.jsonl").write_text(DEEP + "\n")
    commands = [
        ["train", "label-gap", "--config", "run.toml"],
        ["train", "label-gap", *tables, "--schema", "schema.toml", "--no-save"],
        ["train", "label-gap", *tables, "--features", "features.json", "--no-save"],
        ["report", "results"],
    ]
    for words in commands:
        code, _, err = gapgnn(*words)
        assert (code, len(err.splitlines())) == (2, 1), (words, err[-300:])
    assert not ledger.entries()


@pytest.mark.parametrize("text", NESTED.values(), ids=list(NESTED))
def test_folders_whose_json_is_nested_too_deeply_are_one_line(gapgnn, tmp_path, text):
    for name in ("config.json", "manifest.json", "store.json"):
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / name).write_text(text)
    for words in (
        ["predict", "--model", "m", "--out", "p.csv"],
        ["report", "m"],
        ["describe", "--store", "m"],
        ["audit", "--model", "m"],
    ):
        code, _, err = gapgnn(*words)
        assert (code in (2, 4), len(err.splitlines())) == (True, 1), (words, err[-300:])
