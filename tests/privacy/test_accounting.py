"""What every accountant promises, and the values of the privacy page, section 3."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import InputError
from gapgnn.privacy import AddRemove
from gapgnn.privacy.accounting import ACCOUNTANTS, account, accountant_named, pld
from gapgnn.privacy.accounting.accountants import gaussian_epsilon, gaussian_shift, log_delta
from gapgnn.privacy.accounting.events import (
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    merge,
)
from gapgnn.privacy.accounting.rdp import ORDERS, renyi_curve

FACEBOOK = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
EXACT = ACCOUNTANTS["exact"]


class AccountantContract:
    """Subclasses name an accountant and a composition with a ``Gaussian`` among its events."""

    name: str
    relation = "add-remove"
    events: tuple = (Gaussian(2.0, count=2), Gaussian(5.0))

    @property
    def accountant(self):
        return accountant_named(self.name)

    def epsilon(self, events, delta=1e-5):
        return self.accountant.epsilon(events, delta, relation=self.relation)

    def delta(self, events, epsilon):
        return self.accountant.delta(events, epsilon, relation=self.relation)

    def scaled(self, factor):
        return [e.scaled(factor) if hasattr(e, "noise_multiplier") else e for e in self.events]

    def test_nothing_released_costs_nothing(self):
        assert self.epsilon([]) == 0.0
        assert self.delta([], 0.0) == 0.0

    def test_more_noise_costs_less(self):
        costs = [self.epsilon(self.scaled(factor)) for factor in (0.7, 1.0, 1.01, 4.0)]
        assert all(a > b > 0 for a, b in itertools.pairwise(costs))
        deltas = [self.delta(self.scaled(factor), 0.5) for factor in (0.7, 1.0, 2.0)]
        assert all(a > b >= 0 for a, b in itertools.pairwise(deltas))

    def test_a_larger_delta_costs_less_epsilon(self):
        costs = [self.epsilon(self.events, delta) for delta in (1e-12, 1e-8, 1e-5, 1e-2, 0.3)]
        assert all(a > b >= 0 for a, b in itertools.pairwise(costs))

    def test_every_further_release_costs(self):
        costs = [self.epsilon(self.events * count) for count in (1, 2, 5)]
        assert all(a < b for a, b in itertools.pairwise(costs))

    def test_the_order_of_events_and_their_labels_do_not_matter(self):
        costs = {
            self.epsilon([replace(e, label=str(i)) for i, e in enumerate(order)])
            for order in (self.events, self.events[::-1], self.events[1:] + self.events[:1])
        }
        assert len(costs) == 1

    def test_never_below_the_exact_cost_of_the_gaussian_part(self):
        gaussians = [e for e in self.events if isinstance(e, Gaussian)]
        for delta in (1e-9, 1e-5, 1e-2):
            exact = EXACT.epsilon(gaussians, delta, relation=self.relation)
            assert self.epsilon(self.events, delta) >= exact * (1 - 1e-9)

    def test_epsilon_and_delta_tell_the_same_story(self):
        for delta in (1e-9, 1e-5, 1e-2):
            epsilon = self.epsilon(self.events, delta)
            assert self.delta(self.events, epsilon) == pytest.approx(delta, rel=0.03)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan, math.inf, "1e-5", None])
    def test_a_delta_outside_its_range_is_refused(self, delta):
        with pytest.raises(InputError, match="`delta`"):
            self.epsilon(self.events, delta)

    @pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
    def test_an_epsilon_outside_its_range_is_refused(self, epsilon):
        with pytest.raises(InputError, match="`epsilon`"):
            self.delta(self.events, epsilon)

    @pytest.mark.parametrize("relation", ["auto", "none", "remove"])
    def test_an_unresolved_relation_is_refused(self, relation):
        with pytest.raises(InputError, match="`relation`"):
            self.accountant.epsilon(self.events, 1e-5, relation=relation)

    def test_only_events_are_accounted(self):
        with pytest.raises(InputError, match="an event must be one of"):
            self.epsilon(["Gaussian"])


class TestExact(AccountantContract):
    name = "exact"

    def test_what_it_cannot_price_is_refused(self):
        with pytest.raises(InputError, match="use 'pld'"):
            self.epsilon([Gaussian(1.0), Laplace(1.0)])


class TestRdp(AccountantContract):
    name = "rdp"


class TestRdpWithSubsampling(AccountantContract):
    name = "rdp"
    events = (PoissonGaussian(1.0, 0.05, 50), Gaussian(2.0), Laplace(3.0))


class TestPldOnGaussians(AccountantContract):
    name = "pld"


class TestPldWithSubsampling(AccountantContract):
    name = "pld"
    events = (PoissonGaussian(1.0, 0.05, 50), Gaussian(2.0))


@pytest.mark.slow
class TestPldUnderReplace(AccountantContract):
    name = "pld"
    relation = "replace"
    events = (PoissonGaussian(1.0, 0.05, 50), Gaussian(2.0))


class TestPldWithEverything(AccountantContract):
    name = "pld"
    events = (
        MixtureOfGaussians(3.0, (0.0, 1.0, 3.0), (0.95, 0.04, 0.01), steps=20),
        Gaussian(4.0),
        Laplace(2.0),
        RandomisedResponse(0.3, 0.2),
    )


@pytest.mark.parametrize(
    ("events", "delta", "relation", "expected"),
    [
        ([Gaussian(6.617, count=2)], 1e-7, "directed", 1.0),
        ([Gaussian(6.617, count=2)], 1e-7, "undirected", 1.0),
        ([FACEBOOK, Gaussian(1.0, count=2)], 1e-5, "add-remove", 7.449),
        # The same noise: a hop's standard deviation sqrt(D) is half of the sensitivity 2 sqrt(D).
        ([FACEBOOK, Gaussian(0.5, count=2)], 1e-5, "replace", 16.88),
        ([FACEBOOK.scaled(0.95), Gaussian(0.95, count=2)], 1e-5, "add-remove", 8.0),
        ([FACEBOOK.scaled(5.61), Gaussian(5.61, count=2)], 1e-5, "add-remove", 1.0),
    ],
)
def test_the_values_of_the_privacy_page(events, delta, relation, expected):
    spend = account(events, delta, relation=relation)
    assert spend.epsilon == pytest.approx(expected, rel=0.005)
    assert spend.accountant == ("exact" if len(events) == 1 else "pld")


@pytest.mark.parametrize(
    ("events", "delta", "expected"),
    [
        ([Gaussian(7.04, count=2)], 1e-7, 1.0),
        ([FACEBOOK, Gaussian(1.0, count=2)], 1e-5, 8.025),
        ([FACEBOOK.scaled(1.003), Gaussian(1.003, count=2)], 1e-5, 8.0),
        ([FACEBOOK.scaled(6.09), Gaussian(6.09, count=2)], 1e-5, 1.0),
    ],
)
def test_the_rdp_values_of_the_privacy_page(events, delta, expected):
    epsilon = ACCOUNTANTS["rdp"].epsilon(events, delta, relation="add-remove")
    assert epsilon == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("claimed", "real"), [(4.0, 5.89), (1.0, 1.45)])
def test_the_directed_claim_is_too_small_for_a_whole_edge(claimed, real):
    shift = gaussian_shift(claimed, 1e-7)
    assert gaussian_epsilon(math.sqrt(2) * shift, 1e-7) == pytest.approx(real, rel=0.005)


@settings(max_examples=200, deadline=None)
@given(st.floats(-3, 4).map(lambda x: 10**x), st.floats(-290, -0.05).map(lambda x: 10**x))
def test_the_exact_curve_is_its_own_inverse_from_tiny_to_huge(epsilon, delta):
    shift = gaussian_shift(epsilon, delta)
    assert log_delta(epsilon, shift) == pytest.approx(math.log(delta), rel=1e-7, abs=1e-7)
    assert epsilon * (1 - 1e-7) <= gaussian_epsilon(shift, delta) <= epsilon * (1 + 1e-11)


def test_the_exact_curve_agrees_with_arbitrary_precision():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(400):
        for epsilon, shift in [(1e-3, 1e-4), (0.5, 0.1), (1.0, 3.0), (40.0, 1.3), (9e3, 120.0)]:
            low = mpmath.mpf(epsilon) / shift - mpmath.mpf(shift) / 2
            tails = [mpmath.erfc(x / mpmath.sqrt(2)) / 2 for x in (low, low + shift)]
            true = mpmath.log(tails[0] - mpmath.exp(epsilon) * tails[1])
            assert log_delta(epsilon, shift) == pytest.approx(float(true), rel=1e-9)


@pytest.mark.parametrize(
    ("shift", "delta"),
    [
        pytest.param(shift, delta, marks=[pytest.mark.slow] * (shift != 1.0 and delta != 1e-12))
        for shift in (0.01, 1.0, 5.0)
        for delta in (1e-12, 1e-5, 0.1)
    ],
)
def test_pld_is_tight_and_never_below_the_truth_where_the_truth_is_known(shift, delta):
    # So close to rate 1 that it is a Gaussian, but takes the way through grid and FFT.
    steps = PoissonGaussian(math.sqrt(100) / shift, sampling_rate=1 - 1e-12, steps=100)
    exact = gaussian_epsilon(shift, delta)
    bound = pld.pld_epsilon([steps], delta, relation="add-remove")
    assert exact * (1 - 1e-6) <= bound <= exact * 1.003 + 1e-9


@pytest.mark.parametrize("shift", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("steps", [pytest.param(100, marks=pytest.mark.slow), 5000])
def test_pld_charges_the_rounding_errors_of_the_fft(shift, steps):
    # Without the charge the bound falls below the truth at 5000 steps and shift 5.
    event = PoissonGaussian(math.sqrt(steps) / shift, sampling_rate=1 - 1e-12, steps=steps)
    exact = gaussian_epsilon(shift, 1e-12)
    bound = pld.pld_epsilon([event], 1e-12, relation="add-remove")
    assert exact <= bound <= exact * 1.03


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_a_coarse_grid_is_only_ever_pessimistic(relation):
    fine, coarse, coarser = (
        pld.pld_epsilon([FACEBOOK], 1e-5, relation=relation, resolution=r) for r in (0.02, 0.2, 1.0)
    )
    assert fine < coarse < coarser < 2 * fine


def test_two_examples_touched_is_poisson_when_there_is_only_one():
    for multiplier in (0.7, 3.0):
        poisson = PoissonGaussian(multiplier, sampling_rate=0.02, steps=100)
        # Its one shift is written as two, so that it takes the mixtures' own way to the grid.
        mixture = MixtureOfGaussians(multiplier, (0.0, 1.0, 1.0), (0.98, 0.01, 0.01), steps=100)
        for delta in (1e-10, 1e-5):
            one = pld.pld_epsilon([poisson], delta, relation="add-remove")
            other = pld.pld_epsilon([mixture], delta, relation="add-remove")
            assert other == pytest.approx(one, rel=2e-3)


def test_the_mixture_agrees_with_the_librarys_own_slow_construction():
    from dp_accounting.pld import privacy_loss_distribution as library

    shifts, weights = (0.0, 1.0, 3.0, 5.0), (0.9, 0.08, 0.015, 0.005)
    reference = library.from_mixture_gaussian_mechanism(
        6.0, shifts, weights, value_discretization_interval=2e-3
    ).self_compose(30)
    ours = pld.pld_epsilon(
        [MixtureOfGaussians(6.0, shifts, weights, 30)], 1e-6, relation="directed"
    )
    assert ours == pytest.approx(reference.get_epsilon_for_delta(1e-6), rel=2e-3)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_discretised_mixture_keeps_the_mass_of_both_distributions(is_reversed):
    # Moving mass to smaller losses would raise the second sum; to larger ones, lower it.
    event = MixtureOfGaussians(1.5, (0.0, 1.0, 3.0), (0.9, 0.08, 0.02), steps=1)
    pair = event.pair(AddRemove())
    pmf = pld._discretise(pair.reversed if is_reversed else pair, 1e-3, -60.0)
    losses = (pmf._lower_loss + np.arange(pmf.size)) * 1e-3
    assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1.0, abs=1e-12)
    assert pmf._probs @ np.exp(-losses) == pytest.approx(1.0, abs=1e-9)


def test_a_mixture_under_replace_is_refused_rather_than_guessed():
    event = MixtureOfGaussians(3.0, (0.0, 1.0), (0.9, 0.1), steps=2)
    with pytest.raises(InputError, match="Use relation 'add-remove'"):
        account([event], 1e-5, relation="replace")


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.001, 0.2, 0.9])
def test_renyi_divergences_agree_with_the_librarys(multiplier, rate):
    import dp_accounting as library

    orders = np.array([2.0, 8.0, 32.0, 1.5, 3.7])
    reference = library.rdp.RdpAccountant(orders)
    step = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(multiplier))
    reference.compose(step, 10).compose(library.LaplaceDpEvent(2.0))
    ours = renyi_curve(
        [PoissonGaussian(multiplier, rate, 10), Laplace(2.0)], relation="add-remove", orders=orders
    )
    assert ours[:3] == pytest.approx(reference.rdp[:3], rel=1e-9)
    # At fractional orders the library adds the moduli of an alternating series: an upper bound.
    assert (ours[3:] <= reference.rdp[3:] * (1 + 1e-9)).all()


def test_a_fractional_renyi_divergence_agrees_with_direct_integration():
    mpmath = pytest.importorskip("mpmath")
    rate, scale, order = 0.2, 0.6, 1.5

    def integrand(x):
        ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * scale**2))
        return ratio**order * mpmath.npdf(x, 0, scale)

    true = mpmath.log(mpmath.quad(integrand, [-8, -1, 0, 1, 2, 9])) / (order - 1)
    event = PoissonGaussian(scale, rate, 1)
    ours = renyi_curve([event], relation="add-remove", orders=np.array([order]))
    assert ours[0] == pytest.approx(float(true), rel=1e-9)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize("event", [FACEBOOK, PoissonGaussian(0.8, 0.3, 20)])
def test_pld_is_below_rdp_and_replace_above_add_remove(event, relation):
    tight = pld.pld_epsilon([event], 1e-5, relation=relation)
    assert tight < ACCOUNTANTS["rdp"].epsilon([event], 1e-5, relation=relation)
    assert tight >= pld.pld_epsilon([event], 1e-5, relation="add-remove")


def test_at_rate_one_replacing_is_twice_the_distance_of_removing():
    steps = PoissonGaussian(4.0, sampling_rate=1.0, steps=3)
    assert merge([steps], relation="add-remove").shift == pytest.approx(math.sqrt(3) / 4)
    assert merge([steps], relation="replace").shift == pytest.approx(2 * math.sqrt(3) / 4)
    near = PoissonGaussian(4.0, sampling_rate=1 - 1e-12, steps=3)
    exact = account([steps], 1e-5, relation="replace")
    assert exact.accountant == "exact"
    bound = account([near], 1e-5, relation="replace").epsilon
    assert bound == pytest.approx(exact.epsilon, rel=1e-3)


def test_a_gaussian_event_is_not_doubled_under_replace():
    costs = {account([Gaussian(2.0)], 1e-5, relation=r).epsilon for r in ("add-remove", "replace")}
    assert len(costs) == 1


@pytest.mark.parametrize(
    "event",
    [Laplace(1.0), Laplace(0.1), RandomisedResponse.symmetric(1.0), RandomisedResponse(0.3, 0.001)],
)
def test_pure_mechanisms_cost_their_pure_epsilon_at_tiny_delta(event):
    spend = account([event], 1e-12, relation="undirected")
    assert spend.epsilon == pytest.approx(event.pair("undirected").pure_epsilon, rel=1e-3)
    assert (
        account([event], 0.3, relation="undirected").epsilon
        < 0.95 * account([event], 0.0, relation="undirected").epsilon
    )


def test_many_bits_cost_less_than_their_sum():
    bits = RandomisedResponse.symmetric(0.1, count=100)
    assert account([bits], 1e-5, relation="directed").epsilon < 0.5 * 100 * 0.1


def test_randomised_response_delta_is_the_textbook_one():
    event = RandomisedResponse(drop=0.2, add=0.1)
    textbook = max(0.8 - math.e * 0.1, 0.9 - math.e * 0.2)
    assert ACCOUNTANTS["pld"].delta([event], 1.0, relation="directed") == pytest.approx(
        textbook, rel=1e-3
    )


def test_below_the_digits_of_the_fft_rdp_is_the_bound_that_stands():
    spend = account([FACEBOOK], 1e-30, relation="add-remove")
    assert spend.accountant == "rdp"
    assert account([FACEBOOK], 1e-12, relation="add-remove").epsilon < spend.epsilon < math.inf


@pytest.mark.parametrize("multiplier", [1e-200, 1e-9])
def test_vanishing_noise_costs_everything_and_does_not_crash(multiplier):
    assert account([Gaussian(multiplier)], 1e-5, relation="directed").epsilon > 1e12
    rdp = ACCOUNTANTS["rdp"].epsilon(
        [PoissonGaussian(multiplier, 0.1, 3)], 1e-5, relation="replace"
    )
    assert rdp > 1e12


def test_equal_steps_are_merged_and_unequal_ones_are_not():
    halves = [PoissonGaussian(1.0, 0.1, 5, "encoder"), PoissonGaussian(1.0, 0.1, 7, "classifier")]
    merged = merge([*halves, PoissonGaussian(2.0, 0.1, 1)], relation="add-remove")
    assert sorted(times for _, times in merged.rest) == [1, 12]


def test_the_orders_cover_tiny_and_huge_budgets():
    assert ORDERS.min() < 1.05
    assert ORDERS.max() > 1e5
