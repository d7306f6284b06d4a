"""Kernel noise is a function of secret, row and column; kernels and torch agree."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from gapgnn.errors import PrivacyError
from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.privacy.mechanisms import device, sums
from gapgnn.privacy.mechanisms.device import (
    SEGMENT,
    InLists,
    PhiloxNoise,
    in_lists_on,
    longest_row,
    philox,
)
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.privacy.mechanisms.sums import (
    EXACT_ENTRIES,
    add_exactly,
    add_up,
    quantise_rows,
)
from gapgnn.rng import NoiseKey

FALSE_ALARM = 1e-9
CPU = torch.device("cpu")
SECRET = bytes(range(16))


def unit_rows(count, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, width, generator=generator))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    words = tuple(torch.tensor(word) for word in counter)
    joint = (key[0] | key[1] << 32).to_bytes(8, "little")
    found = philox(words, torch.tensor(int.from_bytes(joint, "little", signed=True)))
    assert tuple(int(word) for word in found) == expected


def test_kernel_noise_has_the_stated_distribution():
    values = PhiloxNoise(SECRET, 3.0).rows(0, 1 << 14, 16, "cpu").double().numpy().ravel() / 3.0

    def is_normal(sample):
        tail = stats.chi2(sample.size).cdf(np.square(sample).sum())
        cdf, ranks = special.ndtr(np.sort(sample)), np.arange(sample.size)
        distance = max((cdf - ranks / sample.size).max(), ((ranks + 1) / sample.size - cdf).max())
        fits = special.kolmogorov(distance * math.sqrt(sample.size)) > FALSE_ALARM
        return min(tail, 1 - tail) > FALSE_ALARM and fits

    assert is_normal(values)
    assert not is_normal(values * 1.03)
    assert not is_normal(values / 1.03)
    assert not is_normal(values + 0.03)


def test_no_two_cells_hops_or_secrets_share_noise():
    noise = PhiloxNoise(SECRET, 1.0).rows(0, 4096, 16, "cpu").double()
    limit = stats.norm.isf(FALSE_ALARM / 2)

    def share(first, second):
        return abs(float((first * second).sum())) / math.sqrt(first.numel()) > limit

    columns = [(a, b) for a in range(16) for b in range(a)]
    assert not any(share(noise[:, a], noise[:, b]) for a, b in columns)
    assert not share(noise[1:], noise[:-1])
    for place in range(16):
        other = bytes(byte ^ (place == at) for at, byte in enumerate(SECRET))
        assert not share(noise, PhiloxNoise(other, 1.0).rows(0, 4096, 16, "cpu").double())
    assert share(noise, noise), "planted: the same secret twice"


def test_a_cell_of_noise_does_not_depend_on_what_is_drawn_beside_it():
    noise = PhiloxNoise(SECRET, 2.0)
    whole = noise.rows(0, 100, 7, "cpu")
    assert torch.equal(noise.rows(37, 5, 7, "cpu"), whole[37:42])
    assert torch.equal(noise.rows(0, 100, 4, "cpu"), whole[:, :4])
    assert noise.rows(0, 0, 7, "cpu").shape == (0, 7)


def test_a_source_gives_each_path_and_width_its_own_secret_and_safe_sources_give_none():
    source = NoiseSource(NoiseKey.insecure(0), noise="fast")
    paths = [("hop", 1), ("hop", 2), ("hop", "1"), ("step", 1)]
    secrets = {source.philox(columns, 1.0, *path).secret for path in paths for columns in (4, 5)}
    assert len(secrets) == 8
    with pytest.raises(PrivacyError, match="`noise` must be fast"):
        NoiseSource(NoiseKey.insecure(0)).philox(4, 1.0, "hop", 1)
    with pytest.raises(PrivacyError, match="must be positive and finite"):
        source.philox(4, 0.0, "hop", 1)


def test_every_entry_of_every_list_is_added_up_once():
    counts = torch.tensor([0, 3, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 7, 1])
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    short, segments, long = InLists(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32))._work
    assert short.rows.sort().values.tolist() == [0, 1, 2, 5]
    covered = torch.zeros(int(indptr[-1]), dtype=torch.int64)
    for items in (short, segments):
        assert int(items.counts.max()) <= SEGMENT
        for start, count in zip(items.starts.tolist(), items.counts.tolist(), strict=True):
            covered[start : start + count] += 1
    assert bool((covered == 1).all())
    by_number = segments.rows.argsort()
    for row, start, count in zip(
        long.rows.tolist(), long.starts.tolist(), long.counts.tolist(), strict=True
    ):
        own = by_number[start : start + count]
        assert int(segments.counts[own].sum()) == int(counts[row])
        assert int(segments.starts[own].min()) == int(indptr[row])


def random_graph(seed, *, directed, names=False):
    rng = np.random.default_rng(seed)
    arcs = rng.integers(0, 200, (5000, 2))
    arcs[:500, 0] = 3
    ids = [f"node {place}" for place in range(200)] if names else None
    return Graph.from_arcs(
        *arcs.T, num_nodes=200, features=np.zeros((200, 1)), directed=directed, ids=ids
    )


@pytest.mark.parametrize("limit", [1, 7, 30, 500])
@pytest.mark.parametrize("names", [False, True])
def test_a_device_keeps_the_entries_that_the_host_keeps(limit, names, monkeypatch):
    monkeypatch.setattr(device, "CHUNK_ENTRIES", 1000)
    for seed in range(4):
        graph = random_graph(seed, directed=bool(seed % 2), names=names)
        key = NoiseKey.insecure(seed)
        cut = device._cut(graph, CPU, limit, key)
        wanted = bound_out_degrees(graph, limit, key)
        assert cut is not None
        assert np.array_equal(cut[0].numpy(), wanted.indptr)
        assert np.array_equal(cut[1].numpy(), wanted.indices)


def test_what_a_device_cannot_decide_is_left_to_the_host(monkeypatch):
    graph = Graph.from_arcs(
        [0] * 9, range(1, 10), num_nodes=10, features=np.eye(10), directed=True, dangling={0: [99]}
    )
    key = NoiseKey.insecure(0)
    assert device._cut(graph, CPU, 3, key) is None
    kept = in_lists_on(graph, CPU, max_degree=3, key=key)
    assert len(kept.indices) == len(bound_out_degrees(graph, 3, key).indices)
    monkeypatch.setattr(device, "pair_hashes", lambda owners, entrants, case: entrants * 0)
    tied = random_graph(0, directed=True)
    assert device._cut(tied, CPU, 3, key) is None


@pytest.mark.parametrize("directed", [False, True])
def test_lists_on_a_device_say_who_writes_to_each_row(directed):
    graph = random_graph(1, directed=directed)
    lists = in_lists_on(graph, CPU)
    wanted = graph.adjacency().T.tocsr()
    assert np.array_equal(lists.indptr.numpy(), wanted.indptr)
    assert np.array_equal(lists.indices.numpy(), wanted.indices)
    assert in_lists_on(graph, CPU) is lists


def test_float32_adds_up_grid_rows_exactly_at_its_limit():
    ones = quantise_rows(torch.tensor([[1.0, 0.0], [0.0, -1.0], [1 - 2.0**-14, 2.0**-14]]))
    for count in (1, EXACT_ENTRIES, EXACT_ENTRIES + 1, 100_003):
        pointers = np.array([0, 0, count, count])
        for place in range(3):
            total = add_exactly(ones.float(), pointers, np.full(count, place, dtype=np.int32))
            assert torch.equal(total[1], ones[place] * count)
            assert not bool(total[0].any() or total[2].any())


def test_a_limit_that_is_too_long_is_seen(monkeypatch):
    """Planted: beyond the limit float32 rounds, and the sums are wrong."""
    ones = quantise_rows(torch.tensor([[1 - 2.0**-14]]))
    monkeypatch.setattr(sums, "EXACT_ENTRIES", 4096)
    total = add_exactly(ones.float(), np.array([0, 4096]), np.zeros(4096, dtype=np.int32))
    assert not torch.equal(total[0], ones[0] * 4096)


@pytest.mark.parametrize("width", [1, 9, 16, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_exact_sums_are_those_of_float64_whatever_the_chunk(width, threads, monkeypatch):
    rng = np.random.default_rng(width)
    rows = quantise_rows(unit_rows(500, width))
    counts = rng.integers(0, 40, 300)
    counts[[0, 17, 299]] = (0, 5000, 0)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    entries = rng.integers(0, 500, pointers[-1], dtype=np.int32)
    wanted = add_up(rows, pointers, entries)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for chunk in (1 << 19, 700, 1):
            monkeypatch.setattr(sums, "MOST_ENTRIES", chunk)
            assert torch.equal(add_exactly(rows.float(), pointers, entries), wanted)
    finally:
        torch.set_num_threads(before)
    assert add_exactly(rows.float(), np.zeros(1, dtype=np.int64), entries[:0]).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_lists_are_those_of_a_dense_product_whatever_the_chunk(monkeypatch, dtype):
    rng = np.random.default_rng(0)
    counts = np.array([0, 5, 400, 0, 1, 90, 0])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    entries = rng.integers(0, 50, pointers[-1])
    rows = unit_rows(50, 3).to(dtype)
    dense = torch.zeros(7, 50, dtype=torch.float64)
    for row in range(7):
        for entry in entries[pointers[row] : pointers[row + 1]]:
            dense[row, entry] += 1
    expected = add_up(rows, pointers, entries)
    assert torch.allclose(expected.double(), dense @ rows.double(), atol=1e-5)
    for chunk in (1, 7, 100):
        monkeypatch.setattr(sums, "CHUNK_ENTRIES", chunk)
        monkeypatch.setattr(sums, "MOST_ENTRIES", chunk)
        assert torch.equal(add_up(rows, pointers, entries), expected)
    assert add_up(rows[:, :0], pointers, entries).shape == (7, 0)


def test_the_longest_row_is_found_and_what_is_not_finite_shows():
    rows = unit_rows(100, 5)
    rows[17] *= 3
    assert longest_row(rows) == pytest.approx(3.0)
    rows[40, 2] = math.nan
    assert not math.isfinite(longest_row(rows))
