"""Sparse feature rows for training, shared by all replicas, times each replica's own weights.

One-hot features stay sparse. A full batch is one CSR matrix times all replicas' weights side by
side, so the features are read once; batches that differ between replicas are one block-diagonal CSR
matrix.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError
from gapgnn.nn.batch_rows import BatchRows, sparse_product

NORM_ROWS = 1 << 16


class SparseRows:
    """CSR float32 features of N rows, on one device.

    >>> rows = SparseRows.from_scipy(sp.csr_array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
    >>> rows.shape, rows.squared_norms().tolist()
    ((2, 3), [5.0, 0.0])
    >>> rows.matmul(torch.ones(4, 3, 2)).shape
    torch.Size([4, 2, 2])
    >>> rows.select(torch.tensor([[0, 1], [1, 1]])).squared_norms().tolist()
    [[5.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        matrix: sp.csr_array,
        *,
        device: str | torch.device = "cpu",
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        self._scipy = matrix
        self._counts = counts
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.device = torch.device(device)
        self._csr = _torch_csr(matrix, self.device)
        self._transposed: Tensor | None = None
        self._one = torch.ones(0, device=self.device)
        self._moments: tuple[Tensor, Tensor] | None = None
        # Rows of a store lie on disk, and a table of all of them would bring them into memory.
        self._padded = None if isinstance(matrix.data, np.memmap) else self._padded_table()
        self._squares = torch.from_numpy(_squared_norms(matrix)).to(self.device)

    @classmethod
    def from_scipy(cls, matrix: Any, *, device: str | torch.device = "cpu") -> SparseRows:
        """Make rows from any SciPy sparse matrix or array."""
        if not sp.issparse(matrix):
            raise InputError(
                f"`matrix` must be a SciPy sparse matrix. Got {type(matrix).__name__}."
            )
        return cls(sp.csr_array(matrix, dtype=np.float32), device=device)

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(N,)``, in float64."""
        return self._squares

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean ``(1, 1, in)`` and covariance ``(1, in, in)`` of the rows, computed once."""
        if self._moments is None:
            rows = self._scipy.astype(np.float64)
            counts = np.ones(self.shape[0]) if self._counts is None else self._counts
            weighted = sp.csr_array(rows.T).multiply(counts / counts.sum()).tocsr()
            mean = weighted.sum(axis=1).reshape(1, -1)
            squares = (weighted @ rows).toarray() - mean.T @ mean
            found = (torch.from_numpy(part).float().to(self.device) for part in (mean, squares))
            first, second = (part.unsqueeze(0) for part in found)
            self._moments = first, second
        return self._moments

    def counts(self) -> Tensor | None:
        """Return how often each row counts, ``(N,)``; None if each counts once."""
        return None if self._counts is None else torch.from_numpy(self._counts).to(self.device)

    def distinct(self) -> tuple[SparseRows, Tensor] | None:
        """Return rows of which no two are equal, with their counts, and which one each row is.

        None if that would not save a fifth of the rows. People who left the same fields empty or
        gave the same answers are alike: on the Facebook schools half of the rows are distinct.

        >>> rows = SparseRows.from_scipy(sp.csr_array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
        >>> rows.distinct()[1].tolist(), rows.distinct()[0].counts().tolist()
        ([1, 0, 1], [1, 2])
        """
        rng = np.random.default_rng(0)
        # Equal rows have equal images; that different rows do not is checked below.
        images = self._scipy @ rng.random(self.shape[1])
        _, firsts, index, counts = np.unique(
            images, return_index=True, return_inverse=True, return_counts=True
        )
        if len(firsts) > 0.8 * self.shape[0]:
            return None
        kept = self._scipy[firsts]
        if (kept[index] != self._scipy).nnz:
            return None
        return SparseRows(kept, device=self.device, counts=counts), torch.from_numpy(index)

    def take(self, positions: Tensor) -> SparseRows:
        """Return some rows, the same ones for all replicas."""
        return SparseRows(self._scipy[positions.cpu().numpy()], device=self.device)

    def select(self, positions: Tensor) -> BatchRows:
        """Return each replica's own rows, for positions ``(R, B)``."""
        replicas, count = positions.shape
        flat = positions.reshape(-1)
        block = self.shape[1]
        if self._padded is not None:
            table, all_values = self._padded
            columns = table.index_select(0, flat)
            width = columns.shape[1]
            if all_values is None:
                block += 1
                values = self._ones(columns.numel())
            else:
                values = all_values.index_select(0, flat)
            if replicas > 1:
                columns.view(replicas, -1).add_(self._owners(replicas, block).unsqueeze(-1))
            pointers = torch.arange(
                0, replicas * count * width + 1, width, dtype=torch.int32, device=self.device
            )
        else:
            pointers = self._csr.crow_indices()
            starts = pointers[flat].long()
            counts = pointers[flat + 1].long() - starts
            ends = counts.cumsum(0)
            source = torch.repeat_interleave(starts - ends + counts, counts)
            source += torch.arange(source.numel(), device=self.device)
            offsets = torch.repeat_interleave(
                self._owners(replicas, block).repeat_interleave(count), counts
            )
            columns = self._csr.col_indices()[source] + offsets
            values = self._csr.values()[source]
            pointers = torch.nn.functional.pad(ends, (1, 0)).int()
        shape = (replicas, count, self.shape[1])
        return BatchRows(pointers, columns.view(-1), values.view(-1), shape, block, self, flat)

    def _owners(self, replicas: int, block: int) -> Tensor:
        """Return the first column of each replica's block."""
        return torch.arange(replicas, dtype=torch.int32, device=self.device) * block

    def _ones(self, count: int) -> Tensor:
        """Return ones, to be read only."""
        if len(self._one) < count:
            self._one = torch.ones(2 * count, device=self.device)
        return self._one[:count]

    def matmul(self, weight: Tensor) -> Tensor:
        """Return ``rows @ weight`` for each replica: ``(R, in, out)`` to ``(R, N, out)``."""
        return sparse_product(self, weight)

    def product(self, weight: Tensor) -> Tensor:
        """As :meth:`matmul`, without a gradient."""
        replicas, width, out = weight.shape
        beside = weight.permute(1, 0, 2).reshape(width, replicas * out)
        return (self._csr @ beside).view(-1, replicas, out).permute(1, 0, 2)

    def times(self, weight: Tensor) -> Tensor:
        """Return ``rows @ weight`` for one replica: ``(in, out)`` to ``(N, out)``."""
        return self._csr @ weight

    def transposed_times(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` for one replica: ``(N, out)`` to ``(in, out)``."""
        if self._transposed is None:
            self._transposed = _torch_csr(sp.csr_array(self._scipy.T), self.device)
        return self._transposed.to(delta.dtype) @ delta

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` for each replica: ``(R, N, out)`` to ``(R, in, out)``."""
        replicas, count, out = delta.shape
        product = self.transposed_times(delta.permute(1, 0, 2).reshape(count, replicas * out))
        return product.view(-1, replicas, out).permute(1, 0, 2)

    def _padded_table(self) -> tuple[Tensor, Tensor | None] | None:
        """Return columns and values as ``(N, width)``, if padding at most doubles them.

        Selecting rows of one-hot features is then a single gather. Padding is a zero in column 0,
        which changes no product. Where all values are one, on a CPU, there are no values: padding
        is a one in a spare column after the last, which products leave out.
        """
        counts = np.diff(self._scipy.indptr)
        width = max(1, int(counts.max(initial=0)))
        if width * self.shape[0] > 2 * self._scipy.nnz:
            return None
        has_spare = self.device.type == "cpu" and bool((self._scipy.data == 1).all())
        padding = self.shape[1] if has_spare else 0
        columns = np.full((self.shape[0], width), padding, dtype=np.int32)
        filled = np.arange(width) < counts[:, None]
        columns[filled] = self._scipy.indices
        if has_spare:
            return torch.from_numpy(columns), None
        values = np.zeros((self.shape[0], width), dtype=np.float32)
        values[filled] = self._scipy.data
        return torch.from_numpy(columns).to(self.device), torch.from_numpy(values).to(self.device)


def take_rows(rows: Tensor | SparseRows, positions: Tensor) -> Tensor | BatchRows:
    """Return each replica's batch, for positions ``(R, B)``.

    ``rows`` is shared, ``(N, in)`` dense or sparse, or each replica's own, ``(R, N, in)``.

    >>> take_rows(torch.eye(3), torch.tensor([[0, 2], [1, 1]])).shape
    torch.Size([2, 2, 3])
    """
    if isinstance(rows, SparseRows):
        return rows.select(positions)
    if rows.ndim == 2:
        return rows[positions]
    replica = torch.arange(rows.shape[0], device=rows.device).unsqueeze(-1)
    return rows[replica, positions]


def _squared_norms(matrix: sp.csr_array) -> NDArray[np.float64]:
    """Return the squared norm of every row, without a second matrix of the same size.

    In float64: squares of float32 numbers overflow and underflow, and a norm that is too small lets
    an example of DP-SGD over its clip (privacy page, section 4).
    """
    squares = np.empty(matrix.shape[0], dtype=np.float64)
    for start in range(0, len(squares), NORM_ROWS):
        rows = matrix[start : start + NORM_ROWS].astype(np.float64)
        squares[start : start + NORM_ROWS] = rows.multiply(rows).sum(axis=1)
    return squares


def _as_tensor(array: NDArray[Any], dtype: type) -> Tensor:
    """Copy an array, which may be read-only, to torch; one that is mapped from a file is shared."""
    is_mapped = isinstance(array, np.memmap) and array.dtype == dtype
    return torch.from_numpy(array if is_mapped else array.astype(dtype))


def _torch_csr(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """Copy a SciPy CSR array to torch, with int32 indices: half the memory traffic of int64."""
    with warnings.catch_warnings():
        # torch calls its CSR layout a beta state, once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        csr = torch.sparse_csr_tensor(
            _as_tensor(matrix.indptr, np.int32),
            _as_tensor(matrix.indices, np.int32),
            _as_tensor(matrix.data, np.float32),
            size=matrix.shape,
            check_invariants=False,
        )
    return csr.to(device)
