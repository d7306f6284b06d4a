"""Link attacks: inference of edges from a model's predictions.

Each attack is compared with a control, the features-only attacker. At edge level features and
labels are public, so the control knows them all and may train a model of its own on them. It
already exploits homophily, for instance equal classes of neighbours. Only the advantage over the
control is due to *the edges* that the model read.

That advantage includes aggregates of many edges, such as a node's degree or the classes of its
neighbours. The control does not know them, and edge-level privacy does not protect them. Held-out
pairs leave only the single edge: half of some edges are removed before training, and the attacker
distinguishes them from those that were kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.attacks.attacker import AttackNetwork, Ranking, Rows, guessing, rank
from gapgnn.attacks.target import ask, check_itself, described, fitted
from gapgnn.errors import DataError, InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, csr
from gapgnn.rng import experiment_rng
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

Nodes = NDArray[np.int64]
_TINY = 1e-12
# Posteriors are clamped to this in logarithms, because of single precision.
_LEAST = 1e-6
OTHERS = ("held-out", "degree", "uniform")
PUBLISHED = ("probabilities", "labels")
# The largest share of edges that is held out, so that the graph hardly changes.
_MOST_HELD_OUT = 0.1


@dataclass(frozen=True)
class LinkResult:
    """Figures of a link attack and of the features-only control.

    Attributes:
        attack: ``link-stealing``, ``linkteller`` or ``own-neighbours``.
        ranking: of the attack.
        control: of the features-only attacker, who has no access to the target model.
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
            **asdict(self.ranking),
            "control": asdict(self.control),
            "gain_auc": self.gain_auc,
            **self.details,
        }


def link_stealing_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    pairs: int = 10_000,
    others: str = "held-out",
    published: str = "probabilities",
    own: str | None = None,
    itself: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Run link stealing (He et al. 2021) on the posteriors of a copy of an estimator.

    Unsupervised: each of eight distances between two posteriors. Supervised: a network on pairwise
    operators, trained on the half of the pairs that the attacker knows. It also gets all inputs of
    the control, so the difference is due to the posteriors.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph, transductive.
        pairs: connected pairs that are drawn, and as many unconnected ones.
        others: how unconnected pairs are drawn: ``held-out``, edges that are removed before
            training, so that only the single edge differs; ``degree``, from the ends of edges; or
            ``uniform``, as in the original attack. With the last two the attack also succeeds by
            the number and the classes of neighbours, which are sums over many edges that edge-level
            privacy does not protect.
        published: the attacker's view of the model: ``probabilities``, or ``labels`` alone.
        own: what a prediction reads of the node's own record, if that is chosen at prediction.
        itself: attack the fitted estimator itself, as it was trained on this graph. No edge can be
            held out of a training that is over.
        seed: of all choices; never of noise.
        callback: watches the steps.
    """
    check_one_edge_type(graph)
    check_integer("pairs", pairs, at_least=20)
    check_choice("others", others, OTHERS)
    if itself:
        _check_itself(estimator, graph, others)
    watcher = callback or Silent()
    watcher.start("attack", 4)
    rng = experiment_rng(seed, "link stealing")
    graph, drawn = draw_pairs(graph, pairs, rng, others)
    with under_attack(estimator, graph, seed, itself=itself) as model:
        posteriors = answers(model, graph, published=published, own=own)
    watcher.advance("attack")
    public = public_rows(graph, seed)
    watcher.advance("attack")
    known = rng.random(len(drawn.linked)) < 0.5
    control_rows = np.concatenate(
        [public_pair_rows(graph, drawn), pair_features(public, drawn)], axis=1
    )
    attack_rows = np.concatenate([control_rows, pair_features(posteriors, drawn)], axis=1)
    control = _supervised(control_rows, drawn, known, seed)
    watcher.advance("attack")
    attack = _supervised(attack_rows, drawn, known, seed)
    watcher.advance("attack")
    details = {
        **_unsupervised(posteriors, public, drawn),
        "pairs": len(drawn.linked),
        "others": others,
        "published": published,
        "own": own or getattr(model.card_, "own", ""),
        **attacked(estimator, graph, drawn.linked[~known], itself=itself),
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
    itself: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> LinkResult:
    """Run LinkTeller (Wu et al. 2022): change one node's features and observe other predictions.

    The score of a pair is the change of one node's posteriors per change of the other's features,
    summed over both directions.

    At level none the model predicts on the changed graph. At a private level predictions follow
    from the hops that were released once, so one node's features change no other prediction, and
    the attack is guessing. ``fresh="always"`` measures a curator who pays for a new release at
    every query; the result states the cost.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the private graph.
        nodes: number of target nodes; all pairs of them are scored, with one query per node.
        step: relative increase of a node's features.
        fresh: ``auto`` or ``always``.
        others: distinguish connected pairs from ``all`` others, or from ``held-out`` ones: half of
            the edges among the target nodes, removed before training. The target nodes are then
            ends of edges, so that some pairs are connected in a sparse graph too.
        itself: attack the fitted estimator itself, as it was trained on this graph. No edge can be
            held out of a training that is over.
        seed: of all choices; never of noise.
        callback: watches the questions.
    """
    check_one_edge_type(graph)
    check_integer("nodes", nodes, at_least=3)
    check_number("step", step, above=0)
    check_choice("fresh", fresh, ("auto", "always"))
    check_choice("others", others, ("all", "held-out"))
    if itself:
        _check_itself(estimator, graph, others, fresh)
    rng = experiment_rng(seed, "linkteller")
    graph, watched, chosen = _watched_pairs(graph, nodes, rng, others)
    watcher = callback or Silent()
    watcher.start("questions", len(watched))
    with under_attack(estimator, graph, seed, itself=itself) as model:
        is_fresh = fresh == "always" or model.level == "none"
        influence = _influence(model, graph, watched, step, watcher, is_fresh=is_fresh)
        epsilon = model.card_.epsilon
    control = rank(-distances(public_rows(graph, seed), chosen)["correlation"], chosen.linked)
    details = {
        "nodes": len(watched),
        "pairs": len(chosen.linked),
        "links": int(chosen.linked.sum()),
        "others": others,
        "questions": "fresh" if is_fresh else "cached",
        "epsilon_spent": None if epsilon is None else epsilon * (1 + len(watched) * is_fresh),
        **attacked(estimator, graph, chosen.linked, itself=itself),
    }
    first, second = np.searchsorted(watched, [chosen.first, chosen.second])
    ranking = rank(influence[first, second], chosen.linked)
    return LinkResult("linkteller", ranking, control, details)


def check_one_edge_type(graph: Graph) -> None:
    """Refuse several edge types: a link attack infers whether a pair is linked, not by which."""
    if graph.more_edge_types:
        raise InputError(
            "`graph` must have one edge type for an attack on links. Got "
            f"{', '.join(graph.edge_type_names)}; attack the edges of one table at a time."
        )


def drawn_nodes(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return some nodes drawn at random, sorted."""
    if count > graph.num_nodes:
        raise InputError(f"`nodes` must be at most {graph.num_nodes}. Got {count}.")
    return np.sort(rng.permutation(graph.num_nodes)[:count])


def _edge_ends(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the ends of edges drawn at random, ``count`` nodes at most."""
    drawn = sample_pairs(graph, count // 2, rng)
    ends = [part[drawn.linked] for part in (drawn.first, drawn.second)]
    return np.unique(np.concatenate(ends))


def _watched_pairs(
    graph: Graph, count: int, rng: np.random.Generator, others: str
) -> tuple[Graph, Nodes, Pairs]:
    """Return the graph to train on, the nodes to watch, sorted, and the pairs to classify."""
    if others == "all":
        watched = drawn_nodes(graph, count, rng)
        return graph, watched, all_pairs(graph, watched)
    watched = _edge_ends(graph, count, rng)
    graph, chosen = hold_out(graph, all_pairs(graph, watched), rng)
    return graph, watched, chosen


def _influence(
    model: NodeClassifier,
    graph: Graph,
    watched: Nodes,
    step: float,
    watcher: Callback,
    *,
    is_fresh: bool,
) -> Rows:
    """Return how far the features of any two watched nodes move the answers about each other."""
    influence = np.zeros((len(watched), len(watched)))
    before = model.predict_proba(graph)[watched].astype(np.float64)
    for place, node in enumerate(watched.tolist()):
        if is_fresh:
            after = ask(model, _nudged(graph, node, step))[watched]
        else:
            # What the curator's service returns: the cached hops answer, whatever is sent.
            after = model.predict_proba(graph)[watched]
        influence[place] = np.linalg.norm(after - before, axis=1) / step
        watcher.advance("questions")
    return influence + influence.T


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


def _check_itself(
    estimator: NodeClassifier, graph: Graph, others: str, fresh: str = "auto"
) -> None:
    """Refuse options for a saved model that need a new training or new releases."""
    if others == "held-out":
        raise InputError(
            "`others` must not be held-out for a saved model: edges are held out before training, "
            "and its training is over. Leave the model out to attack a copy."
        )
    check_itself(estimator, graph)
    if fresh == "always" and estimator.level != "none":
        raise InputError(
            "`fresh` must be auto for a saved model: every fresh answer would be charged. Got "
            "'always'."
        )


@contextmanager
def under_attack(
    estimator: NodeClassifier, graph: Graph, seed: int, *, itself: bool = False
) -> Iterator[NodeClassifier]:
    """Give the model under attack: a copy that is fitted for it, or the fitted estimator itself."""
    if itself:
        yield estimator
        return
    with fitted(estimator, graph, repeats=1, seed=seed) as model:
        yield model


def attacked(
    estimator: NodeClassifier, graph: Graph, linked: NDArray[np.bool_], *, itself: bool
) -> dict[str, Any]:
    """Return the details common to all link attacks: the model, and the scores of guessing."""
    return {"itself": itself, "guessing": guessing(linked), **described(estimator, graph)}


def _posteriors(
    estimator: NodeClassifier, graph: Graph, seed: int, *, itself: bool = False
) -> Rows:
    with under_attack(estimator, graph, seed, itself=itself) as model:
        return answers(model, graph)


def answers(
    model: NodeClassifier,
    graph: Graph,
    *,
    published: str = "probabilities",
    own: str | None = None,
) -> Rows:
    """Return what is published about every node: probabilities, or 1 for the predicted class."""
    check_choice("published", published, PUBLISHED)
    rows = model.predict_proba(graph, own=own).astype(np.float64)  # type: ignore[arg-type]
    if published == "probabilities":
        return rows
    labels: Rows = np.eye(rows.shape[1])[model.decide(rows)]
    return labels


def public_rows(graph: Graph, seed: int) -> Rows:
    """Return what is known without edges: labels, and a model of features alone."""
    from gapgnn.methods import MLP

    posteriors = _posteriors(MLP(level="none"), graph, seed)
    labels = np.zeros_like(posteriors)
    known = np.flatnonzero(graph.labels >= 0)
    labels[known, graph.labels[known]] = 1
    return np.concatenate([posteriors, labels], axis=1)


def public_pair_rows(graph: Graph, pairs: Pairs) -> Rows:
    """Return what the features of both ends of a pair are together: product, cosine, size.

    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.array([[3.0, 4.0], [3.0, 4.0]]))
    >>> pairs = Pairs(np.array([0]), np.array([1]), np.array([True]))
    >>> public_pair_rows(graph, pairs)[0].round(6).tolist()
    [25.0, 1.0, 10.0]
    """
    left, right = (sp.csr_array(graph.features[part]) for part in (pairs.first, pairs.second))

    def product(some: sp.csr_array, other: sp.csr_array) -> Rows:
        return np.asarray(some.multiply(other).sum(axis=1), dtype=np.float64).reshape(-1)

    shared = product(left, right)
    sizes = [np.sqrt(product(part, part)) for part in (left, right)]
    cosine = shared / (sizes[0] * sizes[1] + 1e-12)
    return np.stack([shared, cosine, sizes[0] + sizes[1]], axis=1)


def draw_pairs(
    graph: Graph, count: int, rng: np.random.Generator, others: str
) -> tuple[Graph, Pairs]:
    """Return the graph to train on and the pairs to classify."""
    if others == "held-out":
        return held_out_pairs(graph, count, rng)
    return graph, sample_pairs(graph, count, rng, others=others)


def _unsupervised(posteriors: Rows, public: Rows, pairs: Pairs) -> dict[str, Any]:
    """Return the ranking metrics of each distance, for posteriors and for public rows."""
    found, control = (
        {name: asdict(rank(-far, pairs.linked)) for name, far in distances(rows, pairs).items()}
        for rows in (posteriors, public)
    )
    best = max(found, key=lambda name: found[name]["auc"])
    return {"unsupervised": found, "best_distance": best, "control_unsupervised": control}


def _supervised(rows: Rows, pairs: Pairs, known: NDArray[np.bool_], seed: int) -> Ranking:
    network = AttackNetwork(seed=seed, epochs=40).fit(rows[known], pairs.linked[known])
    return rank(network.score(rows[~known]), pairs.linked[~known])


@dataclass(frozen=True)
class Pairs:
    """Some pairs of nodes, and which of them are connected (in either direction)."""

    first: Nodes
    second: Nodes
    linked: NDArray[np.bool_]

    def part(self, chosen: NDArray[np.bool_]) -> Pairs:
        """Return some of the pairs."""
        return Pairs(self.first[chosen], self.second[chosen], self.linked[chosen])


def sample_pairs(
    graph: Graph, count: int, rng: np.random.Generator, *, others: str = "degree"
) -> Pairs:
    """Draw equally many connected and unconnected pairs at random, ``count`` of each at most.

    Args:
        graph: the private graph.
        count: of connected and of unconnected pairs, at most.
        rng: of the experiment.
        others: how the ends of unconnected pairs are drawn: ``degree``, in proportion to their
            degree, so that the degree carries no information; or ``uniform``.

    >>> graph = Graph.from_arcs(range(9), range(1, 10), num_nodes=10, features=np.eye(10))
    >>> int(sample_pairs(graph, 5, np.random.default_rng(0)).linked.sum())
    5
    """
    matrix = _either_way(graph)
    lower, upper = sp.triu(matrix, k=1).nonzero()
    count = min(count, len(lower))
    if count < 2:
        raise DataError(f"The graph must have at least 2 edges to be attacked. Got {len(lower)}.")
    chosen = rng.choice(len(lower), size=count, replace=False)
    is_degree = check_choice("others", others, OTHERS[1:]) == "degree"
    ends = np.concatenate([lower, upper]) if is_degree else np.arange(graph.num_nodes)
    found: set[tuple[int, int]] = set()
    for _ in range(100):
        drawn = np.sort(ends[rng.integers(len(ends), size=(2 * count, 2))], axis=1)
        free = (drawn[:, 0] < drawn[:, 1]) & (_are_linked(matrix, drawn) == 0)
        found.update(map(tuple, drawn[free].tolist()))
        if len(found) >= count:
            break
    if len(found) < count:
        raise DataError("The graph must have as many unconnected pairs as edges. Got fewer.")
    # A set has an order of its own; the draw must depend on the generator alone.
    absent = np.array(sorted(found))
    absent = absent[rng.permutation(len(absent))[:count]]
    first = np.concatenate([lower[chosen], absent[:, 0]]).astype(np.int64)
    second = np.concatenate([upper[chosen], absent[:, 1]]).astype(np.int64)
    return Pairs(first, second, np.arange(2 * count) < count)


def hold_out(graph: Graph, pairs: Pairs, rng: np.random.Generator) -> tuple[Graph, Pairs]:
    """Remove a random half of the edges among some pairs; the attack is to identify the kept ones.

    Kept and removed edges are chosen by a coin, so homophily, degrees and classes are independent
    of it. Only a model that reveals single edges it read gives an advantage.

    Returns:
        The graph without the removed edges, and the pairs that were connected; ``linked`` is true
        for those that still are.

    >>> graph = Graph.from_arcs(range(9), range(1, 10), num_nodes=10, features=np.eye(10))
    >>> left, pairs = hold_out(graph, all_pairs(graph, np.arange(10)), np.random.default_rng(0))
    >>> left.num_arcs, int(pairs.linked.sum()), len(pairs.linked)
    (10, 5, 9)
    """
    edges = pairs.part(pairs.linked)
    count = len(edges.linked)
    if count < 2:
        raise DataError(f"At least 2 pairs must be connected to hold out an edge. Got {count}.")
    stays = np.zeros(count, dtype=np.bool_)
    stays[rng.permutation(count)[: (count + 1) // 2]] = True

    def names(first: NDArray[Any], second: NDArray[Any]) -> Nodes:
        low, high = np.minimum(first, second), np.maximum(first, second)
        both: Nodes = low.astype(np.int64) * graph.num_nodes + high
        return both

    sources = csr.sources(graph.indptr, np.int64)
    removed = names(edges.first[~stays], edges.second[~stays])
    kept = ~np.isin(names(sources, graph.indices), removed)
    counts = np.bincount(sources[kept], minlength=graph.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    weights = None if graph.weights is None else graph.weights[kept]
    left = graph._replace(indptr=indptr, indices=graph.indices[kept], weights=weights)
    return left, Pairs(edges.first, edges.second, stays)


def held_out_pairs(graph: Graph, count: int, rng: np.random.Generator) -> tuple[Graph, Pairs]:
    """Draw edges at random, ``count`` to keep and ``count`` to remove, a tenth of all at most.

    >>> graph = Graph.from_arcs(range(99), range(1, 100), num_nodes=100, features=np.eye(100))
    >>> left, pairs = held_out_pairs(graph, 5, np.random.default_rng(0))
    >>> left.num_arcs // 2, len(pairs.linked)
    (94, 10)
    """
    lower, upper = sp.triu(_either_way(graph), k=1).nonzero()
    count = min(count, int(_MOST_HELD_OUT * len(lower)))
    if count < 2:
        least = math.ceil(2 / _MOST_HELD_OUT)
        raise DataError(
            f"The graph must have at least {least} edges to hold some out. Got {len(lower)}."
        )
    chosen = rng.choice(len(lower), size=2 * count, replace=False)
    ends = lower[chosen].astype(np.int64), upper[chosen].astype(np.int64)
    return hold_out(graph, Pairs(*ends, np.ones(2 * count, dtype=np.bool_)), rng)


def all_pairs(graph: Graph, nodes: Nodes) -> Pairs:
    """Return every unordered pair of some nodes.

    >>> graph = Graph.from_arcs([0], [2], num_nodes=3, features=np.eye(3))
    >>> all_pairs(graph, np.arange(3)).linked.tolist()
    [False, True, False]
    """
    left, right = np.triu_indices(len(nodes), k=1)
    first, second = nodes[left], nodes[right]
    ends = np.stack([first, second], axis=1)
    return Pairs(first, second, _are_linked(_either_way(graph), ends) > 0)


def _either_way(graph: Graph) -> sp.csr_array:
    matrix = csr.matrix(graph.indptr, graph.indices)
    return matrix if not graph.is_directed else (matrix + matrix.T).tocsr()


def _are_linked(matrix: sp.csr_array, ends: NDArray[np.int64]) -> NDArray[Any]:
    return np.asarray(matrix[ends[:, 0], ends[:, 1]]).reshape(-1).astype(np.int64)


def distances(rows: Rows, pairs: Pairs) -> dict[str, Rows]:
    """Return the eight distances of He et al. (2021) between the rows of every pair.

    >>> pairs = Pairs(np.array([0]), np.array([1]), np.array([True]))
    >>> float(distances(np.array([[1.0, 0.0], [0.0, 1.0]]), pairs)["manhattan"][0])
    2.0
    """
    a, b = rows[pairs.first], rows[pairs.second]
    gap, total = np.abs(a - b), np.abs(a) + np.abs(b)
    return {
        "cosine": 1 - _cosine(a, b),
        "euclidean": np.sqrt((gap**2).sum(axis=1)),
        "correlation": 1 - _cosine(a - a.mean(axis=1)[:, None], b - b.mean(axis=1)[:, None]),
        "chebyshev": gap.max(axis=1),
        "braycurtis": gap.sum(axis=1) / (np.abs(a + b).sum(axis=1) + _TINY),
        "manhattan": gap.sum(axis=1),
        "canberra": (gap / (total + _TINY)).sum(axis=1),
        "squared euclidean": (gap**2).sum(axis=1),
    }


def pair_features(posteriors: Rows, pairs: Pairs) -> Rows:
    """Return what the supervised attacker reads: pairwise operators, distances and entropies.

    Of posteriors and of their logarithms, in which those near 0 and 1 differ too.
    """
    a, b = posteriors[pairs.first], posteriors[pairs.second]
    logs = np.log(np.clip(posteriors, _LEAST, None))
    logs -= logs.mean(axis=1, keepdims=True)
    log_a, log_b = logs[pairs.first], logs[pairs.second]
    entropy = -(posteriors * np.log(posteriors + _TINY)).sum(axis=1)
    left, right = entropy[pairs.first], entropy[pairs.second]
    columns = [(a + b) / 2, a * b, np.abs(a - b), (a - b) ** 2]
    columns += [log_a * log_b, np.abs(log_a - log_b)]
    for rows in (posteriors, logs):
        columns += [column[:, None] for column in distances(rows, pairs).values()]
    entropies = ((left + right) / 2, left * right, np.abs(left - right))
    columns += [column[:, None] for column in entropies]
    return np.concatenate(columns, axis=1)


def _cosine(a: Rows, b: Rows) -> Rows:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine: Rows = (a * b).sum(axis=1) / (norms + _TINY)
    return cosine
