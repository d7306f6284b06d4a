"""What a ledger can prove to somebody who doubts its owner.

The owner has the key of the chain and can write another history. What he cannot do:

- *Forget a link that left.* Every card has the link of its charge, and an export has all of them. A
  link covers its entry and everything before it, so one that is not in the chain shows that the
  entry, or one before it, was changed or removed (:func:`missing`).
- *Write in somebody's name.* A signature is of a link and needs the signer's private key
  (:mod:`gapgnn.privacy.ledger.signing`).
- *Grant alone* where ``two-person-grants`` is on: a grant, a setting or a signer is then proposed
  by one signer and approved by another, and both signatures are in the chain.

:func:`broken_promises` reads the entries in their order and tells where signatures or approvals
that were required at that moment are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapgnn.privacy.ledger.chain import CHANGED_SETTINGS
from gapgnn.privacy.ledger.signing import is_signed

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection


@dataclass(frozen=True)
class Entry:
    """One entry of the chain.

    Attributes:
        seq: its number; entries are in the order in which they were written.
        source: the table of its row: ``grants``, ``charges`` or ``notes``.
        number: of the row in that table.
        moment: when it was written; never before that of the entry before it.
        link: its keyed hash, which covers all entries up to it.
        signer: who signed the link; empty where nobody did.
        signature: Ed25519, in hexadecimal digits.
    """

    seq: int
    source: str
    number: int
    moment: str
    link: str
    signer: str
    signature: str


def entries_of(db: Connection) -> list[Entry]:
    """Return the entries of the chain, oldest first."""
    rows = db.execute(
        "SELECT seq, source, number, moment, link, signer, signature FROM entries ORDER BY seq"
    ).fetchall()
    return [Entry(*row) for row in rows]


@dataclass(frozen=True)
class Removal:
    """People who were removed from a saved folder, as the chain has it.

    Attributes:
        id: random, and in the configuration of the folder too.
        people: how many.
        releases: rows that were removed, by the charge of their release.
        moment: when it was written.
        link: of the entry.
    """

    id: str
    people: int
    releases: Mapping[str, int]
    moment: str
    link: str


def removals(db: Connection) -> dict[str, Removal]:
    """Return the removals of people from saved folders by their ids, oldest first."""
    rows = db.execute(
        "SELECT about, moment, link FROM notes JOIN entries ON source = 'notes' "
        "AND number = notes.seq WHERE kind = 'forgotten' ORDER BY notes.seq"
    ).fetchall()
    found = (Removal(**json.loads(about), moment=moment, link=link) for about, moment, link in rows)
    return {one.id: one for one in found}


def missing(entries: Sequence[Entry], exported: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which entries of an earlier export are not in the chain, or not at their place.

    >>> first = Entry(1, "charges", 1, "2027-11-15T00:00:00+00:00", "5f", "", "")
    >>> missing([first], [vars(first)]), len(missing([], [vars(first)]))
    ([], 1)
    """
    for place, one in enumerate(exported):
        if place >= len(entries) or entries[place].link != one["link"]:
            return [
                f"entry {one['seq']} of the export ({one['source']} {one['number']} of "
                f"{one['moment']}), or one before it, was changed or removed since"
            ]
    return []


def broken_promises(db: Connection) -> list[str]:
    """Return what is wrong with signatures and approvals, entry by entry."""
    notes = {
        seq: (what, about)
        for seq, what, about in db.execute("SELECT seq, kind, about FROM notes").fetchall()
    }
    entries = entries_of(db)
    by_row = {(entry.source, entry.number): entry for entry in entries}
    approvals = _approvals(entries, notes)
    state, public_keys, problems = dict(CHANGED_SETTINGS), dict[str, str](), []
    for entry in entries:
        what, about = notes.get(entry.number, ("", "")) if entry.source == "notes" else ("", "")
        needs_two = state["two-person-grants"] == "on" and (
            entry.source == "grants" or what in ("setting", "signer")
        )
        before, is_new = public_keys, True
        if what == "signer":
            name, public_key = about.rsplit(" ", 1)
            is_new = name not in before
            public_keys = {**before, name: public_key}
        elif what == "setting" and ": " in about:
            name, change = about.split(": ", 1)
            state[name] = change.rpartition(" to ")[2]
        is_required = state["require-signatures"] == "on"
        if entry.signer:
            # A key counts from the next entry on, but for that of a new signer.
            counting = public_keys if is_new and not is_required else before
            if not is_signed(entry.link, counting.get(entry.signer, ""), entry.signature):
                problems.append(f"entry {entry.seq} is not signed by {entry.signer!r}, as it says")
        elif is_required:
            problems.append(f"entry {entry.seq} is not signed, and signatures were required")
        elif not is_new:
            problems.append(f"entry {entry.seq} is a new key of a signer, and no signer signed it")
        if needs_two and not _is_approved(entry, approvals, by_row):
            problems.append(f"entry {entry.seq} was not approved by a second signer")
    return problems


def _approvals(
    entries: Sequence[Entry], notes: Mapping[int, tuple[str, str]]
) -> dict[tuple[str, int], tuple[int, Entry]]:
    """Return the proposal and the approval of every row that was made by one."""
    found = {}
    for entry in entries:
        what, about = notes.get(entry.number, ("", "")) if entry.source == "notes" else ("", "")
        if what == "approved":
            said = json.loads(about)
            found[said["source"], said["number"]] = said["proposal"], entry
    return found


def _is_approved(
    entry: Entry,
    approvals: Mapping[tuple[str, int], tuple[int, Entry]],
    by_row: Mapping[tuple[str, int], Entry],
) -> bool:
    """Tell whether two different signers stand behind an entry; signatures are checked apart."""
    if (entry.source, entry.number) not in approvals:
        return False
    number, approval = approvals[entry.source, entry.number]
    proposal = by_row.get(("notes", number))
    return (
        proposal is not None
        and bool(proposal.signer and approval.signer)
        and proposal.signer != approval.signer
    )
