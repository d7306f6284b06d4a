"""What the tests of methods share: a ledger of their own, and spies on noise and steps."""

from __future__ import annotations

import pytest

from gapgnn import Ledger
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.training import trainer as trainer_module


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


@pytest.fixture
def spied(monkeypatch) -> list[tuple[float, tuple]]:
    """Collect the standard deviation and the path of all noise on aggregations."""
    drawn: list[tuple[float, tuple]] = []
    original = NoiseSource.gaussian_rows

    def spy(self, first, rows, columns, std, *path, **options):
        # The steps of DP-SGD draw rows too.
        if path[-1] != "steps":
            drawn.append((std, path))
        return original(self, first, rows, columns, std, *path, **options)

    monkeypatch.setattr(NoiseSource, "gaussian_rows", spy)
    return drawn


@pytest.fixture
def steps(monkeypatch) -> dict[str, list]:
    """Collect, by phase, the DP-SGD steps that are really taken."""
    made: dict[str, list] = {}

    class Spy(trainer_module.PrivateStep):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made[self.phase] = self._calls = []

        def _noised(self, total):
            self._calls.append(self.std)
            return super()._noised(total)

    monkeypatch.setattr(trainer_module, "PrivateStep", Spy)
    return made
