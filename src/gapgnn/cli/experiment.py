"""`gapgnn experiment`: the paper's tables and figures on any data set, resumable."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    DEFAULT_DATASET,
    add_curator_option,
    add_data_options,
    check_curator,
    check_options,
    data_words,
    load_graph,
)
from gapgnn.cli.output import complain, console, is_quiet, note
from gapgnn.cli.receipts import emit_result, receipt
from gapgnn.errors import GapgnnError, InputError, check_choice, check_integer
from gapgnn.evaluation.grid import (
    EXPERIMENTS,
    FIGURES,
    METHODS,
    Failure,
    estimate,
    missing_tasks,
)
from gapgnn.training import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from gapgnn.evaluation.grid import (
        Configuration,
        Executor,
        Record,
        Row,
        Source,
        Store,
        Summary,
        Task,
    )
    from gapgnn.graph import Graph

ALL = "all"
TEXT = """\
Train and measure the rows of the paper's tables and figures, and ours beside them: accuracy (all
methods at one budget), tradeoff (accuracy against epsilon), encoder, hops and degree (ablations),
membership, label-inference, inductive-links and reconstruction (attacks). Finished rows are kept in
FOLDER/results.jsonl; interrupted or killed, the same command runs only what is missing. `gapgnn
report FOLDER` turns the folder into a page.

The figures are computed from the data without noise: they are for the curator. The models are not
released, so nothing is charged to your ledger."""
EXAMPLES = """\
examples:
  gapgnn experiment accuracy --dry-run
  gapgnn experiment accuracy --datasets facebook100/Cornell5 --out results
  gapgnn experiment tradeoff hops --datasets social --methods gap --levels edge --out results
  gapgnn experiment accuracy --edges friends.csv --nodes people.csv --label year --out results
  gapgnn experiment accuracy --as-paper --out paper
  gapgnn experiment all --as-paper --datasets facebook100/Cornell5 --jobs 4 --out results
"""
_COLUMNS = "data set", "experiment", "method", "level", "epsilon", "parameters"
# What stands beside accuracy, under heads that leave room for it.
_BESIDE = {"majority": "largest", "balanced_accuracy": "balanced", "macro_f1": "F1", "auc": "AUC"}


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
    _add_grid_options(parser.add_argument_group("grid"))
    _add_output_options(parser.add_argument_group("run and output"))


def _add_grid_options(grid: argparse._ArgumentGroup) -> None:
    """Add the options that say which rows there are and how they are measured."""
    grid.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="methods such as gap, label-gap or sage (default: the paper's and ours)",
    )
    grid.add_argument(
        "--levels",
        nargs="+",
        metavar="LEVEL",
        help="none, edge and node, or some of them (default: all that the experiment has)",
    )
    grid.add_argument(
        "--epsilons",
        nargs="+",
        type=float,
        metavar="X",
        help="budgets of the private rows (default: the paper's)",
    )
    grid.add_argument(
        "--as-paper",
        action="store_true",
        help="as published: relation directed, the paper's deltas, parameters selected by "
        "validation accuracy, and (unless others are named) the papers' data sets",
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


def _add_output_options(output: argparse._ArgumentGroup) -> None:
    """Add the options that say where rows run and where results go."""
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
    add_curator_option(output)


def execute(args: argparse.Namespace) -> int:
    """Plan the grid, check everything, run what is missing, report."""
    from gapgnn.evaluation.grid import Store

    if args.as_paper:
        _follow_paper(args)
    configurations = _configurations(args)
    sources = _sources(args)
    if args.out is None and not args.dry_run:
        raise InputError("`--out` must name the folder of the results. Got none.")
    receipt().folder = args.out
    store = None if args.out is None else Store(args.out)
    records = [] if store is None else store.records()
    executor = _executor(args)
    rows = [row for source in sources for row in _rows(args, source, configurations)]
    if store is None or args.dry_run:
        _print_plan(args, rows, records)
        return 0
    summary = _run(args, rows, store, records, executor)
    for task, message in summary.failures:
        configuration = task.configuration
        complain(f"{task.source.name}, {_row_words(configuration)}: {message}")
    if args.json:
        failed = [{**_named(task), "reason": reason} for task, reason in summary.failures]
        done = {"planned": summary.planned, "found": summary.found, "ran": summary.ran}
        seconds = {"total": round(summary.seconds, 3)}
        emit_result({"out": str(args.out), **done, "failed": failed, "seconds": seconds})
    else:
        _print_results(rows, store, summary)
    return 1 if summary.failures else 0


def _follow_paper(args: argparse.Namespace) -> None:
    """Set relation, selection and data sets of the paper; an option against them is an error.

    Delta follows from the size of each graph, once it is open.
    """
    from gapgnn.evaluation.report import DATASETS

    if args.relation not in ("auto", "directed"):
        raise InputError(
            "`--as-paper` must not come with another relation than directed, the paper's. Got "
            f"{args.relation!r}."
        )
    for option in ("edge_delta", "node_delta"):
        if getattr(args, option) is not None:
            name = option.replace("_", "-")
            raise InputError(f"`--as-paper` must not come with `--{name}`. Got both.")
    args.relation, args.select = "directed", "validation"
    if args.datasets is args.dataset is args.edges is args.store is None:
        args.datasets = list(DATASETS)


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
            levels=args.levels,
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
        return [Source(own.stem, data_words(args), functools.partial(_open, args))]
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
    return load_graph(args, seed=seed, quiet=True).graph


def _rows(args: argparse.Namespace, source: Source, configurations: Sequence[Any]) -> list[Row]:
    """Return one data set's rows; an invalid row is refused before anything runs."""
    from gapgnn.evaluation.grid import Row, Task, code_version, open_graph, with_paper_delta

    graph = open_graph(source, args.seed)
    if args.as_paper:
        sizes = {"arcs": graph.num_arcs, "nodes": graph.num_nodes}
        configurations = [with_paper_delta(one, **sizes) for one in configurations]
    if not args.dry_run:
        check_curator(args, graph, purpose="experiment")
    # On a cluster the folder may be another machine's.
    logs = None if args.out is None or args.ray is not None else str(args.out / "logs")
    rows = []
    for configuration in configurations:
        task = Task(
            configuration=configuration,
            source=source,
            fingerprint=graph.fingerprint,
            arcs=graph.num_arcs,
            version=code_version(configuration.metric, configuration.estimator),
            repeats=args.repeats,
            seed=args.seed,
            noise=args.noise,
            insecure_noise_seed=args.insecure_noise_seed,
            device=args.device,
            log_folder=logs,
            tensorboard=args.tensorboard,
        )
        # What an attack finds is not selected by validation accuracy, in the paper either.
        is_fixed = args.as_paper and configuration.attack is not None
        row = Row(task, "fixed" if is_fixed else args.select)
        try:
            for part in row.parts:
                part.estimator().check()
        except GapgnnError as error:
            if args.methods is None and configuration.method not in METHODS:
                # Of another package, and nobody named it.
                complain(f"{_row_words(configuration)} is left out: {error}")
                continue
            hint = "Leave the row out with `--methods` or `--levels`, or change the option."
            raise InputError(f"{_row_words(configuration)}: {error} {hint}") from None
        rows.append(row)
    return rows


def _executor(args: argparse.Namespace) -> Executor | None:
    """Return the executor of the tasks; None is this process."""
    from gapgnn.evaluation.grid import local_executor

    if args.ray is None:
        return local_executor(args.jobs) if args.jobs not in (None, 1) else None
    from gapgnn.cluster import ray_executor

    return ray_executor(args.ray, args.jobs)


def _run(
    args: argparse.Namespace,
    rows: Sequence[Row],
    store: Store,
    records: Sequence[Record],
    executor: Executor | None,
) -> Summary:
    """Run what is missing, and show the progress."""
    from gapgnn.evaluation.grid import run_grid

    torn = store.half_written()
    if torn:
        complain(
            f"`{store.path}` ends in a half-written line of {torn:,} bytes: a run was killed while "
            "it was recorded. The line is removed and that run is done again; all others are safe."
        )
    screen = console(to_stderr=True)
    progress = GridProgress(screen, records, jobs=args.jobs or 1, quiet=args.json or is_quiet())
    with progress.bars:
        return run_grid(rows, store, executor=executor, watcher=progress)


def _print_plan(args: argparse.Namespace, rows: Sequence[Row], records: Sequence[Record]) -> None:
    """Print what would run and how long that may take; nothing is written."""
    missing = {task.key: estimate(task, records) for task in missing_tasks(rows, records)}
    jobs = args.jobs or 1
    total = sum(missing.values()) / jobs
    plan = [
        {
            **_named(row.task),
            "runs": sum(key in missing for key in row.keys),
            "seconds": round(sum(missing.get(key, 0.0) for key in row.keys), 1),
        }
        for row in rows
    ]
    if args.json:
        emit_result({"rows": plan, "runs": len(missing), "estimated_seconds": round(total, 1)})
        return
    title = f"{len(rows)} rows, {len(missing)} runs of {args.repeats} repeats"
    lines = []
    for line in plan:
        about = duration(line["seconds"]) if line["runs"] else "there"
        lines.append([*map(str, list(line.values())[: len(_COLUMNS)]), str(line["runs"]), about])
    out = console(to_stderr=False)
    out.print(title)
    _print_table(out, (*_COLUMNS, "to run", "about"), lines)
    out.print(
        f"About {duration(total)} with {jobs} {'job' if jobs == 1 else 'jobs'}: an estimate from "
        f"{'earlier results here' if records else 'runs on another machine'}, not a promise. Runs "
        "that several rows share are counted once."
    )


def _named(task: Task) -> dict[str, Any]:
    """Return the name of a row: data set, experiment, method, level, epsilon, parameters."""
    configuration = task.configuration
    epsilon = "inf" if configuration.epsilon is None else f"{configuration.epsilon:g}"
    return {
        "dataset": task.source.name,
        "experiment": configuration.experiment,
        "method": configuration.method,
        "level": configuration.level,
        "epsilon": epsilon,
        "parameters": " ".join(_settings(configuration.parameters, configuration.attack_options)),
    }


def _settings(*settings: Mapping[str, Any] | None) -> Iterable[str]:
    """Yield the parameters that were set, except `own`, which is part of the row's name."""
    for some in settings:
        yield from (f"{k}={v}" for k, v in (some or {}).items() if k != "own")


def _row_words(configuration: Configuration) -> str:
    """Return method and level of a row."""
    return f"{configuration.method}, level {configuration.level}"


def _print_results(rows: Sequence[Row], store: Store, summary: Summary) -> None:
    """Print every requested row, then a summary of the run."""
    from gapgnn.evaluation import shown_interval
    from gapgnn.evaluation.report import unpublished

    known = {(record.key, record.experiment): record for record in store.records()}
    measured: list[list[str]] = []
    # A table of its own, since a terminal of 80 columns has no room for all in one.
    beside: list[list[str]] = []
    for row in rows:
        record = known.get(row.identity)
        if record is None:
            continue
        names = _named(row.task)
        names["parameters"] = " ".join(_settings(record.parameters))
        names["delta"] = "" if record.delta is None else f"{record.delta:.3g}"
        ends = shown_interval(record.runs)
        interval = "" if ends is None else f"{ends[0]:.1%} to {ends[1]:.1%}"
        repeats = str(len(record.runs))
        measured.append([*names.values(), repeats, f"{record.mean:.1%}", interval])
        if record.figures("majority"):
            del names["experiment"]
            figures = [_mean(record.figures(name)) for name in _BESIDE]
            beside.append([*names.values(), *figures])
    out = console(to_stderr=False)
    _print_table(out, (*_COLUMNS, "delta", "repeats", "mean", "95 %"), measured)
    if beside:
        columns = [name for name in (*_COLUMNS, "delta") if name != "experiment"]
        out.print("Beside accuracy:")
        _print_table(out, (*columns, *_BESIDE.values()), beside)
    out.print(
        f"{summary.planned} rows: {summary.found} were there, {summary.ran} runs in "
        f"{duration(summary.seconds)}, {len(summary.failures)} failed. Results in {store.path}; "
        f"`gapgnn report {store.folder}` makes a page of them.",
        markup=False,
        soft_wrap=True,
    )
    note("Note: computed from the data without noise, for the curator only.")
    if any(row.select == "validation" for row in rows):
        note("Note: parameters were chosen by validation accuracy; epsilon does not cover it.")
    if said := unpublished(row.task.source.name for row in rows):
        note(f"Note: {said}")


def _print_table(out: Console, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table without the columns that every line leaves empty.

    What all lines have in common is printed above them once.
    """
    from rich.markup import escape
    from rich.table import Table

    filled = [number for number in range(len(columns)) if any(line[number] for line in lines)]
    shared = [number for number in filled if _is_shared(columns[number], number, lines)]
    if shared:
        words = ", ".join(f"{columns[number]} {lines[0][number]}" for number in shared)
        out.print(f"All rows: {words}.", markup=False, soft_wrap=True)
    filled = [number for number in filled if number not in shared]
    table = Table()
    is_name = [columns[number] == "method" for number in filled]
    for number, is_whole in zip(filled, is_name, strict=True):
        # Where there is little room the other columns give way: the name of a method is never cut.
        table.add_column(columns[number], no_wrap=is_whole, overflow="fold")
    for line in lines:
        cells = [escape(line[number]) for number in filled]
        table.add_row(
            *(
                cell.replace(" ", "\n", 1) if is_whole else cell
                for cell, is_whole in zip(cells, is_name, strict=True)
            )
        )
    out.print(table)


def _is_shared(column: str, number: int, lines: Sequence[Sequence[str]]) -> bool:
    """Return whether several lines have one value in a column that says what they are about."""
    return (
        column in (*_COLUMNS, "delta", "repeats")
        and column != "method"
        and len(lines) > 1
        and len({line[number] for line in lines}) == 1
    )


def _mean(figures: Sequence[float]) -> str:
    return f"{sum(figures) / len(figures):.1%}" if figures else "-"


class Pace:
    """The estimated remaining time, corrected by the time that finished tasks took."""

    def __init__(self, estimates: Sequence[float], *, jobs: int) -> None:
        self._left = sum(estimates)
        self._jobs = jobs
        self._expected = self._taken = 0.0
        self._since = time.monotonic()

    def done(self, expected: float, taken: float) -> None:
        """Note one finished task."""
        self._left = max(0.0, self._left - expected)
        self._expected += expected
        self._taken += taken
        self._since = time.monotonic()

    def seconds_left(self) -> float:
        """Return the current estimate: it decreases between two finished tasks."""
        ratio = self._taken / self._expected if self._expected else 1.0
        return max(0.0, self._left * ratio / self._jobs - (time.monotonic() - self._since))

    def __str__(self) -> str:
        """Return the current estimate as text."""
        return f"{duration(self.seconds_left())} left"


class GridProgress:
    """A bar on a terminal while ``bars`` are entered; elsewhere one line per run, for logs."""

    def __init__(
        self, console: Console, records: Sequence[Record], *, jobs: int, quiet: bool = False
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = console
        self._records = list(records)
        self._jobs = jobs
        self._prints = not quiet and not console.is_terminal
        self.bars = Progress(
            TextColumn("{task.fields[count]}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._pace = Pace([], jobs=jobs)
        self._estimates: dict[str, float] = {}
        self._bar: TaskID | None = None
        self._finished = 0

    def start(self, tasks: Sequence[Task]) -> None:
        """Open the bar: its length is the estimated time."""
        self._estimates = {task.key: estimate(task, self._records) for task in tasks}
        self._pace = Pace(list(self._estimates.values()), jobs=self._jobs)
        self._bar = self.bars.add_task(
            "", total=sum(self._estimates.values()), count=self._count(), left=self._pace
        )

    def done(self, task: Task, result: Record | Failure) -> None:
        """Move the bar, and print the result."""
        from rich.markup import escape

        self._finished += 1
        expected = self._estimates[task.key]
        taken = expected if isinstance(result, Failure) else result.seconds
        self._pace.done(expected, taken)
        line = f"{_described(task)}: {_outcome(result)}"
        if self._bar is not None:
            self.bars.update(
                self._bar, advance=expected, count=self._count(), description=escape(line)
            )
        if self._prints:
            text = f"{self._count()} {line}, {self._pace}"
            self._console.print(text, markup=False, soft_wrap=True)

    def _count(self) -> str:
        return f"{self._finished}/{len(self._estimates)}"


def _described(task: Task) -> str:
    """Return a task in a few words."""
    configuration = task.configuration
    words = [task.source.name, configuration.method, f"level {configuration.level}"]
    if configuration.epsilon is not None:
        words.append(f"epsilon {configuration.epsilon:g}")
    words += _settings(configuration.parameters)
    words += [f"{name} {value}" for name, value in configuration.attack_options.items()]
    return ", ".join(words)


def _outcome(result: Record | Failure) -> str:
    """Return a result in a few words."""
    if isinstance(result, Failure):
        return f"failed: {result.message}"
    what = "AUC" if result.metric == "auc" else "accuracy"
    beside = [
        f"{FIGURES[name]} {_mean(values)}"
        for name in ("majority", "auc")
        if (values := result.figures(name))
    ]
    shown = f" ({', '.join(beside)})" if beside else ""
    return f"{what} {result.mean:.1%}{shown} in {duration(result.seconds)}"
