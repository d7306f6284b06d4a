"""How well an attacker ranks: AUC, average precision, and hits at few false alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import InputError

FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Ranking:
    """How an attacker's scores order the true cases before the others.

    Attributes:
        auc: probability that a true case is ranked before another; 0.5 is guessing.
        average_precision: area under the precision-recall curve; the share of true cases is
            guessing.
        tpr_at_1pct_fpr: share of the true cases found when one other case in a hundred is taken for
            one; 0.01 is guessing.
    """

    auc: float
    average_precision: float
    tpr_at_1pct_fpr: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values for JSON."""
        return {
            "auc": self.auc,
            "average_precision": self.average_precision,
            "tpr_at_1pct_fpr": self.tpr_at_1pct_fpr,
        }


def rank(scores: ArrayLike, truth: NDArray[np.bool_]) -> Ranking:
    """Judge scores against the truth.

    >>> rank([0.9, 0.8, 0.3, 0.1], np.array([True, True, False, False])).auc
    1.0
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    values = np.asarray(scores, dtype=np.float64)
    if truth.all() or not truth.any():
        raise InputError(
            f"`truth` must have cases of both kinds. Got {int(truth.sum())} of {len(truth)}."
        )
    fpr, tpr, _ = roc_curve(truth, values)
    return Ranking(
        float(roc_auc_score(truth, values)),
        float(average_precision_score(truth, values)),
        # The best point within the allowance: ties are not split.
        float(tpr[fpr <= FALSE_ALARMS].max()),
    )


def mean_ranking(runs: list[Ranking]) -> dict[str, Any]:
    """Return the mean of every figure over runs, and the runs themselves.

    >>> mean_ranking([Ranking(0.5, 0.4, 0.0), Ranking(0.7, 0.6, 0.02)])["auc"]
    0.6
    """
    rows = [run.to_dict() for run in runs]
    means: dict[str, Any] = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {**means, "runs": rows}
