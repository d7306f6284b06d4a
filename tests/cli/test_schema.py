"""`gapgnn schema` drafts a schema; commands at node level ask for one and read tables by it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import write_tables

from gapgnn.cli.main import COMMANDS
from gapgnn.errors import DataError
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.tables.schema import Category, Label, Number, Schema

OWN = ["--edges", "friends.csv", "--nodes", "people.csv"]
PROPOSE = "gapgnn schema --nodes people.csv --label year --out schema.toml"


@pytest.fixture
def gapgnn(gapgnn, tmp_path):
    """Return a function that runs a command beside small tables: exit code, stdout, stderr."""
    write_tables(tmp_path)
    return gapgnn


@pytest.fixture
def schema(gapgnn) -> str:
    assert gapgnn(*PROPOSE.split()[1:])[0] == 0
    return "schema.toml"


def refused(answer: tuple[int, str, str], complaint: str) -> None:
    code, out, err = answer
    assert code == 2
    assert not out or json.loads(out).keys() == {"error"}
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_the_draft_is_a_schema_of_the_table(gapgnn):
    code, out, err = gapgnn(*PROPOSE.split()[1:])
    assert (code, err) == (0, "")
    for shown in ("proposed in schema.toml", "Bern, Oslo, Rome or other", "2004, 2005, 2006"):
        assert shown in out
    assert "Check each line" in out
    assert Schema.read("schema.toml") == Schema(
        columns=(Category("city", ("Bern", "Oslo", "Rome")), Number("age", 10, 30)),
        label=Label("year", ("2004", "2005", "2006")),
    )


def test_json_is_one_object(gapgnn):
    code, out, err = gapgnn(*PROPOSE.split()[1:], "--drop", "city", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    said = json.loads(out)
    assert said["out"] == "schema.toml"
    assert Schema.from_dict(said["schema"]) == Schema.read("schema.toml")
    assert said["schema"]["columns"][0] == {"name": "city", "type": "ignore"}
    assert said["notes"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "people.csv"], "`--out` must be a new file. Got 'people.csv'"),
        (["--out", "nowhere/s.toml"], "`--out` must lie in a folder that exists"),
        (["--out", "s.toml", "--label", "yaer"], "Did you mean 'year'?"),
        (["--out", "s.toml", "--drop", "aeg"], "Did you mean 'age'?"),
        (["--out", "s.toml", "--nodes", "nobody.csv"], "`--nodes` must be a file"),
        (["--label", "year"], "--out"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(gapgnn, words, complaint):
    before = sorted(os.listdir())
    refused(gapgnn("schema", "--nodes", "people.csv", *words), complaint)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("command", [["train"], ["describe"], ["attack", "membership"]])
def test_tables_at_node_level_need_a_schema_before_a_row_is_read(gapgnn, command):
    # A table that could not be read shows that nobody tried.
    Path("people.csv").write_bytes(b"")
    refused(
        gapgnn(*command, *OWN, "--label", "year", "--level", "node"),
        f"`--schema` must say at node level which columns, categories and classes are public. "
        f"Got none; `{PROPOSE}` proposes one to edit.",
    )


def test_the_proposed_command_carries_what_was_dropped(gapgnn):
    words = [*OWN, "--label", "year", "--drop", "the city", "--level", "node"]
    refused(gapgnn("describe", *words), "--label year --drop 'the city' --out schema.toml`")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--min-class-count", "5"], "`--min-class-count` must be left out at node level. Got 5"),
        (["--features", "x.json"], "`--features` must be a matrix (.npz or .npy) at node level"),
        (["--label", "city"], "`--label` must be the one of the schema, 'year'. Got 'city'."),
        (["--schema", "nowhere.toml"], "`--schema` must be a file. Got 'nowhere.toml'"),
        (["--schema", "people.csv"], "`--schema` must be TOML. Got 'people.csv'"),
    ],
)
def test_what_a_schema_rules_out_is_one_line(gapgnn, schema, words, complaint):
    refused(gapgnn("describe", *OWN, "--schema", schema, "--level", "node", *words), complaint)


def test_a_schema_without_a_label_does_not_say_what_to_predict(gapgnn):
    gapgnn("schema", "--nodes", "people.csv", "--drop", "year", "--out", "schema.toml")
    words = [*OWN, "--schema", "schema.toml"]
    refused(gapgnn("describe", *words), "`--label` must name the node column with the class")


def test_a_schema_needs_tables(gapgnn, schema):
    refused(gapgnn("describe", "--schema", schema), "`--schema` must come with `--edges`")


def test_at_node_level_no_record_stops_the_run(gapgnn, schema):
    with Path("people.csv").open("a") as people:
        people.write("p500,Atlantis,very old,not saying\n")
    with Path("friends.csv").open("a") as friends:
        friends.write("p500,nobody\nnobody,p1\nnobody,nowhere\n")
    np.save("x.npy", np.where(np.arange(121)[:, None] == 7, np.nan, np.ones((121, 3))))
    words = [*OWN, "--schema", schema, "--directed", "--json"]
    for features in ([], ["--features", "x.npy"]):
        code, out, err = gapgnn("describe", *words, *features, "--level", "node")
        assert (code, err) == (0, "")
        summary = json.loads(out)
        assert (summary["nodes"], summary["dangling"], summary["unlabelled"]) == (121, 1, 1)
        assert summary["inferred"] == []
    refused(gapgnn("describe", *words), "unknown ids in 3 of")
    words = [*words, "--dangling", "keep", "--features", "x.npy"]
    refused(gapgnn("describe", *words), "`--features` must be finite")


def test_a_store_carries_its_schema(gapgnn, schema):
    words = [*OWN, "--schema", schema, "--level", "node"]
    code, _, err = gapgnn("partition", *words, "--parts", "2", "--out", "store", "--json")
    assert (code, err) == (0, "")
    stored = open_store("store")
    assert stored.schema == Schema.read(schema)
    assert stored.label_names == ("2004", "2005", "2006")
    here = json.loads(gapgnn("describe", *words, "--json")[1])
    there = json.loads(gapgnn("describe", "--store", "store", "--json")[1])
    assert here["fingerprint"] == there["fingerprint"]
    assert here["declared"] == there["declared"]


def test_the_command_is_listed():
    assert "schema" in COMMANDS


def test_the_json_schema_of_the_docs_is_the_commands(gapgnn):
    code, out, err = gapgnn("schema", "--json-schema")
    assert (code, err) == (0, "")
    page = Path(__file__).parents[2] / "docs" / "reference" / "schema.json"
    assert out == page.read_text(encoding="utf-8")


def test_the_json_schema_has_the_keys_that_the_reader_takes(gapgnn):
    about = json.loads(gapgnn("schema", "--json-schema")[1])
    parts = about["$defs"]
    types = about["properties"]["columns"]["additionalProperties"]["discriminator"]["mapping"]
    assert set(types) == {"number", "category", "date", "ignore"}
    values = {"low": 0, "high": 1, "values": ["a"], "format": "%Y"}
    for column_type, place in types.items():
        part = parts[place.rpartition("/")[2]]
        days = {"low": "2000-01-01", "high": "2001-01-01"} if column_type == "date" else {}
        keys = {key: {**values, **days}[key] for key in part["properties"] if key != "type"}
        assert Schema.from_dict({"columns": [{"name": "x", "type": column_type, **keys}]}).columns
        for key in set(part["required"]) - {"type"}:
            fewer = {name: value for name, value in keys.items() if name != key}
            with pytest.raises(DataError, match=f"`columns.x.{key}` must be given"):
                Schema.from_dict({"columns": [{"name": "x", "type": column_type, **fewer}]})


def test_all_that_is_wrong_with_a_schema_is_one_line(gapgnn):
    Path("schema.toml").write_text(
        '[label]\ncolumn = "year"\nclasses = [2004]\n[columns.age]\ntype = "number"\nlow = "x"\n'
        '[columns.city]\ntype = "categry"\n'
    )
    answer = gapgnn("describe", *OWN, "--schema", "schema.toml")
    refused(answer, "4 things must be changed")
    for said in (
        "`columns.age.low` must be a number. Got 'x' in 'schema.toml'.",
        "`columns.age.high` must be given",
        "`columns.city.type` must be one of number, category, date, ignore. Got 'categry'",
        "`label.classes` must have at least two values. Got 1",
    ):
        assert said in answer[2]
