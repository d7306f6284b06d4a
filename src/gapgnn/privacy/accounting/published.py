"""The paper's own formulas, kept for comparison: upper bounds of what the accountants report.

Both are for noise of standard deviation sigma on an aggregation whose sensitivity the paper takes
as 1 (edge level) or sqrt(D) (node level). They use the plain conversion from RDP, epsilon(alpha) +
log(1/delta) / (alpha - 1), which is why they ask for more noise than needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gapgnn.errors import check_integer, check_number
from gapgnn.privacy.accounting.events import Event, Gaussian, PoissonGaussian


def paper_edge_epsilon(sigma: float, hops: int, delta: float) -> float:
    """Return epsilon by the paper's edge-level proposition (relation ``directed``, sensitivity 1).

    ``K / (2 sigma^2) + sqrt(2 K log(1/delta)) / sigma``. For another relation give sigma in
    sensitivities, that is the noise multiplier.

    >>> round(paper_edge_epsilon(8.152, 2, 1e-7), 3)
    1.0
    """
    check_number("sigma", sigma, above=0)
    shift = math.sqrt(check_integer("hops", hops, at_least=1)) / sigma
    return shift * shift / 2 + shift * math.sqrt(2 * _log_inverse(delta))


def paper_edge_sigma(epsilon: float, hops: int, delta: float) -> float:
    """Return the sigma at which :func:`paper_edge_epsilon` is ``epsilon``.

    >>> round(paper_edge_sigma(1.0, 2, 1e-7), 3)
    8.152
    """
    check_number("epsilon", epsilon, above=0)
    check_integer("hops", hops, at_least=1)
    root = math.sqrt(2 * _log_inverse(delta))
    # The positive root of x^2 / 2 + root x = epsilon, without subtracting nearly equal numbers.
    shift = 2 * epsilon / (root + math.sqrt(root * root + 2 * epsilon))
    return math.sqrt(hops) / shift


def paper_node_epsilon(
    sigma: float,
    hops: int,
    delta: float,
    *,
    max_degree: int,
    training: Sequence[PoissonGaussian] = (),
) -> float:
    """Return epsilon by the paper's node-level proposition (relation ``add-remove``).

    ``e1(alpha) + e5(alpha) + D K alpha / (2 sigma^2) + log(1/delta) / (alpha - 1)``, minimised over
    alpha, where e1 and e5 are the RDP of the DP-SGD steps of encoder and classifier in
    ``training``.

    >>> steps = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
    >>> round(paper_node_epsilon(10.0, 2, 1e-5, max_degree=100, training=[steps]), 2)
    8.79
    """
    check_number("sigma", sigma, above=0)
    degree = check_integer("max_degree", max_degree, at_least=1)
    aggregation = Gaussian(sigma / math.sqrt(degree), count=check_integer("hops", hops, at_least=1))
    return plain_rdp_epsilon([*training, aggregation], delta, relation="add-remove")


def plain_rdp_epsilon(events: Sequence[Event], delta: float, *, relation: str) -> float:
    """Return epsilon by the paper's conversion from RDP, for any composition and relation.

    >>> round(plain_rdp_epsilon([Gaussian(8.152, count=2)], 1e-7, relation="directed"), 3)
    1.0
    """
    from gapgnn.privacy.accounting.rdp import ORDERS, renyi_curve

    curve = renyi_curve(events, relation=relation)
    return float(np.min(curve + _log_inverse(delta) / (ORDERS - 1)))


def _log_inverse(delta: float) -> float:
    return -math.log(check_number("delta", delta, above=0, below=1))
