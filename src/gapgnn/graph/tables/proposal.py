"""A schema proposed from a table: a draft for its curator, who knows what is public.

Nothing that only few people have goes into it: bounds are rounded outwards, and a category or a
class is proposed if at least :data:`SHARED_BY` people share it. It is still a look at private data
without noise, so it is for the curator's eyes until every line is checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from gapgnn.errors import DataError
from gapgnn.graph.tables.columns import (
    LabelColumn,
    as_text,
    is_free_text,
    is_number,
    is_text,
    parse_numbers,
)
from gapgnn.graph.tables.files import TableFile, open_table
from gapgnn.graph.tables.nodes import NodeColumns
from gapgnn.graph.tables.schema import OTHER, Category, Column, Ignored, Label, Number, Schema

# A value that fewer people share than this might tell who they are.
SHARED_BY = 10
# A text column is of numbers if this share of its filled cells can be read as one.
SHARE_NUMBERS = 0.95

CHECK = (
    "Check each line: bounds and values must be what anybody would expect of such a table, not "
    "what these people happen to have. A number outside its bounds is clamped, an undeclared value "
    f"counts as `{OTHER}`, a person of an undeclared class as unlabelled."
)


def propose_schema(nodes: Path | str, label: str | None = None, drop: Sequence[str] = ()) -> Schema:
    """Read a node table and propose what to declare public about it.

    Numbers get bounds rounded outwards to one significant digit. Text gets the categories that at
    least ten people share; free text, and text without such a category, is ignored.

    Args:
        nodes: the node table, CSV, TSV, Parquet or Feather.
        label: the column with the class to predict.
        drop: columns to ignore.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     people = Path(folder, "people.csv")
    ...     rows = [f"{i},{20 + i},{'Rome' if i % 2 else 'Bern'}" for i in range(40)]
    ...     _ = people.write_text("\\n".join(["id,age,city", *rows, "40,31,Thule"]))
    ...     propose_schema(people).columns
    (Number(name='age', low=10.0, high=60.0), Category(name='city', values=('Bern', 'Rome')))
    """
    table = open_table(nodes, what="nodes")
    wanted = NodeColumns.choose(table, label, drop, skip_features=True)
    features = [name for name in table.columns if name not in wanted.named]
    # A column without a name numbers the rows.
    ignored = {"", *drop}
    seen = {n: _Seen(n) for n in features if n not in ignored and _is_plain(table, n)}
    classes = None if label is None else LabelColumn(label, repr(str(table.path)))
    reading: list[_Seen | LabelColumn] = list(seen.values())
    if classes is not None:
        reading.append(classes)
    names = [wanted.id, *(column.name for column in reading)]
    rows = 0
    for batch in table.batches(names, types=dict.fromkeys(names, pa.large_binary())):
        rows += batch.num_rows
        for column in reading:
            column.add(batch.column(column.name))
    if not rows:
        raise DataError(f"`nodes` must have rows. Got none in {str(table.path)!r}.")
    notes = [CHECK]
    columns = [seen[name].proposed(notes) if name in seen else Ignored(name) for name in features]
    return Schema(
        columns=tuple(columns),
        label=None if classes is None else _label(classes, notes),
        notes=tuple(notes),
    )


def _is_plain(table: TableFile, name: str) -> bool:
    """Whether a column can hold numbers or categories; dates and lists cannot."""
    kind = table.type_of(name)
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return table.is_text or is_number(kind) or is_text(kind)


@dataclass
class _Seen:
    """What a column was seen to hold."""

    name: str
    present: int = 0
    numbers: int = 0
    low: float = math.inf
    high: float = -math.inf
    is_indicator: bool = True
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, column: Any) -> None:
        self.present += len(column) - column.null_count
        values = parse_numbers(self.name, "the table", column)
        values = values[~np.isnan(values)]
        if len(values):
            self.numbers += len(values)
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))
            self.is_indicator &= bool(np.isin(values, (0, 1)).all())
        for entry in as_text(column).drop_null().value_counts().to_pylist():
            self.counts[entry["values"]] += entry["counts"]

    def proposed(self, notes: list[str]) -> Column:
        shared = self.shared()
        if not self.present:
            reason = "it has no value"
        elif self.numbers >= SHARE_NUMBERS * self.present:
            low, high = outward(self.low, up=False), outward(self.high, up=True)
            if self.is_indicator:
                return Number(self.name, 0, 1)
            if math.isfinite(high - low):
                return Number(self.name, low, high)
            reason = "its numbers are too far apart"
        elif self.looks_like_free_text():
            reason = "free text"
        elif shared:
            return Category(self.name, tuple(shared))
        else:
            reason = f"no value is shared by {SHARED_BY} people"
        notes.append(f"{self.name} is ignored: {reason}.")
        return Ignored(self.name)

    def shared(self) -> list[str]:
        """Return the values that enough people have, in sorted order."""
        enough = (value for value, count in self.counts.items() if count >= SHARED_BY)
        return sorted(value for value in enough if value and value != OTHER)

    def looks_like_free_text(self) -> bool:
        """Whether nearly every row has a value of its own."""
        return is_free_text(len(self.counts), self.present)


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
