"""The arcs of a store: one Parquet file per part, read and written a block of rows at a time.

A *row* holds the in-neighbours of one node (``arcs-*.parquet``) or, in a directed graph, its
out-neighbours (``out-*.parquet``). Rows are read in blocks of :data:`BLOCK_ROWS`, counted from node
0 independently of the parts, because noise is drawn by such blocks. A reader holds the arcs of one
block at a time, or one row group of about a million arcs where that is more.

Adjacency lists are cut to at most D entries without a second copy of the arcs, by the rule of
:mod:`gapgnn.graph.degree`. One pass over the adjacency lists finds the last hash that is kept in
each list of more than D entries (16 bytes per node). After that each arc is decided by itself: it
is kept if its hash is at most that of its list. The result does not depend on the parts, and equals
the result in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.graph import STEPS, CutRule, Words, in_chunks, pair_hashes, stays
from gapgnn.graph.store.format import explained, wrong_file
from gapgnn.graph.store.sort import Sorted, keys_of
from gapgnn.rng import NoiseKey

if TYPE_CHECKING:
    from gapgnn.graph.store.graph import StoredGraph

BLOCK_ROWS = 4096
GROUP_ARCS = 1 << 20
CHUNK_ARCS = 1 << 15
ALL = np.uint64(2**64 - 1)


def part_bounds(num_nodes: int, parts: int) -> list[int]:
    """Cut the nodes into ``parts`` ranges, at block ends where there are enough blocks.

    >>> part_bounds(10_000, 2), part_bounds(10_000, 5)
    ([0, 4096, 10000], [0, 2000, 4000, 6000, 8000, 10000])
    """
    blocks = -(-num_nodes // BLOCK_ROWS)
    unit = BLOCK_ROWS if parts <= blocks else 1
    units = -(-num_nodes // unit)
    return [min(part * units // parts * unit, num_nodes) for part in range(parts + 1)]


def block_ranges(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Cut a range of rows at the ends of blocks.

    >>> list(block_ranges(4000, 9000))
    [(4000, 4096), (4096, 8192), (8192, 9000)]
    """
    cuts = range((first // BLOCK_ROWS + 1) * BLOCK_ROWS, last, BLOCK_ROWS)
    yield from pairwise([first, *cuts, last])


@dataclass(frozen=True)
class Block:
    """Some consecutive rows: ``entries[pointers[i]:pointers[i + 1]]`` is row ``first + i``.

    ``weights`` holds the weights of the entries, where edges have weights.
    """

    first: int
    pointers: NDArray[np.int64]
    entries: NDArray[Any]
    weights: NDArray[np.float32] | None = None

    @property
    def last(self) -> int:
        """One past the last row."""
        return self.first + len(self.pointers) - 1


@dataclass(frozen=True)
class PartFile:
    """The rows of one part.

    Attributes:
        path: the Parquet file.
        column: the column with the entries, ``source`` or ``target``.
        first: the part's first row.
        lengths: the number of entries of each row.
        weighted: whether the file has weights.
    """

    path: Path
    column: str
    first: int
    lengths: NDArray[np.integer[Any]]
    weighted: bool = False

    def blocks(self) -> Iterator[Block]:
        """Yield the rows block by block."""
        import pyarrow.parquet as pq

        with (
            explained(self.path),
            pq.ParquetFile(self.path, pre_buffer=False, page_checksum_verification=True) as file,
        ):
            if file.metadata.num_rows != int(self.lengths.sum(dtype=np.int64)):
                raise wrong_file(self.path)
            groups = (self._group(file, group) for group in range(file.num_row_groups))
            held = self._nothing()
            for first, last in block_ranges(self.first, self.first + len(self.lengths)):
                lengths = self.lengths[first - self.first : last - self.first]
                pointers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
                wanted = int(pointers[-1])
                pieces = [held]
                while sum(map(len, pieces)) < wanted:
                    pieces.append(next(groups))
                held = np.concatenate(pieces) if len(pieces) > 2 or len(held) else pieces[-1]
                yield self._block(first, pointers, held[:wanted])
                held = held[wanted:]

    def _nothing(self) -> NDArray[Any]:
        fields = [("entry", np.int64), ("steps", np.uint16)]
        return np.zeros(0, dtype=fields if self.weighted else np.int32)

    def _block(self, first: int, pointers: NDArray[np.int64], held: NDArray[Any]) -> Block:
        if not self.weighted:
            return Block(first, pointers, held)
        weights = held["steps"].astype(np.float32) / np.float32(STEPS)
        return Block(first, pointers, np.ascontiguousarray(held["entry"]), weights)

    def _group(self, file: Any, group: int) -> NDArray[Any]:
        columns = [self.column, *(["weight"] if self.weighted else [])]
        table = file.read_row_group(group, columns=columns, use_threads=False)
        entries: NDArray[Any] = table.column(self.column).to_numpy()
        if not self.weighted:
            return entries
        both = np.empty(len(entries), dtype=self._nothing().dtype)
        both["entry"], both["steps"] = entries, table.column("weight").to_numpy()
        return both


class PartWriter:
    """Writes sorted arcs into the files of all parts and counts the length of every row.

    Args:
        paths: one file per part.
        bounds: the parts' ranges of rows.
        row: the column that names the row, ``target`` or ``source``; entries are the other one.
        weigh: turns the sum of an arc's amounts into steps of its weight; None: no weights.
    """

    def __init__(
        self,
        paths: list[Path],
        bounds: list[int],
        *,
        row: str,
        weigh: Callable[[NDArray[np.int64]], NDArray[np.uint16]] | None = None,
    ) -> None:
        self._paths = paths
        self._bounds = bounds
        self._row = row
        self._entry = "source" if row == "target" else "target"
        self._dtype = np.int32 if bounds[-1] <= np.iinfo(np.int32).max else np.int64
        self._weigh = weigh
        self.lengths = np.zeros(bounds[-1], dtype=np.int64)
        self.loops = 0

    def write(self, pieces: Iterator[Sorted]) -> None:
        """Write all arcs, given as increasing numbers ``row * num_nodes + entry``."""
        num_nodes = self._bounds[-1]
        stream = _Carry(pieces)
        for path, (first, last) in zip(self._paths, pairwise(self._bounds), strict=True):
            # A part without arcs is still a file with the right columns.
            with self._open(path) as writer:
                waiting: list[Sorted] = []
                for _, end in block_ranges(first, last):
                    for keys in stream.below(end * num_nodes):
                        waiting.append(keys)
                        if sum(map(len, waiting)) >= GROUP_ARCS:
                            self._write_group(writer, np.concatenate(waiting))
                            waiting.clear()
                if waiting:
                    self._write_group(writer, np.concatenate(waiting))

    def _open(self, path: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        position = pa.from_numpy_dtype(self._dtype)
        weight = [] if self._weigh is None else [("weight", pa.uint16())]
        # Plain entries are read at the speed of a copy. Row numbers increase slowly, so their
        # differences take little space.
        return pq.ParquetWriter(
            path,
            pa.schema([("source", position), ("target", position), *weight]),
            use_dictionary=False,
            compression="none",
            column_encoding={self._row: "DELTA_BINARY_PACKED", self._entry: "PLAIN"},
            write_page_checksum=True,
            write_statistics=False,
        )

    def _write_group(self, writer: Any, arcs: Sorted) -> None:
        import pyarrow as pa

        num_nodes, keys = np.uint64(self._bounds[-1]), keys_of(arcs)
        rows, entries = keys // num_nodes, keys % num_nodes
        self.loops += int((rows == entries).sum())
        first = int(rows[0])
        counts = np.bincount((rows - rows[0]).astype(np.int64))
        self.lengths[first : first + len(counts)] += counts
        columns = {self._row: rows.astype(self._dtype), self._entry: entries.astype(self._dtype)}
        columns = {name: columns[name] for name in ("source", "target")}
        if self._weigh is not None:
            columns["weight"] = self._weigh(arcs["units"])
        writer.write_table(pa.table(columns))


class _Carry:
    """Takes pieces of a sorted stream up to a limit and keeps the rest."""

    def __init__(self, pieces: Iterator[Sorted]) -> None:
        self._pieces = pieces
        self._held: Sorted = np.zeros(0, dtype=np.uint64)

    def below(self, limit: int) -> Iterator[Sorted]:
        """Yield what is below the limit, at most a row group at a time."""
        while True:
            if not len(self._held):
                self._held = next(self._pieces, self._held)
            piece = self._held[:GROUP_ARCS]
            if len(piece) and int(keys_of(piece)[-1]) >= limit:
                piece = piece[: int(np.searchsorted(keys_of(piece), np.uint64(limit)))]
            if not len(piece):
                return
            self._held = self._held[len(piece) :]
            yield piece


@dataclass(frozen=True)
class Limits:
    """Which entries are kept: all that a part needs to cut the arcs into its nodes.

    Attributes:
        owners: the secret word of each node as a source.
        entrants: the secret word of each node as a target.
        last_hash: of each adjacency list, the largest hash that is kept; all ones if all are kept.
        last_target: the largest target word that is kept at that hash.
    """

    owners: Words
    entrants: Words
    last_hash: Words
    last_target: Words

    @property
    def arrays(self) -> tuple[Words, ...]:
        """The arrays that processes share, in the order of the attributes."""
        return self.owners, self.entrants, self.last_hash, self.last_target

    def cut(self, block: Block) -> Block:
        """Return a block without the entries that were cut from their sources' lists."""
        sources = block.entries
        targets = np.repeat(self.entrants[block.first : block.last], np.diff(block.pointers))
        keep = np.ones(len(sources), dtype=np.bool_)
        for start in range(0, len(sources), CHUNK_ARCS):
            owner = sources[start : start + CHUNK_ARCS]
            last = self.last_hash[owner]
            doubtful = np.flatnonzero(last != ALL)
            if len(doubtful) < len(owner):
                owner, last = owner[doubtful], last[doubtful]
            target = targets[start + doubtful]
            found = pair_hashes(self.owners[owner], target)
            keep[start + doubtful] = stays(found, target, last, self.last_target[owner])
        before = np.concatenate([[0], np.cumsum(keep)])
        weights = None if block.weights is None else block.weights[keep]
        return Block(block.first, before[block.pointers], sources[keep], weights)


def find_limits(graph: StoredGraph, max_degree: int, key: NoiseKey) -> Limits:
    """Find the last entry of each adjacency list of a store that is cut to ``max_degree`` entries.

    Relation: ``add-remove`` or ``replace`` at node level (privacy page, section 1). Which entries
    are kept is a function of the list, the ids in it and the key, as in
    :func:`gapgnn.graph.degree.bound_out_degrees`; a record contributes to at most ``max_degree``
    rows.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from gapgnn.graph.graph import Graph
    >>> from gapgnn.graph.store.graph import open_store
    >>> from gapgnn.graph.store.build import store_graph
    >>> hub = Graph.from_arcs([0] * 9, range(1, 10), num_nodes=10, features=np.eye(10))
    >>> key = NoiseKey.insecure(0)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     store_graph(hub, Path(scratch, "store"), parts=2)
    ...     stored = open_store(Path(scratch, "store"))
    ...     limits = find_limits(stored, 3, key)
    ...     blocks = [block for part in (0, 1) for block in stored.in_part(part).blocks()]
    ...     sum(len(limits.cut(block).entries) for block in blocks)
    12
    """
    rule = CutRule.of(graph, max_degree, key)
    last_hash = np.full(graph.num_nodes, ALL)
    last_target = np.full(graph.num_nodes, ALL)
    degrees = graph.out_degrees
    for part in graph.out_parts():
        for block in part.blocks():
            rows = block.first + np.flatnonzero(degrees[block.first : block.last] > rule.limit)
            for some in in_chunks(rows, degrees, CHUNK_ARCS):
                entries = rule.entries(some, block.pointers, block.entries, block.first)
                last_hash[some], last_target[some] = rule.last_kept(entries, len(some))
    return Limits(rule.owners, rule.entrants, last_hash, last_target)
