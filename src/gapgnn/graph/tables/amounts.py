"""The amounts and times of an edge table.

Both are read from the row alone, and no cell can make a run fail. An amount that is missing or
unreadable counts as the lower declared bound. A row without a readable time, or outside the window,
is left out (privacy page, section 2). The counts of such rows are for the curator only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from gapgnn.errors import Complaints, DataError, InputError
from gapgnn.graph import WeightBounds
from gapgnn.graph.tables.columns import as_text, parse_numbers, plain
from gapgnn.graph.tables.dates import each_once, has_year
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import TableFile
from gapgnn.graph.tables.schema import Weight

Moment: TypeAlias = str | float | date | datetime
# A file or a table in memory; several by the names of their edge types.
EdgeFiles: TypeAlias = Any | Mapping[str, Any]
# What Arrow reads as a time.
ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"


@dataclass
class EdgeCounts:
    """The number of rows without an amount, without a time and outside the window."""

    without_amount: int = 0
    without_time: int = 0
    outside: int = 0
    mostly_unused: int = 0


@dataclass(frozen=True)
class Window:
    """A span of time that includes its first moment and excludes its last.

    Attributes:
        column: with the time of each row.
        since: microseconds since 1970 (UTC), or a number in the column's unit.
        until: likewise.
        is_dates: whether the column holds dates or times; otherwise numbers.
        format: how they are written, as ``datetime.strptime`` takes it; None is ISO.
    """

    column: str
    since: float
    until: float
    is_dates: bool
    format: str | None = None

    @classmethod
    def of(
        cls, column: str, since: Moment | None, until: Moment | None, format: str | None = None
    ) -> Window:
        """Return the window between two moments, either of which may be left out.

        >>> Window.of("day", "2024-01-01", None).is_dates, Window.of("week", 3, 7).until
        (True, 7.0)
        """
        if since is None and until is None:
            raise InputError("`time` must come with `since` or `until`. Got neither.")
        ends = [
            None if end is None else _moment(key, end)
            for key, end in (("since", since), ("until", until))
        ]
        are_dates = {end[1] for end in ends if end is not None}
        if len(are_dates) > 1:
            raise InputError(
                f"`since` and `until` must both be dates or both numbers. Got {since} and {until}."
            )
        low, high = (
            unbounded if end is None else end[0]
            for unbounded, end in zip((-math.inf, math.inf), ends, strict=True)
        )
        if not low < high:
            raise InputError(f"`since` must be before `until`. Got {since} and {until}.")
        is_dates = are_dates.pop()
        if format is not None and not (is_dates and has_year(format)):
            raise InputError(
                "`time_format` must say how dates are written, such as '%d.%m.%Y %H:%M', for "
                f"`since` and `until` that are dates. Got {format!r}."
            )
        return cls(column, low, high, is_dates, format)

    @property
    def example(self) -> str:
        """How a moment in the column is written."""
        return "2024-12-31" if self.format is None else repr(self.format)

    def inside(
        self, column: Any, file: str, dialect: Dialect, counts: EdgeCounts
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows are inside, and which have no readable time."""
        if self.is_dates:
            times = _times(column, self.column, file, self.format)
        else:
            times = parse_numbers(self.column, file, column, dialect)
        inside: NDArray[np.bool_] = (times >= self.since) & (times < self.until)
        timeless: NDArray[np.bool_] = np.isnan(times)
        counts.without_time += int(timeless.sum())
        counts.outside += int((~inside & ~timeless).sum())
        return inside, timeless


@dataclass(frozen=True)
class EdgeColumns:
    """The columns of one edge table that are read beside the two ends.

    Attributes:
        weight: the column with amounts.
        bounds: the declared bounds of the amounts.
        window: of time.
        source: the column with the source of each edge; None leaves the choice to the table.
        target: the column with its target.
    """

    weight: str | None = None
    bounds: WeightBounds | None = None
    window: Window | None = None
    source: str | None = None
    target: str | None = None

    def check(self, table: TableFile, complaints: Complaints) -> None:
        """Complain about columns that the table does not have."""
        if self.weight is not None:
            complaints.collect(partial(table.check_column, "weight", self.weight))
        if self.window is not None:
            complaints.collect(partial(table.check_column, "time", self.window.column))
        for option, column in (("source", self.source), ("target", self.target)):
            if column is not None:
                complaints.collect(partial(table.check_column, option, column))

    @property
    def names(self) -> list[str]:
        """The columns with amounts and times, if they are read."""
        names = [self.weight, None if self.window is None else self.window.column]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def declared(self) -> dict[str, Any]:
        """The options about the columns, as plain values; not the window's two moments."""
        found: dict[str, Any] = {}
        if self.weight is not None and self.bounds is not None:
            found = {"weight": self.weight, "weight_bounds": [self.bounds.low, self.bounds.high]}
        if self.window is not None:
            found["time"] = self.window.column
            if self.window.format is not None:
                found["time_format"] = self.window.format
        if self.source is not None and self.target is not None:
            found.update(source=self.source, target=self.target)
        return found

    def types(self, table: TableFile) -> dict[str, Any]:
        """Return the Arrow types to read: bytes in a text file, because any cell is bytes."""
        return dict.fromkeys(self.names, pa.large_binary()) if table.is_text else {}

    def inside(
        self, batch: Any, table: TableFile, counts: EdgeCounts
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows of a block are inside the window of time, and which have no time."""
        if self.window is None:
            inside = np.ones(batch.num_rows, dtype=np.bool_)
            return inside, ~inside
        column = batch.column(self.window.column)
        return self.window.inside(column, repr(str(table.path)), table.dialect, counts)

    def amounts(self, batch: Any, table: TableFile) -> NDArray[np.float64] | None:
        """Return the amounts of a block, NaN where there is none."""
        if self.weight is None:
            return None
        column = batch.column(self.weight)
        return parse_numbers(self.weight, repr(str(table.path)), column, table.dialect)


def edge_columns(
    edge_type: str | None = None,
    *,
    weight: str | Mapping[str, str] | None = None,
    weight_bounds: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    time: str | Mapping[str, str] | None = None,
    time_format: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    declared: Weight | None = None,
    source: str | Mapping[str, str] | None = None,
    target: str | Mapping[str, str] | None = None,
) -> EdgeColumns:
    """Return which columns of the table of one edge type are read.

    Args:
        edge_type: its name; None where there is only one.
        weight: the column with amounts, for every table or by edge type.
        weight_bounds: their declared bounds, for every table or by edge type; where they are left
            out, those of the schema.
        time: the column with times, for every table or by edge type.
        time_format: how they are written, likewise; None is ISO.
        since: the first moment of the window.
        until: the end of the window, which is outside it.
        declared: what a schema declares about the column with amounts.
        source: the column with the source of each edge, for every table or by edge type.
        target: the column with its target.

    >>> edge_columns(weight="amount")
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `weight` must come with `weight_bounds`. Got no bounds; declare \
them, because bounds read from the table would reveal single edges.
    >>> edge_columns(weight="amount", declared=Weight("amount", 0, 200)).bounds
    WeightBounds(low=0.0, high=200.0)
    """
    column, bounds, clock, written = (
        _of_edge_type(edge_type, value) for value in (weight, weight_bounds, time, time_format)
    )
    ends = _of_edge_type(edge_type, source), _of_edge_type(edge_type, target)
    if (ends[0] is None) != (ends[1] is None):
        raise InputError(
            f"`source` must come with `target`. Got only one of them, {ends[0] or ends[1]!r}."
        )
    if ends[0] is not None and ends[0] == ends[1]:
        raise InputError(f"`source` and `target` must be two columns. Got {ends[0]!r} twice.")
    if column is None and bounds is not None and not isinstance(weight, Mapping):
        raise InputError("`weight_bounds` must come with `weight`. Got no column.")
    if declared is not None and column == declared.column:
        bounds = _agreed(declared, bounds)
    if column is not None and bounds is None:
        raise InputError(
            "`weight` must come with `weight_bounds`. Got no bounds; declare them, because bounds "
            "read from the table would reveal single edges."
        )
    if time is None and (since is not None or until is not None):
        raise InputError("`since` and `until` must come with `time`. Got no column.")
    if time is None and time_format is not None:
        raise InputError("`time_format` must come with `time`. Got no column.")
    return EdgeColumns(
        weight=column,
        bounds=None if column is None else WeightBounds(*bounds),
        window=None if clock is None else Window.of(clock, since, until, written),
        source=ends[0],
        target=ends[1],
    )


def _agreed(declared: Weight, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return the schema's bounds; other ones that were given too are refused."""
    if bounds is not None and tuple(bounds) != declared.bounds:
        raise InputError(
            f"`weight_bounds` must be those of the schema for {declared.column!r}, "
            f"{declared.low:g} to {declared.high:g}, or be left out. Got "
            f"{bounds[0]:g} to {bounds[1]:g}."
        )
    return declared.bounds


def _of_edge_type(edge_type: str | None, value: Any) -> Any:
    return value.get(edge_type) if isinstance(value, Mapping) else value


def _moment(key: str, value: Moment) -> tuple[float, bool]:
    """Return a moment as a number, and whether it is a date."""
    if isinstance(value, str):
        try:
            return float(value), False
        except ValueError:
            found = _microseconds(value)
    elif isinstance(value, datetime):
        found = _since_epoch(value)
    elif isinstance(value, date):
        found = _since_epoch(datetime(value.year, value.month, value.day))
    else:
        found = float(value)
        if math.isfinite(found):
            return found, False
    if found is None or not math.isfinite(found):
        raise InputError(
            f"`{key}` must be a date such as 2024-01-31, a time such as 2024-01-31T12:00, or a "
            f"number. Got {value!r}."
        )
    return found, True


def _times(column: Any, name: str, file: str, format: str | None) -> NDArray[np.float64]:
    """Return each cell as microseconds since 1970 (UTC), NaN where it cannot be read."""
    column = plain(column)
    if pt.is_date(column.type) or pt.is_timestamp(column.type):
        moments = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        return _as_floats(moments)
    try:
        text = pc.utf8_trim_whitespace(as_text(column))
    except (pa.ArrowException, TypeError):
        raise DataError(f"Column `{name}` of {file} must hold dates. Got {column.type}.") from None
    if format is not None:
        return each_once(text, partial(_as_written, format=format))
    plainly = pc.match_substring_regex(text, ISO).fill_null(False)
    try:
        found = _as_floats(pc.if_else(plainly, text, None).cast(pa.timestamp("us")))
    except pa.ArrowInvalid:
        # A day that does not exist, such as 2023-02-29: parse the cells one by one.
        plainly, found = pa.array([False] * len(text)), np.full(len(text), np.nan)
    for at in np.flatnonzero(~plainly.to_numpy(zero_copy_only=False)):
        cell = text[int(at)].as_py()
        number = None if cell is None else _microseconds(cell)
        if number is not None:
            found[at] = number
    return found


def _as_written(text: str, *, format: str) -> float | None:
    """Return a time in a declared format as microseconds since 1970; without a zone it is UTC."""
    try:
        return _since_epoch(datetime.strptime(text, format))
    except (ValueError, OverflowError):
        return None


def _as_floats(moments: Any) -> NDArray[np.float64]:
    numbers = moments.cast(pa.int64()).cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.array(numbers.to_numpy(zero_copy_only=False))


def _microseconds(text: str) -> float | None:
    """Return an ISO date or time as microseconds since 1970; without a zone it is UTC.

    >>> _microseconds("1970-01-02"), _microseconds("1970-01-01T01:00+01:00"), _microseconds("soon")
    (86400000000.0, 0.0, None)
    """
    if re.fullmatch(r"\s*[0-9]{9,}\s*", text):
        # Seconds or milliseconds since 1970, some of which spell a day of another century.
        return None
    # Some writers leave the minutes of a zone out.
    zoned = re.sub(r"(:\d{2}(?:\.\d+)?[+-]\d{2})$", r"\1:00", text.strip())
    try:
        return _since_epoch(datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", zoned)))
    except (ValueError, OverflowError):
        return None


def _since_epoch(moment: datetime) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds() * 1e6
