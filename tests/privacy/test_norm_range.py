"""Gradient norms at the ends of float32: no size of inputs, gradients or clip hides an example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gapgnn.nn.sparse_rows import SparseRows
from gapgnn.privacy.dpsgd.ghost import Record, Tape, clip_factors, clipped_sums, squared_norms
from gapgnn.privacy.dpsgd.shared_nodes import Members, SharedLayer, SharedParts
from gapgnn.privacy.dpsgd.step import ROUNDING_MARGIN

WIDTH, OUT, PARTS = 5, 3, 2
LARGEST = float(np.finfo(np.float32).max)

exponents = st.integers(-45, 38)
layers = st.lists(st.tuples(exponents, exponents), min_size=1, max_size=3)
clips = st.integers(-8, 4).map(lambda power: 10.0**power)
CASES = ("dense", "shared", "sparse", "parts", "nodes", "sparse nodes")


def spread(rng: np.random.Generator, power: int, *shape: int) -> Tensor:
    """Return numbers around ten to some power, a few of them far below it; all are finite."""
    sizes = 10.0 ** (power - np.where(rng.random(shape) < 0.3, rng.integers(0, 20, shape), 0))
    drawn = np.clip(rng.normal(size=shape) * sizes, -LARGEST, LARGEST)
    return torch.from_numpy(drawn.astype(np.float32))


def one_layer(
    case: str, rng: np.random.Generator, powers: tuple[int, int], has_bias: bool
) -> tuple[Record, Tensor, Tensor]:
    """Return one layer's record of one example, its outputs' gradient, and the true gradient."""
    inner, outer = powers
    weight, bias = torch.zeros(1, WIDTH, OUT), torch.zeros(1, 1, OUT) if has_bias else None
    if case in ("nodes", "sparse nodes"):
        return of_nodes(case, spread(rng, inner, 3, WIDTH), spread(rng, outer, 1, 1, 2 * OUT), bias)
    parts = PARTS if case == "parts" else 1
    inputs, delta = spread(rng, inner, parts, WIDTH), spread(rng, outer, parts, OUT)
    given_rows: object = inputs.view(1, 1, -1)
    if case == "parts":
        given_rows, shape = inputs.view(1, 1, PARTS, WIDTH), (1, 1, PARTS, OUT)
    else:
        shape = (1, 1, OUT)
    if case == "shared":
        given_rows = inputs
    if case == "sparse":
        table = SparseRows.from_scipy(sp.csr_array(inputs.numpy()))
        given_rows = table.select(torch.tensor([[0]]))
    tape = Tape()
    tape.record(given_rows, delta.new_zeros(shape), weight, bias)  # type: ignore[arg-type]
    return tape.records[0], delta.view(shape), outer_sum(inputs, delta, has_bias)


def of_nodes(
    case: str, inputs: Tensor, delta: Tensor, bias: Tensor | None
) -> tuple[Record, Tensor, Tensor]:
    """As :func:`one_layer`, for a node and its two in-neighbours."""
    rows: object = inputs.unsqueeze(0)
    if case == "sparse nodes":
        table = SparseRows.from_scipy(sp.csr_array(inputs.numpy()))
        rows = table.select(torch.arange(len(inputs)).unsqueeze(0))
    count = len(inputs)
    layer = SharedLayer(
        rows,  # type: ignore[arg-type]
        torch.ones(1, count, OUT),
        torch.zeros(1, WIDTH, OUT),
        bias,
    )
    members = Members.of(
        torch.tensor([0]), torch.arange(1, count, dtype=torch.int32), torch.tensor([count - 1])
    )
    record = SharedParts([layer], torch.zeros(1, count, OUT), [members])
    own, others = delta[0, 0].view(2, OUT)
    by_part = torch.stack([own, *[others] * (count - 1)])
    return record, delta, outer_sum(inputs, by_part, bias is not None)


def outer_sum(inputs: Tensor, delta: Tensor, has_bias: bool) -> Tensor:
    """Return the gradient of weight and bias in float64, written out."""
    rows = inputs.double()
    if has_bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    return (rows.T @ delta.double()).flatten()


def contribution(tape: Tape, deltas: list[Tensor], clip: float, *, exact: bool) -> float:
    """Return how far the only example moves the clipped sum, in clips, as a private step does."""
    squared = squared_norms(tape, deltas)
    factors = clip_factors(squared, clip * (1 - ROUNDING_MARGIN)).div_(clip)
    sums = clipped_sums(tape, deltas, factors, exact=exact)
    return float(torch.cat([value.double().flatten() for value in sums.values()]).norm())


SIZES = {
    "powers": layers,
    "clip": clips,
    "has_bias": st.booleans(),
    "exact": st.booleans(),
    "seed": st.integers(0, 2**16),
}


def check_sizes(
    case: str,
    powers: list[tuple[int, int]],
    clip: float,
    has_bias: bool,
    exact: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    tape, deltas, gradients = Tape(), [], []
    for pair in powers:
        record, delta, gradient = one_layer(case, rng, pair, has_bias)
        tape.add(record)
        deltas.append(delta)
        gradients.append(gradient)
    true = float(torch.cat(gradients).norm())
    found = float(squared_norms(tape, deltas).sqrt())
    # Left out if it is not finite. One part: exact to float64's rounding; several: never below.
    assert not found < true * (1 - 1e-9)
    if case in ("dense", "shared", "sparse"):
        assert found <= true * (1 + 1e-9)
    # Fast sums round each product in float32.
    assert contribution(tape, deltas, clip, exact=exact) <= (1 if exact else 1 + 1e-4)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=40, deadline=None)
@given(**SIZES)
def test_no_size_of_inputs_gradients_or_clip_lifts_an_example_over_its_clip(
    case: str, **sizes: Any
) -> None:
    check_sizes(case, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=150, deadline=None)
@given(**SIZES)
def test_many_sizes_of_inputs_gradients_or_clip_lift_no_example_over_its_clip(
    case: str, **sizes: Any
) -> None:
    check_sizes(case, **sizes)


def test_an_example_of_tiny_gradients_and_huge_inputs_moves_the_sum_by_one_clip() -> None:
    """In float32 the gradient's squares are zero, and nothing would be clipped."""
    inputs = torch.full((1, 1, WIDTH), 1e19)
    delta = torch.full((1, 1, OUT), 1.2e-23)
    for rows in (inputs, SparseRows.from_scipy(sp.csr_array(inputs[0].numpy()))):
        tape = Tape()
        tape.record(rows, torch.zeros(1, 1, OUT), torch.zeros(1, WIDTH, OUT), None)
        assert 0.9999 < contribution(tape, [delta], 1e-4, exact=True) <= 1


@pytest.mark.parametrize("clip", [1e-12, 1e-30, 1e-160, 1e-200, 1e12])
def test_every_clip_is_kept(clip: float) -> None:
    factors = clip_factors(torch.tensor([[0.0, 1.0, 1e20]], dtype=torch.float64), clip)
    moved = factors * torch.tensor([0.0, 1.0, 1e10], dtype=torch.float64)
    assert float(moved.max()) <= clip * (1 + 1e-12)
    assert float(factors[0, 0]) == 1


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("power", [-30, -22, -8, 0, 8])
def test_parts_of_shared_nodes_that_nearly_cancel_never_hide_a_gradient(
    power: int, is_sparse: bool
) -> None:
    """What float32 leaves of such a sum is anything from zero up: the guard is what counts."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        large = rng.normal(size=(1, WIDTH)) * 1e4
        small = rng.normal(size=(1, WIDTH)) * 1e-4
        rows = np.concatenate([0 * large, large, small - large]).astype(np.float32)
        own, others = np.zeros(OUT), rng.normal(size=OUT) * 10.0**power
        delta = torch.from_numpy(np.concatenate([own, others]).astype(np.float32)).view(1, 1, -1)
        case = "sparse nodes" if is_sparse else "nodes"
        record, delta, gradient = of_nodes(case, torch.from_numpy(rows), delta, None)
        assert float(record.squared_norms(delta).sqrt()) >= float(gradient.norm())
