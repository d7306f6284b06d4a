"""Slow calibration answers, kept on disk between runs.

One small JSON file for each question in ``$XDG_CACHE_HOME/gapgnn/calibration`` (``~/.cache``
without the variable), named by the SHA-256 of the question and of the versions that answered it.
Files are written for their owner alone and moved into place whole. A file that is damaged, or that
somebody else owns or may write, is ignored. The reader checks what the answer claims before it is
used (:func:`gapgnn.privacy.calibration.calibrate`): a cache may save time, not privacy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Entry:
    """A cached answer: the free multiplier, its accounted epsilon, and who accounted it."""

    noise_multiplier: float
    epsilon: float
    accountant: str


def key(**question: Any) -> str:
    """Return the name of a question's answer; what events are called is not part of the question.

    >>> key(epsilon=1.0) == key(epsilon=1.0), key(epsilon=1.0) == key(epsilon=2.0)
    (True, False)
    """
    from importlib.metadata import version

    from gapgnn import __version__

    content = {
        "format": FORMAT,
        "versions": [__version__, version("dp-accounting")],
        "question": _without_labels(question),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(name: str) -> Entry | None:
    """Return a stored answer, or None if there is none that can be trusted to be ours and whole."""
    try:
        with open(_folder() / f"{name}.json", encoding="utf-8") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = json.loads(file.read(_MOST_BYTES))
        entry = Entry(**content["answer"])
        if content["key"] != name or content["digest"] != _digest(name, entry):
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return entry if _is_sane(entry) else None


def write(name: str, entry: Entry) -> None:
    """Store an answer; a folder that cannot be written only costs time at the next call."""
    content = {"key": name, "answer": asdict(entry), "digest": _digest(name, entry)}
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes the file readable and writable by its owner only.
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(temporary, folder / f"{name}.json")
        except BaseException:
            os.unlink(temporary)
            raise


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says to ignore a relative path.
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return root / "gapgnn" / "calibration"


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_sane(entry: Entry) -> bool:
    numbers = (entry.noise_multiplier, entry.epsilon)
    return (
        all(isinstance(x, float) and math.isfinite(x) for x in numbers)
        and entry.noise_multiplier > 0
        and entry.epsilon >= 0
        and entry.accountant in ("pld", "rdp")
    )


def _digest(name: str, entry: Entry) -> str:
    text = json.dumps([name, asdict(entry)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_labels(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_labels(v) for k, v in value.items() if k != "label"}
    if isinstance(value, list | tuple):
        return [_without_labels(v) for v in value]
    return value
