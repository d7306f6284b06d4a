"""Parameters without an effect, given the others: they are refused, not ignored.

Every method yields the parameters without an effect at its level, relation and network, and
``check`` refuses those that differ from their default, before anything is read or charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from gapgnn.errors import InputError, check_all


@dataclass(frozen=True)
class Unused:
    """Parameters without an effect.

    Attributes:
        names: of the parameters.
        reason: where and why, as it goes on behind "must be left out".
        equal: further values that agree with the actual behaviour, and are accepted.

    >>> Unused(("clip",), "at level edge: no gradient is clipped").error("clip", 0.5)
    InputError('`clip` must be left out at level edge: no gradient is clipped. Got 0.5.')
    """

    names: tuple[str, ...]
    reason: str
    equal: tuple[Any, ...] = ()

    def error(self, name: str, value: object) -> InputError:
        """Return the refusal of a given value."""
        return InputError(f"`{name}` must be left out {self.reason}. Got {value!r}.")


def given_unused(estimator: Any, found: Iterable[Unused]) -> Iterator[tuple[str, InputError]]:
    """Yield the parameters that are given and do nothing, each with its refusal.

    A value counts as given where it differs from the default and from what happens anyway.

    Args:
        estimator: a dataclass.
        found: its parameters that do nothing; names of other methods' parameters are passed over.
    """
    defaults = {field.name: field.default for field in fields(estimator)}
    for unused in found:
        for name in unused.names:
            if name not in defaults:
                continue
            value = getattr(estimator, name)
            if not any(_is_same(value, known) for known in (defaults[name], *unused.equal)):
                yield name, unused.error(name, value)


def refuse_unused(estimator: Any, found: Iterable[Unused]) -> None:
    """Raise about all parameters that are given and do nothing, at once."""

    def refusal(error: InputError) -> None:
        raise error

    check_all(*(lambda e=error: refusal(e) for _, error in given_unused(estimator, found)))


def _is_same(value: object, known: object) -> bool:
    if value is known:
        return True
    # 1 == True: a number is not a truth value here. What an array equals is no truth value.
    is_plain = isinstance(value, str | int | float | tuple)
    return is_plain and isinstance(value, bool) == isinstance(known, bool) and value == known
