"""Triton kernels of a noisy hop; used only where Triton and a CUDA device are present.

What they compute, and the same in plain torch, is described in
:mod:`gapgnn.privacy.mechanisms.device`. Without Triton the functions are ordinary Python that
nothing calls.
"""

# mypy: ignore-errors
# Triton reads signatures itself and resolves every annotation but `constexpr`.

from importlib import import_module

try:
    triton = import_module("triton")
    tl = import_module("triton.language")
except ImportError:
    triton = tl = None

IS_PRESENT = triton is not None


def jit(**options):
    """Compile for the device where Triton is present; leave the function alone elsewhere."""
    return triton.jit(**options) if IS_PRESENT else lambda function: function


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
def noise_kernel(out, words, std, first_row, count, WIDTH: "tl.constexpr", BLOCK: "tl.constexpr"):
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
    noise,
    words,
    out,
    std,
    num_items,
    WIDTH: "tl.constexpr",
    STRIDE: "tl.constexpr",
    COLUMNS: "tl.constexpr",
    GROUP: "tl.constexpr",
    STEP: "tl.constexpr",
    GATHER: "tl.constexpr",
    WHOLE: "tl.constexpr",
    FINISH: "tl.constexpr",
    NOISE: "tl.constexpr",
    NORMALISE: "tl.constexpr",
    UNIT: "tl.constexpr",
):
    """Add up the rows of each item's list, add noise, normalise, write.

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
        if NOISE == 1:
            sums += tl.load(noise + out_cells, mask=is_cell, other=0)
        if NOISE == 2:
            sums += std * _standard_normal(row[:, None], columns[None, :], words)
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
    WIDTH: "tl.constexpr",
    COLUMNS: "tl.constexpr",
    ROWS: "tl.constexpr",
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
