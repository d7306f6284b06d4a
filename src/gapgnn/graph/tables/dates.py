"""Dates in tables: each cell becomes a day by itself, or is missing.

A day is a number, so that a declared column of dates is scaled between its bounds as numbers are.
Time of day and time zone are not looked at: nothing about a day depends on where a program runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

# How dates are written that a proposal can recognise; None is ISO, 2024-12-31.
COMMON_FORMATS = (None, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
# Eight digits are a date as often as a number, so they are only one where that is declared.
_WRITTEN_OUT = COMMON_FORMATS[:-1]
SHARE_DATES = 0.95

_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?)?",
    re.ASCII,
)


def day_of(text: str, format: str | None = None) -> int | None:
    """Return the day that a cell names, counted from the year 1; None if it names none.

    Args:
        text: the cell.
        format: as ``datetime.strptime`` takes it; None is ISO.

    >>> day_of("2024-03-01") - day_of("2024-02-28 23:59")
    2
    >>> day_of("31.12.2024", "%d.%m.%Y") == day_of("2024-12-31")
    True
    >>> day_of("2023-02-29"), day_of("yesterday")
    (None, None)
    """
    text = text.strip()
    try:
        if format is not None:
            return datetime.strptime(text, format).toordinal()
        found = _ISO.fullmatch(text)
        return None if found is None else date(*map(int, found.groups())).toordinal()
    except (ValueError, OverflowError):
        return None


def tells_a_day(format: str) -> bool:
    """Whether a format can be read and knows at least the year.

    >>> tells_a_day("%d.%m.%Y"), tells_a_day("%m/%Y"), tells_a_day("%d.%m."), tells_a_day("%Q")
    (True, True, False, False)
    """
    sample = datetime(2003, 2, 1)
    try:
        return datetime.strptime(sample.strftime(format), format).year == sample.year
    except (ValueError, KeyError, IndexError, re.error):
        return False


def is_date(kind: Any) -> bool:
    """Whether an Arrow type holds days, with or without a time."""
    return bool(pt.is_date(kind) or pt.is_timestamp(kind))


def days_of(text: Any, format: str | None) -> NDArray[np.float64]:
    """Return the day of each cell of an Arrow column of text or dates, NaN where there is none.

    >>> days_of(pa.array(["2024-01-02", None, "soon"]), None) - day_of("2024-01-01")
    array([ 1., nan, nan])
    """
    if is_date(text.type):
        # Arrow counts from 1970.
        days = text.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.float64())
        numbers = np.array(days.fill_null(np.nan).to_numpy(zero_copy_only=False))
        return numbers + date(1970, 1, 1).toordinal()
    # Few days are different, and reading one takes long.
    encoded = text.dictionary_encode()
    found = [day_of(cell, format) for cell in encoded.dictionary.to_pylist()]
    table = np.array([*(np.nan if day is None else day for day in found), np.nan])
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    result: NDArray[np.float64] = table[places]
    return result


def recognised_format(cells: Iterable[str]) -> tuple[bool, str | None]:
    """Say whether nearly all of some cells are dates, and how they are written.

    Of two formats the one that reads more cells is meant, the earlier one if both read all.

    >>> recognised_format(["2024-01-31", "2024-02-01"])
    (True, None)
    >>> recognised_format(["12/31/2024", "01/02/2024"])
    (True, '%m/%d/%Y')
    >>> recognised_format(["Rome", "Bern"])
    (False, None)
    """
    cells = list(cells)
    if not cells:
        return False, None
    best: tuple[int, str | None] = (0, None)
    for format in _WRITTEN_OUT:
        read = sum(day_of(cell, format) is not None for cell in cells)
        if read > best[0]:
            best = read, format
    return best[0] >= SHARE_DATES * len(cells), best[1]
