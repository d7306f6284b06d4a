"""The one place where a secret key becomes random numbers (privacy page, section 4).

Noise (:mod:`gapgnn.privacy.mechanisms.noise`), the coins of randomised edges and of Poisson batches
(:mod:`gapgnn.privacy.mechanisms.coins`) are made of three things that are drawn here and nowhere
else: 64-bit words, uniforms that stay precise at both ends, and waiting times.

``safe`` words are SHAKE-256 of the key and a path. ``fast`` ones come from NumPy's Philox, seeded
with all 256 bits of a derived key, or from torch's own generator of a device, seeded with 63.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.rng import NoiseKey, PathPart

TOP_BIT = np.uint64(2**63)


@dataclass(frozen=True)
class Draws:
    """Random numbers of one key; every draw names a path and uses it once.

    >>> half, top = Draws(NoiseKey.insecure(0)).halves(1000, "example")
    >>> bool((half > 0).all() and (half < 0.5).all()), 400 < int((top > 0).sum()) < 600
    (True, True)
    """

    key: NoiseKey
    is_safe: bool = True

    def words(self, count: int, *path: PathPart) -> NDArray[np.uint64]:
        """Return 64-bit words."""
        if self.is_safe:
            return np.frombuffer(self.key.bytes(8 * count, *path), dtype="<u8")
        return self._generator(*path).integers(0, 2**64, size=count, dtype=np.uint64)

    def halves(
        self, count: int, *path: PathPart, more: str = "more"
    ) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """Return uniforms in (0, 1/2) and a fair top bit, together a uniform precise at both ends.

        63 bits ``k`` give ``(k + 1/2) / 2**64``; where that is below 2**-11 another 64 bits, of the
        path that ends in ``more``, refine it, so float64 keeps its full relative precision down to
        2**-129. The top bit is 0 or 2**63, ready to flip a float's sign.
        """
        words = self.words(count, *path, "words")
        magnitude = words & ~TOP_BIT
        half = (magnitude.astype(np.float64) + 0.5) * 2.0**-64
        tail = np.flatnonzero(magnitude < np.uint64(2**53))
        if tail.size:
            finer = (self.words(tail.size, *path, more).astype(np.float64) + 0.5) * 2.0**-128
            half[tail] = magnitude[tail].astype(np.float64) * 2.0**-64 + finer
        return half, words & TOP_BIT

    def waits(self, count: int, *path: PathPart) -> NDArray[np.float64]:
        """Return exponential waiting times of mean 1."""
        if not self.is_safe:
            return self._generator(*path).standard_exponential(count)
        half, top = self.halves(count, *path)
        return -np.where(top > 0, np.log1p(-half), np.log(half))

    def _generator(self, *path: PathPart) -> np.random.Generator:
        seed = int.from_bytes(self.key.bytes(32, "philox", *path), "little")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def torch_generator(
    key: NoiseKey, *path: PathPart, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return a device's own generator for ``fast`` draws: 63 secret bits, not cryptographic."""
    return torch.Generator(device=device).manual_seed(key.seed(*path))


def torch_waits(generator: torch.Generator, count: int) -> Tensor:
    """Return exponential waiting times of mean 1 in float64, drawn where the generator is."""
    uniform = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)
    # One minus a uniform is never zero.
    return uniform.neg_().add_(1).log_().neg_()


def enough_waits(count: int, probability: float) -> int:
    """Return how many waiting times nearly always cover the heads among ``count`` coins."""
    expected = count * probability
    return int(expected + 6 * math.sqrt(expected) + 16)


def heads_after(waits: Iterator[Tensor], count: int, probability: float) -> Tensor:
    """Return which of ``count`` coins of a probability in (0, 1) are heads, in increasing order.

    The gaps between heads are geometric, ``P(gap > g) = (1 - probability)**g``, so a gap is a
    waiting time of mean 1 over ``-log(1 - probability)``, rounded up: work and memory are
    proportional to the heads and not to the coins, and the distribution is the same.

    >>> from itertools import repeat
    >>> heads_after(repeat(torch.full((2,), 1.0)), 10, 0.3).tolist()
    [2, 5, 8]
    """
    rate = -math.log1p(-probability)
    parts: list[Tensor] = []
    last = -1
    while last < count:
        # A wait beyond all coins is cut there, so that sums cannot overflow.
        gaps = next(waits).div(rate).clamp_(max=float(count)).long().add_(1)
        parts.append(gaps.cumsum_(0).add_(last))
        last = int(parts[-1][-1])
    parts[-1] = parts[-1][: int(torch.searchsorted(parts[-1], count))]
    return torch.cat(parts)
