"""Audits of pure releases, with delta 0: randomised labels, and the noisy mean out-degree.

Both are node level. A label is released by randomised response independently for each person, so
one call of the mechanism on many people gives as many independent trials. The mean out-degree is
one number, so each trial is a separate release under its own key.

Labels: neighbours are two records of different classes (``replace``), or a record and no record
(``add-remove``), for which the response must be uniform. Mean out-degree: a record with the largest
possible out-degree, and no record or one without neighbours. Both are worst cases of their
mechanism with known tradeoff curves, so the bounds come near the claim (privacy page, sections 1, 5
and 8).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gapgnn.audits.bounds import LEAST_TRIALS, Price, Scores
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.privacy import Relation, Replace, parse_relation
from gapgnn.privacy.accounting import LabelResponse, Laplace
from gapgnn.privacy.mechanisms import SafeOrFast, noisy_mean_degree, randomised_labels
from gapgnn.rng import NoiseKey

if TYPE_CHECKING:
    from typing_extensions import Unpack

RELATIONS = ("add-remove", "replace")
# A share that is counted may exceed what is accounted by so many standard deviations.
_DEVIATIONS = 6.0
# What one record may add to the sum, by the promise; so much is in each of the others' lists.
MOST_DOUBLINGS, _LONG, _LONGEST = 10.0, 2**10 - 1, 2**40
# Above it, the safe grid does not carry the noise.
_MOST_EPSILON = MOST_DOUBLINGS * 2**10
# Of the scale of the noise: how far the sum of the others is from where the mean is clamped.
_ROOM = 5.0
# Releases whose noise is measured.
_MEASURED = 400


def audit_labels(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    classes: int = 3,
    response: LabelResponse | None = None,
    trials: int = 20_000,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack everybody's randomised label and bound its epsilon, at delta 0, from below.

    Args:
        relation: ``add-remove`` or ``replace``.
        epsilon: claimed budget.
        classes: how many there are.
        response: audit this response instead; the claim is then what it is accounted at.
        trials: people whose label is guessed.
        noise: ``safe`` or ``fast`` coins.
        options: of every audit.

    >>> audit_labels(epsilon=2.0, trials=4_000).holds
    True
    """
    neighbours = parse_relation(check_choice("relation", relation, RELATIONS))
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    if response is None:
        response = LabelResponse.of(epsilon, classes)
    epsilon = response.pair(neighbours).pure_epsilon
    scores_of = partial(_label_scores, response, neighbours, noise)

    def attempt(run: Attempt) -> AuditReport:
        price = _response_price(response.classes, neighbours)
        found = run.run(scores_of, threshold=0.0, price=price)
        return run.conclude(
            {"labels": found},
            epsilon=epsilon,
            delta=0.0,
            details={
                "level": "node",
                "relation": relation,
                "classes": response.classes,
                "noise": noise,
            },
            checks=_label_checks(response, trials, noise),
        )

    return confirmed("labels", attempt, trials, **options)


def _label_scores(
    response: LabelResponse, relation: Relation, noise: SafeOrFast, worlds: NDArray[np.bool_]
) -> Scores:
    """Return statistics of each response: for class 1, and against the neighbouring input."""
    other = 0 if relation == Replace() else -1
    responses = _responses(np.where(worlds, 1, other), response, noise)
    is_one, is_none = responses == 1, responses < 0
    # A missing response, or a class that does not occur, would reveal a missing record.
    against = responses == 0 if relation == Replace() else ~is_one
    rows = [is_one.astype(float) - against, is_one, is_none, responses == response.classes - 1]
    return np.stack([np.asarray(row, dtype=np.float64) for row in rows])


def _responses(
    labels: NDArray[np.int64], response: LabelResponse, noise: SafeOrFast
) -> NDArray[np.int64]:
    everybody = np.ones(len(labels), dtype=np.bool_)
    key = NoiseKey.fresh()
    responses: NDArray[np.int64] = randomised_labels(
        labels.astype(np.int64), everybody, response, key=key, noise=noise
    ).numpy()
    return responses


def _label_checks(response: LabelResponse, trials: int, noise: SafeOrFast) -> list[Check]:
    """Count how often the true class comes out, and each class where there is no label."""

    def most(share: float) -> float:
        return share + _DEVIATIONS * math.sqrt(share * (1 - share) / trials) + 1 / trials

    kept = float((_responses(np.ones(trials, np.int64), response, noise) == 1).mean())
    silent = _responses(np.full(trials, -1), response, noise)
    shares = np.bincount(silent[silent >= 0], minlength=response.classes) / trials
    return [
        Check("share of true labels that come out", kept, most(response.keep)),
        Check(
            "share of one class among people without a label",
            float(shares.max()),
            most(1 / response.classes),
        ),
        Check("people without a label who do not answer", float((silent < 0).sum()), 0.0),
    ]


def _response_price(classes: int, relation: Relation) -> Price:
    """Return what a total variation distance costs on the curve of randomised response.

    The true class has probability e^epsilon / (e^epsilon + C - 1). Its distance from the response
    to another class is ``keep - other``, and from a uniform class ``keep - 1 / C``.
    """

    def price(distance: float) -> float:
        most = 1 - 1e-15
        if relation == Replace():
            odds = (1 + min(distance, most) * (classes - 1)) / (1 - min(distance, most))
        else:
            keep = min(distance + 1 / classes, most)
            odds = keep * (classes - 1) / (1 - keep)
        return max(0.0, math.log(odds))

    return price


def audit_mean_degree(
    *,
    relation: str = "add-remove",
    epsilon: float = 0.01,
    trials: int = 4_000,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the noisy mean out-degree and bound its epsilon, at delta 0, from below.

    Args:
        relation: ``add-remove`` or ``replace``.
        epsilon: claimed, of this number alone, with noise that the safe grid can carry.
        trials: releases, of which each tells one coin.
        noise: ``safe`` or ``fast``.
        options: of every audit.

    >>> audit_mean_degree(epsilon=1.0, trials=400).holds
    True
    """
    neighbours = parse_relation(check_choice("relation", relation, RELATIONS))
    check_number("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    claimed = Laplace(1 / epsilon).pair(neighbours).pure_epsilon
    scores_of = partial(_degree_scores, epsilon, neighbours, noise)

    def attempt(run: Attempt) -> AuditReport:
        found = run.run(scores_of, threshold=MOST_DOUBLINGS / 2, price=_laplace_price)
        return run.conclude(
            {"numbers": found},
            epsilon=claimed,
            delta=0.0,
            details={"level": "node", "relation": relation, "noise": noise},
            checks=_degree_checks(epsilon, noise),
        )

    return confirmed("mean degree", attempt, trials, **options)


def _degree_scores(
    epsilon: float, relation: Relation, noise: SafeOrFast, worlds: NDArray[np.bool_]
) -> Scores:
    """Return by how many doublings each release exceeds what the other people add up to."""
    count = math.ceil(_ROOM / epsilon)
    others = np.full(count, _LONG)
    nobody = [0] if relation == Replace() else []
    beside = {world: np.append(others, [_LONGEST] if world else nobody) for world in (False, True)}
    scores = [
        _doublings(beside[bool(world)], 2 * count, epsilon, NoiseKey.fresh(), noise)
        for world in worlds
    ]
    return np.array([scores]) - MOST_DOUBLINGS * count


def _doublings(
    lengths: NDArray[np.int64], people: int, epsilon: float, key: NoiseKey, noise: SafeOrFast
) -> float:
    """Return the sum that one release was made from, with its noise."""
    length = noisy_mean_degree(lengths, num_people=people, epsilon=epsilon, key=key, noise=noise)
    return math.log2(length + 1) * people


def _degree_checks(epsilon: float, noise: SafeOrFast) -> list[Check]:
    """Compare the noise with its scale, and releases of neighbours under the same noise."""
    people, key = 200, NoiseKey.fresh()
    others = np.full(people // 2, _LONG)
    found = [
        _doublings(np.append(others, more), people, MOST_DOUBLINGS, key, noise)
        for more in ([], [0], [_LONG], [_LONGEST])
    ]
    rounding = 1e-6
    scale, count = MOST_DOUBLINGS / epsilon, math.ceil(_ROOM / epsilon)
    drawn = [
        _doublings(np.full(count, _LONG), 2 * count, epsilon, NoiseKey.fresh(), noise)
        for _ in range(_MEASURED)
    ]
    measured = float(np.abs(np.array(drawn) - MOST_DOUBLINGS * count).mean())
    return [
        # The mean size of Laplace noise is its scale, and so is the deviation of that size.
        Check(
            "accounted over measured scale of the noise",
            scale / max(measured, 1e-300),
            1 / (1 - _DEVIATIONS / math.sqrt(_MEASURED)),
        ),
        Check("doublings that one record adds", max(found) - min(found), MOST_DOUBLINGS + rounding),
        Check(
            "doublings that a record without neighbours adds", abs(found[1] - found[0]), rounding
        ),
    ]


def _laplace_price(distance: float) -> float:
    """Return what a total variation distance costs on the Laplace curve.

    Two Laplace distributions that are epsilon scales apart have distance 1 - exp(-epsilon / 2).

    >>> round(_laplace_price(1 - math.exp(-0.5)), 9)
    1.0
    """
    return -2 * math.log1p(-min(distance, 1 - 1e-15))
