"""Scaled rows come with how large they were: from the own row alone, whatever it lies in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gapgnn.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.training import FeatureInputs, RowScale, features_read

SCALE, WIDTH = RowScale(6.0, few=16.0), 5
ROWS = np.array(
    [[3, 0, 0, 4, 0], [0, 0, 0, 0, 0], [1e-30, 0, 0, 0, 0], [0, 3e38, -3e38, 3e38, 0], [1] * 5],
    dtype=np.float32,
)
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


def graph_of(features) -> Graph:
    return Graph.from_arcs([], [], num_nodes=features.shape[0], features=features)


def read(graph: Graph, device: str = "cpu") -> torch.Tensor:
    inputs = FeatureInputs(graph, torch.device(device), scale=SCALE)
    return inputs.block(inputs.everybody()).cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [np.asarray, sp.csr_array])
def test_a_scaled_row_and_its_size(case, device):
    found = read(graph_of(case(ROWS)), device)
    assert found.shape == (len(ROWS), features_read(WIDTH, SCALE))
    squares = (ROWS.astype(np.float64) ** 2).sum(axis=1)
    wanted = [0.3 * math.log1p(square) for square in squares]
    torch.testing.assert_close(found[:, -1], torch.tensor(wanted))
    norms = torch.linalg.vector_norm(found[:, :-1], dim=-1)
    counts = torch.tensor([49 / 25, 0, 1, 3, 5])
    torch.testing.assert_close(norms, 6 * (counts / (counts + 16)).sqrt())
    assert found.isfinite().all()
    assert not found[1].any()


@pytest.mark.parametrize("case", [np.asarray, sp.csr_array])
def test_all_rows_are_as_long_where_people_are_many(case):
    scale, device = RowScale.suited(10_000), torch.device("cpu")
    found = FeatureInputs(graph_of(case(ROWS)), device, scale=scale).dense()[:, :-1]
    wanted = torch.tensor([6.0, 0.0, 6.0, 6.0, 6.0])
    torch.testing.assert_close(torch.linalg.vector_norm(found, dim=-1), wanted)


@pytest.mark.parametrize("case", [np.asarray, sp.csr_array])
def test_the_unit_of_a_row_changes_its_size_and_nothing_else(case):
    once, often = (read(graph_of(case(factor * ROWS[[0, 4]]))) for factor in (1, 1000))
    torch.testing.assert_close(once[:, :-1], often[:, :-1])
    assert (once[:, -1] < often[:, -1]).all()


@pytest.mark.parametrize("case", [np.asarray, sp.csr_array])
def test_it_is_a_function_of_the_row_alone(case):
    whole = read(graph_of(case(ROWS)))
    for row in range(len(ROWS)):
        assert torch.equal(read(graph_of(case(ROWS[row : row + 1])))[0], whole[row])


@pytest.mark.parametrize("case", [np.asarray, sp.csr_array])
def test_every_way_to_read_it_agrees_with_a_store(case, tmp_path):
    graph = graph_of(case(ROWS))
    store_graph(graph, tmp_path / "store", parts=2)
    wanted = read(graph_of(ROWS))
    positions = torch.tensor([[4, 0], [3, 1]])
    weight = torch.eye(WIDTH + 1).expand(2, -1, -1)
    for one in (graph, open_store(tmp_path / "store")):
        inputs = FeatureInputs(one, torch.device("cpu"), scale=SCALE)
        batches, some = inputs.rows(positions), inputs.taken(positions[0])
        everybody = inputs.all()
        if sp.issparse(graph.features):
            batches = batches.matmul(weight)
            some, everybody = (part.matmul(weight)[0] for part in (some, everybody))
        for found, rows in (
            (read(one), wanted),
            (inputs.dense(), wanted),
            (everybody, wanted),
            (some, wanted[positions[0]]),
            (batches, wanted[positions]),
        ):
            torch.testing.assert_close(found, rows)


def test_rows_as_they_are_come_alone():
    inputs = FeatureInputs(graph_of(ROWS), torch.device("cpu"))
    assert torch.equal(inputs.all(), torch.from_numpy(ROWS))
    assert features_read(WIDTH, None) == WIDTH
