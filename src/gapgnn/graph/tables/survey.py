"""A report on the columns of a node table, their content and use, for the curator only.

Ranges, shares and counts are exact and read without noise, so they must not be published beside a
model with a privacy guarantee.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from gapgnn.errors import Complaints, DataError, check_all
from gapgnn.graph.tables.columns import (
    MIN_NUMBER_SHARE,
    PLAIN,
    CategoryColumn,
    LabelColumn,
    NumberColumn,
    are_codes,
    as_text,
    is_free_text,
    is_number,
    is_text,
    parse_numbers,
    plain,
)
from gapgnn.graph.tables.dates import days_of, is_date, recognised_format
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import ColumnError, TableFile, check_dialect, open_table
from gapgnn.graph.tables.nodes import NodeColumns, ScannedNodes, scan_nodes
from gapgnn.graph.tables.schema import OTHER, Category, Column, Date, Ignored, Number, Schema


@dataclass
class ColumnStatistics:
    """Exact statistics of one column."""

    name: str
    dialect: Dialect = PLAIN
    rows: int = 0
    present: int = 0
    numbers: int = 0
    low: float = math.inf
    high: float = -math.inf
    is_indicator: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    _dates: tuple[float, float] | None = None

    def add(self, column: Any) -> None:
        """Take the next rows."""
        column = plain(column)
        self.rows += len(column)
        self.present += len(column) - column.null_count
        if is_date(column.type):
            days = days_of(column.drop_null(), None)
            if len(days):
                low, high = self._dates or (math.inf, -math.inf)
                self._dates = min(low, float(days.min())), max(high, float(days.max()))
            return
        values = parse_numbers(self.name, "the table", column, self.dialect)
        values = values[~np.isnan(values)]
        if len(values):
            self.numbers += len(values)
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))
            self.is_indicator &= bool(np.isin(values, (0, 1)).all())
        for entry in as_text(column).drop_null().value_counts().to_pylist():
            self.counts[entry["values"]] += entry["counts"]

    @property
    def missing(self) -> float:
        """Share of rows without a value."""
        return 1 - self.present / self.rows if self.rows else 0.0

    @property
    def is_numbers(self) -> bool:
        """Whether nearly all cells that are filled are numbers."""
        is_most = self.present > 0 and self.numbers >= MIN_NUMBER_SHARE * self.present
        return is_most and not are_codes(self.counts)

    @property
    def is_dates(self) -> bool:
        """Whether nearly all cells that are filled are dates."""
        return self._dates is not None or (bool(self.counts) and self._recognised[0])

    @property
    def format(self) -> str | None:
        """The format of its dates; None is ISO."""
        return None if self._dates is not None else self._recognised[1]

    @property
    def _recognised(self) -> tuple[bool, str | None]:
        cells = sorted(self.counts)
        return recognised_format(cells[:: max(1, len(cells) // 1000)])

    @property
    def days(self) -> tuple[date, date]:
        """The first and the last day of a column of dates."""
        low, high = self._dates or (math.inf, -math.inf)
        if self._dates is None:
            found = days_of(pa.array(self.counts, pa.large_string()), self.format)
            low, high = float(np.nanmin(found)), float(np.nanmax(found))
        return date.fromordinal(int(low)), date.fromordinal(int(high))

    @property
    def is_free_text(self) -> bool:
        """Whether nearly every row has a value of its own."""
        return is_free_text(len(self.counts), self.present)

    def shared(self, people: int) -> Iterable[str]:
        """Return the values that at least so many people have."""
        return (value for value, count in self.counts.items() if count >= people)

    @property
    def type(self) -> str:
        """The column type: empty, date, number, text or category."""
        if not self.present:
            return "empty"
        if self.is_dates:
            return "date"
        if self.is_numbers:
            return "number"
        return "text" if self.is_free_text else "category"

    @property
    def range(self) -> str | None:
        """The range, or the number of different values; None for an empty column."""
        if self.type == "empty":
            return None
        if self.type == "date":
            first, last = self.days
            return f"{first} to {last}"
        if self.type == "number":
            return f"{self.low:g} to {self.high:g}"
        return f"{len(self.counts):,} different"


def column_statistics(
    table: TableFile, names: Sequence[str], label: LabelColumn | None = None
) -> dict[str, ColumnStatistics]:
    """Return statistics of the columns that can hold numbers, text or dates; read the label too."""
    seen = {name: ColumnStatistics(name, table.dialect) for name in names if _is_plain(table, name)}
    reading: list[ColumnStatistics | LabelColumn] = list(seen.values())
    if label is not None:
        reading.append(label)
    # Without a column to read, rows are still counted.
    wanted = [column.name for column in reading] or list(table.columns[:1])
    rows = 0
    for batch in table.batches(wanted, types=dict.fromkeys(wanted, pa.large_binary())):
        rows += batch.num_rows
        for column in reading:
            column.add(batch.column(column.name))
    if not rows:
        raise DataError(f"`nodes` must have rows. Got none in {str(table.path)!r}.")
    return seen


def _is_plain(table: TableFile, name: str) -> bool:
    """Whether a column can hold numbers, text or dates; lists cannot."""
    arrow_type = table.type_of(name)
    if pt.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return bool(
        table.is_text or is_number(arrow_type) or is_text(arrow_type) or is_date(arrow_type)
    )


@dataclass(frozen=True)
class ColumnReport:
    """One column of a node table, and how it is used.

    Attributes:
        name: its name in the table.
        type: column type: empty, date, number, text, category or name.
        range: its range, or the number of different values; None where it has none.
        missing: share of rows without a value; None where it was not read.
        becomes: how it is used, in words.
    """

    name: str
    type: str
    range: str | None
    missing: float | None
    becomes: str


def survey_columns(
    nodes: Path | str,
    *,
    label: str | None = None,
    drop: Sequence[str] = (),
    schema: Schema | None = None,
    features: Path | str | None = None,
    dialect: Dialect | None = None,
) -> list[ColumnReport]:
    """Return for every column of a node table what it holds and how it is used.

    A column that would be refused is included, with the reason. The options are those of
    :func:`gapgnn.graph.tables.read.read_tables`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people = Path(folder, "people.csv")
    ...     rows = ["id,age,born,team", "ann,31,1990-05-01,red", "bob,,1985-01-31,blue"]
    ...     _ = people.write_text("\\n".join(rows))
    ...     for column in survey_columns(people, label="team"):
    ...         print(column.name, column.type, column.range, column.missing)
    id name 2 different 0.0
    age number 31 to 31 0.5
    born date 1985-01-31 to 1990-05-01 0.0
    team category 2 different 0.0
    """
    check_dialect(dialect, nodes)
    table = open_table(nodes, what="nodes", dialect=dialect)
    named = [("drop", name) for name in drop] + ([] if label is None else [("label", label)])
    check_all(*(partial(table.check_column, *pair) for pair in named))
    complaints = Complaints()
    wanted = NodeColumns.choose(
        table,
        label,
        drop,
        skip_features=features is not None,
        schema=schema,
        complaints=complaints,
    )
    found = scan_nodes(
        table,
        wanted,
        keep_features=schema is not None,
        min_class_count=0,
        progress=None,
        complaints=complaints,
    )
    refused = {
        error.column: str(error).partition(". Got ")[2].rstrip(".")
        for error in complaints
        if isinstance(error, ColumnError)
    }
    seen = column_statistics(table, table.columns)
    reports = _ColumnReports(table, wanted, found, refused, frozenset(drop), features)
    return [*(reports.of(name, seen.get(name)) for name in table.columns), *reports.absent()]


@dataclass(frozen=True)
class _ColumnReports:
    """Reports on columns, given the result of reading the table."""

    table: TableFile
    wanted: NodeColumns
    found: ScannedNodes | None
    refused: dict[str, str]
    dropped: frozenset[str]
    features: Path | str | None

    def of(self, name: str, seen: ColumnStatistics | None) -> ColumnReport:
        """Return the report on a column, with its statistics where it was read."""
        column_type = str(self.table.type_of(name)) if seen is None else seen.type
        return ColumnReport(
            name,
            "name" if name == self.wanted.id else column_type,
            None if seen is None else seen.range,
            None if seen is None else seen.missing,
            self._becomes(name),
        )

    def absent(self) -> list[ColumnReport]:
        """Return the columns that the schema declares and the table lacks."""
        schema = self.wanted.schema
        declared = () if schema is None or self.features is not None else schema.columns
        why = "refused: the schema declares it and the table lacks it"
        return [
            ColumnReport(about.name, "absent", None, None, why)
            for about in declared
            if about.name not in self.table.columns and not isinstance(about, Ignored)
        ]

    def _becomes(self, name: str) -> str:
        wanted, schema = self.wanted, self.wanted.schema
        if name in self.refused:
            return f"refused: {self.refused[name]}"
        if name == wanted.id:
            return "names the node"
        if name == wanted.label:
            names = None if self.found is None else self.found.label_names
            return "the class to predict" + ("" if names is None else f", {len(names)} classes")
        if name in self.dropped:
            return "ignored: dropped"
        if self.features is not None:
            return f"ignored: features come from {str(self.features)!r}"
        if schema is None:
            return self._learned(name)
        if schema.label is not None and name == schema.label.column:
            return "ignored: the label of the schema, which is not asked for"
        about = next((column for column in schema.columns if column.name == name), None)
        if about is None:
            return "refused: the schema does not declare it"
        return column_summary(about)

    def _learned(self, name: str) -> str:
        columns = () if self.found is None else self.found.columns
        column = next((one for one in columns if one.name == name), None)
        if isinstance(column, NumberColumn):
            names = column.finish()
            return "as it is" if len(names) == 1 else f"as it is, 0 and `{names[1]}` where missing"
        if isinstance(column, CategoryColumn):
            return f"one-hot of {len(column.finish()):,} values"
        return "ignored: it has no value" if self.found is not None else "not read"


def column_summary(column: Column) -> str:
    """Describe in a few words how a declared column is used.

    >>> column_summary(Number("age", 0, 100)), column_summary(Category("city", ("Bern", "Rome")))
    ('0 to 100, scaled to -1 to 1', 'Bern, Rome or other, one-hot')
    >>> column_summary(Date("opened", "2000-01-01", "2030-01-01"))
    '2000-01-01 to 2030-01-01, its day scaled to -1 to 1'
    """
    if isinstance(column, Number):
        return f"{column.low:g} to {column.high:g}, scaled to -1 to 1"
    if isinstance(column, Date):
        return f"{column.low} to {column.high}, its day scaled to -1 to 1"
    if isinstance(column, Category):
        return f"{', '.join(column.values)} or {OTHER}, one-hot"
    return "ignored"
