"""Runs of every method that can be killed and go on, and a counter of what they release."""

from __future__ import annotations

import pytest

from gapgnn import GAP, MLP, Graph, GraphSAGE, LabelGAP
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import random_split
from gapgnn.methods import graphsage as sage_module
from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation
from gapgnn.training.trainer import Trainer

RUNS = {
    "label-gap edge": (LabelGAP, {"level": "edge", "hops": 2}),
    "gap edge": (GAP, {"level": "edge"}),
    "gap node": (GAP, {"level": "node", "max_degree": 5}),
    "label-gap none": (LabelGAP, {"level": "none", "hops": 2}),
    "sage edge": (GraphSAGE, {"level": "edge", "repeats": 2}),
    "sage node": (GraphSAGE, {"level": "node", "max_degree": 5}),
    "mlp node": (MLP, {"level": "node"}),
    "mlp edge": (MLP, {"level": "edge"}),
}
# MLP at edge level reads no edge, so like level none it has nothing to pay for.
PAID_RUNS = [name for name in RUNS if name not in ("label-gap none", "mlp edge")]


class KillError(BaseException):
    """Ends a run where it stands, as SIGKILL would."""


def people() -> Graph:
    return random_split(
        generate(num_nodes=300, mean_degree=6, num_features=4, num_classes=3), seed=0
    )


class Steps:
    """Lists what is trained and drawn, and kills the run after a number of such steps."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.kill_after: int | None = None

    def step(self, name: str) -> None:
        if self.kill_after is not None and len(self.done) >= self.kill_after:
            raise KillError
        self.done.append(name)


def counted_steps(monkeypatch: pytest.MonkeyPatch, *, released_only: bool = False) -> Steps:
    """Count the steps of every run from now on, or those among them that have a price."""
    steps = Steps()
    real_hop, real_fit, real_edges = PrivateAggregation.hop, Trainer.fit, sage_module.perturb_edges

    def hop(self, rows, index, **options):
        steps.step(f"hop {index}")
        return real_hop(self, rows, index, **options)

    def fit(self, model, inputs, *, phase, private=None):
        if private is not None or not released_only:
            steps.step(phase)
        return real_fit(self, model, inputs, phase=phase, private=private)

    def edges(*args, **options):
        steps.step("edges")
        return real_edges(*args, **options)

    monkeypatch.setattr(PrivateAggregation, "hop", hop)
    monkeypatch.setattr(Trainer, "fit", fit)
    monkeypatch.setattr(sage_module, "perturb_edges", edges)
    return steps
