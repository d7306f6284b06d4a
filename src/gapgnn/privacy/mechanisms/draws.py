"""The one place where a secret key becomes random numbers (privacy page, section 4).

Noise (:mod:`gapgnn.privacy.mechanisms.noise`) and the coins of randomised edges and of Poisson
batches (:class:`Coins`) are made of three things that are drawn here and nowhere else: 64-bit
words, uniforms that stay precise at both ends, and waiting times.

``safe`` words are the key stream of ChaCha20, a cryptographic stream cipher: the cipher of RFC 8439
with the block counter of 64 bits that its author gave it. SHAKE-256 of the secret key and a path is
the cipher's key of 256 bits, so no two paths share any; the nonce numbers the parts of a path. A
block of the stream is eight words, and every word has a place of its own: what is drawn beside it,
in which order or on which device changes nothing. ``fast`` words come from NumPy's Philox, seeded
with all 256 bits of a derived key, or from torch's own generator of a device, seeded with 63.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from itertools import count as numbers

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import check_choice, check_number
from gapgnn.rng import NoiseKey, PathPart

BLOCK = 1 << 20
_WORD = 1 << 64
TOP_BIT = np.uint64(2**63)
# Words in a block of ChaCha20, and the parts of a path.
BLOCK_WORDS = 8
WORDS, REFINEMENTS = 0, 1
# What is enciphered to see the stream itself; few enough to stay in cache.
_ZEROS = memoryview(bytes(1 << 18))


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
            blocks = -(-count // BLOCK_WORDS)
            return cipher_words(cipher_key(self.key, *path), WORDS, 0, blocks)[:count]
        return self._generator(*path).integers(0, 2**64, size=count, dtype=np.uint64)

    def halves(self, count: int, *path: PathPart) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """Return uniforms in (0, 1/2] and a fair top bit; see :func:`refined_halves`."""
        if self.is_safe:
            blocks = -(-count // BLOCK_WORDS)
            secret = cipher_key(self.key, *path, "words")
            words = cipher_words(secret, WORDS, 0, blocks)[:count]
            return refined_halves(
                words, lambda places: cipher_words(secret, REFINEMENTS, 0, blocks)[places]
            )
        words = self.words(count, *path, "words")
        return refined_halves(words, lambda places: self.words(len(places), *path, "more"))

    def waits(self, count: int, *path: PathPart) -> NDArray[np.float64]:
        """Return exponential waiting times of mean 1."""
        if not self.is_safe:
            return self._generator(*path).standard_exponential(count)
        half, top = self.halves(count, *path)
        return -np.where(top > 0, np.log1p(-half), np.log(half))

    def _generator(self, *path: PathPart) -> np.random.Generator:
        seed = int.from_bytes(self.key.bytes(32, "philox", *path), "little")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def cipher_key(key: NoiseKey, *path: PathPart) -> bytes:
    """Return the 32 bytes that key the cipher for one path: whoever has them has its noise."""
    return key.bytes(32, "chacha20", *path)


def cipher_words(secret: bytes, part: int, first_block: int, num_blocks: int) -> NDArray[np.uint64]:
    """Return consecutive blocks of eight words from the stream of one part of a path.

    >>> [hex(word) for word in cipher_words(bytes(32), 0, 0, 1)[:2]]
    ['0x903df1a0ade0b876', '0x28bd8653e56a5d40']
    """
    # The library counts to 2**32 and refuses to carry; the carry is the next number of the nonce.
    room = 2**32 - first_block % 2**32
    if num_blocks > room:
        parts = ((first_block, room), (first_block + room, num_blocks - room))
        return np.concatenate([cipher_words(secret, part, *place) for place in parts])
    words = np.empty(BLOCK_WORDS * num_blocks, dtype="<u8")
    stream, out = _cipher(secret, part, first_block), words.view(np.uint8).data
    for start in range(0, len(out), len(_ZEROS)):
        own = out[start : start + len(_ZEROS)]
        stream.update_into(_ZEROS[: len(own)], own)
    return words


def cipher_blocks(secret: bytes, part: int, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return some blocks of eight words, one row each, wherever they are in the stream.

    >>> [hex(word) for word in cipher_blocks(bytes(32), 0, np.array([7, 0]))[1, :2]]
    ['0x903df1a0ade0b876', '0x28bd8653e56a5d40']
    """
    starts = np.stack([blocks, np.full_like(blocks, part)], axis=1).astype("<i8").tobytes()
    cipher, nothing = _cipher(secret, part, 0), bytes(8 * BLOCK_WORDS)
    found = []
    for place in range(0, len(starts), 16):
        cipher.reset_nonce(starts[place : place + 16])
        found.append(cipher.update(nothing))
    return np.frombuffer(b"".join(found), dtype="<u8").reshape(-1, BLOCK_WORDS)


def _cipher(secret: bytes, part: int, first_block: int) -> CipherContext:
    start = first_block.to_bytes(8, "little") + part.to_bytes(8, "little")
    return Cipher(ChaCha20(secret, start), mode=None).encryptor()


def refined_halves(
    words: NDArray[np.uint64], finer: Callable[[NDArray[np.intp]], NDArray[np.uint64]]
) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """Return uniforms in (0, 1/2] and a fair top bit, together a uniform precise at both ends.

    63 bits ``k`` give ``(k + 1/2) / 2**64``; where that is below 2**-11 another 64 bits, which
    ``finer`` returns for some places, refine it, so float64 keeps its full relative precision down
    to 2**-129. The top bit is 0 or 2**63, ready to flip a float's sign.
    """
    magnitude = words & ~TOP_BIT
    # Below 2**63 the signed conversion is the same and faster.
    half = magnitude.view(np.int64).astype(np.float64)
    half += 0.5
    half *= 2.0**-64
    tail = np.flatnonzero(magnitude < np.uint64(2**53))
    if tail.size:
        more = (finer(tail).astype(np.float64) + 0.5) * 2.0**-128
        half[tail] = magnitude[tail].astype(np.float64) * 2.0**-64 + more
    return half, words & TOP_BIT


def torch_generator(
    key: NoiseKey, *path: PathPart, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return a device's own generator for ``fast`` draws: 63 secret bits, not cryptographic."""
    return torch.Generator(device=device).manual_seed(key.seed(*path))


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


class Coins:
    """Bernoulli draws for very many numbered cells, of which few come up heads, from one key.

    Every draw names a path and uses it once. Work and memory are proportional to the heads, not to
    the cells (privacy page, sections 4 and 5).

    >>> coins = Coins(NoiseKey.insecure(0))
    >>> bool((coins.heads(10**12, 1e-9, "a") == coins.heads(10**12, 1e-9, "a")).all())
    True
    """

    def __init__(self, key: NoiseKey, *, noise: str = "safe") -> None:
        is_safe = check_choice("noise", noise, ("safe", "fast")) == "safe"
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
        waits = (
            torch.from_numpy(self._draws.waits(size, *path, "heads", block)) for block in numbers()
        )
        places: NDArray[np.int64] = heads_after(waits, count, probability).numpy()
        return places


def device_heads(
    key: NoiseKey,
    count: int,
    probability: float,
    *path: PathPart,
    device: str | torch.device,
    noise: str = "safe",
) -> Tensor:
    """Toss coins of a probability in (0, 1) where they are needed, on an accelerator.

    ``safe`` coins are those of :meth:`Coins.heads`, from the same words; a device's logarithm may
    differ in its last bit, which once in some 2**40 coins moves a head to the next cell. They need
    Triton. ``fast`` ones come from the device's own generator.

    >>> device_heads(NoiseKey.insecure(0), 10**6, 1e-4, "example", device="cpu", noise="fast").dtype
    torch.int64
    """
    there = torch.device(device)
    waits = _safe_waits if noise == "safe" else _fast_waits
    return heads_after(waits(key, count, probability, path, there), count, probability)


def _safe_waits(
    key: NoiseKey, count: int, probability: float, path: tuple[PathPart, ...], device: torch.device
) -> Iterator[Tensor]:
    """Yield the waiting times of :meth:`Coins.heads`, on a device."""
    # Kernels are launched from a module that reads the layout of the stream from this one.
    from gapgnn.privacy.mechanisms.device import cipher_halves

    size = min(BLOCK, enough_waits(count, probability))
    for block in numbers():
        half = cipher_halves(cipher_key(key, *path, "heads", block, "words"), size, device)
        yield torch.where(half < 0, torch.log1p(half), torch.log(half)).neg_()


def _fast_waits(
    key: NoiseKey, count: int, probability: float, path: tuple[PathPart, ...], device: torch.device
) -> Iterator[Tensor]:
    generator = torch_generator(key, *path, device=device)
    for size in chain([enough_waits(count, probability)], repeat(1024)):
        uniform = torch.rand(size, generator=generator, dtype=torch.float64, device=device)
        # One minus a uniform is never zero.
        yield uniform.neg_().add_(1).log_().neg_()
