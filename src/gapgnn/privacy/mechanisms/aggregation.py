"""Private multi-hop aggregation (PMA): aggregate, perturb, normalise, K times.

This is the only place that multiplies by the adjacency on a private path. One hop is ``A.T @ X``
with every row of ``X`` of norm at most 1, plus Gaussian noise of ``noise_multiplier *
sensitivity``; the sensitivity comes from the neighbouring relation (privacy page, section 1) and
each hop is one Gaussian event (section 2).

On the safe path the sum is exact. Rows are cut to a grid of 2**-14, and sums of grid points have no
rounding, whatever the order, the partition or the device; then noise on a finer grid is added
(section 4). Sums are made in float64, or faster and as exactly: on a CPU by float32, 1024 rows
at a time, on an accelerator from whole numbers. Where edges have weights,
these are at most 1 and so are the messages; rows are then cut to a coarser grid, so that their
products with weights lie on that of the noise (:mod:`gapgnn.graph.weights`), and float64 adds up.

Where the same message travels along several kinds of edges, the total over all kinds may be
released too. It is no sum of released sums: the kinds' exact sums are added up, and then noise of
its own comes on top. Lists are those of the kinds; no union of graphs is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, bound_out_degrees
from gapgnn.graph.store import Limits, PartFile, StoredGraph, check_once, find_limits
from gapgnn.privacy import Release, active_witness, aggregation_sensitivity, shown
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.mechanisms.device import InLists as DeviceLists
from gapgnn.privacy.mechanisms.device import in_lists_on, longest_row
from gapgnn.privacy.mechanisms.noise import GRID, ROW_BLOCK, NoiseSource, SafeOrFast
from gapgnn.privacy.mechanisms.sums import (
    WEIGHTED_GRID,
    Lists,
    add_exactly,
    add_up,
    check_contributions,
    check_weights,
    divide_rows,
    join_ways,
    quantise_rows,
    shared,
    whole_rows,
    without_loops,
)
from gapgnn.rng import NoiseKey

# Of every kind of edges the number of a block's first row and its lists.
Rows: TypeAlias = tuple[tuple[int, Lists], ...]
NORM_TOLERANCE = 1e-6
# About so many numbers are added up at a time, and finished in parts that stay in a CPU's cache.
CHUNK_NUMBERS, PART_NUMBERS = 1 << 21, 1 << 18
# About so many entries on disk are read before they are added up: torch's other threads keep their
# cores busy while they wait for the next sum. 500 million arcs in runs of one block take 13.2 s of
# both cores and 7.7 s, in these 9.5 s and 6.5 s.
RUN_ENTRIES = 1 << 23


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

    def release(self, values: Tensor, first_row: int, out: Tensor, *lists: Lists) -> None:
        """Write the released rows from ``first_row`` on to ``out``, as many as the lists have.

        Relation, sensitivity and price are those of the hop these rows are part of (privacy page,
        sections 1 and 2).

        Args:
            values: what every node of the graph sends, ``(N, d)``.
            first_row: the number of the first of these rows.
            out: takes the rows.
            lists: pointers, entries and weights: row ``i`` adds up the entries ``pointers[i]`` to
                ``pointers[i + 1] - 1``, who writes, by position, in increasing order inside each
                row, times what each weighs, at most 1; None for 1. Of several kinds of edges all
                are added up.
        """
        self.finish(self.add(values, *lists), first_row, values, out)

    def add(self, values: Tensor, *lists: Lists) -> Tensor:
        """Return the sums over the lists of some rows, those of all kinds added up."""
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


class StoredLists:
    """The in-lists of a store as one repeat aggregates over them: whole, or cut to D entries.

    A hop over them is released a part at a time, here or on a cluster. Each part is read,
    multiplied, perturbed and normalised by itself, and only the noisy rows leave it. Price,
    sensitivity and noise are those of the hop in memory (privacy page, sections 1, 2 and 4): noise
    is keyed by the run's secret, the hop and the block of rows, so a part that is computed again,
    because a worker died, gives the same bytes again, and nothing is drawn twice.

    Args:
        graph: the store.
        max_degree: D at node level, None elsewhere.
        key: the secret of the cut, from which nothing else is derived.
        both_ways: messages also travel against the arcs.
        drops_loops: arcs from a node to itself are left out.
    """

    def __init__(
        self,
        graph: StoredGraph,
        *,
        max_degree: int | None,
        key: NoiseKey,
        both_ways: bool = False,
        drops_loops: bool = False,
    ) -> None:
        self._graph = graph
        self._drops_loops = drops_loops
        self._leaving = list(graph.out_parts()) if both_ways else None
        self._limits: Limits | None = None
        if max_degree is not None and int(graph.out_degrees.max()) > max_degree:
            self._limits = find_limits(graph, max_degree, key)

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor, *more: StoredLists) -> None:
        """Release one hop of all rows into ``out``, part after part.

        Args:
            block: the noise of this hop and repeat, and whether rows are normalised.
            rows: what every node sends, ``(N, d)``.
            out: takes the released rows, ``(N, d)`` float32.
            more: whole lists of further kinds of edges, which are added up with these.
        """
        graph, kinds = self._graph, (self, *more)
        if any(one._graph.bounds != graph.bounds for one in more):
            raise PrivacyError("All kinds of edges must be cut into the same parts. Got others.")
        tasks = [([one._files(part) for one in kinds], block) for part in range(graph.num_parts)]
        is_weighted = any(one._graph.is_weighted for one in kinds)
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
    """Where the arcs of one kind lie that are added up in the rows of one part.

    Attributes:
        arriving: the file with the arcs that lead to the part's rows, and how many each row has.
        digest: the SHA-256 that the file must have, compared where the file is not known yet.
        against: the file with the arcs that leave the part's rows and its SHA-256, where messages
            travel against arcs too.
        drops_loops: arcs from a node to itself are left out, as they are where messages travel both
            ways.
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
    kinds: Sequence[PartFiles],
    block: BlockRelease,
    values: NDArray[Any],
    *limits: Any,
) -> NDArray[np.float32]:
    """Release the rows of one part: the task of a cluster's worker, and of this process.

    Relation, sensitivity and price are those of the hop these rows are part of (privacy page,
    sections 1 and 2).

    Args:
        kinds: where the arcs lie that are added up: of one kind of edges, or of all.
        block: the noise of this hop and repeat.
        values: what every node sends, ``(N, d)``.
        limits: what the cut needs to know of every node; nothing where nothing is cut.
    """
    cut = Limits(*limits) if limits else None
    part = kinds[0].arriving
    out = np.empty((len(part.lengths), values.shape[1]), dtype=np.float32)
    # The array of a cluster is read-only, and nobody writes to it.
    sent = shared(values)
    # Blocks end at the same rows in every file.
    blocks = zip(*(one.blocks(cut) for one in kinds), strict=True)
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


class PrivateAggregation:
    """K noisy hops over one private graph.

    Args:
        graph: the private graph.
        level: ``none`` (no noise, no event), ``edge`` or ``node``.
        relation: the neighbouring relation, resolved (not ``auto``).
        noise_multiplier: standard deviation over sensitivity; positive unless the level is
            ``none``.
        max_degree: D at node level, where each repeat cuts the out-lists with its own key; None
            elsewhere. (At edge level a cut list would take in another entry when one leaves.)
        keys: the secret of each repeat. Use a key for one aggregation object only.
        is_divided: at node level instead of a cut: what a node sends is divided by the root of its
            list's length, dangling entries included, so that all of it has norm at most 1.
        to_self: every node also sends to itself, and its list is longer by that; only with divided
            messages, where a person's own row is then covered too. Self-loops are left out of the
            sums, so that nobody writes to the own row twice, and count in the list's length.
        both_ways: at edge level, on a graph with directions: what a node sends travels along its
            arcs and against the arcs that end at it. Self-loops are left out.
        noise: ``safe`` for releases, ``fast`` for experiments.
        device: where products are computed and results live.
        kind: the name of these edges among several kinds, for whoever watches.
        total_of: at edge level, the mechanisms of all kinds of edges of ``graph``: a hop is then
            the noisy total of what arrives along all of them.

    Relation and sensitivity: one hop changes by at most 1 (``directed``), sqrt(2) (``undirected``),
    sqrt(D) (``add-remove``) or 2 sqrt(D) (``replace``) in L2 norm, with divided messages by 1 or 2,
    both ways by sqrt(2) (``directed``) or 2 sqrt(2) (``undirected``); for k links of one person by
    sqrt(k^2 + k) (``k-edges``) or sqrt(k) (``k-arcs``).
    At node level that counts the rows of all other nodes; a person's own row is computed from the
    person's own place in the graph and is not covered, except where nodes send to themselves
    (privacy page, section 1). Weights of edges are at most 1 and change none of these. Only the
    graph's own arcs are read; :func:`kind_aggregations` reads further kinds. One edge of one kind
    moves a total as it moves the sum of its kind; k arcs out of one person, of M kinds, move it by
    sqrt(k min(k, M)), and k edges move all sums together by two events of sqrt(k^2 + k).

    >>> import numpy as np, torch
    >>> keys = [NoiseKey.fresh()]
    >>> graph = Graph.from_arcs([0, 1], [1, 2], num_nodes=3, features=np.eye(3))
    >>> aggregation = PrivateAggregation(
    ...     graph, level="edge", relation="undirected", noise_multiplier=2.0, keys=keys
    ... )
    >>> hops = aggregation.run(torch.eye(3), 2)
    >>> [tuple(hop.shape) for hop in hops], len(aggregation.events)
    ([(3, 3), (3, 3)], 2)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        level: str,
        relation: str,
        noise_multiplier: float,
        max_degree: int | None = None,
        is_divided: bool = False,
        to_self: bool = False,
        both_ways: bool = False,
        keys: Sequence[NoiseKey],
        noise: SafeOrFast = "safe",
        device: str | torch.device = "cpu",
        kind: str | None = None,
        total_of: Sequence[PrivateAggregation] = (),
    ) -> None:
        self.level = check_choice("level", level, ("none", "edge", "node"))
        different = len({key.secret for key in keys})
        if not keys or different != len(keys):
            raise PrivacyError(
                f"`keys` must be one different key per repeat. Got {different} of {len(keys)}."
            )
        if max_degree is not None and self.level != "node":
            raise InputError(
                f"`max_degree` must be None at level {level!r}: lists are cut at level 'node'. "
                f"Got {max_degree!r}."
            )
        if to_self and not is_divided:
            raise PrivacyError("`to_self` must be False unless messages are divided. Got True.")
        if both_ways and (self.level == "node" or not graph.is_directed):
            raise PrivacyError(
                "`both_ways` must be False at level node and without directions. Got True."
            )
        if total_of and self.level == "node":
            raise PrivacyError("`total_of` must be empty at level node. Got several kinds.")
        if self.level == "none":
            self.noise_multiplier = check_number(
                "noise_multiplier", noise_multiplier, at_least=0, at_most=0
            )
            self.sensitivity = 0.0
        else:
            self.noise_multiplier = check_number("noise_multiplier", noise_multiplier, above=0)
            self.sensitivity = aggregation_sensitivity(
                level,
                relation,
                max_degree=max_degree,
                is_divided=is_divided,
                both_ways=both_ways,
                summed_kinds=max(1, len(total_of)),
            )
        self.graph = graph
        self.kind = kind
        self.relation = relation
        self.max_degree = max_degree
        self.is_divided = is_divided
        self.to_self = to_self
        self.both_ways = both_ways
        self.device = torch.device(device)
        self.noise = noise
        self._summands = tuple(total_of) or (self,)
        self._sources = [NoiseSource(key, noise=noise) for key in keys]
        self._lists: dict[int, Lists] = {}
        self._device_lists: dict[int, DeviceLists] = {}
        self._stored: dict[int, StoredLists] = {}
        self._released: set[int] = set()
        self._events: list[Gaussian] = []

    @property
    def std(self) -> float:
        """Standard deviation of the noise of one hop."""
        return self.noise_multiplier * self.sensitivity

    @property
    def events(self) -> tuple[Gaussian, ...]:
        """What was released so far, per repeat: one Gaussian event per hop."""
        return tuple(self._events)

    def run(
        self, rows: Tensor, hops: int, progress: Callable[[int, int], None] | None = None
    ) -> list[Tensor]:
        """Release hops 1 to ``hops``, each computed from the one before; hop 0 is ``rows``.

        ``progress`` is called with the number of finished hops and their total.
        """
        results: list[Tensor] = []
        for index in range(1, check_integer("hops", hops, at_least=1) + 1):
            rows = self.hop(rows, index)
            results.append(rows)
            if progress is not None:
                progress(index, hops)
        return results

    def hop(self, rows: Tensor, index: int, *, normalise: bool = True) -> Tensor:
        """Release one hop: unit rows in, noisy rows out, in float32.

        Args:
            rows: ``(N, d)``, or ``(R, N, d)`` with one block per repeat, rows of norm at most 1.
                A row that is not finite is refused; at node level it counts as zeros.
            index: the number of this hop, which names its noise. An index is used once: two
                releases with the same noise would reveal the difference of what is beneath.
            normalise: scale the noisy rows to norm 1, as the paper does. Not scaling them releases
                nothing more: the noisy sum is what was paid for, and scaling is post-processing.
        """
        batch = self._checked_batch(rows)
        check_integer("index", index, at_least=1)
        if index in self._released:
            raise PrivacyError(
                f"`index` must be new for every hop: its noise is drawn once. Got {index} again."
            )
        # Recorded before anything is computed: a failure below leaves a charge, not a free release.
        self._released.add(index)
        if self.level != "none":
            self._events.append(Gaussian(self.noise_multiplier, label=f"aggregation hop {index}"))
        exact = self.level != "none" and self.noise == "safe"
        release = self._on_cpu if self.device.type == "cpu" else self._on_device
        if isinstance(self.graph, StoredGraph):
            release = self._on_store
        out = torch.empty(batch.shape, dtype=torch.float32, device=self.device)
        for repeat, block in enumerate(batch):
            if self.is_divided:
                block = divide_rows(block, self._written)
            if exact and self._adds_whole_numbers(repeat, block):
                block = whole_rows(block)
            else:
                block = (self._quantised(block) if exact else block.to(torch.float32)).contiguous()
            if self.is_divided:
                check_contributions(block, self._written)
            release(repeat, block, index, out[repeat], normalise)
            if self.level != "none":
                describe = partial(self._describe, repeat, block, index, len(batch))
                released = shown(describe, out[repeat])
                if active_witness() is not None:
                    out[repeat] = released
        return out.reshape(rows.shape)

    def _adds_whole_numbers(self, repeat: int, rows: Tensor) -> bool:
        """Return whether a kernel takes these rows as whole numbers from the start."""
        is_here = self.device.type == "cpu" or isinstance(self.graph, StoredGraph)
        if is_here or self.is_divided or not rows.numel():
            return False
        width = rows.shape[1]
        return all(one._lists_on_device(repeat).can_release(width) for one in self._summands)

    def _quantised(self, rows: Tensor) -> Tensor:
        """Cut rows to the grid on which sums are exact: of the rows, or of their products."""
        if self._weighs:
            return quantise_rows(rows, grid=WEIGHTED_GRID)
        # As a CPU adds them up; a check of divided rows and a device's product take float64.
        is_single = self.device.type == "cpu" and not self.is_divided
        return quantise_rows(rows, dtype=torch.float32 if is_single else torch.float64)

    @cached_property
    def _written(self) -> Tensor:
        """How many rows each node writes to at most: the length of its own list, and itself."""
        lengths = self.graph.out_degrees + int(self.to_self)
        return torch.from_numpy(lengths).to(self.device)

    @property
    def _drops_loops(self) -> bool:
        """Whether arcs from a node to itself are left out, where the node sends there anyway."""
        return self.to_self and self.graph.num_self_loops > 0

    @property
    def _weighs(self) -> bool:
        return any(one.graph.is_weighted for one in self._summands)

    def _describe(self, repeat: int, rows: Tensor, index: int, repeats: int) -> Release:
        """Return what a witness sees of one hop: the sums without noise, NOT private."""
        sums = torch.empty(rows.shape, dtype=torch.float64)
        if self.noise == "safe":
            rows = rows.double() if rows.is_floating_point() else rows.double().mul_(GRID)
        blind = BlockRelease(None, 0.0, index, normalise=False, to_self=self.to_self)
        if isinstance(self.graph, StoredGraph):
            first, *more = self._stored_lists(repeat)
            exactly = replace(blind, is_exact=self.noise == "safe")
            first.release(exactly, rows, sums, *more)
        else:
            lists = (one._weighted_lists(repeat) for one in self._summands)
            blind.release(rows.cpu(), 0, sums, *lists)
        kind = "" if self.kind is None else f" along {self.kind}"
        return Release(
            f"hop {index}{kind}" + (f" of repeat {repeat + 1}" if repeats > 1 else ""),
            sums.numpy(),
            self.std,
            self.sensitivity,
            rows_of_people=True,
            covers_own_row=self.is_divided,
        )

    def _checked_batch(self, rows: Tensor) -> Tensor:
        """Return rows as ``(R, N, d)`` on the device, or refuse them."""
        batch = rows.detach().to(self.device)
        if batch.dim() == 2:
            batch = batch.unsqueeze(0)
        wanted = (len(self._sources), self.graph.num_nodes)
        if batch.dim() != 3 or tuple(batch.shape[:2]) != wanted or not batch.is_floating_point():
            raise InputError(
                f"`rows` must be floating-point of shape ({wanted[0]}, {wanted[1]}, columns). "
                f"Got {tuple(rows.shape)} of {rows.dtype}."
            )
        if not batch.numel():
            return batch
        longest = longest_row(batch)
        if not math.isfinite(longest) and self.level == "node":
            # One record must not be able to stop the run (privacy page, section 2).
            batch = torch.where(torch.isfinite(batch).all(dim=-1, keepdim=True), batch, 0.0)
            longest = longest_row(batch)
        if not math.isfinite(longest):
            raise PrivacyError("`rows` must be finite. Got NaN or infinity.")
        if self.level != "none" and longest > 1 + NORM_TOLERANCE:
            raise PrivacyError(
                f"`rows` must have norm at most 1, which the noise is scaled to. Got a row of norm "
                f"{longest:.9g}."
            )
        return batch

    def _which_lists(self, repeat: int) -> int:
        """Return whose lists a repeat uses: its own cut, or the ones all repeats share."""
        return 0 if self.max_degree is None else repeat

    def in_lists(self, repeat: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return who writes to each row in one repeat's hops, in CSR form: private, not released.

        At node level the out-lists are cut to D entries first, each as a function of that list and
        the repeat's secret alone (privacy page, section 1).
        """
        return self._weighted_lists(repeat)[:2]

    def _weighted_lists(self, repeat: int) -> Lists:
        """Return who writes to each row, and how much each entry weighs where edges have weights.

        A weight is at most 1, so a message is no longer than without (privacy page, section 1).
        """
        which = self._which_lists(repeat)
        if which not in self._lists:
            indptr, indices, weights = self.graph.indptr, self.graph.indices, self.graph.weights
            if self.max_degree is not None:
                key = self._sources[repeat].key.derive("degree")
                kept = bound_out_degrees(self.graph, self.max_degree, key)
                indptr, indices = kept[:2]
                weights = None if weights is None else kept.weights
            if self.max_degree is not None or self.graph.is_directed:
                shape = (self.graph.num_nodes,) * 2
                values = np.ones(len(indices), dtype=np.bool_) if weights is None else weights
                # SciPy makes both as wide as the wider one, and narrow ones turn in half the time.
                if len(indices) <= np.iinfo(indices.dtype).max:
                    indptr = indptr.astype(indices.dtype)
                columns = sp.csr_array((values, indices, indptr), shape=shape).tocsc()
                indptr = columns.indptr.astype(np.int64, copy=False)
                indices = columns.indices.astype(indices.dtype, copy=False)
                weights = None if weights is None else columns.data
            if self.both_ways:
                leaving = self.graph.indptr, self.graph.indices, self.graph.weights
                indptr, indices, weights = join_ways(0, (indptr, indices, weights), leaving)
            elif self._drops_loops:
                indptr, indices, weights = without_loops(0, (indptr, indices, weights))
            self._lists[which] = indptr, indices, weights
        return self._lists[which]

    def _on_cpu(self, repeat: int, rows: Tensor, index: int, out: Tensor, normalise: bool) -> None:
        """Aggregate, perturb and normalise chunk by chunk, so that no full float64 sum is held."""
        kinds = [one._weighted_lists(repeat) for one in self._summands]
        block = self._block_release(repeat, index, normalise)
        sent = _as_sent(rows, self._weighs)
        num_nodes, width = rows.shape
        size = max(1, CHUNK_NUMBERS // (ROW_BLOCK * max(1, width))) * ROW_BLOCK
        for start in range(0, num_nodes, size):
            lists = (_lists_of_rows(kind, start, start + size) for kind in kinds)
            block.release(sent, start, out[start : start + size], *lists)

    def _block_release(self, repeat: int, index: int, normalise: bool) -> BlockRelease:
        source = None if self.level == "none" else self._sources[repeat]
        is_exact = source is not None and self.noise == "safe"
        return BlockRelease(source, self.std, index, normalise, self.to_self, is_exact)

    def _on_store(
        self, repeat: int, rows: Tensor, index: int, out: Tensor, normalise: bool
    ) -> None:
        """Aggregate a graph on disk one part at a time; the arcs are never all in memory."""
        first, *more = self._stored_lists(repeat)
        first.release(self._block_release(repeat, index, normalise), rows, out, *more)

    def _stored_lists(self, repeat: int) -> list[StoredLists]:
        """Return the lists on disk that one repeat's hops add up, those of every kind."""
        if len(self._summands) > 1:
            return [lists for one in self._summands for lists in one._stored_lists(repeat)]
        which = self._which_lists(repeat)
        if which not in self._stored:
            key = self._sources[repeat].key.derive("degree")
            store = cast(StoredGraph, self.graph)
            self._stored[which] = StoredLists(
                store,
                max_degree=self.max_degree,
                key=key,
                both_ways=self.both_ways,
                drops_loops=self._drops_loops,
            )
        return [self._stored[which]]

    def _on_device(
        self, repeat: int, rows: Tensor, index: int, out: Tensor, normalise: bool
    ) -> None:
        """Aggregate, perturb and normalise on an accelerator: in one kernel, or product by product.

        The kernel draws the noise that it adds (:mod:`gapgnn.privacy.mechanisms.device`).
        """
        lists, *more = (one._lists_on_device(repeat) for one in self._summands)
        source = None if self.level == "none" else self._sources[repeat]
        path = ("hop", index)
        count, width = rows.shape
        is_exact = rows.dtype in (torch.float64, torch.int32)
        if not all(one.can_release(width) for one in (lists, *more)):
            total = lists.matrix(rows.dtype) @ rows
            for one in more:
                total += one.matrix(rows.dtype) @ rows
            if self.to_self:
                total += rows
            if source is not None:
                total += source.gaussian_rows(0, count, width, self.std, *path, device=self.device)
            out.copy_(row_normalise(total) if normalise else total)
        elif source is None or not is_exact:
            noise = None if source is None else source.philox(width, self.std, *path)
            lists.release(
                rows,
                noise=noise,
                normalise=normalise and not self.to_self,
                out=out,
                given=_added_up(more, rows),
            )
            if self.to_self:
                out += rows
                out.copy_(row_normalise(out) if normalise else out)
        else:
            whole = rows.div(GRID).to(torch.int32) if rows.is_floating_point() else rows
            lists.release(
                whole,
                noise=source.cipher(width, self.std, *path),
                normalise=normalise,
                out=out,
                unit=GRID,
                given=whole if self.to_self else _added_up(more, whole),
            )

    def _lists_on_device(self, repeat: int) -> DeviceLists:
        which = self._which_lists(repeat)
        is_made_here = self._weighs or self.both_ways or self._drops_loops
        if which not in self._device_lists and is_made_here:
            lists = self._weighted_lists(repeat)
            if lists[2] is not None:
                check_weights(lists[2])
            found = [part for part in lists if part is not None]
            parts = (torch.tensor(part, device=self.device) for part in found)
            self._device_lists[which] = DeviceLists(*parts)
        if which not in self._device_lists:
            self._device_lists[which] = in_lists_on(
                self.graph,
                self.device,
                max_degree=self.max_degree,
                key=self._sources[repeat].key.derive("degree"),
            )
        return self._device_lists[which]


def _lists_of_rows(lists: Lists, first: int, last: int) -> Lists:
    """Return the lists of some rows."""
    indptr, indices, weights = lists
    pointers = indptr[first : last + 1]
    part = slice(pointers[0], pointers[-1])
    return pointers - pointers[0], indices[part], None if weights is None else weights[part]


def _added_up(kinds: Sequence[DeviceLists], rows: Tensor) -> Tensor | None:
    """Return the exact sums over several lists on a device, together; None for no lists."""
    total = None
    for lists in kinds:
        found = lists.sums(rows)
        total = found if total is None else total.add_(found)
    return total


def kind_aggregations(
    graph: Graph, *, keys: Sequence[NoiseKey], with_total: bool = False, **options: Any
) -> list[PrivateAggregation]:
    """Return the noisy hops of every kind of edges of a graph, each with keys of its own.

    Relation and sensitivity of each are those of :class:`PrivateAggregation`. What they cost
    together depends on who the neighbours are (privacy page, sections 1 and 2): one edge of one
    kind moves the hops of that kind only, so a hop of all kinds is one Gaussian event, and with
    their total two; one edge of each kind, or a record with its lists of all kinds, moves them all,
    and each is an event.

    Args:
        graph: with one kind of edges or several.
        keys: the secret of each repeat, from which every kind derives its own, and so does the
            total: noise that two of them shared would cancel in their difference.
        with_total: append the total over all kinds, where there are several.
        options: of the hops.
    """
    if not graph.more:
        return [PrivateAggregation(graph, keys=keys, **options)]
    kinds = [
        PrivateAggregation(
            one, keys=[key.derive("kind", one.kind) for key in keys], kind=one.kind, **options
        )
        for one in graph.kinds
    ]
    if not with_total:
        return kinds
    own = [key.derive("total of all kinds") for key in keys]
    total = PrivateAggregation(graph, keys=own, kind="all kinds", total_of=kinds, **options)
    return [*kinds, total]
