"""Every method keeps the same contract, whatever its level."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from methodgraphs import small_graph
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from suited import decided, seeded, suited

from gapgnn import GAP, MLP, GraphSAGE
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph.convert import to_pyg
from gapgnn.methods import method_class, registry
from gapgnn.training.splits import repeat_splits

METHODS = [method_class(name) for name in registry.METHODS]
METHOD_LEVELS = [(method, level) for method in METHODS for level in method.levels]
LEVELS = ["none", "edge", "node"]
QUICK = {"epochs": 3, "epsilon": 4.0}


@pytest.fixture(scope="module")
def graph():
    return small_graph()


def quick(method, level, **more):
    own = {"batch_size": 50} if level == "node" else {}
    if method is GraphSAGE and level == "node":
        # Accounting for a mixture of a hundred Gaussians takes ten seconds.
        own["max_degree"] = 5
    return suited(method, {**QUICK, **own}, level=level, **more)


@pytest.mark.parametrize("method", METHODS)
def test_the_constructor_only_stores_its_arguments(method):
    parameters = inspect.signature(method).parameters
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    nonsense = {name: object() for name in parameters}
    estimator = method(**nonsense)
    assert all(getattr(estimator, name) is value for name, value in nonsense.items())


@pytest.mark.parametrize("method", METHODS)
def test_clone_copies_parameters_and_nothing_learned(method, graph):
    fitted = quick(method, method.levels[-1]).fit(graph)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not [name for name in vars(copy) if name.endswith("_")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", ["predict", "predict_proba", "score"])
def test_unfitted_use_raises_not_fitted(method, call, graph):
    with pytest.raises(NotFittedError):
        getattr(method(), call)(graph)


@pytest.mark.parametrize(("method", "level"), METHOD_LEVELS)
def test_fit_returns_itself_and_predicts_every_node(method, level, graph):
    estimator = quick(method, level)
    assert estimator.fit(graph) is estimator
    probabilities = estimator.predict_proba(graph)
    assert probabilities.shape == (graph.num_nodes, graph.num_classes)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(decided(estimator, graph), probabilities.argmax(axis=1))
    assert (estimator.predict(graph) == estimator.classes_[probabilities.argmax(axis=1)]).all()
    wanted = (decided(estimator, graph) == graph.labels)[graph.test_mask].mean()
    assert estimator.score(graph) == pytest.approx(wanted)
    assert estimator.repeat_scores_[0] == pytest.approx(wanted)


@pytest.mark.parametrize("level", LEVELS)
def test_fit_never_changes_the_callers_graph(level):
    graph = small_graph()
    before = {
        name: np.array(getattr(graph, name))
        for name in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask", "ids")
    }
    features = graph.features.toarray()
    quick(GAP, level).fit(graph)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(graph, name), value)
    np.testing.assert_array_equal(graph.features.toarray(), features)


@pytest.mark.parametrize("level", LEVELS)
def test_fit_never_changes_a_callers_pyg_data(level):
    data = to_pyg(small_graph())
    copies = {key: value.clone() for key, value in data if torch.is_tensor(value)}
    quick(GAP, level).fit(data)
    for key, value in copies.items():
        mine, theirs = data[key], value
        if mine.layout != torch.strided:
            mine, theirs = mine.to_dense(), theirs.to_dense()
        assert torch.equal(mine, theirs), key


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_fit_works_and_forgets_the_first(level, graph):
    estimator = quick(GAP, level, **seeded(level, 5))
    once = estimator.fit(graph).predict_proba(graph)
    other = small_graph(num_nodes=300, seed=1)
    if other.num_features == graph.num_features:
        estimator.fit(other)
    twice = estimator.fit(graph).predict_proba(graph)
    np.testing.assert_array_equal(once, twice)
    assert len(estimator.releases_.hops) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_repeat_does_not_depend_on_the_others(level, graph):
    alone = quick(GAP, level, **seeded(level, 5)).fit(graph)
    among = quick(GAP, level, **seeded(level, 5), repeats=3).fit(graph)
    np.testing.assert_allclose(
        alone.predict_proba(graph), among.predict_proba(graph), atol=2e-3, rtol=0
    )
    assert len(among.repeat_scores_) == 3


def test_repeats_draw_fresh_splits_unless_asked_otherwise(graph):
    from gapgnn.training.splits import repeat_splits

    fresh = repeat_splits(graph, level="edge", repeats=3, split="fresh", seed=0)
    fixed = repeat_splits(graph, level="edge", repeats=3, split="fixed", seed=0)
    np.testing.assert_array_equal(fresh.train[0], graph.train_mask)
    assert (fresh.train[1] != fresh.train[2]).any()
    assert (fixed.train == graph.train_mask).all()
    assert (fresh.train.sum(axis=1) == graph.train_mask.sum()).all()
    assert not (fresh.train & fresh.test).any()
    assert not (fresh.train & fresh.val).any()


def test_at_node_level_no_repeat_gives_others_new_roles_when_somebody_leaves(graph):
    from gapgnn.graph.transforms import induced
    from gapgnn.training.splits import repeat_splits

    # So few that each of them moves the shares of roles by a percent or more.
    few = induced(graph, np.arange(graph.num_nodes) < 60)
    options = {"level": "node", "repeats": 4, "split": "fresh", "seed": 0}
    before = repeat_splits(few, **options)
    for person in range(60):
        kept = np.arange(60) != person
        after = repeat_splits(induced(few, kept), **options)
        for mask in ("train", "val", "test"):
            assert (getattr(before, mask)[:, kept] == getattr(after, mask)).all()
    assert (before.train[1] != before.train[2]).any()


@pytest.mark.parametrize("level", ["edge", "node"])
@pytest.mark.parametrize("split", ["fresh", "fixed"])
def test_no_repeat_gives_a_role_to_nodes_that_have_none(level, split, graph):
    """They may have no label: such a node must not train, nor be counted in a figure."""
    used = np.arange(graph.num_nodes) % 5 != 0
    masks = [mask & used for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
    labels = np.where(used, graph.labels, -1)
    few = graph._replace(
        labels=labels, **dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    )
    splits = repeat_splits(few, level=level, repeats=6, split=split, seed=0)
    for repeat in range(6):
        roles = np.stack([splits.train[repeat], splits.val[repeat], splits.test[repeat]])
        np.testing.assert_array_equal(roles.sum(axis=0), used)


def test_dropout_is_refused_at_node_level_where_masks_would_move_others(graph):
    for method, options in ((GAP, {}), (MLP, {}), (GraphSAGE, {"layers": 1})):
        with pytest.raises(PrivacyError, match="`dropout` must be 0 at level node"):
            method(level="node", dropout=0.1, **options).fit(graph)


def test_another_number_of_features_is_refused_before_anything_is_charged(graph):
    from gapgnn import Ledger

    estimator = quick(GAP, "edge").fit(graph)
    charges = len(Ledger().entries())
    with pytest.raises(InputError, match="features the model was trained on"):
        estimator.predict(graph._replace(features=np.ones((graph.num_nodes, 3), np.float32)))
    assert len(Ledger().entries()) == charges


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"level": "egde"}, InputError, "Did you mean 'edge'"),
        ({"relation": "add-remove"}, InputError, "relation"),
        ({"epsilon": 0.0}, InputError, "`epsilon` must be positive"),
        ({"epsilon": float("nan")}, InputError, "epsilon"),
        ({"epsilon": float("inf")}, InputError, "level none"),
        ({"delta": 1.0}, InputError, "`delta`"),
        ({"delta": "small"}, InputError, "`delta`"),
        ({"hops": 0}, InputError, "`hops`"),
        ({"hidden": 0}, InputError, "`hidden`"),
        ({"combine": "average"}, InputError, "`combine`"),
        ({"activation": "swish"}, InputError, "`activation`"),
        ({"dropout": 1.0}, InputError, "dropout"),
        ({"epochs": 0}, InputError, "`epochs`"),
        ({"learning_rate": -0.1}, InputError, "`learning_rate`"),
        ({"optimizer": "rmsprop"}, InputError, "`optimizer`"),
        ({"noise": "none"}, InputError, "`noise`"),
        ({"noise_ratios": (1.0, 0.0, 1.0)}, InputError, "`noise_ratios`"),
        ({"batch_size": 10_000}, InputError, "the number of training nodes"),
        ({"level": "node", "batch_size": 10_000}, InputError, "the number of training nodes"),
        ({"level": "node", "batch_norm": True, "batch_size": 50}, PrivacyError, "batch_norm"),
        ({"level": "node", "max_degree": 0, "batch_size": 50}, InputError, "`max_degree`"),
        ({"repeats": 0}, InputError, "`repeats`"),
        ({"device": "tpu"}, InputError, "`device`"),
    ],
)
def test_bad_parameters_say_why_and_charge_nothing(changes, error, words, graph):
    from gapgnn import Ledger

    charges = len(Ledger().entries())
    with pytest.raises(error, match=words):
        GAP(**{**QUICK, **changes}).fit(graph)
    assert len(Ledger().entries()) == charges


@pytest.mark.parametrize("combine", ["concat", "sum", "max", "mean", "attention"])
@pytest.mark.parametrize("level", ["edge", "node"])
def test_every_combination_trains_at_every_level(combine, level, graph):
    estimator = quick(GAP, level, combine=combine).fit(graph)
    assert np.isfinite(estimator.predict_proba(graph)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_without_an_encoder_raw_features_are_sent(level, graph):
    estimator = quick(GAP, level, encoder_layers=0).fit(graph)
    assert "encoder" not in estimator.modules_
    assert estimator.releases_.training().hops[-1].shape == (graph.num_nodes, graph.num_features)


def test_mlp_at_edge_level_reads_no_edge_and_costs_nothing(graph):
    from gapgnn import Ledger

    charges = len(Ledger().entries())
    card = quick(MLP, "edge").fit(graph).card_
    assert (card.epsilon, card.events) == (0.0, ())
    assert len(Ledger().entries()) == charges


@pytest.mark.parametrize(
    ("method", "level"), [(GAP, "edge"), (GAP, "node"), (GraphSAGE, "node"), (MLP, "node")]
)
def test_a_number_that_a_stated_delta_was_compared_with_is_public_on_the_card(method, level, graph):
    """Whether the card warns of the delta tells the order of magnitude of that number."""
    name = f"order of magnitude of the number of {'edges' if level == 'edge' else 'people'}"
    for delta, is_warned in ((1e-7, False), (0.1, True)):
        card = quick(method, level, delta=delta).fit(graph).card_
        assert dict(card.public)[name] == "whether the stated delta is warned of follows from it"
        assert any(f"delta {delta:g} is above" in line for line in card.warnings) == is_warned
