"""Rooms with a front: a package offers names, and their modules load on first use.

Other packages import what a package offers from the package itself, so that its files can be
rearranged behind it, and naming a package does not wait for torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def front(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        homes: the module, inside the package, of every name it offers.

    >>> get, names = front("gapgnn", {"GapgnnError": "errors"})
    >>> get("GapgnnError").__name__, names()
    ('GapgnnError', ['GapgnnError'])
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted(homes)
