"""What an attacker can make of releases: the whole privacy curve, and bounds read off it.

One epsilon at one delta is a single point of a curve, and far from what an attacker reaches: at
epsilon 8 it allows a 50:50 guess to be right in 99.97 % of all cases, where the curve of a training
with that epsilon allows less than 80 %. Everything here is an upper bound that holds for any
attacker (privacy page, section 7).

Adaptive choices. Where a noisy release decides which of several options follows, no option's own
curve bounds the whole: the attacker sees the deciding release too, and which option is the worse
one may depend on it. The options are therefore replaced by one release that dominates each of them
(:func:`gapgnn.privacy.accounting.pld.any_of`), and a composition of dominating pairs dominates
adaptive compositions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gapgnn.errors import check_number
from gapgnn.privacy import Relation, RelationLike, parse_relation
from gapgnn.privacy.accounting.accountants import (
    SMALLEST_PLD_DELTA,
    gaussian_epsilon,
    log_delta,
)
from gapgnn.privacy.accounting.events import (
    Composition,
    Event,
    Merged,
    group_cases,
    merge,
    option_of,
)
from gapgnn.privacy.accounting.pairs import Array, GaussianPair, LaplacePair, SelectionPair
from gapgnn.privacy.accounting.pld import FINE, Loss, any_of, grid_interval

# Shares of false positives at which the true positives are bounded.
FALSE_POSITIVES = (0.01, 0.001)
# Rounding of closed forms, so that no bound is below the truth.
_SAFETY = 1e-12
# Beyond these epsilons a line of the curve says nothing that can be distinguished from 1.
_FLATTEST = 16.0
_POINTS = 65
_WIDEST_INTERVAL = 256.0
# Laplace noise of so large an epsilon hides nothing that a float can tell from nothing.
_LARGEST_PURE = 100.0

# What was released together, and how often.
Release = tuple[Composition, int]


@dataclass(frozen=True)
class AttackBounds:
    """What the best attacker can reach who wants to tell two neighbours apart, at most.

    Attributes:
        mu: of Gaussian DP, where the curve is exactly that of N(0, 1) against N(mu, 1); else None.
        guess: share of right answers to a 50:50 question, from 0.5 to 1.
        tpr_at_fpr_1_percent: share of true positives with 1 % of false positives.
        tpr_at_fpr_0_1_percent: with 0.1 % of false positives.
    """

    mu: float | None
    guess: float
    tpr_at_fpr_1_percent: float
    tpr_at_fpr_0_1_percent: float

    def __post_init__(self) -> None:
        if self.mu is not None:
            check_number("mu", self.mu, at_least=0)
        check_number("guess", self.guess, at_least=0.5, at_most=1)
        for alpha, name in zip(FALSE_POSITIVES, _TPR_NAMES, strict=True):
            check_number(name, getattr(self, name), at_least=alpha, at_most=1)

    def within(self, epsilon: float, delta: float) -> AttackBounds:
        """Return the smaller of these bounds and those of one epsilon and delta that is proved.

        >>> AttackBounds(None, 1.0, 1.0, 1.0).within(1.0, 0.0).guess  # e / (1 + e)
        0.7310585786300049
        """
        grown = math.exp(min(epsilon, 700.0))
        most = [
            min(grown * alpha + delta, 1 - (1 - alpha - delta) / grown) for alpha in FALSE_POSITIVES
        ]
        return AttackBounds(
            self.mu,
            min(self.guess, 1 - (1 - delta) / (1 + grown)),
            min(self.tpr_at_fpr_1_percent, most[0]),
            min(self.tpr_at_fpr_0_1_percent, most[1]),
        )


_TPR_NAMES = ("tpr_at_fpr_1_percent", "tpr_at_fpr_0_1_percent")
# Where nothing was released an attacker guesses.
NOTHING_LEARNED = AttackBounds(0.0, 0.5, *FALSE_POSITIVES)


@dataclass(frozen=True)
class PrivacyProfile:
    """An upper bound on delta at every epsilon, for everything that was released together.

    Attributes:
        shift: mu of the exact Gaussian curve; None where the curve is that of ``loss``.
        loss: a dominating loss distribution; None where there is an exact curve, or where the
            noise hides nothing.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> profile = privacy_profile([((Gaussian(2.0),), 4)], relation="undirected")
    >>> round(profile.mu, 9), round(profile.epsilon(1e-5), 3)
    (1.0, 4.377)
    """

    shift: float | None
    loss: Loss | None

    @property
    def mu(self) -> float | None:
        """Mu of Gaussian DP, where it is exact and a float."""
        return self.shift if self.shift is not None and math.isfinite(self.shift) else None

    def deltas(self, epsilons: Array) -> Array:
        """Return an upper bound on delta at each epsilon of at least 0."""
        if self.shift is not None:
            logs = [log_delta(float(epsilon), self.shift) for epsilon in epsilons]
            exact: Array = np.minimum(1.0, np.exp(logs) * (1 + _SAFETY))
            return exact
        if self.loss is None:
            return np.ones_like(epsilons)
        return np.minimum(1.0, self.loss.deltas(epsilons))

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon``."""
        check_number("epsilon", epsilon, at_least=0)
        return float(self.deltas(np.array([float(epsilon)]))[0])

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon at ``delta``; infinite where none is known."""
        check_number("delta", delta, above=0, below=1)
        if self.shift is not None:
            return gaussian_epsilon(self.shift, delta)
        if self.delta(0.0) <= delta:
            return 0.0
        upper = 1.0
        while self.delta(upper) > delta:
            upper *= 2
            if delta < SMALLEST_PLD_DELTA or upper > 1e6:
                return math.inf
        lower = 0.0
        # A bound holds at any point of the curve: halving ends above the root.
        while upper - lower > 1e-9 * upper:
            middle = (lower + upper) / 2
            if self.delta(middle) <= delta:
                upper = middle
            else:
                lower = middle
        return upper

    def guess(self) -> float:
        """Return how often a 50:50 guess can be right, at most: (1 + delta(0)) / 2.

        A test that says "yes" on a set S of outcomes is right in (P(S) + 1 - Q(S)) / 2 of all
        cases, and P(S) - Q(S) is at most delta at epsilon 0, the total variation. For Gaussian
        noise this is Phi(mu / 2).
        """
        return min(1.0, (1 + self.delta(0.0)) / 2)

    def true_positives(self, false_positives: float) -> float:
        """Return the largest share of true positives at a share of false ones, at most.

        Let a test say "yes" on a set S of outcomes, with Q(S) <= alpha false and P(S) true
        positives. For every epsilon >= 0, with delta bounding the curve in both directions,

        - P(S) <= e^epsilon Q(S) + delta(epsilon) <= e^epsilon alpha + delta(epsilon), and
        - 1 - alpha <= 1 - Q(S) <= e^epsilon (1 - P(S)) + delta(epsilon) for the complement, so
          P(S) <= 1 - e^-epsilon (1 - alpha - delta(epsilon)).

        A randomised test is a test on outcomes with a coin beside them, which moves no delta. Each
        epsilon gives a bound, and so does the smallest over any finite set of them. For Gaussian
        noise it is exact: Phi(Phi^-1(alpha) + mu).

        >>> from gapgnn.privacy.accounting.events import Gaussian
        >>> profile = privacy_profile([((Gaussian(1.0),), 1)], relation="directed")
        >>> round(profile.true_positives(0.01), 4)
        0.0924
        """
        alpha = check_number("false_positives", false_positives, above=0, below=1)
        if self.shift is not None:
            from scipy.special import ndtr, ndtri

            return min(1.0, max(alpha, float(ndtr(ndtri(alpha) + self.shift)) * (1 + _SAFETY)))

        def steep(epsilons: Array) -> Array:
            bounds: Array = np.exp(epsilons) * alpha + self.deltas(epsilons)
            return bounds

        def flat(epsilons: Array) -> Array:
            bounds: Array = 1 - np.exp(-epsilons) * (1 - alpha - self.deltas(epsilons))
            return bounds

        found = min(_smallest(steep, -math.log(alpha)), _smallest(flat, _FLATTEST))
        return min(1.0, max(alpha, found))

    def bounds(self) -> AttackBounds:
        """Return what an attacker can reach."""
        return AttackBounds(self.mu, self.guess(), *map(self.true_positives, FALSE_POSITIVES))


def _smallest(bound: object, last: float) -> float:
    """Return the smallest of a bound over epsilons from 0, looked for more closely where it is."""
    first = np.linspace(0.0, last, _POINTS)
    values = bound(first)  # type: ignore[operator]
    near = first[int(np.argmin(values))]
    step = last / (_POINTS - 1)
    close = np.linspace(max(0.0, near - step), near + step, _POINTS)
    return float(min(values.min(), bound(close).min()))  # type: ignore[operator]


def attack_bounds(events: Sequence[Event], *, relation: RelationLike) -> AttackBounds:
    """Return what an attacker can make of one release; the worst over its groups and options.

    >>> from gapgnn.privacy.accounting.events import Gaussian, PoissonGaussian
    >>> steps = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
    >>> bounds = attack_bounds([steps, Gaussian(1.0, count=2)], relation="add-remove")
    >>> bounds.mu is None, round(bounds.guess, 1)
    (True, 0.8)
    """
    return privacy_profile([(tuple(events), 1)], relation=relation).bounds()


def privacy_profile(releases: Iterable[Release], *, relation: RelationLike) -> PrivacyProfile:
    """Return the curve of several releases on the same people, each independent of the others.

    Args:
        releases: what was released together, with all options of adaptive choices, and how often.
            A person may be of different groups in different releases, and each has options of its
            own.
        relation: the neighbouring relation of all of them.
    """
    made = tuple((tuple(events), count) for events, count in releases if events)
    return _profile(made, parse_relation(relation))


@dataclass(frozen=True)
class _Case:
    """What one record can be in: what is always released, and one of several options."""

    common: Merged
    options: tuple[Merged, ...]
    # Each option with what is always released.
    wholes: tuple[Merged, ...]

    @classmethod
    def of(cls, events: Composition, relation: RelationLike) -> _Case:
        numbers = sorted({option_of(event) for event in events} - {0})
        common = [event for event in events if not option_of(event)]
        options = [[e for e in events if option_of(e) == number] for number in numbers]
        return cls(
            merge(common, relation=relation),
            tuple(merge(option, relation=relation) for option in options),
            tuple(merge([*common, *o], relation=relation) for o in options or [[]]),
        )

    @property
    def is_gaussian(self) -> bool:
        return all(whole.is_gaussian for whole in self.wholes)

    def loss(self, interval: float) -> Loss:
        parts = []
        if _is_any(self.common):
            parts.append(Loss.of(self.common, interval))
        if options := [Loss.of(option, interval) for option in self.options if _is_any(option)]:
            parts.append(any_of(options, interval))
        return parts[0] if len(parts) == 1 else parts[0].then(parts[1])


@lru_cache(maxsize=64)
def _profile(releases: tuple[Release, ...], relation: Relation) -> PrivacyProfile:
    square, others = 0.0, []
    for events, count in releases:
        cases = [_Case.of(case, other) for case, other in group_cases(events, relation=relation)]
        if all(case.is_gaussian for case in cases):
            # Of several Gaussian curves one is the worst at every epsilon.
            shift = max(whole.shift for case in cases for whole in case.wholes)
            square += count * shift * shift
        else:
            others.append(([case for case in cases if any(map(_is_any, case.wholes))], count))
    shift = math.sqrt(square)
    if not others:
        return PrivacyProfile(shift, None)
    pairs = [pair for cases, _ in others for c in cases for w in c.wholes for pair, _ in w.rest]
    if any(isinstance(pair, LaplacePair) and pair.pure_epsilon > _LARGEST_PURE for pair in pairs):
        return PrivacyProfile(None, None)
    interval = _interval(others, shift)
    if interval > _WIDEST_INTERVAL:
        return PrivacyProfile(None, None)
    losses = [
        any_of([case.loss(interval) for case in cases], interval).repeated(count)
        for cases, count in others
    ]
    if shift:
        losses.append(Loss.of(Merged(shift, ()), interval))
    total = losses[0]
    for loss in losses[1:]:
        total = total.then(loss)
    return PrivacyProfile(None, total)


def _interval(others: Sequence[tuple[Sequence[_Case], int]], shift: float) -> float:
    """Return one grid for all parts: fine enough for the whole, and affordable for each.

    Beside Gaussian noise, pure releases do not decide it. They are mostly small, and a grid as fine
    as their largest loss would be far finer than the spread of all losses together.
    """
    square, rest, coarsest = shift * shift, [], 0.0
    for cases, count in others:
        wholes = [_broad(whole) for case in cases for whole in case.wholes if _is_any(whole)]
        widths = [grid_interval(whole, resolution=FINE) for whole in wholes]
        coarsest = max(coarsest, *widths)
        widest = wholes[int(np.argmax(widths))]
        square += count * widest.shift * widest.shift
        rest += [(pair, times * count) for pair, times in widest.rest]
    whole = _broad(Merged(math.sqrt(square), tuple(rest)))
    return max(grid_interval(whole, resolution=FINE), coarsest / 4)


def _broad(whole: Merged) -> Merged:
    """Return a composition without its pure releases, if there is anything else."""
    broad = (GaussianPair, SelectionPair)
    rest = tuple((pair, times) for pair, times in whole.rest if isinstance(pair, broad))
    return Merged(whole.shift, rest) if rest or whole.shift else whole


def _is_any(merged: Merged) -> bool:
    return merged.shift > 0 or bool(merged.rest)
