"""Poisson batches: independent coins of one rate for every example, step and replica."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gapgnn.errors import InputError
from gapgnn.privacy.dpsgd.poisson import DPSchedule, PoissonBatches, plan_steps
from gapgnn.rng import NoiseKey

EXAMPLES, RATE, STEPS, REPLICAS = 300, 0.08, 2000, 2


def joined(batches: PoissonBatches, replicas: int, examples: int) -> NDArray[np.float64]:
    """Return who joined what, as zeros and ones of shape (steps, replicas, examples)."""
    table = np.zeros((len(batches), replicas, examples))
    for batch in batches:
        for replica in range(replicas):
            chosen = batch.positions[replica][batch.valid[replica]].numpy()
            assert len(np.unique(chosen)) == len(chosen), "an example joins a batch at most once"
            table[batch.step, replica, chosen] = 1
    return table


def check_coins(table: NDArray[np.float64], rate: float) -> None:
    """Fail unless the entries look like independent coins; thresholds seven deviations out."""
    steps, replicas, examples = table.shape
    variance = rate * (1 - rate)
    assert abs(table.mean() - rate) < 7 * (variance / table.size) ** 0.5
    sizes = table.sum(axis=2)
    spread = sizes.var() / (examples * variance)
    assert abs(spread - 1) < 7 * (2 / sizes.size) ** 0.5, "batch sizes must be binomial"
    counts = table.sum(axis=(0, 1))
    surprise = ((counts - steps * replicas * rate) ** 2).sum()
    surprise /= steps * replicas * variance
    assert abs(surprise - examples) < 7 * (2 * examples) ** 0.5, "every example has the same rate"
    centred = table - rate
    products = {
        "steps": centred[1:] * centred[:-1],
        "examples": centred[:, :, 1:] * centred[:, :, :-1],
        "replicas": centred[:, 1:] * centred[:, :-1],
    }
    for between, product in products.items():
        bound = 7 * variance / product.size**0.5
        assert abs(product.mean()) < bound, f"coins must be independent between {between}"


@pytest.fixture(scope="module", params=["safe", "fast"])
def coins(request: pytest.FixtureRequest) -> NDArray[np.float64]:
    schedule = DPSchedule(EXAMPLES, RATE, STEPS, EXAMPLES * RATE)
    keys = [NoiseKey.insecure(seed) for seed in range(REPLICAS)]
    batches = PoissonBatches(schedule, keys, phase="test", noise=request.param)
    return joined(batches, REPLICAS, EXAMPLES)


def test_every_example_joins_by_its_own_coin(coins: NDArray[np.float64]) -> None:
    check_coins(coins, RATE)


def fixed_size(coins: NDArray[np.float64]) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    ranks = rng.random(coins.shape).argsort(axis=2).argsort(axis=2)
    return (ranks < EXAMPLES * RATE).astype(float)


def same_every_step(coins: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.broadcast_to(coins[:1], coins.shape)


def same_in_pairs_of_steps(coins: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.repeat(coins[::2], 2, axis=0)


def same_every_replica(coins: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.broadcast_to(coins[:, :1], coins.shape)


def first_example_never(coins: NDArray[np.float64]) -> NDArray[np.float64]:
    return coins * (np.arange(EXAMPLES) > 0)


@pytest.mark.parametrize(
    "bug",
    [fixed_size, same_every_step, same_in_pairs_of_steps, same_every_replica, first_example_never],
)
def test_the_coin_check_catches_planted_bugs(coins, bug) -> None:
    with pytest.raises(AssertionError):
        check_coins(bug(coins), RATE)


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_a_rate_of_one_takes_everybody_and_a_tiny_rate_nobody(noise: str) -> None:
    keys = [NoiseKey.insecure(0)]
    full = PoissonBatches(plan_steps(50, 50, 3), keys, phase="p", noise=noise)
    assert joined(full, 1, 50).min() == 1
    rare = DPSchedule(5, 1e-9, 4, 5e-9)
    batches = list(PoissonBatches(rare, keys, phase="p", noise=noise))
    assert [bool(batch.valid.any()) for batch in batches] == [False] * 4
    assert all(batch.positions.shape == (1, 1) for batch in batches)


def test_a_replica_draws_the_same_batches_alone_and_beside_others() -> None:
    schedule = plan_steps(200, 20, 5)
    keys = [NoiseKey.insecure(seed) for seed in range(3)]
    together = joined(PoissonBatches(schedule, keys, phase="p"), 3, 200)
    for replica, key in enumerate(keys):
        alone = joined(PoissonBatches(schedule, [key], phase="p"), 1, 200)
        np.testing.assert_array_equal(together[:, replica], alone[:, 0])


def test_keys_and_phases_share_no_coin_and_iterating_again_repeats_them() -> None:
    schedule = plan_steps(200, 20, 5)

    def draw(seed: int, phase: str) -> NDArray[np.float64]:
        return joined(PoissonBatches(schedule, [NoiseKey.insecure(seed)], phase=phase), 1, 200)

    base = draw(0, "encoder")
    np.testing.assert_array_equal(base, draw(0, "encoder"))
    for other in (draw(1, "encoder"), draw(0, "classifier")):
        assert (base != other).any(axis=(1, 2)).all()


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_two_phases_of_equal_size_under_one_key_share_no_batch(noise: str) -> None:
    """Who was in the encoder's batches says nothing about the classifier's."""
    schedule = DPSchedule(EXAMPLES, RATE, 200, EXAMPLES * RATE)
    tables = [
        joined(
            PoissonBatches(schedule, [NoiseKey.insecure(0)], phase=phase, noise=noise),
            1,
            EXAMPLES,
        )
        for phase in ("encoder", "classifier")
    ]
    both = (tables[0] - RATE) * (tables[1] - RATE)
    assert abs(both.mean()) < 7 * RATE * (1 - RATE) / both.size**0.5


def test_long_trainings_are_drawn_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapgnn.privacy.dpsgd.poisson.BLOCK_DRAWS", 100)
    schedule = DPSchedule(EXAMPLES, RATE, STEPS, EXAMPLES * RATE)
    keys = [NoiseKey.insecure(seed) for seed in range(REPLICAS)]
    batches = PoissonBatches(schedule, keys, phase="test")
    assert [batch.step for batch in batches] == list(range(STEPS))
    check_coins(joined(batches, REPLICAS, EXAMPLES), RATE)


def test_positions_can_name_each_replicas_own_examples() -> None:
    schedule = plan_steps(4, 2, 10)
    members = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21, 22, 23, 24])]
    keys = [NoiseKey.insecure(0), NoiseKey.insecure(1)]
    for batch in PoissonBatches(schedule, keys, phase="p", members=members):
        assert bool((batch.positions // 10 == torch.tensor([[1], [2]])).all())
    with pytest.raises(InputError, match=r"`members` must have one list per key \(2\)\. Got 1\."):
        PoissonBatches(schedule, keys, phase="p", members=members[:1])


def test_neither_rate_nor_steps_tell_how_many_examples_there_are() -> None:
    schedule = plan_steps(100, 10, 20)
    keys = [NoiseKey.insecure(0), NoiseKey.insecure(1)]
    for count in (90, 110):
        batches = PoissonBatches(schedule, keys, phase="p", members=[torch.arange(count)] * 2)
        assert len(batches) == schedule.steps
        check_coins(joined(batches, 2, count), schedule.sampling_rate)


def test_the_schedule_counts_steps_from_epochs() -> None:
    assert plan_steps(11_530, 256, 10) == DPSchedule(11_530, 256 / 11_530, 450, 256.0)
    assert plan_steps(10, 10, 1).steps == 1
    assert plan_steps(10, 7, 1).steps == 1


@pytest.mark.parametrize("wrong", [(100, 101, 1), (0, 1, 1), (10, 0, 1), (10, 5, 0)])
def test_impossible_schedules_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="must be at"):
        plan_steps(*wrong)


def test_a_batch_larger_than_the_data_names_the_largest_allowed() -> None:
    with pytest.raises(InputError, match="`batch_size` must be at most 100, the number of"):
        plan_steps(100, 256, 10)
