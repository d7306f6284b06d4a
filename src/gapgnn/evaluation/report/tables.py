"""Tables of results: one description, written as Markdown, LaTeX, CSV and into the report.

The best mean of a block (the methods of one level and relation on one data set) is bold; a star
says that it is significantly better than the runner-up, paired over repeats that share their splits
(:func:`gapgnn.evaluation.metrics.paired_test`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gapgnn.evaluation import paired_test
from gapgnn.evaluation.grid import Record
from gapgnn.evaluation.report.plots import best_known, order, shown, unique, value_of
from gapgnn.evaluation.report.published import DATASETS as PAPER
from gapgnn.evaluation.report.published import published

SIGNIFICANCE = 0.05
_ACCURACY = "Test accuracy in percent"
LEVELS = {
    "none": "no privacy",
    "edge": "edge-level privacy",
    "node": "node-level privacy",
}


@dataclass(frozen=True)
class Cell:
    """One figure, as a fraction between 0 and 1; a published one has no interval and no repeats.

    The best has the highest mean of its block, and may be significantly better than the next.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    repeats: int = 0
    is_best: bool = False
    is_significant: bool = False

    @property
    def short(self) -> str:
        """The figure in percent.

        >>> Cell(0.763).short
        '76.3'
        """
        return f"{100 * self.mean:.1f}"

    @property
    def range(self) -> str:
        """The interval in percent; empty where there is none."""
        if self.low is None or self.high is None or self.repeats < 2:
            return ""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f}"

    @property
    def text(self) -> str:
        """The figure with its interval.

        >>> Cell(0.8312, 0.825, 0.837, 10).text
        '83.1 (82.5 to 83.7)'
        """
        return f"{self.short} ({self.range})" if self.range else self.short


@dataclass(frozen=True)
class Row:
    """One row: its block, what it is about, and its figures."""

    block: str
    keys: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """One table: ``keys`` are the heads of the leading columns, ``columns`` those of figures.

    The rows of a block stand together.
    """

    name: str
    title: str
    caption: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def tables(records: Sequence[Record]) -> list[Table]:
    """Return every table that the records have something for.

    >>> tables([])
    []
    """
    made = [
        _accuracy(records),
        _by_budget(records, "tradeoff", "edge", "Accuracy at each budget, edge level"),
        _by_budget(records, "tradeoff", "node", "Accuracy at each budget, node level"),
        _by_budget(records, "encoder", "edge", "Effect of the encoder, edge level"),
        _by_budget(records, "encoder", "node", "Effect of the encoder, node level"),
        _by_number(records, "hops", "hops", "K", "Effect of the number of hops"),
        _by_number(records, "degree", "max_degree", "D", "Effect of the degree bound"),
        _membership(records),
    ]
    return [table for table in made if table is not None]


def price(epsilon: float | None) -> str:
    """Write an epsilon; None is infinity.

    >>> price(None), price(0.5)
    ('∞', '0.5')
    """
    return "∞" if epsilon is None else f"{epsilon:g}"


def mark_best(records: Sequence[Record]) -> dict[str, tuple[bool, bool]]:
    """Return by key whether a record is the best of these, and whether significantly so.

    A single record is not the best of anything. Records whose repeats do not pair (other seed or
    other number of repeats) are never called significantly different.
    """
    if len(records) < 2:
        return {}
    first, second = sorted(records, key=lambda record: record.mean, reverse=True)[:2]
    pairs = first.seed == second.seed and len(first.runs) == len(second.runs)
    is_clear = pairs and paired_test(first.runs, second.runs) < SIGNIFICANCE
    return {first.key: (True, is_clear)}


def cell_of(record: Record, marks: dict[str, tuple[bool, bool]] | None = None) -> Cell:
    """Return the cell of one record."""
    value = value_of(record, 0.0)
    is_best, is_significant = (marks or {}).get(record.key, (False, False))
    return Cell(value.mean, value.low, value.high, value.repeats, is_best, is_significant)


def _accuracy(records: Sequence[Record]) -> Table | None:
    rows = [r for r in records if r.experiment == "accuracy" and r.metric == "test_accuracy"]
    if not rows:
        return None
    rows = best_known(rows, key=lambda r: (r.dataset, _block(r), shown(r), r.epsilon))
    datasets = unique(record.dataset for record in rows)
    marks: dict[str, tuple[bool, bool]] = {}
    for dataset, block, epsilon in unique((r.dataset, _block(r), r.epsilon) for r in rows):
        marks |= mark_best([r for r in rows if _competes(r, dataset, block, epsilon)])
    columns: dict[str, Callable[[Sequence[Record]], Cell | None]] = {}
    for dataset in datasets:
        columns[dataset] = partial(_cell_in, dataset=dataset, marks=marks)
        if any(published(dataset, record.method, record.epsilon) for record in rows):
            columns[f"{dataset}, published"] = partial(_published_in, dataset=dataset)
    made = []
    for block, label, epsilon in unique(
        (_block(r), shown(r), r.epsilon) for r in sorted(rows, key=lambda r: (_rank(r), order(r)))
    ):
        group = [r for r in rows if (_block(r), shown(r), r.epsilon) == (block, label, epsilon)]
        cells = tuple(choose(group) for choose in columns.values())
        made.append(Row(block, (label, price(epsilon)), cells))
    return Table(
        "accuracy",
        "All methods",
        f"{_ACCURACY}{_repeats(rows)}.",
        ("method", "ε"),
        tuple(columns),
        tuple(made),
        _notes(rows, marks),
    )


def _by_budget(records: Sequence[Record], experiment: str, level: str, title: str) -> Table | None:
    """Return a table with one column per epsilon, what is not private beside it."""
    rows = [r for r in records if r.experiment == experiment and r.level in (level, "none")]
    if not any(record.level == level for record in rows):
        return None
    label = _with_encoder if experiment == "encoder" else shown
    return _grid(f"{experiment}-{level}", title, rows, row=label, **_budgets(rows))


def _membership(records: Sequence[Record]) -> Table | None:
    rows = [r for r in records if r.experiment == "membership" and r.metric == "auc"]
    table = _grid("membership", "Membership attack", rows, row=shown, **_budgets(rows))
    if table is None:
        return None
    found = [row for name in PAPER for row in _published_attacks(name, rows)]
    if not found:
        return table
    note = "published: measured by the authors on the shadow model, not on the target."
    return replace(table, rows=(*table.rows, *found), notes=(*table.notes, note))


def _published_attacks(dataset: str, records: Sequence[Record]) -> list[Row]:
    budgets = _budgets(records)["columns"]
    made = []
    for method in unique(r.method for r in sorted(records, key=order) if r.dataset == dataset):
        found = [published(dataset, method, budget, experiment="membership") for budget in budgets]
        if any(number is not None for number in found):
            cells = tuple(None if number is None else Cell(number) for number in found)
            made.append(Row(f"{dataset}, published", (method.replace("-inf", "-∞"),), cells))
    return made


def _budgets(records: Sequence[Record]) -> dict[str, Any]:
    """Return how epsilons become columns; infinity is the last one."""
    finite = sorted(unique(r.epsilon for r in records if r.epsilon is not None))
    return {
        "column": lambda record: record.epsilon,
        "columns": [*finite, *([None] if any(r.epsilon is None for r in records) else [])],
        "head": lambda epsilon: f"ε = {price(epsilon)}",
    }


def _by_number(
    records: Sequence[Record], experiment: str, parameter: str, symbol: str, title: str
) -> Table | None:
    """Return a table with one column per value of a parameter."""
    rows = [r for r in records if r.experiment == experiment and parameter in r.parameters]
    return _grid(
        experiment,
        title,
        rows,
        row=lambda record: f"{shown(record)}, ε = {price(record.epsilon)}",
        column=lambda record: record.parameters[parameter],
        columns=sorted(unique(record.parameters[parameter] for record in rows)),
        head=lambda value: f"{symbol} = {value:g}",
    )


def _grid(
    name: str,
    title: str,
    records: Sequence[Record],
    *,
    row: Callable[[Record], str],
    column: Callable[[Record], Any],
    columns: Sequence[Any],
    head: Callable[[Any], str],
) -> Table | None:
    if not records:
        return None
    chosen = best_known(records, key=lambda r: (r.dataset, _block(r), row(r), column(r)))
    chosen.sort(key=lambda r: (_rank(r), order(r)))
    made = []
    for dataset in unique(record.dataset for record in records):
        here = [record for record in chosen if record.dataset == dataset]
        for block, label in unique((_block(record), row(record)) for record in here):
            found = {
                column(record): cell_of(record)
                for record in here
                if (_block(record), row(record)) == (block, label)
            }
            cells = tuple(found.get(value) for value in columns)
            made.append(Row(f"{dataset}, {block}", (label,), cells))
    is_attack = name == "membership"
    what = "AUC of the attack in percent; 50 is guessing" if is_attack else _ACCURACY
    return Table(
        name,
        title,
        f"{what}{_repeats(chosen)}.",
        ("method",),
        tuple(head(value) for value in columns),
        tuple(made),
        _notes(chosen, {}),
    )


def _with_encoder(record: Record) -> str:
    has = record.parameters.get("encoder_layers") != 0
    return f"{shown(record)}, {'with' if has else 'without'} encoder"


def _block(record: Record) -> str:
    return LEVELS[record.level] + ("" if record.level == "none" else f", {record.relation}")


def _rank(record: Record) -> int:
    return list(LEVELS).index(record.level)


def _competes(record: Record, dataset: str, block: str, epsilon: float | None) -> bool:
    """Tell whether a record stands in a block at a budget; who reads no edge always does."""
    is_here = (record.dataset, _block(record)) == (dataset, block)
    return is_here and epsilon != 0 and record.epsilon in (epsilon, 0.0)


def _cell_in(
    group: Sequence[Record], dataset: str, marks: dict[str, tuple[bool, bool]]
) -> Cell | None:
    return next((cell_of(r, marks) for r in group if r.dataset == dataset), None)


def _published_in(group: Sequence[Record], dataset: str) -> Cell | None:
    number = published(dataset, group[0].method, group[0].epsilon)
    return None if number is None else Cell(number)


def _repeats(records: Sequence[Record]) -> str:
    counts = sorted({len(record.runs) for record in records})
    if counts == [1]:
        return ", one repeat"
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f", mean of {many} repeats with the 95 % bootstrap interval"


def _notes(records: Sequence[Record], marks: dict[str, tuple[bool, bool]]) -> tuple[str, ...]:
    notes = []
    if marks:
        notes.append("Bold: best of its block.")
    if any(is_significant for _, is_significant in marks.values()):
        notes.append(
            "* significantly better than the runner-up of its block "
            f"(paired over repeats, p < {SIGNIFICANCE:g})."
        )
    if any("labels" in record.method for record in records):
        notes.append(
            "labels: this package's default, training labels travel along the edges; "
            "the other GAP rows are the method as published."
        )
    if any(record.select == "validation" for record in records):
        notes.append(
            "selected: parameters were chosen by validation accuracy; that choice is not "
            "covered by epsilon."
        )
    return tuple(notes)
