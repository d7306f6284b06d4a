"""On a GPU the kernels release what torch and the CPU release."""

import math

import numpy as np
import pytest
import torch

from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import join_edge_types
from gapgnn.privacy.dpsgd.poisson import PoissonBatches, plan_steps
from gapgnn.privacy.mechanisms import device as kernels
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.privacy.mechanisms.device import (
    SEGMENT,
    InLists,
    PhiloxNoise,
    _cut,
    in_lists_on,
    longest_row,
)
from gapgnn.privacy.mechanisms.noise import GRID, NoiseSource
from gapgnn.rng import NoiseKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NOISE = PhiloxNoise(bytes(range(16)), 2.5)
CUDA = torch.device("cuda")


def needs_triton():
    if not kernels.can_use_triton(CUDA):
        pytest.skip("no Triton")


def random_lists(count=3000, seed=0):
    """Lists of all lengths: empty, short, one segment, one more, many."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 60, count)
    counts[:4] = (0, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 3)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    indices = torch.from_numpy(rng.integers(0, count, int(indptr[-1]), dtype=np.int32))
    return InLists(indptr.cuda(), indices.cuda())


def unit_rows(count, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return row_normalise(torch.randn(count, width, generator=generator)).cuda()


def released(lists, rows, **options):
    out = torch.full((len(lists.indptr) - 1, rows.shape[1]), math.nan, device=CUDA)
    lists.release(rows, out=out, **options)
    return out


@pytest.mark.parametrize("width", [1, 3, 9, 16, 17, 64])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_kernel_releases_what_product_noise_and_norm_give(width, normalise):
    needs_triton()
    lists, rows = random_lists(), unit_rows(3000, width)
    total = lists.matrix(torch.float64) @ rows.double() + NOISE.rows(0, 3000, width, CUDA)
    expected = row_normalise(total) if normalise else total
    found = released(lists, rows, noise=NOISE, normalise=normalise)
    assert torch.allclose(found.double(), expected, atol=1e-4, rtol=1e-5)
    bare = released(lists, rows, noise=None, normalise=normalise)
    total = lists.matrix(torch.float64) @ rows.double()
    expected = row_normalise(total) if normalise else total
    assert torch.allclose(bare.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 9, 16, 64])
def test_whole_numbers_add_up_exactly(width):
    needs_triton()
    lists = random_lists()
    rows = torch.randint(-(2**20), 2**20 + 1, (3000, width), device=CUDA, dtype=torch.int32)
    noise = torch.randint(-(2**30), 2**30, (3000, width), device=CUDA)
    exact = (lists.matrix(torch.float64) @ rows.double() + noise.double()) * GRID
    found = released(lists, rows, noise=None, given=noise, normalise=False, unit=GRID)
    assert torch.equal(found, exact.float())


def test_the_shape_of_a_launch_does_not_change_the_noise_or_exact_sums(monkeypatch):
    needs_triton()
    lists, rows = random_lists(), unit_rows(3000, 16)
    whole = rows.div(GRID).to(torch.int32)
    nothing = torch.zeros_like(rows)
    noise = released(lists, nothing, noise=NOISE, normalise=False)
    exact = released(lists, whole, noise=None, normalise=False, unit=GRID)
    for group, tile, warps in ((1, 256, 1), (8, 2048, 4)):
        for name, value in (("GROUP", group), ("TILE", tile), ("WARPS", warps)):
            monkeypatch.setattr(kernels, name, value)
        assert torch.equal(released(lists, nothing, noise=NOISE, normalise=False), noise)
        assert torch.equal(released(lists, whole, noise=None, normalise=False, unit=GRID), exact)
    assert torch.allclose(noise, NOISE.rows(0, 3000, 16, CUDA))
    assert torch.allclose(noise.cpu(), NOISE.rows(0, 3000, 16, "cpu"), atol=1e-5)


def test_the_same_launch_gives_the_same_bits():
    needs_triton()
    lists, rows = random_lists(), unit_rows(3000, 16)
    first = released(lists, rows, noise=NOISE, normalise=True)
    for _ in range(5):
        assert torch.equal(released(lists, rows, noise=NOISE, normalise=True), first)


def test_fast_noise_has_the_stated_scale_and_is_what_the_source_says():
    source = NoiseSource(NoiseKey.insecure(3), noise="fast")
    drawn = source.gaussian((1 << 16, 16), 2.0, "hop", 1, device="cuda")
    # Of 2**20 values the standard deviation is known to 0.07 %, five times over.
    assert float(drawn.std()) == pytest.approx(2.0, rel=0.004)
    assert abs(float(drawn.mean())) < 0.012
    kernel = source.philox(16, 2.0, "hop", 1).rows(0, 1 << 16, 16, "cpu")
    assert torch.allclose(drawn.cpu(), kernel, atol=1e-5)


def graph_of(num_nodes, num_arcs, *, directed, seed=0):
    rng = np.random.default_rng(seed)
    arcs = rng.integers(0, num_nodes, (num_arcs, 2))
    arcs[: num_arcs // 20, 1] = 5
    return Graph.from_arcs(
        *arcs.T, num_nodes=num_nodes, features=np.zeros((num_nodes, 1)), directed=directed
    )


def aggregation(graph, level, noise, device, **options):
    return hop_mechanisms(
        graph,
        level=level,
        relation={"edge": "undirected", "node": "add-remove", "none": "none"}[level],
        noise_multiplier=0.0 if level == "none" else 2.0,
        keys=[NoiseKey.insecure(1), NoiseKey.insecure(2)],
        noise=noise,
        device=device,
        **options,
    )[0]


@pytest.mark.parametrize(("level", "max_degree"), [("edge", None), ("node", 5), ("none", None)])
@pytest.mark.parametrize("width", [9, 16, 100])
@pytest.mark.parametrize("directed", [False, True])
def test_cuda_releases_what_the_cpu_releases(level, max_degree, width, directed):
    graph = graph_of(5000, 60_000, directed=directed)
    rows = torch.stack([unit_rows(5000, width, seed).cpu() for seed in (1, 2)])
    for normalise in (True, False):
        here, there = (
            aggregation(graph, level, "safe", device, max_degree=max_degree).hop(
                rows, 1, normalise=normalise
            )
            for device in ("cpu", "cuda")
        )
        assert there.is_cuda
        assert torch.allclose(there.cpu(), here, atol=1e-6 if level != "none" else 1e-3)
        if level != "none" and not normalise:
            assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("width", [9, 100])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_the_total_over_types_is_that_of_the_cpu(width, directed, noise):
    graph = join_edge_types(
        {
            name: graph_of(5000, 60_000, directed=directed, seed=seed)
            for seed, name in enumerate(("calls", "letters", "visits"))
        }
    )
    options = {"relation": "undirected", "noise": noise, "symmetrised": directed}
    rows = unit_rows(5000, width).cpu()
    here, there = (
        hop_mechanisms(
            graph,
            level="edge",
            noise_multiplier=2.0 if noise == "safe" else 1e-3,
            keys=[NoiseKey.insecure(1)],
            device=device,
            with_total=True,
            **options,
        )[-1].hop(rows, 1, normalise=False)
        for device in ("cpu", "cuda")
    )
    if noise == "safe":
        assert torch.equal(there.cpu(), here)
    else:
        assert torch.allclose(there.cpu(), here, atol=0.05)


def test_fast_hops_differ_by_noise_alone_and_do_not_share_it():
    graph = graph_of(4000, 50_000, directed=False)
    rows = torch.stack([unit_rows(4000, 16, 1)] * 2)
    fast = aggregation(graph, "edge", "fast", "cuda")
    none = aggregation(graph, "none", "fast", "cuda").hop(rows, 1, normalise=False)
    noises = [fast.hop(rows, index, normalise=False) - none for index in (1, 2)]
    for noise in noises:
        assert float(noise.std()) == pytest.approx(fast.std, rel=0.02)
    flat = torch.stack([noises[0][0], noises[0][1], noises[1][0]]).flatten(1)
    correlation = torch.corrcoef(flat) - torch.eye(3, device=CUDA)
    assert float(correlation.abs().max()) < 6 / math.sqrt(flat.shape[1])


@pytest.mark.parametrize("limit", [1, 7, 30])
def test_a_gpu_keeps_the_entries_that_the_host_keeps(limit):
    graph, key = graph_of(2000, 80_000, directed=True), NoiseKey.insecure(7)
    cut = _cut(graph, CUDA, limit, key)
    wanted = bound_out_degrees(graph, limit, key)
    assert cut is not None
    assert np.array_equal(cut[0].cpu().numpy(), wanted.indptr)
    assert np.array_equal(cut[1].cpu().numpy(), wanted.indices)
    turned = in_lists_on(graph, CUDA, max_degree=limit, key=key)
    host = in_lists_on(graph, torch.device("cpu"), max_degree=limit, key=key)
    assert torch.equal(turned.indices.cpu(), host.indices)


def test_the_longest_row_is_found_and_what_is_not_finite_shows():
    rows = unit_rows(100_000, 16)
    rows[99_999] *= 3
    assert longest_row(rows) == pytest.approx(3.0)
    for bad in (math.nan, math.inf):
        rows[500, 3] = bad
        assert not math.isfinite(longest_row(rows))


def test_fast_batches_on_a_gpu_are_poisson():
    schedule = plan_steps(20_000, 1000, 20)
    batches = PoissonBatches(
        schedule, [NoiseKey.insecure(1)], phase="x", noise="fast", device="cuda"
    )
    sizes, seen = [], torch.zeros(20_000, device=CUDA)
    for batch in batches:
        chosen = batch.positions[batch.valid]
        assert len(chosen.unique()) == len(chosen)
        seen[chosen] += 1
        sizes.append(len(chosen))
    count = len(sizes)
    assert count == schedule.steps
    # Binomial sizes: mean and variance within six standard errors.
    assert np.mean(sizes) == pytest.approx(1000, abs=6 * math.sqrt(950 / count))
    assert np.var(sizes) == pytest.approx(950, rel=6 * math.sqrt(2 / count))
    assert float(seen.var()) == pytest.approx(count * 0.05 * 0.95, rel=0.1)
    again = [batch.positions for batch in batches]
    assert torch.equal(again[0], next(iter(batches)).positions)
