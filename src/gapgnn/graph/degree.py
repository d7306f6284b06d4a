"""Out-lists cut to at most D entries, by a keyed hash that reads one list alone.

Cutting is what makes the node-level sensitivity finite (privacy page, section 1). An entry stays if
it is among the D entries of its list with the smallest keyed hash of (source id, target id). The
hash reads outside ids, so the choice depends neither on the order of the nodes, nor on how the work
is split, nor on who else has a record: an entry whose target left keeps its slot and is not
replaced.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_integer
from gapgnn.graph.graph import Graph
from gapgnn.graph.people import (
    KEY_BYTES,
    NAME_KEY_BYTES,
    Words,
    absorb_first,
    absorb_last,
    encode_ids,
)
from gapgnn.rng import NoiseKey

CHUNK_ENTRIES = 1 << 16


class OutLists(NamedTuple):
    """Out-lists in CSR form, without dangling entries: what remains of a graph after the cut."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]


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
        Out-lists in the order of the graph, targets sorted as before.

    >>> hub = Graph.from_arcs([0] * 9, range(1, 10), num_nodes=10, features=np.eye(10))
    >>> lists = bound_out_degrees(hub, 3, NoiseKey.insecure(0))
    >>> np.diff(lists.indptr).tolist()
    [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    limit = check_integer("max_degree", max_degree, at_least=1)
    siphash_key, name_key = split_key(key)
    degrees = graph.out_degrees
    long_rows = np.flatnonzero(degrees > limit)
    if not long_rows.size:
        return OutLists(graph.indptr, graph.indices)
    ids = encode_ids(graph.ids, name_key)
    dangling = None
    if graph.dangling_targets is not None and graph.dangling_indptr is not None:
        dangling = (graph.dangling_indptr, encode_ids(graph.dangling_targets, name_key))
    keep = np.ones(graph.num_arcs, dtype=np.bool_)
    counts = np.diff(graph.indptr)

    def cut(rows: NDArray[np.int64]) -> None:
        places, rank = _entries(graph.indptr, rows)
        states = absorb_first(ids[rows], siphash_key)
        targets, ranks = ids[graph.indices[places]], rank
        if dangling is not None:
            more, more_rank = _entries(dangling[0], rows)
            targets = np.concatenate([targets, dangling[1][more]])
            ranks = np.concatenate([rank, more_rank])
        hashes = absorb_last([state[ranks] for state in states], targets)
        kept = _smallest(ranks, hashes, targets, degrees[rows], limit)[: len(places)]
        keep[places] = kept
        counts[rows] = np.bincount(rank[kept], minlength=len(rows))

    ends = np.cumsum(degrees[long_rows])
    edges = np.flatnonzero(np.diff(ends // CHUNK_ENTRIES, prepend=0))
    # Threads write to disjoint rows; NumPy releases the lock inside each operation.
    with ThreadPoolExecutor(_available_cores()) as pool:
        list(pool.map(cut, [part for part in np.split(long_rows, edges) if part.size]))
    return OutLists(np.concatenate([[0], np.cumsum(counts)]), graph.indices[keep])


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_key(key: NoiseKey | bytes) -> tuple[bytes, bytes]:
    """Return the SipHash key and the key that reduces names to 64 bits."""
    if isinstance(key, bytes):
        if len(key) < KEY_BYTES:
            raise InputError(f"`key` must have at least {KEY_BYTES} bytes. Got {len(key)}.")
        key = NoiseKey(key)
    material = key.bytes(KEY_BYTES + NAME_KEY_BYTES, "out-list order")
    return material[:KEY_BYTES], material[KEY_BYTES:]


def _entries(
    indptr: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the entries of some rows lie, and for each entry the rank of its row."""
    counts = indptr[rows + 1] - indptr[rows]
    before = np.cumsum(counts) - counts
    rank = np.repeat(np.arange(len(rows)), counts)
    return np.arange(len(rank)) + (indptr[rows] - before)[rank], rank


def _smallest(
    rank: NDArray[np.int64],
    hashes: Words,
    targets: Words,
    lengths: NDArray[np.int64],
    limit: int,
) -> NDArray[np.bool_]:
    """Mark, in every row, the ``limit`` smallest hashes; ties go to the smaller target.

    One sort of plain words, the row's rank in the high bits, finds each row's threshold. The low
    bits of the hash that had to give way matter only where they tie at a threshold; such rows have
    too many entries below it and are settled one by one on the full hash.
    """
    bits = np.uint64(max(1, len(lengths).bit_length()))
    words = (rank.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
    starts = np.cumsum(lengths) - lengths
    threshold = np.sort(words)[starts + limit - 1]
    kept: NDArray[np.bool_] = words <= threshold[rank]
    for row in np.flatnonzero(np.bincount(rank[kept], minlength=len(lengths)) > limit):
        places = np.flatnonzero(rank == row)
        order = np.lexsort((targets[places], hashes[places]))
        kept[places] = False
        kept[places[order[:limit]]] = True
    return kept
