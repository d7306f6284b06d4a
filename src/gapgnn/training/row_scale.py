"""Feature rows scaled to a common norm, with a column for their original size.

A scaled row is a function of that row alone, so at node level it is part of the record's own
example and is charged with it (privacy page, section 2). The constants were chosen on the
development graphs (docs/explanation/research-notes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training.recipe import FEW

# Factor on log(1 + squared norm) in the size column, which keeps it small against a norm of 6.
SIZE_FACTOR = 0.3
# A larger epsilon, under ``add-remove``, is a large budget.
LARGE = 8.0


@dataclass(frozen=True)
class RowScale:
    """Scaling of rows to norm ``norm * sqrt(k / (k + few))``, with one column for the size.

    ``k``, the squared sum of absolute values over the sum of squares, is the effective number of
    nonzero entries of a row: n if n entries are equal and all others zero. Rows with few entries
    carry little information and become shorter.

    Args:
        norm: of rows with many entries.
        few: the effective number of entries at which the norm is ``norm / sqrt(2)``; with 0 all
            rows have norm ``norm``.

    >>> RowScale(6.0, few=16.0).lengths(np.array([48.0, 3.0, 0.0]), np.array([48.0, 9.0, 0.0]))
    array([5.19615242, 1.45521375, 0.        ])
    """

    norm: float
    few: float = 0.0

    @classmethod
    def suited(cls, num_train: int, effective_epsilon: float = 0.0) -> RowScale:
        """Return the scaling for DP-SGD with a number of training nodes.

        With few training nodes the learned weights are mostly noise, which shorter rows amplify
        less. Under a large budget the noise is small, and shorter rows reduce overfitting.

        Args:
            num_train: public number of training nodes.
            effective_epsilon: under ``add-remove`` if features are the only input; 0 if there
                are hops, beside which features must not be too short.

        >>> RowScale.suited(15_000), RowScale.suited(1_500)
        (RowScale(norm=6.0, few=0.0), RowScale(norm=5.0, few=16.0))
        """
        return cls(5.0, few=16.0) if num_train <= FEW or effective_epsilon > LARGE else cls(6.0)

    def lengths(self, sums: Any, squares: Any) -> Any:
        """Return the norm of each row, given its absolute values and squares, added up."""
        is_zero = squares == 0
        counts = sums**2 / (squares + is_zero)
        return self.norm * (counts / (counts + self.few + is_zero)) ** 0.5

    def of_tensor(self, rows: Tensor) -> Tensor:
        """Return scaled rows with one more column."""
        exact = rows.double()
        squares = exact.square().sum(dim=-1, keepdim=True)
        lengths = self.lengths(exact.abs().sum(dim=-1, keepdim=True), squares)
        sizes = SIZE_FACTOR * torch.log1p(squares)
        scaled = row_normalise(rows) * lengths.to(rows.dtype)
        return torch.cat([scaled, sizes.to(rows.dtype)], dim=-1)

    def of_sparse(self, features: Any) -> sp.csr_array:
        """Return scaled rows of sparse features with one more column; a zero row stays zero.

        >>> RowScale(10.0).of_sparse(sp.csr_array([[3.0, 4.0], [0.0, 0.0]])).toarray()[:, :2]
        array([[6., 8.],
               [0., 0.]], dtype=float32)
        """
        rows = sp.csr_array(features, dtype=np.float32)
        exact = rows.data.astype(np.float64)
        owners = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        squares = np.bincount(owners, exact**2, minlength=rows.shape[0])
        sums = np.bincount(owners, np.abs(exact), minlength=rows.shape[0])
        scale = self.lengths(sums, squares) / np.sqrt(np.where(squares > 0, squares, 1))
        values = (exact * scale[owners]).astype(np.float32)
        scaled = sp.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)
        sizes = sp.csr_array((SIZE_FACTOR * np.log1p(squares)).astype(np.float32).reshape(-1, 1))
        return sp.csr_array(sp.hstack([scaled, sizes], format="csr"))


def features_read(num_features: int, scale: RowScale | None) -> int:
    """Return the number of columns of a feature row; a scaled row has one more for its size.

    >>> features_read(349, None), features_read(349, RowScale(6.0))
    (349, 350)
    """
    return num_features if scale is None else num_features + 1
