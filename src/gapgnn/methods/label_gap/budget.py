"""How NodeLabelGAP shares its budget between hop 1 and DP-SGD, by public numbers alone."""

from __future__ import annotations

import math

# The largest budget share of hop 1 where the mean out-degree is not released.
MOST_SHARE = 0.8

# The smallest budget share of hop 1 where the node's own neighbours are read.
LEAST_SHARE = 0.25


def learnability(epsilon: float, *, num_train: int, num_features: int) -> float:
    """Return how much a network can learn from features under a budget; from 1 on, enough.

    It grows with the number of training nodes and falls with the number of features, which are both
    public.

    >>> round(learnability(1.0, num_train=12000, num_features=349), 2)
    1.28
    """
    return num_train * epsilon / (500.0 * math.sqrt(max(1, num_features)))


def record_share(learned: float) -> float:
    """Return the first hop's share of the budget, as 1 / sigma squared, with ``own="record"``.

    The share grows with the learnability: a network that learns easily needs less of the budget for
    DP-SGD. Chosen on the development graphs (docs/explanation/research-notes.md).

    Args:
        learned: what :func:`learnability` returns.

    >>> record_share(0.01), record_share(0.25), record_share(4.0)
    (0.25, 0.5, 0.8)
    """
    return max(LEAST_SHARE, min(MOST_SHARE, math.sqrt(learned)))


def vote_weight(learned: float) -> float:
    """Return the weight of the votes of the node's own neighbours in the scores.

    1 up to a learnability of 1, and less above: a network that learns enough estimates by itself
    how informative neighbours are. Chosen on the development graphs (docs: research notes).

    Args:
        learned: what :func:`learnability` returns.

    >>> vote_weight(0.1), vote_weight(4.0)
    (1.0, 0.25)
    """
    return min(1.0, 1.0 / learned)


# Budget shares considered for hop 1, and the release thresholds: the utility score that each of the
# last two requires. Below the first threshold the hop is not released.
SHARES = (0.0, 0.75, 0.9)
THRESHOLDS = (0.45, 1.1)
# Price of the noisy mean out-degree: at most this share of the budget, and at most this number over
# the number of training nodes, which estimates the degree to 0.07 of a doubling.
DEGREE_SHARE, DEGREE_COST = 0.01, 143.0
# The least share of the budget, so that subtracting the price always changes the budget.
DEGREE_LEAST = 1e-6


def mean_degree_epsilon(epsilon: float, num_train: int) -> float:
    """Return the part of a budget that the noisy mean out-degree costs.

    It falls with the number of training nodes.

    >>> mean_degree_epsilon(1.0, 2000), mean_degree_epsilon(1.0, 28600)
    (0.01, 0.005)
    """
    return max(min(DEGREE_SHARE * epsilon, DEGREE_COST / num_train), DEGREE_LEAST * epsilon)


def hop_share(
    epsilon: float, mean_degree: float, *, num_train: int, num_features: int, num_classes: int
) -> float:
    """Return the first hop's share of the budget where the node's own neighbours are not read.

    A sum over few neighbours has a low signal-to-noise ratio, which falls with the number of
    classes; the budget is then better spent on DP-SGD. Chosen on the development graphs
    (docs/explanation/research-notes.md).

    Args:
        epsilon: the budget under ``add-remove``.
        mean_degree: mean out-degree, as released.
        num_train: public number of training nodes.
        num_features: number of features.
        num_classes: C.

    >>> hop_share(1.0, 57.0, num_train=12000, num_features=349, num_classes=6)
    0.75
    >>> hop_share(1.0, 2.7, num_train=15000, num_features=500, num_classes=3)
    0.0
    """
    difficulty = num_classes * math.sqrt(max(1, num_features))
    utility = num_train * epsilon * mean_degree / (7_500.0 * difficulty)
    return SHARES[sum(utility >= least for least in THRESHOLDS)]
