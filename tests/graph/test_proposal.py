"""What is proposed from a table leaves out what only few people have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablecases import save, write

from gapgnn.errors import DataError
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.proposal import SHARED_BY, outward, propose_schema
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.tables.schema import Category, Ignored, Label, Number


class TestProposal:
    def people(self, folder: Path, rows: int = 60) -> Path:
        lines = ["id,age,city,bio,member,code,when,team"]
        for row in range(rows):
            city = "Bern" if row % 2 else "Rome"
            team = "red" if row % 3 else "blue"
            lines.append(f"{row},{20 + row},{city},text {row},{row % 2 == 0},{row % 4},,{team}")
        lines.append(f"{rows},31,HIV clinic resident 17,x,true,2,,violet")
        path = folder / "people.csv"
        path.write_text("\n".join(lines))
        return path

    def test_no_single_persons_value_is_proposed(self, tmp_path):
        schema = propose_schema(self.people(tmp_path), "team")
        assert schema.columns == (
            Number("age", 10, 80),
            Category("city", ("Bern", "Rome")),
            Ignored("bio"),
            Number("member", 0, 1),
            Number("code", 0, 4),
            Ignored("when"),
        )
        assert schema.label == Label("team", ("blue", "red"))
        text = schema.to_toml("people.csv")
        assert "clinic" not in text
        assert "violet" not in text
        assert "# bio is ignored: free text." in text.splitlines()
        assert "1 class of team has fewer than 10 people and is not listed." in " ".join(
            schema.notes
        )

    def test_the_proposal_reads_its_own_table(self, tmp_path):
        path = self.people(tmp_path)
        schema = propose_schema(path, "team")
        edges = write(tmp_path, edges="a,b\n0,1\n")["edges"]
        graph = read_tables(nodes=path, edges=edges, label="team", schema=schema).graph
        assert graph.num_features == schema.width
        assert graph.labels[-1] == -1

    def test_small_classes_are_listed_only_if_there_are_no_others(self, tmp_path):
        schema = propose_schema(self.people(tmp_path, rows=12), "team")
        assert schema.label == Label("team", ("blue", "red", "violet"))
        assert any("All classes of team are listed" in note for note in schema.notes)

    def test_dropped_and_nameless_columns_and_lists_are_ignored(self, tmp_path):
        table = pa.table({"id": [1, 2], "a": [1, 2], "": [1, 2], "d": [[1], [2]]})
        schema = propose_schema(save(table, tmp_path / "n.parquet"), drop=["a"])
        assert schema.columns == (Ignored("a"), Ignored(""), Ignored("d"))
        assert schema.label is None

    def test_one_odd_cell_does_not_make_a_number_a_text(self, tmp_path):
        rows = [f"{row},{row * 3}" for row in range(99)]
        path = tmp_path / "n.csv"
        path.write_text("\n".join(["id,size", *rows, "99,unknown", "100,1e999"]))
        assert propose_schema(path).columns == (Number("size", 0, 300),)

    def test_numbers_with_a_decimal_comma_are_not_given_up_as_text(self, tmp_path):
        rows = [f'{row},"{row * 7}.5{row:02d},25",ok' for row in range(1, 60)]
        path = tmp_path / "n.csv"
        path.write_text("\n".join(["id,income,note", *rows]))
        with pytest.raises(DataError, match=r'`income`.*pass `decimal=","` and `thousands="\."`'):
            propose_schema(path)
        schema = propose_schema(path, dialect=Dialect(decimal=",", thousands="."))
        assert schema.columns[0] == Number("income", 7000, 500000)
        assert propose_schema(path, drop=["income"]).columns[0] == Ignored("income")

    def test_numbers_all_over_the_place_are_ignored(self, tmp_path):
        path = tmp_path / "n.csv"
        path.write_text("id,size\n1,-1.5e308\n2,1.5e308\n")
        assert propose_schema(path).columns == (Ignored("size"),)

    @given(st.floats(-1e300, 1e300).filter(lambda value: value == 0 or abs(value) > 1e-300))
    def test_bounds_are_one_digit_and_nobodys_value(self, value):
        low, high = outward(value, up=False), outward(value, up=True)
        for bound in (low, high):
            assert float(f"{bound:.0e}") == bound
        assert low < value < high or value == low == high == 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("id,x,y\n", "`nodes` must have rows"),
            ("id,x,y\n1,2,a\n2,3,a\n", "`label` must have at least two classes. Got 1"),
            ("id,x\n1,2\n", "`label` must be a column of"),
        ],
    )
    def test_a_table_without_classes_is_one_line(self, tmp_path, text, message):
        path = tmp_path / "n.csv"
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            propose_schema(path, "y")

    def test_few_is_ten(self):
        assert SHARED_BY == 10
