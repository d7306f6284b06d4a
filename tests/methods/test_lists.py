"""Sums over own neighbours are exact: no chunk, partition, device or way changes a bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gapgnn.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.methods import exact_sums, lists, sums_of_rows, sums_over_lists
from gapgnn.privacy.mechanisms import GRID

COUNT, WIDTH, REPEATS = 700, 5, 2
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


def graph_of(*, directed: bool, weighted: bool = False) -> Graph:
    rng = np.random.default_rng(3)
    arcs = rng.integers(COUNT, size=(9_000, 2))
    # Somebody lists nobody, and somebody nearly everybody.
    arcs = arcs[(arcs != 17).all(axis=1)]
    arcs[:650, 0] = 4
    weights = {"weights": rng.uniform(1, 9, len(arcs)), "weight_bounds": (1.0, 9.0)}
    return Graph.from_arcs(
        *arcs.T,
        num_nodes=COUNT,
        features=np.ones((COUNT, 1)),
        directed=directed,
        self_loops="keep",
        **(weights if weighted else {}),
    )


def rows_of() -> torch.Tensor:
    return 30 * torch.randn(REPEATS, COUNT, WIDTH, generator=torch.Generator().manual_seed(1))


def by_arcs(graph: Graph, rows: torch.Tensor, **options: bool) -> torch.Tensor:
    def said(repeat, readers, read, weights):
        return rows[repeat][read] * weights

    shape = (REPEATS, COUNT, WIDTH)
    return sums_over_lists(graph, shape, said, rows.device, **options)


def whole(rows: torch.Tensor) -> np.ndarray:
    """The rows in steps of the grid, as whole numbers, which NumPy adds up without rounding."""
    return np.trunc(rows.cpu().double().numpy() / GRID).astype(np.int64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_a_product_and_sums_arc_by_arc_are_the_exact_sum_of_every_list(directed, device):
    graph, rows = graph_of(directed=directed), rows_of().to(device)
    steps = whole(rows)
    wanted = np.zeros((REPEATS, COUNT, WIDTH), dtype=np.int64)
    for node in range(COUNT):
        wanted[:, node] = steps[:, graph.out_neighbours(node)].sum(axis=1)
    for found in (sums_of_rows(graph, rows), by_arcs(graph, rows)):
        assert np.array_equal(found.cpu().numpy(), wanted * GRID)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("arriving", [True, False], ids=["arriving", "leaving"])
def test_how_many_arcs_are_read_at_a_time_changes_no_bit(arriving, weighted, device, monkeypatch):
    graph, rows = graph_of(directed=True, weighted=weighted), rows_of().to(device)
    options = {"arriving": arriving, "with_self": False}
    before = by_arcs(graph, rows, **options)
    for size in (97, 1 << 20):
        monkeypatch.setattr(lists, "ARCS", size)
        monkeypatch.setattr(lists, "DEVICE_ARCS", size)
        assert torch.equal(by_arcs(graph, rows, **options), before)
    assert torch.equal(before.cpu(), by_arcs(graph, rows_of(), **options))


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_a_graph_on_disk_has_the_same_sums(directed, parts, tmp_path):
    graph, rows = graph_of(directed=directed), rows_of()
    store_graph(graph, tmp_path / "store", parts=parts)
    stored = open_store(tmp_path / "store")
    assert torch.equal(sums_of_rows(stored, rows), sums_of_rows(graph, rows))
    assert torch.equal(by_arcs(stored, rows), by_arcs(graph, rows))


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("way", ["leaving", "arriving", "symmetrised"])
def test_a_message_counts_by_the_weight_of_its_edge(way, directed):
    """As in the hops that networks were trained on; nobody reads a message of their own."""
    graph, rows = graph_of(directed=directed, weighted=True), rows_of()[0]
    owners = np.repeat(np.arange(COUNT), np.diff(graph.indptr))
    is_loop = owners == graph.indices
    assert is_loop.any()
    parts = np.where(is_loop, 0.0, graph.weights), graph.indices, graph.indptr
    weights = sp.csr_array(parts, shape=(COUNT, COUNT))
    read = {"leaving": weights, "arriving": weights.T, "symmetrised": weights + weights.T}[way]
    options = {} if way == "leaving" else {way: True}
    found = exact_sums(graph, rows, **options).numpy()
    np.testing.assert_allclose(found, read @ rows.double().numpy(), atol=0.1)
