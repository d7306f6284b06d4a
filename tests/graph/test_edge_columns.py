"""Amounts and times of edge tables: read from the row alone, in memory and into a store alike."""

from __future__ import annotations

from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tablecases import FORMATS, save

from gapgnn.errors import DataError, InputError
from gapgnn.graph import csr
from gapgnn.graph.store.build import build_store
from gapgnn.graph.tables.read import read_tables

PEOPLE = "id,age,team\nann,1,red\nbob,2,blue\ncid,3,red\ndan,4,blue\n"
MONEY = """a,b,amount,day
ann,bob,10,2024-01-05
bob,ann,30,2024-02-05
bob,cid,1e9,2024-02-29T12:30
cid,dan,,2024-03-01
dan,ann,lots,someday
dan,cid,-5,2024-01-31
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "money.csv").write_text(MONEY)
    return {"nodes": tmp_path / "people.csv", "edges": tmp_path / "money.csv", "label": "team"}


def named(graph):
    sources = csr.sources(graph.indptr, np.int64)
    names = graph.ids.tolist()
    return {
        (names[u], names[v]): weight
        for u, v, weight in zip(
            sources.tolist(),
            graph.indices.tolist(),
            [1.0] * graph.num_arcs if graph.weights is None else graph.weights.tolist(),
            strict=True,
        )
    }


def test_amounts_of_one_edge_are_added_up_in_both_directions(files):
    tables = read_tables(**files, weight="amount", weight_bounds=(5, 80))
    weights = named(tables.graph)
    assert weights["ann", "bob"] == weights["bob", "ann"] == 0.5
    assert weights["bob", "cid"] == 1.0
    # An unreadable amount counts as 5, and is counted.
    assert weights["dan", "ann"] == 0.0625
    assert weights["cid", "dan"] == 0.0625
    assert tables.counts.without_amount == 2
    directed = read_tables(**files, weight="amount", weight_bounds=(5, 80), directed=True)
    weights = named(directed.graph)
    assert (weights["ann", "bob"], weights["bob", "ann"]) == (0.125, 0.375)
    assert (weights["cid", "dan"], weights["dan", "cid"]) == (0.0625, 0.0625)
    assert directed.ignored == (("money.csv", ("day",)),)


@pytest.mark.parametrize(
    ("since", "until", "kept"),
    [
        ("2024-02-01", None, {"ab", "bc", "cd"}),
        (None, "2024-02-01", {"ab", "cd"}),
        ("2024-02-05", "2024-02-29T12:30", {"ab"}),
        ("2024-02-05", "2024-02-29T12:31", {"ab", "bc"}),
        (date(2024, 3, 1), datetime(2024, 3, 2), {"cd"}),
        ("2025-01-01", None, set()),
    ],
)
def test_a_window_has_its_first_moment_and_not_its_last(files, since, until, kept):
    tables = read_tables(**files, time="day", since=since, until=until)
    found = {"".join(sorted(name[0] for name in pair)) for pair in named(tables.graph)}
    assert found == kept
    assert tables.counts.without_time == 1
    assert tables.counts.outside == 5 - len(
        [row for row in MONEY.splitlines()[1:] if "some" not in row and _inside(row, since, until)]
    )


def _inside(row, since, until):
    def moment(value):
        text = value.isoformat() if isinstance(value, date) else value
        return text if "T" in text else f"{text}T00:00"

    when = moment(row.split(",")[3])
    return (since is None or when >= moment(since)) and (until is None or when < moment(until))


def test_numbers_are_compared_as_numbers(files):
    files["edges"].write_text("a,b,week\nann,bob,9\nbob,cid,10\ncid,dan,1e1\ndan,ann,later\n")
    tables = read_tables(**files, time="week", since="10", until=11)
    assert {pair[0] for pair in named(tables.graph)} == {"bob", "cid", "dan"}
    assert (tables.counts.without_time, tables.counts.outside) == (1, 1)


def test_zones_and_days_that_no_calendar_has(files):
    rows = ["2024-01-01T00:30+01:00", "2024-01-01T00:00Z", "2024-02-31", "2024-01-01 10:00:00.5"]
    text = "".join(
        f"{a},{b},{when}\n"
        for (a, b), when in zip(
            [("ann", "bob"), ("bob", "cid"), ("cid", "dan"), ("dan", "ann")], rows, strict=True
        )
    )
    files["edges"].write_text("a,b,at\n" + text)
    tables = read_tables(**files, time="at", since="2024-01-01")
    assert {tuple(sorted(pair)) for pair in named(tables.graph)} == {("bob", "cid"), ("ann", "dan")}
    assert tables.counts.without_time == 1


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_graph(files, tmp_path, suffix):
    table = pa.table(
        {
            "a": ["ann", "bob", "cid"],
            "b": ["bob", "cid", "dan"],
            "amount": [1.5, None, 7.25],
            "day": pa.array([date(2024, 1, 1), date(2024, 2, 1), date(2024, 3, 1)]),
        }
    )
    files["edges"] = save(table, tmp_path / f"links.{suffix}")
    options = {"weight": "amount", "weight_bounds": (1, 8), "time": "day", "until": "2024-02-02"}
    found = named(read_tables(**files, **options).graph)
    assert found["ann", "bob"] == 0.1875
    assert found["bob", "cid"] == 0.125
    assert len(found) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "amount"}, r"`weight` must come with `weight_bounds`. Got no bounds; declare"),
        ({"weight_bounds": (0, 1)}, "`weight_bounds` must come with `weight`"),
        ({"weight": "sum", "weight_bounds": (0, 1)}, "`weight` must be a column"),
        ({"weight": "amount", "weight_bounds": (1, 0)}, "0 <= LOW < HIGH"),
        ({"since": "2024-01-01"}, "must come with `time`"),
        ({"time": "day"}, "must come with `since` or `until`"),
        ({"time": "when", "since": 1}, "`time` must be a column"),
        ({"time": "day", "since": "yesterday"}, "`since` must be a date"),
        ({"time": "day", "since": "2024-01-01", "until": 7}, "both be dates or both numbers"),
        ({"time": "day", "since": "2024-02-01", "until": "2024-02-01"}, "must be before"),
        ({"weight": {"calls": "x"}, "weight_bounds": {"calls": (0, 1)}}, "name an edge type"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(files, options, message):
    with pytest.raises((InputError, DataError), match=message):
        read_tables(**files, **options)


def test_several_tables_are_several_edge_types(files, tmp_path):
    calls = tmp_path / "calls.csv"
    calls.write_text("a,b,minutes\nann,dan,30\nann,zoe,5\n")
    edges = {"payments": files["edges"], "calls": calls}
    options = {
        "weight": {"payments": "amount", "calls": "minutes"},
        "weight_bounds": {"payments": (5, 80), "calls": (0, 60)},
        "dangling": "keep",
    }
    graph = read_tables(**{**files, "edges": edges}, **options).graph
    assert graph.edge_type_names == ("calls", "payments")
    assert named(graph)["ann", "dan"] == 0.5
    assert [one.num_dangling for one in graph.edge_types] == [1, 0]
    one = {**options, "weight": {"calls": "minutes"}, "weight_bounds": {"calls": (0, 60)}}
    graph = read_tables(**{**files, "edges": edges}, **one).graph
    assert [one.is_weighted for one in graph.edge_types] == [True, False]
    built = build_store(
        tmp_path / "store", **{**files, "edges": edges}, **options, parts=2, min_class_count=1
    )
    whole = read_tables(**{**files, "edges": edges}, **options, min_class_count=1).graph
    assert built.graph.fingerprint == whole.fingerprint
    assert built.graph.more_edge_types[0].folder.parent == tmp_path / "store"
    assert (built.graph.weights == whole.weights).all()


LINES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from("abcdef"),
        st.sampled_from(["1", "2.5", "-1", "", "1e300", "nan", "x", "0.1"]),
        st.sampled_from(["1", "5", "9", "", "then"]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(lines=LINES, directed=st.booleans(), parts=st.integers(1, 6), order=st.randoms())
def test_a_store_is_the_graph_in_memory_whatever_the_order_of_rows(
    tmp_path_factory, lines, directed, parts, order
):
    folder = tmp_path_factory.mktemp("tables")
    people, links = folder / "people.csv", folder / "links.csv"
    people.write_text("id,age,team\n" + "".join(f"{name},1,t{name}\n" for name in "fdbeca"))
    options = {
        "nodes": people,
        "edges": links,
        "label": "team",
        "directed": directed,
        "weight": "amount",
        "weight_bounds": (0.5, 4),
        "time": "week",
        "since": 2,
    }
    rows = [",".join(line) + "\n" for line in lines]
    links.write_text("a,b,amount,week\n" + "".join(rows))
    tables = read_tables(**options)
    order.shuffle(rows)
    links.write_text("a,b,amount,week\n" + "".join(rows))
    built = build_store(folder / "store", **options, parts=parts, memory=1 << 25)
    assert built.graph.fingerprint == tables.graph.fingerprint
    assert built.counts == tables.counts
    assert built.dropped_duplicates == tables.dropped_duplicates
