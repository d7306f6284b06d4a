"""What dropout blanks on a device: a function of the replica's seed, the call and the place.

Kernels run on a CPU in the process of tests/privacy/test_interpreter.py, and on a GPU where there
is one.
"""

import os

import pytest
import torch

from gapgnn.nn.kernels import registry
from gapgnn.nn.kernels.cuda import Masks
from gapgnn.nn.layers import LEVELS, ReplicaDropout

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WHERE = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not IS_INTERPRETED, reason="runs in the interpreter")
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]
SEEDS = [5, 2**62 + 3]
THRESHOLD = 77


@pytest.fixture(params=WHERE)
def device(request) -> torch.device:
    return torch.device(request.param)


def dropped(seeds, values, device, calls=1):
    masks = Masks(seeds, device)
    found = [masks.dropped(values.to(device), THRESHOLD, LEVELS) for _ in range(calls)]
    return torch.stack(found).cpu()


def test_the_asked_share_is_blanked_and_the_rest_scaled_up(device):
    # 20,000 values: six deviations are 0.02.
    (found,) = dropped(SEEDS, torch.ones(2, 4000, 5), device)
    assert (found == 0).double().mean(dim=(1, 2)).sub(THRESHOLD / LEVELS).abs().max() < 0.02
    assert found.max() == pytest.approx(LEVELS / (LEVELS - THRESHOLD))
    assert len(found.unique()) == 2


def test_calls_replicas_and_places_have_masks_of_their_own(device):
    found = dropped(SEEDS, torch.ones(2, 4000, 5), device, calls=3) > 0
    kept = 1 - THRESHOLD / LEVELS
    # Independent masks agree where both keep or both blank a value.
    chance = kept**2 + (1 - kept) ** 2
    flat = found.flatten(0, 1).flatten(1)
    for one in range(len(flat)):
        for other in range(one):
            assert (flat[one] == flat[other]).double().mean() == pytest.approx(chance, abs=0.025)
    halves = flat.view(6, 2, -1)
    assert (halves[:, 0] == halves[:, 1]).double().mean() == pytest.approx(chance, abs=0.025)


def test_a_replica_is_blanked_alike_with_and_without_others(device):
    values = torch.ones(2, 300, 3)
    both, alone = dropped(SEEDS, values, device, 2), dropped(SEEDS[1:], values[1:], device, 2)
    assert torch.equal(both[:, 1], alone[:, 0])


def test_gradients_are_blanked_where_values_were(device):
    values = torch.ones(2, 300, 3, device=device, requires_grad=True)
    masks = Masks(SEEDS, device)
    first, second = (masks.dropped(values, THRESHOLD, LEVELS) for _ in range(2))
    for out in (first, second):
        (gradients,) = torch.autograd.grad(out.sum(), values)
        assert torch.equal(gradients, out.detach())
    assert not torch.equal(first, second)


def test_the_layer_takes_them(device, monkeypatch):
    here = registry.Kernel("dropout", device.type, lambda seeds, device: True, Masks)
    monkeypatch.setitem(registry._kernels, ("dropout", device.type), [here])
    layer = ReplicaDropout(2, 0.5)
    layer.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    values = torch.ones(2, 300, 3, device=device)
    once, again = layer(values), layer(values)
    layer.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    assert torch.equal(layer(values), once)
    assert not torch.equal(once, again)
