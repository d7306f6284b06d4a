"""Node membership: was this person's label used to train the model? (paper, privacy attacks)

The attacker has a shadow graph from the same population, trains a shadow model of the same method
on it, and learns from the shadow model's answers to tell its members from others. The attack is
then measured on the target model, which was trained separately. (Measured on the shadow model
itself, ``on="shadow"``, it is the published protocol, and flatters the attacker.)

Training follows TSTF: the model is trained on the graph of its members, and asked about the full
graph, edges to non-members included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.attacks.network import AttackNetwork
from gapgnn.attacks.scores import Ranking, mean_ranking, rank
from gapgnn.attacks.target import fitted
from gapgnn.errors import DataError, check_choice, check_integer
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import induced, random_split
from gapgnn.rng import experiment_rng, experiment_seed
from gapgnn.training.callbacks import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods.base import NodeClassifier

Mask = NDArray[np.bool_]
# Of the nodes that are not members, these take part in training only to choose an epoch and to
# score: an estimator wants both.
_ASIDE = 0.04


@dataclass(frozen=True)
class MembershipResult:
    """Figures of a membership attack, over runs.

    Attributes:
        attack: ``membership`` or ``lira``.
        on: the model the attack was measured on.
        rankings: one per run.
        details: the setting.
    """

    attack: str
    on: str
    rankings: tuple[Ranking, ...]
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: means over the runs, and the runs."""
        means = mean_ranking(list(self.rankings))
        return {"attack": self.attack, **means, "on": self.on, **self.details}


def membership_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    runs: int = 10,
    on: str = "target",
    setting: str = "tstf",
    shadow_per_class: int = 1_000,
    target_per_class: int | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> MembershipResult:
    """Run the membership attack of the paper against copies of an estimator.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the population. Its training nodes are the target's members, its test nodes are not.
        runs: independent repetitions: other shadow graph, models and attack network.
        on: ``target`` measures on the target model, on nodes that are not in the shadow graph;
            ``shadow`` on the shadow model itself, on the half of its nodes that the attack network
            was not trained on (the published protocol).
        setting: ``tstf`` trains on the graph of the members and asks about the full graph;
            ``transductive`` trains and asks on the same graph, labels alone being withheld.
        shadow_per_class: nodes of each class in the shadow graph; half of them are members.
        target_per_class: train the target on a graph of this many nodes per class too, disjoint
            from the shadow graph and half of them members, instead of on the whole graph: the less
            a model has to learn from, the more it remembers.
        seed: of all choices; never of noise.
        callback: watches the runs.
    """
    check_integer("runs", runs, at_least=1)
    check_choice("on", on, ("target", "shadow"))
    check_choice("setting", setting, ("tstf", "transductive"))
    check_integer("shadow_per_class", shadow_per_class, at_least=4)
    watcher = callback or Silent()
    watcher.start("runs", runs)
    rankings = []
    for run in range(runs):
        rng = experiment_rng(seed, "membership", run)
        seeds = {"seed": experiment_seed(seed, "membership model", run) % 2**31, "repeats": 1}
        chosen = _per_class(graph.labels, shadow_per_class, np.ones(graph.num_nodes, bool), rng)
        shadow = _halved(induced(graph, chosen), rng)
        rows, members = _answers(estimator, shadow, setting, seeds)
        network = AttackNetwork(seed=seeds["seed"])
        if on == "shadow":
            known = rng.random(len(rows)) < 0.5
            network.fit(rows[known], members[known])
            rankings.append(rank(network.score(rows[~known]), members[~known]))
        else:
            network.fit(rows, members)
            target, fresh = _target(graph, chosen, target_per_class, rng)
            rows, members = _answers(estimator, target, setting, seeds, only=fresh)
            rankings.append(rank(network.score(rows), members))
        watcher.advance("runs", accuracy=rankings[-1].auc)
    details = {
        "setting": setting,
        "shadow_per_class": shadow_per_class,
        "target_per_class": target_per_class,
        "method": estimator.method,
        "level": estimator.level,
        "epsilon": estimator.epsilon if estimator.level != "none" else None,
        "dataset": graph.name,
    }
    return MembershipResult("membership", on, tuple(rankings), details)


def _per_class(
    labels: NDArray[np.int64], count: int, allowed: Mask, rng: np.random.Generator
) -> Mask:
    """Choose up to ``count`` nodes of every class at random among the allowed ones."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in range(int(labels.max()) + 1):
        nodes = np.flatnonzero((labels == label) & allowed)
        if len(nodes) < 4:
            raise DataError(
                f"Each class must have at least 4 nodes to sample from. Got {len(nodes)} of "
                f"class {label}; take fewer nodes per class."
            )
        chosen[rng.permutation(nodes)[:count]] = True
    return chosen


def _halved(graph: Graph, rng: np.random.Generator) -> Graph:
    """Make a random half of the nodes members (training nodes), the same share of every class."""
    seed = int(rng.integers(2**31))
    return random_split(graph, seed=seed, train=0.5, val=_ASIDE / 2, stratified=True)


def _target(
    graph: Graph, shadow: Mask, per_class: int | None, rng: np.random.Generator
) -> tuple[Graph, Mask]:
    """Return the graph the target is trained on, and which of its nodes the attack never saw."""
    if per_class is None:
        return graph, ~shadow
    check_integer("target_per_class", per_class, at_least=4)
    chosen = _per_class(graph.labels, per_class, ~shadow, rng)
    target = _halved(induced(graph, chosen), rng)
    return target, np.ones(target.num_nodes, dtype=np.bool_)


def _answers(
    estimator: NodeClassifier,
    graph: Graph,
    setting: str,
    seeds: dict[str, int],
    only: Mask | None = None,
) -> tuple[NDArray[np.float64], Mask]:
    """Train, ask, and return each watched node's posteriors and label, and who was a member."""
    trained = graph if setting == "transductive" else _members_only(graph)
    with fitted(estimator, trained, **seeds) as model:
        posteriors = model.predict_proba(graph)
    watched = graph.train_mask | graph.test_mask
    if only is not None:
        watched = watched & only
    labels = np.eye(graph.num_classes)[graph.labels[watched]]
    rows = np.concatenate([posteriors[watched].astype(np.float64), labels], axis=1)
    return rows, graph.train_mask[watched]


def _members_only(graph: Graph) -> Graph:
    """Return the graph of the members and of the few nodes that choose the epoch and score."""
    aside = np.flatnonzero(graph.val_mask)
    if len(aside) < 2:
        raise DataError("The split must have at least 2 validation nodes for TSTF. Got fewer.")
    kept = graph.train_mask | graph.val_mask
    test = np.zeros(graph.num_nodes, dtype=np.bool_)
    test[aside[1::2]] = True
    masks = graph.train_mask, graph.val_mask & ~test, test
    return induced(graph.with_masks(*masks), kept)
