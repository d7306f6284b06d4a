"""What a node sends along its edges, and what a receiver makes of the noisy sum.

Every message has norm at most 1 and is computed from the sender's own record and from what was
released before, so one hop has the sensitivity of the stated relation whatever is sent (privacy
page, section 1).

A node's own label does not come back to it: in a stage the labels of its neighbours arrive, and
its own label is in none of them. From the second stage on, a neighbour without a training label
sends its class posterior, which may have been moved by the node's label through the noisy sum of
the stage before; that echo is one of many messages in that sum, under noise.
"""

from __future__ import annotations

import math

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
    codes = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64)
    # Corner k equals the earlier ones in the first k coordinates but for the last of them.
    for axis in range(num_classes - 1):
        rest = 1 - codes[axis, :axis].square().sum()
        codes[axis, axis] = rest.sqrt()
        cosine = -1 / (num_classes - 1)
        below = codes[axis + 1 :, :axis] @ codes[axis, :axis]
        codes[axis + 1 :, axis] = (cosine - below) / codes[axis, axis]
    return codes.to(device=device, dtype=torch.float32)


def label_messages(
    labels: Tensor, sends_label: Tensor, num_classes: int, scores: Tensor | None
) -> Tensor:
    """Return what nodes send of their class, shape (replicas, nodes, classes - 1).

    Args:
        labels: class of every node.
        sends_label: which nodes send their own label, (replicas, nodes): the training nodes.
        num_classes: C.
        scores: class scores (replicas, nodes, C) by which the others send the mean of the class
            codes under their posterior, shorter the less sure it is; None: they send nothing.
    """
    codes = class_codes(num_classes, labels.device)
    own = codes[labels.clamp(min=0)]
    if scores is None:
        return own * sends_label.unsqueeze(-1)
    guess = torch.softmax(scores, dim=-1) @ codes
    return torch.where(sends_label.unsqueeze(-1), own, guess)


def joint_messages(first: Tensor, second: Tensor) -> Tensor:
    """Put two messages side by side, scaled so that the norm stays at most 1."""
    return torch.cat([first, second], dim=-1) / math.sqrt(2)


def direction_and_size(sums: Tensor) -> Tensor:
    """Return what a classifier reads of a noisy sum that is given in units of its noise.

    The direction says which class, the size how sure the neighbourhood is.

    >>> direction_and_size(torch.tensor([[3.0, 4.0]])).shape
    torch.Size([1, 3])
    """
    size = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    return torch.cat([row_normalise(sums), torch.log1p(size) / 2], dim=-1)
