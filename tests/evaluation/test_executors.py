"""Several processes give the same results as one, share the cores, and never outlive the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gapgnn.errors import InputError, UnavailableError
from gapgnn.evaluation.grid.executors import local_executor

pytestmark = pytest.mark.gate


def threads_of(task: int) -> tuple[int, str, str]:
    return os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]


def die_on_two(task: int) -> int:
    if task == 2:
        os._exit(1)
    return task


def fail_on_two(task: int) -> int:
    if task == 2:
        raise RuntimeError("a bug")
    return task


def sleep_after_one(task: int) -> int:
    if task > 1:
        time.sleep(600)
    return os.getpid()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone, maybe between the two
        return False
    # A zombie has ended and only waits to be noticed.
    return state != "Z"


def wait_until_gone(processes: list[int]) -> list[int]:
    """Return those that are still there after a minute: one that waits for its task has ten."""
    for _ in range(1200):
        if not any(map(is_alive, processes)):
            return []
        time.sleep(0.05)
    return [process for process in processes if is_alive(process)]


def test_workers_share_the_cores_and_every_task_comes_back() -> None:
    found = dict(local_executor(2)(threads_of, [1, 2, 3]))
    assert set(found) == {1, 2, 3}
    share = str(max(1, (os.cpu_count() or 1) // 2))
    assert {threads for _, threads, _ in found.values()} == {share}
    assert os.getpid() not in {process for process, _, _ in found.values()}


def test_a_worker_that_dies_is_one_line() -> None:
    with pytest.raises(UnavailableError, match=r"A worker process died.* fewer `--jobs`"):
        list(local_executor(2)(die_on_two, [2, 1]))


def test_a_bug_in_a_task_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        list(local_executor(2)(fail_on_two, [2, 1]))


def test_closing_the_results_ends_the_workers() -> None:
    with closing(local_executor(2)(sleep_after_one, [1, 2, 3])) as results:
        _, worker = next(results)
        assert is_alive(worker)
    assert wait_until_gone([worker]) == []


def test_no_jobs_is_an_error() -> None:
    with pytest.raises(InputError, match=r"`jobs` must be at least 1\. Got 0"):
        local_executor(0)


SCRIPT = """
import os, signal, sys, time
# A shell that starts the tests in the background makes everything below it deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {folder!r})
from test_executors import sleep_after_one
from gapgnn.evaluation.grid.executors import local_executor
if __name__ == "__main__":
    for task, worker in local_executor(2)(sleep_after_one, [1, 2, 3]):
        print(worker, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_parent_that_is_killed_or_interrupted(
    number: int, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        group = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and _session(path) == parent.pid
        ]
        assert worker in group
        os.kill(parent.pid, number)
        parent.wait(timeout=120)
    assert wait_until_gone(group) == []


def _session(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rsplit(")")[-1].split()[3])
    except OSError:
        return -1
