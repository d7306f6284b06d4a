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
from weightcases import kind_graphs

from gapgnn.errors import DataError, InputError
from gapgnn.graph.convert import to_networkx, to_pyg, to_scipy
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import open_store, store_graph
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


def test_kinds_are_kept_in_the_order_of_their_names():
    calls, visits = one((0, 1)), one((1, 2), (2, 3))
    first, second = (
        join_edge_types(dict(kinds))
        for kinds in (
            [("calls", calls), ("visits", visits)],
            [("visits", visits), ("calls", calls)],
        )
    )
    assert first.edge_type_names == second.edge_type_names == ("calls", "visits")
    assert first.fingerprint == second.fingerprint
    assert [kind.num_edges for kind in first.edge_types] == [1, 2]
    assert first.more[0].num_features == 0
    assert second.features is visits.features


def test_one_kind_stays_the_graph_it_was():
    graph = one((0, 1))
    assert join_edge_types({"calls": graph}) is graph
    assert (graph.edge_types, graph.edge_type_names) == ((graph,), ())


def test_names_and_arcs_of_every_kind_are_content():
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
    ("kinds", "message"),
    [
        ({}, "at least one edge type"),
        ({"a": one((0, 1)), "b": one((0, 1), count=6)}, "same nodes"),
        ({"a": one((0, 1)), "b": one((0, 1), directed=True)}, "direction or none"),
        ({"a": one((0, 1)), "": one((0, 1))}, "named by text"),
        ({"a": one((0, 1)), "b": join_edge_types({"x": one(), "y": one()})}, "one edge type each"),
        ({"a": one((0, 1)), "b": one((0, 1), ids=[3, 2, 1, 0])}, "same order"),
    ],
)
def test_kinds_that_do_not_fit_together_are_refused(kinds, message):
    with pytest.raises(DataError, match=message):
        join_edge_types(kinds)


@fifty
@given(graph=kind_graphs(), data=st.data())
def test_nodes_that_go_leave_every_kind(graph, data):
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=graph.num_nodes, max_size=graph.num_nodes))
    )
    keep[-1] = True
    for dangle in (False, True):
        left = induced(graph, keep, dangle=dangle)
        assert left.edge_type_names == graph.edge_type_names
        for after, before in zip(left.edge_types, graph.edge_types, strict=True):
            alone = induced(before._changed(more=()), keep, dangle=dangle)
            assert np.array_equal(after.indices, alone.indices)
            assert after.num_dangling == alone.num_dangling
            assert np.array_equal(after.ids, left.ids)


def test_the_class_filter_and_the_split_keep_all_kinds():
    graph = join_edge_types({"calls": one((0, 1)), "visits": one((1, 2))})
    assert random_split(graph, seed=1).edge_type_names == graph.edge_type_names
    rare = graph._replace(labels=np.array([0, 1, -1, 0]))
    assert [kind.num_arcs for kind in filter_classes(rare, 1).edge_types] == [2, 0]
    assert graph._replace(ids=np.arange(4) + 9).more[0].ids.tolist() == [9, 10, 11, 12]
    turned = graph._replace(is_directed=True)
    assert all(kind.is_directed for kind in turned.edge_types)


@pytest.mark.parametrize("convert", [to_pyg, to_networkx, to_scipy])
def test_kinds_go_out_one_by_one(convert):
    graph = join_edge_types({"calls": one((0, 1)), "visits": one((1, 2))})
    with pytest.raises(InputError, match="one edge type to be converted"):
        convert(graph)
    convert(graph.more[0])


@fifty
@given(graph=kind_graphs(), parts=st.integers(1, 8))
def test_a_store_holds_every_kind(graph, parts):
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


def test_a_store_with_another_kind_inside_is_refused(tmp_path):
    for name, arcs in (("a", [(1, 2)]), ("b", [(1, 3)])):
        graph = join_edge_types({"calls": one((0, 1)), "visits": one(*arcs)})
        store_graph(graph, tmp_path / name, parts=2)
    inner = "kind-00001"
    (tmp_path / "a" / inner).rename(tmp_path / "spare")
    (tmp_path / "b" / inner).rename(tmp_path / "a" / inner)
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_store(tmp_path / "a")


def test_plain_stores_are_written_as_before(tmp_path):
    store_graph(one((0, 1)), tmp_path / "plain", parts=2)
    manifest = json.loads((tmp_path / "plain" / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert not manifest.keys() & {"weight_bounds", "kinds"}
    weighted = one((0, 1), weights=[0.5])
    store_graph(weighted, tmp_path / "weighted", parts=2)
    assert json.loads((tmp_path / "weighted" / "manifest.json").read_text())["format"] == 2
