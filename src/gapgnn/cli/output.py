"""Where output goes: results to stdout, everything for people's eyes only to stderr.

How much of the latter is one setting for all commands. ``quiet`` is results and errors: no
progress, no notes. ``verbose`` adds how long each phase took, and where an error came from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
_voice = "normal"


@contextmanager
def speaking(voice: str) -> Iterator[None]:
    """Set how much people are told while a command runs.

    >>> with speaking("quiet"):
    ...     note("Note: nobody reads this.")
    """
    global _voice
    before, _voice = _voice, voice
    try:
        yield
    finally:
        _voice = before


def is_quiet() -> bool:
    """Tell whether nothing but results and errors is wanted."""
    return _voice == "quiet"


def is_verbose() -> bool:
    """Tell whether details are wanted."""
    return _voice == "verbose"


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


def complain(message: str) -> None:
    """Print one error line to stderr, whatever line breaks the message contains."""
    print("gapgnn: " + printable(" ".join(message.split())), file=sys.stderr)


def emit_json(result: dict[str, Any]) -> None:
    """Print exactly one JSON object to stdout."""
    import json

    print(json.dumps(result, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON knows."""
    return value.tolist()


def console(*, to_stderr: bool) -> Console:
    """Return a rich console for tables and progress; what goes to stderr may not be wanted."""
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
    """Print a remark below a result, where remarks are wanted; one with a path on one line."""
    if not is_quiet():
        console(to_stderr=False).print(line, markup=False, soft_wrap=is_path)


def begin(line: str) -> None:
    """Print a first line to a terminal at once, before the libraries that take seconds are loaded.

    >>> begin("Loading social and the libraries")
    """
    if sys.stderr.isatty() and not is_quiet():
        print(printable(line) + " ...", file=sys.stderr, flush=True)


def phase_bars(trainings: int = 1) -> ProgressBars:
    """Return the bars of trainings, on stderr; where details are wanted, a line per phase too."""
    from gapgnn.training import ProgressBars

    return ProgressBars(console(to_stderr=True), lines=is_verbose(), trainings=trainings)


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
