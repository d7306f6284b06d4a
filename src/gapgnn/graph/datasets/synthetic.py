"""The built-in social graph, and generated graphs of any size."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph, random_split
from gapgnn.graph.datasets.blockmodel import BlockModel, FeatureKind


def social_graph(
    *, num_nodes: int = 10_000, mean_degree: float = 60, num_classes: int = 6, seed: int = 0
) -> Graph:
    """Generate a social network that looks like those of Facebook100, split 75/10/15.

    Degrees are heavy-tailed, friends tend to share a class, and five profile fields (status,
    gender, major, minor, housing; one-hot, partly missing) say a little about it: features alone
    reach about 50 % with the default arguments, features and friends together almost 90 %.

    Args:
        num_nodes: number of people.
        mean_degree: mean number of friends, met within a few percent.
        num_classes: number of classes; the largest has about twice the people of the smallest.
        seed: equal arguments and seeds give equal graphs and splits.

    >>> graph = social_graph(num_nodes=1_000, mean_degree=20)
    >>> graph.name, graph.num_nodes, graph.num_features, graph.num_classes
    ('social', 1000, 349, 6)
    """
    return generate(
        num_nodes=num_nodes,
        mean_degree=mean_degree,
        num_features=349,
        num_classes=num_classes,
        features="profile",
        seed=seed,
        name="social",
    )


def generate(
    *,
    num_nodes: int,
    mean_degree: float | None = None,
    num_arcs: int | None = None,
    num_features: int = 100,
    num_classes: int = 10,
    features: FeatureKind = "gaussian",
    seed: int = 0,
    name: str = "generated",
) -> Graph:
    """Generate an undirected graph of a given size from a degree-corrected block model.

    Args:
        num_nodes: number of nodes.
        mean_degree: mean number of neighbours, met within a few percent.
        num_arcs: the same as a number of arcs (twice the edges); give one of the two.
        num_features: number of feature columns.
        num_classes: number of classes; the largest has about twice the nodes of the smallest.
        features: ``"gaussian"`` (dense) or ``"profile"`` (sparse one-hot of five profile fields).
        seed: equal arguments and seeds give equal graphs and splits (75/10/15).
        name: for people.

    >>> graph = generate(num_nodes=500, mean_degree=10, num_features=8, num_classes=3)
    >>> graph.features.shape, graph.is_directed
    ((500, 8), False)
    """
    check_integer("num_nodes", num_nodes, at_least=2)
    if num_arcs is not None and mean_degree is None:
        mean_degree = check_integer("num_arcs", num_arcs, at_least=0) / num_nodes
    elif num_arcs is not None or mean_degree is None:
        raise InputError(
            "`mean_degree` or `num_arcs` must be given, one of them. Got both or none."
        )
    model = BlockModel(
        num_nodes=num_nodes,
        mean_degree=mean_degree,
        num_classes=num_classes,
        num_features=num_features,
        features=features,
        seed=seed,
    )
    return random_split(_in_memory(model, name), seed=seed)


def _in_memory(model: BlockModel, name: str) -> Graph:
    """Draw every piece of the model and put the pieces together."""
    dtype = np.int32 if model.num_nodes <= np.iinfo(np.int32).max else np.int64
    sources, targets, labels = [], [], []
    dense = np.empty(
        (model.num_nodes if model.features == "gaussian" else 0, model.num_features), np.float32
    )
    sparse = []
    for first in range(model.num_blocks):
        left = model.nodes(first)
        labels.append(left.labels)
        features = model.features_of(first, left.labels)
        if isinstance(features, np.ndarray):
            dense[left.first : left.first + len(features)] = features
        else:
            sparse.append(features)
        del features
        for second in range(first, model.num_blocks):
            right = left if second == first else model.nodes(second)
            start, end = model.edges(first, second, blocks=(left, right))
            sources.append(start.astype(dtype))
            targets.append(end.astype(dtype))
    # Nobody else holds this array, so the graph may share it.
    dense.flags.writeable = False
    source_ends = np.concatenate(sources)
    sources.clear()
    target_ends = np.concatenate(targets)
    targets.clear()
    return Graph.from_arcs(
        source_ends,
        target_ends,
        num_nodes=model.num_nodes,
        features=sp.vstack(sparse, format="csr") if sparse else dense,
        labels=np.concatenate(labels),
        label_names=tuple(f"class {number}" for number in range(model.num_classes)),
        name=name,
    )
