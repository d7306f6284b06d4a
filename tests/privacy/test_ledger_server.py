"""The ledger on a server: what a file cannot show. Its rules are tested with those of the file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psycopg
import pytest

from gapgnn.cli.main import main
from gapgnn.errors import BusyError, GapgnnError, InputError, PrivacyError, UnavailableError
from gapgnn.privacy.ledger import Budget, Charge, Ledger, People, chain, copy_ledger
from gapgnn.privacy.ledger import postgres as backend
from postgres_server import Server

pytestmark = pytest.mark.gate

CUSTOMERS = People(np.arange(10), "5f" * 32, name="customers")
STATED = {"level": "edge", "relation": "undirected"}


def grant(ledger: Ledger, epsilon: float = 100, people: People = CUSTOMERS) -> Budget:
    stated = {**STATED, "composition": "sum", "epsilon": epsilon, "delta": 1e-3}
    return ledger.grant(people.name, people, **stated)  # type: ignore[arg-type]


def charge(ledger: Ledger, people: People = CUSTOMERS, **options: object) -> Charge:
    given = {**STATED, "epsilon": 1.0, "delta": 0.0, "events": [], "purpose": "test", **options}
    return ledger.charge(people, **given)  # type: ignore[arg-type]


@pytest.fixture
def ledger(postgres: Server) -> Ledger:
    return Ledger.init(postgres.fresh())


def changed(ledger: Ledger, *statements: str) -> None:
    """Change a ledger by hand."""
    with psycopg.connect(str(ledger.path), autocommit=True) as link:
        link.execute("SET search_path TO gapgnn")
        for statement in statements:
            assert link.execute(statement).rowcount  # type: ignore[arg-type]


CHARGER = """
import os, sys
import numpy as np
from gapgnn.errors import GapgnnError
from gapgnn.privacy.ledger import Ledger, People

ledger, both = Ledger(sys.argv[1]), People(np.arange(5, 15), "5f" * 32)
stated = {"level": "edge", "relation": "undirected", "epsilon": 1.0, "delta": 0.0, "events": []}
while True:
    try:
        made = ledger.charge(both, **stated, purpose="kill")
    except GapgnnError as error:
        os.write(1, f"refused {type(error).__name__}\\n".encode())
        break
    os.write(1, f"{made.id}\\n".encode())
"""


def test_a_server_that_is_killed_in_the_middle_has_every_charge_whole_or_not_at_all(
    own_postgres: Server,
) -> None:
    """Two populations share every table: a half charge would be in one of them alone."""
    ledger = Ledger.init(own_postgres.fresh())
    for name, first in (("north", 0), ("south", 10)):
        grant(ledger, 1e5, People(np.arange(first, first + 10), name, name=name))
    moments, made = random.Random(0), []
    for _ in range(4):
        command = [sys.executable, "-c", CHARGER, str(ledger.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            made.append(child.stdout.readline().strip())
            time.sleep(moments.uniform(0.0, 0.1))
            own_postgres.kill()
            made += child.stdout.read().split("\n")
        own_postgres.start()
        entries = ledger.entries()
        returned = {line for line in made if line and not line.startswith("refused")}
        assert returned <= {entry.id for entry in entries}
        assert all(len(entry.others) == 1 for entry in entries)
        assert ledger.problems() == []
    refusals = {line for line in made if line.startswith("refused")}
    assert refusals <= {"refused BusyError", "refused UnavailableError"}


@pytest.mark.parametrize("moment", ["before the commit", "at the commit"])
def test_a_charge_whose_server_dies_releases_nothing_and_says_what_is_known(
    own_postgres: Server, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ledger = Ledger.init(own_postgres.fresh())
    grant(ledger)
    real = backend.PostgresConnection.execute

    def dying(self: backend.PostgresConnection, sql: str, values: object = (), /) -> object:
        if sql == "COMMIT":
            own_postgres.kill()
        return real(self, sql, values)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        if moment == "at the commit":
            patch.setattr(backend.PostgresConnection, "execute", dying)
        else:
            patch.setattr(
                chain, "seal_transaction", lambda db, sign: (own_postgres.kill(), db.now())
            )
        with pytest.raises(BusyError) as refusal:
            charge(ledger)
    known = "as a whole or not at all" if moment == "at the commit" else "Nothing was charged"
    assert known in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(UnavailableError, match="cannot be read or written"):
        ledger.summary()
    own_postgres.start()
    assert (ledger.entries(), ledger.problems()) == ([], [])
    charge(ledger)


def test_a_server_that_may_forget_a_charge_is_refused(own_postgres: Server) -> None:
    ledger = Ledger.init(own_postgres.fresh())
    charge(ledger)
    own_postgres.execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            charge(ledger)
        except PrivacyError as error:
            assert "`fsync` must be on. Got 'off'" in str(error)  # noqa: PT017
            return
    pytest.fail("a server without fsync was charged")


def test_charges_are_committed_synchronously_whatever_the_database_says(
    ledger: Ledger, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(ledger.path).split("/")[3].split("?")[0]
    postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    seen = []
    real = backend.PostgresConnection.execute

    def watched(self: backend.PostgresConnection, sql: str, values: object = (), /) -> object:
        if sql == "COMMIT":
            query = "SELECT current_setting('synchronous_commit'), "
            query += "current_setting('transaction_isolation')"
            seen.append(real(self, query).fetchone())
        return real(self, sql, values)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.PostgresConnection, "execute", watched)
    charge(ledger)
    assert seen[-1] == ("on", "serializable")


def test_a_role_that_may_only_read_reads_and_nothing_is_charged(
    ledger: Ledger, postgres: Server
) -> None:
    grant(ledger)
    charge(ledger)
    database = str(ledger.path).split("/")[3].split("?")[0]
    role = f"reader_{database}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    changed_by = (
        f"GRANT USAGE ON SCHEMA gapgnn TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA gapgnn TO {role}",
    )
    postgres.execute(*changed_by, database=database)
    reader = Ledger(postgres.address(database, role))
    assert len(reader.entries()) == 1
    assert reader.problems() == []
    for action in (lambda: charge(reader), lambda: grant(reader, 200)):
        with pytest.raises(UnavailableError, match=r"permission denied.*Nothing was released"):
            action()
    assert len(ledger.entries()) == 1


def test_a_ledger_that_stays_locked_is_busy_and_readers_do_not_wait(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.05)
    charge(ledger)
    with psycopg.connect(str(ledger.path)) as holder:
        holder.execute("LOCK TABLE gapgnn.settings IN EXCLUSIVE MODE")
        with pytest.raises(BusyError, match="is busy"):
            charge(ledger)
        assert len(ledger.entries()) == 1
    charge(ledger)


@pytest.fixture
def small_disk(own_postgres: Server) -> Iterator[Path]:
    """Give a file system of a few megabytes that the server may write to."""
    folder = own_postgres.folder / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=24m,mode=777", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], stderr=subprocess.DEVNULL).returncode == 0
    if not mounted:
        pytest.skip("only the superuser can make a small disk")
    yield folder
    own_postgres.stop()
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_charges_nothing_and_room_is_enough_to_go_on(
    own_postgres: Server, small_disk: Path
) -> None:
    os.chown(small_disk, small_disk.parent.stat().st_uid, -1)
    own_postgres.execute(
        f"CREATE TABLESPACE small LOCATION '{small_disk}'",
        "CREATE DATABASE crowded TABLESPACE small",
    )
    ledger = Ledger.init(own_postgres.address("crowded"))
    grant(ledger)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "filler").write_bytes(bytes(free - 2**16))
    before = (ledger.summary(), ledger.entries())
    crowd = People(np.arange(10**6), "60" * 32)  # sixteen megabytes of hashes
    with pytest.raises(BusyError, match=r"cannot be written: .*Make room and try again"):
        charge(ledger, crowd)
    assert (ledger.summary(), ledger.entries()) == before
    (small_disk / "filler").unlink()
    charge(ledger, People(np.arange(10**5), "61" * 32))
    assert ledger.problems() == []


TAMPERING = {
    "an amount changed": "UPDATE charges SET epsilon = '0.25' WHERE seq = 2",
    "a count changed": "UPDATE charges SET count = 0 WHERE seq = 1",
    "a grant changed": "UPDATE grants SET epsilon = '400' WHERE seq = 1",
    "a link removed": "UPDATE charges SET chain = NULL WHERE seq = 3",
    "a middle row removed": "DELETE FROM charges WHERE seq = 2",
    "the last row removed": "DELETE FROM charges WHERE seq = 3",
    "all rows removed": "DELETE FROM charges",
    "a byte of the members flipped": "UPDATE members SET hashes = set_byte(hashes, 7, 90)",
    "members cut": "UPDATE members SET hashes = substr(hashes, 1, 15)",
    "members removed": "DELETE FROM members",
    "a claim removed": "DELETE FROM claims",
    "a setting changed": "UPDATE settings SET value = 'off' WHERE key = 'require-grant'",
    "the key damaged": "UPDATE settings SET value = 'no key' WHERE key = 'key'",
    "the seal removed": "DELETE FROM settings WHERE key = 'seal'",
    "the version damaged": "UPDATE settings SET value = 'four' WHERE key = 'version'",
    "a table removed": "DROP TABLE notes",
    "a column removed": "ALTER TABLE charges DROP COLUMN events",
}


@pytest.fixture(scope="module")
def whole(postgres: Server) -> str:
    """Return the name of a database with a ledger of which tests take copies."""
    address = postgres.fresh()
    ledger = Ledger.init(address)
    grant(ledger)
    made = [charge(ledger) for _ in range(3)]
    ledger.claim(made[0].id, None, "token")
    ledger.set("require-grant", "on")
    return address.split("/")[3].split("?")[0]


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING)
def test_what_was_changed_by_hand_is_found_and_stops_every_charge(
    postgres: Server, whole: str, statement: str
) -> None:
    name = f"tampered{abs(hash(statement))}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE {whole}")
    ledger = Ledger(postgres.address(name))
    assert ledger.problems() == []
    changed(ledger, statement)
    with pytest.raises(PrivacyError, match="damaged") as refusal:
        charge(ledger)
    assert "\n" not in str(refusal.value)
    with suppress(PrivacyError):
        assert ledger.problems()


def test_flipped_bytes_on_the_servers_disk_are_found_or_change_nothing(
    own_postgres: Server,
) -> None:
    ledger = Ledger.init(own_postgres.fresh())
    grant(ledger)
    charge(ledger)
    state = (ledger.summary(), ledger.entries())
    with psycopg.connect(str(ledger.path)) as link:
        row = link.execute("SELECT pg_relation_filepath('gapgnn.charges')").fetchone()
    assert row is not None
    file = own_postgres.data / row[0]
    own_postgres.stop()
    whole, found = file.read_bytes(), 0
    assert len(whole) == 8192
    for place in (5, 8190, 8100, 8000):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        file.write_bytes(flipped)
        own_postgres.start()
        try:
            if ledger.problems():
                found += 1
            else:
                assert (ledger.summary(), ledger.entries()) == state
        except (PrivacyError, UnavailableError):
            found += 1
        own_postgres.stop()
    assert found >= 3


def test_what_is_no_ledger_or_a_newer_one_is_refused_and_stays(postgres: Server) -> None:
    address = postgres.fresh()
    ledger = Ledger(address)
    for act in (lambda: charge(ledger), ledger.summary, lambda: grant(ledger)):
        with pytest.raises(InputError, match=r"does not exist.*gapgnn ledger init") as refusal:
            act()
        assert "\n" not in str(refusal.value)
    Ledger.init(address)
    assert Ledger(address).create() is False
    changed(ledger, "UPDATE settings SET value = '99' WHERE key = 'version'")
    with pytest.raises(PrivacyError, match=r"newer gapgnn\. Got version 99"):
        ledger.summary()


def test_of_several_who_make_a_ledger_at_once_one_does(postgres: Server) -> None:
    address = postgres.fresh()
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: Ledger(address).create(), range(6)))
    assert sorted(made) == [False] * 5 + [True]
    assert Ledger(address).problems() == []


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for address in (
        f"postgresql:///ledger?host={tmp_path}",
        "postgresql://ann:secret@localhost:1/ledger?connect_timeout=2",
    ):
        with pytest.raises(UnavailableError, match="Nothing was released") as refusal:
            charge(Ledger(address))
        assert "\n" not in str(refusal.value)
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:se:cr@et@host:port/db",
        "postgresql://ann:secret@host/db?nonsense=1",
        "postgres://ann@host:99999999/db?password=secret",
        "mysql://ann:secret@host/db",
        Path("postgresql://ann@host/db"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_line_without_its_password(
    address: str | Path,
) -> None:
    with pytest.raises(GapgnnError) as refusal:
        Ledger(address).summary()
    said = str(refusal.value)
    assert "\n" not in said
    if "mysql" not in str(address):
        assert "cr@et" not in said
        assert "secret" not in said


def test_a_password_is_never_written_or_printed(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = postgres.fresh()
    address = bare.replace("postgresql:///", "postgresql://postgres:hunter2@/")
    address = address.replace("&user=postgres", "&password=hunter2")
    monkeypatch.setattr(sys, "argv", ["gapgnn", "train", "--ledger", address])
    ledger = Ledger.init(address)
    assert "hunter2" not in repr(ledger) + ledger.name + repr(ledger.store)
    assert "hunter2" not in charge(ledger).command
    for words in (["init", address], ["--ledger", address], ["show", "customers"]):
        named = ["--ledger", address] if words[0] == "show" else []
        for form in ([], ["--json"]):
            assert main(["ledger", *words, *named, *form]) == 0
    with pytest.raises(InputError) as refusal:
        main(["ledger", "show", "nobody", "--ledger", address])
    assert "hunter2" not in str(refusal.value)
    said = capsys.readouterr()
    assert "postgresql://postgres@/" in said.out
    assert "hunter2" not in said.out + said.err


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnavailableError, match=r"gapgnn\[postgres\]"):
        Ledger("postgresql://host/db").summary()


def to_each_backend(postgres: Server, folder: Path) -> list[Callable[[], Ledger]]:
    return [
        lambda: Ledger.init(folder / "copy.sqlite"),
        lambda: Ledger.init(postgres.fresh()),
    ]


def test_a_ledger_that_is_moved_keeps_everything_and_the_old_one_is_closed(
    tmp_path: Path, postgres: Server
) -> None:
    old = Ledger.init(tmp_path / "old.sqlite")
    grant(old, 4)
    made = charge(old)
    old.claim(made.id, None, "token")
    for make in to_each_backend(postgres, tmp_path)[::-1]:
        new = make()
        state = (old.summary(), old.entries(), old.grants())
        old.move_to(new)
        assert (new.summary(), new.entries(), new.grants()) == state
        assert new.notes() == old.notes()
        assert new.notes()[-1].about == f"to {new.name}"
        assert new.problems() == old.problems() == []
        with pytest.raises(PrivacyError, match=r"was moved to .* and is closed"):
            charge(old)
        assert new.claimed(made.id) == "token"
        charge(new, People(np.array(["007"]), "61" * 32))  # the same people, and rows go on
        grant(new, 5)
        old = new
    with pytest.raises(InputError, match="copied into an empty one"):
        copy_ledger(new.store, new.store.__class__(tmp_path / "copy.sqlite"))
