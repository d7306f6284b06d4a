"""Node columns as features and labels: learned from the table, or as a schema declares them.

Learned columns: numbers are kept, categories become one-hot, and missing values get an indicator.
Declared columns: each row of features is a function of that row of the table alone, and no cell can
make the run fail (privacy page, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import scipy.sparse as sp
from numpy.typing import NDArray

from gapgnn.graph.tables.dates import days_of, is_date, recognised_format
from gapgnn.graph.tables.dialect import Dialect
from gapgnn.graph.tables.files import ColumnError, TableFile, listed
from gapgnn.graph.tables.schema import Category, Date, Ignored, Number, Schema, match_keys, number

# A text column is free text, not a category, if it has more than MIN_FREE_TEXT_ROWS rows and more
# than this share of them differ.
MIN_FREE_TEXT_ROWS = 50
MIN_DIFFERENT_SHARE = 0.8
# A text column is of numbers if this share of its cells can be read as one.
MIN_NUMBER_SHARE = 0.95
# A column of at least so many different numbers is not one of categories.
MIN_NUMBERS = 20
# A column with more different values than this is refused: one-hot it would be that many features.
MAX_CATEGORIES = 1000
PLAIN = Dialect()


def plain(column: Any) -> Any:
    """Return an Arrow column without dictionary encoding."""
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def is_text(arrow_type: Any) -> bool:
    """Whether an Arrow type holds strings."""
    # By name, because older versions of Arrow have no string_view.
    return str(arrow_type) in ("string", "large_string", "string_view")


def is_number(arrow_type: Any) -> bool:
    """Whether an Arrow type becomes a number (booleans as 0 and 1)."""
    return bool(
        pt.is_boolean(arrow_type)
        or pt.is_integer(arrow_type)
        or pt.is_floating(arrow_type)
        or pt.is_decimal(arrow_type)
    )


def as_text(column: Any) -> Any:
    """Return an Arrow column as strings; bytes that are not UTF-8 are replaced within their cell.

    >>> as_text(pa.array([b"Bern", b"\\xff", None])).to_pylist()
    ['Bern', '\ufffd', None]
    """
    column = plain(column)
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        if not (pt.is_binary(column.type) or pt.is_large_binary(column.type)):
            raise
        cells = (
            None if cell is None else cell.decode(errors="replace") for cell in column.to_pylist()
        )
        return pa.array(cells, pa.large_string())


def category_text(name: str, file: str, column: Any) -> Any:
    """Return a column of categories as strings, or refuse it."""
    try:
        return as_text(column)
    except pa.ArrowException:
        raise ColumnError(
            f"Column `{name}` of {file} must hold categories. Got {column.type}.", column=name
        ) from None


def parse_numbers(
    name: str, file: str, column: Any, dialect: Dialect = PLAIN
) -> NDArray[np.float64]:
    """Return each cell as a number, NaN where it is empty, not finite or cannot be read as one.

    >>> parse_numbers("age", "people.csv", pa.array([" 31 ", "1e3", "true", "old", "inf", None]))
    array([  31., 1000.,    1.,   nan,   nan,   nan])
    """
    column = plain(column)
    if is_number(column.type) or pt.is_null(column.type):
        cells = column.cast(pa.float64(), safe=False)
    elif is_text(column.type) or pt.is_binary(column.type) or pt.is_large_binary(column.type):
        text = pc.utf8_trim_whitespace(as_text(column))
        written = dialect.plain_numbers(text)
        words = pc.index_in(pc.utf8_lower(text), value_set=pa.array(["false", "true"], text.type))
        cells = pc.coalesce(written.cast(pa.float64()), words.cast(pa.float64()))
    else:
        raise ColumnError(
            f"Column `{name}` of {file} must hold numbers, as the schema declares. Got "
            f"{column.type}.",
            column=name,
        )
    numbers = np.array(cells.fill_null(np.nan).to_numpy(zero_copy_only=False))
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def parse_dates(name: str, file: str, column: Any, format: str | None) -> NDArray[np.float64]:
    """Return each cell as a day, NaN where it is empty or cannot be read as one.

    >>> days = parse_dates("opened", "people.csv", pa.array(["2024-01-02", "2024-01-01"]), None)
    >>> float(days[0] - days[1])
    1.0
    """
    column = plain(column)
    arrow_type = column.type
    is_spelled = is_text(arrow_type) or pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type)
    if not (
        is_date(arrow_type) or is_spelled or pt.is_integer(arrow_type) or pt.is_null(arrow_type)
    ):
        raise ColumnError(
            f"Column `{name}` of {file} must hold dates, as the schema declares. Got {arrow_type}.",
            column=name,
        )
    return days_of(column if is_date(arrow_type) else as_text(column), format)


def is_free_text(different: int, present: int) -> bool:
    """Whether nearly all values of a column are different."""
    return present > MIN_FREE_TEXT_ROWS and different > MIN_DIFFERENT_SHARE * present


def are_codes(cells: Collection[str]) -> bool:
    """Whether cells are codes: digits alone, in some of them with a leading zero.

    >>> are_codes(["056", "112"]), are_codes(["56", "112"]), are_codes(["0", "05.5"])
    (True, False, False)
    """
    cells = [cell.strip() for cell in cells]
    is_digits = all(cell.isascii() and cell.isdigit() for cell in cells)
    return is_digits and any(cell[0] == "0" and len(cell) > 1 for cell in cells)


def code_columns(table: TableFile, names: Sequence[str]) -> set[str]:
    """Return which columns of a text file hold codes (:func:`are_codes`) and not numbers."""
    zeros: set[str] = set()
    digits = list(names)
    for batch in table.batches(digits, types=dict.fromkeys(digits, pa.large_binary())):
        for name in list(digits):
            cells = pc.utf8_trim_whitespace(as_text(batch.column(name).drop_null()))
            if not pc.all(pc.match_substring_regex(cells, "^[0-9]+$"), min_count=0).as_py():
                digits.remove(name)
            elif pc.any(pc.match_substring_regex(cells, "^0[0-9]"), min_count=0).as_py():
                zeros.add(name)
        if not digits:
            break
    return zeros.intersection(digits)


def too_many_values(different: int, name: str) -> str:
    """Return the message about a column with too many values."""
    return (
        f"{different:,} different values, more than the {MAX_CATEGORIES:,} that may become "
        "features; group them, give features of your own as a matrix (`features=FILE`), or "
        f"leave it out with {drop_option(name)}"
    )


def one_hot(places: NDArray[Any], encoded: Any, width: int) -> sp.csr_array:
    """Return one column per category: a 1 in the place of each row's, nothing where it is missing.

    >>> cities = pa.array(["Rome", None, "Bern"]).dictionary_encode()
    >>> one_hot(np.array([1, 0]), cities, 2).toarray().tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    present = encoded.is_valid().to_numpy(zero_copy_only=False)
    indices = places[encoded.indices.drop_null().to_numpy(zero_copy_only=False)]
    indptr = np.concatenate([[0], np.cumsum(present)])
    ones = np.ones(len(indices), dtype=np.float32)
    return sp.csr_array((ones, indices, indptr), shape=(len(present), width))


@dataclass
class NumberColumn:
    """A numeric column: its values, and where they are missing (0 there, with an indicator).

    Like every feature column it takes blocks of rows, knows the names of its features after the
    last block, and then encodes the blocks.
    """

    name: str
    file: str
    _rows: int = 0
    _is_missing_somewhere: bool = False
    _first_bad: str | None = None
    is_sparse: ClassVar[bool] = False

    def take(self, column: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Take the next rows; a value that is not finite is refused by :meth:`finish`."""
        missing = column.is_null().to_numpy(zero_copy_only=False)
        numbers = (
            column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        )
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32)
        finite = np.isfinite(values)
        if not finite.all() and self._first_bad is None:
            first = int(np.argmin(finite))
            self._first_bad = f"{numbers[first]:g} in row {self._rows + first + 1}"
        self._rows += len(values)
        self._is_missing_somewhere |= column.null_count > 0
        return values, missing

    def finish(self) -> tuple[str, ...]:
        """Return the names of the features; numbers that are not finite are refused."""
        if self._first_bad is not None:
            raise ColumnError(
                f"Column `{self.name}` of {self.file} must be finite in float32. Got "
                f"{self._first_bad}; leave the cell empty if the value is missing.",
                column=self.name,
            )
        return (self.name, f"{self.name}=missing") if self._is_missing_somewhere else (self.name,)

    def encode(self, taken: tuple[NDArray[np.float32], NDArray[np.bool_]]) -> NDArray[np.float32]:
        """Return the features of a block of rows."""
        values, missing = taken
        if not self._is_missing_somewhere:
            return values[:, None]
        return np.column_stack([values, missing.astype(np.float32)])


@dataclass
class CategoryColumn:
    """A column of categories: one feature for each that occurs anywhere, in sorted order."""

    name: str
    file: str
    dialect: Dialect = PLAIN
    _rows: int = 0
    _present: int = 0
    _found: set[str] = field(default_factory=set)
    is_sparse: ClassVar[bool] = True

    def take(self, column: Any) -> Any:
        """Take the next rows."""
        encoded = category_text(self.name, self.file, column).dictionary_encode()
        self._found.update(encoded.dictionary.to_pylist())
        self._rows += len(encoded)
        self._present += len(encoded) - encoded.null_count
        return encoded

    def finish(self) -> tuple[str, ...]:
        """Return the names of the features; text that is not a category is refused."""
        problem = self._problem()
        if problem is not None:
            raise ColumnError(
                f"Column `{self.name}` of {self.file} must hold categories or numbers. Got "
                f"{problem}.",
                column=self.name,
            )
        self._sorted = pa.array(sorted(self._found), pa.large_string())
        return tuple(f"{self.name}={category}" for category in self._sorted.to_pylist())

    def _problem(self) -> str | None:
        """Return what the column holds instead of categories, and what to do."""
        if recognised_format(_some(self._found))[0]:
            return f"dates; {date_advice(self.name)}"
        pattern = re.compile(self.dialect.number)
        odd = sorted(cell for cell in self._found if not pattern.match(cell.strip()))
        numbers = len(self._found) - len(odd)
        otherwise_written = numbers_in_another_dialect(self._found, self.dialect)
        if otherwise_written is not None:
            return otherwise_written
        if odd and numbers >= MIN_NUMBERS and numbers >= MIN_NUMBER_SHARE * len(self._found):
            return (
                f"{listed(odd, most=2)} beside {numbers:,} different numbers; leave those cells "
                "empty, declare the column in a schema, or leave it out with "
                f"{drop_option(self.name)}"
            )
        if is_free_text(len(self._found), self._present):
            return (
                f"free text ({len(self._found):,} different values in {self._rows:,} rows); turn "
                f"it into categories, or leave it out with {drop_option(self.name)}"
            )
        if len(self._found) > MAX_CATEGORIES:
            return too_many_values(len(self._found), self.name)
        return None

    def encode(self, taken: Any) -> sp.csr_array:
        """Return the features of a block of rows."""
        places = pc.index_in(taken.dictionary, value_set=self._sorted)
        return one_hot(places.to_numpy(zero_copy_only=False), taken, len(self._sorted))


def numbers_in_another_dialect(cells: Collection[str], dialect: Dialect) -> str | None:
    """Return how cells write numbers that ``dialect`` does not read, and what to pass.

    >>> print(numbers_in_another_dialect(["1.234,5", "7"], PLAIN))
    numbers written as '1.234,5'; pass `decimal=","` and `thousands="."`
    >>> numbers_in_another_dialect(["1234.5", "old"], PLAIN) is None
    True
    """
    pattern = re.compile(dialect.number)
    odd = sorted(cell for cell in cells if not pattern.match(cell.strip()))
    # A column that the dialect reads was stored as text or as a dictionary on purpose.
    spelling = Dialect.spelling_of(cells) if odd else None
    if spelling is None:
        return None
    pairs = zip(spelling.words[::2], spelling.words[1::2], strict=True)
    fix = "pass " + " and ".join(f'`{word[2:]}="{mark}"`' for word, mark in pairs)
    if spelling.is_plain:
        fix = "leave `decimal` and `thousands` out"
    return f"numbers written as {odd[0]!r}; {fix}"


def _some(cells: Collection[str], most: int = 1000) -> list[str]:
    """Return a deterministic sample of cells."""
    return sorted(cells)[:: max(1, len(cells) // most)]


def drop_option(name: str) -> str:
    """Return the argument that drops a column, for a message.

    >>> drop_option("home town")
    '`drop=["home town"]`'
    """
    return f'`drop=["{name}"]`'


def date_advice(name: str) -> str:
    """Return what to do with a column of dates that is not declared."""
    return (
        'declare it in a schema with `type = "date"` (`gapgnn schema` proposes one), or leave it '
        f"out with {drop_option(name)}"
    )


def feature_column(
    name: str, arrow_type: Any, file: str, dialect: Dialect = PLAIN
) -> NumberColumn | CategoryColumn | None:
    """Return the encoder of a column of one Arrow type; None if it has no values."""
    if pt.is_null(arrow_type):
        return None
    if is_number(arrow_type):
        return NumberColumn(name, file)
    if is_text(arrow_type) or pt.is_dictionary(arrow_type):
        return CategoryColumn(name, file, dialect)
    found = f"dates; {date_advice(name)}"
    if not is_date(arrow_type):
        found = f"{arrow_type}; turn it into one of them, or leave it out with {drop_option(name)}"
    raise ColumnError(
        f"Column `{name}` of {file} must hold numbers or categories. Got {found}.", column=name
    )


@dataclass(frozen=True)
class DeclaredColumn:
    """A feature column as a schema declares it; it learns nothing from the table.

    >>> city = DeclaredColumn(Category("city", ("Bern", "Rome")), "people.csv")
    >>> city.take(pa.array(["Rome", "Oslo", None])).toarray().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> age = DeclaredColumn(Number("age", 0, 100), "people.csv")
    >>> age.take(pa.array(["75", "1e9", ""])).tolist()
    [[0.5, 0.0], [1.0, 0.0], [0.0, 1.0]]
    >>> opened = DeclaredColumn(Date("opened", "2024-01-01", "2024-01-05"), "people.csv")
    >>> opened.take(pa.array(["2024-01-04", "1999-12-31", "soon"])).tolist()
    [[0.5, 0.0], [-1.0, 0.0], [0.0, 1.0]]
    """

    about: Number | Category | Date
    file: str
    dialect: Dialect = PLAIN

    @property
    def name(self) -> str:
        """The name of the column in the table."""
        return self.about.name

    @property
    def is_sparse(self) -> bool:
        """Whether the features are one-hot."""
        return isinstance(self.about, Category)

    def take(self, column: Any) -> Any:
        """Return the features of some rows, each from its own cell."""
        about = self.about
        if isinstance(about, Number):
            numbers = parse_numbers(self.name, self.file, column, self.dialect)
            return _scaled(numbers, about.low, about.high)
        if isinstance(about, Date):
            days = parse_dates(self.name, self.file, column, about.format)
            return _scaled(days, about.low.toordinal(), about.high.toordinal())
        return self._categories(about, column)

    def finish(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return self.about.feature_names

    def encode(self, taken: Any) -> Any:
        """Return the features of a block of rows, as they were taken."""
        return taken

    def _categories(self, about: Category, column: Any) -> sp.csr_array:
        encoded = category_text(self.name, self.file, column).dictionary_encode()
        places = declared_places(encoded.dictionary.to_pylist(), about.values)
        other = len(about.values)
        return one_hot(np.where(places < 0, other, places), encoded, other + 1)


def _scaled(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float32]:
    """Return values clamped to their bounds and scaled to -1 to 1, and which are missing."""
    missing = np.isnan(values)
    share = (np.clip(values, low, high) - low) / (high - low)
    scaled = np.where(missing, 0.0, np.clip(2 * share - 1, -1, 1))
    return np.column_stack([scaled, missing]).astype(np.float32)


FeatureColumn: TypeAlias = NumberColumn | CategoryColumn | DeclaredColumn


def declared_columns(schema: Schema, file: str, dialect: Dialect = PLAIN) -> list[DeclaredColumn]:
    """Return the feature columns of a schema in their order."""
    return [
        DeclaredColumn(about, file, dialect)
        for about in schema.columns
        if not isinstance(about, Ignored)
    ]


def declared_places(found: Sequence[str], declared: Sequence[str]) -> NDArray[np.int64]:
    """Return the position of each value among the declared ones, -1 for any other value.

    >>> declared_places(["2004.0", "red"], ["2003", "2004"])
    array([ 1, -1])
    """
    keys = match_keys(declared)
    place = {key: index for index, key in enumerate(keys)}
    asked: Sequence[Any] = found if isinstance(keys[0], str) else [number(text) for text in found]
    return np.array([place.get(value, -1) for value in asked], dtype=np.int64)


def side_by_side(blocks: Sequence[Any]) -> Any:
    """Join the features of some rows: sparse if any block is, otherwise dense."""
    if any(sp.issparse(block) for block in blocks):
        return sp.hstack([sp.csr_array(block) for block in blocks], format="csr")
    return np.column_stack(blocks)


@dataclass
class LabelColumn:
    """The column with the class to predict.

    Names that are all numbers are compared as numbers: 2 comes before 10, and 2004.0 is 2004.
    Declared classes keep their order, and any other value counts as missing.

    >>> year = LabelColumn("year", "people.csv")
    >>> year.add(pa.array(["10", "2.0", None, "2"]))
    >>> year.classes()
    (array([ 1,  0, -1,  0]), ('2', '10'))
    >>> year.classes(("10", "7"))
    (array([ 0, -1, -1, -1]), ('10', '7'))
    """

    name: str
    file: str
    _chunks: list[Any] = field(default_factory=list)

    def add(self, column: Any) -> None:
        """Take the next rows."""
        self._chunks.append(category_text(self.name, self.file, column).dictionary_encode())

    def classes(
        self, declared: Sequence[str] | None = None
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return each row's class (-1 where missing) and the classes' names in sorted order."""
        joined = pa.chunked_array(self._chunks).unify_dictionaries().combine_chunks()
        codes = joined.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        values = joined.dictionary.to_pylist()
        # The last entry serves code -1, a missing label.
        if declared is not None:
            return np.append(declared_places(values, declared), -1)[codes], tuple(declared)
        if is_free_text(len(values), int((codes >= 0).sum())):
            raise ColumnError(
                f"`label` must be a column of classes. Got {len(values):,} different values in "
                f"{len(codes):,} rows of column `{self.name}`.",
                column=self.name,
            )
        numbers = [number(value) for value in values]
        keys: list[Any] = list(values)
        if all(value is not None for value in numbers) and not are_codes(values):
            keys = [None if value != value else value for value in numbers]
        classes = sorted({key for key in keys if key is not None})
        place = {key: index for index, key in enumerate(classes)}
        table = np.array([place.get(key, -1) for key in keys] + [-1], dtype=np.int64)
        names = tuple(
            str(int(key)) if isinstance(key, float) and key.is_integer() else str(key)
            for key in classes
        )
        return table[codes], names
