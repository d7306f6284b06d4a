"""Exact amounts: an epsilon and a delta as the decimal numbers that were written.

0.1 is one tenth, summed as a fraction: ten charges of 0.1 fill a budget of 1, and no rounding lets
an eleventh in.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from gapgnn.errors import check_number


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

    def doubled(self) -> Amount:
        """Return group privacy of two, rounded up: (2 epsilon, (1 + e^epsilon) delta).

        >>> float(Amount.of(1, 1e-6).doubled().epsilon)
        2.0
        """
        # A delta of 1 promises nothing, so it never needs to be more; e^710 would overflow.
        if self.epsilon >= 700:
            delta = Fraction(1 if self.delta else 0)
        else:
            growth = Fraction(math.exp(float(self.epsilon)) * (1 + 1e-12))
            delta = min(Fraction(1), (1 + growth) * self.delta)
        return Amount(2 * self.epsilon, delta)

    def fits(self, other: Amount) -> bool:
        """Tell whether neither part is more than the other's."""
        return self.epsilon <= other.epsilon and self.delta <= other.delta

    def __str__(self) -> str:
        return f"epsilon {float(self.epsilon):.6g} and delta {float(self.delta):.6g}"
