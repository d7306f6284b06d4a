"""Randomised response on class labels, released once per person (privacy page, section 5).

With probability ``C other`` the response is drawn uniformly from all C classes, and otherwise it is
the true class, which therefore has probability ``1 - (C - 1) other``. Without a label, because the
record is missing or has none, the response is uniform. Every id has a response, so the release does
not reveal which records exist.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.privacy import Release, observe
from gapgnn.privacy.accounting import LabelResponse
from gapgnn.privacy.mechanisms.draws import Coins
from gapgnn.privacy.mechanisms.noise import SafeOrFast
from gapgnn.rng import NoiseKey

SILENT = -1
_WORD = 2**64
# Distance counted in an audit for a change of who responds: more than any label may contribute.
_NOT_ACCOUNTED = 3.0


def randomised_labels(
    labels: NDArray[np.int64],
    speaks: NDArray[np.bool_],
    response: LabelResponse,
    *,
    key: NoiseKey,
    noise: SafeOrFast = "safe",
    name: str = "labels",
) -> Tensor:
    """Release a class for everyone who responds, and -1 for the others.

    Node level, relation ``add-remove`` or ``replace``: one record is one label, and the response
    costs its pure epsilon under both (:class:`gapgnn.privacy.accounting.LabelResponse`).

    Args:
        labels: the class of each person, below 0 without one.
        speaks: mask of those who respond. It must be public, and not depend on whether a record
            exists.
        response: the probabilities of the response.
        key: of this release alone.
        noise: ``safe`` or ``fast`` coins.
        name: of the release, for audits.

    >>> labels, speaks = np.array([2, 2, -1, 0]), np.array([True, True, True, False])
    >>> responses = randomised_labels(labels, speaks, LabelResponse.of(30.0, 3),
    ...                          key=NoiseKey.insecure(0))
    >>> responses[[0, 1, 3]].tolist(), 0 <= int(responses[2]) < 3
    ([2, 2, -1], True)
    """
    coins = Coins(key, noise=noise)
    count, classes = len(labels), response.classes
    share = _rounded_up(classes * Fraction(response.other))
    is_random = coins.each(count, share, "at random")
    responses = np.where(is_random | (labels < 0), _uniform(coins, count, classes), labels)
    responses[~speaks] = SILENT

    def describe() -> Release:
        value = np.zeros((count, classes + 1))
        known = speaks & (labels >= 0)
        value[known, labels[known]] = 1.0
        value[~speaks, classes] = _NOT_ACCOUNTED
        return Release(
            name,
            value,
            response.other,
            sensitivity=1.0,
            measure="l1",
            rows_of_people=True,
            covers_own_row=True,
            counts_records=True,
        )

    released: Tensor = observe(describe, torch.from_numpy(responses))
    return released


def _rounded_up(share: Fraction) -> float:
    """Return a multiple of 2^-64 that is no smaller: never less random than accounted."""
    near = math.ceil(share * _WORD) / _WORD
    return min(1.0, near if near >= share else math.nextafter(near, math.inf))


def _uniform(coins: Coins, count: int, classes: int) -> NDArray[np.int64]:
    """Return a class for each of ``count`` people, all equally likely."""
    drawn = np.zeros(count, dtype=np.int64)
    for last in range(1, classes):
        # All classes up to this one are then equally likely.
        drawn[coins.each(count, 1 / (last + 1), "class", last)] = last
    return drawn
