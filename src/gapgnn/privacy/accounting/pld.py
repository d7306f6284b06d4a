"""Privacy loss distributions: tight accounting for anything with subsampling (dp-accounting).

Each pair becomes a discrete distribution of its privacy loss on a grid, rounded so that it
dominates the true one (connect-the-dots), and composition is convolution by FFT. Every
approximation is pessimistic: mass cut from the tails counts as infinite loss, and the rounding
errors of the FFT are charged to delta. The reported epsilon is an upper bound, in practice within
0.1 % of the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gapgnn.privacy import RelationLike
from gapgnn.privacy.accounting.events import Event, Merged, merge
from gapgnn.privacy.accounting.pairs import (
    Array,
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Numbers,
    Pair,
    SelectionPair,
)

# Grid interval over one step's loss deviation. The rounding adds variance like a random walk, so
# the error of epsilon falls with the square: at 0.02 it is below one part in a thousand.
FINE = 0.02
# A loss that takes few values has its largest one rounded up, so the grid follows that value too.
_SHARE_OF_ATOM = 5e-4
_MOST_POINTS = 100_000
# Noise so small that its losses need a wider grid than this hides nothing: epsilon is infinite.
_WIDEST_INTERVAL = 256.0
_LARGEST_EPSILON = 1e9
# Share of delta given to each tail that is cut; with more, epsilon is not known to six digits.
_CUT = 1e-6
# Rounding of an FFT raised to the n-th power, per step; measured at up to 3e-17, see the tests.
_FFT_ERROR = 1e-16
# Mass cut from each tail where a whole curve is wanted, and not one delta.
_CURVE_CUT = 1e-16
# Where a curve is joined from others: beyond the rounding errors it is followed down to this delta,
# if so many points reach that far and e^epsilon is a float.
_JOINED_DELTA = 1e-14
_MOST_JOINED_POINTS = 1 << 17
_LARGEST_JOINED = 600.0


def pld_epsilon(
    events: Sequence[Event], delta: float, *, relation: RelationLike, resolution: float = FINE
) -> float:
    """Return an upper bound on epsilon; infinite where the FFT cannot resolve ``delta``.

    >>> from gapgnn.privacy.accounting.events import Gaussian, PoissonGaussian
    >>> steps = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
    >>> round(pld_epsilon([steps, Gaussian(1.0, count=2)], 1e-5, relation="add-remove"), 2)
    7.45
    """
    return _upper_bound(merge(events, relation=relation), delta, resolution)


@lru_cache(maxsize=256)
def _upper_bound(merged: Merged, delta: float, resolution: float) -> float:
    """Return epsilon; what was just found, by a search say, is not computed again."""
    if _chance_of_any_effect(merged) <= delta:
        return 0.0
    left = delta - _fft_slack(merged)
    interval = grid_interval(merged, resolution=resolution)
    if left <= 0 or interval > _WIDEST_INTERVAL:
        return math.inf
    loss = _compose(merged, interval, cut=left * _CUT)
    return _smallest_epsilon(loss, left)


def pld_delta(events: Sequence[Event], epsilon: float, *, relation: RelationLike) -> float:
    """Return an upper bound on delta at ``epsilon``."""
    merged = merge(events, relation=relation)
    chance = _chance_of_any_effect(merged)
    interval = grid_interval(merged, resolution=FINE)
    if chance == 0 or interval > _WIDEST_INTERVAL:
        return chance
    loss = _compose(merged, interval, cut=1e-16)
    return min(chance, max(0.0, float(loss.get_delta_for_epsilon(epsilon))) + _fft_slack(merged))


def _smallest_epsilon(loss: Any, delta: float) -> float:
    """Invert the curve of a loss distribution (the library's own inverse overflows above 700)."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
        if upper > _LARGEST_EPSILON:
            return math.inf
    root = float(brentq(excess, 0.0, upper, xtol=1e-12, rtol=1e-10))
    while excess(root) > 0:
        root += 1e-9 * root + 1e-12
    return root


def _chance_of_any_effect(merged: Merged) -> float:
    """Bound the probability that the protected record has any effect on the outputs.

    It bounds delta at every epsilon, whatever the noise: where the record has no effect, the
    outputs of two neighbours are the same.
    """
    if merged.shift > 0:
        return 1.0
    log_none = 0.0
    for pair, times in merged.rest:
        effect = min(1.0, pair.effect) if isinstance(pair, GaussianPair) else 1.0
        log_none += times * (math.log1p(-effect) if effect < 1 else -math.inf)
    return -math.expm1(log_none)


def _fft_slack(merged: Merged) -> float:
    return _FFT_ERROR * (sum(times for _, times in merged.rest) + 10)


def _compose(merged: Merged, interval: float, *, cut: float) -> Any:
    """Return the loss distribution of a composition that is not empty."""
    from dp_accounting.pld import privacy_loss_distribution as library

    parts = []
    for pair, times in merged.rest:
        single = _loss(pair, interval, math.log(cut / times))
        parts.append(single.self_compose(times, tail_mass_truncation=cut))
    if merged.shift > 0:
        # Neighbours are already one sensitivity apart under every relation (see `Gaussian`), so the
        # library's own doubling for replacement must not be asked for.
        parts.append(
            library.from_gaussian_mechanism(
                1.0 / merged.shift,
                value_discretization_interval=interval,
                log_mass_truncation_bound=math.log(cut),
            )
        )
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part, tail_mass_truncation=cut)
    return total


def _loss(pair: Pair, interval: float, log_cut: float) -> Any:
    """Return the loss distribution of one release."""
    from dp_accounting.pld import privacy_loss_distribution as library

    if isinstance(pair, LaplacePair):
        return library.from_laplace_mechanism(
            1.0 / pair.pure_epsilon, value_discretization_interval=interval
        )
    if isinstance(pair, DiscretePair):
        return _outcomes(pair, interval)
    if isinstance(pair, SelectionPair):
        from gapgnn.privacy.accounting.selection import selection_loss

        return selection_loss(pair, interval)
    if (sampled := _sampled_gaussian(pair)) is not None:
        return library.from_gaussian_mechanism(
            value_discretization_interval=interval, log_mass_truncation_bound=log_cut, **sampled
        )
    return library.PrivacyLossDistribution(
        _discretise(pair, interval, log_cut), _discretise(pair.reversed, interval, log_cut)
    )


def _sampled_gaussian(pair: GaussianPair) -> dict[str, Any] | None:
    """Return the library's own words for a step on a Poisson batch; None for any other mixture."""
    from dp_accounting import NeighboringRelation

    if len(pair.upper_means) != 2 or pair.upper_means[0] != 0.0:
        return None
    origin, scale = pair.upper_means
    weights = pair.upper_weights
    # The library's replacement relation puts the two contributions at -1 and +1: 2 C apart, with
    # noise counted in C, as the docstring of `PoissonGaussian` says.
    relations = {
        ((origin,), (1.0,)): NeighboringRelation.ADD_OR_REMOVE_ONE,
        ((origin, -scale), weights): NeighboringRelation.REPLACE_ONE,
    }
    relation = relations.get((pair.lower_means, pair.lower_weights))
    if relation is None:
        return None
    return {
        "standard_deviation": 1.0 / scale,
        "sampling_prob": weights[1],
        "neighboring_relation": relation,
    }


def _discretise(pair: GaussianPair, interval: float, log_cut: float) -> Any:
    """Discretise a monotone pair pessimistically; the library's way is slow for mixtures.

    The line is cut into cells. Inside a cell the loss lies between its values at the two ends, so
    moving the cell's mass to those two values, in the one proportion that keeps both its upper and
    its lower mass, dominates the truth; moving each value to its two neighbours on the grid does so
    again.
    """
    from dp_accounting.pld import pld_pmf
    from scipy.special import log_ndtr

    (left, right), reach = pair.reach, math.sqrt(-2 * log_cut) + 1.0
    edges = np.linspace(left - reach, right + reach, _MOST_POINTS // 2)
    above, below = pair.log_densities(edges)
    losses = above - below
    upper = _cell_masses(edges, pair.upper_means, pair.upper_weights)
    lower = _cell_masses(edges, pair.lower_means, pair.lower_weights)
    low, high = np.minimum(losses[:-1], losses[1:]), np.maximum(losses[:-1], losses[1:])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inside = -np.expm1(np.log(lower) - np.log(upper) + low) / -np.expm1(low - high)
    to_high = np.clip(np.nan_to_num(inside, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    values = np.concatenate([low, high])
    masses = np.concatenate([upper * (1 - to_high), upper * to_high])
    tails = math.fsum(
        w * (math.exp(log_ndtr(edges[0] - m)) + math.exp(log_ndtr(m - edges[-1])))
        for m, w in zip(pair.upper_means, pair.upper_weights, strict=True)
    )
    first, probabilities = _to_grid(values, masses, interval)
    return pld_pmf.DensePLDPmf(interval, first, probabilities, tails, True)


def _cell_masses(edges: Array, means: Numbers, weights: Numbers) -> Array:
    """Return the mass of a Gaussian mixture in each cell, accurate in both tails."""
    from scipy.special import ndtr

    z = edges[None, :] - np.array(means)[:, None]
    left, right = z[:, :-1], z[:, 1:]
    masses = np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))
    total: Array = np.array(weights) @ masses
    return total


def _to_grid(values: Array, masses: Array, interval: float) -> tuple[int, Array]:
    """Split each mass between its two grid neighbours so that E[exp(-loss)] stays the same."""
    floor = np.floor(values / interval)
    above = values - floor * interval
    to_next = np.clip(np.expm1(-above) / math.expm1(-interval), 0.0, 1.0)
    first = int(floor.min())
    index = (floor - first).astype(np.int64)
    size = int(index.max()) + 2
    probabilities: Array = np.bincount(index, masses * (1 - to_next), size).astype(np.float64)
    probabilities += np.bincount(index + 1, masses * to_next, size)
    return first, probabilities


def _outcomes(pair: DiscretePair, interval: float) -> Any:
    """Return the loss distribution of one of finitely many outcomes, seen from both sides."""
    from dp_accounting.pld import privacy_loss_distribution as library

    sides = []
    for side in (pair, pair.reversed):
        losses = np.array(side.upper) - np.array(side.lower)
        first, probabilities = _to_grid(losses, np.exp(side.upper), interval)
        sides.append(
            {first + int(i): float(probabilities[i]) for i in np.flatnonzero(probabilities)}
        )
    return library.PrivacyLossDistribution.create_from_rounded_probability(
        sides[0],
        pair.infinity_mass,
        interval,
        rounded_probability_mass_function_add=sides[1],
        infinity_mass_add=pair.infinity_mass,
        symmetric=False,
    )


def grid_interval(merged: Merged, *, resolution: float) -> float:
    """Choose the grid: fine against the spread of the losses, and with a bounded number of points.

    A power of two, so that small changes of the noise leave it alone and calibration sees a smooth
    curve.
    """
    variance, factors, widest = merged.shift * merged.shift, int(merged.shift > 0), 0.0
    limit = math.inf
    for pair, times in merged.rest:
        factors += times
        if isinstance(pair, GaussianPair | SelectionPair):
            one, width = _loss_spread(pair)
            variance += times * one
            widest = max(widest, width)
        else:
            loss = pair.largest_loss if isinstance(pair, DiscretePair) else pair.pure_epsilon
            variance += times * min(loss, 1.0) ** 2
            limit = min(limit, loss * _SHARE_OF_ATOM) if loss else limit
    widest = max(widest, merged.shift * (merged.shift + 20.0))
    if not math.isfinite(variance):
        return math.inf
    wanted = min(limit, resolution * math.sqrt(variance / max(factors, 1)))
    affordable = widest / (_MOST_POINTS * FINE / resolution)
    exponents = math.floor(_log2(wanted)), math.ceil(_log2(affordable))
    return float(2.0 ** max(exponents))


def _log2(x: float) -> float:
    return math.log2(max(x, 1e-12))


def _loss_spread(pair: GaussianPair | SelectionPair) -> tuple[float, float]:
    """Return variance and range of one step's privacy loss."""
    if isinstance(pair, SelectionPair):
        from gapgnn.privacy.accounting.selection import selection_spread

        return selection_spread(pair)
    left, right = pair.reach
    x = np.linspace(left - 10.0, right + 10.0, 4001)
    above, below = pair.log_densities(x)
    weights = np.exp(above)
    weights /= weights.sum()
    losses = above - below
    mean = float(weights @ losses)
    return float(weights @ (losses - mean) ** 2), float(losses.max() - losses.min())


@dataclass(frozen=True)
class Loss:
    """A privacy loss distribution that dominates a release, with the errors of computing it.

    Attributes:
        distribution: of the library, on a grid.
        chance: a bound on delta at every epsilon (see :func:`_chance_of_any_effect`).
        slack: what the rounding of the FFT may add to delta.
    """

    distribution: Any
    chance: float
    slack: float

    @classmethod
    def of(cls, merged: Merged, interval: float) -> Loss:
        """Return the loss of a composition that is not empty."""
        chance, slack = _chance_of_any_effect(merged), _fft_slack(merged)
        return cls(_compose(merged, interval, cut=_CURVE_CUT), chance, slack)

    @cached_property
    def _tails(self) -> list[tuple[float, Array, Array, Array]]:
        """Return, per direction, the mass at infinity, and of every positive loss what is above.

        The library's own curve walks through all losses in Python for each question.
        """
        distribution, found = self.distribution, []
        for pmf in {id(one): one for one in _directions(distribution)}.values():
            dense = pmf.to_dense_pmf()
            losses = dense._discretization * (dense._lower_loss + np.arange(dense.size))
            is_positive = losses > 0
            losses, masses = losses[is_positive], dense._probs[is_positive]
            upper = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
            lower = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
            found.append((float(dense._infinity_mass), losses, upper, lower))
        return found

    def deltas(self, epsilons: Array) -> Array:
        """Return an upper bound on delta at each epsilon of at least 0, in both directions."""
        worst = np.zeros_like(epsilons)
        for at_infinity, losses, upper, lower in self._tails:
            first = np.searchsorted(losses, epsilons, side="right")
            # Where nothing is above, e^epsilon is not needed, and may not be a float.
            grown = np.exp(np.where(first < len(losses), epsilons, 0.0))
            worst = np.maximum(worst, at_infinity + upper[first] - grown * lower[first])
        bounded: Array = np.minimum(self.chance, worst + self.slack)
        return bounded

    def then(self, other: Loss) -> Loss:
        """Return the loss of both releases together, also where the first decides the second."""
        return Loss(
            self.distribution.compose(other.distribution, tail_mass_truncation=_CURVE_CUT),
            1 - (1 - self.chance) * (1 - other.chance),
            self.slack + other.slack + _FFT_ERROR,
        )

    def repeated(self, count: int) -> Loss:
        """Return the loss of so many independent releases."""
        if count == 1:
            return self
        return Loss(
            self.distribution.self_compose(count, tail_mass_truncation=_CURVE_CUT),
            1.0 if self.chance == 1 else -math.expm1(count * math.log1p(-self.chance)),
            count * (self.slack + _FFT_ERROR),
        )


def _directions(distribution: Any) -> tuple[Any, Any]:
    """Return the library's distributions of both directions, which has no name for them."""
    return distribution._pmf_remove, distribution._pmf_add


def any_of(losses: Sequence[Loss], interval: float) -> Loss:
    """Return a loss that dominates each of several: that of the largest delta at every epsilon.

    The largest of several convex functions of e^epsilon is one, so it is the curve of some pair of
    distributions. At negative epsilons it follows from delta(-e) = 1 - e^-e (1 - delta'(e)) with
    delta' of the other direction; both directions are taken to be the worse of the two.
    """
    if len(losses) == 1:
        return losses[0]
    slack = max(loss.slack for loss in losses)

    def curve(first: int, last: int) -> Array:
        return _worst(losses, interval * np.arange(first, last + 1, dtype=np.float64))

    chance = max(loss.chance for loss in losses)
    return Loss(joined(curve, interval, slack=slack), chance, 10 * _FFT_ERROR)


def joined(
    curve: Callable[[int, int], Array],
    interval: float,
    *,
    slack: float = 0.0,
    finished: Callable[[Array, Array], Array] | None = None,
) -> Any:
    """Return a loss distribution whose delta is that of a curve, or above it, in both directions.

    Args:
        curve: given two numbers, returns the deltas at these and all whole multiples of the
            interval between them.
        interval: of the grid.
        slack: how much of every delta is rounding.
        finished: makes a curve convex in e^epsilon, given epsilons and deltas; left out: it is.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    least = _JOINED_DELTA + 2 * slack
    last, points = int(min(_MOST_JOINED_POINTS, _LARGEST_JOINED / interval)), 64
    while points < last and curve(points, points)[0] > least:
        points = min(last, points + points // 2)
    epsilons = interval * np.arange(points + 1, dtype=np.float64)
    above = curve(0, points)
    if finished is not None:
        above = finished(epsilons, above)
    below = 1 - np.exp(-epsilons[:0:-1]) * (1 - above[:0:-1])
    # Rounding must not make the curve rise.
    whole = np.maximum.accumulate(np.concatenate([below, above])[::-1])[::-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -points, points, np.clip(whole, 0.0, 1.0)
    )
    return library.PrivacyLossDistribution(pmf)


def _worst(losses: Sequence[Loss], epsilons: Array) -> Array:
    worst: Array = np.maximum.reduce([loss.deltas(epsilons) for loss in losses])
    return worst
