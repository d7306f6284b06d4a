"""Time on one GPU, as users run it: safe noise, whole `fit` calls. One hop, edge and node level.

    python benchmarks/h200.py all --markdown docs/generated/h200.md
    python benchmarks/h200.py hop           # one hop with noise and normalisation
    python benchmarks/h200.py edge node     # on an Amazon-sized graph
    GAPGNN_DATA=DIR python benchmarks/h200.py school

The graph has 1.79 million nodes, 81 million arcs, 100 features and 10 classes. It is drawn on the
device from the degree-corrected block model of `gapgnn.graph.datasets.synthetic` (log-normal
weights, 65 % of the edges inside a community), which would take a minute on a CPU. `school` is
Cornell5. Every figure is the median of the runs after the first, which compiles kernels, copies the
graph to the device and calibrates. A step of DP-SGD has its own: benchmarks/dpsgd_step.py.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import generated
from gapgnn import GAP, LabelGAP, Ledger, NodeLabelGAP, load_dataset
from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.device import in_lists_on
from gapgnn.rng import NoiseKey

NODES, ARCS, FEATURES, CLASSES = 1_790_731, 80_966_832, 100, 10
Measured = list[tuple[str, str, str, str]]


def amazon_sized(nodes: int, arcs: int, device: str, *, homophily: float = 0.65) -> Graph:
    """Draw a symmetric graph in CSR form on the device, and hand it over as a Graph."""
    generator = torch.Generator(device).manual_seed(0)

    def uniform(count: int) -> torch.Tensor:
        return torch.rand(count, generator=generator, device=device, dtype=torch.float64)

    weights = torch.empty(nodes, device=device, dtype=torch.float64)
    weights.log_normal_(0.0, 0.9, generator=generator)
    labels = torch.randint(CLASSES, (nodes,), generator=generator, device=device)
    by_class = torch.argsort(labels, stable=True)
    reach = torch.nn.functional.pad(weights[by_class].cumsum(0), (1, 0))
    classes = torch.arange(CLASSES + 1, device=device)
    bounds = reach[torch.searchsorted(labels[by_class].contiguous(), classes)]

    def draw(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        aim = low + uniform(arcs // 2) * (high - low)
        place = torch.searchsorted(reach, aim, right=True) - 1
        return by_class[place.clamp_(0, nodes - 1)]

    first = draw(reach[0], reach[-1])
    stays = uniform(arcs // 2) < homophily
    low = torch.where(stays, bounds[labels[first]], reach[0])
    second = draw(low, torch.where(stays, bounds[labels[first] + 1], reach[-1]))
    first, second = first[first != second], second[first != second]
    arc = torch.unique(torch.cat([first * nodes + second, second * nodes + first]))
    counts = torch.bincount(arc // nodes, minlength=nodes)
    features = torch.randn(nodes, FEATURES, generator=generator, device=device)
    centres = torch.randn(CLASSES, FEATURES, generator=generator, device=device)
    features.add_(centres[labels], alpha=0.15)
    order = torch.randperm(nodes, generator=generator, device=device)
    masks = np.zeros((3, nodes), dtype=np.bool_)
    for mask, part in zip(
        masks, np.split(order.cpu().numpy(), [nodes * 75 // 100, nodes * 85 // 100]), strict=True
    ):
        mask[part] = True
    return Graph(
        indptr=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).cpu().numpy(),
        indices=(arc % nodes).int().cpu().numpy(),
        features=features.cpu().numpy(),
        labels=labels.cpu().numpy(),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
        ids=np.arange(nodes),
        is_directed=False,
        name="amazon-sized",
    )


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def measure_hop(graph: Graph, columns: int) -> Measured:
    rows = row_normalise(torch.randn(graph.num_nodes, columns, device="cuda"))
    matrix = in_lists_on(graph, torch.device("cuda")).matrix(torch.float32)

    def plain() -> torch.Tensor:
        total = matrix @ rows
        return row_normalise(total + torch.randn_like(total))

    asked = {"level edge, safe noise": "3.0 ms"} if columns == 16 else {}
    found = [("torch CSR, randn, normalise", milliseconds(plain))]
    for level, noise in (("edge", "safe"), ("edge", "fast"), ("none", "fast")):
        aggregation = hop_mechanisms(
            graph,
            level=level,
            relation="none" if level == "none" else "undirected",
            noise_multiplier=0.0 if level == "none" else 2.0,
            keys=[NoiseKey.fresh()],
            noise=noise,
            device=torch.device("cuda"),
        )[0]
        numbers = iter(range(1, 1000))
        took = milliseconds(lambda a=aggregation, n=numbers: a.hop(rows, next(n)))
        found.append((f"level {level}, {noise} noise", took))
    return shown(
        [
            (f"hop, {columns} columns, {what}", asked.get(what, ""), f"{ms:.2f} ms", "")
            for what, ms in found
        ]
    )


def measure_fit(
    graph: Graph, what: str, at_most: str, runs: int, method: type, **options: Any
) -> Measured:
    seconds: list[dict[str, float]] = []
    is_node = method is NodeLabelGAP or options.get("level") == "node"
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs + 1):
            model = method(
                epsilon=8.0 if is_node else 1.0,
                device="cuda",
                ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
                **options,
            ).fit(graph)
            seconds.append(model.seconds_)
    median = {key: statistics.median(run[key] for run in seconds[1:]) for key in seconds[0]}
    parts = ", ".join(f"{key} {value:.2f}" for key, value in median.items() if key != "total")
    accuracy = statistics.mean(model.repeat_scores_)
    peak = torch.cuda.max_memory_allocated() / 2**30
    details = f"{parts}; first run {seconds[0]['total']:.1f} s; accuracy {accuracy:.3f}"
    took = f"{median['total']:.2f} s"
    return shown([(what, at_most, took, f"{details}, peak {peak:.1f} GiB")])


# What is measured on which graph, in at most how much time where that was asked, and how.
FITS: dict[str, list[tuple[str, str, type, dict[str, Any]]]] = {
    "edge": [
        ("LabelGAP, edge level", "4 s", LabelGAP, {}),
        ("the same, fast noise", "", LabelGAP, {"noise": "fast"}),
        ("LabelGAP, one network a stage", "1.5 s", LabelGAP, {"folds": 0}),
        ("the same, ten repeats", "9 s", LabelGAP, {"folds": 0, "repeats": 10}),
        ("GAP, edge level", "0.8 s", GAP, {}),
        ("the same, ten repeats", "", GAP, {"repeats": 10}),
        ("the same, fast noise", "", GAP, {"noise": "fast"}),
    ],
    "node": [
        ("NodeLabelGAP", "1.2 s", NodeLabelGAP, {}),
        ("the same, fast noise", "0.97 s", NodeLabelGAP, {"noise": "fast"}),
        ("the same, own=record", "2 s", NodeLabelGAP, {"own": "record"}),
        ("GAP, node level, batches of 4096", "", GAP, {"level": "node", "batch_size": 4096}),
    ],
    "school": [
        ("Cornell5, LabelGAP, ten repeats", "5 s", LabelGAP, {"repeats": 10}),
        ("Cornell5, NodeLabelGAP, ten repeats", "2 s", NodeLabelGAP, {"repeats": 10}),
    ],
}


def shown(rows: Measured) -> Measured:
    for what, at_most, took, details in rows:
        asked = f" (asked: {at_most})" if at_most else ""
        print(f"  {what}: {took}{asked}{f'; {details}' if details else ''}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["hop", *FITS, "all"])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--arcs", type=int, default=ARCS)
    parser.add_argument("--runs", type=int, default=3)
    generated.add_option(parser)
    options = parser.parse_args()
    wanted = {"hop", *FITS} if "all" in options.what else set(options.what)
    rows: Measured = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if wanted & {"hop", "edge", "node"}:
        graph = amazon_sized(options.nodes, options.arcs, "cuda")
        print(f"{graph.num_nodes:,} nodes, {graph.num_arcs:,} arcs", flush=True)
    if "hop" in wanted:
        for columns in (16, CLASSES - 1):
            rows += measure_hop(graph, columns)
    for group, fits in FITS.items():
        if group not in wanted:
            continue
        if group == "school":
            graph = load_dataset("facebook100/Cornell5", split_seed=0)
        for what, at_most, method, chosen in fits:
            rows += measure_fit(graph, what, at_most, options.runs, method, **chosen)
    table = generated.table(("what", "asked: at most", "measured", "of it"), rows)
    generated.write(
        options.markdown, "Whole fits and hops on one GPU, safe noise", table, device="cuda"
    )


if __name__ == "__main__":
    main()
