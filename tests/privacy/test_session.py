"""A session is the only way to a release, and makes exactly what its plan contains."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from gapgnn import GAP, MLP, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, random_split
from gapgnn.errors import BudgetExceededError, InputError, NotAgreedError, PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.ledger import People, spending
from gapgnn.privacy.plan import PlannedHops
from gapgnn.privacy.session import PrivateSession, SessionOptions
from gapgnn.rng import NoiseKey

HOPS = "aggregation"


@pytest.fixture(scope="module")
def graph():
    return random_split(social_graph(num_nodes=200, mean_degree=8), seed=0)


@pytest.fixture
def ledger(tmp_path):
    return Ledger.init(tmp_path / "ledger.sqlite")


@pytest.fixture
def rows(graph):
    return torch.nn.functional.normalize(torch.ones(graph.num_nodes, 3), dim=1)


def session_of(graph, ledger, plan=None, **options):
    plan = GAP(epsilon=2.0).plan_for(graph) if plan is None else plan
    settings = SessionOptions([NoiseKey.fresh()], ledger=ledger.path, **options)
    return PrivateSession(plan, graph, settings)


def test_nothing_is_released_before_it_is_charged(graph, ledger, rows):
    session = session_of(graph, ledger)
    with pytest.raises(PrivacyError, match="must be open"):
        session.release(HOPS, rows)
    assert ledger.entries() == []
    with session:
        (charge,) = ledger.entries()
        assert charge.epsilon == session.plan.promise.epsilon
        session.release(HOPS, rows)
    with pytest.raises(PrivacyError, match="must be open"):
        session.release(HOPS, rows)


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_price_that_is_announced_is_that_of_every_repeat(graph, ledger, repeats):
    terms = {"level": "edge", "relation": "undirected", "delta": 1e-5}
    ledger.grant("people", People.of(graph), **terms, epsilon=9.0, composition="sum")
    plan, said = GAP(epsilon=2.0, delta=1e-6).plan_for(graph), []
    settings = SessionOptions([NoiseKey.fresh() for _ in range(repeats)], ledger=ledger.path)
    PrivateSession(plan, graph, settings, announce=said.append).open()
    (text,) = said
    times = "" if repeats == 1 else "3 times "
    assert f"training gap is charged {times}epsilon 2.00" in text
    left = 9.0 - repeats * plan.promise.epsilon
    assert "people has epsilon 9 of 9 left" in text
    assert f"after this, epsilon {math.floor(1e4 * left) / 1e4:g}" in text
    assert ledger.budgets_of(People.of(graph))[0].left_epsilon == pytest.approx(left)


def test_what_a_caller_agreed_to_is_compared_with_the_price_of_all_repeats(graph, ledger):
    plan = GAP(epsilon=2.0).plan_for(graph)
    settings = SessionOptions([NoiseKey.fresh(), NoiseKey.fresh()], ledger=ledger.path)
    session = PrivateSession(plan, graph, settings)
    with spending(at_most=3.0), pytest.raises(NotAgreedError, match="a charge of epsilon 4"):
        session.open()
    assert ledger.entries() == []
    with spending(at_most=4.0) as charges:
        session.open()
    assert [charge.count for charge in charges] == [2]


def test_a_budget_that_cannot_pay_opens_no_session(graph, ledger, rows):
    ledger.grant(
        "people",
        People.of(graph),
        level="edge",
        relation="undirected",
        epsilon=1.0,
        delta=1e-4,
    )
    session = session_of(graph, ledger)
    with pytest.raises(BudgetExceededError):
        session.open()
    with pytest.raises(PrivacyError, match="must be open"):
        session.release(HOPS, rows)
    assert session.transcript == ()


def test_whoever_reads_exact_lists_beside_a_budget_is_the_curator_on_record(graph, ledger):
    terms = {"level": "edge", "relation": "undirected", "delta": 1e-4}
    ledger.grant("people", People.of(graph), **terms, epsilon=9.0)
    plan = GAP(epsilon=2.0).plan_for(graph)

    def opened(reason):
        settings = SessionOptions([NoiseKey.fresh()], ledger=ledger.path, curator_only=reason)
        PrivateSession(plan, graph, settings, reads_lists=True).open()

    with pytest.raises(PrivacyError, match="curator"):
        opened(None)
    assert ledger.entries() == []
    opened("figures for the board")
    access, charge = ledger.entries()
    assert (access.epsilon, access.reason) == (0, "figures for the board")
    assert charge.epsilon == plan.promise.epsilon


def test_a_release_that_was_not_planned_is_refused(graph, ledger, rows):
    with session_of(graph, ledger) as session:
        with pytest.raises(PrivacyError, match="must be planned"):
            session.release("another hop", rows)
        with pytest.raises(PrivacyError, match="must be planned"):
            session.draw("labels", dict, events=("labels",))
        # Hops that no event of the plan pays for.
        unpaid = {"more": PlannedHops(event="more", count=1)}
        session.plan = dataclasses.replace(session.plan, hops=unpaid)
        with pytest.raises(PrivacyError, match="must be planned"):
            session.release("more", rows)


def test_hops_are_released_as_often_as_was_planned_and_never_again(graph, ledger, rows):
    with session_of(graph, ledger) as session:
        first, second = (session.release(HOPS, rows)[0] for _ in range(2))
        assert not torch.equal(first, second)
        with pytest.raises(PrivacyError, match="as often as the plan says"):
            session.release(HOPS, rows)


def test_hops_that_their_event_does_not_pay_for_are_refused_before_the_charge(graph, ledger):
    plan = GAP(epsilon=2.0).plan_for(graph)
    more = {HOPS: dataclasses.replace(plan.hops[HOPS], count=3)}
    with pytest.raises(PrivacyError, match="must be paid for"):
        session_of(graph, ledger, dataclasses.replace(plan, hops=more)).open()
    assert ledger.entries() == []


@pytest.mark.parametrize("number", [1, 2])
def test_hops_of_every_option_must_be_paid_for(graph, ledger, number):
    plan = NodeLabelGAP(epsilon=8.0).plan_for(graph)
    options = list(plan.options)
    hops = dict(options[number].hops)
    name = next(iter(hops))
    hops[name] = dataclasses.replace(hops[name], count=2)
    options[number] = dataclasses.replace(options[number], hops=hops)
    with pytest.raises(PrivacyError, match="must be paid for"):
        session_of(graph, ledger, dataclasses.replace(plan, options=tuple(options))).open()
    assert ledger.entries() == []


def test_a_step_of_another_mechanism_is_drawn_once(graph, ledger):
    drawn = []

    def run():
        drawn.append(1)
        return {"labels": torch.zeros(1)}

    plan = NeighborVote(level="node", epsilon=2.0).plan_for(graph)
    with session_of(graph, ledger, plan) as session:
        for name in ("labels-0", "labels-1"):
            session.draw(name, run, events=("labels",))
        with pytest.raises(PrivacyError, match="Got 'labels-0' again"):
            session.draw("labels-0", run, events=("labels",))
    assert len(drawn) == 2


def test_rows_that_are_too_long_for_the_noise_are_refused(graph, ledger, rows):
    with session_of(graph, ledger) as session, pytest.raises(PrivacyError, match="norm at most 1"):
        session.release(HOPS, 2 * rows)


def test_a_released_hop_is_the_exact_sum_and_the_noise_that_was_charged(graph, ledger):
    width = 400
    sent = torch.zeros(graph.num_nodes, width)
    with session_of(graph, ledger) as session:
        (noisy,) = session.release(HOPS, sent)
        (std,) = session.std(HOPS)
    promised = session.plan.promise.multiplier_of(HOPS) * 2**0.5
    assert std == pytest.approx(promised, rel=1e-12)
    # 80,000 values: the standard deviation is known to 0.25 %, and 1.5 % is six of these.
    assert float(noisy.double().std()) == pytest.approx(promised, rel=0.015)


def test_networks_are_trained_privately_at_node_level_only_if_planned(graph, ledger):
    plan = NodeLabelGAP(epsilon=8.0, hop_share=0.5).plan_for(graph)
    refused = pytest.raises(PrivacyError, match="must be planned")
    with session_of(graph, ledger, plan) as session, refused:
        session.train("another network", torch.nn.Linear(2, 2), None, None)


def test_a_network_is_trained_by_dp_sgd_once_under_its_charge(graph, ledger):
    trained = []

    class Trainer:
        def fit(self, model, inputs, *, phase, private=None):
            trained.append(private)

    plan = MLP(level="node", epsilon=8.0, epochs=1).plan_for(graph)
    with session_of(graph, ledger, plan) as session:
        session.train("classifier", torch.nn.Linear(2, 2), Trainer())
        with pytest.raises(PrivacyError, match="as often as the plan says"):
            session.train("classifier", torch.nn.Linear(2, 2), Trainer())
    (private,) = trained
    assert private.noise_multiplier == plan.promise.multiplier_of("training")


def test_the_card_lists_what_was_released_and_refuses_to_leave_out_what_was_charged(
    graph, ledger, rows
):
    facts = ReleaseFacts(method="own", messages="features", steps=["preparation"])
    with session_of(graph, ledger) as session:
        with pytest.raises(PrivacyError, match=r"must make what it charged\. Got no aggregation"):
            session.card(facts)
        session.release(HOPS, rows)
    card = session.card(facts)
    assert session.transcript == (HOPS,)
    assert [event["label"] for event in card.events] == [HOPS]
    assert card.ledger is not None
    assert card.ledger.charge_id == ledger.entries()[0].id
    assert card.is_private_release


def test_seeded_or_fast_noise_is_no_private_release_on_the_card(graph, ledger, rows):
    facts = ReleaseFacts(method="own", messages="features", steps=["preparation"])
    for options in ({"is_seeded": True}, {"noise": "fast"}):
        with session_of(graph, ledger, **options) as session:
            session.release(HOPS, rows)
        assert not session.card(facts).is_private_release


def test_noise_beyond_the_safe_grid_is_refused_before_the_charge(graph, ledger):
    plan = GAP(epsilon=2.0).plan_for(graph)
    louder = [event.scaled(1e12) for event in plan.promise.events]
    promise = dataclasses.replace(plan.promise, events=tuple(louder))
    session = session_of(graph, ledger, dataclasses.replace(plan, guarantee=promise))
    with pytest.raises(PrivacyError, match="safe grid"):
        session.open()
    assert ledger.entries() == []


def test_a_network_too_large_for_the_safe_grid_is_refused_before_the_charge(graph, ledger):
    plan = MLP(level="node", epsilon=8.0, epochs=1).plan_for(graph)
    # 2**27 weights, whose rounding would take a hundredth of the clip; none is made.
    large = torch.nn.Linear(2**14, 2**13, device="meta")
    session = session_of(graph, ledger, plan)
    session.check_noise([torch.nn.Linear(2, 2)])
    with pytest.raises(InputError, match="fewer parameters"):
        session.check_noise([large])
    session_of(graph, ledger, plan, noise="fast").check_noise([large])


def test_a_finished_session_is_noted_in_the_ledger_and_a_broken_one_is_not(graph, ledger, rows):
    with session_of(graph, ledger) as session:
        session.release(HOPS, rows)
    with pytest.raises(ZeroDivisionError), session_of(graph, ledger) as session:
        raise ZeroDivisionError
    done, broken = ledger.entries()
    assert done.completed_at is not None
    assert broken.completed_at is None


def test_an_adaptive_choice_is_paid_at_its_dearest_option_whatever_is_chosen(graph, ledger):
    plan = NodeLabelGAP(epsilon=8.0).plan_for(graph)
    assert len(plan.options) == 3
    dearest = max(option.promise.epsilon for option in plan.options)
    assert plan.promise.epsilon > dearest
    for number in range(3):
        chosen = plan.chosen(number)
        assert chosen.promise.epsilon == plan.promise.epsilon
        assert chosen.promise.charged == plan.promise.events


def test_every_method_releases_through_a_session_and_nothing_else(graph, ledger):
    # Without an open session no method has a way to noise: training needs one.
    model = LabelGAP(epsilon=4.0, epochs=1, hops=1, ledger=ledger.path).fit(graph)
    (charge,) = ledger.entries()
    assert model.card_.ledger.charge_id == charge.id
    assert [event["label"] for event in model.card_.events] == [HOPS]
