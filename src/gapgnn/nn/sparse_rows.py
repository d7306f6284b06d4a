"""Sparse feature rows for training, shared by all replicas, times each replica's own weights.

One-hot features stay sparse. A full batch is one CSR matrix times all replicas' weights side by
side, so the features are read once; batches that differ between replicas are one block-diagonal CSR
matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapgnn.errors import InputError
from gapgnn.privacy.mechanisms import csr_tensor

NORM_ROWS = 1 << 16
# On a GPU a batch of up to this many entries (256 MiB) becomes dense, for one batched product.
DENSE_ENTRIES = 1 << 26
# Sums per owner are made for this many numbers at a time (2 MiB), which a core's cache can hold.
CACHED_ENTRIES = 1 << 19


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
        is_minibatch: bool = False,
    ) -> None:
        self._scipy = matrix
        self._counts = counts
        # Whether the rows are used in one step only, so that nothing is worth keeping for the next.
        self.is_minibatch = is_minibatch
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.device = torch.device(device)
        self._csr = _torch_csr(matrix, self.device)
        self._transposed: Tensor | None = None
        self._one = torch.ones(0, device=self.device)

    @classmethod
    def from_scipy(cls, matrix: Any, *, device: str | torch.device = "cpu") -> SparseRows:
        """Make rows from any SciPy sparse matrix or array."""
        if not sp.issparse(matrix):
            raise InputError(
                f"`matrix` must be a SciPy sparse matrix. Got {type(matrix).__name__}."
            )
        return cls(sp.csr_array(matrix, dtype=np.float32), device=device)

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor | None] | None:
        # Rows of a store lie on disk, and a table of all of them would bring them into memory.
        return None if isinstance(self._scipy.data, np.memmap) else self._padded_table()

    @cached_property
    def _squares(self) -> Tensor:
        return torch.from_numpy(_squared_norms(self._scipy)).to(self.device)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        rows = self._scipy.astype(np.float64)
        counts = np.ones(self.shape[0]) if self._counts is None else self._counts
        weighted = sp.csr_array(rows.T).multiply(counts / counts.sum()).tocsr()
        mean = weighted.sum(axis=1).reshape(1, -1)
        covariance = (weighted @ rows).toarray() - mean.T @ mean
        first, second = (torch.from_numpy(part).float() for part in (mean, covariance))
        return first.unsqueeze(0).to(self.device), second.unsqueeze(0).to(self.device)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean ``(1, 1, in)`` and covariance ``(1, in, in)`` of the rows.

        >>> rows = SparseRows.from_scipy(sp.csr_array([[1.0], [3.0]]))
        >>> [float(moment) for moment in rows.moments()]
        [2.0, 1.0]
        """
        return self._moments

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(N,)``, in float64."""
        return self._squares

    def taken(self, nodes: NDArray[np.int64]) -> SparseRows:
        """Return some of the rows, for one step of all replicas.

        >>> rows = SparseRows.from_scipy(sp.csr_array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
        >>> rows.taken(np.array([2, 0])).shape
        (2, 2)
        """
        return SparseRows(self._scipy[nodes], device=self.device, is_minibatch=True)

    def gram(self) -> Tensor:
        """Return the product of every two rows, ``(N, N)``.

        >>> SparseRows.from_scipy(sp.csr_array([[1.0, 0.0], [2.0, 1.0]])).gram().tolist()
        [[1.0, 2.0], [2.0, 5.0]]
        """
        return torch.from_numpy((self._scipy @ self._scipy.T).toarray()).to(self.device)

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


class BatchRows:
    """The rows of one batch, which may be different ones for every replica.

    On a CPU the forward product is torch's, of block-diagonal CSR, and the transposed one SciPy's.
    For 256 rows of 7 ones in 349 columns and 16 outputs they take 7 and 40 microseconds on one
    core, with ten replicas 40 and 90; dense rows take 57 and 38, with ten replicas 530 and 380, and
    torch's transposed CSR product 120 and 1200. On a GPU a batch of moderate size is dense
    (not measured yet).

    Args:
        pointers: where each row's entries begin, and the end.
        columns: of each entry, counted over the blocks of all replicas.
        values: of each entry.
        shape: ``(R, B, in)``.
        block: columns of one replica's block; one more than ``in`` with a spare one.
        rows: all rows.
        positions: which of them these are.
    """

    def __init__(
        self,
        pointers: Tensor,
        columns: Tensor,
        values: Tensor,
        shape: tuple[int, int, int],
        block: int,
        rows: SparseRows,
        positions: Tensor,
    ) -> None:
        self.shape = shape
        self._block = block
        self._pointers, self._columns, self._values = pointers, columns, values
        self._rows, self._positions = rows, positions
        # Whether products are computed from dense rows.
        self.is_dense = values.is_cuda and shape[0] * shape[1] * shape[2] <= DENSE_ENTRIES
        self._dense: Tensor | None = None

    def squared_norms(self) -> Tensor:
        """Return the squared norm of every row, ``(R, B)``, in float64."""
        return self._rows.squared_norms().index_select(0, self._positions).view(self.shape[:2])

    def matmul(self, weight: Tensor) -> Tensor:
        """Return ``rows @ weight`` for each replica: ``(R, in, out)`` to ``(R, B, out)``."""
        return sparse_product(self, weight)

    def product(self, weight: Tensor) -> Tensor:
        """As :meth:`matmul`, without a gradient."""
        replicas, count, width = self.shape
        if self.is_dense:
            return self.dense() @ weight
        matrix = torch.sparse_csr_tensor(
            self._pointers,
            self._columns,
            self._values,
            size=(replicas * count, replicas * self._block),
            check_invariants=False,
        )
        out = weight.shape[2]
        if self._block > width:
            weight = torch.nn.functional.pad(weight, (0, 0, 0, 1))
        return (matrix @ weight.reshape(replicas * self._block, out)).view(replicas, count, out)

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return ``rows^T delta`` for each replica: ``(R, B, out)`` to ``(R, in, out)``."""
        replicas, count, width = self.shape
        if self.is_dense:
            return self.dense().to(delta.dtype).transpose(1, 2) @ delta
        if delta.is_cuda:
            terms = self._values.to(delta.dtype).unsqueeze(-1) * delta.flatten(0, 1)[self._row_of()]
            total = delta.new_zeros(replicas * width, delta.shape[2])
            return total.index_add_(0, self._columns.long(), terms).view(replicas, width, -1)
        parts = (self._values.numpy(), self._columns.numpy(), self._pointers.numpy())
        matrix = sp.csc_array(parts, shape=(replicas * self._block, replicas * count))
        product = matrix @ delta.detach().reshape(replicas * count, delta.shape[2]).numpy()
        return torch.from_numpy(product).view(replicas, self._block, -1)[:, :width]

    def pick(self, replica: int, rows: Tensor) -> BatchRows:
        """Return some of one replica's rows, repeated as often as they are named."""
        positions = self._positions.view(self.shape[:2])[replica]
        return self._rows.select(positions.index_select(0, rows).unsqueeze(0))

    def squares_by_owner(self, delta: Tensor, starts: Tensor) -> Tensor:
        """Return ``|rows^T delta|^2`` for each owner's range of a single replica's rows.

        Args:
            delta: ``(B, out)``.
            starts: the first row of each owner, and the end.
        """
        width, block, out = self.shape[2], self._block, delta.shape[1]
        count, most = len(starts) - 1, max(1, CACHED_ENTRIES // (block * out))
        # The sums of `most` owners lie below each other: a place counts from its group's first.
        offsets = torch.arange(count, device=delta.device, dtype=torch.int32) % most * block
        ends = self._pointers.index_select(0, starts)
        places = self._columns + torch.repeat_interleave(offsets, ends.diff())
        add_up = self._adder(places, delta)
        rows, entries = starts.tolist(), ends.tolist()
        squares = []
        for first in range(0, count, most):
            last = min(first + most, count)
            bounds = rows[first], rows[last], entries[first], entries[last]
            total = add_up((last - first) * block, *bounds).view(last - first, block, out)
            total[:, width:] = 0
            squares.append(total.square_().flatten(1).sum(1))
        return torch.cat(squares)

    def _adder(self, places: Tensor, delta: Tensor) -> Callable[[int, int, int, int, int], Tensor]:
        """Return what adds rows of delta, times the entries of a row, up at the entries' places."""
        if delta.is_cuda:
            lengths = self._pointers.diff().long()
            terms = torch.repeat_interleave(delta, lengths, dim=0) * self._values.unsqueeze(-1)

            def on_device(size: int, row: int, row_end: int, entry: int, end: int) -> Tensor:
                total = delta.new_zeros(size, delta.shape[1])
                return total.index_add_(0, places[entry:end].long(), terms[entry:end])

            return on_device
        values, columns = self._values.numpy(), places.numpy()
        pointers, rows = self._pointers.numpy(), delta.numpy()

        def on_cpu(size: int, row: int, row_end: int, entry: int, end: int) -> Tensor:
            parts = (values[entry:end], columns[entry:end], pointers[row : row_end + 1] - entry)
            matrix = sp.csc_array(parts, shape=(size, row_end - row))
            return torch.from_numpy(matrix @ rows[row:row_end])

        return on_cpu

    def dense(self) -> Tensor:
        """Return the batch as a dense ``(R, B, in)`` tensor."""
        if self._dense is None:
            (replicas, count, width), block = self.shape, self._block
            places = self._row_of() * block + self._columns % block
            flat = torch.zeros(replicas * count * block, device=self._values.device)
            flat.index_add_(0, places, self._values)
            self._dense = flat.view(replicas, count, block)[..., :width]
        return self._dense

    def _row_of(self) -> Tensor:
        """Return the row, counted over all replicas, that each entry belongs to."""
        counts = (self._pointers[1:] - self._pointers[:-1]).long()
        rows = torch.arange(counts.numel(), device=counts.device)
        return torch.repeat_interleave(rows, counts, output_size=self._columns.numel())


class Factor(Protocol):
    """The left side of a product: data, which have no gradient."""

    def product(self, weight: Tensor) -> Tensor:
        """Return the product for each replica."""

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """Return the product of the transposed data."""


def sparse_product(rows: Factor, weight: Tensor) -> Tensor:
    """Return ``rows @ weight`` for each replica, with the gradient of the weight."""
    if not torch.is_grad_enabled():
        return rows.product(weight)
    product: Tensor = _SparseProduct.apply(weight, rows)  # type: ignore[no-untyped-call]
    return product


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Factor) -> Tensor:
        ctx.rows = rows
        return rows.product(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.transposed_matmul(gradient), None


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
    pointers, columns = (_as_tensor(part, np.int32) for part in (matrix.indptr, matrix.indices))
    values = _as_tensor(matrix.data, np.float32)
    return csr_tensor(pointers, columns, values, matrix.shape).to(device)
