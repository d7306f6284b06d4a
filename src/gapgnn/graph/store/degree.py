"""Out-lists of a store cut to at most D entries, without a second copy of the arcs.

The rule is that of :mod:`gapgnn.graph.degree`: an entry stays if it is among the D smallest keyed
hashes of its list. One pass over the out-lists finds the last hash that stays in each list too long
(16 bytes per node). After that every arc answers for itself, wherever it lies: its own hash is at
most that of its list. So the cut does not depend on the parts, and it is the cut in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_integer
from gapgnn.graph import Words, absorb_first, absorb_last, encode_ids, split_key
from gapgnn.graph.degree import _entries
from gapgnn.graph.store.arcs import Block
from gapgnn.graph.store.graph import StoredGraph
from gapgnn.rng import NoiseKey

CHUNK_ARCS = 1 << 15
ALL = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Limits:
    """Which entries stay: everything a part needs to cut the arcs that lead to it.

    Attributes:
        ids: the 64 bits that stand for each node in the hash.
        last_hash: of each out-list, the largest hash that stays; all ones where nothing is cut.
        last_target: and the largest target word at that hash: where hashes tie, smaller words stay.
    """

    ids: Words
    last_hash: Words
    last_target: Words

    @property
    def arrays(self) -> tuple[Words, Words, Words]:
        """The large part, which can be shared between processes."""
        return self.ids, self.last_hash, self.last_target

    def cut(self, block: Block, secret: bytes) -> Block:
        """Return the in-lists of some rows without the entries that their sources' lists lost.

        Args:
            block: who writes to each row.
            secret: the SipHash key of the run, from :func:`cut_secret`.
        """
        sources = block.entries
        targets = np.repeat(self.ids[block.first : block.last], np.diff(block.pointers))
        keep = np.ones(len(sources), dtype=np.bool_)
        for start in range(0, len(sources), CHUNK_ARCS):
            owner = sources[start : start + CHUNK_ARCS]
            last = self.last_hash[owner]
            doubtful = np.flatnonzero(last != ALL)
            if len(doubtful) < len(owner):
                owner, last = owner[doubtful], last[doubtful]
            target = targets[start + doubtful]
            found = absorb_last(absorb_first(self.ids[owner], secret), target)
            stays = found < last
            tied = np.flatnonzero(found == last)
            stays[tied] = target[tied] <= self.last_target[owner[tied]]
            keep[start + doubtful] = stays
        before = np.concatenate([[0], np.cumsum(keep)])
        return Block(block.first, before[block.pointers], sources[keep])


def cut_secret(key: NoiseKey) -> bytes:
    """Return the SipHash key of a cut."""
    return split_key(key)[0]


def find_limits(graph: StoredGraph, max_degree: int, key: NoiseKey) -> Limits:
    """Find where each out-list of a store ends when it is cut to ``max_degree`` entries.

    Relation: ``add-remove`` or ``replace`` at node level (privacy page, section 1). What stays of a
    list is a function of that list, the ids on it and the key, as in
    :func:`gapgnn.graph.degree.bound_out_degrees`; a record writes to at most ``max_degree`` rows.

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
    ...     sum(len(limits.cut(block, cut_secret(key)).entries) for block in blocks)
    12
    """
    limit = check_integer("max_degree", max_degree, at_least=1)
    siphash_key, name_key = split_key(key)
    ids = encode_ids(graph.ids, name_key)
    last_hash = np.full(graph.num_nodes, ALL)
    last_target = np.full(graph.num_nodes, ALL)
    dangling: tuple[NDArray[np.int64], Words] | None = None
    if graph.dangling_indptr is not None and graph.dangling_targets is not None:
        dangling = (graph.dangling_indptr, encode_ids(graph.dangling_targets, name_key))
    degrees = graph.out_degrees
    for part in graph.out_parts():
        for block in part.blocks():
            rows = block.first + np.flatnonzero(degrees[block.first : block.last] > limit)
            ends = np.cumsum(degrees[rows])
            cuts = np.flatnonzero(np.diff(ends // CHUNK_ARCS, prepend=0))
            for some in np.split(rows, cuts):
                if len(some):
                    found = _last_kept(block, some, ids, dangling, limit, siphash_key)
                    last_hash[some], last_target[some] = found
    return Limits(ids, last_hash, last_target)


def _last_kept(
    block: Block,
    rows: NDArray[np.int64],
    ids: Words,
    dangling: tuple[NDArray[np.int64], Words] | None,
    limit: int,
    siphash_key: bytes,
) -> tuple[Words, Words]:
    """Return hash and target word of the last entry that stays in each of some long lists."""
    places, rank = _entries(block.pointers, rows - block.first)
    targets = ids[block.entries[places]]
    if dangling is not None:
        more, more_rank = _entries(dangling[0], rows)
        targets = np.concatenate([targets, dangling[1][more]])
        rank = np.concatenate([rank, more_rank])
    states: list[Any] = absorb_first(ids[rows], siphash_key)
    hashes = absorb_last([state[rank] for state in states], targets)
    # One sort of plain words, the list's rank in the high bits, finds the last word that stays in
    # each list. Several entries have that word where the bits of the hash that gave way decide.
    bits = np.uint64(max(1, len(rows).bit_length()))
    words = (rank.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
    ordered = np.sort(words)
    lengths = np.bincount(rank, minlength=len(rows))
    starts = np.cumsum(lengths) - lengths
    word = ordered[starts + limit - 1]
    before = np.searchsorted(ordered, word) - starts
    tied = np.flatnonzero(words == word[rank])
    tied = tied[np.lexsort((targets[tied], hashes[tied], rank[tied]))]
    last = tied[np.searchsorted(rank[tied], np.arange(len(rows))) + limit - 1 - before]
    return hashes[last], targets[last]
