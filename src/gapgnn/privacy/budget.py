"""The budgets that are accepted: one range of epsilon and one of delta, for every command.

Estimators, calibration, ``gapgnn noise``, grants and charges of the ledger and predictions ask
here, before anything is charged (privacy page, sections 3 and 6). Inside the range every search
ends and the accountants have digits to spare. Below it, noise hides everything there is to learn;
above it, nothing.
"""

from __future__ import annotations

from gapgnn.errors import InputError, PrivacyError, check_number

LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e5
LEAST_DELTA, MOST_DELTA = 1e-20, 0.9


def check_epsilon(epsilon: object, name: str = "epsilon") -> float:
    """Return the epsilon of a budget; refuse what is outside the accepted range.

    >>> check_epsilon(8)
    8.0
    >>> check_epsilon(1e308)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `epsilon` must be at least 1e-06 and at most 100000. Got 1e+308.
    """
    check_number(name, epsilon, above=0)
    return check_number(name, epsilon, at_least=LEAST_EPSILON, at_most=MOST_EPSILON)


def check_part(epsilon: object, name: str = "epsilon") -> float:
    """Return a part of an accepted budget: what another release of the same run has left of it."""
    number = check_number(name, epsilon, above=0)
    return number if LEAST_EPSILON / 2 <= number < LEAST_EPSILON else check_epsilon(epsilon, name)


def check_delta(delta: object, name: str = "delta", *, can_be_zero: bool = True) -> float | None:
    """Return a stated delta, or None for ``auto``; refuse what is outside the accepted range.

    0 is for promises without any Gaussian noise: which those are is known with the releases.

    >>> check_delta(1e-5), check_delta("auto")
    (1e-05, None)
    >>> check_delta(1e-300)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `delta` must be 0, or at least 1e-20 and at most 0.9. Got 1e-300.
    """
    if isinstance(delta, str):
        if delta != "auto":
            raise InputError(f"`{name}` must be auto or a number in [0, 1). Got {delta!r}.")
        return None
    if can_be_zero:
        number = check_number(name, delta, at_least=0, below=1)
    else:
        number = check_number(name, delta, above=0, below=1)
    if number != 0 and not LEAST_DELTA <= number <= MOST_DELTA:
        zero = "0, or " if can_be_zero else ""
        raise InputError(
            f"`{name}` must be {zero}at least {LEAST_DELTA:g} and at most {MOST_DELTA:g}. "
            f"Got {delta!r}."
        )
    return number


def stated_epsilon(epsilon: float) -> float:
    """Return an accounted epsilon as a charge states it: 0, or inside the accepted range.

    What is above 0 and below the range is rounded up to it, so that no charge is too small to be
    seen in a sum. What is above the range is refused: no noise worth the name costs so much.

    >>> stated_epsilon(0.0), stated_epsilon(1e-300), stated_epsilon(2.5)
    (0.0, 1e-06, 2.5)
    """
    if not epsilon <= MOST_EPSILON:
        raise PrivacyError(
            f"a release must cost an epsilon of at most {MOST_EPSILON:g}. Got {epsilon:g}: its "
            "noise hides nothing."
        )
    return max(epsilon, LEAST_EPSILON) if epsilon > 0 else 0.0


def check_price(epsilon: object, name: str = "epsilon") -> float:
    """Return the epsilon of a charge: 0, where delta alone is spent, or inside the range.

    >>> check_price(1e-300)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `epsilon` must be 0, or at least 1e-06 and at most 100000. Got 1e-300.
    """
    number = check_number(name, epsilon, at_least=0)
    if number != 0 and not LEAST_EPSILON <= number <= MOST_EPSILON:
        raise InputError(
            f"`{name}` must be 0, or at least {LEAST_EPSILON:g} and at most {MOST_EPSILON:g}. "
            f"Got {epsilon!r}."
        )
    return number
