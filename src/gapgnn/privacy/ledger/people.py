"""Populations: the people of a budget, by keyed hashes of their ids (privacy page, section 6).

A *population* is a named set of people in a *namespace*. It is matched by a single common id,
whatever the rest of a table holds: next month's table, one with fewer columns or edited cells, and
one with ids as text refer to the same people.

The ledger holds 16 bytes per person, SipHash of the id under a key that never leaves the ledger. In
separate namespaces, two tables that both count from 1 have different people. In one namespace they
are charged together, which is the conservative choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.graph import Graph, Words, normalize_ids, siphash_128, whole_numbers
from gapgnn.privacy.ledger.chain import DamageError

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection

# Sorted by the first half, then the second; 16 bytes each.
Hashes = NDArray[np.uint64]
# Ids hashed and compared at a time, which fit into the cache.
_CHUNK = 1 << 14
# Largest size of remembered ids and of remembered hashes, in bytes each.
_MOST_REMEMBERED = 1 << 26
_LARGEST = 2**63 - 1
# Hashes per piece: SQLite and PostgreSQL take up to a gigabyte, these have at most 64 MB.
_PART_SIZE = 1 << 22


@dataclass(frozen=True, eq=False)
class People:
    """The people whose records, or ids, a release reads.

    Attributes:
        ids: external ids, numbers or texts.
        fingerprint: of the graph that is read.
        namespace: of the ids; own tables are in ``default``.
        name: of the data set.
    """

    ids: NDArray[Any]
    fingerprint: str
    namespace: str = "default"
    name: str = ""

    @classmethod
    def of(cls, graph: Graph) -> People:
        """Return all ids of a graph: those with a record, and those only in adjacency lists."""
        ids = graph.ids
        for edges in graph.edge_types:
            if edges.dangling_targets is None:
                continue
            listed = np.asarray(edges.dangling_targets)
            if listed.dtype.kind != ids.dtype.kind:
                ids, listed = ids.astype(str), listed.astype(str)
            ids = np.concatenate([ids, listed])
        return cls(ids, graph.fingerprint, graph.population, graph.name)

    @classmethod
    def listed(cls, ids: NDArray[Any], *, namespace: str = "default", name: str = "") -> People:
        """Return people given by their ids alone, without a graph.

        >>> len(People.listed(np.array(["ann", "bob"])).fingerprint)
        64
        """
        raw = np.ascontiguousarray(ids)
        digest = hashlib.blake2b(f"{raw.dtype.str} ids ".encode(), digest_size=32)
        digest.update(raw.view(np.uint8).data)
        return cls(ids, digest.hexdigest(), namespace, name)


def hash_ids(ids: NDArray[Any], key: bytes) -> Hashes:
    """Return the sorted, distinct hashes of ids, ``(n, 2)``.

    The hash does not depend on the spelling of an id (:mod:`gapgnn.graph.spelling`):
    ``7``, `` 7``, ``+7``, ``007`` and ``7.0`` are one number, so that a program's column type does
    not split a population. Two people whose ids differ in nothing else are charged as one.

    >>> numbers, texts = np.array([7, 8, 7]), np.array(["8.0", " 007"])
    >>> np.array_equal(hash_ids(numbers, b"k" * 32), hash_ids(texts, b"k" * 32))
    True
    """
    return distinct(_hash_each(ids, key, normalize_ids))


def pseudonyms(ids: NDArray[Any], key: bytes) -> NDArray[np.str_]:
    """Return a keyed hash of each id as text, the same for every spelling of it.

    >>> found = pseudonyms(np.array(["007", "ann"]), b"k" * 32)
    >>> len(found[0]), bool(found[0] == pseudonyms(np.array([7]), b"k" * 32)[0])
    (32, True)
    """
    if not len(ids):
        return np.empty(0, dtype="U32")
    digits = _hash_each(ids, key, normalize_ids).astype(">u8").tobytes().hex()
    return np.frombuffer(digits.encode(), dtype="S32").astype(str)


def respelled(ids: NDArray[Any], key: bytes) -> tuple[Hashes, Hashes]:
    """Return the hashes of these ids in ledgers before version 4, where they differ.

    Returns:
        The earlier hashes, sorted and distinct, and the current hash of each. Ids with equal
        earlier hashes have equal current ones.

    >>> [len(hashes) for hashes in respelled(np.array(["ann", "Bob", "7"]), b"k" * 32)]
    [1, 1]
    """
    if _are_numbers(ids):
        empty = np.empty((0, 2), dtype=np.uint64)
        return empty, empty
    before, now = (_hash_each(ids, key, spell) for spell in (_trimmed, normalize_ids))
    differs = (before != now).any(axis=1)
    before, now = before[differs], now[differs]
    order = np.lexsort((before[:, 1], before[:, 0]))
    before, now = before[order], now[order]
    is_first = np.ones(len(before), dtype=np.bool_)
    is_first[1:] = (before[1:] != before[:-1]).any(axis=1)
    return before[is_first], now[is_first]


def _are_numbers(ids: NDArray[Any]) -> bool:
    return ids.dtype.kind == "i" or (ids.dtype.kind == "u" and not (ids > _LARGEST).any())


def _hash_each(
    ids: NDArray[Any], key: bytes, spell: Callable[[NDArray[np.str_]], NDArray[np.str_]]
) -> Hashes:
    """Return the hash of each id, in their order."""
    if _are_numbers(ids):
        return _hash_numbers(ids.astype(np.int64, copy=False).view(np.uint64), key)
    names = ids.astype(str, copy=False)
    found = np.empty((len(names), 2), dtype=np.uint64)
    for start in range(0, len(names), _CHUNK):
        letters = _utf8(spell(names[start : start + _CHUNK]))
        is_number, codes = _written_numbers(np.ascontiguousarray(letters.T))
        hashes = found[start : start + _CHUNK]
        if is_number.any():
            hashes[is_number] = _hash_numbers(codes[is_number], key)
            hashes[~is_number] = _hash_letters(letters[~is_number], key)
        else:
            hashes[:] = _hash_letters(letters, key)
    return found


class Remembered:
    """The hashes of the people who were asked for last, for whoever trains on them again.

    They are known by a copy of all their ids: an array that was changed in place is another one.

    >>> hashes, people = Remembered(), np.array([7, 8])
    >>> hashes.of(people, b"k" * 32) is hashes.of(people.copy(), b"k" * 32)
    True
    >>> people[0] = 9
    >>> len(hashes.of(people, b"k" * 32)), len(hashes.of(people[:1], b"k" * 32))
    (2, 1)
    """

    def __init__(self) -> None:
        # Each is replaced whole: another thread sees one or the other, never half of both.
        self._last: tuple[NDArray[Any], bytes, Hashes] = (
            np.empty(0),
            b"",
            np.empty((0, 2), dtype=np.uint64),
        )
        self._digest_of: tuple[Hashes, bytes] | None = None

    def of(self, ids: NDArray[Any], key: bytes) -> Hashes:
        """Return :func:`hash_ids` as a read-only array."""
        names = ids.astype(str) if ids.dtype.kind == "O" else ids
        own = hashlib.blake2b(b"remembered", key=key).digest()
        known, owner, hashes = self._last
        # Numbers of another dtype may be equal by rounding alone.
        if own == owner and names.dtype == known.dtype and np.array_equal(names, known):
            return hashes
        hashes = hash_ids(names, key)
        hashes.flags.writeable = False
        if max(names.nbytes, hashes.nbytes) <= _MOST_REMEMBERED:
            self._last = names.copy(), own, hashes
        return hashes

    def digest(self, hashes: Hashes) -> bytes:
        """Return what a ledger keeps beside these hashes where all of them are one piece."""
        known = self._digest_of
        if known is not None and known[0] is hashes:
            return known[1]
        digest = _digest(hashes)
        if hashes is self._last[2]:
            self._digest_of = hashes, digest
        return digest


REMEMBERED = Remembered()


def _trimmed(names: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return texts without the spaces around them, as ledgers before version 4 hashed them."""
    letters = np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1)
    if not letters.size:
        return names
    # Ids rarely have spaces around them. Zeros behind a text wrap around to the largest number.
    has_space = (letters - np.uint32(1) < np.uint32(ord(" "))).any()
    if not has_space and letters.max() < 128:
        return names
    stripped: NDArray[np.str_] = np.char.strip(names)
    return stripped


def _written_numbers(letters: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], Words]:
    """Tell which texts are whole numbers of 64 bits in any spelling, and their value.

    As :func:`gapgnn.graph.whole_numbers`, and also with a plus sign, zeros in front, and a point
    with zeros behind.
    """
    is_number, codes = whole_numbers(letters)
    sign, digits = letters[0], letters - np.uint8(ord("0"))
    may_be = ~is_number & ((digits[0] <= 9) | (sign == ord("+")) | (sign == ord("-")))
    if not may_be.any():
        return is_number, codes
    some = np.flatnonzero(may_be)
    signed = (sign[some] == ord("+")) | (sign[some] == ord("-"))
    value = np.zeros(len(some), dtype=np.uint64)
    figures = np.zeros(len(some), dtype=np.int64)
    has_digit, has_point, is_over = (np.zeros(len(some), dtype=np.bool_) for _ in range(3))
    is_fine = np.ones(len(some), dtype=np.bool_)
    for place in range(len(letters)):
        letter, digit = letters[place, some], digits[place, some]
        is_over |= letter == 0
        is_digit = digit <= 9
        is_point = (letter == ord(".")) & has_digit & ~has_point
        is_sign = signed & (place == 0)
        # Behind the point nothing but zeros; behind the end nothing at all.
        is_fine &= (letter == 0) == is_over
        is_fine &= is_over | is_sign | is_point | (is_digit & (~has_point | (digit == 0)))
        counts = is_digit & ~has_point & ~is_over
        figures += counts & ((value > 0) | (digit > 0))
        np.copyto(value, value * np.uint64(10) + digit, where=counts & (figures <= 19))
        has_digit |= counts
        has_point |= is_point
    is_negative = sign[some] == ord("-")
    is_fine &= has_digit & (figures <= 19)
    is_fine &= value < np.uint64(2**63) + is_negative.astype(np.uint64)
    found, at = np.where(is_negative, np.uint64(0) - value, value), some[is_fine]
    is_number, codes = is_number.copy(), codes.copy()
    is_number[at], codes[at] = True, found[is_fine]
    return is_number, codes


def _utf8(names: NDArray[np.str_]) -> NDArray[np.uint8]:
    """Return texts in UTF-8, zeros behind the end of each, in whole words: ``(n, longest)``."""
    letters: NDArray[Any] = np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1)
    if letters.max(initial=0) >= 128:  # in ASCII a letter is its own byte
        encoded = np.char.encode(names, "utf-8", "surrogatepass")
        letters = encoded.view(np.uint8).reshape(len(names), -1)
    found = np.zeros((len(names), 8 * (letters.shape[1] // 8 + 1)), dtype=np.uint8)
    found[:, : letters.shape[1]] = letters
    return found


def _hash_numbers(numbers: Words, key: bytes) -> Hashes:
    own = hashlib.blake2b(b"numbers", key=key, digest_size=16).digest()
    return siphash_128([numbers, np.zeros_like(numbers)], 8, own)


def _hash_letters(letters: NDArray[np.uint8], key: bytes) -> Hashes:
    """Hash texts; those that fill equally many words go together."""
    own = hashlib.blake2b(b"names", key=key, digest_size=16).digest()
    words = letters.view("<u8").astype(np.uint64, copy=False)
    # The last letter is a zero, so where nothing else is found from behind, the text is empty.
    zeros_behind = np.argmax(letters[:, ::-1] != 0, axis=1).astype(np.uint64)
    lengths = np.where(zeros_behind == 0, np.uint64(0), np.uint64(letters.shape[1]) - zeros_behind)
    found = np.empty((len(letters), 2), dtype=np.uint64)
    full_words = lengths >> np.uint64(3)
    for count in range(words.shape[1]):
        alike = np.flatnonzero(full_words == count)
        columns = np.ascontiguousarray(words[alike, : count + 1].T)
        found[alike] = siphash_128(list(columns), lengths[alike], own)
    return found


def distinct(hashes: Hashes) -> Hashes:
    """Sort by the first half, then the second, and drop repeats.

    The upper bits of the first half and the row's number are sorted as one number, which is several
    times faster than asking for the order; the few rows that agree in those bits are put in order
    afterwards.
    """
    bits = np.uint64(len(hashes).bit_length())
    packed = hashes[:, 0] >> bits
    packed <<= bits
    for start in range(0, len(packed), _CHUNK):
        part = packed[start : start + _CHUNK]
        part |= np.arange(start, start + len(part), dtype=np.uint64)
    packed.sort()
    alike = _neighbours_alike(packed, bits)
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    hashes = np.take(hashes, packed.view(np.int64), axis=0)
    if not len(alike):
        return hashes
    rows = np.union1d(alike, alike + 1)
    some = hashes[rows]
    some = some[np.lexsort((some[:, 1], some[:, 0]))]
    hashes[rows] = some
    repeats = rows[1:][(some[1:] == some[:-1]).all(axis=1)]
    return np.delete(hashes, repeats, axis=0) if len(repeats) else hashes


def _neighbours_alike(packed: Words, bits: np.uint64) -> NDArray[np.int64]:
    """Return where a number agrees with the next one but for the lower bits."""
    found = []
    for start in range(0, len(packed), _CHUNK):
        upper = packed[start : start + _CHUNK + 1] >> bits
        found.append(start + np.flatnonzero(upper[1:] == upper[:-1]))
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def among(some: Hashes, others: Hashes) -> NDArray[np.bool_]:
    """Tell which of some hashes are among others; both are sorted and distinct."""
    found = np.zeros(len(some), dtype=np.bool_)
    firsts = np.ascontiguousarray(others[:, 0])
    for start in range(0, len(some), _CHUNK):
        part = some[start : start + _CHUNK]
        # Both are sorted, so a piece of one can only be found in a piece of the other.
        low = np.searchsorted(firsts, part[0, 0])
        high = np.searchsorted(firsts, part[-1, 0], side="right")
        if low < high:
            near = others[low:high]
            place = np.searchsorted(firsts[low:high], part[:, 0])
            same = np.take(near, place, axis=0, mode="clip") == part
            found[start : start + _CHUNK] = same[:, 0] & same[:, 1]
            # First halves that are equal by chance stand side by side.
            for row in np.flatnonzero(same[:, 0] & ~same[:, 1]):
                found[start + row] = (near == part[row]).all(axis=1).any()
    return found


class Members:
    """The members of populations, inside one transaction."""

    def __init__(self, db: Connection) -> None:
        self.db = db

    def parts(self, population: int) -> Iterator[Hashes]:
        """Return the hashes of a population, piece by piece, each sorted."""
        return (piece for piece, _ in self._pieces(population))

    def known(self, population: int, people: Hashes) -> NDArray[np.bool_]:
        """Tell which people are members."""
        found = np.zeros(len(people), dtype=np.bool_)
        for piece, is_people in self._pieces(population, people):
            found |= True if is_people else among(people, piece)
        return found

    def _pieces(
        self, population: int, people: Hashes | None = None
    ) -> Iterator[tuple[Hashes, bool]]:
        """Return the pieces, checked by their digests, and whether one equals ``people``.

        Nearly always the one piece is the people who were read before. Comparing it with them takes
        a fraction of its digest, and theirs is remembered.
        """
        rows = self.db.execute(
            "SELECT part, length(hashes), digest FROM members WHERE population = ? ORDER BY part",
            (population,),
        ).fetchall()
        for part, size, digest in rows:
            is_people = (
                people is not None
                and size == people.nbytes
                and self.db.holds(population, part, people)
            )
            piece = people if people is not None and is_people else self._piece(population, part)
            if REMEMBERED.digest(piece) != digest:
                raise DamageError("the list of a population's members was changed")
            yield piece, is_people

    def _piece(self, population: int, part: int) -> Hashes:
        query = "SELECT hashes FROM members WHERE population = ? AND part = ?"
        (raw,) = self.db.execute(query, (population, part)).fetchone()
        if len(raw) % 16:
            raise DamageError("the list of a population's members was changed")
        return np.frombuffer(raw, dtype="<u8").reshape(-1, 2)

    def count(self, population: int) -> int:
        """Return how many members there are."""
        (size,) = self.db.execute(
            "SELECT CAST(coalesce(sum(length(hashes)), 0) AS BIGINT) FROM members "
            "WHERE population = ?",
            (population,),
        ).fetchone()
        return int(size) // 16

    def replace(self, population: int, before: Hashes, now: Hashes) -> None:
        """Put other hashes in the place of some members'; all are sorted and distinct."""
        pieces = [piece[~among(piece, before)] for piece in self.parts(population)]
        self.db.execute("DELETE FROM members WHERE population = ?", (population,))
        self.join(population, distinct(np.concatenate([*pieces, now])))

    def join(self, population: int, newcomers: Hashes) -> None:
        """Add people who are not members yet.

        Small pieces are brought together until each is more than twice the one after it, so there
        are few, and the large ones are seldom written.
        """
        if not len(newcomers):
            return
        pieces = self.db.execute(
            "SELECT part, length(hashes) FROM members WHERE population = ? ORDER BY part DESC",
            (population,),
        ).fetchall()
        part, together = 0, [newcomers]
        for number, size in pieces:
            if size // 16 > 2 * sum(map(len, together)):
                part = number + 1
                break
            together.append(self._piece(population, number))
        if len(together) > 1:
            newcomers = distinct(np.concatenate(together))
            self.db.execute(
                "DELETE FROM members WHERE population = ? AND part >= ?", (population, part)
            )
        for start in range(0, len(newcomers), _PART_SIZE):
            piece = newcomers[start : start + _PART_SIZE]
            row = (population, part, _digest(piece), piece.astype("<u8", copy=False).tobytes())
            self.db.execute("INSERT INTO members VALUES (?, ?, ?, ?)", row)
            part += 1


def _digest(hashes: Hashes) -> bytes:
    raw = np.ascontiguousarray(hashes.astype("<u8", copy=False)).view(np.uint8)
    return hashlib.blake2b(raw.data, digest_size=16).digest()
