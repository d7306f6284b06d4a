"""A program of somebody else: declared releases, charged, checkpointed, on a card, observed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gapgnn import GAP, Checkpoint, Ledger, Plan, PlannedHops, PrivateSession, random_split
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph, join_edge_types, to_pyg
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import SessionOptions, Undirected, observed_by
from gapgnn.privacy.accounting import Gaussian, account

SUMS = "sums"


@pytest.fixture(scope="module")
def graph():
    return social_graph(num_nodes=200, mean_degree=8)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """The user's own ledger, which nobody has to name."""
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    return ledger


@pytest.fixture
def rows(graph):
    return nn.functional.normalize(torch.tensor(graph.features.toarray()), dim=1)


class Observer:
    """Lists the releases of a run."""

    def __init__(self):
        self.seen = []

    def begin(self, purpose, **about):
        self.about = about

    def release(self, release, output):
        self.seen.append(release)
        return output


def two_types():
    """Return a directed graph with two edge types, 12 arcs in one and 4 in the other."""
    rng = np.random.default_rng(0)
    features = np.eye(30, dtype=np.float32)

    def one(count):
        ends = rng.choice(30, size=(2, count))
        return Graph.from_arcs(*ends, num_nodes=30, features=features, directed=True)

    return join_edge_types({"calls": one(12), "visits": one(4)})


def test_a_program_names_a_graph_and_releases_and_nothing_undocumented(graph, ledger, rows):
    plan = Plan.declare(graph, epsilon=2.0, hops={SUMS: 2}, method="my GNN")
    with PrivateSession(plan, graph) as session:
        (first,) = session.release(SUMS, rows, normalise=True)
        (second,) = session.release(SUMS, first)
    assert first.shape == second.shape == rows.shape
    (charge,) = ledger.entries()
    assert (charge.purpose, charge.epsilon) == ("my GNN fit", plan.promise.epsilon)
    assert charge.completed_at is not None
    card = session.card()
    assert (card.method, card.epsilon, card.level) == ("my GNN", charge.epsilon, "edge")
    assert card.is_private_release
    assert card.ledger.charge_id == charge.id
    assert "holds only if none of them was computed from edges" in card.messages


def test_a_pyg_data_is_read_as_it_is(graph, ledger, rows):
    data = to_pyg(graph)
    plan = Plan.declare(data, epsilon=1.0, hops={SUMS: 1})
    with PrivateSession(plan, data) as session:
        session.release(SUMS, rows)
    assert len(ledger.entries()) == 1


def test_two_sessions_never_share_their_noise(graph, ledger):
    plan = Plan.declare(graph, hops={SUMS: 1})
    found = []
    for _ in range(2):
        with PrivateSession(plan, graph) as session:
            found += session.release(SUMS, torch.zeros(graph.num_nodes, 2))
    assert not torch.equal(*found)


def test_what_is_declared_costs_no_more_than_its_budget(graph):
    more = [Gaussian(2.0, label="counts")]
    plan = Plan.declare(graph, epsilon=3.0, hops={SUMS: 2, "again": 1}, events=more)
    events = plan.promise.events
    assert [event.label for event in events] == [SUMS, "again", "counts"]
    sums, again, counts = (event.noise_multiplier for event in events)
    assert sums == again == counts / 2
    price = account(events, plan.delta, relation=plan.relation).epsilon
    assert 2.985 < price <= 3.0


def test_several_edge_types_are_paid_for_as_neighbours_differ_in_them(ledger):
    graph = two_types()
    for options, count in (
        ({"edge_types": "any"}, 1),
        ({"edge_types": "each"}, 2),
        ({"edge_types": "each", "hops": {SUMS: PlannedHops(event="", count=1)}}, 2),
        ({"level": "node", "max_degree": 3}, 2),
        ({"hops": {SUMS: PlannedHops(event="", count=1, with_union=True)}}, 2),
    ):
        plan = Plan.declare(graph, **{"hops": {SUMS: 1}, **options}, epsilon=4.0)
        assert [event.times for event in plan.promise.events] == [count]
        with PrivateSession(plan, graph) as session:
            released = session.release(SUMS, torch.eye(30))
        assert len(released) == (3 if plan.hops[SUMS].with_union else 2)
        card = session.card()
        assert card.edge_types == ("calls", "visits")
        assert card.protects == ("any" if count == 1 or len(released) == 3 else "each")


def test_at_node_level_lists_are_cut_and_the_card_states_what_rows_must_be(graph, ledger, rows):
    plan = Plan.declare(graph, level="node", epsilon=8.0, hops={SUMS: 1}, max_degree=5)
    with PrivateSession(plan, graph) as session:
        session.release(SUMS, rows)
        std = session.std(SUMS)[0]
    assert std == pytest.approx(plan.promise.multiplier_of(SUMS) * 5**0.5)
    card = session.card()
    assert (card.max_degree, card.node_notion) == (5, "own record")
    assert "computed from that person's own record" in card.messages
    assert not [what for what, _ in card.public if "training" in what], "nobody was counted"


def test_at_node_level_columns_that_were_learned_from_people_are_refused(graph, ledger):
    learned = graph._replace(inferred=("columns",))
    plan = Plan.declare(graph, level="node", hops={SUMS: 1}, max_degree=5)
    with pytest.raises(PrivacyError, match="must be declared at level node"):
        PrivateSession(plan, learned)
    PrivateSession(Plan.declare(learned, hops={SUMS: 1}), learned)


def test_every_release_of_a_program_is_shown_to_an_audit(graph, ledger, rows):
    plan, observer = Plan.declare(graph, hops={SUMS: 2}), Observer()
    with observed_by(observer), PrivateSession(plan, graph) as session:
        session.release(SUMS, rows)
        session.release(SUMS, rows)
    assert [one.name for one in observer.seen] == ["hop 1", "hop 2"]
    scale = plan.promise.multiplier_of(SUMS) * 2**0.5
    assert [one.scale for one in observer.seen] == [pytest.approx(scale)] * 2
    assert observer.about["relation"] == Undirected()


def test_any_module_is_trained_by_any_loop_below_node_level(graph, ledger, rows):
    tied = nn.Sequential(nn.Linear(rows.shape[1], rows.shape[1]), nn.BatchNorm1d(rows.shape[1]))
    tied.append(nn.Linear(rows.shape[1], rows.shape[1]))
    tied[2].weight = tied[0].weight
    before = tied[0].weight.detach().clone()

    def loop(module):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        module(rows).square().mean().backward()
        optimiser.step()

    plan = Plan.declare(graph, hops={SUMS: 1})
    with PrivateSession(plan, graph) as session:
        session.release(SUMS, rows)
        session.train("encoder", tied, loop)
    assert not torch.equal(tied[0].weight, before)
    assert not tied.training
    assert session.transcript == (SUMS, "encoder")


def test_a_killed_program_goes_on_without_paying_or_drawing_again(graph, ledger, rows, tmp_path):
    plan, folder = Plan.declare(graph, hops={SUMS: 2}), tmp_path / "unfinished"
    module, loops = nn.Linear(rows.shape[1], 2), []

    def loop(network):
        loops.append(network)
        nn.init.constant_(network.weight, 3.0)

    def run(*, resume, dies):
        checkpoint = Checkpoint(folder, ledger=None, resume=resume)
        try:
            with PrivateSession(plan, graph, checkpoint=checkpoint) as session:
                (hop,) = session.release(SUMS, rows, normalise=True)
                session.train("classifier", module, loop)
                if dies:
                    raise ZeroDivisionError
                return hop, *session.release(SUMS, hop), session.card()
        finally:
            checkpoint.close()

    with pytest.raises(ZeroDivisionError):
        run(resume=False, dies=True)
    nn.init.zeros_(module.weight)
    observer = Observer()
    with observed_by(observer):
        *_, card = run(resume=True, dies=False)
    assert [one.name for one in observer.seen] == ["hop 2"], "hop 1 was not drawn again"
    assert len(loops) == 1
    assert bool((module.weight == 3).all()), "the network was trained before the kill"
    (charge,) = ledger.entries()
    assert card.ledger.charge_id == charge.id


def test_another_plan_does_not_go_on_with_a_killed_program(graph, ledger, rows, tmp_path):
    folder = tmp_path / "unfinished"
    first = Checkpoint(folder, ledger=None)
    plan = Plan.declare(graph, hops={SUMS: 1})
    with pytest.raises(ZeroDivisionError), PrivateSession(plan, graph, checkpoint=first):
        raise ZeroDivisionError
    first.close()
    again = Checkpoint(folder, ledger=None, resume=True)
    other = Plan.declare(graph, epsilon=4.0, hops={SUMS: 1})
    with pytest.raises(InputError, match="must be as in the unfinished run"):
        PrivateSession(other, graph, checkpoint=again).open()
    again.close()
    assert len(ledger.entries()) == 1


def test_a_training_loop_is_no_training_at_node_level(graph, ledger, rows):
    plan = GAP(level="node", epsilon=8.0).plan_for(random_split(graph, seed=0))
    refused = pytest.raises(PrivacyError, match="must clip gradients and add noise")
    with PrivateSession(plan, graph) as session, refused:
        session.train("classifier", nn.Linear(2, 2), lambda network: None)


def test_a_network_without_parameters_yet_is_refused_with_what_to_do(graph, ledger, rows):
    plan = Plan.declare(graph, hops={SUMS: 1})
    refused = pytest.raises(InputError, match="call it once on some rows")
    with PrivateSession(plan, graph) as session, refused:
        session.train("classifier", nn.LazyLinear(2), lambda network: None)


@pytest.mark.parametrize("keep", [True, False])
def test_backpropagating_into_a_release_is_refused_and_reads_no_edge(graph, ledger, rows, keep):
    encoder = nn.Linear(rows.shape[1], 4)
    plan = Plan.declare(graph, hops={SUMS: 2})
    with PrivateSession(plan, graph) as session:
        sent = nn.functional.normalize(encoder(rows), dim=1)
        (hop,) = session.release(SUMS, sent, normalise=True, keep=keep)
        with pytest.raises(PrivacyError, match="a release has no gradient"):
            hop.sum().backward()
        # What follows from a release by itself trains as usual.
        (second,) = session.release(SUMS, hop.detach())
    assert not second.requires_grad
    assert encoder.weight.grad is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hops": {SUMS: 0}}, "hops"),
        ({"hops": {"": 1}}, "name of their own"),
        ({"hops": {SUMS: 1}, "events": [Gaussian(1.0, label=SUMS)]}, "name of their own"),
        ({"hops": {SUMS: 1}, "epsilon": -1.0}, "epsilon"),
        ({"hops": {SUMS: 1}, "relation": "replace"}, "relation"),
        ({"hops": {SUMS: 1}, "level": "node", "edge_types": "any"}, "edge_types"),
        ({"events": [Gaussian(1.0, label="a", option=1)]}, "must have no options"),
        ({"events": [Gaussian(1.0, label="a", group="x")]}, "must have no groups at level edge"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(graph, options, said):
    with pytest.raises(InputError, match=said):
        Plan.declare(graph, **options)


def test_seeded_noise_of_a_program_is_no_private_release(graph, ledger, rows):
    plan = Plan.declare(graph, hops={SUMS: 1})
    with PrivateSession(plan, graph, SessionOptions(is_seeded=True)) as session:
        session.release(SUMS, rows)
    assert not session.card().is_private_release
