"""What a network reads: all nodes at once, or one batch per replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph.graph import Graph
from gapgnn.nn.rows import SparseRows
from gapgnn.nn.sage import Arcs, Examples, InLists, WholeGraph


class Inputs(Protocol):
    """A network's argument, for every node or for chosen ones."""

    def all(self) -> Any:
        """Return the argument for every node."""

    def rows(self, positions: Tensor) -> Any:
        """Return the argument for each replica's batch of node positions, (replicas, batch)."""


class FeatureInputs:
    """Node features, read once and shared by all replicas; sparse features stay sparse."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._rows: SparseRows | Tensor
        self._features = graph.features
        self._device = device
        if sp.issparse(graph.features):
            self._rows = SparseRows.from_scipy(graph.features, device=device)
        else:
            self._rows = torch.tensor(graph.features, device=device)

    def all(self) -> Tensor | SparseRows:
        """Return the whole feature matrix."""
        return self._rows

    def rows(self, positions: Tensor) -> Any:
        """Return feature rows of each replica's batch."""
        if isinstance(self._rows, Tensor):
            return self._rows[positions]
        return self._rows.select(positions)

    def dense(self) -> Tensor:
        """Return all features as a dense tensor: for the ablation without an encoder."""
        if isinstance(self._rows, Tensor):
            return self._rows
        return torch.from_numpy(np.asarray(sp.csr_array(self._features).toarray())).to(self._device)


class HopInputs:
    """Hop 0, as rows or as raw features, and further hops of shape (replicas, nodes, width)."""

    def __init__(self, first: Any, hops: Sequence[Tensor]) -> None:
        self._first = first
        self._hops = list(hops)

    def all(self) -> list[Any]:
        """Return all hops of all nodes."""
        first = self._first.all() if isinstance(self._first, FeatureInputs) else self._first
        return [first, *self._hops]

    def rows(self, positions: Tensor) -> list[Any]:
        """Return the hops of each replica's batch."""
        replica = torch.arange(positions.shape[0], device=positions.device).unsqueeze(1)
        if isinstance(self._first, FeatureInputs):
            first = self._first.rows(positions)
        else:
            first = self._first[replica, positions]
        return [first, *(hop[replica, positions] for hop in self._hops)]


class GraphInputs:
    """Features and arcs of a whole graph; a batch only chooses whose scores count."""

    def __init__(self, features: FeatureInputs, arcs: Arcs) -> None:
        self._features = features
        self._arcs = arcs

    def all(self) -> WholeGraph:
        """Return the graph, with the scores of all nodes wanted."""
        return WholeGraph(self._features.all(), self._arcs)

    def rows(self, positions: Tensor) -> WholeGraph:
        """Return the graph, with the scores of each replica's batch wanted."""
        return WholeGraph(self._features.all(), self._arcs, positions)


class ExampleInputs:
    """Each node with its in-neighbours as an example of its own; in-lists are each replica's."""

    def __init__(self, features: FeatureInputs, in_lists: Sequence[InLists]) -> None:
        self._features = features
        self._in_lists = in_lists

    def all(self) -> Examples:
        """Return every node's example, for every replica."""
        nodes = torch.arange(len(self._in_lists[0][0]) - 1)
        return self.rows(nodes.expand(len(self._in_lists), len(nodes)))

    def rows(self, positions: Tensor) -> Examples:
        """Return the examples of each replica's batch, padded to the replica with most parts."""
        batches = positions.cpu().numpy()
        replicas, count = batches.shape
        found = [
            _neighbours(*lists, batch) for lists, batch in zip(self._in_lists, batches, strict=True)
        ]
        width = count + max(len(neighbours) for neighbours, _ in found)
        parts = np.zeros((replicas, width), dtype=np.int64)
        owners = np.full((replicas, width), count, dtype=np.int64)
        parts[:, :count], owners[:, :count] = batches, np.arange(count)
        for replica, (neighbours, rank) in enumerate(found):
            part = slice(count, count + len(neighbours))
            parts[replica, part], owners[replica, part] = neighbours, rank
        device = positions.device
        rows = self._features.rows(torch.from_numpy(parts).to(device))
        return Examples(rows, torch.from_numpy(owners).to(device), count)


def _neighbours(
    indptr: NDArray[Any], indices: NDArray[Any], nodes: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the in-neighbours of some nodes one after the other, and each one's place in line."""
    counts = indptr[nodes + 1] - indptr[nodes]
    rank = np.repeat(np.arange(len(nodes)), counts)
    within = np.arange(len(rank)) - (np.cumsum(counts) - counts)[rank]
    return indices[indptr[nodes][rank] + within], rank
