"""Processes that serve: one listening socket, and workers that are replaced when they end.

The socket belongs to the supervisor, which reads no model. While a worker is missing, connections
wait in its queue and are answered by the next one. One more process than asked for has read
everything and waits: it takes the place of a worker that ends at once, however long another one
takes to start. On SIGHUP each is replaced by one that has read the model anew, and the old one
first finishes what it has begun. SIGTERM ends all of them the same way.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from gapgnn.errors import GapgnnError, UnavailableError, outcome_of

BACKLOG = 2048
START_SECONDS = 300.0
# Between two workers that are started because others ended.
PAUSE_SECONDS = 0.2
# Between two attempts to start one more than is needed.
RETRY_SECONDS = 30.0


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol: asyncio sends what is small at once (TCP_NODELAY) on such sockets alone. On
    # any other an answer in two parts waits 40 ms for the other side's acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise UnavailableError(
            f"`--host` and `--port` cannot be listened on. Got {host}:{port}: {error.strerror}."
        ) from None
    found.listen(BACKLOG)
    return found


class _Spare(NamedTuple):
    """A process that is ready, and the pipe by which it is let to begin."""

    process: int
    gate: int


class Supervisor:
    """Keeps a number of workers alive until it is stopped.

    Args:
        work: serves until SIGTERM; it is given a function to call when it is ready, which returns
            when it may begin, and runs in a process of its own.
        workers: how many.
    """

    def __init__(self, work: Callable[[Callable[[], None]], None], *, workers: int) -> None:
        self._work = work
        self._wanted = workers
        self._processes: list[int] = []
        self._spare: _Spare | None = None
        self._stops = self._reloads = False
        self._failed_at = -RETRY_SECONDS

    def run(self) -> int:
        """Start the workers and replace those that end; return an exit code.

        If the first worker cannot even start, everything ends. Later, when others may still answer,
        it is tried again.
        """
        acts = dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._stop)
        acts[signal.SIGHUP] = self._reload
        before = {number: signal.signal(number, act) for number, act in acts.items()}
        try:
            first = self._prepared()
            if isinstance(first, int):
                return first
            self._begin(first)
            while not self._stops:
                self._collect()
                if self._reloads:
                    self._reloads = False
                    self._replace_all()
                elif len(self._processes) < self._wanted and self._spare is not None:
                    spare, self._spare = self._spare, None
                    self._begin(spare)
                elif self._spare is None:
                    self._keep_spare()
                time.sleep(0.01)
            return 0
        finally:
            self._end_spare()
            self._end(list(self._processes))
            for number, act in before.items():
                signal.signal(number, act)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops = True

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self._reloads = True

    def _keep_spare(self) -> None:
        """Start a spare; where that fails and nobody is missing, try again some time later."""
        is_missing = len(self._processes) < self._wanted
        pause = PAUSE_SECONDS if is_missing else RETRY_SECONDS
        if time.monotonic() < self._failed_at + pause:
            return
        found = self._prepared()
        if isinstance(found, _Spare):
            self._spare = found
        else:
            self._failed_at = time.monotonic()

    def _prepared(self) -> _Spare | int:
        """Start a process and wait until it is ready; return it, or its exit code if it is not."""
        reader, writer = os.pipe()
        entry, gate = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            os.close(gate)
            status = 1
            try:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                self._work(lambda: _wait_for_turn(writer, entry))
                status = 0
            except GapgnnError as error:
                print(f"gapgnn: {error}", file=sys.stderr, flush=True)
                status = outcome_of(error)[0]
            except Exception as error:
                # Its text may hold what was sent.
                print(f"gapgnn: a worker failed: {type(error).__name__}", file=sys.stderr)
            finally:
                os._exit(status)
        os.close(writer)
        os.close(entry)
        try:
            # Nothing but the end of the pipe comes from a worker that could not start.
            readable, _, _ = select.select([reader], [], [], START_SECONDS)
            is_ready = bool(readable) and os.read(reader, 1) == b"."
        finally:
            os.close(reader)
        if not is_ready:
            os.close(gate)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) or 1
        return _Spare(process, gate)

    def _begin(self, spare: _Spare) -> None:
        """Let a process that is ready serve."""
        with suppress(BrokenPipeError):  # it has ended, which is found next
            os.write(spare.gate, b".")
        os.close(spare.gate)
        self._processes.append(spare.process)

    def _collect(self) -> None:
        """Forget the workers that ended, and a spare that did."""
        for process in list(self._processes):
            if os.waitpid(process, os.WNOHANG)[0]:
                self._processes.remove(process)
        if self._spare is not None and os.waitpid(self._spare.process, os.WNOHANG)[0]:
            os.close(self._spare.gate)
            self._spare = None

    def _replace_all(self) -> None:
        """Let a new worker take the place of each: it answers before the old one is ended."""
        for process in list(self._processes):
            found = self._prepared()
            if isinstance(found, int):
                return  # the old ones go on
            self._end_spare()
            self._begin(found)
            self._end([process])

    def _end_spare(self) -> None:
        """End the spare, if there is one: it has read an earlier model."""
        if self._spare is not None:
            os.kill(self._spare.process, signal.SIGTERM)
            os.waitpid(self._spare.process, 0)
            os.close(self._spare.gate)
            self._spare = None

    def _end(self, processes: list[int]) -> None:
        for process in processes:
            os.kill(process, signal.SIGTERM)
        for process in processes:
            os.waitpid(process, 0)
            self._processes.remove(process)


def _wait_for_turn(writer: int, entry: int) -> None:
    """Say that a process is ready, and return when it may begin."""
    os.write(writer, b".")
    os.close(writer)
    if not os.read(entry, 1):
        os._exit(0)  # whoever would have said so is gone
    os.close(entry)
