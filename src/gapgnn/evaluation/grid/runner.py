"""Runs a grid of experiments: only what is missing, each result recorded as soon as it is there."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any, Protocol

from gapgnn.errors import GapgnnError, InputError, check_choice
from gapgnn.evaluation.grid.executors import Executor, local_executor
from gapgnn.evaluation.grid.plans import candidates
from gapgnn.evaluation.grid.records import CANDIDATE, Record, Store
from gapgnn.evaluation.grid.tasks import Task, content_key, perform

SELECTIONS = ("fixed", "validation")


@dataclass(frozen=True)
class Failure:
    """A task that could not be done, and why, in one line."""

    message: str


class Watcher(Protocol):
    """What a grid tells its watcher."""

    def start(self, tasks: Sequence[Task]) -> None:
        """These tasks are going to run."""

    def done(self, task: Task, result: Record | Failure) -> None:
        """One task is finished."""


@dataclass
class Summary:
    """What came of a grid: rows that were planned and found, tasks that ran or could not.

    Candidates of a selection are among what ran.
    """

    planned: int = 0
    found: int = 0
    ran: int = 0
    failures: list[tuple[Task, str]] = field(default_factory=list)
    seconds: float = 0.0


class Row:
    """One wanted row: what it is made of, and what it is called in the store.

    With ``select="fixed"`` a row is its task. With ``validation`` it is the best of its candidates.
    """

    def __init__(self, task: Task, select: str = "fixed") -> None:
        check_choice("select", select, SELECTIONS)
        self.task = task
        self.select = select
        self.parts = [task]
        if select == "validation":
            if task.configuration.attack is not None:
                name = task.configuration.experiment
                raise InputError(
                    f"`select` must be fixed for the experiment {name}: an attack has no "
                    "validation accuracy to choose by. Got 'validation'."
                )
            self.parts = [task.with_configuration(one) for one in candidates(task.configuration)]
        self.keys = [part.key for part in self.parts]
        self.key = self.keys[0]
        if select == "validation":
            self.key = content_key(select=select, candidates=sorted(self.keys))

    @property
    def identity(self) -> tuple[str, str]:
        """Key and experiment: the store keeps one record of each."""
        return self.key, self.task.configuration.experiment

    def record(self, known: Mapping[str, Record]) -> Record | None:
        """Return the row's record if everything it is made of is known."""
        if any(key not in known for key in self.keys):
            return None
        found = [known[key] for key in self.keys]
        changes: dict[str, Any] = {}
        best = 0
        if self.select == "validation":
            means = [_mean(record.extra.get("validation_runs", ())) for record in found]
            best = max(range(len(found)), key=means.__getitem__)
            tried = [
                {"parameters": dict(part.configuration.parameters), "validation_accuracy": value}
                for part, value in zip(self.parts, means, strict=True)
            ]
            changes = {
                "seconds": round(sum(record.seconds for record in found), 3),
                "extra": {**found[best].extra, "candidates": tried},
            }
        configuration = self.parts[best].configuration
        # The same figures may have been recorded in another experiment, under another label.
        return replace(
            found[best],
            key=self.key,
            experiment=configuration.experiment,
            method=configuration.method,
            parameters=dict(configuration.parameters),
            select=self.select,
            **changes,
        )


def estimate(task: Task, records: Iterable[Record]) -> float:
    """Return the seconds one task may take; a guess, not a promise.

    Records of the same row on the same data set are best (whatever their epsilon), then of the same
    method and level there; without one, measured times are scaled by the number of arcs and
    repeats.
    """
    wanted = task.configuration
    known = [
        record
        for record in records
        if record.metric == wanted.metric
        and (record.fingerprint, record.method, record.level)
        == (task.fingerprint, wanted.method, wanted.level)
    ]
    same = [record for record in known if dict(record.parameters) == dict(wanted.parameters)]
    if same or known:
        return task.repeats * mean(record.seconds / len(record.runs) for record in same or known)
    return wanted.seconds(arcs=task.arcs, repeats=task.repeats)


def missing_tasks(rows: Iterable[Row], records: Iterable[Record]) -> list[Task]:
    """Return what has to run: each configuration once, whatever rows share it."""
    known = list(records)
    identities = {(record.key, record.experiment) for record in known}
    keys = {record.key for record in known}
    missing: dict[str, Task] = {}
    for row in rows:
        if row.identity not in identities:
            for key, part in zip(row.keys, row.parts, strict=True):
                if key not in keys:
                    missing.setdefault(key, part)
    return list(missing.values())


def run_grid(
    rows: Sequence[Row],
    store: Store,
    *,
    executor: Executor | None = None,
    watcher: Watcher | None = None,
) -> Summary:
    """Run what the store does not have yet, and record every result as soon as it is there.

    A kill at any moment loses at most the tasks in flight; the same call again runs only what is
    missing. A task that cannot be done (a class too small to attack, say) does not stop the others.

    Args:
        rows: what is wanted.
        store: where results are and go.
        executor: who does the tasks; left out: this process.
        watcher: watches the progress.
    """
    start = time.perf_counter()
    store.prepare()
    records = store.records()
    identities = {(record.key, record.experiment) for record in records}
    waiting = [row for row in rows if row.identity not in identities]
    summary = Summary(planned=len(rows), found=len(rows) - len(waiting))
    missing = missing_tasks(waiting, records)
    if executor is not None:
        # The longest first, so that at the end nobody waits for a single one.
        missing.sort(key=lambda task: estimate(task, records), reverse=True)
    known = {record.key: record for record in records}
    waiting = _settle(waiting, known, store)
    if watcher is not None:
        watcher.start(missing)
    function = functools.partial(_attempt, function=perform)
    # Closing the generator ends whatever still runs, on Ctrl-C as well as on an error.
    with closing((executor or local_executor())(function, missing)) as results:
        for task, result in results:
            if isinstance(result, Failure):
                summary.failures.append((task, result.message))
            else:
                summary.ran += 1
                known[result.key] = result
                if any(result.key in row.keys for row in waiting if row.select != "fixed"):
                    store.append(replace(result, experiment=CANDIDATE))
                waiting = _settle(waiting, known, store)
            if watcher is not None:
                watcher.done(task, result)
    summary.seconds = time.perf_counter() - start
    return summary


def _attempt(task: Task, *, function: Callable[[Task], Record]) -> Record | Failure:
    """Do a task; what is wrong with this one alone must not stop the others."""
    try:
        return function(task)
    except GapgnnError as error:
        return Failure(" ".join(str(error).split()))


def _settle(rows: Iterable[Row], known: Mapping[str, Record], store: Store) -> list[Row]:
    """Record the rows that are complete now, and return the others."""
    waiting = []
    for row in rows:
        record = row.record(known)
        if record is None:
            waiting.append(row)
        else:
            store.append(record)
    return waiting


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
