"""Events in, epsilon at delta out (privacy page, section 3).

Three accountants with one interface: ``exact`` for Gaussian noise alone, ``pld`` for everything,
``rdp`` beside them for comparison. :func:`account` picks the tightest that applies. Nothing here
knows how the events came about: accounting imports no training.

The exact curve of Gaussian noise (Balle and Wang 2018) is stable in its far tails: N(0, 1) against
N(mu, 1) is (epsilon, delta)-DP exactly when::

    delta >= Q(a) - e^epsilon Q(b),   a = epsilon/mu - mu/2,   b = epsilon/mu + mu/2

with Q the upper tail of the standard normal. Since e^epsilon phi(b) = phi(a), the right side is
also phi(a) (R(a) - R(b)) with the Mills ratio R = Q/phi, which never multiplies a huge number by a
tiny one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gapgnn.errors import InputError, check_choice, check_number
from gapgnn.privacy import RelationLike, parse_relation
from gapgnn.privacy.accounting.events import (
    Event,
    PrivateSelection,
    merge,
    parallel_compositions,
)
from gapgnn.privacy.accounting.pld import pld_delta, pld_epsilon
from gapgnn.privacy.accounting.rdp import rdp_delta, rdp_epsilon

# Below this the FFT of a long composition has no digits left, and RDP is the bound that stands.
SMALLEST_PLD_DELTA = 1e-13
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
# Rounding of the curve itself, so that a reported epsilon is never below the true one.
_SAFETY = 1e-12


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

    def __call__(self, events: Sequence[Event], at: float, /, *, relation: RelationLike) -> float:
        """Return epsilon at a delta, or delta at an epsilon."""


@dataclass(frozen=True)
class Accountant:
    """One way to price a composition."""

    name: str
    _epsilon: Price
    _delta: Price

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: RelationLike) -> float:
        """Return an epsilon such that the composition is (epsilon, delta)-DP."""
        check_number("delta", delta, above=0, below=1)
        cases = parallel_compositions(events, relation=relation)
        return max(self._epsilon(case, delta, relation=other) for case, other in cases)

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: RelationLike) -> float:
        """Return a delta such that the composition is (epsilon, delta)-DP."""
        check_number("epsilon", epsilon, at_least=0)
        cases = parallel_compositions(events, relation=relation)
        return max(self._delta(case, epsilon, relation=other) for case, other in cases)


def _shift(events: Sequence[Event], relation: RelationLike) -> float:
    merged = merge(events, relation=relation)
    if not merged.is_gaussian:
        others = sorted({type(event).__name__ for event in events} - {"Gaussian"})
        raise InputError(
            "the exact accountant supports Gaussian noise only: use 'pld'. "
            f"Got a {others[0]} event."
        )
    return merged.shift


def _exact_epsilon(events: Sequence[Event], delta: float, *, relation: RelationLike) -> float:
    return gaussian_epsilon(_shift(events, relation), delta)


def _exact_delta(events: Sequence[Event], epsilon: float, *, relation: RelationLike) -> float:
    return math.exp(log_delta(epsilon, _shift(events, relation)))


def _tight_epsilon(events: Sequence[Event], delta: float, *, relation: RelationLike) -> float:
    """Gaussian noise alone is left to the exact curve."""
    if merge(events, relation=relation).is_gaussian:
        return _exact_epsilon(events, delta, relation=relation)
    return math.inf if delta < SMALLEST_PLD_DELTA else pld_epsilon(events, delta, relation=relation)


def _tight_delta(events: Sequence[Event], epsilon: float, *, relation: RelationLike) -> float:
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


def account(events: Sequence[Event], delta: float, *, relation: RelationLike) -> Spend:
    """Return what a composition costs, by the tightest accountant that applies.

    Exact for Gaussian noise alone, PLD otherwise, and RDP where PLD has no digits left. Of a
    private selection, for which neither is tight, the smaller one is stated. At delta 0
    the pure epsilons add up, which is infinite for Gaussian noise. Of several
    groups or options, the dearest counts.

    Args:
        events: what was released, in any order.
        delta: in [0, 1).
        relation: the run's neighbouring relation, ``auto`` already resolved.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> spend = account([Gaussian(1.0)], 1e-5, relation="undirected")
    >>> round(spend.epsilon, 3), spend.accountant
    (4.377, 'exact')
    """
    neighbours = parse_relation(relation)
    cases = parallel_compositions(events, relation=relation)
    if len(cases) > 1:
        spends = [account(case, delta, relation=other) for case, other in cases]
        return max(spends, key=lambda spend: spend.epsilon)
    if delta == 0:
        prices = (event.times * event.pair(neighbours).pure_epsilon for event in events)
        return Spend(math.fsum(prices), 0.0, "pure")
    name = "exact" if merge(events, relation=relation).is_gaussian else "pld"
    epsilon = ACCOUNTANTS[name].epsilon(events, delta, relation=relation)
    is_selection = any(isinstance(event, PrivateSelection) for event in events)
    if name == "pld" and (epsilon == math.inf or is_selection):
        other = ACCOUNTANTS["rdp"].epsilon(events, delta, relation=relation)
        name, epsilon = min(("pld", epsilon), ("rdp", other), key=lambda one: one[1])
    return Spend(epsilon, delta, name)


def log_delta(epsilon: float, shift: float) -> float:
    """Return the logarithm of the exact delta at ``epsilon`` for N(0, 1) against N(shift, 1).

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    from scipy.special import erfcx, ndtr

    if shift == 0:
        return -math.inf
    if math.isinf(shift):
        return 0.0
    low, high = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    log_density = -0.5 * low * low - _LOG_SQRT_2PI
    mills_high = _SQRT_HALF_PI * float(erfcx(high / math.sqrt(2)))
    if low > 0:
        difference = _SQRT_HALF_PI * float(erfcx(low / math.sqrt(2))) - mills_high
        return log_density + math.log(difference) if difference > 0 else -math.inf
    value = float(ndtr(-low)) - math.exp(log_density) * mills_high
    return math.log(value) if value > 0 else -math.inf


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the smallest epsilon of N(0, 1) against N(shift, 1) at ``delta``.

    >>> round(gaussian_epsilon(2**0.5 / 6.617, 1e-7), 3)
    1.0
    """
    check_number("delta", delta, above=0, below=1)
    target = math.log(delta)
    if log_delta(0.0, shift) <= target:
        return 0.0
    if math.isinf(shift):
        return math.inf
    # Concentrated-DP bound: never below the exact value.
    upper = shift * shift / 2 + shift * math.sqrt(-2 * target)
    if math.isinf(upper):
        return math.inf
    root = _root(lambda epsilon: log_delta(epsilon, shift) - target, 0.0, upper * (1 + 1e-9))
    return root * (1 + _SAFETY)


def gaussian_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift (sensitivity over standard deviation) within the budget.

    >>> round(2**0.5 / gaussian_shift(1.0, 1e-7), 3)
    6.617
    """
    check_number("epsilon", epsilon, above=0)
    check_number("delta", delta, above=0, below=1)
    target = math.log(delta)
    root_log = math.sqrt(-2 * target)
    # Where the concentrated-DP bound meets the budget is safe; doubling finds a shift that is not.
    low = 2 * epsilon / (math.sqrt(root_log * root_log + 2 * epsilon) + root_log)
    high = 2 * low
    while log_delta(epsilon, high) <= target:
        low, high = high, 2 * high
    root = _root(lambda shift: log_delta(epsilon, shift) - target, low * (1 - 1e-9), high)
    root *= 1 - _SAFETY
    # The curve of a tiny budget is known to fewer digits.
    while gaussian_epsilon(root, delta) > epsilon:
        root *= 1 - 1e-9
    return root


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    def finite(x: float) -> float:
        # brentq cannot interpolate with infinities; only the sign matters this far out.
        return max(min(function(x), 1e6), -1e6)

    return float(brentq(finite, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))
