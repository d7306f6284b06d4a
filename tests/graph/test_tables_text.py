"""What the reader of text must do: the reasons why it is Arrow's (:mod:`...tables.files`).

Each is a promise about tables that another reader may break silently: a row that was cut off is
never filled up, and no cell of one person stops a run at node level.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from declaredcases import FRIENDS, PEOPLE, SCHEMA, tables
from tablecases import dense, feature, write

from gapgnn.errors import DataError
from gapgnn.graph.tables import read_ids, read_tables

PLAIN = "id,x,y\n1,5,a\n2,6,b\n3,7,a\n"
EDGES = "p,q\n1,2\n2,3\n"


def read(folder: Path, nodes: str | bytes, **options):
    paths = write(folder, nodes="", edges=EDGES)
    paths["nodes"].write_bytes(nodes if isinstance(nodes, bytes) else nodes.encode())
    return read_tables(**paths, **{"label": "y", **options})


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("id,x,y\n1,5,a\n2,6\n3,7,a\n", "Row #3: Expected 3 columns, got 2: 2,6"),
        ("id,x,y\n1,5,a\n2,6,b\n3,7", "Row #4: Expected 3 columns, got 2: 3,7"),
        ("id,x,y\n1,5,a\n2,6,b,9\n3,7,a\n", "Row #3: Expected 3 columns, got 4: 2,6,b,9"),
        ('id,x,y\n1,5,a\n"2,6,b\n3,7,a\n', "Expected 3 columns, got 1"),
    ],
)
def test_a_row_with_more_or_fewer_cells_is_refused_and_named(tmp_path, nodes, said):
    with pytest.raises(DataError, match="must have the same columns in each row") as caught:
        read(tmp_path, nodes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "nodes",
    [
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.replace("\n", "\n\n"),
        "\n" + PLAIN + "\n\n",
        PLAIN.rstrip("\n"),
        PLAIN.replace("2,6,b", '"2","6","b"'),
        PLAIN.replace(",5,", ", 5 ,"),
        "\ufeff" + PLAIN,
    ],
)
def test_line_ends_blank_lines_quotes_and_spaces_change_nothing(tmp_path, nodes):
    wanted = read(tmp_path, PLAIN)
    found = read(tmp_path, nodes)
    assert found.graph.fingerprint == wanted.graph.fingerprint
    assert found.feature_names == wanted.feature_names


@pytest.mark.parametrize("cell", ['5" pipe', 'say "hi"', "'", "\\", "#5", "\x00", "=1+1", "\u2028"])
def test_no_sign_in_a_cell_stops_a_run_with_a_schema(tmp_path, cell):
    """Each row is read by itself, whatever stands in another one."""
    wanted = tables(tmp_path)
    found = tables(tmp_path, PEOPLE.replace("Oslo,z", f"Oslo{cell},{cell}"))
    assert (dense(found.graph) == dense(wanted.graph)).all()
    assert found.graph.labels.tolist() == wanted.graph.labels.tolist()


def test_foreign_bytes_in_a_cell_stop_nothing_where_columns_are_declared(tmp_path):
    paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
    whole = paths["nodes"].read_bytes()
    for foreign in (b"\xff", b"\xc3\x28", b"\xe2\x82", b"\x80abc"):
        paths["nodes"].write_bytes(whole.replace(b"250,Oslo,z", b"250," + foreign + b"," + foreign))
        found = read_tables(**paths, label="team", schema=SCHEMA, dangling="keep")
        assert feature(found, "city=other") == [0, 0, 1, 0]
        assert feature(found, "age=missing") == [0, 1, 0, 1]


def test_foreign_bytes_in_a_column_that_is_not_read_stop_nothing(tmp_path):
    nodes = tmp_path / "n.csv"
    nodes.write_bytes(b"id,note\n1,\xff\n2,b\n")
    assert read_ids(nodes).tolist() == [1, 2]
