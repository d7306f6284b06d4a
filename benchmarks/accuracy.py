"""Accuracy of GAP and its competitors on the Facebook100 schools, next to the numbers to meet.

Run: python benchmarks/accuracy.py --repeats 10
Prints one Markdown row per setting: data set, setting, mean test accuracy, 95 % interval, seconds.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gapgnn import GAP, MLP, SAGE, load_dataset
from gapgnn.evaluation.metrics import bootstrap_interval

SCHOOLS = ("facebook100/Cornell5", "facebook100/Rutgers89", "facebook100/Wisconsin87")
EDGE_SETTINGS = [
    ("edge", epsilon, relation) for relation in ("directed", "auto") for epsilon in (1, 4)
]
EXPERIMENTS: dict[str, list[tuple[str, type, dict[str, Any]]]] = {
    "levels": [
        ("none, K=2", GAP, {"level": "none"}),
        *(
            (
                f"{level}, epsilon {epsilon}, K=2, {relation}",
                GAP,
                {"level": level, "epsilon": float(epsilon), "relation": relation},
            )
            for level, epsilon, relation in EDGE_SETTINGS
        ),
        ("node, epsilon 8, K=2, D=100", GAP, {"level": "node", "epsilon": 8.0}),
    ],
    "floor": [
        ("MLP", MLP, {"level": "edge"}),
        *(
            (
                f"edge, epsilon 0.1, K={hops}, directed",
                GAP,
                {"level": "edge", "epsilon": 0.1, "hops": hops, "relation": "directed"},
            )
            for hops in (1, 2)
        ),
        *(
            (f"edge, epsilon 0.1, K={hops}", GAP, {"level": "edge", "epsilon": 0.1, "hops": hops})
            for hops in (1, 2)
        ),
    ],
    "baselines": [
        ("MLP, edge", MLP, {"level": "edge"}),
        ("MLP-DP, node, epsilon 8", MLP, {"level": "node", "epsilon": 8.0}),
        ("SAGE, none, 2 layers", SAGE, {"level": "none", "layers": 2}),
        *(
            (
                f"SAGE, edge, ARR, epsilon {epsilon:g}, {layers} layers, directed",
                SAGE,
                {"level": "edge", "epsilon": epsilon, "layers": layers, "relation": "directed"},
            )
            for epsilon in (1.0, 4.0, 8.0)
            for layers in (1, 2)
        ),
        ("SAGE, node, epsilon 8, D=100", SAGE, {"level": "node", "epsilon": 8.0}),
    ],
    "node": [
        ("MLP-DP, node, epsilon 1", MLP, {"level": "node", "epsilon": 1.0}),
        ("GAP, node, epsilon 1", GAP, {"level": "node", "epsilon": 1.0}),
        ("MLP-DP, node, epsilon 8", MLP, {"level": "node", "epsilon": 8.0}),
        ("GAP, node, epsilon 8", GAP, {"level": "node", "epsilon": 8.0}),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="levels")
    parser.add_argument("--datasets", nargs="+", default=list(SCHOOLS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    print(f"{machine}, torch {torch.__version__}, {date.today()}, {args.repeats} repeats")
    print("| data set | setting | test accuracy | 95 % interval | seconds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.datasets:
            graph = load_dataset(name, split_seed=args.seed)
            for label, method, options in EXPERIMENTS[args.experiment]:
                model = method(
                    **options,
                    noise="fast",
                    repeats=args.repeats,
                    seed=args.seed,
                    device=args.device,
                    ledger=Path(folder) / "ledger.sqlite",
                ).fit(graph)
                runs = model.repeat_scores_
                low, high = bootstrap_interval(runs)
                print(
                    f"| {name} | {label} | {sum(runs) / len(runs):.1%} | {low:.1%} to {high:.1%} | "
                    f"{model.seconds_['total']:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
