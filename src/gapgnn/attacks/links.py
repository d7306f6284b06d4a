"""Link attacks: who is connected to whom, from a model's answers?

Each attack is measured beside a control, the features-only attacker. At edge level features and
labels are public, so that attacker knows them all and may train a model of its own on them. What
friends have in common with each other, a class for instance, is known to it anyway. Only what an
attack finds beyond the control is found *because of the edges* that the model read.

That still counts what many edges say together: how many friends somebody has, or which class they
are of. The control does not know it, and edge-level privacy does not hide it. Held-out pairs leave
only the single edge: half of some edges are removed before the model is trained, and the attacker
is to tell them from those that were kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.attacks.network import AttackNetwork
from gapgnn.attacks.pairs import (
    OTHERS,
    Pairs,
    Rows,
    all_pairs,
    distances,
    held_out_pairs,
    hold_out,
    pair_features,
    sample_pairs,
)
from gapgnn.attacks.scores import Ranking, rank
from gapgnn.attacks.target import ask, fitted
from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.rng import experiment_rng
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier


@dataclass(frozen=True)
class LinkResult:
    """Figures of a link attack and of the features-only control.

    Attributes:
        attack: ``link-stealing``, ``linkteller`` or ``reconstruction``.
        ranking: of the attack.
        control: of the same kind of attacker without the target model.
        details: the setting and further figures.
    """

    attack: str
    ranking: Ranking
    control: Ranking
    details: dict[str, Any]

    @property
    def gain_auc(self) -> float:
        """What the attacker gains because of the edges."""
        return self.ranking.auc - self.control.auc

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "attack": self.attack,
            **self.ranking.to_dict(),
            "control": self.control.to_dict(),
            "gain_auc": self.gain_auc,
            **self.details,
        }


def link_stealing_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    pairs: int = 10_000,
    others: str = "held-out",
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Run link stealing (He et al. 2021) on the posteriors of a copy of an estimator.

    Unsupervised: each of eight distances between two posteriors. Supervised: a network on pairwise
    operators, trained on the half of the pairs that the attacker knows; it also gets all that the
    control has, so the difference is due to the posteriors.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        pairs: connected pairs that are drawn, and as many unconnected ones.
        others: how unconnected pairs are drawn: ``held-out``, edges that are removed before
            training, so that nothing but the edge tells; ``degree``, from the ends of edges; or
            ``uniform``, as in the original attack. How many friends somebody has, and of which
            class, are sums over many edges, which edge-level privacy does not hide and which the
            last two reward.
        seed: of all choices; never of noise.
        callback: watches the steps.
    """
    check_integer("pairs", pairs, at_least=20)
    check_choice("others", others, OTHERS)
    watcher = callback or Silent()
    watcher.start("attack", 4)
    rng = experiment_rng(seed, "link stealing")
    if others == "held-out":
        graph, drawn = held_out_pairs(graph, pairs, rng)
    else:
        drawn = sample_pairs(graph, pairs, rng, others=others)
    with fitted(estimator, graph, repeats=1, seed=seed) as model:
        posteriors = model.predict_proba(graph).astype(np.float64)
    watcher.advance("attack")
    public = _public_rows(graph, seed)
    watcher.advance("attack")
    known = rng.random(len(drawn.linked)) < 0.5
    control_rows = _public_pair_rows(graph, public, drawn)
    attack_rows = np.concatenate([control_rows, pair_features(posteriors, drawn)], axis=1)
    control = _supervised(control_rows, drawn, known, seed)
    watcher.advance("attack")
    attack = _supervised(attack_rows, drawn, known, seed)
    watcher.advance("attack")
    unsupervised = {
        name: rank(-distance, drawn.linked).to_dict()
        for name, distance in distances(posteriors, drawn).items()
    }
    best = max(unsupervised, key=lambda name: unsupervised[name]["auc"])
    profile = distances(public, drawn)
    details = {
        "unsupervised": unsupervised,
        "best_distance": best,
        "control_unsupervised": {
            name: rank(-distance, drawn.linked).to_dict() for name, distance in profile.items()
        },
        "pairs": len(drawn.linked),
        "others": others,
        **_setting(estimator, graph),
    }
    return LinkResult("link-stealing", attack, control, details)


def linkteller_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    nodes: int = 200,
    step: float = 0.01,
    fresh: str = "auto",
    others: str = "all",
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Run LinkTeller (Wu et al. 2022): change one node's features and see whose answers move.

    The score of a pair is the size of the change of one's posteriors per change of the other's
    features, in both directions together.

    At level none the model is asked about the changed graph. At a private level it answers from
    the hops that were released once, so nobody's features can move anybody else's answer, and the
    attack has nothing to go on. ``fresh="always"`` asks what would happen if the curator did pay
    for a new release at every question; the result says what that would cost.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph.
        nodes: how many nodes are watched; all pairs of them are scored, with one question each.
        step: by which share a node's features are increased.
        fresh: ``auto`` or ``always``.
        others: tell connected pairs from ``all`` others, or from ``held-out`` ones: half of the
            edges among the watched nodes, removed before training. The watched nodes are then the
            ends of some edges, so that there are some on a sparse graph too.
        seed: of all choices; never of noise.
        callback: watches the questions.
    """
    check_integer("nodes", nodes, at_least=3)
    check_number("step", step, above=0)
    check_choice("fresh", fresh, ("auto", "always"))
    check_choice("others", others, ("all", "held-out"))
    rng = experiment_rng(seed, "linkteller")
    is_held_out = others == "held-out"
    watched = _friends(graph, nodes, rng) if is_held_out else _watched(graph, nodes, rng)
    chosen = all_pairs(graph, watched)
    judged = np.ones(len(chosen.linked), dtype=np.bool_)
    if is_held_out:
        judged = chosen.linked
        graph, chosen = hold_out(graph, chosen, rng)
    watcher = callback or Silent()
    watcher.start("questions", len(watched))
    influence = np.zeros((len(watched), len(watched)))
    with fitted(estimator, graph, repeats=1, seed=seed) as model:
        is_fresh = fresh == "always" or model.level == "none"
        before = model.predict_proba(graph)[watched].astype(np.float64)
        for place, node in enumerate(watched.tolist()):
            if is_fresh:
                after = ask(model, _nudged(graph, node, step))[watched]
            else:
                # What the curator's service returns: the cached hops answer, whatever is sent.
                after = model.predict_proba(graph)[watched]
            influence[place] = np.linalg.norm(after - before, axis=1) / step
            watcher.advance("questions")
        spent = (
            None
            if model.card_.epsilon is None
            else model.card_.epsilon * (1 + len(watched) * is_fresh)
        )
    both = influence + influence.T
    left, right = np.triu_indices(len(watched), k=1)
    public = _public_rows(graph, seed)
    control = rank(-distances(public, chosen)["correlation"], chosen.linked)
    details = {
        "nodes": len(watched),
        "pairs": len(chosen.linked),
        "links": int(chosen.linked.sum()),
        "others": others,
        "questions": "fresh" if is_fresh else "cached",
        "epsilon_spent": spent,
        **_setting(estimator, graph),
    }
    scores = both[left, right][judged]
    return LinkResult("linkteller", rank(scores, chosen.linked), control, details)


def reconstruction_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    nodes: int = 500,
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Reconstruct the graph among some nodes: the top-scored pairs, as many as there are edges.

    Pairs are scored by the correlation of their posteriors, without any known edge. The control
    does the same with public labels and a features-only model. Guessing has the precision of the
    graph's density.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        nodes: among how many nodes, drawn at random.
        seed: of all choices; never of noise.
        callback: watches the steps.
    """
    check_integer("nodes", nodes, at_least=3)
    watcher = callback or Silent()
    watcher.start("attack", 2)
    chosen = all_pairs(graph, _watched(graph, nodes, experiment_rng(seed, "reconstruction")))
    with fitted(estimator, graph, repeats=1, seed=seed) as model:
        posteriors = model.predict_proba(graph).astype(np.float64)
    watcher.advance("attack")
    scores = -distances(posteriors, chosen)["correlation"]
    control = -distances(_public_rows(graph, seed), chosen)["correlation"]
    watcher.advance("attack")
    details = {
        "precision": _precision_at_edges(scores, chosen.linked),
        "control_precision": _precision_at_edges(control, chosen.linked),
        "density": float(chosen.linked.mean()),
        "nodes": nodes,
        "links": int(chosen.linked.sum()),
        **_setting(estimator, graph),
    }
    return LinkResult(
        "reconstruction", rank(scores, chosen.linked), rank(control, chosen.linked), details
    )


def _watched(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if count > graph.num_nodes:
        raise InputError(f"`nodes` must be at most {graph.num_nodes}. Got {count}.")
    return np.sort(rng.permutation(graph.num_nodes)[:count])


def _friends(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the ends of edges drawn at random, ``count`` nodes at most."""
    drawn = sample_pairs(graph, count // 2, rng)
    ends = [part[drawn.linked] for part in (drawn.first, drawn.second)]
    return np.unique(np.concatenate(ends))


def _nudged(graph: Graph, node: int, step: float) -> Graph:
    """Return the graph with one node's features increased by a share."""
    features: Any = graph.features
    if sp.issparse(features):
        start, end = features.indptr[node], features.indptr[node + 1]
        values = features.data.copy()
        values[start:end] *= 1 + step
        parts = (values, features.indices, features.indptr)
        features = sp.csr_array(parts, shape=features.shape)
    else:
        features = np.array(features)
        features[node] *= 1 + step
    return graph._replace(features=features)


def _public_rows(graph: Graph, seed: int) -> Rows:
    """Return what is known without edges: labels, and a model of features alone."""
    from gapgnn.methods import MLP

    with fitted(MLP(level="none"), graph, seed=seed) as model:
        posteriors = model.predict_proba(graph).astype(np.float64)
    labels = np.zeros_like(posteriors)
    known = np.flatnonzero(graph.labels >= 0)
    labels[known, graph.labels[known]] = 1
    return np.concatenate([posteriors, labels], axis=1)


def _public_pair_rows(graph: Graph, public: Rows, pairs: Pairs) -> Rows:
    """Return what the features-only attacker reads about a pair."""
    left, right = (sp.csr_array(graph.features[part]) for part in (pairs.first, pairs.second))

    def product(some: sp.csr_array, other: sp.csr_array) -> Rows:
        return np.asarray(some.multiply(other).sum(axis=1), dtype=np.float64).reshape(-1)

    shared = product(left, right)
    sizes = [np.sqrt(product(part, part)) for part in (left, right)]
    cosine = shared / (sizes[0] * sizes[1] + 1e-12)
    plain = np.stack([shared, cosine, sizes[0] + sizes[1]], axis=1)
    return np.concatenate([plain, pair_features(public, pairs)], axis=1)


def _supervised(rows: Rows, pairs: Pairs, known: NDArray[np.bool_], seed: int) -> Ranking:
    network = AttackNetwork(seed=seed, epochs=40).fit(rows[known], pairs.linked[known])
    return rank(network.score(rows[~known]), pairs.linked[~known])


def _precision_at_edges(scores: Rows, linked: NDArray[np.bool_]) -> float:
    """Return the share of true edges among as many top-scored pairs as there are edges."""
    count = int(linked.sum())
    if count == 0:
        return 0.0
    return float(linked[np.argsort(-scores, kind="stable")[:count]].mean())


def _setting(estimator: NodeClassifier, graph: Graph) -> dict[str, Any]:
    return {
        "method": estimator.method,
        "level": estimator.level,
        "epsilon": estimator.epsilon if estimator.level != "none" else None,
        "dataset": graph.name,
    }
