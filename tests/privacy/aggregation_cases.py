"""Graphs, unit rows and ready-made aggregations for the tests of private aggregation."""

import numpy as np
import torch

from gapgnn.graph.graph import Graph
from gapgnn.privacy import aggregation as aggregation_module
from gapgnn.privacy.aggregation import PrivateAggregation, row_normalise
from gapgnn.privacy.noise import NoiseSource
from gapgnn.rng import NoiseKey

KEY = NoiseKey.insecure(0)


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


def random_graph(num_nodes=300, num_arcs=4000, *, directed=False, seed=0):
    rng = np.random.default_rng(seed)
    arcs = rng.integers(0, num_nodes, (num_arcs, 2)).tolist()
    return graph_of(arcs, num_nodes, directed=directed)


def unit_rows(num_rows, width=5, seed=0, replicas=None):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, width) if replicas is None else (replicas, num_rows, width)
    return row_normalise(torch.randn(shape, generator=generator))


def private(graph, level="edge", relation=None, *, keys=(KEY,), multiplier=2.0, **options):
    default = {"edge": "undirected", "node": "add-remove", "none": "none"}[level]
    return PrivateAggregation(
        graph,
        level=level,
        relation=relation or default,
        noise_multiplier=0.0 if level == "none" else multiplier,
        keys=keys,
        **options,
    )


def remove_noise(monkeypatch):
    """Make hops return the sums themselves: no noise, no normalisation, all else as shipped."""
    monkeypatch.setattr(
        NoiseSource,
        "gaussian_rows",
        lambda self, first, rows, columns, std, *path, device="cpu": torch.zeros(
            rows, columns, device=device
        ),
    )
    monkeypatch.setattr(aggregation_module, "row_normalise", lambda values: values)
