"""Parsers of public file formats; classes are filtered and nodes are split later.

Every parser takes the paths of its files, in the order the registry lists them, and returns an
undirected graph with all nodes of the file, unlabelled ones included. Nodes without edges stay:
which rows exist must not depend on edges (privacy page, section 2).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph import DAMAGE, Graph
from gapgnn.graph.datasets.unpickle import load_arrays

# Columns of `local_info` in a Facebook100 file; high school (6) is not used.
_PROFILE = (0, 1, 2, 3, 4)  # status, gender, major, second major or minor, housing
_YEAR = 5


@contextmanager
def reading(path: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn errors of libraries on a damaged file into one line that names the file.

    >>> with reading(Path("reddit.zip")):
    ...     raise EOFError
    Traceback (most recent call last):
    ...
    gapgnn.errors.DataError: `reddit.zip` must be a whole, undamaged file. Got EOFError.
    """
    damage: tuple[type[Exception], ...] = (*DAMAGE, *also)
    try:
        yield
    except damage as error:
        found = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(": .")
        raise DataError(f"`{path}` must be a whole, undamaged file. Got {found}.") from None


def facebook100(paths: Sequence[Path]) -> Graph:
    """Read one school of Facebook100: the class is the year, features are one-hot profile fields.

    0 means missing in these files: no column of its own for a feature, no label for the year. The
    columns are those of the whole school, so a filter of the classes does not change their number.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    (path,) = paths
    with reading(path, MatReadError):
        content = loadmat(path, variable_names=["A", "local_info"])
        adjacency = sp.coo_array(content["A"])
        profile = content["local_info"]
        years, labels = _classes(profile[:, _YEAR])
        features = sp.hstack([_one_hot(profile[:, column]) for column in _PROFILE], format="csr")
        return Graph.from_arcs(
            adjacency.row,
            adjacency.col,
            num_nodes=adjacency.shape[0],
            features=features,
            labels=labels,
            label_names=tuple(str(year) for year in years),
        )


def _classes(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the values other than 0, sorted, and each row's place among them (-1 for 0)."""
    values = np.unique(column[column != 0])
    return values, np.where(column != 0, np.searchsorted(values, column), -1)


def _one_hot(column: NDArray[Any]) -> sp.csr_array:
    values, places = _classes(column)
    rows = np.flatnonzero(places >= 0)
    ones = np.ones(len(rows), dtype=np.float32)
    return sp.csr_array((ones, (rows, places[rows])), shape=(len(column), len(values)))


def planetoid(paths: Sequence[Path]) -> Graph:
    """Read a citation graph of the planetoid archive: files allx, ally, tx, ty, graph, test.index.

    The rows of ``tx`` belong to the positions in ``test.index``. CiteSeer skips a few positions
    there: those papers have no words and no class, so their rows are zero and their label unknown.
    """
    parts: list[Any] = [load_arrays(path) for path in paths[:5]]
    known, known_classes, tests, test_classes, graph = parts
    with reading(paths[5]):
        positions = np.loadtxt(paths[5], dtype=np.int64, ndmin=1)
    with reading(paths[0].parent):
        if not isinstance(graph, dict):
            raise TypeError(f"{paths[4].name} holds no lists of neighbours")
        num_nodes = max(known.shape[0] + tests.shape[0], int(positions.max()) + 1)
        rows = np.concatenate([np.arange(known.shape[0]), positions])
        words = sp.coo_array(sp.vstack([known, tests]))
        features = sp.csr_array(
            (words.data, (rows[words.row], words.col)), shape=(num_nodes, words.shape[1])
        )
        one_hot = np.concatenate([known_classes, test_classes])
        labels = np.full(num_nodes, -1)
        labels[rows] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
        targets = np.fromiter(chain.from_iterable(graph.values()), dtype=np.int64)
        sources = np.repeat(list(graph), [len(listed) for listed in graph.values()])
        return Graph.from_arcs(
            sources,
            targets,
            num_nodes=num_nodes,
            features=features,
            labels=labels,
            label_names=tuple(str(label) for label in range(one_hot.shape[1])),
        )


def facebook_page_page(paths: Sequence[Path]) -> Graph:
    """Read the Facebook page-page graph: files edges, target, features, or the archive of them."""
    if len(paths) == 1:
        return _musae_archive(paths[0], "page_type")
    edges, target, features = paths
    with reading(edges):
        pairs = _pairs(edges.open("rb"))
    with reading(features):
        lists = json.loads(features.read_bytes())
    with reading(target, csv.Error), target.open(encoding="utf-8", newline="") as file:
        return _musae_graph(pairs, lists, csv.DictReader(file), "page_type")


def github(paths: Sequence[Path]) -> Graph:
    """Read the GitHub developers' graph from its archive: machine learning against web."""
    return _musae_archive(paths[0], "ml_target")


def _musae_archive(path: Path, label: str) -> Graph:
    with reading(path, csv.Error), zipfile.ZipFile(path) as archive:
        pairs = _pairs(archive.open(_member(archive, "_edges.csv")))
        lists = json.loads(archive.read(_member(archive, "_features.json")))
        target = io.TextIOWrapper(archive.open(_member(archive, "_target.csv")), encoding="utf-8")
        with target:
            return _musae_graph(pairs, lists, csv.DictReader(target), label)


def _pairs(file: IO[bytes]) -> NDArray[np.int64]:
    with file:
        return np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)


def _musae_graph(
    pairs: NDArray[np.int64], lists: dict[str, list[int]], table: Any, label: str
) -> Graph:
    rows = [(int(row["id"]), row[label]) for row in table]
    ids = np.array([name for name, _ in rows])
    names, labels = np.unique([class_name for _, class_name in rows], return_inverse=True)
    order = np.argsort(ids)
    ends = order[np.searchsorted(ids[order], pairs.ravel()).clip(max=len(ids) - 1)]
    if (ids[ends] != pairs.ravel()).any():
        raise ValueError("an edge names an unknown node")
    active = [lists[str(name)] for name in ids]
    columns = np.fromiter(chain.from_iterable(active), dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum([len(listed) for listed in active])])
    features = sp.csr_array((np.ones(len(columns), dtype=np.float32), columns, starts))
    features.sum_duplicates()
    features.data[:] = 1.0  # a word listed twice is still one word
    ends = ends.reshape(-1, 2)
    return Graph.from_arcs(
        ends[:, 0],
        ends[:, 1],
        num_nodes=len(ids),
        features=features,
        labels=labels,
        ids=ids,
        label_names=tuple(names.tolist()),
    )


def heterophilous(
    paths: Sequence[Path], *, label_names: Sequence[str], directed: bool = False
) -> Graph:
    """Read one graph of the heterophilous collection (Platonov et al. 2023).

    Args:
        paths: the file.
        label_names: the classes in their order.
        directed: whether the file lists arcs; otherwise it has each edge once.
    """
    (path,) = paths
    with reading(path), np.load(path, allow_pickle=False) as content:
        edges, features = content["edges"], content["node_features"]
        # The wide ones are words, of which a node has few.
        is_wide = features.shape[1] > 100
        return Graph.from_arcs(
            edges[:, 0],
            edges[:, 1],
            directed=directed,
            num_nodes=len(features),
            features=sp.csr_array(features) if is_wide else features,
            labels=content["node_labels"],
            label_names=tuple(label_names),
        )


def amazon_electronics(paths: Sequence[Path]) -> Graph:
    """Read products bought together, by words of their reviews (Shchur et al. 2018).

    Only plain arrays of the file are read: the public one also holds pickled names. Its adjacency
    has some purchases in one direction only; it is symmetrised, as is usual.
    """
    (path,) = paths
    with reading(path), np.load(path, allow_pickle=False) as content:
        pointers, targets = content["adj_indptr"], content["adj_indices"]
        words = tuple(content[f"attr_{part}"] for part in ("data", "indices", "indptr"))
        return Graph.from_arcs(
            np.repeat(np.arange(len(pointers) - 1), np.diff(pointers)),
            targets,
            num_nodes=len(pointers) - 1,
            features=sp.csr_array(words, shape=tuple(content["attr_shape"])),
            labels=content["labels"],
        )


def reddit(paths: Sequence[Path]) -> Graph:
    """Read GraphSAGE's Reddit posts from the archive of two NPZ files that DGL publishes.

    ``reddit_data.npz`` has ``feature`` and ``label``; ``reddit_graph.npz`` is a SciPy matrix in COO
    form, of which only ``row`` and ``col`` are read.
    """
    (path,) = paths
    with reading(path), zipfile.ZipFile(path) as archive:
        with _npz(archive, "reddit_data.npz") as content:
            features = content["feature"].astype(np.float32, copy=False)
            labels = content["label"].astype(np.int64).ravel()
        features.flags.writeable = False  # spares a copy of half a gigabyte
        with _npz(archive, "reddit_graph.npz") as content:
            rows, columns = content["row"], content["col"]
        return Graph.from_arcs(
            rows, columns, num_nodes=len(labels), features=features, labels=labels
        )


def amazon(paths: Sequence[Path]) -> Graph:
    """Read the Amazon co-purchase graph from the archive that OGB publishes (``ogbn-products``).

    Gzipped CSV files without a header: ``edge.csv.gz`` (each edge once), ``node-feat.csv.gz`` and
    ``node-label.csv.gz``. These are the products, edges and classes of Cluster-GCN's Amazon2M.
    """
    (path,) = paths
    with reading(path), zipfile.ZipFile(path) as archive:
        labels = _table(archive, "node-label.csv.gz", np.int64, rows=None).ravel()
        features = _table(archive, "node-feat.csv.gz", np.float32, rows=len(labels))
        features.flags.writeable = False  # spares a copy of a gigabyte
        edges = _table(archive, "edge.csv.gz", np.int32, rows=None)
        return Graph.from_arcs(
            edges[:, 0], edges[:, 1], num_nodes=len(labels), features=features, labels=labels
        )


def _member(archive: zipfile.ZipFile, ending: str) -> str:
    """Return the one file of an archive with this ending, whatever folder it is in."""
    names = [name for name in archive.namelist() if name.endswith(ending)]
    if len(names) != 1:
        raise ValueError(f"{len(names)} files called {ending} in the archive")
    return names[0]


@contextmanager
def _npz(archive: zipfile.ZipFile, ending: str) -> Iterator[Any]:
    """Open an NPZ inside a ZIP: unpacked to disk once, because NPZ is read back and forth."""
    with tempfile.TemporaryFile() as unpacked:
        with archive.open(_member(archive, ending)) as packed:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        unpacked.seek(0)
        with np.load(unpacked, allow_pickle=False) as content:
            yield content


def _table(archive: zipfile.ZipFile, ending: str, dtype: Any, *, rows: int | None) -> NDArray[Any]:
    """Read a gzipped table of numbers a block at a time; with ``rows`` known, into one array."""
    import pyarrow as pa
    import pyarrow.csv as pc

    name = _member(archive, ending)
    with archive.open(name) as packed, gzip.open(packed) as file:
        width = file.readline().count(b",") + 1
    types = {f"f{column}": pa.from_numpy_dtype(dtype) for column in range(width)}
    blocks: list[NDArray[Any]] = []
    table = None if rows is None else np.empty((rows, width), dtype=dtype)
    done = 0
    with (
        archive.open(name) as packed,
        gzip.open(packed) as file,
        pc.open_csv(
            file,
            read_options=pc.ReadOptions(autogenerate_column_names=True, block_size=1 << 24),
            convert_options=pc.ConvertOptions(column_types=types),
        ) as batches,
    ):
        for batch in batches:
            block = np.column_stack([column.to_numpy() for column in batch.columns])
            if table is None:
                blocks.append(block)
            else:
                table[done : done + len(block)] = block
            done += len(block)
    if table is None:
        return np.concatenate(blocks)
    if done != rows:
        raise ValueError(f"{done} rows in {ending}, {rows} expected")
    return table
