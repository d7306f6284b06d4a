"""The inverse normal CDF in plain float64 arithmetic, and noise from it: the same bits everywhere.

Wichura's algorithm AS 241 (1988), of relative error about 1e-16 down to probabilities of 1e-300.
It consists of additions, multiplications, divisions and square roots, which IEEE 754 rounds in one
way, and of a logarithm, for which it does not: libraries differ in the last bit. So the logarithm
is made of the same plain operations here (the classical one of fdlibm, error below one unit of the
last place). Evaluated in the order written below, without fused multiply-adds, every processor and
every accelerator returns the same bits; the kernel of
:mod:`gapgnn.privacy.mechanisms.triton_noise` follows it operation by operation.

:func:`lower_normal` is the algorithm as it is printed; :func:`gaussian_on_grid` makes noise of it,
bit for bit, in fewer passes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gapgnn.privacy.mechanisms.draws import TOP_BIT, refined_halves

Values = NDArray[np.float64]
Words = NDArray[np.uint64]
CENTRE = 0.425
# Values computed at a time: what a pass reads and writes stays in cache.
CHUNK = 1 << 15
# Coefficients by falling power.
CENTRAL = np.array((
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
        4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
        1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
        2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
        4.2313330701600911252e1, 1.0,
    ),
))  # fmt: skip
NEAR = np.array((
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
        1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
        4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
        1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
        2.05319162663775882187e0, 1.0,
    ),
))  # fmt: skip
FAR = np.array((
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
        2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
        5.46378491116411436990e0, 6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
        7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
        5.99832206555887937690e-1, 1.0,
    ),
))  # fmt: skip
# Of fdlibm's logarithm: ln 2 in two parts, and the series in s**2 of log((1 + s) / (1 - s)) / s.
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
ODD = np.array((1.479819860511658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01,
                6.666666666666735130e-01))  # fmt: skip
EVEN = np.array((1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01))
# The bits of about sqrt(1/2), from which a power of two is counted.
ROOT_HALF = 0x3FE6A09E00000000


# The same for squares in units of 2**-128: every power is scaled too, and no rounding changes.
UNIT = 2.0**64
SCALED = CENTRAL * UNIT ** -(2.0 * np.arange(7, -1, -1))


def lower_normal(half: Values) -> Values:
    """Return the inverse normal CDF of probabilities in (0, 1/2], which is never positive.

    >>> lower_normal(np.array([0.5, 0.158655253931457, 2.0**-129])).round(3).tolist()
    [0.0, -1.0, -13.109]
    """
    offset = half - 0.5
    square = 0.180625 - offset * offset
    value: Values = _horner(square, CENTRAL[0]) * offset / _horner(square, CENTRAL[1])
    tail = np.flatnonzero(offset < -CENTRE)
    value[tail] = _tail(half[tail])
    return value


def gaussian_on_grid(
    words: Words, finer: Callable[[NDArray[np.intp]], Words], std: float, grid: float, out: Values
) -> None:
    """Write Gaussian noise on a grid, one value for each word.

    The value is :func:`lower_normal` at what :func:`refined_halves` makes of the word, times
    ``std``, with the sign of the word's top bit, rounded to the grid. In the centre the uniform is
    read in steps of 2**-64, as the word counts them. There adding half a step rounds to the same
    number, and so does all that follows, since powers of two change no rounding.

    Args:
        words: 64 random bits for each value.
        finer: see :func:`refined_halves`.
        std: standard deviation.
        grid: a power of two; no value may reach 2**51 steps.
        out: takes the values.

    >>> out = np.empty(2)
    >>> gaussian_on_grid(np.array([1 << 62, 3 << 62], dtype=np.uint64), None, 1.0, 2.0**-20, out)
    >>> out.round(3).tolist()
    [-0.674, 0.674]
    """
    tails = []
    buffers = _aligned(3, min(CHUNK, len(out)))
    for start in range(0, len(out), CHUNK):
        word, own = words[start : start + CHUNK], out[start : start + CHUNK]
        offset, square, value = buffers[:, : len(own)]
        bits = square.view(np.uint64)
        np.bitwise_and(word, ~TOP_BIT, out=bits)
        # Below 2**63 the signed conversion is the same and faster.
        np.copyto(offset, bits.view(np.int64))
        offset -= 0.5 * UNIT
        tails.append(np.flatnonzero(offset < -CENTRE * UNIT) + start)
        np.multiply(offset, offset, out=square)
        np.subtract(0.180625 * UNIT**2, square, out=square)
        _horner(square, SCALED[0], out=value)
        value *= offset
        value /= _horner(square, SCALED[1], out=offset)
        value *= std / UNIT
        round_signed(value, np.bitwise_and(word, TOP_BIT, out=bits), grid, out=own)
    tail = np.concatenate(tails) if tails else np.zeros(0, dtype=np.intp)
    if tail.size:
        half, top = refined_halves(words[tail], lambda places: finer(tail[places]))
        lower = _tail(half)
        lower *= std
        out[tail] = round_signed(lower, top, grid, out=lower)


def _aligned(count: int, length: int) -> Values:
    """Return rows of numbers that begin where a processor's widest registers read in one go.

    NumPy's own arrays begin 16 bytes later, and every pass over them takes up to a third longer.
    """
    step = 64 // 8
    room = -(-length // step) * step
    whole = np.empty(count * room + step)
    first = -whole.ctypes.data % 64 // 8
    return whole[first : first + count * room].reshape(count, room)[:, :length]


def round_signed(lower: Values, top: Words, grid: float, *, out: Values) -> Values:
    """Flip the signs that top bits say, of values of which none is positive, and round to a grid.

    The values are overwritten; the result is written to ``out``, which may be they.

    Where numbers of 1.5 * 2**52 steps lie, float64 has the grid's points and no others, so adding
    one rounds to the nearest, ties to even. Taking it away leaves no zero with a sign, which would
    tell on the value beneath.

    >>> values = np.array([-0.3, -0.3, -0.1])
    >>> top = np.array([0, 1 << 63, 0], dtype=np.uint64)
    >>> round_signed(values, top, 0.25, out=values).tolist()
    [-0.25, 0.25, 0.0]
    """
    bits = lower.view(np.uint64)
    np.bitwise_xor(bits, top, out=bits)
    far = 1.5 * 2.0**52 * grid
    lower += far
    return np.subtract(lower, far, out=out)


def natural_log(values: Values) -> Values:
    """Return the logarithm of positive normal numbers, with the same bits everywhere.

    >>> natural_log(np.array([1.0, 0.5])).tolist() == [0.0, -0.6931471805599453]
    True
    """
    bits = values.view(np.int64)
    power = (bits - ROOT_HALF) >> 52
    part = (bits - (power << 52)).view(np.float64)
    part -= 1.0
    ratio = part / (2.0 + part)
    square = ratio * ratio
    fourth = square * square
    series = fourth * _horner(fourth, EVEN)
    series += square * _horner(fourth, ODD)
    half_square = 0.5 * part
    half_square *= part
    exponent = power.astype(np.float64)
    # ratio * (half_square + series) + exponent * LN2_LOW
    series += half_square
    series *= ratio
    series += exponent * LN2_LOW
    # ... - half_square + part + exponent * LN2_HIGH
    series -= half_square
    series += part
    exponent *= LN2_HIGH
    series += exponent
    return series


def _tail(half: Values) -> Values:
    root = natural_log(half)
    np.sqrt(np.negative(root, out=root), out=root)
    near = root - 1.6
    value = _horner(near, NEAR[0])
    value /= _horner(near, NEAR[1])
    far = np.flatnonzero(root > 5.0)
    if far.size:
        rest = root[far] - 5.0
        value[far] = _horner(rest, FAR[0]) / _horner(rest, FAR[1])
    return np.negative(value, out=value)


def _horner(x: Values, coefficients: Values, *, out: Values | None = None) -> Values:
    first, second, *others = coefficients
    value: Values = np.multiply(x, first, out=out)
    value += second
    for coefficient in others:
        value *= x
        value += coefficient
    return value
