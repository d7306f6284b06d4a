"""What was said about tables is remembered, and nothing that was read from people."""

from __future__ import annotations

import json

import pytest
from declaredcases import SCHEMA, tables
from tablecases import FRIENDS, PEOPLE, write

from gapgnn.errors import DataError
from gapgnn.graph.convert import as_graph
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.preparation import Preparation
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.transforms import filter_classes, random_split


class TestRemembering:
    def test_tables_are_remembered_as_they_were_said_to_be(self, tmp_path):
        paths = write(
            tmp_path,
            nodes=PEOPLE.replace(",", ";"),
            edges=FRIENDS.replace(",", ";") + "ann;zoe;1\n",
        )
        graph = read_tables(
            **paths,
            label="team",
            drop=["city"],
            directed=True,
            dangling="drop",
            dialect=Dialect(delimiter=";"),
            population="bank",
        ).graph
        assert graph.preparation == Preparation(
            label="team",
            drop=("city",),
            columns=("age", "member"),
            directed=True,
            dangling="drop",
            population="bank",
            dialect={"delimiter": ";"},
        )
        assert "preparation" not in repr(graph)

    def test_it_stays_with_the_graph_and_is_not_its_content(self, tmp_path):
        graph = read_tables(**write(tmp_path, nodes=PEOPLE, edges=FRIENDS), label="team").graph
        said = graph.preparation
        for other in (random_split(graph, seed=0), filter_classes(graph, 1), as_graph(graph)):
            assert other.preparation == said
        assert graph._replace(preparation=None).fingerprint == graph.fingerprint

    def test_under_a_schema_no_column_is_remembered(self, tmp_path):
        """At node level only what was said may stand in the model."""
        said = tables(tmp_path).graph.preparation
        assert said == Preparation(label="team", dangling="keep")
        assert json.dumps(said.to_dict()) == '{"label": "team", "dangling": "keep"}'

    @pytest.mark.parametrize(
        "given", [3, {"label": 3}, {"lable": "x"}, {"drop": "x"}, {"dialect": {"decimal": ":"}}]
    )
    def test_a_damaged_note_is_refused(self, given):
        with pytest.raises(DataError, match="`preparation` must"):
            Preparation.from_dict(given)

    def test_older_models_have_none(self):
        assert Preparation.from_dict(None) is None


class TestApplying:
    SAID = Preparation(label="team", drop=("bio",), columns=("age", "city"))

    def test_the_same_table_is_read_the_same(self):
        found = self.SAID.applied(["id", "age", "city", "bio", "team"])
        assert (found.label, found.drop, found.new, found.missing) == ("team", ("bio",), (), ())

    def test_a_label_that_is_dropped_or_not_there_is_no_label(self):
        assert self.SAID.applied(["id", "age", "team"], drop=["team"]).label is None
        assert self.SAID.applied(["id", "age"]).label is None

    def test_another_label_makes_the_old_one_new(self):
        found = self.SAID.applied(["id", "age", "team", "club"], label="club")
        assert (found.label, found.new) == ("club", ("team",))

    def test_new_and_missing_columns_are_distinguished(self):
        found = self.SAID.applied(["who", "age", "shoe"], drop=["city"])
        assert (found.new, found.missing) == (("shoe",), ())
        assert self.SAID.applied(["who", "shoe"]).missing == ("age", "city")

    def test_a_schema_knows_its_own_columns(self):
        found = Preparation(label="team").applied(["id", "age", "note", "shoe"], schema=SCHEMA)
        assert (found.new, found.missing) == (("shoe",), ())

    def test_features_from_a_file_leave_the_columns_alone(self):
        assert Preparation(label="team").applied(["id", "age", "shoe"]).new == ()
