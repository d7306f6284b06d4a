"""Feature matrices on disk, as NumPy files that are written row by row and memory mapped.

A mapped row is loaded when it is used, and the system may drop it again: training reads only the
rows that it samples, and a matrix larger than the memory can still be multiplied.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.graph import Features, as_features
from gapgnn.graph.store.format import DENSE, SPARSE, explained, wrong_file

HEADER_BYTES = 128
COPY_ROWS = 1 << 14


class ArrayFile:
    """An NPY file whose number of rows is not known before the last one is written."""

    def __init__(self, path: Path, dtype: Any, columns: int | None = None) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._columns = columns
        self._rows = 0
        self._file: BinaryIO = path.open("wb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, rows: NDArray[Any]) -> None:
        """Write further rows."""
        np.ascontiguousarray(rows, dtype=self._dtype).tofile(self._file)
        self._rows += len(rows)

    def close(self) -> None:
        """Write the header, for which space was reserved."""
        shape = (self._rows,) if self._columns is None else (self._rows, self._columns)
        self._file.seek(0)
        # NumPy pads headers to multiples of 64 bytes, so every shape fits the reserved space.
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, description)
        assert self._file.tell() == HEADER_BYTES
        self._file.close()


class FeatureWriter:
    """Writes the features of a store, a block of rows after the other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with FeatureWriter(Path(folder), 3, sparse=True) as writer:
    ...         writer.append(sp.csr_array([[0.0, 2.0, 0.0]]))
    ...         writer.append(sp.csr_array([[1.0, 0.0, 0.0]]))
    ...     map_features(Path(folder), 2, 3, sparse=True).toarray().tolist()
    [[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, folder: Path, num_features: int, *, sparse: bool) -> None:
        self.files = SPARSE if sparse else (DENSE,)
        paths = [folder / name for name in self.files]
        self._entries = 0
        if sparse:
            types = (np.int64, np.int32, np.float32)
            self._arrays = [
                ArrayFile(path, dtype) for path, dtype in zip(paths, types, strict=True)
            ]
            self._arrays[0].append(np.zeros(1, dtype=np.int64))
        else:
            self._arrays = [ArrayFile(paths[0], np.float32, num_features)]

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for array in self._arrays:
            array.close()

    def append(self, block: Any) -> None:
        """Write further rows, in the canonical form of :class:`~gapgnn.graph.graph.Graph`."""
        rows = as_features(block)
        if isinstance(rows, np.ndarray):
            self._arrays[0].append(rows)
            return
        starts, indices, values = self._arrays
        starts.append(self._entries + rows.indptr[1:].astype(np.int64))
        indices.append(rows.indices)
        values.append(rows.data)
        self._entries += rows.nnz

    def append_all(self, features: Features) -> None:
        """Write all rows of a matrix."""
        for start in range(0, features.shape[0], COPY_ROWS):
            self.append(features[start : start + COPY_ROWS])


def map_features(folder: Path, num_nodes: int, num_features: int, *, sparse: bool) -> Features:
    """Return a store's features without reading them."""
    if not sparse:
        return _mapped(folder / DENSE, (num_nodes, num_features))
    indptr = _mapped(folder / SPARSE[0], (num_nodes + 1,))
    entries = int(indptr[-1])
    indices, values = (_mapped(folder / name, (entries,)) for name in SPARSE[1:])
    if entries <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    matrix = sp.csr_array((num_nodes, num_features), dtype=np.float32)
    # Assigned, because SciPy's constructor would copy mapped arrays and check every index.
    matrix.indptr, matrix.indices, matrix.data = indptr, indices, values
    matrix.has_canonical_format = True
    return matrix


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map one file; writing to the array would not change the file."""
    with explained(path):
        try:
            if 0 in shape:
                array: NDArray[Any] = np.load(path, allow_pickle=False)
            else:
                array = np.load(path, mmap_mode="c", allow_pickle=False)
        except ValueError:
            raise wrong_file(path) from None
    if array.shape != shape:
        raise wrong_file(path)
    return array
