"""What is public is listed in docs/reference/api.md, documented, and nothing more."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import gapgnn

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
PUBLIC = ("gapgnn", "gapgnn.accounting", "gapgnn.attacks", "gapgnn.audits")


def listed() -> dict[str, list[str]]:
    """Return the names of each public module as the reference lists them."""
    rows = re.findall(r"^\| `(gapgnn[\w.]*)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def test_the_reference_lists_the_public_modules_and_no_other():
    assert tuple(listed()) == PUBLIC


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_offers_exactly_what_the_reference_lists(module):
    assert sorted(importlib.import_module(module).__all__) == sorted(listed()[module])


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_says_what_it_is(module):
    found = importlib.import_module(module)
    for name in found.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(found, name)), name


def test_the_package_itself_offers_a_handful_of_names():
    assert len(gapgnn.__all__) <= 56
    assert not [name for name in gapgnn.__all__ if name.startswith("_") and name != "__version__"]


def test_extension_points_have_no_underscores():
    hooks = [*gapgnn.NodeClassifier.__abstractmethods__, *gapgnn.EdgeReader.__abstractmethods__]
    assert hooks
    assert not [name for name in hooks if name.startswith("_")]
