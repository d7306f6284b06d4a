"""Graphs from and to PyTorch Geometric; neither torch nor PyG is loaded before it is needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph import csr
from gapgnn.graph.canonical import NotFinite, note_of, options_of_note
from gapgnn.graph.graph import MASKS, Graph, SelfLoops

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


def from_pyg(
    data: Data,
    *,
    directed: bool | None = None,
    self_loops: SelfLoops | None = None,
    not_finite: NotFinite = "refuse",
) -> Graph:
    """Convert a PyG ``Data`` with ``x``, ``edge_index`` or ``adj_t``, and maybe ``y`` and masks.

    Args:
        data: one homogeneous graph. ``adj_t`` (row = target) may be a torch sparse tensor.
        directed: None looks at ``data.directed`` and then at the arcs; False symmetrises.
        self_loops: ``"drop"`` (unless ``data.self_loops`` says otherwise) or ``"keep"``.
        not_finite: ``"refuse"`` rows of ``x`` with NaN or infinity, or make them ``"zero"``.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=3, features=np.eye(3), labels=[0, 1, 1])
    >>> from_pyg(to_pyg(graph))
    Graph('graph', undirected, nodes=3, arcs=2, features=3, classes=2)
    """
    note = data.to_dict()
    if note.get("x") is None:
        raise DataError("`data` must have node features `x`. Got none.")
    features = _from_torch(note["x"])
    num_nodes = int(features.shape[0])
    sources, targets = _pyg_arcs(note)
    parts: dict[str, Any] = {key: _pyg_vector(note, key) for key in ("y", *MASKS)}
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
    return data


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
