"""The in-lists of a graph on an accelerator: copied, cut and turned round there.

Cutting follows :func:`gapgnn.graph.degree.bound_out_degrees` to the bit: the same keyed hash, the
same D entries of every list (privacy page, section 1). What cannot be decided here, which is
dangling entries and hashes that tie at a list's threshold, is left to the host.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import (
    Graph,
    WordKind,
    absorb_first,
    absorb_last,
    bound_out_degrees,
    encode_ids,
    row_words,
    split_key,
)
from gapgnn.privacy.mechanisms.device_hop import InLists
from gapgnn.rng import NoiseKey

Lists = tuple[Tensor, Tensor]
# Entries that are hashed at a time: about 4 GiB of temporaries.
CHUNK_ENTRIES = 1 << 26
_COPIES: WeakKeyDictionary[Graph, dict[tuple[str, torch.device], Tensor]] = WeakKeyDictionary()
_SHARED: WeakKeyDictionary[Graph, dict[torch.device, InLists]] = WeakKeyDictionary()


def copy_on(graph: Graph, name: str, device: torch.device) -> Tensor:
    """Return an array of a graph on a device, copied once and kept there while the graph lives.

    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2))
    >>> copy_on(graph, "indptr", torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    known = _COPIES.setdefault(graph, {})
    if (name, device) not in known:
        known[name, device] = torch.tensor(getattr(graph, name), device=device)
    return known[name, device]


def in_lists_on(
    graph: Graph,
    device: torch.device,
    *,
    max_degree: int | None = None,
    key: NoiseKey | None = None,
) -> InLists:
    """Return who writes to each row, after the out-lists were cut to ``max_degree`` entries.

    Relation: without a cut, any at edge level; with one, ``add-remove`` or ``replace`` at node
    level, where a record writes to at most ``max_degree`` rows (privacy page, section 1).

    Args:
        graph: the private graph.
        device: where the lists are needed.
        max_degree: D, None for whole lists, which are kept for the next caller.
        key: the secret of the cut.

    >>> graph = Graph.from_arcs([0, 0], [1, 2], num_nodes=3, features=np.eye(3), directed=True)
    >>> lists = in_lists_on(graph, torch.device("cpu"))
    >>> lists.indptr.tolist(), lists.indices.tolist()
    ([0, 0, 1, 2], [0, 0])
    """
    if max_degree is not None and key is not None:
        cut = _cut(graph, device, max_degree, key)
        if cut is None:
            indptr, indices = bound_out_degrees(graph, max_degree, key)
            cut = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)
        return InLists(*_turned(*cut))
    known = _SHARED.setdefault(graph, {})
    if device not in known:
        lists = copy_on(graph, "indptr", device), copy_on(graph, "indices", device)
        known[device] = InLists(*(_turned(*lists) if graph.is_directed else lists))
    return known[device]


def _turned(indptr: Tensor, indices: Tensor) -> Lists:
    """Return in-lists for out-lists: who lists each node, in increasing order."""
    places = torch.arange(len(indptr) - 1, dtype=indices.dtype, device=indices.device)
    sources = torch.repeat_interleave(places, indptr.diff(), output_size=len(indices))
    order = torch.sort(indices, stable=True).indices
    counts = torch.bincount(indices, minlength=len(indptr) - 1)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), sources[order]


def _cut(graph: Graph, device: torch.device, limit: int, key: NoiseKey) -> Lists | None:
    """Cut every out-list to ``limit`` entries, or return None if that cannot be decided here."""
    if graph.dangling_targets is not None:
        return None
    indptr, indices = copy_on(graph, "indptr", device), copy_on(graph, "indices", device)
    counts = indptr.diff()
    long_rows = (counts > limit).nonzero().squeeze(1)
    if not len(long_rows):
        return indptr, indices
    siphash_key, name_key = split_key(key)
    codes: NDArray[Any] = encode_ids(graph.ids, name_key).view(np.int64)
    ids = torch.tensor(codes, device=device)
    keep = torch.ones(len(indices), dtype=torch.bool, device=device)
    chunk = counts[long_rows].cumsum(0) // CHUNK_ENTRIES
    for rows in torch.split(long_rows, torch.bincount(chunk).tolist()):
        lengths = counts[rows]
        starts = lengths.cumsum(0) - lengths
        rank = torch.repeat_interleave(torch.arange(len(rows), device=device), lengths)
        places = torch.arange(len(rank), device=device) + (indptr[rows] - starts)[rank]
        states = absorb_first(ids[rows], siphash_key, DEVICE_WORDS)
        targets = ids[indices[places]]
        hashes = absorb_last([state[rank] for state in states], targets, DEVICE_WORDS)
        words = row_words(rank, hashes, len(rows), _shifted)
        threshold = torch.sort(words).values[starts + limit - 1]
        kept = words <= threshold[rank]
        if int(kept.sum()) != limit * len(rows):
            return None
        keep[places] = kept
    ends = torch.nn.functional.pad(counts.clamp(max=limit).cumsum(0), (1, 0))
    return ends, indices[keep]


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift 64-bit words right and fill with zeros: torch's own shift keeps the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _rotate(word: Tensor, by: int, spare: Tensor) -> None:
    torch.bitwise_right_shift(word, 64 - by, out=spare)
    spare &= (1 << by) - 1
    word.bitwise_left_shift_(by).bitwise_or_(spare)


DEVICE_WORDS = WordKind(_signed, torch.full_like, _rotate)
