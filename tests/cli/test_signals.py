"""SIGTERM and SIGHUP end every command that takes long as Ctrl-C does: one line, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from methodgraphs import write_tables

from gapgnn import Ledger

# Loads the command, says that it runs, and waits where the command would work for long.
PAUSED = """
import importlib, sys, time
from gapgnn.cli import main
name = sys.argv[1]
module = importlib.import_module(main.COMMANDS[name][0])
def wait(args):
    print("running", flush=True)
    while True:
        time.sleep(0.01)
module.execute = wait
sys.argv[0] = "gapgnn"
main.run()
"""
# Options without which a command would not begin.
WORDS = {
    "train": ["gap"],
    "tune": ["gap", "--try", "hops=1,2"],
    "predict": ["--model", "m", "--out", "p.csv"],
    "embed": [],
    "noise": ["--epsilon", "1"],
    "simulate": [],
    "attack": ["membership", "gap"],
    "audit": ["aggregation"],
    "experiment": ["accuracy", "--out", "x"],
    "report": ["x"],
    "partition": ["--out", "s"],
    "schema": ["--nodes", "n.csv", "--out", "s.toml"],
    "describe": [],
    "example": ["bank", "--out", "b"],
    "datasets": [],
    "ledger": ["verify"],
    "compare": ["a", "b"],
    "release": ["m", "--out", "r"],
    "forget": ["--id", "1", "--model", "m"],
    "verify": ["r"],
}
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def started(folder: Path, program: list[str], words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "GAPGNN_LEDGER": str(folder / "ledger.sqlite")}
    return subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "command",
    [name if name == "simulate" else pytest.param(name, marks=pytest.mark.slow) for name in WORDS],
)
def test_every_command_ends_alike_at_every_signal(command, tmp_path):
    Ledger.init(tmp_path / "ledger.sqlite")
    runs = {
        name: started(tmp_path, ["-c", PAUSED], [command, *WORDS[command], *json_of(command)])
        for name in CODES
    }
    for name, run in runs.items():
        assert run.stdout is not None
        assert run.stdout.readline() == "running\n", run.communicate()
        run.send_signal(getattr(signal, name))
    for name, run in runs.items():
        out, err = run.communicate(timeout=300)
        assert run.returncode == CODES[name], err
        assert err.startswith("gapgnn: interrupted")
        assert err.count("\n") == 1
        if json_of(command):
            assert json.loads(out)["error"]["code"] == "interrupted"


def json_of(command: str) -> list[str]:
    return [] if command in ("report", "serve") else ["--json"]


def test_the_list_has_every_command_that_works_for_long():
    from gapgnn.cli.main import COMMANDS

    # A service has signals of its own; the others print and are done.
    assert set(COMMANDS) - set(WORDS) == {"serve", "completion", "help"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_workers_of_an_experiment_end_with_it(name, tmp_path):
    Ledger.init(tmp_path / "ledger.sqlite")
    tables = write_tables(tmp_path / "data")
    words = ["experiment", "accuracy", *tables, "--methods", "label-gap", "gap", "--out", "x"]
    words += ["--jobs", "2", "--repeats", "50", "--json"]
    run = started(tmp_path, ["-m", "gapgnn"], words)
    deadline = time.monotonic() + 600
    while len(workers(run.pid)) < 2:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    mine = workers(run.pid)
    run.send_signal(getattr(signal, name))
    _, err = run.communicate(timeout=300)
    assert run.returncode == CODES[name], err
    deadline = time.monotonic() + 120
    while any(Path("/proc", pid).exists() and not is_zombie(pid) for pid in mine):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)


def workers(parent: int) -> list[str]:
    """Return the processes that a process has started and that run this package."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"spawn_main" in words:
            found.append(place.name)
    return found


def is_zombie(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
