"""Renyi differential privacy: the looser, older analysis, reported beside the tight ones.

The Renyi divergence of order alpha of the worst-case pair adds up under composition; the smallest
epsilon over all orders is reported. Poisson steps and mixtures are integrated numerically, which
covers both relations; Gaussian, Laplace and randomised response have closed forms.

The paper's own formulas are kept for comparison. They use the plain conversion, epsilon(alpha) +
log(1/delta) / (alpha - 1), which is why they ask for more noise than needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gapgnn.errors import check_integer, check_number
from gapgnn.privacy import RelationLike
from gapgnn.privacy.accounting.events import Event, merge, parallel_compositions
from gapgnn.privacy.accounting.pairs import (
    Array,
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SelectionPair,
)

# Dense where budgets of practice have their optimum, sparse up to where tiny budgets have theirs.
ORDERS: Array = np.concatenate(
    [
        np.array([1.02, 1.04, 1.06, 1.08]),
        1 + np.arange(1, 100) / 10,
        np.arange(11.0, 64.0),
        np.geomspace(64.0, 262144.0, 61),
    ]
)
# Orders whose integrand peaks this many standard deviations out have never been the best one.
_FARTHEST_PEAK = 150.0
# What rounding may take from the logarithm of an integral or sum near 1: added, so that a step that
# costs next to nothing is never free, however often it is taken.
_ROUNDING = 1e-14


def renyi_curve(
    events: Sequence[Event], *, relation: RelationLike, orders: Array = ORDERS
) -> Array:
    """Return the Renyi divergence of the composition at each order; of the dearest role there.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> renyi_curve([Gaussian(2.0)], relation="directed", orders=np.array([2.0, 8.0])).tolist()
    [0.25, 1.0]
    """
    cases = parallel_compositions(events, relation=relation)
    if len(cases) > 1:
        curves = [renyi_curve(case, relation=other, orders=orders) for case, other in cases]
        dearest: Array = np.maximum.reduce(curves)
        return dearest
    merged = merge(events, relation=relation)
    total: Array = orders * (merged.shift * merged.shift / 2)
    for pair, times in merged.rest:
        total = total + times * np.array(_divergences(pair, tuple(orders.tolist())))
    return total


def rdp_epsilon(
    events: Sequence[Event], delta: float, *, relation: RelationLike, orders: Array = ORDERS
) -> float:
    """Return the epsilon that RDP proves at ``delta`` (Canonne, Kamath and Steinke 2020, Prop. 12).

    Fewer ``orders`` are faster and can only give a larger epsilon.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> round(rdp_epsilon([Gaussian(7.04, count=2)], 1e-7, relation="directed"), 2)
    1.0
    """
    if not events:
        return 0.0
    curve = renyi_curve(events, relation=relation, orders=orders)
    # Bretagnolle-Huber: delta <= sqrt(1 - exp(-KL)); KL is at most any divergence of order above 1.
    if -math.expm1(-float(curve.min())) < delta * delta:
        return 0.0
    bounds = curve + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(bounds.min()))


def rdp_delta(events: Sequence[Event], epsilon: float, *, relation: RelationLike) -> float:
    """Return the delta that RDP proves at ``epsilon``."""
    curve = renyi_curve(events, relation=relation)
    logs = (ORDERS - 1) * (curve - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(
        1.0, math.exp(min(0.0, float(logs.min()))), math.sqrt(-math.expm1(-float(curve.min())))
    )


def paper_edge_epsilon(sigma: float, hops: int, delta: float) -> float:
    """Return epsilon by the paper's edge-level proposition (relation ``directed``, sensitivity 1).

    ``K / (2 sigma^2) + sqrt(2 K log(1/delta)) / sigma``. For another relation give sigma in
    sensitivities, that is the noise multiplier.

    >>> round(paper_edge_epsilon(8.152, 2, 1e-7), 3)
    1.0
    """
    check_number("sigma", sigma, above=0)
    shift = math.sqrt(check_integer("hops", hops, at_least=1)) / sigma
    return shift * shift / 2 + shift * math.sqrt(2 * _log_inverse(delta))


def plain_rdp_epsilon(events: Sequence[Event], delta: float, *, relation: RelationLike) -> float:
    """Return epsilon by the paper's conversion from RDP, for any composition and relation.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> round(plain_rdp_epsilon([Gaussian(8.152, count=2)], 1e-7, relation="directed"), 3)
    1.0
    """
    curve = renyi_curve(events, relation=relation)
    return float(np.min(curve + _log_inverse(delta) / (ORDERS - 1)))


def _log_inverse(delta: float) -> float:
    return -math.log(check_number("delta", delta, above=0, below=1))


@lru_cache(maxsize=256)
def _divergences(pair: Pair, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return the divergence of a pair at each order; asked again for every card of one setting."""
    if isinstance(pair, SelectionPair):
        from gapgnn.privacy.accounting.selection import selection_divergences

        return selection_divergences(pair, orders)
    return tuple(_worse_divergence(pair, order) for order in orders)


def _worse_divergence(pair: GaussianPair | LaplacePair | DiscretePair, order: float) -> float:
    """Return the larger of the two directions' divergences."""
    if isinstance(pair, LaplacePair):
        return _laplace(pair.pure_epsilon, order)
    if isinstance(pair, DiscretePair):
        return max(_outcomes(pair, order), _outcomes(pair.reversed, order))
    return max(_divergence(pair, order), _divergence(pair.reversed, order))


def _divergence(pair: GaussianPair, order: float) -> float:
    """Integrate ``upper^order lower^(1 - order)`` by the trapezoid rule, in logarithms.

    The integrand is analytic in a strip whose width falls with the largest shift, so a step well
    below that width is exact to rounding.
    """
    upper, lower = np.array(pair.upper_means), np.array(pair.lower_means)
    left = min(order * upper.min() - (order - 1) * lower.max(), upper.min(), lower.min())
    right = max(order * upper.max() - (order - 1) * lower.min(), upper.max(), lower.max())
    spread = float(max(upper.max(), lower.max()) - min(upper.min(), lower.min()))
    if right - left > _FARTHEST_PEAK:
        return math.inf
    step = min(0.1, 0.3 / spread) if spread else 0.1
    x = np.arange(left - 12.0, right + 12.0 + step, step)
    above, below = pair.log_densities(x)
    log_integral = np.logaddexp.reduce(order * above + (1 - order) * below) + math.log(step)
    return (max(0.0, float(log_integral)) + _ROUNDING) / (order - 1)


def _laplace(epsilon: float, order: float) -> float:
    """Mironov 2017, Proposition 6, in a form without overflow.

    Where its digits would cancel, the bound that stands for any pure release.
    """
    if epsilon * order < 1e-5:
        return _pure(epsilon, order)
    inside = (order - 1) * math.expm1(epsilon * (1 - 2 * order)) / (2 * order - 1)
    return epsilon + math.log1p(inside) / (order - 1)


def _outcomes(pair: DiscretePair, order: float) -> float:
    if pair.infinity_mass:
        return math.inf
    terms = order * np.array(pair.upper) + (1 - order) * np.array(pair.lower)
    computed = max(0.0, float(np.logaddexp.reduce(terms))) + _ROUNDING
    # Of two logarithms, whose last digits may be wrong.
    pure = pair.pure_epsilon + 1e-15
    return min(_pure(pure, order), computed / (order - 1))


def _pure(epsilon: float, order: float) -> float:
    """Bound the divergence of a release of a pure epsilon (Bun and Steinke 2016, Prop. 3.3)."""
    return min(epsilon, order * epsilon * epsilon / 2)
