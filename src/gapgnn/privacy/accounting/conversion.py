"""Events of other libraries: dp_accounting's ``DpEvent`` and the histories of Opacus' accountants.

A conversion keeps the price. What has no counterpart of the same price is refused with the reason,
never approximated. Two conventions differ under ``replace`` and are translated. There the other
library counts Gaussian and Laplace noise in the largest norm of one record, and an event here in
the distance of two records, which is twice as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gapgnn.errors import InputError, PrivacyError, UnavailableError
from gapgnn.privacy import RelationLike, parse_relation
from gapgnn.privacy.accounting.candidates import BINOMIAL, NEGATIVE_BINOMIAL, POISSON
from gapgnn.privacy.accounting.events import (
    EpsilonDelta,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    PrivateSelection,
    RandomisedResponse,
    group_of,
    option_of,
)


def to_dp_accounting(events: Sequence[Event], *, relation: RelationLike = "add-remove") -> Any:
    """Return a composition as one ``DpEvent`` of dp_accounting.

    Its accountants price it under ``ADD_OR_REMOVE_ONE`` for ``add-remove``, and under
    ``REPLACE_ONE`` for ``replace``. An edge is added or removed as well. dp_accounting prices
    randomised response under ``REPLACE_ONE`` and ``REPLACE_SPECIAL`` alone.

    Args:
        events: what was released.
        relation: under which they are accounted.

    >>> to_dp_accounting([Gaussian(2.0)])
    ComposedDpEvent(events=[GaussianDpEvent(noise_multiplier=2.0)])
    """
    from dp_accounting import dp_event as library

    both = parse_relation(relation).contributions
    found: list[Any] = []
    for event in events:
        _check_plain(event)
        if isinstance(event, RandomisedResponse | LabelResponse):
            # Its accountants count a response once, however often it is composed with itself.
            found += [_response(library, event)] * event.times
            continue
        one = _one(library, event, both)
        found.append(one if event.times == 1 else library.SelfComposedDpEvent(one, event.times))
    return library.ComposedDpEvent(found)


def _selection(library: Any, event: PrivateSelection, both: int) -> Any:
    """Return a selection whose candidates all make the same releases."""
    if event.distribution == BINOMIAL or len(event.candidates) > 1:
        raise InputError(
            "dp_accounting has no selection with a binomial number of candidates or of candidates "
            f"with different releases. Got {event.number} of {len(event.candidates)}."
        )
    (candidate,) = event.candidates
    parts = to_dp_accounting(candidate, relation="replace" if both == 2 else "add-remove")
    shape = math.inf if event.distribution == POISSON else event.shape
    return library.RepeatAndSelectDpEvent(parts, event.mean, shape)


def _check_plain(event: object) -> None:
    if not isinstance(event, Event):
        raise InputError(f"an event must be one of gapgnn.accounting. Got {event!r}.")
    if group_of(event) or option_of(event):
        raise InputError(
            "events of groups or options have no counterpart elsewhere: convert the events of each "
            f"group or option alone. Got {event!r} of group {group_of(event)!r}."
        )


def _one(library: Any, event: Event, both: int) -> Any:
    """Return one release of an event; ``both`` is 2 where noise meets two records' distance."""
    if isinstance(event, Gaussian):
        return library.GaussianDpEvent(event.noise_multiplier * both)
    if isinstance(event, Laplace):
        return library.LaplaceDpEvent(event.noise_multiplier * both)
    if isinstance(event, PoissonGaussian):
        noisy = library.GaussianDpEvent(event.noise_multiplier)
        return library.PoissonSampledDpEvent(event.sampling_rate, noisy)
    if isinstance(event, MixtureOfGaussians):
        return library.MixtureOfGaussiansDpEvent(
            event.noise_multiplier, list(event.sensitivities), list(event.probabilities)
        )
    if isinstance(event, PrivateSelection):
        return _selection(library, event, both)
    if isinstance(event, EpsilonDelta):
        event_class = getattr(library, "EpsilonDeltaDpEvent", None)
        if event_class is None:
            raise UnavailableError(
                "the installed dp_accounting has no event of an epsilon and a delta "
                "(EpsilonDeltaDpEvent). Install a version that has it, or leave the event out."
            )
        return event_class(event.epsilon, event.delta)
    raise InputError(f"a {type(event).__name__} event has no counterpart in dp_accounting.")


def _response(library: Any, event: RandomisedResponse | LabelResponse) -> Any:
    if isinstance(event, LabelResponse):
        return library.RandomizedResponseDpEvent(event.other * event.classes, event.classes)
    if event.drop != event.add:
        raise InputError(
            "dp_accounting knows symmetric randomised response alone. "
            f"Got drop {event.drop!r} and add {event.add!r}."
        )
    return library.RandomizedResponseDpEvent(2 * event.drop, 2)


def from_dp_accounting(event: Any, *, relation: RelationLike = "add-remove") -> list[Event]:
    """Return the events that a ``DpEvent`` of dp_accounting is composed of.

    Args:
        event: an event, a composition of events, or an ``EpsilonDeltaDpEvent``.
        relation: under which it is to be accounted.

    >>> from dp_accounting import dp_event
    >>> step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
    >>> from_dp_accounting(dp_event.SelfComposedDpEvent(step, 100))
    [PoissonGaussian(noise_multiplier=1.0, sampling_rate=0.01, steps=100, label='')]
    """
    return _read(event, 1, parse_relation(relation).contributions)


def _read(event: Any, count: int, both: int) -> list[Event]:
    name = type(event).__name__
    if name == "NoOpDpEvent":
        return []
    if name == "ComposedDpEvent":
        return [one for part in event.events for one in _read(part, count, both)]
    if name == "SelfComposedDpEvent":
        return _read(event.event, count * event.count, both)
    if name == "NonPrivateDpEvent":
        raise PrivacyError("a NonPrivateDpEvent has no finite price and cannot be accounted.")
    reader = _READERS.get(name)
    found = None if reader is None else reader(event, count, both)
    if found is None:
        inner = getattr(event, "event", None)
        of = "" if inner is None else f" of a {type(inner).__name__}"
        raise InputError(
            f"{name}{of} has no counterpart here: use an `EpsilonDelta` event with what is proved "
            "of it."
        )
    return found


def _sampled(event: Any, count: int, both: int) -> list[Event] | None:
    if type(event.event).__name__ != "GaussianDpEvent":
        return None
    rate = event.sampling_probability
    return [PoissonGaussian(event.event.noise_multiplier, rate, count)] if rate else []


def _read_response(event: Any, count: int, both: int) -> list[Event]:
    buckets, other = event.num_buckets, event.noise_parameter / event.num_buckets
    if buckets == 1:
        return []
    if buckets == 2:
        return [RandomisedResponse(other, other, count)]
    return [LabelResponse(buckets, other, count)]


def _read_selection(event: Any, count: int, both: int) -> list[Event]:
    candidate = tuple(_read(event.event, 1, both))
    if not candidate:
        return []
    is_poisson = math.isinf(event.shape)
    shape, name = (0.0, POISSON) if is_poisson else (event.shape, NEGATIVE_BINOMIAL)
    return [PrivateSelection((candidate,), event.mean, shape, name)] * count


_READERS: Mapping[str, Callable[[Any, int, int], list[Event] | None]] = {
    "GaussianDpEvent": lambda e, count, both: [Gaussian(e.noise_multiplier / both, count)],
    "LaplaceDpEvent": lambda e, count, both: [Laplace(e.noise_multiplier / both, count)],
    "PoissonSampledDpEvent": _sampled,
    "RandomizedResponseDpEvent": _read_response,
    "MixtureOfGaussiansDpEvent": lambda e, count, both: [
        MixtureOfGaussians(
            e.standard_deviation, tuple(e.sensitivities), tuple(e.sampling_probs), count
        )
    ],
    "RepeatAndSelectDpEvent": _read_selection,
    "EpsilonDeltaDpEvent": lambda e, count, both: (
        [EpsilonDelta(e.epsilon, e.delta, count)] if e.epsilon or e.delta else []
    ),
}


def to_opacus(events: Sequence[Event]) -> list[tuple[float, float, int]]:
    """Return a composition as the history of an Opacus accountant.

    Its entries are (noise multiplier, sample rate, steps) under ``add-remove``, the same for the
    RDP, the PRV and the GDP accountant: ``accountant.history = to_opacus(events)``.

    >>> to_opacus([PoissonGaussian(1.0, sampling_rate=0.01, steps=100), Gaussian(2.0)])
    [(1.0, 0.01, 100), (2.0, 1.0, 1)]
    """
    found: list[tuple[float, float, int]] = []
    for event in events:
        _check_plain(event)
        if not isinstance(event, Gaussian | PoissonGaussian):
            raise InputError(
                "Opacus accounts Gaussian noise on Poisson batches and on whole answers alone. "
                f"Got a {type(event).__name__} event."
            )
        rate = event.sampling_rate if isinstance(event, PoissonGaussian) else 1.0
        found.append((event.noise_multiplier, rate, event.times))
    return found


def from_opacus(history: Any) -> list[Event]:
    """Return the events of an Opacus accountant under ``add-remove``.

    Args:
        history: an accountant, its ``state_dict()``, or its history: (noise multiplier, sample
            rate, steps) for each run of equal steps.

    >>> from_opacus([(1.0, 0.01, 100)])
    [PoissonGaussian(noise_multiplier=1.0, sampling_rate=0.01, steps=100, label='')]
    """
    entries: Any = history.get("history") if isinstance(history, Mapping) else history
    entries = getattr(entries, "history", entries)
    found: list[Event] = []
    try:
        for noise, rate, steps in entries:
            if rate == 1:
                found.append(Gaussian(noise, steps))
            else:
                found.append(PoissonGaussian(noise, rate, steps))
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "`history` must be an accountant of Opacus or its (noise multiplier, sample rate, "
            f"steps) entries. Got {history!r}."
        ) from None
    return found
