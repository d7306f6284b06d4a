"""The public accounting API agrees with dp_accounting and Opacus, and converts in both directions.

References, chosen so that only the arithmetic can differ:

- Gaussian noise alone: the analytic curve of dp_accounting;
- everything its ``PLDAccountant`` prices: that accountant on the same grid of losses, with all
  Gaussian noise composed into one event, as :func:`gapgnn.accounting.compose` does;
- randomised response, which it rounds up to the next point of the grid: its ``RdpAccountant`` at
  the same orders.
"""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant, common
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.rdp import RdpAccountant

from gapgnn import InputError, PrivacyError, UnavailableError
from gapgnn.accounting import (
    DiscretePair,
    EpsilonDelta,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    attack_bounds,
    calibrate,
    compose,
    delta,
    epsilon,
    from_dp_accounting,
    from_opacus,
    mu,
    to_dp_accounting,
    to_opacus,
    trade_off,
)
from gapgnn.privacy.accounting import merge, renyi_curve
from gapgnn.privacy.accounting.pld import FINE, grid_interval

DIGITS = 1e-6
ORDERS = [1.5, 2.0, 4.5, 8.0, 16.0, 40.0]
# Neighbours differ in one record that is there or is not: both price Gaussian noise alike, and only
# the second prices everything.
WHOLE = NeighboringRelation.REPLACE_SPECIAL


def gaussian(draw):
    return Gaussian(draw.uniform(0.8, 8), count=draw.randint(1, 6))


def poisson(draw):
    return PoissonGaussian(draw.uniform(0.7, 4), draw.uniform(0.002, 0.1), draw.randint(1, 400))


def laplace(draw):
    return Laplace(draw.uniform(1, 10), count=draw.randint(1, 3))


def mixture(draw):
    shifts = sorted(draw.sample([0.0, 0.5, 1.0, 1.5, 2.0, 3.0], 3))
    weights = np.array([draw.uniform(0.7, 0.9), draw.uniform(0.01, 0.1), draw.uniform(0.01, 0.1)])
    parts = tuple((weights / weights.sum()).tolist())
    return MixtureOfGaussians(draw.uniform(2, 6), tuple(shifts), parts, draw.randint(1, 100))


def response(draw):
    if draw.random() < 0.5:
        return RandomisedResponse.symmetric(draw.uniform(0.05, 2), count=draw.randint(1, 3))
    return LabelResponse.of(draw.uniform(0.05, 2), draw.randint(3, 9))


CASES = {
    "gaussian": ([gaussian], ["add-remove", "replace"]),
    "poisson": ([poisson, gaussian], ["add-remove", "replace"]),
    "pld": ([poisson, gaussian, laplace, mixture], ["add-remove"]),
    "response": ([response, gaussian, laplace], ["replace"]),
}


def random_list(number):
    """Return the sort, the events and the relation of a list: every sort has a fourth of them."""
    draw = random.Random(number)
    case = list(CASES)[number % len(CASES)]
    makers, relations = CASES[case]
    events = [makers[0](draw), *(draw.choice(makers)(draw) for _ in range(draw.randint(0, 3)))]
    return case, events, draw.choice(relations)


def assert_agrees_with_dp_accounting(case, events, converted, relation, at):
    if case == "response":
        library = RdpAccountant(orders=ORDERS, neighboring_relation=NeighboringRelation.REPLACE_ONE)
        library.compose(converted)
        # Its RDP counts Gaussian noise in the distance of two records under either relation.
        ours = [
            replace(e, noise_multiplier=2 * e.noise_multiplier) if is_noisy(e) else e
            for e in events
        ]
        curve = renyi_curve(ours, relation=relation, orders=np.array(ORDERS))
        assert curve == pytest.approx(library.rdp, rel=DIGITS)
        return
    if case == "gaussian":
        shift = mu(events, relation=relation)
        spent = losses.from_gaussian_mechanism(1 / shift, value_discretization_interval=1e-3)
        assert epsilon(events, at, relation=relation) <= spent.get_epsilon_for_delta(at)
        assert epsilon(events, at, relation=relation) == pytest.approx(
            exact_epsilon(shift, at), rel=DIGITS
        )
        return
    interval = grid_interval(merge(events, relation=relation), resolution=FINE)
    neighbours = NeighboringRelation.REPLACE_ONE if relation == "replace" else WHOLE
    library = PLDAccountant(neighbours, value_discretization_interval=interval)
    library.compose(converted)
    found = epsilon(events, at, relation=relation)
    assert found == pytest.approx(library.get_epsilon(at), rel=DIGITS)
    if found > 0.1:
        again = delta(events, found, relation=relation)
        assert again == pytest.approx(library.get_delta(found), rel=DIGITS)


def is_noisy(event):
    return isinstance(event, Gaussian | Laplace)


def exact_epsilon(shift, at):
    from dp_accounting import get_epsilon_gaussian

    return get_epsilon_gaussian(1 / shift, at)


def check_list(number):
    case, events, relation = random_list(number)
    at = 10 ** random.Random(number + 1000).uniform(-8, -3)
    converted = to_dp_accounting(compose(events), relation=relation)
    assert_agrees_with_dp_accounting(case, events, converted, relation, at)
    back = from_dp_accounting(to_dp_accounting(events, relation=relation), relation=relation)
    assert_same_events(compose(back), compose(events))
    assert_agrees_with_dp_accounting(case, back, converted, relation, at)


def assert_same_events(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert type(one) is type(other)
        for name, value in one.to_dict().items():
            assert other.to_dict()[name] == (
                pytest.approx(value, rel=1e-12) if isinstance(value, (float, list)) else value
            )


@pytest.mark.parametrize("number", range(8))
def test_random_lists_cost_what_dp_accounting_says_in_both_directions(number):
    check_list(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8, 200))
def test_two_hundred_random_lists_cost_what_dp_accounting_says(number):
    check_list(number)


@pytest.mark.parametrize("number", range(4))
def test_an_epsilon_and_a_delta_cost_what_dp_accounting_says(number):
    draw = random.Random(number)
    # Losses on the grid: dp_accounting rounds others up.
    known = EpsilonDelta(draw.randint(8, 96) / 64, 10 ** draw.uniform(-9, -6), draw.randint(1, 3))
    events, at = [known, gaussian(draw)], 1e-5
    interval = grid_interval(merge(events, relation="add-remove"), resolution=FINE)
    parameters = common.DifferentialPrivacyParameters(known.epsilon, known.delta)
    total = losses.from_privacy_parameters(parameters, interval).self_compose(known.count)
    noisy = losses.from_gaussian_mechanism(
        1 / mu(events[1:]), value_discretization_interval=interval
    )
    found = epsilon(events, at)
    assert found == pytest.approx(total.compose(noisy).get_epsilon_for_delta(at), rel=DIGITS)
    assert delta(events, found) == pytest.approx(at, rel=1e-3)


def test_a_release_known_by_its_delta_has_no_epsilon_at_a_smaller_one():
    known = EpsilonDelta(1.0, 1e-6)
    assert epsilon([known], 1e-6 * 1.001) == pytest.approx(1.0, rel=1e-3)
    assert epsilon([known], 1e-7) == epsilon([known], 0) == math.inf
    assert epsilon([EpsilonDelta(1.0), EpsilonDelta(0.5)], 0) == 1.5
    assert DiscretePair.of_approximate(1.0, 0.5).reversed.pure_epsilon == math.inf
    assert attack_bounds([known]).guess == pytest.approx(math.e / (1 + math.e), rel=1e-3)


def test_an_epsilon_and_a_delta_convert_where_dp_accounting_has_them(monkeypatch):
    @dataclass(frozen=True)
    class EpsilonDeltaDpEvent:
        epsilon: float
        delta: float

    monkeypatch.delattr(dp_event, "EpsilonDeltaDpEvent", raising=False)
    with pytest.raises(UnavailableError, match="EpsilonDeltaDpEvent"):
        to_dp_accounting([EpsilonDelta(1.0, 1e-6)])
    monkeypatch.setattr(dp_event, "EpsilonDeltaDpEvent", EpsilonDeltaDpEvent, raising=False)
    events = [EpsilonDelta(1.0, 1e-6, count=3), Gaussian(2.0)]
    assert from_dp_accounting(to_dp_accounting(events)) == events


def test_a_response_is_counted_as_often_as_it_happened():
    # An accountant that composes a response with itself may count it once.
    converted = to_dp_accounting([RandomisedResponse.symmetric(0.5, count=4)])
    library = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    library.compose(converted)
    assert library.get_epsilon(1e-12) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize(
    "event",
    [
        Gaussian(2.0, count=3),
        Laplace(3.0, count=2),
        PoissonGaussian(1.0, sampling_rate=0.1, steps=5),
        MixtureOfGaussians(4.0, (0.0, 1.0, 3.0), (0.9, 0.09, 0.01), steps=7),
        RandomisedResponse(0.2, 0.2, count=4),
        LabelResponse.of(0.5, 5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_as_often_and_as_noisy_as_it_went(event, relation):
    back = from_dp_accounting(to_dp_accounting([event], relation=relation), relation=relation)
    assert_same_events(compose(back), compose(event))


def test_an_event_composed_with_itself_in_a_composition_with_itself_is_counted_for_both():
    step = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))
    epoch = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(step, 10), step])
    (first, second) = from_dp_accounting(dp_event.SelfComposedDpEvent(epoch, 3))
    assert (first.steps, second.steps) == (30, 3)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (dp_event.NonPrivateDpEvent(), "no finite price"),
        (dp_event.ZCDpEvent(0.5), "ZCDpEvent has no counterpart"),
        (dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)), "LaplaceDpEvent"),
        (dp_event.GaussianDpEvent(0.0), "noise_multiplier"),
    ],
)
def test_an_event_without_a_counterpart_is_refused(event, reason):
    with pytest.raises((InputError, PrivacyError), match=reason):
        from_dp_accounting(dp_event.ComposedDpEvent([dp_event.NoOpDpEvent(), event]))


def test_an_event_that_would_lose_what_it_means_is_not_converted():
    for event in (Gaussian(1.0, group="training"), RandomisedResponse(0.1, 0.2)):
        with pytest.raises(InputError, match=r"counterpart|symmetric"):
            to_dp_accounting([event])
    for event in (Laplace(1.0), Gaussian(1.0, option=1)):
        with pytest.raises(InputError, match=r"Opacus|groups or options"):
            to_opacus([event])


@pytest.mark.parametrize("name", ["RDPAccountant", "PRVAccountant"])
def test_the_history_of_an_opacus_accountant_costs_what_it_says(name):
    accountants = pytest.importorskip("opacus.accountants")
    accountant = getattr(accountants, name)()
    steps_taken = [(1.0, 0.01, 30), (1.2, 0.02, 20)]
    if name == "RDPAccountant":  # the other one divides by zero at rate 1
        steps_taken.append((4.0, 1.0, 2))
    for noise, rate, steps in steps_taken:
        for _ in range(steps):
            accountant.step(noise_multiplier=noise, sample_rate=rate)
    events = from_opacus(accountant)
    assert from_opacus(accountant.state_dict()) == from_opacus(accountant.history) == events
    assert to_opacus(events) == accountant.history
    if name == "RDPAccountant":
        from opacus.accountants.analysis.rdp import compute_rdp

        curve = sum(
            np.array(compute_rdp(q=q, noise_multiplier=m, steps=n, orders=ORDERS))
            for m, q, n in accountant.history
        )
        ours = renyi_curve(events, relation="add-remove", orders=np.array(ORDERS))
        assert ours == pytest.approx(curve, rel=DIGITS)
    else:
        # Its own error is given: 0.01 of epsilon.
        assert epsilon(events, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), abs=0.011)


def test_what_is_no_history_is_refused():
    for wrong in ("rdp", 3, [(1.0, 0.1)]):
        with pytest.raises(InputError, match="history"):
            from_opacus(wrong)


@pytest.mark.parametrize("number", range(6))
def test_a_composition_costs_what_its_parts_cost(number):
    _, events, relation = random_list(number)
    whole = compose(events, events[0])
    assert len(whole) <= len(events)
    both = [*events, events[0]]
    assert epsilon(whole, 1e-5, relation=relation) == pytest.approx(
        epsilon(both, 1e-5, relation=relation), rel=1e-9
    )


def test_a_composition_keeps_groups_apart_and_counts_events_without_a_count():
    training, others = Gaussian(1.0, group="training"), Gaussian(2.0, group="others")
    assert compose([training, others, training]) == [
        Gaussian(1 / math.sqrt(2), group="training"),
        others,
    ]
    assert compose(OnceEvent(), OnceEvent()) == [OnceEvent(), OnceEvent()]


def test_a_composition_keeps_the_options_of_a_choice_apart():
    chosen = [Gaussian(1.0, option=1), Gaussian(2.0, option=2), Gaussian(2.0, option=2)]
    whole = compose(chosen, Laplace(4.0))
    assert [getattr(event, "option", 0) for event in whole] == [1, 2, 0]
    assert epsilon(whole, 1e-5) == pytest.approx(epsilon([*chosen, Laplace(4.0)], 1e-5), rel=1e-9)


@dataclass(frozen=True)
class OnceEvent(Event):
    label: str = ""

    @property
    def times(self):
        return 1

    def pair(self, relation):
        return DiscretePair.of_pure(1.0)


def test_the_trade_off_of_gaussian_noise_is_the_exact_curve():
    from scipy.stats import norm

    events = [Gaussian(2.0, count=3), Gaussian(2.0)]
    curve = trade_off(events)
    exact = norm.cdf(norm.ppf(1 - curve.false_positives) - mu(events))
    assert curve.false_negatives == pytest.approx(exact, abs=1e-9)
    steps = trade_off([PoissonGaussian(1.0, 0.01, 100)])
    assert (np.diff(steps.false_negatives) <= 0).all()
    assert (steps.false_negatives <= 1 - steps.false_positives + 1e-12).all()


def test_mu_exists_for_gaussian_noise_alone():
    with pytest.raises(InputError, match="PoissonGaussian"):
        mu([Gaussian(1.0), PoissonGaussian(1.0, 0.1, 10)])


def test_calibrated_events_keep_the_budget_beside_a_release_of_known_epsilon():
    known = EpsilonDelta(0.25, 1e-8)
    noisy = calibrate([Gaussian(1.0)], epsilon=1.0, delta=1e-6, fixed=[known])
    assert 0.995 <= epsilon(noisy, 1e-6) <= 1.0
