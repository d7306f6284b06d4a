"""A forecast promises what the ledger then keeps: as many fits, not one more and not one less."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn.errors import BudgetExceededError, InputError, PrivacyError
from gapgnn.privacy.accounting import Event, Gaussian, PoissonGaussian, calibrate
from gapgnn.privacy.ledger import COMPOSITIONS, Ledger, People, forecast_fits

CUSTOMERS = People(np.arange(1000), "5f" * 32)
STEPS = [PoissonGaussian(1.0, 0.01, 100), Gaussian(1.0, count=2)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def grant(ledger: Ledger, composition: str = "auto", **options: Any) -> None:
    stated = {"level": "edge", "relation": "undirected", "epsilon": 4.0, "delta": 1e-6, **options}
    ledger.grant("customers", CUSTOMERS, composition=composition, **stated)


def fit(
    ledger: Ledger,
    template: list[Event],
    *,
    epsilon: float = 1.0,
    delta: float = 1e-7,
    level: str = "edge",
    relation: str = "undirected",
) -> None:
    priced = calibrate(template, epsilon=epsilon, delta=delta, relation=relation)
    ledger.charge(
        CUSTOMERS,
        level=level,
        relation=relation,
        epsilon=priced.epsilon,
        delta=delta,
        events=[event.to_dict() for event in priced.events],
        purpose="GAP fit",
    )


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_exactly_as_many_fits_are_charged_as_were_forecast(
    ledger: Ledger, composition: str
) -> None:
    grant(ledger, composition)
    fit(ledger, [Gaussian(1.0, count=2)], epsilon=0.7)
    found = forecast_fits(ledger, "customers", epsilon=1.0, hops=4)
    assert found.fits == {"gaussian": 14, "renyi": 13, "sum": 3}[composition]
    for planned in found.plan:
        fit(ledger, [Gaussian(1.0, count=4)])
        (after,) = ledger.summary()
        assert after.spent_epsilon == pytest.approx(planned.spent_epsilon)
        assert after.left_epsilon == pytest.approx(planned.left_epsilon)
        assert after.left_delta == pytest.approx(planned.left_delta)
    assert len(found.plan) == found.fits
    with pytest.raises(BudgetExceededError):
        fit(ledger, [Gaussian(1.0, count=4)])
    assert forecast_fits(ledger, "customers", epsilon=1.0, hops=4).plan == ()


def test_fewer_hops_with_the_same_noise_buy_more_fits(ledger: Ledger) -> None:
    grant(ledger, "gaussian")
    found = forecast_fits(ledger, "customers", epsilon=1.0, hops=4)
    fits = {row.hops: row.fits["gaussian"] for row in found.alternatives}
    assert list(fits) == [1, 2, 3, 4]
    assert fits[4] == found.fits
    # Squared shifts add up, so half of the hops are half of the price.
    assert 2 * found.fits <= fits[2] <= 2 * found.fits + 1
    assert found.alternatives[-1].epsilon == pytest.approx(1.0)
    assert found.alternatives[0].epsilon < 0.55


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_another_composition_beside_it_is_what_it_would_have_been(
    ledger: Ledger, composition: str
) -> None:
    grant(ledger, "gaussian")
    beside = forecast_fits(ledger, "customers", epsilon=1.0, delta=1e-7, hops=2).alternatives[-1]
    grant(ledger, composition)
    alone = forecast_fits(ledger, "customers", epsilon=1.0, delta=1e-7, hops=2)
    assert alone.fits == beside.fits[composition]


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_what_another_composition_or_fewer_hops_would_allow_counts_what_is_spent(
    ledger: Ledger, tmp_path: Path, composition: str
) -> None:
    other = Ledger.init(tmp_path / "other.sqlite")
    for one, rule in ((other, "gaussian"), (ledger, composition)):
        grant(one, rule)
        for _ in range(2):
            fit(one, [Gaussian(1.0, count=2)], epsilon=1.3)
    found = forecast_fits(other, "customers", epsilon=0.5, delta=1e-7, hops=2)
    multiplier = calibrate(
        [Gaussian(1.0, count=2)], epsilon=0.5, delta=1e-7, relation="undirected"
    ).noise_multiplier
    fewer = found.alternatives[0]
    assert fewer.hops == 1
    wanted = fewer.fits[composition]
    assert wanted is not None
    made = 0
    while made <= wanted:
        try:
            ledger.charge(
                CUSTOMERS,
                level="edge",
                relation="undirected",
                epsilon=fewer.epsilon,
                delta=1e-7,
                events=[Gaussian(multiplier, count=1).to_dict()],
                purpose="GAP fit",
            )
        except BudgetExceededError:
            break
        made += 1
    assert made == wanted


def test_days_follow_each_other_and_end_with_the_budget(ledger: Ledger) -> None:
    grant(ledger, until="2027-01-01")
    first = date(2026, 11, 16)
    found = forecast_fits(ledger, "customers", epsilon=1.0, every=23, first=first)
    assert [fit.day for fit in found.plan] == ["2026-11-16", "2026-12-09", "2027-01-01"]
    assert found.fits > 3


def test_at_node_level_a_fit_is_like_the_last_one(ledger: Ledger) -> None:
    node: dict[str, Any] = {"level": "node", "relation": "add-remove"}
    grant(ledger, "renyi", epsilon=8.0, **node)
    with pytest.raises(PrivacyError, match="no charge at node level yet"):
        forecast_fits(ledger, "customers", epsilon=2.0, level="node")
    fit(ledger, STEPS, epsilon=3.0, **node)
    ledger.log_access(CUSTOMERS, **node, purpose="attack", reason="a test of ours")
    found = forecast_fits(ledger, "customers", epsilon=2.0, level="node")
    assert (found.hops, found.delta) == (None, 1e-7)
    for _ in range(found.fits):
        fit(ledger, STEPS, epsilon=2.0, **node)
    with pytest.raises(BudgetExceededError):
        fit(ledger, STEPS, epsilon=2.0, **node)
    (row,) = found.alternatives
    assert row.fits["gaussian"] is None  # batches are not Gaussian noise alone
    with pytest.raises(InputError, match="`hops` must be left out at node level"):
        forecast_fits(ledger, "customers", epsilon=2.0, level="node", hops=2)


def test_a_sum_needs_no_earlier_charge(ledger: Ledger) -> None:
    grant(ledger, "sum", level="node", relation="add-remove", epsilon=1.0)
    found = forecast_fits(ledger, "customers", epsilon=0.1, delta=1e-8, level="node")
    assert found.fits == 10


def test_a_tiny_fit_ends_the_search_too(ledger: Ledger) -> None:
    grant(ledger, "sum", epsilon=1e5)
    found = forecast_fits(ledger, "customers", epsilon=0.001, delta=1e-13)
    assert found.fits == 1_000_000
    assert len(found.plan) == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": "custmers"}, "must be one of .*Did you mean 'customers'"),
        ({"level": "node"}, "no budget at node level"),
        ({"epsilon": 0.0}, "`epsilon` must be positive"),
        ({"hops": 0}, "`hops` must be at least 1"),
        ({"every": 0}, "`every` must be at least 1"),
        ({"delta": 0.0}, "`delta` must be above 0"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    ledger: Ledger, options: dict[str, Any], message: str
) -> None:
    grant(ledger)
    with pytest.raises(InputError, match=message):
        forecast_fits(ledger, **{"population": "customers", "epsilon": 1.0, **options})
