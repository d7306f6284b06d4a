"""Time of one DP-SGD step: ours, Opacus's default, and a non-private step of the same code.

The setting of the acceptance figures: batches of 256, a three-layer MLP with 16 hidden units, 349
one-hot features, Adam. Every variant draws its own Poisson batches inside the clock, and the
variants take turns, so that a slow moment of the machine hits all of them.

    python benchmarks/dpsgd_step.py [--rounds 30] [--threads 1] [--device cpu|cuda]
        [--clock wall|cpu]

CPU time of one thread is the fairer clock on a machine that others use at the same time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch

from gapgnn.nn.layers import ReplicaMLP, cross_entropy
from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters
from gapgnn.privacy.dpsgd.ghost import record_linears
from gapgnn.privacy.dpsgd.poisson import DPSchedule, PoissonBatches
from gapgnn.privacy.dpsgd.step import PrivateStep
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.rng import NoiseKey, experiment_torch

EXAMPLES, BATCH, FEATURES, HIDDEN, CLASSES, ONES = 11_530, 256, 349, 16, 6, 5
SIZES = [FEATURES, HIDDEN, HIDDEN, CLASSES]
STEPS_PER_TURN = 20


def make_data() -> tuple[sp.csr_array, torch.Tensor]:
    rng = np.random.default_rng(0)
    groups = np.array_split(np.arange(FEATURES), ONES)
    columns = np.stack([rng.choice(group, EXAMPLES) for group in groups], axis=1)
    pointers = np.arange(0, EXAMPLES * ONES + 1, ONES)
    ones = np.ones(EXAMPLES * ONES, dtype=np.float32)
    matrix = sp.csr_array((ones, columns.ravel(), pointers), shape=(EXAMPLES, FEATURES))
    return matrix, torch.from_numpy(rng.integers(CLASSES, size=EXAMPLES))


def ours(
    replicas: int, mode: str, matrix: sp.csr_array, labels: torch.Tensor, device: str
) -> Callable[[], None]:
    """Return a function that takes STEPS_PER_TURN steps; `mode` is fast, safe or plain."""
    rows, labels = SparseRows.from_scipy(matrix, device=device), labels.to(device)
    model = ReplicaMLP(replicas, SIZES)
    model.reset([experiment_torch(0, "init", replica) for replica in range(replicas)])
    model.to(device)
    flat = FlatParameters(model)
    optimiser = FlatAdam(flat.values, learning_rate=0.01)
    keys = [NoiseKey.fresh() for _ in range(replicas)]
    private = mode != "plain"
    noise = "safe" if mode == "safe" else "fast"
    step = PrivateStep(
        flat,
        optimiser,
        clip=1.0,
        noise_multiplier=1.0,
        expected_batch=BATCH,
        sources=[NoiseSource(key, noise=noise) for key in keys],
        phase="bench",
    )
    schedule = DPSchedule(EXAMPLES, BATCH / EXAMPLES, 10**6, float(BATCH))
    batches = iter(PoissonBatches(schedule, keys, phase="bench", noise=noise, device=device))

    def turn() -> None:
        for _ in range(STEPS_PER_TURN):
            batch = next(batches)
            inputs, targets = rows.select(batch.positions), labels.take(batch.positions)
            if private:
                with record_linears() as tape:
                    losses = cross_entropy(model(inputs), targets)
                step.step(tape, losses, batch.valid)
            else:
                losses = cross_entropy(model(inputs), targets) * batch.valid
                optimiser.step(flat.gradient(losses).div_(BATCH))

    return turn


def opacus_model() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for wide, narrow in pairwise(SIZES):
        layers += [torch.nn.Linear(wide, narrow), torch.nn.SELU()]
    return torch.nn.Sequential(*layers[:-1])


def opacus_steps(matrix: sp.csr_array, labels: torch.Tensor) -> Callable[[], None]:
    """Opacus's bare step, per-sample gradients by hooks, without its data loader."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(opacus_model())
    optimiser = DPOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    features = torch.from_numpy(matrix.toarray())
    generator = torch.Generator().manual_seed(0)

    def turn() -> None:
        for _ in range(STEPS_PER_TURN):
            chosen = (torch.rand(EXAMPLES, generator=generator) < BATCH / EXAMPLES).nonzero()[:, 0]
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()

    return turn


def opacus_engine(matrix: sp.csr_array, labels: torch.Tensor) -> Callable[[], None]:
    """Opacus as its PrivacyEngine sets it up by default, Poisson data loader included."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    module = opacus_model()
    data = TensorDataset(torch.from_numpy(matrix.toarray()), labels)
    model, optimiser, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def turn() -> None:
        for _ in range(STEPS_PER_TURN):
            features, targets = next(batches)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(features), targets).backward()
            optimiser.step()

    return turn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="(Full backward hook|Secure RNG)")
    matrix, labels = make_data()
    turns = {
        f"{name}, R={replicas}": ours(replicas, mode, matrix, labels, args.device)
        for replicas in (1, 10)
        for name, mode in (("plain", "plain"), ("private fast", "fast"), ("private safe", "safe"))
    }
    if args.device == "cpu":
        turns["opacus, bare step"] = opacus_steps(matrix, labels)
        turns["opacus, its engine"] = opacus_engine(matrix, labels)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(args.rounds):
        for name, turn in turns.items():
            start = clock()
            turn()
            if args.device == "cuda":
                torch.cuda.synchronize()
            times[name].append((clock() - start) / STEPS_PER_TURN * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    yardsticks = ("plain, R=1", "opacus, bare step", "opacus, its engine")
    against = [name for name in yardsticks if name in medians]
    print(f"{'one step':<20} {'microseconds':>12}" + "".join(f"{'/ ' + n:>22}" for n in against))
    for name, value in medians.items():
        ratios = "".join(f"{value / medians[other]:>22.2f}" for other in against)
        print(f"{name:<20} {value:>12.0f}{ratios}")


if __name__ == "__main__":
    main()
