"""Keeps every test away from the user's own ledger, caches, data and terminal."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

pytest_plugins = ["postgres_server"]

# A package that tests install is not imported from its source.
collect_ignore_glob = ["tests/fixtures/*"]

# One thread per test process: with one worker per core, more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A width of the terminal, and colours that are asked for or not, change what commands print.
_OF_THE_TERMINAL = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES")

# Temporary files stay in memory where there is room. Half of a small run is a ledger that waits for
# its disk, and the tests of durability kill processes, not the power.
_MEMORY = Path("/dev/shm")
if (
    "TMPDIR" not in os.environ
    and os.access(_MEMORY, os.W_OK)
    and shutil.disk_usage(_MEMORY).free > 4 * 2**30
):
    tempfile.tempdir = str(_MEMORY)

# The gate gives the same answer every time, on a busy machine too; new examples are looked for with
# `pytest --hypothesis-profile=explore`. The same examples again and again need not be many.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Look for no garbage in what is loaded now, as all of it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _private_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAPGNN_LEDGER", str(folder / "ledger.sqlite"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("COLUMNS", "80")
        for name in _OF_THE_TERMINAL:
            patch.delenv(name, raising=False)
        # A download waits before it tries again; what is down in a test stays down.
        patch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
        from gapgnn import Ledger

        Ledger.init(folder / "ledger.sqlite")
        yield


@pytest.fixture(autouse=True)
def _names_are_looked_up_anew() -> Iterator[None]:
    """Let packages look their names up again, so that what a test replaces in a module is found.

    A package keeps a name once somebody has asked for it (lazy_loader).
    """
    _forget_names()
    yield
    _forget_names()


_SOURCE = Path(__file__).parent / "src"
# Packages of the source tree that load their names lazily.
_LAZY = [".".join(stub.parent.relative_to(_SOURCE).parts) for stub in _SOURCE.rglob("__init__.pyi")]


def _forget_names() -> None:
    for name in _LAZY:
        if (module := sys.modules.get(name)) is None:
            continue
        names = vars(module)
        for offered in module.__all__:
            # A module of the same name is the package's own and stays.
            is_module = f"{name}.{offered}" in sys.modules
            if offered in names and offered != "__version__" and not is_module:
                del names[offered]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave docstrings to the gate, and skip tests whose public data files are missing."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and _SOURCE in item.path.parents:
            item.add_marker(pytest.mark.gate)
    folder = os.environ.get("GAPGNN_DATA")
    if folder and Path(folder).is_dir():
        return
    for item in items:
        if "dataset" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="GAPGNN_DATA is not set"))
