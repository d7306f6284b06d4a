"""Each column of a table is shown with what it holds and what becomes of it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tablecases import save

from gapgnn.errors import InputError
from gapgnn.graph.tables.schema import Category, Date, Ignored, Label, Number, Schema
from gapgnn.graph.tables.survey import survey_columns


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    lines = ["id,age,size,city,bio,born,gone,team"]
    for row in range(60):
        age = "" if row < 15 else str(20 + row)
        lines.append(
            f'{row},{age},"{row},5",{"Bern" if row % 2 else "Rome"},text {row},'
            f"19{40 + row % 50}-05-0{1 + row % 9},,{'red' if row % 3 else 'blue'}"
        )
    path.write_text("\n".join(lines))
    return path


def reports(*args, **options) -> dict[str, tuple]:
    return {
        one.name: (one.type, one.range, one.missing, one.becomes)
        for one in survey_columns(*args, **options)
    }


def test_without_a_schema_columns_are_learned_refused_or_ignored(people):
    found = reports(people, label="team", drop=["city"])
    assert found["id"] == ("name", "0 to 59", 0, "names the node")
    column_type, span, missing, becomes = found["age"]
    assert (column_type, span, missing) == ("number", "35 to 79", 0.25)
    assert becomes == "as it is, 0 and `age=missing` where missing"
    assert found["city"][3] == "ignored: dropped"
    assert found["gone"] == ("empty", None, 1, "ignored: it has no value")
    assert found["team"] == ("category", "2 different", 0, "the class to predict, 2 classes")
    assert found["size"][3] == "refused: numbers written as '0,5'; pass `decimal=\",\"`"
    assert found["bio"][:2] == ("text", "60 different")
    assert found["bio"][3].startswith("refused: free text (60 different values in 60 rows)")
    assert found["born"][:2] == ("date", "1940-05-01 to 1989-05-05")
    assert found["born"][3].startswith("refused: dates; declare it in a schema")
    assert reports(people, label="team")["city"][3] == "one-hot of 2 values"


def test_a_schema_says_what_becomes_of_each(people):
    schema = Schema(
        (
            Number("age", 0, 100),
            Date("born", "1930-01-01", "2010-01-01"),
            Category("city", ("Bern", "Rome")),
            Ignored("bio"),
            Number("height", 0, 3),
        ),
        Label("team", ("red", "blue")),
    )
    found = reports(people, label="team", schema=schema, drop=["gone"])
    assert found["age"][3] == "0 to 100, scaled to -1 to 1"
    assert found["born"][3] == "1930-01-01 to 2010-01-01, its day scaled to -1 to 1"
    assert found["city"][3] == "Bern, Rome or other, one-hot"
    assert found["bio"][3] == "ignored"
    assert found["size"][3] == "refused: the schema does not declare it"
    assert found["height"] == (
        "absent",
        None,
        None,
        "refused: the schema declares it and the table lacks it",
    )
    assert reports(people, schema=schema)["team"][3].startswith("ignored: the label of the schema")


def test_what_cannot_be_looked_at_is_named_by_its_type(tmp_path):
    table = pa.table({"id": [1, 2], "x": [[1], [2]], "d": pa.array([1, 2], pa.date32())})
    found = reports(save(table, tmp_path / "n.parquet"))
    assert found["x"][:3] == ("list<element: int64>", None, None)
    assert found["x"][3].startswith("refused: list<element: int64>; turn it into")
    assert found["d"][:2] == ("date", "1970-01-02 to 1970-01-03")


def test_features_from_a_file_leave_the_columns_alone(people):
    found = reports(people, label="team", features="x.npy")
    assert found["age"][3] == "ignored: features come from 'x.npy'"


def test_options_that_do_not_fit_are_reported_at_once(people):
    with pytest.raises(InputError, match=r"2 things .*`drop`.*'team'"):
        survey_columns(people, label="taem", drop=["nothing"])
