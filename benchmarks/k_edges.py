"""Between edge and node level: accuracy against the number of one person's links that are hidden.

    GAPGNN_DATA=DIR python benchmarks/k_edges.py --jobs 2 --markdown docs/generated/k-edges.md
    python benchmarks/k_edges.py --datasets social --links 1 3 9 --epsilons 1

LabelGAP as it is by default, with `relation="k-edges"`, and NodeLabelGAP at node level. Every cell
is the mean test accuracy of independent repeats, with the lowest and the highest of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import generated
from gapgnn import LabelGAP, Ledger, NodeLabelGAP, load_dataset
from gapgnn.privacy import Neighbors, parse_relation

NODE = "node level"


def fitted(job: tuple[str, str, float, dict[str, Any]]) -> list[float]:
    """Return the test accuracies of one cell, in points."""
    dataset, row, epsilon, options = job
    torch.set_num_threads(1)
    graph = load_dataset(dataset, split_seed=options["seed"])
    method, terms = (NodeLabelGAP, {}) if row == NODE else (LabelGAP, {"relation": row})
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        model = method(epsilon=epsilon, ledger=ledger, **terms, **options).fit(graph)
        return [100 * score for score in model.repeat_scores_]


def cell(scores: list[float]) -> str:
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["facebook100/Cornell5"])
    parser.add_argument("--links", nargs="+", type=int, default=[1, 2, 5, 10, 20, 50])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    generated.add_option(parser)
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("repeats", "seed", "noise", "device")}
    relations = [parse_relation(f"{count}-edges").name for count in arguments.links]
    jobs = [
        (dataset, row, epsilon, options)
        for dataset in arguments.datasets
        for row in (*relations, NODE)
        for epsilon in arguments.epsilons
    ]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        cells = [cell(scores) for scores in pool.map(fitted, jobs)]
    width = len(arguments.epsilons)
    rows = []
    for place in range(0, len(jobs), width):
        dataset, row, *_ = jobs[place]
        moved = "-" if row == NODE else f"{Neighbors.bound(parse_relation(row)):.2f}"
        rows.append((dataset, row, moved, *cells[place : place + width]))
    budgets = (f"epsilon {epsilon:g}" for epsilon in arguments.epsilons)
    body = generated.table(["data set", "hidden", "sensitivity of a hop", *budgets], rows)
    print(body)
    title = "Accuracy against the number of one person's links that are hidden"
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
