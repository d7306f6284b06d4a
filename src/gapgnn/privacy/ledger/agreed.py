"""What a caller agreed to spend, and what was charged while it ran."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapgnn.errors import NotAgreedError

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.ledger import Charge


@dataclass
class _Run:
    at_most: float
    charges: list[Charge] = field(default_factory=list)

    @property
    def spent(self) -> float:
        return sum(charge.epsilon * charge.count for charge in self.charges)


_RUNS: ContextVar[tuple[_Run, ...]] = ContextVar("runs", default=())


@contextmanager
def spending(at_most: float = math.inf) -> Iterator[list[Charge]]:
    """Yield the list of all charges that are made inside; refuse those beyond what was agreed to.

    A session asks before it charges, so a path to a charge that its caller has not thought of is
    refused as well. Sessions of other threads are not part of it.

    Args:
        at_most: the sum of the epsilons that the caller agreed to; 0 is no charge at all.

    >>> with spending(at_most=0) as charges:
    ...     check_agreed(1.0)
    Traceback (most recent call last):
    ...
    gapgnn.errors.NotAgreedError: a charge of epsilon 1 must be agreed to. Got 0 agreed to, ...
    >>> charges
    []
    """
    run = _Run(at_most)
    token = _RUNS.set((*_RUNS.get(), run))
    try:
        yield run.charges
    finally:
        _RUNS.reset(token)


def check_agreed(epsilon: float) -> None:
    """Refuse a charge that a caller around has not agreed to."""
    for run in _RUNS.get():
        if run.spent + epsilon > run.at_most:
            raise NotAgreedError(
                f"a charge of epsilon {epsilon:.6g} must be agreed to. Got {run.at_most:g} agreed "
                f"to, of which {run.spent:.6g} is spent; nothing was charged."
            )


def note_charge(charge: Charge) -> None:
    """Add a charge to the lists of all callers around, once."""
    for run in _RUNS.get():
        if all(charge.id != known.id for known in run.charges):
            run.charges.append(charge)
