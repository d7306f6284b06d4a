"""One noisy hop over a graph on disk: a part at a time, here or on a cluster.

Each part is read, multiplied, perturbed and normalised by itself, and only the noisy rows leave it.
The price, the sensitivity and the noise are those of the hop in memory
(:mod:`gapgnn.privacy.mechanisms.aggregation`; privacy page, sections 1, 2 and 4): noise is keyed by
the run's secret, the hop and the block of rows, so a part that is computed again, because a worker
died, gives the same bytes again, and nothing is drawn twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import PrivacyError
from gapgnn.graph.store import Limits, PartFile, StoredGraph, check_once, cut_secret, find_limits
from gapgnn.privacy.mechanisms.aggregation import BlockRelease
from gapgnn.privacy.mechanisms.sums import shared
from gapgnn.rng import NoiseKey


class StoredLists:
    """The in-lists of a store as one replica aggregates over them: whole, or cut to D entries.

    Args:
        graph: the store.
        max_degree: D at node level, None elsewhere.
        key: the secret of the cut, from which nothing else is derived.
    """

    def __init__(self, graph: StoredGraph, *, max_degree: int | None, key: NoiseKey) -> None:
        self._graph = graph
        self._limits: Limits | None = None
        self._secret = b""
        if max_degree is not None and int(graph.out_degrees.max()) > max_degree:
            self._limits = find_limits(graph, max_degree, key)
            self._secret = cut_secret(key)

    def release(self, block: BlockRelease, rows: Tensor, out: Tensor) -> None:
        """Release one hop of all rows into ``out``, part after part.

        Args:
            block: the noise of this hop and replica, and whether rows are normalised.
            rows: what every node sends, ``(N, d)``.
            out: takes the released rows, ``(N, d)`` float32.
        """
        graph = self._graph
        tasks = [
            (graph.in_part(part), graph.digest(part), block, self._secret)
            for part in range(graph.num_parts)
        ]
        everywhere = (rows.cpu().numpy(), *(() if self._limits is None else self._limits.arrays))
        files = [task[0].path for task in tasks]
        done: set[int] = set()
        for part, released in graph.executor.run(release_part, tasks, everywhere, files):
            first, last = graph.bounds[part], graph.bounds[part + 1]
            if part in done or released.shape != (last - first, rows.shape[1]):
                raise PrivacyError(f"Part {part} must be released once and whole. Got another.")
            done.add(part)
            out[first:last] = torch.from_numpy(np.array(released)).to(out.device)
        if len(done) != graph.num_parts:
            raise PrivacyError(f"All {graph.num_parts} parts must be released. Got {len(done)}.")


def release_part(
    part: PartFile,
    digest: str,
    block: BlockRelease,
    secret: bytes,
    values: NDArray[Any],
    *limits: Any,
) -> NDArray[np.float32]:
    """Release the rows of one part: the task of a cluster's worker, and of this process.

    Relation, sensitivity and price are those of the hop these rows are part of (privacy page,
    sections 1 and 2).

    Args:
        part: the file with the arcs that lead to the part's rows, and how many each row has.
        digest: the SHA-256 that the file must have, compared where the file is not known yet.
        block: the noise of this hop and replica.
        secret: the key of the cut; empty where nothing is cut.
        values: what every node sends, ``(N, d)``.
        limits: what the cut needs to know of every node.
    """
    check_once(part.path, digest)
    cut = Limits(*limits) if secret else None
    count = len(part.lengths)
    out = np.empty((count, values.shape[1]), dtype=np.float32)
    # The array of a cluster is read-only, and nobody writes to it.
    sent = shared(values)
    for rows in part.blocks():
        kept = rows if cut is None else cut.cut(rows, secret)
        first, last = rows.first - part.first, rows.last - part.first
        out[first:last] = block.release(sent, rows.first, kept.pointers, kept.entries).numpy()
    return out
