"""`gapgnn partition`: put a graph on disk in parts, so that its arcs need not fit in memory."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from gapgnn.cli.data import (
    DEFAULT_DATASET,
    EDGE_COUNTS,
    LoadedGraph,
    add_data_options,
    add_level_option,
    add_word_options,
    check_options,
    given_words,
    mention_ignored,
    mention_left_out,
    mention_unused,
    reading_bars,
    table_options,
    tell_curator,
)
from gapgnn.cli.output import emit_json, say
from gapgnn.errors import InputError, check_integer

EXAMPLES = """\
examples:
  gapgnn partition --edges friends.parquet --nodes people.parquet --label year --out store
  gapgnn partition --edges calls.csv --edges payments.csv --nodes people.csv --label year \\
      --out store
  gapgnn train gap --store store --level edge --epsilon 1 --out model
  gapgnn train gap --store store --ray auto --out model

The store is the private data in another form: keep it where you keep the tables.
"""

MEGABYTE = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn partition`."""
    parser.epilog = EXAMPLES
    add_data_options(parser)
    add_word_options(parser)
    output = parser.add_argument_group("run and output")
    add_level_option(output)
    output.add_argument(
        "--parts",
        type=int,
        default=16,
        metavar="N",
        help="ranges of nodes with a file of arcs each; results do not depend on it (default: 16)",
    )
    output.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="memory to sort arcs in, in MiB, beside some tens of bytes per node (default: 1024)",
    )
    output.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="the store; must be new or empty"
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Build the store and print its contents."""
    check_integer("parts", args.parts, at_least=1)
    check_integer("memory", args.memory, at_least=16)
    if args.store is not None:
        raise InputError("`--store` is what `partition` makes. Give a data set or tables instead.")
    check_options(args, needs_label=False)
    loaded = _from_tables(args) if args.edges is not None else _from_dataset(args)
    graph = loaded.graph
    arcs = sum(one.num_arcs for one in graph.edge_types)
    counts = {} if loaded.counts is None else asdict(loaded.counts)
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    if args.json:
        emit_json(
            {
                "dataset": graph.name,
                "nodes": graph.num_nodes,
                "arcs": arcs,
                "edge_types": list(graph.edge_type_names),
                "weighted": any(one.is_weighted for one in graph.edge_types),
                "dropped_self_loops": loaded.dropped_self_loops,
                "dropped_duplicates": loaded.dropped_duplicates,
                "dropped_dangling": loaded.dropped_dangling,
                **counts,
                "store": str(args.out),
                "parts": args.parts,
                "bytes": size,
            }
        )
        return 0
    edge_types = f" of {', '.join(graph.edge_type_names)}" if graph.more_edge_types else ""
    say(
        f"{graph.num_nodes:,} nodes and {arcs:,} arcs{edge_types} in {args.parts} parts, "
        f"{size / 1e6:,.1f} MB, written to {args.out}"
    )
    mention_left_out(loaded)
    for name, text in EDGE_COUNTS.items():
        if counts.get(name) and name != "mostly_unused":
            tell_curator(f"{counts[name]:,} {text}")
    return 0


def _from_tables(args: argparse.Namespace) -> LoadedGraph:
    """Build from tables of any size."""
    from gapgnn.graph.store import build_store

    with reading_bars(args.json) as progress:
        built = build_store(
            args.out,
            **table_options(args, labelled=True),
            **given_words(args),
            parts=args.parts,
            memory=args.memory * MEGABYTE,
            progress=progress,
        )
    mention_ignored(built.ignored)
    mention_unused(built.counts)
    dropped = built.dropped_self_loops, built.dropped_duplicates, built.dropped_dangling
    return LoadedGraph(built.graph, *dropped, built.counts)


def _from_dataset(args: argparse.Namespace) -> LoadedGraph:
    """Write a known data set to disk; it is read into memory first."""
    from gapgnn.graph.datasets import load_dataset
    from gapgnn.graph.store import store_graph

    name = DEFAULT_DATASET if args.dataset is None else args.dataset
    with reading_bars(args.json) as progress:
        graph = load_dataset(name, progress=progress)
    if words := given_words(args):
        graph = graph.with_words(**words)
    store_graph(graph, args.out, parts=args.parts)
    return LoadedGraph(graph)
