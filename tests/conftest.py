"""A test draws the same keys each time it runs, whichever tests ran before it."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import pytest

from seeded_entropy import same_entropy


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Draw keys, and weights of modules that a test does not seed itself, from the test's name."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(zlib.crc32(item.nodeid.encode()))
    with same_entropy(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Draw keys of what several tests share from its own name, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    with same_entropy(f"{fixturedef.baseid}::{fixturedef.argname}[{request.param_index}]"):
        return (yield)
