"""Lower bounds hold as often as they say, and reach what there is to find."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gapgnn.audits.bounds import (
    Trials,
    binomial_lower,
    binomial_upper,
    curve_bound,
    gaussian_price,
    threshold_bound,
)
from gapgnn.audits.report import Attempt, AuditReport, Check, confirmed
from gapgnn.errors import InputError
from gapgnn.privacy.accounting.accountants import gaussian_epsilon


def gaussian_trials(shift: float, count: int, rng: np.random.Generator) -> Trials:
    worlds = rng.random(count) < 0.5
    scores = (rng.normal(size=count) + shift * worlds)[None]
    return Trials(scores, worlds, shift / 2, gaussian_price(1e-5))


def flipped_bits(epsilon: float, count: int, rng: np.random.Generator) -> Trials:
    worlds = rng.random(count) < 0.5
    honest = rng.random(count) < 1 / (1 + math.exp(-epsilon))
    return Trials(np.where(honest, worlds, ~worlds)[None].astype(float), worlds)


def test_binomial_limits_are_those_of_clopper_and_pearson():
    assert binomial_lower(0, 50, 0.05) == 0.0
    assert binomial_upper(50, 50, 0.05) == 1.0
    assert binomial_upper(0, 50, 0.05) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert binomial_lower(50, 50, 0.05) == pytest.approx(0.05 ** (1 / 50))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_threshold_bound_is_rarely_above_the_truth(epsilon):
    rng = np.random.default_rng(1)
    bounds = [
        threshold_bound(flipped_bits(epsilon, 2_000, rng), delta=0, alpha=0.2) for _ in range(100)
    ]
    assert sum(bound > epsilon for bound in bounds) <= 30
    assert np.median(bounds) > 0.5 * epsilon


def test_the_curve_bound_is_rarely_above_the_truth_and_close_to_it():
    rng = np.random.default_rng(2)
    truth = gaussian_epsilon(1.0, 1e-5)
    found = [curve_bound(gaussian_trials(1.0, 4_000, rng), alpha=0.1) for _ in range(200)]
    assert 4 <= sum(bound > truth for bound in found) <= 40
    assert np.median(found) > 0.85 * truth


def test_no_effect_is_no_bound():
    rng = np.random.default_rng(3)
    trials = gaussian_trials(0.0, 4_000, rng)
    assert threshold_bound(trials, delta=1e-5, alpha=0.05) < 0.2
    assert curve_bound(trials, alpha=0.05) < 0.5


def test_the_threshold_is_chosen_on_other_trials_than_it_is_judged_on():
    """Scores that are unique per trial let a chooser overfit its own half; the bound must not."""
    rng = np.random.default_rng(4)
    bounds = [
        threshold_bound(
            Trials(rng.normal(size=(5, 400)), rng.random(400) < 0.5), delta=0, alpha=0.05
        )
        for _ in range(30)
    ]
    assert sum(bound > 0 for bound in bounds) <= 5


def test_the_largest_of_several_bounds_shares_the_error():
    rng = np.random.default_rng(5)
    trials = gaussian_trials(1.0, 2_000, rng)
    run = Attempt("x", rng, 2_000)
    options = {"epsilon": 1.0, "delta": 1e-5, "details": {}}
    alone = run.conclude({"a": trials}, **options)
    many = run.conclude(dict.fromkeys("abc", trials), **options)
    assert many.epsilon_lower_bound < alone.epsilon_lower_bound


@pytest.mark.parametrize("violations", [1, 2])
def test_a_violation_must_show_three_times(violations):
    asked = []

    def attempt(run: Attempt) -> AuditReport:
        number = len(asked)
        asked.append(run.rng.random())
        return AuditReport("x", 1.0, 1.1 + number if number < violations else 0.9, 0.0, 0.95, 100)

    report = confirmed("x", attempt, 100)
    # Each run has its own coins.
    assert len(set(asked)) == violations + 1
    assert report.holds
    assert report.details["first_lower_bound"] == 1.1


def test_a_real_violation_stays_one():
    report = confirmed("x", lambda run: AuditReport("x", 1.0, 2.0, 0.0, 0.95, 100), 100)
    assert not report.holds
    assert "broken" in report.sentence


def test_what_is_counted_needs_no_second_run():
    asked = []

    def attempt(run: Attempt) -> AuditReport:
        asked.append(run)
        checks = (Check("hops released", 3, 2), Check("clips", 1.0, 1.0))
        return AuditReport("x", 1.0, 0.5, 0.0, 0.95, 100, checks=checks)

    report = confirmed("x", attempt, 100)
    assert len(asked) == 1
    assert report.bound_holds
    assert not report.holds
    assert "broken: hops released: 3, accounted 2." in report.sentence
    assert [check["holds"] for check in report.to_dict()["checks"]] == [False, True]


def test_too_few_trials_are_refused():
    with pytest.raises(InputError, match="`trials` must be at least"):
        Trials(np.zeros((1, 5)), np.zeros(5, dtype=bool))
