"""Networks of users' own are clipped example by example, and no row depends on another one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from stepcases import make_step
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError
from gapgnn.nn import OwnEncoder, OwnNetwork, count_replicas, replica_state, reset_replicas
from gapgnn.nn.layers import cross_entropy
from gapgnn.privacy.dpsgd.flat import FlatParameters
from gapgnn.privacy.dpsgd.ghost import record_linears

WIDTH, OUT = 6, 4


class Scaled(nn.Module):
    """A number as a parameter, a buffer, a frozen weight, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 5), nn.LayerNorm(5)
        self.last = nn.Linear(5, OUT)
        self.last.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = (
            self.last(torch.tanh(self.norm(self.first(rows + self.shift)))) * self.scale
        )
        return scores


class Centred(nn.Linear):
    """What no per-example clipping may let pass: it takes the mean over the batch away."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows - 0.5 * rows.mean(dim=0))


def own(build, *, replicas: int = 2, one_by_one: bool = True, **more) -> OwnNetwork:
    options = {"name": "encoder", "widths": WIDTH, "out": OUT, **more}
    network = OwnNetwork(replicas, build, one_by_one=one_by_one, **options)
    reset_replicas(network, [torch.Generator().manual_seed(one) for one in range(replicas)])
    return network


def batch(replicas: int = 2, count: int = 7) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return (
        torch.randn(replicas, count, WIDTH, generator=drawn),
        torch.randint(OUT, (replicas, count), generator=drawn),
    )


def losses_of(network: nn.Module, rows: Tensor, labels: Tensor):
    with record_linears() as tape:
        losses = cross_entropy(network(rows), labels)
    return tape, losses


def by_hand(network: OwnNetwork, rows: Tensor, labels: Tensor, clip: float) -> Tensor:
    """The clipped sum of each replica, one example after the other, by autograd in float64."""
    flat = FlatParameters(network)
    network.one_by_one = False
    total = torch.zeros_like(flat.values, dtype=torch.float64)
    for replica in range(len(rows)):
        for place in range(rows.shape[1]):
            one = rows[:, place : place + 1]
            loss = F.cross_entropy(network(one)[replica], labels[replica, place : place + 1])
            gradients = torch.autograd.grad(loss, flat.parameters, allow_unused=True)
            found = [torch.zeros(()) if g is None else g[replica].double() for g in gradients]
            flattened = torch.cat([g.flatten() for g in found])
            total[replica] += flattened * min(1.0, clip / float(flattened.norm()))
    network.one_by_one = True
    return total


@pytest.mark.parametrize("build", [Scaled, lambda: nn.Sequential(nn.Linear(WIDTH, OUT), nn.GELU())])
@pytest.mark.parametrize("noise", ["fast", "safe"])
def test_the_clipped_sum_is_that_of_a_loop_over_examples(build, noise) -> None:
    network, (rows, labels) = own(build), batch()
    step = make_step(network, clip=0.3, noise=noise)
    found = step.clipped_sum(*losses_of(network, rows, labels))
    wanted = by_hand(network, rows, labels, clip=step.effective_clip)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)


def test_one_example_moves_the_sum_by_at_most_the_clip_whatever_the_network_mixes() -> None:
    network, (rows, labels) = own(lambda: Centred(WIDTH, OUT), replicas=1), batch(1, 30)
    step = make_step(network, clip=0.1, noise="safe")
    with_everybody = step.clipped_sum(*losses_of(network, rows, labels))
    for left_out in (0, 13, 29):
        kept = torch.arange(30) != left_out
        others = step.clipped_sum(*losses_of(network, rows[:, kept], labels[:, kept]))
        assert float((with_everybody - others).norm()) <= 0.1 + 1e-9


def test_the_same_network_read_as_a_batch_would_move_it_by_more() -> None:
    # What the check before it would miss if rows were not read one by one.
    network, (rows, _) = own(lambda: Centred(WIDTH, OUT), one_by_one=False), batch()
    assert not torch.allclose(network(rows)[:, :3], network(rows[:, :3]))


def test_a_row_is_a_function_of_itself_alone() -> None:
    network, (rows, _) = own(lambda: Centred(WIDTH, OUT)), batch()
    torch.testing.assert_close(network(rows)[:, :3], network(rows[:, :3]))
    assert network(rows[:, :0]).shape == (2, 0, OUT)


def test_padding_and_rows_that_overflow_count_for_nothing() -> None:
    network, (rows, labels) = own(Scaled), batch()
    step = make_step(network, clip=0.3)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[:, 5:] = False
    exact = step.clipped_sum(*losses_of(network, rows[:, :5], labels[:, :5]))
    rows[:, 5:] = torch.inf
    found = step.clipped_sum(*losses_of(network, rows, labels), valid)
    torch.testing.assert_close(found, exact)
    valid[:] = True
    assert torch.isfinite(step.clipped_sum(*losses_of(network, rows, labels), valid)).all()


def test_a_chunk_of_gradients_at_a_time_gives_the_same_sum(monkeypatch) -> None:
    network, (rows, labels) = own(Scaled), batch()
    step = make_step(network, clip=0.3)
    whole = step.clipped_sum(*losses_of(network, rows, labels))
    monkeypatch.setattr("gapgnn.privacy.dpsgd.per_example.NUMBERS_AT_ONCE", 200)
    torch.testing.assert_close(step.clipped_sum(*losses_of(network, rows, labels)), whole)


def test_a_head_behind_the_network_is_clipped_together_with_it() -> None:
    network, (rows, labels) = OwnEncoder(own(Scaled, out=OUT), OUT, OUT), batch()
    reset_replicas(network.head, [torch.Generator().manual_seed(one) for one in range(2)])
    step = make_step(network, clip=0.05)
    found = step.clipped_sum(*losses_of(network, rows[:, :1], labels[:, :1]))
    assert found.norm(dim=1).tolist() == pytest.approx([step.effective_clip] * 2, rel=1e-4)


def test_a_replica_depends_on_its_own_seed_alone() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, OUT), nn.BatchNorm1d(OUT), nn.Dropout(0.5))

    rows, _ = batch()
    state = torch.random.get_rng_state()
    several, alone = own(build, one_by_one=False), own(build, replicas=1, one_by_one=False)
    ours, theirs = several(rows), alone(rows[:1])
    assert torch.equal(ours[0], theirs[0])
    assert not torch.equal(ours[0], several(rows)[0]), "dropout draws again"
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's generator was moved"
    # Statistics were moved in place, each replica's its own.
    statistics = dict(several.named_buffers())["own/1/running_mean"]
    assert not torch.equal(statistics[0], statistics[1])
    assert count_replicas(several) == 2
    alone.load_state_dict(replica_state(several, 0))
    assert torch.equal(alone.eval()(rows[:1])[0], several.eval()(rows)[0])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(WIDTH, OUT), nn.BatchNorm1d(OUT)), r"nn\.LayerNorm"),
        (lambda: nn.Sequential(nn.Linear(WIDTH, OUT), nn.Dropout(0.5)), "leave it out"),
        (lambda: nn.Sequential(nn.Linear(WIDTH, OUT), nn.AlphaDropout(0.1)), "leave it out"),
        (lambda: nn.Sequential(nn.Linear(WIDTH, OUT), nn.SyncBatchNorm(OUT)), r"nn\.LayerNorm"),
    ],
)
def test_what_mixes_people_or_draws_by_place_is_refused_at_node_level(build, reason) -> None:
    with pytest.raises(PrivacyError, match=reason):
        own(build)
    own(build, one_by_one=False)


class DropsByFunction(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return F.dropout(super().forward(rows), training=self.training)


class WrongWidth(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows)[:, :2]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: DropsByFunction(WIDTH, OUT), "each computed by itself.*random"),
        (lambda: nn.Linear(3, OUT), "Calling it failed"),
        (lambda: WrongWidth(WIDTH, OUT), "a row of 4 columns for each node"),
        (lambda: nn.LazyLinear(OUT), "lazy"),
        (lambda: "a network", "must return a torch module"),
        (lambda: nn.ReLU(), "parameters to train"),
    ],
)
def test_what_cannot_be_trained_is_refused_when_it_is_built(build, reason) -> None:
    with pytest.raises(InputError, match=reason):
        own(build)


def test_a_graph_convolution_is_refused_with_what_takes_its_place() -> None:
    convolutions = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(PrivacyError, match=r"rows, not edges.*PrivateHops"):
        own(lambda: convolutions.GCNConv(WIDTH, OUT), one_by_one=False)
