"""The same table in another format is the same table: codes, delimiters, too many values."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from gapgnn.errors import DataError
from gapgnn.graph.tables import Schema, propose_schema, read_tables

COUNT = 120
TRAIN = ["--epochs", "2", "--device", "cpu", "--no-compare", "--level", "edge", "--epsilon", "1"]


def people(branches=("056", "112", "700"), teams=("01", "1")) -> pa.Table:
    rows = np.arange(COUNT)
    return pa.table(
        {
            "id": [f"{k:06d}" for k in rows],
            "branch": [branches[k % len(branches)] for k in rows],
            "income": rows * 1.5,
            "team": [teams[k % len(teams)] for k in rows],
        }
    )


def edges() -> pa.Table:
    rng = np.random.default_rng(5)
    ends = [(k, (k + int(step)) % COUNT) for k in range(COUNT) for step in rng.integers(1, 60, 3)]
    return pa.table({"a": [f"{u:06d}" for u, _ in ends], "b": [f"{v:06d}" for _, v in ends]})


def write_csv(path, table, delimiter=","):
    options = pcsv.WriteOptions(delimiter=delimiter, quoting_style="none")
    pcsv.write_csv(table, path, options)


@pytest.fixture
def folder(tmp_path):
    for name, table in (("people", people()), ("paid", edges())):
        write_csv(tmp_path / f"{name}.csv", table)
        write_csv(tmp_path / f"{name}-de.csv", table, ";")
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return tmp_path


def tables_of(folder, suffix, **options):
    files = {"edges": folder / f"paid.{suffix}", "nodes": folder / f"people.{suffix}"}
    return read_tables(**{**files, "label": "team", **options})


def test_a_model_of_semicolon_csv_predicts_on_parquet(gapgnn, folder):
    csv = ["--edges", "paid-de.csv", "--nodes", "people-de.csv", "--label", "team"]
    code, _, err = gapgnn(
        "train", "label-gap", *csv, "--delimiter", "semicolon", *TRAIN, "--out", "model"
    )
    assert code == 0, err
    parquet = ["--edges", "paid.parquet", "--nodes", "people.parquet"]
    code, out, err = gapgnn("predict", "--model", "model", *parquet, "--out", "p.csv", "--json")
    assert code == 0, err
    # The same people and edges: the released hops answer, and nothing is charged again.
    assert json.loads(out)["new_releases"] == 0
    assert "columns" not in err
    csv = csv[:4]
    code, _, err = gapgnn("predict", "--model", "model", *csv, "--out", "q.csv")
    assert code == 0, err
    assert (folder / "p.csv").read_bytes() == (folder / "q.csv").read_bytes()
    said = ["--delimiter", "semicolon"]
    code, _, err = gapgnn("predict", "--model", "model", *parquet, *said, "--out", "p.csv")
    assert (code, "`--delimiter` must come with a .csv file" in err) == (2, True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_codes_with_leading_zeros_stay_codes(folder, suffix):
    graph = tables_of(folder, suffix).graph
    assert graph.feature_names == ("branch=056", "branch=112", "branch=700", "income")
    assert graph.label_names == ("01", "1")
    assert graph.ids[:2].tolist() == ["000000", "000001"]
    proposed = propose_schema(folder / f"people.{suffix}", "team")
    assert proposed.columns[0].type == "category"
    assert proposed.columns[0].values == ("056", "112", "700")
    assert proposed.label.classes == ("01", "1")
    again = tables_of(folder, suffix, schema=Schema.from_dict(proposed.to_dict())).graph
    np.testing.assert_array_equal(again.labels, graph.labels)


def test_numbers_without_leading_zeros_stay_numbers(folder):
    write_csv(folder / "people.csv", people(branches=("56", "112", "0", "0.5"), teams=("1", "2")))
    graph = tables_of(folder, "csv").graph
    assert graph.feature_names == ("branch", "income")
    assert graph.label_names == ("1", "2")


def test_a_model_remembers_codes_for_tables_without_a_leading_zero(gapgnn, folder):
    csv = ["--edges", "paid.csv", "--nodes", "people.csv"]
    code, _, err = gapgnn("train", "label-gap", *csv, "--label", "team", *TRAIN, "--out", "model")
    assert code == 0, err
    write_csv(folder / "people.csv", people(branches=("112", "700")))
    code, _, err = gapgnn("predict", "--model", "model", *csv, "--out", "p.csv", "--charge")
    assert code == 0, err
    # One of the three codes is not there; the column itself is the model's.
    assert "1 feature columns missing, taken as 0, such as 'branch=056'" in err
    assert "left out" not in err


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_with_more_than_a_thousand_values_are_refused_at_every_level(
    gapgnn, tmp_path, ledger, suffix
):
    count = 1300
    rows = np.arange(count)
    place = [f"{k % 1001:05d}" for k in rows]
    table = pa.table({"id": rows, "place": place, "team": [f"t{k % 2}" for k in rows]})
    ends = pa.table({"a": rows, "b": (rows + 1) % count})
    for name, one in (("people", table), ("paid", ends)):
        if suffix == "csv":
            write_csv(tmp_path / f"{name}.csv", one)
        else:
            pq.write_table(one, tmp_path / f"{name}.parquet")
    files = ["--edges", f"paid.{suffix}", "--nodes", f"people.{suffix}", "--label", "team"]
    code, _, err = gapgnn("train", "label-gap", *files, *TRAIN, "--out", "m")
    assert code == 2
    assert "Column `place`" in err
    assert "1,001 different values" in err
    assert "`--drop place`" in err
    code, _, err = gapgnn("train", "label-gap", *files, *TRAIN, "--out", "m", "--drop", "place")
    assert (code, "must have a feature column" in err) == (2, True)
    schema = '[label]\ncolumn = "team"\nclasses = ["t0", "t1"]\n\n[columns.place]\n'
    schema += f'type = "category"\nvalues = {json.dumps(sorted(set(place)))}\n'
    (tmp_path / "schema.toml").write_text(schema)
    node = ["--level", "node", "--epsilon", "8", "--schema", "schema.toml"]
    code, _, err = gapgnn("train", *files, *node, "--out", "n")
    assert code == 2
    assert "at most 1,000 values of a column. Got 1,001 of `place`" in err
    assert not ledger.entries()


def test_a_thousand_values_become_features(tmp_path):
    rows = np.arange(1300)
    branch = [f"b{k % 1000}" for k in rows]
    pq.write_table(
        pa.table({"id": rows, "branch": branch, "team": [f"t{k % 2}" for k in rows]}),
        tmp_path / "people.parquet",
    )
    pq.write_table(pa.table({"a": rows, "b": rows[::-1]}), tmp_path / "paid.parquet")
    assert tables_of(tmp_path, "parquet").graph.num_features == 1000


def test_a_schema_tells_codes_apart_that_are_one_number():
    about = {"columns": [{"name": "b", "type": "category", "values": ["056", "56"]}]}
    assert Schema.from_dict(about).columns[0].values == ("056", "56")
    about["columns"][0]["values"] = ["56", "56.0"]
    with pytest.raises(DataError, match="must name each value once"):
        Schema.from_dict(about)
