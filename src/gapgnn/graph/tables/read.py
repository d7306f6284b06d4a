"""Read a graph from two tables: one of edges, one of nodes.

Tables are read a block at a time, so only one block is in memory beside the graph itself. Nothing
is printed: a caller who wants to show progress passes a callback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import Complaints, InputError, check_choice, check_integer
from gapgnn.graph import Graph, NotFinite, Progress, Wording, filter_classes, join_edge_types
from gapgnn.graph.tables.amounts import EdgeColumns, EdgeCounts, EdgeFiles, Moment
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.edges import (
    DANGLING,
    EDGE_OPTIONS,
    Arcs,
    EdgeTable,
    NodeIndex,
    edge_batches,
    edge_tables,
    ignored_columns,
    read_edges,
)
from gapgnn.graph.tables.features import read_features
from gapgnn.graph.tables.files import check_dialect
from gapgnn.graph.tables.frames import is_frame, open_source
from gapgnn.graph.tables.nodes import NodeColumns, ScannedNodes, scan_nodes
from gapgnn.graph.tables.preparation import Preparation
from gapgnn.graph.tables.schema import Schema

# The share of the rows of a large table that may be dropped or unreadable.
DROPPED_AT_MOST = 0.5

OnDangling: TypeAlias = Literal["refuse", "keep", "drop"]


@dataclass(frozen=True)
class Tables:
    """The graph of two tables, and the rows that were left out.

    Attributes:
        graph: the graph, without a split.
        feature_names: the name of each feature column; empty if the features came from a file.
        dropped_self_loops: rows of the edge table that join a node to itself.
        dropped_duplicates: rows of the edge table that repeat an earlier one. In an undirected
            graph, the same pair the other way round is a repetition too. Where edges have weights,
            their amounts were added up.
        dropped_dangling: rows of the edge tables that belong to no adjacency list, because they
            name an id without a row in the node table.
        counts: rows without an amount or a time, and rows outside the window.
        ignored: for each edge table that has some, its name and the columns that are not read.
    """

    graph: Graph
    feature_names: tuple[str, ...]
    dropped_self_loops: int
    dropped_duplicates: int
    dropped_dangling: int = 0
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables become a graph, in memory or on disk; documented in :func:`read_tables`."""

    edges: EdgeFiles
    nodes: Any
    label: str | None
    features: Path | str | None = None
    drop: Sequence[str] = ()
    directed: bool = False
    dangling: OnDangling = "refuse"
    min_class_count: int = 0
    schema: Schema | None = None
    classes: Sequence[str] | None = None
    dialect: Dialect | None = None
    not_finite: NotFinite = "refuse"
    population: str = "default"
    weight: str | Mapping[str, str] | None = None
    weight_bounds: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None
    time: str | Mapping[str, str] | None = None
    time_format: str | Mapping[str, str] | None = None
    since: Moment | None = None
    until: Moment | None = None
    source: str | Mapping[str, str] | None = None
    target: str | Mapping[str, str] | None = None
    dropped_at_most: float = DROPPED_AT_MOST
    codes: Sequence[str] = ()
    known_ids: NDArray[Any] | None = None
    entity: str | None = None
    link: str | None = None


@dataclass(frozen=True)
class ScannedTables:
    """Tables whose columns were checked and whose nodes were read.

    Attributes:
        options: how they are read.
        edges: the table of each edge type, not read yet.
        wanted: the role of each column of the node table.
        nodes: the content of the node table.
    """

    options: TableOptions
    edges: tuple[EdgeTable, ...]
    wanted: NodeColumns
    nodes: ScannedNodes

    @property
    def ignored(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and columns of each edge table that has columns that are not read."""
        found = ((table.path.name, ignored_columns(table, cols)) for _, table, cols in self.edges)
        return tuple((name, columns) for name, columns in found if columns)

    def preparation(self) -> Preparation:
        """Return the options for these tables, and which columns there were, unless declared."""
        options, wanted = self.options, self.wanted
        is_learned = wanted.schema is None and wanted.features
        return Preparation(
            label=wanted.label,
            drop=tuple(options.drop),
            columns=wanted.features if is_learned else None,
            codes=self.nodes.codes,
            directed=options.directed,
            dangling=options.dangling,
            population=options.population,
            dialect=self.nodes.table.dialect.to_dict(),
            edges={
                one.edge_type or "": known for one in self.edges if (known := one.columns.declared)
            },
            entity=options.entity or "",
            link=options.link or "",
        )


def scan_tables(
    options: TableOptions, *, keep_features: bool, progress: Progress | None
) -> ScannedTables:
    """Open all tables and read the one of nodes; all problems are reported in one message.

    Where something is wrong already, or there are several edge types, a small edge table
    is read all the same, to report all problems at once.
    """
    edges, nodes, dialect, schema = options.edges, options.nodes, options.dialect, options.schema
    complaints = Complaints()
    complaints.collect(lambda: check_choice("dangling", options.dangling, DANGLING))
    complaints.collect(
        lambda: check_integer("min_class_count", options.min_class_count, at_least=0)
    )
    complaints.collect(lambda: _check_share(options.dropped_at_most))
    complaints.collect(lambda: Wording.of(options.entity, options.link))
    node_table = complaints.collect(lambda: open_source(nodes, what="nodes", dialect=dialect))
    tables = edge_tables(
        edges,
        dialect=dialect,
        complaints=complaints,
        declared=None if schema is None else schema.weight,
        **{key: getattr(options, key) for key in EDGE_OPTIONS},
    )
    files = tuple(edges.values()) if isinstance(edges, Mapping) else (edges,)
    paths = [source for source in (nodes, *files) if not is_frame(source)]
    complaints.collect(lambda: check_dialect(dialect, *paths))
    wanted = found = None
    if node_table is not None:
        wanted = NodeColumns.choose(
            node_table,
            options.label,
            options.drop,
            skip_features=options.features is not None,
            schema=schema,
            known_classes=options.classes,
            codes=options.codes,
            complaints=complaints,
        )
        if not complaints or node_table.is_small:
            found = scan_nodes(
                node_table,
                wanted,
                keep_features=keep_features and not complaints,
                min_class_count=options.min_class_count,
                dropped_at_most=options.dropped_at_most,
                progress=progress,
                complaints=complaints,
            )
    if found is not None and options.known_ids is not None:
        found.index.add_known(options.known_ids)
    if found is not None and (complaints or len(tables) > 1):
        for one in tables:
            complaints.collect(partial(_check_edges, one, found.index, options.dangling))
    settled = complaints.settled(wanted), complaints.settled(found)
    return ScannedTables(options, tuple(tables), *settled)


def _check_share(share: float) -> None:
    """Raise unless a share is between 0 and 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"`dropped_at_most` must be a share between 0 and 1. Got {share!r}.")


def _check_edges(one: EdgeTable, index: NodeIndex, dangling: str) -> None:
    """Check the edges of a small table for unknown ids, if these are refused."""
    if one.table.is_small and dangling == "refuse":
        for _ in edge_batches(one.table, index, directed=True, dangling=None, columns=one.columns):
            pass


def read_ids(
    nodes: Any,
    column: str | None = None,
    *,
    dialect: Dialect | None = None,
    progress: Progress | None = None,
) -> NDArray[Any]:
    """Return the ids of a node table, and read nothing else of it.

    Args:
        nodes: the node table.
        column: with the ids; left out: ``id``, or else the first one.
        dialect: how the cells are written.
        progress: called with "nodes", how much is read and how much there is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people = Path(folder, "people.csv")
    ...     _ = people.write_text("id,age\\n7,31\\n9,25\\n")
    ...     read_ids(people)
    array([7, 9])
    """
    check_dialect(dialect, *([] if is_frame(nodes) else [nodes]))
    table = open_source(nodes, what="nodes", dialect=dialect)
    wanted = NodeColumns.choose(table, None, (), skip_features=True, schema=None)
    if column is not None:
        wanted = replace(wanted, id=table.check_column("id", column))
    complaints = Complaints()
    found = scan_nodes(
        table,
        wanted,
        keep_features=False,
        min_class_count=0,
        progress=progress,
        complaints=complaints,
    )
    ids: NDArray[Any] = complaints.settled(found).index.names
    return ids


def read_tables(
    *,
    edges: EdgeFiles,
    nodes: Any,
    label: str | None,
    features: Path | str | None = None,
    drop: Sequence[str] = (),
    directed: bool = False,
    dangling: OnDangling = "refuse",
    min_class_count: int = 0,
    schema: Schema | Path | str | None = None,
    classes: Sequence[str] | None = None,
    dialect: Dialect | None = None,
    not_finite: NotFinite = "refuse",
    population: str = "default",
    weight: str | Mapping[str, str] | None = None,
    weight_bounds: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    time: str | Mapping[str, str] | None = None,
    time_format: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    source: str | Mapping[str, str] | None = None,
    target: str | Mapping[str, str] | None = None,
    dropped_at_most: float = DROPPED_AT_MOST,
    codes: Sequence[str] = (),
    known_ids: NDArray[Any] | None = None,
    entity: str | None = None,
    link: str | None = None,
    progress: Progress | None = None,
) -> Tables:
    """Read a graph from an edge table and a node table.

    A table is a file (CSV, TSV, Parquet or Arrow, the first two also as ``.gz``), a folder of such
    files, a query (``"duckdb:bank.db?SELECT payer, payee FROM payments"``, likewise ``sqlite:`` and
    ``postgresql:``), a pandas or polars data frame, or an Arrow table.

    The node table has one row per node: the column ``id`` (or the first one) names the node by a
    whole number or a string, the label column its class, and every other column is a feature.
    Numbers are taken as they are; where one is missing, the value is 0 and an extra column marks
    it. Categories become one-hot columns, all 0 where missing; so do codes, digits of which some
    begin with 0 (``056``). A column with more than 1,000 values is refused. The edge table has one
    row per edge; its first two columns (or those called source and target, src and dst, id_1 and
    id_2) are node ids.

    Without a schema, categories, column types and classes are learned from the table, which
    ``graph.inferred`` records. With one, each row's features and label are a function of that row
    alone, and their names and number depend on the schema only: numbers and dates are clamped to
    the declared bounds and scaled to -1 to 1, undeclared categories are ``other``, undeclared
    classes are unlabelled, and unreadable cells are missing (privacy page, section 2).

    All problems with the columns of all tables are reported in one message.

    Args:
        edges: the edge table; or several, by the names of their edge types, such as
            ``{"calls": "calls.csv", "payments": "payments.csv"}``.
        nodes: the node table.
        label: the column with the class; None for a graph without labels.
        features: a file of features to use instead of the columns (see
            :func:`gapgnn.graph.tables.features.read_features`).
        drop: columns of the node table that are not features.
        directed: whether a row u, v is an arc from u to v only. Otherwise both arcs are stored.
        dangling: what to do with an edge to an id that has no row in the node table. ``"keep"``
            keeps the id as a dangling entry of its neighbour's adjacency list: it contributes
            nothing, but counts towards the out-degree (privacy page, section 1). A directed edge
            from an unknown source, or between two unknown ids, belongs to no record and is then
            left out. ``"drop"`` leaves out every edge that names an id without a row; not at node
            level, where the out-degree must not depend on who withdrew.
        min_class_count: leave out unlabelled nodes and classes with fewer nodes than this;
            0 leaves out nothing.
        schema: what is declared about the node table, or the TOML file that declares it. With
            ``features``, only its label is used.
        classes: the classes in their order, where they are known already, as by a model; a row of
            any other class is unlabelled. Not with a schema, which declares the classes.
        dialect: how cells are written: delimiter, decimal point, thousands.
        not_finite: what to do with a row of the features file that holds NaN or infinity: refuse,
            or make the row zero, so that one record cannot stop a run at node level.
        population: namespace of the ids in the ledger.
        weight: the column of the edge table with the amount of each row, which becomes the weight
            of its edge: amounts of one edge are added up, of an undirected edge over both
            directions, and clamped to the bounds. By edge type (``{"payments": "amount"}``) or for
            every table.
        weight_bounds: the declared bounds of the amounts, required unless the schema has them:
            bounds from the table would reveal single edges. By edge type or for every table.
        time: the column of the edge table with a date, a time or a number, for a window.
        time_format: how its dates are written, as ``datetime.strptime`` takes it; left out: ISO.
        since: the first moment of the window: rows before it are not read.
        until: the end of the window, which is outside it.
        source: the column of the edge table with the source of each edge, together with
            ``target``; by edge type or for every table.
        target: the column with its target.
        dropped_at_most: the share of the rows of a table that may be dropped or unreadable
            (self-loops, ids without a row, unreadable times, amounts, numbers or dates); a table
            of at least 100 rows with a larger share is refused. Repeated rows and, up to 99.9 % of
            the table, rows outside the window of time do not count.
        codes: columns of digits that are categories also where no cell has a leading zero, as a
            model stores them.
        known_ids: ids that have a row in another table, so that edges to them are not lost, such as
            those of the training data where the tables hold new people only.
        entity: what one row of the node table is called, such as ``"customer"`` or
            ``"company/companies"``, in statements about privacy.
        link: what one row of the edge table is called, such as ``"payment"``.
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
    # The arguments are the fields: a test compares the two signatures.
    arguments = locals()
    given = {part.name: arguments[part.name] for part in fields(TableOptions)}
    if isinstance(schema, Path | str):
        given["schema"] = Schema.read(schema)
    options = TableOptions(**given)
    return _joined(scan_tables(options, keep_features=True, progress=progress), progress)


def _joined(scanned: ScannedTables, progress: Progress | None) -> Tables:
    """Read the edges of each edge type and join them over the nodes, which are read already."""
    options, found = scanned.options, scanned.nodes
    if options.features is None:
        matrix = found.features()
    else:
        matrix = read_features(options.features, found.index.names, not_finite=options.not_finite)
    counts, graphs = EdgeCounts(), {}
    loops = repeated = left_out = 0
    for edge_type, table, columns in scanned.edges:
        arcs = read_edges(
            table,
            found.index,
            directed=options.directed,
            dangling=options.dangling,
            columns=columns,
            counts=counts,
            dropped_at_most=options.dropped_at_most,
            progress=progress,
        )
        # The features are one array, which all edge types share until they are joined.
        one = _graph_of(scanned, arcs, columns, features=matrix)
        matrix = one.features
        graphs[edge_type or one.edge_type] = one
        own = int((arcs.sources == arcs.targets).sum())
        loops += own
        repeated += len(arcs.sources) - own - one.num_edges + arcs.repeated_dangling
        left_out += arcs.left_out
    graph = join_edge_types(graphs)
    if options.min_class_count > 0 and found.labels is not None:
        graph = filter_classes(graph, options.min_class_count)
    return Tables(graph, found.feature_names, loops, repeated, left_out, counts, scanned.ignored)


def _graph_of(scanned: ScannedTables, arcs: Arcs, columns: EdgeColumns, *, features: Any) -> Graph:
    """Return the nodes with the edges of one edge type."""
    options, found = scanned.options, scanned.nodes
    return Graph.from_arcs(
        *_ends(arcs, options.directed),
        num_nodes=len(found.index.names),
        features=features,
        labels=found.labels,
        ids=found.index.names,
        directed=options.directed,
        dangling=arcs.dangling,
        label_names=found.label_names,
        feature_names=found.feature_names or None,
        name=found.table.path.stem,
        schema=options.schema,
        inferred=scanned.wanted.inferred(options.features),
        population=options.population,
        preparation=scanned.preparation(),
        **_weighed(arcs, columns),
    )


def _ends(arcs: Arcs, directed: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both ends of all arcs; ordered where an undirected edge's amounts are added up."""
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
