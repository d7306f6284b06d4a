"""One form for each part of a graph: what callers hand in becomes typed, read-only arrays here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError

Features: TypeAlias = NDArray[np.float32] | sp.csr_array
BLOCK_VALUES = 1 << 22


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Take an array that nobody can write to as it is, and copy any other.

    >>> values = np.zeros(2)
    >>> frozen(values) is values, frozen(frozen(values)).flags.writeable
    (False, False)
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            array = array.copy()
            array.flags.writeable = False
            return array
        owner = owner.base
    return array


def as_features(features: Any) -> Features:
    """Return finite float32 features: contiguous dense, or canonical CSR without stored zeros."""
    if not sp.issparse(features):
        try:
            features = np.asarray(features)
        except ValueError:
            raise DataError("`features` must have rows of equal length. Got ragged ones.") from None
    if features.ndim != 2:
        raise DataError(f"`features` must have two dimensions. Got {features.ndim}.")
    if features.dtype.kind not in "biufO":
        raise DataError(f"`features` must be numbers. Got {features.dtype}.")
    result: Features
    # A value too large for float32 becomes infinite, and is then reported as such.
    with np.errstate(over="ignore"):
        if sp.issparse(features):
            result = _canonical_csr(features)
        else:
            try:
                result = frozen(np.ascontiguousarray(features, dtype=np.float32))
            except (TypeError, ValueError):
                raise DataError(f"`features` must be numbers. Got {features.dtype}.") from None
    values = result if isinstance(result, np.ndarray) else result.data.reshape(1, -1)
    rows = max(1, BLOCK_VALUES // max(1, values.shape[1]))
    if not all(np.isfinite(values[i : i + rows]).all() for i in range(0, len(values), rows)):
        raise DataError("`features` must be finite. Got NaN or infinity.")
    return result


def _canonical_csr(matrix: Any) -> sp.csr_array:
    """Return float32 CSR, sorted, without duplicates or stored zeros; unchanged if it was so."""
    if isinstance(matrix, sp.csr_array) and matrix.dtype == np.float32:
        parts = (matrix.data, matrix.indices, matrix.indptr)
        fixed = not any(part.flags.writeable for part in parts)
        if fixed and matrix.has_canonical_format and (matrix.data != 0).all():
            return matrix
    matrix = sp.csr_array(matrix, dtype=np.float32, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


def as_labels(labels: ArrayLike) -> NDArray[np.int64]:
    """Return int64 class numbers, -1 where unknown."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise DataError(f"`labels` must be whole numbers, -1 for unknown. Got {array.dtype}.")
    return frozen(np.ascontiguousarray(array, dtype=np.int64))


def as_mask(key: str, mask: ArrayLike) -> NDArray[np.bool_]:
    """Return a boolean per node."""
    array = np.asarray(mask)
    if array.dtype != np.bool_:
        raise DataError(f"`{key}` must be boolean. Got {array.dtype}.")
    return frozen(np.ascontiguousarray(array))


def as_names(key: str, names: ArrayLike) -> NDArray[Any]:
    """Return outside names as int64, or as fixed-width strings.

    >>> as_names("ids", ["ann", "bob"]).tolist(), as_names("ids", [7, 9]).dtype.name
    (['ann', 'bob'], 'int64')
    """
    array = np.asarray(names)
    if array.dtype.kind == "O":
        kinds = {type(name) for name in array.tolist()}
        if kinds <= {str}:
            array = array.astype(np.str_)
        elif kinds <= {int}:
            array = np.asarray(array.tolist())
    if array.dtype.kind == "T":
        array = array.astype(np.str_)
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"`{key}` must fit 64-bit signed integers. Got {array.max()}.")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind != "U":
        raise DataError(f"`{key}` must be whole numbers or strings. Got {array.dtype}.")
    return frozen(np.ascontiguousarray(array))


def increases(values: NDArray[Any]) -> bool:
    """Say whether the values are sorted and unique, as the usual ids 0, 1, 2, ... are."""
    return bool((values[1:] > values[:-1]).all())


def as_dangling(
    dangling: Mapping[Any, ArrayLike] | None, num_nodes: int
) -> tuple[NDArray[np.int64] | None, NDArray[Any] | None]:
    """Turn ``{node position: outside names}`` into row pointers and names; None if empty."""
    counts = np.zeros(num_nodes, dtype=np.int64)
    lists = []
    for node in sorted(dangling or {}):
        if not isinstance(node, int | np.integer) or not 0 <= node < num_nodes:
            raise DataError(f"`dangling` must use node positions below {num_nodes}. Got {node!r}.")
        names = np.asarray((dangling or {})[node])
        if names.size:
            lists.append(np.unique(as_names("dangling", names)))
            counts[node] = len(lists[-1])
    if not lists:
        return None, None
    if len({names.dtype.kind for names in lists}) > 1:
        raise DataError("`dangling` must name all nodes by numbers or all by strings. Got both.")
    return np.concatenate([[0], np.cumsum(counts)]), np.concatenate(lists)
