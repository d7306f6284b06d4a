"""Gradient norms and clipped sums where an example is several nodes and nodes are shared.

An example of SAGE at node level is a node with its in-neighbours. The same small network is applied
to every node and the results are added up per example. A node is part of many examples, so its
layers are computed once per step; only what differs between examples is computed per part.

For an example ``i`` with gradient ``g_i`` at the sum, a part ``t`` has at layer ``l`` the gradient
``d_t``, which is ``g_i`` taken backwards through the values of its node, and the weights of the
layer have the gradient ``sum_t x_t d_t^T``. It is added up per example before its norm is taken:
one example is clipped as one, however many parts it has.

Rounding. The products are added in float32. Parts may nearly cancel, and what rounding leaves of
them is relative to their size and not to that of the sum: any order of adding ``T`` terms errs by
at most ``2**-24 (T + 2) sum_t |x_t| |d_t|`` to first order. That much and as much again is added to
the norm, so that doubt clips more and never less: the norm is never below that of the very ``d_t``
which enter the clipped sum. Bounds are in float64. A number below ``2**-63`` has no square in
float32: the length of as many of them as there are weights is added, too.

Relation ``add-remove``; every example moves the sum by at most the clip. How many examples one
record is part of is not known here (:mod:`gapgnn.privacy.dpsgd.subgraphs`). Privacy page, sections
2, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gapgnn.privacy.dpsgd.ghost import Rows

# An example's parts lie in rows of this many slots: one batched product adds up each row's.
SLOTS = 16
# Codes shorter than this are not scaled to norm 1 but by a constant.
SHORTEST = 1e-12
# Twice the unit round-off of float32.
ROUNDING = 2.0**-23
# Relative error of a sum of squares: torch adds float32 in cascades of 16 terms, four deep at most.
SUM_ROUNDING = 2.0**-17
SMALLEST = 2.0**-62  # twice the largest number whose square may be zero in float32
# Numbers held at once while gradients are added up per example: a megabyte, to stay in cache.
PRODUCTS_AT_ONCE = 1 << 18


class NodeRows(Rows, Protocol):
    """Sparse rows of nodes, or of slots, for which some of them were picked."""

    is_dense: bool

    def pick(self, replica: int, rows: Tensor) -> NodeRows:
        """Return some rows of one replica, repeated as often as they are named."""

    def dense(self) -> Tensor:
        """Return them as a dense ``(1, slots, in)`` tensor."""

    def squares_by_owner(self, delta: Tensor, starts: Tensor) -> Tensor:
        """Return ``|rows^T delta|^2`` for each owner's range of rows."""


OWN, NEIGHBOUR, PADDING = 0, 1, 2


@dataclass(frozen=True)
class Members:
    """Which nodes some examples consist of, in rows of :data:`SLOTS` slots.

    An example has one row or more: its own node, its in-neighbours, padding.

    Attributes:
        nodes: the node of each slot, ``(S, SLOTS)`` int32; padding repeats the example's own node.
        roles: of each slot, ``OWN``, ``NEIGHBOUR`` or ``PADDING``, ``(S, SLOTS)`` int8.
        starts: the first row of each example, and the end.
    """

    nodes: Tensor
    roles: Tensor
    starts: Tensor

    @classmethod
    def of(cls, own: Tensor, neighbours: Tensor, counts: Tensor) -> Members:
        """Lay out examples: own nodes, all in-neighbours one after the other, how many of each.

        >>> members = Members.of(torch.tensor([4, 7]), torch.tensor([5, 6]), torch.tensor([2, 0]))
        >>> members.nodes[:, :4].tolist(), members.roles[:, :4].tolist()
        ([[4, 5, 6, 4], [7, 7, 7, 7]], [[0, 1, 1, 2], [0, 2, 2, 2]])
        """
        rows = counts // SLOTS + 1
        starts = F.pad(rows.cumsum(0), (1, 0))
        nodes = torch.repeat_interleave(own.int(), rows * SLOTS)
        roles = torch.full(nodes.shape, PADDING, dtype=torch.int8, device=own.device)
        firsts = starts[:-1] * SLOTS
        slots = torch.repeat_interleave(firsts + 1 + counts - counts.cumsum(0), counts)
        slots += torch.arange(len(slots), device=own.device)
        nodes.index_copy_(0, slots, neighbours.int())
        roles.index_fill_(0, slots, NEIGHBOUR).index_fill_(0, firsts, OWN)
        return cls(nodes.view(-1, SLOTS), roles.view(-1, SLOTS), starts)

    def take(self, examples: Tensor, valid: Tensor | None = None) -> Members:
        """Return some of the examples; one that is not valid keeps its first row only.

        >>> members = Members.of(torch.arange(3), torch.tensor([0]), torch.tensor([0, 1, 0]))
        >>> members.take(torch.tensor([1, 2])).nodes[:, :2].tolist()
        [[1, 0], [2, 2]]
        """
        firsts = self.starts.index_select(0, examples)
        counts = self.starts.index_select(0, examples + 1) - firsts
        if valid is not None:
            counts = torch.where(valid, counts, 1)
        ends = counts.cumsum(0)
        rows = torch.repeat_interleave(firsts + counts - ends, counts)
        rows += torch.arange(len(rows), device=rows.device)
        nodes, roles = (table.index_select(0, rows) for table in (self.nodes, self.roles))
        return Members(nodes, roles, F.pad(ends, (1, 0)))

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.starts) - 1

    @cached_property
    def owners(self) -> Tensor:
        """The example of each row of slots."""
        places = torch.arange(self.count, device=self.starts.device)
        return torch.repeat_interleave(places, self.starts.diff())

    @cached_property
    def own(self) -> Tensor:
        """The own node of each example."""
        return self.nodes[:, 0].index_select(0, self.starts[:-1])

    @cached_property
    def _matrix(self) -> tuple[Tensor, Tensor]:
        """CSR pointers and values that add up each example's in-neighbours."""
        return (self.starts * SLOTS).int(), (self.roles == NEIGHBOUR).float().view(-1)

    def sum_neighbours(self, rows: Tensor) -> Tensor:
        """Return the sum of the in-neighbours' rows for each example, ``(M, C)`` to ``(B, C)``."""
        pointers, values = self._matrix
        size = (self.count, len(rows))
        matrix = torch.sparse_csr_tensor(
            pointers, self.nodes.view(-1), values.to(rows.dtype), size=size, check_invariants=False
        )
        return matrix @ rows


@dataclass(frozen=True)
class SharedLayer:
    """One linear layer as it ran on the nodes.

    Attributes:
        inputs: ``(R, M, in)``, dense or sparse.
        gradients: derivative of what follows the layer, channel by channel, ``(R, M, out)``.
        weight: ``(R, in, out)``.
        bias: ``(R, 1, out)`` or None.
    """

    inputs: Tensor | NodeRows
    gradients: Tensor
    weight: Tensor
    bias: Tensor | None


class SharedParts:
    """The record of a network over nodes whose codes are added up per example.

    ``outputs`` is where the loss starts from, ``(R, B, 2 C)``: each example's own code and, beside
    it, the sum of its in-neighbours' codes.

    Args:
        layers: the network's layers in order.
        codes: its output, ``(R, M, C)``.
        members: each replica's examples.
        scaling: where codes are scaled to norm 1 after the last layer: by how much, ``(R, M, 1)``.
            A row whose code is not of norm 1 was too short to be scaled so.
    """

    def __init__(
        self,
        layers: Sequence[SharedLayer],
        codes: Tensor,
        members: Sequence[Members],
        *,
        scaling: Tensor | None = None,
    ) -> None:
        self.layers = list(layers)
        self.parameters = [
            value for layer in layers for value in (layer.weight, layer.bias) if value is not None
        ]
        self._codes = codes.detach()
        self._scaling = scaling
        self._members = list(members)
        self._deltas: tuple[Tensor, list[list[Tensor]]] | None = None
        self._picked: dict[tuple[int, int], NodeRows] = {}
        with torch.no_grad():
            sides = [
                torch.cat([rows.index_select(0, each.own), each.sum_neighbours(rows)], dim=1)
                for rows, each in zip(self._codes, members, strict=True)
            ]
            self.outputs = torch.stack(sides).requires_grad_()

    def squared_norms(self, delta: Tensor) -> Tensor:
        """Return the squared gradient norm of every example, ``(R, B)``, never below the truth."""
        squares = [
            [
                self._squares(replica, layer, mine)
                for layer, mine in zip(self.layers, found, strict=True)
            ]
            for replica, found in enumerate(self._kept(delta))
        ]
        found = torch.stack([torch.stack(rows, dim=1) for rows in squares]).double()
        norms = (found * (1 + SUM_ROUNDING)).sqrt_() + self._guards(delta)
        norms += SMALLEST * sum(value[0].numel() for value in self.parameters) ** 0.5
        return norms.square_().sum(-1)

    def clipped_sums(
        self, delta: Tensor, factors: Tensor, *, masked: bool, exact: bool
    ) -> dict[int, Tensor]:
        """Return, per parameter (by ``id``), the sum over examples of factor times gradient."""
        sums: dict[int, list[Tensor]] = {id(value): [] for value in self.parameters}
        kept = list(self._kept(delta))
        for replica, each in enumerate(self._members):
            by_row = factors[replica].index_select(0, each.owners)
            by_slot = by_row.repeat_interleave(SLOTS).unsqueeze(-1)
            dead = by_slot == 0 if masked else None
            for layer, mine in zip(self.layers, kept[replica], strict=True):
                # Without a bias a gradient may be huge and its norm small: float32 would overflow.
                scaled = (mine.double() if layer.bias is None else mine) * by_slot
                if dead is not None:
                    scaled = scaled.masked_fill(dead, 0)
                total = self._weighted_sum(replica, layer, scaled, dead)
                sums[id(layer.weight)].append(total.to(factors.dtype))
                if layer.bias is not None:
                    sums[id(layer.bias)].append(scaled.new_ones(1, len(scaled)) @ scaled)
        return {key: torch.stack(rows) for key, rows in sums.items()}

    def _kept(self, delta: Tensor) -> Iterator[list[Tensor]]:
        """Yield every replica's :meth:`_backwards`; what is asked for again is not made again."""
        if self._deltas is None or self._deltas[0] is not delta:
            self._deltas = delta, []
        done = self._deltas[1]
        for replica in range(len(self._members)):
            if replica == len(done):
                done.append(self._backwards(replica, delta[replica]))
            yield done[replica]

    def _backwards(self, replica: int, delta: Tensor) -> list[Tensor]:
        """Return the gradient of every slot at each layer's output, ``(slots, out)``."""
        each, half = self._members[replica], delta.shape[1] // 2
        nodes = each.nodes.view(-1)
        # In the order of the roles: own node, in-neighbour, padding.
        table = torch.cat([delta[:, :half], delta[:, half:], torch.zeros_like(delta[:, :half])])
        sources = torch.add(each.owners.int().unsqueeze(1), each.roles, alpha=each.count)
        gradient = table.index_select(0, sources.view(-1))
        if self._scaling is not None:
            # Made just before use, since a table in cache is read three times faster.
            units = self._codes[replica] * (self._scaling[replica] < 1 / SHORTEST)
            units = units.index_select(0, nodes)
            along = (units * gradient).sum(-1, keepdim=True)
            gradient.addcmul_(units, along, value=-1)
        found: list[Tensor] = []
        for place in reversed(range(len(self.layers))):
            layer, gradients = self.layers[place], self.layers[place].gradients[replica]
            if self._scaling is not None and not found:
                gradients = gradients * self._scaling[replica]
            gradient.mul_(_taken(gradients, nodes))
            found.insert(0, gradient)
            if place:
                gradient = gradient @ layer.weight[replica].detach().T
        return found

    def _squares(self, replica: int, layer: SharedLayer, delta: Tensor) -> Tensor:
        """Return the squared norm of every example's gradient at one layer."""
        each = self._members[replica]
        if isinstance(layer.inputs, Tensor):
            squares = _dense_squares(layer.inputs[replica], each.nodes, delta, each)
        else:
            picked = self._pick(replica, layer.inputs)
            if picked.is_dense:
                slots = torch.arange(len(delta), device=delta.device).view(-1, SLOTS)
                squares = _dense_squares(picked.dense()[0], slots, delta, each)
            else:
                squares = picked.squares_by_owner(delta, each.starts * SLOTS)
        if layer.bias is not None:
            rows = delta.view(-1, SLOTS, delta.shape[1]).sum(1)
            squares += _sum_rows(rows, each.owners, each.count).square().sum(1)
        return squares

    def _weighted_sum(
        self, replica: int, layer: SharedLayer, scaled: Tensor, dead: Tensor | None
    ) -> Tensor:
        """Return ``sum_t x_t s_t^T`` over all slots, ``(in, out)``, as exact as ``scaled`` is."""
        inputs, nodes = layer.inputs, self._members[replica].nodes.view(-1)
        if not isinstance(inputs, Tensor):
            return self._pick(replica, inputs).transposed_matmul(scaled.unsqueeze(0))[0]
        width = inputs.shape[2]
        total = scaled.new_zeros(width, scaled.shape[1])
        step = SLOTS * max(1, 16 * PRODUCTS_AT_ONCE // (SLOTS * width))
        for start in range(0, len(nodes), step):
            part = slice(start, start + step)
            rows = _taken(inputs[replica], nodes[part]).to(scaled.dtype)
            if dead is not None:
                # Zero times infinity is not zero.
                rows = rows.masked_fill(dead[part], 0)
            total.addmm_(rows.T, scaled[part])
        return total

    def _pick(self, replica: int, inputs: NodeRows) -> NodeRows:
        """Return the sparse rows of all slots, looked up once."""
        key = replica, id(inputs)
        if key not in self._picked:
            self._picked[key] = inputs.pick(replica, self._members[replica].nodes.view(-1))
        return self._picked[key]

    def _guards(self, delta: Tensor) -> Tensor:
        """Return what rounding may have hidden, ``(R, B, layers)``: see the module's notes.

        ``|d_t|`` is at most ``|g_i|`` times the node's scaling, its largest gradients and the norms
        of the weights above; what unit rows take away makes no gradient longer.
        """
        replicas, _, width = delta.shape
        bounds: list[Tensor] = []
        reach = delta.new_ones(self._codes.shape[:2], dtype=torch.float64)
        if self._scaling is not None:
            reach = self._scaling.squeeze(-1).double()
        for layer in reversed(self.layers):
            # The node's own gradients: those of all nodes of the batch would let one of them, whose
            # gradients are not finite, take everybody else's example out of the sum.
            reach = reach * layer.gradients.abs().amax(-1)
            if isinstance(layer.inputs, Tensor):
                lengths = _lengths(layer.inputs)
            else:
                lengths = layer.inputs.squared_norms().sqrt()
            # A bias is a weight whose input is 1, and 1 + |x| bounds the length of both.
            bounds.insert(0, reach * (lengths + (layer.bias is not None)))
            reach = reach * _lengths(layer.weight.detach().flatten(1)).unsqueeze(-1)
        sizes = torch.stack(bounds, dim=-1)
        own, others = _lengths(delta.view(replicas, -1, 2, width // 2)).unsqueeze(-1).unbind(2)
        totals = torch.stack(
            [
                mine.index_select(0, each.own) * first + each.sum_neighbours(mine) * second
                for mine, each, first, second in zip(sizes, self._members, own, others, strict=True)
            ]
        )
        parts = torch.stack([each.starts.diff() * SLOTS for each in self._members])
        return totals * (ROUNDING * (parts + 4)).unsqueeze(-1)


def _lengths(rows: Tensor) -> Tensor:
    """Return the norm of every row in float64, where no square is lost."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return lengths


def _taken(rows: Tensor, places: Tensor) -> Tensor:
    """Return some rows; on a CPU the table is read through first, where it fits in cache.

    Reading in order is fast and makes reading in no order three times faster.
    """
    if rows.is_cuda or rows.numel() > PRODUCTS_AT_ONCE:
        return rows.index_select(0, places)
    return rows.clone().index_select(0, places)


def _dense_squares(inputs: Tensor, nodes: Tensor, delta: Tensor, members: Members) -> Tensor:
    """Return ``|sum_t x_t d_t^T|^2`` per example, a few examples at a time."""
    count, (_, width), out = members.count, inputs.shape, delta.shape[1]
    most = max(1, PRODUCTS_AT_ONCE * count // (len(members.owners) * width * out))
    deltas = delta.view(-1, SLOTS, out)
    bounds = [*members.starts[:-1:most].tolist(), len(nodes)]
    squares = []
    for group, (start, end) in enumerate(pairwise(bounds)):
        rows = _taken(inputs, nodes[start:end].view(-1)).view(-1, SLOTS, width)
        products = torch.bmm(rows.transpose(1, 2), deltas[start:end]).flatten(1)
        first = group * most
        owners = members.owners[start:end] - first
        total = _sum_rows(products, owners, min(most, count - first))
        squares.append(total.square_().sum(1))
    return torch.cat(squares)


def _sum_rows(rows: Tensor, owners: Tensor, count: int) -> Tensor:
    """Return the sum of each owner's rows; owners come in order, each with one row or more."""
    if rows.is_cuda:
        # Adding by index is in no fixed order there, and two runs would differ.
        lengths = torch.bincount(owners, minlength=count)
        return torch.segment_reduce(rows, "sum", lengths=lengths, axis=0)
    return rows.new_zeros(count, rows.shape[1]).index_add_(0, owners, rows)
