"""Adjacency as two arrays: building it from arcs, and the few operations the rest needs.

A structure is the pair ``(indptr, indices)``: ``indices[indptr[u]:indptr[u + 1]]`` is the adjacency
list of node ``u``, sorted and without duplicates. Weights, where there are some, are a third array
beside ``indices``. Everything here works on int32 indices, one bool per arc, or blocks of rows, so
that 81 million arcs stay within 4 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError

INT32_MAX = np.iinfo(np.int32).max
BLOCK = 1 << 22
Structure = tuple[NDArray[np.int64], NDArray[Any]]


def build(
    sources: ArrayLike,
    targets: ArrayLike,
    num_nodes: int,
    *,
    symmetric: bool,
    keep_loops: bool = False,
) -> Structure:
    """Sort arcs into adjacency lists without duplicates; with ``symmetric``, add reverse arcs.

    >>> indptr, indices = build([0, 1, 1], [1, 2, 1], 3, symmetric=True)
    >>> indptr.tolist(), indices.tolist()
    ([0, 1, 3, 4], [1, 0, 2, 1])
    """
    row = _positions("sources", sources, num_nodes)
    col = _positions("targets", targets, num_nodes)
    if len(row) != len(col):
        raise DataError(
            f"`sources` and `targets` must be equally long. Got {len(row)} and {len(col)}."
        )
    if not keep_loops:
        proper = row != col
        if not proper.all():
            row, col = row[proper], col[proper]
        del proper
    coo = sp.coo_array((np.ones(len(row), np.bool_), (row, col)), shape=(num_nodes, num_nodes))
    del row, col
    # Claims "no duplicates", so that SciPy skips a slow sort of each row: transposing twice below
    # sorts in linear time, and duplicates are removed in between.
    coo.has_canonical_format = True
    scattered = coo.tocsr()
    del coo
    reverse = scattered.T.tocsr()
    del scattered
    reverse.sum_duplicates()
    matrix = reverse.T.tocsr()
    if symmetric and not _same(matrix, reverse):
        matrix = matrix + reverse
    del reverse
    return _structure(matrix, num_nodes)


def build_weighted(
    sources: ArrayLike,
    targets: ArrayLike,
    units: NDArray[np.int64],
    num_nodes: int,
    *,
    symmetric: bool,
    finish: Callable[[NDArray[np.int64]], NDArray[Any]],
    keep_loops: bool = False,
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Sort arcs into adjacency lists, adding up the weights of repeated arcs.

    Args:
        sources: position of each arc's source.
        targets: position of each arc's target.
        units: the weight of each arc, an integer.
        num_nodes: number of nodes.
        symmetric: add missing reverse arcs; both directions then get the larger weight, so that an
            edge may be given once or, as in a symmetric matrix, twice.
        finish: turns the sum of an arc into its weight, an integer of at least 0.
        keep_loops: keep arcs from a node to itself.

    >>> build_weighted([0, 0], [1, 1], np.array([2, 3]), 2, symmetric=True, finish=lambda n: n)
    (array([0, 1, 2]), array([1, 0], dtype=int32), array([5, 5]))
    """
    row = _positions("sources", sources, num_nodes)
    col = _positions("targets", targets, num_nodes)
    if not len(row) == len(col) == len(units):
        raise DataError(
            "`sources`, `targets` and `weights` must be equally long. "
            f"Got {len(row)}, {len(col)} and {len(units)}."
        )
    if not keep_loops:
        proper = row != col
        row, col, units = row[proper], col[proper], units[proper]
    matrix = sp.coo_array((units, (row, col)), shape=(num_nodes, num_nodes)).tocsr()
    matrix.sum_duplicates()
    # One more than the weight: SciPy would drop an arc whose value is 0.
    matrix.data = finish(matrix.data).astype(np.int64) + 1
    if symmetric:
        matrix = matrix.maximum(matrix.T.tocsr())
        matrix.sum_duplicates()
    return *_structure(matrix, num_nodes), matrix.data - 1


def _positions(key: str, values: ArrayLike, num_nodes: int) -> NDArray[Any]:
    """Return node positions in the narrowest index type that fits, or refuse them."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"`{key}` must be a list of node positions. Got {array.ndim} dimensions of "
            f"{array.dtype}."
        )
    if array.size and (array.min() < 0 or array.max() >= num_nodes):
        bad = array.min() if array.min() < 0 else array.max()
        raise DataError(f"`{key}` must be between 0 and {num_nodes - 1}. Got {bad}.")
    return array.astype(_index_dtype(num_nodes), copy=False)


def _index_dtype(num_nodes: int) -> type[np.signedinteger[Any]]:
    return np.int32 if num_nodes <= INT32_MAX else np.int64


def _structure(matrix: sp.csr_array, num_nodes: int) -> Structure:
    """Take the two index arrays out of a canonical matrix, exactly sized and read-only."""
    indptr = matrix.indptr.astype(np.int64)
    indices = matrix.indices.astype(_index_dtype(num_nodes), copy=False)
    if indices.base is not None:
        indices = indices.copy()
    indptr.flags.writeable = False
    indices.flags.writeable = False
    return indptr, indices


def matrix(
    indptr: NDArray[np.int64], indices: NDArray[Any], *, dtype: Any = np.bool_
) -> sp.csr_array:
    """Return the structure as SciPy CSR of ones; the indices are shared, not copied.

    >>> matrix(np.array([0, 1, 1]), np.array([1], dtype=np.int32)).toarray().tolist()
    [[False, True], [False, False]]
    """
    num_nodes = len(indptr) - 1
    if indices.dtype == np.int32 and len(indices) <= INT32_MAX:
        indptr = indptr.astype(np.int32)
    ones = np.ones(len(indices), dtype=dtype)
    result = sp.csr_array((ones, indices, indptr), shape=(num_nodes, num_nodes))
    result.has_canonical_format = True
    return result


def is_symmetric(
    indptr: NDArray[np.int64], indices: NDArray[Any], weights: NDArray[Any] | None = None
) -> bool:
    """Return whether every arc has its reverse and, where there are weights, of the same weight.

    >>> is_symmetric(np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32))
    True
    """
    forward = matrix(indptr, indices, dtype=np.bool_ if weights is None else np.float32)
    if weights is not None:
        forward.data = weights
    reverse = forward.T.tocsr()
    return _same(forward, reverse) and np.array_equal(forward.data, reverse.data)


def _same(first: sp.csr_array, second: sp.csr_array) -> bool:
    return np.array_equal(first.indptr, second.indptr) and np.array_equal(
        first.indices, second.indices
    )


def check(indptr: NDArray[Any], indices: NDArray[Any]) -> None:
    """Refuse arrays that are not a structure, for adjacency that :func:`build` did not make."""
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or len(indptr) < 2 or indptr[0] != 0:
        raise DataError("`indptr` must be a list of row starts from 0. Got something else.")
    if (np.diff(indptr) < 0).any() or indptr[-1] != len(indices):
        raise DataError(
            f"`indptr` must rise from 0 to {len(indices)}. Got {indptr[-1]} at the end."
        )
    _positions("indices", indices, len(indptr) - 1)
    if not rows_increase(indptr, indices):
        raise DataError(
            "`indices` must be sorted and unique in each adjacency list. Got another order."
        )


def rows_increase(indptr: NDArray[Any], values: NDArray[Any]) -> bool:
    """Return whether the values of each row are sorted and unique.

    >>> rows_increase(np.array([0, 2, 3]), np.array([4, 7, 1]))
    True
    """
    rises = values[1:] > values[:-1]
    starts = indptr[(indptr > 0) & (indptr < len(values))]
    rises[starts - 1] = True
    return bool(rises.all())


def row_blocks(indptr: NDArray[np.int64], size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Cut the rows into consecutive ranges of about ``size`` arcs each.

    >>> list(row_blocks(np.array([0, 2, 4, 9]), size=4))
    [(0, 2), (2, 3)]
    """
    first, end = 0, len(indptr) - 1
    while first < end:
        last = int(np.searchsorted(indptr, indptr[first] + size, side="right")) - 1
        last = min(max(last, first + 1), end)
        yield first, last
        first = last


def sources(indptr: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
    """Return the source of every arc, in the order of ``indices``.

    >>> sources(np.array([0, 2, 3]), np.int32).tolist()
    [0, 0, 1]
    """
    return np.repeat(np.arange(len(indptr) - 1, dtype=dtype), np.diff(indptr))


def count_loops(indptr: NDArray[np.int64], indices: NDArray[Any]) -> int:
    """Count the arcs from a node to itself.

    >>> count_loops(np.array([0, 2, 2]), np.array([0, 1], dtype=np.int32))
    1
    """
    count = 0
    for first, last in row_blocks(indptr):
        owners = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
        count += int((owners == indices[indptr[first] : indptr[last]]).sum())
    return count


def select(indptr: NDArray[np.int64], indices: NDArray[Any], keep: NDArray[np.bool_]) -> Structure:
    """Return the structure induced by the nodes to keep, renumbered in their order.

    >>> indptr, indices = np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32)
    >>> [part.tolist() for part in select(indptr, indices, np.array([False, True, True]))]
    [[0, 1, 2], [1, 0]]
    """
    position = (np.cumsum(keep) - 1).astype(indices.dtype)
    counts = np.zeros(len(keep), dtype=np.int64)
    kept = [indices[:0]]
    for first, last in row_blocks(indptr):
        starts = indptr[first : last + 1]
        targets = indices[starts[0] : starts[-1]]
        alive = keep[targets] & np.repeat(keep[first:last], np.diff(starts))
        before = np.concatenate([[0], np.cumsum(alive)])
        counts[first:last] = np.diff(before[starts - starts[0]])
        kept.append(position[targets[alive]])
    return np.concatenate([[0], np.cumsum(counts[keep])]), np.concatenate(kept)


def between(
    indptr: NDArray[np.int64], indices: NDArray[Any], keep: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which arcs :func:`select` keeps: those between nodes that are kept.

    >>> indptr, indices = np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32)
    >>> between(indptr, indices, np.array([False, True, True])).tolist()
    [False, False, True, True]
    """
    kept: NDArray[np.bool_] = keep[indices] & np.repeat(keep, np.diff(indptr))
    return kept


def permute(
    indptr: NDArray[np.int64], indices: NDArray[Any], order: NDArray[np.int64]
) -> Structure:
    """Return the same arcs with the nodes listed in another order.

    >>> indptr, indices = permute(np.array([0, 1, 1]), np.array([1], np.int32), np.array([1, 0]))
    >>> indptr.tolist(), indices.tolist()
    ([0, 0, 1], [0])
    """
    position = np.empty(len(order), dtype=indices.dtype)
    position[order] = np.arange(len(order), dtype=indices.dtype)
    moved = np.repeat(position, np.diff(indptr))
    return build(moved, position[indices], len(order), symmetric=False, keep_loops=True)


def permute_weights(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    weights: NDArray[Any],
    order: NDArray[np.int64],
) -> NDArray[Any]:
    """Return the weights of the arcs in the order in which :func:`permute` puts them.

    >>> places = np.array([0, 1, 2]), np.array([1, 0], np.int32)
    >>> permute_weights(*places, np.array([7, 8]), np.array([1, 0])).tolist()
    [8, 7]
    """
    position = np.empty(len(order), dtype=indices.dtype)
    position[order] = np.arange(len(order), dtype=indices.dtype)
    moved = np.repeat(position, np.diff(indptr))
    return weights[np.lexsort((position[indices], moved))]
