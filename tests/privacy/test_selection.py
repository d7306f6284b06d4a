"""The price of a private selection: never below what enumerating all outcomes gives."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from gapgnn.accounting import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    PrivateSelection,
    delta,
    epsilon,
)
from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy import AddRemove, Undirected
from gapgnn.privacy.accounting import (
    ORDERS,
    CandidateNumber,
    Event,
    account,
    accountant_named,
    from_dp_accounting,
    gaussian_shift,
    privacy_profile,
    renyi_curve,
    to_dp_accounting,
)
from gapgnn.privacy.accounting.pairs import DiscretePair
from gapgnn.privacy.accounting.selection import candidate_renyi, papernot_steinke
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.rng import NoiseKey

NUMBERS = [
    CandidateNumber.geometric(10.0),
    CandidateNumber.geometric(1.5),
    CandidateNumber("truncated-negative-binomial", 10.0, 0.0),
    CandidateNumber("truncated-negative-binomial", 4.0, 2.5),
    CandidateNumber("poisson", 10.0),
    CandidateNumber("binomial", 10.0, 20.0),
    CandidateNumber("binomial", 8.0, 9.0),
]
# One candidate of epsilon 1 at delta 1e-7: two hops.
ONE = (Gaussian(2**0.5 / gaussian_shift(1.0, 1e-7), count=2),)


@dataclass(frozen=True)
class Finite(Event):
    """A mechanism with finitely many outcomes of these probabilities on two neighbours."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    label: str = ""

    @property
    def times(self):
        return 1

    def pair(self, relation):
        logs = (tuple(math.log(p) for p in side) for side in (self.first, self.second))
        return DiscretePair(*logs)


def selection(candidates, number, **more):
    return PrivateSelection(candidates, number.mean, number.shape, number.distribution, **more)


def generating(number, x):
    """Return E[x^K] in closed form."""
    if number.distribution == "poisson":
        return math.exp(number.mean * (x - 1))
    if number.distribution == "binomial":
        share = number.mean / number.shape
        return (1 - share + share * x) ** number.shape
    gamma, shape = number.gamma, number.shape
    if shape == 0:
        return math.log1p(-(1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)


def selected(probabilities, generate):
    """Return how likely each outcome is the best of K, outcomes in the order of their scores.

    With probability f(0) nothing is selected: the last entry.
    """
    below = np.concatenate([[0.0], np.cumsum(probabilities)])
    values = np.array([generate(min(1.0, x)) for x in below])
    return np.append(np.diff(values), values[0])


def hockey_stick(first, second, at):
    return max(
        math.fsum(np.maximum(0.0, one - math.exp(at) * other))
        for one, other in ((first, second), (second, first))
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_no_selection_from_a_finite_mechanism_tells_more_than_is_charged(number, seed):
    """Two random distributions on 2 to 6 outcomes, scored in any order."""
    random = np.random.default_rng(seed)
    pair = random.uniform(0.02, 1.0, (2, random.integers(2, 7))) ** random.uniform(0.2, 2)
    pair /= pair.sum(axis=1, keepdims=True)
    event = selection(((Finite(*map(tuple, pair.tolist())),),), number)
    profile = privacy_profile([((event,), 1)], relation="undirected")
    for _ in range(6):
        order = random.permutation(pair.shape[1])
        outcomes = [selected(side[order], lambda x: generating(number, x)) for side in pair]
        for at in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
            assert hockey_stick(*outcomes, at) <= profile.delta(at) + 1e-9


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_no_selection_from_gaussian_noise_tells_more_than_is_charged(number):
    """Scores that rise, fall, or are largest or smallest in the middle; 400 outcomes each."""
    from scipy.special import ndtr

    shift = gaussian_shift(1.0, 1e-7)
    edges = np.concatenate([[-np.inf], np.linspace(-8, 8, 399), [np.inf]])
    sides = [np.diff(ndtr(edges - mean)) for mean in (0.0, shift)]
    price = account([selection((ONE,), number)], 1e-7, relation="undirected").epsilon
    middle = np.abs(np.arange(400) - 200)
    reached = []
    for order in (np.arange(400), -np.arange(400), middle, -middle):
        place = np.argsort(order, kind="stable")
        outcomes = [selected(side[place], lambda x: generating(number, x)) for side in sides]
        assert hockey_stick(*outcomes, price) <= 1e-7
        reached.append(hockey_stick(*outcomes, 1.0))
    # At the price of one candidate some score breaks the promise.
    assert price > 1.0
    assert max(reached) > 1e-7


def test_the_charge_of_one_candidate_would_be_too_small():
    number, first, second = CandidateNumber.geometric(10.0), [0.2, 0.8], [0.1, 0.9]
    one = Finite(tuple(first), tuple(second))
    outcomes = [selected(np.array(s), lambda x: generating(number, x)) for s in (first, second)]
    alone = privacy_profile([((one,), 1)], relation="undirected")
    priced = privacy_profile([((selection(((one,),), number),), 1)], relation="undirected")
    true = hockey_stick(*outcomes, 0.7)
    assert alone.delta(0.7) < true <= priced.delta(0.7)


def test_a_number_that_is_not_random_would_cost_more_than_is_charged():
    """Rare evidence is amplified by every further candidate, and by a known number without end."""
    from scipy.special import ndtr

    shift = gaussian_shift(1.0, 1e-7)
    edges = np.concatenate([[-np.inf], np.linspace(-8, 8, 399), [np.inf]])
    sides = [np.diff(ndtr(edges - mean)) for mean in (0.0, shift)]
    price = account([selection((ONE,), NUMBERS[0])], 1e-7, relation="undirected").epsilon
    fixed = [selected(side[::-1], lambda x: x**10) for side in sides]
    assert hockey_stick(*fixed, price) > 1e-7


class TestFigures:
    """What the documentation states of ten candidates of epsilon 1 with a geometric number."""

    ten = selection((ONE,), CandidateNumber.geometric(10.0))

    def test_by_renyi_of_papernot_and_steinke_they_cost_2_03(self):
        curve = papernot_steinke(self.ten.pair(Undirected()), ORDERS)
        bounds = curve + np.log1p(-1 / ORDERS) - np.log(1e-7 * ORDERS) / (ORDERS - 1)
        assert round(float(bounds.min()), 2) == 2.03

    def test_by_profiles_they_cost_less(self):
        spend = account([self.ten], 1e-7, relation="undirected")
        assert spend.accountant == "pld"
        assert 1.42 < spend.epsilon < 1.43

    def test_by_the_theorem_of_koskela_redberg_and_wang_they_cost_more(self):
        assert koskela(self.ten, 1e-7) > account([self.ten], 1e-7, relation="undirected").epsilon
        assert 1.78 < koskela(self.ten, 1e-7) < 1.79

    def test_they_cost_far_less_than_ten_fits_and_more_than_one(self):
        ten = account([self.ten], 1e-7, relation="undirected").epsilon
        assert 1.0 < ten < account(ONE * 10, 1e-7, relation="undirected").epsilon


def koskela(event, at):
    """Return the epsilon of Theorem 4 of Koskela et al. for the truncated negative binomial."""
    number = event.number
    profile = privacy_profile([(event.candidates[0], 1)], relation="undirected")
    odds = (1 - number.gamma) / number.gamma
    shift = (1 + number.shape) * min(
        math.log(math.exp(one) + odds * profile.delta(one)) for one in np.linspace(0, 2, 801)
    )
    return shift + profile.epsilon(at / number.mean)


class TestRenyi:
    @pytest.mark.parametrize("number", NUMBERS[:5], ids=str)
    def test_the_published_bound_is_that_of_dp_accounting(self, number):
        """For Poisson ours reads delta off the exact curve, which is at most that of Renyi."""
        event = selection(((Gaussian(6.0),),), number)
        accountant = RdpAccountant(list(ORDERS), NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(to_dp_accounting([event]))
        theirs, ours = accountant._rdp, papernot_steinke(event.pair(AddRemove()), ORDERS)
        assert np.all(ours <= theirs * (1 + 1e-6))
        if number.distribution != "poisson":
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)

    @pytest.mark.parametrize("number", NUMBERS, ids=str)
    def test_the_curve_is_above_that_of_every_finite_selection(self, number):
        random = np.random.default_rng(7)
        for _ in range(4):
            first, second = random.dirichlet(np.ones(5), size=2) * 0.9 + 0.02
            event = selection(((Finite(tuple(first), tuple(second)),),), number)
            one, other = (selected(s, lambda x: generating(number, x)) for s in (first, second))
            kept = one + other > 0
            for order in (1.5, 3.0, 10.0):
                sums = one[kept] ** order * other[kept] ** (1 - order)
                true = math.log(sums.sum()) / (order - 1)
                bound = renyi_curve([event], relation="undirected", orders=np.array([order]))
                assert true <= bound[0] + 1e-9

    def test_a_candidate_costs_what_its_dearest_setting_does(self):
        event = selection(((Gaussian(6.0),), (Gaussian(3.0),)), NUMBERS[0])
        dearest = renyi_curve([Gaussian(3.0)], relation="undirected")
        np.testing.assert_array_equal(candidate_renyi(event.pair(Undirected()), ORDERS), dearest)


class TestNumber:
    @pytest.mark.parametrize("number", NUMBERS, ids=str)
    def test_it_is_drawn_from_its_distribution(self, number):
        """3,000 draws from the noise stream; a chi-square that fails once in a million."""
        from scipy.stats import chi2

        key = NoiseKey.insecure(3)
        stream = key.bytes(24 * 3_000, "numbers")
        drawn = [number.of(stream[i : i + 24]) for i in range(0, len(stream), 24)]
        points = [generating(number, x) for x in (0.0, 0.5)]
        assert abs(np.mean([d == 0 for d in drawn]) - points[0]) < 0.01
        assert np.mean([0.5**d for d in drawn]) == pytest.approx(points[1], abs=0.03)
        expected, last = [], number.at_most(0.98)
        observed = np.bincount(np.minimum(drawn, last + 1), minlength=last + 2)
        for value in range(last + 1):
            expected.append(probability(number, value))
        expected.append(1 - sum(expected))
        expected = np.array(expected) * len(drawn)
        kept = expected > 5
        statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
        assert statistic < chi2.isf(1e-6, kept.sum())
        assert len(set(drawn)) > 3

    @pytest.mark.parametrize("number", NUMBERS, ids=str)
    def test_its_mean_is_as_stated(self, number):
        assert math.exp(number.log_gradient(np.zeros(1))[0]) == pytest.approx(number.mean, rel=1e-9)
        step = 1e-6
        slope = (generating(number, 1.0) - generating(number, 1 - step)) / step
        assert slope == pytest.approx(number.mean, rel=1e-3)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: CandidateNumber("binomial", 10.0, 10.0), "the number would not be random"),
            (lambda: CandidateNumber("poisson", 2.0), "no candidate at all"),
            (lambda: CandidateNumber("fixed", 10.0), "`distribution` must be one of"),
            (lambda: CandidateNumber.geometric(1.0), "one candidate needs no selection"),
            (lambda: CandidateNumber("poisson", 10.0, 2.0), "`shape` must be left out"),
        ],
    )
    def test_one_that_is_not_random_enough_is_refused(self, make, message):
        with pytest.raises(InputError, match=message):
            make()


def probability(number, value):
    from scipy import stats

    if number.distribution == "poisson":
        return stats.poisson.pmf(value, number.mean)
    if number.distribution == "binomial":
        return stats.binom.pmf(value, int(number.shape), number.mean / number.shape)
    if number.shape == 0:
        return stats.logser.pmf(value, 1 - number.gamma)
    whole = stats.nbinom.pmf(value, number.shape, number.gamma)
    return whole / (1 - number.gamma**number.shape) if value else 0.0


class TestEvent:
    def test_it_survives_json_and_is_a_value(self):
        steps = PoissonGaussian(1.5, sampling_rate=0.1, steps=3, group="training")
        event = selection(((Gaussian(2.0), steps), (Gaussian(3.0),)), NUMBERS[3], label="best")
        copy = Event.from_dict(json.loads(json.dumps(event.to_dict())))
        assert copy == event
        assert hash(copy) == hash(event)

    def test_settings_with_the_same_releases_are_one(self):
        one, other = (Gaussian(2.0),), (Gaussian(3.0),)
        assert selection((one, other, one), NUMBERS[0]) == selection((other, one), NUMBERS[0])

    def test_it_composes_with_what_else_is_released(self):
        best, hop = selection((ONE,), NUMBERS[0]), Gaussian(10.0)
        both = epsilon([best, hop], 1e-6, relation="undirected")
        assert max(epsilon([e], 1e-6, relation="undirected") for e in (best, hop)) < both
        assert both < sum(epsilon([e], 5e-7, relation="undirected") for e in (best, hop))
        assert delta([best, hop], both, relation="undirected") <= 1e-6

    @pytest.mark.parametrize("number", [NUMBERS[0], NUMBERS[4]], ids=str)
    @pytest.mark.parametrize("relation", ["add-remove", "replace"])
    def test_dp_accounting_has_it_too(self, number, relation):
        event = selection(((Gaussian(6.0, count=2),),), number)
        converted = to_dp_accounting([event], relation=relation)
        assert from_dp_accounting(converted, relation=relation) == [event]
        # There noise counts in the norm of one record, here in the distance of two.
        (inner,) = converted.events[0].event.events
        assert inner.event.noise_multiplier == (12.0 if relation == "replace" else 6.0)

    def test_several_selections_of_dp_accounting_are_as_many_here(self):
        event = selection((ONE,), NUMBERS[0])
        converted = SelfComposedDpEvent(to_dp_accounting([event]), 3)
        assert from_dp_accounting(converted) == [event] * 3

    def test_what_dp_accounting_lacks_is_refused(self):
        with pytest.raises(InputError, match="binomial"):
            to_dp_accounting([selection((ONE,), NUMBERS[5])])

    def test_pure_candidates_cost_what_liu_and_talwar_prove(self):
        coin = Finite((0.6, 0.4), (0.4, 0.6))
        event = selection(((coin,),), CandidateNumber.geometric(10.0))
        assert epsilon([event], 0.0) == pytest.approx(3 * math.log(1.5))

    @pytest.mark.parametrize("noise", [(10.0, 2.0), (2.0, 3.0)])
    @pytest.mark.parametrize("event_class", [Gaussian, Laplace])
    def test_it_costs_what_its_dearest_setting_does_wherever_that_stands(self, event_class, noise):
        """Settings are ordered as texts: that of the least noise is the last one or the first."""
        both = selection(tuple((event_class(one),) for one in noise), NUMBERS[0])
        dearest = selection(((event_class(2.0),),), NUMBERS[0])
        assert both.candidates.index((event_class(2.0),)) == noise.index(2.0)
        if event_class is Laplace:
            assert epsilon([both], 0.0) == epsilon([dearest], 0.0) == pytest.approx(1.5)
        price = epsilon([dearest], 1e-6)
        assert price * (1 - 1e-9) <= epsilon([both], 1e-6) <= price * 1.01

    def test_all_settings_are_calibrated(self):
        louder = selection(((Gaussian(1.0),), (Gaussian(2.0),)), NUMBERS[0]).scaled(3.0)
        assert louder.candidates == ((Gaussian(3.0),), (Gaussian(6.0),))

    def test_batches_of_one_group_and_hops_of_another_are_priced_by_the_dearer_one(self):
        training = PoissonGaussian(2.0, sampling_rate=0.1, steps=20, group="training")
        others = Gaussian(50.0, group="others")
        both = selection(((training, others),), NUMBERS[1])
        alone = selection(((training,),), NUMBERS[1])
        price = epsilon([both], 1e-5)
        assert price == pytest.approx(epsilon([alone], 1e-5), rel=5e-3)
        assert price > epsilon([training], 1e-5)


class TestBudgets:
    """Which composition of a budget counts a selection."""

    def spend(self):
        event = selection((ONE,), NUMBERS[0])
        price = account([event], 1e-7, relation="undirected").epsilon
        return Spend(Undirected(), Amount.of(price, 1e-7), 1, json.dumps([event.to_dict()])), event

    def granted(self, composition):
        return Filter.granted(composition, "edge", Undirected(), Amount.of(4.0, 1e-7))

    def test_sum_counts_its_epsilon(self):
        spend, _ = self.spend()
        assert self.granted("sum").together([spend]) == float(spend.amount.epsilon)

    def test_renyi_counts_its_divergence(self):
        spend, event = self.spend()
        budget = self.granted("renyi")
        own = accountant_named("rdp").epsilon([event], 1e-7, relation="undirected")
        assert own <= budget.together([spend]) < 4.0

    def test_gaussian_refuses_it(self):
        spend, _ = self.spend()
        with pytest.raises(PrivacyError, match="Gaussian noise alone"):
            self.granted("gaussian").together([spend])
