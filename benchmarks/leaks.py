"""Attacks on labels and links of new graphs, and membership against overfitting.

    GAPGNN_DATA=... python benchmarks/leaks.py label-inference --json labels.jsonl
    GAPGNN_DATA=... python benchmarks/leaks.py inductive-links --datasets cora --json links.jsonl
    GAPGNN_DATA=... python benchmarks/leaks.py overfitting --datasets cora --json overfitting.jsonl

Each cell is one JSON line: the target, its budget, and the figures of every run. ``overfitting``
runs the membership attack of the paper against one model that is trained for longer and longer;
nothing else changes. docs/tables.py makes the tables of docs/explanation/results.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gapgnn import GAP, MLP, LabelGAP, NodeLabelGAP, load_dataset
from gapgnn.attacks import inductive_link_attack, label_inference_attack, membership_attack

FAST: dict[str, Any] = {"noise": "fast"}
NODE = {"level": "node", "epsilon": 8.0, **FAST}
OPEN = {"level": "none"}
METHODS = {"GAP": GAP, "LabelGAP": LabelGAP, "NodeLabelGAP": NodeLabelGAP, "MLP": MLP}
LABELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("NodeLabelGAP", NODE),
    ("GAP", NODE),
    ("MLP", NODE),
    ("LabelGAP", OPEN),
    ("GAP", OPEN),
    ("MLP", OPEN),
)
LINKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("LabelGAP", {"level": "edge", "epsilon": 1.0, **FAST}),
    ("LabelGAP", {"level": "edge", "epsilon": 8.0, **FAST}),
    ("GAP", {"level": "edge", "epsilon": 1.0, **FAST}),
    ("GAP", {"level": "edge", "epsilon": 8.0, **FAST}),
    ("LabelGAP", OPEN),
    ("GAP", OPEN),
)
EPOCHS = {"node": (2, 5, 10, 20, 40), "none": (5, 10, 20, 40, 100)}
OVERFITTING = tuple(
    ("MLP", {**options, "hidden": 64, "epochs": epochs})
    for options in (NODE, OPEN)
    for epochs in EPOCHS[options["level"]]
)
ATTACKS: dict[str, tuple[Callable[..., Any], tuple[tuple[str, dict[str, Any]], ...]]] = {
    "label-inference": (label_inference_attack, LABELS),
    "inductive-links": (inductive_link_attack, LINKS),
    "overfitting": (membership_attack, OVERFITTING),
}
KEPT = ("targets", "share", "pairs", "others", "published", "epoch", "setting", "guessing")


def cell(attack: str, dataset: str, place: int, runs: int, seed: int) -> dict[str, Any]:
    """Return the record of one target."""
    torch.set_num_threads(1)
    function, targets = ATTACKS[attack]
    name, options = targets[place]
    graph = load_dataset(dataset, split_seed=seed)
    start = time.perf_counter()
    estimator = METHODS[name](device="cpu", **options)
    found = function(estimator, graph, runs=runs, seed=seed).to_dict()
    return {
        "attack": attack,
        "dataset": dataset,
        "method": name,
        **{key: options.get(key) for key in ("level", "epsilon", "epochs")},
        **{key: found[key] for key in KEPT if key in found},
        "runs": [{key: round(value, 5) for key, value in run.items()} for run in found["runs"]],
        "seconds": round(time.perf_counter() - start, 1),
        "date": date.today().isoformat(),
        "machine": f"CPU, {platform.machine()}, 1 thread, torch {torch.__version__}",
    }


def cells(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return every record as soon as it is there."""
    _, targets = ATTACKS[args.attack]
    with ProcessPoolExecutor(args.jobs) as pool:
        waiting = [
            pool.submit(cell, args.attack, dataset, place, args.runs, args.seed)
            for dataset in args.datasets
            for place in range(len(targets))
        ]
        for done in as_completed(waiting):
            yield done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "social"])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append every record to this file")
    args = parser.parse_args()
    for one in cells(args):
        auc = sum(run["auc"] for run in one["runs"]) / len(one["runs"])
        named = [one[key] for key in ("dataset", "method", "level", "epsilon", "epochs")]
        print(*named, f"AUC {auc:.1%}, {one['seconds']} s", flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main()
