"""The results store: one file of JSON lines that survives a kill at any moment.

Why nothing finished is ever lost:

- *One write.* A record is one line and one ``write`` to a file opened for appending, followed by
  ``fsync`` before the record counts as done. A kill leaves all of a line, none of it, or its
  beginning at the very end of the file; earlier lines are never touched.
- *One writer at a time.* Appending takes an exclusive lock on the file, so two processes can share
  a folder. What is already there is not written again.
- *Repair under the lock.* A beginning without its line end is cut off by the next append, which
  holds the lock and so knows that nobody is still writing it. If only the line end is missing, the
  record is whole and is kept.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gapgnn.errors import UnavailableError
from gapgnn.evaluation.grid.records import FILE, Record, parse


class Store:
    """The records of one folder, read as they are now and appended durably.

    Nothing is created before the first append or :meth:`prepare`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(folder).records()
    []
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE

    def records(self) -> list[Record]:
        """Return every finished record, oldest first; other code versions included.

        A record of a newer format, or a damaged line before the last, is refused: appending to a
        file that is only half understood could lose what somebody else wrote.
        """
        finished, rest = _split(self._read())
        records = parse(finished, name=str(self.path))
        whole = _whole(rest)
        return records if whole is None else [*records, whole]

    def half_written(self) -> int:
        """Return the bytes of a half-written last line, which the next append removes."""
        rest = _split(self._read())[1]
        return 0 if _whole(rest) is not None else len(rest)

    def prepare(self) -> None:
        """Create folder and file where they are missing, or say why they cannot be written."""
        with self._locked():
            pass

    def append(self, record: Record) -> bool:
        """Add a record durably; return False if the same one is there already."""
        with self._locked() as descriptor:
            finished, rest = _split(self._read())
            records = parse(finished, name=str(self.path))
            start = b""
            whole = _whole(rest)
            if whole is not None:
                records.append(whole)
                start = b"\n"
            elif rest:
                os.ftruncate(descriptor, len(finished))
            identity = (record.key, record.experiment)
            is_new = all(identity != (other.key, other.experiment) for other in records)
            line = start + (record.to_json().encode() + b"\n" if is_new else b"")
            if line:
                self._write(descriptor, line)
            return is_new

    def _write(self, descriptor: int, line: bytes) -> None:
        before = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            if written != len(line):
                raise OSError(0, "the disk is full")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, before)
            raise UnavailableError(
                f"`{self.path}` must be writable. Got {error.strerror}; earlier results are safe."
            ) from None

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except NotADirectoryError as error:
            raise self._unwritable(error) from None
        except OSError as error:
            raise UnavailableError(
                f"`{self.path}` must be readable. Got {error.strerror}."
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, creating it durably, and hold its lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if is_new:
                _sync_folder(self.folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _unwritable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"`{self.folder}` must be a folder that can be written. Got {error.strerror}."
        )


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the finished lines and what follows the last line end."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _whole(rest: bytes) -> Record | None:
    """Return the record whose line end alone is missing, if that is what the rest is.

    A whole line that cannot be understood, such as one of a newer format, is refused like any
    other.
    """
    try:
        json.loads(rest)
    except ValueError:
        return None
    return parse(rest + b"\n", name="the last line of the results")[0]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
