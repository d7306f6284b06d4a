"""Killed workers and drivers: the result is the undisturbed one, and nothing is paid twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gapgnn.cluster import RayCluster
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.store.build import store_graph
from gapgnn.graph.store.graph import open_store
from gapgnn.privacy.ledger.ledger import Ledger
from gapgnn.privacy.mechanisms import PrivateAggregation, hop_mechanisms, row_normalise
from gapgnn.rng import NoiseKey

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.gate,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def graph():
    return generate(num_nodes=60_000, mean_degree=60, num_features=8, num_classes=3)


@pytest.fixture(scope="module")
def store(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "store"
    store_graph(graph, folder, parts=14)
    return folder


def mechanism(graph) -> PrivateAggregation:
    return hop_mechanisms(
        graph,
        level="node",
        relation="add-remove",
        noise_multiplier=1.0,
        max_degree=10,
        keys=[NoiseKey.insecure(0)],
    )[0]


def workers() -> list[int]:
    """Return the processes that work on a part at this moment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::release_part" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_killing_workers_in_the_middle_of_a_hop_changes_nothing(graph, store, two_nodes):
    rows = row_normalise(torch.randn(graph.num_nodes, 16, generator=torch.manual_seed(0)))
    undisturbed = mechanism(graph).hop(rows, 1)
    killed: list[int] = []
    done: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.is_set() and len(killed) < 3:
            for process in workers():
                if process not in killed and done:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                    break
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    with RayCluster(two_nodes[0], progress=lambda part, _: done.append(part)) as cluster:
        stored = open_store(store).with_executor(cluster)
        killer.start()
        try:
            disturbed = mechanism(stored).hop(rows, 1)
        finally:
            over.set()
            killer.join()
    assert killed, "no worker was caught at work"
    assert torch.equal(disturbed, undisturbed)


def train(store: Path, folder: Path, *words: str) -> list[str]:
    Ledger.init(folder / "ledger.sqlite")
    return [
        *(sys.executable, "-c", "from gapgnn.cli.main import run; run()"),
        *("train", "gap", "--store", str(store)),
        *("--out", str(folder / "model"), "--ledger", str(folder / "ledger.sqlite")),
        *("--hops", "3", "--epochs", "5", "--json"),
        *words,
    ]


def run(words: list[str]) -> dict:
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def hops_of(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "model" / "hops").glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("ray", [(), ("--ray", "local")], ids=["here", "ray"])
@pytest.mark.parametrize("after", ["hop-1", "hop-2"])
def test_a_killed_driver_goes_on_from_its_last_finished_hop(store, tmp_path, ray, after):
    seed = ("--insecure-noise-seed", "1")
    (tmp_path / "undisturbed").mkdir()
    expected = run(train(store, tmp_path / "undisturbed", *seed))
    folder = tmp_path / "killed"
    folder.mkdir()
    driver = subprocess.Popen(train(store, folder, *seed, *ray), stderr=subprocess.DEVNULL)
    hop = folder / "model.unfinished" / f"{after}.safetensors"
    while not hop.exists() and driver.poll() is None:
        time.sleep(0.005)
    driver.kill()
    driver.wait()
    assert not (folder / "model").exists(), "the driver was too fast to be killed"
    kept = hop.read_bytes()
    assert len(Ledger(folder / "ledger.sqlite").entries()) == 1
    again = subprocess.run(
        train(store, folder, *seed, *ray), capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert "--resume" in again.stderr
    found = run(train(store, folder, *seed, *ray, "--resume"))
    assert len(Ledger(folder / "ledger.sqlite").entries()) == 1
    assert found["test_accuracy"] == expected["test_accuracy"]
    ours, theirs = hops_of(folder), hops_of(tmp_path / "undisturbed")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    index = int(after.removeprefix("hop-"))
    assert kept.endswith(ours[f"hop{index}"].numpy().tobytes())
    assert not (folder / "model.unfinished").exists()


def test_with_secret_noise_a_resumed_model_holds_the_hops_of_the_first_start(store, tmp_path):
    driver = subprocess.Popen(train(store, tmp_path), stderr=subprocess.DEVNULL)
    hop = tmp_path / "model.unfinished" / "hop-1.safetensors"
    while not hop.exists() and driver.poll() is None:
        time.sleep(0.005)
    driver.kill()
    driver.wait()
    kept = hop.read_bytes()
    run(train(store, tmp_path, "--resume"))
    assert kept.endswith(hops_of(tmp_path)["hop1"].numpy().tobytes())
    (charge,) = Ledger(tmp_path / "ledger.sqlite").entries()
    assert charge.completed_at is not None
