"""A composition in its shortest equal form: one Gaussian, and the pairs of everything else.

All Gaussian releases of a composition are exactly one Gaussian release: their squared shifts add
up. Releases with equal pairs are one pair with a count. Both make every accountant faster and the
result independent of the order in which events were recorded (privacy page, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gapgnn.errors import InputError, check_choice
from gapgnn.privacy import RELATIONS
from gapgnn.privacy.accounting.events import Event
from gapgnn.privacy.accounting.pairs import GaussianPair, Pair


@dataclass(frozen=True)
class Merged:
    """A composition as one Gaussian and the rest.

    Attributes:
        shift: mu of the one Gaussian: N(0, 1) against N(mu, 1). 0 if there is none, and infinite if
            the noise is too small for a float.
        rest: every other pair and how often it is released, in a fixed order.
    """

    shift: float
    rest: tuple[tuple[Pair, int], ...]

    @property
    def is_gaussian(self) -> bool:
        """Whether the exact Gaussian curve describes the whole composition."""
        return not self.rest


def merge(events: Sequence[Event], *, relation: str) -> Merged:
    """Bring a composition to its shortest equal form.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> merge([Gaussian(2.0, count=2), Gaussian(1.0)], relation="add-remove").shift == 1.5**0.5
    True
    """
    check_choice("relation", relation, RELATIONS)
    squares: list[float] = []
    rest: dict[Pair, int] = {}
    for event in events:
        if not isinstance(event, Event):
            raise InputError(f"an event must be one of gapgnn.privacy.accounting. Got {event!r}.")
        pair = event.pair(relation)
        if isinstance(pair, GaussianPair) and (shift := pair.shift) is not None:
            # The product overflows to infinity where a power would raise.
            squares.append(event.times * (shift * shift))
        else:
            rest[pair] = rest.get(pair, 0) + event.times
    return Merged(
        shift=math.sqrt(math.fsum(sorted(squares))), rest=tuple(sorted(rest.items(), key=repr))
    )
