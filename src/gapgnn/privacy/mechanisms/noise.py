"""The one place that makes the noise of a release (privacy page, section 4).

There are two sources, which the option ``noise`` of a release names:

``safe``
    Everything lives on one fixed grid of step 2**-20. A value on the grid plus a Gaussian rounded
    to the grid equals the rounded sum, so the release is post-processing of the textbook mechanism
    on an exactly represented input. The set of possible outputs is the grid, whatever the input:
    there are no gaps and no low bits to read the input from (Mironov 2012; Jin et al. 2022; Holohan
    and Braghin 2021).
``fast``
    Single-precision noise: on a CPU from torch's Mersenne twister, one seed of 63 bits per block of
    rows; on an accelerator from Philox with 128 secret bits, drawn by the kernel that adds it
    (:mod:`gapgnn.privacy.mechanisms.device`). It has the right distribution and none of the
    protection above: for experiments.

How the safe Gaussian is drawn. ChaCha20, keyed for one path and number of columns, gives one sign
bit and a uniform ``u`` in (0, 1/2] per value
(:func:`~gapgnn.privacy.mechanisms.draws.refined_halves`), and the value is the inverse normal CDF
at ``u``, times the standard deviation, rounded to the grid. A tail keeps the full relative
precision of float64 down to 2**-129, about 13 standard deviations. (A plain 53-bit uniform ends at
8.2.) With the bounds on ``std`` below, every grid point that can occur with a probability worth
naming is the image of thousands of doubles ``u`` or more, so no output rules out an input. Adding
several samples, as Holohan and Braghin advise for noise that is not rounded, is not needed. A zero
has no sign: it would tell on the value beneath.

Where a value comes from. A row of C columns takes ``B = ceil(C / 8)`` blocks of the stream: the
word of row ``i`` and column ``j`` is word ``j % 8`` of block ``i * B + j // 8``, and the bits that
refine a tail are at the same place of the stream's second part. So a retried, partitioned or moved
computation that holds the key draws the same values again, whatever it draws beside them.

CPU and accelerator give the same bits. Where Triton is present, safe Gaussian noise is drawn on the
accelerator (:mod:`gapgnn.privacy.mechanisms.triton_noise`), elsewhere on the CPU. Words are whole
numbers, and all that follows is plain float64 arithmetic that IEEE 754 rounds in one way, logarithm
included (:mod:`gapgnn.privacy.mechanisms.normal`). Fast noise of a CPU and of an accelerator differ
altogether.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer
from gapgnn.privacy.mechanisms.device import CipherNoise, PhiloxNoise, can_use_triton
from gapgnn.privacy.mechanisms.draws import (
    BLOCK_WORDS,
    REFINEMENTS,
    WORDS,
    Draws,
    cipher_blocks,
    cipher_key,
    cipher_words,
    refined_halves,
    torch_generator,
)
from gapgnn.privacy.mechanisms.normal import gaussian_on_grid, natural_log, round_signed
from gapgnn.rng import NoiseKey, PathPart

SafeOrFast = Literal["safe", "fast"]
GRID = 2.0**-20
ROW_BLOCK = 4096
# Blocks of the cipher whose values are computed at a time.
PIECE_BLOCKS = 32768
MIN_SCALE = 1024 * GRID
MAX_SCALE = 2.0**20
MAX_VALUE = 2.0**32


def grid_slack(num_coordinates: int) -> float:
    """Return what rounding to the grid can add to an L2 sensitivity.

    Each coordinate of either neighbour's value moves by at most half a step, so their difference
    moves by at most one step per coordinate. A query of sensitivity S over P coordinates that is
    not on the grid by itself has sensitivity ``S + grid_slack(P)`` once it is.

    >>> grid_slack(16) == 4 * GRID
    True
    """
    return GRID * math.sqrt(check_integer("num_coordinates", num_coordinates, at_least=0))


def check_scale(what: str, scale: float, noise: str = "safe") -> None:
    """Refuse noise that will not be drawn, before anything is charged for it.

    >>> check_scale("hop 1", 2.0**21)
    Traceback (most recent call last):
    ...
    gapgnn.errors.PrivacyError: the noise of hop 1 must have a scale between 0.000976562 and ...
    """
    _check_positive(what, scale)
    if noise == "safe" and not MIN_SCALE <= scale <= MAX_SCALE:
        raise PrivacyError(
            f"the noise of {what} must have a scale between {MIN_SCALE:g} and {MAX_SCALE:g} to lie "
            f"on the safe grid. Got {scale:.6g}; nothing was charged. Use "
            f"{'less' if scale < MIN_SCALE else 'more'} epsilon, or noise=fast for experiments."
        )


def on_grid(values: Tensor) -> Tensor:
    """Return values rounded to the grid, in float64, for safe noise to be added to.

    What is not finite is refused where that can be asked without waiting for a device: on a CPU. On
    an accelerator the caller has masked it.

    >>> on_grid(torch.tensor([0.1])).div(GRID).tolist()
    [104858.0]
    """
    if values.device.type == "cpu":
        _check_finite(values)
    # Powers of two: multiplying is exact, and faster than dividing.
    return (values.to(torch.float64) * (1 / GRID)).round_().mul_(GRID)


def _check_finite(values: Tensor) -> None:
    # A finite sum is one of finite values, and asked for in a fifth of the time; that of finite
    # values may overflow.
    if math.isfinite(float(values.sum())):
        return
    if not bool(torch.isfinite(values).all()):
        raise PrivacyError("`values` must be finite before noise is added. Got NaN or infinity.")


@dataclass(frozen=True)
class NoiseSource:
    """Noise derived from one secret key.

    The caller names each use by a path and uses a path once: the same path gives the same noise,
    and two releases that share noise reveal their difference. What a release costs is accounted
    elsewhere.

    >>> noise = NoiseSource(NoiseKey.insecure(0))
    >>> first = noise.gaussian((2, 3), 1.5, "hop", 1)
    >>> bool((first == noise.gaussian((2, 3), 1.5, "hop", 1)).all())
    True
    >>> bool((first / GRID == (first / GRID).round()).all())
    True
    """

    key: NoiseKey
    noise: SafeOrFast = field(default="safe", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, ("safe", "fast"))

    def gaussian(
        self, shape: Sequence[int], std: float, *path: PathPart, device: str | torch.device = "cpu"
    ) -> Tensor:
        """Return Gaussian noise: float64 on the grid if safe, float32 if fast.

        The first dimension counts rows; see :meth:`gaussian_rows`.

        >>> NoiseSource(NoiseKey.insecure(0), noise="fast").gaussian((2,), 1.0, "x").dtype
        torch.float32
        """
        return self._shaped("gaussian", shape, std, path, device)

    def laplace_unrounded(self, count: int, scale: float, *path: PathPart) -> NDArray[np.float64]:
        """Return Laplace noise in float64, for comparisons only: its low bits are not safe.

        What is released is which of the noisy values are largest, never a value: LapGraph.
        """
        half, top = self._halves(count, scale, *path, "laplace")
        tail = np.log(2 * half) * scale
        return np.where(top > 0, -tail, tail)

    def laplace_above(
        self, count: int, scale: float, probability: float, *path: PathPart
    ) -> NDArray[np.float64]:
        """Return such values given that each is in the upper tail of that probability."""
        half, top = self._halves(count, scale, *path, "tail")
        tail = probability * np.where(top > 0, 1 - half, half)
        low = np.minimum(tail, 1 - tail)
        sign = np.where(tail < 0.5, -scale, scale)
        values: NDArray[np.float64] = sign * np.log(2 * low)
        return values

    def gaussian_rows(
        self,
        first_row: int,
        num_rows: int,
        num_columns: int,
        std: float,
        *path: PathPart,
        device: str | torch.device = "cpu",
    ) -> Tensor:
        """Return the noise of some rows of a larger matrix.

        A row's noise depends on the key, the path, its number and the number of columns, so every
        partition into ranges draws the same matrix. Fast noise is drawn by blocks: its ranges start
        at multiples of :data:`ROW_BLOCK` and end at one, or at the last row.

        >>> noise = NoiseSource(NoiseKey.insecure(0))
        >>> whole = noise.gaussian((5000, 2), 1.0, "hop", 1)
        >>> bool((whole[4096:] == noise.gaussian_rows(4096, 904, 2, 1.0, "hop", 1)).all())
        True
        """
        return self._rows("gaussian", first_row, num_rows, num_columns, std, path, device)

    def philox(self, num_columns: int, std: float, *path: PathPart) -> PhiloxNoise:
        """Return fast noise for a kernel to draw, cell by cell; see :meth:`gaussian_rows`.

        It is what :meth:`gaussian_rows` draws on an accelerator for the same path.

        >>> noise = NoiseSource(NoiseKey.insecure(0), noise="fast").philox(3, 1.0, "hop", 1)
        >>> noise.rows(0, 2, 3, "cpu").shape
        torch.Size([2, 3])
        """
        if self.noise != "fast":
            raise PrivacyError("`noise` must be fast for noise that a kernel draws. Got safe.")
        secret = self.key.bytes(16, "philox", *path, "columns", num_columns)
        return PhiloxNoise(secret, self._checked_scale("std", std))

    def cipher(self, num_columns: int, std: float, *path: PathPart) -> CipherNoise:
        """Return safe noise for a kernel to draw: the bits of :meth:`gaussian_rows`.

        >>> NoiseSource(NoiseKey.insecure(0)).cipher(3, 1.0, "hop", 1).std == 1 / GRID
        True
        """
        if self.noise != "safe":
            raise PrivacyError("`noise` must be safe for noise of the cipher. Got fast.")
        secret = self._secret("gaussian", num_columns, path)
        return CipherNoise(secret, self._checked_scale("std", std) / GRID, GRID)

    def add_gaussian(self, values: Tensor, std: float, *path: PathPart) -> Tensor:
        """Return ``values`` plus Gaussian noise, on the device of ``values``.

        Safe: the result is float64 on the grid. Values that are not on the grid are first rounded
        to the nearest point of it; each coordinate moves by at most ``GRID / 2``, and a caller
        whose query has L2 sensitivity S over P coordinates calibrates for ``S + grid_slack(P)``.

        >>> import torch
        >>> out = NoiseSource(NoiseKey.insecure(0)).add_gaussian(torch.zeros(3), 1.0, "step", 1)
        >>> out.dtype, tuple(out.shape)
        (torch.float64, (3,))
        """
        return self._add("gaussian", values, std, path)

    def add_laplace(self, values: Tensor, scale: float, *path: PathPart) -> Tensor:
        """Return ``values`` plus Laplace noise, of standard deviation ``sqrt(2) * scale``.

        Rounding is as in :meth:`add_gaussian`.
        For an L1 sensitivity the slack of rounding is one step per coordinate, ``GRID * P``; whole
        counts are on the grid and have none.
        """
        return self._add("laplace", values, scale, path)

    def _add(
        self, distribution: str, values: Tensor, scale: float, path: tuple[PathPart, ...]
    ) -> Tensor:
        _check_finite(values)
        if not values.is_floating_point():
            values = values.to(torch.float64)
        noise = self._shaped(distribution, values.shape, scale, path, values.device)
        if self.noise == "fast":
            return values + noise.to(values.dtype)
        if values.numel() and float(values.abs().max()) > MAX_VALUE:
            raise PrivacyError(
                f"`values` must be at most {MAX_VALUE:.0f} in size to be exact on the noise grid. "
                f"Got {float(values.abs().max()):g}. Rescale values and noise together."
            )
        return on_grid(values).add_(noise)

    def _shaped(
        self,
        distribution: str,
        shape: Sequence[int],
        scale: float,
        path: tuple[PathPart, ...],
        device: str | torch.device,
    ) -> Tensor:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) else (1, 1)
        return self._rows(distribution, 0, rows, columns, scale, path, device).reshape(tuple(shape))

    def _rows(
        self,
        distribution: str,
        first_row: int,
        num_rows: int,
        num_columns: int,
        scale: float,
        path: tuple[PathPart, ...],
        device: str | torch.device,
    ) -> Tensor:
        scale = self._checked_scale("std" if distribution == "gaussian" else "scale", scale)
        safe = self.noise == "safe"
        if first_row % ROW_BLOCK and not safe:
            raise InputError(f"`first_row` must be a multiple of {ROW_BLOCK}. Got {first_row}.")
        if not safe and distribution == "gaussian" and torch.device(device).type != "cpu":
            return self.philox(num_columns, scale, *path).rows(
                first_row, num_rows, num_columns, device
            )
        if safe and distribution == "gaussian" and _can_draw_on(torch.device(device)):
            noise = self.cipher(num_columns, scale, *path)
            return noise.rows(first_row, num_rows, num_columns, device)
        if safe:
            secret = self._secret(distribution, num_columns, path)
            drawn = _draw_on_grid(secret, distribution, first_row, (num_rows, num_columns), scale)
            return drawn.to(device)
        out = torch.empty((num_rows, num_columns), dtype=torch.float32, device=device)
        for start in range(0, num_rows, ROW_BLOCK):
            # The number of columns is part of the path: two shapes never share a byte.
            block_path = (distribution, *path, "columns", num_columns)
            block_path = (*block_path, "block", (first_row + start) // ROW_BLOCK)
            _draw_fast(self.key, distribution, out[start : start + ROW_BLOCK], scale, block_path)
        return out

    def _secret(self, distribution: str, num_columns: int, path: tuple[PathPart, ...]) -> bytes:
        """Return the key of the cipher; two shapes never share a word."""
        return cipher_key(self.key, distribution, *path, "columns", num_columns)

    def _halves(
        self, count: int, scale: float, *path: PathPart
    ) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        _check_positive("scale", scale)
        return Draws(self.key, self.noise == "safe").halves(count, *path)

    def _checked_scale(self, name: str, scale: float) -> float:
        """Refuse a scale that would release without noise, or noise too coarse for the grid."""
        _check_positive(name, scale)
        if self.noise == "safe" and not MIN_SCALE <= scale <= MAX_SCALE:
            raise PrivacyError(
                f"`{name}` must be between {MIN_SCALE:g} and {MAX_SCALE:g} on the safe noise grid. "
                f"Got {scale!r}. Rescale values and noise together."
            )
        return float(scale)


def _can_draw_on(device: torch.device) -> bool:
    return device.type != "cpu" and can_use_triton(device)


def _check_positive(name: str, scale: float) -> None:
    if not isinstance(scale, (int, float)) or not math.isfinite(scale) or scale <= 0:
        raise PrivacyError(f"`{name}` of a release must be positive and finite. Got {scale!r}.")


def _draw_on_grid(
    secret: bytes, distribution: str, first_row: int, shape: tuple[int, int], scale: float
) -> Tensor:
    """Draw some rows in float64 and round them to the grid.

    By one thread: several would wait for each other between passes and be no faster.
    """
    num_rows, num_columns = shape
    out = np.empty(num_rows * num_columns)
    blocks = -(-num_columns // BLOCK_WORDS)
    # Pieces of whole rows, or of a part of one row.
    size, width = max(1, PIECE_BLOCKS // max(1, blocks)), PIECE_BLOCKS * BLOCK_WORDS
    for row in range(0, num_rows, size):
        for column in range(0, num_columns, width):
            rows, columns = min(size, num_rows - row), min(width, num_columns - column)
            start = row * num_columns + column
            first = (first_row + row) * blocks + column // BLOCK_WORDS
            _fill_piece(
                secret, distribution, first, columns, scale, out[start : start + rows * columns]
            )
    return torch.from_numpy(out).view(shape)


def _fill_piece(
    secret: bytes,
    distribution: str,
    first_block: int,
    columns: int,
    scale: float,
    out: NDArray[np.float64],
) -> None:
    rows, blocks = len(out) // columns, -(-columns // BLOCK_WORDS)

    def finer(places: NDArray[np.intp]) -> NDArray[np.uint64]:
        row, column = np.divmod(places, columns)
        block, word = np.divmod(column, BLOCK_WORDS)
        found = cipher_blocks(secret, REFINEMENTS, first_block + row * blocks + block)
        return found[np.arange(len(places)), word]

    drawn = cipher_words(secret, WORDS, first_block, rows * blocks)
    words = drawn.reshape(rows, -1)[:, :columns].reshape(-1)
    if distribution == "gaussian":
        gaussian_on_grid(words, finer, scale, GRID, out)
        return
    half, top = refined_halves(words, finer)
    np.multiply(natural_log(2.0 * half), scale, out=out)
    round_signed(out, top, GRID, out=out)


def _draw_fast(
    key: NoiseKey, distribution: str, out: Tensor, scale: float, path: tuple[PathPart, ...]
) -> None:
    generator = torch_generator(key, *path, device=out.device)
    if distribution == "gaussian":
        out.normal_(0.0, scale, generator=generator)
        return
    sign = torch.empty_like(out).bernoulli_(0.5, generator=generator).mul_(2.0).sub_(1.0)
    out.exponential_(1.0 / scale, generator=generator).mul_(sign)
