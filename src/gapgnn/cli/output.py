"""Where output goes: results to stdout, everything for people to stderr.

How much of the latter is one setting for all commands. ``quiet`` is results, errors and warnings
about budgets: no progress, no notes. ``verbose`` adds how long each phase took, and where an error
came from. Its format is another: ``text``, or ``json`` for one JSON object a line.
"""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from gapgnn.training import ProgressBars

# What a terminal acts on: control characters but line ends and tabs, and marks of direction.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# What a spreadsheet takes for a formula, behind any number of apostrophes; not a plain number.
_FORMULA = re.compile(r"'*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:[.,][0-9]+)*[.,]?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
_verbosity = "normal"
_log_format = "text"


@contextmanager
def verbosity(level: str) -> Iterator[None]:
    """Set how much is printed while a command runs.

    >>> with verbosity("quiet"):
    ...     note("Note: not printed.")
    """
    global _verbosity
    before, _verbosity = _verbosity, level
    try:
        yield
    finally:
        _verbosity = before


def is_quiet() -> bool:
    """Whether only results, errors and warnings about budgets are printed."""
    return _verbosity == "quiet"


def is_verbose() -> bool:
    """Whether details are printed."""
    return _verbosity == "verbose"


@contextmanager
def log_format(name: str) -> Iterator[None]:
    """Set how everything for people is written while a command runs: as text or as JSON.

    >>> with log_format("json"):
    ...     logs_json()
    True
    """
    global _log_format
    before, _log_format = _log_format, name
    try:
        yield
    finally:
        _log_format = before


def logs_json() -> bool:
    """Whether everything for people is one JSON object a line."""
    return _log_format == "json"


def log(event: str, message: str, *, severity: str = "info", **fields: Any) -> None:
    """Write one JSON object to stderr.

    Args:
        event: what happened: begin, price, budget, charge, note, progress, warning or error.
        message: for people.
        severity: ``info``, ``warning`` or ``error``.
        fields: what the message says, for programs.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    about = {"time": now, "severity": severity, "event": event, "message": printable(message)}
    print(json.dumps({**about, **fields}, default=_plain), file=sys.stderr, flush=True)


class _LogLines(io.TextIOBase):
    """A file whose lines are logged."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            log("note", line.rstrip())
        return len(text)


def printable(text: str) -> str:
    """Return text with every character that a terminal acts on written as its escape.

    >>> printable("red\\x1b[31m"), printable("Düsseldorf")
    ('red\\\\x1b[31m', 'Düsseldorf')
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def plain_cell(text: str) -> str:
    """Return a cell of a CSV file that no spreadsheet takes for a formula.

    Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end gets an apostrophe in
    front, and so does text in which apostrophes stand before one of them, so that taking one away
    gives back every cell. Numbers stay as they are.

    >>> [plain_cell(cell) for cell in ("=1+1", "-5", "+4,50", "-5+1", "'=1", "O'Hara")]
    ["'=1+1", '-5', '+4,50', "'-5+1", "''=1", "O'Hara"]
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def complain(message: str, *, severity: str = "error", **fields: Any) -> None:
    """Print one error line to stderr, whatever line breaks the message contains.

    Args:
        message: the complaint.
        severity: ``error`` or ``warning``, for logs of JSON.
        fields: further facts for such logs.
    """
    line = " ".join(message.split())
    if logs_json():
        log(severity, line, severity=severity, **fields)
    else:
        print("gapgnn: " + printable(line), file=sys.stderr)


def emit_json(result: dict[str, Any]) -> None:
    """Print exactly one JSON object to stdout."""
    print(json.dumps(result, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON knows."""
    return value.tolist()


def console(*, to_stderr: bool) -> Console:
    """Return a rich console for tables and progress; that of stderr is silent where quiet."""
    if to_stderr and logs_json():
        # Wide, as nobody reads its lines in a window, and never a terminal: no bars.
        lines: Any = _LogLines()
        return _console_type()(file=lines, highlight=False, quiet=is_quiet(), width=4096)
    return _console_type()(stderr=to_stderr, highlight=False, quiet=to_stderr and is_quiet())


@cache
def _console_type() -> type[Console]:
    """Return a console that escapes what a terminal would act on, wherever it comes from."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class EscapingConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            # Before the layout, which takes such characters to have no width.
            return super().render_str(printable(text), **options)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for one in super().render(renderable, options):
                yield one if one.control else Segment(printable(one.text), one.style)

    return EscapingConsole


def note(line: str, *, is_path: bool = False) -> None:
    """Print a note below a result unless quiet; one with a path stays on one line."""
    if is_quiet():
        return
    if logs_json():
        log("note", line)
    else:
        console(to_stderr=False).print(line, markup=False, soft_wrap=is_path)


def begin(line: str) -> None:
    """Print a first line to a terminal at once, before the libraries that take seconds are loaded.

    >>> begin("Loading social and the libraries")
    """
    if is_quiet():
        return
    if logs_json():
        log("begin", line)
    elif sys.stderr.isatty():
        print(printable(line) + " ...", file=sys.stderr, flush=True)


class PhaseLog:
    """Logs what a run is charged, when each phase begins and ends, and each quarter of a long one.

    Neither loss nor accuracy is logged: a log may go to people who may not see them.
    """

    def __init__(self) -> None:
        self._phases: dict[str, tuple[int, int, float]] = {}

    def __enter__(self) -> PhaseLog:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def expect(self, phases: Sequence[str]) -> None:
        """Log which phases there will be."""
        if not is_quiet():
            log("progress", f"phases: {', '.join(phases)}", phases=list(phases))

    def quote(self, price: str) -> None:
        """Log what is about to be charged, however quiet the run is."""
        log("price", f"Price: {price}")

    def start(self, phase: str, total: int) -> None:
        """Log that a phase begins."""
        self._phases[phase] = (0, total, time.monotonic())
        if not is_quiet():
            log("progress", f"{phase}: {total} steps", phase=phase, done=0, total=total)

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Log the quarters of a phase."""
        before, total, begun = self._phases[phase]
        done = before + 1
        self._phases[phase] = (done, total, begun)
        if is_quiet() or (4 * done // max(total, 1) == 4 * before // max(total, 1)):
            return
        seconds = round(time.monotonic() - begun, 3)
        line = f"{phase}: {done} of {total} steps in {seconds:.1f} s"
        log("progress", line, phase=phase, done=done, total=total, seconds=seconds)


def phase_bars(trainings: int = 1, *, says_total: bool = False) -> ProgressBars | PhaseLog:
    """Return the progress bars of trainings, on stderr; where verbose, also a line per phase.

    Logs of JSON have an object for each price, and for each phase where it begins and ends.

    Args:
        trainings: how many the estimate is for.
        says_total: print once how long they will take, if that is long.
    """
    if logs_json():
        return PhaseLog()
    from gapgnn.training import ProgressBars

    screen = console(to_stderr=True)
    return ProgressBars(screen, lines=is_verbose(), trainings=trainings, says_total=says_total)


def say(line: str, *, to_stderr: bool = False, event: str = "note", **fields: Any) -> None:
    """Print one line as it is: nothing in it is markup, and it is not broken.

    Args:
        line: what is said.
        to_stderr: whether it is for people beside the result.
        event: what a log of JSON calls it.
        fields: what the line says, for such a log.
    """
    if to_stderr and logs_json():
        if event == "price" or not is_quiet():
            log(event, line, **fields)
        return
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
    if quiet or is_quiet():
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
