"""Accuracy on a graph the model was not trained on: two disjoint halves of one data set.

Run: python benchmarks/inductive.py --dataset facebook100/Cornell5
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from gapgnn import GAP, LabelGAP, Ledger, load_dataset
from gapgnn.graph import Graph, induced
from gapgnn.rng import experiment_rng


def halves(graph: Graph, *, seed: int) -> tuple[Graph, Graph]:
    """Cut a graph at random into two; arcs between the halves belong to neither."""
    order = experiment_rng(seed, "inductive split").permutation(graph.num_nodes)
    is_first = np.zeros(graph.num_nodes, dtype=np.bool_)
    is_first[order[: round(graph.num_nodes / 2)]] = True
    return induced(graph, is_first), induced(graph, ~is_first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--relation", default="undirected")
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first cut's seed")
    args = parser.parse_args()
    graph = load_dataset(args.dataset)
    with tempfile.TemporaryDirectory() as folder:
        for method in (GAP, LabelGAP):
            own, other = [], []
            for seed in range(args.seed, args.seed + args.cuts):
                first, second = halves(graph, seed=seed)
                model = method(
                    level="edge",
                    epsilon=args.epsilon,
                    relation=args.relation,
                    noise="fast",
                    seed=seed,
                    ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
                ).fit(first)
                own.append(model.score(first))
                other.append(model.score(second))
            figures = f"own half {np.mean(own):.1%}, other half {np.mean(other):.1%}"
            print(f"{method.__name__}: {figures}")


if __name__ == "__main__":
    main()
