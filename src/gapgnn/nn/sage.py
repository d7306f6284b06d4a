"""GraphSAGE with a replica axis: sum over in-neighbours, on whole graphs or on single examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError
from gapgnn.nn.layers import Inputs, ReplicaBatchNorm, ReplicaLinear, ReplicaMLP, activate
from gapgnn.nn.sparse_rows import sparse_product
from gapgnn.nn.specification import specified
from gapgnn.privacy.dpsgd import (
    SHORTEST,
    Members,
    SharedLayer,
    SharedParts,
    active_tape,
    record_linears,
)
from gapgnn.privacy.mechanisms import csr_tensor

InLists = tuple[NDArray[Any], NDArray[Any]]


class Arcs:
    """In-neighbours of each node: one graph for all replicas, or one per replica.

    Args:
        in_lists: CSR in-lists ``(indptr, indices)``, one pair or one per replica.
        is_symmetric: whether they are their own transpose; otherwise it is computed.
        device: where sums are computed.

    >>> arcs = Arcs([(np.array([0, 0, 2]), np.array([0, 1]))], is_symmetric=False)
    >>> arcs.sum(torch.tensor([[[1.0], [2.0]]])).tolist()
    [[[0.0], [3.0]]]
    """

    def __init__(
        self,
        in_lists: Sequence[InLists],
        *,
        is_symmetric: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._forward = [self._matrix(*lists) for lists in in_lists]
        self._backward = self._forward
        if not is_symmetric:
            self._backward = [self._matrix(*_transposed(*lists)) for lists in in_lists]

    def sum(self, rows: Tensor) -> Tensor:
        """Return the sum of the rows of each node's in-neighbours, ``(R, N, C)`` to the same."""
        return sparse_product(self, rows)

    def product(self, rows: Tensor) -> Tensor:
        """As :meth:`sum`, without a gradient."""
        return self._times(self._forward, rows)

    def transposed_matmul(self, delta: Tensor) -> Tensor:
        """As :meth:`product`, along reversed arcs."""
        return self._times(self._backward, delta)

    @staticmethod
    def _times(matrices: list[Tensor], rows: Tensor) -> Tensor:
        replicas, count, width = rows.shape
        if len(matrices) == 1 and rows.is_cuda:
            beside = rows.permute(1, 0, 2).reshape(count, replicas * width)
            return (matrices[0] @ beside).view(count, replicas, width).permute(1, 0, 2)
        # On a CPU a product of 16 columns at a time is as fast as a wide one and needs no copy.
        total = torch.empty_like(rows, memory_format=torch.contiguous_format)
        for replica, part in enumerate(rows):
            matrix = matrices[replica % len(matrices)]
            if rows.is_cuda:
                total[replica] = matrix @ part
            else:
                torch.mm(matrix, part.contiguous(), out=total[replica])
        return total

    def _matrix(self, indptr: NDArray[Any], indices: NDArray[Any]) -> Tensor:
        dtype = np.int32 if len(indices) < 2**31 else np.int64
        pointers, columns = (
            torch.from_numpy(part.astype(dtype)).to(self.device) for part in (indptr, indices)
        )
        ones = torch.ones(len(indices), device=self.device)
        return csr_tensor(pointers, columns, ones, (len(indptr) - 1,) * 2)


def _transposed(indptr: NDArray[Any], indices: NDArray[Any]) -> InLists:
    from gapgnn.graph import csr

    columns = csr.matrix(indptr, indices).tocsc()
    return columns.indptr, columns.indices


@dataclass(frozen=True)
class WholeGraph:
    """All nodes and their arcs; ``positions`` (R, B) are the nodes to score."""

    features: Inputs
    arcs: Arcs
    positions: Tensor | None = None


@dataclass(frozen=True)
class Examples:
    """A batch of nodes with their in-neighbours: one example is one node's subgraph.

    Attributes:
        nodes: features of all nodes that occur, ``(R, M, in)``, each once.
        members: the nodes of each replica's examples.
    """

    nodes: Inputs
    members: Sequence[Members]


class SageLayer(nn.Module):
    """Linear maps of a node's own row and of its neighbours' sum, then L2 normalisation."""

    def __init__(
        self, replicas: int, width: int, out: int, *, activation: str, batch_norm: bool
    ) -> None:
        super().__init__()
        self.own = ReplicaLinear(replicas, width, out, bias=not batch_norm)
        self.neighbours = ReplicaLinear(replicas, width, out, bias=False)
        self.norm = ReplicaBatchNorm(replicas, out) if batch_norm else None
        self._activation = activation

    def forward(self, rows: Tensor, summed: Tensor) -> Tensor:
        """Return unit rows, ``(R, N, out)``."""
        hidden = self.own(rows) + self.neighbours(summed)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return F.normalize(activate(hidden, self._activation), dim=-1)


@specified
class Sage(nn.Module):
    """GraphSAGE between a pre-processing and a post-processing MLP (GAP, section 6).

    Args:
        replicas: R.
        num_features: width of the input.
        num_classes: width of the output.
        hidden: width of everything between.
        layers: message-passing layers.
        pre_layers: layers of the MLP before them.
        post_layers: layers of the MLP after them, the output layer included.
        activation: after every hidden layer.
        batch_norm: normalise before each activation; not with :class:`Examples`.
        dropout: of the two MLPs.
        unit_messages: send unit rows and normalise their sum, so that the sum has a bounded
            sensitivity and training matches prediction on noisy sums; for one layer.
    """

    def __init__(
        self,
        replicas: int,
        num_features: int,
        num_classes: int,
        *,
        hidden: int = 16,
        layers: int = 2,
        pre_layers: int = 2,
        post_layers: int = 1,
        activation: str = "selu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        unit_messages: bool = False,
    ) -> None:
        super().__init__()
        if unit_messages and layers != 1:
            raise InputError(f"`layers` must be 1 with unit messages. Got {layers}.")
        shared: dict[str, Any] = {
            "activation": activation,
            "batch_norm": batch_norm,
            "dropout": dropout,
        }
        self.unit_messages = unit_messages
        self.pre = ReplicaMLP(
            replicas, [num_features, *[hidden] * pre_layers], plain_last=False, **shared
        )
        self.layers = nn.ModuleList(
            SageLayer(replicas, hidden, hidden, activation=activation, batch_norm=batch_norm)
            for _ in range(layers)
        )
        self.post = ReplicaMLP(
            replicas, [*[hidden] * post_layers, num_classes], plain_last=True, **shared
        )

    def forward(self, inputs: WholeGraph | Examples) -> Tensor:
        """Return class scores (logits), ``(R, N, classes)``, or of the given positions only."""
        if isinstance(inputs, Examples):
            return self._of_examples(inputs)
        rows = self.codes(inputs.features)
        if self.unit_messages:
            return self.classify(rows, F.normalize(inputs.arcs.sum(rows), dim=-1))
        for layer in self.layers:
            rows = layer(rows, inputs.arcs.sum(rows))
        if inputs.positions is not None:
            replica = torch.arange(len(rows), device=rows.device).unsqueeze(1)
            rows = rows[replica, inputs.positions]
        scores: Tensor = self.post(rows)
        return scores

    def codes(self, features: Inputs) -> Tensor:
        """Return each node's message, ``(R, N, hidden)``; unit rows with ``unit_messages``."""
        codes: Tensor = self.pre(features)
        return F.normalize(codes, dim=-1, eps=SHORTEST) if self.unit_messages else codes

    def classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        """Return class scores of a one-layer network from own embeddings and (noisy) sums."""
        scores: Tensor = self.post(self.layers[0](codes, summed))
        return scores

    def _of_examples(self, inputs: Examples) -> Tensor:
        """Score each example from its own parts alone."""
        tape = active_tape()
        if tape is None:
            codes = self.codes(inputs.nodes)
            own = torch.stack([rows[m.own] for rows, m in zip(codes, inputs.members, strict=True)])
            summed = torch.stack(
                [m.sum_neighbours(rows) for rows, m in zip(codes, inputs.members, strict=True)]
            )
        else:
            record = self._shared(inputs)
            tape.add(record)
            own, summed = record.outputs.chunk(2, dim=-1)
        if self.unit_messages:
            summed = F.normalize(summed, dim=-1)
        return self.classify(own, summed)

    def _shared(self, inputs: Examples) -> SharedParts:
        """Run the first network once for every node, and keep the inputs of its gradients."""
        with record_linears() as tape:
            codes: Tensor = self.pre(inputs.nodes)
        records: list[Any] = tape.records
        # The operations between two layers are elementwise, so their derivative is the gradient of
        # the sum of their outputs.
        followers = [record.inputs for record in records[1:]] + [codes]
        gradients = [
            torch.autograd.grad(follower.sum(), record.outputs, retain_graph=True)[0]
            for record, follower in zip(records, followers, strict=True)
        ]
        codes, scaling = codes.detach(), None
        if self.unit_messages:
            scaling = codes.norm(dim=-1, keepdim=True).clamp_(min=SHORTEST).reciprocal_()
            codes = codes * scaling
        layers = [
            SharedLayer(record.inputs, gradient, record.weight, record.bias)
            for record, gradient in zip(records, gradients, strict=True)
        ]
        return SharedParts(layers, codes, inputs.members, scaling=scaling)
