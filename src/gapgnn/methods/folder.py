"""A saved model: a folder of safetensors and JSON, nothing that could run code when read.

Layout::

    config.json                what the model is, and the SHA-256 of every file, its own included
    weights.safetensors        trained parameters
    card.json, card.md         the privacy card
    hops/RELEASE.safetensors   what was released on one graph
    hops/RELEASE.ids.json      whose row is whose: ids, or keyed hashes of them where predictions
                               come with the ids and the ledger (models at node level)
    hops/RELEASE.parquet       both as a table, where that was asked for
    hops/RELEASE.2.safetensors and so on: the same release after people were removed from it
    audits/ID.json             what audits of this very model found, on canaries

The card lists every release in ``hops/`` with its charge, and what all of them come to; a kill at
any moment leaves no release that it does not list (:func:`add_releases`).

Everything in ``hops/`` was paid for, so asking again is free. At node level neither hop 0 nor
features are in it (privacy page, section 2). No file holds the data set's fingerprint
(:mod:`gapgnn.methods.releases` says why). The folder is its owner's: what may be handed on, and to
whom, is for a person to decide.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from gapgnn import __version__
from gapgnn.errors import (
    DataError,
    GapgnnError,
    InputError,
    IntegrityError,
    UnavailableError,
    check_choice,
)
from gapgnn.graph import WHOLE_NUMBER, as_names
from gapgnn.methods.releases import ReleasedHops
from gapgnn.privacy.card import PrivacyCard

# Format 1 is of versions up to 0.2, which stored no plan.
FORMAT = 2
CONFIG = "config.json"
_AUDITS = "audits/"
_HOPS = "hops"
# What releases are kept in, with the number of an edition from the second one on.
_OF_RELEASES = re.compile(r"\.?[0-9a-f]{24}(\.\d+)?\.(safetensors|ids\.json|parquet)(\.part)?")


@dataclass(frozen=True)
class Saved:
    """What a folder holds; ``digests`` are the SHA-256 of its files, the configuration included."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    card: PrivacyCard
    hops: dict[str, ReleasedHops]
    audits: tuple[dict[str, Any], ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written or that would lose something.

    >>> import tempfile
    >>> check_new_folder(Path(tempfile.mkdtemp()) / "model")
    """
    if not folder.name:
        raise InputError(f"`out` must name a folder of its own. Got {str(folder)!r}.")
    if folder.is_file():
        raise InputError(f"`out` must be a folder. Got the file {str(folder)!r}.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"`out` must be a new or empty folder. Got {str(folder)!r} with files in it."
        )
    parent = folder.resolve().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"`out` must be in a folder. Got {str(folder)!r}, under a file.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"`out` must be writable. Got {str(folder)!r}.")


def save_folder(
    folder: Path,
    *,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    card: PrivacyCard,
    hops: Mapping[str, ReleasedHops],
) -> None:
    """Write a new model folder; it appears complete or not at all."""
    check_new_folder(folder)
    config = {**config, "keyed": [name for name, one in hops.items() if one.is_keyed]}
    files: dict[str, bytes] = {
        "weights.safetensors": tensors_to_bytes(_contiguous(weights)),
        "card.json": card.to_json().encode(),
        "card.md": card.to_markdown().encode(),
    }
    for released in hops.values():
        files |= _hop_files(released, config)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            (scratch / _HOPS).mkdir(mode=0o700)
            for name, content in files.items():
                _write(scratch / name, content)
            _write_config(scratch, {**config, "format": FORMAT, "gapgnn": __version__}, files)
            if folder.is_dir():
                folder.rmdir()
            os.replace(scratch, folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(folder)!r} cannot be written: {error}"
        ) from None


def add_releases(folder: Path, released: Sequence[ReleasedHops], card: PrivacyCard) -> None:
    """Add the released hops of further graphs, and the card that lists them, to a saved model.

    The card is written before the hops, so that a kill at any moment leaves no hops in the folder
    that no card lists. What is about to be written is announced in the configuration first: a
    folder that a kill left in between is sound, and holds the new release if all of it is there.
    """
    config = _read_config(folder)
    # By this order, which is the order in which they are written.
    files = {"card.md": card.to_markdown().encode(), "card.json": card.to_json().encode()}
    for one in released:
        files |= _hop_files(one, config)
    changes = {
        "releases": [*config["releases"], *(one.release for one in released)],
        "keyed": [*config.get("keyed", []), *(one.release for one in released if one.is_keyed)],
        "former_cards": [*config.get("former_cards", []), config["files"]["card.json"]],
    }
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    try:
        pending = {"pending": {"files": digests, "changes": changes}}
        _write_config(folder, {**config, **pending}, {}, keep=config["files"])
        _add(folder, config, files, **changes)
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(folder)!r} cannot be written: {error}"
        ) from None


def replace_releases(
    folder: Path, released: Sequence[ReleasedHops], *, forgotten: Mapping[str, Any]
) -> None:
    """Put releases without some of their people in the place of what a folder holds of them.

    New files lie beside the old ones until the configuration names them, in one step: a kill
    leaves the folder as it was, or as it is to be. Files that are no longer named stay until
    :func:`remove_unnamed`.

    Args:
        folder: of a saved model, which nobody else may change meanwhile (:func:`changing`).
        released: the releases as they are from now on.
        forgotten: a record of the removal, for whoever reads the configuration.
    """
    config = _read_config(folder)
    editions = dict(config.get("editions", {}))
    former = {
        name for one in released for name in config["files"] if _is_of(name, one.release, editions)
    }
    for one in released:
        editions[one.release] = editions.get(one.release, 1) + 1
    records = [*config.get("forgotten", []), dict(forgotten)]
    config = {**config, "editions": editions, "forgotten": records}
    files: dict[str, bytes] = {}
    for one in released:
        files |= _hop_files(one, config)
    keep = {name: digest for name, digest in config["files"].items() if name not in former}
    try:
        for name, content in files.items():
            _write(folder / name, content)
        _sync(folder / _HOPS)
        _write_config(folder, config, files, keep=keep)
        _sync(folder)
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(folder)!r} cannot be written: {error}"
        ) from None


def mark_recorded(folder: Path, removal: str, link: str) -> None:
    """Note in the configuration that the ledger has a removal of people.

    Args:
        folder: of a saved model, which nobody else may change meanwhile (:func:`changing`).
        removal: its id.
        link: of the ledger's entry.
    """
    config = _read_config(folder)
    records = [
        {**one, "link": link} if one["id"] == removal else one for one in config["forgotten"]
    ]
    try:
        _write_config(folder, {**config, "forgotten": records}, {}, keep=config["files"])
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(folder)!r} cannot be written: {error}"
        ) from None


def remove_unnamed(folder: Path) -> int:
    """Remove files of releases that the configuration does not name; return how many there were.

    A removal of people that was killed leaves them, and only then are they anybody's rows.

    Args:
        folder: of a saved model, which nobody else may change meanwhile (:func:`changing`).
    """
    named = set(_read_config(folder)["files"])
    found = [
        path
        for path in sorted((folder / _HOPS).glob("*"))
        if f"{_HOPS}/{path.name}" not in named and _OF_RELEASES.fullmatch(path.name)
    ]
    for path in found:
        path.unlink()
    if found:
        _sync(folder / _HOPS)
    return len(found)


def _sync(folder: Path) -> None:
    """Make new and removed names of a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Wait until no other process changes a saved model, and keep others waiting."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        raise UnavailableError(f"the model folder {str(folder)!r} does not exist.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def keep_audit(
    folder: str | Path, *, audit: str, command: str, results: Sequence[Mapping[str, Any]]
) -> Path:
    """Put what an audit of this very model found into its folder, and return the file.

    Each run is a file of its own beside the card, which stays as it was handed out; a kill leaves
    the folder with it or without. Audits run on canaries, so nothing private is in it.

    Args:
        folder: of a saved model.
        audit: ``mechanisms``, ``fit`` or ``pipeline``.
        command: that repeats it.
        results: plain values.
    """
    check_choice("audit", audit, ("mechanisms", "fit", "pipeline"))
    with changing(Path(folder)):
        return _keep_audit(Path(folder), audit, command, results)


def _keep_audit(
    place: Path, audit: str, command: str, results: Sequence[Mapping[str, Any]]
) -> Path:
    config = _read_config(place)
    record = {
        "kind": audit,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gapgnn": __version__,
        "command": command,
        # An audit speaks of one card, and of no other that may lie here later.
        "card": config["files"].get("card.json"),
        "results": [dict(result) for result in results],
    }
    content = json.dumps(record, indent=2, allow_nan=False).encode()
    name = f"{_AUDITS}{hashlib.sha256(content).hexdigest()[:24]}.json"
    try:
        _add(place, config, {name: content})
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(place)!r} cannot be written: {error}"
        ) from None
    return place / name


def copy_folder(
    folder: Path, target: Path, choose: Callable[[str, bytes], tuple[str, bytes] | None]
) -> None:
    """Copy a saved model into a new folder, without the files that are not to be handed on.

    The copy has a configuration of its own, which lists what it holds. The record of people who
    were removed since stays behind: it counts them.

    Args:
        folder: of a saved model.
        target: a folder that does not exist.
        choose: returns the name and content under which a file is copied, or None to leave it out;
            it is asked about every file that the configuration lists, and about no other.
    """
    config = _read_config(folder)
    files: dict[str, bytes] = {}
    for name in config["files"]:
        chosen = choose(name, (folder / name).read_bytes())
        if chosen is not None:
            files[chosen[0]] = chosen[1]
    try:
        target.mkdir(parents=True)
        for name, content in files.items():
            (target / name).parent.mkdir(mode=0o700, exist_ok=True)
            _write(target / name, content)
        own = {name: value for name, value in config.items() if name != "forgotten"}
        _write_config(target, own, files)
    except OSError as error:
        raise UnavailableError(
            f"the model folder {str(target)!r} cannot be written: {error}"
        ) from None


def _add(
    folder: Path, config: Mapping[str, Any], files: Mapping[str, bytes], **changes: Any
) -> None:
    """Write further files, then the configuration that names them."""
    for name, content in files.items():
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        _write(folder / name, content)
    _write_config(folder, {**config, **changes}, files, keep=config["files"])


def load_folder(folder: Path) -> Saved:
    """Read a model folder, refusing whatever is missing, damaged, newer or does not belong."""
    before = _raw_config(folder)
    try:
        return _load(folder)
    except DataError:
        if _raw_config(folder) == before:
            raise
        # Another process added a release in between.
        return _load(folder)


def _content(path: Path) -> bytes:
    """Return the content of a file; a pipe or a device in its place might have no end."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def _raw_config(folder: Path) -> bytes:
    try:
        return _content(folder / CONFIG)
    except OSError:
        return b""


def _load(folder: Path) -> Saved:
    config = _read_config(folder)
    contents: dict[str, bytes] = {}
    for name, digest in config["files"].items():
        path = folder / name
        try:
            contents[name] = _content(path)
        except OSError:
            raise IntegrityError(
                f"the model folder is incomplete: {str(path)!r} is missing."
            ) from None
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise IntegrityError(
                f"the model folder is damaged: {str(path)!r} is not what was saved."
            )
    for name in ("weights.safetensors", "card.json"):
        if name not in contents:
            raise IntegrityError(
                f"the model folder is incomplete: {str(folder / name)!r} is missing."
            )
    try:
        weights = tensors_from_bytes(contents["weights.safetensors"])
        card = PrivacyCard.from_json(contents["card.json"].decode())
        hops = {
            str(release): _read_hops(str(release), contents, config)
            for release in config["releases"]
        }
        audits = [json.loads(text) for name, text in contents.items() if name.startswith(_AUDITS)]
        audits = sorted(audits, key=lambda audit: str(audit["when"]))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, GapgnnError):
            raise
        raise IntegrityError(f"the model folder {str(folder)!r} is damaged: {error}.") from None
    own = hashlib.sha256(_content(folder / CONFIG)).hexdigest()
    return Saved(config, weights, card, hops, tuple(audits), {CONFIG: own, **config["files"]})


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not folder.is_dir():
        raise UnavailableError(f"the model folder {str(folder)!r} does not exist.")
    try:
        config = json.loads(_content(path).decode())
        # What is nested too deeply to be read may fail here only.
        json.dumps(config)
    except OSError:
        raise IntegrityError(f"the model folder is incomplete: {str(path)!r} is missing.") from None
    except (ValueError, RecursionError):
        raise IntegrityError(f"the model folder is damaged: {str(path)!r} is not JSON.") from None
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise IntegrityError(f"{str(path)!r} is not a gapgnn model.")
    if config["format"] > FORMAT:
        raise InputError(
            f"the model folder {str(folder)!r} was written by a newer gapgnn "
            f"({config.get('gapgnn')}, format {config['format']}). Upgrade to read it."
        )
    if config.pop("checksum", None) != _checksum(config):
        raise IntegrityError(f"the model folder is damaged: {str(path)!r} is not what was saved.")
    if "plan" not in config:
        raise InputError(
            f"the model folder {str(folder)!r} was written by gapgnn {config.get('gapgnn')}, "
            "before models had a plan. Open it with gapgnn 0.2, or train again."
        )
    if not isinstance(config.get("files"), dict):
        raise IntegrityError(f"the model folder is damaged: {str(path)!r} lists no files.")
    pending = config.get("pending") or {"files": {}, "changes": {}}
    if not isinstance(pending, dict) or set(pending) != {"files", "changes"}:
        raise IntegrityError(f"the model folder is damaged: {str(path)!r} announces no files.")
    names = [*config["files"], *pending["files"]]
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
        raise IntegrityError(
            f"the model folder is damaged: {str(path)!r} lists files outside of it."
        )
    return _settled(folder, config)


def _settled(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the addition that a kill may have interrupted.

    If all files of it are there, it was made. If not, each file that is new already counts as what
    it is: a card that lists more than the folder holds, never less.
    """
    pending = config.pop("pending", None)
    if pending is None:
        return config
    there = {
        name: digest
        for name, digest in pending["files"].items()
        if (folder / name).is_file()
        and hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    }
    known = {name: digest for name, digest in there.items() if name in config["files"]}
    whole = {**config["files"], **(there if len(there) == len(pending["files"]) else known)}
    changes = dict(pending["changes"])
    if len(there) < len(pending["files"]):
        changes = {k: v for k, v in changes.items() if k == "former_cards" and "card.json" in known}
    return {**config, **changes, "files": whole}


def _hop_files(released: ReleasedHops, config: Mapping[str, Any]) -> dict[str, bytes]:
    tensors = {f"hop{index}": hop for index, hop in enumerate(released.hops)}
    # One key: a file with several lists them in no fixed order, and the same release is to be the
    # same bytes.
    about = {"hops": json.dumps([released.release, released.has_hop_zero])}
    base = _base(released.release, config.get("editions", {}))
    files = {
        f"{base}.safetensors": tensors_to_bytes(_contiguous(tensors), metadata=about),
        f"{base}.ids.json": json.dumps(list(map(_plain_id, released.ids.tolist()))).encode(),
    }
    if config.get("is_table"):
        files[f"{base}.parquet"] = _table_of(released)
    return files


def _base(release: str, editions: Mapping[str, int]) -> str:
    """Return how the files of a release begin, in the edition that counts.

    >>> _base("5f3a", {}), _base("5f3a", {"5f3a": 2})
    ('hops/5f3a', 'hops/5f3a.2')
    """
    edition = int(editions.get(release, 1))
    return f"{_HOPS}/{release}" if edition == 1 else f"{_HOPS}/{release}.{edition}"


def _is_of(name: str, release: str, editions: Mapping[str, int]) -> bool:
    base = _base(release, editions)
    return name in (f"{base}.safetensors", f"{base}.ids.json", f"{base}.parquet")


def _table_of(released: ReleasedHops) -> bytes:
    """Return a Parquet table: an id and the columns of all hops, ``hop1_0`` and so on."""
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {"id": pa.array(released.ids.tolist())}
    for number, hop in released.numbered():
        values = hop.detach().cpu().numpy()
        columns |= {f"hop{number}_{k}": values[:, k] for k in range(values.shape[1])}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_hops(
    release: str, contents: Mapping[str, bytes], config: Mapping[str, Any]
) -> ReleasedHops:
    editions, is_keyed = config.get("editions", {}), release in config.get("keyed", [])
    base = _base(release, editions)
    name = f"{base}.safetensors"
    if name not in contents or f"{base}.ids.json" not in contents:
        raise IntegrityError(f"the model folder is incomplete: {name!r} is missing.")
    raw = contents[name]
    size = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + size]).get("__metadata__", {})
    owner, has_hop_zero = json.loads(about["hops"])
    if owner != release:
        raise IntegrityError(f"{name!r} must hold this model's hops. Got those of another release.")
    tensors = tensors_from_bytes(raw)
    ids = as_names("ids", json.loads(contents[f"{base}.ids.json"]))
    ordered = tuple(tensors[f"hop{index}"] for index in range(len(tensors)))
    if any(len(hop) != len(ids) for hop in ordered):
        raise IntegrityError(f"{name!r} must have a row for each of its {len(ids)} ids.")
    is_reduced = editions.get(release, 1) > 1
    return ReleasedHops(
        release, ids, ordered, bool(has_hop_zero), is_reduced=is_reduced, is_keyed=is_keyed
    )


def _plain_id(name: int | str) -> int | str:
    """Return an id as it is written: whole numbers as such, also where others are names.

    Whether a column is read as numbers depends on everybody's ids, and must not show in anybody's.
    """
    if isinstance(name, str) and WHOLE_NUMBER.fullmatch(name):
        return int(name)
    return name


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write_config(
    folder: Path,
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    keep: Mapping[str, str] | None = None,
) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    whole = {**config, "files": {**(keep or {}), **digests}}
    whole["checksum"] = _checksum(whole)
    _write(folder / CONFIG, json.dumps(whole, indent=2, allow_nan=False).encode())


def _checksum(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a configuration says, however it is laid out."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Write durably and atomically: a kill leaves the old file or the new one."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.unlink(missing_ok=True)  # left by a kill, perhaps for others to read
    with open(scratch, "xb", opener=_owners_only) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def _owners_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
