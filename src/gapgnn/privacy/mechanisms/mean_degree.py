"""How long people's lists are, as one noisy number: what it takes to share out a budget well.

One record adds its own list's length on a scale of doublings, at most :data:`MOST`, so that a hub
counts little more than anybody else (privacy page, sections 1 and 2).
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

# Lists of 1023 entries and more count the same.
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
    """Release how long a list is among some people: the geometric mean, with Laplace noise.

    Relation ``add-remove`` or ``replace``, L1 sensitivity :data:`MOST` of the sum of logarithms,
    cost ``epsilon`` at delta 0 (privacy page, section 2).

    Args:
        lengths: of these people's own lists.
        num_people: how many they are, as far as that is public.
        epsilon: of this number alone.
        key: the secret it is drawn from, used for nothing else.
        noise: ``safe`` or ``fast``.

    >>> length = noisy_mean_degree(np.full(9000, 31), num_people=9000, epsilon=10.0,
    ...                            key=NoiseKey.fresh())
    >>> 30 < length < 32
    True
    """
    doublings = np.minimum(np.log2(1.0 + lengths.astype(np.float64)), MOST)
    unit = _unit(epsilon)
    # On the grid of the noise, where the sum is exact whoever comes first.
    total = float(np.trunc(doublings / (unit * GRID)).sum() * GRID)
    source = NoiseSource(key, noise=noise)
    # Cutting a sum moves no two of them further apart.
    value = torch.tensor([min(total, MAX_VALUE)], dtype=torch.float64)
    sensitivity = MOST / unit
    scale = sensitivity / epsilon
    released = source.add_laplace(value.clone(), scale, NOISE_PATH)

    def describe() -> Release:
        return Release("mean out-degree", value.numpy(), scale, sensitivity, measure="l1")

    mean = float(observe(describe, released)) * unit / num_people
    return float(2.0 ** min(max(mean, 0.0), MOST) - 1)


def _unit(epsilon: float) -> float:
    """Return the power of two in which the sum is counted, so that the grid can carry its noise.

    1 unless the budget is tiny, as it is where very many people are counted.
    """
    return 2.0 ** math.ceil(math.log2(max(MOST / epsilon / MAX_SCALE, 1.0)))
