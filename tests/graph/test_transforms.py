from dataclasses import replace

import numpy as np
import pytest
from graph_strategies import fifty, graphs
from hypothesis import assume, given
from hypothesis import strategies as st

from gapgnn.errors import DataError, InputError
from gapgnn.graph.graph import MASKS, Graph
from gapgnn.graph.people import repeat_roles, roles
from gapgnn.graph.transforms import (
    filter_classes,
    induced,
    one_class_against_all,
    random_split,
)


def labelled(labels, **changes):
    n = len(labels)
    parts = {"features": np.arange(n)[:, None], "labels": labels, "num_nodes": n}
    return Graph.from_arcs(np.arange(n - 1), np.arange(1, n), **{**parts, **changes})


def arcs_by_id(graph):
    return {
        (graph.ids[u], graph.ids[v])
        for u in range(graph.num_nodes)
        for v in graph.out_neighbours(u)
    }


def test_small_classes_and_unlabelled_nodes_go_and_the_rest_is_renumbered():
    graph = labelled([3, 0, 3, 1, -1, 0, 3], label_names=("a", "b", "c", "d"))
    kept = filter_classes(graph, 2)
    assert kept.ids.tolist() == [0, 1, 2, 5, 6]
    assert kept.labels.tolist() == [1, 0, 1, 0, 1]
    assert kept.label_names == ("a", "d")
    assert arcs_by_id(kept) == {(0, 1), (1, 0), (1, 2), (2, 1), (5, 6), (6, 5)}


def test_nodes_that_lose_all_arcs_stay():
    kept = filter_classes(labelled([0, 2, 1, 2, 0, 0, 1, 1]), 3)
    assert kept.ids.tolist() == [0, 2, 4, 5, 6, 7]
    assert kept.out_degrees[:2].tolist() == [0, 0]


def test_an_empty_class_is_dropped_even_at_a_minimum_of_zero():
    assert filter_classes(labelled([0, 2, 2]), 0).labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("minimum", "message"),
    [
        (-1, "`min_count` must be a whole number of at least 0. Got -1."),
        (1.5, "`min_count` must be a whole number of at least 0. Got 1.5."),
        (True, "`min_count` must be a whole number of at least 0. Got True."),
        (3, "`min_count` must leave two classes; the largest have 3 and 2. Got 3."),
        (9, "`min_count` must leave two classes; the largest have 3 and 2. Got 9."),
    ],
)
def test_a_minimum_that_makes_no_sense_is_one_line(minimum, message):
    with pytest.raises(DataError) as caught:
        filter_classes(labelled([0, 0, 0, 1, 1]), minimum)
    assert str(caught.value) == message


def test_a_graph_without_labels_cannot_be_filtered():
    with pytest.raises(DataError, match="the largest have 0 and 0"):
        filter_classes(labelled([-1, -1]), 1)


@fifty
@given(st.lists(st.integers(-1, 3), min_size=12, max_size=60), st.integers(0, 5))
def test_a_split_covers_the_labelled_nodes_once(labels, seed):
    assume(sum(label >= 0 for label in labels) > 10)
    split = random_split(labelled(labels), seed=seed)
    masks = np.stack([getattr(split, mask) for mask in MASKS])
    assert (masks.sum(axis=0) == (split.labels >= 0)).all()


def test_a_split_has_the_given_shares_on_average():
    masks = random_split(labelled([0, 1] * 20_000), seed=0, train=0.6, val=0.3)
    shares = [getattr(masks, mask).mean() for mask in MASKS]
    # Six standard deviations of 40,000 coins.
    assert np.allclose(shares, [0.6, 0.3, 0.1], atol=6 * 0.5 / 200)


@fifty
@given(st.integers(20, 80), st.integers(0, 79), st.integers(0, 5), st.booleans())
def test_nobodys_role_changes_when_somebody_leaves(size, gone, seed, are_names):
    ids = [f"person {k}" if are_names else 7 * k for k in range(size)]
    graph = Graph.from_arcs(
        [],
        [],
        num_nodes=size,
        features=np.eye(size),
        labels=[0, 1] * (size // 2) + [0] * (size % 2),
        ids=ids,
    )
    kept = np.arange(size) != gone % size
    before, after = random_split(graph, seed=seed), random_split(induced(graph, kept), seed=seed)
    for mask in MASKS:
        assert (getattr(before, mask)[kept] == getattr(after, mask)).all()


def test_an_id_has_the_same_role_as_a_number_and_as_text():
    numbers = np.arange(1000)
    drawn = [roles(ids, seed=3, train=0.5, val=0.2) for ids in (numbers, numbers.astype(str))]
    assert (drawn[0] == drawn[1]).all()


def test_a_split_depends_on_its_seed_alone():
    graph = labelled([0, 1] * 50)
    first, again, other = (random_split(graph, seed=seed) for seed in (1, 1, 2))
    assert (first.train_mask == again.train_mask).all()
    assert (first.train_mask != other.train_mask).any()
    assert first.fingerprint == graph.fingerprint
    assert not graph.train_mask.any()


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ({"train": 0.0}, "`train` must be above 0 and at most 1. Got 0.0."),
        ({"val": -0.1}, "`val` must be at least 0 and at most 1. Got -0.1."),
        ({"train": 0.95}, "`train` and `val` must sum to at most 1. Got 0.95 and 0.1."),
        ({"train": 0.01}, "`train` must select a node; 4 nodes have a label. Got 0.01."),
    ],
)
def test_fractions_that_make_no_sense_are_one_line(fractions, message):
    with pytest.raises(InputError) as caught:
        random_split(labelled([0, 1, 0, 1, -1]), seed=0, **fractions)
    assert str(caught.value) == message


@fifty
@given(graphs(), st.data())
def test_an_induced_graph_keeps_what_lies_inside(graph, data):
    positions = st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, unique=True)
    chosen = sorted(data.draw(positions))
    part = induced(graph, chosen)
    names = graph.ids[chosen].tolist()
    assert part.ids.tolist() == names
    assert arcs_by_id(part) == {(u, v) for u, v in arcs_by_id(graph) if {u, v} <= set(names)}
    assert part.labels.tolist() == graph.labels[chosen].tolist()
    for mask in MASKS:
        assert (getattr(part, mask) == getattr(graph, mask)[chosen]).all()
    assert (part.features != graph.features[chosen]).sum() == 0
    lists, whole = part.dangling_lists(), graph.dangling_lists()
    assert [lists.get(i, np.array([])).tolist() for i in range(len(chosen))] == [
        whole.get(node, np.array([])).tolist() for node in chosen
    ]
    mask = np.zeros(graph.num_nodes, bool)
    mask[chosen] = True
    assert induced(graph, mask).fingerprint == part.fingerprint


@fifty
@given(graphs(), st.data())
def test_withdrawn_records_leave_every_other_out_degree_as_it_was(graph, data):
    assume(graph.num_nodes > 1)
    gone = data.draw(st.integers(0, graph.num_nodes - 1))
    keep = np.arange(graph.num_nodes) != gone
    part = induced(graph, keep, dangle=True)
    assert part.out_degrees.tolist() == graph.out_degrees[keep].tolist()
    assert arcs_by_id(part) == arcs_by_id(induced(graph, keep))
    assert part.num_dangling >= induced(graph, keep).num_dangling


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([True], "`keep` must have one entry per node (3). Got shape (1,)."),
        ([0, 3], "`keep` must be between 0 and 2. Got 3."),
        ([-1], "`keep` must be between 0 and 2. Got -1."),
        ([1, 1], "`keep` must name each node once. Got 1 repeated."),
        ([], "`keep` must select at least one node. Got none."),
        ([False] * 3, "`keep` must select at least one node. Got none."),
        ([0.5], "`keep` must be booleans or node positions. Got float64."),
    ],
)
def test_a_selection_that_makes_no_sense_is_one_line(keep, message):
    with pytest.raises(DataError) as caught:
        induced(labelled([0, 1, 0]), keep)
    assert str(caught.value) == message


class TestRolesOfRepeats:
    IDS = np.arange(40_000) * 7

    def drawn(self, ids: np.ndarray) -> np.ndarray:
        return repeat_roles(ids, seed=3, train=0.75, val=0.1, repeats=range(5, 9))

    def test_whoever_leaves_moves_nobody(self):
        kept = np.random.default_rng(0).random(len(self.IDS)) < 0.9
        assert np.array_equal(self.drawn(self.IDS)[:, kept], self.drawn(self.IDS[kept]))

    def test_every_repeat_has_its_shares(self):
        for row in self.drawn(self.IDS):
            for role, share in enumerate((0.75, 0.1, 0.15)):
                spread = np.sqrt(share * (1 - share) / len(row))
                assert abs((row == role).mean() - share) < 6 * spread

    def test_repeats_are_independent(self):
        trains = self.drawn(self.IDS) == 0
        assert np.abs(np.corrcoef(trains) - np.eye(4)).max() < 6 / np.sqrt(len(self.IDS))


class TestOneClassAgainstAll:
    def test_one_persons_label_changes_that_persons_new_label_alone(self):
        names = ("law", "medicine", "physics")
        first = replace(labelled([0, 1, 2, 2, -1, 0]), label_names=names)
        other = replace(labelled([0, 1, 1, 2, -1, 0]), label_names=names)
        one, changed = (one_class_against_all(graph, "physics") for graph in (first, other))
        assert one.labels.tolist() == [0, 0, 1, 1, -1, 0]
        assert np.flatnonzero(one.labels != changed.labels).tolist() == [2]
        # The last of a class leaves, and names and classes stay as they are.
        nobody = replace(labelled([0, 1, 1, 1, -1, 0]), label_names=names)
        assert one_class_against_all(nobody, "physics").label_names == one.label_names
        assert np.array_equal(one.indices, first.indices)
        assert np.array_equal(one.train_mask, first.train_mask)

    def test_a_class_that_is_not_there_is_refused(self):
        graph = replace(labelled([0, 1, 2]), label_names=("law", "medicine", "other"))
        with pytest.raises(InputError, match="`positive` must be one of law, medicine, other"):
            one_class_against_all(graph, "arts")
        with pytest.raises(DataError, match="not called 'other'"):
            one_class_against_all(graph, "other")
