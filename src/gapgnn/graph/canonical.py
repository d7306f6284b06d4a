"""The canonical form of each part of a graph: typed, read-only arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError, check_choice

if TYPE_CHECKING:
    from gapgnn.graph.graph import Graph
    from gapgnn.graph.tables import Schema

Features: TypeAlias = NDArray[np.float32] | sp.csr_array
NotFinite: TypeAlias = Literal["refuse", "zero"]
BLOCK_VALUES = 1 << 22
# Facts about the whole data that may be read from it where they are not declared.
INFERABLE = ("classes", "columns", "direction")


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only array: a writable one is copied, any other is returned as it is.

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


def as_features(features: Any, *, not_finite: NotFinite = "refuse") -> Features:
    """Return finite float32 features: contiguous dense, or canonical CSR without stored zeros.

    Args:
        features: array-like or SciPy sparse matrix.
        not_finite: what to do with a row that holds NaN or infinity: refuse the whole, or make it
            all 0, so that one person's record cannot stop a run at node level (privacy page,
            section 2).

    >>> as_features([[1.0, 2.0], [np.nan, 3.0]], not_finite="zero").tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    check_choice("not_finite", not_finite, ["refuse", "zero"])
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
    if _all_finite(result):
        return result
    if not_finite == "refuse":
        raise DataError("`features` must be finite. Got NaN or infinity.")
    return _without_broken_rows(result)


def _all_finite(features: Features) -> bool:
    values = features if isinstance(features, np.ndarray) else features.data.reshape(1, -1)
    rows = max(1, BLOCK_VALUES // max(1, values.shape[1]))
    return all(np.isfinite(values[i : i + rows]).all() for i in range(0, len(values), rows))


def _without_broken_rows(features: Features) -> Features:
    """Return a copy in which each row that is not finite is 0."""
    if isinstance(features, np.ndarray):
        whole = np.asarray(np.isfinite(features).all(axis=1, keepdims=True))
        return frozen(np.where(whole, features, np.float32(0)))
    owner = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    broken = np.zeros(features.shape[0], dtype=np.bool_)
    broken[owner[~np.isfinite(features.data)]] = True
    values = np.where(broken[owner], np.float32(0), features.data)
    return _canonical_csr(
        sp.csr_array((values, features.indices, features.indptr), shape=features.shape)
    )


def _canonical_csr(matrix: Any) -> sp.csr_array:
    """Return float32 CSR, sorted, without duplicates or stored zeros; unchanged if canonical."""
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
        edge_types = {type(name) for name in array.tolist()}
        if edge_types <= {str}:
            array = array.astype(np.str_)
        elif edge_types <= {int}:
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


def as_inferred(facts: Iterable[str]) -> tuple[str, ...]:
    """Return known facts, each once and sorted.

    >>> as_inferred(["direction", "classes", "classes"])
    ('classes', 'direction')
    """
    return tuple(sorted({check_choice("inferred", fact, INFERABLE) for fact in facts}))


def schema_of_note(note: Mapping[str, Any]) -> Schema | None:
    """Return the schema that a conversion stored as plain values, if there is one."""
    if note.get("schema") is None:
        return None
    from gapgnn.graph.tables import Schema

    return Schema.from_dict(note["schema"])


def note_of(graph: Graph) -> dict[str, Any]:
    """Return the attributes that a conversion stores beside nodes and arcs, as plain values."""
    note = {
        "name": graph.name,
        "inferred": list(graph.inferred),
        "population": graph.population,
        "label_names": graph.label_names,
        "feature_names": graph.feature_names,
        "schema": None if graph.schema is None else graph.schema.to_dict(),
        "preparation": None if graph.preparation is None else graph.preparation.to_dict(),
        "self_loops": "keep" if graph.num_self_loops else None,
        "weight_bounds": graph.weight_bounds if graph.is_weighted else None,
    }
    return {key: value for key, value in note.items() if value is not None}


def options_of_note(
    note: Mapping[str, Any], directed: bool | None, self_loops: str | None
) -> dict[str, Any]:
    """Return stored attributes as options of ``Graph.from_arcs``.

    A direction that the caller gives is declared, not inferred.
    """
    from gapgnn.graph.tables import Preparation

    facts = note.get("inferred")
    if facts is not None and directed is not None:
        facts = [fact for fact in facts if fact != "direction"]
    return {
        "label_names": note.get("label_names"),
        "feature_names": note.get("feature_names"),
        "self_loops": self_loops or note.get("self_loops", "drop"),
        "schema": schema_of_note(note),
        "inferred": facts,
        "population": note.get("population", "default"),
        "preparation": Preparation.from_dict(note.get("preparation")),
    }
