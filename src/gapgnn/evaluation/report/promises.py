"""The report's plain words: what was protected, what each budget means, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gapgnn.evaluation.grid import Record
from gapgnn.evaluation.report.plots import order, shown, unique
from gapgnn.evaluation.report.tables import price
from gapgnn.privacy.card import texts as texts

TITLES = {
    "undirected": "One friendship",
    "directed": "One link",
    "add-remove": "One person's record",
    "replace": "One person's record, exchanged",
}


@dataclass(frozen=True)
class Budget:
    """What one epsilon means.

    Attributes:
        epsilon: as asked.
        delta: likewise.
        odds: the factor by which odds can move.
        guess: how often a 50:50 guess can become right.
    """

    epsilon: str
    delta: str
    odds: str
    guess: str


@dataclass(frozen=True)
class Protection:
    """One sense in which something was protected."""

    title: str
    level: str
    relation: str
    entity: str
    methods: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    budgets: tuple[Budget, ...]


def protections(records: Sequence[Record]) -> list[Protection]:
    """Return every sense in which the results are protected, in words for people.

    Privacy page, section 1. Node-level texts state the weaker notion (a person's own record), which
    holds whatever the degrees are.

    >>> protections([])
    []
    """
    found = []
    for level, relation in unique((r.level, r.relation) for r in records if r.epsilon):
        here = [r for r in records if (r.level, r.relation) == (level, relation) and r.epsilon]
        notion = "own record" if level == "node" else None
        found.append(
            Protection(
                TITLES.get(relation, relation),
                level,
                relation,
                texts.ENTITIES[relation].format(place="the data"),
                ", ".join(unique(map(shown, sorted(here, key=order)))),
                texts.covered(level, relation, notion=notion),
                texts.not_covered(level, relation, notion=notion),
                tuple(_budgets(here)),
            )
        )
    return sorted(found, key=lambda one: one.level)


def _budgets(records: Sequence[Record]) -> list[Budget]:
    return [
        Budget(
            price(epsilon),
            small(delta),
            _spaced(texts.odds(epsilon)),
            right_guesses(epsilon, delta),
        )
        for epsilon, delta in sorted(unique((r.epsilon, r.delta or 0.0) for r in records))
    ]


def _spaced(number: str) -> str:
    return f"{int(number):,}" if number.isdigit() else number


def small(number: float) -> str:
    """Write a small number without the padding of its exponent.

    >>> small(1e-6), small(0.0)
    ('1e-6', '0')
    """
    return f"{number:g}".replace("e-0", "e-")


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
        "Every repeat is a release of its own. The promise is about one of them; whoever "
        "publishes several pays for each.",
    ]
    private = [record for record in records if record.epsilon]
    if any(record.extra.get("noise") == "fast" for record in private):
        lines.append(
            "These models were trained with fast noise, for experiments: it can leak through gaps "
            "between floating-point numbers. A model that leaves the house is trained again with "
            "safe noise, the default of gapgnn train."
        )
    if any(record.select == "validation" for record in records):
        lines.append(
            "Rows marked “selected” had their parameters chosen by validation accuracy. The "
            "candidates queried the data too, and that is not covered by epsilon."
        )
    if any(record.level == "none" for record in records):
        lines.append(
            "Rows with ε = ∞ promise nothing. They are for comparison and must not be released."
        )
    return lines
