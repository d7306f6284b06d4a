"""The ledger in one SQLite file: created whole or not at all, never replaced because it is damaged.

Why the file survives what it must (privacy page, section 6):

- *Kill.* Every change is one SQLite transaction. The next opener rolls an unfinished one back.
- *Power loss.* The rollback journal with ``synchronous=EXTRA``, which is ``FULL`` plus a sync of
  the folder after the journal is deleted. With ``FULL`` alone the deleted journal may come back
  after a power loss and undo a charge whose release has already left. A write-ahead log would be as
  durable, but it keeps recent charges in a second file that a copy of the first would miss.
- *Two processes.* Writers take the lock before they read (``BEGIN IMMEDIATE``), so nobody decides
  on a sum that another process is about to change.
- *Two machines.* Locks of a network file system hold on some servers and not on others, and two
  machines that both have the lock spend the same budget twice. Nothing is written to a ledger on
  one; several machines share a ledger on a server (:mod:`gapgnn.privacy.ledger.postgres`).
- *Two creators.* A new ledger is built under another name and linked into place, which fails if one
  is already there. A ledger is therefore never seen empty, and an empty file is a damaged one.

Versions. Version 4 normalises ids before they are hashed, and chains what is neither a grant nor a
charge (table ``notes``). Version 5 has the order of all rows and their signatures (table
``entries``). A file of version 3 or 4 is copied beside itself and upgraded, once, by the first
transaction that opens it, and the upgrade says so. An older program refuses the file from then on.
Versions 1 and 2 counted graphs and not people, and are refused.

The file is only ever opened through SQLite: closing any other descriptor of it would drop the locks
that another thread of this process holds.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gapgnn.errors import BusyError, InputError, IntegrityError, PrivacyError, UnavailableError
from gapgnn.privacy.ledger.chain import (
    ID_SPELLING,
    SCHEMA_VERSION,
    DamageError,
    broken_links,
    check_people_known,
    explain_settings,
    fill_settings,
    put_setting,
    seal_transaction,
    statements,
)
from gapgnn.privacy.ledger.mounts import network_file_system
from gapgnn.privacy.ledger.store import LedgerNotice, damaged, own_path

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.people import Hashes
    from gapgnn.privacy.ledger.store import Connection

APPLICATION_ID = 0x47415047
OLDEST_VERSION = 3
BUSY_SECONDS = 60.0
TYPES = {
    "text": "TEXT",
    "integer": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
}
# Hashes compared at a time, which fit into the cache.
_CHUNK = 1 << 14


class SQLiteConnection(sqlite3.Connection):
    """One transaction on a ledger file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.added: dict[tuple[str, int], str] = {}

    def now(self) -> str:
        """Return the time of this machine's clock."""
        return datetime.now(timezone.utc).isoformat(timespec="seconds")

    def count_on(self) -> None:
        """Do nothing: a number that was used is not given again."""

    def holds(self, population: int, part: int, hashes: Hashes) -> bool:
        """Tell whether a stored piece of a list of members is these hashes, to the byte.

        Read a little at a time, it takes a fifth of what two copies of it in fresh memory take.
        """
        where = "WHERE population = ? AND part = ?"
        if sys.version_info < (3, 11):
            query = f"SELECT hashes FROM members {where}"
            (raw,) = self.execute(query, (population, part)).fetchone()
            return np.array_equal(hashes, np.frombuffer(raw, dtype="<u8").reshape(-1, 2))
        query = f"SELECT rowid FROM members {where}"
        (row,) = self.execute(query, (population, part)).fetchone()
        with self.blobopen("members", "hashes", row, readonly=True) as blob:
            return all(
                blob.read(piece.nbytes) == piece.astype("<u8", copy=False).tobytes()
                for piece in (hashes[at : at + _CHUNK] for at in range(0, len(hashes), _CHUNK))
            )


class SQLiteStore:
    """A ledger in one file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def is_made(self) -> bool:
        """Tell whether there is a file; refuse one that somebody named and that is not there."""
        is_there = _is_there(self.path)
        if not is_there and self.path != own_path():
            raise InputError(
                f"the ledger {self.name!r} does not exist. Check the path, or make it with "
                f"`gapgnn ledger init {self.path}`."
            )
        return is_there

    def create(self, *, named: bool) -> bool:
        """Put a new, empty ledger at the path unless something is there; return whether it did."""
        # In this order: a journal seen while the ledger is missing can then only be an orphan.
        has_journal = _is_there(Path(f"{self.path}-journal"))
        if _is_there(self.path):
            return False
        if has_journal:
            raise IntegrityError(
                f"Ledger {self.path} is missing but its journal is there, so charges would be "
                "lost. Restore the ledger from a backup, or remove the journal to begin a new one."
            )
        if not named:
            self.is_made()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_local()
            descriptor, draft = tempfile.mkstemp(
                prefix=".ledger-", suffix=".new", dir=self.path.parent
            )
            os.close(descriptor)
            try:
                _build(draft)
                os.link(draft, self.path)
            except FileExistsError:
                return False  # another process was first, and its ledger is as good
            finally:
                os.unlink(draft)
            _sync_folder(self.path.parent)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnavailableError(
                f"Ledger {self.path} cannot be created: {reason}. Nothing was released. Name "
                "another file with GAPGNN_LEDGER."
            ) from None
        return True

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[Connection]:
        """Open the file for one transaction, after an upgrade if it is older."""
        if writing:
            self._check_local()
        try:
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(
                sqlite3.connect(
                    uri,
                    uri=True,
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                    factory=SQLiteConnection,
                )
            ) as db:
                db.execute("PRAGMA synchronous = EXTRA")
                # On macOS a plain sync stops at the drive's cache; elsewhere this changes nothing.
                db.execute("PRAGMA fullfsync = ON")
                if _checked_version(db, self.path) < SCHEMA_VERSION:
                    self._check_local()
                    _upgrade(db, self.path)
                db.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                yield db
                db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise damaged(self.name, error) from None

    def damage(self, db: Connection) -> list[str]:
        """Return what SQLite finds wrong with its file."""
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check").fetchall()]
        return [text for text in found if text != "ok"]

    def _check_local(self) -> None:
        """Refuse to write to a file that another machine may write to at the same time."""
        found = network_file_system(self.path.parent)
        if found is not None:
            raise UnavailableError(
                f"Ledger {self.path} lies on a network file system ({found}), where two machines "
                "may both hold its lock and spend a budget twice. Nothing was released. Move it to "
                "a local disk, or keep one ledger for all machines on a PostgreSQL server "
                "(`gapgnn ledger init postgresql://HOST/DATABASE`)."
            )

    def _unavailable(self, error: sqlite3.OperationalError) -> UnavailableError:
        """Return the error for a file that cannot be read or written now."""
        if "locked" in str(error):
            return BusyError(
                f"Ledger {self.path} is busy: another process held it for {BUSY_SECONDS:g} "
                "seconds. Nothing was released. Try again."
            )
        if "full" in str(error):
            return BusyError(
                f"Ledger {self.path} cannot be written: {error}. Nothing was released. Make room "
                "and try again."
            )
        return UnavailableError(
            f"Ledger {self.path} cannot be read or written: {error}. Nothing was released."
        )


def _is_there(path: Path) -> bool:
    """Tell whether there is a file; a folder that hides it is an error, not an empty ledger."""
    try:
        return path.exists()
    except OSError as error:
        raise UnavailableError(f"Ledger {path} cannot be read: {error.strerror}.") from None


def _build(draft: str) -> None:
    """Write an empty ledger into a file that nobody else knows."""
    with closing(sqlite3.connect(draft, isolation_level=None, factory=SQLiteConnection)) as db:
        db.executescript("PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA")
        db.execute("BEGIN")
        for statement in statements(TYPES):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        fill_settings(db)
        db.execute("COMMIT")


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power loss (Windows does so by itself)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checked_version(db: sqlite3.Connection, path: Path) -> int:
    """Return the file's version, or refuse the file."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise damaged(str(path), "it is not a gapgnn ledger")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise PrivacyError(
            f"Ledger {path} was written by a newer gapgnn. Got version {version}, this one knows "
            f"{SCHEMA_VERSION}. Upgrade gapgnn."
        )
    if version < 1:
        raise damaged(str(path), f"its version is {version}")
    if version < OLDEST_VERSION:
        raise PrivacyError(
            f"Ledger {path} was written before gapgnn 0.2. Got version {version}, this one reads "
            f"{OLDEST_VERSION} to {SCHEMA_VERSION}. Open it once with gapgnn 0.2, which upgrades "
            "it. Nothing was released."
        )
    return version


def _upgrade(db: SQLiteConnection, path: Path) -> None:
    """Copy a file of version 3 or 4 beside itself, then add what version 5 has.

    The members of version 3 stay as they are and are found by either spelling.
    """
    db.execute("BEGIN IMMEDIATE")
    version = _checked_version(db, path)
    if version == SCHEMA_VERSION:  # another process was first
        db.execute("COMMIT")
        return
    check_people_known(db, str(path))
    backup = _back_up(path, version)
    missing = ("notes", "entries") if version == 3 else ("entries",)
    if problems := broken_links(db, skip=missing):
        raise DamageError(problems[0])
    for table in missing:
        db.execute(next(text for text in statements(TYPES) if f"CREATE TABLE {table}" in text))
    if version == 3:
        put_setting(db, ID_SPELLING, "mixed")
    explain_settings(db, _last_moment(db))
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    seal_transaction(db)
    db.execute("COMMIT")
    warnings.warn(
        f"Ledger {path} was brought to version {SCHEMA_VERSION}, which chains all entries in one "
        f"order; the file as it was is {backup}.",
        LedgerNotice,
        stacklevel=2,
    )


def _last_moment(db: SQLiteConnection) -> str:
    """Return now, or the time of the last row if a clock was ahead."""
    (last,) = db.execute(
        "SELECT max(moment) FROM (SELECT max(charged_at) AS moment FROM charges UNION ALL "
        "SELECT max(granted_at) FROM grants UNION ALL SELECT max(noted_at) FROM notes)"
    ).fetchone()
    return max(db.now(), str(last or ""))


def _back_up(path: Path, version: int) -> Path:
    """Copy the ledger beside itself, whole or not at all, over no earlier copy."""
    source = f"{path.absolute().as_uri()}?mode=ro"
    try:
        descriptor, draft = tempfile.mkstemp(prefix=".ledger-", suffix=".old", dir=path.parent)
        os.close(descriptor)
        try:
            with (
                closing(sqlite3.connect(source, uri=True)) as before,
                closing(sqlite3.connect(draft)) as copy,
            ):
                before.backup(copy)
            for number in count(1):
                further = f".{number}" if number > 1 else ""
                backup = path.with_name(f"{path.name}.version-{version}{further}")
                try:
                    os.link(draft, backup)
                except FileExistsError:
                    continue
                break
        finally:
            os.unlink(draft)
        _sync_folder(path.parent)
    except OSError as error:
        raise UnavailableError(
            f"Ledger {path} is of version {version} and cannot be copied before it is brought to "
            f"version {SCHEMA_VERSION}: {error.strerror}. Nothing was changed or released."
        ) from None
    return backup
