"""What a network reads: all nodes at once, or one batch per replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from gapgnn.graph.graph import Graph
from gapgnn.nn.rows import SparseRows


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
    """The hops of every node, shape (replicas, nodes, width) each."""

    def __init__(self, hops: Sequence[Tensor]) -> None:
        self._hops = list(hops)

    def all(self) -> list[Tensor]:
        """Return all hops of all nodes."""
        return self._hops

    def rows(self, positions: Tensor) -> list[Tensor]:
        """Return the hops of each replica's batch."""
        replica = torch.arange(positions.shape[0], device=positions.device).unsqueeze(1)
        return [hop[replica, positions] for hop in self._hops]
