"""Exact amounts: an epsilon and a delta as the decimal numbers that were written.

0.1 is one tenth, summed as a fraction: ten charges of 0.1 fill a budget of 1, and no rounding lets
an eleventh in. How charges come together otherwise is the matter of
:mod:`gapgnn.privacy.ledger.filters`; the names of the ways are here, where nothing is loaded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from gapgnn.errors import check_number

COMPOSITIONS = ("gaussian", "renyi", "sum")


class Amount(NamedTuple):
    """An exact epsilon and delta."""

    epsilon: Fraction
    delta: Fraction

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Amount:
        """Take the numbers as they are written in decimal, so that 0.1 is one tenth.

        >>> Amount.of(0.1, 0).times(10) == Amount.of(1, 0)
        True
        """
        return cls(
            Fraction(repr(check_number("epsilon", epsilon, at_least=0))),
            Fraction(repr(check_number("delta", delta, at_least=0, below=1))),
        )

    def plus(self, other: Amount) -> Amount:
        """Return the sum: basic sequential composition."""
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def minus(self, other: Amount) -> Amount:
        """Return what is left of this after the other."""
        return Amount(self.epsilon - other.epsilon, self.delta - other.delta)

    def times(self, count: int) -> Amount:
        """Return the price of ``count`` releases."""
        return Amount(self.epsilon * count, self.delta * count)

    def grouped(self, size: int) -> Amount:
        """Return group privacy of so many, rounded up: each step to the next adds delta once more.

        ``(g epsilon, (1 + e^epsilon + ... + e^((g - 1) epsilon)) delta)``.

        >>> float(Amount.of(1, 1e-6).grouped(2).epsilon)
        2.0
        >>> round(float(Amount.of(1, 1e-6).grouped(3).delta) * 1e6, 3)
        11.107
        """
        if size == 1:
            return self
        # A delta of 1 promises nothing, so it never needs to be more; e^710 would overflow.
        if size * self.epsilon >= 700:
            delta = Fraction(1 if self.delta else 0)
        else:
            one = float(self.epsilon)
            growth = math.expm1(size * one) / math.expm1(one) if one > 0 else float(size)
            delta = min(Fraction(1), Fraction(growth * (1 + 1e-11)) * self.delta)
        return Amount(size * self.epsilon, delta)

    def fits(self, other: Amount) -> bool:
        """Tell whether neither part is more than the other's."""
        return self.epsilon <= other.epsilon and self.delta <= other.delta

    def __str__(self) -> str:
        return f"epsilon {float(self.epsilon):.6g} and delta {float(self.delta):.6g}"
