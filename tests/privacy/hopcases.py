"""Graphs and rows for hops over them."""

from __future__ import annotations

import numpy as np
import torch

from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms import row_normalise


def graph_of(arcs, num_nodes, *, directed=True, ids=None, dangling=None):
    return Graph.from_arcs(
        [u for u, _ in arcs],
        [v for _, v in arcs],
        num_nodes=num_nodes,
        features=np.zeros((num_nodes, 1)),
        directed=directed,
        ids=ids,
        dangling=dangling,
    )


def unit_rows(num_rows, width=5, seed=0, repeats=None):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, width) if repeats is None else (repeats, num_rows, width)
    return row_normalise(torch.randn(shape, generator=generator))
