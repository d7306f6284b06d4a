"""On a CPU the same seeds on as many threads give the same model, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, Ledger, NodeLabelGAP, ProGAP
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import random_split

pytestmark = pytest.mark.gate

METHODS = {
    "features": (GAP, {}),
    "progressive": (ProGAP, {}),
    "labels": (LabelGAP, {}),
    "fast noise": (GAP, {"noise": "fast"}),
    "node level": (NodeLabelGAP, {"epsilon": 8.0}),
    "no batch norm": (GAP, {"batch_norm": False}),
    "ten wide": (LabelGAP, {"hidden": 10}),
    "attention": (LabelGAP, {"combine": "attention"}),
    "tanh": (GAP, {"activation": "tanh"}),
    "gelu": (GAP, {"activation": "gelu"}),
    "GraphSAGE": (GraphSAGE, {"level": "none"}),
    "GraphSAGE, ten wide": (GraphSAGE, {"level": "none", "hidden": 10}),
    "MLP": (MLP, {"level": "none"}),
}
# By default one of each sort of training, and one of each sort of layer on one thread: on two the
# loops are torch's.
AGAIN = ("gelu", "GraphSAGE, ten wide")
ON_TWO = ("features", "node level", "GraphSAGE")
CASES = [
    pytest.param((method, threads), marks=[] if is_default else [pytest.mark.slow])
    for method in METHODS
    for threads, is_default in ((1, method not in AGAIN), (2, method in ON_TWO))
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request) -> tuple[str, int]:
    return request.param


# On two threads there must be rows enough to be shared out.
NODES = {1: 1_201, 2: 4_001}


@pytest.fixture(scope="module")
def graph(case) -> Graph:
    _, threads = case
    return random_split(social_graph(num_nodes=NODES[threads], mean_degree=20), seed=0)


@pytest.fixture(scope="module")
def alone(case, graph, tmp_path_factory) -> np.ndarray:
    """One repeat, trained once for all that is compared with it."""
    return posteriors(case, graph, tmp_path_factory.mktemp("alone"), repeats=1)


def posteriors(case: tuple[str, int], graph: Graph, folder: Path, *, repeats: int) -> np.ndarray:
    method, threads = case
    method_class, options = METHODS[method]
    seed = {} if options.get("level") == "none" else {"insecure_noise_seed": 2}
    model = method_class(
        # Threads wait for each other in every loop, for long where there are fewer cores.
        epochs=2 if threads == 1 else 1,
        seed=1,
        **seed,
        repeats=repeats,
        device="cpu",
        ledger=Ledger.init(folder / "ledger.sqlite").path,
        **options,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return model.fit(graph).predict_proba(graph)
    finally:
        torch.set_num_threads(before)


def test_the_same_seeds_and_threads_give_the_same_bits(case, alone, graph, tmp_path):
    assert np.array_equal(alone, posteriors(case, graph, tmp_path, repeats=1))


def test_the_number_of_repeats_changes_rounding_at_most(case, alone, graph, tmp_path):
    """Sparse products sum in an order that may depend on their width, and so on the repeats."""
    together = posteriors(case, graph, tmp_path, repeats=3)
    np.testing.assert_allclose(alone, together, rtol=1e-2, atol=1e-4)
