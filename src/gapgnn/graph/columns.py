"""Node columns as features and labels: numbers stay, categories are one-hot, missing is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.errors import DataError

# A text column is free text, not a category, if this share of more than FEW rows is different.
FEW = 50
SHARE_DIFFERENT = 0.8


def plain(column: Any) -> Any:
    """Return an Arrow column without dictionary encoding."""
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds strings."""
    # By name, because older versions of Arrow know no string_view.
    return str(kind) in ("string", "large_string", "string_view")


def is_number(kind: Any) -> bool:
    """Whether an Arrow type becomes a number (booleans as 0 and 1)."""
    return bool(
        pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)
    )


@dataclass
class NumberColumn:
    """A numeric column: its values, and where they are missing (0 there, with an indicator)."""

    name: str
    file: str
    _values: list[NDArray[np.float32]] = field(default_factory=list)
    _missing: list[NDArray[np.bool_]] = field(default_factory=list)
    _rows: int = 0

    def add(self, column: Any) -> None:
        """Take the next rows; a value that is written but not finite is refused."""
        missing = column.is_null().to_numpy(zero_copy_only=False)
        numbers = (
            column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        )
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            first = int(np.argmin(finite))
            raise DataError(
                f"Column `{self.name}` of {self.file} must be finite in float32. Got "
                f"{numbers[first]:g} in row {self._rows + first + 1}; "
                "leave the cell empty if the value is missing."
            )
        self._values.append(values)
        self._missing.append(missing)
        self._rows += len(values)

    def finish(self) -> tuple[NDArray[np.float32], list[str]]:
        """Return the feature columns and their names."""
        values = np.concatenate(self._values)
        missing = np.concatenate(self._missing)
        if not missing.any():
            return values[:, None], [self.name]
        block = np.column_stack([values, missing.astype(np.float32)])
        return block, [self.name, f"{self.name}=missing"]


@dataclass
class CategoryColumn:
    """A column of categories, as codes into a growing dictionary; a missing one has code -1."""

    name: str
    file: str
    _chunks: list[Any] = field(default_factory=list)

    def add(self, column: Any) -> None:
        """Take the next rows."""
        try:
            text = plain(column).cast(pa.large_string())
        except pa.ArrowException:
            raise DataError(
                f"Column `{self.name}` of {self.file} must hold categories. Got {column.type}."
            ) from None
        self._chunks.append(text.dictionary_encode())

    def codes(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return each row's code and the categories, in the order they were met."""
        joined = pa.chunked_array(self._chunks).unify_dictionaries().combine_chunks()
        codes = joined.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        return codes, joined.dictionary.to_pylist()

    def looks_like_free_text(self, codes: NDArray[np.int64], categories: Sequence[str]) -> bool:
        """Whether nearly every row has a value of its own."""
        present = int((codes >= 0).sum())
        return present > FEW and len(categories) > SHARE_DIFFERENT * present

    def finish(self) -> tuple[sp.csr_array, list[str]]:
        """Return one column per category, in sorted order, and their names."""
        codes, categories = self.codes()
        if self.looks_like_free_text(codes, categories):
            raise DataError(
                f"Column `{self.name}` of {self.file} must hold categories or numbers. Got free "
                f"text ({len(categories):,} different values in {len(codes):,} rows); leave it out "
                f"with `--drop {self.name}`."
            )
        order = sorted(range(len(categories)), key=categories.__getitem__)
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        present = codes >= 0
        indptr = np.concatenate([[0], np.cumsum(present)])
        ones = np.ones(int(indptr[-1]), dtype=np.float32)
        shape = (len(codes), len(categories))
        block = sp.csr_array((ones, rank[codes[present]], indptr), shape=shape)
        return block, [f"{self.name}={categories[index]}" for index in order]


def feature_column(name: str, kind: Any, file: str) -> NumberColumn | CategoryColumn | None:
    """Choose how a column of one Arrow type becomes features; None if it holds nothing at all."""
    if pt.is_null(kind):
        return None
    if is_number(kind):
        return NumberColumn(name, file)
    if is_text(kind) or pt.is_dictionary(kind):
        return CategoryColumn(name, file)
    raise DataError(
        f"Column `{name}` of {file} must hold numbers or categories. Got {kind}; turn it into "
        f"one of them, or leave it out with `--drop {name}`."
    )


def stack(columns: Sequence[NumberColumn | CategoryColumn]) -> tuple[Any, tuple[str, ...]]:
    """Put finished columns side by side: sparse if any is one-hot, dense if all are numbers.

    >>> height = NumberColumn("height", "people.csv")
    >>> height.add(pa.array([1.5, None]))
    >>> stack([height])
    (array([[1.5, 0. ],
           [0. , 1. ]], dtype=float32), ('height', 'height=missing'))
    """
    blocks, names = zip(*(column.finish() for column in columns), strict=True)
    flat = tuple(name for group in names for name in group)
    if any(sp.issparse(block) for block in blocks):
        return sp.hstack([sp.csr_array(block) for block in blocks], format="csr"), flat
    return np.column_stack(blocks), flat


def class_labels(column: CategoryColumn) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each row's class (-1 where missing) and the classes' names in sorted order.

    Names that are all numbers are compared as numbers: 2 comes before 10, and 2004.0 is 2004.

    >>> year = CategoryColumn("year", "people.csv")
    >>> year.add(pa.array(["10", "2.0", None, "2"]))
    >>> class_labels(year)
    (array([ 1,  0, -1,  0]), ('2', '10'))
    """
    codes, values = column.codes()
    if column.looks_like_free_text(codes, values):
        raise DataError(
            f"`label` must be a column of classes. Got {len(values):,} different values in "
            f"{len(codes):,} rows of column `{column.name}`."
        )
    numbers = [_number(value) for value in values]
    keys: list[Any] = list(values)
    if all(number is not None for number in numbers):
        keys = [None if number != number else number for number in numbers]
    classes = sorted({key for key in keys if key is not None})
    place = {key: index for index, key in enumerate(classes)}
    # The last entry serves code -1, a missing label.
    table = np.array([place.get(key, -1) for key in keys] + [-1], dtype=np.int64)
    names = tuple(
        str(int(key)) if isinstance(key, float) and key.is_integer() else str(key)
        for key in classes
    )
    return table[codes], names


def _number(text: str) -> int | float | None:
    if "_" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
