"""Sort arcs that do not fit in memory.

An arc is one number, ``major * num_nodes + minor``. Arcs are collected in a buffer, sorted there,
and appended to files that each hold one range of numbers; later each file is sorted by itself. A
range that is still too large for the memory is split into smaller ranges the same way, down to a
single number, which is one arc. So memory is bounded for every input, and every arc is written once
or, where arcs are distributed very unevenly, a few times.

A weighted arc has an integer weight beside it, and the weights of repetitions of an arc are added
up, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import DataError, InputError

Keys = NDArray[np.uint64]
# Arcs without or with weights.
Sorted = NDArray[Any]
PLAIN = np.dtype(np.uint64)
WEIGHTED = np.dtype([("key", np.uint64), ("units", np.int64)])
RANGES = 128
MOST_NODES = 2**32 - 1
LEAST_MEMORY = 1 << 24


class ArcSorter:
    """Takes arcs in any order and yields them sorted, each once.

    Args:
        folder: an empty folder for scratch files; they are deleted as they are read.
        num_nodes: positions are below this number.
        memory: bytes to use at most, within a few percent.
        weighted: whether arcs have weights.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorter = ArcSorter(Path(folder), 5, memory=1 << 24)
    ...     sorter.add(np.array([3, 0, 3]), np.array([1, 4, 1]))
    ...     [divmod(int(key), 5) for keys in sorter.sorted() for key in keys]
    [(0, 4), (3, 1)]
    """

    def __init__(
        self, folder: Path, num_nodes: int, *, memory: int, weighted: bool = False
    ) -> None:
        if num_nodes > MOST_NODES:
            raise DataError(f"A store must have at most {MOST_NODES:,} nodes. Got {num_nodes:,}.")
        if memory < LEAST_MEMORY:
            raise InputError(f"`memory` must be at least {LEAST_MEMORY} bytes. Got {memory}.")
        self.num_nodes = num_nodes
        # Up to twice as many keys are buffered, and they are copied twice when they are written.
        dtype = WEIGHTED if weighted else PLAIN
        self._most = memory // (8 * dtype.itemsize)
        self._spill = _Spill(folder, 0, num_nodes**2, self._most, dtype)

    def add(
        self,
        major: NDArray[np.integer],
        minor: NDArray[np.integer],
        units: NDArray[np.int64] | None = None,
    ) -> None:
        """Take arcs: positions of the end to sort by first, of the other end, and their weight."""
        keys: Sorted = major.astype(np.uint64) * np.uint64(self.num_nodes)
        keys += minor.astype(np.uint64)
        if units is not None:
            pairs = np.empty(len(keys), dtype=WEIGHTED)
            pairs["key"], pairs["units"] = keys, units
            keys = pairs
        for start in range(0, len(keys), self._most):
            self._spill.add(keys[start : start + self._most])

    def sorted(self) -> Iterator[Sorted]:
        """Yield the arcs as increasing numbers, a bounded piece at a time; can be called once.

        Weighted arcs are pairs of ``key`` and ``units``.
        """
        yield from self._spill.sorted()


class _Spill:
    """Numbers of one range, on disk by sub-range."""

    def __init__(self, folder: Path, low: int, high: int, most: int, dtype: np.dtype[Any]) -> None:
        self._folder, self._most, self._dtype = folder, most, dtype
        folder.mkdir(parents=True, exist_ok=True)
        step = max(1, -(-(high - low) // RANGES))
        self._starts = [*range(low, high, step), high]
        # The first range needs no comparison, and the end may not fit 64 bits.
        self._inner = np.array(self._starts[1:-1], dtype=np.uint64)
        self._buffer: list[Sorted] = []
        self._waiting = 0

    def add(self, keys: Sorted) -> None:
        self._buffer.append(keys)
        self._waiting += len(keys)
        if self._waiting >= self._most:
            self._flush()

    def _flush(self) -> None:
        """Sort the buffer and append each sub-range to its file."""
        nothing = np.zeros(0, self._dtype)
        keys = _unique(np.concatenate(self._buffer)) if self._buffer else nothing
        self._buffer, self._waiting = [], 0
        places = [0, *np.searchsorted(keys_of(keys), self._inner).tolist(), len(keys)]
        for part in range(len(self._starts) - 1):
            first, last = places[part], places[part + 1]
            if first < last:
                with self._path(part).open("ab") as file:
                    keys[first:last].tofile(file)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}.keys"

    def sorted(self) -> Iterator[Sorted]:
        if not any(self._path(part).exists() for part in range(len(self._starts) - 1)):
            # Everything fits in memory: no file was needed.
            if self._buffer:
                yield _unique(np.concatenate(self._buffer))
            self._buffer = []
            return
        self._flush()
        for part in range(len(self._starts) - 1):
            path = self._path(part)
            if not path.exists():
                continue
            low, high = self._starts[part], self._starts[part + 1]
            if path.stat().st_size <= self._dtype.itemsize * self._most:
                keys = np.fromfile(path, dtype=self._dtype)
                path.unlink()
                yield _unique(keys)
            elif high - low == 1:
                one = self._pieces(path)
                first = next(one)
                for piece in one:
                    # A single arc, repeated: its weights are added up.
                    first = _unique(np.concatenate([first, piece]))
                path.unlink()
                yield _unique(first)
            else:
                finer = _Spill(self._folder / f"{part:03d}", low, high, self._most, self._dtype)
                for piece in self._pieces(path):
                    finer.add(piece)
                path.unlink()
                yield from finer.sorted()

    def _pieces(self, path: Path) -> Iterator[Sorted]:
        with path.open("rb") as file:
            while len(keys := np.fromfile(file, dtype=self._dtype, count=self._most)):
                yield keys


def keys_of(arcs: Sorted) -> Keys:
    """Return the numbers of arcs, without weights."""
    keys: Keys = arcs if arcs.dtype.names is None else arcs["key"]
    return keys


def _unique(keys: Sorted) -> Sorted:
    """Sort in place and drop repetitions, or add up their weights."""
    if keys.dtype.names is not None:
        keys = keys[np.argsort(keys["key"], kind="stable")]
        starts = np.flatnonzero(np.diff(keys["key"], prepend=~keys["key"][:1]))
        if len(starts) < len(keys):
            units = np.add.reduceat(keys["units"], starts)
            keys = keys[starts]
            keys["units"] = units
        return keys
    keys.sort()
    first = np.empty(len(keys), dtype=np.bool_)
    first[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys if first.all() else keys[first]
