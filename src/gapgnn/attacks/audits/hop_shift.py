"""How far one edge or one record moves a noisy hop, exactly: the noise is taken out.

The same secret key draws the same noise, so two neighbouring graphs that are released under one key
differ by what the noise is there to hide, and by nothing else. That distance is compared with the
sensitivity that the noise is scaled to (privacy page, sections 1 and 8). No statistics: a hop that
forgets to cut the lists shows outright, wherever it runs and whichever of the hops it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.attacks.audits.report import Check
from gapgnn.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.privacy.mechanisms import Construction, PrivateAggregation
from gapgnn.rng import NoiseKey

# A fault may begin with the second hop, so one hop is never enough.
_LEAST_HOPS = 3


def check_hops(
    *, level: str, relation: str, hops: int, max_degree: int | None, construction: Construction
) -> list[Check]:
    """Compare the distance between neighbours with what is accounted, at every hop.

    Neighbours are those of :func:`gapgnn.attacks.audits.aggregation.audit_aggregation`. At node
    level there are several records, of as many entries as are allowed and of many more.

    Args:
        level: ``edge`` or ``node``.
        relation: the neighbouring relation, resolved.
        hops: number of hops; three are compared at least.
        max_degree: D at node level, None elsewhere.
        construction: ``safe`` or ``fast`` noise.

    >>> checks = check_hops(
    ...     level="edge", relation="directed", hops=2, max_degree=None, construction="safe"
    ... )
    >>> checks[0].name, round(checks[0].found, 4), checks[0].accounted
    ('how far one edge moves a hop (in memory)', 1.0, 1.0)
    """
    here, there, sent, owners = _neighbours(level, relation, max_degree)
    entity = "edge" if level == "edge" else "record"
    checks = []
    for place, device in _PLACES:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        key, released = NoiseKey.fresh(), []
        for graph, rows in zip((here, there), sent, strict=True):
            with _placed(graph, place) as placed:
                aggregation = PrivateAggregation(
                    placed,
                    level=level,
                    relation=relation,
                    noise_multiplier=1.0,
                    max_degree=max_degree,
                    keys=[key],
                    construction=construction,
                    device=device,
                )
                indices = range(1, max(hops, _LEAST_HOPS) + 1)
                done = [aggregation.hop(rows, index, normalise=False).cpu() for index in indices]
            released.append(torch.stack(done).double())
        squares = (released[0] - released[1]).square().sum(dim=-1)
        # Groups are apart: each has an edge or a record of its own, and all rows but its own count.
        moved = torch.zeros(len(squares), int(owners.max()) + 1, dtype=torch.float64)
        moved.index_add_(1, torch.from_numpy(owners), squares)
        farthest = float(moved.max().sqrt())
        name = f"how far one {entity} moves a hop ({place})"
        checks.append(Check(name, farthest, aggregation.std))
    return checks


_PLACES = (("in memory", "cpu"), ("on disk", "cpu"), ("on an accelerator", "cuda"))


@contextmanager
def _placed(graph: Graph, place: str) -> Iterator[Graph]:
    """Give the graph as it is, or as a store of several parts that lasts as long as the block."""
    if place != "on disk":
        yield graph
        return
    with tempfile.TemporaryDirectory() as folder:
        store_graph(graph, Path(folder, "store"), parts=2)
        yield open_store(Path(folder, "store"))


def _neighbours(
    level: str, relation: str, max_degree: int | None
) -> tuple[Graph, Graph, tuple[Tensor, Tensor], NDArray[np.int64]]:
    """Return two graphs, what their nodes send, and whose group every row is in."""
    if level == "edge":
        is_directed = relation == "directed"
        graphs = [bare_graph([0] * there, [1] * there, 2, directed=is_directed) for there in (1, 0)]
        return graphs[0], graphs[1], (torch.eye(2), torch.eye(2)), np.zeros(2, dtype=np.int64)
    degree = max_degree or 1
    lengths = np.array([degree, degree + 1, 4 * degree + 1])
    sources = np.cumsum(lengths + 1) - lengths - 1
    owners = np.repeat(np.arange(len(lengths)), lengths + 1)
    targets = np.setdiff1d(np.arange(len(owners)), sources)
    whole = bare_graph(np.repeat(sources, lengths), targets, len(owners), directed=True)
    rows = torch.zeros(len(owners), 2)
    rows[torch.from_numpy(sources), 0] = 1
    if relation == "replace":
        return whole, whole, (rows, -rows), owners
    return whole, bare_graph([], [], len(owners), directed=True), (rows, rows), owners


def bare_graph(
    sources: NDArray[np.int64] | list[int],
    targets: NDArray[np.int64] | list[int],
    num_nodes: int,
    *,
    directed: bool,
) -> Graph:
    """Return a graph of these arcs for hops that are given their rows.

    >>> bare_graph([0], [1], 2, directed=True).num_arcs
    1
    """
    # Features only have to exist.
    features = np.zeros((num_nodes, 1), dtype=np.float32)
    return Graph.from_arcs(
        sources, targets, num_nodes=num_nodes, features=features, directed=directed
    )
