"""How long degree bounding and one private hop take, beside the bare sparse product.

    python benchmarks/aggregation.py degree    # 1.79 million nodes, 81 million arcs
    python benchmarks/aggregation.py hop       # 117,000 nodes, 11 million arcs
    python benchmarks/aggregation.py hop --device cuda

Graphs are random: the cost depends on sizes and degrees, not on who knows whom.
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch

from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.rng import NoiseKey


def heavy_tailed_graph(num_nodes: int, num_arcs: int) -> Graph:
    """Random targets; out-degrees are log-normal, so that a few lists are very long."""
    rng = np.random.default_rng(0)
    weights = rng.lognormal(0.0, 1.2, num_nodes)
    degrees = np.minimum(weights * (num_arcs / weights.sum()), num_nodes // 20).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, num_nodes, indptr[-1], dtype=np.int32)
    labels, mask = np.zeros(num_nodes, dtype=np.int64), np.zeros(num_nodes, dtype=np.bool_)
    # Built directly: sorting and checking 81 million arcs is not what is measured here.
    return Graph(
        indptr=indptr,
        indices=indices,
        features=np.zeros((num_nodes, 1), dtype=np.float32),
        labels=labels,
        train_mask=mask,
        val_mask=mask,
        test_mask=mask,
        ids=np.arange(num_nodes),
        is_directed=True,
    )


def product_and_hops(graph: Graph, rows: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return what computes the bare product of int32 CSR, and a hop with fast and safe noise."""
    lists = graph.adjacency().T.tocsr()
    parts = [torch.from_numpy(part.astype(np.int32)) for part in (lists.indptr, lists.indices)]
    with warnings.catch_warnings():
        # torch announces that CSR is in beta and unchecked; the lists are checked already.
        warnings.filterwarnings("ignore", message="Sparse")
        bare = torch.sparse_csr_tensor(*parts, torch.ones(graph.num_arcs), size=lists.shape)
    # Where rows lie in memory makes a product up to a fifth faster or slower: copies take turns.
    copies = cycle([rows.clone() for _ in range(8)])
    works: dict[str, Callable[[], object]] = {"bare product": lambda: bare @ next(copies)}
    for noise in ("fast", "safe"):
        aggregation = hop_mechanisms(
            graph,
            level="edge",
            relation="directed",
            noise_multiplier=2.0,
            keys=[NoiseKey.fresh()],
            noise=noise,
        )[0]
        numbers = iter(range(1, 1000))
        works[f"hop, {noise} noise"] = lambda a=aggregation, n=numbers: a.hop(next(copies), next(n))
    return works


def best_of(repeats: int, work: Callable[[], object], device: str = "cpu") -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def measure_degree(num_nodes: int, num_arcs: int, limits: list[int]) -> None:
    graph = heavy_tailed_graph(num_nodes, num_arcs)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{graph.num_nodes:,} nodes, {graph.num_arcs:,} arcs")
    for limit in limits:
        cut_arcs = int(graph.out_degrees[graph.out_degrees > limit].sum())
        seconds = best_of(1, lambda limit=limit: bound_out_degrees(graph, limit, NoiseKey.fresh()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"  D = {limit}: {seconds:.1f} s, {cut_arcs:,} arcs in lists that are cut, "
            f"{(peak - before) / 1024:.0f} MiB above the graph"
        )


def measure_hop(num_nodes: int, num_arcs: int, columns: int, device: str) -> None:
    graph = heavy_tailed_graph(num_nodes, num_arcs)
    rows = row_normalise(torch.randn(num_nodes, columns)).to(device)
    print(f"{graph.num_nodes:,} nodes, {graph.num_arcs:,} arcs, {columns} columns, {device}")
    transposed = graph.adjacency().T.tocsr()
    values = rows.cpu().numpy()
    seconds = best_of(5, lambda: transposed @ values)
    print(f"  bare product (SciPy, float32, one thread): {seconds:.3f} s")
    for name, level, noise in (
        ("level none", "none", "fast"),
        ("edge, fast", "edge", "fast"),
        ("edge, safe", "edge", "safe"),
    ):
        aggregation = hop_mechanisms(
            graph,
            level=level,
            relation="none" if level == "none" else "directed",
            noise_multiplier=0.0 if level == "none" else 2.0,
            keys=[NoiseKey.fresh()],
            noise=noise,
            device=device,
        )[0]
        numbers = iter(range(1, 100))
        aggregation.hop(rows, next(numbers))
        seconds = best_of(5, lambda a=aggregation, n=numbers: a.hop(rows, next(n)), device)
        print(f"  one hop, {name}: {seconds:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["degree", "hop"])
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--arcs", type=int)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--limits", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.what == "degree":
        nodes, arcs = options.nodes or 1_790_731, options.arcs or 80_966_832
        measure_degree(nodes, arcs, options.limits)
    else:
        nodes, arcs = options.nodes or 116_713, options.arcs or 11_000_000
        measure_hop(nodes, arcs, options.columns, options.device)


if __name__ == "__main__":
    main()
