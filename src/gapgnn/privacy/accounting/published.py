"""The paper's own formulas, kept for comparison: upper bounds of what the accountants report.

They use the plain conversion from RDP, epsilon(alpha) + log(1/delta) / (alpha - 1), which is why
they ask for more noise than needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gapgnn.errors import check_integer, check_number
from gapgnn.privacy.accounting.events import Event


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


def plain_rdp_epsilon(events: Sequence[Event], delta: float, *, relation: str) -> float:
    """Return epsilon by the paper's conversion from RDP, for any composition and relation.

    >>> from gapgnn.privacy.accounting import Gaussian
    >>> round(plain_rdp_epsilon([Gaussian(8.152, count=2)], 1e-7, relation="directed"), 3)
    1.0
    """
    from gapgnn.privacy.accounting.rdp import ORDERS, renyi_curve

    curve = renyi_curve(events, relation=relation)
    return float(np.min(curve + _log_inverse(delta) / (ORDERS - 1)))


def _log_inverse(delta: float) -> float:
    return -math.log(check_number("delta", delta, above=0, below=1))
