"""Tables in memory give the graph that a Parquet file of the same columns gives."""

from __future__ import annotations

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gapgnn import MLP, LabelGAP, read_tables
from gapgnn.errors import DataError, InputError
from gapgnn.graph.tables import Dialect

PEOPLE = {
    "id": ["ann", "bob", "cem", "dee"],
    "age": [31.0, None, 44.0, 52.0],
    "city": ["Rome", "Bern", None, "Rome"],
    "branch": ["056", "007", "056", "100"],
    "team": ["red", "blue", "red", None],
}
PAYMENTS = {"from": ["ann", "bob", "cem"], "to": ["bob", "cem", "dee"], "amount": [10.0, 2.5, 7.0]}
READ = {
    "label": "team",
    "source": "from",
    "target": "to",
    "weight": "amount",
    "weight_bounds": (0, 20),
}


def categories(frame):
    return frame.astype({"city": "category", "team": "category"})


FRAMES = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "polars, categories": lambda data: polars.DataFrame(data).cast(
        {name: polars.Categorical for name in ("city", "team") if name in data}
    ),
    "Arrow": pa.table,
    "pandas with an index": lambda data: pandas.DataFrame(data).set_index(next(iter(data))),
    "views of text": lambda data: pa.table(
        {
            k: pa.array(v).cast(pa.string_view()) if k in ("city", "id") else v
            for k, v in data.items()
        }
    ),
}


def parquet(folder, name, data):
    pq.write_table(pa.table(data), folder / name)
    return folder / name


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_a_frame_gives_the_graph_of_the_same_parquet_file(make, tmp_path):
    files = {
        "nodes": parquet(tmp_path, "nodes.parquet", PEOPLE),
        "edges": parquet(tmp_path, "edges.parquet", PAYMENTS),
    }
    wanted = read_tables(**files, **READ)
    people, payments = make(PEOPLE), make(PAYMENTS)
    found = read_tables(nodes=people, edges=payments, **READ)
    assert found.graph.fingerprint == wanted.graph.fingerprint
    assert found.feature_names == wanted.feature_names
    assert found.graph.label_names == ("blue", "red")
    several = read_tables(nodes=people, edges={"payments": payments}, **READ)
    assert several.graph.num_arcs == wanted.graph.num_arcs


def test_the_callers_frame_is_not_changed():
    people = pandas.DataFrame(PEOPLE | {7: [1, 2, 3, 4]}).set_index("id")
    before = people.copy(deep=True)
    read_tables(nodes=people, edges=pa.table(PAYMENTS), **READ)
    pandas.testing.assert_frame_equal(people, before)


def test_frames_are_refused_in_one_line_like_files():
    people, payments = pa.table(PEOPLE), pa.table(PAYMENTS)
    stranger = pa.table(PAYMENTS | {"to": ["bob", "eve", "dee"]})
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    lists = people.append_column("many", pa.array([[1], [2], [3], [4]]))
    dialect = Dialect(delimiter=";")
    with pytest.raises(DataError, match="'eve'"):
        read_tables(nodes=people, edges=stranger, **READ)
    with pytest.raises(DataError, match="must name each column once"):
        read_tables(nodes=twice, edges=payments, label=None)
    with pytest.raises(DataError, match="one value in each cell"):
        read_tables(nodes=lists, edges=payments, **READ)
    with pytest.raises(InputError, match="`delimiter` must come with a"):
        read_tables(nodes=people, edges=payments, dialect=dialect, **READ)
    with pytest.raises(DataError, match="`label` must be a column of 'nodes'"):
        read_tables(nodes=people, edges=payments, **READ | {"label": "tram"})


def test_a_model_is_fitted_on_frames_and_speaks_their_labels():
    rng = np.random.default_rng(0)
    count, team = 60, rng.integers(2, size=60)
    people = polars.DataFrame(
        {
            "id": np.arange(count),
            "age": rng.normal(size=count) + team,
            "team": np.where(team, "red", "blue"),
        }
    )
    ends = rng.integers(count, size=(2, 400))
    payments = polars.DataFrame({"source": ends[0], "target": ends[1]})
    tables = read_tables(nodes=people, edges=payments, label="team")
    with pytest.warns(UserWarning, match="no masks"):
        model = LabelGAP(epsilon=8.0, epochs=4).fit(tables)
    assert model.classes_.tolist() == ["blue", "red"]
    assert set(model.predict(tables)) <= {"blue", "red"}
    assert model.feature_names_in_.tolist() == ["age"]
    assert model.n_features_in_ == 1
    assert repr(model).startswith("LabelGAP(level='edge', epsilon=8.0, epochs=4")


def test_without_names_classes_are_numbers_and_features_have_no_names():
    from methodgraphs import small_graph

    graph = small_graph(num_nodes=100)._replace(label_names=None)
    model = MLP(epochs=2).fit(graph)
    assert model.classes_.tolist() == list(range(graph.num_classes))
    assert not hasattr(model, "feature_names_in_")
    assert model.predict(graph).dtype == np.int64
