"""The loop of DP-SGD over roots: its noise, its batches and its arcs are the ones accounted for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rootcases import CLASSES, WIDTH, gradients_of, inputs_of, people, ring_of_lists
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphConv

from gapgnn.privacy import observed_by
from gapgnn.privacy.dpsgd import PoissonBatches, PrivateTraining, plan_steps
from gapgnn.privacy.mechanisms.noise import GRID, MIN_SCALE
from gapgnn.rng import NoiseKey
from gapgnn.training.callbacks import Silent
from gapgnn.training.recipe import Recipe
from gapgnn.training.roots import RootTrainer

KEY = NoiseKey.insecure(5)
SCHEDULE = plan_steps(12, 4, 2)
GRAPH = people(12, ring_of_lists(12, 3))


class Watching:
    """Keeps the batches and releases of a run."""

    def __init__(self):
        self.releases, self.outputs, self.batches = [], [], []

    def begin(self, purpose, **about):
        pass

    def release(self, release, output):
        self.releases.append(release)
        self.outputs.append(output.double().numpy())
        return output

    def batch(self, phase, batch, members):
        self.batches.append(batch.positions[batch.valid].tolist())
        return batch


def run(phase="classifier", noise="safe", sensitivity=1.0, multiplier=0.5):
    """Train on rows alone; return what an observer saw."""
    seen = Watching()
    recipe = Recipe.resolve(
        level="node",
        num_train=12,
        epochs=2,
        batch_size=4,
        learning_rate=0.1,
        weight_decay=0.0,
        optimizer="sgd",
        clip=0.5,
    )
    trainer = RootTrainer(recipe=recipe, schedule=SCHEDULE, loss=cross_entropy, callback=Silent())
    torch.manual_seed(0)
    with observed_by(seen):
        trainer.fit(
            nn.Linear(WIDTH, CLASSES),
            inputs_of(GRAPH, 0, 3),
            phase=phase,
            private=PrivateTraining(multiplier, [KEY], noise, sensitivity),
        )
    return seen


def test_safe_noise_lies_on_its_grid_in_every_step():
    for noise in ("safe", "fast"):
        steps = np.stack(run(noise=noise).outputs) / GRID
        assert bool((steps == np.round(steps)).all()) == (noise == "safe")


def test_the_noise_has_the_scale_that_was_accounted_for():
    seen = run(multiplier=0.7, sensitivity=3.0)
    noise = [out - one.value for out, one in zip(seen.outputs, seen.releases, strict=True)]
    assert len(noise) == SCHEDULE.steps
    # 90 values: six standard errors.
    assert float(np.std(noise)) == pytest.approx(2.1, rel=0.45)
    assert [one.scale for one in seen.releases] == [pytest.approx(2.1)] * SCHEDULE.steps


def test_no_two_steps_or_phases_share_noise():
    found = [
        out - one.value
        for seen in (run("first"), run("second"))
        for out, one in zip(seen.outputs, seen.releases, strict=True)
    ]
    # Rounded beyond what single precision takes from a sum; by chance few values come twice.
    values = np.round(np.concatenate([np.ravel(one) for one in found]), 5)
    assert len(np.unique(values)) > 0.98 * len(values)


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_batches_are_tossed_by_the_secret_coins_of_the_phase(noise):
    expected = PoissonBatches(SCHEDULE, [KEY], phase="own", members=[torch.arange(12)], noise=noise)
    wanted = [batch.positions[batch.valid].tolist() for batch in expected]
    assert run("own", noise).batches == wanted
    assert run("other", noise).batches != wanted


def test_a_root_that_fills_its_clip_leaves_room_for_the_grid():
    """As little noise as there is: the sums of single roots are never beyond the clip."""
    seen = run(multiplier=MIN_SCALE)
    for one, batch in zip(seen.releases, seen.batches, strict=True):
        norm = float(np.linalg.norm(one.value))
        assert norm <= len(batch) * (1 - 1e-5)


def test_the_arcs_of_an_example_are_drawn_anew_in_every_step():
    torch.manual_seed(0)
    ours = gradients_of(GraphConv(WIDTH, CLASSES), inputs_of(GRAPH, 1, 3, keep=0.5))
    root = torch.tensor([4])
    sums = [ours.clipped_sum(root, step, 1e6, 1.0) for step in range(6)]
    assert len({tuple(one[0].tolist()) for one in sums}) > 2
    assert torch.equal(ours.clipped_sum(root, 3, 1e6, 1.0), sums[3])
