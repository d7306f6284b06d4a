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
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from gapgnn.errors import InputError

# On a GPU a batch of up to this many entries (256 MiB) becomes dense, for one batched product.
DENSE_ENTRIES = 1 << 26


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

    def __init__(self, matrix: sp.csr_array, *, device: str | torch.device = "cpu") -> None:
        self._scipy = matrix
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.device = torch.device(device)
        self._csr = _torch_csr(matrix, self.device)
        self._transposed: Tensor | None = None
        self._padded = self._padded_table()
        squares = matrix.multiply(matrix).sum(axis=1, dtype=np.float64)
        self._squares = torch.from_numpy(squares.astype(np.float32)).to(self.device)

    @classmethod
    def from_scipy(cls, matrix: Any, *, device: str | torch.device = "cpu") -> SparseRows:
        """Make rows from any SciPy sparse matrix or array."""
        if not sp.issparse(matrix):
            raise InputError(
                f"`matrix` must be a SciPy sparse matrix. Got {type(matrix).__name__}."
            )
        return cls(sp.csr_array(matrix, dtype=np.float32), device=device)

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(N,)``."""
        return self._squares

    def take(self, positions: Tensor) -> SparseRows:
        """Return some rows, the same ones for all replicas."""
        return SparseRows(self._scipy[positions.cpu().numpy()], device=self.device)

    def select(self, positions: Tensor) -> BatchRows:
        """Return each replica's own rows, for positions ``(R, B)``."""
        replicas, count = positions.shape
        flat = positions.reshape(-1)
        if self._padded is not None:
            columns, values = (table.index_select(0, flat) for table in self._padded)
            width = columns.shape[1]
            if replicas > 1:
                columns.view(replicas, -1).add_(self._owners(replicas).unsqueeze(-1))
            pointers = torch.arange(
                0, replicas * count * width + 1, width, dtype=torch.int32, device=self.device
            )
        else:
            starts = self._csr.crow_indices().long()
            counts = (starts[1:] - starts[:-1])[flat]
            ends = counts.cumsum(0)
            source = torch.repeat_interleave(starts[flat] - ends + counts, counts)
            source += torch.arange(source.numel(), device=self.device)
            offsets = torch.repeat_interleave(
                self._owners(replicas).repeat_interleave(count), counts
            )
            columns = self._csr.col_indices()[source] + offsets
            values = self._csr.values()[source]
            pointers = torch.nn.functional.pad(ends, (1, 0)).int()
        shape = (replicas, count, self.shape[1])
        return BatchRows(pointers, columns.view(-1), values.view(-1), shape, self, flat)

    def _owners(self, replicas: int) -> Tensor:
        """Return the first column of each replica's block."""
        return torch.arange(replicas, dtype=torch.int32, device=self.device) * self.shape[1]

    def matmul(self, weight: Tensor) -> Tensor:
        """Return ``rows @ weight`` for each replica: ``(R, in, out)`` to ``(R, N, out)``."""
        product: Tensor = _SparseProduct.apply(weight, self)  # type: ignore[no-untyped-call]
        return product

    def product(self, weight: Tensor) -> Tensor:
        """As :meth:`matmul`, without a gradient."""
        replicas, width, out = weight.shape
        beside = weight.permute(1, 0, 2).reshape(width, replicas * out)
        return (self._csr @ beside).view(-1, replicas, out).permute(1, 0, 2)

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` for each replica: ``(R, N, out)`` to ``(R, in, out)``."""
        if self._transposed is None:
            self._transposed = _torch_csr(sp.csr_array(self._scipy.T), self.device)
        replicas, count, out = delta.shape
        beside = delta.permute(1, 0, 2).reshape(count, replicas * out)
        product = self._transposed.to(delta.dtype) @ beside
        return product.view(-1, replicas, out).permute(1, 0, 2)

    def _padded_table(self) -> tuple[Tensor, Tensor] | None:
        """Return columns and values as ``(N, width)``, if padding at most doubles them.

        Selecting rows of one-hot features is then a single gather. Padding is a zero in column 0,
        which changes no product.
        """
        counts = np.diff(self._scipy.indptr)
        width = max(1, int(counts.max(initial=0)))
        if width * self.shape[0] > 2 * self._scipy.nnz:
            return None
        columns = np.zeros((self.shape[0], width), dtype=np.int32)
        values = np.zeros((self.shape[0], width), dtype=np.float32)
        filled = np.arange(width) < counts[:, None]
        columns[filled] = self._scipy.indices
        values[filled] = self._scipy.data
        return torch.from_numpy(columns).to(self.device), torch.from_numpy(values).to(self.device)


class BatchRows:
    """The rows of one batch, which may be different ones for every replica.

    On a CPU the forward product is torch's, of block-diagonal CSR, and the transposed one SciPy's.
    For 256 rows of 7 ones in 349 columns and 16 outputs they take 7 and 40 microseconds on one
    core, with ten replicas 40 and 90; dense rows take 57 and 38, with ten replicas 530 and 380, and
    torch's transposed CSR product 120 and 1200. On a GPU a batch of moderate size is dense
    (not measured yet).
    """

    def __init__(
        self,
        pointers: Tensor,
        columns: Tensor,
        values: Tensor,
        shape: tuple[int, int, int],
        rows: SparseRows,
        positions: Tensor,
    ) -> None:
        self.shape = shape
        self._pointers, self._columns, self._values = pointers, columns, values
        self._rows, self._positions = rows, positions
        self._is_dense = values.is_cuda and shape[0] * shape[1] * shape[2] <= DENSE_ENTRIES
        self._dense: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(R, B)``."""
        return self._rows.squared_norms().index_select(0, self._positions).view(self.shape[:2])

    def matmul(self, weight: Tensor) -> Tensor:
        """Return ``rows @ weight`` for each replica: ``(R, in, out)`` to ``(R, B, out)``."""
        product: Tensor = _SparseProduct.apply(weight, self)  # type: ignore[no-untyped-call]
        return product

    def product(self, weight: Tensor) -> Tensor:
        """As :meth:`matmul`, without a gradient."""
        replicas, count, width = self.shape
        if self._is_dense:
            return self.dense() @ weight
        matrix = torch.sparse_csr_tensor(
            self._pointers,
            self._columns,
            self._values,
            size=(replicas * count, replicas * width),
            check_invariants=False,
        )
        out = weight.shape[2]
        return (matrix @ weight.reshape(replicas * width, out)).view(replicas, count, out)

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` for each replica: ``(R, B, out)`` to ``(R, in, out)``."""
        replicas, count, width = self.shape
        if self._is_dense:
            return self.dense().to(delta.dtype).transpose(1, 2) @ delta
        if delta.is_cuda:
            terms = self._values.to(delta.dtype).unsqueeze(-1) * delta.flatten(0, 1)[self._row_of()]
            total = delta.new_zeros(replicas * width, delta.shape[2])
            return total.index_add_(0, self._columns.long(), terms).view(replicas, width, -1)
        parts = (self._values.numpy(), self._columns.numpy(), self._pointers.numpy())
        matrix = sp.csc_array(parts, shape=(replicas * width, replicas * count))
        product = matrix @ delta.detach().reshape(replicas * count, delta.shape[2]).numpy()
        return torch.from_numpy(product).view(replicas, width, -1)

    def owned_products(self, replica: int, delta: Tensor, owners: Tensor, count: int) -> Tensor:
        """Return ``rows^T delta`` of one replica for each owner: ``(count, in, out)``.

        ``owners`` says which of the ``count`` owners a row belongs to; ``count`` is nobody.
        """
        _, rows, width = self.shape
        pointers = self._pointers[replica * rows : (replica + 1) * rows + 1].long()
        part = slice(int(pointers[0]), int(pointers[-1]))
        lengths = pointers.diff()
        starts = torch.repeat_interleave(owners * width, lengths)
        places = starts + self._columns[part] - replica * width
        values = self._values[part].to(delta.dtype)
        if delta.is_cuda:
            terms = values.unsqueeze(-1) * torch.repeat_interleave(delta, lengths, dim=0)
            total = delta.new_zeros((count + 1) * width, delta.shape[1])
            total.index_add_(0, places, terms)
        else:
            parts = (values.numpy(), places.numpy(), (pointers - pointers[0]).numpy())
            matrix = sp.csc_array(parts, shape=((count + 1) * width, rows))
            total = torch.from_numpy(matrix @ delta.numpy())
        return total.view(count + 1, width, -1)[:-1]

    def dense(self) -> Tensor:
        """Return the batch as a dense ``(R, B, in)`` tensor."""
        if self._dense is None:
            _, _, width = self.shape
            places = self._row_of() * width + self._columns % width
            flat = torch.zeros(self.shape, device=self._values.device).view(-1)
            self._dense = flat.index_add_(0, places, self._values).view(self.shape)
        return self._dense

    def _row_of(self) -> Tensor:
        """Return the row, counted over all replicas, that each entry belongs to."""
        counts = (self._pointers[1:] - self._pointers[:-1]).long()
        rows = torch.arange(counts.numel(), device=counts.device)
        return torch.repeat_interleave(rows, counts, output_size=self._columns.numel())


class _SparseProduct(torch.autograd.Function):
    """``rows @ weight``; the rows are data and have no gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, rows: SparseRows | BatchRows) -> Tensor:
        ctx.rows = rows  # type: ignore[attr-defined]
        return rows.product(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.transposed_matmul(gradient), None  # type: ignore[attr-defined]


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


def _torch_csr(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """Copy a SciPy CSR array to torch, with int32 indices: half the memory traffic of int64."""
    with warnings.catch_warnings():
        # torch calls its CSR layout a beta state, once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        csr = torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data.astype(np.float32)),
            size=matrix.shape,
            check_invariants=False,
        )
    return csr.to(device)
