"""Killed at any moment, a grid loses at most the run in flight and runs no finished row again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from methodgraphs import write_tables

from gapgnn.evaluation.grid.records import FILE, Store, load

pytestmark = pytest.mark.gate

# Results are made up, so that most of the time is spent recording them, where a kill can hurt.
GRID = """
import json, os, sys, time
from gapgnn.evaluation.grid import runner
from gapgnn.evaluation.grid.plans import plan
from gapgnn.evaluation.grid.records import Record
from gapgnn.evaluation.grid.records import Store
from gapgnn.evaluation.grid.tasks import Source, Task

folder, started = sys.argv[1:]
source = Source("tiny", ("tiny",), len)

def perform(task, *, attack=None):
    with open(started, "a") as file:
        file.write(task.key + "\\n")
    time.sleep(0.002)
    row = task.configuration
    return Record(
        key=task.key, experiment=row.experiment, dataset="tiny", fingerprint="f",
        method=row.method, level=row.level, relation="none", epsilon=row.epsilon, delta=None,
        parameters=dict(row.parameters), metric="test_accuracy", runs=(0.5,) * 10, seconds=1.0,
        noise_multiplier=None, events=(), guarantee="g" * 5000, command="c", version="v",
        created="2026-11-15T10:00:00+00:00", machine="m",
    )

runner.perform = perform
rows = []
for number, configuration in enumerate(plan("tradeoff") + plan("hops") + plan("encoder")):
    task = Task(configuration=configuration, source=source, fingerprint="f", arcs=1, version="v")
    # Named here, so that no method and no torch has to be loaded.
    task.__dict__["key"] = f"{number:064d}"
    rows.append(runner.Row(task))
print(len(rows), flush=True)
runner.run_grid(rows, Store(folder))
"""


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_a_grid_killed_at_random_moments_loses_and_repeats_nothing(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    store, started = Store(tmp_path / "results"), tmp_path / "started"
    kills = 0
    while True:
        before = store.path.read_bytes() if store.path.exists() else b""
        finished = {record.key for record in store.records()}
        earlier = len(lines_of(started))
        with subprocess.Popen(
            [sys.executable, "-c", GRID, str(store.folder), str(started)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            planned = int(process.stdout.readline())
            # The first kills come early and often, the last one never.
            if kills < 5:
                time.sleep(rng.random() * 0.2)
                process.send_signal(signal.SIGKILL)
                kills += 1
            code = process.wait(timeout=600)
        assert code in (0, -signal.SIGKILL)
        # Nothing that was finished is lost or changed, and none of it was started again.
        whole = before[: before.rfind(b"\n") + 1]
        assert store.path.read_bytes().startswith(whole)
        assert not finished & set(lines_of(started)[earlier:])
        assert finished <= {record.key for record in store.records()}
        if code == 0:
            break
    keys = [record.key for record in store.records()]
    assert len(keys) == len(set(keys)) == planned
    assert len(lines_of(started)) <= planned + kills


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_killed_at_twenty_random_moments_finishes_its_grid(
    jobs: str, tmp_path: Path
) -> None:
    rng = random.Random(int(jobs))
    tables = write_tables(tmp_path / "tables", count=160)
    out = tmp_path / "results"
    words = [sys.executable, "-c", "from gapgnn.cli.main import run; run()", "experiment"]
    words += ["tradeoff", *tables, "--methods", "mlp", "gap", "sage", "--levels", "none", "edge"]
    words += ["--repeats", "2", "--jobs", jobs, "--json", "--out", str(out)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # A first, complete run elsewhere tells how long the moments can be.
    begin = time.monotonic()
    other = [*words[:-1], str(tmp_path / "other")]
    done = subprocess.run(other, env=environment, capture_output=True, text=True, check=True)
    whole = time.monotonic() - begin
    planned = json.loads(done.stdout)["planned"]
    known = b""
    for _ in range(20):
        process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.random() * whole)
        process.kill()
        process.wait(timeout=600)
        path = out / FILE
        now = path.read_bytes() if path.exists() else b""
        finished = known[: known.rfind(b"\n") + 1]
        assert now.startswith(finished)
        keys = [record.key for record in Store(out).records()]
        assert len(keys) == len(set(keys))
        known = now
    before = len(Store(out).records())
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert (summary["found"], summary["ran"]) == (before, planned - before)
    assert len(load(out)) == planned
