"""Tables from queries, standard input and text without a header, through every command."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import sys
from pathlib import Path

import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from methodgraphs import write_tables

from gapgnn import load_model
from gapgnn.cli.data import add_data_options, data_words
from gapgnn.cli.main import Parser

QUICK = ("label-gap", "--epochs", "2", "--folds", "0", "--epsilon", "8", "--no-compare")
AUDIT = ("audit", "pipeline", "--neighbours", "first", "--curator-only", "a look")
QUERY = "sqlite:bank.db?SELECT * FROM {}"


@pytest.fixture
def words(gapgnn, tmp_path) -> list[str]:
    """Put small tables into a database, and return the options that name its queries."""
    paths = write_tables(tmp_path)
    with_names = {"edges": paths[1], "nodes": paths[3]}
    link = sqlite3.connect(tmp_path / "bank.db")
    for name, path in with_names.items():
        head, *rows = (line.split(",") for line in Path(path).read_text().splitlines())
        marks = ", ".join("?" * len(head))
        # What looks like a number is one in such a column.
        link.execute(f"CREATE TABLE {name} ({' NUMERIC, '.join(head)} NUMERIC)")
        link.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    link.commit()
    link.close()
    return ["--edges", QUERY.format("edges"), "--nodes", QUERY.format("nodes"), *paths[4:]]


def fingerprint(answer: tuple[int, str, str]) -> str:
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)["fingerprint"]


def files(tmp_path: Path) -> list[str]:
    return ["--edges", "friends.csv", "--nodes", "people.csv", "--label", "year"]


def test_every_command_takes_queries(gapgnn, words, tmp_path, ledger):
    code, _, err = gapgnn(
        "ledger",
        "grant",
        "bank",
        "--nodes",
        QUERY.format("nodes"),
        "--epsilon",
        99,
        "--delta",
        1e-3,
    )
    assert code == 0, err
    for command in (
        ["schema", *words[2:4], "--out", "draft.toml"],
        ["describe", *words[2:4], "--curator-only", "a look"],
        ["partition", *words, "--parts", "2", "--out", "store"],
        ["train", *QUICK, *words, "--out", "model"],
        ["predict", "--model", "model", *words[:4], "--out", "p.csv"],
        [*AUDIT, "train", *QUICK, *words],
    ):
        code, _, err = gapgnn(*command)
        assert code == 0, (command, err)
        assert "bank.db" not in "".join(str(path) for path in tmp_path.rglob("*.json"))
    assert len((tmp_path / "p.csv").read_text().splitlines()) > 10


def test_a_query_is_the_graph_of_the_files(gapgnn, words, tmp_path):
    found = fingerprint(gapgnn("describe", *words, "--json"))
    assert found == fingerprint(gapgnn("describe", *files(tmp_path), "--json"))
    named = [f"paid={words[1]}", *words[2:]]
    assert found == fingerprint(gapgnn("describe", "--edges", *named, "--json"))


def test_standard_input_is_read_once_for_all_a_command_does_with_it(
    gapgnn, words, tmp_path, monkeypatch
):
    wanted = fingerprint(gapgnn("describe", *files(tmp_path), "--json"))
    for name, other in (("nodes", "edges"), ("edges", "nodes")):
        path = {"nodes": "people.csv", "edges": "friends.csv"}
        raw = gzip.compress(Path(path[name]).read_bytes())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        given = [f"--{name}", "-", f"--{other}", path[other], "--label", "year"]
        assert fingerprint(gapgnn("describe", *given, "--json")) == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    code, _, err = gapgnn("describe", "--edges", "-", "--nodes", "people.csv", "--label", "year")
    assert (code, err.count("\n")) == (2, 1)
    assert "Got nothing in standard input" in err


def test_a_model_remembers_how_its_tables_were_written(gapgnn, words, tmp_path, ledger):
    """And says nothing of it to tables that are not text."""
    head, *people = Path("people.csv").read_text().splitlines()
    friends = Path("friends.csv").read_text().splitlines()[1:]
    days = [f"{row},{1 + place % 28:02d}.03.2026 10:30" for place, row in enumerate(friends)]
    for name, rows in (("people", people), ("friends", days)):
        Path(f"{name}.csv").write_text("\n".join(row.replace(",", ";") for row in rows) + "\n")
    place = head.split(",").index("year") + 1
    options = ["--edges", "friends.csv", "--nodes", "people.csv", "--delimiter", ";"]
    options += ["--header", "none", "--label", f"column_{place}"]
    options += ["--time", "column_3", "--time-format", "%d.%m.%Y %H:%M"]
    window = ["--since", "2026-03-05", "--until", "2026-03-20"]
    code, _, err = gapgnn("train", *QUICK, *options, *window, "--out", "model")
    assert code == 0, err
    said = load_model("model").preparation_
    assert said.dialect == {"delimiter": ";", "header": "none"}
    assert said.edges[""]["time_format"] == "%d.%m.%Y %H:%M"
    again = ["--edges", "friends.csv", "--nodes", "people.csv", *window]
    code, _, err = gapgnn("predict", "--model", "model", *again, "--out", "p.csv", "--json")
    assert code == 0, err
    assert len(Path("p.csv").read_text().splitlines()) == len(people) + 1
    for name in ("friends", "people"):
        count = len(Path(f"{name}.csv").read_text().partition("\n")[0].split(";"))
        columns = [f"column_{place}" for place in range(1, count + 1)]
        table = pcsv.read_csv(
            f"{name}.csv",
            read_options=pcsv.ReadOptions(column_names=columns),
            parse_options=pcsv.ParseOptions(delimiter=";"),
        )
        pq.write_table(table, f"{name}.parquet")
    again = ["--edges", "friends.parquet", "--nodes", "people.parquet", *window]
    code, _, err = gapgnn("predict", "--model", "model", *again, "--out", "q.csv", "--json")
    assert code == 0, err
    assert Path("q.csv").read_text() == Path("p.csv").read_text()


def test_an_experiment_says_how_its_tables_are_read_again(gapgnn, words, tmp_path):
    """All options of the data, several edge tables one by one, and whole queries."""
    given = ["--edges", f"paid={words[1]}", "--edges", "friends.csv", *words[2:], "--directed"]
    given += ["--weight", "paid=age", "--weight-bounds", "0", "9", "--drop", "city"]
    given += ["--population", "bank", "--decimal", ",", "--dropped-at-most", "0.7"]
    parser = Parser()
    add_data_options(parser)
    parsed = parser.parse_args(given)
    again = parser.parse_args(data_words(parsed))
    assert again.nodes.word == parsed.nodes.word == words[3]
    assert {**vars(again), "nodes": None} == {**vars(parsed), "nodes": None}
    assert pickle.loads(pickle.dumps(parsed.nodes)).word == words[3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--edges", "duckdb:x.db"], "a query must be ENGINE:DATABASE?SELECT"),
        (["--edges", "sqlite:x.db?SELECT 1"], "must name a database that is there"),
        (["--edges", "sqlite:bank.db?SELECT nothing"], "must be a query that 'sqlite:bank.db'"),
        (["--nodes", "-", "--header", "last"], "--header"),
        (["--quote", "x"], "--quote"),
        (["--time-format", "%d.%m.%Y"], "`--time-format` must come with `--time COLUMN`"),
        (
            ["--time", "day", "--time-format", "%H", "--since", "2026-01-01"],
            "`--time-format` must say how dates are written",
        ),
        (
            ["--time", "day", "--time-format", "%d.%m.%Y", "--since", "3"],
            "`--time-format` must say how dates are written",
        ),
        (
            ["--edges", "postgresql://me:secret@localhost:1/x?SELECT 1"],
            "'postgresql://me@localhost:1/x'",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line_and_charges_nothing(gapgnn, words, ledger, given, said):
    full = {"--edges": "friends.csv", "--nodes": "people.csv", "--label": "year"}
    full |= dict(zip(given[::2], given[1::2], strict=True))
    line = [word for pair in full.items() for word in pair]
    code, _, err = gapgnn("train", *QUICK, *line, "--out", "model")
    assert code == 2, err
    (complaint,) = (text for text in err.splitlines() if text.startswith("gapgnn: "))
    assert said in complaint
    assert "secret" not in err
    assert not ledger.entries()
    assert not Path("model").exists()
