"""Nobody is scored by a network that has seen the own label, and steps that read some nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from methodgraphs import small_graph

from gapgnn import MLP, LabelGAP, NodeLabelGAP
from gapgnn.errors import InputError
from gapgnn.graph import folds_of
from gapgnn.methods import Shape
from gapgnn.methods.label_gap.stages import MEMBERS, stage_names
from gapgnn.nn import LinearBySize, ShrunkRegression
from gapgnn.training import CrossFit, FeatureModels, Splits, minibatches
from gapgnn.training import crossfit as crossfit_module

QUICK = {"level": "edge", "epochs": 8, "hops": 2, "insecure_noise_seed": 1}
QUICK_OF = {LabelGAP: QUICK, MLP: {"level": "edge", "epochs": 8}}


@pytest.fixture(scope="module")
def graph():
    return small_graph(num_nodes=300)


def hop_zero(graph, **more):
    """The feature model of everybody, which stages read and others are sent."""
    return LabelGAP(**QUICK, **more).fit(graph).releases_.training().hops[0]


def with_another_label(graph, node):
    labels = graph.labels.copy()
    labels[node] = (labels[node] + 1) % graph.num_classes
    return graph._replace(labels=labels)


def echo(graph, node):
    """How far a node's own label moves what is said about it."""
    before, after = hop_zero(graph), hop_zero(with_another_label(graph, node))
    return float((before - after)[node].abs().max())


@pytest.mark.parametrize("place", [0, 100, -1])
def test_what_is_said_about_a_training_node_does_not_follow_from_its_label(place, graph):
    """The promise of cross-fitting: the own label does not echo, not by a bit."""
    node = int(np.flatnonzero(graph.train_mask)[place])
    before, after = hop_zero(graph), hop_zero(with_another_label(graph, node))
    assert torch.equal(before[node], after[node])
    # The networks of the other folds did learn from it.
    assert not torch.equal(
        before[~torch.tensor(graph.train_mask)], after[~torch.tensor(graph.train_mask)]
    )


def test_a_training_node_that_is_scored_by_all_networks_would_be_seen(graph, monkeypatch):
    """Planted: a stage reads, of a training node, networks that have seen its label."""
    node = int(np.flatnonzero(graph.train_mask)[0])
    assert echo(graph, node) == 0
    honest = CrossFit.out_of_fold
    monkeypatch.setattr(
        CrossFit,
        "out_of_fold",
        lambda self, scores, training, nodes: honest(self, scores, training & False, nodes),
    )
    assert echo(graph, node) > 0


def test_a_network_that_trains_on_its_own_fold_would_be_seen(graph, monkeypatch):
    """Planted: folds are dealt, and nobody leaves one out."""
    node = int(np.flatnonzero(graph.train_mask)[0])
    monkeypatch.setattr(
        CrossFit,
        "splits",
        lambda self, splits: Splits(
            *(
                np.repeat(mask, self.folds, axis=0)
                for mask in (splits.train, splits.val, splits.test)
            )
        ),
    )
    assert echo(graph, node) > 0


def test_folds_are_a_function_of_seed_and_id_and_not_those_of_an_evaluation(graph):
    everybody = CrossFit.of(graph, seed=3)
    order = np.random.default_rng(0).permutation(graph.num_nodes)[:200]
    some = crossfit_module.CrossFit(everybody.fold[order], 4)
    assert np.array_equal(
        some.fold,
        CrossFit.of(_Ids(graph.ids[order]), seed=3).fold,  # type: ignore[arg-type]
    )
    assert not np.array_equal(everybody.fold, CrossFit.of(graph, seed=4).fold)
    evaluated = folds_of(graph.ids, seed=3, folds=4)
    table = np.histogram2d(everybody.fold, evaluated, bins=4)[0]
    assert table.min() > 0


class _Ids:
    def __init__(self, ids):
        self.ids = ids


def test_every_training_node_is_left_out_by_one_network_of_each_repeat(graph):
    crossfit = CrossFit.of(graph, seed=0)
    masks = np.stack([graph.train_mask, ~graph.train_mask])
    found = crossfit.splits(Splits(masks, ~masks, ~masks)).train.reshape(2, 4, -1)
    assert np.array_equal((masks[:, None] & ~found).sum(axis=1), masks)
    assert np.array_equal(found.any(axis=1), masks)
    for fold in range(4):
        assert not found[:, fold, crossfit.fold == fold].any()


@pytest.mark.parametrize("folds", [1, -1, 2.5, "many"])
def test_folds_that_mean_nothing_are_refused(folds, graph):
    for method in (LabelGAP, MLP):
        with pytest.raises(InputError, match="folds"):
            method(level="edge", folds=folds).fit(graph)


def test_folds_are_for_labels_that_are_sent_beside_an_encoder(graph):
    with pytest.raises(InputError, match="`folds` must be 0 or auto"):
        LabelGAP(folds=4, encoder_layers=0).fit(graph)


def test_an_mlp_is_the_mean_of_its_networks_for_everybody(graph):
    model = MLP(level="edge", epochs=6, folds=3).fit(graph)
    network, shallow, linear = (model.modules_[name] for name in ("mlp", "shallow", "linear"))
    assert len(network.linears[0].weight) == len(shallow.linears[0].weight) == 3
    features = torch.tensor(np.asarray(graph.features.todense(), dtype=np.float32))
    shares = ((network, 1 / 4), (shallow, 1 / 4), (linear, 1 / 2))
    with torch.no_grad():
        said = sum(share * torch.log_softmax(each(features), dim=-1) for each, share in shares)
    said = torch.log_softmax(said, dim=-1).mean(dim=0)
    np.testing.assert_allclose(model.predict_proba(graph), torch.softmax(said, dim=-1), atol=1e-5)


@pytest.mark.parametrize("method", [LabelGAP, MLP])
def test_linear_networks_are_solved_where_training_nodes_are_few(method, graph, monkeypatch):
    """Few in each repeat: how many repeats there are must not change what one of them is."""
    count = int(graph.train_mask.sum())
    for most, is_few in ((count, True), (count - 1, False)):
        monkeypatch.setattr(crossfit_module, "FEW", most)
        model = method(level="edge", epochs=2, repeats=2).fit(graph)
        assert model.modules_["linear"].is_solved == is_few


def test_node_level_has_no_linear_network(graph):
    for method in (NodeLabelGAP, MLP):
        model = method(level="node")
        settings = model.plan_for(graph).settings
        assert "linear" not in model.networks(settings, Shape(1, 5, 3))


def test_a_saved_model_says_the_same_about_people_it_has_not_met(graph, tmp_path):
    model = MLP(level="edge", epochs=6).fit(graph)
    model.save(tmp_path / "model")
    others = small_graph(num_nodes=200, seed=9)
    loaded = MLP.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(others), model.predict_proba(others))


def test_large_graphs_are_read_in_parts_and_say_the_same(graph, monkeypatch):
    whole = MLP(level="edge", epochs=6).fit(graph)
    expected = whole.predict_proba(graph)
    monkeypatch.setattr(crossfit_module, "AT_ONCE", 64)
    np.testing.assert_allclose(whole.predict_proba(graph), expected, atol=1e-6)


def test_networks_of_a_fold_count_alike_and_the_linear_one_as_much_as_both(graph):
    rng = torch.Generator().manual_seed(0)
    networks, shallow, rows = (torch.randn(2, 9, 3, generator=rng) for _ in range(3))
    linear, labels = LinearBySize(2, 3, 3), torch.arange(9) % 3
    said = [torch.log_softmax(scores, -1) for scores in (networks, shallow)]

    def out_of_fold():
        shrunk = ShrunkRegression(2, 3, 3)
        return FeatureModels(lambda _: networks, lambda _: shallow, linear, shrunk).scores(rows[0])

    torch.testing.assert_close(out_of_fold(), (said[0] + said[1]) / 2)
    for replica in range(2):
        linear.solve(replica, rows[0], labels, torch.ones(9))
    third = torch.log_softmax(linear(rows[0]), -1)
    shares = said[0] / 4 + said[1] / 4 + third / 2
    torch.testing.assert_close(torch.log_softmax(out_of_fold(), -1), torch.log_softmax(shares, -1))


def test_no_choice_of_width_or_activation_changes_which_networks_there_are(graph):
    for method_class in (MLP, LabelGAP):
        for more in ({}, {"hidden": 8}, {"activation": "relu"}):
            assert "shallow" in method_class(**QUICK_OF[method_class], **more).fit(graph).modules_


def test_a_step_reads_part_of_many_nodes(monkeypatch):
    graph = small_graph(num_nodes=600)
    sizes = []
    real = minibatches.Minibatches._wanted

    def wanted(self, nodes):
        sizes.append(len(nodes))
        return real(self, nodes)

    monkeypatch.setattr(minibatches.Minibatches, "_wanted", wanted)
    monkeypatch.setattr("gapgnn.training.recipe.STEP_NODES", 50)
    model = MLP(level="edge", epochs=40, class_weight="balanced").fit(graph)
    roles = int((graph.train_mask | graph.val_mask | graph.test_mask).sum())
    # Of two sorts of networks.
    assert len(sizes) == 2 * 40
    assert max(sizes) < roles / 5
    assert model.score(graph) > 1.2 / graph.num_classes


def test_a_repeat_does_not_depend_on_the_others():
    graph = small_graph(num_nodes=300)
    shared = {**QUICK, "split": "fresh"}
    alone = LabelGAP(**shared).fit(graph)
    beside = LabelGAP(**shared, repeats=3).fit(graph)
    assert alone.repeat_scores_[0] == beside.repeat_scores_[0]
    # Also where the mixing weight leaves a classifier out of the answers.
    for name in stage_names(2):
        pairs = zip(
            alone.modules_[name].parameters(), beside.modules_[name].parameters(), strict=True
        )
        for weight, same in pairs:
            torch.testing.assert_close(weight, same, atol=1e-3, rtol=0)
    torch.testing.assert_close(
        alone.releases_.training().hops[0], beside.releases_.training().hops[0], atol=1e-4, rtol=0
    )


def test_the_networks_of_an_ensemble_are_not_one_network_twice():
    """They train on the same nodes in the same order, so that only their starts set them apart."""
    model = LabelGAP(**{**QUICK, "hops": 2}).fit(small_graph(num_nodes=120))
    for name in stage_names(2):
        for weight in model.modules_[name].parameters():
            assert len(weight) == MEMBERS
            assert not torch.equal(weight[0], weight[1]), name
