"""Under a schema each row is a function of that row alone, and no cell stops the run."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from declaredcases import FRIENDS, NAMES, PEOPLE, SCHEMA, tables
from hypothesis import given, settings
from hypothesis import strategies as st
from tablecases import FORMATS, dense, feature, save, write

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph.tables.columns import (
    DeclaredColumn,
    LabelColumn,
    declared_columns,
    parse_numbers,
)
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.tables.schema import Category, Date, Ignored, Label, Number, Schema


class TestReading:
    def test_each_cell_becomes_what_the_schema_says(self, tmp_path):
        read = tables(tmp_path)
        assert read.feature_names == read.graph.feature_names == SCHEMA.feature_names == NAMES
        assert feature(read, "age") == pytest.approx([-0.38, 0, 1, 0])
        assert feature(read, "age=missing") == [0, 1, 0, 1]
        assert feature(read, "city=Bern") == [0, 1, 0, 0]
        assert feature(read, "city=other") == [0, 0, 1, 0]
        assert read.graph.labels.tolist() == [0, 1, 0, -1]
        assert read.graph.label_names == ("red", "blue")
        assert (read.graph.schema, read.graph.inferred) == (SCHEMA, ())

    def test_the_file_of_a_schema_serves_as_well_as_the_schema(self, tmp_path):
        people, friends = tmp_path / "people.csv", tmp_path / "friends.csv"
        people.write_text("id,age,team\nann,31,red\nbob,,blue\n")
        friends.write_text("a,b\nann,bob\n")
        schema = Schema(columns=(Number("age", 0, 100),), label=Label("team", ("red", "blue")))
        (tmp_path / "schema.toml").write_text(schema.to_toml())
        shared = {"edges": friends, "nodes": people, "label": "team"}
        for path in (tmp_path / "schema.toml", str(tmp_path / "schema.toml")):
            read = read_tables(**shared, schema=path)
            assert read.graph.fingerprint == read_tables(**shared, schema=schema).graph.fingerprint

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_every_format_says_the_same(self, tmp_path, suffix):
        people = pa.table(
            {
                "id": ["ann", "bob", "cid", "dan"],
                "age": [31.0, None, 250.0, None],
                "city": pa.array(["Rome", "Bern", "Oslo", None]).dictionary_encode(),
                "note": ["x", "y", "z", "w"],
                "team": ["red", "blue", "red", "green"],
            }
        )
        if suffix in ("csv", "tsv"):
            people = people.set_column(2, "city", people["city"].cast(pa.string()))
        path = save(people, tmp_path / f"people.{suffix}")
        edges = write(tmp_path, edges=FRIENDS)["edges"]
        found = read_tables(nodes=path, edges=edges, label="team", schema=SCHEMA).graph
        wanted = tables(tmp_path).graph
        assert np.array_equal(dense(found), dense(wanted))
        assert found.fingerprint == wanted.fingerprint

    def test_numbers_alone_stay_dense(self, tmp_path):
        schema = replace(SCHEMA, columns=(Number("age", 0, 100), Ignored("city"), Ignored("note")))
        graph = tables(tmp_path, schema=schema).graph
        assert isinstance(graph.features, np.ndarray)
        assert graph.features.shape == (4, 2)

    def test_classes_that_are_numbers_are_compared_as_numbers(self, tmp_path):
        people = "id,x,year\n1,0,2004.0\n2,0,2005\n3,0,x\n4,0,2006\n"
        schema = Schema((Number("x", 0, 1),), Label("year", (2005, "2004")))
        paths = write(tmp_path, nodes=people, edges="a,b\n1,2\n")
        graph = read_tables(**paths, label="year", schema=schema).graph
        assert graph.labels.tolist() == [1, 0, -1, -1]
        assert graph.label_names == ("2005", "2004")

    def test_without_a_label_the_label_column_is_no_feature(self, tmp_path):
        assert tables(tmp_path, label=None).graph.labels.tolist() == [-1] * 4
        without = "\n".join(line.rpartition(",")[0] for line in PEOPLE.splitlines())
        graph = tables(tmp_path, without, label=None).graph
        assert (graph.num_features, graph.num_classes) == (5, 0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"label": "city"}, "`label` must be the one of the schema, 'team'. Got 'city'."),
            (
                {"schema": replace(SCHEMA, label=None)},
                "`schema` must declare the classes of the label 'team'. Got no label.",
            ),
            (
                {"schema": replace(SCHEMA, columns=SCHEMA.columns[:1])},
                "`schema` must declare each column of {file}. Got none for 'city', 'note'; add "
                '`type = "ignore"` for a column that is not a feature, or leave it out with '
                '`drop=["city"]`.',
            ),
            (
                {"schema": replace(SCHEMA, columns=(*SCHEMA.columns, Number("size", 0, 1)))},
                "`nodes` must have the columns that the schema declares. Got {file} without "
                "'size'.",
            ),
            (
                {"schema": replace(SCHEMA, columns=(*SCHEMA.columns, Number("id", 0, 1)))},
                "`schema` must not declare the id column. Got 'id'.",
            ),
            (
                {"drop": ["age"]},
                "`drop` must not name a feature of the schema. Got 'age'; declare "
                '`type = "ignore"` there instead.',
            ),
            (
                {"schema": Schema(tuple(map(Ignored, ("age", "city", "note"))), SCHEMA.label)},
                "`schema` must declare a column of type number, category or date. Got none; "
                "declare one, or give `features=FILE`.",
            ),
            (
                {"min_class_count": 1},
                "`min_class_count` must be 0 with a schema, which declares the classes. Got 1.",
            ),
        ],
    )
    def test_a_schema_of_another_table_is_one_line(self, tmp_path, options, message):
        with pytest.raises(DataError) as caught:
            tables(tmp_path, **options)
        assert str(caught.value) == message.format(file=repr(str(tmp_path / "nodes.csv")))

    def test_columns_that_are_dropped_or_ignored_may_be_absent_from_either(self, tmp_path):
        schema = replace(SCHEMA, columns=(*SCHEMA.columns[:2], Ignored("gone")))
        assert tables(tmp_path, schema=schema, drop=["note"]).graph.num_features == 5

    def test_a_column_of_dates_is_no_number(self, tmp_path):
        people = pa.table({"id": [1], "age": pa.array([0], pa.date32())})
        paths = {
            "nodes": save(people, tmp_path / "n.parquet"),
            **write(tmp_path, edges="a,b\n1,2\n"),
        }
        with pytest.raises(DataError, match="must hold numbers, as the schema declares"):
            read_tables(**paths, label=None, schema=Schema((Number("age", 0, 1),)), dangling="keep")

    def test_a_file_of_features_needs_the_label_only(self, tmp_path):
        np.save(tmp_path / "x.npy", [[1.0, 2.0], [np.inf, 3.0], [4.0, 5.0], [np.nan, 0.0]])
        schema = Schema(label=SCHEMA.label)
        graph = tables(
            tmp_path, schema=schema, features=tmp_path / "x.npy", not_finite="zero"
        ).graph
        assert graph.features.tolist() == [[1, 2], [0, 0], [4, 5], [0, 0]]
        assert graph.inferred == ()
        with pytest.raises(DataError, match=r"`features` must be finite\. Got 2 NaN or infinite"):
            tables(tmp_path, schema=schema, features=tmp_path / "x.npy")

    def test_json_lists_do_not_state_their_width(self, tmp_path):
        lists = {"ann": [0], "bob": [1], "cid": [], "dan": [5]}
        (tmp_path / "x.json").write_text(json.dumps(lists))
        graph = tables(tmp_path, features=tmp_path / "x.json").graph
        assert graph.inferred == ("columns",)


CELLS = st.one_of(
    st.none(),
    st.sampled_from(["Bern", "Rome", "Oslo", "50", "1e400", "-1e308", "nan", "inf", "True", "٣"]),
    st.floats().map(str),
    st.text(max_size=6),
)
BOUND = st.floats(-1e100, 1e100)
VALUES = st.text(min_size=1, max_size=4).filter(lambda text: text != "other")


@st.composite
def schemas(draw) -> Schema:
    columns = []
    names = draw(st.lists(st.text('ab-."\\é= ', max_size=4), max_size=5, unique=True))
    for name in names:
        column_type = draw(st.sampled_from(["number", "category", "date", "ignore"]))
        if column_type == "number":
            low, high = sorted(draw(st.lists(BOUND, min_size=2, max_size=2, unique=True)))
            columns.append(Number(name, low, high))
        elif column_type == "date":
            low, high = sorted(draw(st.lists(st.dates(), min_size=2, max_size=2, unique=True)))
            columns.append(Date(name, low, high, draw(st.sampled_from([None, "%d.%m.%Y", '%Y"']))))
        elif column_type == "category":
            values = draw(st.lists(VALUES, min_size=1, max_size=4, unique_by=_as_number))
            columns.append(Category(name, tuple(values)))
        else:
            columns.append(Ignored(name))
    names = [feature for column in columns for feature in column.feature_names]
    if len(set(names)) < len(names):
        columns = columns[:1]
    classes = draw(st.lists(VALUES, min_size=2, max_size=4, unique_by=_as_number))
    return Schema(tuple(columns), draw(st.sampled_from([None, Label("the class", classes)])))


def _as_number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


class TestOneRowAtATime:
    @given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
    def test_encoding_row_by_row_is_encoding_the_whole(self, rows):
        for column, cells in zip(
            declared_columns(SCHEMA, "f"), zip(*rows, strict=True), strict=True
        ):
            whole = _dense(column.take(pa.array(cells, pa.string())))
            single = [_dense(column.take(pa.array([cell], pa.string()))) for cell in cells]
            assert np.array_equal(whole, np.concatenate(single))
            assert whole.shape[1] == len(column.about.feature_names)
            assert np.isfinite(whole).all()
            assert np.abs(whole).max() <= 1

    @given(st.lists(CELLS, min_size=1, max_size=8))
    def test_classes_row_by_row_are_the_classes_of_the_whole(self, cells):
        def read(part):
            column = LabelColumn("team", "f")
            column.add(pa.array(part, pa.string()))
            return column.classes(("50", "1e400", "7"))

        together, names = read(cells)
        assert together.tolist() == [read([cell])[0].item() for cell in cells]
        assert names == ("50", "1e400", "7")

    @settings(max_examples=40)
    @given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=2, max_size=6), st.data())
    def test_removing_a_row_changes_no_other_row(self, rows, data):
        gone = data.draw(st.integers(0, len(rows) - 1))
        with tempfile.TemporaryDirectory() as folder:
            people = pa.table(
                {
                    "id": [f"p{i}" for i in range(len(rows))],
                    **{
                        name: pa.array(cells, pa.string())
                        for name, cells in zip(
                            ("age", "city", "team"), zip(*rows, strict=True), strict=True
                        )
                    },
                }
            )
            edges = write(Path(folder), edges="a,b\np0,p1\np1,p0\n")["edges"]
            keep = [row for row in range(len(rows)) if row != gone]
            found = []
            for name, part in (("all", people), ("less", people.take(keep))):
                for suffix in ("csv", "parquet"):
                    path = save(part, Path(folder, f"{name}.{suffix}"))
                    graph = read_tables(
                        nodes=path, edges=edges, label="team", schema=SCHEMA, dangling="keep"
                    ).graph
                    found.append(graph)
        for before, after in ((found[0], found[2]), (found[1], found[3])):
            assert np.array_equal(dense(before)[keep], dense(after))
            assert np.array_equal(before.labels[keep], after.labels)
            assert before.feature_names == after.feature_names == NAMES
            assert before.label_names == after.label_names

    def test_a_cell_of_foreign_bytes_stops_nothing(self, tmp_path):
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        whole = paths["nodes"].read_bytes()
        paths["nodes"].write_bytes(whole.replace(b"250,Oslo", b"\xff\xfe,\xc3\x28"))
        read = read_tables(**paths, label="team", schema=SCHEMA)
        assert feature(read, "age=missing") == [0, 1, 1, 1]
        assert feature(read, "city=other") == [0, 0, 1, 0]

    @given(st.from_regex(r"\A[+-]?([0-9]{1,4}\.?[0-9]{0,4}|\.[0-9]{1,4})([eE][+-]?[0-9]{1,4})?\Z"))
    def test_whatever_looks_like_a_number_is_read_as_python_does(self, text):
        (found,) = parse_numbers("x", "f", pa.array([text]))
        wanted = float(text)
        assert found == wanted if math.isfinite(wanted) else math.isnan(found)

    @given(st.floats(-1e300, 1e300), st.tuples(BOUND, BOUND).filter(lambda b: b[0] < b[1]))
    def test_a_number_stays_inside(self, value, bounds):
        ((scaled, missing),) = DeclaredColumn(Number("x", *bounds), "f").take(pa.array([value]))
        assert -1 <= scaled <= 1
        assert missing == 0
        if value <= bounds[0]:
            assert scaled == -1


def _dense(block) -> np.ndarray:
    return block.toarray() if sp.issparse(block) else block


SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.datetimes()),
    st.text(max_size=3),
    st.sampled_from(["number", "category", "date", "ignore", "2020-01-01", "%Y", 10**400, -0.0]),
)
VALUE = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(), SCALARS))
KEYS = st.sampled_from(["name", "type", "low", "high", "values", "format", "column", "classes"])
PART = st.one_of(VALUE, st.dictionaries(st.one_of(KEYS, st.just("rates")), VALUE))
ANYTHING = st.one_of(
    PART,
    st.fixed_dictionaries(
        {},
        optional={
            "columns": st.one_of(PART, st.lists(PART, max_size=3)),
            **dict.fromkeys(["label", "weight", "entity", "link", "notes", "odd"], PART),
        },
    ),
)


class TestFile:
    @given(schemas())
    def test_toml_and_dictionaries_come_back_the_same(self, schema):
        plain = json.loads(json.dumps(schema.to_dict(), sort_keys=True))
        assert Schema.from_dict(plain) == schema
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "schema.toml")
            path.write_text(
                replace(schema, notes=("a\nb\x7f # \r",)).to_toml("x\ny.csv"), encoding="utf-8"
            )
            assert Schema.read(path) == schema
        assert schema.width == len(schema.feature_names)

    def test_the_example_of_the_documentation(self, tmp_path):
        path = tmp_path / "schema.toml"
        path.write_text(SCHEMA.to_toml("people.csv"))
        assert path.read_text().startswith("# What is declared public about people.csv. Edit it: ")
        assert Schema.read(path) == SCHEMA

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[columns.age", "`schema` must be TOML. Got FILE: "),
            (
                "[column.age]",
                "`schema` must only have the keys columns, label, weight, entity and link. "
                "Got 'column' in",
            ),
            (
                '[weight]\ncolumn = "amount"\nlow = 0',
                "`weight.high` must be given. Got no such key",
            ),
            (
                '[weight]\ncolumn = "amount"\nlow = 5\nhigh = 5',
                "`weight.low` and `weight.high` must be 0 <= low < high. Got 5 and 5 in",
            ),
            (
                '[weight]\ncolumn = "amount"\nlow = 0\nhigh = "much"',
                "`weight.high` must be a number. Got 'much' in",
            ),
            ("columns = 3", "`columns` must be a table of keys. Got 3 in"),
            ("[columns]\nage = 3", "`columns.age` must be a table of keys. Got 3 in"),
            (
                "[columns.age]\nlow = 1",
                "`columns.age.type` must be one of number, category, date, ignore. Got None in",
            ),
            ('[columns.age]\ntype = "nmber"', "`columns.age.type` must be one of number"),
            ('[columns.age]\ntype = "number"\nlow = 1', "`columns.age.high` must be given. Got no"),
            (
                '[columns.age]\ntype = "number"\nlow = 5\nhigh = 5',
                "`columns.age.low` must be below `high`. Got 5 and 5 in",
            ),
            (
                '[columns.age]\ntype = "number"\nlow = 0\nhigh = inf',
                "`columns.age.high` must be finite. Got inf in",
            ),
            (
                f'[columns.age]\ntype = "number"\nlow = 0\nhigh = 1{"0" * 400}',
                "`columns.age.high` must be finite. Got inf in",
            ),
            (
                '[columns.age]\ntype = "number"\nlow = -1.7e308\nhigh = 1.7e308',
                "`columns.age` must have a finite range. Got -1.7e+308 to 1.7e+308 in",
            ),
            (
                '[columns.age]\ntype = "number"\nlow = true\nhigh = 2',
                "`columns.age.low` must be a number. Got True in",
            ),
            (
                '[columns.age]\ntype = "number"\nlow = 0\nhigh = 2\nhgih = 3',
                "`columns.age` must only have keys that are known. Got 'hgih' in",
            ),
            (
                '[columns.age]\ntype = "ignore"\nname = "x"',
                "`columns.age` must only have keys that are known. Got 'name' in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = ["a", "b", "a"]',
                "`columns.city.values` must name each value once. Got 'a' twice in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = ["1", 1.0]',
                "`columns.city.values` must name each value once. Got '1' twice in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = []',
                "`columns.city.values` must have at least one value. Got 0 in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = "Bern"',
                "`columns.city.values` must be a list of values. Got 'Bern' in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = [[1]]',
                "`columns.city.values` must be text. Got [1] in",
            ),
            (
                '[columns.city]\ntype = "category"\nvalues = ["other"]',
                "`columns.city.values` must not name 'other', which undeclared values become.",
            ),
            (
                '[label]\ncolumn = "team"\nclasses = ["red"]',
                "`label.classes` must have at least two values. Got 1 in",
            ),
            ('[label]\ncolumn = "team"', "`label.classes` must be given. Got no such key in"),
            (
                '[label]\ncolumn = "a"\nclasses = [1, 2]\n[columns.a]\ntype = "ignore"',
                "`columns` must give each column one name. Got 'a' twice in",
            ),
            (
                '[columns.a]\ntype = "number"\nlow = 0\nhigh = 1\n'
                '[columns."a=missing"]\ntype = "number"\nlow = 0\nhigh = 1',
                "`columns` must give each feature one name. Got 'a=missing' twice in",
            ),
        ],
    )
    def test_what_is_wrong_is_one_line_that_names_key_and_file(self, tmp_path, text, message):
        path = tmp_path / "schema.toml"
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            Schema.read(path)
        said = str(caught.value)
        assert said.startswith(message.replace("FILE", repr(str(path))))
        assert repr(str(path)) in said
        assert len(said.splitlines()) == 1

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: Number("a", 5, 1), "`columns.a.low` must be below `high`. Got 5 and 1."),
            (lambda: Number("a", "x", 1), "`columns.a.low` must be a number. Got 'x'."),
            (lambda: Category("c", []), "`columns.c.values` must have at least one value. Got 0."),
            (lambda: Date("d", "2020", "2021-01-01"), "`columns.d.low` must be a date such as"),
            (lambda: Label("y", ("p",)), "`label.classes` must have at least two values. Got 1."),
            (lambda: Schema(columns=("x",)), "`columns.0` must be a table of keys. Got 'x'."),
        ],
    )
    def test_what_is_wrong_in_python_names_the_key_too(self, make, said):
        with pytest.raises(DataError) as caught:
            make()
        assert str(caught.value).startswith(said)

    @pytest.mark.parametrize("args", [("a", 0, 1, "number"), ("a", 0, 1, 2)])
    def test_a_column_takes_its_fields_once(self, args):
        with pytest.raises(TypeError, match="each once"):
            Number(*args)
        with pytest.raises(TypeError, match="each once"):
            Number("a", 0, 1, name="b")

    @given(ANYTHING)
    def test_whatever_is_given_is_a_schema_or_one_line(self, given):
        said = made = None
        try:
            made = Schema.from_dict(given)
        except InputError as error:
            said = str(error)
        assert said is None or len(said.splitlines()) == 1, said
        assert made is None or Schema.from_dict(json.loads(json.dumps(made.to_dict()))) == made

    def test_a_file_that_cannot_be_read_is_one_line(self, tmp_path):
        with pytest.raises(UnavailableError, match="`schema` must be a file"):
            Schema.read(tmp_path / "nowhere.toml")
        (tmp_path / "bytes.toml").write_bytes(b"\xff")
        with pytest.raises(DataError, match="`schema` must be UTF-8 text"):
            Schema.read(tmp_path / "bytes.toml")

    @pytest.mark.parametrize(
        "given", [3, {"columns": "age"}, {"columns": [3]}, {"columns": [{"name": 3}]}, {"x": 1}]
    )
    def test_a_dictionary_of_something_else_is_refused(self, given):
        with pytest.raises(DataError):
            Schema.from_dict(given)
