"""The stated sensitivity of one hop is true for random neighbours, and reached by the worst."""

import math

import numpy as np
import pytest
import torch
from hopcases import graph_of, unit_rows
from hypothesis import given
from hypothesis import strategies as st

from gapgnn.graph.degree import BoundedAdjacency
from gapgnn.privacy import AddRemove, DegreeBounded, Directed, Neighbors, Replace, parse_relation
from gapgnn.privacy.mechanisms import backends, hop_mechanisms
from gapgnn.rng import NoiseKey


def sums(graph, rows, level, relation, *, max_degree=None):
    aggregation = hop_mechanisms(
        graph,
        level=level,
        relation=relation,
        noise_multiplier=2.0,
        max_degree=max_degree,
        keys=[NoiseKey.insecure(0)],
    )[0]
    return aggregation.hop(rows, 1).double()


def shift(first, second):
    return float(torch.linalg.vector_norm(first - second))


def refilling(graph, max_degree, key):
    """Sample from the entries that still have a record, so that whoever left is replaced."""
    rng = np.random.default_rng(key.seed("refilling"))
    lists = [
        np.sort(rng.permutation(graph.out_neighbours(u).copy())[:max_degree])
        for u in range(graph.num_nodes)
    ]
    return BoundedAdjacency(np.cumsum([0, *map(len, lists)]), np.concatenate(lists))


@st.composite
def edge_worlds(draw):
    count = draw(st.integers(3, 9))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = pairs.filter(lambda pair: pair[0] != pair[1])
    arcs = draw(st.lists(pairs, unique=True, max_size=25))
    return count, arcs, draw(pairs), draw(st.integers(0, 10**6))


@pytest.mark.usefixtures("bare_sums")
class TestSensitivity:
    slack = 1e-6  # the result of a hop is float32

    @pytest.mark.parametrize("relation", ["directed", "undirected"])
    @given(world=edge_worlds())
    def test_one_edge_moves_a_hop_by_at_most_what_is_stated(self, relation, world):
        count, arcs, extra, seed = world
        directed = relation == "directed"
        rest = [a for a in arcs if a != extra and (directed or a != extra[::-1])]
        rows = unit_rows(count, seed=seed)
        with_edge = sums(graph_of([*rest, extra], count, directed=directed), rows, "edge", relation)
        without = sums(graph_of(rest, count, directed=directed), rows, "edge", relation)
        assert shift(with_edge, without) <= Neighbors.bound(parse_relation(relation)) + self.slack

    def test_the_edge_bounds_are_reached(self):
        rows = torch.eye(3)
        for relation, directed in (("directed", True), ("undirected", False)):
            edge = graph_of([(0, 1)], 3, directed=directed)
            nothing = graph_of([], 3, directed=directed)
            moved = shift(sums(edge, rows, "edge", relation), sums(nothing, rows, "edge", relation))
            assert moved == pytest.approx(Neighbors.bound(parse_relation(relation)))

    def test_calling_a_symmetric_graph_directed_would_understate_the_bound(self):
        rows = torch.eye(2)
        edge, nothing = (graph_of(arcs, 2, directed=False) for arcs in ([(0, 1)], []))
        moved = shift(sums(edge, rows, "edge", "directed"), sums(nothing, rows, "edge", "directed"))
        assert moved > 1.4 > Neighbors.bound(Directed())

    @given(world=edge_worlds(), limit=st.integers(1, 4), data=st.data())
    def test_one_record_moves_all_other_rows_by_at_most_what_is_stated(self, world, limit, data):
        count, arcs, _, seed = world
        person = data.draw(st.integers(0, count - 1))
        others = [u for u in range(count) if u != person]
        rows = unit_rows(count, seed=seed)
        before = sums(graph_of(arcs, count), rows, "node", "add-remove", max_degree=limit)

        place = {u: position for position, u in enumerate(others)}
        left = graph_of(
            [(place[u], place[v]) for u, v in arcs if person not in (u, v)],
            count - 1,
            ids=others,
            dangling={place[u]: [person] for u, v in arcs if v == person},
        )
        after = sums(left, rows[others], "node", "add-remove", max_degree=limit)
        bound = DegreeBounded.bound(AddRemove(), limit)
        assert shift(before[others], after) <= bound + self.slack

        other_list = data.draw(st.lists(st.sampled_from(others), unique=True))
        exchanged = [arc for arc in arcs if arc[0] != person] + [(person, v) for v in other_list]
        rows = rows.clone()
        rows[person] = -rows[person]
        after = sums(graph_of(exchanged, count), rows, "node", "replace", max_degree=limit)
        bound = DegreeBounded.bound(Replace(), limit)
        assert shift(before[others], after[others]) <= bound + self.slack

    def test_the_node_bounds_are_reached(self):
        limit = 9
        star = graph_of([(0, v) for v in range(1, 40)], 40)
        rows = torch.zeros(40, 2)
        rows[0, 0] = 1.0
        whole = sums(star, rows, "node", "add-remove", max_degree=limit)
        alone = graph_of([], 39, ids=range(1, 40))
        nothing = sums(alone, rows[1:], "node", "add-remove", max_degree=limit)
        assert shift(whole[1:], nothing) == pytest.approx(math.sqrt(limit))
        opposite = sums(star, -rows, "node", "replace", max_degree=limit)
        assert shift(whole[1:], opposite[1:]) == pytest.approx(2 * math.sqrt(limit))

    def test_the_hub_graph_stays_within_the_bound_and_refilling_breaks_it(self, monkeypatch):
        sources, limit = 200, 20
        person, targets = sources + limit, list(range(sources, sources + limit))
        count = person + 1
        arcs = [(u, v) for u in range(sources) for v in (*targets, person)]
        arcs += [(person, v) for v in targets]
        rows = torch.zeros(count, 2)
        rows[:, 0] = 1.0
        with_person = graph_of(arcs, count)
        without = graph_of(
            [arc for arc in arcs if person not in arc],
            count - 1,
            dangling={u: [person] for u in range(sources)},
        )
        bound = DegreeBounded.bound(AddRemove(), limit)

        def measured():
            before = sums(with_person, rows, "node", "add-remove", max_degree=limit)[:-1]
            after = sums(without, rows[:-1], "node", "add-remove", max_degree=limit)
            return shift(before, after)

        assert measured() <= bound + self.slack
        monkeypatch.setattr(backends, "bound_out_degrees", refilling)
        assert measured() > 5 * bound
