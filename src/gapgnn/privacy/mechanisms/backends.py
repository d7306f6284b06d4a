"""Sums over the lists of an operator: in memory in chunks, on disk in parts, on an accelerator.

An operator says which lists to add up (:class:`~gapgnn.privacy.operators.Messages`); a backend adds
them up, perturbs and normalises in as few passes as it can. All backends release the same bits: on
the safe path rows lie on a grid, sums of grid points have no rounding, whatever the order, the
partition or the device, and the noise of a row is a function of the key, the hop and the row.

On a CPU sums are made by float32, 1024 rows at a time, or in float64 where edges have weights; on
an accelerator from whole numbers. Where messages travel along several edge types the exact sums of
the types are added up, and then noise of its own comes on top. No union of graphs is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import PrivacyError
from gapgnn.graph import bound_out_degrees
from gapgnn.graph.store import Limits, PartFile, StoredGraph, check_once, find_limits
from gapgnn.privacy import Arcs, Messages
from gapgnn.privacy.mechanisms.device import InLists as DeviceLists
from gapgnn.privacy.mechanisms.device import in_lists_on
from gapgnn.privacy.mechanisms.noise import GRID, ROW_BLOCK, NoiseSource
from gapgnn.privacy.mechanisms.sums import (
    Lists,
    add_exactly,
    add_up,
    check_weights,
    join_ways,
    shared,
    without_loops,
)
from gapgnn.rng import NoiseKey

# Of every edge type the number of a block's first row and its lists.
Rows: TypeAlias = tuple[tuple[int, Lists], ...]
# About so many numbers are added up at a time, and finished in parts that stay in a CPU's cache.
CHUNK_NUMBERS, PART_NUMBERS = 1 << 21, 1 << 18
# About so many entries on disk are read before they are added up: torch's other threads keep their
# cores busy while they wait for the next sum. 500 million arcs in runs of one block take 13.2 s of
# both cores and 7.7 s, in these 9.5 s and 6.5 s.
RUN_ENTRIES = 1 << 23
# Lists that were made from arcs, kept as long as an operator holds these.
_IN_MEMORY: WeakKeyDictionary[Arcs, Lists] = WeakKeyDictionary()
_ON_DISK: WeakKeyDictionary[Arcs, StoredLists] = WeakKeyDictionary()
_ON_DEVICE: WeakKeyDictionary[Arcs, dict[torch.device, DeviceLists]] = WeakKeyDictionary()


def row_normalise(values: Tensor, *, on_grid: bool = False) -> Tensor:
    """Scale every row (last dimension) to L2 norm 1; a zero row stays zero.

    Tiny rows are scaled up first, so that their squares do not vanish, and norms are added in
    float64, so that the result's norm is 1 to a few units of the last place for any number of
    columns.

    Args:
        values: the rows.
        on_grid: they are float64 on the noise's grid. None but zero is shorter than a step then, so
            nothing vanishes, and half the passes do. They are overwritten.

    >>> import torch
    >>> row_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [1.0, 0.0]]
    """
    if not values.shape[-1]:
        return values
    if on_grid:
        lengths = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        return values.div_(lengths.clamp_(min=GRID))
    largest = values.detach().abs().amax(dim=-1, keepdim=True)
    scaled = values / torch.where(largest > 0, largest, 1)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True, dtype=torch.float64)
    return scaled / torch.where(norm > 0, norm, 1).to(values.dtype)


@dataclass(frozen=True)
class BlockRelease:
    """One hop of some rows: add up, perturb, normalise. The same in memory, on disk and far away.

    A row's result depends on who writes to it, the key, the hop and the row's number, and on
    nothing else: not on the partition, the thread, the process or how often it is computed.

    Attributes:
        source: the noise of this repeat; None adds none.
        std: standard deviation of the noise.
        index: the number of the hop, which names its noise.
        normalise: scale every row to norm 1.
        to_self: every node also sends to itself.
        is_exact: rows in float32 lie on the grid, and their sums must.
    """

    source: NoiseSource | None
    std: float
    index: int
    normalise: bool
    to_self: bool = False
    is_exact: bool = False

    def add(self, values: Tensor, *lists: Lists) -> Tensor:
        """Return the sums over the lists of some rows, those of all edge types added up.

        Args:
            values: what every node of the graph sends, ``(N, d)``.
            lists: pointers, entries and weights: row ``i`` adds up the entries ``pointers[i]`` to
                ``pointers[i + 1] - 1``, who writes, by position, in increasing order inside each
                row, times what each weighs, at most 1; None for 1.
        """
        first, *rest = lists
        total = self._added(values, first)
        if rest and self.is_exact:
            total = total.double()
        for more in rest:
            total += self._added(values, more)
        return total

    def _added(self, values: Tensor, lists: Lists) -> Tensor:
        pointers, entries, weights = lists
        if self.is_exact and values.dtype == torch.float32:
            return add_exactly(values, pointers, entries)
        return add_up(values, pointers, entries, weights)

    def finish(self, total: Tensor, first_row: int, values: Tensor, out: Tensor) -> None:
        """Write sums of consecutive rows to ``out`` with what they send to themselves and noise.

        The sums are taken part by part: what a part needs stays in a CPU's cache, and leaves there
        most of what the next sums are made of.
        """
        num_nodes, width = len(values), total.shape[1]
        size = max(1, PART_NUMBERS // (ROW_BLOCK * max(1, width))) * ROW_BLOCK
        first, last = first_row, first_row + len(total)
        while first < last:
            # Noise is drawn for whole blocks and cut: part of a block has no noise of its own.
            start = first - first % ROW_BLOCK
            end = min(start + size, last)
            part = slice(first - first_row, end - first_row)
            # What float32 holds exactly it need not hold with one summand more.
            rows = total[part].double() if self.is_exact else total[part]
            if self.to_self:
                rows += values[first:end]
            if self.source is not None:
                count = min(-(-end // ROW_BLOCK) * ROW_BLOCK, num_nodes) - start
                noise = self.source.gaussian_rows(start, count, width, self.std, "hop", self.index)
                rows += noise[first - start : end - start]
            out[part] = row_normalise(rows, on_grid=self.is_exact) if self.normalise else rows
            first = end


class Backend(Protocol):
    """What adds up the messages of one operator and finishes the sums."""

    def takes_whole_numbers(self, width: int) -> bool:
        """Return whether rows of this width are wanted as whole steps of the noise's grid."""

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor) -> None:
        """Write one hop of all rows ``(N, d)`` to ``out``, perturbed and normalised.

        Relation, sensitivity and price are those of the hop (privacy page, sections 1 and 2).
        """


def backend_of(messages: Messages, device: torch.device) -> Backend:
    """Return what adds up these messages with results on this device."""
    if isinstance(messages.arcs[0].graph, StoredGraph):
        return OnDisk(messages)
    return InMemory(messages) if device.type == "cpu" else OnDevice(messages, device)


class InMemory:
    """A graph in memory on a CPU, chunk by chunk, so that no full float64 sum is held."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def takes_whole_numbers(self, width: int) -> bool:
        """Never: float32 holds sums of the coarser grid of rows."""
        return False

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor) -> None:
        """Write one hop of all rows."""
        types = [in_lists(arcs) for arcs in self._messages.arcs]
        sent = _as_sent(rows, self._messages.is_weighted)
        num_nodes, width = rows.shape
        size = max(1, CHUNK_NUMBERS // (ROW_BLOCK * max(1, width))) * ROW_BLOCK
        for start in range(0, num_nodes, size):
            lists = (_lists_of_rows(one, start, start + size) for one in types)
            block.finish(block.add(sent, *lists), start, sent, out[start : start + size])


class OnDisk:
    """A graph in a store, one part at a time; the arcs are never all in memory."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def takes_whole_numbers(self, width: int) -> bool:
        """Never: parts are added up on a CPU."""
        return False

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor) -> None:
        """Write one hop of all rows."""
        first, *more = (stored_lists(arcs) for arcs in self._messages.arcs)
        first.release(block, rows, out, *more)


class OnDevice:
    """A graph on an accelerator: in one kernel, which draws the noise it adds, or by products."""

    def __init__(self, messages: Messages, device: torch.device) -> None:
        self._messages = messages
        self._device = device

    def takes_whole_numbers(self, width: int) -> bool:
        """Return whether the kernel runs, and rows are not divided, which float64 checks."""
        if self._messages.copies is not None:
            return False
        return all(one.can_release(width) for one in self._lists())

    def _lists(self) -> list[DeviceLists]:
        return [device_lists(arcs, self._device) for arcs in self._messages.arcs]

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor) -> None:
        """Write one hop of all rows."""
        lists, *more = self._lists()
        source, path, to_self = block.source, ("hop", block.index), block.to_self
        count, width = rows.shape
        is_exact = rows.dtype in (torch.float64, torch.int32)
        if not all(one.can_release(width) for one in (lists, *more)):
            total = lists.matrix(rows.dtype) @ rows
            for one in more:
                total += one.matrix(rows.dtype) @ rows
            if to_self:
                total += rows
            if source is not None:
                total += source.gaussian_rows(
                    0, count, width, block.std, *path, device=self._device
                )
            out.copy_(row_normalise(total) if block.normalise else total)
        elif source is None or not is_exact:
            noise = None if source is None else source.philox(width, block.std, *path)
            lists.release(
                rows,
                noise=noise,
                normalise=block.normalise and not to_self,
                out=out,
                given=_added_up(more, rows),
            )
            if to_self:
                out += rows
                out.copy_(row_normalise(out) if block.normalise else out)
        else:
            whole = rows.div(GRID).to(torch.int32) if rows.is_floating_point() else rows
            lists.release(
                whole,
                noise=source.cipher(width, block.std, *path),
                normalise=block.normalise,
                out=out,
                unit=GRID,
                given=whole if to_self else _added_up(more, whole),
            )


def in_lists(arcs: Arcs) -> Lists:
    """Return who writes to each row, and how much each entry weighs: private, not released.

    At node level adjacency lists are cut to D entries first, each as a function of that list and
    the key alone; a weight is at most 1, so a message is no longer than without (privacy page,
    section 1).
    """
    if arcs not in _IN_MEMORY:
        graph = arcs.graph
        indptr, indices, weights = graph.indptr, graph.indices, graph.weights
        if arcs.max_degree is not None:
            kept = bound_out_degrees(graph, arcs.max_degree, cast(NoiseKey, arcs.key))
            indptr, indices = kept[:2]
            weights = None if weights is None else kept.weights
        if arcs.max_degree is not None or graph.is_directed:
            shape = (graph.num_nodes,) * 2
            values = np.ones(len(indices), dtype=np.bool_) if weights is None else weights
            # SciPy makes both as wide as the wider one, and narrow ones turn in half the time.
            if len(indices) <= np.iinfo(indices.dtype).max:
                indptr = indptr.astype(indices.dtype)
            columns = sp.csr_array((values, indices, indptr), shape=shape).tocsc()
            indptr = columns.indptr.astype(np.int64, copy=False)
            indices = columns.indices.astype(indices.dtype, copy=False)
            weights = None if weights is None else columns.data
        if arcs.symmetrised:
            leaving = graph.indptr, graph.indices, graph.weights
            indptr, indices, weights = join_ways(0, (indptr, indices, weights), leaving)
        elif arcs.drops_loops:
            indptr, indices, weights = without_loops(0, (indptr, indices, weights))
        _IN_MEMORY[arcs] = indptr, indices, weights
    return _IN_MEMORY[arcs]


def stored_lists(arcs: Arcs) -> StoredLists:
    """Return the in-lists of arcs in a store; where these are cut, what the cut needs to know."""
    if arcs not in _ON_DISK:
        _ON_DISK[arcs] = StoredLists(arcs)
    return _ON_DISK[arcs]


def device_lists(arcs: Arcs, device: torch.device) -> DeviceLists:
    """Return the in-lists of arcs on a device."""
    known = _ON_DEVICE.setdefault(arcs, {})
    if device not in known and (arcs.graph.is_weighted or arcs.symmetrised or arcs.drops_loops):
        lists = in_lists(arcs)
        if lists[2] is not None:
            check_weights(lists[2])
        found = [part for part in lists if part is not None]
        known[device] = DeviceLists(*(torch.tensor(part, device=device) for part in found))
    if device not in known:
        known[device] = in_lists_on(arcs.graph, device, max_degree=arcs.max_degree, key=arcs.key)
    return known[device]


class StoredLists:
    """The in-lists of arcs in a store: whole, or cut to D entries.

    A hop over them is released a part at a time, here or on a cluster. Each part is read,
    multiplied, perturbed and normalised by itself, and only the noisy rows leave it. Price,
    sensitivity and noise are those of the hop in memory (privacy page, sections 1, 2 and 4): noise
    is keyed by the run's secret, the hop and the block of rows, so a part that is computed again,
    because a worker died, gives the same bytes again, and nothing is drawn twice.

    Args:
        arcs: of one edge type of a store.
    """

    def __init__(self, arcs: Arcs) -> None:
        self._graph = graph = cast(StoredGraph, arcs.graph)
        self._drops_loops = arcs.drops_loops
        self._leaving = list(graph.out_parts()) if arcs.symmetrised else None
        self._limits: Limits | None = None
        degree = arcs.max_degree
        if degree is not None and int(graph.out_degrees.max()) > degree:
            self._limits = find_limits(graph, degree, cast(NoiseKey, arcs.key))

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor, *more: StoredLists) -> None:
        """Release one hop of all rows into ``out``, part after part.

        Args:
            block: the noise of this hop and repeat, and whether rows are normalised.
            rows: what every node sends, ``(N, d)``.
            out: takes the released rows, ``(N, d)`` float32.
            more: whole lists of further edge types, which are added up with these.
        """
        graph, edge_types = self._graph, (self, *more)
        if any(one._graph.bounds != graph.bounds for one in more):
            raise PrivacyError("All edge types must be cut into the same parts. Got others.")
        tasks = [
            ([one._files(part) for one in edge_types], block) for part in range(graph.num_parts)
        ]
        is_weighted = any(one._graph.is_weighted for one in edge_types)
        everywhere = (
            _as_sent(rows.cpu(), is_weighted).numpy(),
            *(() if self._limits is None else self._limits.arrays),
        )
        files = [graph.in_part(part).path for part in range(graph.num_parts)]
        done: set[int] = set()
        for part, released in graph.executor.run(release_part, tasks, everywhere, files):
            first, last = graph.bounds[part], graph.bounds[part + 1]
            if part in done or released.shape != (last - first, rows.shape[1]):
                raise PrivacyError(f"Part {part} must be released once and whole. Got another.")
            done.add(part)
            out[first:last] = torch.from_numpy(np.array(released)).to(out.device)
        if len(done) != graph.num_parts:
            raise PrivacyError(f"All {graph.num_parts} parts must be released. Got {len(done)}.")

    def _files(self, part: int) -> PartFiles:
        against = None
        if self._leaving is not None:
            against = self._leaving[part], self._graph.digest(part, leaving=True)
        arriving, digest = self._graph.in_part(part), self._graph.digest(part)
        return PartFiles(arriving, digest, against, self._drops_loops)


@dataclass(frozen=True)
class PartFiles:
    """Where the arcs of one edge type lie that are added up in the rows of one part.

    Attributes:
        arriving: the file with the arcs that lead to the part's rows, and how many each row has.
        digest: the SHA-256 that the file must have, compared where the file is not known yet.
        against: the file with the arcs that leave the part's rows and its SHA-256, where messages
            travel against arcs too.
        drops_loops: arcs from a node to itself are left out, as they are for symmetrised
            messages.
    """

    arriving: PartFile
    digest: str
    against: tuple[PartFile, str] | None = None
    drops_loops: bool = False

    def blocks(self, limits: Limits | None) -> Iterator[tuple[int, Lists]]:
        """Yield the number of each block's first row and its lists, cut where there are limits."""
        check_once(self.arriving.path, self.digest)
        leaving: Iterator[Any] | None = None
        if self.against is not None:
            check_once(self.against[0].path, self.against[1])
            leaving = self.against[0].blocks()
        for rows in self.arriving.blocks():
            kept = rows if limits is None else limits.cut(rows)
            lists: Lists = kept.pointers, kept.entries, kept.weights
            if leaving is not None:
                left = next(leaving)
                lists = join_ways(rows.first, lists, (left.pointers, left.entries, left.weights))
            elif self.drops_loops:
                lists = without_loops(rows.first, lists)
            yield rows.first, lists


def release_part(
    edge_types: Sequence[PartFiles],
    block: BlockRelease,
    values: NDArray[Any],
    *limits: Any,
) -> NDArray[np.float32]:
    """Release the rows of one part: the task of a cluster's worker, and of this process.

    Relation, sensitivity and price are those of the hop these rows are part of (privacy page,
    sections 1 and 2).

    Args:
        edge_types: where the arcs lie that are added up: of one edge type, or of all.
        block: the noise of this hop and repeat.
        values: what every node sends, ``(N, d)``.
        limits: what the cut needs to know of every node; nothing where nothing is cut.
    """
    cut = Limits(*limits) if limits else None
    part = edge_types[0].arriving
    out = np.empty((len(part.lengths), values.shape[1]), dtype=np.float32)
    # The array of a cluster is read-only, and nobody writes to it.
    sent = shared(values)
    # Blocks end at the same rows in every file.
    blocks = zip(*(one.blocks(cut) for one in edge_types), strict=True)
    for run in _in_runs(blocks, CHUNK_NUMBERS // max(1, values.shape[1])):
        first = run[0][0][0]
        sums = torch.cat([block.add(sent, *(lists for _, lists in rows)) for rows in run])
        start = first - part.first
        block.finish(sums, first, sent, torch.from_numpy(out[start : start + len(sums)]))
    return out


def _in_runs(blocks: Iterator[Rows], size: int) -> Iterator[list[Rows]]:
    """Yield runs of consecutive blocks of about so many rows, or fewer with many entries."""
    run: list[Rows] = []
    rows = entries = 0
    for block in blocks:
        run.append(block)
        rows += len(block[0][1][0]) - 1
        entries += sum(len(lists[1]) for _, lists in block)
        if rows >= size or entries >= RUN_ENTRIES:
            yield run
            run, rows, entries = [], 0, 0
    if run:
        yield run


def _as_sent(rows: Tensor, is_weighted: bool) -> Tensor:
    """Return rows as they are added up: on the grid float32 holds them exactly, products not."""
    return rows if is_weighted else rows.float()


def _lists_of_rows(lists: Lists, first: int, last: int) -> Lists:
    """Return the lists of some rows."""
    indptr, indices, weights = lists
    pointers = indptr[first : last + 1]
    part = slice(pointers[0], pointers[-1])
    return pointers - pointers[0], indices[part], None if weights is None else weights[part]


def _added_up(edge_types: Sequence[DeviceLists], rows: Tensor) -> Tensor | None:
    """Return the exact sums over several lists on a device, together; None for no lists."""
    total = None
    for lists in edge_types:
        found = lists.sums(rows)
        total = found if total is None else total.add_(found)
    return total
