"""Candidates of a search: as many as were drawn, fresh noise in each, each release made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gapgnn import Checkpoint, Ledger, Plan, PrivateSession
from gapgnn.errors import PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import SCORE, SelectionSession, SessionOptions, selection_plan, with_score
from gapgnn.privacy.accounting import CandidateNumber
from gapgnn.privacy.plan import PlannedTraining
from gapgnn.rng import NoiseKey

SUMS = "sums"
GRAPH = social_graph(num_nodes=120, mean_degree=6)
ROWS = torch.zeros(GRAPH.num_nodes, 4)


def declared(**options: Any) -> Plan[Any]:
    return Plan.declare(GRAPH, **{"epsilon": 1.0, "hops": {SUMS: 1}, **options})


def opened(folder: Path, *plans: Plan[Any], mean: float = 30.0, **more: Any) -> SelectionSession:
    number = CandidateNumber.geometric(mean)
    whole = selection_plan(plans, number, method="test", budget=9.0, delta="auto")
    ledger = Ledger.init(folder / "ledger.sqlite")
    options = SessionOptions(keys=[NoiseKey.insecure(0)], ledger=ledger.path)
    return SelectionSession(whole, GRAPH, options, **more)


def sums_of(session: SelectionSession, number: int, plan: Plan[Any], **more: Any) -> torch.Tensor:
    with session.candidate(number, plan, GRAPH, **more) as candidate:
        (released,) = candidate.release(SUMS, ROWS)
    return released


def test_every_candidate_draws_noise_of_its_own(tmp_path):
    plan = declared()
    with opened(tmp_path, plan) as session:
        count = len(session.draw_candidates())
        released = [sums_of(session, number, plan) for number in range(min(count, 3))]
    assert len(released) == 3
    # Rows of zeros: all that is released is noise, of which no value comes twice.
    first, second, third = released
    for one, other in ((first, second), (first, third), (second, third)):
        assert float((one == other).double().mean()) < 0.01


def test_every_candidate_draws_its_own_setting(tmp_path):
    plans = [declared(epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    with opened(tmp_path, *plans) as session:
        drawn = session.draw_candidates()
    assert len(drawn) > 1
    assert len(set(drawn)) > 1


def test_no_candidate_makes_the_releases_of_two_settings(tmp_path):
    plans = [declared(), declared(epsilon=0.5)]
    with opened(tmp_path, *plans) as session:
        session.draw_candidates()
        sums_of(session, 0, plans[0])
        other = session.candidate(0, plans[1], GRAPH)
        with pytest.raises(PrivacyError, match="must make its own releases"):
            other.open()
        sums_of(session, 1, plans[1])


def test_candidates_are_kept_apart_when_a_run_can_be_resumed(tmp_path):
    plan = declared()
    checkpoint = Checkpoint(tmp_path / "unfinished", ledger=tmp_path / "ledger.sqlite")
    with opened(tmp_path, plan, checkpoint=checkpoint) as session:
        session.draw_candidates()
        first, second, again = (sums_of(session, number, plan) for number in (0, 1, 0))
        other = sums_of(session, 0, plan, variant=1)
    checkpoint.remove()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert torch.equal(first, other)


class Counting:
    """A trainer that sets weights to the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def fit(self, model: nn.Module, inputs: Any, *, phase: str, private: Any = None) -> None:
        self.calls += 1
        nn.init.constant_(model.weight, self.calls)


def trained(session: SelectionSession, plan: Plan[Any], trainer: Any, variant: int) -> float:
    network = nn.Linear(2, 2)
    with session.candidate(0, plan, GRAPH, variant=variant) as candidate:
        candidate.train("classifier", network, trainer)
    return network.weight[0, 0].item()


def test_a_network_that_dp_sgd_trained_is_not_trained_again_for_another_variant(tmp_path):
    plan, trainer = declared(level="node", max_degree=3), Counting()
    plan = replace(plan, training={"classifier": PlannedTraining(event=SUMS)})
    with opened(tmp_path, plan) as session:
        session.draw_candidates()
        found = [trained(session, plan, trainer, variant) for variant in (0, 1, 0)]
    assert (found, trainer.calls) == ([1, 1, 1], 1)


def test_below_node_level_every_variant_trains_networks_of_its_own(tmp_path):
    plan, trainer = declared(), Counting()
    checkpoint = Checkpoint(tmp_path / "unfinished", ledger=tmp_path / "ledger.sqlite")
    with opened(tmp_path, plan, checkpoint=checkpoint) as session:
        session.draw_candidates()
        found = [trained(session, plan, trainer, variant) for variant in (0, 1, 0)]
    checkpoint.remove()
    assert found == [1, 2, 1]


def test_hops_that_the_candidate_does_not_pay_for_are_refused(tmp_path):
    plan = declared()
    more = replace(plan, hops={SUMS: replace(plan.hops[SUMS], count=2)})
    with opened(tmp_path, plan) as session:
        session.draw_candidates()
        candidate = session.candidate(0, more, GRAPH)
        with pytest.raises(PrivacyError, match="must be paid for"):
            candidate.open()


def test_no_candidate_is_opened_before_their_number_is_drawn(tmp_path):
    plan = declared()
    with opened(tmp_path, plan, mean=1.2) as session:
        early = [session.candidate(number, plan, GRAPH) for number in (0, 50)]
        for candidate in early:
            with pytest.raises(PrivacyError, match="than were drawn"):
                candidate.open()
        assert len(session.draw_candidates()) <= 50
        early[0].open()
        with pytest.raises(PrivacyError, match="than were drawn"):
            early[1].open()
        with pytest.raises(PrivacyError, match="than were drawn"):
            session.candidate(-1, plan, GRAPH)


def test_no_candidate_is_opened_under_a_closed_search(tmp_path):
    plan = declared()
    with opened(tmp_path, plan) as session:
        session.draw_candidates()
        late = session.candidate(0, plan, GRAPH)
    with pytest.raises(PrivacyError, match="must be open"):
        late.open()


def test_a_candidate_states_epsilon_and_delta_of_the_search(tmp_path):
    plan = declared(delta=1e-9)
    with opened(tmp_path, plan) as session:
        session.draw_candidates()
        with session.candidate(0, plan, GRAPH) as candidate:
            candidate.release(SUMS, ROWS)
            card = candidate.card()
    whole = session.plan.promise
    assert (card.epsilon, card.delta) == (whole.epsilon, whole.delta)
    assert card.delta > plan.promise.delta


def test_a_candidate_under_a_weaker_relation_is_not_paid_for(tmp_path):
    plan = declared(relation="undirected", delta=1e-6)
    weaker = declared(relation="directed", delta=1e-6)
    assert plan.promise.events == weaker.promise.events
    with opened(tmp_path, plan) as session:
        session.draw_candidates()
        with pytest.raises(PrivacyError, match="that the search was charged for"):
            session.candidate(0, weaker, GRAPH)


def test_the_noise_of_a_score_is_checked_before_anything_is_charged(tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    loud = with_score(declared(level="node", max_degree=3), 1e-7)
    session = PrivateSession(loud, GRAPH, SessionOptions(ledger=ledger.path))
    with pytest.raises(PrivacyError, match=f"noise of {SCORE}"):
        session.open()
    assert ledger.entries() == []
