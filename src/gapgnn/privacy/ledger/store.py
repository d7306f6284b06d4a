"""Where a ledger is kept: one interface, and one file for each database that has it.

The rules of budgets (:mod:`gapgnn.privacy.ledger.rules`) and the chain
(:mod:`gapgnn.privacy.ledger.chain`) are written once, in the SQL that both databases share, with
``?`` for a value. What differs is here as a method: how a ledger is made, how a transaction is
begun and ended durably, what time it is, and how a list of members is compared. The backends are
:mod:`gapgnn.privacy.ledger.sqlite` and :mod:`gapgnn.privacy.ledger.postgres`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gapgnn.errors import InputError, IntegrityError, PrivacyError, without_password
from gapgnn.privacy.ledger import chain, signing

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.people import Hashes

_SERVER = re.compile(r"postgres(ql)?://")


class LedgerNotice(UserWarning):
    """Something about the ledger that people should see once."""


class Rows(Protocol):
    """The answer to a query."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One open transaction.

    Attributes:
        added: the link of every row that it added to the chain, by table and number.
    """

    added: dict[tuple[str, int], str]

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows:
        """Carry out one statement; ``?`` stands for a value."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Carry out one statement for each row of values."""
        ...

    def now(self) -> str:
        """Return the time of the one clock that counts here, in UTC and to the second."""
        ...

    def count_on(self) -> None:
        """Let rows be numbered after those that were copied in with their numbers."""
        ...

    def holds(self, population: int, part: int, hashes: Hashes) -> bool:
        """Tell whether a stored piece of a list of members is these hashes, to the byte."""
        ...


class Store(Protocol):
    """A place that holds one ledger. It keeps no connection: a fork or a pickle shares nothing."""

    @property
    def name(self) -> str:
        """What to call it in messages; never with a password."""
        ...

    def is_made(self) -> bool:
        """Tell whether a ledger is there; refuse one that somebody named and that is not."""
        ...

    def create(self, *, named: bool) -> bool:
        """Make an empty ledger, whole or not at all, unless one is there; return whether it did.

        An address that somebody named may be mistyped, and an empty ledger forgets every charge: it
        is made only where that was asked for (``named``).
        """
        ...

    def transaction(self, *, writing: bool) -> AbstractContextManager[Connection]:
        """Open one transaction: committed, durably, if the block ends without an error.

        A writer has the lock before it reads anything, so nobody decides on a sum that another
        process is about to change.
        """
        ...

    def damage(self, db: Connection) -> list[str]:
        """Return what the database itself finds wrong with its content."""
        ...


def default_place() -> str | Path:
    """Return where the ledger lies: ``$GAPGNN_LEDGER``, or a file in the user's data folder.

    >>> default_place()  # doctest: +ELLIPSIS
    PosixPath('....sqlite')
    """
    named = os.environ.get("GAPGNN_LEDGER")
    if named and is_address(named):
        return named
    return Path(named).expanduser() if named else own_path()


def own_path() -> Path:
    """Return the one place where a missing ledger is made without being asked for."""
    shared = os.environ.get("XDG_DATA_HOME", "")
    # The XDG rules say that a relative folder is to be ignored.
    data = Path(shared) if os.path.isabs(shared) else Path("~/.local/share").expanduser()
    return data / "gapgnn" / "ledger.sqlite"


def is_address(place: object) -> bool:
    """Tell whether a place is a database server and not a file.

    >>> is_address("postgresql://host/ledger"), is_address("ledger.sqlite")
    (True, False)
    """
    return isinstance(place, str) and _SERVER.match(place) is not None


def store_of(place: str | Path) -> Store:
    """Return the store of a place: a server by its address, everything else is a file.

    >>> store_of("ledger.sqlite").name, store_of("postgresql://ann:secret@host/budgets").name
    ('ledger.sqlite', 'postgresql://ann@host/budgets')
    """
    if is_address(place):
        from gapgnn.privacy.ledger.postgres import PostgresStore

        return PostgresStore(str(place))
    # Also what a path makes of an address: `postgresql:/host/database`.
    if re.match(r"\w{2,}:/", str(place)):
        raise InputError(
            "`ledger` must be a file, or the address of a PostgreSQL server such as "
            f"postgresql://host/database. Got {without_password(str(place))!r}."
        )
    from gapgnn.privacy.ledger.sqlite import SQLiteStore

    return SQLiteStore(Path(place).expanduser())


@contextmanager
def transaction(store: Store, *, writing: bool, checking: bool = True) -> Iterator[Connection]:
    """Open a ledger for one transaction, check its chain first, and link what was added at the end.

    Args:
        store: of the ledger.
        writing: whether something is written.
        checking: refuse a ledger whose chain is broken; off only to say what is wrong with it.
    """
    try:
        with store.transaction(writing=writing) as db:
            if checking:
                chain.check(db, store.name)
            if writing and (place := chain.setting(db, chain.MOVED_TO)):
                raise PrivacyError(
                    f"Ledger {store.name} was moved to {place} and is closed: two copies would "
                    f"spend one budget twice. Use {place}. Nothing was released."
                )
            yield db
            if writing:
                chain.seal_transaction(db, signing.signature_for(db))
    except chain.DamageError as error:
        raise damaged(store.name, error) from None


def damaged(name: str, reason: object) -> IntegrityError:
    """Return the error for a ledger that cannot be trusted; nobody starts a new one instead."""
    return IntegrityError(
        f"Ledger {name} is damaged or not a ledger: {reason}. Nothing was released. Restore it "
        "from a backup, or name another one with GAPGNN_LEDGER."
    )
