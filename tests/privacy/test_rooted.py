"""DP-SGD on sub-graphs: what one record or edge changes of a batch, and what that costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from gapgnn.errors import InputError
from gapgnn.privacy import AddRemove, Directed, KEdges, Replace, Undirected
from gapgnn.privacy.accounting import Event, SubgraphGaussian, account, pld_delta
from gapgnn.privacy.dpsgd import reach_of, rooted_event, rooted_sensitivity

RATE = 0.3


def event(std=2.0, *, reach=(2,), own=1, keep=1.0, rate=RATE, steps=1):
    return SubgraphGaussian(std, sampling_rate=rate, reach=reach, own=own, keep=keep, steps=steps)


def delta_of(pair, epsilon):
    """The hockey-stick divergence of a pair of mixtures in one dimension, by quadrature."""
    low, high = pair.reach
    x = np.linspace(low - 12, high + 12, 40_001)
    above, below = pair.log_densities(x)
    return float(np.trapezoid(np.maximum(np.exp(above) - np.exp(epsilon + below), 0), x))


class TestReach:
    def test_a_record_reaches_the_roots_along_chains_of_cut_lists(self):
        assert reach_of(AddRemove(), layers=0, max_degree=7) == ()
        assert reach_of(AddRemove(), layers=3, max_degree=4) == (4, 16, 64)
        assert reach_of(Replace(), layers=1, max_degree=4) == (4,)

    def test_an_edge_changes_the_cut_of_two_lists_by_two_arcs_each(self):
        assert reach_of(Directed(), layers=1, max_degree=4) == (2,)
        assert reach_of(Undirected(), layers=2, max_degree=4) == (4, 16)
        assert reach_of(KEdges(3), layers=1, max_degree=4) == (12,)

    def test_the_sensitivity_is_two_clips_for_others_and_one_for_the_own_example(self):
        planned = rooted_event(
            AddRemove(), layers=2, max_degree=3, keep=0.5, sampling_rate=0.1, steps=2, label="x"
        )
        assert planned.noise_multiplier == rooted_sensitivity((3, 9), 1) == 25


class TestTheWorstCaseOfAStep:
    @pytest.mark.parametrize(
        "case",
        [
            event(),
            event(6.0, reach=(3, 9), keep=0.5),
            event(3.0, reach=(4,), own=0),
            event(1.0, reach=(5,), rate=0.02),
        ],
    )
    @pytest.mark.parametrize("relation", [AddRemove(), Replace()])
    def test_the_price_is_that_of_the_integral(self, case, relation):
        pair = case.pair(relation)
        for epsilon in (0.1, 2.0):
            exact = max(delta_of(pair, epsilon), delta_of(pair.reversed, epsilon))
            found = pld_delta([case], epsilon, relation=relation)
            assert exact * (1 - 1e-6) <= found <= exact * 1.02 + 1e-9

    def test_its_places_are_those_of_binomially_many_examples(self):
        pair = event(1.0, reach=(3, 5), keep=0.5).pair(AddRemove())
        law = np.convolve(binom.pmf(range(4), 3, RATE * 0.5), binom.pmf(range(6), 5, RATE * 0.25))
        # Where arcs are left out, an example may turn around: two clips, on either side.
        np.testing.assert_allclose(pair.lower_means, -2.0 * np.arange(9))
        np.testing.assert_allclose(pair.lower_weights, law, rtol=1e-9)
        np.testing.assert_allclose(pair.upper_means, 2.0 * np.arange(10))
        own = np.convolve(law, [1 - RATE, RATE])
        np.testing.assert_allclose(pair.upper_weights, own, rtol=1e-9)

    def test_with_nobody_else_it_is_plain_dp_sgd(self):
        from gapgnn.privacy.accounting import PoissonGaussian

        alone = event(1.0, reach=(), steps=10, rate=0.1)
        plain = PoissonGaussian(1.0, sampling_rate=0.1, steps=10)
        for relation in ("add-remove", "replace"):
            prices = [account([one], 1e-5, relation=relation).epsilon for one in (alone, plain)]
            assert prices[0] == pytest.approx(prices[1], rel=2e-3)

    def test_one_step_more_of_many_rarely_touched_roots_costs_a_little_more(self):
        prices = [
            account(
                [event(10.0, reach=(30, 900), keep=0.05, rate=0.01, steps=5 + more)],
                1e-6,
                relation="add-remove",
            ).epsilon
            for more in (0, 1)
        ]
        assert 0 < prices[0] <= prices[1] < prices[0] * 1.2

    def test_it_is_read_back_from_a_ledger(self):
        case = event(reach=(3, 9), keep=0.25)
        assert Event.from_dict(case.to_dict()) == case

    @pytest.mark.parametrize("wrong", [{"reach": (), "own": 0}, {"keep": 0.0}, {"own": 2}])
    def test_what_releases_nothing_or_too_much_is_refused(self, wrong):
        with pytest.raises(InputError):
            event(**wrong)


def mixtures(coins, present, absent, background, own):
    """What a step adds up with and without the record: places and their weights.

    Root i is in the batch with probability RATE and then holds the record with probability
    ``coins[i]``; it gives ``present[i]`` or ``absent[i]`` if so, and ``background[i]`` if not.
    """
    sides = []
    for gradients, extra in ((present, own), (absent, None)):
        places, weights = [np.zeros(2)], [1.0]
        for coin, gradient, other in zip(coins, gradients, background, strict=True):
            options = [(np.zeros(2), 1 - RATE), (other, RATE * (1 - coin)), (gradient, RATE * coin)]
            pairs = itertools.product(zip(places, weights, strict=True), options)
            places, weights = zip(*[(p + q, w * v) for (p, w), (q, v) in pairs], strict=True)
        if extra is not None:
            pairs = itertools.product(
                zip(places, weights, strict=True), [(np.zeros(2), 1 - RATE), (extra, RATE)]
            )
            places, weights = zip(*[(p + q, w * v) for (p, w), (q, v) in pairs], strict=True)
        sides.append((np.array(places), np.array(weights)))
    return sides


def plane_delta(first, second, epsilon, std):
    """The hockey-stick divergence of two Gaussian mixtures in the plane, on a fine grid."""
    line = np.linspace(-5 - 6 * std, 5 + 6 * std, 161)
    densities = []
    for places, weights in (first, second):
        columns = [norm.pdf(line[None], places[:, axis, None], std) for axis in (0, 1)]
        densities.append(np.einsum("k,kx,ky->xy", weights, *columns))
    cell = (line[1] - line[0]) ** 2
    return float(np.maximum(densities[0] - math.exp(epsilon) * densities[1], 0).sum() * cell)


angles = st.floats(0, 2 * math.pi)
vectors = st.tuples(angles, st.sampled_from([0.3, 1.0, 1.0])).map(
    lambda polar: polar[1] * np.array([math.cos(polar[0]), math.sin(polar[0])])
)


@st.composite
def steps(draw):
    count = draw(st.integers(1, 3))
    keep = draw(st.sampled_from([1.0, 0.5]))
    lists = [draw(st.lists(vectors, min_size=count, max_size=count)) for _ in range(3)]
    return keep, *lists, draw(vectors), draw(st.sampled_from([0.5, 1.0, 2.0]))


@settings(max_examples=30, deadline=None)
@given(steps(), st.sampled_from([0.0, 0.5, 1.5]))
def test_no_gradients_in_the_plane_are_distinguished_better_than_opposed_ones(case, epsilon):
    keep, present, absent, background, own, std = case
    sides = mixtures([keep] * len(present), present, absent, background, own)
    pair = event(std, reach=(len(present),), keep=keep).pair(AddRemove())
    for first, second, worst in (
        (*sides, pair),
        (*sides[::-1], pair.reversed),
    ):
        assert plane_delta(first, second, epsilon, std) <= delta_of(worst, epsilon) + 2e-4


def test_a_step_of_one_clip_would_not_cover_examples_that_turn_around():
    """Why an arc that may be left out costs two clips and not one."""
    here, there = np.array([1.0, 0.0]), np.array([-1.0, 0.0])
    sides = mixtures([0.5] * 3, [here] * 3, [there] * 3, [there] * 3, np.zeros(2))
    halved = event(1.0, reach=(3,), rate=RATE / 2, own=0).pair(AddRemove())
    covered = event(1.0, reach=(3,), keep=0.5, own=0).pair(AddRemove())
    found = plane_delta(*sides, 1.5, 1.0)
    assert delta_of(halved, 1.5) < found - 1e-4
    assert found < delta_of(covered, 1.5)


def test_an_exchanged_record_may_turn_around_the_examples_of_the_old_and_of_the_new_one():
    """Two roots that the old record enters, two that the new one does, and that person's own."""
    here, there = np.array([1.0, 0.0]), np.array([-1.0, 0.0])
    sides = mixtures([1.0] * 5, [here] * 5, [there] * 5, [there] * 5, np.zeros(2))
    case = event(1.0, reach=(2,), own=1)
    for epsilon in (0.5, 1.5):
        found = plane_delta(*sides, epsilon, 1.0)
        assert delta_of(case.pair(AddRemove()), epsilon) < found - 1e-2
        assert delta_of(case.pair(Replace()), epsilon) == pytest.approx(found, abs=1e-3)


def survivals(arcs, keep):
    """The probability for each node but 0 to be reached from 0 along two kept arcs at most."""
    reached = {}
    for kept in itertools.product([False, True], repeat=len(arcs)):
        share = math.prod(keep if one else 1 - keep for one in kept)
        present = {arc for arc, one in zip(arcs, kept, strict=True) if one}
        near = {v for u, v in present if u == 0} - {0}
        far = {v for u, v in present if u in near} - {0}
        for node in near | far:
            reached[node] = reached.get(node, 0.0) + share
    return reached


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.sampled_from([(u, v) for u in range(5) for v in range(5) if u != v]),
        unique=True,
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([0.3, 0.7]),
)
def test_the_number_of_touched_roots_is_at_most_that_of_a_tree_without_common_roots(arcs, keep):
    kept, degree = [], {}
    for u, v in arcs:
        degree[u] = degree.get(u, 0) + 1
        if degree[u] <= 2:
            kept.append((u, v))
    law = np.ones(1)
    # Every root draws its arcs by its own coins, so the trials are independent.
    for chance in survivals(kept, keep).values():
        law = np.convolve(law, [1 - RATE * chance, RATE * chance])
    bound = event(1.0, reach=(2, 4), own=0, keep=keep).pair(AddRemove()).upper_weights
    for most in range(1, len(law)):
        assert sum(law[most:]) <= sum(bound[most:]) + 1e-12
