"""Fitting from Python without knowing the package: what comes in, what is said, what comes out."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path

import networkx
import numpy as np
import pytest
from methodgraphs import small_graph, write_tables
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from suited import decided, suited

from gapgnn import (
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    NodeLabelGAP,
    load_model,
    random_split,
    read_tables,
)
from gapgnn.errors import InputError, PrivacyError, UnavailableError
from gapgnn.graph.convert import to_networkx, to_pyg
from gapgnn.graph.tables.schema import Category, Label, Number, Schema
from gapgnn.graph.transforms import induced
from gapgnn.training import Silent

METHODS = [LabelGAP, GraphSAGE, MLP]
QUICK = {"epochs": 3, "epsilon": 4.0}
BRIEF = {"epochs": 3}
NOBODY = np.zeros(120, dtype=bool)


@pytest.fixture(scope="module")
def unsplit() -> Graph:
    return small_graph(num_nodes=120).with_masks(NOBODY, NOBODY, NOBODY)


@pytest.fixture
def frames():
    """Pandas, or where it is not installed something that holds columns as it does."""
    try:
        import pandas
    except ImportError:
        stand_in = types.ModuleType("pandas")
        stand_in.DataFrame = lambda columns, index=None: columns
        stand_in.Index = lambda numbers, name: numbers
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "pandas", stand_in)
            yield stand_in
    else:
        yield pandas


def tables(folder: Path, **options):
    words = write_tables(folder)
    return read_tables(edges=words[1], nodes=words[3], label="year", **options)


def without_masks(data, masks=("train_mask", "val_mask", "test_mask")):
    for mask in masks:
        del data[mask]
    return data


def as_networkx(graph: Graph) -> networkx.Graph:
    made = to_networkx(graph)
    for _, node in made.nodes(data=True):
        without_masks(node)
    return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "given",
    [lambda g: g, lambda g: without_masks(to_pyg(g)), as_networkx],
    ids=["own", "pyg", "nx"],
)
def test_what_comes_without_masks_gets_the_standard_split_and_one_line_says_so(
    method, given, unsplit
):
    data = given(unsplit)
    with pytest.warns(UserWarning, match=r"hash of \(seed 3, id\): about 75% to train") as said:
        model = suited(method, QUICK, seed=3).fit(data)
    assert len(said) == 1
    split = random_split(unsplit, seed=3)
    wanted = (decided(model, data) == unsplit.labels)[split.test_mask].mean()
    assert model.score(data) == model.repeat_scores_[0] == pytest.approx(wanted)


def test_what_read_tables_returns_is_fitted_as_it_is(tmp_path):
    read = tables(tmp_path)
    with pytest.warns(UserWarning, match="no masks"):
        model = LabelGAP(**QUICK).fit(read)
    assert model.score(read) == model.repeat_scores_[0]
    assert len(decided(model, read)) == 120


def test_masks_that_are_there_are_used_and_nothing_is_said(unsplit):
    graph = random_split(unsplit, seed=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MLP(**BRIEF).fit(graph)
    with pytest.raises(InputError, match="must have a test mask to be scored"):
        model.score(unsplit)


def test_at_node_level_the_split_gives_nobody_a_new_role_when_somebody_leaves(unsplit):
    options = {**QUICK, "level": "node", "batch_size": 30, "train_size": 90}
    kept = np.arange(120) != 7
    roles = []
    for graph in (unsplit, induced(unsplit, kept, dangle=True)):
        with pytest.warns(UserWarning, match="no masks"):
            model = MLP(**options).fit(graph)
        _, masks = model._people
        roles.append(np.stack(masks))
    assert (roles[0][:, kept] == roles[1]).all()


def test_at_node_level_ids_that_are_positions_are_warned_of(unsplit):
    options = {**QUICK, "level": "node", "batch_size": 30}
    with pytest.warns(UserWarning, match="Ids are positions here"):
        MLP(**options).fit(unsplit)
    named = unsplit._replace(ids=np.array([f"p{k}" for k in range(120)]))
    with pytest.warns(UserWarning, match="no masks") as said:
        MLP(**options).fit(named)
    assert "positions" not in str(said[0].message)


def test_tables_without_a_schema_are_still_refused_at_node_level(tmp_path):
    with pytest.raises(PrivacyError, match="must be declared at level node"):
        NodeLabelGAP(**QUICK).fit(tables(tmp_path))


def test_tables_with_a_schema_are_split_at_node_level_as_the_command_line_splits_them(tmp_path):
    schema = Schema(
        columns=(
            Number("age", low=0, high=100),
            Category("city", values=("Bern", "Oslo", "Rome")),
        ),
        label=Label("year", classes=("2004", "2005", "2006")),
    )
    read = tables(tmp_path, schema=schema, dangling="keep")
    with pytest.warns(UserWarning, match="no masks") as said:
        model = MLP(level="node", batch_size=30, seed=5, **QUICK).fit(read)
    assert "positions" not in str(said[0].message)
    _, masks = model._people
    np.testing.assert_array_equal(masks[0], random_split(read.graph, seed=5).train_mask)


def test_labels_are_part_of_the_graph_and_not_a_second_argument(unsplit):
    with pytest.raises(InputError, match="`y` must be left out"):
        MLP().fit(unsplit, unsplit.labels)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda graph: GridSearchCV(MLP(), {"hidden": [4, 8]}).fit(graph),
        lambda graph: cross_val_score(MLP(), graph),
        lambda graph: make_pipeline(StandardScaler(), MLP()).fit(graph),
        lambda graph: MLP().fit(np.eye(3), [0, 1, 0]),
    ],
    ids=["GridSearchCV", "cross_val_score", "Pipeline", "array"],
)
def test_whoever_would_cut_a_graph_into_rows_is_sent_to_ours_in_one_line(misuse, unsplit):
    with pytest.raises(InputError, match=r"use `gapgnn\.cross_validate`") as error:
        misuse(unsplit)
    assert "\n" not in str(error.value)


def test_a_pipeline_of_a_method_alone_fits_and_predicts(unsplit):
    graph = random_split(unsplit, seed=0)
    found = Pipeline([("model", MLP(**BRIEF))]).fit(graph).predict(graph)
    assert len(found) == 120


@pytest.mark.parametrize("method", METHODS)
def test_history_has_loss_and_accuracy_of_every_epoch(method, unsplit):
    model = suited(method, QUICK).fit(random_split(unsplit, seed=0))
    assert "classifier" in model.history_
    for phase, figures in model.history_.items():
        if phase != "aggregation":
            # Where steps read some nodes, validation nodes are looked at every now and then.
            looked = 1 if method in (LabelGAP, MLP) else 3
            assert [len(figures[name]) for name in ("loss", "accuracy")] == [3, looked], phase


def test_history_has_no_figure_at_node_level_and_none_is_ever_saved(unsplit, tmp_path):
    graph = random_split(unsplit, seed=0)
    private = NodeLabelGAP(batch_size=30, **QUICK).fit(graph)
    assert set(private.history_) == {"aggregation", "classifier"}
    assert not [
        list_ for figures in private.history_.values() for list_ in figures.values() if list_
    ]
    for name, model in {"node": private, "edge": LabelGAP(**QUICK).fit(graph)}.items():
        model.save(tmp_path / name)
        assert not hasattr(load_model(tmp_path / name), "history_")
        written = b"".join(f.read_bytes() for f in (tmp_path / name).rglob("*") if f.is_file())
        assert b"history" not in written
        settings_alone = written.replace(b"privacy loss", b"").replace(b'"loss_weights"', b"")
        assert b"loss" not in settings_alone


def test_who_says_that_nobody_watches_keeps_no_history(unsplit):
    model = MLP(**BRIEF).fit(random_split(unsplit, seed=0), callback=Silent())
    assert model.history_ == {}


def test_watching_a_fit_does_not_change_it(unsplit, capsys):
    graph = random_split(unsplit, seed=0)
    options = {**QUICK, "insecure_noise_seed": 1}
    quiet = LabelGAP(**options).fit(graph, callback=Silent()).predict_proba(graph)
    assert capsys.readouterr().err == ""
    loud = LabelGAP(**options).fit(graph, progress=True)
    np.testing.assert_array_equal(loud.predict_proba(graph), quiet)
    assert "classifier: 3 steps" in capsys.readouterr().err


def test_a_notebook_shows_progress_unless_asked_otherwise(unsplit, monkeypatch, capsys):
    from gapgnn.training import callbacks

    monkeypatch.setattr(callbacks, "_is_notebook", lambda: True)
    graph = random_split(unsplit, seed=0)
    MLP(**BRIEF).fit(graph)
    assert "classifier: 3 steps" in capsys.readouterr().err
    MLP(**BRIEF).fit(graph, progress=False)
    MLP(**BRIEF).fit(graph, callback=Silent())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("method", [LabelGAP, MLP])
def test_a_frame_has_ids_predictions_probabilities_and_roles(method, unsplit, frames):
    named = unsplit._replace(
        ids=np.array([f"p{k}" for k in range(120)]), label_names=("red", "green", "blue")
    )
    with pytest.warns(UserWarning, match="no masks"):
        model = suited(method, QUICK).fit(named)
    frame = model.to_frame(named)
    names = ["id", "prediction", *(f"probability of {n}" for n in named.label_names), "role"]
    assert list(frame) == names
    assert list(frame["id"]) == named.ids.tolist()
    assert list(frame["prediction"]) == [named.label_names[k] for k in decided(model, named)]
    np.testing.assert_array_equal(
        np.stack([frame[name] for name in names[2:5]], axis=1), model.predict_proba(named)
    )
    split = random_split(named, seed=0)
    for role, mask in (("training", split.train_mask), ("test", split.test_mask)):
        np.testing.assert_array_equal(np.array(list(frame["role"])) == role, mask)


def test_a_frame_without_a_graph_is_of_the_training_graph(unsplit, frames, tmp_path):
    graph = random_split(unsplit, seed=0)
    model = LabelGAP(**QUICK).fit(graph)
    mine, given = model.to_frame(), model.to_frame(graph)
    for column in mine:
        assert list(mine[column]) == list(given[column])
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model").to_frame()
    assert list(loaded) == [name for name in mine if name != "role"]
    with pytest.raises(InputError):
        MLP(**BRIEF).fit(graph).to_frame()


def test_a_real_frame_comes_of_pandas(unsplit):
    pandas = pytest.importorskip("pandas")
    graph = random_split(unsplit, seed=0)
    frame = MLP(**BRIEF).fit(graph).to_frame(graph)
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 120
    assert frame["role"].value_counts()["training"] == graph.train_mask.sum()


def test_without_pandas_one_line_says_what_to_install(unsplit, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    graph = random_split(unsplit, seed=0)
    with pytest.raises(
        UnavailableError, match=r"needs the package pandas. Install gapgnn\[frames\]"
    ):
        MLP(**BRIEF).fit(graph).to_frame(graph)
