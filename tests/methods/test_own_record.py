"""LabelGAP with ``own="record"``: the own person's exact list, and nobody else's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from methodgraphs import small_graph, with_arcs
from suited import decided, suited

from gapgnn import GAP, MLP, Graph, GraphSAGE, LabelGAP, Ledger, NodeLabelGAP, load_model
from gapgnn.errors import InputError
from gapgnn.graph import join_edge_types
from gapgnn.methods import exact_sums
from gapgnn.methods.label_gap import own_neighbours, own_record
from gapgnn.methods.label_gap.codes import class_counts
from gapgnn.methods.label_gap.own_neighbours import vote_weights
from gapgnn.methods.label_gap.own_record import are_alike
from gapgnn.methods.label_gap.stages import Stages
from gapgnn.privacy import observed_by
from gapgnn.training import FeatureInputs

QUICK = {"level": "edge", "epochs": 3, "epsilon": 1.0, "hops": 2}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph()


@pytest.fixture(scope="module")
def model(graph) -> LabelGAP:
    return LabelGAP(**QUICK).fit(graph)


def neighbour(graph: Graph, place: int) -> tuple[Graph, set[int]]:
    """Return the graph without one link, and whose it was."""
    arcs = graph.adjacency().tocoo()
    u, v = int(arcs.row[place]), int(arcs.col[place])
    is_link = ((arcs.row == u) & (arcs.col == v)) | ((arcs.row == v) & (arcs.col == u))
    return with_arcs(graph, ~is_link), {u, v}


def answered_as(model: LabelGAP, graph: Graph) -> np.ndarray:
    """Return the probabilities on a neighbour, given the release that was made."""
    model.releases_._release_of[graph.fingerprint] = next(iter(model.releases_.hops))
    return model.predict_proba(graph, own="record")


def moved_by(model: LabelGAP, graph: Graph, smaller: Graph) -> set[int]:
    before, after = model.predict_proba(graph, own="record"), answered_as(model, smaller)
    return set(np.flatnonzero((before != after).any(axis=1)).tolist())


@pytest.mark.parametrize("place", [0, 1234, -1])
def test_a_link_changes_nobodys_answer_but_those_of_the_two(place, graph, model):
    smaller, people = neighbour(graph, place)
    assert moved_by(model, graph, smaller) == people


def test_messages_recomputed_from_exact_rows_would_be_seen(graph, model, monkeypatch):
    """Planted: what friends send is computed from their lists, and not from what was released."""

    lists = {"read": graph}

    def leaky(self, features, labels, sends_label, released):
        first, sent, exact = self.hop_zero(features, sends_label), [], []
        for hop in range(1, self.hops + 1):
            sent.append(self._messages(hop, features, first, exact, labels, sends_label))
            exact.append(exact_sums(lists["read"], sent[-1][0], arriving=True).unsqueeze(0))
        return sent

    monkeypatch.setattr(Stages, "messages", leaky)
    # What friends send says nothing of their lists where their networks are not mixed.
    model = copy.deepcopy(model)
    for network in (model.modules_["stage1"], model.modules_["classifier"]):
        network.mixing_weight.fill_(1.0)
    # Whoever trains sends the own label, whatever the list is.
    place = int(np.flatnonzero(~graph.train_mask[graph.adjacency().tocoo().row])[0])
    smaller, people = neighbour(graph, place)
    before = model.predict_proba(graph, own="record")
    lists["read"] = smaller
    after = answered_as(model, smaller)
    assert set(np.flatnonzero((before != after).any(axis=1)).tolist()) > people


def test_nothing_is_charged_or_kept(graph, model, tmp_path):
    before, releases = len(Ledger().entries()), list(model.releases_.hops)
    record_answers = model.predict_proba(graph, own="record")
    assert len(Ledger().entries()) == before
    assert list(model.releases_.hops) == releases
    assert not np.array_equal(record_answers, model.predict_proba(graph))
    np.testing.assert_array_equal(
        model.predict_proba(graph, own="features"), model.predict_proba(graph)
    )
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(graph, own="record"), record_answers)


def test_a_friend_without_noise_says_more(graph, model):
    scores = (decided(model, graph, own="record") == graph.labels)[graph.test_mask].mean()
    assert scores > (decided(model, graph) == graph.labels)[graph.test_mask].mean() + 0.05


def test_the_rule_is_chosen_by_released_rows_and_labels_alone(graph, model):
    released = list(model.releases_.training().hops[1:])
    labels, train = torch.tensor(graph.labels), torch.tensor(graph.train_mask)
    assert are_alike(released, labels, train, graph.num_classes)
    unlike = [-hop for hop in released]
    assert not are_alike(unlike, labels, train, graph.num_classes)


def test_where_friends_are_not_alike_the_networks_answer_alone(graph, model, monkeypatch):
    monkeypatch.setattr(own_record, "are_alike", lambda *given: False)
    alone = model.predict_proba(graph, own="record")
    monkeypatch.setattr(own_neighbours, "ODDS", 100.0)
    np.testing.assert_array_equal(model.predict_proba(graph, own="record"), alone)


@pytest.mark.parametrize("types", ["any", "each"])
def test_links_of_several_types_are_read_with_or_without_their_total(types, graph):
    arcs = graph.adjacency().tocoo()
    is_first = (arcs.row + arcs.col) % 2 == 0
    parts = {"calls": with_arcs(graph, is_first), "visits": with_arcs(graph, ~is_first)}
    both = join_edge_types(parts)
    model = LabelGAP(**QUICK, edge_types=types).fit(both)
    for name in parts:
        smaller, people = neighbour(parts[name], 77)
        assert moved_by(model, both, join_edge_types({**parts, name: smaller})) == people
    scores = (decided(model, both, own="record") == both.labels)[both.test_mask].mean()
    assert scores > (decided(model, both) == both.labels)[both.test_mask].mean() + 0.05


@pytest.mark.parametrize("directions", ["auto", "along"])
def test_directed_graphs_read_what_their_hops_do(directions, graph):
    arcs = graph.adjacency().tocoo()
    first = with_arcs(graph, arcs.row < arcs.col, directed=True)
    model = LabelGAP(**QUICK, directions=directions).fit(first)
    arcs = first.adjacency().tocoo()
    smaller = with_arcs(first, np.arange(len(arcs.row)) != 55, directed=True)
    people = {int(arcs.col[55])} | ({int(arcs.row[55])} if directions == "auto" else set())
    assert moved_by(model, first, smaller) == people


@pytest.mark.parametrize("directions", [None, "both"])
def test_all_neighbours_of_all_types_vote_with_their_last_message(directions, graph, monkeypatch):
    """And each vote counts less the more of them there are, over all types and both directions."""
    arcs = graph.adjacency().tocoo()
    is_first, is_directed = (arcs.row + arcs.col) % 4 == 0, directions is not None
    kept = arcs.row < arcs.col if is_directed else np.ones(len(arcs.row), dtype=bool)
    both = join_edge_types(
        {
            "calls": with_arcs(graph, is_first & kept, directed=is_directed),
            "visits": with_arcs(graph, ~is_first & kept, directed=is_directed),
        }
    )
    options = {} if directions is None else {"directions": directions}
    model = LabelGAP(**QUICK, **options).fit(both)
    released = [hop.unsqueeze(0) for hop in model.releases_.training().hops[1:]]
    stages = model._stages(both)
    with torch.no_grad():
        found = model._own_neighbours(stages, both, released).scores()
        monkeypatch.setattr(own_neighbours, "ODDS", 1.0)
        alone = model._own_neighbours(stages, both, released).scores()
    monkeypatch.undo()
    labels, train = torch.tensor(both.labels), torch.tensor(both.train_mask).unsqueeze(0)
    features = FeatureInputs(both, torch.device("cpu"))
    with torch.no_grad():
        sent = stages.messages(features, labels, train, released)[-1][0]
    # Without directions, and where both count, a node reads all its edges of the whole graph.
    lists = graph.adjacency()
    total = torch.from_numpy(lists @ sent.numpy())
    weights = vote_weights(torch.from_numpy(np.diff(lists.indptr)).unsqueeze(-1).float())
    wanted = weights * class_counts(total, stages.prior)
    assert wanted.abs().max() > 1
    torch.testing.assert_close(found - alone, wanted, atol=1e-3, rtol=0)


class Scales:
    """Notes the noise of every hop."""

    def __init__(self):
        self.seen: set[float] = set()

    def begin(self, *args, **about):
        pass

    def batch(self, phase, batch, members):
        return batch

    def release(self, release, output):
        if release.name.startswith("hop "):
            self.seen.add(release.scale)
        return output


@pytest.mark.parametrize("directions", [None, "along", "both"])
def test_exact_sums_are_read_in_units_of_the_noise_of_the_released_rows(directions, graph):
    """Networks that learned from noisy rows read exact ones in their place."""
    options = {**QUICK, "hops": 1, "epochs": 1}
    if directions is not None:
        arcs = graph.adjacency().tocoo()
        graph = with_arcs(graph, arcs.row < arcs.col, directed=True)
        options["directions"] = directions
    scales = Scales()
    with observed_by(scales):
        model = LabelGAP(**options).fit(graph)
    (scale,) = scales.seen
    assert model._own_neighbours(model._stages(graph), graph, ()).std == pytest.approx(scale)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (NodeLabelGAP, {"level": "node", "batch_size": 50}),
        (LabelGAP, {"level": "none"}),
        (GAP, {"level": "edge"}),
        (MLP, {"level": "edge"}),
        (GraphSAGE, {"level": "edge"}),
    ],
)
def test_it_is_refused_where_it_is_chosen_elsewhere_or_nothing_is_kept(method, options, graph):
    fitted = suited(method, {"epochs": 2, "epsilon": 4.0}, **options).fit(graph)
    with pytest.raises(InputError, match="`own` must be"):
        fitted.predict(graph, own="record")


def test_without_lists_or_labels_there_is_nothing_to_read(graph, model):
    with pytest.raises(InputError, match="reads adjacency lists"):
        model.predict(own="record")
    nobody = np.zeros(graph.num_nodes, dtype=bool)
    with pytest.raises(InputError, match="training labels"):
        decided(model, graph.with_masks(nobody, nobody, nobody), own="record")


def test_exact_sums_decide_no_rule_for_everybody(graph, model):
    """Others' lists are rewired against the classes: whoever they do not list reads the same.

    On the product's own path: given the release, whether friends are alike is asked of it alone.
    """
    arcs = graph.adjacency().tocoo()
    bystanders = np.arange(graph.num_nodes) % 10 == 0
    kept = bystanders[arcs.row] | bystanders[arcs.col]
    others = np.flatnonzero(~bystanders)
    order = others[np.argsort(graph.labels[others], kind="stable")]
    # Everybody in this order, with those a third further on, who have another class.
    further = np.roll(order, len(order) // graph.num_classes)
    friends = [np.roll(further, shift) for shift in range(8)]
    rows = np.concatenate([arcs.row[kept], *[order] * len(friends)])
    columns = np.concatenate([arcs.col[kept], *friends])
    facts = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    rewired = Graph.from_arcs(
        rows,
        columns,
        num_nodes=graph.num_nodes,
        label_names=graph.label_names,
        name=graph.name,
        **{key: getattr(graph, key) for key in facts},
    )
    assert (graph.labels[rows] == graph.labels[columns]).mean() < 0.5
    before = model.predict_proba(graph, own="record")
    after = answered_as(copy.deepcopy(model), rewired)
    np.testing.assert_array_equal(after[bystanders], before[bystanders])
    assert not np.array_equal(after, before)
