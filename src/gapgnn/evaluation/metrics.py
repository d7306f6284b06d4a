"""Figures over repeats: intervals, and whether one method is really better than another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError
from gapgnn.rng import experiment_rng

BOOTSTRAP_SAMPLES = 1_000
# Resamples of fewer values hardly differ from each other: their interval would be far too short.
INTERVAL_REPEATS = 5
# Up to this many repeats all sign flips are enumerated; above, so many are drawn.
_EXACT_REPEATS = 14
_DRAWN_FLIPS = 20_000


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, from 1,000 resamples as in the paper.

    >>> bootstrap_interval([0.5])
    (0.5, 0.5)
    >>> low, high = bootstrap_interval([0.70, 0.72, 0.74])
    >>> 0.69 < low < 0.72 < high < 0.75
    True
    """
    if not len(values):
        raise InputError("`values` must have at least one entry. Got none.")
    sample = np.asarray(values, dtype=np.float64)
    means = sample[_resamples(len(sample), seed)].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def shown_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of the mean; None for fewer than five values.

    The bootstrap of two or three values is too short by a factor of two and more, so pages, tables
    and commands show none there.

    >>> shown_interval([0.70, 0.72, 0.74]) is None
    True
    >>> low, high = shown_interval([0.70, 0.71, 0.72, 0.73, 0.74])
    >>> 0.70 < low < high < 0.74
    True
    """
    return None if len(values) < INTERVAL_REPEATS else bootstrap_interval(values)


@lru_cache(maxsize=8)
def _resamples(count: int, seed: int) -> NDArray[np.int64]:
    """Return which values each resample takes: the same ones in all cells of a table."""
    rng = experiment_rng(seed, "bootstrap")
    return rng.integers(0, count, size=(BOOTSTRAP_SAMPLES, count))


def paired_test(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired permutation test on the mean difference.

    Repeats of one seed share their splits across methods, so repeat r of one method is compared
    with repeat r of the other. If the methods were equal, each difference would be as likely to
    have the other sign; the p-value is the share of all sign flips (drawn at random for more than
    14 repeats) whose mean is at least as far from 0. With 5 repeats the smallest value is 1/16, so
    at least 6 are needed to fall below 5 %. The splits are drawn from one data set and overlap: a
    small value says that the order of two methods on *this* data set is not an accident of split,
    initial weights and noise. It says nothing about other data sets. Where the two methods were
    picked for having the highest means, it is a marker for readers, not a corrected test over all
    pairs.

    >>> paired_test([0.8, 0.9, 0.7, 0.8, 0.8, 0.9], [0.7, 0.8, 0.6, 0.7, 0.7, 0.8])
    0.03125
    >>> paired_test([0.8, 0.9], [0.8, 0.9])
    1.0
    """
    if len(first) != len(second) or not len(first):
        raise InputError(
            f"Both methods must have the same number of repeats. Got {len(first)} and "
            f"{len(second)}."
        )
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = len(differences)
    if count <= _EXACT_REPEATS:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        flips = experiment_rng(seed, "sign flips").integers(0, 2, size=(_DRAWN_FLIPS, count))
        # The observed signs are one of the flips: the share is then never 0.
        signs = np.concatenate([np.ones((1, count), dtype=np.int64), 1 - 2 * flips])
    means = np.abs((signs * differences).mean(axis=1))
    # Sums in another order may differ in the last bits, and equal flips must count as equal.
    reached = means >= abs(differences.mean()) * (1 - 1e-9)
    return float(reached.mean())
