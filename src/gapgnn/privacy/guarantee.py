"""From what was asked (level, relation, epsilon, delta) to what is promised and at what noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gapgnn.errors import InputError, PrivacyError, check_number
from gapgnn.graph import Graph
from gapgnn.privacy.accounting import (
    NOTHING_LEARNED,
    AttackBounds,
    Event,
    Gaussian,
    account,
    accountant_named,
    attack_bounds,
    calibrate,
)
from gapgnn.privacy.budget import check_delta, check_epsilon, check_part, stated_epsilon
from gapgnn.privacy.operators import Neighbors, edge_types_growth
from gapgnn.privacy.relations import (
    Links,
    Relation,
    auto_delta,
    parse_relation,
)


@dataclass(frozen=True)
class EntityCounts:
    """How many entities each relation protects in a graph, from which an automatic delta follows.

    Attributes:
        num_nodes: of nodes.
        num_edges: of edges, each two arcs where the graph is symmetric, over all edge types.
        num_arcs: of arcs, over all edge types.
        is_directed: whether edges have a direction.
    """

    num_nodes: int
    num_edges: int
    num_arcs: int
    is_directed: bool

    @classmethod
    def of(cls, graph: Graph) -> EntityCounts:
        """Count the entities of a graph."""
        edge_types = graph.edge_types
        return cls(
            num_nodes=graph.num_nodes,
            num_edges=sum(one.num_edges for one in edge_types),
            num_arcs=sum(one.num_arcs for one in edge_types),
            is_directed=graph.is_directed,
        )

    def protected(self, relation: Relation) -> int:
        """Return how many entities a relation protects: arcs, edges or nodes.

        >>> EntityCounts(num_nodes=10, num_edges=99, num_arcs=198, is_directed=False).protected(
        ...     parse_relation("undirected")
        ... )
        99
        """
        if not isinstance(relation, Links):
            return self.num_nodes
        # Where arcs are protected each is an entity of its own, also on a symmetric graph.
        return self.num_arcs if relation.are_arcs else self.num_edges


@dataclass(frozen=True)
class Guarantee:
    """A resolved promise: which neighbours, what budget, and the noise that keeps it.

    Attributes:
        relation: which graphs are neighbours.
        epsilon: accounted, at most what was asked; 0 if nothing private is read; None at level
            none.
        delta: at which epsilon is accounted; 0 at level none.
        delta_is_auto: whether delta came from the number of protected entities.
        entities: how many edges or nodes are protected.
        noise_multiplier: the free multiplier (standard deviation over sensitivity) that was found.
        accountant: how epsilon was computed.
        events: what is released.
        charged: all options of the adaptive choice that the events follow from; empty where there
            was none.
    """

    relation: Relation
    epsilon: float | None
    delta: float
    delta_is_auto: bool
    entities: int
    noise_multiplier: float | None
    accountant: str
    events: tuple[Event, ...]
    charged: tuple[Event, ...] = ()

    @property
    def level(self) -> str:
        """What is protected: ``none``, ``edge`` or ``node``."""
        return self.relation.level

    def to_dict(self) -> dict[str, Any]:
        """Return the promise as JSON holds it, without the exact number of entities."""
        return {
            "level": self.level,
            "relation": self.relation.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "delta_is_auto": self.delta_is_auto,
            "noise_multiplier": self.noise_multiplier,
            "accountant": self.accountant,
            "events": [event.to_dict() for event in self.events],
            "charged": [event.to_dict() for event in self.charged],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """Read a promise back; it says nothing of how many entities it was made for."""
        lists = ("events", "charged")
        events = {name: tuple(map(Event.from_dict, values[name])) for name in lists}
        relation = parse_relation(values["relation"], values["level"])
        others = {name: value for name, value in values.items() if name != "level"}
        return cls(**{**others, **events, "relation": relation, "entities": 0})

    def multiplier_of(self, label: str) -> float:
        """Return the noise multiplier of the release of this name."""
        (event,) = (event for event in self.events if event.label == label)
        found: float = event.noise_multiplier  # type: ignore[attr-defined]
        return found

    @property
    def free_multiplier(self) -> float:
        """The noise multiplier that was found, for a release that must have one."""
        if self.noise_multiplier is None:
            raise PrivacyError("A finite budget must have noise. Got none.")
        return self.noise_multiplier

    @classmethod
    def resolve(
        cls,
        counts: EntityCounts | Graph,
        template: Sequence[Event],
        *,
        relation: Relation,
        epsilon: float,
        delta: float | str,
        fixed: Sequence[Event] = (),
    ) -> Guarantee:
        """Calibrate the template's free multiplier to the budget (privacy page, section 3).

        Args:
            counts: of the entities that are protected, or the graph that has them.
            template: what is released, with noise as a ratio to the free multiplier.
            relation: which graphs are neighbours.
            epsilon: the budget.
            delta: at which, or ``auto``.
            fixed: what else is released, with noise that is already decided.
        """
        promise = cls.unpriced(counts, relation=relation, delta=delta)
        if promise.level == "none" or not template:
            return promise
        check_part(epsilon)
        _check_allowance(promise.delta, template, relation)
        found = calibrate(
            template,
            epsilon=epsilon,
            delta=promise.delta,
            relation=relation,
            fixed=fixed,
        )
        if not 0 < found.noise_multiplier < math.inf:
            raise PrivacyError(
                f"A finite epsilon must have noise. Got multiplier {found.noise_multiplier!r}."
            )
        return replace(
            promise,
            epsilon=min(stated_epsilon(found.epsilon), epsilon),
            noise_multiplier=found.noise_multiplier,
            accountant=found.accountant,
            events=tuple(found.events),
        )

    @classmethod
    def one_of(cls, first: Event, options: Sequence[Guarantee]) -> Guarantee:
        """Return the promise of a release after which one of several others is chosen by it.

        The first one is pure, and whatever it says, what follows keeps the epsilon of its option:
        both add up, which holds for any choice (basic composition, privacy page, section 3). The
        events of all options are listed, each with the number of its option, so that a budget
        counts the dearest (:func:`~gapgnn.privacy.accounting.parallel_compositions`).
        """
        dearest = max(options, key=lambda option: option.epsilon or 0.0)
        price = first.times * first.pair(dearest.relation).pure_epsilon
        events: dict[Event, None] = {}
        for number, option in enumerate(options, start=1):
            for event in option.events:
                # What every option releases alike is released once.
                is_alike = all(event in other.events for other in options if other.events[1:])
                numbered = replace(event, option=number)  # type: ignore[type-var]
                events[event if is_alike else numbered] = None
        return replace(
            dearest,
            epsilon=_sum_rounded_up(price, dearest.epsilon or 0.0),
            accountant=f"{dearest.accountant}, added to the first release",
            events=(first, *events),
        )

    def after(self, first: Event, whole: Guarantee) -> Guarantee:
        """Return this option of :meth:`one_of` once it is chosen, at the price of the whole."""
        return replace(
            self,
            epsilon=whole.epsilon,
            accountant=f"{self.accountant}, added to the first release",
            events=(first, *self.events),
            charged=whole.charged or whole.events,
        )

    def attack_bounds(self) -> AttackBounds | None:
        """Return what an attacker can make of the release; None where nothing is promised.

        After an adaptive choice the worst of all its options counts, and not the one that followed.
        """
        if self.epsilon is None:
            return None
        if not self.events:
            return NOTHING_LEARNED
        bounds = attack_bounds(self.charged or self.events, relation=self.relation)
        return bounds.within(self.epsilon, self.delta)

    @classmethod
    def pure(
        cls,
        counts: EntityCounts | Graph,
        events: Sequence[Event],
        *,
        relation: Relation,
        epsilon: float,
        delta: float | str,
    ) -> Guarantee:
        """Price releases without any delta and refuse them if they cost more than ``epsilon``.

        ``delta`` is checked and not spent: a pure guarantee holds at delta 0, where the epsilons of
        the releases add up (privacy page, section 3). What differs from the budget by rounding
        alone is the budget.
        """
        promise = cls.unpriced(counts, relation=relation, delta=delta)
        check_finite_budget(promise.level, epsilon)
        spent = account(events, 0.0, relation=relation).epsilon
        if math.isinf(spent):
            edge_types = ", ".join(sorted({type(event).__name__ for event in events}))
            raise PrivacyError(f"A pure guarantee must have pure events. Got {edge_types}.")
        is_all = math.isclose(spent, epsilon, rel_tol=1e-9)
        if spent > epsilon and not is_all:
            raise PrivacyError(
                f"The releases must cost at most epsilon {epsilon:g} in all. Got {spent:g}."
            )
        return replace(
            promise,
            epsilon=float(epsilon) if is_all else spent,
            delta=0.0,
            delta_is_auto=False,
            accountant="pure",
            events=tuple(events),
        )

    @classmethod
    def of_events(
        cls,
        counts: EntityCounts | Graph,
        events: Sequence[Event],
        *,
        relation: Relation,
        delta: float | str,
        noise_multiplier: float | None,
    ) -> Guarantee:
        """Price releases whose noise is already decided: prediction on a new graph."""
        promise = cls.unpriced(counts, relation=relation, delta=delta)
        if promise.level == "none" or not events:
            return promise
        _check_allowance(promise.delta, events, relation)
        spend = account(events, promise.delta, relation=relation)
        return replace(
            promise,
            epsilon=stated_epsilon(spend.epsilon),
            noise_multiplier=noise_multiplier,
            accountant=spend.accountant,
            events=tuple(events),
        )

    @classmethod
    def unpriced(
        cls, counts: EntityCounts | Graph, *, relation: Relation, delta: float | str
    ) -> Guarantee:
        """Resolve who is protected and delta; nothing is released yet."""
        known = counts if isinstance(counts, EntityCounts) else EntityCounts.of(counts)
        if relation.level == "none":
            return cls(relation, None, 0.0, False, 0, None, "none", ())
        entities = known.protected(relation)
        stated = check_delta(delta)
        is_auto = stated is None
        chosen = auto_delta(entities) if stated is None else stated
        return cls(relation, 0.0, chosen, is_auto, entities, None, "nothing private is read", ())

    def rdp_epsilon(self) -> float | None:
        """Return the price of the same events under Renyi accounting, None where it has none."""
        if not self.events or self.delta == 0:
            return None
        events = self.charged or self.events
        price = accountant_named("rdp").epsilon(events, self.delta, relation=self.relation)
        return price if math.isfinite(price) else None

    def undirected_epsilon(self) -> float | None:
        """Return what the same noise costs for whole edges, where as many arcs are promised."""
        promised = self.relation
        if not isinstance(promised, Links) or not promised.are_arcs or not self.events:
            return None
        whole = Links.of(promised.count, are_arcs=False)
        if self.delta == 0 and self.epsilon is not None:
            # Group privacy: one edge is two arcs, each of which a pure release protects.
            return whole.group_size(promised) * self.epsilon
        if not all(isinstance(event, Gaussian) for event in self.events):
            return None
        # The sensitivity of an edge of two arcs is sqrt(2) times that of one (section 1).
        ratio = Neighbors.bound(promised) / Neighbors.bound(whole)
        events = [event.scaled(ratio) for event in self.events]
        return account(events, self.delta, relation=whole).epsilon

    def every_type_epsilon(self, num_types: int, *, has_total: bool) -> float | None:
        """Return what the same noise costs for links of every type at once, promised for any."""
        if self.level != "edge" or not all(isinstance(event, Gaussian) for event in self.events):
            return None
        # Squared distances of Gaussian noise add up (section 3).
        further = math.sqrt(edge_types_growth(num_types, has_total=has_total))
        events = [event.scaled(1 / further) for event in self.events]
        return account(events, self.delta, relation=self.relation).epsilon


def _check_allowance(delta: float, events: Sequence[Event], relation: Relation) -> None:
    """Refuse delta 0 where no epsilon would be finite: for Gaussian noise in any form."""
    if delta == 0 and math.isinf(account(events, 0.0, relation=relation).epsilon):
        raise InputError(
            "`delta` must be above 0 for Gaussian noise: far out in its tails there are outcomes "
            "that tell two neighbours apart by any factor, however much noise there is, so no "
            "epsilon holds without exception. Got 0. Use auto, or what needs none: sage or mlp at "
            "edge level."
        )


def check_finite_budget(level: str, epsilon: float) -> None:
    """Raise unless epsilon is in the accepted range (:mod:`gapgnn.privacy.budget`)."""
    check_number("epsilon", epsilon, above=0, finite=False)
    if math.isinf(epsilon):
        raise InputError(
            f"`epsilon` must be finite at level {level}. Got inf. Use level none instead."
        )
    check_epsilon(epsilon)


def _sum_rounded_up(one: float, other: float) -> float:
    """Return the sum of two prices; what a float cannot hold is never lost."""
    total = one + other
    is_below = Fraction(total) < Fraction(one) + Fraction(other)
    return math.nextafter(total, math.inf) if is_below else total
