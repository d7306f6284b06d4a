"""A schema proposed from a table: a draft for the curator, who knows what is public.

Rare values are left out: bounds are rounded outwards, and a category or a class is proposed if at
least :data:`SHARED_BY` people share it. The proposal still reads private data without noise, so
only the curator may see it until every line is checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np

from gapgnn.errors import DataError, InputError, check_all
from gapgnn.graph.tables.amounts import EdgeColumns
from gapgnn.graph.tables.columns import (
    MAX_CATEGORIES,
    LabelColumn,
    drop_option,
    numbers_in_another_dialect,
)
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import ColumnError, TableFile, check_dialect, open_table
from gapgnn.graph.tables.nodes import NodeColumns
from gapgnn.graph.tables.schema import (
    OTHER,
    Category,
    Column,
    Date,
    Ignored,
    Label,
    Number,
    Schema,
    Weight,
)
from gapgnn.graph.tables.survey import ColumnStatistics, column_statistics

# A value that fewer people share than this might identify them.
SHARED_BY = 10
# The bounds of a column that spans so many years are whole decades.
LONG_YEARS = 20
# Amounts have long tails: with the largest as bound, nearly every weight would be close to 0.
BELOW_BOUND = 0.95

CHECK = (
    "Check each line: bounds and values must be public knowledge about such tables, not properties "
    "of the people in this one. A number outside its bounds is clamped, an undeclared value "
    f"counts as `{OTHER}`, a person of an undeclared class as unlabelled."
)


def propose_schema(
    nodes: Path | str,
    label: str | None = None,
    drop: Sequence[str] = (),
    *,
    edges: Path | str | None = None,
    weight: str | None = None,
    dialect: Dialect | None = None,
) -> Schema:
    """Read a node table and propose what to declare public about it.

    Numbers get bounds rounded outwards to one significant digit, dates to years. Text gets the
    categories that at least ten people share; free text, and text without such a category, is
    ignored. Amounts of edges get 0 and a bound that about one in twenty exceeds.

    Args:
        nodes: the node table, CSV, TSV, Parquet or Feather.
        label: the column with the class to predict.
        drop: columns to ignore.
        edges: the edge table with amounts.
        weight: its column with amounts.
        dialect: how cells are written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people = Path(folder, "people.csv")
    ...     rows = [f"{i},{20 + i},{'Rome' if i % 2 else 'Bern'}" for i in range(40)]
    ...     _ = people.write_text("\\n".join(["id,age,city", *rows, "40,31,Thule"]))
    ...     propose_schema(people).columns
    (Number(name='age', low=10.0, high=60.0), Category(name='city', values=('Bern', 'Rome')))
    """
    if (edges is None) != (weight is None):
        given, other = ("weight", "edges") if edges is None else ("edges", "weight")
        raise InputError(f"`{given}` must come with `{other}`. Got no `{other}`.")
    check_dialect(dialect, nodes, *(() if edges is None else (edges,)))
    table = open_table(nodes, what="nodes", dialect=dialect)
    wanted = NodeColumns.choose(table, label, drop, skip_features=True)
    features = [name for name in table.columns if name not in wanted.named]
    # A column without a name usually holds row numbers.
    ignored = {"", *drop}
    classes = None if label is None else LabelColumn(label, repr(str(table.path)))
    seen = column_statistics(table, [name for name in features if name not in ignored], classes)
    check_all(*(partial(_check_dialect, seen[name], repr(str(table.path))) for name in seen))
    notes = [CHECK]
    columns = [_proposed(seen[name], notes) if name in seen else Ignored(name) for name in features]
    return Schema(
        columns=tuple(columns),
        label=None if classes is None else _label(classes, notes),
        weight=None
        if edges is None or weight is None
        else _weight(open_table(edges, what="edges", dialect=dialect), weight, notes),
        notes=tuple(notes),
    )


def _check_dialect(seen: ColumnStatistics, file: str) -> None:
    """Refuse numbers in another dialect: proposed as text, the column would be lost."""
    if seen.is_dates or seen.is_numbers:
        return
    found = numbers_in_another_dialect(seen.counts, seen.dialect)
    if found is not None:
        raise ColumnError(
            f"Column `{seen.name}` of {file} must hold categories or numbers. Got {found}, or "
            f"leave it out with {drop_option(seen.name)}.",
            column=seen.name,
        )


def _proposed(seen: ColumnStatistics, notes: list[str]) -> Column:
    """Propose a declaration of a column, and add notes for the curator."""
    shared = sorted(value for value in seen.shared(SHARED_BY) if value and value != OTHER)
    if not seen.present:
        reason = "it has no value"
    elif seen.is_dates:
        return _dates(seen, notes)
    elif seen.is_numbers:
        low, high = outward(seen.low, up=False), outward(seen.high, up=True)
        if seen.is_indicator:
            return Number(seen.name, 0, 1)
        if math.isfinite(high - low):
            return Number(seen.name, low, high)
        reason = "its numbers are too far apart"
    elif seen.is_free_text:
        reason = "free text"
    elif len(shared) > MAX_CATEGORIES:
        reason = f"more than {MAX_CATEGORIES:,} values are shared by {SHARED_BY} people"
    elif shared:
        return Category(seen.name, tuple(shared))
    else:
        reason = f"no value is shared by {SHARED_BY} people"
    notes.append(f"{seen.name} is ignored: {reason}.")
    return Ignored(seen.name)


def _dates(seen: ColumnStatistics, notes: list[str]) -> Date:
    """Propose bounds that are no person's date: whole years, or decades for a long time span."""
    low, high = seen.days
    step = 1 if high.year - low.year < LONG_YEARS else 10
    first = (low.year if low > date(low.year, 1, 1) else low.year - 1) // step * step
    last = (high.year // step + 1) * step
    if seen.format is not None and seen.format.startswith(("%d/%m", "%m/%d")):
        notes.append(f"Check whether the day or the month comes first in {seen.name}.")
    bounds = date(max(1, first), 1, 1), date(min(last, date.max.year), 1, 1)
    return Date(seen.name, *bounds, seen.format)


def _label(column: LabelColumn, notes: list[str]) -> Label:
    """Propose the classes that enough people have; all of them if those are fewer than two."""
    labels, names = column.classes()
    if len(names) < 2:
        raise DataError(
            f"`label` must have at least two classes. Got {len(names)} in column `{column.name}`."
        )
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    classes = [name for name, count in zip(names, counts, strict=True) if count >= SHARED_BY]
    if len(classes) < 2:
        notes.append(
            f"All classes of {column.name} are listed, also those of fewer than {SHARED_BY} "
            "people, because fewer than two are larger. Keep only those that are public."
        )
        return Label(column.name, names)
    rare = len(names) - len(classes)
    if rare:
        have = "class of {} has" if rare == 1 else "classes of {} have"
        listed = "is" if rare == 1 else "are"
        notes.append(
            f"{rare} {have.format(column.name)} fewer than {SHARED_BY} people and {listed} not "
            "listed."
        )
    return Label(column.name, tuple(classes))


def _weight(table: TableFile, name: str, notes: list[str]) -> Weight:
    """Propose 0 and a rounded quantile of the amounts as bounds."""
    columns = EdgeColumns(weight=table.check_column("weight", name))
    read = table.batches(columns.names, types=columns.types(table), missing=[""])
    found = [part for batch in read if (part := columns.amounts(batch, table)) is not None]
    amounts = np.concatenate(found) if found else np.array([])
    amounts = amounts[np.isfinite(amounts) & (amounts > 0)]
    if len(amounts) < SHARED_BY:
        raise DataError(
            f"`weight` must have at least {SHARED_BY} positive amounts to propose bounds. Got "
            f"{len(amounts)} in column `{name}`."
        )
    notes.append(
        f"About one in twenty amounts of {name} is above the proposed bound and counts as it; "
        "amounts of one edge are added up first. They are read with `--weight` only."
    )
    return Weight(name, 0, outward(float(np.quantile(amounts, BELOW_BOUND)), up=True))


def outward(value: float, *, up: bool) -> float:
    """Return the next number of one significant digit beyond ``value``; 0 stays 0.

    It is never ``value`` itself, which is private.

    >>> outward(61, up=True), outward(70, up=True), outward(23, up=False), outward(0, up=False)
    (70.0, 80.0, 20.0, 0.0)
    >>> outward(0.25, up=True), outward(-5, up=False), outward(10, up=False)
    (0.3, -6.0, 9.0)
    """
    if value == 0:
        return 0.0
    # In decimals, because in binary 0.3 is not three tenths.
    written = Decimal(repr(abs(float(value))))
    exponent = written.adjusted()
    digit = written.scaleb(-exponent)
    nearest = math.floor(digit) + 1 if up == (value > 0) else math.ceil(digit) - 1
    if nearest == 0:
        # Below 1 of this power of ten comes 9 of the previous one.
        nearest, exponent = 9, exponent - 1
    return math.copysign(float(f"{nearest}e{exponent}"), value)
