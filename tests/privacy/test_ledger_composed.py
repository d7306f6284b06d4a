"""What charges come to as a fixed list: their exact curve, at the budget's delta and relation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn import Ledger
from gapgnn.privacy import Undirected, parse_relation
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, account, gaussian_epsilon
from gapgnn.privacy.ledger import Budget, People, composed_epsilon, composed_profile
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.filters import Filter, Spend

NOISE = 20.0
PEOPLE = People.listed(np.array(["a", "b", "c"]))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def charge(
    ledger: Ledger, events: Sequence[Event], *, delta: float, relation: str, count: int = 1
) -> float:
    price = account(events, delta, relation=relation).epsilon
    ledger.charge(
        PEOPLE,
        level="edge",
        relation=relation,
        epsilon=price,
        delta=delta,
        count=count,
        events=[event.to_dict() for event in events],
        purpose="test",
    )
    return price


def granted(ledger: Ledger, **terms: Any) -> None:
    stated = {"level": "edge", "relation": "undirected", "epsilon": 50.0, **terms}
    ledger.grant("people", PEOPLE, **stated)


def only(ledger: Ledger) -> Budget:
    (budget,) = ledger.summary()
    return budget


def test_an_epsilon_at_a_larger_delta_is_not_that_of_the_budget(ledger: Ledger) -> None:
    granted(ledger, delta=1e-8, composition="gaussian")
    price = charge(ledger, [Gaussian(NOISE)], delta=1e-3, relation="undirected")
    found = composed_epsilon(ledger.entries(), only(ledger))
    assert found == pytest.approx(gaussian_epsilon(1 / NOISE, 1e-8), rel=1e-3)
    assert found > 1.5 * price


def test_every_one_of_equal_releases_counts(ledger: Ledger) -> None:
    granted(ledger, delta=1e-5, composition="sum")
    charge(ledger, [Gaussian(NOISE)], delta=1e-7, relation="undirected", count=9)
    found = composed_epsilon(ledger.entries(), only(ledger))
    assert found == pytest.approx(gaussian_epsilon(3 / NOISE, 9e-7), rel=1e-3)
    profile = composed_profile(ledger.entries(), relation="undirected")
    assert profile is not None
    assert profile.bounds().mu == pytest.approx(3 / NOISE)


def test_releases_about_arcs_count_as_of_edges(ledger: Ledger) -> None:
    """An arc of two makes the squared distance of a hop grow fourfold at most."""
    charge(ledger, [Gaussian(NOISE)], delta=1e-7, relation="directed")
    charge(ledger, [Gaussian(NOISE)], delta=1e-7, relation="undirected")
    budget = only(ledger)
    assert budget.relation == "undirected"
    found = composed_epsilon(ledger.entries(), budget)
    assert found == pytest.approx(gaussian_epsilon(5**0.5 / NOISE, budget.spent_delta), rel=1e-3)


def test_pure_releases_add_up_as_often_as_they_were_made(ledger: Ledger) -> None:
    charge(ledger, [Laplace(4.0)], delta=0.0, relation="undirected", count=3)
    charge(ledger, [Laplace(2.0)], delta=0.0, relation="undirected")
    assert composed_epsilon(ledger.entries(), only(ledger)) == pytest.approx(1.25)


def test_pure_noise_about_arcs_has_no_curve_for_edges_and_counts_as_the_budget_says(
    ledger: Ledger,
) -> None:
    charge(ledger, [Laplace(4.0)], delta=0.0, relation="directed")
    charge(ledger, [Gaussian(NOISE)], delta=1e-7, relation="undirected")
    assert composed_profile(ledger.entries(), relation="undirected") is None
    budget = only(ledger)
    assert composed_epsilon(ledger.entries(), budget) == budget.spent_epsilon
    assert math.isfinite(budget.spent_epsilon)


def state(ledger: Ledger, event: Event, *, delta: float, relation: str = "undirected") -> Spend:
    """Charge a release for a stated epsilon of 1, whatever its own is."""
    ledger.charge(
        PEOPLE,
        level="edge",
        relation=relation,
        epsilon=1.0,
        delta=delta,
        events=[event.to_dict()],
        purpose="test",
    )
    return Spend(parse_relation(relation), Amount.of(1.0, delta), 1, json.dumps([event.to_dict()]))


def test_charges_of_one_price_count_by_what_each_of_them_released(ledger: Ledger) -> None:
    granted(ledger, delta=1e-6, composition="renyi")
    noises = (Gaussian(5.0), Laplace(1.5), Gaussian(9.0))
    spends = [state(ledger, noise, delta=1e-7) for noise in noises]
    rule = Filter.granted("renyi", "edge", Undirected(), Amount.of(50.0, 1e-6))
    wanted = rule.spent(spends).epsilon
    assert only(ledger).spent_epsilon == pytest.approx(float(wanted), rel=1e-12)
    assert wanted > max(rule.spent([one] * 3).epsilon for one in (spends[0], spends[2]))


def test_charges_of_one_epsilon_count_by_relation_and_delta_of_each(ledger: Ledger) -> None:
    state(ledger, Laplace(1.0), delta=0.0, relation="directed")
    state(ledger, Laplace(1.0), delta=0.0)
    state(ledger, Laplace(1.0), delta=1e-7)
    state(ledger, Laplace(1.0), delta=1e-5)
    budget = only(ledger)
    # An edge is two arcs.
    assert budget.spent_epsilon == 5.0
    assert budget.spent_delta == pytest.approx(1e-5 + 1e-7, rel=1e-12)


def test_what_is_said_to_be_left_is_never_more_than_it_is(ledger: Ledger) -> None:
    granted(ledger, epsilon=1.0, delta=1e-5, composition="sum")
    untouched = only(ledger)
    ledger.charge(
        PEOPLE,
        level="edge",
        relation="undirected",
        epsilon=0.00004,
        delta=0.0,
        events=[Laplace(25_000.0).to_dict()],
        purpose="test",
    )
    after = only(ledger)
    assert after.left_epsilon == pytest.approx(0.99996)
    assert "epsilon 0.9999 of 1 left" in after.left_of()
    assert "epsilon 1 of 1 left" in untouched.left_of(after)
    assert untouched.left_of(after).endswith("after this, epsilon 0.9999")
