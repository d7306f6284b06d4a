"""Refuse a table most of whose rows cannot be used: then the options are probably wrong.

At edge level the share is counted over rows: one row of many cannot decide it. At node level one
adjacency list may be most of the table, so the share is counted over people (privacy page, section
2: one record must not be able to stop the run).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gapgnn.errors import DataError

# From so many rows (or people) on, a table is refused if too large a share of them cannot be used.
MANY_ROWS = 100
# The share of rows that may lie outside the window of time.
OUTSIDE = 0.999


@dataclass
class UsedRows:
    """How many rows of one edge table are used, and why the others are not.

    Attributes:
        rows: read, without those outside the window of time.
        outside: outside the window of time.
        reasons: rows by the reason why they are dropped or unreadable; a row counts once.
    """

    rows: int = 0
    outside: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def lost(self, reason: str, count: int) -> None:
        """Count rows that are dropped or unreadable."""
        if count:
            self.reasons[reason] = self.reasons.get(reason, 0) + int(count)

    @property
    def is_mostly_unused(self) -> bool:
        """Whether there are no rows, or more than half of them are dropped or unreadable."""
        return sum(self.reasons.values()) * 2 > self.rows or not self.rows

    @property
    def summary(self) -> str:
        """The reasons and their numbers of rows, for a message."""
        return "; ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())

    def check(self, path: Path, dropped_at_most: float, what: str = "edges") -> None:
        """Refuse a table of many rows if too large a share of them cannot be used.

        A small table is never refused, because a single row could decide whether the run fails.

        >>> UsedRows(200, 0, {"self-loops": 101}).check(Path("e.csv"), 0.5)
        Traceback (most recent call last):
        ...
        gapgnn.errors.DataError: `edges` must have usable rows. Got 200 in 'e.csv', of which 101 \
(50.5%) are dropped or unreadable: 101 self-loops. Correct the options, or allow it with \
`dropped_at_most=0.51`.
        """
        lost, rows = sum(self.reasons.values()), self.rows
        _refuse(
            what, path, lost, rows, dropped_at_most, f"are dropped or unreadable: {self.summary}"
        )
        _refuse_window(path, self.outside, self.rows + self.outside, dropped_at_most)


@dataclass
class UsedAdjacency:
    """Which adjacency lists are used, where a record includes the person's adjacency list.

    A list is lost if its owner has no record, or if more than half of its rows are unreadable. A
    dangling entry does not make a list lost, because the neighbour may have withdrawn. Instead one
    entry of each list is taken, and the distinct neighbours among these entries are counted. One
    person therefore changes each count by at most two.
    """

    parts: list[_Owned] = field(default_factory=list)

    def add(
        self,
        owners: Any,
        named: Any,
        *,
        lost: NDArray[np.bool_],
        outside: NDArray[np.bool_],
        known: NDArray[np.bool_],
    ) -> None:
        """Count rows.

        Args:
            owners: Arrow array with the id of each row's owner.
            named: Arrow array with the id of the neighbour.
            lost: rows that are unreadable, or whose owner has no record.
            outside: rows outside the window of time.
            known: rows whose neighbour has a record.
        """
        if len(owners):
            inside = ~outside
            counts = np.stack((inside, lost & inside)).astype(np.int64)
            self.parts.append(_Owned.added_up(owners, counts, named, known))

    def check(self, path: Path, dropped_at_most: float, rows: UsedRows) -> None:
        """Refuse the table of many people if too large a share of their lists cannot be used."""
        if not self.parts:
            return
        owners, counts, named, known = zip(*self.parts, strict=True)
        lists = _Owned.added_up(
            pa.concat_arrays(owners),
            np.concatenate(counts, axis=1),
            pa.concat_arrays(named),
            np.concatenate(known),
        )
        inside, lost = lists.counts
        read = inside > 0
        reason = f"have most of their rows dropped or unreadable: {rows.summary}"
        unused = int((2 * lost > inside).sum())
        _refuse("edges", path, unused, int(read.sum()), dropped_at_most, reason, " ids")
        _refuse_window(path, int((~read).sum()), len(read), dropped_at_most)
        entries = lists.named.filter(pa.array(read)).dictionary_encode()
        known_of = np.zeros(len(entries.dictionary), dtype=np.bool_)
        known_of[entries.indices.to_numpy(zero_copy_only=False)] = lists.known[read]
        unused = int((~known_of).sum())
        _refuse("edges", path, unused, len(known_of), dropped_at_most, reason, " ids")


class _Owned(NamedTuple):
    """Rows counted by owner: id, rows inside the window, lost ones among them, and one entry."""

    owners: Any
    counts: NDArray[np.int64]
    named: Any
    known: NDArray[np.bool_]

    @classmethod
    def added_up(
        cls, owners: Any, counts: NDArray[np.int64], named: Any, known: NDArray[np.bool_]
    ) -> _Owned:
        """Add up rows by owner; each owner's first entry inside the window remains, if any is."""
        encoded = owners.dictionary_encode()
        code = encoded.indices.to_numpy(zero_copy_only=False)
        size = len(encoded.dictionary)
        first = np.zeros(size, dtype=np.int64)
        for rows in (np.arange(len(code)), np.flatnonzero(counts[0])):
            first[code[rows[::-1]]] = rows[::-1]
        sums = np.stack([np.bincount(code, each, size) for each in counts]).astype(np.int64)
        return cls(encoded.dictionary, sums, named.take(pa.array(first)), known[first])


def _refuse(
    what: str, path: Path, lost: int, count: int, dropped_at_most: float, reason: str, of: str = ""
) -> None:
    if count >= MANY_ROWS and lost > dropped_at_most * count:
        share = lost / count
        raise DataError(
            f"`{what}` must have usable rows. Got {count:,}{of} in {str(path)!r}, of which "
            f"{lost:,} ({100 * share:.1f}%) {reason}. Correct the options, or allow it with "
            f"`dropped_at_most={math.ceil(100 * share) / 100:g}`."
        )


def _refuse_window(path: Path, outside: int, count: int, dropped_at_most: float) -> None:
    if count >= MANY_ROWS and outside > max(OUTSIDE, dropped_at_most) * count:
        raise DataError(
            f"`edges` must have rows inside the window of time. Got {outside:,} of {count:,} "
            f"outside it in {str(path)!r}; `since` and `until` must be written as the column is "
            "(seconds and milliseconds are not the same), or allow it with `dropped_at_most=1`."
        )
