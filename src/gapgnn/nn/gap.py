"""GAP's two trained modules: the encoder and the multi-hop classifier (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapgnn.nn.layers import ReplicaLinear, ReplicaMLP

COMBINATIONS = ("concat", "sum", "max", "mean", "attention")


class Encoder(nn.Module):
    """An MLP whose last hidden layer is the node's code, with a linear softmax head on top.

    The head exists only to train the codes on features and labels (paper, equation 2); the edges
    are not read, so at edge level this module is free.
    """

    def __init__(
        self,
        replicas: int,
        num_features: int,
        num_classes: int,
        *,
        hidden: int,
        layers: int,
        activation: str,
        batch_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.mlp = ReplicaMLP(
            replicas,
            [num_features, *[hidden] * layers],
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
            plain_last=False,
        )
        self.head = ReplicaLinear(replicas, hidden, num_classes)

    def encode(self, inputs: Any) -> Tensor:
        """Return the codes, shape (replicas, nodes, hidden)."""
        codes: Tensor = self.mlp(inputs)
        return codes

    def forward(self, inputs: Any) -> Tensor:
        """Return class scores (logits) from the codes."""
        scores: Tensor = self.head(self.encode(inputs))
        return scores


class MultiHopClassifier(nn.Module):
    """One base MLP per hop, a combination of the hops, and a head (paper, equations 6 to 8)."""

    def __init__(
        self,
        replicas: int,
        widths: Sequence[int],
        num_classes: int,
        *,
        hidden: int,
        base_layers: int,
        head_layers: int,
        combine: str,
        activation: str,
        batch_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.combine = combine
        self.bases = nn.ModuleList(
            ReplicaMLP(
                replicas,
                [width, *[hidden] * base_layers],
                activation=activation,
                batch_norm=batch_norm,
                dropout=dropout,
                plain_last=False,
            )
            for width in widths
        )
        self.query = (
            ReplicaLinear(replicas, hidden, 1, bias=False) if combine == "attention" else None
        )
        combined = hidden * len(widths) if combine == "concat" else hidden
        self.head = ReplicaMLP(
            replicas,
            [combined, *[hidden] * (head_layers - 1), num_classes],
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
            plain_last=True,
        )

    def forward(self, hops: Sequence[Tensor]) -> Tensor:
        """Return class scores (logits) for hop inputs of shape (replicas, nodes, width) each."""
        codes = [base(hop) for base, hop in zip(self.bases, hops, strict=True)]
        scores: Tensor = self.head(self._combined(codes))
        return scores

    def _combined(self, codes: list[Tensor]) -> Tensor:
        if self.combine == "concat":
            return torch.cat(codes, dim=-1)
        stacked = torch.stack(codes, dim=-2)
        if self.combine == "sum":
            return stacked.sum(dim=-2)
        if self.combine == "mean":
            return stacked.mean(dim=-2)
        if self.combine == "max":
            return stacked.amax(dim=-2)
        # Softmax over the hops of one node, never over nodes: a node's weights are its own.
        assert self.query is not None
        weights = torch.softmax(self.query(stacked), dim=-2)
        return (weights * stacked).sum(dim=-2)
