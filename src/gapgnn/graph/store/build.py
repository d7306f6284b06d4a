"""Making a store: from tables of any size, in bounded memory, or from a graph in memory.

Arcs go through an external sort (:mod:`gapgnn.graph.store.sort`) and features through one block of
rows at a time. What grows with the input is the memory for nodes: their ids, labels and degrees.
Dangling entries and a separate feature file are held whole.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

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
from gapgnn.graph import Graph, NotFinite, Progress, as_inferred, csr, digest_of, order_of_ids
from gapgnn.graph.store.arcs import PartWriter, part_bounds
from gapgnn.graph.store.arrays import FeatureWriter
from gapgnn.graph.store.format import (
    DANGLING,
    NODES,
    describe_file,
    part_file,
    write_manifest,
)
from gapgnn.graph.store.graph import StoredGraph
from gapgnn.graph.store.sort import ArcSorter
from gapgnn.graph.tables import Dialect, OnDangling, Preparation, Schema

DEFAULT_MEMORY = 1 << 30
NODE_ROWS = 1 << 16
ArcPieces = Iterator[tuple[NDArray[Any], NDArray[Any]]]


@dataclass(frozen=True)
class Built:
    """What a build wrote, and what reading the tables left out.

    Attributes:
        graph: the store.
        dropped_self_loops: rows of the edge table that join a node to itself.
        dropped_duplicates: rows that repeat an earlier one, between nodes that stay.
        dropped_dangling: rows that are in nobody's list, because they name somebody without a row.
    """

    graph: StoredGraph
    dropped_self_loops: int
    dropped_duplicates: int
    dropped_dangling: int = 0


def build_store(
    folder: str | PathLike[str],
    *,
    edges: Path | str,
    nodes: Path | str,
    label: str | None,
    parts: int,
    features: Path | str | None = None,
    drop: Sequence[str] = (),
    directed: bool = False,
    dangling: OnDangling = "refuse",
    min_class_count: int = 0,
    schema: Schema | None = None,
    classes: Sequence[str] | None = None,
    dialect: Dialect | None = None,
    not_finite: NotFinite = "refuse",
    population: str = "default",
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Built:
    """Make a store from an edge table and a node table.

    The options are those of :func:`gapgnn.graph.tables.read.read_tables`, and so is the graph: it
    has the same fingerprint, whatever ``parts`` and ``memory`` are. The folder appears when it is
    complete: an error or Ctrl-C leaves nothing behind.

    Args:
        folder: where to; must be new or empty, with room for twice the arcs (8 bytes each while
            they are sorted, 4 in the end).
        edges: the edge table.
        nodes: the node table.
        label: the column with the class; None for a graph without labels.
        parts: number of parts; each is one task of a cluster.
        features: a file of features to use instead of the columns; it is read whole.
        drop: columns of the node table that are not features.
        directed: whether a row u, v says nothing about v, u.
        dangling: refuse or keep entries to ids without a record, or drop such edges.
        min_class_count: leave out unlabelled nodes and smaller classes; 0 leaves out nothing.
        schema: what is declared about the node table; with ``features``, only its label is used.
        classes: the classes in their order, where they are known without a schema.
        dialect: how cells are written.
        not_finite: refuse rows of the features file with NaN or infinity, or make them zero.
        population: namespace of the ids in the ledger.
        memory: bytes to sort arcs in.
        progress: called with what is being read, how much is done and how much there is.

    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     people, friends = Path(scratch, "people.csv"), Path(scratch, "friends.csv")
    ...     _ = people.write_text("id,age,team\\nann,31,red\\nbob,25,blue\\ncid,44,red\\n")
    ...     _ = friends.write_text("a,b\\nann,bob\\nbob,cid\\n")
    ...     build_store(
    ...         Path(scratch, "store"), edges=friends, nodes=people, label="team", parts=2
    ...     ).graph
    StoredGraph('people', undirected, nodes=3, arcs=4, features=1, classes=2)
    """
    from gapgnn.graph.tables import (
        Dangling,
        edge_batches,
        read_features,
        scan_tables,
    )

    check_integer("parts", parts, at_least=1)
    with _new_folder(folder) as scratch:
        scanned = scan_tables(
            edges=edges,
            nodes=nodes,
            label=label,
            drop=drop,
            skip_features=features is not None,
            keep_features=False,
            dangling=dangling,
            min_class_count=min_class_count,
            schema=schema,
            classes=classes,
            dialect=dialect,
            progress=progress,
        )
        found = scanned.nodes
        keep, labels, label_names = _classes(found.labels, found.label_names, min_class_count)
        keep = np.ones(len(found.index.names), dtype=np.bool_) if keep is None else keep
        writer = _StoreWriter(scratch, int(keep.sum()), directed, parts, memory)
        if features is None:
            with writer.features(len(found.feature_names), sparse=found.is_sparse) as rows:
                for block in found.feature_blocks(keep, progress):
                    rows.append(block)
        else:
            matrix = read_features(features, found.index.names, not_finite=not_finite)
            with writer.features(matrix.shape[1], sparse=sp.issparse(matrix)) as rows:
                rows.append_all(matrix[keep])
            del matrix
        counts = {"rows": 0, "loops": 0}
        position = np.where(keep, np.cumsum(keep) - 1, -1)
        unknown = Dangling.treated(dangling)

        def kept() -> ArcPieces:
            for source, target in edge_batches(
                scanned.edges,
                found.index,
                directed=directed,
                dangling=unknown,
                progress=progress,
            ):
                proper = source != target
                counts["loops"] += len(source) - int(proper.sum())
                proper &= keep[source] & keep[target]
                counts["rows"] += int(proper.sum())
                yield position[source[proper]], position[target[proper]]

        writer.arcs(kept())
        unknown = unknown or Dangling()
        lists, repeated = unknown.finish()
        graph = writer.finish(
            name=found.table.path.stem,
            ids=found.index.names[keep],
            labels=labels,
            dangling={int(position[k]): v for k, v in lists.items() if keep[k]},
            label_names=label_names,
            feature_names=found.feature_names or None,
            schema=schema,
            inferred=scanned.wanted.inferred(features),
            population=population,
            preparation=scanned.preparation(
                drop=drop, directed=directed, dangling=dangling, population=population
            ),
        )
    duplicates = counts["rows"] - graph.num_edges + repeated
    kept_graph = graph._changed(folder=Path(folder))
    return Built(kept_graph, counts["loops"], duplicates, unknown.left_out)


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

        def pieces() -> ArcPieces:
            for first, last in csr.row_blocks(graph.indptr):
                starts = graph.indptr[first : last + 1]
                sources = np.repeat(np.arange(first, last), np.diff(starts))
                yield sources, graph.indices[starts[0] : starts[-1]]

        writer.arcs(pieces())
        writer.finish(
            name=graph.name,
            ids=graph.ids,
            labels=graph.labels,
            dangling=graph.dangling_lists(),
            label_names=graph.label_names,
            feature_names=graph.feature_names,
            schema=graph.schema,
            inferred=graph.inferred,
            population=graph.population,
            preparation=graph.preparation,
        )


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

    def features(self, num_features: int, *, sparse: bool) -> FeatureWriter:
        """Return what takes the features, block after block."""
        writer = FeatureWriter(self._folder, num_features, sparse=sparse)
        self._files += writer.files
        self._about |= {
            "num_features": num_features,
            "features": "sparse" if sparse else "dense",
        }
        return writer

    def arcs(self, pieces: ArcPieces) -> None:
        """Sort all arcs and write them; without a direction each is taken both ways."""
        share = self._memory // 2 if self._directed else self._memory
        by_target = ArcSorter(self._folder / "by-target", self._num_nodes, memory=share)
        by_source = by_target
        if self._directed:
            by_source = ArcSorter(self._folder / "by-source", self._num_nodes, memory=share)
        for source, target in pieces:
            by_target.add(target, source)
            by_source.add(source, target)
        self._write_arcs(by_target, "target")
        if self._directed:
            self._write_arcs(by_source, "source")

    def _write_arcs(self, sorter: ArcSorter, row: str) -> None:
        names = [part_file(row, part) for part in range(len(self._bounds) - 1)]
        writer = PartWriter([self._folder / file for file in names], self._bounds, row=row)
        writer.write(sorter.sorted())
        shutil.rmtree(self._folder / f"by-{row}")
        self._files += names
        self._lengths[row] = writer.lengths
        self._about["num_self_loops"] = writer.loops

    def finish(
        self,
        *,
        name: str,
        ids: NDArray[Any],
        labels: NDArray[np.int64] | None,
        dangling: Mapping[int, NDArray[Any]],
        label_names: Sequence[str] | None,
        feature_names: Sequence[str] | None,
        schema: Schema | None,
        inferred: Sequence[str],
        population: str = "default",
        preparation: Preparation | None = None,
    ) -> StoredGraph:
        """Write nodes, dangling entries and, once the fingerprint is known, the manifest."""
        in_degrees = self._lengths["target"]
        nodes: dict[str, NDArray[Any]] = {
            "id": ids,
            "label": np.full(len(ids), -1) if labels is None else labels,
            "in_degree": in_degrees,
            "out_degree": self._lengths.get("source", in_degrees),
        }
        _write_table(self._folder / NODES, nodes)
        self._files.append(NODES)
        if dangling:
            owners = sorted(dangling)
            counts = [len(dangling[owner]) for owner in owners]
            names = np.concatenate([np.unique(dangling[owner]) for owner in owners])
            _write_table(
                self._folder / DANGLING, {"owner": np.repeat(owners, counts), "name": names}
            )
            self._files.append(DANGLING)
        manifest: dict[str, Any] = {
            "gapgnn": __version__,
            "name": name,
            **self._about,
            "num_arcs": int(in_degrees.sum()),
            "bounds": self._bounds,
            "label_names": None if label_names is None else list(label_names),
            "feature_names": None if feature_names is None else list(feature_names),
            "schema": None if schema is None else schema.to_dict(),
            "inferred": list(as_inferred(inferred)),
            "population": population,
            "preparation": None if preparation is None else preparation.to_dict(),
        }
        graph = StoredGraph(self._folder, manifest, nodes, dangling)
        manifest["fingerprint"] = _fingerprint(graph, self._folder / "by-id", self._memory)
        manifest["files"] = {file: describe_file(self._folder / file) for file in self._files}
        write_manifest(self._folder, manifest)
        for path in self._folder.iterdir():
            path.chmod(0o600)
        return graph


def _fingerprint(graph: StoredGraph, scratch: Path, memory: int) -> str:
    """Return the fingerprint of the graph in memory; arcs are sorted again if ids are not."""
    order = order_of_ids(graph)
    if order is None:
        pieces = (block.entries for part in graph.out_parts() for block in part.blocks())
        return digest_of(graph, None, graph.indptr, pieces)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    sorter = ArcSorter(scratch, graph.num_nodes, memory=memory)
    for part in graph.out_parts():
        for block in part.blocks():
            rows = np.repeat(rank[block.first : block.last], np.diff(block.pointers))
            sorter.add(rows, rank[block.entries])
    lengths = np.diff(graph.indptr)[order]
    targets = (keys % np.uint64(graph.num_nodes) for keys in sorter.sorted())
    digest = digest_of(graph, order, np.concatenate([[0], np.cumsum(lengths)]), targets)
    shutil.rmtree(scratch)
    return digest


def _classes(
    labels: NDArray[np.int64] | None, names: tuple[str, ...] | None, min_count: int
) -> tuple[NDArray[np.bool_] | None, NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Return which nodes stay, their labels and the classes' names, as ``filter_classes`` would."""
    if labels is None or names is None or not min_count:
        return None, labels, names
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
    """Give a scratch folder that becomes ``folder`` at the end, or disappears."""
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
