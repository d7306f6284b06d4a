"""A store made from tables in bounded memory holds the graph that reading them in memory gives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tablecases import FORMATS, FRIENDS, PEOPLE, dense, save, write

from gapgnn.errors import DataError, InputError
from gapgnn.graph.store import sort as store_sort
from gapgnn.graph.store.build import build_store
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.store.sort import ArcSorter
from gapgnn.graph.tables.read import read_tables


def assert_same(folder: Path, parts: int = 2, **options) -> None:
    """Build a store and compare it with what the same tables are in memory."""
    here = read_tables(**options)
    built = build_store(folder, parts=parts, **options)
    found = open_store(folder)
    assert found.fingerprint == here.graph.fingerprint == built.graph.fingerprint
    assert found.feature_names == here.graph.feature_names
    assert found.label_names == here.graph.label_names
    assert np.array_equal(dense(found), dense(here.graph))
    assert np.array_equal(found.indices, here.graph.indices)
    assert np.array_equal(found.ids, here.graph.ids)
    assert np.array_equal(found.labels, here.graph.labels)
    assert found.name == here.graph.name
    assert built.dropped_self_loops == here.dropped_self_loops


@pytest.mark.parametrize("directed", [False, True])
def test_small_text_tables(tmp_path, directed):
    tables = write(tmp_path, nodes=PEOPLE, edges=FRIENDS + "ann,bob,4\nbob,ann,1\ncid,cid,1\n")
    assert_same(tmp_path / "store", **tables, label="team", directed=directed)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_table_format(tmp_path, suffix):
    rng = np.random.default_rng(0)
    ids = rng.permutation(400) * 7
    nodes = pa.table(
        {
            "id": ids,
            "year": rng.choice([1999, 2000, 2001], 400),
            "height": pa.array(rng.normal(size=400), mask=rng.random(400) < 0.1),
            "city": pa.array(rng.choice(["Rome", "Bern", "Oslo"], 400), mask=ids % 5 == 0),
        }
    )
    edges = pa.table({"a": rng.choice(ids, 3_000), "b": rng.choice(ids, 3_000)})
    options = {
        "nodes": save(nodes, tmp_path / f"nodes.{suffix}"),
        "edges": save(edges, tmp_path / f"edges.{suffix}"),
        "label": "year",
    }
    assert_same(tmp_path / "store", parts=5, **options)


def test_numbers_alone_stay_dense(tmp_path):
    nodes = "id,a,b,team\n1,0.5,,x\n2,1,3,y\n3,,4,x\n"
    tables = write(tmp_path, nodes=nodes, edges="s,t\n1,2\n2,3\n")
    assert_same(tmp_path / "store", **tables, label="team")


def test_small_classes_are_left_out_with_their_arcs(tmp_path):
    nodes = "id,a,team\n" + "".join(f"{k},{k % 7},{'xxxyyyz '[k % 8]}\n" for k in range(80))
    edges = "s,t\n" + "".join(f"{k},{(k * 11 + 3) % 80}\n" for k in range(80))
    tables = write(tmp_path, nodes=nodes, edges=edges)
    options = {"label": "team", "min_class_count": 20, "drop": []}
    assert_same(tmp_path / "store", **tables, **options)


@pytest.mark.parametrize("directed", [False, True])
def test_dangling_entries_keep_their_place(tmp_path, directed):
    nodes = "id,a,team\n" + "".join(f"p{k},{k},{'xy'[k % 2]}\n" for k in range(9))
    edges = "s,t\np1,gone\np1,p2\np3,lost\np3,gone\np1,gone\np8,p0\n"
    tables = write(tmp_path, nodes=nodes, edges=edges)
    assert_same(tmp_path / "store", **tables, label="team", directed=directed, dangling="keep")
    assert sorted(open_store(tmp_path / "store").dangling_lists()) == [1, 3]


def test_features_of_their_own_file(tmp_path):
    tables = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    assert_same(tmp_path / "store", **tables, label="team", features=tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": FRIENDS + "ann,eve,1\n"}, "unknown ids in 1 of 4 rows"),
        ({"nodes": PEOPLE + "ann,1,Rome,true,red\n"}, "must name each node once"),
        ({"nodes": PEOPLE.replace("31", "inf")}, "must be finite"),
    ],
)
def test_bad_tables_are_refused_as_they_are_in_memory(tmp_path, changes, message):
    tables = write(tmp_path, **{"nodes": PEOPLE, "edges": FRIENDS, **changes})
    with pytest.raises(DataError, match=message) as here:
        read_tables(**tables, label="team")
    with pytest.raises(DataError) as there:
        build_store(tmp_path / "store", **tables, label="team", parts=2)
    assert str(here.value) == str(there.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


def test_free_text_is_refused_as_it_is_in_memory(tmp_path):
    nodes = "id,about,team\n" + "".join(f"{k},text {k},{'xy'[k % 2]}\n" for k in range(80))
    tables = write(tmp_path, nodes=nodes, edges="s,t\n1,2\n")
    with pytest.raises(DataError, match="free text") as here:
        read_tables(**tables, label="team")
    with pytest.raises(DataError) as there:
        build_store(tmp_path / "store", **tables, label="team", parts=2)
    assert str(here.value) == str(there.value)


# The external sort.


@example([[(0, 0), (0, 0)], [(0, 0), (30, 30)]], 1)
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30), max_size=6),
    st.integers(1, 40),
)
def test_arcs_are_sorted_and_unique_however_little_fits(batches, most):
    with tempfile.TemporaryDirectory() as scratch:
        sorter = ArcSorter(Path(scratch, "sort"), 31, memory=1 << 24)
        sorter._most = sorter._spill._most = most
        for batch in batches:
            pairs = np.array(batch, dtype=np.int64).reshape(-1, 2)
            sorter.add(pairs[:, 0], pairs[:, 1])
        keys = [int(key) for piece in sorter.sorted() for key in piece]
        assert keys == sorted({a * 31 + b for batch in batches for a, b in batch})
        assert not list(Path(scratch).rglob("*.keys"))


def test_one_arc_given_many_times_needs_little_memory(tmp_path):
    sorter = ArcSorter(tmp_path / "sort", 1000, memory=1 << 24)
    sorter._most = sorter._spill._most = 64
    for _ in range(50):
        sorter.add(np.full(64, 999), np.full(64, 998))
    sorter.add(np.array([0]), np.array([0]))
    pieces = list(sorter.sorted())
    assert [key for piece in pieces for key in piece.tolist()] == [0, 999_998]
    assert max(map(len, pieces)) <= 64


def test_positions_that_need_64_bits_are_not_cut(tmp_path):
    most = store_sort.MOST_NODES
    sorter = ArcSorter(tmp_path / "sort", most, memory=1 << 24)
    sorter._most = sorter._spill._most = 2
    sorter.add(np.array([most - 1, 0, most - 1]), np.array([most - 1, 5, 0]))
    keys = np.concatenate(list(sorter.sorted()))
    assert [divmod(int(key), most) for key in keys] == [(0, 5), (most - 1, 0), (most - 1, most - 1)]


def test_too_many_nodes_or_too_little_memory_is_refused(tmp_path):
    with pytest.raises(DataError, match="at most 4,294,967,295 nodes"):
        ArcSorter(tmp_path, 2**32, memory=1 << 24)
    with pytest.raises(InputError, match="`memory` must be at least"):
        ArcSorter(tmp_path, 10, memory=1000)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_arcs(tmp_path):
    script = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq
        from gapgnn.graph.store.build import build_store
        folder, edges = Path(sys.argv[1]), int(sys.argv[2])
        rng = np.random.default_rng(0)
        nodes = pa.table({"id": np.arange(50_000), "x": rng.normal(size=50_000),
                          "y": np.arange(50_000) % 3})
        pq.write_table(nodes, folder / "nodes.parquet")
        schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
        with pq.ParquetWriter(folder / "edges.parquet", schema) as writer:
            for _ in range(edges // 1_000_000):
                ends = rng.integers(50_000, size=(2, 1_000_000), dtype=np.int32)
                writer.write_table(pa.table(list(ends), names=["a", "b"]))
        build_store(folder / "store", edges=folder / "edges.parquet",
                    nodes=folder / "nodes.parquet", label="y", parts=4, memory=1 << 26)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """
    )
    peaks = []
    for edges in (4_000_000, 16_000_000):
        folder = tmp_path / str(edges)
        folder.mkdir()
        words = [sys.executable, "-c", script, str(folder), str(edges)]
        peaks.append(int(subprocess.run(words, check=True, capture_output=True).stdout))
    # Four times the arcs: 24 million more, which would be 190 MB at 8 bytes each.
    assert peaks[1] - peaks[0] < 60_000


@pytest.mark.parametrize("late", ["7", "Rome"])
def test_a_column_that_is_empty_for_long_is_a_column_all_the_same(tmp_path, late):
    """A megabyte of rows without a value, then one with."""
    blank = "".join(f"{k},{k % 5},,{'xy'[k % 2]}{'-' * 40}\n" for k in range(30_000))
    tables = write(tmp_path, nodes=f"id,a,b,team\n{blank}30000,1,{late},x\n", edges="s,t\n1,2\n")
    assert_same(tmp_path / "store", **tables, label="team")
    assert open_store(tmp_path / "store").num_features == (3 if late == "7" else 2)
