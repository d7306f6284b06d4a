"""SAGE-NDP: what one record can move, and what that costs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from gapgnn.graph import csr
from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.nn.layers import cross_entropy, reset_replicas
from gapgnn.nn.sage import Sage
from gapgnn.privacy.accounting.accountants import account
from gapgnn.privacy.accounting.events import Gaussian
from gapgnn.privacy.accounting.pairs import GaussianPair
from gapgnn.privacy.accounting.pld import _discretise
from gapgnn.privacy.dpsgd import PrivateStep, ghost, shared_nodes
from gapgnn.privacy.dpsgd.flat import FlatParameters, FlatSGD
from gapgnn.privacy.dpsgd.ghost import record_linears
from gapgnn.privacy.dpsgd.shared_nodes import Members, SharedLayer, SharedParts
from gapgnn.privacy.dpsgd.subgraphs import neighbourhood_event, original_epsilon
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.rng import NoiseKey
from gapgnn.training.inputs import ExampleInputs, FeatureInputs

WIDTH, CLASSES, CLIP = 4, 3, 0.5


def people(num_nodes, arcs, *, left_out=None, seed=0):
    """A directed graph; whoever is left out stays named, dangling, in other people's lists."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_nodes, WIDTH)) * 3
    labels = rng.integers(0, CLASSES, num_nodes)
    keep = [node for node in range(num_nodes) if node != left_out]
    place = {node: i for i, node in enumerate(keep)}
    inside = [(place[u], place[v]) for u, v in arcs if u != left_out and v != left_out]
    dangling = {place[u]: [v] for u, v in arcs if v == left_out and u != left_out}
    return Graph.from_arcs(
        [u for u, _ in inside],
        [v for _, v in inside],
        num_nodes=len(keep),
        features=features[keep],
        labels=labels[keep],
        ids=keep,
        directed=True,
        dangling=dangling,
    )


def network(seed=0):
    # Large weights make gradients that really are clipped.
    model = Sage(1, WIDTH, CLASSES, hidden=5, layers=1, unit_messages=True)
    reset_replicas(model, [torch.Generator().manual_seed(seed)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def private_step(model):
    flat = FlatParameters(model)
    return PrivateStep(
        flat,
        FlatSGD(flat.values),
        clip=CLIP,
        noise_multiplier=1.0,
        expected_batch=4.0,
        sources=[NoiseSource(NoiseKey.insecure(0))],
        phase="test",
    )


def examples_of(graph, max_degree):
    lists = bound_out_degrees(graph, max_degree, NoiseKey.insecure(7))
    columns = csr.matrix(*lists[:2]).tocsc()
    inputs = ExampleInputs(
        FeatureInputs(graph, torch.device("cpu")), [(columns.indptr, columns.indices)]
    )
    return inputs, lists


def clipped_sum(graph, ids, max_degree, model):
    """Return the clipped, un-noised gradient sum over the examples of some people."""
    inputs, _ = examples_of(graph, max_degree)
    positions = torch.tensor([[int(np.flatnonzero(graph.ids == i)[0]) for i in ids]])
    step = private_step(model)
    with record_linears() as tape:
        losses = cross_entropy(model(inputs.rows(positions)), torch.tensor(graph.labels)[positions])
    return step.clipped_sum(tape, losses)


@st.composite
def withdrawals(draw):
    num_nodes = draw(st.integers(3, 9))
    pairs = [(u, v) for u in range(num_nodes) for v in range(num_nodes) if u != v]
    arcs = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=40))
    gone = draw(st.integers(0, num_nodes - 1))
    batch = draw(st.sets(st.integers(0, num_nodes - 1), min_size=1))
    return num_nodes, arcs, gone, sorted(batch), draw(st.integers(1, 4)), draw(st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(withdrawals())
def test_one_record_moves_a_clipped_batch_by_at_most_two_clips_per_neighbour_and_one(case):
    num_nodes, arcs, gone, batch, max_degree, seed = case
    model = network(seed)
    with_record = people(num_nodes, arcs, seed=seed)
    without = people(num_nodes, arcs, left_out=gone, seed=seed)
    others = [node for node in batch if node != gone]
    before = clipped_sum(with_record, batch, max_degree, model)
    after = clipped_sum(without, others, max_degree, model) if others else torch.zeros_like(before)
    moved = float(torch.linalg.vector_norm(before - after))
    _, lists = examples_of(with_record, max_degree)
    own_neighbours = lists.indices[lists.indptr[gone] : lists.indptr[gone + 1]]
    touched = len(set(own_neighbours.tolist()) & set(others))
    assert touched <= max_degree
    assert moved <= CLIP * (2 * touched + (gone in batch)) + 1e-6
    assert moved <= CLIP * (2 * max_degree + 1) + 1e-6


def star(num_neighbours=20):
    """One node that everybody else points at, alike."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_neighbours + 1, WIDTH)) * 3
    features[1:] = features[1]
    return Graph.from_arcs(
        list(range(1, num_neighbours + 1)),
        [0] * num_neighbours,
        num_nodes=num_neighbours + 1,
        features=features,
        labels=np.zeros(num_neighbours + 1, dtype=int),
        directed=True,
    )


def test_the_clipped_unit_is_one_example_however_many_neighbours_it_has():
    total = clipped_sum(star(), [0], 5, network())
    assert float(torch.linalg.vector_norm(total)) <= CLIP


def test_clipping_each_row_of_the_subgraph_would_be_noticed(monkeypatch):
    # A published implementation clipped rows: a star's gradient then grows with its neighbours.
    def by_row(self, delta):
        (members,), largest = self._members, 0.0
        for layer, mine in zip(self.layers, self._backwards(0, delta[0]), strict=True):
            rows = layer.inputs[0][members.nodes.view(-1)].square().sum(-1) + 1
            largest = largest + float((rows * mine.square().sum(-1)).max())
        return torch.full((1, members.count), largest, dtype=torch.float64)

    monkeypatch.setattr(SharedParts, "squared_norms", by_row)
    total = clipped_sum(star(), [0], 5, network())
    assert float(torch.linalg.vector_norm(total)) > CLIP


@pytest.mark.parametrize("variant", ["dense", "sparse", "one-hot", "one-hot and alike"])
def test_the_norm_of_an_example_is_that_of_its_gradient(variant):
    import scipy.sparse as sp

    arcs = [(1, 0), (2, 0), (3, 0), (0, 1), (2, 1), (4, 3)]
    plain_graph = people(5, arcs)
    if variant.startswith("one-hot"):
        rng = np.random.default_rng(0)
        features = (rng.random((5, WIDTH)) < 0.5).astype(np.float32)
        if variant.endswith("alike"):
            features[[2, 4]] = features[1]
        plain_graph = plain_graph._replace(features=features)
    graph = plain_graph
    if variant != "dense":
        graph = graph._replace(features=sp.csr_array(np.asarray(graph.features)))
    inputs, _ = examples_of(graph, 5)
    plain_inputs, _ = examples_of(plain_graph, 5)
    assert (inputs._num_rows < 5) == variant.endswith("alike")
    model = network()
    labels = torch.tensor(graph.labels)
    with record_linears() as tape:
        losses = cross_entropy(model(inputs.all()), labels.unsqueeze(0))
    norms = ghost.squared_norms(tape, ghost.output_gradients(tape, losses)).detach().sqrt()[0]
    plain = cross_entropy(model(plain_inputs.all()), labels.unsqueeze(0))[0]
    torch.testing.assert_close(losses[0], plain)
    for node in range(5):
        gradients = torch.autograd.grad(plain[node], list(model.parameters()), retain_graph=True)
        wanted = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        assert float(norms[node]) == pytest.approx(wanted, rel=1e-4)


def test_norms_and_sums_are_the_same_however_few_examples_are_added_up_at_once(monkeypatch):
    arcs = [(u, v) for u in range(40) for v in range(40) if u != v and (3 * u + 5 * v) % 7 < 4]
    graph, model = people(40, arcs), network()
    labels = torch.tensor(graph.labels).unsqueeze(0)

    def found():
        with record_linears() as tape:
            losses = cross_entropy(model(examples_of(graph, 20)[0].all()), labels)
        norms = ghost.squared_norms(tape, ghost.output_gradients(tape, losses)).detach()
        return norms, clipped_sum(graph, range(40), 20, model)

    whole = found()
    # Chunks of a few examples, and of a few slots.
    monkeypatch.setattr(shared_nodes, "PRODUCTS_AT_ONCE", 1 << 10)
    for one, other in zip(found(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rate", "degree"), [(0.02, 100), (0.5, 3), (1.0, 4), (0.001, 400)])
def test_the_mixture_is_that_of_binomially_many_touched_examples(rate, degree):
    event = neighbourhood_event(1.0, sampling_rate=rate, steps=5, max_degree=degree)
    shifts, shares = np.array(event.sensitivities), np.array(event.probabilities)
    assert shifts.max() <= 2 * degree + 1
    assert shares.sum() == pytest.approx(1)
    assert shares @ shifts == pytest.approx(rate + 2 * degree * rate)
    nobody = (1 - rate) * binom.pmf(0, degree, rate)
    assert shares[shifts == 0].sum() == pytest.approx(nobody)
    assert event.noise_multiplier == 2 * degree + 1


def cost(multiplier=0.3, *, rate=0.02, steps=100, degree=6):
    event = neighbourhood_event(multiplier, sampling_rate=rate, steps=steps, max_degree=degree)
    return account([event], 1e-5, relation="add-remove").epsilon


def test_more_noise_costs_less_and_more_of_anything_else_costs_more():
    usual = cost()
    assert cost(0.6) < usual < cost(0.2)
    assert cost(rate=0.01) < usual < cost(rate=0.04)
    assert cost(steps=50) < usual < cost(steps=200)
    # The same absolute noise hides a record that touches more people less well.
    assert usual < cost(0.3 * 13 / 19, degree=9)


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "degree"),
    [
        (0.3, 0.0222, 450, 100),
        (0.5, 0.02, 200, 10),
        (1.0, 0.1, 50, 3),
        pytest.param(0.8, 0.0222, 450, 100, marks=pytest.mark.slow),
    ],
)
def test_the_mixture_is_tighter_than_the_original_theorem(multiplier, rate, steps, degree):
    sizes = {"sampling_rate": rate, "steps": steps, "max_degree": degree}
    aggregation = Gaussian(1.5)
    events = [neighbourhood_event(multiplier, **sizes), aggregation]
    ours = account(events, 1e-5, relation="add-remove").epsilon
    for num_examples in (None, 20_000):
        theirs = original_epsilon(
            multiplier, 1e-5, num_examples=num_examples, aggregation=aggregation, **sizes
        )
        assert 0 < ours < theirs


def test_many_examples_make_the_original_theorem_binomial():
    sizes = {"sampling_rate": 0.02, "steps": 100, "max_degree": 20}
    limit = original_epsilon(0.5, 1e-5, **sizes)
    assert original_epsilon(0.5, 1e-5, num_examples=10**7, **sizes) == pytest.approx(
        limit, rel=1e-4
    )


@pytest.mark.parametrize(
    ("std", "rate", "steps", "degree"),
    [
        (10.0, 0.1, 100, 10),
        (2.0, 0.01, 300, 3),
        pytest.param(30.0, 0.0222, 450, 100, marks=pytest.mark.slow),
        pytest.param(5.0, 0.0222, 450, 10, marks=pytest.mark.slow),
    ],
)
def test_gradients_that_turn_around_cost_no_more_than_the_mixture(std, rate, steps, degree):
    """The worst that is known: each touched gradient is C in one graph and -C in the other."""
    from dp_accounting.pld import privacy_loss_distribution as library

    counts = np.arange(degree + 1)
    shares = binom.pmf(counts, degree, rate)
    counts, shares = counts[shares > 1e-18], shares[shares > 1e-18]
    shares = shares / shares.sum()
    pair = GaussianPair(
        tuple(np.concatenate([counts, counts + 1.0]) / std),
        tuple(np.concatenate([shares * (1 - rate), shares * rate])),
        tuple(-counts / std),
        tuple(shares),
    )
    multiplier = std / (2 * degree + 1)
    claimed = cost(multiplier, rate=rate, steps=steps, degree=degree)
    for side in (pair, pair.reversed):
        loss = library.PrivacyLossDistribution(_discretise(side, 1e-3, math.log(1e-10 / steps)))
        composed = loss.self_compose(steps, tail_mass_truncation=1e-10)
        assert composed.get_epsilon_for_delta(1e-5) <= claimed


def test_a_norm_is_never_below_that_of_the_clipped_sum_where_parts_cancel():
    rng = np.random.default_rng(0)
    for _ in range(20):
        half = rng.normal(size=12) * 2.0**20
        inputs = np.float32(np.concatenate([half, -half, rng.normal(size=3)]))
        nodes = torch.from_numpy(rng.permutation(inputs)).view(1, -1, 1)
        count = nodes.shape[1]
        layer = SharedLayer(nodes, torch.ones(1, count, 1), torch.ones(1, 1, 1), None)
        members = Members.of(torch.tensor([0]), torch.arange(1, count), torch.tensor([count - 1]))
        parts = SharedParts([layer], torch.ones(1, count, 1), [members])
        delta = torch.ones(1, 1, 2)
        norm = float(parts.squared_norms(delta).sqrt())
        whole = torch.ones(1, 1, dtype=torch.float64)
        (total,) = parts.clipped_sums(delta, whole, masked=False, exact=True).values()
        assert float(torch.linalg.vector_norm(total.double())) <= norm
