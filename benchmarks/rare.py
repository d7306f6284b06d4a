"""Rare classes: AUC, average precision and recall at the rate, beside a noisy count of neighbours.

    GAPGNN_DATA=DIR python benchmarks/rare.py --out docs/data/rare.jsonl \\
        --markdown docs/generated/rare.md
    python benchmarks/rare.py --graphs generated --epsilons 1 2 4 8 --seeds 0 1 2

Every cell is one fit on one split of one graph; with --out finished cells are kept and not run
again. Figures are those of the test nodes: of the generated graph and of the bank, of all nodes
without a label. `noisy count` is the baseline without training: how many labelled neighbours of the
rare class a node has, in one release of the same price as the whole model. `count and features` is
no private method: at node level it adds a regression on features that is trained without noise,
and so bounds what one hop can give at this price, and `two counts and features` bounds two hops.
Bank and hospital are drawn anew for each seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

import generated
from gapgnn import GAP, MLP, LabelGAP, Ledger, NodeLabelGAP, load_dataset
from gapgnn.graph import Graph, random_split
from gapgnn.graph.datasets.synthetic import rare_graph
from gapgnn.graph.tables import Schema
from gapgnn.graph.tables.schema import Label
from gapgnn.privacy.accounting import gaussian_shift
from gapgnn.rng import experiment_rng

DELTA = 1e-7
LEVELS = {
    **dict.fromkeys(("generated", "bank", "tolokers", "minesweeper", "computers"), "edge"),
    "hospital": "node",
}
Cell = dict[str, Any]
NAMES = ("graph", "level", "method", "epsilon", "seed", "noise")
METHODS: dict[str, dict[str, tuple[type, dict[str, Any]]]] = {
    "edge": {
        "default": (LabelGAP, {}),
        "balanced": (LabelGAP, {"class_weight": "balanced"}),
        "GAP": (GAP, {}),
        "MLP": (MLP, {}),
    },
    "node": {
        "default": (NodeLabelGAP, {}),
        "balanced": (NodeLabelGAP, {"class_weight": "balanced"}),
        "own=record": (NodeLabelGAP, {"own": "record"}),
        "GAP": (GAP, {}),
        "MLP-DP": (MLP, {}),
    },
}
COUNT, BOUND, BOUND_2 = "noisy count", "count and features", "two counts and features"
BOUNDS = (BOUND, BOUND_2)


def one_hot(values: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    return np.eye(width, dtype=np.float32)[values]


def bank_graph(seed: int) -> Graph:
    """Draw 50,000 customers of which 3 % are risky, 600,000 payments and all columns."""
    rng, nodes, payments = experiment_rng(seed, "bank"), 50_000, 600_000
    risky = (rng.random(nodes) < 0.03).astype(np.int64)
    income = np.exp(rng.normal(7.9, 0.6, nodes)) * (1 - 0.15 * risky)
    score = rng.normal(600 - 80 * risky, 70)
    has_income, has_score = rng.random(nodes) > 0.06, rng.random(nodes) > 0.3
    numbers = np.column_stack(
        [
            (np.clip(income, 200, 40_000) / 20_000 - 1) * has_income,
            ~has_income,
            (np.clip(score, 300, 900) / 300 - 2) * has_score,
            ~has_score,
            rng.uniform(-1, 1, nodes),
        ]
    )
    columns = [numbers.astype(np.float32)]
    columns += [one_hot(rng.integers(0, width, nodes), width) for width in (59, 99, 5, 2)]
    activity = rng.pareto(1.8, nodes) + 0.2
    sources, targets = (rng.choice(nodes, payments, p=activity / activity.sum()) for _ in range(2))
    among = (risky[sources] == 1) & (rng.random(payments) < 0.5)
    targets[among] = rng.choice(np.flatnonzero(risky), int(among.sum()))
    known = rng.random(payments) > 0.03
    role = rng.random(nodes) / 0.2
    return Graph.from_arcs(
        sources[known],
        targets[known],
        num_nodes=nodes,
        features=np.hstack(columns),
        labels=risky,
        train_mask=role < 0.75,
        val_mask=(role >= 0.75) & (role < 0.85),
        test_mask=role >= 0.85,
        name="bank",
    )


def hospital_graph(seed: int) -> Graph:
    """Draw 20,000 patients of which 23 % are infected, in 40 wards, and whom each has met."""
    rng, nodes, wards = experiment_rng(seed, "hospital"), 20_000, 40
    ward = rng.integers(0, wards, nodes)
    severity = rng.normal(0, 1, nodes) + (ward % 7 == 0)
    age = np.clip(rng.normal(62, 17, nodes), 18, 104)
    stay = np.clip(np.exp(rng.normal(1.4, 0.7, nodes) + 0.2 * severity), 1, 120)
    diagnosis = rng.choice(7, nodes, p=[0.2, 0.2, 0.2, 0.15, 0.15, 0.09, 0.01])
    logit = -1.7 + 0.9 * severity + 0.015 * (age - 62) + 0.4 * (diagnosis == 0)
    infected = (rng.random(nodes) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    measured = rng.random(nodes) > 0.4
    crp = np.exp(rng.normal(2.5 + 0.6 * infected, 1))
    numbers = np.column_stack(
        [
            (age - 61) / 43,
            stay / 60 - 1,
            (np.clip(crp, 0, 200) / 100 - 1) * measured,
            ~measured,
        ]
    )
    met = rng.poisson(6, nodes)
    sources = np.repeat(np.arange(nodes), met)
    seeks = (infected[sources] == 1) & (rng.random(len(sources)) < 0.5)
    targets = np.zeros(len(sources), dtype=np.int64)
    for place in range(wards):
        everybody = np.flatnonzero(ward == place)
        for asks, pool in (
            (False, everybody),
            (True, everybody[infected[everybody] == 1]),
        ):
            here = (ward[sources] == place) & (seeks == asks)
            targets[here] = rng.choice(pool, int(here.sum()))
    labels = np.where(rng.random(nodes) < 0.7, infected, -1)
    graph = Graph.from_arcs(
        sources,
        targets,
        num_nodes=nodes,
        features=np.hstack([numbers.astype(np.float32), one_hot(diagnosis, 7)]),
        labels=labels,
        directed=True,
        schema=Schema(label=Label("infected", ("no", "yes"), rates=(0.77, 0.23))),
        label_names=("no", "yes"),
        name="hospital",
    )
    return random_split(graph, seed=seed)


def graph_of(name: str, seed: int) -> Graph:
    """Return a graph whose class 1 is the rare one."""
    if name == "generated":
        return rare_graph(seed=seed)
    if name == "bank":
        return bank_graph(seed)
    if name == "hospital":
        return hospital_graph(seed)
    if name != "computers":
        return load_dataset(name, split_seed=seed)
    whole = load_dataset("amazon-computers", split_seed=seed)
    rarest = np.bincount(whole.labels[whole.labels >= 0]).argmin()
    labels = np.where(whole.labels < 0, -1, whole.labels == rarest)
    return whole._replace(labels=labels, label_names=None)


def noisy_count(
    graph: Graph, epsilon: float | None, *, level: str, delta: float, seed: int
) -> NDArray[Any]:
    """Return the number of labelled neighbours of class 1, released once with Gaussian noise.

    Below node level an edge moves two rows (sensitivity sqrt(2)) where it has no direction. At node
    level a sender's messages are divided by the root of the list's length: sensitivity 1.

    Args:
        graph: whose training labels are counted.
        epsilon: of the release; None: without noise.
        level: ``edge`` or ``node``.
        delta: likewise.
        seed: of the noise.
    """
    sends = (graph.train_mask & (graph.labels == 1)).astype(np.float64)
    is_node = level == "node"
    if is_node:
        sends = sends / np.sqrt(np.maximum(graph.out_degrees, 1))
    counts = graph.adjacency().T @ sends
    if epsilon is None:
        return np.asarray(counts)
    sensitivity = 1.0 if is_node or graph.is_directed else math.sqrt(2)
    noise = np.random.default_rng(seed).standard_normal(graph.num_nodes)
    return np.asarray(counts + sensitivity / gaussian_shift(epsilon, delta) * noise)


def regressed(columns: NDArray[Any], graph: Graph) -> NDArray[Any]:
    """Return the probabilities of class 1 by a regression that is trained without noise."""
    training = graph.train_mask
    model = LogisticRegression(max_iter=2000).fit(columns[training], graph.labels[training])
    return np.asarray(model.predict_proba(columns)[:, 1])


def beside_features(counts: NDArray[Any], graph: Graph) -> NDArray[Any]:
    """Return the scores of a regression on features and noisy counts, (nodes, counts).

    It reads training labels and features without noise: a reference, not a private method.
    """
    features = sp.csr_array(graph.features).toarray()
    of_features = regressed(features, graph)
    logits = np.log(of_features) - np.log1p(-of_features)
    return regressed(np.column_stack([logits, counts, counts**2]), graph)


def two_counts(
    counts: NDArray[Any], graph: Graph, epsilon: float, *, delta: float, seed: int
) -> NDArray[Any]:
    """Return the noisy count beside a second one of what the nodes without a training label send.

    These send their probability of class 1, by a regression on features, the own first count and
    the sum of first counts over own neighbours. A record sends in one of the two hops, so each may
    cost the whole budget (parallel composition).
    """
    features = sp.csr_array(graph.features).toarray()
    known = np.column_stack([features, counts, graph.adjacency() @ counts])
    sends = regressed(known, graph) * ~graph.train_mask
    sums = graph.adjacency().T @ (sends / np.sqrt(np.maximum(graph.out_degrees, 1)))
    noise = experiment_rng(seed, "second count").standard_normal(graph.num_nodes)
    return np.column_stack([counts, sums + noise / gaussian_shift(epsilon, delta)])


def figures(scores: NDArray[Any], answers: NDArray[Any], graph: Graph) -> dict[str, float]:
    """Return what a ranking of the test nodes is worth."""
    test = graph.test_mask & (graph.labels >= 0)
    labels, ranked, answered = graph.labels[test] == 1, scores[test], answers[test] == 1
    flagged = np.argsort(-ranked, kind="stable")[: int(labels.sum())]
    return {
        "rate": float(labels.mean()),
        "auc": float(roc_auc_score(labels, ranked)),
        "average_precision": float(average_precision_score(labels, ranked)),
        "recall_at_rate": float(labels[flagged].mean()),
        "recall": float(answered[labels].mean()),
        "flagged": float(answered.mean()),
    }


def measured(cell: Cell) -> Cell:
    """Run one cell and return it with its figures."""
    torch.set_num_threads(1)
    graph, epsilon, seed = graph_of(cell["graph"], cell["seed"]), cell["epsilon"], cell["seed"]
    is_node = cell["level"] == "node"
    delta = 1e-5 if is_node else DELTA
    if cell["method"] in (COUNT, *BOUNDS):
        scores = noisy_count(graph, epsilon, level=cell["level"], delta=delta, seed=seed)
        if cell["method"] == BOUND_2:
            scores = two_counts(scores, graph, epsilon, delta=delta, seed=seed)
        if cell["method"] in BOUNDS:
            scores = beside_features(scores, graph)
        return {**cell, **figures(scores, np.zeros(graph.num_nodes), graph)}
    estimator, given = METHODS[cell["level"]][cell["method"]]
    given = {**given, "level": "none" if epsilon is None else cell["level"], "seed": seed}
    if epsilon is not None and (estimator is not MLP or is_node):
        given |= {"epsilon": epsilon, "delta": delta, "noise": cell["noise"]}
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        model = estimator(ledger=ledger, **given).fit(graph)
        scores = model.predict_proba(graph)
    return {**cell, **figures(scores[:, 1], model.decide(scores), graph)}


def planned(arguments: argparse.Namespace) -> Iterator[Cell]:
    for graph, seed in product(arguments.graphs, arguments.seeds):
        level = LEVELS[graph]
        methods = [name for name in (COUNT, *METHODS[level]) if name in arguments.methods]
        if level == "node":
            methods[1:1] = [name for name in BOUNDS if name in arguments.methods]
        budgets = arguments.epsilons if level == "edge" else arguments.node_epsilons
        for method, epsilon in product(methods, budgets):
            # Below node level features are public: an MLP is the same at every budget.
            if method == "MLP" and epsilon != budgets[0]:
                continue
            values = (graph, level, method, epsilon or None, seed, arguments.noise)
            yield dict(zip(NAMES, values, strict=True))


def name_of(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell[name] for name in NAMES)


def finished(path: Path | None) -> dict[tuple[Any, ...], Cell]:
    if path is None or not path.exists():
        return {}
    cells = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {name_of(cell): cell for cell in cells}


def run(cells: list[Cell], arguments: argparse.Namespace) -> list[Cell]:
    known = finished(arguments.out)
    if arguments.finished:
        return [known[name_of(cell)] for cell in cells if name_of(cell) in known]
    waiting = [cell for cell in cells if name_of(cell) not in known]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(measured, cell) for cell in waiting]
        for number, task in enumerate(as_completed(tasks), start=1):
            cell = task.result()
            known[name_of(cell)] = cell
            if arguments.out is not None:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(cell) + "\n")
            shown = [str(part) for part in name_of(cell)[:5]]
            print(f"[{number}/{len(waiting)}]", *shown, f"AUC {cell['auc']:.3f}", flush=True)
    return [known[name_of(cell)] for cell in cells]


def table(cells: list[Cell]) -> str:
    """Return the mean of every figure over the seeds, a row for each graph, budget and method."""
    places: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        budget = math.inf if cell["epsilon"] is None else cell["epsilon"]
        places[cell["graph"], -1.0 if cell["method"] == "MLP" else budget, cell["method"]].append(
            cell
        )
    rows = []
    order = list(dict.fromkeys(place[0] for place in places))
    for place in sorted(places, key=lambda place: (order.index(place[0]), -place[1])):
        found = places[place]
        budget = {math.inf: "no privacy", -1.0: "reads no edge"}.get(place[1], f"{place[1]:g}")

        def shown(key: str, digits: int, found: list[Cell] = found) -> str:
            values = [cell[key] for cell in found]
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            return f"{statistics.mean(values):.{digits}f}{spread}"

        answered, share = (
            "" if place[2] in (COUNT, *BOUNDS) else f"{statistics.mean(c[key] for c in found):.2f}"
            for key in ("recall", "flagged")
        )
        rate = f"{100 * statistics.mean(cell['rate'] for cell in found):.1f} %"
        columns = (shown("auc", 3), shown("average_precision", 3), shown("recall_at_rate", 2))
        seeds = f"{len(found)}"
        rows.append((place[0], rate, budget, place[2], seeds, *columns, answered, share))
    heads = ("graph", "rate", "epsilon", "method", "seeds", "AUC", "average precision")
    more = ("recall at the rate", "recall of the answers", "flagged")
    return generated.table((*heads, *more), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = list(dict.fromkeys([COUNT, *BOUNDS, *METHODS["edge"], *METHODS["node"]]))
    parser.add_argument("--graphs", nargs="+", default=list(LEVELS), choices=list(LEVELS))
    parser.add_argument("--methods", nargs="+", default=every, choices=every)
    text = "at edge level; 0: no privacy"
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0, 8, 4, 2, 1], help=text)
    parser.add_argument("--node-epsilons", nargs="+", type=float, default=[8, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="finished cells, one a line")
    text = "run nothing: show the cells of --out that are finished"
    parser.add_argument("--finished", action="store_true", help=text)
    generated.add_option(parser)
    arguments = parser.parse_args()
    cells = list(planned(arguments))
    body = table(run(cells, arguments))
    print(body)
    title = "Rare classes: delta 1e-7 at edge level, 1e-5 at node level"
    generated.write(arguments.markdown, title, body)


if __name__ == "__main__":
    main()
