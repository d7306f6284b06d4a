"""Ledgers on a file and on a server; and hops without their noise, all else as shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gapgnn.privacy.ledger import Ledger
from gapgnn.privacy.mechanisms import backends
from gapgnn.privacy.mechanisms.noise import NoiseSource


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.gate)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """Give an empty ledger, once in a file and once on a server."""
    if request.param == "file":
        return Ledger.init(tmp_path / "ledger.sqlite")
    return Ledger.init(request.getfixturevalue("postgres").fresh())


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hops return the sums themselves, normalised where that is asked for."""
    monkeypatch.setattr(
        NoiseSource,
        "gaussian_rows",
        lambda self, first, rows, columns, std, *path, device="cpu": torch.zeros(
            rows, columns, device=device
        ),
    )


@pytest.fixture
def bare_sums(without_noise: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hops return the sums themselves: no noise, no normalisation."""
    monkeypatch.setattr(backends, "row_normalise", lambda values, **_: values)
