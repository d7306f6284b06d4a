"""Inputs of networks from released hops, along one edge type or several.

A hop along several edge types releases one noisy sum for each and, if the plan contains it, one
over their union. Blocks of a released row stand side by side, in the order of the types' names,
followed by the union. A network also reads the sum of all types. If the union was released, the
sums of the types are made consistent with it, which reduces the noise in them and in their sum
(:func:`reconciled`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gapgnn.privacy import KArcs, Links, Relation
from gapgnn.privacy import resolve_edge_types as resolve_edge_types
from gapgnn.privacy.mechanisms import row_normalise

__all__ = [
    "along_types",
    "blocks_of",
    "direction_and_size",
    "events_per_hop",
    "in_noise_units",
    "num_blocks",
    "reconciled",
    "releases_union",
    "resolve_edge_types",
]


def num_blocks(num_types: int) -> int:
    """Return how many blocks of columns a network reads of a hop: each type, and their sum.

    >>> num_blocks(1), num_blocks(3)
    (1, 4)
    """
    return num_types + 1 if num_types > 1 else 1


def releases_union(num_types: int, *, protected: str, relation: Relation) -> bool:
    """Return whether a hop releases the sum over the union of the types beside each type's.

    Where the same message travels along all of them, and one edge of one type is hidden: it costs
    as much as that type's sum, however many types there are. Not under ``k-arcs``: arcs of several
    types may end in one row of the union, which would need so much more noise that the types' sums,
    with a budget to themselves, say as much (privacy page, section 1).

    >>> from gapgnn.privacy.relations import Undirected
    >>> releases_union(2, protected="any", relation=Undirected())
    True
    >>> releases_union(2, protected="any", relation=KArcs(5))
    False
    """
    if num_types <= 1 or protected != "any":
        return False
    return isinstance(relation, Links) and not isinstance(relation, KArcs)


def events_per_hop(num_types: int, *, protected: str, with_union: bool) -> int:
    """Return the number of Gaussian events of a hop along all edge types (privacy page, section 2).

    Under ``each``, and at node level, neighbours differ in every type. Under ``any`` they differ in
    one, and the sums of the other types are equal: one event, and one more for the union.
    """
    return num_types if protected == "each" else 1 + with_union


def reconciled(types: Sequence[Tensor], union: Tensor) -> tuple[list[Tensor], Tensor]:
    """Make noisy sums of several edge types consistent with that of their union, by least squares.

    The difference between the union and the sum of M types is noise of variance M + 1. A share of
    1 / (M + 1) of it is added to each type and subtracted from the union. All then have variance
    M / (M + 1), the minimum of unbiased linear estimates from these releases.

    >>> types, union = reconciled([torch.tensor([2.0]), torch.tensor([3.0])], torch.tensor([8.0]))
    >>> [one.tolist() for one in types], union.tolist()
    ([[3.0], [4.0]], [7.0])
    """
    missing = (union - torch.stack(list(types)).sum(dim=0)) / (len(types) + 1)
    return [one + missing for one in types], union - missing


def blocks_of(hop: Tensor, num_types: int, *, with_union: bool = False) -> list[Tensor]:
    """Return the blocks of a released hop: each edge type and, if there are several, their union.

    Blocks are in units of their noise if the hop is.
    """
    blocks = list(hop.chunk(num_types + with_union, dim=-1))
    if num_types == 1:
        return blocks
    if not with_union:
        return [*blocks, torch.stack(blocks).sum(dim=0) / math.sqrt(num_types)]
    types, union = reconciled(blocks[:-1], blocks[-1])
    noise = math.sqrt(num_types / (num_types + 1))
    return [block / noise for block in (*types, union)]


def along_types(hop: Tensor, num_types: int) -> Tensor:
    """Return a network's input from a released hop: the blocks of all types and their union."""
    blocks = blocks_of(hop, num_types)
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)


def in_noise_units(sums: Tensor, std: float) -> Tensor:
    """Return noisy sums over the standard deviation of their noise, with equal bits on all devices.

    A GPU divides by a tensor, but multiplies by the rounded inverse of a scalar.

    >>> in_noise_units(torch.tensor([[3.0, 6.0]]), 2.0).tolist()
    [[1.5, 3.0]]
    """
    return sums / torch.full((), std, dtype=sums.dtype, device=sums.device)


def direction_and_size(sums: Tensor) -> Tensor:
    """Return a classifier's columns from a noisy sum in units of its noise.

    The direction indicates the class, the size the signal-to-noise ratio.

    >>> direction_and_size(torch.tensor([[3.0, 4.0]])).shape
    torch.Size([1, 3])
    """
    size = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    return torch.cat([row_normalise(sums), torch.log1p(size) / 2], dim=-1)
