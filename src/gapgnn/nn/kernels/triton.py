"""Triton kernels of the layers in :mod:`gapgnn.nn.kernels.cuda`; never called without Triton."""

# mypy: ignore-errors
# Triton reads signatures itself.

from gapgnn.privacy.mechanisms import constexpr, jit, tl


@jit()
def _tile(count, COLUMNS: constexpr, CHANNELS: constexpr, ROWS: constexpr):
    """Return this program's rows and channels, and which cells of the tile exist."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channels = tl.arange(0, COLUMNS)
    exists = (rows < count)[:, None] & (channels < CHANNELS)[None, :]
    return rows, channels, exists


@jit()
def _derivative(normal, SCALE: constexpr, ALPHA: constexpr):
    """Return the derivative of the activation."""
    return SCALE * tl.where(normal > 0, 1.0, ALPHA * tl.exp(normal))


@jit(do_not_specialize=["count"])
def statistics_kernel(
    values,
    partial,
    count,
    by_replica,
    by_row,
    CHANNELS: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
):
    """Write the mean of every channel over ROWS rows, and the squares about that mean."""
    rows, channels, exists = _tile(count, COLUMNS, CHANNELS, ROWS)
    replica = tl.program_id(1).to(tl.int64)
    cells = replica * by_replica + rows[:, None] * by_row + channels[None, :]
    tile = tl.load(values + cells, mask=exists, other=0.0)
    here = tl.minimum(count - tl.program_id(0).to(tl.int64) * ROWS, ROWS).to(tl.float32)
    mean = tl.sum(tile, axis=0) / here
    centred = tl.where(exists, tile - mean[None, :], 0.0)
    place = (replica * tl.num_programs(0) + tl.program_id(0)) * 2 * CHANNELS + channels
    tl.store(partial + place, mean, mask=channels < CHANNELS)
    tl.store(
        partial + place + CHANNELS, tl.sum(centred * centred, axis=0), mask=channels < CHANNELS
    )


@jit(do_not_specialize=["count"])
def activate_kernel(
    values,
    mean,
    scale,
    shift,
    out,
    count,
    by_replica,
    by_row,
    CHANNELS: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    SCALE: constexpr,
    ALPHA: constexpr,
):
    """Write the activation of the normalised values, contiguous."""
    rows, channels, exists = _tile(count, COLUMNS, CHANNELS, ROWS)
    replica = tl.program_id(1).to(tl.int64)
    cells = replica * by_replica + rows[:, None] * by_row + channels[None, :]
    tile = tl.load(values + cells, mask=exists, other=0.0)
    own = replica * CHANNELS + channels
    used = channels < CHANNELS
    middle = tl.load(mean + own, mask=used, other=0.0)
    factor = tl.load(scale + own, mask=used, other=0.0)
    offset = tl.load(shift + own, mask=used, other=0.0)
    normal = (tile - middle[None, :]) * factor[None, :] + offset[None, :]
    active = SCALE * tl.where(normal > 0, normal, ALPHA * (tl.exp(normal) - 1.0))
    out_cells = (replica * count + rows[:, None]) * CHANNELS + channels[None, :]
    tl.store(out + out_cells, active, mask=exists)


@jit(do_not_specialize=["count"])
def gradient_kernel(
    values,
    gradients,
    mean,
    spread,
    weight,
    shift,
    sums,
    out,
    count,
    by_replica,
    by_row,
    gradient_by_replica,
    gradient_by_row,
    CHANNELS: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    SCALE: constexpr,
    ALPHA: constexpr,
    IS_SUM: constexpr,
):
    """Take the gradient through activation and normalisation.

    First pass (IS_SUM): write per block the two sums over rows that the second one needs. Second
    pass: read their means over all rows from ``sums`` and write the gradient, laid out as
    ``values``.
    """
    rows, channels, exists = _tile(count, COLUMNS, CHANNELS, ROWS)
    replica = tl.program_id(1).to(tl.int64)
    cells = replica * by_replica + rows[:, None] * by_row + channels[None, :]
    gradient_cells = (
        replica * gradient_by_replica + rows[:, None] * gradient_by_row + channels[None, :]
    )
    tile = tl.load(values + cells, mask=exists, other=0.0)
    gradient = tl.load(gradients + gradient_cells, mask=exists, other=0.0)
    own = replica * CHANNELS + channels
    used = channels < CHANNELS
    middle = tl.load(mean + own, mask=used, other=0.0)
    inverse = tl.load(spread + own, mask=used, other=0.0)
    factor = tl.load(weight + own, mask=used, other=0.0)
    offset = tl.load(shift + own, mask=used, other=0.0)
    standard = (tile - middle[None, :]) * inverse[None, :]
    gradient = gradient * _derivative(standard * factor[None, :] + offset[None, :], SCALE, ALPHA)
    if IS_SUM:
        gradient = tl.where(exists, gradient, 0.0)
        place = (replica * tl.num_programs(0) + tl.program_id(0)) * 2 * CHANNELS + channels
        tl.store(out + place, tl.sum(gradient, axis=0), mask=used)
        tl.store(out + place + CHANNELS, tl.sum(gradient * standard, axis=0), mask=used)
    else:
        first = tl.load(sums + replica * 2 * CHANNELS + channels, mask=used, other=0.0)
        second = tl.load(sums + (replica * 2 + 1) * CHANNELS + channels, mask=used, other=0.0)
        result = gradient - first[None, :] - standard * second[None, :]
        result = result * (inverse * factor)[None, :]
        tl.store(out + cells, result, mask=exists)


@jit(do_not_specialize=["count", "num_labels"])
def cross_entropy_kernel(
    scores,
    labels,
    weights,
    out,
    count,
    num_labels,
    CHANNELS: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
    IS_GRADIENT: constexpr,
):
    """Write every row's loss, or the gradient of the weighted losses."""
    rows, channels, exists = _tile(count, COLUMNS, CHANNELS, ROWS)
    cells = rows[:, None] * CHANNELS + channels[None, :]
    tile = tl.load(scores + cells, mask=exists, other=-float("inf"))
    is_row = rows < count
    label = tl.load(labels + rows % num_labels, mask=is_row, other=0)
    is_label = channels[None, :] == label[:, None]
    # Rows beyond the last hold nothing but minus infinity: keep their arithmetic finite.
    tile = tl.where(is_row[:, None], tile, 0.0)
    shifted = tile - tl.max(tile, axis=1)[:, None]
    powers = tl.exp(shifted)
    total = tl.sum(powers, axis=1)
    if IS_GRADIENT:
        weight = tl.load(weights + rows, mask=is_row, other=0.0)
        share = powers / total[:, None]
        result = (share - tl.where(is_label, 1.0, 0.0)) * weight[:, None]
        tl.store(out + cells, result, mask=exists)
    else:
        own = tl.sum(tl.where(is_label, shifted, 0.0), axis=1)
        tl.store(out + rows, tl.log(total) - own, mask=is_row)


@jit(do_not_specialize=["count"])
def best_class_kernel(
    scores,
    out,
    count,
    CHANNELS: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
):
    """Write the place of every row's largest score; the first of equal ones."""
    rows, channels, exists = _tile(count, COLUMNS, CHANNELS, ROWS)
    cells = rows[:, None] * CHANNELS + channels[None, :]
    tile = tl.load(scores + cells, mask=exists, other=-float("inf"))
    tl.store(out + rows, tl.argmax(tile, axis=1).to(tl.int64), mask=rows < count)


@jit(do_not_specialize=["count"])
def weight_gradient_kernel(
    left,
    right,
    partial,
    count,
    left_by_replica,
    left_by_row,
    right_by_replica,
    right_by_row,
    IN: constexpr,
    OUT: constexpr,
    IN_COLUMNS: constexpr,
    OUT_COLUMNS: constexpr,
    ROWS: constexpr,
    STEPS: constexpr,
):
    """Write ``left^T right`` over STEPS times ROWS rows, in float32 throughout."""
    replica = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * (ROWS * STEPS)
    ins = tl.arange(0, IN_COLUMNS)
    outs = tl.arange(0, OUT_COLUMNS)
    total = tl.zeros((IN_COLUMNS, OUT_COLUMNS), dtype=tl.float32)
    for step in range(STEPS):
        rows = first + step * ROWS + tl.arange(0, ROWS)
        exists = rows < count
        one = tl.load(
            left + replica * left_by_replica + rows[None, :] * left_by_row + ins[:, None],
            mask=exists[None, :] & (ins < IN)[:, None],
            other=0.0,
        )
        other = tl.load(
            right + replica * right_by_replica + rows[:, None] * right_by_row + outs[None, :],
            mask=exists[:, None] & (outs < OUT)[None, :],
            other=0.0,
        )
        total = tl.dot(one, other, total, input_precision="ieee")
    program = replica * tl.num_programs(0) + tl.program_id(0)
    place = (program * IN + ins[:, None]) * OUT + outs[None, :]
    tl.store(partial + place, total, mask=(ins < IN)[:, None] & (outs < OUT)[None, :])


@jit(do_not_specialize=["count"])
def product_kernel(
    values,
    weight,
    bias,
    out,
    count,
    by_replica,
    by_row,
    weight_by_replica,
    weight_by_in,
    weight_by_out,
    bias_by_replica,
    IN: constexpr,
    OUT: constexpr,
    IN_COLUMNS: constexpr,
    OUT_COLUMNS: constexpr,
    ROWS: constexpr,
    HAS_BIAS: constexpr,
    IS_MORE: constexpr,
):
    """Write ``values @ weight``, contiguous; with a bias, or added to what is there (IS_MORE).

    Tensor cores multiply, each number as a sum of two short ones (three products): as exact as
    float32 to within a last bit, in two thirds of its time.
    """
    replica = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    ins = tl.arange(0, IN_COLUMNS)
    outs = tl.arange(0, OUT_COLUMNS)
    tile = tl.load(
        values + replica * by_replica + rows[:, None] * by_row + ins[None, :],
        mask=(rows < count)[:, None] & (ins < IN)[None, :],
        other=0.0,
    )
    factor = tl.load(
        weight
        + replica * weight_by_replica
        + ins[:, None] * weight_by_in
        + outs[None, :] * weight_by_out,
        mask=(ins < IN)[:, None] & (outs < OUT)[None, :],
        other=0.0,
    )
    exists = (rows < count)[:, None] & (outs < OUT)[None, :]
    cells = (replica * count + rows[:, None]) * OUT + outs[None, :]
    total = tl.dot(tile, factor, input_precision="tf32x3")
    if HAS_BIAS:
        total += tl.load(bias + replica * bias_by_replica + outs, mask=outs < OUT, other=0.0)[None]
    if IS_MORE:
        total += tl.load(out + cells, mask=exists, other=0.0)
    tl.store(out + cells, total, mask=exists)


@jit(do_not_specialize=["count"])
def dropout_kernel(
    values,
    seeds,
    calls,
    out,
    count,
    threshold,
    scale,
    LEVELS: constexpr,
    SIZE: constexpr,
):
    """Blank the values whose random byte is below the threshold, and scale up the others.

    A byte is a function of the replica's seed, the number of the call and the value's place.
    """
    places = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    replica = tl.program_id(1).to(tl.int64)
    exists = places < count
    low, high = places.to(tl.uint32), (places >> 32).to(tl.uint32)
    call = tl.zeros((SIZE,), tl.uint32) + tl.load(calls).to(tl.uint32)
    word, _, _, _ = tl.philox(tl.load(seeds + replica), low, high, call, call * 0)
    keep = (word % LEVELS).to(tl.int32) >= threshold
    tile = tl.load(values + replica * count + places, mask=exists, other=0.0)
    tl.store(out + replica * count + places, tl.where(keep, tile * scale, 0.0), mask=exists)
