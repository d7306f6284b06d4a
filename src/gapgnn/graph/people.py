"""Randomness of one person: a function of a key and of that person's id, and of nobody else.

Node-level privacy compares data with and without one person, so whatever is drawn for the others
must not change when that person leaves (privacy page, sections 1 and 2). A permutation of
positions, or a stream that is read row after row, violates this: it changes for every later row.
Here every draw comes from SipHash-2-4 of ids under a key, so it depends neither on the order of the
rows, nor on how the work is split, nor on who else has a record.

Two keys are in use: roles come from the experiment's public seed, adjacency lists are cut
(:mod:`gapgnn.graph.degree`) by the run's secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import check_integer
from gapgnn.rng import experiment_bytes

Words = NDArray[np.uint64]
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
KEY_BYTES = 16
NAME_KEY_BYTES = 32
# Ids hashed at a time, so that SipHash's state stays in cache.
CHUNK = 1 << 16
_CHUNK_128 = 1 << 14
SIPHASH_CONSTANTS = (
    0x736F6D6570736575,
    0x646F72616E646F6D,
    0x6C7967656E657261,
    0x7465646279746573,
)


def roles(ids: NDArray[Any], *, seed: int, train: float, val: float) -> NDArray[np.int8]:
    """Return the role of each person: 0 to train, 1 to validate, 2 to test.

    A role is a public hash of (seed, id), so removing a person does not change any other role. The
    counts are those of independent draws: the shares ``train`` and ``val`` hold in expectation.

    >>> ids = np.arange(1000)
    >>> everybody = roles(ids, seed=0, train=0.75, val=0.1)
    >>> others = roles(np.delete(ids, 7), seed=0, train=0.75, val=0.1)
    >>> bool((np.delete(everybody, 7) == others).all())
    True
    """
    found = np.empty(len(ids), dtype=np.int8)
    for part, share in _shares(ids, seed, "split"):
        found[part] = (share >= train).astype(np.int8) + (share >= train + val)
    return found


def repeat_roles(
    ids: NDArray[Any], *, seed: int, train: float, val: float, repeats: range
) -> NDArray[np.int8]:
    """Return the role of each person in up to four further repeats, ``(repeats, ids)``.

    As :func:`roles`, a quarter of a hash for each repeat: 16 bits decide a role, which is exact to
    one in 65,536.

    >>> found = repeat_roles(np.arange(1000), seed=0, train=0.75, val=0.1, repeats=range(1, 4))
    >>> found.shape, bool((found[0] == found[1]).all())
    ((3, 1000), False)
    """
    check_integer("repeats", len(repeats), at_least=1, at_most=4)
    material = experiment_bytes(seed, KEY_BYTES + NAME_KEY_BYTES, "role", f"repeats {repeats[0]}")
    words = encode_ids(ids, material[KEY_BYTES:])
    found = np.empty((len(repeats), len(words)), dtype=np.int8)
    ends = [round(share * 2**16) for share in (train, train + val)]
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        hashes = absorb_last(absorb_first(part, material[:KEY_BYTES]), part)
        quarters = hashes.astype("<u8", copy=False).view("<u2").reshape(-1, 4).astype(np.int32)
        for place, role in enumerate(found):
            share = quarters[:, place]
            role[start : start + CHUNK] = (share >= ends[0]).astype(np.int8) + (share >= ends[1])
    return found


def folds_of(ids: NDArray[Any], *, seed: int, folds: int) -> NDArray[np.int64]:
    """Return the cross-fitting fold of each person, 0 to ``folds - 1``.

    As :func:`roles`, a public hash of (seed, id), but independent of roles: folds are equally large
    in expectation, and removing a person does not change any other fold.

    >>> ids = np.arange(1000)
    >>> everybody = folds_of(ids, seed=0, folds=5)
    >>> others = folds_of(np.delete(ids, 7), seed=0, folds=5)
    >>> bool((np.delete(everybody, 7) == others).all()), np.bincount(everybody).tolist()
    (True, [185, 201, 196, 220, 198])
    """
    check_integer("folds", folds, at_least=2, at_most=1000)
    found = np.empty(len(ids), dtype=np.int64)
    for part, share in _shares(ids, seed, "folds"):
        found[part] = (share * folds).astype(np.int64)
    return found


def _shares(
    ids: NDArray[Any], seed: int, purpose: str
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield, chunk by chunk, a public number from 0 to 1 for each id."""
    material = experiment_bytes(seed, KEY_BYTES + NAME_KEY_BYTES, "role", purpose)
    words = encode_ids(ids, material[KEY_BYTES:])
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        hashes = absorb_last(absorb_first(part, material[:KEY_BYTES]), part)
        share = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
        yield slice(start, start + CHUNK), share


def has_only_positions(ids: NDArray[Any]) -> bool:
    """Return whether ids are 0, 1, 2 and so on, as where the user gave none.

    >>> has_only_positions(np.arange(3)), has_only_positions(np.array(["ann", "bob"]))
    (True, False)
    """
    return ids.dtype.kind in "iu" and bool((ids == np.arange(len(ids))).all())


def encode_ids(ids: NDArray[Any], key: bytes) -> Words:
    """Reduce ids to 64 bits each.

    Whole numbers are their own code, also when written as text: whether a column of ids is read as
    numbers or as strings can depend on other people's records, and must not change a code. Other
    names are hashed with keyed BLAKE2b.
    """
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64, copy=False).view(np.uint64)
    names = ids.astype(str, copy=False)
    codes = np.empty(len(names), dtype=np.uint64)
    start = hashlib.blake2b(digest_size=8, key=key)
    for first in range(0, len(names), CHUNK):
        part = names[first : first + CHUNK]
        is_number, words = whole_numbers(letters_of(part))
        digests = []
        for name in part[~is_number].tolist():
            state = start.copy()
            state.update(name.encode("utf-8", "surrogatepass"))
            digests.append(state.digest())
        words[~is_number] = np.frombuffer(b"".join(digests), dtype="<u8")
        codes[first : first + CHUNK] = words
    return codes


def letters_of(names: NDArray[np.str_]) -> NDArray[np.uint32]:
    """Return the code points of texts, padded with zeros: ``(longest, n)``.

    There are at least two rows.

    >>> letters_of(np.array(["ab", "c"])).tolist()
    [[97, 99], [98, 0]]
    """
    width = max(2, names.dtype.itemsize // 4)
    native = np.ascontiguousarray(names, dtype=f"U{width}")
    return np.ascontiguousarray(native.view(np.uint32).reshape(len(names), width).T)


def whole_numbers(letters: NDArray[Any]) -> tuple[NDArray[np.bool_], Words]:
    """Return which texts are decimal integers of 64 bits, and their value.

    Letters are as :func:`letters_of` returns them, or bytes in the same order.

    >>> is_number, words = whole_numbers(letters_of(np.array(["7", "-1", "007", "x", ""])))
    >>> is_number.tolist(), words[:2].view(np.int64).tolist()
    ([True, True, False, False, False], [7, -1])
    """
    # Other characters wrap around to more than nine.
    digits = letters - letters.dtype.type(ord("0"))
    value = np.zeros(letters.shape[1], dtype=np.uint64)
    is_negative = letters[0] == ord("-")
    if not (is_negative | (digits[0] <= 9)).any():
        return is_negative, value
    is_digit, is_over = digits <= 9, letters == 0
    is_fine = is_digit | is_over
    is_fine[0] = is_digit[0] | (is_negative & is_digit[1])
    is_fine[1:] &= is_over[1:] | ~is_over[:-1]
    has_first_zero = np.where(is_negative, digits[1], digits[0]) == 0
    is_number = is_fine.all(axis=0) & ~(has_first_zero & (is_negative | ~is_over[1]))
    # Nineteen digits never overflow 64 bits, and twenty are too many.
    is_number &= is_digit.sum(axis=0) <= 19
    for place in range(min(20, len(letters))):
        grown = value * np.uint64(10) + digits[place]
        np.copyto(value, grown, where=is_digit[place])
    is_number &= value < np.uint64(2**63) + is_negative.astype(np.uint64)
    return is_number, np.where(is_negative, np.uint64(0) - value, value)


class WordOps(NamedTuple):
    """The array operations that SipHash needs: of NumPy here, of an accelerator elsewhere.

    Attributes:
        constant: converts a 64-bit integer to a scalar of the library.
        filled: an array like another, filled with one number.
        rotate: rotates each 64-bit word to the left, in place; may use a spare array.
        shifted: logical right shift of each 64-bit word.
    """

    constant: Callable[[int], Any]
    filled: Callable[[Any, Any], Any]
    rotate: Callable[[Any, int, Any], None]
    shifted: Callable[[Any, int], Any]


def _rotate(word: Words, by: int, spare: Words) -> None:
    np.left_shift(word, np.uint64(by), out=spare)
    np.right_shift(word, np.uint64(64 - by), out=word)
    np.bitwise_or(word, spare, out=word)


def _shifted(word: Words, by: int) -> Words:
    return word >> np.uint64(by)


NUMPY_OPS = WordOps(np.uint64, np.full_like, _rotate, _shifted)


def absorb_first(words: Any, key: bytes, ops: WordOps = NUMPY_OPS) -> list[Any]:
    """Start SipHash-2-4 and absorb the first of two words."""
    halves = [int.from_bytes(key[at : at + 8], "little") for at in (0, 8)]
    state = [
        ops.filled(words, ops.constant(constant ^ halves[place % 2]))
        for place, constant in enumerate(SIPHASH_CONSTANTS)
    ]
    state[3] ^= words
    _rounds(state, 2, ops)
    state[0] ^= words
    return state


def absorb_last(state: list[Any], words: Any, ops: WordOps = NUMPY_OPS) -> Any:
    """Absorb the second word and the length (16 bytes), and finish SipHash-2-4 in place."""
    for word in (words, ops.constant(16 << 56)):
        state[3] ^= word
        _rounds(state, 2, ops)
        state[0] ^= word
    state[2] ^= ops.constant(0xFF)
    _rounds(state, 4, ops)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def siphash_128(words: Sequence[Words], lengths: int | Words, key: bytes) -> Words:
    """Return the 128-bit SipHash-2-4 of messages as two halves, ``(n, 2)``.

    Args:
        words: the 8-byte words of each message; the last word holds the remaining bytes, fewer
            than eight.
        lengths: number of bytes of each message; all fill the same number of words.
        key: 16 bytes.
    """
    halves = [int.from_bytes(key[at : at + 8], "little") for at in (0, 8)]
    *whole, rest = words
    rest = rest | np.asarray(lengths, dtype=np.uint64) << np.uint64(56)
    found = np.empty((len(rest), 2), dtype=np.uint64)
    # The state is allocated once: allocating it for each chunk would take longer than hashing.
    rows = np.empty((5, min(len(found), _CHUNK_128)), dtype=np.uint64)
    for start in range(0, len(found), _CHUNK_128):
        part = slice(start, start + _CHUNK_128)
        *state, spare = rows[:, : len(found[part])]
        for place, constant in enumerate(SIPHASH_CONSTANTS):
            state[place].fill(constant ^ halves[place % 2])
        state[1] ^= np.uint64(0xEE)
        for word in (*whole, rest):
            state[3] ^= word[part]
            _rounds(state, 2, NUMPY_OPS, spare)
            state[0] ^= word[part]
        state[2] ^= np.uint64(0xEE)
        for half in (0, 1):
            _rounds(state, 4, NUMPY_OPS, spare)
            np.bitwise_xor(state[0], state[1], out=spare)
            spare ^= state[2]
            np.bitwise_xor(spare, state[3], out=found[part, half])
            state[1] ^= np.uint64(0xDD)
    return found


def _rounds(state: list[Any], count: int, ops: WordOps, spare: Any = None) -> None:
    """Apply rounds of SipHash to the four words of the state, in place."""
    if spare is None:
        spare = ops.filled(state[0], 0)

    def rotate(word: Any, by: int) -> None:
        ops.rotate(word, by, spare)

    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        rotate(v1, 13)
        v1 ^= v0
        rotate(v0, 32)
        v2 += v3
        rotate(v3, 16)
        v3 ^= v2
        v0 += v3
        rotate(v3, 21)
        v3 ^= v0
        v2 += v1
        rotate(v1, 17)
        v1 ^= v2
        rotate(v2, 32)
