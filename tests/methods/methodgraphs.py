"""Small graphs on which methods are quick."""

from __future__ import annotations

from gapgnn.graph.graph import Graph
from gapgnn.graph.synthetic import social_graph
from gapgnn.graph.transforms import random_split


def small_graph(*, num_nodes: int = 400, seed: int = 0) -> Graph:
    return random_split(
        social_graph(num_nodes=num_nodes, mean_degree=20, num_classes=3, seed=seed), seed=seed
    )
