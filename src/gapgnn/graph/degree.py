"""Bound the out-degree: keep at most D entries of each adjacency list, chosen by a keyed hash.

The bound makes the node-level sensitivity finite (privacy page, section 1). An entry is kept if it
is among the D entries of its list with the smallest keyed hash of (source id, target id). The
choice depends on ids only, and neither on the order of the nodes, nor on how the work is split, nor
on who else has a record: an entry whose target left is still counted and is not replaced.

Each person has two secret words, SipHash of the id: one as the source of arcs, one as the target.
The hash of an entry mixes the source's word with the target's (:func:`pair_hashes`), which takes a
tenth of the time of SipHash for every arc. In one list the hashes of different targets are a public
bijection of their independent words, so every choice of D entries is equally likely. The guarantee
does not depend on the quality of the hash.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_integer
from gapgnn.graph.graph import Graph
from gapgnn.graph.people import (
    KEY_BYTES,
    NAME_KEY_BYTES,
    NUMPY_OPS,
    WordOps,
    Words,
    absorb_first,
    absorb_last,
    encode_ids,
)
from gapgnn.rng import NoiseKey

CHUNK_ENTRIES = 1 << 16
# Stafford's thirteenth variant of MurmurHash3's finaliser: every bit of a word moves all others.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


class BoundedAdjacency(NamedTuple):
    """Adjacency lists of bounded out-degree in CSR form, without dangling entries."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weights: NDArray[np.float32] | None = None


def bound_out_degrees(graph: Graph, max_degree: int, key: NoiseKey | bytes) -> BoundedAdjacency:
    """Keep at most ``max_degree`` entries of each adjacency list.

    Relation: ``add-remove`` or ``replace`` at node level (privacy page, section 1). Which entries
    of a list are kept is a function of that list, the ids in it and the key; removing or exchanging
    another record does not change it. A record therefore contributes to at most ``max_degree`` rows
    of one aggregation.

    Args:
        graph: the private graph.
        max_degree: D, at least 1. Dangling entries count towards it, and contribute nothing.
        key: the secret of this run, at least 16 bytes; a derived :class:`~gapgnn.rng.NoiseKey` of
            its own. With a known key, the owner of a list could choose which entries are kept.

    Returns:
        Adjacency lists in the order of the graph, targets sorted as before, each with its weight.
        The choice does not depend on weights.

    >>> hub = Graph.from_arcs([0] * 9, range(1, 10), num_nodes=10, features=np.eye(10))
    >>> lists = bound_out_degrees(hub, 3, NoiseKey.insecure(0))
    >>> np.diff(lists.indptr).tolist()
    [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    rule = CutRule.of(graph, max_degree, key)
    degrees = graph.out_degrees
    long_rows = np.flatnonzero(degrees > rule.limit)
    if not long_rows.size:
        return BoundedAdjacency(graph.indptr, graph.indices, graph.weights)
    keep = np.ones(graph.num_arcs, dtype=np.bool_)
    counts = np.diff(graph.indptr)

    def cut(rows: NDArray[np.int64]) -> None:
        entries = rule.entries(rows, graph.indptr, graph.indices)
        last_hash, last_target = rule.last_kept(entries, len(rows))
        listed = len(entries.places)
        rank = entries.rank[:listed]
        kept = stays(
            entries.hashes[:listed], entries.targets[:listed], last_hash[rank], last_target[rank]
        )
        keep[entries.places] = kept
        counts[rows] = np.bincount(rank[kept], minlength=len(rows))

    # Threads write to disjoint rows; NumPy releases the lock inside each operation.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(cut, in_chunks(long_rows, degrees, CHUNK_ENTRIES)))
    weights = None if graph.weights is None else graph.weights[keep]
    return BoundedAdjacency(np.concatenate([[0], np.cumsum(counts)]), graph.indices[keep], weights)


class Entries(NamedTuple):
    """The hashed entries of some adjacency lists; dangling entries come last.

    Attributes:
        places: the positions of the entries that do not dangle.
        rank: the list of each entry, counted among the requested lists.
        targets: the secret word of each target.
        hashes: the keyed hash of each entry.
    """

    places: NDArray[np.int64]
    rank: NDArray[np.int64]
    targets: Words
    hashes: Words


@dataclass(frozen=True)
class CutRule:
    """Keep the ``limit`` entries of a list with the smallest (hash, target), in memory or on disk.

    Attributes:
        limit: D.
        owners: the secret word of each node as a source.
        entrants: the secret word of each node as a target.
        dangling: the dangling entries in CSR form, as row pointers and secret words of targets.
    """

    limit: int
    owners: Words
    entrants: Words
    dangling: tuple[NDArray[np.int64], Words] | None

    @classmethod
    def of(cls, graph: Graph, max_degree: int, key: NoiseKey | bytes) -> CutRule:
        """Return the rule of a graph under a key."""
        limit = check_integer("max_degree", max_degree, at_least=1)
        secret, name_key = split_key(key)
        dangling = None
        if graph.dangling_targets is not None and graph.dangling_indptr is not None:
            codes = encode_ids(graph.dangling_targets, name_key)
            dangling = (graph.dangling_indptr, secret_words(codes, secret)[1])
        return cls(limit, *secret_words(encode_ids(graph.ids, name_key), secret), dangling)

    def entries(
        self, rows: NDArray[np.int64], pointers: NDArray[Any], targets: NDArray[Any], first: int = 0
    ) -> Entries:
        """Return the hashed entries of some rows; the arrays begin with row ``first``."""
        places, rank = _places(pointers, rows - first)
        words = self.entrants[targets[places]]
        if self.dangling is not None:
            more, more_rank = _places(self.dangling[0], rows)
            words = np.concatenate([words, self.dangling[1][more]])
            rank = np.concatenate([rank, more_rank])
        return Entries(places, rank, words, pair_hashes(self.owners[rows][rank], words))

    def last_kept(self, entries: Entries, num_rows: int) -> tuple[Words, Words]:
        """Return hash and target word of the last entry kept in each list; all exceed the limit.

        One sort of words (rank and upper bits of the hash) finds the last word kept in each list.
        Where several entries have that word, the lower bits of the hash decide.
        """
        _, rank, targets, hashes = entries
        words = row_words(rank, hashes, num_rows, _shifted)
        if num_rows < 1 << 15:
            # Half a word distinguishes nearly all entries and is sorted in half the time.
            words = (words >> 32).astype(np.int32)
        # torch sorts by radix, in half the time of NumPy on a chunk.
        ordered = torch.from_numpy(words).sort().values.numpy()
        lengths = np.bincount(rank, minlength=num_rows)
        starts = np.cumsum(lengths) - lengths
        word = ordered[starts + self.limit - 1]
        before = np.searchsorted(ordered, word) - starts
        tied = np.flatnonzero(words == word[rank])
        tied = tied[np.lexsort((targets[tied], hashes[tied], rank[tied]))]
        last = np.searchsorted(rank[tied], np.arange(num_rows)) + self.limit - 1 - before
        last_hash, last_target = hashes[tied[last]], targets[tied[last]]
        # Several targets may have the same word by chance: then none is kept if not all fit into D.
        after = tied[np.minimum(last + 1, len(tied) - 1)]
        shared = (after != tied[last]) & (rank[after] == np.arange(num_rows))
        shared &= (hashes[after] == last_hash) & (targets[after] == last_target)
        last_hash[shared & (last_target == 0)] -= np.uint64(1)
        last_target[shared] -= np.uint64(1)
        return last_hash, last_target


def stays(hashes: Words, targets: Words, last_hash: Words, last_target: Words) -> NDArray[np.bool_]:
    """Return which entries are kept, given the last one kept in the list of each."""
    kept: NDArray[np.bool_] = hashes < last_hash
    tied = np.flatnonzero(hashes == last_hash)
    kept[tied] = targets[tied] <= last_target[tied]
    return kept


def secret_words(codes: Any, secret: bytes, ops: WordOps = NUMPY_OPS) -> tuple[Any, Any]:
    """Return two secret words of each person: as a source and as a target.

    Args:
        codes: the 64-bit code of each person.
        secret: the SipHash key.
        ops: operations of the array library.
    """
    owners, entrants = (
        absorb_last(absorb_first(codes, secret, ops), ops.constant(side), ops) for side in (0, 1)
    )
    return owners, entrants


def pair_hashes(owners: Any, entrants: Any, ops: WordOps = NUMPY_OPS) -> Any:
    """Return the hash of each entry from the secret words of its source and target."""
    words = owners ^ entrants
    for by, factor in _MIX:
        words ^= ops.shifted(words, by)
        words *= ops.constant(factor)
    words ^= ops.shifted(words, _LAST_SHIFT)
    return words


def row_words(rank: Any, hashes: Any, num_rows: int, shifted: Callable[[Any, int], Any]) -> Any:
    """Return a signed word per entry: the rank of its row above the upper bits of its hash.

    One sort of these sorts all rows at once, in memory and on a device (``shifted`` is the logical
    right shift there). The lower bits of the hash matter only where words tie.
    """
    bits = num_rows.bit_length() + 1
    return (rank << (64 - bits)) | shifted(hashes, bits)


def in_chunks(
    rows: NDArray[np.int64], degrees: NDArray[np.int64], size: int
) -> list[NDArray[np.int64]]:
    """Cut rows into runs of about ``size`` entries each, whole rows always."""
    ends = np.cumsum(degrees[rows])
    cuts = np.flatnonzero(np.diff(ends // size, prepend=0))
    return [part for part in np.split(rows, cuts) if part.size]


def split_key(key: NoiseKey | bytes) -> tuple[bytes, bytes]:
    """Return the SipHash key and the key that reduces names to 64 bits."""
    if isinstance(key, bytes):
        if len(key) < KEY_BYTES:
            raise InputError(f"`key` must have at least {KEY_BYTES} bytes. Got {len(key)}.")
        key = NoiseKey(key)
    material = key.bytes(KEY_BYTES + NAME_KEY_BYTES, "out-list order")
    return material[:KEY_BYTES], material[KEY_BYTES:]


def _places(
    indptr: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the entries of some rows, and for each entry the rank of its row."""
    counts = indptr[rows + 1] - indptr[rows]
    before = np.cumsum(counts) - counts
    rank = np.repeat(np.arange(len(rows)), counts)
    return np.arange(len(rank)) + (indptr[rows] - before)[rank], rank


def _shifted(words: Words, by: int) -> NDArray[np.int64]:
    return (words >> np.uint64(by)).view(np.int64)
