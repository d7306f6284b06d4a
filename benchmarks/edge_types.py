"""What two edge types cost: the edges of a graph, and two random halves of them as two types.

    GAPGNN_DATA=DIR python benchmarks/edge_types.py --seed 12 \\
        --markdown docs/generated/edge-types.md

The halves together hold what the whole holds, so the difference is the price of promising more
(`each`: an edge of every type at once) or of releasing more (`any`: the sum over the union and,
beside it, the sum of each type). Below each is what all edges as one type reach under as much noise
as the sum of the two types has in the end: random halves reveal nothing more than their sum.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import generated
from gapgnn import GAP, LabelGAP, ProGAP, load_dataset
from gapgnn.graph import Graph, csr, join_edge_types
from gapgnn.privacy.accounting import Event, account
from gapgnn.privacy.ledger import Ledger
from gapgnn.rng import experiment_rng


def halves(graph: Graph, seed: int) -> Graph:
    """Return the same graph with each edge in one of two types at random."""
    sources, targets = csr.sources(graph.indptr, np.int64), graph.indices
    once = sources < targets
    sources, targets = sources[once], targets[once]
    is_first = experiment_rng(seed, "edge types").random(len(sources)) < 0.5
    types = {}
    for name, chosen in (("first", is_first), ("second", ~is_first)):
        indptr, indices = csr.build(
            sources[chosen], targets[chosen], graph.num_nodes, symmetric=True
        )
        types[name] = graph._replace(indptr=indptr, indices=indices)
    return join_edge_types(types)


METHODS = {method.__name__: method for method in (LabelGAP, ProGAP, GAP)}


def fitted(graph: Graph, ledger: Path, arguments: argparse.Namespace, **options: Any) -> Any:
    chosen = {
        "epsilon": arguments.epsilon,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "device": arguments.device,
        "ledger": ledger,
    }
    return METHODS[arguments.method](**{**chosen, **options}).fit(graph)


def with_noise(model: Any, factor: float) -> dict[str, float]:
    """Return the budget at which a model's noise is so many times as large."""
    card = model.card_
    (event,) = map(Event.from_dict, card.events)
    price = account([event.scaled(factor)], card.delta, relation=card.relation)
    return {"epsilon": price.epsilon, "delta": card.delta}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--method", default="LabelGAP", choices=list(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    generated.add_option(parser)
    arguments = parser.parse_args()
    graph = load_dataset(arguments.dataset, split_seed=arguments.seed)
    dealt = halves(graph, arguments.seed)
    rows = []
    whole = 0.0
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        model = fitted(graph, ledger, arguments)
        cases: list[tuple[str, str, Any]] = [("one type", "one edge", model)]
        for edge_types, promise, factor in (
            # Two releases are charged instead of one; types and union together have 2/3 of the
            # variance of one of them.
            ("any", "one edge of one type", (2 * 2 / 3) ** 0.5),
            ("each", "one edge of each type", 2.0),
        ):
            cases.append((f"two types, `{edge_types}`", promise, {"edge_types": edge_types}))
            name = f"one type, noise times {factor:.3g}"
            cases.append((name, f"what `{edge_types}` can reach", with_noise(model, factor)))
        for name, promise, case in cases:
            if isinstance(case, dict):
                data = dealt if "edge_types" in case else graph
                case = fitted(data, ledger, arguments, **case)
            found = [100 * score for score in case.repeat_scores_]
            mean = statistics.mean(found)
            whole = whole or mean
            spread = f"{min(found):.1f} to {max(found):.1f}"
            rows.append((name, promise, f"{mean:.1f}", spread, f"{whole - mean:.1f}"))
            print(*rows[-1], sep="\t", flush=True)
    heads = ("edges", "hidden", "accuracy (%)", f"of {arguments.repeats} repeats", "points lost")
    title = f"Two edge types on {arguments.dataset} at epsilon {arguments.epsilon:g}"
    body = generated.table(heads, rows)
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
