"""Accuracy of every method on public graphs.

Run: python benchmarks/accuracy.py --experiment levels --repeats 10
Delta is stated as in the papers' tables, so that rows can be compared with theirs.
Prints one Markdown row per setting: data set, setting, mean test accuracy, 95 % interval, seconds.
`--markdown FILE` writes a table of settings by data sets (see benchmarks/generated.py).
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import generated
from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, Ledger, NodeLabelGAP, ProGAP, load_dataset
from gapgnn.evaluation.metrics import bootstrap_interval

SCHOOLS = ("facebook100/Cornell5", "facebook100/Rutgers89", "facebook100/Wisconsin87")
Settings = list[tuple[str, type, dict[str, Any]]]
DELTA = {"directed": 1e-7, "undirected": 1e-6, "node": 1e-5}


def setting(
    method: type, level: str, epsilon: float = 1.0, **options: Any
) -> tuple[str, type, dict[str, Any]]:
    """Return one setting of a method with its label."""
    chosen = {"level": level, **options}
    words = [method.__name__, level]
    if level != "none":
        chosen["epsilon"] = epsilon
        words.append(f"epsilon {epsilon:g}")
    words += [f"{key}={value}" for key, value in options.items()]
    return ", ".join(words), method, chosen


def mlp(level: str, epsilon: float = 8.0) -> tuple[str, type, dict[str, Any]]:
    """Return one setting of the MLP."""
    if level == "edge":
        return "MLP, edge, epsilon 0", MLP, {"level": level}
    return f"MLP-DP, node, epsilon {epsilon:g}", MLP, {"level": level, "epsilon": epsilon}


EXPERIMENTS: dict[str, Settings] = {
    "levels": [
        setting(GAP, "none"),
        *(
            setting(GAP, "edge", epsilon, relation=relation)
            for relation in ("directed", "undirected")
            for epsilon in (1.0, 4.0)
        ),
        setting(GAP, "node", 8.0),
    ],
    "floor": [
        mlp("edge"),
        *(
            setting(GAP, "edge", 0.1, hops=hops, relation=relation)
            for relation in ("directed", "undirected")
            for hops in (1, 2)
        ),
    ],
    "messages": [
        *(
            setting(method, "edge", epsilon, relation="directed")
            for epsilon in (0.5, 1.0, 4.0)
            for method in (GAP, LabelGAP)
        ),
        *(setting(LabelGAP, "edge", epsilon) for epsilon in (0.5, 1.0, 4.0)),
    ],
    "node": [
        one
        for epsilon in (1.0, 8.0)
        for one in (
            mlp("node", epsilon),
            setting(GAP, "node", epsilon),
            setting(NodeLabelGAP, "node", epsilon),
        )
    ],
    "progap": [
        setting(ProGAP, "edge", 1.0, relation="directed"),
        setting(ProGAP, "edge", 4.0, relation="directed"),
        setting(ProGAP, "node", 8.0),
    ],
    "others": [
        mlp("edge"),
        *(setting(method, "edge", epsilon) for epsilon in (1.0, 4.0) for method in (GAP, LabelGAP)),
        *(
            one
            for epsilon in (1.0, 8.0)
            for one in (
                mlp("node", epsilon),
                setting(GAP, "node", epsilon),
                setting(NodeLabelGAP, "node", epsilon),
            )
        ),
    ],
    "baselines": [
        mlp("edge"),
        mlp("node", 8.0),
        ("SAGE, none, 2 layers", GraphSAGE, {"level": "none", "layers": 2}),
        *(
            (
                f"SAGE, edge, ARR, epsilon {epsilon:g}, {layers} layers, directed",
                GraphSAGE,
                {"level": "edge", "epsilon": epsilon, "layers": layers, "relation": "directed"},
            )
            for epsilon in (1.0, 4.0, 8.0)
            for layers in (1, 2)
        ),
        ("SAGE, node, epsilon 8", GraphSAGE, {"level": "node", "epsilon": 8.0}),
        (
            "SAGE, node, epsilon 8, D=100",
            GraphSAGE,
            {"level": "node", "epsilon": 8.0, "max_degree": 100},
        ),
    ],
}


def stated(method: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the papers' delta and fast noise, where a method uses them."""
    level = options["level"]
    if level == "none" or (level == "edge" and method is MLP):
        return options
    if level == "edge" and method is GraphSAGE:
        return {"noise": "fast", **options}
    relation = options.get("relation", "undirected") if level == "edge" else "node"
    return {"delta": DELTA[relation], "noise": "fast", **options}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="levels")
    parser.add_argument("--only", default="", metavar="WORDS", help="settings that contain this")
    parser.add_argument("--datasets", nargs="+", default=list(SCHOOLS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    generated.add_option(parser)
    args = parser.parse_args()
    print(f"{generated.machine(args.device)}, {date.today()}, {args.repeats} repeats")
    print("| data set | setting | test accuracy | 95 % interval | seconds |\n|---|---|---|---|---|")
    settings = [one for one in EXPERIMENTS[args.experiment] if args.only in one[0]]
    cells: dict[str, list[str]] = {label: [] for label, _, _ in settings}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.datasets:
            graph = load_dataset(name, split_seed=args.seed)
            for label, method, options in settings:
                model = method(
                    **stated(method, options),
                    repeats=args.repeats,
                    seed=args.seed,
                    device=args.device,
                    ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
                ).fit(graph)
                runs = model.repeat_scores_
                accuracy, (low, high) = sum(runs) / len(runs), bootstrap_interval(runs)
                shown = f"{100 * accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})"
                cells[label].append(shown)
                print(
                    f"| {name} | {label} | {accuracy:.1%} | {low:.1%} to {high:.1%} | "
                    f"{model.seconds_['total']:.1f} |",
                    flush=True,
                )
    title = f"{args.experiment}: test accuracy in percent, mean of {args.repeats} repeats"
    table = generated.table(["", *args.datasets], ([label, *row] for label, row in cells.items()))
    generated.write(args.markdown, f"{title} (95 % interval)", table, device=args.device)


if __name__ == "__main__":
    main()
