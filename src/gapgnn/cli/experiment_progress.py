"""One display for a whole grid of experiments, with the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from gapgnn.evaluation.grid import Failure, Record, Task, estimate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Pace:
    """How much is left to do, corrected by how long what is done really took."""

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
        """Return the estimate for now: it runs down between two finished tasks."""
        ratio = self._taken / self._expected if self._expected else 1.0
        return max(0.0, self._left * ratio / self._jobs - (time.monotonic() - self._since))


class GridProgress:
    """A bar on a terminal; elsewhere one line per finished run, for logs."""

    def __init__(
        self, console: Console, records: Sequence[Record], *, jobs: int, quiet: bool = False
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = console
        self._records = list(records)
        self._jobs = jobs
        self._prints = not quiet and not console.is_terminal
        self._bars = Progress(
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

    def __enter__(self) -> GridProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def start(self, tasks: Sequence[Task]) -> None:
        """Open the bar: its length is the estimated time."""
        self._estimates = {task.key: estimate(task, self._records) for task in tasks}
        self._pace = Pace(list(self._estimates.values()), jobs=self._jobs)
        self._bar = self._bars.add_task(
            "", total=sum(self._estimates.values()), count=self._count(), left=_Left(self._pace)
        )

    def done(self, task: Task, result: Record | Failure) -> None:
        """Move the bar, and say what came out."""
        self._finished += 1
        expected = self._estimates[task.key]
        taken = expected if isinstance(result, Failure) else result.seconds
        self._pace.done(expected, taken)
        line = f"{describe(task)}: {outcome(result)}"
        if self._bar is not None:
            self._bars.update(
                self._bar, advance=expected, count=self._count(), description=_plain(line)
            )
        if self._prints:
            left = duration(self._pace.seconds_left())
            text = f"{self._count()} {line}, {left} left"
            self._console.print(text, markup=False, soft_wrap=True)

    def _count(self) -> str:
        return f"{self._finished}/{len(self._estimates)}"


class _Left:
    """Formats as the time left at the moment the display is drawn."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def __str__(self) -> str:
        return f"{duration(self._pace.seconds_left())} left"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def describe(task: Task) -> str:
    """Return a task in a few words."""
    configuration = task.configuration
    words = [task.source.name, configuration.method]
    if configuration.epsilon is not None:
        words.append(f"epsilon {configuration.epsilon:g}")
    shown = {k: v for k, v in configuration.parameters.items() if k != "messages"}
    words += [f"{name}={value}" for name, value in shown.items()]
    words += [f"{name} {value}" for name, value in (configuration.attack or {}).items()]
    return ", ".join(words)


def outcome(result: Record | Failure) -> str:
    """Return a result in a few words."""
    if isinstance(result, Failure):
        return f"failed: {result.message}"
    what = "AUC" if result.metric == "auc" else "accuracy"
    return f"{what} {result.mean:.1%} in {duration(result.seconds)}"


def duration(seconds: float) -> str:
    """Return a time in the words of people.

    >>> duration(9.4), duration(75), duration(7400)
    ('9 s', '1 min 15 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
