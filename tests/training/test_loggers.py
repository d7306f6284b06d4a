"""A logger writes what a callback receives, and at node level that is no private figure."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from methodgraphs import small_graph
from rich.console import Console

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, NodeLabelGAP, ProGAP
from gapgnn.errors import UnavailableError
from gapgnn.training import callbacks
from gapgnn.training.callbacks import (
    JsonlLogger,
    Outlook,
    ProgressBars,
    Recorder,
    Several,
    Silent,
    TensorBoardLogger,
    watched,
)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_phase_and_step_of_a_fit_is_a_line(tmp_path: Path) -> None:
    with JsonlLogger(tmp_path / "logs" / "run.jsonl") as logger:
        LabelGAP(epochs=3).fit(small_graph(num_nodes=120), callback=logger)
    found = lines(logger.path)
    starts = {entry["phase"]: entry["total"] for entry in found if entry["event"] == "start"}
    assert {"encoder", "aggregation", "classifier"} <= set(starts)
    for phase, total in starts.items():
        steps = [e["step"] for e in found if e["event"] == "step" and e["phase"] == phase]
        assert steps == list(range(1, total + 1))
    assert all("loss" in e for e in found if e["event"] == "step" and e["phase"] == "encoder")
    assert [e["seconds"] for e in found] == sorted(e["seconds"] for e in found)


def test_at_node_level_no_figure_of_private_labels_is_logged(tmp_path: Path) -> None:
    model = NodeLabelGAP(epsilon=8.0, epochs=1, batch_size=40)
    with JsonlLogger(tmp_path / "run.jsonl") as logger:
        model.fit(small_graph(num_nodes=120), callback=logger)
    found = lines(logger.path)
    assert any(entry["event"] == "step" for entry in found)
    assert not any({"loss", "accuracy"} & set(entry) for entry in found)


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardLogger(tmp_path) as board, JsonlLogger(tmp_path / "run.jsonl") as file:
        both = Several(board, file)
        both.start("encoder", 2)
        both.advance("encoder", loss=0.5, accuracy=0.25)
        both.advance("encoder")
    curves = EventAccumulator(str(tmp_path))
    curves.Reload()
    assert [point.value for point in curves.Scalars("encoder/loss")] == [0.5]
    assert [point.value for point in curves.Scalars("encoder/validation accuracy")] == [0.25]
    assert len(lines(file.path)) == 3


def test_without_tensorboard_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *args, **options):
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnavailableError, match=r"Install gapgnn\[tensorboard\]"):
        TensorBoardLogger(tmp_path)


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="must be writable"):
        JsonlLogger(tmp_path / "file" / "run.jsonl")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(outlook: Outlook, clock: Clock, phase: str, steps: int, seconds: float) -> None:
    for _ in range(steps):
        clock.now += seconds
        outlook.advance(phase)


def test_the_estimate_is_one_for_the_whole_run_and_learns_from_earlier_phases() -> None:
    clock = Clock()
    outlook = Outlook(clock)
    assert outlook.seconds_left() is None
    assert str(outlook) == ""
    outlook.expect(["encoder", "stage1", "classifier"])
    outlook.start("encoder", 100)
    assert outlook.seconds_left() is None  # nothing is measured yet
    step(outlook, clock, "encoder", 50, 1.0)
    assert outlook.seconds_left() == 50 + 200
    step(outlook, clock, "encoder", 50, 1.0)
    # A phase around the others has no time of its own.
    outlook.start("aggregation", 3)
    outlook.start("stage1", 100)
    assert outlook.seconds_left() == 200  # at the speed of the phase before
    step(outlook, clock, "stage1", 10, 3.0)
    assert outlook.seconds_left() == 90 * 3 + 100 * 3
    assert str(outlook) == "about 9 min 30 s left"
    clock.now += 60
    assert outlook.seconds_left() == 510  # runs down between two steps
    step(outlook, clock, "stage1", 90, 1.0)
    outlook.start("classifier", 100)
    step(outlook, clock, "classifier", 100, 1.0)
    assert outlook.seconds_left() == 0


def test_a_phase_that_a_resumed_run_had_finished_takes_no_time() -> None:
    clock = Clock()
    outlook = Outlook(clock)
    outlook.expect(["encoder", "stage1", "classifier"])
    outlook.start("classifier", 10)
    step(outlook, clock, "classifier", 5, 2.0)
    assert outlook.seconds_left() == 10


def test_trainings_that_follow_are_taken_to_last_as_long_as_the_first() -> None:
    clock = Clock()
    outlook = Outlook(clock, trainings=3)
    outlook.expect(["encoder", "classifier"])
    outlook.start("encoder", 10)
    step(outlook, clock, "encoder", 5, 2.0)
    # Five steps and a phase of ten are left of a training of 40 seconds, and two more follow.
    assert outlook.seconds_left() == 30 + 2 * 40
    step(outlook, clock, "encoder", 5, 2.0)
    outlook.start("classifier", 10)
    step(outlook, clock, "classifier", 10, 1.0)
    assert outlook.seconds_left() == 2 * 30
    outlook.expect(["classifier"])
    assert outlook.seconds_left() is None
    outlook.start("classifier", 4)
    step(outlook, clock, "classifier", 1, 1.0)
    assert outlook.seconds_left() == 3 + 4


def test_without_announced_phases_those_that_began_are_known() -> None:
    clock = Clock()
    outlook = Outlook(clock)
    outlook.start("runs", 4)
    step(outlook, clock, "runs", 1, 8.0)
    assert outlook.seconds_left() == 24


@pytest.mark.parametrize("method", [GAP, ProGAP, LabelGAP, NodeLabelGAP, MLP, GraphSAGE])
def test_a_method_announces_its_trainings_to_watchers_that_want_to_know(method) -> None:
    class Watcher(Silent):
        phases: ClassVar[list[str]] = []
        begun: ClassVar[list[str]] = []

        def expect(self, phases):
            self.phases += phases

        def start(self, phase, total):
            self.begun.append(phase)

    method(epochs=1).fit(small_graph(num_nodes=120), callback=Several(Watcher()))
    assert Watcher.phases
    assert [phase for phase in Watcher.begun if phase != "aggregation"] == Watcher.phases


def test_bars_show_the_estimate_and_lines_tell_what_is_done() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, highlight=False)
    with ProgressBars(console, lines=True) as bars:
        bars.expect(["encoder", "classifier"])
        bars.start("encoder", 2)
        bars.advance("encoder", loss=0.5)
        bars._bars.refresh()
        bars.advance("encoder", loss=0.4)
    assert "encoder: 2 steps in " in text.getvalue()
    assert " left" in text.getvalue()


class TestALongRunSaysHowLongItTakes:
    @pytest.mark.parametrize(("seconds", "said"), [(1.0, True), (0.09, False)])
    def test_once_and_only_if_it_is_long(self, monkeypatch, seconds, said):
        clock = Clock()
        monkeypatch.setattr(callbacks.time, "monotonic", clock)
        out = io.StringIO()
        bars = ProgressBars(Console(file=out, width=80), says_total=True)
        bars._outlook = Outlook(clock)
        bars.expect(["encoder", "classifier"])
        bars.start("encoder", 50)
        for _ in range(50):
            clock.now += seconds
            bars.advance("encoder")
        bars._bars.stop()
        text = out.getvalue()
        # After two steps of a second: two phases of fifty.
        assert text == ("This takes about 1 min 40 s: 1 min 38 s more.\n" if said else "")

    def test_a_script_on_a_terminal_has_bars_and_one_in_a_pipe_has_none(self, monkeypatch):
        for is_terminal in (True, False):
            monkeypatch.setattr(sys.stderr, "isatty", lambda seen=is_terminal: seen, raising=False)
            with watched(None, None, on="cpu") as watcher:
                assert isinstance(watcher, Recorder)
                bars = [one for one in watcher._others._callbacks if isinstance(one, ProgressBars)]
            assert bool(bars) == is_terminal
        with watched(Silent(), None, on="cpu") as watcher:
            assert type(watcher).__name__ == "Unwatched"
