"""Dialect: how a text file writes cells, column names and numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from gapgnn.errors import InputError, check_choice

# Names of characters that are hard to type in a shell, and characters that look like another one.
SPELLED_OUT = {"tab": "\t", "space": " ", "semicolon": ";"}
ALSO = {" ": " \u00a0\u202f", "'": "'\u2019"}
THOUSANDS = (".", ",", "'", " ")
QUOTES = ('"', "'", "none")
HEADERS = ("first", "none")


@dataclass(frozen=True)
class Dialect:
    """How a text file is written: delimiter, quotes, header, and the format of numbers.

    Attributes:
        delimiter: between the cells of a ``.csv`` file, one character, ``semicolon`` or ``tab``;
            None is a comma. A ``.tsv`` file has tabs.
        decimal: the decimal point, ``.`` or ``,``.
        thousands: between groups of three digits: ``.``, ``,``, ``'``, a space (or ``space``);
            None where there is nothing.
        quote: around cells that hold a delimiter, ``"`` or ``'``; ``none`` where quotes are text.
        header: ``first`` where the first line has the names of columns; ``none`` where there are
            none, and the columns are called ``column_1``, ``column_2`` and so on.

    >>> import pyarrow as pa
    >>> german = Dialect(delimiter=";", decimal=",", thousands=".")
    >>> german.plain_numbers(pa.array(["1.234,5", "7", "1.5", "old"])).to_pylist()
    ['1234.5', '7', None, None]
    """

    delimiter: str | None = None
    decimal: str = "."
    thousands: str | None = None
    quote: str = '"'
    header: str = "first"

    def __post_init__(self) -> None:
        for key in ("delimiter", "thousands"):
            given = getattr(self, key)
            object.__setattr__(self, key, SPELLED_OUT.get(given, given))
        mark = self.delimiter
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark.isalnum()):
            raise InputError(f"`delimiter` must be one character, semicolon or tab. Got {mark!r}.")
        if mark is not None and mark in '\r\n"-+.':
            raise InputError(f"`delimiter` must not be part of a cell. Got {mark!r}.")
        check_choice("quote", self.quote, QUOTES)
        check_choice("header", self.header, HEADERS)
        if mark is not None and mark == self.quote:
            raise InputError(f"`quote` must differ from the delimiter. Got {mark!r} for both.")
        if self.decimal not in (".", ","):
            raise InputError(f"`decimal` must be '.' or ','. Got {self.decimal!r}.")
        if self.thousands not in (None, *THOUSANDS):
            raise InputError(
                f"`thousands` must be '.', ',', \"'\" or space. Got {self.thousands!r}."
            )
        if self.thousands == self.decimal:
            raise InputError(
                f"`thousands` must differ from the decimal point. Got {self.decimal!r} for both; "
                f'say `decimal="{"," if self.decimal == "." else "."}"` too.'
            )

    @property
    def is_plain(self) -> bool:
        """Whether numbers have a decimal point and no thousands separator."""
        return self.decimal == "." and self.thousands is None

    @property
    def of_numbers(self) -> Dialect:
        """The format of numbers alone, which text of any table may have."""
        return Dialect(decimal=self.decimal, thousands=self.thousands)

    @property
    def number(self) -> str:
        """The regular expression of a number."""
        point = re.escape(self.decimal)
        digits = "[0-9]+"
        if self.thousands is not None:
            digits = f"(?:[0-9]{{1,3}}(?:{self._groups}[0-9]{{3}})+|[0-9]+)"
        return f"^[+-]?(?:{digits}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?$"

    @property
    def _groups(self) -> str:
        return f"[{ALSO.get(self.thousands or '', self.thousands)}]"

    def plain_numbers(self, text: Any) -> Any:
        """Return an Arrow column of text with numbers in plain form, and null for other cells."""
        text = pc.utf8_trim_whitespace(text)
        found = pc.if_else(pc.match_substring_regex(text, self.number), text, None)
        if self.thousands is not None:
            found = pc.replace_substring_regex(found, self._groups, "")
        return found if self.decimal == "." else pc.replace_substring(found, self.decimal, ".")

    @classmethod
    def spelling_of(cls, cells: Collection[str]) -> Dialect | None:
        """Return the dialect in which every cell is a number, if there is one.

        >>> Dialect.spelling_of(["1.234,5", "7"])
        Dialect(delimiter=None, decimal=',', thousands='.', quote='"', header='first')
        >>> Dialect.spelling_of(["7", "old"]) is None
        True
        """
        for decimal in (".", ","):
            for thousands in (None, *(mark for mark in THOUSANDS if mark != decimal)):
                dialect = cls(decimal=decimal, thousands=thousands)
                pattern = re.compile(dialect.number)
                if all(pattern.match(cell.strip()) for cell in cells):
                    return dialect
        return None

    @property
    def words(self) -> list[str]:
        """The command-line options that declare this dialect.

        >>> Dialect(delimiter="tab", decimal=",").words
        ['--delimiter', 'tab', '--decimal', ',']
        """
        names = {mark: name for name, mark in SPELLED_OUT.items()}
        return [
            word
            for key, value in self.to_dict().items()
            for word in (f"--{key}", names.get(value, value))
        ]

    def to_dict(self) -> dict[str, str]:
        """Return the attributes that differ from a plain CSV file, as keyword arguments."""
        given = {
            "delimiter": self.delimiter,
            "decimal": None if self.decimal == "." else self.decimal,
            "thousands": self.thousands,
            "quote": None if self.quote == '"' else self.quote,
            "header": None if self.header == "first" else self.header,
        }
        return {key: value for key, value in given.items() if value is not None}
