"""The fingerprint of a data set: SHA-256 of a graph's canonical content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.graph import csr
from gapgnn.graph.canonical import BLOCK_VALUES, Features, increases
from gapgnn.graph.weights import steps_of

if TYPE_CHECKING:
    from gapgnn.graph.graph import Graph


def fingerprint(graph: Graph) -> str:
    """Return the hexadecimal SHA-256 of arcs, weights, features, labels, ids and dangling entries.

    Nodes are read in the order of their ids and features as their nonzero values, block by block,
    so row order, dense or sparse storage and the sign of zero make no difference, and no copy of
    the features is made. The split and the name are not part of the content.

    >>> import numpy as np
    >>> from gapgnn.graph.graph import Graph
    >>> first = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), ids=["a", "b"])
    >>> other = Graph.from_arcs([1], [0], num_nodes=2, features=np.eye(2)[::-1], ids=["b", "a"])
    >>> fingerprint(first) == fingerprint(other)
    True
    """
    order = order_of_ids(graph)
    indptr, indices, weights = graph.indptr, graph.indices, None
    if graph.weights is not None:
        steps = steps_of(graph.weights)
        if order is not None:
            steps = csr.permute_weights(indptr, indices, steps, order)
        weights = hashlib.sha256(steps.astype("<u2").data)
    if order is not None:
        indptr, indices = csr.permute(indptr, indices, order)
    return digest_of(graph, order, indptr, [indices], weights)


def order_of_ids(graph: Graph) -> NDArray[np.int64] | None:
    """Return the positions of the nodes in the order of their ids; None if they are sorted."""
    return None if increases(graph.ids) else np.argsort(graph.ids, kind="stable")


def digest_of(
    graph: Graph,
    order: NDArray[np.int64] | None,
    indptr: NDArray[np.int64],
    targets: Iterable[NDArray[Any]],
    weights: Any = None,
) -> str:
    """Return the fingerprint, given the adjacency lists of the nodes in the order of their ids.

    Args:
        graph: everything but the arcs.
        order: of the nodes by their ids.
        indptr: row pointers of the adjacency lists in that order.
        targets: the targets of all arcs by their position in that order, in any pieces.
        weights: the SHA-256 of their weights; read after all targets.
    """
    labels, ids = graph.labels, graph.ids
    if order is not None:
        labels, ids = labels[order], ids[order]
    # The width depends on a size that is hashed too, never on how the arrays are stored.
    width = "<u4" if graph.num_nodes <= 1 << 32 else "<u8"
    digest = hashlib.sha256(b"gapgnn graph 1")
    digest.update(f"{graph.num_nodes} {graph.num_features} {int(graph.is_directed)}".encode())
    _update(digest, indptr, "<i8")
    digest.update(f"[{graph.num_arcs}]".encode())
    for piece in targets:
        _update_values(digest, piece, width)
    _update_features(digest, graph.features, order)
    _update(digest, labels, "<i8")
    _update_names(digest, ids)
    if graph.dangling_targets is not None and graph.dangling_indptr is not None:
        counts, names = np.diff(graph.dangling_indptr), graph.dangling_targets
        if order is not None:
            lists = graph.dangling_lists()
            counts = counts[order]
            names = np.concatenate([lists[node] for node in order.tolist() if node in lists])
        _update(digest, counts, "<i8")
        _update_names(digest, names)
    if weights is not None:
        digest.update(b"weights" + weights.digest())
    if graph.more_edge_types:
        for name in graph.edge_type_names:
            digest.update(f"kind {len(name)} {name}".encode())
        for one in graph.more_edge_types:
            digest.update(one.fingerprint.encode())
    return digest.hexdigest()


def _update(digest: Any, array: NDArray[Any], dtype: str) -> None:
    """Hash an array as little-endian values of one width, block by block to bound memory."""
    digest.update(f"[{array.size}]".encode())
    _update_values(digest, array, dtype)


def _update_values(digest: Any, array: NDArray[Any], dtype: str) -> None:
    for start in range(0, array.size, BLOCK_VALUES):
        digest.update(np.ascontiguousarray(array[start : start + BLOCK_VALUES], dtype=dtype).data)


def _update_names(digest: Any, names: NDArray[Any]) -> None:
    """Hash names with their type and lengths, so that different lists differ."""
    digest.update(names.dtype.kind.encode())
    if names.dtype.kind == "i":
        _update(digest, names, "<i8")
        return
    _update(digest, np.char.str_len(names), "<i8")
    for start in range(0, len(names), 1 << 16):
        text = "".join(names[start : start + (1 << 16)].tolist())
        digest.update(text.encode("utf-8", "surrogatepass"))


def _update_features(digest: Any, features: Features, order: NDArray[np.int64] | None) -> None:
    """Hash the nonzero values with their places; three streams, so block sizes do not matter."""
    lengths, columns, values = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for row_lengths, places, nonzeros in _nonzero_blocks(features, order):
        lengths.update(np.ascontiguousarray(row_lengths, dtype="<u4").data)
        columns.update(np.ascontiguousarray(places, dtype="<u4").data)
        values.update(np.ascontiguousarray(nonzeros, dtype="<f4").data)
    for stream in (lengths, columns, values):
        digest.update(stream.digest())


def _nonzero_blocks(
    features: Features, order: NDArray[np.int64] | None
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield, for blocks of rows: the nonzeros per row, their columns, their values."""
    count = features.shape[0]
    rows = max(1, BLOCK_VALUES // max(1, features.shape[1]))
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        block = features[slice(start, stop) if order is None else order[start:stop]]
        if isinstance(block, np.ndarray):
            present = block != 0
            yield present.sum(axis=1), np.nonzero(present)[1], block[present]
        else:
            yield np.diff(block.indptr), block.indices, block.data
