"""A layer, its batch norm and its activation as one product: the same as one after the other."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from gapgnn.nn.fast.cpu import (
    BLOCK_ROWS,
    Chosen,
    Moments,
    Places,
    Sample,
    input_moments,
    normed_layer,
    normed_product,
)
from gapgnn.nn.layers import ReplicaMLP
from gapgnn.nn.sparse_rows import SparseRows

REPLICAS, NODES, WIDTH, OUT = 3, 60, 7, 4


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters():
    drawn = torch.randn(REPLICAS, WIDTH + 2, OUT, generator=generator(1))
    parts = drawn[:, :WIDTH], drawn[:, WIDTH] + 1, drawn[:, WIDTH + 1]
    return [part.clone().requires_grad_() for part in parts]


def reference(inputs, weight, scale, shift, activation):
    """torch's own linear layer, batch norm and activation, one replica after the other."""
    outs = []
    for rows, w, a, b in zip(inputs, weight, scale, shift, strict=True):
        normal = nn.functional.batch_norm(rows @ w, None, None, a, b, training=True)
        outs.append(getattr(nn.functional, activation)(normal))
    return torch.stack(outs)


@pytest.mark.parametrize("activation", ["selu", "elu", "relu", "tanh"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_values_and_gradients_are_those_of_the_separate_operations(activation, is_sparse):
    matrix = sp.random(NODES, WIDTH, 0.4, random_state=0, format="csr", dtype=np.float32)
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator()) + 0.5
    if is_sparse:
        rows = torch.from_numpy(matrix.toarray()).expand(REPLICAS, -1, -1).clone()
    own = parameters()
    weights = torch.randn(REPLICAS, NODES, OUT, generator=generator(2))
    inputs = SparseRows.from_scipy(matrix) if is_sparse else rows
    found, mean, variance = normed_layer(
        inputs, *own, Moments().of(inputs), epsilon=1e-5, activation=activation
    )
    wanted = reference(rows, *own, activation)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    product = rows @ own[0]
    torch.testing.assert_close(mean, product.mean(1, keepdim=True), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        variance, product.var(1, unbiased=False, keepdim=True), rtol=1e-3, atol=1e-5
    )
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), own),
        torch.autograd.grad((wanted * weights).sum(), own),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("activation", ["selu", "elu", "relu", "tanh"])
@pytest.mark.parametrize("widths", [(WIDTH,), (2, 4, 1)])
@pytest.mark.parametrize("is_counted", [False, True])
def test_activations_are_normalised_by_the_moments_of_their_product(activation, widths, is_counted):
    rows = (torch.randn(REPLICAS, NODES, WIDTH, generator=generator()) + 0.5).requires_grad_()
    own = parameters()
    counts = torch.randint(1, 4, (NODES,), generator=generator(4)) if is_counted else None
    repeated = (
        torch.arange(NODES) if counts is None else torch.arange(NODES).repeat_interleave(counts)
    )
    found, mean, variance = normed_product(
        rows.split(widths, dim=-1), *own, epsilon=1e-5, activation=activation, counts=counts
    )
    # As if every row were there as often as it counts.
    wanted = reference(rows[:, repeated], *own, activation)
    torch.testing.assert_close(found[:, repeated], wanted, rtol=1e-4, atol=1e-5)
    product = rows[:, repeated] @ own[0]
    torch.testing.assert_close(mean, product.mean(1, keepdim=True), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        variance, product.var(1, unbiased=False, keepdim=True), rtol=1e-4, atol=1e-5
    )
    weights = torch.randn(wanted.shape, generator=generator(2))
    for one, other in zip(
        torch.autograd.grad((found[:, repeated] * weights).sum(), [rows, *own]),
        torch.autograd.grad((wanted * weights).sum(), [rows, *own]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_activations_without_gradients_are_not_taken_for_inputs_that_stay():
    moments, rows = Moments(), torch.randn(1, NODES, 2, generator=generator())
    with torch.no_grad():
        assert moments.of(rows) is None
    known = moments.of(rows)
    with torch.no_grad():
        assert moments.of(rows) is known


def trained_mlp(**options):
    mlp = ReplicaMLP(REPLICAS, [WIDTH, 5, OUT], batch_norm=True, plain_last=False, **options)
    mlp.reset([generator(seed) for seed in range(REPLICAS)])
    return mlp.train()


@pytest.mark.parametrize("activation", ["selu", "tanh"])
def test_rows_that_count_several_times_are_the_same_as_repeated_rows(activation):
    rng = np.random.default_rng(0)
    few = sp.csr_array((rng.random((12, WIDTH)) < 0.4).astype(np.float32))
    index = np.concatenate([np.arange(12), rng.integers(0, 12, 40)])
    rows = SparseRows.from_scipy(few[index])
    distinct, places = rows.distinct()
    mlp = trained_mlp(activation=activation)
    wanted = mlp(rows)
    found = mlp(distinct)[:, places]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn(wanted.shape, generator=generator(3))
    pairs = (
        torch.autograd.grad((out * weights).sum(), list(mlp.parameters()))
        for out in (mlp(distinct)[:, places], mlp(rows))
    )
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_rows_that_all_differ_are_left_alone():
    assert SparseRows.from_scipy(sp.eye_array(9, format="csr")).distinct() is None


def test_a_sample_is_normalised_by_all_nodes():
    mlp = ReplicaMLP(REPLICAS, [WIDTH, OUT], batch_norm=True, plain_last=False).train()
    mlp.reset([generator(seed) for seed in range(REPLICAS)])
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator())
    nodes = torch.stack([torch.randperm(NODES, generator=generator(5))[:9] for _ in range(3)])
    sample = Sample.of(rows, nodes)
    wanted = torch.stack([out[mine] for out, mine in zip(mlp(rows), nodes, strict=True)])
    torch.testing.assert_close(mlp(sample), wanted, rtol=1e-4, atol=1e-5)


def test_a_deeper_network_is_computed_for_all_and_then_chosen_from():
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator())
    nodes = torch.randint(NODES, (REPLICAS, 90), generator=generator(5))
    mlp = trained_mlp()
    parameters = list(mlp.parameters())
    found = mlp(Chosen(rows, Places(nodes, NODES)))
    wanted = mlp(rows)[torch.arange(REPLICAS).unsqueeze(1), nodes]
    torch.testing.assert_close(found, wanted)
    weights = torch.randn(wanted.shape, generator=generator(6))
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), parameters),
        torch.autograd.grad((wanted * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_moments_of_inputs_that_changed_in_place_are_computed_again():
    moments, rows = Moments(), torch.randn(1, NODES, 2, generator=generator())
    before = moments.of(rows)[0].clone()
    assert moments.of(rows)[0] is moments.of(rows)[0]
    rows.add_(1)
    torch.testing.assert_close(moments.of(rows)[0], before + 1)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1000.0])
def test_a_spread_far_below_the_mean_is_not_lost(offset):
    """Rows of a thousand and a bit: squares in float32 would keep nothing of the bit."""
    rows = torch.randn(REPLICAS, BLOCK_ROWS + 100, 5, generator=generator()) * 0.1 + offset
    mean, covariance = input_moments(rows)
    exact = rows.double()
    centred = exact - exact.mean(1, keepdim=True)
    wanted = centred.transpose(1, 2) @ centred / rows.shape[1]
    torch.testing.assert_close(mean.double(), exact.mean(1, keepdim=True), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(covariance.double(), wanted, rtol=1e-5, atol=1e-7)


def test_training_statistics_end_where_batch_norms_would():
    mlp = ReplicaMLP(1, [WIDTH, OUT], batch_norm=True, plain_last=False).train()
    mlp.reset([generator()])
    rows = torch.randn(1, NODES, WIDTH, generator=generator())
    own = nn.BatchNorm1d(OUT)
    own(rows[0] @ mlp.linears[0].weight[0])
    mlp(rows)
    torch.testing.assert_close(mlp.norms[0].running_mean[0], own.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mlp.norms[0].running_var[0], own.running_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_network_of_blocks_is_that_of_joined_blocks(activation, is_training):
    blocks = [
        torch.randn(REPLICAS, NODES, width, generator=generator(width)).requires_grad_()
        for width in (4, 3)
    ]
    mlp = trained_mlp(activation=activation).train(is_training)
    sources = [*blocks, *mlp.parameters()]
    weights = torch.randn(REPLICAS, NODES, OUT, generator=generator(3))
    pairs = []
    for out in (lambda: mlp.of_blocks(blocks), lambda: mlp(torch.cat(blocks, dim=-1))):
        scores = out()
        pairs.append((scores, *torch.autograd.grad((scores * weights).sum(), sources)))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
