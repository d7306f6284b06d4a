"""Every exception the library raises on purpose, and the checks that raise them.

The tree, with the exit code of the command line and the ``code`` of its JSON error object::

    GapgnnError                  2  error             catch this one to catch all of them
    ├── InputError               2  bad-input         the caller can correct it (also a ValueError)
    │   └── DataError            2  bad-data          the content of a graph, table or file is wrong
    │       └── IntegrityError   4  damaged           a file is not what was written (also a
    │                                                 PrivacyError)
    ├── PrivacyError             2  refused           going on would break a promise
    │   ├── CalibrationError     2  no-noise-level    no noise level meets the requested budget
    │   ├── BudgetExceededError  3  budget-exhausted  the people's budget has too little left
    │   ├── NotGrantedError      3  not-granted       the ledger wants a budget, and there is none
    │   └── NotAgreedError       3  not-agreed        a price that the caller has not agreed to pay
    └── UnavailableError         2  unavailable       a file, the network or an extra is missing
        └── BusyError            5  try-again         a lock is held; nothing is wrong

An error caused by a full disk exits with 5 as well, whatever its class. Nothing that fails has
charged a budget without saying so. Each message is one line that names the thing, says what was
found and what to do, in one form::

    `epsilon` must be positive. Got -1.0.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

Result = TypeVar("Result")


# What the operating system says when waiting or making room helps.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# Everything up to the last @ of an address: a password may hold any character.
_SECRETS = (
    (re.compile(r"(postgres(?:ql)?://[^:@/\s]*):[^\s]*@"), r"\1@"),
    (re.compile(r"([?&](?:ssl)?password=)[^&\s'\"]*"), r"\1..."),
)


class GapgnnError(Exception):
    """Base of all errors raised on purpose."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2


class InputError(GapgnnError, ValueError):
    """A value, option or file that the caller can correct."""

    code: ClassVar[str] = "bad-input"


class DataError(InputError):
    """A graph, table or data file whose content cannot be used."""

    code: ClassVar[str] = "bad-data"


class PrivacyError(GapgnnError):
    """Going on would break a stated guarantee; nothing was released."""

    code: ClassVar[str] = "refused"


class CalibrationError(PrivacyError):
    """No noise level meets the requested budget."""

    code: ClassVar[str] = "no-noise-level"


class BudgetExceededError(PrivacyError):
    """The data set's ledger has less budget left than was asked for."""

    code: ClassVar[str] = "budget-exhausted"
    exit_code: ClassVar[int] = 3


class NotGrantedError(PrivacyError):
    """The ledger requires a budget that nobody granted."""

    code: ClassVar[str] = "not-granted"
    exit_code: ClassVar[int] = 3


class NotAgreedError(PrivacyError):
    """A price that the caller did not agree to pay; nothing was charged."""

    code: ClassVar[str] = "not-agreed"
    exit_code: ClassVar[int] = 3


class IntegrityError(DataError, PrivacyError):
    """A ledger, folder or store that is damaged, incomplete or was changed."""

    code: ClassVar[str] = "damaged"
    exit_code: ClassVar[int] = 4


class UnavailableError(GapgnnError):
    """A file, an address or an optional dependency that is not there."""

    code: ClassVar[str] = "unavailable"


class BusyError(UnavailableError):
    """Something that another process holds; the same request may succeed later."""

    code: ClassVar[str] = "try-again"
    exit_code: ClassVar[int] = 5


def outcome_of(error: GapgnnError) -> tuple[int, str]:
    """Return the exit code and the error code of a command that ends with ``error``.

    A full disk is looked for among the causes, so that every file that is written counts. Of
    several complaints the one with the highest exit code decides: what the caller cannot correct.

    >>> outcome_of(BudgetExceededError("nothing is left"))
    (3, 'budget-exhausted')
    >>> try:
    ...     raise UnavailableError("`out` cannot be written") from OSError(28, "No space left")
    ... except UnavailableError as full:
    ...     outcome_of(full)
    (5, 'try-again')
    """
    if isinstance(error, _ListedError):
        return max(outcome_of(one) for one in error.errors)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _NO_ROOM:
            return BusyError.exit_code, BusyError.code
        seen = seen.__cause__ or seen.__context__
    return error.exit_code, error.code


class _ListedError(InputError):
    """Several complaints in one line."""

    def __init__(self, errors: list[GapgnnError]) -> None:
        listed = " ".join(f"({number}) {error}" for number, error in enumerate(errors, start=1))
        super().__init__(f"{len(errors)} things must be changed: {listed}")
        self.errors = errors


class Complaints:
    """Collects the errors of several checks, so that they are reported together.

    >>> complaints = Complaints()
    >>> complaints.collect(lambda: check_integer("hops", 2)), bool(complaints)
    (2, False)
    >>> complaints.collect(lambda: check_integer("hops", 0.5)), bool(complaints)
    (None, True)
    """

    def __init__(self) -> None:
        # One mistake can fail several checks and is reported once.
        self._errors: dict[str, GapgnnError] = {}

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __iter__(self) -> Iterator[GapgnnError]:
        return iter(self._errors.values())

    def add(self, error: GapgnnError) -> None:
        """Add one error, or each one of several."""
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
    """Return ``value`` as a float, or raise the standard error if it is outside the bounds.

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
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(number := _near(value)):
        raise InputError(
            f"`{name}` must be a number{f' {wanted}' if wanted else ''}. Got {value!r}."
        )
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


def _near(value: Any) -> float:
    """Return the nearest float, which of a whole number may be infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_integer(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Return ``value`` as an int, or raise the standard error.

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


def without_password(text: str) -> str:
    """Return a text without the passwords of database addresses in it.

    >>> without_password("train --ledger postgresql://ann:se/cr@t@host/db?sslmode=require")
    'train --ledger postgresql://ann@host/db?sslmode=require'
    """
    for secret, plain in _SECRETS:
        text = secret.sub(plain, text)
    return text
