"""Features from a file of their own: NPZ or NPY matrices, or JSON lists of active columns."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph import DAMAGE, Features, NotFinite, as_features
from gapgnn.graph.tables.sources import check_file

MOST_COLUMNS = np.iinfo(np.int32).max
_SPARSE_FORMATS = ("csr", "csc", "coo")


def has_stated_width(path: Path | str) -> bool:
    """Return whether a file states its number of columns, or its largest column decides.

    >>> has_stated_width("x.npz"), has_stated_width("x.json")
    (True, False)
    """
    return Path(path).suffix.lower() != ".json"


def read_features(
    path: Path | str, ids: NDArray[Any], *, not_finite: NotFinite = "refuse"
) -> Features:
    """Read a feature matrix with one row per node, in the order of ``ids``.

    ``.npz`` holds a SciPy sparse matrix or one two-dimensional array, ``.npy`` one array, both with
    the rows of the node table in its order. ``.json`` maps each node id to the columns in which it
    has a 1: ``{"ann": [0, 7], "bob": []}``. Nothing is ever unpickled. A row that holds NaN or
    infinity is refused, or made all 0 with ``not_finite="zero"``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "x.json").write_text('{"bob": [2], "ann": [0, 1]}')
    ...     read_features(Path(folder, "x.json"), np.array(["ann", "bob"])).toarray().tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    path = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".json": _read_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"`features` must be a {', '.join(readers)} file. Got {str(path)!r}.")
    check_file(path, what="features")
    try:
        matrix = reader(path, ids)
    except DataError:
        raise
    except DAMAGE as error:
        suffix = path.suffix.lower().lstrip(".").upper()
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"`features` must be a whole, undamaged {suffix} file. Got {str(path)!r}: {reason}"
        ) from None
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise DataError(f"`features` must be a matrix with columns. Got shape {matrix.shape}.")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"`features` must be numbers. Got {matrix.dtype} in {str(path)!r}.")
    if matrix.shape[0] != len(ids):
        raise DataError(
            f"`features` must have one row per node ({len(ids)}). Got {matrix.shape[0]} in "
            f"{str(path)!r}."
        )
    return as_features(matrix, not_finite="zero") if not_finite == "zero" else _finite(matrix, path)


def _finite(matrix: Any, path: Path) -> Features:
    with np.errstate(over="ignore"):
        if sp.issparse(matrix):
            matrix = sp.csr_array(matrix, dtype=np.float32)
            values = matrix.data
        else:
            matrix = values = np.asarray(matrix, dtype=np.float32)
    bad = int(values.size - np.isfinite(values).sum())
    if bad:
        raise DataError(f"`features` must be finite. Got {bad} NaN or infinite in {str(path)!r}.")
    result: Features = matrix
    return result


def _read_npy(path: Path, ids: NDArray[Any]) -> Any:
    with path.open("rb") as raw:
        return np.load(raw, allow_pickle=False)


def _read_npz(path: Path, ids: NDArray[Any]) -> Any:
    with path.open("rb") as raw:
        archive = np.load(raw, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            return archive
        if "format" not in archive.files:
            if len(archive.files) != 1:
                raise DataError(
                    f"`features` must hold one matrix. Got {len(archive.files)} arrays in "
                    f"{str(path)!r}."
                )
            return archive[archive.files[0]]
        raw.seek(0)
        matrix = sp.load_npz(raw)
    if matrix.format not in _SPARSE_FORMATS:
        raise DataError(
            f"`features` must be sparse as {', '.join(_SPARSE_FORMATS)}. Got {matrix.format!r}."
        )
    if matrix.format != "coo":
        # Indices outside the matrix would read foreign memory later on; COO checks its own.
        matrix.check_format(full_check=True)
    return matrix.tocsr()


def _read_json(path: Path, ids: NDArray[Any]) -> sp.csr_array:
    try:
        lists = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError:
        raise DataError(
            f"`features` must be UTF-8 text. Got other bytes in {str(path)!r}; "
            "save the file as UTF-8."
        ) from None
    if not isinstance(lists, dict) or not all(isinstance(row, list) for row in lists.values()):
        raise DataError(
            f'`features` must map ids to lists, as {{"id": [0, 7]}}. Got something else in '
            f"{str(path)!r}."
        )
    # JSON keys are always strings, so whole-number ids are compared by how they are written.
    wanted = ids.astype(str).tolist()
    absent = [name for name in wanted if name not in lists]
    if absent:
        raise DataError(
            f"`features` must have an entry for each node. Got none for {len(absent)} ids in "
            f"{str(path)!r}, the first {absent[0]!r}; an empty list is an entry."
        )
    if len(lists) > len(wanted):
        unknown = lists.keys() - set(wanted)
        first = next(name for name in lists if name in unknown)
        raise DataError(
            f"`features` must name ids of the node table. Got {len(unknown)} unknown in "
            f"{str(path)!r}, the first {first!r}."
        )
    rows = [lists[name] for name in wanted]
    flat = list(chain.from_iterable(rows))
    for value in flat if set(map(type, flat)) - {int} else ():
        if type(value) is not int:
            raise DataError(f"`features` must list whole column numbers. Got {value!r}.")
    if not flat:
        raise DataError(f"`features` must name some columns. Got empty lists in {str(path)!r}.")
    if min(flat) < 0 or max(flat) >= MOST_COLUMNS:
        bad = min(flat) if min(flat) < 0 else max(flat)
        raise DataError(
            f"`features` must list column numbers between 0 and {MOST_COLUMNS - 1}. Got {bad}."
        )
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    ones = np.ones(len(flat), dtype=np.float32)
    shape = (len(rows), max(flat) + 1)
    matrix = sp.csr_array((ones, np.array(flat, dtype=np.int32), indptr), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise DataError(f"`features` must name each id once. Got {twice!r} twice.")
    return entries
