"""Composition of charges against a budget, fixed when it is granted (privacy page, section 6).

A budget is a *privacy filter*: each release may be chosen after the previous ones were seen. The
composition cannot be chosen afterwards, so a grant names one.

- ``sum``: epsilons and deltas add up, whatever the mechanisms were.
- ``gaussian``: every charge is Gaussian noise. The squared shifts add up to at most that of the
  budget, without any loss: N(0, 1) against N(mu, 1) also dominates adaptive Gaussian releases.
- ``renyi``: the Renyi divergences of one order, chosen at the grant, add up to at most what
  converts to (epsilon, delta) (the filter of Feldman and Zrnic 2021, converted by Proposition 12 of
  Canonne, Kamath and Steinke 2020). A fixed order keeps the filter valid: the best order after the
  fact would not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from gapgnn.errors import InputError, PrivacyError, check_choice, check_number
from gapgnn.privacy import Relation, squared_growth, strictest
from gapgnn.privacy.accounting import (
    ORDERS,
    Event,
    gaussian_epsilon,
    gaussian_shift,
    merge,
    parallel_compositions,
    renyi_curve,
)
from gapgnn.privacy.ledger.amounts import COMPOSITIONS, Amount

# Of a price that was computed in a few float operations.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Spend:
    """The price of a charge.

    Attributes:
        relation: under which it is stated.
        amount: epsilon and delta of one release.
        count: how many releases.
        events: of one release, as JSON.
    """

    relation: Relation
    amount: Amount
    count: int
    events: str


@dataclass(frozen=True)
class Filter:
    """One budget and its rule.

    Attributes:
        composition: one of :data:`COMPOSITIONS`.
        level: ``edge`` or ``node``.
        relation: under which the budget is stated.
        amount: epsilon and delta that were granted.
        order: of the Renyi divergence; 0 for the other rules.

    >>> from gapgnn.privacy import Undirected
    >>> events = json.dumps([{"event": "Gaussian", "noise_multiplier": 6.617, "count": 2}])
    >>> fit = Spend(Undirected(), Amount.of(1.0, 1e-7), 10, events)
    >>> for rule in ("sum", "gaussian", "renyi"):
    ...     budget = Filter.granted(rule, "edge", Undirected(), Amount.of(4.0, 1e-7))
    ...     print(rule, round(budget.together([fit]), 2))
    sum 10.0
    gaussian 3.46
    renyi 3.69
    """

    composition: str
    level: str
    relation: Relation
    amount: Amount
    order: float = 0.0

    @classmethod
    def granted(cls, composition: str, level: str, relation: Relation, amount: Amount) -> Filter:
        """Return the filter of a new budget; for ``renyi`` its order is chosen here, for good."""
        check_choice("composition", composition, COMPOSITIONS)
        order = 0.0
        if composition != "sum":
            check_number("delta", float(amount.delta), above=0, below=1)
        if composition == "renyi":
            # The order at which Gaussian noise, whose divergence is in proportion to it, gets most.
            limits = float(amount.epsilon) - _converted(ORDERS, float(amount.delta))
            order = float(ORDERS[np.argmax(limits / ORDERS)])
            if limits.max() <= 0:
                raise InputError(
                    f"a renyi budget of {amount} allows no release. Raise `epsilon` or "
                    "`delta`, or use the composition gaussian or sum."
                )
        return cls(composition, level, relation, amount, order)

    def in_place_of(self, before: Filter) -> Filter:
        """Return this filter with the rule of the one it replaces, under which was spent.

        The rule and its order were chosen before anything was seen. Whoever changed them afterwards
        would take the better of two filters, which is none.
        """
        if self.composition != before.composition:
            raise PrivacyError(
                f"`composition` must stay {before.composition}: charges were made under it, and "
                "the better of two rules after the fact promises nothing. "
                f"Got {self.composition!r}."
            )
        return replace(self, order=before.order)

    @property
    def room(self) -> float:
        """How much the charges may come to, in the rule's own unit."""
        epsilon, delta = float(self.amount.epsilon), float(self.amount.delta)
        if self.composition == "gaussian":
            return gaussian_shift(epsilon, delta) ** 2
        return epsilon - float(_converted(np.array([self.order]), delta)[0])

    def allows(self, spends: Iterable[Spend]) -> bool:
        """Tell whether these charges fit the budget together."""
        if self.composition == "sum":
            return self._sum(spends).fits(self.amount)
        return self._used(spends) <= Fraction(self.room)

    def together(self, spends: Iterable[Spend]) -> float:
        """Return the epsilon that charges come to, at the budget's delta (``sum``: at theirs)."""
        if self.composition == "sum":
            return float(self._sum(spends).epsilon)
        return self._epsilon(float(self._used(spends)))

    def left(self, spends: Iterable[Spend]) -> Amount:
        """Return what one more release may cost, priced by this rule at the budget's delta."""
        if self.composition == "sum":
            return self.amount.minus(self._sum(spends))
        rest = float(max(Fraction(0), Fraction(self.room) - self._used(spends)))
        return Amount(Fraction(self._epsilon(rest)), self.amount.delta)

    def spent(self, spends: Iterable[Spend]) -> Amount:
        """Return what charges come to."""
        if self.composition == "sum":
            return self._sum(spends)
        used = self._used(spends)
        delta = self.amount.delta if used else Fraction(0)
        return Amount(Fraction(self._epsilon(float(used))), delta)

    def _epsilon(self, used: float) -> float:
        """Return the epsilon of so much of the rule's own unit."""
        delta = float(self.amount.delta)
        if used <= 0:
            return 0.0
        if self.composition == "gaussian":
            return gaussian_epsilon(math.sqrt(used), delta)
        return max(0.0, used + float(_converted(np.array([self.order]), delta)[0]))

    def _sum(self, spends: Iterable[Spend]) -> Amount:
        total = Amount(Fraction(0), Fraction(0))
        for spend in spends:
            if not self.relation.covers(spend.relation):
                raise self._uncountable(spend)
            size = self.relation.group_size(spend.relation)
            total = total.plus(spend.amount.grouped(size).times(spend.count))
        return total

    def _used(self, spends: Iterable[Spend]) -> Fraction:
        """Return what charges come to in the rule's own unit, exactly: none is lost in the sum."""
        prices = (spend.count * Fraction(self._priced(spend)) for spend in spends)
        return sum(prices, Fraction(0))

    def _priced(self, spend: Spend) -> float:
        # At a large delta some noise costs an epsilon of 0, and ten times that does not.
        if not any(spend.amount):
            return 0.0
        growth = 1.0
        if spend.relation != self.relation:
            # What a hop's squared shift is under a stricter relation follows from its sensitivity.
            is_hop = self.level == "edge" and self.composition == "gaussian"
            if not is_hop or not self.relation.covers(spend.relation):
                raise self._uncountable(spend)
            growth = squared_growth(spend.relation, self.relation)
        used = _gaussian_price if self.composition == "gaussian" else _renyi_price
        # Rounded up, so that no release is cheaper than what it says.
        price = growth * used(spend.events, spend.relation, self.order)
        return math.nextafter(price * (1 + _ROUNDING), math.inf)

    def _uncountable(self, spend: Spend) -> PrivacyError:
        strict = strictest([self.relation, spend.relation])
        return PrivacyError(
            f"A {self.composition} budget under {self.relation} cannot count a charge under "
            f"{spend.relation}. Grant it under {strict} with the composition `sum`."
        )


def _converted(orders: np.ndarray, delta: float) -> np.ndarray:
    """Return what comes on top of a Renyi divergence to make it an epsilon at ``delta``."""
    converted: np.ndarray = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return converted


@lru_cache(maxsize=1024)
def _gaussian_price(events: str, relation: Relation, order: float) -> float:
    """Return the squared shift of one release, for the dearest group; other noise has none."""
    cases = parallel_compositions(_events(events), relation=relation)
    merged = [merge(case, relation=other) for case, other in cases]
    if not all(one.is_gaussian for one in merged):
        raise PrivacyError(
            "A budget with the composition `gaussian` takes releases with Gaussian noise alone. "
            "Until something was charged it can be granted with `renyi` or `sum` instead; from "
            "then on use a method with Gaussian noise."
        )
    return max(one.shift for one in merged) ** 2


@lru_cache(maxsize=1024)
def _renyi_price(events: str, relation: Relation, order: float) -> float:
    """Return the Renyi divergence of one release."""
    curve = renyi_curve(_events(events), relation=relation, orders=np.array([order]))
    return float(curve[0])


def _events(text: str) -> list[Event]:
    events = [Event.from_dict(event) for event in json.loads(text)]
    if not events:
        raise PrivacyError("A charge must say what was released, unless the composition is `sum`.")
    return events
