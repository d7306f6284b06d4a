"""What a ledger on a server asks of it, in which order: durable, one after the other, or refused.

The server here is played: it answers what it is asked and notes it. That a real one keeps what it
is asked for is tested where there is one (``test_ledger_server.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gapgnn.errors import BusyError, GapgnnError, InputError, PrivacyError, UnavailableError
from gapgnn.privacy.ledger.chain import SCHEMA_VERSION, DamageError
from gapgnn.privacy.ledger.postgres import PostgresStore

psycopg = pytest.importorskip("psycopg")

ADDRESS = "postgresql://officer:secret@ledger.example/budgets"


@dataclass
class Played:
    """A server: what it was asked, and what it answers.

    Attributes:
        fsync: its setting.
        pages: its setting ``full_page_writes``.
        is_standby: whether it follows another one.
        is_made: whether it holds a ledger.
        version: of the ledger.
        fails_at: the start of a statement that fails, and the class of the error.
    """

    fsync: str = "on"
    pages: str = "on"
    is_standby: bool = False
    is_made: bool = True
    version: str = str(SCHEMA_VERSION)
    fails_at: tuple[str, type[Exception]] | None = None
    asked: list[str] = field(default_factory=list)
    is_closed: bool = False

    def cursor(self, **options: Any) -> Played:
        return self

    def close(self) -> None:
        self.is_closed = True

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> Played:
        if self.fails_at is not None and sql.startswith(self.fails_at[0]):
            raise self.fails_at[1](f"the server says no to {ADDRESS}")
        self.asked.append(sql)
        return self

    def fetchone(self) -> tuple[Any, ...]:
        if "fsync" in self.asked[-1]:
            return self.fsync, self.pages, self.is_standby
        return (self.is_made,) if "to_regclass" in self.asked[-1] else (self.version,)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(psycopg, "connect", lambda *given, **options: played)
    return played


def write() -> None:
    with PostgresStore(ADDRESS).transaction(writing=True) as db:
        db.execute("INSERT INTO charges VALUES (?)", (1,))


def test_a_writer_is_durable_and_has_the_lock_before_its_first_query(server: Played) -> None:
    write()
    begun = server.asked.index("BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE")
    inside = server.asked[begun + 1 :]
    locked = inside.index("LOCK TABLE settings IN EXCLUSIVE MODE")
    assert "SET LOCAL synchronous_commit TO on" in inside[:locked]
    assert any("lock_timeout" in one for one in inside[:locked])
    assert any("idle_in_transaction" in one for one in inside[:locked])
    assert all(one.startswith("SET LOCAL ") for one in inside[:locked])
    assert inside[-2:] == ["INSERT INTO charges VALUES (%s)", "COMMIT"]
    assert server.is_closed


def test_a_reader_changes_nothing_and_waits_for_nobody(server: Played) -> None:
    with PostgresStore(ADDRESS).transaction(writing=False) as db:
        db.execute("SELECT 1")
    assert "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY" in server.asked
    assert not any("LOCK" in one for one in server.asked)


def test_what_fails_in_between_is_never_committed(server: Played) -> None:
    with (
        pytest.raises(InputError, match="over budget"),
        PostgresStore(ADDRESS).transaction(writing=True),
    ):
        raise InputError("over budget.")
    assert "COMMIT" not in server.asked
    assert server.is_closed


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fsync": "off"}, PrivacyError, "`fsync` must be on. Got 'off'"),
        ({"pages": "off"}, PrivacyError, "`full_page_writes` must be on. Got 'off'"),
        ({"is_standby": True}, UnavailableError, "standby"),
        ({"is_made": False}, InputError, "does not exist"),
        ({"version": str(SCHEMA_VERSION + 1)}, PrivacyError, "newer gapgnn"),
        ({"version": "x"}, GapgnnError, "version is 'x'"),
    ],
)
def test_a_server_that_may_lose_a_charge_is_refused_before_any_write(
    server: Played, writing: bool, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    with (
        pytest.raises((error, DamageError), match=message) as caught,
        PostgresStore(ADDRESS).transaction(writing=writing),
    ):
        pytest.fail("opened")
    assert "secret" not in str(caught.value)
    assert not any(one.startswith(("INSERT", "COMMIT")) for one in server.asked)


@pytest.mark.parametrize(
    ("place", "error", "raised", "message"),
    [
        ("COMMIT", "OperationalError", BusyError, "written as a whole or not at all"),
        ("INSERT", "OperationalError", BusyError, "Nothing was charged or released"),
        ("LOCK", "errors.LockNotAvailable", BusyError, "is busy"),
        ("COMMIT", "errors.SerializationFailure", BusyError, "is busy"),
        ("INSERT", "errors.DiskFull", BusyError, "Make room"),
        ("INSERT", "errors.InsufficientPrivilege", UnavailableError, "cannot be read or written"),
        ("INSERT", "errors.NumericValueOutOfRange", InputError, "cannot hold a value"),
        ("INSERT", "errors.UndefinedTable", GapgnnError, "the server says no"),
    ],
)
def test_what_a_server_says_is_one_error_without_the_password(
    server: Played, place: str, error: str, raised: type[Exception], message: str
) -> None:
    module = psycopg
    for name in error.split("."):
        module = getattr(module, name)
    server.fails_at = (place, module)
    with pytest.raises(raised, match=message) as caught:
        write()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "COMMIT" not in server.asked
