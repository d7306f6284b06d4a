"""A graph from two tables of your own: one of edges, one of nodes.

Reading happens a block at a time, so beside the graph itself only one block is in memory. Nothing
is printed: a caller who wants to show progress passes a callback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_choice, check_integer
from gapgnn.graph import Graph, NotFinite, Progress, filter_classes, join_kinds
from gapgnn.graph.tables.amounts import EdgeColumns, EdgeCounts, EdgeFiles, Moment, edge_tables
from gapgnn.graph.tables.edges import Arcs, end_columns, ignored_columns, read_edges
from gapgnn.graph.tables.features import read_features
from gapgnn.graph.tables.files import open_table
from gapgnn.graph.tables.nodes import NodeColumns, scan_nodes
from gapgnn.graph.tables.schema import Schema


@dataclass(frozen=True)
class Tables:
    """What two tables held.

    Attributes:
        graph: the graph, without a split.
        feature_names: the name of each feature column; empty if the features came from a file.
        dropped_self_loops: rows of the edge table that join a node to itself.
        dropped_duplicates: rows of the edge table that repeat an earlier one. In an undirected
            graph, the same pair the other way round is a repetition too. Where edges have weights,
            their amounts were added up.
        counts: rows without an amount or a time, and rows outside the window.
        ignored: for each edge table that has some, its name and the columns nothing is made of.
    """

    graph: Graph
    feature_names: tuple[str, ...]
    dropped_self_loops: int
    dropped_duplicates: int
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()


def read_ids(
    nodes: Path | str, column: str | None = None, *, progress: Progress | None = None
) -> NDArray[Any]:
    """Return the ids of a node table, and read nothing else of it.

    Args:
        nodes: the node table.
        column: with the ids; left out: ``id``, or else the first one.
        progress: called with "nodes", how much is read and how much there is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people = Path(folder, "people.csv")
    ...     _ = people.write_text("id,age\\n7,31\\n9,25\\n")
    ...     read_ids(people)
    array([7, 9])
    """
    table = open_table(nodes, what="nodes")
    wanted = NodeColumns.choose(table, None, (), skip_features=True, schema=None)
    if column is not None:
        wanted = replace(wanted, id=table.check_column("id", column))
    ids: NDArray[Any] = scan_nodes(
        table, wanted, keep_features=False, min_class_count=0, progress=progress
    ).index.names
    return ids


def read_tables(
    *,
    edges: EdgeFiles,
    nodes: Path | str,
    label: str | None,
    features: Path | str | None = None,
    drop: Sequence[str] = (),
    directed: bool = False,
    dangling: Literal["refuse", "keep"] = "refuse",
    min_class_count: int = 0,
    schema: Schema | None = None,
    not_finite: NotFinite = "refuse",
    population: str = "default",
    weight: str | Mapping[str, str] | None = None,
    weight_bounds: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    time: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    progress: Progress | None = None,
) -> Tables:
    """Read a graph from an edge table and a node table (CSV, TSV, Parquet or Feather).

    The node table has one row per node: the column ``id`` (or the first one) names the node by a
    whole number or a string, the label column its class, and every other column is a feature.
    Numbers are taken as they are; where one is missing, the value is 0 and an extra column says so.
    Categories become one-hot columns, all 0 where missing. The edge table has one row per edge; its
    first two columns (or those called source and target, src and dst, id_1 and id_2) are node ids.

    Without a schema, categories, column kinds and classes are learned from the table, and the graph
    says so (``graph.inferred``). With one, each row's features and label are a function of that row
    alone and their names and number of the schema: numbers are clamped to the declared bounds and
    scaled to -1 to 1, undeclared categories are ``other``, undeclared classes are unlabelled, and
    what cannot be read is missing (privacy page, section 2).

    Args:
        edges: the edge table; or several, by the names of their kinds of edges, such as
            ``{"calls": "calls.csv", "payments": "payments.csv"}``.
        nodes: the node table.
        label: the column with the class; None for a graph without labels.
        features: a file of features to use instead of the columns (see
            :func:`gapgnn.graph.tables.features.read_features`).
        drop: columns of the node table that are not features.
        directed: whether a row u, v says nothing about v, u. Otherwise both arcs are stored.
        dangling: what to do with an edge to an id that has no row in the node table. ``"keep"``
            leaves the name in the out-list of the node that has one, where it contributes nothing
            but holds its slot (privacy page, section 1). A directed edge from an unknown source, or
            between two unknown ids, belongs to nobody's record and is then left out: whether it
            is there depends on who withdrew.
        min_class_count: leave out unlabelled nodes and classes with fewer nodes than this;
            0 leaves out nothing.
        schema: what is declared about the node table. With ``features``, only its label is used.
        not_finite: what to do with a row of the features file that holds NaN or infinity: refuse,
            or make the row zero, so that one record cannot stop a run at node level.
        population: namespace of the ids in the ledger.
        weight: the column of the edge table with the amount of each row, which becomes the weight
            of its edge: amounts of one edge are added up, in both directions if it has none, and
            clamped to the bounds. By kind (``{"payments": "amount"}``) or for every table.
        weight_bounds: the declared bounds of the amounts, required: bounds from the table would
            tell of single edges. By kind or for every table.
        time: the column of the edge table with a date, a time or a number, for a window.
        since: the first moment of the window: rows before it are not read.
        until: the first moment behind it.
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
    tables = edge_tables(
        edges,
        weight=weight,
        weight_bounds=weight_bounds,
        time=time,
        since=since,
        until=until,
    )
    for _, table, _ in tables:
        end_columns(table)
    wanted = NodeColumns.choose(
        node_table, label, drop, skip_features=features is not None, schema=schema
    )
    found = scan_nodes(
        node_table,
        wanted,
        keep_features=True,
        min_class_count=min_class_count,
        progress=progress,
    )
    if features is None:
        matrix = found.features()
    else:
        matrix = read_features(features, found.index.names, not_finite=not_finite)
    counts, graphs = EdgeCounts(), {}
    loops = repeated = 0
    for kind, table, columns in tables:
        arcs = read_edges(
            table,
            found.index,
            directed=directed,
            keep_dangling=dangling == "keep",
            columns=columns,
            counts=counts,
            progress=progress,
        )
        # Every kind has the features: they are one array, and go where kinds are joined.
        one = Graph.from_arcs(
            *_ends(arcs, directed),
            num_nodes=len(found.index.names),
            features=matrix,
            labels=found.labels,
            ids=found.index.names,
            directed=directed,
            dangling=arcs.dangling,
            label_names=found.label_names,
            feature_names=found.feature_names or None,
            name=node_table.path.stem,
            schema=schema,
            inferred=wanted.inferred(features),
            population=population,
            **_weighed(arcs, columns),
        )
        matrix = one.features
        graphs[kind or one.kind] = one
        own = int((arcs.sources == arcs.targets).sum())
        loops += own
        repeated += len(arcs.sources) - own - one.num_edges + arcs.repeated_dangling
    graph = join_kinds(graphs)
    if min_class_count > 0 and found.labels is not None:
        graph = filter_classes(graph, min_class_count)
    ignored = [
        (table.path.name, names)
        for _, table, columns in tables
        if (names := ignored_columns(table, columns))
    ]
    return Tables(graph, found.feature_names, loops, repeated, counts, tuple(ignored))


def _ends(arcs: Arcs, directed: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both ends of all arcs; where amounts are added up, an edge has one way round."""
    if directed or arcs.amounts is None:
        return arcs.sources, arcs.targets
    return np.minimum(arcs.sources, arcs.targets), np.maximum(arcs.sources, arcs.targets)


def _weighed(arcs: Arcs, columns: EdgeColumns) -> dict[str, Any]:
    if arcs.amounts is None or columns.bounds is None:
        return {}
    return {
        "weights": arcs.amounts,
        "weight_bounds": (columns.bounds.low, columns.bounds.high),
    }
