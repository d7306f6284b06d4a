"""Graphs from and to PyTorch Geometric, NetworkX and SciPy.

Going out and coming back gives the same graph: ids, direction, dangling entries and self-loops
that were kept travel as extra attributes. Edge weights and edge attributes are not read. Unless it
is told, or finds a note left by the outward conversion, each ``from_`` function looks whether every
arc has its reverse, and calls the graph undirected if so.
"""

from __future__ import annotations

import sys
from typing import Any

import scipy.sparse as sp
from numpy.typing import ArrayLike

from gapgnn.errors import DataError, InputError
from gapgnn.graph.canonical import NotFinite
from gapgnn.graph.graph import MASKS, Graph
from gapgnn.graph.nx import from_networkx, to_networkx
from gapgnn.graph.pyg import from_pyg, to_pyg

__all__ = [
    "as_graph",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "to_networkx",
    "to_pyg",
    "to_scipy",
]


def as_graph(obj: object, *, not_finite: NotFinite = "refuse") -> Graph:
    """Return a Graph as it is and a PyG ``Data`` converted; refuse anything else.

    Args:
        obj: a graph.
        not_finite: what to do with a row of ``x`` that holds NaN or infinity (see
            :meth:`Graph.from_arcs`); a Graph has none.

    >>> as_graph([1, 2])
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `graph` must be a gapgnn Graph or a PyG Data. Got list.
    """
    if isinstance(obj, Graph):
        return obj
    # Whoever holds a Data has imported PyG; nobody else should wait for that import.
    pyg = sys.modules.get("torch_geometric.data")
    if pyg is not None and isinstance(obj, pyg.Data):
        return from_pyg(obj, not_finite=not_finite)
    raise InputError(f"`graph` must be a gapgnn Graph or a PyG Data. Got {type(obj).__name__}.")


def from_scipy(
    adjacency: Any, features: Any, labels: ArrayLike | None = None, **options: Any
) -> Graph:
    """Build a graph from a SciPy sparse adjacency (row = source; every nonzero entry is an arc).

    The options are those of :meth:`Graph.from_arcs`, except that without ``directed`` it looks at
    the arcs.

    >>> import numpy as np, scipy.sparse as sp
    >>> from_scipy(sp.csr_array([[0, 1], [1, 0]]), np.eye(2), [0, 1])
    Graph('graph', undirected, nodes=2, arcs=2, features=2, classes=2)
    """
    if not sp.issparse(adjacency):
        raise DataError(
            f"`adjacency` must be a SciPy sparse matrix. Got {type(adjacency).__name__}."
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise DataError(f"`adjacency` must be square. Got shape {adjacency.shape}.")
    arcs = adjacency.tocoo()
    present = arcs.data != 0
    return Graph.from_arcs(
        arcs.row if present.all() else arcs.row[present],
        arcs.col if present.all() else arcs.col[present],
        num_nodes=adjacency.shape[0],
        features=features,
        labels=labels,
        **{"directed": None, **options},
    )


def to_scipy(graph: Graph) -> dict[str, Any]:
    """Return the graph as the arguments of :func:`from_scipy`, the adjacency as SciPy CSR.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2))
    >>> to_scipy(graph)["adjacency"].toarray().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    >>> from_scipy(**to_scipy(graph)).fingerprint == graph.fingerprint
    True
    """
    return {
        "adjacency": graph.adjacency(),
        "features": graph.features,
        "labels": graph.labels,
        **{mask: getattr(graph, mask) for mask in MASKS},
        "ids": graph.ids,
        "directed": graph.is_directed,
        "dangling": graph.dangling_lists(),
        "label_names": graph.label_names,
        "feature_names": graph.feature_names,
        "name": graph.name,
        "self_loops": "keep" if graph.num_self_loops else "drop",
        "schema": graph.schema,
        "inferred": graph.inferred,
    }
