"""Decisions about classes: weights, thresholds, the positive class, and figures of test nodes.

Below node level labels are public, and what is chosen by them after the releases is
post-processing. At node level a weight or threshold is a number or follows from declared rates
(privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, check_choice
from gapgnn.graph import Graph
from gapgnn.methods.configs import MethodConfig
from gapgnn.privacy import PublicFacts
from gapgnn.training import (
    Criterion,
    Metrics,
    Splits,
    best_threshold,
    class_weights,
    measure,
    rarest_class,
    share_threshold,
)


@dataclass(frozen=True)
class RepeatAnswers:
    """Scores and labels of one repeat's test nodes.

    Attributes:
        scores: class scores.
        labels: the classes.
        threshold: of the predictions.
        positive: the positive class.
    """

    scores: Tensor
    labels: NDArray[np.int64]
    threshold: float | None
    positive: int

    def metrics(self, names: Sequence[str] | None) -> Metrics:
        """Return all figures."""
        known = self.labels >= 0
        found = probabilities(self.scores, known)
        answers = decide(found, self.threshold)
        return measure(found, answers, self.labels[known], names, self.positive)


def probabilities(scores: Tensor, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the class probabilities of some nodes, as predictions have them."""
    chosen = scores.detach()[torch.from_numpy(mask).to(scores.device)]
    found: NDArray[np.float32] = torch.softmax(chosen.double(), dim=-1).float().cpu().numpy()
    return found


def decide(found: NDArray[Any], threshold: float | None) -> NDArray[np.int64]:
    """Return the answer for class probabilities: the most probable class, or by a threshold.

    >>> decide(np.array([[0.7, 0.3], [0.2, 0.8]]), 0.25).tolist()
    [1, 1]
    """
    if threshold is not None:
        return (found[:, 1] >= threshold).astype(np.int64)
    answers: NDArray[np.int64] = found.argmax(axis=1)
    return answers


def weights_of(config: MethodConfig, facts: PublicFacts) -> tuple[float, ...] | None:
    """Return what a node of each class counts; at node level rates are declared or not known."""
    if config.class_weight is None:
        return None
    rates = facts.declared_rates if config.level == "node" else facts.counted_rates
    found = class_weights(config.class_weight, names=facts.class_names, rates=rates)
    return None if found is None else tuple(found)


def check_classes(config: MethodConfig, graph: Graph, facts: PublicFacts) -> None:
    """Refuse weights, names or a threshold that do not fit, before the charge."""
    weights_of(config, facts)
    positive_class(config, graph)
    if config.threshold in ("rate", "prior"):
        rates_of(config, facts)
    if config.threshold is not None and facts.num_classes != 2:
        raise InputError(
            "`threshold` must be left out unless there are two classes. Got "
            f"{facts.num_classes} classes."
        )


def rates_of(config: MethodConfig, facts: PublicFacts) -> Sequence[float]:
    """Return the share of each class: declared, or below node level counted in training."""
    if facts.rates is None:
        raise InputError(
            f"`threshold` {config.threshold} must have declared rates of the classes at level "
            "node: their counts are private. Got none; declare `rates` beside the classes in "
            "the schema, or give a number."
        )
    return facts.rates


def positive_class(config: MethodConfig, graph: Graph) -> int:
    """Return the positive class, which figures for the curator refer to.

    Below node level a metric of it may select an epoch, from public labels.
    """
    if config.positive is not None:
        names = list(graph.label_names or map(str, range(graph.num_classes)))
        return names.index(check_choice("positive", str(config.positive), names))
    label = None if graph.schema is None else graph.schema.label
    declared = None if label is None else label.rates
    if declared is not None:
        # Of equal ones the last.
        return len(declared) - 1 - int(np.argmin(declared[::-1]))
    trained = graph.labels[graph.train_mask]
    return rarest_class(trained if (trained >= 0).any() else graph.labels, graph.num_classes)


def criterion_of(config: MethodConfig, graph: Graph) -> Criterion | None:
    """Return what is chosen by on validation nodes; None where no metric is named."""
    if config.metric == "auto" or config.level == "node":
        return None
    return Criterion(config.metric, positive_class(config, graph))


def thresholds_of(
    config: MethodConfig, facts: PublicFacts, scores: Tensor, splits: Splits, graph: Graph
) -> Sequence[float | None]:
    """Return the threshold of every repeat."""
    if config.threshold == "auto":
        metric = "balanced_accuracy" if config.metric == "auto" else config.metric
        return [
            best_threshold(probabilities(one, val)[:, 1], graph.labels[val] == 1, metric)
            for one, val in zip(scores, splits.val, strict=True)
        ]
    if config.threshold == "rate":
        # Training nodes are known, and better predicted than others.
        rate = rates_of(config, facts)[1]
        return [
            share_threshold(probabilities(one, ~train)[:, 1], rate)
            for one, train in zip(scores, splits.train, strict=True)
        ]
    number = rates_of(config, facts)[1] if config.threshold == "prior" else config.threshold
    return [number] * len(scores)


def answers_of_repeats(
    scores: Tensor,
    splits: Splits,
    graph: Graph,
    thresholds: Sequence[float | None],
    positive: int,
) -> list[RepeatAnswers]:
    """Return what every repeat answers for its own test nodes."""
    # By position: a mask would be gone through again for each of them.
    nodes = [np.flatnonzero(test) for test in splits.test]
    return [
        RepeatAnswers(
            one[torch.from_numpy(own).to(one.device)].detach(), graph.labels[own], line, positive
        )
        for one, own, line in zip(scores, nodes, thresholds, strict=True)
    ]
