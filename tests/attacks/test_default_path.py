"""What users run at node level: `gapgnn train --level node`, with nothing chosen for it.

There a noisy mean out-degree decides what the hops get, or that there are none. The command goes
through the pipeline audit with lists that are long enough for hops and with lists that are not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pipelinecases import findings, tables

from gapgnn import NodeLabelGAP
from gapgnn.audits.neighbours import Tables
from gapgnn.audits.pipeline import Case, audit_pipeline
from gapgnn.cli.main import main
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import random_split
from gapgnn.methods.label_gap import node_level
from gapgnn.methods.label_gap.node_votes import OF_OTHERS
from gapgnn.privacy import AddRemove, Replace, observed_by
from gapgnn.privacy.mechanisms import NOISE_PATH
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.privacy.session import PrivateSession

# A budget that leaves no doubt whether lists are long.
COMMAND = "train --level node --epsilon 64"
QUICK = f"{COMMAND} --epochs 2 --no-compare"


def with_long_lists(given: Tables) -> Tables:
    """Return tables in which everybody is linked to some thirty people, most of the own team."""
    rng, team = np.random.default_rng(3), {row[0]: row[-1] for row in given.nodes}
    more = [
        (name, str(other))
        for name in given.ids
        for other in rng.choice(given.ids, 40, replace=False)
        if other != name and (team[str(other)] == team[name] or rng.random() < 0.2)
    ]
    return replace(given, edges=(*given.edges, *more))


def outcomes_of(words: str, given: Tables, *pairs: str):
    return audit_pipeline(Case(tuple(words.split()), given, AddRemove()), main, pair_types=pairs)


def released_in(outcome) -> set[str]:
    return {one.name.split(" step")[0] for one in outcome.releases}


WHOLE = {"mean out-degree", "hop 1", "hop 2", "classifier"}


@pytest.mark.parametrize(
    ("words", "pair_types"),
    [
        (QUICK, ["first", "not-training"]),
        pytest.param(COMMAND, ["first", "not-training", "hub"], marks=pytest.mark.slow),
        pytest.param(f"{COMMAND} --relation replace", ["first", "hub"], marks=pytest.mark.slow),
    ],
)
def test_default_training_with_hops_is_equal_on_neighbours(words, pair_types):
    given = with_long_lists(tables())
    relation = Replace() if "replace" in words else AddRemove()
    case = Case(tuple(words.split()), given, relation)
    outcomes = audit_pipeline(case, main, pair_types=pair_types)
    assert findings(outcomes) == []
    assert all(released_in(outcome) == WHOLE for outcome in outcomes)
    moved = {
        outcome.pair_type: {one.name for one in outcome.releases if one.observed > 0.5}
        for outcome in outcomes
    }
    assert "hop 1" in moved["first"]
    if "not-training" in moved:
        assert moved["not-training"] == {"hop 2"}


def test_default_training_on_short_lists_releases_no_hop():
    given = tables()
    (outcome,) = outcomes_of(QUICK, replace(given, edges=given.edges[:30]), "first")
    assert findings([outcome]) == []
    assert released_in(outcome) == {"mean out-degree", "classifier"}


def test_the_number_that_decides_is_held_to_its_charge(monkeypatch):
    """A tenth of the noise, said as such to nobody but the observer of releases."""
    original = node_level.noisy_mean_degree

    def louder(lengths, *, epsilon, **options):
        return original(lengths, epsilon=10 * epsilon, **options)

    monkeypatch.setattr(node_level, "noisy_mean_degree", louder)
    found = findings(outcomes_of(QUICK, tables(), "first"))
    assert any("mean out-degree: its noise multiplier" in text for text in found), found


def test_a_second_hop_with_other_noise_than_was_charged_is_found(monkeypatch):
    original = PrivateSession._aggregations

    def quieter(self, plan, name, *args):
        made = original(self, plan, name, *args)
        for one in made if name == OF_OTHERS else ():
            one.noise_multiplier /= 2
        return made

    monkeypatch.setattr(PrivateSession, "_aggregations", quieter)
    found = findings(outcomes_of(QUICK, with_long_lists(tables()), "not-training"))
    assert any("hop 2: its noise multiplier" in text for text in found), found


class Answering:
    """Observes releases, and answers for the mean out-degree."""

    def __init__(self, doublings: float, people: int) -> None:
        self._sum = torch.tensor([doublings * people], dtype=torch.float64)
        self.names: list[str] = []

    def begin(self, *args, **options):
        pass

    def release(self, release, output):
        self.names.append(release.name)
        return self._sum if release.name == "mean out-degree" else output

    def batch(self, phase, batch, members):
        return batch


@pytest.mark.parametrize(("doublings", "has_hops"), [(0.0, False), (10.0, True)])
def test_the_released_mean_out_degree_decides_and_the_exact_one_does_not(doublings, has_hops):
    graph = random_split(social_graph(num_nodes=300, mean_degree=12, num_classes=3), seed=0)
    observer = Answering(doublings, 230)
    with observed_by(observer):
        model = NodeLabelGAP(epsilon=8.0, epochs=1).fit(graph)
    assert ("hop 1" in observer.names) == has_hops
    assert bool(model.card_.edges_unread) != has_hops


def test_noise_on_the_number_that_decides_is_drawn_once_for_all_repeats(monkeypatch):
    drawn = []
    original = NoiseSource.add_laplace

    def counted(self, values, scale, *path):
        drawn.append(path)
        return original(self, values, scale, *path)

    monkeypatch.setattr(NoiseSource, "add_laplace", counted)
    graph = random_split(social_graph(num_nodes=200, mean_degree=8, num_classes=3), seed=0)
    NodeLabelGAP(epsilon=8.0, epochs=1, repeats=2).fit(graph)
    assert drawn == [(NOISE_PATH,)]


def test_the_mean_is_over_the_public_number_of_people_and_not_the_exact_one(monkeypatch):
    counts = []
    original = node_level.noisy_mean_degree

    def noted(lengths, *, num_people, **options):
        counts.append((len(lengths), num_people))
        return original(lengths, num_people=num_people, **options)

    monkeypatch.setattr(node_level, "noisy_mean_degree", noted)
    graph = random_split(social_graph(num_nodes=200, mean_degree=8, num_classes=3), seed=0)
    exact = int(graph.train_mask.sum())
    NodeLabelGAP(epsilon=8.0, epochs=1, train_size=exact + 9).fit(graph)
    assert counts == [(exact, exact + 9)]
