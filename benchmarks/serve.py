"""How fast `gapgnn serve` answers, on this machine's loopback alone and for a bounded time.

    python benchmarks/serve.py [--rows 50000] [--rate 500] [--seconds 20] [--kill]

Requests are sent at a steady rate whether or not the ones before were answered, each for one row.
The service is bound to one core and the load to another. A request counts from the moment at which
it was due. With ``--kill`` a worker is killed with SIGKILL in the middle and all are replaced by
SIGHUP later; a request whose connection breaks without an answer is sent once more, as every HTTP
client does with requests that change nothing, and its time counts from the first attempt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import generated

LIMIT_MS = 50.0


def bound_to(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {available[core % len(available)]})


def children_of(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed]


def busy_seconds(process: int) -> float:
    """Return how long a service and its workers have computed so far."""
    total = 0.0
    for one in (process, *children_of(process)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class Load:
    """Sends requests over connections that stay open."""

    def __init__(self, port: int, token: str, rows: int) -> None:
        self.port, self.token, self.rows = port, token, rows
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.times: list[float] = []
        self.found: Counter[str] = Counter()

    async def ask(self, due: float) -> None:
        body = json.dumps({"ids": [secrets.randbelow(self.rows)]})
        head = f"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
        sent = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        for attempt in range(2):
            try:
                status = await self.exchange(sent, is_fresh=attempt > 0)
            except (OSError, asyncio.IncompleteReadError):
                self.found["sent again" if attempt == 0 else "no answer"] += 1
                continue
            self.found[status] += 1
            break
        self.times.append(time.perf_counter() - due)

    async def exchange(self, sent: bytes, *, is_fresh: bool = True) -> str:
        is_known = self.idle and not is_fresh
        link = self.idle.pop() if is_known else await asyncio.open_connection("::1", self.port)
        reader, writer = link
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.lower().split("\r\n") if line.startswith("content-len"))
        await reader.readexactly(int(length.split(":")[1]))
        self.idle.append(link)
        return head.split(" ")[1]


async def run(args: argparse.Namespace, load: Load, service: subprocess.Popen[str]) -> None:
    start = time.perf_counter() + 0.5
    tasks, count = set(), int(args.rate * args.seconds)
    events = {count // 3: "kill", 2 * count // 3: "replace"} if args.kill else {}
    for number in range(count):
        due = start + number / args.rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        if events.get(number) == "kill":
            os.kill(children_of(service.pid)[0], signal.SIGKILL)
        elif events.get(number) == "replace":
            service.send_signal(signal.SIGHUP)
        task = asyncio.create_task(load.ask(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    generated.add_option(parser)
    args = parser.parse_args()
    token = secrets.token_hex(24)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "labels.jsonl"
        row = {"label": "north", "probability": 0.75, "graph": "training"}
        with file.open("w") as out:
            out.writelines(json.dumps({"id": n, **row}) + "\n" for n in range(args.rows))
        command = [sys.executable, "-m", "gapgnn", "serve", "--predictions", str(file), "--json"]
        command += ["--host", "::1", "--port", "0", "--rate", str(100 * args.rate)]
        service = subprocess.Popen(
            [*command, f"--workers={args.workers}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "GAPGNN_SERVE_TOKEN": token},
            preexec_fn=lambda: bound_to(0),
        )
        try:
            assert service.stdout is not None
            load = Load(json.loads(service.stdout.readline())["port"], token, args.rows)
            asyncio.run(load.exchange(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
            load.idle.clear()
            bound_to(1)
            before = busy_seconds(service.pid)
            asyncio.run(run(args, load, service))
            busy = busy_seconds(service.pid) - before
        finally:
            service.terminate()
            service.wait(60)
    times = 1000 * np.sort(load.times)
    errors = sum(count for what, count in load.found.items() if what not in ("200", "sent again"))
    p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
    columns = ["rows", "requests/s", "seconds", "workers", "median", "p99", "longest", "errors"]
    columns += ["sent again", "core of the service"]
    cells = [f"{args.rows:,}", f"{args.rate:g}", f"{args.seconds:g}", str(args.workers)]
    cells += [f"{p50:.1f} ms", f"{p99:.1f} ms", f"{times[-1]:.0f} ms", str(errors)]
    cells += [str(load.found["sent again"]), f"{1000 * busy / len(times):.2f} ms each"]
    late = "" if p99 < LIMIT_MS else f"  over the limit of {LIMIT_MS:g} ms"
    print(*columns, sep="  ")
    print(*cells, late, sep="  ")
    what = ", a worker killed and all replaced" if args.kill else ""
    title = f"Predictions over HTTP, one row each{what}"
    generated.write(args.markdown, title, generated.table(columns, [cells]), device="cpu")


if __name__ == "__main__":
    main()
