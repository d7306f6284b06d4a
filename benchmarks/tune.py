"""What choosing hyperparameters inside the budget costs, by price and by accuracy.

    GAPGNN_DATA=DIR python benchmarks/tune.py --out docs/data/tune.jsonl
    python benchmarks/tune.py --prices --out docs/data/tune.jsonl

Prices: the selection of one of ten candidates of epsilon 1 (Gaussian noise, delta 1e-7), for each
distribution of their number, by privacy profiles, by the theorem of Koskela, Redberg and Wang
(2024), by Renyi divergences, and the largest epsilon that some score of the same candidates is
known to reach. Accuracy: Cornell5 at a total epsilon of 1, the fixed default beside searches over
hops and messages. Finished cells are kept and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn import LabelGAP, Ledger, PrivateSearchCV, load_dataset
from gapgnn.accounting import Gaussian, PrivateSelection, epsilon
from gapgnn.graph import Graph
from gapgnn.privacy import Undirected
from gapgnn.privacy.accounting import (
    ORDERS,
    CandidateNumber,
    accountant_named,
    gaussian_shift,
    privacy_profile,
)
from gapgnn.privacy.accounting.selection import papernot_steinke

DELTA, TEN = 1e-7, 10.0
SHIFT = gaussian_shift(1.0, DELTA)
NUMBERS = {
    "logarithmic": CandidateNumber("truncated-negative-binomial", TEN, 0.0),
    "geometric": CandidateNumber("truncated-negative-binomial", TEN, 1.0),
    "negative binomial, shape 3": CandidateNumber("truncated-negative-binomial", TEN, 3.0),
    "poisson": CandidateNumber("poisson", TEN),
    "binomial, 20 trials": CandidateNumber("binomial", TEN, 20.0),
}
# Hops of class codes, and GAP, whose messages are embeddings of features.
GRID = [{"hops": [2, 4]}, {"method": ["gap"], "hops": [2]}]
SEARCHES: dict[str, dict[str, Any]] = {
    "pilots": {"strategy": "pilots"},
    "selection": {"strategy": "selection"},
}
Cell = dict[str, Any]


def published(event: PrivateSelection) -> float:
    """Return the epsilon of Papernot and Steinke; infinite where they give none."""
    curve = papernot_steinke(event.pair(Undirected()), ORDERS)
    bounds = curve + np.log1p(-1 / ORDERS) - np.log(DELTA * ORDERS) / (ORDERS - 1)
    return float(bounds.min())


def one_shift(event: PrivateSelection) -> float:
    """Return the epsilon of Koskela et al. for the truncated negative binomial distribution."""
    number = event.number
    if number.distribution != "truncated-negative-binomial":
        return math.inf
    profile = privacy_profile([(event.candidates[0], 1)], relation="undirected")
    odds = (1 - number.gamma) / number.gamma
    shift = min(
        math.log(math.exp(one) + odds * profile.delta(one)) for one in np.linspace(0, 3, 1201)
    )
    return (1 + number.shape) * shift + profile.epsilon(DELTA / number.mean)


def reached(number: CandidateNumber) -> float:
    """Return the largest epsilon at delta of scores that rise or fall with the evidence."""
    from scipy.special import ndtr
    from scipy.stats import norm

    x = np.linspace(-12, 12, 200_001)
    step, best = x[1] - x[0], 0.0
    for above in (True, False):
        sides = []
        for mean in (0.0, SHIFT):
            beaten = ndtr(mean - x) if above else ndtr(x - mean)
            sides.append(norm.pdf(x - mean) * np.exp(number.log_gradient(beaten)))
        for one, other in (sides, sides[::-1]):
            best = max(best, _epsilon(one, other, step))
    return best


def _epsilon(one: NDArray[np.float64], other: NDArray[np.float64], step: float) -> float:
    low, high = 0.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        excess = np.maximum(one - math.exp(middle) * other, 0.0).sum() * step
        low, high = (middle, high) if excess > DELTA else (low, middle)
    return low


def prices() -> Iterator[Cell]:
    for name, number in NUMBERS.items():
        event = PrivateSelection(
            ((Gaussian(1 / SHIFT),),), number.mean, number.shape, number.distribution
        )
        yield {
            "what": "price",
            "number": name,
            "profiles": epsilon([event], DELTA, relation="undirected"),
            "one_shift": _plain(one_shift(event)),
            "renyi": accountant_named("rdp").epsilon([event], DELTA, relation="undirected"),
            "papernot_steinke": _plain(published(event)),
            "reached": reached(number),
            "usual": number.at_most(0.5),
            "most": number.at_most(0.99),
        }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def accuracy(graph: Graph, name: str, seed: int, ledger: Path) -> Cell:
    start = time.perf_counter()
    model = LabelGAP(epsilon=1.0, seed=seed, ledger=ledger)
    cell: Cell = {"what": "accuracy", "graph": graph.name, "search": name, "seed": seed}
    if name == "default":
        model.fit(graph, progress=False)
        cell |= {"accuracy": model.score(graph), "epsilon": model.card_.epsilon}
    else:
        search = PrivateSearchCV(model, GRID, **SEARCHES[name]).fit(graph, progress=False)
        cell |= {"accuracy": search.score(graph), "epsilon": search.card_.epsilon}
        cell["chosen"] = search.best_params_
        cell["each"] = search.search_.plans[0].budget
    return {**cell, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prices", action="store_true", help="prices alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--searches", nargs="+", default=["default", *SEARCHES])
    args = parser.parse_args()
    rows = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if (args.out.exists())
        else []
    )
    if args.prices:
        rows = [row for row in rows if row["what"] != "price"]
        args.out.write_text("".join(json.dumps(row) + "\n" for row in [*prices(), *rows]))
        return
    graph = load_dataset("facebook100/Cornell5")
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder) / "ledger.sqlite").path
        for seed in args.seeds:
            for name in args.searches:
                done = {(r["search"], r["seed"]) for r in rows if r["what"] == "accuracy"}
                if (name, seed) in done:
                    continue
                rows.append(accuracy(graph, name, seed, ledger))
                args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
                print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
