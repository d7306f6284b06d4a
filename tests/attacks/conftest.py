"""What attacks may not touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapgnn import Ledger


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Make a user's ledger in which an entry would be seen."""
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    return ledger
