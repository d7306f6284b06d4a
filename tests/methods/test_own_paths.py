"""Own neighbours and degree-normalised messages give one answer in memory, on disk and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from methodgraphs import small_graph
from suited import suited

from gapgnn import Graph, LabelGAP, NeighborVote, NodeLabelGAP, random_split
from gapgnn.graph.store import open_store, store_graph

NODE = {"level": "node", "epsilon": 4.0, "epochs": 2, "batch_size": 50, "hop_share": 0.5}
# What is fitted, and what is chosen at prediction. The three of NodeLabelGAP on stores are in
# test_own.py.
CASES: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "nothing": (NodeLabelGAP, {**NODE, "own": "nothing"}, None),
    "features": (NodeLabelGAP, {**NODE, "own": "features"}, None),
    "record": (NodeLabelGAP, {**NODE, "own": "record"}, None),
    "vote at node level": (NeighborVote, {"level": "node", "epsilon": 2.0}, None),
    "vote at edge level": (NeighborVote, {"level": "edge", "epochs": 2}, None),
    "record at edge level": (LabelGAP, {"level": "edge", "epochs": 2, "hops": 2}, "record"),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph()


def fitted(name: str, graph: Graph, **more: Any) -> tuple[Any, np.ndarray]:
    """Return a model and its answers."""
    method, options, own = CASES[name]
    model = suited(method, {"insecure_noise_seed": 3}, **{**options, **more}).fit(graph)
    return model, model.predict_proba(graph, own=own)


def released(model: Any) -> tuple[torch.Tensor, ...]:
    found = model.releases_.hops.values()
    return next(iter(found)).hops if found else ()


@pytest.mark.gate
@pytest.mark.parametrize(
    "name", ["vote at node level", "vote at edge level", "record at edge level"]
)
def test_a_store_of_any_partition_answers_as_memory_does(name, graph, tmp_path):
    here, wanted = fitted(name, graph)
    for parts in (1, 7, 64):
        store_graph(graph, tmp_path / str(parts), parts=parts)
        stored = random_split(open_store(tmp_path / str(parts)), seed=0)
        there, answers = fitted(name, stored)
        pairs = zip(released(here), released(there), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
        np.testing.assert_array_equal(answers, wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_releases_what_the_cpu_releases(name, graph):
    """Labels travel as they are: the first hop owes nothing to a network, on either device."""
    here, near = fitted(name, graph, device="cpu", noise="safe")
    there, far = fitted(name, graph, device="cuda", noise="safe")
    pairs = list(zip(released(here), released(there), strict=True))
    assert len(pairs) == {"nothing": 2, "features": 2, "record": 1}.get(name, len(pairs))
    if CASES[name][1]["level"] == "node":
        assert torch.equal(pairs[0][0].cpu(), pairs[0][1].cpu())
    # What follows a network, or a softmax of released rows, agrees up to rounding of its inputs.
    agree = (near.argmax(axis=1) == far.argmax(axis=1)).mean()
    assert agree == 1.0 if name == "vote at node level" else agree > 0.9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_a_model_answers_alike_wherever_it_is_asked(name, graph, tmp_path):
    """Given one model and one release, only rounding is left."""
    model, wanted = fitted(name, graph, device="cpu")
    own = CASES[name][2]
    model.set_params(device="cuda")
    np.testing.assert_allclose(model.predict_proba(graph, own=own), wanted, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_a_store_on_a_gpu_answers_as_memory_does(name, graph, tmp_path):
    here, _ = fitted(name, graph, device="cuda", noise="safe")
    store_graph(graph, tmp_path / "store", parts=7)
    stored = random_split(open_store(tmp_path / "store"), seed=0)
    there, _ = fitted(name, stored, device="cuda", noise="safe")
    pairs = list(zip(released(here), released(there), strict=True))
    if CASES[name][1]["level"] == "node":
        assert torch.equal(pairs[0][0].cpu(), pairs[0][1].cpu())
