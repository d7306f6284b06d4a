"""The price of a private selection: the best of a random number of candidates.

A selection runs a candidate K times, where K is random and secret, each with fresh noise and each
on a setting drawn at random, and releases the one with the best score. What follows prices it from
the privacy profile of one candidate (Theorem 21 of the proofs page), for every distribution of K.

Let P and Q be the outputs of one candidate on two neighbours, p and q their densities, f the
probability generating function of K, and G(u) the largest Q(S) of any set S with P(S) <= u. An
output y is selected with density ``p(y) f'(1 - u)``, where u is the probability under P of an
output that beats y. Under Q an output beats y with probability at most G(u), and f' rises, so with
``a(u) = f'(1 - u)`` and ``b(u) = f'(1 - G(u))`` and for every epsilon at least 0::

    delta(epsilon) <= E_P[h(e^epsilon q/p)],   h(t) = max over u of (a(u) - t b(u)) and 0

h is convex and falls from ``h(0) = f'(1) = E[K]`` to 0, so it is a mixture of hinges, and the bound
is a mixture of the candidate's own profile at shifted epsilons::

    delta(epsilon) <= sum_k w_k delta_candidate(epsilon - c_k),   w_k >= 0,  sum of w_k = E[K]

Koskela, Redberg and Wang (2024) put all the weight on the largest shift. Here h is computed on
cells of u, with a at one end and b at the other, and is joined by chords, which lie above it.

The Renyi divergence is the smaller of two bounds: that of Papernot and Steinke (2022), Theorems 2
and 6, and the one that the same a and b give: ``p^r q^(1-r) a(u)^r b(u)^(1-r)`` integrates to at
most the candidate's moment of order r times the largest ``a(u)^r b(u)^(1-r)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gapgnn.privacy import Relation
from gapgnn.privacy.accounting.accountants import account, gaussian_shift
from gapgnn.privacy.accounting.candidates import NEGATIVE_BINOMIAL, POISSON, CandidateNumber
from gapgnn.privacy.accounting.events import Event
from gapgnn.privacy.accounting.pairs import Array, SelectionPair
from gapgnn.privacy.accounting.pld import joined
from gapgnn.privacy.accounting.rdp import ORDERS, renyi_curve
from gapgnn.privacy.accounting.tradeoff import PrivacyProfile, privacy_profile

# Cells of u, close where u or 1 - u is small, and how much of h is computed at a time.
_CELLS = 8192
_FARTHEST_LOGIT = 42.0
_BLOCK = 256
# h is joined by chords from this many times the largest shift below 0 on, and by one chord to 0.
_DEEPEST = 5
_JOINTS = 96
# The curve of a candidate is read at so many epsilons for G, up to where delta ends.
_LINES = 512
_LAST_DELTA = 1e-15
# Rounding of a product of a few floats, so that no bound is below the truth.
_SAFETY = 1e-12
# Where the spread of a candidate's losses is read off its curve.
_SPREAD_DELTA = 1e-6
_LARGEST_SHIFT = 500.0


@dataclass(frozen=True)
class Candidate:
    """What is known of one candidate: the worst of all settings that may be drawn.

    Each run draws its setting from a fixed distribution and releases it with the rest, so no
    divergence of a run is larger than the largest of its settings.

    Attributes:
        profiles: one for each setting.
    """

    profiles: tuple[PrivacyProfile, ...]

    def deltas(self, epsilons: Array) -> Array:
        """Return a bound on delta at each epsilon, in both directions and also below 0."""
        sizes = np.abs(epsilons)
        worst = np.maximum.reduce([one.deltas(sizes) for one in self.profiles])
        # delta(-e) = 1 - e^-e (1 - delta(e)) of the other direction.
        found: Array = np.where(epsilons < 0, 1 - np.exp(-sizes) * (1 - worst), worst)
        return np.minimum(1.0, found * (1 + _SAFETY))

    @property
    def shift(self) -> float | None:
        """The largest mu where all settings are exactly Gaussian; None otherwise."""
        shifts = [one.shift for one in self.profiles]
        return (
            max((s for s in shifts if s is not None), default=None) if None not in shifts else None
        )

    @property
    def slack(self) -> float:
        """How much of every delta may be rounding."""
        return max(0.0 if one.loss is None else one.loss.slack for one in self.profiles)

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon at a delta."""
        return max(one.epsilon(delta) for one in self.profiles)

    def power(self, places: Array) -> Array:
        """Return G: how likely a set is on one neighbour that is so likely on the other, at most.

        Places rise from 0 to 1. For Gaussian noise G is exact. Otherwise each epsilon gives two
        bounds, one for the set and one for its complement.
        """
        if self.shift is not None:
            from scipy.special import ndtr, ndtri

            exact: Array = np.minimum(1.0, ndtr(ndtri(places) + self.shift) * (1 + _SAFETY))
            return exact
        last = 1.0
        while last < _LARGEST_SHIFT and float(self.deltas(np.array([last]))[0]) > _LAST_DELTA:
            last *= 1.5
        epsilons = np.linspace(0.0, last, _LINES)
        deltas, grown = self.deltas(epsilons), np.exp(epsilons)
        found = np.ones_like(places)
        for start in range(0, _LINES, _BLOCK):
            part = slice(start, start + _BLOCK)
            steep = grown[part, None] * places + deltas[part, None]
            flat = 1 - (1 - places - deltas[part, None]) / grown[part, None]
            found = np.minimum(found, np.minimum(steep.min(axis=0), flat.min(axis=0)))
        return np.minimum(1.0, found * (1 + _SAFETY))


@lru_cache(maxsize=256)
def candidate_of(candidates: tuple[tuple[Event, ...], ...], relation: Relation) -> Candidate:
    """Return what is known of a candidate with these settings."""
    return Candidate(
        tuple(privacy_profile([(events, 1)], relation=relation) for events in candidates)
    )


def _candidate(pair: SelectionPair) -> Candidate:
    return candidate_of(pair.candidates, pair.relation)


@dataclass(frozen=True, eq=False)
class Ratios:
    """The logarithms of a(u) and b(u), on cells of u: a at the lower end and b at the upper one."""

    log_a: Array
    log_b: Array

    @classmethod
    def of(cls, number: CandidateNumber, candidate: Candidate) -> Ratios:
        """Return those of a number of candidates."""
        from scipy.special import expit

        inner = expit(np.linspace(-_FARTHEST_LOGIT, _FARTHEST_LOGIT, _CELLS - 1))
        places = np.concatenate([[0.0], inner, [1.0]])
        beaten = candidate.power(places)
        return cls(number.log_gradient(places[:-1]), number.log_gradient(beaten[1:]))

    @property
    def largest(self) -> float:
        """The largest shift: that of Koskela, Redberg and Wang, read off the whole curve."""
        return float((self.log_a - self.log_b).max())

    def at(self, shifts: Array) -> Array:
        """Return h at t = e^shift for each shift."""
        a, b, found = np.exp(self.log_a), np.exp(self.log_b), []
        for start in range(0, len(shifts), _BLOCK):
            part = np.exp(shifts[start : start + _BLOCK])
            found.append((a[None, :] - part[:, None] * b[None, :]).max(axis=1))
        values: Array = np.maximum(0.0, np.concatenate(found)) * (1 + _SAFETY)
        return values

    def moment(self, order: float) -> float:
        """Return the logarithm of the largest ``a^order b^(1 - order)``."""
        return float((order * self.log_a + (1 - order) * self.log_b).max())


@lru_cache(maxsize=256)
def _ratios(pair: SelectionPair) -> Ratios:
    return Ratios.of(pair.number, _candidate(pair))


@lru_cache(maxsize=64)
def mixture(pair: SelectionPair, interval: float) -> tuple[Array, Array]:
    """Return the shifts, whole multiples of an interval, and the weights of the bound.

    >>> from gapgnn.privacy import Undirected
    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> ten = CandidateNumber.geometric(10.0)
    >>> pair = SelectionPair(((Gaussian(6.617, count=2),),), Undirected(), ten)
    >>> shifts, weights = mixture(pair, 2**-9)
    >>> round(float(weights.sum()), 6), 0.38 < float(shifts.max()) < 0.4
    (10.0, True)
    """
    ratios = _ratios(pair)
    joints = max(1, math.ceil(ratios.largest / interval * (1 + _SAFETY)))
    # Few joints are enough: between two of them the chord is above h.
    stride = max(1, joints // _JOINTS)
    last = -(-joints // stride)
    steps = stride * np.arange(-_DEEPEST * last, last + 1)
    joined_at: Array = interval * steps.astype(np.float64)
    places, heights = np.exp(joined_at), ratios.at(joined_at)
    heights[-1] = 0.0  # beyond the largest shift nothing is left
    chords = np.diff(np.concatenate([[pair.number.mean], heights])) / np.diff(
        np.concatenate([[0.0], places])
    )
    # A convex function that falls to 0 is a sum of hinges at the joints, by the change of gradient.
    changes = np.diff(np.concatenate([chords, [0.0]]))
    shifts = interval * np.arange(steps[0], steps[-1] + 1)
    weights = np.zeros_like(shifts)
    weights[::stride] = np.maximum(0.0, changes) * places * (1 + _SAFETY)
    return shifts, weights


def selection_deltas(pair: SelectionPair, interval: float, first: int, last: int) -> Array:
    """Return the bound on delta at whole multiples of an interval, from ``first`` to ``last``."""
    shifts, weights = mixture(pair, interval)
    lowest, highest = round(float(shifts[0]) / interval), round(float(shifts[-1]) / interval)
    needed = interval * np.arange(first - highest, last - lowest + 1).astype(np.float64)
    own = _candidate(pair).deltas(needed)
    # Entry i of the product takes the weight of shift k with the profile at (i - k) intervals.
    found: Array = np.minimum(1.0, np.convolve(own, weights, mode="valid"))
    return found


def below_chords(epsilons: Array, deltas: Array) -> Array:
    """Return the largest curve below some deltas that two neighbours can have, in both directions.

    A curve of delta is convex in e^epsilon, also below 0, where it follows from the other
    direction. So it lies below every chord between two of its bounds.

    >>> below_chords(np.log([1.0, 2.0, 3.0]), np.array([1.0, 0.5, 0.0])).round(3).tolist()
    [0.5, 0.25, 0.0]
    """
    odds = np.exp(epsilons)
    mirrored = 1 - (1 - deltas[:0:-1]) / odds[:0:-1]
    places = np.concatenate([1 / odds[:0:-1], odds])
    heights = np.concatenate([mirrored, deltas])
    kept: list[int] = []
    for i in range(len(places)):
        while len(kept) > 1:
            j, k = kept[-1], kept[-2]
            left = (heights[j] - heights[k]) * (places[i] - places[j])
            right = (heights[i] - heights[j]) * (places[j] - places[k])
            if left < right:
                break
            kept.pop()
        kept.append(i)
    joined_up: Array = np.interp(odds, places[kept], heights[kept])
    return np.minimum(deltas, joined_up)


def selection_loss(pair: SelectionPair, interval: float) -> Any:
    """Return a privacy loss distribution that dominates a selection."""
    return joined(
        lambda first, last: selection_deltas(pair, interval, first, last),
        interval,
        slack=pair.number.mean * _candidate(pair).slack,
        finished=below_chords,
    )


def selection_spread(pair: SelectionPair) -> tuple[float, float]:
    """Return variance and range of the losses of one candidate, for the choice of the grid."""
    candidate = _candidate(pair)
    shift = candidate.shift
    if shift is None:
        epsilon = candidate.epsilon(_SPREAD_DELTA)
        if not 0 < epsilon < math.inf:
            return (math.inf, math.inf) if epsilon else (1e-12, 1e-6)
        shift = gaussian_shift(epsilon, _SPREAD_DELTA)
    return shift * shift, shift * (shift + 20.0)


def selection_pure(pair: SelectionPair) -> float:
    """Return the epsilon at delta 0: that of a candidate, and the largest shift."""
    pure = max(account(events, 0.0, relation=pair.relation).epsilon for events in pair.candidates)
    if math.isinf(pure):
        return math.inf
    if pair.number.distribution == NEGATIVE_BINOMIAL:
        return (2 + pair.number.shape) * pure
    return pure + _ratios(pair).largest


def selection_divergences(pair: SelectionPair, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return a bound on the Renyi divergence of a selection at each order above 1."""
    places = np.union1d(orders, ORDERS)
    found = np.minimum(_by_ratios(pair, places), papernot_steinke(pair, places))
    return tuple(found[np.searchsorted(places, orders)].tolist())


def _by_ratios(pair: SelectionPair, orders: Array) -> Array:
    """Return the Renyi bound by the largest ``a^order b^(1 - order)``."""
    ratios, number = _ratios(pair), pair.number
    own = (orders - 1) * candidate_renyi(pair, orders)
    moments = own + np.array([ratios.moment(order) for order in orders])
    empty = math.log(number.empty) if number.empty > 0 else -math.inf
    return _growing(np.logaddexp(moments, empty) / (orders - 1))


def _growing(bounds: Array) -> Array:
    """Return bounds at rising orders, each at most those after it: divergences grow with order."""
    found: Array = np.minimum.accumulate(bounds[::-1])[::-1]
    return found


def candidate_renyi(pair: SelectionPair, orders: Array) -> Array:
    """Return the largest Renyi divergence of any setting of a candidate."""
    curves = [renyi_curve(e, relation=pair.relation, orders=orders) for e in pair.candidates]
    largest: Array = np.maximum.reduce(curves)
    return largest


def papernot_steinke(pair: SelectionPair, orders: Array) -> Array:
    """Return the Renyi bound of Papernot and Steinke (2022), Theorems 2 and 6, at rising orders.

    It is infinite for the binomial distribution, for which they give none.
    """
    number, own = pair.number, candidate_renyi(pair, orders)
    bound = np.full_like(orders, math.inf)
    if number.distribution == NEGATIVE_BINOMIAL:
        # The second order is free.
        all_orders = candidate_renyi(pair, ORDERS)
        constant = float(((1 - 1 / ORDERS) * all_orders - math.log(number.gamma) / ORDERS).min())
        bound = own + (1 + number.shape) * constant + math.log(number.mean) / (orders - 1)
    elif number.distribution == POISSON:
        deltas = _candidate(pair).deltas(np.log1p(1 / (orders - 1)))
        bound = own + number.mean * deltas + math.log(number.mean) / (orders - 1)
    return _growing(bound)
