"""A recorded DP-SGD step is the step that was recorded, with fresh noise every time."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gapgnn.nn.layers import ReplicaMLP, cross_entropy
from gapgnn.privacy.dpsgd import PrivateTraining
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters
from gapgnn.privacy.dpsgd.ghost import record_linears
from gapgnn.privacy.dpsgd.poisson import PoissonBatches, plan_steps
from gapgnn.privacy.dpsgd.step import PrivateStep
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.rng import NoiseKey
from gapgnn.training.callbacks import Silent
from gapgnn.training.recipe import Recipe
from gapgnn.training.splits import Splits
from gapgnn.training.trainer import RecordedSteps, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KEYS = [NoiseKey.insecure(seed) for seed in range(2)]


def train(*, is_recorded, epochs=4, features=None, width=None, noise="fast"):
    generator = torch.Generator().manual_seed(0)
    if features is None:
        features = torch.randn(2000, 12, generator=generator)
    features = features.cuda()
    labels = torch.randint(4, (2000,), generator=generator).cuda()
    mlp = ReplicaMLP(2, [12, 16, 4])
    mlp.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
    mlp.cuda()
    flat = FlatParameters(mlp)
    schedule = plan_steps(2000, 100, epochs)
    step = PrivateStep(
        flat,
        FlatAdam(flat.values),
        clip=1.0,
        noise_multiplier=1.0,
        expected_batch=schedule.expected_batch,
        sources=[NoiseSource(key, noise=noise) for key in KEYS],
        phase="test",
    )

    def take(positions, valid):
        with record_linears() as tape:
            losses = cross_entropy(mlp(features[positions]), labels[positions])
        step.step(tape, losses, valid)

    work = take
    if is_recorded:
        work = RecordedSteps(
            take, step, replicas=2, mean_batch=width or 100.0, device=torch.device("cuda")
        )
    values = []
    for batch in PoissonBatches(schedule, KEYS, phase="t", noise="fast", device="cuda"):
        work(batch.positions, batch.valid)
        values.append(flat.values.clone())
    assert step.steps == schedule.steps
    return torch.stack(values)


@pytest.mark.parametrize("noise", ["fast", "safe"])
def test_recorded_steps_are_the_steps_taken_one_by_one(noise):
    plain = train(is_recorded=False, noise=noise)
    recorded = train(is_recorded=True, noise=noise)
    assert len(plain) == 80
    assert torch.allclose(recorded, plain, atol=2e-4)
    assert float((plain[-1] - plain[0]).abs().max()) > 0.05


def test_batches_wider_than_the_recording_are_taken_whole():
    # A recording for batches of 20 is 64 wide; all real batches are wider.
    plain, wide = train(is_recorded=False), train(is_recorded=True, width=10.0)
    assert torch.allclose(wide, plain, atol=2e-4)


@pytest.mark.parametrize("noise", ["fast", "safe"])
def test_every_recorded_step_has_noise_of_its_own(noise):
    options = {"epochs": 10, "features": torch.zeros(2000, 12), "noise": noise}
    values = train(is_recorded=True, **options)
    moved = values.diff(dim=0).flatten(1)[10:]
    # With features of zero the first layer's weights move by noise alone.
    first = moved.view(len(moved), 2, -1)[:, :, : 12 * 16].flatten(1)
    assert len({tuple(row[:4].tolist()) for row in first}) == len(first)
    assert not any(math.isnan(float(row.sum())) for row in first)


def test_steps_are_recorded_though_more_people_train_than_is_public(monkeypatch):
    recorded, honest = [], PrivateStep.record

    def counted(self, take):
        recorded.append(self.phase)
        return honest(self, take)

    monkeypatch.setattr(PrivateStep, "record", counted)
    labels = torch.randint(4, (20_000,), generator=torch.Generator().manual_seed(0)).cuda()
    everybody = np.ones((1, 20_000), dtype=np.bool_)
    trainer = Trainer(
        labels=labels,
        splits=Splits(everybody, ~everybody, ~everybody),
        num_train=10_000,
        recipe=Recipe(1, 1000, 0.01, 0.0, "adam", 1.0),
        seed=0,
        callback=Silent(),
    )
    features = torch.nn.functional.one_hot(labels, 4).float()
    inputs = Rows(features, is_recordable=True)
    mlp = ReplicaMLP(1, [4, 16, 4])
    mlp.reset([torch.Generator().manual_seed(0)])
    private = PrivateTraining(1.0, [KEYS[0]], "safe")
    trainer.fit(mlp.cuda(), inputs, phase="x", private=private)
    assert recorded == ["x"]


class Rows:
    """Dense features of all nodes."""

    def __init__(self, rows, *, is_recordable):
        self._rows = rows
        self.is_recordable = is_recordable

    def all(self):
        return self._rows

    def taken(self, nodes):
        return self._rows[nodes]

    def rows(self, positions, valid=None):
        return self._rows[positions]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("nodes", [None, 500])
def test_recorded_epochs_train_what_single_ones_train(batch_norm, dropout, nodes):
    """Dropout too: its masks are counted on the device. With ``nodes`` a step reads some nodes."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3000, 12, generator=generator)
    labels = torch.randint(4, (3000,), generator=generator)
    features[:, :4] += 2 * torch.nn.functional.one_hot(labels, 4)
    masks = torch.rand(2, 3000, generator=generator).numpy()
    splits = Splits(masks < 0.6, (masks >= 0.6) & (masks < 0.8), masks >= 0.8)
    results = []
    for is_recordable in (False, True):
        mlp = ReplicaMLP(2, [12, 16, 4], batch_norm=batch_norm, dropout=dropout)
        mlp.reset([torch.Generator().manual_seed(seed) for seed in range(2)])
        trainer = Trainer(
            labels=labels.cuda(),
            splits=splits,
            num_train=1800,
            recipe=replace(Recipe(40, None, 0.01, 0.0, "adam", 1.0), nodes=nodes),
            seed=0,
            callback=Silent(),
        )
        inputs = Rows(features.cuda(), is_recordable=is_recordable)
        trainer.fit(mlp.cuda(), inputs, phase="x")
        results.append(mlp(inputs.all()).softmax(dim=-1))
    assert torch.allclose(*results, atol=1e-3)
    right = (results[1].argmax(dim=-1).cpu() == labels).double().mean()
    assert float(right) > 0.7
