"""Figures from the papers, for comparison: facts, and a look-up.

All were measured by their authors on graphs of these names, under the relation that this package
calls ``directed``, with a Renyi accountant and with parameters chosen by validation accuracy.
Percent here, fractions from :func:`published`.
"""

from __future__ import annotations

from gapgnn.errors import check_choice

# The papers' graphs under this package's names: Facebook, Reddit, Amazon.
DATASETS = ("facebook100/UIllinois20", "reddit", "amazon")

# Test accuracy by method and epsilon (None is infinity), in the order of DATASETS. ProGAP (2024)
# computes delta from an edge count of 0, so its edge-level epsilon holds at delta 0.1 only.
ACCURACY: dict[tuple[str, float | None], tuple[float, float, float]] = {
    ("GAP-inf", None): (80.0, 99.4, 91.2),
    ("SAGE-inf", None): (83.2, 99.1, 92.7),
    ("GAP-EDP", 4.0): (76.3, 98.7, 83.8),
    ("SAGE-EDP", 4.0): (50.4, 84.6, 68.3),
    ("MLP", 0.0): (50.8, 82.4, 71.1),
    ("GAP-NDP", 8.0): (63.2, 94.0, 77.4),
    ("SAGE-NDP", 8.0): (37.2, 60.5, 27.5),
    ("MLP-DP", 8.0): (50.2, 81.5, 73.6),
    ("ProGAP-EDP", 1.0): (77.2, 97.8, 84.2),
    ("ProGAP-NDP", 8.0): (69.3, 94.0, 79.1),
}

# AUC of the membership attack, measured on the shadow model (not the target).
MEMBERSHIP: dict[tuple[str, float | None], tuple[float, float, float]] = {
    ("GAP-NDP", 1.0): (50.16, 50.04, 50.06),
    ("GAP-NDP", 2.0): (50.25, 50.39, 50.23),
    ("GAP-NDP", 4.0): (50.61, 51.20, 50.54),
    ("GAP-NDP", 8.0): (51.11, 52.23, 51.53),
    ("GAP-NDP", 16.0): (52.66, 52.54, 51.72),
    ("GAP-inf", None): (81.67, 54.97, 66.68),
    ("SAGE-NDP", 1.0): (50.25, 49.97, 49.93),
    ("SAGE-NDP", 2.0): (50.20, 49.97, 49.93),
    ("SAGE-NDP", 4.0): (50.23, 49.95, 49.93),
    ("SAGE-NDP", 8.0): (50.17, 50.00, 49.92),
    ("SAGE-NDP", 16.0): (50.20, 49.98, 49.97),
    ("SAGE-inf", None): (62.49, 50.05, 59.41),
    ("MLP-DP", 1.0): (50.32, 51.25, 50.30),
    ("MLP-DP", 2.0): (50.72, 53.09, 50.58),
    ("MLP-DP", 4.0): (52.13, 55.13, 51.43),
    ("MLP-DP", 8.0): (53.44, 56.72, 52.31),
    ("MLP-DP", 16.0): (54.77, 58.32, 53.34),
    ("MLP", None): (81.57, 71.35, 72.97),
}


def published(
    dataset: str, method: str, epsilon: float | None, *, experiment: str = "accuracy"
) -> float | None:
    """Return the papers' figure for one cell of ``accuracy`` or ``membership``, if there is one.

    >>> published("reddit", "GAP-EDP", 4.0)
    0.987
    >>> published("social", "GAP-EDP", 4.0) is None
    True
    """
    check_choice("experiment", experiment, ("accuracy", "membership"))
    figures = (ACCURACY if experiment == "accuracy" else MEMBERSHIP).get((method, epsilon))
    if figures is None or dataset not in DATASETS:
        return None
    return round(figures[DATASETS.index(dataset)] / 100, 6)
