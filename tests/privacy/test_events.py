import json
import math

import pytest

from gapgnn.errors import InputError
from gapgnn.privacy.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
)

EVENTS = [
    Gaussian(2.0, count=3, label="aggregation"),
    PoissonGaussian(1.5, sampling_rate=0.01, steps=100, label="encoder"),
    MixtureOfGaussians(4.0, (0.0, 1.0, 3.0), (0.9, 0.09, 0.01), steps=7),
    Laplace(0.5, count=2),
    RandomisedResponse(0.2, 0.001, count=4),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_survives_json_and_is_a_value(event):
    copy = Event.from_dict(json.loads(json.dumps(event.to_dict())))
    assert copy == event
    assert hash(copy) == hash(event)
    assert type(event).from_dict(event.to_dict()) == event
    with pytest.raises(AttributeError):
        event.label = "other"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), "zero noise hides nothing"),
        (lambda: Gaussian(-1.0), "`noise_multiplier` must be at least 0. Got -1.0."),
        (lambda: Gaussian(math.nan), "`noise_multiplier` must be a number"),
        (lambda: Gaussian(math.inf), "`noise_multiplier` must be finite"),
        (lambda: Gaussian("1"), "`noise_multiplier` must be a number"),
        (lambda: Gaussian(1.0, count=0), "leave out an event that never happens"),
        (lambda: Gaussian(1.0, count=-2), "`count` must be at least 1"),
        (lambda: Gaussian(1.0, count=1.5), "`count` must be a whole number"),
        (lambda: Gaussian(1.0, label=3), "`label` must be text"),
        (lambda: PoissonGaussian(1.0, 1.01, 5), "`sampling_rate` must be above 0 and at most 1"),
        (lambda: PoissonGaussian(1.0, 0.0, 5), "`sampling_rate` must be above 0"),
        (lambda: PoissonGaussian(1.0, math.nan, 5), "`sampling_rate` must be a number"),
        (lambda: PoissonGaussian(1.0, 0.1, 0), "`steps` must be at least 1"),
        (lambda: PoissonGaussian(0.0, 0.1, 5), "`noise_multiplier` must be positive"),
        (lambda: MixtureOfGaussians(1.0, (1.0,), (0.5, 0.5), 1), "one entry for each"),
        (lambda: MixtureOfGaussians(1.0, (), (), 1), "at least one"),
        (lambda: MixtureOfGaussians(1.0, (0, 1), (0.5, 0.4), 1), "must sum to 1"),
        (lambda: MixtureOfGaussians(1.0, (-1, 1), (0.5, 0.5), 1), "`sensitivities`"),
        (lambda: Laplace(0), "zero noise hides nothing"),
        (lambda: RandomisedResponse(0.0, 0.5), "`drop` must be above 0"),
        (lambda: RandomisedResponse(0.5, 1.0), "`add` must be above 0 and below 1"),
        (lambda: RandomisedResponse.symmetric(0.0), "`epsilon`"),
    ],
)
def test_an_impossible_event_says_why(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "data",
    [
        {"event": "Gausian", "noise_multiplier": 1.0},
        {"noise_multiplier": 1.0},
        {"event": "Gaussian"},
        {"event": "Gaussian", "noise_multiplier": 1.0, "sigma": 2.0},
        {"event": "Gaussian", "noise_multiplier": 0.0},
        "Gaussian",
    ],
)
def test_a_damaged_record_is_refused(data):
    with pytest.raises(InputError):
        Event.from_dict(data)


def test_a_record_of_another_sort_is_refused():
    with pytest.raises(InputError, match="must be a Laplace"):
        Laplace.from_dict(Gaussian(1.0).to_dict())


def test_scaling_changes_the_noise_and_nothing_else():
    event = PoissonGaussian(0.5, sampling_rate=0.1, steps=3, label="encoder")
    assert event.scaled(4.0) == PoissonGaussian(2.0, 0.1, 3, "encoder")


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 30.0, 600.0])
def test_symmetric_response_has_the_epsilon_it_was_asked_for(epsilon):
    assert RandomisedResponse.symmetric(epsilon).pair("directed").pure_epsilon == pytest.approx(
        epsilon, rel=1e-9
    )


def test_response_epsilon_is_its_worst_ratio():
    event = RandomisedResponse(drop=0.3, add=0.001)
    assert event.pair("directed").pure_epsilon == pytest.approx(math.log(0.7 / 0.001))
