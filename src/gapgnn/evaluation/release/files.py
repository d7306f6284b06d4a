"""The files of a release folder: their names, their digests, and what else lies there.

A folder comes from somebody else, so nothing is followed out of it: a symbolic link, a device or a
pipe is named and never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gapgnn.errors import InputError, IntegrityError, UnavailableError

MODEL = "model"
STATEMENT = "release.json"
EXCERPT = "ledger.json"
TRANSCRIPT = "transcript.json"
SBOM = "sbom.cdx.json"
ENTRY = "registry_entry.yaml"
NIST = "nist-sp-800-226.md"
PAGE = "index.html"
CHECKSUMS = "SHA256SUMS"
SIGNATURE = "model.sig"
PUBLIC_KEY = "signer.pub"
# What a release must hold; the others are there or not, as `release.json` says.
REQUIRED = (STATEMENT, TRANSCRIPT, SBOM, NIST, PAGE, CHECKSUMS)
# A file of JSON that is longer was not written by a release.
_LONGEST_JSON = 1 << 28


def files_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of all files below a folder, and what is there that is no plain file.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> _ = (place / "a.txt").write_text("a")
    >>> (place / "b.txt").symlink_to("/etc/hostname")
    >>> files_in(place)
    (['a.txt'], ['b.txt is a symbolic link'])
    """
    names, problems, open_folders = list[str](), list[str](), [folder]
    while open_folders:
        place = open_folders.pop()
        try:
            found = sorted(os.scandir(place), key=lambda one: one.name)
        except OSError as error:
            raise UnavailableError(
                f"the folder {str(place)!r} cannot be read: {error.strerror}."
            ) from None
        for one in found:
            name = Path(one.path).relative_to(folder).as_posix()
            if one.is_symlink():
                problems.append(f"{name} is a symbolic link")
            elif one.is_dir(follow_symlinks=False):
                open_folders.append(Path(one.path))
            elif one.is_file(follow_symlinks=False):
                names.append(name)
            else:
                problems.append(f"{name} is no plain file")
    return sorted(names), sorted(problems)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    return found.hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> str:
    """Return the lines of ``SHA256SUMS``, which ``sha256sum --check`` reads.

    Itself and the signature, which covers it, are not in it.
    """
    listed = sorted(set(names) - {CHECKSUMS, SIGNATURE})
    return "".join(f"{digest_of(folder / name)}  {name}\n" for name in listed)


def read_checksums(text: str) -> dict[str, str]:
    """Return the digest of each file that ``SHA256SUMS`` lists.

    >>> read_checksums("ab" * 32 + "  card.json\\n")["card.json"][:4]
    'abab'
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        is_hex = len(digest) == 64 and set(digest) <= set("0123456789abcdef")
        if not is_hex or not name or name in found:
            raise IntegrityError(
                f"{CHECKSUMS} must have lines of a digest and a name. Got {line!r}."
            )
        found[name] = digest
    return found


def write_json(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON that is the same bytes on every machine."""
    return (json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; refuse whatever is none."""
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise ValueError("it is too long")
        values = json.loads(path.read_text(encoding="utf-8"))
        # What is nested too deeply to be read may fail here only.
        json.dumps(values)
    except OSError:
        raise IntegrityError(f"{path.name} is missing.") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path.name} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise IntegrityError(f"{path.name} must hold an object. Got {type(values).__name__}.")
    return values


def model_of(folder: Path) -> Path:
    """Return the model folder of a release, or the folder itself if it is one.

    Raises:
        InputError: if it is neither.
    """
    if not folder.is_dir():
        raise UnavailableError(f"the folder {str(folder)!r} does not exist.")
    for place in (folder / MODEL, folder):
        if (place / "config.json").is_file() and not place.is_symlink():
            return place
    raise InputError(f"a saved model or a release must be given. Got {str(folder)!r}.")
