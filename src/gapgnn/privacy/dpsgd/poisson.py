"""Poisson batches: every example joins every step by its own secret coin (privacy page, section 4).

Amplification by subsampling holds only while nobody knows who was in a batch, so the coins come
from the secret noise key and never from the experiment's seed
(:class:`~gapgnn.privacy.mechanisms.coins.Coins`). The work is proportional to the batch and not to
the data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy.dpsgd import poisson_device
from gapgnn.privacy.mechanisms import Coins
from gapgnn.rng import NoiseKey

# Draws per block of steps: bounds memory, and amortises the work per block over many small steps.
BLOCK_DRAWS = 1 << 16


@dataclass(frozen=True)
class DPSchedule:
    """How long and how densely DP-SGD samples: what the accountant and the divisor need.

    ``num_examples`` is the number that is taken to be public; there may be some more or fewer
    examples, and neither the rate nor the number of steps tells how many.
    """

    num_examples: int
    sampling_rate: float
    steps: int
    expected_batch: float


def plan_steps(num_examples: int, batch_size: int, epochs: int) -> DPSchedule:
    """Return the schedule of ``epochs`` passes with batches of ``batch_size`` on average.

    The number of examples given here is treated as public. A batch larger than the training set has
    no sampling rate and is refused.

    >>> plan_steps(11530, 256, 10).steps
    450
    >>> plan_steps(100, 256, 10)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `batch_size` must be at most 100, the number of examples. Got 256.
    """
    num_examples = check_integer("num_examples", num_examples, at_least=1)
    batch_size = check_integer("batch_size", batch_size, at_least=1)
    epochs = check_integer("epochs", epochs, at_least=1)
    if batch_size > num_examples:
        raise InputError(
            f"`batch_size` must be at most {num_examples}, the number of examples. "
            f"Got {batch_size}."
        )
    steps = max(1, epochs * num_examples // batch_size)
    return DPSchedule(num_examples, batch_size / num_examples, steps, float(batch_size))


@dataclass(frozen=True)
class PoissonBatch:
    """One step's examples of all replicas, padded to the largest of them.

    ``positions`` is ``(R, B)`` int64 and ``valid`` says which entries are real; padding points at
    the first example so that it can be read, and must be given no weight.
    """

    step: int
    positions: Tensor
    valid: Tensor


class PoissonBatches:
    """The batches of one training phase, for all replicas at once.

    Each replica samples from its own key, so its batches do not depend on the other replicas.

    Args:
        schedule: sampling rate and number of steps.
        keys: one secret key per replica.
        phase: the name of this training within the run; two phases share no coin.
        members: which examples each replica samples from, ``(n_r,)`` each; default ``0..n-1``
            with the schedule's n. How many they are changes neither rate nor steps.
        construction: ``safe`` draws from SHAKE-256; ``fast`` from NumPy's Philox seeded with all
            256 bits of the derived key, or on an accelerator from its own generator.
        device: where the batches are needed.

    >>> batches = PoissonBatches(plan_steps(100, 10, 2), [NoiseKey.insecure(0)], phase="encoder")
    >>> [len(batch.positions) for batch in batches] == [1] * 20
    True
    """

    def __init__(
        self,
        schedule: DPSchedule,
        keys: Sequence[NoiseKey],
        *,
        phase: str,
        members: Sequence[Tensor] | None = None,
        construction: str = "safe",
        device: str | torch.device = "cpu",
    ) -> None:
        self.schedule = schedule
        self.device = torch.device(device)
        self._rate = check_number("sampling_rate", schedule.sampling_rate, above=0, at_most=1)
        self._keys = [key.derive("sampling", phase) for key in keys]
        self._construction = check_choice("construction", construction, ("safe", "fast"))
        if members is None:
            members = [torch.arange(schedule.num_examples)] * len(self._keys)
        if len(members) != len(self._keys):
            raise InputError(
                f"`members` must have one list per key ({len(self._keys)}). Got {len(members)}."
            )
        self._members = [mine.to(self.device) for mine in members]
        if not all(len(mine) for mine in self._members):
            raise InputError("`members` must have an example for every replica. Got none.")

    def __len__(self) -> int:
        return self.schedule.steps

    def __iter__(self) -> Iterator[PoissonBatch]:
        """Yield the batch of every step; iterating again yields the same batches."""
        if self.device.type != "cpu" and self._construction == "fast" and self._rate < 1:
            yield from self._on_device()
            return
        most = max(1, int(BLOCK_DRAWS / self.schedule.expected_batch))
        for block, first in enumerate(range(0, self.schedule.steps, most)):
            length = min(most, self.schedule.steps - first)
            drawn = [
                self._heads(key, len(mine), block, length)
                for key, mine in zip(self._keys, self._members, strict=True)
            ]
            counts = np.stack([np.bincount(steps, minlength=length) for steps, _ in drawn], axis=1)
            positions = self._padded(drawn, counts)
            sizes = torch.from_numpy(counts).to(self.device).unsqueeze(-1)
            valid = torch.arange(positions.shape[2], device=self.device) < sizes
            widths = counts.max(axis=1).tolist()
            for row, both in enumerate(zip(positions.unbind(), valid.unbind(), strict=True)):
                chosen, real = (part[:, : max(1, widths[row])] for part in both)
                yield PoissonBatch(first + row, chosen, real)

    def _on_device(self) -> Iterator[PoissonBatch]:
        """Draw fast batches where they are needed."""
        most = max(1, int(poisson_device.BLOCK_DRAWS / self.schedule.expected_batch))
        for block, first in enumerate(range(0, self.schedule.steps, most)):
            positions, sizes = poisson_device.device_block(
                self._keys,
                rate=self._rate,
                num_examples=[len(mine) for mine in self._members],
                steps=min(most, self.schedule.steps - first),
                block=block,
                device=self.device,
            )
            valid = torch.arange(positions.shape[2], device=self.device) < sizes.unsqueeze(-1)
            chosen = self._named(positions)
            for row, width in enumerate(sizes.amax(dim=1).tolist()):
                part = slice(0, max(1, width))
                yield PoissonBatch(first + row, chosen[row, :, part], valid[row, :, part])

    def _named(self, positions: Tensor) -> Tensor:
        """Return which examples the positions ``(steps, R, width)`` mean."""
        found = [mine[positions[:, place]] for place, mine in enumerate(self._members)]
        return torch.stack(found, dim=1)

    def _padded(
        self, drawn: list[tuple[NDArray[np.int64], NDArray[np.int64]]], counts: NDArray[np.int64]
    ) -> Tensor:
        """Arrange the draws as ``(steps, R, width)``, example 0 where a batch is shorter."""
        length, replicas = counts.shape
        width = max(1, int(counts.max()))
        table = np.zeros((length, replicas, width), dtype=np.int64)
        cells = table.reshape(-1)
        for replica, (steps, examples) in enumerate(drawn):
            before = np.cumsum(counts[:, replica]) - counts[:, replica]
            firsts = (np.arange(length) * replicas + replica) * width
            cells[np.arange(len(steps)) + (firsts - before)[steps]] = examples
        return self._named(torch.from_numpy(table).to(self.device))

    def _heads(
        self, key: NoiseKey, num_examples: int, block: int, length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Toss ``length * n`` coins in a row and return the (step, example) of every head."""
        coins = Coins(key, construction=self._construction)
        heads = coins.heads(length * num_examples, self._rate, block)
        return np.divmod(heads, num_examples)
