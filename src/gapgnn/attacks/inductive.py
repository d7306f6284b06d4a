"""Inductive link stealing: who is connected in a graph that the model was not trained on?

A model that is trained on one graph answers about another one, whose edges are private too. The
attacker (Wu et al. 2024) knows the features of both, the edges of the first, and what is published
about both. It learns on the first graph how connected pairs answer, and applies that to the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gapgnn.attacks.attacker import AttackNetwork, Ranking, RepeatedResult, Rows, guessing, rank
from gapgnn.attacks.links import (
    OTHERS,
    PUBLISHED,
    Pairs,
    answers,
    check_one_edge_type,
    draw_pairs,
    pair_features,
    public_pair_rows,
)
from gapgnn.attacks.target import described, fitted
from gapgnn.errors import check_choice, check_integer
from gapgnn.graph import Graph, induced
from gapgnn.rng import experiment_rng, experiment_seed
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier


def inductive_link_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    runs: int = 5,
    pairs: int = 5_000,
    others: str = "held-out",
    published: str = "probabilities",
    seed: int = 0,
    callback: Callback | None = None,
) -> RepeatedResult:
    """Steal the links of a new graph, with what was learned on the graph of training.

    The nodes are cut in two at random. A copy of the estimator is trained on the graph of one part
    and answers about the other. The control is the same attacker without the answers: a network on
    the features of both ends. What the attack gains over it is due to the answers.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, with its split.
        runs: independent repetitions: another cut, model and attack network.
        pairs: connected pairs that are drawn in each part, and as many unconnected ones, at most.
        others: how unconnected pairs are drawn: ``held-out``, edges that are removed before the
            model reads the graph, so that only the single edge differs; ``degree``, from the ends
            of edges; or ``uniform``.
        published: the attacker's view of the model: ``probabilities``, or ``labels`` alone.
        seed: of all choices; never of noise.
        callback: watches the runs.
    """
    check_one_edge_type(graph)
    check_integer("runs", runs, at_least=1)
    check_integer("pairs", pairs, at_least=20)
    check_choice("others", others, OTHERS)
    check_choice("published", published, PUBLISHED)
    watcher = callback or Silent()
    watcher.start("runs", runs)
    attacks, controls, guesses, count = [], [], [], 0
    for run in range(runs):
        rng = experiment_rng(seed, "inductive link stealing", run)
        first, second = _halves(graph, rng)
        (first, known), (second, judged) = (
            draw_pairs(part, pairs, rng, others) for part in (first, second)
        )
        own_seed = experiment_seed(seed, "inductive model", run) % 2**31
        with fitted(estimator, first, seed=own_seed, repeats=1) as model:
            here, there = (answers(model, part, published=published) for part in (first, second))
        learnt, asked = public_pair_rows(first, known), public_pair_rows(second, judged)
        controls.append(_judged(learnt, known, asked, judged, own_seed))
        learnt = np.concatenate([learnt, pair_features(here, known)], axis=1)
        asked = np.concatenate([asked, pair_features(there, judged)], axis=1)
        attacks.append(_judged(learnt, known, asked, judged, own_seed))
        guesses.append(guessing(judged.linked))
        count = len(judged.linked)
        watcher.advance("runs", accuracy=attacks[-1].auc)
    details: dict[str, Any] = {
        "pairs": count,
        "others": others,
        "published": published,
        "own": "",
        **described(estimator, graph),
    }
    return RepeatedResult(
        "inductive-links", tuple(attacks), tuple(controls), tuple(guesses), details
    )


def _halves(graph: Graph, rng: np.random.Generator) -> tuple[Graph, Graph]:
    """Cut a graph at random in two; arcs between the parts belong to neither."""
    is_first = rng.permutation(graph.num_nodes) < graph.num_nodes // 2
    return induced(graph, is_first), induced(graph, ~is_first)


def _judged(learnt: Rows, known: Pairs, asked: Rows, judged: Pairs, seed: int) -> Ranking:
    """Return how well a network that learned on one graph ranks the pairs of another."""
    network = AttackNetwork(seed=seed, epochs=40).fit(learnt, known.linked)
    return rank(network.score(asked), judged.linked)
