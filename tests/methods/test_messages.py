"""What travels along the edges, and that none of it costs more than the relation says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from gapcases import forbid, small_classifier
from hypothesis import given
from hypothesis import strategies as st
from methodgraphs import cut_in_two, small_graph, with_arcs
from suited import suited

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, NodeLabelGAP, ProGAP
from gapgnn.errors import InputError
from gapgnn.graph.transforms import random_split
from gapgnn.methods import Shape
from gapgnn.methods.label_gap.budget import hop_share, mean_degree_epsilon
from gapgnn.methods.label_gap.codes import class_codes, mean_codes
from gapgnn.methods.label_gap.regression import StageRegression, regression_of
from gapgnn.methods.label_gap.stages import MEMBERS, Stages, label_messages
from gapgnn.privacy import session as session_module
from gapgnn.training import Criterion, CrossFit, RowScale, Trainer

WAYS = [
    *((GAP, level, {}) for level in GAP.levels),
    *((ProGAP, level, {"hops": 2}) for level in ProGAP.levels),
    *((LabelGAP, level, {}) for level in LabelGAP.levels),
    (LabelGAP, "edge", {"folds": 0}),
    (LabelGAP, "edge", {"encoder_layers": 0}),
    # Too small a budget for a hop, however long lists are said to be.
    (NodeLabelGAP, "node", {"epsilon": 0.5}),
]


def quick(method, level: str, **more):
    batch = {"batch_size": 50} if level == "node" else {}
    shared = {"epochs": 2, "epsilon": 4.0, "hidden": 8, **batch}
    return suited(method, shared, level=level, **more)


def by_labels(level: str, **more):
    """Return a quick method that sends class codes."""
    return quick(NodeLabelGAP if level == "node" else LabelGAP, level, **more)


def stages_of(num_classes: int, network) -> Stages:
    """Return one stage of a cross-fitted model."""
    crossfit = CrossFit(np.zeros(0, dtype=np.int64), 4)
    regression = StageRegression.of_pool(1, num_classes - 1, num_classes)
    modules = {"classifier": network, regression_of("classifier"): regression}
    return Stages(1, modules, num_classes, crossfit=crossfit)


@pytest.fixture(scope="module")
def graph():
    return small_graph()


@pytest.mark.parametrize("classes", range(2, 12))
def test_class_codes_are_unit_vectors_equally_far_apart(classes):
    codes = class_codes(classes).double()
    assert codes.shape == (classes, classes - 1)
    distances = [
        float((codes[i] - codes[j]).norm()) for i, j in itertools.combinations(range(classes), 2)
    ]
    np.testing.assert_allclose(codes.norm(dim=1), 1, atol=1e-6)
    np.testing.assert_allclose(distances, np.sqrt(2 * classes / (classes - 1)), atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 9), scale=st.floats(0.01, 100))
def test_no_message_is_longer_than_one(seed, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, classes, (20,), generator=generator)
    sends = torch.rand(2, 20, generator=generator) < 0.5
    scores = torch.randn(2, 20, classes, generator=generator) * scale
    sent = label_messages(labels, sends & (labels >= 0), class_codes(classes), mean_codes(scores))
    assert float(sent.norm(dim=-1).max()) <= 1 + 1e-6


def test_a_node_without_a_training_label_never_sends_its_label(graph):
    """Labels of validation and test nodes are there, and must not travel."""
    labels = torch.tensor(graph.labels)
    sends = torch.tensor(graph.train_mask).unsqueeze(0)
    sent = label_messages(labels, sends, class_codes(graph.num_classes), None)
    assert not sent[0, ~torch.tensor(graph.train_mask)].any()
    changed = torch.where(torch.tensor(graph.train_mask), labels, (labels + 1) % graph.num_classes)
    guesses = mean_codes(torch.randn(1, graph.num_nodes, graph.num_classes))
    before = label_messages(labels, sends, class_codes(graph.num_classes), guesses)
    after = label_messages(changed, sends, class_codes(graph.num_classes), guesses)
    assert torch.equal(before, after)


@pytest.mark.parametrize(("method", "level", "options"), WAYS)
def test_every_method_trains_predicts_and_charges_what_ran(method, level, options, graph, ledger):
    model = quick(method, level, ledger=ledger.path, **options).fit(graph)
    first, second = model.predict_proba(graph), model.predict_proba(graph)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first.sum(axis=1), 1, atol=1e-5)
    assert len(ledger.entries()) == (0 if level == "none" else 1)
    if level != "none":
        hops = sum(e["count"] for e in model.card_.events if e["event"] == "Gaussian")
        phases = [e["label"] for e in model.card_.events if e["event"] == "PoissonGaussian"]
        wanted = {GAP: 2, ProGAP: 2, LabelGAP: 4, NodeLabelGAP: 0}
        assert hops == wanted[method]
        assert phases == (list(model.modules_) if level == "node" else [])


@pytest.mark.parametrize("level", ["edge", "node"])
def test_prediction_reads_no_edge(level, graph, monkeypatch):
    model = by_labels(level).fit(graph)
    expected = model.predict(graph)
    forbid(monkeypatch, session_module, "hop_mechanisms")
    np.testing.assert_array_equal(model.predict(graph), expected)


@pytest.mark.parametrize("level", ["edge", "node"])
def test_test_and_validation_labels_do_not_reach_the_released_hops(level, graph):
    """At every stage: a label that travelled would have to be charged, or be a leak."""
    others = ~graph.train_mask
    labels = np.where(others, (graph.labels + 1) % graph.num_classes, graph.labels)
    # Validation labels choose the epoch at edge level, so there they stay as they are.
    if level == "edge":
        labels = np.where(graph.val_mask, graph.labels, labels)
    seeds = {"insecure_noise_seed": 1, "epochs": 3}
    first = by_labels(level, **seeds).fit(graph).releases_.training().hops
    second = by_labels(level, **seeds).fit(graph._replace(labels=labels)).releases_.training().hops
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_nodes_without_a_training_label_send_feature_predictions_in_the_first_hop(
    graph, monkeypatch
):
    sent = []
    real = Stages._messages

    def rows(self, hop, features, first, released, labels, sends_label):
        found = real(self, hop, features, first, released, labels, sends_label)
        sent.append((hop, first, found, sends_label))
        return found

    monkeypatch.setattr(Stages, "_messages", rows)
    by_labels("edge").fit(graph)
    hop, first, found, sends = sent[0]
    assert hop == 1
    others = ~sends[0]
    torch.testing.assert_close(found[0, others], mean_codes(first)[0, others])
    codes = class_codes(graph.num_classes)[torch.tensor(graph.labels)]
    torch.testing.assert_close(found[0, sends[0]], codes[sends[0]])


def test_a_stage_adds_to_feature_predictions():
    """A network that has learned nothing from the edges repeats the feature model."""
    first = torch.log_softmax(torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)), -1)
    network = small_classifier(2, [3, 4], 3, hidden=4, corrects_first=True)
    hops = [first, torch.ones(2, 5, 4)]
    assert torch.equal(network(hops), first)
    learned = torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        network.head.linears[0].bias += learned
    torch.testing.assert_close(network(hops), first + learned)


class TestMixingWeight:
    """Ignoring the graph is one of the answers, so that it cannot do harm."""

    def stages(self, graph, scores):
        classes = graph.num_classes
        network = small_classifier(
            MEMBERS, [classes, classes], classes, hidden=4, corrects_first=True
        )
        network.forward = lambda hops: scores.expand(MEMBERS, -1, -1)
        return stages_of(graph.num_classes, network)

    @pytest.mark.parametrize(("is_right", "weight"), [(True, 1.0), (False, 0.0)])
    def test_a_stage_that_knows_less_than_features_has_no_weight(self, is_right, weight, graph):
        labels = torch.tensor(graph.labels)
        right = torch.nn.functional.one_hot(labels, graph.num_classes).float() * 4
        wrong = right.roll(1, dims=-1)
        scores, other = (right, wrong) if is_right else (wrong, right)
        first = torch.log_softmax(other, dim=-1).unsqueeze(0)
        stages = self.stages(graph, scores)
        released = [torch.zeros(1, graph.num_nodes, graph.num_classes - 1)]
        validates = torch.tensor(graph.val_mask).unsqueeze(0)
        stages.weigh("classifier", first, released, labels, validates)
        assert stages.modules["classifier"].mixing_weight.tolist() == [weight] * MEMBERS
        said = stages.scores("classifier", first, released)
        expected = torch.log_softmax(scores if is_right else other, dim=-1)
        torch.testing.assert_close(said[0], expected, atol=1e-5, rtol=1e-5)

    def test_it_follows_the_metric_that_is_named(self, graph):
        labels = (torch.tensor(graph.labels) == 0).long()
        count = len(labels)
        # The stage puts the class first, but says of everybody that it is likely: features alone
        # have the least loss, and of the shares that put the class first the half has.
        likely = torch.where(labels == 1, 9.0, 6.0)
        scores = torch.stack([torch.zeros(count), likely], dim=-1)
        first = torch.log_softmax(torch.tensor([[1.0, 0.0]]).expand(count, -1), dim=-1)[None]
        released = [torch.zeros(1, count, 1)]
        validates = torch.tensor(graph.val_mask)[None]
        for criterion, expected in ((None, 0.0), (Criterion("average_precision", 1), 0.5)):
            network = small_classifier(MEMBERS, [2, 2], 2, hidden=4, corrects_first=True)
            network.forward = lambda hops: scores.expand(MEMBERS, -1, -1)
            stages_of(2, network).weigh("classifier", first, released, labels, validates, criterion)
            assert network.mixing_weight.tolist() == [expected] * MEMBERS

    def test_only_validation_labels_decide(self, graph):
        labels = torch.tensor(graph.labels)
        right = torch.nn.functional.one_hot(labels, graph.num_classes).float() * 4
        first = torch.log_softmax(right, dim=-1).unsqueeze(0)
        val = torch.tensor(graph.val_mask)
        # Right where nobody looks, wrong on the validation nodes.
        scores = torch.where(val.unsqueeze(-1), right.roll(1, dims=-1), right)
        stages = self.stages(graph, scores)
        released = [torch.zeros(1, graph.num_nodes, graph.num_classes - 1)]
        stages.weigh("classifier", first, released, labels, val.unsqueeze(0))
        assert stages.modules["classifier"].mixing_weight.tolist() == [0.0] * MEMBERS

    def test_it_is_saved_and_loaded(self, graph, tmp_path, ledger):
        model = by_labels("edge", hops=2, ledger=ledger.path).fit(graph)
        model.modules_["classifier"].mixing_weight.fill_(0.0)
        model.save(tmp_path / "model")
        alone = torch.softmax(model.releases_.training().hops[0].double(), dim=-1)
        loaded = LabelGAP.load(tmp_path / "model", ledger=ledger.path)
        np.testing.assert_allclose(loaded.predict_proba(graph), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "is_directed", "both"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"level": "none"}, True, True),
        ({"directions": "along"}, True, False),
        ({"relation": "undirected"}, True, False),
        ({"relation": "undirected", "directions": "both"}, True, True),
        ({"folds": 0}, True, False),
    ],
)
def test_messages_are_symmetrised_where_that_is_said(options, is_directed, both, graph):
    arcs = graph.adjacency().tocoo()
    given_graph = with_arcs(graph, arcs.row < arcs.col, directed=True) if is_directed else graph
    (hops,) = LabelGAP(**options).plan_for(given_graph).hops.values()
    assert hops.is_symmetrised == both


@pytest.mark.parametrize("method", [GAP, ProGAP, NodeLabelGAP])
def test_other_methods_send_along_arcs(method, graph):
    arcs = graph.adjacency().tocoo()
    directed = with_arcs(graph, arcs.row < arcs.col, directed=True)
    for level in method.levels:
        plan = method(level=level).plan_for(directed)
        assert not any(hops.is_symmetrised for hops in plan.hops.values())


def test_the_card_says_that_messages_were_symmetrised(graph, ledger):
    arcs = graph.adjacency().tocoo()
    directed = with_arcs(graph, arcs.row < arcs.col, directed=True)
    both = by_labels("edge", hops=2, ledger=ledger.path).fit(directed).card_
    assert "against it" in both.messages
    assert "node to itself are left out" in both.messages
    along = by_labels("edge", hops=2, directions="along", ledger=ledger.path).fit(directed).card_
    assert "against it" not in along.messages


def planned(model, graph) -> dict[str, tuple[int, int | None, bool]]:
    """Return number, degree bound and normalisation of the planned hops."""
    plan = model.plan_for(graph)
    plan = plan.options[-1] if plan.options else plan
    return {
        name: (hops.count, hops.max_degree, hops.is_normalised) for name, hops in plan.hops.items()
    }


def test_defaults_follow_method_and_level(graph):
    """A person's whole contribution has norm 1 in NodeLabelGAP; lists are cut in the others."""
    assert planned(LabelGAP(), graph) == {"aggregation": (4, None, False)}
    assert planned(GAP(), graph) == {"aggregation": (2, None, False)}
    assert planned(ProGAP(), graph) == {"aggregation": (5, None, False)}
    assert planned(GAP(level="node"), graph) == {"aggregation": (2, 100, False)}
    assert planned(ProGAP(level="node"), graph) == {"aggregation": (4, 100, False)}
    assert planned(GAP(level="node", max_degree=7), graph) == {"aggregation": (2, 7, False)}
    assert list(planned(NodeLabelGAP(), graph).values()) == [(1, None, True)] * 2
    assert list(planned(NodeLabelGAP(own="record"), graph).values()) == [(1, None, True)]
    assert planned(GraphSAGE(level="node"), graph) == {"aggregation": (1, 1, False)}
    assert planned(MLP(level="node"), graph) == {}


def ratios(model, graph) -> dict[str, float]:
    """Return the noise multipliers of a plan relative to that of its classifier."""
    events = {event.label: event.noise_multiplier for event in model.plan_for(graph).template}
    return {name: value / events["classifier"] for name, value in events.items()}


def test_noise_ratios_follow_method_and_budget(graph):
    even = {"encoder": 1.0, "aggregation": 1.0, "classifier": 1.0}
    assert ratios(GAP(level="node"), graph) == even
    found = ratios(ProGAP(level="node", epsilon=8.0, hops=2), graph)
    assert found == {**even, "stage1": 1.0, "aggregation": pytest.approx(0.5)}


def test_progap_takes_smaller_steps_where_they_are_a_part_of_the_graph():
    stages = ProGAP()
    large, small = stages.recipe(11_530), stages.recipe(2_000)
    assert (large.nodes, large.epochs) == (2_048, 150)
    assert (small.nodes, small.epochs) == (None, 100)
    chosen = ProGAP(epochs=7)
    assert [chosen.recipe(size).epochs for size in (11_530, 2_000)] == [7, 7]
    batches = ProGAP(batch_size=64)
    found = [batches.recipe(size) for size in (11_530, 2_000)]
    assert [(one.batch_size, one.nodes, one.epochs) for one in found] == [
        (None, 64, 150),
        (None, 64, 100),
    ]


def test_gap_keeps_the_settings_of_the_paper(graph):
    paper = GAP(level="node")
    recipe = paper.recipe(11_530)
    assert (recipe.batch_size, recipe.epochs) == (256, 10)
    encoder = paper.networks(paper.plan_for(graph).settings, Shape(1, 30, 6))["encoder"]
    widths = {tuple(p.shape[1:]) for p in encoder.parameters()}
    assert {(30, 16), (16, 16), (16, 6)} <= widths


def test_progap_at_node_level_is_trained_on_larger_batches_but_not_on_a_few():
    stages = ProGAP(level="node")
    assert (stages.recipe(11_530).batch_size, stages.recipe(11_530).epochs) == (512, 10)
    assert stages.recipe(1_200).batch_size == 300
    named = ProGAP(level="node", batch_size=64, epochs=3).recipe(4_000)
    assert (named.batch_size, named.epochs) == (64, 3)


@pytest.mark.parametrize("method", [NodeLabelGAP, MLP])
def test_at_node_level_there_are_as_many_steps_on_any_graph(method):
    counts = (1_000, 10_000, 100_000)
    recipes = [method(level="node").recipe(count) for count in counts]
    # At most half of the people, at least 6 %.
    assert [recipe.batch_size for recipe in recipes] == [500, 1_024, 6_000]
    for recipe, count in zip(recipes, counts, strict=True):
        assert recipe.schedule(count).steps == 225
    named = method(level="node", batch_size=50, epochs=3).recipe(1_000)
    assert (named.batch_size, named.schedule(1_000).steps) == (50, 60)


@pytest.mark.parametrize(
    ("method", "options", "wanted"),
    [
        (MLP, {"epsilon": 16.0}, 0.005),
        (MLP, {"epsilon": 16.0, "relation": "replace"}, 0.01 * 0.5**0.5),
        (MLP, {"epsilon": 4.0}, 0.01),
        (MLP, {"epsilon": 16.0, "train_size": 10_000}, 0.01),
        (MLP, {"epsilon": 16.0, "learning_rate": 0.02}, 0.02),
        (NodeLabelGAP, {"epsilon": 16.0}, 0.005),
        (NodeLabelGAP, {"epsilon": 16.0, "own": "record"}, 0.01),
        (GAP, {"epsilon": 16.0}, 0.01),
    ],
)
def test_few_people_are_learned_from_by_smaller_steps_of_an_ample_budget(
    method, options, wanted, graph, monkeypatch
):
    steps, fit = [], Trainer.fit

    def watched(trainer, *arguments, **more):
        steps.append(trainer.recipe.learning_rate)
        fit(trainer, *arguments, **more)

    monkeypatch.setattr(Trainer, "fit", watched)
    method(**{"level": "node", "epochs": 1, "batch_size": 50, **options}).fit(graph)
    assert set(steps) == {wanted}


@pytest.mark.gate
def test_rows_read_beside_hops_stay_long_whatever_the_budget(graph):
    many = {"level": "node", "epochs": 1, "batch_size": 50, "epsilon": 16.0, "train_size": 10_000}

    def scale(model):
        return model.fit(graph).plan_.settings.row_scale

    assert scale(MLP(**many)) == RowScale(5.0, few=16.0)
    assert scale(MLP(**many, relation="replace")) == RowScale(6.0)
    assert scale(NodeLabelGAP(**many, hop_share=0.5)) == RowScale(6.0)


def test_the_mean_out_degree_costs_less_the_more_people_are_counted():
    assert [mean_degree_epsilon(2.0, count) for count in (100, 7_150, 14_300, 143_000)] == [
        *(0.02, 0.02, 0.01, 0.001)
    ]


def test_a_hop_that_has_more_classes_to_tell_apart_needs_a_larger_budget():
    def share(epsilon: float, classes: int) -> float:
        facts = {"num_train": 10_000, "num_features": 767, "num_classes": classes}
        return hop_share(epsilon, 19.0, **facts)

    assert [share(epsilon, 10) for epsilon in (1.0, 4.0, 8.0, 16.0)] == [0.0, 0.0, 0.75, 0.9]
    assert [share(epsilon, 2) for epsilon in (0.5, 1.0, 4.0)] == [0.0, 0.75, 0.9]


def test_an_unread_graph_needs_labels_at_node_level(graph):
    first, second = cut_in_two(graph, seed=0)
    first = random_split(first, seed=0)
    model = by_labels("node", hop_share=0.5).fit(first)
    nobody = np.zeros(second.num_nodes, dtype=bool)
    with pytest.raises(InputError, match="must have training labels"):
        model.predict(second.with_masks(nobody, nobody, nobody))
    assert len(model.predict(random_split(second, seed=0))) == second.num_nodes


def test_a_nodes_own_label_does_not_come_back_to_it():
    """The gap between training and test accuracy is no wider than that of features alone.

    If a node's own label reached it through its neighbours, training accuracy would be near 1.
    """
    graph = small_graph(num_nodes=1000)
    labels = graph.labels

    def gap_between(model) -> float:
        right = model.predict(graph) == labels
        return float(right[graph.train_mask].mean() - right[graph.test_mask].mean())

    shared = {"level": "none", "seed": 1}
    features_only = gap_between(MLP(**shared).fit(graph))
    in_stages = gap_between(LabelGAP(**shared).fit(graph))
    assert in_stages <= features_only + 0.02
