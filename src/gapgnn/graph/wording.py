"""The user's names of nodes and edges in statements about privacy, such as customer and payment."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, fields

from gapgnn.errors import InputError

# Letters of any alphabet, with spaces and hyphens between them; nothing that is not printed.
_WORD = re.compile(r"(?=.{1,40}\Z)[^\W\d_]+(?:[ -][^\W\d_]+)*")
# Begins a message that is for the curator alone: it may follow from one record (privacy page,
# section 9).
CURATOR_ONLY = "For the curator only:"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")


@dataclass(frozen=True)
class Wording:
    """What a node and an edge are called in statements about privacy.

    Statements are written with placeholders and filled in once. The placeholders are
    ``{entity}``, ``{entities}``, ``{link}`` and ``{links}``, ``{an_entity}`` and ``{a_link}``, each
    also with a capital, and ``{entities_own}`` for the possessive plural.

    Attributes:
        entity: one node, singular.
        entities: plural.
        link: one row of the edge table, singular. All rows of a pair of nodes are one edge.
        links: plural.

    >>> wording = Wording.of("company/companies", "payment")
    >>> wording.fill("{An_entity}'s record hides among {entities_own} {links}.")
    "A company's record hides among companies' payments."
    >>> Wording.of("employee", "e-mail").fill("If {an_entity} has {a_link}.")
    'If an employee has an e-mail.'
    >>> Wording().fill("Every {entity}, every {link}, every {other}.")
    'Every person, every edge, every {other}.'
    """

    entity: str = "person"
    entities: str = "people"
    link: str = "edge"
    links: str = "edges"

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not isinstance(value, str) or not _WORD.fullmatch(value):
                raise _no_word(part.name, value)

    @classmethod
    def of(
        cls, entity: str | None = None, link: str | None = None, *, known: Wording | None = None
    ) -> Wording:
        """Return the words for ``SINGULAR`` or ``SINGULAR/PLURAL``.

        Args:
            entity: what a node is called; left out: as in ``known``.
            link: what an edge is called; left out: as in ``known``.
            known: the names so far; left out: ``person`` and ``edge``.
        """
        known = known or cls()
        one, many = known.entity, known.entities
        if entity:
            one, many = _forms("entity", entity)
        tie, ties = known.link, known.links
        if link:
            tie, ties = _forms("link", link)
        return cls(one, many, tie, ties)

    def fill(self, template: str) -> str:
        """Return a statement with its placeholders filled in; other braces stay."""
        return _PLACEHOLDER.sub(lambda found: self._form(found[1]) or found[0], template)

    def _form(self, name: str) -> str | None:
        """Return the value of a placeholder, None if there is no such placeholder."""
        lower = name[0].lower() + name[1:]
        known = {
            "entity": self.entity,
            "entities": self.entities,
            "link": self.link,
            "links": self.links,
            "an_entity": f"{indefinite_article(self.entity)} {self.entity}",
            "a_link": f"{indefinite_article(self.link)} {self.link}",
            "entities_own": self.entities + ("'" if self.entities.endswith("s") else "'s"),
        }
        found = known.get(lower)
        if found is None or lower == name:
            return found
        return found[0].upper() + found[1:]


# Written with a vowel and spoken with a consonant (user, European), and the reverse (hour).
_SPOKEN_CONSONANT = re.compile(
    r"uni(?![nm])|u[bcfhjkqrst][aeiou]|u-|eu|ewe|once\b|one\b|ouija", re.IGNORECASE
)
_SILENT_H = re.compile(r"hour|honest|hono|heir", re.IGNORECASE)
_ABBREVIATION = re.compile(r"[A-Z]{2,}s?\b|[A-Z](?=-|\b)")


def indefinite_article(word: str) -> str:
    """Return ``a`` or ``an``, by the pronunciation of a word.

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


def _no_word(name: str, found: object) -> InputError:
    return InputError(
        f"`{name}` must be a word of at most 40 letters, or two as in company/companies. "
        f"Got {found!r}."
    )


def _forms(name: str, text: str) -> tuple[str, str]:
    """Return singular and plural of a name that the user gave."""
    if not isinstance(text, str):
        raise _no_word(name, text)
    # A word that was typed with combining accents is the same word.
    one, is_two, many = unicodedata.normalize("NFC", text).partition("/")
    if not is_two:
        many = _plural(one)
    if not (_WORD.fullmatch(one) and _WORD.fullmatch(many)):
        raise _no_word(name, text)
    return one, many


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
