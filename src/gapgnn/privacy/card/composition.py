"""What several releases of one model come to together (privacy page, sections 3 and 7).

A model's folder holds the training and one release for every further graph that was predicted on.
Whoever is in all of these graphs, with the same edge or the same record, is covered by the
composition of all events, at the delta of the training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapgnn.errors import PrivacyError, check_choice, check_number
from gapgnn.privacy import Relation, squared_growth, strictest
from gapgnn.privacy.accounting import AttackBounds, Event, Gaussian, account, privacy_profile

if TYPE_CHECKING:
    from gapgnn.privacy import Guarantee
    from gapgnn.privacy.ledger import Charge

PURPOSES = ("training", "prediction", "prediction for new people", "fit", "transform")


@dataclass(frozen=True)
class ChargedRelease:
    """One release of a model, as it was charged.

    Attributes:
        purpose: one of :data:`PURPOSES`.
        charge_id: of the ledger's charge; empty where no ledger was charged.
        when: the day of the charge; empty where it is not known.
        relation: under which it was charged.
        epsilon: of this release alone.
        delta: of this release alone.
        events: what was charged, with the options of an adaptive choice that were not taken.
    """

    purpose: str
    charge_id: str
    when: str
    relation: Relation
    epsilon: float
    delta: float
    events: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        check_choice("purpose", self.purpose, PURPOSES)
        check_number("epsilon", self.epsilon, at_least=0)
        check_number("delta", self.delta, at_least=0, below=1)

    @classmethod
    def of(cls, promise: Guarantee, charge: Charge | None, purpose: str) -> ChargedRelease:
        """Return what a promise released under a charge; without one, what it would release."""
        assert promise.epsilon is not None
        # Releases of one card have different ids, and only the first may have none.
        uncharged = "" if purpose in ("training", "fit") else "not charged"
        return cls(
            purpose=purpose,
            charge_id=uncharged if charge is None else charge.id,
            when="" if charge is None else charge.charged_at[:10],
            relation=promise.relation,
            epsilon=promise.epsilon,
            delta=promise.delta,
            events=tuple(event.to_dict() for event in promise.charged or promise.events),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        events = [dict(event) for event in self.events]
        return {**self.__dict__, "relation": self.relation.name, "events": events}


def composed(releases: Sequence[ChargedRelease], delta: float) -> tuple[float, AttackBounds]:
    """Return the epsilon at ``delta`` of all releases together, and what an attacker can reach.

    That is for whoever is in all of them. The events of all releases are one composition, in which
    a person may be of other groups and another option may be taken in each release.

    Raises:
        PrivacyError: if no finite epsilon is known.

    >>> from gapgnn.privacy import Undirected
    >>> month = {"event": "Gaussian", "noise_multiplier": 6.617, "count": 2}
    >>> one = ChargedRelease("training", "", "", Undirected(), 1.0, 1e-7, (month,))
    >>> epsilon, attacker = composed([one] * 4, 1e-7)
    >>> round(epsilon, 2), round(attacker.mu, 2)
    (2.1, 0.43)
    """
    relation = strictest(release.relation for release in releases)
    added, parts = 0.0, list[tuple[Event, ...]]()
    for release in releases:
        pure, events = _under(relation, release)
        added += pure
        parts.append(events)
    # Basic composition, where the deltas leave room for it.
    epsilon = math.inf
    if all(one.relation == relation for one in releases):
        spent = math.fsum(one.delta for one in releases)
        epsilon = math.fsum(one.epsilon for one in releases) if spent <= delta else math.inf
    if delta == 0:
        pure = math.fsum(account(part, 0.0, relation=relation).epsilon for part in parts if part)
        epsilon = min(epsilon, added + pure)
    profile = privacy_profile([(part, 1) for part in parts], relation=relation)
    if delta > 0:
        epsilon = min(epsilon, added + profile.epsilon(delta))
    if not math.isfinite(epsilon):
        raise PrivacyError(
            f"releases on one privacy card must have a finite epsilon together at delta {delta:g}. "
            "Got infinity."
        )
    bounds = AttackBounds(None, 1.0, 1.0, 1.0) if added else profile.bounds()
    return epsilon, bounds.within(epsilon, delta)


def _under(relation: Relation, release: ChargedRelease) -> tuple[float, tuple[Event, ...]]:
    """Return the events of a release under a relation, and what is added as a pure epsilon."""
    events = tuple(Event.from_dict(dict(event)) for event in release.events)
    charged = release.relation
    if charged == relation:
        return 0.0, events
    is_hop = all(isinstance(event, Gaussian) for event in events)
    if is_hop and relation.level == "edge":
        growth = math.sqrt(squared_growth(charged, relation))
        return 0.0, tuple(event.scaled(1 / growth) for event in events)
    pure = account(events, 0.0, relation=charged).epsilon
    if math.isinf(pure):
        raise PrivacyError(
            f"releases under {release.relation} and {relation} must be of one relation, to be "
            f"composed on one privacy card. Predict under {release.relation}."
        )
    return relation.group_size(charged) * pure, ()
