"""Figures that tell: each agrees with scikit-learn, and a useless model is called one."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methodgraphs import small_graph
from sklearn import metrics as oracle
from suited import decided

from gapgnn import MLP, Graph, GraphSAGE, LabelGAP, NodeLabelGAP
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph.tables import Schema
from gapgnn.graph.tables.schema import Label
from gapgnn.training import (
    METRICS,
    TOP_SHARES,
    Criterion,
    Metrics,
    best_threshold,
    class_weights,
    mean_metrics,
    measure,
    shortcomings,
)
from gapgnn.training.criterion import LOSS_SHARE
from gapgnn.training.full_batch import BestEpoch
from gapgnn.training.metrics import calibration_error, rank

QUICK = {"epochs": 3, "epsilon": 4.0}
FREE = {"epochs": 3}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(2, 60),
    classes=st.integers(2, 5),
    digits=st.sampled_from([1, 6]),
)
def test_every_figure_is_the_one_of_scikit_learn(seed, nodes, classes, digits):
    rng = np.random.default_rng(seed)
    # Few digits make ties, which the area under the curve must count by half.
    probabilities = np.round(rng.dirichlet(np.ones(classes), nodes), digits)
    labels, answers = rng.integers(0, classes, nodes), probabilities.argmax(axis=1)
    found = measure(probabilities, answers, labels)
    assert found.accuracy == pytest.approx(oracle.accuracy_score(labels, answers))
    recalls = oracle.recall_score(labels, answers, average=None, labels=np.unique(labels))
    assert found.balanced_accuracy == pytest.approx(recalls.mean())
    assert found.macro_f1 == pytest.approx(
        oracle.f1_score(labels, answers, average="macro", zero_division=0)
    )
    assert found.majority == np.bincount(labels).max() / nodes
    areas = [
        oracle.roc_auc_score(labels == k, probabilities[:, k])
        for k in (range(classes) if classes > 2 else [1])
        if 0 < (labels == k).sum() < nodes
    ]
    assert found.auc == (pytest.approx(np.mean(areas)) if areas else None)
    precision = oracle.precision_score(
        labels, answers, average=None, labels=range(classes), zero_division=0
    )
    for k, figures in enumerate(found.per_class.values()):
        assert figures.support == (labels == k).sum()
        assert (figures.precision or 0) == pytest.approx(precision[k])


def test_probabilities_that_mean_what_they_say_have_no_calibration_error():
    labels = np.array([1] * 7 + [0] * 3)
    honest, boasting = np.array([[0.3, 0.7]] * 10), np.array([[0.01, 0.99]] * 10)
    answers = np.ones(10, dtype=int)
    assert calibration_error(honest, answers, labels) == 0
    assert calibration_error(boasting, answers, labels) == pytest.approx(0.29)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), nodes=st.integers(2, 40))
def test_no_other_threshold_has_a_better_balanced_accuracy(seed, nodes):
    rng = np.random.default_rng(seed)
    probabilities, members = np.round(rng.random(nodes), 1), rng.random(nodes) < 0.3
    if members.all() or not members.any() or len(set(probabilities)) == 1:
        assert best_threshold(probabilities, members) == 0.5
        return

    def balanced(line: float) -> float:
        return (
            (probabilities >= line)[members].mean() + (probabilities < line)[~members].mean()
        ) / 2

    most = max(balanced(line) for line in np.arange(0.05, 1.0, 0.1))
    # Where no line is better than one answer for everybody, there is nothing to choose.
    if most > 0.5 + 1e-9:
        assert balanced(best_threshold(probabilities, members)) >= most - 1e-9


class TestShortcomings:
    labels = np.array([0] * 90 + [1] * 10)

    def figures(self, answers, probabilities=None):
        probabilities = np.eye(2)[answers] if probabilities is None else probabilities
        return measure(probabilities, answers, self.labels, ["low", "high"])

    def test_a_model_that_only_answers_the_largest_class_is_reported(self):
        found = shortcomings([self.figures(np.zeros(100, dtype=int))])
        assert "always answering 'low', which is right for 90.0%" in found[0]
        assert (
            found[1]
            == "The recall of class 'high' is 0: not one of its test nodes is predicted as it."
        )

    def test_a_model_that_finds_everybody_is_not_reported(self):
        assert shortcomings([self.figures(self.labels)]) == []

    def test_a_model_that_edges_do_not_help_is_reported(self):
        good = self.figures(self.labels)
        (found,) = shortcomings([good], [good])
        assert found.startswith("Not better than ignoring the graph: features alone reach 100.0%")

    def test_a_model_that_edges_help_is_not(self):
        worse = self.figures(np.where(np.arange(100) % 3 == 0, 1 - self.labels, self.labels))
        assert shortcomings([self.figures(self.labels)], [worse]) == []

    def flagged(self, right, wrong):
        """Return figures of as many nodes of the class, and of the other one, predicted as it."""
        answers = np.zeros(100, dtype=int)
        answers[90 : 90 + right] = answers[:wrong] = 1
        return self.figures(answers)

    def test_a_threshold_that_beats_guessing_as_many_nodes_is_not_reported(self):
        # Recall 30 % and precision 30 % of a class of 10 %: below the largest class in accuracy.
        some = self.flagged(3, 7)
        assert some.accuracy < some.majority
        (reported,) = shortcomings([some])
        assert reported.startswith("Not better than always answering 'low'")
        for threshold in ("rate", 0.5):
            assert shortcomings([some], threshold=threshold) == []

    def test_a_threshold_that_does_not_is_reported_with_precision_and_share(self):
        (reported,) = shortcomings([self.flagged(1, 9)], threshold="rate")
        assert reported == (
            "Not better than guessing by more than chance: 10.0% of the test nodes predicted as "
            "'high' are of it, and 10.0% of all test nodes."
        )
        # Nobody predicted is always answering the other class.
        first, second = shortcomings([self.flagged(0, 0)], threshold="rate")
        assert first.startswith("Not better than always answering 'low'")
        assert second.startswith("The recall of class 'high' is 0")

    @pytest.mark.parametrize("metric", ["auc", "average_precision", "recall_at_top_5_percent"])
    def test_a_metric_of_the_order_compares_the_order_with_guessing(self, metric):
        """Whatever the answers, which are always the largest class here."""
        answers = np.zeros(100, dtype=int)
        good = np.linspace(0.0, 0.4, 100)
        even = np.where(np.arange(100) % 2 == 0, 0.3, 0.2)
        ranked, guessed = (
            shortcomings([self.figures(answers, np.stack([1 - one, one], axis=1))], metric=metric)
            for one in (good, even)
        )
        (lost,) = ranked
        assert lost.startswith("The recall of class 'high' is 0")
        assert "still rank the nodes" in lost
        assert guessed[0].startswith("Not better than guessing by more than chance: ")
        assert not any("always answering" in line for line in guessed)


@pytest.fixture(scope="module")
def graph():
    """A graph of two classes, a third of the nodes in the second."""
    several = small_graph(num_nodes=240)
    rare = several.labels == 0
    return replace(several, labels=rare.astype(np.int64), label_names=("common", "rare"))


@pytest.mark.parametrize("method", [LabelGAP, GraphSAGE, MLP])
def test_accuracy_of_the_repeats_is_the_one_beside_the_other_figures(method, graph):
    quick = FREE if method is MLP else QUICK
    model = method(level="edge", repeats=2, **quick).fit(graph)
    assert [run.accuracy for run in model.repeat_metrics_] == model.repeat_scores_
    found, first = model.metrics(graph), model.repeat_metrics_[0]
    assert (found.accuracy, found.per_class) == (first.accuracy, first.per_class)
    # One model alone may round otherwise than beside others.
    assert found.calibration_error == pytest.approx(first.calibration_error, abs=1e-6)
    assert model.score(graph, metric="auc") == model.metrics(graph).auc
    assert mean_metrics(model.repeat_metrics_)["majority"] > 0.5


def test_an_unknown_metric_is_refused(graph):
    with pytest.raises(InputError, match="`metric` must be one of accuracy"):
        MLP(level="edge", **FREE).fit(graph).score(graph, metric="f2")


class TestClassWeights:
    @pytest.mark.parametrize(
        "options",
        [
            {"level": "edge"},
            {"level": "edge", "batch_size": 64},
            {"level": "node", "batch_size": 60, "epsilon": 1000.0},
        ],
        ids=["whole", "batches", "node"],
    )
    def test_a_heavy_class_is_answered_more_often(self, options, graph):
        settings = {"epochs": 15, **options}

        def answered(weight):
            return int(decided(MLP(class_weight=weight, **settings).fit(graph), graph).sum())

        assert answered([1, 50]) > answered([50, 1])

    def test_equal_weights_change_nothing(self, graph):
        plain = MLP(level="edge", **FREE).fit(graph).predict_proba(graph)
        alike = MLP(level="edge", class_weight=[3, 3], **FREE).fit(graph).predict_proba(graph)
        assert np.allclose(plain, alike, atol=1e-5)

    def test_at_node_level_counts_are_private(self, graph):
        model = MLP(level="node", class_weight="balanced", batch_size=50, **QUICK)
        with pytest.raises(InputError, match="at level node their counts are private"):
            model.fit(graph)
        schema = Schema(label=Label("team", ("common", "rare"), rates=(9, 1)))
        declared = model.plan_for(replace(graph, schema=schema)).settings.loss_weights
        assert declared == pytest.approx([0.5 / 0.9, 5.0])
        # The same whatever the people are: one of them changes nothing.
        other = replace(graph, schema=schema, labels=1 - graph.labels)
        assert model.plan_for(other).settings.loss_weights == declared

    @pytest.mark.parametrize(
        ("given", "fragment"),
        [
            ("heavy", "must be balanced or one number for each of the 2 classes"),
            ("rare=1", "must name each class once: common, rare"),
            ([1, 2, 3], "one number for each of the 2 classes"),
            ([0, 0], "must be above 0"),
            ([-1, 1], "at least 0"),
            (["x", 1], "must be balanced or numbers"),
            ({"common": 1, "seldom": 2}, "must name each class once"),
        ],
    )
    def test_weights_that_fit_no_class_are_refused_before_the_charge(
        self, given, fragment, graph, tmp_path
    ):
        with pytest.raises(InputError, match=fragment):
            LabelGAP(level="edge", class_weight=given, ledger=tmp_path / "no.sqlite").fit(graph)
        assert not (tmp_path / "no.sqlite").exists()

    def test_weights_are_one_on_average(self):
        rates = [0.2, 0.3, 0.5]
        for stated in ("balanced", [1, 2, 3], {"a": 5, "b": 0, "c": 1}):
            weights = class_weights(stated, names=["a", "b", "c"], rates=rates)
            assert sum(w * r for w, r in zip(weights, rates, strict=True)) == pytest.approx(1)


class TestThreshold:
    def test_the_validation_nodes_choose_and_predictions_follow(self, graph, tmp_path):
        model = LabelGAP(level="edge", threshold="auto", repeats=2, **QUICK).fit(graph)
        probabilities = model.predict_proba(graph)[:, 1]
        assert np.array_equal(
            decided(model, graph), (probabilities >= model.threshold_).astype(int)
        )
        val = graph.val_mask
        assert model.threshold_ == best_threshold(probabilities[val], graph.labels[val] == 1)
        model.save(tmp_path / "model")
        loaded = LabelGAP.load(tmp_path / "model")
        assert np.array_equal(decided(loaded, graph), decided(model, graph))

    def test_at_node_level_it_must_be_a_number(self, graph):
        with pytest.raises(PrivacyError, match="`threshold` must be a number at level node"):
            NodeLabelGAP(level="node", threshold="auto", **QUICK).fit(graph)
        model = NodeLabelGAP(level="node", threshold=0.2, batch_size=50, **QUICK).fit(graph)
        assert model.threshold_ == 0.2

    def test_three_classes_have_none(self):
        with pytest.raises(InputError, match="unless there are two classes"):
            MLP(level="edge", threshold=0.5, **FREE).fit(small_graph())

    def test_a_rate_is_met_by_predictions_below_node_level_only(self, graph, tmp_path):
        schema = Schema(label=Label("team", ("common", "rare"), rates=(0.9, 0.1)))
        declared = replace(graph, schema=schema)
        model = LabelGAP(level="edge", threshold="rate", **QUICK).fit(declared)
        # Of those that do not train as many are called rare as are declared to be.
        called = decided(model, declared)[~graph.train_mask]
        assert called.sum() == pytest.approx(0.1 * len(called), abs=1)
        assert ("the threshold that as many predictions exceed as nodes are of the class") in dict(
            model.card_.not_charged
        )
        with pytest.raises(PrivacyError, match="depends on everybody's records"):
            NodeLabelGAP(
                level="node", threshold="rate", ledger=tmp_path / "no.sqlite", **QUICK
            ).fit(declared)
        assert not (tmp_path / "no.sqlite").exists()

    def test_a_prior_threshold_at_node_level_follows_from_declared_rates_alone(self, graph):
        schema = Schema(label=Label("team", ("common", "rare"), rates=(0.9, 0.1)))
        settings = {"level": "node", "threshold": "prior", "batch_size": 50, **QUICK}
        model = NodeLabelGAP(**settings).fit(replace(graph, schema=schema))
        assert model.threshold_ == pytest.approx(0.1)
        other = replace(graph, schema=schema, labels=1 - graph.labels)
        assert NodeLabelGAP(**settings).fit(other).threshold_ == model.threshold_
        (why,) = (why for what, why in model.card_.not_charged if what.startswith("the threshold"))
        assert "declared: no label is counted" in why
        # Undeclared rates would be counts of people.
        with pytest.raises(InputError, match="`threshold` prior must have declared rates"):
            NodeLabelGAP(**settings).fit(graph)
        with pytest.raises(InputError, match="must not come with `class_weight`"):
            LabelGAP(level="edge", threshold="prior", class_weight="balanced").fit(graph)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(3, 300),
    digits=st.sampled_from([1, 2, 6]),
    share=st.sampled_from([0.03, 0.2, 0.6]),
)
def test_what_a_risk_desk_reads_is_right_whatever_the_order_of_equal_nodes(
    seed, nodes, digits, share
):
    rng = np.random.default_rng(seed)
    scores, member = np.round(rng.random(nodes), digits), rng.random(nodes) < share
    found = rank(scores, member, "high")
    if member.all() or not member.any():
        assert found is None
        return
    assert found.average_precision == pytest.approx(oracle.average_precision_score(member, scores))
    assert found.share == pytest.approx(member.mean())
    mixed = rng.permutation(nodes)
    assert rank(scores[mixed], member[mixed], "high") == found
    for name, part in TOP_SHARES.items():
        top, size = found.top[name], max(1, round(part * nodes))
        # Any order of equal nodes: their mean, which many orders approach.
        hits = [member[np.lexsort((rng.random(nodes), -scores))[:size]].sum() for _ in range(200)]
        assert top.nodes == size
        assert top.precision == pytest.approx(np.mean(hits) / size, abs=0.2)
        assert top.recall * member.sum() == pytest.approx(top.precision * size)
        assert top.lift == pytest.approx(top.precision / member.mean())
    own = found.top["own_share"]
    assert own.recall == pytest.approx(own.precision)
    # The curve never rises with recall, and starts at most at 1.
    assert all(a >= b for a, b in itertools.pairwise((1.0, *found.curve)))
    assert Metrics.from_dict(json.loads(json.dumps(_measured(scores, member).to_dict()))) == (
        _measured(scores, member)
    )


def _measured(scores, member):
    probabilities = np.stack([1 - scores, scores], axis=1)
    return measure(probabilities, probabilities.argmax(axis=1), member.astype(np.int64))


@pytest.mark.parametrize("metric", METRICS)
def test_what_decides_on_validation_nodes_is_the_figure_that_is_reported(metric):
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(3, 200, 2)))
    labels = torch.from_numpy((rng.random((3, 200)) < 0.1).astype(np.int64))
    known = torch.from_numpy(rng.random((3, 200)) < 0.7)
    found = Criterion(metric, 1).of(logits, labels, known)
    for repeat in range(3):
        mask = known[repeat].numpy()
        probabilities = torch.softmax(logits[repeat], dim=-1).numpy()[mask]
        own = labels[repeat].numpy()[mask]
        loss = oracle.log_loss(own, probabilities)
        reported = measure(probabilities, probabilities.argmax(axis=1), own, positive=1).get(metric)
        assert float(found[repeat]) == pytest.approx(reported - LOSS_SHARE * loss, abs=1e-9)
    # Without a node of the class the loss alone decides.
    nobody = Criterion("average_precision", 1).of(logits, torch.zeros_like(labels), known)
    assert (nobody < 0).all()


class TestMetric:
    """Decisions follow the metric that is named, and only where labels are public."""

    def test_the_kept_epoch_has_the_best_of_the_named_metric(self):
        # Two epochs: the first is the more accurate, the second puts the rare nodes first.
        labels = torch.tensor([[1, 0, 0, 0, 0]])
        accurate = torch.tensor([[[2.0, 0], [2.0, 1], [2.0, 1], [2.0, 1], [2.0, 1]]])
        ranking = torch.tensor([[[0.0, 9], [0.0, 8], [0.0, 7], [0.0, 6], [0.0, 5]]])
        rows, val = torch.arange(5)[None], torch.ones(1, 5, dtype=torch.bool)

        def kept(criterion):
            values = torch.zeros(1, 1)
            best = BestEpoch(values, labels, rows, val, criterion=criterion)
            for epoch, scores in enumerate([accurate, ranking], start=1):
                values.fill_(epoch)
                best.consider(scores)
            best.restore()
            return int(values)

        assert kept(None) == 1
        assert kept(Criterion("average_precision", 1)) == 2

    def test_a_threshold_on_validation_nodes_follows_it(self, graph):
        model = LabelGAP(level="edge", threshold="auto", metric="accuracy", **QUICK).fit(graph)
        probabilities, val = model.predict_proba(graph)[:, 1], graph.val_mask
        of_class = graph.labels[val] == 1
        assert model.threshold_ == best_threshold(probabilities[val], of_class, "accuracy")
        assert model.score(graph) == model.metrics(graph).accuracy

    def test_at_node_level_nothing_is_chosen_by_labels(self, graph, tmp_path):
        with pytest.raises(PrivacyError, match="`metric` must be auto at level node"):
            MLP(level="node", metric="auc", ledger=tmp_path / "no.sqlite").fit(graph)
        assert not (tmp_path / "no.sqlite").exists()

    def test_the_positive_class_is_the_rarest_unless_it_is_named(self, graph, tmp_path):
        model = MLP(level="edge", **FREE).fit(graph)
        assert model.metrics(graph).ranking.positive == "rare"
        named = MLP(level="edge", positive="common", **FREE).fit(graph)
        assert named.repeat_metrics_[0].ranking.positive == "common"
        schema = Schema(label=Label("team", ("common", "rare"), rates=(0.1, 0.9)))
        declared = MLP(level="edge", **FREE).fit(replace(graph, schema=schema))
        assert declared.repeat_metrics_[0].ranking.positive == "common"
        with pytest.raises(InputError, match="`positive` must be one of common, rare"):
            LabelGAP(level="edge", positive="high", ledger=tmp_path / "no.sqlite").fit(graph)
        assert not (tmp_path / "no.sqlite").exists()

    def test_labels_that_do_not_train_say_nothing_about_which_class_is_rare(self):
        """A metric of the class chooses the epoch, so test labels must not choose the class."""
        labels, train = np.array([0] * 9 + [1] * 8), np.zeros(17, dtype=bool)
        train[[0, 1, 9, 10, 11, 12]] = True
        test = np.isin(np.arange(17), [8, 16])
        graph = Graph.from_arcs([0], [9], num_nodes=17, features=np.eye(17), labels=labels)
        graph = graph.with_masks(train, ~train & ~test, test)
        model = MLP(level="edge", epochs=1).fit(graph)
        assert model.metrics(graph).ranking.positive == "0"
