"""Rare classes: what is sent of them, that it costs no more, and that they are found."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from gapcases import forbid
from hypothesis import given, settings
from hypothesis import strategies as st
from methodgraphs import small_graph
from sklearn.metrics import roc_auc_score
from suited import decided

from gapgnn import GAP, MLP, LabelGAP, NodeLabelGAP
from gapgnn.errors import DataError
from gapgnn.graph.datasets.synthetic import rare_graph
from gapgnn.graph.tables import Schema
from gapgnn.graph.tables.schema import Label
from gapgnn.methods.folder import _checksum
from gapgnn.methods.label_gap import codes as codes_module
from gapgnn.methods.label_gap.codes import (
    COUNTED,
    DECLARED,
    UNIFORM,
    ClassPrior,
    class_codes,
    class_counts,
    mean_codes,
)
from gapgnn.training import crossfit as crossfit_module


@pytest.fixture(scope="module")
def rare():
    return rare_graph(num_nodes=2000, num_edges=24_000, rate=0.05, noise_columns=12, labelled=0.6)


@pytest.fixture(scope="module")
def fitted(rare):
    """One fit with and one without class weights, everything else alike."""
    shared = {"level": "edge", "epsilon": 12.0, "delta": 1e-7, "insecure_noise_seed": 1}
    shared["epochs"] = 20
    return LabelGAP(**shared).fit(rare), LabelGAP(**shared, class_weight="balanced").fit(rare)


def auc(model, graph):
    test = graph.test_mask
    return roc_auc_score(graph.labels[test], model.predict_proba(graph)[test, 1])


@contextmanager
def forged(folder):
    """Change a configuration as somebody would who also repairs the checksum."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    del config["checksum"]
    yield config
    config["checksum"] = _checksum(config)
    place.write_text(json.dumps(config))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 9), power=st.floats(0, 12))
def test_no_class_code_around_any_prior_is_longer_than_one(seed, classes, power):
    generator = torch.Generator().manual_seed(seed)
    prior = torch.rand(2, classes, generator=generator, dtype=torch.float64) ** power + 1e-300
    prior = prior / prior.sum(dim=1, keepdim=True)
    codes = class_codes(classes, prior=prior)
    lengths = codes.norm(dim=-1)
    assert float(lengths.max()) <= 1 + 1e-6
    np.testing.assert_allclose(lengths.amax(dim=1), 1, atol=1e-6)
    # Their mean under the prior is zero: what everybody sends on average says nothing.
    np.testing.assert_allclose(prior.unsqueeze(1).float() @ codes, 0, atol=1e-6)
    scores = 9 * torch.randn(2, 30, classes, generator=generator)
    assert float(mean_codes(scores, codes).norm(dim=-1).max()) <= 1 + 1e-6
    # As near to the common class as it is common.
    assert lengths[0, prior[0].argmin()] >= lengths[0, prior[0].argmax()]


@pytest.mark.parametrize("classes", range(2, 8))
def test_a_uniform_prior_gives_the_simplex_back(classes):
    plain = class_codes(classes)
    uniform = torch.full((1, classes), 1 / classes)
    torch.testing.assert_close(class_codes(classes, prior=uniform)[0], plain)
    even = ClassPrior.of([[1 / classes] * classes], COUNTED)
    torch.testing.assert_close(class_codes(classes, prior=even.tensor())[0], plain)


@given(shares=st.lists(st.floats(0.01, 1), min_size=2, max_size=6), seed=st.integers(0, 999))
def test_a_sum_says_how_many_messages_of_a_class_are_beyond_the_expected(shares, seed):
    classes = len(shares)
    prior = torch.tensor([shares], dtype=torch.float64)
    counts = torch.randint(0, 50, (7, classes), generator=torch.Generator().manual_seed(seed))
    sums = counts.float() @ class_codes(classes, prior=prior)[0]
    expected = counts - counts.sum(dim=1, keepdim=True) * prior / prior.sum()
    torch.testing.assert_close(class_counts(sums, prior), expected.float(), atol=1e-3, rtol=0)


def test_even_classes_are_sent_as_before():
    """All classes of these are common, and shorter codes only lose to the noise."""
    for shares in ([0.3, 0.3, 0.25, 0.15], [0.07, 0.11, 0.13, 0.08, 0.15, 0.3, 0.16]):
        assert ClassPrior.of([shares], COUNTED).centred == (0.0,)
        assert ClassPrior.of([shares], COUNTED).fact()[0].endswith("centred at even shares")
    for shares in ([0.97, 0.03], [0.78, 0.22], [0.9, 0.06, 0.04]):
        assert ClassPrior.of([shares], COUNTED).centred == (1.0,)
        assert ClassPrior.of([shares], COUNTED).fact()[0].endswith("centred at it")


class TestWhichPrior:
    def test_below_node_level_it_is_the_class_frequencies_in_training(self, fitted, rare):
        prior = fitted[0].class_prior_
        share = rare.labels[rare.train_mask].mean()
        assert prior.shares[0] == pytest.approx((1 - share, share))
        assert prior.source == COUNTED
        assert prior.fact() in fitted[0].card_.public

    def test_every_repeat_has_its_own_and_the_first_is_saved(self, rare):
        quick = {"level": "edge", "epochs": 2, "hops": 1, "seed": 3}
        model, alone = (LabelGAP(**quick, repeats=repeats).fit(rare) for repeats in (2, 1))
        assert model.class_prior_ == alone.class_prior_
        assert len(model.class_prior_.shares) == 1

    @pytest.mark.parametrize("rates", [None, (0.9, 0.1)])
    def test_at_node_level_no_label_decides_it(self, rates, rare, monkeypatch):
        label = Label("class", ("common", "rare"), rates=rates)
        graph = replace(rare, schema=Schema(label=label))
        forbid(monkeypatch, codes_module.ClassPrior, "counted")
        settings = {"epochs": 2, "hop_share": 0.5, "insecure_noise_seed": 1}
        model = NodeLabelGAP(**settings).fit(graph)
        prior = model.plan_.settings.class_prior
        assert prior.shares == (rates or (0.5, 0.5),)
        assert prior.source == (DECLARED if rates else UNIFORM)
        other = NodeLabelGAP(**settings).fit(replace(graph, labels=1 - graph.labels))
        assert other.plan_.settings.class_prior == prior
        assert other.card_.public == model.card_.public

    def test_messages_without_classes_have_none(self):
        model = GAP(level="edge", epochs=2).fit(small_graph(num_nodes=200))
        assert not any("class prior" in what for what, _ in model.card_.public)


class TestSavedModels:
    def test_a_saved_model_keeps_its_prior_and_its_weights(self, fitted, rare, tmp_path):
        """Another graph has other class frequencies; its messages are those of the fit."""
        model = fitted[1]
        model.save(tmp_path / "model")
        loaded = LabelGAP.load(tmp_path / "model")
        assert loaded.class_prior_ == model.class_prior_
        assert np.array_equal(loaded.predict_proba(rare), model.predict_proba(rare))
        other = rare_graph(num_nodes=600, num_edges=4000, noise_columns=12, rate=0.4, seed=1)
        sent = []
        for one in (model, loaded):
            assert one.class_prior_ == fitted[0].class_prior_
            sent.append(one._stages(other).codes)
        assert torch.equal(*sent)

    def test_a_damaged_prior_or_weight_is_refused(self, fitted, tmp_path):
        fitted[0].save(tmp_path / "model")
        damaged = [
            ("class_prior", {"shares": shares, "source": COUNTED, "centred": [centred]})
            for shares, centred in (
                ([[0.5, -0.5]], 1.0),
                ([[0.2, 0.3, 0.5]], 1.0),
                ([[float("nan"), 0.5]], 1.0),
                ([[0.5, 0.5]], 1.5),
            )
        ]
        damaged += [("answer_weights", weights) for weights in ([1.0], [0.0, 0.0], [-1.0, 3.0])]
        for name, value in damaged:
            with forged(tmp_path / "model") as config:
                values = config["learned" if name == "class_prior" else "plan"]
                values = values.get("settings", values)
                kept = values[name]
                values[name] = value
            with pytest.raises(
                DataError, match=r"is damaged: (the class prior|the centring|class)"
            ):
                LabelGAP.load(tmp_path / "model")
            with forged(tmp_path / "model") as config:
                values = config["learned" if name == "class_prior" else "plan"]
                values.get("settings", values)[name] = kept
        LabelGAP.load(tmp_path / "model")


class TestClassWeights:
    def test_weights_move_answers_and_not_the_order(self, fitted, rare):
        plain, balanced = fitted
        assert auc(balanced, rare) == pytest.approx(auc(plain, rare), abs=1e-6)
        test, members = rare.test_mask, rare.labels == 1
        recall = [decided(model, rare)[test & members].mean() for model in fitted]
        assert recall[1] > recall[0] + 0.05

    def test_answers_from_the_cache_are_weighed_as_all_others(self, fitted, rare):
        for model in fitted:
            np.testing.assert_array_equal(model.predict_cached(), model.predict_proba(rare))
            some = rare.ids[[7, 3]]
            found = model.predict_proba(rare)[[7, 3]]
            np.testing.assert_allclose(model.predict_cached(some), found, atol=1e-6)

    @pytest.mark.parametrize(
        ("method", "options"), [(LabelGAP, {}), (LabelGAP, {"folds": 0, "hops": 2}), (MLP, {})]
    )
    def test_what_is_sent_and_read_is_the_same_under_any_weights(self, method, options, rare):
        shared = {"level": "edge", "epsilon": 8.0, "epochs": 4, "insecure_noise_seed": 1}
        shared |= options
        if method is MLP:
            shared = {"level": "edge", "epochs": 4}
        plain, weighted = (
            method(**shared, class_weight=weight).fit(rare) for weight in (None, [1.0, 30.0])
        )
        states = [model.modules_.items() for model in (plain, weighted)]
        for (name, one), (_, other) in zip(*states, strict=True):
            for key, value in one.state_dict().items():
                assert torch.equal(value, other.state_dict()[key]), (name, key)
        assert decided(weighted, rare).sum() > decided(plain, rare).sum()

    def test_a_class_that_counts_nothing_is_never_answered(self, rare):
        model = MLP(level="edge", epochs=4, class_weight=[0.0, 1.0]).fit(rare)
        assert (model.predict_proba(rare)[:, 0] == 0).all()

    def test_at_node_level_clipping_does_not_undo_them(self, rare):
        """The gradients of scaled rows are longer than the clip, whatever their weight was."""
        label = Label("class", ("common", "rare"), rates=(0.97, 0.03))
        graph = replace(rare, schema=Schema(label=label))
        shared = {"level": "node", "epsilon": 20.0, "insecure_noise_seed": 1, "seed": 1}
        found = []
        for weight in (None, "balanced"):
            model = MLP(**shared, class_weight=weight).fit(graph)
            found.append(decided(model, graph)[graph.labels == 1].mean())
        assert found[0] < 0.1
        assert found[1] > 0.3


@pytest.mark.gate
def test_a_rare_class_is_found_through_the_graph(fitted, rare):
    features = MLP(level="edge").fit(rare)
    assert auc(fitted[0], rare) > auc(features, rare) + 0.15


@pytest.fixture(scope="module")
def irrelevant():
    """Few nodes of a rare class, and as many irrelevant columns."""
    return rare_graph(num_nodes=4000, num_edges=48_000, rate=0.05, noise_columns=150, labelled=0.5)


@pytest.mark.slow
def test_irrelevant_columns_do_not_hide_the_feature_model_of_a_rare_class(irrelevant, monkeypatch):
    """Networks alone learn the few nodes by heart, and are worse than the class prior."""

    def said():
        probabilities = MLP(level="edge").fit(irrelevant).predict_proba(irrelevant)
        test = irrelevant.test_mask
        is_rare, chance = irrelevant.labels[test] == 1, probabilities[test, 1]
        loss = -np.log(np.where(is_rare, chance, 1 - chance)).mean()
        return roc_auc_score(is_rare, chance), loss, is_rare.mean()

    area, loss, rate = said()
    monkeypatch.setattr(crossfit_module, "RARE_BELOW", 0.0)
    alone, loss_alone, _ = said()
    prior = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert area > alone + 0.02
    assert loss < 1.005 * prior < loss_alone


def test_even_classes_are_said_by_networks_alone():
    model = MLP(level="edge", epochs=4).fit(small_graph(num_nodes=300))
    assert not model.modules_["shrunk"].is_solved


def test_a_saved_model_keeps_the_regression(irrelevant, tmp_path):
    model = MLP(level="edge", epochs=8).fit(irrelevant)
    assert model.modules_["shrunk"].is_solved
    model.save(tmp_path / "model")
    loaded = MLP.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(irrelevant), model.predict_proba(irrelevant))


def test_validation_labels_decide_the_share_of_regressions_and_test_labels_decide_nothing():
    """Nor do test labels decide whether a class counts as rare."""
    graph = rare_graph(num_nodes=600, num_edges=3000, rate=0.06, noise_columns=60, labelled=0.9)
    nobody = np.zeros(graph.num_nodes, dtype=bool)
    states = []
    for flipped in (nobody, graph.test_mask, graph.val_mask):
        labels = np.where(flipped, 1 - graph.labels, graph.labels)
        model = MLP(level="edge", epochs=20).fit(graph._replace(labels=labels))
        states.append({name: part.state_dict() for name, part in model.modules_.items()})
    for name, state in states[0].items():
        for key, value in state.items():
            assert torch.equal(value, states[1][name][key]), (name, key)
    shares = [state["shrunk"]["share"] for state in states]
    assert shares[0].any()
    assert not torch.equal(shares[0], shares[2])


def test_the_first_hop_tells_how_many_neighbours_there_are(irrelevant):
    """Calibrated posteriors cancel in a sum; many neighbours are not many of the rare class."""
    model = LabelGAP(level="none", epochs=8, hops=1).fit(irrelevant)
    hop = model.releases_.training().hops[1][:, 0].numpy()
    common, degrees = irrelevant.labels == 0, np.asarray(irrelevant.out_degrees)
    # The code of the rare class is -1, and that of the common one above 0.
    assert np.corrcoef(hop[common], degrees[common])[0, 1] > 0.5
