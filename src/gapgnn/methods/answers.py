"""Predictions as rows for people: id, label, its probability, and which graph was asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gapgnn.methods.estimator import NodeClassifier


def answer_columns(
    model: NodeClassifier,
    ids: NDArray[Any],
    probabilities: NDArray[np.float32],
    *,
    is_training: bool,
) -> dict[str, Any]:
    """Return the columns of predictions, one row for each id.

    Args:
        model: the predicting model.
        ids: one per row.
        probabilities: of every class.
        is_training: whether the predictions are for the graph of training.
    """
    chosen = model.decide(probabilities)
    names: Sequence[Any] = model.label_names_ or range(model.num_classes_)
    return {
        "id": ids.tolist(),
        "label": [names[k] for k in chosen],
        "probability": probabilities[np.arange(len(chosen)), chosen],
        "graph": ["training" if is_training else "given"] * len(ids),
    }


def json_line(row: Mapping[str, Any]) -> str:
    """Return one row as a line of JSON.

    >>> json_line({"id": 7, "label": "north"})
    '{"id": 7, "label": "north"}\\n'
    """
    return json.dumps(row, ensure_ascii=False) + "\n"
