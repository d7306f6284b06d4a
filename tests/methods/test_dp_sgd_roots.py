"""Single roots: their gradients, their sub-graphs, and what one record or edge changes of a sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rootcases import (
    CLASSES,
    MODULES,
    WIDTH,
    clipped_sum,
    gradients_of,
    inputs_of,
    members,
    module_of,
    people,
    plain_subgraph,
    ring_of_lists,
)
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from gapgnn.graph import BoundedAdjacency, Graph, RootedSubgraphs, bound_out_degrees
from gapgnn.privacy import AddRemove, Undirected
from gapgnn.privacy.dpsgd import reach_of
from gapgnn.rng import NoiseKey
from gapgnn.training.roots import RootGradients

ARCS = [(u, v) for u in range(7) for v in range(7) if u != v and (3 * u + 5 * v) % 4]


class TestGradients:
    @pytest.mark.parametrize("name", MODULES)
    def test_a_roots_gradient_is_that_of_its_loss_on_the_plainest_sub_graph(self, name):
        module, layers = module_of(name)
        graph = people(7, ARCS)
        inputs = inputs_of(graph, layers, 3)
        ours = gradients_of(module, inputs)
        weights = {key: value.detach().clone() for key, value in module.named_parameters()}
        found = inputs.subgraphs.of(np.arange(7), 0)
        for root in range(7):
            nodes, edges = plain_subgraph(graph, root, layers, 3)
            rows = inputs.features[nodes]
            given = (rows, edges) if layers else (rows,)

            def loss(values, given=given, root=root):
                scores = functional_call(module, values, given)
                return cross_entropy(scores[:1], inputs.labels[[root]])

            wanted = torch.cat([one.reshape(-1) for one in grad(loss)(weights).values()])
            torch.testing.assert_close(ours.gradient(found[root])[0], wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", ["Linear", "GCNConv", "GATConv", "two GCN layers"])
    def test_the_sum_is_that_of_a_loop_that_clips_each_root_as_one(self, name):
        module, layers = module_of(name)
        graph = people(7, ARCS)
        ours = gradients_of(module, inputs_of(graph, layers, 3))
        rows = [
            ours.gradient(one).double()
            for one in inputs_of(graph, layers, 3).subgraphs.of(np.arange(7), 0)
        ]
        wanted = sum(row / max(1.0, float(row.norm())) for row in rows)
        assert max(float(row.norm()) for row in rows) > 1
        found = clipped_sum(module, graph, range(7), layers=layers, max_degree=3)
        torch.testing.assert_close(found, wanted)

    def test_a_gradient_that_is_not_finite_counts_as_none(self):
        module, layers = module_of("GCNConv")
        graph = people(7, ARCS)
        inputs = inputs_of(graph, layers, 3)
        inputs.features[2] = float("nan")
        found = gradients_of(module, inputs).clipped_sum(torch.arange(7), 0, 1.0, 1.0)
        assert bool(torch.isfinite(found).all())
        assert float(found.abs().sum()) > 0

    def test_dropout_of_a_root_does_not_depend_on_who_else_is_in_the_batch(self):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(WIDTH, CLASSES))
        graph = people(7, ARCS)
        sums = {
            roots: clipped_sum(module, graph, roots, layers=0, max_degree=3)
            for roots in ((0, 1, 4), (0,), (1,), (4,))
        }
        one_by_one = sums[0,] + sums[1,] + sums[4,]
        torch.testing.assert_close(sums[0, 1, 4], one_by_one)
        again = clipped_sum(module, graph, (0,), layers=0, max_degree=3, step=1)
        assert not torch.equal(again, sums[0,])


def longest_contribution(module, layers):
    """How far a single root moves the sum, in clips."""
    graph = people(7, ARCS)
    sums = [clipped_sum(module, graph, [i], layers=layers, max_degree=3) for i in range(7)]
    return max(float(one.norm()) for one in sums)


class TestClipping:
    @pytest.mark.parametrize("name", ["Linear", "SAGEConv", "two GCN layers"])
    def test_one_root_moves_a_sum_by_at_most_one_clip(self, name):
        assert longest_contribution(*module_of(name)) <= 1 + 1e-9

    def test_clipping_each_layer_by_itself_would_be_noticed(self, monkeypatch):
        real = RootGradients.gradient

        def by_layer(self, subgraph):
            row, start, parts = real(self, subgraph), 0, []
            for value in self._flat.parameters:
                part = row[:, start : start + value.numel()]
                parts.append(part / max(1.0, float(part.norm())))
                start += value.numel()
            self.clipped = torch.cat(parts, dim=1)
            return self.clipped

        def unclipped(self, roots, step, clip, share):
            subgraphs = self._inputs.subgraphs.of(roots.numpy(), step)
            return sum(by_layer(self, one).double() for one in subgraphs)

        monkeypatch.setattr(RootGradients, "clipped_sum", unclipped)
        assert longest_contribution(*module_of("SAGEConv")) > 1.1


class TestSubgraphs:
    @pytest.mark.parametrize("layers", [0, 1, 2, 3])
    def test_they_are_the_plainest_ones(self, layers):
        graph = people(7, ARCS)
        found = inputs_of(graph, layers, 2).subgraphs.of(np.array([4, 0, 4]), 0)
        for root, one in zip((4, 0, 4), found, strict=True):
            nodes, edges = plain_subgraph(graph, root, layers, 2)
            assert one.nodes.tolist() == nodes
            assert set(map(tuple, one.edges.T.tolist())) == set(map(tuple, edges.T.tolist()))
            assert one.edges.shape == edges.shape

    def test_roots_that_a_record_does_not_enter_keep_their_arcs_when_it_leaves(self):
        assert strangers_changed() == 0

    def test_coins_by_place_instead_of_by_person_would_be_noticed(self, monkeypatch):
        def by_place(self, roots, sources, targets, step):
            return (sources + step) % 2 == 0

        monkeypatch.setattr(RootedSubgraphs, "_coins", by_place)
        assert strangers_changed() > 0

    @pytest.mark.parametrize("keep", [0.2, 0.7])
    def test_an_arc_is_kept_as_often_as_is_accounted_for(self, keep):
        assert abs(kept_share(keep) - keep) < 5 * (keep * (1 - keep) / 40_000) ** 0.5

    def test_forgetting_the_coins_would_be_noticed(self, monkeypatch):
        monkeypatch.setattr(
            RootedSubgraphs, "_coins", lambda self, roots, *_: np.ones(len(roots), dtype=bool)
        )
        assert kept_share(0.2) > 0.9

    def test_two_roots_and_two_steps_have_coins_of_their_own(self):
        # Two chains 0 -> 1 -> 2 and 1 -> 2: whether 1 -> 2 stays is decided twice at each step.
        lists = BoundedAdjacency(np.array([0, 1, 2, 3, 3]), np.array([1, 2, 3]))
        rooted = RootedSubgraphs(lists, np.arange(4), layers=2, keep=0.5, key=NoiseKey.insecure(1))
        stays = []
        for step in range(400):
            near, far = rooted.of(np.array([2, 3]), step)
            if 2 in far.nodes:
                stays.append((1 in near.nodes, 1 in far.nodes))
        found = np.array(stays)
        assert abs(np.corrcoef(found.T)[0, 1]) < 0.3
        assert 0.3 < found.mean() < 0.7


def strangers_changed():
    """How many examples change with a record that is not in them."""
    arcs, options = ring_of_lists(9, 3), {"layers": 2, "max_degree": 2, "keep": 0.5}
    changed = 0
    for gone, step in ((0, 0), (4, 1)):
        before = members(people(9, arcs), step=step, **options)
        after = members(people(9, arcs, left_out=gone), step=step, **options)
        changed += sum(after[root] != held for root, held in before.items() if gone not in held)
    return changed


def kept_share(keep):
    """What share of the arcs of single roots stays, over many steps."""
    sources = np.arange(1, 201)
    graph = Graph.from_arcs(
        sources, np.zeros(200, int), num_nodes=201, features=np.eye(201), directed=True
    )
    lists = bound_out_degrees(graph, 1, NoiseKey.insecure(0))
    rooted = RootedSubgraphs(lists, graph.ids, layers=1, keep=keep, key=NoiseKey.insecure(3))
    return np.mean([rooted.of(np.array([0]), step)[0].edges.shape[1] / 200 for step in range(200)])


@st.composite
def withdrawals(draw):
    num_nodes = draw(st.integers(4, 9))
    pairs = [(u, v) for u in range(num_nodes) for v in range(num_nodes) if u != v]
    arcs = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=40))
    gone = draw(st.integers(0, num_nodes - 1))
    batch = sorted(draw(st.sets(st.integers(0, num_nodes - 1), min_size=1)))
    name = draw(st.sampled_from(["GCNConv", "GATConv", "two SAGE layers", "two GCN layers"]))
    keep = draw(st.sampled_from([1.0, 0.5]))
    return num_nodes, arcs, gone, batch, name, draw(st.integers(1, 3)), keep


class TestSensitivity:
    @settings(max_examples=40, deadline=None)
    @given(withdrawals())
    def test_a_record_moves_a_sum_by_two_clips_for_each_root_it_enters_and_one(self, case):
        num_nodes, arcs, gone, batch, name, degree, keep = case
        module, layers = module_of(name)
        graphs = people(num_nodes, arcs), people(num_nodes, arcs, left_out=gone)
        options = {"layers": layers, "max_degree": degree, "keep": keep}
        before, after = (clipped_sum(module, one, batch, **options) for one in graphs)
        entered = {root for root, held in members(graphs[0], **options).items() if gone in held}
        others = entered - {gone}
        assert len(others) <= sum(reach_of(AddRemove(), layers=layers, max_degree=degree))
        moved = float((before - after).norm())
        assert moved <= 2 * len(others & set(batch)) + (gone in batch) + 1e-5

    @settings(max_examples=25, deadline=None)
    @given(withdrawals(), st.sets(st.integers(0, 8)))
    def test_a_record_that_is_exchanged_enters_the_roots_of_both_lists(self, case, listed):
        num_nodes, arcs, gone, batch, name, degree, keep = case
        module, layers = module_of(name)
        other = gone, [node for node in listed if node < num_nodes]
        graphs = people(num_nodes, arcs), people(num_nodes, arcs, other=other)
        options = {"layers": layers, "max_degree": degree, "keep": keep}
        before, after = (clipped_sum(module, one, batch, **options) for one in graphs)
        entered = set()
        for graph in graphs:
            entered |= {root for root, held in members(graph, **options).items() if gone in held}
        bound = 2 * sum(reach_of(AddRemove(), layers=layers, max_degree=degree)) + 1
        assert len(entered) <= bound
        assert float((before - after).norm()) <= 2 * len(entered & set(batch)) + 1e-5

    @settings(max_examples=40, deadline=None)
    @given(withdrawals(), st.integers(0, 8))
    def test_an_edge_changes_the_roots_behind_four_arcs_of_cut_lists(self, case, end):
        num_nodes, arcs, one, batch, name, degree, keep = case
        module, layers = module_of(name)
        end = end % num_nodes
        both = {(u, v) for u, v in arcs} | {(v, u) for u, v in arcs}
        graphs = [
            people(num_nodes, sorted(edges))
            for edges in (both - {(one, end), (end, one)}, both | {(one, end), (end, one)})
            if one != end
        ]
        if not graphs:
            return
        options = {"layers": layers, "max_degree": degree, "keep": keep}
        before, after = (clipped_sum(module, graph, batch, **options) for graph in graphs)
        bound = sum(reach_of(Undirected(), layers=layers, max_degree=degree))
        assert float((before - after).norm()) <= 2 * min(bound, len(batch)) + 1e-5
        changed = [
            root
            for root in range(num_nodes)
            if float(
                (
                    clipped_sum(module, graphs[0], [root], **options)
                    - clipped_sum(module, graphs[1], [root], **options)
                ).norm()
            )
            > 1e-6
        ]
        assert len(changed) <= bound

    def test_a_list_that_is_cut_really_reaches_as_many_roots_as_are_counted(self):
        graph = people(13, ring_of_lists(13, 3))
        for layers, count in ((1, 3), (2, 9)):
            entered = [0 in held for held in members(graph, layers, 3).values()]
            assert sum(entered) - 1 <= sum(reach_of(AddRemove(), layers=layers, max_degree=3))
            assert sum(entered) - 1 == min(count, 6)
