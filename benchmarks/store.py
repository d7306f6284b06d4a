"""A graph larger than the memory allowed for it: partition it, then aggregate it K times.

Each step runs in a process of its own, because the peak of a process never goes down. The page
cache of the files is dropped before they are read, so that times are those of a disk and not of
memory; the same is done before the plain sequential read that the hops are compared with.

    python benchmarks/store.py                                   500 million arcs, 2 million nodes
    python benchmarks/store.py --nodes 100000 --arcs 10000000    in a minute
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GIB = 1 << 30
COLUMNS = 16


def peak_gib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def forget(paths: list[Path]) -> None:
    """Drop files from the page cache."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def generate_tables(args: argparse.Namespace) -> dict[str, Any]:
    """Write the node and edge tables of a block model; each edge once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gapgnn.graph.datasets.synthetic import BlockModel

    model = BlockModel(
        num_nodes=args.nodes,
        mean_degree=args.arcs / args.nodes,
        num_classes=10,
        num_features=args.features,
    )
    names = [f"x{column}" for column in range(args.features)]
    schema_fields = [
        ("id", pa.int64()),
        ("label", pa.int64()),
        *((name, pa.float32()) for name in names),
    ]
    edges = 0
    with (
        pq.ParquetWriter(args.folder / "nodes.parquet", pa.schema(schema_fields)) as node_file,
        pq.ParquetWriter(
            args.folder / "edges.parquet",
            pa.schema([("source", pa.int32()), ("target", pa.int32())]),
            use_dictionary=False,
            compression="none",
        ) as edge_file,
    ):
        for first in range(model.num_blocks):
            left = model.nodes(first)
            values = np.asarray(model.features_of(first, left.labels))
            ids = left.first + np.arange(len(left.labels))
            columns = [ids, left.labels, *values.T]
            node_file.write_table(pa.table(columns, schema=pa.schema(schema_fields)))
            for second in range(first, model.num_blocks):
                right = left if second == first else model.nodes(second)
                ends = model.edges(first, second, blocks=(left, right))
                arrays = [pa.array(end.astype(np.int32)) for end in ends]
                edge_file.write_table(pa.table(arrays, names=["source", "target"]))
                edges += len(ends[0])
    return {"edges": edges}


def partition(args: argparse.Namespace) -> dict[str, Any]:
    """Build the store."""
    from gapgnn.graph.store.build import build_store

    tables = [args.folder / "edges.parquet", args.folder / "nodes.parquet"]
    forget(tables)
    started, busy = time.perf_counter(), time.process_time()
    built = build_store(
        args.folder / "store",
        edges=tables[0],
        nodes=tables[1],
        label="label",
        parts=args.parts,
        memory=args.memory << 20,
    )
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "arcs": built.graph.num_arcs,
        "bytes_in": sum(path.stat().st_size for path in tables),
        "bytes_out": sum(path.stat().st_size for path in (args.folder / "store").iterdir()),
        "peak_gib": peak_gib(),
    }


def sequential(args: argparse.Namespace) -> dict[str, Any]:
    """Read the files of arcs from beginning to end, first from disk, then from the page cache."""
    paths = sorted((args.folder / "store").glob("arcs-*.parquet"))
    forget(paths)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass
        seconds.append(time.perf_counter() - started)
    return {
        "bytes": sum(path.stat().st_size for path in paths),
        "disk_seconds": seconds[0],
        "cache_seconds": seconds[1],
    }


def aggregate(args: argparse.Namespace) -> dict[str, Any]:
    """Release K noisy hops of 16 columns over the store."""
    import torch

    from gapgnn.graph.store.graph import open_store
    from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
    from gapgnn.rng import NoiseKey

    paths = sorted((args.folder / "store").iterdir())
    forget(paths)
    started = time.perf_counter()
    graph = open_store(args.folder / "store")
    opened = time.perf_counter() - started
    node = args.level == "node"
    mechanism = hop_mechanisms(
        graph,
        level=args.level,
        relation="add-remove" if node else "undirected",
        noise_multiplier=1.0,
        max_degree=100 if node else None,
        keys=[NoiseKey.fresh()],
        noise=args.noise,
    )[0]
    rows = row_normalise(
        torch.randn(graph.num_nodes, COLUMNS, generator=torch.Generator().manual_seed(0))
    )
    hops = []
    for index in range(1, args.hops + 1):
        forget(paths)
        started, busy = time.perf_counter(), time.process_time()
        rows = mechanism.hop(rows, index)
        hops.append((time.perf_counter() - started, time.process_time() - busy))
    return {
        "open_seconds": opened,
        "hops": hops,
        "bytes": entry_bytes(graph),
        "peak_gib": peak_gib(),
        "threads": torch.get_num_threads(),
    }


def entry_bytes(graph: Any) -> int:
    """Bytes of the column that one hop reads."""
    import pyarrow.parquet as pq

    total = 0
    for part in range(graph.num_parts):
        about = pq.read_metadata(graph.in_part(part).path)
        total += sum(
            about.row_group(group).column(0).total_compressed_size
            for group in range(about.num_row_groups)
        )
    return total


STEPS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "tables": generate_tables,
    "partition": partition,
    "sequential": sequential,
    "aggregate": aggregate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Partition and aggregate a large graph on disk.")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--arcs", type=int, default=500_000_000)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--level", choices=["edge", "node"], default="edge")
    parser.add_argument("--noise", choices=["safe", "fast"], default="safe")
    parser.add_argument("--memory", type=int, default=1024, help="MiB to sort in")
    parser.add_argument("--folder", type=Path, help="work here and keep the files")
    parser.add_argument("--step", choices=STEPS, help="do one step in this process")
    args = parser.parse_args()
    if args.step:
        print(json.dumps(STEPS[args.step](args)))
        return
    folder = args.folder or Path(tempfile.mkdtemp(prefix="gapgnn-store-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        report(args, folder)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)


def run(args: argparse.Namespace, folder: Path, step: str) -> dict[str, Any]:
    options = {key: value for key, value in vars(args).items() if key not in ("folder", "step")}
    words = [f"--{key}={value}" for key, value in options.items()]
    command = [sys.executable, __file__, "--step", step, f"--folder={folder}", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(args: argparse.Namespace, folder: Path) -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    if not (folder / "edges.parquet").exists():
        print(f"tables      {run(args, folder, 'tables')['edges']:,} edges written", flush=True)
    if not (folder / "store").exists():
        found = run(args, folder, "partition")
        print(
            f"partition   {found['arcs']:,} arcs  {found['seconds']:.1f} s "
            f"({found['cpu_seconds']:.1f} s of a core)  read {found['bytes_in'] / 1e9:.2f} GB, "
            f"wrote {found['bytes_out'] / 1e9:.2f} GB  peak {found['peak_gib']:.2f} GiB",
            flush=True,
        )
    plain = run(args, folder, "sequential")
    for where in ("disk", "cache"):
        seconds = plain[f"{where}_seconds"]
        print(
            f"sequential  {plain['bytes'] / 1e9:.2f} GB  {seconds:.2f} s  "
            f"{plain['bytes'] / seconds / 1e9:.2f} GB/s  from {where}",
            flush=True,
        )
    found = run(args, folder, "aggregate")
    print(f"open        {found['open_seconds']:.1f} s, every byte compared with its checksum")
    for hop, (seconds, busy) in enumerate(found["hops"], 1):
        rate = found["bytes"] / seconds
        share = rate / (plain["bytes"] / plain["disk_seconds"])
        print(
            f"hop {hop}       {found['bytes'] / 1e9:.2f} GB  {seconds:.1f} s "
            f"({busy:.1f} s of a core)  {rate / 1e9:.2f} GB/s, "
            f"{share:.0%} of the sequential read from disk"
        )
    print(f"            peak {found['peak_gib']:.2f} GiB, {found['threads']} threads")


if __name__ == "__main__":
    main()
