"""People who are removed from saved folders: their ids and rows go, and the ledger says so.

A folder holds two things about a person: an id (or a keyed hash of it) in the files of releases,
and the rows beside it. :func:`forget` writes the releases anew without them. Weights, and the rows
of others, into which their messages went under noise, stay; docs/explanation/erasure.md says why.

What a kill leaves. The folder changes in one step (:func:`~gapgnn.methods.folder.replace_releases`)
and then holds a record of the removal that is not marked as recorded. The ledger's entry follows
from that record, which names nobody. Whoever removes people from the folder next, the same or none,
first removes files that a kill has left and writes the entry that is missing (:func:`finish`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.errors import InputError, PrivacyError, UnavailableError
from gapgnn.methods.folder import (
    Saved,
    changing,
    load_folder,
    mark_recorded,
    remove_unnamed,
    replace_releases,
)
from gapgnn.methods.releases import ReleasedHops
from gapgnn.privacy.accounting import Event, group_epsilon
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.ledger import Ledger, pseudonyms
from gapgnn.rng import system_entropy

# Of a comparison of spellings: nothing under this key is kept.
_KEY = b"spellings"
# So many people leave together with a price that still says something.
MOST_TOGETHER = 10


@dataclass(frozen=True)
class Removal:
    """What is removed from one folder.

    Attributes:
        folder: of the saved model, or of released rows.
        level: of its promise.
        rows: how many rows of each release are the people's; of releases that have some.
        known: for each of the given ids, whether a release has a row of it.
        people: number of people with a row; ids in several spellings are one person.
        purposes: what each of these releases was for, by the card.
        card: of the model.
    """

    folder: Path
    level: str
    rows: dict[str, int]
    known: NDArray[np.bool_]
    people: int
    purposes: dict[str, str]
    card: PrivacyCard

    def epsilon_together(self) -> float | None:
        """Return at which epsilon the releases hide that all of these people left at once.

        At node level, at the delta of the card. None elsewhere, and where the people are too many
        for a figure that says anything.
        """
        if self.level != "node" or not self.card.delta or not 1 <= self.people <= MOST_TOGETHER:
            return None
        if any(one.relation != self.card.relation for one in self.card.releases):
            return None
        events = [
            Event.from_dict(dict(event)) for one in self.card.releases for event in one.events
        ]
        relation, people = self.card.relation, self.people
        return group_epsilon(events, self.card.delta, people=people, relation=relation)


def plan_removal(folder: str | Path, ids: Sequence[str], ledger: Ledger) -> Removal:
    """Return what :func:`forget` would remove from a folder; nothing is changed.

    Args:
        folder: of a saved model, or of released rows.
        ids: in any spelling (privacy page, section 6).
        ledger: that the releases were charged to.
    """
    place = Path(folder)
    return _planned(place, load_folder(place), ids, ledger)


def _planned(place: Path, saved: Saved, ids: Sequence[str], ledger: Ledger) -> Removal:
    _check_ledger(place, saved, ledger)
    if not os.access(place, os.W_OK):
        # Before the first of several folders is changed.
        raise UnavailableError(f"the model folder {str(place)!r} cannot be written.")
    known, rows = np.zeros(len(ids), dtype=np.bool_), {}
    for name, released in saved.hops.items():
        asked, there = _names(released, np.array(ids, dtype=str), ledger)
        is_asked = np.isin(there, asked)
        known |= np.isin(asked, there)
        if is_asked.all() and len(there):
            raise InputError(
                f"people must be left in every release of {str(place)!r}. Got all people of one: "
                "remove the folder."
            )
        if is_asked.any():
            rows[name] = int(is_asked.sum())
    purposes = {one.charge_id: one.purpose for one in saved.card.releases}
    for_each = {name: purposes.get(name, "") for name in rows}
    people = len(np.unique(pseudonyms(np.array(ids, dtype=str), _KEY)[known]))
    return Removal(place, saved.card.level, rows, known, people, for_each, saved.card)


def _names(
    released: ReleasedHops, ids: NDArray[Any], ledger: Ledger
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how a release names given ids and its own people, the same for every spelling."""
    if released.is_keyed:
        return ledger.pseudonyms(released.release, ids), released.ids
    return pseudonyms(ids, _KEY), pseudonyms(released.ids, _KEY)


def _check_ledger(place: Path, saved: Saved, ledger: Ledger) -> None:
    """Refuse another ledger than that of the model, which would be the only one to know."""
    charged = [one.charge_id for one in saved.card.releases if one.charge_id in saved.hops]
    if any(ledger.graph_of(charge) is None for charge in charged):
        raise PrivacyError(
            f"the ledger {ledger.name} does not know the model {str(place)!r}, and a removal is "
            "recorded where its charges are. Name the ledger of the training (`ledger`)."
        )


def forget(folder: str | Path, ids: Sequence[str], ledger: Ledger) -> Removal:
    """Remove ids and rows of people from a folder, renew its digests, and record it in the ledger.

    The folder then answers for everybody else as before, and for these ids as for unknown ones.

    Args:
        folder: of a saved model, or of released rows.
        ids: in any spelling; those without a row change nothing.
        ledger: that the releases were charged to.
    """
    place = Path(folder)
    with changing(place):
        finish(place, ledger)
        saved = load_folder(place)
        removal = _planned(place, saved, ids, ledger)
        if not removal.rows:
            return removal
        ledger.check_signer()
        left = [_without(saved.hops[name], ids, ledger) for name in removal.rows]
        record = {
            "id": system_entropy(12).hex(),
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "people": removal.people,
            "releases": removal.rows,
            "link": "",
        }
        replace_releases(place, left, forgotten=record)
        finish(place, ledger)
    return removal


def _without(released: ReleasedHops, ids: Sequence[str], ledger: Ledger) -> ReleasedHops:
    asked, there = _names(released, np.array(ids, dtype=str), ledger)
    keep = ~np.isin(there, asked)
    rows = torch.from_numpy(keep)
    hops = tuple(hop[rows] for hop in released.hops)
    return replace(released, ids=released.ids[keep], hops=hops)


def finish(folder: Path, ledger: Ledger) -> bool:
    """Complete removals that a kill has interrupted; return whether there were any.

    Args:
        folder: of a saved model, which nobody else may change meanwhile.
        ledger: that its releases were charged to.
    """
    waiting = [one for one in load_folder(folder).config.get("forgotten", []) if not one["link"]]
    is_found = remove_unnamed(folder) > 0
    for one in waiting:
        fields = {name: one[name] for name in ("id", "people", "releases")}
        mark_recorded(folder, one["id"], ledger.record_removal(fields))
    return is_found or bool(waiting)


def finish_removals(folders: Sequence[Path], ledger: Ledger) -> bool:
    """Complete what a kill has interrupted in any of some folders; see :func:`finish`."""
    found = False
    for folder in folders:
        with changing(folder):
            found |= finish(folder, ledger)
    return found


def unfinished(folder: str | Path, ledger: Ledger) -> list[str]:
    """Return in which removals a folder and the ledger do not agree; none where all is well.

    A folder that was restored from a backup, or a second copy of it, still has people of whom the
    ledger says that they were removed.

    Args:
        folder: of a saved model, or of released rows.
        ledger: that its releases were charged to.
    """
    saved = load_folder(Path(folder))
    own = {one["id"]: one for one in saved.config.get("forgotten", [])}
    recorded = {one.id: one for one in ledger.removals()}
    found = [
        f"{one.people} of the people were removed on {one.moment[:10]} from another copy of "
        f"{str(folder)!r} and not from this one: `gapgnn forget` removes them"
        for one in recorded.values()
        if one.id not in own and set(one.releases) & set(saved.hops)
    ]
    return found + [
        f"a removal of {one['at'][:10]} from {str(folder)!r} is not finished: run `gapgnn forget` "
        "again"
        for name, one in own.items()
        if name not in recorded
    ]
