"""Where a ledger lies: a disk without room, one that is read-only, a standby, two networks."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_ledger_durability import SPENDER

from gapgnn.errors import BusyError, GapgnnError, UnavailableError
from gapgnn.privacy.ledger import Charge, Ledger, People
from postgres_server import Server

pytestmark = pytest.mark.gate

CUSTOMERS = People(np.arange(10), "5f" * 32, name="customers")
STATED = {"level": "edge", "relation": "undirected"}


def grant(ledger: Ledger, epsilon: float = 1000) -> None:
    stated = {**STATED, "composition": "sum", "epsilon": epsilon, "delta": 1e-3}
    ledger.grant("customers", CUSTOMERS, **stated)  # type: ignore[arg-type]


def charge(ledger: Ledger, people: People = CUSTOMERS) -> Charge:
    spend = {**STATED, "epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "test"}
    return ledger.charge(people, **spend)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only the superuser can make a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, *, but: int) -> None:
    """Leave so many bytes free."""
    state = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(state.f_bavail * state.f_frsize - but))


def test_a_full_disk_charges_a_file_whole_or_not_at_all(small_disk: Path) -> None:
    """Room ends at every page: of the journal, of the ledger, or just before both fit."""
    ledger = Ledger.init(small_disk / "ledger.sqlite")
    grant(ledger)
    seen = set()
    for number, pages in enumerate((0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)):
        newcomers = People(np.arange(1000 * number, 1000 * number + 500), f"{number:064x}")
        before = (ledger.summary(), ledger.entries())
        fill(small_disk, but=4096 * pages)
        try:
            made = charge(ledger, newcomers)
        except BusyError as error:
            assert "Make room and try again" in str(error)  # noqa: PT017
            assert (ledger.summary(), ledger.entries()) == before
            seen.add("refused")
        else:
            assert ledger.entries()[-1].id == made.id
            seen.add("charged")
        assert ledger.problems() == []
        (small_disk / "filler").unlink()
    assert seen == {"refused", "charged"}
    charge(ledger, People(np.arange(10**5), "61" * 32))


def test_a_read_only_disk_charges_nothing_and_can_be_read(small_disk: Path) -> None:
    ledger = Ledger.init(small_disk / "ledger.sqlite")
    grant(ledger)
    charge(ledger)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    state = (ledger.summary(), ledger.entries())
    for act in (lambda: charge(ledger), lambda: grant(ledger, 2000)):
        with pytest.raises(UnavailableError, match="Nothing was released") as refusal:
            act()
        assert "\n" not in str(refusal.value)
    assert (ledger.summary(), ledger.entries(), ledger.problems()) == (*state, [])


def test_a_standby_is_refused_for_charges_and_for_answers(tmp_path: Path) -> None:
    """It may not have the last charges, so what it says is left may be spent."""
    server = Server(wal_level="replica")
    try:
        ledger = Ledger.init(server.fresh())
        charge(ledger)
        server.stop()
        signal = server.data / "standby.signal"
        signal.touch()
        os.chown(signal, server.data.stat().st_uid, -1)
        server.start()
        for act in (lambda: charge(ledger), ledger.summary, lambda: grant(ledger)):
            with pytest.raises(UnavailableError, match="is a standby"):
                act()
        server.stop()
        signal.unlink()
        server.start()
        assert len(ledger.entries()) == 1
    finally:
        server.close()


@pytest.fixture
def networks() -> Iterator[list[tuple[str, str]]]:
    """Give two network namespaces, each with the address of this machine as it sees it."""
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("only the superuser can make network namespaces")
    made, interfaces = [], []
    try:
        for number in range(2):
            name, here, there = (f"{what}{os.getpid() % 9999}{number}" for what in "nhv")
            subnet = f"10.{200 + number}.{os.getpid() % 250}"
            steps = [
                f"ip netns add {name}",
                f"ip link add {here} type veth peer name {there}",
                f"ip link set {there} netns {name}",
                f"ip addr add {subnet}.1/30 dev {here}",
                f"ip link set {here} up",
                f"ip netns exec {name} ip addr add {subnet}.2/30 dev {there}",
                f"ip netns exec {name} ip link set {there} up",
            ]
            for step in steps:
                done = subprocess.run(step.split(), stderr=subprocess.PIPE, text=True)
                if done.returncode:
                    pytest.skip(f"network namespaces cannot be made here: {done.stderr}")
            made.append((name, f"{subnet}.1"))
            interfaces.append(here)
        yield made
    finally:
        for interface in interfaces:
            subprocess.run(["ip", "link", "del", interface], check=False)
        for name, _ in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.slow
def test_sixteen_processes_on_two_networks_never_exceed_a_grant(
    networks: list[tuple[str, str]],
) -> None:
    """Two machines, as far as one can stand for them: neither sees the other's files of locks."""
    server = Server(listen_addresses=f"'{','.join(address for _, address in networks)}'")
    try:
        with (server.data / "pg_hba.conf").open("a") as file:
            for _, address in networks:
                file.write(f"host all all {address}/30 trust\n")
        server.execute("SELECT pg_reload_conf()")
        local = server.fresh()
        ledger = Ledger.init(local)
        grant(ledger, 40)
        database = local.split("/")[3].split("?")[0]
        running = []
        for name, address in networks:
            place = f"postgresql://postgres@{address}/{database}"
            command = [sys.executable, "-c", SPENDER, place, "8", "4"]
            inside = ["ip", "netns", "exec", name, *command]
            running.append(subprocess.Popen(inside, stdout=subprocess.PIPE, text=True))
        made = list(itertools.chain(*(one.communicate()[0].split() for one in running)))
        assert [one.returncode for one in running] == [0, 0]
        assert len(made) == len(set(made)) == 40  # of 64 that were tried
        assert {entry.id for entry in ledger.entries()} == set(made)
        (row,) = ledger.summary()
        assert (row.spent_epsilon, row.left_epsilon) == (40, 0.0)
        assert ledger.problems() == []
        with pytest.raises(GapgnnError, match="nothing left"):
            charge(ledger)
    finally:
        server.close()
