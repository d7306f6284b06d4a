"""Transforms for PyG: adjacency lists of bounded length, and splits by a hash of ids.

Both do to a PyG ``Data`` (or to every edge type of a ``HeteroData``) what the library does to its
own graphs, so that a model in plain PyG can keep the rules on which a node-level guarantee rests:
what is drawn for a person is a function of that person's id and own record, and of nobody else
(privacy page, sections 1 and 2). A transform releases nothing and charges nothing: by itself it is
no guarantee.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import DataError, InputError, check_integer, check_number
from gapgnn.graph import csr
from gapgnn.graph.canonical import as_names
from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import MASKS, Graph
from gapgnn.graph.people import KEY_BYTES, roles
from gapgnn.rng import NoiseKey

with warnings.catch_warnings():
    # PyG scripts its models on import, which recent torch versions call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.transforms import BaseTransform


class BoundDegree(BaseTransform):  # type: ignore[misc]
    """Keep at most ``max_degree`` entries of each node's adjacency list, by a keyed hash.

    The list of ``u`` are the targets of the arcs that start at ``u``. An entry stays if the keyed
    hash of (id of u, id of the target) is among the smallest of that list, so nobody's list changes
    when somebody else leaves or comes, and one record writes to at most ``max_degree`` rows of a
    sum over neighbours (privacy page, section 1). Repeated arcs count once, and so does an arc to
    oneself. Attributes of arcs go with their arcs. The graph has a direction afterwards.

    Args:
        max_degree: D, at least 1.
        key: at least 16 secret bytes; left out: fresh ones, the same for every call. Who knows the
            key can choose which of their own entries stay.

    >>> from torch_geometric.data import Data
    >>> hub = torch.stack([torch.zeros(9, dtype=torch.long), torch.arange(1, 10)])
    >>> cut = BoundDegree(3)(Data(x=torch.eye(10), edge_index=hub))
    >>> cut.edge_index.shape, BoundDegree(3)
    (torch.Size([2, 3]), BoundDegree(max_degree=3))
    """

    def __init__(self, max_degree: int, *, key: bytes | None = None) -> None:
        self.max_degree = check_integer("max_degree", max_degree, at_least=1)
        if key is not None and len(key) < KEY_BYTES:
            raise InputError(f"`key` must have at least {KEY_BYTES} bytes. Got {len(key)}.")
        self._key = NoiseKey.fresh() if key is None else NoiseKey(key)

    def forward(self, data: Any) -> Any:
        """Return the data with cut lists."""
        if not hasattr(data, "edge_types"):
            self._cut(data, data, self._key)
            return data
        for edge_type in data.edge_types:
            source, _, target = edge_type
            if source != target:
                raise DataError(
                    f"`data` must have edges within one node type. Got {edge_type!r}: lists of "
                    "other nodes have no ids of their own node type."
                )
            self._cut(data[edge_type], data[source], self._key.derive("edge type", *edge_type))
        return data

    def _cut(self, arcs: Any, nodes: Any, key: NoiseKey) -> None:
        """Cut the lists of one edge type in place."""
        if arcs.get("edge_index") is None:
            raise DataError("`data` must have arcs in `edge_index`. Got none.")
        # As conversions read it: of the edge type, or else of its nodes.
        dangling = arcs.get("dangling", nodes.get("dangling"))
        kept = _kept(arcs.edge_index, nodes, dangling, self.max_degree, key)
        for name in [name for name in arcs.keys() if arcs.is_edge_attr(name)]:  # noqa: SIM118
            arcs[name] = arcs[name][..., kept] if name == "edge_index" else arcs[name][kept]
        # What a conversion to a graph would otherwise infer from the arcs.
        arcs.directed = True

    def __repr__(self) -> str:
        return f"BoundDegree(max_degree={self.max_degree})"


class HashSplit(BaseTransform):  # type: ignore[misc]
    """Split labelled nodes into training, validation and test nodes by a public hash of their ids.

    The role of a node is a function of (seed, id): it stays when other nodes come or leave, as
    node-level privacy requires, and is that of :func:`gapgnn.random_split`. Shares hold in
    expectation.

    Args:
        seed: of the experiment.
        train: share of the labelled nodes to train on.
        val: share to validate on; the rest is for testing.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.eye(40), y=torch.arange(40) % 2, edge_index=torch.empty(2, 0).long())
    >>> split = HashSplit(seed=0)(data)
    >>> int(split.train_mask.sum() + split.val_mask.sum() + split.test_mask.sum())
    40
    """

    def __init__(self, *, seed: int = 0, train: float = 0.75, val: float = 0.10) -> None:
        self.seed = check_integer("seed", seed, at_least=0)
        self.train = check_number("train", train, above=0, at_most=1)
        self.val = check_number("val", val, at_least=0, at_most=1)
        if self.train + self.val > 1 + 1e-9:
            raise InputError(f"`train` and `val` must sum to at most 1. Got {train} and {val}.")

    def forward(self, data: Any) -> Any:
        """Return the data with masks of every node type that has labels."""
        labelled = [nodes for nodes in data.node_stores if nodes.get("y") is not None]
        if not labelled:
            raise DataError("`data` must have labels `y` to be split. Got none.")
        for nodes in labelled:
            ids = _ids_of(nodes)
            if nodes.y.numel() != len(ids):
                raise DataError(
                    f"`y` must have one entry per node ({len(ids)}). Got shape "
                    f"{tuple(nodes.y.shape)}."
                )
            found = torch.from_numpy(roles(ids, seed=self.seed, train=self.train, val=self.val))
            for role, name in enumerate(MASKS):
                nodes[name] = (found == role).to(nodes.y.device) & (nodes.y.flatten() >= 0)
        return data

    def __repr__(self) -> str:
        return f"HashSplit(seed={self.seed}, train={self.train}, val={self.val})"


def _ids_of(nodes: Any) -> NDArray[Any]:
    """Return the ids of nodes: those they carry, or their positions."""
    ids = nodes.get("ids")
    if ids is None:
        return np.arange(nodes.num_nodes)
    return as_names("ids", ids.cpu().numpy() if isinstance(ids, Tensor) else ids)


def _kept(arcs: Tensor, nodes: Any, dangling: Any, max_degree: int, key: NoiseKey) -> Tensor:
    """Return which arcs stay, once each."""
    ids = _ids_of(nodes)
    sources, targets = arcs.detach().cpu().numpy()
    graph = Graph.from_arcs(
        sources,
        targets,
        num_nodes=len(ids),
        features=np.zeros((len(ids), 1), dtype=np.float32),
        ids=ids,
        directed=True,
        self_loops="keep",
        dangling=dangling,
    )
    lists = bound_out_degrees(graph, max_degree, key)
    stays = csr.sources(lists.indptr, np.int64) * len(ids) + lists.indices
    pairs = sources.astype(np.int64) * len(ids) + targets
    kept = np.isin(pairs, stays)
    # Of arcs that are repeated the first.
    is_first = np.zeros(len(pairs), dtype=np.bool_)
    is_first[np.unique(pairs, return_index=True)[1]] = True
    return torch.from_numpy(kept & is_first).to(arcs.device)
