"""`gapgnn describe`: what a data set, or tables of your own, contain."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    EDGE_COUNTS,
    LoadedGraph,
    add_curator_option,
    add_data_options,
    add_level_option,
    check_access,
    check_curator,
    dialect_of,
    load_graph,
    table_options,
)
from gapgnn.cli.main import in_options, parser_of
from gapgnn.cli.output import console, emit_json

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.graph.tables import ColumnReport

EXAMPLES = """\
examples:
  gapgnn describe                                  the built-in graph
  gapgnn describe --dataset facebook100/Cornell5
  gapgnn describe --edges friends.csv --nodes people.csv --label year --drop name
  gapgnn describe --edges friends.parquet --nodes people.parquet --label year --json
  gapgnn describe --nodes people.csv --delimiter semicolon --decimal ,
                                                   a node table alone: its columns, also those
                                                   that training would refuse, and why

The figures are exact, not private: they are for the holder of the data. Of people with a privacy
budget give `--curator-only REASON`, and the access is recorded in the ledger.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a graph, and the output format."""
    parser.epilog = EXAMPLES
    add_data_options(parser)
    output = parser.add_argument_group("run and output")
    add_level_option(output)
    add_curator_option(output)
    output.add_argument("--ledger", metavar="FILE", help="file of the privacy ledger")
    output.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    output.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Load the graph and print its summary."""
    from gapgnn.graph import check_trainable

    if _is_about_nodes_alone(args):
        _check_nodes(args)
        columns = _columns(args)
        if args.json:
            emit_json({"nodes": str(args.nodes), "columns": [asdict(one) for one in columns]})
        else:
            _print_columns(columns, args.nodes.name)
        return 0
    loaded = load_graph(args, seed=args.seed, quiet=args.json)
    check_trainable(loaded.graph, level=args.level or "none")
    check_curator(args, loaded.graph, purpose="describe")
    summary = _summary(loaded)
    columns = [] if args.edges is None else _columns(args)
    if args.json:
        emit_json({**summary, "columns": [asdict(one) for one in columns] or None})
    else:
        _print({**summary, "declared": {} if columns else summary["declared"]})
        if columns:
            _print_columns(columns, args.nodes.name)
    return 0


def _is_about_nodes_alone(args: argparse.Namespace) -> bool:
    """Whether only a node table is given, and only what belongs to it."""
    others = (
        *("dataset", "store", "edges", "features", "directed", "dangling", "min_class_count"),
        *("weight", "weight_bounds", "time", "time_format", "since", "until"),
    )
    return args.nodes is not None and all(getattr(args, name) is None for name in others)


def _check_nodes(args: argparse.Namespace) -> None:
    """Refuse to read people of a node table who have a budget, unless the curator says why."""
    import numpy as np
    import pyarrow as pa

    from gapgnn.graph.tables import open_table
    from gapgnn.privacy.ledger import People

    table = open_table(args.nodes, what="nodes", dialect=dialect_of(args))
    first = "id" if "id" in table.columns else table.columns[0]
    names: set[str] = set()
    for batch in table.batches([first], types={first: pa.large_string()}):
        names.update(map(str, batch.column(first).drop_null().to_pylist()))
    if names:
        check_access(
            People.listed(np.array(sorted(names)), namespace=args.population or "default"),
            ledger=args.ledger,
            curator_only=args.curator_only,
            purpose="describe",
        )


def _columns(args: argparse.Namespace) -> list[ColumnReport]:
    """Return every column of the node table and what becomes of it."""
    from gapgnn.graph.tables import survey_columns

    options = table_options(args, labelled=True)
    found = survey_columns(
        **{key: options[key] for key in ("nodes", "label", "drop", "schema", "features", "dialect")}
    )
    names = parser_of("describe").option_names()
    return [replace(one, becomes=in_options(one.becomes, names)) for one in found]


def _summary(loaded: LoadedGraph) -> dict[str, Any]:
    """Return a summary of a graph: sizes, classes, degrees, split and rows left out."""
    import numpy as np

    from gapgnn.graph.tables import EdgeCounts

    graph = loaded.graph
    counts = np.bincount(graph.labels[graph.labels >= 0], minlength=graph.num_classes)
    names = graph.label_names or tuple(str(label) for label in range(graph.num_classes))
    degrees = np.sum([one.out_degrees for one in graph.edge_types], axis=0)
    declared = None
    if graph.schema is not None and graph.feature_names == graph.schema.feature_names:
        from gapgnn.graph.tables import column_summary

        declared = {column.name: column_summary(column) for column in graph.schema.columns}
    return {
        "dataset": graph.name,
        "nodes": graph.num_nodes,
        "arcs": sum(one.num_arcs for one in graph.edge_types),
        "edge_types": {one.edge_type: _edges(one) for one in graph.edge_types}
        if graph.more_edge_types
        else None,
        "weights": None if graph.more_edge_types else _edges(graph)["weights"],
        "dangling": sum(one.num_dangling for one in graph.edge_types),
        "features": graph.num_features,
        "declared": declared,
        "inferred": list(graph.inferred),
        "classes": dict(zip(names, counts.tolist(), strict=True)),
        "unlabelled": int((graph.labels < 0).sum()),
        "directed": graph.is_directed,
        "degree": {"mean": float(degrees.mean()), "max": int(degrees.max())},
        "split": {
            "train": int(graph.train_mask.sum()),
            "val": int(graph.val_mask.sum()),
            "test": int(graph.test_mask.sum()),
        },
        "dropped_self_loops": loaded.dropped_self_loops,
        "dropped_duplicates": loaded.dropped_duplicates,
        "dropped_dangling": loaded.dropped_dangling,
        **{k: v for k, v in asdict(loaded.counts or EdgeCounts()).items() if v},
        "fingerprint": graph.fingerprint,
    }


def _edges(graph: Graph) -> dict[str, Any]:
    """Return the number of arcs of one edge type, and its weights."""
    weights = None
    if graph.weights is not None and graph.weight_bounds is not None:
        low, high = graph.weight_bounds
        mean = float(graph.weights.mean()) if len(graph.weights) else 0.0
        weights = {"low": low, "high": high, "mean": mean}
    return {"arcs": graph.num_arcs, "weights": weights}


def _print(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(summary["dataset"]), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("nodes", f"{summary['nodes']:,}")
    counted = "directed" if summary["directed"] else "undirected, each edge counted twice"
    table.add_row("arcs", f"{summary['arcs']:,} ({counted})")
    for name, about in (summary["edge_types"] or {}).items():
        weighed = _weighed(about["weights"])
        table.add_row(escape(f"  {name}"), f"{about['arcs']:,}" + (weighed and f", {weighed}"))
    if summary["weights"]:
        table.add_row("weights", _weighed(summary["weights"]))
    if summary["dangling"]:
        table.add_row("dangling entries", f"{summary['dangling']:,}")
    table.add_row("features", f"{summary['features']:,}")
    for column, becomes in (summary["declared"] or {}).items():
        table.add_row(escape(f"  {column}"), escape(becomes))
    if summary["inferred"]:
        table.add_row("read from the data", ", ".join(summary["inferred"]))
    classes = ", ".join(f"{name}: {count:,}" for name, count in summary["classes"].items())
    table.add_row("classes", escape(f"{len(summary['classes'])} ({classes})"))
    if summary["unlabelled"]:
        table.add_row("unlabelled", f"{summary['unlabelled']:,}")
    degree = summary["degree"]
    table.add_row("out-degree", f"mean {degree['mean']:.1f}, max {degree['max']:,}")
    split = summary["split"]
    table.add_row(
        "split", f"{split['train']:,} train, {split['val']:,} val, {split['test']:,} test"
    )
    if summary["dropped_self_loops"] is not None:
        dropped = f"{summary['dropped_self_loops']:,} self-loops, "
        dropped += f"{summary['dropped_duplicates']:,} duplicate edges"
        if summary["dropped_dangling"]:
            dropped += f", {summary['dropped_dangling']:,} edges that name an id without a row"
        table.add_row("dropped", dropped)
    for name, text in EDGE_COUNTS.items():
        if summary.get(name):
            table.add_row("", f"{summary[name]:,} {text}")
    table.add_row("fingerprint", summary["fingerprint"])
    console(to_stderr=False).print(table)


def _print_columns(columns: Sequence[ColumnReport], title: str) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    heads = (
        Column("column", overflow="fold"),
        "type",
        Column("range", overflow="fold"),
        Column("missing", justify="right"),
        Column("becomes", overflow="fold"),
    )
    table = Table(*heads, title=escape(title))
    for one in columns:
        missing = "-" if one.missing is None else f"{one.missing:.1%}"
        cells = (one.name, one.type, one.range or "-", missing, one.becomes)
        table.add_row(*map(escape, cells))
    console(to_stderr=False).print(table)


def _weighed(weights: dict[str, float] | None) -> str:
    if weights is None:
        return ""
    return (
        f"amounts clamped to {weights['low']:g} to {weights['high']:g}, mean weight "
        f"{weights['mean']:.3f}"
    )
