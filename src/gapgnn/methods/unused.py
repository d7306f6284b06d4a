"""Parameters that are given: how they are shown, and that none without an effect is ignored.

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
            if not any(is_same(value, known) for known in (defaults[name], *unused.equal)):
                yield name, unused.error(name, value)


def refuse_unused(estimator: Any, found: Iterable[Unused]) -> None:
    """Raise about all parameters that are given and do nothing, at once."""

    def refusal(error: InputError) -> None:
        raise error

    check_all(*(lambda e=error: refusal(e) for _, error in given_unused(estimator, found)))


def is_same(value: object, known: object) -> bool:
    """Return whether a parameter has a known value, such as its default."""
    if value is known:
        return True
    # 1 == True: a number is not a truth value here. What an array equals is no truth value.
    is_plain = isinstance(value, str | int | float | tuple)
    return is_plain and isinstance(value, bool) == isinstance(known, bool) and value == known


def described(estimator: Any, limit: int) -> str:
    """Return how an estimator is shown: level, epsilon, and what differs from its default.

    Args:
        estimator: a dataclass with a level and an epsilon.
        limit: number of characters.

    >>> from gapgnn import GAP
    >>> described(GAP(hops=3), 100)
    "GAP(level='edge', epsilon=1.0, hops=3)"
    """
    shown = {"level": estimator.level, "epsilon": estimator.epsilon}
    for part in fields(estimator):
        value = getattr(estimator, part.name)
        if not is_same(value, part.default):
            shown[part.name] = value
    given = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    text = f"{type(estimator).__name__}({given})"
    return text if len(text) <= limit else f"{text[: limit - 4]}...)"
