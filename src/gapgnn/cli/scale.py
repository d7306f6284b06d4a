"""Options for graphs on disk: run on a cluster, and resume after a kill."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.errors import InputError, UnavailableError

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
    """Return what keeps the finished steps of a training that is going to be saved."""
    from gapgnn.methods import method_class

    if args.out is not None and not method_class(args.method).keeps_releases:
        if args.resume:
            raise InputError(f"`--resume` must be left out: {args.method} cannot go on.")
        return None
    return checkpoint_beside(args)


def checkpoint_beside(args: argparse.Namespace) -> Checkpoint | None:
    """Return what keeps the finished steps of a run beside its `--out`; None without one."""
    if args.out is None:
        if args.resume:
            raise InputError("`--resume` must come with `--out`. Got no folder.")
        return None
    from gapgnn.privacy import Checkpoint

    folder = args.out.parent / f"{args.out.name}.unfinished"
    checkpoint = Checkpoint(folder, ledger=args.ledger, resume=args.resume)
    checkpoint.check()
    return checkpoint


def check_space(folder: Path | None, needed: int) -> None:
    """Refuse a disk that is too full for the model's folder."""
    if folder is None:
        return
    parent = folder.resolve().parent
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise UnavailableError(
            f"`out` must have room for at least {needed / 2**20:.0f} MiB. Got "
            f"{free / 2**20:.0f} MiB on the disk of {str(folder)!r}; nothing was charged."
        )


def how_to_go_on(checkpoint: Checkpoint | None) -> str:
    """Print what an interrupted run has cost, and the command that resumes it."""
    if checkpoint is None:
        return "interrupted; nothing was saved. What was charged stays charged (`gapgnn ledger`)"
    if not checkpoint.folder.exists():
        return "interrupted; nothing was charged or saved"
    words = [word for word in sys.argv[1:] if word != "--resume"]
    command = shlex.join(["gapgnn", *words, "--resume"])
    if checkpoint.paid is None:
        return f"interrupted; nothing was charged by this run. Go on with `{command}`"
    return (
        f"interrupted; the budget was charged ({checkpoint.paid}) and is not charged again by "
        f"`{command}`, which goes on from the last finished step"
    )


@contextmanager
def at_scale(
    args: argparse.Namespace, graph: Graph | None, callback: Callback | None = None
) -> Iterator[Graph | None]:
    """Yield the graph; parts of a store are processed where the options say."""
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
