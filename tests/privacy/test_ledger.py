"""The ledger's promises: exact, durable, shared, and never quietly started anew."""

from __future__ import annotations

import math
import os
import pickle
import socket
import sqlite3
import stat
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import BudgetExceededError, InputError, PrivacyError, UnavailableError
from gapgnn.privacy.ledger import Budget, Charge, Ledger, People
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.chain import SCHEMA_VERSION
from gapgnn.privacy.ledger.store import default_place
from postgres_server import on_a_file

CUSTOMERS = People(np.arange(10), "5f" * 32, name="customers")
OTHERS = People(np.arange(20, 30), "a0" * 32, name="others")


def grant(
    ledger: Ledger, epsilon: float, delta: float = 1e-3, people: People = CUSTOMERS, **options: str
) -> Budget:
    stated = {"level": "edge", "relation": "undirected", "composition": "sum", **options}
    return ledger.grant(people.name, people, **stated, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]


def charge(
    ledger: Ledger,
    epsilon: float = 1.0,
    delta: float = 0.0,
    people: People = CUSTOMERS,
    **options: object,
) -> Charge:
    given = {"level": "edge", "relation": "undirected", "events": [], "purpose": "test", **options}
    return ledger.charge(people, epsilon=epsilon, delta=delta, **given)  # type: ignore[arg-type]


def spent(ledger: Ledger, level: str = "edge") -> tuple[float, float]:
    (row,) = (r for r in ledger.summary() if (r.population, r.level) == ("customers", level))
    return row.spent_epsilon, row.spent_delta


def test_a_charge_is_read_back_as_it_was_made(ledger: Ledger) -> None:
    events = [{"kind": "gaussian", "noise_multiplier": 6.617, "count": 2}]
    made = charge(ledger, 0.5, 1e-6, events=events, purpose="GAP fit", reason="monthly", count=3)
    (read,) = ledger.entries()
    assert (read.id, read.epsilon, read.delta, read.count) == (made.id, 0.5, 1e-6, 3)
    assert (read.purpose, read.reason, list(read.events)) == ("GAP fit", "monthly", events)
    assert (read.who, read.host, read.command) == (made.who, made.host, made.command)
    assert read.host == socket.gethostname()
    assert read.completed_at is None
    ledger.complete(made.id)
    assert ledger.entries("customers")[0].completed_at is not None
    assert ledger.entries("others") == []


def test_completion_changes_nothing_about_what_is_spent(ledger: Ledger) -> None:
    grant(ledger, 2)
    made = charge(ledger, 1)
    before = spent(ledger)
    ledger.complete(made.id)
    assert spent(ledger) == before == (1.0, 0.0)
    with pytest.raises(InputError, match="`charge_id` must name a charge"):
        ledger.complete("nonsense")


def test_without_a_grant_runs_are_recorded_and_not_limited(ledger: Ledger) -> None:
    made = charge(ledger, 1000, 0.5, count=2)
    assert made.budget is not None
    assert (made.budget.granted_epsilon, made.budget.left_epsilon) == (None, None)
    assert spent(ledger) == (2000.0, 1.0)


def test_over_budget_says_what_is_left_and_what_was_asked_and_records_nothing(
    ledger: Ledger,
) -> None:
    grant(ledger, 4, 1e-5)
    charge(ledger, 3, 1e-6)
    with pytest.raises(BudgetExceededError) as refusal:
        charge(ledger, 0.5, 1e-6, count=3)
    assert str(refusal.value).startswith(
        "The budget of customers at edge level (undirected, sum) has epsilon 1 and delta 9e-06 "
        "left. Got a request for epsilon 1.5 and delta 3e-06; nothing was charged."
    )
    assert len(ledger.entries()) == 1
    assert spent(ledger) == (3.0, 1e-6)


def test_delta_alone_can_exhaust_a_budget(ledger: Ledger) -> None:
    grant(ledger, 100, 1e-6)
    charge(ledger, 1, 1e-6)
    with pytest.raises(BudgetExceededError, match="delta 0 left"):
        charge(ledger, 1, 1e-9)


@on_a_file
@pytest.mark.parametrize(("budget", "unit", "times"), [(100, 1, 100), (1, 0.1, 10), (0.3, 0.1, 3)])
def test_a_budget_can_be_spent_to_the_last_unit_and_no_further(
    ledger: Ledger, budget: float, unit: float, times: int
) -> None:
    grant(ledger, budget)
    for _ in range(times - 1):
        charge(ledger, unit)
    last = charge(ledger, unit)
    assert last.budget is not None
    assert last.budget.left_epsilon == 0.0
    with pytest.raises(BudgetExceededError):
        charge(ledger, 1e-6)


@settings(max_examples=20, deadline=None)
@given(amounts=st.lists(st.floats(1e-6, 10), min_size=1, max_size=8), budget=st.floats(0.5, 20))
def test_what_was_let_in_never_exceeds_the_grant_and_what_fits_is_let_in(
    amounts: list[float], budget: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder) / "ledger.sqlite")
        grant(ledger, budget)
        total = Fraction(0)
        for amount in amounts:
            if total + Fraction(repr(amount)) <= Fraction(repr(budget)):
                charge(ledger, amount)
                total += Fraction(repr(amount))
            else:
                with pytest.raises(BudgetExceededError):
                    charge(ledger, amount)
        assert spent(ledger)[0] == float(total)


def test_populations_that_are_read_together_are_charged_together_or_not_at_all(
    ledger: Ledger,
) -> None:
    grant(ledger, 5)
    grant(ledger, 1, people=OTHERS)
    both = People(np.arange(5, 25), "77" * 32)
    made = charge(ledger, 1, people=both)
    assert (made.population, made.others) == ("customers", ("others",))
    assert [entry.others for entry in ledger.entries()] == [("others",), ("customers",)]
    with pytest.raises(BudgetExceededError, match="budget of others"):
        charge(ledger, 1, people=both)
    assert len(ledger.entries()) == 2
    assert spent(ledger)[0] == 1.0


def test_a_grant_can_be_raised_and_lowered_but_not_below_what_is_spent(ledger: Ledger) -> None:
    grant(ledger, 4)
    charge(ledger, 2)
    assert grant(ledger, 8).left_epsilon == 6.0
    assert grant(ledger, 2).left_epsilon == 0.0
    with pytest.raises(PrivacyError, match=r"below what is spent: epsilon 2 .* Got epsilon 1\.9"):
        grant(ledger, 1.9)
    assert ledger.summary()[0].granted_epsilon == 2.0


def test_a_charge_under_another_relation_than_the_grants_is_refused(ledger: Ledger) -> None:
    grant(ledger, 4)
    with pytest.raises(PrivacyError, match=r"under undirected\. Got a charge under directed"):
        charge(ledger, 1, relation="directed")
    assert ledger.entries() == []


def test_earlier_charges_count_by_group_privacy_under_the_stricter_relation(
    ledger: Ledger,
) -> None:
    charge(ledger, 1, 1e-6, relation="directed")
    charge(ledger, 1, 1e-6)
    budget = grant(ledger, 10)
    assert budget.spent_epsilon == 3.0
    assert budget.spent_delta == pytest.approx(1e-6 + (1 + math.e) * 1e-6, rel=1e-9)
    assert budget.relations == ("directed", "undirected")


def test_a_grant_under_the_weaker_relation_is_refused_once_the_stricter_was_charged(
    ledger: Ledger,
) -> None:
    charge(ledger, 1)
    with pytest.raises(PrivacyError, match="`relation` must be undirected"):
        grant(ledger, 10, relation="directed")


def test_group_privacy_never_overflows_and_never_needs_more_than_delta_one() -> None:
    assert Amount.of(1000, 1e-9).grouped(2) == Amount(Fraction(2000), Fraction(1))
    assert Amount.of(1000, 0).grouped(2).delta == 0
    assert Amount.of(1, 0.3).grouped(2).delta == 1
    assert Amount.of(1e-3, 1e-9).grouped(10**9) == Amount(Fraction(10**6), Fraction(1))


def test_levels_have_budgets_of_their_own_and_one_is_no_way_around_the_other(
    ledger: Ledger,
) -> None:
    grant(ledger, 1)
    with pytest.raises(PrivacyError, match="node level is closed"):
        charge(ledger, 1, level="node", relation="add-remove")
    grant(ledger, 8, level="node", relation="add-remove")
    charge(ledger, 8, level="node", relation="add-remove")
    charge(ledger, 1)
    assert (spent(ledger, "edge")[0], spent(ledger, "node")[0]) == (1.0, 8.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": -1.0}, "`epsilon` must be at least 0"),
        ({"epsilon": math.inf}, "`epsilon` must be finite"),
        ({"epsilon": math.nan}, "`epsilon` must be a number"),
        ({"delta": 1.0}, "`delta` must be at least 0 and below 1"),
        ({"count": 0}, "`count` must be at least 1"),
        ({"level": "none"}, "`level` must be one of edge, node"),
        ({"relation": "replace"}, "must be one of auto, directed, undirected, 5-edges"),
        ({"events": [{"at": math.nan}]}, "`events` must be plain dictionaries"),
    ],
)
def test_bad_input_is_refused_before_a_ledger_is_made(
    own: Ledger, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        charge(own, **wrong)  # type: ignore[arg-type]
    assert not own.path.exists()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ledger:
    """Return the user's own ledger, which is not there yet."""
    monkeypatch.delenv("GAPGNN_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Ledger()


def test_the_users_own_ledger_is_made_by_the_first_write_for_its_owner_only(own: Ledger) -> None:
    assert (own.entries(), own.summary(), own.problems()) == ([], [], [])
    assert own.setting("require-grant") == "off"
    assert not own.path.parent.exists()
    charge(own)
    assert stat.S_IMODE(own.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.path.parent.stat().st_mode) == 0o700
    assert os.listdir(own.path.parent) == ["ledger.sqlite"]


def test_a_ledger_that_was_named_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mistyped.sqlite"
    monkeypatch.setenv("GAPGNN_LEDGER", str(path))
    for ledger in (Ledger(path), Ledger()):
        operations = (
            lambda: charge(ledger),  # noqa: B023
            lambda: grant(ledger, 1),  # noqa: B023
            lambda: ledger.set("require-grant", "on"),  # noqa: B023
            ledger.entries,
            ledger.summary,
            ledger.problems,
            lambda: ledger.claimed("x"),  # noqa: B023
        )
        for operation in operations:
            with pytest.raises(InputError) as refusal:
                operation()
            assert f"`gapgnn ledger init {path}`" in str(refusal.value)
            assert "\n" not in str(refusal.value)
    assert os.listdir(tmp_path) == []
    made = Ledger.init(path)
    charge(made)
    assert len(Ledger.init(path).entries()) == 1  # what is there stays
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_written_to_a_ledger_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.init(tmp_path / "team folder" / "ledger.sqlite")
    charge(ledger)
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr("gapgnn.privacy.ledger.mounts.MOUNTS", mounts)
    listed = f"{tmp_path}/team\\040folder"
    local = "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
    for found in ("nfs4", "cifs", "fuse.sshfs", "9p"):
        mounts.write_text(f"{local}2 1 0:40 / {listed} rw shared:1 - {found} server:/team rw\n")
        before = ledger.path.read_bytes()
        for act in (lambda: charge(ledger), lambda: grant(ledger, 1)):
            with pytest.raises(UnavailableError) as refusal:
                act()
            assert f"network file system ({found})" in str(refusal.value)
            assert "gapgnn ledger init postgresql://" in str(refusal.value)
        with pytest.raises(UnavailableError, match="network file system"):
            Ledger.init(tmp_path / "team folder" / "new.sqlite")
        assert ledger.path.read_bytes() == before
        assert len(ledger.entries()) == 1  # reading it to move it is fine
    mounts.write_text(f"{local}2 1 0:40 / {listed} rw - fuse.gocryptfs /home rw\n")
    charge(ledger)


def test_the_default_file_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GAPGNN_LEDGER", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert default_place() == tmp_path / ".local/share/gapgnn/ledger.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_place() == tmp_path / "data/gapgnn/ledger.sqlite"
    monkeypatch.setenv("GAPGNN_LEDGER", str(tmp_path / "mine.sqlite"))
    assert Ledger().path == tmp_path / "mine.sqlite"


def test_a_ledger_object_can_be_pickled(ledger: Ledger) -> None:
    charge(ledger)
    copy = pickle.loads(pickle.dumps(ledger))
    assert len(copy.entries()) == 1


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" + path.read_bytes()[21:])


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_emptied(path: Path) -> None:
    path.write_bytes(b"")


def damage_zeroed_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))


def damage_amount(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE charges SET epsilon = 'plenty'")
    db.close()


def damage_foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE cookies (crumbs)")
    db.close()


@on_a_file
@pytest.mark.parametrize(
    "damage",
    [
        damage_header,
        damage_truncated,
        damage_emptied,
        damage_zeroed_pages,
        damage_amount,
        damage_foreign,
    ],
)
def test_a_damaged_or_foreign_file_stops_everything_and_stays_as_it_is(
    ledger: Ledger, damage: object
) -> None:
    grant(ledger, 4)
    charge(ledger, 1)
    damage(ledger.path)  # type: ignore[operator]
    before = ledger.path.read_bytes()
    for operation in (lambda: charge(ledger, 1), ledger.entries, ledger.summary):
        with pytest.raises(PrivacyError, match="damaged or not a ledger") as refusal:
            operation()
        assert "\n" not in str(refusal.value)
    assert ledger.path.read_bytes() == before
    assert os.listdir(ledger.path.parent) == ["ledger.sqlite"]


@on_a_file
def test_a_journal_without_its_ledger_is_not_a_reason_to_begin_anew(ledger: Ledger) -> None:
    ledger.path.unlink()
    Path(f"{ledger.path}-journal").write_bytes(b"half a transaction")
    with pytest.raises(PrivacyError, match="journal is there"):
        Ledger.init(ledger.path)
    assert not ledger.path.exists()


@on_a_file
def test_a_ledger_of_a_newer_version_is_not_touched(ledger: Ledger) -> None:
    charge(ledger)
    with sqlite3.connect(ledger.path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(PrivacyError, match=rf"newer gapgnn\. Got version {SCHEMA_VERSION + 1}"):
        charge(ledger)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be created"):
        Ledger.init(tmp_path / "file" / "ledger.sqlite")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnavailableError, match="cannot be read or written"):
        charge(Ledger(tmp_path / "folder"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_permissions_are_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(UnavailableError, match="cannot be created: Permission denied"):
        Ledger.init(closed / "ledger.sqlite")


@on_a_file
def test_a_ledger_that_stays_locked_is_reported_as_busy(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapgnn.privacy.ledger.sqlite.BUSY_SECONDS", 0.05)
    charge(ledger)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="is busy"):
        charge(ledger)
    holder.close()
    charge(ledger)
    assert len(ledger.entries()) == 2
