"""DP-SGD steps: Opacus's steps, the noise, the divisor, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import scipy.sparse as sp
import torch
from stepcases import forward, make_batch, make_mlp, make_sources, make_step
from torch import Tensor, nn

from gapgnn import MLP, random_split
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.nn.layers import ReplicaMLP
from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters, FlatSGD, make_optimiser
from gapgnn.privacy.dpsgd.ghost import Tape, output_gradients, squared_norms
from gapgnn.privacy.dpsgd.poisson import PoissonBatches, plan_steps
from gapgnn.privacy.dpsgd.step import PrivateStep
from gapgnn.privacy.ledger import scratch_ledger
from gapgnn.privacy.mechanisms.noise import GRID, SafeOrFast
from gapgnn.training import trainer as trainer_module


def opacus_twin(mlp: ReplicaMLP) -> nn.Module:
    grad_sample = pytest.importorskip("opacus").GradSampleModule
    layers: list[nn.Module] = []
    for linear in mlp.linears:
        twin = nn.Linear(linear.in_features, linear.out_features)
        with torch.no_grad():
            twin.weight.copy_(linear.weight[0].T)
            twin.bias.copy_(linear.bias[0, 0])
        layers += [twin, nn.SELU()]
    return grad_sample(nn.Sequential(*layers[:-1]), loss_reduction="sum")


def as_flat(gradients: Sequence[Tensor]) -> Tensor:
    """Lay Opacus's gradients, weights transposed, in our order."""
    return torch.cat([(part.mT if part.ndim == 2 else part).reshape(-1) for part in gradients])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [0, 1, 7, 256])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_norms_and_clipped_sums_are_those_of_opacus(count: int, is_sparse: bool) -> None:
    inputs, labels = make_batch(count, scale=2.0)
    if is_sparse:
        inputs = inputs * (inputs > 1)
    mlp = make_mlp()
    twin = opacus_twin(mlp)
    nn.functional.cross_entropy(twin(inputs[0]), labels[0], reduction="sum").backward()
    samples = [value.grad_sample for value in twin.parameters()]
    norms = torch.stack([part.flatten(1).norm(dim=1) for part in samples]).norm(dim=0)
    clip = float(norms.median()) if count else 1.0

    given_rows: object = inputs
    if is_sparse:
        table = SparseRows.from_scipy(sp.csr_array(inputs[0].numpy()))
        given_rows = table.select(torch.arange(count).unsqueeze(0))
    private = make_step(mlp, clip=clip)
    tape, losses = forward(mlp, given_rows, labels)
    ours = squared_norms(tape, output_gradients(tape, losses)).sqrt()
    torch.testing.assert_close(ours[0].float(), norms, rtol=1e-5, atol=1e-6)

    tape, losses = forward(mlp, given_rows, labels)
    factors = (private.effective_clip / (norms + 1e-6)).clamp(max=1)
    expected = as_flat([torch.tensordot(factors, part, dims=1) for part in samples])
    torch.testing.assert_close(
        private.clipped_sum(tape, losses)[0], expected, rtol=1e-5, atol=1e-5 * clip
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [0, 1, 7, 256])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_is_that_of_opacus_given_the_same_noise(
    count: int, optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = make_mlp()
    twin = opacus_twin(mlp)
    flat = FlatParameters(mlp)
    sources = make_sources()
    private = PrivateStep(
        flat,
        make_optimiser(optimiser, flat.values, learning_rate=0.05),
        clip=0.7,
        noise_multiplier=0.9,
        expected_batch=40,
        sources=sources,
        phase="test",
    )
    cases = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers import optimizer as opacus_module

    theirs = DPOptimizer(
        cases[optimiser](twin.parameters(), lr=0.05),
        noise_multiplier=0.9,
        max_grad_norm=private.effective_clip,
        expected_batch_size=40,
    )
    ahead = private._ahead
    drawn = sources[0].gaussian((ahead, flat.size), 0.9, "test", "steps", 0) * 0.7
    for step in range(3):
        inputs, labels = make_batch(count, seed=step)
        private.step(*forward(mlp, inputs, labels))

        pieces = iter(drawn[step].split([p[0].numel() for p in flat.parameters]))

        def same_noise(std: float, reference: Tensor, pieces=pieces, **_: object) -> Tensor:
            piece = next(pieces)
            return piece.view(reference.T.shape).T if reference.ndim == 2 else piece

        monkeypatch.setattr(opacus_module, "_generate_noise", same_noise)
        theirs.zero_grad()
        nn.functional.cross_entropy(twin(inputs[0]), labels[0], reduction="sum").backward()
        theirs.step()
        twin_values = as_flat([value.detach() for value in twin.parameters()])
        torch.testing.assert_close(flat.values[0], twin_values, rtol=1e-5, atol=1e-6)


# Noise


def check_noise(case: type[PrivateStep], noise: str) -> None:
    """Empty batches only, so every movement is noise: its scale, and fresh each time."""
    replicas, steps, clip, multiplier, expected = 2, 40, 0.5, 3.0, 8.0
    mlp = make_mlp(replicas, [200, 16, 5])
    private = make_step(
        mlp,
        case=case,
        noise=noise,
        clip=clip,
        multiplier=multiplier,
        expected=expected,
    )
    nobody = torch.zeros(replicas, 1, dtype=torch.bool)
    inputs = torch.ones(replicas, 1, 200)
    moves = []
    for _ in range(steps):
        before = private.flat.values.double()
        private.step(*forward(mlp, inputs, torch.zeros(replicas, 1, dtype=torch.long)), nobody)
        moves.append(before - private.flat.values.double())
    drawn = torch.stack(moves) * expected / clip / multiplier
    count = drawn.numel()
    # Seven standard deviations of the estimators and more, yet 3 % in scale is far outside.
    assert abs(float(drawn.mean())) < 7 / count**0.5
    assert abs(float(drawn.std()) - 1) < 7 / (2 * count) ** 0.5 + 1e-4
    rows = drawn.flatten(0, 1)
    similarity = (rows @ rows.T / rows.shape[1]).fill_diagonal_(0)
    assert float(similarity.abs().max()) < 8 / rows.shape[1] ** 0.5


class HalvedNoise(PrivateStep):
    def _noised(self, total: Tensor) -> Tensor:
        return (super()._noised(total.clone()) + total) / 2


class ForgetsEmptyBatches(PrivateStep):
    def step(self, tape: Tape, losses: Tensor, valid: Tensor | None = None) -> None:
        if valid is not None and valid.any():
            super().step(tape, losses, valid)


class SameNoiseEveryStep(PrivateStep):
    def _noised(self, total: Tensor) -> Tensor:
        self.steps = 0
        return super()._noised(total)


class SameNoiseEveryReplica(PrivateStep):
    def _noised(self, total: Tensor) -> Tensor:
        return super()._noised(total)[:1].expand_as(total).clone()


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_the_noise_has_its_scale_on_empty_batches_and_is_never_reused(
    noise: str,
) -> None:
    check_noise(PrivateStep, noise)


@pytest.mark.parametrize(
    "bug", [HalvedNoise, ForgetsEmptyBatches, SameNoiseEveryStep, SameNoiseEveryReplica]
)
def test_the_noise_check_catches_planted_bugs(bug: type[PrivateStep]) -> None:
    with pytest.raises(AssertionError):
        check_noise(bug, "fast")


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_two_phases_of_equal_size_under_one_key_share_no_noise(noise: SafeOrFast) -> None:
    """Encoder and classifier may have as many parameters: shared noise could be subtracted."""
    moves = {}
    for phase in ("encoder", "classifier", "encoder again"):
        mlp = make_mlp(1, [200, 16, 5])
        private = make_step(mlp, noise=noise, phase=phase.split()[0])
        nobody = torch.zeros(1, 1, dtype=torch.bool)
        steps = []
        for _ in range(10):
            before = private.flat.values.double()
            batch = torch.ones(1, 1, 200), torch.zeros(1, 1, dtype=torch.long)
            private.step(*forward(mlp, *batch), nobody)
            steps.append((before - private.flat.values.double())[0])
        moves[phase] = torch.stack(steps)
    # The same phase draws the same noise, so what differs below is the phase alone.
    torch.testing.assert_close(moves["encoder"], moves["encoder again"])
    likeness = moves["encoder"] @ moves["classifier"].T / moves["encoder"].shape[1]
    assert float(likeness.abs().max()) < 8 / moves["encoder"].shape[1] ** 0.5


def test_the_sum_is_divided_by_the_expected_and_not_by_the_actual_batch() -> None:
    moves = []
    for copies in (1, 3):
        mlp = make_mlp()
        private = make_step(mlp, multiplier=1e-9, expected=10.0)
        inputs, labels = make_batch(5)
        tape, losses = forward(mlp, inputs.repeat(1, copies, 1), labels.repeat(1, copies))
        total = private.clipped_sum(tape, losses)
        before = private.flat.values.clone()
        private.step(*forward(mlp, inputs.repeat(1, copies, 1), labels.repeat(1, copies)))
        torch.testing.assert_close(before - private.flat.values, total / 10, rtol=1e-4, atol=1e-6)
        moves.append(before - private.flat.values)
    torch.testing.assert_close(moves[1], 3 * moves[0], rtol=1e-4, atol=1e-6)


def test_one_example_of_a_large_batch_moves_a_safe_sum_by_no_more_than_the_clip() -> None:
    """Whose gradients are alike: the sum is large, and float32 would round it by more."""
    private = make_step(make_mlp(1, [3, 2]), noise="safe")
    inputs, labels = torch.full((1, 40_001, 3), 7.0), torch.zeros(1, 40_001, dtype=torch.long)
    inputs += torch.linspace(0, 1, inputs.shape[1]).view(1, -1, 1)
    with_one, without = (
        private.clipped_sum(*forward(private.flat.module, inputs[:, :count], labels[:, :count]))
        for count in (40_001, 40_000)
    )
    assert with_one.dtype == torch.float64
    assert float(with_one.norm()) > 39_000
    assert float((with_one - without).norm()) <= private.clip


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_no_rounding_lets_a_clipped_gradient_be_longer_than_the_clip(noise: SafeOrFast) -> None:
    """Factors and sums may be in float32, where half of all clipped norms are rounded up."""
    private = make_step(make_mlp(64), noise=noise)
    inputs, labels = make_batch(64, scale=5.0)
    tape, losses = forward(private.flat.module, inputs.transpose(0, 1), labels.T)
    norms = private.clipped_sum(tape, losses).double().norm(dim=1)
    assert float(norms.min()) > 0.999
    assert float(norms.max()) <= 1


@pytest.mark.parametrize("clip", [1e-6, 1.0, 1e3])
def test_safe_noise_does_not_mind_the_size_of_the_clip(clip: float) -> None:
    mlp = make_mlp()
    private = make_step(mlp, noise="safe", clip=clip, multiplier=0.5, rate=1 / clip)
    inputs, labels = make_batch(5)
    before = private.flat.values.clone()
    private.step(*forward(mlp, inputs, labels))
    released = (before - private.flat.values).double()
    assert 0.3 < float(released.std()) < 0.7


def test_safe_clip_leaves_room_for_the_grid() -> None:
    private = make_step(make_mlp(), noise="safe", clip=2.0)
    slack = GRID * private.flat.size**0.5
    assert private.effective_clip + 2.0 * slack <= 2.0
    assert private.effective_clip > 1.999


def test_a_replica_trains_the_same_alone_and_beside_others() -> None:
    """To rounding: batched products may sum in another order. The noise is the same bit for bit."""
    together, batches = make_mlp(3), [make_batch(12, seed=step) for step in range(8)]
    private = make_step(together, rate=0.1, expected=12)
    for inputs, labels in batches:
        spread = inputs.expand(3, -1, -1) * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
        private.step(*forward(together, spread, labels.expand(3, -1)))
    for replica in range(3):
        alone = make_mlp(1, first_seed=replica)
        single = make_step(alone, rate=0.1, expected=12, first_key=replica)
        for inputs, labels in batches:
            single.step(*forward(alone, inputs * (replica + 1), labels))
        torch.testing.assert_close(
            private.flat.values[replica], single.flat.values[0], rtol=1e-5, atol=1e-6
        )


# Refusals


def test_wrong_shapes_sources_and_tapes_are_refused() -> None:
    mlp = make_mlp()
    private = make_step(mlp)
    tape, losses = forward(mlp, *make_batch(4))
    with pytest.raises(InputError, match=r"`losses` must have shape \(1, batch\)"):
        private.step(tape, losses.mean())
    with pytest.raises(PrivacyError, match="one row each"):
        private.clipped_sum(tape, losses.view(1, 2, 2).sum(-1))
    with pytest.raises(PrivacyError, match="not part of the module"):
        private.step(*forward(make_mlp(), *make_batch(4)))
    with pytest.raises(PrivacyError, match="no linear layer was recorded"):
        private.step(Tape(), torch.zeros(1, 1, requires_grad=True))
    flat = FlatParameters(make_mlp(2))
    rest = {"clip": 1.0, "noise_multiplier": 1.0, "expected_batch": 1.0, "phase": "test"}
    optimiser = FlatSGD(flat.values)
    with pytest.raises(InputError, match=r"one per replica \(2\). Got 1."):
        PrivateStep(flat, optimiser, sources=make_sources(1), **rest)
    with pytest.raises(PrivacyError, match="one key per replica"):
        PrivateStep(flat, optimiser, sources=make_sources(1) * 2, **rest)
    for wrong in ({"clip": 0.0}, {"noise_multiplier": 0.0}, {"expected_batch": -1.0}):
        with pytest.raises(InputError, match="must be positive"):
            PrivateStep(flat, optimiser, sources=make_sources(2), **{**rest, **wrong})


@pytest.mark.gpu
@pytest.mark.parametrize("is_sparse", [False, True])
def test_steps_on_a_gpu_are_those_on_the_cpu(is_sparse: bool) -> None:
    """Safe noise is drawn on the CPU, so whole trainings can be compared, to rounding."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    results = []
    for device in ("cpu", "cuda"):
        mlp = make_mlp(3).to(device)
        flat = FlatParameters(mlp)
        sources = make_sources(3, "safe")
        private = PrivateStep(
            flat,
            FlatAdam(flat.values),
            clip=1.0,
            noise_multiplier=1.0,
            expected_batch=16,
            sources=sources,
            phase="test",
        )
        inputs, labels = (part[0] for part in make_batch(100))
        rows = SparseRows.from_scipy(sp.csr_array((inputs * (inputs > 1)).numpy()), device=device)
        keys = [source.key for source in sources]
        for batch in PoissonBatches(plan_steps(100, 16, 2), keys, phase="test", device=device):
            chosen: object = rows.select(batch.positions)
            if not is_sparse:
                chosen = inputs.to(device)[batch.positions]
            private.step(*forward(mlp, chosen, labels.to(device)[batch.positions]), batch.valid)
        results.append(flat.values.cpu())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_no_share_lets_an_example_count_for_more_than_its_clip() -> None:
    inputs, labels = make_batch(5, scale=20.0)
    private = make_step(make_mlp(), clip=0.5)
    sums = []
    for shares in (None, torch.full((1, 5), 3.0)):
        tape, losses = forward(private.flat.module, inputs, labels)
        sums.append(private.clipped_sum(tape, losses, shares=shares))
    torch.testing.assert_close(sums[0], sums[1])


def test_a_class_weight_above_the_mean_leaves_every_example_within_its_clip(monkeypatch) -> None:
    given: list[torch.Tensor] = []
    take = trainer_module.PrivateStep.step

    def spied(self, tape, losses, valid=None, shares=None):
        given.append(shares)
        take(self, tape, losses, valid, shares)

    monkeypatch.setattr(trainer_module.PrivateStep, "step", spied)
    graph = random_split(social_graph(num_nodes=150, mean_degree=4, num_classes=3), seed=0)
    with scratch_ledger() as place:
        MLP(level="node", epochs=1, batch_size=50, class_weight=[9, 1, 1], ledger=place).fit(graph)
    shares = torch.cat(given, dim=1)
    assert float(shares.max()) == 1.0
    assert float(shares.min()) == pytest.approx(1 / 9)
