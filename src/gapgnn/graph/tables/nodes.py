"""The node table: which column is what, of which type, and ids that name each node once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph import Progress
from gapgnn.graph.tables.columns import (
    FeatureColumn,
    LabelColumn,
    declared_columns,
    feature_column,
    side_by_side,
)
from gapgnn.graph.tables.edges import NodeIndex, as_ids
from gapgnn.graph.tables.features import has_stated_width
from gapgnn.graph.tables.files import ColumnTypeError, TableFile, listed
from gapgnn.graph.tables.schema import Ignored, Schema

# Written like this, a column of ids in a text file is numbers; 007 is a name.
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class NodeColumns:
    """Which columns of the node table are what."""

    id: str
    label: str | None
    features: tuple[str, ...]
    schema: Schema | None = None

    @classmethod
    def choose(
        cls,
        table: TableFile,
        label: str | None,
        drop: Sequence[str],
        *,
        skip_features: bool,
        schema: Schema | None = None,
    ) -> NodeColumns:
        """Assign every column its part, or say which option does not fit the table."""
        id_column = "id" if "id" in table.columns else table.columns[0]
        if label is not None and table.check_column("label", label) == id_column:
            raise DataError(f"`label` must not be the id column. Got {label!r}.")
        for name in drop:
            if table.check_column("drop", name) in (id_column, label):
                part = "id" if name == id_column else "label"
                raise DataError(f"`drop` must not name the {part} column. Got {name!r}.")
        if schema is not None:
            _check_label(label, schema)
        if skip_features:
            return cls(id_column, label, (), schema)
        if schema is not None:
            return cls(id_column, label, _declared(table, id_column, drop, schema), schema)
        features = tuple(c for c in table.columns if c not in {id_column, label, *drop})
        if not features:
            raise DataError(
                f"`nodes` must have a feature column besides the id and the label. Got none in "
                f"{str(table.path)!r}; add one, or give `--features FILE`."
            )
        if "" in features:
            raise DataError(
                f"`nodes` must name each column. Got column {table.columns.index('') + 1} of "
                f"{str(table.path)!r} without a name; name it, or leave it out with `--drop ''`."
            )
        return cls(id_column, label, features)

    @property
    def named(self) -> list[str]:
        """The columns of ids and, if there is one, of labels."""
        return [self.id] if self.label is None else [self.id, self.label]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The declared classes, if they are."""
        label = None if self.schema is None else self.schema.label
        return None if label is None else label.classes

    def inferred(self, features: Path | str | None) -> list[str]:
        """Return which facts are read from the table or from the file of features."""
        is_declared = self.schema is not None if features is None else has_stated_width(features)
        facts = [] if is_declared else ["columns"]
        return [*facts, "classes"] if self.schema is None and self.label is not None else facts


def _check_label(label: str | None, schema: Schema) -> None:
    """Raise unless the schema declares the classes of the label that is asked for."""
    declared = None if schema.label is None else schema.label.column
    if label is not None and declared is None:
        raise DataError(f"`schema` must declare the classes of the label {label!r}. Got no label.")
    if label not in (None, declared):
        raise DataError(f"`label` must be the one of the schema, {declared!r}. Got {label!r}.")


def _declared(
    table: TableFile, id_column: str, drop: Sequence[str], schema: Schema
) -> tuple[str, ...]:
    """Return the feature columns of a schema, if it and the table speak of the same columns."""
    file = repr(str(table.path))
    declared = [column.name for column in schema.columns]
    features = tuple(c.name for c in schema.columns if not isinstance(c, Ignored))
    label = [] if schema.label is None else [schema.label.column]
    if id_column in declared:
        raise DataError(f"`schema` must not declare the id column. Got {id_column!r}.")
    both = [name for name in drop if name in features]
    if both:
        raise DataError(
            f"`drop` must not name a feature of the schema. Got {listed(both)}; declare "
            '`kind = "ignore"` there instead.'
        )
    unknown = [c for c in table.columns if c not in {id_column, *label, *drop, *declared}]
    if unknown:
        raise DataError(
            f"`schema` must declare each column of {file}. Got none for {listed(unknown)}; add "
            '`kind = "ignore"` for a column that is not a feature, or leave it out with '
            f"`--drop {unknown[0]}`."
        )
    absent = [name for name in features if name not in table.columns]
    if absent:
        raise DataError(
            f"`nodes` must have the columns that the schema declares. Got {file} without "
            f"{listed(absent)}."
        )
    if not features:
        raise DataError(
            "`schema` must declare a column of kind number or category. Got none; declare one, or "
            "give `--features FILE`."
        )
    return features


@dataclass
class ScannedNodes:
    """What a pass over a node table found.

    Attributes:
        table: the table itself, for a second pass.
        index: where each id stands.
        labels: class of every row, -1 where missing; None without a label column.
        label_names: the classes' names.
        columns: the feature columns; empty if features come from a file.
        feature_names: their names, one-hot columns one by one.
    """

    table: TableFile
    index: NodeIndex
    labels: NDArray[np.int64] | None
    label_names: tuple[str, ...] | None
    columns: Sequence[FeatureColumn]
    feature_names: tuple[str, ...]
    _types: dict[str, Any]
    _taken: list[list[Any]]

    @property
    def is_sparse(self) -> bool:
        """Whether a column is one-hot, so that features are kept sparse."""
        return any(column.is_sparse for column in self.columns)

    def features(self) -> Any:
        """Return the features of all rows, if the pass kept them."""
        blocks = [self._encoded(taken) for taken in self._taken]
        return sp.vstack(blocks, format="csr") if self.is_sparse else np.concatenate(blocks)

    def feature_blocks(self, keep: NDArray[np.bool_], progress: Progress | None) -> Iterator[Any]:
        """Yield the features of the rows to keep, block after block, in a second pass."""
        names = [column.name for column in self.columns]
        done = 0
        for batch in self.table.batches(names, types=self._types, progress=progress):
            chosen = keep[done : done + batch.num_rows]
            done += batch.num_rows
            rows = self._encoded([c.take(batch.column(c.name)) for c in self.columns])
            yield rows if chosen.all() else rows[chosen]
        if done != len(keep):
            raise DataError(
                f"`nodes` must not change while it is read. Got {len(keep):,} rows, then {done:,} "
                f"in {str(self.table.path)!r}."
            )

    def _encoded(self, taken: Sequence[Any]) -> Any:
        pairs = zip(self.columns, taken, strict=True)
        return side_by_side([column.encode(rows) for column, rows in pairs])


def scan_nodes(
    table: TableFile,
    wanted: NodeColumns,
    *,
    keep_features: bool,
    min_class_count: int,
    progress: Progress | None,
) -> ScannedNodes:
    """Read a node table once, a block of rows at a time, and check its ids and classes.

    A text file is read again with wider types if a column's guess proves wrong.

    Args:
        table: the node table.
        wanted: which columns are what.
        keep_features: whether features are kept as they are read. If not, memory grows with ids
            and labels only, and a second pass reads features.
        min_class_count: how many nodes a class must have; two classes must have them.
        progress: called with how much is read.
    """
    types: dict[str, Any] = {}
    if table.is_text and wanted.schema is not None:
        # As bytes, which any cell is: one person's cell changes no column and stops no run.
        types = dict.fromkeys([*wanted.named, *wanted.features], pa.large_binary())
        types[wanted.id] = pa.large_string()
    elif table.is_text:
        types = {name: table.type_of(name) for name in wanted.features}
        for name, kind in types.items():
            if pt.is_binary(kind):
                types[name] = pa.large_string()
        types.update(dict.fromkeys(wanted.named, pa.large_string()))
    while True:
        try:
            return _scan(table, wanted, types, keep_features, min_class_count, progress)
        except ColumnTypeError as error:
            types[error.column] = _wider(types[error.column])


def _scan(
    table: TableFile,
    wanted: NodeColumns,
    types: dict[str, Any],
    keep_features: bool,
    min_class_count: int,
    progress: Progress | None,
) -> ScannedNodes:
    file = repr(str(table.path))
    columns: list[FeatureColumn] = []
    if wanted.schema is None:
        kinds = [types.get(name, table.type_of(name)) for name in wanted.features]
        found = map(feature_column, wanted.features, kinds, repeat(file))
        # A column that holds nothing at all is no feature, but it is read: it may prove otherwise.
        columns += [column for column in found if column is not None]
    elif wanted.features:
        columns += declared_columns(wanted.schema, file)
    # Declared columns have nothing to be found out.
    is_reading = keep_features or wanted.schema is None
    reading = wanted.features if is_reading else ()
    label = None if wanted.label is None else LabelColumn(wanted.label, file)
    ids, taken = [], []
    rows = 0
    for batch in table.batches([*wanted.named, *reading], types=types, progress=progress):
        ids.append(checked_ids(table, batch.column(wanted.id), wanted.id, rows))
        if label is not None:
            label.add(batch.column(wanted.label))
        block = [c.take(batch.column(c.name)) for c in columns] if is_reading else []
        if keep_features:
            taken.append(block)
        rows += batch.num_rows
    if not rows:
        raise DataError(f"`nodes` must have rows. Got none in {file}.")
    if wanted.features and not columns:
        raise DataError(f"`nodes` must have features. Got only missing values in {file}.")
    index = index_ids(pa.chunked_array(ids).combine_chunks(), table, wanted.id)
    labels: tuple[Any, Any] = (None, None)
    if label is not None:
        labels = label.classes(wanted.classes)
        check_classes(*labels, min_class_count, table, wanted)
    names = tuple(name for column in columns for name in column.finish())
    return ScannedNodes(table, index, *labels, columns, names, types, taken)


def _wider(kind: Any) -> Any:
    """Return the next type to try for a text column that does not fit ``kind``."""
    return pa.float64() if pt.is_null(kind) or pt.is_integer(kind) else pa.large_string()


def checked_ids(table: TableFile, column: Any, name: str, rows: int) -> Any:
    """Return a batch of ids as text or numbers; ``rows`` were read before it."""
    file = repr(str(table.path))
    if column.null_count:
        first = rows + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
        raise DataError(
            f"Column `{name}` of {file} must name each node. Got nothing in row {first}."
        )
    try:
        return as_ids(column)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"Column `{name}` of {file} must hold whole numbers or strings. Got another id: {error}"
        ) from None


def index_ids(ids: Any, table: TableFile, name: str) -> NodeIndex:
    """Index the ids, as numbers where they are written so; each may stand for one node only."""
    if table.is_text and pc.all(pc.match_substring_regex(ids, WHOLE_NUMBER)).as_py():
        ids = ids.cast(pa.int64())
    counts = ids.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"Column `{name}` of {str(table.path)!r} must name each node once. Got "
            f"{len(repeated):,} repeated, the first {repeated[0]['values'].as_py()!r}."
        )
    return NodeIndex(ids)


def check_classes(
    classes: NDArray[np.int64],
    names: tuple[str, ...],
    min_class_count: int,
    table: TableFile,
    wanted: NodeColumns,
) -> None:
    """Raise unless two classes are left, before the edges are read."""
    if wanted.classes is not None:
        if min_class_count:
            raise DataError(
                "`min_class_count` must be 0 with a schema, which declares the classes. Got "
                f"{min_class_count}."
            )
        return
    if len(names) < 2:
        only = f" ({names[0]!r})" if names else ""
        raise DataError(
            f"`label` must have at least two classes. Got {len(names)}{only} in column "
            f"`{wanted.label}` of {str(table.path)!r}."
        )
    counts = np.sort(np.bincount(classes[classes >= 0]))[::-1]
    if min_class_count > counts[1]:
        raise DataError(
            f"`min_class_count` must leave at least two classes. Got {min_class_count}; the two "
            f"largest classes have {counts[0]} and {counts[1]} nodes."
        )
