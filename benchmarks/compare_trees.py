"""Compare what two checkouts of gapgnn release, charge, predict and save, case by case.

    python benchmarks/compare_trees.py record --out before.json     # in one checkout
    python benchmarks/compare_trees.py record --out after.json      # in the other one
    python benchmarks/compare_trees.py compare before.json after.json
    python benchmarks/compare_trees.py golden --out tests/golden/releases.json

Every case trains one method on a small graph with a predictable noise key and records, in order,
what was released: name, shape, sensitivity, noise, and a digest of the value without noise and of
the value with noise. Beside them stand the events and the price on the card, the charges in the
ledger, digests of predictions, and what the saved folder holds. Values depend on the machine, so
two recordings are compared on the same one; ``golden`` writes the parts that do not depend on it.

``compare`` exits with 1 and lists every difference, by case and by what differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
    load_model,
    random_split,
)
from gapgnn.graph import join_edge_types
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.methods import NodeClassifier
from gapgnn.privacy import Relation, Release, observed_by
from gapgnn.privacy.checkpoint import Checkpoint

# Parts of a recording that are the same on every machine.
PORTABLE = ("releases", "events", "price", "charges", "files")
# What is a property of the numbers that this machine computes.
VALUES = ("value", "output")
NODES = 320


@dataclass(frozen=True)
class Case:
    """One run to record.

    Attributes:
        method: name in :data:`METHODS`.
        graph: name in :data:`GRAPHS`.
        options: of the method.
        way: ``fit``; ``store``: from a graph on disk; ``resume``: killed after its second release
            and resumed; ``predict``: also on a graph that the model has not read; ``own``: the
            same with the node's own neighbours.
    """

    method: str
    graph: str = "symmetric"
    options: Mapping[str, Any] = field(default_factory=dict)
    way: str = "fit"

    @property
    def name(self) -> str:
        """The case in words, by which two recordings are matched."""
        options = ", ".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return " | ".join(part for part in (self.method, self.graph, options, self.way) if part)


METHODS: dict[str, Callable[..., NodeClassifier]] = {
    method.__name__: method
    for method in (GAP, ProGAP, LabelGAP, NodeLabelGAP, NeighborVote, GraphSAGE, MLP)
}


def _pairs(graph: Graph) -> tuple[Any, Any]:
    arcs = graph.adjacency().tocoo()
    return arcs.row, arcs.col


def _built(base: Graph, source: Any, target: Any, *, directed: bool, weights: Any = None) -> Graph:
    return Graph.from_arcs(
        source,
        target,
        num_nodes=base.num_nodes,
        features=base.features,
        labels=base.labels,
        ids=base.ids,
        directed=directed,
        weights=weights,
        weight_bounds=None if weights is None else (0.0, 5.0),
    )


def _symmetric(seed: int = 3) -> Graph:
    made = social_graph(num_nodes=NODES, mean_degree=14, num_classes=3, seed=seed)
    named = np.array([f"p{seed}-{place}" for place in range(NODES)])
    source, target = _pairs(made)
    return Graph.from_arcs(
        source,
        target,
        num_nodes=NODES,
        features=made.features,
        labels=made.labels,
        ids=named,
        directed=False,
    )


def _directed(seed: int = 3) -> Graph:
    base = _symmetric(seed)
    source, target = _pairs(base)
    kept = (source * 7 + target * 3) % 5 < 3
    return _built(base, source[kept], target[kept], directed=True)


def _of_types(base: Graph, *, weights: bool = False) -> Graph:
    """Split the edges into two types of unequal size."""
    source, target = _pairs(base)
    low, high = np.minimum(source, target), np.maximum(source, target)
    is_call = (low * 11 + high * 5) % 4 > 0
    amounts = ((low * 7 + high * 13) % 57) / 8 if weights else None
    found = {}
    for name, mine in (("calls", is_call), ("visits", ~is_call)):
        some = None if amounts is None or name == "visits" else amounts[mine]
        found[name] = _built(
            base, source[mine], target[mine], directed=base.is_directed, weights=some
        )
    return join_edge_types(found)


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "symmetric": _symmetric,
    "directed": _directed,
    "two edge types": lambda seed: _of_types(_symmetric(seed)),
    "two weighted edge types": lambda seed: _of_types(_symmetric(seed), weights=True),
    "two directed edge types": lambda seed: _of_types(_directed(seed)),
}


def cases() -> list[Case]:
    """Return every case: level, relation, method, edge types, weights, own, store, resume."""
    found = []
    quick = {"epochs": 2, "epsilon": 4.0}
    node = {**quick, "level": "node", "batch_size": 60}
    for method in ("GAP", "ProGAP", "LabelGAP"):
        for relation in ("undirected", "directed", "3-edges"):
            options = {**quick, "relation": relation, "hops": 2}
            found.append(Case(method, options=options, way="predict"))
        for relation in ("directed", "3-arcs"):
            options = {**quick, "relation": relation, "hops": 2}
            found.append(Case(method, "directed", options))
        found += [
            Case(method, "two edge types", {**quick, "hops": 2}, "predict"),
            Case(method, "two weighted edge types", {**quick, "hops": 2, "edge_types": "each"}),
            Case(method, "two directed edge types", {**quick, "relation": "3-arcs", "hops": 2}),
            Case(method, options={**quick, "hops": 2}, way="store"),
            Case(method, options={**quick, "hops": 3}, way="resume"),
            Case(method, options={"epochs": 2, "hops": 2, "level": "none"}),
        ]
    found += [
        Case("LabelGAP", options=quick),
        Case("LabelGAP", options={**quick, "hops": 2}, way="own"),
        Case("LabelGAP", "directed", quick, "own"),
        Case("LabelGAP", options={**quick, "repeats": 2, "noise": "fast"}),
        Case("LabelGAP", options={**quick, "class_weight": "balanced", "folds": 0}),
    ]
    for method in ("GAP", "ProGAP"):
        for relation in ("add-remove", "replace"):
            options = {**node, "relation": relation, "max_degree": 6, "hops": 2}
            found.append(Case(method, options=options, way="predict"))
        options = {**node, "max_degree": 6, "hops": 2}
        found += [
            Case(method, "two weighted edge types", options),
            Case(method, "directed", options, "resume"),
            Case(method, options=options, way="store"),
        ]
    for own in ("nothing", "features", "record"):
        for relation in ("add-remove", "replace"):
            options = {**node, "relation": relation, "own": own, "hop_share": 0.5}
            found.append(Case("NodeLabelGAP", options=options, way="predict"))
    found += [
        Case("NodeLabelGAP", options=node),
        Case("NodeLabelGAP", options={**node, "epsilon": 16.0}, way="resume"),
        Case("NodeLabelGAP", "two edge types", {**node, "hop_share": 0.5}),
        Case("NodeLabelGAP", options={**node, "hop_share": 0.5}, way="store"),
        Case("NodeLabelGAP", "directed", {**node, "hop_share": 0.5}, "resume"),
        Case("NeighborVote", options={"level": "edge", "epochs": 2}),
        Case("NeighborVote", options={"level": "node", "epsilon": 2.0}),
        Case("NeighborVote", options={"level": "node", "epsilon": 2.0, "relation": "replace"}),
        Case("GraphSAGE", options={"epochs": 2, "level": "none"}),
        Case("GraphSAGE", options=quick, way="predict"),
        Case("GraphSAGE", "directed", {**quick, "perturbation": "edgerand"}, "resume"),
        Case("GraphSAGE", options={**quick, "perturbation": "lapgraph"}),
        Case("GraphSAGE", options={**node, "max_degree": 4}, way="predict"),
        Case("MLP", options={"level": "edge", "epochs": 2}),
        Case("MLP", options=node, way="resume"),
        Case("MLP", options={**node, "relation": "replace", "optimizer": "sgd"}),
    ]
    return found


class Killed(BaseException):
    """Stands for a kill, right after a release was drawn."""


class Observer:
    """Writes down every release of a run; of the steps of one network, one line."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._kill_after, self._count = kill_after, 0

    def begin(self, purpose: str, *, ids: Any, relation: Relation) -> None:
        """Note what is promised."""
        about = {"begin": purpose, "people": len(ids), "level": relation.level}
        self.lines.append({**about, "relation": relation.name})

    def release(self, release: Release, output: Any) -> Any:
        """Note a release."""
        self._count += 1
        if self._count == self._kill_after:
            raise Killed
        name = re.sub(r"step \d+", "steps", release.name)
        line = {
            "name": name,
            "shape": list(np.shape(release.value)),
            "measure": release.measure,
            "sensitivity": release.sensitivity,
            "scale": release.scale,
        }
        value, noisy = _digest(release.value), _digest(output)
        last = self.lines[-1]
        if all(last.get(key) == line[key] for key in line):
            last["count"] += 1
            value, noisy = _digest(last["value"] + value), _digest(last["output"] + noisy)
            last.update(value=value, output=noisy)
        else:
            self.lines.append({**line, "count": 1, "value": value, "output": noisy})
        return output

    def batch(self, phase: str, batch: Any, members: Any) -> Any:
        """Leave a batch as it is."""
        return batch


def _digest(value: Any) -> str:
    if value is None or isinstance(value, str | int | float):
        raw = repr(value).encode()
    elif isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(value, tuple | list):
        raw = "".join(map(_digest, value)).encode()
    elif hasattr(value, "__dict__") and not isinstance(value, np.ndarray | np.generic):
        raw = "".join(map(_digest, vars(value).values())).encode()
    else:
        raw = np.ascontiguousarray(value).tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def record(case: Case) -> dict[str, Any]:
    """Run one case and return everything that two checkouts must agree on."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _recorded(case, Path(scratch))


def _recorded(case: Case, scratch: Path) -> dict[str, Any]:
    ledger = Ledger.init(scratch / "ledger.sqlite")
    graph: Any = random_split(GRAPHS[case.graph](3), seed=0)
    if case.way == "store":
        store_graph(graph, scratch / "store", parts=3)
        graph = open_store(scratch / "store")

    def fresh() -> NodeClassifier:
        fixed: dict[str, Any] = {"device": "cpu", "ledger": ledger.path}
        level = case.options.get("level", "edge")
        releases_nothing = level == "edge" and case.method in ("MLP", "NeighborVote")
        if level != "none" and not releases_nothing:
            fixed["insecure_noise_seed"] = 5
        return METHODS[case.method](**case.options, **fixed)

    def checkpoint(**options: Any) -> Checkpoint | None:
        if case.way != "resume":
            return None
        return Checkpoint(scratch / "unfinished", ledger=ledger.path, **options)

    observer, model = Observer(2 if case.way == "resume" else None), fresh()
    first = checkpoint()
    with observed_by(observer):
        try:
            model.fit(graph, checkpoint=first)
        except Killed:
            assert first is not None
            first.close()
            model = fresh().fit(graph, checkpoint=checkpoint(resume=True))
    found: dict[str, Any] = {"predictions": {}}
    found["predictions"]["training graph"] = _digest(model.predict_proba(graph))
    if case.way in ("predict", "own"):
        other = random_split(GRAPHS[case.graph](4), seed=0)
        own = {"own": "record"} if case.way == "own" else {}
        with observed_by(observer):
            found["predictions"]["another graph"] = _digest(model.predict_proba(other, **own))
    model.save(scratch / "model")
    model = load_model(scratch / "model", ledger=ledger.path)
    found["predictions"]["loaded"] = _digest(model.predict_proba(graph))
    card = json.loads((scratch / "model" / "card.json").read_text())
    found |= {
        "releases": observer.lines,
        "events": card["events"],
        "price": {key: card[key] for key in ("level", "relation", "epsilon", "delta")},
        "charges": [
            [one.level, one.relation, one.epsilon, one.delta, one.count, one.events]
            for one in ledger.entries()
        ],
        # The names of released files are random.
        "files": sorted(
            re.sub(r"[0-9a-f]{8,}", "*", str(path.relative_to(scratch / "model")))
            for path in _files(scratch)
        ),
        "weights": {
            path.name: _digest(path.read_bytes().hex())
            for path in _files(scratch)
            if path.suffix == ".safetensors" and path.parent.name == "model"
        },
    }
    return found


def _files(scratch: Path) -> Iterator[Path]:
    return (path for path in (scratch / "model").rglob("*") if path.is_file())


def portable(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a recording that do not depend on the machine."""
    found = {key: recorded[key] for key in PORTABLE}
    found["releases"] = [
        {key: value for key, value in line.items() if key not in VALUES}
        for line in recorded["releases"]
    ]
    return found


def differences(before: Any, after: Any, place: str = "", *, tolerance: float = 1e-12) -> list[str]:
    """Return every place at which two recordings differ.

    Args:
        before: of one checkout.
        after: of the other one.
        place: where in the recording these are.
        tolerance: relative, of numbers. Where a calibration ends depends on the machine's libm and
            on what was calibrated before it in the ninth digit.

    >>> differences({"a": [1, 2]}, {"a": [1, 3]})
    ['a[1]: 2 -> 3']
    """
    if isinstance(before, dict) and isinstance(after, dict):
        lines = []
        for key in sorted({*before, *after}):
            where = f"{place}.{key}" if place else str(key)
            lines += differences(before.get(key), after.get(key), where, tolerance=tolerance)
        return lines
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        found = (
            differences(*pair, f"{place}[{k}]", tolerance=tolerance)
            for k, pair in enumerate(zip(before, after, strict=True))
        )
        return [line for lines in found for line in lines]
    if isinstance(before, float) and isinstance(after, float):
        is_same = before == after or abs(before - after) <= tolerance * abs(before)
        return [] if is_same else [f"{place}: {before!r} -> {after!r}"]
    return [] if before == after else [f"{place}: {before!r} -> {after!r}"]


def main() -> int:
    """Record, compare, or write the golden file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("record", "golden"):
        action = actions.add_parser(name)
        action.add_argument("--out", type=Path, required=True)
        action.add_argument("--only", default="", help="cases whose name has this in it")
    action = actions.add_parser("compare")
    action.add_argument("before", type=Path)
    action.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.action == "compare":
        pair = (json.loads(path.read_text()) for path in (args.before, args.after))
        lines = differences(*pair)
        print("\n".join(lines) or "No difference.")
        return int(bool(lines))
    torch.set_num_threads(1)
    found = {}
    for case in cases():
        if args.only in case.name:
            print(case.name, file=sys.stderr)
            recorded = record(case)
            found[case.name] = recorded if args.action == "record" else portable(recorded)
    args.out.write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
