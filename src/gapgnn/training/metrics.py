"""How good predictions are, told so that a useless model cannot look like a good one.

Where nine of ten nodes have one class, answering that class is 90 % accurate and finds nobody. So
accuracy never stands alone: beside it are the share of the largest class, what each class gets, how
well the scores order the nodes, and whether the probabilities mean what they say.

All of it is computed from labels without noise. At edge level labels are public; at node level
these figures are for the curator only (privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from gapgnn.errors import InputError, check_choice

# Names of the figures that `score` can be asked for.
METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auc")
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class ClassFigures:
    """What one class gets.

    Attributes:
        recall: share of its nodes that are predicted as it.
        precision: share of the nodes predicted as it that are of it; None where there are none.
        support: number of its nodes.
    """

    recall: float | None
    precision: float | None
    support: int


@dataclass(frozen=True)
class Metrics:
    """Figures over some nodes with known labels.

    Attributes:
        accuracy: share of right answers.
        majority: share of the largest class: the accuracy of always answering it.
        balanced_accuracy: mean recall over the classes that occur; chance is 1 over their number.
        macro_f1: mean F1 over the classes that occur or are answered.
        auc: probability that a node of a class scores higher for it than another one; with more
            than two classes the mean over the classes. None where only one class occurs.
        calibration_error: mean distance between the probability of an answer and how often answers
            of that probability are right, over 15 bins of equal width.
        per_class: recall, precision and support by class name.
    """

    accuracy: float
    majority: float
    balanced_accuracy: float
    macro_f1: float
    auc: float | None
    calibration_error: float
    per_class: dict[str, ClassFigures]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Metrics:
        """Read back what :meth:`to_dict` wrote.

        >>> one = measure(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 1]), np.array([0, 1]))
        >>> Metrics.from_dict(one.to_dict()) == one
        True
        """
        classes = {name: ClassFigures(**part) for name, part in values["per_class"].items()}
        return cls(**{**values, "per_class": classes})

    def get(self, metric: str) -> float:
        """Return one of :data:`METRICS` by name."""
        value: float | None = getattr(self, check_choice("metric", metric, METRICS))
        if value is None:
            raise InputError("`metric` auc must have nodes of at least two classes. Got one class.")
        return value


def measure(
    probabilities: NDArray[Any],
    answers: NDArray[np.int64],
    labels: NDArray[np.int64],
    class_names: Sequence[str] | None = None,
) -> Metrics:
    """Compare answers and probabilities with labels.

    Args:
        probabilities: of every class, ``(nodes, classes)``.
        answers: the class that is predicted for each node; need not be the most probable one.
        labels: the true class of each node.
        class_names: of the classes; numbers if left out.

    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    >>> found = measure(probabilities, np.zeros(4, dtype=int), np.array([0, 0, 0, 1]))
    >>> found.accuracy, found.majority, found.balanced_accuracy, found.auc
    (0.75, 0.75, 0.5, 1.0)
    """
    if not len(labels):
        raise InputError("`labels` must have at least one node. Got none.")
    classes = probabilities.shape[1]
    names = [str(k) for k in range(classes)] if class_names is None else list(class_names)
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels, answers), 1)
    hits, support, called = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    occurs = support > 0
    recall = hits / np.maximum(support, 1)
    f1 = 2 * hits / np.maximum(support + called, 1)
    return Metrics(
        accuracy=float(hits.sum() / len(labels)),
        majority=float(support.max() / len(labels)),
        balanced_accuracy=float(recall[occurs].mean()),
        macro_f1=float(f1[occurs | (called > 0)].mean()),
        auc=area_under_curve(probabilities, labels),
        calibration_error=calibration_error(probabilities, answers, labels),
        per_class={
            name: ClassFigures(
                recall=float(recall[k]) if occurs[k] else None,
                precision=float(hits[k] / called[k]) if called[k] else None,
                support=int(support[k]),
            )
            for k, name in enumerate(names)
        },
    )


def area_under_curve(probabilities: NDArray[Any], labels: NDArray[np.int64]) -> float | None:
    """Return the area under the ROC curve, one class against the rest; ties count a half.

    >>> area_under_curve(np.array([[0.2, 0.8], [0.5, 0.5], [0.5, 0.5]]), np.array([1, 1, 0]))
    0.75
    """
    classes = probabilities.shape[1]
    areas = []
    # With two classes the area of one is the area of the other.
    for k in range(classes) if classes > 2 else (1,):
        is_member = labels == k
        members, others = int(is_member.sum()), int((~is_member).sum())
        if members and others:
            ranks = rankdata(probabilities[:, k])[is_member].sum()
            areas.append((ranks - members * (members + 1) / 2) / (members * others))
    return float(np.mean(areas)) if areas else None


def calibration_error(
    probabilities: NDArray[Any], answers: NDArray[np.int64], labels: NDArray[np.int64]
) -> float:
    """Return the expected calibration error of the answers' probabilities.

    >>> calibration_error(np.array([[0.2, 0.8]] * 5), np.ones(5, int), np.array([1, 1, 1, 1, 0]))
    0.0
    """
    stated = probabilities[np.arange(len(answers)), answers].astype(np.float64)
    bins = np.minimum((stated * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=(answers == labels) - stated, minlength=CALIBRATION_BINS)
    return round(float(np.abs(gaps).sum() / len(answers)), 12)


def mean_metrics(runs: Sequence[Metrics]) -> dict[str, Any]:
    """Return the mean of every figure over repeats, as plain values; None where none has it.

    >>> one = measure(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 1]), np.array([0, 1]))
    >>> mean_metrics([one, one])["per_class"]["0"]
    {'recall': 1.0, 'precision': 1.0, 'support': 1.0}
    """
    return {
        item.name: _means([getattr(run, item.name) for run in runs])
        if item.name != "per_class"
        else {
            name: {
                part.name: _means([getattr(run.per_class[name], part.name) for run in runs])
                for part in fields(ClassFigures)
            }
            for name in runs[0].per_class
        }
        for item in fields(Metrics)
    }


def _means(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def shortcomings(runs: Sequence[Metrics], without_graph: Sequence[Metrics] = ()) -> list[str]:
    """Say plainly what a model fails at: one sentence each, none for a model that is fine.

    Args:
        runs: the figures of every repeat.
        without_graph: those of a model that ignores the graph, if one was trained.

    >>> answers, labels = np.zeros(10, dtype=int), np.array([0] * 9 + [1])
    >>> useless = measure(np.array([[0.9, 0.1]] * 10), answers, labels, ["low", "high"])
    >>> for sentence in shortcomings([useless]):
    ...     print(sentence.partition(":")[0])
    Not better than always answering 'low', which is right for 90.0% of the test nodes
    Of class 'high' not one test node was found.
    """
    mean = mean_metrics(runs)
    support = {name: figures["support"] for name, figures in mean["per_class"].items()}
    occurring = [name for name, count in support.items() if count]
    guessing = 1 / len(occurring)
    sentences = []
    error = (mean["accuracy"] * (1 - mean["accuracy"]) / sum(support.values())) ** 0.5
    # Below the largest class in accuracy is no fault of a model that finds the others.
    finds_others = mean["balanced_accuracy"] > guessing + 0.3 * (1 - guessing)
    if mean["accuracy"] <= mean["majority"] + error and not finds_others:
        largest = max(support, key=lambda name: support[name] or 0)
        sentences.append(
            f"Not better than always answering {largest!r}, which is right for "
            f"{mean['majority']:.1%} of the test nodes: balanced accuracy is "
            f"{mean['balanced_accuracy']:.1%} where guessing has {guessing:.1%}."
        )
    lost = [name for name in occurring if not mean["per_class"][name]["recall"]]
    if lost:
        names = ", ".join(repr(name) for name in lost[:5]) + (" ..." if len(lost) > 5 else "")
        sentences.append(f"Of class {names} not one test node was found.")
    if without_graph:
        other = mean_metrics(without_graph)
        if not any(
            (mean[name] or 0) > (other[name] or 0) + error
            for name in ("accuracy", "auc", "macro_f1")
        ):
            sentences.append(
                "Not better than ignoring the graph: features alone reach "
                f"{other['accuracy']:.1%}{_shown_auc(other)}, and read no edge."
            )
    return sentences


def _shown_auc(mean: dict[str, Any]) -> str:
    return "" if mean["auc"] is None else f" (AUC {mean['auc']:.2f})"


def best_threshold(chances: NDArray[Any], is_member: NDArray[np.bool_]) -> float:
    """Return the probability from which to answer a class so that balanced accuracy is highest.

    Between two neighbouring probabilities the middle is taken; of equally good places the one
    nearest to a half.

    >>> best_threshold(np.array([0.1, 0.2, 0.3, 0.1]), np.array([False, True, True, False]))
    0.15
    """
    members, others = int(is_member.sum()), int((~is_member).sum())
    if not members or not others:
        return 0.5
    order = np.argsort(chances, kind="stable")[::-1]
    sorted_chances = chances[order].astype(np.float64)
    recalls = np.cumsum(is_member[order]) / members
    alarms = np.cumsum(~is_member[order]) / others
    # Only between different probabilities can a line be drawn.
    cuts = np.flatnonzero(sorted_chances[1:] < sorted_chances[:-1])
    if not len(cuts):
        return 0.5
    middles = (sorted_chances[cuts] + sorted_chances[cuts + 1]) / 2
    gains = recalls[cuts] - alarms[cuts]
    best = np.flatnonzero(gains >= gains.max() - 1e-12)
    return round(float(middles[best[np.argmin(np.abs(middles[best] - 0.5))]]), 6)
