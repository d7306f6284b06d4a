"""Spreadsheets write numbers in their own way: declared, the same table is the same graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablecases import dense, feature, save, write

from gapgnn.errors import DataError, InputError
from gapgnn.graph.store.build import build_store
from gapgnn.graph.tables.columns import parse_numbers
from gapgnn.graph.tables.dialect import THOUSANDS, Dialect
from gapgnn.graph.tables.files import open_table
from gapgnn.graph.tables.read import read_ids, read_tables
from gapgnn.graph.tables.schema import Label, Number, Schema

GERMAN = Dialect(delimiter=";", decimal=",", thousands=".")
PLAIN = "id,size,city,y\n1,1234.5,Rome,a\n2,,Bern,b\n3,-7,Rome,a\n"
SPELLED = "id;size;city;y\n1;1.234,5;Rome;a\n2;;Bern;b\n3;-7;Rome;a\n"
EDGES = "p,q\n1,2\n2,3\n"


def semicolons(text: str) -> str:
    return text.replace(",", ";")


class TestTables:
    @pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "with a mark of order"])
    def test_a_table_in_another_dialect_is_the_same_graph(self, tmp_path, start):
        wanted = read_tables(**write(tmp_path, nodes=PLAIN, edges=EDGES), label="y")
        paths = write(tmp_path, nodes=start + SPELLED, edges=start + semicolons(EDGES))
        read = read_tables(**paths, label="y", dialect=GERMAN)
        assert read.feature_names == wanted.feature_names
        assert np.array_equal(dense(read.graph), dense(wanted.graph))
        assert read.graph.fingerprint == wanted.graph.fingerprint
        assert read_ids(paths["nodes"], dialect=GERMAN).tolist() == [1, 2, 3]

    def test_a_schema_reads_numbers_of_the_dialect(self, tmp_path):
        schema = Schema((Number("size", 0, 2469),), Label("y", ("a", "b")))
        paths = write(tmp_path, nodes=SPELLED, edges=semicolons(EDGES))
        read = read_tables(**paths, label="y", schema=schema, drop=["city"], dialect=GERMAN)
        assert feature(read, "size") == pytest.approx([0, 0, -1])
        assert feature(read, "size=missing") == [0, 1, 0]

    def test_a_store_takes_the_dialect_too(self, tmp_path):
        paths = write(tmp_path, nodes=SPELLED, edges=semicolons(EDGES))
        options = {**paths, "label": "y", "dialect": GERMAN}
        stored = build_store(tmp_path / "store", **options, parts=2).graph
        assert stored.fingerprint == read_tables(**options).graph.fingerprint
        assert stored.preparation == read_tables(**options).graph.preparation

    def test_ids_are_not_numbers_of_the_dialect(self, tmp_path):
        paths = write(tmp_path, nodes="id;x;y\n1.000;1;a\n2;2;b\n", edges="p;q\n1.000;2\n")
        graph = read_tables(**paths, label="y", dialect=GERMAN).graph
        assert graph.ids.tolist() == ["1.000", "2"]
        assert graph.num_edges == 1

    def test_a_tsv_has_tabs_whatever_the_delimiter_of_the_other_is(self, tmp_path):
        nodes = write(tmp_path, nodes=SPELLED)["nodes"]
        edges = tmp_path / "e.tsv"
        edges.write_text(EDGES.replace(",", "\t"))
        assert read_tables(nodes=nodes, edges=edges, label="y", dialect=GERMAN).graph.num_edges == 2

    def test_text_of_a_parquet_file_is_spelled_alike(self, tmp_path):
        table = pa.table({"id": [1, 2], "size": ["1.000,5", "7"], "y": ["a", "b"]})
        nodes = save(table, tmp_path / "n.parquet")
        schema = Schema((Number("size", 0, 2001),), Label("y", ("a", "b")))
        paths = {"nodes": nodes, **write(tmp_path, edges=semicolons(EDGES[:8]))}
        read = read_tables(**paths, label="y", schema=schema, dialect=GERMAN)
        assert feature(read, "size") == pytest.approx([0, -0.993], abs=1e-3)

    def test_a_number_far_below_that_is_none_makes_the_column_text(self, tmp_path):
        rows = "".join(f"{row};1,5;{'ab'[row % 2]}\n" for row in range(200_000))
        nodes = f"id;x;y\n{rows}200000;1.5;a\n"
        paths = write(tmp_path, nodes=nodes, edges="p;q\n1;2\n")
        assert open_table(paths["nodes"], what="nodes", dialect=GERMAN).type_of("x") == pa.float64()
        assert read_tables(**paths, label="y", dialect=GERMAN).feature_names == ("x=1,5", "x=1.5")


class TestNumbers:
    @given(
        st.floats(-1e9, 1e9).map(lambda value: round(value, 3)),
        st.sampled_from([".", ","]),
        st.sampled_from([None, *THOUSANDS]),
    )
    def test_whatever_is_written_is_read_back(self, value, decimal, thousands):
        if thousands == decimal:
            return
        text = f"{value:,.3f}".replace(",", "T").replace(".", decimal)
        text = text.replace("T", thousands or "")
        dialect = Dialect(decimal=decimal, thousands=thousands)
        assert parse_numbers("x", "f", pa.array([f" {text} "]), dialect)[0] == value
        spelling = Dialect.spelling_of([text])
        assert spelling is not None

    @given(st.text(max_size=10))
    def test_any_other_cell_is_missing_and_stops_nothing(self, text):
        (found,) = parse_numbers("x", "f", pa.array([text]), GERMAN)
        assert np.isnan(found) or text.strip()

    @pytest.mark.parametrize("text", ["1\u00a0234,5", "1\u202f234,5", "1 234,5"])
    def test_any_space_is_a_space(self, text):
        dialect = Dialect(decimal=",", thousands="space")
        assert parse_numbers("x", "f", pa.array([text]), dialect)[0] == 1234.5

    @pytest.mark.parametrize("text", ["1.23", "12.34,5", "1.2345", "1,2,3", "1.234.56"])
    def test_groups_are_of_three(self, text):
        assert np.isnan(parse_numbers("x", "f", pa.array([text]), GERMAN)[0])


class TestDialect:
    def test_words_and_plain_values_come_back(self):
        tabs = Dialect(delimiter="tab", thousands="space")
        assert (tabs.delimiter, tabs.thousands) == ("\t", " ")
        assert tabs.words == ["--delimiter", "tab", "--thousands", "space"]
        assert Dialect(**GERMAN.to_dict()) == GERMAN
        assert Dialect().to_dict() == {}

    @pytest.mark.parametrize(
        "options", [{"delimiter": "\n"}, {"decimal": ""}, {"thousands": ""}, {"delimiter": "ä"}]
    )
    def test_what_cannot_be_is_refused(self, options):
        with pytest.raises(InputError, match="must"):
            Dialect(**options)

    @pytest.mark.parametrize("mark", [";", "\t", "|"])
    def test_a_header_of_another_delimiter_says_which(self, tmp_path: Path, mark: str):
        path = tmp_path / "n.csv"
        path.write_text(f"id{mark}x\n1{mark}1,5\n")
        with pytest.raises(DataError, match="pass `delimiter="):
            open_table(path, what="nodes")
        assert open_table(path, what="nodes", dialect=Dialect(delimiter=mark)).columns == (
            "id",
            "x",
        )

    def test_a_table_of_one_column_is_one(self, tmp_path):
        path = tmp_path / "n.csv"
        path.write_text("id\n1\n2\n")
        assert read_ids(path).tolist() == [1, 2]
