"""A small network, steps of DP-SGD on it, and batches for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.nn.layers import ReplicaMLP, cross_entropy
from gapgnn.privacy.dpsgd.flat import FlatParameters, FlatSGD
from gapgnn.privacy.dpsgd.ghost import Tape, record_linears
from gapgnn.privacy.dpsgd.step import PrivateStep
from gapgnn.privacy.mechanisms.noise import NoiseSource, SafeOrFast
from gapgnn.rng import NoiseKey

SIZES = [20, 16, 16, 5]


def make_mlp(replicas: int = 1, sizes: Sequence[int] = SIZES, first_seed: int = 0) -> ReplicaMLP:
    mlp = ReplicaMLP(replicas, sizes)
    mlp.reset([torch.Generator().manual_seed(first_seed + r) for r in range(replicas)])
    return mlp


def make_sources(
    replicas: int = 1, noise: SafeOrFast = "fast", first: int = 0
) -> list[NoiseSource]:
    keys = [NoiseKey.insecure(first + r) for r in range(replicas)]
    return [NoiseSource(key, noise=noise) for key in keys]


def make_step(
    module: nn.Module,
    *,
    case: type[PrivateStep] = PrivateStep,
    noise: SafeOrFast = "fast",
    rate: float = 1.0,
    clip: float = 1.0,
    multiplier: float = 1.0,
    expected: float = 1.0,
    first_key: int = 0,
    phase: str = "test",
) -> PrivateStep:
    flat = FlatParameters(module)
    return case(
        flat,
        FlatSGD(flat.values, learning_rate=rate),
        clip=clip,
        noise_multiplier=multiplier,
        expected_batch=expected,
        sources=make_sources(flat.replicas, noise, first_key),
        phase=phase,
    )


def forward(module: nn.Module, inputs: object, labels: Tensor) -> tuple[Tape, Tensor]:
    with record_linears() as tape:
        losses = cross_entropy(module(inputs), labels)
    return tape, losses


def make_batch(count: int, *, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(1, count, SIZES[0])).astype(np.float32)) * scale
    return inputs, torch.from_numpy(rng.integers(SIZES[-1], size=(1, count)))
