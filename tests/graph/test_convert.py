import subprocess
import sys

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graph_strategies import fifty, graphs
from hypothesis import given

from gapgnn.errors import DataError, InputError
from gapgnn.graph.convert import (
    as_graph,
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.graph import MASKS, Graph

SQUARE = Graph.from_arcs([0, 1, 2], [1, 2, 3], num_nodes=4, features=np.eye(4), labels=[0, 1, 0, 1])


def same(first, second):
    """Everything agrees, also what the fingerprint leaves out."""
    assert first.fingerprint == second.fingerprint
    assert first.ids.tolist() == second.ids.tolist()
    assert (first.is_directed, first.name) == (second.is_directed, second.name)
    assert first.label_names == second.label_names
    assert sp.issparse(first.features) == sp.issparse(second.features)
    for mask in MASKS:
        assert (getattr(first, mask) == getattr(second, mask)).all()


@fifty
@given(graphs())
def test_to_pyg_and_back_is_the_same_graph(graph):
    same(from_pyg(to_pyg(graph)), graph)


@fifty
@given(graphs())
def test_to_networkx_and_back_is_the_same_graph(graph):
    same(from_networkx(to_networkx(graph)), graph)


@fifty
@given(graphs())
def test_to_scipy_and_back_is_the_same_graph(graph):
    same(from_scipy(**to_scipy(graph)), graph)


def test_a_graph_stays_itself_and_a_pyg_data_is_converted():
    assert as_graph(SQUARE) is SQUARE
    assert as_graph(to_pyg(SQUARE)).fingerprint == SQUARE.fingerprint
    with pytest.raises(
        InputError, match=r"^`graph` must be a Graph, tables .* or a NetworkX graph. Got int.$"
    ):
        as_graph(3)


def test_refusing_an_object_does_not_load_pyg():
    code = (
        "import sys; from gapgnn.graph.convert import as_graph\n"
        "try: as_graph(3)\n"
        "except ValueError: print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def plain_data(**changes):
    """A Data as others make it: no notes of ours."""
    data = to_pyg(SQUARE)
    for key in ("directed", "ids", "name", "num_nodes", *MASKS):
        del data[key]
    for key, value in changes.items():
        data[key] = value
    return data


def test_pyg_direction_is_read_off_the_arcs_unless_it_is_given():
    assert not from_pyg(plain_data()).is_directed
    one_way = plain_data(edge_index=torch.tensor([[0, 1], [1, 2]]))
    assert from_pyg(one_way).is_directed
    assert from_pyg(one_way, directed=False).num_arcs == 4


def test_adj_t_is_the_transposed_adjacency_and_stored_zeros_are_no_arcs():
    entries = torch.sparse_coo_tensor(
        torch.tensor([[1, 2, 3], [0, 1, 0]]),
        torch.tensor([1.0, 1.0, 0.0]),
        (4, 4),
        check_invariants=True,
    )
    graph = from_pyg(plain_data(edge_index=None, adj_t=entries))
    assert graph.out_neighbours(0).tolist() == [1]
    assert graph.out_neighbours(1).tolist() == [2]
    assert graph.num_arcs == 2


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_compressed_sparse_tensors_are_read():
    data = plain_data(edge_index=None, adj_t=torch.eye(4)[[1, 2, 3, 0]].to_sparse_csr())
    data.x = torch.eye(4).to_sparse_csr()
    graph = from_pyg(data)
    assert graph.out_neighbours(1).tolist() == [0]
    assert sp.issparse(graph.features)


def test_pyg_data_does_not_share_memory_with_the_graph():
    data = to_pyg(SQUARE)
    data.x[0, 0] = 9
    data.y[0] = 1
    assert SQUARE.features[0, 0] == 1
    graph = from_pyg(data)
    data.x[0, 0] = 7
    assert graph.features[0, 0] == 9


def test_a_column_of_labels_and_double_precision_features_are_read():
    graph = from_pyg(plain_data(y=torch.tensor([[0], [1], [0], [1]]), x=torch.eye(4).double()))
    assert graph.fingerprint == SQUARE.fingerprint


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("`data` must have node features `x`. Got none.", {"x": None}),
        ("`data` must have arcs in `edge_index` or `adj_t`. Got neither.", {"edge_index": None}),
        (
            "`edge_index` must have shape (2, arcs). Got (3, 2).",
            {"edge_index": torch.zeros(3, 2, dtype=torch.long)},
        ),
        ("`y` must have one entry per node. Got shape (4, 2).", {"y": torch.zeros(4, 2)}),
        (
            "`labels` must be whole numbers, -1 for unknown. Got float32.",
            {"y": torch.zeros(4)},
        ),
        (
            "`train_mask` must have one entry per node. Got shape (4, 10).",
            {"train_mask": torch.ones(4, 10, dtype=torch.bool)},
        ),
    ],
)
def test_pyg_data_that_cannot_be_used_is_one_line(message, changes):
    with pytest.raises(DataError) as caught:
        from_pyg(plain_data(**changes))
    assert str(caught.value) == message


def test_networkx_direction_and_keys():
    one_way = networkx.DiGraph([("a", "b"), ("b", "c")])
    networkx.set_node_attributes(one_way, [1.0], "x")
    graph = from_networkx(one_way)
    assert graph.is_directed
    assert graph.ids.tolist() == ["a", "b", "c"]
    assert from_networkx(one_way, directed=False).num_arcs == 4


def test_networkx_self_loops_and_parallel_edges_are_dropped():
    several = networkx.MultiGraph([(1, 2), (1, 2), (1, 1)])
    networkx.set_node_attributes(several, [1.0], "x")
    assert from_networkx(several).num_arcs == 2
    assert from_networkx(several, self_loops="keep").num_arcs == 3


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("A graph must have at least one node. Got 0.", lambda g: g.remove_nodes_from([1, 2])),
        ("Every node must have features `x`. Got 1 without, first 3.", lambda g: g.add_node(3)),
        (
            "Node keys must be all whole numbers or all strings. Got others.",
            lambda g: g.add_node("a", x=[1.0]),
        ),
        (
            "`x` must be equally many numbers for every node. Got others.",
            lambda g: g.add_node(3, x=[1.0, 2.0]),
        ),
        (
            "`x` must be a mapping for all nodes or for none. Got both.",
            lambda g: g.add_node(3, x={}),
        ),
    ],
)
def test_networkx_graphs_that_cannot_be_used_are_one_line(message, build):
    graph = networkx.Graph([(1, 2)])
    networkx.set_node_attributes(graph, [1.0], "x")
    build(graph)
    with pytest.raises(DataError) as caught:
        from_networkx(graph)
    assert str(caught.value) == message


def test_networkx_columns_outside_the_declared_width_are_refused():
    graph = networkx.Graph(num_features=2)
    graph.add_node(0, x={5: 1.0})
    with pytest.raises(DataError, match=r"^`x` must use columns below 2. Got 5.$"):
        from_networkx(graph)


def test_scipy_entries_are_arcs_unless_they_are_zero():
    adjacency = sp.coo_array(([2.0, 0.0], ([0, 1], [1, 2])), shape=(3, 3))
    graph = from_scipy(adjacency, np.eye(3))
    assert graph.num_arcs == 1
    assert graph.is_directed
    assert from_scipy(adjacency, np.eye(3), directed=False).num_arcs == 2


@pytest.mark.parametrize(
    ("message", "adjacency"),
    [
        ("`adjacency` must be a SciPy sparse matrix. Got ndarray.", np.eye(2)),
        ("`adjacency` must be square. Got shape (2, 3).", sp.csr_array(np.ones((2, 3)))),
    ],
)
def test_an_adjacency_that_cannot_be_used_is_one_line(message, adjacency):
    with pytest.raises(DataError) as caught:
        from_scipy(adjacency, np.eye(2))
    assert str(caught.value) == message
