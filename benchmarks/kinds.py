"""What two kinds of edges cost: the edges of a graph, and two random halves of them as two kinds.

    GAPGNN_DATA=DIR python benchmarks/kinds.py --markdown docs/generated/kinds.md

The halves say together what the whole says, so the difference is the price of promising more
(`each`: an edge of every kind at once) or of noise that is added twice (`any`: one of one kind).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np

import generated
from gapgnn import GAP, load_dataset
from gapgnn.graph import Graph, csr, join_kinds
from gapgnn.privacy.ledger import Ledger
from gapgnn.rng import experiment_rng


def halves(graph: Graph, seed: int) -> Graph:
    """Return the same graph with its edges dealt at random to two kinds."""
    sources, targets = csr.sources(graph.indptr, np.int64), graph.indices
    once = sources < targets
    sources, targets = sources[once], targets[once]
    is_first = experiment_rng(seed, "kinds").random(len(sources)) < 0.5
    kinds = {}
    for name, chosen in (("first", is_first), ("second", ~is_first)):
        indptr, indices = csr.build(
            sources[chosen], targets[chosen], graph.num_nodes, symmetric=True
        )
        kinds[name] = graph._replace(indptr=indptr, indices=indices)
    return join_kinds(kinds)


def accuracies(
    graph: Graph, ledger: Path, arguments: argparse.Namespace, **options: str
) -> list[float]:
    model = GAP(
        epsilon=arguments.epsilon,
        repeats=arguments.repeats,
        seed=arguments.seed,
        device=arguments.device,
        messages=arguments.messages,
        ledger=ledger,
        **options,
    )
    return [100 * score for score in model.fit(graph).repeat_scores_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--messages", default="labels", choices=["labels", "features", "both"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    generated.add_option(parser)
    arguments = parser.parse_args()
    graph = load_dataset(arguments.dataset, split_seed=arguments.seed)
    dealt = halves(graph, arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        whole = accuracies(graph, ledger, arguments)
        cases = [("one kind", "one edge", whole)]
        for protects, promise in (
            ("any", "one edge of one kind"),
            ("each", "one edge of each kind"),
        ):
            found = accuracies(dealt, ledger, arguments, kinds=protects)
            cases.append((f"two kinds, `{protects}`", promise, found))
        for name, promise, found in cases:
            mean = statistics.mean(found)
            lost = "" if found is whole else f"{statistics.mean(whole) - mean:.1f}"
            spread = f"{min(found):.1f} to {max(found):.1f}"
            rows.append((name, promise, f"{mean:.1f}", spread, lost))
            print(*rows[-1], sep="\t", flush=True)
    heads = ("edges", "hidden", "accuracy (%)", f"of {arguments.repeats} repeats", "points lost")
    title = f"Two kinds of edges on {arguments.dataset} at epsilon {arguments.epsilon:g}"
    body = generated.table(heads, rows)
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
