"""Statistics of canary scores: from one run to a lower bound on epsilon.

A canary adds known vectors to a few released rows if a secret coin put it into the graph. What is
released, less what is known, is then ``coin * vector + noise``, and the noise of a hop is exactly
Gaussian. So the scores of canaries estimate the shift of the Gaussian mechanism itself, which
guesses do not (Steinke et al. 2023).

The estimate is a regression with two coefficients, computed over all rows that canaries write to:
``row = base * U + effect * X + noise``, where U adds up the vectors of all canaries and X those of
the canaries that are in. With rows of their own it is the two-sample t statistic of the scores
``<row, vector> / |vector|``. *Reference* canaries, which are drawn by the same rule and are always
out, make ``base`` known to more digits.

**Why it is exact.** A vector of hop k is a function of the graph, of the coins and of releases
before hop k. The noise of hop k is independent of all of them. Given the coins the noise part of
the estimate is therefore a sum of independent Gaussians, and its standard error follows from U, X
and the standard deviation of the residuals, which is estimated too. The lower limit is that of a
noncentral t distribution, by the approximation of Johnson and Welch (1940).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gapgnn.audits.bounds import epsilon_of
from gapgnn.audits.report import Check
from gapgnn.errors import InputError, check_number

Matrix = NDArray[np.float64]
# A check errs with about this probability, so that it needs no second run.
_RARE, _QUANTILE = 1e-9, 6.0
_FEW = 1e-3


@dataclass(frozen=True)
class Moves:
    """What each canary adds to which row.

    Attributes:
        canary: number of the canary, one entry for each row that it writes to.
        row: the row.
        sender: row of the table of vectors that is added.

    >>> moves = Moves(np.array([0, 0]), np.array([3, 4]), np.array([4, 3]))
    >>> len(moves.row)
    2
    """

    canary: NDArray[np.int64]
    row: NDArray[np.int64]
    sender: NDArray[np.int64]

    def added(self, table: Matrix, rows: int, factor: Matrix) -> Matrix:
        """Return what the canaries add to each row, each times its factor."""
        sums = np.zeros((rows, table.shape[1]))
        np.add.at(sums, self.row, table[self.sender] * factor[self.canary, None])
        return sums


@dataclass(frozen=True)
class Effect:
    """What one canary moves, in units of the noise that was found.

    Attributes:
        shift: estimate of mu, the shift of the Gaussian mechanism.
        error: its standard error.
        lower: one-sided lower limit of mu.
        noise: standard deviation of the residuals, in units of the claimed noise.
        freedom: degrees of freedom of that.
    """

    shift: float
    error: float
    lower: float
    noise: float
    freedom: int

    def epsilon(self, delta: float) -> float:
        """Return the lower bound on epsilon, by the exact curve of the Gaussian mechanism."""
        return epsilon_of(self.lower, delta)


def effect_of(
    residuals: Sequence[Matrix],
    tables: Sequence[Matrix],
    moves: Moves,
    inside: NDArray[np.bool_],
    *,
    alpha: float,
) -> Effect:
    """Return the effect of one canary on all hops together.

    Args:
        residuals: released rows less what is known, of each hop, in units of the claimed noise.
        tables: vectors that canaries add, of each hop, in the same units.
        moves: who adds which vector to which row.
        inside: which canaries are in the graph; references are not.
        alpha: how often the lower limit may be wrong.

    >>> rng = np.random.default_rng(0)
    >>> inside, own = rng.random(4000) < 0.5, np.arange(4000)
    >>> noise = rng.normal(size=(4000, 3)) + 0.5 * inside[:, None] * np.eye(3)[0]
    >>> found = effect_of(
    ...     [noise], [0.5 * np.eye(3)], Moves(own, own, 0 * own), inside, alpha=0.05
    ... )
    >>> 0.4 < found.lower < found.shift < 0.6
    True
    """
    check_number("alpha", alpha, above=0, below=1)
    touched = np.unique(moves.row)
    factors = np.ones(len(inside)), inside.astype(np.float64)
    y = np.concatenate([one[touched].ravel() for one in residuals])
    design = np.stack(
        [
            np.concatenate(
                [moves.added(table, len(one), factor)[touched].ravel() for one, table in pairs]
            )
            for factor in factors
            for pairs in [list(zip(residuals, tables, strict=True))]
        ],
        axis=1,
    )
    gram = design.T @ design
    if inside.all() or not inside.any() or np.linalg.det(gram) <= 0:
        raise InputError("canaries must be both in and out. Got coins of one side; take more.")
    inverse = np.linalg.inv(gram)
    coefficients = inverse @ (design.T @ y)
    freedom = len(y) - 2
    # Of a mechanism without noise the residuals are rounding.
    noise = max(float(np.sqrt(((y - design @ coefficients) ** 2).sum() / freedom)), 1e-9)
    size = _mean_size(tables, moves, len(inside))
    unit = math.sqrt(inverse[1, 1])
    t = float(coefficients[1]) / (noise * unit)
    limit = _noncentral_lower(t, freedom, alpha)
    error = unit * size * math.sqrt(1 + t * t / (2 * freedom))
    return Effect(t * unit * size, error, limit * unit * size, noise, freedom)


def _mean_size(tables: Sequence[Matrix], moves: Moves, count: int) -> float:
    """Return the mean distance by which a canary moves all rows of all hops together.

    The mean of several canaries is no more than the distance of the one that moves most.
    """
    squares = np.zeros(count)
    for table in tables:
        np.add.at(squares, moves.canary, (table[moves.sender] ** 2).sum(axis=1))
    return float(np.sqrt(squares).mean())


def _noncentral_lower(t: float, freedom: int, alpha: float) -> float:
    """Return the lower limit of the noncentrality of a t statistic.

    >>> round(_noncentral_lower(3.0, 10_000, 0.05), 2)
    1.35
    """
    from scipy.special import ndtri

    return t - float(-ndtri(alpha)) * math.sqrt(1 + t * t / (2 * freedom))


def whitened(
    residuals: Sequence[Matrix], tables: Sequence[Matrix], untouched: NDArray[np.bool_]
) -> tuple[list[Matrix], list[Matrix]]:
    """Return residuals and vectors in coordinates in which the noise of rows untouched is white.

    The attacker's best statistic where noise is not what is claimed: hops or columns with less
    noise count more. All hops become one.

    Args:
        residuals: of each hop.
        tables: vectors of each hop.
        untouched: rows that no canary writes to, from which the noise is learned.

    >>> rng = np.random.default_rng(0)
    >>> noise = rng.normal(size=(1000, 2)) * [1.0, 0.1]
    >>> (white,), (table,) = whitened([noise], [np.ones((1, 2))], np.ones(1000, bool))
    >>> table.round(0).tolist()
    [[1.0, 10.0]]
    """
    together, vectors = np.concatenate(residuals, axis=1), np.concatenate(tables, axis=1)
    known = together[untouched] if untouched.sum() > 4 * together.shape[1] else together
    covariance = known.T @ known / len(known)
    values, directions = np.linalg.eigh(covariance)
    scale = 1 / np.sqrt(np.maximum(values, 1e-12))
    # A symmetric root keeps the columns where they are.
    root = (directions * scale) @ directions.T
    return [together @ root], [vectors @ root]


def noise_checks(
    residuals: Sequence[Matrix], scales: Sequence[float], untouched: NDArray[np.bool_]
) -> list[Check]:
    """Compare the noise of released rows with what is accounted for.

    Less noise, noise that two hops or two rows share, and rows with hardly any noise. Each check
    allows for chance of about one in a billion.

    Args:
        residuals: of each hop, in units of the noise that rows are given in.
        scales: that unit over the accounted noise, of each hop; 1 where they agree.
        untouched: rows that no canary writes to.

    >>> rng = np.random.default_rng(0)
    >>> half = [rng.normal(size=(4000, 2)), 0.5 * rng.normal(size=(4000, 2))]
    >>> [one.name for one in noise_checks(half, [1.0, 1.0], np.ones(4000, bool)) if not one.holds]
    ['hop 2: accounted noise over the noise found']
    """
    from scipy.stats import binom, chi2

    chosen = untouched if untouched.sum() >= 100 else np.ones_like(untouched)
    rows = [one[chosen] for one in residuals]
    checks = []
    for hop, (one, scale) in enumerate(zip(rows, scales, strict=True), start=1):
        count, width = one.shape
        found = float(np.sqrt((one**2).mean(axis=0)).min()) * (1 + _QUANTILE / math.sqrt(2 * count))
        checks.append(
            Check(
                f"hop {hop}: accounted noise over the noise found",
                min(1 / max(found * scale, 1e-9), 1e9),
                1.0,
            )
        )
        typical = max(float(np.sqrt((one**2).mean())), 1e-12)
        sizes = (one**2).sum(axis=1) / typical**2
        few = int((sizes < chi2.ppf(_FEW, width)).sum())
        most = float(binom.isf(_RARE, count, _FEW))
        checks.append(Check(f"hop {hop}: rows with hardly any noise", float(few), most))
        shared = abs(_correlation(one[1:], one[:-1]))
        name = f"hop {hop}: correlation of the noise of successive rows"
        checks.append(Check(name, shared, _QUANTILE / math.sqrt(one.size)))
    for first in range(len(rows)):
        for second in range(first + 1, len(rows)):
            if rows[first].shape != rows[second].shape:
                continue
            checks.append(
                Check(
                    f"correlation of the noise of hops {first + 1} and {second + 1}",
                    abs(_correlation(rows[first], rows[second])),
                    _QUANTILE / math.sqrt(rows[first].size),
                )
            )
    return checks


def _correlation(first: Matrix, second: Matrix) -> float:
    sizes = math.sqrt(float((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / max(sizes, 1e-12)


def one_run_p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return how likely so many right guesses are under (epsilon, delta)-DP.

    Of ``canaries`` that are each in or out by a fair coin, an attacker guesses some (Steinke, Nasr
    and Jagielski 2023, theorem 5.2). Nothing is assumed of the mechanism, and canaries may share
    a model.

    >>> round(one_run_p_value(60, 100, 1000, 0.0, 0.0), 4)
    0.0284
    """
    from scipy.stats import binom

    share = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, share))
    if delta == 0 or right == 0:
        return beta
    steps = np.arange(1, right + 1)
    sums = binom.sf(right - steps - 1, guesses, share) - beta
    alpha = max(float((sums / steps).max()), 0.0)
    return min(beta + 2 * canaries * delta * alpha, 1.0)


def guess_bound(
    scores: NDArray[np.float64], inside: NDArray[np.bool_], *, delta: float, alpha: float
) -> float:
    """Return a lower bound on epsilon from guesses about canaries of one run.

    The canaries with the highest scores are guessed to be in, as many with the lowest to be out.
    Several numbers of guesses are tried, and share the allowed error.

    >>> coins = np.arange(1000) % 2 == 0
    >>> 5 < guess_bound(coins.astype(float), coins, delta=1e-6, alpha=0.05) < 6
    True
    """
    from scipy.optimize import brentq

    count = len(scores)
    if count < 20:
        return 0.0
    order = np.argsort(scores, kind="stable")
    tried = sorted({max(5, count // share) for share in (100, 40, 20, 8, 4, 2)})
    best = 0.0
    for each in tried:
        right = int(inside[order[-each:]].sum() + (~inside[order[:each]]).sum())

        def missing(epsilon: float, right: int = right, each: int = each) -> float:
            allowed = alpha / len(tried)
            return one_run_p_value(right, 2 * each, count, epsilon, delta) - allowed

        if missing(best) < 0:
            high = 40.0
            best = float(brentq(missing, best, high)) if missing(high) > 0 else high
    return best
