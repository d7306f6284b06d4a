"""What DP-SGD costs when an example is a node together with its in-neighbours (SAGE-NDP).

Relation ``add-remove``: one person's record (features, label and adjacency list of at most D
entries) is in one graph and not in the other. The record is one example of its own and part of at
most D others. Each example's gradient is clipped to C, so its own example moves a batch's sum by at
most C, each of the others by at most 2 C (one clipped gradient takes the place of another),
together by at most C (2 D + 1). With Poisson batches every example is there by its own coin of
probability q, so a step moves by C (o + 2 k) with o Bernoulli(q) and k binomial(D, q): a mixture of
Gaussians (privacy page, section 5).

The original theorem (Daigavane et al. 2021) is kept as a cross-check. It gives the number of
touched examples of every batch away and prices the rest by RDP.

How the mixture is used. The event's pair puts all shifts on one side, ``sum_i p_i N(s_i, m^2)``
against ``N(0, m^2)``. Here the touched examples are in both sums, with gradients of norm at most C
that point in opposite directions at worst. In one step the pair covers that wherever the likelihood
ratio still grows with the number of touched examples; over many steps the tests compare it with
the opposed gradients themselves, which cost less at all sizes tried. That the pair dominates over
any number of steps is therefore checked, not proven, and the card says so (:data:`NOT_PROVEN`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_integer, check_number
from gapgnn.privacy.accounting import ORDERS, Gaussian, MixtureOfGaussians

NOT_PROVEN = (
    "Training steps are priced as a mixture of Gaussians (privacy page, section 5). That this "
    "covers opposed gradients over many steps is checked numerically, not proven."
)

# Numbers of touched examples that are rarer than this together count as all D: a bound, since they
# count for more than they are.
_RARE = 1e-18


def neighbourhood_sensitivity(max_degree: int) -> float:
    """Return how far one record moves a batch's clipped sum at most, in clips: 2 D + 1.

    >>> neighbourhood_sensitivity(100)
    201.0
    """
    return 2.0 * check_integer("max_degree", max_degree, at_least=1) + 1.0


def neighbourhood_event(
    noise_multiplier: float,
    *,
    sampling_rate: float,
    steps: int,
    max_degree: int,
    label: str = "",
) -> MixtureOfGaussians:
    """Return what ``steps`` of SAGE-NDP release.

    Args:
        noise_multiplier: standard deviation of the noise over ``C (2 D + 1)``; or its ratio to the
            free multiplier, in a calibration template.
        sampling_rate: probability q of an example to join a batch.
        steps: number of batches.
        max_degree: bound D on every out-degree.
        label: for the card.

    >>> event = neighbourhood_event(1.0, sampling_rate=0.5, steps=3, max_degree=1)
    >>> event.sensitivities, event.noise_multiplier
    ((0.0, 1.0, 2.0, 3.0), 3.0)
    >>> [round(share, 9) for share in event.probabilities]
    [0.25, 0.25, 0.25, 0.25]
    """
    from scipy.stats import binom

    rate = check_number("sampling_rate", sampling_rate, above=0, at_most=1)
    whole = neighbourhood_sensitivity(max_degree)
    touched = np.arange(max_degree + 1)
    likely = touched[binom.sf(touched - 1, max_degree, rate) > _RARE]
    weights = binom.pmf(likely, max_degree, rate)
    shares: dict[float, float] = {}
    for count, weight in zip(likely.tolist(), weights.tolist(), strict=True):
        shares[2.0 * count] = weight * (1 - rate)
        shares[2.0 * count + 1.0] = weight * rate
    rest = float(binom.sf(likely[-1], max_degree, rate))
    if rest > 0:
        shares[whole] = shares.get(whole, 0.0) + rest
    kept = sorted((shift, weight) for shift, weight in shares.items() if weight > 0)
    return MixtureOfGaussians(
        noise_multiplier * whole,
        tuple(shift for shift, _ in kept),
        tuple(weight for _, weight in kept),
        steps,
        label,
    )


def original_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    max_degree: int,
    num_examples: int | None = None,
    aggregation: Gaussian | None = None,
) -> float:
    """Return epsilon by the original theorem (Daigavane et al. 2021), for one layer.

    ``1 / (alpha - 1) log E exp(2 alpha (alpha - 1) rho^2 / s^2)`` per step, with the number rho of
    touched examples hypergeometric: batches of fixed size, D + 1 examples touched, each moving by 2
    C, and noise of standard deviation ``s C``. Converted as its authors do.

    Args:
        noise_multiplier: standard deviation of the noise over ``C (2 D + 1)``.
        delta: in (0, 1).
        sampling_rate: batch size over number of examples.
        steps: number of batches.
        max_degree: bound D on every out-degree.
        num_examples: training nodes; None is the limit of many, in which rho is binomial.
        aggregation: the noisy aggregation at inference, if it is charged too.

    >>> tight = original_epsilon(1.0, 1e-5, sampling_rate=0.02, steps=450, max_degree=100)
    >>> 2 < tight < 3
    True
    """
    from scipy.stats import binom, hypergeom

    check_number("delta", delta, above=0, below=1)
    check_integer("steps", steps, at_least=1)
    rate = check_number("sampling_rate", sampling_rate, above=0, at_most=1)
    std = noise_multiplier * neighbourhood_sensitivity(max_degree)
    touched: NDArray[np.float64] = np.arange(max_degree + 2, dtype=np.float64)
    if num_examples is None:
        logs = binom.logpmf(touched, max_degree + 1, rate)
    else:
        affected = min(max_degree + 1, num_examples)
        logs = hypergeom.logpmf(touched, num_examples, affected, round(rate * num_examples))
    orders = ORDERS[:, None]
    growth = 2 * orders * (orders - 1) * (touched / std) ** 2
    curve = steps * np.logaddexp.reduce(logs + growth, axis=1) / (ORDERS - 1)
    if aggregation is not None:
        curve += aggregation.count * ORDERS / (2 * aggregation.noise_multiplier**2)
    return float(np.min(curve - math.log(delta) / (ORDERS - 1)))
