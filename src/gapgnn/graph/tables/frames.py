"""Tables that are objects in memory: pandas and polars data frames, and Arrow tables.

They are read like a Parquet file of the same columns, so the same data gives the same graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from gapgnn.errors import DataError
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import TableFile, check_names, open_table
from gapgnn.graph.tables.sources import FRAME, Part


def is_frame(value: object) -> bool:
    """Return whether a value is a table in memory.

    >>> is_frame(pa.table({"id": [1, 2]})), is_frame("people.csv")
    (True, False)
    """
    return hasattr(value, "__arrow_c_stream__") or isinstance(value, pa.Table)


def open_frame(frame: Any, *, what: str) -> TableFile:
    """Return a table in memory with the columns of an Arrow table.

    A named index of pandas becomes the first columns. Missing values and NaN of pandas are missing.

    Args:
        frame: a pandas or polars data frame, an Arrow table, or another object that exports one
            (``__arrow_c_stream__``).
        what: the argument it was given as, for messages.

    >>> open_frame(pa.table({"id": ["a", "b"], "age": [31, 25]}), what="nodes").columns
    ('id', 'age')
    """
    if type(frame).__module__.partition(".")[0] == "pandas":
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index()
        rows = pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
    else:
        rows = pa.table(frame)
    names = tuple(rows.schema.names)
    check_names(names, what=what, where="the table")
    rows = pa.table([_plain(column) for column in rows.columns], names=list(names))
    nested = next((part for part in rows.schema if pt.is_nested(part.type)), None)
    if nested is not None:
        raise DataError(
            f"`{what}` must have one value in each cell. Got {nested.type} in {nested.name!r}."
        )
    part = Part(Path(what), FRAME, rows=rows)
    return TableFile(what, part.path, names, tuple(rows.schema.types), parts=(part,))


def _plain(column: Any) -> Any:
    """Return a column without dictionary encoding and views of text, which few functions take."""
    if pt.is_dictionary(column.type):
        decoded = (
            pa.DictionaryArray.from_arrays(one.indices, _plain(one.dictionary)).dictionary_decode()
            for one in column.chunks
        )
        return pa.chunked_array(decoded, type=_plain(pa.array([], column.type.value_type)).type)
    return column.cast(pa.large_string()) if column.type == pa.string_view() else column


def open_source(source: Any, *, what: str, dialect: Dialect | None = None) -> TableFile:
    """Return a table from a file or from memory; ``dialect`` is of text files alone."""
    if is_frame(source):
        return open_frame(source, what=what)
    return open_table(source, what=what, dialect=dialect)
