"""``own="record"`` at edge level: a prediction that reads its own person's exact list.

Training is untouched, and everything that people sent is public: training labels, and what networks
that were trained on released rows make of released rows and of features. So at prediction v's rows
of all hops may be the exact sums, over v's own list, of what those people sent, without noise or
charge: a link (u, v) stays hidden from everybody but u and v (joint differential privacy; privacy
page, section 1). Nothing of it is stored.

Networks learned from noisy rows, and where noise outweighs a neighbourhood they learned to ignore
it. So the list also votes beside them: naive Bayes with fixed odds for each friend, and less for
each of many, because friends of one person are not independent evidence. The rule is fixed. It
depends on the graph only through released rows and public labels, which say whether friends are
alike at all; where they are not, the networks answer alone.
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

# Chosen on public graphs (docs/research-notes.md): the share in the prior of what features say
# alone.
PRIOR_SHARE = 0.75
# Friends vote where they have the own class at least so much more often than any other.
LEAST_ODDS = 3.0


@dataclass(frozen=True)
class OwnNeighbours:
    """What everybody's own list says to that person.

    Attributes:
        stages: what is sent, and the networks.
        graph: whose lists are read, with the training labels that are sent.
        released: noisy rows of each hop in units of their noise, (1, nodes, width): edge types
            side by side, and their total where it was released.
        std: standard deviation of that noise.
        both_ways: hops went along arcs and against them.
    """

    stages: Stages
    graph: Graph
    released: Sequence[Tensor]
    std: float
    both_ways: bool = False

    def scores(self) -> Tensor:
        """Return the class scores of every node, each for its own person alone."""
        device = self.released[0].device
        features = FeatureInputs(self.graph, device)
        labels = torch.tensor(self.graph.labels, device=device)
        training = torch.tensor(self.graph.train_mask, device=device)
        modules = self.stages.modules
        sent = self.stages.messages(features, labels, training.unsqueeze(0), self.released)
        first = self.stages.hop_zero(features, training.unsqueeze(0))
        arriving = [self._arriving(rows[0]) for rows in sent]
        exact = [self._as_released(kinds).unsqueeze(0) / self.std for kinds in arriving]
        scores = self.stages.scores("classifier", first, exact)[0]
        # Of several edge types, what they say together.
        heard = [self._together(hop) for hop in self.released]
        num_classes = self.stages.num_classes
        prior_sent = self.stages.prior
        if not are_alike(heard, labels, training, num_classes, prior_sent):
            return scores
        prior = torch.log_softmax(scores, dim=-1)
        if "encoder" in modules:
            is_said = self.stages.crossfit is not None
            says: Any = first if is_said else modules["encoder"](features.all())
            alone = torch.log_softmax(says[0], dim=-1)
            prior = (1 - PRIOR_SHARE) * prior + PRIOR_SHARE * alone
        sums = torch.stack(arriving[-1]).sum(dim=0)
        everybody = torch.ones_like(labels, dtype=prior.dtype).unsqueeze(-1)
        friends = torch.stack(self._arriving(everybody)).sum(dim=0)
        votes = class_counts(sums, prior_sent)
        return prior + vote_weights(friends) * votes

    def _together(self, hop: Tensor) -> Tensor:
        """Return what a released hop says of all edge types together."""
        stages = self.stages
        return blocks_of(hop, stages.num_types, with_union=stages.with_union)[-1][0]

    def _arriving(self, rows: Tensor) -> list[Tensor]:
        """Return the exact sums of what arrives at every node along each edge type."""
        return [
            exact_sums(kind, rows, arriving=True, both_ways=self.both_ways)
            for kind in self.graph.edge_types
        ]

    def _as_released(self, kinds: Sequence[Tensor]) -> Tensor:
        """Return exact sums side by side as noisy ones stand, with their total where it does."""
        has_total = self.stages.with_union
        total = [torch.stack(list(kinds)).sum(dim=0)] if has_total else []
        return torch.cat([*kinds, *total], dim=-1)


def are_alike(
    released: Sequence[Tensor],
    labels: Tensor,
    training: Tensor,
    num_classes: int,
    prior: Tensor | None = None,
) -> bool:
    """Tell from released rows and public labels whether friends tend to have the own class.

    The rows of all training nodes of a class, added up, say how many friends of each class they
    have, up to one number times the prior. It is taken to be such that no class has fewer than
    none, by more than two standard deviations of the noise.

    Args:
        released: noisy sums of class codes in units of their noise, (nodes, classes - 1) for each
            hop.
        labels: class of every node.
        training: whose labels are known.
        num_classes: C.
        prior: of the classes, (1, C), around which codes lie; None is uniform.

    >>> labels = torch.arange(600) % 3
    >>> codes, everybody = class_codes(3), torch.ones(600, dtype=torch.bool)
    >>> are_alike([codes[labels]], labels, everybody, 3)
    True
    >>> are_alike([codes[(labels + 1) % 3]], labels, everybody, 3)
    False
    """
    rows = torch.stack(list(released)).mean(dim=0)[training].double()
    totals = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64, device=rows.device)
    totals.index_add_(0, labels[training], rows)
    codes = class_codes(num_classes, rows.device).double()
    shares = torch.full((1, num_classes), 1 / num_classes, dtype=torch.float64)
    shares = (shares if prior is None else prior.double()).clamp(min=1e-9).to(rows.device)
    # Counts in units of the noise: around a prior both are shorter by the same factor.
    counts = totals @ codes.T
    people = labels[training].bincount(minlength=num_classes).unsqueeze(-1)
    noise = (people / len(released)).double().sqrt()
    lowest = ((counts + 2 * noise) / shares).min(dim=1, keepdim=True).values
    counts = (counts - lowest.clamp(max=0) * shares).clamp(min=0)
    is_heard = counts.sum(dim=1) > 0
    own_shares = counts.diagonal()[is_heard] / counts.sum(dim=1)[is_heard]
    own = float(own_shares.mean()) if len(own_shares) else 0.0
    return own * (num_classes - 1) > LEAST_ODDS * (1 - own)
