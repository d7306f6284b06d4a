"""One spelling for each id, so that a person has one hash (privacy page, section 6).

Exports, spreadsheets and keyboards write the same id in several ways: composed or decomposed
accents, other case, other white space, invisible format characters, digits of another script,
``1,000``. Two ids that agree after normalisation are one person: they are charged together, and a
table or graph that has a node for each of them is refused.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTEGER = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.0*)?")
_MINUS_SIGN = "\u2212"
# Integers of so many characters always fit 64 bits; the hash of numbers takes care of those.
_SHORT = 18
_PADDED = r"^(?:\+|(-))?0*([0-9]+)(?:\.0*)?$"


def normalize_id(text: str) -> str:
    """Return the one spelling of an id.

    NFKC and case folding, without format characters (category Cf), white space collapsed and
    removed at both ends, decimal digits of any script in ASCII, and integers without thousands
    separators, plus sign, leading zeros and zeros after the point.

    >>> [normalize_id(text) for text in ("Zoe\\u0308  Ma", "zo\\u00eb\\u200b ma", "+01,000.0")]
    ['zoë ma', 'zoë ma', '1000']
    """
    before = None
    while text != before:  # folding can undo NFKC, and what was dropped can separate an accent
        before = text
        text = "".join(char for char in text if unicodedata.category(char) != "Cf")
        text = unicodedata.normalize("NFKC", text).casefold()
    text = " ".join("".join(map(_ascii_digit, text)).split()).replace(_MINUS_SIGN, "-")
    integer = _INTEGER.fullmatch(text)
    if integer is None:
        return text
    digits = integer[2].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if integer[1] == "-" and digits != "0" else digits


def _ascii_digit(char: str) -> str:
    value = unicodedata.decimal(char, None)
    return char if value is None else str(value)


def normalize_ids(names: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return :func:`normalize_id` of each text; short integers may keep signs and leading zeros.

    >>> normalize_ids(np.array(["ANN", "bo  b", "1,000"])).tolist()
    ['ann', 'bo b', '1000']
    """
    letters: NDArray[Any] = np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1)
    if not letters.size:
        return names
    # In ASCII the only things to do are case, white space, commas and long integers.
    is_upper = letters - np.uint32(ord("A")) < 26
    if is_upper.any():
        letters = letters + np.where(is_upper, np.uint32(32), np.uint32(0))
    # Zeros behind a text wrap around to the largest number.
    is_special = (letters >= 128) | (letters - np.uint32(1) < 32) | (letters == ord(","))
    is_other = is_special.any(axis=1)
    if letters.shape[1] > _SHORT:
        numeric = np.array([0, *b"+-.0123456789"], dtype=np.uint32)
        is_other |= (letters[:, _SHORT] != 0) & np.isin(letters, numeric).all(axis=1)
    folded: NDArray[np.str_] = np.ascontiguousarray(letters).view(f"U{letters.shape[1]}")[:, 0]
    if not is_other.any():
        return folded
    # From the texts as they were: only whole normalisation is the same for all of them.
    spelled = np.array([normalize_id(name) for name in names[is_other].tolist()], dtype=str)
    folded = folded.astype(np.promote_types(folded.dtype, spelled.dtype))
    folded[is_other] = spelled
    return folded


def spelled_twice(ids: NDArray[Any]) -> tuple[int, int] | None:
    """Return the positions of two distinct ids that are one person, if there are any.

    >>> spelled_twice(np.array(["ann", "bob", "Bob", "ANN"])), spelled_twice(np.array([7, 8]))
    ((1, 2), None)
    >>> spelled_twice(np.array(["007", "8", "7.0"])), spelled_twice(np.array(["07a", "7a"]))
    ((0, 2), None)
    """
    if ids.dtype.kind in "iu":
        return None
    import pyarrow as pa  # here: the ledger, which spells ids too, need not wait for it
    import pyarrow.compute as pc

    spelled = pa.array(normalize_ids(ids.astype(str, copy=False)), pa.large_string())
    codes = pc.replace_substring_regex(spelled, _PADDED, r"\1\2").dictionary_encode().indices
    first: NDArray[np.int64] = np.full(len(ids), -1, dtype=np.int64)
    places, numbers = codes.to_numpy(), np.arange(len(ids))
    first[places[::-1]] = numbers[::-1]
    again = np.flatnonzero(first[places] != numbers)
    return (int(first[places[again[0]]]), int(again[0])) if len(again) else None
