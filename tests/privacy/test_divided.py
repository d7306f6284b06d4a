"""Degree-normalised messages: all that one person sends has norm 1, however long the list is."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import InputError, PrivacyError
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
from gapgnn.graph.transforms import induced, with_absent
from gapgnn.privacy import AddRemove, Directed, OutDegreeNormalized, Replace
from gapgnn.privacy.mechanisms import aggregation as aggregation_module
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.sums import ROW_GRID, check_contributions, divide_rows
from gapgnn.rng import NoiseKey

# The result of a hop is float32, and the fast way divides in it.
SLACK = 1e-5
WIDTH = 4
to_self_or_not = pytest.mark.parametrize("to_self", [False, True], ids=["to others", "to self"])
safe_or_fast = pytest.mark.parametrize("noise", ["safe", "fast"])
weighted_or_not = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])


@st.composite
def worlds(draw):
    """People with lists of (target, amount); two have no record, and one may list oneself."""
    count = draw(st.integers(2, 7))
    target = st.integers(0, count + 1)
    entry = st.tuples(target, st.sampled_from([0.0, 1.0, 2.5, 7.0, 10.0, 99.0]))
    lists = [dict(draw(st.lists(entry, max_size=10))) for _ in range(count)]
    return lists, draw(st.integers(0, count - 1)), draw(st.integers(0, 10**6))


def graph_of(lists, *, weighted=False):
    """Everybody who stands in a list has a row; strangers are not weighed, so then there are none.

    Rows are in the order of the ids, so that those of two graphs can be compared.
    """
    count = len(lists)
    arcs = [(u, v, amount) for u, one in enumerate(lists) for v, amount in one.items()]
    inside = [arc for arc in arcs if arc[1] < count]
    strangers = {u: [v for v in one if v >= count] for u, one in enumerate(lists)}
    options = {"weights": [a for *_, a in inside], "weight_bounds": (1.0, 10.0)} if weighted else {}
    return Graph.from_arcs(
        [u for u, _, _ in inside],
        [v for _, v, _ in inside],
        num_nodes=count,
        features=np.zeros((count, 1)),
        directed=True,
        self_loops="keep",
        dangling=None if weighted else strangers,
        **options,
    )


def unit_rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return row_normalise(torch.randn(count, WIDTH, generator=generator))


def hop(graph, sent, *, relation="add-remove", to_self=False, noise="safe"):
    """Return the sums of one hop by id; whoever is in no list of the graph has zeros.

    Args:
        graph: with or without somebody.
        sent: what everybody sends, by id.
        relation: which graphs are neighbours.
        to_self: whether everybody writes to the own row too.
        noise: ``safe`` or ``fast``.
    """
    mechanism = hop_mechanisms(
        graph,
        level="node",
        relation=relation,
        noise_multiplier=1e-30 if noise == "fast" else 2.0,
        normalised=True,
        to_self=to_self,
        keys=[NoiseKey.insecure(0)],
        noise=noise,
    )[0]
    rows = mechanism.hop(sent[torch.tensor(graph.ids)], 1, normalise=False)
    found = torch.zeros(len(sent), WIDTH, dtype=torch.float64)
    found[torch.tensor(graph.ids)] = rows.double()
    return found


def distance(first, second):
    return float(torch.linalg.vector_norm(first - second))


def without(graph, person):
    """Withdraw one record: others keep their entries, which dangle."""
    return induced(graph, np.arange(graph.num_nodes) != person, dangle=True)


def everybody(graph):
    """Weighted lists have no rows for strangers: the amounts of dangling entries are not kept."""
    return graph if graph.is_weighted else with_absent(graph)


@pytest.mark.usefixtures("without_noise")
class TestSensitivity:
    """Privacy page, section 1: 1 for a record that is there or not, 2 for an exchanged one."""

    @to_self_or_not
    @safe_or_fast
    @given(world=worlds())
    @settings(max_examples=40, deadline=None)
    def test_a_withdrawn_record_moves_all_rows_by_at_most_1(self, to_self, noise, world):
        """All of them: the own row, too, which others read who list the person."""
        lists, person, seed = world
        graph, sent = graph_of(lists), unit_rows(len(lists) + 2, seed)
        # A withdrawn id has a row and sends nothing; a stranger never did.
        sent[len(lists) :] = 0
        gone = sent.clone()
        gone[person] = 0
        options = {"to_self": to_self, "noise": noise}
        before = hop(with_absent(graph), sent, **options)
        after = hop(with_absent(without(graph, person)), gone, **options)
        moved = distance(before, after)
        assert moved <= OutDegreeNormalized.bound(AddRemove()) + SLACK
        # Nothing but what the grid cuts off is lost: whoever sends anything sends all of it, but
        # for the share of an entry for oneself that is written once and counted twice.
        copies = len(lists[person]) + to_self
        if copies:
            written = copies - (to_self and person in lists[person])
            share = (written / copies) ** 0.5
            assert moved >= share - ROW_GRID * (copies * WIDTH) ** 0.5 - SLACK
        else:
            assert moved == 0

    @to_self_or_not
    @weighted_or_not
    @given(world=worlds(), data=st.data())
    @settings(max_examples=40, deadline=None)
    def test_an_exchanged_record_moves_all_rows_by_at_most_2(self, to_self, weighted, world, data):
        lists, person, seed = world
        entry = st.tuples(st.integers(0, len(lists) + 1), st.sampled_from([0.5, 3.0, 10.0]))
        drawn = data.draw(st.lists(entry, max_size=8))
        others = [*lists]
        others[person] = dict(drawn)
        sent = unit_rows(len(lists) + 2, seed)
        sent[len(lists) :] = 0
        turned = sent.clone()
        turned[person] *= -1
        before = hop(everybody(graph_of(lists, weighted=weighted)), sent, to_self=to_self)
        options = {"relation": "replace", "to_self": to_self}
        after = hop(everybody(graph_of(others, weighted=weighted)), turned, **options)
        bound = OutDegreeNormalized.bound(Replace())
        assert distance(before, after) <= bound + SLACK

    @to_self_or_not
    @safe_or_fast
    @pytest.mark.parametrize("length", [1, 3, 100, 2_000])
    def test_the_worst_records_reach_what_is_stated(self, length, noise, to_self):
        """A list of any length, half of it strangers, and a message that turns round."""
        inside = list(range(1, length // 2 + 2))
        strangers = list(range(5_000, 5_000 + length - len(inside)))
        graph = with_absent(
            Graph.from_arcs(
                [0] * len(inside),
                inside,
                num_nodes=max(inside) + 1,
                features=np.zeros((max(inside) + 1, 1)),
                directed=True,
                dangling={0: strangers},
            )
        )
        sent = torch.zeros(5_000 + length, WIDTH)
        sent[0, 0] = 1
        options = {"to_self": to_self, "noise": noise}
        there, gone, turned = (hop(graph, factor * sent, **options) for factor in (1, 0, -1))
        assert 0.99 <= distance(there, gone) <= 1 + SLACK
        assert 1.98 <= distance(there, turned) <= 2 + SLACK

    @pytest.mark.parametrize("place", ["arcs", "store", "pyg", "networkx", "scipy"])
    def test_whoever_lists_oneself_writes_to_the_own_row_once(self, place, tmp_path):
        """Twice would be sqrt(2) under add-remove and 2 sqrt(2) under replace."""
        graph = graph_of([{0: 1.0}, {0: 1.0, 1: 1.0}])
        if place == "store":
            store_graph(graph, tmp_path / "store", parts=2)
            graph = open_store(tmp_path / "store")
        elif place == "pyg":
            pytest.importorskip("torch_geometric")
            graph = from_pyg(to_pyg(graph), self_loops="keep")
        elif place == "networkx":
            pytest.importorskip("networkx")
            graph = from_networkx(to_networkx(graph), self_loops="keep")
        elif place == "scipy":
            graph = from_scipy(**to_scipy(graph))
        assert graph.num_self_loops == 2
        for person in (0, 1):
            sent = torch.zeros(2, WIDTH)
            sent[person, 0] = 1
            there, gone, turned = (hop(graph, f * sent, to_self=True) for f in (1, 0, -1))
            assert distance(there, gone) <= 1 + SLACK
            assert distance(there, turned) <= 2 + SLACK
        # What is read back of the own row is what was written there: one message.
        assert float(there[0, 0]) == pytest.approx(3**-0.5, abs=1e-3)
        assert float(there[1, 0]) == pytest.approx(3**-0.5, abs=1e-3)

    @to_self_or_not
    @given(world=worlds())
    @settings(max_examples=40, deadline=None)
    def test_weights_make_a_record_lighter_and_never_heavier(self, to_self, world):
        lists, person, seed = world
        graph, sent = graph_of(lists, weighted=True), unit_rows(len(lists), seed)
        gone = sent.clone()
        gone[person] = 0
        moved = distance(hop(graph, sent, to_self=to_self), hop(graph, gone, to_self=to_self))
        assert moved <= 1 + SLACK

    def test_on_the_grid_a_contribution_is_never_longer_than_1_not_even_by_rounding(self):
        """Rows are cut towards zero after the division: the noise has no slack to pay with."""
        for length in (1, 2, 3, 7, 1000):
            for seed in range(20):
                rows = divide_rows(unit_rows(1, seed), torch.tensor([length]))
                on_grid = aggregation_module.quantise_rows(rows)
                assert float(on_grid.square().sum() * length) <= 1.0
                check_contributions(on_grid, torch.tensor([length]))


@pytest.mark.usefixtures("without_noise")
class TestWeightOfAList:
    @given(world=worlds())
    @settings(max_examples=40, deadline=None)
    def test_nobodys_weight_changes_when_another_one_leaves(self, world):
        """Seen on the rows of the others: what they send to each other is the same to the bit."""
        lists, person, seed = world
        graph, sent = graph_of(lists), unit_rows(len(lists) + 2, seed)
        sent[len(lists) :] = 0
        sent[person] = 0
        before = hop(with_absent(graph), sent)
        after = hop(with_absent(without(graph, person)), sent)
        assert torch.equal(before, after)

    @given(world=worlds(), data=st.data())
    @settings(max_examples=40, deadline=None)
    def test_a_list_counts_for_its_owner_alone(self, world, data):
        """However another person's list changes, those who are not on it get what they got."""
        lists, person, seed = world
        target = st.integers(0, len(lists) + 1)
        drawn = data.draw(st.lists(target.filter(lambda to: to != person), max_size=8))
        others = [*lists]
        others[person] = dict.fromkeys(drawn, 1.0)
        sent = unit_rows(len(lists) + 2, seed)
        sent[len(lists) :] = 0
        sent[person] = 0
        first, second = (hop(with_absent(graph_of(one)), sent) for one in (lists, others))
        assert torch.equal(first, second)

    def test_dangling_entries_count_as_much_as_others(self):
        count = 4
        known = graph_of([{1: 1.0, 2: 1.0, 3: 1.0}, {}, {}, {}])
        sent = torch.zeros(count + 2, WIDTH)
        sent[0, 0] = 1
        for gone in (1, 3):
            rows = hop(without(known, gone), sent)
            assert 3**-0.5 - ROW_GRID < rows[2, 0] <= 3**-0.5


class TestRefusals:
    def test_a_contribution_that_is_too_long_is_refused(self, monkeypatch):
        """Planted: rows that are not divided, or by less than their list."""
        graph = graph_of([{1: 1.0, 2: 1.0}, {}, {}])
        sent = unit_rows(5, 0)
        for planted in (
            lambda rows, lengths: rows.double(),
            lambda rows, lengths: divide_rows(rows, lengths - 1),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(aggregation_module, "divide_rows", planted)
                with pytest.raises(PrivacyError, match="must have norm at most 1"):
                    hop(graph, sent)
        with pytest.raises(PrivacyError, match="norm at most 1"):
            hop(graph, 1.1 * sent)

    def test_what_bounds_a_record_is_said_once(self):
        graph = graph_of([{1: 1.0}, {}])
        options = {"noise_multiplier": 1.0, "keys": [NoiseKey.insecure(0)]}
        with pytest.raises(InputError, match="`max_degree` must be None"):
            hop_mechanisms(
                graph, level="node", relation="add-remove", max_degree=3, normalised=True, **options
            )
        with pytest.raises(InputError, match="Bound or normalise out-degrees"):
            hop_mechanisms(graph, level="node", relation="add-remove", **options)
        with pytest.raises(InputError, match="node level for degree-normalised"):
            OutDegreeNormalized.bound(Directed())

    def test_only_normalised_messages_go_to_oneself(self):
        """A cut list has no slot for it, and the own row would not be covered."""
        graph = graph_of([{1: 1.0}, {}])
        with pytest.raises(PrivacyError, match="to_self"):
            hop_mechanisms(
                graph,
                level="node",
                relation="add-remove",
                noise_multiplier=1.0,
                max_degree=3,
                to_self=True,
                keys=[NoiseKey.insecure(0)],
            )[0]


@to_self_or_not
@safe_or_fast
@weighted_or_not
def test_a_store_of_any_partition_releases_the_same_bits(weighted, noise, to_self):
    """With noise, and more nodes than one block of it."""
    rng = np.random.default_rng(0)
    count = 3_000
    options = (
        {"weights": rng.random(20_000) * 12, "weight_bounds": (1.0, 10.0)}
        if weighted
        else {"dangling": {node: [-1, -2] for node in range(0, count, 7)}}
    )
    graph = Graph.from_arcs(
        np.append(rng.integers(count, size=19_000), np.full(1_000, 17)),
        rng.integers(count, size=20_000),
        num_nodes=count,
        features=np.zeros((count, 1)),
        ids=rng.permutation(count) * 3,
        directed=True,
        self_loops="keep",
        **options,
    )
    shared = {"level": "node", "relation": "add-remove", "noise_multiplier": 0.5}

    def released(one):
        mechanism = hop_mechanisms(
            one,
            normalised=True,
            to_self=to_self,
            keys=[NoiseKey.insecure(seed) for seed in range(2)],
            noise=noise,
            **shared,
        )[0]
        rows = torch.stack([unit_rows(count, 1), unit_rows(count, 2)])
        return mechanism.hop(rows, 1, normalise=False)

    here = released(graph)
    with tempfile.TemporaryDirectory() as folder:
        for parts in (1, 7):
            store_graph(graph, f"{folder}/{parts}", parts=parts)
            assert torch.equal(released(open_store(f"{folder}/{parts}")), here), parts
