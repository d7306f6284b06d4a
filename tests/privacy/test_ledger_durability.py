"""The ledger under parallel processes and kills: nothing exceeded, nothing lost, nothing unpaid."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gapgnn.privacy.ledger import Ledger, People
from postgres_server import on_a_file

# Every process reads a table of its own: one of the customers, and people nobody has seen before.
SPENDER = """
import os, sys
import numpy as np
from gapgnn.errors import BudgetExceededError
from gapgnn.privacy.ledger import Ledger, People

path, processes, tries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
number = 0
while number + 1 < processes and os.fork():
    number += 1
people = People(np.array([number % 3, 1000 + number]).astype(str), f"{number:064x}")
for _ in range(tries):
    try:
        made = Ledger(path).charge(people, level="edge", relation="undirected", epsilon=1.0,
                                   delta=1e-6, events=[], purpose="race")
        os.write(1, f"{made.id}\\n".encode())
    except BudgetExceededError:
        pass
"""


def run_spenders(path: Path | str, *, processes: int, tries: int) -> list[str]:
    """Run processes that all spend at once and return the charges they made."""
    command = [sys.executable, "-c", SPENDER, str(path), str(processes), str(tries)]
    # The output ends when the last of them does.
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("ledger", "processes", "tries", "granted"),
    [("file", 8, 20, 100), pytest.param("server", 16, 3, 30, marks=pytest.mark.gate)],
    indirect=["ledger"],
)
def test_processes_on_one_population_never_exceed_its_budget_and_lose_none(
    ledger: Ledger, processes: int, tries: int, granted: int
) -> None:
    customers = People(np.arange(3), "5f" * 32)
    stated = {"level": "edge", "relation": "undirected", "composition": "sum"}
    ledger.grant("customers", customers, **stated, epsilon=granted, delta=1e-4)  # type: ignore[arg-type]
    made = run_spenders(ledger.path, processes=processes, tries=tries)
    assert len(made) == len(set(made)) == granted
    assert {entry.id for entry in ledger.entries()} == set(made)
    (row,) = ledger.summary()
    assert (row.spent_epsilon, row.left_epsilon, row.charges) == (granted, 0.0, granted)
    assert row.people == 3 + len({entry.fingerprint for entry in ledger.entries()})
    assert ledger.problems() == []


def test_processes_that_make_the_users_own_ledger_at_once_share_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GAPGNN_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ledger = Ledger()
    made = run_spenders(ledger.path, processes=6, tries=1)
    assert {entry.id for entry in ledger.entries()} == set(made)
    assert len(made) == 6
    assert ledger.problems() == []


# Reads the tables of one month after the other, each sharing people with the ones before, and
# writes a release for every charge, under the charge's id, until it is killed. The last argument
# plants the bug: the release leaves first and is named in the charge's purpose afterwards. Every
# ledger it is sent makes another process.
RELEASER = """
import itertools, os, secrets, sys
import numpy as np
from gapgnn.privacy.ledger import Ledger, People

folder, order = sys.argv[1:]

def charge(purpose, month):
    people = People(np.arange(month, month + 30), f"{month:064x}")
    return ledger.charge(people, level="edge", relation="undirected", epsilon=1.0, delta=0.0,
                         events=[], purpose=purpose)

def release(name):
    draft = os.path.join(folder, name + ".draft")
    with open(draft, "wb") as file:
        file.write(b"noisy hops")
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, os.path.join(folder, name + ".release"))

for line in sys.stdin:
    ledger = Ledger(line.strip())
    child = os.fork()
    if child == 0:
        break
    os.waitpid(child, 0)
    print("gone", flush=True)
else:
    sys.exit()
print(os.getpid(), flush=True)
for turn in itertools.count():
    month = 7 * (len(os.listdir(folder)) % 12)
    if order == "charge-first":
        release(charge("kill", month).id)
    else:
        name = secrets.token_hex(12)
        release(name)
        charge(name, month)
    if turn == 0:
        print("released", flush=True)
"""


def uncharged_releases(ledger: Ledger, folder: Path) -> set[str]:
    charged = {name for entry in ledger.entries() for name in (entry.id, entry.purpose)}
    return {file.stem for file in folder.glob("*.release")} - charged


def kill_at_random_moments(
    ledger: Ledger, folder: Path, *, order: str, times: int
) -> Iterator[set[str]]:
    """Start a releaser, kill it a moment later, and yield the releases without a charge.

    The moments are spread over two turns of charge and release, however long the disk takes.
    """
    moments = random.Random(0)
    with releaser(folder, order) as parent:
        for _ in range(times):
            child = next_child(parent, ledger)
            started = time.monotonic()
            parent.stdout.readline()  # type: ignore[union-attr]
            turn = time.monotonic() - started
            time.sleep(moments.uniform(0.0, min(2 * turn, 0.2)))
            kill(parent, child)
            yield uncharged_releases(ledger, folder)


def releaser(folder: Path, order: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RELEASER, str(folder), order]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def next_child(parent: subprocess.Popen[str], ledger: Ledger) -> int:
    """Start another process and return its number when it begins to work."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(f"{ledger.path}\n")
    parent.stdin.flush()
    return int(parent.stdout.readline())


def kill(parent: subprocess.Popen[str], child: int) -> None:
    """Kill a process, and return when it is gone."""
    assert parent.stdout is not None
    os.kill(child, signal.SIGKILL)
    while parent.stdout.readline() != "gone\n":
        pass


@pytest.mark.gate
@pytest.mark.parametrize(
    ("ledger", "times"),
    [("file", 20), pytest.param("server", 8, marks=pytest.mark.gate)],
    indirect=["ledger"],
)
def test_a_kill_at_random_moments_leaves_no_release_without_its_charge(
    ledger: Ledger, times: int, tmp_path: Path
) -> None:
    """Two populations that overlap with each other and with every month's table."""
    folder = tmp_path / "releases"
    folder.mkdir()
    stated = {"level": "edge", "relation": "undirected", "composition": "sum"}
    for name, first in (("north", 0), ("south", 20)):
        people = People(np.arange(first, first + 30), name)
        ledger.grant(name, people, **stated, epsilon=1e5, delta=0.5)  # type: ignore[arg-type]
    for uncharged in kill_at_random_moments(ledger, folder, order="charge-first", times=times):
        assert uncharged == set()
    assert ledger.problems() == []
    released = len(list(folder.glob("*.release")))
    assert times <= released <= len({entry.id for entry in ledger.entries()})
    # A month that names somebody of both is charged to both, or to neither.
    both = {f"{month:064x}" for month in range(0, 29, 7)}
    for charge in ledger.entries():
        assert charge.fingerprint not in both or len(charge.others) == 1
    for row in ledger.summary():
        assert row.spent_epsilon == len(ledger.entries(row.population)) == row.charges


@on_a_file
def test_the_kill_test_catches_a_release_that_leaves_before_its_charge(
    ledger: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "releases"
    folder.mkdir()
    kills = kill_at_random_moments(ledger, folder, order="release-first", times=50)
    assert any(uncharged for uncharged in kills)


def test_a_kill_while_the_ledger_is_made_leaves_none_or_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moments = random.Random(1)
    spend = {"epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "after the kill"}
    people = People(np.arange(3), "5f" * 32)
    monkeypatch.delenv("GAPGNN_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ledger = Ledger()
    with releaser(tmp_path, "charge-first") as parent:
        for _ in range(12):
            child = next_child(parent, ledger)
            time.sleep(moments.uniform(0.0, 0.008))
            kill(parent, child)
            before = len(ledger.entries())
            ledger.charge(people, level="edge", relation="undirected", **spend)  # type: ignore[arg-type]
            assert len(ledger.entries()) == before + 1
            assert ledger.problems() == []
            shutil.rmtree(tmp_path / "data")
