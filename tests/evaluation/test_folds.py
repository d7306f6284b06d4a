"""Cross-validation keeps graphs whole, says its price first and never starts what it cannot end."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from methodgraphs import small_graph

from gapgnn import MLP, GraphSAGE, LabelGAP, Ledger, cross_validate
from gapgnn.errors import BudgetExceededError, DataError, InputError, PrivacyError
from gapgnn.evaluation.folds import CrossValidation, fold_graphs
from gapgnn.graph.transforms import induced
from gapgnn.privacy.ledger import LedgerNotice, People

gate = pytest.mark.gate

QUICK = {"epochs": 2, "epsilon": 1.0, "delta": 1e-6}
PURE = {"epochs": 2, "epsilon": 1.0}


@pytest.fixture(scope="module")
def graph():
    return small_graph(num_nodes=150)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


def validated(model, graph, **options) -> tuple[CrossValidation, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = cross_validate(model, graph, **options)
    notices = [str(one.message) for one in said if one.category is LedgerNotice]
    assert len(said) == len(notices) == 1
    return found, notices[0]


def grant(ledger: Ledger, graph, epsilon: float, **options) -> None:
    ledger.grant(
        "customers",
        People.of(graph),
        level="edge",
        relation="undirected",
        epsilon=epsilon,
        delta=1e-6,
        **options,
    )


@gate
def test_every_fold_is_a_charge_and_together_they_cost_what_was_said(graph, ledger):
    found, said = validated(LabelGAP(**QUICK, ledger=ledger.path), graph, folds=4)
    charges = ledger.entries()
    assert [fold.charge for fold in found.folds] == [charge.id for charge in charges]
    assert [charge.epsilon for charge in charges] == [pytest.approx(1.0, rel=0.005)] * 4
    # Gaussian noise composes better than by adding up.
    assert 1.0 < found.epsilon < 4.0
    assert "4 x epsilon 1," in said
    assert f"together epsilon {found.epsilon:.3g} at delta 1e-06" in said
    grant(ledger, graph, epsilon=4.0)
    (budget,) = ledger.budgets_of(People.of(graph))
    assert budget.spent_epsilon == pytest.approx(found.epsilon, rel=1e-6)


def test_the_price_is_said_before_the_first_charge(graph, ledger):
    # Warnings are errors in tests: this one comes before anything else happens.
    with pytest.raises(LedgerNotice, match="5 x epsilon 1, together"):
        cross_validate(LabelGAP(**QUICK, ledger=ledger.path), graph)
    assert ledger.entries() == []


@pytest.mark.parametrize(("folds", "fits"), [pytest.param(3, True, marks=gate), (4, False)])
def test_a_budget_that_is_too_small_for_all_folds_pays_for_none(graph, ledger, folds, fits):
    grant(ledger, graph, epsilon=3.5, composition="sum")
    model = LabelGAP(**{**QUICK, "delta": 1e-8}, ledger=ledger.path)
    if fits:
        validated(model, graph, folds=folds)
    else:
        with pytest.raises(
            BudgetExceededError, match=r"request for epsilon 4 .*nothing was charged"
        ):
            cross_validate(model, graph, folds=folds)
    assert len(ledger.entries()) == (folds if fits else 0)


def test_a_budget_under_another_relation_pays_for_no_fold(graph, ledger):
    grant(ledger, graph, epsilon=100.0)
    with pytest.raises(PrivacyError, match="stated under undirected"):
        cross_validate(LabelGAP(**QUICK, relation="directed", ledger=ledger.path), graph)
    assert ledger.entries() == []


@gate
def test_pure_releases_add_up(graph, ledger):
    found, said = validated(GraphSAGE(**PURE, ledger=ledger.path), graph, folds=2)
    assert (found.epsilon, found.delta) == (pytest.approx(2.0), 0.0)
    assert "2 x epsilon 1, together epsilon 2" in said


def test_a_model_that_reads_no_edge_is_free_and_says_so(graph, ledger):
    found, said = validated(MLP(epochs=2, ledger=ledger.path), graph, folds=2)
    assert "nothing is charged" in said
    assert (found.epsilon, ledger.entries()) == (0.0, [])


def test_everybody_with_a_label_is_tested_once_and_trains_elsewhere(graph):
    some = graph._replace(
        labels=np.where(np.arange(150) < 20, -1, graph.labels),
        **{f"{m}_mask": np.zeros(150, bool) for m in ("train", "val", "test")},
    )
    parts = fold_graphs(some, folds=5, seed=1, val=0.1)
    tested = np.sum([part.test_mask for part in parts], axis=0)
    np.testing.assert_array_equal(tested, some.labels >= 0)
    trained = np.sum([part.train_mask for part in parts], axis=0)
    assert trained[some.labels >= 0].min() >= 1
    for part in parts:
        np.testing.assert_array_equal(
            part.train_mask | part.val_mask | part.test_mask, some.labels >= 0
        )
        assert part.fingerprint == some.fingerprint


def test_nobody_elses_fold_or_role_changes_when_somebody_leaves(graph):
    kept = np.arange(150) != 11
    options = {"folds": 4, "seed": 2, "val": 0.2}
    before = fold_graphs(graph, **options)
    after = fold_graphs(induced(graph, kept, dangle=True), **options)
    for one, other in zip(before, after, strict=True):
        for mask in ("train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(getattr(one, mask)[kept], getattr(other, mask))


@gate
def test_figures_at_node_level_are_called_the_curators(graph, ledger):
    model = MLP(**QUICK, level="node", batch_size=30, ledger=ledger.path)
    found, said = validated(model, graph, folds=2)
    assert "for the curator only" in str(found)
    assert "2 releases, each charged" in said
    assert len(ledger.entries()) == 2
    edge, _ = validated(MLP(epochs=2, ledger=ledger.path), graph, folds=2)
    assert "curator" not in str(edge)


@gate
def test_a_fold_that_tests_nobody_does_not_stop_a_run_at_node_level(graph, ledger):
    few = induced(graph, np.arange(150) < 4)
    options = {"level": "node", "batch_size": 2, "train_size": 4, "ledger": ledger.path}
    found, _ = validated(MLP(**QUICK, **options), few, folds=9, metrics="accuracy")
    assert None in found.figures("accuracy")
    assert found.mean("accuracy") >= 0
    with pytest.raises(DataError):
        cross_validate(MLP(epochs=2, ledger=ledger.path), few, folds=9)


def test_predictable_noise_differs_from_fold_to_fold(graph, ledger, monkeypatch):
    seeds = []
    original = LabelGAP._noise_keys
    monkeypatch.setattr(
        LabelGAP,
        "_noise_keys",
        lambda self: (seeds.append(self.insecure_noise_seed), original(self))[1],
    )
    model = LabelGAP(**QUICK, insecure_noise_seed=7, ledger=ledger.path)
    validated(model, graph, folds=2)
    assert len(set(seeds)) == 2
    assert model.insecure_noise_seed == 7
    assert not hasattr(model, "card_")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 1}, "`folds` must be at least 2"),
        ({"folds": 2.5}, "`folds` must be a whole number"),
        ({"metrics": "acuracy"}, "Did you mean 'accuracy'"),
        ({"val": 1.0}, "`val`"),
    ],
)
def test_bad_arguments_charge_nothing(options, words, graph, ledger):
    with pytest.raises(InputError, match=words):
        cross_validate(LabelGAP(**QUICK, ledger=ledger.path), graph, **options)
    with pytest.raises(InputError, match="`repeats` must be 1"):
        cross_validate(LabelGAP(**QUICK, repeats=2, ledger=ledger.path), graph)
    assert ledger.entries() == []


@gate
def test_a_frame_has_a_row_per_fold(graph, ledger):
    pandas = pytest.importorskip("pandas")
    found, _ = validated(MLP(epochs=2, ledger=ledger.path), graph, folds=3, metrics=["auc"])
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (list(frame), list(frame.index), frame.index.name) == (["auc"], [1, 2, 3], "fold")
