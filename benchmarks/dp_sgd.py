"""`gapgnn.dp_sgd` on graph convolutions beside MLP-DP: layers, and neighbourhoods kept in part.

    GAPGNN_DATA=DIR nice python benchmarks/dp_sgd.py --datasets facebook100/Cornell5 --repeats 3 \\
        --json docs/data/dp-sgd.jsonl

The module encodes rows, and one or two `GCNConv` layers add up what an example holds. Accuracy on
test nodes is measured in two ways: with all neighbours, whose rows the module reads exactly (the
card covers the weights alone), and without any, which is the promise of MLP-DP. Every cell is one
JSON line; those that stand in the file are not run again. docs/tables.py makes the tables.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from datetime import date
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch_geometric.nn import GCNConv

from gapgnn import MLP, Ledger, dp_sgd, load_dataset
from gapgnn.graph import Graph, to_pyg

Cell = dict[str, Any]
NAMES = ("dataset", "method", "layers", "keep", "epsilon", "delta", "seed", "repeats", "options")


class GCN(nn.Module):
    """An encoder of rows and graph convolutions, without anything that mixes roots."""

    def __init__(self, columns: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(columns, hidden)
        widths = [hidden] * layers + [classes]
        self.convs = nn.ModuleList(GCNConv(one, other) for one, other in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the scores of every node."""
        x = self.encoder(6 * normalize(x))
        for conv in self.convs:
            x = conv(torch.selu(x), edge_index)
        return x


def accuracies(module: nn.Module, graph: Graph) -> dict[str, float]:
    """Return test accuracies with all neighbours and without any, in percent: NOT private."""
    data = to_pyg(graph)
    x = data.x.to_dense() if data.x.layout is not torch.strided else data.x
    found = {}
    with torch.no_grad():
        for name, arcs in (("all", data.edge_index), ("none", data.edge_index[:, :0])):
            right = module(x.float(), arcs).argmax(dim=1) == data.y
            found[name] = round(100 * float(right[data.test_mask].float().mean()), 3)
    return found


def measured(cell: Cell) -> Cell:
    """Run one cell and return it with the test accuracies of every repeat."""
    scores: dict[str, list[float]] = {}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        shared = {name: cell[name] for name in ("epsilon", "delta")} | {"ledger": ledger}
        for repeat in range(cell["repeats"]):
            graph = load_dataset(cell["dataset"], split_seed=cell["seed"] + repeat)
            begun = time.perf_counter()
            if cell["method"] == "MLP-DP":
                model = MLP(level="node", seed=cell["seed"] + repeat, **shared).fit(graph)
                found = {"none": round(100 * float(model.score(graph)), 3)}
            else:
                torch.manual_seed(cell["seed"] + repeat)
                module = GCN(graph.num_features, 16, graph.num_classes, cell["layers"])
                module, _ = dp_sgd(
                    module,
                    graph,
                    keep=cell["keep"],
                    announce=lambda text: None,
                    **shared,
                    **cell["options"],
                )
                found = accuracies(module, graph)
            seconds.append(round(time.perf_counter() - begun, 1))
            for name, score in found.items():
                scores.setdefault(name, []).append(score)
    machine = f"CPU, {platform.machine()}, 1 thread, torch {torch.__version__}"
    made = {"relation": "add-remove", "noise": "safe", "date": f"{date.today()}"}
    return {**cell, **made, "machine": machine, "seconds": seconds, "scores": scores}


def planned(arguments: argparse.Namespace) -> list[Cell]:
    """Return the cells of a run: MLP-DP once for each budget, and every GCN."""
    cells = []
    for dataset, epsilon in product(arguments.datasets, arguments.epsilons):
        own = {"dataset": dataset, "epsilon": epsilon}
        own |= {name: getattr(arguments, name) for name in ("delta", "seed", "repeats")}
        cells.append({**own, "method": "MLP-DP", "layers": 0, "keep": 1.0, "options": {}})
        for layers, keep in product(arguments.layers, arguments.keep):
            gcn = {"method": "GCN", "layers": layers, "keep": keep, "options": arguments.options}
            cells.append({**own, **gcn})
    return cells


def name_of(cell: Cell) -> str:
    return json.dumps([cell[name] for name in NAMES], sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    graphs = ["facebook100/Cornell5", "amazon-photo"]
    parser.add_argument("--datasets", nargs="+", default=graphs)
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--keep", nargs="+", type=float, default=[1.0, 0.5], help="of an arc")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[8.0, 16.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--repeats", type=int, default=3, help="splits, each with its own noise")
    parser.add_argument("--seed", type=int, default=940, help="of the first split (940)")
    parser.add_argument("--options", type=json.loads, default={}, help="of dp_sgd, as JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="cells, one on a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = set()
    if arguments.json is not None and arguments.json.exists():
        lines = arguments.json.read_text(encoding="utf-8").splitlines()
        known = {name_of(json.loads(line)) for line in lines}
    for cell in planned(arguments):
        if name_of(cell) in known:
            continue
        found = measured(cell)
        if arguments.json is not None:
            with arguments.json.open("a", encoding="utf-8") as out:
                out.write(json.dumps(found) + "\n")
        means = {name: round(statistics.mean(one), 2) for name, one in found["scores"].items()}
        words = [cell[name] for name in ("dataset", "method", "layers", "keep", "epsilon")]
        print(*words, means, f"{statistics.mean(found['seconds']):.0f} s", flush=True)


if __name__ == "__main__":
    main()
