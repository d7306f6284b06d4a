"""Randomised response on classes: its distribution, its price, and who says what."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from gapgnn.errors import InputError
from gapgnn.privacy.accounting import Event, LabelResponse, account
from gapgnn.privacy.mechanisms import Coins, randomised_labels
from gapgnn.privacy.mechanisms import labels as mechanism
from gapgnn.rng import NoiseKey

COUNT = 200_000
KEY = NoiseKey.insecure(7)


def shares_of(said: torch.Tensor, classes: int) -> np.ndarray:
    return np.bincount(said.numpy(), minlength=classes) / len(said)


def is_near(found: np.ndarray, wanted: list[float]) -> bool:
    """Within six standard deviations of each share: never by chance."""
    probabilities = np.array(wanted)
    return bool((np.abs(found - probabilities) < 6 * np.sqrt(probabilities / COUNT)).all())


def response_shares(epsilon: float, classes: int, label: int, noise: str) -> np.ndarray:
    said = randomised_labels(
        np.full(COUNT, label),
        np.ones(COUNT, dtype=bool),
        LabelResponse.of(epsilon, classes),
        key=KEY,
        noise=noise,
    )
    return shares_of(said, classes)


@pytest.mark.parametrize("noise", ["safe", "fast"])
@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 2), (1.0, 6), (4.0, 7)])
def test_the_true_class_is_e_to_the_epsilon_times_as_likely(epsilon, classes, noise):
    other = 1 / (math.exp(epsilon) + classes - 1)
    wanted = [other] * (classes - 1) + [math.exp(epsilon) * other]
    found = response_shares(epsilon, classes, classes - 1, noise)
    assert is_near(found, wanted)
    # Planted: kept as if the budget were a tenth larger.
    larger = response_shares(1.1 * epsilon, classes, classes - 1, noise)
    assert not is_near(larger, wanted)


@pytest.mark.parametrize("epsilon", [1.0, 12.0, 25.0, 40.0])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_a_class_is_exchanged_at_random_no_less_often_than_was_charged(
    epsilon, classes, monkeypatch
):
    tossed = []
    monkeypatch.setattr(
        Coins,
        "each",
        lambda self, count, share, *path: tossed.append(share) or np.ones(count, bool),
    )
    response = LabelResponse.of(epsilon, classes)
    randomised_labels(np.zeros(3, dtype=np.int64), np.ones(3, dtype=bool), response, key=KEY)
    # Coins are exact to multiples of 2**-64.
    exact = classes * Fraction(response.other)
    words = round(tossed[0] * 2.0**64)
    assert 0 <= words - exact * 2**64 <= max(1, 2.0**-50 * words)


def test_who_has_no_label_says_a_uniformly_random_class_and_the_silent_nothing():
    speaks = np.ones(COUNT, dtype=bool)
    nobody = np.full(COUNT, -1)
    response = LabelResponse.of(3.0, 5)
    assert is_near(shares_of(randomised_labels(nobody, speaks, response, key=KEY), 5), [0.2] * 5)
    assert (randomised_labels(nobody, ~speaks, response, key=KEY) == mechanism.SILENT).all()


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 40.0])
def test_its_price_is_the_pure_epsilon_under_both_relations(relation, classes, epsilon):
    response = LabelResponse.of(epsilon, classes)
    spent = account([response], 0.0, relation=relation).epsilon
    assert spent == pytest.approx(epsilon, rel=1e-9)
    assert Event.from_dict(response.to_dict()) == response


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_presence_is_no_easier_to_see_than_the_class(classes, epsilon):
    """The pair dominates (keep, other, ...) against the uniform class of an absent person."""
    response = LabelResponse.of(epsilon, classes)
    there = np.array([response.keep] + [response.other] * (classes - 1))
    absent = np.full(classes, 1 / classes)
    pair = response.pair("add-remove")
    upper, lower = np.exp(pair.upper), np.exp(pair.lower)
    for ratio in np.exp(np.linspace(0, epsilon, 9)):
        worst = np.maximum(upper - ratio * lower, 0).sum() + 1e-12
        assert np.maximum(there - ratio * absent, 0).sum() <= worst
        assert np.maximum(absent - ratio * there, 0).sum() <= worst


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 41.0, math.inf])
def test_a_budget_without_coins_is_refused(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        LabelResponse.of(epsilon, 3)
