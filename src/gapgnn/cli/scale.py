"""Options for graphs on disk: work on a cluster, and go on after a kill."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapgnn.errors import InputError

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.privacy import Checkpoint
    from gapgnn.training import Callback


def add_ray_option(parser: argparse._ActionsContainer) -> None:
    """Add `--ray`."""
    parser.add_argument(
        "--ray",
        metavar="auto|local|ADDRESS",
        help="with --store: work on the parts of a store on a Ray cluster",
    )


def check_ray(args: argparse.Namespace) -> None:
    """Refuse `--ray` where it cannot be used, before any data is read."""
    if args.ray is None:
        return
    if args.store is None:
        raise InputError("`--ray` must come with `--store`. Got no store.")
    from gapgnn.cluster import ray_module

    ray_module()


def open_checkpoint(args: argparse.Namespace) -> Checkpoint | None:
    """Return what keeps the finished steps of a run that is going to be saved."""
    if args.out is None:
        if args.resume:
            raise InputError("`--resume` must come with `--out`. Got no folder.")
        return None
    from gapgnn.methods import method_class
    from gapgnn.privacy import Checkpoint

    if not method_class(args.method).keeps_releases:
        if args.resume:
            raise InputError(f"`--resume` must be left out: {args.method} cannot go on.")
        return None
    folder = args.out.parent / f"{args.out.name}.unfinished"
    checkpoint = Checkpoint(folder, ledger=args.ledger, resume=args.resume)
    checkpoint.check()
    return checkpoint


@contextmanager
def at_scale(
    args: argparse.Namespace, graph: Graph | None, callback: Callback | None = None
) -> Iterator[Graph | None]:
    """Yield the graph, a store's parts being worked on where the options say."""
    from gapgnn.graph.store import InProcess, StoredGraph

    if not isinstance(graph, StoredGraph):
        yield graph
        return

    def progress(done: int, total: int) -> None:
        if callback is not None:
            if done == 1:
                callback.start("parts", total)
            callback.advance("parts")

    if args.ray is None:
        yield graph.with_executor(InProcess(progress))
        return
    from gapgnn.cluster import RayCluster

    with RayCluster(args.ray, progress=progress) as cluster:
        yield graph.with_executor(cluster)
