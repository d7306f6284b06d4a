"""The ledger under parallel processes and kills: nothing exceeded, nothing lost, nothing unpaid."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapgnn.privacy.ledger.ledger import Ledger

DATA = "5f" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


SPENDER = """
import sys
from gapgnn.errors import BudgetExceededError
from gapgnn.privacy.ledger.ledger import Ledger

path, data, tries = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(tries):
    try:
        made = Ledger(path).charge(data, level="edge", relation="undirected", epsilon=1.0,
                                   delta=1e-6, events=[], purpose="race")
        print(made.id)
    except BudgetExceededError:
        pass
"""


def test_eight_processes_on_one_budget_never_exceed_it_and_lose_none(ledger: Ledger) -> None:
    ledger.grant(DATA, level="edge", relation="undirected", epsilon=100, delta=1e-4)
    command = [sys.executable, "-c", SPENDER, str(ledger.path), DATA, "20"]
    spenders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    successes = [line for spender in spenders for line in spender.communicate()[0].split()]
    assert [spender.returncode for spender in spenders] == [0] * 8
    assert len(successes) == len(set(successes)) == 100
    assert {entry.id for entry in ledger.entries()} == set(successes)
    (row,) = ledger.summary()
    assert (row.spent_epsilon, row.left_epsilon, row.charges) == (100.0, 0.0, 100)


def test_processes_that_create_the_ledger_at_once_share_one(ledger: Ledger) -> None:
    command = [sys.executable, "-c", SPENDER, str(ledger.path), DATA, "1"]
    spenders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    ids = {spender.communicate()[0].strip() for spender in spenders}
    assert {entry.id for entry in ledger.entries()} == ids
    assert len(ids) == 6


# Writes a release for every charge, under the charge's id, until it is killed. The last argument
# plants the bug: the release leaves first and is named in the charge's purpose afterwards.
RELEASER = """
import itertools, os, secrets, sys
from gapgnn.privacy.ledger.ledger import Ledger

path, data, folder, order = sys.argv[1:]
ledger = Ledger(path)

def charge(purpose):
    return ledger.charge(data, level="edge", relation="undirected", epsilon=1.0, delta=0.0,
                         events=[], purpose=purpose)

def release(name):
    draft = os.path.join(folder, name + ".draft")
    with open(draft, "wb") as file:
        file.write(b"noisy hops")
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, os.path.join(folder, name + ".release"))

print("started", flush=True)
for turn in itertools.count():
    if order == "charge-first":
        release(charge("kill").id)
    else:
        name = secrets.token_hex(12)
        release(name)
        charge(name)
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
    command = [sys.executable, "-c", RELEASER, str(ledger.path), DATA, str(folder), order]
    for _ in range(times):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            started = time.monotonic()
            child.stdout.readline()
            turn = time.monotonic() - started
            time.sleep(moments.uniform(0.0, min(2 * turn, 0.2)))
            child.send_signal(signal.SIGKILL)
        yield uncharged_releases(ledger, folder)


def test_kill_at_fifty_random_moments_leaves_no_release_without_its_charge(
    ledger: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "releases"
    folder.mkdir()
    for uncharged in kill_at_random_moments(ledger, folder, order="charge-first", times=50):
        assert uncharged == set()
    released = len(list(folder.glob("*.release")))
    assert 50 <= released <= len(ledger.entries())
    assert ledger.summary()[0].spent_epsilon == len(ledger.entries())


def test_the_kill_test_catches_a_release_that_leaves_before_its_charge(
    ledger: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "releases"
    folder.mkdir()
    kills = kill_at_random_moments(ledger, folder, order="release-first", times=50)
    assert any(uncharged for uncharged in kills)


def test_a_kill_while_the_ledger_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    moments = random.Random(1)
    for attempt in range(8):
        ledger = Ledger(tmp_path / f"{attempt}" / "ledger.sqlite")
        command = [
            sys.executable,
            "-c",
            RELEASER,
            str(ledger.path),
            DATA,
            str(tmp_path),
            "charge-first",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.004))
            child.send_signal(signal.SIGKILL)
        before = len(ledger.entries())
        spend = {"epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "after the kill"}
        ledger.charge(DATA, level="edge", relation="undirected", **spend)  # type: ignore[arg-type]
        assert len(ledger.entries()) == before + 1
