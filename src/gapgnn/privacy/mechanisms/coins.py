"""Secret coins for very many cells, of which few come up heads (privacy page, sections 4 and 5).

``safe`` coins come from SHAKE-256 of the secret key, ``fast`` ones from NumPy's Philox seeded with
all 256 bits of a derived key. Work and memory are proportional to the heads, not to the cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_choice, check_number
from gapgnn.rng import NoiseKey, PathPart

BLOCK = 1 << 20
_WORD = 1 << 64


class Coins:
    """Bernoulli and continuous draws for numbered cells, all derived from one key.

    Every draw names a path and uses it once.

    >>> coins = Coins(NoiseKey.insecure(0))
    >>> bool((coins.heads(10**12, 1e-9, "a") == coins.heads(10**12, 1e-9, "a")).all())
    True
    """

    def __init__(self, key: NoiseKey, *, construction: str = "safe") -> None:
        self._key = key
        self._is_safe = check_choice("construction", construction, ("safe", "fast")) == "safe"

    def each(self, count: int, probability: float, *path: PathPart) -> NDArray[np.bool_]:
        """Toss one coin for each of ``count`` cells.

        Safe: a 64-bit word below ``probability * 2**64``, rounded to a whole number, is a head, so
        the probability is exact to 2**-64.
        """
        check_number("probability", probability, at_least=0, at_most=1)
        result = np.empty(count, dtype=np.bool_)
        threshold = round(probability * _WORD)
        if threshold in (0, _WORD):
            result[:] = threshold > 0
            return result
        for block, start in enumerate(range(0, count, BLOCK)):
            size = min(BLOCK, count - start)
            words = self._words(size, *path, "each", block)
            result[start : start + size] = words < np.uint64(threshold)
        return result

    def heads(self, count: int, probability: float, *path: PathPart) -> NDArray[np.int64]:
        """Toss a coin for each of ``count`` cells and return the heads, in increasing order.

        The gaps between heads are geometric and are drawn instead of the coins, which gives the
        same distribution: how many heads, and where. A gap is the inverse of the geometric
        distribution at a uniform with the full relative precision of float64 at both ends, so the
        probability of a head in any one cell is right to a relative ``2**-51 / probability``, in
        total variation ``2**-51`` per cell: as if each cell had a coin of 51 bits.
        """
        check_number("probability", probability, at_least=0, at_most=1)
        if probability == 0 or count == 0:
            return np.zeros(0, dtype=np.int64)
        if probability == 1:
            return np.arange(count, dtype=np.int64)
        rate = -math.log1p(-probability)
        parts: list[NDArray[np.int64]] = []
        last = -1
        for waits in self._waits(count * probability, *path, "heads"):
            # A wait beyond all cells is cut there, so that sums cannot overflow.
            gaps = np.minimum(waits / rate, float(count)).astype(np.int64) + 1
            places = last + np.cumsum(gaps)
            if places[-1] >= count:
                parts.append(places[: np.searchsorted(places, count)])
                break
            parts.append(places)
            last = int(places[-1])
        return np.concatenate(parts)

    def laplace(self, count: int, scale: float, *path: PathPart) -> NDArray[np.float64]:
        """Return Laplace noise in float64, for comparisons only: its low bits are not safe."""
        half, is_upper = self._halves(count, *path, "laplace")
        tail = np.log(2 * half) * scale
        return np.where(is_upper, -tail, tail)

    def laplace_above(
        self, count: int, scale: float, probability: float, *path: PathPart
    ) -> NDArray[np.float64]:
        """Return Laplace values, given that each is in the upper tail of that probability."""
        half, is_upper = self._halves(count, *path, "tail")
        tail = probability * np.where(is_upper, 1 - half, half)
        low = np.minimum(tail, 1 - tail)
        sign = np.where(tail < 0.5, -scale, scale)
        values: NDArray[np.float64] = sign * np.log(2 * low)
        return values

    def _waits(self, expected: float, *path: PathPart) -> Iterator[NDArray[np.float64]]:
        """Yield exponential waiting times of mean 1, block by block, without end."""
        size = min(BLOCK, int(expected + 6 * math.sqrt(expected) + 16))
        block = 0
        while True:
            if self._is_safe:
                half, is_upper = self._halves(size, *path, block)
                yield -np.where(is_upper, np.log1p(-half), np.log(half))
            else:
                yield self._generator(*path, block).standard_exponential(size)
            block += 1

    def _halves(self, count: int, *path: PathPart) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return uniforms in (0, 1/2) and a fair bit, together a uniform precise at both ends.

        63 bits, and 64 more where the uniform is below 2**-11.
        """
        words = self._words(count, *path, "words")
        magnitude = words & np.uint64(2**63 - 1)
        half = (magnitude.astype(np.float64) + 0.5) * 2.0**-64
        tail = np.flatnonzero(magnitude < np.uint64(2**53))
        if tail.size:
            more = self._words(tail.size, *path, "more").astype(np.float64)
            half[tail] = magnitude[tail].astype(np.float64) * 2.0**-64 + (more + 0.5) * 2.0**-128
        return half, words >= np.uint64(2**63)

    def _words(self, count: int, *path: PathPart) -> NDArray[np.uint64]:
        """Return 64-bit words of one named purpose."""
        if self._is_safe:
            return np.frombuffer(self._key.bytes(8 * count, *path), dtype="<u8")
        return self._generator(*path).integers(0, 2**64, size=count, dtype=np.uint64)

    def _generator(self, *path: PathPart) -> np.random.Generator:
        seed = int.from_bytes(self._key.bytes(32, "philox", *path), "little")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
