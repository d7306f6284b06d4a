"""Out-lists cut to at most D entries, by a keyed hash that reads one list alone.

Cutting is what makes the node-level sensitivity finite (privacy page, section 1). An entry stays if
it is among the D entries of its list with the smallest keyed hash of (source id, target id). The
hash reads outside ids, so the choice depends neither on the order of the nodes, nor on how the work
is split, nor on who else has a record: an entry whose target left keeps its slot and is not
replaced.

Each person has two secret words, SipHash of the own id: one as the owner of a list, one as an entry
of lists. The hash of an entry mixes the owner's with the entry's (:func:`pair_hashes`), which takes
a tenth of SipHash for every arc. In one list the hashes of different people are a public bijection
of their independent words, so every choice of D is as likely as any other; and the guarantee holds
whatever the hash is.
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
    NUMPY_WORDS,
    WordKind,
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


class OutLists(NamedTuple):
    """Out-lists in CSR form, without dangling entries: what remains of a graph after the cut."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    weights: NDArray[np.float32] | None = None


def bound_out_degrees(graph: Graph, max_degree: int, key: NoiseKey | bytes) -> OutLists:
    """Cut every out-list to at most ``max_degree`` entries.

    Relation: ``add-remove`` or ``replace`` at node level (privacy page, section 1). What is kept of
    a list is a function of that list, the ids on it and the key; removing or exchanging another
    record changes nothing in it. A record therefore writes to at most ``max_degree`` rows of one
    aggregation.

    Args:
        graph: the private graph.
        max_degree: D, at least 1. Dangling entries count: they hold a slot and contribute nothing.
        key: the secret of this run, at least 16 bytes; a derived :class:`~gapgnn.rng.NoiseKey` of
            its own. A known key would let the owner of a list choose whom it keeps.

    Returns:
        Out-lists in the order of the graph, targets sorted as before, each with its weight. What
        an entry weighs has no say in whether it stays.

    >>> hub = Graph.from_arcs([0] * 9, range(1, 10), num_nodes=10, features=np.eye(10))
    >>> lists = bound_out_degrees(hub, 3, NoiseKey.insecure(0))
    >>> np.diff(lists.indptr).tolist()
    [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    rule = CutRule.of(graph, max_degree, key)
    degrees = graph.out_degrees
    long_rows = np.flatnonzero(degrees > rule.limit)
    if not long_rows.size:
        return OutLists(graph.indptr, graph.indices, graph.weights)
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
    return OutLists(np.concatenate([[0], np.cumsum(counts)]), graph.indices[keep], weights)


class Entries(NamedTuple):
    """The entries of some lists; those that dangle come last.

    Attributes:
        places: where the entries that do not dangle lie.
        rank: whose list it is, counted among the lists asked for.
        targets: the secret word of each target.
        hashes: the keyed hash of each entry.
    """

    places: NDArray[np.int64]
    rank: NDArray[np.int64]
    targets: Words
    hashes: Words


@dataclass(frozen=True)
class CutRule:
    """Which entries stay, in memory or on disk: the ``limit`` smallest (hash, target) of a list.

    Attributes:
        limit: D.
        owners: the secret word of each node as the owner of a list.
        entrants: and as an entry of lists.
        dangling: whose entries dangle, in CSR form, and their words.
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
        """Return the hashed entries of some rows of out-lists that begin with row ``first``."""
        places, rank = _places(pointers, rows - first)
        words = self.entrants[targets[places]]
        if self.dangling is not None:
            more, more_rank = _places(self.dangling[0], rows)
            words = np.concatenate([words, self.dangling[1][more]])
            rank = np.concatenate([rank, more_rank])
        return Entries(places, rank, words, pair_hashes(self.owners[rows][rank], words))

    def last_kept(self, entries: Entries, num_rows: int) -> tuple[Words, Words]:
        """Return hash and target word of the last entry that stays in each list, all too long.

        One sort of plain words finds the last word that stays in each list. Several entries have
        that word where the bits of the hash that gave way to the rank decide.
        """
        _, rank, targets, hashes = entries
        words = row_words(rank, hashes, num_rows, _shifted)
        if num_rows < 1 << 15:
            # Half of a word tells nearly all entries apart and is sorted in half the time.
            words = (words >> 32).astype(np.int32)
        # By radix: half the time of NumPy's sort on a chunk.
        ordered = torch.from_numpy(words).sort().values.numpy()
        lengths = np.bincount(rank, minlength=num_rows)
        starts = np.cumsum(lengths) - lengths
        word = ordered[starts + self.limit - 1]
        before = np.searchsorted(ordered, word) - starts
        tied = np.flatnonzero(words == word[rank])
        tied = tied[np.lexsort((targets[tied], hashes[tied], rank[tied]))]
        last = np.searchsorted(rank[tied], np.arange(num_rows)) + self.limit - 1 - before
        last_hash, last_target = hashes[tied[last]], targets[tied[last]]
        # Names of one word, which chance allows: those that do not all fit go, so D always holds.
        after = tied[np.minimum(last + 1, len(tied) - 1)]
        shared = (after != tied[last]) & (rank[after] == np.arange(num_rows))
        shared &= (hashes[after] == last_hash) & (targets[after] == last_target)
        last_hash[shared & (last_target == 0)] -= np.uint64(1)
        last_target[shared] -= np.uint64(1)
        return last_hash, last_target


def stays(hashes: Words, targets: Words, last_hash: Words, last_target: Words) -> NDArray[np.bool_]:
    """Say which entries stay, given the last that stays in the list of each."""
    kept: NDArray[np.bool_] = hashes < last_hash
    tied = np.flatnonzero(hashes == last_hash)
    kept[tied] = targets[tied] <= last_target[tied]
    return kept


def secret_words(codes: Any, secret: bytes, kind: WordKind = NUMPY_WORDS) -> tuple[Any, Any]:
    """Return two words of each person: as the owner of a list, and as an entry of lists.

    Args:
        codes: the 64 bits that stand for each person.
        secret: the SipHash key.
        kind: of array.
    """
    owners, entrants = (
        absorb_last(absorb_first(codes, secret, kind), kind.constant(side), kind) for side in (0, 1)
    )
    return owners, entrants


def pair_hashes(owners: Any, entrants: Any, kind: WordKind = NUMPY_WORDS) -> Any:
    """Return the hash of each entry of a list, from its owner's secret word and its own."""
    words = owners ^ entrants
    for by, factor in _MIX:
        words ^= kind.shifted(words, by)
        words *= kind.constant(factor)
    words ^= kind.shifted(words, _LAST_SHIFT)
    return words


def row_words(rank: Any, hashes: Any, num_rows: int, shifted: Callable[[Any, int], Any]) -> Any:
    """Return a signed word per entry: the rank of its row above the upper bits of its hash.

    One sort of these sorts all rows at once, in memory and on a device (``shifted`` shifts right
    and fills with zeros there). The lower bits of the hash matter only where words tie.
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
    """Return where the entries of some rows lie, and for each entry the rank of its row."""
    counts = indptr[rows + 1] - indptr[rows]
    before = np.cumsum(counts) - counts
    rank = np.repeat(np.arange(len(rows)), counts)
    return np.arange(len(rank)) + (indptr[rows] - before)[rank], rank


def _shifted(words: Words, by: int) -> NDArray[np.int64]:
    return (words >> np.uint64(by)).view(np.int64)
