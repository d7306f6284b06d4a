"""Triton kernels of a noisy hop; used only where Triton and a CUDA device are present.

What they compute, and the same in plain torch, is described in
:mod:`gapgnn.privacy.mechanisms.device`. Without Triton the functions are ordinary Python that
nothing calls.
"""

# mypy: ignore-errors
# Triton reads signatures itself.

from gapgnn.privacy.mechanisms.triton_jit import constexpr, jit, tl
from gapgnn.privacy.mechanisms.triton_noise import safe_steps


@jit()
def _standard_normal(rows, columns, words):
    """Return a standard normal value per (row, column): Philox4x32-10, then Box-Muller.

    Columns 2k and 2k + 1 share the counter (row, k) and take the cosine and the sine.
    """
    seed = tl.load(words)
    zero = (rows ^ rows) + (columns ^ columns)
    row = (rows + zero).to(tl.uint32)
    pair = (columns // 2 + zero).to(tl.uint32)
    first = (tl.load(words + 1) + zero).to(tl.uint32)
    second = (tl.load(words + 2) + zero).to(tl.uint32)
    left, right, _third, _fourth = tl.philox(seed, row, pair, first, second)
    uniform = (left.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    angle = right.to(tl.float32) * 1.4629180792671596e-09
    size = tl.sqrt(-2.0 * tl.log(uniform))
    return size * tl.where(columns % 2 == 0, tl.cos(angle), tl.sin(angle))


@jit(do_not_specialize=["first_row", "count"])
def noise_kernel(out, words, std, first_row, count, WIDTH: constexpr, BLOCK: constexpr):
    """Write ``std`` times standard normal values to a contiguous matrix of ``count`` cells."""
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = (cells // WIDTH + first_row).to(tl.int32)
    columns = (cells % WIDTH).to(tl.int32)
    tl.store(out + cells, std * _standard_normal(rows, columns, words), mask=cells < count)


@jit(do_not_specialize=["num_items"])
def hop_kernel(
    rows,
    indices,
    item_rows,
    item_starts,
    item_counts,
    given,
    words,
    out,
    std,
    num_items,
    WIDTH: constexpr,
    STRIDE: constexpr,
    COLUMNS: constexpr,
    GROUP: constexpr,
    STEP: constexpr,
    GATHER: constexpr,
    WHOLE: constexpr,
    FINISH: constexpr,
    GIVEN: constexpr,
    DRAWN: constexpr,
    ROW_BLOCKS: constexpr,
    NORMALISE: constexpr,
    UNIT: constexpr,
):
    """Add up the rows of each item's list, add what is given and noise, normalise, write.

    DRAWN is 0 for no noise, 1 for fast noise and 2 for safe noise on whole numbers.

    One program takes GROUP items of about equal length and reads STEP entries of each at a time;
    every lane adds its own entries in order, and lanes are added up once, at the end.
    """
    items = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    is_item = items < num_items
    row = tl.load(item_rows + items, mask=is_item, other=0)
    start = tl.load(item_starts + items, mask=is_item, other=0)
    count = tl.load(item_counts + items, mask=is_item, other=0)
    columns = tl.arange(0, COLUMNS)
    total = tl.zeros([GROUP, STEP, COLUMNS], dtype=rows.dtype.element_ty)
    longest = tl.max(count, axis=0)
    for first in range(0, longest, STEP):
        place = first + tl.arange(0, STEP)
        is_entry = place[None, :] < count[:, None]
        source = start[:, None] + place[None, :]
        if GATHER:
            source = tl.load(indices + source, mask=is_entry, other=0).to(tl.int64)
        cells = source[:, :, None] * STRIDE + columns[None, None, :]
        wanted = is_entry[:, :, None] & (columns < WIDTH)[None, None, :]
        total += tl.load(rows + cells, mask=wanted, other=0)
    if WHOLE:  # noqa: SIM108
        sums = tl.sum(total.to(tl.int64), axis=1)
    else:
        sums = tl.sum(total, axis=1)
    out_cells = row.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    is_cell = is_item[:, None] & (columns < WIDTH)[None, :]
    if FINISH:
        if GIVEN:
            sums += tl.load(given + out_cells, mask=is_cell, other=0)
        if DRAWN == 1:
            sums += std * _standard_normal(row[:, None], columns[None, :], words)
        if DRAWN == 2:
            own = row.to(tl.int64)[:, None] * ROW_BLOCKS
            sums += safe_steps(words, own + tl.arange(0, COLUMNS // 8)[None, :])
        exact = sums.to(tl.float64) * UNIT
        if NORMALISE:
            # Lanes beyond the last column may hold noise that belongs to no cell.
            exact = tl.where(is_cell, exact, 0.0)
            norm = tl.sqrt(tl.sum(exact * exact, axis=1))
            exact = exact / tl.where(norm > 0, norm, 1.0)[:, None]
        tl.store(out + out_cells, exact.to(tl.float32), mask=is_cell)
    else:
        tl.store(out + out_cells, sums, mask=is_cell)


@jit(do_not_specialize=["count"])
def longest_kernel(
    rows,
    out,
    count,
    WIDTH: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
):
    """Write the largest squared norm of each block of rows; infinity where one is not finite."""
    places = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    exists = (places < count)[:, None] & (columns < WIDTH)[None, :]
    tile = tl.load(rows + places[:, None] * WIDTH + columns[None, :], mask=exists, other=0.0)
    exact = tile.to(tl.float64)
    squares = tl.sum(exact * exact, axis=1)
    # A comparison with NaN is false.
    squares = tl.where(squares <= 1e300, squares, float("inf"))
    tl.store(out + tl.program_id(0), tl.max(squares, axis=0))


@jit(do_not_specialize=["count"])
def quantise_kernel(
    rows,
    out,
    squares,
    count,
    WIDTH: constexpr,
    COLUMNS: constexpr,
    ROWS: constexpr,
):
    """Cut rows to steps of 2**-14 and write them in steps of 2**-20, int32, which the noise has.

    Also writes the largest squared norm of each block.

    As :func:`gapgnn.privacy.mechanisms.sums.quantise_rows`, which says why no row gets longer.
    """
    places = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    exists = (places < count)[:, None] & (columns < WIDTH)[None, :]
    cells = places[:, None] * WIDTH + columns[None, :]
    exact = tl.load(rows + cells, mask=exists, other=0.0).to(tl.float64)
    whole = (exact * 16384.0).to(tl.int32) * 64
    steps = whole.to(tl.float64)
    norms = tl.sqrt(tl.sum(exact * exact, axis=1))
    factors = 0.9999999999990905 / tl.where(norms > 0, norms, 1.0)
    shorter = (exact * factors[:, None] * 16384.0).to(tl.int32) * 64
    is_long = tl.sum(steps * steps, axis=1) > 1099511627776.0
    whole = tl.where(is_long[:, None], shorter, whole)
    steps = whole.to(tl.float64)
    tl.store(out + cells, whole, mask=exists)
    tl.store(squares + tl.program_id(0), tl.max(tl.sum(steps * steps, axis=1), axis=0))
