"""A noisy number of people: the score of a candidate of a private selection at node level."""

from __future__ import annotations

import torch

from gapgnn.privacy import Release, observe
from gapgnn.privacy.mechanisms.noise import MAX_VALUE, NoiseSource, SafeOrFast
from gapgnn.rng import NoiseKey


def noisy_count(
    count: int, *, name: str, epsilon: float, key: NoiseKey, noise: SafeOrFast = "safe"
) -> float:
    """Release a number of people with Laplace noise.

    Whether a person counts must depend on that person's record and on earlier releases alone. Then
    the L1 sensitivity is 1 under ``add-remove`` and ``replace``, and the cost ``epsilon`` at
    delta 0.

    Args:
        count: of the people.
        name: of the release.
        epsilon: of this release alone.
        key: the secret of its noise, used for nothing else.
        noise: ``safe`` or ``fast``.

    >>> 90 < noisy_count(100, name="right answers", epsilon=10.0, key=NoiseKey.fresh()) < 110
    True
    """
    # Clamping does not increase the distance of two counts.
    value = torch.tensor([min(float(count), MAX_VALUE)], dtype=torch.float64)
    scale = 1.0 / epsilon
    released = NoiseSource(key, noise=noise).add_laplace(value.clone(), scale, name)

    def describe() -> Release:
        return Release(name, value.numpy(), scale, 1.0, measure="l1")

    return float(observe(describe, released))
