"""The cells of an adjacency that carry one private bit each, and their numbers.

Randomising edges treats "is there an edge?" as one bit per cell. Cells are numbered from 0 without
gaps, so that a place can be drawn as a number and no table of all cells is ever held. Self-loops
carry no bit: they are neither read nor released (privacy page, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_choice
from gapgnn.graph import Graph

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Which pairs of nodes carry a bit.

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
    def of(cls, relation: str, *, num_nodes: int, is_directed: bool) -> Cells:
        """Return the cells that a relation of edge level protects.

        ``undirected`` on a symmetric graph has one bit per pair. ``directed`` has one bit per
        ordered pair, also on a symmetric graph. ``undirected`` on a directed graph protects both
        arcs of a pair at once, so two bits share the budget.

        >>> Cells.of("directed", num_nodes=3, is_directed=False).count
        6
        """
        check_choice("relation", relation, ("directed", "undirected"))
        is_whole_edge = relation == "undirected"
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
