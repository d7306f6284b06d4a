"""Scores of canaries where the folder keeps directions of rows only, as in GAP of the paper.

A hop of GAP releases noisy rows scaled to norm 1. Without its length a row is no longer Gaussian,
so its projection estimates nothing exactly. The likelihood of a direction is known, though: with
d columns, mean ``a`` in units of the noise and ``h = <direction, a>`` it is proportional to
``exp(-|a|^2 / 2)`` times the integral of ``r^(d-1) exp(-r^2 / 2 + r h)`` over lengths r.

The sign of the likelihood ratio guesses the coin. Guesses of a canary are right with probability at
most ``(1 + TV) / 2``, whatever is released of the other canaries, so their number gives a lower
limit of mu (:mod:`gapgnn.audits.bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gapgnn.audits.scores import Matrix, Moves

_STEPS, _REACH = 400, 9.0


def log_lengths(projections: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    """Return the logarithm of the integral of ``r^(d-1) exp(-r^2 / 2 + r h)`` over lengths.

    >>> found = log_lengths(np.array([0.0, 3.0]), 1)
    >>> bool(np.allclose(found, [np.log(np.sqrt(np.pi / 2)), 5.4176], atol=1e-3))
    True
    """
    # The integrand has one peak, and falls at least as fast as a Gaussian on both sides of it.
    peaks = (projections + np.sqrt(projections**2 + 4 * (columns - 1))) / 2
    steps = np.linspace(-_REACH, _REACH, _STEPS)
    lengths = peaks[:, None] + steps[None]
    inside = lengths > 0
    safe = np.where(inside, lengths, 1.0)
    logs = (columns - 1) * np.log(safe) - safe**2 / 2 + safe * projections[:, None]
    logs = np.where(inside, logs, -np.inf)
    most = logs.max(axis=1, keepdims=True)
    width = steps[1] - steps[0]
    total: NDArray[np.float64] = most[:, 0] + np.log(np.exp(logs - most).sum(axis=1) * width)
    return total


def log_odds(
    rows: Sequence[Matrix],
    means: Sequence[Matrix],
    tables: Sequence[Matrix],
    moves: Moves,
    count: int,
) -> NDArray[np.float64]:
    """Return for each canary the log-likelihood ratio of being in, from the directions of its rows.

    Args:
        rows: released directions of each hop.
        means: sums of what others send, of each hop, in units of the noise.
        tables: vectors that canaries add, of each hop, in the same units.
        moves: who adds which vector to which row; canaries have rows of their own.
        count: of the canaries.

    >>> rng = np.random.default_rng(0)
    >>> own, inside = np.arange(2000), np.arange(2000) < 1000
    >>> noisy = rng.normal(size=(2000, 4)) + inside[:, None] * np.eye(4)[0]
    >>> rows = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    >>> odds = log_odds([rows], [0 * rows], [np.eye(4)], Moves(own, own, 0 * own), 2000)
    >>> 0.6 < float(((odds > 0) == inside).mean()) < 0.7
    True
    """
    odds = np.zeros(count)
    for directions, mean, table in zip(rows, means, tables, strict=True):
        seen, out = directions[moves.row], mean[moves.row]
        within = out + table[moves.sender]
        logs = [
            log_lengths((seen * one).sum(axis=1), seen.shape[1]) - (one**2).sum(axis=1) / 2
            for one in (within, out)
        ]
        np.add.at(odds, moves.canary, logs[0] - logs[1])
    return odds
