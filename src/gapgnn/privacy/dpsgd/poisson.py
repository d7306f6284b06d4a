"""Poisson batches: every example joins every step by its own secret coin (privacy page, section 4).

Amplification by subsampling holds only while nobody knows who was in a batch, so the coins come
from the secret noise key and never from the experiment's seed
(:class:`~gapgnn.privacy.mechanisms.draws.Coins`). The work is proportional to the batch and not to
the data set.

On an accelerator, where a batch of thousands is needed every moment, coins are tossed there:
``safe`` ones from the words of the cipher that the host would use (without Triton the host tosses
them), ``fast`` ones by its own generator. Its seed is derived from the secret key for one block of
steps, so amplification then rests on 63 secret bits of a generator that is not cryptographic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy.mechanisms import Coins, can_use_triton, device_heads
from gapgnn.rng import NoiseKey

# Draws per block of steps: bounds memory, and amortises the work per block over many small steps.
# Of fast coins on an accelerator per replica. Depends on nothing else: a replica's batches are its
# own, and safe ones the same wherever they are drawn.
BLOCK_DRAWS, DEVICE_DRAWS = 1 << 16, 1 << 20


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
        noise: ``safe`` draws from ChaCha20, the same words on any device; ``fast`` from NumPy's
            Philox seeded with all 256 bits of the derived key, or on an accelerator from its own
            generator.
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
        noise: str = "safe",
        device: str | torch.device = "cpu",
    ) -> None:
        self.schedule = schedule
        self.device = torch.device(device)
        self._rate = check_number("sampling_rate", schedule.sampling_rate, above=0, at_most=1)
        self._keys = [key.derive("sampling", phase) for key in keys]
        self._noise = check_choice("noise", noise, ("safe", "fast"))
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
        is_fast = self._noise == "fast"
        can_draw = self.device.type != "cpu" and (is_fast or can_use_triton(self.device))
        there = can_draw and self._rate < 1
        draws = DEVICE_DRAWS if there and is_fast else BLOCK_DRAWS
        most = max(1, int(draws / self.schedule.expected_batch))
        for block, first in enumerate(range(0, self.schedule.steps, most)):
            length = min(most, self.schedule.steps - first)
            positions, sizes = self._block(block, length, there=there)
            widths = sizes.amax(dim=1).tolist()
            positions, sizes = positions.to(self.device), sizes.to(self.device)
            valid = torch.arange(positions.shape[2], device=self.device) < sizes.unsqueeze(-1)
            named = [mine[positions[:, place]] for place, mine in enumerate(self._members)]
            tables = torch.stack(named, dim=1).unbind(), valid.unbind()
            for row, both in enumerate(zip(*tables, strict=True)):
                chosen, real = (part[:, : max(1, widths[row])] for part in both)
                yield PoissonBatch(first + row, chosen, real)

    def _block(self, block: int, steps: int, *, there: bool) -> tuple[Tensor, Tensor]:
        """Toss the coins of some steps, on the host or ``there``, on the device.

        Returns:
            Positions among the members ``(steps, R, width)``, 0 where a batch is shorter, and sizes
            ``(steps, R)``.
        """
        drawn = []
        for key, mine in zip(self._keys, self._members, strict=True):
            count = len(mine)
            if there:
                path = (block,) if self._noise == "safe" else ("device", block)
                heads = device_heads(
                    key, steps * count, self._rate, *path, device=self.device, noise=self._noise
                )
            else:
                coins = Coins(key, noise=self._noise)
                heads = torch.from_numpy(coins.heads(steps * count, self._rate, block))
            rows = heads // count
            drawn.append((rows, heads - rows * count))
        sizes = torch.stack([torch.bincount(rows, minlength=steps) for rows, _ in drawn], dim=1)
        width = max(1, int(sizes.max()))
        positions = torch.zeros(
            steps, len(drawn), width, dtype=torch.int64, device=drawn[0][0].device
        )
        for replica, (rows, examples) in enumerate(drawn):
            before = sizes[:, replica].cumsum(0) - sizes[:, replica]
            firsts = torch.arange(replica, sizes.numel(), len(drawn), device=rows.device) * width
            cells = (firsts - before).index_select(0, rows)
            cells += torch.arange(len(rows), device=rows.device)
            positions.view(-1).scatter_(0, cells, examples)
        return positions, sizes
