"""Gradient norms of examples that consist of very different numbers of parts.

A layer that is applied to every part of an example has the gradient ``sum_t x_t d_t^T``. Padding
all examples to the largest and taking Gram matrices would cost the square of its size; adding the
gradients up per example costs no more than one product, since the layers concerned are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

# Numbers held at once while the gradients are added up.
PRODUCTS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Parts:
    """Whose example each row is a part of, ``(R, P)``; ``count`` examples, ``count`` is padding."""

    owners: Tensor
    count: int


@runtime_checkable
class OwnedRows(Protocol):
    """Rows that are not a dense tensor and can be multiplied per owner."""

    def owned_products(self, replica: int, delta: Tensor, owners: Tensor, count: int) -> Tensor:
        """Return ``rows^T delta`` of one replica for each owner: ``(count, in, out)``."""


def squared_norms_by_owner(
    inputs: Tensor | OwnedRows, delta: Tensor, parts: Parts, *, with_bias: bool
) -> Tensor:
    """Return the squared gradient norm of every example, ``(R, count)``.

    Computed in float64, because parts may nearly cancel: what rounding leaves is relative to their
    size and not to that of the sum.

    Args:
        inputs: the layer's input, ``(R, P, in)``.
        delta: gradient of the losses with respect to its output, ``(R, P, out)``.
        parts: whose parts the rows are.
        with_bias: whether the layer has a bias.
    """
    rows = []
    for replica, owners in enumerate(parts.owners):
        mine = delta[replica].double()
        if isinstance(inputs, Tensor):
            gradients = owned_products(inputs[replica], mine, owners, parts.count)
        else:
            gradients = inputs.owned_products(replica, mine, owners, parts.count)
        squares = gradients.square().sum((1, 2))
        if with_bias:
            total = mine.new_zeros(parts.count + 1, mine.shape[1]).index_add_(0, owners, mine)
            squares += total[:-1].square().sum(1)
        rows.append(squares)
    return torch.stack(rows)


def owned_products(inputs: Tensor, delta: Tensor, owners: Tensor, count: int) -> Tensor:
    """Return ``inputs^T delta`` for the rows of each owner, ``(count, in, out)``.

    Columns of the inputs are taken a few at a time, so that the products of all rows are never held
    at once.

    >>> ones = torch.ones(3, 2, dtype=torch.float64)
    >>> owned_products(ones, ones, torch.tensor([0, 1, 1]), 2)[:, 0].tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """
    width, out = inputs.shape[1], delta.shape[1]
    total = delta.new_zeros(count + 1, width, out)
    step = max(1, PRODUCTS_AT_ONCE // max(1, delta.numel()))
    for first in range(0, width, step):
        columns = inputs[:, first : first + step].to(delta.dtype)
        products = columns.unsqueeze(-1) * delta.unsqueeze(1)
        total[:, first : first + step].index_add_(0, owners, products)
    return total[:-1]
