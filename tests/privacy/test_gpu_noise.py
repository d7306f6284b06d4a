"""Safe noise of a GPU: the bits of the CPU, the stated distribution, and every planted fault seen.

Every threshold has a false-alarm probability of 1e-9 over all keys, and the keys are fixed.
"""

import hashlib
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy import special, stats

from gapgnn.audits import audit_aggregation
from gapgnn.graph.graph import Graph
from gapgnn.nn.layers import ReplicaMLP, cross_entropy
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters
from gapgnn.privacy.dpsgd.ghost import record_linears
from gapgnn.privacy.dpsgd.poisson import DPSchedule, PoissonBatches
from gapgnn.privacy.dpsgd.step import PrivateStep
from gapgnn.privacy.mechanisms import device as kernels
from gapgnn.privacy.mechanisms import hop_mechanisms
from gapgnn.privacy.mechanisms.device import CipherNoise
from gapgnn.privacy.mechanisms.noise import GRID, NoiseSource
from gapgnn.rng import NoiseKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not kernels.can_use_triton(torch.device("cuda")),
        reason="no CUDA device with Triton",
    ),
]
FALSE_ALARM = 1e-9
STD = 3.0
ROWS, WIDTH = 1 << 17, 16


def wrong_gaussian(values, std):
    """Alarm unless the values look like N(0, std^2): variance, mean, shape and far tails."""
    values = values.double().flatten() / std
    count = values.numel()
    tail = stats.chi2(count).cdf(float(values.square().sum()))
    if min(tail, 1 - tail) < FALSE_ALARM / 2:
        return True
    if abs(float(values.mean())) * math.sqrt(count) > stats.norm.isf(FALSE_ALARM / 2):
        return True
    order = values.sort().values
    cdf = torch.special.ndtr(order)
    ranks = torch.arange(count, device=values.device, dtype=torch.float64)
    distance = float(torch.maximum(cdf - ranks / count, (ranks + 1) / count - cdf).max())
    if special.kolmogorov(distance * math.sqrt(count)) < FALSE_ALARM:
        return True
    for far in (3.0, 3.5, 4.0, 4.5):
        expected = 2 * special.ndtr(-far) * count
        found = int((values.abs() > far).sum())
        tails = stats.poisson.cdf(found, expected), stats.poisson.sf(found - 1, expected)
        if min(tails) < FALSE_ALARM:
            return True
    return False


def share_noise(first, second):
    first, second = (part.double().flatten() / STD for part in (first, second))
    z = float((first * second).sum()) / math.sqrt(first.numel())
    return abs(z) > stats.norm.isf(FALSE_ALARM / 2)


def drawn(seed, *path):
    source = NoiseSource(NoiseKey.insecure(seed))
    return source.gaussian((ROWS, WIDTH), STD, *path, device="cuda")


@pytest.mark.parametrize("shape", [(10_000, 16), (3, 70_001), (5000, 1), (4000, 9), (0, 4)])
@pytest.mark.parametrize("std", [2.0**-10, STD, 2.0**20])
def test_a_gpu_draws_the_bits_of_the_cpu(shape, std):
    source = NoiseSource(NoiseKey.insecure(1))
    there = source.gaussian(shape, std, "hop", 1, device="cuda")
    here = source.gaussian(shape, std, "hop", 1)
    assert torch.equal(there.cpu(), here)
    assert there.cpu().numpy().tobytes() == here.numpy().tobytes()


def test_millions_of_values_are_the_bits_of_the_cpu():
    source = NoiseSource(NoiseKey.insecure(2))
    there = source.gaussian((1 << 20, 8), STD, "hop", 1, device="cuda").cpu()
    assert torch.equal(there, source.gaussian((1 << 20, 8), STD, "hop", 1))


def test_the_stream_is_the_one_of_the_cpu_tests():
    source = NoiseSource(NoiseKey.insecure(0))
    there = source.gaussian((5000, 9), 3.0, "hop", 1, device="cuda").cpu().numpy().tobytes()
    here = source.gaussian((5000, 9), 3.0, "hop", 1).numpy().tobytes()
    assert hashlib.sha256(there).digest() == hashlib.sha256(here).digest()


def test_the_distribution_is_the_stated_one_and_three_percent_off_is_seen():
    for seed in range(5):
        values = drawn(seed, "hop", 1)
        assert not wrong_gaussian(values, STD)
        assert wrong_gaussian(values, STD * 1.03)
        assert wrong_gaussian(values, STD / 1.03)
    clipped = drawn(0, "hop", 1).clamp(-3.2 * STD, 3.2 * STD)
    assert wrong_gaussian(clipped, STD), "planted: cut tails"


def test_tails_reach_beyond_what_53_bits_can():
    """Of 2**31 values some are beyond 5.9 standard deviations, as many as should be."""
    source, beyond, count = NoiseSource(NoiseKey.insecure(3)), 0, 1 << 26
    for part in range(32):
        values = source.gaussian((count // 16, 16), 1.0, "far", part, device="cuda")
        beyond += int((values.abs() > 5.5).sum())
    expected = 2 * special.ndtr(-5.5) * count * 32
    assert stats.poisson.cdf(beyond, expected) > FALSE_ALARM
    assert stats.poisson.sf(beyond - 1, expected) > FALSE_ALARM


def test_hops_replicas_and_rows_share_nothing():
    first = drawn(0, "hop", 1)
    assert not share_noise(first, drawn(0, "hop", 2))
    assert not share_noise(first, drawn(1, "hop", 1))
    assert not share_noise(first[1:], first[:-1])
    assert not share_noise(first[: ROWS // 2], first[ROWS // 2 :])
    for column in range(1, WIDTH):
        assert not share_noise(first[:, 0], first[:, column])


def graph_of(num_nodes=20_000, num_arcs=200_000, seed=0):
    arcs = np.random.default_rng(seed).integers(0, num_nodes, (num_arcs, 2))
    arcs[: num_arcs // 20, 1] = 5
    return Graph.from_arcs(*arcs.T, num_nodes=num_nodes, features=np.zeros((num_nodes, 1)))


GRAPH = graph_of()


def hop_noise(indices=(1, 2)):
    """Return the noise of two hops of two replicas as the hop's own kernel draws it."""
    keys = [NoiseKey.insecure(1), NoiseKey.insecure(2)]
    options = {"level": "edge", "relation": "undirected", "keys": keys, "device": "cuda"}
    private = hop_mechanisms(GRAPH, noise_multiplier=STD / math.sqrt(2), **options)[0]
    rows = torch.zeros(2, GRAPH.num_nodes, WIDTH, device="cuda")
    return torch.stack([private.hop(rows, index, normalise=False) for index in indices])


def hop_faults(noise):
    """Return which faults the tests see in the noise of two hops of two replicas."""
    found = set()
    if any(wrong_gaussian(part, STD) for part in noise.flatten(0, 1)):
        found.add("scale")
    if share_noise(noise[0], noise[1]):
        found.add("hops")
    if share_noise(noise[:, 0], noise[:, 1]):
        found.add("replicas")
    half = GRAPH.num_nodes // 2
    if share_noise(noise[:, :, :half], noise[:, :, half:]) or share_noise(
        noise[..., :8], noise[..., 8:]
    ):
        found.add("blocks")
    return found


def test_the_noise_inside_the_hops_kernel_is_right():
    assert hop_faults(hop_noise()) == set()


@pytest.mark.parametrize("fault", ["scale", "hops", "replicas"])
def test_planted_faults_of_keys_and_scale_are_seen(fault, monkeypatch):
    honest, known = NoiseSource.cipher, {}

    def planted(self, num_columns, std, *path):
        noise = honest(self, num_columns, std, *path)
        if fault == "scale":
            return CipherNoise(noise.secret, noise.std * 0.97, noise.unit)
        # The first key that was used by this replica, or in this hop, for all of them.
        shared = known.setdefault(self.key.secret if fault == "hops" else path, noise.secret)
        return CipherNoise(shared, noise.std, noise.unit)

    monkeypatch.setattr(NoiseSource, "cipher", planted)
    assert hop_faults(hop_noise()) == {fault}


@pytest.mark.parametrize("fault", ["rows", "columns"])
def test_planted_reuse_of_counters_inside_a_hop_is_seen(fault, monkeypatch):
    honest = kernels.InLists._launch

    def planted(self, items, rows, out, finish, gather=True):
        if fault == "rows" and finish is not None:
            half = len(out) // 2
            folded = torch.where(items.rows >= half, items.rows - half, items.rows)
            copy = torch.empty_like(out)
            for part in (items.rows < half, items.rows >= half):
                chosen = kernels.Items(folded[part], items.starts[part], items.counts[part])
                honest(self, chosen, rows, copy, finish, gather)
                where = items.rows[part].long()
                out[where] = copy[folded[part].long()]
            return
        honest(self, items, rows, out, finish, gather)
        if fault == "columns" and finish is not None:
            out[items.rows.long(), 8:] = out[items.rows.long(), :8]

    monkeypatch.setattr(kernels.InLists, "_launch", planted)
    assert hop_faults(hop_noise()) == {"blocks"}


def steps_noise(steps=40, device="cuda"):
    """Return the noise of DP-SGD steps on empty batches, by step and replica, in clips."""
    mlp = ReplicaMLP(2, [40, 60, 4])
    mlp.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    mlp.to(device)
    flat = FlatParameters(mlp)
    seen = []

    class Watch(FlatAdam):
        def step(self, gradient):
            seen.append(gradient.clone())

    step = PrivateStep(
        flat,
        Watch(flat.values),
        clip=1.0,
        noise_multiplier=STD,
        expected_batch=1.0,
        sources=[NoiseSource(NoiseKey.insecure(seed)) for seed in (5, 6)],
        phase="test",
    )
    features = torch.zeros(2, 3, 40, device=device)
    labels = torch.zeros(2, 3, dtype=torch.int64, device=device)
    for _ in range(steps):
        with record_linears() as tape:
            losses = cross_entropy(mlp(features), labels)
        step.step(tape, losses, torch.zeros(2, 3, dtype=torch.bool, device=device))
    return torch.stack(seen)


def step_faults(noise):
    found = set()
    if wrong_gaussian(noise, STD):
        found.add("scale")
    if share_noise(noise[1:], noise[:-1]) or share_noise(noise[8:], noise[:-8]):
        found.add("steps")
    if share_noise(noise[:, 0], noise[:, 1]):
        found.add("replicas")
    return found


def test_the_noise_of_dpsgd_steps_is_right_and_that_of_the_cpu():
    noise = steps_noise()
    assert step_faults(noise) == set()
    assert torch.equal(noise.cpu(), steps_noise(device="cpu"))


def drawn_batches(device, phase="t"):
    keys = [NoiseKey.insecure(seed) for seed in (5, 6)]
    schedule = DPSchedule(50_000, 0.06, 60, 3000.0)
    for batch in PoissonBatches(schedule, keys, phase=phase, device=device):
        positions = batch.positions.cpu().masked_fill(~batch.valid.cpu(), -1)
        yield [row[row >= 0].tolist() for row in positions]


def test_safe_batches_are_those_of_the_cpu_and_no_two_are_alike():
    found = list(drawn_batches("cuda"))
    assert found == list(drawn_batches("cpu"))
    assert found[0] != next(drawn_batches("cuda", phase="other"))
    everybody = [tuple(batch) for step in found for batch in step]
    assert len(set(everybody)) == len(everybody) == 120


@pytest.mark.parametrize("fault", ["scale", "steps", "replicas"])
def test_planted_faults_of_dpsgd_steps_are_seen(fault, monkeypatch):
    honest = CipherNoise.rows

    def planted(self, first_row, num_rows, num_columns, device):
        noise = self
        if fault == "scale":
            noise = CipherNoise(self.secret, self.std * 0.97, self.unit)
        if fault == "replicas":
            noise = CipherNoise(bytes(32), self.std, self.unit)
        if fault == "steps":
            one = honest(noise, 0, 1, num_columns, device)
            return one.expand(num_rows, num_columns).clone()
        return honest(noise, first_row, num_rows, num_columns, device)

    monkeypatch.setattr(CipherNoise, "rows", planted)
    assert fault in step_faults(steps_noise())


def test_the_key_is_gone_from_the_device_when_a_release_ends(monkeypatch):
    kept = []
    honest = CipherNoise.words

    @contextmanager
    def watched(self, device):
        with honest(self, device) as words:
            kept.append(words)
            assert bool(words.any())
            yield words

    monkeypatch.setattr(CipherNoise, "words", watched)
    hop_noise()
    steps_noise(3)
    torch.cuda.synchronize()
    assert len(kept) >= 4
    assert not any(bool(words.any()) for words in kept)


def test_whole_sums_on_the_device_have_no_low_bits_of_their_own():
    noise = hop_noise((1,))
    steps = noise.double() / GRID
    assert torch.equal(steps, steps.round())
    assert not bool((noise.view(torch.int32) == torch.iinfo(torch.int32).min).any())


def test_the_audit_runs_on_the_device():
    report = audit_aggregation(level="edge", epsilon=1.0, trials=2000)
    assert report.holds
