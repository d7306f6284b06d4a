"""A :class:`~gapgnn.graph.graph.Graph` that is stored on disk in parts.

Ids, labels, masks and degrees are in memory, some tens of bytes per node. Features are memory
mapped: a row is loaded when it is read. Arcs stay on disk: aggregation reads one part after the
other (:mod:`gapgnn.privacy.mechanisms.aggregation`). ``indptr`` and ``indices`` are loaded on first
use, for methods that need random access to arcs (SAGE, the attacks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gapgnn.graph import (
    MASKS,
    Features,
    Graph,
    Progress,
    as_dangling,
    as_features,
    as_inferred,
    csr,
    frozen,
    schema_of_note,
)
from gapgnn.graph.fingerprint import fingerprint
from gapgnn.graph.store.arcs import PartFile
from gapgnn.graph.store.arrays import map_features
from gapgnn.graph.store.format import (
    DANGLING,
    MANIFEST,
    NODES,
    check_digest,
    check_files,
    explained,
    part_file,
    read_manifest,
    wrong_file,
)
from gapgnn.graph.tables import Preparation


class PartExecutor(Protocol):
    """Processes the parts of a store: in this process, or on a cluster.

    Unlike the executor of a grid of experiments (:mod:`gapgnn.evaluation.grid.executors`), it knows
    the arguments that all calls share and the file of each task.
    """

    def run(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        shared: tuple[Any, ...],
        files: Sequence[Path],
    ) -> Iterator[tuple[int, Any]]:
        """Yield ``(place, function(*task, *shared))`` for every task, in any order.

        Args:
            function: an importable function without state.
            tasks: small arguments, one tuple per call. Secrets are among these.
            shared: large arguments that all calls have in common.
            files: the file that each task reads.
        """


class InProcess:
    """Processes one part after the other in this process.

    Args:
        progress: called with how many parts of a hop are done and their number.
    """

    def __init__(self, progress: Callable[[int, int], None] | None = None) -> None:
        self._progress = progress

    def run(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        shared: tuple[Any, ...],
        files: Sequence[Path],
    ) -> Iterator[tuple[int, Any]]:
        """Yield the results in order."""
        for place, task in enumerate(tasks):
            yield place, function(*task, *shared)
            if self._progress is not None:
                self._progress(place + 1, len(tasks))


class StoredGraph(Graph):
    """A graph in a partitioned store; open one with :func:`open_store`.

    Transforms that change arcs or features return a graph in memory; a new split
    (:meth:`with_masks`) returns a stored graph.

    Attributes:
        folder: the store.
        bounds: part ``p`` holds the nodes ``bounds[p]`` to ``bounds[p + 1] - 1``.
        in_degrees: in-degree of each node.
        executor: processes the parts.
    """

    folder: Path
    bounds: tuple[int, ...]
    in_degrees: NDArray[np.int64]
    executor: PartExecutor
    more_edge_types: tuple[StoredGraph, ...]
    _listed: NDArray[np.int64]
    _manifest: Mapping[str, Any]

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        nodes: Mapping[str, NDArray[Any]],
        dangling: Mapping[int, NDArray[Any]] | None,
    ) -> None:
        names = {
            key: None if manifest[key] is None else tuple(manifest[key])
            for key in ("label_names", "feature_names")
        }
        count = int(manifest["num_nodes"])
        starts, targets = as_dangling(dangling, count)
        # Attributes of a frozen dataclass can only be set this way.
        self.__dict__.update(
            folder=folder,
            bounds=tuple(manifest["bounds"]),
            executor=InProcess(),
            labels=frozen(nodes["label"]),
            ids=frozen(nodes["id"]),
            in_degrees=frozen(nodes["in_degree"]),
            is_directed=bool(manifest["is_directed"]),
            dangling_indptr=starts,
            dangling_targets=targets,
            name=str(manifest["name"]),
            schema=schema_of_note(manifest),
            inferred=as_inferred(manifest["inferred"]),
            population=str(manifest["population"]),
            preparation=Preparation.from_dict(manifest["preparation"]),
            weight_bounds=_bounds(manifest),
            _listed=frozen(nodes["out_degree"]),
            _manifest=manifest,
            **{mask: frozen(np.zeros(count, dtype=np.bool_)) for mask in MASKS},
            **names,
        )
        self._validate()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.bounds[-1]

    @property
    def num_arcs(self) -> int:
        """Number of stored arcs."""
        return int(self._manifest["num_arcs"])

    @property
    def num_self_loops(self) -> int:
        """Number of arcs from a node to itself."""
        return int(self._manifest["num_self_loops"])

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.bounds) - 1

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical content, computed when the store was built.

        It is the fingerprint of the same graph in memory.
        """
        known = self._manifest.get("fingerprint")
        return fingerprint(self) if known is None else str(known)

    @cached_property
    def out_degrees(self) -> NDArray[np.int64]:
        """Length of every adjacency list, dangling entries included."""
        degrees: NDArray[np.int64] = self._listed
        if self.dangling_indptr is not None:
            degrees = degrees + np.diff(self.dangling_indptr)
        return frozen(degrees)

    @cached_property
    def features(self) -> Features:
        """The features, mapped."""
        about = self._manifest
        if about["features"] == "none":
            return frozen(np.zeros((self.num_nodes, 0), dtype=np.float32))
        sparse = about["features"] == "sparse"
        return map_features(self.folder, self.num_nodes, about["num_features"], sparse=sparse)

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """Row pointers of the adjacency lists, as of any graph."""
        return frozen(np.concatenate([[0], np.cumsum(self._listed)]))

    @cached_property
    def indices(self) -> NDArray[Any]:
        """All adjacency lists, read from disk into memory now."""
        pieces = [block.entries for part in self.out_parts() for block in part.blocks()]
        indices = np.concatenate(pieces)
        csr.check(self.indptr, indices)
        return frozen(indices)

    @property
    def is_weighted(self) -> bool:
        """Whether arcs have weights."""
        return self._manifest.get("weight_bounds") is not None

    @cached_property
    def weights(self) -> NDArray[np.float32] | None:
        """The weights of all arcs, read from disk into memory now."""
        if not self.is_weighted:
            return None
        blocks = (block for part in self.out_parts() for block in part.blocks())
        return frozen(np.concatenate([b.weights for b in blocks if b.weights is not None]))

    def in_part(self, part: int) -> PartFile:
        """Return the rows of one part: the in-neighbours of each node."""
        return self._part("target", "source", part, self.in_degrees)

    def out_parts(self) -> Iterator[PartFile]:
        """Yield the parts of the adjacency lists; in an undirected graph these are the in-lists."""
        for part in range(self.num_parts):
            if self.is_directed:
                yield self._part("source", "target", part, self._listed)
            else:
                yield self.in_part(part)

    def _part(self, row: str, entry: str, part: int, lengths: NDArray[np.int64]) -> PartFile:
        first, last = self.bounds[part], self.bounds[part + 1]
        path = self.folder / part_file(row, part)
        return PartFile(path, entry, first, lengths[first:last], self.is_weighted)

    def digest(self, part: int, *, leaving: bool = False) -> str:
        """Return the SHA-256 of the file with the arcs that end in a part, or that leave it."""
        row = "source" if leaving and self.is_directed else "target"
        return str(self._manifest["files"][part_file(row, part)]["sha256"])

    def with_executor(self, executor: PartExecutor) -> StoredGraph:
        """Return the same store with another executor."""
        others = tuple(one.with_executor(executor) for one in self.more_edge_types)
        return self._changed(executor=executor, more_edge_types=others)

    def moved(self, folder: Path) -> StoredGraph:
        """Return the same store after its folder was renamed."""
        others = tuple(one.moved(folder / one.folder.name) for one in self.more_edge_types)
        return self._changed(folder=folder, more_edge_types=others)

    def _replace(self, **changes: Any) -> Graph:
        """Copy with some parts exchanged; if only features change, the arcs stay on disk."""
        if not changes.keys() <= {"features", "feature_names"}:
            return super()._replace(**changes)
        # The content changes, so the fingerprint is computed again.
        about = {key: value for key, value in self._manifest.items() if key != "fingerprint"}
        if "features" in changes:
            changes["features"] = as_features(changes["features"])
        graph = self._changed(**changes, _manifest=about)
        graph.__dict__.pop("fingerprint", None)
        Graph._validate(graph)
        return graph

    def _validate(self) -> None:
        path = self.folder / NODES
        lengths = {len(self.labels), len(self.ids), len(self.in_degrees), len(self._listed)}
        totals = {int(self.in_degrees.sum()), int(self._listed.sum())}
        if lengths != {self.num_nodes} or totals != {self.num_arcs}:
            raise wrong_file(path)

    def __repr__(self) -> str:
        return super().__repr__().replace("Graph(", "StoredGraph(", 1)


def _bounds(manifest: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the declared bounds of weights; None where edges have none."""
    bounds = manifest.get("weight_bounds")
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))


def open_store(
    folder: str | Path, *, verify: bool = True, progress: Progress | None = None
) -> StoredGraph:
    """Open a store made by :func:`gapgnn.graph.store.build.build_store` or ``store_graph``.

    A file that is missing, cut, changed or of another store is refused by its name, before anything
    is charged or released.

    Args:
        folder: the store.
        verify: read every byte and compare it with the manifest's checksums; False compares sizes
            only, which is for a store that was verified on this machine before.
        progress: called with "store", the bytes verified and their total.

    >>> import tempfile
    >>> from gapgnn.graph.store.build import store_graph
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = social_graph(num_nodes=300, mean_degree=8)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     store_graph(graph, Path(scratch, "store"), parts=3)
    ...     stored = open_store(Path(scratch, "store"))
    ...     stored.fingerprint == graph.fingerprint, stored.num_parts
    (True, 3)
    """
    # Absolute, because workers of a cluster have another working directory.
    path = Path(folder).absolute()
    manifest = read_manifest(path)
    check_files(path, manifest["files"], contents=verify, progress=progress)
    graph = StoredGraph(path, manifest, read_nodes(path), read_dangling(path, manifest))
    if "edge_types" not in manifest:
        return graph
    own, *rest = manifest["edge_types"]
    more = []
    for entry in rest:
        inner = path / entry["folder"]
        check_digest(inner / MANIFEST, entry["manifest"])
        found = open_store(inner, verify=verify, progress=progress)
        more.append(found._changed(edge_type=str(entry["name"])))
    graph = graph._changed(edge_type=str(own["name"]), more_edge_types=tuple(more))
    graph._validate_edge_types()
    return graph


def read_nodes(folder: Path) -> dict[str, NDArray[Any]]:
    """Read ids, labels and degrees."""
    columns = _columns(folder / NODES)
    if columns.keys() != {"id", "label", "in_degree", "out_degree"}:
        raise wrong_file(folder / NODES)
    return columns


def read_dangling(folder: Path, manifest: Mapping[str, Any]) -> dict[int, NDArray[Any]] | None:
    """Read the dangling entries by the position of the node whose list has them."""
    if DANGLING not in manifest["files"]:
        return None
    columns = _columns(folder / DANGLING)
    nodes, starts = np.unique(columns["owner"], return_index=True)
    return dict(zip(nodes.tolist(), np.split(columns["name"], starts[1:]), strict=True))


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    """Read a whole table, its text as NumPy strings."""
    import pyarrow.parquet as pq

    with explained(path):
        table = pq.read_table(path, use_threads=False, memory_map=False)
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    return {
        name: values.astype(np.str_) if values.dtype.kind == "O" else values
        for name, values in columns.items()
    }
