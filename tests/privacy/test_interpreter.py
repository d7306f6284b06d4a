"""The kernels of safe noise, run operation by operation on a CPU, release what the CPU releases.

Triton reads ``TRITON_INTERPRET`` when it is imported, so one test runs this file, and that of the
masks of dropout, in a process of its own; the others do nothing but there.
"""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gapgnn.graph import Graph, join_edge_types
from gapgnn.privacy.dpsgd.poisson import DPSchedule, PoissonBatches
from gapgnn.privacy.mechanisms import device as kernels
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.backends import BlockRelease, OnDevice, _added_up
from gapgnn.privacy.mechanisms.device import SEGMENT, CipherNoise, InLists, cipher_halves
from gapgnn.privacy.mechanisms.draws import Coins, Draws, cipher_key, cipher_words, device_heads
from gapgnn.privacy.mechanisms.noise import GRID, NoiseSource, _draw_on_grid
from gapgnn.privacy.mechanisms.sums import quantise_rows, whole_rows
from gapgnn.rng import NoiseKey

pytestmark = pytest.mark.gate

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = importlib.util.find_spec("triton") is not None
inside = pytest.mark.skipif(not IS_INTERPRETED, reason="runs in the process of the first test")
CPU = torch.device("cpu")


def slow(*values):
    """Mark a size that takes the interpreter more than a second."""
    return pytest.param(*values, marks=pytest.mark.slow)


KEY = NoiseKey.insecure(0)
SECRET = KEY.bytes(32, "x")


@pytest.mark.skipif(IS_INTERPRETED or not HAS_TRITON, reason="no Triton, or inside already")
def test_kernels_and_reference_agree_in_the_interpreter():
    files = [__file__, str(Path(__file__).parents[1] / "nn" / "test_masks.py")]
    chosen = ["-m", "not slow and not gpu"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *chosen, *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" in done.stdout
    assert "passed" in done.stdout


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter takes one program after the other, and its values all at once."""
    monkeypatch.setattr(kernels, "CIPHER_BLOCKS", 1024)
    monkeypatch.setattr(kernels, "GROUP", 64)
    monkeypatch.setattr(kernels, "TILE", 1 << 17)


def drawn(secret, shape, *, std=2.0, first_row=0):
    noise = CipherNoise(secret, std / GRID, GRID)
    return noise.rows(first_row, *shape, CPU)


@inside
@pytest.mark.parametrize(
    ("shape", "std"), [((300, 16), 2.0), ((77, 1), 2.0**-10), ((50, 9), 2.0**20), ((2, 2001), 2.0)]
)
def test_a_kernel_draws_the_bits_of_the_cpu(shape, std):
    found = drawn(SECRET, shape, std=std)
    wanted = _draw_on_grid(SECRET, "gaussian", 0, shape, std)
    assert torch.equal(found, wanted)
    assert not bool((found.view(torch.int64) == torch.iinfo(torch.int64).min).any())


@inside
def test_tails_are_refined_as_on_the_cpu(monkeypatch):
    """Among 2**15 values about 32 are refined; they are there, and equal."""
    monkeypatch.setattr(kernels, "CIPHER_BLOCKS", 1 << 12)  # one program
    words = cipher_words(SECRET, 0, 0, 1 << 12) & np.uint64(2**63 - 1)
    assert (words < 2**53).sum() > 5
    found = drawn(SECRET, (1 << 12, 8))
    assert torch.equal(found, _draw_on_grid(SECRET, "gaussian", 0, (1 << 12, 8), 2.0))


@inside
@pytest.mark.parametrize("first_row", [2**31 - 3, 2**35 + 1])
def test_blocks_are_numbered_by_64_bits(first_row):
    found = drawn(SECRET, (9, 16), first_row=first_row)
    assert torch.equal(found, _draw_on_grid(SECRET, "gaussian", first_row, (9, 16), 2.0))


@inside
@pytest.mark.parametrize("count", [1, 4097, 1 << 15])
def test_uniforms_of_a_kernel_are_the_bits_of_the_cpu(count):
    """Refined ones too: among 2**15 there are about 32."""
    half, top = Draws(KEY).halves(count, "x")
    found = cipher_halves(cipher_key(KEY, "x", "words"), count, CPU)
    assert np.array_equal(found.abs().numpy(), half)
    assert np.array_equal(found.numpy() < 0, top > 0)


@inside
@pytest.mark.parametrize(
    ("count", "probability"), [(20_000, 0.06), slow(10**7, 1e-4), slow(300, 0.9)]
)
def test_coins_tossed_by_a_kernel_are_those_of_the_cpu(count, probability):
    wanted = Coins(KEY).heads(count, probability, 3)
    found = device_heads(KEY, count, probability, 3, device=CPU)
    assert np.array_equal(found.numpy(), wanted)
    # Another block of steps or another key has coins of its own.
    other = device_heads(KEY, count, probability, 4, device=CPU)
    assert not np.array_equal(found.numpy(), other.numpy())


@inside
def test_batches_drawn_by_a_kernel_are_those_of_the_cpu():
    keys = [NoiseKey.insecure(seed) for seed in range(2)]
    batches = PoissonBatches(DPSchedule(500, 0.06, 40, 30.0), keys, phase="x")
    wanted, found = (batches._block(1, 40, there=there) for there in (False, True))
    assert all(torch.equal(*both) for both in zip(wanted, found, strict=True))


@inside
def test_the_far_tails_of_the_kernel_are_those_of_the_cpu(monkeypatch):
    from gapgnn.privacy.mechanisms import noise, triton_noise

    rng = np.random.default_rng(0)
    # Magnitudes of all sizes, signs of both types, and the edges of every branch.
    words = rng.integers(0, 2**63, 512).astype(np.uint64) >> rng.integers(0, 64, 512).astype(
        np.uint64
    )
    words[:8] = (0, 1, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, 2**63, 2**63 + 5)
    words[256:] |= np.uint64(2**63)
    finer = rng.integers(0, 2**63, 512).astype(np.uint64) * np.uint64(2)
    finer[0] = 0
    tables = [torch.from_numpy(part.view(np.int64).copy()) for part in (words, finer)]

    def planted(key, blocks, part):
        import triton.language as tl

        places = (blocks.handle.data[..., None] * 8 + np.arange(8)).reshape(
            len(blocks.handle.data), -1
        )
        chosen = tables[int(getattr(part, "value", part))].numpy().view(np.uint64)[places]
        word = tl.zeros(list(chosen.shape), tl.uint64)
        word.handle.data = chosen
        return word

    monkeypatch.setattr(triton_noise, "_cipher", planted)
    monkeypatch.setattr(
        noise,
        "cipher_words",
        lambda secret, part, first, count: (words, finer)[part][8 * first : 8 * (first + count)],
    )
    monkeypatch.setattr(
        noise,
        "cipher_blocks",
        lambda secret, part, blocks: (words, finer)[part].reshape(-1, 8)[blocks],
    )
    monkeypatch.setattr(kernels, "CIPHER_BLOCKS", 64)  # as many as there are words
    found = drawn(SECRET, (64, 8), std=2.0**16)
    wanted = _draw_on_grid(SECRET, "gaussian", 0, (64, 8), 2.0**16)
    assert torch.equal(found, wanted)
    assert float(found.abs().max()) > 13 * 2.0**16


def lists_of(count=60, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 12, count)
    counts[:4] = (0, 3, SEGMENT + 1, 2 * SEGMENT + 3)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = rng.integers(0, count, indptr[-1], dtype=np.int32)
    return InLists(torch.from_numpy(indptr), torch.from_numpy(indices))


@inside
@pytest.mark.parametrize(("width", "to_self"), [slow(1, True), slow(9, False), (16, True)])
def test_a_hop_with_its_noise_is_exact_in_one_kernel(width, to_self):
    lists, source = lists_of(), NoiseSource(NoiseKey.insecure(3))
    generator = torch.Generator().manual_seed(0)
    rows = quantise_rows(row_normalise(torch.randn(60, width, generator=generator)))
    noise = source.gaussian((60, width), 3.0, "hop", 1)
    wanted = lists.matrix(torch.float64) @ rows + noise
    if to_self:
        wanted += rows
    whole = rows.div(GRID).to(torch.int32)
    out = torch.full((60, width), math.nan)
    options = {"unit": GRID, "given": whole if to_self else None}
    cipher = source.cipher(width, 3.0, "hop", 1)
    lists.release(whole, noise=cipher, normalise=False, out=out, **options)
    assert torch.equal(out, wanted.float())
    lists.release(whole, noise=cipher, normalise=True, out=out, **options)
    assert torch.allclose(out.double(), row_normalise(wanted), atol=1e-6)


@inside
@pytest.mark.parametrize("width", [slow(1), 9, slow(16)])
def test_a_total_over_types_is_exact_in_one_kernel(width):
    """Sums of the other types are whole numbers of any size, and are given to the last kernel."""
    first, *more = (lists_of(seed=seed) for seed in range(3))
    source = NoiseSource(NoiseKey.insecure(3))
    rows = quantise_rows(row_normalise(torch.ones(60, width)))
    whole = rows.div(GRID).to(torch.int32)
    wanted = sum(lists.matrix(torch.float64) @ rows for lists in (first, *more))
    wanted += source.gaussian((60, width), 3.0, "hop", 1)
    given = _added_up(more, whole)
    assert int(given.max()) > 2**24
    assert given.dtype == torch.int64
    out = torch.full((60, width), math.nan)
    cipher = source.cipher(width, 3.0, "hop", 1)
    first.release(whole, noise=cipher, normalise=False, out=out, unit=GRID, given=given)
    assert torch.equal(out, wanted.float())
    single = torch.full((60, width), math.nan)
    first.release(
        rows.float(), noise=None, normalise=False, out=single, given=_added_up(more, rows.float())
    )
    exact = sum(lists.matrix(torch.float64) @ rows for lists in (first, *more))
    assert torch.allclose(single.double(), exact, rtol=1e-5)


@inside
@pytest.mark.parametrize("symmetrised", [False, True])
def test_the_total_of_a_graph_is_that_of_the_cpu(symmetrised):
    rng = np.random.default_rng(0)
    types = {
        name: Graph.from_arcs(
            *rng.integers(60, size=(2, 500)),
            num_nodes=60,
            features=np.zeros((60, 1)),
            directed=symmetrised,
        )
        for name in ("calls", "letters", "visits")
    }
    total = hop_mechanisms(
        join_edge_types(types),
        level="edge",
        relation="directed" if symmetrised else "undirected",
        noise_multiplier=2.0,
        keys=[NoiseKey.insecure(3)],
        symmetrised=symmetrised,
        with_total=True,
    )[-1]
    rows = row_normalise(torch.randn(60, 9, generator=torch.Generator().manual_seed(0)))
    wanted = total.hop(rows, 1, normalise=False)
    out = torch.full(rows.shape, math.nan)
    block = BlockRelease(total._sources[0], total.std, 1, normalise=False, is_exact=True)
    backend = OnDevice(total._messages[0], torch.device("cpu"))
    assert backend.takes_whole_numbers(rows.shape[1])
    backend.release(block, whole_rows(rows), out)
    assert torch.equal(out, wanted)


@inside
@pytest.mark.parametrize("width", [1, 9, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_cut_to_the_grid_as_on_the_cpu(width, dtype):
    generator = torch.Generator().manual_seed(width)
    rows = row_normalise(torch.randn(500, width, generator=generator)).to(dtype)
    rows[::3] *= 1 + 3e-7
    rows[7] = 0
    assert bool((torch.linalg.vector_norm(rows.double(), dim=1) > 1).any())
    assert torch.equal(whole_rows(rows).double() * GRID, quantise_rows(rows))


@inside
def test_the_key_is_overwritten_behind_the_kernel(monkeypatch):
    seen = []
    honest = torch.Tensor.zero_
    monkeypatch.setattr(torch.Tensor, "zero_", lambda self: seen.append(self) or honest(self))
    drawn(SECRET, (4, 8))
    assert [tuple(part.shape) for part in seen] == [(5,)]
    assert not bool(seen[0].any())
    assert SECRET.hex() not in repr(CipherNoise(SECRET, 1.0, GRID))
    assert repr(SECRET) not in repr(CipherNoise(SECRET, 1.0, GRID))
