"""Schema: what a curator declares public about a node table, and the bounds of edges' amounts.

Categories, ranges and classes that are learned from a table are facts about single people: a value
that one person has would stand in the saved model, and the width of its input would tell whether
that person is there. Under a schema each row is a function of that row alone (privacy page, section
2). How a declared column becomes features is :mod:`gapgnn.graph.tables.columns`; this file only
says what was declared, reads and writes it.
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph import WeightBounds, Wording

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What the columns beside a declared value are called.
MISSING = "missing"
OTHER = "other"


@dataclass(frozen=True)
class Number:
    """A column of numbers between two declared bounds.

    >>> Number("age", 0, 100).feature_names
    ('age', 'age=missing')
    """

    name: str
    low: float
    high: float
    kind: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        for key in ("low", "high"):
            object.__setattr__(self, key, _bound(f"{_place(self.name)}.{key}", getattr(self, key)))
        if not self.low < self.high:
            raise DataError(
                f"`{_place(self.name)}.low` must be below `high`. Got {_shown(self.low)} and "
                f"{_shown(self.high)}."
            )
        if math.isinf(self.high - self.low):
            raise DataError(
                f"`{_place(self.name)}` must have a finite range. Got {_shown(self.low)} to "
                f"{_shown(self.high)}."
            )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The scaled value, and whether there is none."""
        return (self.name, f"{self.name}={MISSING}")


@dataclass(frozen=True)
class Category:
    """A column with one of some declared values; any other value is ``other``.

    >>> Category("city", ("Bern", "Rome")).feature_names
    ('city=Bern', 'city=Rome', 'city=other')
    """

    name: str
    values: tuple[str, ...]
    kind: ClassVar[str] = "category"

    def __post_init__(self) -> None:
        key = f"{_place(self.name)}.values"
        object.__setattr__(self, "values", _values(key, self.values, at_least=1))
        if OTHER in self.values:
            raise DataError(
                f"`{key}` must not name {OTHER!r}, which undeclared values become. Got it."
            )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One per declared value, and one for all others."""
        return tuple(f"{self.name}={value}" for value in (*self.values, OTHER))


@dataclass(frozen=True)
class Date:
    """A column of dates between two declared ones: a number of days.

    Attributes:
        low: the earliest day, ``date`` or ISO text; earlier ones count as this one.
        high: the latest day.
        format: how the cells are written, as ``datetime.strptime`` takes it; None is ISO, with or
            without a time, which is not looked at.

    >>> Date("opened", "2000-01-01", "2030-01-01", "%d.%m.%Y").feature_names
    ('opened', 'opened=missing')
    """

    name: str
    low: date
    high: date
    format: str | None = None
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        from gapgnn.graph.tables.dates import tells_a_day

        for key in ("low", "high"):
            object.__setattr__(self, key, _day(f"{_place(self.name)}.{key}", getattr(self, key)))
        if not self.low < self.high:
            raise DataError(
                f"`{_place(self.name)}.low` must be before `high`. Got {self.low} and {self.high}."
            )
        if self.format is not None and not tells_a_day(
            _text(f"{_place(self.name)}.format", self.format)
        ):
            raise DataError(
                f"`{_place(self.name)}.format` must say how dates are written, such as "
                f'"%d.%m.%Y". Got {self.format!r}.'
            )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The scaled day, and whether there is none."""
        return (self.name, f"{self.name}={MISSING}")


@dataclass(frozen=True)
class Ignored:
    """A column that may stand in the table and is never read."""

    name: str
    kind: ClassVar[str] = "ignore"
    feature_names: ClassVar[tuple[str, ...]] = ()


Column: TypeAlias = Number | Category | Date | Ignored
_KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Category, Date, Ignored)}


@dataclass(frozen=True)
class Label:
    """The column with the class to predict, and all classes there are, in their order.

    Attributes:
        column: its name.
        classes: the declared classes.
        rates: share of each class as anybody may know it, for weights of classes at node level;
            None if it is not declared. They are brought to a sum of 1.
    """

    column: str
    classes: tuple[str, ...]
    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", _text("label.column", self.column))
        object.__setattr__(self, "classes", _values("label.classes", self.classes, at_least=2))
        if self.rates is not None:
            object.__setattr__(self, "rates", _rates(self.rates, len(self.classes)))


@dataclass(frozen=True)
class Weight:
    """The column of an edge table with amounts, and their bounds.

    Whether amounts are read is said where tables are; this says between what.

    >>> Weight("amount", 0, 5000).bounds
    (0.0, 5000.0)
    """

    column: str
    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", _text("weight.column", self.column))
        for key in ("low", "high"):
            object.__setattr__(self, key, _bound(f"weight.{key}", getattr(self, key)))
        try:
            WeightBounds(self.low, self.high)
        except DataError:
            raise DataError(
                "`weight.low` and `weight.high` must be 0 <= low < high. Got "
                f"{_shown(self.low)} and {_shown(self.high)}."
            ) from None

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds, as ``weight_bounds`` takes them."""
        return self.low, self.high


@dataclass(frozen=True)
class Schema:
    """What is declared public: a node table's feature columns and classes, and edges' amounts.

    Attributes:
        columns: the columns in the order of their features.
        label: the column with the class, or None.
        notes: what the curator is told in the file; not part of what is declared.
        weight: the column of the edge table with amounts and their bounds, or None.
        entity: what one row of the node table is called, such as ``customer`` or
            ``company/companies``: the word that statements about privacy use. Not part of what is
            declared.
        link: what one row of the edge table is called, likewise.

    >>> schema = Schema(
    ...     columns=(Number("age", 0, 100), Category("city", ("Bern", "Rome")), Ignored("note")),
    ...     label=Label("team", ("red", "blue")),
    ... )
    >>> schema.feature_names
    ('age', 'age=missing', 'city=Bern', 'city=Rome', 'city=other')
    >>> Schema.from_dict(schema.to_dict()) == schema
    True
    """

    columns: tuple[Column, ...] = ()
    label: Label | None = None
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    weight: Weight | None = None
    entity: str | None = field(default=None, compare=False)
    link: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        try:
            Wording.of(self.entity, self.link)
        except InputError as error:
            raise DataError(str(error)) from None
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if self.label is not None:
            names.append(self.label.column)
        for what, found in (("column", names), ("feature", list(self.feature_names))):
            if len(set(found)) < len(found):
                twice = next(name for name in found if found.count(name) > 1)
                raise DataError(f"`columns` must give each {what} one name. Got {twice!r} twice.")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature; depends on the schema only."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def width(self) -> int:
        """Number of features; depends on the schema only."""
        return len(self.feature_names)

    @classmethod
    def read(cls, path: Path | str) -> Schema:
        """Read a schema from a TOML file.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "schema.toml")
        ...     _ = file.write_text('[columns.age]\\nkind = "number"\\nlow = 0\\nhigh = 100\\n')
        ...     Schema.read(file).columns
        (Number(name='age', low=0.0, high=100.0),)
        """
        file = repr(str(path))
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise DataError(f"`schema` must be UTF-8 text. Got other bytes in {file}.") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise DataError(f"`schema` must be TOML. Got {file}: {error}") from None
        except OSError as error:
            raise UnavailableError(
                f"`schema` must be a file. Got {file}: {error.strerror}."
            ) from None
        try:
            columns = []
            for name, about in _table("columns", given.get("columns", {})).items():
                if "name" in _table(_place(name), about):
                    raise _unknown_key(_place(name), "name")
                columns.append({"name": name, **about})
            return cls.from_dict({**given, "columns": columns})
        except DataError as error:
            raise DataError(f"{str(error).removesuffix('.')} in {file}.") from None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Schema:
        """Return the schema that :meth:`to_dict` wrote; anything unexpected is refused."""
        for key in _table("schema", given):
            if key not in ("columns", "label", "weight", "entity", "link"):
                raise DataError(
                    "`schema` must only have the keys columns, label, weight, entity and link. "
                    f"Got {key!r}."
                )
        columns = given.get("columns", [])
        if not isinstance(columns, Sequence) or isinstance(columns, str):
            raise DataError(f"`columns` must be a list. Got {type(columns).__name__}.")
        label, weight = given.get("label"), given.get("weight")
        return cls(
            columns=tuple(_column(about) for about in columns),
            label=None if label is None else _label(label),
            weight=None
            if weight is None
            else Weight(**_keys("weight", weight, ("column", "low", "high"))),
            entity=given.get("entity"),
            link=given.get("link"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the order of columns survives sorted keys."""
        return {
            "columns": [_plain(column) for column in self.columns],
            "label": None if self.label is None else _plain(self.label),
            # Left out where there is none, as before there was any.
            **({} if self.weight is None else {"weight": _plain(self.weight)}),
            **self._words(),
        }

    def _words(self) -> dict[str, str]:
        """Return the user's words, as far as there are any."""
        words = {"entity": self.entity, "link": self.link}
        return {key: word for key, word in words.items() if word}

    def to_toml(self, about: str = "the node table") -> str:
        """Return the text of a schema file, its notes as comments.

        Args:
            about: what the table is called in the first comment.

        >>> print(Schema((Number("age", 0, 100),), Label("team", ("red", "blue"))).to_toml("x.csv"))
        # What is declared public about x.csv. Edit it: nothing here may depend on one person.
        <BLANKLINE>
        [label]
        column = "team"
        classes = ["red", "blue"]
        <BLANKLINE>
        [columns.age]
        kind = "number"
        low = 0
        high = 100
        <BLANKLINE>
        """
        return "\n".join(self._lines(about)) + "\n"

    def _lines(self, about: str) -> Iterator[str]:
        first = "Edit it: nothing here may depend on one person."
        for note in (f"What is declared public about {about}. {first}", *self.notes):
            yield from _comment(note)
        if words := self._words():
            yield ""
            yield from (f"{key} = {_toml(word)}" for key, word in words.items())
        tables: list[tuple[str, dict[str, Any]]] = []
        if self.label is not None:
            tables.append(("label", _plain(self.label)))
        if self.weight is not None:
            tables.append(("weight", _plain(self.weight)))
        tables += [(f"columns.{_key(column.name)}", _plain(column)) for column in self.columns]
        for heading, values in tables:
            yield ""
            yield f"[{heading}]"
            for key, value in values.items():
                if key != "name":
                    yield f"{key} = {_toml(value)}"


def _plain(part: Column | Label | Weight) -> dict[str, Any]:
    """Return what :meth:`Schema.from_dict` takes of one column, of the label or of the weight."""
    values = {key.name: getattr(part, key.name) for key in fields(part)}
    if not isinstance(part, Label | Weight):
        values = {"name": part.name, "kind": part.kind, **values}
    return {key: _simple(value) for key, value in values.items() if value is not None}


def _simple(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


def _column(about: Any) -> Column:
    """Return one column from its dictionary."""
    about = _table("columns", about)
    name = about.get("name")
    if not isinstance(name, str):
        raise DataError(f"`columns.name` must be text. Got {name!r}.")
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(f"`{_place(name)}.kind` must be one of {', '.join(_KINDS)}. Got {kind!r}.")
    chosen = _KINDS[kind]
    given = {k: v for k, v in about.items() if k != "kind"}
    keys = tuple(
        part.name for part in fields(chosen) if part.default is NO_DEFAULT or part.name in given
    )
    return chosen(**_keys(_place(name), given, keys))


def _label(about: Any) -> Label:
    """Return the label from its dictionary; `rates` may be left out."""
    has_rates = "rates" in _table("label", about)
    return Label(**_keys("label", about, ("column", "classes", *(["rates"] if has_rates else []))))


def _rates(given: Any, classes: int) -> tuple[float, ...]:
    if not isinstance(given, list | tuple) or len(given) != classes:
        raise DataError(f"`label.rates` must be one number for each class. Got {given!r}.")
    rates = [_bound("label.rates", rate) for rate in given]
    if min(rates) <= 0:
        raise DataError(f"`label.rates` must be positive. Got {_shown(min(rates))}.")
    return tuple(rate / sum(rates) for rate in rates)


def _place(name: str) -> str:
    return f"columns.{name}"


def _table(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"`{place}` must be a table of keys. Got {value!r}.")
    return value


def _keys(place: str, given: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return ``given`` if it has exactly the keys ``wanted``."""
    for key in _table(place, given):
        if key not in wanted:
            raise _unknown_key(place, key)
    for key in wanted:
        if key not in given:
            raise DataError(f"`{place}.{key}` must be given. Got no such key.")
    return dict(given)


def _unknown_key(place: str, key: str) -> DataError:
    return DataError(f"`{place}` must only have keys that are known. Got {key!r}.")


def _bound(place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"`{place}` must be a number. Got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DataError(f"`{place}` must be finite. Got {number}.")
    return number


def _day(place: str, value: Any) -> date:
    """Return a declared bound, a day of TOML or ISO text."""
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, date):
        raise DataError(f"`{place}` must be a date such as 2024-12-31. Got {value!r}.")
    return value


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise DataError(f"`{place}` must be text. Got {value!r}.")
    return value


def _values(place: str, given: Any, *, at_least: int) -> tuple[str, ...]:
    """Return declared values as text: numbers and booleans may be written as such."""
    if not isinstance(given, list | tuple):
        raise DataError(f"`{place}` must be a list of values. Got {given!r}.")
    values = tuple(_value(place, value) for value in given)
    if len(values) < at_least:
        some = "two values" if at_least == 2 else "one value"
        raise DataError(f"`{place}` must have at least {some}. Got {len(values)}.")
    keys = match_keys(values)
    if len(set(keys)) < len(keys):
        twice = next(v for v, key in zip(values, keys, strict=True) if keys.count(key) > 1)
        raise DataError(f"`{place}` must name each value once. Got {twice!r} twice.")
    return values


def _value(place: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _shown(value)
    return _text(place, value)


def match_keys(values: Sequence[str]) -> list[Any]:
    """Return what declared values are compared by: as numbers if all are, otherwise as text.

    >>> match_keys(["2", "10.0"]), match_keys(["2", "red"]), match_keys(["056", "56"])
    ([2, 10.0], ['2', 'red'], ['056', '56'])
    """
    numbers = [number(value) for value in values]
    if any(n is None or n != n for n in numbers):
        return list(values)
    if len(set(numbers)) < len(set(values)) and all(value.isdigit() for value in values):
        # 056 and 56 are two codes.
        return list(values)
    return list(numbers)


def number(text: str) -> int | float | None:
    """Return a number as Python reads it, exactly if it is whole; None if it is not one.

    >>> number("2004.0") == number("2004"), number("1_000")
    (True, None)
    """
    if "_" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _shown(value: float) -> str:
    """Write a number as short as it can be read back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return _quoted(value) if isinstance(value, str) else _shown(value)


def _quoted(text: str) -> str:
    # JSON escapes what TOML wants escaped, except for the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _comment(text: str, width: int = 98) -> Iterator[str]:
    """Wrap a note into comment lines; whatever it quotes cannot end the comment."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    yield from textwrap.wrap(plain, width, initial_indent="# ", subsequent_indent="# ")
