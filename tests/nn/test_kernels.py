"""Kernels are optional, and give the values and gradients of the layers that they replace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gapgnn.errors import InputError
from gapgnn.nn.kernels import cpu, kernels_off, lookup, register, registered, registry
from gapgnn.nn.layers import linear

REPLICAS = 3
CPU = torch.device("cpu")
# Where the kernels are compared with what they replace.
COMPARED = {
    "narrow_product": "here",
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
