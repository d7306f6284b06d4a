"""PMA: sums are exact, noise has the stated scale, and every hop draws it once."""

import math

import numpy as np
import pytest
import torch
from hopcases import graph_of, unit_rows
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy import AddRemove, DegreeBounded, Neighbors, Undirected
from gapgnn.privacy.accounting.events import Gaussian
from gapgnn.privacy.mechanisms import (
    PrivateAggregation,
    backends,
    hop_mechanisms,
    quantise_rows,
    row_normalise,
)
from gapgnn.privacy.mechanisms import noise as noise_module
from gapgnn.privacy.mechanisms import sums as sums_module
from gapgnn.privacy.mechanisms.noise import GRID
from gapgnn.privacy.mechanisms.sums import ROW_GRID, add_up
from gapgnn.rng import NoiseKey

KEY = NoiseKey.insecure(0)
FALSE_ALARM = 1e-9


def random_graph(num_nodes=300, num_arcs=4000, *, directed=False, seed=0):
    rng = np.random.default_rng(seed)
    arcs = rng.integers(0, num_nodes, (num_arcs, 2)).tolist()
    return graph_of(arcs, num_nodes, directed=directed)


def private(graph, level="edge", relation=None, *, keys=(KEY,), multiplier=2.0, **options):
    default = {"edge": "undirected", "node": "add-remove", "none": "none"}[level]
    return hop_mechanisms(
        graph,
        level=level,
        relation=relation or default,
        noise_multiplier=0.0 if level == "none" else multiplier,
        keys=keys,
        **options,
    )[0]


@pytest.mark.usefixtures("bare_sums")
@pytest.mark.parametrize("directed", [False, True])
def test_safe_sums_are_the_sums_of_whole_numbers(directed):
    graph = random_graph(directed=directed)
    rows = unit_rows(300)
    steps = torch.trunc(rows.double() / ROW_GRID).long()
    dense = torch.from_numpy(graph.adjacency().toarray()).long()
    exact = (dense.T @ quantise_rows(rows).div(GRID).long()).double() * GRID
    assert torch.equal(private(graph).hop(rows, 1), exact.float())
    assert (steps - quantise_rows(rows).div(ROW_GRID).long()).abs().max() <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at_once", [2, 1 << 19])
def test_empty_lists_add_up_to_zero_wherever_they_stand(monkeypatch, dtype, at_once):
    for name in ("CHUNK_ENTRIES", "MOST_ENTRIES"):
        monkeypatch.setattr(sums_module, name, at_once)
    rows, entries = torch.eye(3, dtype=dtype), np.array([0, 1, 0, 1, 2], dtype=np.int32)
    found = add_up(rows, np.array([0, 0, 2, 2, 5, 5, 5]), entries)
    nothing = [0.0, 0.0, 0.0]
    assert found.tolist() == [nothing, [1, 1, 0], nothing, [1, 1, 1], nothing, nothing]
    assert add_up(rows, np.zeros(4, dtype=np.int64), entries[:0]).tolist() == [nothing] * 3


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 16, 300]), st.floats(0.0, 1 + 9e-7))
def test_quantised_rows_are_on_the_grid_near_and_never_longer_than_one(seed, width, length):
    rows = unit_rows(50, width, seed).double().mul(length).float()
    quantised = quantise_rows(rows)
    steps = quantised / ROW_GRID
    assert torch.equal(steps, steps.round())
    whole = steps.long()
    assert (whole * whole).sum(dim=1).max() <= 2**28
    assert (quantised - rows.double()).abs().max() <= ROW_GRID + 2e-6
    assert torch.equal(quantise_rows(rows, dtype=torch.float32).double(), quantised)


def test_rows_a_rounding_error_too_long_are_shortened():
    rows = torch.tensor([[9058, 9470, 9834]], dtype=torch.float64) * ROW_GRID
    assert 1 < float(rows.norm()) < 1 + 9e-7
    together = torch.cat([rows, torch.eye(3, dtype=torch.float64)[:1]])
    whole = quantise_rows(together).div(ROW_GRID).long()
    assert torch.trunc(rows / ROW_GRID).square().sum() > 2**28
    assert (whole * whole).sum(dim=1).max() <= 2**28
    assert whole[1].tolist() == [2**14, 0, 0]


def test_row_normalise_gives_unit_rows_and_keeps_zero():
    values = torch.randn(100, 602, generator=torch.Generator().manual_seed(0))
    values[3] = 0
    values[4] *= 1e-38
    values[5] *= 1e37
    norms = torch.linalg.vector_norm(row_normalise(values), dim=1, dtype=torch.float64)
    assert norms[3] == 0
    norms[3] = 1
    assert (norms - 1).abs().max() < 3e-7


def test_rows_on_the_grid_are_normalised_alike_from_one_step_to_the_largest():
    values = torch.randn(100, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = values.mul(2.0**20).round().mul(GRID)
    values[3] = 0
    values[4] = GRID * torch.eye(16, dtype=torch.float64)[2]
    values[5] = values[5].sign() * 2.0**32
    wanted = row_normalise(values)
    found = row_normalise(values.clone(), on_grid=True)
    assert torch.equal(found[3], values[3])
    assert torch.allclose(found, wanted, rtol=1e-14, atol=0)


def test_row_normalise_has_finite_gradients_also_at_zero():
    values = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    row_normalise(values)[:, 0].sum().backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()
    assert torch.allclose(values.grad[0], torch.tensor([16.0, -12.0]) / 125)


@pytest.mark.parametrize("noise", ["safe", "fast"])
@pytest.mark.parametrize(("level", "max_degree"), [("edge", None), ("node", 5)])
def test_hops_are_unit_rows_in_float32_with_one_event_each(noise, level, max_degree):
    done = []
    aggregation = private(random_graph(), level, max_degree=max_degree, noise=noise, multiplier=3.0)
    assert aggregation.events == ()
    hops = aggregation.run(unit_rows(300), 3, progress=lambda *state: done.append(state))
    assert done == [(1, 3), (2, 3), (3, 3)]
    for hop in hops:
        assert hop.dtype == torch.float32
        assert torch.allclose(torch.linalg.vector_norm(hop, dim=1), torch.ones(300))
    assert [event.noise_multiplier for event in aggregation.events] == [3.0] * 3
    assert all(isinstance(event, Gaussian) and event.count == 1 for event in aggregation.events)
    assert len({event.label for event in aggregation.events}) == 3


def test_a_node_without_in_neighbours_gets_noise_too():
    hop = private(graph_of([(0, 1)], 3)).hop(torch.zeros(3, 4), 1)
    assert torch.allclose(torch.linalg.vector_norm(hop, dim=1), torch.ones(3))


@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_the_noise_of_a_hop_has_the_scale_of_its_relation(noise, monkeypatch):
    monkeypatch.setattr(backends, "row_normalise", lambda values, **_: values)
    graph = graph_of([], 1 << 13)
    rows = torch.zeros(1 << 13, 16)
    for level, relation, limit, sensitivity in (
        ("edge", "directed", None, 1.0),
        ("edge", "undirected", None, math.sqrt(2)),
        ("node", "add-remove", 100, 10.0),
        ("node", "replace", 100, 20.0),
    ):
        aggregation = private(graph, level, relation, max_degree=limit, noise=noise, multiplier=3.0)
        assert aggregation.std == pytest.approx(3.0 * sensitivity)
        values = aggregation.hop(rows, 1).double()
        tail = stats.chi2(values.numel()).cdf(float((values / aggregation.std).square().sum()))
        assert FALSE_ALARM < tail < 1 - FALSE_ALARM


def directions_agree(first, second):
    """Alarm unless two sets of random unit rows are uncorrelated."""
    z = float((first * second).sum()) * math.sqrt(first.shape[1] / first.shape[0])
    return abs(z) > stats.norm.isf(FALSE_ALARM / 2)


def released_directions():
    """Two hops of two repeats over a graph without edges: nothing but noise."""
    keys = [NoiseKey.insecure(1), NoiseKey.insecure(2)]
    aggregation = private(graph_of([], 2000), keys=keys)
    return aggregation.run(torch.zeros(2, 2000, 16), 2)


def test_two_hops_and_two_repeats_do_not_share_noise():
    first, second = released_directions()
    assert not directions_agree(first[0], second[0])
    assert not directions_agree(first[0], first[1])


def test_planted_shared_noise_is_seen_in_the_released_rows(monkeypatch):
    honest = noise_module._draw_on_grid
    monkeypatch.setattr(
        noise_module, "_draw_on_grid", lambda secret, *place: honest(b"x" * 32, *place)
    )
    first, second = released_directions()
    assert directions_agree(first[0], second[0])
    assert directions_agree(first[0], first[1])


@pytest.mark.parametrize("noise", ["safe", "fast"])
@pytest.mark.parametrize(("level", "max_degree"), [("edge", None), ("node", 4)])
def test_a_repeat_in_a_batch_equals_the_same_repeat_alone(level, max_degree, noise):
    graph, rows = random_graph(), unit_rows(300, repeats=3)
    keys = [NoiseKey.insecure(seed) for seed in range(3)]
    options = {"max_degree": max_degree, "noise": noise}
    together = private(graph, level, keys=keys, **options).run(rows, 2)
    for repeat, key in enumerate(keys):
        alone = private(graph, level, keys=[key], **options).run(rows[repeat], 2)
        for batch, single in zip(together, alone, strict=True):
            assert torch.equal(batch[repeat], single)


@pytest.mark.usefixtures("bare_sums")
def test_every_repeat_cuts_the_lists_by_its_own_key():
    keys = [NoiseKey.insecure(1), NoiseKey.insecure(2)]
    star = graph_of([(0, v) for v in range(1, 60)], 60)
    rows = torch.zeros(2, 60, 1)
    rows[:, 0] = 1.0
    received = private(star, "node", keys=keys, max_degree=10).hop(rows, 1)
    assert received.sum(dim=(1, 2)).tolist() == [10.0, 10.0]
    assert not torch.equal(received[0], received[1])


def test_the_release_is_reproducible_from_the_key_and_fresh_otherwise():
    graph, rows = random_graph(), unit_rows(300)
    first = private(graph).hop(rows, 1)
    assert torch.equal(private(graph).hop(rows, 1), first)
    assert not torch.equal(private(graph, keys=[NoiseKey.fresh()]).hop(rows, 1), first)


def test_many_blocks_and_threads_give_what_one_gives():
    graph, rows = random_graph(9000, 40_000), unit_rows(9000)
    expected = private(graph).hop(rows, 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(private(graph).hop(rows, 1), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_hop_is_never_released_twice():
    aggregation = private(random_graph())
    aggregation.run(unit_rows(300), 2)
    for index in (1, 2):
        with pytest.raises(PrivacyError, match=f"its noise is drawn once. Got {index} again"):
            aggregation.hop(unit_rows(300, seed=1), index)
    aggregation.hop(unit_rows(300, seed=1), 3)
    assert len(aggregation.events) == 3


def test_a_failed_release_stays_charged_and_refused_rows_do_not(monkeypatch):
    aggregation = private(random_graph())
    with pytest.raises(PrivacyError):
        aggregation.hop(2 * unit_rows(300), 1)
    assert aggregation.events == ()
    monkeypatch.setattr(backends, "row_normalise", lambda values, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aggregation.hop(unit_rows(300), 1)
    assert len(aggregation.events) == 1
    with pytest.raises(PrivacyError, match="again"):
        aggregation.hop(unit_rows(300), 1)


def test_level_none_is_the_plain_product():
    graph = random_graph(directed=True)
    rows = 3 * unit_rows(300)
    aggregation = private(graph, "none")
    plain = torch.from_numpy(graph.adjacency().toarray()).T @ rows
    assert torch.allclose(aggregation.hop(rows, 1), row_normalise(plain), atol=1e-6)
    assert aggregation.events == ()


def test_level_none_leaves_zero_rows_zero():
    hop = private(graph_of([(0, 1)], 3), "none").hop(torch.ones(3, 2), 1)
    assert torch.equal(hop[[0, 2]], torch.zeros(2, 2))


def test_rows_longer_than_one_are_refused_with_their_norm():
    rows = unit_rows(300)
    rows[7] *= 1.5
    with pytest.raises(PrivacyError, match=r"Got a row of norm 1\.5"):
        private(random_graph()).hop(rows, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("level", ["none", "edge"])
def test_rows_that_are_not_finite_are_refused(bad, level):
    rows = unit_rows(300)
    rows[7, 0] = bad
    with pytest.raises(PrivacyError, match="`rows` must be finite"):
        private(random_graph(), level).hop(rows, 1)


def test_at_node_level_a_row_that_is_not_finite_counts_as_zeros_as_a_whole(bare_sums):
    """What is left of it may be of any length, and must not stop the run."""
    graph, rows = random_graph(), unit_rows(300)
    nothing, bad = rows.clone(), rows.clone()
    nothing[7] = 0.0
    bad[7] = torch.tensor([math.inf, 40.0, math.nan, 1.0, 0.0])
    hops = [private(graph, "node", max_degree=5).hop(one, 1) for one in (nothing, bad)]
    assert torch.equal(*hops)


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(299, 5), torch.zeros(2, 300, 5), torch.zeros(300), torch.zeros(300, 5).long()],
)
def test_rows_of_another_shape_are_refused(rows):
    with pytest.raises(
        InputError, match=r"`rows` must be floating-point of shape \(1, 300, columns\)"
    ):
        private(random_graph()).hop(rows, 1)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_a_private_level_without_noise_is_refused(multiplier):
    with pytest.raises(InputError, match="`noise_multiplier` must be"):
        private(random_graph(), multiplier=multiplier)


def test_noise_at_level_none_is_refused():
    with pytest.raises(InputError, match="`noise_multiplier` must be"):
        hop_mechanisms(
            random_graph(), level="none", relation="none", noise_multiplier=1.0, keys=[KEY]
        )[0]


def test_two_repeats_may_not_have_one_key():
    for keys in ([KEY, NoiseKey.insecure(0)], []):
        with pytest.raises(PrivacyError, match="`keys` must be one different key per repeat"):
            private(random_graph(), keys=keys)


@pytest.mark.parametrize("bounds", [(4, 9), (9, 4)])
def test_repeats_of_several_sensitivities_have_the_noise_of_the_largest(bounds):
    graph, keys = random_graph(), [NoiseKey.insecure(number) for number in (1, 2)]
    cut = [DegreeBounded(graph, bound, NoiseKey.insecure(bound)) for bound in bounds]
    hops = PrivateAggregation(cut, AddRemove(), noise_multiplier=2.0, keys=keys)
    assert (hops.sensitivity, hops.std) == (3.0, 6.0)


def test_repeats_are_of_one_graph():
    keys = [NoiseKey.insecure(number) for number in (1, 2)]
    graphs = [random_graph(seed=seed) for seed in (0, 1)]
    for operators in ([Neighbors(one) for one in graphs], [Neighbors(graphs[0])]):
        with pytest.raises(PrivacyError, match="one of the same graph per repeat"):
            PrivateAggregation(operators, Undirected(), noise_multiplier=2.0, keys=keys)


def test_the_key_that_cuts_lists_draws_no_noise():
    """Whoever learned which entries were cut would know something of the noise."""
    cut = DegreeBounded(random_graph(directed=True), 5, KEY)
    with pytest.raises(PrivacyError, match="must differ from the key that lists are cut by"):
        PrivateAggregation(cut, AddRemove(), noise_multiplier=2.0, keys=[NoiseKey.insecure(0)])
    PrivateAggregation(cut, AddRemove(), noise_multiplier=2.0, keys=[NoiseKey.insecure(1)])


def test_options_that_would_break_the_stated_sensitivity_are_refused():
    with pytest.raises(InputError, match=r"`max_degree` must be None where .* at level 'edge'"):
        private(random_graph(), "edge", max_degree=5)
    with pytest.raises(InputError, match="Bound or normalise out-degrees"):
        private(random_graph(), "node")
    with pytest.raises(InputError, match="`relation`"):
        private(random_graph(), "node", "undirected", max_degree=5)
    with pytest.raises(InputError, match="`level` must be one of none, edge, node"):
        hop_mechanisms(
            random_graph(), level="egde", relation="directed", noise_multiplier=1.0, keys=[KEY]
        )[0]


@pytest.mark.parametrize(("level", "max_degree"), [("edge", None), ("node", 5)])
def test_one_product_for_an_accelerator_releases_what_blocks_do(level, max_degree, monkeypatch):
    graph, rows = random_graph(9000, 60_000, directed=True), unit_rows(9000, 16)
    expected = private(graph, level, max_degree=max_degree).run(rows, 2)
    monkeypatch.setattr(
        backends, "InMemory", lambda messages: backends.OnDevice(messages, torch.device("cpu"))
    )
    for hop, block_hop in zip(
        private(graph, level, max_degree=max_degree).run(rows, 2), expected, strict=True
    ):
        assert torch.allclose(hop, block_hop, atol=1e-5)
