"""300 malformed inputs: one line, the right exit code, no hang, nothing charged, nothing left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from gapgnn import LabelGAP, Ledger, random_split, read_tables
from gapgnn.cli.main import run
from malformed import EDGES, MALFORMED, NODES, SCHEMA, Bad

# No command may take longer to say no. A machine that is busy with other things gets more, as the
# clock runs on; what hangs takes all of it, and what computes is seen by its own time.
SECONDS, PATIENCE = 5.0, 120.0


class Hang(BaseException):
    """What a command is interrupted with that does not end."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Return the folder of a small model, without a charge."""
    place = tmp_path_factory.mktemp("model")
    for name, text in (("nodes.csv", NODES), ("edges.csv", EDGES)):
        (place / name).write_text(text)
    graph = read_tables(edges=place / "edges.csv", nodes=place / "nodes.csv", label="year").graph
    ledger = Ledger.init(place / "ledger.sqlite").path
    fitted = LabelGAP(epsilon=4.0, epochs=1, folds=0, hidden=4, hops=1, ledger=ledger)
    fitted.fit(random_split(graph, seed=0)).save(place / "model")
    return place / "model"


def prepare(folder: Path, bad: Bad, model: Path) -> None:
    """Write the good files, and the bad ones over them."""
    for name, text in {"nodes.csv": NODES, "edges.csv": EDGES, "schema.toml": SCHEMA}.items():
        (folder / name).write_text(text)
    if "model" in bad.words or "model" in bad.files:
        shutil.copytree(model, folder / "model")
    for name, content in bad.files.items():
        path = folder / name
        if callable(content):
            if path.is_file():
                path.unlink()
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def state(folder: Path) -> dict[str, object]:
    """Return what lies in a folder, without following or reading what is no file."""
    found: dict[str, object] = {}
    for place, _, names in os.walk(folder):
        found[place] = "folder"
        for name in names:
            path = Path(place, name)
            is_plain = path.is_file() and not path.is_symlink()
            found[str(path)] = path.read_bytes() if is_plain else os.lstat(path).st_mode
    return found


def test_there_are_300_cases_and_more():
    assert len(MALFORMED) >= 300


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input_is_one_line_and_leaves_no_trace(
    name, model, tmp_path, monkeypatch, capsys
):
    bad = MALFORMED[name]
    prepare(tmp_path, bad, model)
    (tmp_path / "home").mkdir()
    ledger = Ledger.init(tmp_path / "home" / "ledger.sqlite")
    before = state(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    monkeypatch.setattr(sys, "argv", ["gapgnn", *bad.words])

    def stop(*_: object) -> None:
        raise Hang(name)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    begun = time.process_time()
    try:
        with pytest.raises(SystemExit) as done:
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    taken = time.process_time() - begun
    out, err = capsys.readouterr()
    assert done.value.code in bad.codes, err
    assert out == ""
    assert err.startswith("gapgnn: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err[:2000]
    assert "Traceback" not in err
    assert len(err) < 20_000
    assert err.isprintable() or err[:-1].isprintable()
    assert bad.said in err
    assert ledger.entries() == []
    assert ledger.summary() == []
    assert taken < SECONDS
    after = state(tmp_path)
    assert {k: v for k, v in after.items() if "/home" not in k} == {
        k: v for k, v in before.items() if "/home" not in k
    }
