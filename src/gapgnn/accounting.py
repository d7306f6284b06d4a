"""Privacy accounting on its own: events in, epsilon or delta out.

An event says what a mechanism released; a composition is a list of events. Nothing here needs a
graph or a model::

    from gapgnn.accounting import Gaussian, PoissonGaussian, epsilon

    events = [Gaussian(2.0, count=2), PoissonGaussian(1.0, sampling_rate=0.01, steps=1000)]
    epsilon(events, delta=1e-5, relation="add-remove")

:func:`compose` puts releases together, :func:`calibrate` finds the noise for a budget,
:func:`group_epsilon` prices several records that leave together, and :func:`trade_off` gives the
curve of what an attacker can reach, as arrays or as a plot. Events of dp_accounting and histories
of Opacus' accountants are converted in both directions.

Gaussian noise alone is accounted exactly, everything else by privacy loss distributions; both are
upper bounds on the true epsilon up to the rounding of the curve (privacy page, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import InputError, check_number
from gapgnn.privacy.accounting import (
    AttackBounds,
    DiscretePair,
    EpsilonDelta,
    Event,
    Gaussian,
    GaussianPair,
    LabelResponse,
    Laplace,
    LaplacePair,
    MixtureOfGaussians,
    PoissonGaussian,
    PrivateSelection,
    RandomisedResponse,
    SubgraphGaussian,
    account,
    accountant_named,
    compose,
    from_dp_accounting,
    from_opacus,
    group_epsilon,
    merge,
    parallel_compositions,
    privacy_profile,
    to_dp_accounting,
    to_opacus,
)
from gapgnn.privacy.accounting import attack_bounds as _attack_bounds
from gapgnn.privacy.accounting import calibrate as _calibrate

__all__ = [
    "AttackBounds",
    "DiscretePair",
    "EpsilonDelta",
    "Event",
    "Gaussian",
    "GaussianPair",
    "LabelResponse",
    "Laplace",
    "LaplacePair",
    "MixtureOfGaussians",
    "PoissonGaussian",
    "PrivateSelection",
    "RandomisedResponse",
    "SubgraphGaussian",
    "TradeOff",
    "attack_bounds",
    "calibrate",
    "compose",
    "delta",
    "epsilon",
    "from_dp_accounting",
    "from_opacus",
    "group_epsilon",
    "mu",
    "to_dp_accounting",
    "to_opacus",
    "trade_off",
]

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def mu(events: Sequence[Event], *, relation: str = "add-remove") -> float:
    """Return mu of Gaussian DP, which exists where all noise is Gaussian on whole answers.

    The composition is then exactly as private as one number that is 0 or mu, with standard normal
    noise.

    >>> round(mu([Gaussian(2.0, count=3), Gaussian(2.0)]), 9)
    1.0
    """
    cases = [
        merge(case, relation=other)
        for case, other in parallel_compositions(events, relation=relation)
    ]
    if not all(case.is_gaussian for case in cases):
        found = next(event for event in events if not isinstance(event, Gaussian))
        raise InputError(
            "mu exists for Gaussian noise on whole answers alone: use `trade_off` or `epsilon`. "
            f"Got a {type(found).__name__} event."
        )
    return max(case.shift for case in cases)


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The errors of the best attacker who wants to tell two neighbours apart.

    A test that raises a false alarm in ``false_positives[i]`` of all cases misses at least
    ``false_negatives[i]`` of the true ones: a lower bound, exact for Gaussian noise.
    """

    false_positives: NDArray[np.float64]
    false_negatives: NDArray[np.float64]

    def plot(self, axes: Axes | None = None, **line: Any) -> Axes:
        """Draw the curve, with that of an attacker who only guesses.

        Args:
            axes: to draw on; left out: new ones.
            line: options of the line, such as ``label`` and ``color``.

        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> axes = trade_off([Gaussian(1.0)]).plot(label="one release")
        >>> axes.get_xlabel()
        'false positives'
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots()[1]
        if not axes.lines:
            axes.plot([0, 1], [1, 0], color="0.7", linestyle="--", label="guessing")
        axes.plot(self.false_positives, self.false_negatives, **line)
        axes.set(xlabel="false positives", ylabel="false negatives", xlim=(0, 1), ylim=(0, 1))
        axes.legend()
        return axes


def trade_off(
    events: Sequence[Event],
    *,
    relation: str = "add-remove",
    false_positives: ArrayLike | None = None,
) -> TradeOff:
    """Return the trade-off curve of a composition.

    Args:
        events: what was released.
        relation: which inputs are neighbours.
        false_positives: where the curve is wanted, in (0, 1); left out: 99 places.

    >>> curve = trade_off([Gaussian(1.0)], false_positives=[0.01, 0.5])
    >>> curve.false_negatives.round(4).tolist()
    [0.9076, 0.1587]
    """
    if false_positives is None:
        places = np.concatenate([[0.001, 0.002, 0.005], np.linspace(0.01, 0.99, 96)])
    else:
        places = np.asarray(false_positives, dtype=np.float64).reshape(-1)
    profile = privacy_profile([(tuple(events), 1)], relation=relation)
    missed = [1.0 - profile.true_positives(float(place)) for place in places]
    return TradeOff(places, np.array(missed))
