"""Figures over repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gapgnn.errors import InputError
from gapgnn.rng import experiment_rng

BOOTSTRAP_SAMPLES = 1_000


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
    draws = experiment_rng(seed, "bootstrap").integers(
        0, len(sample), size=(BOOTSTRAP_SAMPLES, len(sample))
    )
    low, high = np.percentile(sample[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
