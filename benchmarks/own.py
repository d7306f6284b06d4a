"""Node level: what a prediction may read of its own person, and what each choice is worth.

    GAPGNN_DATA=DIR python benchmarks/own.py --jobs 2 --markdown docs/generated/own.md
    python benchmarks/own.py --datasets cora pubmed --epsilons 1 4 --relation replace

Every cell is the mean test accuracy of independent repeats and half the width of its 95 % interval.
MLP (DP-SGD on features) is the line that reading edges must not fall below; `record` is joint
differential privacy, another promise than `nothing`.
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
from gapgnn import GAP, MLP, Ledger, load_dataset

# Two-sided 95 % points of Student's t, by the number of repeats.
STUDENT = {2: 12.71, 3: 4.30, 5: 2.78, 10: 2.26, 20: 2.09}
METHODS = {
    "MLP": (MLP, {}),
    "nothing": (GAP, {"own": "nothing"}),
    "features": (GAP, {"own": "features"}),
    "record": (GAP, {"own": "record"}),
}


def measured(job: tuple[str, str, float, dict[str, Any]]) -> str:
    """Return one cell."""
    dataset, method, epsilon, options = job
    torch.set_num_threads(1)
    estimator, chosen = METHODS[method]
    graph = load_dataset(dataset, split_seed=options["seed"])
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        given = {"level": "node", "epsilon": epsilon, "ledger": ledger, **options, **chosen}
        scores = [100 * score for score in estimator(**given).fit(graph).repeat_scores_]
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    half = STUDENT.get(len(scores), 1.96) * statistics.stdev(scores) / len(scores) ** 0.5
    return f"{statistics.mean(scores):.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    schools = [f"facebook100/{name}" for name in ("Cornell5", "Rutgers89", "Wisconsin87")]
    parser.add_argument("--datasets", nargs="+", default=schools)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--relation", default="add-remove", choices=["add-remove", "replace"])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    generated.add_option(parser)
    arguments = parser.parse_args()
    options = {
        name: getattr(arguments, name)
        for name in ("relation", "delta", "repeats", "seed", "noise", "device")
    }
    jobs = [
        (dataset, method, epsilon, options)
        for dataset in arguments.datasets
        for method in arguments.methods
        for epsilon in arguments.epsilons
    ]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        cells = list(pool.map(measured, jobs))
    width = len(arguments.epsilons)
    rows = [
        (jobs[place][0], jobs[place][1], *cells[place : place + width])
        for place in range(0, len(jobs), width)
    ]
    columns = ["data set", "reads", *(f"epsilon {epsilon:g}" for epsilon in arguments.epsilons)]
    body = generated.table(columns, rows)
    print(body)
    title = "Node level: what a prediction reads of its own person"
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
