"""The noise has the promised distribution, lies on the grid and comes back from its key alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.mechanisms import noise as noise_module
from gapgnn.privacy.mechanisms.noise import (
    GRID,
    MAX_SCALE,
    MIN_SCALE,
    ROW_BLOCK,
    NoiseSource,
    grid_slack,
)
from gapgnn.rng import NoiseKey

FALSE_ALARM = 1e-9
SAMPLES = 1 << 17
STD = 6.617 * math.sqrt(2)


def wrong_gaussian(values: np.ndarray, std: float) -> bool:
    """Alarm unless the values look like N(0, std^2): exact tests of variance, mean, then shape."""
    n = values.size
    tail = stats.chi2(n).cdf(np.square(values / std).sum())
    if min(tail, 1 - tail) < FALSE_ALARM / 2:
        return True
    if abs(values.mean()) * math.sqrt(n) / std > stats.norm.isf(FALSE_ALARM / 2):
        return True
    return ks_distance_is_wrong(special.ndtr(np.sort(values / std)))


def wrong_laplace(values: np.ndarray, scale: float) -> bool:
    n = values.size
    total = np.abs(values / scale).sum()
    tail = special.gammainc(n, total)
    if min(tail, 1 - tail) < FALSE_ALARM / 2:
        return True
    return ks_distance_is_wrong(stats.laplace.cdf(np.sort(values / scale)))


def ks_distance_is_wrong(cdf: np.ndarray) -> bool:
    n = cdf.size
    ranks = np.arange(n)
    distance = max((cdf - ranks / n).max(), ((ranks + 1) / n - cdf).max())
    return special.kolmogorov(distance * math.sqrt(n)) < FALSE_ALARM


def share_noise(first: np.ndarray, second: np.ndarray, std: float) -> bool:
    """Alarm unless two sets of noise are uncorrelated."""
    z = (first * second).sum() / (std**2 * math.sqrt(first.size))
    return abs(z) > stats.norm.isf(FALSE_ALARM / 2)


def draw(seed: int, *path: str | int, construction: str = "safe") -> np.ndarray:
    source = NoiseSource(NoiseKey.insecure(seed), construction=construction)
    return source.gaussian((SAMPLES // 16, 16), STD, *path).double().numpy().ravel()


@pytest.mark.parametrize("runs", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_the_true_scale_passes_and_three_percent_off_is_seen_in_every_run(runs):
    for run in range(runs):
        values = draw(run, "hop", 1)
        assert not wrong_gaussian(values, STD), f"false alarm in run {run}"
        assert wrong_gaussian(values, STD * 1.03), f"3 % too small went unseen in run {run}"
        assert wrong_gaussian(values, STD / 1.03), f"3 % too large went unseen in run {run}"


def test_the_fast_construction_has_the_same_distribution():
    for run in range(10):
        values = draw(run, "hop", 1, construction="fast")
        assert not wrong_gaussian(values, STD)
        assert wrong_gaussian(values, STD * 1.03)
        assert wrong_gaussian(values, STD / 1.03)


@pytest.mark.parametrize("construction", ["safe", "fast"])
def test_laplace_has_the_stated_scale(construction):
    for run in range(10):
        source = NoiseSource(NoiseKey.insecure(run), construction=construction)
        values = source.add_laplace(torch.zeros(2 * SAMPLES), 2.5, "density").double().numpy()
        assert not wrong_laplace(values, 2.5)
        assert wrong_laplace(values, 2.5 * 1.03)
        assert wrong_laplace(values, 2.5 / 1.03)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(lambda std: std / 2, id="halved"),
        pytest.param(lambda std: std**2, id="variance"),
    ],
)
def test_a_planted_scale_bug_is_seen(bug, monkeypatch):
    honest = noise_module._draw_on_grid
    assert not wrong_gaussian(draw(0, "hop", 1), STD)
    monkeypatch.setattr(
        noise_module,
        "_draw_on_grid",
        lambda key, kind, count, scale, path: honest(key, kind, count, bug(scale), path),
    )
    assert wrong_gaussian(draw(0, "hop", 1), STD)


def test_two_hops_and_two_replicas_have_independent_noise():
    for run in range(10):
        first = draw(run, "hop", 1)
        assert not share_noise(first, draw(run, "hop", 2), STD)
        assert not share_noise(first, draw(run + 1, "hop", 1), STD)


def test_planted_shared_noise_is_seen(monkeypatch):
    honest = noise_module._draw_on_grid
    with monkeypatch.context() as planted:
        planted.setattr(
            noise_module,
            "_draw_on_grid",
            lambda key, kind, count, scale, path: honest(key, kind, count, scale, path[-2:]),
        )
        assert share_noise(draw(0, "hop", 1), draw(0, "hop", 2), STD), "same noise for two hops"
    with monkeypatch.context() as planted:
        planted.setattr(NoiseKey, "insecure", classmethod(lambda cls, seed: cls(b"x" * 32)))
        assert share_noise(draw(0, "hop", 1), draw(1, "hop", 1), STD), "same noise for two replicas"


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_safe_noise_is_float64_on_the_grid_and_never_minus_zero(kind):
    source = NoiseSource(NoiseKey.insecure(1))
    # Minus zero stays what it is only if minus zero is added to it.
    values = getattr(source, f"add_{kind}")(-torch.zeros(1 << 18), MIN_SCALE, "x")
    assert values.dtype == torch.float64
    steps = values / GRID
    assert torch.equal(steps, steps.round())
    zeros = values[values == 0]
    assert len(zeros) > 10
    assert not torch.signbit(zeros).any()


def test_adding_noise_to_grid_values_is_exact():
    source = NoiseSource(NoiseKey.insecure(2))
    values = torch.randint(-(2**40), 2**40, (500, 7)).double() * GRID
    released = source.add_gaussian(values, 3.0, "x")
    assert torch.equal(released - values, source.gaussian((500, 7), 3.0, "x"))


def test_a_released_zero_has_no_sign():
    source = NoiseSource(NoiseKey.insecure(2))
    released = source.add_gaussian(torch.full((1 << 16,), -0.0), MIN_SCALE, "x")
    assert (released == 0).any()
    assert not torch.signbit(released[released == 0]).any()


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(-1, 1))
def test_rounding_to_the_grid_adds_at_most_the_stated_slack(values, shift):
    source = NoiseSource(NoiseKey.insecure(3))
    first = torch.tensor(values, dtype=torch.float64)
    second = first + shift
    released = source.add_gaussian(first, 1.0, "x"), source.add_gaussian(second, 1.0, "x")
    measured = torch.linalg.vector_norm(released[0] - released[1])
    true = torch.linalg.vector_norm(first - second)
    assert measured <= true + grid_slack(len(values)) + 1e-12


def test_ranges_of_blocks_draw_the_same_matrix_as_one_call():
    rows = 3 * ROW_BLOCK + 100
    for construction in ("safe", "fast"):
        source = NoiseSource(NoiseKey.insecure(4), construction=construction)
        whole = source.gaussian((rows, 3), 2.0, "hop", 1)
        parts = [
            source.gaussian_rows(first, min(size, rows - first), 3, 2.0, "hop", 1)
            for first, size in ((0, ROW_BLOCK), (ROW_BLOCK, 2 * ROW_BLOCK), (3 * ROW_BLOCK, rows))
        ]
        assert torch.equal(torch.cat(parts), whole)
    with pytest.raises(InputError, match=r"`first_row` must be a multiple of 4096\. Got 5\."):
        source.gaussian_rows(5, 10, 3, 2.0, "hop", 1)


def test_the_number_of_threads_does_not_change_the_noise():
    source = NoiseSource(NoiseKey.insecure(5))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = source.gaussian((5 * ROW_BLOCK, 2), 1.0, "x")
        torch.set_num_threads(3)
        assert torch.equal(source.gaussian((5 * ROW_BLOCK, 2), 1.0, "x"), alone)
    finally:
        torch.set_num_threads(threads)


def test_a_shorter_draw_is_a_prefix_and_another_width_shares_nothing():
    source = NoiseSource(NoiseKey.insecure(6))
    long = source.gaussian((4000, 4), 1.0, "x")
    assert torch.equal(source.gaussian((100, 4), 1.0, "x"), long[:100])
    other = source.gaussian((8000, 2), 1.0, "x").ravel()
    assert not share_noise(other.numpy(), long.ravel().numpy(), 1.0)


def test_different_paths_keys_and_kinds_draw_different_noise():
    source = NoiseSource(NoiseKey.insecure(7))
    draws = [
        source.gaussian((8,), 1.0, "hop", 1),
        source.gaussian((8,), 1.0, "hop", 2),
        source.gaussian((8,), 1.0, "hop", "1"),
        source.gaussian((8,), 1.0, "step", 1),
        source.add_laplace(torch.zeros(8), 1.0, "hop", 1),
        NoiseSource(NoiseKey.insecure(8)).gaussian((8,), 1.0, "hop", 1),
    ]
    assert len({tuple(values.tolist()) for values in draws}) == len(draws)


class WordKey:
    """A stand-in key whose bytes are chosen by the test."""

    def __init__(self, word: int, more: int = 0) -> None:
        self.word, self.more = word, more

    def bytes(self, count: int, *path: str | int) -> bytes:
        word = self.more if path[-1] == "tail" else self.word
        return word.to_bytes(8, "little") * (count // 8)


def test_tails_reach_beyond_what_53_bits_can():
    def value(word: int, more: int = 0) -> float:
        return noise_module._draw_on_grid(WordKey(word, more), "gaussian", 1, 1.0, ())[0]

    assert value(0, 0) == pytest.approx(special.ndtri(2.0**-129), abs=GRID)
    assert value(0, 0) < -13
    assert value(1 << 63, 0) == -value(0, 0)
    assert value(5, 7 << 60) == pytest.approx(special.ndtri((5 + 7 / 16) / 2**64), abs=GRID)
    below, above = value(2**53 - 1, 2**64 - 1), value(2**53, 0)
    assert below == pytest.approx(above, abs=GRID)
    assert value(2**63 - 1) == 0


def test_the_tail_of_many_draws_has_the_right_weight():
    values = NoiseSource(NoiseKey.insecure(9)).gaussian((1 << 20,), 1.0, "x").abs()
    for far in (3.0, 3.5, 4.0):
        expected = 2 * special.ndtr(-far) * (1 << 20)
        count = int((values > far).sum())
        tail = min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected))
        assert tail > FALSE_ALARM


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, None])
@pytest.mark.parametrize("construction", ["safe", "fast"])
def test_a_release_without_noise_is_refused(std, construction):
    source = NoiseSource(NoiseKey.insecure(0), construction=construction)
    with pytest.raises(PrivacyError, match="must be positive and finite"):
        source.add_gaussian(torch.zeros(3), std, "x")
    with pytest.raises(PrivacyError, match="`scale` of a release must be positive and finite"):
        source.add_laplace(torch.zeros(3), std, "x")


@pytest.mark.parametrize("std", [MIN_SCALE / 2, MAX_SCALE * 2])
def test_a_scale_the_grid_cannot_carry_is_refused_with_the_fix(std):
    with pytest.raises(PrivacyError, match="Rescale values and noise together"):
        NoiseSource(NoiseKey.insecure(0)).gaussian((3,), std, "x")
    assert NoiseSource(NoiseKey.insecure(0), construction="fast").gaussian((3,), std, "x").any()


def test_values_that_cannot_be_exact_are_refused():
    source = NoiseSource(NoiseKey.insecure(0))
    with pytest.raises(PrivacyError, match="must be finite"):
        source.add_gaussian(torch.tensor([math.nan]), 1.0, "x")
    with pytest.raises(PrivacyError, match="Rescale values and noise together"):
        source.add_laplace(torch.tensor([1e12]), 1.0, "x")


def test_counts_may_be_given_as_whole_numbers():
    for construction in ("safe", "fast"):
        source = NoiseSource(NoiseKey.insecure(0), construction=construction)
        assert source.add_laplace(torch.tensor([12]), 4.0, "edges").is_floating_point()


def test_odd_shapes():
    source = NoiseSource(NoiseKey.insecure(0))
    assert source.gaussian((), 1.0, "x").shape == ()
    assert source.gaussian((0, 3), 1.0, "x").shape == (0, 3)
    assert source.gaussian((2, 3, 4), 1.0, "x").shape == (2, 3, 4)


def test_an_unknown_construction_is_refused():
    with pytest.raises(InputError, match="`construction` must be one of safe, fast"):
        NoiseSource(NoiseKey.insecure(0), construction="saef")


def test_the_key_is_not_shown():
    key = NoiseKey.fresh()
    shown = repr(NoiseSource(key))
    assert key.secret.hex() not in shown
    assert repr(key.secret) not in shown


@pytest.mark.gpu
def test_cuda_draws_the_same_bytes():
    source = NoiseSource(NoiseKey.insecure(10))
    cpu = source.gaussian((10_000, 16), 2.0, "hop", 1)
    assert torch.equal(source.gaussian((10_000, 16), 2.0, "hop", 1, device="cuda").cpu(), cpu)
    values = (torch.arange(160_000).reshape(10_000, 16) % 97).double()
    there = source.add_gaussian(values.cuda(), 2.0, "hop", 1)
    assert there.is_cuda
    assert torch.equal(there.cpu(), source.add_gaussian(values, 2.0, "hop", 1))
