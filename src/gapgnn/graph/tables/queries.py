"""Tables that a database answers: DuckDB, SQLite and PostgreSQL.

A query is read-only, asked once, and its answer is read as a Parquet file of the same columns would
be: numbers are numbers, and codes in a column of text stay codes. Decimal numbers become the
nearest floating-point numbers, as they do where they are read from text.
"""

from __future__ import annotations

import io
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.types as pt

from gapgnn.errors import (
    DataError,
    GapgnnError,
    InputError,
    UnavailableError,
    without_password,
)

ENGINES = ("duckdb", "sqlite", "postgresql")
ROWS = 1 << 16
CONNECT_SECONDS = 10
_WORD = re.compile(
    r"(?P<engine>duckdb|sqlite|postgres(?:ql)?):(?P<database>.*?)"
    r"\?\s*(?P<text>(?:SELECT|WITH|FROM|VALUES|TABLE)\b.*)",
    re.DOTALL | re.IGNORECASE,
)
_ENGINE = re.compile(r"(duckdb|sqlite|postgres(ql)?):", re.IGNORECASE)
# Types of PostgreSQL by their number, as Arrow reads them from text; any other one is text.
_POSTGRES = {
    16: pa.bool_(),
    **dict.fromkeys((20, 21, 23), pa.int64()),
    **dict.fromkeys((700, 701, 1700), pa.float64()),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, eq=False)
class Query:
    """A query and the database that answers it.

    Attributes:
        engine: one of :data:`ENGINES`.
        database: its file, or the address of a server.
        text: what is asked.
        kept: the answer once it is known, so that all who read it read the same rows.

    >>> query = Query.of("sqlite:bank.db?SELECT payer, payee FROM payments")
    >>> query.engine, query.database, query.stem
    ('sqlite', 'bank.db', 'bank')
    >>> str(Query.of("postgresql://me:secret@host/bank?SELECT 1 AS a, 2 AS b"))
    'postgresql://me@host/bank'
    """

    engine: str
    database: str
    text: str
    kept: list[Any] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, word: str) -> Query | None:
        """Return the query that a word is; None if it is none, such as the name of a file."""
        if not _ENGINE.match(word):
            return None
        found = _WORD.fullmatch(word.strip())
        if found is None or not found["database"]:
            raise InputError(
                "a query must be ENGINE:DATABASE?SELECT ..., such as "
                "'duckdb:payments.db?SELECT payer, payee FROM paid', with an engine of "
                f"{', '.join(ENGINES)}. Got {without_password(word)!r}."
            )
        engine = found["engine"].lower()
        engine = "postgresql" if engine.startswith("postgres") else engine
        return cls(engine, found["database"], found["text"].rstrip().rstrip(";"))

    @property
    def word(self) -> str:
        """The word of the command line that it was made of."""
        return f"{self.engine}:{self.database}?{self.text}"

    @property
    def name(self) -> str:
        """The name of the database, without server and user."""
        return Path(self.database.partition("?")[0]).name or self.engine

    @property
    def stem(self) -> str:
        """The name of the database, without a suffix."""
        return Path(self.name).stem

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process asks by itself: what is kept has no name.
        return type(self), (self.engine, self.database, self.text)

    def __str__(self) -> str:
        return without_password(f"{self.engine}:{self.database}")


def answer(query: Query, file: Any, *, what: str) -> None:
    """Write the answer of a query to a file in Arrow's format.

    Args:
        query: which database, and what is asked.
        file: open for writing.
        what: the option it was given by, for messages.
    """
    engines = {"duckdb": _duckdb, "sqlite": _sqlite, "postgresql": _postgres}
    try:
        with engines[query.engine](query) as (schema, batches):
            target = pa.schema([(part.name, _plain_type(part.type)) for part in schema])
            with pa.ipc.new_file(file, target) as writer:
                for batch in batches:
                    columns = [
                        _plain(column, part.type)
                        for column, part in zip(batch.columns, target, strict=True)
                    ]
                    writer.write_batch(pa.record_batch(columns, schema=target))
    except GapgnnError:
        raise
    except ImportError as error:
        raise UnavailableError(
            f"`{what}` as a query needs the package {error.name}. Install it with `pip install "
            "'gapgnn[sql]'`."
        ) from None
    except Exception as error:
        reason = without_password(" ".join(str(error).split()))[:300]
        raise UnavailableError(
            f"`{what}` must be a query that {str(query)!r} answers. Got {reason}"
        ) from None
    file.flush()


def _plain_type(arrow_type: Any) -> Any:
    if pt.is_decimal(arrow_type):
        is_whole = arrow_type.scale == 0 and arrow_type.precision <= 18
        return pa.int64() if is_whole else pa.float64()
    return arrow_type


def _plain(column: Any, arrow_type: Any) -> Any:
    """Return a column of decimals as numbers: by their text, so the nearest one is taken."""
    if pt.is_decimal(column.type) and pt.is_floating(arrow_type):
        column = column.cast(pa.string())
    return column.cast(arrow_type)


@contextmanager
def _duckdb(query: Query) -> Iterator[tuple[Any, Iterable[Any]]]:
    import duckdb

    _check_database(query)
    with duckdb.connect(query.database, read_only=True) as link:
        if len(link.extract_statements(query.text)) != 1:
            raise DataError("a query must be one statement. Got several.")
        found: Any = link.sql(query.text)
        # Before version 2 it had another name.
        reader = (getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader)(ROWS)
        yield reader.schema, reader


def _check_database(query: Query) -> None:
    if not Path(query.database).is_file():
        raise UnavailableError(f"a query must name a database that is there. Got {str(query)!r}.")


@contextmanager
def _sqlite(query: Query) -> Iterator[tuple[Any, Iterable[Any]]]:
    _check_database(query)
    address = f"{Path(query.database).resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as link:
        # One snapshot for the two questions.
        link.execute("BEGIN")
        names = [about[0] for about in link.execute(query.text).description]
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        found = [f"group_concat(DISTINCT typeof({name}))" for name in quoted]
        # Any cell of SQLite may have a type of its own, so they are looked at first.
        (seen,) = link.execute(f"SELECT {', '.join(found)} FROM ({query.text})")
        schema = pa.schema(list(zip(names, map(_sqlite_type, seen), strict=True)))
        cursor = link.execute(query.text)
        yield schema, _sqlite_batches(cursor, schema)


def _sqlite_type(seen: str | None) -> Any:
    """Return the Arrow type of a column by the types of its cells."""
    types = set((seen or "null").split(",")) - {"null"}
    if not types:
        return pa.null()
    if types <= {"integer", "real"}:
        return pa.int64() if types == {"integer"} else pa.float64()
    return pa.large_binary() if types == {"blob"} else pa.large_string()


def _sqlite_batches(cursor: Any, schema: Any) -> Iterator[Any]:
    while rows := cursor.fetchmany(ROWS):
        columns = []
        for cells, part in zip(zip(*rows, strict=True), schema, strict=True):
            make = _MADE_OF.get(part.type)
            if make is not None:
                cells = tuple(None if cell is None else make(cell) for cell in cells)
            columns.append(pa.array(cells, part.type))
        yield pa.record_batch(columns, schema=schema)


def _as_text(cell: Any) -> str:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


# What cells of several types become, one by one.
_MADE_OF: dict[Any, Callable[[Any], Any]] = {pa.large_string(): _as_text, pa.float64(): float}


@contextmanager
def _postgres(query: Query) -> Iterator[tuple[Any, Iterable[Any]]]:
    import psycopg

    # A double slash may be left out; what libpq takes behind a ? stays in the address.
    address = f"postgresql:{query.database}"
    connected = psycopg.connect(address, connect_timeout=CONNECT_SECONDS)
    with connected as link, link.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
        cursor.execute("SET LOCAL datestyle = 'ISO'")
        # The text is the user's own query, as it would be typed into psql.
        cursor.execute(f"SELECT * FROM ({query.text}) AS answer LIMIT 0")
        about = cursor.description or []
        types = [(one.name, _POSTGRES.get(one.type_code, pa.large_string())) for one in about]
        copy = f"COPY ({query.text}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
        with cursor.copy(copy) as blocks:
            file = io.BufferedReader(_Blocks(iter(blocks)))
            if not file.peek(1):
                yield pa.schema(types), ()
                return
            reader = pcsv.open_csv(
                pa.PythonFile(file, mode="r"),
                read_options=pcsv.ReadOptions(column_names=[name for name, _ in types]),
                parse_options=pcsv.ParseOptions(newlines_in_values=True),
                convert_options=pcsv.ConvertOptions(
                    column_types={name: pa.large_string() for name, _ in types},
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            schema = pa.schema(types)
            yield schema, (_parsed(batch, schema) for batch in reader)


def _parsed(batch: Any, schema: Any) -> Any:
    """Return a block of text with the types of a table."""
    columns = [_cells(column, part.type) for column, part in zip(batch, schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _cells(text: Any, arrow_type: Any) -> Any:
    """Return a column of text as another type; a cell that is none of it, like infinity, is null.

    One cell must not decide whether the others can be read (privacy page, section 2).

    >>> _cells(pa.array(["2024-01-01", "infinity"]), pa.date32()).null_count
    1
    """
    try:
        return text.cast(arrow_type)
    except pa.ArrowInvalid:
        return pa.array([_cell(cell, arrow_type) for cell in text], arrow_type)


def _cell(cell: Any, arrow_type: Any) -> Any:
    try:
        return cell.cast(arrow_type).as_py()
    except (pa.ArrowInvalid, OverflowError):
        return None


class _Blocks(io.RawIOBase):
    """The blocks of a COPY as a file."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        super().__init__()
        self._blocks, self._left = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = memoryview(block)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
