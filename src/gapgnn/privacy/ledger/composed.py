"""What charges cost together by the tightest proof, beside what a budget counts.

A budget counts by the rule it was granted with (:mod:`gapgnn.privacy.ledger.filters`). That is
sound however each release was chosen after seeing the ones before, and it is what limits. The
epsilon here is that of the same releases as a fixed list, composed by their privacy loss
distributions: usually smaller, and true where no release was chosen by what another one showed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gapgnn.errors import GapgnnError, PrivacyError
from gapgnn.privacy import Relation, RelationLike, parse_relation, squared_growth
from gapgnn.privacy.accounting import Event, Gaussian, PrivacyProfile, account, privacy_profile
from gapgnn.privacy.ledger.ledger import Charge
from gapgnn.privacy.ledger.rules import Budget


def composed_profile(charges: Sequence[Charge], *, relation: RelationLike) -> PrivacyProfile | None:
    """Return the privacy curve of everything that was charged, under one relation.

    None where that is not known: a charge does not list what it paid for, or was stated under
    another relation and is not Gaussian noise alone.
    """
    neighbours, releases = parse_relation(relation), []
    for charge in charges:
        if not charge.count or not (charge.epsilon or charge.events):
            continue
        try:
            events = tuple(Event.from_dict(dict(event)) for event in charge.events)
            releases.append((_under(neighbours, events, charge), charge.count))
        except GapgnnError:
            return None
        if not events:
            return None
    try:
        return privacy_profile(releases, relation=neighbours)
    except GapgnnError:
        return None


def _under(relation: Relation, events: tuple[Event, ...], charge: Charge) -> tuple[Event, ...]:
    """Return the events of a charge as they are under a relation that covers the charge's own."""
    charged = parse_relation(charge.relation)
    if charged == relation:
        return events
    is_hop = charge.level == "edge" and all(isinstance(event, Gaussian) for event in events)
    if not is_hop or not relation.covers(charged):
        raise PrivacyError(
            f"Only Gaussian noise can be counted under another relation, {relation}. Got a charge "
            f"under {charge.relation}."
        )
    growth = math.sqrt(squared_growth(charged, relation))
    return tuple(event.scaled(1 / growth) for event in events)


def composed_epsilon(charges: Sequence[Charge], budget: Budget) -> float:
    """Return the smallest epsilon that is proved for the charges of a budget, as a fixed list.

    It is stated at the delta that goes with ``budget.spent_epsilon``, and never larger than that.

    Args:
        charges: of :meth:`~gapgnn.privacy.ledger.Ledger.entries`, of any population and level.
        budget: of the same ledger.
    """
    own = [
        charge
        for charge in charges
        if (charge.population, charge.level) == (budget.population, budget.level) and charge.count
    ]
    delta = budget.spent_delta
    candidates = [budget.spent_epsilon]
    if all(charge.relation == budget.relation for charge in own):
        # Basic composition holds for any releases.
        if math.fsum(charge.count * charge.delta for charge in own) <= delta:
            candidates.append(math.fsum(charge.count * charge.epsilon for charge in own))
        if delta == 0 and all(charge.events for charge in own):
            candidates.append(_pure(own, budget.relation))
    if delta > 0 and (profile := composed_profile(own, relation=budget.relation)) is not None:
        candidates.append(profile.epsilon(delta))
    return min(candidates)


def _pure(charges: Sequence[Charge], relation: str) -> float:
    """Return the sum of pure epsilons."""
    try:
        return math.fsum(
            charge.count
            * account(
                [Event.from_dict(dict(event)) for event in charge.events], 0.0, relation=relation
            ).epsilon
            for charge in charges
        )
    except GapgnnError:
        return math.inf
