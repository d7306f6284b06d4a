"""The same work on a Ray cluster: parts of a store, or the tasks of an experiment grid.

Ray schedules, retries and moves data; this module only says what there is to do. What workers
compute does not depend on who computes it, when or how often: a part's noise comes from the run's
secret key, the hop and the block of rows, so a part that is repeated after a worker's death gives
the same bytes.

The secret key travels to a worker as an argument of its task, over Ray's own connection. It is in
no object of the shared store, in no closure that Ray keeps, in no file and in no log. Rows that
nodes send are in the shared store, which is memory; machines of a cluster that may write it to disk
when memory is short are the curator's own. Everything in a cluster belongs to the curator.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from gapgnn.errors import DataError, GapgnnError, UnavailableError, check_integer

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 5
CONNECT_SECONDS = 5.0
# The client's own port, where an address names none.
PORTS = {"ray": 10001, "": 6379}


def ray_module() -> Any:
    """Return Ray, or say how to get it."""
    try:
        # Nothing about a private computation is reported to anybody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        raise UnavailableError(
            "`ray` must be installed to use a cluster. Got none; install `gapgnn[ray]`."
        ) from None
    return ray


@dataclass
class RayCluster:
    """A connection to a Ray cluster, which works on the parts of a store.

    Use it as a context: Ray is left, and a local one stopped, at the end. A program that has called
    ``ray.init`` itself keeps its own connection.

    Args:
        address: ``local`` starts Ray on this machine, ``auto`` joins the one that runs here or that
            ``RAY_ADDRESS`` names, and anything else is the address of a cluster.
        progress: called with how many parts of a hop are done and their number.

    Example::

        with RayCluster("auto") as cluster:
            GAP(level="edge").fit(open_store("store").with_executor(cluster))
    """

    address: str = "auto"
    progress: Callable[[int, int], None] | None = None
    _is_ours: bool = False

    def __enter__(self) -> RayCluster:
        ray = ray_module()
        if not ray.is_initialized():
            _connect(ray, self.address)
            self._is_ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            ray_module().shutdown()
            self._is_ours = False

    def run(
        self,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        shared: tuple[Any, ...],
        files: Sequence[Path],
    ) -> Iterator[tuple[int, Any]]:
        """Yield each task's place and result as they finish, as a store's ``PartExecutor`` does.

        A task goes to a machine that has its file. One whose worker or machine dies is repeated,
        elsewhere if need be.
        """
        ray = ray_module()
        homes = _homes(ray, files)
        held = tuple(ray.put(value) for value in shared)
        remote = ray.remote(function)

        def submit(place: int) -> Any:
            where = next(homes[place])
            options = {"num_cpus": 1, "max_retries": RETRIES, "scheduling_strategy": where}
            return remote.options(**options).remote(*tasks[place], *held)

        def complaint(place: int, failure: str) -> str:
            return (
                f"the cluster must keep a worker alive for {str(files[place])!r}. Got {failure} "
                f"after {(RETRIES + 1) ** 2} attempts."
            )

        most = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        results = _work(submit, len(tasks), most, complaint, attempts=RETRIES + 1)
        for done, (place, result) in enumerate(results, start=1):
            if self.progress is not None:
                self.progress(done, len(tasks))
            yield place, result


def _work(
    submit: Callable[[int], Any],
    count: int,
    most: int,
    complaint: Callable[[int, str], str],
    *,
    attempts: int = 1,
) -> Generator[tuple[int, Any], None, None]:
    """Yield the place and the result of each of so many tasks, at the most some at a time.

    One whose worker or machine Ray has given up is submitted again, so many attempts in all.
    """
    ray = ray_module()
    waiting = list(reversed(range(count)))
    running: dict[Any, int] = {}
    lost = [0] * count
    try:
        while waiting or running:
            while waiting and len(running) < most:
                place = waiting.pop()
                running[submit(place)] = place
            (ready,), _ = ray.wait(list(running), num_returns=1)
            place = running.pop(ready)
            try:
                result = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except ray.exceptions.RayError as error:
                lost[place] += 1
                if lost[place] == attempts:
                    raise UnavailableError(complaint(place, type(error).__name__)) from None
                waiting.append(place)
                continue
            yield place, result
    finally:
        # A connection that has been left needs no cancelling, and must not be made anew.
        for reference in running if ray.is_initialized() else ():
            ray.cancel(reference, force=True)


def _homes(ray: Any, files: Sequence[Path]) -> list[Iterator[Any]]:
    """Ask every machine which files it has, so that parts are read where they lie.

    Return where to run what reads each file: anywhere, or on the machines that have it, in turn.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Affinity

    nodes = [Affinity(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
    present = ray.remote(_present)
    asked = [present.options(num_cpus=0, scheduling_strategy=node) for node in nodes]
    answers = ray.get([question.remote(files) for question in asked])
    homes: list[Iterator[Any]] = []
    for file, answer in zip(files, zip(*answers, strict=True), strict=True):
        having = [node for node, is_there in zip(nodes, answer, strict=True) if is_there]
        if not having:
            raise DataError(
                f"the store must lie where the cluster's machines can read it. Got {str(file)!r}, "
                f"which none of {len(nodes)} has."
            )
        homes.append(cycle(["SPREAD"] if len(having) == len(nodes) else having))
    return homes


def _present(files: Sequence[Path]) -> list[bool]:
    return [file.is_file() for file in files]


def ray_executor(
    address: str, jobs: int | None = None
) -> Callable[[Callable[[T], R], Sequence[T]], Generator[tuple[T, R], None, None]]:
    """Return an executor for :func:`gapgnn.evaluation.grid.run_grid` that uses a Ray cluster.

    Args:
        address: ``auto``, ``local`` or an address, as of :class:`RayCluster`.
        jobs: how many tasks run at a time; left out: one per core. They share the cores and, where
            there are some, the GPUs, of which each task gets a fraction.
    """
    ray = ray_module()
    if jobs is not None:
        check_integer("jobs", jobs, at_least=1)

    def complaint(_place: int, failure: str) -> str:
        return (
            f"the cluster must keep its workers alive. Got {failure}. "
            "Finished results are kept: run the same command again with fewer `--jobs`."
        )

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> Generator[tuple[T, R], None, None]:
        settings = {key: value for key, value in os.environ.items() if key.startswith("GAPGNN_")}
        with RayCluster(address):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            most = min(jobs or max(1, int(_total(nodes, "CPU"))), max(1, len(tasks)))
            options = {"max_retries": RETRIES, **_shares(nodes, most)}
            remote = ray.remote(_with_settings).options(**options)

            def submit(place: int) -> Any:
                return remote.remote(settings, function, tasks[place])

            with closing(_work(submit, len(tasks), most, complaint)) as results:
                for place, result in results:
                    yield tasks[place], result

    return run


def _shares(nodes: Sequence[Mapping[str, float]], jobs: int) -> dict[str, float]:
    """Return what one of so many tasks gets: cores of one machine, and a GPU or part of one.

    >>> _shares([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}], 3)
    {'num_cpus': 4, 'num_gpus': 0.5}
    >>> _shares([{"CPU": 1.0}, {"CPU": 1.0}], 1)
    {'num_cpus': 1, 'num_gpus': 0.0}
    """
    gpus = int(_total(nodes, "GPU"))
    largest = max(int(node.get("CPU", 0)) for node in nodes)
    return {
        "num_cpus": max(1, min(int(_total(nodes, "CPU")) // jobs, largest)),
        "num_gpus": 1 / -(-jobs // gpus) if gpus else 0.0,
    }


def _total(nodes: Sequence[Mapping[str, float]], resource: str) -> float:
    return sum(node.get(resource, 0) for node in nodes)


def _with_settings(settings: dict[str, str], function: Callable[[T], R], task: T) -> R:
    """Run one task of a grid under the driver's settings: where data sets are, for example."""
    os.environ.update(settings)
    return function(task)


def _cause(error: Any) -> BaseException:
    """Return what a task raised, without the report of the machinery around it."""
    cause = error.cause
    if isinstance(cause, GapgnnError):
        return cause
    # The worker's own traceback helps whoever looks for the mistake.
    return cause.with_traceback(None) if isinstance(cause, BaseException) else RuntimeError(error)


def _connect(ray: Any, address: str) -> None:
    """Join or start a cluster quietly, or say in one line why not."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {
            "include_dashboard": False,
            # Rows that nodes send stay in memory.
            "_system_config": {"automatic_object_spilling_enabled": False},
            "object_store_memory": _shared_memory(),
        }
    elif address != "auto" or os.environ.get("RAY_ADDRESS"):
        # Ray itself would wait for minutes.
        _check_answers(os.environ["RAY_ADDRESS"] if address == "auto" else address)
    try:
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnavailableError(f"Ray at {address!r} does not answer: {reason}") from None


def _shared_memory() -> int | None:
    """Return how much to share: what Ray would take, but never more than is memory indeed.

    Where ``/dev/shm`` is small, Ray would put its shared objects into files on disk instead.
    """
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1 << 27, min(int(0.3 * pages), int(0.9 * shutil.disk_usage(shared).free)))


def _check_answers(address: str) -> None:
    """Raise unless something listens at an address such as ``ray://host:10001`` or ``host:6379``.

    >>> _check_answers("localhost:1")
    Traceback (most recent call last):
    ...
    gapgnn.errors.UnavailableError: Ray at 'localhost:1' does not answer: Connection refused.
    """
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.rpartition(":")
    try:
        number = int(port) if host else PORTS.get(scheme, 6379)
        socket.create_connection((host or port, number), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f"Ray at {address!r} does not answer: {reason}.") from None
