"""The reader's own words: customers and payments where a card speaks of people and friendships."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gapgnn.errors import InputError

_WORD = r"[A-Za-z][A-Za-z -]{0,39}"
_NAMED = re.compile(
    r"\b(?:(?P<article>[Aa])n? )?"
    r"(?P<word>[Pp]ersons?|[Pp]eople|[Ff]riendships?|[Ff]riends?"
    # What graphs are called stays in the names of levels and where two names stand side by side.
    r"|(?<!level )[Nn]odes?(?! level)|(?<!level )(?<!undirected )[Ee]dges?(?! level)|[Ll]inks?)\b"
    r"(?P<owner>'s)?"
)
_ONES = ("person", "friend", "node")
_TIES = ("friendship", "link", "edge")


@dataclass(frozen=True)
class Words:
    """What the ones in a graph are called, and what connects two of them.

    Attributes:
        entity: one of them.
        entities: several.
        link: what connects two.
        links: several.

    >>> words = Words.of("company/companies", "payment")
    >>> words.plain("A person's record hides among people's friendships.")
    "A company's record hides among companies' payments."
    >>> Words.of("employee", "e-mail").plain("If a person has a friendship.")
    'If an employee has an e-mail.'
    >>> Words.of("user").plain("A person's record.")
    "A user's record."
    >>> words.plain("At edge level: from one node to another, along edges.")
    'At edge level: from one company to another, along payments.'
    >>> Words().plain("Every person.")
    'Every person.'
    """

    entity: str = "person"
    entities: str = "people"
    link: str = "friendship"
    links: str = "friendships"

    @classmethod
    def of(cls, entity: str | None = None, link: str | None = None) -> Words:
        """Return the words for ``SINGULAR`` or ``SINGULAR/PLURAL``; what is left out stays."""
        chosen = cls()
        one, many = chosen.entity, chosen.entities
        if entity is not None:
            one, many = _forms("entity", entity)
        tie, ties = chosen.link, chosen.links
        if link is not None:
            tie, ties = _forms("link", link)
        return cls(one, many, tie, ties)

    def plain(self, text: str, names: Sequence[str] = ()) -> str:
        """Return a sentence of this package in these words.

        Args:
            text: the sentence.
            names: what data calls its kinds of edges: they stay as they are where all are listed,
                and where one of them is what amounts are of.

        >>> Words.of("customer", "payment").plain("A link (friends, links).", ["friends", "links"])
        'A payment (friends, links).'
        """
        kept = [", ".join(names), *(f"amounts of {name}" for name in names)] if names else []
        if not kept:
            return _NAMED.sub(self._exchanged, text)
        parts = re.split(f"({'|'.join(map(re.escape, kept))})", text)
        return "".join(
            part if part in kept else _NAMED.sub(self._exchanged, part) for part in parts
        )

    def _exchanged(self, found: re.Match[str]) -> str:
        usual = Words()
        word = found["word"].lower()
        one = "person" if word == "people" else word.removesuffix("s")
        is_one = one == word
        new = word
        if one in _ONES and self.entity != usual.entity:
            new = self.entity if is_one else self.entities
        if one in _TIES and self.link != usual.link:
            new = self.link if is_one else self.links
        if new == word:
            return found[0]
        if found["word"][0].isupper() and found["article"] is None:
            new = new[0].upper() + new[1:]
        if found["owner"]:
            new += "'" if new.endswith("s") else "'s"
        if found["article"] is None:
            return new
        article = indefinite_article(new)
        return f"{article.capitalize() if found['article'] == 'A' else article} {new}"


# Written with a vowel and spoken with a consonant (user, European), and the reverse (hour).
_SPOKEN_CONSONANT = re.compile(
    r"uni(?![nm])|u[bcfhjkqrst][aeiou]|u-|eu|ewe|once\b|one\b|ouija", re.IGNORECASE
)
_SILENT_H = re.compile(r"hour|honest|hono|heir", re.IGNORECASE)
_ABBREVIATION = re.compile(r"[A-Z]{2,}s?\b|[A-Z](?=-|\b)")


def indefinite_article(word: str) -> str:
    """Return ``a`` or ``an``, by how a word is spoken.

    >>> [indefinite_article(word) for word in ("user", "employee", "hour", "unit", "uncle")]
    ['a', 'an', 'an', 'a', 'an']
    >>> [indefinite_article(word) for word in ("European", "e-mail", "SMS", "IBAN", "UN body")]
    ['a', 'an', 'an', 'an', 'a']
    """
    if _ABBREVIATION.match(word):
        return "an" if word[0] in "AEFHILMNORSX" else "a"
    if _SPOKEN_CONSONANT.match(word):
        return "a"
    return "an" if word[0].lower() in "aeiou" or _SILENT_H.match(word) else "a"


def _forms(name: str, text: str) -> tuple[str, str]:
    one, _, many = text.partition("/")
    for word in (one, many or one):
        if not re.fullmatch(_WORD, word):
            raise InputError(
                f"`{name}` must be a word, or two as in company/companies. Got {text!r}."
            )
    return one, many or _plural(one)


def _plural(word: str) -> str:
    """Return the usual plural of an English word.

    >>> [_plural(word) for word in ("customer", "company", "branch", "survey")]
    ['customers', 'companies', 'branches', 'surveys']
    """
    if word == "person":
        return "people"
    if word.endswith("y") and word[-2:-1].lower() not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")
