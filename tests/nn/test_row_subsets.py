"""Networks that read some rows, or equal rows once, give what they give for all rows."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from gapgnn.nn.layers import ReplicaMLP
from gapgnn.nn.row_subsets import BLOCK_ROWS, RowSubset, RowsWithMoments, input_moments
from gapgnn.nn.sparse_rows import SparseRows

REPLICAS, NODES, WIDTH, OUT = 3, 60, 7, 4


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def assert_same_gradients(found, wanted, mlp):
    weights = torch.randn(wanted().shape, generator=generator(6))
    pairs = (
        torch.autograd.grad((outputs() * weights).sum(), list(mlp.parameters()))
        for outputs in (found, wanted)
    )
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def trained_mlp(**options):
    mlp = ReplicaMLP(REPLICAS, [WIDTH, 5, OUT], batch_norm=True, plain_last=False, **options)
    mlp.reset([generator(seed) for seed in range(REPLICAS)])
    return mlp.train()


@pytest.mark.parametrize("activation", ["selu", "tanh", "gelu"])
def test_rows_that_count_several_times_are_the_same_as_repeated_rows(activation):
    rng = np.random.default_rng(0)
    few = sp.csr_array((rng.random((12, WIDTH)) < 0.4).astype(np.float32))
    index = np.concatenate([np.arange(12), rng.integers(0, 12, 40)])
    rows = SparseRows.from_scipy(few[index])
    distinct, places = rows.distinct()
    mlp, other = trained_mlp(activation=activation), trained_mlp(activation=activation)
    wanted, found = mlp(rows), other(distinct)[:, places]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for key, value in mlp.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    assert_same_gradients(lambda: mlp(distinct)[:, places], lambda: mlp(rows), mlp)


def test_rows_that_all_differ_are_left_alone():
    assert SparseRows.from_scipy(sp.eye_array(9, format="csr")).distinct() is None


@pytest.mark.parametrize("activation", ["selu", "relu", "gelu"])
def test_some_rows_are_normalised_by_the_moments_of_all(activation):
    mlps = [
        ReplicaMLP(
            REPLICAS, [WIDTH, OUT], batch_norm=True, plain_last=False, activation=activation
        ).train()
        for _ in range(2)
    ]
    for mlp in mlps:
        mlp.reset([generator(seed) for seed in range(REPLICAS)])
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator()) + 0.5
    nodes = torch.stack([torch.randperm(NODES, generator=generator(5))[:9] for _ in range(3)])
    found = mlps[0](RowsWithMoments.of(rows, nodes))
    wanted = torch.stack([out[mine] for out, mine in zip(mlps[1](rows), nodes, strict=True)])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn(wanted.shape, generator=generator(6))
    pairs = (
        torch.autograd.grad((out * weights).sum(), list(mlp.parameters()))
        for out, mlp in zip((found, wanted), mlps, strict=True)
    )
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    running = (mlp.norms[0].running_mean for mlp in mlps)
    torch.testing.assert_close(*running, rtol=1e-4, atol=1e-5)


def test_after_training_moments_change_nothing():
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator())
    nodes = torch.arange(9).expand(REPLICAS, -1)
    mlp = ReplicaMLP(REPLICAS, [WIDTH, OUT], batch_norm=True, plain_last=False).eval()
    assert torch.equal(mlp(RowsWithMoments.of(rows, nodes)), mlp(rows[:, :9]))


def test_a_deeper_network_is_computed_for_all_and_then_chosen_from():
    rows = torch.randn(REPLICAS, NODES, WIDTH, generator=generator())
    nodes = torch.randint(NODES, (REPLICAS, 90), generator=generator(5))
    mlp = trained_mlp()

    def found():
        return mlp(RowSubset(rows, nodes))

    def wanted():
        return mlp(rows)[torch.arange(REPLICAS).unsqueeze(1), nodes]

    torch.testing.assert_close(found(), wanted())
    assert_same_gradients(found, wanted, mlp)


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
