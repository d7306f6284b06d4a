"""Privacy accounting on its own: events in, epsilon or delta out.

An event says what a mechanism released; a composition is a list of events. Nothing here needs a
graph or a model::

    from gapgnn.accounting import Gaussian, PoissonGaussian, epsilon

    events = [Gaussian(2.0, count=2), PoissonGaussian(1.0, sampling_rate=0.01, steps=1000)]
    epsilon(events, delta=1e-5, relation="add-remove")

Gaussian noise alone is accounted exactly, everything else by privacy loss distributions; both are
upper bounds on the true epsilon up to the rounding of the curve (privacy page, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from gapgnn.errors import check_number
from gapgnn.privacy.accounting import (
    AttackBounds,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    account,
    accountant_named,
)
from gapgnn.privacy.accounting import attack_bounds as _attack_bounds
from gapgnn.privacy.accounting import calibrate as _calibrate

__all__ = [
    "AttackBounds",
    "Event",
    "Gaussian",
    "LabelResponse",
    "Laplace",
    "MixtureOfGaussians",
    "PoissonGaussian",
    "RandomisedResponse",
    "attack_bounds",
    "calibrate",
    "delta",
    "epsilon",
]


def epsilon(events: Sequence[Event], delta: float, *, relation: str = "add-remove") -> float:
    """Return an epsilon at which a composition is (epsilon, delta)-DP.

    Args:
        events: what was released, in any order.
        delta: failure probability, 0 for pure guarantees.
        relation: which inputs are neighbours: ``undirected``, ``directed``, ``5-edges``,
            ``5-arcs``, ``add-remove`` or ``replace``.

    >>> round(epsilon([Gaussian(6.617, count=2)], 1e-7, relation="undirected"), 3)
    1.0
    """
    return account(events, delta, relation=relation).epsilon


def delta(events: Sequence[Event], epsilon: float, *, relation: str = "add-remove") -> float:
    """Return a delta at which a composition is (epsilon, delta)-DP.

    >>> round(delta([Gaussian(1.0)], 1.0), 4)
    0.1269
    """
    check_number("epsilon", epsilon, at_least=0)
    return accountant_named("pld").delta(events, epsilon, relation=relation)


def calibrate(
    template: Sequence[Event],
    *,
    epsilon: float,
    delta: float,
    relation: str = "add-remove",
    fixed: Sequence[Event] = (),
) -> list[Event]:
    """Return events with the least noise that keeps a budget.

    Args:
        template: events whose noise multipliers are ratios to one free multiplier.
        epsilon: the budget; the accounted epsilon is at most this, and within 0.5 % of it.
        delta: at which.
        relation: which inputs are neighbours.
        fixed: further events whose noise is decided already.

    >>> (hops,) = calibrate([Gaussian(1.0, count=2)], epsilon=1.0, delta=1e-7, relation="directed")
    >>> round(hops.noise_multiplier, 3)
    6.617
    """
    found = _calibrate(template, epsilon=epsilon, delta=delta, relation=relation, fixed=fixed)
    return list(found.events)


def attack_bounds(events: Sequence[Event], *, relation: str = "add-remove") -> AttackBounds:
    """Return what the best attacker can reach: mu, a 50:50 guess, true positives at a few false.

    >>> round(attack_bounds([Gaussian(1.0)]).guess, 3)
    0.691
    """
    return _attack_bounds(events, relation=relation)
