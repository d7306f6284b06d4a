"""What a release states of itself, and the files that follow from it.

``release.json`` says which files there are and why each may leave the curator, what was left out,
to whom what may go, and who signed. The page, the transcript, the mapping and the registry entry
are made from the model, the excerpt and that statement alone. Verification makes them again and
compares, so none of them can say something else than the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gapgnn import __version__
from gapgnn.errors import IntegrityError
from gapgnn.evaluation.release.about import About
from gapgnn.evaluation.release.files import (
    CHECKSUMS,
    ENTRY,
    EXCERPT,
    MODEL,
    NIST,
    PAGE,
    PUBLIC_KEY,
    SBOM,
    SIGNATURE,
    STATEMENT,
    TRANSCRIPT,
    write_json,
)
from gapgnn.evaluation.release.nist import mapping_of
from gapgnn.evaluation.release.registry import as_yaml, entry_of
from gapgnn.evaluation.release.transcript import transcript_of
from gapgnn.evaluation.report import Decision, History, decision_of, facts_of, rendered
from gapgnn.methods import Saved
from gapgnn.privacy.card import PrivacyCard, attacker_facts, guarantee_sentence
from gapgnn.privacy.ledger import is_day

FORMAT = 1
_KEYS = ("format", "gapgnn", "made", "about", "decision", "files", "left_out", "signer")
# The page of `gapgnn report` speaks of the ledger's budgets, and is no part of a release.
_NOT_HANDED_OUT = ("this page",)


def decision_for(saved: Saved, *, has_excerpt: bool) -> Decision:
    """Return whether a model may be released and to whom, as the release states it."""
    missing = "" if has_excerpt else "This release has no excerpt of one."
    found = decision_of(saved, saved.card, History(problem=missing))
    recipients = tuple(one for one in found.recipients if one.what not in _NOT_HANDED_OUT)
    return Decision(found.may_release, found.answer, found.reasons, recipients, found.conditions)


def statement_of(
    saved: Saved,
    *,
    made: str,
    about: About | None,
    has_excerpt: bool,
    left_out: Iterable[tuple[str, str]],
    signer: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what ``release.json`` holds."""
    decision = decision_for(saved, has_excerpt=has_excerpt)
    names = [f"{MODEL}/{name}" for name in saved.digests]
    names += [STATEMENT, TRANSCRIPT, SBOM, NIST, PAGE, CHECKSUMS]
    names += [EXCERPT] if has_excerpt else []
    names += [ENTRY] if about is not None else []
    if signer is not None:
        names += [SIGNATURE, *([PUBLIC_KEY] if signer["type"] == "key" else [])]
    return {
        "format": FORMAT,
        "gapgnn": __version__,
        "made": made,
        "about": None if about is None else about.to_dict(),
        "decision": _plain(decision),
        "files": {name: covered_by(name, saved) for name in sorted(names)},
        "left_out": [list(one) for one in left_out],
        "signer": None if signer is None else dict(signer),
    }


def _plain(decision: Decision) -> dict[str, Any]:
    return {
        "may_release": decision.may_release,
        "answer": decision.answer,
        "recipients": [asdict(one) for one in decision.recipients],
        "conditions": list(decision.conditions),
    }


def check_statement(statement: Mapping[str, Any], saved: Saved, *, has_excerpt: bool) -> list[str]:
    """Return what a statement says otherwise than the model it comes with."""
    decision = decision_for(saved, has_excerpt=has_excerpt)
    found = []
    if not decision.may_release:
        found.append(f"this model must not be released: {decision.reasons[0]}")
    if statement["decision"] != _plain(decision):
        found.append("release.json says otherwise than the card what may go to whom")
    reasons = {name: covered_by(name, saved) for name in statement["files"]}
    if statement["files"] != reasons:
        found.append("release.json gives another reason than the card why a file may leave")
    return found


def read_statement(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statement whose parts are of their types."""
    if values.get("format") != FORMAT:
        found = values.get("format")
        raise IntegrityError(f"{STATEMENT} must have format {FORMAT}. Got {found!r}.")
    if set(values) != set(_KEYS):
        wrong = sorted(set(values) ^ set(_KEYS))
        raise IntegrityError(f"{STATEMENT} must have the keys of a release. Got {wrong}.")
    problem = next((name for name, fits in _PARTS.items() if not fits(values[name])), None)
    if problem is not None:
        raise IntegrityError(f"`{problem}` of {STATEMENT} is not what a release writes.")
    return dict(values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object, names: Sequence[str] = ()) -> bool:
    """Tell whether a value is an object of texts, with these names if any are given."""
    return (
        isinstance(value, dict)
        and all(map(_is_text, value.values()))
        and (not names or sorted(value) == sorted(names))
    )


def _is_decision(value: object) -> bool:
    return (
        isinstance(value, dict)
        and sorted(value) == ["answer", "conditions", "may_release", "recipients"]
        and value["may_release"] is True
        and _is_text(value["answer"])
        and isinstance(value["recipients"], list)
        and all(_are_texts(one, ("what", "who", "why")) for one in value["recipients"])
        and isinstance(value["conditions"], list)
        and all(map(_is_text, value["conditions"]))
    )


def _is_signer(value: object) -> bool:
    if value is None:
        return True
    is_known = isinstance(value, dict) and value.get("type") in ("key", "certificate")
    return is_known and _are_texts(value, ("type", "sha256"))


_PARTS: dict[str, Callable[[Any], bool]] = {
    "gapgnn": _is_text,
    "made": lambda value: _is_text(value) and is_day(value),
    "about": lambda value: value is None or isinstance(value, dict),
    "decision": _is_decision,
    "files": _are_texts,
    "left_out": lambda value: (
        isinstance(value, list)
        and all(isinstance(one, list) and list(map(type, one)) == [str, str] for one in value)
    ),
    "signer": _is_signer,
}


def derived_files(
    saved: Saved, statement: Mapping[str, Any], excerpt: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """Return the content of every file that follows from the others."""
    signer = statement["signer"]
    digests = {
        f"{MODEL}/{name}": saved.digests[name] for name in ("card.json", "weights.safetensors")
    }
    files = {
        f"{MODEL}/card.md": saved.card.to_markdown().encode(),
        TRANSCRIPT: write_json(transcript_of(saved)),
        NIST: mapping_of(
            saved, has_excerpt=excerpt is not None, is_signed=signer is not None
        ).encode(),
        PAGE: _page(saved, statement).encode(),
    }
    if statement["about"] is not None:
        about = About.from_dict(statement["about"])
        entry = entry_of(saved.card, about, made=statement["made"], digests=digests)
        files[ENTRY] = as_yaml(entry).encode()
    return files


def _page(saved: Saved, statement: Mapping[str, Any]) -> str:
    """Return the page for people; everything on it is escaped."""
    card = saved.card
    return rendered(
        "release.html.j2",
        card=card,
        statement=statement,
        sentence=guarantee_sentence(card),
        facts=facts_of(card),
        attacker=attacker_facts(card.attacker),
        version=statement["gapgnn"],
    )


def covered_by(name: str, saved: Saved) -> str:
    """Return why a file may leave the curator: which promise covers it, or that it reads no data.

    Args:
        name: in the release.
        saved: the released model.
    """
    if name in _WITHOUT_DATA:
        return _WITHOUT_DATA[name]
    part = name.removeprefix(f"{MODEL}/")
    if part.startswith("audits/"):
        return "Found on canaries of the audit's own: it reads no data of the curator."
    if part.startswith("card."):
        return (
            "Made from what was released and what it was charged: it holds nothing that was read "
            "from protected data without a price."
        )
    if part == "config.json":
        return (
            "The plan, and what was declared about the data. What it takes to be public is listed "
            "on the card."
        )
    return _of_values(saved.card, is_rows=part.startswith("hops/"))


def _of_values(card: PrivacyCard, *, is_rows: bool) -> str:
    """Return why weights and rows may leave."""
    said = card.wording.fill
    if is_rows:
        why = (
            "How many people there are, and who where ids are not keyed hashes, is public: the "
            "curator stated so."
            if card.level == "node"
            else "Who is in the data, and what is computed from features alone, is public at this "
            "level."
        )
        return f"Released with noise: the promise of the card covers it. {why}"
    if card.level == "node":
        return "Trained on released values and by DP-SGD: the promise of the card covers it."
    if not card.epsilon:
        return said(
            "Trained on features and labels alone, which are public at this level: it reads no "
            "{links}."
        )
    return said(
        "Trained on released values, and on features and labels, which are public at this level: "
        "the promise of the card covers what it holds of the {links}."
    )


_DERIVED = "Made from the card and the files beside it: it reads no data."
_WITHOUT_DATA = {
    STATEMENT: _DERIVED,
    TRANSCRIPT: _DERIVED,
    NIST: _DERIVED,
    PAGE: _DERIVED,
    ENTRY: "Made from the card and from what the curator states: it reads no data.",
    SBOM: "Lists the software that made the release: it reads no data.",
    EXCERPT: (
        "The charges that the card lists, and their links in the ledger's chain, which are hashes "
        "under a key that stays in the ledger. It names nobody."
    ),
    CHECKSUMS: "Digests of the other files.",
    SIGNATURE: "A signature of the other files.",
    PUBLIC_KEY: "The public key of the signature.",
}
