"""What a ledger proves to somebody who doubts its owner: links, signatures, two people."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gapgnn.privacy.ledger.sqlite as ledger_file
from gapgnn.errors import InputError, IntegrityError, PrivacyError
from gapgnn.privacy.ledger import (
    Charge,
    Ledger,
    LedgerNotice,
    People,
    chain,
    make_key,
    proposals,
)
from postgres_server import on_a_file

TERMS: dict[str, Any] = {"level": "edge", "relation": "undirected"}
BUDGET: dict[str, Any] = {**TERMS, "epsilon": 4, "delta": 1e-3, "composition": "sum"}
PEOPLE = People(np.arange(10), "5f" * 32, name="customers")


def charge(ledger: Ledger, people: People = PEOPLE, epsilon: float = 0.1) -> Charge:
    fit = {**TERMS, "epsilon": epsilon, "delta": 0.0, "events": [], "purpose": "fit"}
    return ledger.charge(people, **fit)  # type: ignore[arg-type]


def by_hand(ledger: Ledger, *statements: str, rewrite: bool = False) -> None:
    """Change a ledger file; with ``rewrite`` as its owner can, who has the key of the chain."""
    db = sqlite3.connect(ledger.path, isolation_level=None, factory=ledger_file.SQLiteConnection)
    db.execute("BEGIN")
    for statement in statements:
        db.execute(statement)
    if rewrite:
        for table in chain.CHAINED:
            db.execute(f"UPDATE {table} SET chain = NULL")
        for table in chain.CHAINED:
            if not db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:
                db.execute("DELETE FROM settings WHERE key = ?", (f"last of {table}",))
        db.execute("DELETE FROM entries")
        chain.seal_transaction(db)
    db.execute("COMMIT")
    db.close()


def test_entries_are_in_the_order_in_which_they_were_written(ledger: Ledger) -> None:
    ledger.set("require-grant", "on")
    ledger.grant("customers", PEOPLE, **BUDGET)
    made = charge(ledger)
    ledger.set("require-grant", "off")
    entries = ledger.chain()
    assert [entry.source for entry in entries] == ["notes", "grants", "charges", "notes"]
    assert [entry.moment for entry in entries] == sorted(entry.moment for entry in entries)
    assert made.link == entries[2].link == ledger.entries()[0].link
    assert len({entry.link for entry in entries}) == 4
    assert ledger.problems() == []


CHANGES = {
    "an entry removed": "DELETE FROM entries WHERE seq = 2",
    "the last entry removed": "DELETE FROM entries WHERE seq = 3",
    "all entries removed": "DELETE FROM entries",
    "a link changed": "UPDATE entries SET link = 'x' WHERE seq = 2",
    "a time changed": "UPDATE entries SET moment = '2001-01-01' WHERE seq = 3",
    "an entry moved to the end": "UPDATE entries SET seq = 9 WHERE seq = 1",
    "an entry added": "INSERT INTO entries VALUES (9, 'notes', 7, '2099', 'x', '', '')",
    "a setting switched": "UPDATE settings SET value = 'off' WHERE key = 'require-grant'",
}


@on_a_file
@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES)
def test_a_changed_order_or_time_or_setting_is_found(ledger: Ledger, statement: str) -> None:
    ledger.set("require-grant", "off")
    charge(ledger)
    charge(ledger)
    ledger.set("require-grant", "on")
    assert ledger.problems() == []
    by_hand(ledger, statement)
    assert ledger.problems()
    with pytest.raises(IntegrityError):
        charge(ledger)


@on_a_file
def test_a_setting_that_no_note_explains_is_found_also_under_a_new_seal(ledger: Ledger) -> None:
    ledger.set("require-grant", "on")
    by_hand(ledger, "UPDATE settings SET value = 'off' WHERE key = 'require-grant'", rewrite=True)
    assert ledger.problems() == ["the setting require-grant is not what the notes say"]


@on_a_file
def test_a_history_that_the_owner_rewrote_lacks_the_links_that_left(ledger: Ledger) -> None:
    ledger.grant("customers", PEOPLE, **BUDGET)
    made = [charge(ledger) for _ in range(3)]
    exported = [asdict(entry) for entry in ledger.chain()]
    charge(ledger)
    assert ledger.missing(exported) == []
    rewrites = (
        "UPDATE charges SET epsilon = '0.05' WHERE seq = 2",
        "DELETE FROM charges WHERE seq = 3",
        "DELETE FROM charges",
        "UPDATE grants SET epsilon = '40'",
    )
    for statement in rewrites:
        twin = Ledger(shutil.copy(ledger.path, ledger.path.with_name("twin.sqlite")))
        by_hand(twin, statement, rewrite=True)
        assert twin.problems() == []  # the owner has the key, so the file itself looks whole
        (found,) = twin.missing(exported)
        assert "was changed or removed since" in found
        links = {entry.link for entry in twin.chain()}
        assert made[2].link not in links  # as a card has it


@on_a_file
def test_a_ledger_of_version_4_is_brought_up_with_its_settings_explained(
    ledger: Ledger,
) -> None:
    shutil.copy(Path(__file__).parents[1] / "fixtures/version_4/ledger.sqlite", ledger.path)
    with pytest.warns(LedgerNotice, match=r"version 5, .*\.version-4"):
        (made,) = ledger.entries()
    assert [entry.source for entry in ledger.chain()] == ["grants", "charges", "notes"]
    assert (made.epsilon, ledger.setting("require-grant")) == (1.0, "on")
    assert ledger.problems() == []
    charge(ledger)
    assert ledger.problems() == []


@pytest.fixture
def as_signer(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Register three signers; give the function that makes this process one of them."""
    for name in ("ann", "bob", "mallory"):
        public_key = make_key(tmp_path / f"{name}.pem")
        if name != "mallory":
            ledger.add_signer(name, public_key)

    def become(name: str) -> None:
        monkeypatch.setenv("GAPGNN_SIGNING_KEY", str(tmp_path / f"{name}.pem") if name else "")

    return become


def test_what_is_written_with_a_key_is_signed_and_unknown_keys_are_refused(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path
) -> None:
    as_signer("ann")
    charge(ledger)
    assert ledger.chain()[-1].signer == "ann"
    before = ledger.entries()
    as_signer("mallory")
    with pytest.raises(PrivacyError, match="Got an unknown one"):
        charge(ledger)
    as_signer("")
    charge(ledger)  # nobody has to sign yet
    with pytest.raises(PrivacyError, match="requires signatures"):
        ledger.set("require-signatures", "on")
    as_signer("ann")
    ledger.set("require-signatures", "on")
    as_signer("")
    with pytest.raises(PrivacyError, match="requires signatures"):
        charge(ledger)
    as_signer("bob")
    charge(ledger)
    assert len(ledger.entries()) == len(before) + 2
    assert ledger.problems() == []
    assert (tmp_path / "ann.pem").stat().st_mode & 0o777 == 0o600


@on_a_file
def test_nobody_else_can_write_in_a_signers_name(
    ledger: Ledger, as_signer: Callable[[str], None]
) -> None:
    as_signer("ann")
    ledger.set("require-signatures", "on")
    charge(ledger)
    assert ledger.problems() == []
    forgeries = (
        "UPDATE entries SET signer = 'bob' WHERE source = 'charges'",
        "UPDATE entries SET signature = '' WHERE source = 'charges'",
        "UPDATE entries SET signature = (SELECT signature FROM entries WHERE signer = 'ann' "
        "LIMIT 1) WHERE source = 'charges'",
        "UPDATE entries SET signer = '', signature = '' WHERE source = 'charges'",
    )
    for statement in forgeries:
        twin = Ledger(shutil.copy(ledger.path, ledger.path.with_name("twin.sqlite")))
        by_hand(twin, statement)
        assert any("signed" in problem for problem in twin.problems()), statement
    # A rewritten amount needs new links, and those nobody has signed.
    by_hand(ledger, "UPDATE charges SET epsilon = '0.0'", rewrite=True)
    assert "is not signed" in ledger.problems()[0]


def test_a_grant_of_two_people_counts_when_the_second_has_signed(
    ledger: Ledger, as_signer: Callable[[str], None]
) -> None:
    as_signer("ann")
    ledger.grant("customers", PEOPLE, **BUDGET)
    ledger.set("two-person-grants", "on")
    before = ledger.grant("customers", **{**BUDGET, "epsilon": 400})
    assert before.granted_epsilon == 4.0
    (number,) = ledger.proposals()
    with pytest.raises(PrivacyError, match="another signer"):
        ledger.approve(number)
    as_signer("")
    with pytest.raises(PrivacyError, match="another signer"):
        ledger.approve(number)
    with pytest.raises(PrivacyError, match="take two people"):
        ledger.grant("customers", **{**BUDGET, "epsilon": 400})
    with pytest.raises(PrivacyError, match="take two people"):
        ledger.set("two-person-grants", "off")
    as_signer("bob")
    with pytest.raises(InputError, match="open are"):
        ledger.approve(number + 7)
    ledger.approve(number)
    assert ledger.summary()[0].granted_epsilon == 400.0
    with pytest.raises(InputError, match="open are none"):
        ledger.approve(number)
    # Nobody switches the rule off, or brings a second key, alone.
    ledger.set("two-person-grants", "off")
    assert ledger.setting("two-person-grants") == "on"
    as_signer("ann")
    ledger.approve(max(ledger.proposals()))
    assert ledger.setting("two-person-grants") == "off"
    assert ledger.problems() == []


def test_a_new_key_of_a_signer_is_signed_by_the_old_one_and_both_keep_their_entries(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path
) -> None:
    as_signer("ann")
    ledger.set("require-signatures", "on")
    ledger.add_signer("ann", make_key(tmp_path / "new.pem"))
    assert ledger.chain()[-1].signer == "ann"
    with pytest.raises(PrivacyError, match="Got an unknown one"):
        charge(ledger)
    as_signer("new")
    charge(ledger)
    assert ledger.chain()[-1].signer == "ann"
    assert ledger.problems() == []


@pytest.mark.parametrize("required", ["off", "on"])
def test_nobody_takes_a_signers_name_over_by_registering_a_key_for_it(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path, required: str
) -> None:
    as_signer("ann")
    ledger.set("require-signatures", required)
    before, stolen = ledger.signers(), make_key(tmp_path / "stolen.pem")
    for name in ("stolen", ""):
        as_signer(name)
        with pytest.raises(PrivacyError, match=r"Got an unknown one|registered by a signer"):
            ledger.add_signer("ann", stolen)
    assert ledger.signers() == before


@on_a_file
def test_where_signatures_are_required_a_new_signer_is_registered_by_a_known_one(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path
) -> None:
    zoe, joe = (make_key(tmp_path / f"{name}.pem") for name in ("zoe", "joe"))
    as_signer("zoe")
    ledger.add_signer("zoe", zoe)
    assert ledger.chain()[-1].signer == "zoe"
    ledger.set("require-signatures", "on")
    as_signer("joe")
    with pytest.raises(PrivacyError, match="Got an unknown one"):
        ledger.add_signer("joe", joe)
    as_signer("zoe")
    ledger.add_signer("joe", joe)
    as_signer("joe")
    charge(ledger)
    assert [entry.signer for entry in ledger.chain()[-3:]] == ["zoe", "zoe", "joe"]
    assert ledger.problems() == []


@on_a_file
@pytest.mark.parametrize("key", ["stolen", ""])
def test_a_name_that_was_taken_over_is_found(
    ledger: Ledger,
    as_signer: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
) -> None:
    """The owner changes the program, which then asks no signer for a new key of ann's."""
    stolen = make_key(tmp_path / "stolen.pem")
    monkeypatch.setattr(
        "gapgnn.privacy.ledger.signing.own_signer", lambda db: "ann" if key else "nobody"
    )
    as_signer(key)
    ledger.add_signer("ann", stolen)
    (problem,) = ledger.problems()
    assert re.search("is not signed by 'ann'|no signer signed it", problem)


@on_a_file
@pytest.mark.parametrize("name", ["mallory", "ann"])
def test_a_key_of_anybody_takes_two_people_where_grants_do(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    as_signer("ann")
    ledger.set("two-person-grants", "on")
    before, another = ledger.signers(), make_key(tmp_path / "another.pem")
    ledger.add_signer(name, another)
    assert ledger.signers() == before
    as_signer("bob")
    ledger.approve(max(ledger.proposals()))
    assert ledger.signers() == before | {name: another}
    assert ledger.problems() == []


@on_a_file
def test_a_new_key_is_not_approved_by_the_one_it_replaces(
    ledger: Ledger, as_signer: Callable[[str], None], tmp_path: Path
) -> None:
    as_signer("ann")
    ledger.set("two-person-grants", "on")
    ledger.add_signer("bob", make_key(tmp_path / "another.pem"))
    as_signer("bob")
    with pytest.raises(PrivacyError, match="Propose a new key of your own yourself"):
        ledger.approve(max(ledger.proposals()))
    assert len(ledger.proposals()) == 1


@on_a_file
@pytest.mark.parametrize(
    "change",
    [
        lambda ledger, key: ledger.add_signer("zoe", key),
        lambda ledger, key: ledger.set("require-grant", "on"),
    ],
    ids=["signer", "setting"],
)
def test_a_signer_or_setting_that_was_slipped_past_the_second_person_is_found(
    ledger: Ledger,
    as_signer: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Ledger, str], None],
) -> None:
    as_signer("ann")
    ledger.set("two-person-grants", "on")
    monkeypatch.setattr("gapgnn.privacy.ledger.ledger.needs_two", lambda db: False)
    change(ledger, make_key(tmp_path / "zoe.pem"))
    (problem,) = ledger.problems()
    assert "was not approved by a second signer" in problem


@on_a_file
def test_a_grant_that_was_slipped_past_the_second_person_is_found(
    ledger: Ledger, as_signer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner changes the program: his grant is signed, and nobody approved it."""
    as_signer("ann")
    ledger.grant("customers", PEOPLE, **BUDGET)
    ledger.set("two-person-grants", "on")
    monkeypatch.setattr("gapgnn.privacy.ledger.ledger.needs_two", lambda db: False)
    ledger.grant("customers", **{**BUDGET, "epsilon": 400})
    (problem,) = ledger.problems()
    assert "was not approved by a second signer" in problem


@on_a_file
def test_a_proposal_that_its_own_author_approves_is_found(
    ledger: Ledger, as_signer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner changes the program, and signs both entries with the one key he has."""
    as_signer("ann")
    ledger.grant("customers", PEOPLE, **BUDGET)
    ledger.set("two-person-grants", "on")
    ledger.grant("customers", **{**BUDGET, "epsilon": 400})
    (number,) = ledger.proposals()
    monkeypatch.setattr(
        "gapgnn.privacy.ledger.ledger.check_approvable",
        lambda db, number: proposals.open_proposals(db)[number],
    )
    ledger.approve(number)
    (problem,) = ledger.problems()
    assert "was not approved by a second signer" in problem


def test_two_signers_with_one_key_are_refused_and_two_people_are_two(
    ledger: Ledger, tmp_path: Path
) -> None:
    public_key = make_key(tmp_path / "ann.pem")
    ledger.add_signer("ann", public_key)
    with pytest.raises(InputError, match="one signer's"):
        ledger.add_signer("bob", public_key.upper())
    with pytest.raises(InputError, match="takes two signers"):
        ledger.set("two-person-grants", "on")
    for wrong in ("", "ann", public_key[:-2]):
        with pytest.raises(InputError, match="64 hexadecimal digits"):
            ledger.add_signer("bob", wrong)


@on_a_file
def test_time_in_the_chain_is_never_before_the_entry_before(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2099, 1, 1, tzinfo=timezone.utc)

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "datetime", Ahead)
        charge(ledger)
    charge(ledger)
    assert [entry.moment[:4] for entry in ledger.chain()] == ["2099", "2099"]
    assert ledger.problems() == []


def test_the_command_line_verifies_against_an_export_and_watches(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main

    named = ["--ledger", str(ledger.path)]
    ledger.grant("customers", PEOPLE, **BUDGET)
    charge(ledger, epsilon=3.0)
    out = tmp_path / "export.json"
    assert main(["ledger", "export", "--out", str(out), *named]) == 0
    assert main(["ledger", "watch", *named]) == 0
    assert main(["ledger", "verify", "--against", str(out), *named]) == 0
    charge(ledger, epsilon=0.5)
    assert main(["ledger", "verify", "--against", str(out), *named]) == 0
    capsys.readouterr()
    assert main(["ledger", "watch", "--warn-at", "0.8", "--json", *named]) == 1
    (row,) = json.loads(capsys.readouterr().out)["budgets"]
    assert (row["share"], row["warns"], row["has_ended"]) == (0.875, True, False)
    assert main(["ledger", "watch", "--warn-at", "0.9", *named]) == 0
    written = json.loads(out.read_text())
    written["entries"][1]["link"] = "5f" * 16
    out.write_text(json.dumps(written))
    assert main(["ledger", "verify", "--against", str(out), *named]) == 4
    assert "entry 2 of the export" in capsys.readouterr().err
