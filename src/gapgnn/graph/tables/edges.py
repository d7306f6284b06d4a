"""Edge tables: outside ids become node positions, a block of rows at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from gapgnn.errors import Complaints, DataError, InputError, check_choice
from gapgnn.graph import Progress
from gapgnn.graph.tables.amounts import (
    EdgeColumns,
    EdgeCounts,
    EdgeFiles,
    edge_columns,
)
from gapgnn.graph.tables.columns import as_text, is_text, plain
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import ColumnTypeError, TableFile
from gapgnn.graph.tables.frames import open_source
from gapgnn.graph.tables.usable import UsedAdjacency, UsedRows

# A cell that is a whole number and surely fits 64 bits.
PLAIN_NUMBER = r"^-?[0-9]{1,18}$"
# What to do with edges that name an id without a row.
DANGLING = ("refuse", "keep", "drop")
# Pairs of column names that say which is which, wherever they stand; otherwise the first two.
END_NAMES = (("source", "target"), ("src", "dst"), ("id_1", "id_2"))

# What may be said of every edge table, or of one by the name of its edge type.
EDGE_OPTIONS = (
    *("weight", "weight_bounds", "time", "time_format", "since", "until"),
    *("source", "target"),
)


def as_ids(column: Any, *, whole: bool | None = None) -> Any:
    """Return an Arrow column of ids as int64, or as strings; by its own type if ``whole`` is None.

    Raises :class:`pyarrow.ArrowInvalid` if it cannot be that.
    """
    column = plain(column)
    arrow_type = column.type
    is_number = pt.is_integer(arrow_type) or pt.is_floating(arrow_type)
    if not (is_text(arrow_type) or is_number or pt.is_null(arrow_type)):
        raise DataError(f"Node ids must be whole numbers or strings. Got {arrow_type}.")
    if whole is None:
        whole = not is_text(arrow_type)
    if not whole and pt.is_floating(arrow_type):
        # 7.0 is how a table with gaps writes 7.
        column = column.cast(pa.int64())
    return column.cast(pa.int64() if whole else pa.large_string())


def any_ids(column: Any, *, whole: bool) -> Any:
    """Return each cell of an Arrow column without gaps as an id, whatever it holds.

    In a table of whole numbers, a cell that is not one gets a number that no table uses as an id.
    The number is a hash of the cell, so equal cells get equal numbers.

    >>> any_ids(pa.array(["7", "7.0", "zoe"]), whole=True).to_pylist()[:2]
    [7, 7]
    """
    column = plain(column)
    if pt.is_large_binary(column.type):
        column = as_text(column)
    try:
        return as_ids(column, whole=whole)
    except pa.ArrowInvalid:
        text = pa.array([_spelled(cell) for cell in column.to_pylist()], pa.large_string())
    if not whole:
        return text
    # Plain numbers are converted together: parsing one cell takes thousands of times as long.
    plainly = pc.match_substring_regex(text, PLAIN_NUMBER)
    numbers = pc.if_else(plainly, text, None).cast(pa.int64()).fill_null(0)
    ids = np.array(numbers.to_numpy(zero_copy_only=False))
    for at in np.flatnonzero(~plainly.to_numpy(zero_copy_only=False)):
        ids[at] = _number_of(text[int(at)].as_py())
    return pa.array(ids)


def _spelled(cell: str | int | float) -> str:
    """Return an id as text; 7.0 is how a table with gaps writes 7."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _number_of(text: str) -> int:
    """Return the whole number a cell spells, or a hash far below any id that tables use."""
    if spelled := re.fullmatch(r"\s*([+-]?(?:0[xX])?[0-9a-fA-F]+)(\.0*)?\s*", text):
        try:
            # Arrow's reading, as of a column in which every cell is a number.
            found: int = pa.scalar(spelled[1]).cast(pa.int64()).as_py()
            return found
        except pa.ArrowInvalid:
            pass
    digest = hashlib.sha256(text.encode()).digest()
    return -(1 << 63) + (int.from_bytes(digest[:8], "big") >> 3)


class NodeIndex:
    """The position of each node id in the node table.

    >>> index = NodeIndex(pa.array([30, 10, 20]))
    >>> index.positions(pa.array([10, 30, 99])).tolist()
    [1, 0, -1]
    """

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self.whole = bool(pt.is_integer(ids.type))
        self._elsewhere: Any = None
        numbers = ids.to_numpy(zero_copy_only=False)
        self.names: NDArray[Any] = numbers if self.whole else numbers.astype(str)
        if self.whole:
            self._low, self._high = int(numbers.min()), int(numbers.max())
            self._lookup: NDArray[np.int32] | None = None
            # Where ids are dense, a lookup table over their range is far faster than bisection.
            if self._high - self._low < 8 * len(numbers) + 1024:
                self._lookup = np.full(self._high - self._low + 1, -1, dtype=np.int32)
                self._lookup[numbers - self._low] = np.arange(len(numbers), dtype=np.int32)
            else:
                self._order = np.argsort(numbers, kind="stable")
                self._sorted = numbers[self._order]

    def positions(self, column: Any) -> NDArray[np.int64]:
        """Return the position of each id of an Arrow column, -1 where there is none."""
        if not self.whole:
            found = pc.index_in(column, value_set=self._ids).fill_null(-1)
            result: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
            return result
        values = column.to_numpy(zero_copy_only=False)
        if self._lookup is not None:
            near = np.clip(values, self._low, self._high)
            return np.where(near == values, self._lookup[near - self._low], -1)
        place = np.minimum(np.searchsorted(self._sorted, values), len(self._sorted) - 1)
        return np.where(self._sorted[place] == values, self._order[place], -1)

    def add_known(self, ids: NDArray[Any]) -> None:
        """Take ids that have a row in another table: edges to them do not count as lost."""
        self._elsewhere = pa.array(ids.astype(str), pa.large_string())

    def are_known(self, column: Any, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which ids of an Arrow column have a row, here or in another table.

        >>> index = NodeIndex(pa.array([30, 10]))
        >>> index.add_known(np.array([20]))
        >>> index.are_known(pa.array([10, 20, 99]), np.array([1, -1, -1])).tolist()
        [True, True, False]
        """
        known = positions >= 0
        if self._elsewhere is None or known.all():
            return known
        found = pc.is_in(column.cast(pa.large_string()), value_set=self._elsewhere)
        either: NDArray[np.bool_] = known | found.to_numpy(zero_copy_only=False)
        return either


@dataclass
class Arcs:
    """The arcs of an edge table, by position, and the dangling entries of each node."""

    sources: NDArray[Any]
    targets: NDArray[Any]
    dangling: dict[int, NDArray[Any]]
    repeated_dangling: int
    left_out: int = 0
    amounts: NDArray[np.float64] | None = None


@dataclass
class _Unknown:
    """Rows that name ids without a record: their number, and where the first one is."""

    read: int = 0
    rows: int = 0
    first: str = ""

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Return the numbers in the file of the next ``count`` rows, for error messages."""
        self.read += count
        return np.arange(self.read - count + 1, self.read + 1)

    def add(
        self, ends: Sequence[NDArray[np.int64]], names: Sequence[Any], rows: NDArray[np.int64]
    ) -> None:
        source, target = (end < 0 for end in ends)
        either = source | target
        if not self.rows:
            at = int(np.argmax(either))
            side = 0 if source[at] else 1
            name = names[side][at].as_py()
            self.first = f"{name!r} as {('source', 'target')[side]} in row {rows[at]}"
        self.rows += int(either.sum())

    def refuse(self, table: TableFile) -> None:
        """Raise if there are any."""
        if self.rows:
            raise DataError(
                f"`edges` must name ids of the node table. Got unknown ids in {self.rows:,} of "
                f"{self.read:,} rows of {str(table.path)!r}, the first {self.first}; add them to "
                'the node table, or leave such edges out with `dangling="drop"` (at node level '
                "`keep`)."
            )


@dataclass
class Dangling:
    """Dangling entries: neighbours without a record, by the node whose adjacency list has them.

    Attributes:
        is_kept: whether dangling entries are kept, or every edge that names an id without a
            record is left out.
        left_out: rows of the edge table that belong to no adjacency list.
    """

    is_kept: bool = True
    left_out: int = 0
    owners: list[NDArray[np.int64]] = field(default_factory=list)
    names: list[Any] = field(default_factory=list)

    @classmethod
    def treated(cls, choice: str) -> Dangling | None:
        """Return a collector of dangling entries for a choice; None where they are refused.

        >>> Dangling.treated("drop").is_kept, Dangling.treated("refuse") is None
        (False, True)
        """
        check_choice("dangling", choice, DANGLING)
        return None if choice == "refuse" else cls(is_kept=choice == "keep")

    def named(self, batch: Any, ends: Sequence[str], *, whole: bool) -> tuple[Any, list[Any]]:
        """Return the rows of a block with both ends filled and the ids there; count the others."""
        filled = batch.filter(pc.and_(*(pc.is_valid(batch.column(end)) for end in ends)))
        self.left_out += batch.num_rows - filled.num_rows
        return filled, [any_ids(filled.column(end), whole=whole) for end in ends]

    def take(
        self, ends: Sequence[NDArray[np.int64]], names: Sequence[Any], *, directed: bool
    ) -> None:
        """Take the rows of a block that name an id without a record, at either end."""
        source, target = (end < 0 for end in ends)
        if not self.is_kept:
            self.left_out += int((source | target).sum())
            return
        self.left_out += int((source if directed else source & target).sum())
        self.add(ends[0], names[1], ~source & target)
        if not directed:
            # Both ends list each other, so the known end keeps the entry.
            self.add(ends[1], names[0], source & ~target)

    def add(self, owners: NDArray[np.int64], names: Any, where: NDArray[np.bool_]) -> None:
        """Take the dangling entries of a block."""
        if where.any():
            self.owners.append(owners[where])
            self.names.append(names.filter(pa.array(where)))

    def finish(self) -> tuple[dict[int, NDArray[Any]], int]:
        """Return the names per owner, and how many entries were repeated."""
        if not self.owners:
            return {}, 0
        owner = np.concatenate(self.owners)
        listed = pa.chunked_array(self.names).combine_chunks().to_numpy(zero_copy_only=False)
        names, code = np.unique(
            listed if listed.dtype.kind == "i" else listed.astype(str), return_inverse=True
        )
        pairs = np.unique(owner * len(names) + code)
        owners, starts = np.unique(pairs // len(names), return_index=True)
        lists = np.split(names[pairs % len(names)], starts[1:])
        return dict(zip(owners.tolist(), lists, strict=True)), len(owner) - len(pairs)


def end_columns(
    table: TableFile, source: str | None = None, target: str | None = None
) -> tuple[str, str]:
    """Return the columns with an edge's two ends: those given, or else by name or position."""
    if source is not None and target is not None:
        return source, target
    for pair in END_NAMES:
        if all(name in table.columns for name in pair):
            return pair
    file = repr(str(table.path))
    if len(table.columns) < 2:
        hint = f", separated by {table.separators}" if table.is_text else ""
        raise DataError(
            f"`edges` must have two columns of node ids{hint}. "
            f"Got {len(table.columns)} in {file}: {', '.join(map(repr, table.columns))}."
        )
    first, second = table.columns[:2]
    if table.is_text and all(name.strip().lstrip("-").isdigit() for name in (first, second)):
        raise DataError(
            f"`edges` must start with a line of column names. Got {first!r} and {second!r} "
            f'in {file}; or say `header="none"`.'
        )
    if not first or not second:
        raise DataError(
            f"`edges` must have two named columns of node ids in front. Got one without a name in "
            f"{file}; remove a column of row numbers."
        )
    return first, second


def ignored_columns(table: TableFile, columns: EdgeColumns) -> tuple[str, ...]:
    """Return the columns of an edge table that are not read."""
    read = {*end_columns(table, columns.source, columns.target), *columns.names}
    return tuple(name for name in table.columns if name not in read)


class EdgeTable(NamedTuple):
    """The table of one edge type, and which columns of it are read.

    Attributes:
        edge_type: its name; None where there is only one.
        table: the file.
        columns: the columns that are read beside the two ends.
    """

    edge_type: str | None
    table: TableFile
    columns: EdgeColumns


def edge_tables(
    edges: EdgeFiles, *, dialect: Dialect | None, complaints: Complaints, **options: Any
) -> list[EdgeTable]:
    """Open the edge tables of all edge types and check which columns are to be read.

    Args:
        edges: one file, or one for each edge type by its name.
        dialect: how cells are written.
        complaints: collects every problem with files, columns and options.
        options: of :func:`~gapgnn.graph.tables.amounts.edge_columns`.

    Returns:
        The tables without a problem.
    """
    files = dict(edges) if isinstance(edges, Mapping) else {"": edges}
    if not files:
        complaints.add(InputError("`edges` must name at least one edge table. Got none."))
    for key in EDGE_OPTIONS:
        given = options.get(key)
        unknown = [k for k in given if k not in files] if isinstance(given, Mapping) else []
        if unknown:
            known = ", ".join(files)
            complaints.add(
                InputError(f"`{key}` must name an edge type ({known}). Got {unknown[0]!r}.")
            )
    found = []
    for name, path in files.items():
        noted = Complaints()
        columns = noted.collect(partial(edge_columns, name, **options))
        table = noted.collect(partial(open_source, path, what="edges", dialect=dialect))
        if table is not None and columns is None:
            noted.collect(partial(end_columns, table))
        if table is not None and columns is not None:
            noted.collect(partial(end_columns, table, columns.source, columns.target))
            columns.check(table, noted)
            if not noted:
                found.append(EdgeTable(name if len(files) > 1 else None, table, columns))
        complaints.extend(noted)
    return found


def read_edges(
    table: TableFile,
    index: NodeIndex,
    *,
    directed: bool,
    dangling: str,
    columns: EdgeColumns | None = None,
    counts: EdgeCounts | None = None,
    dropped_at_most: float | None = None,
    progress: Progress | None = None,
) -> Arcs:
    """Read all edges as pairs of node positions; ids without a record are refused or set aside."""
    small = np.int32 if len(index.names) <= np.iinfo(np.int32).max else np.int64
    parts: tuple[list[Any], list[Any]] = ([], [])
    weighed: list[NDArray[np.float64]] = []
    unknown = Dangling.treated(dangling)
    for source, target, amounts in edge_batches(
        table,
        index,
        directed=directed,
        dangling=unknown,
        columns=columns,
        counts=counts,
        dropped_at_most=dropped_at_most,
        progress=progress,
    ):
        parts[0].append(source.astype(small))
        parts[1].append(target.astype(small))
        if amounts is not None:
            weighed.append(amounts)
    nothing = np.zeros(0, dtype=small)
    sources = np.concatenate([nothing, *parts[0]])
    parts[0].clear()
    targets = np.concatenate([nothing, *parts[1]])
    unknown = unknown or Dangling()
    has_amounts = columns is not None and columns.weight is not None
    amounts = np.concatenate([np.zeros(0), *weighed]) if has_amounts else None
    return Arcs(sources, targets, *unknown.finish(), unknown.left_out, amounts)


def edge_batches(
    table: TableFile,
    index: NodeIndex,
    *,
    directed: bool,
    dangling: Dangling | None,
    columns: EdgeColumns | None = None,
    counts: EdgeCounts | None = None,
    dropped_at_most: float | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64] | None]]:
    """Yield the edges as pairs of node positions and their amounts, a bounded block at a time.

    Args:
        table: the edge table.
        index: position of each id.
        directed: whether a row u, v is an arc from u to v only.
        dangling: collects entries that name an id without a record; rows that belong to no
            adjacency list are then left out and counted. None refuses both, at the latest after
            the last block.
        columns: which amounts and times are read; none if left out. A row outside the window of
            time is ignored.
        counts: counts the rows that were left out or had no amount.
        dropped_at_most: the share of the rows of a large table that may be dropped or unreadable;
            a larger one is refused after the last block. None allows any.
        progress: called after every block.
    """
    columns = EdgeColumns() if columns is None else columns
    counts = EdgeCounts() if counts is None else counts
    ends = end_columns(table, columns.source, columns.target)
    unknown, used = _Unknown(), UsedRows()
    # Where dangling entries are kept, the unit of protection is one person's adjacency list.
    lists = UsedAdjacency() if dangling is not None and dangling.is_kept else None
    try:
        wanted = list(dict.fromkeys([*ends, *columns.names]))
        types = {**columns.types(table), **dict.fromkeys(ends, _type_of_ends(index, dangling))}
        for batch in table.batches(wanted, types=types, missing=[""], progress=progress):
            numbers = unknown.numbers(batch.num_rows)
            inside, timeless = columns.inside(batch, table, counts)
            if lists is not None:
                amounts = columns.amounts(batch, table)
                _count_lists(lists, batch, ends, index, amounts, inside, timeless)
            if columns.window is not None:
                batch, numbers = batch.filter(pa.array(inside)), numbers[inside]
                used.outside += int((~inside & ~timeless).sum())
                used.rows += int(timeless.sum())
                used.lost(
                    f"without a readable time in column `{columns.window.column}`, where dates "
                    f"must be written as {columns.window.example}",
                    int(timeless.sum()),
                )
            used.rows += batch.num_rows
            if dangling is None:
                names = [_ids_of(table, batch, end, index.whole, numbers) for end in ends]
            else:
                filled, names = dangling.named(batch, ends, whole=index.whole)
                used.lost("without an id at both ends", batch.num_rows - filled.num_rows)
                batch = filled
            source, target = map(index.positions, names)
            known = (source >= 0) & (target >= 0)
            used.lost(
                f"that name an id without a row in the node table (columns `{ends[0]}` and "
                f"`{ends[1]}`; `source` and `target` choose others)",
                int(
                    (~(index.are_known(names[0], source) & index.are_known(names[1], target))).sum()
                ),
            )
            if not known.all():
                if dangling is None:
                    unknown.add((source, target), names, numbers)
                else:
                    dangling.take((source, target), names, directed=directed)
                source, target = source[known], target[known]
            amounts = columns.amounts(batch, table)
            is_loop = source == target
            used.lost("self-loops", int(is_loop.sum()))
            if amounts is not None:
                amounts = amounts[known]
                counts.without_amount += int(np.isnan(amounts).sum())
                used.lost(
                    f"without a readable amount in column `{columns.weight}` (`decimal` and "
                    "`thousands` say how numbers are written)",
                    int((np.isnan(amounts) & ~is_loop).sum()),
                )
            yield source, target, amounts
    except ColumnTypeError as error:
        raise DataError(
            f"`edges` must name ids of the node table, which are whole numbers. Got {error.value} "
            f"in column `{error.column}`, line {error.line} of {str(table.path)!r}."
        ) from None
    if dangling is None:
        unknown.refuse(table)
    if dropped_at_most is not None:
        if lists is None:
            used.check(table.path, dropped_at_most)
        else:
            lists.check(table.path, dropped_at_most, used)
    counts.mostly_unused += used.is_mostly_unused


def _count_lists(
    lists: UsedAdjacency,
    batch: Any,
    ends: Sequence[str],
    index: NodeIndex,
    amounts: NDArray[np.float64] | None,
    inside: NDArray[np.bool_],
    timeless: NDArray[np.bool_],
) -> None:
    """Count the rows of a block by the person whose adjacency list they belong to."""
    is_owned = batch.column(ends[0]).is_valid()
    owned, mine = batch.filter(is_owned), is_owned.to_numpy(zero_copy_only=False)
    owners = any_ids(owned.column(ends[0]), whole=index.whole)
    has_target = owned.column(ends[1]).is_valid()
    listed = any_ids(owned.column(ends[1]).filter(has_target), whole=index.whole)
    named = pc.replace_with_mask(owners, has_target, listed)
    source, target = index.positions(owners), index.positions(named)
    # An empty cell was filled with the owner, so it counts as a self-loop does.
    is_filled = ~has_target.to_numpy(zero_copy_only=False)
    is_loop = (source == target) & ((source >= 0) | is_filled)
    lost = ~index.are_known(owners, source) | is_loop | timeless[mine]
    if amounts is not None:
        lost |= np.isnan(amounts[mine])
    known = index.are_known(named, target)
    lists.add(owners, named, lost=lost, outside=~inside[mine] & ~timeless[mine], known=known)


def _type_of_ends(index: NodeIndex, dangling: Dangling | None) -> Any:
    """Return what the cells with an edge's two ends are read as."""
    if dangling is not None:
        # As bytes, which any cell is: no entry of one person's list can make the run fail.
        return pa.large_binary()
    return pa.int64() if index.whole else pa.large_string()


def _ids_of(table: TableFile, batch: Any, name: str, whole: bool, rows: NDArray[np.int64]) -> Any:
    """Return one column of a batch as ids, or say which row is not one."""
    column = batch.column(name)
    file = repr(str(table.path))
    if column.null_count:
        first = rows[int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))]
        raise DataError(
            f"Column `{name}` of {file} must name a node in each row. Got none in row {first}."
        )
    try:
        return as_ids(column, whole=whole)
    except pa.ArrowInvalid as error:
        wanted = "whole numbers" if whole else "strings"
        raise DataError(
            f"`edges` must name ids of the node table, which are {wanted}. Got another in column "
            f"`{name}` of {file}: {error}"
        ) from None
