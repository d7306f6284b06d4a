"""Graph: the private data itself, validated once and never changed afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError

Features = NDArray[np.float32] | sp.csr_array
INT32_MAX = np.iinfo(np.int32).max


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Take a read-only array as it is and copy a writable one, so nobody can change it later."""
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def _frozen_csr(matrix: Any) -> sp.csr_array:
    """Return features as canonical float32 CSR: sorted, without duplicates or stored zeros."""
    matrix = sp.csr_array(matrix, dtype=np.float32, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with node features, labels and split masks.

    Build one with :meth:`from_arcs` (or a function of :mod:`gapgnn.graph.convert`); transforms return
    new graphs. Row ``u`` of the adjacency is the out-list of node ``u``, so aggregation over
    in-neighbours is ``adjacency.T @ X``.

    Attributes:
        indptr: CSR row pointers of the out-lists, ``num_nodes + 1`` long.
        indices: targets, sorted inside each out-list, without duplicates; int32 where they fit.
        features: ``(num_nodes, num_features)``, dense float32 or sparse CSR (one-hot stays sparse).
        labels: class of each node, ``-1`` where unknown.
        train_mask: nodes whose label may be used to train. ``val_mask`` and ``test_mask`` likewise.
        ids: what each node is called outside: integers or strings, unique.
        is_directed: False promises a symmetric adjacency.
        dangling_indptr: CSR row pointers of the dangling entries of each out-list, or None.
        dangling_targets: the outside names of nodes that are listed but have no record here. They
            contribute nothing but keep their slot when an out-list is cut (privacy page, section 1).
        label_names: the outside name of each class, in the order of ``labels``.
        name: a human-readable name, not part of the content.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    features: Features
    labels: NDArray[np.int64]
    train_mask: NDArray[np.bool_]
    val_mask: NDArray[np.bool_]
    test_mask: NDArray[np.bool_]
    ids: NDArray[Any]
    is_directed: bool
    dangling_indptr: NDArray[np.int64] | None = None
    dangling_targets: NDArray[Any] | None = None
    label_names: tuple[str, ...] | None = None
    name: str = field(default="graph")

    @classmethod
    def from_arcs(
        cls,
        sources: ArrayLike,
        targets: ArrayLike,
        *,
        num_nodes: int,
        features: Any,
        labels: ArrayLike | None = None,
        train_mask: ArrayLike | None = None,
        val_mask: ArrayLike | None = None,
        test_mask: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        directed: bool = False,
        dangling: Mapping[Any, ArrayLike] | None = None,
        label_names: tuple[str, ...] | None = None,
        name: str = "graph",
    ) -> Graph:
        """Build a graph from two arrays of node positions, one entry per arc.

        Duplicate arcs and self-loops are dropped. With ``directed=False`` every arc is also stored in
        the other direction, so each undirected edge may be given once or twice.

        Args:
            sources: position (0 to ``num_nodes - 1``) of each arc's source.
            targets: position of each arc's target.
            num_nodes: number of nodes, those without arcs included.
            features: array-like or SciPy sparse matrix with one row per node.
            labels: class per node, ``-1`` for unknown; all unknown if left out.
            train_mask: boolean per node; nobody if left out. ``val_mask``, ``test_mask`` likewise.
            ids: outside names; ``0 .. num_nodes - 1`` if left out.
            directed: whether an arc u->v says nothing about v->u.
            dangling: for a node's position, the outside names it lists that have no record.
            label_names: outside name of each class.
            name: for people.

        >>> import numpy as np
        >>> graph = Graph.from_arcs([0, 1, 1], [1, 2, 1], num_nodes=3, features=np.eye(3))
        >>> graph.num_arcs, graph.out_list(1).tolist()
        (4, [0, 2])
        """
        indptr, indices = _build_csr(sources, targets, num_nodes, symmetric=not directed)
        dangling_indptr, dangling_targets = _build_dangling(dangling, num_nodes)
        return cls._checked(
            indptr=indptr,
            indices=indices,
            features=features,
            labels=np.full(num_nodes, -1) if labels is None else labels,
            train_mask=np.zeros(num_nodes, bool) if train_mask is None else train_mask,
            val_mask=np.zeros(num_nodes, bool) if val_mask is None else val_mask,
            test_mask=np.zeros(num_nodes, bool) if test_mask is None else test_mask,
            ids=np.arange(num_nodes) if ids is None else ids,
            is_directed=directed,
            dangling_indptr=dangling_indptr,
            dangling_targets=dangling_targets,
            label_names=label_names,
            name=name,
        )

    @classmethod
    def _checked(cls, **parts: Any) -> Graph:
        """Bring every part into canonical form, then validate the whole."""
        features = parts["features"]
        if sp.issparse(features):
            features = _frozen_csr(features)
        else:
            features = np.asarray(features)
            if features.ndim != 2:
                raise DataError(f"`features` must have two dimensions. Got {features.ndim}.")
            try:
                features = _frozen(np.ascontiguousarray(features, dtype=np.float32))
            except (TypeError, ValueError):
                raise DataError(f"`features` must be numbers. Got {features.dtype}.") from None
        parts["features"] = features
        labels = np.asarray(parts["labels"])
        if labels.dtype.kind not in "iu":
            raise DataError(f"`labels` must be whole numbers, -1 for unknown. Got {labels.dtype}.")
        parts["labels"] = _frozen(np.ascontiguousarray(labels, dtype=np.int64))
        for mask in ("train_mask", "val_mask", "test_mask"):
            values = np.asarray(parts[mask])
            if values.dtype != np.bool_:
                raise DataError(f"`{mask}` must be boolean. Got {values.dtype}.")
            parts[mask] = _frozen(np.ascontiguousarray(values))
        ids = np.asarray(parts["ids"])
        if ids.dtype.kind == "O":
            ids = ids.astype(str)
        if ids.dtype.kind in "iu":
            ids = ids.astype(np.int64)
        elif ids.dtype.kind != "U":
            raise DataError(f"`ids` must be whole numbers or strings. Got {ids.dtype}.")
        parts["ids"] = _frozen(np.ascontiguousarray(ids))
        if parts.get("label_names") is not None:
            parts["label_names"] = tuple(str(label) for label in parts["label_names"])
        for key in ("indptr", "indices", "dangling_indptr", "dangling_targets"):
            if parts.get(key) is not None:
                parts[key] = _frozen(np.ascontiguousarray(parts[key]))
        graph = cls(**parts)
        graph._validate()
        return graph

    def _validate(self) -> None:
        n = self.num_nodes
        if n < 1:
            raise DataError("A graph must have at least one node. Got 0.")
        rows = {
            "features": self.features.shape[0],
            "labels": self.labels.shape,
            "train_mask": self.train_mask.shape,
            "val_mask": self.val_mask.shape,
            "test_mask": self.test_mask.shape,
            "ids": self.ids.shape,
        }
        for key, shape in rows.items():
            if shape not in (n, (n,)):
                raise DataError(f"`{key}` must have one entry per node ({n}). Got shape {shape}.")
        values = self.features.data if sp.issparse(self.features) else self.features
        if not np.isfinite(values).all():
            raise DataError("`features` must be finite. Got NaN or infinity.")
        if self.labels.min() < -1:
            raise DataError(f"`labels` must be at least -1. Got {self.labels.min()}.")
        if self.label_names is not None and self.labels.max() >= len(self.label_names):
            raise DataError(
                f"`label_names` must name every class. Got {len(self.label_names)} names for class "
                f"{self.labels.max()}."
            )
        if len(np.unique(self.ids)) != n:
            raise DataError(f"`ids` must be unique. Got {n - len(np.unique(self.ids))} repeated.")
        masks = {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            if (masks[first] & masks[second]).any():
                raise DataError(
                    f"`{first}_mask` and `{second}_mask` must not overlap. "
                    f"Got {int((masks[first] & masks[second]).sum())} shared nodes."
                )
        for key, mask in masks.items():
            unknown = int((self.labels[mask] < 0).sum())
            if unknown:
                raise DataError(f"`{key}_mask` must select labelled nodes. Got {unknown} without.")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        """Number of stored arcs; an undirected edge counts twice. Dangling entries do not count."""
        return len(self.indices)

    @property
    def num_edges(self) -> int:
        """Number of protected entities at edge level: arcs, or unordered pairs if undirected."""
        return self.num_arcs if self.is_directed else self.num_arcs // 2

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        """Number of classes: named ones, or one more than the largest label."""
        if self.label_names is not None:
            return len(self.label_names)
        return int(self.labels.max()) + 1

    @property
    def num_dangling(self) -> int:
        """Number of out-list entries that name nobody with a record here."""
        return 0 if self.dangling_targets is None else len(self.dangling_targets)

    @cached_property
    def out_degrees(self) -> NDArray[np.int64]:
        """Length of every out-list, dangling entries included (they hold a slot)."""
        degrees = np.diff(self.indptr)
        if self.dangling_indptr is not None:
            degrees = degrees + np.diff(self.dangling_indptr)
        return degrees

    def out_list(self, node: int) -> NDArray[Any]:
        """Return the targets of one node, by position."""
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def adjacency(self) -> sp.csr_array:
        """Return the adjacency as SciPy CSR (row = source) with unit float32 values."""
        indptr = self.indptr
        if self.indices.dtype == np.int32 and self.num_arcs <= INT32_MAX:
            indptr = indptr.astype(np.int32)
        ones = np.ones(self.num_arcs, dtype=np.float32)
        matrix = sp.csr_array((ones, self.indices, indptr), shape=(self.num_nodes,) * 2)
        matrix.has_canonical_format = True
        return matrix

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical content: what a privacy budget belongs to.

        It reads nodes in the order of their ids, so shuffling the rows of a table does not make a
        new data set, and it ignores the split and the name: training again on another split spends
        the same budget. Dense and sparse features with equal values agree.
        """
        digest = hashlib.sha256(b"gapgnn graph 1")
        order = np.argsort(self.ids, kind="stable")
        graph = self if (order == np.arange(self.num_nodes)).all() else self._permuted(order)
        features = graph.features
        if not sp.issparse(features):
            features = sp.csr_array(features)
        digest.update(f"{graph.num_nodes} {graph.num_features} {int(graph.is_directed)}".encode())
        for array in (graph.indptr, graph.indices, features.indptr, features.indices):
            _update(digest, array, np.int64)
        _update(digest, features.data, np.float32)
        _update(digest, graph.labels, np.int64)
        _update_names(digest, graph.ids)
        if graph.dangling_targets is not None and graph.dangling_indptr is not None:
            _update(digest, graph.dangling_indptr, np.int64)
            _update_names(digest, graph.dangling_targets)
        return digest.hexdigest()

    def _permuted(self, order: NDArray[np.int64]) -> Graph:
        """Return the same graph with its nodes listed in another order."""
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        counts = np.diff(self.indptr)
        sources = position[np.repeat(np.arange(self.num_nodes), counts)]
        dangling = None
        if self.dangling_indptr is not None and self.dangling_targets is not None:
            lists = np.split(self.dangling_targets, self.dangling_indptr[1:-1])
            dangling = {int(position[u]): names for u, names in enumerate(lists) if len(names)}
        return Graph.from_arcs(
            sources,
            position[self.indices],
            num_nodes=self.num_nodes,
            features=self.features[order],
            labels=self.labels[order],
            train_mask=self.train_mask[order],
            val_mask=self.val_mask[order],
            test_mask=self.test_mask[order],
            ids=self.ids[order],
            directed=True,
            dangling=dangling,
            label_names=self.label_names,
            name=self.name,
        )._replace(is_directed=self.is_directed)

    def _replace(self, **changes: Any) -> Graph:
        """Copy with some parts exchanged; everything is checked again."""
        parts = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return Graph._checked(**{**parts, **changes})

    def with_masks(
        self, train: NDArray[np.bool_], val: NDArray[np.bool_], test: NDArray[np.bool_]
    ) -> Graph:
        """Return a copy with another split; the content and the fingerprint stay the same."""
        copy = replace(
            self, train_mask=_frozen(train), val_mask=_frozen(val), test_mask=_frozen(test)
        )
        copy._validate()
        if "fingerprint" in self.__dict__:
            copy.__dict__["fingerprint"] = self.fingerprint
        return copy

    def __repr__(self) -> str:
        kind = "directed" if self.is_directed else "undirected"
        return (
            f"Graph({self.name!r}, {kind}, nodes={self.num_nodes:,}, arcs={self.num_arcs:,}, "
            f"features={self.num_features:,}, classes={self.num_classes})"
        )


def _update(digest: Any, array: NDArray[Any], dtype: Any, block: int = 1 << 22) -> None:
    """Hash an array as little-endian values of one width, block by block to bound memory."""
    digest.update(f"[{array.size}]".encode())
    for start in range(0, array.size, block):
        part = np.ascontiguousarray(array[start : start + block], dtype=np.dtype(dtype).newbyteorder("<"))
        digest.update(part.data)


def _update_names(digest: Any, names: NDArray[Any]) -> None:
    if names.dtype.kind in "iu":
        _update(digest, names, np.int64)
    else:
        digest.update("\0".join(names.tolist()).encode())


def _build_csr(
    sources: ArrayLike, targets: ArrayLike, num_nodes: int, *, symmetric: bool
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort arcs into out-lists; drop self-loops and duplicates.

    Works on int32 copies and one bool per arc, so that 81 million arcs stay within 4 GiB.
    """
    ends = []
    for key, values in (("sources", sources), ("targets", targets)):
        array = np.asarray(values)
        if array.size == 0:
            array = array.astype(np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"`{key}` must be a list of node positions. Got {array.ndim} dimensions of "
                f"{array.dtype}."
            )
        if array.size and (array.min() < 0 or array.max() >= num_nodes):
            bad = array.min() if array.min() < 0 else array.max()
            raise DataError(f"`{key}` must be between 0 and {num_nodes - 1}. Got {bad}.")
        ends.append(array)
    if len(ends[0]) != len(ends[1]):
        raise DataError(
            f"`sources` and `targets` must be equally long. Got {len(ends[0])} and {len(ends[1])}."
        )
    dtype = np.int32 if num_nodes <= INT32_MAX else np.int64
    keep = ends[0] != ends[1]
    if keep.all():
        row, col = (end.astype(dtype) for end in ends)
    else:
        row, col = (end[keep].astype(dtype) for end in ends)
    del keep, ends
    shape = (num_nodes, num_nodes)
    matrix = sp.coo_array((np.ones(len(row), dtype=np.bool_), (row, col)), shape=shape).tocsr()
    del row, col
    if symmetric:
        matrix = matrix + matrix.T.tocsr()
    matrix.sum_duplicates()
    return matrix.indptr.astype(np.int64), matrix.indices.astype(dtype, copy=False)


def _build_dangling(
    dangling: Mapping[Any, ArrayLike] | None, num_nodes: int
) -> tuple[NDArray[np.int64] | None, NDArray[Any] | None]:
    if not dangling:
        return None, None
    counts = np.zeros(num_nodes, dtype=np.int64)
    lists = []
    for node in sorted(dangling):
        if not 0 <= node < num_nodes:
            raise DataError(f"`dangling` must use node positions below {num_nodes}. Got {node}.")
        names = np.unique(np.asarray(dangling[node]))
        counts[node] = len(names)
        lists.append(names)
    return np.concatenate([[0], np.cumsum(counts)]), np.concatenate(lists)
