"""The recommended method with its defaults, on any data sets: how far it is from the others.

    GAPGNN_DATA=DIR python benchmarks/frozen.py --datasets facebook100/Yale4 --jobs 2
    python benchmarks/frozen.py --level node --relation replace --epsilons 1 4 8 16 \\
        --out frozen-node.jsonl --markdown docs/generated/frozen-node.md

Defaults were chosen on the development graphs alone (DEVELOPMENT below). Everything else is only
reported, and a data set that nobody has looked at is one more name. Every cell is a fit of
independent repeats on splits of one seed; with --out finished cells are kept and not run again.
Several seeds are pooled: on small graphs ten repeats leave a point to chance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import generated
from gapgnn import (
    GAP,
    MLP,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NodeLabelGAP,
    ProGAP,
    load_dataset,
)

DEVELOPMENT = (
    *("social", "facebook100/Cornell5", "facebook100/Rutgers89", "facebook-page-page"),
    *("cora", "amazon-computers", "chameleon"),
)
REPORTED = (
    *("facebook100/Wisconsin87", "pubmed", "citeseer", "amazon-photo", "squirrel", "actor"),
    *("github", "tolokers", "minesweeper"),
)
RECOMMENDED: dict[str, type] = {"edge": LabelGAP, "node": NodeLabelGAP}
RIVALS: dict[str, dict[str, tuple[type, dict[str, Any]]]] = {
    "edge": {
        "MLP": (MLP, {}),
        "GAP": (GAP, {}),
        "ProGAP": (ProGAP, {}),
        "SAGE": (GraphSAGE, {}),
        "0.1": (LabelGAP, {"folds": 0, "directions": "along"}),
    },
    "node": {
        "MLP-DP": (MLP, {}),
        "GAP": (GAP, {}),
        "ProGAP": (ProGAP, {}),
        "SAGE": (GraphSAGE, {}),
    },
}
Cell = dict[str, Any]
NAMES = ("level", "dataset", "method", "epsilon", "relation", "delta", "repeats", "seed", "noise")


def measured(cell: Cell) -> Cell:
    """Run one cell and return it with its test accuracies."""
    torch.set_num_threads(1)
    own = RECOMMENDED[cell["level"]]
    estimator, chosen = {own.__name__: (own, {}), **RIVALS[cell["level"]]}[cell["method"]]
    graph = load_dataset(cell["dataset"], split_seed=cell["seed"])
    given = {name: cell[name] for name in ("level", "repeats", "seed", "device")}
    if estimator is not MLP or cell["level"] == "node":
        given |= {name: cell[name] for name in ("epsilon", "relation", "delta", "noise")}
    if estimator is GraphSAGE and cell["level"] == "edge":
        del given["delta"]  # randomised edges have none
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        model = estimator(ledger=ledger, **given, **chosen).fit(graph)
        scores = [round(100 * float(score), 3) for score in model.repeat_scores_]
        made = {"date": f"{date.today()}", "machine": generated.machine(cell["device"])}
        return {**cell, **made, "scores": scores}


def planned(arguments: argparse.Namespace) -> Iterator[Cell]:
    shared = {
        name: getattr(arguments, name)
        for name in ("level", "relation", "delta", "repeats", "noise", "device")
    }
    recommended = RECOMMENDED[arguments.level].__name__
    for seed, dataset in product(arguments.seed, arguments.datasets):
        for method in (recommended, *arguments.methods):
            # Below node level an MLP reads no edge, and its budget means nothing.
            is_free = method == "MLP"
            for epsilon in arguments.epsilons[:1] if is_free else arguments.epsilons:
                own = {"seed": seed, "dataset": dataset, "method": method, "epsilon": epsilon}
                yield shared | own


def name_of(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell[name] for name in NAMES)


def finished(path: Path | None) -> dict[tuple[Any, ...], Cell]:
    if path is None or not path.exists():
        return {}
    cells = (json.loads(line) for line in path.read_text("utf-8").splitlines() if line)
    return {name_of(cell): cell for cell in cells}


def run(cells: list[Cell], arguments: argparse.Namespace) -> dict[tuple[Any, ...], Cell]:
    known = finished(arguments.out)
    waiting = [cell for cell in cells if name_of(cell) not in known]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(measured, cell) for cell in waiting]
        for number, task in enumerate(as_completed(tasks), start=1):
            cell = task.result()
            known[name_of(cell)] = cell
            if arguments.out is not None:
                with arguments.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(cell) + "\n")
            words = (cell["dataset"], cell["method"], f"epsilon {cell['epsilon']:g}")
            mean = statistics.mean(cell["scores"])
            print(f"[{number}/{len(waiting)}]", *words, f"{mean:.2f}", flush=True)
    return known


def tables(
    known: dict[tuple[Any, ...], Cell], cells: list[Cell], arguments: argparse.Namespace
) -> tuple[str, str]:
    """Return accuracies and differences, and how the differences are distributed."""
    scores = defaultdict(list)
    for cell in cells:
        place = cell["dataset"], cell["method"], cell["epsilon"]
        scores[place] += known[name_of(cell)]["scores"]
    means = {place: statistics.mean(found) for place, found in scores.items()}
    recommended = RECOMMENDED[arguments.level].__name__
    first = arguments.epsilons[0]
    rows, differences = [], {method: [] for method in (*arguments.methods, "best of them")}
    for dataset in arguments.datasets:
        for epsilon in arguments.epsilons:
            own = means[dataset, recommended, epsilon]
            others = {
                method: means[dataset, method, first if method == "MLP" else epsilon]
                for method in arguments.methods
            }
            for method, other in {**others, "best of them": max(others.values())}.items():
                differences[method].append(own - other)
            shown = (f"{other:.1f} ({own - other:+.1f})" for other in others.values())
            # With and without directions a graph is the same graph.
            graph = dataset.removesuffix("_directed")
            role = "development" if graph in DEVELOPMENT else "reported"
            rows.append((dataset, role, f"{epsilon:g}", f"{own:.1f}", *shown))
    heads = ("data set", "role", "epsilon", recommended, *arguments.methods)
    spread = []
    for method, found in differences.items():
        quarters = (
            statistics.quantiles(found, n=4, method="inclusive")
            if len(found) > 1
            else [found[0]] * 3
        )
        numbers = (min(found), *quarters, max(found))
        below = sum(one < -arguments.tolerance for one in found)
        shown = (f"{number:+.1f}" for number in numbers)
        spread.append((method, *shown, f"{below} of {len(found)}"))
    beyond = f"below by more than {arguments.tolerance:g}"
    heads_of_spread = ("minus", "least", "lower quarter", "median", "upper quarter", "most", beyond)
    return generated.table(heads, rows), generated.table(heads_of_spread, spread)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--level", default="edge", choices=list(RIVALS))
    parser.add_argument("--datasets", nargs="+", default=[*DEVELOPMENT, *REPORTED])
    parser.add_argument(
        "--methods", nargs="+", help="what the recommended method is compared with (all)"
    )
    parser.add_argument("--epsilons", nargs="+", type=float, help="(edge 0.5 1 4, node 1 4 8 16)")
    parser.add_argument("--relation", default="auto")
    parser.add_argument("--delta", default="auto", type=lambda w: w if w == "auto" else float(w))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, nargs="+", default=[900], help="of the splits (900)")
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tolerance", type=float, default=0.3, help="points (0.3)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="finished cells, one a line")
    generated.add_option(parser)
    arguments = parser.parse_args()
    rivals = RIVALS[arguments.level]
    if unknown := sorted(set(arguments.methods or ()) - set(rivals)):
        parser.error(f"at level {arguments.level} there is {', '.join(rivals)}. Got {unknown[0]}.")
    arguments.methods = arguments.methods or list(rivals)
    budgets = {"edge": [0.5, 1.0, 4.0], "node": [1.0, 4.0, 8.0, 16.0]}
    arguments.epsilons = arguments.epsilons or budgets[arguments.level]
    cells = list(planned(arguments))
    body, spread = tables(run(cells, arguments), cells, arguments)
    print(body, spread, sep="\n\n")
    title = f"Frozen defaults at {arguments.level} level, relation {arguments.relation}"
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
