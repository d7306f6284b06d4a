"""How far a budget goes: how many more equal fits it allows, and the alternatives.

The price of a fit is decided by its noise alone. At edge level a fit is K hops of Gaussian noise,
calibrated to (epsilon, delta) as `train` does it; at node level it is what was charged last, with
its noise scaled to the new epsilon, because the number of steps and the sampling rate are that of
a real training. Nothing is charged and nothing private is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from gapgnn.errors import (
    GapgnnError,
    InputError,
    PrivacyError,
    check_choice,
    check_integer,
    did_you_mean,
)
from gapgnn.privacy import Relation, check_epsilon
from gapgnn.privacy.accounting import Event, Gaussian, account, calibrate
from gapgnn.privacy.ledger.amounts import COMPOSITIONS, Amount
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.privacy.ledger.ledger import Charge, Ledger
from gapgnn.privacy.ledger.rules import RELATIONS, LedgerTransaction
from gapgnn.privacy.ledger.store import transaction

# So many fits are listed one by one; a plan beyond ten years of months is none.
MOST_LISTED = 120
# Enough to say "more than anybody will ever do", and an end for the search.
MOST_FITS = 1_000_000


@dataclass(frozen=True)
class PlannedFit:
    """One fit of a plan: when, and what the budget is after it."""

    number: int
    day: str
    spent_epsilon: float
    spent_delta: float
    left_epsilon: float
    left_delta: float


@dataclass(frozen=True)
class Alternative:
    """The same noise on fewer hops.

    Attributes:
        hops: of one fit; None at node level.
        epsilon: of one such fit alone.
        fits: how many more there would be, by composition; None where it cannot count them.
    """

    hops: int | None
    epsilon: float
    fits: Mapping[str, int | None]


@dataclass(frozen=True)
class Forecast:
    """What a budget has room for.

    Attributes:
        population: whose budget.
        level: of the budget.
        relation: likewise.
        composition: likewise.
        until: last day on which it can be spent.
        granted_epsilon: of the whole budget.
        granted_delta: likewise.
        epsilon: of one fit alone, as accounted.
        delta: of one fit alone.
        hops: of one fit; None at node level.
        fits: how many more the amounts allow, at most :data:`MOST_FITS`.
        plan: the fits with their days, until the budget or its time ends; the first
            :data:`MOST_LISTED` of them.
        alternatives: fewer hops with the same noise on each, by composition.
    """

    population: str
    level: str
    relation: str
    composition: str
    until: str | None
    granted_epsilon: float
    granted_delta: float
    epsilon: float
    delta: float
    hops: int | None
    fits: int
    plan: tuple[PlannedFit, ...]
    alternatives: tuple[Alternative, ...]


def forecast_fits(
    ledger: Ledger,
    population: str,
    *,
    epsilon: float,
    delta: float | None = None,
    hops: int | None = None,
    level: str = "edge",
    every: int = 30,
    first: date | None = None,
) -> Forecast:
    """Return how many more equal fits the budget of a population allows, with their days.

    Args:
        ledger: where the budget is.
        population: its name.
        epsilon: of one fit.
        delta: of one fit; left out: that of the last charge, or else the budget's.
        hops: of one fit at edge level; left out: 2.
        level: ``edge`` or ``node``.
        every: days from one fit to the next.
        first: day of the first one; left out: today.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from gapgnn.privacy.ledger import People
    >>> ledger = Ledger.init(Path(tempfile.mkdtemp()) / "ledger.sqlite")
    >>> _ = ledger.grant("customers", People(np.arange(1000), "5f" * 32), level="edge",
    ...                  relation="undirected", epsilon=4, delta=1e-7)
    >>> found = forecast_fits(ledger, "customers", epsilon=1, hops=2, first=date(2026, 11, 16))
    >>> found.fits, found.plan[1].day, round(found.plan[1].spent_epsilon, 2)
    (12, '2026-12-16', 1.45)
    """
    check_choice("level", level, RELATIONS)
    check_integer("every", every, at_least=1, at_most=3650)
    state = _State.of(ledger, population, level)
    budget = state.budget
    delta = state.usual_delta() if delta is None else delta
    hops, template = state.template(hops)
    options = _fit_options(template, hops, epsilon=epsilon, delta=delta, relation=budget.relation)
    planned = options[-1][1]
    fits = count_fits(budget, state.spends, planned)
    return Forecast(
        population=population,
        level=level,
        relation=budget.relation.name,
        composition=budget.composition,
        until=state.until,
        granted_epsilon=float(budget.amount.epsilon),
        granted_delta=float(budget.amount.delta),
        epsilon=float(planned.amount.epsilon),
        delta=delta,
        hops=hops,
        fits=fits,
        plan=state.plan(planned, fits, every, first or date.today()),
        alternatives=tuple(
            Alternative(count, float(spend.amount.epsilon), state.fits_by_rule(spend))
            for count, spend in options
        ),
    )


def count_fits(budget: Filter, spends: Sequence[Spend], planned: Spend) -> int:
    """Return how often ``planned`` still fits the budget after ``spends``: by halving, exactly.

    >>> from gapgnn.privacy import Undirected
    >>> budget = Filter("sum", "edge", Undirected(), Amount.of(1, 0))
    >>> tenth = Spend(Undirected(), Amount.of(0.1, 0), 1, "[]")
    >>> count_fits(budget, [tenth], tenth)
    9
    """

    def allows(count: int) -> bool:
        return budget.allows([*spends, replace(planned, count=count)])

    fitting, too_many = 0, 1
    while too_many <= MOST_FITS and allows(too_many):
        fitting, too_many = too_many, 2 * too_many
    too_many = min(too_many, MOST_FITS + 1)
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if allows(middle):
            fitting = middle
        else:
            too_many = middle
    return fitting


@dataclass(frozen=True)
class _State:
    """What the ledger knows of one population at one level."""

    population: str
    budget: Filter
    until: str | None
    spends: Sequence[Spend]
    charges: Sequence[Charge]

    @classmethod
    def of(cls, ledger: Ledger, population: str, level: str) -> _State:
        """Read it, or tell what is missing."""
        charges = [
            charge
            for charge in ledger.entries(population)
            if charge.level == level and charge.epsilon > 0
        ]
        names = {row.population for row in ledger.summary()}
        if population not in names:
            raise InputError(
                f"`population` must be one of {ledger.name}. Got {population!r}."
                f"{did_you_mean(population, names)}"
            )
        with transaction(ledger.store, writing=False) as db:
            tx = LedgerTransaction(db)
            found = tx.named(population)
            granted = None if found is None else tx.granted(found, level)
            if found is None or granted is None:
                raise InputError(
                    f"{population!r} has no budget at {level} level, so there is nothing to "
                    f"forecast. Grant one with `gapgnn ledger grant` and `--level {level}`."
                )
            return cls(population, *granted, tx.spends(found, level), charges)

    def usual_delta(self) -> float:
        """Return the delta of the last charge that has one, or else the budget's."""
        earlier = (charge.delta for charge in reversed(self.charges) if charge.delta > 0)
        return next(earlier, float(self.budget.amount.delta))

    def template(self, hops: int | None) -> tuple[int | None, list[Event]]:
        """Return the hops of a fit, and its events to be scaled: none where prices are summed."""
        if self.budget.level == "edge":
            hops = check_integer("hops", 2 if hops is None else hops, at_least=1, at_most=100)
            return hops, [Gaussian(1.0, count=hops)]
        if hops is not None:
            raise InputError(
                "`hops` must be left out at node level, where a fit is like the last one. Got "
                f"{hops}."
            )
        if self.charges:
            return None, [Event.from_dict(dict(event)) for event in self.charges[-1].events]
        if self.budget.composition == "sum":
            return None, []
        raise PrivacyError(
            f"{self.population} has no charge at node level yet, so nobody knows how many steps a "
            "fit takes. Train once, or ask `gapgnn noise` what a number of steps needs."
        )

    def plan(self, planned: Spend, fits: int, every: int, first: date) -> tuple[PlannedFit, ...]:
        """Return the fits with their days, until the budget or its time ends."""
        plan = []
        for number in range(1, min(fits, MOST_LISTED) + 1):
            day = (first + timedelta(days=every * (number - 1))).isoformat()
            if self.until is not None and day > self.until:
                break
            after = [*self.spends, replace(planned, count=number)]
            spent, left = self.budget.spent(after), self.budget.left(after)
            plan.append(
                PlannedFit(
                    number=number,
                    day=day,
                    spent_epsilon=float(spent.epsilon),
                    spent_delta=float(spent.delta),
                    left_epsilon=float(left.epsilon),
                    left_delta=float(left.delta),
                )
            )
        return tuple(plan)

    def fits_by_rule(self, planned: Spend) -> dict[str, int | None]:
        """Return how many fits each composition would allow for the same amounts."""
        budget = self.budget
        fits: dict[str, int | None] = {}
        for rule in COMPOSITIONS:
            try:
                other = budget
                if rule != budget.composition:
                    other = Filter.granted(rule, budget.level, budget.relation, budget.amount)
                fits[rule] = count_fits(other, self.spends, planned)
            except GapgnnError:
                # This rule cannot count what was charged, or has no meaning at a delta of 0.
                fits[rule] = None
        return fits


def _fit_options(
    template: Sequence[Event], hops: int | None, *, epsilon: float, delta: float, relation: Relation
) -> list[tuple[int | None, Spend]]:
    """Return what a fit costs, last, and before it one with fewer hops and the same noise."""
    if not template:
        check_epsilon(epsilon)
        return [(None, Spend(relation, Amount.of(epsilon, delta), 1, "[]"))]
    found = calibrate(template, epsilon=epsilon, delta=delta, relation=relation)
    if hops is None:
        return [(None, _spend(found.events, delta, relation))]
    return [
        (count, _spend([Gaussian(found.noise_multiplier, count=count)], delta, relation))
        for count in range(1, hops + 1)
    ]


def _spend(events: Sequence[Event], delta: float, relation: Relation) -> Spend:
    price = account(events, delta, relation=relation).epsilon
    written = json.dumps([event.to_dict() for event in events])
    return Spend(relation, Amount.of(price, delta), 1, written)
