"""How long a budget of ten million people takes: to grant it, and to charge next month's table.

    python benchmarks/ledger.py [--people 10000000] [--ids number text] [--churn 0.02]
    python benchmarks/ledger.py --server postgresql://HOST/postgres

Every step is a process of its own, bound to one core, so that its peak memory is its own. A grant
hashes, sorts and writes everybody; a charge hashes a table of the same size, of whom a part is new,
finds out who is a member and lets the others join. A check is what `ledger forecast` does: it asks
for the budget of a table and writes nothing. With ``--server`` the ledger is a new database there
(PGHOST and the like are heeded), dropped afterwards. The server's own time is in the seconds, and
not in those of the core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from gapgnn.privacy.ledger import Ledger, People

# What the ledger must not take longer than, for ten million people on one core.
LIMITS = {"grant": 20.0, "check": 5.0, "charge": 5.0}
SERVER_LIMITS = {"grant": 40.0, "check": 10.0, "charge": 10.0}


def table(args: argparse.Namespace, month: int) -> People:
    """Return the people of one month: some of the month before have left, as many are new."""
    first = round(month * args.churn * args.people)
    ids = np.random.default_rng(month).permutation(args.people) + first
    if args.id_type == "text":
        ids = np.char.add("customer-", ids.astype(str))
    return People(ids, f"{month:064x}")


def grant(args: argparse.Namespace, ledger: Ledger) -> Callable[[], object]:
    people = table(args, 0)
    stated = {"level": "edge", "relation": "undirected", "composition": "sum"}
    return lambda: ledger.grant("customers", people, **stated, epsilon=100, delta=1e-5)


def check(args: argparse.Namespace, ledger: Ledger) -> Callable[[], object]:
    people = table(args, 1)
    return lambda: ledger.budgets_of(people)


def charge(args: argparse.Namespace, ledger: Ledger) -> Callable[[], object]:
    people = table(args, 1)
    spend = {"level": "edge", "relation": "undirected", "epsilon": 1.0, "delta": 1e-7}
    return lambda: ledger.charge(people, **spend, events=[], purpose="benchmark")


STEPS = {"grant": grant, "check": check, "charge": charge}


def peak_mib() -> float:
    # The figure of `resource` begins with that of the process which started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10


def take_step(args: argparse.Namespace) -> dict[str, float]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    step = STEPS[args.step](args, Ledger(args.ledger))
    before, used = time.perf_counter(), time.process_time()
    step()
    return {
        "seconds": time.perf_counter() - before,
        "of_a_core": time.process_time() - used,
        "peak_mib": peak_mib(),
        "file_mb": size_of(args.ledger) / 1e6,
    }


def size_of(ledger: str) -> int:
    """Return how much disk a ledger takes, in bytes."""
    if not ledger.startswith("postgres"):
        return Path(ledger).stat().st_size
    import psycopg

    with psycopg.connect(ledger) as link:
        row = link.execute("SELECT pg_database_size(current_database())").fetchone()
    return 0 if row is None else int(row[0])


@contextmanager
def empty_ledger(server: str | None) -> Iterator[str]:
    """Give a ledger that is thrown away: in a file, or in a database of a server."""
    if server is None:
        with tempfile.TemporaryDirectory() as folder:
            yield str(Ledger.init(Path(folder) / "ledger.sqlite").path)
        return
    import psycopg

    name, parts = f"gapgnn_benchmark_{os.getpid()}", urlsplit(server)
    with psycopg.connect(server, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
        try:
            yield str(Ledger.init(f"{parts.scheme}://{parts.netloc}/{name}?{parts.query}").path)
        finally:
            link.execute(f"DROP DATABASE {name}")


def run(args: argparse.Namespace, id_type: str, step: str, ledger: str) -> dict[str, Any]:
    words = [f"--people={args.people}", f"--churn={args.churn}", f"--id-type={id_type}"]
    command = [sys.executable, __file__, *words, f"--step={step}", f"--ledger={ledger}"]
    threads = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | threads
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--ids", choices=["number", "text"], nargs="+", default=["number", "text"])
    parser.add_argument("--churn", type=float, default=0.02)
    parser.add_argument("--id-type", choices=["number", "text"], help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--ledger", help=argparse.SUPPRESS)
    parser.add_argument("--server", metavar="ADDRESS", help="a database of a PostgreSQL server")
    if any(word.startswith("--step") for word in sys.argv):
        args = parser.parse_args()
        (args.people,) = args.people
        print(json.dumps(take_step(args)))
        return
    import generated  # which brings torch, and that is no memory of a step

    generated.add_option(parser)
    args = parser.parse_args()
    columns = ["people", "ids", "step", "seconds", "of one core", "peak memory", "file"]
    rows = []
    print(("{:<13}" * len(columns)).format(*columns))
    for people in args.people:
        for id_type in args.ids:
            rows += measure(
                argparse.Namespace(people=people, churn=args.churn, server=args.server), id_type
            )
    where = "in a file" if args.server is None else "on a PostgreSQL server"
    title = f"A ledger of people {where}: grant, and the table of the next month "
    title += f"({args.churn:.0%} are new)"
    generated.write(args.markdown, title, generated.table(columns, rows), device="cpu")


def measure(args: argparse.Namespace, id_type: str) -> list[list[str]]:
    rows = []
    limits = LIMITS if args.server is None else SERVER_LIMITS
    with empty_ledger(args.server) as path:
        for step in STEPS:
            found = run(args, id_type, step, path)
            rows.append(
                [
                    f"{args.people:,}",
                    id_type,
                    step,
                    f"{found['seconds']:.2f} s",
                    f"{found['of_a_core']:.2f} s",
                    f"{found['peak_mib']:.0f} MiB",
                    f"{found['file_mb']:.0f} MB",
                ]
            )
            slow = args.people <= 10_000_000 and found["seconds"] > limits[step]
            late = f"  over the limit of {limits[step]:g} s" if slow else ""
            print(("{:<13}" * len(rows[-1])).format(*rows[-1]) + late, flush=True)
    return rows


if __name__ == "__main__":
    main()
