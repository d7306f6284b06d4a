"""``own="record"`` at edge level: a prediction that reads the node's own neighbours exactly.

Training is unchanged, and all messages are public: they are training labels and outputs of networks
that were trained on released rows, computed from released rows and features. So at prediction the
rows of node v may be the exact sums, over v's own neighbours, of these messages, without noise and
without a charge. An edge (u, v) stays protected against everyone but u and v (joint differential
privacy; privacy page, section 1). The sums are never stored.

The networks were trained on noisy rows, and where the noise exceeds the signal of a neighbourhood
they learned to ignore it. The neighbours therefore also vote: naive Bayes with fixed odds for each
neighbour, discounted by their number, because neighbours of one node are not independent evidence.
The rule is fixed. It depends on the graph only through released rows and public labels, from which
:func:`are_alike` decides whether neighbours tend to share a class; if they do not, there are no
votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods import blocks_of, exact_sums
from gapgnn.methods.label_gap.codes import class_codes, class_counts
from gapgnn.methods.label_gap.own_neighbours import vote_weights
from gapgnn.methods.label_gap.stages import Stages
from gapgnn.training import FeatureInputs

# Chosen on public graphs (docs: research notes): the share of the feature model in the prior of
# the votes.
PRIOR_SHARE = 0.75
# Neighbours vote if the odds that they have the node's class, rather than any other given one,
# exceed this.
LEAST_ODDS = 3.0


@dataclass(frozen=True)
class OwnNeighbours:
    """Predictions for every node from the exact messages of its own neighbours.

    Attributes:
        stages: messages and networks.
        graph: whose adjacency lists are read, with the training labels that are sent.
        released: noisy rows of each hop in units of their noise, (1, nodes, width): edge types
            side by side, then the union of edge types where it was released.
        std: standard deviation of that noise.
        symmetrised: whether the hops were symmetrised.
    """

    stages: Stages
    graph: Graph
    released: Sequence[Tensor]
    std: float
    symmetrised: bool = False

    def scores(self) -> Tensor:
        """Return the class scores of every node; each row is for the node's own person only."""
        device = self.released[0].device
        features = FeatureInputs(self.graph, device)
        labels = torch.tensor(self.graph.labels, device=device)
        training = torch.tensor(self.graph.train_mask, device=device)
        modules = self.stages.modules
        sent = self.stages.messages(features, labels, training.unsqueeze(0), self.released)
        first = self.stages.hop_zero(features, training.unsqueeze(0))
        arriving = [self._arriving(rows[0]) for rows in sent]
        exact = [self._as_released(sums).unsqueeze(0) / self.std for sums in arriving]
        scores = self.stages.scores("classifier", first, exact)[0]
        # One block per hop: of several edge types, their union.
        unions = [self._union(hop) for hop in self.released]
        num_classes = self.stages.num_classes
        class_prior = self.stages.prior
        if not are_alike(unions, labels, training, num_classes, class_prior):
            return scores
        prior = torch.log_softmax(scores, dim=-1)
        if "encoder" in modules:
            is_cross_fitted = self.stages.crossfit is not None
            of_features: Any = first if is_cross_fitted else modules["encoder"](features.all())
            alone = torch.log_softmax(of_features[0], dim=-1)
            prior = (1 - PRIOR_SHARE) * prior + PRIOR_SHARE * alone
        total = torch.stack(arriving[-1]).sum(dim=0)
        ones = torch.ones_like(labels, dtype=prior.dtype).unsqueeze(-1)
        degrees = torch.stack(self._arriving(ones)).sum(dim=0)
        return prior + vote_weights(degrees) * class_counts(total, class_prior)

    def _union(self, hop: Tensor) -> Tensor:
        """Return the block of a released hop that covers the union of the edge types."""
        stages = self.stages
        return blocks_of(hop, stages.num_types, with_union=stages.with_union)[-1][0]

    def _arriving(self, rows: Tensor) -> list[Tensor]:
        """Return the exact sum of the messages at every node, for each edge type."""
        return [
            exact_sums(edges, rows, arriving=True, symmetrised=self.symmetrised)
            for edges in self.graph.edge_types
        ]

    def _as_released(self, sums: Sequence[Tensor]) -> Tensor:
        """Return exact sums in the layout of released rows: each edge type, then the union."""
        union = [torch.stack(list(sums)).sum(dim=0)] if self.stages.with_union else []
        return torch.cat([*sums, *union], dim=-1)


def are_alike(
    released: Sequence[Tensor],
    labels: Tensor,
    training: Tensor,
    num_classes: int,
    prior: Tensor | None = None,
) -> bool:
    """Return whether neighbours tend to share a class, from released rows and public labels.

    The sum of the rows of all training nodes of a class estimates how many neighbours of each class
    they have, up to a multiple of the prior. The multiple is chosen so that no count is negative by
    more than two standard deviations of the noise.

    Args:
        released: noisy sums of class codes in units of their noise, (nodes, classes - 1) for each
            hop.
        labels: class of every node.
        training: mask of the training nodes.
        num_classes: C.
        prior: class probabilities, (1, C), at which codes are centred; None is uniform.

    >>> labels = torch.arange(600) % 3
    >>> codes, training = class_codes(3), torch.ones(600, dtype=torch.bool)
    >>> are_alike([codes[labels]], labels, training, 3)
    True
    >>> are_alike([codes[(labels + 1) % 3]], labels, training, 3)
    False
    """
    rows = torch.stack(list(released)).mean(dim=0)[training].double()
    totals = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64, device=rows.device)
    totals.index_add_(0, labels[training], rows)
    codes = class_codes(num_classes, rows.device).double()
    shares = torch.full((1, num_classes), 1 / num_classes, dtype=torch.float64)
    shares = (shares if prior is None else prior.double()).clamp(min=1e-9).to(rows.device)
    # Counts in units of the noise: centring scales both by the same factor.
    counts = totals @ codes.T
    support = labels[training].bincount(minlength=num_classes).unsqueeze(-1)
    noise = (support / len(released)).double().sqrt()
    lowest = ((counts + 2 * noise) / shares).min(dim=1, keepdim=True).values
    counts = (counts - lowest.clamp(max=0) * shares).clamp(min=0)
    has_neighbours = counts.sum(dim=1) > 0
    own_shares = counts.diagonal()[has_neighbours] / counts.sum(dim=1)[has_neighbours]
    own = float(own_shares.mean()) if len(own_shares) else 0.0
    return own * (num_classes - 1) > LEAST_ODDS * (1 - own)
