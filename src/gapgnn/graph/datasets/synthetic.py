"""The built-in social graph, and generated graphs of any size, drawn in pieces.

Both come from a degree-corrected block model. Nodes are divided into blocks of :data:`BLOCK_NODES`.
Every block of nodes, and every pair of blocks, has its own generator, so each piece can be drawn
alone, again, in any order or on another machine, and the pieces are consistent. Memory is bounded
by one pair of blocks.

Each node belongs to a community and has a weight. The number of edges between two nodes is Poisson
with a mean proportional to the product of their weights; a fraction of the edges is inside a
community, the rest is independent of communities. Repeated edges count once and self-loops are
dropped; the expected number of such edges is drawn in addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Features, Graph, random_split
from gapgnn.rng import experiment_rng

BLOCK_NODES = 1 << 17
FeatureModel = Literal["gaussian", "profile"]


def social_graph(
    *, num_nodes: int = 10_000, mean_degree: float = 60, num_classes: int = 6, seed: int = 0
) -> Graph:
    """Generate a social network similar to those of Facebook100, split 75/10/15.

    Degrees are heavy-tailed, neighbours tend to share a class, and five profile fields (status,
    gender, major, minor, housing; one-hot, partly missing) are weakly correlated with it. With the
    default arguments, features alone reach an accuracy of about 50 %, with edges almost 90 %.

    Args:
        num_nodes: number of nodes.
        mean_degree: mean degree, within a few percent.
        num_classes: number of classes; the largest has about twice the nodes of the smallest.
        seed: equal arguments and seeds give equal graphs and splits.

    >>> graph = social_graph(num_nodes=1_000, mean_degree=20)
    >>> graph.name, graph.num_nodes, graph.num_features, graph.num_classes
    ('social', 1000, 349, 6)
    """
    return generate(
        num_nodes=num_nodes,
        mean_degree=mean_degree,
        num_features=349,
        num_classes=num_classes,
        features="profile",
        seed=seed,
        name="social",
    )


def rare_graph(
    *,
    num_nodes: int = 20_000,
    num_edges: int = 240_000,
    rate: float = 0.03,
    noise_columns: int = 150,
    labelled: float = 0.2,
    seed: int = 0,
) -> Graph:
    """Generate payments among customers with a rare class, half of whose payments stay inside it.

    Three columns are weakly correlated with the class, and two categories, one-hot, are irrelevant.
    A share of the nodes is labelled: three in four of them train and one in ten validates. All
    others are test nodes.

    Args:
        num_nodes: number of customers.
        num_edges: number of payments; repeated pairs count once.
        rate: share of the rare class.
        noise_columns: number of irrelevant one-hot columns.
        labelled: share of the nodes with a label.
        seed: equal arguments and seeds give equal graphs and splits.

    >>> graph = rare_graph(num_nodes=500, num_edges=2_000, noise_columns=6)
    >>> graph.features.shape, graph.num_classes, int(graph.train_mask.sum()) < 100
    ((500, 9), 2, True)
    """
    check_integer("num_nodes", num_nodes, at_least=2)
    check_integer("num_edges", num_edges, at_least=1)
    check_integer("noise_columns", noise_columns, at_least=0)
    check_number("rate", rate, above=0, below=1)
    check_number("labelled", labelled, above=0, at_most=1)
    rng = experiment_rng(seed, "rare graph")
    labels = (rng.random(num_nodes) < rate).astype(np.int64)
    columns = [rng.normal(size=(num_nodes, 3)) + labels[:, None] * np.array([0.5, -0.25, 0.15])]
    for width in (noise_columns // 3, noise_columns - noise_columns // 3):
        if width:
            columns.append(np.eye(width)[rng.integers(0, width, num_nodes)])
    activity = rng.pareto(1.8, num_nodes) + 0.2
    sources, targets = (
        rng.choice(num_nodes, num_edges, p=activity / activity.sum()) for _ in range(2)
    )
    rare = np.flatnonzero(labels)
    if len(rare):
        among = (labels[sources] == 1) & (rng.random(num_edges) < 0.5)
        targets[among] = rng.choice(rare, int(among.sum()))
    role = rng.random(num_nodes) / labelled
    return Graph.from_arcs(
        sources,
        targets,
        num_nodes=num_nodes,
        features=np.hstack(columns).astype(np.float32),
        labels=labels,
        train_mask=role < 0.75,
        val_mask=(role >= 0.75) & (role < 0.85),
        test_mask=role >= 0.85,
        label_names=("common", "rare"),
        name="rare",
    )


def generate(
    *,
    num_nodes: int,
    mean_degree: float | None = None,
    num_arcs: int | None = None,
    num_features: int = 100,
    num_classes: int = 10,
    features: FeatureModel = "gaussian",
    seed: int = 0,
    name: str = "generated",
) -> Graph:
    """Generate an undirected graph of a given size from a degree-corrected block model.

    Args:
        num_nodes: number of nodes.
        mean_degree: mean degree, within a few percent.
        num_arcs: number of arcs (twice the edges) instead of the mean degree.
        num_features: number of feature columns.
        num_classes: number of classes; the largest has about twice the nodes of the smallest.
        features: ``"gaussian"`` (dense) or ``"profile"`` (sparse one-hot of five profile fields).
        seed: equal arguments and seeds give equal graphs and splits (75/10/15).
        name: for people.

    >>> graph = generate(num_nodes=500, mean_degree=10, num_features=8, num_classes=3)
    >>> graph.features.shape, graph.is_directed
    ((500, 8), False)
    """
    check_integer("num_nodes", num_nodes, at_least=2)
    if num_arcs is not None and mean_degree is None:
        mean_degree = check_integer("num_arcs", num_arcs, at_least=0) / num_nodes
    elif num_arcs is not None or mean_degree is None:
        raise InputError(
            "`mean_degree` or `num_arcs` must be given, one of them. Got both or none."
        )
    model = BlockModel(
        num_nodes=num_nodes,
        mean_degree=mean_degree,
        num_classes=num_classes,
        num_features=num_features,
        features=features,
        seed=seed,
    )
    return random_split(_in_memory(model, name), seed=seed)


def _in_memory(model: BlockModel, name: str) -> Graph:
    """Draw every piece of the model and put the pieces together."""
    dtype = np.int32 if model.num_nodes <= np.iinfo(np.int32).max else np.int64
    sources, targets, labels = [], [], []
    dense = np.empty(
        (model.num_nodes if model.features == "gaussian" else 0, model.num_features), np.float32
    )
    sparse = []
    for first in range(model.num_blocks):
        left = model.nodes(first)
        labels.append(left.labels)
        features = model.features_of(first, left.labels)
        if isinstance(features, np.ndarray):
            dense[left.first : left.first + len(features)] = features
        else:
            sparse.append(features)
        del features
        for second in range(first, model.num_blocks):
            right = left if second == first else model.nodes(second)
            start, end = model.edges(first, second, blocks=(left, right))
            sources.append(start.astype(dtype))
            targets.append(end.astype(dtype))
    # There is no other reference to this array, so the graph may share it.
    dense.flags.writeable = False
    source_ends = np.concatenate(sources)
    sources.clear()
    target_ends = np.concatenate(targets)
    targets.clear()
    return Graph.from_arcs(
        source_ends,
        target_ends,
        num_nodes=model.num_nodes,
        features=sp.vstack(sparse, format="csr") if sparse else dense,
        labels=np.concatenate(labels),
        label_names=tuple(f"class {number}" for number in range(model.num_classes)),
        name=name,
    )


class Field(NamedTuple):
    """One profile field: its correlation with the class, and its share of missing values."""

    name: str
    signal: float
    missing: float


FIELDS = (
    Field("status", 1.1, 0.03),
    Field("gender", 0.1, 0.08),
    Field("major", 0.5, 0.25),
    Field("minor", 0.4, 0.65),
    Field("housing", 1.1, 0.35),
)


class NodeBlock(NamedTuple):
    """The nodes of one block: their first position, labels, weights and communities."""

    first: int
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    by_community: NDArray[np.int64]
    reach: NDArray[np.float64]
    starts: NDArray[np.int64]

    def draw(self, communities: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one node of each given community, in proportion to the weights."""
        low, high = self.reach[self.starts[:-1]], self.reach[self.starts[1:]]
        aim = low[communities] + rng.random(len(communities)) * (high - low)[communities]
        place = np.searchsorted(self.reach, aim, side="right") - 1
        # Rounding may point at the end of the range, which belongs to the next community.
        np.minimum(place, self.starts[1:][communities] - 1, out=place)
        return self.by_community[place]


@dataclass(frozen=True)
class BlockModel:
    """The parameters of a generated graph; equal parameters give equal graphs.

    Attributes:
        num_nodes: number of nodes.
        mean_degree: mean degree, within a few percent.
        num_classes: number of communities and classes; the largest is twice the smallest.
        num_features: number of feature columns.
        features: ``"gaussian"`` (dense, around a centre per class) or ``"profile"`` (one-hot of
            profile fields with missing entries, sparse).
        homophily: fraction of the edges that are drawn inside a community.
        label_noise: fraction of the nodes whose label is not that of their community.
        spread: standard deviation of the logarithm of the weights: how heavy-tailed degrees are.
        rates: share of each class; None for shares that fall from the first class to the last.
        seed: of the experiment.

    >>> model = BlockModel(num_nodes=100, mean_degree=8, num_classes=3, num_features=4)
    >>> sources, targets = model.edges(0, 0)
    >>> bool((sources < targets).all()), model.num_blocks
    (True, 1)
    """

    num_nodes: int
    mean_degree: float
    num_classes: int
    num_features: int
    features: FeatureModel = "gaussian"
    homophily: float = 0.65
    label_noise: float = 0.12
    spread: float = 0.9
    rates: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("num_nodes", self.num_nodes, at_least=2)
        check_number("mean_degree", self.mean_degree, at_least=0, at_most=self.num_nodes - 1)
        check_integer("num_classes", self.num_classes, at_least=1, at_most=self.num_nodes)
        check_choice("features", self.features, ["gaussian", "profile"])
        lowest = 20 if self.features == "profile" else 1
        check_integer("num_features", self.num_features, at_least=lowest)
        check_number("homophily", self.homophily, at_least=0, at_most=1)
        check_number("label_noise", self.label_noise, at_least=0, at_most=1)
        check_number("spread", self.spread, at_least=0)
        if self.rates is not None:
            if len(self.rates) != self.num_classes:
                raise InputError(
                    f"`rates` must have one for each of {self.num_classes} classes. Got "
                    f"{len(self.rates)}."
                )
            for rate in self.rates:
                check_number("rates", rate, above=0, at_most=1)
        check_integer("seed", self.seed)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of nodes."""
        return -(-self.num_nodes // BLOCK_NODES)

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        """Cumulative share of the nodes in each community."""
        sizes = np.linspace(2, 1, self.num_classes) if self.rates is None else np.array(self.rates)
        shares: NDArray[np.float64] = np.cumsum(sizes) / sizes.sum()
        return shares

    def _pick(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        picked = np.searchsorted(self._shares, rng.random(count), side="right")
        return np.minimum(picked, self.num_classes - 1)

    def nodes(self, block: int) -> NodeBlock:
        """Draw the nodes of one block."""
        first = block * BLOCK_NODES
        if not 0 <= first < self.num_nodes:
            raise InputError(f"`block` must be below {self.num_blocks}. Got {block}.")
        count = min(BLOCK_NODES, self.num_nodes - first)
        rng = experiment_rng(self.seed, "nodes", block)
        communities = self._pick(rng, count)
        moved = rng.random(count) < self.label_noise
        labels = np.where(moved, self._pick(rng, count), communities)
        weights = rng.lognormal(0.0, self.spread, count)
        by_community = np.argsort(communities, kind="stable")
        starts = np.searchsorted(communities[by_community], np.arange(self.num_classes + 1))
        reach = np.concatenate([[0.0], np.cumsum(weights[by_community])])
        return NodeBlock(first, labels, weights, by_community, reach, starts)

    @cached_property
    def _moments(self) -> NDArray[np.float64]:
        """Sums of the weights, and of their squares, of each community in each block."""
        moments = np.zeros((2, self.num_blocks, self.num_classes))
        for block in range(self.num_blocks):
            nodes = self.nodes(block)
            squares = np.concatenate([[0.0], np.cumsum(nodes.weights[nodes.by_community] ** 2)])
            moments[0, block] = np.diff(nodes.reach[nodes.starts])
            moments[1, block] = np.diff(squares[nodes.starts])
        return moments

    @cached_property
    def _rates(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean number of edges per pair of communities, and each block's share of a community."""
        weight, square = self._moments.sum(axis=1)
        share = weight / weight.sum()
        mixing = self.homophily * np.diag(share) + (1 - self.homophily) * np.outer(share, share)
        present = np.where(weight > 0, weight, 1)
        wanted = self.num_nodes * self.mean_degree / 2 * mixing
        # Expected self-loops, and to second order pairs drawn twice: both are dropped later.
        per_pair = wanted / np.outer(present, present)
        lost = (np.diag(per_pair) * square).sum() + (per_pair**2 * np.outer(square, square)).sum()
        extra = min(lost / max(wanted.sum(), 1), 0.5)
        return wanted * (1 + extra), self._moments[0] / present

    def edges(
        self, first: int, second: int, *, blocks: tuple[NodeBlock, NodeBlock] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the edges between two blocks (``first <= second``), each once, smaller end first.

        Args:
            first: number of the block that holds the smaller ends.
            second: number of the block that holds the larger ends.
            blocks: the two blocks of nodes, if the caller has drawn them already.
        """
        left, right = blocks or (self.nodes(first), self.nodes(second))
        rates, shares = self._rates
        ways = 1 if first == second else 2
        rng = experiment_rng(self.seed, "edges", first, second)
        counts = rng.poisson(ways * rates * np.outer(shares[first], shares[second])).ravel()
        from_community, to_community = np.divmod(
            np.repeat(np.arange(self.num_classes**2), counts), self.num_classes
        )
        start, end = left.draw(from_community, rng), right.draw(to_community, rng)
        if first == second:
            start, end = np.minimum(start, end), np.maximum(start, end)
            start, end = start[start != end], end[start != end]
        pairs = np.unique(start * BLOCK_NODES + end)
        return left.first + pairs // BLOCK_NODES, right.first + pairs % BLOCK_NODES

    def features_of(self, block: int, labels: NDArray[np.int64]) -> Features:
        """Draw the features of the nodes of one block, given their labels."""
        rng = experiment_rng(self.seed, "features", block)
        if self.features == "gaussian":
            values = rng.standard_normal((len(labels), self.num_features), dtype=np.float32)
            values += self._centres[labels]
            return values
        fields = zip(FIELDS, self.field_sizes, strict=True)
        codes = np.stack([self._field(rng, field, size, labels) for field, size in fields], axis=1)
        given = codes >= 0
        offsets = np.cumsum((0, *self.field_sizes[:-1]))
        indptr = np.concatenate([[0], np.cumsum(given.sum(axis=1))])
        ones = np.ones(indptr[-1], dtype=np.float32)
        return sp.csr_array(
            (ones, (codes + offsets)[given], indptr), shape=(len(labels), self.num_features)
        )

    @cached_property
    def _centres(self) -> NDArray[np.float32]:
        rng = experiment_rng(self.seed, "centres")
        centres = rng.standard_normal((self.num_classes, self.num_features), dtype=np.float32)
        # Scaled so that features alone classify about half of the nodes with ten classes.
        centres *= np.float32(1.7 / np.sqrt(self.num_features))
        return centres

    @property
    def field_sizes(self) -> tuple[int, ...]:
        """Number of categories of each profile field; together ``num_features``."""
        each, rest = divmod(self.num_features - 8, 3)
        return (6, 2, each + (rest > 0), each + (rest > 1), each)

    def _field(
        self, rng: np.random.Generator, field: Field, size: int, labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Draw one profile field: few frequent categories, tilted by class; -1 where left empty."""
        tilt = experiment_rng(self.seed, "field", field.name)
        popularity = -np.log(np.arange(size) + 2.0)
        scores = popularity + field.signal * tilt.standard_normal((self.num_classes, size))
        probabilities = np.cumsum(np.exp(scores), axis=1)
        probabilities = probabilities / probabilities[:, -1:] + np.arange(self.num_classes)[:, None]
        # One search over all classes: class c owns the stretch from c to c + 1.
        code = np.searchsorted(
            probabilities.ravel(), labels + rng.random(len(labels)), side="right"
        )
        code = np.minimum(code - labels * size, size - 1)
        return np.where(rng.random(len(labels)) < field.missing, -1, code)
