"""Doors for other packages: what they bring under an entry point is found when it is asked for.

A package that cannot be loaded is left out with its reason and stops nobody (docs/extending.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True)
class Registered:
    """What other packages bring under one entry point group.

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
