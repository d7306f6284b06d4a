"""Dates in tables: each cell is parsed alone, and becomes the number of a day or is missing.

A declared column of dates is then scaled between its bounds as numbers are. Time of day and time
zone are ignored, so the result does not depend on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

# Formats of dates that a proposal can recognise; None is ISO, 2024-12-31.
COMMON_FORMATS = (None, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
# Eight digits may also be a number, so they are a date only where that is declared.
_WRITTEN_OUT = COMMON_FORMATS[:-1]
SHARE_DATES = 0.95

_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?)?",
    re.ASCII,
)


def day_of(text: str, format: str | None = None) -> int | None:
    """Return the day in a cell, counted from the year 1; None if there is none.

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


def has_year(format: str) -> bool:
    """Whether a format is valid and contains at least the year.

    >>> has_year("%d.%m.%Y"), has_year("%m/%Y"), has_year("%d.%m."), has_year("%Q")
    (True, True, False, False)
    """
    sample = datetime(2003, 2, 1)
    try:
        return datetime.strptime(sample.strftime(format), format).year == sample.year
    except (ValueError, KeyError, IndexError, re.error):
        return False


def is_date(arrow_type: Any) -> bool:
    """Whether an Arrow type holds days, with or without a time."""
    return bool(pt.is_date(arrow_type) or pt.is_timestamp(arrow_type))


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
    return each_once(text, partial(day_of, format=format))


def each_once(text: Any, parse: Callable[[str], float | None]) -> NDArray[np.float64]:
    """Return what each cell of an Arrow column is parsed to, NaN for none; equal cells once.

    >>> each_once(pa.array(["7", "x", None]), lambda cell: 7.0 if cell == "7" else None)
    array([ 7., nan, nan])
    """
    encoded = text.dictionary_encode()
    found = [parse(cell) for cell in encoded.dictionary.to_pylist()]
    table = np.array([*(np.nan if value is None else value for value in found), np.nan])
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    result: NDArray[np.float64] = table[places]
    return result


def recognised_format(cells: Iterable[str]) -> tuple[bool, str | None]:
    """Return whether nearly all of some cells are dates, and their format.

    The format that reads most cells is chosen; of equal ones, the earlier one.

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
