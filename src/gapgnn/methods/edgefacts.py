"""Declared facts about the edges of the training graph: their types, and bounds of weights.

They are public, so they are saved with the model, and a graph to predict on must have the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gapgnn.errors import InputError
from gapgnn.graph import Graph

Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class EdgeFacts:
    """The edge types in their order, empty if there is only one, and the weight bounds of each.

    ``is_directed`` is that of the training graph; other graphs may differ in it.
    """

    edge_types: tuple[str, ...] = ()
    bounds: tuple[Bounds, ...] = (None,)
    is_directed: bool = False

    @classmethod
    def of(cls, graph: Graph) -> EdgeFacts:
        """Return the declared facts of a graph."""
        bounds = [
            (one.weight_bounds or (0.0, 1.0)) if one.is_weighted else None
            for one in graph.edge_types
        ]
        return cls(graph.edge_type_names, tuple(bounds), graph.is_directed)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON can hold them."""
        bounds = [None if pair is None else list(pair) for pair in self.bounds]
        return {"edge_types": list(self.edge_types), "bounds": bounds, "directed": self.is_directed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EdgeFacts:
        """Read facts back.

        >>> EdgeFacts.from_dict(EdgeFacts(("calls", "visits"), (None, (0.0, 9.0))).to_dict()).bounds
        (None, (0.0, 9.0))
        """
        bounds = [
            None if pair is None else (float(pair[0]), float(pair[1])) for pair in values["bounds"]
        ]
        is_directed = bool(values.get("directed", False))
        return cls(tuple(map(str, values["edge_types"])), tuple(bounds), is_directed)

    def check(self, graph: Graph) -> None:
        """Refuse a graph with other edge types or other weight bounds."""
        found = EdgeFacts.of(graph)
        if found.edge_types != self.edge_types:
            raise InputError(
                f"The graph must have the edge types of training, {_listed(self.edge_types)}. "
                f"Got {_listed(found.edge_types)}."
            )
        names = self.edge_types or ("edges",)
        for name, wanted, given in zip(names, self.bounds, found.bounds, strict=True):
            if wanted != given:
                raise InputError(
                    f"The weights of {name} must have the bounds of training, {_shown(wanted)}. "
                    f"Got {_shown(given)}."
                )


def _listed(edge_types: tuple[str, ...]) -> str:
    return ", ".join(edge_types) if edge_types else "a single one"


def _shown(bounds: Bounds) -> str:
    return "none" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"


def check_plain(graph: Graph, method: str) -> None:
    """Refuse a graph with weights or several edge types for a method that supports neither.

    >>> import numpy as np
    >>> check_plain(Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), weights=[1]), "SAGE")
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `graph` must have edges without weights for SAGE, which releases \
whether there is an edge and not how heavy it is. Got weights; use gap.
    """
    if graph.more_edge_types:
        raise InputError(
            f"`graph` must have one edge type for {method}. Got "
            f"{', '.join(graph.edge_type_names)}; use gap."
        )
    if graph.is_weighted:
        raise InputError(
            f"`graph` must have edges without weights for {method}, which releases whether there "
            "is an edge and not how heavy it is. Got weights; use gap."
        )
