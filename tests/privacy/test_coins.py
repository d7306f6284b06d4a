"""Coins for very many cells have the right distribution, drawn in blocks or not."""

import numpy as np
import pytest
from scipy import stats

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.mechanisms import draws
from gapgnn.privacy.mechanisms.draws import Coins
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.rng import NoiseKey

SAFE_OR_FAST = ["safe", "fast"]


@pytest.fixture(params=SAFE_OR_FAST)
def coins(request):
    return Coins(NoiseKey.insecure(3), noise=request.param)


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_heads_are_where_independent_coins_would_put_them(coins, block, monkeypatch):
    monkeypatch.setattr(draws, "BLOCK", block)
    count, rate = 2000, 0.03
    runs = [coins.heads(count, rate, "run", run) for run in range(200)]
    assert all((np.diff(heads) > 0).all() and heads[0] >= 0 and heads[-1] < count for heads in runs)
    sizes = [len(heads) for heads in runs]
    assert abs(sum(sizes) - 200 * count * rate) < 4 * np.sqrt(200 * count * rate * (1 - rate))
    hits = np.bincount(np.concatenate(runs), minlength=count).reshape(40, 50).sum(axis=1)
    assert stats.chisquare(hits).pvalue > 1e-3
    assert stats.kstest(sizes, stats.binom(count, rate).cdf, method="asymp").pvalue > 1e-6


def test_heads_among_trillions_of_cells_take_no_more_memory_than_they_are(coins):
    count = 3_200_000_000_000
    heads = coins.heads(count, 1e-8, "many")
    assert abs(len(heads) - 32_000) < 4 * np.sqrt(32_000)
    assert stats.kstest(heads / count, "uniform").pvalue > 1e-3


def test_certain_and_impossible_coins(coins):
    assert coins.heads(5, 1.0, "a").tolist() == [0, 1, 2, 3, 4]
    assert coins.heads(5, 0.0, "b").tolist() == coins.heads(0, 0.5, "c").tolist() == []
    assert coins.each(4, 1.0, "d").all()
    assert not coins.each(4, 0.0, "e").any()
    with pytest.raises(InputError, match="`probability`"):
        coins.each(4, -0.1, "f")


@pytest.mark.parametrize("rate", [0.001, 0.5, 0.97])
def test_one_coin_each(coins, rate):
    count = 100_000
    heads = int(coins.each(count, rate, "each").sum())
    assert abs(heads - count * rate) < 4 * np.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize("noise", SAFE_OR_FAST)
def test_laplace_noise_to_compare_and_its_upper_tail(noise):
    source = NoiseSource(NoiseKey.insecure(3), noise=noise)
    values = source.laplace_unrounded(5000, 2.0, "x")
    assert stats.kstest(values, "laplace", args=(0, 2.0)).pvalue > 1e-3
    for share in (0.01, 0.7, 1.0):
        values = source.laplace_above(5000, 2.0, share, "tail", str(share))
        # How far into the upper tail each value lies, as a share of that tail, is uniform.
        assert stats.kstest(stats.laplace.sf(values, 0, 2.0) / share, "uniform").pvalue > 1e-3
    with pytest.raises(PrivacyError, match="`scale` of a release must be positive"):
        source.laplace_unrounded(1, 0.0, "x")
