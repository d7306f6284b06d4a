"""Layers with a replica axis: each replica equals the plain torch module it stands for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapgnn.errors import InputError
from gapgnn.nn.layers import (
    ACTIVATIONS,
    IN_PLACE,
    Layer,
    ReplicaBatchNorm,
    ReplicaDropout,
    ReplicaLinear,
    ReplicaMLP,
    activate,
    best_class,
    cross_entropy,
    linear,
    replica_state,
)
from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd import record_linears
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters

R, N, IN, OUT = 3, 11, 7, 4


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generators(count: int = R, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + seed) for seed in range(count)]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_twin(layer: ReplicaLinear, replica: int) -> nn.Linear:
    twin = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    with torch.no_grad():
        twin.weight.copy_(layer.weight[replica].T)
        if layer.bias is not None:
            twin.bias.copy_(layer.bias[replica, 0])
    return twin


# Linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(R, N, IN), (R, N, 2, IN), (N, IN), (R, 0, IN)])
def test_linear_is_torchs_for_every_replica(shape: tuple[int, ...], bias: bool) -> None:
    layer = ReplicaLinear(R, IN, OUT, bias=bias)
    layer.reset(generators())
    inputs = randn(*shape)
    outputs = layer(inputs)
    for replica in range(R):
        own = inputs if inputs.ndim == 2 else inputs[replica]
        torch.testing.assert_close(outputs[replica], torch_twin(layer, replica)(own))


@pytest.mark.parametrize("out", [1, 5, 16])
def test_inputs_in_blocks_are_multiplied_as_if_they_were_joined(out: int) -> None:
    layer = ReplicaLinear(R, 8, out)
    layer.reset(generators())
    blocks = [randn(R, N, width, seed=width) for width in (3, 5)]
    outputs = layer.of_blocks(blocks)
    torch.testing.assert_close(outputs, linear(torch.cat(blocks, -1), layer.weight, layer.bias))


def test_initial_values_are_torchs_distribution_and_independent_of_the_others() -> None:
    layer = ReplicaLinear(2, 400, 50)
    layer.reset(generators(2))
    bound = 1 / 400**0.5
    assert float(layer.weight.detach().abs().max()) <= bound
    assert abs(float(layer.weight.detach().std()) / (bound / 3**0.5) - 1) < 0.02
    assert bool((layer.weight[0] != layer.weight[1]).any())
    alone = ReplicaLinear(1, 400, 50)
    alone.reset(generators(1, first=1))
    assert bool((alone.weight[0] == layer.weight[1]).all())
    assert bool((alone.bias[0] == layer.bias[1]).all())


def test_wrong_widths_and_generators_are_named() -> None:
    layer = ReplicaLinear(R, IN, OUT)
    with pytest.raises(InputError, match=r"`inputs` must have 7 features\. Got 5\."):
        layer(torch.ones(R, 2, 5))
    with pytest.raises(InputError, match=r"one entry per replica \(3\). Got 2."):
        layer.reset(generators(2))


# Sparse rows


def sparse_matrix(case: str) -> sp.csr_array:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(N, IN)) * (rng.random((N, IN)) < 0.4)
    if case == "uneven":
        dense[1:] *= rng.random((N - 1, IN)) < 0.2
        dense[0] = 1.0
    if case == "empty":
        dense[:] = 0
    if case == "ones":
        dense = (dense != 0).astype(np.float32)
    dense[3] = 0
    return sp.csr_array(dense.astype(np.float32))


@pytest.mark.parametrize("case", ["even", "uneven", "empty", "ones"])
@pytest.mark.parametrize("batch", ["shared", "selected", "nobody"])
def test_sparse_rows_give_the_dense_result_and_gradient(case: str, batch: str) -> None:
    matrix = sparse_matrix(case)
    rows, dense = SparseRows.from_scipy(matrix), torch.from_numpy(matrix.toarray())
    count = {"shared": N, "selected": 6, "nobody": 0}[batch]
    positions = torch.randint(N, (R, count), generator=torch.Generator().manual_seed(1))
    inputs = rows if batch == "shared" else rows.select(positions)
    plain = dense.expand(R, -1, -1) if batch == "shared" else dense[positions]
    layer = ReplicaLinear(R, IN, OUT)
    layer.reset(generators())
    upstream = randn(R, count, OUT, seed=2)
    results = []
    for given in (inputs, plain):
        outputs = layer(given)
        gradients = torch.autograd.grad((outputs * upstream).sum(), [layer.weight, layer.bias])
        results.append((outputs, *gradients))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
    squares = plain.double().square().sum(-1)
    torch.testing.assert_close(inputs.squared_norms().expand(R, count), squares)
    if batch != "shared":
        torch.testing.assert_close(inputs.dense(), plain)


def test_irregular_rows_are_not_padded_to_the_longest() -> None:
    assert SparseRows.from_scipy(sparse_matrix("uneven"))._padded is None
    assert SparseRows.from_scipy(sparse_matrix("even"))._padded is not None


def test_rows_can_be_selected_for_each_replica() -> None:
    matrix = sparse_matrix("even")
    rows, dense = SparseRows.from_scipy(matrix), torch.from_numpy(matrix.toarray())
    weight = randn(R, IN, OUT)
    positions = torch.tensor([[0, 1], [2, 3], [4, 4]])
    torch.testing.assert_close(rows.select(positions).matmul(weight), dense[positions] @ weight)
    with pytest.raises(InputError, match=r"SciPy sparse matrix\. Got ndarray\."):
        SparseRows.from_scipy(matrix.toarray())


# Batch norm, dropout


def test_batch_norm_is_torchs_for_every_replica_in_training_and_after() -> None:
    ours = ReplicaBatchNorm(R, OUT)
    twins = [nn.BatchNorm1d(OUT) for _ in range(R)]
    with torch.no_grad():
        ours.weight.copy_(randn(R, OUT, seed=5))
        ours.bias.copy_(randn(R, OUT, seed=6))
        for replica, twin in enumerate(twins):
            twin.weight.copy_(ours.weight[replica])
            twin.bias.copy_(ours.bias[replica])
    for step in range(3):
        inputs = randn(R, N, OUT, seed=step) * 3 + 1
        outputs = ours(inputs)
        for replica, twin in enumerate(twins):
            torch.testing.assert_close(outputs[replica], twin(inputs[replica]))
    ours.eval()
    outputs = ours(inputs)
    for replica, twin in enumerate(twins):
        torch.testing.assert_close(outputs[replica], twin.eval()(inputs[replica]))
        torch.testing.assert_close(ours.running_var[replica], twin.running_var)
    ours.reset(generators())
    assert bool((ours.weight == 1).all())
    assert bool((ours.running_mean == 0).all())


def test_dropout_blanks_its_share_keeps_the_mean_and_sleeps_in_evaluation() -> None:
    layer = ReplicaDropout(2, 0.3)
    layer.reset(generators(2))
    ones = torch.ones(2, 5000, 20)
    first, second = layer(ones), layer(ones)
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.01
    assert abs(float(first.mean()) - 1) < 0.02
    assert bool((first != second).any())
    assert bool((first[0] != first[1]).any())
    assert layer.eval()(ones) is ones


def test_a_dropout_mask_depends_on_the_replica_and_the_row_only() -> None:
    together, alone = ReplicaDropout(3, 0.5), ReplicaDropout(1, 0.5)
    together.reset(generators(3))
    alone.reset(generators(1, first=2))
    for padded in (12, 9):
        beside = together(torch.ones(3, padded, 4))[2, :7]
        assert bool((beside == alone(torch.ones(1, 7, 4))[0]).all())


def test_dropout_without_seeds_is_refused() -> None:
    with pytest.raises(InputError, match="`reset` must be called"):
        ReplicaDropout(1, 0.5)(torch.ones(1, 2, 2))


# MLP


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("plain_last", [True, False])
def test_mlp_is_linear_norm_activation_per_layer(activation: str, plain_last: bool) -> None:
    mlp = ReplicaMLP(R, [IN, 5, OUT], activation=activation, batch_norm=True, plain_last=plain_last)
    mlp.reset(generators())
    inputs = randn(R, N, IN)
    outputs = mlp(inputs)
    for replica in range(R):
        hidden = inputs[replica]
        for place, layer in enumerate(mlp.linears):
            hidden = torch_twin(layer, replica)(hidden)
            if place == 0 or not plain_last:
                hidden = getattr(F, activation)(nn.BatchNorm1d(hidden.shape[1])(hidden))
        torch.testing.assert_close(outputs[replica], hidden)


def test_a_layer_knows_its_parts() -> None:
    mlp = ReplicaMLP(R, [IN, 6, OUT], batch_norm=True, dropout=0.5)
    first, last = mlp.layers
    assert first == Layer(mlp.linears[0], mlp.norms[0], "selu", mlp.dropouts[0])
    assert last == Layer(mlp.linears[1], None, None, None)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation_is_torchs(name: str) -> None:
    values = torch.linspace(-90, 20, 2000).view(2, 1000).requires_grad_()
    gradients = randn(2, 1000)
    wanted = ACTIVATIONS[name](values)
    with record_linears():
        in_a_private_step = activate(values, name)
    for found in (activate(values, name), in_a_private_step):
        torch.testing.assert_close(found, wanted)
        pairs = (
            torch.autograd.grad(result, values, gradients, retain_graph=True)[0]
            for result in (found, wanted)
        )
        torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("name", sorted(IN_PLACE))
@pytest.mark.parametrize("columns", [1, 7, 1001, 65539])
@pytest.mark.parametrize("is_turned", [False, True])
def test_an_activation_has_the_same_bits_alone_and_beside_others(
    name: str, columns: int, is_turned: bool, one_thread: None
) -> None:
    shape = (5, 3, columns)
    values, gradients = randn(*shape), randn(*shape, seed=1)
    if is_turned:
        values, gradients = values.transpose(1, 2), gradients.transpose(1, 2)

    def activated(replicas: slice) -> tuple[Tensor, Tensor]:
        own = values[replicas].requires_grad_()
        result = activate(own, name)
        return result.detach(), torch.autograd.grad(result, own, gradients[replicas])[0]

    for one, other in zip(activated(slice(3, 4)), activated(slice(None)), strict=True):
        assert torch.equal(one[0], other[3])


def test_mlp_without_layers_is_the_identity() -> None:
    inputs = randn(R, N, IN)
    assert ReplicaMLP(R, [IN])(inputs) is inputs
    with pytest.raises(InputError, match="dense for an MLP without layers"):
        ReplicaMLP(R, [IN])(SparseRows.from_scipy(sparse_matrix("even")))


def train(mlp: ReplicaMLP, inputs: Tensor | SparseRows, labels: Tensor) -> None:
    flat = FlatParameters(mlp)
    optimiser = FlatAdam(flat.values, learning_rate=0.05)
    for _ in range(15):
        optimiser.step(flat.gradient(cross_entropy(mlp(inputs), labels).mean(1)))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_replica_trains_the_same_alone_and_beside_others(is_sparse: bool) -> None:
    """To rounding: products over all replicas may sum in another order."""
    matrix = sparse_matrix("even")
    inputs = SparseRows.from_scipy(matrix) if is_sparse else torch.from_numpy(matrix.toarray())
    labels = torch.arange(N) % OUT
    options = {"batch_norm": True, "dropout": 0.2}
    together = ReplicaMLP(R, [IN, 8, OUT], **options)
    together.reset(generators())
    train(together, inputs, labels)
    for replica in range(R):
        alone = ReplicaMLP(1, [IN, 8, OUT], **options)
        alone.reset(generators(1, first=replica))
        train(alone, inputs, labels)
        for key, value in replica_state(together, replica).items():
            torch.testing.assert_close(value, alone.state_dict()[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [901, 2101])
@pytest.mark.parametrize("hidden", [10, 16, 64])
@pytest.mark.parametrize("case", ["own", "shared", "sparse"])
def test_on_one_thread_a_replica_computes_the_same_alone_and_beside_others(
    rows: int, hidden: int, case: str, one_thread: None
) -> None:
    inputs, upstream = randn(R, rows, IN), randn(R, rows, OUT, seed=1)
    sparse = SparseRows.from_scipy(sp.csr_array((inputs[0] > 0.5).float().numpy()))
    results = []
    for count in (1, R):
        mlp = ReplicaMLP(count, [IN, hidden, hidden, OUT])
        mlp.reset(generators(count))
        given = {"own": inputs[:count], "shared": inputs[0], "sparse": sparse}[case]
        outputs = mlp(given)
        found = torch.autograd.grad(outputs, list(mlp.parameters()), upstream[:count])
        results.append([part[0] for part in (outputs, *found)])
    for alone, beside in zip(*results, strict=True):
        # The sparse product of some libraries sums in another order for some widths.
        if case == "sparse":
            torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-4)
        else:
            assert torch.equal(alone, beside)


def test_training_lowers_the_loss() -> None:
    labels = torch.arange(N) % OUT
    mlp = ReplicaMLP(R, [IN, 16, OUT])
    mlp.reset(generators())
    inputs = randn(N, IN)
    before = cross_entropy(mlp(inputs), labels).mean(1)
    train(mlp, inputs, labels)
    assert bool((cross_entropy(mlp(inputs), labels).mean(1) < 0.7 * before).all())


def test_losses_are_torchs_per_example() -> None:
    scores, labels = randn(R, N, OUT), torch.arange(N) % OUT
    losses = cross_entropy(scores, labels)
    for replica in range(R):
        expected = F.cross_entropy(scores[replica], labels, reduction="none")
        torch.testing.assert_close(losses[replica], expected)


def test_the_best_class_has_the_largest_score() -> None:
    scores = randn(R, N, OUT)
    assert torch.equal(best_class(scores), scores.argmax(-1))


# One replica out of many


def test_one_replica_can_be_taken_out() -> None:
    many = ReplicaMLP(R, [IN, 5, OUT], batch_norm=True)
    many.reset(generators())
    FlatParameters(many)
    many(randn(R, N, IN))
    many.eval()
    one = ReplicaMLP(1, [IN, 5, OUT], batch_norm=True).eval()
    state = replica_state(many, 1)
    assert all(value.is_contiguous() for value in state.values())
    one.load_state_dict(state)
    inputs = randn(R, N, IN, seed=3)
    torch.testing.assert_close(one(inputs[1:2])[0], many(inputs)[1])


def test_a_replica_that_is_not_there_is_refused() -> None:
    many = ReplicaMLP(R, [IN, OUT])
    with pytest.raises(InputError, match=r"`replica` must be at least 0 and at most 2. Got 3."):
        replica_state(many, 3)
