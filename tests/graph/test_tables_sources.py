"""One table from any source is one graph, and a source that cannot be read is one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import sqlite3
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from tablecases import save
from test_tables_fingerprints import CASES, KNOWN

from gapgnn.errors import DataError, GapgnnError, InputError, UnavailableError, outcome_of
from gapgnn.graph.store.build import build_store
from gapgnn.graph.tables import Dialect, open_table, read_ids, read_tables
from gapgnn.graph.tables.schema import Date, Number, Schema
from gapgnn.graph.tables.sources import Query, as_source

duckdb = pytest.importorskip("duckdb")


def cut(table: pa.Table, folder: Path, suffix: str, sizes: tuple[int, ...] = (1, 3)) -> Path:
    """Write a table as a folder of parts, the last one with the rest."""
    folder.mkdir()
    starts = [0, *sizes, table.num_rows]
    for place, (start, stop) in enumerate(itertools.pairwise(starts)):
        rows = table.slice(start, stop - start)
        path = save(rows, folder / f"part-{place}.{suffix.removesuffix('.gz')}")
        if suffix.endswith(".gz"):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    (folder / "_SUCCESS").touch()
    return folder


def zipped(table: pa.Table, path: Path) -> Path:
    path.write_bytes(gzip.compress(save(table, path.with_suffix("")).read_bytes()))
    return path


def stream(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def in_duckdb(table: pa.Table, path: Path) -> str:
    with duckdb.connect(path) as link:
        link.register("given", table)
        link.execute("CREATE TABLE kept AS SELECT * FROM given")
    return f"duckdb:{path}?SELECT * FROM kept"


def in_sqlite(table: pa.Table, path: Path) -> str:
    link = sqlite3.connect(path)
    marks = ", ".join("?" * table.num_columns)
    names = ", ".join(f'"{name}"' for name in table.column_names)
    link.execute(f"CREATE TABLE kept ({names})")
    rows = [tuple(row.values()) for row in table.to_pylist()]
    link.executemany(f"INSERT INTO kept VALUES ({marks})", rows)
    link.commit()
    link.close()
    return f"sqlite:{path}?SELECT * FROM kept"


SOURCES: dict[str, Any] = {
    "csv.gz": lambda table, folder, name: zipped(table, folder / f"{name}.csv.gz"),
    "tsv.gz": lambda table, folder, name: zipped(table, folder / f"{name}.tsv.gz"),
    "folder of csv": lambda table, folder, name: cut(table, folder / name, "csv"),
    "folder of csv.gz": lambda table, folder, name: cut(table, folder / name, "csv.gz"),
    "folder of parquet": lambda table, folder, name: cut(table, folder / name, "parquet"),
    "folder of feather": lambda table, folder, name: cut(table, folder / name, "feather"),
    "stream": lambda table, folder, name: stream(table, folder / f"{name}.arrow"),
    "duckdb": lambda table, folder, name: in_duckdb(table, folder / f"{name}.db"),
    "sqlite": lambda table, folder, name: in_sqlite(table, folder / f"{name}.db"),
    "polars": lambda table, folder, name: polars.from_arrow(table),
}


def text_for_sqlite(case: str, source: str, table: pa.Table) -> pa.Table:
    """SQLite has no truth values: they are the whole numbers 0 and 1."""
    del case
    if source != "sqlite":
        return table
    columns = [
        column.cast(pa.int64()) if pa.types.is_boolean(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CASES)
def test_every_source_gives_the_same_graph(tmp_path: Path, case: str, source: str) -> None:
    nodes, edges, options = CASES[case]
    given = {
        name: SOURCES[source](text_for_sqlite(case, source, pa.table(table)), tmp_path, name)
        for name, table in (("nodes", nodes), ("edges", edges))
    }
    assert read_tables(**given, **options).graph.fingerprint == KNOWN[case]
    stored = build_store(tmp_path / "store", parts=2, **given, **options).graph
    assert stored.fingerprint == KNOWN[case]


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "feather"])
def test_standard_input_says_its_format_by_its_first_bytes(tmp_path, monkeypatch, form):
    nodes, edges, options = CASES["learned"]
    path = save(pa.table(edges), tmp_path / f"edges.{form.removesuffix('.gz')}")
    raw = path.read_bytes()
    raw = gzip.compress(raw) if form.endswith(".gz") else raw
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    read = read_tables(nodes=pa.table(nodes), edges="-", **options)
    assert read.graph.fingerprint == KNOWN["learned"]


def test_text_without_a_header_has_numbered_columns(tmp_path):
    nodes, edges, options = CASES["amounts"]
    files = {}
    for name, table in (("nodes", pa.table(nodes)), ("edges", pa.table(edges))):
        files[name] = tmp_path / f"{name}.csv"
        pcsv.write_csv(table, files[name], pcsv.WriteOptions(include_header=False))
    options = {
        **options,
        "label": "column_7",
        "source": "column_1",
        "target": "column_2",
        "weight": "column_3",
        "dialect": Dialect(header="none"),
    }
    read = read_tables(**files, **options)
    assert read.feature_names[:2] == ("column_2", "column_2=missing")
    assert read.graph.num_nodes == len(nodes["id"])
    renamed = {
        name: pa.table(table).rename_columns(
            [f"column_{place}" for place in range(1, len(table) + 1)]
        )
        for name, table in (("nodes", nodes), ("edges", edges))
    }
    again = read_tables(**renamed, **{**options, "dialect": None})
    assert again.graph.fingerprint == read.graph.fingerprint


def test_a_line_of_data_is_not_taken_for_names(tmp_path):
    (tmp_path / "e.csv").write_text("1,2\n2,3\n")
    (tmp_path / "n.csv").write_text("1,5,a\n2,6,b\n3,7,a\n")
    files = {"edges": tmp_path / "e.csv", "nodes": tmp_path / "n.csv"}
    with pytest.raises(DataError, match='or say `header="none"`'):
        read_tables(**files, label=None)
    read = read_tables(**files, label="column_3", dialect=Dialect(header="none"))
    assert (read.graph.num_nodes, read.graph.num_edges) == (3, 2)


def test_quotes_are_those_that_are_declared(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("id,name\n1,'Bern, city'\n2,'5\" pipe'\n")
    (batch,) = open_table(path, what="nodes", dialect=Dialect(quote="'")).batches(["name"])
    assert batch.column("name").to_pylist() == ["Bern, city", '5" pipe']
    path.write_text('id,name\n1,"Bern\n2,Rome"\n')
    (batch,) = open_table(path, what="nodes", dialect=Dialect(quote="none")).batches(["name"])
    assert batch.column("name").to_pylist() == ['"Bern', 'Rome"']


def test_parts_with_other_types_of_numbers_are_one_column(tmp_path):
    folder = tmp_path / "n"
    folder.mkdir()
    whole = pa.table({"id": pa.array([1, 2], pa.int32()), "x": pa.array([1, 2], pa.int16())})
    broken = pa.table({"x": [0.5], "id": pa.array([3], pa.int64())})
    pq.write_table(whole, folder / "a.parquet")
    pq.write_table(broken, folder / "b.parquet")
    table = open_table(folder, what="nodes")
    assert table.columns == ("id", "x")
    batches = list(table.batches(["id", "x"]))
    assert {batch.column("id").type for batch in batches} == {table.type_of("id")} == {pa.int64()}
    assert {batch.column("x").type for batch in batches} == {table.type_of("x")} == {pa.float64()}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["id"], row["x"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 0.5)]


def test_rows_are_counted_through_all_parts(tmp_path):
    nodes, edges, options = CASES["numbers"]
    edges = {"src": [*edges["src"][:4], 77], "dst": edges["dst"]}
    folder = cut(pa.table(edges), tmp_path / "edges", "parquet")
    with pytest.raises(DataError, match="the first 77 as source in row 5"):
        read_tables(nodes=pa.table(nodes), edges=folder, **options)


def folder_of(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "many").mkdir()
    for name, text in files.items():
        (tmp_path / "many" / name.replace("_", ".")).write_text(text)
    return tmp_path / "many"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "which is a folder with nothing in it"),
        ({"a_csv": "id,x\n1,2\n", "b_tsv": "id\tx\n1\t2\n"}, "Got .csv, .tsv files"),
        ({"a_csv": "id,x\n1,2\n", "b_pdf": "x"}, "Got 1 such files and 'b.pdf'"),
        ({"a_csv": "id,x\n1,2\n", "b_csv": "x,id\n1,2\n"}, "must have the same columns in each"),
        (
            {"a_csv": "id,x\n1,2\n", "b_csv": "id,x\n1,2,3\n"},
            "many/b.csv': Row #2: Expected 2 columns",
        ),
        ({"a_csv": "id,x\n1,2\n", "b_csv": ""}, "must not be empty"),
    ],
)
def test_a_folder_that_is_no_table_is_one_line(tmp_path, files, said):
    with pytest.raises(GapgnnError) as caught:
        read_ids(folder_of(tmp_path, **files))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_files_of_new_formats_are_one_line(tmp_path):
    rows = pa.table({"id": list(range(5000)), "x": list(range(5000))})
    for path in (zipped(rows, tmp_path / "n.csv.gz"), stream(rows, tmp_path / "n.arrow")):
        raw = path.read_bytes()
        for broken in (raw[: len(raw) // 2], raw[:40] + b"\xff" * 40 + raw[80:], b"nonsense"):
            path.write_bytes(broken)
            with pytest.raises(DataError, match="must be") as caught:
                read_ids(path)
            assert len(str(caught.value).splitlines()) == 1


class TestQueries:
    @pytest.mark.parametrize(
        ("word", "engine", "database"),
        [
            ("duckdb:a b.db?SELECT 1", "duckdb", "a b.db"),
            ("SQLITE:x.db? with t as (select 1) select * from t;", "sqlite", "x.db"),
            ("postgresql://u@h:5/db?SELECT a=1 FROM x", "postgresql", "//u@h:5/db"),
            ("postgres:///db?host=/tmp&user=u?FROM x", "postgresql", "///db?host=/tmp&user=u"),
        ],
    )
    def test_a_word_with_an_engine_is_a_query(self, word, engine, database):
        query = as_source(word)
        assert isinstance(query, Query)
        assert (query.engine, query.database) == (engine, database)
        assert not query.text.endswith(";")

    @pytest.mark.parametrize(
        "word", ["duckdb:x.db", "sqlite:?SELECT 1", "duckdb:x.db?DROP TABLE x", "postgres://h/db"]
    )
    def test_an_engine_without_a_query_is_refused(self, word):
        with pytest.raises(InputError, match="a query must be ENGINE:DATABASE"):
            as_source(word)

    @pytest.mark.parametrize(
        "word",
        [
            "postgresql://me:secret@host/db?SELECT 1",
            "postgresql://me:secret@host/db",
            "postgresql://host/db?user=me&password=secret?SELECT 1",
        ],
    )
    def test_a_password_is_in_no_message(self, word):
        source = None
        with contextlib.suppress(InputError):
            source = as_source(word)
        if source is None:
            with pytest.raises(InputError) as caught:
                as_source(word)
        assert "secret" not in str(caught.value if source is None else source)

    def test_a_query_changes_nothing(self, tmp_path):
        table = pa.table({"id": [1, 2], "x": [1.0, 2.0]})
        for make in (in_duckdb, in_sqlite):
            word = make(table, tmp_path / f"{make.__name__}.db")
            engine = word.partition("?")[0]
            for text in (
                "SELECT 1; DROP TABLE kept",
                "WITH one AS (SELECT 1) INSERT INTO kept VALUES (3, 3)",
                "WITH one AS (SELECT 1) DELETE FROM kept",
            ):
                with pytest.raises(GapgnnError) as caught:
                    read_ids(f"{engine}?{text}")
                assert len(str(caught.value).splitlines()) == 1
                if make is in_sqlite and "kept VALUES" in text:
                    assert "readonly" in str(caught.value)
            assert read_ids(word).tolist() == [1, 2]

    def test_a_query_changes_nothing_on_a_server_either(self, postgres):
        address = postgres.fresh()
        postgres.execute(
            "CREATE TABLE kept AS SELECT n AS id, n * 2 AS x FROM generate_series(1, 3) n",
            database=address.partition("?")[0].rpartition("/")[2],
        )
        for text, said in (
            ("WITH gone AS (DELETE FROM kept RETURNING id) SELECT * FROM gone", "Got"),
            ("SELECT 1; DROP TABLE kept", "syntax error"),
            ("SELECT * FROM nowhere", "nowhere"),
            ("SELECT nextval('kept')", "kept"),
        ):
            with pytest.raises(UnavailableError, match="must be a query that") as caught:
                read_ids(f"{address}?{text}")
            assert said in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
        assert read_ids(f"{address}?TABLE kept").tolist() == [1, 2, 3]
        with pytest.raises(DataError, match="`nodes` must have rows"):
            read_ids(f"{address}?SELECT * FROM kept WHERE id > 9")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without room")
    def test_a_full_disk_is_one_line_and_try_again(self, tmp_path, monkeypatch):
        word = in_sqlite(pa.table({"id": list(range(9000))}), tmp_path / "q.db")
        monkeypatch.setattr("tempfile.TemporaryFile", partial(open, "/dev/full", "r+b"))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"id\n" + b"1\n" * 90_000)))
        for source in (word, "-"):
            with pytest.raises(UnavailableError) as caught:
                read_ids(source)
            assert "No space left" in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
            assert outcome_of(caught.value) == (5, "try-again")

    def test_what_cannot_be_answered_is_one_line(self, tmp_path):
        (tmp_path / "odd.db").write_text("this is no database at all, whatever its name is")
        for engine in ("duckdb", "sqlite"):
            for name, said in (("gone.db", "must name a database"), ("odd.db", "must be a query")):
                with pytest.raises(UnavailableError, match=said) as caught:
                    read_ids(f"{engine}:{tmp_path / name}?SELECT * FROM x")
                assert len(str(caught.value).splitlines()) == 1

    def test_an_answer_without_rows_is_a_table_without_rows(self, tmp_path):
        table = pa.table({"id": [1], "x": [1.0]})
        for make in (in_duckdb, in_sqlite):
            word = make(table, tmp_path / f"{make.__name__}.db")
            with pytest.raises(DataError, match="`nodes` must have rows"):
                read_ids(f"{word} WHERE id > 1")

    def test_decimals_are_read_as_text_is(self, tmp_path):
        path = tmp_path / "d.db"
        with duckdb.connect(path) as link:
            link.execute("CREATE TABLE kept (id BIGINT, x DECIMAL(18, 3), n HUGEINT)")
            link.execute("INSERT INTO kept VALUES (1, 1234.567, 7), (2, 0.1, 8)")
        table = open_table(f"duckdb:{path}?SELECT * FROM kept", what="nodes")
        (batch,) = table.batches(["x", "n"])
        assert batch.column("x").to_pylist() == [1234.567, 0.1]
        assert batch.column("n").to_pylist() == [7, 8]

    def test_no_cell_of_an_answer_stops_the_run(self, tmp_path, postgres):
        """Not the one that makes SQLite's column text, and no infinity of a server."""
        import psycopg

        schema = Schema((Number("x", 0, 10), Date("d", "2000-01-01", "2030-01-01")))
        edges = pa.table({"a": [1], "b": [2]})
        link = sqlite3.connect(tmp_path / "odd.db")
        link.execute("CREATE TABLE kept (id, x, d)")
        odd = [(1, 5.0, "2015-01-01"), (2, 1 << 60, "soon"), (3, "NaN", 7), (4, b"\xff", b"\xff")]
        link.executemany("INSERT INTO kept VALUES (?, ?, ?)", odd)
        link.executemany("INSERT INTO kept VALUES (?, ?, ?)", [(5, 0.5, None), (6, 1 << 60, None)])
        link.commit()
        link.close()
        address = postgres.fresh()
        with psycopg.connect(address) as server:
            server.execute("CREATE TABLE kept (id int, x numeric, d timestamptz)")
            server.execute(
                "INSERT INTO kept VALUES (1, 5, '2015-01-01'), (2, 1e300 * 1e300, 'infinity'), "
                "(3, 'NaN', '0044-03-15 BC'), (4, 'Infinity', '-infinity'), (5, 0.5, NULL), "
                "(6, 1e60, '99999-01-01')"
            )
        for word in (f"sqlite:{tmp_path / 'odd.db'}", address):
            graph = read_tables(
                nodes=f"{word}?SELECT * FROM kept ORDER BY id",
                edges=edges,
                label=None,
                schema=schema,
                dangling="keep",
            ).graph
            assert graph.features[0].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-3)
            assert graph.features[4].tolist() == pytest.approx([-0.9, 0, 0, 1])
            assert np.abs(graph.features).max() <= 1
        narrow = f"sqlite:{tmp_path / 'odd.db'}?SELECT id, x FROM kept WHERE id > 4"
        assert open_table(narrow, what="nodes").type_of("x") == pa.float64()

    def test_codes_in_a_column_of_text_stay_codes(self, tmp_path):
        rows = pa.table({"id": ["1", "2"], "branch": ["112", "113"], "y": ["a", "b"]})
        word = in_duckdb(rows, tmp_path / "c.db")
        read = read_tables(nodes=word, edges=pa.table({"a": ["1"], "b": ["2"]}), label="y")
        assert read.feature_names == ("branch=112", "branch=113")

    def test_the_answer_is_kept_where_nobody_finds_it(self, tmp_path, monkeypatch):
        """It is asked once, and its file has no name."""
        monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
        (tmp_path / "scratch").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        word = in_sqlite(pa.table({"id": [1, 2], "x": [1, 2]}), tmp_path / "q.db")
        query = as_source(word)
        first = open_table(query, what="nodes")
        link = sqlite3.connect(tmp_path / "q.db")
        link.execute("DELETE FROM kept")
        link.commit()
        link.close()
        assert not os.listdir(tmp_path / "scratch")
        assert open_table(query, what="nodes").size == first.size
        assert read_ids(query).tolist() == [1, 2]
