"""Builds the API reference from the docstrings: ``python docs/build_api.py`` (see api.md)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pdoc

PUBLIC = ("gapgnn", "gapgnn.accounting", "gapgnn.attacks", "gapgnn.audits")


def public_packages() -> list[ModuleType]:
    """Return the modules whose names are public (docs/api.md)."""
    return [importlib.import_module(name) for name in PUBLIC]


def load_names(package: ModuleType) -> None:
    """Put every public name into a package that loads them on first use.

    pdoc looks only at what a module already holds: ``python -m pdoc gapgnn`` lists the names and
    says nothing about them.
    """
    for name in package.__all__:
        vars(package)[name] = getattr(package, name)


def build(folder: Path) -> Path:
    """Write the pages and return the first one."""
    packages = public_packages()
    for package in packages:
        load_names(package)
    pdoc.render.configure(docformat="google")
    pdoc.pdoc(*(package.__name__ for package in packages), output_directory=folder)
    return folder / "gapgnn.html"


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "build/api")))
