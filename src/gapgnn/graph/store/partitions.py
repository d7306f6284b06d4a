"""Generated graphs that need not fit in memory: Parquet files, one range of nodes after the other.

The folder holds, for each of ``parts`` consecutive ranges of nodes:

- ``arcs-00000.parquet``: columns ``source`` and ``target`` (int64), every arc whose target lies in
  the range, sorted by target and then source. An edge is two arcs, one in the file of each end.
- ``nodes-00000.parquet``: columns ``id``, ``label`` and the features: ``x0``, ``x1``, ...
  (float32), or the five profile fields (text, null where left empty).

``manifest.json`` holds the parameters, the sizes, the bounds of the ranges, and rows, bytes and
SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, UnavailableError, check_integer
from gapgnn.graph.datasets import BLOCK_NODES, FIELDS, BlockModel, FeatureKind
from gapgnn.rng import system_entropy

if TYPE_CHECKING:
    import pyarrow as pa

ARC_ROWS = 1 << 20
NODE_ROWS = 1 << 16


def write_partitions(
    folder: str | PathLike[str],
    *,
    num_nodes: int,
    mean_degree: float,
    parts: int,
    num_features: int = 100,
    num_classes: int = 10,
    features: FeatureKind = "gaussian",
    seed: int = 0,
) -> dict[str, Any]:
    """Generate a graph straight to disk and return its manifest.

    It is the graph that :func:`gapgnn.graph.datasets.synthetic.generate` makes from the same
    arguments, for any number of parts; only the split is left to whoever reads it. One partition's
    arcs are in memory at a time (16 bytes each while they are sorted), beside one pair of node
    blocks. The folder appears when it is complete: an error or Ctrl-C leaves nothing behind.

    Args:
        folder: where to; must be new or empty.
        num_nodes: number of nodes.
        mean_degree: mean number of neighbours, met within a few percent.
        parts: number of partitions; more parts need less memory and more time.
        num_features: number of feature columns.
        num_classes: number of classes.
        features: ``"gaussian"`` or ``"profile"``.
        seed: equal arguments give equal files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     manifest = write_partitions(scratch, num_nodes=200, mean_degree=6, parts=2)
    >>> [file["path"] for file in manifest["files"]][:2]
    ['nodes-00000.parquet', 'arcs-00000.parquet']
    """
    model = BlockModel(
        num_nodes=num_nodes,
        mean_degree=mean_degree,
        num_classes=num_classes,
        num_features=num_features,
        features=features,
        seed=seed,
    )
    check_integer("parts", parts, at_least=1, at_most=num_nodes)
    target = Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"`folder` must be new or empty. Got {str(folder)!r}.")
    if not target.parent.is_dir():
        raise InputError(f"`folder` must lie in a folder that exists. Got {str(folder)!r}.")
    unfinished = target.parent / f".{target.name}.{system_entropy(16).hex()}"
    try:
        unfinished.mkdir()
        manifest = _write(unfinished, model, parts)
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
    except OSError as error:
        raise UnavailableError(
            f"`folder` must be writable. Got {str(folder)!r}: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return manifest


def _write(folder: Path, model: BlockModel, parts: int) -> dict[str, Any]:
    # Ranges of whole blocks where they suffice: a pair of blocks is then drawn at most twice.
    unit = BLOCK_NODES if parts <= model.num_blocks else 1
    units = -(-model.num_nodes // unit)
    bounds = [min(part * units // parts * unit, model.num_nodes) for part in range(parts + 1)]
    files, num_arcs = [], 0
    for part, (first, last) in enumerate(pairwise(bounds)):
        nodes = folder / f"nodes-{part:05d}.parquet"
        files.append(_entry(nodes, _write_tables(nodes, _node_tables(model, first, last))))
        arcs = folder / f"arcs-{part:05d}.parquet"
        files.append(_entry(arcs, _write_tables(arcs, _arc_tables(model, first, last))))
        num_arcs += files[-1]["rows"]
    manifest = {
        "format": "gapgnn partitions 1",
        "parameters": asdict(model),
        "parts": parts,
        "bounds": bounds,
        "num_nodes": model.num_nodes,
        "num_arcs": num_arcs,
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _write_tables(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write one row group per table; return the number of rows."""
    import pyarrow.parquet as pq

    first = next(tables)
    rows: int = first.num_rows
    # Numbers hardly repeat, so looking for repetitions costs more than it saves.
    text = [field.name for field in FIELDS if field.name in first.column_names]
    with pq.ParquetWriter(path, first.schema, use_dictionary=text or False) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _entry(path: Path, rows: int) -> dict[str, Any]:
    """Describe a finished file for the manifest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return {
        "path": path.name,
        "rows": rows,
        "bytes": path.stat().st_size,
        "sha256": digest.hexdigest(),
    }


def _arc_tables(model: BlockModel, first: int, last: int) -> Iterator[pa.Table]:
    """Yield the arcs into nodes ``first`` to ``last - 1``, sorted by target, as tables."""
    import pyarrow as pa

    keys = _arc_keys(model, first, last)
    # An empty partition is still a file with the right columns.
    for start in range(0, max(len(keys), 1), ARC_ROWS):
        target, source = np.divmod(keys[start : start + ARC_ROWS], model.num_nodes)
        yield pa.table({"source": source, "target": target + first})


def _arc_keys(model: BlockModel, first: int, last: int) -> NDArray[np.int64]:
    """Return every arc into a range of nodes as one sorted number each: target, then source."""
    touched = range(first // BLOCK_NODES, (last - 1) // BLOCK_NODES + 1)
    found = []
    for block in touched:
        own = model.nodes(block)
        for other in range(model.num_blocks):
            # A pair of blocks that both lie in the range is drawn once, from its smaller side.
            if other in touched and other < block:
                continue
            nodes = own if other == block else model.nodes(other)
            low, high = (block, other) if block <= other else (other, block)
            blocks = (own, nodes) if block <= other else (nodes, own)
            start, end = model.edges(low, high, blocks=blocks)
            for source, target in ((start, end), (end, start)):
                inside = (target >= first) & (target < last)
                found.append((target[inside] - first) * model.num_nodes + source[inside])
    keys = np.concatenate(found)
    found.clear()
    keys.sort()
    return keys


def _node_tables(model: BlockModel, first: int, last: int) -> Iterator[pa.Table]:
    """Yield ids, labels and features of nodes ``first`` to ``last - 1`` as tables."""
    import pyarrow as pa

    for block in range(first // BLOCK_NODES, (last - 1) // BLOCK_NODES + 1):
        nodes = model.nodes(block)
        columns = _feature_columns(model, block, nodes.labels)
        begin = max(first - nodes.first, 0)
        end = min(last - nodes.first, len(nodes.labels))
        ids = nodes.first + np.arange(len(nodes.labels))
        table = pa.table({"id": ids, "label": nodes.labels, **columns})
        for start in range(begin, end, NODE_ROWS):
            yield table.slice(start, min(NODE_ROWS, end - start))


def _feature_columns(model: BlockModel, block: int, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Return the features of one block as named columns."""
    import pyarrow as pa

    if model.features == "gaussian":
        values = np.asarray(model.features_of(block, labels))
        return {f"x{column}": values[:, column] for column in range(values.shape[1])}
    columns = {}
    codes = model.profiles(block, labels)
    for field, size, code in zip(FIELDS, model.field_sizes, codes.T, strict=True):
        indices = pa.array(code.astype(np.int32), mask=code < 0)
        names = [f"{field.name} {number}" for number in range(size)]
        columns[field.name] = pa.DictionaryArray.from_arrays(indices, names).cast(pa.string())
    return columns
