"""Build a store from tables of any size in bounded memory, or from a graph in memory.

Arcs are sorted externally (:mod:`gapgnn.graph.store.sort`) and features are written one block of
rows at a time. Only the memory for nodes grows with the input: their ids, labels and degrees.
Dangling entries and a separate feature file are read into memory.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn import __version__
from gapgnn.errors import (
    GapgnnError,
    InputError,
    UnavailableError,
    check_integer,
)
from gapgnn.graph import (
    Graph,
    Progress,
    WeightBounds,
    as_inferred,
    csr,
    digest_of,
    file_digest,
    order_of_ids,
    steps_of,
)
from gapgnn.graph.store.arcs import PartWriter, part_bounds
from gapgnn.graph.store.arrays import FeatureWriter
from gapgnn.graph.store.format import (
    DANGLING,
    MANIFEST,
    NODES,
    describe_file,
    inner_folder,
    part_file,
    write_manifest,
)
from gapgnn.graph.store.graph import StoredGraph
from gapgnn.graph.store.sort import ArcSorter
from gapgnn.graph.tables import EdgeCounts, Preparation, Schema

if TYPE_CHECKING:
    from gapgnn.graph.tables import EdgeTable, ScannedNodes, ScannedTables

DEFAULT_MEMORY = 1 << 30
NODE_ROWS = 1 << 16
# Weights of a graph in memory are shares already.
SHARES = WeightBounds(0.0, 1.0)
ArcPieces = Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]]


@dataclass(frozen=True)
class Built:
    """The store that a build wrote, and the rows that were left out.

    Attributes:
        graph: the store.
        dropped_self_loops: rows of the edge table that join a node to itself.
        dropped_duplicates: rows that repeat an earlier one, between nodes that stay.
        dropped_dangling: rows that belong to no adjacency list, because they name an id without a
            row in the node table.
        counts: rows without an amount or a time, and rows outside the window.
        ignored: name and columns of each edge table that has columns that are not read.
    """

    graph: StoredGraph
    dropped_self_loops: int
    dropped_duplicates: int
    dropped_dangling: int = 0
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()


def build_store(
    folder: str | PathLike[str],
    *,
    parts: int,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    **tables: Any,
) -> Built:
    """Make a store from an edge table and a node table.

    The graph is that of :func:`gapgnn.graph.tables.read.read_tables` and has the same fingerprint,
    independent of ``parts`` and ``memory``. The folder is created when it is complete: an error or
    Ctrl-C leaves no files behind.

    Args:
        folder: the store; must be new or empty, with room for all arcs twice (8 bytes each while
            they are sorted, 4 in the end).
        parts: number of parts; each is one task of a cluster.
        memory: bytes for sorting arcs.
        progress: called with the name of what is read, the amount read, and the total.
        tables: ``edges``, ``nodes``, ``label`` and other arguments of ``read_tables``. A file of
            features is read into memory.

    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     people, friends = Path(scratch, "people.csv"), Path(scratch, "friends.csv")
    ...     _ = people.write_text("id,age,team\\nann,31,red\\nbob,25,blue\\ncid,44,red\\n")
    ...     _ = friends.write_text("a,b\\nann,bob\\nbob,cid\\n")
    ...     build_store(
    ...         Path(scratch, "store"), edges=friends, nodes=people, label="team", parts=2
    ...     ).graph
    StoredGraph('people', undirected, nodes=3, arcs=4, features=1, classes=2)
    """
    from gapgnn.graph.tables import TableOptions, scan_tables

    check_integer("parts", parts, at_least=1)
    options = TableOptions(**tables)
    with _new_folder(folder) as scratch:
        scanned = scan_tables(options, keep_features=False, progress=progress)
        keep, labels, label_names = _classes(scanned.nodes, options.min_class_count)
        writer = _StoreWriter(scratch, int(keep.sum()), options.directed, parts, memory)
        source = _TableSource(scanned, keep, progress)
        source.write_features(writer)
        # The store itself has the first edge type by name; it contains the others as stores.
        first, *rest = sorted(scanned.edges, key=lambda one: one.edge_type or "")
        more = []
        for place, one in enumerate(rest, start=1):
            inner = writer.inner(place)
            more.append(inner.finish(source.write_arcs(one, inner), _Nodes()))
        about = _Nodes(
            labels=labels,
            label_names=label_names,
            feature_names=scanned.nodes.feature_names or None,
            schema=options.schema,
            inferred=scanned.wanted.inferred(options.features),
            preparation=scanned.preparation(),
        )
        graph = writer.finish(source.write_arcs(first, writer), about, more)
    duplicates = source.links - sum(one.num_edges for one in graph.edge_types) + source.repeated
    counted = source.loops, duplicates, source.left_out, source.counts
    return Built(graph.moved(Path(folder)), *counted, scanned.ignored)


@dataclass
class _TableSource:
    """Writes the nodes to keep of scanned tables, and the arcs between them, into a store.

    It counts the rows of the edge tables: links, self-loops, repeated ones, and ones left out
    because of unknown ids.
    """

    scanned: ScannedTables
    keep: NDArray[np.bool_]
    progress: Progress | None
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    links: int = 0
    loops: int = 0
    repeated: int = 0
    left_out: int = 0

    @cached_property
    def _position(self) -> NDArray[np.int64]:
        """The new position of each row of the node table, -1 if it is left out."""
        return np.where(self.keep, np.cumsum(self.keep) - 1, -1)

    def write_features(self, writer: _StoreWriter) -> None:
        """Write the features of the nodes to keep; a file of features is read into memory."""
        from gapgnn.graph.tables import read_features

        options, found = self.scanned.options, self.scanned.nodes
        if options.features is None:
            with writer.features(len(found.feature_names), sparse=found.is_sparse) as rows:
                for block in found.feature_blocks(self.keep, self.progress):
                    rows.append(block)
            return
        matrix = read_features(options.features, found.index.names, not_finite=options.not_finite)
        with writer.features(matrix.shape[1], sparse=sp.issparse(matrix)) as rows:
            rows.append_all(matrix[self.keep])

    def write_arcs(self, one: EdgeTable, writer: _StoreWriter) -> _Edges:
        """Write the arcs of one edge table, and return their entries of the manifest."""
        from gapgnn.graph.tables import Dangling, edge_batches

        options, found, bounds = self.scanned.options, self.scanned.nodes, one.columns.bounds
        unknown = Dangling.treated(options.dangling)
        blocks = edge_batches(
            one.table,
            found.index,
            directed=options.directed,
            dangling=unknown,
            columns=one.columns,
            counts=self.counts,
            dropped_at_most=options.dropped_at_most,
            progress=self.progress,
        )
        writer.arcs(self._kept(blocks, bounds), bounds)
        unknown = unknown or Dangling()
        lists, again = unknown.finish()
        self.repeated += again
        self.left_out += unknown.left_out
        return _Edges(
            name=found.table.path.stem,
            ids=found.index.names[self.keep],
            dangling={int(self._position[k]): v for k, v in lists.items() if self.keep[k]},
            population=options.population,
            weight_bounds=None if bounds is None else (bounds.low, bounds.high),
            edge_type=one.edge_type,
        )

    def _kept(
        self,
        blocks: Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]],
        bounds: WeightBounds | None,
    ) -> ArcPieces:
        """Yield the arcs between nodes to keep, by their new positions, with amounts in units."""
        for source, target, amounts in blocks:
            proper = source != target
            self.loops += len(source) - int(proper.sum())
            proper &= self.keep[source] & self.keep[target]
            self.links += int(proper.sum())
            units = None if amounts is None or bounds is None else bounds.units(amounts[proper])
            yield self._position[source[proper]], self._position[target[proper]], units


def store_graph(graph: Graph, folder: str | PathLike[str], *, parts: int) -> None:
    """Write a graph that is in memory as a store; its split is not kept.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     store_graph(social_graph(num_nodes=300), Path(scratch, "store"), parts=2)
    ...     Path(scratch, "store", "arcs-00001.parquet").is_file()
    True
    """
    check_integer("parts", parts, at_least=1)
    with _new_folder(folder) as scratch:
        writer = _StoreWriter(scratch, graph.num_nodes, graph.is_directed, parts, DEFAULT_MEMORY)
        with writer.features(graph.num_features, sparse=sp.issparse(graph.features)) as rows:
            rows.append_all(graph.features)

        more = []
        for place, one in enumerate(graph.more_edge_types, start=1):
            inner = writer.inner(place)
            inner.arcs(_arcs_of(one), SHARES if one.is_weighted else None)
            more.append(inner.finish(_Edges.of(one), _Nodes()))
        writer.arcs(_arcs_of(graph), SHARES if graph.is_weighted else None)
        about = _Nodes(
            labels=graph.labels,
            label_names=graph.label_names,
            feature_names=graph.feature_names,
            schema=graph.schema,
            inferred=graph.inferred,
            preparation=graph.preparation,
        )
        writer.finish(_Edges.of(graph), about, more)


def _arcs_of(graph: Graph) -> ArcPieces:
    """Yield the arcs of a graph in memory."""
    for first, last in csr.row_blocks(graph.indptr):
        starts = graph.indptr[first : last + 1]
        sources = np.repeat(np.arange(first, last), np.diff(starts))
        part = slice(starts[0], starts[-1])
        targets = graph.indices[part]
        if graph.weights is None:
            yield sources, targets, None
            continue
        # An undirected edge is given once: the weights of its two arcs would be added up.
        once = np.ones(len(targets), np.bool_) if graph.is_directed else sources <= targets
        yield sources[once], targets[once], SHARES.units(graph.weights[part][once])


@dataclass(frozen=True)
class _Edges:
    """The manifest entries of one edge type, its ids and its dangling entries."""

    name: str
    ids: NDArray[Any]
    dangling: Mapping[int, NDArray[Any]]
    population: str
    weight_bounds: tuple[float, float] | None
    edge_type: str | None

    @classmethod
    def of(cls, graph: Graph) -> _Edges:
        """Return the entries of a graph in memory."""
        return cls(
            name=graph.name,
            ids=graph.ids,
            dangling=graph.dangling_lists(),
            population=graph.population,
            weight_bounds=graph.weight_bounds or ((0.0, 1.0) if graph.is_weighted else None),
            edge_type=graph.edge_type,
        )


@dataclass(frozen=True)
class _Nodes:
    """The manifest entries of the nodes; empty in the store of a further edge type."""

    labels: NDArray[np.int64] | None = None
    label_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    schema: Schema | None = None
    inferred: Sequence[str] = ()
    preparation: Preparation | None = None


class _StoreWriter:
    """Writes the files of one store into a folder."""

    def __init__(
        self, folder: Path, num_nodes: int, directed: bool, parts: int, memory: int
    ) -> None:
        check_integer("parts", parts, at_least=1, at_most=num_nodes)
        self._folder = folder
        self._num_nodes = num_nodes
        self._directed = directed
        self._memory = memory
        self._bounds = part_bounds(num_nodes, parts)
        self._files: list[str] = []
        self._about: dict[str, Any] = {"num_nodes": num_nodes, "is_directed": directed}
        self._lengths: dict[str, NDArray[np.int64]] = {}

    def inner(self, number: int) -> _StoreWriter:
        """Return a writer for a further edge type: a store without features inside this one."""
        folder = self._folder / inner_folder(number)
        folder.mkdir(mode=0o700)
        parts = len(self._bounds) - 1
        writer = _StoreWriter(folder, self._num_nodes, self._directed, parts, self._memory)
        writer._about |= {"num_features": 0, "features": "none"}
        return writer

    def features(self, num_features: int, *, sparse: bool) -> FeatureWriter:
        """Return a writer of the features."""
        writer = FeatureWriter(self._folder, num_features, sparse=sparse)
        self._files += writer.files
        self._about |= {
            "num_features": num_features,
            "features": "sparse" if sparse else "dense",
        }
        return writer

    def arcs(self, pieces: ArcPieces, weigh: WeightBounds | None = None) -> None:
        """Sort all arcs and write them; an undirected edge is stored as two arcs.

        Args:
            pieces: sources, targets and, where arcs have weights, amounts in units of the bounds.
            weigh: the bounds.
        """
        share = self._memory // 2 if self._directed else self._memory
        options: dict[str, Any] = {"memory": share, "weighted": weigh is not None}
        by_target = ArcSorter(self._folder / "by-target", self._num_nodes, **options)
        by_source = by_target
        if self._directed:
            by_source = ArcSorter(self._folder / "by-source", self._num_nodes, **options)
        for source, target, units in pieces:
            by_target.add(target, source, units)
            if units is not None and not self._directed:
                # The reverse of a self-loop is itself, so its weight would be counted twice.
                proper = source != target
                source, target, units = source[proper], target[proper], units[proper]
            by_source.add(source, target, units)
        self._write_arcs(by_target, "target", weigh)
        if self._directed:
            self._write_arcs(by_source, "source", weigh)

    def _write_arcs(self, sorter: ArcSorter, row: str, weigh: WeightBounds | None) -> None:
        names = [part_file(row, part) for part in range(len(self._bounds) - 1)]
        paths = [self._folder / file for file in names]
        steps = None if weigh is None else weigh.steps
        writer = PartWriter(paths, self._bounds, row=row, weigh=steps)
        writer.write(sorter.sorted())
        shutil.rmtree(self._folder / f"by-{row}")
        self._files += names
        self._lengths[row] = writer.lengths
        self._about["num_self_loops"] = writer.loops

    def finish(self, edges: _Edges, nodes: _Nodes, more: Sequence[StoredGraph] = ()) -> StoredGraph:
        """Write nodes, dangling entries and, once the fingerprint is known, the manifest."""
        columns = self._write_nodes(edges.ids, nodes.labels)
        if edges.dangling:
            self._write_dangling(edges.dangling)
        manifest = self._manifest(edges, nodes)
        graph = StoredGraph(self._folder, manifest, columns, edges.dangling)
        if edges.edge_type is not None:
            graph = graph._changed(edge_type=edges.edge_type)
        if more:
            graph = graph._changed(more_edge_types=tuple(more))
            manifest["edge_types"] = [{"name": graph.edge_type}]
            for inner in more:
                folder, digest = inner.folder.name, file_digest(inner.folder / MANIFEST)
                about = {"name": inner.edge_type, "folder": folder, "manifest": digest}
                manifest["edge_types"].append(about)
        manifest["fingerprint"] = _fingerprint(graph, self._folder / "by-id", self._memory)
        manifest["files"] = {file: describe_file(self._folder / file) for file in self._files}
        write_manifest(self._folder, manifest)
        for path in self._folder.iterdir():
            if path.is_file():
                path.chmod(0o600)
        return graph

    def _write_nodes(
        self, ids: NDArray[Any], labels: NDArray[np.int64] | None
    ) -> dict[str, NDArray[Any]]:
        """Write the node table, and return its columns."""
        in_degrees = self._lengths["target"]
        columns: dict[str, NDArray[Any]] = {
            "id": ids,
            "label": np.full(len(ids), -1) if labels is None else labels,
            "in_degree": in_degrees,
            "out_degree": self._lengths.get("source", in_degrees),
        }
        _write_table(self._folder / NODES, columns)
        self._files.append(NODES)
        return columns

    def _write_dangling(self, dangling: Mapping[int, NDArray[Any]]) -> None:
        owners = sorted(dangling)
        counts = [len(dangling[owner]) for owner in owners]
        names = np.concatenate([np.unique(dangling[owner]) for owner in owners])
        _write_table(self._folder / DANGLING, {"owner": np.repeat(owners, counts), "name": names})
        self._files.append(DANGLING)

    def _manifest(self, edges: _Edges, nodes: _Nodes) -> dict[str, Any]:
        """Return the manifest without fingerprint and files."""
        names, features, schema = nodes.label_names, nodes.feature_names, nodes.schema
        manifest: dict[str, Any] = {
            "gapgnn": __version__,
            "name": edges.name,
            **self._about,
            "num_arcs": int(self._lengths["target"].sum()),
            "bounds": self._bounds,
            "label_names": None if names is None else list(names),
            "feature_names": None if features is None else list(features),
            "schema": None if schema is None else schema.to_dict(),
            "inferred": list(as_inferred(nodes.inferred)),
            "population": edges.population,
            "preparation": None if nodes.preparation is None else nodes.preparation.to_dict(),
        }
        if edges.weight_bounds is not None:
            manifest["weight_bounds"] = list(edges.weight_bounds)
        return manifest


def _fingerprint(graph: StoredGraph, scratch: Path, memory: int) -> str:
    """Return the fingerprint that the graph has in memory; arcs are sorted again if ids are not."""
    order = order_of_ids(graph)
    weights = hashlib.sha256() if graph.is_weighted else None

    def hashed(targets: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
        if weights is not None:
            weights.update(steps.astype("<u2").data)
        return targets

    blocks = (block for part in graph.out_parts() for block in part.blocks())
    if order is None:
        pieces = (
            block.entries
            if block.weights is None
            else hashed(block.entries, steps_of(block.weights))
            for block in blocks
        )
        return digest_of(graph, None, graph.indptr, pieces, weights)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    sorter = ArcSorter(scratch, graph.num_nodes, memory=memory, weighted=graph.is_weighted)
    for block in blocks:
        rows = np.repeat(rank[block.first : block.last], np.diff(block.pointers))
        steps = None if block.weights is None else steps_of(block.weights).astype(np.int64)
        sorter.add(rows, rank[block.entries], steps)
    lengths = np.diff(graph.indptr)[order]
    count = np.uint64(graph.num_nodes)
    targets = (
        arcs % count if weights is None else hashed(arcs["key"] % count, arcs["units"])
        for arcs in sorter.sorted()
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    digest = digest_of(graph, order, starts, targets, weights)
    shutil.rmtree(scratch)
    return digest


def _classes(
    found: ScannedNodes, min_count: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Return which nodes to keep, their labels and the classes, as ``filter_classes`` does."""
    labels, names = found.labels, found.label_names
    if labels is None or names is None or not min_count:
        return np.ones(len(found.index.names), dtype=np.bool_), labels, names
    large = np.bincount(labels[labels >= 0], minlength=len(names)) >= max(1, min_count)
    number = np.append(np.where(large, np.cumsum(large) - 1, -1), -1)
    kept = number[labels] >= 0
    left = tuple(name for name, big in zip(names, large, strict=True) if big)
    return kept, number[labels][kept], left


def _write_table(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    pq.write_table(table, path, row_group_size=NODE_ROWS, write_page_checksum=True)


@contextmanager
def _new_folder(folder: str | PathLike[str]) -> Iterator[Path]:
    """Yield a scratch folder that is renamed to ``folder`` at the end, or removed on an error."""
    target = Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"`out` must be a new or empty folder. Got {str(folder)!r}.")
    if not target.parent.is_dir():
        raise InputError(f"`out` must lie in a folder that exists. Got {str(folder)!r}.")
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield scratch
        if target.exists():
            target.rmdir()
        scratch.rename(target)
    except GapgnnError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"`out` must be writable and have room. Got {str(folder)!r}: {error.strerror or error}."
        ) from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
