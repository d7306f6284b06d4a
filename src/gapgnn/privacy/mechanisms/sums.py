"""Sums of rows over lists on a CPU, and rows cut so that their sums are exact."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import PrivacyError
from gapgnn.graph import WEIGHT_GRID
from gapgnn.privacy.mechanisms.device import csr_tensor, quantised_steps
from gapgnn.privacy.mechanisms.noise import GRID

# Pointers, entries and weights of lists in CSR form.
Lists = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float32] | None]
# Entries that are multiplied at a time: few enough that the ones of the product stay in cache.
CHUNK_ENTRIES = 1 << 19
# Entries that are added up at a time: their number fits in 32 bits.
MOST_ENTRIES = 1 << 30
# Numbers that are cut to the grid at a time: they stay in a CPU's cache.
CHUNK_NUMBERS = 1 << 16
# Rows lie on a grid of 2**-14, coarser than that of the noise: so many numbers of at most 2**14
# steps add up to at most 2**24, which float32 holds exactly.
ROW_GRID = 64 * GRID
EXACT_ENTRIES = 1024
# Rows that travel along weighted edges: times a weight, a multiple of 2**-8, a multiple of 2**-12
# lies on the grid of the noise, so that sums of products are exact (privacy page, section 4). The
# low bits of a sum off the grid would show through noise on it.
WEIGHTED_GRID = GRID / WEIGHT_GRID


def quantise_rows(
    rows: Tensor, *, grid: float = ROW_GRID, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Cut rows of norm at most 1 to a grid without letting a norm exceed 1.

    Every coordinate is truncated towards zero, which makes no row longer. Rows that arrive longer
    than 1 by single-precision rounding are first shortened by ``(1 - 2**-40) / norm``; the margin
    covers the rounding of that product. That no norm exceeds 1 is then checked, not assumed: in
    units of the grid the coordinates are whole numbers and their squares add up to about 2**28, far
    below 2**53, so the sum of squares is exact in float64 and the comparison with 2**28 decides.
    (In float32 it is exact to ``d * 2**-23`` for d columns: rows shorter than 1 by more than that
    need not be asked again.)

    Args:
        rows: of norm at most 1, but for rounding.
        grid: a power of two; a coarser one is for rows that are multiplied by weights.
        dtype: of the result; float32 holds multiples of the grid up to 1 exactly too.

    >>> import torch
    >>> quantise_rows(torch.tensor([[0.6, -0.8]])).mul(2**14).tolist()
    [[9830.0, -13107.0]]
    """
    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    # Part by part, each of which stays in a CPU's cache.
    is_cpu = out.device.type == "cpu"
    size = max(1, CHUNK_NUMBERS // max(1, rows.shape[-1])) if is_cpu else len(out)
    for steps, part in zip(torch.split(out, size), torch.split(rows, size), strict=True):
        # Powers of two: multiplying is exact, and faster than dividing.
        torch.mul(part, 1 / grid, out=steps)
        if is_cpu:
            # A tenth of the time of torch's, and the same.
            np.trunc(steps.numpy(), out=steps.numpy())
        else:
            steps.trunc_()
        slack = rows.shape[-1] * 2.0**-23 if dtype == torch.float32 else 0.0
        near = steps.square().sum(dim=-1) > (1 - slack) * grid**-2
        if bool(near.any()):
            steps[near] = _shortened(part[near].to(torch.float64), grid).to(dtype)
        steps.mul_(grid)
    return out


def _shortened(rows: Tensor, grid: float) -> Tensor:
    """Return rows in whole steps of a grid, those longer than 1 shortened first."""
    steps = torch.trunc(rows / grid)
    too_long = steps.square().sum(dim=-1) > grid**-2
    norms = torch.linalg.vector_norm(rows[too_long], dim=-1, keepdim=True)
    steps[too_long] = torch.trunc(rows[too_long] * ((1 - 2.0**-40) / norms) / grid)
    if bool((steps.square().sum(dim=-1) > grid**-2).any()):
        raise PrivacyError("A quantised row must have norm at most 1. Got a longer one.")
    return steps


def whole_rows(rows: Tensor) -> Tensor:
    """Return rows as :func:`quantise_rows` cuts them, in steps of the noise's grid, on a device."""
    steps, longest = quantised_steps(rows)
    if longest > GRID**-2:
        raise PrivacyError("A quantised row must have norm at most 1. Got a longer one.")
    return steps


def divide_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Divide rows of norm at most 1 by the root of how often each is written, in float64.

    All that a person writes has norm at most 1 then, however long the list is: squares of equal
    messages add up (privacy page, section 1).

    >>> divide_rows(torch.tensor([[1.0, 0.0]]), torch.tensor([4])).tolist()
    [[0.5, 0.0]]
    """
    exact = rows.to(torch.float64)
    norms = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).clamp(min=1.0)
    roots = lengths.clamp(min=1).to(torch.float64).sqrt().unsqueeze(-1)
    normalised: Tensor = exact / norms / roots
    return normalised


def check_contributions(rows: Tensor, lengths: Tensor) -> None:
    """Refuse rows of which all copies together are longer than 1, which the noise is scaled to.

    >>> check_contributions(torch.tensor([[0.6]]), torch.tensor([3]))
    Traceback (most recent call last):
    ...
    gapgnn.errors.PrivacyError: All that one person sends must have norm at most 1. Got 1.03923.
    """
    squares = rows.to(torch.float64).square().sum(dim=-1) * lengths
    # Rounding of single precision; on the grid rows were cut towards zero and are never longer.
    slack = 0.0 if rows.dtype == torch.float64 else 1e-6
    if squares.numel() and float(squares.max()) > 1 + slack:
        raise PrivacyError(
            "All that one person sends must have norm at most 1. "
            f"Got {float(squares.max()) ** 0.5:.6g}."
        )


def add_up(
    rows: Tensor,
    pointers: NDArray[np.int64],
    entries: NDArray[Any],
    weights: NDArray[np.float32] | None = None,
) -> Tensor:
    """Return the sums of some rows over lists in CSR form, each times the weight of its entry.

    In float32 by torch's embedding bags, which fetch rows ahead and read no ones: for 45 million
    entries and 16 columns half the time of its sparse product. A list is added up in its order,
    whatever the number of threads.

    >>> add_up(torch.eye(2), np.array([0, 2, 3]), np.array([0, 1, 1])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    >>> half = np.array([1, 0.5, 1], dtype=np.float32)
    >>> add_up(torch.eye(2), np.array([0, 2, 3]), np.array([0, 1, 1]), half).tolist()
    [[1.0, 0.5], [0.0, 1.0]]
    """
    if weights is not None:
        check_weights(weights)
    count = len(pointers) - 1
    if not count or not rows.shape[1]:
        return torch.zeros(count, rows.shape[1], dtype=rows.dtype)
    is_single = rows.dtype == torch.float32
    add = _add_bags if is_single else _add_product
    index = np.int32 if len(rows) <= np.iinfo(np.int32).max else np.int64
    columns = shared(entries.astype(index, copy=False))
    sums, first = [], 0
    while first < count:
        limit = pointers[first] + (MOST_ENTRIES if is_single else CHUNK_ENTRIES)
        # A long list comes alone, whatever its length.
        last = max(first + 1, int(np.searchsorted(pointers, limit, side="right")) - 1)
        part = slice(int(pointers[first]), int(pointers[last]))
        starts = torch.from_numpy((pointers[first : last + 1] - part.start).astype(index))
        factors = None if weights is None else shared(weights[part]).to(rows.dtype)
        sums.append(add(rows, starts, columns[part], factors))
        first = last
    # Sums that are whole already are not copied.
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def join_ways(first: int, arriving: Lists, leaving: Lists) -> Lists:
    """Join what arrives at some rows and what leaves them, in CSR form, without self-loops.

    An arc is then in two lists and moves two rows, by one message each (privacy page, section 1);
    one from a node to itself would move a single row by two, so it is left out.

    Args:
        first: the number of the first of these rows.
        arriving: pointers, entries and weights of the arcs that end at each row.
        leaving: of those that start there.

    >>> pointers, entries = np.array([0, 1, 3]), np.array([0, 0, 1])
    >>> join_ways(0, (pointers, entries, None), (np.array([0, 2, 3]), np.array([0, 1, 1]), None))[1]
    array([1, 0])
    """
    count = len(arriving[0]) - 1
    rows = np.concatenate(
        [np.repeat(np.arange(count), np.diff(pointers)) for pointers in (arriving[0], leaving[0])]
    )
    entries = np.concatenate([arriving[1], leaving[1]])
    order = np.lexsort((entries, rows))
    order = order[entries[order] != rows[order] + first]
    lengths = np.bincount(rows[order], minlength=count)
    pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = None
    if arriving[2] is not None and leaving[2] is not None:
        weights = np.concatenate([arriving[2], leaving[2]])[order]
    return pointers, entries[order], weights


def without_loops(first: int, lists: Lists) -> Lists:
    """Return the lists of some rows without the entries that name the row itself.

    Where everybody sends to oneself anyway, such an entry would write to the own row a second time,
    and a contribution of norm 1 would move it by sqrt(2) (privacy page, section 1).

    Args:
        first: the number of the first of these rows.
        lists: pointers, entries and weights of the arcs that end at each row.

    >>> without_loops(1, (np.array([0, 2, 3]), np.array([0, 1, 1]), None))[:2]
    (array([0, 1, 2]), array([0, 1]))
    """
    pointers, entries, weights = lists
    rows = np.repeat(np.arange(first, first + len(pointers) - 1), np.diff(pointers))
    kept = entries != rows
    before = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    return before[pointers], entries[kept], None if weights is None else weights[kept]


def check_weights(weights: Any) -> None:
    """Refuse weights that the noise is not scaled to: one message has norm at most 1.

    >>> check_weights(np.array([0.5, 2.0]))
    Traceback (most recent call last):
    ...
    gapgnn.errors.PrivacyError: `weights` must be between 0 and 1, which the noise is scaled to.
    """
    if len(weights) and not (weights.min() >= 0 and weights.max() <= 1):
        raise PrivacyError("`weights` must be between 0 and 1, which the noise is scaled to.")


@torch.no_grad()
def _add_bags(rows: Tensor, starts: Tensor, columns: Tensor, weights: Tensor | None) -> Tensor:
    return torch.nn.functional.embedding_bag(
        columns, rows, starts, mode="sum", include_last_offset=True, per_sample_weights=weights
    )


def _add_product(rows: Tensor, starts: Tensor, columns: Tensor, weights: Tensor | None) -> Tensor:
    values = torch.ones(len(columns), dtype=rows.dtype) if weights is None else weights
    return csr_tensor(starts, columns, values, (len(starts) - 1, len(rows))) @ rows


def shared(array: NDArray[Any]) -> Tensor:
    """Return a tensor over an array's own memory, to be read only.

    >>> shared(np.arange(3)).tolist()
    [0, 1, 2]
    """
    with warnings.catch_warnings():
        # torch warns that it cannot keep anybody from writing to a read-only array.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def add_exactly(rows: Tensor, pointers: NDArray[np.int64], entries: NDArray[Any]) -> Tensor:
    """Return the exact sums over lists in CSR form of rows on their grid.

    A coordinate is at most 2**14 steps in size, so float32 adds up :data:`EXACT_ENTRIES` of them
    without rounding, which reads half of what float64 would read and fetches rows ahead. Longer
    lists are cut into pieces of that length, and float64 adds up the sums of pieces: where there
    are any, all sums are in float64, elsewhere in float32.

    Args:
        rows: float32, on their grid, of norm at most 1.
        pointers: where each list begins and ends.
        entries: which rows each list adds up.

    >>> rows = quantise_rows(torch.eye(2)).float()
    >>> entries = np.zeros(2000, dtype=np.int32)
    >>> add_exactly(rows, np.array([0, 2, 2, 2000]), entries).tolist()
    [[2.0, 0.0], [0.0, 0.0], [1998.0, 0.0]]
    """
    pieces = np.maximum(1, -(-np.diff(pointers) // EXACT_ENTRIES))
    if len(pieces) == pieces.sum():
        return add_up(rows, pointers, entries)
    owners = np.repeat(np.arange(len(pieces)), pieces)
    numbers = np.arange(len(owners)) - (np.cumsum(pieces) - pieces)[owners]
    starts = pointers[owners] + EXACT_ENTRIES * numbers
    sums = add_up(rows, np.append(starts, pointers[-1]), entries)
    # Most lists have one piece: only the others are added to.
    first = torch.from_numpy(np.cumsum(pieces) - pieces)
    out = sums.index_select(0, first).double()
    more = np.flatnonzero(numbers)
    return out.index_add_(0, torch.from_numpy(owners[more]), sums[more].double())
