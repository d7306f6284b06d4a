"""Lower bounds of `gapgnn audit fit` beside the claim, their coverage, and the time they take.

    GAPGNN_DATA=... python benchmarks/fit_audits.py bounds --json bounds.jsonl
    python benchmarks/fit_audits.py coverage --json coverage.jsonl
    GAPGNN_DATA=... python benchmarks/fit_audits.py time --json time.jsonl
    python benchmarks/fit_audits.py claims --json claims.jsonl

``bounds`` fits each cell several times, each run with other canaries and coins, and never repeats a
run that ended above the claim. ``coverage`` counts how often that happens in 200 fits of small
graphs. ``time`` compares an audit with a fit of the same configuration. ``claims`` runs
`gapgnn audit claim` on each program of examples/claims. docs/tables.py makes the
tables of docs/explanation/audits.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gapgnn import GAP, LabelGAP, NodeLabelGAP, load_dataset
from gapgnn.attacks import fitted
from gapgnn.audits import audit_claim, audit_fit
from gapgnn.graph import Graph, random_split
from gapgnn.graph.datasets.synthetic import social_graph

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "2 CPU cores, shared with other work; one thread"
CELLS: tuple[tuple[Any, dict[str, Any], int], ...] = (
    (LabelGAP, {"epsilon": 1.0}, 10_000),
    (LabelGAP, {"epsilon": 4.0}, 1_000),
    (LabelGAP, {"epsilon": 8.0}, 1_000),
    (GAP, {"level": "edge", "epsilon": 4.0}, 1_000),
    (NodeLabelGAP, {"epsilon": 8.0}, 1_000),
)


def bounds(graph: Graph, runs: int) -> Iterator[dict[str, Any]]:
    for method, options, canaries in CELLS:
        found = []
        for seed in range(runs):
            report = audit_fit(method(**options), graph, canaries=canaries, runs=1, seed=seed)
            found.append(
                {
                    "bound": round(report.epsilon_lower_bound, 4),
                    "mu": report.details.get("mu"),
                    "checks_hold": all(check.holds for check in report.checks),
                    "black_box": report.details["black_box"]["epsilon_lower_bound"],
                    "dp_sgd": report.details.get("dp_sgd", {}).get("epsilon_lower_bound"),
                }
            )
        yield {
            "method": method.__name__,
            "level": report.details["level"],
            "epsilon": options["epsilon"],
            "delta": report.delta,
            "canaries": canaries,
            "runs": found,
        }


def coverage(fits: int) -> Iterator[dict[str, Any]]:
    cases: tuple[tuple[str, Any, int], ...] = (
        ("LabelGAP", LabelGAP(epsilon=4.0, hops=2, folds=0, epochs=1), 100),
        ("NodeLabelGAP", NodeLabelGAP(epsilon=4.0, own="record", epochs=1), 100),
        ("GAP", GAP(level="edge", epsilon=4.0, epochs=1), 100),
    )
    for name, estimator, canaries in cases:
        graph = random_split(social_graph(num_nodes=400, mean_degree=6), seed=0)
        reports = [
            audit_fit(estimator, graph, canaries=canaries, runs=1, seed=seed)
            for seed in range(fits)
        ]
        yield {
            "method": name,
            "level": estimator.level,
            "epsilon": 4.0,
            "canaries": canaries,
            "fits": fits,
            "above": sum(not report.bound_holds for report in reports),
            "checks_failed": sum(not check.holds for report in reports for check in report.checks),
        }


def times(graph: Graph, runs: int) -> Iterator[dict[str, Any]]:
    for method, options, canaries in CELLS:
        seconds: dict[str, list[float]] = {"fit": [], "audit": []}
        for seed in range(runs):
            start = time.process_time()
            with fitted(method(**options), graph, repeats=1):
                seconds["fit"].append(time.process_time() - start)
            start = time.process_time()
            audit_fit(method(**options), graph, canaries=canaries, runs=1, seed=seed)
            seconds["audit"].append(time.process_time() - start)
        yield {
            "method": method.__name__,
            "epsilon": options["epsilon"],
            "canaries": canaries,
            **{
                f"{name}_seconds": [round(one, 2) for one in found]
                for name, found in seconds.items()
            },
        }


def claims() -> Iterator[dict[str, Any]]:
    for path in sorted((ROOT / "examples" / "claims").glob("*.py")):
        if path.stem == "graph_folder":
            continue
        start = time.perf_counter()
        report = audit_claim([sys.executable, str(path)])
        found = report.details["bounds"]
        yield {
            "program": path.name,
            "epsilon": report.epsilon_claimed,
            "bound": round(report.epsilon_lower_bound, 3),
            "by": max(found, key=found.__getitem__) if not report.holds else "",
            "holds": report.holds,
            "seconds": round(time.perf_counter() - start, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["bounds", "coverage", "time", "claims"])
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--runs", type=int, default=10, help="fits of each cell")
    parser.add_argument("--fits", type=int, default=200, help="of coverage")
    parser.add_argument("--json", type=Path, required=True, help="file of records")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.what == "coverage":
        records = coverage(args.fits)
    elif args.what == "claims":
        records = claims()
    else:
        graph = random_split(load_dataset(args.dataset), seed=0)
        records = (bounds if args.what == "bounds" else times)(graph, args.runs)
    with args.json.open("w", encoding="utf-8") as out:
        for record in records:
            dataset = args.dataset if args.what in ("bounds", "time") else "generated"
            about = {"dataset": dataset, "machine": MACHINE, "date": date.today().isoformat()}
            line = json.dumps({"what": args.what, **record, **about})
            out.write(line + "\n")
            out.flush()
            print(line[:300])


if __name__ == "__main__":
    main()
