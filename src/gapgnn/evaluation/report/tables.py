"""Tables of results: one description, written as Markdown, LaTeX, CSV and into the report.

The best mean of a block (the methods of one level and relation on one data set) is bold; a star
says that it is significantly better than the runner-up, paired over repeats that share their splits
(:func:`gapgnn.evaluation.metrics.paired_test`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gapgnn.errors import check_choice
from gapgnn.evaluation import INTERVAL_REPEATS, paired_test, shown_interval
from gapgnn.evaluation.grid import ATTACKS, FIGURES, Record
from gapgnn.evaluation.report.plots import (
    ATTACK_TITLES,
    best_known,
    curve_groups,
    curve_values,
    deltas,
    headlined,
    named,
    order,
    ranked_class,
    row_title,
    setting,
    shown,
    unique,
    value_of,
)
from gapgnn.training import CURVE_RECALLS, TOP_SHARES, Ranking

SIGNIFICANCE = 0.05
_ACCURACY = "Test accuracy in percent"
LEVELS = {
    "none": "no privacy",
    "edge": "edge-level privacy",
    "node": "node-level privacy",
}
# Figures from the papers, in percent. All were measured by their authors on graphs of these names,
# under the relation that this package calls `directed`, with a Renyi accountant and with parameters
# chosen by validation accuracy.

# The papers' graphs under this package's names: Facebook, Reddit, Amazon.
DATASETS = ("facebook100/UIllinois20", "reddit", "amazon")

# Test accuracy by method, level and epsilon (None is infinity), in the order of DATASETS. ProGAP
# (2024) computes delta from an edge count of 0, so its edge-level epsilon holds at delta 0.1 only.
ACCURACY: dict[tuple[str, str, float | None], tuple[float, float, float]] = {
    ("gap", "none", None): (80.0, 99.4, 91.2),
    ("sage", "none", None): (83.2, 99.1, 92.7),
    ("gap", "edge", 4.0): (76.3, 98.7, 83.8),
    ("sage", "edge", 4.0): (50.4, 84.6, 68.3),
    ("mlp", "edge", 0.0): (50.8, 82.4, 71.1),
    ("gap", "node", 8.0): (63.2, 94.0, 77.4),
    ("sage", "node", 8.0): (37.2, 60.5, 27.5),
    ("mlp", "node", 8.0): (50.2, 81.5, 73.6),
    ("progap", "edge", 1.0): (77.2, 97.8, 84.2),
    ("progap", "node", 8.0): (69.3, 94.0, 79.1),
}

# AUC of the membership attack, measured on the shadow model (not the target).
MEMBERSHIP: dict[tuple[str, str, float | None], tuple[float, float, float]] = {
    ("gap", "node", 1.0): (50.16, 50.04, 50.06),
    ("gap", "node", 2.0): (50.25, 50.39, 50.23),
    ("gap", "node", 4.0): (50.61, 51.20, 50.54),
    ("gap", "node", 8.0): (51.11, 52.23, 51.53),
    ("gap", "node", 16.0): (52.66, 52.54, 51.72),
    ("gap", "none", None): (81.67, 54.97, 66.68),
    ("sage", "node", 1.0): (50.25, 49.97, 49.93),
    ("sage", "node", 2.0): (50.20, 49.97, 49.93),
    ("sage", "node", 4.0): (50.23, 49.95, 49.93),
    ("sage", "node", 8.0): (50.17, 50.00, 49.92),
    ("sage", "node", 16.0): (50.20, 49.98, 49.97),
    ("sage", "none", None): (62.49, 50.05, 59.41),
    ("mlp", "node", 1.0): (50.32, 51.25, 50.30),
    ("mlp", "node", 2.0): (50.72, 53.09, 50.58),
    ("mlp", "node", 4.0): (52.13, 55.13, 51.43),
    ("mlp", "node", 8.0): (53.44, 56.72, 52.31),
    ("mlp", "node", 16.0): (54.77, 58.32, 53.34),
    ("mlp", "none", None): (81.57, 71.35, 72.97),
}
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "∞": r"$\infty$",
    }
)
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&])")


@dataclass(frozen=True)
class Cell:
    """One figure, as a fraction between 0 and 1; a published one has no interval and no repeats.

    A ratio is a number of times, not shown in percent. The best has the highest mean of its
    block, and may be significantly better than the next.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    repeats: int = 0
    is_best: bool = False
    is_significant: bool = False
    is_ratio: bool = False

    @property
    def short(self) -> str:
        """The figure in percent, or how many times.

        >>> Cell(0.763).short, Cell(3.14, is_ratio=True).short
        ('76.3', '3.1')
        """
        return self._written(self.mean)

    @property
    def range(self) -> str:
        """The interval in the same unit; empty where there is none."""
        if self.low is None or self.high is None or self.repeats < INTERVAL_REPEATS:
            return ""
        return f"{self._written(self.low)} to {self._written(self.high)}"

    @property
    def text(self) -> str:
        """The figure with its interval.

        >>> Cell(0.8312, 0.825, 0.837, 10).text
        '83.1 (82.5 to 83.7)'
        """
        return f"{self.short} ({self.range})" if self.range else self.short

    def _written(self, value: float) -> str:
        return f"{value if self.is_ratio else 100 * value:.1f}"


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

    One of accuracies is followed by one with what stands beside accuracy, where the records have
    it.

    >>> tables([])
    []
    """
    judged = headlined(records)
    made = [
        _accuracy(judged),
        _by_budget(judged, "tradeoff", "edge", "Accuracy at each budget, edge level"),
        _by_budget(judged, "tradeoff", "node", "Accuracy at each budget, node level"),
        _by_budget(judged, "encoder", "edge", "Effect of the encoder, edge level"),
        _by_budget(judged, "encoder", "node", "Effect of the encoder, node level"),
        _by_number(judged, "hops", "hops", "K", "Effect of the number of hops"),
        _by_number(judged, "degree", "max_degree", "D", "Effect of the degree bound"),
        _membership(judged),
        *(_attack(judged, experiment) for experiment in ATTACKS[1:]),
    ]
    ranked = (_ranking(records), _curves(judged))
    return [
        table for one in made if one is not None for table in (one, _beside(one, records)) if table
    ] + [table for table in ranked if table is not None]


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
    columns: list[tuple[str, bool]] = []
    for dataset in datasets:
        columns.append((dataset, False))
        if any(published(dataset, r.method, r.level, r.epsilon) for r in rows):
            columns.append((dataset, True))
    made = []
    for block, label, epsilon in unique(
        (_block(r), shown(r), r.epsilon) for r in sorted(rows, key=lambda r: (_rank(r), order(r)))
    ):
        group = [r for r in rows if (_block(r), shown(r), r.epsilon) == (block, label, epsilon)]
        own = {r.dataset: cell_of(r, marks) for r in reversed(group)}
        cells = tuple(
            _published_cell(dataset, group[0], epsilon) if from_paper else own.get(dataset)
            for dataset, from_paper in columns
        )
        made.append(Row(block, (label, *_promised(group, rows), price(epsilon)), cells))
    heads = {record.dataset: named(record) for record in rows}
    return Table(
        "accuracy",
        "All methods",
        f"{_what(rows)}{_repeats(rows)}.{deltas(rows)}",
        ("method", *_promise_heads(rows), "ε"),
        tuple(f"{name}, published" if from_paper else heads[name] for name, from_paper in columns),
        tuple(made),
        (*_notes(rows, marks), *filter(None, [unpublished(datasets)])),
    )


def _beside(table: Table, records: Sequence[Record]) -> Table | None:
    """Return what stands beside the accuracies of a table, if any record has it."""
    experiment, _, level = table.name.partition("-")
    levels = (level, "none") if level else tuple(LEVELS)
    rows = [
        record
        for record in records
        if record.metric == "test_accuracy"
        and record.experiment == experiment
        and record.level in levels
    ]
    if not any(record.figures("majority") for record in rows):
        return None
    chosen = best_known(rows, key=lambda r: (r.dataset, _block(r), setting(r), r.epsilon))
    chosen.sort(key=lambda r: (_rank(r), _block(r), order(r), r.epsilon or 0.0))
    known = [name for name in FIGURES if any(record.figures(name) for record in chosen)]
    made = [
        Row(
            f"{dataset}, {_block(record)}",
            (setting(record), *_promised([record], chosen), price(record.epsilon)),
            tuple(_figure_cell(record.figures(name)) for name in known),
        )
        for dataset in unique(record.dataset for record in rows)
        for record in chosen
        if record.dataset == dataset
    ]
    notes = [
        "largest class: the accuracy of always answering it. balanced accuracy: mean recall "
        "of each class. macro F1: its mean F1. AUC: how often a node of a class scores higher for "
        "it than another one, 50 is guessing.",
    ]
    if "average_precision" in known:
        notes.append(
            "average precision: of the rarest class, unless the model names another; guessing has "
            "the share of the class."
        )
    return Table(
        f"{table.name}-metrics",
        f"{table.title}: beside accuracy",
        f"Figures on test nodes in percent{_repeats(chosen)}.{deltas(chosen)}",
        ("method", *_promise_heads(chosen), "ε"),
        tuple(FIGURES[name] for name in known),
        tuple(made),
        (*notes, *_notes(chosen, {})),
    )


def _figure_cell(values: Sequence[float], *, is_ratio: bool = False) -> Cell | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    low, high = shown_interval(values) or (None, None)
    return Cell(mean, low, high, len(values), is_ratio=is_ratio)


# What a risk desk reads: of the whole order, and of the nodes with the highest probabilities.
_OF_TOP = ("recall", "precision", "lift")
_TOPS = {name: f"top {100 * share:g} %" for name, share in TOP_SHARES.items()}
RANKING_COLUMNS = (
    "average precision",
    *(f"{figure} in {words}" for words in _TOPS.values() for figure in _OF_TOP),
)
RANKING_NOTE = (
    "average precision: the mean of the precision over the nodes of the class, each taken as the "
    "last one that is looked at. top 1 % and 5 %: the test nodes with the highest probabilities. "
    "lift: precision over the share of the class, how many times better than drawing nodes."
)


def ranking_cells(rankings: Sequence[Ranking]) -> tuple[Cell | None, ...]:
    """Return the mean over repeats of every figure of ``RANKING_COLUMNS``."""
    tops = [
        _figure_cell([getattr(one.top[name], figure) for one in rankings], is_ratio=is_lift)
        for name in _TOPS
        for figure, is_lift in ((figure, figure == "lift") for figure in _OF_TOP)
    ]
    return (_figure_cell([one.average_precision for one in rankings]), *tops)


def guessing_cells(rankings: Sequence[Ranking]) -> tuple[Cell, ...]:
    """Return what drawing nodes would have in the same columns."""
    share = sum(one.share for one in rankings) / len(rankings)
    cells = [Cell(share)]
    for name in _TOPS:
        looked_at = [one.top[name].nodes * one.share / one.support for one in rankings]
        cells += [Cell(sum(looked_at) / len(looked_at)), Cell(share), Cell(1.0, is_ratio=True)]
    return tuple(cells)


def _ranking(records: Sequence[Record]) -> Table | None:
    """Return how well every method puts the nodes of one of two classes first."""
    rows = [r for r in records if r.experiment in ("accuracy", "tradeoff") and ranked_class(r)]
    if not rows:
        return None
    chosen = best_known(
        rows, key=lambda r: (r.dataset, ranked_class(r), _block(r), shown(r), r.epsilon)
    )
    chosen.sort(key=lambda r: (_rank(r), _block(r), order(r), r.epsilon or 0.0))
    made = []
    for dataset, name in unique((r.dataset, ranked_class(r)) for r in rows):
        here = [r for r in chosen if (r.dataset, ranked_class(r)) == (dataset, name)]
        place = f"{dataset}, class {name}"
        keys = ("guessing", *("" for _ in _promise_heads(chosen)), "")
        made.append(Row(place, keys, guessing_cells(here[0].rankings)))
        made += [
            Row(
                f"{place}, {_block(record)}",
                (shown(record), *_promised([record], chosen), price(record.epsilon)),
                ranking_cells(record.rankings),
            )
            for record in here
        ]
    return Table(
        "precision-recall",
        "Who is ranked first",
        f"Figures on test nodes in percent, lift in times{_repeats(chosen)}.{deltas(chosen)}",
        ("method", *_promise_heads(chosen), "ε"),
        RANKING_COLUMNS,
        tuple(made),
        (RANKING_NOTE, *_notes(chosen, {})),
    )


def curve_table(rows: Sequence[Row], keys: Sequence[str], records: Sequence[Record]) -> Table:
    """Return the values of precision-recall curves, for rows of :func:`curve_cells`."""
    return Table(
        "precision-recall-curve",
        "Precision at each recall",
        f"Precision in percent{_repeats(records) if records else ''}.{deltas(records)}",
        tuple(keys),
        tuple(f"recall {recall:g}" for recall in CURVE_RECALLS),
        tuple(rows),
        _notes(records, {}),
    )


def curve_cells(rankings: Sequence[Ranking]) -> tuple[Cell, ...]:
    """Return the precision at every recall."""
    return tuple(Cell(v.mean, v.low, v.high, v.repeats) for v in curve_values(rankings))


def _curves(records: Sequence[Record]) -> Table | None:
    groups = curve_groups(records)
    chosen = [record for _, group in groups for record in group]
    if not chosen:
        return None
    rows = [
        Row(
            title,
            (shown(record), *_promised([record], chosen), price(record.epsilon)),
            curve_cells(record.rankings),
        )
        for title, group in groups
        for record in group
    ]
    return curve_table(rows, ("method", *_promise_heads(chosen), "ε"), chosen)


def _what(records: Sequence[Record]) -> str:
    """Return what a table shows; a data set that is judged by another figure names it."""
    judged = unique(record.headline for record in records)
    if len(judged) == 1:
        return f"Test {FIGURES[judged[0]]} in percent"
    return f"{_ACCURACY}, another figure where the name of a data set is followed by it"


def _by_budget(records: Sequence[Record], experiment: str, level: str, title: str) -> Table | None:
    """Return a table with one column per epsilon, what is not private beside it."""
    rows = [r for r in records if r.experiment == experiment and r.level in (level, "none")]
    if not any(record.level == level for record in rows):
        return None
    label = _with_encoder if experiment == "encoder" else shown
    return _grid(f"{experiment}-{level}", title, rows, row=label, **_budgets(rows))


def _attack(records: Sequence[Record], experiment: str) -> Table | None:
    rows = [r for r in records if r.experiment == experiment and r.metric == "auc"]
    return _grid(experiment, ATTACK_TITLES[experiment][0], rows, row=shown, **_budgets(rows))


def _membership(records: Sequence[Record]) -> Table | None:
    rows = [r for r in records if r.experiment == "membership" and r.metric == "auc"]
    table = _attack(records, "membership")
    if table is None:
        return None
    blank = ("",) * len(_promise_heads(rows))
    found = [
        replace(row, keys=(*row.keys, *blank))
        for name in DATASETS
        for row in _published_attacks(name, rows)
    ]
    if not found:
        return table
    note = "published: measured by the authors on the shadow model, not on the target."
    return replace(table, rows=(*table.rows, *found), notes=(*table.notes, note))


def _published_attacks(dataset: str, records: Sequence[Record]) -> list[Row]:
    budgets = _budgets(records)["columns"]
    made = []
    here = [record for record in records if record.dataset == dataset]
    known = {(one.method, one.level): one for one in sorted(here, key=order)}
    for record in known.values():
        cells = tuple(
            _published_cell(dataset, record, budget, experiment="membership") for budget in budgets
        )
        if any(cells):
            made.append(Row(f"{dataset}, published", (row_title(record),), cells))
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
            group = [r for r in here if (_block(r), row(r)) == (block, label)]
            found = {column(record): cell_of(record) for record in group}
            cells = tuple(found.get(value) for value in columns)
            keys = (label, *_promised(group, chosen))
            made.append(Row(f"{named(here[0])}, {block}", keys, cells))
    is_attack = name in ATTACKS
    what = "AUC of the attack in percent; 50 is guessing" if is_attack else _what(chosen)
    return Table(
        name,
        title,
        f"{what}{_repeats(chosen)}.{deltas(chosen)}",
        ("method", *_promise_heads(chosen)),
        tuple(head(value) for value in columns),
        tuple(made),
        _notes(chosen, {}),
    )


def _with_encoder(record: Record) -> str:
    has = record.parameters.get("encoder_layers") != 0
    return f"{shown(record)}, {'with' if has else 'without'} encoder"


def _block(record: Record) -> str:
    """Return the block within which a record is compared: rows with the same guarantee.

    Rows that read the node's own neighbours have another one and form their own block.
    """
    words = [LEVELS[record.level]]
    if record.level != "none":
        words.append(record.relation)
    if record.is_joint:
        words.append("own neighbours read (joint)")
    return ", ".join(words)


def _promise_heads(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the columns that say what predictions read and which notion holds, where it counts."""
    return ("own", "notion") if any(r.level == "node" or r.own for r in records) else ()


def _promised(group: Sequence[Record], records: Sequence[Record]) -> tuple[str, ...]:
    """Return what stands in these columns for a row, which may be of several data sets."""
    if not _promise_heads(records):
        return ()
    columns = ((record.own for record in group), (record.notion for record in group))
    return tuple(" or ".join(unique(column)) for column in columns)


def _rank(record: Record) -> int:
    return list(LEVELS).index(record.level)


def _competes(record: Record, dataset: str, block: str, epsilon: float | None) -> bool:
    """Whether a record is compared in a block at a budget; one that reads no edges always is."""
    is_here = (record.dataset, _block(record)) == (dataset, block)
    return is_here and epsilon != 0 and record.epsilon in (epsilon, 0.0)


def _published_cell(
    dataset: str, record: Record, epsilon: float | None, *, experiment: str = "accuracy"
) -> Cell | None:
    number = published(dataset, record.method, record.level, epsilon, experiment=experiment)
    return None if number is None else Cell(number)


def _repeats(records: Sequence[Record]) -> str:
    counts = sorted({len(record.runs) for record in records})
    if counts == [1]:
        return ", one repeat"
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    mean = f", mean of {many} repeats"
    if counts[-1] < INTERVAL_REPEATS:
        return f"{mean}; too few for an interval"
    return f"{mean} with the 95 % bootstrap interval"


def _notes(records: Sequence[Record], marks: dict[str, tuple[bool, bool]]) -> tuple[str, ...]:
    notes = []
    if marks:
        notes.append("Bold: best of its block.")
    if any(is_significant for _, is_significant in marks.values()):
        notes.append(
            "* significantly better than the runner-up of its block "
            f"(paired over repeats, p < {SIGNIFICANCE:g})."
        )
    if any(record.level == "node" for record in records):
        notes.append(
            "Node level: computed from private data without noise, for the curator only; no "
            "epsilon covers these figures."
        )
    if _promise_heads(records):
        notes.append(
            "own: what a prediction reads of the node's own record without noise. notion: whether "
            "the own record of a person is removed, or (strict) also all links to that person."
        )
    if any(record.is_joint for record in records):
        notes.append(
            "own neighbours read: joint differential privacy. A prediction is for its own person, "
            "and the output to all others hides the record or link. Not comparable with other "
            "blocks."
        )
    if any(record.estimator in ("label-gap", "node-label-gap") for record in records):
        notes.append(
            "LabelGAP and NodeLabelGAP are this package's recommended methods: class codes travel "
            "along the edges. GAP is the method as published, with features."
        )
    if any(record.select == "validation" for record in records):
        notes.append(
            "selected: parameters were chosen by validation accuracy; that choice is not "
            "covered by epsilon."
        )
    return tuple(notes)


def published(
    dataset: str, method: str, level: str, epsilon: float | None, *, experiment: str = "accuracy"
) -> float | None:
    """Return the papers' figure for one cell of ``accuracy`` or ``membership``, if there is one.

    >>> published("reddit", "gap", "edge", 4.0)
    0.987
    >>> published("social", "gap", "edge", 4.0) is None
    True
    """
    check_choice("experiment", experiment, ("accuracy", "membership"))
    known = ACCURACY if experiment == "accuracy" else MEMBERSHIP
    figures = known.get((method, level, epsilon))
    if figures is None or dataset not in DATASETS:
        return None
    return round(figures[DATASETS.index(dataset)] / 100, 6)


def unpublished(datasets: Iterable[str]) -> str:
    """Return the sentence that names schools without a published figure; empty without any.

    Every school of facebook100 is easily taken for the papers' Facebook, which is one of them.

    >>> unpublished(["social", "facebook100/Cornell5"])
    "Cornell5 has no published figure: the papers' Facebook is facebook100/UIllinois20."
    >>> unpublished(["facebook100/UIllinois20"])
    ''
    """
    home, _, _ = DATASETS[0].partition("/")
    schools = unique(
        name.partition("/")[2]
        for name in datasets
        if name.startswith(f"{home}/") and name not in DATASETS
    )
    if not schools:
        return ""
    have = "has" if len(schools) == 1 else "have"
    return (
        f"{', '.join(schools)} {have} no published figure: the papers' Facebook is {DATASETS[0]}."
    )


def to_markdown(table: Table) -> str:
    """Write a table for people and web pages.

    >>> table = Table("t", "Title", "Caption.", ("method",), ("a|b",),
    ...               (Row("edge", ("GAP",), (Cell(0.5, is_best=True),)),), ())
    >>> print(to_markdown(table))
    **Title.** Caption.
    <BLANKLINE>
    | | method | a\\|b |
    |---|---|---|
    | edge | GAP | **50.0** |
    <BLANKLINE>
    """
    lines = [
        f"**{_mark(table.title)}.** {_mark(table.caption)}",
        "",
        _line(["", *map(_mark, (*table.keys, *table.columns))]),
        "|" + "---|" * (1 + len(table.keys) + len(table.columns)),
    ]
    for row, is_first in with_firsts(table):
        block = row.block if is_first else ""
        cells = [_markdown_cell(cell) for cell in row.cells]
        lines.append(_line([*map(_mark, (block, *row.keys)), *cells]))
    lines += [line for note in table.notes for line in ("", _mark(note))]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """Write a table for papers; it needs the package ``booktabs`` and nothing else.

    >>> table = Table("t", "Title", "In %.", ("method",), ("my_data",),
    ...               (Row("edge", ("GAP-∞",), (Cell(0.5),)),), ())
    >>> r"my\\_data" in to_latex(table), r"GAP-$\\infty$" in to_latex(table)
    (True, True)
    """
    width = 1 + len(table.keys) + len(table.columns)
    heads = ["", *map(_tex, (*table.keys, *table.columns))]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{'l' * (1 + len(table.keys))}{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
    ]
    for row, is_first in with_firsts(table):
        if is_first:
            lines.append(r"\midrule")
        block = row.block if is_first else ""
        cells = [_latex_cell(cell) for cell in row.cells]
        lines.append(" & ".join([*map(_tex, (block, *row.keys)), *cells]) + r" \\")
    lines.append(r"\bottomrule")
    lines += [rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {_tex(n)}}} \\" for n in table.notes]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """Write a table for programs: one line per figure, fractions between 0 and 1.

    >>> table = Table("t", "Title", "", ("method",), ("social",),
    ...               (Row("edge", ("GAP",), (Cell(0.5, 0.4, 0.6, 3),)),), ())
    >>> print(to_csv(table).splitlines()[1])
    edge,GAP,social,0.5,0.4,0.6,3,0,0
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["mean", "ci95_low", "ci95_high", "repeats", "best", "significant"]
    writer.writerow(["block", *map(_safe, table.keys), "column", *heads])
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is None:
                continue
            words = [_safe(word) for word in (row.block, *row.keys, column)]
            figures = [x if x is None else round(x, 6) for x in (cell.mean, cell.low, cell.high)]
            numbers = [*figures, cell.repeats]
            writer.writerow([*words, *numbers, int(cell.is_best), int(cell.is_significant)])
    return out.getvalue()


FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


def with_firsts(table: Table) -> list[tuple[Row, bool]]:
    """Return the rows, each with whether it is the first of its block."""
    blocks = [None, *(row.block for row in table.rows)]
    return [(row, row.block != before) for row, before in zip(table.rows, blocks, strict=False)]


def _line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _mark(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _tex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = f"**{cell.text}**" if cell.is_best else cell.text
    return text + (r"\*" if cell.is_significant else "")


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = rf"\textbf{{{cell.text}}}" if cell.is_best else cell.text
    return text + ("$^{*}$" if cell.is_significant else "")


def _safe(text: str) -> str:
    """Write symbols as words, and keep spreadsheets from running a name that looks like a formula.

    >>> _safe("GAP-∞"), _safe("=1+1")
    ('GAP-inf', "'=1+1")
    """
    plain = " ".join(text.split()).replace("∞", "inf").replace("ε", "epsilon")
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain
