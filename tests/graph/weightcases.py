"""Random graphs whose edges have weights, and several edge types."""

from __future__ import annotations

from typing import Any

import numpy as np
from graph_strategies import graph_parts
from hypothesis import strategies as st

from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import join_edge_types

AMOUNTS = st.sampled_from([0.0, 1.0, 2.5, 7.0, 1e-9, 1e300, -3.0, np.nan, np.inf, -np.inf])
BOUNDS = st.sampled_from([(0.0, 1.0), (0.0, 5.0), (1.0, 100.0), (3, 3.5)])


@st.composite
def weighted_parts(draw: st.DrawFn) -> dict[str, Any]:
    parts = draw(graph_parts())
    count = len(parts["sources"])
    amounts = draw(st.lists(AMOUNTS, min_size=count, max_size=count))
    return {**parts, "weights": np.array(amounts), "weight_bounds": draw(BOUNDS)}


@st.composite
def weighted_graphs(draw: st.DrawFn) -> Graph:
    return Graph.from_arcs(**draw(weighted_parts()))


@st.composite
def edge_type_graphs(draw: st.DrawFn) -> Graph:
    """Two or three edge types over the same nodes, some with weights."""
    first = draw(graph_parts())
    graph = Graph.from_arcs(**first)
    node = st.integers(0, graph.num_nodes - 1)
    found = {"calls": graph}
    for name in draw(st.lists(st.sampled_from(["aunts", "visits"]), min_size=1, unique=True)):
        arcs = draw(st.lists(st.tuples(node, node), max_size=12))
        weights = draw(st.one_of(st.none(), st.just(np.linspace(0, 1, len(arcs)))))
        found[name] = Graph.from_arcs(
            [u for u, _ in arcs],
            [v for _, v in arcs],
            num_nodes=graph.num_nodes,
            features=np.zeros((graph.num_nodes, 1)),
            directed=graph.is_directed,
            ids=graph.ids,
            weights=weights,
        )
    return join_edge_types(found)
