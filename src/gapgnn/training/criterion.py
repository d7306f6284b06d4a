"""Model selection on validation nodes, for all repeats at once.

:mod:`gapgnn.training.metrics` evaluates a trained model; a criterion selects during training: the
epoch that is kept, and the mixing weight of a stage. Validation labels are public at edge level, so
the selection is post-processing. At node level nothing is selected by labels (privacy page,
section 10).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapgnn.errors import check_choice
from gapgnn.training.metrics import METRICS, TOP_SHARES

# Share of the validation loss subtracted from the metric, which breaks ties between candidates if
# nodes of a class are few.
LOSS_SHARE = 1e-3


@dataclass(frozen=True)
class Criterion:
    """A metric for model selection; higher is better.

    Attributes:
        metric: one of :data:`~gapgnn.training.metrics.METRICS`.
        positive: the positive class.
    """

    metric: str
    positive: int

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)

    def of(self, scores: Tensor, labels: Tensor, known: Tensor) -> Tensor:
        """Return the metric of every repeat, ``(R,)``, less a thousandth of the log loss.

        If the metric is not defined, for example without a node of the class, the loss alone
        decides. Nodes with equal scores are ranked by position.

        Args:
            scores: logits or log-probabilities, ``(R, nodes, classes)``.
            labels: of these nodes, ``(R, nodes)``; any class where it is not known.
            known: mask of the nodes that count, ``(R, nodes)``.

        >>> scores = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [0.0, -1.0]]])
        >>> labels, known = torch.tensor([[1, 0, 1, 0]]), torch.ones(1, 4, dtype=torch.bool)
        >>> round(float(Criterion("average_precision", 1).of(scores, labels, known)), 2)
        0.83
        """
        logs = torch.log_softmax(scores.double(), dim=-1)
        labels = labels.clamp(min=0)
        count = known.sum(dim=1).clamp(min=1)
        losses = -logs.gather(-1, labels.unsqueeze(-1))[..., 0] * known
        loss = LOSS_SHARE * losses.sum(dim=1) / count
        figure = self._figure(logs, labels, known, count)
        return torch.nan_to_num(figure, nan=0.0) - loss

    def _figure(self, logs: Tensor, labels: Tensor, known: Tensor, count: Tensor) -> Tensor:
        classes = range(logs.shape[-1])
        if self.metric == "auc":
            areas = [_area(logs[..., k], (labels == k) & known, known) for k in classes]
            return torch.stack(areas).nanmean(dim=0)
        if self.metric == "average_precision" or self.metric.startswith("recall_at"):
            member = (labels == self.positive) & known
            found, place = _in_order(logs[..., self.positive], member, known)
            if self.metric == "average_precision":
                precision = found.cumsum(dim=1) / place
                return (precision * found).sum(dim=1) / member.sum(dim=1)
            share = TOP_SHARES[self.metric.removeprefix("recall_at_")]
            most = (share * count).round().clamp(min=1).unsqueeze(1)
            return (found * (place <= most)).sum(dim=1) / member.sum(dim=1)
        answers = logs.argmax(dim=-1)
        right = (answers == labels) & known
        if self.metric == "accuracy":
            return right.sum(dim=1).double() / count
        hits = torch.stack([(right & (labels == k)).sum(dim=1) for k in classes]).double()
        support = torch.stack([((labels == k) & known).sum(dim=1) for k in classes])
        if self.metric == "balanced_accuracy":
            return (hits / support).nanmean(dim=0)
        called = torch.stack([((answers == k) & known).sum(dim=1) for k in classes])
        return (2 * hits / (support + called)).nanmean(dim=0)


def _in_order(scores: Tensor, member: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return which nodes are of the class, highest score first, and the places from 1."""
    order = scores.masked_fill(~known, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=torch.float64)
    return member.gather(1, order).double(), place


def _area(scores: Tensor, member: Tensor, known: Tensor) -> Tensor:
    """Return the area under the ROC curve of one class; not a number where it is not defined."""
    found, place = _in_order(scores, member, known)
    members, total = found.sum(dim=1), known.sum(dim=1)
    # Others ranked above a member: its rank, less the number of members up to it.
    before = ((place - found.cumsum(dim=1)) * found).sum(dim=1)
    return 1 - before / (members * (total - members))
