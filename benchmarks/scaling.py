"""Does the cost grow with the number of arcs alone? Time per arc from 1 to 100 million arcs.

    python benchmarks/scaling.py                                   # prints, and draws the plot
    python benchmarks/scaling.py --arcs 1e6 1e7 --figure ""        # quicker, prints only

Every node has 45 arcs, as on Amazon on average. There are two sorts of graphs: `near`, whose arcs
lead at most 8,192 places away, so that the rows a sum reads are in cache whatever the size of the
graph; and `anywhere`, whose rows leave the cache as the graph grows. The bare product of int32 CSR
beside it shows how much of that is the memory's doing.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch

from aggregation import product_and_hops
from gapgnn import GAP, Ledger
from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms import row_normalise

DEGREE, COLUMNS, WINDOW = 45, 16, 16_384
BLOCK = 1 << 18


def regular_graph(num_arcs: int, locality: str) -> Graph:
    """Return a graph with 45 different out-neighbours per node, drawn at random."""
    nodes = max(num_arcs // DEGREE, WINDOW)
    width = WINDOW if locality == "near" else nodes
    rng = np.random.default_rng(0)
    indices = np.empty((nodes, DEGREE), dtype=np.int32)
    for start in range(0, nodes, BLOCK):
        rows = np.arange(start, min(start + BLOCK, nodes))[:, None]
        # Sorted draws with their rank added are all different.
        away = np.sort(rng.integers(1, width - DEGREE, (len(rows), DEGREE)), axis=1)
        away += np.arange(DEGREE) - width // 2
        indices[rows[:, 0]] = np.sort((rows + away) % nodes, axis=1)
    split = rng.random(nodes)
    # Built directly: sorting and checking arcs is not what is measured here.
    return Graph(
        indptr=np.arange(nodes + 1, dtype=np.int64) * DEGREE,
        indices=indices.reshape(-1),
        features=rng.standard_normal((nodes, COLUMNS), dtype=np.float32),
        labels=rng.integers(0, 4, nodes),
        train_mask=split < 0.75,
        val_mask=(split >= 0.75) & (split < 0.85),
        test_mask=split >= 0.85,
        ids=np.arange(nodes),
        is_directed=True,
    )


def seconds_of(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(graph: Graph, rounds: int) -> dict[str, float]:
    """Return nanoseconds per arc of the bare product, of hops, and of a short training."""
    rows = row_normalise(torch.from_numpy(np.asarray(graph.features)))
    works = product_and_hops(graph, rows)
    found = {}
    for name, work in works.items():
        work()
        found[name] = seconds_of(work, rounds)
    with tempfile.TemporaryDirectory() as folder:
        model = GAP(
            epsilon=4.0,
            noise="fast",
            epochs=2,
            device="cpu",
            ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
        )
        found["whole fit, 2 + 2 epochs"] = seconds_of(lambda: model.fit(graph), 1)
    return {name: 1e9 * seconds / graph.num_arcs for name, seconds in found.items()}


def warm_up() -> None:
    """Load and start everything once, outside the figures."""
    measure(regular_graph(1_000_000, "near"), 1)


def draw(results: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    from importlib.resources import as_file, files

    from matplotlib import style
    from matplotlib.figure import Figure

    with as_file(files("gapgnn.evaluation") / "gapgnn.mplstyle") as sheet:
        style.use(sheet)
    figure = Figure(figsize=(6.2, 3.2))
    marks = dict(zip(next(iter(results["near"].values())), "so^D", strict=True))
    for axes, (locality, cells) in zip(
        figure.subplots(1, 2, sharey=True), results.items(), strict=True
    ):
        for name, mark in marks.items():
            axes.plot(list(cells), [cell[name] for cell in cells.values()], marker=mark, label=name)
        axes.set(xscale="log", yscale="log", xlabel="arcs", title=f"arcs lead {locality}")
    figure.axes[0].set_ylabel("nanoseconds per arc")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arcs", nargs="+", type=float, default=[1e6, 3e6, 1e7, 3e7, 1e8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--figure", default="docs/figures/scaling.svg")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, {date.today()}"
    )
    warm_up()
    results: dict[str, dict[int, dict[str, float]]] = {"near": {}, "anywhere": {}}
    names: list[str] = []
    for locality, cells in results.items():
        for arcs in args.arcs:
            graph = regular_graph(int(arcs), locality)
            cells[graph.num_arcs] = measure(graph, args.rounds)
            if not names:
                names = list(cells[graph.num_arcs])
                print("\n| arcs lead | nodes | arcs | " + " | ".join(names) + " |")
                print("|---" * (3 + len(names)) + "|")
            words = [f"{value:.1f}" for value in cells[graph.num_arcs].values()]
            sizes = f"{locality} | {graph.num_nodes:,} | {graph.num_arcs:,}"
            print(f"| {sizes} | " + " | ".join(words) + " |", flush=True)
        most = [
            max(c[n] for c in cells.values()) / min(c[n] for c in cells.values()) for n in names
        ]
        print(
            f"| {locality}, largest by smallest | | | "
            + " | ".join(f"{m:.2f}" for m in most)
            + " |"
        )
    if args.figure:
        draw(results, Path(args.figure))


if __name__ == "__main__":
    main()
