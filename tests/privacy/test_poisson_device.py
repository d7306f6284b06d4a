"""Batches that are drawn where they are needed are as Poisson as those drawn on the host."""

import math

import pytest
import torch
from scipy import stats

from gapgnn.privacy.dpsgd.poisson import DPSchedule, PoissonBatches
from gapgnn.rng import NoiseKey

KEYS = [NoiseKey.insecure(seed) for seed in range(2)]
COUNT, RATE, STEPS = 500, 0.04, 400
FALSE_ALARM = 1e-9


def block(keys=KEYS, number=0):
    schedule = DPSchedule(COUNT, RATE, STEPS, COUNT * RATE)
    batches = PoissonBatches(schedule, keys, phase="test", noise="fast")
    return batches._block(number, STEPS, there=True)


def joins():
    """Return who joined which step, (steps, replicas, examples)."""
    positions, sizes = block()
    counts = torch.zeros(STEPS, len(KEYS), COUNT, dtype=torch.int64)
    is_real = torch.arange(positions.shape[2]) < sizes.unsqueeze(-1)
    return counts.scatter_add_(2, positions, is_real.long())


def is_likely(successes, trials, rate=RATE):
    coin = stats.binom(trials, rate)
    return min(coin.cdf(successes), coin.sf(successes - 1)) > FALSE_ALARM


def test_every_example_joins_every_step_by_its_own_coin():
    joined = joins()
    assert int(joined.max()) == 1
    assert is_likely(int(joined.sum()), joined.numel())
    for example in range(COUNT):
        assert is_likely(int(joined[:, :, example].sum()), STEPS * 2)
    sizes = joined.sum(dim=2).double()
    assert len(sizes.unique()) > 10
    variance = COUNT * RATE * (1 - RATE)
    assert float(sizes.var()) == pytest.approx(variance, rel=6 * math.sqrt(2 / sizes.numel()))
    together = int((joined[:-1] & joined[1:]).sum())
    assert is_likely(together, joined[:-1].numel(), RATE**2)
    assert is_likely(int((joined[:, 0] & joined[:, 1]).sum()), STEPS * COUNT, RATE**2)


def test_a_rate_that_is_five_percent_off_is_seen():
    assert not is_likely(int(joins().sum()), STEPS * 2 * COUNT, RATE * 1.05)


def test_a_replicas_batches_are_its_own_and_come_back_from_the_key():
    positions, sizes = block()
    alone, own = block([KEYS[1]])
    assert torch.equal(own[:, 0], sizes[:, 1])
    width = alone.shape[2]
    assert torch.equal(alone[:, 0], positions[:, 1, :width])
    assert not torch.equal(block(number=1)[1], sizes)
