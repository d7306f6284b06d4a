"""Of every method, on the path that users run: releases lie on the grid and have charged noise."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from methodgraphs import small_graph
from suited import suited

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
)
from gapgnn.privacy import Release, observed_by
from gapgnn.privacy import session as session_module
from gapgnn.privacy.mechanisms import backends
from gapgnn.privacy.mechanisms.noise import GRID, NoiseSource
from seeded_entropy import same_entropy

WAYS = {
    "label-gap edge": (LabelGAP, {"level": "edge"}),
    "gap edge": (GAP, {"level": "edge"}),
    "progap edge": (ProGAP, {"level": "edge"}),
    "progap node": (ProGAP, {"level": "node", "max_degree": 9}),
    "node-label-gap": (NodeLabelGAP, {"level": "node", "epsilon": 40.0}),
    "node-label-gap record": (NodeLabelGAP, {"level": "node", "own": "record"}),
    "node-label-gap share": (NodeLabelGAP, {"level": "node", "own": "nothing", "hop_share": 0.5}),
    "node-label-gap replace": (
        NodeLabelGAP,
        {"level": "node", "relation": "replace", "hop_share": 0.5},
    ),
    "gap node": (
        GAP,
        {
            "level": "node",
            "max_degree": 9,
            "noise_ratios": (2.0, 0.5, 1.5),
        },
    ),
    "sage edge": (GraphSAGE, {"level": "edge"}),
    "sage edge lapgraph": (GraphSAGE, {"level": "edge", "perturbation": "lapgraph"}),
    "sage node": (GraphSAGE, {"level": "node"}),
    "mlp node": (MLP, {"level": "node"}),
    "vote node": (NeighborVote, {"level": "node"}),
}
# What the noise of a release is: of its events the sort, and the field that says how much.
FIELDS = {
    "Gaussian": "noise_multiplier",
    "Laplace": "noise_multiplier",
    "PoissonGaussian": "noise_multiplier",
    "MixtureOfGaussians": "noise_multiplier",
    "LabelResponse": "other",
}
STEPS = ("PoissonGaussian", "MixtureOfGaussians")


def is_on_grid(values: Any) -> bool:
    steps = np.asarray(values, dtype=np.float64) / GRID
    return bool((steps == np.round(steps)).all())


class Watching:
    """Keeps every release with what came out, and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[Release, Any]] = []
        # Rows of hops with their noise, before they are scaled to norm 1; scales that were drawn
        # at all, and those that were checked before the charge.
        self.rows: list[torch.Tensor] = []
        self.drawn: set[float] = set()
        self.checked: set[float] = set()

    def begin(self, purpose: str, **about: Any) -> None:
        assert not self.drawn, "noise was drawn before the charge"

    def release(self, release: Release, output: Any) -> Any:
        kept = output.clone() if isinstance(output, torch.Tensor) else output
        self.seen.append((release, kept))
        return output

    def batch(self, phase: str, batch: Any, members: Any) -> Any:
        return batch


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph(num_nodes=200)


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[Watching, Any]]:
    return {}


def fitted(name: str, graph: Graph, runs: dict[str, tuple[Watching, Any]]) -> tuple[Watching, Any]:
    """Fit once per way, under the eyes of both tests."""
    if name in runs:
        return runs[name]
    method, options = WAYS[name]
    watching = Watching()
    scale_of, normalise, check = (
        NoiseSource._checked_scale,
        backends.row_normalise,
        session_module.check_scale,
    )

    def scaled(self: NoiseSource, what: str, scale: float) -> float:
        watching.drawn.add(scale)
        return scale_of(self, what, scale)

    def normalised(values: torch.Tensor, *, on_grid: bool = False) -> torch.Tensor:
        if on_grid:
            watching.rows.append(values.clone())
        return normalise(values, on_grid=on_grid)

    def checked(what: str, scale: float, noise: str = "safe") -> None:
        watching.checked.add(scale)
        check(what, scale, noise)

    with same_entropy(name), pytest.MonkeyPatch.context() as patch, observed_by(watching):
        patch.setattr(NoiseSource, "_checked_scale", scaled)
        patch.setattr(backends, "row_normalise", normalised)
        patch.setattr(session_module, "check_scale", checked)
        batch = {"batch_size": 60} if options["level"] == "node" else {}
        shared = {"epsilon": 4.0, "epochs": 2, **batch}
        model = suited(method, shared, **options).fit(graph)
    runs[name] = watching, model
    return runs[name]


def sort_of(release: Release) -> str:
    if " step " in release.name:
        return "steps"
    return release.name.split(" ")[0]


@pytest.mark.parametrize("name", WAYS)
def test_every_released_value_lies_on_its_grid(name, graph, runs):
    watching, model = fitted(name, graph, runs)
    cases = Counter(sort_of(release) for release, _ in watching.seen)
    assert cases, "nothing was released"
    for release, output in watching.seen:
        case = sort_of(release)
        if case == "edges":
            places, count = output
            assert is_on_grid(count)
            assert places.dtype == np.int64
        elif case == "labels":
            assert output.dtype == torch.int64
            assert set(output.unique().tolist()) <= set(range(-1, model.num_classes_))
        elif case in ("steps", "mean"):
            assert is_on_grid(output), release.name
            # Without rounding the low bits would be there to be seen.
            assert not is_on_grid(np.asarray(output, dtype=np.float64) + GRID / 8)
        else:
            assert case == "hop"
            # What noise is added to, too: its low bits would show through.
            assert is_on_grid(release.value), release.name
    assert all(rows.dtype == torch.float64 and is_on_grid(rows) for rows in watching.rows)
    if cases["hop"]:
        released = [out for release, out in watching.seen if sort_of(release) == "hop"]
        scaled = [out for out in released if not is_on_grid(out)]
        # Rows that were scaled to norm 1 were seen before that, all of them.
        assert sum(len(rows) for rows in watching.rows) == sum(
            out.shape[-2] if out.ndim == 2 else out.shape[0] * out.shape[1] for out in scaled
        )


@pytest.mark.parametrize("name", WAYS)
def test_every_release_has_the_noise_of_its_charged_event(name, graph, runs):
    watching, model = fitted(name, graph, runs)
    charged: dict[str, Counter] = {}
    for event in model.card_.events:
        count = event.get("count", event.get("steps"))
        field = FIELDS.get(event["event"])
        if field is not None:
            charged.setdefault(event["event"], Counter())[float(f"{event[field]:.9g}")] += count
    found: dict[str, Counter] = {}
    drawn: set[float] = set()
    for release, output in watching.seen:
        case = sort_of(release)
        noise = release.scale if case == "labels" else release.scale / release.sensitivity
        event = {"hop": "Gaussian", "mean": "Laplace", "labels": "LabelResponse"}.get(case)
        if case == "steps":
            (event,) = (one for one in STEPS if one in charged)
            # A mixture counts in clips what one record touches in several.
            noise = release.scale
        if case == "edges":
            # The number of edges beside the bits; noise on bits is never released itself.
            first = model.card_.events[0]
            scale = first["noise_multiplier"] * release.sensitivity
            assert {scale} == watching.drawn == watching.checked
            assert output[1] is not None
            return
        if case != "labels":
            drawn.add(release.scale)
        found.setdefault(event, Counter())[float(f"{noise:.9g}")] += 1
    assert found == charged
    # No other noise was drawn than what was seen, and all of it was checked before the charge,
    # but for the mean out-degree, which is counted in units that the grid can carry.
    assert watching.drawn == drawn
    length = {r.scale for r, _ in watching.seen if sort_of(r) == "mean"}
    assert drawn - length <= watching.checked


def test_what_an_adaptive_choice_may_draw_is_checked_for_every_option(graph, runs):
    watching, model = fitted("node-label-gap", graph, runs)
    plan = model.guarantee(graph)
    events = [event for event in plan.events if type(event).__name__ != "Laplace"]
    assert {event.option for event in events} >= {1, 2, 3}
    # Sensitivity 1: nodes divide what they send.
    for event in events:
        assert any(
            math.isclose(event.noise_multiplier, scale, rel_tol=1e-12) for scale in watching.checked
        ), event
