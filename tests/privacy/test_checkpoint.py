"""A checkpoint keeps one draw of each release, for one charge and for its owner alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gapgnn import Checkpoint, Ledger
from gapgnn.errors import PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import Undirected
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.ledger import People

PEOPLE = People.of(social_graph(num_nodes=20, mean_degree=4))
PAID: dict[str, Any] = {
    "level": "edge",
    "relation": "undirected",
    "epsilon": 1.0,
    "delta": 1e-6,
    "count": 1,
    "events": [Gaussian(2.0, count=2, label="sums").to_dict()],
}
ABOUT = {**PAID, "method": "own", "fingerprint": PEOPLE.fingerprint}


class KillError(BaseException):
    """Ends a run where it stands, as SIGKILL would."""


@pytest.fixture
def ledger(tmp_path):
    return Ledger.init(tmp_path / "ledger.sqlite")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run.unfinished"


def started(folder: Path, ledger: Ledger, *, resume: bool = False) -> Checkpoint:
    """Return the checkpoint of a run that is charged, or goes on."""
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=resume)

    def charge() -> Any:
        terms = {**PAID, "relation": Undirected()}
        return ledger.charge(PEOPLE, **terms, purpose="own fit")

    checkpoint.charged(ABOUT, charge)
    return checkpoint


def hop(value: float) -> dict[str, torch.Tensor]:
    return {"hop": torch.full((3,), value)}


def drawn(checkpoint: Checkpoint, value: float, name: str = "hop-1") -> float:
    found = checkpoint.load_or_run(name, lambda: hop(value), is_sound=lambda state: True)
    return float(found["hop"][0])


def killed(*args: Any, **options: Any) -> None:
    raise KillError


def contents(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "lock"}


def test_a_draw_that_does_not_count_is_deleted_and_drawn_for_the_first_time_that_counts(
    folder, ledger, monkeypatch
):
    checkpoint = started(folder, ledger)
    with monkeypatch.context() as dying:
        dying.setattr(Ledger, "claim", killed)
        with pytest.raises(KillError):
            drawn(checkpoint, 1.0)
    checkpoint.close()
    assert contents(folder) == {"journal.json", "hop-1.part"}
    again = started(folder, ledger, resume=True)
    assert contents(folder) == {"journal.json"}
    assert drawn(again, 2.0) == 2.0
    assert contents(folder) == {"journal.json", "hop-1.safetensors"}
    again.close()


def test_what_was_drawn_after_a_copy_went_on_does_not_stay(folder, ledger, tmp_path):
    checkpoint = started(folder, ledger)
    copy = tmp_path / "copy.unfinished"
    shutil.copytree(folder, copy)
    other = started(copy, ledger, resume=True)
    assert drawn(other, 2.0) == 2.0
    with pytest.raises(PrivacyError, match="a copy of it went on"):
        drawn(checkpoint, 1.0)
    assert contents(folder) == {"journal.json"}
    for one in (checkpoint, other):
        one.close()


def test_what_is_kept_is_for_its_owner_alone(folder, ledger):
    checkpoint = started(folder, ledger)
    drawn(checkpoint, 1.0)
    checkpoint.close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes.pop(folder.name) == 0o700
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level", "node"),
        ("relation", "directed"),
        ("epsilon", 2.0),
        ("delta", 1e-5),
        ("count", 3),
        ("events", [Gaussian(1.0, count=2, label="sums").to_dict()]),
    ],
)
def test_a_charge_pays_for_what_the_ledger_says_and_not_for_what_the_folder_does(
    folder, ledger, monkeypatch, name, value
):
    """Killed right after the charge, a run has no claim yet that would tell a forged folder."""
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    terms = {**PAID, "relation": Undirected()}
    with monkeypatch.context() as dying:
        dying.setattr(Ledger, "claim", killed)
        with pytest.raises(KillError):
            checkpoint.charged(ABOUT, lambda: ledger.charge(PEOPLE, **terms, purpose="own fit"))
    checkpoint.close()
    index = folder / "journal.json"
    content = json.loads(index.read_text())
    del content["checksum"]
    content["states"][0]["about"][name] = value
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    index.write_text(json.dumps({**content, "checksum": checksum}))
    again = Checkpoint(folder, ledger=ledger.path, resume=True)
    with pytest.raises(PrivacyError, match=f"`{name}` must be as charged"):
        again.charged({**ABOUT, name: value}, killed)
    again.close()
