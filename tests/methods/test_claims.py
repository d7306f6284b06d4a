"""A charge pays for one run: neither an altered checkpoint nor a copy of one draws on it again."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from journalcases import RUNS, KillError, Steps, counted_steps, people

from gapgnn import GAP, PrivateSession, SessionOptions
from gapgnn.errors import PrivacyError
from gapgnn.methods import NodeClassifier
from gapgnn.privacy import checkpoint as checkpoint_module
from gapgnn.privacy.checkpoint import INDEX, Checkpoint
from gapgnn.privacy.ledger.ledger import Ledger
from gapgnn.rng import NoiseKey

OPTIONS = {"level": "edge", "epochs": 1}
# What each run releases, in this order.
RELEASES = {
    "gap edge": ["hop 1", "hop 2"],
    "sage edge": ["edges", "edges"],
    "sage node": ["classifier", "hop 1"],
    "mlp node": ["classifier"],
}
RUN_AND_KILL = [(run, kill) for run, releases in RELEASES.items() for kill in range(len(releases))]


@pytest.fixture
def graph():
    return people()


@pytest.fixture
def drawn(monkeypatch) -> Steps:
    """Collect what is really released."""
    return counted_steps(monkeypatch, released_only=True)


def fit(graph, ledger, folder, *, run="gap edge", resume=False, **options) -> NodeClassifier:
    method_class, own = RUNS[run]
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=resume)
    try:
        model = method_class(**{**own, "epochs": 1, "ledger": ledger.path, **options})
        return model.fit(graph, checkpoint=checkpoint)
    finally:
        checkpoint.close()


def killed(drawn: Steps, graph, ledger, folder, *, kill: int, **options) -> Path:
    """Return the folder of a run that died before its release of this number."""
    drawn.kill_after = kill
    with pytest.raises(KillError):
        fit(graph, ledger, folder, **options)
    drawn.kill_after = None
    return folder


def alter(folder: Path, change) -> None:
    """Change every state in the index and make the checksum right again, as an attacker would."""
    content = json.loads((folder / INDEX).read_text())
    del content["checksum"]
    for state in content["states"]:
        change(state)
    content["checksum"] = checkpoint_module._checksum(content)
    (folder / INDEX).write_text(json.dumps(content))


def about_of(model: GAP, graph) -> dict:
    """Return what a checkpoint of this model would say about itself."""
    session = PrivateSession(
        model.plan_for(graph),
        graph,
        SessionOptions([NoiseKey.fresh() for _ in range(model.repeats)]),
        about={"params": model.saved_parameters()},
    )
    about = session._about_run()
    return json.loads(json.dumps({k: v for k, v in about.items() if k != "fingerprint"}))


# What is about to be released is compared with the ledger


@pytest.mark.parametrize("change", [{"epsilon": 50.0}, {"repeats": 3}, {"delta": 1e-3}])
def test_a_checkpoint_altered_to_another_price_is_refused(graph, ledger, tmp_path, drawn, change):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=0, epsilon=1.0)
    greedy = about_of(GAP(**{**OPTIONS, "epsilon": 1.0, **change}), graph)
    alter(folder, lambda state: state["about"].update(greedy))
    with pytest.raises(PrivacyError, match=r"must be as charged"):
        fit(graph, ledger, folder, resume=True, **{"epsilon": 1.0, **change})
    assert drawn.done == []


def test_altered_events_of_the_same_price_are_refused(graph, ledger, tmp_path, drawn, monkeypatch):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=0)
    real = PrivateSession._about_run

    def other(self):
        about = real(self)
        about["events"][0]["noise_multiplier"] /= 50
        return about

    monkeypatch.setattr(PrivateSession, "_about_run", other)
    alter(folder, lambda s: s["about"].update(about_of(GAP(**OPTIONS), graph)))
    with pytest.raises(PrivacyError, match="`events` must be as charged"):
        fit(graph, ledger, folder, resume=True)
    assert drawn.done == []


def test_a_checkpoint_altered_to_say_that_nothing_was_charged_is_refused(
    graph, ledger, tmp_path, drawn
):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=0)
    alter(folder, lambda state: state.update(charge=None))
    with pytest.raises(PrivacyError, match="names no charge"):
        fit(graph, ledger, folder, resume=True)
    assert drawn.done == []


def test_a_finished_hop_struck_from_the_checkpoint_is_not_drawn_again(
    graph, ledger, tmp_path, drawn
):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=1)
    assert drawn.done == ["hop 1"]
    alter(folder, lambda state: state["finished"].pop("hop-1", None))
    with pytest.raises(PrivacyError, match="went on, or its files were changed"):
        fit(graph, ledger, folder, resume=True)
    assert drawn.done == ["hop 1"]


def test_a_checkpoint_altered_to_name_the_charge_of_a_finished_run_is_refused(
    graph, ledger, tmp_path, drawn
):
    GAP(**OPTIONS, ledger=ledger.path).fit(graph)
    (spent,) = ledger.entries()
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=0)
    alter(folder, lambda state: state.update(charge=spent.id, finished={}))
    with pytest.raises(PrivacyError, match="went on, or its files were changed"):
        fit(graph, ledger, folder, resume=True)
    assert drawn.done == ["hop 1", "hop 2"]


# Copies of a folder


@pytest.mark.parametrize(
    ("run", "kill", "winner"),
    [
        # The copy wins by default, and once the folder itself.
        pytest.param(run, kill, winner, marks=[pytest.mark.slow] * (winner == 0 < place))
        for place, (run, kill) in enumerate(RUN_AND_KILL)
        for winner in (0, 1)
    ],
)
def test_of_two_copies_the_first_to_resume_wins_and_the_other_is_refused_for_good(
    graph, ledger, tmp_path, drawn, run, kill, winner
):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=kill, run=run)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    first, second = (folder, copy) if winner == 0 else (copy, folder)
    # Even a winner that dies again at once keeps the other out, and may go on itself.
    killed(drawn, graph, ledger, first, kill=kill, run=run, resume=True)
    for _ in range(2):
        with pytest.raises(PrivacyError, match="went on, or its files were changed"):
            fit(graph, ledger, second, run=run, resume=True)
    fit(graph, ledger, first, run=run, resume=True)
    with pytest.raises(PrivacyError, match="went on, or its files were changed"):
        fit(graph, ledger, second, run=run, resume=True)
    assert drawn.done == RELEASES[run]
    (charge,) = ledger.entries()
    assert charge.completed_at


def test_a_run_whose_copy_goes_on_meanwhile_releases_nothing_more(
    graph, ledger, tmp_path, drawn, monkeypatch
):
    """The copy is made and resumed while the run is alive, between two hops."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    real, resumed = Checkpoint.load_or_run, []

    def load_or_run(self, name, run, **options):
        if self.folder == folder and name == "hop-2":
            shutil.copytree(folder, copy)
            with torch.enable_grad():
                resumed.append(fit(graph, ledger, copy, resume=True))
        return real(self, name, run, **options)

    monkeypatch.setattr(Checkpoint, "load_or_run", load_or_run)
    with pytest.raises(PrivacyError, match="went on, or its files were changed"):
        fit(graph, ledger, folder)
    assert len(resumed) == 1
    # The draw of the run that lost was never written down for anybody.
    assert not [path for path in folder.iterdir() if path.name.startswith("hop-2")]


# Loaded once, then a process for each folder; they wait for each other and go on at the same time.
RESUME = """
import os, sys
from gapgnn.errors import PrivacyError
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import random_split
from gapgnn import GAP, PrivateSession, SessionOptions
from gapgnn.privacy.checkpoint import Checkpoint

ledger, *folders = sys.argv[1:]
ready, go = os.pipe(), os.pipe()
for folder in folders:
    if os.fork() == 0:
        break
else:
    os.close(ready[1])
    os.close(go[0])
    for _ in folders:
        os.read(ready[0], 1)
    os.write(go[1], b"g" * len(folders))
    sys.exit(any(os.wait()[1] for _ in folders))
os.close(go[1])
graph = random_split(
    generate(num_nodes=300, mean_degree=6, num_features=4, num_classes=3), seed=0
)
model = GAP(level="edge", epochs=1, ledger=ledger)
os.write(ready[1], b"r")
os.close(ready[1])
os.read(go[0], 1)
try:
    model.fit(graph, checkpoint=Checkpoint(folder, ledger=ledger, resume=True))
    print("finished")
except PrivacyError as error:
    print("refused" if "went on" in str(error) else error)
"""


@pytest.mark.gate
def test_of_copies_resumed_at_once_by_two_processes_one_wins(graph, ledger, tmp_path, drawn):
    folder = killed(drawn, graph, ledger, tmp_path / "run", kill=0)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    words = [sys.executable, "-c", RESUME, str(ledger.path), str(folder), str(copy)]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert sorted(said.splitlines()) == ["finished", "refused"]
    assert len(ledger.entries()) == 1


# Kills around a claim


@pytest.mark.parametrize(
    ("run", "claims"), [("gap edge", 5), ("sage edge", 3), ("sage node", 3), ("mlp node", 2)]
)
def test_killed_before_or_after_any_claim_the_one_folder_still_goes_on(
    graph, ledger, tmp_path, monkeypatch, run, claims
):
    """Every claim of a run and of its resume, killed right before and right after it counts."""
    real = Ledger.claim
    for moment in ("before", "after"):
        for place in range(20):
            folder, calls = tmp_path / f"{moment} {place}", iter(range(100))

            def claim(self, *args, calls=calls, place=place, moment=moment, **options):
                is_here = next(calls) == place
                if is_here and moment == "before":
                    raise KillError
                real(self, *args, **options)
                if is_here:
                    raise KillError

            monkeypatch.setattr(Ledger, "claim", claim)
            try:
                fit(graph, ledger, folder, run=run)
                break
            except KillError:
                pass
            # The resume dies at its own first claim, too.
            calls = iter([place])
            monkeypatch.setattr(
                Ledger,
                "claim",
                lambda *args, claim=claim, calls=calls, place=place, **options: claim(
                    *args, calls=calls, place=place, **options
                ),
            )
            with pytest.raises(KillError):
                fit(graph, ledger, folder, run=run, resume=True)
            monkeypatch.setattr(Ledger, "claim", real)
            fit(graph, ledger, folder, run=run, resume=True)
        # The start and every step that is kept, such as the encoder, two hops and the classifier.
        assert place == claims
    charges = ledger.entries()
    assert len(charges) == 2 * (claims + 1)
    assert all(charge.completed_at for charge in charges)


# Who can read it


def test_the_unfinished_folder_and_its_files_are_for_their_owner_alone(
    graph, ledger, tmp_path, drawn
):
    before = os.umask(0)
    try:
        folder = killed(drawn, graph, ledger, tmp_path / "run", kill=1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {"journal.json", "lock", "hop-1.safetensors"} <= modes.keys()
    assert set(modes.values()) == {0o600}
