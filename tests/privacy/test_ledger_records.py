"""What the ledger's chain records beside grants and charges, and that its time only goes on."""

from __future__ import annotations

import sqlite3
import warnings
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import numpy as np
import pytest

import gapgnn.privacy.ledger.sqlite as ledger_file
from gapgnn.errors import BudgetExceededError, PrivacyError
from gapgnn.privacy.ledger import Ledger, LedgerNotice, People
from postgres_server import on_a_file

TERMS: dict[str, Any] = {"level": "edge", "relation": "undirected"}
FIT: dict[str, Any] = {**TERMS, "epsilon": 0.1, "delta": 0.0, "events": [], "purpose": "fit"}
BUDGET: dict[str, Any] = {**TERMS, "epsilon": 4, "delta": 1e-3, "composition": "sum"}


def people(start: int, stop: int, namespace: str = "default") -> People:
    return People.listed(np.arange(start, stop), namespace=namespace, name="a table")


def test_switching_require_grant_off_and_on_is_recorded_in_the_chain(ledger: Ledger) -> None:
    for value in ("on", "on", "off", "on"):
        ledger.set("require-grant", value)
    assert [(note.kind, note.about) for note in ledger.notes()] == [
        ("setting", "require-grant: off to on"),
        ("setting", "require-grant: on to off"),
        ("setting", "require-grant: off to on"),
    ]
    assert all(note.who and note.host and note.noted_at for note in ledger.notes())
    assert ledger.problems() == []


@on_a_file
@pytest.mark.parametrize(
    "change",
    ["DELETE FROM notes WHERE seq = 1", "DELETE FROM notes", "UPDATE notes SET about = 'x'"],
)
def test_a_record_that_was_removed_or_changed_is_found(ledger: Ledger, change: str) -> None:
    ledger.set("require-grant", "on")
    ledger.set("require-grant", "off")
    with sqlite3.connect(ledger.path) as db:
        db.execute(change)
    db.close()
    assert "notes" in ledger.problems()[0]
    with pytest.raises(PrivacyError, match="notes"):
        ledger.charge(people(0, 5), **FIT)


def test_naming_the_same_ids_another_population_warns_once_and_is_recorded(
    ledger: Ledger,
) -> None:
    ledger.grant("customers", people(0, 1000), **BUDGET)
    message = r"'other' shares most ids with population 'customers' of namespace 'default': 1,000"
    with pytest.warns(LedgerNotice, match=message):
        ledger.charge(people(0, 1001, "other"), **FIT)
    assert [note.kind for note in ledger.notes()] == ["overlap"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.charge(people(0, 1001, "other"), **FIT)
        ledger.charge(people(0, 1002, "other"), **FIT)
    assert len(ledger.notes()) == 1
    with pytest.warns(LedgerNotice, match="'third' shares most ids"):
        ledger.grant("thirds", people(0, 600, "third"), **BUDGET)


def test_a_few_people_who_all_belong_to_another_population_are_a_large_overlap(
    ledger: Ledger,
) -> None:
    """And so are the very same people and table that were read under their own name before."""
    ledger.grant("customers", people(0, 1000), **BUDGET)
    some = people(0, 5)
    ledger.charge(some, **FIT)
    with pytest.warns(LedgerNotice, match="'other' shares most ids .* 'default': 5"):
        ledger.charge(People(some.ids, some.fingerprint, "other"), **FIT)


def test_a_small_overlap_with_another_population_is_no_warning(ledger: Ledger) -> None:
    ledger.grant("customers", people(0, 1000), **BUDGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.charge(people(600, 2000, "other"), **FIT)
        ledger.charge(people(0, 1000, "dataset social"), **FIT)
    assert ledger.notes() == []


def set_clock(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return moment.astimezone(tz)

    monkeypatch.setattr(ledger_file, "datetime", Clock)


@on_a_file
@pytest.mark.parametrize("way", ["charge", "price"])
def test_a_clock_set_back_does_not_open_a_budget_that_has_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    start = datetime(2027, 11, 10, 12, tzinfo=timezone.utc)
    set_clock(monkeypatch, start)
    ledger.grant("customers", people(0, 10), **BUDGET, until="2027-11-15")
    ledger.charge(people(0, 10), **FIT)
    set_clock(monkeypatch, start + timedelta(days=10))
    stated = {"level": FIT["level"], "relation": FIT["relation"], "releases": [(0.1, 0.0, [])]}
    ask = {
        "charge": lambda: ledger.charge(people(0, 10), **FIT),
        "price": lambda: ledger.budgets_after(people(0, 10), **stated),
    }[way]
    with pytest.raises(BudgetExceededError, match="ended on 2027-11-15"):
        ask()
    set_clock(monkeypatch, start)
    with pytest.raises(BudgetExceededError, match="ended on 2027-11-15"):
        ledger.charge(people(0, 10), **FIT)
    assert {note.kind for note in ledger.notes()} == {"ended"}
    assert len(ledger.entries()) == 1


@on_a_file
def test_time_in_the_chain_never_runs_backwards(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = datetime(2027, 11, 10, 12, tzinfo=timezone.utc)
    moments = []
    for days in (0, 5, -30):
        set_clock(monkeypatch, start + timedelta(days=days))
        charge = ledger.charge(people(0, 10), **FIT)
        ledger.complete(charge.id)
        moments += [charge.charged_at, ledger.entries()[-1].completed_at]
    ledger.grant("customers", people(0, 10), **BUDGET)
    moments.append(ledger.grants()[-1].granted_at)
    assert moments == sorted(moments, key=str)
    assert moments[-1] == "2027-11-15T12:00:00+00:00"
