"""Schema: what a curator declares public about a node table, and the bounds of edges' amounts.

Categories, ranges and classes that are learned from a table can reveal single people: a value that
only one person has would be stored in the saved model, and the width of its input would reveal that
the person is there. Under a schema each row of features is a function of that row of the table
alone (privacy page, section 2). This module represents, reads and writes declarations;
:mod:`gapgnn.graph.tables.columns` turns declared columns into features.

The declarations are pydantic dataclasses: their annotations are both the checks and the JSON schema
of ``schema.toml`` (:func:`json_schema`), and all problems of a file are reported in one message.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

from gapgnn.errors import Complaints, DataError, GapgnnError, InputError, UnavailableError
from gapgnn.graph import WeightBounds, Wording

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Declared = TypeVar("Declared")
# Names of the indicator features of a declared column.
MISSING = "missing"
OTHER = "other"


def _bound(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number. Got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"must be finite. Got {number}.")
    return number


def _day(value: Any) -> date:
    """Return a declared bound, a day of TOML or ISO text."""
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, date):
        raise ValueError(f"must be a date such as 2024-12-31. Got {value!r}.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be text. Got {value!r}.")
    return value


def _format(value: Any) -> str | None:
    from gapgnn.graph.tables.dates import has_year

    if value is not None and not has_year(_text(value)):
        raise ValueError(f'must say how dates are written, such as "%d.%m.%Y". Got {value!r}.')
    return None if value is None else _text(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _shown(value) if isinstance(value, int | float) else _text(value)


def _values(given: Any) -> tuple[str, ...]:
    """Return declared values as text: numbers and booleans may be written as such."""
    if not isinstance(given, list | tuple):
        raise ValueError(f"must be a list of values. Got {given!r}.")
    values = tuple(_value(value) for value in given)
    keys = match_keys(values)
    if len(set(keys)) < len(keys):
        twice = next(v for v, key in zip(values, keys, strict=True) if keys.count(key) > 1)
        raise ValueError(f"must name each value once. Got {twice!r} twice.")
    return values


def _categories(given: Any) -> tuple[str, ...]:
    values = _values(given)
    if not values:
        raise ValueError("must have at least one value. Got 0.")
    if OTHER in values:
        raise ValueError(f"must not name {OTHER!r}, which undeclared values become. Got it.")
    return values


def _classes(given: Any) -> tuple[str, ...]:
    values = _values(given)
    if len(values) < 2:
        raise ValueError(f"must have at least two values. Got {len(values)}.")
    return values


def _list_of(least: int) -> WithJsonSchema:
    item = {"type": ["string", "number", "boolean"]}
    return WithJsonSchema({"type": "array", "items": item, "minItems": least, "uniqueItems": True})


Bound: TypeAlias = Annotated[float, BeforeValidator(_bound)]
Day: TypeAlias = Annotated[date, BeforeValidator(_day)]
Text: TypeAlias = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Format: TypeAlias = Annotated[str | None, BeforeValidator(_format)]
Categories: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_categories), _list_of(1)]
Classes: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_classes), _list_of(2)]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _declared(cls: type[Declared]) -> type[Declared]:
    """Make a frozen dataclass whose fields are checked; what is wrong is a :class:`DataError`."""
    made: Any = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
    checked: Callable[..., None] = made.__init__
    names = [part.name for part in fields(made) if not part.kw_only]

    @functools.wraps(checked)
    def init(self: Any, *args: Any, **given: Any) -> None:
        # By name, so that a problem names the field and not its place.
        placed = dict(zip(names, args, strict=False))
        if len(args) > len(names) or placed.keys() & given.keys():
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}, each once. Got {args}.")
        try:
            checked(self, **placed, **given)
        except ValidationError as error:
            raise _explained(error, made, {**placed, **given}) from None

    made.__init__ = init
    result: type[Declared] = made
    return result


@_declared
class Number:
    """A column of numbers between two declared bounds.

    >>> Number("age", 0, 100).feature_names
    ('age', 'age=missing')
    """

    name: str
    low: Bound
    high: Bound
    type: Literal["number"] = field(default="number", kw_only=True, repr=False)

    @model_validator(mode="after")
    def _check(self) -> Number:
        if not self.low < self.high:
            raise ValueError(
                f"`{_place(self.name)}.low` must be below `high`. Got {_shown(self.low)} and "
                f"{_shown(self.high)}."
            )
        if math.isinf(self.high - self.low):
            raise ValueError(
                f"`{_place(self.name)}` must have a finite range. Got {_shown(self.low)} to "
                f"{_shown(self.high)}."
            )
        return self

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The scaled value, and whether there is none."""
        return (self.name, f"{self.name}={MISSING}")


@_declared
class Category:
    """A column with one of some declared values; any other value is ``other``.

    >>> Category("city", ("Bern", "Rome")).feature_names
    ('city=Bern', 'city=Rome', 'city=other')
    """

    name: str
    values: Categories
    type: Literal["category"] = field(default="category", kw_only=True, repr=False)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One per declared value, and one for all others."""
        return tuple(f"{self.name}={value}" for value in (*self.values, OTHER))


@_declared
class Date:
    """A column of dates between two declared ones: a number of days.

    Attributes:
        low: the earliest day, ``date`` or ISO text; earlier ones count as this one.
        high: the latest day.
        format: how the cells are written, as ``datetime.strptime`` takes it; None is ISO, with or
            without a time, which is ignored.

    >>> Date("opened", "2000-01-01", "2030-01-01", "%d.%m.%Y").feature_names
    ('opened', 'opened=missing')
    """

    name: str
    low: Day
    high: Day
    format: Format = None
    type: Literal["date"] = field(default="date", kw_only=True, repr=False)

    @model_validator(mode="after")
    def _check(self) -> Date:
        if not self.low < self.high:
            raise ValueError(
                f"`{_place(self.name)}.low` must be before `high`. Got {self.low} and {self.high}."
            )
        return self

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The scaled day, and whether there is none."""
        return (self.name, f"{self.name}={MISSING}")


@_declared
class Ignored:
    """A column that the table may have and that is never read."""

    name: str
    type: Literal["ignore"] = field(default="ignore", kw_only=True, repr=False)
    feature_names: ClassVar[tuple[str, ...]] = ()


Column: TypeAlias = Number | Category | Date | Ignored


@_declared
class Label:
    """The column with the class to predict, and all classes in their order.

    Attributes:
        column: its name.
        classes: the declared classes.
        rates: public share of each class, for class weights at node level; None if it is not
            declared. They are normalised to sum to 1.
    """

    column: Text
    classes: Classes
    rates: tuple[Bound, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Label:
        if self.rates is None:
            return self
        if len(self.rates) != len(self.classes):
            raise ValueError(
                f"`label.rates` must be one number for each class. Got {list(self.rates)!r}."
            )
        if min(self.rates) <= 0:
            raise ValueError(f"`label.rates` must be positive. Got {_shown(min(self.rates))}.")
        total = sum(self.rates)
        object.__setattr__(self, "rates", tuple(rate / total for rate in self.rates))
        return self


@_declared
class Weight:
    """The column of an edge table with amounts, and their bounds.

    Amounts are only read if the options of the tables name their column.

    >>> Weight("amount", 0, 5000).bounds
    (0.0, 5000.0)
    """

    column: Text
    low: Bound
    high: Bound

    @model_validator(mode="after")
    def _check(self) -> Weight:
        try:
            WeightBounds(self.low, self.high)
        except DataError:
            raise ValueError(
                "`weight.low` and `weight.high` must be 0 <= low < high. Got "
                f"{_shown(self.low)} and {_shown(self.high)}."
            ) from None
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds, as ``weight_bounds`` takes them."""
        return self.low, self.high


@_declared
class Schema:
    """What is declared public: a node table's feature columns and classes, and edges' amounts.

    Attributes:
        columns: the columns in the order of their features.
        label: the column with the class, or None.
        notes: comments of the file, for the curator; not part of the declaration.
        weight: the column of the edge table with amounts and their bounds, or None.
        entity: what one row of the node table is called, such as ``customer`` or
            ``company/companies``, in statements about privacy. Not part of the declaration.
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

    columns: tuple[Annotated[Column, Discriminator("type")], ...] = ()
    label: Label | None = None
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    weight: Weight | None = None
    entity: str | None = field(default=None, compare=False)
    link: str | None = field(default=None, compare=False)

    @model_validator(mode="after")
    def _check(self) -> Schema:
        Wording.of(self.entity, self.link)
        names = [column.name for column in self.columns]
        if self.label is not None:
            names.append(self.label.column)
        for what, found in (("column", names), ("feature", list(self.feature_names))):
            if len(set(found)) < len(found):
                twice = next(name for name in found if found.count(name) > 1)
                raise ValueError(f"`columns` must give each {what} one name. Got {twice!r} twice.")
        return self

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
        """Read a schema from a TOML file; all that is wrong with it is reported in one message.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "schema.toml")
        ...     _ = file.write_text('[columns.age]\\ntype = "number"\\nlow = 0\\nhigh = 100\\n')
        ...     Schema.read(file).columns
        (Number(name='age', low=0.0, high=100.0),)
        """
        file = repr(str(path))
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise DataError(f"`schema` must be UTF-8 text. Got other bytes in {file}.") from None
        except (ValueError, RecursionError) as error:
            # A number of very many digits is a ValueError of its own.
            raise DataError(f"`schema` must be TOML. Got {file}: {error}") from None
        except OSError as error:
            raise UnavailableError(
                f"`schema` must be a file. Got {file}: {error.strerror}."
            ) from None
        columns = given.get("columns", {})
        noted = Complaints()
        for name, about in _table("columns", columns, file).items():
            if "name" in _table(_place(name), about, file):
                noted.add(_unknown_key(_place(name), "name"))
        try:
            noted.settled(True)
            named = [{"name": name, **about} for name, about in columns.items()]
            return cls.from_dict({**given, "columns": named})
        except InputError as error:
            listed = Complaints()
            for one in getattr(error, "errors", [error]):
                listed.add(DataError(f"{str(one).removesuffix('.')} in {file}."))
            return listed.settled(None)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Schema:
        """Return the schema that :meth:`to_dict` wrote; anything unexpected is refused."""
        for key in _table("schema", given):
            if key not in ("columns", "label", "weight", "entity", "link"):
                raise DataError(
                    "`schema` must only have the keys columns, label, weight, entity and link. "
                    f"Got {key!r}."
                )
        try:
            made: Schema = _adapter().validate_python(dict(given))
            return made
        except ValidationError as error:
            raise _explained(error, cls, given) from None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the order of columns survives sorted keys."""
        return {
            "columns": [_plain(column) for column in self.columns],
            "label": None if self.label is None else _plain(self.label),
            **({} if self.weight is None else {"weight": _plain(self.weight)}),
            **self._words(),
        }

    def _words(self) -> dict[str, str]:
        """Return the names of nodes and edges that were given."""
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
        type = "number"
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
    """Return a column, the label or the weight as :meth:`Schema.from_dict` takes it."""
    values = {key.name: getattr(part, key.name) for key in fields(part)}
    if not isinstance(part, Label | Weight):
        values = {"name": part.name, "type": part.type, **values}
    return {key: _simple(value) for key, value in values.items() if value is not None}


def _simple(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


@functools.cache
def _adapter() -> TypeAdapter[Schema]:
    return TypeAdapter(Schema)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of ``schema.toml``, for editors and other programs.

    In the file a column's name is its heading (``[columns.age]``), not a key.

    >>> sorted(json_schema()["properties"])
    ['columns', 'entity', 'label', 'link', 'weight']
    """
    found = _adapter().json_schema()
    for part in found["$defs"].values():
        if "type" in part["properties"]:
            del part["properties"]["name"]
            part["properties"]["type"].pop("default", None)
            part["required"] = ["type", *(key for key in part["required"] if key != "name")]
        part["description"] = part.get("description", "").partition("\n")[0]
    columns = found["properties"]["columns"]["items"]
    found["properties"]["columns"] = {"type": "object", "additionalProperties": columns}
    del found["properties"]["notes"]
    found["description"] = found["description"].partition("\n")[0]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _explained(error: ValidationError, cls: type, given: Any) -> GapgnnError:
    """Return all that is wrong with a declaration as errors that name keys of the file."""
    noted = Complaints()
    for one in error.errors(include_url=False):
        noted.add(_problem(one, cls, given))
    try:
        return noted.settled(None)
    except GapgnnError as listed:
        return listed


def _problem(one: Any, cls: type, given: Any) -> DataError:
    """Return one problem that pydantic found, in the words of the file."""
    place, key = _found_at(one["loc"], cls, given)
    found = one["input"]
    if one["type"] in ("value_error", "assertion_error"):
        said = str(one["ctx"]["error"])
        return DataError(said if said.startswith("`") else f"`{place}` {said}")
    if one["type"] in ("missing", "missing_argument"):
        return DataError(f"`{place}` must be given. Got no such key.")
    if one["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return _unknown_key(place.rpartition(".")[0], key)
    if one["type"].startswith("union_tag"):
        got = found.get("type") if isinstance(found, Mapping) else found
        types = ", ".join(_COLUMN_TYPES)
        return DataError(f"`{place}.type` must be one of {types}. Got {got!r}.")
    if one["type"] in ("string_type", "tuple_type"):
        wanted = "text" if one["type"] == "string_type" else "a list"
        return DataError(f"`{place}` must be {wanted}. Got {found!r}.")
    return DataError(f"`{place}` must be a table of keys. Got {found!r}.")


def _found_at(loc: Sequence[int | str], cls: type, given: Any) -> tuple[str, str]:
    """Return the key of the file that a problem belongs to, and its last part."""
    words = [str(word) for word in loc]
    if cls is not Schema:
        prefix = _PREFIXES.get(cls) or _place(given.get("name", "?"))
        return ".".join([prefix, *words[:1]]), words[0] if words else ""
    if len(words) > 1 and words[0] == "columns":
        about = given["columns"][int(words[1])]
        name = about.get("name") if isinstance(about, Mapping) else words[1]
        # The next word is the type of the column, by which its keys were chosen.
        words = [_place(str(name)), *words[3:4]]
    return ".".join(words[:2]) or "schema", words[-1] if words else "schema"


_PREFIXES: dict[type, str] = {Label: "label", Weight: "weight"}
_COLUMN_TYPES = ("number", "category", "date", "ignore")


def _place(name: str) -> str:
    return f"columns.{name}"


def _table(place: str, value: Any, file: str | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        where = "" if file is None else f" in {file}"
        raise DataError(f"`{place}` must be a table of keys. Got {value!r}{where}.")
    return value


def _unknown_key(place: str, key: str) -> DataError:
    return DataError(f"`{place}` must only have keys that are known. Got {key!r}.")


def match_keys(values: Sequence[str]) -> list[Any]:
    """Return the keys by which declared values are compared: numbers if all are, otherwise text.

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
    for parse in (int, float):
        try:
            return parse(text)
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
    """Wrap a note into comment lines; quoted text cannot end the comment."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    yield from textwrap.wrap(plain, width, initial_indent="# ", subsequent_indent="# ")
