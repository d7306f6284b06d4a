"""The page on production: every command of it is executed, in its order, on a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gapgnn.privacy.ledger import Ledger
from postgres_server import Server, program
from test_docs import Block, blocks_of, write_files

pytest.importorskip("fastapi")
PAGE = "docs/how-to/production.md"
END = "@@end@@"


class Shell:
    """One bash for all blocks, so that what is exported stays."""

    def __init__(self, folder: Path, **variables: str) -> None:
        programs = folder / "programs"
        programs.mkdir()
        python = shutil.which("python", path=str(Path(sys.executable).parent)) or sys.executable
        launcher = f'#!/bin/sh\nexec {sys.executable} -m gapgnn "$@"\n'
        (programs / "gapgnn").write_text(launcher)
        (programs / "gapgnn").chmod(0o755)
        places = [str(programs), str(Path(python).parent), str(Path(program("pg_dump")).parent)]
        path = os.pathsep.join([*places, os.environ["PATH"]])
        environment = {**os.environ, **variables, "PATH": path, "PAUSE": "0"}
        environment.pop("GAPGNN_LEDGER", None)
        self.blocks = 0
        self.process = subprocess.Popen(
            ["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def run(self, text: str) -> tuple[int, str]:
        """Run a block, and return the exit code of the first command that fails, and the output."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # Where `set -e` ends the shell, another one with its variables goes on, and says another
        # time that it has come to the end: of a block with an earlier number.
        self.blocks += 1
        end = f"{END}{self.blocks}"
        script = f"trap 'echo {end} $?; exec bash --norc' EXIT\nset -euo pipefail\n{text}\n"
        self.process.stdin.write(f"{script}set +euo pipefail; trap - EXIT; echo {end} 0\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(f"{end} "):
                return int(line.split()[1]), "".join(lines)
            if not line.startswith(END):
                lines.append(line)
        raise AssertionError("".join(lines))


def write_bank(folder: Path) -> None:
    """Write customers and transfers of a small bank."""
    rng = np.random.default_rng(0)
    segments, ages = rng.integers(3, size=400), rng.integers(18, 90, size=400)
    rows = [f"{1000 + i},{ages[i]},{segments[i]}" for i in range(400)]
    (folder / "customers.csv").write_text("\n".join(["id,age,segment", *rows, ""]))
    ends = rng.integers(400, size=(4000, 2))
    same = segments[ends[:, 0]] == segments[ends[:, 1]]
    ends = ends[(same | (rng.random(4000) < 0.3)) & (ends[:, 0] != ends[:, 1])]
    rows = [f"{1000 + u},{1000 + v}" for u, v in ends]
    (folder / "transfers.csv").write_text("\n".join(["payer,payee", *rows, ""]))


@pytest.fixture
def shell(own_postgres: Server, tmp_path: Path) -> Iterator[Shell]:
    for name in ("curl", "openssl", "sqlite3", "bash"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path / "bank"
    folder.mkdir()
    write_bank(folder)
    write_files(PAGE, folder)
    own_postgres.execute("CREATE DATABASE ledger")
    found = Shell(
        folder,
        SERVER=own_postgres.address("ledger"),
        ADMIN=own_postgres.address(),
        RESTORED=own_postgres.address("restored"),
        PGHOST=str(own_postgres.folder),
        PGUSER="postgres",
    )
    yield found
    os.killpg(found.process.pid, signal.SIGTERM)  # and a service that it may have left
    found.process.kill()
    found.process.communicate()


def executed(block: Block) -> bool:
    """Whether a block is commands, and not a file that others run."""
    return block.language == "bash" and block.file is None


@pytest.mark.slow
def test_every_command_of_the_page_works_in_its_order(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    said = {}
    for block in filter(executed, blocks_of(PAGE)):
        if "$SERVICE" in block.text:
            serving = "gapgnn serve --model models/current --token-file tokens --port 0 --json"
            code, output = shell.run(f"{serving} > service.json 2> service.log &\nserved=$!")
            assert code == 0, output
            code, output = shell.run("until [ -s service.json ]; do sleep 0.1; done")
            port = json.loads((folder / "service.json").read_text())["port"]
            shell.run(f"export SERVICE=http://127.0.0.1:{port}")
        code, output = shell.run(block.text)
        assert code == 0, f"line {block.line}: {output}"
        said[block.line] = output
    assert shell.run("kill $served; wait $served")[0] == 0
    everything = "".join(said.values())
    assert "none changed or removed" in everything
    assert 'gapgnn_requests_total{route="/healthz",status="200"}' in everything
    ledger = Ledger(folder / "bank.sqlite")
    assert [one.kind for one in ledger.notes()][-1] == "moved"
    log = json.loads((folder / "logs/train-2027-01.json").read_text())
    assert len(log["charges"]) == 1
    assert (folder / "labels-2027-01.jsonl").read_text().count("\n") == 400
    assert "1001" not in (folder / "service.log").read_text()


@pytest.mark.slow
def test_a_charge_that_a_restored_ledger_lacks_is_found_by_the_loop_of_the_page(
    shell: Shell, tmp_path: Path
) -> None:
    """The backup is older than the second month."""
    blocks = [block.text for block in blocks_of(PAGE) if executed(block)]
    begin, job = blocks[:2]
    (restore,) = [text for text in blocks if "pg_restore" in text]
    (move,) = [text for text in blocks if "--from bank.sqlite" in text]
    (backup,) = [text for text in blocks if "pg_dump" in text]
    for text in (begin, job, move, backup):
        code, output = shell.run(text)
        assert code == 0, output
    assert shell.run("bash monthly.sh 2027-02")[0] == 0
    code, output = shell.run(restore)
    assert code == 4
    assert "an entry was changed or removed" in output
    assert shell.run("gapgnn ledger verify --ledger $RESTORED --against models/2027-01")[0] == 0


@pytest.mark.slow
def test_a_job_says_what_failed_and_tries_again_only_where_that_helps(
    shell: Shell, tmp_path: Path
) -> None:
    folder = tmp_path / "bank"
    begin = next(block.text for block in blocks_of(PAGE) if executed(block))
    assert shell.run(begin)[0] == 0
    # Over the budget: refused at once, with the exit code of the table.
    assert shell.run("gapgnn ledger grant customers --epsilon 0.1")[0] == 0
    assert shell.run("bash monthly.sh 2027-01")[0] == 3
    error = json.loads((folder / "logs/train-2027-01.json").read_text())["error"]
    assert "nothing was charged" in error["message"]
    # No table: bad input.
    (folder / "customers.csv").rename(folder / "elsewhere.csv")
    assert shell.run("bash monthly.sh 2027-01")[0] == 2
    assert not (folder / "models/2027-01").exists()
