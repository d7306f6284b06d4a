"""Tables of which most rows are lost are refused before anything is charged."""

from __future__ import annotations

import json

import numpy as np
import pytest

COUNT = 120
TABLES = ["--edges", "paid.csv", "--nodes", "people.csv", "--label", "team"]
TRAIN = ["--epochs", "2", "--device", "cpu", "--no-compare", "--out", "m"]
AMOUNTS = ["--weight", "amount", "--weight-bounds", "0", "100"]


def pairs() -> list[tuple[int, int]]:
    rng = np.random.default_rng(5)
    return [(k, (k + int(step)) % COUNT) for k in range(COUNT) for step in rng.integers(1, 60, 3)]


@pytest.fixture
def folder(tmp_path):
    rows = [f"{k},{k % 50},{'red' if k % 2 else 'blue'}" for k in range(COUNT)]
    (tmp_path / "people.csv").write_text("id,age,team\n" + "\n".join(rows) + "\n")
    return tmp_path


def write_edges(folder, head, line, rows=None):
    lines = [line(place, *pair) for place, pair in enumerate(pairs() if rows is None else rows)]
    (folder / "paid.csv").write_text("\n".join([head, *lines]) + "\n")


def write_schema(folder):
    (folder / "schema.toml").write_text(
        '[label]\ncolumn = "team"\nclasses = ["blue", "red"]\n\n'
        '[columns.age]\ntype = "number"\nlow = 0\nhigh = 200\n'
    )


LOST = {
    "dates without a format": (
        "a,b,day",
        lambda place, a, b: f"{a},{b},{1 + place % 28:02d}.01.2024",
        ["--time", "day", "--since", "2024-01-01"],
        "without a readable time in column `day`",
    ),
    "epoch milliseconds for a date": (
        "a,b,day",
        lambda place, a, b: f"{a},{b},{1_711_022_400_000 + 1000 * place}",
        ["--time", "day", "--since", "2024-01-01"],
        "without a readable time in column `day`",
    ),
    "epoch milliseconds for seconds": (
        "a,b,day",
        lambda place, a, b: f"{a},{b},{1_711_022_400_000 + 1000 * place}",
        ["--time", "day", "--since", "1700000000", "--until", "1800000000"],
        "must have rows inside the window of time",
    ),
    "undeclared decimal commas": (
        "a,b,amount",
        lambda place, a, b: f'{a},{b},"{place},50"',
        AMOUNTS,
        "without a readable amount in column `amount`",
    ),
    "only self-loops": ("a,b", lambda place, a, b: f"{a},{a}", [], "self-loops"),
    "another column in front": (
        "payment,payer,payee",
        lambda place, a, b: f"{9000 + place},{a},{b}",
        ["--dangling", "drop"],
        "`--source` and `--target` choose others",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_edge_tables_that_lose_most_rows_are_refused_before_the_charge(
    gapgnn, folder, ledger, name
):
    head, line, options, message = LOST[name]
    write_edges(folder, head, line)
    code, _, err = gapgnn("train", "label-gap", *TABLES, *options, *TRAIN)
    assert code == 2
    assert message in err
    assert "`--edges` must have" in err
    assert "--dropped-at-most" in err
    assert not ledger.entries()
    code, _, err = gapgnn("describe", *TABLES, *options, "--dropped-at-most", "1", "--json")
    assert code == 0, err


@pytest.mark.parametrize("name", LOST)
def test_at_node_level_a_share_of_people_is_refused(gapgnn, folder, ledger, name):
    head, line, options, message = LOST[name]
    write_edges(folder, head, line)
    write_schema(folder)
    words = [*TABLES, "--schema", "schema.toml", *options, *TRAIN, "--level", "node"]
    words = [word.replace("drop", "keep") for word in words]
    code, _, err = gapgnn("train", "node-label-gap", *words, "--epsilon", "8")
    assert code == 2, err
    assert message in err
    assert not ledger.entries()


@pytest.mark.parametrize("entry", ["0,{k},", "0,0,5", "0,nobody{k},5"])
def test_at_node_level_no_adjacency_list_decides_the_exit_status(gapgnn, folder, entry):
    """One person's list, most of the table and unreadable, is one list of many."""
    rows = [f"{a},{b},{k % 9}" for k, (a, b) in enumerate(pairs())]
    rows += [entry.format(k=k) for k in range(3000)]
    (folder / "paid.csv").write_text("\n".join(["a,b,amount", *rows]) + "\n")
    write_schema(folder)
    words = [*TABLES, "--schema", "schema.toml", *AMOUNTS, *TRAIN, "--level", "node"]
    code, _, err = gapgnn("train", "gap", "--max-degree", "5", *words, "--epsilon", "8")
    assert code == 0, err


def test_source_and_target_name_the_columns_of_the_ends(gapgnn, folder):
    write_edges(folder, "payment,payer,payee", lambda place, a, b: f"{9000 + place},{a},{b}")
    named = ["--source", "payer", "--target", "payee"]
    code, out, err = gapgnn("describe", *TABLES, *named, "--json")
    assert code == 0, err
    assert json.loads(out)["arcs"] > 2 * COUNT
    code, _, err = gapgnn("describe", *TABLES, "--source", "payer")
    assert (code, "`--source` must come with `--target`" in err) == (2, True)
    code, _, err = gapgnn("describe", *TABLES, "--source", "payr", "--target", "payee")
    assert (code, "Did you mean 'payer'?" in err) == (2, True)


def test_a_model_remembers_source_and_target(gapgnn, folder):
    write_edges(folder, "payment,payer,payee", lambda place, a, b: f"{9000 + place},{a},{b}")
    named = ["--source", "payer", "--target", "payee"]
    code, _, err = gapgnn("train", "label-gap", *TABLES, *named, *TRAIN)
    assert code == 0, err
    tables = ["--edges", "paid.csv", "--nodes", "people.csv"]
    code, _, err = gapgnn("predict", "--model", "m", *tables, "--out", "p.csv")
    assert code == 0, err


@pytest.mark.parametrize("rows", [[], [(1, 1)], [(1, 2)]])
def test_one_row_of_a_small_edge_table_does_not_decide_the_exit_status(gapgnn, folder, rows):
    write_edges(folder, "a,b", lambda place, a, b: f"{a},{b}", rows)
    code, _, err = gapgnn(
        "train", "label-gap", *TABLES, *TRAIN, "--level", "edge", "--epsilon", "1"
    )
    assert code == 0, err
    assert ("1 edge table is empty or mostly dropped" in err) == (rows != [(1, 2)])


def test_node_tables_whose_declared_numbers_cannot_be_read_are_refused(gapgnn, folder, ledger):
    write_edges(folder, "a,b", lambda place, a, b: f"{a},{b}")
    rows = [f'{k},"{k},5",{"red" if k % 2 else "blue"}' for k in range(COUNT)]
    (folder / "people.csv").write_text("id,age,team\n" + "\n".join(rows) + "\n")
    write_schema(folder)
    words = [*TABLES, "--schema", "schema.toml"]
    code, _, err = gapgnn("train", *words, *TRAIN, "--level", "node", "--epsilon", "8")
    assert (code, "without a readable value in column `age`" in err) == (2, True)
    assert not ledger.entries()
    code, _, err = gapgnn("partition", *words, "--parts", "2", "--out", "store")
    assert (code, "without a readable value in column `age`" in err) == (2, True)
    code, _, err = gapgnn("describe", *words, "--dropped-at-most", "1")
    assert code == 0, err
