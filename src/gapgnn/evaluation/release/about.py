"""What only a person can say of a release: who publishes it, what for, and where it holds.

It is read from a TOML file (``gapgnn release --about``) and becomes the entry for the OpenDP
deployment registry. Everything else in the entry follows from the card.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gapgnn.errors import Complaints, InputError, UnavailableError, check_choice, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# As the registry's schema lists them.
CURATOR_TYPES = ("Government", "Industry", "Nonprofit")
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_REQUIRED = ("name", "curator", "curator_type", "intended_use", "region", "authors")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class About:
    """What the curator states.

    Attributes:
        name: of the data product.
        curator: who publishes it.
        curator_type: one of ``CURATOR_TYPES``.
        intended_use: what it is for.
        region: which region the data is from, or whose law applies.
        authors: who wrote this.
        description: of the product; left out: method and data set of the card.
        sector: one of ``SECTORS``, or empty.
        slug: the end of the entry's address in the registry; left out: made from the name.
        justification: why epsilon, relation and method were chosen, or empty.
        people: about how many privacy units there are; None if that is not public.
        url: where the release can be had, or empty.

    >>> About(name="Risk model", curator="A bank", curator_type="Industry", intended_use="Research",
    ...       region="Europe", authors=("A. Curator",)).slug
    'risk-model'
    """

    name: str
    curator: str
    curator_type: str
    intended_use: str
    region: str
    authors: tuple[str, ...]
    description: str = ""
    sector: str = ""
    slug: str = ""
    justification: str = ""
    people: int | None = None
    url: str = ""

    def __post_init__(self) -> None:
        complaints = Complaints()
        for part in fields(self):
            complaints.collect(lambda name=part.name: self._check(name))  # type: ignore[misc]
        complaints.settled(True)
        if not self.slug:
            words = re.findall(r"[a-z0-9]+", self.name.lower())
            object.__setattr__(self, "slug", "-".join(words) or "release")
        elif not _SLUG.fullmatch(self.slug):
            raise InputError(
                f"`slug` must be small letters, digits and hyphens. Got {self.slug!r}."
            )

    def _check(self, name: str) -> None:
        value = getattr(self, name)
        if name == "people":
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"`people` must be a positive whole number. Got {value!r}.")
            return
        texts = value if name == "authors" else (value,)
        if not isinstance(texts, tuple) or not all(isinstance(one, str) for one in texts):
            wanted = "a list of texts" if name == "authors" else "a text"
            raise InputError(f"`{name}` must be {wanted}. Got {value!r}.")
        if name in _REQUIRED and not (texts and all(one.strip() for one in texts)):
            raise InputError(f"`{name}` must be stated. Got nothing.")
        if any(not char.isprintable() and char != "\n" for one in texts for char in one):
            raise InputError(f"`{name}` must be printable text. Got {value!r}.")
        if name == "curator_type":
            check_choice(name, value, CURATOR_TYPES)
        if name == "sector" and value:
            check_choice(name, value, SECTORS)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "authors": list(self.authors)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> About:
        """Read what was stated; a misspelt key names the nearest one."""
        known = [part.name for part in fields(cls)]
        for key in values:
            if key not in known:
                raise InputError(f"unknown key {key!r}.{did_you_mean(key, known)}")
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise InputError(f"{', '.join(f'`{name}`' for name in missing)} must be stated.")
        authors = values["authors"]
        found = tuple(authors) if isinstance(authors, list) else authors
        return cls(**{**values, "authors": found})


def read_about(path: Path) -> About:
    """Read a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(
            f"`about` cannot be read: {str(path)!r}, {error.strerror}."
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"`about` must be TOML. Got {str(path)!r}: {error}.") from None
    try:
        return About.from_dict(values)
    except InputError as error:
        raise InputError(f"{str(path)!r}: {error}") from None
