"""A plain implementation on stock parts, as the measure of speed: see benchmarks/speed.py.

PyTorch Geometric's modules in eager mode, ``torch.sparse`` products, Opacus's PrivacyEngine with
its default per-sample gradients, one repeat after another. What it computes is what the library
computes: same data, same widths, same epochs, same number of steps and same noise. It has no
budget, no ledger and no calibration; noise multipliers are given.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_geometric.data import Data
from torch_geometric.nn import MLP, SAGEConv

from gapgnn.graph.graph import Graph

HIDDEN = 16
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Task:
    """A graph as this implementation holds it: dense features, CSR adjacency, index masks."""

    data: Data
    adjacency: Tensor
    num_classes: int

    @classmethod
    def of(cls, graph: Graph) -> Task:
        features = graph.features
        dense = features.toarray() if sp.issparse(features) else features
        data = Data(
            x=torch.from_numpy(np.asarray(dense, dtype=np.float32)),
            y=torch.tensor(graph.labels),
            train=torch.tensor(np.flatnonzero(graph.train_mask)),
            val=torch.tensor(np.flatnonzero(graph.val_mask)),
            test=torch.tensor(np.flatnonzero(graph.test_mask)),
        )
        return cls(data, _csr(graph.adjacency().T.tocsr()), graph.num_classes)


def _csr(matrix: sp.csr_array) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.ones(matrix.nnz),
        size=matrix.shape,
    )


def mlp(sizes: list[int], *, batch_norm: bool, plain_last: bool) -> nn.Module:
    norm = "batch_norm" if batch_norm else None
    return MLP(sizes, act="selu", norm=norm, dropout=0.0, plain_last=plain_last)


class Encoder(nn.Module):
    def __init__(self, features: int, classes: int, *, batch_norm: bool) -> None:
        super().__init__()
        sizes = [features, HIDDEN, HIDDEN]
        self.body = mlp(sizes, batch_norm=batch_norm, plain_last=False)
        self.head = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Classifier(nn.Module):
    def __init__(self, hops: int, classes: int, *, batch_norm: bool) -> None:
        super().__init__()
        sizes = [HIDDEN, HIDDEN]
        self.bases = nn.ModuleList(
            mlp(sizes, batch_norm=batch_norm, plain_last=False) for _ in range(hops + 1)
        )
        self.head = mlp([HIDDEN * (hops + 1), classes], batch_norm=False, plain_last=True)

    def forward(self, stacked: Tensor) -> Tensor:
        codes = [base(stacked[:, hop]) for hop, base in enumerate(self.bases)]
        return self.head(torch.cat(codes, dim=-1))


class Sage(nn.Module):
    def __init__(self, features: int, classes: int, *, layers: int) -> None:
        super().__init__()
        self.before = mlp([features, HIDDEN, HIDDEN], batch_norm=True, plain_last=False)
        self.convs = nn.ModuleList(
            SAGEConv(HIDDEN, HIDDEN, aggr="sum", root_weight=True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN) for _ in range(layers))
        self.after = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.before(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.normalize(F.selu(norm(conv(x, adjacency))), dim=-1)
        return self.after(x)


class SageExamples(nn.Module):
    """One-layer GraphSAGE on padded examples: ``(B, 1 + most neighbours, features)``."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.own = nn.Linear(HIDDEN, HIDDEN)
        self.neighbours = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.after = nn.Linear(HIDDEN, classes)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        codes = F.normalize(F.selu(self.second(F.selu(self.first(parts)))), dim=-1)
        summed = F.normalize((codes[:, 1:] * mask.unsqueeze(-1)).sum(1), dim=-1)
        hidden = self.own(codes[:, 0]) + self.neighbours(summed)
        return self.after(F.normalize(F.selu(hidden), dim=-1))


def fit(
    model: nn.Module, forward: Callable[[str], Tensor], data: Data, *, epochs: int = 100
) -> None:
    """Full-batch Adam, validated after every epoch; the best epoch is kept."""
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    best, kept = -1.0, copy.deepcopy(model.state_dict())
    for _ in range(epochs):
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(forward("train"), data.y[data.train]).backward()
        optimiser.step()
        model.eval()
        with torch.no_grad():
            right = forward("val").argmax(dim=1) == data.y[data.val]
        if (accuracy := float(right.float().mean())) > best:
            best, kept = accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    model.eval()


def fit_privately(
    model: nn.Module, rows: Tensor, data: Data, *, noise_multiplier: float, epochs: int, batch: int
) -> None:
    """DP-Adam as Opacus's engine sets it up: Poisson loader, per-sample gradients by hooks."""
    from opacus import PrivacyEngine

    model.train()
    wrapped, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(TensorDataset(rows[data.train], data.y[data.train]), batch),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for inputs, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(wrapped(inputs), labels).backward()
            optimiser.step()
    model.eval()


def aggregate(
    adjacency: Tensor, rows: Tensor, hops: int, std: float, generator: torch.Generator
) -> Tensor:
    """Hop 0 and the noisy, normalised hops, ``(N, hops + 1, width)``."""
    found = [F.normalize(rows, dim=-1)]
    for _ in range(hops):
        total = adjacency @ found[-1]
        total = total + std * torch.randn(total.shape, generator=generator)
        found.append(F.normalize(total, dim=-1))
    return torch.stack(found, dim=1)


def gap_edge(task: Task, *, seed: int, noise_multiplier: float, hops: int = 2) -> float:
    """One repeat of GAP at edge level; returns the test accuracy."""
    torch.manual_seed(seed)
    data = task.data
    encoder = Encoder(data.x.shape[1], task.num_classes, batch_norm=True)
    fit(encoder, lambda part: encoder(data.x[data[part]]), data)
    with torch.no_grad():
        codes = encoder.body(data.x)
    generator = torch.Generator().manual_seed(seed)
    stacked = aggregate(task.adjacency, codes, hops, noise_multiplier, generator)
    classifier = Classifier(hops, task.num_classes, batch_norm=True)
    fit(classifier, lambda part: classifier(stacked[data[part]]), data)
    return _accuracy(classifier(stacked[data.test]), data)


def gap_node(
    task: Task, *, seed: int, noise_multiplier: float, hops: int = 2, max_degree: int = 100
) -> float:
    """One repeat of GAP at node level: DP-Adam, degree bound, noisy hops."""
    torch.manual_seed(seed)
    data = task.data
    options = {"noise_multiplier": noise_multiplier, "epochs": 10, "batch": 256}
    encoder = Encoder(data.x.shape[1], task.num_classes, batch_norm=False)
    fit_privately(encoder, data.x, data, **options)
    with torch.no_grad():
        codes = encoder.body(data.x)
    bounded = _csr(_bounded(task.adjacency, max_degree, seed).T.tocsr())
    generator = torch.Generator().manual_seed(seed)
    stacked = aggregate(bounded, codes, hops, noise_multiplier * max_degree**0.5, generator)
    classifier = Classifier(hops, task.num_classes, batch_norm=False)
    fit_privately(classifier, stacked, data, **options)
    return _accuracy(classifier(stacked[data.test]), data)


def sage(task: Task, *, seed: int, layers: int = 2) -> float:
    """One repeat of GraphSAGE without privacy."""
    torch.manual_seed(seed)
    data = task.data
    model = Sage(data.x.shape[1], task.num_classes, layers=layers)
    fit(model, lambda part: model(data.x, task.adjacency)[data[part]], data)
    return _accuracy(model(data.x, task.adjacency)[data.test], data)


def sage_node_steps(
    task: Task, *, seed: int, noise_multiplier: float, max_degree: int = 100
) -> Iterator[None]:
    """Take one DP-Adam step of one-layer GraphSAGE on examples per item: batches of 256."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(seed)
    data = task.data
    bounded = _bounded(task.adjacency, max_degree, seed).T.tocsr()
    model = GradSampleModule(SageExamples(data.x.shape[1], task.num_classes))
    optimiser = DPOptimizer(
        torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=noise_multiplier * (2 * max_degree + 1),
        max_grad_norm=1.0,
        expected_batch_size=256,
    )
    while True:
        batch = data.train[torch.rand(len(data.train)) < 256 / len(data.train)]
        lists = [
            bounded.indices[bounded.indptr[node] : bounded.indptr[node + 1]]
            for node in batch.tolist()
        ]
        most = max(len(members) for members in lists)
        parts = torch.zeros(len(batch), 1 + most, dtype=torch.int64)
        mask = torch.zeros(len(batch), most)
        parts[:, 0] = batch
        for row, members in enumerate(lists):
            parts[row, 1 : 1 + len(members)] = torch.from_numpy(members.astype(np.int64))
            mask[row, : len(members)] = 1
        optimiser.zero_grad()
        F.cross_entropy(model(data.x[parts], mask), data.y[batch]).backward()
        optimiser.step()
        yield


def _bounded(adjacency: Tensor, max_degree: int, seed: int) -> sp.csr_array:
    """Keep at most that many out-neighbours of every node, at random; returns adjacency lists."""
    rng = np.random.default_rng(seed)
    shape = tuple(adjacency.shape)
    entries = (
        adjacency.values().numpy(),
        adjacency.col_indices().numpy(),
        adjacency.crow_indices().numpy(),
    )
    adjacency_lists = sp.csr_array(entries, shape=shape).T.tocsr()
    rows = np.repeat(np.arange(shape[0]), np.diff(adjacency_lists.indptr))
    order = np.lexsort((rng.random(len(rows)), rows))
    within = np.arange(len(rows)) - adjacency_lists.indptr[rows]
    kept = order[within < max_degree]
    ones = np.ones(len(kept), dtype=np.float32)
    return sp.csr_array((ones, (rows[kept], adjacency_lists.indices[kept])), shape=shape)


@torch.no_grad()
def _accuracy(scores: Tensor, data: Data) -> float:
    return float((scores.argmax(dim=1) == data.y[data.test]).float().mean())


def quiet() -> None:
    """Silence what the stock parts say about themselves."""
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="(Full backward hook|Secure RNG|Sparse)")
    warnings.filterwarnings("ignore", message=".*(Optimal order|beta state).*")
