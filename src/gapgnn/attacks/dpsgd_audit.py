"""Audit of DP-SGD with canary examples whose gradient always has the clipped norm.

The model is one linear layer with the loss ``w . x``: an example's gradient is its own ``x``
wherever the weights are, and canaries have orthogonal ``x`` ten times as long as the clip. So every
step clips every canary to exactly the clip, in a direction of its own, and one training run holds
as many independent trials as there are coordinates: the noise of different coordinates is
independent, and so are the Poisson coins of different examples.

The attacker reads every released gradient and adds up, over the steps, the logarithm of the
likelihood ratio of the subsampled Gaussian in the canary's coordinate, which is the best statistic
there is. A second view trains on the canary alone, or on nothing: there most batches are empty, and
a step that forgot its noise would release an exact zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.attacks.bounds import LEAST_TRIALS, Scores, Trials, coins
from gapgnn.attacks.report import AuditReport, View, conclude, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.nn.layers import ReplicaLinear
from gapgnn.privacy.accounting import account
from gapgnn.privacy.calibration import calibrate, search_multiplier
from gapgnn.privacy.dpsgd import PrivateStep
from gapgnn.privacy.events import PoissonGaussian
from gapgnn.privacy.flat import FlatParameters
from gapgnn.privacy.ghost import record_linears
from gapgnn.privacy.noise import Construction, NoiseSource
from gapgnn.privacy.pld import pld_delta
from gapgnn.privacy.poisson import DPSchedule, PoissonBatches
from gapgnn.rng import NoiseKey, experiment_rng

Progress = Callable[[int, int], None]
CANARIES = 1_000
# One trial in fifty trains on the canary alone: a whole training for one answer.
_ALONE_SHARE = 50
_LENGTH = 10.0
_ALONE_AT_ONCE = 500


class _Recorder:
    """An optimiser that moves nothing and keeps every released gradient."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def step(self, gradient: Tensor) -> None:
        """Keep a copy."""
        self.gradients.append(gradient.detach().clone())


def audit_dpsgd(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    steps: int = 50,
    sampling_rate: float = 0.1,
    trials: int = 100_000,
    noise_multiplier: float | None = None,
    clip: float = 1.0,
    confidence: float = 0.95,
    construction: Construction = "safe",
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack DP-SGD with canary examples and bound its epsilon from below.

    Relation ``add-remove``: the canary is in the training set or not; ``replace``: it is there with
    one gradient or with the opposite one. One step moves by at most the clip, or twice that
    (privacy page, sections 1 to 4 and 8).

    Args:
        relation: ``add-remove`` or ``replace``.
        epsilon: claimed budget of all steps, for which the noise is calibrated.
        delta: of the claim.
        steps: DP-SGD steps of one training.
        sampling_rate: probability of an example to join a batch.
        trials: independent canaries.
        noise_multiplier: audit this noise instead; the claim is then what it is accounted at.
        clip: largest gradient norm of one example.
        confidence: of the lower bound.
        construction: ``safe`` or ``fast`` noise.
        seed: of the coins; noise and batches are always secret.
        progress: called with finished and all trials.

    >>> audit_dpsgd(epsilon=4.0, steps=3, sampling_rate=0.5, trials=1_000).holds
    True
    """
    check_choice("relation", relation, ("add-remove", "replace"))
    check_integer("trials", trials, at_least=2 * LEAST_TRIALS)
    event = PoissonGaussian(noise_multiplier or 1.0, sampling_rate, steps)
    if noise_multiplier is None:
        found = calibrate([event], epsilon=epsilon, delta=delta, relation=relation)
        event, epsilon = event.scaled(found.noise_multiplier), found.epsilon
    else:
        epsilon = account([event], delta, relation=relation).epsilon
    check_number("epsilon", epsilon, above=0)
    attack = _Attack(event, relation, clip, construction)

    def attempt(number: int) -> AuditReport:
        rng = experiment_rng(seed, "audit dpsgd", number)
        alone = max(LEAST_TRIALS, trials // _ALONE_SHARE)
        many = trials - alone
        runs = np.array_split(coins(rng, many), max(1, math.ceil(many / CANARIES)))
        parts, done = [], 0
        for worlds in runs:
            parts.append(attack.together(worlds))
            done += len(worlds)
            if progress is not None:
                progress(done, trials)
        views = [
            View("many canaries", Trials.joined(parts), _subsampled_price(event, delta, relation)),
            View("canary alone", attack.alone(coins(rng, alone))),
        ]
        if progress is not None:
            progress(trials, trials)
        return conclude(
            "dpsgd",
            views,
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            details={
                "relation": relation,
                "steps": steps,
                "sampling_rate": sampling_rate,
                "noise_multiplier": event.noise_multiplier,
                "clip": clip,
                "noise": construction,
            },
        )

    return confirmed(attempt)


class _Attack:
    """Runs the shipped steps on canaries and scores what they release."""

    def __init__(
        self, event: PoissonGaussian, relation: str, clip: float, construction: Construction
    ) -> None:
        self.event = event
        self.relation = relation
        self.clip = clip
        self.construction = construction

    def together(self, worlds: NDArray[np.bool_]) -> Trials:
        """One training run, one coordinate and one example per canary."""
        count = len(worlds)
        vectors = torch.eye(count) * (_LENGTH * self.clip)
        if self.relation == "replace":
            members = torch.arange(count)
            vectors *= torch.from_numpy(np.where(worlds, 1.0, -1.0)).float().unsqueeze(1)
        else:
            members = torch.from_numpy(np.flatnonzero(worlds))
        released = self._train(vectors, [NoiseKey.fresh()], len(members), members)
        return Trials(self._likelihood(released[:, 0])[None], worlds, threshold=0.0)

    def alone(self, worlds: NDArray[np.bool_]) -> Trials:
        """One training run per trial, on the canary and nobody else, or on nobody."""
        scores = np.empty((2, len(worlds)))
        for world in (False, True):
            sign = 1.0 if world or self.relation == "add-remove" else -1.0
            vectors = torch.full((1, 1), sign * _LENGTH * self.clip)
            num_examples = 1 if world or self.relation == "replace" else 0
            places = np.flatnonzero(worlds == world)
            for start in range(0, len(places), _ALONE_AT_ONCE):
                part = places[start : start + _ALONE_AT_ONCE]
                keys = [NoiseKey.fresh() for _ in part]
                released = self._train(vectors, keys, num_examples, None)[:, :, 0]
                scores[0, part] = self._likelihood(released)
                scores[1, part] = -(released == 0).sum(axis=0)
        return Trials(scores, worlds)

    def _train(
        self,
        vectors: Tensor,
        keys: Sequence[NoiseKey],
        num_examples: int,
        members: Tensor | None,
    ) -> Scores:
        """Return the released gradients in units of the clip, ``(steps, replicas, coordinates)``.

        The divisor is a public constant, so it is taken out again.
        """
        module = ReplicaLinear(len(keys), vectors.shape[1], 1, bias=False)
        with torch.no_grad():
            module.weight.zero_()
        flat, recorder = FlatParameters(module), _Recorder()
        rate = self.event.sampling_rate
        expected = max(1.0, rate * len(vectors))
        step = PrivateStep(
            flat,
            recorder,
            clip=self.clip,
            noise_multiplier=self.event.noise_multiplier,
            expected_batch=expected,
            noise=[NoiseSource(key, construction=self.construction) for key in keys],
            phase="audit",
        )
        schedule = DPSchedule(num_examples, rate, self.event.steps, expected)
        batches = PoissonBatches(
            schedule, keys, phase="audit", members=members, construction=self.construction
        )
        for batch in batches:
            with record_linears() as tape:
                losses = module(vectors[batch.positions]).squeeze(-1)
            step.step(tape, losses, batch.valid)
        released = torch.stack(recorder.gradients).double() * (expected / self.clip)
        result: Scores = released.numpy()
        return result

    def _likelihood(self, released: Scores) -> Scores:
        """Add up the log likelihood ratio of the two worlds over the steps (first axis)."""
        rate, std = self.event.sampling_rate, self.event.noise_multiplier

        def against_nobody(sign: float) -> Scores:
            exponent = (2 * sign * released - 1) / (2 * std * std)
            if rate == 1:
                return exponent
            with np.errstate(divide="ignore"):
                return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)

        ratio = against_nobody(1.0)
        if self.relation == "replace":
            ratio = ratio - against_nobody(-1.0)
        return np.asarray(ratio.sum(axis=0))


def _subsampled_price(
    event: PoissonGaussian, delta: float, relation: str
) -> Callable[[float], float]:
    """Return what a total variation distance costs on the curve of these steps, at ``delta``.

    The distance is delta at epsilon 0. The accountant's delta is never below the truth, so the
    noise found for a distance is never below the noise that has it.
    """

    def price(distance: float) -> float:
        multiplier = search_multiplier(
            lambda m: pld_delta(
                [PoissonGaussian(m, event.sampling_rate, event.steps)], 0.0, relation=relation
            ),
            distance,
            start=event.noise_multiplier,
        )
        if multiplier is None:
            return 0.0
        noise = PoissonGaussian(multiplier, event.sampling_rate, event.steps)
        return account([noise], delta, relation=relation).epsilon

    return price
