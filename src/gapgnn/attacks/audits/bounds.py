"""From an attacker's guesses to a lower bound on epsilon that holds with stated confidence.

Every trial tosses a fair coin between two neighbouring data sets, runs the mechanism and scores the
output; a higher score speaks for the second data set. Two bounds (privacy page, section 8):

*Clopper-Pearson.* For any set of outputs an (epsilon, delta)-DP mechanism has ``hits <= e^epsilon *
false alarms + delta``, where both are probabilities, and the same for the complement. The set, a
threshold on one of the statistics, is chosen on one half of the trials. The other half, which did
not choose it, gives exact binomial limits on both probabilities. Nothing is assumed about the
mechanism. What can be shown is limited by the number of trials: never more than about
``log(trials / 15)``.

*Trade-off curve.* A threshold that is fixed in advance guesses the coin. The number of right
guesses is binomial with probability at most (1 + TV) / 2, where TV is the total variation distance
of the mechanism on the two data sets. Its lower limit gives a lower limit on the size of the
effect, and the curve of the mechanism (Gaussian, or subsampled Gaussian) turns that into epsilon at
delta. Right guesses near the middle are plentiful, so this bound is much the sharper one; the
shape of the curve is assumed, its scale is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.privacy.accounting import (
    MixtureOfGaussians,
    PoissonGaussian,
    account,
    gaussian_epsilon,
    pld_delta,
    search_multiplier,
)

Scores = NDArray[np.float64]
# What a total variation distance costs, in epsilon.
Price = Callable[[float], float]
# Thresholds that are tried on the half that chooses; the ends are where small deltas are decided.
_QUANTILES = 400
LEAST_TRIALS = 40


@dataclass(frozen=True)
class Trials:
    """What an attacker saw and what was true.

    Attributes:
        scores: one row per statistic, one column per trial; higher speaks for the second data set.
        worlds: True where the second data set was used; fair coins.
        threshold: for the first statistic, fixed before any trial ran.
        price: the epsilon of a mechanism of this kind whose total variation distance is given,
            where its curve is known.
    """

    scores: Scores
    worlds: NDArray[np.bool_]
    threshold: float = 0.0
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.scores.shape[1] != len(self.worlds):
            raise InputError(
                f"`scores` must have one column per trial ({len(self.worlds)}). "
                f"Got shape {self.scores.shape}."
            )
        check_integer("trials", len(self.worlds), at_least=LEAST_TRIALS)


def binomial_lower(successes: int, trials: int, alpha: float) -> float:
    """Return the Clopper-Pearson lower limit of a probability, wrong at most ``alpha`` of the time.

    >>> round(binomial_lower(50, 100, 0.025), 4)
    0.3983
    """
    from scipy.special import betaincinv

    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, alpha))


def binomial_upper(successes: int, trials: int, alpha: float) -> float:
    """Return the Clopper-Pearson upper limit of a probability, wrong at most ``alpha`` of the time.

    >>> round(binomial_upper(0, 100, 0.05), 4)
    0.0295
    """
    return 1.0 - binomial_lower(trials - successes, trials, alpha)


def threshold_bound(trials: Trials, *, delta: float, alpha: float) -> float:
    """Return a lower bound on epsilon that assumes nothing about the mechanism.

    Wrong with probability at most ``alpha``; the two limits share it.

    >>> rng = np.random.default_rng(0)
    >>> worlds = rng.random(4_000) < 0.5
    >>> answers = np.where(rng.random(4_000) < 0.75, worlds, ~worlds)
    >>> bound = threshold_bound(Trials(answers[None].astype(float), worlds), delta=0, alpha=0.05)
    >>> 0.9 < bound < math.log(3)
    True
    """
    check_number("delta", delta, at_least=0, below=1)
    check_number("alpha", alpha, above=0, below=1)
    # Worlds are independent coins, so a cut by position is a random cut.
    half = trials.scores.shape[1] // 2
    choose, decide = (
        (trials.scores[:, part], trials.worlds[part]) for part in (slice(half), slice(half, None))
    )
    best = (-math.inf, 0, 0.0, True)
    for row, scores in enumerate(choose[0]):
        for threshold in np.unique(np.quantile(scores, _quantiles(half))):
            for is_above in (True, False):
                value = _odds(scores, choose[1], threshold, is_above, delta, alpha)
                best = max(best, (value, row, float(threshold), is_above))
    _, row, threshold, is_above = best
    return max(0.0, _odds(decide[0][row], decide[1], threshold, is_above, delta, alpha))


def _quantiles(count: int) -> Scores:
    """Return levels that are dense at both ends."""
    tail = np.geomspace(1.0 / count, 0.05, _QUANTILES // 4)
    return np.concatenate([[0.0], tail, np.linspace(0.05, 0.95, _QUANTILES // 2), 1 - tail, [1.0]])


def _odds(
    scores: Scores,
    worlds: NDArray[np.bool_],
    threshold: float,
    is_above: bool,
    delta: float,
    alpha: float,
) -> float:
    """Return log((hits - delta) / false alarms) at the cautious ends of their limits."""
    chosen = scores >= threshold
    if is_above:
        hits, alarms = chosen & worlds, chosen & ~worlds
        of_hits, of_alarms = int(worlds.sum()), int((~worlds).sum())
    else:
        hits, alarms = ~chosen & ~worlds, ~chosen & worlds
        of_hits, of_alarms = int((~worlds).sum()), int(worlds.sum())
    if of_hits == 0 or of_alarms == 0:
        return -math.inf
    low = binomial_lower(int(hits.sum()), of_hits, alpha / 2) - delta
    high = binomial_upper(int(alarms.sum()), of_alarms, alpha / 2)
    return math.log(low / high) if low > 0 else -math.inf


def curve_bound(trials: Trials, *, alpha: float) -> float:
    """Return a lower bound on epsilon under the mechanism's own curve, 0 where none is known.

    Wrong with probability at most ``alpha``.
    """
    right = int(((trials.scores[0] >= trials.threshold) == trials.worlds).sum())
    advantage = 2 * binomial_lower(right, len(trials.worlds), alpha) - 1
    return trials.price(advantage) if trials.price is not None and advantage > 0 else 0.0


def gaussian_price(delta: float) -> Price:
    """Return what a total variation distance costs on the Gaussian curve, at ``delta``.

    N(0, 1) against N(mu, 1) has distance ``2 Phi(mu / 2) - 1``.

    >>> round(gaussian_price(1e-5)(0.3829249), 2)
    4.38
    """
    from scipy.special import ndtri

    def price(distance: float) -> float:
        return gaussian_epsilon(2 * float(ndtri((1 + min(distance, 1 - 1e-15)) / 2)), delta)

    return price


def steps_price(event: PoissonGaussian | MixtureOfGaussians, delta: float, relation: str) -> Price:
    """Return what a total variation distance costs on the curve of these steps, at ``delta``.

    The distance is delta at epsilon 0. The accountant's delta is never below the truth, so the
    noise found for a distance is never below the noise that has it.
    """

    def distance_at(scale: float) -> float:
        return pld_delta([event.scaled(scale)], 0.0, relation=relation)

    def price(distance: float) -> float:
        scale = search_multiplier(distance_at, distance)
        if scale is None:
            return 0.0
        found = account([event.scaled(scale)], delta, relation=relation).epsilon
        # What the accountant cannot bound is no proof of anything.
        return found if math.isfinite(found) else 0.0

    return price
