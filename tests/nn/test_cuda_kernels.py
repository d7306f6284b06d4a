"""Kernels of a GPU compute what torch's own operations compute, forwards and backwards."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from gapgnn.nn.kernels import cuda as fused
from gapgnn.nn.kernels import kernels_off
from gapgnn.nn.layers import ReplicaMLP, cross_entropy, linear
from gapgnn.privacy.mechanisms.device import can_use_triton

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not can_use_triton(torch.device("cuda")),
        reason="no CUDA device or no Triton",
    ),
]


def with_marks(marks):
    def mark(test):
        for one in marks:
            test = one(test)
        return test

    return mark


@pytest.mark.parametrize("count", [1, 5, 16, 50])
def test_a_weight_gradient_in_parts_is_the_whole_one(count, monkeypatch):
    monkeypatch.setattr(fused, "PART", 8)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, count, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(3, 1, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    leaves = (inputs, weight, bias)
    whole = torch.baddbmm(bias, inputs, weight)
    parted = fused.long_product(inputs.split([1, 3], dim=2), weight, bias)
    assert torch.allclose(parted, whole)
    gradient = torch.randn_like(whole)
    for one, other in zip(
        torch.autograd.grad(whole, leaves, gradient),
        torch.autograd.grad(parted, leaves, gradient),
        strict=True,
    ):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_of_shared_inputs_is_that_of_each_replica(has_bias):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 7, generator=generator)
    leaves = [torch.randn(3, 7, 5, generator=generator, requires_grad=True)]
    leaves += [torch.randn(3, 1, 5, generator=generator, requires_grad=True)] if has_bias else []
    weight, bias = leaves[0], leaves[1] if has_bias else None
    found, wanted = fused.shared_product([inputs], weight, bias), linear(inputs, weight, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    gradient = torch.randn(wanted.shape, generator=generator)
    pairs = (torch.autograd.grad(result, leaves, gradient) for result in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "rows"), [(10, 4), (8, 4), (3, 4)])
def test_statistics_of_blocks_combine_to_those_of_all_rows(count, rows):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, count, 3, dtype=torch.float64, generator=generator) + 100
    blocks = [
        torch.stack([part.mean(1), part.var(1, unbiased=False) * part.shape[1]], dim=1)
        for part in values.split(rows, dim=1)
    ]
    mean, variance = fused._combined(torch.stack(blocks, dim=1), count, rows)
    assert torch.allclose(mean, values.mean(1))
    assert torch.allclose(variance, values.var(1, unbiased=False))


def plain_norm(values, weight, bias, activation):
    mean = values.mean(1, keepdim=True)
    variance = values.var(1, unbiased=False, keepdim=True)
    normal = (values - mean) / (variance + 1e-5).sqrt()
    return getattr(F, activation)(normal * weight.unsqueeze(1) + bias.unsqueeze(1))


@with_marks(on_gpu)
@pytest.mark.parametrize("activation", ["selu", "elu", "relu"])
@pytest.mark.parametrize(("count", "channels"), [(5000, 16), (1023, 10), (3, 1), (700, 128)])
@pytest.mark.parametrize("is_beside", [False, True])
def test_norm_and_activation_are_those_of_float64(activation, count, channels, is_beside):
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, channels) if is_beside else (3, count, channels)
    values = torch.randn(shape, generator=generator).cuda() * 2 + 5
    if is_beside:
        values = values.permute(1, 0, 2)
    weight, bias = (torch.randn(3, channels, generator=generator).cuda() for _ in range(2))
    gradient = torch.randn(3, count, 3 * channels, generator=generator).cuda()[
        ..., channels : 2 * channels
    ]
    leaves = [part.detach().requires_grad_() for part in (values, weight, bias)]
    running = torch.zeros(3, channels).cuda(), torch.ones(3, channels).cuda()
    found = fused.norm_and_activation(
        *leaves, *running, momentum=1.0, epsilon=1e-5, activation=activation
    )
    gradients = torch.autograd.grad(found, leaves, gradient)
    exact = [part.detach().double().requires_grad_() for part in (values, weight, bias)]
    expected = plain_norm(*exact, activation)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert torch.allclose(running[0].double(), values.double().mean(1), atol=1e-5)
    assert torch.allclose(running[1].double(), values.double().var(1), rtol=1e-4)
    for one, other in zip(
        gradients, torch.autograd.grad(expected, exact, gradient.double()), strict=True
    ):
        size = float(other.abs().max()) + 1e-3
        assert float((one.double() - other).abs().max()) < 1e-3 * size
    assert gradients[0].stride() == values.stride()


@with_marks(on_gpu)
@pytest.mark.parametrize("count", [1, 63, 5000, 50_001])
@pytest.mark.parametrize(("width", "out"), [(16, 16), (16, 10), (1, 1), (20, 5), (32, 32)])
def test_a_narrow_weight_gradient_is_that_of_float64(count, width, out):
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(count, 3, width + out, generator=generator).cuda().permute(1, 0, 2)
    inputs, gradients = both.split([width, out], dim=2)
    found = fused.weight_gradient(inputs, gradients)
    expected = torch.bmm(inputs.double().transpose(1, 2), gradients.double())
    assert torch.allclose(found.double(), expected, atol=1e-5 * count**0.5, rtol=1e-4)
    assert torch.equal(found, fused.weight_gradient(inputs, gradients))


@with_marks(on_gpu)
@pytest.mark.parametrize("count", [1, 127, 5000])
@pytest.mark.parametrize(("width", "out"), [(16, 16), (16, 10), (1, 1), (20, 5), (32, 32), (40, 3)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_narrow_product_and_its_gradients_are_those_of_float64(count, width, out, has_bias):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, 3, 2 * width, generator=generator).cuda().permute(1, 0, 2)
    leaves = [*values.split(width, dim=2), torch.randn(3, 2 * width, out, generator=generator)]
    leaves += [torch.randn(3, 1, out, generator=generator)] if has_bias else []
    leaves = [part.cuda().detach().requires_grad_() for part in leaves]
    gradient = torch.randn(3, count, out, generator=generator).cuda()
    exact = [part.detach().double().requires_grad_() for part in leaves]
    found = fused.long_product(leaves[:2], leaves[2], leaves[3] if has_bias else None)
    expected = torch.cat(exact[:2], dim=2) @ exact[2] + (exact[3] if has_bias else 0)
    pairs = [(found, expected)]
    pairs += zip(
        torch.autograd.grad(found, leaves, gradient),
        torch.autograd.grad(expected, exact, gradient.double()),
        strict=True,
    )
    for one, other in pairs:
        assert torch.allclose(one.double(), other, atol=1e-5 * count**0.5, rtol=1e-5)


@with_marks(on_gpu)
def test_gradients_alone_are_the_gradient_of_the_weighted_losses():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 301, 7, generator=generator).cuda().requires_grad_()
    labels = torch.randint(7, (301,), generator=generator).cuda()
    weights = torch.rand(2, 301, generator=generator).cuda()
    loss = (cross_entropy(scores, labels) * weights).sum()
    (expected,) = torch.autograd.grad(loss, scores)
    assert torch.allclose(
        fused.cross_entropy_gradients(scores, labels, weights), expected, atol=1e-6
    )


@with_marks(on_gpu)
@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_losses_and_their_gradients_are_torchs(classes):
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(2, 3001, classes, generator=generator) * 10).cuda().requires_grad_()
    shared = torch.randint(classes, (3001,), generator=generator).cuda()
    own = torch.randint(classes, (2, 3001), generator=generator).cuda()
    weights = torch.randn(2, 3001, generator=generator).cuda()
    for labels in (shared, own):
        targets = labels.expand(2, 3001)
        expected = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
        found = cross_entropy(scores, labels)
        assert torch.allclose(found, expected, atol=1e-5)
        one, other = (
            torch.autograd.grad((loss * weights).sum(), scores)[0] for loss in (found, expected)
        )
        assert torch.allclose(one, other, atol=1e-5)
    assert torch.equal(fused.best_class(scores.detach()), scores.argmax(dim=-1))


@with_marks(on_gpu)
def test_a_network_trains_alike_with_and_without_kernels():
    features = torch.randn(40_000, 20, generator=torch.Generator().manual_seed(0)).cuda()
    gradients = []
    for context in (nullcontext, kernels_off):
        mlp = ReplicaMLP(3, [20, 16, 16, 5], batch_norm=True)
        mlp.reset([torch.Generator().manual_seed(seed) for seed in range(3)])
        mlp.cuda().train()
        labels = torch.arange(40_000, device="cuda") % 5
        with context():
            loss = cross_entropy(mlp(features), labels).mean(1).sum()
        gradients.append(torch.autograd.grad(loss, list(mlp.parameters())))
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-3)
