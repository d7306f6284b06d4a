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
from gapgnn.privacy.accounting.composition import merge
from gapgnn.privacy.accounting.events import Event

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


class Accountant(Protocol):
    """One way to price a composition."""

    name: str

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: str) -> float:
        """Return an epsilon such that the composition is (epsilon, delta)-DP."""
        ...

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: str) -> float:
        """Return a delta such that the composition is (epsilon, delta)-DP."""
        ...


class ExactAccountant:
    """The analytic Gaussian curve: neither above nor below the truth, for Gaussian noise alone.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> round(ExactAccountant().epsilon([Gaussian(6.617, count=2)], 1e-7, relation="directed"), 3)
    1.0
    """

    name = "exact"

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: str) -> float:
        """Return the smallest epsilon at ``delta``."""
        from gapgnn.privacy.accounting.gaussian import gaussian_epsilon

        _check_delta(delta)
        return gaussian_epsilon(self._shift(events, relation), delta)

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: str) -> float:
        """Return the smallest delta at ``epsilon``."""
        from gapgnn.privacy.accounting.gaussian import log_delta

        _check_epsilon(epsilon)
        return math.exp(log_delta(epsilon, self._shift(events, relation)))

    @staticmethod
    def _shift(events: Sequence[Event], relation: str) -> float:
        merged = merge(events, relation=relation)
        if not merged.is_gaussian:
            kinds = sorted({type(event).__name__ for event in events} - {"Gaussian"})
            raise InputError(
                "the exact accountant knows Gaussian noise only: use 'pld'. "
                f"Got a {kinds[0]} event."
            )
        return merged.shift


class PldAccountant:
    """Privacy loss distributions; Gaussian noise alone is left to the exact curve.

    >>> from gapgnn.privacy.accounting.events import Laplace
    >>> round(PldAccountant().epsilon([Laplace(2.0)], 1e-9, relation="directed"), 3)
    0.5
    """

    name = "pld"

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: str) -> float:
        """Return an upper bound on epsilon; infinite where ``delta`` is too small for FFTs."""
        from gapgnn.privacy.accounting.pld import pld_epsilon

        _check_delta(delta)
        if merge(events, relation=relation).is_gaussian:
            return ExactAccountant().epsilon(events, delta, relation=relation)
        if delta < SMALLEST_PLD_DELTA:
            return math.inf
        return pld_epsilon(events, delta, relation=relation)

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: str) -> float:
        """Return an upper bound on delta."""
        from gapgnn.privacy.accounting.pld import pld_delta

        _check_epsilon(epsilon)
        if merge(events, relation=relation).is_gaussian:
            return ExactAccountant().delta(events, epsilon, relation=relation)
        return pld_delta(events, epsilon, relation=relation)


class RdpAccountant:
    """Renyi differential privacy: valid everywhere, looser than the others.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> round(RdpAccountant().epsilon([Gaussian(7.04, count=2)], 1e-7, relation="directed"), 2)
    1.0
    """

    name = "rdp"

    def epsilon(self, events: Sequence[Event], delta: float, *, relation: str) -> float:
        """Return an upper bound on epsilon."""
        from gapgnn.privacy.accounting.rdp import rdp_epsilon

        _check_delta(delta)
        return rdp_epsilon(events, delta, relation=relation) if events else 0.0

    def delta(self, events: Sequence[Event], epsilon: float, *, relation: str) -> float:
        """Return an upper bound on delta."""
        from gapgnn.privacy.accounting.rdp import rdp_delta

        _check_epsilon(epsilon)
        return rdp_delta(events, epsilon, relation=relation) if events else 0.0


ACCOUNTANTS: dict[str, Accountant] = {
    accountant.name: accountant
    for accountant in (ExactAccountant(), PldAccountant(), RdpAccountant())
}


def accountant_named(name: str) -> Accountant:
    """Return an accountant by name.

    >>> accountant_named("exact").name
    'exact'
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


def _check_delta(delta: float) -> None:
    check_number("delta", delta, above=0, below=1)


def _check_epsilon(epsilon: float) -> None:
    check_number("epsilon", epsilon, at_least=0)
