"""Which code made a figure: the package's version and a digest of what can change a figure."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from gapgnn import __version__

# Neither the command line nor tables and figures can change a number that was measured.
_PARTS = ("rng.py", "graph", "privacy", "nn", "training", "methods")
_OF_METRIC = {"test_accuracy": (), "auc": ("attacks",)}


@functools.cache
def code_version(metric: str) -> str:
    """Return the version under which results of a metric are kept; changed code is run again.

    >>> code_version("auc") == code_version("auc") != code_version("test_accuracy")
    True
    """
    root = Path(__file__).resolve().parent.parent.parent
    digest = hashlib.sha256()
    for part in (*_PARTS, *_OF_METRIC[metric]):
        place = root / part
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            content = path.read_bytes()
            name = path.relative_to(root).as_posix()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return f"{__version__}+{digest.hexdigest()[:12]}"
