"""Who watches a run: progress bars, JSON lines, TensorBoard, or anything with the same methods.

docs/experiments.md shows a callback for Weights & Biases and one for MLflow. At node level neither
loss nor accuracy is reported, because both are computed from private labels without noise. At edge
level features and labels are public, and so is what is logged of them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gapgnn.errors import UnavailableError

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


class JsonlLogger:
    """Writes one JSON line per phase and per step to a file of its own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.jsonl"
    ...     with JsonlLogger(path) as logger:
    ...         logger.start("encoder", 1)
    ...         logger.advance("encoder", loss=0.5)
    ...     [json.loads(line)["event"] for line in path.read_text().splitlines()]
    ['start', 'step']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._steps: dict[str, int] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UnavailableError(
                f"`{self.path}` must be writable. Got {error.strerror}."
            ) from None
        self._begin = time.perf_counter()

    def __enter__(self) -> JsonlLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, phase: str, total: int) -> None:
        """Note that a phase begins."""
        self._steps[phase] = 0
        self._note({"event": "start", "phase": phase, "total": total})
        self._file.flush()

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Note one step, with loss and validation accuracy where they are reported."""
        self._steps[phase] += 1
        known = {"loss": loss, "accuracy": accuracy}
        figures = {name: value for name, value in known.items() if value is not None}
        self._note({"event": "step", "phase": phase, "step": self._steps[phase], **figures})

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()

    def _note(self, entry: dict[str, Any]) -> None:
        entry["seconds"] = round(time.perf_counter() - self._begin, 4)
        self._file.write(json.dumps(entry) + "\n")


class TensorBoardLogger:
    """Writes loss and validation accuracy of every phase as TensorBoard scalars."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UnavailableError(
                "TensorBoard logs need the package tensorboard. Install gapgnn[tensorboard]."
            ) from None
        self._writer: Any = SummaryWriter(str(folder))
        self._steps: dict[str, int] = {}

    def __enter__(self) -> TensorBoardLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def start(self, phase: str, total: int) -> None:
        """Begin a phase's curves."""
        self._steps[phase] = 0

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Add one point to each curve that is reported."""
        self._steps[phase] += 1
        for name, value in (("loss", loss), ("validation accuracy", accuracy)):
            if value is not None:
                self._writer.add_scalar(f"{phase}/{name}", value, self._steps[phase])


class Several:
    """Tells several callbacks the same.

    >>> from gapgnn.training.callbacks import Silent
    >>> Several(Silent(), Silent()).start("encoder", 1)
    """

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks

    def start(self, phase: str, total: int) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.start(phase, total)

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            callback.advance(phase, loss=loss, accuracy=accuracy)
