"""Messages of users' own in LabelGAP: what nodes send, with a norm bound that is declared.

At edge level features and labels are public, so a message may be computed from them and from
released rows; nothing else is given to the function. Its rows are divided by the declared bound and
then have norm at most 1, so one hop has the sensitivity of the stated relation whatever they are
(privacy page, section 1). The bound is checked on every row of every hop before it is released, and
on a trial before anything is charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph
from gapgnn.methods.label_gap.codes import class_codes
from gapgnn.training import FeatureInputs

# Rounding of float32 that a norm may be above its bound; what is sent is cut to norm 1 after it.
SLACK = 1e-5


@dataclass(frozen=True)
class Senders:
    """What the messages of one hop may be computed from: of every node, public or released.

    Attributes:
        hop: number of the hop, from 1.
        labels: class of the nodes that train, ``(nodes,)``; -1 for all others.
        codes: code of each class, ``(classes, classes - 1)``: the messages of LabelGAP itself.
        posteriors: class probabilities, ``(nodes, classes)``: in hop 1 of the feature model, later
            of the classifier trained on the hops before; None where there is none.
        released: the noisy sums of earlier hops in units of their noise, ``(nodes, columns)`` each,
            edge types side by side.
    """

    hop: int
    labels: Tensor
    codes: Tensor
    posteriors: Tensor | None
    released: Sequence[Tensor]
    _features: FeatureInputs

    @property
    def features(self) -> Tensor:
        """The features, ``(nodes, columns)``."""
        return self._features.dense()

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.codes)


class Messages(Protocol):
    """Returns the messages of one hop, a row for each node; the same ones for the same senders.

    Attributes:
        norm_bound: no row is longer than this.
        columns: of a row; without it, one less than there are classes.
    """

    norm_bound: float

    def __call__(self, senders: Senders) -> Tensor:
        """Return the messages, ``(nodes, columns)``."""


def declared_bound(messages: Any) -> float:
    """Return the declared norm bound of a function of messages; refuse one without it.

    >>> declared_bound(lambda senders: senders.features)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `messages` must declare `norm_bound`, which no row is longer than, ...
    """
    bound: Any = getattr(messages, "norm_bound", None)
    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not is_number or not 0 < float(bound) < float("inf"):
        raise InputError(
            "`messages` must declare `norm_bound`, which no row is longer than, as a positive "
            f"number: `messages.norm_bound = 1.0`. Got {bound!r}."
        )
    return float(bound)


def declared_columns(messages: Any, num_classes: int) -> int:
    """Return the number of columns of the messages, those of class codes if none is declared.

    >>> declared_columns(None, 6)
    5
    """
    columns = getattr(messages, "columns", None)
    if columns is None:
        return num_classes - 1
    if not isinstance(columns, int) or isinstance(columns, bool) or columns < 1:
        raise InputError(f"`messages.columns` must be a positive whole number. Got {columns!r}.")
    return columns


def sent_rows(messages: Messages, senders: Senders) -> Tensor:
    """Return the messages of one hop over their bound; refuse rows that are longer than it.

    Relation: any at edge level; sensitivity of a hop over the result: that of rows of norm 1.
    """
    bound, columns = declared_bound(messages), declared_columns(messages, senders.num_classes)
    with torch.no_grad():
        rows = messages(senders)
    wanted = (len(senders.labels), columns)
    if not isinstance(rows, Tensor) or tuple(rows.shape) != wanted or rows.is_complex():
        found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise InputError(
            f"`messages` must return a tensor of a row per node and {columns} columns, {wanted}. "
            f"Got {found} in hop {senders.hop}."
        )
    norms = torch.linalg.vector_norm(rows.double(), dim=-1)
    if not bool((norms <= bound * (1 + SLACK)).all()):
        raise PrivacyError(
            f"`messages` must have norm at most {bound:g}, as `norm_bound` declares. Got a row of "
            f"norm {float(norms.max()):.6g} in hop {senders.hop}."
        )
    scale = bound * torch.clamp(norms / bound, min=1.0)
    return (rows.double() / scale.unsqueeze(-1)).to(device=senders.labels.device).float()


def rows_of_repeats(
    messages: Messages,
    hop: int,
    *,
    features: FeatureInputs,
    labels: Tensor,
    sends_label: Tensor,
    codes: Tensor,
    scores: Tensor | None,
    released: Sequence[Tensor],
) -> Tensor:
    """Return the messages of one hop, ``(repeats, nodes, columns)``, each of norm at most 1.

    Args:
        messages: of the user.
        hop: number of the hop.
        features: of every node.
        labels: class of every node.
        sends_label: mask of the nodes that train, ``(repeats, nodes)``.
        codes: of the classes, for all repeats or each.
        scores: logarithms of the posteriors, ``(repeats, nodes, classes)``.
        released: earlier hops, ``(repeats, nodes, columns)`` each.
    """
    rows = [
        sent_rows(
            messages,
            Senders(
                hop=hop,
                labels=torch.where(sends, labels, -1),
                codes=codes if codes.ndim == 2 else codes[repeat],
                posteriors=None if scores is None else torch.softmax(scores[repeat], dim=-1),
                released=tuple(one[repeat] for one in released),
                _features=features,
            ),
        )
        for repeat, sends in enumerate(sends_label)
    ]
    return torch.stack(rows)


def check_messages(
    messages: Messages, graph: Graph, *, hops: int, blocks: int, has_features: bool
) -> None:
    """Try messages on a graph before anything is charged: every hop, with invented sums.

    Features and labels are public at edge level, and no edge is read.

    Args:
        messages: of the user.
        graph: whose features and labels are read.
        hops: number of hops.
        blocks: sums that a hop releases: one for each edge type, and for their union.
        has_features: whether a feature model gives posteriors in hop 1.
    """
    classes = graph.num_classes
    width = blocks * declared_columns(messages, classes)
    sums = torch.linspace(-3, 3, graph.num_nodes * width).view(graph.num_nodes, width)
    senders = Senders(
        hop=1,
        labels=torch.where(torch.tensor(graph.train_mask), torch.tensor(graph.labels), -1),
        codes=class_codes(classes),
        posteriors=None,
        released=(),
        _features=FeatureInputs(graph, torch.device("cpu")),
    )
    even = torch.full((graph.num_nodes, classes), 1 / classes)
    for hop in range(1, hops + 1):
        posteriors = even if has_features or hop > 1 else None
        senders = replace(senders, hop=hop, posteriors=posteriors, released=(sums,) * (hop - 1))
        sent_rows(messages, senders)
