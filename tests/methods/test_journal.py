"""A run that was killed goes on: nothing is paid twice, and no release is drawn twice."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from journalcases import PAID_RUNS, RUNS, KillError, counted_steps, people
from safetensors.torch import load_file
from scipy import special
from suited import suited

from gapgnn import MLP, Graph, NodeLabelGAP
from gapgnn.errors import DataError, InputError, PrivacyError, UnavailableError
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import random_split
from gapgnn.methods import NodeClassifier
from gapgnn.methods import estimator as estimator_module
from gapgnn.privacy.checkpoint import Checkpoint
from gapgnn.privacy.ledger.ledger import Ledger
from gapgnn.privacy.ledger.people import People
from gapgnn.privacy.mechanisms import noise as noise_module
from gapgnn.privacy.mechanisms.noise import GRID
from gapgnn.training import trainer as trainer_module

NODE_RUNS = ["gap node", "sage node", "mlp node"]


@pytest.fixture
def graph():
    return people()


@pytest.fixture
def steps(monkeypatch):
    return counted_steps(monkeypatch)


def model(ledger: Ledger, run: str = "label-gap edge", **options) -> NodeClassifier:
    method_class, own = RUNS[run]
    shared = {"epochs": 2, "insecure_noise_seed": 2}
    return suited(method_class, shared, **{**own, "ledger": ledger.path, **options})


def same(first: NodeClassifier, second: NodeClassifier) -> bool:
    ours, theirs = (
        [hop for released in each.releases_.hops.values() for hop in released.hops]
        for each in (first, second)
    )
    weights = [
        torch.equal(value, second.modules_[phase].state_dict()[key])
        for phase, module in first.modules_.items()
        for key, value in module.state_dict().items()
    ]
    return all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs) and all(weights)


@pytest.mark.parametrize("run", RUNS)
def test_killed_after_any_step_the_result_is_the_undisturbed_one(graph, steps, tmp_path, run):
    undisturbed = model(Ledger.init(tmp_path / "other.sqlite"), run).fit(graph)
    names, steps.done = steps.done, []
    assert len(names) >= 1
    for kill in range(len(names)):
        ledger, folder = Ledger.init(tmp_path / f"{kill}.sqlite"), tmp_path / f"run {kill}"
        steps.done, steps.kill_after = [], kill
        checkpoint = Checkpoint(folder, ledger=ledger.path)
        with pytest.raises(KillError):
            model(ledger, run).fit(graph, checkpoint=checkpoint)
        checkpoint.close()
        steps.kill_after = None
        checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
        resumed = model(ledger, run).fit(graph, checkpoint=checkpoint)
        # Every step was done exactly once, the killed one not before the resume.
        assert sorted(steps.done) == sorted(names)
        assert same(undisturbed, resumed)
        assert resumed.repeat_scores_ == undisturbed.repeat_scores_
        charges = ledger.entries()
        assert len(charges) == (run in PAID_RUNS)
        assert all(charge.completed_at for charge in charges)
        checkpoint.remove()
        assert not folder.exists()


@pytest.mark.parametrize("run", PAID_RUNS)
def test_with_secret_noise_a_finished_release_is_kept_byte_for_byte(
    graph, steps, ledger, tmp_path, run
):
    secret = {"insecure_noise_seed": None}
    model(Ledger.init(tmp_path / "other.sqlite"), run, **secret).fit(graph)
    names, steps.done = steps.done, []
    folder = interrupted(graph, steps, ledger, tmp_path, run, kill=len(names) - 1, **secret)
    kept = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert len(kept) == len(names) - 1
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    model(ledger, run, **secret).fit(graph, checkpoint=checkpoint)
    assert steps.done == names
    assert {path: path.read_bytes() for path in kept} == kept


def shake_stream(secret, method_class, first_row, shape, scale):
    """Draw as versions before ChaCha20 did."""
    count = shape[0] * shape[1]
    bits = hashlib.shake_256(secret + b"block").digest(8 * count)
    words = np.frombuffer(bits, dtype="<u8")
    lower = special.ndtri(((words % 2**63).astype(np.float64) + 0.5) / 2**64)
    values = np.where(words >> 63, -lower, lower) * scale / GRID
    return torch.from_numpy((np.rint(values) * GRID).reshape(shape))


def test_a_run_that_began_with_the_stream_of_an_older_version_goes_on(
    graph, steps, ledger, tmp_path, monkeypatch
):
    secret = {"insecure_noise_seed": None}
    with monkeypatch.context() as older:
        older.setattr(noise_module, "_draw_on_grid", shake_stream)
        model(Ledger.init(tmp_path / "other.sqlite"), "gap edge", **secret).fit(graph)
        names, steps.done = steps.done, []
        folder = interrupted(graph, steps, ledger, tmp_path, "gap edge", kill=2, **secret)
    kept = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert {path.stem for path in kept} == {"network-encoder", "hop-1"}
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    resumed = model(ledger, "gap edge", **secret).fit(graph, checkpoint=checkpoint)
    assert steps.done == names
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(ledger.entries()) == 1
    first = next(iter(resumed.releases_.hops.values())).hops
    assert len(first) >= 2


@pytest.mark.parametrize("run", NODE_RUNS)
def test_killed_in_the_middle_of_private_training_nothing_of_it_stays(
    graph, ledger, tmp_path, monkeypatch, run
):
    """Steps that nobody saw were not released, so all of them are drawn anew, on one charge."""
    folder, taken, kill = tmp_path / "run", [], 1
    real = trainer_module.PrivateStep._noised

    def noised(self, total):
        if len(taken) == kill:
            raise KillError
        taken.append(self.phase)
        return real(self, total)

    monkeypatch.setattr(trainer_module.PrivateStep, "_noised", noised)
    options = {"batch_size": 50, "insecure_noise_seed": None}
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    with pytest.raises(KillError):
        model(ledger, run, **options).fit(graph, checkpoint=checkpoint)
    checkpoint.close()
    assert not list(folder.glob("*.safetensors"))
    taken, kill = [], None
    resumed = model(ledger, run, **options)
    resumed.fit(graph, checkpoint=Checkpoint(folder, ledger=ledger.path, resume=True))
    events = resumed.card_.events
    assert len(taken) == sum(event.get("steps", 0) for event in events)
    assert len(ledger.entries()) == 1


def interrupted(
    graph, steps, ledger, tmp_path, run="label-gap edge", *, kill: int = 2, **options
) -> Path:
    """Return the folder of a run that was killed before a step."""
    folder = tmp_path / "run"
    steps.kill_after = kill
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    with pytest.raises(KillError):
        model(ledger, run, **options).fit(graph, checkpoint=checkpoint)
    checkpoint.close()
    steps.kill_after = None
    return folder


def test_neither_the_key_nor_the_fingerprint_nor_hop_zero_is_written(
    graph, steps, ledger, tmp_path
):
    estimator = model(ledger, "gap node")
    secrets = [key.derive("aggregation").secret for key in estimator._noise_keys()]
    secrets += [key.secret for key in estimator._noise_keys()]
    folder = interrupted(graph, steps, ledger, tmp_path, "gap node", kill=3)
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
def test_other_options_are_refused(graph, steps, ledger, tmp_path, change, message):
    folder = interrupted(graph, steps, ledger, tmp_path)
    with pytest.raises(InputError, match=message):
        model(ledger, **change).fit(
            graph, checkpoint=Checkpoint(folder, ledger=ledger.path, resume=True)
        )
    assert len(ledger.entries()) == 1


def test_another_reason_is_no_other_run(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path, reason="monthly report")
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    model(ledger, reason="after the power cut").fit(graph, checkpoint=checkpoint)
    assert [charge.reason for charge in ledger.entries()] == ["monthly report"]


@pytest.mark.parametrize("run", PAID_RUNS)
def test_another_graph_is_refused(graph, steps, ledger, tmp_path, run):
    folder = interrupted(graph, steps, ledger, tmp_path, run, kill=0)
    other = random_split(
        generate(num_nodes=300, mean_degree=6, num_features=4, num_classes=3, seed=1), seed=0
    )
    # As many nodes and the same price, so that only the ledger can tell.
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    with pytest.raises(PrivacyError, match="on another graph"):
        model(ledger, run).fit(other, checkpoint=checkpoint)


def test_another_ledger_is_refused(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path)
    other = Ledger.init(tmp_path / "other.sqlite")
    with pytest.raises(PrivacyError, match="another ledger"):
        model(other).fit(graph, checkpoint=Checkpoint(folder, ledger=other.path, resume=True))


def test_a_ledger_that_is_not_there_is_refused(graph, steps, ledger, tmp_path):
    folder, missing = interrupted(graph, steps, ledger, tmp_path), Ledger(tmp_path / "none.sqlite")
    with pytest.raises(InputError, match=r"none\.sqlite. does not exist"):
        model(missing).fit(graph, checkpoint=Checkpoint(folder, ledger=missing.path, resume=True))
    assert not missing.path.exists()


def test_a_copy_of_a_folder_cannot_use_the_charge_a_second_time(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path, insecure_noise_seed=None)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    model(ledger, insecure_noise_seed=None).fit(graph, checkpoint=checkpoint)
    with pytest.raises(PrivacyError, match="a copy of it went on"):
        model(ledger, insecure_noise_seed=None).fit(
            graph, checkpoint=Checkpoint(copy, ledger=ledger.path, resume=True)
        )


@pytest.mark.parametrize("run", PAID_RUNS)
def test_a_finished_run_that_was_not_saved_is_read_and_not_drawn(
    graph, steps, ledger, tmp_path, run
):
    folder = tmp_path / "run"
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    first = model(ledger, run, insecure_noise_seed=None).fit(graph, checkpoint=checkpoint)
    checkpoint.close()
    steps.done = []
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    again = model(ledger, run, insecure_noise_seed=None).fit(graph, checkpoint=checkpoint)
    # What learns from randomised edges is free, so it is not kept but learned again.
    assert steps.done == (["classifier"] if run == "sage edge" else [])
    assert same(first, again)
    assert len(ledger.entries()) == 1


def test_two_processes_cannot_go_on_with_one_run(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path)
    held = Checkpoint(folder, ledger=ledger.path, resume=True)
    held._acquire()
    with pytest.raises(InputError, match="another process"):
        model(ledger).fit(graph, checkpoint=Checkpoint(folder, ledger=ledger.path, resume=True))
    held.close()


def test_an_unfinished_run_is_not_overwritten(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path)
    with pytest.raises(InputError, match="--resume"):
        model(ledger).fit(graph, checkpoint=Checkpoint(folder, ledger=ledger.path))
    assert len(ledger.entries()) == 1


def test_nothing_to_resume_is_refused(graph, ledger, tmp_path):
    checkpoint = Checkpoint(tmp_path / "run", ledger=ledger.path, resume=True)
    with pytest.raises(InputError, match="must find an unfinished run"):
        model(ledger).fit(graph, checkpoint=checkpoint)
    assert ledger.entries() == []


def test_a_damaged_file_is_named_and_not_drawn_again(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path, kill=3)
    for name in ("hop-1.safetensors", "network-encoder.safetensors", "journal.json"):
        copy = Path(shutil.copytree(folder, tmp_path / f"copy of {name}"))
        raw = bytearray((copy / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (copy / name).write_bytes(raw)
        checkpoint = Checkpoint(copy, ledger=ledger.path, resume=True)
        with pytest.raises(DataError, match=name):
            model(ledger).fit(graph, checkpoint=checkpoint)
        checkpoint.close()
    (folder / "hop-1.safetensors").unlink()
    with pytest.raises(DataError, match="hop-1"):
        model(ledger).fit(graph, checkpoint=Checkpoint(folder, ledger=ledger.path, resume=True))


def test_over_budget_leaves_no_folder(graph, ledger, tmp_path):
    budget = {"level": "edge", "relation": "undirected", "epsilon": 0.1, "delta": 1e-5}
    ledger.grant("everybody", People.of(graph), **budget)
    with pytest.raises(PrivacyError):
        model(ledger).fit(graph, checkpoint=Checkpoint(tmp_path / "run", ledger=ledger.path))
    assert not (tmp_path / "run").exists()


def test_methods_that_do_not_keep_their_releases_refuse_a_checkpoint(graph, tmp_path):
    class Forgetful(MLP):
        method = "forgetful"
        keeps_releases = False

    checkpoint = Checkpoint(tmp_path / "run", ledger=None)
    with pytest.raises(InputError, match="None for forgetful"):
        Forgetful(level="node", epochs=1).fit(graph, checkpoint=checkpoint)


@pytest.mark.parametrize("run", RUNS)
def test_too_little_memory_is_refused_before_the_charge(graph, ledger, tmp_path, monkeypatch, run):
    monkeypatch.setattr(estimator_module, "free_memory", lambda device: 1000)
    with pytest.raises(UnavailableError, match=r"free memory; nothing was charged"):
        model(ledger, run).fit(graph, checkpoint=Checkpoint(tmp_path / "run", ledger=ledger.path))
    assert ledger.entries() == []
    assert not (tmp_path / "run").exists()


def test_the_index_says_what_is_finished(graph, steps, ledger, tmp_path):
    folder = interrupted(graph, steps, ledger, tmp_path, kill=3)
    content = json.loads((folder / "journal.json").read_text())
    before, last = content["states"]
    assert sorted(before["finished"]) == ["network-encoder", "network-shallow"]
    assert sorted(last["finished"]) == ["hop-1", "network-encoder", "network-shallow"]
    assert last["about"]["params"]["epsilon"] == 1.0


@pytest.mark.parametrize("moment", ["before the index", "before the claim", "before the name"])
def test_killed_while_a_hop_is_written_one_draw_of_it_survives(
    graph, steps, ledger, tmp_path, monkeypatch, moment
):
    folder, options = tmp_path / "run", {"insecure_noise_seed": None}
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    write, claim, states = checkpoint._write_index, Ledger.claim, []

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

    monkeypatch.setattr(checkpoint, "_write_index", kill_before_writing)
    monkeypatch.setattr(Ledger, "claim", kill_around_the_claim)
    with pytest.raises(KillError):
        model(ledger, "gap edge", **options).fit(graph, checkpoint=checkpoint)
    checkpoint.close()
    monkeypatch.setattr(Ledger, "claim", claim)
    written = (folder / "hop-1.part").read_bytes()
    steps.done = []
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    model(ledger, "gap edge", **options).fit(graph, checkpoint=checkpoint)
    is_kept = (folder / "hop-1.safetensors").read_bytes() == written
    assert is_kept == (moment == "before the name")
    assert ("hop 1" in steps.done) == (moment != "before the name")
    assert not list(folder.glob("*.part"))
    assert len(ledger.entries()) == 1


def with_strangers() -> Graph:
    """People whose adjacency lists name others without a record."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=300)
    graph = Graph.from_arcs(
        np.repeat(np.arange(300), 20),
        rng.integers(300, size=6000),
        num_nodes=300,
        features=np.eye(2)[labels] + rng.normal(size=(300, 2)),
        labels=labels,
        dangling={node: rng.integers(1000, 1040, 2) for node in range(0, 300, 3)},
        directed=True,
    )
    return random_split(graph, seed=0)


# Kills between the hops, before DP-SGD, and not at all.
@pytest.mark.parametrize("kill", [1, 2, None])
def test_rows_of_people_who_only_stand_in_adjacency_lists_are_not_written(
    steps, ledger, tmp_path, kill
):
    graph = with_strangers()
    options = {"epsilon": 64.0, "epochs": 2, "ledger": ledger.path}
    undisturbed = NodeLabelGAP(**options, insecure_noise_seed=2).fit(graph)
    names, steps.done = steps.done, []
    assert names == ["hop 1", "hop 2", "classifier"]
    folder, steps.kill_after = tmp_path / "run", kill
    estimator = NodeLabelGAP(**options, insecure_noise_seed=2)
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    if kill is None:
        estimator.fit(graph, checkpoint=checkpoint)
    else:
        with pytest.raises(KillError):
            estimator.fit(graph, checkpoint=checkpoint)
    checkpoint.close()
    written = [load_file(path) for path in folder.glob("*hop*.safetensors")]
    # The second hop reads those rows: without them neither hop is finished.
    assert len(written) == (0 if kill == 1 else 1)
    for hops in written:
        assert {hop.shape[1] for hop in hops.values()} == {graph.num_nodes}
    steps.kill_after, steps.done = None, []
    resumed = NodeLabelGAP(**options, insecure_noise_seed=2)
    resumed.fit(graph, checkpoint=Checkpoint(folder, ledger=ledger.path, resume=True))
    assert steps.done == {1: names, 2: names[2:], None: []}[kill]
    assert same(resumed, undisturbed)
    assert len(ledger.entries()) == 2
