"""Graphs from and to PyTorch Geometric, NetworkX and SciPy.

A round trip gives the same graph: ids, direction, dangling entries and kept self-loops are stored
as extra attributes. Edge weights are read on request, with declared bounds; weights and attributes
that are not read cause a warning. A PyG ``HeteroData`` of one node type becomes a graph with its
edge types; into other libraries such a graph is converted one edge type at a time. Without
``directed`` and without a stored direction, each ``from_`` function checks whether every arc has
its reverse: then the graph is undirected. torch, PyG and NetworkX are loaded only when they are
needed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError, InputError
from gapgnn.graph import csr
from gapgnn.graph.canonical import NotFinite, as_inferred, note_of, options_of_note
from gapgnn.graph.graph import KEPT_WHOLE, MASKS, Graph, SelfLoops
from gapgnn.graph.transforms import join_edge_types

if TYPE_CHECKING:
    import networkx
    import torch
    from torch_geometric.data import Data, HeteroData


def as_graph(obj: object, *, not_finite: NotFinite = "refuse") -> Graph:
    """Return a Graph unchanged, convert what can be converted, and refuse anything else.

    Args:
        obj: a Graph, what ``read_tables`` returned, a PyG ``Data`` or ``HeteroData`` (see
            :func:`from_pyg`) or a NetworkX graph (see :func:`from_networkx`).
        not_finite: what to do with a row of ``x`` that holds NaN or infinity (see
            :meth:`Graph.from_arcs`); a Graph has none.

    >>> as_graph([1, 2])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `graph` must be a Graph, tables ... or a NetworkX graph. Got list.
    """
    if isinstance(obj, Graph):
        return obj
    # A Data can only exist if PyG was imported, so the check does not import it.
    if any(_is_a(obj, "torch_geometric.data", name) for name in ("Data", "HeteroData")):
        return from_pyg(obj, not_finite=not_finite)
    if _is_a(obj, "networkx", "Graph"):
        return from_networkx(obj, not_finite=not_finite)
    if _is_a(obj, "gapgnn.graph.tables.read", "Tables"):
        return obj.graph  # type: ignore[attr-defined, no-any-return]
    hint = f" {KEPT_WHOLE}" if hasattr(obj, "shape") else ""
    raise InputError(
        "`graph` must be a Graph, tables that were read, a PyG Data or a NetworkX graph. "
        f"Got {type(obj).__name__}.{hint}"
    )


def _is_a(obj: object, module: str, name: str) -> bool:
    """Return whether an object is of a class, without importing the module of the class."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(obj, cls)


def from_scipy(
    adjacency: Any, features: Any, labels: ArrayLike | None = None, **options: Any
) -> Graph:
    """Build a graph from a SciPy sparse adjacency (row = source; every nonzero entry is an arc).

    The options are those of :meth:`Graph.from_arcs`, except that ``directed`` is None by default.
    The entries are the amounts of edges if ``weight_bounds`` are declared; otherwise entries that
    differ cause a warning. ``weights`` gives other amounts, one per stored entry.

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
    if options.get("weights") is not None:
        options["weights"] = np.asarray(options["weights"])[present]
    elif options.get("weight_bounds") is not None:
        options["weights"] = arcs.data[present].astype(np.float64)
    else:
        options.pop("weight_bounds", None)
        if len(np.unique(arcs.data[present])) > 1:
            what, option = "the values of `adjacency`", "weight_bounds=(LOW, HIGH)"
            _warn_ignored(what, option)
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
    _check_one_edge_type(graph)
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
        "population": graph.population,
        "preparation": graph.preparation,
        "weights": amounts_of(graph),
        "weight_bounds": graph.weight_bounds,
    }


def amounts_of(graph: Graph) -> NDArray[np.float64] | None:
    """Return amounts of arcs that their bounds turn into the same weights again."""
    if graph.weights is None:
        return None
    amounts: NDArray[np.float64] = graph.weights.astype(np.float64)
    return amounts * (graph.weight_bounds or (0.0, 1.0))[1]


def _check_one_edge_type(graph: Graph) -> None:
    if graph.more_edge_types:
        raise InputError(
            "`graph` must have one edge type to be converted. Got "
            f"{', '.join(graph.edge_type_names)}; convert each of `graph.edge_types` by itself."
        )


def _warn_ignored(what: str, option: str) -> None:
    warnings.warn(
        f"{what} are not read: every edge counts the same. Use `{option}` to weigh edges by them.",
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """Return the stack level, for who calls this, of the first line outside the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("gapgnn."):
        frame, level = frame.f_back, level + 1
    return level


def from_networkx(
    graph: networkx.Graph,
    *,
    directed: bool | None = None,
    self_loops: SelfLoops | None = None,
    not_finite: NotFinite = "refuse",
    weight: str | None = None,
    weight_bounds: tuple[float, float] | None = None,
) -> Graph:
    """Convert a NetworkX graph whose nodes carry ``x`` and maybe ``y``, masks and ``dangling``.

    Args:
        graph: its node keys, all whole numbers or all strings, become the ids. ``x`` is a sequence
            of numbers, or a mapping from column to value beside ``graph.graph["num_features"]``.
        directed: None is the direction of the NetworkX graph; False symmetrises a DiGraph.
        self_loops: ``"drop"`` (unless ``graph.graph["self_loops"]`` says otherwise) or ``"keep"``.
        not_finite: ``"refuse"`` rows of ``x`` with NaN or infinity, or make them ``"zero"``.
        weight: the edge attribute with amounts, which become weights.
        weight_bounds: the declared bounds of the amounts, 0 <= low < high.

    >>> import networkx
    >>> friends = networkx.Graph([("ann", "bob"), ("bob", "cem")])
    >>> networkx.set_node_attributes(friends, {name: [len(name), 1.0] for name in friends}, "x")
    >>> from_networkx(friends)
    Graph('graph', undirected, nodes=3, arcs=4, features=2, classes=0)
    """
    keys = _networkx_keys(graph)
    position = {key: index for index, key in enumerate(keys)}
    nodes = [graph.nodes[key] for key in keys]
    arcs = np.array(
        [(position[source], position[target]) for source, target in graph.edges()], dtype=np.int64
    ).reshape(-1, 2)
    weighed = _networkx_weights(graph, weight, weight_bounds)
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
        **weighed,
    )
    if width is None and sp.issparse(features):
        # Without a stated width, the largest column that occurs determines it.
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

    _check_one_edge_type(graph)
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
    amounts = amounts_of(graph)
    if amounts is None:
        result.add_edges_from((keys[source], keys[target]) for source, target in arcs)
        return result
    result.add_weighted_edges_from(
        (keys[source], keys[target], amount)
        for (source, target), amount in zip(arcs, amounts.tolist(), strict=True)
    )
    return result


def _networkx_keys(graph: networkx.Graph) -> list[Any]:
    """Return the node keys, which must be valid ids."""
    keys = list(graph)
    integers = all(isinstance(key, Integral) and not isinstance(key, bool) for key in keys)
    if not integers and not all(isinstance(key, str) for key in keys):
        raise DataError("Node keys must be all whole numbers or all strings. Got others.")
    if not keys:
        raise DataError("A graph must have at least one node. Got 0.")
    return keys


def _networkx_weights(
    graph: networkx.Graph, weight: str | None, bounds: tuple[float, float] | None
) -> dict[str, Any]:
    """Return the amounts of edges and their bounds, or warn about attributes that are not read."""
    weight, bounds = _weight_of_note(graph.graph, "weight", weight, bounds)
    if weight is not None:
        amounts = [_amount(about.get(weight)) for _, _, about in graph.edges(data=True)]
        return {"weights": np.array(amounts, dtype=np.float64), "weight_bounds": bounds}
    attributes = sorted({str(key) for _, _, about in graph.edges(data=True) for key in about})
    if attributes:
        names = ", ".join(f"`{name}`" for name in attributes)
        option = f'from_networkx(graph, weight="{attributes[0]}", weight_bounds=(LOW, HIGH))'
        _warn_ignored(f"the edge attributes {names}", option)
    return {}


def _weight_of_note(
    note: Mapping[str, Any],
    name: str,
    weight: str | None,
    bounds: tuple[float, float] | None,
) -> tuple[str | None, tuple[float, float] | None]:
    """Return the attribute with amounts and their bounds: as given, or as a conversion noted."""
    if weight is None and bounds is None and note.get("weight_bounds") is not None:
        low, high = note["weight_bounds"]
        return name, (float(low), float(high))
    if (weight is None) != (bounds is None):
        names = ("weight", "weight_bounds")
        given, missing = names if bounds is None else names[::-1]
        raise InputError(f"`{given}` must come with `{missing}`. Got none.")
    return weight, bounds


def _amount(value: Any) -> float:
    """Return an amount, NaN where it is missing or not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


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
            # Values out of the range of float32 become infinite, and `not_finite` applies.
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


def from_pyg(
    data: Data | HeteroData,
    *,
    directed: bool | None = None,
    self_loops: SelfLoops | None = None,
    not_finite: NotFinite = "refuse",
    weight: str | None = None,
    weight_bounds: tuple[float, float] | None = None,
) -> Graph:
    """Convert a PyG ``Data`` with ``x``, ``edge_index`` or ``adj_t``, and maybe ``y`` and masks.

    Args:
        data: one homogeneous graph, or a ``HeteroData`` of one node type and one or more edge
            types. ``adj_t`` (row = target) may be a torch sparse tensor.
        directed: None looks at ``data.directed`` and then at the arcs; False symmetrises. Edge
            types all have a direction if one of them has.
        self_loops: ``"drop"`` (unless ``data.self_loops`` says otherwise) or ``"keep"``.
        not_finite: ``"refuse"`` rows of ``x`` with NaN or infinity, or make them ``"zero"``.
        weight: the attribute with amounts, which become weights: ``"edge_weight"``, or
            ``"edge_attr"`` with one column. Without it, both are ignored with a warning. Edge
            types without the attribute have no weights.
        weight_bounds: the declared bounds of the amounts, 0 <= low < high.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=3, features=np.eye(3), labels=[0, 1, 1])
    >>> from_pyg(to_pyg(graph))
    Graph('graph', undirected, nodes=3, arcs=2, features=3, classes=2)
    """
    if _is_a(data, "torch_geometric.data", "HeteroData"):
        return _from_hetero(
            data, directed, weight, weight_bounds, self_loops=self_loops, not_finite=not_finite
        )
    return _from_note(
        data.to_dict(),
        directed,
        weight,
        weight_bounds,
        self_loops=self_loops,
        not_finite=not_finite,
    )


def _from_hetero(
    data: Any,
    directed: bool | None,
    weight: str | None,
    bounds: tuple[float, float] | None,
    **options: Any,
) -> Graph:
    """Convert a ``HeteroData``: the graph of each edge type by itself, over the same nodes."""
    kept = sorted(set(data.node_types))
    if len(kept) != 1 or not data.edge_types:
        raise DataError(
            "`data` must have one node type and at least one edge type. Got the node types "
            f"{', '.join(map(repr, kept)) or 'none'}: keep one of them and the edges within it."
        )
    nodes = data[kept[0]].to_dict()
    stores = {edge_type[1]: data[edge_type].to_dict() for edge_type in data.edge_types}
    if weight is not None and not any(arcs.get(weight) is not None for arcs in stores.values()):
        raise DataError(f"`weight` must be an attribute of an edge type. Got {weight!r}.")

    def converted(direction: bool | None) -> dict[str, Graph]:
        graphs = {}
        for name, arcs in stores.items():
            is_weighed = weight is not None and arcs.get(weight) is not None
            weighed = (weight, bounds) if is_weighed or weight is None else (None, None)
            graphs[name] = _from_note({**nodes, **arcs}, direction, *weighed, **options)
        return graphs

    graphs = converted(directed)
    if len({graph.is_directed for graph in graphs.values()}) > 1:
        graphs = converted(True)
    return join_edge_types(graphs)


def _from_note(
    note: Mapping[str, Any],
    directed: bool | None,
    weight: str | None,
    weight_bounds: tuple[float, float] | None,
    *,
    self_loops: SelfLoops | None,
    not_finite: NotFinite,
) -> Graph:
    """Convert the attributes of nodes and of one edge type."""
    if note.get("x") is None:
        raise DataError("`data` must have node features `x`. Got none.")
    features = _from_torch(note["x"])
    num_nodes = int(features.shape[0])
    sources, targets = _pyg_arcs(note)
    parts: dict[str, Any] = {key: _pyg_vector(note, key) for key in ("y", *MASKS)}
    parts |= _pyg_weights(note, len(sources), weight, weight_bounds)
    return Graph.from_arcs(
        sources,
        targets,
        directed=note.get("directed") if directed is None else directed,
        num_nodes=num_nodes,
        features=features,
        labels=parts.pop("y"),
        ids=note.get("ids"),
        name=note.get("name", "graph"),
        dangling=note.get("dangling"),
        not_finite=not_finite,
        **options_of_note(note, directed, self_loops),
        **parts,
    )


def to_pyg(graph: Graph) -> Data:
    """Convert to a PyG ``Data``; sparse features become a sparse COO tensor.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), ids=["ann", "bob"])
    >>> to_pyg(graph).edge_index.tolist()
    [[0, 1], [1, 0]]
    """
    import torch

    _check_one_edge_type(graph)
    with warnings.catch_warnings():
        # PyG scripts its models on import, which recent torch versions call deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data

    arcs = np.stack([csr.sources(graph.indptr, graph.indices.dtype), graph.indices]).astype(
        np.int64, copy=False
    )
    data = Data(
        x=_to_torch(graph.features),
        edge_index=torch.from_numpy(arcs),
        y=torch.tensor(graph.labels),
        num_nodes=graph.num_nodes,
        directed=graph.is_directed,
        ids=graph.ids.tolist() if graph.ids.dtype.kind == "U" else torch.tensor(graph.ids),
        **{mask: torch.tensor(getattr(graph, mask)) for mask in MASKS},
        **{k: list(v) if isinstance(v, tuple) else v for k, v in note_of(graph).items()},
    )
    if graph.num_dangling:
        lists = graph.dangling_lists()
        data.dangling = {node: names.tolist() for node, names in lists.items()}
    if (amounts := amounts_of(graph)) is not None:
        data.edge_weight = torch.from_numpy(amounts)
    return data


def _pyg_weights(
    note: Mapping[str, Any],
    count: int,
    weight: str | None,
    bounds: tuple[float, float] | None,
) -> dict[str, Any]:
    """Return the amounts of arcs and their bounds, or warn about attributes that are not read."""
    weight, bounds = _weight_of_note(note, "edge_weight", weight, bounds)
    if weight is None:
        ignored = [key for key in ("edge_weight", "edge_attr") if note.get(key) is not None]
        if ignored:
            option = f'from_pyg(data, weight="{ignored[0]}", weight_bounds=(LOW, HIGH))'
            _warn_ignored(" and ".join(f"`{key}`" for key in ignored), option)
        return {}
    amounts = _pyg_vector(note, weight)
    if amounts is None:
        raise DataError(f"`weight` must be an attribute of `data`. Got {weight!r}.")
    if len(amounts) != count:
        raise DataError(f"`{weight}` must have one entry per arc ({count}). Got {len(amounts)}.")
    return {"weights": amounts.astype(np.float64), "weight_bounds": bounds}


def _pyg_arcs(note: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sources and targets from ``edge_index`` or ``adj_t``."""
    arcs = note.get("edge_index")
    if arcs is not None:
        if arcs.ndim != 2 or arcs.shape[0] != 2:
            raise DataError(f"`edge_index` must have shape (2, arcs). Got {tuple(arcs.shape)}.")
        sources, targets = arcs.detach().cpu().numpy()
        return sources, targets
    transposed = note.get("adj_t")
    if transposed is None:
        raise DataError("`data` must have arcs in `edge_index` or `adj_t`. Got neither.")
    targets, sources, weights = _entries(transposed)
    return sources[weights != 0], targets[weights != 0]


def _pyg_vector(note: Mapping[str, Any], key: str) -> NDArray[Any] | None:
    """Return ``y`` or a mask as one entry per node, or None if it is not there."""
    values = note.get(key)
    if values is None:
        return None
    array: NDArray[Any] = values.detach().cpu().numpy()
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"`{key}` must have one entry per node. Got shape {array.shape}.")
    return array


def _from_torch(values: torch.Tensor) -> Any:
    """Return dense features as an array and sparse ones as SciPy CSR."""
    import torch

    if values.layout == torch.strided:
        return values.detach().cpu().numpy()
    rows, columns, entries = _entries(values)
    return sp.coo_array((entries, (rows, columns)), shape=tuple(values.shape)).tocsr()


def _entries(matrix: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rows, columns and values of a sparse tensor of any layout."""
    # A torch-sparse SparseTensor is read without importing that package.
    if hasattr(matrix, "to_torch_sparse_coo_tensor"):
        matrix = matrix.to_torch_sparse_coo_tensor()
    stored = matrix.detach().cpu().to_sparse_coo().coalesce()
    rows, columns = stored.indices().numpy()
    return rows, columns, stored.values().numpy()


def _to_torch(features: Any) -> torch.Tensor:
    """Return features as a dense or sparse COO tensor that shares no memory with the graph."""
    import torch

    if isinstance(features, np.ndarray):
        return torch.tensor(features)
    entries = features.tocoo()
    places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.tensor(entries.data)
    return torch.sparse_coo_tensor(
        places, values, features.shape, is_coalesced=True, check_invariants=False
    )
