"""What the report says: results turned into sentences, cards and rows, ready for the template.

No fingerprint and no content key of a record goes into a page: both are exact functions of the
data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gapgnn.evaluation import bootstrap_interval, paired_test
from gapgnn.evaluation.grid import FIGURES, Record
from gapgnn.evaluation.report.findings import Attack, Audit
from gapgnn.evaluation.report.plots import (
    best_known,
    headlined,
    order,
    setting,
    shown,
    small,
    unique,
)
from gapgnn.evaluation.report.tables import SIGNIFICANCE, cell_of, price
from gapgnn.graph import Wording
from gapgnn.privacy import links_of, parse_relation
from gapgnn.privacy.card import texts as texts

# The experiments that vary nothing but the method and the budget.
COMPARED = ("tradeoff", "accuracy")
# The methods whose mechanism an audit runs, with the levels where they have it.
HOPS = {
    "gap": ("edge", "node"),
    "progap": ("edge", "node"),
    "label-gap": ("edge",),
    "node-label-gap": ("node",),
}
AUDITED: dict[str, dict[str, tuple[str, ...]]] = {
    "aggregation": HOPS,
    "prediction": HOPS,
    "sampler": {"gap": ("node",), "progap": ("node",), "sage": ("node",)},
    "dpsgd": dict.fromkeys(("gap", "progap", "node-label-gap", "mlp"), ("node",)),
    "edges": {"sage": ("edge",)},
}
TITLES = {
    "undirected": "One undirected edge",
    "directed": "One arc",
    "add-remove": "One person's record",
    "replace": "One person's record, exchanged",
}


def _title(relation: str) -> str:
    """Return the heading of a relation: of one that names a number, with it.

    >>> _title("undirected"), _title("5-edges")
    ('One undirected edge', "Up to 5 of one person's edges")
    """
    if relation in TITLES:
        return TITLES[relation]
    links = links_of(relation)
    to_others = " to others" if links.are_arcs else ""
    return f"Up to {links.count} of one person's edges{to_others}"


def tiles(records: Sequence[Record], dataset: str) -> list[dict[str, Any]]:
    """Return the best row of each level of one data set, with the budget it used.

    Best by the figure that the data set is judged by; the others stand beside it. A row that is no
    better than its largest class says so, and so does a private one that is no better than ignoring
    the graph: its budget bought nothing.
    """
    here = headlined(r for r in records if r.dataset == dataset and r.metric == "test_accuracy")
    rows = [r for r in here if r.experiment == "accuracy"]
    rows = rows or [r for r in here if r.experiment == "tradeoff"]
    joint = [r for r in rows if r.is_joint]
    others = [r for r in rows if not r.is_joint]
    groups = {
        "Without privacy": [r for r in others if r.level == "none"],
        "Best private, edge level": [r for r in others if r.level == "edge" and r.epsilon],
        "Best private, node level": [r for r in others if r.level == "node" and r.epsilon],
        "To each their own, edge level": [r for r in joint if r.level == "edge"],
        "To each their own, node level": [r for r in joint if r.level == "node"],
        "Without the graph": [r for r in others if r.level == "edge" and r.epsilon == 0],
    }
    made = []
    for what, group in groups.items():
        if group:
            # Of equal rows the one that costs least.
            best = max(group, key=lambda record: (record.mean, -(record.epsilon or 0)))
            note = _against_no_graph(best, rows) if best.epsilon else ""
            made.append(
                {
                    "what": what,
                    "cell": cell_of(best),
                    "figure": FIGURES[best.headline],
                    "how": _how(best),
                    "beside": _beside(best),
                    "note": note,
                    "faults": _faults(best),
                }
            )
    return made


def _beside(record: Record) -> list[tuple[str, str]]:
    """Return the other figures of a row in words and percent."""
    found = {name: record.figures(name) for name in FIGURES if name != record.headline}
    return [
        # On a phone a tile has no room for the second word.
        (FIGURES[name].removesuffix(" accuracy"), f"{100 * sum(values) / len(values):.1f} %")
        for name, values in found.items()
        if values
    ]


def _faults(record: Record) -> list[str]:
    """Return in sentences what a row fails at whatever the graph."""
    from gapgnn.training import Metrics, shortcomings

    metrics = [Metrics.from_dict(one) for one in record.extra.get("metrics", ())]
    asked = {
        name: record.parameters[name]
        for name in ("metric", "threshold")
        if name in record.parameters
    }
    return shortcomings(metrics, **asked) if metrics else []


def _against_no_graph(best: Record, rows: Sequence[Record]) -> str:
    """Say where the best private row of a level is no better than features alone."""
    if best.method == "mlp":
        return "This row ignores the graph: no row that reads it is better."
    plain = [
        r
        for r in rows
        if r.method == "mlp"
        and r.level == best.level
        and r.epsilon is not None
        and r.epsilon <= (best.epsilon or 0)
    ]
    if not plain:
        return ""
    rival = max(plain, key=lambda record: record.mean)
    if _is_better(best, rival):
        return ""
    return f"No better than ignoring the graph ({shown(rival)}: {100 * rival.mean:.1f} %)."


def _is_better(one: Record, other: Record) -> bool:
    """Whether a row is significantly better: by a paired test over repeats, or by intervals."""
    if one.mean <= other.mean:
        return False
    enough = len(one.runs) == len(other.runs) >= 6 and one.seed == other.seed
    if enough:
        return paired_test(one.runs, other.runs) < SIGNIFICANCE
    if min(len(one.runs), len(other.runs)) == 1:
        return True  # nothing is known about chance
    return bootstrap_interval(one.runs)[0] > bootstrap_interval(other.runs)[1]


def _how(record: Record) -> str:
    if record.epsilon is None:
        return shown(record)
    words = [shown(record), f"ε\u00a0=\u00a0{price(record.epsilon)}"]
    words.append(f"δ\u00a0=\u00a0{small(record.delta or 0.0)}")
    if record.level == "node":
        words += [f"own {record.own}", f"notion {record.notion}"]
    elif record.is_joint:
        words.append("reads own neighbours")
    return ", ".join(words)


def checked(records: Sequence[Record], audits: Sequence[Audit]) -> list[dict[str, Any]]:
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
        attacked = [r for r in same if r.experiment == "membership" and r.metric == "auc"]
        attack = best_known(attacked, key=lambda r: r.metric)
        found = _audits_of([r for r in same if r.experiment in COMPARED], audits)
        if attack or found:
            # From the experiments that vary nothing else.
            accuracy = [
                cell_of(record)
                for experiment in COMPARED
                for record in same
                if record.experiment == experiment and record.metric == "test_accuracy"
            ]
            rows.append(
                {
                    "dataset": dataset,
                    "method": method,
                    "level": level,
                    "epsilon": price(epsilon),
                    "accuracy": accuracy[0] if accuracy else None,
                    "attack": cell_of(attack[0]) if attack else None,
                    "audits": found,
                }
            )
    return rows


def _audits_of(records: Sequence[Record], audits: Sequence[Audit]) -> tuple[Audit, ...]:
    """Return the audits of a row's mechanisms at the same noise, or else at the same budget.

    At node level the hops have only a part of the budget, so there the noise must be equal.
    """
    found: list[Audit] = []
    for mechanism, methods in AUDITED.items():
        rows = [r for r in records if r.epsilon and r.level in methods.get(r.estimator, ())]
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


def released(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what every private row released, in words."""
    rows = [r for r in records if r.epsilon and r.events]
    chosen = best_known(
        rows, key=lambda r: (r.dataset, setting(r), r.relation, r.epsilon, _events(r))
    )
    datasets = unique(record.dataset for record in records)
    chosen.sort(key=lambda r: (datasets.index(r.dataset), order(r), r.epsilon))
    return [
        {
            "dataset": record.dataset,
            "method": setting(record),
            "relation": record.relation,
            "epsilon": price(record.epsilon),
            "accounted": _accounted(record),
            "delta": small(record.delta or 0.0),
            "events": _events(record),
        }
        for record in chosen
    ]


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
    event_type, values = str(event.get("event", "event")), dict(event)
    label = f"{values['label']}: " if values.get("label") else ""
    noise = f"noise multiplier {_short(values.get('noise_multiplier'))}"
    times = values.get("count", 1)
    many = "" if times == 1 else f"{times} x "
    if event_type in ("Gaussian", "Laplace"):
        return f"{label}{many}{event_type}, {noise}"
    if event_type == "PoissonGaussian":
        rate = _short(values.get("sampling_rate"))
        return f"{label}{values.get('steps')} DP-SGD steps at sampling rate {rate}, {noise}"
    if event_type in ("MixtureOfGaussians", "SubgraphGaussian"):
        return (
            f"{label}{values.get('steps')} DP-SGD steps on sub-graphs (Gaussian mixture), {noise}"
        )
    if event_type == "RandomisedResponse":
        drop, add = _short(values.get("drop")), _short(values.get("add"))
        return (
            f"{label}{many}randomised response, an edge is dropped with probability {drop} and "
            f"added with {add}"
        )
    if event_type == "LabelResponse":
        other = _short(values.get("other"))
        return (
            f"{label}{many}randomised response, a label is reported as each of the "
            f"{int(values['classes']) - 1} others with probability {other}"
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


def protections(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return every guarantee of the results, in words.

    Privacy page, section 1. Node-level texts state the weaker notion (a person's own record), which
    holds for all degrees. Rows that read the node's own neighbours have another guarantee.

    >>> protections([])
    []
    """
    found = []
    private = [r for r in records if r.epsilon or r.is_joint]
    for level, relation, is_joint in unique((r.level, r.relation, r.is_joint) for r in private):
        sense = (level, relation, is_joint)
        here = [r for r in private if (r.level, r.relation, r.is_joint) == sense]
        promised = parse_relation(relation, level)
        notion = "own record" if level == "node" else None
        own = "record" if is_joint else ""
        covered = texts.covered(promised, notion=notion)
        not_covered = texts.not_covered(promised, notion=notion, own=own)
        said = Wording().fill
        budgets = sorted(unique((r.epsilon, r.delta or 0.0) for r in here))
        found.append(
            {
                "title": _title(relation) + (", own neighbours read" if is_joint else ""),
                "level": level,
                "relation": relation,
                "entity": said(texts.hidden(promised, "the data")),
                "methods": ", ".join(unique(map(shown, sorted(here, key=order)))),
                "covered": tuple(map(said, (*covered, *texts.covered_own(level, own)))),
                "not_covered": tuple(map(said, not_covered)),
                "budgets": [_budget(*pair) for pair in budgets],
            }
        )
    return sorted(found, key=lambda one: str(one["level"]))


def _budget(epsilon: float, delta: float) -> dict[str, str]:
    """Return what one epsilon means: the factor of the odds, and how often a guess is right."""
    odds = texts.odds(epsilon)
    return {
        "epsilon": price(epsilon),
        "delta": small(delta),
        "odds": f"{int(odds):,}" if odds.isdigit() else odds,
        "guess": right_guesses(epsilon, delta),
    }


def right_guesses(epsilon: float, delta: float) -> str:
    """Return how often a guess that was 50:50 before can be right, at most, rounded up.

    For two neighbours and any test, (epsilon, delta) leaves missed plus false alarms at least
    2 (1 - delta) / (1 + e^epsilon) (privacy page, section 8), so right guesses are at most
    (e^epsilon + delta) / (1 + e^epsilon).

    >>> right_guesses(1.0, 0.0), right_guesses(8.0, 1e-5), right_guesses(16.0, 1e-5)
    ('73.2 %', '99.97 %', 'nearly always')
    """
    share = 100 * (1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0))))
    if share > 99.99:
        return "nearly always"
    digits = 2 if share > 99.9 else 1
    return f"{math.ceil(share * 10**digits - 1e-9) / 10**digits:.{digits}f} %"


def cautions(records: Sequence[Record]) -> list[str]:
    """Return what a reader must know before handing this page or a model on."""
    lines = [
        "This page is not a private release. Accuracies and attack figures are computed from the "
        "true data without noise. For data that is not public, keep the page with the curator.",
        "Every repeat is a separate release. The guarantee holds for one of them; publishing "
        "several costs the budget of each.",
    ]
    if any(record.level == "node" for record in records):
        lines.append(
            "At node level labels are private. Accuracy, balanced accuracy, F1, AUC, precision and "
            "recall of such rows are for the curator only; no ε covers them."
        )
    private = [record for record in records if record.epsilon]
    if any(record.extra.get("noise") == "fast" for record in private):
        lines.append(
            "These models were trained with fast noise, for experiments: it can leak through gaps "
            "between floating-point numbers. Train a model that is to be released again with "
            "safe noise, the default of gapgnn train."
        )
    if any(record.select == "validation" for record in records):
        lines.append(
            "Rows marked “selected” had their parameters chosen by validation accuracy. The "
            "candidates queried the data too, and that is not covered by epsilon."
        )
    if any(record.level == "none" for record in records):
        lines.append(
            "Rows with ε = ∞ have no guarantee. They are for comparison and must not be released."
        )
    return lines
