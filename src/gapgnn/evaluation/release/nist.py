"""What a release answers of NIST SP 800-226.

"Guidelines for Evaluating Differential Privacy Guarantees" (March 2025) lists what an evaluation
looks at, from the parameters down to how the data are kept. The table says for each topic what this
release states and where, and what no file of it can answer. The topics are named in our words, and
sections are not cited by number.
"""

from __future__ import annotations

from collections.abc import Sequence

from gapgnn.evaluation.release.files import EXCERPT, MODEL, SBOM, SIGNATURE, TRANSCRIPT
from gapgnn.evaluation.report import event_words
from gapgnn.methods import Saved
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.card import texts as texts

_CARD = f"`{MODEL}/card.json`"


def mapping_of(saved: Saved, *, has_excerpt: bool, is_signed: bool) -> str:
    """Return the page: a table of topics, and what stays open.

    Args:
        saved: the released model.
        has_excerpt: whether the release has an excerpt of the ledger.
        is_signed: whether it is signed.
    """
    card = saved.card
    rows = [
        ("Privacy parameters", _parameters(card), _CARD),
        ("Unit of privacy", _unit(card), _CARD),
        ("What is not hidden", " ".join(card.not_covered) or "Nothing is named.", _CARD),
        ("Mechanisms and their correctness", _mechanisms(card), f"{_CARD}, `{TRANSCRIPT}`"),
        ("Composition of several releases", _composition(card, has_excerpt), f"`{EXCERPT}`"),
        ("Floating-point arithmetic and randomness", f"Noise: {card.noise_source}.", _CARD),
        ("Tests of the claim", _audits(saved), f"`{MODEL}/audits/`"),
        (
            "Deployment model",
            " ".join(
                [
                    "Central: the curator holds the data and adds the noise.",
                    *map(card.wording.fill, texts.covered_own(card.level, card.own)),
                ]
            ),
            _CARD,
        ),
        (
            "Integrity of what was released",
            "Digests of all files" + (", signed." if is_signed else ". Not signed."),
            f"`SHA256SUMS`{f', `{SIGNATURE}`' if is_signed else ''}, `{SBOM}`",
        ),
    ]
    lines = [
        "# This release and NIST SP 800-226",
        "",
        "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (March 2025), "
        "names what an evaluation has to look at. The topics are in our words.",
        "",
        _table(("topic", "what this release states", "where"), rows),
        "",
        "## What no file of this release answers",
        "",
        _table(("topic", "who answers"), _OPEN),
    ]
    return "\n".join(lines) + "\n"


_OPEN = (
    ("Which epsilon is acceptable", "whoever answers for the data, before the release"),
    (
        "Usefulness, and bias against groups",
        "the curator: figures of usefulness are computed from true labels and are no part of this "
        "release",
    ),
    ("How the data were collected, and by what consent", "the curator"),
    ("Who can reach the original data, and how they are secured", "the curator"),
    (
        "Timing, memory and other side channels of the run",
        "the curator: the promise is about what is in this folder",
    ),
    ("Releases about the same people that no ledger counts", "the curator"),
)


def _parameters(card: PrivacyCard) -> str:
    if card.composed_epsilon is None or card.delta is None or card.attacker is None:
        return "None: nothing is promised."
    said = f"{texts.price(card.composed_epsilon, card.delta)}, by the accountant {card.accountant}."
    if card.attacker.mu is not None:
        said += f" Gaussian differential privacy: mu {texts.rounded_up(card.attacker.mu)}."
    right = texts.percent(card.attacker.guess)
    return f"{said} A 50:50 guess by an attacker is right in at most {right}."


def _unit(card: PrivacyCard) -> str:
    what = texts.protected(card.relation, edge_types=card.edge_types, protects=card.protects)
    said = f"{card.wording.fill(what)}; relation {card.relation}"
    return f"{said}, notion {card.node_notion}." if card.node_notion else f"{said}."


def _mechanisms(card: PrivacyCard) -> str:
    if not card.events:
        return "No private value was read."
    return "; ".join(event_words(event) for event in card.events) + "."


def _composition(card: PrivacyCard, has_excerpt: bool) -> str:
    if not card.releases:
        return "Nothing was charged."
    count = len(card.releases)
    said = f"{count} release{'s' * (count > 1)}, composed by the accountant."
    if has_excerpt:
        return f"{said} The charges stand in a ledger; an excerpt is here."
    return f"{said} No excerpt of a ledger is here."


def _audits(saved: Saved) -> str:
    count = len(saved.audits) + bool(saved.card.audits)
    if not count:
        return "None was run."
    return f"{count} run{'s' * (count > 1)} of audits, none of which found a violation."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
