"""Edge tables of several edge types as spreadsheets write them: amounts, unknown ids and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gapgnn.errors import DataError, GapgnnError
from gapgnn.graph.store.build import build_store
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.preparation import Preparation
from gapgnn.graph.tables.read import read_tables

GERMAN = Dialect(delimiter=";", decimal=",", thousands=".")
PEOPLE = "id,age,team\nann,31,red\nbob,25,blue\ncid,44,red\n"
CALLS = "a,b,hours\nann,bob,1\nbob,cid,2\nann,zoe,3\nzoe,yan,3\n"
MONEY = "a,b,amount,week\nann,bob,1234.5,1\nbob,ann,0.5,2\ncid,zoe,9,2\nbob,cid,,3\nann,cid,7,8.5\n"
SPELLED = (
    "a;b;amount;week\nann;bob;1.234,5;1\nbob;ann;0,5;2\ncid;zoe;9;2\nbob;cid;;3\nann;cid;7;8,5\n"
)
OPTIONS = {
    "weight": {"money": "amount"},
    "weight_bounds": {"money": (0, 2470)},
    "time": {"money": "week"},
    "since": 1,
    "until": 8,
}


def files(folder, *, calls=CALLS, money=MONEY, people=PEOPLE):
    for name, text in (("calls", calls), ("money", money), ("people", people)):
        (folder / f"{name}.csv").write_text(text)
    edges = {name: folder / f"{name}.csv" for name in ("calls", "money")}
    return {"edges": edges, "nodes": folder / "people.csv", "label": "team"}


def in_semicolons(folder):
    return files(
        folder, calls=CALLS.replace(",", ";"), money=SPELLED, people=PEOPLE.replace(",", ";")
    )


def test_edge_types_and_amounts_in_another_dialect_are_the_same_graph(tmp_path):
    plain = read_tables(**files(tmp_path), **OPTIONS, dangling="drop")
    spelled = read_tables(**in_semicolons(tmp_path), **OPTIONS, dangling="drop", dialect=GERMAN)
    assert spelled.graph.fingerprint == plain.graph.fingerprint
    calls, money = spelled.graph.edge_types
    # 1,234.5 and 0.5 are half of the upper bound.
    assert money.weights.max() == 0.5
    assert calls.weights is None
    assert spelled.counts == plain.counts
    assert (spelled.counts.outside, spelled.counts.without_amount) == (1, 1)
    assert spelled.ignored == (("calls.csv", ("hours",)),)


@pytest.mark.parametrize(("dangling", "dropped", "kept"), [("drop", 3, 0), ("keep", 1, 2)])
def test_unknown_ids_are_counted_over_all_edge_types_in_memory_and_in_a_store(
    tmp_path, dangling, dropped, kept
):
    given = {**in_semicolons(tmp_path), **OPTIONS, "dangling": dangling, "dialect": GERMAN}
    tables = read_tables(**given)
    built = build_store(tmp_path / "store", **given, parts=2)
    for found in (tables, built):
        assert found.dropped_dangling == dropped
        assert sum(one.num_dangling for one in found.graph.edge_types) == kept
        assert (found.dropped_self_loops, found.dropped_duplicates) == (0, 1)
    assert built.counts == tables.counts
    assert built.graph.fingerprint == tables.graph.fingerprint
    assert built.graph.preparation == tables.graph.preparation


def test_strangers_outside_the_window_stop_nothing(tmp_path):
    money = "a,b,amount,week\nann,bob,5,1\nann,zoe,5,9\n"
    given = files(tmp_path, calls="a,b\nann,bob\n", money=money)
    assert read_tables(**given, **OPTIONS).dropped_dangling == 0


def test_everything_wrong_with_all_tables_is_reported_at_once(tmp_path):
    given = {**files(tmp_path), "label": "teem"}
    options = {**OPTIONS, "weight": {"money": "amuont"}}
    with pytest.raises(GapgnnError) as caught:
        read_tables(**given, **options)
    message = str(caught.value)
    assert "3 things must be changed" in message
    for text in ("`label` must be a column", "`weight` must be a column", "calls.csv', the first"):
        assert text in message
    with pytest.raises(GapgnnError) as caught:
        read_tables(**files(tmp_path), **OPTIONS)
    message = str(caught.value)
    assert "2 things must be changed" in message
    assert "2 of 4 rows" in message
    assert "1 of 5 rows" in message
    with pytest.raises(GapgnnError, match="2 things must be changed"):
        build_store(tmp_path / "store", **files(tmp_path), **OPTIONS, parts=1)
    assert not (tmp_path / "store").exists()


def test_columns_and_bounds_are_stored_by_edge_type_without_the_window(tmp_path):
    given = {**in_semicolons(tmp_path), **OPTIONS, "dangling": "drop", "dialect": GERMAN}
    graph = read_tables(**given).graph
    said = graph.preparation
    assert said.edges == {
        "money": {"weight": "amount", "weight_bounds": [0.0, 2470.0], "time": "week"}
    }
    assert Preparation.from_dict(json.loads(json.dumps(said.to_dict()))) == said
    assert all(one.preparation is None for one in graph.more_edge_types)
    again = said.edge_options(["calls", "money"])
    window = {"since": 1, "until": 8}
    reread = read_tables(**{**given, **again, **window}).graph
    assert reread.fingerprint == graph.fingerprint
    assert np.array_equal(reread.more_edge_types[0].weights, graph.more_edge_types[0].weights)


@pytest.mark.parametrize(
    "edges",
    [
        3,
        {"": 3},
        {"": {"weight": 3}},
        {"": {"since": "x"}},
        {"": {"weight_bounds": [1]}},
        {"": {"weight_bounds": [5, 1]}},
    ],
)
def test_a_damaged_note_of_edges_is_refused(edges):
    with pytest.raises(DataError, match="must"):
        Preparation.from_dict({"edges": edges})
