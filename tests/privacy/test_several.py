"""Several records that leave together: never cheaper than the mechanisms make it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from gapgnn.accounting import (
    EpsilonDelta,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    PoissonGaussian,
    epsilon,
    group_epsilon,
)
from gapgnn.errors import InputError

DELTA = 1e-5
TRAINING = PoissonGaussian(1.2, sampling_rate=0.05, steps=20)


def hockey_stick(noise: float, rate: float, people: int, at: float) -> float:
    """Return delta of one Poisson step from its two densities, by integration in two directions."""
    shifts = np.arange(people + 1)
    shares = binom.pmf(shifts, people, rate)

    def there(x: float) -> float:
        return float(np.dot(shares, norm.pdf(x, loc=shifts, scale=noise)))

    def gone(x: float) -> float:
        return float(norm.pdf(x, scale=noise))

    def excess(first, second):
        return quad(
            lambda x: max(first(x) - math.exp(at) * second(x), 0.0),
            -12 * noise, people + 12 * noise, limit=500, epsabs=1e-14,
        )[0]  # fmt: skip

    return max(excess(there, gone), excess(gone, there))


@pytest.mark.parametrize(("noise", "rate", "people"), [(1.0, 0.1, 2), (2.0, 0.3, 4), (0.8, 1.0, 3)])
def test_one_step_costs_what_its_densities_say(noise: float, rate: float, people: int) -> None:
    events = [PoissonGaussian(noise, sampling_rate=rate, steps=1)]
    found = group_epsilon(events, DELTA, people=people)
    assert hockey_stick(noise, rate, people, found) <= DELTA
    # And no more than that: a little less would not hold.
    assert hockey_stick(noise, rate, people, 0.99 * found) > DELTA


@pytest.mark.parametrize("people", [2, 3, 10])
def test_whole_answers_move_by_as_many_sensitivities(people: int) -> None:
    found = group_epsilon([Gaussian(6.0, count=2)], DELTA, people=people)
    assert found == pytest.approx(epsilon([Gaussian(6.0 / people, count=2)], DELTA), rel=1e-9)
    found = group_epsilon([Gaussian(6.0), Laplace(9.0)], DELTA, people=people)
    expected = epsilon([Gaussian(6.0 / people), Laplace(9.0 / people)], DELTA)
    assert found == pytest.approx(expected, rel=1e-9)


COMPOSITIONS: dict[str, list[Event]] = {
    "hops": [Gaussian(5.0, count=2)],
    "steps": [TRAINING],
    "both": [Gaussian(5.0), TRAINING],
    "groups": [
        Gaussian(5.0, group="training"),
        PoissonGaussian(1.2, sampling_rate=0.05, steps=20, group="training"),
        Gaussian(2.0, group="others"),
    ],
    "answers": [LabelResponse.of(0.5, 3)],
    "anything": [EpsilonDelta(0.3, 1e-9), Gaussian(5.0)],
}


@pytest.mark.parametrize("people", [2, 3])
def test_everybody_answers_once_in_every_response_to_labels(people: int) -> None:
    found = group_epsilon([LabelResponse.of(0.5, 3)], DELTA, people=people)
    # Everybody's answer may be the likeliest one: no smaller epsilon holds beyond that chance.
    assert found == pytest.approx(0.5 * people, rel=1e-3)


def test_several_people_are_in_the_batches_of_all_steps() -> None:
    """At rate 1 everybody is in every batch, so that nine steps are nine whole answers."""
    steps = [PoissonGaussian(8.0, sampling_rate=1.0, steps=9)]
    found = group_epsilon(steps, DELTA, people=2)
    assert found == pytest.approx(epsilon([Gaussian(4.0, count=9)], DELTA), rel=1e-9)


@pytest.mark.parametrize("noise", [(9.0, 2.0), (2.0, 9.0)])
def test_of_an_adaptive_choice_the_dearest_option_counts_for_several_people_too(noise) -> None:
    first, second = noise
    events = [Gaussian(first, option=1), Gaussian(second, option=2)]
    found = group_epsilon(events, DELTA, people=2)
    assert found == pytest.approx(epsilon([Gaussian(1.0)], DELTA), rel=1e-9)


@pytest.mark.parametrize("events", COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_more_people_cost_more_and_one_costs_what_is_stated(events: list[Event]) -> None:
    found = [group_epsilon(events, DELTA, people=people) for people in (1, 2, 3)]
    assert found[0] == epsilon(events, DELTA)
    assert found == sorted(found)
    # Basic composition of groups, at the delta that is left for one record.
    for people, price in zip((2, 3), found[1:3], strict=True):
        one = epsilon(events, DELTA / (people * math.exp((people - 1) * found[0] * 3)))
        assert price <= people * one * 1.02


def test_people_of_two_groups_are_priced_in_every_split() -> None:
    """Two who train, two who do not, or one of each: the dearest counts."""
    events = [Gaussian(1.0, group="training"), Gaussian(1.2, group="others"), Gaussian(9.0)]
    found = group_epsilon(events, DELTA, people=2)
    both = [Gaussian(1.0 / 2), Gaussian(9.0 / 2)]
    assert found == pytest.approx(epsilon(both, DELTA), rel=1e-9)
    mixed = [Gaussian(1.0), Gaussian(1.2), Gaussian(9.0 / 2)]
    assert found >= epsilon(mixed, DELTA)


def test_where_no_bound_by_the_mechanism_is_known_the_curve_decides() -> None:
    whole = [PoissonGaussian(1.0, sampling_rate=0.01, steps=10)]
    assert group_epsilon(whole, DELTA, people=2) < group_epsilon(
        whole, DELTA, people=2, relation="replace"
    )
    one = epsilon([EpsilonDelta(0.5, 0.0)], DELTA)
    assert group_epsilon([EpsilonDelta(0.5, 0.0)], DELTA, people=3) <= 3 * one * 1.01


@pytest.mark.parametrize(("people", "delta"), [(0, DELTA), (-1, DELTA), (2, 0.0), (2, 1.0)])
def test_what_is_no_group_is_refused(people: int, delta: float) -> None:
    with pytest.raises(InputError):
        group_epsilon([Gaussian(1.0)], delta, people=people)
