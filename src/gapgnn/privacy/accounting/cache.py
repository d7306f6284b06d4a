"""Slow calibration answers, kept on disk between runs.

One small JSON file for each question in ``$XDG_CACHE_HOME/gapgnn/calibration`` (``~/.cache``
without the variable), named by the SHA-256 of the question and of the versions that answered it.
Files are written for their owner alone and moved into place whole. A file that is damaged, or that
somebody else owns or may write, is ignored. The answer is accounted in full before it is used
(:func:`gapgnn.privacy.accounting.calibration.calibrate`): a cache may save time, not privacy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

FORMAT = 2
_MOST_BYTES = 4096


def key(**question: Any) -> str:
    """Return the name of a question's answer.

    >>> key(epsilon=1.0) == key(epsilon=1.0), key(epsilon=1.0) == key(epsilon=2.0)
    (True, False)
    """
    from importlib.metadata import version

    from gapgnn import __version__

    content = {
        "format": FORMAT,
        "versions": [__version__, version("dp-accounting")],
        "question": question,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(name: str) -> float | None:
    """Return a stored multiplier, or None if there is none that is surely ours and whole."""
    try:
        with open(_folder() / f"{name}.json", encoding="utf-8") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = json.loads(file.read(_MOST_BYTES))
        multiplier = content["noise_multiplier"]
        if content["key"] != name or content["digest"] != _digest(name, multiplier):
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    is_number = isinstance(multiplier, float) and math.isfinite(multiplier) and multiplier > 0
    return multiplier if is_number else None


def write(name: str, noise_multiplier: float) -> None:
    """Store an answer; a folder that cannot be written only costs time at the next call."""
    content = {
        "key": name,
        "noise_multiplier": noise_multiplier,
        "digest": _digest(name, noise_multiplier),
    }
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


def _digest(name: str, noise_multiplier: float) -> str:
    return hashlib.sha256(json.dumps([name, noise_multiplier]).encode()).hexdigest()
