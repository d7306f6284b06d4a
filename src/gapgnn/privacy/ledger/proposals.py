"""Two people for a grant: one signer proposes it, another approves it.

Where the setting ``two-person-grants`` is on, grants, settings and signers are written as a note
``proposed`` with their terms. Approval carries them out and writes a note ``approved`` that names
both rows. Who the two are is known by their signatures (:mod:`gapgnn.privacy.ledger.signing`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.ledger import signing
from gapgnn.privacy.ledger.chain import setting
from gapgnn.privacy.ledger.notes import Origin, write_note

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection


def needs_two(db: Connection) -> bool:
    """Tell whether a grant, a setting or a signer takes two people."""
    return setting(db, "two-person-grants") == "on"


def propose(db: Connection, terms: Mapping[str, Any], origin: Origin) -> None:
    """Write what one signer wants; somebody else may approve it."""
    if not signing.own_signer(db):
        raise PrivacyError(
            "grants, settings and signers of this ledger take two people. Name the file of your "
            f"private key in {signing.VARIABLE}; somebody else then approves the proposal with "
            "`gapgnn ledger approve`. Nothing was changed."
        )
    write_note(db, "proposed", json.dumps(terms), origin)


def open_proposals(db: Connection) -> dict[int, dict[str, Any]]:
    """Return what was proposed and not approved yet, by the number of its note."""
    query = "SELECT seq, about FROM notes WHERE kind = ? ORDER BY seq"
    approved = {
        json.loads(about)["proposal"] for _, about in db.execute(query, ("approved",)).fetchall()
    }
    return {
        seq: json.loads(about)
        for seq, about in db.execute(query, ("proposed",)).fetchall()
        if seq not in approved
    }


def check_approvable(db: Connection, number: int) -> dict[str, Any]:
    """Return the terms of a proposal; refuse its own author and whoever does not sign."""
    waiting = open_proposals(db)
    if number not in waiting:
        raise InputError(
            f"`number` must be that of an open proposal. Got {number}; open are "
            f"{', '.join(map(str, waiting)) or 'none'}."
        )
    own = signing.own_signer(db)
    (author,) = db.execute(
        "SELECT signer FROM entries WHERE source = 'notes' AND number = ?", (number,)
    ).fetchone()
    if not own or own == author:
        raise PrivacyError(
            f"proposal {number} of {author!r} must be approved by another signer. Got "
            f"{own or 'nobody'!r}: name the file of your private key in {signing.VARIABLE}."
        )
    return waiting[number]
