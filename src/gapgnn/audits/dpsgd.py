"""Audit of DP-SGD with canary examples whose gradient always has the clipped norm.

The network has two layers, ``z = (x V) W + b``, and every canary an input and an output of its own:
its gradient is one coordinate of V, one of W and one of b, wherever the other canaries are. It is
ten times as long as the clip, half of its square in each layer, and most of the second half in the
bias: a clip that is taken layer by layer, or forgets the bias, lets it through longer than the
clip. All canaries' gradients are orthogonal, so one training run holds as many independent trials
as there are canaries: the noise of different coordinates is independent, and so are the Poisson
coins of different examples. The weights stay where they are.

The attacker reads every released gradient and adds up, over the steps, the logarithm of the
likelihood ratio of the subsampled Gaussian along the canary's direction, which is the best
statistic there is as long as every step has noise of its own. Noise that steps share cancels in
their differences, so two more statistics compare the steps whose noise is the most alike; which
ones, an empty training tells beforehand. A second view trains on the canary alone, or on nobody:
there most batches are empty, and a step that forgot its noise would release an exact zero.

Three things need no trials: a canary's clipped gradient, computed by the shipped step without
noise, is no longer than the clip; and in a training on nobody, where all that comes out is noise,
no step is without it and no two steps have the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.audits.bounds import LEAST_TRIALS, Scores, steps_price
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, claim, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.nn import ReplicaLinear
from gapgnn.privacy import Relation, Replace, parse_relation
from gapgnn.privacy.accounting import PoissonGaussian
from gapgnn.privacy.dpsgd import (
    DPSchedule,
    FlatParameters,
    PoissonBatches,
    PrivateStep,
    record_linears,
)
from gapgnn.privacy.mechanisms import NoiseSource, SafeOrFast
from gapgnn.rng import NoiseKey

if TYPE_CHECKING:
    from typing_extensions import Unpack

CANARIES = 500
# One trial in fifty, up to a limit, trains on the canary alone: a whole training for one answer.
_ALONE_SHARE = 50
_MOST_ALONE = 500
# Coordinates by which the noise of two steps is compared, and how alike they may be: ten standard
# deviations of independent noise.
_NOISE_SAMPLE = 3_000
_MOST_ALIKE = 10 / math.sqrt(_NOISE_SAMPLE)
_LENGTH = 10.0
# A canary's gradient in units of its bias's: what it is of V, of W and of b.
_SECOND = 0.5
_PARTS = np.array([math.sqrt(1 + _SECOND**2), _SECOND, 1.0])
_DIRECTION = _PARTS / np.linalg.norm(_PARTS)


class _Network(nn.Module):
    """Two layers in which example i has the i-th input and the i-th output to itself."""

    def __init__(self, replicas: int, count: int) -> None:
        super().__init__()
        self.first = ReplicaLinear(replicas, count, 1, bias=False)
        self.second = ReplicaLinear(replicas, 1, count)
        with torch.no_grad():
            # An input of size _PARTS[0] arrives at the second layer as _SECOND.
            self.first.weight.fill_(_SECOND / _PARTS[0])
            self.second.weight.fill_(1.0)

    def losses(self, vectors: Tensor, gradients: Tensor) -> Tensor:
        """Return one loss per example: its own output times the gradient with respect to it."""
        outputs: Tensor = self.second(self.first(vectors))
        return (outputs * gradients).sum(-1)


class _Recorder:
    """An optimiser that leaves the parameters as they are and keeps every released gradient."""

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
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
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
        noise: ``safe`` or ``fast``.
        options: of every audit.

    >>> audit_dpsgd(epsilon=4.0, steps=3, sampling_rate=0.5, trials=1_000).holds
    True
    """
    neighbours = parse_relation(check_choice("relation", relation, ("add-remove", "replace")))
    check_integer("trials", trials, at_least=2 * LEAST_TRIALS)
    template = PoissonGaussian(1.0, sampling_rate, steps)
    multiplier, epsilon = claim(template, neighbours, epsilon, delta, noise_multiplier)
    check_number("epsilon", epsilon, above=0)
    event = template.scaled(multiplier)
    attack = _Attack(event, neighbours, clip, noise)
    checks = attack.checks()
    alone = min(_MOST_ALONE, max(LEAST_TRIALS, trials // _ALONE_SHARE))
    price = steps_price(event, delta, neighbours)

    def attempt(run: Attempt) -> AuditReport:
        many = run.run(attack.together, count=trials - alone, at_once=CANARIES, price=price)
        return run.conclude(
            {"many canaries": many, "canary alone": run.run(attack.alone, count=alone)},
            epsilon=epsilon,
            delta=delta,
            checks=checks,
            details={
                "relation": relation,
                "steps": steps,
                "sampling_rate": sampling_rate,
                "noise_multiplier": event.noise_multiplier,
                "clip": clip,
                "noise": noise,
            },
        )

    return confirmed("dpsgd", attempt, trials, **options)


class _Attack:
    """Runs the shipped steps on canaries and scores what they release."""

    def __init__(
        self, event: PoissonGaussian, relation: Relation, clip: float, noise: SafeOrFast
    ) -> None:
        self.event = event
        self.relation = relation
        self.clip = clip
        self.noise = noise
        # What a training on nobody releases, one row per step: noise and nothing else.
        nobody, members = np.ones(_NOISE_SAMPLE // len(_PARTS)), torch.zeros(0, dtype=torch.int64)
        self.drawn = self._train(nobody, [NoiseKey.fresh()], members).reshape(event.steps, -1)
        self.alike = _steps_alike(self.drawn)

    def checks(self) -> list[Check]:
        """Compare what needs no statistics: the clip, and the noise of a training on nobody."""
        without = int((self.drawn == 0).all(axis=1).sum())
        network = _Network(1, 1)
        step = self._step(network, [NoiseKey.fresh()], 1.0, _Recorder())
        with record_linears() as tape:
            losses = network.losses(*self._examples(np.ones(1)))
        longest = float(step.clipped_sum(tape, losses).norm()) / self.clip
        found = [
            Check("clips that one example moves a step by", longest, 1.0),
            Check("empty batches released without noise", without, 0),
        ]
        if len(self.drawn) > 1:
            likeness = float(_likeness(self.drawn).max())
            found.append(Check("correlation of the noise of two steps", likeness, _MOST_ALIKE))
        return found

    def together(self, worlds: NDArray[np.bool_]) -> Scores:
        """One training run, one direction and one example per canary."""
        signs = np.ones(len(worlds))
        members = np.arange(len(worlds))
        if self.relation == Replace():
            signs[~worlds] = -1.0
        else:
            members = members[worlds]
        released = self._train(signs, [NoiseKey.fresh()], torch.from_numpy(members))
        along = released[:, 0].transpose(0, 2, 1) @ _DIRECTION
        some = along[self.alike]
        # Steps with noise of their own make both useless. Where steps share it, the first tells
        # whether the canary was in some of them only, the second whether in few or in most, which
        # is how its gradient points.
        spread = np.ptp(some, axis=0)
        skew = some.max(axis=0) + some.min(axis=0) - 2 * some.mean(axis=0)
        return np.stack([self._likelihood(along), spread, skew])

    def alone(self, worlds: NDArray[np.bool_]) -> Scores:
        """One training run per trial, on the canary and nobody else, or on nobody."""
        scores = np.empty((2, len(worlds)))
        for world in (False, True):
            is_replace = self.relation == Replace()
            signs = np.array([-1.0 if is_replace and not world else 1.0])
            members = torch.zeros(int(world or is_replace), dtype=torch.int64)
            places = np.flatnonzero(worlds == world)
            keys = [NoiseKey.fresh() for _ in places]
            released = self._train(signs, keys, members)[..., 0]
            scores[0, places] = self._likelihood(released @ _DIRECTION)
            scores[1, places] = -(released == 0).all(axis=-1).sum(axis=0)
        return scores

    def _examples(self, signs: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Return inputs and gradients of all canaries, and of one example without a gradient."""
        size = _LENGTH * self.clip / float(np.linalg.norm(_PARTS))
        vectors = torch.eye(len(signs)) * float(_PARTS[0])
        gradients = torch.diag(torch.from_numpy(signs * size).float())
        nothing = torch.zeros(1, len(signs))
        return torch.cat([vectors, nothing]), torch.cat([gradients, nothing])

    def _step(
        self, network: _Network, keys: Sequence[NoiseKey], expected: float, recorder: _Recorder
    ) -> PrivateStep:
        return PrivateStep(
            FlatParameters(network),
            recorder,
            clip=self.clip,
            noise_multiplier=self.event.noise_multiplier,
            expected_batch=expected,
            sources=[NoiseSource(key, noise=self.noise) for key in keys],
            phase="audit",
        )

    def _train(
        self, signs: NDArray[np.float64], keys: Sequence[NoiseKey], members: Tensor
    ) -> Scores:
        """Return the released gradients in clips, ``(steps, replicas, V W or b, canary)``.

        The divisor is a public constant, so it is taken out again. Somebody without a gradient is
        always there: whether a training set may be empty is not the question.
        """
        network, recorder = _Network(len(keys), len(signs)), _Recorder()
        rate = self.event.sampling_rate
        expected = max(1.0, rate * len(signs))
        step = self._step(network, keys, expected, recorder)
        members = torch.cat([members, torch.tensor([len(signs)])])
        batches = PoissonBatches(
            DPSchedule(len(members), rate, self.event.steps, expected),
            keys,
            phase="audit",
            members=[members] * len(keys),
            noise=self.noise,
        )
        vectors, gradients = self._examples(signs)
        for batch in batches:
            with record_linears() as tape:
                losses = network.losses(vectors[batch.positions], gradients[batch.positions])
            step.step(tape, losses, batch.valid)
        released = torch.stack(recorder.gradients).double() * (expected / self.clip)
        result: Scores = released.reshape(*released.shape[:2], len(_PARTS), len(signs)).numpy()
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
        if self.relation == Replace():
            ratio = ratio - against_nobody(-1.0)
        return np.asarray(ratio.sum(axis=0))


def _likeness(noise: Scores) -> Scores:
    """Return how the noise of every two steps correlates; -1 for a step with itself."""
    # Two steps without any noise are as alike as can be.
    likeness = np.ones((len(noise), len(noise)))
    if noise.std(axis=1).all():
        likeness[:] = np.corrcoef(noise)
    np.fill_diagonal(likeness, -1.0)
    return likeness


def _steps_alike(noise: Scores) -> NDArray[np.int64]:
    """Return the steps whose noise is the most alike, two of them at least if there are two."""
    if len(noise) == 1:
        return np.zeros(1, dtype=np.int64)
    likeness = _likeness(noise)
    first, second = np.unravel_index(int(likeness.argmax()), likeness.shape)
    return np.unique([first, second, *np.flatnonzero(likeness[first] > 0.5)])
