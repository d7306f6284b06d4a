"""The attack tables: node membership beside the paper's, and link attacks beside their control.

    GAPGNN_DATA=... python benchmarks/attacks.py membership --json cells.jsonl
    GAPGNN_DATA=... python benchmarks/attacks.py membership --methods mlp --epsilons 8 inf --runs 2
    GAPGNN_DATA=... python benchmarks/attacks.py links --datasets facebook100/Cornell5 pubmed
    python benchmarks/attacks.py table cells.jsonl more.jsonl

Prints a Markdown row per cell as it is measured, and the tables at the end. ``--json FILE`` appends
every cell as one JSON object, so that several processes can share the work and ``table`` puts
their cells together; ``--markdown FILE`` writes the table of one process (benchmarks/generated.py).
In the setting of the paper (TSTF) every model is trained on a graph of its own, so the models of a
cell cannot be replicas of one training.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import generated
from gapgnn import GAP, MLP, GraphSAGE, load_dataset, recommended_method
from gapgnn.attacks.links import link_stealing_attack, linkteller_attack
from gapgnn.attacks.membership import membership_attack
from gapgnn.evaluation.metrics import bootstrap_interval
from gapgnn.evaluation.report.tables import published
from gapgnn.methods import method_class


def recommended(*, level: str, **options: Any) -> Any:
    """Return the recommended method of a level: LabelGAP, and at node level NodeLabelGAP."""
    return method_class(recommended_method(level))(level=level, **options)


METHODS: dict[str, Callable[..., Any]] = {
    "gap": GAP,
    "recommended": recommended,
    "sage": GraphSAGE,
    "mlp": MLP,
}
PAPERS_GRAPH = "facebook100/UIllinois20"
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "sage-inf": ("sage", {"level": "none"}),
    "gap-inf": ("gap", {"level": "none"}),
    "recommended-inf": ("recommended", {"level": "none"}),
    "gap-1": ("gap", {"level": "edge", "epsilon": 1.0}),
    "recommended-1": ("recommended", {"level": "edge", "epsilon": 1.0}),
    "mlp": ("mlp", {"level": "none"}),
}
LINKS = (
    "linkteller held-out",
    "linkteller all",
    "link-stealing held-out",
    "link-stealing degree",
    "link-stealing uniform",
)
Cell = dict[str, Any]


def membership_cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Attack every method at every epsilon at node level, and without privacy at inf."""
    for dataset in args.datasets:
        graph = load_dataset(dataset, split_seed=args.seed)
        for method in args.methods:
            for epsilon in args.epsilons:
                options: dict[str, Any] = {"hidden": args.hidden, "device": args.device}
                options["noise"] = "fast"
                if math.isfinite(epsilon):
                    options |= {"level": "node", "epsilon": epsilon}
                else:
                    options["level"] = "none"
                for on in args.on:
                    small = 1_000 if on == "small" else None
                    start = time.perf_counter()
                    estimator = METHODS[method](**options)
                    found = membership_attack(
                        estimator,
                        graph,
                        runs=args.runs,
                        on="shadow" if on == "shadow" else "target",
                        epoch=args.epoch,
                        target_per_class=small,
                        seed=args.seed,
                    ).to_dict()
                    yield {
                        "table": "membership",
                        "method": method,
                        "name": type(estimator).__name__,
                        "measured_on": on,
                        "seconds": time.perf_counter() - start,
                        **{key: found[key] for key in _KEPT if key in found},
                        "runs": [run["auc"] for run in found["runs"]],
                    }


_KEPT = (
    "auc",
    "tpr_at_1pct_fpr",
    "member_accuracy",
    "other_accuracy",
    "epsilon",
    "epoch",
    "dataset",
    "shadows",
)


def link_cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Run the link attacks against every target, over seeds."""
    for dataset in args.datasets:
        graph = load_dataset(dataset, split_seed=args.seed)
        for target in args.targets:
            method, options = TARGETS[target]
            for words in args.attacks:
                attack, others = words.split()
                start, runs = time.perf_counter(), []
                for seed in range(args.seed, args.seed + args.runs):
                    estimator = METHODS[method](device=args.device, **options)
                    if attack == "linkteller":
                        settings = {"nodes": args.watch, "others": others, "seed": seed}
                        found = linkteller_attack(estimator, graph, **settings)
                    else:
                        settings = {"others": others, "seed": seed}
                        found = link_stealing_attack(estimator, graph, **settings)
                    runs.append(found.to_dict())
                yield {
                    "table": "links",
                    "dataset": graph.name,
                    "target": target,
                    "attack": attack,
                    "others": others,
                    "auc": mean(run["auc"] for run in runs),
                    "control": mean(run["control"]["auc"] for run in runs),
                    "gain": mean(run["gain_auc"] for run in runs),
                    "tpr_at_1pct_fpr": mean(run["tpr_at_1pct_fpr"] for run in runs),
                    "runs": [run["gain_auc"] for run in runs],
                    "seconds": time.perf_counter() - start,
                }


def membership_table(cells: list[Cell]) -> str:
    """Return the membership table, AUC in percent with 95 % intervals, beside the paper's row."""
    lines = [
        "| target | epsilon | measured on | AUC (95 % interval, runs) | hits at 1 % false alarms | "
        "accuracy on members / others | paper, Facebook |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        method, epsilon = cell["method"], cell["epsilon"]
        low, high = bootstrap_interval(cell["runs"])
        is_last = "" if cell["epoch"] == "last" else f", {cell['epoch']} epoch"
        level = "none" if epsilon is None else "node"
        paper = published(PAPERS_GRAPH, method, level, epsilon, experiment="membership")
        lines.append(
            f"| {cell['name']}{is_last} | {'inf' if epsilon is None else f'{epsilon:g}'} "
            f"| {cell['measured_on']} | {cell['auc']:.1%} ({low:.1%} to {high:.1%}, "
            f"{len(cell['runs'])}) | {cell['tpr_at_1pct_fpr']:.1%} "
            f"| {cell['member_accuracy']:.1%} / {cell['other_accuracy']:.1%} "
            f"| {'' if paper is None else f'{paper:.1%}'} |"
        )
    return "\n".join(lines)


def links_table(cells: list[Cell]) -> str:
    """Return the table of link attacks: AUC in percent, gain in points over the control."""
    lines = [
        "| graph | attack | unconnected pairs | target | attack | control | gain (runs) |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        gains = ", ".join(f"{100 * gain:.1f}" for gain in cell["runs"])
        lines.append(
            f"| {cell['dataset']} | {cell['attack']} | {cell['others']} | {cell['target']} "
            f"| {cell['auc']:.1%} | {cell['control']:.1%} | {100 * cell['gain']:.1f} ({gains}) |"
        )
    return "\n".join(lines)


PRINTED = {"membership": membership_table, "links": links_table}
TITLES = {
    "membership": "Membership attacks: AUC and accuracy",
    "links": "Link attacks: AUC, and gain over the control in points",
}


def main() -> None:
    args = _parsed()
    if args.command == "table":
        cells = [json.loads(line) for file in args.files for line in file.read_text().splitlines()]
    else:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        print(f"{platform.machine()}, {device}, torch {torch.__version__}, {date.today()}")
        measured = membership_cells if args.command == "membership" else link_cells
        cells = []
        for cell in measured(args):
            cells.append(cell)
            row = PRINTED[cell["table"]]([cell]).splitlines()[-1]
            print(f"{row} {cell['seconds']:.0f} s", flush=True)
            if args.json is not None:
                with args.json.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
    for name, table in PRINTED.items():
        chosen = [cell for cell in cells if cell["table"] == name]
        if chosen:
            print(f"\n{table(chosen)}")
    if args.command != "table":
        generated.write(
            args.markdown, TITLES[args.command], PRINTED[args.command](cells), device=args.device
        )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--datasets", nargs="+", default=["facebook100/Cornell5"])
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--device", default="auto")
    shared.add_argument("--json", type=Path, help="append every cell to this file")
    generated.add_option(shared)
    some = commands.add_parser("membership", parents=[shared])
    some.add_argument("--runs", type=int, default=10)
    some.add_argument("--methods", nargs="+", choices=METHODS, default=["gap", "sage", "mlp"])
    some.add_argument("--epsilons", nargs="+", type=float, default=[1, 4, 8, 16, math.inf])
    some.add_argument(
        "--on",
        nargs="+",
        choices=["target", "small", "shadow"],
        default=["target", "shadow"],
        help="small: a target of 1,000 nodes per class, as the shadow",
    )
    some.add_argument("--epoch", choices=["last", "best"], default="last")
    some.add_argument("--hidden", type=int, default=64)
    some = commands.add_parser("links", parents=[shared])
    some.add_argument("--runs", type=int, default=3)
    some.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    some.add_argument("--attacks", nargs="+", choices=LINKS, default=list(LINKS))
    some.add_argument("--watch", type=int, default=400, help="nodes LinkTeller watches")
    some = commands.add_parser("table")
    some.add_argument("files", nargs="+", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
