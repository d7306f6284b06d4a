"""The grids are the paper's, and what somebody asks for is either run or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from gapgnn.errors import InputError
from gapgnn.evaluation.grid.plans import (
    EXPERIMENTS,
    METHODS,
    Configuration,
    candidates,
    plan,
    title_of,
)
from gapgnn.evaluation.report.tables import published
from gapgnn.methods import method_class, recommended_method

PAPERS = {
    *((method, level) for method in ("gap", "sage") for level in ("none", "edge", "node")),
    ("mlp", "edge"),
    ("mlp", "node"),
}


def by_row(experiment: str, **options: Any) -> dict[tuple[str, str], Configuration]:
    """Return the rows of an experiment by method and level."""
    return {(row.method, row.level): row for row in plan(experiment, **options)}


def test_accuracy_has_the_papers_eight_rows_and_ours() -> None:
    rows = by_row("accuracy")
    assert {method for method, _ in rows} == set(METHODS)
    progap = {("progap", level) for level in ("none", "edge", "node")}
    codes = {("label-gap", "none"), ("label-gap", "edge"), ("node-label-gap", "node")}
    own = {(f"node-label-gap own {what}", "node") for what in ("nothing", "record")}
    votes = {("vote", "edge"), ("vote", "node")}
    assert set(rows) - PAPERS == progap | codes | own | votes
    assert rows["gap", "none"].epsilon is None
    assert rows["mlp", "edge"].epsilon == rows["vote", "edge"].epsilon == 0.0
    at_node = ("vote", "node"), ("node-label-gap own record", "node")
    assert {rows[row].epsilon for row in at_node} == {8.0}
    assert rows["node-label-gap own nothing", "node"].parameters == {"own": "nothing"}
    assert {rows[name, "edge"].epsilon for name in ("gap", "sage", "label-gap")} == {4.0}
    assert {rows[name, "node"].epsilon for name in ("gap", "sage", "mlp")} == {8.0}
    assert rows["gap", "edge"].parameters == {}


def test_the_recommended_method_of_every_level_is_a_row_and_no_row_is_called_gap_but_gap() -> None:
    rows = by_row("accuracy")
    for level in ("none", "edge", "node"):
        assert (recommended_method(level), level) in rows
    for (method, _), row in rows.items():
        assert method.split(" ")[0] == row.estimator
        assert title_of(method).split(" ")[0] == method_class(row.estimator).__name__
    assert [method for method in METHODS if title_of(method).startswith("GAP")] == ["gap"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_configuration_makes_an_estimator_that_can_work(experiment: str) -> None:
    for row in plan(experiment):
        method_class(row.estimator)(**row.constructor()).check()
        for one in candidates(row):
            method_class(one.estimator)(**one.constructor()).check()


def test_the_ablations_vary_what_the_paper_varies() -> None:
    def grid(experiment: str, name: str) -> dict[str, dict[float, list[int]]]:
        found: dict[str, dict[float, list[int]]] = {}
        for row in plan(experiment):
            assert row.method == "gap"
            found.setdefault(row.level, {}).setdefault(row.epsilon or 0, []).append(
                row.parameters[name]
            )
        return found

    hops = [1, 2, 3, 4, 5]
    assert grid("hops", "hops") == {
        "edge": {1.0: hops, 4.0: hops},
        "node": {8.0: hops, 16.0: hops},
    }
    degrees = [10, 20, 50, 100, 200, 300, 400]
    assert grid("degree", "max_degree") == {"node": {4.0: degrees, 16.0: degrees}}
    encoder = grid("encoder", "encoder_layers")
    assert all(layers == [2, 0] for by in encoder.values() for layers in by.values())
    assert list(encoder["edge"]) == [0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert list(encoder["node"]) == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_relation_reaches_the_rows_of_its_own_level_only() -> None:
    rows = by_row("accuracy", relation="directed")
    assert {rows[name, "edge"].relation for name in ("gap", "sage", "mlp")} == {"directed"}
    assert rows["gap", "node"].relation == rows["gap", "none"].relation == "auto"


def test_the_attack_is_on_wide_models_and_the_mlp_without_privacy() -> None:
    rows = plan("membership", attack_on=("target", "shadow"))
    assert {row.parameters["hidden"] for row in rows} == {64}
    mlps = [row for row in rows if row.method == "mlp" and row.level != "node"]
    assert [row.attack for row in mlps] == [{"on": "target"}, {"on": "shadow"}]
    assert {(row.level, row.epsilon) for row in mlps} == {("none", None)}


OWN = "node-label-gap own record"


@pytest.mark.parametrize(
    "name", ["Node-Label-GAP own record", "node-label-gap-own-record", "node_label_gap_own_record"]
)
def test_a_row_may_be_written_without_its_space(name: str) -> None:
    assert [row.method for row in plan("accuracy", methods=[name, name])] == [OWN]


def test_levels_choose_among_the_rows() -> None:
    rows = plan("accuracy", methods=["gap", "label-gap", "mlp"], levels=["edge", "none"])
    assert [(row.method, row.level) for row in rows] == [
        ("gap", "none"),
        ("gap", "edge"),
        ("label-gap", "none"),
        ("label-gap", "edge"),
        ("mlp", "edge"),
    ]


@pytest.mark.parametrize(
    ("experiment", "options", "complaint"),
    [
        ("acuracy", {}, "Did you mean 'accuracy'?"),
        ("accuracy", {"methods": ["lable-gap"]}, "Did you mean 'label-gap'?"),
        ("accuracy", {"methods": ["SAEG"]}, "Did you mean 'sage'?"),
        ("degree", {"methods": ["mlp"]}, "`methods` of degree must be among gap, progap, sage."),
        ("accuracy", {"levels": ["egde"]}, "Did you mean 'edge'?"),
        ("degree", {"levels": ["edge"]}, "`levels` must be of a row of degree: node. Got edge."),
        ("accuracy", {"epsilons": [-1.0]}, "`epsilons` must be positive. Got -1.0."),
        ("accuracy", {"epsilons": [float("inf")]}, "`epsilons` must be finite"),
        ("membership", {"attack_on": ["targte"]}, "Did you mean 'target'?"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(
    experiment: str, options: dict, complaint: str
) -> None:
    with pytest.raises(InputError) as error:
        plan(experiment, **options)
    assert complaint in str(error.value)


def test_a_selection_tries_what_the_paper_tries_and_keeps_what_the_row_fixes() -> None:
    rows = by_row("accuracy")
    assert len(candidates(rows["gap", "node"])) == len(candidates(rows["progap", "node"])) == 5 * 4
    layers = [one.parameters["layers"] for one in candidates(rows["sage", "edge"])]
    assert layers == [1, 2, 3, 4, 5]
    assert [one.parameters["max_degree"] for one in candidates(rows["sage", "node"])] == [
        100,
        200,
        300,
        400,
    ]
    for name in (("mlp", "edge"), ("vote", "node"), ("node-label-gap", "node"), (OWN, "node")):
        assert candidates(rows[name]) == [rows[name]]
    two_hops = plan("hops", levels=["edge"], epsilons=[1])[1]
    assert candidates(two_hops) == [two_hops]


def test_published_figures_are_found_by_the_rows_of_our_tables() -> None:
    for row in plan("accuracy"):
        figure = published("amazon", row.method, row.level, row.epsilon)
        is_known = (row.method, row.level) in {*PAPERS, ("progap", "node")}
        assert (figure is None) == (not is_known)
    for row in plan("membership"):
        figure = published("reddit", row.method, row.level, row.epsilon, experiment="membership")
        assert figure is not None
