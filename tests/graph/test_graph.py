import dataclasses
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from graph_strategies import fifty, graph_parts, graphs
from hypothesis import given
from hypothesis import strategies as st

from gapgnn.errors import DataError, InputError
from gapgnn.graph import canonical, csr, fingerprint
from gapgnn.graph.graph import Graph


def small(**changes):
    parts = {
        "sources": [0, 1],
        "targets": [1, 2],
        "num_nodes": 3,
        "features": np.eye(3),
        "labels": [0, 1, -1],
    }
    return Graph.from_arcs(**{**parts, **changes})


@fifty
@given(graph_parts())
def test_the_adjacency_is_the_set_of_arcs_given(parts):
    graph = Graph.from_arcs(**parts)
    arcs = set(zip(parts["sources"].tolist(), parts["targets"].tolist(), strict=True))
    if parts["self_loops"] == "drop":
        arcs = {(source, target) for source, target in arcs if source != target}
    if not parts["directed"]:
        arcs |= {(target, source) for source, target in arcs}
    stored = [(u, v) for u in range(graph.num_nodes) for v in graph.out_neighbours(u).tolist()]
    assert stored == sorted(arcs)
    assert graph.num_self_loops == sum(source == target for source, target in arcs)
    edges = {frozenset(arc) for arc in arcs} if not parts["directed"] else arcs
    assert graph.num_edges == len(edges)
    assert graph.indices.dtype == np.int32
    dense = np.zeros((graph.num_nodes,) * 2)
    dense[tuple(np.array(stored, int).reshape(-1, 2).T)] = 1
    assert (graph.adjacency().toarray() == dense).all()


def test_arcs_that_are_given_once_or_twice_make_the_same_undirected_graph():
    once, twice = small(), small(sources=[0, 1, 1, 2, 0], targets=[1, 2, 0, 1, 1])
    assert once.num_arcs == twice.num_arcs == 4
    assert once.fingerprint == twice.fingerprint


def test_unknown_direction_is_read_off_the_arcs():
    assert small(directed=None).is_directed
    assert not small(sources=[0, 1], targets=[1, 0], directed=None).is_directed


def test_arcs_into_the_last_node_are_kept():
    assert small(sources=[2], targets=[0], directed=True).out_neighbours(2).tolist() == [0]


def test_dangling_entries_hold_a_slot_but_are_no_arcs():
    graph = small(dangling={0: [9, 8, 9], 2: []})
    assert graph.dangling_lists()[0].tolist() == [8, 9]
    assert (graph.num_dangling, graph.num_arcs) == (2, 4)
    assert graph.out_degrees.tolist() == [3, 2, 1]
    assert small(dangling={1: []}).dangling_targets is None


@fifty
@given(graphs())
def test_nothing_a_graph_holds_can_be_written_to(graph):
    arrays = [v for v in vars(graph).values() if isinstance(v, np.ndarray)] + [graph.out_degrees]
    if sp.issparse(graph.features):
        arrays += [graph.features.data, graph.features.indices, graph.features.indptr]
    assert not any(array.flags.writeable for array in arrays)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.name = "other"


@pytest.mark.parametrize("as_type", [np.asarray, sp.csr_array])
def test_the_callers_arrays_stay_theirs(as_type):
    features, labels = as_type(np.eye(3, dtype=np.float32)), np.array([0, 1, 1])
    view = labels[:]
    view.flags.writeable = False
    graph = small(features=features, labels=view)
    features[0, 0], labels[0] = 5, 1
    assert graph.features[0, 0] == 1
    assert graph.labels.tolist() == [0, 1, 1]


def test_arrays_that_cannot_change_are_shared_not_copied():
    features = np.eye(3, dtype=np.float32)
    features.flags.writeable = False
    graph = small(features=features)
    assert graph.features is features
    other = graph._replace(name="other")
    assert other.features is features
    assert other.indices is graph.indices
    sparse = small(features=sp.csr_array(features))
    assert sparse._replace(name="other").features is sparse.features


BAD = {
    "`sources` must be between 0 and 2. Got 3.": {"sources": [0, 3]},
    "`targets` must be between 0 and 2. Got -1.": {"targets": [0, -1]},
    "`sources` must be a list of node positions. Got 1 dimensions of float64.": {
        "sources": [0.0, 1.0]
    },
    "`targets` must be a list of node positions. Got 2 dimensions of int64.": {"targets": [[0, 1]]},
    "`sources` and `targets` must be equally long. Got 2 and 1.": {"targets": [1]},
    "A graph must have at least one node. Got 0.": {"num_nodes": 0},
    "`features` must have one entry per node (3). Got shape (2,).": {"features": np.eye(2)},
    "`features` must have two dimensions. Got 1.": {"features": [1, 2, 3]},
    "`features` must be finite. Got NaN or infinity.": {"features": np.full((3, 1), np.nan)},
    "`features` must be numbers. Got <U1.": {"features": [["a"]] * 3},
    "`features` must be numbers. Got object.": {"features": [[{}]] * 3},
    "`features` must have rows of equal length. Got ragged ones.": {"features": [[1], [1, 2], [1]]},
    "`labels` must have one entry per node (3). Got shape (2,).": {"labels": [0, 1]},
    "`labels` must be whole numbers, -1 for unknown. Got float64.": {"labels": [0.0, 1.0, 1.0]},
    "`labels` must be at least -1. Got -2.": {"labels": [0, 1, -2]},
    "`label_names` must name every class. Got 1 names for class 1.": {"label_names": ("a",)},
    "`ids` must be unique. Got 1 repeated.": {"ids": ["b", "a", "b"]},
    "`ids` must have one entry per node (3). Got shape (2,).": {"ids": [1, 2]},
    "`ids` must be whole numbers or strings. Got float64.": {"ids": [0.5, 1.5, 2.5]},
    "`ids` must be whole numbers or strings. Got object.": {
        "ids": np.array([1, "a", None], dtype=object)
    },
    "`ids` must fit 64-bit signed integers. Got 18446744073709551615.": {
        "ids": np.array([1, 2, 2**64 - 1], dtype=np.uint64)
    },
    "`train_mask` must be boolean. Got int64.": {"train_mask": [1, 0, 0]},
    "`val_mask` must have one entry per node (3). Got shape (1,).": {"val_mask": [True]},
    "`train_mask` and `test_mask` must not overlap. Got 1 shared nodes.": {
        "train_mask": [True, False, False],
        "test_mask": [True, True, False],
    },
    "`test_mask` must select labelled nodes. Got 1 without.": {"test_mask": [False, False, True]},
    "`dangling` must use node positions below 3. Got 3.": {"dangling": {3: [7]}},
    "`dangling` must name nodes as `ids` does. Got <U1 and int64.": {"dangling": {0: ["a"]}},
    "`dangling` must name all nodes by numbers or all by strings. Got both.": {
        "dangling": {0: ["a"], 1: [7]}
    },
    "`dangling` must name nodes that have no record. Got 1 that have one, such as 2.": {
        "dangling": {0: [2, 7]}
    },
    "`self_loops` must be one of drop, keep. Got 'kep'. Did you mean 'keep'?": {
        "self_loops": "kep"
    },
}


@pytest.mark.parametrize("message", BAD, ids=lambda message: message[:40])
def test_bad_input_is_one_line_that_names_it(message):
    with pytest.raises(InputError) as caught:
        small(**BAD[message])
    assert str(caught.value) == message


def test_infinity_is_found_in_sparse_features_and_after_rounding_to_float32():
    for features in (sp.csr_array([[0, np.inf]] * 3), np.full((3, 1), 1e300)):
        with pytest.raises(DataError, match=r"`features` must be finite"):
            small(features=features)


def test_infinity_is_found_in_any_block_of_rows(monkeypatch):
    monkeypatch.setattr(canonical, "BLOCK_VALUES", 3)
    with pytest.raises(DataError, match=r"`features` must be finite"):
        small(features=np.array([[0, 0, 0], [0, 0, 0], [0, 0, np.inf]]))


def test_replacing_the_adjacency_checks_it_again():
    graph = small(directed=True)
    with pytest.raises(DataError, match="unless every arc has its reverse"):
        graph._replace(is_directed=False)
    with pytest.raises(DataError, match=r"`indices` must be between 0 and 2. Got 7"):
        graph._replace(indices=np.array([7, 2], np.int32))
    with pytest.raises(DataError, match=r"`indptr` must rise from 0 to 2. Got 3"):
        graph._replace(indptr=np.array([0, 1, 2, 3]))
    with pytest.raises(DataError, match="`indices` must be sorted and unique"):
        graph._replace(indptr=np.array([0, 2, 2, 2]), indices=np.array([2, 1], np.int32))
    symmetric = small(directed=False)._replace(is_directed=True)
    assert not symmetric._replace(is_directed=False).is_directed


def test_another_split_is_checked_and_is_the_same_data_set():
    graph = small()
    first = graph.fingerprint
    split = graph.with_masks(*np.eye(3, dtype=bool)[[0, 1]], np.zeros(3, bool))
    assert split.train_mask.tolist() == [True, False, False]
    assert split.fingerprint == first
    with pytest.raises(DataError, match="`test_mask` must select labelled nodes"):
        graph.with_masks(*np.eye(3, dtype=bool))
    with pytest.raises(DataError, match="`val_mask` must be boolean"):
        graph.with_masks(np.zeros(3, bool), np.zeros(3), np.zeros(3, bool))


@fifty
@given(graph_parts(), st.randoms(use_true_random=False))
def test_the_fingerprint_ignores_row_order_storage_split_and_name(parts, random):
    graph = Graph.from_arcs(**parts)
    order = list(range(graph.num_nodes))
    random.shuffle(order)
    place = np.argsort(order)
    features = graph.features.toarray() if sp.issparse(graph.features) else graph.features
    other = Graph.from_arcs(
        place[parts["sources"]],
        place[parts["targets"]],
        num_nodes=graph.num_nodes,
        features=sp.csr_array(features[order]) if random.random() < 0.5 else features[order] + 0.0,
        labels=graph.labels[order],
        ids=graph.ids[order],
        directed=parts["directed"],
        dangling={int(place[node]): names for node, names in parts["dangling"].items()},
        self_loops=parts["self_loops"],
        name="another",
    )
    assert other.fingerprint == graph.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": [1, 0]},
        {"directed": True},
        {"features": np.eye(3) * 2},
        {"features": np.eye(3)[[1, 0, 2]]},
        {"features": np.eye(3, 4)},
        {"labels": [0, 1, 0]},
        {"ids": [0, 1, 3]},
        {"ids": ["0", "1", "2"]},
        {"dangling": {0: [7]}},
        {"dangling": {1: [7]}},
        {"dangling": {0: [8]}},
        {"sources": [0, 1, 1], "targets": [1, 2, 1], "self_loops": "keep"},
    ],
)
def test_the_fingerprint_notices_every_change_of_content(changes):
    assert small(**changes).fingerprint != small().fingerprint


def test_names_that_join_to_the_same_text_are_distinguished():
    assert small(ids=["a", "bc", "d"]).fingerprint != small(ids=["ab", "c", "d"]).fingerprint


@fifty
@given(graphs())
def test_the_fingerprint_does_not_depend_on_block_sizes(graph):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "BLOCK_VALUES", 2)
        assert fingerprint.fingerprint(graph) == graph.fingerprint


def test_the_fingerprint_is_the_same_on_every_machine_and_in_every_version():
    graph = small(ids=["b", "a", "c"], dangling={0: ["z"]})
    assert graph.fingerprint == "5c436586145cd84353eb99353bbce3c73a9593cdaa2f4aac281f49e33839bdcd"


def peak_bytes(work):
    tracemalloc.start()
    try:
        result = work()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_building_and_fingerprinting_need_little_more_memory_than_the_graph_itself():
    rng = np.random.default_rng(0)
    ends = rng.integers(20_000, size=(2, 1_000_000))
    sources, targets = np.concatenate([ends, ends[::-1]], axis=1)
    features = np.ones((20_000, 100), np.float32)
    features.flags.writeable = False
    peak, graph = peak_bytes(
        lambda: Graph.from_arcs(sources, targets, num_nodes=20_000, features=features)
    )
    # At 81 million arcs this is 1.4 GiB beside 1.9 GiB of input, which leaves room below 4 GiB.
    assert peak < 18 * len(sources)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "BLOCK_VALUES", 1 << 16)
        peak, _ = peak_bytes(lambda: graph.fingerprint)
    assert peak < features.nbytes / 2


@fifty
@given(graphs(), st.integers(1, 5))
def test_blocks_of_rows_cover_all_rows_once(graph, size):
    blocks = list(csr.row_blocks(graph.indptr, size))
    covered = [row for first, last in blocks for row in range(first, last)]
    assert covered == list(range(graph.num_nodes))


def test_a_graph_says_what_it_is():
    assert repr(small()) == "Graph('graph', undirected, nodes=3, arcs=4, features=3, classes=2)"
