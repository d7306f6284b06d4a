"""Which arcs SAGE learns from without privacy or at edge level: its own or released ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.graph import Graph, csr
from gapgnn.nn import Arcs, InLists
from gapgnn.privacy.mechanisms import Construction, perturb_edges
from gapgnn.rng import NoiseKey


def own_arcs(graph: Graph, device: torch.device) -> Arcs:
    """Return the graph's own arcs, shared by all replicas: nothing is protected."""
    lists: InLists = graph.indptr, graph.indices
    if graph.is_directed:
        lists = _transposed(graph.indptr, graph.indices)
    return Arcs([lists], is_symmetric=not graph.is_directed, device=device)


def released_arcs(
    graph: Graph,
    keys: Sequence[NoiseKey],
    device: torch.device,
    *,
    perturbation: str,
    epsilon: float,
    relation: str,
    construction: Construction,
    memory_limit: float,
) -> Arcs:
    """Randomise the edges once for each replica and return what was released.

    Relation ``undirected`` or ``directed``, cost ``epsilon`` at delta 0 for each replica (privacy
    page, section 5); see :func:`gapgnn.privacy.mechanisms.edges.perturb_edges`.
    """
    released = [
        perturb_edges(
            graph,
            perturbation=perturbation,
            epsilon=epsilon,
            relation=relation,
            key=key.derive("edges"),
            construction=construction,
            memory_limit=memory_limit,
        )
        for key in keys
    ]
    lists = [edges.in_lists() for edges in released]
    return Arcs(lists, is_symmetric=released[0].is_symmetric, device=device)


def _transposed(indptr: NDArray[np.int64], indices: NDArray[Any]) -> InLists:
    columns = csr.matrix(indptr, indices).tocsc()
    return columns.indptr, columns.indices
