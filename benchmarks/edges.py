"""How long randomising the edges takes, and how much memory.

    python benchmarks/edges.py                  # Amazon: 1.79 million nodes, 81 million arcs
    python benchmarks/edges.py --perturbation lapgraph
    python benchmarks/edges.py --nodes 26406 --arcs 2117924 --perturbation edgerand

The graph is random: the cost depends on sizes alone. Memory is the peak of the process, the graph
included; EdgeRand refuses what would not fit.
"""

import argparse
import resource
import time

import numpy as np

from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms.edges import PERTURBATIONS, perturb_edges
from gapgnn.rng import NoiseKey


def random_graph(num_nodes: int, num_arcs: int) -> Graph:
    """A symmetric graph of about that many arcs."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_nodes, (2, num_arcs // 2), dtype=np.int32)
    features = np.zeros((num_nodes, 1), dtype=np.float32)
    return Graph.from_arcs(ends[0], ends[1], num_nodes=num_nodes, features=features)


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_790_731)
    parser.add_argument("--arcs", type=int, default=80_966_832)
    parser.add_argument("--perturbation", choices=PERTURBATIONS, default="arr")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--relation", choices=("undirected", "directed"), default="undirected")
    parser.add_argument("--noise", choices=("safe", "fast"), default="safe")
    args = parser.parse_args()
    graph = random_graph(args.nodes, args.arcs)
    cells = args.nodes * (args.nodes - 1) / (2 if args.relation == "undirected" else 1)
    print(f"{graph.num_nodes:,} nodes, {graph.num_arcs:,} arcs, {cells:.2g} cells")
    print(f"graph built: peak {peak_gib():.1f} GiB", flush=True)
    start = time.perf_counter()
    released = perturb_edges(
        graph,
        perturbation=args.perturbation,
        epsilon=args.epsilon,
        relation=args.relation,
        key=NoiseKey.insecure(0),
        noise=args.noise,
    )
    seconds = time.perf_counter() - start
    print(
        f"{args.perturbation}, epsilon {args.epsilon:g}, {args.relation}, {args.noise}: "
        f"{len(released.indices):,} arcs out, {seconds:.1f} s, peak {peak_gib():.1f} GiB"
    )


if __name__ == "__main__":
    main()
