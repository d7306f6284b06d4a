"""What each experiment runs: the rows of the paper's tables and figures, and ours beside them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gapgnn.errors import InputError, check_choice, check_number, did_you_mean

EDGE_EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
NODE_EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
HOPS = (1, 2, 3, 4, 5)
DEGREES = (10, 20, 50, 100, 200, 300, 400)
SELECTED_DEGREES = (100, 200, 300, 400)
SWEPT_DEGREE = 100
LAYERS = (1, 2, 3, 4, 5)
# Wide enough to remember its training nodes, so that there is something to attack.
ATTACKED_WIDTH = 64


@dataclass(frozen=True)
class Configuration:
    """One row of an experiment: everything but the data set, the repeats and the seed.

    Attributes:
        method: the row's label.
        estimator: which method is fitted: ``gap``, ``sage``, ``mlp`` or ``vote``.
        epsilon: None at level none, 0.0 for a model that releases nothing of edges.
        relation: ``auto`` or one of the level's.
        delta: stated, as published tables do; None is ``auto``.
        parameters: constructor parameters beside these.
        attack: options of the membership attack; None where accuracy is measured.
    """

    experiment: str
    method: str
    estimator: str
    level: str
    epsilon: float | None
    relation: str = "auto"
    delta: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    attack: Mapping[str, Any] | None = None

    @property
    def metric(self) -> str:
        """What is measured."""
        return "test_accuracy" if self.attack is None else "auc"

    def seconds(self, *, arcs: int, repeats: int) -> float:
        """Return how long it may take on a graph of so many arcs, by a few measured times."""
        each = _ROWS[self.method].seconds * (1.0 if self.attack is None else _ATTACK_FACTOR)
        return 1.0 + repeats * each * arcs / MEASURED_ARCS

    def constructor(self) -> dict[str, Any]:
        """Return the keyword arguments that make the estimator."""
        budget = {"epsilon": self.epsilon} if self.epsilon else {}
        relation = {} if self.relation == "auto" else {"relation": self.relation}
        delta = {} if self.delta is None else {"delta": self.delta}
        return {"level": self.level, **budget, **delta, **relation, **self.parameters}

    @property
    def draws_noise(self) -> bool:
        """Whether a fit has a price, and so takes the parameters of noise."""
        return bool(self.epsilon)


@dataclass(frozen=True)
class _Row:
    """A row of the tables; its time is in seconds per repeat, and grows with the arcs."""

    estimator: str
    level: str
    seconds: float
    parameters: Mapping[str, Any] = field(default_factory=dict)


# Times of 10 repeats together on one core, and the arcs of the graph they were measured on
# (`gapgnn experiment accuracy --datasets facebook100/Cornell5`, x86_64, 2026-11-15).
MEASURED_ARCS = 1_303_452
_FEATURES, _LABELS = {"messages": "features"}, {"messages": "labels"}
_ROWS = {
    "GAP-inf": _Row("gap", "none", 0.8, _FEATURES),
    "GAP-inf labels": _Row("gap", "none", 7.0, _LABELS),
    "SAGE-inf": _Row("sage", "none", 4.3),
    "GAP-EDP": _Row("gap", "edge", 0.7, _FEATURES),
    "GAP-EDP labels": _Row("gap", "edge", 6.8, _LABELS),
    "SAGE-EDP": _Row("sage", "edge", 3.4),
    "MLP": _Row("mlp", "edge", 0.3),
    "Vote": _Row("vote", "edge", 0.3),
    "GAP-NDP": _Row("gap", "node", 0.6, _FEATURES),
    "GAP-NDP labels": _Row("gap", "node", 0.4, _LABELS),
    "SAGE-NDP": _Row("sage", "node", 5.4),
    "MLP-DP": _Row("mlp", "node", 0.1),
    "GAP-NDP own nothing": _Row("gap", "node", 0.4, {**_LABELS, "own": "nothing"}),
    "GAP-NDP own record": _Row("gap", "node", 0.5, {**_LABELS, "own": "record"}),
    "Vote-NDP": _Row("vote", "node", 0.1),
}
METHODS = tuple(_ROWS)
# At edge level these release nothing: one reads no edge, the other its own person's list alone.
_FREE = ("MLP", "Vote")
# These hold at delta 0, whatever is stated for the others.
_PURE = (*_FREE, "SAGE-EDP", "Vote-NDP")
# An attack trains a shadow and a target model in every run, one after the other.
_ATTACK_FACTOR = 4.0


@dataclass(frozen=True)
class _Design:
    """What an experiment varies: epsilons by level, and a constructor parameter.

    Its methods run unless others, or some more, are asked for.
    """

    methods: tuple[str, ...]
    edge: tuple[float, ...] = ()
    node: tuple[float, ...] = ()
    sweep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ()


_DESIGNS = {
    "accuracy": _Design(METHODS, (4.0,), (8.0,)),
    "tradeoff": _Design(METHODS, EDGE_EPSILONS, NODE_EPSILONS),
    "encoder": _Design(
        ("GAP-EDP", "GAP-NDP"), EDGE_EPSILONS, NODE_EPSILONS, {"encoder_layers": (2, 0)}
    ),
    "hops": _Design(
        ("GAP-EDP", "GAP-NDP"),
        (1.0, 4.0),
        (8.0, 16.0),
        {"hops": HOPS},
        ("GAP-EDP labels", "GAP-NDP labels"),
    ),
    "degree": _Design(
        ("GAP-NDP",), (), (4.0, 16.0), {"max_degree": DEGREES}, ("GAP-NDP labels", "SAGE-NDP")
    ),
    "membership": _Design(
        ("GAP-inf", "SAGE-inf", "MLP", "GAP-NDP", "SAGE-NDP", "MLP-DP"),
        (),
        NODE_EPSILONS,
        others=("GAP-inf labels", "GAP-NDP labels"),
    ),
}
EXPERIMENTS = tuple(_DESIGNS)


def plan(
    experiment: str,
    *,
    methods: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    relation: str = "auto",
    deltas: Mapping[str, float | None] | None = None,
    attack_on: Sequence[str] = ("target",),
) -> list[Configuration]:
    """Return the configurations of one experiment, as in the paper unless something is named.

    Args:
        experiment: one of ``EXPERIMENTS``.
        methods: row labels; a hyphen may stand for the space of ``GAP-EDP labels``.
        epsilons: instead of the paper's, for every private row.
        relation: for the rows of the level it belongs to; ``directed`` is the paper's at edge
            level.
        deltas: delta by level, where it is stated; ``auto`` otherwise.
        attack_on: for membership: measured on the ``target`` model, on the ``shadow`` model as
            published, or on each.

    >>> [row.method for row in plan("accuracy", methods=["GAP-EDP", "mlp"])]
    ['GAP-EDP', 'MLP']
    >>> [row.parameters["hops"] for row in plan("hops", methods=["GAP-NDP"], epsilons=[8])]
    [1, 2, 3, 4, 5]
    """
    from gapgnn.privacy import RELATIONS

    check_choice("experiment", experiment, EXPERIMENTS)
    check_choice("relation", relation, ("auto", *RELATIONS))
    design = _DESIGNS[experiment]
    names = design.methods
    if methods is not None:
        names = tuple(dict.fromkeys(_known(name, design, experiment) for name in methods))
    budgets = None if epsilons is None else [check_number("epsilons", e, above=0) for e in epsilons]
    rows = []
    for name in names:
        base = _without_budget(experiment, name, relation, deltas or {})
        prices: Sequence[float | None] = [base.epsilon]
        if base.level != "none" and base.epsilon is None:
            prices = budgets or (design.edge if base.level == "edge" else design.node)
        for price, values in itertools.product(prices, itertools.product(*design.sweep.values())):
            swept: dict[str, Any] = dict(zip(design.sweep, values, strict=True))
            if "hops" in swept and name == "GAP-NDP labels":
                # Any number of hops: with cut lists and a network after every hop.
                swept["max_degree"] = SWEPT_DEGREE
            rows.append(replace(base, epsilon=price, parameters={**base.parameters, **swept}))
    if experiment != "membership":
        return rows
    return [
        replace(
            row,
            parameters={**row.parameters, "hidden": ATTACKED_WIDTH},
            attack={"on": check_choice("on", on, ("target", "shadow"))},
        )
        for on in attack_on
        for row in rows
    ]


def _without_budget(
    experiment: str, method: str, relation: str, deltas: Mapping[str, float | None]
) -> Configuration:
    """Return a row before it has an epsilon, which is None unless the row releases nothing."""
    from gapgnn.privacy import RELATIONS_OF_LEVEL

    row = _ROWS[method]
    level = "none" if method == "MLP" and experiment == "membership" else row.level
    return Configuration(
        experiment=experiment,
        method=method,
        estimator=row.estimator,
        level=level,
        epsilon=0.0 if method in _FREE and level == "edge" else None,
        relation=relation if relation in RELATIONS_OF_LEVEL[level] else "auto",
        delta=None if method in _PURE else deltas.get(level),
        parameters=dict(row.parameters),
    )


def candidates(configuration: Configuration) -> list[Configuration]:
    """Return what is compared on validation accuracy for one row, as the paper does.

    Hops 1 to 5 for GAP, 1 to 5 layers for SAGE (at node level one is all there is), and at node
    level a degree bound of 100 to 400. What the row itself fixes, such as the number of hops in
    that ablation, stays. An MLP and a vote have nothing to choose, and neither has what reads its
    own person otherwise than by default.

    >>> [one.parameters["hops"] for one in candidates(plan("accuracy", methods=["GAP-EDP"])[0])]
    [1, 2, 3, 4, 5]
    """
    choices: dict[str, tuple[int, ...]] = {}
    if configuration.estimator in ("mlp", "vote") or "own" in configuration.parameters:
        return [configuration]
    if configuration.estimator == "gap":
        choices["hops"] = HOPS
    if configuration.estimator == "sage" and configuration.level != "node":
        choices["layers"] = LAYERS
    if configuration.level == "node":
        choices["max_degree"] = SELECTED_DEGREES
    free = {
        name: values for name, values in choices.items() if name not in configuration.parameters
    }
    return [
        replace(
            configuration,
            parameters={**configuration.parameters, **dict(zip(free, values, strict=True))},
        )
        for values in itertools.product(*free.values())
    ]


def _known(name: str, design: _Design, experiment: str) -> str:
    """Return the label somebody means, or name the nearest one this experiment has."""
    allowed = (*design.methods, *design.others)
    spellings = {_plain(label): label for label in allowed}
    if _plain(name) in spellings:
        return spellings[_plain(name)]
    near = did_you_mean(name, allowed) or did_you_mean(str(name).upper(), allowed)
    raise InputError(
        f"`methods` of {experiment} must be among {', '.join(allowed)}. Got {name!r}.{near}"
    )


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())
