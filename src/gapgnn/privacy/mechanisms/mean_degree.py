"""The noisy mean out-degree, by which NodeLabelGAP chooses its budget shares.

One record contributes the logarithm of its out-degree, at most :data:`MOST`, so that a hub
contributes little more than others (privacy page, sections 1 and 2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.privacy import Release, observe
from gapgnn.privacy.mechanisms.noise import GRID, MAX_SCALE, MAX_VALUE, NoiseSource, SafeOrFast
from gapgnn.rng import NoiseKey

# The largest contribution, that of out-degrees from 1023 on.
MOST = 10.0
# Names the noise, so that a seeded run draws what it always drew.
NOISE_PATH = "length of lists"


def noisy_mean_degree(
    lengths: NDArray[Any],
    *,
    num_people: int,
    epsilon: float,
    key: NoiseKey,
    noise: SafeOrFast = "safe",
) -> float:
    """Release the geometric mean of out-degrees with Laplace noise.

    Relation ``add-remove`` or ``replace``, L1 sensitivity :data:`MOST` of the sum of logarithms,
    cost ``epsilon`` at delta 0 (privacy page, section 2).

    Args:
        lengths: out-degrees of these people.
        num_people: their public number.
        epsilon: of this release alone.
        key: the secret of its noise, used for nothing else.
        noise: ``safe`` or ``fast``.

    >>> degree = noisy_mean_degree(np.full(9000, 31), num_people=9000, epsilon=10.0,
    ...                            key=NoiseKey.fresh())
    >>> 30 < degree < 32
    True
    """
    doublings = np.minimum(np.log2(1.0 + lengths.astype(np.float64)), MOST)
    unit = _unit(epsilon)
    # On the grid of the noise, where the sum is exact in any order.
    total = float(np.trunc(doublings / (unit * GRID)).sum() * GRID)
    source = NoiseSource(key, noise=noise)
    # Clamping does not increase the distance of two sums.
    value = torch.tensor([min(total, MAX_VALUE)], dtype=torch.float64)
    sensitivity = MOST / unit
    scale = sensitivity / epsilon
    released = source.add_laplace(value.clone(), scale, NOISE_PATH)

    def describe() -> Release:
        return Release("mean out-degree", value.numpy(), scale, sensitivity, measure="l1")

    mean = float(observe(describe, released)) * unit / num_people
    return float(2.0 ** min(max(mean, 0.0), MOST) - 1)


def _unit(epsilon: float) -> float:
    """Return the unit of the sum, a power of two, for which the noise fits on the grid.

    It is 1 unless the budget is tiny, which it is for very many people.
    """
    return 2.0 ** math.ceil(math.log2(max(MOST / epsilon / MAX_SCALE, 1.0)))
