"""Private edges released once, as a randomised graph: ARR, EdgeRand and LapGraph.

Everything computed from the released graph afterwards is post-processing (privacy page, section 5).
Relation ``undirected`` or ``directed``: two neighbours differ in one bit, one per unordered or per
ordered pair of nodes (:class:`Cells`), so counts have sensitivity 1, or 2 where an edge is two
bits. All three are pure: epsilon is what was asked, delta is 0.

``arr``
    Asymmetric randomised response (Imola, Murakami and Chaudhuri 2021). The number of edges is
    released with Laplace noise for a tenth of the budget; divided by the number of cells and
    clamped to [0, 1] it is the noisy density. The rest pays for randomised response on every bit,
    and the ones that come out are thinned so that the expected density is the noisy one. Thinning
    is post-processing of the response, which is therefore the event.
``edgerand``
    Randomised response on every bit (Wu et al. 2021). The output is dense by nature.
``lapgraph``
    Laplace noise on every bit, of which the T largest are kept (Wu et al. 2021); T is the number of
    edges with Laplace noise, for a hundredth of the budget.

Work and memory are O(edges in + edges out). A response needs no list of the absent edges: every
cell, whatever its bit, comes up with probability ``add``, and each true edge once more with
probability ``(keep - add) / (1 - add)``; together that is ``keep``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_choice, check_number
from gapgnn.graph import Graph, csr
from gapgnn.privacy import RelationLike, Release, links_of, observe
from gapgnn.privacy.accounting import Event, Laplace, RandomisedResponse
from gapgnn.privacy.mechanisms.draws import Coins
from gapgnn.privacy.mechanisms.noise import NoiseSource, SafeOrFast
from gapgnn.rng import NoiseKey

Places = NDArray[np.int64]
# Share of the budget that pays for the number of edges; LapGraph's is that of its authors.
COUNT_SHARE = {"arr": 0.1, "edgerand": 0.0, "lapgraph": 0.01}
PERTURBATIONS = tuple(COUNT_SHARE)
# Peak memory per released edge while the adjacency is built (measured: benchmarks/edges.py).
BYTES_PER_EDGE = 80
GIB = 2**30
# LapGraph's candidates exceed T by this many standard deviations: fewer has probability 1e-15.
_DEVIATIONS = 8.0
_ENDS_BLOCK = 1 << 22


@dataclass(frozen=True)
class Cells:
    """Which pairs of nodes carry one private bit each ("is there an edge?"), and their numbers.

    Cells are numbered from 0 without gaps, so that a place can be drawn as a number and no table of
    all cells is ever held. Self-loops carry no bit: they are neither read nor released (privacy
    page, section 5).

    Attributes:
        num_nodes: n.
        is_paired: one bit per unordered pair, n (n - 1) / 2 in all; otherwise one per ordered pair.
        bits_per_edge: how many bits change between two neighbours.

    >>> Cells(4, is_paired=True).count, Cells(4, is_paired=False).count
    (6, 12)
    """

    num_nodes: int
    is_paired: bool
    bits_per_edge: int = 1

    @classmethod
    def of(cls, relation: RelationLike, *, num_nodes: int, is_directed: bool) -> Cells:
        """Return the cells that a relation of edge level protects.

        ``undirected`` on a symmetric graph has one bit per pair. ``directed`` has one bit per
        ordered pair, also on a symmetric graph. ``undirected`` on a directed graph protects both
        arcs of a pair at once, so two bits share the budget.

        >>> Cells.of("directed", num_nodes=3, is_directed=False).count
        6
        """
        links = links_of(relation)
        if links.count > 1:
            raise InputError(
                f"`relation` must be directed or undirected to randomise edges: {links.count} bits "
                f"would share epsilon, and nothing be left of the graph. Got '{links}'. Use gap."
            )
        is_whole_edge = not links.are_arcs
        return cls(
            num_nodes,
            is_paired=is_whole_edge and not is_directed,
            bits_per_edge=2 if is_whole_edge and is_directed else 1,
        )

    @property
    def count(self) -> int:
        """Number of cells."""
        ordered = self.num_nodes * (self.num_nodes - 1)
        return ordered // 2 if self.is_paired else ordered

    def number(self, sources: NDArray[Any], targets: NDArray[Any]) -> Places:
        """Return the number of each cell; a pair has the same one from both ends.

        Pairs are laid out by the distance ``k`` from one end to the other around a circle of all
        nodes, up to half way: cell ``(k - 1) n + u`` is the pair of ``u`` and ``u + k``.
        """
        n = self.num_nodes
        u, v = sources.astype(np.int64), targets.astype(np.int64)
        if not self.is_paired:
            return u * (n - 1) + v - (v > u)
        low, high = np.minimum(u, v), np.maximum(u, v)
        forward = high - low
        is_short = 2 * forward <= n
        return np.where(is_short, (forward - 1) * n + low, (n - forward - 1) * n + high)

    def ends(self, places: Places) -> tuple[Places, Places]:
        """Return source and target of each cell, by its number.

        >>> cells = Cells(5, is_paired=True)
        >>> numbers = np.arange(cells.count)
        >>> bool((cells.number(*cells.ends(numbers)) == numbers).all())
        True
        """
        n = self.num_nodes
        if self.is_paired:
            distance, u = np.divmod(places, n)
            return u, (u + distance + 1) % n
        u, rest = np.divmod(places, n - 1)
        return u, rest + (rest >= u)

    def of_graph(self, graph: Graph) -> Places:
        """Return the numbers of the cells whose bit is 1 in a graph, each once."""
        sources = np.repeat(
            np.arange(self.num_nodes, dtype=graph.indices.dtype), np.diff(graph.indptr)
        )
        wanted = sources < graph.indices if self.is_paired else sources != graph.indices
        return self.number(sources[wanted], graph.indices[wanted])


@dataclass(frozen=True)
class PerturbedEdges:
    """A released graph over the same nodes.

    Attributes:
        indptr: CSR row pointers of the adjacency lists.
        indices: targets, sorted inside each list.
        is_symmetric: whether every arc has its reverse: one bit per pair was released.
        noisy_edges: the released number of edges before clamping, None if there was none.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    is_symmetric: bool
    noisy_edges: float | None

    def in_lists(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return who writes to each node: the transpose, where it is not equal."""
        if self.is_symmetric:
            return self.indptr, self.indices
        columns = csr.matrix(self.indptr, self.indices).tocsc()
        return columns.indptr, columns.indices


def perturbation_events(
    perturbation: str, epsilon: float, *, bits_per_edge: int = 1
) -> tuple[Event, ...]:
    """Return what releasing a graph by one of the mechanisms costs: ``epsilon`` in all, delta 0.

    >>> [type(event).__name__ for event in perturbation_events("arr", 2.0)]
    ['Laplace', 'RandomisedResponse']
    >>> events = perturbation_events("lapgraph", 2.0)
    >>> round(sum(event.pair("directed").pure_epsilon for event in events), 12)
    2.0
    """
    on_count, on_bits = _split(perturbation, epsilon)
    if perturbation == "lapgraph":
        return (
            Laplace(1 / on_count, label="number of edges"),
            Laplace(1 / on_bits, label="bit of every cell"),
        )
    response = RandomisedResponse.symmetric(
        on_bits / bits_per_edge, count=bits_per_edge, label="bit of every cell"
    )
    if perturbation == "edgerand":
        return (response,)
    return (Laplace(1 / on_count, label="density of the graph"), response)


def count_scale(perturbation: str, epsilon: float, cells: Cells) -> float | None:
    """Return the scale of the noise on the number of edges; None where it is not released.

    >>> cells = Cells(10, is_paired=True)
    >>> count_scale("arr", 2.0, cells), count_scale("edgerand", 2.0, cells)
    (5.0, None)
    """
    on_count, _ = _split(perturbation, epsilon)
    return cells.bits_per_edge / on_count if on_count else None


def check_output_fits(
    perturbation: str, epsilon: float, cells: Cells, *, memory_limit: float
) -> None:
    """Refuse EdgeRand where its output would not fit, from public numbers alone.

    Args:
        perturbation: only ``edgerand`` can outgrow its input.
        epsilon: the budget.
        cells: how many bits there are.
        memory_limit: in GiB.

    >>> check_output_fits("edgerand", 1.0, Cells(10**6, is_paired=True), memory_limit=16)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `perturbation` edgerand would release about 1.3e+11 edges ...
    """
    check_number("memory_limit", memory_limit, above=0)
    if perturbation != "edgerand":
        return
    _, add = response_probabilities(_split(perturbation, epsilon)[1] / cells.bits_per_edge)
    edges = cells.count * add
    needed = edges * BYTES_PER_EDGE / GIB
    if needed > memory_limit:
        raise InputError(
            f"`perturbation` edgerand would release about {edges:.2g} edges and need {needed:.3g} "
            f"GiB, over the limit of {memory_limit:g}. Use arr or a larger epsilon."
        )


# Below this a noisy density counts as zero: products of denormal numbers lose the ratio of the two
# probabilities, which is the guarantee.
SMALLEST_DENSITY = 1e-200


def response_probabilities(epsilon: float, density: float | None = None) -> tuple[float, float]:
    """Return the probabilities that a 1 and that a 0 come out as 1.

    Without a density this is randomised response: ``p = 1 / (1 + e^-epsilon)`` and ``1 - p``. With
    one, both are thinned by the same factor, so that a graph of that density keeps it on average
    (never more than the response itself gives).

    >>> keep, add = response_probabilities(2.0, density=0.01)
    >>> round(0.01 * keep + 0.99 * add, 6), round(math.log(keep / add), 6)
    (0.01, 2.0)
    """
    keep = 1 / (1 + math.exp(-epsilon))
    add = math.exp(-epsilon) * keep
    if density is None:
        return keep, add
    check_number("density", density, at_least=0, at_most=1)
    if density < SMALLEST_DENSITY:
        return 0.0, 0.0
    thinning = min(1.0, density / (density * keep + (1 - density) * add))
    return keep * thinning, add * thinning


def perturb_edges(
    graph: Graph,
    *,
    perturbation: str,
    epsilon: float,
    relation: RelationLike,
    key: NoiseKey,
    noise: SafeOrFast = "safe",
    memory_limit: float = 16.0,
) -> PerturbedEdges:
    """Release a randomised copy of a graph's edges.

    Relation ``undirected`` or ``directed``, sensitivity 1 bit (2 for ``undirected`` on a directed
    graph), cost :func:`perturbation_events`; privacy page, section 5. The coins' total variation
    from the stated probabilities is at most 2**-64 per true edge and 2**-51 per cell
    (:class:`~gapgnn.privacy.mechanisms.draws.Coins`).

    Args:
        graph: the private graph. Self-loops are ignored.
        perturbation: ``arr``, ``edgerand`` or ``lapgraph``.
        epsilon: the whole budget, per protected edge.
        relation: resolved (not ``auto``).
        key: the secret of this release; use it once.
        noise: ``safe`` for releases, ``fast`` for experiments.
        memory_limit: GiB that EdgeRand may need.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = social_graph(num_nodes=300, mean_degree=10)
    >>> released = perturb_edges(graph, perturbation="arr", epsilon=4.0, relation="undirected",
    ...                          key=NoiseKey.fresh())
    >>> released.is_symmetric, len(released.indptr)
    (True, 301)
    """
    check_number("epsilon", epsilon, above=0)
    cells = Cells.of(relation, num_nodes=graph.num_nodes, is_directed=graph.is_directed)
    check_output_fits(perturbation, epsilon, cells, memory_limit=memory_limit)
    release = _Release(
        cells,
        count_scale(perturbation, epsilon, cells),
        _split(perturbation, epsilon)[1],
        Coins(key.derive("cells"), noise=noise),
        NoiseSource(key.derive("cells"), noise=noise),
        NoiseSource(key.derive("count"), noise=noise),
    )
    true = cells.of_graph(graph)
    places, noisy_edges = getattr(release, perturbation)(true)
    seen = Release("edges", true, 0.0, float(cells.bits_per_edge), measure="bits")
    places, noisy_edges = observe(lambda: seen, (places, noisy_edges))
    sources, targets = _ends(cells, places)
    indptr, indices = csr.build(sources, targets, cells.num_nodes, symmetric=cells.is_paired)
    return PerturbedEdges(indptr, indices, cells.is_paired, noisy_edges)


def _split(perturbation: str, epsilon: float) -> tuple[float, float]:
    """Return the parts of the budget for the number of edges and for the bits."""
    share = COUNT_SHARE[check_choice("perturbation", perturbation, PERTURBATIONS)]
    return epsilon * share, epsilon - epsilon * share


@dataclass(frozen=True)
class _Release:
    """One release; ``true`` is always the numbers of the cells whose bit is 1."""

    cells: Cells
    scale_of_count: float | None
    on_bits: float
    coins: Coins
    cell_noise: NoiseSource
    count_noise: NoiseSource

    def arr(self, true: Places) -> tuple[Places, float | None]:
        noisy = self._noisy_count(true)
        density = min(1.0, max(0.0, noisy / max(1, self.cells.count)))
        return self._respond(true, *response_probabilities(self._per_bit, density)), noisy

    def edgerand(self, true: Places) -> tuple[Places, float | None]:
        return self._respond(true, *response_probabilities(self._per_bit)), None

    def lapgraph(self, true: Places) -> tuple[Places, float | None]:
        noisy = self._noisy_count(true)
        wanted = min(self.cells.count, max(0, round(noisy)))
        if wanted == 0:
            return true[:0], noisy
        scale = self.cells.bits_per_edge / self.on_bits
        values = 1 + self.cell_noise.laplace_unrounded(len(true), scale, "true")
        tail = self._tail_of_candidates(np.sort(values), wanted, scale)
        zeros = self.coins.heads(self.cells.count, tail, "zeros")
        others = self.cell_noise.laplace_above(len(zeros), scale, tail, "zeros")
        # A true cell has its own value: what the sweep over all cells drew for it is dropped.
        absent = np.isin(zeros, true, assume_unique=True, invert=True)
        places = np.concatenate([true, zeros[absent]])
        values = np.concatenate([values, others[absent]])
        if len(places) > wanted:
            places = places[np.argpartition(values, -wanted)[-wanted:]]
        return places, noisy

    @property
    def _per_bit(self) -> float:
        return self.on_bits / self.cells.bits_per_edge

    def _noisy_count(self, true: Places) -> float:
        """Release the number of edges: sensitivity one per bit that neighbours differ in.

        Over the number of cells it is the density, whose sensitivity is 1 / (number of cells).
        """
        count = torch.tensor([float(len(true))], dtype=torch.float64)
        assert self.scale_of_count is not None
        return float(self.count_noise.add_laplace(count, self.scale_of_count, "number of edges"))

    def _respond(self, true: Places, keep: float, add: float) -> Places:
        """Return the cells that come out as 1; a cell may be listed twice."""
        background = self.coins.heads(self.cells.count, add, "background")
        extra = (keep - add) / (1 - add)
        kept = true[self.coins.each(len(true), extra, "true")]
        return np.concatenate([background, kept])

    def _tail_of_candidates(self, values: NDArray[np.float64], wanted: int, scale: float) -> float:
        """Return an upper-tail probability of the zeros that surely leaves enough candidates.

        Looking at the true cells' noisy values first is allowed: the zeros' noise is independent of
        them, and whatever is above the threshold is drawn exactly.
        """
        zeros = self.cells.count - len(values)

        def enough(threshold: float) -> bool:
            above = len(values) - int(np.searchsorted(values, threshold, side="right"))
            expected = zeros * _laplace_tail(threshold / scale)
            return above + expected - _DEVIATIONS * math.sqrt(expected) - 40 >= wanted

        threshold = _largest(enough, -60 * scale, 1 + 60 * scale)
        return 1.0 if threshold is None else _laplace_tail(threshold / scale)


def _laplace_tail(x: float) -> float:
    """Return the probability that a Laplace variable of scale 1 exceeds ``x``."""
    return 0.5 * math.exp(-x) if x > 0 else 1 - 0.5 * math.exp(x)


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return nearly the largest x for which a condition holds that fails further up, or None."""
    if not holds(low):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _ends(cells: Cells, places: Places) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends of many cells in a narrow index type, block by block."""
    dtype = np.int32 if cells.num_nodes <= csr.INT32_MAX else np.int64
    sources, targets = np.empty(len(places), dtype), np.empty(len(places), dtype)
    for start in range(0, len(places), _ENDS_BLOCK):
        part = slice(start, start + _ENDS_BLOCK)
        sources[part], targets[part] = cells.ends(places[part])
    return sources, targets
