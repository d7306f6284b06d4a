"""Release observers: how an audit records and replays a run (privacy page, section 9).

An audit of a mechanism cannot see a leak beside the mechanism. So every mechanism reports each
charged release to the *release observer*, if an audit has installed one: its name, its value
without noise, the scale of its noise, its sensitivity, and its output. What the observer returns is
what the rest of the run sees. Replaying a run on a neighbour means returning the recorded outputs:
everything that follows is then computed from the same transcript, and whatever still differs was
read from private data beside the releases.

Poisson batches pass through the observer too: the guarantee of DP-SGD compares runs in which
everybody else has the same coins.

Without an audit there is no observer, and nothing of this costs or changes anything. An observer
holds values without noise, so it never leaves the curator's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from gapgnn.privacy import Relation
    from gapgnn.privacy.dpsgd import PoissonBatch


@dataclass(frozen=True)
class Release:
    """One charged release as the observer sees it.

    Attributes:
        name: what it is, unique in a run: ``"hop 1"``, ``"encoder step 17"``.
        value: what the noise is added to; NOT private.
        scale: of the noise.
        sensitivity: how far one protected entity may move the value, as accounted.
        measure: in which sense: ``"l2"``, ``"l1"``, or ``"bits"`` for a set of whole numbers of
            which so many may come or go.
        rows_of_people: whether row i of value and output belongs to person i. At node level a
            person's own row is not covered.
        covers_own_row: whether a person's own row is covered too.
        counts_records: whether the sensitivity is one record's contribution, which under
            ``replace`` may come twice: the accountant's convention for DP-SGD.
    """

    name: str
    value: NDArray[Any]
    scale: float
    sensitivity: float
    measure: Literal["l2", "l1", "bits"] = "l2"
    rows_of_people: bool = False
    covers_own_row: bool = False
    counts_records: bool = False


class ReleaseObserver(Protocol):
    """What an audit installs to observe a run."""

    def begin(self, purpose: str, *, ids: NDArray[Any], relation: Relation) -> None:
        """Learn who is who, by position, and what is promised, before anything is released."""

    def release(self, release: Release, output: Any) -> Any:
        """See a release, and answer with the output that the run goes on with."""

    def batch(self, phase: str, batch: PoissonBatch, members: list[Tensor]) -> PoissonBatch:
        """See the batch of one DP-SGD step, and answer with the one to use."""


_ACTIVE: ContextVar[ReleaseObserver | None] = ContextVar("gapgnn_observer", default=None)


def active_observer() -> ReleaseObserver | None:
    """Return the observer that releases must be shown to, if an audit has put one in place.

    >>> active_observer() is None
    True
    """
    return _ACTIVE.get()


@contextmanager
def observed_by(observer: ReleaseObserver) -> Iterator[None]:
    """Show every release made inside the block to an observer."""
    token = _ACTIVE.set(observer)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def observe(describe: Callable[[], Release], output: Any) -> Any:
    """Show a release to the observer and return what to go on with: the output itself without one.

    >>> observe(lambda: 1 / 0, "nobody observes")
    'nobody observes'
    """
    observer = _ACTIVE.get()
    return output if observer is None else observer.release(describe(), output)
