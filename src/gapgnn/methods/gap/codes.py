"""One vector per class: what people send of their class, and how a sum of them is read."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from gapgnn.privacy.mechanisms import row_normalise


def class_codes(num_classes: int, device: torch.device | None = None) -> Tensor:
    """Return one unit vector per class, all equally far apart: the corners of a regular simplex.

    One-hot codes of C classes are sqrt(2) apart and share a direction that says nothing about the
    class. Without it C - 1 dimensions suffice, and at the same norm the codes are
    sqrt(2 C / (C - 1)) apart, so the same noise blurs them less.

    >>> codes = class_codes(3)
    >>> codes.shape, bool(torch.allclose(codes @ codes.T, torch.eye(3) * 1.5 - 0.5, atol=1e-6))
    (torch.Size([3, 2]), True)
    """
    return _simplex(num_classes).to(device=device)


@cache
def _simplex(num_classes: int) -> Tensor:
    codes = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64)
    # Corner k equals the earlier ones in the first k coordinates but for the last of them.
    for axis in range(num_classes - 1):
        rest = 1 - codes[axis, :axis].square().sum()
        codes[axis, axis] = rest.sqrt()
        cosine = -1 / (num_classes - 1)
        below = codes[axis + 1 :, :axis] @ codes[axis, :axis]
        codes[axis + 1 :, axis] = (cosine - below) / codes[axis, axis]
    return codes.float()


def mean_codes(scores: Tensor) -> Tensor:
    """Return the mean of the class codes under a posterior: shorter, the less sure it is.

    >>> bool(mean_codes(torch.zeros(1, 4)).norm() < 1e-6)
    True
    """
    codes = class_codes(scores.shape[-1], scores.device)
    return torch.softmax(scores, dim=-1) @ codes


def class_scores(sums: Tensor) -> Tensor:
    """Return how well a sum of class codes agrees with each class.

    >>> class_scores(class_codes(3)[1:2]).argmax().item()
    1
    """
    return sums @ class_codes(sums.shape[-1] + 1, sums.device).T


def in_noise_units(sums: Tensor, std: float) -> Tensor:
    """Return noisy sums over the standard deviation of their noise, with the same bits anywhere.

    A GPU multiplies by the rounded inverse of a number, and divides by a tensor.

    >>> in_noise_units(torch.tensor([[3.0, 6.0]]), 2.0).tolist()
    [[1.5, 3.0]]
    """
    return sums / torch.full((), std, dtype=sums.dtype, device=sums.device)


def direction_and_size(sums: Tensor) -> Tensor:
    """Return what a classifier reads of a noisy sum that is given in units of its noise.

    The direction says which class, the size how sure the neighbourhood is.

    >>> direction_and_size(torch.tensor([[3.0, 4.0]])).shape
    torch.Size([1, 3])
    """
    size = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    return torch.cat([row_normalise(sums), torch.log1p(size) / 2], dim=-1)
