"""Audit of a whole estimator through its answers alone: asked once, or asked again and again.

The budget pays for one release. A model that drew fresh noise for every answer would let a patient
attacker average the noise away, however correct each single answer is. The audit fits the estimator
on a graph full of canary edges, asks for predictions many times and averages (privacy page,
sections 2 and 8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks import fitted
from gapgnn.attacks.audits.bounds import LEAST_TRIALS, Price, Scores, Trials, gaussian_price
from gapgnn.attacks.audits.report import Attempt, AuditReport, Options, confirmed
from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gapgnn.methods import NodeClassifier

# Nodes that teach the classifier to tell which of two features arrived along the edges.
_TEACHERS = 150
_SENDERS = 40


def audit_prediction(
    estimator: NodeClassifier,
    *,
    queries: int = 50,
    trials: int = 2_000,
    **options: Unpack[Options],
) -> AuditReport:
    """Attack an estimator at edge level by asking for its predictions ``queries`` times.

    A copy of the estimator is fitted on a graph of teaching nodes and of canary pairs. The
    classifier learns to read off the hops which of two kinds of nodes is connected, and in each
    pair a coin decides whether a node of known kind is connected to one that is not trained on. The
    statistic is the mean log odds of the latter's class over all answers. For GAP the hops of a
    pair come from that pair alone, so given the trained weights pairs are independent trials. The
    guarantee covers any number of answers, so no price grows with ``queries``. A ledger of its own
    is used: canaries are nobody's data.

    Args:
        estimator: any method at level edge; it is not changed.
        queries: how often the predictions are asked for.
        trials: canary pairs.
        options: of every audit.

    >>> from gapgnn import GAP
    >>> audit_prediction(GAP(epochs=5), queries=2, trials=200).holds
    True
    """
    if estimator.level != "edge":
        raise InputError(f"`level` must be edge to audit predictions. Got {estimator.level!r}.")
    check_integer("queries", queries, at_least=1)
    check_integer("trials", trials, at_least=4 * LEAST_TRIALS)

    def attempt(run: Attempt) -> AuditReport:
        worlds = run.coins(trials)
        graph, watched, sign = _canary_graph(worlds)
        # Batch statistics would couple the pairs; repeats are releases of their own.
        changes = {"repeats": 1, "batch_norm": False, "relation": "auto"}
        with fitted(estimator, graph, **changes) as model:
            odds = np.zeros(trials)
            for _ in range(queries):
                answer = np.log(np.clip(model.predict_proba(graph)[watched], 1e-30, None))
                odds += sign * (answer[:, 1] - answer[:, 0]) / queries
            card = model.card_
        if card.epsilon is None or card.delta is None:
            raise InputError("`estimator` must make a promise to be audited. Got none.")
        is_gaussian = all(event["event"] == "Gaussian" for event in card.events)
        price = gaussian_price(card.delta) if is_gaussian else None
        return run.conclude(
            {"mean answer": _centred(odds, worlds, sign, price)},
            epsilon=card.epsilon,
            delta=card.delta,
            details={"method": card.method, "level": "edge", "queries": queries},
        )

    return confirmed("prediction", attempt, trials, **options)


def _centred(odds: Scores, worlds: NDArray[np.bool_], sign: Scores, price: Price | None) -> Trials:
    """Let a fourth of the trials place the threshold of each kind; the others are judged by it."""
    few = len(odds) // 4
    centred = odds.copy()
    for kind in (-1.0, 1.0):
        known = (sign == kind) & (np.arange(len(odds)) < few)
        means = [odds[known & (worlds == world)].mean() for world in (False, True)]
        centred[sign == kind] -= sum(means) / 2
    return Trials(centred[None, few:], worlds[few:], price=price)


def _canary_graph(
    worlds: NDArray[np.bool_],
) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
    """Return the graph, the node of each pair that receives, and for which class its sender is."""
    senders = np.arange(2 * _SENDERS)
    teachers = 2 * _SENDERS + np.arange(2 * _TEACHERS)
    bearers = teachers[-1] + 1 + np.arange(len(worlds))
    watched = bearers + len(worlds)
    num_nodes = int(watched[-1]) + 1
    labels = np.full(num_nodes, -1)
    features = np.zeros((num_nodes, 3), dtype=np.float32)
    features[:, 2] = 1
    for nodes in (senders, bearers):
        features[nodes, 2] = 0
        features[nodes, nodes % 2] = 1
    for nodes in (senders, bearers, teachers):
        labels[nodes] = nodes % 2
    # Every teacher hears all senders of its own class.
    hears, heard = np.nonzero((teachers[:, None] % 2) == (senders[None, :] % 2))
    graph = Graph.from_arcs(
        np.concatenate([senders[heard], bearers[worlds]]),
        np.concatenate([teachers[hears], watched[worlds]]),
        num_nodes=num_nodes,
        features=features,
        labels=labels,
        name="canaries",
    )
    part = np.zeros((3, num_nodes), dtype=np.bool_)
    part[0, senders] = part[0, bearers] = True
    for split, mask in enumerate(part):
        mask[teachers[teachers // 2 % 3 == split]] = True
    return graph.with_masks(*part), watched, np.where(bearers % 2 == 1, 1.0, -1.0)
