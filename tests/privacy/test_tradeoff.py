"""What an attacker can reach at most, against closed forms, integration and simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from gapgnn.errors import InputError
from gapgnn.privacy import AddRemove, Guarantee, parse_relation
from gapgnn.privacy.accounting import (
    AttackBounds,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    account,
    attack_bounds,
    privacy_profile,
)

ALPHAS = (0.01, 0.001)


def reached(bounds: AttackBounds) -> tuple[float, float]:
    return bounds.tpr_at_fpr_1_percent, bounds.tpr_at_fpr_0_1_percent


@pytest.mark.parametrize("multiplier", [0.05, 0.4, 1.0, 6.617, 300.0])
@pytest.mark.parametrize("count", [1, 4])
def test_gaussian_noise_has_the_closed_forms_of_gaussian_dp(multiplier: float, count: int) -> None:
    mu = math.sqrt(count) / multiplier
    bounds = attack_bounds([Gaussian(multiplier, count=count)], relation="undirected")
    assert bounds.mu == pytest.approx(mu, rel=1e-12)
    assert bounds.guess == pytest.approx(norm.cdf(mu / 2), rel=1e-10)
    for alpha, found in zip(ALPHAS, reached(bounds), strict=True):
        assert found == pytest.approx(norm.cdf(norm.ppf(alpha) + mu), rel=1e-9)


def test_the_curve_of_a_numerical_distribution_is_above_the_exact_one_and_close() -> None:
    # Sampled so rarely that nothing but the Gaussian is left, but not accounted as one.
    rare = PoissonGaussian(1e3, sampling_rate=1e-9, steps=1)
    for mu in (0.2, 1.0, 3.0):
        bounds = attack_bounds([rare, Gaussian(1 / mu)], relation="add-remove")
        exact = [norm.cdf(norm.ppf(alpha) + mu) for alpha in ALPHAS]
        assert bounds.mu is None
        assert norm.cdf(mu / 2) <= bounds.guess <= norm.cdf(mu / 2) + 1e-4
        for found, wanted in zip(reached(bounds), exact, strict=True):
            assert wanted <= found <= wanted * 1.001 + 1e-6


def sampled_curve(rate: float, shift: float, alpha: float) -> float:
    """Integrate the best test of one step, in the direction that gives more true positives."""

    def mixture(t: float) -> float:
        return (1 - rate) * norm.sf(t) + rate * norm.sf(t - shift)

    there = mixture(norm.isf(alpha))
    # The other direction: yes is said for small outcomes, and the mixture makes false positives.
    t = brentq(lambda x: 1 - mixture(x) - alpha, -20, 20, xtol=1e-13)
    return max(there, float(norm.cdf(t)))


@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 0.5), (0.5, 1.0), (0.02, 0.3)])
def test_one_subsampled_step_is_bounded_by_its_integrated_curve(
    rate: float, multiplier: float
) -> None:
    shift = 1 / multiplier
    bounds = attack_bounds([PoissonGaussian(multiplier, rate, 1)], relation="add-remove")
    guess = 0.5 + rate * (norm.cdf(shift / 2) - 0.5)
    assert guess - 1e-12 <= bounds.guess <= guess + 1e-4
    for alpha, found in zip(ALPHAS, reached(bounds), strict=True):
        exact = sampled_curve(rate, shift, alpha)
        assert exact * (1 - 1e-9) <= found <= exact * 1.01 + 1e-5


def log_ratios(events: list[Event], relation: str, people: int, seed: int) -> tuple[Any, Any]:
    """Draw outcomes of both neighbours; return the log likelihood ratios of each."""
    rng = np.random.default_rng(seed)
    totals = [np.zeros(people), np.zeros(people)]
    for event in events:
        pair: Any = event.pair(parse_relation(relation))
        sides = ((pair.upper_means, pair.upper_weights), (pair.lower_means, pair.lower_weights))
        for _ in range(event.times):
            for total, (means, weights) in zip(totals, sides, strict=True):
                x = rng.choice(means, size=people, p=weights) + rng.normal(size=people)
                above, below = pair.log_densities(x)
                total += above - below
    return totals[0], totals[1]


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_best_attacker_of_a_training_stays_below_the_bounds_and_comes_close(
    relation: str,
) -> None:
    events: list[Event] = [PoissonGaussian(1.2, 0.1, 40), Gaussian(1.5, count=2)]
    people = 40_000
    there, away = log_ratios(events, relation, people, seed=7)
    bounds = attack_bounds(events, relation=relation)
    noise = 4 / math.sqrt(people)
    for yes, no in ((there, away), (-away, -there)):
        guess = (np.mean(yes > 0) + np.mean(no <= 0)) / 2
        assert guess <= bounds.guess + noise
        for alpha, found in zip(ALPHAS, reached(bounds), strict=True):
            assert np.mean(yes > np.quantile(no, 1 - alpha)) <= found + 3 * noise
    assert bounds.guess <= np.mean((there > 0).astype(float) + (away <= 0)) / 2 + noise
    # Of the two directions one comes close.
    close = max(
        np.mean(there > np.quantile(away, 0.99)), np.mean(-away > np.quantile(-there, 0.99))
    )
    assert bounds.tpr_at_fpr_1_percent <= close + 0.05


@pytest.mark.parametrize(
    "event", [Laplace(0.5), RandomisedResponse.symmetric(2.0), LabelResponse.of(2.0, 6)]
)
def test_a_pure_release_allows_at_most_what_its_epsilon_does(event: Event) -> None:
    bounds = attack_bounds([event], relation="replace")
    assert bounds.guess <= math.exp(2) / (1 + math.exp(2)) + 1e-9
    for alpha, found in zip(ALPHAS, reached(bounds), strict=True):
        # An answer that is e^2 times as likely reaches all of it; the grid adds a little.
        assert found <= math.exp(2) * alpha * 1.002
    if isinstance(event, Laplace):
        # Of Laplace noise the total variation is 1 - e^(-epsilon/2).
        exact = 1 - math.exp(-1) / 2
        assert exact - 1e-12 <= bounds.guess <= exact + 1e-4


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(
        norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * norm.sf(epsilon / mu + mu / 2)
    )


def sampled_delta(epsilon: float, rate: float, shift: float) -> float:
    """Delta of (1-q) N(0) + q N(shift) against N(0), of one step, at any epsilon."""
    inside = (math.exp(epsilon) - 1 + rate) / rate
    if inside <= 0:
        return 1 - math.exp(epsilon)
    t = math.log(inside) / shift + shift / 2
    above = (1 - rate) * norm.sf(t) + rate * norm.sf(t - shift)
    return float(above - math.exp(epsilon) * norm.sf(t))


def test_whoever_chooses_the_worse_option_by_the_first_release_stays_below_the_bound() -> None:
    """No option's own composition bounds an adaptive choice: the curves of the two cross."""
    first, rate, shift, mu = 0.8, 0.12, 4.0, 0.45
    events = [
        RandomisedResponse.symmetric(first),
        Gaussian(1 / mu, option=1),
        PoissonGaussian(1 / shift, rate, 1, option=2),
    ]
    kept = 1 / (1 + math.exp(-first))

    def adversarial(epsilon: float) -> float:
        """After each answer the option that is worse at what is left of epsilon."""
        return sum(
            chance
            * max(gaussian_delta(epsilon - loss, mu), sampled_delta(epsilon - loss, rate, shift))
            for chance, loss in ((kept, first), (1 - kept, -first))
        )

    profile, *alone = (
        privacy_profile([(tuple(case), 1)], relation="add-remove")
        for case in (events, events[:2], [events[0], events[2]])
    )
    is_worse = []
    for epsilon in (0.0, 0.3, 0.6, 0.9, 1.2):
        assert profile.delta(epsilon) >= adversarial(epsilon) - 1e-12
        is_worse.append(adversarial(epsilon) > max(one.delta(epsilon) for one in alone) + 1e-3)
    assert any(is_worse), "the two options must differ for this test to mean anything"
    assert profile.guess() >= (1 + adversarial(0.0)) / 2 - 1e-12
    assert profile.guess() <= (1 + adversarial(0.0)) / 2 + 0.02


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_worst_group_and_the_worst_option_count(relation: str) -> None:
    steps = {"sampling_rate": 0.1, "steps": 50, "group": "training"}
    events: list[Event] = [
        Laplace(20.0),
        PoissonGaussian(3.0, **steps, option=1),
        PoissonGaussian(4.0, **steps, option=2),
        Gaussian(1.5, option=2, group="training"),
        Gaussian(0.8, option=2, group="others"),
    ]
    bounds = attack_bounds(events, relation=relation)
    alone = (
        [Laplace(20.0), PoissonGaussian(3.0, 0.1, 50)],
        [Laplace(20.0), PoissonGaussian(4.0, 0.1, 50), Gaussian(1.5)],
        [Laplace(20.0), Gaussian(0.8)],
    )
    each = [attack_bounds(case, relation=relation) for case in alone]
    assert bounds.guess >= max(one.guess for one in each) - 1e-9
    assert bounds.guess <= max(one.guess for one in each) + 0.03
    assert reached(bounds)[0] >= max(reached(one)[0] for one in each) - 1e-9


def test_alternatives_of_gaussian_noise_stay_exact() -> None:
    events = [Gaussian(2.0), Gaussian(1.0, option=1), Gaussian(0.5, option=2)]
    assert attack_bounds(events, relation="undirected").mu == pytest.approx(math.sqrt(4.25))


def test_releases_together_are_composed_with_their_counts() -> None:
    steps = PoissonGaussian(2.0, 0.1, 30)
    once = ((steps, Gaussian(3.0)), 1)
    together = privacy_profile([(once[0], 2), ((Laplace(4.0),), 1)], relation="add-remove")
    listed = [steps, steps, Gaussian(3.0, count=2), Laplace(4.0)]
    for delta in (1e-3, 1e-6):
        price = account(listed, delta, relation="add-remove").epsilon
        assert together.epsilon(delta) == pytest.approx(price, rel=3e-3)
    thrice = privacy_profile([((Gaussian(3.0),), 3)], relation="undirected")
    assert thrice.mu == pytest.approx(math.sqrt(3) / 3)
    assert (
        thrice.epsilon(1e-6)
        == account([Gaussian(3.0, count=3)], 1e-6, relation="undirected").epsilon
    )


def test_choices_of_several_releases_are_not_mistaken_for_one() -> None:
    """Option 1 of one training and option 2 of the next may both happen."""
    choice = (Gaussian(1.0, option=1), PoissonGaussian(1.0, 0.2, 20, option=2))
    both = privacy_profile([(choice, 1), (choice[::-1], 1)], relation="add-remove")
    mixed = attack_bounds([Gaussian(1.0), PoissonGaussian(1.0, 0.2, 20)], relation="add-remove")
    assert both.guess() >= mixed.guess - 1e-9


def test_the_guess_at_node_level_is_far_below_what_epsilon_alone_allows() -> None:
    """Epsilon 8 allows 99.97 %; a training that costs it allows less than 80 %."""
    events = [PoissonGaussian(1.0, 0.0129, 1546), Gaussian(1.0, count=2)]
    epsilon = account(events, 1e-5, relation="add-remove").epsilon
    assert 7.4 < epsilon < 7.5
    bounds = attack_bounds(events, relation="add-remove").within(epsilon, 1e-5)
    assert 0.75 < bounds.guess < 0.80


@pytest.mark.parametrize(
    "events", [[Laplace(1e-5)], [Gaussian(1e-6), Laplace(1.0)], [Gaussian(1e-300)]]
)
def test_noise_that_hides_nothing_bounds_nothing(events: list[Event]) -> None:
    bounds = attack_bounds(events, relation="undirected")
    assert (bounds.guess, *reached(bounds)) == (1.0, 1.0, 1.0)


def test_a_mixture_is_bounded_by_its_chance_of_any_effect() -> None:
    event = MixtureOfGaussians(0.01, (0, 1, 3), (0.9, 0.09, 0.01), steps=1)
    assert attack_bounds([event], relation="add-remove").guess == pytest.approx(0.55, abs=1e-3)


def test_a_guarantee_bounds_the_attacker_where_it_is_tighter() -> None:
    loose = AttackBounds(None, 1.0, 1.0, 1.0).within(math.log(3), 0.0)
    assert loose.guess == pytest.approx(0.75)
    assert loose.tpr_at_fpr_1_percent == pytest.approx(0.03)
    tight = AttackBounds(0.1, 0.52, 0.013, 0.0014)
    assert tight.within(8.0, 1e-5) == tight


@pytest.mark.parametrize(
    "values", [(None, 0.4, 0.5, 0.5), (-1.0, 0.6, 0.5, 0.5), (None, 0.6, 0, 1)]
)
def test_bounds_that_bound_nothing_real_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        AttackBounds(*values)


def test_an_attacker_reaches_no_more_than_the_stated_epsilon_and_delta_allow() -> None:
    """Where a price is proved that the curve of the events does not show."""
    events = (Gaussian(0.1, label="hop"),)
    stated = Guarantee(AddRemove(), 1.0, 1e-6, False, 0, 0.1, "proved", events)
    found = stated.attack_bounds()
    assert found is not None
    assert attack_bounds(events, relation="add-remove").guess > 0.99
    assert found.guess == pytest.approx(1 - (1 - 1e-6) / (1 + math.e))
    assert reached(found) == pytest.approx([math.e * alpha + 1e-6 for alpha in ALPHAS])
