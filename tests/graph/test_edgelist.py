"""Rows of an edge table become arcs; what cannot become one is counted, kept apart or refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablecases import FRIENDS, PEOPLE, save, write

from gapgnn.errors import DataError, PrivacyError
from gapgnn.graph.convert import (
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.store.build import build_store
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.tables.edges import any_ids
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.transforms import check_declared, random_split


class TestEdges:
    def test_undirected_edges_are_symmetrised(self, tmp_path: Path) -> None:
        graph = read_tables(**write(tmp_path, nodes=PEOPLE, edges=FRIENDS), label="team").graph
        assert not graph.is_directed
        assert graph.adjacency().toarray().tolist() == [
            [0, 1, 0, 0],
            [1, 0, 1, 0],
            [0, 1, 0, 1],
            [0, 0, 1, 0],
        ]

    def test_directed_edges_are_stored_once(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        graph = read_tables(**paths, label="team", directed=True).graph
        assert graph.is_directed
        assert [graph.out_neighbours(node).tolist() for node in range(4)] == [[1], [2], [3], []]

    @pytest.mark.parametrize("names", [("source", "target"), ("src", "dst"), ("id_1", "id_2")])
    def test_well_known_names_are_found_wherever_they_stand(
        self, tmp_path: Path, names: tuple[str, str]
    ) -> None:
        edges = f"weight,{names[1]},{names[0]}\n5,bob,ann\n"
        paths = write(tmp_path, nodes=PEOPLE, edges=edges)
        graph = read_tables(**paths, label="team", directed=True).graph
        assert graph.out_neighbours(0).tolist() == [1]

    def test_self_loops_and_duplicates_are_dropped_and_counted(self, tmp_path: Path) -> None:
        edges = "a,b\nann,ann\nann,bob\nbob,ann\nann,bob\ncid,dan\ndan,dan\n"
        paths = write(tmp_path, nodes=PEOPLE, edges=edges)
        undirected = read_tables(**paths, label="team")
        assert (undirected.dropped_self_loops, undirected.dropped_duplicates) == (2, 2)
        assert undirected.graph.num_arcs == 4
        directed = read_tables(**paths, label="team", directed=True)
        assert (directed.dropped_self_loops, directed.dropped_duplicates) == (2, 1)
        assert directed.graph.num_arcs == 3

    def test_far_apart_ids_are_found_too(self, tmp_path: Path) -> None:
        nodes = "id,x,y\n5000000000000,1,a\n-3,2,b\n0,3,a\n"
        paths = write(tmp_path, nodes=nodes, edges="p,q\n-3,5000000000000\n0,-3\n")
        graph = read_tables(**paths, label="y", directed=True).graph
        assert graph.out_neighbours(1).tolist() == [0]
        assert graph.out_neighbours(2).tolist() == [1]

    def test_ids_typed_differently_in_the_two_tables_still_match(self, tmp_path: Path) -> None:
        nodes = save(
            pa.table({"id": [1, 2], "x": [0.5, 1.5], "y": ["a", "b"]}), tmp_path / "n.parquet"
        )
        for arrow_type in (pa.int32(), pa.float64(), pa.string()):
            ends = pa.array([1]).cast(arrow_type), pa.array([2]).cast(arrow_type)
            edges = save(pa.table({"a": ends[0], "b": ends[1]}), tmp_path / "e.parquet")
            assert read_tables(nodes=nodes, edges=edges, label="y").graph.num_arcs == 2


class TestDangling:
    EDGES = "a,b\nann,bob\nann,eve\nann,eve\nbob,fay\ncid,dan\n"

    def test_unknown_ids_are_refused_with_count_and_first_example(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges=self.EDGES)
        with pytest.raises(DataError, match=r"3 of 5 rows .* first 'eve' as target in row 2"):
            read_tables(**paths, label="team")

    @pytest.mark.parametrize("directed", [True, False])
    def test_kept_entries_hold_their_slot_in_the_adjacency_list(
        self, tmp_path: Path, directed: bool
    ) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges=self.EDGES)
        tables = read_tables(**paths, label="team", directed=directed, dangling="keep")
        graph = tables.graph
        assert graph.num_nodes == 4
        assert graph.dangling_targets.tolist() == ["eve", "fay"]
        assert graph.dangling_indptr.tolist() == [0, 1, 2, 2, 2]
        assert graph.out_degrees.tolist() == ([2, 1, 1, 0] if directed else [2, 2, 1, 1])
        assert tables.dropped_duplicates == 1

    def test_what_is_in_nobodys_list_is_left_out(self, tmp_path: Path) -> None:
        lines = "a,b\nann,bob\n"
        for directed, nobodys in ((True, "eve,ann\neve,fay\n"), (False, "eve,fay\n")):
            paths = write(tmp_path, nodes=PEOPLE, edges=lines)
            without = read_tables(**paths, label="team", directed=directed, dangling="keep").graph
            paths = write(tmp_path, nodes=PEOPLE, edges=lines + nobodys)
            graph = read_tables(**paths, label="team", directed=directed, dangling="keep").graph
            assert graph.fingerprint == without.fingerprint
            with pytest.raises(DataError, match='with `dangling="drop"`'):
                read_tables(**paths, label="team", directed=directed)

    @pytest.mark.parametrize("directed", [True, False])
    def test_dropped_edges_are_as_if_they_had_not_been_there_and_counted(
        self, tmp_path: Path, directed: bool
    ) -> None:
        nobodys = "eve,ann\nann,eve\neve,fay\n,bob\nann,eve\n"
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\nann,bob\ncid,dan\n")
        options = {"label": "team", "directed": directed}
        without = read_tables(**paths, **options)
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\nann,bob\n" + nobodys + "cid,dan\n")
        tables = read_tables(**paths, **options, dangling="drop")
        assert tables.graph.fingerprint == without.graph.fingerprint
        assert (tables.graph.num_dangling, tables.dropped_dangling) == (0, 5)
        assert tables.dropped_duplicates == 0
        stored = build_store(
            tmp_path / f"store-{directed}", **paths, **options, dangling="drop", parts=2
        )
        assert stored.graph.fingerprint == without.graph.fingerprint
        assert stored.dropped_dangling == 5

    def test_kept_edges_count_as_left_out_only_if_they_are_in_nobodys_list(
        self, tmp_path: Path
    ) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\nann,eve\neve,ann\neve,fay\nann,bob\n")
        for directed, left_out in ((True, 2), (False, 1)):
            read = read_tables(**paths, label="team", directed=directed, dangling="keep")
            assert read.dropped_dangling == left_out

    def test_dropped_entries_would_not_hold_their_slot_at_node_level(self, tmp_path: Path) -> None:
        """However the graph comes there: read, split, converted or from a store."""
        paths = write(tmp_path, nodes=PEOPLE, edges=self.EDGES)
        options = {**paths, "label": "team", "dangling": "drop"}
        stored = build_store(tmp_path / "store", **options, parts=2).graph
        read = read_tables(**options).graph
        converted = (
            from_pyg(to_pyg(read)),
            from_networkx(to_networkx(read)),
            from_scipy(**to_scipy(read)),
        )
        opened = open_store(tmp_path / "store")
        for graph in (read, stored, opened, random_split(read, seed=0), *converted):
            with pytest.raises(PrivacyError, match="must be kept at level node"):
                check_declared(graph)

    def test_without_direction_the_known_end_keeps_the_entry(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\neve,bob\nann,bob\n")
        graph = read_tables(**paths, label="team", dangling="keep").graph
        assert graph.dangling_targets.tolist() == ["eve"]
        assert graph.dangling_indptr.tolist() == [0, 0, 1, 1, 1]

    def test_when_everybody_with_a_list_has_left_nobody_has_one(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\n")
        graph = read_tables(**paths, label="team", dangling="keep").graph
        assert (graph.num_nodes, graph.num_arcs, graph.num_dangling) == (4, 0, 0)
        assert read_tables(**paths, label="team").graph.num_arcs == 0

    def test_whole_number_names_dangle_as_numbers(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes="id,x,y\n1,0,a\n2,0,b\n", edges="p,q\n1,2\n1,99\n")
        graph = read_tables(**paths, label="y", dangling="keep").graph
        assert graph.dangling_targets.tolist() == [99]
        assert graph.dangling_targets.dtype == graph.ids.dtype

    @pytest.mark.parametrize("cell", ["zoe", "7.5", "9" * 40, "\N{SNOWMAN}", "0x", "1e3"])
    def test_a_name_that_is_no_number_dangles_in_a_table_of_numbers(
        self, tmp_path: Path, cell: str
    ) -> None:
        nodes = "id,x,y\n1,0,a\n2,0,b\n"
        lines = f"p,q\n1,2\n1,{cell}\n2, 1 \n{cell},2\n2,1.0\n"
        paths = write(tmp_path, nodes=nodes, edges=lines)
        graph = read_tables(**paths, label="y", directed=True, dangling="keep").graph
        assert graph.indices.tolist() == [1, 0]
        assert graph.dangling_indptr.tolist() == [0, 1, 1]
        again = write(tmp_path, nodes=nodes, edges=lines + f"2,{cell}\n")
        both = read_tables(**again, label="y", directed=True, dangling="keep").graph
        assert len(set(both.dangling_targets.tolist())) == 1, "the same cell is the same nobody"
        with pytest.raises(DataError, match="which are whole numbers"):
            read_tables(**paths, label="y", directed=True)

    @given(st.lists(st.text("0123456789.xaF+- ", min_size=1, max_size=5), min_size=1, max_size=5))
    def test_what_a_cell_names_does_not_depend_on_the_other_cells(self, cells: list[str]) -> None:
        together = any_ids(pa.array(cells), whole=True).to_pylist()
        alone = [any_ids(pa.array([cell]), whole=True)[0].as_py() for cell in cells]
        assert together == alone

    def test_an_entry_without_a_name_is_no_entry(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\nann,bob\nann,\n,ann\n")
        graph = read_tables(**paths, label="team", directed=True, dangling="keep").graph
        assert (graph.num_arcs, graph.num_dangling) == (1, 0)

    def test_bytes_that_are_no_text_stop_nothing(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges="a,b\nann,bob\n")
        paths["edges"].write_bytes(paths["edges"].read_bytes() + b"ann,\xff\xfe\n")
        graph = read_tables(**paths, label="team", directed=True, dangling="keep").graph
        assert (graph.num_arcs, graph.num_dangling) == (1, 1)

    @pytest.mark.parametrize("ids", [[1, 2], ["1", "2"]])
    def test_fractions_in_a_column_of_numbers_dangle(self, tmp_path: Path, ids: list) -> None:
        nodes = pa.table({"id": ids, "x": [0, 1], "y": ["a", "b"]})
        edges = pa.table({"p": [1.0, 1.0, 2.0, None], "q": [2.0, 2.5, float("inf"), 1.0]})
        paths = {
            "nodes": save(nodes, tmp_path / "nodes.parquet"),
            "edges": save(edges, tmp_path / "edges.parquet"),
        }
        graph = read_tables(**paths, label="y", directed=True, dangling="keep").graph
        assert graph.indices.tolist() == [1]
        assert graph.dangling_indptr.tolist() == [0, 1, 2]
