"""Rooms with a front: a package offers names, and their modules load on first use.

Other packages import what a package offers from the package itself, so that its files can be
rearranged behind it, and naming a package does not wait for torch.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

# An import under `if TYPE_CHECKING:`, as the formatter writes it.
_OFFERED = re.compile(r"^    from (\S+) import (?:\(\s+)?(\w+) as \2\b", re.MULTILINE)


def front(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    What a package offers is written once: as the imports under ``if TYPE_CHECKING:`` in its
    ``__init__``, which type checkers follow and this function reads.

    >>> get, names, offered = front("gapgnn")
    >>> get("GapgnnError").__name__, "GAP" in names(), offered == names()
    ('GapgnnError', True, True)
    """
    # Not by `ast` and `pathlib`, which take longer to load than all of this.
    with open(str(sys.modules[package].__file__), encoding="utf-8") as source:
        homes = {name: module for module, name in _OFFERED.findall(source.read())}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
