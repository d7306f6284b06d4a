"""Weights: bounded by declaration, on their grid, and the edge's own wherever the graph goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graph_strategies import fifty, graph_parts
from hypothesis import given
from hypothesis import strategies as st
from weightcases import AMOUNTS, BOUNDS, weighted_graphs, weighted_parts

from gapgnn.errors import DataError, InputError
from gapgnn.graph import csr
from gapgnn.graph.convert import (
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.graph.store.sort import ArcSorter
from gapgnn.graph.transforms import filter_classes, induced, random_split
from gapgnn.graph.weights import STEPS, WeightBounds, steps_of


def pair(amounts, *, sources=None, targets=None, bounds=(0, 8), directed=True):
    count = len(amounts)
    return Graph.from_arcs(
        [0] * count if sources is None else sources,
        [1] * count if targets is None else targets,
        num_nodes=3,
        features=np.eye(3),
        directed=directed,
        weights=amounts,
        weight_bounds=bounds,
    )


class TestBounds:
    @given(amounts=st.lists(AMOUNTS, min_size=1, max_size=6), bounds=BOUNDS)
    def test_a_weight_is_the_clamped_amount_over_the_upper_bound_cut_to_the_grid(
        self, amounts, bounds
    ):
        limits = WeightBounds(*bounds)
        steps = limits.steps(limits.units(amounts))
        assert steps.max() <= STEPS
        for amount, step in zip(amounts, steps.tolist(), strict=True):
            known = limits.low if np.isnan(amount) else np.clip(amount, limits.low, limits.high)
            assert step == np.floor(known / limits.high * STEPS + 1e-6)

    @given(amounts=st.lists(st.floats(-50, 50), min_size=2, max_size=30), data=st.data())
    def test_the_sum_does_not_depend_on_the_order(self, amounts, data):
        limits = WeightBounds(0, 7)
        order = data.draw(st.permutations(amounts))
        assert limits.units(amounts).sum() == limits.units(order).sum()

    @pytest.mark.parametrize(
        "bounds", [(1, 1), (2, 1), (-1, 1), (0, 0), (0, np.inf), (np.nan, 1), ("a", 1), (0, 1e-320)]
    )
    def test_bounds_that_bound_nothing_are_refused(self, bounds):
        with pytest.raises(DataError, match="weight_bounds"):
            pair([1.0], bounds=bounds)


class TestGraph:
    def test_rows_of_one_edge_are_added_up_before_they_are_clamped(self):
        assert pair([1, 1]).weights.tolist() == [0.25]
        assert pair([7, 7]).weights.tolist() == [1.0]
        assert pair([20, -18]).weights.tolist() == [0.25]
        assert pair([20, -100], bounds=(2, 8)).weights.tolist() == [0.25]

    def test_an_amount_that_is_missing_counts_as_the_lower_bound(self):
        assert pair([np.nan], bounds=(4, 8)).weights.tolist() == [0.5]
        assert pair([np.nan, 2], bounds=(4, 8)).weights.tolist() == [0.75]

    def test_an_edge_without_direction_weighs_what_its_heavier_direction_does(self):
        for sources, targets in (([0], [1]), ([0, 1], [1, 0])):
            graph = pair([4] * len(sources), sources=sources, targets=targets, directed=False)
            assert graph.weights.tolist() == [0.5, 0.5]
        both = pair([4, 2], sources=[0, 1], targets=[1, 0], directed=False)
        assert both.weights.tolist() == [0.5, 0.5]

    def test_an_edge_that_weighs_nothing_keeps_its_place(self):
        graph = pair([0, 3], sources=[0, 1], targets=[1, 2])
        assert (graph.num_arcs, graph.weights.tolist()) == (2, [0.0, 0.375])
        assert graph.out_degrees.tolist() == [1, 1, 0]

    def test_unequal_directions_are_no_symmetric_graph(self):
        assert pair([4, 2], sources=[0, 1], targets=[1, 0], directed=None).is_directed
        assert not pair([4, 4], sources=[0, 1], targets=[1, 0], directed=None).is_directed

    @fifty
    @given(parts=weighted_parts())
    def test_weights_change_no_arc(self, parts):
        graph = Graph.from_arcs(**parts)
        plain = Graph.from_arcs(**{**parts, "weights": None})
        assert np.array_equal(graph.indptr, plain.indptr)
        assert np.array_equal(graph.indices, plain.indices)
        assert graph.weights.dtype == np.float32
        assert graph.is_directed or csr.is_symmetric(graph.indptr, graph.indices, graph.weights)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([0.5], "one entry per arc"),
            ([0.5, 1.5], "between 0 and 1"),
            ([0.5, -0.1], "between 0 and 1"),
            ([0.5, np.nan], "finite"),
            ([["a", "b"]], "list of numbers"),
        ],
    )
    def test_weights_are_validated(self, weights, message):
        with pytest.raises(DataError, match=message):
            pair([1, 1], sources=[0, 1], targets=[1, 2])._replace(weights=np.array(weights))

    def test_unequal_weights_of_an_undirected_edge_are_refused(self):
        graph = pair([4], directed=False)
        with pytest.raises(DataError, match="reverse of the same weight"):
            graph._replace(weights=np.array([0.5, 0.25]))

    @fifty
    @given(graph=weighted_graphs(), data=st.data())
    def test_kept_nodes_keep_their_weights(self, graph, data):
        keep = np.array(
            data.draw(st.lists(st.booleans(), min_size=graph.num_nodes, max_size=graph.num_nodes))
        )
        keep[0] = True
        part = induced(graph, keep)
        for u, v, weight in arcs_of(part):
            assert {(a, b): w for a, b, w in arcs_of(graph)}[u, v] == weight
        assert (part.weight_bounds, part.num_arcs) == (graph.weight_bounds, len(arcs_of(part)))

    def test_the_class_filter_and_the_split_keep_them(self):
        graph = pair([1, 2], sources=[0, 1], targets=[1, 2])._replace(labels=np.array([0, 1, -1]))
        assert filter_classes(graph, 1).weights.tolist() == [0.125]
        assert random_split(graph, seed=0).weights is graph.weights

    @fifty
    @given(parts=weighted_parts(), data=st.data())
    def test_the_fingerprint_knows_them_and_no_order_of_nodes(self, parts, data):
        graph = Graph.from_arcs(**parts)
        plain = graph._replace(weights=None)
        assert graph.fingerprint != plain.fingerprint
        order = np.array(data.draw(st.permutations(range(graph.num_nodes))))
        place = np.argsort(order)
        moved = dict(parts)
        moved |= {end: place[np.array(parts[end], dtype=int)] for end in ("sources", "targets")}
        for key in ("features", "labels", "ids", "train_mask", "val_mask", "test_mask"):
            moved[key] = getattr(graph, key)[order]
        moved["dangling"] = {int(place[k]): v for k, v in (parts.get("dangling") or {}).items()}
        assert Graph.from_arcs(**moved).fingerprint == graph.fingerprint
        if graph.num_arcs:
            other = graph.weights.copy()
            other[:] = np.where(other == 1, 0.5, 1.0)
            assert graph._replace(weights=other).fingerprint != graph.fingerprint


def arcs_of(graph):
    sources = csr.sources(graph.indptr, np.int64)
    ids = graph.ids.tolist()
    rows = zip(sources.tolist(), graph.indices.tolist(), graph.weights.tolist(), strict=True)
    return [(ids[u], ids[v], weight) for u, v, weight in rows]


class TestConversions:
    @fifty
    @given(graph=weighted_graphs())
    def test_out_and_back_is_the_same_graph(self, graph):
        for back in (
            from_pyg(to_pyg(graph)),
            from_networkx(to_networkx(graph)),
            from_scipy(**to_scipy(graph)),
        ):
            assert back.fingerprint == graph.fingerprint
            assert back.weight_bounds == pytest.approx(graph.weight_bounds)

    @fifty
    @given(parts=graph_parts())
    def test_plain_graphs_go_out_without_a_weight(self, parts):
        graph = Graph.from_arcs(**parts)
        assert "edge_weight" not in to_pyg(graph)
        assert from_networkx(to_networkx(graph)).weights is None

    def test_ignored_weights_of_pyg_are_said_aloud(self):
        data = to_pyg(pair([1]))
        del data.weight_bounds
        with pytest.warns(
            UserWarning, match=r'`edge_weight` are not read.*weight="edge_weight"'
        ) as said:
            assert from_pyg(data).weights is None
        assert said[0].filename == __file__
        data.edge_attr = torch.ones(1, 3)
        with pytest.warns(UserWarning, match="`edge_weight` and `edge_attr`"):
            from_pyg(data)

    def test_pyg_weights_are_read_when_asked_with_bounds(self):
        data = to_pyg(pair([1], bounds=(0, 1)))
        del data.weight_bounds
        data.edge_weight = torch.tensor([3.0])
        found = from_pyg(data, weight="edge_weight", weight_bounds=(0, 4))
        assert found.weights.tolist() == [0.75]
        data.edge_attr = torch.tensor([[2.0]])
        assert from_pyg(data, weight="edge_attr", weight_bounds=(0, 4)).weights.tolist() == [0.5]
        with pytest.raises(InputError, match="`weight` must come with `weight_bounds`"):
            from_pyg(data, weight="edge_weight")
        with pytest.raises(InputError, match="`weight_bounds` must come with `weight`"):
            from_pyg(data, weight_bounds=(0, 1))
        with pytest.raises(DataError, match="must be an attribute"):
            from_pyg(data, weight="money", weight_bounds=(0, 1))
        data.edge_weight = torch.ones(5)
        with pytest.raises(DataError, match="one entry per arc"):
            from_pyg(data, weight="edge_weight", weight_bounds=(0, 1))

    def test_networkx_and_scipy_say_it_too(self):
        friends = networkx.Graph()
        friends.add_edge("ann", "bob", km=3)
        networkx.set_node_attributes(friends, {name: [1.0] for name in friends}, "x")
        with pytest.warns(UserWarning, match="edge attributes `km` are not read") as said:
            assert from_networkx(friends).weights is None
        assert said[0].filename == __file__
        found = from_networkx(friends, weight="km", weight_bounds=(0, 4))
        assert found.weights.tolist() == [0.75, 0.75]
        friends.add_edge("ann", "cem", km="far")
        friends.nodes["cem"]["x"] = [2.0]
        found = from_networkx(friends, weight="km", weight_bounds=(1, 4))
        assert sorted(found.weights.tolist()) == [0.25, 0.25, 0.75, 0.75]
        matrix = sp.csr_array([[0, 2.0], [4.0, 0]])
        with pytest.warns(UserWarning, match="values of `adjacency` are not read") as said:
            assert from_scipy(matrix, np.eye(2)).weights is None
        assert said[0].filename == __file__
        assert from_scipy(matrix, np.eye(2), weight_bounds=(0, 4)).weights.tolist() == [0.5, 1.0]


@fifty
@given(graph=weighted_graphs(), parts=st.integers(1, 8))
def test_a_store_holds_the_same_weights(graph, parts):
    with tempfile.TemporaryDirectory() as folder:
        store_graph(graph, Path(folder, "store"), parts=min(parts, graph.num_nodes))
        found = open_store(Path(folder, "store"))
        assert found.is_weighted
        assert found.fingerprint == graph.fingerprint
        assert "weights" not in found.__dict__
        assert np.array_equal(found.weights, graph.weights)
        assert np.array_equal(steps_of(found.weights) / np.float32(STEPS), found.weights)
        assert found.weight_bounds == graph.weight_bounds
        assert found._replace(labels=found.labels).fingerprint == graph.fingerprint


@pytest.mark.parametrize("num_nodes", [3, 2_000])
def test_what_arcs_weigh_is_added_up_on_disk_too(tmp_path, num_nodes):
    """More arcs than the memory holds, one of them so often that it fills a file of its own."""
    rng = np.random.default_rng(0)
    sorter = ArcSorter(tmp_path / "spill", num_nodes, memory=1 << 24, weighted=True)
    wanted = np.zeros(num_nodes**2, dtype=np.int64)
    for _ in range(6):
        ends = rng.integers(num_nodes, size=(2, 100_000))
        ends[:, :50_000] = 1
        units = rng.integers(-(2**40), 2**40, size=100_000)
        sorter.add(*ends, units)
        np.add.at(wanted, ends[0] * num_nodes + ends[1], units)
    found = list(sorter.sorted())
    keys = np.concatenate([piece["key"] for piece in found]).astype(np.int64)
    assert (np.diff(keys) > 0).all()
    assert np.array_equal(np.concatenate([piece["units"] for piece in found]), wanted[keys])
    assert wanted.sum() == wanted[keys].sum()
