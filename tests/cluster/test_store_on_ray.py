"""A hop on a cluster is the hop in memory, and the key stays out of files."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from suited import suited

from gapgnn.cluster import RayCluster
from gapgnn.errors import DataError
from gapgnn.graph import csr
from gapgnn.graph.datasets.load import load_dataset, local_status
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.degree import split_key
from gapgnn.graph.store.build import store_graph
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.transforms import join_edge_types, random_split
from gapgnn.methods import GAP, LabelGAP, NeighborVote, NodeLabelGAP
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.rng import NoiseKey

pytestmark = [
    pytest.mark.gate,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def graph():
    return random_split(
        generate(num_nodes=5_000, mean_degree=20, num_features=8, num_classes=3), seed=0
    )


@pytest.fixture(scope="module")
def store(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "store"
    store_graph(graph, folder, parts=7)
    return folder


@pytest.fixture(scope="module")
def cluster(two_nodes):
    """Connected once: every connection has workers of its own, and each takes seconds to start."""
    with RayCluster(two_nodes[0]) as connected:
        yield connected


def hops(graph, key: NoiseKey, *, level: str = "edge", count: int = 2) -> list[torch.Tensor]:
    node = level == "node"
    mechanism = hop_mechanisms(
        graph,
        level=level,
        relation="add-remove" if node else "undirected",
        noise_multiplier=1.0,
        max_degree=10 if node else None,
        keys=[key],
    )[0]
    rows = row_normalise(torch.randn(graph.num_nodes, 4, generator=torch.manual_seed(0)))
    return mechanism.run(rows, count)


def test_weights_and_edge_types_on_a_cluster_equal_those_in_memory(graph, cluster, tmp_path):
    shares = (np.arange(graph.num_nodes) % 257) / 256
    sources = csr.sources(graph.indptr, np.int64)
    heavy = graph._replace(weights=np.minimum(shares[sources], shares[graph.indices]))
    both = join_edge_types({"calls": heavy, "visits": graph})
    store_graph(both, tmp_path / "store", parts=5)
    key = NoiseKey.fresh()
    stored = open_store(tmp_path / "store").with_executor(cluster)
    for level in ("edge", "node"):
        for here, there in zip(both.edge_types, stored.edge_types, strict=True):
            near, far = (hops(one, key, level=level) for one in (here, there))
            assert all(torch.equal(a, b) for a, b in zip(near, far, strict=True))
    here, there = (total(one, key) for one in (both, stored))
    assert torch.equal(here, there)


def total(graph, key: NoiseKey) -> torch.Tensor:
    """Return the first hop of the union of edge types."""
    mechanism = hop_mechanisms(
        graph,
        level="edge",
        relation="undirected",
        noise_multiplier=1.0,
        keys=[key],
        with_total=True,
    )[-1]
    rows = row_normalise(torch.randn(graph.num_nodes, 4, generator=torch.manual_seed(0)))
    return mechanism.hop(rows, 1)


def assert_unwritten(session: Path, *secrets: bytes) -> None:
    """Look for secrets, raw or written in digits, in all files of a Ray session."""
    found = [path for path in session.rglob("*") if path.is_file()]
    assert found
    for path in found:
        content = path.read_bytes()
        for secret in secrets:
            for written in (secret, secret.hex().encode(), base64.b64encode(secret)[:-2]):
                assert written not in content, path


def test_two_nodes_give_the_hops_in_memory_and_never_write_the_key(
    graph, store, two_nodes, cluster
):
    key = NoiseKey.fresh()
    stored = open_store(store).with_executor(cluster)
    for level in ("edge", "node"):
        there = hops(stored, key, level=level)
        here = hops(graph, key, level=level)
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert_unwritten(two_nodes[1], key.secret, split_key(key.derive("degree"))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "own"),
    [
        (LabelGAP, {"level": "edge"}),
        (GAP, {"level": "edge"}),
        (GAP, {"level": "node", "max_degree": 10}),
    ],
)
def test_a_model_trained_on_two_nodes_is_the_one_trained_here(
    graph, store, two_nodes, cluster, method, own
):
    options = {**own, "epochs": 2, "insecure_noise_seed": 3}
    stored = random_split(open_store(store).with_executor(cluster), seed=0)
    there = method(**options).fit(stored)
    here = method(**options).fit(graph)
    assert here.repeat_scores_ == there.repeat_scores_
    near, far = (model.releases_.training().hops for model in (here, there))
    assert all(torch.equal(a, b) for a, b in zip(near, far, strict=True))
    keys = [key.derive("aggregation").secret for key in method(**options)._noise_keys()]
    assert_unwritten(two_nodes[1], *keys)


@pytest.mark.parametrize(
    ("method", "options", "own"),
    [
        pytest.param(NodeLabelGAP, {"own": "nothing"}, None, marks=pytest.mark.slow),
        (NodeLabelGAP, {"own": "features"}, None),
        pytest.param(NodeLabelGAP, {"own": "record"}, None, marks=pytest.mark.slow),
        pytest.param(NeighborVote, {}, None, marks=pytest.mark.slow),
        pytest.param(NeighborVote, {"level": "edge"}, None, marks=pytest.mark.slow),
        pytest.param(LabelGAP, {"level": "edge", "hops": 2}, "record", marks=pytest.mark.slow),
    ],
    ids=["nothing", "features", "record", "vote", "vote-edge", "record-edge"],
)
def test_what_reads_its_own_person_is_the_same_on_two_nodes(
    graph, store, cluster, method, options, own
):
    shared = {"epsilon": 4.0, "epochs": 2, "insecure_noise_seed": 3}
    given = {"level": "node", **options}
    if method is NodeLabelGAP:
        given["hop_share"] = 0.5
    here = suited(method, shared, **given).fit(graph)
    stored = random_split(open_store(store).with_executor(cluster), seed=0)
    there = suited(method, shared, **given).fit(stored)
    far = there.predict_proba(stored, own=own)
    near = [one.hops for one in here.releases_.hops.values()]
    away = [one.hops for one in there.releases_.hops.values()]
    for some, others in zip(near, away, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
    np.testing.assert_array_equal(far, here.predict_proba(graph, own=own))


@pytest.mark.slow
@pytest.mark.dataset
@pytest.mark.parametrize(
    ("method", "level"), [(LabelGAP, "edge"), (NodeLabelGAP, "node"), (GAP, "edge"), (GAP, "node")]
)
def test_a_real_graph_has_one_accuracy_table_everywhere(cluster, tmp_path, method, level):
    """In memory, with 1, 7 and 64 parts, and with 7 parts on two nodes."""
    name = "facebook100/Cornell5"
    if not os.environ.get("GAPGNN_DATA") or local_status(name) == "not here":
        pytest.skip(f"needs {name} under GAPGNN_DATA")
    graph = load_dataset(name, split_seed=0)
    options = {"level": level, "epsilon": 8.0, "epochs": 5, "repeats": 2, "insecure_noise_seed": 1}
    here = method(**options).fit(graph)
    for parts in (1, 7, 64):
        store_graph(graph, tmp_path / str(parts), parts=parts)
    for parts, executor in ((1, None), (7, None), (64, None), (7, cluster)):
        stored = random_split(open_store(tmp_path / str(parts)), seed=0)
        stored = stored if executor is None else stored.with_executor(executor)
        there = method(**options).fit(stored)
        assert there.repeat_scores_ == here.repeat_scores_, (parts, executor)
        near, far = (model.releases_.training().hops for model in (here, there))
        assert all(torch.equal(a, b) for a, b in zip(near, far, strict=True)), parts


@pytest.mark.slow
def test_a_damaged_part_is_named_by_the_worker_that_reads_it(store, cluster, tmp_path):
    copy = Path(shutil.copytree(store, tmp_path / "store"))
    stored = open_store(copy, verify=False).with_executor(cluster)
    path = copy / "arcs-00003.parquet"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"arcs-00003\.parquet") as caught:
        hops(stored, NoiseKey.fresh(), count=1)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=r"arcs-00003\.parquet.* none of 2 has"):
        hops(stored, NoiseKey.fresh(), count=1)


class _TwoMachines:
    """Enough of Ray to ask two machines for their files."""

    def __init__(self, answers: dict[str, list[bool]]) -> None:
        self._answers = answers

    def nodes(self) -> list[dict]:
        gone = {"NodeID": "gone", "Alive": False}
        return [gone, *({"NodeID": name, "Alive": True} for name in self._answers)]

    def remote(self, function):
        return self

    def options(self, *, scheduling_strategy, **_):
        asked = scheduling_strategy.node_id
        return type("Question", (), {"remote": lambda self, files: asked})()

    def get(self, asked: list[str]) -> list[list[bool]]:
        return [self._answers[name] for name in asked]


def test_a_part_goes_to_a_machine_that_has_its_file():
    pytest.importorskip("ray")
    from gapgnn.cluster import _homes

    files = [Path("both"), Path("first"), Path("second")]
    a, b = "a" * 56, "b" * 56
    machines = _TwoMachines({a: [True, True, False], b: [True, False, True]})
    both, first, second = (next(home) for home in _homes(machines, files))
    assert both == "SPREAD"
    assert (first.node_id, first.soft) == (a, False)
    assert second.node_id == b
    with pytest.raises(DataError, match="'nowhere', which none of 2 has"):
        _homes(_TwoMachines({a: [False], b: [False]}), [Path("nowhere")])
