"""Rules that a reader relies on: what packages offer, and who imports what from where."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")
OFFERING = [name for name in PACKAGES if hasattr(importlib.import_module(name), "__all__")]


def package_of(module: str) -> str:
    return module if module in PACKAGES else module.rpartition(".")[0]


def imports(module: str) -> list[tuple[str, str]]:
    """Return (module, name) of everything a module imports from this project, lazily or not."""
    tree = ast.parse(MODULES[module].read_text())
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gapgnn")
        for alias in node.names
    ]


@pytest.mark.parametrize("package", OFFERING)
def test_every_name_that_a_package_offers_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert hasattr(module, name)
    assert set(module.__all__) <= set(dir(module)) | {"__version__"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_other_packages_are_imported_from_their_package(module: str) -> None:
    if module == "gapgnn" or module in PACKAGES:
        return
    mine = package_of(module)
    for source, name in imports(module):
        if source in PACKAGES or source not in MODULES:
            continue
        theirs = package_of(source)
        # A name that a module of the package has too can only be had from its own module.
        is_shadowed = f"{theirs}.{name}" in MODULES
        assert theirs in ("gapgnn", mine) or is_shadowed, f"{module}: from {source} import {name}"


def test_packages_load_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys; " + "; ".join(f"import {name}" for name in PACKAGES)
    code += "; print([name for name in ('torch', 'scipy', 'pyarrow') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_algorithm_of_the_paper_is_one_short_file() -> None:
    """Its privacy argument is read beside session, operators and accounting alone."""
    assert len(MODULES["gapgnn.methods.gap"].read_text().splitlines()) <= 250
