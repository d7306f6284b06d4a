"""Graphs with two edge types that are unlike each other, for whatever may look at one type only.

The first type by name, calls, has few edges, short lists, no weights and no strangers. The second
one, visits, has most edges, long lists and, where asked for, weights and people without a row.
"""

from __future__ import annotations

import numpy as np

from gapgnn import Graph
from gapgnn.graph import join_edge_types
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import random_split

NUM_NODES = 120
FEW, MANY = 1, 12
STRANGERS = [900, 901, 902]


def unlike_types(
    *, directed: bool = False, strangers: bool = False, weighted: bool = False
) -> Graph:
    """Return a graph of calls, of which everybody has about one, and of many visits."""
    people = random_split(
        generate(num_nodes=NUM_NODES, mean_degree=4, num_features=4, num_classes=3), seed=0
    )
    graphs = {}
    for name, length in (("calls", FEW), ("visits", MANY)):
        owners = np.repeat(np.arange(NUM_NODES), length)
        steps = np.tile(np.arange(1, length + 1), NUM_NODES)
        is_visits = name == "visits"
        graphs[name] = Graph.from_arcs(
            owners,
            (owners + (steps if is_visits else 7)) % NUM_NODES,
            num_nodes=NUM_NODES,
            directed=directed,
            dangling={3: STRANGERS[:2], 8: STRANGERS[1:]} if strangers and is_visits else None,
            weights=np.linspace(1, 9, len(owners)) if weighted and is_visits else None,
            weight_bounds=(1.0, 9.0),
            features=people.features,
            labels=people.labels,
            label_names=("red", "green", "blue"),
            ids=people.ids,
            train_mask=people.train_mask,
            val_mask=people.val_mask,
            test_mask=people.test_mask,
        )
    return join_edge_types(graphs)
