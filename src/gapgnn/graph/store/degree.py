"""Out-lists of a store cut to at most D entries, without a second copy of the arcs.

The rule is that of :mod:`gapgnn.graph.degree`: an entry stays if it is among the D smallest keyed
hashes of its list. One pass over the out-lists finds the last hash that stays in each list too long
(16 bytes per node). After that every arc answers for itself, wherever it lies: its own hash is at
most that of its list. So the cut does not depend on the parts, and it is the cut in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapgnn.graph import CutRule, Words, absorb_first, absorb_last, in_chunks, split_key, stays
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
            keep[start + doubtful] = stays(found, target, last, self.last_target[owner])
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
    return Limits(rule.ids, last_hash, last_target)
