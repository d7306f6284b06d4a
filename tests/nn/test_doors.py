"""Whatever a door gives is the plain formula's value and gradient, to rounding."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gapgnn.nn.fast import cpu, doors
from gapgnn.nn.fast.cpu import LONG
from gapgnn.nn.layers import ACTIVATIONS, Layer, ReplicaMLP, linear
from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd import record_linears

REPLICAS, WIDTH = 3, 7


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sparse():
    return SparseRows.from_scipy(
        sp.random(50, WIDTH, 0.4, random_state=0, format="csr", dtype=np.float32)
    )


def assert_alike(fast, plain, leaves):
    assert fast is not None
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    slopes = randn(*plain.shape, seed=9)
    found = (torch.autograd.grad(result, leaves, slopes) for result in (fast, plain))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


INPUTS = {
    "shared": lambda: randn(50, WIDTH),
    "sparse": sparse,
    "long": lambda: randn(REPLICAS, LONG, WIDTH),
    "long parts": lambda: randn(REPLICAS, LONG // 2, 2, WIDTH),
}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("out", [1, 5, 16])
@pytest.mark.parametrize("kind", INPUTS)
def test_a_linear_layer_is_its_formula(kind, out, has_bias):
    inputs = INPUTS[kind]()
    weight = randn(REPLICAS, WIDTH, out, seed=1).requires_grad_()
    bias = randn(REPLICAS, 1, out, seed=2).requires_grad_() if has_bias else None
    found = doors.linear(inputs, weight, bias)
    if kind.startswith("long") and out == 16:
        assert found is None
        return
    leaves = [weight] if bias is None else [weight, bias]
    assert_alike(found, linear(inputs, weight, bias), leaves)


def test_blocks_are_multiplied_as_if_they_were_joined():
    blocks = [randn(REPLICAS, LONG, width, seed=width).requires_grad_() for width in (3, 5)]
    weight = randn(REPLICAS, 8, 6, seed=1).requires_grad_()
    bias = randn(REPLICAS, 1, 6, seed=2).requires_grad_()
    found = doors.linear_of_blocks(blocks, weight, bias)
    assert_alike(found, linear(torch.cat(blocks, dim=2), weight, bias), [*blocks, weight, bias])


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation_is_torchs(name):
    for count in (1000, cpu.MANY_VALUES):
        values = torch.linspace(-90, 20, count).view(2, -1).requires_grad_()
        with record_linears():
            in_a_private_step = doors.activation(values, name)
        for found in (doors.activation(values, name), in_a_private_step):
            if name in doors.EXPONENTIAL:
                assert_alike(found, ACTIVATIONS[name](values), [values])
            else:
                assert found is None


@pytest.mark.parametrize("name", sorted(doors.EXPONENTIAL))
@pytest.mark.parametrize("columns", [1, 7, 1001, cpu.MANY_VALUES + 3])
def test_an_activation_has_the_same_bits_alone_and_beside_others(name, columns):
    values, slopes = randn(5, 1, columns), randn(5, 1, columns, seed=1)

    def activated(replicas):
        own = values[replicas].requires_grad_()
        result = doors.activation(own, name)
        return result.detach(), torch.autograd.grad(result, own, slopes[replicas])[0]

    for one, other in zip(activated(slice(3, 4)), activated(slice(None)), strict=True):
        assert torch.equal(one[0], other[3])


@pytest.mark.parametrize("activation", ["selu", "relu", "tanh"])
@pytest.mark.parametrize("kind", ["own", "shared", "sparse"])
def test_a_network_in_training_is_its_layers_one_after_the_other(kind, activation):
    inputs = {"own": randn(REPLICAS, 60, WIDTH), "shared": randn(60, WIDTH), "sparse": sparse()}
    fast, plain = networks = [
        ReplicaMLP(REPLICAS, [WIDTH, 6, 5, 4], batch_norm=True, activation=activation)
        for _ in range(2)
    ]
    for network in networks:
        network.reset([torch.Generator().manual_seed(seed) for seed in range(REPLICAS)])
    hidden = inputs[kind]
    for layer in plain.layers:
        hidden = layer(hidden)
    outputs = doors.mlp(fast, inputs[kind])
    torch.testing.assert_close(outputs, hidden, rtol=1e-4, atol=1e-5)
    slopes = randn(*hidden.shape, seed=9)
    found = (
        torch.autograd.grad(result, list(network.parameters()), slopes)
        for result, network in ((outputs, fast), (hidden, plain))
    )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    assert doors.mlp(fast.eval(), inputs[kind]) is None


def test_a_layer_knows_its_parts():
    network = ReplicaMLP(REPLICAS, [WIDTH, 6, 4], batch_norm=True, dropout=0.5)
    first, last = network.layers
    assert first == Layer(network.linears[0], network.norms[0], "selu", network.dropouts[0])
    assert last == Layer(network.linears[1], None, None, None)
