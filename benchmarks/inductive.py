"""Accuracy on a graph the model was not trained on: two disjoint halves of one data set.

Run: python benchmarks/inductive.py --dataset facebook100/Cornell5
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from gapgnn import GAP, load_dataset
from gapgnn.graph.transforms import inductive_split


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
        for messages in ("features", "labels"):
            own, other = [], []
            for seed in range(args.seed, args.seed + args.cuts):
                first, second = inductive_split(graph, seed=seed)
                model = GAP(
                    level="edge",
                    epsilon=args.epsilon,
                    relation=args.relation,
                    messages=messages,
                    noise="fast",
                    seed=seed,
                    ledger=Path(folder) / "ledger.sqlite",
                ).fit(first)
                own.append(model.score(first))
                other.append(model.score(second))
            print(f"{messages}: own half {np.mean(own):.1%}, other half {np.mean(other):.1%}")


if __name__ == "__main__":
    main()
