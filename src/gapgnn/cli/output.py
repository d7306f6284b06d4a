"""Where output goes: results to stdout, everything for people's eyes only to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


def complain(message: str) -> None:
    """Print one error line to stderr, whatever line breaks the message contains."""
    print("gapgnn: " + " ".join(message.split()), file=sys.stderr)


def emit_json(result: dict[str, Any]) -> None:
    """Print exactly one JSON object to stdout."""
    print(json.dumps(result, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON knows."""
    return value.tolist()


def console(*, to_stderr: bool) -> Console:
    """Return a rich console for tables and progress."""
    from rich.console import Console

    return Console(stderr=to_stderr, highlight=False)


def say(line: str, *, to_stderr: bool = False) -> None:
    """Print one line as it is: nothing in it is markup, and it is not broken."""
    console(to_stderr=to_stderr).print(line, markup=False, soft_wrap=True)


@contextmanager
def progress_bars(
    text: str, *columns: str, quiet: bool = False, transient: bool = True
) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback that moves a bar for each thing on stderr, if that is a terminal.

    Args:
        text: before the bar, in the format of rich.
        columns: behind it, names of :mod:`rich.progress`.
        quiet: show nothing.
        transient: whether the bars are gone in the end.
    """
    if quiet:
        yield lambda what, done, total: None
        return
    from rich import progress

    screen = console(to_stderr=True)
    bars = progress.Progress(
        progress.TextColumn(text),
        progress.BarColumn(),
        *(getattr(progress, name)() for name in columns),
        console=screen,
        disable=not screen.is_terminal,
        transient=transient,
    )
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    with bars:
        yield advance
