"""Hops along weighted edges and several types: their sensitivity, and that sums are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import PrivacyError
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.graph.transforms import induced, join_edge_types
from gapgnn.privacy import AddRemove, DegreeBounded, Neighbors, Replace, Undirected, parse_relation
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.mechanisms import aggregation as aggregation_module
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.backends import BlockRelease, OnDevice, device_lists
from gapgnn.privacy.mechanisms.device import InLists
from gapgnn.privacy.mechanisms.noise import GRID
from gapgnn.privacy.mechanisms.sums import WEIGHTED_GRID, add_up, quantise_rows
from gapgnn.rng import NoiseKey

CPU = torch.device("cpu")

AMOUNTS = st.one_of(
    st.floats(-20, 20), st.sampled_from([1e300, -1e300, np.nan, np.inf, -np.inf, 0.0, 10.0])
)
SLACK = 1e-6  # the result of a hop is float32
LEVELS = {
    "directed": ("edge", True),
    "undirected": ("edge", False),
    "add-remove": ("node", True),
    "replace": ("node", True),
}


def weighted(arcs, count, *, directed, low=1.0, **options):
    """A graph of (source, target, amount), amounts between ``low`` and 10."""
    ends = [(u, v) if directed else (min(u, v), max(u, v)) for u, v, _ in arcs]
    return Graph.from_arcs(
        [u for u, _ in ends],
        [v for _, v in ends],
        num_nodes=count,
        features=np.zeros((count, 1)),
        directed=directed,
        weights=np.array([amount for _, _, amount in arcs]),
        weight_bounds=(low, 10.0),
        **options,
    )


def unit_rows(count, seed, width=5):
    generator = torch.Generator().manual_seed(seed)
    return row_normalise(torch.randn(count, width, generator=generator))


def mechanisms(graph, relation, *, max_degree=None, **options):
    return hop_mechanisms(
        graph,
        level=LEVELS[relation][0],
        relation=relation,
        noise_multiplier=2.0,
        max_degree=max_degree,
        keys=[NoiseKey.insecure(0)],
        **options,
    )


def sums(graph, rows, relation, **options):
    """Return the sums of every type side by side, without noise."""
    found = mechanisms(graph, relation, **options)
    done = [one.hop(rows, k + 1, normalise=False).double() for k, one in enumerate(found)]
    return torch.stack(done)


def moved(first, second):
    """Return how far each type moved."""
    return torch.linalg.vector_norm((first - second).flatten(1), dim=1)


@st.composite
def worlds(draw):
    count = draw(st.integers(3, 8))
    node = st.integers(0, count - 1)
    arc = st.tuples(node, node, AMOUNTS).filter(lambda arc: arc[0] != arc[1])
    return count, draw(st.lists(arc, max_size=20)), draw(arc), draw(st.integers(0, 10**6))


def same_edge(arc, other, directed):
    ends = {arc[:2]} if directed else {arc[:2], arc[:2][::-1]}
    return other[:2] in ends


@pytest.mark.usefixtures("without_noise")
class TestWeighted:
    @pytest.mark.parametrize("relation", ["directed", "undirected"])
    @given(world=worlds(), amount=AMOUNTS)
    def test_one_edge_moves_a_hop_by_at_most_what_is_stated(self, relation, world, amount):
        """There or not, or with any other amount, repeated rows included."""
        count, arcs, extra, seed = world
        directed = relation == "directed"
        rest = [arc for arc in arcs if not same_edge(extra, arc, directed)]
        own = [arc for arc in arcs if same_edge(extra, arc, directed)]
        rows = unit_rows(count, seed)
        bound = Neighbors.bound(parse_relation(relation)) + SLACK
        others = [[], [extra], [*own, extra], [(*extra[:2], amount)]]
        found = [
            sums(weighted([*rest, *lines], count, directed=directed), rows, relation)
            for lines in others
        ]
        for first in found:
            for second in found:
                assert moved(first, second).max() <= bound

    @given(world=worlds(), limit=st.integers(1, 3), data=st.data())
    def test_one_record_moves_all_other_rows_by_at_most_what_is_stated(self, world, limit, data):
        count, arcs, _, seed = world
        person = data.draw(st.integers(0, count - 1))
        others = [node for node in range(count) if node != person]
        rows = unit_rows(count, seed)
        whole = weighted(arcs, count, directed=True)
        keep = np.array([node != person for node in range(count)])
        left = induced(whole, keep, dangle=True)
        before = sums(whole, rows, "add-remove", max_degree=limit)[:, others]
        after = sums(left, rows[others], "add-remove", max_degree=limit)
        bound = DegreeBounded.bound(AddRemove(), limit)
        assert moved(before, after).max() <= bound + SLACK

        line = st.tuples(st.sampled_from(others), AMOUNTS)
        other_list = [(person, v, amount) for v, amount in data.draw(st.lists(line, max_size=6))]
        exchanged = [arc for arc in arcs if arc[0] != person] + other_list
        turned = rows.clone()
        turned[person] = -turned[person]
        after = sums(weighted(exchanged, count, directed=True), turned, "replace", max_degree=limit)
        bound = DegreeBounded.bound(Replace(), limit)
        assert moved(before, after[:, others]).max() <= bound + SLACK

    @pytest.mark.parametrize("relation", ["directed", "undirected"])
    def test_the_edge_bounds_are_reached(self, relation):
        directed = relation == "directed"
        found = [
            sums(weighted(arcs, 2, directed=directed, low=0.0), torch.eye(2), relation)
            for arcs in ([(0, 1, 1e9)], [], [(0, 1, -5.0)])
        ]
        bound = Neighbors.bound(parse_relation(relation))
        assert moved(found[0], found[1]).item() == pytest.approx(bound)
        assert moved(found[0], found[2]).item() == pytest.approx(bound)

    def test_the_node_bounds_are_reached(self):
        limit = 9
        star = weighted([(0, v, 99.0) for v in range(1, 40)], 40, directed=True)
        rows = torch.zeros(40, 2)
        rows[0, 0] = 1.0
        whole = sums(star, rows, "add-remove", max_degree=limit)[:, 1:]
        nothing = torch.zeros_like(whole)
        assert moved(whole, nothing).item() == pytest.approx(math.sqrt(limit))
        opposite = sums(star, -rows, "replace", max_degree=limit)[:, 1:]
        assert moved(whole, opposite).item() == pytest.approx(2 * math.sqrt(limit))


@pytest.mark.usefixtures("without_noise")
class TestTypes:
    @staticmethod
    def types(arcs, second, count, directed):
        return join_edge_types(
            {
                "calls": weighted(arcs, count, directed=directed),
                "visits": weighted(second, count, directed=directed),
            }
        )

    @pytest.mark.parametrize("relation", ["directed", "undirected"])
    @settings(max_examples=40)
    @given(world=worlds(), other=worlds())
    def test_an_edge_moves_its_own_type_alone(self, relation, world, other):
        """So one edge of one type is one event of a hop, and one of each type are two."""
        count, arcs, extra, seed = world
        directed = relation == "directed"
        second = [(u % count, v % count, w) for u, v, w in other[1] if u % count != v % count]
        rest = [arc for arc in arcs if not same_edge(extra, arc, directed)]
        rows = unit_rows(count, seed)
        bound = Neighbors.bound(parse_relation(relation)) + SLACK
        plain, more = (
            sums(self.types(lines, second, count, directed), rows, relation)
            for lines in (rest, [*rest, extra])
        )
        changed = moved(plain, more)
        assert changed[0] <= bound
        assert changed[1] == 0
        both = sums(self.types([*rest, extra], [extra], count, directed), rows, relation)
        none = sums(self.types(rest, [], count, directed), rows, relation)
        assert (moved(both, none) <= bound).all()

    @settings(max_examples=40)
    @given(world=worlds(), other=worlds(), limit=st.integers(1, 3), data=st.data())
    def test_a_record_moves_every_type_by_at_most_what_is_stated(self, world, other, limit, data):
        count, arcs, _, seed = world
        second = [(u % count, v % count, w) for u, v, w in other[1] if u % count != v % count]
        person = data.draw(st.integers(0, count - 1))
        keep = np.array([node != person for node in range(count)])
        rows = unit_rows(count, seed)
        whole = self.types(arcs, second, count, directed=True)
        before = sums(whole, rows, "add-remove", max_degree=limit)[:, keep]
        after = sums(induced(whole, keep, dangle=True), rows[keep], "add-remove", max_degree=limit)
        bound = DegreeBounded.bound(AddRemove(), limit)
        assert (moved(before, after) <= bound + SLACK).all()

    def test_every_type_reaches_the_bound_at_once(self):
        edge, nothing = ([(0, 1, 10.0)], [])
        found = [
            sums(self.types(arcs, arcs, 2, directed=False), torch.eye(2), "undirected")
            for arcs in (edge, nothing)
        ]
        assert moved(*found).tolist() == pytest.approx([math.sqrt(2)] * 2)


def test_types_have_noise_of_their_own():
    empty = weighted([], 5_000, directed=True)
    graph = join_edge_types({"calls": empty, "visits": empty})
    rows = torch.zeros(5_000, 2)
    first, second = (one.hop(rows, 1, normalise=False) for one in mechanisms(graph, "directed"))
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1])) < 0.05
    again = mechanisms(graph, "directed")[0].hop(rows, 1, normalise=False)
    assert torch.equal(first, again)
    alone = mechanisms(empty, "directed")[0].hop(rows, 1, normalise=False)
    assert not torch.equal(first, alone)


def test_a_total_has_noise_of_its_own():
    empty = weighted([], 5_000, directed=True)
    graph = join_edge_types({"calls": empty, "visits": empty})
    rows = torch.zeros(5_000, 2)
    noise = torch.stack([one.hop(rows, 1, normalise=False).flatten() for one in total_of(graph)])
    alike = torch.corrcoef(noise).triu(diagonal=1).abs()
    assert float(alike.max()) < 0.05
    assert float(noise[2].std()) == pytest.approx(float(noise[0].std()), rel=0.05)


def total_of(graph, **options):
    relation = "directed" if graph.is_directed else "undirected"
    return mechanisms(graph, relation, with_total=True, **options)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighs", [(), (0,), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("noise", ["safe", pytest.param("fast", marks=pytest.mark.gate)])
def test_a_total_is_the_same_in_memory_on_disk_and_by_a_product(directed, weighs, noise, tmp_path):
    """And it is the exact sum of the types with noise of one release on top."""
    plain = over_same_nodes(3, directed=directed)
    names = ("calls", "payments", "visits")
    graph = join_edge_types(
        {
            name: one if place in weighs else one._replace(weights=None, weight_bounds=None)
            for place, (name, one) in enumerate(zip(names, plain, strict=True))
        }
    )
    options = {"noise": noise, "symmetrised": directed}
    rows = unit_rows(graph.num_nodes, 1)
    here = total_of(graph, **options)[-1]
    wanted = here.hop(rows, 1)
    for parts in (1, 7):
        store_graph(graph, tmp_path / f"{parts}", parts=parts)
        stored = open_store(tmp_path / f"{parts}")
        assert torch.equal(total_of(stored, **options)[-1].hop(rows, 1), wanted), parts
        assert not any("indices" in one_type.__dict__ for one_type in stored.edge_types), (
            "arcs were loaded"
        )
    if noise == "fast":
        return
    cut = quantise_rows(rows, grid=WEIGHTED_GRID) if weighs else quantise_rows(rows)
    (messages,) = here._messages
    lists = [device_lists(arcs, CPU) for arcs in messages.arcs]
    exact = sum(one.matrix(torch.float64) @ cut for one in lists)
    drawn = here._sources[0].gaussian_rows(0, graph.num_nodes, 5, here.std, "hop", 1)
    assert torch.equal(row_normalise(exact + drawn).float(), wanted)
    # What an accelerator does without a kernel.
    out = torch.empty(rows.shape)
    block = BlockRelease(here._sources[0], here.std, 1, normalise=True, is_exact=True)
    OnDevice(messages, CPU).release(block, cut, out)
    assert torch.equal(out, wanted)
    assert here.events == (Gaussian(2.0, label="aggregation hop 1"),)


def test_types_in_other_parts_are_not_added_up(tmp_path):
    graph = random_weighted()
    for parts in (2, 3):
        store_graph(graph, tmp_path / f"{parts}", parts=parts)
    first, second = (open_store(tmp_path / f"{parts}") for parts in (2, 3))
    joined = first._changed(
        edge_type="calls", more_edge_types=(second._changed(edge_type="visits"),)
    )
    with pytest.raises(PrivacyError, match="the same parts"):
        total_of(joined)[-1].hop(unit_rows(graph.num_nodes, 1), 1)


def test_a_total_is_refused_at_node_level():
    graph = join_edge_types(dict(zip(("calls", "visits"), over_same_nodes(2), strict=True)))
    with pytest.raises(PrivacyError, match="a union must be of types that are all summed"):
        mechanisms(graph, "add-remove", max_degree=3, with_total=True)


def over_same_nodes(number, **options):
    found = [random_weighted(seed, **options) for seed in range(number)]
    return [graph._replace(ids=found[0].ids) for graph in found]


def random_weighted(seed=0, count=5_000, *, directed=False):
    rng = np.random.default_rng(seed)
    sources, targets = rng.integers(count, size=(2, 60_000))
    sources, targets = (
        np.concatenate([sources, np.full(2_000, 17)]),
        np.concatenate([targets, np.arange(2_000)]),
    )
    return Graph.from_arcs(
        sources,
        targets,
        num_nodes=count,
        features=np.zeros((count, 1)),
        ids=rng.permutation(count) * 3,
        directed=directed,
        dangling={node: [-1, -2] for node in range(0, count, 7)} if directed else None,
        weights=rng.lognormal(3, 2, len(sources)),
        weight_bounds=(0, 200),
    )


class TestExact:
    @given(
        values=st.lists(st.floats(-1, 1), min_size=2, max_size=30),
        steps=st.lists(st.integers(0, 256), min_size=2, max_size=30),
        data=st.data(),
    )
    def test_products_lie_on_the_grid_and_sums_have_no_order(self, values, steps, data):
        count = min(len(values), len(steps))
        rows = quantise_rows(
            row_normalise(torch.tensor(values[:count]).unsqueeze(1)), grid=WEIGHTED_GRID
        )
        weights = np.array(steps[:count], dtype=np.float32) / np.float32(256)
        order = np.array(data.draw(st.permutations(range(count))))
        pointers = np.array([0, count])
        total = add_up(rows, pointers, np.arange(count), weights)
        assert float(total / GRID) == round(float(total / GRID))
        assert torch.equal(total, add_up(rows, pointers, order, weights[order]))

    def test_rows_of_weighted_hops_are_cut_towards_zero(self):
        rows = unit_rows(100, 3)
        cut = quantise_rows(rows, grid=WEIGHTED_GRID)
        assert torch.equal(cut * 4096, torch.trunc(cut * 4096))
        assert (cut.abs() <= rows.abs().double()).all()
        assert (torch.linalg.vector_norm(cut, dim=1) <= 1).all()

    @pytest.mark.parametrize(
        ("directed", "options"),
        [
            (False, {"relation": "undirected"}),
            (True, {"relation": "directed"}),
            (True, {"relation": "add-remove", "max_degree": 4}),
            (False, {"relation": "replace", "max_degree": 5}),
            (False, {"relation": "undirected", "noise": "fast"}),
        ],
    )
    def test_hops_are_the_same_in_memory_on_disk_and_by_a_product(
        self, directed, options, tmp_path, monkeypatch
    ):
        graph = random_weighted(directed=directed)
        rows = unit_rows(graph.num_nodes, 1)
        (here,) = mechanisms(graph, **options)
        wanted = here.hop(rows, 1)
        for parts in (1, 7, 64):
            store_graph(graph, tmp_path / f"{parts}", parts=parts)
            stored = open_store(tmp_path / f"{parts}")
            (there,) = mechanisms(stored, **options)
            assert torch.equal(there.hop(rows, 1), wanted), parts
            assert "indices" not in stored.__dict__, "arcs were loaded into memory"
        if options.get("noise") == "fast":
            return
        # What an accelerator does: a product of the lists with weights and float64 rows.
        (device,) = mechanisms(graph, **options)
        lists = device_lists(device._messages[0].arcs[0], CPU)
        assert isinstance(lists, InLists)
        assert not lists.can_release(5)
        exact = lists.matrix(torch.float64) @ quantise_rows(rows, grid=WEIGHTED_GRID)
        drawn = device._sources[0].gaussian_rows(0, graph.num_nodes, 5, device.std, "hop", 1)
        assert torch.equal(row_normalise(exact + drawn).float(), wanted)

    def test_weights_are_in_the_sums(self):
        graph = random_weighted()
        rows = unit_rows(graph.num_nodes, 1)
        dense = torch.zeros(graph.num_nodes, graph.num_nodes)
        sources = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        dense[torch.from_numpy(sources), torch.from_numpy(graph.indices.astype(np.int64))] = (
            torch.from_numpy(graph.weights.copy())
        )
        free = hop_mechanisms(
            graph, level="none", relation="none", noise_multiplier=0.0, keys=[NoiseKey.insecure(1)]
        )[0]
        found = free.hop(rows, 1, normalise=False)
        assert torch.allclose(found, dense.T @ rows, atol=1e-4)

    def test_a_weight_above_1_is_refused_by_the_mechanism_itself(self, tmp_path):
        graph = weighted([(0, 1, 5.0)], 2, directed=True)
        broken = graph._changed(weights=np.array([2.0], dtype=np.float32))
        with pytest.raises(PrivacyError, match="between 0 and 1"):
            mechanisms(broken, "directed")[0].hop(torch.eye(2), 1)
        with pytest.raises(PrivacyError, match="between 0 and 1"):
            device_lists(Neighbors(broken).messages.arcs[0], CPU)


@pytest.mark.usefixtures("without_noise")
def test_the_planted_weight_of_the_largest_amount_would_move_everybody():
    """Bounds from the table: one huge amount makes every other edge lighter."""
    arcs = [(u, v, 5.0) for u in range(6) for v in range(6) if u < v]

    def by_largest(lines):
        high = max(amount for _, _, amount in lines)
        return Graph.from_arcs(
            [u for u, _, _ in lines],
            [v for _, v, _ in lines],
            num_nodes=6,
            features=np.zeros((6, 1)),
            weights=np.array([amount for _, _, amount in lines]),
            weight_bounds=(0.0, high),
        )

    rows = torch.ones(6, 1)
    first = sums(by_largest(arcs), rows, "undirected")
    second = sums(by_largest([(0, 1, 1e6), *arcs[1:]]), rows, "undirected")
    assert moved(first, second).item() > 3 * Neighbors.bound(Undirected())


def test_the_mechanism_reads_no_grid_by_chance():
    """Rows on the grid of plain hops would leave products between its points."""
    rows = quantise_rows(torch.tensor([[0.3]]))
    assert float(rows * 3 / 256 / GRID) % 1 != 0
    assert aggregation_module.WEIGHTED_GRID == GRID * 256
