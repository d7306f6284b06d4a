"""Dominating pairs: the two output distributions of a release that are hardest to distinguish.

A release is no easier to see through than its pair (privacy page, section 3), so an accountant
works on pairs alone and knows no mechanism. Three families are enough for every event here and
for most others: mixtures of Gaussians, Laplace noise, and finitely many outcomes. A fourth is the
best of several candidates, whatever their own pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import PrivacyError
from gapgnn.privacy import Relation

if TYPE_CHECKING:
    from gapgnn.privacy.accounting.candidates import CandidateNumber

Array = NDArray[np.float64]
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class GaussianPair:
    """Two mixtures of unit Gaussians; lengths are in standard deviations of the noise.

    ``upper`` has weight ``upper_weights[i]`` at ``upper_means[i]``, ``lower`` likewise. All means
    of one lie on one side of all means of the other, so that the loss rises or falls all along.

    >>> GaussianPair.shifted(0.5).shift, GaussianPair((0.0, 0.5), (0.9, 0.1)).shift
    (0.5, None)
    """

    upper_means: Numbers
    upper_weights: Numbers
    lower_means: Numbers = (0.0,)
    lower_weights: Numbers = (1.0,)

    def __post_init__(self) -> None:
        for means, weights in (
            (self.upper_means, self.upper_weights),
            (self.lower_means, self.lower_weights),
        ):
            if len(means) != len(weights) or not math.isclose(math.fsum(weights), 1, abs_tol=1e-9):
                raise PrivacyError("A Gaussian pair must have one weight per mean, 1 in all.")
        is_above = min(self.upper_means) >= max(self.lower_means)
        if not is_above and max(self.upper_means) > min(self.lower_means):
            raise PrivacyError("A Gaussian pair must have all upper means on one side.")

    @classmethod
    def shifted(cls, distance: float) -> GaussianPair:
        """Return N(distance, 1) against N(0, 1): one Gaussian release."""
        return cls((distance,), (1.0,))

    @property
    def shift(self) -> float | None:
        """The distance of two single Gaussians; None if one is a mixture."""
        if len(self.upper_means) > 1 or len(self.lower_means) > 1:
            return None
        return abs(self.upper_means[0] - self.lower_means[0])

    @property
    def reversed(self) -> GaussianPair:
        """The same pair seen from the other side: removing became adding."""
        return GaussianPair(
            self.lower_means, self.lower_weights, self.upper_means, self.upper_weights
        )

    @property
    def reach(self) -> tuple[float, float]:
        """The smallest and the largest mean."""
        means = (*self.upper_means, *self.lower_means)
        return min(means), max(means)

    @property
    def effect(self) -> float:
        """Bound the probability that the two differ at all, whatever the noise.

        It is the distance of the two mixtures of places: what both have at the same place, such as
        the origin where a record is not sampled, is no difference.
        """
        upper = _weight_by_place(self.upper_means, self.upper_weights)
        lower = _weight_by_place(self.lower_means, self.lower_weights)
        return max(
            math.fsum(max(0.0, weight - other.get(place, 0.0)) for place, weight in one.items())
            for one, other in ((upper, lower), (lower, upper))
        )

    @property
    def pure_epsilon(self) -> float:
        """Gaussian noise has no epsilon at delta 0."""
        return math.inf

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """Return the logarithms of both densities at ``x``."""
        return (
            _log_density(x, self.upper_means, self.upper_weights),
            _log_density(x, self.lower_means, self.lower_weights),
        )


@dataclass(frozen=True)
class LaplacePair:
    """Laplace noise whose scale is the sensitivity over ``pure_epsilon``."""

    pure_epsilon: float


@dataclass(frozen=True)
class DiscretePair:
    """Finitely many outcomes, by the logarithms of their probabilities, which stay exact when tiny.

    The outcomes listed are possible on both sides. With probability ``infinity_mass`` the
    outcome is impossible on the other side, so that the privacy loss is infinite.

    >>> DiscretePair.of_pure(2.0).pure_epsilon
    2.0
    """

    upper: Numbers
    lower: Numbers
    infinity_mass: float = 0.0

    def __post_init__(self) -> None:
        whole = 0 <= self.infinity_mass < 1 and all(
            math.isclose(math.fsum(map(math.exp, side)), 1.0 - self.infinity_mass, abs_tol=1e-9)
            for side in (self.upper, self.lower)
        )
        if len(self.upper) != len(self.lower) or not whole:
            raise PrivacyError("A discrete pair must have the same outcomes, 1 in all, twice.")
        if not all(map(math.isfinite, (*self.upper, *self.lower))):
            raise PrivacyError("A discrete pair must have outcomes possible on both sides.")

    @classmethod
    def of_pure(cls, epsilon: float) -> DiscretePair:
        """Return the pair that dominates every mechanism of this epsilon at delta 0.

        It is randomised response (Kairouz, Oh and Viswanath 2015, Theorem 3.4).
        """
        kept = -math.log1p(math.exp(-epsilon))
        return cls((kept, kept - epsilon), (kept - epsilon, kept))

    @classmethod
    def of_approximate(cls, epsilon: float, delta: float) -> DiscretePair:
        """Return the pair that dominates every (epsilon, delta)-DP mechanism.

        With probability delta everything is revealed, and otherwise the release is pure (Kairouz,
        Oh and Viswanath 2015, Theorem 3.4).
        """
        kept, rest = cls.of_pure(epsilon), math.log1p(-delta)
        upper, lower = (tuple(one + rest for one in side) for side in (kept.upper, kept.lower))
        return cls(upper, lower, delta)

    @property
    def reversed(self) -> DiscretePair:
        """The same pair seen from the other side."""
        return DiscretePair(self.lower, self.upper, self.infinity_mass)

    @property
    def pure_epsilon(self) -> float:
        """The epsilon at delta 0: the largest loss of any outcome."""
        return math.inf if self.infinity_mass else self.largest_loss

    @property
    def largest_loss(self) -> float:
        """The largest loss of an outcome that is possible on both sides."""
        return max(abs(one - other) for one, other in zip(self.upper, self.lower, strict=True))


@dataclass(frozen=True)
class SelectionPair:
    """The best of a random number of candidates (:mod:`gapgnn.privacy.accounting.selection`).

    Attributes:
        candidates: the events of each setting that a candidate may be run with.
        relation: which inputs are neighbours.
        number: the distribution of the number of candidates.
    """

    candidates: tuple[tuple[Any, ...], ...]
    relation: Relation
    number: CandidateNumber

    @property
    def pure_epsilon(self) -> float:
        """The epsilon at delta 0; infinite where a candidate has none."""
        from gapgnn.privacy.accounting.selection import selection_pure

        return selection_pure(self)


Pair = GaussianPair | LaplacePair | DiscretePair | SelectionPair


def _weight_by_place(means: Numbers, weights: Numbers) -> dict[float, float]:
    places: dict[float, float] = {}
    for mean, weight in zip(means, weights, strict=True):
        places[mean] = places.get(mean, 0.0) + weight
    return places


def _log_density(x: Array, means: Numbers, weights: Numbers) -> Array:
    terms = np.log(weights)[:, None] - 0.5 * (x[None, :] - np.array(means)[:, None]) ** 2
    total: Array = np.logaddexp.reduce(terms, axis=0) - 0.5 * math.log(2 * math.pi)
    return total
