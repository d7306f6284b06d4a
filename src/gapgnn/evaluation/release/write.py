"""Write a release: decide whether a model may leave, and what of it; then gather the evidence."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gapgnn.errors import (
    BusyError,
    InputError,
    IntegrityError,
    PrivacyError,
    UnavailableError,
)
from gapgnn.evaluation.release.about import About
from gapgnn.evaluation.release.checks import contradiction_of
from gapgnn.evaluation.release.excerpt import excerpt_of
from gapgnn.evaluation.release.files import (
    CHECKSUMS,
    EXCERPT,
    MODEL,
    PUBLIC_KEY,
    SBOM,
    STATEMENT,
    checksums,
    files_in,
    write_json,
)
from gapgnn.evaluation.release.sbom import bill_of_materials
from gapgnn.evaluation.release.signature import Signer
from gapgnn.evaluation.release.statement import decision_for, derived_files, statement_of
from gapgnn.evaluation.release.verify import Verification, verify_release
from gapgnn.evaluation.report import Decision, decision_of, history_of
from gapgnn.methods import Saved, check_new_folder, copy_folder, load_folder, unfinished
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.ledger import Ledger, is_day

# By these a pipeline audit is given tables of one's own.
_OWN_DATA = ("--edges", "--store", "--nodes", "--features", "--config")


@dataclass(frozen=True)
class LeftOut:
    """Something that a release does not hold, and why.

    ``is_public`` is false where even the name is for the curator alone: it is printed to her, and
    stands in no file of the release.
    """

    what: str
    why: str
    is_public: bool = True


@dataclass(frozen=True)
class Written:
    """A release that was written.

    Attributes:
        folder: where it is.
        decision: what may go to whom, and on which conditions.
        left_out: what it does not hold.
        verification: what checking the written folder found.
    """

    folder: Path
    decision: Decision
    left_out: tuple[LeftOut, ...]
    verification: Verification


def write_release(
    folder: str | Path,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    about: About | None = None,
    signer: Signer | None = None,
    ids_are_public: bool = False,
    made: str | None = None,
) -> Written:
    """Write everything that an outsider needs to judge a saved model into a new folder.

    Nothing is charged, and the model's folder stays as it is. A model whose promise does not hold
    is refused. The folder is verified before it appears under its name.

    Args:
        folder: of a saved model, or of released rows.
        out: a new folder.
        ledger: that was charged; left out: the user's own.
        about: what the curator states for the deployment registry; left out: no entry is written.
        signer: who signs; left out: the release is not signed.
        ids_are_public: the curator states that who is in the data is public, or may become so. At
            node level released rows say how many people there are, and by their ids who, unless
            those are keyed hashes.
        made: the day of the release; left out: today.

    Raises:
        PrivacyError: if the model must stay with the curator.
        IntegrityError: if the folder or the ledger is damaged, or they disagree.
    """
    source, target = Path(folder), Path(out)
    check_new_folder(target)
    day = datetime.now(timezone.utc).date().isoformat() if made is None else made
    if not is_day(day):
        raise InputError(f"`made` must be a day such as 2027-01-31. Got {day!r}.")
    signed_by = None if signer is None else signer.check()
    saved = load_folder(source)
    _check_may_leave(saved, source, ledger)
    excerpt, no_excerpt = _excerpt(saved.card, ledger)
    _check_ids(saved, ids_are_public)
    left_out = [*no_excerpt, *_figures(saved.card), *_entry(about), *_strays(source, saved)]
    with _appearing(target) as scratch:
        chosen = _Choice(saved)
        copy_folder(source, scratch / MODEL, chosen)
        left_out += chosen.left_out
        copied = load_folder(scratch / MODEL)
        if copied.card != saved.card:
            raise BusyError(f"the model {str(source)!r} was changed meanwhile. Try again.")
        statement = statement_of(
            copied,
            made=day,
            about=about,
            has_excerpt=excerpt is not None,
            left_out=[(one.what, one.why) for one in left_out if one.is_public],
            signer=signed_by,
        )
        _fill(scratch, copied, statement, excerpt, signer)
        found = _verified(scratch)
    decision = decision_for(copied, has_excerpt=excerpt is not None)
    return Written(target, decision, tuple(left_out), found)


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield a folder that gets its name when all is in it; otherwise nothing is left."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.resolve().parent))
        try:
            yield scratch
            if target.is_dir():
                target.rmdir()
            os.replace(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UnavailableError(f"the release {str(target)!r} cannot be written: {error}") from error


def _check_may_leave(saved: Saved, source: Path, ledger: str | Path | None) -> None:
    """Refuse a model whose promise does not hold, or that contradicts its card or the ledger."""
    problem = contradiction_of(source, saved)
    if problem.is_wrong:
        raise IntegrityError(f"{str(source)!r} must not be released: {problem.text}")
    if problems := Ledger(ledger).problems():
        raise IntegrityError(f"the ledger {Ledger(ledger).name} is damaged: {problems[0]}.")
    history = history_of(saved.card, ledger)
    decision = decision_of(saved, saved.card, history)
    if decision.may_release:
        removals = unfinished(source, Ledger(ledger)) if history.own is not None else []
        if removals:
            raise PrivacyError(f"{removals[0]}. Nothing was released or written.")
        return
    details = "".join(f" ({one})" for one in history.disagreements)
    raise PrivacyError(
        f"the model {str(source)!r} must stay with the curator: {' '.join(decision.reasons)}"
        f"{details} Nothing was written."
    )


def _excerpt(
    card: PrivacyCard, ledger: str | Path | None
) -> tuple[dict[str, Any] | None, list[LeftOut]]:
    """Return the excerpt of the ledger, or why there is none."""
    history = history_of(card, ledger)
    if history.own is not None:
        return excerpt_of(card, Ledger(ledger)), []
    why = "Nothing was charged for this model."
    if card.ledger is not None:
        why = "The ledger that was charged was not at hand."
    elif card.epsilon:
        why = "This release is in no ledger."
    return None, [LeftOut("the excerpt of the ledger", why)]


def _check_ids(saved: Saved, ids_are_public: bool) -> None:
    """Refuse to publish who is in the data, where the level does not take it to be public.

    Without its rows such a model answers for nobody, and is refused as incomplete when it is
    loaded: so it leaves with the ids, or not at all.
    """
    if saved.card.level == "node" and saved.hops and not ids_are_public:
        is_keyed = all(one.is_keyed for one in saved.hops.values())
        known = "how many people are in the data" if is_keyed else "who is in the data"
        raise PrivacyError(
            f"this model holds a released row for everybody, so whoever has it knows {known}, "
            "which no promise hides. State that this is public (`ids_are_public`), or keep the "
            "folder. Nothing was written."
        )


def _figures(card: PrivacyCard) -> list[LeftOut]:
    why = (
        "They are computed from the true labels without noise, and the promise does not cover them."
        if card.level == "node"
        else "Labels are public at this level, so publishing them is a decision of the curator."
    )
    return [LeftOut("figures of usefulness", why)]


def _entry(about: About | None) -> list[LeftOut]:
    why = "Who publishes the release, and what for, is not stated."
    return [] if about is not None else [LeftOut("the entry for the deployment registry", why)]


def _strays(source: Path, saved: Saved) -> list[LeftOut]:
    """Return what lies in the model's folder and is no part of the model."""
    names, links = files_in(source)
    why = "It is no part of the saved model: nothing says what it was computed from."
    found = [name for name in names if name not in saved.digests]
    return [LeftOut(name, why, is_public=False) for name in [*found, *links]]


class _Choice:
    """Which files of a model folder leave, asked by :func:`gapgnn.methods.copy_folder`."""

    def __init__(self, saved: Saved) -> None:
        self.left_out: list[LeftOut] = []
        self._cards = {saved.config["files"]["card.json"], *saved.config.get("former_cards", ())}

    def __call__(self, name: str, content: bytes) -> tuple[str, bytes] | None:
        return self._audit(content) if name.startswith("audits/") else (name, content)

    def _audit(self, content: bytes) -> tuple[str, bytes] | None:
        """Return an audit of this model on canaries, without the paths of this machine."""
        record = json.loads(content)
        words = shlex.split(record["command"])
        if not _is_on_canaries(record["kind"], words):
            self._leave(
                "an audit on the curator's own data", "No promise covers what it computed from it."
            )
            return None
        if record["card"] not in self._cards:
            self._leave("an audit of another model", "It does not speak of this card.")
            return None
        record["command"] = shlex.join(_without_path(words))
        text = json.dumps(record, indent=2, allow_nan=False).encode()
        return f"audits/{hashlib.sha256(text).hexdigest()[:24]}.json", text

    def _leave(self, what: str, why: str) -> None:
        if LeftOut(what, why) not in self.left_out:
            self.left_out.append(LeftOut(what, why))


def _is_on_canaries(audit: str, words: Sequence[str]) -> bool:
    """Tell whether an audit read made-up data or a known data set, and nothing of the curator's.

    >>> _is_on_canaries("fit", ["gapgnn", "audit", "fit", "--model", "m", "--dataset", "social"])
    True
    >>> _is_on_canaries("fit", ["gapgnn", "audit", "fit", "--model", "m"])
    False
    """
    options = {word.split("=")[0] for word in words}
    if audit == "fit":
        # Of own tables the command that is kept says nothing.
        return "--dataset" in options
    return audit in ("mechanisms", "pipeline") and not options & set(_OWN_DATA)


def _without_path(words: Sequence[str]) -> list[str]:
    """Return a command whose model is the one of the release.

    >>> _without_path(["gapgnn", "audit", "--model", "/home/ann/january", "--trials", "9"])
    ['gapgnn', 'audit', '--model', 'model', '--trials', '9']
    """
    return [
        MODEL if place and words[place - 1] == "--model" else word
        for place, word in enumerate(words)
    ]


def _fill(
    scratch: Path,
    saved: Saved,
    statement: dict[str, Any],
    excerpt: dict[str, Any] | None,
    signer: Signer | None,
) -> None:
    """Write everything beside the model: statement, evidence, digests, and the signature last."""
    files = {
        STATEMENT: write_json(statement),
        SBOM: write_json(bill_of_materials()),
        **derived_files(saved, statement, excerpt),
    }
    if excerpt is not None:
        files[EXCERPT] = write_json(excerpt)
    if PUBLIC_KEY in statement["files"] and signer is not None:
        files[PUBLIC_KEY] = signer.public_key()
    for name, content in files.items():
        # The card's page came with the model, as its own version wrote it.
        if not (scratch / name).exists():
            (scratch / name).write_bytes(content)
    names, _ = files_in(scratch)
    (scratch / CHECKSUMS).write_text(checksums(scratch, names), encoding="utf-8")
    if signer is not None:
        signer.sign(scratch)


def _verified(scratch: Path) -> Verification:
    """Refuse to hand out what would not pass, whatever made it wrong."""
    found = verify_release(scratch)
    if not found.holds:
        raise IntegrityError(f"the release does not verify: {found.problems[0]}. Nothing was kept.")
    return found
