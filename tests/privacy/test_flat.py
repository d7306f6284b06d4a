"""Flat parameters and their optimisers equal torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapgnn.errors import InputError
from gapgnn.nn.layers import ReplicaMLP, cross_entropy
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters, FlatSGD


def make_mlp(replicas: int) -> ReplicaMLP:
    mlp = ReplicaMLP(replicas, [6, 8, 3])
    mlp.reset([torch.Generator().manual_seed(seed) for seed in range(replicas)])
    return mlp


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (FlatAdam, torch.optim.Adam, {}),
        (FlatAdam, torch.optim.Adam, {"weight_decay": 0.1}),
        (FlatSGD, torch.optim.SGD, {}),
        (FlatSGD, torch.optim.SGD, {"weight_decay": 0.1}),
    ],
)
def test_flat_optimisers_are_those_of_torch(ours, theirs, options: dict[str, object]) -> None:
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(2, 50, generator=rng)
    twin = nn.Parameter(values.clone())
    mine = ours(values, learning_rate=0.02, **options)
    other = theirs([twin], lr=0.02, **options)
    for _ in range(30):
        gradient = torch.randn(2, 50, generator=rng)
        mine.step(gradient.clone())
        twin.grad = gradient
        other.step()
    torch.testing.assert_close(values, twin.detach(), rtol=1e-5, atol=1e-6)


def test_flat_parameters_are_the_modules_own() -> None:
    mlp = make_mlp(2)
    inputs = torch.ones(2, 3, 6)
    before = mlp(inputs)
    flat = FlatParameters(mlp)
    torch.testing.assert_close(mlp(inputs), before)
    flat.values.zero_()
    assert not bool(mlp(inputs).any())
    with pytest.raises(InputError, match="replica axis"):
        FlatParameters(nn.Linear(3, 2))


def test_the_plain_gradient_is_that_of_autograd() -> None:
    mlp = make_mlp(2)
    flat = FlatParameters(mlp)
    inputs = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 1, 2, 1, 0]])
    losses = cross_entropy(mlp(inputs.expand(2, -1, -1)), labels)
    found = flat.gradient(losses)
    cross_entropy(mlp(inputs.expand(2, -1, -1)), labels).sum().backward()
    expected = torch.cat([value.grad.reshape(2, -1) for value in flat.parameters], dim=1)
    torch.testing.assert_close(found, expected)
