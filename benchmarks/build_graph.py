"""Time and peak memory of an Amazon-sized graph: from two arrays of ids, and from the generator.

Each measurement runs in a process of its own, because the peak of a process never goes down.

    python benchmarks/build_graph.py
    python benchmarks/build_graph.py --nodes 100000 --arcs 4000000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.graph import Graph

GIB = 1 << 30


def peak_gib() -> float:
    """Peak resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def kept_gib(graph: Graph) -> float:
    """Memory of everything the graph holds on to."""
    parts = [graph.indptr, graph.indices, graph.labels, graph.ids]
    parts += [graph.train_mask, graph.val_mask, graph.test_mask, graph.features]
    return sum(part.nbytes for part in parts) / GIB


def from_arrays(nodes: int, arcs: int, features: int) -> dict[str, Any]:
    """Build from int64 ids of both ends, every edge given in both directions, in no order."""
    rng = np.random.default_rng(0)
    half = arcs // 2
    sources, targets = np.empty(arcs, np.int64), np.empty(arcs, np.int64)
    for start in range(0, half, 1 << 20):
        stop = min(start + (1 << 20), half)
        sources[start:stop] = rng.integers(nodes, size=stop - start)
        targets[start:stop] = rng.integers(nodes, size=stop - start)
    sources[half : 2 * half], targets[half : 2 * half] = targets[:half], sources[:half]
    values = rng.standard_normal((nodes, features), dtype=np.float32)
    inputs = peak_gib()
    started = time.perf_counter()
    graph = Graph.from_arcs(sources, targets, num_nodes=nodes, features=values)
    seconds = time.perf_counter() - started
    result = summary(graph, seconds, inputs)
    started = time.perf_counter()
    _ = graph.fingerprint
    return {**result, "fingerprint_seconds": time.perf_counter() - started, "end_gib": peak_gib()}


def from_generator(nodes: int, arcs: int, features: int) -> dict[str, Any]:
    """Generate a graph of the same size."""
    inputs = peak_gib()
    started = time.perf_counter()
    graph = generate(num_nodes=nodes, num_arcs=arcs, num_features=features, num_classes=10)
    return summary(graph, time.perf_counter() - started, inputs)


def summary(graph: Graph, seconds: float, inputs: float) -> dict[str, Any]:
    return {
        "arcs": graph.num_arcs,
        "seconds": seconds,
        "before_gib": inputs,
        "peak_gib": peak_gib(),
        "kept_gib": kept_gib(graph),
    }


CASES = {"arrays": from_arrays, "generator": from_generator}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build an Amazon-sized graph and measure it.")
    parser.add_argument("--nodes", type=int, default=1_790_731)
    parser.add_argument("--arcs", type=int, default=80_966_832)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--case", choices=CASES, help="measure one case in this process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(CASES[args.case](args.nodes, args.arcs, args.features)))
        return
    for case in CASES:
        sizes = [f"--nodes={args.nodes}", f"--arcs={args.arcs}", f"--features={args.features}"]
        command = [sys.executable, __file__, "--case", case, *sizes]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(run.stdout)
        print(
            f"{case:<10} {found['arcs']:>12,} arcs  {found['seconds']:6.1f} s  "
            f"inputs {found['before_gib']:.2f} GiB  peak {found['peak_gib']:.2f} GiB  "
            f"kept {found['kept_gib']:.2f} GiB"
        )
        if "fingerprint_seconds" in found:
            print(
                f"{'':<10} {'fingerprint':>17}  {found['fingerprint_seconds']:6.1f} s  "
                f"peak {found['end_gib']:.2f} GiB"
            )


if __name__ == "__main__":
    main()
