"""What ten repeats cost beside one, on a graph of Facebook's size: training together.

    python benchmarks/replicas.py [--dataset facebook100/Cornell5] [--device cuda] [--runs 3]

Seconds of whole fits (GAP, K = 2, fast noise), the median of the runs after the
first, which compiles, copies and calibrates.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from gapgnn import GAP, Ledger, load_dataset
from gapgnn.graph.graph import Graph


def seconds(graph: Graph, level: str, repeats: int, device: str, runs: int) -> float:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs + 1):
            model = GAP(
                level=level,
                epsilon=4.0 if level == "edge" else 8.0,
                noise="fast",
                repeats=repeats,
                device=device,
                ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
            ).fit(graph)
            found.append(model.seconds_["total"])
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    graph = load_dataset(options.dataset, split_seed=0)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {options.dataset}")
    for level in ("edge", "node"):
        one, ten = (
            seconds(graph, level, repeats, options.device, options.runs) for repeats in (1, 10)
        )
        print(f"  {level} level: one {one:.2f} s, ten {ten:.2f} s, ratio {ten / one:.2f}")


if __name__ == "__main__":
    main()
