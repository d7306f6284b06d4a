"""How charges come together: never more than the joint accounting allows, and no less by much."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy import Undirected, parse_relation
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, PoissonGaussian, account
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.filters import Filter, Spend

multipliers = st.floats(0.5, 200).map(lambda x: float(f"{x:.6g}"))
gaussian_releases = st.lists(
    st.tuples(multipliers, st.integers(1, 8), st.integers(1, 5)), min_size=1, max_size=6
)


def spend(events: list[Event], *, count: int = 1, relation: str = "undirected") -> Spend:
    """Return a charge for releases whose stated price nobody should have to look at."""
    written = json.dumps([event.to_dict() for event in events])
    return Spend(parse_relation(relation), Amount.of(1.0, 1e-9), count, written)


def granted(
    composition: str,
    epsilon: float,
    delta: float,
    *,
    level: str = "edge",
    relation: str = "undirected",
) -> Filter:
    return Filter.granted(composition, level, parse_relation(relation), Amount.of(epsilon, delta))


@settings(max_examples=60)
@given(releases=gaussian_releases, delta=st.sampled_from([1e-9, 1e-5, 0.01]))
def test_gaussian_is_the_exact_joint_accounting(
    releases: list[tuple[float, int, int]], delta: float
) -> None:
    spends = [spend([Gaussian(m, count=hops)], count=times) for m, hops, times in releases]
    joint = [Gaussian(m, count=hops * times) for m, hops, times in releases]
    exact = account(joint, delta, relation="undirected").epsilon
    if exact == 0:
        return
    assert granted("gaussian", 1, delta).together(spends) == pytest.approx(exact, rel=1e-9)
    assert not granted("gaussian", exact * (1 - 1e-6), delta).allows(spends)
    assert granted("gaussian", exact * (1 + 1e-6), delta).allows(spends)


@settings(max_examples=60)
@given(releases=gaussian_releases, epsilon=st.floats(0.1, 20), delta=st.sampled_from([1e-9, 1e-5]))
def test_gaussian_fills_a_budget_one_release_at_a_time_and_never_exceeds_it(
    releases: list[tuple[float, int, int]], epsilon: float, delta: float
) -> None:
    budget = granted("gaussian", epsilon, delta)
    spends: list[Spend] = []
    joint: list[Event] = []
    for multiplier, hops, times in releases:
        asked = spend([Gaussian(multiplier, count=hops)], count=times)
        wider = [*joint, Gaussian(multiplier, count=hops * times)]
        exact = account(wider, delta, relation="undirected").epsilon
        if budget.allows([*spends, asked]):
            spends, joint = [*spends, asked], wider
            assert exact <= epsilon
        else:
            assert exact > epsilon * (1 - 1e-6)


def test_what_is_left_is_what_one_more_release_may_cost() -> None:
    budget = granted("gaussian", 4, 1e-7)
    spends = [spend([Gaussian(6.617, count=2)], count=10)]
    left = float(budget.left(spends).epsilon)
    assert 0 < left < 4
    # The noise of a release of just that price, by bisection on the accountant itself.
    low, high = 0.5, 500.0
    for _ in range(60):
        middle = (low + high) / 2
        costs = account([Gaussian(middle)], 1e-7, relation="undirected").epsilon
        low, high = (middle, high) if costs > left else (low, middle)
    assert budget.allows([*spends, spend([Gaussian(high * (1 + 1e-6))])])
    assert not budget.allows([*spends, spend([Gaussian(high * (1 - 1e-6))])])


def test_ten_fits_of_epsilon_one_are_ten_by_sum_and_three_and_a_half_by_gaussian() -> None:
    fit = spend([Gaussian(6.617, count=2)], count=10)
    assert account([Gaussian(6.617, count=2)], 1e-7, relation="undirected").epsilon == (
        pytest.approx(1.0, abs=1e-3)
    )
    found = {
        rule: round(granted(rule, 4, 1e-7).together([fit]), 2)
        for rule in ("sum", "gaussian", "renyi")
    }
    assert found == {"sum": 10.0, "gaussian": 3.46, "renyi": 3.69}


@pytest.mark.parametrize("order", [("add-remove", "replace"), ("replace", "add-remove")])
def test_what_is_remembered_of_a_price_is_that_of_its_relation(order: tuple[str, str]) -> None:
    """In whichever order budgets under both relations ask: prices are kept between charges."""
    # Other steps for each order, so that nothing is known of them.
    steps = [PoissonGaussian(1.0, sampling_rate=0.1, steps=20 + order.index("replace"))]
    found = {
        relation: granted("renyi", 8, 1e-6, level="node", relation=relation).together(
            [spend(steps, relation=relation)]
        )
        for relation in order
    }
    for relation in order:
        exact = account(steps, 1e-6, relation=relation).epsilon
        assert exact <= found[relation] <= 1.5 * exact
    assert found["replace"] > 1.1 * found["add-remove"]


mixed_releases = st.lists(
    st.one_of(
        st.builds(Gaussian, st.floats(2, 50), count=st.integers(1, 4)),
        st.builds(Laplace, st.floats(2, 50)),
        st.builds(
            PoissonGaussian,
            st.floats(0.8, 4),
            sampling_rate=st.sampled_from([0.01, 0.1]),
            steps=st.integers(1, 200),
        ),
    ),
    min_size=1,
    max_size=4,
)


def check_renyi(events: list[Event], epsilon: float, delta: float) -> None:
    """Spend one release after the other; what was let in must fit by the tightest accountant."""
    rules = {"level": "node", "relation": "add-remove"}
    budget = granted("renyi", epsilon, delta, **rules)
    order = budget.order
    let_in: list[Event] = []
    for event in events:
        asked = [spend([one], relation="add-remove") for one in [*let_in, event]]
        if budget.allows(asked):
            let_in.append(event)
            assert budget.together(asked) <= epsilon * (1 + 1e-12)
    assert budget.order == order
    if let_in:
        assert account(let_in, delta, relation="add-remove").epsilon <= epsilon * (1 + 1e-9)


@settings(max_examples=15)
@given(events=mixed_releases, epsilon=st.floats(0.5, 8), delta=st.sampled_from([1e-7, 1e-4]))
def test_renyi_never_allows_more_than_the_tightest_accountant(
    events: list[Event], epsilon: float, delta: float
) -> None:
    check_renyi(events, epsilon, delta)


@pytest.mark.slow
@settings(max_examples=300)
@given(events=mixed_releases, epsilon=st.floats(0.5, 8), delta=st.sampled_from([1e-7, 1e-4]))
def test_renyi_never_allows_more_than_the_tightest_accountant_at_length(
    events: list[Event], epsilon: float, delta: float
) -> None:
    check_renyi(events, epsilon, delta)


def test_the_order_of_renyi_is_chosen_from_the_budget_and_not_from_the_charges() -> None:
    small, large = (granted("renyi", epsilon, 1e-7).order for epsilon in (0.1, 8))
    assert small > large > 1
    assert granted("renyi", 8, 1e-7).order == large


decimals = st.decimals("0.001", "3", places=3)


@given(
    prices=st.lists(st.tuples(decimals, st.integers(1, 9)), max_size=8),
    budget=st.decimals("0.001", "30", places=3, allow_nan=False),
)
def test_sum_is_exact_in_decimal(prices: list[tuple[object, int]], budget: object) -> None:
    spends = [
        Spend(Undirected(), Amount.of(float(str(price)), 0), count, "[]") for price, count in prices
    ]
    total = sum((Fraction(str(price)) * count for price, count in prices), Fraction(0))
    rule = granted("sum", float(str(budget)), 1e-6)
    assert rule.spent(spends).epsilon == total
    assert rule.allows(spends) == (total <= Fraction(str(budget)))
    assert rule.left(spends).epsilon == Fraction(str(budget)) - total


def test_other_noise_does_not_fit_a_gaussian_budget() -> None:
    budget = granted("gaussian", 1000, 1e-5)
    for events in ([Laplace(50.0)], [Gaussian(5.0), Laplace(50.0)]):
        with pytest.raises(PrivacyError, match="Gaussian noise alone"):
            budget.allows([spend(events)])
    assert granted("renyi", 1000, 1e-5).allows([spend([Laplace(50.0)])])


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_release_that_says_nothing_of_itself_fits_no_filter(rule: str) -> None:
    with pytest.raises(PrivacyError, match="must say what was released"):
        granted(rule, 1000, 1e-5).allows([spend([])])
    nothing = Spend(Undirected(), Amount.of(0, 0), 5, "[]")
    assert granted(rule, 1, 1e-5).allows([nothing])


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_release_whose_epsilon_is_zero_at_a_large_delta_is_not_free(rule: str) -> None:
    """One of them is (0, delta)-private; ten thousand together are not."""
    noise = [Gaussian(50.0)]
    assert account(noise, 0.01, relation="undirected").epsilon == 0
    written = json.dumps([event.to_dict() for event in noise])
    budget = granted(rule, 0.5, 1e-5)
    asked = Spend(Undirected(), Amount.of(0, 0.01), 10_000, written)
    assert account([Gaussian(50.0, count=10_000)], 1e-5, relation="undirected").epsilon > 5
    assert not budget.allows([asked])


def test_an_arc_counts_under_edges_as_either_way_it_may_have_gone_by_the_gaussian_rule() -> None:
    """Along arcs an edge is twice the squared distance; symmetrised it is twice the distance."""
    arc = spend([Gaussian(10.0)], relation="directed")
    edge = account([Gaussian(10.0, count=4)], 1e-5, relation="directed").epsilon
    assert granted("gaussian", 4, 1e-5).together([arc]) == pytest.approx(edge, rel=1e-9)
    with pytest.raises(PrivacyError, match="cannot count a charge under directed"):
        granted("renyi", 4, 1e-5).allows([arc])
    with pytest.raises(PrivacyError, match="cannot count a charge under undirected"):
        granted("gaussian", 4, 1e-5, relation="directed").allows([spend([Gaussian(10.0)])])


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_filter_needs_a_delta(rule: str) -> None:
    with pytest.raises(InputError, match="`delta` must be above 0"):
        granted(rule, 1, 0)
    assert granted("sum", 1, 0).allows([])


@pytest.mark.parametrize("rule", ["gaussian", "renyi", "sum"])
@pytest.mark.parametrize("epsilon", [1e-3, 1, 1e3])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.4])
def test_nothing_always_fits_and_costs_nothing(rule: str, epsilon: float, delta: float) -> None:
    budget = granted(rule, epsilon, delta)
    assert budget.allows([])
    assert budget.spent([]) == Amount(Fraction(0), Fraction(0))
    assert float(budget.left([]).epsilon) == pytest.approx(epsilon, rel=1e-6)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="`composition` must be one of gaussian, renyi, sum"):
        granted("best", 1, 1e-5)
