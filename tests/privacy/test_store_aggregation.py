"""Hops over a graph on disk are those in memory, bit for bit, however it is cut into parts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_strategies import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import IntegrityError, PrivacyError
from gapgnn.graph.datasets.synthetic import generate, social_graph
from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.graph.store.arcs import find_limits
from gapgnn.graph.store.build import store_graph
from gapgnn.graph.store.graph import InProcess, open_store
from gapgnn.graph.transforms import random_split
from gapgnn.methods import GAP, MLP, LabelGAP, NodeLabelGAP
from gapgnn.privacy.ledger.ledger import Ledger
from gapgnn.privacy.mechanisms import (
    backends,
    hop_mechanisms,
    row_normalise,
)
from gapgnn.privacy.mechanisms.backends import BlockRelease, PartFiles, release_part
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.rng import NoiseKey
from gapgnn.training.inputs import FeatureInputs

PARTS = (1, 7, 64)


def directed_graph() -> Graph:
    """More nodes than one block of noise, a hub, dangling entries, ids in no order."""
    rng = np.random.default_rng(0)
    sources = np.concatenate([rng.integers(5_000, size=60_000), np.full(3_000, 17)])
    targets = np.concatenate([rng.integers(5_000, size=60_000), np.arange(3_000)])
    return Graph.from_arcs(
        sources,
        targets,
        num_nodes=5_000,
        features=rng.normal(size=(5_000, 6)),
        labels=rng.integers(3, size=5_000),
        ids=rng.permutation(5_000) * 3,
        directed=True,
        dangling={node: [-1, -2] for node in range(0, 5_000, 7)},
    )


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Graphs in memory and, for each, its stores by number of parts."""
    folder = tmp_path_factory.mktemp("stores")
    made = {
        "sparse": social_graph(num_nodes=5_000, mean_degree=14),
        "dense": generate(num_nodes=5_000, mean_degree=14, num_features=6, num_classes=3),
        "directed": directed_graph(),
    }
    found = {}
    for name, graph in made.items():
        found[name] = {0: random_split(graph, seed=0)}
        for parts in PARTS:
            store_graph(graph, folder / f"{name}-{parts}", parts=parts)
            found[name][parts] = random_split(open_store(folder / f"{name}-{parts}"), seed=0)
    return found


def hops(graph, **options):
    chosen = {"level": "edge", "relation": "undirected", "noise_multiplier": 0.5, **options}
    keys = [NoiseKey.insecure(seed) for seed in range(2)]
    rows = torch.randn(2, graph.num_nodes, 5, generator=torch.Generator().manual_seed(1))
    mechanism = hop_mechanisms(graph, keys=keys, **chosen)[0]
    normalise = options.get("noise") != "fast"
    first = mechanism.hop(row_normalise(rows), 1, normalise=normalise)
    return [first, mechanism.hop(row_normalise(first), 2)]


CASES = {
    "edge": ("sparse", {}),
    "fast": ("sparse", {"noise": "fast"}),
    "none": ("dense", {"level": "none", "relation": "none", "noise_multiplier": 0.0}),
    "directed": ("directed", {"relation": "directed"}),
    "node": ("dense", {"level": "node", "relation": "add-remove", "max_degree": 5}),
    "replace": ("directed", {"level": "node", "relation": "replace", "max_degree": 4}),
    "uncut": ("dense", {"level": "node", "relation": "add-remove", "max_degree": 4_000}),
}


# By default each sort of noise and each way to cut; `replace` has the directed graph, too.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case in ("directed", "uncut")))
        for case in CASES
    ],
)
def test_hops_are_those_in_memory_for_any_number_of_parts(stores, case):
    name, options = CASES[case]
    here = hops(stores[name][0], **options)
    for parts in PARTS:
        there = hops(stores[name][parts], **options)
        for ours, theirs in zip(here, there, strict=True):
            assert torch.equal(ours, theirs), parts
        assert "indices" not in stores[name][parts].__dict__, "arcs were loaded into memory"


@pytest.mark.parametrize("entries", [1, 50_000])
def test_hops_do_not_depend_on_how_much_is_read_at_a_time(stores, monkeypatch, entries):
    store, options = stores["dense"][1], CASES["node"][1]
    at_once = hops(store, **options)
    monkeypatch.setattr(backends, "RUN_ENTRIES", entries)
    for ours, theirs in zip(at_once, hops(store, **options), strict=True):
        assert torch.equal(ours, theirs)


def fitted(method_class, graph, **options):
    return method_class(insecure_noise_seed=4, epochs=2, repeats=2, **options).fit(graph)


@pytest.mark.parametrize(
    ("name", "method_class", "options"),
    [
        ("sparse", GAP, {"level": "edge"}),
        ("sparse", NodeLabelGAP, {"hop_share": 0.5}),
        pytest.param("dense", LabelGAP, {"level": "edge", "hops": 2}, marks=pytest.mark.slow),
        ("dense", GAP, {"level": "node", "max_degree": 6, "noise": "fast"}),
        pytest.param("directed", GAP, {"level": "edge", "batch_size": 512}, marks=pytest.mark.slow),
    ],
)
def test_a_model_trained_on_a_store_is_the_one_trained_in_memory(
    stores, name, method_class, options
):
    """Every batch, weight and hop: Poisson sampling over row groups is Poisson over all rows."""
    here, there = (fitted(method_class, stores[name][parts], **options) for parts in (0, 7))
    assert there.repeat_scores_ == here.repeat_scores_
    ours, theirs = here.releases_.training(), there.releases_.training()
    assert np.array_equal(ours.ids, theirs.ids)
    for first, second in zip(ours.hops, theirs.hops, strict=True):
        assert torch.equal(first, second)
    for phase, module in here.modules_.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, there.modules_[phase].state_dict()[key]), (phase, key)


def test_features_of_a_store_are_shared_with_the_file_and_not_copied(stores):
    features = FeatureInputs(stores["dense"][7], torch.device("cpu"))
    assert np.shares_memory(features.all().numpy(), stores["dense"][7].features)
    sparse = FeatureInputs(stores["sparse"][7], torch.device("cpu")).all()
    for tensor, array in (
        (sparse._csr.values(), stores["sparse"][7].features.data),
        (sparse._csr.col_indices(), stores["sparse"][7].features.indices),
    ):
        assert np.shares_memory(tensor.numpy(), array)
    assert sparse._padded is None


def test_a_budget_counts_for_the_graph_in_memory_and_on_disk(stores, tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite").path
    model = LabelGAP(epochs=2, ledger=ledger).fit(stores["dense"][7])
    before = len(Ledger(ledger).entries())
    assert np.array_equal(model.predict(stores["dense"][0]), model.predict(stores["dense"][1]))
    assert len(Ledger(ledger).entries()) == before == 1


def test_an_unknown_store_is_charged_once_for_prediction(stores, tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite").path
    model = GAP(epochs=2, ledger=ledger).fit(stores["dense"][0])
    other = generate(num_nodes=300, mean_degree=8, num_features=6, num_classes=3, seed=5)
    other = other._replace(ids=np.arange(300) + 10**6)
    store_graph(other, tmp_path / "other", parts=3)
    first = model.predict(open_store(tmp_path / "other"))
    assert np.array_equal(first, model.predict(open_store(tmp_path / "other")))
    assert len(Ledger(ledger).entries()) == 2


def test_methods_without_edges_never_look_at_them(stores):
    graph = stores["dense"][7].with_executor(None)
    assert len(MLP(epochs=2).fit(graph).predict(graph)) == graph.num_nodes
    assert "indices" not in graph.__dict__


def test_a_part_released_again_gives_the_same_bytes(stores):
    graph = stores["dense"][7]
    block = BlockRelease(NoiseSource(NoiseKey.fresh()), 1.0, 1, True)
    values = np.zeros((graph.num_nodes, 3))
    files = [PartFiles(graph.in_part(3), graph.digest(3))]
    task = (files, block, values)
    assert np.array_equal(release_part(*task), release_part(*task))
    other = BlockRelease(NoiseSource(NoiseKey.fresh()), 1.0, 1, True)
    assert not np.array_equal(release_part(*task), release_part(files, other, *task[2:]))


@pytest.mark.parametrize("way", ["arriving", "leaving"])
def test_a_copy_of_a_part_that_is_not_the_stored_one_is_refused(stores, tmp_path, way):
    """A worker of a cluster may have a copy that nobody has verified."""
    graph = stores["dense"][7]
    arriving, leaving = graph.in_part(3), list(graph.out_parts())[3]
    known = (arriving, graph.digest(3), (leaving, graph.digest(3, leaving=True)))
    block = BlockRelease(NoiseSource(NoiseKey.fresh()), 1.0, 1, True)
    values = np.zeros((graph.num_nodes, 3))
    release_part([PartFiles(*known)], block, values)
    part = arriving if way == "arriving" else leaving
    copy = replace(part, path=Path(shutil.copy(part.path, tmp_path / "copy.parquet")))
    wrong = (copy, "0" * 64, known[2]) if way == "arriving" else (*known[:2], (copy, "0" * 64))
    with pytest.raises(IntegrityError):
        release_part([PartFiles(*wrong)], block, values)


class _Careless(InProcess):
    """An executor that loses, repeats or cuts results."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def run(self, function, tasks, shared, files):
        results = list(super().run(function, tasks, shared, files))
        if self.how == "lost":
            return results[1:]
        if self.how == "repeated":
            return [*results, results[0]]
        return [(place, result[:-1]) for place, result in results]


@pytest.mark.parametrize("how", ["lost", "repeated", "cut"])
def test_parts_that_are_lost_repeated_or_cut_are_noticed(stores, how):
    graph = stores["dense"][7].with_executor(_Careless(how))
    with pytest.raises(PrivacyError, match="must be released"):
        hops(graph)


# Adjacency lists cut to D entries.


@settings(max_examples=15, deadline=None)
@given(graphs(), st.integers(1, 4), st.integers(1, 8))
def test_the_cut_is_the_one_in_memory(graph, limit, parts):
    key = NoiseKey.insecure(limit)
    lists = bound_out_degrees(graph, limit, key)
    owners = np.repeat(np.arange(graph.num_nodes), np.diff(lists.indptr))
    kept = sorted(zip(owners.tolist(), lists.indices.tolist(), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        store_graph(graph, Path(scratch, "store"), parts=min(parts, graph.num_nodes))
        found = open_store(Path(scratch, "store"))
        limits = find_limits(found, limit, key)
        arcs = []
        for part in range(found.num_parts):
            for block in found.in_part(part).blocks():
                cut = limits.cut(block)
                rows = np.repeat(np.arange(cut.first, cut.last), np.diff(cut.pointers))
                arcs += zip(cut.entries.tolist(), rows.tolist(), strict=True)
    assert sorted(arcs) == kept


@pytest.mark.parametrize("kept", [1, 2**62 + 1, 2**63 + 2**62])
def test_equal_hashes_are_settled_as_in_memory(stores, monkeypatch, kept):
    """With a hash of a few bits many entries tie, and the smaller target word decides."""
    from gapgnn.graph import degree
    from gapgnn.graph.store import arcs

    real = degree.pair_hashes

    def coarse(owners, entrants):
        return real(owners, entrants) & np.uint64(kept)

    monkeypatch.setattr(degree, "pair_hashes", coarse)
    monkeypatch.setattr(arcs, "pair_hashes", coarse)
    options = {"level": "node", "relation": "add-remove", "max_degree": 3}
    graphs = {parts: stores["directed"][parts] for parts in (0, 7)}
    here, there = (hops(graph, **options) for graph in graphs.values())
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
