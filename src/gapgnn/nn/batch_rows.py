"""The sparse rows of one batch, which may be different ones for every replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

if TYPE_CHECKING:
    from gapgnn.nn.rows import SparseRows

# On a GPU a batch of up to this many entries (256 MiB) becomes dense, for one batched product.
DENSE_ENTRIES = 1 << 26
# Sums per owner are made for this many numbers at a time (2 MiB), which a core's cache can hold.
CACHED_ENTRIES = 1 << 19


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
        self._is_dense = values.is_cuda and shape[0] * shape[1] * shape[2] <= DENSE_ENTRIES
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
        if self._is_dense:
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
        if self._is_dense:
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

    def is_small_on_device(self) -> bool:
        """Whether products are computed from dense rows."""
        return self._is_dense

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


def sparse_product(rows: SparseRows | BatchRows, weight: Tensor) -> Tensor:
    """Return ``rows @ weight`` for each replica, with the gradient of the weight."""
    product: Tensor = _SparseProduct.apply(weight, rows)  # type: ignore[no-untyped-call]
    return product


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
