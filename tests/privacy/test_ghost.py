"""Ghost norms and clipped sums: by brute force, their sensitivity, and what is refused."""

from __future__ import annotations

import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepcases import SIZES, forward, make_batch, make_mlp, make_step
from torch import Tensor, nn

from gapgnn.errors import PrivacyError
from gapgnn.nn.layers import ReplicaBatchNorm, ReplicaLinear, ReplicaMLP, cross_entropy
from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd import step as dpsgd
from gapgnn.privacy.dpsgd.flat import FlatParameters
from gapgnn.privacy.dpsgd.ghost import (
    Tape,
    check_clippable,
    clip_factors,
    clipped_sums,
    output_gradients,
    record_linears,
    squared_norms,
)
from gapgnn.privacy.mechanisms.noise import GRID, SafeOrFast


def per_example_gradients(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """One backward pass per example: slow, and obviously right."""
    parameters = list(module.parameters())
    rows = []
    for i in range(inputs.shape[1]):
        loss = cross_entropy(module(inputs[:, i : i + 1]), labels[:, i : i + 1]).sum()
        found = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([part.reshape(part.shape[0], -1) for part in found], dim=1))
    return torch.stack(rows, dim=1)


class HopAttention(nn.Module):
    """A linear layer that runs on every part of an example, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.value = ReplicaLinear(2, 6, 4)
        self.query = ReplicaLinear(2, 4, 1, bias=False)
        self.head = ReplicaLinear(2, 4, 3)
        for layer in (self.value, self.query, self.head):
            layer.reset([torch.Generator().manual_seed(seed) for seed in (5, 6)])

    def forward(self, inputs: Tensor) -> Tensor:
        codes = torch.selu(self.value(inputs))
        return self.head((torch.softmax(self.query(codes), dim=-2) * codes).sum(-2))


@pytest.mark.parametrize("exact", [False, True])
def test_a_layer_over_the_parts_of_an_example_is_clipped_as_one_gradient(exact: bool) -> None:
    module = HopAttention()
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 9, 3, 6, generator=rng)
    labels = torch.randint(3, (2, 9), generator=rng)
    gradients = per_example_gradients(module, inputs, labels)
    norms = gradients.norm(dim=-1)
    clip = float(norms.median())

    tape, losses = forward(module, inputs, labels)
    deltas = output_gradients(tape, losses)
    squared = squared_norms(tape, deltas)
    torch.testing.assert_close(squared.sqrt().float(), norms, rtol=1e-5, atol=1e-6)
    factors = clip_factors(squared, clip)
    total = FlatParameters(module).collect(clipped_sums(tape, deltas, factors, exact=exact))
    expected = (gradients * (clip / norms).clamp(max=1).unsqueeze(-1)).sum(1)
    torch.testing.assert_close(total.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6])
def test_parts_that_cancel_never_hide_a_gradient(scale: float) -> None:
    """In float32 the norm of such a gradient comes out anywhere from zero up."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        large = torch.randn(1, 1, 16, generator=rng) * scale
        inputs = torch.stack([large, torch.randn(1, 1, 16, generator=rng) - large], dim=2)
        delta = torch.randn(1, 1, 1, 8, generator=rng).expand(1, 1, 2, 8)
        tape = Tape()
        tape.record(inputs, torch.zeros(1, 1, 2, 8), torch.zeros(1, 16, 8), None)
        gradient = inputs[0, 0].double().T @ delta[0, 0].double()
        ratio = float(squared_norms(tape, [delta]).sqrt() / gradient.norm())
        assert ratio >= 1 - 1e-9
        if scale <= 1e4:
            assert ratio < 1 + 1e-3


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_shared_by_all_replicas_are_clipped_per_replica(is_sparse: bool) -> None:
    mlp = make_mlp(3)
    inputs, labels = make_batch(8, scale=3.0)
    shared: object = inputs[0]
    if is_sparse:
        shared = SparseRows.from_scipy(sp.csr_array(inputs[0].numpy()))
    private = make_step(mlp, clip=0.5)
    total = private.clipped_sum(*forward(mlp, shared, labels))
    spread = inputs.expand(3, -1, -1).contiguous()
    expected = private.clipped_sum(*forward(mlp, spread, labels))
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-6)


# Sensitivity


def shift_of_one_example(
    noise: SafeOrFast, *, count: int, index: int, scale: float, clip: float, seed: int
) -> float:
    """How far the released quantity moves, before noise, if one example leaves."""
    mlp = make_mlp(first_seed=seed)
    private = make_step(mlp, noise=noise, clip=clip)
    inputs, labels = make_batch(count, scale=scale, seed=seed)
    others = torch.arange(count) != index
    whole = private.clipped_sum(*forward(mlp, inputs, labels))
    part = private.clipped_sum(*forward(mlp, inputs[:, others], labels[:, others]))
    if noise == "safe":
        whole, part = (torch.round(value / clip / GRID) * GRID * clip for value in (whole, part))
    return float((whole.double() - part.double()).norm())


@settings(max_examples=60, deadline=None)
@given(
    noise=st.sampled_from(["safe", "fast"]),
    count=st.integers(1, 24),
    place=st.floats(0, 1, exclude_max=True),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4, 1e18, 1e25]),
    clip=st.sampled_from([1e-4, 0.3, 1.0, 50.0]),
    seed=st.integers(0, 2**16),
)
def test_one_example_moves_the_clipped_sum_by_at_most_the_clip(
    noise: str, count: int, place: float, scale: float, clip: float, seed: int
) -> None:
    shift = shift_of_one_example(
        noise, count=count, index=int(place * count), scale=scale, clip=clip, seed=seed
    )
    # Safe sums are exact up to the margins taken off the clip; fast ones add up float32 rounding.
    assert shift <= (clip if noise == "safe" else clip * (1 + 1e-4))


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_the_bound_is_reached_and_a_missing_clip_breaks_it(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"count": 9, "index": 4, "scale": 30.0, "clip": 1.0, "seed": 1}
    assert 0.999 <= shift_of_one_example(noise, **case) <= 1.0001
    monkeypatch.setattr(
        dpsgd, "clip_factors", lambda squared, clip, valid=None, **_: torch.ones_like(squared)
    )
    assert shift_of_one_example(noise, **case) > 2


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_an_example_without_a_finite_gradient_counts_for_nothing(bad: float) -> None:
    mlp = make_mlp()
    private = make_step(mlp)
    inputs, labels = make_batch(6)
    clean = private.clipped_sum(*forward(mlp, inputs[:, 1:], labels[:, 1:]))
    inputs[0, 0, 3] = bad
    torch.testing.assert_close(private.clipped_sum(*forward(mlp, inputs, labels)), clean)


def test_padding_counts_for_nothing() -> None:
    mlp = make_mlp()
    private = make_step(mlp)
    inputs, labels = make_batch(6)
    valid = torch.tensor([[True, True, True, True, False, False]])
    padded = private.clipped_sum(*forward(mlp, inputs, labels), valid)
    exact = private.clipped_sum(*forward(mlp, inputs[:, :4], labels[:, :4]))
    torch.testing.assert_close(padded, exact)


# Refusals


def test_batch_norm_is_refused_with_the_reason_and_the_fix() -> None:
    for module in (ReplicaMLP(1, SIZES, batch_norm=True), nn.BatchNorm1d(3)):
        with pytest.raises(PrivacyError, match=r"mixes the examples.*Set batch_norm=False"):
            check_clippable(module)
    with pytest.raises(PrivacyError, match="`ReplicaBatchNorm` mixes"):
        make_step(nn.Sequential(ReplicaLinear(1, 3, 3), ReplicaBatchNorm(1, 3)))


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 2), nn.LayerNorm(4), nn.MultiheadAttention(4, 1), nn.PReLU()]
)
def test_parameters_that_nobody_records_are_refused(module: nn.Module) -> None:
    with pytest.raises(PrivacyError, match=r"does not report.*Use `gapgnn.dp_sgd\(model, graph\)`"):
        check_clippable(module)
    for value in module.parameters():
        value.requires_grad_(False)
    check_clippable(module)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "GINConv", "SAGEConv"])
def test_a_graph_convolution_is_refused_with_what_trains_it(name: str) -> None:
    convolutions = pytest.importorskip("torch_geometric.nn")
    given = nn.Linear(3, 2) if name == "GINConv" else (3, 2)
    layer = getattr(convolutions, name)(*(given if isinstance(given, tuple) else [given]))
    model = nn.Sequential(ReplicaLinear(1, 3, 3), layer)
    with pytest.raises(PrivacyError, match=rf"`{name}` reads neighbours.*gapgnn.dp_sgd"):
        check_clippable(model)


def test_dropout_and_activations_are_fine() -> None:
    check_clippable(ReplicaMLP(2, SIZES, dropout=0.5, activation="gelu"))


def test_a_layer_that_runs_twice_is_refused() -> None:
    layer = ReplicaLinear(1, 4, 4)
    with pytest.raises(PrivacyError, match=r"ran twice.*Apply it once"), record_linears():
        layer(layer(torch.ones(1, 2, 4)))


class CentresTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = ReplicaLinear(1, 20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.linear(inputs)
        return scores - scores.mean(1, keepdim=True)


def test_examples_that_interact_inside_forward_are_refused_and_nothing_moves() -> None:
    module = CentresTheBatch()
    private = make_step(module)
    before = private.flat.values.clone()
    with pytest.raises(PrivacyError, match="depends on other examples"):
        private.step(*forward(module, *make_batch(4)))
    assert bool((private.flat.values == before).all())
