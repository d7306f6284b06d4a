"""Inference of one edge from published predictions by an attacker who knows everything else.

Link stealing (:mod:`gapgnn.attacks.links`) knows features and labels. The attacker of the privacy
guarantee knows more: the model, the release, and the whole graph except one edge. Given the
release, a prediction that reads no adjacency list gives this attacker no further information. One
that reads the node's own neighbours exactly (``own="record"``, vote) is for the node's own person
only, and this attack shows why: the prediction is computed with and without the edge, and compared
with the published one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.attacks.attacker import Ranking, guessing, rank
from gapgnn.attacks.links import (
    LinkResult,
    Pairs,
    answers,
    attacked,
    check_one_edge_type,
    sample_pairs,
    under_attack,
)
from gapgnn.attacks.target import as_released, check_itself
from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph, csr
from gapgnn.rng import experiment_rng
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier


def own_neighbours_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    pairs: int = 2_000,
    published: str = "probabilities",
    own: str | None = None,
    itself: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Infer whether a pair is an edge, given the model, the release and the graph except the pair.

    The published predictions are compared with those for the graph in which every pair is toggled.
    No node is in two pairs, so one toggled graph covers all of them. A prediction that reads no
    adjacency list does not change, and the attacker guesses. The leakage of the release itself is
    bounded by epsilon and measured by the audits; here the release is given.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        pairs: connected pairs that are drawn, and as many unconnected ones, at most.
        published: ``probabilities`` or ``labels``.
        own: what a prediction reads of the node's own record, if that is chosen at prediction.
        itself: attack the fitted estimator itself, as it was trained on this graph.
        seed: of all choices; never of noise.
        callback: watches the steps.
    """
    check_one_edge_type(graph)
    check_integer("pairs", pairs, at_least=20)
    _check_released(estimator, graph)
    if itself:
        check_itself(estimator, graph)
    watcher = callback or Silent()
    watcher.start("attack", 2)
    drawn = disjoint_pairs(graph, pairs, experiment_rng(seed, "own list"))
    with under_attack(estimator, graph, seed, itself=itself) as model:
        seen = answers(model, graph, published=published, own=own)
        watcher.advance("attack")
        turned = toggled(graph, drawn)
        asked = as_released(model, turned)
        other = answers(asked, turned, published=published, own=own)
        watcher.advance("attack")
    moves = np.abs(seen - other).sum(axis=1)
    moved = moves[drawn.first] + moves[drawn.second]
    # The published prediction has the edge for connected pairs, and lacks it for the others.
    scores = np.where(drawn.linked, moved, -moved)
    details = {
        "moved": float((moved > 0).mean()),
        "published": published,
        "own": own or getattr(model.card_, "own", ""),
        "pairs": len(drawn.linked),
        **attacked(estimator, graph, drawn.linked, itself=itself),
    }
    control = Ranking(**guessing(drawn.linked))
    return LinkResult("own-neighbours", rank(scores, drawn.linked), control, details)


def _check_released(estimator: NodeClassifier, graph: Graph) -> None:
    """Refuse a graph with weights, and a level without releases."""
    if graph.is_weighted:
        raise InputError("`graph` must have edges without weights for this attack. Got weights.")
    if estimator.level == "none":
        raise InputError(
            "`level` must be edge or node: without privacy every answer reads the edges of others, "
            "and nothing was released that could be given. Got 'none'."
        )


def disjoint_pairs(graph: Graph, count: int, rng: np.random.Generator) -> Pairs:
    """Draw equally many connected and unconnected pairs without common nodes.

    The ends of unconnected pairs are drawn in proportion to their degree.

    >>> graph = Graph.from_arcs(range(99), range(1, 100), num_nodes=100, features=np.eye(100))
    >>> pairs = disjoint_pairs(graph, 5, np.random.default_rng(0))
    >>> int(pairs.linked.sum()), len(pairs.linked), len(set(pairs.first) | set(pairs.second))
    (5, 10, 20)
    """
    drawn = sample_pairs(graph, count, rng)
    half = len(drawn.linked) // 2
    free = np.ones(graph.num_nodes, dtype=np.bool_)
    kept: list[int] = []
    for connected, other in zip(range(half), range(half, 2 * half), strict=True):
        ends = [drawn.first[connected], drawn.second[connected]]
        ends += [drawn.first[other], drawn.second[other]]
        if len(set(ends)) == 4 and free[ends].all():
            free[ends] = False
            kept += [connected, other]
    if not kept:
        raise InputError("`graph` must have two pairs without a common node. Got none.")
    return Pairs(drawn.first[kept], drawn.second[kept], drawn.linked[kept])


def toggled(graph: Graph, pairs: Pairs) -> Graph:
    """Return the graph without the connected pairs and with the unconnected ones as edges.

    >>> graph = Graph.from_arcs([0, 2], [1, 3], num_nodes=4, features=np.eye(4))
    >>> pairs = Pairs(np.array([0, 1]), np.array([1, 2]), np.array([True, False]))
    >>> toggled(graph, pairs).adjacency().toarray().astype(int).tolist()
    [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    """
    count = graph.num_nodes

    def arcs(chosen: NDArray[np.bool_], *, both: bool) -> sp.csr_array:
        first, second = pairs.first[chosen], pairs.second[chosen]
        if both:
            first, second = np.append(first, second), np.append(second, first)
        ones = np.ones(len(first), dtype=np.int64)
        return sp.csr_array((ones, (first, second)), shape=(count, count))

    now = csr.matrix(graph.indptr, graph.indices).astype(np.int64)
    gone = now.multiply(arcs(pairs.linked, both=True))
    matrix = sp.csr_array(now - gone + arcs(~pairs.linked, both=not graph.is_directed))
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return graph._replace(indptr=matrix.indptr, indices=matrix.indices)
