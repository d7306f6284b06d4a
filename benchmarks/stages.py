"""Where the time goes: each stage beside the fewest operations and bytes it can do with.

    GAPGNN_DATA=... python benchmarks/stages.py                  # GAP at edge and node level
    GAPGNN_DATA=... python benchmarks/stages.py --operations 12  # also torch's own operations

The floor of a stage is counted, not measured: its multiplications and additions at the rate of this
machine's dense product, or the bytes it must move at the rate of a copy, whichever takes longer.
Counted are the nodes that an epoch must look at, every nonzero feature, each layer's output written
and read once forwards, read once backwards, and its gradient written and read once. A hop reads one
row and one position per arc. Ten repeats together, one thread unless `--threads` says otherwise.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gapgnn import GAP, Ledger, load_dataset
from gapgnn.graph.graph import Graph
from gapgnn.nn.sparse_rows import SparseRows

REPEATS, HIDDEN, HOPS, BATCH = 10, 16, 2, 256


class Work(NamedTuple):
    """Floating-point operations and bytes."""

    operations: float
    moved: float

    def times(self, count: float) -> Work:
        return Work(self.operations * count, self.moved * count)


def rates() -> tuple[float, float]:
    """Return operations and bytes per second: a dense product in cache, and a copy out of it."""
    square = torch.randn(1024, 1024)
    long = torch.randn(1 << 26)
    other = torch.empty_like(long)
    return 2 * 1024**3 / _median(lambda: square @ square), 8 * len(long) / _median(
        lambda: other.copy_(long)
    )


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def network(rows: int, widths: list[int], *, entries: int | None = None) -> Work:
    """Return the work of one pass forwards and backwards over some rows.

    ``entries``: nonzero features of all rows, if the first layer reads sparse ones.
    """
    operations, moved = 0.0, 0.0
    for place, (left, right) in enumerate(pairwise(widths)):
        products = rows * left * right if entries is None or place else entries * right
        # Forwards, and backwards for the weights and (but for the first layer) for the inputs.
        operations += 2 * products * (3 if place else 2)
        moved += 4 * 5 * rows * right
        moved += 4 * (rows * left if entries is None else 2 * entries) * 2 if not place else 0
    return Work(operations, moved)


def stages(graph: Graph, model: GAP) -> dict[str, Work]:
    """Return the counted work of every stage of a fit, all repeats and epochs together."""
    classes, features = graph.num_classes, graph.num_features
    train, val = int(graph.train_mask.sum()), int(graph.val_mask.sum())
    entries = int(graph.features.nnz)
    mean = entries / graph.num_nodes
    is_private = model.level == "node"
    epochs = 10 if is_private else 100
    nodes = train if is_private else graph.num_nodes
    if not is_private:
        found = SparseRows.from_scipy(graph.features).distinct()
        nodes = nodes if found is None else found[0].shape[0]
    encoder = network(nodes, [features, HIDDEN, HIDDEN, classes], entries=int(mean * nodes))
    scored = train if is_private else train + val
    base = network(scored, [HIDDEN, HIDDEN]).times(HOPS + 1)
    head = network(scored, [HIDDEN * (HOPS + 1), classes])
    classifier = Work(base.operations + head.operations, base.moved + head.moved)
    if is_private:
        # Norms of gradients: squares of inputs and output gradients of every layer, read once more.
        encoder = Work(encoder.operations * 1.1, encoder.moved * 1.2)
        classifier = Work(classifier.operations * 1.1, classifier.moved * 1.2)
    arcs = graph.num_arcs
    if is_private:
        arcs = int(graph.out_degrees.clip(max=model.max_degree).sum())
    out = graph.num_nodes * HIDDEN
    hop = Work(arcs * HIDDEN + 10 * out, arcs * (4 * HIDDEN + 4) + 4 * 2 * out)
    return {
        "encoder": encoder.times(epochs * REPEATS),
        "aggregate": hop.times(HOPS * REPEATS),
        "classifier": classifier.times(epochs * REPEATS),
    }


def measure(graph: Graph, level: str, folder: Path) -> tuple[GAP, dict[str, float]]:
    options: dict[str, Any] = {"level": level, "epsilon": 8.0 if level == "node" else 4.0}
    model = GAP(
        hops=HOPS,
        noise="fast",
        repeats=REPEATS,
        device="cpu",
        ledger=Ledger.init(folder / "ledger.sqlite").path,
        **options,
    )
    # The first fit calibrates.
    seconds = [model.fit(graph).seconds_ for _ in range(4)][1:]
    return model, {key: statistics.median(run[key] for run in seconds) for key in seconds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--operations", type=int, default=0, help="rows of torch's profile")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    graph = load_dataset(args.dataset, split_seed=0)
    speed, band = rates()
    print(
        f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, {date.today()}: "
        f"{speed / 1e9:.0f} Gop/s, {band / 1e9:.1f} GB/s"
    )
    print("\n| level | stage | seconds | Gop | GB | floor, seconds | times the floor |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for level in ("edge", "node"):
            model, seconds = measure(graph, level, Path(name))
            counted = stages(graph, model)
            for stage, work in counted.items():
                floor = max(work.operations / speed, work.moved / band)
                words = (
                    f"{seconds[stage]:.2f} | {work.operations / 1e9:.1f} | "
                    f"{work.moved / 1e9:.1f} | {floor:.2f} | {seconds[stage] / floor:.1f}"
                )
                print(f"| {level} | {stage} | {words} |", flush=True)
            rest = seconds["total"] - sum(seconds[stage] for stage in counted)
            print(f"| {level} | splits, checks, ledger, card, scores | {rest:.2f} | | | | |")
            if args.operations:
                with torch.profiler.profile() as profile:
                    model.fit(graph)
                averages = profile.key_averages()
                print(averages.table(sort_by="self_cpu_time_total", row_limit=args.operations))


if __name__ == "__main__":
    main()
