"""Who does the tasks of a grid: this process, or several on this machine.

An executor is a function of a function and a list of tasks. It yields ``(task, result)`` in any
order, each as soon as it is there, and when its generator is closed it stops what is still running.
The function and the tasks can be pickled. ``gapgnn.cluster.ray_executor`` is another one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from gapgnn.errors import UnavailableError, check_integer

T = TypeVar("T")
R = TypeVar("R")
Results: TypeAlias = Generator[tuple[T, R], None, None]


class Executor(Protocol):
    """Applies a function to tasks and yields each with its result, as they complete."""

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T], /) -> Results[T, R]:
        """Do all tasks."""


def local_executor(jobs: int = 1) -> Executor:
    """Return an executor for this machine: this process for one job, else so many processes.

    Each process gets an equal share of the cores, because threads that wait for each other are
    slower than none.

    >>> list(local_executor()(len, ["a", "bc"]))
    [('a', 1), ('bc', 2)]
    """
    check_integer("jobs", jobs, at_least=1)
    if jobs == 1:
        return _here

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> Results[T, R]:
        return _in_processes(function, tasks, jobs)

    return run


def _here(function: Callable[[T], R], tasks: Sequence[T]) -> Results[T, R]:
    for task in tasks:
        yield task, function(task)


def _in_processes(function: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Results[T, R]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    threads = max(1, (os.cpu_count() or 1) // jobs)
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork of a process that runs threads can hang in its copy of a lock.
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(threads,),
    )
    is_done = False
    try:
        futures = {pool.submit(function, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
        is_done = True
    except BrokenProcessPool:
        raise UnavailableError(
            "A worker process died, most likely for lack of memory. Finished results are kept: "
            "run the same command again with fewer `--jobs`."
        ) from None
    finally:
        pool.shutdown(wait=is_done, cancel_futures=True)
        if not is_done:
            _stop(set(multiprocessing.active_children()) - others)


def _stop(processes: set[Any]) -> None:
    """End worker processes: what they were doing is not recorded, so nothing is half-written."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


def _start_worker(threads: int) -> None:
    """Prepare a worker: its share of the cores, and an end that follows the parent's."""
    # Before torch is loaded, which reads them once. Waiting threads must not keep a core busy.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Ctrl-C and a closed terminal reach all of its processes; the parent alone decides and ends its
    # workers, by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent and leave with it: a killed parent could not stop its workers."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
