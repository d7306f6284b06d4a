"""The two forms of a privacy card: strict JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gapgnn.errors import DataError
from gapgnn.privacy.card.texts import at_most

if TYPE_CHECKING:
    from gapgnn.privacy.card.card import PrivacyCard

FORMAT = 10
_LISTS_OF_TEXTS = ("covered", "not_covered", "warnings", "edge_types", "templates")
_LISTS_OF_OBJECTS = ("events", "audits", "releases")
_TEXTS = (
    "method",
    "accountant",
    "messages",
    "dataset",
    "version",
    "protects",
    "own",
    "edges_unread",
    "product",
)


def read_values(text: str | bytes, known: set[str]) -> dict[str, Any]:
    """Parse a card's JSON: exactly the known keys, each of its own type, lists as tuples.

    >>> read_values('{"format": 10, "epsilom": 1}', {"epsilon"})
    Traceback (most recent call last):
    ...
    gapgnn.errors.DataError: A privacy card has unknown keys: epsilom.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"A privacy card must be JSON. Got {error}.") from None
    if not isinstance(data, dict):
        raise DataError(f"A privacy card must be a JSON object. Got {type(data).__name__}.")
    if (number := data.get("format")) != FORMAT:
        hint = ""
        if isinstance(number, int) and not isinstance(number, bool):
            hint = ", written by a newer version. Upgrade to read it"
            if number < FORMAT:
                hint = ", written by a version before 0.3; that version can read it"
        raise DataError(f"A privacy card must have format {FORMAT}. Got {number!r}{hint}.")
    check_keys("A privacy card", data, known | {"format"})
    return {name: _checked(name, value) for name, value in data.items() if name != "format"}


def check_keys(what: str, data: Mapping[str, Any], known: set[str]) -> None:
    """Refuse unknown and missing keys."""
    for problem, names in (("unknown", set(data) - known), ("missing", known - set(data))):
        if names:
            raise DataError(f"{what} has {problem} keys: {', '.join(sorted(names))}.")


def _checked(name: str, value: Any) -> Any:
    if name in _LISTS_OF_OBJECTS:
        if not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
            raise DataError(f"`{name}` must be a list of objects. Got {value!r}.")
        return tuple(value)
    if name in ("not_charged", "public"):
        if not (isinstance(value, list) and all(_is_texts(row) and len(row) == 2 for row in value)):
            raise DataError(f"`{name}` must be a list of pairs of texts. Got {value!r}.")
        return tuple(tuple(row) for row in value)
    if name in _LISTS_OF_TEXTS:
        if not _is_texts(value):
            raise DataError(f"`{name}` must be a list of texts. Got {value!r}.")
        return tuple(value)
    if name in ("ledger", "attacker") and not isinstance(value, dict | None):
        raise DataError(f"`{name}` must be an object or null. Got {value!r}.")
    if name == "wording" and not isinstance(value, dict):
        raise DataError(f"`{name}` must be an object. Got {value!r}.")
    if name == "delta_is_auto" and not isinstance(value, bool):
        raise DataError(f"`{name}` must be true or false. Got {value!r}.")
    if name in _TEXTS and not isinstance(value, str):
        raise DataError(f"`{name}` must be a text. Got {value!r}.")
    return value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def markdown(card: PrivacyCard) -> str:
    """Write a card for people: the promise first, then everything it rests on."""
    from gapgnn.privacy.card.card import attacker_facts, guarantee_sentence

    # The attacker has all releases of the model.
    has_several = len(card.releases) > 1
    is_model = card.product == "model"
    first = "training" if is_model else "first release"
    of_training = f" of the {first}" if has_several else ""
    of_all = " (all releases together)" if has_several else ""
    facts = [
        ("method", card.method),
        ("data set", card.dataset),
        ("level", card.level),
        ("relation", card.relation.name),
        ("words of this card", f"{card.wording.entities}, {card.wording.links}"),
        (f"epsilon{of_training}", "none" if card.epsilon is None else at_most(card.epsilon)),
        ("delta", "none" if card.delta is None else _delta(card)),
        ("accountant", card.accountant),
        (
            f"epsilon by Renyi accounting{of_training}",
            "-" if card.rdp_epsilon is None else at_most(card.rdp_epsilon),
        ),
        *((f"{what}{of_all}", value) for what, value in attacker_facts(card.attacker)),
        ("noise multiplier", _or_dash(card.noise_multiplier)),
        ("noise", card.noise_source),
        ("private release", "yes" if card.is_private_release else "**no**"),
        ("adjacency lists cut to", _or_dash(card.max_degree)),
        ("node-level notion", card.node_notion or "-"),
        *(
            [(card.wording.fill("a prediction reads of its own {entity}"), card.own)]
            if card.own
            else []
        ),
        ("travelled along the edges", card.messages),
        *([("predictions read edges", "no")] if card.edges_unread else []),
        *([("edge types", ", ".join(card.edge_types))] if card.edge_types else []),
        (f"ledger, after the {first}", str(card.ledger or "nothing was charged")),
        *(
            [("head of the ledger's chain", card.ledger.head)]
            if card.ledger is not None and card.ledger.head is not None
            else []
        ),
        ("gapgnn", card.version),
    ]
    parts = [
        "# Privacy card",
        guarantee_sentence(card),
        *_bullets("Warnings", card.warnings),
        "## Facts",
        _table(("what", "value"), facts),
        *_bullets("Covered", card.covered),
        *_bullets("Not covered", card.not_covered),
        *_releases(card),
        "## Released on private data" + (f" in the {first}" if has_several else ""),
        _events(card.events),
        "## Not charged",
        _table(("what", "why"), card.not_charged),
        *(["## Taken to be public", _table(("what", "from"), card.public)] if card.public else []),
        *_bullets("Audits", [_pairs(audit) for audit in card.audits]),
    ]
    return "\n\n".join(parts) + "\n"


def _releases(card: PrivacyCard) -> list[str]:
    """Return every release of the model with its charge, and what all of them come to."""
    if not card.releases:
        return []
    rows = [
        (
            f"{number}. {release.purpose}",
            f"{release.when or 'day unknown'}; charge {release.charge_id or 'none'}; "
            f"epsilon {at_most(release.epsilon)}, delta {release.delta:.6g}, {release.relation}; "
            f"events: {'; '.join(_pairs(event) for event in release.events)}",
        )
        for number, release in enumerate(card.releases, start=1)
    ]
    everything = f"epsilon {at_most(card.composed_epsilon or 0.0)} at delta {card.delta:.6g}"
    return [
        "## Releases of this model" if card.product == "model" else "## Releases",
        _table(("release", "charged"), [*rows, ("all of them together", everything)]),
    ]


def _delta(card: PrivacyCard) -> str:
    return f"{card.delta:.6g}" + (" (auto)" if card.delta_is_auto else "")


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _events(events: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(event.get("event", "event")),
            _pairs({k: v for k, v in event.items() if k != "event" and v != ""}),
        )
        for event in events
    ]
    return _table(("event", "parameters"), rows) if rows else "Nothing."


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _bullets(title: str, lines: Iterable[str]) -> list[str]:
    text = "\n".join(f"- {line}" for line in lines)
    return [f"## {title}", text] if text else []


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {_cell(left)} | {_cell(right)} |" for left, right in lines)


def _cell(text: str) -> str:
    """Keep a name with a bar or a line break from breaking the table."""
    return " ".join(text.split()).replace("|", "\\|")
