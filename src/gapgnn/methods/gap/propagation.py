"""Hop after hop: what is sent, what is released, what the next network reads.

One path for all variants. ``features`` without stages is the paper's GAP: a hop is computed from
the hop before. With stages a network is trained after every hop, and what it says about a node is
what the node sends next: its embedding (``features``, which is ProGAP), its class (``labels``), or
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapgnn.methods import Hops
from gapgnn.methods.gap.messages import direction_and_size, joint_messages, label_messages
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
