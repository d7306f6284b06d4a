"""The ledger's file: created whole or not at all, and never replaced because it is damaged.

Why the file survives what it must (privacy page, section 6):

- *Kill.* Every change is one SQLite transaction. The next opener rolls an unfinished one back.
- *Power loss.* The rollback journal with ``synchronous=EXTRA``, which is ``FULL`` plus a sync of
  the folder after the journal is deleted. With ``FULL`` alone the deleted journal may come back
  after a power loss and undo a charge whose release has already left. A write-ahead log would be as
  durable, but it keeps recent charges in a second file that a copy of the first would miss, and it
  does not work on network file systems.
- *Two processes.* Writers take the lock before they read (``BEGIN IMMEDIATE``), so nobody decides
  on a sum that another process is about to change.
- *Two creators.* A new ledger is built under another name and linked into place, which fails if one
  is already there. A ledger is therefore never seen empty, and an empty file is a damaged one.

Versions. Version 2 added the table ``claims``: who draws on a charge. A file of version 1 is
upgraded inside the first transaction that writes, together with what that one writes; readers take
it as it is. A program that knows version 1 alone refuses the file from then on: it would let a
second run draw on a charge.

The file is only ever opened through SQLite: closing any other descriptor of it would drop the locks
that another thread of this process holds.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gapgnn.errors import PrivacyError, UnavailableError

APPLICATION_ID = 0x47415047
SCHEMA_VERSION = 2
BUSY_SECONDS = 60.0

# What a file of version 1 lacks: which run draws on a charge, by its last token.
CLAIMS = """
CREATE TABLE claims (
    charge TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    claimed_at TEXT NOT NULL
)
"""

# Amounts are decimal text, so that sums are exact. Grants are only ever added: the last one counts.
SCHEMA = f"""
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = EXTRA;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
BEGIN;
CREATE TABLE datasets (
    fingerprint TEXT PRIMARY KEY,
    name TEXT NOT NULL
);
CREATE TABLE grants (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL,
    level TEXT NOT NULL,
    relation TEXT NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    granted_at TEXT NOT NULL
);
CREATE TABLE charges (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    level TEXT NOT NULL,
    relation TEXT NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    count INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    events TEXT NOT NULL,
    charged_at TEXT NOT NULL,
    completed_at TEXT,
    UNIQUE (id, fingerprint)
);
{CLAIMS};
CREATE INDEX charges_of_budget ON charges (fingerprint, level);
CREATE INDEX grants_of_budget ON grants (fingerprint, level);
COMMIT;
"""


def default_path() -> Path:
    """Return where the ledger lies: ``$GAPGNN_LEDGER``, or the user's data folder.

    >>> default_path().suffix
    '.sqlite'
    """
    named = os.environ.get("GAPGNN_LEDGER")
    if named:
        return Path(named).expanduser()
    shared = os.environ.get("XDG_DATA_HOME", "")
    # The XDG rules say that a relative folder is to be ignored.
    data = Path(shared) if os.path.isabs(shared) else Path("~/.local/share").expanduser()
    return data / "gapgnn" / "ledger.sqlite"


def is_there(path: Path) -> bool:
    """Tell whether there is a file; a folder that hides it is an error, not an empty ledger."""
    try:
        return path.exists()
    except OSError as error:
        raise UnavailableError(f"Ledger {path} cannot be read: {error.strerror}.") from None


def create(path: Path) -> None:
    """Put a new, empty ledger at ``path`` unless something is there already."""
    # In this order: a journal seen while the ledger is missing can then only be an orphan.
    has_journal = is_there(Path(f"{path}-journal"))
    if is_there(path):
        return
    if has_journal:
        raise PrivacyError(
            f"Ledger {path} is missing but its journal is there, so charges would be lost. Restore "
            "the ledger from a backup, or remove the journal to begin a new one."
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".ledger-", suffix=".new", dir=path.parent)
        os.close(descriptor)
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.executescript(SCHEMA)
            os.link(draft, path)
        except FileExistsError:
            return  # another process was first, and its ledger is as good
        finally:
            os.unlink(draft)
        _sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(
            f"Ledger {path} cannot be created: {reason}. Nothing was released. Name "
            "another file with GAPGNN_LEDGER."
        ) from None


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power loss (Windows does so by itself)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def transaction(path: Path, *, writing: bool) -> Iterator[sqlite3.Connection]:
    """Open the ledger for one transaction: committed, durably, if the block ends without an error.

    Every transaction has its own connection, so a fork or a pickle shares nothing.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            # On macOS a plain sync stops at the drive's cache; elsewhere this changes nothing.
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            version = _check_is_ours(connection, path)
            if writing and version < SCHEMA_VERSION:
                connection.execute(CLAIMS)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise UnavailableError(
                f"Ledger {path} is busy: another process held it for {BUSY_SECONDS:g} seconds. "
                "Nothing was released. Try again."
            ) from None
        raise UnavailableError(
            f"Ledger {path} cannot be read or written: {error}. Nothing was released."
        ) from None
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from None


def _check_is_ours(connection: sqlite3.Connection, path: Path) -> int:
    """Return the file's version, or refuse the file."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise damaged(path, "it is not a gapgnn ledger")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise PrivacyError(
            f"Ledger {path} was written by a newer gapgnn. Got version {version}, this one knows "
            f"{SCHEMA_VERSION}. Upgrade gapgnn."
        )
    if version < 1:
        raise damaged(path, f"its version is {version}")
    return version


def damaged(path: Path, reason: object) -> PrivacyError:
    """Return the error for a file that cannot be trusted; nobody starts a new ledger instead."""
    return PrivacyError(
        f"Ledger {path} is damaged or not a ledger: {reason}. Nothing was released. Restore it "
        "from a backup, or name another file with GAPGNN_LEDGER."
    )
