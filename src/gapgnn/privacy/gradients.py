"""Released values have no gradient, and say so.

A release adds noise to sums over private edges. The exact derivative of those sums is the adjacency
matrix itself, so a backward pass through a release would read the edges again, without noise and
without a charge. A release therefore has no gradient. Where the rows that were sent have one, a
backward pass is refused, as silence would look like training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapgnn.errors import PrivacyError


def without_gradient(released: Tensor, sent: Tensor) -> Tensor:
    """Return released values through which a backward pass is refused, if what was sent has one.

    >>> rows = torch.ones(2, requires_grad=True)
    >>> released = without_gradient(torch.zeros(2), rows)
    >>> released.sum().backward()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gapgnn.errors.PrivacyError: a release has no gradient: ...
    >>> without_gradient(torch.zeros(2), torch.ones(2)).requires_grad
    False
    """
    if not (sent.requires_grad and torch.is_grad_enabled()):
        return released.detach()
    result: Tensor = _Released.apply(released.detach(), sent)  # type: ignore[no-untyped-call]
    return result


class _Released(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, released: Tensor, sent: Tensor) -> Tensor:
        return released.view_as(released)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        raise PrivacyError(
            "a release has no gradient: its derivative is the private adjacency matrix. Train on "
            "`hop.detach()`, and train what computes the rows before they are released."
        )
