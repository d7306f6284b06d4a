"""Where a table comes from: a file, a folder of parts, standard input or a query.

A source becomes a list of parts that are read one after the other. What can be read only once,
standard input and the answer of a database, is kept in a temporary file that nobody else can open
and that is gone when the process ends, however it ends.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from gapgnn.errors import DataError, UnavailableError, did_you_mean
from gapgnn.graph.tables.queries import Query, answer

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ARROW = (".feather", ".arrow")
SUFFIXES = (*DELIMITERS, ".parquet", *ARROW)
ZIPPED = ".gz"
STDIN = Path("-")
# Instead of a suffix, for a table in memory.
FRAME = "frame"
# What a file begins with that says its format by itself.
MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow"}
GZIP = b"\x1f\x8b"

Source: TypeAlias = Path | Query


class Spool(io.RawIOBase):
    """A temporary file without a name, and readers of it that have positions of their own.

    >>> spool = Spool()
    >>> _ = spool.file.write(b"abc")
    >>> spool.reader().read(), spool.reader().read(), spool.size
    (b'abc', b'abc', 3)
    """

    def __init__(self, owner: Spool | None = None) -> None:
        super().__init__()
        # Opened without a name: there is nothing to remove, even after a kill. The first object
        # closes it, and its readers keep that one alive.
        self._owner = owner
        self.file: Any = tempfile.TemporaryFile() if owner is None else owner.file  # noqa: SIM115
        self._at = 0

    def reader(self) -> Spool:
        """Return another reader of the same file, at its beginning."""
        self.file.flush()
        return Spool(self._owner or self)

    def close(self) -> None:
        """Close the file, if this is its first object."""
        if self._owner is None and not self.closed:
            self.file.close()
        super().close()

    @property
    def size(self) -> int:
        """Number of bytes."""
        self.file.flush()
        return os.fstat(self.file.fileno()).st_size

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as much as there is, at the reader's own position."""
        found = os.pread(self.file.fileno(), len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at


@dataclass(frozen=True)
class Part:
    """One file of a table.

    Attributes:
        path: its name, for messages.
        suffix: its format, one of :data:`SUFFIXES`.
        is_zipped: whether it is compressed with gzip, which text files may be.
        spool: what is read instead of the file of this name.
        rows: the Arrow table, of a table in memory.
    """

    path: Path
    suffix: str
    is_zipped: bool = False
    spool: Spool | None = field(default=None, repr=False, compare=False)
    rows: Any = field(default=None, repr=False, compare=False)

    @property
    def is_text(self) -> bool:
        """Whether it is CSV or TSV."""
        return self.suffix in DELIMITERS

    @property
    def size(self) -> int:
        """Number of bytes, compressed where it is."""
        if self.rows is not None:
            return int(self.rows.nbytes)
        return self.path.stat().st_size if self.spool is None else self.spool.size

    @contextmanager
    def opened(self) -> Iterator[tuple[Any, Any]]:
        """Yield the file as Arrow reads it, and the file whose position says how much is read."""
        if self.rows is not None:
            raw: Any = pa.BufferReader(b"")
        elif self.spool is None:
            raw = pa.OSFile(str(self.path))
        else:
            raw = pa.PythonFile(self.spool.reader(), mode="r")
        with raw:
            if self.is_zipped:
                with pa.CompressedInputStream(raw, "gzip") as unzipped:
                    yield unzipped, raw
            else:
                yield raw, raw

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of a text file."""
        raw: Any = self.path.open("rb") if self.spool is None else self.spool.reader()
        with raw, gzip.open(raw) if self.is_zipped else io.BufferedReader(raw) as file:
            yield from file


def as_source(word: Path | str | Query) -> Source:
    """Return the source that a word names: a path, ``-``, or a query.

    >>> as_source("friends.csv"), as_source("duckdb:bank.db?SELECT * FROM paid").name
    (PosixPath('friends.csv'), 'bank.db')
    """
    if isinstance(word, str):
        return Query.of(word) or Path(word)
    return word


def parts_of(source: Source, *, what: str) -> tuple[Part, ...]:
    """Return the files of a source, checked, in the order they are read in.

    Args:
        source: a file, a folder of files with one suffix, ``-`` for standard input, or a query.
        what: the option it was given by, for messages.
    """
    if isinstance(source, Query):
        return (Part(Path(source.name), ".arrow", spool=_answered(source, what)),)
    if source == STDIN:
        return (_from_stdin(sys.stdin, what),)
    if source.is_dir():
        return _of_folder(source, what)
    found = _of_file(source)
    if found is None:
        raise DataError(
            f"`{what}` must be a {', '.join(SUFFIXES)} file, a folder of such files, - for "
            f"standard input, or a query. Got {str(source)!r}."
        )
    check_file(source, what=what)
    return (found,)


def may_be_csv(source: Any) -> bool:
    """Return whether a source may be a file whose delimiter can be chosen.

    >>> may_be_csv("a.csv.gz"), may_be_csv("a.tsv"), may_be_csv("-")
    (True, False, True)
    """
    return _is_text(source, (".csv",))


def may_be_text(source: Any) -> bool:
    """Return whether a source may be a text file."""
    return _is_text(source, tuple(DELIMITERS))


def _is_text(source: Any, suffixes: tuple[str, ...]) -> bool:
    path = as_source(source)
    if isinstance(path, Query):
        return False
    if path.is_dir():
        return any(_is_text(entry, suffixes) for entry in _entries(path))
    return path == STDIN or path.name.lower().removesuffix(ZIPPED).endswith(suffixes)


def _of_file(path: Path) -> Part | None:
    """Return a file by its suffix; None where that says nothing."""
    suffix = path.suffix.lower()
    if suffix == ZIPPED and Path(path.stem).suffix.lower() in DELIMITERS:
        return Part(path, Path(path.stem).suffix.lower(), is_zipped=True)
    return Part(path, suffix) if suffix in SUFFIXES else None


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder; names that begin with . or _ are not part of a table."""
    return sorted(entry for entry in folder.iterdir() if entry.name[0] not in "._")


def _of_folder(folder: Path, what: str) -> tuple[Part, ...]:
    """Return the files of a folder, which must be of one format."""
    try:
        entries = _entries(folder)
    except OSError as error:
        raise UnavailableError(
            f"`{what}` must be readable. Got {str(folder)!r}: {error.strerror}."
        ) from None
    parts = [_of_file(entry) for entry in entries]
    inner = next((entry for entry in entries if entry.is_dir()), None)
    found = tuple(part for part in parts if part is not None)
    suffixes = sorted({part.suffix for part in found})
    if not entries:
        raise UnavailableError(
            f"`{what}` must be a file or a folder of files. Got {str(folder)!r}, which is a folder "
            "with nothing in it."
        )
    if inner is not None or len(found) < len(parts) or len(suffixes) != 1:
        got = f"{len(found)} such files"
        odd = next((e for e, part in zip(entries, parts, strict=True) if part is None), None)
        got += f" and {odd.name!r}" if odd is not None else ""
        got = f"{', '.join(suffixes)} files" if len(suffixes) > 1 else got
        raise DataError(
            f"`{what}` must be a folder of {', '.join(SUFFIXES)} files, all of one format. Got "
            f"{got} in {str(folder)!r}."
        )
    for part in found:
        check_file(part.path, what=what)
    return found


@functools.cache
def _from_stdin(stdin: Any, what: str) -> Part:
    """Return what stands in standard input, which can be read only once; the first bytes tell."""
    spool = Spool()
    source = getattr(stdin, "buffer", stdin)
    try:
        while block := source.read(1 << 20):
            spool.file.write(block)
        start = spool.reader().read(8) or b""
    except OSError as error:
        raise UnavailableError(
            f"`{what}` as standard input needs room in {tempfile.gettempdir()!r} (TMPDIR). Got "
            f"{error.strerror}."
        ) from error
    if not start:
        raise DataError(f"`{what}` must not be empty. Got nothing in standard input.")
    found = next((suffix for magic, suffix in MAGIC.items() if start.startswith(magic)), ".csv")
    return Part(STDIN, found, is_zipped=start.startswith(GZIP), spool=spool)


def _answered(query: Query, what: str) -> Spool:
    """Return the answer of a query, which is asked once."""
    if not query.kept:
        spool = Spool()
        answer(query, spool.file, what=what)
        query.kept.append(spool)
    found: Spool = query.kept[0]
    return found


def check_file(path: Path, *, what: str) -> None:
    """Raise unless ``path`` is a file that is not empty; suggest the nearest name beside it."""
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
