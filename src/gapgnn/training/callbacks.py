"""Callbacks of a run: progress bars, JSON lines, TensorBoard, or any object with these methods.

The page on experiments shows a callback for Weights & Biases and one for MLflow. At node level
neither loss nor accuracy is reported, because both are computed from private labels without noise.
At edge level features and labels are public, and so is what is logged of them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gapgnn.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

# Of each phase, by the name of the figure, one entry per epoch that reported it.
History: TypeAlias = dict[str, dict[str, list[float]]]


class Callback(Protocol):
    """The events of a run. Nothing a callback does changes the result.

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


def announce(callback: Callback, phases: Sequence[str]) -> None:
    """Announce the coming phases, in their order, to a callback with an ``expect`` method."""
    expect = getattr(callback, "expect", None)
    if expect is not None:
        expect(phases)


def quote(callback: Callback, price: str) -> None:
    """Announce the coming charge to a callback with a ``quote`` method."""
    method = getattr(callback, "quote", None)
    if method is not None:
        method(price)


# A run that takes longer says so, once its pace has been seen for a while.
LONG_SECONDS = 10.0
SETTLED_SECONDS = 2.0


class Silent(Callback):
    """The default callback, which ignores all events."""


def duration(seconds: float) -> str:
    """Return a time as readable text.

    >>> duration(9.4), duration(75), duration(7400)
    ('9 s', '1 min 15 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Outlook:
    """Estimate of the remaining time of a run with several phases.

    A phase that has started continues at its own speed. One that has not started is assumed to have
    as many steps as the mean of those before, at the speed of the last one. A phase that a resumed
    run skips takes no time. Of several trainings in one command, such as a method and its baseline,
    those that have not started are assumed to take as long as the current one.

    Args:
        clock: returns the time in seconds.
        trainings: number of trainings; each announces its phases when it starts.

    >>> now = iter([0.0, 10.0, 10.0])
    >>> outlook = Outlook(lambda: next(now))
    >>> outlook.expect(["encoder", "classifier"])
    >>> outlook.start("encoder", 4)
    >>> outlook.advance("encoder")
    >>> outlook.seconds_left()  # three steps of ten seconds, and a phase of four
    70.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, trainings: int = 1) -> None:
        self._clock = clock
        self._trainings = trainings
        self._announced = 0
        self._expected: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._begun: dict[str, float] = {}
        # Seconds per step of each phase, in the order in which the phases moved last.
        self._speeds: dict[str, float] = {}
        self._moved = 0.0

    def expect(self, phases: Sequence[str]) -> None:
        """Note that a training begins, and which phases it will have, in their order."""
        if self._announced:
            # The phases of another training have the same names.
            self._forget()
        self._announced += 1
        self._expected = list(phases)

    def start(self, phase: str, total: int) -> None:
        """Note that a phase begins."""
        self._totals[phase], self._done[phase] = total, 0
        self._begun[phase] = self._moved = self._clock()

    def advance(self, phase: str) -> None:
        """Note one step."""
        self._done[phase] += 1
        self._moved = self._clock()
        self._speeds.pop(phase, None)
        self._speeds[phase] = (self._moved - self._begun[phase]) / self._done[phase]

    def seconds_left(self) -> float | None:
        """Return the estimate as of now; None before anything is known."""
        # A phase around others, such as all hops, counts where nothing else is announced.
        phases = self._expected or list(self._totals)
        known = [phase for phase in phases if phase in self._totals]
        speeds = [speed for phase, speed in self._speeds.items() if phase in phases]
        if not known or not speeds:
            return None
        left = 0.0
        for phase in known:
            speed = self._speeds.get(phase, speeds[-1])
            left += max(0, self._totals[phase] - self._done[phase]) * speed
        usual = sum(self._totals[phase] for phase in known) / len(known)
        ahead = len(phases) - 1 - phases.index(known[-1])
        left += ahead * usual * speeds[-1]
        now = self._clock()
        left = max(0.0, left - (now - self._moved))
        later = max(0, self._trainings - max(1, self._announced))
        if later:
            left += later * (now - min(self._begun.values()) + left)
        return left

    def __str__(self) -> str:
        """Return the estimate at the time of the call, as text."""
        left = self.seconds_left()
        return "" if left is None else f"about {duration(left)} left"


class ProgressBars:
    """One bar per phase on a terminal, with loss and validation accuracy where they are known.

    Beside the phase that runs stands one estimate for all that is left of the run.

    Args:
        console: to draw on.
        accuracy_note: behind each accuracy.
        lines: also print a line for each phase that is done, on any console.
        trainings: how many the estimate is for.
        says_total: print once, on any console, how long a run will take that takes long.
    """

    def __init__(
        self,
        console: Console,
        *,
        accuracy_note: str = "",
        lines: bool = False,
        trainings: int = 1,
        says_total: bool = False,
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console
        self._lines = lines
        self._says_total = says_total
        self._begun: float | None = None
        self._steps: dict[str, tuple[int, int, float]] = {}
        self._outlook = Outlook(trainings=trainings)
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not _can_draw(console),
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
        for task in self._tasks.values():
            self._bars.update(task, left="")
        self._outlook.start(phase, total)
        self._begun = self._begun or time.monotonic()
        self._steps[phase] = (0, total, time.monotonic())
        # Evaluated each time the display is drawn.
        left: Any = self._outlook
        self._tasks[phase] = self._bars.add_task(phase, total=total, note="", left=left)

    def expect(self, phases: Sequence[str]) -> None:
        """Note which phases there will be, for the estimate."""
        self._outlook.expect(phases)

    def quote(self, price: str) -> None:
        """Print what is about to be charged."""
        self._console.print(f"Price: {price}", markup=False, soft_wrap=True)

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
        self._outlook.advance(phase)
        if self._says_total:
            self._say_total()
        done, total, begun = self._steps[phase]
        self._steps[phase] = (done + 1, total, begun)
        if self._lines and done + 1 == total:
            taken = time.monotonic() - begun
            self._console.print(f"{phase}: {total} steps in {taken:.1f} s", markup=False)
        self._bars.update(self._tasks[phase], advance=1, **fields)  # type: ignore[arg-type]

    def _say_total(self) -> None:
        """Print how long the run takes, as soon as its pace is known; a short one says nothing."""
        assert self._begun is not None
        taken, left = time.monotonic() - self._begun, self._outlook.seconds_left()
        if taken < SETTLED_SECONDS or left is None:
            return
        self._says_total = False
        if taken + left > LONG_SECONDS:
            self._console.print(
                f"This takes about {duration(taken + left)}: {duration(left)} more.", markup=False
            )


def _can_draw(console: Console) -> bool:
    """Return whether bars can be drawn: on a terminal, or in a notebook with widgets."""
    has_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal or has_widgets


class Recorder:
    """Records ``history[phase]["loss"]`` and ``["accuracy"]`` of every epoch.

    >>> recorder = Recorder()
    >>> recorder.start("classifier", 1)
    >>> recorder.advance("classifier", loss=0.5, accuracy=0.75)
    >>> recorder.history
    {'classifier': {'loss': [0.5], 'accuracy': [0.75]}}
    """

    def __init__(self, *others: Callback) -> None:
        self.history: History = {}
        self._others = Several(*others)

    def expect(self, phases: Sequence[str]) -> None:
        """Pass it on."""
        self._others.expect(phases)

    def quote(self, price: str) -> None:
        """Pass it on."""
        self._others.quote(price)

    def start(self, phase: str, total: int) -> None:
        """Begin a phase, and forget an earlier one of that name."""
        self.history[phase] = {"loss": [], "accuracy": []}
        self._others.start(phase, total)

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Keep what is reported of a step."""
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            if value is not None:
                self.history[phase][name].append(value)
        self._others.advance(phase, loss=loss, accuracy=accuracy)


class Unwatched(Silent):
    """A callback without a receiver, for which no figures are computed."""

    def __init__(self) -> None:
        self.history: History = {}


@contextmanager
def watched(
    callback: Callback | None, progress: bool | None, *, on: str
) -> Iterator[Recorder | Unwatched]:
    """Yield a run's callback, which records the history and notifies bars and a given callback.

    On an accelerator nothing is kept of a run that nobody watches: there a loss takes longer than
    the fused step that does without it. ``Silent()`` as the callback says that nobody does.

    Args:
        callback: of the user.
        progress: whether to show bars; None: in a notebook, and on a terminal where no accelerator
            waits for the figures beside them, unless there is a callback.
        on: the device type, ``cpu`` or ``cuda``.

    >>> with watched(None, None, on="cuda") as watcher:
    ...     type(watcher).__name__
    'Unwatched'
    """
    if progress is None:
        is_seen = _is_notebook() or (on == "cpu" and sys.stderr.isatty())
        progress = callback is None and is_seen
    others = [callback] if callback is not None else []
    if not progress and (isinstance(callback, Silent) or (on != "cpu" and callback is None)):
        yield Unwatched()
    elif progress:
        from rich.console import Console

        console = Console(stderr=True)
        with ProgressBars(console, lines=not _can_draw(console)) as bars:
            yield Recorder(bars, *others)
    else:
        yield Recorder(*others)


def _is_notebook() -> bool:
    """Return whether this is a notebook, in which IPython is loaded."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


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
    """Notifies several callbacks.

    >>> from gapgnn.training.callbacks import Silent
    >>> Several(Silent(), Silent()).start("encoder", 1)
    """

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks

    def expect(self, phases: Sequence[str]) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            announce(callback, phases)

    def quote(self, price: str) -> None:
        """Pass it on."""
        for callback in self._callbacks:
            quote(callback, price)

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
