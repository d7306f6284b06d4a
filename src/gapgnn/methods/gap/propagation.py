"""Hop after hop: what is sent, what is released, what the next network reads.

One path for all variants. ``features`` without stages is the paper's GAP: a hop is computed from
the hop before. With stages a network is trained after every hop, and what it says about a node is
what the node sends next: its embedding (``features``, which is ProGAP), its class (``labels``), or
both.

Every message has norm at most 1 and is computed from the sender's own record and from what was
released before, so one hop has the sensitivity of the stated relation whatever is sent (privacy
page, section 1).

A node's own label does not come back to it: in a stage the labels of its neighbours arrive, and
its own label is in none of them. From the second stage on, a neighbour without a training label
sends its class posterior, which may have been moved by the node's label through the noisy sum of
the stage before; that echo is one of many messages in that sum, under noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapgnn.methods import Hops
from gapgnn.methods.gap.variant import Variant
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training import FeatureInputs, HopInputs, Inputs

First = Tensor | FeatureInputs


@dataclass(frozen=True)
class Propagation:
    """How a model reads the edges of a graph.

    Attributes:
        variant: what is sent and which networks there are.
        num_classes: C.
        modules: the networks by phase.
    """

    variant: Variant
    num_classes: int
    modules: Mapping[str, Any]

    def hop_zero(self, features: FeatureInputs, replicas: int) -> First:
        """Return what classifiers read as hop 0: unit rows of codes, or the features."""
        if self.variant.reads_codes:
            return self._codes(features, replicas)
        return features

    def _codes(self, features: FeatureInputs, replicas: int) -> Tensor:
        """Return unit rows of the encoder's codes; without an encoder, of the features."""
        if "encoder" in self.modules:
            with torch.no_grad():
                return row_normalise(self.modules["encoder"].embed(features.all()))
        rows = row_normalise(features.dense())
        return rows.expand(replicas, *rows.shape)

    def inputs(self, first: First, released: Sequence[Tensor]) -> HopInputs:
        """Return what a classifier reads of hop 0 and of what was released."""
        if self.variant.is_papers:
            return HopInputs(first, released)
        return HopInputs(first, [direction_and_size(sums) for sums in released])

    def run(
        self,
        aggregation: Hops,
        features: FeatureInputs,
        labels: Tensor,
        sends_label: Tensor,
        *,
        fit: Callable[[str, Inputs], None] | None = None,
        on_hop: Callable[[], None] | None = None,
    ) -> tuple[First, list[Tensor]]:
        """Release all hops of a graph: the only reading of its edges.

        Args:
            aggregation: the mechanism, which knows graph, noise and price.
            features: of every node.
            labels: class of every node.
            sends_label: which nodes send their own label, (replicas, nodes).
            fit: trains the network of each phase; without it the networks are as they are.
            on_hop: called after every hop.

        Returns:
            Hop 0, and the noisy rows of each hop: of norm 1 in the paper's way, otherwise noisy
            sums in units of their noise, so that a classifier need not know its level.
        """
        first = self.hop_zero(features, len(sends_label))
        released: list[Tensor] = []
        for hop in range(1, self.variant.hops + 1):
            with torch.no_grad():
                rows = self._rows(hop, features, first, released, labels, sends_label)
                noisy = aggregation.hop(rows, hop, normalise=self.variant.is_papers)
                if not self.variant.is_papers and aggregation.std:
                    noisy = noisy / aggregation.std
            released.append(noisy)
            if on_hop is not None:
                on_hop()
            if fit is not None and self.variant.phase(hop) in self.modules:
                fit(self.variant.phase(hop), self.inputs(first, released))
        return first, released

    def _rows(
        self,
        hop: int,
        features: FeatureInputs,
        first: First,
        released: Sequence[Tensor],
        labels: Tensor,
        sends_label: Tensor,
    ) -> Tensor:
        """Return what every node sends in one hop: rows of norm at most 1."""
        if self.variant.is_papers and released:
            return released[-1]
        network: Any = None
        inputs: Any = None
        if hop > 1:
            network, inputs = self.modules[f"stage{hop - 1}"], self.inputs(first, released).all()
        elif "encoder" in self.modules:
            network, inputs = self.modules["encoder"], features.all()
        sent = []
        if self.variant.messages != "features":
            scores = None if network is None else network(inputs)
            sent.append(label_messages(labels, sends_label, self.num_classes, scores))
        if self.variant.messages != "labels":
            replicas = len(sends_label)
            codes = self._codes(features, replicas) if network is None else network.embed(inputs)
            sent.append(row_normalise(codes))
        return sent[0] if len(sent) == 1 else joint_messages(sent[0], sent[1])


def class_codes(num_classes: int, device: torch.device | None = None) -> Tensor:
    """Return one unit vector per class, all equally far apart: the corners of a regular simplex.

    One-hot codes of C classes are sqrt(2) apart and share a direction that says nothing about the
    class. Without it C - 1 dimensions suffice, and at the same norm the codes are
    sqrt(2 C / (C - 1)) apart, so the same noise blurs them less.

    >>> codes = class_codes(3)
    >>> codes.shape, bool(torch.allclose(codes @ codes.T, torch.eye(3) * 1.5 - 0.5, atol=1e-6))
    (torch.Size([3, 2]), True)
    """
    codes = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64)
    # Corner k equals the earlier ones in the first k coordinates but for the last of them.
    for axis in range(num_classes - 1):
        rest = 1 - codes[axis, :axis].square().sum()
        codes[axis, axis] = rest.sqrt()
        cosine = -1 / (num_classes - 1)
        below = codes[axis + 1 :, :axis] @ codes[axis, :axis]
        codes[axis + 1 :, axis] = (cosine - below) / codes[axis, axis]
    return codes.to(device=device, dtype=torch.float32)


def label_messages(
    labels: Tensor, sends_label: Tensor, num_classes: int, scores: Tensor | None
) -> Tensor:
    """Return what nodes send of their class, shape (replicas, nodes, classes - 1).

    Args:
        labels: class of every node.
        sends_label: which nodes send their own label, (replicas, nodes): the training nodes.
        num_classes: C.
        scores: class scores (replicas, nodes, C) by which the others send the mean of the class
            codes under their posterior, shorter the less sure it is; None: they send nothing.
    """
    codes = class_codes(num_classes, labels.device)
    own = codes[labels.clamp(min=0)]
    if scores is None:
        return own * sends_label.unsqueeze(-1)
    guess = torch.softmax(scores, dim=-1) @ codes
    return torch.where(sends_label.unsqueeze(-1), own, guess)


def joint_messages(first: Tensor, second: Tensor) -> Tensor:
    """Put two messages side by side, scaled so that the norm stays at most 1."""
    return torch.cat([first, second], dim=-1) / math.sqrt(2)


def direction_and_size(sums: Tensor) -> Tensor:
    """Return what a classifier reads of a noisy sum that is given in units of its noise.

    The direction says which class, the size how sure the neighbourhood is.

    >>> direction_and_size(torch.tensor([[3.0, 4.0]])).shape
    torch.Size([1, 3])
    """
    size = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    return torch.cat([row_normalise(sums), torch.log1p(size) / 2], dim=-1)
