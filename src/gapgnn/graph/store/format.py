"""The files of a partitioned store, and their checksums.

Layout, for P parts::

    manifest.json             sizes, bounds of the parts, names, fingerprint, SHA-256 of every file
    arcs-00000.parquet        source and target of every arc into the part's nodes, by target, and,
                              where edges have weights, the weight in steps of 2**-8
    out-00000.parquet         directed graphs: the same graph's arcs out of the part's nodes
    nodes.parquet             id, label and degrees, in row groups
    features.npy              float32 features, one row per node; or, where they are sparse,
    features-indptr.npy, features-indices.npy, features-values.npy
    dangling.parquet          dangling entries of adjacency lists, where there are some
    edge-type-00001/          a further edge type: a store of its own, without features

A store is private data and belongs where the curator keeps such data: every file is readable by its
owner only. The manifest holds the fingerprint, which is an exact function of private data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gapgnn.errors import DataError, InputError, IntegrityError, UnavailableError
from gapgnn.graph import Progress, file_digest

FORMAT = 1
MANIFEST = "manifest.json"
NODES = "nodes.parquet"
DANGLING = "dangling.parquet"
DENSE = "features.npy"

SPARSE = ("features-indptr.npy", "features-indices.npy", "features-values.npy")


def part_file(row: str, part: int) -> str:
    """Return the name of the file with the arcs into one part's nodes (by target), or out of them.

    >>> part_file("target", 3), part_file("source", 3)
    ('arcs-00003.parquet', 'out-00003.parquet')
    """
    return f"{'arcs' if row == 'target' else 'out'}-{part:05d}.parquet"


def inner_folder(number: int) -> str:
    """Return the name of the folder of a further edge type.

    >>> inner_folder(1)
    'edge-type-00001'
    """
    return f"edge-type-{number:05d}"


def describe_file(path: Path) -> dict[str, Any]:
    """Return the manifest's entry for a finished file, and flush the file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, which makes the folder a store."""
    whole = {"type": "gapgnn store", "format": FORMAT, **manifest}
    whole["checksum"] = _checksum(whole)
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(whole, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a store's manifest, or explain why the folder is not a store.

    >>> read_manifest(Path("nowhere"))
    Traceback (most recent call last):
    ...
    gapgnn.errors.UnavailableError: `store` must be a folder. Got 'nowhere', which is not there.
    """
    if not folder.is_dir():
        state = "which is a file" if folder.is_file() else "which is not there"
        raise UnavailableError(f"`store` must be a folder. Got {str(folder)!r}, {state}.")
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"the store is incomplete: {str(path)!r} is missing.") from None
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise IntegrityError(f"the store is damaged: {str(path)!r} is not JSON.") from None
    if not isinstance(manifest, dict) or manifest.get("type") != "gapgnn store":
        raise DataError(
            f"{str(path)!r} does not describe a store of this version. Make one with "
            "`gapgnn partition`."
        )
    if not isinstance(manifest.get("format"), int) or manifest["format"] > FORMAT:
        raise InputError(
            f"the store {str(folder)!r} was written by a newer gapgnn (format "
            f"{manifest.get('format')}). Upgrade to read it."
        )
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise IntegrityError(f"the store is damaged: {str(path)!r} is not what was written.")
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def check_files(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    *,
    contents: bool,
    progress: Progress | None = None,
) -> None:
    """Refuse a store with a missing, cut, damaged or foreign file, and name the file.

    Args:
        folder: the store.
        files: bytes and SHA-256 of each file, from the manifest.
        contents: also read every byte and compare checksums; without it only sizes are compared.
        progress: called with "store", the bytes read and their total.
    """
    total = sum(int(entry["bytes"]) for entry in files.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("store", done, total)

    for name, entry in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError:
            raise IntegrityError(f"the store is incomplete: {str(path)!r} is missing.") from None
        if size != entry["bytes"]:
            raise wrong_file(path)
    for name, entry in files.items() if contents else ():
        check_digest(folder / name, entry["sha256"], advance)


def check_digest(path: Path, digest: str, advance: Callable[[int], None] | None = None) -> None:
    """Refuse a file with another SHA-256."""
    with explained(path):
        if file_digest(path, advance) != digest:
            raise wrong_file(path)
        _KNOWN.add(_state(path))


def check_once(path: Path, digest: str) -> None:
    """Call :func:`check_digest` unless this process has done so and the file did not change.

    A cluster's worker may read a copy of the store that was not verified yet.
    """
    with explained(path):
        is_known = _state(path) in _KNOWN
    if not is_known:
        check_digest(path, digest)


def _state(path: Path) -> tuple[str, int, int]:
    about = path.stat()
    return str(path.absolute()), about.st_size, about.st_mtime_ns


# A cache of checked files: it saves time and does not change any result.
_KNOWN: set[tuple[str, int, int]] = set()


def wrong_file(path: Path) -> IntegrityError:
    """Return the error for a file that is not the one the manifest lists."""
    return IntegrityError(
        f"the store is damaged: {str(path)!r} is not the file that was written; it was changed, "
        "or it belongs to another store."
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of reading one file of a store into one line that names the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise IntegrityError(f"the store is incomplete: {str(path)!r} is missing.") from None
    except (OSError, pa.ArrowException) as error:
        # Arrow reports damage inside a Parquet file as an OSError, too.
        if isinstance(error, PermissionError):
            raise UnavailableError(f"{str(path)!r} must be readable. Got no permission.") from None
        raise wrong_file(path) from None
