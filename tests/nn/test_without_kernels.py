"""With every kernel off, the layers alone train every method at every level."""

from __future__ import annotations

import numpy as np
import pytest
from methodgraphs import small_graph

from gapgnn import (
    GAP,
    MLP,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
)
from gapgnn.nn.kernels import kernels_off

pytestmark = pytest.mark.gate

PRIVATE = {"level": "node", "epsilon": 16.0, "batch_size": 60}
TWO_HOPS = {"hops": 2}
# Method, options, and whether so few nodes and epochs are enough to be right in most cases.
CASES = {
    "GAP, none": (GAP, {**TWO_HOPS, "level": "none"}, True),
    "GAP, edge": (GAP, {**TWO_HOPS, "epsilon": 8.0}, True),
    "GAP, node": (GAP, {**TWO_HOPS, **PRIVATE, "max_degree": 6}, False),
    "ProGAP, none": (ProGAP, {**TWO_HOPS, "level": "none"}, True),
    "ProGAP, edge": (ProGAP, {**TWO_HOPS, "epsilon": 8.0}, True),
    "ProGAP, node": (ProGAP, {**TWO_HOPS, **PRIVATE, "max_degree": 6}, False),
    "LabelGAP, none": (LabelGAP, {"level": "none"}, True),
    "LabelGAP, edge": (LabelGAP, {"epsilon": 8.0}, True),
    "LabelGAP without cross-fitting, edge": (LabelGAP, {"epsilon": 8.0, "folds": 0}, True),
    "NodeLabelGAP, node": (NodeLabelGAP, PRIVATE, False),
    "NodeLabelGAP, own record": (NodeLabelGAP, {**PRIVATE, "own": "record"}, False),
    "NeighborVote, edge": (NeighborVote, {"level": "edge"}, True),
    "NeighborVote, node": (NeighborVote, {"level": "node", "epsilon": 16.0}, False),
    "GraphSAGE, none": (GraphSAGE, {"level": "none"}, True),
    "GraphSAGE, edge": (GraphSAGE, {"epsilon": 8.0}, False),
    "GraphSAGE, node": (GraphSAGE, {**PRIVATE, "max_degree": 4}, False),
    "MLP, edge": (MLP, {"level": "edge"}, True),
    "MLP, node": (MLP, PRIVATE, False),
}


def trained(name, graph, folder, device):
    method, options, _ = CASES[name]
    epochs = {} if options.get("level") == "node" and method is NeighborVote else {"epochs": 30}
    ledger = Ledger.init(folder / "ledger.sqlite").path
    noise = {"insecure_noise_seed": 7} if "epsilon" in options else {}
    model = method(**epochs, **noise, **options, seed=1, ledger=ledger, device=device)
    return model.fit(graph)


@pytest.fixture(scope="module")
def graph():
    return small_graph(num_nodes=500)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_method_trains(name, device, graph, tmp_path):
    with kernels_off():
        model = trained(name, graph, tmp_path, device)
        probabilities = model.predict_proba(graph)
    assert np.isfinite(probabilities).all()
    assert probabilities.shape == (500, 3)
    if CASES[name][2]:
        assert model.repeat_scores_[0] > 0.5
