"""A real PostgreSQL server for tests: its own cluster in a temporary folder, on a local socket.

It listens on no network address. Tests skip where the server is not installed.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# For a test that looks at the file itself; the others run on a file and on a server.
on_a_file = pytest.mark.parametrize("ledger", ["file"], indirect=True)
# Debian keeps the programs of each version apart.
_FOLDERS = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
_NUMBERS = itertools.count()
# Small, and without a checkpoint in the middle of a test.
_SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "autovacuum": "off",
    "jit": "off",
}


def program(name: str) -> str:
    """Return the path of a program of the server, or skip the test."""
    found = shutil.which(name)
    for folder in _FOLDERS:
        found = found or shutil.which(name, path=str(folder))
    if found is None:
        pytest.skip("PostgreSQL is not installed")
    return found


def _state(process: int) -> str:
    """Return the letter of what a process does: Z if it was not collected yet, or is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


class Server:
    """One cluster and the server that runs on it."""

    def __init__(self, **settings: str) -> None:
        initdb = program("initdb")
        pytest.importorskip("psycopg")
        # The path of a socket may have a hundred letters.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = self.folder / "data"
        # The server refuses to run as the superuser.
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = next(one for one in pwd.getpwall() if one.pw_name in ("postgres", "nobody"))
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self.user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self._run(initdb, "-D", self.data, "--username=postgres", "--no-sync", "-k")
        lines = [f"{name} = {value}" for name, value in (_SETTINGS | settings).items()]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, f"unix_socket_directories = '{self.folder}'", ""]))
        self.start()

    def _run(self, *words: object) -> None:
        done = subprocess.run(
            [str(word) for word in words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            **self.user,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program("postgres"), "-D", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self.user,
            )
        deadline = time.monotonic() + 300
        while True:
            try:
                psycopg.connect(self.address()).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text()
                    raise AssertionError(f"the server does not start: {said}") from None
                time.sleep(0.01)

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """Stop the server in good order, and break off what it does."""
        self.process.send_signal(signal_number)
        self.process.wait(300)

    def kill(self) -> None:
        """Kill the server and everything it started, as a power loss would."""
        # Halted, it starts nobody between the list and the kill.
        self.process.send_signal(signal.SIGSTOP)
        while _state(self.process.pid) not in "TZ":
            time.sleep(0.005)
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)],
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.split()
        # It goes first, or it would start the others again.
        self.process.kill()
        self.process.wait(300)
        for child in map(int, listed):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            while _state(child) != "Z":
                time.sleep(0.005)

    def address(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql:///{database}?host={self.folder}&user={user}"

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Carry out statements as the server's owner, each by itself."""
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as link:
            for statement in statements:
                link.execute(statement)  # type: ignore[arg-type]

    def fresh(self) -> str:
        """Make an empty database and return its address."""
        name = f"ledger{next(_NUMBERS)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def close(self) -> None:
        """Stop the server and remove its cluster."""
        if self.process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Give the server that all tests of this process share; none may stop it."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """Give a server that a test may kill."""
    server = Server()
    yield server
    server.close()
