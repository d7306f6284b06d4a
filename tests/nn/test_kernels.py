"""Kernels are optional, and give the values and gradients of the layers that they replace."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from gapgnn.errors import InputError
from gapgnn.nn.kernels import cpu, kernels_off, lookup, register, registered, registry
from gapgnn.nn.layers import ReplicaMLP, linear
from gapgnn.nn.row_subsets import RowsWithMoments, input_moments
from gapgnn.nn.sparse_rows import SparseRows

REPLICAS = 3
CPU = torch.device("cpu")
# Where the kernels are compared with what they replace.
COMPARED = {
    "narrow_product": "here",
    "normed_product": "here",
    "shared_product": "test_cuda_kernels.py",
    "long_product": "test_cuda_kernels.py",
    "normed_and_activated": "test_cuda_kernels.py",
    "Masks": "test_masks.py",
    "cross_entropy": "test_cuda_kernels.py",
    "cross_entropy_gradients": "test_cuda_kernels.py",
    "best_class": "test_cuda_kernels.py",
}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def no_kernels(monkeypatch):
    monkeypatch.setattr(registry, "_kernels", {})
    monkeypatch.setattr(registry, "MODULES", {})


def test_every_kernel_is_compared_with_what_it_replaces():
    assert {kernel.function.__name__ for kernel in registered()} == set(COMPARED)


def test_the_first_kernel_whose_condition_holds_is_found(no_kernels):
    @register("best_class", device="cpu", condition=lambda scores: len(scores) > 2)
    def many(scores):
        return "many"

    @register("best_class", device="cpu", condition=lambda scores: len(scores) > 1)
    def several(scores):
        return "several"

    found = [lookup("best_class", CPU, range(count)) for count in (1, 2, 3)]
    assert found == [None, several, many]
    assert lookup("best_class", torch.device("cuda"), range(3)) is None
    assert lookup("linear", CPU, range(3)) is None


def test_kernels_can_be_turned_off_for_a_while(no_kernels):
    register("best_class", device="cpu", condition=lambda scores: True)(max)
    with kernels_off():
        with kernels_off():
            assert lookup("best_class", CPU, ()) is None
        assert lookup("best_class", CPU, ()) is None
    assert lookup("best_class", CPU, ()) is max


def test_kernels_are_back_after_an_error(no_kernels):
    register("best_class", device="cpu", condition=lambda scores: True)(max)
    with pytest.raises(ZeroDivisionError), kernels_off():
        raise ZeroDivisionError
    assert lookup("best_class", CPU, ()) is max


@pytest.mark.gate
@pytest.mark.parametrize(("value", "is_on"), [("off", False), ("on", True)])
def test_kernels_can_be_turned_off_for_a_process(value, is_on):
    code = (
        "import torch; from gapgnn.nn.kernels import lookup; x = torch.zeros(1, 5000, 3); "
        "print(lookup('linear', x.device, [x], torch.zeros(1, 3, 2), None) is not None)"
    )
    environment = {**os.environ, "GAPGNN_KERNELS": value}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(is_on)


def test_an_operation_that_no_layer_has_is_refused():
    with pytest.raises(InputError, match=r"`operation` must be one of linear, .*Got 'pool'"):
        register("pool", device="cpu", condition=lambda: True)


@pytest.mark.parametrize("widths", [(7,), (3, 5)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("out", [2, 6, 15])
def test_a_narrow_product_has_the_values_and_gradients_of_the_layer(out, has_bias, widths):
    blocks = [randn(REPLICAS, cpu.LONG, width, seed=width).requires_grad_() for width in widths]
    weight = randn(REPLICAS, sum(widths), out, seed=1).requires_grad_()
    bias = randn(REPLICAS, 1, out, seed=2).requires_grad_() if has_bias else None
    leaves = [*blocks, weight] + ([] if bias is None else [bias])
    assert lookup("linear", CPU, blocks, weight, bias) is cpu.narrow_product
    found = cpu.narrow_product(blocks, weight, bias)
    with kernels_off():
        wanted = linear(torch.cat(blocks, dim=2), weight, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    gradients = randn(*wanted.shape, seed=9)
    pairs = (torch.autograd.grad(result, leaves, gradients) for result in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((REPLICAS, cpu.LONG - 1, 7), 6),
        ((REPLICAS, cpu.LONG, 7), 16),
        ((REPLICAS, cpu.LONG, 7), 1),
        ((cpu.LONG, 7), 6),
    ],
)
def test_other_products_are_left_to_the_layer(shape, out):
    weight = randn(REPLICAS, 7, out)
    assert lookup("linear", CPU, [randn(*shape)], weight, None) is None


NODES, WIDTH, OUT = 60, 7, 4


def normed_mlp(activation="selu", *, replicas=REPLICAS, width=WIDTH):
    """One layer with batch norm, whose scale and shift are not those it starts with."""
    mlp = ReplicaMLP(
        replicas, [width, OUT], activation=activation, batch_norm=True, plain_last=False
    )
    mlp.reset([torch.Generator().manual_seed(seed) for seed in range(replicas)])
    with torch.no_grad():
        mlp.norms[0].weight.copy_(1 + 0.3 * randn(REPLICAS, OUT, seed=4)[:replicas])
        mlp.norms[0].bias.copy_(randn(REPLICAS, OUT, seed=5)[:replicas])
    return mlp.train()


def dense_rows(replicas=REPLICAS):
    return randn(REPLICAS, NODES, WIDTH)[:replicas] + 0.5


def sparse_rows(*, repeated=False):
    rng = np.random.default_rng(0)
    matrix = sp.csr_array((rng.random((NODES, WIDTH)) < 0.4).astype(np.float32))
    counts = rng.integers(1, 5, NODES) if repeated else None
    return SparseRows(matrix, counts=counts)


INPUTS = {
    "dense": dense_rows,
    "sparse": sparse_rows,
    "repeated": lambda: sparse_rows(repeated=True),
    "some rows": lambda: RowsWithMoments.of(dense_rows(), torch.arange(27).view(REPLICAS, 9)),
}


def results(mlp, inputs):
    """Return the outputs, the gradients of all parameters and the running statistics."""
    out = mlp(inputs)
    gradients = torch.autograd.grad(out, list(mlp.parameters()), randn(*out.shape, seed=9))
    return out.detach(), *gradients, *(buffer.clone() for buffer in mlp.buffers())


def arguments(mlp, inputs):
    """Return what the first layer looks a kernel up with."""
    if isinstance(inputs, RowsWithMoments):
        return inputs.rows, mlp.layers[0], None, inputs.moments
    counts = inputs.counts() if isinstance(inputs, SparseRows) else None
    return inputs, mlp.layers[0], counts, None


@pytest.mark.parametrize("activation", ["selu", "elu", "relu", "tanh", "gelu"])
@pytest.mark.parametrize("case", INPUTS)
def test_a_normed_product_has_the_values_gradients_and_statistics_of_the_layer(case, activation):
    inputs = INPUTS[case]()
    assert lookup("normed_layer", CPU, *arguments(normed_mlp(), inputs)) is cpu.normed_product
    found = results(normed_mlp(activation), inputs)
    with kernels_off():
        wanted = results(normed_mlp(activation), inputs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_layer_without_an_activation_after_its_norm_is_left_linear():
    inputs = dense_rows()
    layer = normed_mlp().layers[0]._replace(activation=None)
    found = cpu.normed_product(inputs, layer, None, None)
    wanted = layer.norm(layer.linear(inputs))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["dense", "sparse", "repeated"])
def test_a_replica_has_the_same_bits_alone_and_beside_others(case):
    inputs = INPUTS[case]()
    whole = results(normed_mlp(), inputs)
    alone = inputs[:1].clone() if isinstance(inputs, torch.Tensor) else inputs
    for one, other in zip(whole, results(normed_mlp(replicas=1), alone), strict=True):
        assert torch.equal(one[:1], other)


def test_activations_minibatches_and_wide_inputs_are_left_to_the_layer():
    mlp, rows = normed_mlp(), dense_rows()
    wide = normed_mlp(width=NODES + 1)
    sparse = sparse_rows()
    with torch.no_grad():
        assert lookup("normed_layer", CPU, *arguments(mlp, rows)) is None
    for network, inputs in [
        (mlp, rows.clone().requires_grad_()),
        (mlp, sparse.taken(np.arange(20))),
        (mlp, sparse.select(torch.zeros(REPLICAS, 9, dtype=torch.int64))),
        (wide, randn(REPLICAS, NODES, NODES + 1)),
        (wide, SparseRows.from_scipy(sp.eye_array(NODES, NODES + 1, format="csr"))),
    ]:
        assert lookup("normed_layer", CPU, *arguments(network, inputs)) is None


def test_moments_are_kept_until_the_inputs_change_or_are_gone():
    mlp, rows = normed_mlp(), dense_rows()
    mlp(rows)
    kept = cpu._moments[rows]
    mlp(rows)
    assert cpu._moments[rows] is kept
    with torch.no_grad():
        assert lookup("normed_layer", CPU, *arguments(mlp, rows)) is cpu.normed_product
    rows.mul_(2)
    mlp(rows)
    torch.testing.assert_close(cpu._moments[rows][1], input_moments(rows))
    covariance = weakref.ref(cpu._moments[rows][1][1])
    del rows
    assert covariance() is None


@pytest.mark.parametrize("repeated", [False, True])
def test_moments_of_sparse_rows_are_those_of_the_rows_they_stand_for(repeated):
    rows = sparse_rows(repeated=repeated)
    dense = rows.select(torch.arange(NODES).unsqueeze(0)).dense()
    counts = rows.counts() if repeated else torch.ones(NODES, dtype=torch.int64)
    wanted = input_moments(dense.repeat_interleave(counts, dim=1))
    for one, other in zip(rows.moments(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_running_statistics_are_those_of_torch():
    mlp, rows = normed_mlp(replicas=1), dense_rows(1)
    reference = nn.BatchNorm1d(OUT)
    reference(rows[0] @ mlp.linears[0].weight[0])
    mlp(rows)
    norm = mlp.norms[0]
    for one, other in (
        (norm.running_mean[0], reference.running_mean),
        (norm.running_var[0], reference.running_var),
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
