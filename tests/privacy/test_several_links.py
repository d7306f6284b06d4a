"""``5-edges`` and ``5-arcs``: how far k links of one person move a hop, and what that costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn import MLP, GraphSAGE, LabelGAP, Ledger
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph, join_edge_types
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import (
    AddRemove,
    Directed,
    Guarantee,
    KArcs,
    KEdges,
    Neighbors,
    Replace,
    Symmetrized,
    Undirected,
    edge_types_growth,
    parse_relation,
    resolve_relation,
    squared_growth,
    strictest,
)
from gapgnn.privacy.accounting import (
    Gaussian,
    Laplace,
    RandomisedResponse,
    account,
    gaussian_epsilon,
)
from gapgnn.privacy.card import PrivacyCard, guarantee_sentence
from gapgnn.privacy.ledger import People
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.privacy.mechanisms import hop_mechanisms, row_normalise
from gapgnn.rng import NoiseKey

SIZE = 9


def graph_of(arcs, *, directed, weights=None):
    ends = np.array(arcs, dtype=np.int64).reshape(-1, 2)
    return Graph.from_arcs(
        *ends.T,
        num_nodes=SIZE,
        features=np.eye(SIZE),
        directed=directed,
        self_loops="keep",
        weights=weights,
    )


def released(graph, rows, relation, *, symmetrised=False, **options):
    """One hop under a key that is always the same: two of them differ without any noise."""
    mechanism = hop_mechanisms(
        graph,
        level="edge",
        relation=relation,
        noise_multiplier=1.0,
        symmetrised=symmetrised,
        keys=[NoiseKey.insecure(7)],
        **options,
    )[0]
    return mechanism.hop(rows, 1, normalise=False).double()


nodes = st.integers(0, SIZE - 1)
rows_drawn = st.tuples(st.integers(0, 2**31), st.floats(0, 1)).map(
    lambda drawn: (
        row_normalise(torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(drawn[0])))
        * drawn[1]
    )
)


@st.composite
def neighbours(draw, *, arcs):
    """Two sets of ends that differ in up to k links of one person: some come, others go."""
    k, person = draw(st.integers(1, SIZE - 1)), draw(nodes)
    around = draw(st.sets(st.tuples(nodes, nodes), max_size=30))
    others = draw(st.sets(nodes, max_size=k))
    mine = {(person, other) for other in others}
    if not arcs:
        # One line for each pair, whichever way round it was drawn.
        around = {(min(pair), max(pair)) for pair in around}
        mine = {(min(pair), max(pair)) for pair in mine}
    come = {pair for pair in mine if draw(st.booleans())}
    return k, sorted((around - mine) | come), sorted((around - come) | (mine - come))


def both_arcs(pairs):
    return sorted({arc for pair in pairs for arc in (pair, pair[::-1])})


@settings(deadline=None)
@given(drawn=neighbours(arcs=False), rows=rows_drawn, directed=st.booleans())
def test_k_edges_of_one_person_never_move_a_hop_further_than_stated(drawn, rows, directed):
    k, first, second = drawn
    sums = [
        released(
            graph_of(both_arcs(ends) if directed else ends, directed=directed), rows, f"{k}-edges"
        )
        for ends in (first, second)
    ]
    assert float((sums[0] - sums[1]).norm()) <= math.sqrt(k * k + k) + 1e-5


@settings(deadline=None)
@given(drawn=neighbours(arcs=True), rows=rows_drawn, symmetrised=st.booleans())
def test_k_arcs_of_one_person_never_move_a_hop_further_than_stated(drawn, rows, symmetrised):
    k, first, second = drawn
    sums = [
        released(graph_of(ends, directed=True), rows, f"{k}-arcs", symmetrised=symmetrised)
        for ends in (first, second)
    ]
    bound = math.sqrt(k * k + k) if symmetrised else math.sqrt(k)
    assert float((sums[0] - sums[1]).norm()) <= bound + 1e-5


@settings(deadline=None)
@given(drawn=neighbours(arcs=False), rows=rows_drawn)
def test_k_pairs_of_opposite_arcs_never_move_a_hop_further_than_stated(drawn, rows):
    k, first, second = drawn
    sums = [
        released(graph_of(both_arcs(ends), directed=True), rows, f"{k}-edges", symmetrised=True)
        for ends in (first, second)
    ]
    assert float((sums[0] - sums[1]).norm()) <= 2 * math.sqrt(k * k + k) + 1e-5


@pytest.mark.parametrize("k", range(1, SIZE))
@pytest.mark.parametrize(
    ("word", "directed", "symmetrised"),
    [
        ("edges", False, False),
        ("edges", True, False),
        ("edges", True, True),
        ("arcs", True, False),
        ("arcs", True, True),
    ],
)
def test_every_bound_is_reached(k, word, directed, symmetrised):
    star = [(0, other) for other in range(1, k + 1)]
    arcs = both_arcs(star) if directed and word == "edges" else star
    rows = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * (SIZE - 1))
    relation = f"{k}-{word}"
    with_links, without = (
        released(graph_of(ends, directed=directed), rows, relation, symmetrised=symmetrised)
        for ends in (arcs, [])
    )
    bound = (Symmetrized if symmetrised else Neighbors).bound(parse_relation(relation))
    assert float((with_links - without).norm()) == pytest.approx(bound, abs=1e-5)


@settings(deadline=None)
@given(
    k=st.integers(1, SIZE - 1),
    weights=st.lists(st.floats(0, 1), min_size=SIZE, max_size=SIZE),
    rows=rows_drawn,
)
def test_amounts_between_their_bounds_move_no_more(k, weights, rows):
    """A link may come, go or have another amount: at most 1 each."""
    star = [(0, other) for other in range(1, k + 1)]
    sums = [
        released(graph_of(star, directed=False, weights=amounts), rows, f"{k}-edges")
        for amounts in (np.array(weights[:k]), np.ones(k) - np.array(weights[:k]))
    ]
    assert float((sums[0] - sums[1]).norm()) <= math.sqrt(k * k + k) + 1e-5


@settings(deadline=None)
@given(
    types=st.lists(st.sets(st.integers(1, SIZE - 1)), min_size=1, max_size=3),
    rows=rows_drawn,
)
def test_links_of_several_types_together_move_no_more_than_as_many_of_one(types, rows):
    """What `any` charges: one event of k links, whichever types they are of, and a total two."""
    k = max(1, sum(map(len, types)))
    moved = []
    for there in (True, False):
        graphs = {
            f"type {place}": graph_of([(0, o) for o in others] * there, directed=False)
            for place, others in enumerate(types)
        }
        mechanisms = hop_mechanisms(
            join_edge_types(graphs),
            level="edge",
            relation=f"{k}-edges",
            noise_multiplier=1.0,
            keys=[NoiseKey.insecure(7)],
            with_total=True,
        )
        hops = [one.hop(rows, n + 1, normalise=False) for n, one in enumerate(mechanisms)]
        moved.append(torch.stack(hops).double())
    squares = (moved[0] - moved[1]).square().sum(dim=(1, 2))
    assert float(squares[: len(types)].sum()) <= k * k + k + 1e-4
    assert float(squares.sum()) <= 2 * (k * k + k) + 1e-4


def squared_shifts(first, second, rows, relation, **options):
    """Return how far two graphs of several types are apart in every sum, in units of its noise."""
    released, noise = [], []
    for types in (first, second):
        graphs = {
            f"type {place}": graph_of(arcs, directed=True) for place, arcs in enumerate(types)
        }
        mechanisms = hop_mechanisms(
            join_edge_types(graphs),
            level="edge",
            relation=relation,
            noise_multiplier=1.0,
            keys=[NoiseKey.insecure(7)],
            with_total=True,
            **options,
        )
        hops = [one.hop(rows, n + 1, normalise=False) for n, one in enumerate(mechanisms)]
        released.append(torch.stack(hops).double())
        noise = torch.tensor([one.std for one in mechanisms])
    return (released[0] - released[1]).square().sum(dim=(1, 2)) / noise.square()


@pytest.mark.parametrize("symmetrised", [False, True])
@pytest.mark.parametrize("word", ["arcs", "edges"])
@settings(deadline=None, max_examples=60)
@given(
    types=st.lists(st.sets(st.integers(1, SIZE - 1)), min_size=2, max_size=4),
    rows=rows_drawn,
    same=st.booleans(),
)
def test_links_of_several_types_and_their_total_move_by_two_events(
    word, symmetrised, types, rows, same
):
    """All k to one person, one of each type, is what moves one row of the total most."""
    if same:
        types = [{1}] * len(types)
    k = max(1, sum(map(len, types)))
    arcs = [[(0, other) for other in others] for others in types]
    if word == "edges":
        arcs = [both_arcs(ends) for ends in arcs]
    nothing = [[] for _ in types]
    moved = squared_shifts(arcs, nothing, rows, f"{k}-{word}", symmetrised=symmetrised)
    assert float(moved.sum()) <= 2 + 1e-4


@pytest.mark.parametrize(("k", "types"), [(2, 2), (5, 5), (6, 3), (2, 4)])
def test_a_total_over_types_has_the_noise_of_arcs_that_meet_in_one_row(k, types):
    """k arcs out of one person, as many as there are types to each of the others."""
    rows = torch.tensor([[1.0, 0.0]] * SIZE)
    meet = min(k, types)
    arcs = [
        [(0, 1 + other) for other in range(k // meet)] * (one_type < meet)
        for one_type in range(types)
    ]
    moved = squared_shifts(arcs, [[] for _ in arcs], rows, f"{k}-arcs")
    assert float(moved[-1]) == pytest.approx(1, abs=1e-4)
    assert float(moved.sum()) == pytest.approx(2, abs=1e-4)


def test_arcs_of_one_person_are_released_without_a_total_and_charged_so():
    """With its noise the total would say less than the types' sums do together."""
    halves = [social_graph(num_nodes=200, mean_degree=8, seed=seed) for seed in (1, 2)]
    graph = join_edge_types({"calls": halves[0], "visits": halves[1]})
    for relation, events in (("directed", 2), ("5-arcs", 1), ("undirected", 2), ("5-edges", 2)):
        model = LabelGAP(relation=relation, epochs=1).fit(graph)
        (hops,) = model.card_.events
        assert hops["count"] == events * model.plan_.settings.hops
        width = model.releases_.training().hops[-1].shape[-1]
        assert width == (events + 1) * (graph.num_classes - 1)


def all_sums(types, rows, *, directed=False, symmetrised=False, relation="undirected"):
    """Return the sums of every type and their total, under a key that is always the same."""
    graph = join_edge_types(
        {f"type {place}": graph_of(arcs, directed=directed) for place, arcs in enumerate(types)}
    )
    mechanisms = hop_mechanisms(
        graph,
        level="edge",
        relation=relation,
        noise_multiplier=1.0,
        keys=[NoiseKey.insecure(7)],
        symmetrised=symmetrised,
        with_total=True,
    )
    hops = [one.hop(rows, n + 1, normalise=False) for n, one in enumerate(mechanisms)]
    return torch.stack(hops).double()


@pytest.mark.parametrize("k", range(1, SIZE))
@pytest.mark.parametrize(
    ("word", "directed", "symmetrised"),
    [
        ("edges", False, False),
        ("edges", True, True),
        ("arcs", True, True),
    ],
)
def test_links_of_one_type_move_its_sum_and_the_total_by_all_that_is_charged(
    k, word, directed, symmetrised
):
    """Two events of the relation's sensitivity, reached; split over types it is less."""
    star = [(0, other) for other in range(1, k + 1)]
    if directed and word == "edges":
        star = both_arcs(star)
    rows = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * (SIZE - 1))
    options = {"directed": directed, "symmetrised": symmetrised, "relation": f"{k}-{word}"}
    nothing = all_sums([[], [], []], rows, **options)
    bound = (Symmetrized if symmetrised else Neighbors).bound(parse_relation(f"{k}-{word}")) ** 2
    whole = (all_sums([[], star, []], rows, **options) - nothing).square().sum(dim=(1, 2))
    assert whole.tolist() == pytest.approx([0, bound, 0, bound], abs=1e-4)
    split = (all_sums([star[::2], star[1::2], []], rows, **options) - nothing).square().sum()
    assert float(split) <= 2 * bound + 1e-4


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("has_total", [False, True])
def test_links_of_every_type_at_once_move_as_much_as_the_card_prices(count, has_total):
    rows = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * (SIZE - 1))
    star = [(0, 1), (0, 2)]
    of_all, of_none, of_one = (
        all_sums([star if one_type in chosen else [] for one_type in range(count)], rows)
        for chosen in (range(count), (), (0,))
    )
    last = count + has_total
    far, near = (float((sums - of_none)[:last].square().sum()) for sums in (of_all, of_one))
    assert far / near == pytest.approx(edge_types_growth(count, has_total=has_total), rel=1e-4)


def test_one_link_is_the_relation_there_was():
    for given_name, name in (("1-edges", "undirected"), ("1-arcs", "directed")):
        for is_directed in (False, True):
            assert str(resolve_relation("edge", given_name, is_directed=is_directed)) == name
        assert parse_relation(given_name) == parse_relation(name)
        assert str(parse_relation(given_name)) == name
    graph = social_graph(num_nodes=200, mean_degree=8)
    cards = [LabelGAP(relation=one, epochs=1).fit(graph).card_ for one in ("1-edges", "undirected")]
    assert cards[0].relation == Undirected()
    assert cards[0].events == cards[1].events
    assert guarantee_sentence(cards[0]) == guarantee_sentence(cards[1])


def test_auto_never_picks_several():
    for is_directed in (False, True):
        assert resolve_relation("edge", is_directed=is_directed) in (Directed(), Undirected())


@pytest.mark.parametrize(
    "word",
    ["k-edges", "k-arcs", "0-edges", "-3-edges", "05-edges", "5-edge", "5edges", "1.5-edges"],
)
def test_a_word_without_a_proper_number_is_refused_in_one_line(word):
    with pytest.raises(InputError, match=r"must have a number for k: 5-(edges|arcs)\. Got "):
        parse_relation(word)
    with pytest.raises(InputError, match="must have a number for k"):
        LabelGAP(relation=word).fit(social_graph(num_nodes=100, mean_degree=4))


def test_arcs_of_a_symmetric_graph_are_never_silent():
    graph = social_graph(num_nodes=300, mean_degree=8)
    card = LabelGAP(relation="5-arcs", epochs=1, delta=1e-6).fit(graph).card_
    events = [Gaussian(e["noise_multiplier"], count=6 * e["count"]) for e in card.events]
    real = account(events, 1e-6, relation="5-edges").epsilon
    (line,) = (line for line in card.warnings if "symmetric" in line)
    assert "5 undirected edges of one person, under 5-edges" in line
    assert float(line.rstrip(".").split()[-1]) == pytest.approx(real, abs=0.01)


def test_the_card_says_whose_links_and_how_many():
    graph = social_graph(num_nodes=300, mean_degree=8)
    card = LabelGAP(relation="5-edges", epsilon=1.0, epochs=1).fit(graph).card_
    assert card.relation == KEdges(5)
    assert "up to 5 of one person's undirected edges" in guarantee_sentence(card)
    assert any("Up to 5 of one person's undirected edges" in line for line in card.covered)
    assert any("More than 5 of one person's edges" in line for line in card.not_covered)
    assert any("node level" in line for line in card.not_covered)
    assert PrivacyCard.from_json(card.to_json()) == card
    # Entities, and so delta, are those of one edge.
    one = LabelGAP(relation="undirected", epsilon=1.0, epochs=1).fit(graph).card_
    assert card.delta == one.delta
    assert card.events == one.events


def test_a_model_of_several_links_has_their_noise():
    graph = social_graph(num_nodes=300, mean_degree=8)
    shared = {"epsilon": 1.0, "delta": 1e-6}
    found = Guarantee.resolve(graph, [Gaussian(1.0, count=2)], relation=KEdges(20), **shared)
    assert gaussian_epsilon(math.sqrt(2) / found.free_multiplier, 1e-6) == pytest.approx(1, 1e-3)


def test_randomised_edges_refuse_and_name_what_to_use():
    graph = social_graph(num_nodes=100, mean_degree=6)
    with pytest.raises(InputError, match=r"5 bits would share epsilon.*Use gap"):
        GraphSAGE(relation="5-edges", epochs=1).fit(graph)


def test_what_reads_no_edges_costs_nothing():
    graph = social_graph(num_nodes=100, mean_degree=6)
    card = MLP(relation="5-edges", epochs=1).fit(graph).card_
    assert card.epsilon == 0
    assert card.relation == KEdges(5)


relations = st.builds(
    lambda k, word: parse_relation(f"{k}-{word}"),
    st.integers(1, 12),
    st.sampled_from(["edges", "arcs"]),
)


@given(one=relations, two=relations, three=relations)
def test_covering_is_an_order_and_the_strictest_covers_all(one, two, three):
    assert one.covers(one)
    assert not (one.covers(two) and two.covers(one)) or one == two
    assert not (one.covers(two) and two.covers(three)) or one.covers(three)
    top = strictest([one, two])
    assert top.covers(one)
    assert top.covers(two)
    if three.covers(one) and three.covers(two):
        assert three.covers(top)


@given(one=relations, two=relations)
def test_group_privacy_pays_at_least_what_sensitivities_say(one, two):
    """A group of g has at most g times the distance: the exact growth is never above it."""
    if not two.covers(one):
        with pytest.raises(InputError, match="must cover"):
            two.group_size(one)
        return
    for operator in (Neighbors, Symmetrized):
        ratio = operator.bound(two) / operator.bound(one)
        assert ratio <= two.group_size(one) + 1e-9
        assert ratio**2 <= squared_growth(one, two) + 1e-9


def test_group_sizes_and_growth_by_hand():
    assert KEdges(5).group_size(Undirected()) == 5
    assert KEdges(5).group_size(KEdges(2)) == 3
    assert KArcs(5).group_size(Directed()) == 5
    # Five arcs out of one, and one out of each of five.
    assert KEdges(5).group_size(Directed()) == 10
    assert KEdges(5).group_size(KArcs(5)) == 6
    assert Replace().group_size(AddRemove()) == 2
    assert squared_growth(Undirected(), KEdges(5)) == pytest.approx(15)
    assert squared_growth(KEdges(2), KEdges(5)) == pytest.approx(5)
    # Along arcs 30, symmetrised 60: the event does not say which.
    assert squared_growth(Directed(), KEdges(5)) == pytest.approx(60)


def spend(noise, relation, delta=1e-6):
    events = [Gaussian(noise)]
    price = account(events, delta, relation=relation).epsilon
    written = json.dumps([event.to_dict() for event in events])
    return Spend(parse_relation(relation), Amount.of(price, delta), 1, written)


@pytest.mark.parametrize("k", [2, 5, 20])
def test_an_edge_charged_before_counts_exactly_in_a_gaussian_budget(k):
    budget = Filter.granted("gaussian", "edge", KEdges(k), Amount.of(100.0, 1e-6))
    found = budget.together([spend(50.0, "undirected")])
    shift = math.sqrt((k * k + k) / 2) / 50.0
    assert found == pytest.approx(gaussian_epsilon(shift, 1e-6), rel=1e-9)


@pytest.mark.parametrize("charged", ["undirected", "directed", "2-edges", "3-arcs"])
@pytest.mark.parametrize("noise", [20.0, 200.0])
def test_the_sum_rule_is_never_below_the_truth(charged, noise):
    """Group privacy of the stated price, against the exact curve of the same noise."""
    one = spend(noise, charged)
    total = Filter("sum", "edge", KEdges(5), Amount.of(1e6, 0.5)).spent([one])
    shift = math.sqrt(squared_growth(parse_relation(charged), KEdges(5))) / noise
    assert float(total.delta) < 1
    assert float(total.epsilon) >= gaussian_epsilon(shift, float(total.delta))


def test_what_a_budget_does_not_cover_is_refused_by_every_rule():
    for rule in ("sum", "gaussian", "renyi"):
        budget = Filter.granted(rule, "edge", Undirected(), Amount.of(4.0, 1e-6))
        with pytest.raises(PrivacyError, match="cannot count a charge under 5-edges"):
            budget.allows([spend(50.0, "5-edges")])
    arcs = Filter.granted("gaussian", "edge", KArcs(5), Amount.of(4.0, 1e-6))
    with pytest.raises(PrivacyError, match=r"under undirected\. Grant it under 5-edges"):
        arcs.allows([spend(50.0, "undirected")])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def charge(ledger: Ledger, people: People, relation: str) -> None:
    price = account([Gaussian(20.0)], 1e-6, relation=relation).epsilon
    ledger.charge(
        people,
        level="edge",
        relation=relation,
        epsilon=price,
        delta=1e-6,
        events=[Gaussian(20.0).to_dict()],
        purpose="test",
    )


def test_a_ledger_keeps_the_number_and_states_what_covers_all_charges(ledger):
    people = People.listed(np.array(["a", "b", "c"]))
    charge(ledger, people, "5-arcs")
    charge(ledger, people, "undirected")
    (row,) = ledger.summary()
    assert row.relation == "5-edges"
    assert row.relations == ("5-arcs", "undirected")
    terms = {"level": "edge", "epsilon": 50.0, "delta": 1e-6}
    with pytest.raises(PrivacyError, match=r"`relation` must be 5-edges: .* under 5-arcs"):
        ledger.grant(row.population, relation="undirected", **terms)
    granted = ledger.grant(row.population, relation="5-edges", **terms)
    squared = (squared_growth(KArcs(5), KEdges(5)) + 15) / 20.0**2
    found = gaussian_epsilon(math.sqrt(squared), 1e-6)
    assert granted.spent_epsilon == pytest.approx(found, rel=1e-9)
    with pytest.raises(PrivacyError, match=r"under 5-edges\. Got a charge under undirected"):
        charge(ledger, people, "undirected")
    charge(ledger, people, "5-edges")


def test_a_ledger_knows_one_link_by_its_one_name(ledger):
    people = People.listed(np.array(["a", "b", "c"]))
    budget = ledger.grant(
        "people", people, level="edge", relation="1-edges", epsilon=4.0, delta=1e-6
    )
    assert budget.relation == "undirected"
    charge(ledger, people, "undirected")


def test_a_whole_edge_costs_twice_a_pure_release_of_its_two_bits():
    graph = social_graph(num_nodes=30, mean_degree=4)
    bit = RandomisedResponse.symmetric(1.5, label="bits")
    promise = Guarantee.pure(graph, [bit], relation=Directed(), epsilon=1.5, delta="auto")
    assert promise.undirected_epsilon() == pytest.approx(3.0)
    whole = Guarantee.pure(graph, [bit], relation=Undirected(), epsilon=1.5, delta="auto")
    assert whole.undirected_epsilon() is None


def test_five_edges_cost_six_times_a_pure_release_of_five_arcs():
    """The arcs out of one person are one group, and the one out of each of five others another."""
    graph = social_graph(num_nodes=30, mean_degree=4)
    event = Laplace(1.0, label="count")
    promise = Guarantee.pure(graph, [event], relation=KArcs(5), epsilon=1.0, delta="auto")
    assert promise.undirected_epsilon() == pytest.approx(6.0)
