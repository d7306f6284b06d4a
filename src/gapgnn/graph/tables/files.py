"""Open a table by its suffix and stream its rows: CSV, TSV, Parquet, Feather.

Whatever is wrong with a file becomes one line of the house form; what the columns mean is decided
elsewhere (:mod:`gapgnn.graph.tables.read`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from gapgnn.errors import DataError, GapgnnError, UnavailableError, did_you_mean
from gapgnn.graph import Progress

DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*DELIMITERS, ".parquet", ".feather")
# "nan" is deliberately not among them: a written NaN is a broken number, not a missing one.
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null"]

# Excel's "Unicode text" starts with one of these, and parses as columns of garbage.
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_TYPE_ERROR = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?"
    r"CSV conversion error to (?P<kind>[^:]+): (?P<value>.*)",
    re.DOTALL,
)


class ColumnTypeError(DataError):
    """A text value that does not fit the type its column is read as."""

    def __init__(self, message: str, *, column: str, value: str, line: str | None) -> None:
        super().__init__(message)
        self.column = column
        self.value = value
        self.line = line


@dataclass(frozen=True)
class TableFile:
    """A table on disk: what it is for, its columns, and its rows in batches."""

    what: str
    path: Path
    columns: tuple[str, ...]
    types: tuple[Any, ...]

    @property
    def is_text(self) -> bool:
        """Whether types are guessed from text (CSV, TSV) and not stated by the file."""
        return self.path.suffix.lower() in DELIMITERS

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
        with pa.OSFile(str(self.path)) as file:
            for batch in _open_text(
                file, self.path, columns=columns, types=types, missing=missing, block=block_bytes
            ):
                yield batch, file.tell(), total

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


def open_table(path: Path | str, *, what: str) -> TableFile:
    """Look at a table file: that it is there, whole, and what its columns are called.

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
    with _explained(TableFile(what, path, (), ())):
        if path.suffix.lower() in DELIMITERS:
            with path.open("rb") as raw:
                if raw.read(2) in UTF16_MARKS:
                    raise _not_utf8(TableFile(what, path, (), ()))
            with pa.OSFile(str(path)) as file:
                schema = _open_text(file, path, missing=MISSING, block=1 << 20).schema
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
    return TableFile(what, path, columns, tuple(schema.types))


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
    path: Path,
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
        parse_options=pcsv.ParseOptions(
            delimiter=DELIMITERS[path.suffix.lower()], newlines_in_values=True
        ),
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


def _not_utf8(table: TableFile) -> DataError:
    return DataError(
        f"`{table.what}` must be UTF-8 text. Got other bytes in {str(table.path)!r}; "
        "save the file as UTF-8."
    )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names for a message, the first few of many.

    >>> listed(["age", "city", "note"], most=2)
    "'age', 'city' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
