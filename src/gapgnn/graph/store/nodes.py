"""A node table in two passes: what its columns hold, then its features, a block of rows at a time.

The first pass finds ids, labels, categories and which numbers are missing anywhere; the second
writes rows. The result is the one :func:`gapgnn.graph.tables.read.read_tables` has in memory: the
same columns in the same order, so the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph import Progress
from gapgnn.graph.tables import (
    DeclaredColumn,
    NodeColumns,
    NodeIndex,
    NumberColumn,
    Schema,
    TableFile,
    category_text,
    check_categories,
    declared_columns,
    learned_columns,
    one_hot,
    pass_over_nodes,
    read_with_types,
    side_by_side,
)


@dataclass
class _Numbers:
    """A numeric column: whether a value is missing anywhere."""

    name: str
    file: str
    is_missing_somewhere: bool = False
    is_sparse = False

    def scan(self, column: Any, rows: int) -> None:
        values = NumberColumn(self.name, self.file, _rows=rows)
        values.add(column)
        self.is_missing_somewhere |= column.null_count > 0

    def finish(self, rows: int) -> list[str]:
        extra = [f"{self.name}=missing"] if self.is_missing_somewhere else []
        return [self.name, *extra]

    def encode(self, column: Any) -> NDArray[np.float32]:
        values = NumberColumn(self.name, self.file)
        values.add(column)
        block, _ = values.finish()
        if self.is_missing_somewhere and block.shape[1] == 1:
            block = np.column_stack([block, np.zeros(len(block), dtype=np.float32)])
        return block


@dataclass
class _Categories:
    """A column of categories: all that occur anywhere, in sorted order after the first pass."""

    name: str
    file: str
    present: int = 0
    found: set[str] = field(default_factory=set)
    is_sparse = True

    def scan(self, column: Any, rows: int) -> None:
        text = category_text(self.name, self.file, column)
        self.found.update(text.unique().drop_null().to_pylist())
        self.present += len(text) - text.null_count

    def finish(self, rows: int) -> list[str]:
        check_categories(self.name, self.file, len(self.found), present=self.present, rows=rows)
        self._sorted = pa.array(sorted(self.found), pa.large_string())
        return [f"{self.name}={category}" for category in self._sorted.to_pylist()]

    def encode(self, column: Any) -> sp.csr_array:
        text = category_text(self.name, self.file, column)
        places = pc.index_in(text, value_set=self._sorted, skip_nulls=True)
        present = places.is_valid().to_numpy(zero_copy_only=False)
        indices = places.drop_null().to_numpy(zero_copy_only=False)
        return one_hot(indices, present, len(self._sorted))


@dataclass
class ScannedNodes:
    """What the first pass over a node table found.

    Attributes:
        table: the table itself, for the second pass.
        index: where each id stands.
        labels: class of every row, -1 where missing; None without a label column.
        label_names: the classes' names.
        columns: the feature columns; empty if features come from a file.
        feature_names: their names, one-hot columns one by one.
        wanted: which columns of the table are what.
    """

    table: TableFile
    index: NodeIndex
    labels: NDArray[np.int64] | None
    label_names: tuple[str, ...] | None
    columns: Sequence[_Numbers | _Categories | DeclaredColumn]
    feature_names: tuple[str, ...]
    wanted: NodeColumns
    _types: dict[str, Any]

    @property
    def is_sparse(self) -> bool:
        """Whether a column is one-hot, so that features are kept sparse."""
        return any(column.is_sparse for column in self.columns)

    def feature_blocks(self, keep: NDArray[np.bool_], progress: Progress | None) -> Iterator[Any]:
        """Yield the features of the rows to keep, block after block: the second pass."""
        reading = [column.name for column in self.columns]
        done = 0
        for batch in self.table.batches(reading, types=self._types, progress=progress):
            chosen = keep[done : done + batch.num_rows]
            done += batch.num_rows
            rows = side_by_side([c.encode(batch.column(c.name)) for c in self.columns])
            yield rows if chosen.all() else rows[chosen]
        if done != len(keep):
            raise DataError(
                f"`nodes` must not change while it is read. Got {len(keep):,} rows, then {done:,} "
                f"in {str(self.table.path)!r}."
            )


def scan_nodes(
    table: TableFile,
    *,
    label: str | None,
    drop: Sequence[str],
    has_feature_file: bool,
    min_class_count: int,
    schema: Schema | None,
    progress: Progress | None,
) -> ScannedNodes:
    """Read a node table once, keeping ids, labels and, without a schema, what columns hold.

    Memory grows with the number of nodes (their ids and labels), not with their features.
    """
    wanted = NodeColumns.choose(table, label, drop, skip_features=has_feature_file, schema=schema)
    return read_with_types(
        table, wanted, lambda types: _scan(table, wanted, types, min_class_count, progress)
    )


def _scan(
    table: TableFile,
    wanted: NodeColumns,
    types: dict[str, Any],
    min_class_count: int,
    progress: Progress | None,
) -> ScannedNodes:
    columns: list[_Numbers | _Categories] = []
    # Declared columns have nothing to be found out.
    if wanted.schema is None:
        for column in learned_columns(table, wanted, types):
            kind = _Numbers if isinstance(column, NumberColumn) else _Categories
            columns.append(kind(column.name, column.file))

    def take(batch: Any, rows: int) -> None:
        for column in columns:
            column.scan(batch.column(column.name), rows)

    declared: Sequence[DeclaredColumn] = ()
    if wanted.schema is not None and wanted.features:
        declared = declared_columns(wanted.schema, repr(str(table.path)))
    nodes = pass_over_nodes(
        table,
        wanted,
        types,
        reading=() if declared else wanted.features,
        columns=declared or columns,
        take=take,
        min_class_count=min_class_count,
        progress=progress,
    )
    rows = len(nodes.index.names)
    names = tuple(name for column in columns for name in column.finish(rows))
    if wanted.schema is not None and declared:
        names = wanted.schema.feature_names
    found = (nodes.index, nodes.labels, nodes.label_names)
    return ScannedNodes(table, *found, declared or columns, names, wanted, types)
