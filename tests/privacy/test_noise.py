"""The noise has the promised distribution, lies on the grid and comes back from its key alone."""

import hashlib
import math
import os

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.mechanisms import noise as noise_module
from gapgnn.privacy.mechanisms.draws import (
    TOP_BIT,
    cipher_blocks,
    cipher_key,
    cipher_words,
    refined_halves,
)
from gapgnn.privacy.mechanisms.noise import (
    GRID,
    MAX_SCALE,
    MIN_SCALE,
    ROW_BLOCK,
    NoiseSource,
    grid_slack,
)
from gapgnn.privacy.mechanisms.normal import (
    CENTRE,
    gaussian_on_grid,
    lower_normal,
    natural_log,
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


def draw(seed: int, *path: str | int, noise: str = "safe") -> np.ndarray:
    source = NoiseSource(NoiseKey.insecure(seed), noise=noise)
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
        values = draw(run, "hop", 1, noise="fast")
        assert not wrong_gaussian(values, STD)
        assert wrong_gaussian(values, STD * 1.03)
        assert wrong_gaussian(values, STD / 1.03)


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_laplace_has_the_stated_scale(noise):
    for run in range(10):
        source = NoiseSource(NoiseKey.insecure(run), noise=noise)
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
        lambda secret, case, first, shape, scale: honest(secret, case, first, shape, bug(scale)),
    )
    assert wrong_gaussian(draw(0, "hop", 1), STD)


def test_two_hops_and_two_replicas_have_independent_noise():
    for run in range(10):
        first = draw(run, "hop", 1)
        assert not share_noise(first, draw(run, "hop", 2), STD)
        assert not share_noise(first, draw(run + 1, "hop", 1), STD)


def test_planted_shared_noise_is_seen(monkeypatch):
    with monkeypatch.context() as planted:
        planted.setattr(NoiseSource, "_secret", lambda self, case, columns, path: b"x" * 32)
        assert share_noise(draw(0, "hop", 1), draw(0, "hop", 2), STD), "same noise for two hops"
    with monkeypatch.context() as planted:
        planted.setattr(NoiseKey, "insecure", classmethod(lambda cls, seed: cls(b"x" * 32)))
        assert share_noise(draw(0, "hop", 1), draw(1, "hop", 1), STD), "same noise for two replicas"


@pytest.mark.parametrize("case", ["gaussian", "laplace"])
def test_safe_noise_is_float64_on_the_grid_and_never_minus_zero(case):
    source = NoiseSource(NoiseKey.insecure(1))
    # Minus zero stays what it is only if minus zero is added to it.
    values = getattr(source, f"add_{case}")(-torch.zeros(1 << 18), MIN_SCALE, "x")
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
    for noise in ("safe", "fast"):
        source = NoiseSource(NoiseKey.insecure(4), noise=noise)
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


def test_different_paths_keys_and_sorts_draw_different_noise():
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


def test_tails_reach_beyond_what_53_bits_can(monkeypatch):
    def value(word: int, more: int = 0) -> float:
        def chosen(secret, part, first_block, num_blocks):
            return np.full(8 * num_blocks, (word, more)[part], dtype=np.uint64)

        def scattered(secret, part, blocks):
            return chosen(secret, part, 0, len(blocks)).reshape(-1, 8)

        monkeypatch.setattr(noise_module, "cipher_words", chosen)
        monkeypatch.setattr(noise_module, "cipher_blocks", scattered)
        return float(noise_module._draw_on_grid(b"", "gaussian", 0, (1, 1), 1.0))

    assert value(0, 0) == pytest.approx(special.ndtri(2.0**-129), abs=GRID)
    assert value(0, 0) < -13
    assert value(1 << 63, 0) == -value(0, 0)
    assert value(5, 7 << 60) == pytest.approx(special.ndtri((5 + 7 / 16) / 2**64), abs=GRID)
    below, above = value(2**53 - 1, 2**64 - 1), value(2**53, 0)
    assert below == pytest.approx(above, abs=GRID)
    assert value(2**63 - 1) == 0


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_what_refines_a_tail_has_a_place_of_its_own_in_every_partition(distribution, monkeypatch):
    """With words of zero every value is in the tail, and made by the second part of the stream."""

    def all_in_the_tail(secret, part, first_block, num_blocks):
        return np.zeros(8 * num_blocks, dtype=np.uint64)

    monkeypatch.setattr(noise_module, "cipher_words", all_in_the_tail)
    whole, *parts = (
        noise_module._draw_on_grid(bytes(32), distribution, first, (count, 11), 1.0)
        for first, count in ((0, 40), (0, 17), (17, 23))
    )
    assert torch.equal(torch.cat(parts), whole)
    assert len(whole.unique()) > 0.99 * whole.numel()


def test_the_tail_of_many_draws_has_the_right_weight():
    values = NoiseSource(NoiseKey.insecure(9)).gaussian((1 << 20,), 1.0, "x").abs()
    for far in (3.0, 3.5, 4.0):
        expected = 2 * special.ndtr(-far) * (1 << 20)
        count = int((values > far).sum())
        tail = min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected))
        assert tail > FALSE_ALARM


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, None])
@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_a_release_without_noise_is_refused(std, noise):
    source = NoiseSource(NoiseKey.insecure(0), noise=noise)
    with pytest.raises(PrivacyError, match="must be positive and finite"):
        source.add_gaussian(torch.zeros(3), std, "x")
    with pytest.raises(PrivacyError, match="`scale` of a release must be positive and finite"):
        source.add_laplace(torch.zeros(3), std, "x")


@pytest.mark.parametrize("std", [MIN_SCALE / 2, MAX_SCALE * 2])
def test_a_scale_the_grid_cannot_carry_is_refused_with_the_fix(std):
    with pytest.raises(PrivacyError, match="Rescale values and noise together"):
        NoiseSource(NoiseKey.insecure(0)).gaussian((3,), std, "x")
    assert NoiseSource(NoiseKey.insecure(0), noise="fast").gaussian((3,), std, "x").any()


def test_values_that_cannot_be_exact_are_refused():
    source = NoiseSource(NoiseKey.insecure(0))
    with pytest.raises(PrivacyError, match="must be finite"):
        source.add_gaussian(torch.tensor([math.nan]), 1.0, "x")
    for value in (1e12, -1e12):
        with pytest.raises(PrivacyError, match="Rescale values and noise together"):
            source.add_laplace(torch.tensor([value]), 1.0, "x")


def test_counts_may_be_given_as_whole_numbers():
    for noise in ("safe", "fast"):
        source = NoiseSource(NoiseKey.insecure(0), noise=noise)
        assert source.add_laplace(torch.tensor([12]), 4.0, "edges").is_floating_point()


def test_odd_shapes():
    source = NoiseSource(NoiseKey.insecure(0))
    assert source.gaussian((), 1.0, "x").shape == ()
    assert source.gaussian((0, 3), 1.0, "x").shape == (0, 3)
    assert source.gaussian((2, 3, 4), 1.0, "x").shape == (2, 3, 4)


def test_an_unknown_construction_is_refused():
    with pytest.raises(InputError, match="`noise` must be one of safe, fast"):
        NoiseSource(NoiseKey.insecure(0), noise="saef")


def test_a_key_is_32_bytes_of_the_operating_system(monkeypatch):
    asked = []

    def entropy(count):
        asked.append(count)
        return bytes(range(len(asked), len(asked) + count))

    # The system itself, and not what tests draw from.
    monkeypatch.setattr("gapgnn.rng.os", os)
    assert len({NoiseKey.fresh().secret for _ in range(300)}) == 300
    monkeypatch.setattr(os, "urandom", entropy)
    keys = [NoiseKey.fresh() for _ in range(2)]
    assert [key.secret for key in keys] == [bytes(range(1, 33)), bytes(range(2, 34))]
    assert asked == [32, 32]
    assert not any(key.is_insecure for key in keys)


def test_the_key_is_not_shown():
    key = NoiseKey.fresh()
    shown = repr(NoiseSource(key))
    assert key.secret.hex() not in shown
    assert repr(key.secret) not in shown


def chacha20(secret: bytes, counter: int, nonce: int) -> bytes:
    """Return one block of ChaCha20, written down from RFC 8439 with a counter of 64 bits."""
    text = (
        b"expand 32-byte k" + secret + counter.to_bytes(8, "little") + nonce.to_bytes(8, "little")
    )
    start = [int.from_bytes(text[at : at + 4], "little") for at in range(0, 64, 4)]
    state = start[:]

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for into, other, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[into] = (state[into] + state[other]) % 2**32
            mixed = state[turned] ^ state[into]
            state[turned] = (mixed << by | mixed >> (32 - by)) % 2**32

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for column in range(4):
            quarter(column, *(4 * row + (column + row) % 4 for row in (1, 2, 3)))
    total = ((one + two) % 2**32 for one, two in zip(state, start, strict=True))
    return b"".join(word.to_bytes(4, "little") for word in total)


def test_words_are_those_of_rfc_8439():
    secret = bytes(range(32))
    # Section 2.3.2: counter 1 and the nonce 00:00:00:09:00:00:00:4a:00:00:00:00.
    counter, part = 0x09000000 << 32 | 1, 0x4A000000
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert cipher_words(secret, part, counter, 1).tobytes().hex() == expected
    assert chacha20(secret, counter, part).hex() == expected


@pytest.mark.parametrize("first", [0, 5, 2**32 - 2, 2**32, 3 * 2**32 - 1, 2**40 + 7])
def test_blocks_count_to_64_bits_and_carry(first):
    secret = NoiseKey.insecure(0).bytes(32, "x")
    found = cipher_words(secret, 1, first, 4).tobytes()
    assert found == b"".join(chacha20(secret, first + block, 1) for block in range(4))


def test_scattered_blocks_are_those_of_the_stream():
    secret = NoiseKey.insecure(0).bytes(32, "x")
    blocks = np.array([5, 0, 2**32 - 1, 2**32, 2**40 + 7, 5])
    found = cipher_blocks(secret, 1, blocks)
    wanted = [chacha20(secret, int(block), 1) for block in blocks]
    assert [row.tobytes() for row in found] == wanted


def test_a_cell_has_the_word_of_its_place():
    source = NoiseSource(NoiseKey.insecure(0))
    secret = cipher_key(source.key, "gaussian", "hop", 1, "columns", 11)
    drawn = source.gaussian((40, 11), 2.0, "hop", 1)
    for row, column in ((0, 0), (0, 7), (0, 8), (39, 10), (17, 3)):
        block = chacha20(secret, row * 2 + column // 8, 0)
        word = int.from_bytes(block[8 * (column % 8) :][:8], "little")
        half = (word % 2**63 + 0.5) / 2**64
        value = special.ndtri(half) * 2.0 * (-1 if word >> 63 else 1)
        assert float(drawn[row, column]) == pytest.approx(value, abs=GRID * 0.51)


def test_the_stream_of_this_version_is_this_one():
    source = NoiseSource(NoiseKey.insecure(0))
    drawn = source.gaussian((5000, 9), 3.0, "hop", 1).numpy().tobytes()
    assert hashlib.sha256(drawn).hexdigest()[:16] == "a25d41b8691ca4c0"
    drawn = source.add_laplace(torch.zeros(5000), 3.0, "count").numpy().tobytes()
    assert hashlib.sha256(drawn).hexdigest()[:16] == "de32eaa71b1a9477"


def test_the_inverse_normal_is_right_to_the_last_bits_of_a_double():
    rng = np.random.default_rng(0)
    half = np.concatenate([rng.random(20_000) / 2, 2.0 ** -rng.uniform(1, 129, 20_000)])
    found = lower_normal(half)
    assert np.abs(found / special.ndtri(half) - 1).max() < 2e-15
    assert np.abs(natural_log(half) / np.log(half) - 1).max() < 3e-16
    mpmath.mp.dps = 40
    for probability, value in zip(half[::997], found[::997], strict=True):
        off = mpmath.ncdf(value) - mpmath.mpf(float(probability))
        assert abs(off / mpmath.npdf(value) / value) < 1e-15
    order = np.sort(half)
    assert (np.diff(lower_normal(order)) >= -1e-15 * np.abs(lower_normal(order[1:]))).all()


WORD = st.integers(0, 2**64 - 1)
# Where the centre ends, where a tail is refined, the middle, and both signs of each.
EDGES = [
    sign + place + step
    for sign in (0, 2**63)
    for place in (0, 2**53, int((0.5 - CENTRE) * 2.0**64), 2**63 - 2048)
    for step in range(-2000, 2001, 125)
    if 0 <= place + step < 2**63
]


@given(st.lists(WORD, max_size=50), st.sampled_from([MIN_SCALE, 0.3, STD, MAX_SCALE]))
def test_noise_in_fewer_passes_has_the_bits_of_the_printed_algorithm(some, std):
    many = np.random.default_rng(len(some)).integers(0, 2**64, 40_000, dtype=np.uint64)
    words = np.concatenate([np.array(some + EDGES, dtype=np.uint64), many])

    def finer(places: np.ndarray) -> np.ndarray:
        return words[places] * np.uint64(0x9E3779B97F4A7C15)

    half, top = refined_halves(words, finer)
    plain = np.rint(lower_normal(half) * (std / GRID)) * GRID + 0.0
    plain[(top > 0) & (plain != 0)] *= -1
    out = np.empty(len(words))
    gaussian_on_grid(words, finer, std, GRID, out)
    assert (out.view(np.uint64) == plain.view(np.uint64)).all()
    assert not (out.view(np.uint64) == TOP_BIT).any()


def test_rows_of_any_first_row_are_those_of_the_whole():
    source = NoiseSource(NoiseKey.insecure(11))
    whole = source.gaussian((100, 20_001), 1.0, "steps")
    for first, count in ((0, 1), (37, 2), (99, 1)):
        part = source.gaussian_rows(first, count, 20_001, 1.0, "steps")
        assert torch.equal(part, whole[first : first + count])


@pytest.mark.gpu
def test_cuda_draws_the_same_bytes():
    source = NoiseSource(NoiseKey.insecure(10))
    cpu = source.gaussian((10_000, 16), 2.0, "hop", 1)
    assert torch.equal(source.gaussian((10_000, 16), 2.0, "hop", 1, device="cuda").cpu(), cpu)
    values = (torch.arange(160_000).reshape(10_000, 16) % 97).double()
    there = source.add_gaussian(values.cuda(), 2.0, "hop", 1)
    assert there.is_cuda
    assert torch.equal(there.cpu(), source.add_gaussian(values, 2.0, "hop", 1))


def test_what_is_not_finite_is_refused_and_a_sum_that_overflows_is_not_taken_for_it():
    for bad in ([torch.inf, -torch.inf], [0.0, torch.nan], [-torch.inf]):
        with pytest.raises(PrivacyError, match="finite"):
            noise_module.on_grid(torch.tensor(bad))
    large = torch.full((2,), 3e38)
    assert torch.isinf(large.sum())
    assert torch.isfinite(noise_module.on_grid(large)).all()


@pytest.mark.parametrize("add", ["add_gaussian", "add_laplace"])
def test_values_off_the_grid_are_rounded_to_it_before_noise_is_added(add):
    values = (1000 * torch.arange(-50, 51, dtype=torch.float64) + 1 / 3) * GRID
    source = NoiseSource(NoiseKey.insecure(4))
    released = getattr(source, add)(values, 1.0, "a")
    steps = released / GRID
    assert bool((steps == steps.round()).all())
    assert bool((getattr(source, add)(values + GRID / 8, 1.0, "a") == released).all())
