"""The pipeline audit watches every output channel: one planted leak in each of them is found.

A leak is planted around the real command: after it has run, something that leaves is changed by
the number of rows of the private tables. A control without a leak finds nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pipelinecases import findings, tables
from safetensors.numpy import load_file, save_file

from gapgnn import Ledger
from gapgnn.audits.pipeline import Case, audit_pipeline
from gapgnn.cli.main import main
from gapgnn.graph import CURATOR_ONLY
from gapgnn.privacy import Release, observe, parse_relation

LEVELS = ("edge", "node")
RELATION = {"edge": "undirected", "node": "add-remove"}
NEIGHBOURS = {"edge": ["hub"], "node": ["first"]}
OPTIONS = {
    "edge": "label-gap --epochs 1 --hops 1",
    "node": "gap --epochs 1 --batch-size 30 --max-degree 3",
}
Leak = Callable[[int], int | None]


def given(level: str):
    return tables(schema=None) if level == "edge" else tables()


def private_rows() -> int:
    """Count the rows of the private tables, of which the second input has fewer."""
    return sum(len(Path(name).read_text().splitlines()) for name in ("links.csv", "people.csv"))


MOST = {level: len(given(level).edges) + len(given(level).nodes) + 2 for level in LEVELS}


def is_first(rows: int) -> bool:
    return rows in MOST.values()


def leaking(leak: Leak):
    """Return the command with a leak behind it."""

    def run(words):
        status = main(words)
        changed = leak(private_rows())
        return status if changed is None else changed

    return run


def found_in_training(level: str, leak: Leak, **options) -> list[str]:
    words = f"train {OPTIONS[level]} --level {level} --relation {RELATION[level]}"
    words += " --device cpu --no-compare"
    case = Case(
        tuple(words.split()),
        given(level),
        parse_relation(RELATION[level]),
        max_degree=3 if level == "node" else None,
        **options,
    )
    return findings(audit_pipeline(case, leaking(leak), pair_types=NEIGHBOURS[level]))


def only(pattern: str, folder: str = "model") -> Path:
    (path,) = Path(folder).rglob(pattern)
    return path


def change_json(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def to_stderr(rows):
    print(f"{rows} rows read", file=sys.stderr)


def to_the_curator(rows):
    print(f"{CURATOR_ONLY} {rows} rows read", file=sys.stderr)


def exit_status(rows):
    return 0 if is_first(rows) else 1


def to_printed_json(rows):
    printed = json.loads(sys.stdout.getvalue())
    sys.stdout.seek(0)
    sys.stdout.truncate()
    print(json.dumps({**printed, "rows": rows}))


def printed_for_one_input(rows):
    if is_first(rows):
        to_printed_json(0)


def nested_in_printed_json(rows):
    printed = json.loads(sys.stdout.getvalue())
    printed["nested"] = {"rows": rows}
    sys.stdout.seek(0)
    sys.stdout.truncate()
    print(json.dumps(printed))


def after_the_json(rows):
    print(rows)


def file_for_the_first(rows):
    if is_first(rows):
        Path("model/debug.txt").touch()


def file_for_the_second(rows):
    if not is_first(rows):
        Path("model/debug.txt").touch()


def unfinished_file(rows):
    Path("model.unfinished").mkdir()
    Path("model.unfinished/rows.bin").write_bytes(bytes([rows % 256]))


def content_of_a_further_file(rows):
    Path("model/hops/rows.txt").write_text(str(rows))


def saved_hop_rows(rows):
    path = only("hops/*.safetensors")
    hops = load_file(path)
    name = sorted(hops)[-1]
    # The last row belongs to somebody else than the person in question.
    hops[name][-1] += rows
    save_file(hops, path)


def a_saved_hop_of_one_run(rows):
    if is_first(rows):
        path = only("hops/*.safetensors")
        hops = load_file(path)
        save_file({**hops, "further": next(iter(hops.values()))}, path)


def ids_of_saved_rows(rows):
    path = only("hops/*.ids.json")
    ids = json.loads(path.read_text())
    path.write_text(json.dumps([*ids[:-1], f"somebody {rows}"]))


def weights(rows):
    path = only("weights.safetensors")
    values = load_file(path)
    name = max(name for name, value in values.items() if value.size)
    values[name] = values[name] + np.float32(rows)
    save_file(values, path)


def configuration(rows):
    change_json(only("config.json"), rows=rows)


def a_parameter(rows):
    path = only("config.json")
    params = json.loads(path.read_text())["params"]
    change_json(path, params={**params, "epochs": rows})


def card_for_programs(rows):
    change_json(only("card.json"), method=f"GAP on {rows} rows")


def who_is_covered(rows):
    change_json(only("card.json"), covered=[f"{rows} rows."])


def public_facts(rows):
    public = json.loads(only("card.json").read_text())["public"]
    change_json(only("card.json"), public=[*public, ["rows", str(rows)]])


def card_for_people(rows):
    with only("card.md").open("a") as file:
        file.write(f"{rows} rows\n")


def released_by_the_first(rows):
    if is_first(rows):
        observe(lambda: Release("a count", np.zeros((1, 1)), 1.0, 1.0), torch.zeros(1, 1))


def released_by_the_second(rows):
    if not is_first(rows):
        observe(lambda: Release("a count", np.zeros((1, 1)), 1.0, 1.0), torch.zeros(1, 1))


def name_of_a_release(rows):
    observe(lambda: Release(f"of {rows}", np.zeros((1, 1)), 1.0, 1.0), torch.zeros(1, 1))


def scale_of_a_release(rows):
    observe(lambda: Release("a count", np.zeros((1, 1)), 1.0 * rows, 1.0), torch.zeros(1, 1))


def sensitivity_of_a_release(rows):
    observe(lambda: Release("a count", np.zeros((1, 1)), 1.0, 1.0 * rows), torch.zeros(1, 1))


def shape_of_a_release(rows):
    observe(lambda: Release("a count", np.zeros((rows, 1)), 1.0, 1.0), torch.zeros(rows, 1))


def value_of_a_release(rows):
    size = 9.0 * rows
    observe(lambda: Release("a count", np.full((1, 1), size), 1.0, 1.0), torch.zeros(1, 1))


def a_release_nobody_paid_for(rows):
    observe(lambda: Release("a count", np.zeros((1, 1)), 1.0, 1.0), torch.zeros(1, 1))


CHANNELS = [
    (to_stderr, "messages: "),
    (exit_status, "exit status: 0 and 1"),
    (to_printed_json, "output: rows is "),
    (printed_for_one_input, "output: rows is there on one of the two inputs only"),
    (nested_in_printed_json, "output: nested.rows is "),
    (after_the_json, "output: text is "),
    (file_for_the_first, "model/debug.txt: written for one of the two inputs only"),
    (file_for_the_second, "model/debug.txt: written for one of the two inputs only"),
    (unfinished_file, "model.unfinished/rows.bin: "),
    (content_of_a_further_file, "model/hops/rows.txt: "),
    (saved_hop_rows, ".safetensors: "),
    (a_saved_hop_of_one_run, ".safetensors: "),
    (ids_of_saved_rows, ".ids.json: "),
    (weights, "model/weights.safetensors: "),
    (configuration, "model/config.json: rows is "),
    (a_parameter, "model/config.json: params.epochs is "),
    (card_for_programs, "model/card.json: method is "),
    (who_is_covered, "model/card.json: covered is "),
    (public_facts, "model/card.json: public is "),
    (card_for_people, "model/card.md: "),
    (released_by_the_first, "a count: released on one of the two inputs only"),
    (released_by_the_second, "a count: released on one of the two inputs only"),
    (name_of_a_release, "its name is "),
    (scale_of_a_release, "a count: its scale is "),
    (sensitivity_of_a_release, "a count: its sensitivity is "),
    (shape_of_a_release, "a count: its shape is "),
    (value_of_a_release, "a count: moved by "),
    (a_release_nobody_paid_for, "a count: its noise multiplier 1 is of no charged event"),
]


UNPAID = re.compile("is of no charged event|all releases: cost epsilon")


@pytest.mark.parametrize("level", ["edge", pytest.param("node", marks=pytest.mark.gate)])
class TestTraining:
    def test_without_a_leak_nothing_is_found(self, level):
        assert found_in_training(level, lambda rows: None) == []

    def test_what_is_marked_as_the_curators_is_no_finding(self, level):
        assert found_in_training(level, to_the_curator) == []

    def test_forced_colours_are_no_finding(self, level, monkeypatch):
        """Seen to find the pace of the bars that are then drawn without a terminal."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        assert found_in_training(level, lambda rows: None) == []

    @pytest.mark.parametrize(
        ("leak", "channel"), CHANNELS, ids=[leak.__name__ for leak, _ in CHANNELS]
    )
    def test_a_leak_in_one_output_channel_is_found_there(self, level, leak, channel):
        found = found_in_training(level, leak)
        assert any(channel in text for text in found), found
        # And nowhere else, so that the finding is of this channel. A release that the leak made up
        # is not charged either, which is a second finding.
        found = [text for text in found if channel in text or not UNPAID.search(text)]
        # Another card for programs is not the one that is rendered for people.
        if leak not in (card_for_programs, who_is_covered, public_facts):
            assert len(found) == 1, found


@pytest.fixture(scope="module", params=LEVELS)
def trained(request, tmp_path_factory):
    """Return a model that was trained on other people, with its level and its ledger."""
    level, folder = request.param, tmp_path_factory.mktemp(request.param)
    words = given(level).write(folder)
    ledger = Ledger.init(folder / "ledger.sqlite").path
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("GAPGNN_LEDGER", str(ledger))
        out = ["--level", level, "--device", "cpu", "--no-compare", "--out", "model"]
        # No list is cut: another graph is cut with another key.
        options = OPTIONS[level].replace("--max-degree 3", "--max-degree 100")
        assert main(["train", *options.split(), *words, *out]) == 0
    return level, folder / "model", ledger


def others(level: str):
    """Return tables of people who are not in the training tables."""
    other = given(level)
    rename = {name: f"other-{name}" for name in other.ids}
    return replace(
        other,
        nodes=tuple((rename[row[0]], *row[1:]) for row in other.nodes),
        edges=tuple((rename[a], rename[b]) for a, b in other.edges),
    )


def found_in_prediction(trained, leak: Leak) -> list[str]:
    level, model, ledger = trained
    case = Case(
        ("predict", "--device", "cpu"),
        others(level),
        parse_relation(RELATION[level]),
        max_degree=100 if level == "node" else None,
        model=model,
        ledger=ledger,
    )
    return findings(audit_pipeline(case, leaking(leak), pair_types=NEIGHBOURS[level]))


def last_prediction(rows):
    path = Path("predictions.csv")
    path.write_text(f"{path.read_text().rstrip()}{rows}\n")


def first_line_of_predictions(rows):
    path = Path("predictions.csv")
    path.write_text(f"{rows}{path.read_text()}")


def a_file_beside_the_model(rows):
    Path("saved/rows.txt").write_text(str(rows))


class TestPrediction:
    def test_without_a_leak_nothing_is_found(self, trained):
        assert found_in_prediction(trained, lambda rows: None) == []

    @pytest.mark.parametrize(
        ("leak", "channel"),
        [
            (last_prediction, "predictions.csv: "),
            (first_line_of_predictions, "predictions.csv: "),
            (a_file_beside_the_model, "saved/rows.txt: "),
            (to_stderr, "messages: "),
            (to_printed_json, "output: rows is "),
        ],
    )
    def test_a_leak_in_one_output_channel_is_found_there(self, trained, leak, channel):
        found = found_in_prediction(trained, leak)
        assert len(found) == 1
        assert channel in found[0]
