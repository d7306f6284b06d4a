"""Every exception the library raises on purpose, and the checks that raise them.

The tree::

    GapgnnError                  catch this one to catch all of them
    ├── InputError               a value, option or file the caller can correct (also a ValueError)
    │   └── DataError            the content of a graph, table or data file is wrong
    ├── PrivacyError             going on would break a promise, so nothing was released
    │   ├── CalibrationError     no noise level meets the requested budget
    │   └── BudgetExceededError  the data set's ledger has too little left
    └── UnavailableError         something outside is missing: a file, the network, an extra

The command line prints the message of any of them as one line and exits with 2, so each message
names the thing, says what was found and what to do, in one form::

    `epsilon` must be positive. Got -1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import TypeVar

Result = TypeVar("Result")


class GapgnnError(Exception):
    """Base of all errors raised on purpose."""


class InputError(GapgnnError, ValueError):
    """A value, option or file that the caller can correct."""


class DataError(InputError):
    """A graph, table or data file whose content cannot be used."""


class PrivacyError(GapgnnError):
    """Going on would break a stated guarantee; nothing was released."""


class CalibrationError(PrivacyError):
    """No noise level meets the requested budget."""


class BudgetExceededError(PrivacyError):
    """The data set's ledger has less budget left than was asked for."""


class UnavailableError(GapgnnError):
    """A file, an address or an optional dependency that is not there."""


class _ListedError(InputError):
    """Several complaints in one line."""

    def __init__(self, errors: list[GapgnnError]) -> None:
        listed = " ".join(f"({number}) {error}" for number, error in enumerate(errors, start=1))
        super().__init__(f"{len(errors)} things must be changed: {listed}")
        self.errors = errors


class Complaints:
    """Takes down what checks complain about, so that everything wrong is told at once.

    >>> complaints = Complaints()
    >>> complaints.collect(lambda: check_integer("hops", 2)), bool(complaints)
    (2, False)
    >>> complaints.collect(lambda: check_integer("hops", 0.5)), bool(complaints)
    (None, True)
    """

    def __init__(self) -> None:
        # One mistake can fail several checks and is told once.
        self._errors: dict[str, GapgnnError] = {}

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __iter__(self) -> Iterator[GapgnnError]:
        return iter(self._errors.values())

    def add(self, error: GapgnnError) -> None:
        """Take down one error, or each one of several."""
        for one in error.errors if isinstance(error, _ListedError) else [error]:
            self._errors.setdefault(str(one), one)

    def extend(self, others: Iterable[GapgnnError]) -> None:
        """Take down several errors."""
        for error in others:
            self.add(error)

    def collect(self, check: Callable[[], Result]) -> Result | None:
        """Return what a check returns; None, and what it complains about is taken down."""
        try:
            return check()
        except GapgnnError as error:
            self.add(error)
            return None

    def settled(self, value: Result | None) -> Result:
        """Raise all that was complained about; otherwise return ``value``, which is then there."""
        if len(self._errors) == 1:
            raise next(iter(self))
        if self._errors or value is None:
            raise _ListedError(list(self))
        return value


def check_all(*checks: Callable[[], object]) -> None:
    """Run every check and complain about all that fail at once, in one line.

    >>> check_all(lambda: check_number("epsilon", -1, above=0), lambda: check_integer("hops", 0.5))
    Traceback (most recent call last):
    ...
    gapgnn.errors._ListedError: 2 things must be changed: (1) `epsilon` must ... (2) `hops` must ...
    """
    complaints = Complaints()
    for check in checks:
        complaints.collect(check)
    complaints.settled(True)


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = True,
) -> float:
    """Return ``value`` as a float, or raise the house message if it is outside the bounds.

    >>> check_number("epsilon", 1, above=0)
    1.0
    >>> check_number("delta", 2.0, above=0, below=1)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `delta` must be above 0 and below 1. Got 2.0.
    """
    if above == 0 and at_least is None and below is None and at_most is None:
        wanted = "positive"
    else:
        bounds = [
            (above, "above"),
            (at_least, "at least"),
            (below, "below"),
            (at_most, "at most"),
        ]
        wanted = " and ".join(f"{word} {bound:g}" for bound, word in bounds if bound is not None)
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(float(value)):
        raise InputError(
            f"`{name}` must be a number{f' {wanted}' if wanted else ''}. Got {value!r}."
        )
    number = float(value)
    if finite and math.isinf(number):
        raise InputError(f"`{name}` must be finite. Got {value!r}.")
    inside = (
        (above is None or number > above)
        and (at_least is None or number >= at_least)
        and (below is None or number < below)
        and (at_most is None or number <= at_most)
    )
    if not inside:
        raise InputError(f"`{name}` must be {wanted}. Got {value!r}.")
    return number


def check_integer(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Return ``value`` as an int, or raise the house message.

    >>> check_integer("hops", 2, at_least=1)
    2
    >>> check_integer("hops", 0, at_least=1)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `hops` must be at least 1. Got 0.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"`{name}` must be a whole number. Got {value!r}.")
    check_number(name, value, at_least=at_least, at_most=at_most)
    return int(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise name the nearest one.

    >>> check_choice("level", "edge", ["none", "edge", "node"])
    'edge'
    >>> check_choice("level", "egde", ["edge", "node"])
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `level` must be one of edge, node. Got 'egde'. Did you mean 'edge'?
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    raise InputError(
        f"`{name}` must be one of {', '.join(known)}. Got {value!r}.{did_you_mean(value, known)}"
    )


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known name, or nothing.

    >>> did_you_mean("epsilom", ["epsilon", "delta"])
    " Did you mean 'epsilon'?"
    """
    import difflib

    near = difflib.get_close_matches(str(value), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
