"""Graphs from and to NetworkX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from gapgnn.errors import DataError
from gapgnn.graph import csr
from gapgnn.graph.canonical import NotFinite, as_inferred, note_of, options_of_note
from gapgnn.graph.graph import MASKS, Graph, SelfLoops

if TYPE_CHECKING:
    import networkx


def from_networkx(
    graph: networkx.Graph,
    *,
    directed: bool | None = None,
    self_loops: SelfLoops | None = None,
    not_finite: NotFinite = "refuse",
) -> Graph:
    """Convert a NetworkX graph whose nodes carry ``x`` and maybe ``y``, masks and ``dangling``.

    Args:
        graph: its node keys, all whole numbers or all strings, become the ids. ``x`` is a sequence
            of numbers, or a mapping from column to value beside ``graph.graph["num_features"]``.
        directed: None takes the graph's own word; False symmetrises a DiGraph.
        self_loops: ``"drop"`` (unless ``graph.graph["self_loops"]`` says otherwise) or ``"keep"``.
        not_finite: ``"refuse"`` rows of ``x`` with NaN or infinity, or make them ``"zero"``.

    >>> import networkx
    >>> friends = networkx.Graph([("ann", "bob"), ("bob", "cem")])
    >>> networkx.set_node_attributes(friends, {name: [len(name), 1.0] for name in friends}, "x")
    >>> from_networkx(friends)
    Graph('graph', undirected, nodes=3, arcs=4, features=2, classes=0)
    """
    keys = list(graph)
    integers = all(isinstance(key, Integral) and not isinstance(key, bool) for key in keys)
    if not integers and not all(isinstance(key, str) for key in keys):
        raise DataError("Node keys must be all whole numbers or all strings. Got others.")
    if not keys:
        raise DataError("A graph must have at least one node. Got 0.")
    position = {key: index for index, key in enumerate(keys)}
    nodes = [graph.nodes[key] for key in keys]
    arcs = np.array(
        [(position[source], position[target]) for source, target in graph.edges()], dtype=np.int64
    ).reshape(-1, 2)
    labelled = any("y" in node for node in nodes)
    masks: dict[str, Any] = {key: [bool(node.get(key)) for node in nodes] for key in MASKS}
    width = graph.graph.get("num_features")
    features = _node_features(keys, nodes, width)
    result = Graph.from_arcs(
        arcs[:, 0],
        arcs[:, 1],
        directed=graph.is_directed() if directed is None else directed,
        num_nodes=len(keys),
        features=features,
        labels=np.array([node.get("y", -1) for node in nodes]) if labelled else None,
        ids=keys,
        name=graph.graph.get("name") or "graph",
        dangling={i: node["dangling"] for i, node in enumerate(nodes) if "dangling" in node},
        not_finite=not_finite,
        **options_of_note(graph.graph, directed, self_loops),
        **masks,
    )
    if width is None and sp.issparse(features):
        # Nobody stated the width, so it is the largest column that somebody has.
        return replace(result, inferred=as_inferred([*result.inferred, "columns"]))
    return result


def to_networkx(graph: Graph) -> networkx.Graph:
    """Convert to a NetworkX ``Graph``, or ``DiGraph`` if directed; the ids become the node keys.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), ids=["ann", "bob"])
    >>> to_networkx(graph).edges()
    EdgeView([('ann', 'bob')])
    """
    import networkx

    result = networkx.DiGraph() if graph.is_directed else networkx.Graph()
    result.graph.update(note_of(graph), num_features=graph.num_features)
    keys = graph.ids.tolist()
    columns = {key: getattr(graph, key).tolist() for key in MASKS}
    for index, key in enumerate(keys):
        attributes = {"y": int(graph.labels[index]), **{m: columns[m][index] for m in MASKS}}
        result.add_node(key, x=_row(graph, index), **attributes)
    for index, names in graph.dangling_lists().items():
        result.nodes[keys[index]]["dangling"] = names.tolist()
    arcs = zip(
        csr.sources(graph.indptr, graph.indices.dtype).tolist(), graph.indices.tolist(), strict=True
    )
    result.add_edges_from((keys[source], keys[target]) for source, target in arcs)
    return result


def _row(graph: Graph, index: int) -> Any:
    """Return one node's features: an array, or column and value of the nonzeros."""
    features = graph.features
    if isinstance(features, np.ndarray):
        return features[index]
    span = slice(features.indptr[index], features.indptr[index + 1])
    return dict(zip(features.indices[span].tolist(), features.data[span].tolist(), strict=True))


def _node_features(keys: list[Any], nodes: list[Any], width: int | None) -> Any:
    """Gather ``x`` of all nodes: dense if the rows are sequences, sparse if they are mappings."""
    rows = [node.get("x") for node in nodes]
    missing = [key for key, row in zip(keys, rows, strict=True) if row is None]
    if missing:
        raise DataError(
            f"Every node must have features `x`. Got {len(missing)} without, first {missing[0]!r}."
        )
    mappings = sum(isinstance(row, Mapping) for row in rows)
    if not mappings:
        try:
            # What float32 cannot hold becomes infinite, and is dealt with as such.
            with np.errstate(over="ignore"):
                return np.array(rows, dtype=np.float32)
        except (TypeError, ValueError):
            raise DataError(
                "`x` must be equally many numbers for every node. Got others."
            ) from None
    if mappings < len(rows):
        raise DataError("`x` must be a mapping for all nodes or for none. Got both.")
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    columns = np.array([column for row in rows for column in row], dtype=np.int64)
    with np.errstate(over="ignore"):
        values = np.array([value for row in rows for value in row.values()], dtype=np.float32)
    if width is None:
        width = int(columns.max()) + 1 if len(columns) else 0
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise DataError(f"`x` must use columns below {width}. Got {columns.max()}.")
    return sp.csr_array((values, columns, indptr), shape=(len(rows), width))
