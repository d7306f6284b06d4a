"""Entry points of other packages, which are loaded when they are first asked for.

A package that cannot be loaded is left out and its error is kept (docs: extending).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Registered:
    """What other packages register under one entry point group.

    Attributes:
        found: the objects by entry point name.
        failed: why the others could not be loaded, by name.
    """

    found: dict[str, Any]
    failed: dict[str, str]


@cache
def load_registered(group: str) -> Registered:
    """Load the entry points of a group, ``gapgnn.methods`` or ``gapgnn.datasets``, once.

    >>> load_registered("gapgnn.nothing")
    Registered(found={}, failed={})
    """
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    if not _is_named(group):
        return Registered(found, failed)
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        package = point.dist.name if point.dist is not None else point.value
        if point.name in found:
            failed[point.name] = f"{package} brings a second {point.name!r}"
            continue
        try:
            found[point.name] = point.load()
        except Exception as error:  # somebody else's module may raise anything while it is imported
            reason = str(error).splitlines()[0] if str(error) else ""
            failed[point.name] = f"{package} cannot be loaded: {type(error).__name__}: {reason}"
    return Registered(found, failed)


def _is_named(group: str) -> bool:
    """Return whether an installed package names a group, or may do so where only Python looks.

    Reading a hundred small files takes less than loading what reads them properly, and every
    misspelt option would wait for that.
    """
    for place in map(Path, sys.path):
        if place.is_file():
            return True
        # A place that cannot be read has nothing for Python either.
        names = os.listdir(place) if os.access(place, os.R_OK | os.X_OK) else []
        for name in names:
            points = place / name / "entry_points.txt"
            if not name.endswith((".dist-info", ".egg-info")) or not points.is_file():
                continue
            if f"[{group}]" in points.read_text(encoding="utf-8", errors="replace"):
                return True
    return False
