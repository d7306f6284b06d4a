"""A schema proposed from a table: a draft for its curator, who knows what is public.

Nothing that only few people have goes into it: bounds are rounded outwards, and a category or a
class is proposed if at least :data:`SHARED_BY` people share it. It is still a look at private data
without noise, so it is for the curator's eyes until every line is checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np

from gapgnn.errors import DataError, InputError
from gapgnn.graph.tables.amounts import EdgeColumns
from gapgnn.graph.tables.columns import MOST_VALUES, LabelColumn
from gapgnn.graph.tables.files import Dialect, TableFile, check_delimiter, open_table
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
from gapgnn.graph.tables.survey import SeenColumn, see_columns

# A value that fewer people share than this might tell who they are.
SHARED_BY = 10
# Of a column that spans so many years the bounds are whole decades.
LONG_YEARS = 20
# Amounts have long tails: with the largest as bound nearly every edge would weigh nothing.
BELOW_BOUND = 0.95

CHECK = (
    "Check each line: bounds and values must be what anybody would expect of such a table, not "
    "what these people happen to have. A number outside its bounds is clamped, an undeclared value "
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
    ignored. Amounts of edges get 0 and what about one in twenty exceeds.

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
    check_delimiter(dialect, nodes, *(() if edges is None else (edges,)))
    table = open_table(nodes, what="nodes", dialect=dialect)
    wanted = NodeColumns.choose(table, label, drop, skip_features=True)
    features = [name for name in table.columns if name not in wanted.named]
    # A column without a name numbers the rows.
    ignored = {"", *drop}
    classes = None if label is None else LabelColumn(label, repr(str(table.path)))
    seen = see_columns(table, [name for name in features if name not in ignored], classes)
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


def _proposed(seen: SeenColumn, notes: list[str]) -> Column:
    """Propose what to declare about a column, and note what the curator should know."""
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
    elif len(shared) > MOST_VALUES:
        reason = f"more than {MOST_VALUES:,} values are shared by {SHARED_BY} people"
    elif shared:
        return Category(seen.name, tuple(shared))
    else:
        reason = f"no value is shared by {SHARED_BY} people"
    notes.append(f"{seen.name} is ignored: {reason}.")
    return Ignored(seen.name)


def _dates(seen: SeenColumn, notes: list[str]) -> Date:
    """Propose bounds that are nobody's day: whole years, of a long time whole decades."""
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
            "people, because fewer than two are larger. Keep those that are no secret."
        )
        return Label(column.name, names)
    if len(classes) < len(names):
        notes.append(
            f"{len(names) - len(classes)} classes of {column.name} have fewer than {SHARED_BY} "
            "people and are not listed."
        )
    return Label(column.name, tuple(classes))


def _weight(table: TableFile, name: str, notes: list[str]) -> Weight:
    """Propose 0 and a round number that few amounts exceed."""
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

    It is never ``value`` itself, which somebody has.

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
        # Below 1 of this power comes 9 of the one before.
        nearest, exponent = 9, exponent - 1
    return math.copysign(float(f"{nearest}e{exponent}"), value)
