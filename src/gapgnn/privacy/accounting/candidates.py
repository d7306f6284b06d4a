"""How many candidates a private selection runs: a random number whose value stays secret.

Were the number known, or the same in every run, the best of many candidates would tell nearly as
much as all of them. A selection is therefore priced by the distribution of the number, through its
probability generating function ``f(x) = E[x^K]`` (:mod:`gapgnn.privacy.accounting.selection`):
Papernot and Steinke (2022) for the truncated negative binomial and the Poisson distribution,
Koskela, Redberg and Wang (2024) for the binomial one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

import numpy as np

from gapgnn.errors import InputError, check_choice, check_number
from gapgnn.privacy.accounting.pairs import Array

NEGATIVE_BINOMIAL, POISSON, BINOMIAL = "truncated-negative-binomial", "poisson", "binomial"
DISTRIBUTIONS = (NEGATIVE_BINOMIAL, POISSON, BINOMIAL)
# A run that draws no candidate is charged and releases nothing.
MOST_EMPTY = 1e-3
MOST_MEAN = 1e4
# Digits of the distribution function: far more than a draw has, so that no price needs a slack.
_DIGITS, _DRAW_BYTES = 70, 24
_MOST_NUMBER = 10_000_000


@dataclass(frozen=True)
class CandidateNumber:
    """The distribution of the number of candidates.

    Attributes:
        distribution: one of :data:`DISTRIBUTIONS`.
        mean: of the number.
        shape: of the truncated negative binomial: 1 is geometric, 0 logarithmic, with the heavier
            tail; the number of trials of the binomial; 0 for Poisson.

    >>> CandidateNumber.geometric(10.0).gamma
    0.1
    >>> CandidateNumber("poisson", 3.0)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `mean` must be larger for poisson: with probability 0.0498 no ...
    """

    distribution: str
    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        check_choice("distribution", self.distribution, DISTRIBUTIONS)
        mean = check_number("mean", self.mean, at_least=1, at_most=MOST_MEAN)
        shape = check_number("shape", self.shape, at_least=0, at_most=1e6)
        if self.distribution == POISSON and shape:
            raise InputError(f"`shape` must be left out for poisson. Got {shape:g}.")
        if self.distribution == BINOMIAL and not (shape == int(shape) and shape > mean):
            raise InputError(
                "`shape` must be a whole number of trials above `mean` for binomial: were every "
                f"trial a candidate, the number would not be random. Got {shape:g}."
            )
        if self.distribution == NEGATIVE_BINOMIAL and mean == 1:
            raise InputError("`mean` must be above 1: one candidate needs no selection. Got 1.")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", shape)
        if self.empty > MOST_EMPTY:
            raise InputError(
                f"`mean` must be larger for {self.distribution}: with probability "
                f"{self.empty:.3g} no candidate at all would be run, and {MOST_EMPTY:g} is the "
                f"most. Got {mean!r}. Use a geometric number, which is at least 1."
            )

    @classmethod
    def geometric(cls, mean: float) -> CandidateNumber:
        """Return the number of trials up to the first success, of a given mean."""
        return cls(NEGATIVE_BINOMIAL, mean, 1.0)

    @cached_property
    def gamma(self) -> float:
        """Stopping probability of the truncated negative binomial that has the mean."""
        from scipy.optimize import brentq

        if self.shape == 1:
            return 1 / self.mean

        def log_excess(log_gamma: float) -> float:
            return math.log(_negative_binomial_mean(math.exp(log_gamma), self.shape) / self.mean)

        lowest = -1.0
        while log_excess(lowest) < 0:
            lowest *= 2
        return math.exp(float(brentq(log_excess, lowest, -1e-12, xtol=1e-14)))

    @property
    def empty(self) -> float:
        """The probability that no candidate is run."""
        if self.distribution == POISSON:
            return math.exp(-self.mean)
        if self.distribution == BINOMIAL:
            return math.exp(self.shape * math.log1p(-self.mean / self.shape))
        return 0.0

    def log_gradient(self, below: Array) -> Array:
        """Return the logarithm of ``f'(1 - below)``, the expected number at 0, for [0, 1]."""
        logs: Array
        if self.distribution == POISSON:
            logs = math.log(self.mean) - self.mean * below
        elif self.distribution == BINOMIAL:
            share = self.mean / self.shape
            logs = math.log(self.mean) + (self.shape - 1) * np.log1p(-share * below)
        else:
            logs = self._log_scale - (1 + self.shape) * np.log(
                self.gamma + (1 - self.gamma) * below
            )
        return logs

    @cached_property
    def _log_scale(self) -> float:
        """The logarithm of the factor before the power in the gradient."""
        gamma, shape = self.gamma, self.shape
        log = -math.log(gamma)
        if shape == 0:
            return math.log1p(-gamma) - math.log(log)
        return math.log(shape) + math.log1p(-gamma) - math.log(math.expm1(shape * log))

    def of(self, draw: bytes) -> int:
        """Return the number that 24 uniformly random bytes stand for, by the inverse distribution.

        The distribution function is computed to 70 digits, so a number is drawn with its
        probability to within 2^-190.

        >>> [CandidateNumber.geometric(2.0).of(bytes([first] * 24)) for first in (0, 127, 128, 255)]
        [1, 1, 2, 193]
        """
        if len(draw) != _DRAW_BYTES:
            raise InputError(f"`draw` must be {_DRAW_BYTES} bytes. Got {len(draw)}.")
        with localcontext() as context:
            context.prec = _DIGITS
            place = Decimal(int.from_bytes(draw, "big")) / Decimal(2 ** (8 * _DRAW_BYTES))
            total = Decimal(0)
            for number, probability in self._probabilities():
                total += probability
                if place < total or number >= _MOST_NUMBER:
                    return number
        return int(self.shape)

    def _probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """Yield each number and its probability, from the smallest on; in a context of digits."""
        mean, shape = Decimal(self.mean), Decimal(self.shape)
        if self.distribution == POISSON:
            number, probability = 0, (-mean).exp()
            while True:
                yield number, probability
                number += 1
                probability *= mean / number
        if self.distribution == BINOMIAL:
            share, trials = mean / shape, int(self.shape)
            probability = (1 - share) ** trials
            for number in range(trials + 1):
                yield number, probability
                probability *= share / (1 - share) * (trials - number) / (number + 1)
            return
        gamma = Decimal(self.gamma)
        first = -gamma.ln() if not shape else ((-shape * gamma.ln()).exp() - 1) / shape
        number, probability = 1, (1 - gamma) / first
        while True:
            yield number, probability
            probability *= (1 - gamma) * (number + shape) / (number + 1)
            number += 1

    def at_most(self, share: float) -> int:
        """Return a number that is exceeded with a probability of at most 1 - ``share``.

        >>> CandidateNumber.geometric(10.0).at_most(0.99)
        44
        """
        total = 0.0
        with localcontext() as context:
            context.prec = _DIGITS
            for number, probability in self._probabilities():
                total += float(probability)
                if total >= share:
                    return number
        return int(self.shape)

    def __str__(self) -> str:
        names = {0.0: "logarithmic", 1.0: "geometric"}
        name = self.distribution.replace("-", " ")
        more = ""
        if self.distribution == NEGATIVE_BINOMIAL:
            name = names.get(self.shape, name)
            more = "" if self.shape in names else f", shape {self.shape:g}"
        elif self.distribution == BINOMIAL:
            more = f", {self.shape:g} trials"
        return f"{name}, mean {self.mean:g}{more}"


def _negative_binomial_mean(gamma: float, shape: float) -> float:
    """Return the mean (Papernot and Steinke 2022, Definition 1)."""
    log = math.log(gamma)
    if shape == 0:
        return (1 - 1 / gamma) / log
    return shape * (1 / gamma - 1) / -math.expm1(shape * log)
