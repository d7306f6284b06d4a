"""What a ledger holds, and the chain that shows when a row was changed, removed or added.

Every charge, grant and note carries a keyed hash of itself and the row before. Table ``entries``
puts all of them in the one order in which they were written, each with its time, which never goes
back, and a link: a keyed hash of itself and the link before. What may change (members, names,
claims, settings) is under one seal. A row that was removed, changed or added is found whenever the
ledger is opened, and `gapgnn ledger verify` says which.

The key is in the ledger, so its owner can compute all of it anew. A link that somebody else holds,
on a card or in an export, is then missing from the chain (:mod:`gapgnn.privacy.ledger.evidence`).
The key never leaves the ledger, so a link says nothing about what it covers.

The hashes are of values, not of a database's file, and are the same in every backend.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gapgnn.errors import PrivacyError
from gapgnn.rng import system_entropy

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection

SCHEMA_VERSION = 5
# `normalised` where every member was hashed after normalisation, `mixed` in a file that is older.
ID_SPELLING = "id spelling"
# Where the ledger went, of one that was moved and is closed for good.
MOVED_TO = "moved to"

# Amounts are decimal text, so that sums are exact. Grants are only ever added: the last one counts.
# The types are named by each backend.
TABLES = """
CREATE TABLE settings (
    key {text} PRIMARY KEY,
    value {text} NOT NULL
);
CREATE TABLE populations (
    id {serial},
    name {text} NOT NULL UNIQUE,
    namespace {text} NOT NULL,
    made_at {text} NOT NULL
);
CREATE TABLE members (
    population {integer} NOT NULL,
    part {integer} NOT NULL,
    digest {bytes} NOT NULL,
    hashes {bytes} NOT NULL,
    PRIMARY KEY (population, part)
);
CREATE TABLE fingerprints (
    population {integer} NOT NULL,
    fingerprint {text} NOT NULL,
    PRIMARY KEY (population, fingerprint)
);
CREATE TABLE grants (
    seq {serial},
    population {integer} NOT NULL,
    level {text} NOT NULL,
    relation {text} NOT NULL,
    epsilon {text} NOT NULL,
    delta {text} NOT NULL,
    composition {text} NOT NULL,
    renyi_order {real},
    until {text},
    granted_at {text} NOT NULL,
    who {text} NOT NULL,
    host {text} NOT NULL,
    reason {text} NOT NULL,
    chain {text}
);
CREATE TABLE charges (
    seq {serial},
    id {text} NOT NULL,
    population {integer} NOT NULL,
    fingerprint {text} NOT NULL,
    level {text} NOT NULL,
    relation {text} NOT NULL,
    epsilon {text} NOT NULL,
    delta {text} NOT NULL,
    count {integer} NOT NULL,
    purpose {text} NOT NULL,
    events {text} NOT NULL,
    charged_at {text} NOT NULL,
    completed_at {text},
    who {text} NOT NULL,
    host {text} NOT NULL,
    command {text} NOT NULL,
    reason {text} NOT NULL,
    chain {text},
    UNIQUE (id, population)
);
CREATE TABLE claims (
    charge {text} PRIMARY KEY,
    token {text} NOT NULL,
    claimed_at {text} NOT NULL
);
CREATE TABLE notes (
    seq {serial},
    kind {text} NOT NULL,
    about {text} NOT NULL,
    noted_at {text} NOT NULL,
    who {text} NOT NULL,
    host {text} NOT NULL,
    command {text} NOT NULL,
    chain {text}
);
CREATE TABLE entries (
    seq {serial},
    source {text} NOT NULL,
    number {integer} NOT NULL,
    moment {text} NOT NULL,
    link {text} NOT NULL,
    signer {text} NOT NULL,
    signature {text} NOT NULL,
    UNIQUE (source, number)
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
# Settings of which every change is a note, and what each was before the first one.
CHANGED_SETTINGS = {"require-grant": "off", "require-signatures": "off", "two-person-grants": "off"}
_CHANGE = re.compile(r"(?P<name>[\w-]+): \w* to (?P<value>\w+)")
# What the seal covers; the members themselves are under their digests.
SEALED = (
    "SELECT id, name, namespace, made_at FROM populations ORDER BY id",
    "SELECT population, part, digest FROM members ORDER BY population, part",
    "SELECT population, fingerprint FROM fingerprints ORDER BY population, fingerprint",
    "SELECT charge, token, claimed_at FROM claims ORDER BY charge",
    "SELECT key, value FROM settings WHERE key != 'seal' ORDER BY key",
)


# Who signs a link, and the signature.
Sign = Callable[[str], tuple[str, str]]


class DamageError(Exception):
    """Content that was not written by a ledger; whoever opened it says where it was found."""


def statements(types: Mapping[str, str]) -> list[str]:
    """Return the statements that make the tables of a ledger.

    Args:
        types: what a backend calls ``text``, ``integer``, ``real``, ``bytes`` and ``serial``, the
            number of a row that is counted up.
    """
    return [part.strip() for part in TABLES.format(**types).split(";") if part.strip()]


def columns() -> dict[str, list[str]]:
    """Return the columns of every table, in their order.

    >>> columns()["claims"]
    ['charge', 'token', 'claimed_at']
    """
    tables = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\);", TABLES, re.DOTALL)
    return {name: re.findall(r"^    (\w+) \{", body, re.MULTILINE) for name, body in tables}


def fill_settings(db: Connection) -> None:
    """Give a new ledger its key and settings."""
    put_setting(db, "key", system_entropy(32).hex())
    for name, value in CHANGED_SETTINGS.items():
        put_setting(db, name, value)
    put_setting(db, ID_SPELLING, "normalised")
    put_setting(db, "seal", _seal(db))


def setting(db: Connection, key: str) -> str:
    """Return a setting of the ledger; empty if it was never set."""
    row = db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    return "" if row is None else str(row[0])


def put_setting(db: Connection, key: str, value: str) -> None:
    """Set a setting of the ledger."""
    db.execute(
        "INSERT INTO settings (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def chain_time(db: Connection) -> str:
    """Return the time to write: now, but never before the last row of the chain.

    A clock that was set back would otherwise open a budget again that has ended.
    """
    (last,) = db.execute("SELECT max(moment) FROM entries").fetchone()
    now = db.now()
    return now if last is None else max(now, str(last))


def check(db: Connection, name: str) -> None:
    """Refuse a ledger whose chain is broken, or that has people whom nobody knows."""
    if problems := broken_links(db):
        raise DamageError(problems[0])
    check_people_known(db, name)


def broken_links(db: Connection, *, skip: tuple[str, ...] = ()) -> list[str]:
    """Return what a removed or changed row shows in the chains, but for tables to skip."""
    problems: list[str] = []
    for table in (name for name in CHAINED if name not in skip):
        links = list(_links(db, table))
        wrong = next((seq for seq, chain, expected in links if chain != expected), None)
        last = f"{len(links)} {links[-1][2]}" if links else ""
        if wrong is not None:
            problems.append(f"row {wrong} of {table}, or one before it, was changed or removed")
        elif setting(db, f"last of {table}") != last:
            problems.append(f"the last row of {table} was removed, or one was added by hand")
    if not problems and "entries" not in skip:
        problems += _broken_entries(db)
    if not problems and setting(db, "seal") != _seal(db):
        problems.append("a population, a claim or a setting was changed, removed or added by hand")
    return problems


def _broken_entries(db: Connection) -> list[str]:
    """Return what is wrong with the order of all rows, or with the settings that they explain."""
    rows = _chained_rows(db)
    key, previous, latest, count = secret_key(db), "", "", 0
    entries = db.execute("SELECT seq, source, number, moment, link FROM entries ORDER BY seq")
    for seq, source, number, moment, link in entries.fetchall():
        chain = rows.pop((source, number), None)
        if chain is None or link != _keyed(key, [previous, source, number, chain, moment]):
            return [f"entry {seq}, or one before it, was changed or removed"]
        if moment < latest:
            return [f"entry {seq} is older than the one before it"]
        previous, latest, count = link, moment, count + 1
    if rows:
        source, number = min(rows)
        return [f"row {number} of {source} has no entry"]
    if setting(db, "last of entries") != (f"{count} {previous}" if count else ""):
        return ["the last entry was removed, or one was added by hand"]
    explained = dict(CHANGED_SETTINGS)
    for (about,) in db.execute("SELECT about FROM notes WHERE kind = 'setting' ORDER BY seq"):
        if change := _CHANGE.fullmatch(about):
            explained[change["name"]] = change["value"]
    wrong = [name for name in CHANGED_SETTINGS if setting(db, name) not in ("", explained[name])]
    return [f"the setting {name} is not what the notes say" for name in wrong]


def _chained_rows(db: Connection) -> dict[tuple[str, int], str]:
    """Return the link of each row in the chain of its own table."""
    return {
        (table, seq): chain
        for table in CHAINED
        for seq, chain in db.execute(f"SELECT seq, chain FROM {table} ORDER BY seq").fetchall()
    }


def check_people_known(db: Connection, name: str) -> None:
    """Refuse a ledger with a population that version 0.1 identified by its graph.

    The upgrade of that version made it without members or a namespace. Anybody may be one of its
    people, so its budget would be circumvented by every charge.
    """
    row = db.execute(
        "SELECT name FROM populations WHERE namespace = '' "
        "AND id NOT IN (SELECT population FROM members) ORDER BY id"
    ).fetchone()
    if row is not None:
        raise PrivacyError(
            f"Ledger {name} holds charges or budgets of {row[0]!r}, a graph of version 0.1 whose "
            "people are not known. Say who they are with gapgnn 0.2: `gapgnn ledger grant "
            f"{shlex.quote(str(row[0]))} --nodes FILE`. Nothing was released."
        )


def secret_key(db: Connection) -> bytes:
    """Return the key of this ledger's hashes."""
    try:
        key = bytes.fromhex(setting(db, "key"))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise DamageError("its key was changed or removed")
    return key


def seal_transaction(db: Connection, sign: Sign | None = None) -> None:
    """Link the rows that this transaction has added, and seal the rest.

    Args:
        db: the transaction; its ``added`` has the link of every new row afterwards.
        sign: returns who signs a link, and the signature; both are empty where nobody does.
    """
    for table in CHAINED:
        links = list(_links(db, table))
        for seq, chain, expected in links:
            if chain is None:
                db.execute(f"UPDATE {table} SET chain = ? WHERE seq = ?", (expected, seq))
        if links:
            put_setting(db, f"last of {table}", f"{len(links)} {links[-1][2]}")
    _add_entries(db, sign)
    put_setting(db, "seal", _seal(db))


def _add_entries(db: Connection, sign: Sign | None) -> None:
    """Put the rows that have no entry yet behind the others."""
    known = {tuple(row) for row in db.execute("SELECT source, number FROM entries").fetchall()}
    rows = {place: chain for place, chain in _chained_rows(db).items() if place not in known}
    count, previous = len(known), head(db)
    key, moment = secret_key(db), chain_time(db)
    for (source, number), chain in rows.items():
        previous = _keyed(key, [previous, source, number, chain, moment])
        signer, signature = sign(previous) if sign is not None else ("", "")
        db.execute(
            "INSERT INTO entries (source, number, moment, link, signer, signature) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (source, number, moment, previous, signer, signature),
        )
        db.added[source, number] = previous
        count += 1
    if rows:
        put_setting(db, "last of entries", f"{count} {previous}")


def head(db: Connection) -> str:
    """Return the last link; empty where nothing was written yet."""
    row = db.execute("SELECT link FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return "" if row is None else str(row[0])


def explain_settings(db: Connection, moment: str) -> None:
    """Write the notes that explain the settings of a ledger from before they were chained."""
    for name, value in CHANGED_SETTINGS.items():
        query = "SELECT about FROM notes WHERE kind = 'setting' ORDER BY seq"
        changes = [_CHANGE.fullmatch(about) for (about,) in db.execute(query).fetchall()]
        changed = [one["value"] for one in changes if one is not None and one["name"] == name]
        before, now = changed[-1] if changed else value, setting(db, name) or value
        if before != now:
            db.execute(
                "INSERT INTO notes (kind, about, noted_at, who, host, command) "
                "VALUES ('setting', ?, ?, '', '', 'upgrade')",
                (f"{name}: {before} to {now}", moment),
            )
        put_setting(db, name, now)


def _keyed(key: bytes, values: list[Any]) -> str:
    text = json.dumps(values, default=repr)
    return hashlib.blake2b(text.encode(), key=key, digest_size=16).hexdigest()


def _seal(db: Connection) -> str:
    # Digests as SQLite's hex() writes them, which earlier programs sealed.
    tables = [
        [
            [value.hex().upper() if isinstance(value, bytes) else value for value in row]
            for row in db.execute(query).fetchall()
        ]
        for query in SEALED
    ]
    return _keyed(secret_key(db), tables)


def _links(db: Connection, table: str) -> Iterator[tuple[int, str | None, str]]:
    """Return each row's number, its link in the chain, and what that should be."""
    key = secret_key(db)
    previous = ""
    rows = db.execute(f"SELECT seq, chain, {CHAINED[table]} FROM {table} ORDER BY seq")
    for seq, chain, *values in rows.fetchall():
        previous = _keyed(key, [previous, *values])
        yield seq, chain, previous
