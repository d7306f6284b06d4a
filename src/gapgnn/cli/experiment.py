"""`gapgnn experiment`: the paper's tables and figures on any data set, resumable."""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import DEFAULT_DATASET, add_data_options, check_options, load_graph
from gapgnn.cli.output import complain, console, emit_json
from gapgnn.errors import (
    GapgnnError,
    InputError,
    UnavailableError,
    check_choice,
    check_integer,
)
from gapgnn.evaluation.grid import EXPERIMENTS

if TYPE_CHECKING:
    from gapgnn.evaluation.grid import Executor, Record, Row, Source, Store, Summary
    from gapgnn.graph import Graph

ALL = "all"
TEXT = """\
Train and measure the rows of the paper's tables and figures, and ours beside them: accuracy (all
methods at one budget), tradeoff (accuracy against epsilon), encoder, hops and degree (ablations),
membership (attack). Finished rows are kept in FOLDER/results.jsonl; interrupted or killed, the same
command runs only what is missing. `gapgnn report FOLDER` turns the folder into a page.

The figures are computed from the data without noise: they are for the curator. The models are not
released, so nothing is charged to your ledger."""
EXAMPLES = """\
examples:
  gapgnn experiment accuracy --dry-run
  gapgnn experiment accuracy --datasets facebook100/Cornell5 --out results
  gapgnn experiment tradeoff hops --datasets social --methods GAP-EDP --repeats 3 --out results
  gapgnn experiment accuracy --edges friends.csv --nodes people.csv --label year --out results
  gapgnn experiment all --relation directed --select validation --jobs 4 --out results
"""
_OWN_DATA = (
    *("store", "edges", "nodes", "label", "schema", "features", "dangling", "min_class_count"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of a grid."""
    parser.description, parser.epilog = TEXT, EXAMPLES
    parser.add_argument(
        "experiments",
        nargs="+",
        metavar="EXPERIMENT",
        help=f"{', '.join(EXPERIMENTS)}, or {ALL}",
    )
    add_data_options(parser)
    parser.add_argument(
        "--datasets", nargs="+", metavar="NAME", help="several known data sets, one after the other"
    )
    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "--methods",
        nargs="+",
        metavar="ROW",
        help="rows such as GAP-EDP, SAGE-NDP or 'GAP-EDP labels' (default: the paper's and ours)",
    )
    grid.add_argument(
        "--epsilons",
        nargs="+",
        type=float,
        metavar="X",
        help="budgets of the private rows (default: the paper's)",
    )
    grid.add_argument(
        "--relation",
        choices=["auto", "undirected", "directed", "add-remove", "replace"],
        default="auto",
        help="for the rows of the level it belongs to; directed is the paper's (default: auto)",
    )
    for level in ("edge", "node"):
        grid.add_argument(
            f"--{level}-delta",
            type=float,
            metavar="D",
            help=f"of the rows at {level} level, to compare with published tables (default: auto)",
        )
    grid.add_argument("--repeats", type=int, default=10, metavar="N", help="(default: 10)")
    grid.add_argument("--seed", type=int, default=0, help="of splits and weights (default: 0)")
    grid.add_argument(
        "--select",
        default="fixed",
        metavar="fixed|validation",
        help="the defaults, or hops, degree bound and layers by validation accuracy as the paper "
        "does, which epsilon does not cover (default: fixed)",
    )
    grid.add_argument(
        "--on",
        nargs="+",
        default=["target"],
        metavar="target|shadow",
        help="membership: measure on the target model, on the shadow model as published, or both",
    )
    grid.add_argument(
        "--noise",
        choices=["fast", "safe"],
        default="fast",
        help="fast is enough to measure accuracy; safe is what a release uses (default: fast)",
    )
    grid.add_argument(
        "--insecure-noise-seed",
        type=int,
        metavar="N",
        help="make the noise predictable, so that the same table comes out again, on any machine",
    )
    output = parser.add_argument_group("run and output")
    output.add_argument("--out", type=Path, metavar="FOLDER", help="where results are and go")
    output.add_argument("--dry-run", action="store_true", help="print the grid and a time estimate")
    output.add_argument(
        "--jobs", type=int, metavar="N", help="processes, each with its share of cores (default: 1)"
    )
    output.add_argument(
        "--ray", metavar="auto|local|ADDRESS", help="run on a Ray cluster instead of this machine"
    )
    output.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    output.add_argument(
        "--tensorboard", action="store_true", help="TensorBoard logs beside the JSONL ones"
    )
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Plan the grid, check everything, run what is missing, report."""
    from gapgnn.cli.experiment_output import print_plan, print_results, summary_json
    from gapgnn.evaluation.grid import Store

    configurations = _configurations(args)
    sources = _sources(args)
    if args.out is None and not args.dry_run:
        raise InputError("`--out` must name the folder of the results. Got none.")
    store = None if args.out is None else Store(args.out)
    records = [] if store is None else store.records()
    executor = _executor(args)
    rows = [row for source in sources for row in _rows(args, source, configurations)]
    if store is None or args.dry_run:
        print_plan(args, rows, records)
        return 0
    summary = _run(args, rows, store, records, executor)
    for task, message in summary.failures:
        complain(f"{task.source.name}, {task.configuration.method}: {message}")
    if args.json:
        emit_json(summary_json(args.out, summary))
    else:
        print_results(rows, store, summary)
    return 1 if summary.failures else 0


def _configurations(args: argparse.Namespace) -> list[Any]:
    """Check the names, and return every configuration that is asked for."""
    from gapgnn.evaluation.grid import plan

    check_integer("repeats", args.repeats, at_least=1)
    check_integer("seed", args.seed, at_least=0)
    if args.jobs is not None:
        check_integer("jobs", args.jobs, at_least=1)
    named = [check_choice("experiment", name, (*EXPERIMENTS, ALL)) for name in args.experiments]
    names = list(EXPERIMENTS) if ALL in named else list(dict.fromkeys(named))
    return [
        configuration
        for name in names
        for configuration in plan(
            name,
            methods=args.methods,
            epsilons=args.epsilons,
            relation=args.relation,
            deltas={"edge": args.edge_delta, "node": args.node_delta},
            attack_on=args.on,
        )
    ]


def _sources(args: argparse.Namespace) -> list[Source]:
    """Return the data sets, none of them loaded yet; an unknown name is an error."""
    from gapgnn.evaluation.grid import Source
    from gapgnn.graph.datasets import dataset_info

    for option in ("dataset", "edges", "store") if args.datasets is not None else ():
        if getattr(args, option) is not None:
            raise InputError(f"`--datasets` must not come with `--{option}`. Got both.")
    check_options(args, needs_label=True)
    own = args.store or args.nodes
    if own is not None:
        return [Source(own.stem, _own_words(args), functools.partial(_open, args))]
    names = args.datasets or [args.dataset or DEFAULT_DATASET]
    known = dict.fromkeys(dataset_info(name).name for name in names)
    return [
        Source(
            name,
            ("--dataset", name),
            functools.partial(_open, argparse.Namespace(**{**vars(args), "dataset": name})),
        )
        for name in known
    ]


def _open(args: argparse.Namespace, seed: int) -> Graph:
    """Load one graph, in this process or another."""
    return load_graph(args, seed=seed, quiet=True)


def _own_words(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the words that choose somebody's own data."""
    words: list[str] = []
    for name in _OWN_DATA:
        value = getattr(args, name)
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    for column in args.drop or ():
        words += ["--drop", column]
    if args.directed is not None:
        words.append("--directed" if args.directed else "--undirected")
    return tuple(words)


def _rows(args: argparse.Namespace, source: Source, configurations: Sequence[Any]) -> list[Row]:
    """Return one data set's rows; a row that cannot work stops everything before it starts."""
    from gapgnn.evaluation.grid import Row, Task, code_version, open_graph

    graph = open_graph(source, args.seed)
    # On a cluster the folder may be another machine's.
    logs = None if args.out is None or args.ray is not None else str(args.out / "logs")
    rows = []
    for configuration in configurations:
        task = Task(
            configuration=configuration,
            source=source,
            fingerprint=graph.fingerprint,
            arcs=graph.num_arcs,
            version=code_version(configuration.metric),
            repeats=args.repeats,
            seed=args.seed,
            noise=args.noise,
            insecure_noise_seed=args.insecure_noise_seed,
            device=args.device,
            log_folder=logs,
            tensorboard=args.tensorboard,
        )
        row = Row(task, args.select)
        try:
            for part in row.parts:
                part.estimator().check()
        except GapgnnError as error:
            hint = "Leave the row out with `--methods`, or change the option."
            raise InputError(f"{configuration.method}: {error} {hint}") from None
        rows.append(row)
    return rows


def _executor(args: argparse.Namespace) -> Executor | None:
    """Return who does the tasks; None is this process."""
    from gapgnn.evaluation.grid import local_executor

    if args.ray is None:
        return local_executor(args.jobs) if args.jobs not in (None, 1) else None
    try:
        cluster: Any = importlib.import_module("gapgnn.cluster")
        executor: Executor = cluster.ray_executor(args.ray, args.jobs)
    except (ImportError, AttributeError):
        raise UnavailableError(
            "`--ray` needs the package ray. Install gapgnn[ray], or use --jobs on this machine."
        ) from None
    return executor


def _run(
    args: argparse.Namespace,
    rows: Sequence[Row],
    store: Store,
    records: Sequence[Record],
    executor: Executor | None,
) -> Summary:
    from gapgnn.cli.experiment_progress import GridProgress
    from gapgnn.evaluation.grid import run_grid

    attack = None
    if any(row.task.configuration.attack is not None for row in rows):
        from gapgnn.attacks import membership_attack

        attack = membership_attack
    torn = store.half_written()
    if torn:
        complain(
            f"`{store.path}` ends in a half-written line of {torn:,} bytes: a run was killed while "
            "it was recorded. The line is removed and that run is done again; all others are safe."
        )
    screen = console(to_stderr=True)
    with GridProgress(screen, records, jobs=args.jobs or 1, quiet=args.json) as progress:
        return run_grid(rows, store, attack=attack, executor=executor, watcher=progress)
