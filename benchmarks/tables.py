"""Time and peak memory of reading one large graph from every source of tables.

Each measurement runs in a process of its own, because the peak of a process never goes down. All
sources must give the same fingerprint.

    python benchmarks/tables.py                                10 million edges, 500,000 nodes
    python benchmarks/tables.py --edges 1000000 --sources csv parquet
    python benchmarks/tables.py --sources postgresql --address postgresql:///bench

The server of ``--address`` gets two tables, ``bench_nodes`` and ``bench_edges``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

GIB = 1 << 30
CITIES = ("Bern", "Oslo", "Rome", "Zürich")
PARTS = 8
SOURCES = ("csv", "csv.gz", "parquet", "folder", "duckdb", "sqlite")


def peak_gib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def generate(args: argparse.Namespace) -> dict[str, Any]:
    """Return the node and the edge table."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    count = args.nodes
    ids = rng.permutation(count) + 1_000_000
    nodes = {
        "id": ids,
        "branch": [f"{branch:03d}" for branch in rng.integers(1, 60, count)],
        "city": np.array(CITIES)[rng.integers(len(CITIES), size=count)],
        "age": rng.integers(18, 90, count),
        "income": np.round(rng.lognormal(8, 0.5, count), 2),
        "label": np.array(["low", "high"])[(rng.random(count) < 0.1).astype(int)],
    }
    edges = {
        "source": ids[rng.integers(count, size=args.edges)],
        "target": ids[rng.integers(count, size=args.edges)],
        "amount": np.round(rng.lognormal(4, 1, args.edges), 2),
    }
    return {"nodes": pa.table(nodes), "edges": pa.table(edges)}


def write(args: argparse.Namespace) -> dict[str, Any]:
    """Write both tables for one source, and return the words that name them."""
    import pyarrow as pa
    import pyarrow.csv as pcsv
    import pyarrow.parquet as pq

    words = {}
    for name, table in generate(args).items():
        path = args.folder / f"{name}.{args.source}"
        if args.source == "csv":
            pcsv.write_csv(table, path)
        elif args.source == "csv.gz":
            with pa.CompressedOutputStream(str(path), "gzip") as file:
                pcsv.write_csv(table, file)
        elif args.source == "parquet":
            pq.write_table(table, path)
        elif args.source == "folder":
            path.mkdir()
            step = -(-table.num_rows // PARTS)
            for part in range(PARTS):
                pq.write_table(table.slice(part * step, step), path / f"part-{part}.parquet")
        elif args.source == "duckdb":
            import duckdb

            with duckdb.connect(path) as link:
                link.register("given", table)
                link.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            path = f"duckdb:{path}?SELECT * FROM {name}"
        elif args.source == "sqlite":
            path = _sqlite(table, name, path)
        else:
            path = _postgres(table, name, args.address)
        words[name] = str(path)
    return words


def _sqlite(table: Any, name: str, path: Path) -> str:
    import sqlite3

    link = sqlite3.connect(path)
    link.execute(f"CREATE TABLE {name} ({', '.join(table.column_names)})")
    marks = ", ".join("?" * table.num_columns)
    for batch in table.to_batches(max_chunksize=1 << 17):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        link.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    link.commit()
    link.close()
    return f"sqlite:{path}?SELECT * FROM {name}"


def _postgres(table: Any, name: str, address: str) -> str:
    import io

    import psycopg
    import pyarrow.csv as pcsv

    types = {"int64": "bigint", "double": "numeric", "string": "text"}
    columns = ", ".join(f"{part.name} {types[str(part.type)]}" for part in table.schema)
    with psycopg.connect(address) as link, link.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS bench_{name}")
        cursor.execute(f"CREATE TABLE bench_{name} ({columns})")
        with cursor.copy(f"COPY bench_{name} FROM STDIN (FORMAT csv, HEADER)") as copy:
            file = io.BytesIO()
            pcsv.write_csv(table, file)
            copy.write(file.getvalue())
    return f"{address}?SELECT * FROM bench_{name}"


def read(args: argparse.Namespace) -> dict[str, Any]:
    """Read the graph into memory, or into a store."""
    from gapgnn.graph.store.build import build_store
    from gapgnn.graph.tables.read import read_tables

    words = json.loads(args.words)
    options = {"label": "label", "weight": "amount", "weight_bounds": (0, 1000)}
    started, busy, before = time.perf_counter(), time.process_time(), peak_gib()
    if args.step == "store":
        with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
            graph = build_store(Path(scratch) / "store", **words, **options, parts=16).graph
            fingerprint = graph.fingerprint
    else:
        fingerprint = read_tables(**words, **options).graph.fingerprint
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "before_gib": before,
        "peak_gib": peak_gib(),
        "fingerprint": fingerprint,
    }


def run(args: argparse.Namespace, step: str, source: str, folder: Path, words: str) -> Any:
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder), "--words", words]
    command += ["--nodes", str(args.nodes), "--edges", str(args.edges), "--address", args.address]
    done = subprocess.run([*command, "--source", source], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--sources", nargs="+", default=SOURCES, choices=[*SOURCES, "postgresql"])
    parser.add_argument("--address", default="postgresql:///bench")
    parser.add_argument("--step", choices=["write", "memory", "store"], help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--words", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.step is not None:
        print(json.dumps(write(args) if args.step == "write" else read(args)))
        return
    # It loads torch, which is not part of what is measured.
    import generated

    columns = ["source", "into", "elapsed", "of all cores together", "peak resident memory"]
    rows, fingerprints = [], set()
    print(*columns, sep="  ")
    for source in args.sources:
        with tempfile.TemporaryDirectory() as folder:
            words = json.dumps(run(args, "write", source, Path(folder), "{}"))
            for step in ("memory", "store"):
                found = run(args, step, source, Path(folder), words)
                fingerprints.add(found["fingerprint"])
                cells = [source, "memory" if step == "memory" else "a store of 16 parts"]
                cells += [f"{found['seconds']:.1f} s", f"{found['cpu_seconds']:.1f} s"]
                rows.append([*cells, f"{found['peak_gib']:.2f} GiB"])
                print(*rows[-1], sep="  ", flush=True)
    if len(fingerprints) != 1:
        raise SystemExit(f"the sources give {len(fingerprints)} graphs")
    title = f"Reading {args.edges:,} edges with amounts and {args.nodes:,} nodes from every source"
    generated.write(args.markdown, title, generated.table(columns, rows), device="cpu")


if __name__ == "__main__":
    main()
