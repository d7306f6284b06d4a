"""Label inference: which of two labels did a training node have?

Class codes of training labels travel along the edges, and classifiers are trained on labels. What
does that reveal about one of them? A model that has learned anything predicts true labels well, of
people in the training set and of others: that is its use and no leak. So the labels of a few
training nodes are replaced here. Each of these targets has two candidates, drawn at random whatever
its features and neighbours are, and a coin decides which of the two is trained on. The attacker
knows both and everything else, so without the model it can only guess.

At node level a label is part of the record, and the attack is bounded by epsilon: replacing a label
is one step of ``replace``, and two of ``add-remove``. At edge level labels are public. What the
attack finds there is no violation, and shows what is at stake where they are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks.attacker import AttackNetwork, RepeatedResult, Rows, guessing, rank
from gapgnn.attacks.target import described, fitted
from gapgnn.errors import DataError, check_integer, check_number
from gapgnn.graph import Graph, csr
from gapgnn.rng import experiment_rng, experiment_seed
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

_LEAST = 1e-6
_FEWEST_TARGETS = 20


def label_inference_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    runs: int = 5,
    share: float = 0.1,
    seed: int = 0,
    callback: Callback | None = None,
) -> RepeatedResult:
    """Infer which of two labels each target was trained on, from the published probabilities.

    The attacker reads the target's own probabilities and the mean of its neighbours': the log odds
    of the two candidates, the probability of both together, and entropies. A network learns from
    the half of the coins that the attacker knows, and is judged on the other half. There is no
    control beside guessing: candidates do not depend on anything the attacker knows.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive, with its split.
        runs: independent repetitions: other targets, candidates, coins and model.
        share: of the training nodes that are targets.
        seed: of all choices; never of noise.
        callback: watches the runs.
    """
    check_integer("runs", runs, at_least=1)
    check_number("share", share, above=0, at_most=0.5)
    watcher = callback or Silent()
    watcher.start("runs", runs)
    rankings, guesses, count = [], [], 0
    for run in range(runs):
        rng = experiment_rng(seed, "label inference", run)
        targets, candidates, coins = drawn_labels(graph, share, rng)
        labels = graph.labels.copy()
        labels[targets] = np.where(coins, candidates[:, 0], candidates[:, 1])
        own_seed = experiment_seed(seed, "label inference model", run) % 2**31
        trained = graph._replace(labels=labels)
        with fitted(estimator, trained, seed=own_seed, repeats=1) as model:
            posteriors = model.predict_proba(trained).astype(np.float64)
        rows = label_rows(posteriors, graph, targets, candidates)
        known = rng.random(len(targets)) < 0.5
        network = AttackNetwork(seed=own_seed).fit(rows[known], coins[known])
        rankings.append(rank(network.score(rows[~known]), coins[~known]))
        guesses.append(guessing(coins[~known]))
        count = len(targets)
        watcher.advance("runs", accuracy=rankings[-1].auc)
    details: dict[str, Any] = {"targets": count, "share": share, **described(estimator, graph)}
    return RepeatedResult("label-inference", tuple(rankings), (), tuple(guesses), details)


def drawn_labels(
    graph: Graph, share: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return targets, two different candidates for each, and whether it has the first of them.

    >>> graph = Graph.from_arcs(range(99), range(1, 100), num_nodes=100, features=np.eye(100),
    ...                         labels=np.arange(100) % 3)
    >>> graph = graph.with_masks(*np.eye(3, dtype=bool)[np.zeros(100, int)].T)
    >>> targets, candidates, coins = drawn_labels(graph, 0.5, np.random.default_rng(0))
    >>> len(targets), bool((candidates[:, 0] != candidates[:, 1]).all()), int(coins.sum())
    (50, True, 25)
    """
    training = np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    count = round(share * len(training))
    if count < _FEWEST_TARGETS:
        raise DataError(
            f"At least {_FEWEST_TARGETS} training nodes must be targets. Got {count}; take a "
            "larger share or a larger graph."
        )
    targets = np.sort(rng.choice(training, size=count, replace=False))
    first = rng.integers(graph.num_classes, size=count)
    step = rng.integers(1, graph.num_classes, size=count)
    candidates = np.stack([first, (first + step) % graph.num_classes], axis=1)
    coins = rng.permutation(count) < count // 2
    return targets, candidates, coins


def label_rows(
    posteriors: Rows,
    graph: Graph,
    targets: NDArray[np.int64],
    candidates: NDArray[np.int64],
) -> Rows:
    """Return what the attacker reads about every target, of itself and of its neighbours.

    >>> graph = Graph.from_arcs([0, 1], [1, 0], num_nodes=2, features=np.eye(2))
    >>> rows = label_rows(np.array([[0.9, 0.1], [0.5, 0.5]]), graph, np.array([0]),
    ...                   np.array([[0, 1]]))
    >>> [round(float(value), 2) for value in rows[0, [0, 3]]]
    [2.2, 0.0]
    """
    matrix = csr.matrix(graph.indptr, graph.indices).astype(np.float64)
    around = matrix + matrix.T if graph.is_directed else matrix
    degrees = np.asarray(around.sum(axis=1)).reshape(-1)[targets]
    near = (around[targets] @ posteriors) / np.maximum(degrees, 1.0)[:, None]
    columns = [np.log1p(degrees)]
    for rows in (near, posteriors[targets]):
        chosen = np.take_along_axis(np.clip(rows, _LEAST, 1.0), candidates, axis=1)
        entropy = -(rows * np.log(np.clip(rows, _LEAST, 1.0))).sum(axis=1)
        columns = [
            np.log(chosen[:, 0]) - np.log(chosen[:, 1]),
            chosen.sum(axis=1),
            entropy,
            *columns,
        ]
    return np.stack(columns, axis=1)
