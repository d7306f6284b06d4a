"""A composition in its shortest equal form, and the worst-case pairs that analysis works on.

All Gaussian releases of a composition are exactly one Gaussian release: their squared shifts add
up. Steps with equal parameters are one event with more steps. Both make every accountant faster and
the result independent of the order in which events were recorded (privacy page, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_choice
from gapgnn.privacy import RELATIONS
from gapgnn.privacy.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
)

Subsampled = PoissonGaussian | MixtureOfGaussians
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Merged:
    """A composition as one Gaussian and the rest.

    Attributes:
        shift: mu of the one Gaussian: N(0, 1) against N(mu, 1). 0 if there is none, and infinite if
            the noise is too small for a float.
        subsampled: steps on Poisson batches, equal ones merged, in a fixed order.
        pure: Laplace and randomised response, likewise.
    """

    shift: float
    subsampled: tuple[Subsampled, ...]
    pure: tuple[Laplace | RandomisedResponse, ...]

    @property
    def is_gaussian(self) -> bool:
        """Whether the exact Gaussian curve describes the whole composition."""
        return not self.subsampled and not self.pure


def merge(events: Sequence[Event], *, relation: str) -> Merged:
    """Bring a composition to its shortest equal form.

    A Poisson step at rate 1 is a plain Gaussian release, of shift 1/m, or 2/m under ``replace``.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> merge([Gaussian(2.0, count=2), Gaussian(1.0)], relation="add-remove").shift == 1.5**0.5
    True
    """
    check_choice("relation", relation, RELATIONS)
    squares: list[float] = []
    steps: dict[Subsampled, int] = {}
    pure: dict[Laplace | RandomisedResponse, int] = {}
    for event in events:
        if isinstance(event, Gaussian):
            squares.append(event.count * _square(1.0 / event.noise_multiplier))
        elif isinstance(event, PoissonGaussian) and event.sampling_rate == 1.0:
            distance = 2.0 if relation == "replace" else 1.0
            squares.append(event.steps * _square(distance / event.noise_multiplier))
        elif isinstance(event, PoissonGaussian | MixtureOfGaussians):
            key = replace(event, steps=1, label="")
            steps[key] = steps.get(key, 0) + event.steps
        elif isinstance(event, Laplace | RandomisedResponse):
            single = replace(event, count=1, label="")
            pure[single] = pure.get(single, 0) + event.count
        else:
            raise InputError(f"an event must be one of gapgnn.privacy.accounting. Got {event!r}.")
    return Merged(
        shift=math.sqrt(math.fsum(sorted(squares))),
        subsampled=tuple(replace(e, steps=n) for e, n in sorted(steps.items(), key=repr)),
        pure=tuple(replace(e, count=n) for e, n in sorted(pure.items(), key=repr)),
    )


def _square(x: float) -> float:
    # x * x overflows to infinity where x ** 2 would raise.
    return x * x


@dataclass(frozen=True)
class Pair:
    """The two output distributions of one step that are hardest to tell apart.

    Mixtures of unit Gaussians: ``upper`` has weight ``upper_weights[i]`` at ``upper_means[i]``,
    ``lower`` likewise. Lengths are in standard deviations of the noise.
    """

    upper_means: Array
    upper_weights: Array
    lower_means: Array
    lower_weights: Array

    @property
    def reversed(self) -> Pair:
        """The same pair seen from the other side: removing became adding."""
        return Pair(self.lower_means, self.lower_weights, self.upper_means, self.upper_weights)

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """Return the logarithms of both densities at ``x``."""
        return (
            _log_density(x, self.upper_means, self.upper_weights),
            _log_density(x, self.lower_means, self.lower_weights),
        )


def worst_pair(event: Subsampled, *, relation: str) -> Pair:
    """Return the worst-case pair of one step (as stated in the event's docstring)."""
    scale = 1.0 / event.noise_multiplier
    origin = np.zeros(1), np.ones(1)
    if isinstance(event, MixtureOfGaussians):
        if relation == "replace":
            raise InputError(
                "a mixture of Gaussians has no accounting under `replace`. "
                "Use relation 'add-remove'."
            )
        keep = [i for i, p in enumerate(event.probabilities) if p > 0]
        shifts = np.array([event.sensitivities[i] for i in keep]) * scale
        weights = np.array([event.probabilities[i] for i in keep])
        return Pair(shifts, weights / weights.sum(), *origin)
    rate = event.sampling_rate
    weights = np.array([1.0 - rate, rate])
    upper = np.array([0.0, scale])
    if relation == "replace":
        return Pair(upper, weights, -upper, weights)
    return Pair(upper, weights, *origin)


def _log_density(x: Array, means: Array, weights: Array) -> Array:
    terms = np.log(weights)[:, None] - 0.5 * (x[None, :] - means[:, None]) ** 2
    total: Array = np.logaddexp.reduce(terms, axis=0) - 0.5 * math.log(2 * math.pi)
    return total
