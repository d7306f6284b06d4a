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
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.privacy import Relation
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
# Beyond this shift a mechanism hides nothing, and no more digits are needed.
MOST_SHIFT = 1e3


@dataclass(frozen=True)
class Trials:
    """Scores of an attacker, and the true data set of every trial.

    Attributes:
        scores: one row per statistic, one column per trial; higher speaks for the second data set.
        worlds: True where the second data set was used; fair coins.
        threshold: for the first statistic, fixed before any trial ran.
        price: the epsilon of this type of mechanism as a function of its total variation distance,
            where the trade-off curve is known.
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


def binomial_lower(successes: ArrayLike, trials: int, alpha: float) -> Scores:
    """Return Clopper-Pearson lower limits of probabilities, wrong at most ``alpha`` of the time.

    >>> round(float(binomial_lower(50, 100, 0.025)), 4)
    0.3983
    """
    from scipy.special import betaincinv

    found = np.asarray(successes)
    limits = betaincinv(np.maximum(found, 1), trials - found + 1, alpha)
    return np.where(found == 0, 0.0, limits)


def binomial_upper(successes: ArrayLike, trials: int, alpha: float) -> Scores:
    """Return Clopper-Pearson upper limits of probabilities, wrong at most ``alpha`` of the time.

    >>> round(float(binomial_upper(0, 100, 0.05)), 4)
    0.0295
    """
    return 1.0 - binomial_lower(trials - np.asarray(successes), trials, alpha)


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
    best = (-math.inf, 0, 0.0, 0)
    for row, scores in enumerate(choose[0]):
        thresholds = np.unique(np.quantile(scores, _quantiles(half)))
        odds = _odds(scores, choose[1], thresholds, delta, alpha)
        # Of equally good ones the last.
        place, side = divmod(odds.size - 1 - int(odds.ravel()[::-1].argmax()), 2)
        best = max(best, (float(odds[place, side]), row, float(thresholds[place]), side))
    _, row, threshold, side = best
    found = _odds(decide[0][row], decide[1], np.array([threshold]), delta, alpha)[0, side]
    return max(0.0, float(found))


def fixed_bound(
    scores: Scores, worlds: NDArray[np.bool_], *, threshold: float, delta: float, alpha: float
) -> float:
    """Return a lower bound on epsilon from a threshold that other trials chose.

    Scores from the threshold on speak for the second data set, where ``worlds`` is True. Nothing is
    assumed about the mechanism.

    >>> worlds = np.arange(200) % 2 == 0
    >>> scores = worlds.astype(float)
    >>> round(fixed_bound(scores, worlds, threshold=0.5, delta=0.0, alpha=0.05), 1)
    3.1
    """
    odds = _odds(scores, worlds, np.array([threshold]), delta, alpha / 2)
    return max(0.0, float(odds.max()))


def _quantiles(count: int) -> Scores:
    """Return levels that are dense at both ends."""
    tail = np.geomspace(1.0 / count, 0.05, _QUANTILES // 4)
    return np.concatenate([[0.0], tail, np.linspace(0.05, 0.95, _QUANTILES // 2), 1 - tail, [1.0]])


def _odds(
    scores: Scores, worlds: NDArray[np.bool_], thresholds: Scores, delta: float, alpha: float
) -> Scores:
    """Return log((hits - delta) / false alarms) at the cautious ends of their limits.

    One row per threshold: for the first data set by scores below it, for the second from it on.
    """
    sides = np.sort(scores[~worlds]), np.sort(scores[worlds])
    if not all(map(len, sides)):
        return np.full((len(thresholds), 2), -math.inf)
    below = [np.searchsorted(side, thresholds) for side in sides]
    above = [len(side) - count for side, count in zip(sides, below, strict=True)]
    odds = []
    for chosen, hit in ((below, 0), (above, 1)):
        low = binomial_lower(chosen[hit], len(sides[hit]), alpha / 2) - delta
        high = binomial_upper(chosen[1 - hit], len(sides[1 - hit]), alpha / 2)
        odds.append(np.where(low > 0, np.log(np.maximum(low, 1e-300) / high), -math.inf))
    return np.stack(odds, axis=1)


def curve_bound(trials: Trials, *, alpha: float) -> float:
    """Return a lower bound on epsilon under the mechanism's own curve, 0 where none is known.

    Wrong with probability at most ``alpha``.
    """
    right = int(((trials.scores[0] >= trials.threshold) == trials.worlds).sum())
    advantage = 2 * float(binomial_lower(right, len(trials.worlds), alpha)) - 1
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


def epsilon_of(shift: float, delta: float) -> float:
    """Return what a shift costs at ``delta``; 0 for a shift that is not positive.

    >>> epsilon_of(-0.1, 1e-6), round(epsilon_of(0.8379, 1e-6), 2)
    (0.0, 4.0)
    """
    return gaussian_epsilon(min(shift, MOST_SHIFT), delta) if shift > 0 else 0.0


def steps_price(
    event: PoissonGaussian | MixtureOfGaussians, delta: float, relation: Relation
) -> Price:
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
