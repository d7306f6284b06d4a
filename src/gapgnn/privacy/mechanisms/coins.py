"""Secret coins for very many cells, of which few come up heads (privacy page, sections 4 and 5).

Randomised edges and Poisson batches are tossed here. ``safe`` coins come from SHAKE-256 of the
secret key, ``fast`` ones from NumPy's Philox seeded with all 256 bits of a derived key. Work and
memory are proportional to the heads, not to the cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from itertools import count as numbers

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import check_choice, check_number
from gapgnn.privacy.mechanisms.draws import (
    Draws,
    enough_waits,
    heads_after,
    torch_generator,
    torch_waits,
)
from gapgnn.rng import NoiseKey, PathPart

BLOCK = 1 << 20
_WORD = 1 << 64


class Coins:
    """Bernoulli draws for numbered cells, all derived from one key.

    Every draw names a path and uses it once.

    >>> coins = Coins(NoiseKey.insecure(0))
    >>> bool((coins.heads(10**12, 1e-9, "a") == coins.heads(10**12, 1e-9, "a")).all())
    True
    """

    def __init__(self, key: NoiseKey, *, construction: str = "safe") -> None:
        is_safe = check_choice("construction", construction, ("safe", "fast")) == "safe"
        self._draws = Draws(key, is_safe)

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
            words = self._draws.words(size, *path, "each", block)
            result[start : start + size] = words < np.uint64(threshold)
        return result

    def heads(self, count: int, probability: float, *path: PathPart) -> NDArray[np.int64]:
        """Toss a coin for each of ``count`` cells and return the heads, in increasing order.

        The geometric gaps between heads are drawn instead of the coins, which gives the same
        distribution: how many heads, and where. A gap is the inverse of the geometric distribution
        at a uniform with the full relative precision of float64 at both ends, so the probability of
        a head in any one cell is right to a relative ``2**-51 / probability``, in total variation
        ``2**-51`` per cell: as if each cell had a coin of 51 bits.
        """
        check_number("probability", probability, at_least=0, at_most=1)
        if probability == 0 or count == 0:
            return np.zeros(0, dtype=np.int64)
        if probability == 1:
            return np.arange(count, dtype=np.int64)
        size = min(BLOCK, enough_waits(count, probability))
        places: NDArray[np.int64] = heads_after(
            self._blocks(size, *path, "heads"), count, probability
        ).numpy()
        return places

    def _blocks(self, size: int, *path: PathPart) -> Iterator[Tensor]:
        """Yield waiting times block by block, without end."""
        for block in numbers():
            yield torch.from_numpy(self._draws.waits(size, *path, block))


def device_heads(
    key: NoiseKey, count: int, probability: float, *path: PathPart, device: str | torch.device
) -> Tensor:
    """Toss ``fast`` coins where they are needed, from the device's own generator.

    >>> device_heads(NoiseKey.insecure(0), 10**6, 1e-4, "example", device="cpu").dtype
    torch.int64
    """
    generator = torch_generator(key, *path, device=device)
    sizes = chain([enough_waits(count, probability)], repeat(1024))
    waits = (torch_waits(generator, size) for size in sizes)
    return heads_after(waits, count, probability)
