"""GAP's trained modules: the encoder and the multi-hop classifier (GAP, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gapgnn.nn.layers import ReplicaLinear, ReplicaMLP
from gapgnn.nn.specification import specified


class Encoded(NamedTuple):
    """Hop 0 after its base network, which a saved model keeps instead of features."""

    codes: Tensor


# Factor of the mixing weight of votes by which the network's own scores are reduced, because they
# come from random initial weights and noisy steps. Chosen on public graphs
# (docs/explanation/research-notes.md).
GIVES_WAY = 0.5
COMBINATIONS = ("concat", "sum", "max", "mean", "attention")


@specified
class Encoder(nn.Module):
    """An MLP whose last hidden layer is the node's embedding, with a linear softmax head.

    The head trains the embeddings on features and labels (GAP, equation 2). No edge is read, so at
    edge level this module is free.
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

    def embed(self, inputs: Any) -> Tensor:
        """Return the embeddings, shape (replicas, nodes, hidden)."""
        codes: Tensor = self.mlp(inputs)
        return codes

    def forward(self, inputs: Any) -> Tensor:
        """Return class scores (logits) from the embeddings."""
        scores: Tensor = self.head(self.embed(inputs))
        return scores


@specified
class MultiHopClassifier(nn.Module):
    """One base MLP per hop, a combination of the hops, and a head (GAP, equations 6 to 8).

    Args:
        replicas: R.
        widths: width of each hop's input, hop 0 first.
        num_classes: width of the scores.
        first_layers: layers of the base network of hop 0.
        base_layers: layers of the base network of every other hop.
        head_layers: layers of the head.
        hidden: width of all hidden layers.
        combine: one of ``COMBINATIONS``.
        has_embedding: add a layer of width ``hidden`` after the combination, whose output is the
            node's next message when stages are trained in sequence.
        activation: of every hidden layer.
        batch_norm: normalise before every activation.
        dropout: rate after every activation.
        corrects_first: hop 0 is log-probabilities, to which the network adds a correction. Its
            mixing weight, from 0 to 1, is kept with the parameters.
        corrects_votes: the last input is votes, as class scores, to which the network adds a
            correction. Their mixing weight is kept likewise; at 0 the scores are those of the
            network alone.
    """

    mixing_weight: Tensor

    def __init__(
        self,
        replicas: int,
        widths: Sequence[int],
        num_classes: int,
        *,
        first_layers: int,
        base_layers: int,
        head_layers: int,
        hidden: int,
        combine: str,
        has_embedding: bool,
        activation: str,
        batch_norm: bool,
        dropout: float,
        corrects_first: bool = False,
        corrects_votes: bool = False,
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {
            "activation": activation,
            "batch_norm": batch_norm,
            "dropout": dropout,
        }
        self.corrects_first = corrects_first
        self.corrects_votes = corrects_votes
        if corrects_first or corrects_votes:
            self.register_buffer("mixing_weight", torch.ones(replicas))
        self.combine = combine
        layers = [first_layers] + [base_layers] * (len(widths) - 1)
        self.bases = nn.ModuleList(
            ReplicaMLP(replicas, [width, *[hidden] * depth], **shared, plain_last=False)
            for width, depth in zip(widths, layers, strict=True)
        )
        self.query = None
        if combine == "attention":
            self.query = ReplicaLinear(replicas, hidden, 1, bias=False)
        width = hidden * len(widths) if combine == "concat" else hidden
        self.embedding = None
        if has_embedding:
            self.embedding = ReplicaMLP(replicas, [width, hidden], **shared, plain_last=False)
            width = hidden
        self.head = ReplicaMLP(
            replicas, [width, *[hidden] * (head_layers - 1), num_classes], **shared, plain_last=True
        )

    @property
    def takes_samples(self) -> bool:
        """Whether a node's scores follow from its own inputs and the moments of all inputs."""
        if self.corrects_first or self.corrects_votes:
            return False
        parts = [*self.bases[1:], self.head] + ([] if self.embedding is None else [self.embedding])
        normed = [len(part.norms) for part in parts if isinstance(part, ReplicaMLP)]
        later = len(self.bases) - 1
        return max(normed[:later], default=0) <= 1 and not any(normed[later:])

    @property
    def reads_first_whole(self) -> bool:
        """Whether a node's embedding of hop 0 needs the rows of all nodes."""
        first = self.bases[0]
        return isinstance(first, ReplicaMLP) and not first.takes_samples

    def embed(self, hops: Sequence[Any]) -> Tensor:
        """Return the combined hops, shape (replicas, nodes, width)."""
        combined = self._combined(self._codes(hops))
        return combined if self.embedding is None else self.embedding(combined)

    def encode_first(self, hop: Any) -> Encoded:
        """Return hop 0 after its base network."""
        return Encoded(self.bases[0](hop))

    def forward(self, hops: Sequence[Any]) -> Tensor:
        """Return class scores (logits) for one input per hop, plus votes if it corrects them."""
        if self.corrects_votes:
            weight = self.mixing_weight.view(-1, 1, 1)
            votes: Tensor = weight * hops[-1]
            return votes + (1 - GIVES_WAY * weight) * self._scores(hops[:-1])
        scores = self._scores(hops)
        return scores + hops[0] if self.corrects_first else scores

    def _scores(self, hops: Sequence[Any]) -> Tensor:
        """Return the network's own scores."""
        is_linear = self.embedding is None and len(self.head.linears) == 1
        scores: Tensor
        if is_linear and self.combine == "concat":
            head = self.head.linears[0]
            assert isinstance(head, ReplicaLinear)
            scores = head.of_blocks(self._codes(hops))
        else:
            scores = self.head(self.embed(hops))
        return scores

    def _codes(self, hops: Sequence[Any]) -> list[Tensor]:
        """Return each hop after its base network."""
        return [
            hop.codes if isinstance(hop, Encoded) else base(hop)
            for base, hop in zip(self.bases, hops, strict=True)
        ]

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
        # Softmax over the hops of one node, so that its weights do not depend on other nodes.
        assert self.query is not None
        weights = torch.softmax(self.query(stacked), dim=-2)
        return (weights * stacked).sum(dim=-2)
