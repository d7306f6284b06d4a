"""A run that was killed goes on: nothing is paid twice, and no release is drawn twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from gapgnn.errors import DataError, InputError, PrivacyError
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import random_split
from gapgnn.methods.gap.estimator import GAP
from gapgnn.methods.journal import Journal
from gapgnn.methods.mlp import MLP
from gapgnn.privacy.ledger.ledger import Ledger
from gapgnn.privacy.mechanisms.aggregation import PrivateAggregation
from gapgnn.training.trainer import Trainer

LEVELS = {
    "edge": {"level": "edge", "hops": 2},
    "papers": {"level": "edge", "messages": "features", "hops": 2},
    "node": {"level": "node", "messages": "features", "hops": 2, "max_degree": 5},
    "none": {"level": "none", "hops": 2},
}


class KillError(BaseException):
    """Ends a run where it stands, as SIGKILL would."""


@pytest.fixture
def graph():
    return random_split(
        generate(num_nodes=300, mean_degree=6, num_features=4, num_classes=3), seed=0
    )


@pytest.fixture
def steps(monkeypatch):
    """Count what is trained and drawn, and kill the run after a number of such steps."""

    class Steps:
        done: list[str] = []  # noqa: RUF012
        kill_after: int | None = None

        def step(self, name: str) -> None:
            if self.kill_after is not None and len(self.done) >= self.kill_after:
                raise KillError
            self.done.append(name)

    counter = Steps()
    counter.done = []
    real_hop, real_fit = PrivateAggregation.hop, Trainer.fit

    def hop(self, rows, index, **options):
        counter.step(f"hop {index}")
        return real_hop(self, rows, index, **options)

    def fit(self, model, inputs, *, phase, private=None):
        counter.step(phase)
        return real_fit(self, model, inputs, phase=phase, private=private)

    monkeypatch.setattr(PrivateAggregation, "hop", hop)
    monkeypatch.setattr(Trainer, "fit", fit)
    return counter


def model(ledger: Path, **options) -> GAP:
    return GAP(**{"epochs": 2, "insecure_noise_seed": 2, "ledger": ledger, **options})


def same(first: GAP, second: GAP) -> bool:
    ours, theirs = first.releases_.training().hops, second.releases_.training().hops
    weights = [
        torch.equal(value, second.modules_[phase].state_dict()[key])
        for phase, module in first.modules_.items()
        for key, value in module.state_dict().items()
    ]
    return all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs) and all(weights)


@pytest.mark.parametrize("level", LEVELS)
def test_killed_after_any_step_the_result_is_the_undisturbed_one(graph, steps, tmp_path, level):
    undisturbed = model(tmp_path / "other.sqlite", **LEVELS[level]).fit(graph)
    names, steps.done = steps.done, []
    for kill in range(len(names)):
        ledger, folder = tmp_path / f"{kill}.sqlite", tmp_path / f"run {kill}"
        steps.done, steps.kill_after = [], kill
        journal = Journal(folder, ledger=ledger)
        with pytest.raises(KillError):
            model(ledger, **LEVELS[level]).fit(graph, journal=journal)
        journal.close()
        steps.kill_after = None
        journal = Journal(folder, ledger=ledger, resume=True)
        resumed = model(ledger, **LEVELS[level]).fit(graph, journal=journal)
        # Every step was done exactly once, the killed one not before the resume.
        assert sorted(steps.done) == sorted(names)
        assert same(undisturbed, resumed)
        assert resumed.repeat_scores_ == undisturbed.repeat_scores_
        charges = Ledger(ledger).entries()
        assert len(charges) == (0 if level == "none" else 1)
        assert all(charge.completed_at for charge in charges)
        journal.remove()
        assert not folder.exists()


def test_with_secret_noise_a_finished_hop_is_kept_byte_for_byte(graph, steps, tmp_path):
    options = {"level": "edge", "messages": "features", "hops": 3, "insecure_noise_seed": None}
    ledger, folder = tmp_path / "ledger.sqlite", tmp_path / "run"
    steps.kill_after = 3
    journal = Journal(folder, ledger=ledger)
    with pytest.raises(KillError):
        model(ledger, **options).fit(graph, journal=journal)
    journal.close()
    assert steps.done == ["encoder", "hop 1", "hop 2"]
    kept = [path.read_bytes() for path in sorted(folder.glob("hop-*.safetensors"))]
    steps.kill_after = None
    journal = Journal(folder, ledger=ledger, resume=True)
    resumed = model(ledger, **options).fit(graph, journal=journal)
    assert steps.done[3:] == ["hop 3", "classifier"]
    again = [path.read_bytes() for path in sorted(folder.glob("hop-*.safetensors"))]
    assert again[:2] == kept
    assert len(again) == 3
    assert len(resumed.releases_.training().hops) == 4


def interrupted(graph, steps, tmp_path, kill: int = 2, **options) -> tuple[Path, Path]:
    ledger, folder = tmp_path / "ledger.sqlite", tmp_path / "run"
    steps.kill_after = kill
    journal = Journal(folder, ledger=ledger)
    with pytest.raises(KillError):
        model(ledger, **options).fit(graph, journal=journal)
    journal.close()
    steps.kill_after = None
    return ledger, folder


def test_neither_the_key_nor_the_fingerprint_nor_hop_zero_is_written(graph, steps, tmp_path):
    estimator = model(tmp_path / "ledger.sqlite", **LEVELS["node"])
    secrets = [key.derive("aggregation").secret for key in estimator._noise_keys()]
    secrets += [key.secret for key in estimator._noise_keys()]
    _, folder = interrupted(graph, steps, tmp_path, kill=3, **LEVELS["node"])
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("journal.json", "lock", "network-encoder.safetensors"),
        *("hop-1.safetensors", "hop-2.safetensors"),
    }
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    for secret in (*secrets, graph.fingerprint.encode(), bytes.fromhex(graph.fingerprint)):
        assert secret not in content
        assert secret.hex().encode() not in content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 2.0}, "`epsilon` must be as in the unfinished run, 1.0. Got 2.0"),
        ({"seed": 3}, "`seed` must be as in the unfinished run, 0. Got 3"),
        ({"hops": 1}, "must be as in the unfinished run"),
    ],
)
def test_other_options_are_refused(graph, steps, tmp_path, change, message):
    ledger, folder = interrupted(graph, steps, tmp_path, hops=2)
    with pytest.raises(InputError, match=message):
        model(ledger, **{"hops": 2, **change}).fit(
            graph, journal=Journal(folder, ledger=ledger, resume=True)
        )
    assert len(Ledger(ledger).entries()) == 1


def test_another_graph_is_refused(graph, steps, tmp_path):
    ledger, folder = interrupted(graph, steps, tmp_path)
    other = random_split(
        generate(num_nodes=300, mean_degree=6, num_features=4, num_classes=3, seed=1), seed=0
    )
    # As many nodes and the same price, so that only the ledger can tell.
    journal = Journal(folder, ledger=ledger, resume=True)
    with pytest.raises(PrivacyError, match="on another graph"):
        model(ledger).fit(other, journal=journal)


def test_another_ledger_is_refused(graph, steps, tmp_path):
    _, folder = interrupted(graph, steps, tmp_path)
    other = tmp_path / "other.sqlite"
    with pytest.raises(PrivacyError, match="another ledger"):
        model(other).fit(graph, journal=Journal(folder, ledger=other, resume=True))


def test_a_copy_of_a_folder_cannot_use_the_charge_a_second_time(graph, steps, tmp_path):
    ledger, folder = interrupted(graph, steps, tmp_path, insecure_noise_seed=None)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    journal = Journal(folder, ledger=ledger, resume=True)
    model(ledger, insecure_noise_seed=None).fit(graph, journal=journal)
    with pytest.raises(PrivacyError, match="a copy of it went on"):
        model(ledger, insecure_noise_seed=None).fit(
            graph, journal=Journal(copy, ledger=ledger, resume=True)
        )


def test_a_finished_run_that_was_not_saved_is_read_and_not_drawn(graph, steps, tmp_path):
    ledger, folder = tmp_path / "ledger.sqlite", tmp_path / "run"
    journal = Journal(folder, ledger=ledger)
    first = model(ledger, insecure_noise_seed=None).fit(graph, journal=journal)
    journal.close()
    steps.done = []
    journal = Journal(folder, ledger=ledger, resume=True)
    again = model(ledger, insecure_noise_seed=None).fit(graph, journal=journal)
    assert steps.done == []
    assert same(first, again)


def test_two_processes_cannot_go_on_with_one_run(graph, steps, tmp_path):
    ledger, folder = interrupted(graph, steps, tmp_path)
    held = Journal(folder, ledger=ledger, resume=True)
    held._acquire()
    with pytest.raises(InputError, match="another process"):
        model(ledger).fit(graph, journal=Journal(folder, ledger=ledger, resume=True))
    held.close()


def test_an_unfinished_run_is_not_overwritten(graph, steps, tmp_path):
    ledger, folder = interrupted(graph, steps, tmp_path)
    with pytest.raises(InputError, match="--resume"):
        model(ledger).fit(graph, journal=Journal(folder, ledger=ledger))
    assert len(Ledger(ledger).entries()) == 1


def test_nothing_to_resume_is_refused(graph, tmp_path):
    journal = Journal(tmp_path / "run", ledger=None, resume=True)
    with pytest.raises(InputError, match="must find an unfinished run"):
        model(tmp_path / "ledger.sqlite").fit(graph, journal=journal)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_damaged_file_is_named_and_not_drawn_again(graph, steps, tmp_path):
    ledger, folder = interrupted(graph, steps, tmp_path)
    for name in ("hop-1.safetensors", "network-encoder.safetensors", "journal.json"):
        copy = Path(shutil.copytree(folder, tmp_path / f"copy of {name}"))
        raw = bytearray((copy / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (copy / name).write_bytes(raw)
        journal = Journal(copy, ledger=ledger, resume=True)
        with pytest.raises(DataError, match=name):
            model(ledger).fit(graph, journal=journal)
        journal.close()
    (folder / "hop-1.safetensors").unlink()
    with pytest.raises(DataError, match="hop-1"):
        model(ledger).fit(graph, journal=Journal(folder, ledger=ledger, resume=True))


def test_over_budget_leaves_no_folder(graph, tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    Ledger(ledger).grant(
        graph.fingerprint, level="edge", relation="undirected", epsilon=0.1, delta=1e-5
    )
    with pytest.raises(PrivacyError):
        model(ledger).fit(graph, journal=Journal(tmp_path / "run", ledger=ledger))
    assert not (tmp_path / "run").exists()


def test_methods_that_do_not_keep_their_releases_refuse_a_journal(graph, tmp_path):
    journal = Journal(tmp_path / "run", ledger=None)
    with pytest.raises(InputError, match="for gap"):
        MLP(level="node", epochs=1).fit(graph, journal=journal)


def test_the_index_says_what_is_finished(graph, steps, tmp_path):
    _, folder = interrupted(graph, steps, tmp_path)
    content = json.loads((folder / "journal.json").read_text())
    before, last = content["states"]
    assert sorted(before["finished"]) == ["network-encoder"]
    assert sorted(last["finished"]) == ["hop-1", "network-encoder"]
    assert last["about"]["params"]["epsilon"] == 1.0


@pytest.mark.parametrize("moment", ["before the index", "before the claim", "before the name"])
def test_killed_while_a_hop_is_written_one_draw_of_it_survives(
    graph, steps, tmp_path, monkeypatch, moment
):
    ledger, folder = tmp_path / "ledger.sqlite", tmp_path / "run"
    options = {"level": "edge", "messages": "features", "insecure_noise_seed": None}
    journal = Journal(folder, ledger=ledger)
    write, claim, states = journal._write_index, Ledger.claim, []

    def kill_before_writing(written) -> None:
        states[:] = written
        if moment == "before the index" and "hop-1" in states[-1]["finished"]:
            raise KillError
        write(written)

    def kill_around_the_claim(*args) -> None:
        is_here = "hop-1" in states[-1]["finished"]
        if not is_here or moment == "before the name":
            claim(*args)
        if is_here:
            raise KillError

    monkeypatch.setattr(journal, "_write_index", kill_before_writing)
    monkeypatch.setattr(Ledger, "claim", kill_around_the_claim)
    with pytest.raises(KillError):
        model(ledger, **options).fit(graph, journal=journal)
    journal.close()
    monkeypatch.setattr(Ledger, "claim", claim)
    written = (folder / "hop-1.part").read_bytes()
    steps.done = []
    journal = Journal(folder, ledger=ledger, resume=True)
    model(ledger, **options).fit(graph, journal=journal)
    is_kept = (folder / "hop-1.safetensors").read_bytes() == written
    assert is_kept == (moment == "before the name")
    assert ("hop 1" in steps.done) == (moment != "before the name")
    assert not list(folder.glob("*.part"))
    assert len(Ledger(ledger).entries()) == 1
