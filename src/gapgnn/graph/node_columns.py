"""The node table: which column is what, of which type, and ids that name each node once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from gapgnn.errors import DataError
from gapgnn.graph.edgelist import NodeIndex, as_ids
from gapgnn.graph.tablefiles import ColumnTypeError, TableFile

Found = TypeVar("Found")
# Written like this, a column of ids in a text file is numbers; 007 is a name.
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class NodeColumns:
    """Which columns of the node table are what."""

    id: str
    label: str | None
    features: tuple[str, ...]

    @classmethod
    def choose(
        cls, table: TableFile, label: str | None, drop: Sequence[str], *, skip_features: bool
    ) -> NodeColumns:
        """Assign every column its part, or say which option does not fit the table."""
        id_column = "id" if "id" in table.columns else table.columns[0]
        if label is not None and table.check_column("label", label) == id_column:
            raise DataError(f"`label` must not be the id column. Got {label!r}.")
        for name in drop:
            if table.check_column("drop", name) in (id_column, label):
                part = "id" if name == id_column else "label"
                raise DataError(f"`drop` must not name the {part} column. Got {name!r}.")
        if skip_features:
            return cls(id_column, label, ())
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


def read_with_types(
    table: TableFile, wanted: NodeColumns, read: Callable[[dict[str, Any]], Found]
) -> Found:
    """Return what ``read`` finds; again with wider types if a text column's guess proves wrong."""
    types: dict[str, Any] = {}
    if table.is_text:
        types = {name: table.type_of(name) for name in wanted.features}
        for name, kind in types.items():
            if pt.is_binary(kind):
                types[name] = pa.large_string()
        types.update(dict.fromkeys(wanted.named, pa.large_string()))
    while True:
        try:
            return read(types)
        except ColumnTypeError as error:
            types[error.column] = _wider(types[error.column])


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
