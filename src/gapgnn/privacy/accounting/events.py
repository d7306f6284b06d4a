"""What was released: immutable descriptions of mechanisms, each knowing its dominating pair.

Mechanisms emit events, the ledger stores them, :mod:`gapgnn.privacy.accounting.accountants` prices
their pairs (privacy page, section 3). A *noise multiplier* is the standard deviation of the noise
over the distance between two neighbours that the event's docstring names, so an event says nothing
about degrees or clipping norms. The same classes serve as calibration templates: there the
multiplier is a ratio to the one free number (:mod:`gapgnn.privacy.accounting.calibration`).
"""

from __future__ import annotations

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy import AddRemove, Relation, RelationLike, parse_relation
from gapgnn.privacy.accounting.candidates import CandidateNumber
from gapgnn.privacy.accounting.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Numbers,
    Pair,
    SelectionPair,
)
from gapgnn.registration import load_registered

# Its squared inverse, the price of a Gaussian release, is far from where floats end.
MOST_NOISE = 1e100
# Numbers of touched examples that are rarer than this together are left out. It adds that much to
# the delta of a step, twenty orders of magnitude below the least delta that is accepted.
RAREST = 1e-40

EventType = TypeVar("EventType", bound="Event")

_EVENT_CLASSES: dict[str, type[Event]] = {}
# What ledgers of version 3, with one field for group and option, hold where there is an option.
_ROLE_WITH_OPTION = re.compile(r"(|training|others), option ([1-9][0-9]?)")


class Event(ABC):
    """What one mechanism released: a frozen dataclass that knows its dominating pair.

    A subclass is known by its name from then on, in ledgers, checkpoints and cards; its fields are
    numbers, texts and tuples of numbers. One with a field ``noise_multiplier`` can be calibrated
    (docs/how-to/extending.md).

    >>> @dataclass(frozen=True)
    ... class Vote(Event):
    ...     epsilon: float
    ...     times: int = 1
    ...     label: str = ""
    ...
    ...     def pair(self, relation):
    ...         return DiscretePair.of_pure(self.epsilon)
    >>> Event.from_dict(Vote(0.5).to_dict())
    Vote(epsilon=0.5, times=1, label='')
    """

    label: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__name__.startswith("_"):
            return
        known = _EVENT_CLASSES.setdefault(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(
                f"an event must have a name of its own. Got {cls.__name__!r} of {cls.__module__}; "
                f"{known.__module__} has one too."
            )
        _EVENT_CLASSES[cls.__name__] = cls

    @abstractmethod
    def pair(self, relation: Relation) -> Pair:
        """Return the dominating pair of one release under a run's neighbouring relation."""

    @property
    @abstractmethod
    def times(self) -> int:
        """How many such releases there are, each with fresh noise."""

    def scaled(self: EventType, factor: float) -> EventType:
        """Return the same event with its noise multiplied by ``factor``."""
        if not hasattr(self, "noise_multiplier"):
            raise InputError(
                "`template` must have events with a noise multiplier. "
                f"Got a {type(self).__name__} event: pass it as `fixed`."
            )
        return replace(self, noise_multiplier=self.noise_multiplier * factor)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the name of the event's class and its fields."""
        values = {known.name: getattr(self, known.name) for known in fields(self)}  # type: ignore[arg-type]
        for name in ("group", "option"):
            if not values.get(name):
                values.pop(name, None)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {"event": type(self).__name__, **plain}

    @classmethod
    def from_dict(cls: type[EventType], data: dict[str, Any]) -> EventType:
        """Rebuild an event of this class from :meth:`to_dict`, validating every value again.

        >>> Event.from_dict(Gaussian(2.0, count=3).to_dict())
        Gaussian(noise_multiplier=2.0, count=3, label='')
        """
        if not isinstance(data, dict):
            raise InputError(f"an event must be an object. Got {data!r}.")
        if data.get("event") not in _EVENT_CLASSES:
            # A package that brings a method brings its events.
            load_registered("gapgnn.methods")
        event_class = _EVENT_CLASSES[check_choice("event", data.get("event"), _EVENT_CLASSES)]
        if not issubclass(event_class, cls):
            raise InputError(f"`event` must be a {cls.__name__}. Got {data.get('event')!r}.")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        del values["event"]
        known = {one.name for one in fields(event_class)}  # type: ignore[arg-type]
        named = {"group", "option"}
        if "role" in values and named <= known and not named & set(values):
            values |= _of_role(values.pop("role"))
        if unknown := sorted(set(values) - known):
            raise InputError(f"a {event_class.__name__} event has no field {unknown[0]!r}.")
        try:
            return event_class(**values)
        except TypeError as error:
            raise InputError(f"a {event_class.__name__} event is incomplete: {error}.") from None


@dataclass(frozen=True)
class _Noisy(Event):
    """An event whose noise can be scaled.

    ``group`` names the people whose records it reads, where those of other groups are not read.
    Empty: everybody's. ``option`` is the number, from 1, of the one of several alternatives that it
    belongs to, where an earlier release decides which of them happens; 0: it happens under all. See
    :func:`parallel_compositions`. Both are compared as they are: no part of a name has a meaning.
    """

    noise_multiplier: float
    group: str = field(default="", kw_only=True, repr=False)
    option: int = field(default=0, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        number = check_number("noise_multiplier", self.noise_multiplier, at_least=0)
        if number > MOST_NOISE:
            raise InputError(
                f"`noise_multiplier` must be at most {MOST_NOISE:g}: what a release with more "
                f"noise costs is too small to be added up. Got {number!r}."
            )
        if number == 0:
            raise InputError(
                "`noise_multiplier` must be positive: zero noise hides nothing. Got 0.0."
            )
        option = check_integer("option", self.option, at_least=0)
        _store(self, noise_multiplier=number, option=option)
        _label(self.label)
        _label(self.group, name="group")


@dataclass(frozen=True)
class _Counted(_Noisy):
    """Equal releases with noise on a whole answer."""

    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _store(self, count=_count("count", self.count))

    @property
    def times(self) -> int:
        """One for each of ``count``."""
        return self.count


@dataclass(frozen=True)
class Gaussian(_Counted):
    """``count`` releases with Gaussian noise: one for each hop of aggregation.

    Each is ``f(G) + N(0, s^2 I)`` with multiplier ``m = s / sensitivity``, the L2 sensitivity being
    that of the run's own relation (2 sqrt(D) under ``replace``: it is not doubled again). Its worst
    case is N(0, 1) against N(1/m, 1); ``count`` of them are exactly N(0, 1) against
    N(sqrt(count)/m, 1).

    >>> Gaussian(2.0, count=2).to_dict()
    {'event': 'Gaussian', 'noise_multiplier': 2.0, 'count': 2, 'label': ''}
    """

    def pair(self, relation: Relation) -> Pair:
        """Return N(1/m, 1) against N(0, 1)."""
        return GaussianPair.shifted(1.0 / self.noise_multiplier)


@dataclass(frozen=True)
class PoissonGaussian(_Noisy):
    """``steps`` sums over Poisson batches with Gaussian noise: DP-SGD.

    Every record joins a batch independently with probability q = ``sampling_rate`` and contributes
    a vector of norm at most C; the noise has standard deviation ``m C``. Worst case of one step, in
    units of C: under ``add-remove`` (1-q) N(0, m^2) + q N(1, m^2) against N(0, m^2), in both
    directions; under ``replace`` (1-q) N(0, m^2) + q N(-1, m^2) against (1-q) N(0, m^2) + q N(1,
    m^2). The multiplier is counted in C under both.

    >>> PoissonGaussian(1.0, sampling_rate=1.5, steps=10)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `sampling_rate` must be above 0 and at most 1. Got 1.5.
    """

    sampling_rate: float
    steps: int
    label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = check_number("sampling_rate", self.sampling_rate, above=0, at_most=1)
        _store(self, sampling_rate=rate, steps=_count("steps", self.steps))

    @property
    def times(self) -> int:
        """One for each step."""
        return self.steps

    def pair(self, relation: Relation) -> Pair:
        """Return the worst case of one step; at rate 1 it is a plain Gaussian release."""
        scale, rate = 1.0 / self.noise_multiplier, self.sampling_rate
        distance = -scale if relation.contributions == 2 else 0.0
        if rate == 1.0:
            return GaussianPair((scale,), (1.0,), (distance,))
        weights = (1.0 - rate, rate)
        if relation.contributions == 2:
            return GaussianPair((0.0, scale), weights, (0.0, distance), weights)
        return GaussianPair((0.0, scale), weights)


@dataclass(frozen=True)
class MixtureOfGaussians(_Noisy):
    """``steps`` noisy sums that a record shifts by a random amount: SAGE-NDP.

    Privacy page, section 5. With Poisson batches the number of touched examples is binomial, so
    the shift is ``sensitivities[i]`` with probability ``probabilities[i]``. Worst case of one step,
    for noise of standard deviation m = ``noise_multiplier`` in the same unit as the sensitivities
    (the clipping norm): ``sum_i p_i N(s_i, m^2)`` against ``N(0, m^2)``, in both directions.

    >>> event = MixtureOfGaussians(4.0, (0, 1, 3), (0.9, 0.09, 0.01), steps=5)
    >>> event.scaled(2.0).noise_multiplier
    8.0
    """

    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]
    steps: int
    label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        shifts = tuple(check_number("sensitivities", s, at_least=0) for s in self.sensitivities)
        weights = tuple(
            check_number("probabilities", p, at_least=0, at_most=1) for p in self.probabilities
        )
        if not shifts or len(shifts) != len(weights):
            raise InputError(
                "`probabilities` must have one entry for each of `sensitivities`, at least one. "
                f"Got {len(weights)} and {len(shifts)}."
            )
        if not math.isclose(math.fsum(weights), 1.0, rel_tol=0, abs_tol=1e-9):
            raise InputError(f"`probabilities` must sum to 1. Got {math.fsum(weights)!r}.")
        _store(self, sensitivities=shifts, probabilities=weights, steps=_count("steps", self.steps))

    @property
    def times(self) -> int:
        """One for each step."""
        return self.steps

    def pair(self, relation: Relation) -> Pair:
        """Return the worst case of one step; under ``replace`` none is known."""
        if relation.contributions == 2:
            raise InputError(
                "a mixture of Gaussians has no accounting under `replace`. "
                "Use relation 'add-remove'."
            )
        scale, total = 1.0 / self.noise_multiplier, sum(self.probabilities)
        parts = zip(self.sensitivities, self.probabilities, strict=True)
        kept = [(shift * scale, weight / total) for shift, weight in parts if weight > 0]
        means, weights = zip(*kept, strict=True)
        return GaussianPair(means, weights)


@dataclass(frozen=True)
class SubgraphGaussian(_Noisy):
    """``steps`` noisy sums over Poisson batches of examples that share records.

    Each example is a root with the records that reach it along few arcs, and is clipped as one
    (:mod:`gapgnn.privacy.dpsgd.rooted`). A root joins a batch with probability q =
    ``sampling_rate``. A record enters the examples of ``reach[i]`` other roots through chains of
    ``i + 1`` arcs, and each arc is kept with probability ``keep``, drawn anew for every root and
    step. So at most ``K = sum_i Binomial(reach[i], q keep^(i + 1))`` examples of a batch hold the
    record, and the ``own`` examples of the record itself another ``O ~ Binomial(own, q)``.

    Worst case of one step, in clips, for noise of standard deviation m = ``noise_multiplier``::

        P = law of N(s (O + K), m^2)  against  Q = law of N(-s K, m^2)

    with ``s`` = 1 where every arc is kept, and ``s`` = 2 where some are not: an example that the
    record does not enter then has a gradient of its own in the batch, and the one with the record
    may be two clips from it. Under ``replace`` two records enter examples, and own ones are on both
    sides. The proof is Theorem 20 of the proofs page.

    >>> event = SubgraphGaussian(8.0, sampling_rate=0.5, reach=(1,), own=1, steps=3)
    >>> pair = event.pair(AddRemove())
    >>> pair.upper_means, pair.lower_means
    ((0.0, 0.125, 0.25), (0.0, -0.125))
    >>> [round(weight, 9) for weight in (*pair.upper_weights, *pair.lower_weights)]
    [0.25, 0.5, 0.25, 0.5, 0.5]
    """

    sampling_rate: float
    reach: tuple[int, ...]
    own: int
    steps: int
    keep: float = 1.0
    label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = check_number("sampling_rate", self.sampling_rate, above=0, at_most=1)
        keep = check_number("keep", self.keep, above=0, at_most=1)
        reach = tuple(check_integer("reach", count, at_least=0) for count in self.reach)
        own = check_integer("own", self.own, at_least=0, at_most=1)
        if not own + sum(reach):
            raise InputError("`reach` must be above 0 without an example of its own. Got none.")
        values = {"sampling_rate": rate, "keep": keep, "reach": reach, "own": own}
        _store(self, **values, steps=_count("steps", self.steps))

    @property
    def times(self) -> int:
        """One for each step."""
        return self.steps

    def pair(self, relation: Relation) -> Pair:
        """Return the worst case of one step: the two sides are opposed."""
        records = relation.contributions
        reach = tuple(records * count for count in self.reach)
        others = _touched(reach, self.sampling_rate, self.keep)
        step = (1.0 if self.keep == 1.0 else 2.0) / self.noise_multiplier
        own = self.own * self.sampling_rate
        means, weights = _mixture(others, own, step)
        # A record that is replaced has an example of its own in both graphs.
        opposed, opposed_weights = _mixture(others, own if records == 2 else 0.0, step)
        return GaussianPair(means, weights, tuple(0.0 - mean for mean in opposed), opposed_weights)


@dataclass(frozen=True)
class Laplace(_Counted):
    """``count`` releases with Laplace noise: the noisy density of LapGraph and ARR.

    The scale of the noise is ``noise_multiplier`` times the L1 sensitivity under the run's
    relation, so each release is (1 / noise_multiplier)-DP. Worst case: Laplace(0, m) against
    Laplace(1, m).

    >>> from gapgnn.privacy import Directed
    >>> Laplace(2.0).pair(Directed()).pure_epsilon
    0.5
    """

    def pair(self, relation: Relation) -> Pair:
        """Return the pair of Laplace noise."""
        return LaplacePair(1.0 / self.noise_multiplier)


@dataclass(frozen=True)
class RandomisedResponse(Event):
    """``count`` bits of one protected entity, each flipped at random and released.

    A 1 is reported as 0 with probability ``drop``, a 0 as 1 with probability ``add``. Neighbours
    differ in the bit, so the pair is Bernoulli(1 - drop) against Bernoulli(add), in both
    directions. Flip probabilities rather than their complements are stored because they stay exact
    when tiny.

    >>> from gapgnn.privacy import Directed
    >>> round(RandomisedResponse.symmetric(2.0).pair(Directed()).pure_epsilon, 9)
    2.0
    """

    drop: float
    add: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        drop = check_number("drop", self.drop, above=0, below=1)
        add = check_number("add", self.add, above=0, below=1)
        _store(self, drop=drop, add=add, count=_count("count", self.count))
        _label(self.label)

    @classmethod
    def symmetric(cls, epsilon: float, *, count: int = 1, label: str = "") -> RandomisedResponse:
        """Return the response that flips either bit with probability 1 / (1 + e^epsilon)."""
        check_number("epsilon", epsilon, above=0, at_most=700)
        flip = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
        return cls(drop=flip, add=flip, count=count, label=label)

    @property
    def times(self) -> int:
        """One for each bit."""
        return self.count

    def pair(self, relation: Relation) -> Pair:
        """Return Bernoulli(1 - drop) against Bernoulli(add)."""
        return DiscretePair(
            (math.log1p(-self.drop), math.log(self.drop)),
            (math.log(self.add), math.log1p(-self.add)),
        )


@dataclass(frozen=True)
class LabelResponse(Event):
    """``count`` classes of one protected entity, each kept or exchanged at random, and released.

    Of C = ``classes`` the true one comes out with probability 1 - (C - 1) ``other``, each of the
    others with ``other``. Neighbours under ``replace`` differ in the class: (keep, other, the rest)
    against (other, keep, the rest). Under ``add-remove`` whoever is not there releases a uniformly
    random class. That is the mean of the responses to all classes, and no hockey-stick divergence
    from a mean is larger than the largest from its parts (it is jointly convex), so the same pair
    dominates both relations.

    >>> round(LabelResponse.of(2.0, 6).pair(AddRemove()).pure_epsilon, 9)
    2.0
    """

    classes: int
    other: float
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        classes = check_integer("classes", self.classes, at_least=2)
        other = check_number("other", self.other, above=0, at_most=1 / classes)
        _store(self, classes=classes, other=other, count=_count("count", self.count))
        _label(self.label)

    @classmethod
    def of(cls, epsilon: float, classes: int, *, label: str = "") -> LabelResponse:
        """Return the response of a budget: the true class is e^epsilon times as likely.

        Beyond an epsilon of 40 its coins would need more than 64 bits.
        """
        check_number("epsilon", epsilon, above=0, at_most=40)
        check_integer("classes", classes, at_least=2)
        small = math.exp(-epsilon)
        return cls(classes, small / (1.0 + (classes - 1) * small), label=label)

    @property
    def keep(self) -> float:
        """The probability that the true class comes out."""
        return 1.0 - (self.classes - 1) * self.other

    @property
    def times(self) -> int:
        """One for each class that is released."""
        return self.count

    def pair(self, relation: Relation) -> Pair:
        """Return the responses to two different classes."""
        keep, other = math.log1p(-(self.classes - 1) * self.other), math.log(self.other)
        rest = (math.log((self.classes - 2) * self.other),) if self.classes > 2 else ()
        return DiscretePair((keep, other, *rest), (other, keep, *rest))


@dataclass(frozen=True)
class EpsilonDelta(Event):
    """``count`` releases of which nothing is known but that each is (epsilon, delta)-DP.

    For a mechanism of another library. What is known of its noise prices it lower: use the event of
    its noise where there is one.

    >>> from gapgnn.privacy import Directed
    >>> EpsilonDelta(0.5).pair(Directed()).pure_epsilon
    0.5
    """

    epsilon: float
    delta: float = 0.0
    count: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        # e^-700 is a float; a release of so large an epsilon hides nothing.
        epsilon = check_number("epsilon", self.epsilon, at_least=0, at_most=700)
        delta = check_number("delta", self.delta, at_least=0, below=1)
        if not epsilon and not delta:
            raise InputError("an event of epsilon 0 and delta 0 costs nothing: leave it out.")
        _store(self, epsilon=epsilon, delta=delta, count=_count("count", self.count))
        _label(self.label)

    @property
    def times(self) -> int:
        """One for each release."""
        return self.count

    def pair(self, relation: Relation) -> Pair:
        """Return the pair that dominates every mechanism of this epsilon and delta."""
        return DiscretePair.of_approximate(self.epsilon, self.delta)


@dataclass(frozen=True)
class PrivateSelection(Event):
    """The best of a random number of candidates, each with fresh noise.

    Every run draws its setting from a fixed distribution over ``candidates``, makes the releases of
    that setting, and is scored; what the score reads beyond those releases is one of them. The run
    with the best score is released, and neither the others nor their number. The number has the
    ``distribution`` of that ``mean`` and ``shape``
    (:class:`~gapgnn.privacy.accounting.candidates.CandidateNumber`).

    Under every relation the outcome is no easier to see through than the mixture of the
    candidate's privacy profile in :mod:`gapgnn.privacy.accounting.selection` (Theorem 21 of the
    proofs page; Papernot and Steinke 2022; Koskela, Redberg and Wang 2024).

    >>> ten = PrivateSelection(((Gaussian(6.617, count=2),),), mean=10.0, shape=1.0)
    >>> ten.number.gamma, ten.scaled(2.0).candidates[0][0].noise_multiplier
    (0.1, 13.234)
    """

    candidates: tuple[tuple[Event, ...], ...]
    mean: float
    shape: float = 1.0
    distribution: str = "truncated-negative-binomial"
    label: str = ""

    def __post_init__(self) -> None:
        settings = tuple(
            tuple(one if isinstance(one, Event) else Event.from_dict(one) for one in setting)
            for setting in self.candidates
        )
        if not settings or not all(settings):
            raise InputError("`candidates` must have at least one event each. Got none.")
        # The same releases are one setting, in a fixed order.
        settings = tuple(sorted(dict.fromkeys(settings), key=repr))
        number = CandidateNumber(self.distribution, self.mean, self.shape)
        _store(self, candidates=settings, mean=number.mean, shape=number.shape)
        _label(self.label)

    @property
    def number(self) -> CandidateNumber:
        """The distribution of the number of candidates."""
        return CandidateNumber(self.distribution, self.mean, self.shape)

    @property
    def times(self) -> int:
        """One candidate is released."""
        return 1

    def scaled(self, factor: float) -> PrivateSelection:
        """Return the selection with the noise of every candidate multiplied by ``factor``."""
        return replace(
            self, candidates=tuple(tuple(e.scaled(factor) for e in c) for c in self.candidates)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the events of every setting."""
        settings = [[event.to_dict() for event in setting] for setting in self.candidates]
        return {**super().to_dict(), "candidates": settings}

    def pair(self, relation: Relation) -> Pair:
        """Return the candidates with the distribution of their number."""
        return SelectionPair(self.candidates, relation, self.number)


Composition = tuple[Event, ...]


@dataclass(frozen=True)
class Merged:
    """A composition in its shortest equal form: one Gaussian, and the pairs of everything else.

    All Gaussian releases of a composition are exactly one Gaussian release: their squared shifts
    add up. Releases with equal pairs are one pair with a count. Both make every accountant faster
    and the result independent of the order in which events were recorded (privacy page, section 3).

    Attributes:
        shift: mu of the one Gaussian: N(0, 1) against N(mu, 1). 0 if there is none, and infinite if
            the noise is too small for a float.
        rest: every other pair and how often it is released, in a fixed order.
    """

    shift: float
    rest: tuple[tuple[Pair, int], ...]

    @property
    def is_gaussian(self) -> bool:
        """Whether the exact Gaussian curve describes the whole composition."""
        return not self.rest


def parallel_compositions(
    events: Sequence[Event], *, relation: RelationLike
) -> list[tuple[Composition, Relation]]:
    """Return the compositions of which the dearest is charged, each with its relation.

    Groups compose in parallel (privacy page, section 1). A person's group is a function of that
    person, so a record is in the releases of its own group and in those that read everybody. The
    guarantee is the dearest of these compositions, not their total. An adaptive choice releases one
    of its options, the same for all groups, so there is a composition for each option. Under
    ``replace`` the new record may be of another group than the old one. One of them is then removed
    and the other added, so Gaussian noise, whose multiplier counts two records there, meets half
    the distance. That is one more composition.

    >>> hops = [Gaussian(2.0, group="training"), Gaussian(1.0, group="others")]
    >>> for case, relation in parallel_compositions(hops, relation="replace"):
    ...     print([event.noise_multiplier for event in case], relation)
    [1.0] replace
    [2.0] replace
    [4.0, 2.0] add-remove
    """
    options = sorted({option_of(event) for event in events} - {0}) or [0]
    # A dict: options that release the same to a group are one case.
    cases: dict[tuple[Composition, Relation], None] = {}
    for case, other in group_cases(events, relation=relation):
        for option in options:
            chosen = tuple(event for event in case if option_of(event) in (0, option))
            cases[chosen, other] = None
    return list(cases)


def group_cases(
    events: Sequence[Event], *, relation: RelationLike
) -> list[tuple[Composition, Relation]]:
    """Return the composition that one record can be in per group, with all options.

    Under ``replace`` a pair of groups between which a record changes is one more case.
    """
    groups = sorted({group_of(event) for event in events} - {""})
    neighbours = parse_relation(relation)
    cases = [(_of_groups(events, [group]), neighbours) for group in groups or [""]]
    if neighbours.contributions == 2 and len(groups) > 1:
        of_all = [event for event in events if isinstance(event, _Noisy) and not event.group]
        if not all(isinstance(event, Laplace) for event in of_all):
            raise InputError(
                "beside events of some groups, an event of all must be Laplace under `replace`."
            )
        for pair in itertools.combinations(groups, 2):
            cases.append((_changing(_of_groups(events, pair)), AddRemove()))
    return cases


def _of_groups(events: Sequence[Event], groups: Sequence[str]) -> Composition:
    """Return what reads everybody or these groups."""
    return tuple(event for event in events if group_of(event) in ("", *groups))


def _changing(both: Composition) -> Composition:
    """Return what a record is in that leaves one group and comes to another.

    It is one composition: without groups, so that nobody takes it apart again.
    """
    if len({group_of(event) for event in both if isinstance(event, PoissonGaussian)}) > 1:
        # Subsampled noise has two directions, and what is known holds where all go the same way.
        raise InputError("Poisson batches of several groups have no accounting under `replace`.")
    halved = (event.scaled(2.0) if isinstance(event, Gaussian) else event for event in both)
    return tuple(
        replace(event, group="") if isinstance(event, _Noisy) else event for event in halved
    )


def group_of(event: Event) -> str:
    """Return the group whose records an event reads; empty: everybody's."""
    return event.group if isinstance(event, _Noisy) else ""


def option_of(event: Event) -> int:
    """Return the number of the option an event belongs to; 0: it happens under all."""
    return event.option if isinstance(event, _Noisy) else 0


def merge(events: Sequence[Event], *, relation: RelationLike) -> Merged:
    """Bring the composition that one record can be in to its shortest equal form.

    >>> merge([Gaussian(2.0, count=2), Gaussian(1.0)], relation="add-remove").shift == 1.5**0.5
    True
    """
    neighbours = parse_relation(relation)
    squares: list[float] = []
    rest: dict[Pair, int] = {}
    for event in events:
        if not isinstance(event, Event):
            raise InputError(f"an event must be one of gapgnn.privacy.accounting. Got {event!r}.")
        pair = event.pair(neighbours)
        if isinstance(pair, GaussianPair) and (shift := pair.shift) is not None:
            # The product overflows to infinity where a power would raise.
            squares.append(event.times * (shift * shift))
        else:
            rest[pair] = rest.get(pair, 0) + event.times
    return Merged(
        shift=math.sqrt(math.fsum(sorted(squares))), rest=tuple(sorted(rest.items(), key=repr))
    )


def compose(*releases: Event | Sequence[Event]) -> list[Event]:
    """Return several releases on the same records as one composition in its shortest equal form.

    All Gaussian releases are exactly one, whose inverse squared multiplier is the sum of theirs.
    Equal events are one with a count. Groups and options stay apart, and labels are dropped. The
    price is the same under every relation.

    Args:
        releases: events, or lists of them.

    >>> compose([Gaussian(2.0, count=2), Laplace(3.0)], [Gaussian(2.0, count=2), Laplace(3.0)])
    ... # doctest: +NORMALIZE_WHITESPACE
    [Gaussian(noise_multiplier=1.0, count=1, label=''),
     Laplace(noise_multiplier=3.0, count=2, label='')]
    """
    flat = [e for one in releases for e in ([one] if isinstance(one, Event) else one)]
    squares: dict[tuple[str, int], float] = {}
    counts: dict[Event, int] = {}
    for event in flat:
        if not isinstance(event, Event):
            raise InputError(f"an event must be one of gapgnn.accounting. Got {event!r}.")
        if isinstance(event, Gaussian):
            place = (event.group, event.option)
            scale = 1.0 / event.noise_multiplier
            squares[place] = squares.get(place, 0.0) + event.count * scale * scale
        else:
            single = replace(event, label="", **dict.fromkeys(_counter(event), 1))  # type: ignore[type-var]
            counts[single] = counts.get(single, 0) + (event.times if _counter(event) else 1)
    merged: list[Event] = [
        Gaussian(1.0 / math.sqrt(square), group=group, option=option)
        for (group, option), square in squares.items()
    ]
    for event, count in counts.items():
        if name := _counter(event):
            merged.append(replace(event, **dict.fromkeys(name, count)))  # type: ignore[type-var]
        else:
            merged += [event] * count
    return merged


def _counter(event: Event) -> list[str]:
    """Return the name of the field that counts the releases of an event, if it has one."""
    return [one.name for one in fields(event) if one.name in ("count", "steps")]  # type: ignore[arg-type]


def _of_role(role: object) -> dict[str, Any]:
    """Return group and option of a ``role``, the one text for both in ledgers of version 3.

    Without it a budget at node level in such a ledger could not be counted any more. Exactly the
    texts written for an option are taken apart; any other is a whole group.
    """
    if isinstance(role, str) and (found := _ROLE_WITH_OPTION.fullmatch(role)):
        return {"group": found[1], "option": int(found[2])}
    return {"group": role}


@lru_cache(maxsize=64)
def _touched(reach: tuple[int, ...], rate: float, keep: float) -> Numbers:
    """Return the law of ``sum_i Binomial(reach[i], rate keep^(i + 1))``, from 0 on.

    Numbers that are rarer than :data:`RAREST` together are left out.
    """
    from scipy.stats import binom

    law = np.ones(1)
    for arcs, count in enumerate(reach, start=1):
        chance = rate * keep**arcs
        numbers = np.arange(count + 1)
        numbers = numbers[binom.sf(numbers - 1, count, chance) > RAREST]
        law = np.convolve(law, binom.pmf(numbers, count, chance))
    return tuple((law / math.fsum(law)).tolist())


def _mixture(others: Numbers, own: float, step: float) -> tuple[Numbers, Numbers]:
    """Return places ``step * (own + others)`` and their weights, ``own`` being a probability."""
    law = np.convolve(np.array(others), [1 - own, own])
    places = np.flatnonzero(law)
    return tuple((places * step).tolist()), tuple(law[places].tolist())


def _store(event: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass while it is being built."""
    for name, value in values.items():
        object.__setattr__(event, name, value)


def _count(name: str, value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        raise InputError(
            f"`{name}` must be at least 1: leave out an event that never happens. Got 0."
        )
    return check_integer(name, value, at_least=1)


def _label(value: object, *, name: str = "label") -> None:
    if not isinstance(value, str):
        raise InputError(f"`{name}` must be text. Got {value!r}.")
