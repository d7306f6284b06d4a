"""Of every method, from the plan to predictions by a reloaded model: what must agree does.

Noise is used once, batches are sampled at the charged rate, and plan, observed releases, ledger,
card and folder state the same events and prices.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from methodgraphs import small_graph, with_arcs
from scipy.optimize import brentq
from scipy.stats import norm
from suited import suited
from typedgraphs import unlike_types

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
)
from gapgnn.privacy import auto_delta, observed_by, public_count
from gapgnn.privacy.accounting import (
    Event,
    Gaussian,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    account,
)
from gapgnn.privacy.mechanisms import draws, noise
from gapgnn.privacy.mechanisms.draws import Coins, Draws
from gapgnn.training import repeat_splits
from gapgnn.training import trainer as trainer_module
from seeded_entropy import same_entropy

NODE = {"level": "node", "batch_size": 30}
# Method, options, which graph, and whether predictions on another graph are released.
WAYS: dict[str, tuple[type, dict[str, Any], str, bool]] = {
    # With folds and so few epochs no hop is read in the end, and predictions are free.
    "label-gap, folds": (LabelGAP, {"level": "edge", "hops": 2}, "plain", False),
    "label-gap": (LabelGAP, {"level": "edge", "hops": 2, "folds": 0}, "plain", True),
    "label-gap, all types": (LabelGAP, {"level": "edge", "hops": 1, "folds": 0}, "weighted", True),
    "label-gap, each type": (
        LabelGAP,
        {"level": "edge", "hops": 1, "folds": 0, "edge_types": "each"},
        "types",
        True,
    ),
    "label-gap, symmetrised": (
        LabelGAP,
        {"level": "edge", "hops": 1, "folds": 0, "directions": "both"},
        "directed",
        True,
    ),
    "gap, 3 edges": (GAP, {"level": "edge", "relation": "3-edges"}, "plain", True),
    "gap with amounts": (GAP, {"level": "edge"}, "weighted", True),
    "gap node, types": (GAP, {**NODE, "max_degree": 3, "hops": 1}, "types", True),
    "progap": (ProGAP, {"level": "edge", "hops": 2}, "plain", True),
    "progap node": (ProGAP, {**NODE, "hops": 1, "max_degree": 5}, "plain", True),
    "node-label-gap": (NodeLabelGAP, NODE, "plain", True),
    "node-label-gap, features alone": (NodeLabelGAP, NODE, "plain", False),
    "node-label-gap, record, types": (
        NodeLabelGAP,
        {**NODE, "own": "record", "hop_share": 0.5},
        "types",
        True,
    ),
    "node-label-gap, replace": (
        NodeLabelGAP,
        {**NODE, "relation": "replace", "own": "nothing", "hop_share": 0.5},
        "plain",
        True,
    ),
    "sage": (GraphSAGE, {"level": "edge"}, "plain", True),
    "sage, both arcs": (
        GraphSAGE,
        {"level": "edge", "relation": "undirected"},
        "directed",
        True,
    ),
    "sage node": (GraphSAGE, {**NODE, "max_degree": 3}, "plain", True),
    "mlp node": (MLP, {**NODE}, "plain", False),
    "vote node": (NeighborVote, {"level": "node"}, "plain", False),
}
# How far one neighbour moves one hop, squared, by section 1 of the privacy page; or how many bits
# of the edges.
SQUARED = {
    "label-gap, folds": 2,
    "label-gap": 2,
    "label-gap, all types": 2,
    "label-gap, each type": 2,
    "label-gap, symmetrised": 2,
    "gap, 3 edges": 3**2 + 3,
    "gap with amounts": 2,
    "gap node, types": 3,
    "progap": 2,
    "progap node": 5,
    "node-label-gap": 1,
    "node-label-gap, record, types": 1,
    "node-label-gap, replace": 4,
    "sage": 1,
    "sage, both arcs": 4,
    "sage node": 3,
}


@cache
def graphs(case: str) -> tuple[Graph, Graph, Graph]:
    """Return a graph to train on and two of the same people with other edges."""
    if case in ("types", "weighted"):
        whole = unlike_types(weighted=case == "weighted")
        names = list(whole.label_names)
        others = [
            whole._replace(labels=np.roll(whole.labels, shift), label_names=tuple(names))
            for shift in (1, 2)
        ]
        return whole, *others
    # More than a hundred train, so that the public number of them is not the exact one.
    whole = small_graph(num_nodes=160)
    arcs = whole.adjacency().tocoo()
    key = np.minimum(arcs.row, arcs.col) + np.maximum(arcs.row, arcs.col)
    if case == "directed":
        key = 2 * arcs.row + arcs.col
    return tuple(with_arcs(whole, key % 7 != k, directed=case == "directed") for k in range(3))


@dataclass
class Run:
    """What one way of training and predicting left to be compared."""

    ledger: Ledger
    reads_hops: bool
    planned: Any = None
    models: list[Any] = field(default_factory=list)
    loaded: Any = None
    folder: Path | None = None
    # Of every stream of the cipher the blocks that were drawn.
    blocks: dict[tuple[bytes, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    releases: list[Any] = field(default_factory=list)
    # How many releases the first fit made, and how often it tossed coins.
    fitted: int = 0
    counted: int = 0
    # How many coins were tossed, with which probability: for heads, and for each.
    tossed: list[tuple[int, float]] = field(default_factory=list)
    flipped: list[tuple[int, float]] = field(default_factory=list)
    divisors: set[float] = field(default_factory=set)
    # Of every training by DP-SGD whom each repeat draws from.
    members: dict[str, list[Any]] = field(default_factory=dict)

    def begin(self, purpose: str, **about: Any) -> None:
        pass

    def release(self, release: Any, output: Any) -> Any:
        self.releases.append((release, output))
        if release.name == "mean out-degree":
            # Whatever the noise says, lists are so long that hops are worth it, or so short.
            return torch.full_like(output, 1e4 if self.reads_hops else 0.0)
        return output

    def batch(self, phase: str, batch: Any, members: Any) -> Any:
        """Leave nobody in the first batch of the first fit, but for what fills it up."""
        if phase in self.members or batch.step:
            return batch
        self.members[phase] = members
        return replace(batch, valid=torch.zeros_like(batch.valid))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    known: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in known:
            known[name] = carried_out(name, tmp_path_factory.mktemp("run"))
        return known[name]

    return run


def carried_out(name: str, folder: Path) -> Run:
    """Fit twice, save, predict, load and predict once more, under observation."""
    method, options, case, releases = WAYS[name]
    graph, second, third = graphs(case)
    run = Run(Ledger.init(folder / "ledger.sqlite"), releases)
    words, heads, each = draws.cipher_words, Coins.heads, Coins.each
    step = trainer_module.PrivateStep

    def drawn(secret: bytes, part: int, first: int, count: int) -> Any:
        run.blocks[secret, part].append((first, first + count))
        return words(secret, part, first, count)

    def tossed(self: Coins, count: int, probability: float, *path: Any) -> Any:
        run.tossed.append((count, probability))
        return heads(self, count, probability, *path)

    def flipped(self: Coins, count: int, probability: float, *path: Any) -> Any:
        run.flipped.append((count, probability))
        return each(self, count, probability, *path)

    class Step(step):
        def __init__(self, *args: Any, expected_batch: float, **given: Any) -> None:
            run.divisors.add(expected_batch)
            super().__init__(*args, expected_batch=expected_batch, **given)

    shared = {"epsilon": 6.0, "epochs": 1, "hidden": 4, "ledger": run.ledger.path, "device": "cpu"}
    with same_entropy(name), pytest.MonkeyPatch.context() as patch, observed_by(run):
        patch.setattr(draws, "cipher_words", drawn)
        patch.setattr(noise, "cipher_words", drawn)
        patch.setattr(Coins, "heads", tossed)
        patch.setattr(Coins, "each", flipped)
        # Of 63 bits, and not of the cipher: for experiments.
        for place, fast in ((noise, "torch_generator"), (Draws, "_generator")):
            patch.setattr(place, fast, partial(pytest.fail, "fast noise in a safe run"))
        patch.setattr(trainer_module, "PrivateStep", Step)
        for repeats in (2, 1):
            model = suited(method, {**shared, "repeats": repeats}, **options)
            run.planned = run.planned or model.plan_for(graph)
            run.models.append(model.fit(graph))
            if repeats == 2:
                run.fitted, run.counted = len(run.releases), len(run.tossed)
        run.folder = folder / "model"
        run.models[0].save(run.folder)
        if releases:
            run.models[0].predict(second)
            run.models[0].save_releases(run.folder)
            run.loaded = load_model(run.folder, ledger=run.ledger.path, device="cpu")
            run.loaded.predict(third)
    return run


@pytest.mark.parametrize("name", WAYS)
def test_no_noise_is_used_twice(name, runs):
    """Not by two repeats, hops, types, steps, phases, models, or by training and prediction."""
    blocks = runs(name).blocks
    assert blocks
    for ranges in blocks.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(ranges)):
            assert end <= start


@pytest.mark.parametrize("name", WAYS)
def test_what_noise_is_added_to_lies_on_its_grid(name, runs):
    for release, _ in runs(name).releases:
        if release.name.startswith(("hop ", "mean ")):
            steps = np.asarray(release.value) / noise.GRID
            assert (steps == np.round(steps)).all(), release.name


@pytest.mark.parametrize("name", SQUARED)
def test_hops_and_edges_have_the_noise_of_their_charge_for_one_neighbour(name, runs):
    run = runs(name)
    charged = [
        Event.from_dict(dict(event)) for entry in run.ledger.entries() for event in entry.events
    ]
    multipliers = [one.noise_multiplier for one in charged if isinstance(one, Gaussian)]
    found = [one for one, _ in run.releases if one.name.startswith(("hop ", "edges"))]
    assert found
    for one in found:
        assert one.sensitivity == pytest.approx(math.sqrt(SQUARED[name]), rel=1e-12), one.name
        if one.name != "edges":
            assert any(
                math.isclose(one.scale, multiplier * one.sensitivity) for multiplier in multipliers
            )
    if not name.startswith("sage") or "node" in name:
        return
    # A bit comes up with the probability of the charged response, or with both thinned alike.
    (response,) = {one for one in charged if isinstance(one, RandomisedResponse)}
    bits = math.isqrt(SQUARED[name])
    assert response.count == bits
    for (_, absent), (_, extra) in zip(run.tossed, run.flipped, strict=True):
        present = absent + extra * (1 - absent)
        assert present / absent <= (1 - response.drop) / response.add * (1 + 1e-9)
        assert (1 - absent) / (1 - present) <= (1 - response.add) / response.drop * (1 + 1e-9)


@pytest.mark.parametrize("name", WAYS)
def test_what_was_planned_is_charged_and_stated_on_card_and_in_the_folder(name, runs):
    run = runs(name)
    promise, model = run.planned.promise, run.models[0]
    first, other, *predictions = run.ledger.entries()
    card = model.card_
    events = tuple(event.to_dict() for event in promise.events)
    assert (first.count, other.count) == (2, 1)
    for charge, fitted in ((first, model), (other, run.models[1])):
        assert charge.events == events
        assert (charge.epsilon, charge.delta) == (promise.epsilon, promise.delta)
        assert (charge.level, charge.relation) == (promise.level, str(promise.relation))
        assert charge.completed_at is not None
        assert fitted.card_.ledger.charge_id == charge.id
        assert (fitted.card_.epsilon, fitted.card_.delta) == (charge.epsilon, charge.delta)
        assert fitted.card_.releases[0].events == charge.events
        # Of an adaptive choice the card has one option.
        known = [{**event, "option": 0} for event in events]
        assert all({**event, "option": 0} in known for event in fitted.card_.events)
    loaded = load_model(run.folder, ledger=run.ledger.path).card_
    assert loaded == card
    stated = (run.loaded or model).card_.releases
    assert [one.charge_id for one in stated] == [first.id, *(one.id for one in predictions)]
    for one, charge in zip(stated[1:], predictions, strict=True):
        assert charge.count == 1
        assert (one.epsilon, one.delta, str(one.relation)) == (
            charge.epsilon,
            charge.delta,
            charge.relation,
        )
        assert one.events == charge.events
        paid = [Event.from_dict(dict(event)) for event in charge.events]
        assert account(paid, charge.delta, relation=charge.relation).epsilon <= charge.epsilon * (
            1 + 1e-9
        )
    assert bool(predictions) == WAYS[name][3]


def exact_epsilon(shift: float, delta: float) -> float:
    """Return epsilon of N(0, 1) against N(shift, 1), by the two probabilities themselves."""

    def excess(epsilon: float) -> float:
        a, b = epsilon / shift - shift / 2, epsilon / shift + shift / 2
        return float(norm.sf(a) - math.exp(epsilon) * norm.sf(b)) - delta

    return float(brentq(excess, 0, 200))


@pytest.mark.parametrize("name", [name for name in WAYS if "edge" in str(WAYS[name][1])])
def test_the_noise_that_was_observed_costs_what_was_promised(name, runs):
    run = runs(name)
    promise, fitted = run.planned.promise, run.releases[: run.fitted]
    if not all(isinstance(event, Gaussian) for event in promise.events):
        assert "sage" in name
        return
    hops = [(one, *one.name.partition(" of repeat ")[::2]) for one, _ in fitted]
    first = [(one, what.rpartition(" along ")[2]) for one, what, repeat in hops if repeat == "1"]
    # Where one edge of any type is protected, it is in the sums of that type and of their union.
    is_any = run.models[0].card_.protects == "any"
    moved = [one for one, edges in first if not is_any or edges != "visits"]
    assert moved
    shift = math.sqrt(sum((one.sensitivity / one.scale) ** 2 for one in moved))
    assert exact_epsilon(shift, promise.delta) == pytest.approx(promise.epsilon, rel=1e-6)
    assert promise.epsilon == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize("name", [name for name in WAYS if "batch_size" in str(WAYS[name][1])])
def test_batches_are_sampled_at_the_charged_rate_as_often_as_was_charged(name, runs):
    run, graph = runs(name), graphs(WAYS[name][2])[0]
    members, known = int(graph.train_mask.sum()), (PoissonGaussian, MixtureOfGaussians)
    assert members < 100 or public_count(members) != members
    charged = [event for event in run.planned.promise.events if isinstance(event, known)]
    (steps,) = {event.steps for event in charged}
    # By the rounded number, which is public, and not by the exact one.
    rate = 30 / public_count(members)
    for event in charged:
        if isinstance(event, PoissonGaussian):
            assert event.sampling_rate == rate
    tossed = run.tossed[: run.counted]
    assert {found for _, found in tossed} == {rate}
    assert run.divisors == {30.0}
    phases = Counter(one.name.partition(" step ")[0] for one, _ in run.releases[: run.fitted])
    phases = {
        phase: count
        for phase, count in phases.items()
        if phase in run.models[0].modules_ or phase == "classifier"
    }
    options = {event.option for event in charged}
    assert list(phases.values()) == [steps] * (len(charged) // len(options))
    # One coin for each person and step; the first repeat has the split of the graph.
    assert sum(count == members * steps for count, _ in tossed) >= len(phases)


@pytest.mark.parametrize("name", [name for name in WAYS if "batch_size" in str(WAYS[name][1])])
def test_each_repeat_trains_on_its_own_training_nodes_and_on_no_padding(name, runs):
    run, graph = runs(name), graphs(WAYS[name][2])[0]
    model = run.models[0]
    own = repeat_splits(graph, level="node", repeats=2, split=model.split, seed=model.seed)
    assert run.members
    for phase, members in run.members.items():
        for found, mask in zip(members, own.train, strict=True):
            assert found.tolist() == np.flatnonzero(mask).tolist()
        first = next(one for one, _ in run.releases if one.name == f"{phase} step 1")
        assert len(first.value) == 2
        assert not np.any(first.value)


@pytest.mark.parametrize("name", WAYS)
def test_delta_follows_from_all_that_the_relation_protects(name, runs):
    run, (graph, *_) = runs(name), graphs(WAYS[name][2])
    card = run.models[0].card_
    if not card.delta_is_auto:
        assert card.delta == 0
        return
    pairs = set()
    for case, edges in enumerate(graph.edge_types):
        arcs = edges.adjacency().tocoo()
        for one, other in zip(arcs.row.tolist(), arcs.col.tolist(), strict=True):
            is_arc = str(card.relation) == "directed"
            pairs.add((case, one, other) if is_arc else (case, *sorted((one, other))))
    entities = graph.num_nodes if card.level == "node" else len(pairs)
    assert card.delta == auto_delta(entities)
