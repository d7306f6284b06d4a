"""An adaptive choice costs its dearest option, and nothing that can be released is left out.

A small release decides which of several options follows (section 3 of the privacy page):
NodeLabelGAP releases a noisy mean degree and shares out the rest of its budget by it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from gapgnn import Graph, Ledger, NodeLabelGAP
from gapgnn.graph import induced, random_split
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.methods.label_gap import node_level
from gapgnn.privacy import AddRemove, Guarantee, Release, observed_by, public_count
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, PoissonGaussian, account
from gapgnn.privacy.ledger import scratch_ledger

FIRST = Laplace(20.0, label="first")
OF_OPTIONS = (
    (Gaussian(2.0, label="a"),),
    (Gaussian(1.0, label="a"), PoissonGaussian(1.5, 0.05, 30, label="b")),
    (Gaussian(4.0, label="a"), Gaussian(8.0, label="c")),
)


def option(*events: Event) -> Guarantee:
    spend = account(events, 1e-5, relation="add-remove")
    return Guarantee(
        relation=AddRemove(),
        epsilon=spend.epsilon,
        delta=1e-5,
        delta_is_auto=False,
        entities=1000,
        noise_multiplier=1.0,
        accountant=spend.accountant,
        events=events,
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_price_is_the_first_release_and_the_dearest_option(order):
    options = [option(*OF_OPTIONS[place]) for place in order]
    whole = Guarantee.one_of(FIRST, options)
    dearest = max(one.epsilon for one in options)
    assert whole.epsilon == pytest.approx(0.05 + dearest, rel=1e-12)
    assert whole.epsilon >= 0.05 + dearest
    # Whatever is chosen costs no more, by the accountant.
    for one in options:
        assert account((FIRST, *one.events), 1e-5, relation="add-remove").epsilon <= whole.epsilon
    # And the events alone say so to a budget that counts them.
    counted = account(whole.events, 1e-5, relation="add-remove").epsilon
    together = [account((FIRST, *one.events), 1e-5, relation="add-remove") for one in options]
    assert counted == max(spend.epsilon for spend in together)


def test_a_price_too_small_for_the_sum_is_not_lost():
    (only,) = [option(Gaussian(1.0))]
    whole = Guarantee.one_of(Laplace(1e30), [only])
    assert whole.epsilon > only.epsilon


def test_the_plan_lists_the_first_release_and_every_event_of_every_option():
    whole = Guarantee.one_of(FIRST, [option(*events) for events in OF_OPTIONS])
    assert whole.events[0] == FIRST
    for number, events in enumerate(OF_OPTIONS, start=1):
        listed = [one for one in whole.events if getattr(one, "option", 0) == number]
        assert [(type(one), one.label, one.noise_multiplier) for one in listed] == [
            (type(one), one.label, one.noise_multiplier) for one in events
        ]
    assert len(whole.events) == 1 + sum(map(len, OF_OPTIONS))


def test_what_every_option_releases_alike_is_listed_once_and_priced_in_each():
    alike = Gaussian(3.0, label="alike")
    options = [option(alike, Gaussian(2.0, label="x")), option(alike, Gaussian(5.0, label="y"))]
    whole = Guarantee.one_of(FIRST, options)
    assert [event.label for event in whole.events].count("alike") == 1
    counted = account(whole.events, 1e-5, relation="add-remove").epsilon
    together = [account((FIRST, *one.events), 1e-5, relation="add-remove") for one in options]
    assert counted == max(spend.epsilon for spend in together)


def test_what_some_options_release_alike_is_priced_in_these_alone():
    alike = Gaussian(0.5, label="alike")
    others = [Gaussian(4.0, label=name) for name in "xyz"]
    options = [option(alike, others[0]), option(alike, others[1]), option(others[2], others[0])]
    whole = Guarantee.one_of(FIRST, options)
    without = [event for event in whole.events if getattr(event, "option", 0) in (0, 3)]
    assert [event.label for event in without] == ["first", "z", "x"]


def test_once_chosen_renyi_accounting_and_the_attacker_know_of_all_options():
    options = [option(*events) for events in OF_OPTIONS]
    whole = Guarantee.one_of(FIRST, options)
    for one in options:
        chosen = one.after(FIRST, whole)
        assert chosen.rdp_epsilon() == whole.rdp_epsilon()
        assert chosen.attack_bounds() == whole.attack_bounds()


def test_a_chosen_option_that_is_read_back_still_knows_of_all_options():
    options = [option(*events) for events in OF_OPTIONS]
    whole = Guarantee.one_of(FIRST, options)
    for one in options:
        chosen = one.after(FIRST, whole)
        read = Guarantee.from_dict(json.loads(json.dumps(chosen.to_dict())))
        assert read.charged == whole.events
        assert read.attack_bounds() == chosen.attack_bounds()


def test_once_chosen_the_first_release_and_this_option_are_stated_at_the_price_of_the_whole():
    options = [option(*events) for events in OF_OPTIONS]
    whole = Guarantee.one_of(FIRST, options)
    for one in options:
        chosen = one.after(FIRST, whole)
        assert chosen.events == (FIRST, *one.events)
        # Bounds of attackers and later releases count what could have been released.
        assert chosen.charged == whole.events
        assert chosen.attack_bounds() == whole.attack_bounds()
        assert chosen.epsilon == whole.epsilon
        assert chosen.delta == whole.delta


class Answering:
    """Answers how long lists are."""

    def __init__(self, length: float) -> None:
        self.length = length

    def begin(self, purpose: str, **about: Any) -> None:
        pass

    def release(self, release: Release, output: Any) -> Any:
        if release.name != "mean out-degree":
            return output
        return torch.full_like(output, self.length)

    def batch(self, phase: str, batch: Any, members: Any) -> Any:
        return batch


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_split(social_graph(num_nodes=300, mean_degree=8, num_classes=3), seed=0)


def test_the_choice_reads_the_rounded_number_of_people_and_not_the_exact_one(graph, monkeypatch):
    means = []

    def spied(epsilon: float, mean_degree: float, **facts: Any) -> float:
        means.append((mean_degree, facts["num_train"]))
        return 0.0

    monkeypatch.setattr(node_level, "hop_share", spied)
    trained = np.flatnonzero(graph.train_mask)
    stay = [np.setdiff1d(np.arange(graph.num_nodes), trained[:count]) for count in (1, 2)]
    with scratch_ledger() as place, observed_by(Answering(500.0)):  # type: ignore[arg-type]
        for people in stay:
            model = NodeLabelGAP(epsilon=8.0, epochs=1, batch_size=60, ledger=place)
            model.fit(induced(graph, people, dangle=True))
    assert public_count(len(trained) - 1) == means[0][1] != len(trained) - 1
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("degree", "has_hop"), [(0.0, False), (3000.0, True)], ids=["no hop", "a hop"]
)
def test_charge_and_card_list_what_could_be_and_what_was_released(degree, has_hop, graph, tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    model = NodeLabelGAP(epsilon=40.0, epochs=1, batch_size=60, ledger=ledger.path)
    plan = model.guarantee(graph)
    with observed_by(Answering(degree)):  # type: ignore[arg-type]
        model.fit(graph)
    (entry,) = ledger.entries()
    # The charge: the release that decides, and all options, of which one is without hops.
    written = [event.to_dict() for event in plan.events]
    assert [dict(event) for event in entry.events] == written
    assert written[0]["label"] == "mean out-degree"
    # What all options with hops release alike, the hop of the others, is listed once.
    by_option = {
        number: {event["label"] for event in written if event.get("option", 0) in (number, 0)}
        for number in (1, 2, 3)
    }
    hop = {"aggregation", "aggregation by the others"}
    assert [hop <= labels for labels in by_option.values()] == [False, True, True]
    assert all("classifier" in labels for labels in by_option.values())
    # The card: the release that decides, and the one option that was chosen.
    labels = [event["label"] for event in model.card_.events]
    expected = {"mean out-degree", "classifier", *(hop if has_hop else ())}
    assert set(labels) == expected
    assert len(labels) == len(expected)
    assert "option" not in model.card_.events[-1]
    # One price, the dearest, before and after.
    assert model.card_.epsilon == entry.epsilon == plan.epsilon
    chosen = [Event.from_dict(dict(event)) for event in model.card_.events]
    priced = account(chosen, model.card_.delta, relation="add-remove").epsilon
    assert priced <= model.card_.epsilon <= 40.0
