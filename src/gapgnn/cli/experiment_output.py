"""What `gapgnn experiment` prints: the plan, the rows, and what was done."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.experiment_progress import duration
from gapgnn.cli.output import console, emit_json
from gapgnn.evaluation import bootstrap_interval
from gapgnn.evaluation.grid import estimate, missing_tasks

if TYPE_CHECKING:
    from gapgnn.evaluation.grid import Record, Row, Store, Summary, Task


def print_plan(args: argparse.Namespace, rows: Sequence[Row], records: Sequence[Record]) -> None:
    """Print what would run and how long that may take; nothing is written."""
    from rich.markup import escape
    from rich.table import Table

    missing = {task.key: estimate(task, records) for task in missing_tasks(rows, records)}
    jobs = args.jobs or 1
    total = sum(missing.values()) / jobs
    plan = [
        {
            **named(row.task),
            "runs": sum(key in missing for key in row.keys),
            "seconds": round(sum(missing.get(key, 0.0) for key in row.keys), 1),
        }
        for row in rows
    ]
    if args.json:
        emit_json({"rows": plan, "runs": len(missing), "estimated_seconds": round(total, 1)})
        return
    table = Table(title=f"{len(rows)} rows, {len(missing)} runs of {args.repeats} repeats")
    for column in ("data set", "experiment", "row", "epsilon", "parameters", "to run", "about"):
        table.add_column(column)
    for line in plan:
        about = duration(line["seconds"]) if line["runs"] else "there"
        cells = [*map(str, list(line.values())[:5]), str(line["runs"]), about]
        table.add_row(*map(escape, cells))
    out = console(to_stderr=False)
    out.print(table)
    out.print(
        f"About {duration(total)} with {jobs} {'job' if jobs == 1 else 'jobs'}: an estimate from "
        f"{'earlier results here' if records else 'runs on another machine'}, not a promise. Runs "
        "that several rows share are counted once."
    )


def named(task: Task) -> dict[str, Any]:
    """Return what a row is called: data set, experiment, row, epsilon, parameters.

    What is sent along the edges is already part of the row's label.
    """
    configuration = task.configuration
    epsilon = "inf" if configuration.epsilon is None else f"{configuration.epsilon:g}"
    parts = {**configuration.parameters, **(configuration.attack or {})}
    parts.pop("messages", None)
    return {
        "dataset": task.source.name,
        "experiment": configuration.experiment,
        "method": configuration.method,
        "epsilon": epsilon,
        "parameters": " ".join(f"{name}={value}" for name, value in parts.items()),
    }


def summary_json(folder: Path, summary: Summary) -> dict[str, Any]:
    """Return what was done, for programs."""
    return {
        "out": str(folder),
        "planned": summary.planned,
        "found": summary.found,
        "ran": summary.ran,
        "failed": [{**named(task), "reason": message} for task, message in summary.failures],
        "seconds": round(summary.seconds, 3),
    }


def print_results(rows: Sequence[Row], store: Store, summary: Summary) -> None:
    """Print every row that was asked for, then what was done."""
    from rich.markup import escape
    from rich.table import Table

    known = {(record.key, record.experiment): record for record in store.records()}
    table = Table()
    for column in ("data set", "experiment", "row", "epsilon", "parameters", "mean", "95 %"):
        table.add_column(column)
    for row in rows:
        record = known.get(row.identity)
        if record is None:
            continue
        names = named(row.task)
        chosen = {k: v for k, v in record.parameters.items() if k != "messages"}
        names["parameters"] = " ".join(f"{name}={value}" for name, value in chosen.items())
        low, high = bootstrap_interval(record.runs)
        cells = [*names.values(), f"{record.mean:.1%}", f"{low:.1%} to {high:.1%}"]
        table.add_row(*map(escape, cells))
    out = console(to_stderr=False)
    out.print(table)
    out.print(
        f"{summary.planned} rows: {summary.found} were there, {summary.ran} runs in "
        f"{duration(summary.seconds)}, {len(summary.failures)} failed. Results in {store.path}; "
        f"`gapgnn report {store.folder}` makes a page of them.",
        markup=False,
        soft_wrap=True,
    )
    out.print("Note: computed from the data without noise, for the curator only.")
    if any(row.select == "validation" for row in rows):
        out.print("Note: parameters were chosen by validation accuracy; epsilon does not cover it.")
