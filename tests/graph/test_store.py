"""A graph on disk is the graph in memory, and a wrong file is refused by its name."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from graph_strategies import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import DataError, GapgnnError, InputError, UnavailableError
from gapgnn.graph.datasets.synthetic import generate, social_graph
from gapgnn.graph.graph import Graph
from gapgnn.graph.store.arcs import block_ranges, part_bounds
from gapgnn.graph.store.build import store_graph
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.transforms import align_features, random_split


def dense(features) -> np.ndarray:
    return features.toarray() if sp.issparse(features) else np.asarray(features)


def stored(graph: Graph, folder: Path, parts: int):
    store_graph(graph, folder, parts=parts)
    return open_store(folder)


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(1, 8))
def test_any_graph_comes_back_as_it_was(graph, parts):
    with tempfile.TemporaryDirectory() as scratch:
        found = stored(graph, Path(scratch, "store"), min(parts, graph.num_nodes))
        assert found.fingerprint == graph.fingerprint
        for key in ("num_nodes", "num_arcs", "num_edges", "num_self_loops", "num_features"):
            assert getattr(found, key) == getattr(graph, key), key
        for key in ("indptr", "indices", "labels", "ids", "out_degrees"):
            assert np.array_equal(getattr(found, key), getattr(graph, key)), key
        assert np.array_equal(dense(found.features), dense(graph.features))
        assert sp.issparse(found.features) == sp.issparse(graph.features)
        for key in ("label_names", "feature_names", "name", "is_directed", "num_classes"):
            assert getattr(found, key) == getattr(graph, key), key
        assert found.dangling_lists().keys() == graph.dangling_lists().keys()


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_rows_are_read_block_by_block_and_in_order(tmp_path, parts):
    graph = generate(num_nodes=9_000, mean_degree=12, num_features=3, num_classes=2)
    found = stored(graph, tmp_path / "store", parts)
    rows = [block for part in range(parts) for block in found.in_part(part).blocks()]
    assert [block.first for block in rows[1:]] == [block.last for block in rows[:-1]]
    # No block reaches over a multiple of 4096, because noise is drawn by such blocks.
    assert all(block.first // 4096 == (block.last - 1) // 4096 for block in rows)
    assert np.array_equal(np.concatenate([block.entries for block in rows]), graph.indices)


def test_parts_end_at_blocks_where_there_are_enough():
    assert part_bounds(3 * 4096, 3) == [0, 4096, 8192, 12288]
    assert part_bounds(10, 4) == [0, 2, 5, 7, 10]
    assert list(block_ranges(0, 4096)) == [(0, 4096)]
    for parts in range(1, 60):
        bounds = part_bounds(50, min(parts, 50))
        assert all(np.diff(bounds) > 0)


def test_a_split_and_the_fingerprint_are_those_of_the_graph_in_memory(tmp_path):
    graph = social_graph(num_nodes=500, mean_degree=10)
    found = stored(graph, tmp_path / "store", 4)
    for seed in (0, 3):
        here, there = random_split(graph, seed=seed), random_split(found, seed=seed)
        assert type(there) is type(found)
        assert np.array_equal(here.train_mask, there.train_mask)
        assert np.array_equal(here.test_mask, there.test_mask)
        assert there.fingerprint == graph.fingerprint
    assert not found.train_mask.any()


def test_features_are_mapped_and_not_read(tmp_path):
    graph = generate(num_nodes=300, mean_degree=4, num_features=5, num_classes=2)
    found = stored(graph, tmp_path / "store", 2)
    assert isinstance(found.features, np.memmap)
    sparse = stored(social_graph(num_nodes=300), tmp_path / "sparse", 2)
    assert isinstance(sparse.features.data, np.memmap)
    assert isinstance(sparse.features.indices, np.memmap)


def test_a_store_is_for_its_owner_only(tmp_path):
    stored(social_graph(num_nodes=300), tmp_path / "store", 2)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "store").iterdir()} == {0}


def test_other_feature_columns_leave_the_arcs_on_disk(tmp_path):
    graph = Graph.from_arcs(
        [0, 1], [1, 2], num_nodes=3, features=np.eye(3, 2), feature_names=("age", "size")
    )
    found = stored(graph, tmp_path / "store", 2)
    aligned = align_features(found, ("size", "city=Rome"))
    assert type(aligned) is type(found)
    assert np.array_equal(dense(aligned.features), [[0, 0], [1, 0], [0, 0]])
    # A view of the same data set, whose budget it spends.
    assert aligned.fingerprint == graph.fingerprint
    assert "indices" not in aligned.__dict__
    # Any other change of content is another data set.
    other = found._replace(features=np.ones((3, 2)))
    assert other.fingerprint == graph._replace(features=np.ones((3, 2))).fingerprint
    assert found._replace(labels=np.zeros(3, dtype=int)).fingerprint != graph.fingerprint


# Everything that can be wrong with a store's files.


def directed(seed: int) -> Graph:
    return Graph.from_arcs(
        *np.random.default_rng(seed).integers(60, size=(2, 400)),
        num_nodes=60,
        features=sp.csr_array(np.eye(60) * (seed + 1)),
        labels=np.arange(60) % 3,
        ids=[f"person {number}" for number in range(60)],
        directed=True,
        dangling={3: ["nobody"], 5: ["nobody", "somebody"]},
    )


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    store_graph(directed(0), folder / "store", parts=3)
    store_graph(generate(num_nodes=60, mean_degree=8, num_features=60), folder / "dense", parts=3)
    store_graph(directed(1), folder / "other", parts=3)
    return folder


def files_of(example: Path, name: str = "store") -> list[str]:
    return sorted(path.name for path in (example / name).iterdir())


def test_the_example_has_every_file_type(example):
    names = {name.split("-0")[0].split(".")[0] for name in files_of(example)}
    names |= {name.split("-0")[0].split(".")[0] for name in files_of(example, "dense")}
    assert names == {
        *("manifest", "arcs", "out", "nodes", "dangling", "features"),
        *("features-indptr", "features-indices", "features-values"),
    }


@pytest.mark.parametrize("which", ["store", "dense"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_is_found_and_the_file_named(example, tmp_path, which, where):
    for name in files_of(example, which):
        shutil.copytree(example / which, tmp_path / name)
        path = tmp_path / name / name
        raw = bytearray(path.read_bytes())
        place = {"first": 0, "middle": len(raw) // 2, "last": len(raw) - 1}[where]
        raw[place] ^= 1
        path.write_bytes(raw)
        with pytest.raises(GapgnnError) as caught:
            open_store(tmp_path / name)
        assert str(path) in str(caught.value), name
        assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(example, tmp_path):
    for name in files_of(example):
        shutil.copytree(example / "store", tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(DataError, match="incomplete") as caught:
            open_store(tmp_path / name, verify=False)
        assert name in str(caught.value)


def test_a_part_of_another_graph_is_named(example, tmp_path):
    for name in ("arcs-00001.parquet", "out-00002.parquet", "features-values.npy"):
        shutil.copytree(example / "store", tmp_path / name)
        shutil.copy(example / "other" / name, tmp_path / name / name)
        with pytest.raises(DataError, match="another store") as caught:
            open_store(tmp_path / name)
        assert name in str(caught.value)


def test_parts_that_changed_places_are_named(example, tmp_path):
    shutil.copytree(example / "store", tmp_path / "store")
    first, second = (tmp_path / "store" / f"arcs-0000{part}.parquet" for part in (0, 1))
    aside = first.rename(tmp_path / "aside")
    second.rename(first)
    aside.rename(second)
    with pytest.raises(DataError, match=r"arcs-0000[01]\.parquet"):
        open_store(tmp_path / "store")


def test_a_part_that_changes_after_opening_is_refused_while_it_is_read(example, tmp_path):
    shutil.copytree(example / "store", tmp_path / "store")
    found = open_store(tmp_path / "store")
    path = tmp_path / "store" / "arcs-00001.parquet"
    raw = bytearray(path.read_bytes())
    raw[40] ^= 16
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"arcs-00001\.parquet"):
        list(found.in_part(1).blocks())


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_store(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "gapgnn partitions 1"}')
    with pytest.raises(DataError, match="gapgnn partition"):
        open_store(tmp_path)
    with pytest.raises(UnavailableError, match="which is a file"):
        open_store(tmp_path / "manifest.json")


def test_a_store_of_a_newer_version_is_refused(example, tmp_path):
    shutil.copytree(example / "store", tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(InputError, match="newer gapgnn"):
        open_store(tmp_path / "store")


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("gapgnn.graph.store.build.describe_file", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store_graph(social_graph(num_nodes=300), tmp_path / "store", parts=2)
    assert not os.listdir(tmp_path)


def test_a_folder_with_something_in_it_is_not_overwritten(example):
    with pytest.raises(InputError, match="new or empty"):
        store_graph(social_graph(num_nodes=300), example / "store", parts=2)


@pytest.mark.parametrize("parts", [0, 301])
def test_the_number_of_parts_is_between_one_and_the_number_of_nodes(tmp_path, parts):
    with pytest.raises(InputError, match=f"`parts` must be .* Got {parts}."):
        store_graph(social_graph(num_nodes=300), tmp_path / "store", parts=parts)
