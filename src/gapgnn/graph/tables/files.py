"""Tables as files: their columns and their rows in blocks, from any source.

CSV, TSV, Parquet and Arrow files, folders of them, standard input and the answers of queries
(:mod:`gapgnn.graph.tables.sources`) are read alike. Every problem of a file becomes an error of one
line. The meaning of the columns is the concern of :mod:`gapgnn.graph.tables.read`.

Arrow reads the text, because three promises need its reader: a row with too few cells is refused
and not filled up, a cell of foreign bytes stops nothing where a schema declares the columns, and an
error names its row. The reader of polars, tried in version 2.1, keeps none of the three.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pyarrow.types as pt

from gapgnn.errors import DataError, GapgnnError, InputError, UnavailableError, did_you_mean
from gapgnn.graph import Progress
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.sources import (
    DELIMITERS,
    STDIN,
    Part,
    as_source,
    may_be_csv,
    may_be_text,
    parts_of,
)

# "nan" is not among them on purpose: a written NaN is an invalid number, not a missing one.
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null"]

# Excel's "Unicode text" starts with one of these.
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Characters that a header without commas may be separated by.
OTHER_DELIMITERS = {";": "semicolon", "\t": "tab", "|": "|"}
# A table below this size (bytes) is read in full, to report all its problems at once.
SMALL = 1 << 24

_TYPE_ERROR = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?"
    r"CSV conversion error to (?P<type>[^:]+): (?P<value>.*)",
    re.DOTALL,
)


class ColumnError(DataError):
    """A column that cannot be what it is to be."""

    def __init__(self, message: str, *, column: str) -> None:
        super().__init__(message)
        self.column = column


class ColumnTypeError(ColumnError):
    """A text value that does not fit the type its column is read as."""

    def __init__(self, message: str, *, column: str, value: str, line: str | None) -> None:
        super().__init__(message, column=column)
        self.value = value
        self.line = line


@dataclass(frozen=True)
class TableFile:
    """A table: its purpose, its columns, and its rows in batches.

    Attributes:
        what: the option it was given by.
        path: its name, for messages.
        columns: their names.
        types: their Arrow types; of text, guessed from the first rows.
        dialect: how text is written.
        parts: what it is read from, one after the other.
    """

    what: str
    path: Path
    columns: tuple[str, ...]
    types: tuple[Any, ...]
    dialect: Dialect = field(default_factory=Dialect)
    parts: tuple[Part, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether types are guessed from text (CSV, TSV) and not stated by the file."""
        return self.parts[0].is_text

    @property
    def delimiter(self) -> str:
        """The character between the cells of a text file."""
        suffix = self.parts[0].suffix
        return (self.dialect.delimiter if suffix == ".csv" else None) or DELIMITERS[suffix]

    @property
    def separators(self) -> str:
        """The character between the cells of a text file, in words."""
        return {",": "commas", "\t": "tabs"}.get(self.delimiter, repr(self.delimiter))

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(part.size for part in self.parts)

    @property
    def is_small(self) -> bool:
        """Whether reading it in full takes little time."""
        # Text becomes about a tenth when it is compressed.
        return sum(part.size * (10 if part.is_zipped else 1) for part in self.parts) < SMALL

    def type_of(self, column: str) -> Any:
        """Return the Arrow type of one column; of a text file, the guess from its first rows."""
        return self.types[self.columns.index(column)]

    def check_column(self, option: str, column: str) -> str:
        """Return ``column`` if the table has it; otherwise suggest the nearest name."""
        if column in self.columns:
            return column
        raise DataError(
            f"`{option}` must be a column of {str(self.path)!r}. Got {column!r}."
            f"{did_you_mean(column, self.columns)} The columns are {listed(self.columns)}."
        )

    def nearest(self, column: str) -> str | None:
        """Return ``column`` if the table has it, otherwise the name it is nearest to, if any."""
        if column in self.columns:
            return column
        return next(iter(difflib.get_close_matches(column, self.columns, n=1)), None)

    def batches(
        self,
        columns: Sequence[str],
        *,
        types: Mapping[str, Any] | None = None,
        missing: Sequence[str] = MISSING,
        block_bytes: int = 1 << 24,
        block_rows: int = 1 << 20,
        progress: Progress | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns, a bounded block at a time.

        Args:
            columns: the columns to read; the others are skipped.
            types: Arrow types to read the columns of a text file as; guessed where left out.
            missing: the cells of a text file that mean a missing value.
            block_bytes: how much of a text file is parsed at a time.
            block_rows: the most rows of a Parquet or Arrow file in one batch.
            progress: called after every batch.
        """
        total, before = self.size, 0
        for part in self.parts:
            with _explained(self, part), part.opened() as (file, raw):
                if part.is_text:
                    source = self._text_batches(file, columns, types or {}, missing, block_bytes)
                elif part.rows is not None:
                    source = _frame_batches(part.rows.select(list(columns)), block_rows)
                elif part.suffix == ".parquet":
                    source = self._parquet_batches(file, columns, block_rows)
                else:
                    source = self._arrow_batches(file, columns, block_rows)
                share = 0.0
                for batch, share in source:
                    # Offsets and text of a damaged file are checked before anything looks inside.
                    batch.validate(full=True)
                    if progress is not None:
                        done = raw.tell() if part.is_text else int(share * part.size)
                        progress(self.what, before + done, total)
                    yield self._as_declared(batch)
            before += part.size

    def _as_declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the types of the table: parts may store a column in several."""
        if self.is_text or len(self.parts) == 1:
            return batch
        columns = [
            column if column.type == (wanted := self.type_of(name)) else column.cast(wanted)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.record_batch(columns, names=batch.schema.names)

    def _text_batches(
        self,
        file: Any,
        columns: Sequence[str],
        types: Mapping[str, Any],
        missing: Sequence[str],
        block_bytes: int,
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        # Arrow cannot parse the dialect's numbers; integer columns hold ids and need no dialect.
        spelled = [] if self.dialect.is_plain else [c for c in types if pt.is_floating(types[c])]
        types = {**types, **dict.fromkeys(spelled, pa.large_string())}
        rows = 0
        reader = _open_text(
            file, self, columns=columns, types=types, missing=missing, block=block_bytes
        )
        for batch in reader:
            for name in spelled:
                batch = self._with_numbers(batch, name, rows)
            rows += batch.num_rows
            yield batch, 0.0

    def _with_numbers(self, batch: pa.RecordBatch, name: str, rows: int) -> pa.RecordBatch:
        """Return a batch with one column of text read as numbers of the dialect."""
        place = batch.schema.get_field_index(name)
        if place < 0:
            return batch
        text = batch.column(place)
        found = self.dialect.plain_numbers(text)
        if found.null_count > text.null_count:
            odd = pc.and_(pc.is_null(found), pc.is_valid(text))
            first = int(pc.index(odd, True).as_py())
            value = repr(text[first].as_py())
            raise ColumnTypeError(
                f"Column `{name}` of {str(self.path)!r} must hold double values. Got {value}.",
                column=name,
                value=value,
                line=str(rows + first + 2),
            )
        return batch.set_column(place, name, found.cast(pa.float64()))

    def _parquet_batches(
        self, file: Any, columns: Sequence[str], block_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        # Without these two, Arrow keeps all it has read in memory until the end of the file.
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
            done, rows = 0, parquet.metadata.num_rows
            for batch in parquet.iter_batches(batch_size=block_rows, columns=list(columns)):
                done += batch.num_rows
                yield batch, done / rows

    def _arrow_batches(
        self, file: Any, columns: Sequence[str], block_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        with _open_arrow(file, columns) as arrow:
            # A stream does not say how many batches it has.
            count = getattr(arrow, "num_record_batches", None)
            stored = arrow if count is None else map(arrow.get_batch, range(count))
            for number, batch in enumerate(stored, start=1):
                for start in range(0, batch.num_rows, block_rows):
                    yield batch.slice(start, block_rows), number / (count or number)


def _frame_batches(rows: Any, block_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    done = 0
    for batch in rows.to_batches(max_chunksize=block_rows):
        done += batch.num_rows
        yield batch, done / rows.num_rows


def _open_arrow(file: Any, columns: Sequence[str] | None = None) -> Any:
    """Open an Arrow file, or a stream of batches as other programs write it."""
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
    if columns is None:
        return opened(file)
    with opened(file) as arrow:
        names = arrow.schema.names
    file.seek(0)
    wanted = [names.index(name) for name in columns]
    return opened(file, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def open_table(source: Any, *, what: str, dialect: Dialect | None = None) -> TableFile:
    """Check a table and read the names and types of its columns.

    Args:
        source: a file, a folder of files with the same columns, ``-`` for standard input, or a
            query.
        what: the option it was given by, for messages.
        dialect: how text is written; left out: a plain CSV file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "friends.csv").write_text("from,to\\n1,2\\n")
    ...     table = open_table(Path(folder, "friends.csv"), what="edges")
    ...     table.columns, [batch.num_rows for batch in table.batches(["to"])]
    (('from', 'to'), [1])
    """
    source = as_source(source)
    parts = parts_of(source, what=what)
    path = Path("stdin") if source == STDIN else Path(source.name)
    if isinstance(source, Path) and source != STDIN:
        path = source
    unread = TableFile(what, path, (), (), dialect or Dialect(), parts)
    schemas = []
    for part in parts:
        with _explained(unread, part), part.opened() as (file, _):
            schemas.append(_schema_of(file, unread, part))
            check_names(schemas[-1].names, what=what, where=repr(str(part.path)))
    types = _common_types(unread, schemas)
    table = replace(unread, columns=tuple(schemas[0].names), types=types)
    if table.is_text and not table.dialect.is_plain:
        return replace(table, types=_guessed_types(table))
    return table


def _schema_of(file: Any, table: TableFile, part: Part) -> Any:
    """Return the columns of one part; of text, their types are guesses."""
    if part.suffix == ".parquet":
        with pq.ParquetFile(file) as parquet:
            return parquet.schema_arrow
    if not part.is_text:
        with _open_arrow(file) as arrow:
            return arrow.schema
    _check_header(table, part)
    return _open_text(file, table, missing=MISSING, block=1 << 20).schema


def _common_types(table: TableFile, schemas: Sequence[Any]) -> tuple[Any, ...]:
    """Return the types of the columns of all parts, which must have the same columns."""
    first = schemas[0]
    for part, schema in zip(table.parts, schemas, strict=True):
        # The columns of text stand in one order, because the first part says which is which.
        in_order = (lambda names: names) if table.is_text else sorted
        if list(in_order(schema.names)) != list(in_order(first.names)):
            raise DataError(
                f"`{table.what}` must have the same columns in each part. Got "
                f"{listed(first.names)} in {str(table.parts[0].path)!r} and "
                f"{listed(schema.names)} in {str(part.path)!r}."
            )
    if table.is_text or len(schemas) == 1:
        return tuple(first.types)
    try:
        return tuple(pa.unify_schemas(schemas, promote_options="permissive").types)
    except pa.ArrowException as error:
        raise DataError(
            f"`{table.what}` must have columns of one type in all parts. Got "
            f"{str(table.path)!r}: {' '.join(str(error).split())[:200]}"
        ) from None


def check_names(columns: Sequence[str], *, what: str, where: str) -> None:
    """Refuse a table with two columns of one name."""
    repeated = sorted(column for column in columns if columns.count(column) > 1)
    if repeated:
        raise DataError(
            f"`{what}` must name each column once. Got {repeated[0]!r} twice in {where}."
        )


def _check_header(table: TableFile, part: Part) -> None:
    """Refuse UTF-16 and another delimiter, by the first line alone."""
    start = next(part.lines(), b"")[: 1 << 16]
    if start[:2] in UTF16_MARKS or b"\0" in start:
        raise _not_utf8(table, part, "UTF-16, which Excel calls Unicode text,")
    header = start.decode("utf-8-sig", errors="replace").strip("\r\n")
    others = {**OTHER_DELIMITERS, ",": ","}
    found = [mark for mark in others if mark in header]
    if table.delimiter in header or not found:
        return
    fix = f'pass `delimiter="{others[found[0]]}"`'
    if part.suffix == ".tsv":
        fix = "call the file .csv" if found[0] == "," else f"call the file .csv and {fix}"
    raise DataError(
        f"`{table.what}` must have columns separated by {table.separators}. Got one, {header!r}, "
        f"in {str(part.path)!r}; {fix}."
    )


def _guessed_types(table: TableFile) -> tuple[Any, ...]:
    """Return the type of each column, numbers being those of the dialect."""
    text = dict.fromkeys(table.columns, pa.large_string())
    part = table.parts[0]
    with _explained(table, part), part.opened() as (file, _):
        reader = _open_text(file, table, types=text, missing=MISSING, block=1 << 20)
        first = next(iter(reader), None)
    types = []
    for name, guess in zip(table.columns, table.types, strict=True):
        cells = None if first is None else first.column(name)
        if cells is None or cells.null_count == len(cells):
            types.append(pa.null())
        elif table.dialect.plain_numbers(cells).null_count == cells.null_count:
            types.append(pa.float64())
        else:
            is_numeric = pt.is_integer(guess) or pt.is_floating(guess)
            types.append(pa.string() if is_numeric else guess)
    return tuple(types)


def check_dialect(dialect: Dialect | None, *sources: Any) -> None:
    """Refuse a delimiter where no file is a CSV file, and quotes and header where none is text."""
    given = {} if dialect is None else dialect.to_dict()
    for key, fits, suffix in (
        ("delimiter", may_be_csv, ".csv"),
        ("quote", may_be_text, ".csv or .tsv"),
        ("header", may_be_text, ".csv or .tsv"),
    ):
        if key in given and not any(map(fits, sources)):
            got = " and ".join(repr(str(source)) for source in sources)
            raise InputError(f"`{key}` must come with a {suffix} file. Got {got}; leave it out.")


def _open_text(
    file: Any,
    table: TableFile,
    *,
    columns: Sequence[str] = (),
    types: Mapping[str, Any] | None = None,
    missing: Sequence[str],
    block: int,
) -> Any:
    quote = table.dialect.quote
    has_header = table.dialect.header == "first"
    names = None if has_header else list(table.columns) or _numbered(table)
    # One thread, because the reader's errors name the line only then.
    return pcsv.open_csv(
        file,
        read_options=pcsv.ReadOptions(use_threads=False, block_size=block, column_names=names),
        parse_options=pcsv.ParseOptions(
            delimiter=table.delimiter,
            newlines_in_values=True,
            quote_char=False if quote == "none" else quote,
        ),
        convert_options=pcsv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict(types or {}),
            null_values=list(missing),
            strings_can_be_null=True,
        ),
    )


def _numbered(table: TableFile) -> list[str]:
    """Return names for the columns of text without a header, as many as its first line has."""
    line = next(table.parts[0].lines(), b"")
    named = replace(table, dialect=replace(table.dialect, header="first"))
    read = _open_text(pa.BufferReader(line), named, missing=MISSING, block=1 << 20)
    return [f"column_{place}" for place in range(1, len(read.schema) + 1)]


@contextmanager
def _explained(table: TableFile, part: Part) -> Iterator[None]:
    """Turn errors of the readers into one line that names the file."""
    file = repr(str(table.path if len(table.parts) == 1 else part.path))
    try:
        yield
    except GapgnnError:
        raise
    except UnicodeDecodeError:
        raise _not_utf8(table, part) from None
    except PermissionError:
        raise UnavailableError(
            f"`{table.what}` must be readable. Got no permission for {file}."
        ) from None
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        if "invalid utf8" in reason.lower():
            raise _not_utf8(table, part) from None
        if "Empty CSV file" in reason:
            raise DataError(f"`{table.what}` must have rows. Got none in {file}.") from None
        mismatch = _TYPE_ERROR.match(str(error))
        if mismatch:
            column = table.columns[int(mismatch["column"])]
            value = mismatch["value"].removeprefix("invalid value ")
            raise ColumnTypeError(
                f"Column `{column}` of {file} must hold {mismatch['type']} values. Got {value}.",
                column=column,
                value=value,
                line=mismatch["line"],
            ) from None
        if "CSV parse error" in reason:
            reason = reason.removeprefix("CSV parse error: ")[:200]
            raise DataError(
                f"`{table.what}` must have the same columns in each row. Got {file}: {reason}"
            ) from None
        suffix = part.suffix.lstrip(".").upper()
        raise DataError(
            f"`{table.what}` must be a whole, undamaged {suffix} file. Got {file}: {reason[:200]}"
        ) from None


def _not_utf8(table: TableFile, part: Part, found: str | None = None) -> DataError:
    where = ""
    if found is None:
        found = "other bytes"
        if part.is_text:
            found, where = "other bytes, such as Latin-1 or Windows-1252,", _first_foreign(part)
    return DataError(
        f"`{table.what}` must be UTF-8 text. Got {found} in {where}{str(part.path)!r}; "
        "save the file as UTF-8 (in Excel: CSV UTF-8)."
    )


def _first_foreign(part: Part) -> str:
    """Return which line is the first that is not UTF-8, in words."""
    for number, line in enumerate(part.lines(), start=1):
        try:
            line.decode()
        except UnicodeDecodeError:
            return f"line {number} of "
    return ""


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return the first few names for a message, and the number of others.

    >>> listed(["age", "city", "note"], most=2)
    "'age', 'city' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
