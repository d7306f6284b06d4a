"""A logger writes what a callback is told, and at node level that is no private figure."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest
from methodgraphs import small_graph

from gapgnn import GAP
from gapgnn.errors import UnavailableError
from gapgnn.training.callbacks import JsonlLogger, Several, TensorBoardLogger


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_phase_and_step_of_a_fit_is_a_line(tmp_path: Path) -> None:
    with JsonlLogger(tmp_path / "logs" / "run.jsonl") as logger:
        GAP(epochs=3).fit(small_graph(num_nodes=120), callback=logger)
    found = lines(logger.path)
    starts = {entry["phase"]: entry["total"] for entry in found if entry["event"] == "start"}
    assert {"encoder", "aggregation", "classifier"} <= set(starts)
    for phase, total in starts.items():
        steps = [e["step"] for e in found if e["event"] == "step" and e["phase"] == phase]
        assert steps == list(range(1, total + 1))
    assert all("loss" in e for e in found if e["event"] == "step" and e["phase"] == "encoder")
    assert [e["seconds"] for e in found] == sorted(e["seconds"] for e in found)


def test_at_node_level_no_figure_of_private_labels_is_logged(tmp_path: Path) -> None:
    model = GAP(level="node", epsilon=8.0, epochs=1, batch_size=40)
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
