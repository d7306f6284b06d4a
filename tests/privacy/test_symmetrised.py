"""Messages along arcs and against them: what one arc moves, in memory, on disk and in price."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.privacy import AddRemove, Symmetrized
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.sums import ROW_GRID
from gapgnn.rng import NoiseKey

SIZE, WIDTH = 8, 3
# What a unit row may lose of its length when each coordinate is cut to the grid.
CUT = ROW_GRID * math.sqrt(WIDTH)


def graph_of(arcs, *, directed=True, weights=None):
    ends = np.array(sorted(arcs), dtype=np.int64).reshape(-1, 2)
    return Graph.from_arcs(
        ends[:, 0],
        ends[:, 1],
        num_nodes=SIZE,
        features=np.eye(SIZE),
        directed=directed,
        self_loops="keep",
        weights=weights,
    )


def released(graph, rows, *, relation="directed", symmetrised=True, noise="safe"):
    """One hop under a key that is always the same, so that differences are without noise."""
    mechanism = hop_mechanisms(
        graph,
        level="edge",
        relation=relation,
        noise_multiplier=1.0,
        symmetrised=symmetrised,
        noise=noise,
        keys=[NoiseKey.insecure(7)],
    )[0]
    return mechanism.hop(rows, 1, normalise=False).double(), mechanism


arcs_drawn = st.sets(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=30)
rows_drawn = st.integers(0, 2**31).map(
    lambda seed: row_normalise(
        torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(seed))
    )
)


@settings(deadline=None)
@given(arcs=arcs_drawn, rows=rows_drawn, data=st.data())
def test_one_arc_moves_a_hop_by_at_most_its_sensitivity(arcs, rows, data):
    arc = data.draw(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)))
    one, mechanism = released(graph_of(arcs | {arc}), rows)
    other, _ = released(graph_of(arcs - {arc}), rows)
    moved = float((one - other).norm())
    assert mechanism.sensitivity == math.sqrt(2)
    assert moved <= mechanism.sensitivity + 1e-5
    # Unit rows reach it; an arc from a node to itself is left out and moves nothing.
    if arc[0] == arc[1]:
        assert moved == 0
    else:
        assert moved >= (1 - CUT) * mechanism.sensitivity - 1e-5


@settings(deadline=None)
@given(arcs=arcs_drawn, rows=rows_drawn)
def test_both_arcs_of_a_pair_move_it_by_twice_that(arcs, rows):
    pair = {(2, 5), (5, 2)}
    one, mechanism = released(graph_of(arcs | pair), rows, relation="undirected")
    other, _ = released(graph_of(arcs - pair), rows, relation="undirected")
    moved = float((one - other).norm())
    assert (1 - CUT) * mechanism.sensitivity - 1e-5 <= moved <= mechanism.sensitivity + 1e-5


@settings(deadline=None, max_examples=25)
@given(arcs=arcs_drawn, rows=rows_drawn, data=st.data())
def test_with_weights_it_moves_no_further(arcs, rows, data):
    arcs = sorted(arcs)
    weights = np.array(
        data.draw(st.lists(st.floats(0.01, 1), min_size=len(arcs), max_size=len(arcs)))
    )
    if not arcs:
        return
    one, mechanism = released(graph_of(arcs, weights=weights), rows)
    other, _ = released(graph_of(arcs[1:], weights=weights[1:]), rows)
    assert float((one - other).norm()) <= mechanism.sensitivity + 1e-5


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_a_hop_is_the_sum_over_both_lists_and_a_store_gives_the_same(noise):
    rng = np.random.default_rng(0)
    count = 3_000
    graph = Graph.from_arcs(
        rng.integers(count, size=20_000),
        rng.integers(count, size=20_000),
        num_nodes=count,
        features=np.ones((count, 1)),
        directed=True,
        self_loops="keep",
    )
    assert graph.num_self_loops
    rows = row_normalise(torch.randn(count, 4, generator=torch.Generator().manual_seed(1)))
    found, _ = released(graph, rows, noise=noise)
    nothing = Graph.from_arcs([], [], num_nodes=count, features=np.ones((count, 1)), directed=True)
    drawn, _ = released(nothing, rows, noise=noise)
    matrix = graph.adjacency().astype(np.float64)
    matrix.setdiag(0)
    expected = (matrix + matrix.T) @ rows.double().numpy()
    np.testing.assert_allclose((found - drawn).numpy(), expected, atol=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        store_graph(graph, Path(folder, "store"), parts=5)
        stored, _ = released(open_store(Path(folder, "store")), rows, noise=noise)
    assert torch.equal(stored, found)


def test_it_has_a_meaning_at_edge_level_with_directions_only():
    rows = torch.eye(SIZE)
    with pytest.raises(PrivacyError, match="directed graph"):
        released(graph_of({(0, 1)}, directed=False), rows, relation="undirected")
    with pytest.raises(InputError, match="of edge level for symmetrised messages"):
        Symmetrized.bound(AddRemove())
