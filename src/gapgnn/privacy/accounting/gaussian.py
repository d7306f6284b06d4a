"""The exact privacy curve of Gaussian noise (Balle and Wang 2018), stable in its far tails.

N(0, 1) against N(mu, 1) is (epsilon, delta)-DP exactly when::

    delta >= Q(a) - e^epsilon Q(b),   a = epsilon/mu - mu/2,   b = epsilon/mu + mu/2

with Q the upper tail of the standard normal. Since e^epsilon phi(b) = phi(a), the right side is
also phi(a) (R(a) - R(b)) with the Mills ratio R = Q/phi, which never multiplies a huge number by a
tiny one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gapgnn.errors import check_number

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
# Rounding of the curve itself, so that a reported epsilon is never below the true one.
_SAFETY = 1e-12


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
    return root * (1 - _SAFETY)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    def finite(x: float) -> float:
        # brentq cannot interpolate with infinities; only the sign matters this far out.
        return max(min(function(x), 1e6), -1e6)

    return float(brentq(finite, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))
