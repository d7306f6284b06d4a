"""The options that choose a graph, and loading it: a known data set or tables of your own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.errors import InputError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from gapgnn.graph.graph import Graph

DEFAULT_DATASET = "social"

DESCRIPTION = """\
A known data set (see `gapgnn datasets`), or two tables of your own, CSV, TSV, Parquet or Feather:
one row per node with its id, class and features, and one row per edge with two node ids. Or a store
that `gapgnn partition` made of either, for graphs that do not fit in memory.
For example: --edges friends.csv --nodes people.csv --label year --drop name"""

# Options that only mean something for tables, by their name in the parsed arguments.
_TABLE_OPTIONS = ("nodes", "label", "features", "drop", "directed", "dangling", "min_class_count")


@dataclass(frozen=True)
class LoadedGraph:
    """A graph with its split, and what reading tables left out (None for a known data set)."""

    graph: Graph
    dropped_self_loops: int | None = None
    dropped_duplicates: int | None = None


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a graph."""
    group = parser.add_argument_group("data", DESCRIPTION)
    group.add_argument(
        "--dataset",
        metavar="NAME",
        help="a known data set, such as facebook100/Cornell5 "
        f"(default: {DEFAULT_DATASET}, built in)",
    )
    group.add_argument(
        "--store", metavar="FOLDER", type=Path, help="a graph on disk, made by `gapgnn partition`"
    )
    group.add_argument(
        "--edges",
        metavar="FILE",
        type=Path,
        help="your edge table: the first two columns are node ids",
    )
    group.add_argument(
        "--nodes",
        metavar="FILE",
        type=Path,
        help="your node table: the column `id` (or the first one) names the node, the others are "
        "features (numbers as they are, categories one-hot)",
    )
    group.add_argument(
        "--label", metavar="COLUMN", help="the node column with the class to predict"
    )
    group.add_argument(
        "--features",
        metavar="FILE",
        type=Path,
        help="features from an NPZ or NPY matrix with the rows of the node table, or from JSON as "
        '{"id": [columns]}, instead of the node columns',
    )
    group.add_argument(
        "--drop",
        metavar="COLUMN",
        action="append",
        help="a node column that is not a feature, such as a name; may be given several times",
    )
    direction = group.add_mutually_exclusive_group()
    direction.add_argument(
        "--directed",
        action="store_true",
        default=None,
        help="an edge u, v says nothing about v, u",
    )
    direction.add_argument(
        "--undirected",
        dest="directed",
        action="store_false",
        default=None,
        help="each edge counts in both directions (the default)",
    )
    group.add_argument(
        "--dangling",
        choices=["refuse", "keep"],
        help="edges that name somebody without a row in the node table: refuse (the default), or "
        "keep them as entries that contribute nothing, for node-level privacy",
    )
    group.add_argument(
        "--min-class-count",
        metavar="N",
        type=int,
        help="leave out unlabelled nodes and classes with fewer than N nodes (default: 0, nothing "
        "is left out)",
    )


def load_graph(
    args: argparse.Namespace, *, seed: int, quiet: bool = False, needs_label: bool = True
) -> Graph:
    """Load the graph that the parsed options choose, split 75/10/15 into train, val and test.

    Args:
        args: parsed options of :func:`add_data_options`.
        seed: of the experiment; decides the split.
        quiet: show no progress bar. There is none either if stderr is not a terminal.
        needs_label: whether the graph is for training. If not, tables may come without a label
            column, and then without a split.

    >>> parser = argparse.ArgumentParser()
    >>> add_data_options(parser)
    >>> load_graph(parser.parse_args(["--edges", "friends.csv"]), seed=0)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `--edges` must come with `--nodes`. Got no node table.
    """
    return load(args, seed=seed, quiet=quiet, needs_label=needs_label).graph


def load(
    args: argparse.Namespace, *, seed: int, quiet: bool = False, needs_label: bool = True
) -> LoadedGraph:
    """Do what :func:`load_graph` does, and also return what reading left out."""
    check_options(args, needs_label=needs_label)
    if args.store is not None:
        return _load_store(args, seed=seed, quiet=quiet, needs_label=needs_label)
    if args.edges is None:
        from gapgnn.graph.datasets import load_dataset

        name = args.dataset if args.dataset is not None else DEFAULT_DATASET
        with progress_bars(quiet) as progress:
            return LoadedGraph(load_dataset(name, split_seed=seed, progress=progress))
    return _load_tables(args, seed=seed, quiet=quiet)


def check_options(args: argparse.Namespace, *, needs_label: bool) -> None:
    """Raise if options contradict each other or one is missing."""
    for option in ("dataset", "edges") if args.store is not None else ():
        if getattr(args, option) is not None:
            raise InputError(
                f"`--store` must not come with `--{option}`. Got both; leave one of them out."
            )
    if args.edges is not None:
        if args.dataset is not None:
            raise InputError(
                "`--dataset` must not come with `--edges`. Got both; leave one of them out."
            )
        if args.nodes is None:
            raise InputError("`--edges` must come with `--nodes`. Got no node table.")
        if args.label is None and needs_label:
            raise InputError(
                "`--label` must name the node column with the class to predict. Got none."
            )
        return
    for option in _TABLE_OPTIONS:
        value = getattr(args, option)
        if value is not None:
            shown = "undirected" if value is False else option.replace("_", "-")
            raise InputError(f"`--{shown}` must come with `--edges`. Got no edge table.")


def _load_store(
    args: argparse.Namespace, *, seed: int, quiet: bool, needs_label: bool
) -> LoadedGraph:
    from gapgnn.graph.checks import check_trainable
    from gapgnn.graph.store import open_store
    from gapgnn.graph.transforms import random_split

    with progress_bars(quiet) as progress:
        graph: Graph = open_store(args.store, progress=progress)
    if needs_label or (graph.labels >= 0).any():
        graph = random_split(graph, seed=seed)
        check_trainable(graph)
    return LoadedGraph(graph)


def _load_tables(args: argparse.Namespace, *, seed: int, quiet: bool) -> LoadedGraph:
    from gapgnn.graph.checks import check_trainable
    from gapgnn.graph.tables import read_tables
    from gapgnn.graph.transforms import random_split

    with progress_bars(quiet) as progress:
        tables = read_tables(
            edges=args.edges,
            nodes=args.nodes,
            label=args.label,
            features=args.features,
            drop=args.drop or (),
            directed=bool(args.directed),
            dangling=args.dangling or "refuse",
            min_class_count=args.min_class_count or 0,
            progress=progress,
        )
    graph = tables.graph
    if args.label is not None:
        graph = random_split(graph, seed=seed)
        check_trainable(graph)
    return LoadedGraph(graph, tables.dropped_self_loops, tables.dropped_duplicates)


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback that moves bars on stderr; they are gone once everything is read."""
    if quiet:
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from gapgnn.cli.output import console

    screen = console(to_stderr=True)
    bars = Progress(
        TextColumn("reading {task.description:<12}"),
        BarColumn(),
        TaskProgressColumn(),
        Remaining(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    with bars:
        yield advance
