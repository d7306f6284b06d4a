"""Audit of the noisy steps of SAGE at node level, where one record is part of many examples.

An example is a node with its in-neighbours, clipped as one. The canary is a record v whose out-list
names D people. All features of v and of these people lie in one direction: theirs say -1, v's say
+2, both much longer than the clip. With v in the graph the gradients of the D examples point one
way with the clipped norm, without v they point the other way, and v's own example comes on top: the
2 D + 1 clips of the privacy page's section 5.

The shipped estimator trains; only its network is exchanged for one linear map, whose gradient is
the sum of an example's features wherever the weights are. Each group of v and D people has a
direction of its own, so one training holds as many independent trials as there are groups. The
attacker watches the weights move at every step and adds up the logarithm of the likelihood ratio of
the two mixtures of Gaussians.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.attacks.bounds import LEAST_TRIALS, Scores, Trials, coins
from gapgnn.attacks.report import AuditReport, View, conclude, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import induced
from gapgnn.methods.guarantee import Guarantee
from gapgnn.methods.sage import SAGE
from gapgnn.nn.layers import ReplicaLinear
from gapgnn.nn.sage import Sage
from gapgnn.privacy.accounting import account
from gapgnn.privacy.calibration import calibrate, search_multiplier
from gapgnn.privacy.events import Gaussian, MixtureOfGaussians
from gapgnn.privacy.neighbourhoods import neighbourhood_event
from gapgnn.privacy.noise import Construction
from gapgnn.privacy.pld import pld_delta
from gapgnn.rng import experiment_rng

Progress = Callable[[int, int], None]
GROUPS = 500
_LENGTH = 10.0
# Nodes without features: they fill up the training set, whose size is public, and one is for tests.
_SPARE = 4
# So small that the loss stays where its slope is constant; the weights' precision is far finer.
_RATE_OF_LEARNING = 1e-3


class _Sum(Sage):
    """Adds up the features of an example's parts: its gradient is that very sum."""

    def __init__(self, replicas: int, num_features: int) -> None:
        nn.Module.__init__(self)
        self.unit_messages = False
        self.pre = ReplicaLinear(replicas, num_features, 1, bias=False)  # type: ignore[assignment]

    def classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        """Return scores of the two classes that differ by twice the sum."""
        total = codes + summed
        return torch.cat([total, -total], dim=-1)


class _Canary(SAGE):
    """The shipped estimator with the network of the audit, at a noise that is given."""

    promised: Guarantee

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {"sage": _Sum(replicas, num_features)}

    def _resolve(self, graph: Graph) -> Guarantee:
        return self.promised


class _Steps:
    """Watches the weights: what each step released is how far it moved them."""

    def __init__(self, model: _Canary) -> None:
        self.model = model
        self.moves: list[Tensor] = []

    def start(self, phase: str, total: int) -> None:
        """Begin where the slope of every loss is the same."""
        with torch.no_grad():
            self._weights().zero_()
        self._before = self._weights().clone()

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Keep the last move."""
        now = self._weights().clone()
        self.moves.append(now - self._before)
        self._before = now

    def _weights(self) -> Tensor:
        layer = self.model.modules_["sage"].pre
        assert isinstance(layer, ReplicaLinear)
        return layer.weight.detach()[0, :, 0]


def audit_subgraphs(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    steps: int = 20,
    sampling_rate: float = 0.2,
    max_degree: int = 4,
    trials: int = 10_000,
    noise_multiplier: float | None = None,
    clip: float = 1.0,
    confidence: float = 0.95,
    construction: Construction = "safe",
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the training of SAGE at node level with canary records; bound its epsilon from below.

    Relation ``add-remove``: the record is in the graph or not, entries that name it dangle. One
    step moves by at most ``clip (2 D + 1)``, by chance of the batch mostly by less (privacy page,
    sections 5 and 8). What is audited is the training; the noisy aggregation that predictions read
    has an audit of its own.

    Args:
        relation: ``add-remove``.
        epsilon: claimed budget of all steps, for which the noise is calibrated.
        delta: of the claim.
        steps: DP-SGD steps of one training, rounded to whole epochs.
        sampling_rate: probability of an example to join a batch.
        max_degree: bound D on every out-list; the canary's has as many entries.
        trials: independent canaries.
        noise_multiplier: audit this noise, in units of ``clip (2 D + 1)``, instead; the claim is
            then what it is accounted at.
        clip: largest gradient norm of one example.
        confidence: of the lower bound.
        construction: ``safe`` or ``fast`` noise.
        seed: of the coins; noise and batches are always secret.
        progress: called with finished and all trials.

    >>> audit_subgraphs(epsilon=4.0, steps=4, sampling_rate=0.5, trials=200).holds
    True
    """
    check_choice("relation", relation, ("add-remove",))
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    check_integer("max_degree", max_degree, at_least=1)
    check_number("sampling_rate", sampling_rate, above=0, at_most=1)
    check_number("clip", clip, above=0)
    groups = min(GROUPS, trials // LEAST_TRIALS * LEAST_TRIALS)
    attack = _Attack(groups, max_degree, clip, construction)
    event = attack.planned(check_integer("steps", steps, at_least=1), sampling_rate)
    if noise_multiplier is None:
        found = calibrate([event], epsilon=epsilon, delta=delta, relation=relation)
        noise_multiplier, epsilon = found.noise_multiplier, found.epsilon
        event = event.scaled(noise_multiplier)
    else:
        event = event.scaled(noise_multiplier)
        epsilon = account([event], delta, relation=relation).epsilon
    check_number("epsilon", epsilon, above=0)

    def attempt(number: int) -> AuditReport:
        worlds = coins(experiment_rng(seed, "audit subgraphs", number), trials)
        parts = []
        for start in range(0, trials, groups):
            parts.append(attack.train(worlds[start : start + groups], event, delta))
            if progress is not None:
                progress(min(trials, start + groups), trials)
        scores = np.concatenate(parts)[None]
        view = View("canaries", Trials(scores, worlds, threshold=0.0), _price(event, delta))
        return conclude(
            "subgraphs",
            [view],
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            details={
                "relation": relation,
                "steps": event.steps,
                "sampling_rate": attack.rate,
                "max_degree": max_degree,
                "noise_multiplier": noise_multiplier,
                "clip": clip,
                "noise": construction,
            },
        )

    return confirmed(attempt)


class _Attack:
    """Trains on canary groups and scores what every step released."""

    def __init__(self, groups: int, degree: int, clip: float, construction: Construction) -> None:
        self.groups = groups
        self.degree = degree
        self.clip = clip
        self.construction = construction
        self.num_train = groups * (degree + 1) + _SPARE
        self.batch = self.epochs = 1
        self.rate = 1.0
        self._promised: Guarantee | None = None

    def planned(self, steps: int, rate: float) -> MixtureOfGaussians:
        """Choose batch and epochs, and return what the training releases, at multiplier 1."""
        self.batch = max(1, round(rate * self.num_train))
        self.rate = self.batch / self.num_train
        self.epochs = max(1, round(steps * self.rate))
        steps = max(1, self.epochs * self.num_train // self.batch)
        return neighbourhood_event(
            1.0, sampling_rate=self.rate, steps=steps, max_degree=self.degree
        )

    def train(self, worlds: NDArray[np.bool_], event: MixtureOfGaussians, delta: float) -> Scores:
        """Train once on one group per coin; return each group's log likelihood ratio."""
        graph = self._graph(worlds)
        with tempfile.TemporaryDirectory() as folder:
            model = _Canary(
                level="node",
                max_degree=self.degree,
                delta=delta,
                epochs=self.epochs,
                batch_size=self.batch,
                optimizer="sgd",
                learning_rate=_RATE_OF_LEARNING,
                clip=self.clip,
                noise_ratios=(1.0, 1.0),
                noise=self.construction,
                device="cpu",
                ledger=Path(folder) / "ledger.sqlite",
            )
            model.promised = self._promise(graph, event, delta)
            steps = _Steps(model)
            model.fit(graph, callback=steps)
        unit = _RATE_OF_LEARNING * self.clip / self.batch
        released = torch.stack(steps.moves).double().numpy()[:, : len(worlds)] / unit
        return self._likelihood(released, event.noise_multiplier)

    def _promise(self, graph: Graph, event: MixtureOfGaussians, delta: float) -> Guarantee:
        """Return the estimator's promise at this noise; priced once, all graphs have one size."""
        if self._promised is None:
            multiplier = event.noise_multiplier / (2 * self.degree + 1)
            self._promised = Guarantee.of_events(
                graph,
                # The aggregation for predictions is released too; nobody looks at it here.
                (event, Gaussian(multiplier)),
                level="node",
                relation="add-remove",
                delta=delta,
                noise_multiplier=multiplier,
            )
        return self._promised

    def _graph(self, worlds: NDArray[np.bool_]) -> Graph:
        """Groups of a canary and D people, one direction each, and spare nodes in v's stead."""
        degree, groups = self.degree, len(worlds)
        size = degree + 1
        centre = size * np.arange(groups)
        people = centre[:, None] + np.arange(1, size)
        absent = int((~worlds).sum())
        # One node more than are trained on is for tests.
        fill = self.num_train - size * groups + absent
        num_nodes = size * groups + fill + 1
        sizes = np.tile([2.0, *[-1.0] * degree], groups) * _LENGTH * self.clip
        directions = np.repeat(np.arange(groups), size)
        features = sp.csr_array(
            (sizes.astype(np.float32), (np.arange(size * groups), directions)),
            shape=(num_nodes, self.groups),
        )
        labels = np.zeros(num_nodes, dtype=np.int64)
        labels[-2] = 1
        graph = Graph.from_arcs(
            np.repeat(centre, degree),
            people.ravel(),
            num_nodes=num_nodes,
            features=features,
            labels=labels,
            directed=True,
            name="canaries",
        )
        train = np.arange(num_nodes) < num_nodes - 1
        graph = graph.with_masks(train, np.zeros(num_nodes, dtype=np.bool_), ~train)
        keep = np.ones(num_nodes, dtype=np.bool_)
        keep[centre[~worlds]] = False
        return induced(graph, keep, dangle=True)

    def _likelihood(self, released: Scores, std: float) -> Scores:
        """Add up the log likelihood ratio of the two worlds over the steps (first axis).

        Of k people in the batch and v itself or not: N(k + v, std) with the record, N(-k, std)
        without.
        """
        from scipy.stats import binom

        counts = np.arange(self.degree + 1)
        touched = binom.logpmf(counts, self.degree, self.rate)

        def density(shifts: NDArray[Any], weights: NDArray[Any]) -> Scores:
            exponents = -0.5 * ((released[..., None] - shifts) / std) ** 2 + weights
            return np.asarray(np.logaddexp.reduce(exponents, axis=-1))

        with np.errstate(divide="ignore"):
            own = np.log([1 - self.rate, self.rate])
        shifts = (counts[:, None] + np.arange(2)).ravel()
        present = density(shifts, (touched[:, None] + own).ravel())
        return np.asarray((present - density(-counts, touched)).sum(axis=0))


def _price(event: MixtureOfGaussians, delta: float) -> Callable[[float], float]:
    """Return what a total variation distance costs on the claimed curve of these steps."""

    def price(distance: float) -> float:
        def distance_at(scale: float) -> float:
            return pld_delta([event.scaled(scale)], 0.0, relation="add-remove")

        scale = search_multiplier(distance_at, distance, start=1.0)
        if scale is None:
            return 0.0
        found = account([event.scaled(scale)], delta, relation="add-remove").epsilon
        return found if math.isfinite(found) else 0.0

    return price
