"""Graphs, modules and neighbours for tests of DP-SGD on sub-graphs."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    TransformerConv,
)

from gapgnn.graph import Graph, RootedSubgraphs, bound_out_degrees
from gapgnn.privacy.dpsgd import PlainParameters
from gapgnn.rng import NoiseKey
from gapgnn.training.roots import RootGradients, RootInputs

WIDTH, CLASSES = 4, 3
KEY = NoiseKey.insecure(7)


class OwnLayer(MessagePassing):
    """A layer as a user would write it: sums of what neighbours send, beside the own row."""

    def __init__(self):
        super().__init__(aggr="add")
        self.own, self.sent = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):
        return self.own(x) + torch.tanh(self.propagate(edge_index, x=self.sent(x)))

    def message(self, x_j):
        return x_j


class Normed(nn.Module):
    """A convolution between a linear layer and a norm of each row."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 6), norm
        self.conv = SAGEConv(6, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(torch.selu(self.norm(self.first(x))), edge_index)


class Two(nn.Module):
    """Two layers of a convolution."""

    def __init__(self, conv=GCNConv):
        super().__init__()
        self.first, self.second = conv(WIDTH, 5), conv(5, CLASSES)

    def forward(self, x, edge_index):
        return self.second(torch.selu(self.first(x, edge_index)), edge_index)


MODULES = {
    "Linear": (0, lambda: nn.Linear(WIDTH, CLASSES)),
    "LayerNorm": (0, lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))),
    "GroupNorm": (1, lambda: Normed(nn.GroupNorm(2, 6))),
    "LayerNorm and SAGEConv": (1, lambda: Normed(nn.LayerNorm(6))),
    "GCNConv": (1, lambda: GCNConv(WIDTH, CLASSES)),
    "SAGEConv": (1, lambda: SAGEConv(WIDTH, CLASSES)),
    "GATConv": (1, lambda: GATConv(WIDTH, CLASSES, heads=2, concat=False)),
    "GINConv": (1, lambda: GINConv(nn.Linear(WIDTH, CLASSES), train_eps=True)),
    "GraphConv": (1, lambda: GraphConv(WIDTH, CLASSES)),
    "TransformerConv": (1, lambda: TransformerConv(WIDTH, CLASSES)),
    "a layer of one's own": (1, OwnLayer),
    "two GCN layers": (2, Two),
    "two SAGE layers": (2, lambda: Two(SAGEConv)),
}


def module_of(name, seed=0):
    """Return a module with large weights, whose gradients really are clipped, and its layers."""
    torch.manual_seed(seed)
    layers, make = MODULES[name]
    module = make()
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(2).add_(0.1)
    return module, layers


def people(num_nodes, arcs, *, left_out=None, other=None, seed=0, **options):
    """A directed graph with everybody to train.

    Whoever is left out stays named in others' lists; ``other`` is (node, list) of a new record.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_nodes, WIDTH)).astype(np.float32) * 3
    labels = rng.integers(0, CLASSES, num_nodes)
    labels[:CLASSES] = range(CLASSES)
    if other is not None:
        node, listed = other
        features[node], labels[node] = -2 * features[node], (labels[node] + 1) % CLASSES
        arcs = [arc for arc in arcs if arc[0] != node] + [(node, v) for v in listed if v != node]
    keep = [node for node in range(num_nodes) if node != left_out]
    place = {node: i for i, node in enumerate(keep)}
    inside = [(place[u], place[v]) for u, v in arcs if u != left_out and v != left_out]
    dangling = {place[u]: [v] for u, v in arcs if v == left_out and u != left_out}
    graph = Graph.from_arcs(
        [u for u, _ in inside],
        [v for _, v in inside],
        num_nodes=len(keep),
        features=features[keep],
        labels=labels[keep],
        ids=keep,
        directed=True,
        dangling=dangling,
        **options,
    )
    everybody = np.ones(len(keep), dtype=bool)
    return graph.with_masks(everybody, ~everybody, ~everybody)


def inputs_of(graph, layers, max_degree, keep=1.0):
    """Return the examples of a graph under the fixed key of the tests."""
    lists = bound_out_degrees(graph, max_degree, KEY)
    return RootInputs(
        features=torch.tensor(np.asarray(graph.features)),
        labels=torch.tensor(graph.labels),
        roots=torch.arange(graph.num_nodes),
        subgraphs=RootedSubgraphs(lists, graph.ids, layers=layers, keep=keep, key=KEY),
    )


def gradients_of(module, inputs):
    """Return what computes the gradients of a module on these examples."""
    return RootGradients(PlainParameters(module), inputs, cross_entropy)


def clipped_sum(module, graph, ids, *, layers, max_degree, keep=1.0, step=0):
    """Return the clipped sum over the roots of some ids, in clips."""
    place = {int(one): i for i, one in enumerate(graph.ids)}
    roots = torch.tensor([place[one] for one in ids if one in place], dtype=torch.int64)
    inputs = inputs_of(graph, layers, max_degree, keep)
    return gradients_of(module, inputs).clipped_sum(roots, step, 1.0, 1.0)


def members(graph, layers, max_degree, keep=1.0, step=0):
    """Return for every id the ids in its example, by the sub-graphs as they are made."""
    subgraphs = inputs_of(graph, layers, max_degree, keep).subgraphs
    found = subgraphs.of(np.arange(graph.num_nodes), step)
    return {
        int(graph.ids[root]): {int(name) for name in graph.ids[one.nodes]}
        for root, one in enumerate(found)
    }


def plain_subgraph(graph, root, layers, max_degree):
    """Build the sub-graph of a root in the plainest way: nodes, and arcs among them."""
    lists = bound_out_degrees(graph, max_degree, KEY)
    arcs = [
        (u, int(v))
        for u in range(graph.num_nodes)
        for v in lists.indices[lists.indptr[u] : lists.indptr[u + 1]]
    ]
    near, used = {root}, []
    expanded: set[int] = set()
    for _ in range(layers):
        new = [(u, v) for u, v in arcs if v in near - expanded]
        expanded |= near
        used += new
        near |= {u for u, _ in new}
    nodes = [root, *sorted(near - {root})]
    place = {node: i for i, node in enumerate(nodes)}
    edges = torch.tensor([[place[u] for u, _ in used], [place[v] for _, v in used]])
    return nodes, edges.reshape(2, -1).long()


def ring_of_lists(num_nodes, degree):
    """Everybody lists the ``degree`` next people."""
    steps = range(1, degree + 1)
    return [(u, (u + k) % num_nodes) for u, k in itertools.product(range(num_nodes), steps)]
