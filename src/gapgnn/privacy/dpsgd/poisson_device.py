"""Fast Poisson batches drawn on an accelerator, where a batch of thousands is needed every moment.

The same draw as on a CPU, gaps between heads, from the device's own generator. A generator's seed
is derived from the secret key for one block of steps, so amplification rests on 63 secret bits of a
generator that is not cryptographic: this is the ``fast`` construction, for experiments (privacy
page, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapgnn.privacy.mechanisms import device_heads
from gapgnn.rng import NoiseKey

# Draws per block of steps and replica. Depends on nothing else: a replica's batches are its own.
BLOCK_DRAWS = 1 << 20


def device_block(
    keys: Sequence[NoiseKey],
    *,
    rate: float,
    num_examples: Sequence[int],
    steps: int,
    block: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the batches of some steps, padded, and their sizes.

    Args:
        keys: one secret per replica.
        rate: probability of each example to join a step.
        num_examples: how many examples each replica samples from.
        steps: how many steps.
        block: the number of this block, which names its draws.
        device: where to draw.

    Returns:
        Positions ``(steps, R, width)``, 0 where a batch is shorter, and sizes ``(steps, R)``.

    >>> positions, sizes = device_block([NoiseKey.insecure(0)], rate=0.1, num_examples=[50],
    ...                                 steps=3, block=0, device=torch.device("cpu"))
    >>> positions.shape == (3, 1, int(sizes.max()))
    True
    """
    drawn = []
    for key, count in zip(keys, num_examples, strict=True):
        heads = device_heads(key, steps * count, rate, "device", block, device=device)
        drawn.append((heads // count, heads % count))
    sizes = torch.stack([torch.bincount(rows, minlength=steps) for rows, _ in drawn], dim=1)
    width = max(1, int(sizes.max()))
    positions = torch.zeros(steps, len(keys), width, dtype=torch.int64, device=device)
    for replica, (rows, examples) in enumerate(drawn):
        starts = sizes[:, replica].cumsum(0) - sizes[:, replica]
        within = torch.arange(len(rows), device=device) - starts[rows]
        positions[rows, replica, within] = examples
    return positions, sizes
