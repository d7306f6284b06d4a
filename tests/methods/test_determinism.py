"""On a CPU the same seeds on as many threads give the same model, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gapgnn import GAP, MLP, SAGE, Ledger
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import random_split

METHODS = {
    "features": (GAP, {"messages": "features"}),
    "labels": (GAP, {}),
    "fast noise": (GAP, {"messages": "features", "noise": "fast"}),
    "node level": (GAP, {"level": "node", "epsilon": 8.0}),
    "no batch norm": (GAP, {"messages": "features", "batch_norm": False}),
    "ten wide": (GAP, {"hidden": 10}),
    "attention": (GAP, {"combine": "attention"}),
    "tanh": (GAP, {"messages": "features", "activation": "tanh"}),
    "gelu": (GAP, {"messages": "features", "activation": "gelu"}),
    "SAGE": (SAGE, {"level": "none"}),
    "SAGE, ten wide": (SAGE, {"level": "none", "hidden": 10}),
    "MLP": (MLP, {"level": "none"}),
}
# On two threads the loops are torch's; one of each kind of training is enough by default.
ON_TWO = ("features", "node level", "SAGE", "MLP")
CASES = [(method, 1) for method in METHODS] + [
    pytest.param(method, 2, marks=[] if method in ON_TWO else [pytest.mark.slow])
    for method in METHODS
]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_split(social_graph(num_nodes=4_001, mean_degree=20), seed=0)


@pytest.fixture(autouse=True)
def own_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def posteriors(method: str, graph: Graph, folder: Path, *, threads: int, repeats: int):
    torch.set_num_threads(threads)
    kind, options = METHODS[method]
    model = kind(
        epochs=3,
        seed=1,
        insecure_noise_seed=2,
        repeats=repeats,
        device="cpu",
        ledger=Ledger.init(folder / f"{threads} {repeats}.sqlite").path,
        **options,
    )
    return model.fit(graph).predict_proba(graph)


@pytest.mark.parametrize(("method", "threads"), CASES)
def test_the_same_seeds_and_threads_give_the_same_bits(method, threads, graph, tmp_path):
    one, other = (
        posteriors(method, graph, tmp_path / run, threads=threads, repeats=1) for run in "ab"
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize(("method", "threads"), CASES)
def test_the_number_of_repeats_changes_rounding_at_most(method, threads, graph, tmp_path):
    """No bit on one thread; several threads share out more repeats otherwise."""
    alone, together = (
        posteriors(method, graph, tmp_path, threads=threads, repeats=repeats) for repeats in (1, 3)
    )
    if threads == 1 and method != "node level":
        assert np.array_equal(alone, together)
    else:
        # A batch of DP-SGD is filled up to the widest of all replicas, which moves the rounding.
        np.testing.assert_allclose(alone, together, rtol=1e-2, atol=1e-4)
