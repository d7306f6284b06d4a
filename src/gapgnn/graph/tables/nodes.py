"""The node table: the role and type of each column, and unique node ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import Complaints, DataError, GapgnnError
from gapgnn.graph import Progress, spelled_twice
from gapgnn.graph.tables.columns import (
    MAX_CATEGORIES,
    DeclaredColumn,
    FeatureColumn,
    LabelColumn,
    code_columns,
    declared_columns,
    drop_option,
    feature_column,
    is_number,
    side_by_side,
)
from gapgnn.graph.tables.edges import NodeIndex, as_ids
from gapgnn.graph.tables.features import has_stated_width
from gapgnn.graph.tables.files import ColumnError, ColumnTypeError, TableFile, listed
from gapgnn.graph.tables.schema import Category, Ignored, Schema
from gapgnn.graph.tables.usable import UsedRows

# Written like this, a column of ids in a text file is numbers; 007 is a name.
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class NodeColumns:
    """The role of each column of the node table: id, label or feature."""

    id: str
    label: str | None
    features: tuple[str, ...]
    schema: Schema | None = None
    known_classes: tuple[str, ...] | None = None
    codes: tuple[str, ...] = ()

    @classmethod
    def choose(
        cls,
        table: TableFile,
        label: str | None,
        drop: Sequence[str],
        *,
        skip_features: bool,
        schema: Schema | None = None,
        known_classes: Sequence[str] | None = None,
        codes: Sequence[str] = (),
        complaints: Complaints | None = None,
    ) -> NodeColumns:
        """Assign every column its role, or report which options do not fit the table.

        Args:
            table: the node table.
            label: the column with the class.
            drop: columns that are not features.
            skip_features: whether features come from elsewhere.
            schema: what is declared about the table.
            known_classes: the classes in their order, where they are known without a schema.
            codes: columns that are known to hold codes, also where no cell has a leading zero.
            complaints: collects what does not fit; the nearest assignment is then returned, so
                that further problems can be found. Left out, all of them are raised.
        """
        noted = Complaints() if complaints is None else complaints
        id_column = "id" if "id" in table.columns else table.columns[0]
        meant = None
        if label is not None:
            noted.collect(lambda: table.check_column("label", label))
            meant = table.nearest(label)
            if meant == id_column:
                noted.add(DataError(f"`label` must not be the id column. Got {label!r}."))
                meant = None
        dropped = set()
        for name in drop:
            noted.collect(partial(table.check_column, "drop", name))
            if name in (id_column, meant):
                role = "id" if name == id_column else "label"
                noted.add(DataError(f"`drop` must not name the {role} column. Got {name!r}."))
            else:
                dropped.add(table.nearest(name))
        if schema is not None:
            noted.collect(lambda: _check_label(label, schema))
        features: tuple[str, ...] = ()
        if not skip_features and schema is not None:
            features = _declared(table, id_column, meant, dropped, schema, noted)
        elif not skip_features:
            features = tuple(c for c in table.columns if c not in {id_column, meant, *dropped})
            noted.collect(lambda: _check_features(table, features))
            features = tuple(name for name in features if name)
        known = None if known_classes is None else tuple(known_classes)
        chosen = cls(id_column, meant, features, schema, known, tuple(codes))
        return chosen if complaints is not None else noted.settled(chosen)

    @property
    def named(self) -> list[str]:
        """The columns of ids and, if there is one, of labels."""
        return [self.id] if self.label is None else [self.id, self.label]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The declared classes, if they are."""
        label = None if self.schema is None else self.schema.label
        return self.known_classes if label is None else label.classes

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


def _check_features(table: TableFile, features: Sequence[str]) -> None:
    """Raise unless there is a feature column and each has a name."""
    file = repr(str(table.path))
    if not features:
        raise DataError(
            f"`nodes` must have a feature column besides the id and the label. Got none in {file}; "
            "add one, or give `features=FILE`."
        )
    if "" in features:
        raise ColumnError(
            f"`nodes` must name each column. Got column {table.columns.index('') + 1} of {file} "
            'without a name; name it, or leave it out with `drop=[""]`.',
            column="",
        )


def _declared(
    table: TableFile,
    id_column: str,
    label: str | None,
    dropped: Collection[str | None],
    schema: Schema,
    complaints: Complaints,
) -> tuple[str, ...]:
    """Return the feature columns of a schema; table and schema must have the same columns."""
    file = repr(str(table.path))
    declared = [column.name for column in schema.columns]
    features = tuple(c.name for c in schema.columns if not isinstance(c, Ignored))
    labels = {label} if schema.label is None else {label, schema.label.column}
    if id_column in declared:
        complaints.add(DataError(f"`schema` must not declare the id column. Got {id_column!r}."))
    for column in schema.columns:
        if isinstance(column, Category) and len(column.values) > MAX_CATEGORIES:
            complaints.add(
                DataError(
                    f"`schema` must declare at most {MAX_CATEGORIES:,} values of a column. Got "
                    f"{len(column.values):,} of `{column.name}`; group them, or declare "
                    '`type = "ignore"`.'
                )
            )
    both = [name for name in features if name in dropped]
    if both:
        complaints.add(
            DataError(
                f"`drop` must not name a feature of the schema. Got {listed(both)}; declare "
                '`type = "ignore"` there instead.'
            )
        )
    unknown = [c for c in table.columns if c not in {id_column, *labels, *dropped, *declared}]
    if unknown:
        complaints.add(
            DataError(
                f"`schema` must declare each column of {file}. Got none for {listed(unknown)}; add "
                '`type = "ignore"` for a column that is not a feature, or leave it out with '
                f"{drop_option(unknown[0])}."
            )
        )
    absent = [name for name in features if name not in table.columns]
    if absent:
        complaints.add(
            DataError(
                f"`nodes` must have the columns that the schema declares. Got {file} without "
                f"{listed(absent)}."
            )
        )
    if not features:
        complaints.add(
            DataError(
                "`schema` must declare a column of type number, category or date. Got none; "
                "declare one, or give `features=FILE`."
            )
        )
    return tuple(name for name in features if name in table.columns and name != id_column)


@dataclass
class ScannedNodes:
    """The result of a pass over a node table.

    Attributes:
        table: the table itself, for a second pass.
        index: position of each id.
        labels: class of every row, -1 where missing; None without a label column.
        label_names: the classes' names.
        columns: the feature columns; empty if features come from a file.
        feature_names: their names, one-hot columns one by one.
        codes: feature columns of digits that are categories, because some have a leading zero.
    """

    table: TableFile
    index: NodeIndex
    labels: NDArray[np.int64] | None
    label_names: tuple[str, ...] | None
    columns: Sequence[FeatureColumn]
    feature_names: tuple[str, ...]
    _types: dict[str, Any]
    _taken: list[list[Any]]
    _dropped_at_most: float | None = None
    codes: tuple[str, ...] = ()

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
        done, cells = 0, _ReadCells()
        for batch in self.table.batches(names, types=self._types, progress=progress):
            chosen = keep[done : done + batch.num_rows]
            done += batch.num_rows
            taken = [c.take(batch.column(c.name)) for c in self.columns]
            for column, block in zip(self.columns, taken, strict=True):
                cells.add(column, batch.column(column.name), block)
            rows = self._encoded(taken)
            yield rows if chosen.all() else rows[chosen]
        cells.check(self.table, done, self._dropped_at_most)
        if done != len(keep):
            raise DataError(
                f"`nodes` must not change while it is read. Got {len(keep):,} rows, then {done:,} "
                f"in {str(self.table.path)!r}."
            )

    def _encoded(self, taken: Sequence[Any]) -> Any:
        pairs = zip(self.columns, taken, strict=True)
        return side_by_side([column.encode(rows) for column, rows in pairs])


@dataclass
class _ReadCells:
    """The number of unreadable cells of each column that is declared as numbers or dates."""

    unreadable: dict[str, int] = field(default_factory=dict)

    def add(self, column: FeatureColumn, cells: Any, taken: Any) -> None:
        """Count the unreadable cells of a block; the last feature of ``taken`` marks missing."""
        if isinstance(column, DeclaredColumn) and not column.is_sparse:
            count = int(taken[:, -1].sum()) - cells.null_count
            self.unreadable[column.name] = self.unreadable.get(column.name, 0) + count

    def check(self, table: TableFile, rows: int, dropped_at_most: float | None) -> None:
        """Refuse a table of many rows if too large a share of a column cannot be read."""
        for name, count in self.unreadable.items() if dropped_at_most is not None else ():
            reason = f"without a readable value in column `{name}`, as the schema declares it"
            UsedRows(rows, 0, {reason: count}).check(table.path, dropped_at_most or 0.0, "nodes")


def scan_nodes(
    table: TableFile,
    wanted: NodeColumns,
    *,
    keep_features: bool,
    min_class_count: int,
    progress: Progress | None,
    complaints: Complaints,
    dropped_at_most: float | None = None,
) -> ScannedNodes | None:
    """Read a node table once, a block of rows at a time, and check its ids and classes.

    A text file is read again with wider types if a column's guess proves wrong.

    Args:
        table: the node table.
        wanted: the role of each column.
        keep_features: whether features are kept as they are read. If not, memory grows with ids
            and labels only, and a second pass reads features.
        min_class_count: how many nodes a class must have; two classes must have them.
        progress: called with how much is read.
        complaints: collects every problem of the table.
        dropped_at_most: the share of the rows of a large table whose declared number or date may
            be unreadable; None allows any.

    Returns:
        What was found, to be used if there is no complaint; None if the ids cannot be used.
    """
    types: dict[str, Any] = {}
    codes: set[str] = set()
    if table.is_text and wanted.schema is not None:
        # As bytes, which any cell is: no cell can change a column's type or make the run fail.
        types = dict.fromkeys([*wanted.named, *wanted.features], pa.large_binary())
        types[wanted.id] = pa.large_string()
    elif table.is_text:
        types = {name: table.type_of(name) for name in wanted.features}
        numbers = [k for k in types if is_number(types[k]) or pt.is_null(types[k])]
        found_codes = complaints.collect(partial(code_columns, table, numbers)) if numbers else None
        codes = (found_codes or set()).union(set(wanted.codes) & set(numbers))
        for name, arrow_type in types.items():
            if pt.is_binary(arrow_type) or name in codes:
                types[name] = pa.large_string()
        types.update(dict.fromkeys(wanted.named, pa.large_string()))
    while True:
        noted = Complaints()
        try:
            found = _scan(
                table,
                wanted,
                types,
                keep_features,
                min_class_count,
                progress,
                noted,
                dropped_at_most,
            )
        except ColumnTypeError as error:
            types[error.column] = _wider(types[error.column])
            continue
        except GapgnnError as error:
            noted.add(error)
            found = None
        complaints.extend(noted)
        return None if found is None else replace(found, codes=tuple(sorted(codes)))


def _scan(
    table: TableFile,
    wanted: NodeColumns,
    types: dict[str, Any],
    keep_features: bool,
    min_class_count: int,
    progress: Progress | None,
    noted: Complaints,
    dropped_at_most: float | None,
) -> ScannedNodes | None:
    file = repr(str(table.path))
    columns = _feature_columns(table, wanted, types, noted)
    # Declared columns learn nothing from the table.
    is_reading = keep_features or wanted.schema is None
    reading = wanted.features if is_reading else ()
    label = None if wanted.label is None else LabelColumn(wanted.label, file)
    ids: list[Any] = []
    taken = []
    rows, read = 0, _ReadCells()
    for batch in table.batches([*wanted.named, *reading], types=types, progress=progress):
        ids.append(
            noted.collect(partial(checked_ids, table, batch.column(wanted.id), wanted.id, rows))
        )
        if label is not None and noted.collect(partial(_added, label, batch)) is None:
            label = None
        block = []
        for column in list(columns) if is_reading else ():
            cells = noted.collect(partial(column.take, batch.column(column.name)))
            if cells is None:
                columns.remove(column)
            else:
                block.append(cells)
                read.add(column, batch.column(column.name), cells)
        if keep_features:
            taken.append(block)
        rows += batch.num_rows
    if not rows:
        raise DataError(f"`nodes` must have rows. Got none in {file}.")
    if wanted.features and not columns and not noted:
        raise DataError(f"`nodes` must have features. Got only missing values in {file}.")
    noted.collect(partial(read.check, table, rows, dropped_at_most))
    labels: tuple[Any, Any] = (None, None)
    if label is not None:
        labels = noted.collect(partial(label.classes, wanted.classes)) or labels
    if labels[0] is not None:
        noted.collect(partial(check_classes, *labels, min_class_count, table, wanted))
    names: list[str] = []
    for column in columns:
        names += noted.collect(column.finish) or ()
    if any(part is None for part in ids):
        return None
    joined = pa.chunked_array(ids).combine_chunks()
    index = noted.collect(partial(index_ids, joined, table, wanted.id))
    if index is None:
        return None
    return ScannedNodes(table, index, *labels, columns, tuple(names), types, taken, dropped_at_most)


def _feature_columns(
    table: TableFile, wanted: NodeColumns, types: dict[str, Any], noted: Complaints
) -> list[FeatureColumn]:
    """Return the reader of each feature column: by the types of the table, or as declared."""
    file = repr(str(table.path))
    if wanted.schema is not None:
        declared = declared_columns(wanted.schema, file, table.dialect)
        return [column for column in declared if column.name in wanted.features]
    columns: list[FeatureColumn] = []
    for name in wanted.features:
        arrow_type = types.get(name, table.type_of(name))
        chosen = noted.collect(partial(feature_column, name, arrow_type, file, table.dialect))
        # A column without a value so far is not a feature, but is read: a later block may have one.
        columns += [] if chosen is None else [chosen]
    return columns


def _added(label: LabelColumn, batch: pa.RecordBatch) -> bool:
    label.add(batch.column(label.name))
    return True


def _wider(arrow_type: Any) -> Any:
    """Return the next type to try for a text column that does not fit ``arrow_type``."""
    is_narrow = pt.is_null(arrow_type) or pt.is_integer(arrow_type)
    return pa.float64() if is_narrow else pa.large_string()


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
    """Index the ids, as numbers where all are written so; they must be unique."""
    if table.is_text and pc.all(pc.match_substring_regex(ids, WHOLE_NUMBER)).as_py():
        ids = ids.cast(pa.int64())
    counts = ids.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"Column `{name}` of {str(table.path)!r} must name each node once. Got "
            f"{len(repeated):,} repeated, the first {repeated[0]['values'].as_py()!r}."
        )
    index = NodeIndex(ids)
    if (rows := spelled_twice(index.names)) is not None:
        one, other = (str(index.names[row]) for row in rows)
        raise DataError(
            f"Column `{name}` of {str(table.path)!r} must name each node in one spelling. Got "
            f"{one!r} in row {rows[0] + 1} and {other!r} in row {rows[1] + 1}, which are one "
            "person for a budget; leave one of the rows out, or write ids that differ in more."
        )
    return index


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
        raise ColumnError(
            f"`label` must have at least two classes. Got {len(names)}{only} in column "
            f"`{wanted.label}` of {str(table.path)!r}.",
            column=str(wanted.label),
        )
    counts = np.sort(np.bincount(classes[classes >= 0]))[::-1]
    if min_class_count > counts[1]:
        raise DataError(
            f"`min_class_count` must leave at least two classes. Got {min_class_count}; the two "
            f"largest classes have {counts[0]} and {counts[1]} nodes."
        )
