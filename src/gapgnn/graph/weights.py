"""Edge weights: amounts between two declared bounds, divided by the upper one.

The weight of an edge is ``clamp(amount, low, high) / high``, at most 1, so that weights do not
increase the sensitivity of a hop (privacy page, section 1). The amount is private as part of the
edge. The bounds are declared, because bounds read from a table would depend on all of its edges.

Weights are rounded towards zero to a grid of 2**-8, and the rows that are multiplied with them to
one of 2**-12. Every product then lies on the 2**-20 grid of the noise, and sums of products are
exact in any order; noise on the grid would not hide the low bits of a sum off the grid (privacy
page, section 4).

Amounts of one edge are added up before they are clamped, because the protected unit is the whole
edge. They are added as integers, so that the weight does not depend on the order of rows, in memory
or on disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError

# Steps of the grid in a weight of 1.
STEPS = 1 << 8
WEIGHT_GRID = 1 / STEPS
# Amounts are added up in units of high * 2**-36, each cut to 256 times high: 44 bits of 63.
UNIT = 1 << 36
MOST = 1 << 44
# Rounding to units can lower a sum slightly; this is added before rounding to the grid.
SLACK = 1 << 16


@dataclass(frozen=True)
class WeightBounds:
    """The declared bounds of an amount.

    >>> bounds = WeightBounds(0, 200)
    >>> (bounds.steps(bounds.units([50, 1e9, -3, np.nan])) / STEPS).tolist()
    [0.25, 1.0, 0.0, 0.0]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for key in ("low", "high"):
            value = getattr(self, key)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value):
                raise DataError(f"`weight_bounds` must be two finite numbers. Got {value!r}.")
            object.__setattr__(self, key, float(value))
        if not 0 <= self.low < self.high or math.isinf(UNIT / self.high):
            raise DataError(
                "`weight_bounds` must be LOW and HIGH with 0 <= LOW < HIGH. "
                f"Got {self.low:g} and {self.high:g}."
            )

    def units(self, amounts: ArrayLike) -> NDArray[np.int64]:
        """Return amounts as integers to add up; one that is missing or NaN counts as low."""
        values = np.asarray(amounts)
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise DataError(
                f"`weights` must be a list of numbers. Got {values.ndim} dimensions of "
                f"{values.dtype}."
            )
        shares = np.array(values, dtype=np.float64)
        shares[np.isnan(shares)] = self.low
        # Huge amounts and tiny bounds overflow to shares that are clamped below.
        with np.errstate(over="ignore"):
            shares *= UNIT / self.high
        return np.rint(np.clip(shares, -MOST, MOST)).astype(np.int64)

    def steps(self, units: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the weights of edges, in steps of the grid, from their amounts in units."""
        low = round(self.low / self.high * UNIT)
        clamped = np.clip(units, low, UNIT)
        return np.minimum((clamped + SLACK) // (UNIT // STEPS), STEPS).astype(np.uint16)


def as_weights(weights: Any) -> NDArray[np.float32]:
    """Return weights between 0 and 1, rounded towards zero to their grid.

    >>> as_weights([1.0, 0.3]).tolist()
    [1.0, 0.296875]
    """
    values = np.asarray(weights)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(
            f"`weights` must be a list of numbers. Got {values.ndim} dimensions of {values.dtype}."
        )
    if not np.isfinite(values).all():
        raise DataError("`weights` must be finite. Got NaN or infinity.")
    if values.size and not 0 <= values.min() <= values.max() <= 1:
        bad = values.min() if values.min() < 0 else values.max()
        raise DataError(f"`weights` must be between 0 and 1. Got {bad:g}.")
    on_grid = np.floor(values.astype(np.float64) * STEPS) / STEPS
    return on_grid.astype(np.float32)


def steps_of(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return weights that lie on the grid as whole numbers.

    >>> steps_of(as_weights([1.0, 0.5])).tolist()
    [256, 128]
    """
    return (weights * STEPS).astype(np.uint16)
