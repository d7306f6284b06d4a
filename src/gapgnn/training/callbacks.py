"""Who watches a run: progress bars, or anything with the same two methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Callback(Protocol):
    """What a run tells its watcher. Nothing a callback does changes the result.

    At node level validation accuracy is computed from private labels without noise, so it is only
    reported when the caller asks for it, and then marked as not private.
    """

    def start(self, phase: str, total: int) -> None:
        """A phase (encoder, aggregation, classifier) begins and will take ``total`` steps."""
        return

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """One step is done."""
        return


class Silent(Callback):
    """The default watcher: says nothing."""


class ProgressBars:
    """One bar per phase on a terminal, with loss and validation accuracy where they are known."""

    def __init__(self, console: Console, *, accuracy_note: str = "") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            Remaining(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._accuracy_note = accuracy_note

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, phase: str, total: int) -> None:
        """Open the phase's bar."""
        self._tasks[phase] = self._bars.add_task(phase, total=total, note="")

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Move the phase's bar by one and show the latest figures."""
        notes = []
        if loss is not None:
            notes.append(f"loss {loss:.3f}")
        if accuracy is not None:
            notes.append(f"validation {accuracy:.1%}{self._accuracy_note}")
        fields = {"note": "  ".join(notes)} if notes else {}
        self._bars.update(self._tasks[phase], advance=1, **fields)  # type: ignore[arg-type]
