"""What a session released, and on which graph: the part of a card that no method can word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gapgnn.graph import Graph, Wording

if TYPE_CHECKING:
    from gapgnn.privacy import Guarantee, Plan, PlannedHops
    from gapgnn.privacy.ledger import Charge


@dataclass(frozen=True, kw_only=True)
class ReleasedRun:
    """A run as its session carried it out.

    Attributes:
        promise: what is promised, with the events that were released.
        hops: how the released hops aggregated.
        charge: what the ledger answered; None where nothing was charged.
        noise: ``safe`` or ``fast``.
        is_seeded: whether the noise is predictable.
        dataset: name of the graph.
        wording: what the user calls people and edges.
        is_symmetric: whether the graph stores every edge as two arcs.
        edge_types: names of several edge types; empty where there is one.
        is_weighted: whether edges have weights.
        longest_list: largest out-degree of the graph; None where it must stay secret.
    """

    promise: Guarantee
    hops: Sequence[PlannedHops] = ()
    charge: Charge | None = None
    noise: str = "safe"
    is_seeded: bool = False
    dataset: str = ""
    wording: Wording = field(default_factory=Wording)
    is_symmetric: bool = False
    edge_types: Sequence[str] = ()
    is_weighted: bool = False
    longest_list: int | None = None

    @classmethod
    def of(
        cls, graph: Graph, plan: Plan[Any], promise: Guarantee, made: Sequence[str], **session: Any
    ) -> ReleasedRun:
        """Return the run of a plan on a graph.

        Args:
            graph: that was read.
            plan: that was carried out.
            promise: what is promised, with the events that were released.
            made: names of the events that were released.
            session: charge and noise.
        """
        hops = [one for one in plan.hops.values() if one.event in made]
        types = graph.edge_types
        is_cut = any(one.max_degree is not None for one in hops)
        return cls(
            promise=promise,
            hops=tuple(hops),
            dataset=graph.name,
            wording=graph.wording,
            is_symmetric=not graph.is_directed,
            edge_types=graph.edge_type_names,
            is_weighted=any(one.is_weighted for one in types),
            longest_list=max(int(one.out_degrees.max()) for one in types) if is_cut else None,
            **session,
        )

    @property
    def max_degree(self) -> int | None:
        """The bound that adjacency lists were cut to at node level, if any."""
        bounds = [one.max_degree for one in self.hops if one.max_degree is not None]
        return bounds[0] if bounds and self.promise.level == "node" else None

    @property
    def protects(self) -> str:
        """With several edge types, whether neighbours differ in ``each`` or ``any`` of them."""
        is_each = [one.protects == "each" for one in self.hops]
        is_node = self.promise.level == "node"
        return "each" if is_node or (is_each and all(is_each)) else "any"

    @property
    def is_symmetrised(self) -> bool:
        """Whether messages travelled along arcs and against them."""
        return any(one.is_symmetrised for one in self.hops)

    @property
    def with_union(self) -> bool:
        """Whether sums over the union of the edge types were released."""
        return any(one.with_union for one in self.hops)

    def notion(self, *, reads_edges: bool) -> str | None:
        """Return what leaves with a person at node level (privacy page, section 1).

        ``own record``: entries that name the person stay in the adjacency lists of others.
        ``strict``: they go too. That holds where no list had to be cut. It does not hold for
        degree-normalised messages: a list that loses an entry makes its other messages longer.
        """
        if self.promise.level != "node" or not reads_edges:
            return None
        if self.max_degree is None or self.longest_list is None:
            return "own record"
        return "strict" if self.longest_list <= self.max_degree else "own record"
