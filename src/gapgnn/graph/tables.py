"""A graph from two tables of your own: one of edges, one of nodes.

Reading happens a block at a time, so beside the graph itself only one block is in memory. Nothing
is printed: a caller who wants to show progress passes a callback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from gapgnn.errors import DataError, check_choice, check_integer
from gapgnn.graph.columns import (
    CategoryColumn,
    NumberColumn,
    class_labels,
    feature_column,
    stack,
)
from gapgnn.graph.edgelist import NodeIndex, as_ids, end_columns, read_edges
from gapgnn.graph.featurefiles import read_features
from gapgnn.graph.graph import Graph
from gapgnn.graph.tablefiles import ColumnTypeError, Progress, TableFile, open_table

# Written like this, a column of ids in a text file is numbers; 007 is a name.
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class Tables:
    """What two tables held.

    Attributes:
        graph: the graph, without a split.
        feature_names: the name of each feature column; empty if the features came from a file.
        dropped_self_loops: rows of the edge table that join a node to itself.
        dropped_duplicates: rows of the edge table that repeat an earlier one. In an undirected
            graph, the same pair the other way round is a repetition too.
    """

    graph: Graph
    feature_names: tuple[str, ...]
    dropped_self_loops: int
    dropped_duplicates: int


def read_tables(
    *,
    edges: Path | str,
    nodes: Path | str,
    label: str | None,
    features: Path | str | None = None,
    drop: Sequence[str] = (),
    directed: bool = False,
    dangling: Literal["refuse", "keep"] = "refuse",
    min_class_count: int = 0,
    progress: Progress | None = None,
) -> Tables:
    """Read a graph from an edge table and a node table (CSV, TSV, Parquet or Feather).

    The node table has one row per node: the column ``id`` (or the first one) names the node by a
    whole number or a string, the label column its class, and every other column is a feature.
    Numbers are taken as they are; where one is missing, the value is 0 and an extra column says so.
    Categories become one-hot columns, all 0 where missing. The edge table has one row per edge; its
    first two columns (or those called source and target, src and dst, id_1 and id_2) are node ids.

    Args:
        edges: the edge table.
        nodes: the node table.
        label: the column with the class; None for a graph without labels.
        features: a file of features to use instead of the columns (see
            :func:`gapgnn.graph.featurefiles.read_features`).
        drop: columns of the node table that are not features.
        directed: whether a row u, v says nothing about v, u. Otherwise both arcs are stored.
        dangling: what to do with an edge to an id that has no row in the node table. ``"keep"``
            leaves the name in the out-list of the node that has one, where it contributes nothing
            but holds its slot (privacy page, section 1). A directed edge from an unknown source, or
            between two unknown ids, belongs to nobody's record and is always refused.
        min_class_count: leave out unlabelled nodes and classes with fewer nodes than this;
            0 leaves out nothing.
        progress: called with "nodes" or "edges", how much is read and how much there is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people, friends = Path(folder, "people.csv"), Path(folder, "friends.csv")
    ...     _ = people.write_text("id,age,city,team\\nann,31,Rome,red\\nbob,,Bern,blue\\n")
    ...     _ = friends.write_text("a,b\\nann,bob\\nbob,ann\\nann,ann\\n")
    ...     tables = read_tables(edges=friends, nodes=people, label="team")
    >>> tables.graph
    Graph('people', undirected, nodes=2, arcs=2, features=4, classes=2)
    >>> tables.feature_names
    ('age', 'age=missing', 'city=Bern', 'city=Rome')
    >>> tables.dropped_self_loops, tables.dropped_duplicates
    (1, 1)
    """
    check_choice("dangling", dangling, ["refuse", "keep"])
    check_integer("min_class_count", min_class_count, at_least=0)
    node_table = open_table(nodes, what="nodes")
    edge_table = open_table(edges, what="edges")
    end_columns(edge_table)
    wanted = _NodeColumns.choose(node_table, label, drop, skip_features=features is not None)
    index, labels, columns = _read_nodes(node_table, wanted, progress)
    classes, class_names = None, None
    if labels is not None:
        classes, class_names = class_labels(labels)
        _check_classes(classes, class_names, min_class_count, node_table, wanted)
    if features is None:
        matrix, feature_names = stack(columns)
    else:
        matrix, feature_names = read_features(features, index.names), ()
    arcs = read_edges(
        edge_table,
        index,
        directed=directed,
        keep_dangling=dangling == "keep",
        progress=progress,
    )
    graph = Graph.from_arcs(
        arcs.sources,
        arcs.targets,
        num_nodes=len(index.names),
        features=matrix,
        labels=classes,
        ids=index.names,
        directed=directed,
        dangling=arcs.dangling,
        label_names=class_names,
        feature_names=feature_names or None,
        name=node_table.path.stem,
    )
    loops = int((arcs.sources == arcs.targets).sum())
    repeated = len(arcs.sources) - loops - graph.num_edges + arcs.repeated_dangling
    if min_class_count > 0 and classes is not None:
        from gapgnn.graph.transforms import filter_classes

        graph = filter_classes(graph, min_class_count)
    return Tables(graph, feature_names, loops, repeated)


@dataclass(frozen=True)
class _NodeColumns:
    """Which columns of the node table are what."""

    id: str
    label: str | None
    features: tuple[str, ...]

    @classmethod
    def choose(
        cls, table: TableFile, label: str | None, drop: Sequence[str], *, skip_features: bool
    ) -> _NodeColumns:
        """Assign every column its part, or say which option does not fit the table."""
        id_column = "id" if "id" in table.columns else table.columns[0]
        if label is not None and table.check_column("label", label) == id_column:
            raise DataError(f"`label` must not be the id column. Got {label!r}.")
        for name in drop:
            if table.check_column("drop", name) in (id_column, label):
                part = "id" if name == id_column else "label"
                raise DataError(f"`drop` must not name the {part} column. Got {name!r}.")
        if skip_features:
            return cls(id_column, label, ())
        features = tuple(c for c in table.columns if c not in {id_column, label, *drop})
        if not features:
            raise DataError(
                f"`nodes` must have a feature column besides the id and the label. Got none in "
                f"{str(table.path)!r}; add one, or give `--features FILE`."
            )
        if "" in features:
            raise DataError(
                f"`nodes` must name each column. Got column {table.columns.index('') + 1} of "
                f"{str(table.path)!r} without a name; name it, or leave it out with `--drop ''`."
            )
        return cls(id_column, label, features)


def _read_nodes(
    table: TableFile, wanted: _NodeColumns, progress: Progress | None
) -> tuple[NodeIndex, CategoryColumn | None, list[NumberColumn | CategoryColumn]]:
    """Read the node table once; again with wider types if a text column's guess proves wrong."""
    types: dict[str, Any] = {}
    if table.is_text:
        types = {name: table.type_of(name) for name in wanted.features}
        for name, kind in types.items():
            if pt.is_binary(kind):
                types[name] = pa.large_string()
        types.update(dict.fromkeys(_names(wanted.id, wanted.label), pa.large_string()))
    while True:
        try:
            return _read_nodes_once(table, wanted, types, progress)
        except ColumnTypeError as error:
            types[error.column] = _wider(types[error.column])


def _wider(kind: Any) -> Any:
    """Return the next type to try for a text column that does not fit ``kind``."""
    return pa.float64() if pt.is_null(kind) or pt.is_integer(kind) else pa.large_string()


def _names(*names: str | None) -> list[str]:
    return [name for name in names if name is not None]


def _read_nodes_once(
    table: TableFile, wanted: _NodeColumns, types: dict[str, Any], progress: Progress | None
) -> tuple[NodeIndex, CategoryColumn | None, list[NumberColumn | CategoryColumn]]:
    file = repr(str(table.path))
    label = None if wanted.label is None else CategoryColumn(wanted.label, file)
    found = {
        name: feature_column(name, types.get(name, table.type_of(name)), file)
        for name in wanted.features
    }
    columns = {name: column for name, column in found.items() if column is not None}
    ids = []
    rows = 0
    reading = _names(wanted.id, wanted.label, *wanted.features)
    for batch in table.batches(reading, types=types, progress=progress):
        ids.append(_checked_ids(table, batch.column(wanted.id), wanted.id, rows))
        if label is not None:
            label.add(batch.column(wanted.label))
        for name, column in columns.items():
            column.add(batch.column(name))
        rows += batch.num_rows
    if not rows:
        raise DataError(f"`nodes` must have rows. Got none in {file}.")
    if wanted.features and not columns:
        raise DataError(f"`nodes` must have features. Got only missing values in {file}.")
    return (
        _index(pa.chunked_array(ids).combine_chunks(), table, wanted.id),
        label,
        list(columns.values()),
    )


def _checked_ids(table: TableFile, column: Any, name: str, rows: int) -> Any:
    file = repr(str(table.path))
    if column.null_count:
        first = rows + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
        raise DataError(
            f"Column `{name}` of {file} must name each node. Got nothing in row {first}."
        )
    try:
        return as_ids(column)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"Column `{name}` of {file} must hold whole numbers or strings. Got another id: {error}"
        ) from None


def _index(ids: Any, table: TableFile, name: str) -> NodeIndex:
    """Index the ids, as numbers where they are written so; each may stand for one node only."""
    if table.is_text and pc.all(pc.match_substring_regex(ids, WHOLE_NUMBER)).as_py():
        ids = ids.cast(pa.int64())
    counts = ids.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"Column `{name}` of {str(table.path)!r} must name each node once. Got "
            f"{len(repeated):,} repeated, the first {repeated[0]['values'].as_py()!r}."
        )
    return NodeIndex(ids)


def _check_classes(
    classes: NDArray[np.int64],
    names: tuple[str, ...],
    min_class_count: int,
    table: TableFile,
    wanted: _NodeColumns,
) -> None:
    """Raise unless two classes are left, before the edges are read."""
    if len(names) < 2:
        only = f" ({names[0]!r})" if names else ""
        raise DataError(
            f"`label` must have at least two classes. Got {len(names)}{only} in column "
            f"`{wanted.label}` of {str(table.path)!r}."
        )
    counts = np.sort(np.bincount(classes[classes >= 0]))[::-1]
    if min_class_count > counts[1]:
        raise DataError(
            f"`min_class_count` must leave at least two classes. Got {min_class_count}; the two "
            f"largest classes have {counts[0]} and {counts[1]} nodes."
        )
