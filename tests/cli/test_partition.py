"""`gapgnn partition` makes a store, and every command takes one; bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from methodgraphs import write_tables

from gapgnn.cli.main import COMMANDS


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    return write_tables(tmp_path / "tables", count=200)


@pytest.fixture
def store(gapgnn, tables) -> str:
    code, out, err = gapgnn("partition", *tables, "--parts", "3", "--out", "store", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    return "store"


def test_the_store_holds_what_the_tables_hold(gapgnn, tables, store):
    described = [
        json.loads(gapgnn("describe", *words, "--json")[1])
        for words in (tables, ("--store", store))
    ]
    # What was left out and what the columns held, only the tables know.
    for key in ("dropped_self_loops", "dropped_duplicates", "dropped_dangling", "columns"):
        for found in described:
            found.pop(key)
    assert described[0] == described[1]


def test_it_says_what_it_wrote(gapgnn, tables):
    code, out, err = gapgnn("partition", *tables, "--parts", "3", "--out", "store")
    assert code == 0
    assert err == "For the curator only: left out 10 self-loops, 56 repeated edges.\n"
    assert "200 nodes" in out
    assert "3 parts" in out


def test_a_known_data_set_becomes_a_store(gapgnn):
    code, out, _ = gapgnn("partition", "--dataset", "social", "--out", "store", "--json")
    found = json.loads(out)
    assert (code, found["dataset"], found["nodes"], found["parts"]) == (0, "social", 10_000, 16)
    assert found["bytes"] == sum(path.stat().st_size for path in Path("store").iterdir())


def test_training_and_predicting_from_a_store_are_those_from_tables(gapgnn, tables, store, ledger):
    options = ("--epochs", "3", "--insecure-noise-seed", "1", "--no-compare", "--json")
    results = []
    for words, out in ((tables, "a"), (("--store", store), "b")):
        code, printed, err = gapgnn("train", "label-gap", *words, *options, "--out", out)
        assert code == 0
        assert err.startswith("Price: ")
        results.append(json.loads(printed)["test_accuracy"])
        assert gapgnn("predict", "--model", out, *words, "--out", f"{out}.csv")[0] == 0
    assert results[0] == results[1]
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    assert not Path("b.unfinished").exists()
    assert len(ledger.entries()) == 2
    # The store knows the same people as the tables.
    assert len({charge.population for charge in ledger.entries()}) == 1


@pytest.mark.parametrize("method", ["mlp", "sage"])
def test_the_other_methods_take_a_store_too(gapgnn, store, method):
    words = ("--store", store, "--epochs", "2", "--no-compare", "--out", method, "--json")
    code, printed, err = gapgnn("train", method, *words)
    assert code == 0, err
    assert json.loads(printed)["method"] == method
    assert not Path(f"{method}.unfinished").exists()


def test_an_experiment_takes_a_store(gapgnn, store):
    words = ("--methods", "mlp", "--levels", "edge", "--repeats", "1", "--out", "results", "--json")
    code, printed, err = gapgnn("experiment", "accuracy", "--store", store, *words)
    assert (code, err, json.loads(printed)["ran"]) == (0, "", 1)


BAD = {
    "no folder": (("describe", "--store", "nowhere"), "nowhere"),
    "two sources": (("describe", "--store", "store", "--dataset", "social"), "--dataset"),
    "tables too": (("describe", "--store", "store", "--edges", "x.csv"), "--edges"),
    "table option": (("describe", "--store", "store", "--label", "team"), "--label"),
    "no parts": (("partition", "--parts", "0", "--out", "new"), "`--parts` must be at least 1"),
    "many parts": (("partition", "--parts", "99999", "--out", "new"), "`--parts` must be"),
    "memory": (("partition", "--memory", "1", "--out", "new"), "`--memory` must be at least 16"),
    "not empty": (("partition", "--out", "tables"), "new or empty"),
    "a store already": (("partition", "--store", "store", "--out", "new"), "--store"),
    "no tables": (("partition", "--edges", "x.csv", "--out", "new"), "--nodes"),
    "ray alone": (("train", "label-gap", "--ray", "local"), "`--ray` must come with `--store`"),
    "resume alone": (("train", "label-gap", "--resume"), "`--resume` must come with"),
    "nothing to resume": (
        ("train", "label-gap", "--store", "store", "--out", "new", "--resume"),
        "must find an unfinished run",
    ),
    "nor for sage": (
        ("train", "sage", "--store", "store", "--out", "new", "--resume"),
        "must find an unfinished run",
    ),
    "nowhere to go": (("train", "label-gap", "--store", "store"), "`--out` must say where"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(gapgnn, store, case):
    words, message = BAD[case]
    before = sorted(str(path) for path in Path().rglob("*"))
    code, out, err = gapgnn(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(str(path) for path in Path().rglob("*")) == before


def test_a_damaged_store_is_refused_before_anything_is_charged(gapgnn, store, ledger):
    path = Path(store, "arcs-00001.parquet")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes(raw)
    code, out, err = gapgnn("train", "label-gap", "--store", store, "--out", "model")
    assert (code, out) == (4, "")
    assert "arcs-00001.parquet" in err
    assert ledger.entries() == []
    assert not Path("model.unfinished").exists()


def test_an_address_that_does_not_answer_is_one_line(gapgnn, store, ledger):
    pytest.importorskip("ray")
    code, out, err = gapgnn(
        "train", "label-gap", "--store", store, "--ray", "localhost:1", "--out", "m"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "does not answer" in err
    assert ledger.entries() == []


def test_the_command_is_listed():
    assert "partition" in COMMANDS


def test_columns_of_edges_that_nothing_is_made_of_are_named(gapgnn, tables):
    friends = Path(tables[1])
    head, *rows = friends.read_text().splitlines()
    friends.write_text("\n".join([f"{head},amount,day", *(f"{row},5,1" for row in rows)]) + "\n")
    code, _, err = gapgnn("partition", *tables, "--out", "store")
    assert code == 0
    assert "friends.csv: not read: amount, day (see --weight and --time)" in err
