"""An excerpt of the ledger: the charges of one model and their place in the chain, without names.

The links of a chain are hashes under a key that stays in the ledger, so a link says nothing about
the people, the reasons or the other charges it covers. For the same reason an outsider cannot
compute a link. What the excerpt gives is a commitment of the ledger's owner: a charge with this
epsilon, delta and these events is at this place of a chain that ends, on the day of the release, in
this link. Whoever has the excerpt can ask the owner for ``gapgnn ledger verify --against``, which
fails if the charge, or anything before it, was changed or removed since. A signature, where entries
are signed, is checked without the owner.

No population, user, host, reason or command is in it, and of the signer the public key alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gapgnn.errors import GapgnnError, IntegrityError
from gapgnn.privacy.card import ChargedRelease, PrivacyCard
from gapgnn.privacy.ledger import Charge, Entry, Ledger, is_signed

FORMAT = 1
# What a charge and a release of the card both state.
_SHARED = ("relation", "epsilon", "delta")


def excerpt_of(card: PrivacyCard, ledger: Ledger) -> dict[str, Any]:
    """Return the charges of a model and their entries in the chain.

    Of a charge to several populations the first entry counts: how many there are is for the owner
    alone.

    Raises:
        IntegrityError: if the ledger has no such charge, or its chain is broken.
    """
    if problems := ledger.problems():
        raise IntegrityError(f"the ledger {ledger.name} is damaged: {problems[0]}.")
    charges: dict[str, Charge] = {}
    for charge in ledger.entries():
        charges.setdefault(charge.id, charge)
    chain, keys = ledger.chain(), ledger.signers()
    by_link = {entry.link: entry for entry in chain}
    listed = []
    for release in card.releases:
        known = charges.get(release.charge_id)
        if known is None:
            raise IntegrityError(
                f"the ledger {ledger.name} must have the charge {release.charge_id!r} of the card. "
                "Got a ledger without it: name the one that was charged."
            )
        entry = by_link[known.link]
        listed.append({**_of_charge(known), **_of_entry(entry, keys.get(entry.signer, ""))})
    head = chain[-1]
    return {
        "format": FORMAT,
        "excerpt": True,
        "charges": listed,
        "head": {name: getattr(head, name) for name in ("seq", "moment", "link")},
    }


def _of_charge(charge: Charge) -> dict[str, Any]:
    return {
        "id": charge.id,
        "level": charge.level,
        "relation": charge.relation,
        "epsilon": charge.epsilon,
        "delta": charge.delta,
        "count": charge.count,
        "purpose": charge.purpose,
        "events": [dict(event) for event in charge.events],
    }


def _of_entry(entry: Entry, public_key: str) -> dict[str, Any]:
    signature = {"public_key": public_key, "signature": entry.signature} if entry.signer else None
    return {
        "seq": entry.seq,
        "moment": entry.moment,
        "link": entry.link,
        "signed": signature,
    }


def disagreements(card: PrivacyCard, excerpt: dict[str, Any]) -> list[str]:
    """Return what an excerpt says otherwise than the card, or cannot be true of any chain."""
    try:
        if excerpt["format"] != FORMAT:
            return [f"ledger.json must have format {FORMAT}, not {excerpt['format']!r}"]
        charges, head = {one["id"]: one for one in excerpt["charges"]}, excerpt["head"]
        found = [
            f"the charge {name} of ledger.json is not on the card"
            for name in charges
            if name not in {release.charge_id for release in card.releases}
        ]
        for release in card.releases:
            charge = charges.get(release.charge_id)
            if charge is None:
                found.append(f"the charge {release.charge_id} of the card is not in ledger.json")
            else:
                found += _of_release(release, charge)
        if card.ledger is not None and card.ledger.head and card.releases:
            own = charges.get(card.ledger.charge_id, {}).get("link")
            if own != card.ledger.head:
                found.append("the card has another link of its charge than ledger.json")
        found += _order([*excerpt["charges"], head])
        found += [
            f"the entry of charge {one['id']} is not signed by the key it names"
            for one in excerpt["charges"]
            if one["signed"] is not None and not is_signed(one["link"], **one["signed"])
        ]
    except (GapgnnError, KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"ledger.json cannot be read: {error!r}"]
    return found


def _of_release(release: ChargedRelease, charge: dict[str, Any]) -> list[str]:
    stated = {
        "relation": release.relation.name,
        "epsilon": release.epsilon,
        "delta": release.delta,
    }
    found = [
        f"{name} of the charge {release.charge_id}: {stated[name]} on the card, {charge[name]} in "
        "ledger.json"
        for name in _SHARED
        if stated[name] != charge[name]
    ]
    if _sorted(release.events) != _sorted(charge["events"]):
        found.append(f"what the charge {release.charge_id} was for")
    return found


def _sorted(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return events in an order that does not depend on how they were listed."""
    return sorted(json.dumps(dict(event), sort_keys=True) for event in events)


def _order(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the places of entries: the head is the last of them."""
    ordered = [*sorted(entries[:-1], key=lambda one: int(one["seq"])), entries[-1]]
    for one, after in itertools.pairwise(ordered):
        is_same = one["seq"] == after["seq"]
        if one["seq"] > after["seq"] or one["moment"] > after["moment"]:
            return ["an entry of ledger.json is later than the head of the chain, or out of order"]
        if is_same != (one["link"] == after["link"]):
            return ["one place of the chain has two links in ledger.json"]
    return []
