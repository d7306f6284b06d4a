"""The seam through which a run is watched and replayed (privacy page, section 9).

A mechanism's audit cannot see a leak beside the mechanism. So every mechanism shows each release
that is charged to the *witness*, if an audit has put one in place: its name, its value without
noise, how much noise it has, how far one protected entity may move it, and what came out. What the
witness answers is what the rest of the run sees. Replaying a run on a neighbour means to answer
with what came out the first time: everything that follows is then computed from the same
transcript, and whatever still differs was read from private data beside the releases.

Poisson batches pass through the witness too: the guarantee of DP-SGD compares runs in which
everybody else has the same coins.

Without an audit there is no witness, and nothing of this costs or changes anything. A witness holds
values without noise, so it lives and dies inside the curator's process.
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

    from gapgnn.privacy.dpsgd import PoissonBatch


@dataclass(frozen=True)
class Release:
    """One charged release as the witness sees it.

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


class Witness(Protocol):
    """What an audit puts in place to watch a run."""

    def begin(self, purpose: str, *, ids: NDArray[Any], level: str, relation: str) -> None:
        """Learn who is who, by position, and what is promised, before anything is released."""

    def release(self, release: Release, output: Any) -> Any:
        """See a release, and answer with the output that the run goes on with."""

    def batch(self, phase: str, batch: PoissonBatch, members: list[Tensor]) -> PoissonBatch:
        """See the batch of one DP-SGD step, and answer with the one to use."""


_ACTIVE: ContextVar[Witness | None] = ContextVar("gapgnn_witness", default=None)


def active_witness() -> Witness | None:
    """Return the witness that releases must be shown to, if an audit has put one in place.

    >>> active_witness() is None
    True
    """
    return _ACTIVE.get()


@contextmanager
def watched_by(witness: Witness) -> Iterator[None]:
    """Show every release made inside the block to a witness."""
    token = _ACTIVE.set(witness)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def shown(describe: Callable[[], Release], output: Any) -> Any:
    """Show a release to the witness and return what to go on with: the output itself without one.

    >>> shown(lambda: 1 / 0, "nobody watches")
    'nobody watches'
    """
    witness = _ACTIVE.get()
    return output if witness is None else witness.release(describe(), output)
