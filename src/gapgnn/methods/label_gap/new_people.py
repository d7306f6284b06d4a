"""Predictions for nodes added after training, from their edges into the known graph.

Below node level. The known nodes are those of the training graph, each of which has a released row
in every hop. A new node's row of hop k is the sum of its neighbours' messages in hop k. These
follow from features and labels, which are public, and from released rows of hops 0 to k - 1: those
of known nodes from the training, those of new nodes from this release. So only the *new edges*,
those with at least one new end, are read. No row of a known node is released again: a new edge also
contributes to the sum of a known node, which is discarded.

**Neighbouring relation and sensitivity.** The relation of the training, over graphs of new edges:
two inputs are neighbours if they differ in one new edge (or k of them). A hop releases the rows of
the new nodes. Omitting rows does not increase a distance, so the sensitivity is at most that of a
whole hop: 1 for one arc, sqrt(2) for an edge between two new nodes, 1 for an edge between a new and
a known node. K hops are charged like those of any other graph, at the delta of the training, to all
nodes with a new edge. Which ids are new is public, as ids are.

**What is free.** Under ``own="record"`` a prediction reads the exact sum of messages over the
node's own new edges. Nothing is released, and the prediction is for the node's own person only
(joint differential privacy; privacy page, section 1). The messages of other new nodes then follow
from their features and labels, not from their edges.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError
from gapgnn.graph import Graph
from gapgnn.graph.store import StoredGraph
from gapgnn.methods import ReleasedHops, alike, new_among
from gapgnn.privacy.ledger import People

_MASKS = ("train_mask", "val_mask", "test_mask")
_REST = "Give the rows of the known people in the node table too."


@dataclass(frozen=True)
class NewPeople:
    """New nodes together with all nodes of the training graph, and the new edges only.

    Attributes:
        graph: the new nodes, then the known ones in the order of their released rows.
        count: number of new nodes.
        known: released rows of the known nodes.
        named: positions of all new nodes, and of all nodes with a new edge.
    """

    graph: Graph
    count: int
    known: ReleasedHops
    named: NDArray[np.int64]

    @classmethod
    def beside(cls, graph: Graph, known: ReleasedHops, *, needs_rows: bool) -> NewPeople:
        """Combine the new nodes of a graph with the known ones; edges of known nodes are dropped.

        Args:
            graph: with rows of the new nodes, and optionally of known ones.
            known: of the training graph.
            needs_rows: whether the messages of known nodes need their features.
        """
        if isinstance(graph, StoredGraph):
            raise InputError("new people must be in a graph in memory. Got a store.")
        is_new = new_among(graph, known)
        if not is_new.any():
            raise InputError(
                "the graph must have people who were not in the graph of training. Got none: "
                "leave out `new_people`."
            )
        now, before = alike(graph.ids, known.ids)
        count, by_name = int(is_new.sum()), np.argsort(before)
        places = np.empty(len(now), dtype=np.int64)
        places[is_new] = np.arange(count)
        places[~is_new] = count + _found(before, by_name, now[~is_new])
        parts, named = [], [np.arange(count)]
        for edges in graph.edge_types:
            arcs = _new_arcs(edges, places, count, before, by_name, needs_rows=needs_rows)
            named.append(np.unique(arcs[0]))
            named.append(np.unique(arcs[1]))
            parts.append(_as_lists(arcs, count + len(before)))
        rows = _rows(graph, places, count + len(before))
        rows["ids"] = np.concatenate([now[is_new], before])
        nothing = {"dangling_indptr": None, "dangling_targets": None}
        empty = {
            "features": np.zeros((len(rows["ids"]), 0), dtype=np.float32),
            "labels": np.full(len(rows["ids"]), -1),
            **{mask: np.zeros(len(rows["ids"]), dtype=np.bool_) for mask in _MASKS},
        }
        more = tuple(
            Graph._checked(
                **{
                    **edges._parts(),
                    **empty,
                    "ids": rows["ids"],
                    **lists,
                    **nothing,
                    "more_edge_types": (),
                }
            )
            for edges, lists in zip(graph.more_edge_types, parts[1:], strict=True)
        )
        whole = {**graph._parts(), **rows, **parts[0], **nothing, "more_edge_types": more}
        return cls(Graph._checked(**whole), count, known, np.unique(np.concatenate(named)))

    @property
    def ids(self) -> NDArray[Any]:
        """Return the ids of the new nodes."""
        return self.graph.ids[: self.count]

    @property
    def people(self) -> People:
        """Return the people charged for the release: those with a new edge, and all new nodes."""
        text = f"new people beside {self.known.release}: {self.graph.fingerprint}"
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        ids = self.graph.ids[self.named]
        return People(ids, fingerprint, self.graph.population, self.graph.name)

    def rows_of_known(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the released rows of the known nodes, hop 0 first."""
        return tuple(hop.to(device) for hop in self.known.hops)

    def with_nothing_released(self, device: torch.device) -> list[Tensor]:
        """Return the rows of all nodes in each hop from 1, with zeros for new nodes."""
        return [
            torch.cat([hop.new_zeros(self.count, hop.shape[-1]), hop]).to(device).unsqueeze(0)
            for hop in self.known.hops[1:]
        ]


def _new_arcs(
    edges: Graph,
    places: NDArray[np.int64],
    count: int,
    before: NDArray[Any],
    by_name: NDArray[np.int64],
    *,
    needs_rows: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]:
    """Return sources and targets of the arcs with a new end, as positions, and their weights."""
    owners = np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))
    sources, targets = places[owners], places[edges.indices]
    is_read = (sources < count) | (targets < count)
    sources, targets = sources[is_read], targets[is_read]
    weights = None if edges.weights is None else edges.weights[is_read]
    if edges.dangling_indptr is None or edges.dangling_targets is None:
        return sources, targets, weights
    owners = places[np.repeat(np.arange(edges.num_nodes), np.diff(edges.dangling_indptr))]
    names, _ = alike(edges.dangling_targets, before)
    is_read = (owners < count) & np.isin(names, before)
    if not is_read.any():
        return sources, targets, weights
    why = {
        "edges have a direction, and those that arrive from them are in their lists": (
            edges.is_directed
        ),
        "edges have amounts, which are not kept of entries without a row": weights is not None,
        "they send the predictions of the feature model": needs_rows,
    }
    for reason, is_so in why.items():
        if is_so:
            raise InputError(
                f"the graph must have a row for every known person that a new one has an edge to, "
                f"because {reason}. Got {int(is_read.sum())} entries without. {_REST}"
            )
    listed = count + _found(before, by_name, names[is_read])
    owners = owners[is_read]
    return (
        np.concatenate([sources, owners, listed]),
        np.concatenate([targets, listed, owners]),
        None,
    )


def _as_lists(
    arcs: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None], count: int
) -> dict[str, Any]:
    sources, targets, weights = arcs
    order = np.lexsort((targets, sources))
    counts = np.bincount(sources, minlength=count)
    return {
        "indptr": np.concatenate([[0], np.cumsum(counts)]),
        "indices": targets[order].astype(np.int32 if count < 2**31 else np.int64),
        "weights": None if weights is None else weights[order],
    }


def _rows(graph: Graph, places: NDArray[np.int64], count: int) -> dict[str, Any]:
    """Return node data of a graph at given positions among ``count`` nodes; others are empty."""
    to_places = sp.csr_array(
        (np.ones(len(places), dtype=np.float32), (places, np.arange(len(places)))),
        shape=(count, len(places)),
    )
    rows: dict[str, Any] = {"features": to_places @ graph.features}
    rows["labels"] = np.full(count, -1, dtype=np.int64)
    rows["labels"][places] = graph.labels
    for mask in _MASKS:
        rows[mask] = np.zeros(count, dtype=np.bool_)
        rows[mask][places] = getattr(graph, mask)
    return rows


def _found(
    before: NDArray[Any], by_name: NDArray[np.int64], names: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the position in ``before`` of each name; all of them occur there."""
    positions: NDArray[np.int64] = by_name[np.searchsorted(before, names, sorter=by_name)]
    return positions
