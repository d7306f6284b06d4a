"""Open a table by its suffix and stream its rows: CSV, TSV, Parquet, Feather.

Whatever is wrong with a file becomes one line of the house form; what the columns mean is decided
elsewhere (:mod:`gapgnn.graph.tables.read`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*DELIMITERS, ".parquet", ".feather")
# "nan" is deliberately not among them: a written NaN is a broken number, not a missing one.
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null"]

# Excel's "Unicode text" starts with one of these, and parses as columns of garbage.
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# What a shell makes hard to type, and what a table may write instead of one character.
SPELLED_OUT = {"tab": "\t", "space": " ", "semicolon": ";"}
ALSO = {" ": " \u00a0\u202f", "'": "'\u2019"}
THOUSANDS = (".", ",", "'", " ")
# Characters that a header without commas may be separated by.
OTHER_DELIMITERS = {";": "semicolon", "\t": "tab", "|": "|"}
# A table this small is read in full to find everything that is wrong with it.
SMALL = 1 << 24

_TYPE_ERROR = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?"
    r"CSV conversion error to (?P<kind>[^:]+): (?P<value>.*)",
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
class Dialect:
    """How the cells of a table are written: what is between them, and how numbers are spelled.

    Attributes:
        delimiter: between the cells of a ``.csv`` file, one character, ``semicolon`` or ``tab``;
            None is a comma. A ``.tsv`` file has tabs.
        decimal: the decimal point, ``.`` or ``,``.
        thousands: between groups of three digits: ``.``, ``,``, ``'``, a space (or ``space``);
            None where there is nothing.

    >>> german = Dialect(delimiter=";", decimal=",", thousands=".")
    >>> german.plain_numbers(pa.array(["1.234,5", "7", "1.5", "old"])).to_pylist()
    ['1234.5', '7', None, None]
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        for key in ("delimiter", "thousands"):
            given = getattr(self, key)
            object.__setattr__(self, key, SPELLED_OUT.get(given, given))
        mark = self.delimiter
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark.isalnum()):
            raise InputError(f"`delimiter` must be one character, semicolon or tab. Got {mark!r}.")
        if mark is not None and mark in '\r\n"-+.':
            raise InputError(f"`delimiter` must not be part of a cell. Got {mark!r}.")
        if self.decimal not in (".", ","):
            raise InputError(f"`decimal` must be '.' or ','. Got {self.decimal!r}.")
        if self.thousands not in (None, *THOUSANDS):
            raise InputError(
                f"`thousands` must be '.', ',', \"'\" or space. Got {self.thousands!r}."
            )
        if self.thousands == self.decimal:
            raise InputError(
                f"`thousands` must differ from the decimal point. Got {self.decimal!r} for both; "
                f'say `decimal="{"," if self.decimal == "." else "."}"` too.'
            )

    @property
    def is_plain(self) -> bool:
        """Whether numbers are spelled as programs do."""
        return self.decimal == "." and self.thousands is None

    @property
    def number(self) -> str:
        """What a cell must look like to be a number, as a regular expression."""
        point = re.escape(self.decimal)
        digits = "[0-9]+"
        if self.thousands is not None:
            digits = f"(?:[0-9]{{1,3}}(?:{self._groups}[0-9]{{3}})+|[0-9]+)"
        return f"^[+-]?(?:{digits}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?$"

    @property
    def _groups(self) -> str:
        return f"[{ALSO.get(self.thousands or '', self.thousands)}]"

    def plain_numbers(self, text: Any) -> Any:
        """Return an Arrow column of text with each number spelled plainly, null for other cells."""
        text = pc.utf8_trim_whitespace(text)
        found = pc.if_else(pc.match_substring_regex(text, self.number), text, None)
        if self.thousands is not None:
            found = pc.replace_substring_regex(found, self._groups, "")
        return found if self.decimal == "." else pc.replace_substring(found, self.decimal, ".")

    @classmethod
    def spelling_of(cls, cells: Collection[str]) -> Dialect | None:
        """Return how numbers are spelled if every cell is one, in some dialect.

        >>> Dialect.spelling_of(["1.234,5", "7"])
        Dialect(delimiter=None, decimal=',', thousands='.')
        >>> Dialect.spelling_of(["7", "old"]) is None
        True
        """
        for decimal in (".", ","):
            for thousands in (None, *(mark for mark in THOUSANDS if mark != decimal)):
                dialect = cls(decimal=decimal, thousands=thousands)
                pattern = re.compile(dialect.number)
                if all(pattern.match(cell.strip()) for cell in cells):
                    return dialect
        return None

    @property
    def words(self) -> list[str]:
        """The words of a command line that declare this dialect.

        >>> Dialect(delimiter="tab", decimal=",").words
        ['--delimiter', 'tab', '--decimal', ',']
        """
        names = {mark: name for name, mark in SPELLED_OUT.items()}
        return [
            word
            for key, value in self.to_dict().items()
            for word in (f"--{key}", names.get(value, value))
        ]

    def to_dict(self) -> dict[str, str]:
        """Return what differs from a plain CSV file, as keyword arguments."""
        given = {
            "delimiter": self.delimiter,
            "decimal": None if self.decimal == "." else self.decimal,
            "thousands": self.thousands,
        }
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class TableFile:
    """A table on disk: what it is for, its columns, and its rows in batches."""

    what: str
    path: Path
    columns: tuple[str, ...]
    types: tuple[Any, ...]
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def is_text(self) -> bool:
        """Whether types are guessed from text (CSV, TSV) and not stated by the file."""
        return self.path.suffix.lower() in DELIMITERS

    @property
    def delimiter(self) -> str:
        """What stands between the cells of a text file."""
        suffix = self.path.suffix.lower()
        return (self.dialect.delimiter if suffix == ".csv" else None) or DELIMITERS[suffix]

    @property
    def separators(self) -> str:
        """What stands between the cells of a text file, in words."""
        return {",": "commas", "\t": "tabs"}.get(self.delimiter, repr(self.delimiter))

    @property
    def is_small(self) -> bool:
        """Whether reading it in full takes no time worth speaking of."""
        return self.path.stat().st_size < SMALL

    def type_of(self, column: str) -> Any:
        """Return the Arrow type of one column; of a text file, the guess from its first rows."""
        return self.types[self.columns.index(column)]

    def check_column(self, option: str, column: str) -> str:
        """Return ``column`` if the table has it; otherwise offer the nearest name."""
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
            missing: what stands for a missing value in a text file.
            block_bytes: how much of a text file is parsed at a time.
            block_rows: the most rows of a Parquet or Feather file in one batch.
            progress: called after every batch.
        """
        with _explained(self):
            if self.is_text:
                source = self._text_batches(columns, types or {}, missing, block_bytes)
            elif self.path.suffix.lower() == ".parquet":
                source = self._parquet_batches(columns, block_rows)
            else:
                source = self._feather_batches(columns, block_rows)
            for batch, done, total in source:
                # Offsets and text of a damaged file are checked before anything looks inside.
                batch.validate(full=True)
                if progress is not None:
                    progress(self.what, done, total)
                yield batch

    def _text_batches(
        self,
        columns: Sequence[str],
        types: Mapping[str, Any],
        missing: Sequence[str],
        block_bytes: int,
    ) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        total = self.path.stat().st_size
        # Only the dialect can read its own numbers; whole numbers that are asked for are ids.
        spelled = [] if self.dialect.is_plain else [c for c in types if pt.is_floating(types[c])]
        types = {**types, **dict.fromkeys(spelled, pa.large_string())}
        rows = 0
        with pa.OSFile(str(self.path)) as file:
            for batch in _open_text(
                file, self, columns=columns, types=types, missing=missing, block=block_bytes
            ):
                for name in spelled:
                    batch = self._with_numbers(batch, name, rows)
                rows += batch.num_rows
                yield batch, file.tell(), total

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
        self, columns: Sequence[str], block_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        # Without these two, Arrow holds on to what it has read until the end of the file.
        with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 20) as file:
            done = 0
            for batch in file.iter_batches(batch_size=block_rows, columns=list(columns)):
                done += batch.num_rows
                yield batch, done, file.metadata.num_rows

    def _feather_batches(
        self, columns: Sequence[str], block_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        options = pa.ipc.IpcReadOptions(included_fields=[self.columns.index(c) for c in columns])
        with pa.OSFile(str(self.path)) as raw, pa.ipc.open_file(raw, options=options) as file:
            for index in range(file.num_record_batches):
                stored = file.get_batch(index)
                for start in range(0, stored.num_rows, block_rows):
                    yield stored.slice(start, block_rows), index + 1, file.num_record_batches


def open_table(path: Path | str, *, what: str, dialect: Dialect | None = None) -> TableFile:
    """Look at a table file: that it is there, whole, and what its columns are called.

    Args:
        path: the file.
        what: the option it was given by, for messages.
        dialect: how its cells are written; left out: as programs write them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "friends.csv").write_text("from,to\\n1,2\\n")
    ...     table = open_table(Path(folder, "friends.csv"), what="edges")
    ...     table.columns, [batch.num_rows for batch in table.batches(["to"])]
    (('from', 'to'), [1])
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"`{what}` must be a {', '.join(SUFFIXES)} file. Got {str(path)!r}.")
    check_file(path, what=what)
    unread = TableFile(what, path, (), (), dialect or Dialect())
    with _explained(unread):
        if unread.is_text:
            _check_header(unread)
            with pa.OSFile(str(path)) as file:
                schema = _open_text(file, unread, missing=MISSING, block=1 << 20).schema
        elif path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as parquet:
                schema = parquet.schema_arrow
        else:
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as feather:
                schema = feather.schema
        columns = tuple(schema.names)
    repeated = {column for column in columns if columns.count(column) > 1}
    if repeated:
        raise DataError(
            f"`{what}` must name each column once. Got {sorted(repeated)[0]!r} twice in "
            f"{str(path)!r}."
        )
    table = TableFile(what, path, columns, tuple(schema.types), unread.dialect)
    if table.is_text and not table.dialect.is_plain:
        return replace(table, types=_guessed_types(table))
    return table


def _check_header(table: TableFile) -> None:
    """Refuse two bytes per character, and another delimiter, by the line of column names alone."""
    with table.path.open("rb") as raw:
        start = raw.readline(1 << 16)
    if start[:2] in UTF16_MARKS or b"\0" in start:
        raise _not_utf8(table, "UTF-16, which Excel calls Unicode text,")
    header = start.decode("utf-8-sig", errors="replace").strip("\r\n")
    others = {**OTHER_DELIMITERS, ",": ","}
    found = [mark for mark in others if mark in header]
    if table.delimiter in header or not found:
        return
    fix = f'pass `delimiter="{others[found[0]]}"`'
    if table.path.suffix.lower() == ".tsv":
        fix = "call the file .csv" if found[0] == "," else f"call the file .csv and {fix}"
    raise DataError(
        f"`{table.what}` must have columns separated by {table.separators}. Got one, {header!r}, "
        f"in {str(table.path)!r}; {fix}."
    )


def _guessed_types(table: TableFile) -> tuple[Any, ...]:
    """Return the type of each column, numbers being those of the dialect."""
    text = dict.fromkeys(table.columns, pa.large_string())
    with _explained(table), pa.OSFile(str(table.path)) as file:
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


def check_delimiter(dialect: Dialect | None, *files: Path | str) -> None:
    """Refuse a delimiter that none of the files can have."""
    given = None if dialect is None else dialect.delimiter
    if given is None or any(Path(file).suffix.lower() == ".csv" for file in files):
        return
    got = " and ".join(repr(str(file)) for file in files)
    raise InputError(f"`delimiter` must come with a .csv file. Got {got}; leave it out.")


def check_file(path: Path, *, what: str) -> None:
    """Raise unless ``path`` is a file with something in it; offer the nearest name beside it."""
    try:
        if path.is_file():
            if path.stat().st_size == 0:
                raise DataError(f"`{what}` must not be empty. Got {str(path)!r} with 0 bytes.")
            return
        state = "which is a folder" if path.is_dir() else "which is not there"
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError as error:
        state, beside = f"which cannot be read ({error.strerror})", []
    hint = did_you_mean(path.name, beside) if not path.is_dir() else ""
    raise UnavailableError(f"`{what}` must be a file. Got {str(path)!r}, {state}.{hint}")


def _open_text(
    file: Any,
    table: TableFile,
    *,
    columns: Sequence[str] = (),
    types: Mapping[str, Any] | None = None,
    missing: Sequence[str],
    block: int,
) -> Any:
    # One thread, because only then do the errors of the reader name the line.
    return pcsv.open_csv(
        file,
        read_options=pcsv.ReadOptions(use_threads=False, block_size=block),
        parse_options=pcsv.ParseOptions(delimiter=table.delimiter, newlines_in_values=True),
        convert_options=pcsv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict(types or {}),
            null_values=list(missing),
            strings_can_be_null=True,
        ),
    )


@contextmanager
def _explained(table: TableFile) -> Iterator[None]:
    """Turn what the readers raise into one line that names the file."""
    file = repr(str(table.path))
    try:
        yield
    except GapgnnError:
        raise
    except UnicodeDecodeError:
        raise _not_utf8(table) from None
    except PermissionError:
        raise UnavailableError(
            f"`{table.what}` must be readable. Got no permission for {file}."
        ) from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        if "invalid utf8" in reason.lower():
            raise _not_utf8(table) from None
        if "Empty CSV file" in reason:
            raise DataError(f"`{table.what}` must have rows. Got none in {file}.") from None
        mismatch = _TYPE_ERROR.match(str(error))
        if mismatch:
            column = table.columns[int(mismatch["column"])]
            value = mismatch["value"].removeprefix("invalid value ")
            raise ColumnTypeError(
                f"Column `{column}` of {file} must hold {mismatch['kind']} values. Got {value}.",
                column=column,
                value=value,
                line=mismatch["line"],
            ) from None
        if "CSV parse error" in reason:
            reason = reason.removeprefix("CSV parse error: ")[:200]
            raise DataError(
                f"`{table.what}` must have the same columns in each row. Got {file}: {reason}"
            ) from None
        kind = table.path.suffix.lower().lstrip(".").upper()
        raise DataError(
            f"`{table.what}` must be a whole, undamaged {kind} file. Got {file}: {reason[:200]}"
        ) from None


def _not_utf8(table: TableFile, found: str | None = None) -> DataError:
    where = ""
    if found is None:
        found = "other bytes"
        if table.is_text:
            found, where = "other bytes, such as Latin-1 or Windows-1252,", _first_foreign(table)
    return DataError(
        f"`{table.what}` must be UTF-8 text. Got {found} in {where}{str(table.path)!r}; "
        "save the file as UTF-8 (in Excel: CSV UTF-8)."
    )


def _first_foreign(table: TableFile) -> str:
    """Return which line is the first that is not UTF-8, in words."""
    with table.path.open("rb") as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number} of "
    return ""


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, the first few of many.

    >>> listed(["age", "city", "note"], most=2)
    "'age', 'city' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
