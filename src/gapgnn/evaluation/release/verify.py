"""Check a release from its folder alone: no ledger, no network, nothing but the files.

What is found is in plain words. ``problems`` names the file that is wrong. What cannot be checked
here is listed too, because silence would be read as a check that passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapgnn import __version__
from gapgnn.errors import GapgnnError, IntegrityError, UnavailableError
from gapgnn.evaluation.release.checks import (
    EXCERPT_LIMIT,
    Check,
    check_accounting,
    check_audits,
    check_excerpt,
    check_model,
    check_plan,
)
from gapgnn.evaluation.release.files import (
    CHECKSUMS,
    ENTRY,
    EXCERPT,
    MODEL,
    PUBLIC_KEY,
    REQUIRED,
    SBOM,
    SIGNATURE,
    STATEMENT,
    TRANSCRIPT,
    digest_of,
    files_in,
    read_checksums,
    read_json,
)
from gapgnn.evaluation.release.sbom import problems_of
from gapgnn.evaluation.release.signature import check_signature, public_key_hash
from gapgnn.evaluation.release.statement import check_statement, derived_files, read_statement
from gapgnn.methods import Saved, load_folder

# What no file of a folder can show, whoever signed it.
LIMITS = (
    "Whether the curator ran the program that the card names, on the data that it names, cannot be "
    "seen in a folder. Audits test the program, and the ledger records the charge.",
)


_CHECKS = 11


@dataclass(frozen=True)
class Verification:
    """What checking a release found.

    Attributes:
        folder: that was checked.
        checks: in the order in which they were made.
        signer: who signed, as the release states it; None if nobody did.
        is_known_signer: whether the signature is by the key or root that was given.
    """

    folder: Path
    checks: tuple[Check, ...]
    signer: Mapping[str, Any] | None = None
    is_known_signer: bool = False

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(one.outcome != "failed" for one in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, each naming its file."""
        return tuple(problem for one in self.checks for problem in one.problems)

    @property
    def limits(self) -> tuple[str, ...]:
        """What could not be checked, or never can."""
        skipped = [one.text for one in self.checks if one.outcome == "not checked"]
        has_excerpt = any((one.name, one.outcome) == ("ledger", "ok") for one in self.checks)
        return (*skipped, *([EXCERPT_LIMIT] if has_excerpt else []), *LIMITS)


def verify_release(
    folder: str | Path,
    *,
    public_key: str | Path | None = None,
    roots: Sequence[str | Path] = (),
    without_signature: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Check a release; a folder that is wrong is reported, not raised.

    Args:
        folder: of the release.
        public_key: of the signer, from elsewhere than the folder.
        roots: certificates from which the signer's must descend.
        without_signature: do not check the signature, where its package is not installed.
        progress: called with the number of checks that were made, and of all.

    Raises:
        UnavailableError: if the folder is not there, or the signature cannot be checked.
    """
    place = Path(folder)
    if not place.is_dir():
        raise UnavailableError(f"the folder {str(place)!r} does not exist.")
    names, links = files_in(place)
    if links:
        # Nothing is read through them.
        text = "Every file is a plain file of the folder itself."
        return Verification(place, (Check.of("files", text, links),))
    checks = [_check_files(place, names)]
    report = progress or (lambda done, total: None)
    report(1, _CHECKS)
    try:
        statement = read_statement(read_json(place / STATEMENT))
    except IntegrityError as error:
        checks.append(Check.of("statement", "The release states what it holds.", [str(error)]))
        return Verification(place, tuple(checks))
    keys = (
        None if public_key is None else Path(public_key),
        tuple(Path(root) for root in roots),
    )
    checks.append(_check_listed(statement, names))
    checks.append(_check_signature(place, statement, *keys, skip=without_signature))
    report(3, _CHECKS)
    checks += _check_content(place, statement, names, lambda done: report(done, _CHECKS))
    is_known = any(keys) and checks[2].outcome == "ok"
    return Verification(place, tuple(checks), statement["signer"], is_known)


def _check_files(place: Path, names: Sequence[str]) -> Check:
    """Compare every file with its digest; name what was added, removed or changed."""
    text = f"All {len(names)} files have the digests that {CHECKSUMS} lists, and there is no other."
    missing = [f"{name} is missing" for name in REQUIRED if name not in names]
    if CHECKSUMS not in names:
        return Check.of("files", text, missing)
    try:
        listed = read_checksums((place / CHECKSUMS).read_text(encoding="utf-8"))
    except (IntegrityError, UnicodeDecodeError) as error:
        return Check.of("files", text, [f"{CHECKSUMS} cannot be read: {error}"])
    there = [name for name in names if name not in (CHECKSUMS, SIGNATURE)]
    problems = [f"{name} was added" for name in there if name not in listed]
    problems += [f"{name} is missing" for name in listed if name not in there]
    problems += [
        f"{name} was changed"
        for name in there
        if name in listed and digest_of(place / name) != listed[name]
    ]
    return Check.of("files", text, list(dict.fromkeys([*problems, *missing])))


def _check_listed(statement: Mapping[str, Any], names: Sequence[str]) -> Check:
    """Compare the files with the list of ``release.json``, which says why each may leave."""
    text = f"{STATEMENT} says of every file why it may leave the curator, and of no other."
    listed = statement["files"]
    problems = [f"{name} is not in the list of {STATEMENT}" for name in names if name not in listed]
    problems += [
        f"{name} is in the list of {STATEMENT} and is missing"
        for name in listed
        if name not in names
    ]
    return Check.of("statement", text, problems)


def _check_signature(
    place: Path,
    statement: Mapping[str, Any],
    public_key: Path | None,
    roots: tuple[Path, ...],
    *,
    skip: bool,
) -> Check:
    """Check the signature by a key from elsewhere, or else by the one in the folder."""
    signer = statement["signer"]
    is_there = (place / SIGNATURE).is_file()
    if skip:
        return Check.skipped("signature", "The signature was not looked at, as you asked.")
    if signer is None and not is_there:
        if public_key is not None or roots:
            problem = f"{SIGNATURE} is missing: nobody signed this release"
            return Check.of("signature", "", [problem])
        return Check.skipped(
            "signature",
            "Nobody signed this release. That its files agree shows no more than that: whoever "
            "changed all of them together is not found.",
        )
    if signer is None or not is_there:
        what = "is there, but release.json names no signer" if is_there else "is missing"
        return Check.of("signature", "", [f"{SIGNATURE} {what}"])
    own, key_type = str(signer["sha256"]), signer["type"]
    if key_type == "certificate" and public_key is None and not roots:
        return Check.skipped(
            "signature",
            f"The release is signed with the certificate {own}. Give the root certificate "
            "(`--chain`) to check it.",
        )
    if (key_type == "certificate") != bool(roots) and (public_key is not None or roots):
        wanted = "a root certificate (`--chain`)" if public_key else "a key (`--public-key`)"
        problem = f"{SIGNATURE} is of a {key_type}, which {wanted} checks, and not what you gave"
        return Check.of("signature", "", [problem])
    where = "the certificates that you gave" if roots else "the key that you gave"
    if public_key is None and not roots:
        public_key, where = place / PUBLIC_KEY, "the key that lies in the folder"
    try:
        if public_key is not None:
            _check_key(public_key, own)
        check_signature(place, public_key=public_key, roots=roots)
    except IntegrityError as error:
        return Check.of("signature", "", [f"{SIGNATURE} is not valid: {error}"])
    text = f"The signature of all files is valid, by {where}; SHA-256 {own}."
    if public_key == place / PUBLIC_KEY:
        text += (
            " Compare that number with one from elsewhere: anybody can sign with a key of his own."
        )
    return Check.of("signature", text, [])


def _check_key(path: Path, stated: str) -> None:
    try:
        found = public_key_hash(path.read_bytes())
    except OSError as error:
        if path.name == PUBLIC_KEY:
            raise IntegrityError(f"{PUBLIC_KEY} is missing") from None
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    if found != stated:
        raise IntegrityError(f"the release states the key {stated}, and this one is {found}")


def _check_content(
    place: Path, statement: Mapping[str, Any], names: Sequence[str], report: Callable[[int], None]
) -> list[Check]:
    """Check what the files say, as far as the model can be read."""
    try:
        saved = load_folder(place / MODEL)
    except GapgnnError as error:
        text = "The model folder is what was saved."
        return [Check.of("model", text, [f"{MODEL}: {error}"])]
    excerpt: dict[str, Any] | None = None
    unread = None
    if EXCERPT in names:
        try:
            excerpt = read_json(place / EXCERPT)
        except IntegrityError as error:
            unread = Check.of("ledger", "", [str(error)])
    makers: dict[str, Callable[[], Check]] = {
        "model": lambda: check_model(place / MODEL, saved),
        "plan": lambda: check_plan(saved),
        "epsilon": lambda: check_accounting(saved.card),
        "ledger": lambda: unread or check_excerpt(saved.card, excerpt),
        "audits": lambda: check_audits(saved),
        "software": lambda: _check_sbom(place, statement),
        "decision": lambda: _check_decision(saved, statement, excerpt),
        "pages": lambda: _check_derived(place, saved, statement, excerpt),
    }
    checks = []
    for number, (name, make) in enumerate(makers.items(), start=4):
        checks.append(_made(name, make))
        report(number)
    return checks


# What a file that somebody has rewritten can make a reader stumble over.
_STUMBLES = (
    *(GapgnnError, KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(OverflowError, RecursionError, StopIteration, OSError),
)


def _made(name: str, make: Callable[[], Check]) -> Check:
    """Return a check; content that no release has fails it, whatever it made of the program."""
    try:
        return make()
    except _STUMBLES as error:
        return Check.of(name, "", [f"what the files say of {name} cannot be read: {error!r}"])


def _check_sbom(place: Path, statement: Mapping[str, Any]) -> Check:
    text = f"{SBOM} is a bill of materials of the gapgnn that made the release."
    try:
        return Check.of("software", text, problems_of(read_json(place / SBOM), statement["gapgnn"]))
    except IntegrityError as error:
        return Check.of("software", text, [str(error)])


def _check_decision(
    saved: Saved, statement: Mapping[str, Any], excerpt: Mapping[str, Any] | None
) -> Check:
    text = "The model may be released, and what may go to whom follows from its card."
    if statement["gapgnn"] != __version__:
        return Check.skipped("decision", _other_version(statement))
    return Check.of(
        "decision", text, check_statement(statement, saved, has_excerpt=excerpt is not None)
    )


def _check_derived(
    place: Path,
    saved: Saved,
    statement: Mapping[str, Any],
    excerpt: Mapping[str, Any] | None,
) -> Check:
    """Make the files that follow from others again, and compare them byte for byte."""
    try:
        files = derived_files(saved, statement, excerpt)
    except (GapgnnError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Check.of("pages", "", [f"{STATEMENT} cannot be followed: {error}"])
    if statement["gapgnn"] != __version__:
        return _check_figures(place, saved, statement, files)
    if saved.card.version != __version__:
        # Its page was written by the version that trained.
        del files[f"{MODEL}/card.md"]
    problems = [
        f"{name} is not what follows from the card"
        for name, content in files.items()
        if not (place / name).is_file() or (place / name).read_bytes() != content
    ]
    text = f"Made again from the model and compared: {', '.join(files)}."
    return Check.of("pages", text, problems)


def _check_figures(
    place: Path, saved: Saved, statement: Mapping[str, Any], files: Mapping[str, bytes]
) -> Check:
    """Compare the numbers of a release whose sentences are of another version."""
    problems = []
    if read_json(place / TRANSCRIPT) != json.loads(files[TRANSCRIPT]):
        problems.append(f"{TRANSCRIPT} is not what follows from the card")
    if ENTRY in files:
        wanted = _parameters(files[ENTRY].decode())
        found = _parameters((place / ENTRY).read_text(encoding="utf-8"))
        if found != wanted:
            problems.append(f"{ENTRY} states {found}, the card {wanted}")
    if problems:
        return Check.of("pages", "", problems)
    return Check.skipped("pages", _other_version(statement))


def _parameters(entry: str) -> dict[str, str]:
    """Return epsilon and delta as an entry for the registry has them."""
    return dict(re.findall(r"^ +(epsilon|delta): (\S+)$", entry, re.MULTILINE))


def _other_version(statement: Mapping[str, Any]) -> str:
    return (
        f"The release was made by gapgnn {statement['gapgnn']}, whose sentences this version "
        f"({__version__}) does not have: of pages only digests and figures were compared."
    )
