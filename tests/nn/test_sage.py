"""GraphSAGE's sums, their gradients, and the two ways of reading a graph."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gapgnn.errors import InputError
from gapgnn.nn.layers import replica_state, reset_replicas
from gapgnn.nn.sage import Arcs, Sage, WholeGraph
from gapgnn.training.inputs import ExampleInputs, FeatureInputs, GraphInputs

NODES, WIDTH, CLASSES = 12, 5, 3


def adjacency(seed, *, symmetric=False):
    rng = np.random.default_rng(seed)
    dense = rng.random((NODES, NODES)) < 0.3
    np.fill_diagonal(dense, False)
    return dense | dense.T if symmetric else dense


def in_lists(dense):
    lists = sp.csr_array(dense.T)
    return lists.indptr, lists.indices


def sage(replicas, **options):
    model = Sage(replicas, WIDTH, CLASSES, hidden=4, **options)
    reset_replicas(model, [torch.Generator().manual_seed(seed) for seed in range(replicas)])
    return model


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_sums_and_their_gradients_are_those_of_the_dense_product(shared, symmetric):
    dense = [adjacency(seed, symmetric=symmetric) for seed in range(1 if shared else 3)]
    arcs = Arcs([in_lists(a) for a in dense], is_symmetric=symmetric)
    rows = torch.randn(3, NODES, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.randn(3, NODES, 2, generator=torch.Generator().manual_seed(1))
    matrices = torch.stack([torch.tensor(a.T, dtype=torch.float32) for a in dense])
    wanted = matrices.expand(3, NODES, NODES) @ rows
    found = arcs.sum(rows)
    torch.testing.assert_close(found, wanted)
    (gradient,) = torch.autograd.grad((found * weights).sum(), rows)
    torch.testing.assert_close(gradient, matrices.expand(3, NODES, NODES).transpose(1, 2) @ weights)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_replica_does_not_depend_on_the_others(layers):
    dense = [adjacency(seed) for seed in range(3)]
    features = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
    model = sage(3, layers=layers, batch_norm=True)
    arcs = Arcs([in_lists(a) for a in dense], is_symmetric=False)
    together = model(WholeGraph(features, arcs))
    alone = Sage(1, WIDTH, CLASSES, hidden=4, layers=layers, batch_norm=True)
    alone.load_state_dict(replica_state(model, 1))
    own = alone(WholeGraph(features, Arcs([in_lists(dense[1])], is_symmetric=False)))
    torch.testing.assert_close(together[1:2], own, atol=1e-5, rtol=1e-4)


def test_layers_end_in_unit_rows():
    features = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
    model = sage(1, layers=2)
    rows = model.codes(features)
    summed = Arcs([in_lists(adjacency(0))], is_symmetric=False).sum(rows)
    out = model.layers[0](rows, summed)
    torch.testing.assert_close(out.norm(dim=-1), torch.ones(1, NODES))


class _Features(FeatureInputs):
    def __init__(self, rows):
        self._rows, self.device, self._scale = rows, rows.device, None


@pytest.mark.parametrize("replicas", [1, 2])
def test_examples_score_as_the_whole_graph_does(replicas):
    dense = [adjacency(seed) for seed in range(replicas)]
    lists = [in_lists(a) for a in dense]
    features = _Features(torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0)))
    model = sage(replicas, layers=1, unit_messages=True)
    whole = model(GraphInputs(features, Arcs(lists, is_symmetric=False)).all())
    torch.testing.assert_close(model(ExampleInputs(features, lists).all()), whole)
    positions = torch.tensor([[3, 0, 7], [1, 1, 11]])[:replicas]
    batch = model(ExampleInputs(features, lists).rows(positions))
    torch.testing.assert_close(
        batch, torch.stack([s[p] for s, p in zip(whole, positions, strict=True)])
    )


def test_a_batch_of_the_whole_graph_chooses_rows():
    features = _Features(torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0)))
    inputs = GraphInputs(features, Arcs([in_lists(adjacency(0))], is_symmetric=False))
    model = sage(2, layers=2)
    positions = torch.tensor([[3, 0], [1, 11]])
    whole = model(inputs.all())
    wanted = torch.stack([s[p] for s, p in zip(whole, positions, strict=True)])
    torch.testing.assert_close(model(inputs.rows(positions)), wanted)


def test_unit_messages_are_for_one_layer():
    with pytest.raises(InputError, match="`layers` must be 1"):
        sage(1, layers=2, unit_messages=True)
