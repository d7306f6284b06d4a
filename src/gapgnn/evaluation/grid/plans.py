"""What each experiment runs: the rows of the paper's tables and figures, and ours beside them.

A row is a method by its own name at one level. The paper's are ``gap``, ``sage`` and ``mlp``.
"""

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
LAYERS = (1, 2, 3, 4, 5)
# Wide enough to remember its training nodes, so that there is something to attack.
ATTACKED_WIDTH = 64


@dataclass(frozen=True)
class Configuration:
    """One row of an experiment: everything but the data set, the repeats and the seed.

    Attributes:
        method: the name of the row: of its method, and what it sets otherwise than by default.
        estimator: the name of the method that is fitted.
        epsilon: None at level none, 0.0 for a model that releases nothing of edges.
        relation: ``auto`` or one of the level's.
        delta: stated, as published tables do; None is ``auto``.
        parameters: constructor parameters beside these.
        attack: options of the attack, and its name under ``attack`` if it is not the membership
            attack; None where accuracy is measured.
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

    @property
    def attack_name(self) -> str:
        """The attack, as the command line calls it."""
        return str((self.attack or {}).get("attack", "membership"))

    @property
    def attack_options(self) -> dict[str, Any]:
        """What is set of the attack otherwise than by default."""
        return {name: value for name, value in (self.attack or {}).items() if name != "attack"}

    def seconds(self, *, arcs: int, repeats: int) -> float:
        """Return how long it may take on a graph of so many arcs, by a few measured times."""
        times = _row_of(self.method).seconds
        # A method that is free at edge level takes as long at level none.
        each = times.get(self.level, times.get("edge", 0.0))
        each *= 1.0 if self.attack is None else _ATTACK_FACTOR
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
    """A row of the tables; its times are in seconds per repeat, and grow with the arcs."""

    title: str
    seconds: Mapping[str, float]
    parameters: Mapping[str, Any] = field(default_factory=dict)


# Times of 10 repeats together on one core, and the arcs of the graph they were measured on
# (`gapgnn experiment accuracy --datasets facebook100/Cornell5`, x86_64, 2026-11-15, ProGAP
# 2026-11-19).
MEASURED_ARCS = 1_303_452
_ROWS = {
    "gap": _Row("GAP", {"none": 0.8, "edge": 0.7, "node": 0.6}),
    "progap": _Row("ProGAP", {"none": 3.9, "edge": 4.0, "node": 1.2}),
    "label-gap": _Row("LabelGAP", {"none": 7.0, "edge": 6.8}),
    "node-label-gap": _Row("NodeLabelGAP", {"node": 0.4}),
    "sage": _Row("GraphSAGE", {"none": 4.3, "edge": 3.4, "node": 5.4}),
    "mlp": _Row("MLP", {"edge": 0.3, "node": 0.1}),
    "vote": _Row("NeighborVote", {"edge": 0.3, "node": 0.1}),
    "node-label-gap own nothing": _Row("NodeLabelGAP", {"node": 0.4}, {"own": "nothing"}),
    "node-label-gap own record": _Row("NodeLabelGAP", {"node": 0.5}, {"own": "record"}),
}
METHODS = tuple(_ROWS)
# Of a method of another package nothing was measured.
_UNKNOWN_SECONDS = 1.0
LEVELS = ("none", "edge", "node")
# At edge level these release nothing: one reads no edge, the other its own person's list alone.
_FREE = (("mlp", "edge"), ("vote", "edge"))
# These hold at delta 0, whatever is stated for the others.
_PURE = (*_FREE, ("sage", "edge"), ("vote", "node"))
# An attack trains a shadow and a target model in every run, one after the other.
_ATTACK_FACTOR = 4.0


@dataclass(frozen=True)
class _Design:
    """What an experiment varies: epsilons by level, and a constructor parameter.

    Its methods run, at these levels, unless others, or some more, are asked for.
    """

    methods: Mapping[str, tuple[str, ...]]
    edge: tuple[float, ...] = ()
    node: tuple[float, ...] = ()
    sweep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_EVERY = {name: tuple(row.seconds) for name, row in _ROWS.items()}
_PRIVATE, _ATTACKED = ("edge", "node"), ("none", "node")
_DESIGNS = {
    "accuracy": _Design(_EVERY, (4.0,), (8.0,)),
    "tradeoff": _Design(_EVERY, EDGE_EPSILONS, NODE_EPSILONS),
    "encoder": _Design({"gap": _PRIVATE}, EDGE_EPSILONS, NODE_EPSILONS, {"encoder_layers": (2, 0)}),
    "hops": _Design(
        {"gap": _PRIVATE},
        (1.0, 4.0),
        (8.0, 16.0),
        {"hops": HOPS},
        {"progap": _PRIVATE, "label-gap": ("edge",)},
    ),
    "degree": _Design(
        {"gap": ("node",)},
        (),
        (4.0, 16.0),
        {"max_degree": DEGREES},
        {"progap": ("node",), "sage": ("node",)},
    ),
    "membership": _Design(
        {"gap": _ATTACKED, "sage": _ATTACKED, "mlp": _ATTACKED},
        (),
        NODE_EPSILONS,
        others={"progap": _ATTACKED, "label-gap": ("none",), "node-label-gap": ("node",)},
    ),
    # Labels are private at node level only, links of others at edge level as well.
    "label-inference": _Design(
        {"gap": _ATTACKED, "label-gap": ("none",), "node-label-gap": ("node",), "mlp": _ATTACKED},
        (),
        NODE_EPSILONS,
        others={"progap": _ATTACKED, "sage": _ATTACKED},
    ),
    "inductive-links": _Design(
        {"gap": ("none", "edge"), "label-gap": ("none", "edge")},
        (1.0, 4.0, 8.0),
        others={"progap": ("none", "edge"), "sage": ("none",)},
    ),
    "reconstruction": _Design(
        {"gap": ("none", "edge"), "label-gap": ("none", "edge")},
        (1.0, 4.0, 8.0),
        others={"progap": ("none", "edge"), "sage": ("none",)},
    ),
}
# Experiments that measure the AUC of an attack.
ATTACKS = ("membership", "label-inference", "inductive-links", "reconstruction")
EXPERIMENTS = tuple(_DESIGNS)


def _row_of(method: str) -> _Row:
    """Return a row of this package, or that of a method of another one."""
    from gapgnn.methods import method_class

    if method in _ROWS:
        return _ROWS[method]
    found = method_class(method)
    return _Row(found.__name__, dict.fromkeys(found.levels, _UNKNOWN_SECONDS))


def _methods_of(experiment: str) -> dict[str, tuple[str, ...]]:
    """Return the methods that an experiment runs if none is named, with their levels.

    Installed methods of other packages are rows of the experiments that have every method.
    """
    from gapgnn.methods import methods

    design = _DESIGNS[experiment]
    if design.methods is not _EVERY:
        return dict(design.methods)
    added = [name for name in methods() if name not in _ROWS]
    return {**_EVERY, **{name: tuple(_row_of(name).seconds) for name in added}}


def title_of(method: str) -> str:
    """Return what the method of a row is called in tables and figures: the name on its card.

    >>> title_of("label-gap"), title_of("node-label-gap own record")
    ('LabelGAP', 'NodeLabelGAP own record')
    """
    from gapgnn.methods import methods

    name, *setting = method.split(" ", 1)
    known = name in _ROWS or name in methods()
    return " ".join([_row_of(name).title if known else name, *setting])


def plan(
    experiment: str,
    *,
    methods: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    relation: str = "auto",
    deltas: Mapping[str, float | None] | None = None,
    attack_on: Sequence[str] = ("target",),
) -> list[Configuration]:
    """Return the configurations of one experiment, as in the paper unless something is named.

    Args:
        experiment: one of ``EXPERIMENTS``.
        methods: names of rows, those of installed packages among them; a hyphen may stand for the
            space of ``node-label-gap own record``.
        levels: those of them that are wanted; all of the experiment if left out.
        epsilons: instead of the paper's, for every private row.
        relation: for the rows of the level it belongs to; ``directed`` is the paper's at edge
            level.
        deltas: delta by level, where it is stated; ``auto`` otherwise.
        attack_on: for membership: measured on the ``target`` model, on the ``shadow`` model as
            published, or on each.

    >>> [(row.method, row.level) for row in plan("accuracy", methods=["gap", "MLP"])]
    [('gap', 'none'), ('gap', 'edge'), ('gap', 'node'), ('mlp', 'edge'), ('mlp', 'node')]
    >>> [row.parameters["hops"] for row in plan("hops", levels=["node"], epsilons=[8])]
    [1, 2, 3, 4, 5]
    """
    from gapgnn.privacy import RELATIONS

    check_choice("experiment", experiment, EXPERIMENTS)
    check_choice("relation", relation, ("auto", *RELATIONS))
    design = _DESIGNS[experiment]
    by_name = {**_methods_of(experiment), **design.others}
    names = tuple(_methods_of(experiment))
    if methods is not None:
        names = tuple(dict.fromkeys(_known(name, tuple(by_name), experiment) for name in methods))
    wanted = LEVELS if levels is None else [check_choice("levels", one, LEVELS) for one in levels]
    budgets = None if epsilons is None else [check_number("epsilons", e, above=0) for e in epsilons]
    bases = [
        _without_budget(name, level, experiment, relation, deltas or {})
        for name in names
        for level in by_name[name]
        if level in wanted
    ]
    if not bases:
        raise InputError(
            f"`levels` must be of a row of {experiment}: "
            f"{', '.join(dict.fromkeys(level for name in names for level in by_name[name]))}. "
            f"Got {', '.join(wanted)}."
        )
    rows = []
    for base in bases:
        prices: Sequence[float | None] = [base.epsilon]
        if base.level != "none" and base.epsilon is None:
            prices = budgets or (design.edge if base.level == "edge" else design.node)
        for price, values in itertools.product(prices, itertools.product(*design.sweep.values())):
            swept: dict[str, Any] = dict(zip(design.sweep, values, strict=True))
            rows.append(replace(base, epsilon=price, parameters={**base.parameters, **swept}))
    if experiment in ATTACKS[1:]:
        return [replace(row, attack={"attack": experiment}) for row in rows]
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
    method: str, level: str, experiment: str, relation: str, deltas: Mapping[str, float | None]
) -> Configuration:
    """Return a row before it has an epsilon, which is None unless the row releases nothing."""
    from gapgnn.privacy import RELATIONS_OF_LEVEL

    return Configuration(
        experiment=experiment,
        method=method,
        estimator=method.split(" ", 1)[0],
        level=level,
        epsilon=0.0 if (method, level) in _FREE else None,
        relation=relation if relation in RELATIONS_OF_LEVEL[level] else "auto",
        delta=None if (method, level) in _PURE else deltas.get(level),
        parameters=dict(_row_of(method).parameters),
    )


def with_paper_delta(configuration: Configuration, *, arcs: int, nodes: int) -> Configuration:
    """Return a private row with delta as published: the power of ten below 1 / entities.

    The entities are arcs at edge level, where the paper's relation is ``directed``, and nodes at
    node level. A row that holds at delta 0 stays as it is.

    >>> row = plan("accuracy", methods=["gap"], levels=["node"])[0]
    >>> with_paper_delta(row, arcs=2_117_924, nodes=26_406).delta
    1e-05
    """
    entities = {"edge": arcs, "node": nodes}.get(configuration.level)
    is_pure = (configuration.method, configuration.level) in _PURE
    if entities is None or is_pure or not configuration.epsilon:
        return configuration
    return replace(configuration, delta=float(f"1e-{len(str(entities))}"))


def candidates(configuration: Configuration) -> list[Configuration]:
    """Return what is compared on validation accuracy for one row, as the paper does.

    Hops 1 to 5 for ``gap``, 1 to 5 layers for ``sage`` (at node level one is all there is), and at
    node level a degree bound of 100 to 400; of the others, whoever has such a parameter. What the
    row itself fixes, such as the number of hops in that ablation, stays.

    >>> [one.parameters["hops"] for one in candidates(plan("accuracy", levels=["edge"])[0])]
    [1, 2, 3, 4, 5]
    """
    choices: dict[str, tuple[int, ...]] = {}
    if configuration.estimator in ("gap", "progap", "label-gap"):
        choices["hops"] = HOPS
    if configuration.estimator == "sage" and configuration.level != "node":
        choices["layers"] = LAYERS
    if configuration.level == "node" and configuration.estimator in ("gap", "progap", "sage"):
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


def _known(name: str, allowed: Sequence[str], experiment: str) -> str:
    """Return the row somebody means, or name the nearest one this experiment has."""
    spellings = {_plain(known): known for known in allowed}
    if _plain(name) in spellings:
        return spellings[_plain(name)]
    near = did_you_mean(str(name).lower(), allowed)
    raise InputError(
        f"`methods` of {experiment} must be among {', '.join(allowed)}. Got {name!r}.{near}"
    )


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())
