"""Topology reconstruction: which edges does a graph have among some nodes?

The attacker knows the number of edges among the nodes, and no edge. It scores every pair, and its
reconstruction is the pairs with the highest scores, as many as there are edges. So precision is
recall, and guessing reaches the density of the graph.

At edge level features and labels are public. The control knows them and a model of features alone,
which finds people of one class and thereby many of their edges. The attack knows all of that and
what the target publishes. Only what it gains over the control is due to the edges that the target
read, including the number and the classes of neighbours, which edge level does not hide.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks.attacker import Ranking, RepeatedResult, Rows, guessing, rank
from gapgnn.attacks.links import (
    PUBLISHED,
    Pairs,
    all_pairs,
    answers,
    check_one_edge_type,
    distances,
    drawn_nodes,
    public_rows,
    under_attack,
)
from gapgnn.attacks.target import check_itself, described
from gapgnn.errors import DataError, check_choice, check_integer
from gapgnn.graph import Graph
from gapgnn.rng import experiment_rng, experiment_seed
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

_LEAST = 1e-6


@dataclass(frozen=True)
class Reconstruction(Ranking):
    """How good a reconstruction is.

    Attributes:
        precision: share of true edges among the reconstructed ones, which are as many.
    """

    precision: float


def reconstruction_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    runs: int = 5,
    nodes: int = 500,
    published: str = "probabilities",
    itself: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> RepeatedResult:
    """Reconstruct the edges among some nodes from what is published about them.

    A pair scores by the correlation of what is known about both ends: for the control labels and a
    features-only model, for the attack also the target's probabilities and their logarithms.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        runs: independent repetitions: other nodes and another model.
        nodes: among how many nodes, drawn at random.
        published: the attacker's view of the model: ``probabilities``, or ``labels`` alone.
        itself: attack the fitted estimator itself, as it was trained on this graph.
        seed: of all choices; never of noise.
        callback: watches the runs.
    """
    check_one_edge_type(graph)
    check_integer("runs", runs, at_least=1)
    check_integer("nodes", nodes, at_least=3)
    check_choice("published", published, PUBLISHED)
    if itself:
        check_itself(estimator, graph)
    watcher = callback or Silent()
    watcher.start("runs", runs)
    attacks, controls, guesses, links = [], [], [], 0
    known = public_rows(graph, seed)
    for run in range(runs):
        rng = experiment_rng(seed, "reconstruction", run)
        pairs = all_pairs(graph, drawn_nodes(graph, nodes, rng))
        links = int(pairs.linked.sum())
        if links in (0, len(pairs.linked)):
            raise DataError(
                f"`nodes` must leave pairs with and without an edge. Got {links} edges among "
                f"{nodes} nodes; take more of them."
            )
        own_seed = experiment_seed(seed, "reconstruction model", run) % 2**31
        with under_attack(estimator, graph, own_seed, itself=itself) as model:
            found = answers(model, graph, published=published)
        controls.append(_judged(known, pairs))
        attacks.append(_judged(np.concatenate([known, found, centred_logs(found)], axis=1), pairs))
        guesses.append({**guessing(pairs.linked), "precision": float(pairs.linked.mean())})
        watcher.advance("runs", accuracy=attacks[-1].auc)
    details: dict[str, Any] = {
        "nodes": nodes,
        "links": links,
        "published": published,
        "own": "",
        "itself": itself,
        **described(estimator, graph),
    }
    return RepeatedResult(
        "reconstruction", tuple(attacks), tuple(controls), tuple(guesses), details
    )


def centred_logs(rows: Rows) -> Rows:
    """Return logarithms of probabilities, on their own scale and with mean 0 in each column.

    >>> centred_logs(np.array([[0.5, 0.5], [0.5, 0.5]])).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    logs = np.log(np.clip(rows, _LEAST, None))
    logs -= logs.mean(axis=0)
    spread = float(logs.std())
    scaled: Rows = logs / spread if spread > 0 else logs
    return scaled


def _judged(rows: Rows, pairs: Pairs) -> Reconstruction:
    """Return how well pairs are ranked by the correlation of the rows of their ends."""
    scores = -distances(rows, pairs)["correlation"]
    return Reconstruction(
        **asdict(rank(scores, pairs.linked)), precision=precision_at_edges(scores, pairs.linked)
    )


def precision_at_edges(scores: Rows, linked: NDArray[np.bool_]) -> float:
    """Return the share of true edges among as many top-scored pairs as there are edges.

    >>> precision_at_edges(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]))
    0.5
    """
    count = int(linked.sum())
    chosen = np.argsort(-scores, kind="stable")[:count]
    return float(linked[chosen].mean()) if count else 0.0
