"""The command line as people run it, in a folder and with a ledger of its own."""

from __future__ import annotations

import sys

import pytest

from gapgnn import Ledger
from gapgnn.cli.main import run


@pytest.fixture
def ledger(tmp_path, monkeypatch) -> Ledger:
    made = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(made.path))
    return made


@pytest.fixture
def gapgnn(monkeypatch, capsys, tmp_path, ledger):
    """Return a function that runs a command: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["gapgnn", *map(str, words)])
        with pytest.raises(SystemExit) as done:
            run()
        assert isinstance(done.value.code, int)
        return (done.value.code, *capsys.readouterr())

    return call
