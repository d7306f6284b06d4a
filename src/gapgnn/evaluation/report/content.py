"""What the report says: results turned into sentences, cards and rows, ready for the template.

No fingerprint and no content key of a record goes into a page: both are exact functions of the
data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gapgnn.evaluation.grid import Record
from gapgnn.evaluation.report.findings import Attack, Audit
from gapgnn.evaluation.report.plots import best_known, order, shown, unique
from gapgnn.evaluation.report.promises import small
from gapgnn.evaluation.report.tables import Cell, cell_of, price
from gapgnn.privacy.card import texts as texts

SWEPT = {
    "encoder": ("encoder_layers", "encoder layers"),
    "hops": ("hops", "K ="),
    "degree": ("max_degree", "D ="),
}
# The experiments that vary nothing but the method and the budget.
COMPARED = ("tradeoff", "accuracy")
# Beginnings of the methods whose mechanism an audit runs.
AUDITED = {
    "aggregation": ("GAP",),
    "prediction": ("GAP",),
    "sampler": ("GAP-NDP", "SAGE-NDP"),
    "dpsgd": ("GAP-NDP", "MLP-DP"),
    "edges": ("SAGE-EDP",),
}


@dataclass(frozen=True)
class Tile:
    """One figure at the top of the page."""

    what: str
    cell: Cell
    how: str


@dataclass(frozen=True)
class Checked:
    """Accuracy, attack and audit of one row at one budget."""

    dataset: str
    method: str
    epsilon: str
    accuracy: Cell | None
    attack: Cell | None
    audits: tuple[Audit, ...]


@dataclass(frozen=True)
class Released:
    """What one row released on private data."""

    dataset: str
    method: str
    relation: str
    epsilon: str
    accounted: str
    delta: str
    events: tuple[str, ...]


def tiles(records: Sequence[Record], dataset: str) -> list[Tile]:
    """Return the best figure per level of one data set, at the budgets of the accuracy table."""
    here = [r for r in records if r.dataset == dataset and r.metric == "test_accuracy"]
    rows = [r for r in here if r.experiment == "accuracy"]
    rows = rows or [r for r in here if r.experiment == "tradeoff"]
    groups = {
        "Without privacy": [r for r in rows if r.level == "none"],
        "Edge level": _nearest([r for r in rows if r.level == "edge" and r.epsilon], 4.0),
        "Node level": _nearest([r for r in rows if r.level == "node" and r.epsilon], 8.0),
        "Without the graph": [r for r in rows if r.epsilon == 0],
    }
    made = []
    for what, group in groups.items():
        if group:
            best = max(group, key=lambda record: record.mean)
            made.append(Tile(what, cell_of(best), _how(best)))
    return made


def _nearest(records: Sequence[Record], budget: float) -> list[Record]:
    """Return the records of the one budget that is nearest to the paper's."""
    budgets = sorted({r.epsilon for r in records if r.epsilon})
    if not budgets:
        return []
    nearest = min(budgets, key=lambda epsilon: abs(math.log(epsilon / budget)))
    return [record for record in records if record.epsilon == nearest]


def _how(record: Record) -> str:
    if record.epsilon is None:
        return shown(record)
    return f"{shown(record)}, ε = {price(record.epsilon)}"


def checked(records: Sequence[Record], audits: Sequence[Audit]) -> list[Checked]:
    """Return accuracy, attack and audit side by side, for every row that has one."""
    rows = []
    visible = sorted(
        records, key=lambda r: (order(r), math.inf if r.epsilon is None else r.epsilon)
    )
    keys = unique((r.dataset, r.level, r.relation, shown(r), r.epsilon) for r in visible)
    datasets = unique(record.dataset for record in records)
    for key in sorted(keys, key=lambda key: datasets.index(key[0])):
        dataset, level, relation, method, epsilon = key
        same = [
            r
            for r in visible
            if (r.dataset, r.level, shown(r), r.epsilon) == (dataset, level, method, epsilon)
            and r.relation == relation
        ]
        attack = best_known([r for r in same if r.metric == "auc"], key=lambda r: r.metric)
        found = _audits_of([r for r in same if r.experiment in COMPARED], audits)
        if attack or found:
            accuracy = _accuracy_of(same)
            rows.append(
                Checked(
                    dataset,
                    method,
                    price(epsilon),
                    None if accuracy is None else cell_of(accuracy),
                    cell_of(attack[0]) if attack else None,
                    found,
                )
            )
    return rows


def _audits_of(records: Sequence[Record], audits: Sequence[Audit]) -> tuple[Audit, ...]:
    """Return the audits of a row's mechanisms at its very noise, or else at its budget.

    At node level the hops have only a part of the budget, so there the noise has to be the same.
    """
    found: list[Audit] = []
    for mechanism, methods in AUDITED.items():
        rows = [r for r in records if r.epsilon and r.method.startswith(methods)]
        here = [a for a in audits if a.mechanism == mechanism]
        pairs = [(a, r) for a in here for r in rows if a.relation == r.relation]
        exact = unique(audit for audit, record in pairs if _has_noise(record, audit))
        is_part = mechanism == "aggregation" and any(r.level == "node" for r in rows)
        near = unique(
            audit
            for audit, record in pairs
            if record.epsilon and math.isclose(audit.epsilon, record.epsilon, rel_tol=0.01)
        )
        found += exact or ([] if is_part else near)
    return tuple(found)


def _has_noise(record: Record, audit: Audit) -> bool:
    noises = [e.get("noise_multiplier") for e in record.events if isinstance(e, Mapping)]
    return audit.noise_multiplier is not None and any(
        isinstance(noise, float) and math.isclose(noise, audit.noise_multiplier, rel_tol=1e-6)
        for noise in noises
    )


def _accuracy_of(records: Sequence[Record]) -> Record | None:
    """Return the accuracy of a row, from the experiments that vary nothing else."""
    for experiment in COMPARED:
        for record in records:
            if record.experiment == experiment and record.metric == "test_accuracy":
                return record
    return None


def released(records: Sequence[Record]) -> list[Released]:
    """Return what every private row released, in words."""
    rows = [r for r in records if r.epsilon and r.events]
    chosen = best_known(
        rows, key=lambda r: (r.dataset, _setting(r), r.relation, r.epsilon, _events(r))
    )
    datasets = unique(record.dataset for record in records)
    chosen.sort(key=lambda r: (datasets.index(r.dataset), order(r), r.epsilon))
    return [
        Released(
            record.dataset,
            _setting(record),
            record.relation,
            price(record.epsilon),
            _accounted(record),
            small(record.delta or 0.0),
            _events(record),
        )
        for record in chosen
    ]


def _setting(record: Record) -> str:
    """Return a row's label with what its ablation varied."""
    name, symbol = SWEPT.get(record.experiment, ("", ""))
    value = record.parameters.get(name)
    return shown(record) if value is None else f"{shown(record)}, {symbol} {value}"


def _accounted(record: Record) -> str:
    value = record.extra.get("accounted_epsilon")
    return texts.rounded_up(value) if isinstance(value, int | float) else ""


def _events(record: Record) -> tuple[str, ...]:
    return tuple(event if isinstance(event, str) else event_words(event) for event in record.events)


def event_words(event: Mapping[str, Any]) -> str:
    """Describe one released event.

    >>> event_words({"event": "Gaussian", "noise_multiplier": 5.9, "count": 2, "label": "hops"})
    'hops: 2 x Gaussian, noise multiplier 5.9'
    >>> event_words({"event": "RandomisedResponse", "drop": 0.1, "add": 0.001, "count": 1})
    'randomised response, an edge is dropped with probability 0.1 and added with 0.001'
    """
    kind, values = str(event.get("event", "event")), dict(event)
    label = f"{values['label']}: " if values.get("label") else ""
    noise = f"noise multiplier {_short(values.get('noise_multiplier'))}"
    times = values.get("count", 1)
    many = "" if times == 1 else f"{times} x "
    if kind in ("Gaussian", "Laplace"):
        return f"{label}{many}{kind}, {noise}"
    if kind == "PoissonGaussian":
        rate = _short(values.get("sampling_rate"))
        return f"{label}{values.get('steps')} DP-SGD steps at sampling rate {rate}, {noise}"
    if kind == "MixtureOfGaussians":
        return (
            f"{label}{values.get('steps')} DP-SGD steps on sub-graphs (Gaussian mixture), {noise}"
        )
    if kind == "RandomisedResponse":
        drop, add = _short(values.get("drop")), _short(values.get("add"))
        return (
            f"{label}{many}randomised response, an edge is dropped with probability {drop} and "
            f"added with {add}"
        )
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def commands(records: Sequence[Record], audits: Sequence[Audit]) -> dict[str, list[str]]:
    """Return the commands that make every row again, by experiment."""
    found = {
        experiment: unique(r.command for r in records if r.experiment == experiment)
        for experiment in unique(record.experiment for record in records)
    }
    audited = unique(audit.command for audit in audits if audit.command)
    return {**found, **({"audits": audited} if audited else {})}


def other_attacks(attacks: Sequence[Attack]) -> list[Attack]:
    """Return single attacks in order of data set, attack and budget."""
    return sorted(
        attacks,
        key=lambda one: (one.dataset, one.attack, one.method, one.epsilon or math.inf),
    )
