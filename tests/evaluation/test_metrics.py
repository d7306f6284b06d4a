"""Intervals cover the mean, and the paired test says what the repeats can carry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test

from gapgnn.errors import InputError
from gapgnn.evaluation.metrics import bootstrap_interval, paired_test

runs = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=10)


@given(runs)
def test_an_interval_lies_within_the_runs_around_their_mean(values: list[float]) -> None:
    low, high = bootstrap_interval(values)
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        low, high = bootstrap_interval(list(rng.normal(0.7, 0.02, size=20)), seed=trial)
        hits += low <= 0.7 <= high
    # A percentile interval of 20 values is known to be a little narrow: 92 to 93 %.
    assert 0.87 <= hits / 300 <= 0.97


def test_the_exact_test_agrees_with_scipys() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.7, 0.02, size=9), rng.normal(0.69, 0.02, size=9)
    theirs = permutation_test(
        (first, second),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert paired_test(list(first), list(second)) == pytest.approx(theirs.pvalue)


@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_methods_and_of_repeats_makes_no_difference(values, rng) -> None:
    others = [rng.random() for _ in values]
    pairs = list(zip(values, others, strict=True))
    rng.shuffle(pairs)
    value = paired_test(values, others)
    assert 0 < value <= 1
    assert paired_test(others, values) == value
    shuffled = paired_test([a for a, _ in pairs], [b for _, b in pairs])
    assert shuffled == pytest.approx(value, abs=1e-12)


def test_a_shift_of_every_repeat_is_as_significant_as_the_repeats_allow() -> None:
    for count, smallest in ((5, 2 / 2**5), (6, 2 / 2**6), (10, 2 / 2**10)):
        values = list(np.linspace(0.6, 0.8, count))
        better = [value + 0.01 for value in values]
        assert paired_test(better, values) == pytest.approx(smallest)


def test_pairing_sees_a_difference_that_splits_would_drown() -> None:
    rng = np.random.default_rng(2)
    splits = rng.normal(0.7, 0.1, size=10)
    first = splits + 0.01 + rng.normal(0, 0.002, size=10)
    second = splits + rng.normal(0, 0.002, size=10)
    assert paired_test(list(first), list(second)) < 0.01
    assert paired_test(list(first), list(rng.permutation(second))) > 0.1


def test_equal_methods_are_called_different_as_rarely_as_the_level_says() -> None:
    rng = np.random.default_rng(3)
    small = [
        paired_test(list(rng.normal(size=8)), list(rng.normal(size=8))) < 0.05 for _ in range(400)
    ]
    assert sum(small) / 400 < 0.09


def test_many_repeats_are_sampled_and_never_give_zero() -> None:
    values = list(np.linspace(0.6, 0.8, 20))
    better = [value + 0.01 for value in values]
    assert 0 < paired_test(better, values) < 1e-3
    assert paired_test(better, values) == paired_test(better, values)


def test_repeats_that_do_not_pair_are_refused() -> None:
    with pytest.raises(InputError, match=r"same number of repeats\. Got 1 and 2"):
        paired_test([0.5], [0.5, 0.6])
    with pytest.raises(InputError, match="Got 0 and 0"):
        paired_test([], [])
