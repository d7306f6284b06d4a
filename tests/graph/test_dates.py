"""A date is a day between declared bounds: a function of its own cell, like any number."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablecases import FORMATS, feature, save, write

from gapgnn.errors import DataError
from gapgnn.graph.tables.columns import DeclaredColumn
from gapgnn.graph.tables.dates import COMMON_FORMATS, day_of, days_of
from gapgnn.graph.tables.proposal import propose_schema
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.tables.schema import Category, Date, Ignored, Schema

BOUNDS = date(2000, 1, 1), date(2020, 1, 1)
# Python writes years before 1000 without their zeros.
DAYS = st.dates(date(1000, 1, 1), date(9999, 12, 31))
ODD = st.one_of(
    st.none(),
    st.sampled_from(["2023-02-29", "0000-01-01", "99999-01-01", "2020-13-01", "20200101"]),
    st.text("\u0660\u0661\u0662-", max_size=10),
    st.text(max_size=12),
)


def column(format: str | None = None) -> DeclaredColumn:
    return DeclaredColumn(Date("opened", *BOUNDS, format), "f")


class TestOneCell:
    @given(DAYS, st.sampled_from(COMMON_FORMATS))
    def test_any_day_is_clamped_and_scaled_whatever_it_is_written_like(self, day, format):
        text = day.isoformat() if format is None else f"{day:{format}}"
        ((scaled, missing),) = column(format).take(pa.array([text]))
        assert missing == 0
        inside = min(max(day, BOUNDS[0]), BOUNDS[1])
        share = (inside - BOUNDS[0]).days / (BOUNDS[1] - BOUNDS[0]).days
        assert scaled == pytest.approx(2 * share - 1, abs=1e-6)

    @given(st.lists(st.one_of(ODD, DAYS.map(str)), min_size=1, max_size=8))
    def test_row_by_row_is_the_whole_and_no_cell_stops_it(self, cells):
        whole = column().take(pa.array(cells, pa.string()))
        single = [column().take(pa.array([cell], pa.string())) for cell in cells]
        assert np.array_equal(whole, np.concatenate(single))
        assert np.isfinite(whole).all()
        assert np.abs(whole).max() <= 1

    @pytest.mark.parametrize(
        "text",
        [
            "2010-05-06",
            " 2010-05-06 ",
            "2010-05-06T23:59:59",
            "2010-05-06 23:59",
            "2010-05-06T10:00:00.123Z",
            "2010-05-06T10:00:00+02:00",
        ],
    )
    def test_a_time_beside_a_day_is_not_looked_at(self, text):
        assert day_of(text) == date(2010, 5, 6).toordinal()

    @pytest.mark.parametrize("day", [date(1850, 7, 3), date(1969, 12, 31), date(2030, 1, 1)])
    def test_types_that_are_dates_say_the_same_as_text(self, day):
        noon = datetime(day.year, day.month, day.day, 12)
        for cells in (
            pa.array([day], pa.date32()),
            pa.array([day], pa.date64()),
            pa.array([noon], pa.timestamp("us")),
            pa.array([noon.replace(tzinfo=timezone.utc)], pa.timestamp("s", "UTC")),
            pa.array([str(day)]).dictionary_encode(),
        ):
            found = column().take(cells)
            assert np.array_equal(found, column().take(pa.array([str(day)])))

    def test_whole_numbers_are_read_by_their_format(self):
        found = column("%Y%m%d").take(pa.array([20100101, None]))
        assert found[0, 0] == pytest.approx(0, abs=1e-3)
        assert found[1].tolist() == [0, 1]

    def test_later_is_larger(self):
        days = days_of(pa.array(["2001-01-01", "2001-01-02"]), None)
        assert days[1] - days[0] == 1


class TestTable:
    SCHEMA = Schema((Date("opened", *BOUNDS), Category("city", ("Bern", "Rome"))))

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_every_format_says_the_same(self, tmp_path, suffix):
        table = pa.table(
            {
                "id": [1, 2, 3],
                "opened": pa.array([date(2010, 1, 1), None, date(1990, 1, 1)], pa.date32()),
                "city": ["Bern", "Oslo", None],
            }
        )
        paths = {
            "nodes": save(table, tmp_path / f"n.{suffix}"),
            **write(tmp_path, edges="a,b\n1,2\n"),
        }
        read = read_tables(**paths, label=None, schema=self.SCHEMA)
        assert read.feature_names[:2] == ("opened", "opened=missing")
        assert feature(read, "opened") == pytest.approx([0, 0, -1], abs=1e-3)
        assert feature(read, "opened=missing") == [0, 1, 0]

    def test_without_a_schema_it_is_refused_by_name_with_what_to_do(self, tmp_path):
        nodes = "id,opened,y\n1,2020-01-01,a\n2,2020-01-02,b\n"
        paths = write(tmp_path, nodes=nodes, edges="a,b\n1,2\n")
        with pytest.raises(DataError, match=r'`opened`.*Got dates; .*`type = "date"`'):
            read_tables(**paths, label="y")
        assert read_tables(**paths, label="y", drop=["opened"], features=_ones(tmp_path)).graph

    def test_bounds_are_dates_of_toml_or_text(self, tmp_path):
        path = tmp_path / "schema.toml"
        for low in ("2000-01-01", '"2000-01-01"', "2000-01-01T10:00:00"):
            path.write_text(f'[columns.d]\ntype = "date"\nlow = {low}\nhigh = 2020-01-01\n')
            assert Schema.read(path).columns == (Date("d", *BOUNDS),)


def _ones(folder: Path) -> Path:
    np.save(folder / "x.npy", np.ones((2, 1)))
    return folder / "x.npy"


class TestProposal:
    def propose(self, folder: Path, cells: list[str]) -> object:
        path = folder / "n.csv"
        path.write_text("\n".join(["id,d", *(f"{row},{cell}" for row, cell in enumerate(cells))]))
        return propose_schema(path).columns[0]

    def test_a_short_time_is_bounded_by_years(self, tmp_path):
        cells = [str(date(2015, 3, 1) + timedelta(days=40 * k)) for k in range(30)]
        assert self.propose(tmp_path, cells) == Date("d", "2015-01-01", "2019-01-01")

    def test_a_long_time_is_bounded_by_decades(self, tmp_path):
        cells = [f"{1931 + k}-05-05" for k in range(70)]
        assert self.propose(tmp_path, cells) == Date("d", "1930-01-01", "2010-01-01")

    def test_a_bound_is_nobodys_day(self, tmp_path):
        assert self.propose(tmp_path, ["2020-01-01"]) == Date("d", "2019-01-01", "2021-01-01")

    @pytest.mark.parametrize("format", ["%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d"])
    def test_other_ways_of_writing_are_recognised(self, tmp_path, format):
        cells = [f"{date(2020, 1 + k % 12, 13 + k % 10):{format}}" for k in range(30)]
        assert self.propose(tmp_path, cells) == Date("d", "2020-01-01", "2021-01-01", format)

    def test_a_few_odd_cells_do_not_hide_the_dates(self, tmp_path):
        cells = [f"2020-{1 + k % 12:02d}-{2 + k // 12:02d}" for k in range(60)]
        assert isinstance(self.propose(tmp_path, [*cells, "soon"]), Date)
        assert isinstance(self.propose(tmp_path, [f"text {k}" for k in range(60)]), Ignored)

    def test_typed_dates_are_recognised(self, tmp_path):
        table = pa.table({"id": [1, 2], "d": pa.array([1, 400], pa.date32())})
        found = propose_schema(save(table, tmp_path / "n.parquet")).columns
        assert found == (Date("d", "1970-01-01", "1972-01-01"),)
