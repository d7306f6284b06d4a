"""Events in, epsilon at delta out (privacy page, section 3).

Three accountants with one interface: ``exact`` for Gaussian noise alone, ``pld`` for everything,
``rdp`` beside them for comparison. :func:`account` picks the tightest that applies. Nothing here
knows how the events came about: accounting imports no training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gapgnn.errors import InputError, check_choice, check_number
from gapgnn.privacy import RELATIONS
from gapgnn.privacy.accounting.events import Event, merge
from gapgnn.privacy.accounting.gaussian import gaussian_epsilon, log_delta
from gapgnn.privacy.accounting.pld import pld_delta, pld_epsilon
from gapgnn.privacy.accounting.rdp import rdp_delta, rdp_epsilon

# Below this the FFT of a long composition has no digits left, and RDP is the bound that stands.
SMALLEST_PLD_DELTA = 1e-13


@dataclass(frozen=True)
class Spend:
    """What a composition costs.

    Attributes:
        epsilon: at ``delta``; infinite if the noise is too small to hide anything.
        delta: as asked.
        accountant: ``exact``, ``pld`` or ``rdp``: how epsilon was computed.
    """

    epsilon: float
    delta: float
    accountant: str


class Price(Protocol):
    """How an accountant answers."""

    def __call__(self, events: Sequence[Event], at: float, /, *, relation: str) -> float:
        """Return epsilon at a delta, or delta at an epsilon."""


@dataclass(frozen=True)
class Accountant:
    """One way to price a composition."""

    name: str
    _epsilon: Price
    _delta: Price

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: str) -> float:
        """Return an epsilon such that the composition is (epsilon, delta)-DP."""
        return self._epsilon(
            events, check_number("delta", delta, above=0, below=1), relation=relation
        )

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: str) -> float:
        """Return a delta such that the composition is (epsilon, delta)-DP."""
        return self._delta(events, check_number("epsilon", epsilon, at_least=0), relation=relation)


def _shift(events: Sequence[Event], relation: str) -> float:
    merged = merge(events, relation=relation)
    if not merged.is_gaussian:
        kinds = sorted({type(event).__name__ for event in events} - {"Gaussian"})
        raise InputError(
            f"the exact accountant knows Gaussian noise only: use 'pld'. Got a {kinds[0]} event."
        )
    return merged.shift


def _exact_epsilon(events: Sequence[Event], delta: float, *, relation: str) -> float:
    return gaussian_epsilon(_shift(events, relation), delta)


def _exact_delta(events: Sequence[Event], epsilon: float, *, relation: str) -> float:
    return math.exp(log_delta(epsilon, _shift(events, relation)))


def _tight_epsilon(events: Sequence[Event], delta: float, *, relation: str) -> float:
    """Gaussian noise alone is left to the exact curve."""
    if merge(events, relation=relation).is_gaussian:
        return _exact_epsilon(events, delta, relation=relation)
    return math.inf if delta < SMALLEST_PLD_DELTA else pld_epsilon(events, delta, relation=relation)


def _tight_delta(events: Sequence[Event], epsilon: float, *, relation: str) -> float:
    is_gaussian = merge(events, relation=relation).is_gaussian
    return (_exact_delta if is_gaussian else pld_delta)(events, epsilon, relation=relation)


# The analytic Gaussian curve is neither above nor below the truth; the others are upper bounds, and
# RDP, valid everywhere, is the loosest.
ACCOUNTANTS = {
    "exact": Accountant("exact", _exact_epsilon, _exact_delta),
    "pld": Accountant("pld", _tight_epsilon, _tight_delta),
    "rdp": Accountant("rdp", rdp_epsilon, rdp_delta),
}


def accountant_named(name: str) -> Accountant:
    """Return an accountant by name.

    >>> from gapgnn.privacy.accounting.events import Gaussian, Laplace
    >>> twice = [Gaussian(6.617, count=2)]
    >>> round(accountant_named("exact").epsilon(twice, 1e-7, relation="directed"), 3)
    1.0
    >>> round(accountant_named("pld").epsilon([Laplace(2.0)], 1e-9, relation="directed"), 3)
    0.5
    """
    return ACCOUNTANTS[check_choice("accountant", name, ACCOUNTANTS)]


def account(events: Sequence[Event], delta: float, *, relation: str) -> Spend:
    """Return what a composition costs, by the tightest accountant that applies.

    Exact for Gaussian noise alone, PLD otherwise, and RDP where PLD has no digits left. At delta 0
    the pure epsilons add up, which is infinite for Gaussian noise.

    Args:
        events: what was released, in any order.
        delta: in [0, 1).
        relation: the run's neighbouring relation, ``auto`` already resolved.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> spend = account([Gaussian(1.0)], 1e-5, relation="undirected")
    >>> round(spend.epsilon, 3), spend.accountant
    (4.377, 'exact')
    """
    check_choice("relation", relation, RELATIONS)
    if delta == 0:
        prices = (event.times * event.pair(relation).pure_epsilon for event in events)
        return Spend(math.fsum(prices), 0.0, "pure")
    name = "exact" if merge(events, relation=relation).is_gaussian else "pld"
    epsilon = ACCOUNTANTS[name].epsilon(events, delta, relation=relation)
    if name == "pld" and epsilon == math.inf:
        name = "rdp"
        epsilon = ACCOUNTANTS[name].epsilon(events, delta, relation=relation)
    return Spend(epsilon, delta, name)
