"""Triton kernels of safe noise: the stream and the arithmetic of the CPU, on an accelerator.

What they compute is defined in :mod:`gapgnn.privacy.mechanisms.noise`,
:mod:`gapgnn.privacy.mechanisms.draws` (ChaCha20) and :mod:`gapgnn.privacy.mechanisms.normal` (the
inverse normal CDF), and they give the same bits: whoever launches them turns off fused
multiply-adds (``enable_fp_fusion=False``). The key is five words of 64 bits, the cipher's key and
the standard deviation in steps of the grid as a float64.
"""

# mypy: ignore-errors
# Triton reads signatures itself.

from gapgnn.privacy.mechanisms.triton_jit import constexpr, jit, tl


@jit()
def _turn(word, by: constexpr):
    return (word << by) | (word >> (32 - by))


@jit()
def _quarter(a, b, c, d):
    a = a + b
    d = _turn(d ^ a, 16)
    c = c + d
    b = _turn(b ^ c, 12)
    a = a + b
    d = _turn(d ^ a, 8)
    c = c + d
    b = _turn(b ^ c, 7)
    return a, b, c, d


@jit()
def _cipher(key, blocks, part):
    """Return the eight words of each block side by side: ``(M, K)`` numbers to ``(M, 8 K)``."""
    zero = (blocks ^ blocks).to(tl.uint32)
    first, second = tl.load(key), tl.load(key + 1)
    third, fourth = tl.load(key + 2), tl.load(key + 3)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1 = zero + first.to(tl.uint32), zero + (first >> 32).to(tl.uint32)
    k2, k3 = zero + second.to(tl.uint32), zero + (second >> 32).to(tl.uint32)
    k4, k5 = zero + third.to(tl.uint32), zero + (third >> 32).to(tl.uint32)
    k6, k7 = zero + fourth.to(tl.uint32), zero + (fourth >> 32).to(tl.uint32)
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    low, high = blocks.to(tl.uint32), (blocks >> 32).to(tl.uint32)
    nonce = zero + part
    x12, x13, x14, x15 = low, high, nonce, zero
    for _ in tl.static_range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    w0 = _word(x0 + 0x61707865, x1 + 0x3320646E)
    w1 = _word(x2 + 0x79622D32, x3 + 0x6B206574)
    w2 = _word(x4 + k0, x5 + k1)
    w3 = _word(x6 + k2, x7 + k3)
    w4 = _word(x8 + k4, x9 + k5)
    w5 = _word(x10 + k6, x11 + k7)
    w6 = _word(x12 + low, x13 + high)
    w7 = _word(x14 + nonce, x15)
    # What is joined first is the most significant of three bits.
    even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
    odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
    return tl.reshape(tl.join(even, odd), [blocks.shape[0], 8 * blocks.shape[1]])


@jit()
def _word(low, high):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@jit()
def _eighth(x, c7, c6, c5, c4, c3, c2, c1, c0):
    return ((((((x * c7 + c6) * x + c5) * x + c4) * x + c3) * x + c2) * x + c1) * x + c0


@jit()
def _log(values):
    """Return the logarithm as :func:`gapgnn.privacy.mechanisms.normal.natural_log` makes it."""
    bits = values.to(tl.int64, bitcast=True)
    power = (bits - 0x3FE6A09E00000000) >> 52
    part = (bits - (power << 52)).to(tl.float64, bitcast=True) - 1.0
    ratio = part / (part + 2.0)
    square = ratio * ratio
    fourth = square * square
    even = (
        fourth * 1.531383769920937332e-01 + 2.222219843214978396e-01
    ) * fourth + 3.999999999940941908e-01
    odd = (fourth * 1.479819860511658591e-01 + 1.818357216161805012e-01) * fourth
    odd = (odd + 2.857142874366239149e-01) * fourth + 6.666666666666735130e-01
    series = fourth * even + square * odd
    half_square = part * 0.5 * part
    exponent = power.to(tl.float64)
    low = ratio * (half_square + series) + exponent * 1.90821492927058770002e-10
    return (low - half_square) + part + exponent * 6.93147180369123816490e-01


@jit()
def _lower_normal(half):
    """Return the inverse normal CDF as :func:`gapgnn.privacy.mechanisms.normal.lower_normal`."""
    offset = half - 0.5
    square = 0.180625 - offset * offset
    over = offset * _eighth(
        square,
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    )
    under = _eighth(
        square,
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    )
    root = tl.sqrt(-_log(half))
    near = root - 1.6
    tail_over = -_eighth(
        near,
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    )
    tail_under = _eighth(
        near,
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    )
    if tl.max(root.reshape([half.shape[0] * half.shape[1]]), axis=0) > 5.0:
        rest = root - 5.0
        is_far = root > 5.0
        far_over = -_eighth(
            rest,
            2.01033439929228813265e-7,
            2.71155556874348757815e-5,
            1.24266094738807843860e-3,
            2.65321895265761230930e-2,
            2.96560571828504891230e-1,
            1.78482653991729133580e0,
            5.46378491116411436990e0,
            6.65790464350110377720e0,
        )
        far_under = _eighth(
            rest,
            2.04426310338993978564e-15,
            1.42151175831644588870e-7,
            1.84631831751005468180e-5,
            7.86869131145613259100e-4,
            1.48753612908506148525e-2,
            1.36929880922735805310e-1,
            5.99832206555887937690e-1,
            1.0,
        )
        tail_over = tl.where(is_far, far_over, tail_over)
        tail_under = tl.where(is_far, far_under, tail_under)
    is_tail = offset < -0.425
    return tl.where(is_tail, tail_over, over) / tl.where(is_tail, tail_under, under)


@jit()
def _halves(key, blocks):
    """Return uniforms in (0, 1/2] and the words whose top bit is theirs, int64.

    As :func:`gapgnn.privacy.mechanisms.draws.refined_halves` makes them; ``(M, K)`` block numbers
    give ``(M, 8 K)`` values.
    """
    words = _cipher(key, blocks, 0).to(tl.int64, bitcast=True)
    magnitude = words & 0x7FFFFFFFFFFFFFFF
    whole = magnitude.to(tl.float64)
    half = (whole + 0.5) * 5.421010862427522e-20
    is_tail = magnitude < 0x20000000000000
    if tl.max(is_tail.to(tl.int32).reshape([half.shape[0] * half.shape[1]]), axis=0) > 0:
        finer = (_cipher(key, blocks, 1).to(tl.float64) + 0.5) * 2.938735877055719e-39
        half = tl.where(is_tail, whole * 5.421010862427522e-20 + finer, half)
    return half, words


@jit()
def safe_steps(key, blocks):
    """Return Gaussian noise in whole steps of the grid, int64, for blocks by their numbers.

    ``(M, K)`` block numbers give ``(M, 8 K)`` values.
    """
    half, words = _halves(key, blocks)
    scale = tl.load(key + 4).to(tl.float64, bitcast=True)
    lower = _lower_normal(half) * scale
    value = tl.where(words < 0, -lower, lower)
    # To the nearest whole number, ties to even: beyond 2**52 a float64 has no fraction.
    return ((value + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)


@jit(do_not_specialize=["count"])
def halves_kernel(out, key, count, BLOCKS: constexpr):
    """Write uniforms in (0, 1/2], negative where the top bit of their word is set."""
    blocks = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    half, words = _halves(key, blocks[:, None])
    cells = (blocks * 8)[:, None] + tl.arange(0, 8)[None, :]
    tl.store(out + cells, tl.where(words < 0, -half, half), mask=cells < count)


@jit(do_not_specialize=["first_block", "num_blocks"])
def safe_noise_kernel(
    out,
    key,
    first_block,
    num_blocks,
    UNIT: constexpr,
    WIDTH: constexpr,
    ROW_BLOCKS: constexpr,
    BLOCKS: constexpr,
):
    """Write noise to a contiguous float64 matrix of WIDTH columns, of ROW_BLOCKS blocks a row."""
    places = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    steps = safe_steps(key, (places + first_block)[:, None])
    columns = (places % ROW_BLOCKS * 8)[:, None] + tl.arange(0, 8)[None, :]
    cells = (places // ROW_BLOCKS * WIDTH)[:, None] + columns
    is_cell = (places < num_blocks)[:, None] & (columns < WIDTH)
    # From whole numbers, so that no zero has a sign.
    tl.store(out + cells, steps.to(tl.float64) * UNIT, mask=is_cell)
