"""Accuracy of GAP and its competitors on public graphs.

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
from gapgnn import GAP, MLP, SAGE, Ledger, load_dataset
from gapgnn.evaluation.metrics import bootstrap_interval

SCHOOLS = ("facebook100/Cornell5", "facebook100/Rutgers89", "facebook100/Wisconsin87")
Settings = list[tuple[str, type, dict[str, Any]]]
DELTA = {"directed": 1e-7, "undirected": 1e-6, "node": 1e-5}


def gap(level: str, epsilon: float = 1.0, **options: Any) -> tuple[str, type, dict[str, Any]]:
    """Return one setting of GAP with its label: the paper's method unless messages are named."""
    chosen = {"messages": "features", "level": level, **options}
    name = {"features": "GAP", "labels": "labels", "both": "both"}[chosen["messages"]]
    if chosen.get("progressive") is True and name == "GAP":
        name = "ProGAP"
    words = [name, level]
    if level != "none":
        chosen["epsilon"] = epsilon
        words.append(f"epsilon {epsilon:g}")
    words += [f"{key}={value}" for key, value in options.items() if key != "messages"]
    return ", ".join(words), GAP, chosen


def mlp(level: str, epsilon: float = 8.0) -> tuple[str, type, dict[str, Any]]:
    """Return one setting of the MLP."""
    if level == "edge":
        return "MLP, edge, epsilon 0", MLP, {"level": level}
    return f"MLP-DP, node, epsilon {epsilon:g}", MLP, {"level": level, "epsilon": epsilon}


EXPERIMENTS: dict[str, Settings] = {
    "levels": [
        gap("none", hops=2),
        *(
            gap("edge", epsilon, hops=2, relation=relation)
            for relation in ("directed", "undirected")
            for epsilon in (1.0, 4.0)
        ),
        gap("node", 8.0, hops=2, max_degree=100),
    ],
    "floor": [
        mlp("edge"),
        *(
            gap("edge", 0.1, hops=hops, relation=relation)
            for relation in ("directed", "undirected")
            for hops in (1, 2)
        ),
    ],
    "messages": [
        *(
            gap("edge", epsilon, messages=messages, relation="directed")
            for epsilon in (0.5, 1.0, 4.0)
            for messages in ("features", "labels")
        ),
        *(gap("edge", epsilon, messages="labels") for epsilon in (0.5, 1.0, 4.0)),
    ],
    "node": [
        setting
        for epsilon in (1.0, 8.0)
        for setting in (
            mlp("node", epsilon),
            gap("node", epsilon, messages="features"),
            gap("node", epsilon, messages="labels", max_degree=100),
            gap("node", epsilon, messages="labels"),
        )
    ],
    "progap": [
        gap("edge", 1.0, progressive=True, relation="directed"),
        gap("edge", 4.0, progressive=True, relation="directed"),
        gap("node", 8.0, progressive=True),
    ],
    "others": [
        mlp("edge"),
        *(
            gap("edge", epsilon, messages=messages)
            for epsilon in (1.0, 4.0)
            for messages in ("features", "labels")
        ),
        *(
            setting
            for epsilon in (1.0, 8.0)
            for setting in (
                mlp("node", epsilon),
                gap("node", epsilon, messages="features"),
                gap("node", epsilon, messages="labels"),
            )
        ),
    ],
    "baselines": [
        mlp("edge"),
        mlp("node", 8.0),
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
        ("SAGE, node, epsilon 8", SAGE, {"level": "node", "epsilon": 8.0}),
        (
            "SAGE, node, epsilon 8, D=100",
            SAGE,
            {"level": "node", "epsilon": 8.0, "max_degree": 100},
        ),
    ],
}


def stated(method: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the papers' delta and fast noise, where a method uses them."""
    level = options["level"]
    if level == "none" or (level == "edge" and method is MLP):
        return options
    if level == "edge" and method is SAGE:
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
