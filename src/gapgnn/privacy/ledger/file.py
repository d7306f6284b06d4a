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

Versions. Version 4 normalises ids before they are hashed, and chains what is neither a grant nor a
charge (table ``notes``). A file of version 3 is copied beside itself and upgraded, once, by the
first transaction that opens it, and the upgrade says so. An older program refuses the file from
then on. Versions 1 and 2 counted graphs and not people, and are refused.

Chain. Every charge, grant and note carries a keyed hash of itself and the row before, and the last
one is kept apart; what may change (members, names, claims, settings) is under one seal. A row that
was removed, changed or added is found whenever the ledger is opened, and `gapgnn ledger verify`
says which. The key is in the file, so this finds accidents and careless hands, not somebody who
computes the chain anew.

The file is only ever opened through SQLite: closing any other descriptor of it would drop the locks
that another thread of this process holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from gapgnn.errors import InputError, PrivacyError, UnavailableError
from gapgnn.rng import system_entropy

APPLICATION_ID = 0x47415047
SCHEMA_VERSION = 4
OLDEST_VERSION = 3
# `normalised` where every member was hashed after normalisation, `mixed` in a file that is older.
ID_SPELLING = "id spelling"
BUSY_SECONDS = 60.0

# Amounts are decimal text, so that sums are exact. Grants are only ever added: the last one counts.
TABLES = """
CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE populations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    made_at TEXT NOT NULL
);
CREATE TABLE members (
    population INTEGER NOT NULL,
    part INTEGER NOT NULL,
    digest BLOB NOT NULL,
    hashes BLOB NOT NULL,
    PRIMARY KEY (population, part)
);
CREATE TABLE fingerprints (
    population INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    PRIMARY KEY (population, fingerprint)
);
CREATE TABLE grants (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    population INTEGER NOT NULL,
    level TEXT NOT NULL,
    relation TEXT NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    composition TEXT NOT NULL,
    renyi_order REAL,
    until TEXT,
    granted_at TEXT NOT NULL,
    who TEXT NOT NULL,
    host TEXT NOT NULL,
    reason TEXT NOT NULL,
    chain TEXT
);
CREATE TABLE charges (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    population INTEGER NOT NULL,
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
    who TEXT NOT NULL,
    host TEXT NOT NULL,
    command TEXT NOT NULL,
    reason TEXT NOT NULL,
    chain TEXT,
    UNIQUE (id, population)
);
CREATE TABLE claims (
    charge TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    claimed_at TEXT NOT NULL
);
CREATE TABLE notes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    about TEXT NOT NULL,
    noted_at TEXT NOT NULL,
    who TEXT NOT NULL,
    host TEXT NOT NULL,
    command TEXT NOT NULL,
    chain TEXT
);
CREATE INDEX charges_by_population ON charges (population, level);
CREATE INDEX grants_by_population ON grants (population, level);
"""
# What a chain covers: all that never changes after it was written.
CHAINED = {
    "grants": "population, level, relation, epsilon, delta, composition, renyi_order, until, "
    "granted_at, who, host, reason",
    "charges": "id, population, fingerprint, level, relation, epsilon, delta, count, purpose, "
    "events, charged_at, who, host, command, reason",
    "notes": "kind, about, noted_at, who, host, command",
}


# What the seal covers; the members themselves are under their digests.
SEALED = (
    "SELECT id, name, namespace, made_at FROM populations ORDER BY id",
    "SELECT population, part, hex(digest) FROM members ORDER BY population, part",
    "SELECT population, fingerprint FROM fingerprints ORDER BY population, fingerprint",
    "SELECT charge, token, claimed_at FROM claims ORDER BY charge",
    "SELECT key, value FROM settings WHERE key != 'seal' ORDER BY key",
)


class LedgerNotice(UserWarning):
    """Something about the ledger that people should see once."""


def default_path() -> Path:
    """Return where the ledger lies: ``$GAPGNN_LEDGER``, or the user's data folder.

    >>> default_path().suffix
    '.sqlite'
    """
    named = os.environ.get("GAPGNN_LEDGER")
    return Path(named).expanduser() if named else own_path()


def own_path() -> Path:
    """Return the one place where a missing ledger is made without being asked for."""
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


def create(path: Path, *, named: bool = False) -> None:
    """Put a new, empty ledger at ``path`` unless something is there already.

    A path that somebody named may be mistyped, and an empty ledger forgets every charge: it is made
    only where that was asked for (``named``).
    """
    # In this order: a journal seen while the ledger is missing can then only be an orphan.
    has_journal = is_there(Path(f"{path}-journal"))
    if is_there(path):
        return
    if has_journal:
        raise PrivacyError(
            f"Ledger {path} is missing but its journal is there, so charges would be lost. Restore "
            "the ledger from a backup, or remove the journal to begin a new one."
        )
    if not named:
        check_made(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".ledger-", suffix=".new", dir=path.parent)
        os.close(descriptor)
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.executescript("PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN")
                _make_tables(connection)
                connection.execute("COMMIT")
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


def check_made(path: Path) -> None:
    """Refuse a ledger that somebody named and that is not there."""
    if path != own_path() and not is_there(path):
        raise InputError(
            f"the ledger {str(path)!r} does not exist. Check the path, or make it with "
            f"`gapgnn ledger init {path}`."
        )


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    put_setting(connection, "key", system_entropy(32).hex())
    put_setting(connection, "require-grant", "off")
    put_setting(connection, ID_SPELLING, "normalised")
    put_setting(connection, "seal", _seal(connection))


def setting(connection: sqlite3.Connection, key: str) -> str:
    """Return a setting of the ledger; empty if it was never set."""
    row = connection.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    return "" if row is None else str(row[0])


def put_setting(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Set a setting of the ledger."""
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))


def chain_time(connection: sqlite3.Connection) -> str:
    """Return the time to write: now, but never before the last row of the chain.

    A clock that was set back would otherwise open a budget again that has ended.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    (last,) = connection.execute(
        "SELECT max(moment) FROM (SELECT max(charged_at) AS moment FROM charges "
        "UNION ALL SELECT max(granted_at) FROM grants UNION ALL SELECT max(noted_at) FROM notes)"
    ).fetchone()
    return now if last is None else max(now, str(last))


def broken_links(connection: sqlite3.Connection, *, skip: tuple[str, ...] = ()) -> list[str]:
    """Return what a removed or changed row shows in the chains, but for tables to skip."""
    problems = []
    for table in (name for name in CHAINED if name not in skip):
        links = list(_links(connection, table))
        wrong = next((seq for seq, chain, expected in links if chain != expected), None)
        last = f"{len(links)} {links[-1][2]}" if links else ""
        if wrong is not None:
            problems.append(f"row {wrong} of {table}, or one before it, was changed or removed")
        elif setting(connection, f"last of {table}") != last:
            problems.append(f"the last row of {table} was removed, or one was added by hand")
    if not problems and setting(connection, "seal") != _seal(connection):
        problems.append("a population, a claim or a setting was changed, removed or added by hand")
    return problems


def secret_key(connection: sqlite3.Connection) -> bytes:
    """Return the key of this ledger's hashes."""
    try:
        key = bytes.fromhex(setting(connection, "key"))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise sqlite3.DatabaseError("its key was changed or removed")
    return key


def _keyed(key: bytes, values: list[Any]) -> str:
    text = json.dumps(values, default=repr)
    return hashlib.blake2b(text.encode(), key=key, digest_size=16).hexdigest()


def _seal(connection: sqlite3.Connection) -> str:
    tables = [connection.execute(query).fetchall() for query in SEALED]
    return _keyed(secret_key(connection), tables)


def _links(connection: sqlite3.Connection, table: str) -> Iterator[tuple[int, str | None, str]]:
    """Return each row's number, its link in the chain, and what that should be."""
    key = secret_key(connection)
    previous = ""
    rows = connection.execute(f"SELECT seq, chain, {CHAINED[table]} FROM {table} ORDER BY seq")
    for seq, chain, *values in rows.fetchall():
        previous = _keyed(key, [previous, *values])
        yield seq, chain, previous


def _close_books(connection: sqlite3.Connection) -> None:
    """Link the rows that this transaction has added, and seal the rest."""
    for table in CHAINED:
        links = list(_links(connection, table))
        for seq, chain, expected in links:
            if chain is None:
                connection.execute(f"UPDATE {table} SET chain = ? WHERE seq = ?", (expected, seq))
        if links:
            put_setting(connection, f"last of {table}", f"{len(links)} {links[-1][2]}")
    put_setting(connection, "seal", _seal(connection))


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power loss (Windows does so by itself)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def transaction(
    path: Path, *, writing: bool, checking: bool = True
) -> Iterator[sqlite3.Connection]:
    """Open the ledger for one transaction: committed, durably, if the block ends without an error.

    Every transaction has its own connection, so a fork or a pickle shares nothing.

    Args:
        path: of the ledger.
        writing: whether to take the lock first, and link what was added.
        checking: refuse a file whose chain is broken; off only to say what is wrong with it.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            # On macOS a plain sync stops at the drive's cache; elsewhere this changes nothing.
            connection.execute("PRAGMA fullfsync = ON")
            if _check_is_ours(connection, path) < SCHEMA_VERSION:
                _upgrade(connection, path)
            connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            if checking and (problems := broken_links(connection)):
                raise damaged(path, problems[0])
            if checking:
                _check_people_known(connection, path)
            yield connection
            if writing:
                _close_books(connection)
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
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
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
    if version < OLDEST_VERSION:
        raise PrivacyError(
            f"Ledger {path} was written before gapgnn 0.2. Got version {version}, this one reads "
            f"{OLDEST_VERSION} and {SCHEMA_VERSION}. Open it once with gapgnn 0.2, which upgrades "
            "it. Nothing was released."
        )
    return version


def _check_people_known(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file with a population that version 0.1 identified by its graph.

    The upgrade of that version made it without members or a namespace. Anybody may be one of its
    people, so its budget would be circumvented by every charge.
    """
    row = connection.execute(
        "SELECT name FROM populations WHERE namespace = '' "
        "AND id NOT IN (SELECT population FROM members) ORDER BY id"
    ).fetchone()
    if row is not None:
        raise PrivacyError(
            f"Ledger {path} holds charges or budgets of {row[0]!r}, a graph of version 0.1 whose "
            "people are not known. Say who they are with gapgnn 0.2: `gapgnn ledger grant "
            f"{shlex.quote(str(row[0]))} --nodes FILE`. Nothing was released."
        )


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a file of version 3 beside itself, then add what version 4 has.

    Its members stay as they are and are found by either spelling.
    """
    connection.execute("BEGIN IMMEDIATE")
    version = _check_is_ours(connection, path)
    if version == SCHEMA_VERSION:  # another process was first
        connection.execute("COMMIT")
        return
    _check_people_known(connection, path)
    backup = _back_up(path, version)
    if problems := broken_links(connection, skip=("notes",)):
        raise damaged(path, problems[0])
    notes = next(text for text in TABLES.split(";") if "CREATE TABLE notes" in text)
    connection.execute(notes)
    put_setting(connection, ID_SPELLING, "mixed")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    _close_books(connection)
    connection.execute("COMMIT")
    warnings.warn(
        f"Ledger {path} was brought to version {SCHEMA_VERSION}, which normalises ids; the file as "
        f"it was is {backup}.",
        LedgerNotice,
        stacklevel=2,
    )


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


def damaged(path: Path, reason: object) -> PrivacyError:
    """Return the error for a file that cannot be trusted; nobody starts a new ledger instead."""
    return PrivacyError(
        f"Ledger {path} is damaged or not a ledger: {reason}. Nothing was released. Restore it "
        "from a backup, or name another file with GAPGNN_LEDGER."
    )
