"""The noisy mean degree: what one record may move, what noise it has, and what it reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gapgnn.privacy import Release, observed_by
from gapgnn.privacy.mechanisms import noisy_mean_degree
from gapgnn.privacy.mechanisms.mean_degree import MOST
from gapgnn.privacy.mechanisms.noise import GRID, MAX_SCALE, MAX_VALUE, MIN_SCALE
from gapgnn.rng import NoiseKey

DEGREES = st.one_of(st.integers(0, 40), st.sampled_from([1022, 1023, 1024, 10**6, 2**40]))


class Seeing:
    """Keeps the last release, and answers with what it is given."""

    def __init__(self, answer: float | None = None) -> None:
        self.answer = answer

    def release(self, release: Release, output: Any) -> Any:
        self.seen, self.output = release, output
        return output if self.answer is None else torch.tensor([self.answer], dtype=torch.float64)


def released(lengths: list[int], *, people: int = 50, epsilon: float = 0.5, seed: int = 0, **more):
    """Return the mean degree that is released, and what an observer saw."""
    watching = Seeing(**more)
    with observed_by(watching):  # type: ignore[arg-type]
        length = noisy_mean_degree(
            np.array(lengths), num_people=people, epsilon=epsilon, key=NoiseKey.insecure(seed)
        )
    return length, watching


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(DEGREES, min_size=1, max_size=30),
    other=DEGREES,
    place=st.integers(0, 29),
    setting=st.sampled_from([(0.5, 50), (1e-6, 50), (1.4e-7, 10**9)]),
)
def test_one_record_moves_the_sum_by_at_most_what_is_accounted(lengths, other, place, setting):
    place %= len(lengths)
    epsilon, people = setting
    there = released(lengths, epsilon=epsilon, people=people)[1].seen
    for changed in (
        [*lengths[:place], *lengths[place + 1 :]],
        [*lengths[:place], other, *lengths[place + 1 :]],
    ):
        seen = released(changed, epsilon=epsilon, people=people)[1].seen
        assert (seen.scale, seen.sensitivity) == (there.scale, there.sensitivity)
        assert abs(float(seen.value[0] - there.value[0])) <= there.sensitivity
    # The noise is that of the budget, and everything lies on the grid.
    assert there.scale / there.sensitivity == pytest.approx(1 / epsilon, rel=1e-12)
    assert MIN_SCALE <= there.scale <= MAX_SCALE
    assert float(there.value[0]) % GRID == 0 <= float(there.value[0]) <= MAX_VALUE


def test_the_longest_list_moves_it_by_all_that_is_accounted_and_not_more():
    nobody = released([5, 5])[1].seen
    for hub in (1023, 2**20, 2**50):
        with_hub = released([5, 5, hub])[1].seen
        assert float(with_hub.value[0] - nobody.value[0]) == with_hub.sensitivity == MOST


def drawn_noise(epsilon: float, runs: int = 1200) -> np.ndarray:
    noise = []
    for seed in range(runs):
        _, watching = released([7, 30, 2], epsilon=epsilon, seed=seed)
        noise.append(float(watching.output[0] - watching.seen.value[0]))
    return np.array(noise)


def test_the_noise_is_laplace_of_the_sensitivity_over_epsilon():
    noise = drawn_noise(0.5)
    scale = MOST / 0.5
    assert stats.kstest(noise, "laplace", args=(0, scale)).pvalue > 1e-3
    # With a tenth of it, or a third more, this test would see it.
    for wrong in (scale / 10, scale * 1.5, scale / 1.5):
        assert stats.kstest(noise, "laplace", args=(0, wrong)).pvalue < 1e-6


def test_how_many_people_there_are_is_read_from_the_public_number_alone():
    """Of two inputs with the same released sum the answers are the same, however many they are."""
    answers = {released([9] * count, people=50, answer=150.0)[0] for count in (1, 40, 50, 51, 900)}
    assert answers == {2.0 ** (150.0 / 50) - 1}


@pytest.mark.parametrize("people", [3000, 3_000_000_000])
def test_the_mean_is_the_geometric_one_of_the_lists(people):
    found = released([31] * 3000, people=people, epsilon=1.0, answer=None)[0]
    wanted = 31 if people == 3000 else 0
    assert found == pytest.approx(wanted, abs=1.0)


@pytest.mark.parametrize(
    ("epsilon", "people"), [(1e-8, 100), (9e-6, 100), (1e-6, 10**8), (1e3, 10**10), (1e-12, 10**13)]
)
def test_tiny_budgets_and_many_people_are_counted_in_larger_units(epsilon, people):
    found, watching = released([3, 100, 5], epsilon=epsilon, people=people)
    assert 0 <= found <= 2**MOST - 1
    unit = MOST / watching.seen.sensitivity
    assert unit >= 1
    assert math.log2(unit) % 1 == 0
    assert float(watching.output[0]) % GRID == 0


def test_a_sum_that_the_grid_cannot_hold_is_cut_and_not_refused():
    """Far more people than the public number says: whether a run ends must not tell."""
    seen = released([1023] * 100_000, people=1, epsilon=1.0)[1].seen
    assert float(seen.value[0]) == 1_000_000.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gapgnn.privacy.mechanisms.mean_degree.MAX_VALUE", 1000.0)
        seen = released([1023] * 1000, people=99, epsilon=1.0)[1].seen
        assert float(seen.value[0]) == 1000.0
