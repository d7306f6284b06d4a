"""A plan: everything that a run will release, with which noise and at which price.

A plan is a pure function of what the user asked for (a configuration) and of :class:`PublicFacts`.
Nothing is resolved a second time: training, predictions, the card and a loaded model read the plan.
It is made before anything is charged, and stored with the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from gapgnn.errors import InputError, PrivacyError, check_integer
from gapgnn.graph import Graph, as_graph
from gapgnn.privacy.accounting import Event, Gaussian, group_of, option_of
from gapgnn.privacy.guarantee import EntityCounts, Guarantee, check_finite_budget
from gapgnn.privacy.relations import (
    Relation,
    public_count,
    resolve_edge_types,
    resolve_relation,
)

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What a plan may know of a graph (privacy page, section 2).

    Attributes:
        num_train: number of training nodes; at node level rounded to two digits, or declared.
        num_features: number of feature columns.
        num_classes: number of classes.
        class_names: their names.
        declared_rates: share of each class as the schema declares it, if it does.
        counted_rates: share of each class among training nodes; None at node level, where labels
            are private.
        edge_types: names of the edge types; empty where there is one.
        is_directed: whether edges have a direction.
        counts: from which an automatic delta follows; never stored.
        num_nodes: number of nodes below node level, where it is public; 0 at node level.
    """

    num_train: int
    num_features: int
    num_classes: int
    class_names: tuple[str, ...]
    declared_rates: tuple[float, ...] | None
    counted_rates: tuple[float, ...] | None
    edge_types: tuple[str, ...]
    is_directed: bool
    counts: EntityCounts = field(repr=False)
    num_nodes: int = 0

    @classmethod
    def of(
        cls, graph: Graph, *, level: str, train_size: int | Literal["auto"] = "auto"
    ) -> PublicFacts:
        """Return what is public about a graph at a level.

        Args:
            graph: to plan for.
            level: ``none``, ``edge`` or ``node``.
            train_size: the declared number of training people at node level.
        """
        label = None if graph.schema is None else graph.schema.label
        declared = None if label is None else label.rates
        is_node = level == "node"
        counted = None
        num_train = int(graph.train_mask.sum())
        if is_node:
            num_train = public_count(num_train) if train_size == "auto" else int(train_size)
        elif num_train:
            labels = graph.labels[graph.train_mask]
            shares = np.bincount(labels, minlength=graph.num_classes) / len(labels)
            counted = tuple(shares.tolist())
        return cls(
            num_train=num_train,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            class_names=tuple(graph.label_names or map(str, range(graph.num_classes))),
            declared_rates=None if declared is None else tuple(declared),
            counted_rates=counted,
            edge_types=graph.edge_type_names,
            is_directed=graph.is_directed,
            counts=EntityCounts.of(graph),
            num_nodes=0 if is_node else graph.num_nodes,
        )

    @property
    def num_types(self) -> int:
        """Number of edge types."""
        return len(self.edge_types) or 1

    @property
    def rates(self) -> tuple[float, ...] | None:
        """Share of each class: declared, or counted where training labels are public."""
        return self.declared_rates if self.declared_rates is not None else self.counted_rates

    def to_dict(self) -> dict[str, Any]:
        """Return what may be stored and printed; the exact counts of entities are not."""
        values = asdict(replace(self, counts=EntityCounts(0, 0, 0, self.is_directed)))
        del values["counts"]
        return values


@dataclass(frozen=True, kw_only=True)
class PlannedHops:
    """How the hops of one name aggregate, whatever their noise.

    Attributes:
        event: name of the event that pays for them.
        count: number of hops.
        max_degree: neighbours that adjacency lists are cut to at node level.
        is_normalised: messages are divided by the root of the sender's out-degree instead.
        to_self: every node also sends to itself.
        is_symmetrised: messages travel along arcs and against them.
        with_union: the sum over the union of several edge types is released beside each type's.
        protects: with several edge types at edge level: ``any`` if neighbours differ in an edge of
            one type, ``each`` if in an edge of every type. At node level it is always ``each``.
    """

    event: str
    count: int
    max_degree: int | None = None
    is_normalised: bool = False
    to_self: bool = False
    is_symmetrised: bool = False
    with_union: bool = False
    protects: Literal["any", "each"] = "any"


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """How DP-SGD trains one network.

    Attributes:
        event: name of the event that pays for it.
        ratio: noise multiplier relative to the free one.
        sensitivity: how far one record moves a batch's clipped sum, in clips.
    """

    event: str
    ratio: float = 1.0
    sensitivity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The settings of a plan that no method made (:meth:`Plan.declare`).

    Attributes:
        edge_types: ``any`` or ``each``: in which of several edge types neighbours differ.
    """

    edge_types: str


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[Settings]):
    """What a run will do to private data.

    Attributes:
        method: that it is of.
        relation: which graphs are neighbours.
        budget: the epsilon that was asked for.
        delta: at which, a number.
        settings: every hyperparameter of the method, with nothing left to ``auto``.
        facts: that it was made from; None in a plan that was loaded.
        template: releases whose noise is calibrated, as ratios to one free multiplier.
        fixed: releases whose noise is decided already.
        is_pure: no delta is spent, and ``fixed`` is all there is.
        hops: how the hops of each name aggregate.
        training: how DP-SGD trains each network, at node level.
        scales: name and scale of further noise, to be checked against the safe grid.
        first: a release that decides between ``options``.
        options: what may be released after it; the price is that of the dearest.
        guarantee: what is promised, once noise is calibrated.
    """

    method: str
    relation: Relation
    budget: float
    delta: float
    settings: Settings
    facts: PublicFacts | None = None
    template: tuple[Event, ...] = ()
    fixed: tuple[Event, ...] = ()
    is_pure: bool = False
    hops: Mapping[str, PlannedHops] = field(default_factory=dict)
    training: Mapping[str, PlannedTraining] = field(default_factory=dict)
    scales: tuple[tuple[str, float], ...] = ()
    first: Event | None = None
    options: tuple[Plan[Settings], ...] = ()
    guarantee: Guarantee | None = None

    @staticmethod
    def declare(
        graph: Any,
        *,
        level: Literal["none", "edge", "node"] = "edge",
        epsilon: float = 1.0,
        delta: float | Literal["auto"] = "auto",
        relation: str = "auto",
        hops: Mapping[str, int | PlannedHops] | None = None,
        events: Sequence[Event] = (),
        max_degree: int = 100,
        edge_types: Literal["auto", "each", "any"] = "auto",
        method: str = "own program",
    ) -> Plan[Declared]:
        """Return the calibrated plan of releases that a program of one's own declares by name.

        All of them together cost at most ``epsilon``. Nothing is charged here: a
        :class:`~gapgnn.privacy.session.PrivateSession` charges the plan and makes its releases.

        Args:
            graph: that will be read, of which public facts are used alone.
            level: what is protected.
            epsilon: the budget of all releases together.
            delta: at which, or ``auto``.
            relation: which graphs are neighbours, or ``auto``.
            hops: for each name the number of hops that ``session.release(name, rows)`` makes, or
                how they aggregate. All hops get the same noise multiplier.
            events: further releases, which ``session.draw`` makes, each with a label. Their noise
                multiplier is a ratio to that of the hops. Groups are for node level, where an event
                of a group may read records of that group alone.
            max_degree: neighbours D that adjacency lists are cut to at node level, where hops are
                given by their number.
            edge_types: ``each`` hides one edge of every type at once, ``any`` one edge of one type.
            method: what the program is called in the ledger and on the card.

        >>> from gapgnn import load_dataset
        >>> print(Plan.declare(load_dataset("social"), epsilon=2.0, hops={"sums": 2}))
        Plan of own program: level edge, relation undirected
        price: epsilon 2, delta 1e-07 (auto); accountant: exact
        release: sums: Gaussian, noise_multiplier 3.46349, count 2
        hops 'sums': 2 in a row
        edge_types: any
        """
        is_node = level == "node"
        graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        if level != "none":
            check_finite_budget(level, epsilon)
        protects = resolve_edge_types(level, edge_types)
        # Nobody's role matters here, so at node level no training node is counted.
        facts = PublicFacts.of(graph, level=level, train_size=0 if is_node else "auto")
        planned = {
            name: _declared_hops(name, one, protects, max_degree if is_node else None)
            for name, one in (hops or {}).items()
        }
        template = [
            Gaussian(1.0, count=one.count * _sums_of(one, facts.num_types, protects), label=name)
            for name, one in planned.items()
        ]
        labels = [event.label for event in (*template, *events)]
        if not all(labels) or len(set(labels)) < len(labels):
            raise InputError(
                f"`hops` and `events` must have a name of their own each. Got {', '.join(labels)}."
            )
        _check_all_happen(events, level)
        neighbours = resolve_relation(level, relation, is_directed=graph.is_directed)
        known = Guarantee.unpriced(facts.counts, relation=neighbours, delta=delta)
        plan: Plan[Declared] = Plan(
            method=method,
            relation=neighbours,
            budget=math.inf if level == "none" else epsilon,
            delta=known.delta,
            settings=Declared(edge_types=protects),
            facts=facts,
            template=() if level == "none" else (*template, *events),
            hops=planned,
        )
        return plan.calibrated(delta)

    @property
    def level(self) -> str:
        """What is protected: ``none``, ``edge`` or ``node``."""
        return self.relation.level

    @property
    def promise(self) -> Guarantee:
        """What is promised; only a calibrated plan promises anything."""
        if self.guarantee is None:
            raise PrivacyError(
                "a plan must be calibrated before it is priced. Got one that is not."
            )
        return self.guarantee

    def calibrated(self, delta: float | Literal["auto"] = "auto") -> Plan[Settings]:
        """Return the plan with its noise filled in and its price (privacy page, section 3).

        Args:
            delta: as it was asked for, so that the card can say whether it was automatic.
        """
        assert self.facts is not None
        asked: dict[str, Any] = {"relation": self.relation, "delta": delta}
        if self.options:
            assert self.first is not None
            options = tuple(option.calibrated(delta) for option in self.options)
            whole = Guarantee.one_of(self.first, [option.promise for option in options])
            return replace(self, options=options, guarantee=whole)
        counts = self.facts.counts
        if self.is_pure:
            found = Guarantee.pure(counts, self.fixed, epsilon=self.budget, **asked)
        elif self.level == "none" or not self.template:
            found = Guarantee.unpriced(counts, **asked)
        else:
            found = Guarantee.resolve(
                counts, self.template, epsilon=self.budget, fixed=self.fixed, **asked
            )
        return replace(self, guarantee=found)

    def chosen(self, number: int) -> Plan[Settings]:
        """Return the option that a first release decided for, at the price of the whole plan."""
        assert self.first is not None
        option = self.options[number]
        return replace(option, guarantee=option.promise.after(self.first, self.promise))

    def for_prediction(self, promise: Guarantee) -> Plan[Settings]:
        """Return the plan that reads another graph in the same way, at a price of its own.

        Hops are paid for by the events of the promise: by those of their own name, or by the only
        one where that has another name.
        """
        labels = [event.label for event in promise.events]
        hops = {
            name: replace(one, event=one.event if one.event in labels else labels[0])
            for name, one in self.hops.items()
            if labels
        }
        return replace(
            self,
            relation=promise.relation,
            delta=promise.delta,
            hops=hops or self.hops,
            guarantee=promise,
        )

    def multiplier_of(self, name: str) -> float:
        """Return the noise multiplier of the releases of a name; 0 at level none."""
        return 0.0 if self.level == "none" else self.promise.multiplier_of(name)

    @property
    def planned(self) -> tuple[str, ...]:
        """The names of all releases, in order; those of every option of a choice."""
        return tuple(dict.fromkeys(event.label for event in self.promise.events))

    def __str__(self) -> str:
        promise = self.promise
        lines = [f"Plan of {self.method}: level {self.level}, relation {promise.relation}"]
        if promise.epsilon is None:
            lines.append("nothing is protected, charged or noisy")
        elif not promise.events:
            lines.append("nothing private is released: epsilon 0")
        else:
            lines.append(
                f"price: epsilon {promise.epsilon:.6g}, delta {promise.delta:.3g}"
                f"{' (auto)' if promise.delta_is_auto else ''}; accountant: {promise.accountant}"
            )
            lines += [f"release: {_event_line(event)}" for event in promise.events]
        for name, hops in self.hops.items():
            lines.append(f"hops {name!r}: {_hops_line(hops)}")
        lines += [f"{name}: {_brief(value)}" for name, value in plain(self.settings).items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON holds it."""
        promise = self.promise
        found: dict[str, Any] = {
            "method": self.method,
            "budget": None if math.isinf(self.budget) else self.budget,
            "guarantee": promise.to_dict(),
            "hops": {name: asdict(hops) for name, hops in self.hops.items()},
            "settings": plain(self.settings),
        }
        if self.facts is not None:
            found["facts"] = self.facts.to_dict()
        if self.options:
            found["options"] = [option.to_dict() for option in self.options]
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], settings: Settings) -> Plan[Settings]:
        """Read the plan of a saved model back.

        Args:
            values: what :meth:`to_dict` wrote, of a plan without open options.
            settings: of the method, read from the same values.
        """
        promise = Guarantee.from_dict(values["guarantee"])
        budget = values["budget"]
        return cls(
            method=str(values["method"]),
            relation=promise.relation,
            budget=math.inf if budget is None else float(budget),
            delta=promise.delta,
            settings=settings,
            hops={str(name): PlannedHops(**hops) for name, hops in values["hops"].items()},
            guarantee=promise,
        )


def _declared_hops(
    name: str,
    declared: int | PlannedHops,
    protects: Literal["any", "each"],
    max_degree: int | None,
) -> PlannedHops:
    """Return hops that are paid for by the event of their own name."""
    if isinstance(declared, PlannedHops):
        return replace(declared, event=name, protects=protects)
    count = check_integer(f"hops[{name!r}]", declared, at_least=1)
    return PlannedHops(event=name, count=count, max_degree=max_degree, protects=protects)


def _check_all_happen(events: Sequence[Event], level: str) -> None:
    """Refuse events that are priced as alternatives and may all read the same edge or record.

    Of options one is priced, and a session makes every release of a declared plan. An edge is in no
    group: whatever reads edges may read all of them.
    """
    for event in events:
        if option_of(event):
            raise InputError(
                "`events` must have no options: all that is declared is released. Got option "
                f"{option_of(event)} of {event.label!r}. Declare a plan for each."
            )
        if group_of(event) and level != "node":
            raise InputError(
                f"`events` must have no groups at level {level}: people are in groups, edges are "
                f"not. Got group {group_of(event)!r} of {event.label!r}."
            )


def _sums_of(hops: PlannedHops, num_types: int, protects: str) -> int:
    """Return how many sums of one hop move for neighbours (privacy page, section 2)."""
    return num_types if protects == "each" else 1 + hops.with_union


def plain(settings: Any) -> dict[str, Any]:
    """Return the fields of settings as JSON holds them."""
    values: dict[str, Any] = asdict(settings)
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def _event_line(event: Event) -> str:
    values = event.to_dict()
    name = values.pop("event")
    label = values.pop("label", "")
    return f"{label or name}: {name}, " + ", ".join(f"{k} {_brief(v)}" for k, v in values.items())


def _hops_line(hops: PlannedHops) -> str:
    parts = [f"{hops.count} in a row" if hops.count > 1 else "1"]
    if hops.max_degree is not None:
        parts.append(f"adjacency lists cut to {hops.max_degree} neighbours")
    if hops.is_normalised:
        parts.append("messages divided by the root of the sender's out-degree")
    if hops.to_self:
        parts.append("each node also sends to itself")
    if hops.is_symmetrised:
        parts.append("along arcs and against them")
    if hops.with_union:
        parts.append("also over the union of the edge types")
    return ", ".join(parts)


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_brief(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(map(_brief, value))
    return "none" if value is None else str(value)
