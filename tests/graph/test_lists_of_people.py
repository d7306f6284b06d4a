"""Tables at node level: each person's list and cells are read as if nobody else had a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn.errors import DataError
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import build_store
from gapgnn.graph.tables import Category, Schema, read_tables

COUNT = 120


def written(folder: Path, edges: list[str], nodes: list[str] | None = None) -> dict[str, Any]:
    people = [f"{k},{k % 7}" for k in range(COUNT)] if nodes is None else nodes
    (folder / "edges.csv").write_text("\n".join(["a,b", *edges]) + "\n")
    (folder / "people.csv").write_text("\n".join(["id,age", *people]) + "\n")
    return {"edges": folder / "edges.csv", "nodes": folder / "people.csv", "label": None}


def in_a_store(folder: Path, **tables: Any) -> Graph:
    return build_store(folder / "store", **tables, parts=2).graph


@pytest.mark.parametrize("where", ["memory", "store"])
@pytest.mark.parametrize(("directed", "degrees"), [(False, [2, 2]), (True, [1, 1])])
def test_the_entry_of_who_has_no_row_stays_in_the_list_of_whoever_has_one(
    tmp_path: Path, where: str, directed: bool, degrees: list[int]
) -> None:
    """At either end of an undirected edge; a list of weights by length would change otherwise."""
    tables = written(tmp_path, ["zoe,ann", "bob,zoe", "ann,bob"], ["ann,30", "bob,40"])
    tables |= {"dangling": "keep", "directed": directed}
    graph = in_a_store(tmp_path, **tables) if where == "store" else read_tables(**tables).graph
    assert graph.out_degrees.tolist() == degrees
    lists = {k: names.tolist() for k, names in graph.dangling_lists().items()}
    assert lists == ({1: ["zoe"]} if directed else {0: ["zoe"], 1: ["zoe"]})


def test_who_is_left_out_with_a_small_class_takes_their_entries_along_in_a_store_too(
    tmp_path: Path,
) -> None:
    nodes = ["0,30,red", "1,40,blue", "2,50,rare", "3,31,red", "4,41,blue"]
    tables = written(tmp_path, ["2,90", "1,91", "4,92", "2,3", "0,1"], nodes)
    (tmp_path / "people.csv").write_text("\n".join(["id,age,team", *nodes]) + "\n")
    tables |= {"label": "team", "dangling": "keep", "min_class_count": 2}
    graph, stored = read_tables(**tables).graph, in_a_store(tmp_path, **tables)
    assert [stored.ids[k] for k in stored.dangling_lists()] == [1, 4]
    assert stored.out_degrees.tolist() == graph.out_degrees.tolist() == [1, 2, 0, 1]
    assert stored.fingerprint == graph.fingerprint


def rows(loops: int) -> list[str]:
    """Return three rows of each person, of which so many are self-loops."""
    return [
        f"{k},{k if step < loops else (k + step + 1) % COUNT}"
        for k in range(COUNT)
        for step in range(3)
    ]


def test_a_list_is_lost_where_most_of_its_rows_are(tmp_path: Path) -> None:
    assert read_tables(**written(tmp_path, rows(1)), dangling="keep").dropped_self_loops == COUNT
    with pytest.raises(DataError, match="have most of their rows dropped or unreadable"):
        read_tables(**written(tmp_path, rows(2)), dangling="keep")


def test_neighbours_without_a_row_are_counted_once_however_many_lists_name_them(
    tmp_path: Path,
) -> None:
    read_tables(**written(tmp_path, [f"{k},9999" for k in range(COUNT)]), dangling="keep")
    strangers = written(tmp_path, [f"{k},{9000 + k}" for k in range(COUNT)])
    with pytest.raises(DataError, match="have most of their rows dropped or unreadable"):
        read_tables(**strangers, dangling="keep")


def test_one_list_of_strangers_decides_where_rows_count_and_not_where_people_do(
    tmp_path: Path,
) -> None:
    tables = written(tmp_path, [*rows(0), *(f"0,{9000 + k}" for k in range(3000))])
    assert read_tables(**tables, dangling="keep").graph.out_degrees[0] > 3000
    with pytest.raises(DataError, match="that name an id without a row in the node table"):
        read_tables(**tables, dangling="drop")


@pytest.mark.parametrize("where", ["memory", "store"])
def test_a_declared_code_is_read_alike_beside_any_cell(tmp_path: Path, where: str) -> None:
    """A column that a reader takes for numbers without one row, and for text with it."""
    schema = Schema(columns=(Category("age", ("056", "56")),))
    found = []
    for more in ([], ["7,many"]):
        tables = written(tmp_path, ["1,2"], ["1,056", "2,56", "3,0056", *more]) | {"schema": schema}
        folder = tmp_path / f"with {len(more)}"
        folder.mkdir()
        graph = in_a_store(folder, **tables) if where == "store" else read_tables(**tables).graph
        found.append(np.asarray(graph.features[:3].todense()).tolist())
    assert found == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]] * 2
