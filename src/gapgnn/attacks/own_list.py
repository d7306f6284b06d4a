"""What published predictions say about one link to somebody who knows everything else.

Link stealing (:mod:`gapgnn.attacks.links`) knows features and labels. The attacker that a promise
is made against knows more: the model, what was released, and the whole graph but for one link.
Given the release, a prediction that reads no list says nothing further to that attacker. One that
reads its own person's exact list (``own="record"``, vote) is for that person alone, and this attack
shows why: the answer is computed with the link and without it, and compared with what was
published.
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
    check_one_kind,
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


def own_list_attack(
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
    """Tell edges from other pairs, knowing the model, the release and the graph but for the pair.

    What would have been published had the pair been the other way round? Nobody is in two of the
    pairs, so one question answers for all of them. A prediction that reads no list is the same
    either way, and the attacker guesses. What the release itself gives away is bounded by epsilon
    and is measured by the audits; here it is given.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        pairs: connected pairs that are drawn, and as many unconnected ones, at most.
        published: ``probabilities`` or ``labels``.
        own: what a prediction reads of its own person, where that is chosen at prediction.
        itself: attack the fitted estimator itself, as it was trained on this graph.
        seed: of all choices; never of noise.
        callback: watches the steps.
    """
    check_one_kind(graph)
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
    # As published it is with the edge for connected pairs, and without it for the others.
    scores = np.where(drawn.linked, moved, -moved)
    details = {
        "moved": float((moved > 0).mean()),
        "published": published,
        "own": own or getattr(model.card_, "own", ""),
        "pairs": len(drawn.linked),
        **attacked(estimator, graph, drawn.linked, itself=itself),
    }
    control = Ranking(**guessing(drawn.linked))
    return LinkResult("own-list", rank(scores, drawn.linked), control, details)


def _check_released(estimator: NodeClassifier, graph: Graph) -> None:
    """Refuse a graph with weights, and a method of which nothing is released."""
    if graph.is_weighted:
        raise InputError("`graph` must have edges without weights for this attack. Got weights.")
    if estimator.level == "none":
        raise InputError(
            "`level` must be edge or node: without privacy every answer reads the edges of others, "
            "and nothing was released that could be given. Got 'none'."
        )


def disjoint_pairs(graph: Graph, count: int, rng: np.random.Generator) -> Pairs:
    """Draw equally many connected and unconnected pairs, nobody in two of them.

    Unconnected ones have ends that are ends of edges, as often.

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
    """Return a graph in which the connected pairs are not and the unconnected ones are.

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
