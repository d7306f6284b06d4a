"""Who a budget belongs to: people, known by keyed hashes of their ids (privacy page, section 6).

A *population* is a named set of people in a *namespace*. Whoever reads a table reads people, and
next month's table, one column fewer, an edited cell or ids written as text are the same people: a
population is found by a single common id, whatever the rest of the table looks like.

The ledger holds 16 bytes per person, SipHash of the id under a key that never leaves the ledger. In
namespaces of their own, two tables that both count from 1 are different people; in one namespace
they are charged together, which is the safe side.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.graph import Graph, absorb_first, absorb_last, encode_ids

# Sorted by the first half, then the second; 16 bytes each.
Hashes = NDArray[np.uint64]
# Hashed this many at a time, which stays in cache.
_CHUNK = 1 << 16
# Ids that joined one after the other are brought together when there are this many pieces.
_MOST_PARTS = 8
# SQLite takes pieces of up to a gigabyte; these have at most 64 MB.
_PART_SIZE = 1 << 22


@dataclass(frozen=True, eq=False)
class People:
    """The people whose records, or names, a release reads.

    Attributes:
        ids: outside names, numbers or texts.
        fingerprint: of the graph that is read.
        namespace: what the ids belong to; own tables are in ``default``.
        name: what people call the data set.
    """

    ids: NDArray[Any]
    fingerprint: str
    namespace: str = "default"
    name: str = ""

    @classmethod
    def of(cls, graph: Graph) -> People:
        """Return everybody a graph names: those with a record, and those who are only listed."""
        ids = graph.ids
        if graph.dangling_targets is not None:
            listed = np.asarray(graph.dangling_targets)
            if listed.dtype.kind != ids.dtype.kind:
                ids, listed = ids.astype(str), listed.astype(str)
            ids = np.concatenate([ids, listed])
        return cls(ids, graph.fingerprint, graph.population, graph.name)

    @classmethod
    def listed(cls, ids: NDArray[Any], *, namespace: str = "default", name: str = "") -> People:
        """Return people who are known by their ids alone: no graph of theirs was read yet.

        >>> len(People.listed(np.array(["ann", "bob"])).fingerprint)
        64
        """
        raw = np.ascontiguousarray(ids)
        digest = hashlib.blake2b(f"{raw.dtype.str} ids ".encode(), digest_size=32)
        digest.update(raw.view(np.uint8))
        return cls(ids, digest.hexdigest(), namespace, name)


def hash_ids(ids: NDArray[Any], key: bytes) -> Hashes:
    """Return the sorted, distinct hashes of ids, ``(n, 2)``.

    A whole number has one hash, however it is written.

    >>> numbers, texts = np.array([7, 8, 7]), np.array(["8", "7"])
    >>> np.array_equal(hash_ids(numbers, b"k" * 32), hash_ids(texts, b"k" * 32))
    True
    """
    codes = encode_ids(ids, key[:16])
    found = np.empty((len(codes), 2), dtype=np.uint64)
    for half in (0, 1):
        own = hashlib.blake2b(bytes([half]), key=key, digest_size=16).digest()
        for start in range(0, len(codes), _CHUNK):
            words = codes[start : start + _CHUNK]
            state = absorb_first(words, own)
            found[start : start + _CHUNK, half] = absorb_last(state, np.uint64(half))
    return _distinct(found)


def _distinct(hashes: Hashes) -> Hashes:
    """Sort by the first half and drop repeats.

    Two different people with the same first half (one in 10^5 for ten million people) may come in
    either order, so equal first halves are sorted by the second.
    """
    hashes = hashes[np.argsort(hashes[:, 0], kind="stable")]
    ties = np.flatnonzero(hashes[1:, 0] == hashes[:-1, 0])
    if not len(ties):
        return hashes
    hashes = hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))]
    keep = np.ones(len(hashes), dtype=np.bool_)
    keep[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    return hashes[keep]


def among(some: Hashes, others: Hashes) -> NDArray[np.bool_]:
    """Tell which of some hashes are among others; both are sorted and distinct."""
    place = np.searchsorted(others[:, 0], some[:, 0])
    found = np.zeros(len(some), dtype=np.bool_)
    open_ = np.flatnonzero(place < len(others))
    while len(open_):
        at = place[open_]
        same = others[at, 0] == some[open_, 0]
        open_, at = open_[same], at[same]
        found[open_] |= others[at, 1] == some[open_, 1]
        # First halves that are equal by chance stand side by side.
        place[open_] += 1
        open_ = open_[~found[open_] & (place[open_] < len(others))]
    return found


class Members:
    """The members of populations, inside one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def parts(self, population: int) -> Iterator[Hashes]:
        """Return the hashes of a population, piece by piece, each sorted."""
        rows = self.db.execute(
            "SELECT hashes, digest FROM members WHERE population = ? ORDER BY part", (population,)
        )
        for blob, digest in rows:
            if hashlib.blake2b(blob, digest_size=16).digest() != digest:
                raise sqlite3.DatabaseError("the list of a population's members was changed")
            yield np.frombuffer(blob, dtype="<u8").reshape(-1, 2)

    def known(self, population: int, people: Hashes) -> NDArray[np.bool_]:
        """Tell which people are members."""
        found = np.zeros(len(people), dtype=np.bool_)
        for part in self.parts(population):
            found |= among(people, part)
        return found

    def count(self, population: int) -> int:
        """Return how many members there are."""
        (size,) = self.db.execute(
            "SELECT coalesce(sum(length(hashes)), 0) FROM members WHERE population = ?",
            (population,),
        ).fetchone()
        return int(size) // 16

    def join(self, population: int, newcomers: Hashes) -> None:
        """Add people who are not members yet."""
        if not len(newcomers):
            return
        (parts,) = self.db.execute(
            "SELECT count(*) FROM members WHERE population = ?", (population,)
        ).fetchone()
        if parts >= _MOST_PARTS + self.count(population) // _PART_SIZE:
            newcomers = _distinct(np.concatenate([*self.parts(population), newcomers]))
            self.db.execute("DELETE FROM members WHERE population = ?", (population,))
            parts = 0
        for start in range(0, len(newcomers), _PART_SIZE):
            blob = newcomers[start : start + _PART_SIZE].astype("<u8").tobytes()
            digest = hashlib.blake2b(blob, digest_size=16).digest()
            row = (population, parts, blob, digest)
            self.db.execute("INSERT INTO members VALUES (?, ?, ?, ?)", row)
            parts += 1
