"""The price of several records that leave together: group privacy, as tight as it is known.

A guarantee for one record says nothing exact about ``g`` of them, such as everybody who withdrew in
a year. Two bounds hold for the composition that was released, and the smaller one is returned.

- *By the mechanisms.* Sums move by at most ``g`` sensitivities (the triangle inequality over a
  chain of neighbours), so Gaussian and Laplace noise counts as a g-th of it. Of ``g`` records a
  Poisson batch has ``K ~ Binomial(g, q)``, whose clipped gradients move a step by at most K clips:
  a mixture of Gaussians (Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via
  mixture of Gaussians mechanisms"). Each record's own response is an event of its own.
- *By the curve alone.* If one record is hidden with ``delta(e)`` at every epsilon ``e``, then ``g``
  are with ``delta(e) (exp(g e) - 1) / (exp(e) - 1)`` at ``g e`` (Vadhan 2017, lemma 2.2).

Where people are in groups that compose in parallel, the ``g`` may be of any: every split is priced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import binom

from gapgnn.errors import check_integer, check_number
from gapgnn.privacy import RelationLike, parse_relation
from gapgnn.privacy.accounting.accountants import account
from gapgnn.privacy.accounting.events import (
    Composition,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    group_of,
    option_of,
)
from gapgnn.privacy.accounting.tradeoff import privacy_profile

# Where the second bound is looked for: epsilon of one record.
_PLACES = np.geomspace(1e-4, 1e2, 2000)


def group_epsilon(
    events: Sequence[Event], delta: float, *, people: int, relation: RelationLike = "add-remove"
) -> float:
    """Return an epsilon at which a composition hides ``people`` records that leave together.

    Args:
        events: what was released.
        delta: failure probability, above 0.
        people: how many records leave, one after the other or at once.
        relation: in which two neighbours differ in one record.

    >>> round(group_epsilon([Gaussian(4.0)], 1e-5, people=1), 3)
    0.926
    >>> round(group_epsilon([Gaussian(4.0)], 1e-5, people=3), 3)
    3.147
    """
    check_integer("people", people, at_least=1)
    check_number("delta", delta, above=0, below=1)
    neighbours = parse_relation(relation)
    if people == 1:
        return account(events, delta, relation=neighbours).epsilon
    profile = privacy_profile([(tuple(events), 1)], relation=neighbours)
    # In logarithms: the factor is beyond a float soon.
    factor = np.log(np.expm1(np.minimum(people * _PLACES, 700.0))) - np.log(np.expm1(_PLACES))
    factor = np.where(people * _PLACES > 700.0, math.inf, factor)
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = np.log(profile.deltas(_PLACES)) + factor <= math.log(delta)
    by_curve = people * float(_PLACES[np.argmax(fits)]) if fits.any() else math.inf
    cases = list(_splits(events, people, contributions=neighbours.contributions))
    if None in cases:
        return by_curve
    by_mechanism = max(
        account(case, delta, relation=neighbours).epsilon for case in cases if case is not None
    )
    return min(by_mechanism, by_curve)


def _splits(
    events: Sequence[Event], people: int, *, contributions: int
) -> Iterator[Composition | None]:
    """Yield what some people are in together, for every option and split over groups.

    None stands for an event of which no bound for several records is known.
    """
    groups = sorted({group_of(event) for event in events} - {""}) or [""]
    options = sorted({option_of(event) for event in events} - {0}) or [0]
    for counts in itertools.product(range(people + 1), repeat=len(groups)):
        if sum(counts) != people:
            continue
        number = {**dict(zip(groups, counts, strict=True)), "": people}
        for option in options:
            chosen = [event for event in events if option_of(event) in (0, option)]
            found = [
                _of_several(event, number[group_of(event)], contributions)
                for event in chosen
                if number[group_of(event)]
            ]
            whole = tuple(event for event in found if event is not None)
            yield whole if len(whole) == len(found) else None


def _of_several(event: Event, people: int, contributions: int) -> Event | None:
    """Return the event of which one record is as well hidden as several are by the given one."""
    if isinstance(event, Gaussian | Laplace):
        noise = event.noise_multiplier / people
        return replace(event, noise_multiplier=noise, group="", option=0)
    if isinstance(event, LabelResponse):
        return replace(event, count=people * event.count)
    if isinstance(event, PoissonGaussian) and contributions == 1:
        shares = binom.pmf(np.arange(people + 1), people, event.sampling_rate)
        return MixtureOfGaussians(
            event.noise_multiplier,
            tuple(map(float, range(people + 1))),
            tuple((shares / shares.sum()).tolist()),
            steps=event.steps,
        )
    return None
