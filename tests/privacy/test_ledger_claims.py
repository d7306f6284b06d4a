"""Who draws on a charge: one claim after the other, never two at once; and when it is on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.ledger import Charge, Ledger, People
from gapgnn.privacy.ledger import sqlite as ledger_file
from postgres_server import on_a_file

CUSTOMERS = People(np.arange(10), "5f" * 32, name="customers")
EXTRA = 3


def charge(ledger: Ledger) -> Charge:
    spend = {"epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "test"}
    return ledger.charge(CUSTOMERS, level="edge", relation="undirected", **spend)  # type: ignore[arg-type]


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


def test_a_claim_on_no_charge_is_refused(ledger: Ledger) -> None:
    charge(ledger)
    for operation in (lambda: ledger.claim("x", None, "t"), lambda: ledger.claimed("x")):
        with pytest.raises(InputError, match="`charge_id` must name a charge"):
            operation()


CLAIMANT = """
import os, sys
from gapgnn.errors import PrivacyError
from gapgnn.privacy.ledger import Ledger

path, charge = sys.argv[1:]
name = 0
while name < 5 and os.fork():
    name += 1
previous = None
for turn in range(10):
    try:
        Ledger(path).claim(charge, previous, f"{name} {turn}")
    except PrivacyError:
        os.write(1, b"lost\\n")
        break
    previous = f"{name} {turn}"
else:
    os.write(1, b"won\\n")
"""


def test_of_six_processes_that_claim_at_once_one_goes_on(ledger: Ledger) -> None:
    made = charge(ledger)
    command = [sys.executable, "-c", CLAIMANT, str(ledger.path), made.id]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert sorted(done.stdout.split()) == ["lost"] * 5 + ["won"]


def writes(ledger: Ledger) -> dict[str, Callable[[], object]]:
    made = charge(ledger)
    stated = {"level": "edge", "relation": "undirected", "composition": "sum"}
    grant = {**stated, "epsilon": 9.0, "delta": 0.1}
    return {
        "create": lambda: Ledger.init(ledger.path.with_name("new.sqlite")),
        "charge": lambda: charge(ledger),
        "claim": lambda: ledger.claim(made.id, None, "first"),
        "complete": lambda: ledger.complete(made.id),
        "grant": lambda: ledger.grant("customers", **grant),  # type: ignore[arg-type]
    }


@on_a_file
@pytest.mark.parametrize("operation", ["create", "charge", "claim", "complete", "grant"])
def test_what_is_written_is_synced_before_the_call_returns(
    ledger: Ledger, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of every commit the connection syncs the file, its journal and the folder."""
    act = writes(ledger)[operation]
    settings: list[tuple[str, int]] = []

    class Watched(ledger_file.SQLiteConnection):
        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == "COMMIT":
                self.note()
            return super().execute(sql, *args)  # type: ignore[arg-type]

        def note(self) -> None:
            mode = super().execute("PRAGMA journal_mode").fetchone()[0]
            settings.append((mode, super().execute("PRAGMA synchronous").fetchone()[0]))

    monkeypatch.setattr(ledger_file, "SQLiteConnection", Watched)
    act()
    assert settings
    assert set(settings) == {("delete", EXTRA)}
