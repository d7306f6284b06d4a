"""A graph says what was declared and what was read from the data, wherever it came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from declaredcases import FRIENDS, NAMES, PEOPLE, SCHEMA, tables
from tablecases import dense, write

from gapgnn.errors import DataError
from gapgnn.graph.canonical import as_features
from gapgnn.graph.convert import (
    as_graph,
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.graph import Graph
from gapgnn.graph.store.build import build_store, store_graph
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.transforms import align_features, filter_classes, induced


def _dense(block) -> np.ndarray:
    return block.toarray() if sp.issparse(block) else block


class TestInferred:
    ARCS = ([0, 1], [1, 0])

    def graph(self, **options) -> Graph:
        settings = {"num_nodes": 2, "features": np.eye(2), **options}
        return Graph.from_arcs(*self.ARCS, **settings)

    def test_what_is_given_is_declared_and_the_rest_is_read_off(self):
        assert self.graph().inferred == ()
        assert self.graph(labels=[0, 1]).inferred == ("classes",)
        assert self.graph(labels=[0, 1], label_names=("a", "b")).inferred == ()
        assert self.graph(labels=[0, 1], directed=None).inferred == ("classes", "direction")
        assert self.graph(directed=None).inferred == ("direction",)
        with pytest.raises(ValueError, match="`inferred` must be one of classes, columns, dir"):
            self.graph(inferred=["everything"])

    def test_tables_learn_what_no_schema_declares(self, tmp_path):
        assert tables(tmp_path, schema=None).graph.inferred == ("classes", "columns")
        assert tables(tmp_path, schema=None, label=None).graph.inferred == ("columns",)
        np.save(tmp_path / "x.npy", np.eye(4))
        graph = tables(tmp_path, schema=None, features=tmp_path / "x.npy").graph
        assert graph.inferred == ("classes",)

    def test_conversions_keep_both(self, tmp_path):
        plain = tables(tmp_path).graph
        learned = self.graph(labels=[0, 1], directed=None)
        for graph in (plain, learned):
            for back in (
                from_pyg(to_pyg(graph)),
                from_networkx(to_networkx(graph)),
                from_scipy(**to_scipy(graph)),
            ):
                assert (back.schema, back.inferred) == (graph.schema, graph.inferred)
                assert back.fingerprint == graph.fingerprint
        assert from_pyg(to_pyg(learned), directed=True).inferred == ("classes",)

    def test_a_networkx_graph_states_its_direction(self):
        networkx = pytest.importorskip("networkx")
        friends = networkx.Graph([("ann", "bob")])
        networkx.set_node_attributes(friends, {name: [1.0] for name in friends}, "x")
        assert from_networkx(friends).inferred == ()
        networkx.set_node_attributes(friends, {"ann": 0, "bob": 1}, "y")
        assert from_networkx(friends).inferred == ("classes",)
        networkx.set_node_attributes(friends, {name: {2: 1.0} for name in friends}, "x")
        assert from_networkx(friends).inferred == ("classes", "columns")
        friends.graph["num_features"] = 3
        assert from_networkx(friends).inferred == ("classes",)

    def test_a_pyg_graph_does_not(self):
        data = to_pyg(self.graph(label_names=("a",)))
        del data.inferred, data.directed
        assert from_pyg(data).inferred == ("direction",)

    def test_transforms_keep_both(self, tmp_path):
        graph = tables(tmp_path).graph
        mask = np.array([True, False, False, False])
        for changed in (
            induced(graph, [0, 1]),
            graph.with_masks(mask, ~mask & False, ~mask & False),
            align_features(graph, NAMES[:3]),
        ):
            assert (changed.schema, changed.inferred) == (SCHEMA, ())
        assert filter_classes(graph, 1).inferred == ("classes",)

    def test_neither_is_part_of_the_content(self):
        graph = self.graph(labels=[0, 1])
        assert replace(graph, schema=SCHEMA, inferred=()).fingerprint == graph.fingerprint


class TestStore:
    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_a_store_holds_what_memory_holds(self, tmp_path, suffix):
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS + "ann,zoe\nyan,zoe\n")
        options = {"label": "team", "schema": SCHEMA, "dangling": "keep"}
        here = read_tables(**paths, **options).graph
        build_store(tmp_path / "store", parts=2, **paths, **options)
        there = open_store(tmp_path / "store")
        assert np.array_equal(dense(here), dense(there))
        assert there.fingerprint == here.fingerprint
        assert there.feature_names == NAMES
        assert (there.schema, there.inferred) == (here.schema, here.inferred) == (SCHEMA, ())
        assert there._replace(name="other").schema == SCHEMA

    def test_what_was_learned_is_said(self, tmp_path):
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        here = read_tables(**paths, label="team").graph
        build_store(tmp_path / "store", parts=1, **paths, label="team")
        assert open_store(tmp_path / "store").inferred == here.inferred == ("classes", "columns")

    def test_rows_that_are_not_finite_become_zero(self, tmp_path):
        np.save(tmp_path / "x.npy", [[1.0], [np.inf], [4.0], [np.nan]])
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        options = {"label": "team", "schema": SCHEMA, "features": tmp_path / "x.npy"}
        build_store(tmp_path / "store", parts=1, **paths, **options, not_finite="zero")
        assert dense(open_store(tmp_path / "store")).tolist() == [[1], [0], [4], [0]]

    def test_nobody_with_a_list_is_still_a_store(self, tmp_path):
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\n")
        options = {"label": "team", "schema": SCHEMA, "dangling": "keep"}
        for directed in (True, False):
            folder = tmp_path / f"store-{directed}"
            build_store(folder, parts=2, **paths, **options, directed=directed)
            assert open_store(folder).num_arcs == 0

    def test_a_graph_from_memory_keeps_both(self, tmp_path):
        graph = tables(tmp_path).graph
        store_graph(graph, tmp_path / "store", parts=1)
        stored = open_store(tmp_path / "store")
        assert (stored.schema, stored.inferred) == (SCHEMA, ())


class TestNotFinite:
    ROWS = ((1.0, 2.0), (np.nan, 5.0), (1e300, 0.0), (0.0, -np.inf), (3.0, 0.0))
    WANTED = ((1.0, 2.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (3.0, 0.0))

    @pytest.mark.parametrize("form", [np.array, sp.csr_array, sp.coo_matrix])
    def test_a_broken_row_becomes_zero_and_no_other(self, form):
        found = _dense(as_features(form(np.array(self.ROWS)), not_finite="zero"))
        assert np.array_equal(found, self.WANTED)
        with pytest.raises(DataError, match="`features` must be finite"):
            as_features(form(np.array(self.ROWS)))

    def test_every_way_in_knows_it(self):
        torch = pytest.importorskip("torch")
        good = from_scipy(sp.eye(5, format="csr"), np.ones((5, 2)), directed=False)
        data = to_pyg(good)
        data.x = torch.tensor(self.ROWS)
        friends = to_networkx(good)
        for node, row in zip(friends, self.ROWS, strict=True):
            friends.nodes[node]["x"] = row
        ways = {
            "as_graph": lambda **k: as_graph(data, **k),
            "pyg": lambda **k: from_pyg(data, **k),
            "networkx": lambda **k: from_networkx(friends, **k),
            "scipy": lambda **k: from_scipy(sp.eye(5, format="csr"), self.ROWS, **k),
        }
        for name, way in ways.items():
            assert np.array_equal(dense(way(not_finite="zero")), self.WANTED), name
            with pytest.raises(DataError, match="finite"):
                way()
