"""Who draws on a charge: one claim after the other, never two at once; and when it is on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.ledger import file as ledger_file
from gapgnn.privacy.ledger.ledger import Charge, Ledger

DATA = "5f" * 32
EXTRA = 3


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def charge(ledger: Ledger) -> Charge:
    spend = {"epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "test"}
    return ledger.charge(DATA, level="edge", relation="undirected", **spend)  # type: ignore[arg-type]


def version(ledger: Ledger) -> int:
    connection = sqlite3.connect(ledger.path)
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    connection.close()
    return found


def make_old(ledger: Ledger) -> Charge:
    """Turn a ledger with one charge into what version 1 wrote."""
    made = charge(ledger)
    connection = sqlite3.connect(ledger.path)
    connection.execute("DROP TABLE claims")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    return made


def test_a_claim_needs_the_one_before_it_and_replaces_it(ledger: Ledger) -> None:
    made, other = charge(ledger), charge(ledger)
    assert ledger.claimed(made.id) is None
    ledger.claim(made.id, None, "first")
    for stale in (None, "second", "", "First"):
        with pytest.raises(PrivacyError, match="`previous` must be the last claim"):
            ledger.claim(made.id, stale, "mine")
    ledger.claim(made.id, "first", "second")
    with pytest.raises(PrivacyError, match="`previous` must be the last claim"):
        ledger.claim(made.id, "first", "mine")
    assert Ledger(ledger.path).claimed(made.id) == "second"
    assert ledger.claimed(other.id) is None
    # Claims cost nothing and change no charge.
    assert ledger.summary()[0].spent_epsilon == 2.0


def test_a_claim_on_no_charge_is_refused_and_makes_no_file(ledger: Ledger) -> None:
    for operation in (lambda: ledger.claim("x", None, "t"), lambda: ledger.claimed("x")):
        with pytest.raises(InputError, match="`charge_id` must name a charge"):
            operation()
    assert not ledger.path.exists()
    charge(ledger)
    with pytest.raises(InputError, match="`charge_id` must name a charge"):
        ledger.claim("x", None, "t")


CLAIMANT = """
import sys
from gapgnn.errors import PrivacyError
from gapgnn.privacy.ledger.ledger import Ledger

path, charge, name = sys.argv[1:]
sys.stdin.readline()
previous = None
for turn in range(10):
    try:
        Ledger(path).claim(charge, previous, f"{name} {turn}")
    except PrivacyError:
        print("lost")
        break
    previous = f"{name} {turn}"
else:
    print("won")
"""


def test_of_six_processes_that_claim_at_once_one_goes_on(ledger: Ledger) -> None:
    made = charge(ledger)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMANT, str(ledger.path), made.id, str(name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in range(6)
    ]
    said = sorted(child.communicate("go\n")[0].strip() for child in children)
    assert said == ["lost"] * 5 + ["won"]


def test_a_ledger_of_version_one_is_read_as_it_is_and_upgraded_by_the_first_write(
    ledger: Ledger,
) -> None:
    made = make_old(ledger)
    before = ledger.path.read_bytes()
    assert ledger.entries()[0].id == made.id
    assert ledger.summary()[0].spent_epsilon == 1.0
    assert ledger.claimed(made.id) is None
    assert (ledger.path.read_bytes(), version(ledger)) == (before, 1)
    ledger.claim(made.id, None, "first")
    assert (ledger.claimed(made.id), version(ledger)) == ("first", 2)


def test_a_write_that_is_refused_does_not_upgrade(ledger: Ledger) -> None:
    made = make_old(ledger)
    with pytest.raises(PrivacyError, match="`previous`"):
        ledger.claim(made.id, "somebody", "mine")
    assert version(ledger) == 1
    charge(ledger)
    assert (version(ledger), len(ledger.entries())) == (2, 2)


def test_a_program_of_version_one_refuses_a_ledger_with_claims(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(ledger)
    monkeypatch.setattr(ledger_file, "SCHEMA_VERSION", 1)
    with pytest.raises(PrivacyError, match="newer gapgnn"):
        charge(ledger)


# Durability


def writes(ledger: Ledger) -> dict[str, Callable[[], object]]:
    made = charge(ledger)
    grant = {"level": "edge", "relation": "undirected", "epsilon": 9.0, "delta": 0.1}
    return {
        "create": lambda: charge(Ledger(ledger.path.with_name("new.sqlite"))),
        "charge": lambda: charge(ledger),
        "claim": lambda: ledger.claim(made.id, None, "first"),
        "complete": lambda: ledger.complete(made.id),
        "grant": lambda: ledger.grant(DATA, **grant),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("operation", ["create", "charge", "claim", "complete", "grant"])
def test_what_is_written_is_synced_before_the_call_returns(
    ledger: Ledger, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of every commit the connection syncs the file, its journal and the folder."""
    act = writes(ledger)[operation]
    settings: list[tuple[str, int]] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == "COMMIT":
                self.note()
            return super().execute(sql, *args)  # type: ignore[arg-type]

        def executescript(self, sql: str) -> sqlite3.Cursor:  # type: ignore[override]
            cursor = super().executescript(sql)
            self.note()
            return cursor

        def note(self) -> None:
            mode = super().execute("PRAGMA journal_mode").fetchone()[0]
            settings.append((mode, super().execute("PRAGMA synchronous").fetchone()[0]))

    real = sqlite3.connect
    monkeypatch.setattr(
        ledger_file.sqlite3,
        "connect",
        lambda *args, **options: real(*args, **options, factory=Watched),
    )
    act()
    assert len(settings) >= (2 if operation == "create" else 1)
    assert set(settings) == {("delete", EXTRA)}
