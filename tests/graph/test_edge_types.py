"""Several edge types over the same nodes, wherever the graph goes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from graph_strategies import fifty
from hypothesis import given
from hypothesis import strategies as st
from weightcases import edge_type_graphs

from gapgnn.errors import DataError, InputError
from gapgnn.graph.convert import to_networkx, to_pyg, to_scipy
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import InProcess, open_store, store_graph
from gapgnn.graph.transforms import filter_classes, induced, join_edge_types, random_split


def one(*arcs, directed=False, count=4, **options):
    return Graph.from_arcs(
        [u for u, _ in arcs],
        [v for _, v in arcs],
        num_nodes=count,
        features=np.eye(count),
        labels=[0, 1] * (count // 2),
        directed=directed,
        **options,
    )


def test_edge_types_are_kept_in_the_order_of_their_names():
    calls, visits = one((0, 1)), one((1, 2), (2, 3))
    first, second = (
        join_edge_types(dict(pairs))
        for pairs in (
            [("calls", calls), ("visits", visits)],
            [("visits", visits), ("calls", calls)],
        )
    )
    assert first.edge_type_names == second.edge_type_names == ("calls", "visits")
    assert first.fingerprint == second.fingerprint
    assert [one.num_edges for one in first.edge_types] == [1, 2]
    assert first.more_edge_types[0].num_features == 0
    assert second.features is visits.features


def test_one_edge_type_is_the_graph_itself():
    graph = one((0, 1))
    assert join_edge_types({"calls": graph}) is graph
    assert (graph.edge_types, graph.edge_type_names) == ((graph,), ())


def test_names_and_arcs_of_every_edge_type_change_the_fingerprint():
    calls, visits = one((0, 1)), one((1, 2))
    base = join_edge_types({"calls": calls, "visits": visits}).fingerprint
    others = [
        join_edge_types({"calls": visits, "visits": calls}),
        join_edge_types({"calls": calls, "walks": visits}),
        join_edge_types({"calls": calls, "visits": one((1, 3))}),
        join_edge_types({"calls": calls, "visits": visits, "walks": visits}),
        calls,
    ]
    assert len({base, *(graph.fingerprint for graph in others)}) == 6


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ({}, "at least one edge type"),
        ({"a": one((0, 1)), "b": one((0, 1), count=6)}, "same nodes"),
        ({"a": one((0, 1)), "b": one((0, 1), directed=True)}, "direction or none"),
        ({"a": one((0, 1)), "": one((0, 1))}, "named by text"),
        ({"a": one((0, 1)), "b": join_edge_types({"x": one(), "y": one()})}, "one edge type each"),
        ({"a": one((0, 1)), "b": one((0, 1), ids=[3, 2, 1, 0])}, "same order"),
    ],
)
def test_edge_types_that_do_not_match_are_refused(graphs, message):
    with pytest.raises(DataError, match=message):
        join_edge_types(graphs)


@fifty
@given(graph=edge_type_graphs(), data=st.data())
def test_removed_nodes_are_removed_from_every_edge_type(graph, data):
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=graph.num_nodes, max_size=graph.num_nodes))
    )
    keep[-1] = True
    for dangle in (False, True):
        left = induced(graph, keep, dangle=dangle)
        assert left.edge_type_names == graph.edge_type_names
        for after, before in zip(left.edge_types, graph.edge_types, strict=True):
            alone = induced(before._changed(more_edge_types=()), keep, dangle=dangle)
            assert np.array_equal(after.indices, alone.indices)
            assert after.num_dangling == alone.num_dangling
            assert np.array_equal(after.ids, left.ids)


def test_the_class_filter_and_the_split_keep_all_edge_types():
    graph = join_edge_types({"calls": one((0, 1)), "visits": one((1, 2))})
    assert random_split(graph, seed=1).edge_type_names == graph.edge_type_names
    rare = graph._replace(labels=np.array([0, 1, -1, 0]))
    assert [one.num_arcs for one in filter_classes(rare, 1).edge_types] == [2, 0]
    assert graph._replace(ids=np.arange(4) + 9).more_edge_types[0].ids.tolist() == [9, 10, 11, 12]
    turned = graph._replace(is_directed=True)
    assert all(one.is_directed for one in turned.edge_types)


@pytest.mark.parametrize("convert", [to_pyg, to_networkx, to_scipy])
def test_a_graph_of_several_edge_types_is_not_converted(convert):
    graph = join_edge_types({"calls": one((0, 1)), "visits": one((1, 2))})
    with pytest.raises(InputError, match="one edge type to be converted"):
        convert(graph)
    convert(graph.more_edge_types[0])


@fifty
@given(graph=edge_type_graphs(), parts=st.integers(1, 8))
def test_a_store_holds_every_edge_type(graph, parts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        store_graph(graph, path, parts=min(parts, graph.num_nodes))
        found = open_store(path)
        assert found.edge_type_names == graph.edge_type_names
        assert found.fingerprint == graph.fingerprint
        for there, here in zip(found.edge_types, graph.edge_types, strict=True):
            assert np.array_equal(there.indices, here.indices)
            assert there.is_weighted == here.is_weighted
        files = [file for file in path.rglob("*") if file.is_file()]
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_a_store_with_another_edge_type_inside_is_refused(tmp_path):
    for name, arcs in (("a", [(1, 2)]), ("b", [(1, 3)])):
        graph = join_edge_types({"calls": one((0, 1)), "visits": one(*arcs)})
        store_graph(graph, tmp_path / name, parts=2)
    inner = "edge-type-00001"
    (tmp_path / "a" / inner).rename(tmp_path / "spare")
    (tmp_path / "b" / inner).rename(tmp_path / "a" / inner)
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_store(tmp_path / "a")


def test_a_changed_byte_of_any_edge_type_is_found_when_a_store_is_opened(tmp_path):
    names = ("calls", "likes", "visits")
    graph = join_edge_types({name: one((0, 1), (2, 3)) for name in names})
    store_graph(graph, tmp_path / "store", parts=2)
    files = sorted((tmp_path / "store").rglob("arcs-*.parquet"))
    assert len({file.parent for file in files}) == 3
    for file in files:
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DataError, match=file.name):
            open_store(tmp_path / "store")
        file.write_bytes(whole)
    assert open_store(tmp_path / "store").fingerprint == graph.fingerprint


def test_all_edge_types_of_a_store_are_processed_where_it_is_said(tmp_path):
    store_graph(join_edge_types({"a": one((0, 1)), "b": one((1, 2))}), tmp_path / "s", parts=2)
    executor = InProcess()
    found = open_store(tmp_path / "s").with_executor(executor)
    assert all(each.executor is executor for each in found.edge_types)


def test_the_manifest_lists_edge_types_only_where_there_are_several(tmp_path):
    several = join_edge_types({"calls": one((0, 1)), "visits": one((1, 2), weights=[0.5])})
    for name, graph in (("one", one((0, 1))), ("several", several)):
        store_graph(graph, tmp_path / name, parts=2)
    plain, found = (
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "several")
    )
    assert (plain["type"], plain["format"]) == ("gapgnn store", 1)
    assert not plain.keys() & {"weight_bounds", "edge_types"}
    assert [entry["name"] for entry in found["edge_types"]] == ["calls", "visits"]


def test_a_store_of_an_earlier_layout_is_refused(tmp_path):
    store_graph(one((0, 1)), tmp_path / "store", parts=2)
    path = tmp_path / "store" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({"kind": manifest.pop("type"), **manifest}))
    with pytest.raises(DataError, match=r"of this version\. Make one with `gapgnn partition`"):
        open_store(tmp_path / "store")
