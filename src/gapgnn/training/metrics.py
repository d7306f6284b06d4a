"""Metrics of predictions, chosen so that a trivial model is recognised as one.

If nine of ten nodes have one class, always predicting it has 90 % accuracy and no use. Accuracy is
therefore always reported with the share of the largest class, figures per class, ranking metrics
and the calibration error. If one class is rare, the metrics of interest are average precision, and
recall, precision and lift of the top 1 % and 5 % (:class:`Ranking`).

All of it is computed from labels without noise. At edge level labels are public; at node level
these figures are for the curator only (privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, check_choice

# Shares of the nodes in a ranking's top, by the names of the figures.
TOP_SHARES = {"top_1_percent": 0.01, "top_5_percent": 0.05}
# The share of the nodes that are of the class: recall and precision are equal there.
OWN_SHARE = "own_share"
_RECALLS = {f"recall_at_{name}": name for name in TOP_SHARES}
# Names of the figures that `score` can be asked for.
METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "average_precision", *_RECALLS)
CALIBRATION_BINS = 15
# A class with a smaller share is called rare.
RARE = 0.25
# Where the precision-recall curve is kept: recall 0.05 to 1.
CURVE_RECALLS = tuple(round(0.05 * step, 2) for step in range(1, 21))


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one class.

    Attributes:
        recall: share of its nodes that are predicted as it.
        precision: share of the nodes predicted as it that are of it; None where there are none.
        support: number of its nodes.
    """

    recall: float | None
    precision: float | None
    support: int


@dataclass(frozen=True)
class Top:
    """Figures of the nodes with the highest probability of a class.

    If several nodes have the probability at which the top ends, figures are means over their
    possible orders.

    Attributes:
        nodes: number of nodes in the top, at least 1.
        recall: share of the nodes of the class that are in it.
        precision: share of its nodes that are of the class.
        lift: precision over the share of the class: how many times better than drawing nodes.
    """

    nodes: int
    recall: float
    precision: float
    lift: float


@dataclass(frozen=True)
class Ranking:
    """Ranking metrics of the probabilities of one class.

    Attributes:
        positive: name of the class.
        support: number of its nodes.
        share: of all nodes; the average precision of guessing.
        average_precision: mean over the nodes of the class of the precision of the nodes ranked
            down to it.
        top: figures by name of the top: the highest 1 % and 5 % of the nodes, and as many nodes as
            are of the class.
        curve: the precision-recall curve: the highest precision that is reached with at least
            recall 0.05, 0.1 and so on to 1.
    """

    positive: str
    support: int
    share: float
    average_precision: float
    top: dict[str, Top]
    curve: tuple[float, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ranking:
        """Read back plain values."""
        top = {name: Top(**part) for name, part in values["top"].items()}
        return cls(**{**values, "top": top, "curve": tuple(values["curve"])})


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
        ranking: of the positive class; None if no node or all nodes are of it.
    """

    accuracy: float
    majority: float
    balanced_accuracy: float
    macro_f1: float
    auc: float | None
    calibration_error: float
    per_class: dict[str, ClassFigures]
    ranking: Ranking | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which read back are the same."""
        values = asdict(self)
        if self.ranking is not None:
            values["ranking"]["curve"] = list(self.ranking.curve)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Metrics:
        """Read back what :meth:`to_dict` wrote.

        >>> one = measure(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 1]), np.array([0, 1]))
        >>> Metrics.from_dict(one.to_dict()) == one
        True
        """
        classes = {name: ClassFigures(**part) for name, part in values["per_class"].items()}
        ranking = values["ranking"]
        found = None if ranking is None else Ranking.from_dict(ranking)
        return cls(**{**values, "per_class": classes, "ranking": found})

    def find(self, metric: str) -> float | None:
        """Return one of :data:`METRICS` by name; None where only one class occurs."""
        check_choice("metric", metric, METRICS)
        if metric == "average_precision":
            return None if self.ranking is None else self.ranking.average_precision
        if metric in _RECALLS:
            return None if self.ranking is None else self.ranking.top[_RECALLS[metric]].recall
        value: float | None = getattr(self, metric)
        return value

    def get(self, metric: str) -> float:
        """Return one of :data:`METRICS` by name."""
        value = self.find(metric)
        if value is None:
            raise InputError(
                f"`metric` {metric} must have nodes of at least two classes. Got one class."
            )
        return value


def measure(
    probabilities: NDArray[Any],
    answers: NDArray[np.int64],
    labels: NDArray[np.int64],
    class_names: Sequence[str] | None = None,
    positive: int | None = None,
) -> Metrics:
    """Compare answers and probabilities with labels.

    Args:
        probabilities: of every class, ``(nodes, classes)``.
        answers: the class that is predicted for each node; need not be the most probable one.
        labels: the true class of each node.
        class_names: of the classes; numbers if left out.
        positive: the positive class; the rarest of these labels if left out.

    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    >>> found = measure(probabilities, np.zeros(4, dtype=int), np.array([0, 0, 0, 1]))
    >>> found.accuracy, found.majority, found.balanced_accuracy, found.auc
    (0.75, 0.75, 0.5, 1.0)
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    if not len(labels):
        raise InputError("`labels` must have at least one node. Got none.")
    classes = probabilities.shape[1]
    names = [str(k) for k in range(classes)] if class_names is None else list(class_names)
    # NaN for an empty denominator: a class that does not occur has no recall.
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, answers, labels=np.arange(classes), zero_division=np.nan
    )
    if positive is None:
        positive = rarest_class(labels, classes)
    return Metrics(
        accuracy=float(accuracy_score(labels, answers)),
        majority=float(support.max() / len(labels)),
        balanced_accuracy=float(np.nanmean(recall)),
        macro_f1=float(np.nanmean(f1)),
        auc=area_under_curve(probabilities, labels),
        calibration_error=calibration_error(probabilities, answers, labels),
        per_class={
            name: ClassFigures(
                recall=None if np.isnan(recall[k]) else float(recall[k]),
                precision=None if np.isnan(precision[k]) else float(precision[k]),
                support=int(support[k]),
            )
            for k, name in enumerate(names)
        },
        ranking=rank(probabilities[:, positive], labels == positive, names[positive]),
    )


def rarest_class(labels: NDArray[np.int64], num_classes: int) -> int:
    """Return the class with the fewest nodes among those that occur; of equal ones the last.

    >>> rarest_class(np.array([0, 1, 1, 2, 2, -1]), 4), rarest_class(np.array([0, 1]), 2)
    (0, 1)
    """
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    if not counts.any():
        return num_classes - 1
    return int(np.flatnonzero(counts == counts[counts > 0].min())[-1])


def rank(
    probabilities: NDArray[Any], is_member: NDArray[np.bool_], positive: str
) -> Ranking | None:
    """Return the ranking metrics of a class; None if no node or all nodes are of it.

    Args:
        probabilities: of the class, one for each node.
        is_member: which nodes are of it.
        positive: its name.

    >>> found = rank(np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, False, True, False]), "high")
    >>> round(found.average_precision, 3), found.top["own_share"].recall, found.curve[9:11]
    (0.833, 0.5, (1.0, 0.6666666666666666))
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    members, nodes = int(is_member.sum()), len(is_member)
    if not 0 < members < nodes:
        return None
    # NaN of a diverged network ranks last.
    scores = np.nan_to_num(probabilities.astype(np.float64), nan=-1.0)
    precision, recall, _ = precision_recall_curve(is_member, scores)
    sizes = {name: max(1, round(share * nodes)) for name, share in TOP_SHARES.items()}
    return Ranking(
        positive=positive,
        support=members,
        share=members / nodes,
        average_precision=float(average_precision_score(is_member, scores)),
        top={
            name: _top(scores, is_member, size)
            for name, size in {**sizes, OWN_SHARE: members}.items()
        },
        curve=tuple(float(precision[recall >= at - 1e-9].max()) for at in CURVE_RECALLS),
    )


def _top(scores: NDArray[np.float64], is_member: NDArray[np.bool_], size: int) -> Top:
    last = np.partition(scores, len(scores) - size)[len(scores) - size]
    above, tied = scores > last, scores == last
    hits = is_member[above].sum() + (size - above.sum()) * is_member[tied].mean()
    precision = float(hits / size)
    return Top(
        nodes=size,
        recall=float(hits / is_member.sum()),
        precision=precision,
        lift=precision / float(is_member.mean()),
    )


def area_under_curve(probabilities: NDArray[Any], labels: NDArray[np.int64]) -> float | None:
    """Return the area under the ROC curve, one class against the rest; ties count a half.

    >>> area_under_curve(np.array([[0.2, 0.8], [0.5, 0.5], [0.5, 0.5]]), np.array([1, 1, 0]))
    0.75
    """
    from sklearn.metrics import roc_auc_score

    classes = probabilities.shape[1]
    scores = np.nan_to_num(probabilities.astype(np.float64), nan=-1.0)
    # With two classes the area of one is the area of the other.
    areas = [
        float(roc_auc_score(labels == k, scores[:, k]))
        for k in (range(classes) if classes > 2 else (1,))
        if 0 < (labels == k).sum() < len(labels)
    ]
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
    found = _mean_values([run.to_dict() for run in runs])
    assert isinstance(found, dict)
    return found


def _mean_values(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, of the entries of tables and of lists; a text as it is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        return {key: _mean_values([value[key] for value in known]) for key in known[0]}
    if isinstance(known[0], tuple | list):
        return [_mean_values(part) for part in zip(*known, strict=True)]
    return known[0] if isinstance(known[0], str) else sum(known) / len(known)


def shortcomings(
    runs: Sequence[Metrics],
    without_graph: Sequence[Metrics] = (),
    *,
    metric: str = "auto",
    threshold: str | float | None = None,
) -> list[str]:
    """Return one sentence per shortcoming of a model.

    With a threshold or a ranking metric accuracy is not the objective: the model is compared with
    guessing, not with the largest class.

    Args:
        runs: the figures of every repeat.
        without_graph: those of a model that ignores the graph, if one was trained.
        metric: chosen for the training; ``auto`` if none was.
        threshold: given by name or as a number; None if none was.

    >>> answers, labels = np.zeros(10, dtype=int), np.array([0] * 9 + [1])
    >>> useless = measure(np.array([[0.9, 0.1]] * 10), answers, labels, ["low", "high"])
    >>> for sentence in shortcomings([useless]):
    ...     print(sentence.partition(":")[0])
    Not better than always answering 'low', which is right for 90.0% of the test nodes
    The recall of class 'high' is 0
    """
    mean = mean_metrics(runs)
    support = {name: figures["support"] for name, figures in mean["per_class"].items()}
    occurring = [name for name, count in support.items() if count]
    guessing = 1 / len(occurring)
    sentences = []
    error = (mean["accuracy"] * (1 - mean["accuracy"]) / sum(support.values())) ** 0.5
    still_ranked = _still_ranked(mean["ranking"], threshold)
    guessed = _against_guessing(mean, metric, threshold)
    # A model with a high recall of the other classes may be below the majority in accuracy.
    has_recall = mean["balanced_accuracy"] > guessing + 0.3 * (1 - guessing)
    if guessed is not None:
        sentences += [f"{guessed}{still_ranked}"] if guessed else []
    elif mean["accuracy"] <= mean["majority"] + error and not has_recall:
        largest = max(support, key=lambda name: support[name] or 0)
        sentences.append(
            f"Not better than always answering {largest!r}, which is right for "
            f"{mean['majority']:.1%} of the test nodes: balanced accuracy is "
            f"{mean['balanced_accuracy']:.1%} where guessing has {guessing:.1%}.{still_ranked}"
        )
    lost = [name for name in occurring if not mean["per_class"][name]["recall"]]
    if lost:
        names = ", ".join(repr(name) for name in lost[:5]) + (" ..." if len(lost) > 5 else "")
        classes, its = ("class", "its") if len(lost) == 1 else ("classes", "their")
        as_it = "it" if len(lost) == 1 else "its own class"
        is_first = not sentences and mean["ranking"] is not None
        is_ranked = is_first and mean["ranking"]["positive"] in lost
        sentences.append(
            f"The recall of {classes} {names} is 0: not one of {its} test nodes is predicted as "
            f"{as_it}.{still_ranked if is_ranked else ''}"
        )
    if without_graph:
        other = mean_metrics(without_graph)
        if not any(
            (mean[name] or 0) > (other[name] or 0) + error
            for name in ("accuracy", "auc", "macro_f1")
        ) and not _ranks_better(mean["ranking"], other["ranking"]):
            sentences.append(
                "Not better than ignoring the graph: features alone reach "
                f"{other['accuracy']:.1%}{_shown_auc(other)}, and read no edge."
            )
    return sentences


def _against_guessing(
    mean: dict[str, Any], metric: str, threshold: str | float | None
) -> str | None:
    """Compare with guessing by the chosen threshold or metric.

    Guessing predicts or ranks nodes at random, so its precision is the share of the class.

    Returns:
        A sentence if the model is not better; an empty string if it is; None if neither a threshold
        nor a ranking metric was chosen.
    """
    ranking = mean["ranking"]
    if ranking is None:
        return None
    name, share, support = ranking["positive"], ranking["share"], ranking["support"]
    if threshold is not None:
        of_class = mean["per_class"][name]
        precision = of_class["precision"]
        if precision is None:
            return None
        flagged = max(1.0, of_class["recall"] * support / precision) if precision else 1.0
        where = f"{precision:.1%} of the test nodes predicted as {name!r} are of it"
    elif metric in _RECALLS:
        top = ranking["top"][_RECALLS[metric]]
        precision, flagged = top["precision"], top["nodes"]
        percent = f"{TOP_SHARES[_RECALLS[metric]]:.0%}"
        where = f"{precision:.1%} of the top {percent} of the test nodes are of class {name!r}"
    elif metric == "average_precision":
        if _ranks_better(ranking, {**ranking, "average_precision": share}):
            return ""
        reached = ranking["average_precision"]
        return (
            f"Not better than guessing by more than chance: average precision of class {name!r} is "
            f"{reached:.3f} where guessing has {share:.3f}."
        )
    elif metric == "auc" and mean["auc"] is not None:
        others = support / share - support
        # Standard error of the rank sum under a random order.
        error = ((support + others + 1) / (12 * support * others)) ** 0.5
        if mean["auc"] > 0.5 + error:
            return ""
        return (
            f"Not better than guessing by more than chance: AUC is {mean['auc']:.3f} where "
            "guessing has 0.500."
        )
    else:
        return None
    if precision > share + (share * (1 - share) / flagged) ** 0.5:
        return ""
    return (
        f"Not better than guessing by more than chance: {where}, and {share:.1%} of all test nodes."
    )


def _still_ranked(ranking: dict[str, Any] | None, threshold: str | float | None) -> str:
    """Return a note if the ranking is better than chance although the predictions are not."""
    guessed = None if ranking is None else {**ranking, "average_precision": ranking["share"]}
    if ranking is None or not _ranks_better(ranking, guessed):
        return ""
    another = "`threshold`" if threshold is None else "another `threshold`"
    return (
        f" Its probabilities of {ranking['positive']!r} still rank the nodes: average precision "
        f"is {ranking['average_precision']:.3f} where guessing has {ranking['share']:.3f}. Sort by "
        f"them, or set {another}."
    )


def _ranks_better(ranking: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Return whether average precision is higher by more than its standard error."""
    if ranking is None or other is None:
        return False
    reached = ranking["average_precision"]
    error = (reached * (1 - reached) / max(1.0, ranking["support"])) ** 0.5
    return bool(reached > other["average_precision"] + error)


def _shown_auc(mean: dict[str, Any]) -> str:
    return "" if mean["auc"] is None else f" (AUC {mean['auc']:.2f})"


def best_threshold(
    probabilities: NDArray[Any], is_member: NDArray[np.bool_], metric: str = "balanced_accuracy"
) -> float:
    """Return the threshold on a class's probability with the best value of a metric.

    Candidates are the midpoints between consecutive probabilities; of ties the one nearest to 0.5.

    Args:
        probabilities: probability of the class, one for each node.
        is_member: which nodes are of it.
        metric: ``accuracy`` or ``macro_f1``; all others mean balanced accuracy, because a threshold
            does not change a ranking.

    >>> best_threshold(np.array([0.1, 0.2, 0.3, 0.1]), np.array([False, True, True, False]))
    0.15
    """
    members, others = int(is_member.sum()), int((~is_member).sum())
    if not members or not others:
        return 0.5
    order = np.argsort(probabilities, kind="stable")[::-1]
    ordered = probabilities[order].astype(np.float64)
    hits, alarms = np.cumsum(is_member[order]), np.cumsum(~is_member[order])
    # Equal probabilities cannot be separated.
    cuts = np.flatnonzero(ordered[1:] < ordered[:-1])
    if not len(cuts):
        return 0.5
    middles = (ordered[cuts] + ordered[cuts + 1]) / 2
    hits, alarms = hits[cuts], alarms[cuts]
    gains: Any = hits / members - alarms / others
    if metric == "accuracy":
        gains = (hits - alarms) / len(probabilities)
    elif metric == "macro_f1":
        rejected = others - alarms
        of_others = 2 * rejected / (others + rejected + members - hits)
        gains = 2 * hits / (members + hits + alarms) + of_others
    best = np.flatnonzero(gains >= gains.max() - 1e-12)
    return round(float(middles[best[np.argmin(np.abs(middles[best] - 0.5))]]), 6)


def share_threshold(probabilities: NDArray[Any], share: float) -> float:
    """Return the threshold on a class's probability that predicts it for a share of these nodes.

    It is the midpoint between two consecutive probabilities. Nodes with equal probabilities are all
    on one side, whichever is nearer to the share.

    >>> share_threshold(np.array([0.1, 0.2, 0.3, 0.7]), 0.25)
    0.5
    """
    values = np.sort(probabilities.astype(np.float64))[::-1]
    cuts = np.flatnonzero(values[1:] < values[:-1])
    if not len(cuts):
        return 0.5
    cut = cuts[np.argmin(np.abs(cuts + 1 - share * len(values)))]
    return float((values[cut] + values[cut + 1]) / 2)
