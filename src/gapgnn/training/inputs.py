"""Inputs of networks: all nodes at once, or one batch per replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.nn import (
    Arcs,
    Examples,
    InLists,
    RowSubset,
    RowsWithMoments,
    SparseRows,
    WholeGraph,
    has_cheap_moments,
    input_moments,
)
from gapgnn.privacy.dpsgd import Members
from gapgnn.privacy.mechanisms import copy_on
from gapgnn.training.row_scale import RowScale

# Rows in a batch of :func:`row_by_row`, on a CPU and elsewhere.
BATCH = 1 << 10
DEVICE_BATCH = 1 << 17
# Bytes up to which sparse features are made dense on a GPU.
MOST_DENSE = 1 << 30


class Inputs(Protocol):
    """A network's argument, for every node or for chosen ones."""

    def all(self) -> Any:
        """Return the argument for every node."""

    def rows(self, positions: Tensor, valid: Tensor | None = None) -> Any:
        """Return the argument for each replica's batch of node positions, (replicas, batch).

        Where ``valid`` is false a position is padding, and its results are ignored.
        """


class Taken(Inputs, Protocol):
    """A network's argument, also for nodes that are the same for all replicas."""

    def taken(self, nodes: Tensor) -> Any:
        """Return the argument for some nodes."""

    @property
    def is_recordable(self) -> bool:
        """Whether that takes the same operations for all nodes."""


class Rows(Protocol):
    """A network's input for each node, available in batches."""

    def everybody(self) -> Tensor:
        """Return the position of every node."""

    def block(self, nodes: Tensor) -> Any:
        """Return the dense rows of some nodes, the same nodes for all replicas."""


def row_by_row(network: Callable[[Any], Tensor], inputs: Rows) -> Tensor:
    """Return a network's output for every node, (replicas, nodes, width), in batches of fixed size.

    The number of rows of a matrix product determines its routine, and so the rounding of every row.
    With all nodes in one batch, the presence of one record would change the last bits of another
    record's result. In batches of one size, a node's result is a function of its own rows alone
    (privacy page, section 4).

    Args:
        network: takes what ``inputs.block`` returns.
        inputs: of all nodes.
    """
    nodes = inputs.everybody()
    size = BATCH if nodes.device.type == "cpu" else DEVICE_BATCH
    # The last batch is padded with the first nodes.
    count = -(-len(nodes) // size) * size
    order = torch.arange(count, device=nodes.device) % len(nodes)
    outputs = [network(inputs.block(nodes[part])) for part in torch.split(order, size)]
    return torch.cat(outputs, dim=1)[:, : len(nodes)].contiguous()


@dataclass(frozen=True)
class Distinct:
    """A network's argument with one row for all nodes with equal features.

    Attributes:
        argument: for the network.
        index: the row of every node.
    """

    argument: Any
    index: Tensor

    def all(self) -> Any:
        """Return the argument."""
        return self.argument

    def chosen(self, nodes: Tensor) -> RowSubset:
        """Return the argument for some nodes."""
        return RowSubset(self.argument, self.index[nodes])


class FeatureInputs:
    """Node features, read once and shared by all replicas; sparse features stay sparse.

    Args:
        graph: whose features.
        device: where they are read.
        scale: how rows are scaled, each by itself; None leaves them as they are.
        dense: make sparse features dense, for networks that read nothing else.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        *,
        scale: RowScale | None = None,
        dense: bool = False,
    ) -> None:
        self._scale = scale
        self._rows: SparseRows | Tensor
        self._distinct: tuple[SparseRows, Tensor] | None = None
        self._features = graph.features
        self.device = device
        if sp.issparse(graph.features):
            if scale is not None:
                self._features = scale.of_sparse(graph.features)
            self._rows = SparseRows.from_scipy(self._features, device=device)
            is_small = 4 * math.prod(self._features.shape) <= MOST_DENSE
            if dense or (device.type == "cuda" and is_small):
                # A batch of dense rows takes the same operations whoever is in it.
                self._rows, self._scale = torch.from_numpy(self._dense()).to(device), None
        elif isinstance(graph.features, np.memmap):
            # A store's rows are shared, not copied; used rows are read from disk.
            self._rows = torch.from_numpy(graph.features).to(device)
        else:
            self._rows = (
                copy_on(graph, "features", device)
                if device.type == "cuda"
                else torch.tensor(graph.features, device=device)
            )

    @property
    def is_recordable(self) -> bool:
        """Whether a batch takes the same operations whatever its nodes are."""
        return isinstance(self._rows, Tensor)

    def all(self) -> Tensor | SparseRows:
        """Return the whole feature matrix."""
        return self._scaled(self._rows) if isinstance(self._rows, Tensor) else self._rows

    def _scaled(self, rows: Tensor) -> Tensor:
        return rows if self._scale is None else self._scale.of_tensor(rows)

    def rows(self, positions: Tensor, valid: Tensor | None = None) -> Any:
        """Return feature rows of each replica's batch."""
        if isinstance(self._rows, Tensor):
            return self._scaled(self._rows[positions])
        return self._rows.select(positions)

    def taken(self, nodes: Tensor) -> Tensor | SparseRows:
        """Return the rows of some nodes, the same ones for all replicas."""
        if isinstance(self._rows, Tensor):
            return self._scaled(self._rows[nodes])
        return self._rows.taken(nodes.cpu().numpy())

    def everybody(self) -> Tensor:
        """Return the position of every node."""
        return torch.arange(self._features.shape[0], device=self.device)

    def block(self, nodes: Tensor) -> Tensor:
        """Return the dense features of some nodes."""
        if isinstance(self._rows, Tensor):
            return self._scaled(self._rows[nodes])
        rows = sp.csr_array(self._features)[nodes.cpu().numpy()].toarray()
        return torch.from_numpy(np.asarray(rows, dtype=np.float32)).to(self.device)

    def distinct(self) -> Distinct | None:
        """Return the distinct rows, on a CPU and if they are far fewer than the nodes."""
        if isinstance(self._rows, Tensor) or self.device.type != "cpu":
            return None
        if self._distinct is None:
            self._distinct = self._rows.distinct()
        return None if self._distinct is None else Distinct(*self._distinct)

    def dense(self) -> Tensor:
        """Return all features as a dense tensor: for the ablation without an encoder."""
        if isinstance(self._rows, Tensor):
            return self._scaled(self._rows)
        return torch.from_numpy(self._dense()).to(self.device)

    def _dense(self) -> NDArray[np.float32]:
        return np.asarray(sp.csr_array(self._features).toarray(), dtype=np.float32)


class HopInputs:
    """Hop 0, as rows or as raw features, and further hops of shape (replicas, nodes, width)."""

    def __init__(self, first: Any, hops: Sequence[Tensor]) -> None:
        self._first = first
        self._hops = list(hops)
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_recordable(self) -> bool:
        """Whether a batch takes the same operations whatever its nodes are."""
        return isinstance(self._first, Tensor) or bool(self._first.is_recordable)

    def all(self) -> list[Any]:
        """Return all hops of all nodes."""
        first = self._first.all() if isinstance(self._first, FeatureInputs) else self._first
        return [first, *self._hops]

    def everybody(self) -> Tensor:
        """Return the position of every node."""
        if isinstance(self._first, FeatureInputs):
            return self._first.everybody()
        rows = self._hops[0] if self._hops else self._first
        return torch.arange(rows.shape[1], device=rows.device)

    def block(self, nodes: Tensor) -> list[Tensor]:
        """Return all hops of some nodes."""
        is_raw = isinstance(self._first, FeatureInputs)
        first = self._first.block(nodes) if is_raw else self._first[:, nodes]
        return [first, *(hop[:, nodes] for hop in self._hops)]

    def taken(self, nodes: Tensor) -> list[Any]:
        """Return all hops of some nodes, the same ones for all replicas; features stay sparse."""
        is_raw = isinstance(self._first, FeatureInputs)
        first = self._first.taken(nodes) if is_raw else self._first.index_select(1, nodes)
        return [first, *(hop.index_select(1, nodes) for hop in self._hops)]

    def sampled(
        self, nodes: Tensor, *, first_whole: bool, alike: bool
    ) -> list[RowsWithMoments | RowSubset] | None:
        """Return a network's inputs to score nodes ``(replicas, nodes)``, on a CPU.

        Args:
            nodes: the nodes to score.
            first_whole: hop 0 must be read for all nodes.
            alike: nodes with equal features have equal embeddings at hop 0.
        """
        first: RowsWithMoments | RowSubset
        if isinstance(self._first, FeatureInputs):
            distinct = self._first.distinct() if alike else None
            whole = Distinct(self._first.all(), torch.arange(self._hops[0].shape[1]))
            first = (distinct or whole).chosen(nodes)
        elif not isinstance(self._first, Tensor) or not has_cheap_moments(self._first):
            return None
        else:
            first = RowSubset(self._first, nodes) if first_whole else self._sample(0, nodes)
        if not all(has_cheap_moments(hop) for hop in self._hops):
            return None
        return [first, *(self._sample(hop, nodes) for hop in range(1, len(self._hops) + 1))]

    def _sample(self, hop: int, nodes: Tensor) -> RowsWithMoments:
        values = self._hops[hop - 1] if hop else self._first
        if hop not in self._moments:
            self._moments[hop] = input_moments(values)
        return RowsWithMoments.of(values, nodes, self._moments[hop])

    def rows(self, positions: Tensor, valid: Tensor | None = None) -> list[Any]:
        """Return the hops of each replica's batch."""
        if isinstance(self._first, FeatureInputs):
            first = self._first.rows(positions)
        else:
            first = own_rows(self._first, positions)
        return [first, *(own_rows(hop, positions) for hop in self._hops)]


def own_rows(values: Tensor, positions: Tensor) -> Tensor:
    """Return each replica's own rows: ``(R, N, C)`` and positions ``(R, B)`` to ``(R, B, C)``.

    >>> own_rows(torch.arange(6.0).view(2, 3, 1), torch.tensor([[2], [0]])).flatten().tolist()
    [2.0, 3.0]
    """
    replicas, count, width = values.shape
    number = torch.arange(replicas, device=positions.device).unsqueeze(1)
    if not values.is_contiguous():
        return values[number, positions]
    # Selecting rows by one flat index is eight times faster than by two.
    flat = values.view(-1, width).index_select(0, (positions + number * count).view(-1))
    return flat.view(*positions.shape, width)


class GraphInputs:
    """Features and arcs of a whole graph; a batch selects the nodes that are scored."""

    def __init__(self, features: FeatureInputs, arcs: Arcs) -> None:
        self._features = features
        self._arcs = arcs

    def all(self) -> WholeGraph:
        """Return the graph, with all nodes scored."""
        return WholeGraph(self._features.all(), self._arcs)

    def rows(self, positions: Tensor, valid: Tensor | None = None) -> WholeGraph:
        """Return the graph, with each replica's batch scored."""
        return WholeGraph(self._features.all(), self._arcs, positions)


class ExampleInputs:
    """Examples of a node and its in-neighbours; every replica has its own in-lists.

    Nodes with equal features have equal messages: if there are many, one row represents all of
    them.
    """

    def __init__(self, features: FeatureInputs, in_lists: Sequence[InLists]) -> None:
        self._device = features.device
        self._count = len(in_lists[0][0]) - 1
        self._take: Callable[[Tensor], Any] = features.rows
        row_of, self._num_rows = torch.arange(self._count), self._count
        alike = features.distinct()
        if alike is not None:
            rows: SparseRows = alike.argument
            self._take, row_of, self._num_rows = rows.select, alike.index, rows.shape[0]
        self._members = [_laid_out(*lists, row_of, self._device) for lists in in_lists]

    def all(self) -> Examples:
        """Return every node's example, for every replica."""
        nodes = torch.arange(self._count, device=self._device)
        return self.rows(nodes.expand(len(self._members), len(nodes)))

    def rows(self, positions: Tensor, valid: Tensor | None = None) -> Examples:
        """Return the examples of each replica's batch."""
        masks = [None] * len(positions) if valid is None else valid
        found = [
            _numbered(members.take(batch, mask), self._num_rows)
            for members, batch, mask in zip(self._members, positions, masks, strict=True)
        ]
        most = max(len(rows) for rows, _ in found)
        # Padded with the first row; no example refers to the padding.
        taken = torch.stack([F.pad(rows, (0, most - len(rows))) for rows, _ in found])
        return Examples(self._take(taken), [members for _, members in found])


def _laid_out(
    indptr: NDArray[Any], indices: NDArray[Any], row_of: Tensor, device: torch.device
) -> Members:
    """Return every node's example, itself and its in-neighbours, as indices of feature rows."""
    counts = torch.from_numpy(np.diff(indptr).astype(np.int64))
    neighbours = row_of.index_select(0, torch.from_numpy(np.array(indices)))
    members = Members.of(row_of, neighbours, counts)
    parts = (members.nodes, members.roles, members.starts)
    return Members(*(part.to(device) for part in parts))


def _numbered(members: Members, num_rows: int) -> tuple[Tensor, Members]:
    """Return the rows that occur in examples, and the examples as ranks among these rows."""
    flat, device = members.nodes.view(-1), members.nodes.device
    occurs = torch.zeros(num_rows, dtype=torch.bool, device=device)
    nodes = occurs.index_fill_(0, flat.long(), True).nonzero()[:, 0]
    ranks = torch.empty(num_rows, dtype=torch.int32, device=device)
    ranks.index_copy_(0, nodes, torch.arange(len(nodes), dtype=torch.int32, device=device))
    renamed = ranks.index_select(0, flat).view_as(members.nodes)
    return nodes, Members(renamed, members.roles, members.starts)
